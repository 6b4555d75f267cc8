"""Which scores are fractions, and which are said to be but cannot."""

from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.tables.cell_text import is_unbounded
from lm_validity.tables.standard_errors import CHOICES, PERPLEXITY, SHARES_OF_ITEMS

FRACTIONS = (*SHARES_OF_ITEMS, "f1", "mcc")
_ONE = 1 + 1e-9  # a mean of ones may end above 1


def are_fractions(cells: pd.DataFrame, sheet: pd.DataFrame) -> np.ndarray:
    """Whether (n,) scores are fractions, whose differences are points: all of the benchmark's are from 0 to 1, it is no
    corpus, and neither its metric nor, where that is unknown, its own name is that of a loss, a perplexity or a rating.

    cells: `benchmark`, `protocol`, `metric`, `value`.
    """
    corpora = set(sheet.loc[sheet["output_type"] == PERPLEXITY, "benchmark"])
    names = cells["metric"].where(cells["metric"].notna(), cells["benchmark"])
    bounded = cells["value"].between(0, 1) & ~cells["benchmark"].isin(corpora) & ~names.map(is_unbounded).astype(bool)
    result: np.ndarray = bounded.groupby([cells["benchmark"], cells["protocol"]]).transform("all").to_numpy(dtype=bool)
    return result


def unit_notes(rows: pd.DataFrame, facts: pd.DataFrame, path: str | Path) -> list[str]:
    """A note on scores that cannot be fractions of the benchmark's items.

    `rows`: selected rows of SCORES with known values, `facts`: the sheet's rows of their benchmarks. Raises InputError
    for a benchmark of choices with fractions for some models and percentages for others.
    """
    if not (rows["value"] > _ONE).any():
        return []
    above_one = []
    rows_known = rows.loc[rows["value"].notna(), ["benchmark", "metric", "model", "protocol", "value"]]
    by_benchmark = rows_known.groupby("benchmark").indices
    for fact in facts.itertuples():
        rows_of_benchmark = rows_known.iloc[by_benchmark.get(fact.benchmark, [])]
        metrics = [
            name for name in (fact.metric, *rows_of_benchmark["metric"].dropna().head(1)) if isinstance(name, str)
        ]
        name = metrics[0].split(",")[0] if metrics else ""
        if rows_of_benchmark.empty or fact.output_type == PERPLEXITY or name not in FRACTIONS:
            continue
        high = rows_of_benchmark["value"] > _ONE
        if high.any() and not high.all() and name in CHOICES:
            first, second = rows_of_benchmark[high].iloc[0], rows_of_benchmark[~high].iloc[0]
            raise InputError(
                f"{path}: {fact.benchmark} has percentages and fractions under {name}: {first['value']:.4g} for "
                f"{first['model']} ({first['protocol']}), {second['value']:.4g} for {second['model']} "
                f"({second['protocol']}).",
                "write accuracies as fractions, 0 to 1, and their standard errors too.",
            )
        if high.any():
            above_one.append(
                f"{fact.benchmark} ({name}: {high.sum()} of {len(rows_of_benchmark)} scores, up to "
                f"{rows_of_benchmark['value'].max():.4g})"
            )
    sentence = "Scores above 1 under a metric that gives fractions. They may be percentages: {}."
    return [sentence.format("; ".join(above_one))] if above_one else []
