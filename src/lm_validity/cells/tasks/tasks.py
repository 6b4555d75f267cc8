"""Tasks of lm-eval, built from their records; groups of them as one benchmark; documents by address."""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import TypeAlias

import datasets
from datasets.fingerprint import get_temporary_cache_files_directory
from lm_eval.api.group import Group
from lm_eval.api.task import Task

from lm_validity.cells import lm_eval_internals as internals
from lm_validity.cells.tasks.finding import TaskRecord, build_task, record_digest
from lm_validity.errors import CellError, InputError, again, did_you_mean, first_line
from lm_validity.files import file_sha256
from lm_validity.run.inputs import states_of
from lm_validity.run.scoring import python_files

# ----------------------------------------------------------------------------------------------------------------------
# Groups and tags of lm-eval tasks as one benchmark: which tasks they name, and their documents in one order.
#
# lm-eval's own index and factory do the work, over the few files that a group needs instead of all 14,000.

Doc: TypeAlias = dict[str, object]  # lm-eval's name for a document: a row of a data set, by column

# of documents; and what lm-eval calls them in its methods and keys
KINDS = ("train", "validation", "test")
WORDS = {"train": "training", "validation": "validation", "test": "test"}


class TaskGroup:
    """lm-eval's group (or tag) `name`, built from the files that its record names: tasks of one output type, scored as
    one benchmark.

    members: task name -> task, in lm-eval's order.
    by_size: metric -> whether the group's score weighs the members by their documents; a metric that the group's
        file does not aggregate is weighed so.
    config: the parts of lm-eval's TaskConfig that are the group's: its name, and its splits' names.
    """

    def __init__(self, name: str, files: Sequence[Path]):
        registry: dict[str, internals.Entry] = {}
        for path in files:
            internals.TaskIndex.process_cfg(internals.load_yaml(path, resolve_func=False), path, registry)
        built = internals.TaskFactory().build(registry[name], registry=registry)
        self.by_size, tasks = dict[str, bool](), built  # a tag has no score of its own in lm-eval
        if isinstance(built, Group):
            self.by_size = {part.metric: part.weight_by_size for part in built.aggregate_metric_list or ()}
            tasks = built.get_all_tasks()
        self.name, self.members = name, {task.task_name: task for task in tasks}
        first = next(iter(self.members.values()))
        self.OUTPUT_TYPE: str = first.OUTPUT_TYPE
        splits = {f"{kind}_split": getattr(first.config, f"{kind}_split", None) for kind in WORDS.values()}
        self.config = SimpleNamespace(task=name, **splits)
        self.check_alike("test")
        if not has_documents(self, "test"):  # then the validation documents are scored
            self.check_alike("validation")

    def check_alike(self, kind: str) -> None:
        """Raise InputError where some members have documents of a kind (train, validation, test) and others have none.

        Else the group would take another split of those that have it than lm-eval does.
        """
        splits = {name: [split for split in KINDS if has_documents(task, split)] for name, task in self.members.items()}
        with_it = next((name for name, kinds in splits.items() if kind in kinds), None)
        without = next((name for name, kinds in splits.items() if kind not in kinds), None)
        if with_it is not None and without is not None:
            described = ", ".join(f"{name} has {' and '.join(splits[name]) or 'none'}" for name in (with_it, without))
            hint = "give each kind of task a row of its own in the benchmarks sheet."
            raise InputError(f"{self.name}: the tasks of the group differ in their splits ({described}).", hint)


def has_documents(task: "AnyTask", kind: str) -> bool:
    """Whether a task, or every task of a group, has documents of a kind; `check_alike` refuses a group of which only
    some have."""
    return all(getattr(member, f"has_{WORDS[kind]}_docs")() for member in tasks_in(task).values())


class GroupDocument(Doc):
    """A document of a group, equal to the task's own; `member` names the task, `row` is its place there."""

    __slots__ = ("member", "row")

    def __init__(self, document: Mapping[str, object], member: str, row: int):
        super().__init__(document)
        self.member, self.row = member, row


def task_of(task: Task | TaskGroup, document: Mapping[str, object]) -> Task:
    """The task that a document belongs to: of a group the member, else the task itself."""
    return task.members[member_of(document)] if isinstance(task, TaskGroup) else task


def member_of(document: Mapping[str, object]) -> str:
    """The task of a group's document."""
    assert isinstance(document, GroupDocument)
    return document.member


# ----------------------------------------------------------------------------------------------------------------------
# A loaded lm-eval task, or a group of them, and its documents by address.

FEWSHOT_SEED = 1234  # lm-eval's default
AnyTask: TypeAlias = Task | TaskGroup

datasets.disable_progress_bars()


