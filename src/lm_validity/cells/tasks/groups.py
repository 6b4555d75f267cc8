"""Groups and tags of lm-eval tasks as one benchmark: which tasks they name, and their documents in one order.

lm-eval's own index and factory do the work, over the few files that a group needs instead of all 14,000.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

from lm_eval.api.group import Group
from lm_eval.api.task import Task

from lm_validity.cells.lm_eval_internals import GROUP_FIELD_NAMES, Entry, Kind, TaskFactory, TaskIndex, load_yaml
from lm_validity.cells.models.quiet import errors_only
from lm_validity.errors import InputError

Document: TypeAlias = dict[str, Any]  # a row of a data set, by column

_KINDS = ("training", "validation", "test")


@dataclass
class Expansion:
    """What a group's name stands for: the YAML files of groups on the way, tags, and tasks with overrides."""

    group_files: list[Path] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)
    tasks: list[tuple[Entry, dict[str, Any]]] = field(default_factory=list)


def read_index(folders: Iterable[Path]) -> dict[str, Entry]:
    """lm-eval's index of the tasks, groups and tags under `folders`; a later folder's win."""
    with errors_only("lm_eval"):
        return TaskIndex.build(list(folders))


def expand(name: str, index: Mapping[str, Entry]) -> Expansion:
    """The tasks that a group or tag names, in lm-eval's order. Raises KeyError for a name the index lacks."""
    found = Expansion()
    _expand(name, index, {}, found)
    return found


def _expand(name: str, index: Mapping[str, Entry], overrides: dict[str, Any], found: Expansion) -> None:
    entry = index[name]
    if entry.kind == Kind.TAG:
        found.tags.add(name)
        for task in sorted(entry.tags):
            found.tasks.append((index[task], overrides))
    elif entry.kind == Kind.GROUP:
        if entry.yaml_path not in found.group_files:
            found.group_files.append(entry.yaml_path)
        _expand_members(entry.cfg, index, overrides, found)
    else:
        found.tasks.append((entry, overrides))


def _expand_members(
    config: Mapping[str, Any], index: Mapping[str, Entry], overrides: dict[str, Any], found: Expansion
) -> None:
    own = {key: value for key, value in config.items() if key not in GROUP_FIELD_NAMES} | overrides
    for item in config.get("task") or ():
        if isinstance(item, str):
            _expand(item, index, own, found)
        elif "group" not in item:
            _expand(item["task"], index, {**own, **item}, found)
        elif item["group"] in index:
            _expand(item["group"], index, {**own, **{k: v for k, v in item.items() if k != "group"}}, found)
        else:  # a group within the group, named nowhere else
            _expand_members(item, index, own, found)


def build_group(name: str, files: Sequence[Path]) -> "TaskGroup":
    """lm-eval's group (or tag) `name`, built from the files that its record names."""
    registry: dict[str, Entry] = {}
    for path in files:
        TaskIndex.process_cfg(load_yaml(path, resolve_func=False), path, registry)
    built = TaskFactory().build(registry[name], registry=registry)
    if isinstance(built, Group):
        by_size = {one.metric: one.weight_by_size for one in built.aggregate_metric_list or ()}
        tasks = built.get_all_tasks()
    else:  # a tag has no score of its own in lm-eval
        by_size, tasks = {}, built
    group = TaskGroup(name, {task.task_name: task for task in tasks}, by_size)
    group.check_alike("test")
    if not group.has_test_docs():  # then the validation documents are scored
        group.check_alike("validation")
    return group


@dataclass(frozen=True)
class TaskGroup:
    """Several tasks of one output type, scored as one benchmark.

    members: task name -> task, in lm-eval's order.
    by_size: metric -> whether the group's score weighs the members by their documents; a metric that the group's
        file does not aggregate is weighed so.
    """

    name: str
    members: dict[str, Task]
    by_size: dict[str, bool]

    @property
    def OUTPUT_TYPE(self) -> str:
        """The one output type of all members, such as multiple_choice."""
        return next(iter(self.members.values())).OUTPUT_TYPE

    @property
    def config(self) -> SimpleNamespace:
        """The parts of lm-eval's TaskConfig that are the group's: its name, and its splits' names."""
        first = next(iter(self.members.values()))
        splits = {f"{kind}_split": getattr(first.config, f"{kind}_split", None) for kind in _KINDS}
        return SimpleNamespace(task=self.name, process_results=None, **splits)

    def check_alike(self, kind: str) -> None:
        """Raise InputError where some members have documents of a kind (train, validation, test) and others have none.

        Else the group would take another split of those that have it than lm-eval does.
        """
        splits = {name: _split_kinds(task) for name, task in self.members.items()}
        with_it = next((name for name, kinds in splits.items() if kind in kinds), None)
        without = next((name for name, kinds in splits.items() if kind not in kinds), None)
        if with_it is not None and without is not None:
            described = ", ".join(f"{name} has {' and '.join(splits[name]) or 'none'}" for name in (with_it, without))
            raise InputError(
                f"{self.name}: the tasks of the group differ in their splits ({described}).",
                "give each kind of task a row of its own in the benchmarks sheet.",
            )

    def has_training_docs(self) -> bool:
        """Whether every member has a train split; `check_alike` refuses a group where only some do."""
        return all(task.has_training_docs() for task in self.members.values())

    def has_validation_docs(self) -> bool:
        """Whether every member has a validation split."""
        return all(task.has_validation_docs() for task in self.members.values())

    def has_test_docs(self) -> bool:
        """Whether every member has a test split."""
        return all(task.has_test_docs() for task in self.members.values())


def _split_kinds(task: Task) -> list[str]:
    has = {"train": task.has_training_docs, "validation": task.has_validation_docs, "test": task.has_test_docs}
    return [kind for kind, has_docs in has.items() if has_docs()]


class GroupDocument(Document):
    """A document of a group, equal to the task's own; `member` names the task."""

    __slots__ = ("member",)

    def __init__(self, document: Mapping[str, Any], member: str):
        super().__init__(document)
        self.member: str = member


class GroupRows(Sequence[GroupDocument]):
    """The documents of a group's tasks one after the other."""

    def __init__(self, parts: Mapping[str, Sequence[Document]]):
        self._names, self._parts = list(parts), list(parts.values())
        self._ends = list(accumulate(len(part) for part in self._parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number: int) -> GroupDocument:  # type: ignore[override] # one row at a time
        part, row = self._place(number)
        return GroupDocument(self._parts[part][row], self._names[part])

    def __iter__(self) -> Iterator[GroupDocument]:
        for name, part in zip(self._names, self._parts, strict=True):
            yield from (GroupDocument(document, name) for document in part)

    def address(self, kind: str, number: int) -> str:
        """`<task>/<kind>:<row>`, the row being that within the task."""
        part, row = self._place(number)
        return f"{self._names[part]}/{kind}:{row}"

    def _place(self, number: int) -> tuple[int, int]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        part = bisect_right(self._ends, number)
        return part, number - (self._ends[part - 1] if part else 0)


def task_of(task: Task | TaskGroup, document: Mapping[str, Any]) -> Task:
    """The task that a document belongs to: of a group the member, else the task itself."""
    return task.members[member_of(document)] if isinstance(task, TaskGroup) else task


def member_of(document: Mapping[str, Any]) -> str:
    """The task of a group's document."""
    assert isinstance(document, GroupDocument)
    return document.member
