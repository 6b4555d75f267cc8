"""What the claims of an import mean: units, errors, directions, averages, and which names are one model.

Formats give *claims* (`Claim`), scores as they stand in files. Here all claims of an import are looked at together.
Each decision has a source; where it is unsure, the value is left out or null. `reading.tsv` has a row a decision;
`--reading` takes rows back, corrected.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn

import numpy as np
import pandas as pd

from lm_validity.errors import InputError, did_you_mean
from lm_validity.tables.aggregates import (
    FEWEST_PLACES,
    FEWEST_ROWS,
    MOST_BENCHMARKS,
    are_places,
    decimals,
    find_aggregates,
)
from lm_validity.tables.cell_text import (
    is_no_score,
    lower_is_better,
    names_average,
    names_perplexity,
    parts,
)
from lm_validity.tables.decisions import (
    CONTRADICTED,
    CONVERTED,
    FROM_ITEMS,
    LEFT_OUT,
    OF_TASKS,
    READ,
    UNSURE,
    Reading,
    in_reading,
    reading_row,
)
from lm_validity.tables.schema import SCORES
from lm_validity.tables.task_facts import PREFERRED, TaskFacts, find_task_facts, metric_direction
from lm_validity.tables.units import with_units
from lm_validity.words import count, listing

# ----------------------------------------------------------------------------------------------------------------------
# What an error is.

STDERR, SD, CI95, VARIANCE = ERRORS = ("stderr", "sd", "ci95", "variance")
_NOT_USED = "not used"
_Z95 = 1.959964
_LIKE = 0.08  # relative difference between an error and the one that its share would have
_FEWEST_ERRORS = 3


def error_kind(values: np.ndarray, errors: np.ndarray, items: np.ndarray, fewest: int = _FEWEST_ERRORS) -> str | None:
    """Which of ERRORS the errors (n,) of shares `values` (n,) are, by p(1 - p) and the numbers of items (n, NaN
    unknown); None where the values do not tell, or are fewer than `fewest`.

    sqrt(p(1-p)) is a standard deviation, that over sqrt(n) a standard error, 1.96 of these half of a 95% interval,
    p(1-p) a variance.
    """
    inside = (values > 0.02) & (values < 0.98) & (errors > 0)
    if inside.sum() < fewest:
        return None
    spread = values[inside] * (1 - values[inside])
    errors, items = errors[inside], items[inside]
    expected = {SD: np.sqrt(spread), VARIANCE: spread}
    if np.isfinite(items).all():
        expected |= {STDERR: np.sqrt(spread / items), CI95: _Z95 * np.sqrt(spread / items)}
    for kind, values_of in expected.items():
        if np.all(np.abs(errors / values_of - 1) <= _LIKE):
            return kind
    return None


def with_errors(claims: pd.DataFrame, reading: Reading) -> pd.DataFrame:
    """The claims with standard errors in place of other errors; null where an error is of an unknown kind.

    `error` is what the file calls it. A file's `stderr` stays one unless its shares and numbers of items say otherwise.
    Its `sd` is one over items, or a standard error, only where the shares say so: most are of runs.
    """
    has_error = claims["stderr"].notna() & claims["error"].notna()
    if not has_error.any():
        return claims
    stderr = claims["stderr"].astype(float).copy()
    for (benchmark, kind_said), rows in claims[has_error].groupby(["benchmark", "error"], sort=False):
        correction = reading.said("errors", benchmark, (*ERRORS, _NOT_USED, FROM_ITEMS))
        correction = None if correction == FROM_ITEMS else correction
        items = rows["n_items"].astype("float64").to_numpy()
        values, errors = rows["value"].to_numpy(float), rows["stderr"].to_numpy(float)
        by_items = error_kind(values, errors, items)
        if kind_said == SD and by_items is None:
            by_few = error_kind(values, errors, items, fewest=1)
            by_items = by_few if by_few in (SD, STDERR) else None
        kind = correction or (str(kind_said) if kind_said in ERRORS and (kind_said != SD or by_items) else by_items)
        source = "option" if correction else "said by the file" if kind_said in ERRORS else "arithmetic"
        if kind_said in ERRORS and by_items in ERRORS and by_items != kind_said and not correction:
            kind, text = by_items, f"{benchmark}: called {kind_said}, but they are {by_items} of shares"
            reading.add("errors", benchmark, str(kind), "arithmetic", CONTRADICTED, len(rows), kind_said, text)
        with np.errstate(invalid="ignore"):
            stderr[rows.index] = {
                STDERR: errors, CI95: errors / _Z95, SD: errors / np.sqrt(items), VARIANCE: np.sqrt(errors / items),
            }.get(str(kind), np.full(len(rows), np.nan))  # fmt: skip
        if kind == STDERR:
            continue
        number_used = int(stderr[rows.index].notna().sum())
        if number_used:
            text = f"{benchmark}: {kind} to standard error, {count(number_used, 'value')}"
            reading.add("errors", benchmark, str(kind), source, CONVERTED, number_used, ", ".join(ERRORS), text)
        else:
            text = f"{benchmark}: numbers after ± are of an unknown kind and are not used"
            if kind_said == SD and kind is None:
                text = f"{benchmark}: of what its sd is, items or runs, is unknown, so not used"
            elif kind not in (None, _NOT_USED):
                text = f"{benchmark}: errors are {kind}, and the number of items is unknown, so not used"
            reading.add("errors", benchmark, _NOT_USED, source, UNSURE, len(rows), ", ".join(ERRORS), text)
    return claims.assign(stderr=stderr)


# ----------------------------------------------------------------------------------------------------------------------
# Groups of tasks.

_FAR_TOO_LARGE = 3.0  # times the pooled error of a group's tasks


def pooled_error(values: np.ndarray, errors: np.ndarray) -> float | None:
    """The standard error of the mean over all items of tasks, from their shares and standard errors (tasks,).

    n_i = p_i (1 - p_i) / se_i^2 + 1; se = sqrt(sum (n_i se_i)^2) / sum n_i. None where a task does not tell its n.
    """
    inside = (values > 0) & (values < 1) & (errors > 0)
    if not inside.all() or not len(values):
        return None
    items = values * (1 - values) / errors**2 + 1
    return float(np.sqrt(np.sum((items * errors) ** 2)) / items.sum())


def with_suites(claims: pd.DataFrame, reading: Reading) -> pd.DataFrame:
    """The claims with the suite before a task's name where two suites have tasks of that name with equally many solved
    examples, in whatever file."""
    in_suites = claims[claims["suite"].notna()]
    if in_suites.empty:
        return claims
    suites = in_suites.groupby(["benchmark", "num_fewshot"], dropna=False)["suite"].nunique()
    several = sorted(
        {name for (name, _), n in suites.items() if n > 1 and reading.given.get(("benchmark", name)) != name}
    )
    if not several:
        return claims
    own_rows = claims["suite"].notna() & claims["benchmark"].isin(several)
    for name in several:
        reading.add("benchmark", name, "by suite", "structure", READ, 1, name, f"{name}: its suites are kept apart")
    return claims.assign(benchmark=claims["benchmark"].mask(own_rows, claims["suite"] + "|" + claims["benchmark"]))


def with_groups(claims: pd.DataFrame, reading: Reading) -> pd.DataFrame:
    """The claims with either a group's own scores or those of its tasks, for all models the same.

    The group's, where all models that have its tasks have them; else the tasks, where all that have the group have
    these; else what more models have; or what the reader says. A group's error that its tasks' contradict by a factor
    of 3 is replaced by the pooled one.
    """
    groups = [name for name in claims["group"].dropna().unique() if (claims["benchmark"] == name).any()]
    if not groups:
        return claims
    member_of = claims.dropna(subset=["group"]).drop_duplicates("benchmark").set_index("benchmark")["group"]
    out = pd.Series(data=False, index=claims.index)
    stderr = claims["stderr"].copy()
    for group in groups:
        tasks = claims["benchmark"].map(member_of) == group
        is_group = (claims["benchmark"] == group) & ~tasks
        with_tasks, with_whole = set(claims.loc[tasks, "model"]), set(claims.loc[is_group, "model"])
        correction = reading.said("benchmark", group)
        if correction:
            keep_tasks = correction in OF_TASKS
        elif with_tasks <= with_whole:
            keep_tasks = False
        else:
            keep_tasks = with_whole <= with_tasks or len(with_tasks) > len(with_whole)
            choice = "its tasks" if keep_tasks else "its own score"
            text = f"{group}: {len(with_whole)} models have the group, {len(with_tasks)} its tasks; {choice} for all"
            reading.add("benchmark", group, "tasks" if keep_tasks else "group", "structure", CONTRADICTED, 1, "", text)
        out |= is_group if keep_tasks else tasks
        if not keep_tasks:
            _pool(claims, is_group, tasks, stderr, group, reading)
            number = claims.loc[tasks, "benchmark"].nunique()
            text = f"{number} tasks of {group}, whose own score counts"
            reading.add("benchmark", group, "group", "structure", LEFT_OUT, number, "tasks", text)
    return claims.assign(stderr=stderr)[~out]


def _pool(
    claims: pd.DataFrame, is_group: pd.Series, tasks: pd.Series, stderr: pd.Series, group: str, reading: Reading
) -> None:
    """Replace the group's errors that those of its tasks contradict."""
    replaced, times, key = 0, 0.0, ["file", "metric"]
    own_rows = {row_index: rows for row_index, rows in claims[tasks].groupby(key, dropna=False)}
    own_rows = {} if reading.given.get(("errors", group)) == STDERR else own_rows
    for row_index in claims.index[is_group & claims["stderr"].notna()]:
        of_tasks = own_rows.get(tuple(claims.loc[row_index, key]))
        if of_tasks is None:
            continue
        error = pooled_error(of_tasks["value"].to_numpy(float), of_tasks["stderr"].to_numpy(float))
        if error and stderr[row_index] > _FAR_TOO_LARGE * error:
            times = max(times, float(stderr[row_index]) / error)
            stderr[row_index], replaced = error, replaced + 1
    if replaced:
        text = f"{group}: standard errors {times:.1f} times what its tasks' give, pooled instead"
        reading.add("errors", group, "pooled", "arithmetic", CONTRADICTED, replaced, "stderr", text)


