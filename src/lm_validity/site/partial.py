"""Reports of an unfinished run: from the cells that exist, with a list of those that do not."""

import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from lm_validity.config.load import Run
from lm_validity.errors import InputError
from lm_validity.files import read_json, write_json, write_text
from lm_validity.pages.page import render
from lm_validity.site.cards.of_run import write_run_cards
from lm_validity.site.compose import build_site
from lm_validity.tables.merge import Merger


def write_partial_reports(run: Run, *, with_items: bool = True) -> tuple[int, Path | None]:
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
        return len(missing), None
    written = []
    for name, write in _reports(run, folder / "tables", with_items=with_items).items():
        try:
            write(folder / "reports" / name)
            if missing:
                mark_unfinished(folder / "reports" / name, missing)
            written.append(folder / "reports" / name)
        except InputError as error:
            print(f"report {name}: {error.problem}", file=sys.stderr)
    if not written:
        return len(missing), None
    written += write_run_cards(run, written, folder / "tables", folder / "report", missing)
    return len(missing), build_site(written, folder / "report", missing=missing, title=f"{run.name} (unfinished)")


def mark_unfinished(folder: Path, missing: list[str]) -> None:
    """Say on a report's own page, and under `missing` of its summary.json, which cells it does without."""
    document = read_json(folder / "page.json")
    write_text(folder / "index.html", render([document], title=document["title"], missing=missing))
    write_json(folder / "summary.json", read_json(folder / "summary.json") | {"missing": missing})


def _reports(run: Run, tables: Path, *, with_items: bool) -> dict[str, Callable[[Path], None]]:
    """name -> function of the output folder, for the studies of the configuration."""
    from lm_validity.studies.agreement.factors.report import report_factors
    from lm_validity.studies.agreement.report import report_agreement
    from lm_validity.studies.bias.report import report_bias
    from lm_validity.studies.signal.options import make_options
    from lm_validity.studies.signal.report import report_signal

    models, benchmarks = Path(run.configuration.models or ""), Path(run.configuration.benchmarks or "")
    scores, items = tables / "scores.parquet", tables / "items.parquet" if with_items else None
    selections = tables / "selections.parquet"
    settings = run.configuration.reports
    resamples, plan = settings.resamples, run.configuration.plan
    found = {}
    if "agreement" in run.configuration.studies:
        found["agreement"] = lambda output: report_agreement(
            scores, models, benchmarks, output, items=items, selections=selections, resamples=resamples, plan=plan
        )
        found["factors"] = lambda output: report_factors(
            scores, models, benchmarks, output, resamples=resamples, plan=plan
        )
    if "signal" in run.configuration.studies:
        found["signal"] = lambda output: report_signal(
            scores,
            models,
            output,
            benchmarks=benchmarks,
            items=items,
            selection=settings.checkpoints,
            options=make_options(**settings.signal.model_dump()),
            resamples=resamples,
            plan=run.signal_plan,
        )
    if "bias" in run.configuration.studies:
        found["bias"] = lambda output: report_bias(tables / "trials.parquet", output, plan=run.bias_plan)
    return found
