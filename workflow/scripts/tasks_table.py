"""Write the table of lm-eval's tasks that `lm-validity report` guesses benchmarks from. Needs lm_eval; loads no data.

    python workflow/scripts/tasks_table.py        # rewrites src/lm_validity/tables/lm_eval_tasks.tsv

A row is a task, or a name that ends in `*`: all tasks that begin so, when they share every value. Columns: the main
metric under lm-eval's key, whether a higher value is better, the kind of output, the number of choices where it is the
same for every question, and the folder of lm-eval that groups the task with others. Empty: unknown, or not constant.
`metric:NAME` rows say which way a metric counts, where lm-eval's tasks say the same of it.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import jinja2
import lm_eval
from lm_eval.tasks import TaskManager

from lm_validity.config.sheets import OUTPUT_TYPES
from lm_validity.files import write_text
from lm_validity.tables.metrics import COLUMNS, METRIC, PREFERRED, TABLE, TaskFacts

# Numbers of choices that lm-eval takes from each document, so that they are not to be read from a task's file.
# Each is part of the data set's definition; of ARC's questions, one in a hundred has three or five.
CHOICES = {
    "arc_challenge": 4, "arc_easy": 4, "boolq": 2, "copa": 2, "hellaswag": 4, "logiqa": 4, "logiqa2": 4, "medmcqa": 4,
    "openbookqa": 4, "race": 4, "sciq": 4, "swag": 4, "winogrande": 2, "wsc273": 2, "xwinograd_en": 2,
}  # fmt: skip
# Names of lm-eval 0.3, and a task of today that has their values
OLD_NAMES = {"hendrycksTest-*": "mmlu_abstract_algebra", "siqa": "social_iqa"}
# Old metrics' names: lm-eval 0.3
OLD_METRICS = {"ppl": False, "likelihood_difference": False, "mc1": True, "mc2": True, "em": True}


def task_facts(entry, directions: dict[str, bool]) -> TaskFacts:
    """What the file of a task says of it."""
    config = entry.cfg or {}
    metrics = [one for one in config.get("metric_list") or [] if _is_name(one.get("metric"))]
    names = [one["metric"] for one in metrics]
    main = next((name for name in PREFERRED if name in names), names[0] if names else "")
    said = next((one.get("higher_is_better") for one in metrics if one["metric"] == main), None)
    direction = directions.get(main) if said is None else said
    filters = [one["name"] for one in config.get("filter_list") or []]
    kind = config.get("output_type") or ""
    return TaskFacts(
        metric=f"{main},{filters[0] if filters else 'none'}" if main else "",
        higher_is_better="" if direction is None else str(int(bool(direction))),
        output_type=kind if kind in OUTPUT_TYPES else "",
        choices=_choices(entry.name, config.get("doc_to_choice")) if kind == "multiple_choice" else "",
        category=_folder(entry),
    )


def _is_name(metric) -> bool:
    return isinstance(metric, str) and "/" not in metric  # a path: a function of the task's own


def _choices(task: str, choices) -> str:
    """How many choices each question has: of a list, or of a template that is a list; else "" """
    if task in CHOICES:
        return str(CHOICES[task])
    if isinstance(choices, list):
        return str(len(choices))
    if isinstance(choices, str) and choices.startswith("{{"):
        try:
            nodes = jinja2.Environment().parse(choices).body
        except jinja2.TemplateSyntaxError:
            return ""
        inner = nodes[0].nodes[0] if len(nodes) == 1 and len(getattr(nodes[0], "nodes", [])) == 1 else None
        if isinstance(inner, jinja2.nodes.List):
            return str(len(inner.items))
    return ""


def _folder(entry) -> str:
    """The folder under lm_eval/tasks that the task lies in."""
    tasks = Path(lm_eval.__file__).parent / "tasks"
    path = entry.yaml_path
    return path.relative_to(tasks).parts[0] if path is not None and path.is_relative_to(tasks) else ""


def folded(facts: dict[str, TaskFacts]) -> dict[str, TaskFacts]:
    """Rows of the table: the shortest beginnings up to a `_` or `-` whose tasks share all values, else single tasks."""
    by_start: dict[str, set[TaskFacts]] = defaultdict(set)
    members: Counter[str] = Counter()
    for name, fact in facts.items():
        for start in _starts(name):
            by_start[start].add(fact)
            members[start] += 1
    rows = {}
    for name, fact in facts.items():
        start = next((one for one in _starts(name) if len(by_start[one]) == 1 and members[one] > 1), None)
        rows[f"{start}*" if start else name] = fact
    return rows


def _starts(name: str) -> Iterable[str]:
    return [name[: i + 1] for i, letter in enumerate(name) if letter in "_-" and 0 < i < len(name) - 1]


def metric_directions(entries: Iterable) -> dict[str, bool]:
    """Which way a metric counts, where at least two tasks name it and all that do agree."""
    said = defaultdict(Counter)
    for entry in entries:
        for one in (entry.cfg or {}).get("metric_list") or []:
            if _is_name(one.get("metric")) and one.get("higher_is_better") is not None:
                said[one["metric"]][bool(one["higher_is_better"])] += 1
    agreed = {name: next(iter(votes)) for name, votes in said.items() if len(votes) == 1 and votes.total() > 1}
    return dict(sorted((agreed | OLD_METRICS).items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=TABLE)
    output = parser.parse_args().output
    entries = [one for one in TaskManager().task_index.values() if one.kind.name in ("TASK", "PY_TASK")]
    directions = metric_directions(entries)
    facts = {entry.name: task_facts(entry, directions) for entry in entries}
    rows = folded(facts) | {old: facts[new] for old, new in OLD_NAMES.items()}
    shared = Counter(fact.category for fact in facts.values())
    lines = ["\t".join(COLUMNS)]
    for name, direction in directions.items():
        lines.append("\t".join((f"{METRIC}{name}", "", str(int(direction)), "", "", "")))
    for name, fact in sorted(rows.items()):
        alone = shared[fact.category] < 2
        lines.append("\t".join((name, *(fact._replace(category="") if alone else fact))))
    write_text(output, "\n".join(lines) + "\n")
    print(f"{output}: {len(entries)} tasks of lm-eval {lm_eval.__version__} in {len(lines) - 1} rows")


if __name__ == "__main__":
    main()