# ----------------------------------------------------------------------------------------------------------------------
# Averages, ranks, costs: what is no benchmark.

_AVERAGES = [{kind, "average"} for kind in ("naive", "weighted", "macro", "micro")] + [
    {"average"},
    {"mean", "win", "rate"},
]
_AVERAGE_ROWS = (LEFT_OUT, "benchmark")


def without_aggregates(claims: pd.DataFrame, reading: Reading) -> pd.DataFrame:
    """The claims without averages, ranks and costs. Groups of lm-eval and lighteval are told by their files."""
    metrics = claims["metric"].dropna().unique()
    by_metric = claims["metric"].isin([name for name in metrics if set(parts(name.partition(",")[0])) in _AVERAGES])
    out = by_metric.copy()
    for name in claims.loc[by_metric, "benchmark"].unique():
        if _is_said_benchmark(name, reading):
            out &= claims["benchmark"] != name
            continue
        reading.add("average", name, "left out", "said by the file", LEFT_OUT, 1, "benchmark", f"{name}: an average")
    free = claims[~out & (claims["unit"] != "own")]
    several = free.groupby("benchmark", sort=False)["metric"].nunique() > 1
    aggregates = {name: ("an average", "name") for name in several.index[several] if names_average(name) is True}
    free = free[free["benchmark"].isin(several.index[~several])]
    if free["benchmark"].nunique() > 1:
        rows = free.drop_duplicates(["model", "checkpoint", "benchmark"])
        matrix = rows.pivot(index=["model", "checkpoint"], columns="benchmark", values="value")
        matrix = matrix[[name for name in dict.fromkeys(free["benchmark"])]]
        aggregates |= find_aggregates(matrix, set(free.loc[free["n_items"].notna(), "benchmark"]))
        out |= claims["benchmark"].isin(_places_said(matrix.drop(columns=[*aggregates], errors="ignore"), reading))
    elif several.any():  # a single one beside those of several metrics
        aggregates |= {
            name: ("an average", "name") for name in free["benchmark"].unique() if names_average(name) is True
        }
    beside = claims[~out & (claims["unit"] != "own")] if several.any() else claims[:0]
    for _, rows in beside.groupby("metric", sort=False):
        single = set(rows["benchmark"]) - set(several.index[several])
        if single and len(single) < rows["benchmark"].nunique():  # beside benchmarks of several metrics
            own_rows = rows.drop_duplicates(["model", "checkpoint", "benchmark"])
            matrix = own_rows.pivot(index=["model", "checkpoint"], columns="benchmark", values="value")
            means = find_aggregates(matrix, set(rows.loc[rows["n_items"].notna(), "benchmark"]))
            aggregates = {name: kind for name, kind in means.items() if name in single} | aggregates
    if len(aggregates) == len(several) and any(kind != "a rank" for kind, _ in aggregates.values()):
        return claims[~out]
    for name, (kind, source) in aggregates.items():
        if _is_said_benchmark(name, reading):
            continue
        out |= claims["benchmark"] == name
        text = f"{name!r} is {kind}"
        reading.add("average", name, "left out", source, LEFT_OUT, 1, "benchmark", text)
    return claims[~out] if not (aggregates and out.all()) else _only_places([*aggregates])


