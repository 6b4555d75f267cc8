"""Scores and answers of some models, as the statistics of this study take them."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lm_validity.statistics import RunNoise, run_noise
from lm_validity.tables.counted import Counted, Sources, count_scores
from lm_validity.tables.items import is_telling, items_of_scores, open_items
from lm_validity.tables.metrics import are_fractions
from lm_validity.tables.settings import NEARLY_ALL, Unlike
from lm_validity.words import count, with_names

CELL = ["model", "benchmark", "protocol"]
_KEYS = [*CELL, "checkpoint", "prompt", "prompt_variant", "num_fewshot", "seed"]
_ITEM_COLUMNS = [*_KEYS, "run", "split", "doc_id", "subject", "correct"]
SAME_SCORE = 1e-6  # a score this close to the mean of its items is that mean
Frames = Sequence[pd.DataFrame | None]  # of each model its answers to a benchmark, None where there are none


def model_scores(
    sources: Sources, models: Collection[str] = (), unlike: Unlike = "out", study: str | None = None
) -> Counted:
    """The last scores that count of `models` (all by default) and have a value, each model once.

    Also where only the answers to items show that two are one, such as a merged model that is its base. These are named
    in a note; so few items that it may be chance tell nothing. Raises InputError as `count_scores`.
    """
    counted = count_scores(sources, study=study, only=models, unlike=unlike).last()
    counted = counted.without_copies("benchmark", "protocol")
    counted = replace(counted, rows=counted.rows[counted.rows["value"].notna()])
    scores = counted.rows.groupby(CELL)["value"].mean().unstack(["benchmark", "protocol"]).round(12)
    alike = scores[scores.duplicated(keep=False)]
    if sources.items is None or alike.empty:
        return counted
    answers = model_answers(sources.items, counted.rows[counted.rows["model"].isin(alike.index)])
    table = answers.pivot_table(index="model", columns=["benchmark", "protocol", "doc_id"], values="correct")
    first, twins = dict[bytes, str](), dict[str, str]()
    for model, row in zip(table.index, table.to_numpy(dtype=float), strict=True):
        if is_telling(row[np.isfinite(row)]):
            original = first.setdefault(np.nan_to_num(row, nan=np.inf).tobytes(), model)
            twins |= {model: original} if original != model else {}
    names = [f"{model} (as {original})" for model, original in twins.items()]
    lines = with_names({"Models with the same answers everywhere count once: {}.": names})
    return replace(counted, rows=counted.rows[~counted.rows["model"].isin(twins)], notes=(*counted.notes, *lines))


def model_answers(path: str | Path, scores: pd.DataFrame, further_columns: Sequence[str] = ()) -> pd.DataFrame:
    """The rows of a table of items behind `scores` (rows of `model_scores`), with `further_columns` columns.

    Raises InputError for a file that is no table of items.
    """
    table = open_items(path)
    condition = pc.field("model").isin(scores["model"].unique().tolist())
    condition &= pc.field("benchmark").isin(scores["benchmark"].unique().tolist())
    if "checkpoint" in table.schema.names and pa.types.is_string(table.schema.field("checkpoint").type):
        points = pc.field("checkpoint")
        condition &= points.isin([*scores["checkpoint"].dropna().unique(), "final"]) | points.is_null()
    columns = [*_ITEM_COLUMNS, *further_columns]
    columns_known = [name for name in columns if name in table.schema.names]
    items = table.to_table(columns=columns_known, filter=condition).to_pandas().reindex(columns=columns)
    return items_of_scores(items, scores, _KEYS)


def mean_items(answers: pd.DataFrame) -> pd.DataFrame:
    """Of rows of `model_answers` the items: `model, benchmark, protocol, doc_id, subject, correct, runs, within`.

    Averaged over seeds and runs. within: the variance between an item's sampled runs, NaN where it has one, and over
    seeds their mean; runs: how many answers it has.
    """
    keys = [*CELL, "doc_id", "subject"]
    means = answers.groupby(keys)["correct"].agg(correct="mean", runs="size")
    if answers["run"].isna().all():
        return means.assign(within=np.nan).reset_index()
    variances = answers.groupby([*keys, "seed"])["correct"].var().groupby(level=keys).mean()
    return means.assign(within=variances).reset_index()


def noise_of_runs(answers: pd.DataFrame, documents: Collection[str], sign: float = 1.0) -> RunNoise | None:
    """The noise of the sampled runs of one model in one cell (rows of `model_answers`) on `documents`; None where it
    was run once."""
    if answers["run"].isna().any():
        return None
    table = answers.pivot_table(index=["seed", "run"], columns="doc_id", values="correct").reindex(columns=[*documents])
    return run_noise(sign * table.to_numpy(dtype=float), table.index.tolist())


def cell_scores(counted: Counted) -> pd.DataFrame:
    """The score of each model on each benchmark under each protocol, a row each; seeds averaged.

    Columns: `value`, `stderr`, `metric` (None where unknown), `better` (1, -1), `in_points` (the benchmark's scores are
    fractions). Of the squared error, `part` is that of the sampled `runs`, and `once` what it would be with one run;
    NaN where unknown.
    """
    rows = counted.rows
    squares = {
        name: rows[error].astype(float) ** 2 for name, error in (("variance", "stderr"), ("part", "sampling_error"))
    }
    cells = rows.assign(**squares, once=squares["part"] * rows["runs"].astype(float)).groupby(CELL)
    cells = cells.agg(
        value=("value", "mean"),
        runs=("runs", "min"),
        variance=("variance", "mean"),
        part=("part", "mean"),
        once=("once", "mean"),
        metric=("metric", "first"),
    )
    cells["stderr"] = np.sqrt(cells.pop("variance"))  # seeds share their items: averaging does not shrink this error
    facts = counted.benchmarks.set_index("benchmark").loc[cells.index.get_level_values("benchmark")]
    metric = cells["metric"].astype(object).where(cells["metric"].notna().to_numpy(), facts["metric"].to_numpy())
    metric = metric.where(metric.notna(), None)
    fractions = are_fractions(cells.assign(metric=metric).reset_index(), counted.benchmarks)
    return cells.assign(metric=metric, better=np.where(facts["higher_is_better"], 1.0, -1.0), in_points=fractions)


class AnswersMatrix(NamedTuple):
    """(M, I) the answers of M models to all documents, NaN where unknown; (I,) subjects, None where any is unknown, and
    the documents."""

    correct: np.ndarray
    subjects: np.ndarray | None
    documents: np.ndarray


def unlike_items(answers: Frames) -> str | None:
    """`100 of up to 200 items in common` where models did not answer the same documents; None where they did, all but
    a few of them."""
    documents = [set(frame["doc_id"]) for frame in answers if frame is not None and len(frame)]
    common, largest = len(set.intersection(*documents)) if documents else 0, max(map(len, documents), default=0)
    return f"{common} of up to {count(largest, 'item')} in common" if common < NEARLY_ALL * largest else None


def answers_matrix(answers: Frames, scores: np.ndarray) -> AnswersMatrix:
    """The answers behind the scores.

    The row of a model whose score (M,) is no mean of its items, such as F1, is NaN: a test on items would not be a test
    of the score.
    """
    frames = [
        frame.assign(place=index)
        for index, (frame, score) in enumerate(zip(answers, scores, strict=True))
        if frame is not None and abs(frame["correct"].mean() - score) <= SAME_SCORE
    ]
    if not frames:
        return AnswersMatrix(np.full((len(answers), 0), np.nan), None, np.array([], dtype=object))
    rows = pd.concat(frames, ignore_index=True)
    document, names = pd.factorize(rows["doc_id"])
    correct = np.full((len(answers), len(names)), np.nan)
    correct[rows["place"], document] = rows["correct"]
    subjects = np.empty(len(names), dtype=object)
    subjects[document] = rows["subject"]
    return AnswersMatrix(correct, subjects.astype(str) if (subjects != "").all() else None, np.asarray(names))
