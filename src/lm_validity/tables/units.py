"""The unit of a value: a share, a percentage, or points of a measure without bounds.

Decided per benchmark and metric over all files, by what the reader and the file say and by the values.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.tables.aggregates import decimals
from lm_validity.tables.cell_text import is_unbounded, lower_is_better, may_be_negative, names_perplexity
from lm_validity.tables.decisions import CONTRADICTED, CONVERTED, LEFT_OUT, READ, UNSURE, Reading, in_reading
from lm_validity.tables.standard_errors import SHARES_OF_ITEMS
from lm_validity.tables.task_facts import metric_direction
from lm_validity.words import count

SHARE, PERCENT, POINTS = UNITS = ("share", "percent", "points")
MOST_OF_RATINGS = 10  # on the scales of judges
_UNIT_ROWS = (*UNITS, LEFT_OUT)
_SCALE = {SHARE: 1.0, PERCENT: 0.01, POINTS: 1.0}
_ONE = 1 + 1e-9
_CLEAR = 10.0  # percent: a value of at most 1 among ones above this is in another unit
_SLIGHTLY = 0.05  # below 0, of the largest value: chance, where a metric is centred
_FINE = 2  # decimals: small values of more are rather shares
_FEW = 0.1  # of the values, at least one: so many may be slips, such as 640 among percentages
_FEWEST_VALUES = 4  # from which single ones are told


class Unit(NamedTuple):
    """`name`: one of UNITS, None where unsure. `odd` (n,): values that are in another unit than the others; `beyond`
    (n,): those that are in none."""

    name: str | None
    odd: np.ndarray
    beyond: np.ndarray | None = None


def unit_of(values: np.ndarray, *, unbounded: bool = False) -> Unit:
    """The unit of a benchmark's values (n,) of which no file says it.

    Share: none above 1. Percent: some above 1, none above 100. Odd among percentages above 10 are values of at most 1
    that are not 0, and where these are the more, the percentages are. Unsure: values above 100, and below 0 by more
    than a little (differences), unless the measure is `unbounded`; of few such values, only these.
    """
    none = np.zeros(len(values), dtype=bool)
    if unbounded or not len(values):
        return Unit(POINTS if unbounded else SHARE, none)
    size = np.abs(values)
    if size.max() > 100 * _ONE or (values.min() < 0 and -values.min() > _SLIGHTLY * max(values.max(), 0)):
        beyond = _beyond(values)
        remaining = unit_of(values[~beyond]) if 0 < beyond.sum() <= max(1, _FEW * len(values)) else Unit(None, none)
        if remaining.name is None or len(values) < _FEWEST_VALUES:
            return Unit(None, none)
        odd = none.copy()
        odd[~beyond] = remaining.odd
        return Unit(remaining.name, odd, beyond)
    if size.max() <= _ONE:
        return Unit(SHARE, none)
    small = size <= _ONE
    large, odd = size[~small], small & (size > 0)
    if not odd.any() or large.min() <= _CLEAR:
        return Unit(PERCENT, none)
    return Unit(PERCENT, odd) if odd.sum() <= len(large) else Unit(SHARE, ~small)


def _as_told(name: str, measured: Unit, values: np.ndarray) -> Unit:
    """The unit that is said of values (n,), and which of them are not in it by what their sizes tell (`measured`)."""
    odd = ~measured.odd & (values != 0) if measured.name == SHARE and measured.odd.any() else measured.odd
    return Unit(name, odd & (name != SHARE))


def _beyond(values: np.ndarray) -> np.ndarray:
    """Which values (n,) can be no share and no percentage: below 0 by more than a little, and above 100 where they are
    twice as large as all others."""
    inside = np.abs(values[np.abs(values) <= 100 * _ONE])
    largest = inside.max() if len(inside) else np.inf
    return (values > max(100 * _ONE, 2 * largest)) | (-values > _SLIGHTLY * max(largest, 0))


def with_units(claims: pd.DataFrame, reading: Reading) -> pd.DataFrame:
    """The claims as shares, or in points where a measure has no bounds, without those whose unit is unsure.

    Decided per benchmark and metric over all claims. A model all of whose values are odd, on two benchmarks or more, is
    in the other unit, whatever the reader says of the benchmarks; single odd values are left out, unless the reader
    says their unit. What the reader says of all is not said of unbounded measures.
    """
    factor = pd.Series(1.0, claims.index)
    factor[claims["unit"] == PERCENT] = 0.01
    shares = (*SHARES_OF_ITEMS, "accuracy")
    metrics = claims["metric"].dropna().unique()
    share = claims["metric"].isin([name for name in metrics if name.partition(",")[0] in shares])
    own_rows = claims["unit"] == "own"
    beyond = own_rows & share & (claims["value"].abs() > _ONE)
    again = own_rows & share & claims["benchmark"].isin(claims.loc[beyond, "benchmark"])
    unknown = claims["unit"].isna() | again
    odd, stated = (pd.Series(data=False, index=claims.index) for _ in range(2))
    guessed = _among_percentages(claims, unknown)
    for (benchmark, metric), rows in claims[unknown].groupby(["benchmark", "metric"], dropna=False, sort=False):
        correction = reading.said("unit", benchmark, _UNIT_ROWS)
        if correction == LEFT_OUT:
            factor[rows.index] = np.nan
            continue
        name = f"{benchmark} {'' if pd.isna(metric) else metric}"
        unbounded = is_unbounded(benchmark) or (not pd.isna(metric) and is_unbounded(metric))
        unbounded &= not share[rows.index[0]]  # `stories_ppl` under accuracy is a share
        values = rows["value"].to_numpy(float)
        unbounded &= not (names_perplexity(name) and len(values) and values.max() <= _ONE)
        signed = may_be_negative(name)
        unit = unit_of(np.abs(values) if signed else values, unbounded=unbounded)
        guess = None if correction or unbounded else guessed.get(name)
        if guess or (correction and not (unbounded and ("unit", benchmark) not in reading.given)):
            unit = _as_told(guess or str(correction), unit, values)
            stated[rows.index] = True
        factor[rows.index] = _SCALE.get(unit.name or "", np.nan)
        odd[rows.index] = unit.odd
        if unit.beyond is not None:
            factor = _beyond_all(claims, rows.index[unit.beyond], factor, reading)
        _say_unit(benchmark, unit, rows, "table" if guess else "option" if correction else "arithmetic", reading)
    factor = _of_whole_models(claims, factor, odd & unknown, unknown & stated, unknown, reading)
    factor = factor.astype(float)
    return claims.assign(value=claims["value"] * factor, stderr=claims["stderr"] * factor)[factor.notna()]


def _among_percentages(claims: pd.DataFrame, unknown: pd.Series) -> dict[str, str]:
    """The guessed unit of columns, by `benchmark metric`, whose values are at most 1 in files of percentages.

    That of the other columns where two or more, and no fewer than such columns, have percentages of the same models
    and decimals are few, else share. No guess: more decimals than percentages have, another metric, a measure's name.
    """
    size = claims["value"].abs()
    if not (size[unknown] <= _ONE).any() or not (size > _CLEAR).any():
        return {}
    table = claims[["model", "benchmark", "file", "value"]].assign(metric=claims["metric"].fillna(""), known=~unknown)
    table["name"] = table["benchmark"] + " " + table["metric"]
    largest = table["value"].abs().groupby(table["name"]).transform("max")
    if not (unknown & (largest <= _ONE)).any() or not (unknown & (largest > _CLEAR)).any():
        return {}
    table = table.assign(small=largest <= _ONE, percent=(largest > _CLEAR) & (largest <= 100 * _ONE))
    guesses, by_files = {}, dict[frozenset[int], _Beside | None]()
    for name, rows in table[table["small"]].groupby("name", sort=False):
        values, files = rows["value"].to_numpy(float), frozenset(rows["file"])
        if files not in by_files:
            by_files[files] = _percentages_of(table[table["file"].isin(files)])
        beside, scored = by_files[files], rows.loc[rows["value"] > 0, "model"]
        if (
            beside is None or values.min() < 0
            or not ((values > 0) & (values < 1)).any() or not scored.isin(beside.models).all()
            or rows["metric"].iloc[0] not in beside.metrics or may_be_negative(name)
            or lower_is_better(name) or metric_direction(rows["benchmark"].iloc[0]) is not None
        ):  # fmt: skip
            continue
        guesses[name] = PERCENT if beside.many and decimals(values) <= _FINE else SHARE
    return guesses


class _Beside(NamedTuple):
    """The columns of percentages of some files: their models and metrics, and whether they are as many as the columns
    of small values."""

    models: set[str]
    metrics: set[str]
    many: bool


def _percentages_of(near: pd.DataFrame) -> _Beside | None:
    """The percentages beside columns of small values; None where there are none, where a file says a unit, and where
    small values have more decimals."""
    beside, small = near[near["percent"]], near[near["small"]]
    if near["known"].any() or beside.empty:
        return None
    digits = decimals(beside["value"].to_numpy(float))
    if any(decimals(values.to_numpy(float)) > digits for _, values in small.groupby("name")["value"]):
        return None
    many = beside["name"].nunique() >= max(2, small["name"].nunique())
    return _Beside(set(beside.loc[beside["value"].abs() > _ONE, "model"]), set(beside["metric"]), many)


def _beyond_all(claims: pd.DataFrame, places: pd.Index, factor: pd.Series, reading: Reading) -> pd.Series:
    """The factors without those of values beyond all scores, unless the reader says their unit."""
    factor = factor.copy()
    for row_index in places:
        where = f"{claims.at[row_index, 'model']} on {claims.at[row_index, 'benchmark']}"
        correction = reading.said("unit", where, _UNIT_ROWS)
        factor[row_index] = _SCALE.get(correction or "", np.nan)
        if correction is None:
            value = claims.at[row_index, "value"]
            text = f"{claims.at[row_index, 'place'] or where}: {value:g} is neither share nor percent"
            reading.add("unit", where, "left out", "arithmetic", LEFT_OUT, 1, "share, percent", text)
    return factor


def _say_unit(benchmark: str, unit: Unit, rows: pd.DataFrame, source: str, reading: Reading) -> None:
    number = len(rows)
    values = rows["value"]
    if unit.name is None:
        metric = str(rows["metric"].iloc[0]).removesuffix(",none")
        name = benchmark if rows["metric"].isna().iloc[0] else f"{benchmark}, {metric}"
        text = f"{name}: {values.min():g} to {values.max():g} is neither share nor percent"
        text += f"; kept as it is by {in_reading('unit', benchmark, 'points')}"
        reading.add("unit", benchmark, "left out", source, LEFT_OUT, number, "share, percent, points", text)
    elif source == "table":
        text = f"{benchmark}: {values.min():g} to {values.max():g} beside percentages, read as {unit.name}"
        reading.add("unit", benchmark, unit.name, source, UNSURE, number, "share, percent", text)
    elif unit.name == PERCENT:
        text = f"{benchmark}: percent to share, {count(number, 'value')}"
        perhaps_ratings = source == "arithmetic" and values.abs().max() <= MOST_OF_RATINGS
        text += f", none above {values.max():g}: perhaps ratings" if perhaps_ratings else ""
        kind = UNSURE if perhaps_ratings else CONVERTED
        reading.add("unit", benchmark, PERCENT, source, kind, number, "share, points", text)
    else:
        reading.add("unit", benchmark, unit.name, source, READ, number)


def _of_whole_models(
    claims: pd.DataFrame, factor: pd.Series, odd: pd.Series, stated: pd.Series, unknown: pd.Series, reading: Reading
) -> pd.Series:
    """The factors with those of odd values: a whole model in another unit is converted, single values are left out,
    or stay as they are `stated`, as do small values that are written with no more decimals than percentages are."""
    if not odd.any():
        return factor
    factor = factor.copy()
    for model, rows in claims[unknown & claims["model"].isin(claims.loc[odd, "model"])].groupby("model"):
        mine = odd[rows.index]
        correction = reading.said("unit", str(model), _UNIT_ROWS, by_reader=True)
        if correction is not None:
            factor[rows.index] = _SCALE.get(correction, np.nan)
            continue
        odd_factors = set(factor[rows.index][mine])
        small = rows["value"].abs().max() <= _ONE
        rest_claims = claims[unknown & ~odd]
        as_told = stated[rows.index[mine]].all() and _as_coarse(rows[mine], rest_claims)
        stays = small and (as_told or _leads(rows[mine], rest_claims))
        if mine.sum() >= 2 and len(odd_factors) == 1 and (small or mine.all()) and not stays:
            unit, other_factor = (SHARE, 100.0 if odd_factors == {1.0} else 1.0) if small else (PERCENT, 0.01)
            factor[rows.index if small else rows.index[mine]] = other_factor
            text = f"{model}: its {count(len(rows), 'value')} are in {unit}, those of others are not"
            reading.add("unit", str(model), unit, "arithmetic", CONTRADICTED, len(rows), "left out", text)
            continue
        for row_index in rows.index[mine]:
            benchmark, value = claims.at[row_index, "benchmark"], claims.at[row_index, "value"]
            correction = reading.said("unit", f"{model} on {benchmark}", _UNIT_ROWS, by_reader=True)
            if correction is not None or not stated[row_index]:
                factor[row_index] = _SCALE.get(correction or "", np.nan)
            if correction is not None:
                continue
            where = claims.at[row_index, "place"] or f"{model} on {benchmark}"
            text = f"{where}: {value:g}{' may be' if stated[row_index] else ','} in another unit than the others"
            own_unit = PERCENT if factor[row_index] == _SCALE[PERCENT] else POINTS
            decided, kind = (own_unit, UNSURE) if stated[row_index] else (LEFT_OUT, LEFT_OUT)
            reading.add("unit", f"{model} on {benchmark}", decided, "arithmetic", kind, 1, "share, percent", text)
    return factor


def _leads(rows: pd.DataFrame, other_rows: pd.DataFrame) -> bool:
    """Whether a model's small values, as shares, would be above all `other_rows` somewhere, and are coarse."""
    other_rows = _beside(rows, other_rows)
    first = rows["value"] * 100 > rows["benchmark"].map(other_rows.groupby("benchmark")["value"].max())
    digits = min(_FINE - 1, decimals(other_rows["value"].to_numpy(float)))
    return bool(first.any()) and decimals(rows["value"].to_numpy(float)) <= digits


def _as_coarse(rows: pd.DataFrame, other_rows: pd.DataFrame) -> bool:
    """Whether a model's small values have no more decimals than one, or than the `other_rows` of their benchmarks."""
    digits = decimals(_beside(rows, other_rows)["value"].to_numpy(float))
    return decimals(rows["value"].to_numpy(float)) <= max(digits, _FINE - 1)


def _beside(rows: pd.DataFrame, other_rows: pd.DataFrame) -> pd.DataFrame:
    return other_rows[other_rows["benchmark"].isin(rows["benchmark"].unique())]