def _only_places(names: Sequence[str]) -> NoReturn:
    way = in_reading("average", names[0], "benchmark")
    way += "".join(f" and {reading_row('average', name, 'benchmark')}" for name in names[1:])
    raise InputError("all columns are places of models (1, 2, 3, ...), none has scores.", f"give scores; or {way}.")


def _places_said(matrix: pd.DataFrame, reading: Reading) -> list[str]:
    """The columns of perhaps places in a table (models, benchmarks) that the reader leaves out; others are scores, and
    are said."""
    names = [name for name in map(str, matrix) if are_places(matrix[name].to_numpy(float), FEWEST_PLACES)]
    decided = {name: reading.said("average", name, _AVERAGE_ROWS) for name in names}
    for name in (name for name in names if decided[name] is None and not _is_said_benchmark(name, reading)):
        text = f"{name!r} is read as scores: perhaps they are places of models (1, 2, 3, ...)"
        reading.add("average", name, "benchmark", "arithmetic", UNSURE, 1, LEFT_OUT, text)
    return [name for name in names if decided[name] == LEFT_OUT]


def _is_said_benchmark(name: str, reading: Reading) -> bool:
    """Whether the reader says that a name is that of a benchmark, or of a column of scores."""
    decided = reading.said("average", name, _AVERAGE_ROWS)
    return decided == "benchmark" or (decided is None and dict(reading.given).get(("column", name)) == "score")


