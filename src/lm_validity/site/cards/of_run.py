"""The cards of a run of the workflow, finished or not."""

from collections.abc import Sequence
from pathlib import Path

from lm_validity.config.load import Run
from lm_validity.site.cards.other_values import splits_folder
from lm_validity.site.cards.sources import CardSources
from lm_validity.site.cards.write import FOLDER, write_cards


def run_sources(run: Run, reports: Sequence[Path], tables: Path, missing: Sequence[str] = ()) -> CardSources | None:
    """What a run's cards are made from; None where it has no benchmarks with scores (the bias study alone)."""
    scores, items = tables / "scores.parquet", tables / "items.parquet"
    if run.configuration.benchmarks is None or not scores.is_file():
        return None
    of_items = run.results / "reports" / "items"
    options = {"scores": scores, "items": items, "benchmarks": run.configuration.benchmarks, "output": of_items}
    written = " ".join(f"--{name} {value}" for name, value in options.items())
    return CardSources(
        scores=scores,
        benchmarks=Path(run.configuration.benchmarks),
        reports=[*reports, of_items],  # written only when somebody asks for it
        items=items if items.is_file() else None,
        splits=splits_folder(run.results),
        settings=run.configuration.cards,
        source=f"the run {run.name}",
        missing=missing,
        items_command=f"lm-validity report items {written} && lm-validity build-site",
    )


def write_run_cards(
    run: Run, reports: Sequence[Path], tables: Path, output: Path, missing: Sequence[str] = ()
) -> list[Path]:
    """Write the cards under `output`; the folder of their table, for the site, or nothing where there are none."""
    sources = run_sources(run, reports, tables, missing)
    return [output / FOLDER] if sources is not None and write_cards(sources, output) else []
