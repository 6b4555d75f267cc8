"""What the scores of harnesses mean together: suites, groups of tasks, shares, errors, directions, names of one model.

Formats give claims, scores as they stand in files. Each function takes all claims of an import and gives them as they
count; what is said to the reader goes to `notes`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from lm_validity.tables.cell_text import lower_is_better
from lm_validity.tables.scales import FRACTION, unit_of
from lm_validity.tables.schema import KEY
from lm_validity.tables.standard_errors import SHARES_OF_ITEMS
from lm_validity.tables.task_facts import metric_direction
from lm_validity.tables.told import standard_errors
from lm_validity.words import count, listing

_FAR_TOO_LARGE = 3.0  # times the pooled error of a group's tasks
_SAME_VALUE = 1e-9
_FEWEST_EQUAL = 3  # scores that two names have in common, and all are equal
_KINDS = {"stderr": "se", "sd": "sd", "ci95": "ci95"}  # of errors, as formats call them


def read_claims(claims: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """The scores that claims mean."""
    claims = with_groups(with_suites(claims, notes), notes)
    claims = with_units(claims)
    claims = with_errors(claims)
    claims = with_directions(claims)
    return with_one_name(claims, notes)


def with_suites(claims: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """The claims with the suite before a task's name where two suites have tasks of that name with equally many solved
    examples, in whatever file."""
    suites = claims[claims["suite"].notna()].groupby(["benchmark", "num_fewshot"], dropna=False)["suite"].nunique()
    several = sorted({name for (name, _), number in suites.items() if number > 1})
    if not several:
        return claims
    notes.append(f"In several suites, so called by them: {listing(several, 4)}.")
    own_rows = claims["suite"].notna() & claims["benchmark"].isin(several)
    return claims.assign(benchmark=claims["benchmark"].mask(own_rows, claims["suite"] + "|" + claims["benchmark"]))


def pooled_error(values: np.ndarray, errors: np.ndarray) -> float | None:
    """The standard error of the mean over all items of tasks, from their shares and standard errors (tasks,).

    n_i = p_i (1 - p_i) / se_i^2 + 1; se = sqrt(sum (n_i se_i)^2) / sum n_i. None where a task does not tell its n.
    """
    inside = (values > 0) & (values < 1) & (errors > 0)
    if not inside.all() or not len(values):
        return None
    items = values * (1 - values) / errors**2 + 1
    return float(np.sqrt(np.sum((items * errors) ** 2)) / items.sum())


def with_groups(claims: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """The claims with either a group's own scores or those of its tasks, for all models the same.

    The group's, where all models that have its tasks have them; else the tasks, where all that have the group have
    these; else what more models have. A group's error that its tasks' contradict by a factor of 3 is replaced by the
    pooled one.
    """
    members = claims.dropna(subset=["group"]).drop_duplicates("benchmark").set_index("benchmark")["group"]
    out = pd.Series(data=False, index=claims.index)
    stderr = claims["stderr"].copy()
    for group in claims["group"].dropna().unique():
        tasks = claims["benchmark"].map(members) == group
        is_group = (claims["benchmark"] == group) & ~tasks
        with_tasks, with_whole = set(claims.loc[tasks, "model"]), set(claims.loc[is_group, "model"])
        if not with_whole:
            continue
        if with_tasks <= with_whole:
            _pool(claims, is_group, tasks, stderr, group, notes)
            notes.append(
                f"{count(claims.loc[tasks, 'benchmark'].nunique(), 'task')} of {group}, whose own score counts."
            )
            out |= tasks
            continue
        by_tasks = with_whole <= with_tasks or len(with_tasks) > len(with_whole)
        choice = "its tasks count" if by_tasks else "its own score counts"
        notes.append(
            f"{group}: {len(with_whole)} models have the group, {len(with_tasks)} its tasks; {choice} for all."
        )
        out |= is_group if by_tasks else tasks
    return claims.assign(stderr=stderr)[~out]


def _pool(
    claims: pd.DataFrame, is_group: pd.Series, tasks: pd.Series, stderr: pd.Series, group: str, notes: list[str]
) -> None:
    """Replace the group's errors that those of its tasks contradict."""
    times, key = [], ["file", "metric"]
    own_rows = {place: rows for place, rows in claims[tasks].groupby(key, dropna=False)}
    for row in claims.index[is_group & claims["stderr"].notna()]:
        of_tasks = own_rows.get(tuple(claims.loc[row, key]))
        if of_tasks is None:
            continue
        error = pooled_error(of_tasks["value"].to_numpy(float), of_tasks["stderr"].to_numpy(float))
        if error and stderr[row] > _FAR_TOO_LARGE * error:
            times.append(float(stderr[row]) / error)
            stderr[row] = error
    if times:
        notes.append(f"{group}: standard errors {max(times):.1f} times what its tasks' give, pooled instead.")


