"""Which columns of a table (models, benchmarks) are no benchmarks: averages, ranks and costs, by name or arithmetic."""

from collections.abc import Collection

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from lm_validity.tables.cell_text import names_average, names_cost, names_rank, parts
from lm_validity.tables.columns import names_no_benchmark

FEWEST_ROWS = 4  # models from which arithmetic tells an average of others
FEWEST_PLACES = 6  # models from which whole numbers from 1, each once, are perhaps places
MOST_BENCHMARKS = 200  # for which every column is compared with the mean of the others
MOST_PARTS = 60  # of which some may be those that a column is the mean of
BY_CHANCE = 1e-6  # the most sets of columns whose mean may be a column by rounding alone


def decimals(values: np.ndarray) -> int:
    """To how many decimals values are rounded: 6 where no fewer fit."""
    finite = values[np.isfinite(values)]
    scaled = (finite * 10**places for places in range(6))
    fits = (np.abs(numbers - np.round(numbers)).max(initial=0) <= 1e-6 for numbers in scaled)
    return next((places for places, fit in enumerate(fits) if fit), 6)


def is_mean_of(column: np.ndarray, other_columns: np.ndarray) -> bool:
    """Whether a column (models,) is the mean of others (models, n) within their rounding; of at least two columns, for
    at least four models, with a spread that rounding does not explain."""
    is_known = np.isfinite(column) & np.isfinite(other_columns).all(axis=1)
    if is_known.sum() < FEWEST_ROWS or other_columns.shape[1] < 2:
        return False
    column_known, mean = column[is_known], other_columns[is_known].mean(axis=1)
    tolerance = (
        0.51 * 10.0 ** -decimals(column_known) + 0.51 * 10.0 ** -decimals(other_columns[is_known].ravel()) + 1e-9
    )
    return bool(np.abs(column_known - mean).max() <= tolerance and np.ptp(column_known) > 6 * tolerance)


def is_weighted_mean_of(column: np.ndarray, other_columns: np.ndarray) -> bool:
    """Whether a column (models,) is one mean of others (models, n) with weights above 0 that add up to 1, such as their
    items, within rounding; of at least two columns, and of four times as many models."""
    is_known = np.isfinite(column) & np.isfinite(other_columns).all(axis=1)
    if other_columns.shape[1] < 2 or is_known.sum() < max(4 * other_columns.shape[1], 10):
        return False
    column_known, parts_of = column[is_known], other_columns[is_known]
    weights = np.linalg.lstsq(parts_of, column_known, rcond=None)[0]
    tolerance = 0.51 * 10.0 ** -decimals(column_known) + 0.51 * 10.0 ** -decimals(parts_of.ravel()) + 1e-9
    close = np.abs(column_known - parts_of @ weights).max() <= tolerance
    return bool(
        close and (weights > 0).all() and abs(weights.sum() - 1) < 0.01 and np.ptp(column_known) > 6 * tolerance
    )


def is_mean_of_some(column: np.ndarray, other_columns: np.ndarray) -> list[int]:
    """The places of the columns, among others (models, n), whose mean a column (models,) is within rounding; none where
    there are none, or where so many sets of columns have a mean so near by chance.

    The weights of least squares, none below 0, are those of the mean or near them: columns of the largest are tried.
    """
    is_known = np.isfinite(column)
    column_known, known_columns = column[is_known], other_columns[is_known]
    complete = np.flatnonzero(np.isfinite(known_columns).all(axis=0)) if len(column_known) else np.array([], int)
    if len(column_known) < FEWEST_ROWS or not 2 <= len(complete) <= MOST_PARTS or np.ptp(column_known) == 0:
        return []
    parts_of = known_columns[:, complete]
    tolerance = 0.51 * 10.0 ** -decimals(column_known) + 0.51 * 10.0 ** -decimals(parts_of.ravel()) + 1e-9
    apart = np.median((parts_of - parts_of.mean(axis=1, keepdims=True)).std(axis=0))  # little, where columns are alike
    spread = min(column_known.std(), apart)
    near = min(1.0, 2 * tolerance / float(max(spread, tolerance)))
    if len(complete) * np.log(2) + (len(column_known) - 1) * np.log(near) > np.log(BY_CHANCE):
        return []
    weights = nnls(parts_of, column_known)[0]
    order = [index for index in np.argsort(-weights) if weights[index] > 0.01]
    sizes = (size for size in range(2, len(order) + 1) if is_mean_of(column_known, parts_of[:, order[:size]]))
    return [int(complete[index]) for index in order[: next(sizes, 0)]]


def are_places(column: np.ndarray, fewest: int = FEWEST_ROWS) -> bool:
    """Whether a column (models,) holds each whole number from 1 once, perhaps as hundredths, for `fewest` models."""
    column_known = column[np.isfinite(column)]
    places = {*range(1, len(column_known) + 1)}
    return len(places) >= fewest and any(set(np.round(column_known * scale, 9)) == places for scale in (1, 100))


def is_rank_of(column: np.ndarray, other_columns: np.ndarray) -> bool:
    """Whether a column (models,) of places is the order of another column or of the mean of all."""
    if not are_places(column):
        return False
    is_known = np.isfinite(column)
    column_known = column[is_known]
    references = [*other_columns.T, np.nanmean(other_columns, axis=1)] if other_columns.size else []
    return any(
        np.array_equal(np.argsort(column_known), order)
        for reference in references
        if np.isfinite(reference[is_known]).all()
        for order in (np.argsort(-reference[is_known], kind="stable"), np.argsort(reference[is_known], kind="stable"))
    )


