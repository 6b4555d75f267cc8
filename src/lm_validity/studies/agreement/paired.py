"""Paired significance from items: which models differ on a benchmark, given that they answered the same questions."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lm_validity.studies.agreement.score_matrix import SELECTED, ScoreMatrix
from lm_validity.studies.agreement.statistics import ranking
from lm_validity.tables.items import item_values, items_of_scores, open_items, shared_items
from lm_validity.words import UNDER, listing, with_names

_KEY = [name for name in SELECTED if name != "benchmark"]
_COLUMNS = [*_KEY, "run", "split", "doc_id", "subject", "correct", "metric_values"]
TESTED = {  # how the differences on benchmarks of one protocol are tested and what is left out, in sentences
    "paired": "differences on {} are tested item by item (McNemar's test).",
    "clustered": "differences on {} are tested item by item, with their subjects as clusters.",
    "unpaired": "the metric of {} is not the mean of its items, so it is tested by standard errors.",
    "left_out": "items do not give the score of {}, so these models are tested by standard errors there.",
    "disjoint": "models have no item in common on {}, so they are tested by standard errors.",
    "trained": "differences on {} are tested by standard errors and the noise of training, which items do not show.",
    "repeated": "some items appear more than once for one model and seed, and are averaged: {}.",
}


class PairedSigns(NamedTuple):
    """Signs of each protocol by paired tests where items are known, and notes on these."""

    signs: dict[str, ranking.PairSigns]
    notes: list[str]


def use_paired_tests(
    signs: dict[str, ranking.PairSigns], path: str | Path, matrix: ScoreMatrix, tasks: list[str]
) -> PairedSigns:
    """`signs` by protocol, with the paired test wherever the items give the benchmark's score, and notes on that.

    A benchmark whose noise of training is known keeps the test from standard errors and that noise: the paired test is
    about these very trainings. A metric that is not the mean of its items (Matthews correlation, F1) keeps it too, and
    so does a model whose items do not make up its score, or that shares none with the other model. One benchmark is
    read at a time: a table of items may be larger than memory. Items have the metric's own direction, as `matrix.value`
    has; signs say which model is better.
    """
    table = open_items(path)
    signs = dict(signs)
    tested_how: dict[str, dict[str, list[str]]] = {protocol: {how: [] for how in TESTED} for protocol in signs}
    for column, task in enumerate(tasks):
        items = _selected_items(table, matrix, task)
        index = matrix.benchmarks.index(task)
        for protocol, tested in tested_how.items():
            rows = items[items["protocol"] == protocol]
            if rows.empty:
                continue
            if task in matrix.training.get(protocol, {}):
                tested["trained"].append(task)
                continue
            if (rows["repeats"] > 1).any():
                tested["repeated"].append(f"{task} ({int((rows['repeats'] > 1).sum())})")
            correct, subjects = _item_matrix(rows, matrix)
            score = matrix.value[protocol][:, index]
            made_up = np.abs(ranking.finite_mean(correct, axis=1) - score) <= 1e-6
            has_other_scores = np.isfinite(correct).any(axis=1) & np.isfinite(score) & ~made_up
            if made_up.sum() <= has_other_scores.sum():  # of a metric that is something else a few may agree by chance
                tested["unpaired"].append(task)
                continue
            tested["left_out"] += [f"{matrix.labels[i]} on {task}" for i in np.flatnonzero(has_other_scores)]
            oriented = matrix.direction[index] * np.where(made_up[:, None], correct, np.nan)
            better = ranking.paired_signs(oriented, clusters=subjects)
            if not better.known.any():
                tested["disjoint"].append(task)
                continue
            apart = int((made_up[better.first] & made_up[better.second] & (better.known[:, 0] == 0)).sum())
            if apart:
                tested["disjoint"].append(f"{task} ({apart} pairs of models)")
            signs[protocol] = ranking.replace_column(signs[protocol], column, better)
            tested["paired" if ranking.cluster_codes(subjects) is None else "clustered"].append(task)
    notes = [
        f"{UNDER[protocol].capitalize()}, {sentence}"
        for protocol, tested in tested_how.items()
        for sentence in with_names({sentence: tested[how] for how, sentence in TESTED.items()})
    ]
    return PairedSigns(
        signs, notes or [f"No item of {path} belongs to a selected score: significance is from standard errors."]
    )


SHOWN = 3  # models whose answers tell whether two benchmarks share items
OVERLAP = (
    "Benchmarks that share items are one: of {} the one with most items counts, so {} left out of the agreement. The "
    "same items twice would agree with themselves."
)


def without_shared_items(matrix: ScoreMatrix, path: str | Path) -> ScoreMatrix:
    """The matrix with one benchmark, that of most items, of those that share items by the answers of a few models."""
    table, tasks = open_items(path), matrix.task_names()
    for protocol in matrix.protocols:
        scored = np.isfinite(matrix.value[protocol][:, ~matrix.is_corpus]).sum(axis=1)
        models = [matrix.models[index] for index in np.argsort(-scored, kind="stable")[:SHOWN]]
        chosen = pc.field("benchmark").isin(tasks) & pc.field("model").isin(models)
        columns = ["model", "benchmark", "protocol", "split", "doc_id", "gold", "doc_hash", "correct"]
        rows = table.to_table(columns=[name for name in columns if name in table.schema.names], filter=chosen)
        answers = rows.to_pandas()
        answers = answers[(answers["protocol"] == protocol) & (answers["split"].fillna("test") == "test")]
        for group in shared_items(answers.dropna(subset="correct")):
            sizes = group.documents.groupby(level=0).size()
            first = max(group.benchmarks, key=lambda name: (sizes[name], -tasks.index(name)))
            others = [name for name in group.benchmarks if name != first]
            are = "is" if len(others) == 1 else "are"
            matrix = matrix.without(others, OVERLAP.format(listing(group.benchmarks), f"{listing(others)} {are}"))
        if len(answers):
            break
    return matrix


def _selected_items(table: ds.Dataset, matrix: ScoreMatrix, task: str) -> pd.DataFrame:
    """Items behind the selected scores of one benchmark: `model, protocol, doc_id, subject, correct`, over seeds and
    runs. `repeats`: most rows that one document has under one seed and run.
    """
    columns = [name for name in _COLUMNS if name in table.schema.names]
    rows = table.to_table(columns=columns, filter=pc.field("benchmark") == task)
    selected = matrix.selected[matrix.selected["benchmark"] == task]
    metric = next(iter(selected["metric"].dropna()), None)
    items = rows.select([name for name in columns if name != "metric_values"]).to_pandas()
    items = items.assign(correct=item_values(rows, metric).to_pandas()).reindex(columns=_COLUMNS)
    items = items_of_scores(items, selected, _KEY)
    repeats = items.groupby(["model", "protocol", "doc_id", "seed", "run"], dropna=False)["correct"].transform("size")
    means = items.assign(repeats=repeats).groupby(["model", "protocol", "doc_id"], as_index=False)
    return means.agg({"correct": "mean", "repeats": "max", "subject": "first"})


class _ItemMatrix(NamedTuple):
    """Values (models, items), NaN where a model has no such item, and subjects (items,), empty if unknown."""

    values: np.ndarray
    subjects: np.ndarray


def _item_matrix(items: pd.DataFrame, matrix: ScoreMatrix) -> _ItemMatrix:
    """(models, items) of the metric's value, NaN where a model has no such item; (items,) subjects, "" if unknown."""
    table = items.pivot(index="model", columns="doc_id", values="correct")
    subjects = items.drop_duplicates("doc_id").set_index("doc_id")["subject"].reindex(table.columns)
    return _ItemMatrix(table.reindex(list(matrix.models)).to_numpy(dtype=float), subjects.to_numpy(dtype=str))
