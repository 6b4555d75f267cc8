"""Paired significance from items: which models differ on a benchmark, given that they answered the same
questions.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from lm_validity.reports.score_matrix import ScoreMatrix, listing
from lm_validity.statistics.paired import paired_signs, replace_column
from lm_validity.statistics.ranking import PairSigns
from lm_validity.tables.schema import ITEMS, read_table

_KEY = ["model", "benchmark", "protocol", "prompt", "seed"]
_COLUMNS = pa.schema([ITEMS.field(name) for name in (*_KEY, "checkpoint", "split", "doc_id", "correct")])


def read_selected_items(path: str | Path, matrix: ScoreMatrix) -> pd.DataFrame:
    """Items behind the selected scores: `model, benchmark, protocol, doc_id, correct`, averaged over
    seeds.
    """
    items = read_table(path, _COLUMNS)
    items = items[(items["split"].isna() | (items["split"] == "test")) & items["correct"].notna()]
    selected = matrix.selected[[*_KEY, "checkpoint"]].drop_duplicates()
    for frame in (items, selected):
        frame["seed"] = frame["seed"].astype("Float64").fillna(-1)
        frame["prompt"] = frame["prompt"].fillna("plain")
        frame["checkpoint"] = frame["checkpoint"].fillna("final")
    items = items.merge(selected, on=[*_KEY, "checkpoint"])
    return items.groupby(["model", "benchmark", "protocol", "doc_id"], as_index=False)["correct"].mean()


def use_paired_tests(
    signs: PairSigns, items: pd.DataFrame, matrix: ScoreMatrix, protocol: str, tasks: list[str]
) -> tuple[PairSigns, list[str], list[str]]:
    """`signs` with the paired test wherever the items give the benchmark's score; (signs, paired, not
    paired).

    A metric that is not the mean of its items (Matthews correlation, F1) keeps the test from standard
    errors: its items do not add up to the score.
    """
    paired, unpaired = [], []
    rows = items[items["protocol"] == protocol]
    for column, task in enumerate(tasks):
        table = rows[rows["benchmark"] == task].pivot(index="model", columns="doc_id", values="correct")
        if table.empty:
            continue
        correct = table.reindex(list(matrix.models)).to_numpy(dtype=float)
        score = matrix.value[protocol][:, matrix.benchmarks.index(task)]
        counts = np.isfinite(correct).sum(axis=1)
        mean = np.divide(np.nansum(correct, axis=1), counts, out=np.full(len(correct), np.nan), where=counts > 0)
        both = np.isfinite(mean) & np.isfinite(score)
        if not both.any() or np.abs(mean - score)[both].max() > 1e-6:
            unpaired.append(task)
            continue
        signs = replace_column(signs, column, paired_signs(correct))
        paired.append(task)
    return signs, paired, unpaired


def paired_notes(protocol: str, paired: list[str], unpaired: list[str]) -> list[str]:
    """What was tested how, in sentences."""
    notes = []
    if paired:
        notes.append(f"{protocol}: differences on {listing(paired)} are tested paired over items (McNemar's test).")
    if unpaired:
        notes.append(
            f"{protocol}: the metric of {listing(unpaired)} is not the mean of its items; tested from standard errors."
        )
    return notes
