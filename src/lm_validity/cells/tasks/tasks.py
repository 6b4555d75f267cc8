"""A loaded lm-eval task, or a group of them, and its documents by address."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from tempfile import mkdtemp
from typing import TypeAlias

import datasets
from datasets.fingerprint import get_temporary_cache_files_directory
from lm_eval.api.task import Task

from lm_validity.cells.lm_eval_internals import add_metric, has_metric, order_of_lm_eval, remember_templates
from lm_validity.cells.models.quiet import errors_only
from lm_validity.cells.tasks.groups import (
    Document,
    GroupDocument,
    GroupRows,
    TaskGroup,
    build_group,
    member_of,
    task_of,
)
from lm_validity.cells.tasks.records import (
    TaskRecord,
    build_task,
    cannot_build,
    config_digest,
    find_task,
    group_digest,
    root_of,
)
from lm_validity.errors import InputError, nearest
from lm_validity.run.task_files import draws_at_random

__all__ = ["KINDS", "Documents", "TaskGroup", "TaskRecord", "errors_only", "find_task", "load_task", "task_of"]

FEWSHOT_SEED = 1234  # lm-eval's default
KINDS = ("train", "validation", "test")
AnyTask: TypeAlias = Task | TaskGroup

datasets.disable_progress_bars()
remember_templates()


@dataclass(frozen=True)
class Documents:
    """Documents of one task in a fixed order. Each has an address `<kind>:<row>`, its row in lm-eval's
    training_docs, validation_docs or test_docs; in a group `<task>/<kind>:<row>`."""

    task: str
    split: str
    addresses: tuple[str, ...]
    docs: tuple[Document, ...]

    def __len__(self) -> int:
        return len(self.docs)

    def head(self, limit: int | None) -> "Documents":
        """The first `limit` documents (all of them for None)."""
        return Documents(self.task, self.split, self.addresses[:limit], self.docs[:limit])


def load_task(record: TaskRecord, num_fewshot: int = 0, *, mutual_information: bool = False) -> AnyTask:
    """Build the lm-eval task of a record from its YAML file and its local or cached data set; of a group, all of them.

    num_fewshot: examples before each question, from the documents that the task names for that.
    mutual_information: each choice is also scored without the question, which adds lm-eval's `acc_mutual_info`.
    Raises InputError where a file is gone or changed since the record was made, lm-eval cannot build the task, a
    column that it reads is missing, or its examples would be documents that are scored.
    """
    _check_unchanged(record)
    if any(draws_at_random(one.path) for one in record.members or (record,)):
        order = order_of_lm_eval(mkdtemp(dir=get_temporary_cache_files_directory()))
        task = order(_build)(record)
        for own in tasks_in(task).values():
            for documents in ("training_docs", "validation_docs", "test_docs"):
                setattr(own, documents, order(getattr(own, documents)))
    else:
        task = _build(record)
    for name, own in tasks_in(task).items():
        _set_fewshot(name, own, num_fewshot)
        if mutual_information:
            _add_mutual_information(name, own)
        _check_columns(name, own)
    return task


def _build(record: TaskRecord) -> AnyTask:
    if not record.members:
        return build_task(record.task, record.path)
    try:
        with errors_only("lm_eval"):
            return build_group(record.task, [*record.group_paths, *(member.path for member in record.members)])
    except InputError:
        raise
    except Exception as error:  # whatever a task's code, its template or the data library raises
        raise cannot_build(record.task, error) from error


def tasks_in(task: AnyTask) -> dict[str, Task]:
    """The tasks of a group by name, or the one task."""
    return task.members if isinstance(task, TaskGroup) else {task.config.task: task}


def rows(task: AnyTask, kind: str) -> Sequence[Document] | None:
    """lm-eval's documents of one kind (`train`, `validation`, `test`), or None where the task has none.

    Of a group: those of its tasks one after the other, or None where one of them has none.
    """
    if isinstance(task, TaskGroup):
        parts = {name: rows(member, kind) for name, member in task.members.items()}
        found = {name: part for name, part in parts.items() if part is not None}
        return GroupRows(found) if len(found) == len(parts) else None
    has, docs = {
        "train": (task.has_training_docs, task.training_docs),
        "validation": (task.has_validation_docs, task.validation_docs),
        "test": (task.has_test_docs, task.test_docs),
    }[kind]
    if not has():
        return None
    documents = docs()
    return documents if hasattr(documents, "__getitem__") else list(documents)


def address_of(documents: Sequence[Document], kind: str, number: int) -> str:
    """The address of a row of `rows(task, kind)`."""
    return documents.address(kind, number) if isinstance(documents, GroupRows) else f"{kind}:{number}"


def fetch_documents(task: AnyTask, split: str, addresses: Iterable[str]) -> Documents:
    """The documents at `addresses`, in that order; only the kinds of documents named there are touched."""
    addresses = tuple(addresses)
    if isinstance(task, TaskGroup):
        found = _fetch_from_members(task, split, addresses)
    else:
        found = _fetch(task, addresses)
    return Documents(task.config.task, split, addresses, tuple(found[address] for address in addresses))


def _fetch_from_members(group: TaskGroup, split: str, addresses: tuple[str, ...]) -> dict[str, Document]:
    wanted: dict[str, list[str]] = {}
    for address in addresses:
        member, _, own = address.rpartition("/")
        wanted.setdefault(member, []).append(own)
    found: dict[str, Document] = {}
    for name, addressed in wanted.items():
        if name not in group.members:
            raise InputError(
                f"{group.name}: the group has no task {name!r} any more.", "its tasks changed; split it again."
            )
        docs = fetch_documents(group.members[name], split, addressed).docs
        found |= {f"{name}/{a}": GroupDocument(doc, name) for a, doc in zip(addressed, docs, strict=True)}
    return found


def _fetch(task: Task, addresses: tuple[str, ...]) -> dict[str, Document]:
    wanted: dict[str, list[int]] = {}
    for address in addresses:
        kind, _, row = address.partition(":")
        wanted.setdefault(kind, []).append(int(row))
    found: dict[str, Document] = {}
    for kind, numbers in wanted.items():
        source = rows(task, kind)
        size = 0 if source is None else len(source)
        if source is None or max(numbers) >= size:
            raise InputError(
                f"{task.config.task}: there is no document {kind}:{max(numbers)}, only {size} of them.",
                "the data set changed after it was split; split it again.",
            )
        chosen = source.select(numbers) if hasattr(source, "select") else [source[row] for row in numbers]
        found.update((f"{kind}:{row}", doc) for row, doc in zip(numbers, chosen, strict=True))
    return found


def gold_choice(task: Task, doc: Document) -> int | None:
    """Index of a multiple-choice document's right choice, by lm-eval's rules; the first of several; None if
    unknown."""
    choices = task.doc_to_choice(doc)
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    if isinstance(gold, list):
        gold = gold[0] if gold else None
    if isinstance(gold, str):
        gold = choices.index(gold) if gold in choices else None
    return int(gold) if gold is not None and 0 <= int(gold) < len(choices) else None


def subject_of(task: AnyTask, doc: Document) -> str | None:
    """The task within a group, else the document's own subject where it has one."""
    subject = member_of(doc) if isinstance(task, TaskGroup) else doc.get("subject")
    return None if subject is None else str(subject)


