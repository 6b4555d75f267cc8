"""The items report: what the items of each benchmark are worth, under direct evaluation and train before test."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.studies.items.read import model_items, model_scores
from lm_validity.studies.items.statistics.item_response import ItemParameters, fit_2pl
from lm_validity.studies.items.statistics.resolution import resolution
from lm_validity.summaries import Missing, page_only
from lm_validity.tables.documents import read_documents
from lm_validity.tables.reruns import reruns_of
from lm_validity.tables.schema import trained_here
from lm_validity.tables.sheets import as_in_scores, read_models

FEWEST = 3  # models and items of a fit
LISTED = 50  # items with negative discrimination, of a benchmark and protocol
TOO_FEW = "The 2PL model needs at least 3 models and 3 items."
NOT_GRADED = "The items are not scored between 0 (wrong) and 1 (right)."


@dataclass(frozen=True)
class Item:
    """One item: `discrimination` with its standard error; `certain`: below zero after correction for their number."""

    benchmark: str
    protocol: str
    doc_id: str
    share_right: float
    discrimination: float
    discrimination_se: float
    certain: bool
    text: str | None


@dataclass(frozen=True)
class ItemsOfBenchmark:
    """One benchmark under one protocol. Abilities are in standard deviations between these models.

    reliability: share of the variance of estimated abilities that is no error. information: test information at the
    models' abilities, median. negative: items whose estimated discrimination is below zero; negative_certain: so after
    correction for their number. all_equal: items that all models get right, or all wrong. neighbours, resolved,
    share_resolved, minimal_detectable_difference: see `statistics.resolution`.
    """

    benchmark: str
    protocol: str
    models: int
    items: int
    all_equal: int
    neighbours: int
    resolved: int
    share_resolved: float | Missing
    minimal_detectable_difference: float | Missing
    discrimination_median: float | Missing
    negative: int | Missing
    negative_certain: int | Missing
    information: float | Missing
    reliability: float | Missing
    fit: ItemParameters | Missing = page_only()


@dataclass(frozen=True)
class ItemsSummary:
    """All benchmarks, and their items with negative discrimination, the surest first."""

    benchmarks: tuple[ItemsOfBenchmark, ...]
    negative_items: tuple[Item, ...]
    notes: tuple[str, ...]
    trained_here: bool = page_only(default=False)  # a run of the workflow made the fine-tunes


def analyze_items(
    scores: str | Path,
    items: str | Path,
    documents: Sequence[str | Path] = (),
    benchmarks: str | Path | None = None,
    models: str | Path | None = None,
) -> ItemsSummary:
    """Analyse the items behind the selected scores, one benchmark at a time: a table may be larger than memory.

    `documents`: tables with the texts of the items. `models`: a sheet, whose reruns take no part. Raises InputError
    where no item belongs to a selected score.
    """
    rows, notes = model_scores(scores, None, benchmarks)
    if models is not None:
        rows = rows[~rows["model"].isin(reruns_of(as_in_scores(read_models(models), set(rows["model"]))))]
    found, negative = [], []
    for benchmark, of_benchmark in rows.groupby("benchmark"):
        answers = model_items(items, of_benchmark)
        texts = _texts(documents, str(benchmark)) if len(answers) else {}
        for protocol, here in answers.groupby("protocol"):
            row, worst = _benchmark(str(benchmark), str(protocol), here, texts)
            found.append(row)
            negative += worst
    if not found:
        raise InputError(
            f"{items}: no item belongs to a selected score of {scores}.", "are both tables of the same run or import?"
        )
    return ItemsSummary(tuple(found), tuple(negative), notes, trained_here(rows))


def _texts(documents: Sequence[str | Path], benchmark: str) -> dict[str, str]:
    """Context by doc_id, from the first table that has the benchmark."""
    for path in documents:
        try:
            table = read_documents(path, benchmark)
        except InputError as error:
            if "no documents of benchmark" in error.problem:
                continue
            raise
        return dict(zip(table["doc_id"], table["context"], strict=True))
    return {}


def _benchmark(
    benchmark: str, protocol: str, answers: pd.DataFrame, texts: dict[str, str]
) -> tuple[ItemsOfBenchmark, list[Item]]:
    table = answers.pivot(index="model", columns="doc_id", values="correct")
    correct = table.to_numpy(dtype=float)
    subjects = answers.drop_duplicates("doc_id").set_index("doc_id")["subject"].reindex(table.columns)
    labels = subjects.to_numpy(dtype=str) if (subjects != "").all() else None
    found, fit = resolution(correct, labels), _fit(correct)
    row = ItemsOfBenchmark(
        benchmark=benchmark,
        protocol=protocol,
        models=len(table),
        items=table.shape[1],
        all_equal=int((np.nanmax(correct, axis=0) == np.nanmin(correct, axis=0)).sum()),
        neighbours=found.neighbours,
        resolved=found.resolved,
        share_resolved=found.share,
        minimal_detectable_difference=found.minimal_detectable_difference,
        discrimination_median=fit if isinstance(fit, Missing) else float(np.median(fit.discrimination)),
        negative=fit if isinstance(fit, Missing) else int((fit.discrimination < 0).sum()),
        negative_certain=fit if isinstance(fit, Missing) else int(fit.negative().sum()),
        information=fit if isinstance(fit, Missing) else float(np.median(fit.information(fit.abilities))),
        reliability=fit if isinstance(fit, Missing) else float(1 - np.mean(fit.ability_sds**2)),
        fit=fit,
    )
    return row, [] if isinstance(fit, Missing) else list(_negative(row, fit, table, texts))


def _fit(correct: np.ndarray) -> ItemParameters | Missing:
    values = correct[np.isfinite(correct)]
    if values.size and (values.min() < 0 or values.max() > 1):
        return Missing(NOT_GRADED)
    return fit_2pl(correct) if min(correct.shape) >= FEWEST else Missing(TOO_FEW)


def _negative(row: ItemsOfBenchmark, fit: ItemParameters, table: pd.DataFrame, texts: dict[str, str]) -> Iterator[Item]:
    """Items with a negative discrimination, the surest first."""
    certain, shares = fit.negative(), table.mean().to_numpy()
    order = np.argsort(fit.discrimination_z, kind="stable")
    for index in order[fit.discrimination[order] < 0][:LISTED]:
        name = str(table.columns[index])
        yield Item(
            row.benchmark,
            row.protocol,
            name,
            float(shares[index]),
            float(fit.discrimination[index]),
            float(fit.discrimination_se[index]),
            bool(certain[index]),
            texts.get(name),
        )