def with_units(claims: pd.DataFrame) -> pd.DataFrame:
    """The claims as shares where they are percentages: as the file says, else by all values of a benchmark and metric;
    a share of items above 1 is none, whatever its format fixes."""
    percent = claims["unit"] == "percent"
    metrics = claims["metric"].fillna("").str.partition(",")[0]
    share = metrics.isin((*SHARES_OF_ITEMS, "accuracy"))
    above = (claims["unit"] == "own") & share & (claims["value"].abs() > 1 + 1e-9)
    again = (claims["unit"] == "own") & share & claims["benchmark"].isin(claims.loc[above, "benchmark"])
    for (benchmark, metric), rows in claims[claims["unit"].isna() | again].groupby(
        ["benchmark", "metric"], dropna=False
    ):
        name = f"{benchmark} {'' if pd.isna(metric) else metric}"
        percent[rows.index] = unit_of(rows["value"].to_numpy(float), name, marked=False) not in (
            FRACTION,
            None,
            "points",
        )
    factor = percent.map({True: 0.01, False: 1.0}).astype(float)
    return claims.assign(value=claims["value"] * factor, stderr=claims["stderr"] * factor)


def with_errors(claims: pd.DataFrame) -> pd.DataFrame:
    """The claims with standard errors in place of other errors; null where an error is of an unknown kind."""
    stderr = claims["stderr"].astype(float).copy()
    for (_, kind), rows in claims[stderr.notna() & claims["error"].notna()].groupby(["benchmark", "error"], sort=False):
        values, errors, items = (rows[name].astype("float64").to_numpy() for name in ("value", "stderr", "n_items"))
        stderr[rows.index] = standard_errors(values, errors, items, _KINDS.get(str(kind)))
    return claims.assign(stderr=stderr)


def with_directions(claims: pd.DataFrame) -> pd.DataFrame:
    """The claims with the direction of each benchmark and metric: the table of metrics counts before the file, the file
    before words of names."""
    higher = claims["higher_is_better"].astype("boolean").copy()
    own = claims["source"].map(lambda source: source == "table")
    for (benchmark, metric), rows in claims[~own].groupby(["benchmark", "metric"], dropna=False, sort=False):
        name = "" if pd.isna(metric) else str(metric)
        said = rows["higher_is_better"].dropna()
        known = metric_direction(name) if name else None
        if known is None and len(said):
            known = bool(said.iloc[0])
        if known is None and any(lower_is_better(text.partition(",")[0]) for text in (name, str(benchmark)) if text):
            known = False
        if known is not None:
            higher[rows.index] = known
    return claims.assign(higher_is_better=higher)


def normal_name(name: str) -> str:
    """A model's name in small letters, `org__name` as `org/name`, without slashes at its ends."""
    return name.replace("__", "/").strip("/ ").casefold().replace(" ", "-")


def one_model(names: Iterable[str], scores: Mapping[str, Mapping[object, float]]) -> dict[str, str]:
    """Names that mean a model which has another name too: by name, the one to use.

    Names that differ in case or in `__` for `/` only are one where no score contradicts it; names that differ in the
    owner too are, where three or more scores are the same and none differs. The name with an owner is used, else the
    first. `scores`: by name, values by key.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[normal_name(name).rpartition("/")[2]].append(name)
    merged: dict[str, str] = {}
    for alike in groups.values():
        distinct: list[str] = []
        for name in sorted(alike, key=lambda each: ("/" not in normal_name(each), each != each.lower(), each)):
            match = next((candidate for candidate in distinct if _are_one(name, candidate, scores)), None)
            if match is None:
                distinct.append(name)
            else:
                merged[name] = match
    return merged


def _are_one(name: str, second_name: str, scores: Mapping[str, Mapping[object, float]]) -> bool:
    mine, theirs = scores.get(name, {}), scores.get(second_name, {})
    common_keys = mine.keys() & theirs.keys()
    equal = all(abs(mine[key] - theirs[key]) <= _SAME_VALUE for key in common_keys)
    if normal_name(name) == normal_name(second_name):
        return equal
    return equal and len(common_keys) >= _FEWEST_EQUAL


def with_one_name(claims: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """The claims with one name a model, as `one_model` says."""
    names = list(dict.fromkeys(claims["model"]))
    alike: dict[str, list[str]] = defaultdict(list)
    for name in names:
        alike[normal_name(name).rpartition("/")[2]].append(name)
    several = [name for group in alike.values() if len(group) > 1 for name in group]
    if not several:
        return claims
    key = ["checkpoint", "benchmark", "metric", "protocol", "num_fewshot", "seed", "run", "prompt", "split"]
    own_rows = claims[claims["model"].isin(several)]
    keys = own_rows[key].astype(object).where(own_rows[key].notna(), None).itertuples(index=False, name=None)
    scores: dict[str, dict[object, float]] = defaultdict(dict)
    for model, place, value in zip(own_rows["model"], keys, own_rows["value"], strict=True):
        scores[model][place] = value
    merged = one_model(several, scores)
    notes += [f"{name} and {other} are one model." for name, other in merged.items()]
    claims = claims.assign(model=claims["model"].replace(merged))
    return claims[~claims.duplicated([*(name for name in KEY if name in claims), "value"])] if merged else claims