def is_win_rate_of(name: str, column: np.ndarray, other_columns: np.ndarray) -> bool:
    """Whether a column (models,) that is called a win rate follows within rounding from the mean of the models' places
    on others (models, n), as a mean over pairs of models does; of at least five models."""
    is_known = np.isfinite(column) & np.isfinite(other_columns).all(axis=1)
    named = bool({"win", "wins", "winrate", "winrates"} & set(parts(name)))
    if not named or other_columns.shape[1] < 2 or is_known.sum() <= FEWEST_ROWS:
        return False
    column_known = column[is_known]
    places = pd.DataFrame(other_columns[is_known]).rank().mean(axis=1).to_numpy(float)
    if np.ptp(places) == 0:
        return False
    tolerance = 0.51 * 10.0 ** -decimals(column_known) + 1e-9
    fitted = np.polyval(np.polyfit(places, column_known, 1), places)
    return bool(np.abs(column_known - fitted).max() <= tolerance and np.ptp(column_known) > 6 * tolerance)


def _by_name(matrix: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """The columns that are no benchmarks by their names."""
    aggregates: dict[str, tuple[str, str]] = {}
    names = [*map(str, matrix.columns)]
    only_scores = all(map(names_no_benchmark, names))
    for name in names:
        for holds, kind in (
            (names_average(name) and not only_scores, "an average"),
            (_is_bare_score(name, names), "a score of no benchmark by its name"),
            (names_rank(name), "a rank"),
            (names_cost(name), "a cost"),
        ):
            if holds:
                aggregates.setdefault(name, (kind, "name"))
    return aggregates


def _is_bare_score(name: str, names: list[str]) -> bool:
    """Whether a name says only that it is a score, beside three or more that say of what."""
    further_names = [other_name for other_name in names if other_name != name]
    is_bare = parts(name) == ["score"] and len(further_names) > 2
    return is_bare and not any(
        "score" in parts(other_name) or names_no_benchmark(other_name) for other_name in further_names
    )


def find_aggregates(matrix: pd.DataFrame, counted: Collection[str] = ()) -> dict[str, tuple[str, str]]:
    """The columns of a table (models, benchmarks) that are no benchmarks, each with what it is and the source.

    By name where it says nothing else; with such a word among others, and without one, only if it is the mean of other
    columns: of all, of those whose names begin as its does, of a block beside it, or of some. Those `counted`, whose
    items the files count, are told by name only. Where all columns are of places, all are ranks.
    """
    aggregates = _by_name(matrix)
    values, places = matrix.to_numpy(float), {str(name): index for index, name in enumerate(matrix.columns)}
    further_names = [name for name in places if name not in aggregates]
    tested = [name for name in further_names if name not in counted]
    if len(further_names) > MOST_BENCHMARKS:
        tested = [name for name in tested if names_average(name) is None]
    if len(further_names) > 1 and all(are_places(values[:, places[name]], FEWEST_PLACES) for name in further_names):
        return aggregates | {name: ("a rank", "arithmetic") for name in further_names}
    for name in tested:
        other_names = [other_name for other_name in further_names if other_name not in (name, *aggregates)]
        if is_rank_of(values[:, places[name]], values[:, [places[other_name] for other_name in other_names]]):
            aggregates[name] = ("a rank", "arithmetic")
    tested = [name for name in tested if name not in aggregates]
    for name in sorted(tested, key=lambda name_tested: names_average(name_tested) is False):
        other_names = [
            name_tested for name_tested in further_names if name_tested != name and name_tested not in aggregates
        ]
        other_places = [places[other_name] for other_name in other_names]
        block = _mean_of(values, [*places], places[name], other_places)
        if block is not None:
            aggregates[name] = (f"the mean of {len(block)} others", "arithmetic")
        elif is_win_rate_of(name, values[:, places[name]], values[:, other_places]):
            aggregates[name] = ("a mean of places on the others", "arithmetic")
    means = [name for name, (kind, _) in aggregates.items() if kind.startswith("the mean of")]
    for name in (name for name in tested if means and name not in aggregates):
        if parts_of := is_mean_of_some(values[:, places[name]], values[:, [places[mean] for mean in means]]):
            aggregates[name] = (f"the mean of {len(parts_of)} others", "arithmetic")
    return aggregates


def _mean_of(values: np.ndarray, names: list[str], column_place: int, other_places: list[int]) -> list[int] | None:
    """The places of the columns, among other ones of a table (models, benchmarks), of which one column is the mean."""
    column, name = values[:, column_place], names[column_place]
    start = parts(name)[:1]
    alike = [index for index in other_places if parts(names[index])[:1] == start]
    blocks = [other_places, alike]
    if names_average(name) is None:  # the columns to its left or right, until one is another average
        for side in (
            [index for index in reversed(other_places) if index < column_place],
            [index for index in other_places if index > column_place],
        ):
            blocks += [side[:length] for length in range(2, min(len(side), 60) + 1)]
    block_found = next((block for block in blocks if is_mean_of(column, values[:, block])), None)
    if block_found is None and is_weighted_mean_of(column, values[:, alike]):
        return alike
    some = [] if block_found else is_mean_of_some(column, values[:, other_places])
    return [other_places[index] for index in some] or block_found