def fewshot_digest(task: AnyTask) -> str | None:
    """sha256 over the documents that examples are drawn from; None for a task that shows none."""
    pools = {name: own.sampler.df for name, own in tasks_in(task).items() if own.config.num_fewshot}
    if not pools:
        return None
    digest = hashlib.sha256()
    for name, pool in pools.items():
        digest.update(f"{name} {len(pool)}\n".encode())
        for document in pool:
            digest.update(json.dumps(document, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _check_unchanged(record: TaskRecord) -> None:
    paths = [*record.group_paths, *(member.path for member in record.members)] if record.members else [record.path]
    for path in paths:
        if not path.is_file():
            raise InputError(f"{record.task}: {path} does not exist any more.", "run the prefetch step again.")
    found = group_digest(record) if record.members else config_digest(record.path, root_of(record.include_path))
    if found != record.config_digest:
        what = f"a file of the group's {len(paths)}" if record.members else str(record.path)
        what += " or its code"
        raise InputError(f"{record.task}: {what} changed after it was recorded.", "run the prefetch step again.")


def _set_fewshot(name: str, task: Task, count: int) -> None:
    """Pin the number of examples, under lm-eval's rules for where they come from."""
    if count:
        if task.config.num_fewshot == 0:
            raise InputError(
                f"{name}: its YAML file says num_fewshot: 0, which lm-eval does not override.",
                "leave num_fewshot empty in the benchmarks sheet.",
            )
        _check_fewshot_source(name, task)
        pool = task.sampler.df
        if len(pool) < count:
            raise InputError(f"{name}: {count} examples asked for, it has {len(pool)}.", "lower num_fewshot.")
    task.set_config("num_fewshot", count)


def _check_fewshot_source(name: str, task: Task) -> None:
    """lm-eval falls back on the documents that are scored, and would then show a question its own answer."""
    config, fewshot = task.config, task.fewshot_cfg
    scored = config.test_split or config.validation_split
    if fewshot.split is not None:
        own = fewshot.split == scored and fewshot.split != config.test_split
    elif config.fewshot_config is not None and fewshot.samples is not None:
        own = False
    else:
        own = (config.training_split or config.validation_split or config.test_split) == scored
    if own:
        raise InputError(
            f"{name}: its examples would be the documents of {scored!r}, which are scored.",
            "give the task a fewshot_split, or leave num_fewshot empty.",
        )


def _add_mutual_information(name: str, task: Task) -> None:
    metric = "acc_mutual_info"
    if has_metric(task, metric):
        return
    if task.OUTPUT_TYPE != "multiple_choice" or callable(task.config.process_results):
        raise InputError(
            f"{name}: lm-eval cannot add {metric} to it: it has no choices, or scores its answers itself.",
            "leave mutual_information empty in the benchmarks sheet.",
        )
    add_metric(task, metric)


def _check_columns(name: str, task: Task) -> None:
    # lm-eval takes a missing column's name for a template that renders to itself, and scores that
    features = getattr(task, "features", None)
    if features is None:
        return
    for key in ("doc_to_text", "doc_to_target", "doc_to_choice"):
        column = getattr(task.config, key, None)
        if isinstance(column, str) and column.isidentifier() and column not in features:
            similar = nearest(column, features)
            raise InputError(
                f"{name}: {key} reads the column {column!r}, which the documents do not have.",
                f"they have {', '.join(features)}" + (f"; did you mean {similar!r}?" if similar else "."),
            )