# ----------------------------------------------------------------------------------------------------------------------
# Direction and metric.


class Direction(NamedTuple):
    """Whether higher is better (None: unknown), the source, and whether the file contradicts the table."""

    higher: bool | None
    source: str
    contradicted: bool = False


def direction_of(benchmark: str, metric: str | None, *, said: bool | None, most: float = np.inf) -> Direction:
    """The direction of a benchmark under a metric.

    The table of metrics counts before the file, the file before words of names. A perplexity is never below 1, so a
    name with that word says nothing where all values are (`most`: the largest).
    """
    by_table = metric_direction(metric) if metric else None
    if by_table is not None:
        return Direction(by_table, "known table", said is not None and said != by_table)
    if said is not None:
        return Direction(bool(said), "said by the file")
    for name in filter(None, (metric, benchmark)):
        if lower_is_better(name.partition(",")[0] if name is metric else name):
            if names_perplexity(name) and most <= 1:
                continue
            return Direction(higher=False, source="name")
    return Direction(None, "unknown")


def with_directions(claims: pd.DataFrame, reading: Reading) -> pd.DataFrame:
    """The claims with the direction of each benchmark and metric, where file, table or name tell it."""
    higher = claims["higher_is_better"].astype("boolean").copy()
    for (benchmark, metric), rows in claims.groupby(["benchmark", "metric"], dropna=False, sort=False):
        correction = reading.said("direction", benchmark, ("higher", "lower", "unknown"))
        if correction is not None:
            higher[rows.index] = {"higher": True, "lower": False}.get(correction, pd.NA)
            continue
        directions_said = rows["higher_is_better"].dropna()
        name = None if pd.isna(metric) else str(metric)
        direction_said = bool(directions_said.iloc[0]) if len(directions_said) else None
        better, source, against = direction_of(
            str(benchmark), name, said=direction_said, most=float(rows["value"].max())
        )
        if against:
            words = "higher" if better else "lower"
            text = f"{benchmark}: the file says {'lower' if better else 'higher'} {name} is better; {words} is"
            reading.add("direction", benchmark, words, source, CONTRADICTED, len(rows), "higher, lower", text)
            higher[rows.index] = better
        elif source == "name":
            higher[rows.index] = better
            text = f"{benchmark}: lower is better, by its name"
            reading.add("direction", benchmark, "lower", source, READ, len(rows), "higher, unknown", text)
        elif better is None:
            reading.add("direction", benchmark, "unknown", source, READ, len(rows), "higher, lower")
    return claims.assign(higher_is_better=higher)


