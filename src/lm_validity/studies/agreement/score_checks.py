"""Whether scores, their standard errors and their directions can be what the benchmarks sheet says they are."""

from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.errors import InputError

# metrics by their name before the filter: fractions of items, whose standard error follows from the fraction
_CHOICES = ("acc", "acc_norm", "acc_bytes", "acc_norm_bytes", "acc_mutual_info")
_SHARES_OF_ITEMS = (*_CHOICES, "exact_match", "em")
FRACTIONS = (*_SHARES_OF_ITEMS, "f1", "mcc")
ERROR_RATES = (*FRACTIONS, "error", "error_rate", "err")  # where lower is better: shares of wrong answers
_GROSS = 3.0  # factor between standard errors that neither clusters of items nor averages over subjects explain


def unit_notes(rows: pd.DataFrame, facts: pd.DataFrame, path: str | Path) -> list[str]:
    """Notes on scores and standard errors that cannot be fractions of the benchmark's items.

    `rows`: selected rows of SCORES with known values, `facts`: the sheet's rows of their benchmarks. Raises InputError
    for a benchmark of choices with fractions for some models and percentages for others.
    """
    above_one, other_size, too_large = [], [], []
    for fact in facts.itertuples():
        here = rows[(rows["benchmark"] == fact.benchmark) & rows["value"].notna()]
        metrics = [name for name in (fact.metric, *here["metric"]) if isinstance(name, str)]
        name = metrics[0].split(",")[0] if metrics else ""
        if here.empty or fact.output_type == "loglikelihood_rolling" or name not in FRACTIONS:
            continue
        high = here["value"] > 1 + 1e-9  # a mean of ones may end above 1
        if high.any() and not high.all() and name in _CHOICES:
            raise _mixture(here, high, fact.benchmark, name, path)
        if high.any():
            above_one.append(
                f"{fact.benchmark} ({name}: {high.sum()} of {len(here)} scores, up to {here['value'].max():.4g})"
            )
        if name in _SHARES_OF_ITEMS:
            ratio, impossible = _error_ratio(here, high, fact.n_items)
            if not 1 / _GROSS <= ratio <= _GROSS and np.isfinite(ratio):
                other_size.append(f"{fact.benchmark} ({ratio:.3g} times)")
            elif np.isnan(ratio) and impossible:
                too_large.append(f"{fact.benchmark} ({impossible} of {len(here)}, up to {here['stderr'].max():.4g})")
    consequence = "Significance and the noise ceiling cannot be trusted there."
    kinds = {
        "Scores above 1 under a metric that gives fractions. They may be percentages: {}.": above_one,
        "Standard errors far from those of shares of the benchmark's items, sqrt(p (1 - p) / (n - 1)); their median "
        "ratio to these is: {}. Their unit, or the number of items, differs. " + consequence: other_size,
        "Standard errors too large for shares of items. Their unit differs from that of the scores: {}. "
        + consequence: too_large,
    }
    return [sentence.format("; ".join(found)) for sentence, found in kinds.items() if found]


def _mixture(here: pd.DataFrame, high: pd.Series, benchmark: str, metric: str, path: str | Path) -> InputError:
    first, second = here[high].iloc[0], here[~high].iloc[0]
    return InputError(
        f"{path}: {benchmark} has percentages and fractions under {metric}: {first['value']:.4g} for {first['model']} "
        f"({first['protocol']}), {second['value']:.4g} for {second['model']} ({second['protocol']}).",
        "write accuracies as fractions, 0 to 1, and their standard errors too.",
    )


def _error_ratio(here: pd.DataFrame, high: pd.Series, items_of_sheet: float) -> tuple[float, int]:
    """(median ratio of the standard errors to those of shares of the items, number of errors that no share has).

    A share p of n items has sqrt(p (1 - p) / (n - 1)), at most 0.5 (two items); both in the unit of the score, percent
    where it is `high`. The ratio is NaN where no number of items is known, of the row or of the sheet.
    """
    unit = np.where(high, 100.0, 1.0)
    share, errors = here["value"].to_numpy(float) / unit, here["stderr"].to_numpy(float)
    items = here["n_items"].astype("float64").fillna(items_of_sheet).to_numpy(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = unit * np.sqrt(share * (1 - share) / (items - 1))
        ratio = errors / expected
    ratio = ratio[np.isfinite(ratio) & (expected > 0)]
    return (float(np.median(ratio)) if len(ratio) else float("nan")), int((errors > 0.5 * unit).sum())


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
