"""The unit and the direction of scores: by the whole column, marks, known metrics and the reader, else assumed."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from lm_validity.errors import InputError, did_you_mean
from lm_validity.tables.cell_text import is_unbounded, lower_is_better, may_be_negative, names_perplexity
from lm_validity.tables.frame import Frame
from lm_validity.tables.metrics import find_task_facts, metric_direction
from lm_validity.tables.roles import key, vocabulary
from lm_validity.tables.told import Long
from lm_validity.words import listing

FRACTION, PERCENT, POINTS = UNITS = ("fraction", "percent", "points")
HIGHER, LOWER, ASSUMED = DIRECTIONS = ("higher", "lower", "higher (assumed)")
_IN_PARENTHESES = re.compile(r"[(（]([^()（）]*[^\W\d_]{3}[^()（）]*)[)）]")
_ONE = 1 + 1e-9
_CLEAR = 10.0  # percent: a value of at most 1 among ones above this is in another unit, none above it may be ratings
_SLIGHTLY = 0.05  # below 0, of the largest value: chance, where a metric is centred
_FEW = 0.1  # of the values, at least one: so many may be slips, such as 640 among percentages
_HIGHER = frozenset(("acc", "accuracy", "f1", "em", "correct", "solved", "pass", "win", "bleu", "rouge", "chrf"))


@dataclass
class Scaled:
    """Scores in shares where they are percentages. `scores`: the columns of `Long.scores`, and `higher_is_better`;
    `factors`: of each row of `Long.rows`; `units`, `directions`: by benchmark; `notes`: what was left out."""

    scores: pd.DataFrame
    factors: pd.Series
    units: dict[str, str]
    directions: dict[str, str]
    notes: list[str] = field(default_factory=list)


def scaled(frame: Frame, long: Long, units: Mapping[str, str], directions: Mapping[str, str]) -> Scaled:
    """The scores of a reading in shares or points, with the direction of each benchmark; `units`, `directions`: what
    the reader says of benchmarks. Raises InputError for a benchmark that is not there."""
    scores = long.scores
    names = scores["benchmark"].unique().tolist()
    for said, what, known in ((units, "units", UNITS), (directions, "directions", DIRECTIONS)):
        for name, text in said.items():
            if name not in names:
                raise InputError(
                    f"reading: {what} of {name!r}: no such benchmark.", did_you_mean(name, names, listing(names, 8))
                )
            if text not in known:
                raise InputError(f"reading: {what} of {name}: {text!r}.", f"one of {', '.join(known)}.")
    groups = ["benchmark", *(["metric"] if "metric" in scores else [])]
    notes: list[str] = []
    found: dict[str, str] = {}
    factors = pd.Series(1.0, scores.index)
    wide = _units(scores, groups, long, units)
    odd = pd.Series(data=False, index=scores.index)
    for name, rows in scores.groupby(groups, sort=False):
        unit = wide[name]
        found.setdefault(str(name[0]), unit)
        factors[rows.index] = 0.01 if unit == PERCENT else 1.0
        if unit == PERCENT and str(name[0]) not in units:
            odd[rows.index] = _odd(rows["value"].to_numpy())
    factors, notes = _of_odd(frame, long, scores, factors, odd)
    higher = {name: _direction(name, long) for name in wide}
    told = {
        **{str(name[0]): HIGHER if up else ASSUMED if up is None else LOWER for name, up in reversed(higher.items())},
        **directions,
    }
    better = [{HIGHER: True, LOWER: False}.get(told[name]) if name in directions else higher[name, *rest]
              for name, *rest in scores[groups].itertuples(index=False, name=None)]  # fmt: skip
    kept = factors.notna()
    scores = scores.assign(
        value=scores["value"] * factors, error=scores["error"] * factors, higher_is_better=pd.array(better, "boolean")
    )
    by_row = (
        factors
        if not long.items
        else long.rows.merge(scores.assign(factor=factors)[[*long.keys, "factor"]], "left", long.keys)["factor"]
    )
    return Scaled(scores[kept], by_row, found, told, notes)


def _units(scores: pd.DataFrame, groups: list[str], long: Long, said: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    """The unit of each benchmark and metric: what values, marks and names say; of those that leave it open, what the
    others of the table are."""
    units: dict[tuple[str, ...], str] = {}
    open_ones: dict[tuple[str, ...], np.ndarray] = {}
    for name, rows in scores.groupby(groups, sort=False):
        values = rows["value"].to_numpy(float)
        text = " ".join(map(str, name))
        if str(name[0]) in said:
            units[name] = said[str(name[0])]
            continue
        values = np.abs(values) if may_be_negative(text) else values
        marked = rows["source"].isin(long.percent).any() or "%" in text
        unit = unit_of(values, text, marked=bool(marked))
        if unit is None or (unit == FRACTION and values.max() < 1 and not marked):
            open_ones[name] = values
        units[name] = unit or POINTS
    percent = [name for name, unit in units.items() if unit == PERCENT and name not in open_ones]
    for name, values in open_ones.items():
        alike = len(percent) >= max(2, len(open_ones))
        coarse = values.max() > 1 or (_decimals(values) <= 2 and not lower_is_better(str(name[0])) and values.max() > 0)
        units[name] = PERCENT if alike and coarse else units[name]
    return units


def unit_of(values: np.ndarray, name: str, *, marked: bool) -> str | None:
    """The unit of values (n,) of a benchmark and metric: None where they are from 0 to 10, some above 1, which may be
    percentages or ratings."""
    if is_unbounded(name) and not (names_perplexity(name) and values.max(initial=0) <= 1):
        return POINTS
    outside = _outside(values)
    if outside.sum() > max(1.0, _FEW * len(values)) or (outside.any() and len(values) < 4):
        return POINTS
    values = values[~outside]
    if not marked and values.max(initial=0) <= _ONE:
        return FRACTION
    return PERCENT if marked or values.max() > _CLEAR else None


def _outside(values: np.ndarray) -> np.ndarray:
    """Which values (n,) can be no share and no percentage: below 0 by more than a little, and above 100."""
    inside = np.abs(values[np.abs(values) <= 100 * _ONE])
    largest = inside.max() if len(inside) else np.inf
    outside: np.ndarray = (values > 100 * _ONE) | (-values > _SLIGHTLY * max(largest, 0))
    return outside


def _odd(values: np.ndarray) -> np.ndarray:
    """Which percentages (n,) are in another unit than the others: at most 1 among ones above 10, and above 100."""
    small = (np.abs(values) <= _ONE) & (values != 0)
    large = values[np.abs(values) > _ONE]
    clear = len(large) > 0 and large.min() > _CLEAR
    odd: np.ndarray = (small & clear) | _outside(values)
    return odd


def _of_odd(
    frame: Frame, long: Long, scores: pd.DataFrame, factors: pd.Series, odd: pd.Series
) -> tuple[pd.Series, list[str]]:
    """The factors with those of odd values: a model all of whose values are at most 1, two at least, is in shares;
    single values are left out (NaN), and said with their place."""
    notes = []
    for model, rows in scores[odd].groupby("model", sort=False):
        own = scores[scores["model"] == model]
        if len(rows) >= 2 and (own["value"].abs() <= _ONE).all():
            factors = factors.where(scores["model"] != model, 1.0)
            notes.append(f"{model}: its {len(own)} scores are shares, those of others percentages.")
            continue
        factors = factors.where(~scores.index.isin(rows.index), np.nan)
        for row in rows.itertuples():
            place = frame.place(long.table, int(row.row))
            notes.append(
                f"Left out: {place}: {row.value:g} for {model} on {row.benchmark} is in another unit than the others."
            )
    return factors, notes


def _decimals(values: np.ndarray) -> int:
    """To how many decimals values (n,) are written, at most 6."""
    return next((digits for digits in range(6) if np.allclose(values, np.round(values, digits), atol=1e-9)), 6)


def _direction(name: Iterable[str], long: Long) -> bool | None:
    """Whether higher is better on a benchmark and metric: by a mark, the table of metrics and tasks, a word of the name
    of which less, or more, is better; None: nothing says it."""
    if "answer" in long.told:  # right or wrong
        return True
    benchmark, *rest = name
    metric = rest[0] if rest else ""
    if not metric and not any(
        None in given.names for role in ("benchmark", "metric") for given in long.told.get(role, [])
    ):
        of_benchmark = long.scores.loc[long.scores["benchmark"] == benchmark, "source"]
        metric = "" if long.items else str(of_benchmark.iloc[0])  # the header of its only column of scores
    text = metric.partition(",")[0] or benchmark
    if any(sign in f"{benchmark} {metric}" for sign in ("↓", "⬇")):
        return False
    if any(sign in f"{benchmark} {metric}" for sign in ("↑", "⬆")):
        return True
    known = metric_direction(key(text))
    if known is None and (facts := find_task_facts(key(benchmark))) and facts.higher_is_better:
        known = facts.higher_is_better == "1"
    if known is not None:
        return known
    if lower_is_better(text) or any(map(lower_is_better, _IN_PARENTHESES.findall(text))):
        values = long.scores.loc[long.scores["benchmark"] == benchmark, "value"]
        return None if names_perplexity(text) and values.max() <= 1 else False
    words = set(key(text).split("_"))
    return True if words & _HIGHER and not words & vocabulary("has")["no score"] else None