@dataclass(frozen=True)
class Documents:
    """Documents of one task in a fixed order. Each has an address `<kind>:<row>`, its row in lm-eval's
    training_docs, validation_docs or test_docs; in a group `<task>/<kind>:<row>`."""

    task: str
    split: str
    addresses: tuple[str, ...]
    docs: tuple[Doc, ...]

    def __len__(self) -> int:
        return len(self.docs)


@contextlib.contextmanager
def faults_of(subject: str, doing: str, hint: str) -> Iterator[None]:
    """Inside the block whatever a task's code or template raises is an InputError: the subject cannot be `doing`."""
    try:
        yield
    except (InputError, CellError):
        raise
    except Exception as error:
        raise InputError(f"{subject} cannot be {doing} ({type(error).__name__}: {first_line(error)}).", hint) from error


@contextlib.contextmanager
def cell_fails() -> Iterator[None]:
    """Inside the block bad input is the fault of a benchmark, whose cells fail; the job's others go on."""
    try:
        yield
    except InputError as error:
        raise CellError(error.problem, error.hint) from error


def load_task(record: TaskRecord, num_fewshot: int = 0, *, mutual_information: bool = False) -> AnyTask:
    """Build the lm-eval task of a record from its YAML file and its local or cached data set; of a group, all of them.

    num_fewshot: examples before each question, from the documents that the task names for that.
    mutual_information: each choice is also scored without the question, which adds lm-eval's `acc_mutual_info`.
    Raises InputError where a file is gone or changed since the record was made, lm-eval cannot build the task, a
    column that it reads is missing, or its examples would be documents that are scored.
    """
    _check_unchanged(record)
    files = data_files(record)
    named = hashlib.sha256(json.dumps(states_of(files, small=0)).encode()).hexdigest()[:16]
    data = f"{datasets.config.HF_DATASETS_CACHE}/local/{named}" if files else None
    # whatever runs the task's code does it without what other tasks and processes kept, and in lm-eval's order
    alone = internals.fresh_code(mkdtemp(dir=get_temporary_cache_files_directory()), data)
    task = alone(_build)(record)
    for name, member_part in tasks_in(task).items():
        for documents in ("training_docs", "validation_docs", "test_docs"):
            setattr(member_part, documents, alone(getattr(member_part, documents)))
        _set_fewshot(name, member_part, num_fewshot)
        if mutual_information:
            internals.add_mutual_information(name, member_part)
        _check_columns(name, member_part)
    return task


def data_files(record: TaskRecord) -> list[Path]:
    """The local files that a task, or the tasks of a group, name as their data."""
    return [file for member in record.members or (record,) for file in internals.local_data(member.path)]


def _build(record: TaskRecord) -> AnyTask:
    if not record.members:
        return build_task(record.task, record.path)
    with internals.building(record.task):
        return TaskGroup(record.task, record.paths)


def tasks_in(task: AnyTask) -> dict[str, Task]:
    """The tasks of a group by name, or the one task."""
    return task.members if isinstance(task, TaskGroup) else {task.config.task: task}


def rows(task: AnyTask, kind: str) -> Sequence[Doc]:
    """lm-eval's documents of one kind (`train`, `validation`, `test`) that the task has; of a group: those of its tasks
    one after the other."""
    if isinstance(task, TaskGroup):
        parts = {name: rows(member, kind) for name, member in task.members.items()}
        return [GroupDocument(document, name, row) for name, part in parts.items() for row, document in enumerate(part)]
    documents = getattr(task, f"{WORDS[kind]}_docs")()
    return documents if hasattr(documents, "__getitem__") else list(documents)


def address_of(document: Doc, kind: str, number: int) -> str:
    """The address of a document, row `number` of `rows(task, kind)`."""
    return f"{document.member}/{kind}:{document.row}" if isinstance(document, GroupDocument) else f"{kind}:{number}"


def fetch_documents(task: AnyTask, split: str, addresses: Iterable[str]) -> Documents:
    """The documents at `addresses`, in that order; only the kinds of documents named there are touched."""
    addresses = tuple(addresses)
    numbers_by_name: dict[str, list[int]] = {}
    for address in addresses:
        name, _, row = address.rpartition(":")
        numbers_by_name.setdefault(name, []).append(int(row))
    documents: dict[str, Doc] = {}
    for name, numbers in numbers_by_name.items():
        member, _, kind = name.rpartition("/")
        member_task = tasks_in(task).get(member or task.config.task)
        if member_task is None:
            raise InputError(
                f"{task.config.task}: the group has no task {member!r} any more.", "its tasks changed; split it again."
            )
        source = rows(member_task, kind) if has_documents(member_task, kind) else ()
        if max(numbers) >= len(source):
            problem = f"{member_task.config.task}: there is no document {kind}:{max(numbers)}, only {len(source)}."
            raise InputError(problem, "the data set changed after it was split; split it again.")
        chosen = source.select(numbers) if hasattr(source, "select") else [source[row] for row in numbers]
        for number, doc in zip(numbers, chosen, strict=True):
            documents[f"{name}:{number}"] = GroupDocument(doc, member, number) if isinstance(task, TaskGroup) else doc
    return Documents(task.config.task, split, addresses, tuple(documents[address] for address in addresses))