# Of a task that the table does not have, in this order
_FALLBACK = ("primary_score", "main_score", *PREFERRED,
             "accuracy", "accuracy_avg", "mean", "qem", "em", "f1", "mc2", "pass@1", "pass_at_1",
             "top1", "top-1", "acc1", "acc@1", "resolved")  # fmt: skip
_FEWEST_ALIKE = 3  # scores by which a metric is a copy of another
_SCORE_WORDS = frozenset(
    ("acc", "accuracy", "match", "score", "f1", "pass", "em", "correct", "bleu", "rouge", "mcc", "win", "solved",
     "resolved", "qem")
)  # fmt: skip


def choose_metric(facts: TaskFacts, names: Sequence[str]) -> str | None:
    """The metric of a benchmark among `names`: the task table's, else the first of the usual ones, else the only one
    that is no length, number, time or rate, else the only one with a word for a score; None where that is unsure."""
    if facts.metric in names or not names:
        return facts.metric or None
    bare, _, filter_name = facts.metric.partition(",")
    for candidate in (bare, *_FALLBACK):
        matches = sorted(name for name in names if name.partition(",")[0] == candidate)
        if matches:  # one with the same filter before others
            return min(matches, key=lambda name: name.partition(",")[2] != filter_name)
    scores = sorted(name for name in names if not is_no_score(name)) or (list(names) if len(names) == 1 else [])
    for candidates in (scores, [name for name in scores if _SCORE_WORDS & set(parts(name.partition(",")[0]))]):
        if len({name.partition(",")[0] for name in candidates}) == 1:
            return candidates[0]
    return None


def distinct_metrics(rows: pd.DataFrame) -> list[str]:
    """The metrics of the rows of a benchmark, without those whose scores (three at least) an earlier one has."""
    names = list(rows["metric"].dropna().unique())
    key = [name for name in KEY if name != "metric" and name in rows]
    firsts = dict[object, str]()
    for metric in names if len(names) > 1 else ():
        of_metric = rows[rows["metric"] == metric]
        scores = frozenset(zip(*(of_metric[name].astype(str) for name in [*key, "value"]), strict=True))
        firsts.setdefault(scores if len(scores) >= _FEWEST_ALIKE else metric, str(metric))
    return list(firsts.values()) or names


def with_metrics(claims: pd.DataFrame, reading: Reading) -> pd.DataFrame:
    """The claims with one metric of the benchmarks of which the reader says it; of others with several metrics all
    stay, and the reading says which one counts.

    Raises InputError for a metric that the benchmark does not have.
    """
    names = claims[["benchmark", "metric"]].dropna().drop_duplicates()
    several = names.groupby("benchmark", sort=False)["metric"].agg(list)
    out = pd.Series(data=False, index=claims.index)
    for benchmark, own_rows in several.items():
        correction = reading.said("metric", str(benchmark))
        if correction is not None and correction not in (*own_rows, "left out", "unknown"):
            hint = did_you_mean(correction, own_rows, f"one of {listing(own_rows, 8)}, or left out.")
            raise InputError(f"--reading: metric of {benchmark}: its scores are under no {correction!r}.", hint)
        if correction is not None and correction != "unknown":
            out |= (claims["benchmark"] == benchmark) & ~claims["metric"].isin([correction])
        elif len(own_rows) > 1:
            facts = find_task_facts(str(benchmark)) or TaskFacts()
            chosen = choose_metric(facts, own_rows) or choose_metric(
                facts, distinct_metrics(claims[claims["benchmark"] == benchmark])
            )
            text = f"{benchmark}: which of {listing(own_rows, 4)} counts"
            kind, source = (READ, "known metrics") if chosen else (UNSURE, "unknown")
            reading.add(
                "metric", benchmark, chosen or "unknown", source, kind, len(own_rows), ", ".join(own_rows), text
            )
    return claims[~out]


