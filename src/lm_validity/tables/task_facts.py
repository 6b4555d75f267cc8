"""What lm-eval's own tasks are, from a table in the package: read without lm_eval.

`workflow/scripts/tasks_table.py` makes the table and says what is in it.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from lm_validity.tables.cell_text import is_no_score, names_average, parts
from lm_validity.tables.schema import KEY

TABLE = Path(__file__).parent / "lm_eval_tasks.tsv"
COLUMNS = ("task", "metric", "higher_is_better", "output_type", "choices", "category")
# Of several metrics of a task the main one: length-normalised accuracy where the task has it, as leaderboards do
PREFERRED = ("acc_norm", "acc", "exact_match")
_FEWEST_OF_GROUP = 3  # tasks whose names begin alike
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


@functools.lru_cache(maxsize=100_000)  # of a file with many answers each name comes often
def names_task(name: str) -> bool:
    """Whether a name is that of a task of the table, or of a group that its tasks' names begin with."""
    name = name.lower()
    return find_task_facts(name) is not None or (bool(name) and any(task.startswith(f"{name}_") for task in _table()))


def are_tasks(names: Iterable[str], others: Iterable[str]) -> bool:
    """Whether names are those of benchmarks rather than of models: most of them, averages aside, are known tasks, and
    none of the `others`, which cross them in a table, is one."""
    tested_names = [name for name in names if not names_average(name)]
    by_name = [_is_task_or_group(re.sub(r"/([a-z0-9_]+)$", _but_a_metric, name)) for name in tested_names]
    return 2 * sum(by_name) > len(by_name) and not any(map(_is_task_or_group, others))


def _but_a_metric(end: re.Match[str]) -> str:
    """Nothing for the end of a name that is a metric (`arc_easy/acc`), else that end."""
    return end[0] if metric_direction(end[1]) is None else ""


def _is_task_or_group(name: str) -> bool:
    """Whether a name as people write it (`HellaSwag`, `ARC-Easy`, `MMLU`) is, whole, that of a task or of a group of
    tasks. Names of models that begin as tasks do (`Minerva-1B`, `openai/...`) are none."""
    return _letters(name) in _tasks_and_groups()


@cache
def _tasks_and_groups() -> frozenset[str]:
    """The letters and digits of the table's tasks, and of what the names of several tasks begin with."""
    beginnings = Counter(task.split("_")[0] for task in _table())
    groups = {name for name, number in beginnings.items() if number >= _FEWEST_OF_GROUP and len(name) > 1}
    return frozenset(map(_letters, {*_table(), *groups}))


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9/*]", "", name.lower())


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