def subject_of(task: AnyTask, doc: Doc) -> str | None:
    """The task within a group, else the document's own subject where it has one."""
    subject = member_of(doc) if isinstance(task, TaskGroup) else doc.get("subject")
    return None if subject is None else str(subject)


def fewshot_digest(task: AnyTask) -> str | None:
    """sha256 over the documents that examples are drawn from; None for a task that shows none."""
    pools = {name: member.sampler.df for name, member in tasks_in(task).items() if member.config.num_fewshot}
    return documents_digest(pools) if pools else None


def documents_digest(parts: Mapping[str, Sequence[Doc]]) -> str:
    """sha256 over documents by name, in their order."""
    digest = hashlib.sha256()
    for name, documents in parts.items():
        digest.update(f"{name} {len(documents)}\n".encode())
        for document in documents:
            digest.update(json.dumps(document, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _check_unchanged(record: TaskRecord) -> None:
    gone = [path for path in record.paths if not path.is_file()]
    recorded = {Path(path): digest for path, digest in record.imported}
    imports = [path for path, digest in recorded.items() if not path.is_file() or file_sha256(path) != digest]
    if gone:
        problem = f"{gone[0]} does not exist any more"
    elif imports:
        problem = f"{imports[0]}, which its code imports, changed after it was recorded"
    elif record_digest(record) != record.config_digest:
        subject = f"a file of the group's {len(record.paths)}" if record.members else str(record.path)
        problem = f"{subject} or its code changed after it was recorded"
    else:
        return
    hint = f"record it again: {again('prefetch-benchmark')} and the id of its row as --benchmark."
    raise InputError(f"{record.task}: {problem}.", hint)


def with_imports(record: TaskRecord, before: Collection[str]) -> TaskRecord:
    """The record with the user's files that its code imported from outside of its folders. before: the names of the
    modules that were imported before it was built."""
    known = {code.resolve() for path in record.paths for code in python_files(path.parent)}
    files = {str(getattr(sys.modules[name], "__file__", None)) for name in set(sys.modules) - set(before)}
    python = [file for file in files if file.endswith(".py") and internals.is_own_code(file)]
    own = {Path(file).resolve() for file in python} - known
    return replace(record, imported=tuple((os.path.relpath(file), file_sha256(file)) for file in sorted(own)))


def _set_fewshot(name: str, task: Task, count: int) -> None:
    """Pin the number of examples, under lm-eval's rules for where they come from. It falls back on the documents that
    are scored, and would then show a question its own answer."""
    if count:
        config, fewshot = task.config, task.fewshot_cfg
        if config.num_fewshot == 0:
            hint = "leave num_fewshot empty in the benchmarks sheet."
            raise InputError(f"{name}: its YAML file says num_fewshot: 0, which lm-eval does not override.", hint)
        scored = config.test_split or config.validation_split
        if fewshot.split is not None:
            has_own_pool = fewshot.split == scored and fewshot.split != config.test_split
        elif config.fewshot_config is not None and fewshot.samples is not None:
            has_own_pool = False
        else:
            has_own_pool = (config.training_split or config.validation_split or config.test_split) == scored
        if has_own_pool:
            hint = "give the task a fewshot_split, or leave num_fewshot empty."
            raise InputError(f"{name}: its examples would be the documents of {scored!r}, which are scored.", hint)
        pool = task.sampler.df
        if fewshot.fewshot_indices is not None:
            problem = f"{name}: its fewshot_config has fewshot_indices, which lm-eval reads and does not use."
            raise InputError(problem, "give these examples as `samples`, or select them in its `process_docs`.")
        if len(pool) < count:
            raise InputError(f"{name}: {count} examples asked for, it has {len(pool)}.", "lower num_fewshot.")
    task.set_config("num_fewshot", count)


def _check_columns(name: str, task: Task) -> None:
    # lm-eval takes a missing column's name for a template that renders to itself, and scores that
    features = getattr(task, "features", None)
    if features is None:
        return
    for key in ("doc_to_text", "doc_to_target", "doc_to_choice"):
        column = getattr(task.config, key, None)
        if isinstance(column, str) and column.isidentifier() and column not in features:
            hint = did_you_mean(column, features, f"they have {', '.join(features)}.")
            raise InputError(f"{name}: {key} reads the column {column!r}, which the documents do not have.", hint)
