"""Reports of an unfinished run: from the cells that exist, with a list of those that do not."""

import os
import sys
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pyarrow.parquet as pq

from lm_validity.config.load import Run
from lm_validity.files import read_json, write_text
from lm_validity.pages.page import write_html
from lm_validity.site.cards.card import run_sources
from lm_validity.site.first_page import about_run, build_site, source_of
from lm_validity.site.report import ReportJob, run_reports
from lm_validity.tables.merge import Merger


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


FINISHED = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={report}">
<title>This run is finished</title>
<p>This run is finished: <a href="{report}">its report</a>.</p>
</html>
"""


def lead_to_report(results: Path) -> None:
    """Have the pages of the unfinished run, where there are any, lead to the report of the finished one."""
    for folder in (results / "partial" / "report", results / "partial" / "reports"):
        for page in (*folder.glob("index.html"), *folder.glob("*/index.html"), *folder.glob("cards/*/index.html")):
            report = os.path.relpath(results / "report" / "index.html", page.parent)
            write_text(page, FINISHED.format(report=quote(report)))


def mark_unfinished(folder: Path, missing: list[str]) -> None:
    """Say on a report's own page which cells it does without."""
    write_html(read_json(folder / "page.json"), folder, missing=missing)


def _jobs(run: Run, folder: Path, *, with_items: bool) -> list[ReportJob]:
    """The reports of the configuration's studies, from the tables of the folder and into its `reports`."""
    tables, reports, settings = folder / "tables", folder / "reports", run.configuration.reports
    scores, items = tables / "scores.parquet", tables / "items.parquet" if with_items else None
    models, benchmarks = Path(run.configuration.models or ""), Path(run.configuration.benchmarks or "")
    sheets, plan, studies = (scores, models, benchmarks), run.configuration.plan, run.configuration.studies
    jobs = []
    if "agreement" in studies:
        further_tables = {"items": items, "selections": tables / "selections.parquet"}
        jobs.append(ReportJob.of(reports, "agreement", *sheets, section=settings, plan=plan, **further_tables))
        jobs.append(ReportJob.of(reports, "factors", *sheets, section=settings, plan=plan))
        if run.configuration.agreement.groups:
            jobs.append(ReportJob.of(reports, "readiness", *sheets, section=run.configuration.agreement, plan=plan))
    if "signal" in studies:
        jobs.append(
            ReportJob.of(reports, "signal", scores, models, section=settings, benchmarks=benchmarks, items=items)
        )
    if "bias" in studies:
        jobs.append(ReportJob.of(reports, "bias", tables / "trials.parquet", plan=run.bias_plan))
    return jobs
