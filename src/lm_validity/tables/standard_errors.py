"""Standard errors that cannot be those of their scores: one rule for all studies, row by row.

An error that fails a check is not used: it becomes unknown (NaN), so no verdict rests on it. docs/reference/tables.md
lists the checks by their codes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.tables.metrics import PERPLEXITY, SHARES_OF_ITEMS, is_unbounded
from lm_validity.words import with_names

ZERO, OTHER_SIZE, TOO_LARGE = "zero", "other_size", "too_large"
NOT_ITEMS, BEYOND_SCATTER, AT_BOUND = "not_items", "beyond_scatter", "at_bound"
_GROSS = 3.0  # factor between standard errors that neither clusters of items nor averages over subjects explain
# the same, of errors that all mean one number of items, below that of the fewest items that scores can be shares of:
# clusters and averages of runs make errors larger, and a quarter of the items rarely fits all scores
_SMALL = 2.0
# Errors over the scatter between checkpoints. Checkpoints answer the same items, so the scatter is the smaller one: on
# 60 benchmarks of 3 public collections the ratio is 0.1 to 2.7, and 13.6 where the error is known to be wrong
_BEYOND_SCATTER = 6.0
_LEAST_SCORES = 5  # different ones of a benchmark, to tell of how many items they are shares
_UNLIKE = 1.05  # times as large an error at the one score as at another, or they are not from the scores
_FEW_ITEMS = 100
_ONE_NUMBER = 0.1  # errors that are rounded, or clustered a little, mean a number of items within this share of another
_TOLD = 0.1  # of an item: scores that rounding moves by no more say whether they are whole numbers of items
_MOST_ITEMS = 20_000  # of a benchmark
_LEAST_DIFFERENCES = 10  # of neighbouring checkpoints, over all models
_CURVE = ["model", "prompt", "prompt_variant", "num_fewshot", "seed"]
_WORDS = {
    ZERO: "Standard errors of 0 beside scores that are neither 0 nor 1 are not used: {}.",
    OTHER_SIZE: "Standard errors far from sqrt(p (1 - p) / (n - 1)) are not used: {}. Their unit, or n, differs.",
    TOO_LARGE: "Standard errors too large for shares of items, so of another unit, are not used: {}.",
    NOT_ITEMS: "Standard errors of a number of items of which the scores are no shares are not used: {}.",
    BEYOND_SCATTER: "Standard errors many times the scatter of the scores between checkpoints are not used: {}.",
    AT_BOUND: "Scores of 0 or 1 have an error of 0: {}. Agresti and Coull's replaces it where n is known.",
}


class ErrorCheck(NamedTuple):
    """`scores` of the `of` scores of a benchmark whose standard errors fail the check `code`. `ratio`: the median of
    these errors over what they should be, None where there is nothing to compare."""

    benchmark: str
    code: str
    scores: int
    of: int
    ratio: float | None = None


class CheckedErrors(NamedTuple):
    """Rows without the standard errors that cannot be right, and what was found, by benchmark and code."""

    rows: pd.DataFrame
    checks: list[ErrorCheck]


def checked_errors(rows: pd.DataFrame, sheet: pd.DataFrame) -> CheckedErrors:
    """The rows whose standard errors were checked.

    `rows`: the rows of SCORES that count, of one metric for each benchmark, at all checkpoints; `sheet`: the
    benchmarks' rows of the benchmarks sheet. Perplexities are not looked at. A share p
    of n items has the error sqrt(p (1 - p) / (n - 1)). At a share of exactly 0 or 1 that is 0, and
    sqrt(q (1 - q) / (n + 4)) with q = (p n + 2) / (n + 4) is taken instead (Agresti and Coull 1998, The American
    Statistician 52:119); where n is unknown, with that of the benchmark's other errors. Negative errors are left alone.
    """
    facts = sheet.set_index("benchmark").reindex(rows["benchmark"]).set_axis(rows.index)
    metrics = rows["metric"].where(rows["metric"].notna(), facts["metric"])
    unbounded = [name for name in {*metrics.dropna(), *rows["benchmark"]} if is_unbounded(name)]
    shares = [name for name in metrics.dropna().unique() if name.partition(",")[0] in SHARES_OF_ITEMS]
    tokens, iterations = rows["tokens_b"].astype("float64"), rows["iteration"].astype("float64")
    table = pd.DataFrame(
        {
            "value": rows["value"].astype("float64"),
            "error": rows["stderr"].astype("float64"),
            "items": rows["n_items"].astype("float64").fillna(facts["n_items"].astype("float64")),
            "is_share": metrics.isin(shares),
            "is_named": metrics.notna(),
            "is_bounded": ~(metrics.isin(unbounded) | rows["benchmark"].isin(unbounded)),
            "protocol": rows["protocol"],
            "progress": tokens.where(tokens.notna().groupby(rows["model"]).transform("all"), iterations),
            "curve": rows.groupby(["benchmark", "protocol", metrics, *_CURVE], dropna=False, sort=False).ngroup(),
        }
    ).reset_index(drop=True)
    looked_at = np.isfinite(table["value"]) & (table["error"] >= 0)
    looked_at &= (facts["output_type"] != PERPLEXITY).to_numpy()
    errors, all_checks = table["error"].to_numpy(copy=True), list[ErrorCheck]()
    for benchmark, part in table[looked_at].groupby(rows["benchmark"].to_numpy()[looked_at]):
        checks, errors[part.index] = _of_benchmark(part, str(benchmark))
        all_checks += checks
    return CheckedErrors(rows.assign(stderr=errors), all_checks)


def error_notes(checks: Sequence[ErrorCheck]) -> list[str]:
    """A note for each code, with the benchmarks and how many of their scores."""
    named: dict[str, list[str]] = {code: [] for code in _WORDS}
    for check in checks:
        times = "" if check.ratio is None else f", {check.ratio:.3g} times"
        named[check.code].append(f"{check.benchmark} ({check.scores} of {check.of}{times})")
    return with_names({_WORDS[code]: names for code, names in named.items()})


def _of_benchmark(table: pd.DataFrame, benchmark: str) -> tuple[list[ErrorCheck], np.ndarray]:
    """What is wrong with the standard errors of a benchmark's scores, and the errors (rows,) to use. `table`: columns
    of `checked_errors`."""
    values, errors, items = (table[name].to_numpy() for name in ("value", "error", "items"))
    unit = 100.0 if (values > 1 + 1e-9).any() else 1.0  # percentages; a mean of ones may end above 1
    share = np.where(np.abs(values / unit - 1) < 1e-9, 1.0, values / unit)
    items = np.where(items >= 2, items, np.nan)
    at_bound = (share == 0) | (share == 1)
    is_share = table["is_share"].to_numpy() | _whole_numbers(share, values, items)
    is_bounded = is_share | (table["is_bounded"].all() & ((share >= 0) & (share <= 1)).all())
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = unit * np.sqrt(share * (1 - share))
        ratio, of_fewest = (errors / (spread / np.sqrt(n - 1)) for n in (items, _fewest_items(share, values)))
    ratio = np.where(is_share & ~at_bound & np.isfinite(ratio), ratio, np.nan)
    compared = of_fewest[~at_bound & (of_fewest > 0)]
    is_one_number = len(compared) and np.quantile(np.abs(compared / np.median(compared) - 1), 0.9) <= _ONE_NUMBER
    # that they are too large, it does not say
    is_small = np.isnan(items) & ~at_bound & (of_fewest < 1 / (_SMALL if is_one_number else _GROSS))
    ratio = np.where(is_small, of_fewest, ratio)
    right = (ratio >= 1 / _GROSS) & (ratio <= _GROSS) & ~is_small
    is_open = is_bounded & np.isnan(ratio) & (errors > 0)
    failed = {
        ZERO: (errors == 0) & ~at_bound,
        OTHER_SIZE: np.isfinite(ratio) & ~right & (errors > 0),
        TOO_LARGE: is_open & (errors > 0.5 * unit),
    }
    if failed[TOO_LARGE].any():  # the others are in percent too, unless that would mean too many items
        failed[TOO_LARGE] |= is_open & (share * (1 - share) <= _MOST_ITEMS * (errors / (100 * unit)) ** 2)
    looked_at = is_share & ~at_bound & np.isnan(items) & ~failed[TOO_LARGE]
    failed[NOT_ITEMS] = _not_items(share, errors / unit, values, looked_at)
    is_other = ~np.logical_or.reduce([right, *failed.values()])
    scatter = {protocol: _over_scatter(part) for protocol, part in table[is_other].groupby("protocol")}
    over_scatter = table["protocol"].map(scatter).to_numpy(float)
    failed[BEYOND_SCATTER] = is_other & (over_scatter > _BEYOND_SCATTER)
    errors_used = np.where(np.logical_or.reduce([*failed.values()]), np.nan, errors)
    failed[AT_BOUND] = (is_share | is_bounded & ~table["is_named"].to_numpy()) & at_bound & (errors == 0)
    inside = is_share & ~at_bound & (errors_used > 0)
    if inside.any():  # what the other errors say of the number of items
        implied = share[inside] * (1 - share[inside]) / (errors_used[inside] / unit) ** 2 + 1
        items = np.where(np.isnan(items), np.median(implied), items)
    added = (share * items + 2) / (items + 4)
    at_bounds = unit * np.sqrt(np.clip(added * (1 - added), 0, None) / (items + 4))
    ratios = {OTHER_SIZE: ratio, BEYOND_SCATTER: over_scatter}
    checks = [
        ErrorCheck(benchmark, code, int(mask.sum()), len(values),
                   float(np.median(ratios[code][mask])) if code in ratios else None)
        for code, mask in failed.items() if mask.any()
    ]  # fmt: skip
    return checks, np.where(failed[AT_BOUND], at_bounds, errors_used)


def _rounding(share: np.ndarray, values: np.ndarray) -> float:
    """How far shares may be from what they were before rounding, from `values` as they are written; of values that are
    not rounded, what is left of floating point."""
    written, shares = np.unique(values[values != 0]), np.unique(share[values != 0])
    if not len(written):
        return 0.5
    digits = next((places for places in range(12) if np.abs(written - written.round(places)).max() < 1e-10), 12)
    return max(0.5 * 10.0**-digits * float(np.median(shares / written)), 1e-9)


def _whole_numbers(share: np.ndarray, values: np.ndarray, items: np.ndarray) -> np.ndarray:
    """(rows,) True where all scores of a benchmark are whole numbers of its known items, whatever their metric is
    called: then they are shares of them. Few scores, or such as are rounded too far, say nothing."""
    has_items, nothing = np.isfinite(items), np.zeros(len(share), dtype=bool)
    off = 1.02 * _rounding(share, values) * items[has_items]
    if len(np.unique(share[has_items])) < _LEAST_SCORES or off.max() > _TOLD:
        return nothing
    counts = share[has_items] * items[has_items]
    return has_items if (np.abs(counts - np.round(counts)) <= off).all() else nothing


def _fewest_items(share: np.ndarray, values: np.ndarray) -> float:
    """The smallest number of items of which all scores are whole numbers; NaN where they are few, or are of none.

    Looked at are numbers up to N, at which other scores that are rounded as far would be so by chance in one table of
    1,000: N (2 off N)^k of k scores. Graded items are told as more than there are, and so mean smaller errors than
    theirs.
    """
    shares, off = np.unique(share), 1.02 * _rounding(share, values)
    if len(shares) < _LEAST_SCORES or shares[0] < 0 or shares[-1] > 1:
        return float("nan")
    upper = np.exp((np.log(0.001) - len(shares) * np.log(2 * off)) / (len(shares) + 1))
    numbers = np.arange(2, min(_MOST_ITEMS, upper, _TOLD / off) + 1)
    for one_share in shares:
        numbers = numbers[np.abs(one_share * numbers - np.round(one_share * numbers)) <= off * numbers]
    return float(numbers[0]) if len(numbers) else float("nan")


def _not_items(share: np.ndarray, errors: np.ndarray, values: np.ndarray, looked_at: np.ndarray) -> np.ndarray:
    """(rows,) True for the `looked_at` where `errors` of the `share` are of one number of items that the scores deny.

    share (1 - share) / error² + 1 is the number of items of an error without clusters. Where it is the same for nearly
    all scores, these must be whole numbers of items out of about so many, or the errors are of something else: out of
    at most 9 times as many, since errors up to 3 times too large may have a cause. `values` as they are written say how
    far they are rounded. Few scores, or such as are rounded too far, deny nothing, and above 100 items a score may be a
    mean over parts of unequal length, which is no share of all.
    """
    rows_checked, nothing = looked_at & (errors > 0), np.zeros(len(share), dtype=bool)
    written = np.unique(values[rows_checked])
    if len(written) < _LEAST_SCORES:
        return nothing
    implied = share[rows_checked] * (1 - share[rows_checked]) / errors[rows_checked] ** 2 + 1
    number = float(np.median(implied))
    if (
        errors[rows_checked].max() < _UNLIKE * errors[rows_checked].min()
    ):  # nearly all the same, they mean no number of items
        return nothing
    if number > _FEW_ITEMS or np.quantile(np.abs(implied / number - 1), 0.9) > _ONE_NUMBER:
        return nothing
    shares, off = np.unique(share[rows_checked]), _rounding(share[rows_checked], values[rows_checked])
    counts = np.arange(1, int(_GROSS**2 * number) + 2)[:, None]
    fits = (np.abs(shares * counts - np.round(shares * counts)) <= 1.02 * counts * off).all(axis=1)
    return nothing if fits.any() else rows_checked


def _over_scatter(table: pd.DataFrame) -> float:
    """Root mean square of the standard errors over the scatter between neighbouring checkpoints; NaN for too few.

    The scatter is the root mean square of the second differences of all learning curves over the root of 6, which is
    the standard deviation of independent noise; what a curve bends comes on top. NaN too for curves without any
    scatter, which are smoothed or made up.
    """
    table = table.iloc[np.lexsort((table["progress"], table["curve"]))]
    values, curve = table["value"].to_numpy(), table["curve"].to_numpy()
    bend = (values[2:] - 2 * values[1:-1] + values[:-2])[curve[2:] == curve[:-2]]
    scatter = np.sqrt((bend**2).mean() / 6) if len(bend) >= _LEAST_DIFFERENCES else 0.0
    error = np.sqrt((table["error"] ** 2).mean())
    return float(error / scatter) if scatter > 1e-9 * error else float("nan")
