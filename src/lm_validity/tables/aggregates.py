"""Which columns of a table (models, benchmarks) are no benchmarks: averages, ranks and costs, by name or arithmetic."""

from collections.abc import Collection

import numpy as np
import pandas as pd

from lm_validity.tables.cell_text import names_average, names_cost, names_rank, parts

FEWEST_ROWS = 4  # models from which arithmetic tells an average of others
MOST_BENCHMARKS = 200  # for which every column is compared with the mean of the others


def decimals(values: np.ndarray) -> int:
    """To how many decimals values are rounded: 6 where no fewer fit."""
    known = values[np.isfinite(values)]
    return next((d for d in range(6) if np.allclose(known * 10**d, np.round(known * 10**d), atol=1e-6, rtol=0)), 6)


def is_mean_of(column: np.ndarray, others: np.ndarray) -> bool:
    """Whether a column (models,) is the mean of others (models, n) within their rounding; of at least two columns, for
    at least four models, with a spread that rounding does not explain."""
    known = np.isfinite(column) & np.isfinite(others).all(axis=1)
    if known.sum() < FEWEST_ROWS or others.shape[1] < 2:
        return False
    own, mean = column[known], others[known].mean(axis=1)
    tolerance = 0.51 * 10.0 ** -decimals(own) + 0.51 * 10.0 ** -decimals(others[known].ravel()) + 1e-9
    return bool(np.abs(own - mean).max() <= tolerance and np.ptp(own) > 6 * tolerance)


def is_weighted_mean_of(column: np.ndarray, others: np.ndarray) -> bool:
    """Whether a column (models,) is one mean of others (models, n) with weights above 0 that add up to 1, such as their
    items, within rounding; of at least two columns, and of four times as many models."""
    known = np.isfinite(column) & np.isfinite(others).all(axis=1)
    if others.shape[1] < 2 or known.sum() < max(4 * others.shape[1], 10):
        return False
    own, parts_of = column[known], others[known]
    weights = np.linalg.lstsq(parts_of, own, rcond=None)[0]
    tolerance = 0.51 * 10.0 ** -decimals(own) + 0.51 * 10.0 ** -decimals(parts_of.ravel()) + 1e-9
    close = np.abs(own - parts_of @ weights).max() <= tolerance
    return bool(close and (weights > 0).all() and abs(weights.sum() - 1) < 0.01 and np.ptp(own) > 6 * tolerance)


def is_rank_of(column: np.ndarray, others: np.ndarray) -> bool:
    """Whether a column (models,) of whole numbers from 1 is the order of another column or of the mean of all."""
    known = np.isfinite(column)
    own = column[known]
    if known.sum() < FEWEST_ROWS or set(own) != set(range(1, len(own) + 1)):
        return False
    references = [*others.T, np.nanmean(others, axis=1)] if others.size else []
    return any(
        np.array_equal(np.argsort(own), order)
        for reference in references
        if np.isfinite(reference[known]).all()
        for order in (np.argsort(-reference[known], kind="stable"), np.argsort(reference[known], kind="stable"))
    )


def find_aggregates(matrix: pd.DataFrame, counted: Collection[str] = ()) -> dict[str, tuple[str, str]]:
    """The columns of a table (models, benchmarks) that are no benchmarks, each with what it is and the source.

    By name where it says nothing else; with such a word among others, and without one, only if it is the mean of other
    columns: of all, of those whose names begin as its does, or of a block beside it. Those `counted`, whose items the
    files count, are told by name only.
    """
    found: dict[str, tuple[str, str]] = {}
    for name in map(str, matrix.columns):
        for holds, what in (
            (names_average(name), "an average"),
            (names_rank(name), "a rank"),
            (names_cost(name), "a cost"),
        ):
            if holds:
                found.setdefault(name, (what, "name"))
    rest = [name for name in matrix.columns if name not in found]
    tested = [name for name in rest if name not in counted]
    if len(rest) > MOST_BENCHMARKS:
        tested = [name for name in tested if names_average(str(name)) is None]
    for name in sorted(tested, key=lambda each: names_average(str(each)) is False):
        others = [each for each in rest if each != name and each not in found]
        block = _mean_of(matrix, str(name), others)
        if block is not None:
            found[str(name)] = (f"the mean of {len(block)} others", "arithmetic")
        elif is_rank_of(matrix[name].to_numpy(float), matrix[others].to_numpy(float)):
            found[str(name)] = ("a rank", "arithmetic")
    return found


def _mean_of(matrix: pd.DataFrame, name: str, others: list[str]) -> list[str] | None:
    """The columns of which one is the mean."""
    column = matrix[name].to_numpy(float)
    start = parts(name)[:1]
    alike = [each for each in others if parts(each)[:1] == start]
    names = [str(each) for each in matrix.columns]
    place = names.index(name)
    blocks = [others, alike]
    if names_average(name) is None:  # the columns to its left or right, until one is another average
        for step in (-1, 1):
            side = names[place + step :: step] if place + step >= 0 else []
            side = [each for each in side if each in others]
            blocks += [side[:length] for length in range(2, min(len(side), 60) + 1)]
    found = next((block for block in blocks if is_mean_of(column, matrix[block].to_numpy(float))), None)
    return alike if found is None and is_weighted_mean_of(column, matrix[alike].to_numpy(float)) else found
