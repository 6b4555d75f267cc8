"""The page on the data themselves: what came in, what was guessed, what could not be written."""

from collections.abc import Mapping

import pandas as pd

from lm_validity.pages.page import Page, Section, Table


def data_page(
    scores: pd.DataFrame, models: pd.DataFrame, benchmarks: pd.DataFrame, lines: list[str], absent: dict[str, str]
) -> Page:
    """The two sheets with what was guessed of each row, the import's summary, and the reports that are not there."""
    per_benchmark = scores.groupby("benchmark")["model"].nunique()
    per_model = scores.groupby("model").agg(benchmarks=("benchmark", "nunique"), checkpoints=("checkpoint", "nunique"))
    shown_benchmarks = benchmarks.assign(models=benchmarks["benchmark"].map(per_benchmark))
    shown_models = models.join(per_model, on="model")
    unlisted = ~scores["benchmark"].isin(benchmarks["benchmark"])
    labels = {"benchmarks": "benchmarks with scores, listed or not"} if unlisted.any() else {}
    guessed = (
        "The column `guessed` names values that nobody gave. They come from names and from a table of lm-eval's tasks. "
        "To correct them, edit models.tsv and benchmarks.tsv beside this page and pass them back with --models and "
        "--benchmarks."
    )
    every = "An empty cell in `studies` means all studies."
    shown = {column for sheet in (models, benchmarks) for column in sheet.dropna(axis=1, how="all")}
    explanation = " ".join(text for column, text in {"guessed": guessed, "studies": every}.items() if column in shown)
    return Page(
        "data",
        "The data",
        findings=[],
        sections=[
            Section(
                "What the reports were told",
                explanation=explanation,
                tables=[_table("benchmarks", shown_benchmarks), _table("models", shown_models, labels)],
            ),
            Section("What came in", notes=[line.strip() for line in lines]),
            Section("Reports that were not written", notes=[f"{name}: {reason}" for name, reason in absent.items()]),
        ],
    )


def _table(name: str, sheet: pd.DataFrame, labels: Mapping[str, str] | None = None) -> Table:
    """The columns in which anything is known, under `labels` or their names in the sheet; numbers as numbers."""
    known = sheet.dropna(axis=1, how="all").convert_dtypes()
    names = {str(column): str(column) for column in known} | dict(labels or {})
    return Table(name, name.capitalize(), known, labels=names, folded=True)