# ----------------------------------------------------------------------------------------------------------------------
# Which names are one.

# What makes two scores scores of one thing
KEY = [name for name in SCORES.names[: SCORES.names.index("value")] if name not in ("iteration", "tokens_b")]
_SAME_VALUE = 1e-9
_EQUAL = ("the same scores", "scores that add up to 1")
_ALIKE = 0.9999  # correlation of two benchmarks that may be one
_FEWEST_EQUAL = 3  # scores that two names have in common, and all are equal


def normal_name(name: str) -> str:
    """A model's name in small letters, `org__name` as `org/name`, without slashes at its ends."""
    return name.replace("__", "/").strip("/ ").casefold().replace(" ", "-")


def one_model(names: Iterable[str], scores: Mapping[str, Mapping[object, float]]) -> dict[str, tuple[str, str]]:
    """Names that mean a model which has another name too: by name, the one to use and the source.

    Names that differ in case or in `__` for `/` only are one where no score contradicts it; names that differ in the
    owner too are, where three or more scores are the same and none differs. The name with an owner is used, else the
    first. `scores`: by name, values by key.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[normal_name(name).rpartition("/")[2]].append(name)
    merged: dict[str, tuple[str, str]] = {}
    for alike in groups.values():
        distinct: list[str] = []
        for name in sorted(alike, key=lambda each: ("/" not in normal_name(each), each != each.lower(), each)):
            match = next((candidate for candidate in distinct if _are_one(name, candidate, scores)), None)
            if match is None:
                distinct.append(name)
            else:
                same_spelling = normal_name(name) == normal_name(match)
                merged[name] = (match, "name" if same_spelling else "equal scores")
    return merged


def _are_one(name: str, second_name: str, scores: Mapping[str, Mapping[object, float]]) -> bool:
    mine, theirs = scores.get(name, {}), scores.get(second_name, {})
    common_keys = mine.keys() & theirs.keys()
    equal = all(abs(mine[key] - theirs[key]) <= _SAME_VALUE for key in common_keys)
    if normal_name(name) == normal_name(second_name):
        return equal
    owners = {normal_name(spelled).rpartition("/")[0] for spelled in (name, second_name)} - {""}
    return equal and len(common_keys) >= _FEWEST_EQUAL and (len(owners) < 2 or len(common_keys) >= _FEWEST_EQUAL)


def _say_alike(names: list[str], scores: Mapping[str, Mapping[object, float]], reading: Reading) -> None:
    """Say which names may be one model although nothing shows it: equal but for an owner, without a score in common."""
    by_name = {normal_name(name): name for name in names if "/" not in normal_name(name)}
    for name in names:
        bare = by_name.get(normal_name(name).rpartition("/")[2])
        if bare not in (None, name) and not scores[name].keys() & scores[str(bare)].keys():
            text = f"{bare} and {name} may be one model; they have no score in common"
            reading.add("model", str(bare), str(bare), "name", UNSURE, len(scores[str(bare)]), name, text)


def with_one_name(claims: pd.DataFrame, reading: Reading) -> pd.DataFrame:
    """The claims with one name a model, as `one_model` and the reader say."""
    names = list(dict.fromkeys(claims["model"]))
    correction = {name: name_said for name in names if (name_said := reading.said("model", name)) is not None}
    normal = Counter(normal_name(name).rpartition("/")[2] for name in names)
    several = [name for name in names if normal[normal_name(name).rpartition("/")[2]] > 1 and name not in correction]
    renamed = dict(correction)
    if several:
        key = ["checkpoint", "benchmark", "metric", "protocol", "num_fewshot", "seed", "run", "prompt", "split"]
        own_rows = claims[claims["model"].isin(several)]
        keys = list(own_rows[key].astype(object).where(own_rows[key].notna(), None).itertuples(index=False, name=None))
        scores: dict[str, dict[object, float]] = defaultdict(dict)
        for model, row_index, value in zip(own_rows["model"], keys, own_rows["value"], strict=True):
            scores[model][row_index] = value
        merged = one_model(several, scores)
        _say_alike([name for name in several if name not in merged], scores, reading)
        for name, (other_name, source) in merged.items():
            renamed[name] = other_name
            text = f"{name} and {other_name} are one model"
            reading.add("model", name, other_name, source, CONVERTED, len(scores[name]), name, text)
    reading.renamed["model"] = reading.renamed.get("model", {}) | renamed
    if not renamed:
        return claims
    claims = claims.assign(model=claims["model"].replace(renamed))
    moved = claims.index[claims.duplicated([*(name for name in KEY if name in claims), "value"])]
    return claims.drop(index=moved) if several else claims


def equal_benchmarks(claims: pd.DataFrame, reading: Reading) -> None:
    """Say which benchmarks have the same scores for four or more models, up to a factor and a constant; both stay."""
    rows = claims.drop_duplicates(["model", "checkpoint", "benchmark"])
    if rows["benchmark"].nunique() > MOST_BENCHMARKS:
        return
    matrix = rows.pivot(index=["model", "checkpoint"], columns="benchmark", values="value")
    values, alike = matrix.to_numpy(float), matrix.corr(min_periods=FEWEST_ROWS).abs().to_numpy()
    pairs = []
    for j, k in np.argwhere(np.tril(alike, -1) > _ALIKE):
        has_both = np.isfinite(values[:, j]) & np.isfinite(values[:, k])
        if (how := linear_in(values[has_both, k], values[has_both, j])) is not None:
            pairs.append((how, matrix.columns[k], matrix.columns[j], int(has_both.sum())))
    for how, first, second, number in sorted(pairs, key=lambda each: each[0] not in _EQUAL):
        text = f"{first} and {second} have {how}"
        reading.add("benchmark", second, second, "equal scores", UNSURE, number, first, text)


def linear_in(values: np.ndarray, other_values: np.ndarray) -> str | None:
    """How values (n,) follow from others (n,) within their rounding: equal, adding up to 1, or by a factor and a
    constant, as scores less chance do; None where they do not. Scores of 2 decimals are too coarse to tell the last."""
    if np.abs(values - other_values).max() < _SAME_VALUE:
        return _EQUAL[0]
    if np.abs(values + other_values - 1).max() < _SAME_VALUE:
        return _EQUAL[1]
    if len(values) <= FEWEST_ROWS or min(decimals(values), decimals(other_values)) <= 2:
        return None
    slope, constant = np.polyfit(other_values, values, 1)
    rounding = 0.51 * 10.0 ** -decimals(values) + abs(slope) * 0.51 * 10.0 ** -decimals(other_values)
    near = np.abs(values - slope * other_values - constant).max() <= rounding
    return f"scores that follow from each other (times {1 / slope:.3g})" if near and slope else None


# ----------------------------------------------------------------------------------------------------------------------
# All of it.


def _as_said(claims: pd.DataFrame, reading: Reading) -> pd.DataFrame:
    """The claims with the benchmarks' names that the reader says, without benchmarks and models that are left out."""
    out = pd.Series(data=False, index=claims.index)
    for column in ("model", "benchmark"):
        present = claims[column].unique()
        names = {name: text for name in present if (text := reading.given.peek(column, name)) is not None}
        if column == "benchmark":
            names = {name: text for name, text in names.items() if text not in ("group", *OF_TASKS)}
        reading.given.take(column, names)
        absent = [name for name, text in names.items() if text == LEFT_OUT]
        out |= claims[column].isin(absent)
        reading.renamed[column] = dict.fromkeys(absent, "") | {
            name: text for name, text in names.items() if column == "benchmark" and text not in (LEFT_OUT, name)
        }
        for name in sorted(reading.renamed[column]):
            reading.add(column, name, names[name], "reading")
    return claims[~out].assign(benchmark=claims["benchmark"].replace(reading.renamed["benchmark"]))


def read_claims(claims: pd.DataFrame, reading: Reading) -> pd.DataFrame:
    """The scores that claims mean."""
    claims = _as_said(claims, reading)
    claims = with_suites(claims, reading)
    claims = with_groups(claims, reading)
    claims = with_units(claims, reading)
    if claims.empty:
        return claims
    claims = with_metrics(without_aggregates(claims, reading), reading)
    claims = with_errors(claims, reading)
    claims = with_directions(claims, reading)
    claims = with_one_name(claims, reading)
    equal_benchmarks(claims, reading)
    return claims
