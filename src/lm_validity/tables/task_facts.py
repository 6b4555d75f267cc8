"""What lm-eval's own tasks are, from a table in the package: read without lm_eval.

`workflow/scripts/tasks_table.py` makes the table and says what is in it.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from lm_validity.tables.cell_text import is_no_score, parts
from lm_validity.tables.schema import KEY

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
