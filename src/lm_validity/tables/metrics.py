"""What metrics and tasks are: lm-eval's own tasks by a table in the package, read without lm_eval
(`workflow/scripts/tasks_table.py` makes it and says what is in it); which way scores count; which scores are fractions.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.tables.cell_text import is_no_score, is_unbounded, names_loss, parts
from lm_validity.tables.schema import KEY
from lm_validity.tables.standard_errors import CHOICES, PERPLEXITY, SHARES_OF_ITEMS
from lm_validity.words import listing, with_names

TABLE = Path(__file__).parent / "lm_eval_tasks.tsv"
COLUMNS = ("task", "metric", "higher_is_better", "output_type", "choices", "category")
# Of several metrics of a task the main one: length-normalised accuracy where the task has it, as leaderboards do
PREFERRED = ("acc_norm", "acc", "exact_match")
METRIC = "metric:"  # begins the rows that say which way a metric counts


class TaskFacts(NamedTuple):
    """A row of the table as texts; "" where unknown."""

    metric: str = ""
    higher_is_better: str = ""
    output_type: str = ""
    choices: str = ""
    category: str = ""


@cache
def _table() -> dict[str, TaskFacts]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()[1:]
    return {name: TaskFacts(*values) for name, *values in (line.split("\t") for line in lines)}


def task_names() -> Iterable[str]:
    """The names of the table: tasks, beginnings of tasks, and metrics after `METRIC`."""
    return _table()


def find_task_facts(task: str) -> TaskFacts | None:
    """The facts of a task by its name, else of the longest beginning of a name that the table has; None: unknown."""
    table = _table()
    if task in table:
        return table[task]
    starts = (task[:end] + "*" for end in range(len(task) - 1, 1, -1) if task[end - 1] in "_-")
    return next((table[start] for start in starts if start in table), None)


def metric_direction(metric: str) -> bool | None:
    """Whether a higher value of a metric (`name` or `name,filter`) is better, as tasks agree; None: unknown."""
    facts = _table().get(METRIC + metric.partition(",")[0])
    return None if facts is None else facts.higher_is_better == "1"


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


# ----------------------------------------------------------------------------------------------------------------------
# Whether higher or lower is better on a benchmark: from the sheet, the scores, else its metric, else asked for or
# assumed, and said.

ASSUMED = "Direction unknown, so higher counts as better"  # how that note begins


class Directions(NamedTuple):
    """facts: the sheet's rows of benchmarks with scores, with the direction that is known, else higher is better, and
    `direction_known`. notes: on directions that the sheet and the scores say otherwise, or that are assumed."""

    facts: pd.DataFrame
    notes: list[str]


def known_directions(sheet: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Whether higher is better by benchmark of the sheet, (n,) in its order; null where nothing says it.

    The sheet decides, else the scores, else the metric, of the sheet or of the scores, where tasks agree on it. A
    rolling log-likelihood metric (perplexity, bits per byte) is a loss. `rows`: scores, of one metric each benchmark.
    """
    in_table, of_scores = (_first_known(rows, column) for column in ("higher_is_better", "metric"))
    directions: list[bool | None] = []
    columns = (sheet[name] for name in ("benchmark", "metric", "higher_is_better", "output_type"))
    for name, metric, of_sheet, output_type in zip(*columns, strict=True):
        direction = in_table.get(name) if pd.isna(of_sheet) else of_sheet
        if direction is None:
            metric_used = of_scores.get(name) if pd.isna(metric) else metric
            direction = None if metric_used is None else metric_direction(str(metric_used))
        if direction is None and output_type == PERPLEXITY:
            direction = False
        directions.append(None if direction is None else bool(direction))
    return pd.Series(pd.array(directions, "boolean"), sheet.index)


def _first_known(rows: pd.DataFrame, column: str) -> dict[str, object]:
    """The first value of a column that is known, by benchmark."""
    is_known = rows[column].notna().to_numpy()
    first = rows["benchmark"].to_numpy(dtype=object)[is_known], rows[column].to_numpy(dtype=object)[is_known]
    return {benchmark: value for benchmark, value in zip(*(values[::-1] for values in first), strict=True)}


def settled_directions(rows: pd.DataFrame, sheet: pd.DataFrame, path: str | Path) -> Directions:
    """The direction of each benchmark with scores, and what is said of it.

    The sheet's direction wins over that of the scores. Raises InputError for benchmarks that are named like a loss and
    of which nothing says the direction (of others higher counts as better), and for one with both directions in the
    scores and none in the sheet.
    """
    directions, scored = known_directions(sheet, rows), set(rows["benchmark"])
    unknown = [name for name in sheet.loc[directions.isna(), "benchmark"] if name in scored]
    metrics = _first_known(rows, "metric")
    names = [name for name in sorted(unknown) if names_loss(str(metrics.get(name, name)))]
    if names:
        raise InputError(
            f"{path}: nothing says whether higher is better on {listing(names)}, named like a loss.",
            "fill in the column 'higher_is_better' of the benchmarks sheet: 0 where lower is better, else 1.",
        )
    notes = _conflicts(rows, sheet, path) + with_names({f"{ASSUMED}: {{}}.": unknown})
    is_scored = sheet["benchmark"].isin(scored)
    directions = directions[is_scored].reset_index(drop=True)
    facts = sheet[is_scored].reset_index(drop=True)
    facts = facts.assign(
        higher_is_better=directions.fillna(value=True).astype(bool), direction_known=directions.notna()
    )
    return Directions(facts, notes)


def _conflicts(rows: pd.DataFrame, sheet: pd.DataFrame, path: str | Path) -> list[str]:
    """Notes on benchmarks whose direction in the scores is not that of the sheet."""
    conflicts: dict[bool, list[str]] = {True: [], False: []}
    told_rows = rows.loc[rows["higher_is_better"].notna(), ["benchmark", "model", "higher_is_better"]]
    by_benchmark, all_higher = told_rows.groupby("benchmark").indices, told_rows["higher_is_better"].to_numpy(bool)
    for benchmark, direction in zip(sheet["benchmark"], sheet["higher_is_better"], strict=True):
        places = by_benchmark.get(benchmark, np.array([], dtype=int))
        higher = all_higher[places]
        if pd.isna(direction):
            if higher.any() and not higher.all():
                models = told_rows["model"].iloc[places]
                raise InputError(
                    f"{path}: {benchmark} has both directions in the scores: higher_is_better is true for "
                    f"{models[higher].iloc[0]}, false for {models[~higher].iloc[0]}.",
                    "fill in the column 'higher_is_better' of the benchmarks sheet.",
                )
        elif (higher != direction).any():
            conflicts[bool(direction)].append(f"{benchmark} ({(higher != direction).sum()} of {len(higher)} scores)")
    words = {True: "higher", False: "lower"}
    return [
        f"The benchmarks sheet says that {words[direction]} is better, the scores say {words[not direction]}: "
        f"{'; '.join(benchmarks)}. The sheet's direction is used. If it is wrong, the order of the models is reversed "
        "on that benchmark."
        for direction, benchmarks in conflicts.items()
        if benchmarks
    ]


# ----------------------------------------------------------------------------------------------------------------------
# Which scores are fractions, and which are said to be but cannot.

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
