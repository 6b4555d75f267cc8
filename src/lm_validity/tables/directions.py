"""Whether higher or lower is better on a benchmark: from the sheet, the scores, else its metric, else asked for or
assumed, and said."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.tables.cell_text import names_loss
from lm_validity.tables.standard_errors import PERPLEXITY
from lm_validity.tables.task_facts import metric_direction
from lm_validity.words import listing, with_names

ASSUMED = "Direction unknown, so higher counts as better"  # how that note begins


class Directions(NamedTuple):
    """facts: the sheet's rows of benchmarks with scores, with the direction that is known, else higher is better, and
    `direction_known`. notes: on directions that the sheet and the scores say otherwise, or that are assumed."""

    facts: pd.DataFrame
    notes: list[str]


def known_directions(sheet: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Whether higher is better by benchmark of the sheet, (n,) in its order; null where nothing says it.

    The sheet decides, else the scores, else the metric, of the sheet or of the scores, where tasks agree on it. A
    rolling log-likelihood metric (perplexity, bits per byte) is a loss. `rows`: scores, of one metric each benchmark.
    """
    in_table, of_scores = (_first_known(rows, column) for column in ("higher_is_better", "metric"))
    directions: list[bool | None] = []
    columns = (sheet[name] for name in ("benchmark", "metric", "higher_is_better", "output_type"))
    for name, metric, of_sheet, output_type in zip(*columns, strict=True):
        direction = in_table.get(name) if pd.isna(of_sheet) else of_sheet
        if direction is None:
            metric_used = of_scores.get(name) if pd.isna(metric) else metric
            direction = None if metric_used is None else metric_direction(str(metric_used))
        if direction is None and output_type == PERPLEXITY:
            direction = False
        directions.append(None if direction is None else bool(direction))
    return pd.Series(pd.array(directions, "boolean"), sheet.index)


def _first_known(rows: pd.DataFrame, column: str) -> dict[str, object]:
    """The first value of a column that is known, by benchmark."""
    is_known = rows[column].notna().to_numpy()
    first = rows["benchmark"].to_numpy(dtype=object)[is_known], rows[column].to_numpy(dtype=object)[is_known]
    return {benchmark: value for benchmark, value in zip(*(values[::-1] for values in first), strict=True)}


def settled_directions(rows: pd.DataFrame, sheet: pd.DataFrame, path: str | Path) -> Directions:
    """The direction of each benchmark with scores, and what is said of it.

    The sheet's direction wins over that of the scores. Raises InputError for benchmarks that are named like a loss and
    of which nothing says the direction (of others higher counts as better), and for one with both directions in the
    scores and none in the sheet.
    """
    directions, scored = known_directions(sheet, rows), set(rows["benchmark"])
    unknown = [name for name in sheet.loc[directions.isna(), "benchmark"] if name in scored]
    metrics = _first_known(rows, "metric")
    names = [name for name in sorted(unknown) if names_loss(str(metrics.get(name, name)))]
    if names:
        raise InputError(
            f"{path}: nothing says whether higher is better on {listing(names)}, named like a loss.",
            "fill in the column 'higher_is_better' of the benchmarks sheet: 0 where lower is better, else 1.",
        )
    notes = _conflicts(rows, sheet, path) + with_names({f"{ASSUMED}: {{}}.": unknown})
    is_scored = sheet["benchmark"].isin(scored)
    directions = directions[is_scored].reset_index(drop=True)
    facts = sheet[is_scored].reset_index(drop=True)
    facts = facts.assign(
        higher_is_better=directions.fillna(value=True).astype(bool), direction_known=directions.notna()
    )
    return Directions(facts, notes)


def _conflicts(rows: pd.DataFrame, sheet: pd.DataFrame, path: str | Path) -> list[str]:
    """Notes on benchmarks whose direction in the scores is not that of the sheet."""
    conflicts: dict[bool, list[str]] = {True: [], False: []}
    told_rows = rows.loc[rows["higher_is_better"].notna(), ["benchmark", "model", "higher_is_better"]]
    by_benchmark, all_higher = told_rows.groupby("benchmark").indices, told_rows["higher_is_better"].to_numpy(bool)
    for benchmark, direction in zip(sheet["benchmark"], sheet["higher_is_better"], strict=True):
        places = by_benchmark.get(benchmark, np.array([], dtype=int))
        higher = all_higher[places]
        if pd.isna(direction):
            if higher.any() and not higher.all():
                models = told_rows["model"].iloc[places]
                raise InputError(
                    f"{path}: {benchmark} has both directions in the scores: higher_is_better is true for "
                    f"{models[higher].iloc[0]}, false for {models[~higher].iloc[0]}.",
                    "fill in the column 'higher_is_better' of the benchmarks sheet.",
                )
        elif (higher != direction).any():
            conflicts[bool(direction)].append(f"{benchmark} ({(higher != direction).sum()} of {len(higher)} scores)")
    words = {True: "higher", False: "lower"}
    return [
        f"The benchmarks sheet says that {words[direction]} is better, the scores say {words[not direction]}: "
        f"{'; '.join(benchmarks)}. The sheet's direction is used. If it is wrong, the order of the models is reversed "
        "on that benchmark."
        for direction, benchmarks in conflicts.items()
        if benchmarks
    ]
