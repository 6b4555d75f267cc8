"""Whether scores and their directions can be what the benchmarks sheet says they are."""

from pathlib import Path

import pandas as pd

from lm_validity.errors import InputError
from lm_validity.tables.standard_errors import CHOICES, SHARES_OF_ITEMS

FRACTIONS = (*SHARES_OF_ITEMS, "f1", "mcc")
ERROR_RATES = (*FRACTIONS, "error", "error_rate", "err")  # where lower is better: shares of wrong answers


def unit_notes(rows: pd.DataFrame, facts: pd.DataFrame, path: str | Path) -> list[str]:
    """A note on scores that cannot be fractions of the benchmark's items.

    `rows`: selected rows of SCORES with known values, `facts`: the sheet's rows of their benchmarks. Raises InputError
    for a benchmark of choices with fractions for some models and percentages for others.
    """
    above_one = []
    for fact in facts.itertuples():
        here = rows[(rows["benchmark"] == fact.benchmark) & rows["value"].notna()]
        metrics = [name for name in (fact.metric, *here["metric"]) if isinstance(name, str)]
        name = metrics[0].split(",")[0] if metrics else ""
        if here.empty or fact.output_type == "loglikelihood_rolling" or name not in FRACTIONS:
            continue
        high = here["value"] > 1 + 1e-9  # a mean of ones may end above 1
        if high.any() and not high.all() and name in CHOICES:
            raise _mixture(here, high, fact.benchmark, name, path)
        if high.any():
            above_one.append(
                f"{fact.benchmark} ({name}: {high.sum()} of {len(here)} scores, up to {here['value'].max():.4g})"
            )
    sentence = "Scores above 1 under a metric that gives fractions. They may be percentages: {}."
    return [sentence.format("; ".join(above_one))] if above_one else []


def _mixture(here: pd.DataFrame, high: pd.Series, benchmark: str, metric: str, path: str | Path) -> InputError:
    first, second = here[high].iloc[0], here[~high].iloc[0]
    return InputError(
        f"{path}: {benchmark} has percentages and fractions under {metric}: {first['value']:.4g} for {first['model']} "
        f"({first['protocol']}), {second['value']:.4g} for {second['model']} ({second['protocol']}).",
        "write accuracies as fractions, 0 to 1, and their standard errors too.",
    )


def direction_notes(rows: pd.DataFrame, sheet: pd.DataFrame, path: str | Path) -> list[str]:
    """Notes on benchmarks whose direction in the scores is not that of the sheet, which wins.

    Raises InputError for a benchmark with both directions in the scores and none in the sheet.
    """
    conflicts: dict[bool, list[str]] = {True: [], False: []}
    for benchmark, ours in zip(sheet["benchmark"], sheet["higher_is_better"], strict=True):
        here = rows[(rows["benchmark"] == benchmark) & rows["higher_is_better"].notna()]
        found = here["higher_is_better"].astype(bool)
        if pd.isna(ours):
            if found.nunique() > 1:
                raise InputError(
                    f"{path}: {benchmark} has both directions in the scores: higher_is_better is true for "
                    f"{here.loc[found, 'model'].iloc[0]}, false for {here.loc[~found, 'model'].iloc[0]}.",
                    "fill in the column 'higher_is_better' of the benchmarks sheet.",
                )
        elif (found != ours).any():
            conflicts[bool(ours)].append(f"{benchmark} ({(found != ours).sum()} of {len(found)} scores)")
    words = {True: "higher", False: "lower"}
    return [
        f"The benchmarks sheet says that {words[ours]} is better, the scores say {words[not ours]}: "
        f"{'; '.join(found)}. The sheet's direction is used. If it is wrong, the order of the models is reversed on "
        "that benchmark."
        for ours, found in conflicts.items()
        if found
    ]
