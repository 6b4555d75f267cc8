"""The site of a run: what it is made from, and the reports of an unfinished run, from the cells that exist, with a list
of those that do not."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from lm_validity.config.load import Run
from lm_validity.files import commit_of, read_json
from lm_validity.pages.page import write_html
from lm_validity.site.cards.values import CardSources
from lm_validity.site.first_page import build_site
from lm_validity.site.report import Given, ReportJob, agreement_jobs, run_reports
from lm_validity.tables.counted import Sources
from lm_validity.tables.merge import Merger

SYNTHETIC = "The models of this run are synthetic. They live in a miniature world, made for trying out the workflow."


def source_of(run: Run) -> str:
    """What the site of a run is made from."""
    return f"the run {run.name} ({commit_of(Path.cwd())})"


def about_run(run: Run) -> str:
    """What the site of a run says under its title: that its models are synthetic, where all are the miniature's."""
    paths = [*(row.path for row in run.models.values()), *(row.path for row in run.language_models.values())]
    return SYNTHETIC if paths and all(map(run.is_miniature, paths)) else ""


def run_sources(run: Run, reports: Sequence[Path], tables: Path, missing: Sequence[str] = ()) -> CardSources | None:
    """What a run's cards are made from; None where it has no benchmarks with scores (the bias study alone)."""
    scores, items, splits = tables / "scores.parquet", tables / "items.parquet", run.results / "splits"
    if run.configuration.benchmarks is None or not scores.is_file():
        return None
    of_items = run.results / "reports" / "items"
    options = {"scores": scores, "items": items, "benchmarks": run.configuration.benchmarks, "output": of_items}
    written = " ".join(f"--{name} {value}" for name, value in options.items())
    return CardSources(
        scores=scores,
        benchmarks=Path(run.configuration.benchmarks),
        reports=[*reports, of_items],  # written only when somebody asks for it
        models=Path(run.configuration.models) if run.configuration.models else None,
        items=items if items.is_file() else None,
        splits=splits if splits.is_dir() else None,
        settings=run.configuration.cards,
        source=f"the run {run.name}",
        missing=missing,
        items_command=f"lm-validity report items {written} && lm-validity build-site",
    )


# ----------------------------------------------------------------------------------------------------------------------
# Reports of an unfinished run.


class PartialReports(NamedTuple):
    """How many cells are missing, and the page that leads to the reports, where one was written."""

    missing: int
    page: Path | None


def write_partial_reports(run: Run, *, with_items: bool = True) -> PartialReports:
    """Write results/<run>/partial/{tables,reports,report}; the number of missing cells, and the page if there is one.

    Nothing is written into a path that a rule declares. Every page lists what is missing. A report that is not possible
    with the cells at hand is left out and said on standard error.
    """
    folder = run.results / "partial"
    merger = Merger(run, partial=True)
    studies = set(run.configuration.studies)
    if studies & {"agreement", "signal"}:
        merger.write_scores(folder / "tables")
        if with_items:
            merger.write_items(folder / "tables")
    if "bias" in studies:
        merger.write_trials(folder / "tables")
    missing = [cell.describe() for cell in merger.missing]
    tables = [path for name in ("scores", "trials") if (path := folder / "tables" / f"{name}.parquet").is_file()]
    if not any(pq.read_metadata(path).num_rows for path in tables):
        return PartialReports(len(missing), None)
    jobs = _jobs(run, folder, with_items=with_items)
    names, failed = run_reports(jobs)
    for name, problem in failed.items():
        print(f"report {name}: {problem}", file=sys.stderr)
    written = [job.output for job in jobs if job.name in names]
    for report in written if missing else ():
        mark_unfinished(report, missing)
    if not written:
        return PartialReports(len(missing), None)
    cards = run_sources(run, written, folder / "tables", missing)
    site = build_site(
        written,
        folder / "report",
        cards=cards,
        missing=missing,
        name=run.name,
        about=about_run(run),
        source=source_of(run),
    )
    return PartialReports(len(missing), site)


def mark_unfinished(folder: Path, missing: list[str]) -> None:
    """Say on a report's own page which cells it does without."""
    write_html(read_json(folder / "page.json"), folder, missing=missing)


def _jobs(run: Run, folder: Path, *, with_items: bool) -> list[ReportJob]:
    """The reports of the configuration's studies, from the tables of the folder and into its `reports`."""
    tables, reports, configured = folder / "tables", folder / "reports", run.configuration
    items, studies, jobs = tables / "items.parquet" if with_items else None, configured.studies, list[ReportJob]()
    sources = Sources(tables / "scores.parquet", configured.models, configured.benchmarks, items, configured.plan)
    if "agreement" in studies:
        inputs = Given(section=configured.reports, agreement=configured.agreement)
        jobs += agreement_jobs(reports, sources, inputs, tables / "selections.parquet")
    if "signal" in studies:
        jobs.append(ReportJob.of(reports, "signal", sources, section=configured.reports))
    if "bias" in studies:
        jobs.append(ReportJob.of(reports, "bias", tables / "trials.parquet", plan=run.bias_plan))
    return jobs
