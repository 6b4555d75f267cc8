"""Tasks of lm-eval: found, recorded and built; groups of them as one benchmark."""

import contextlib
import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import datasets
from datasets.fingerprint import get_temporary_cache_files_directory
from lm_eval.api.group import Group
from lm_eval.api.registry import DEFAULT_METRIC_REGISTRY, is_higher_better
from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.tasks import TaskManager
from pydantic import TypeAdapter

from lm_validity.cells.lm_eval_internals import (
    GROUP_FIELD_NAMES,
    Entry,
    Kind,
    TaskFactory,
    TaskIndex,
    add_metric,
    cause_of,
    fresh_code,
    has_metric,
    hint_of,
    is_own_code,
    load_yaml,
    local_data,
    order_of_lm_eval,
    remember_templates,
)
from lm_validity.cells.models.provenance import errors_only
from lm_validity.cells.tasks.declarations import PACKAGE, Declaration, declarations_in, folders_naming
from lm_validity.config.sheets import OUTPUT_TYPES
from lm_validity.errors import InputError, again, first_line, nearest
from lm_validity.files import Document, file_sha256
from lm_validity.run.inputs import states_of
from lm_validity.run.scoring import code_file, draws_at_random, python_files

# ----------------------------------------------------------------------------------------------------------------------
# Groups and tags of lm-eval tasks as one benchmark: which tasks they name, and their documents in one order.
#
# lm-eval's own index and factory do the work, over the few files that a group needs instead of all 14,000.

Doc: TypeAlias = dict[str, object]  # lm-eval's name for a document: a row of a data set, by column

# of documents; and what lm-eval calls them in its methods and keys
KINDS = ("train", "validation", "test")
WORDS = {"train": "training", "validation": "validation", "test": "test"}


@dataclass
class Expansion:
    """What a group's name stands for: the YAML files of groups on the way, tags, and tasks with overrides."""

    group_files: list[Path] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)
    tasks: list[tuple[Entry, Document]] = field(default_factory=list)


def expand(name: str, index: Mapping[str, Entry], overrides: Document, expansion: Expansion) -> None:
    """Add the tasks that a group or tag names, in lm-eval's order. Raises KeyError for a name the index lacks."""
    entry = index[name]
    if entry.kind == Kind.TAG:
        expansion.tags.add(name)
        expansion.tasks += [(index[task], overrides) for task in sorted(entry.tags)]
    elif entry.kind == Kind.GROUP:
        if entry.yaml_path not in expansion.group_files:
            expansion.group_files.append(entry.yaml_path)
        _expand_members(entry.cfg, index, overrides, expansion)
    else:
        expansion.tasks.append((entry, overrides))


def _expand_members(config: Document, index: Mapping[str, Entry], overrides: Document, expansion: Expansion) -> None:
    settings = {key: value for key, value in config.items() if key not in GROUP_FIELD_NAMES} | overrides
    for item in config.get("task") or ():
        if isinstance(item, str):
            expand(item, index, settings, expansion)
        elif "group" not in item and item["task"] not in index and len(item) > 1:
            raise KeyError(item["task"], "which its own file defines; lm-validity wants a file for each task")
        elif "group" not in item:
            expand(item["task"], index, settings | item, expansion)
        elif item["group"] in index:
            expand(
                item["group"],
                index,
                settings | {key: value for key, value in item.items() if key != "group"},
                expansion,
            )
        else:  # a group within the group, named nowhere else
            _expand_members(item, index, settings, expansion)


def build_group(name: str, files: Sequence[Path]) -> "TaskGroup":
    """lm-eval's group (or tag) `name`, built from the files that its record names."""
    registry: dict[str, Entry] = {}
    for path in files:
        TaskIndex.process_cfg(load_yaml(path, resolve_func=False), path, registry)
    built = TaskFactory().build(registry[name], registry=registry)
    if isinstance(built, Group):
        by_size = {aggregate.metric: aggregate.weight_by_size for aggregate in built.aggregate_metric_list or ()}
        tasks = built.get_all_tasks()
    else:  # a tag has no score of its own in lm-eval
        by_size, tasks = {}, built
    group = TaskGroup(name, {task.task_name: task for task in tasks}, by_size)
    group.check_alike("test")
    if not has_documents(group, "test"):  # then the validation documents are scored
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
        result: str = next(iter(self.members.values())).OUTPUT_TYPE
        return result

    @property
    def config(self) -> SimpleNamespace:
        """The parts of lm-eval's TaskConfig that are the group's: its name, and its splits' names."""
        first = next(iter(self.members.values()))
        splits = {f"{kind}_split": getattr(first.config, f"{kind}_split", None) for kind in WORDS.values()}
        return SimpleNamespace(task=self.name, **splits)

    def check_alike(self, kind: str) -> None:
        """Raise InputError where some members have documents of a kind (train, validation, test) and others have none.

        Else the group would take another split of those that have it than lm-eval does.
        """
        splits = {name: [split for split in KINDS if has_documents(task, split)] for name, task in self.members.items()}
        with_it = next((name for name, kinds in splits.items() if kind in kinds), None)
        without = next((name for name, kinds in splits.items() if kind not in kinds), None)
        if with_it is not None and without is not None:
            described = ", ".join(f"{name} has {' and '.join(splits[name]) or 'none'}" for name in (with_it, without))
            raise InputError(
                f"{self.name}: the tasks of the group differ in their splits ({described}).",
                "give each kind of task a row of its own in the benchmarks sheet.",
            )


def has_documents(task: "AnyTask", kind: str) -> bool:
    """Whether a task, or every task of a group, has documents of a kind; `check_alike` refuses a group of which only
    some have."""
    return all(getattr(member, f"has_{WORDS[kind]}_docs")() for member in tasks_in(task).values())


class GroupDocument(Doc):
    """A document of a group, equal to the task's own; `member` names the task."""

    __slots__ = ("member",)

    def __init__(self, document: Mapping[str, object], member: str):
        super().__init__(document)
        self.member: str = member


class GroupRows(Sequence[GroupDocument]):
    """The documents of a group's tasks one after the other."""

    def __init__(self, parts: Mapping[str, Sequence[Doc]]):
        self._parts = parts
        self._places = [(name, row) for name, part in parts.items() for row in range(len(part))]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> GroupDocument:  # type: ignore[override] # one row at a time
        name, row = self._places[number]
        return GroupDocument(self._parts[name][row], name)

    def __iter__(self) -> Iterator[GroupDocument]:
        for name, part in self._parts.items():
            yield from (GroupDocument(document, name) for document in part)

    def address(self, kind: str, number: int) -> str:
        """`<task>/<kind>:<row>`, the row being that within the task."""
        name, row = self._places[number]
        return f"{name}/{kind}:{row}"


def task_of(task: Task | TaskGroup, document: Mapping[str, object]) -> Task:
    """The task that a document belongs to: of a group the member, else the task itself."""
    return task.members[member_of(document)] if isinstance(task, TaskGroup) else task


def member_of(document: Mapping[str, object]) -> str:
    """The task of a group's document."""
    assert isinstance(document, GroupDocument)
    return document.member


# ----------------------------------------------------------------------------------------------------------------------
# lm-eval tasks and groups of tasks by name: found once where there is a network, remembered in a record.
#
# lm-eval's own index reads 14,000 YAML files with a YAML parser (15 s). Here a text scan finds the file that
# declares the task, or the folder that holds the group; a `TaskRecord` remembers them, and a job loads those alone.

log = logging.getLogger(__name__)

OTHER_SUFFIX = "lm-eval reads tasks from files that end in .yaml"
_NOT_SUPPORTED = {
    "doc_to_image": "choose a task about text alone.",
    "doc_to_audio": "choose a task about text alone.",
    "unsafe_code": "it runs what a model writes as a program: score such answers with lm-eval, and import its results.",
}
# what says where the data lies, not what the task is: the data themselves are hashed document by document
_NOT_DIGESTED = ("dataset_kwargs", "metadata", "tag", "task_alias")


@dataclass(frozen=True)
class TaskRecord:
    """Everything a job needs to load one lm-eval task or group without searching for it. `to_json` is portable.

    include_path: the configured folder of local tasks as it was given; null for a task shipped with lm-eval.
    file: the task's YAML relative to `include_path`, or to the lm_eval package; of a tag: its name.
    metrics: lm-eval's keys `name,filter` in the task's order; of a group: those that all its tasks have.
    higher_is_better: of each metric; null where neither the task nor lm-eval says, which the sheet then decides.
    config_digest: sha256 of the resolved configuration and its code, without the place of data and files.
    imported: (path, sha256) of the user's files that its code imports from elsewhere.
    members: of a group, the records of its tasks. group_files: the YAML files of groups, as (include_path, file).
    """

    task: str
    file: str
    include_path: str | None
    output_type: str
    metrics: tuple[str, ...]
    higher_is_better: Mapping[str, bool | None]
    config_digest: str
    version: str | None
    imported: tuple[tuple[str, str], ...] = ()
    members: tuple["TaskRecord", ...] = ()
    group_files: tuple[tuple[str | None, str], ...] = ()

    @property
    def path(self) -> Path:
        """The task's YAML file on this machine."""
        return root_of(self.include_path) / self.file

    @property
    def paths(self) -> list[Path]:
        """The YAML files that it is built from: the task's; of a group: those of its groups, and of its tasks."""
        groups = [root_of(include_path) / file for include_path, file in self.group_files]
        return [*groups, *(member.path for member in self.members)] or [self.path]

    def to_json(self) -> dict[str, object]:
        """The record as JSON stores it; `from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> "TaskRecord":
        """The record in `value`, which may hold other keys beside it."""
        return TypeAdapter(cls).validate_python(value)


def find_task(task: str, include_path: str | Path | None = None) -> TaskRecord:
    """Find an lm-eval task, group or tag by name: in `include_path` first, else among those shipped with lm-eval.

    Reads text files only (0.3 s), except for tasks written in Python, which must be built to be known.
    Raises InputError for an unknown name (with the nearest one), an unsupported output type, a group whose tasks
    differ in output type or have no metric in common.
    """
    roots: list[tuple[Path, str, str | None]] = [(PACKAGE, "tasks", None)]
    if include_path is not None:
        if not Path(include_path).is_dir():
            raise InputError(f"{include_path}: no such folder of lm-eval tasks.", "check include_path.")
        roots.insert(0, (Path(include_path), ".", str(include_path)))
    names: list[str] = []
    for root, folder, is_given in roots:
        declarations = declarations_in(root / folder)
        if is_given is not None:
            _check_tags(task, declarations)
        names += (name for _, tasks, groups in declarations for name in (*tasks, *groups))
        files = [path for path, tasks, _ in declarations if task in tasks]
        if files:
            if len(files) > 1 and is_given is not None:
                log.warning("%s: %s declares it too; %s is taken, as by lm-eval", task, files[1], files[0])
            return _record(task, files[0], {}, is_given)
        expansion = _expansion(task, root / folder, include_path)
        if expansion is not None:
            return _expanded_record(task, expansion, include_path)
    if include_path is not None:
        _check_suffixes(task, Path(include_path))
    similar = nearest(task, names)
    raise InputError(
        f"{task}: no lm-eval task has this name.",
        (f"did you mean {similar!r}? " if similar else "")
        + "`lm-eval ls tasks` lists them; include_path is the folder of your own tasks.",
    )


def _check_tags(name: str, declarations: Sequence[Declaration]) -> None:
    """Raises InputError where a task's own file names its group, as it did before lm-eval had tags: it builds none."""
    for path, tasks, groups in declarations:
        if name in tasks or (groups and name in path.read_text("utf-8", errors="replace")):
            config = read_task_file(path)
            if "group" in config and isinstance(config.get("task"), str) and name in (config["task"], *groups):
                raise InputError(f"{path}: it declares a task and its group in one.", "write `tag:` for `group:`.")


def _check_suffixes(task: str, folder: Path) -> None:
    """Raises InputError where a file that lm-eval does not look at, of another suffix, declares the task."""
    declares = re.compile(rf"\btask[\"']?\s*:\s*[\"']?{re.escape(task)}(?![\w-])")
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".yml", ".json")):
        if path.stat().st_size < 1_000_000 and declares.search(path.read_text("utf-8", errors="replace")):
            raise InputError(f"{task}: {path}: {OTHER_SUFFIX}.", f"rename it to {path.stem}.yaml.")


def config_digest(path: Path, root: Path) -> str:
    """sha256 of a task's resolved YAML and its code, wherever `root`, the folder that it belongs to, may lie.

    Of a shipped task, its code is the files that the YAML names. Of a local one, it is every Python file in and under
    the folders of the YAML and of those files, since they may import each other; a file outside `root` that an included
    YAML names counts by its content.
    """
    config = load_yaml(path, resolve_func=False)
    for key in _NOT_DIGESTED:
        config.pop(key, None)
    if Path(str(config.get("dataset_path"))).exists():
        config["dataset_path"] = "local"
    resolved = root.resolve()
    references: set[str] = set()
    text = json.dumps(_portable(config, resolved, references), sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode())
    places = map(Path, sorted(references))
    named = [code for file in places if (code := code_file(file.parent, file.name)).is_file()]
    for code in named:
        digest.update(code.read_bytes())
    folders = {path.resolve().parent, *(code.parent for code in named)} if root != PACKAGE else ()
    imported = {code for folder in folders for code in python_files(folder)} - {*named}
    for code in sorted(imported, key=lambda code: code.relative_to(resolved).as_posix()):
        digest.update(f"\n{code.relative_to(resolved).as_posix()} {file_sha256(code)}".encode())
    return digest.hexdigest()


def _portable(value: object, root: Path, references: set[str]) -> object:
    """A resolved configuration without the place of its files. lm-eval turns `!function` into an absolute path: one
    under `root` becomes relative and is added to `references`, another its file's sha256 with the function's name."""
    if isinstance(value, dict):
        return {key: _portable(entry, root, references) for key, entry in value.items()}
    if isinstance(value, list):
        return [_portable(entry, root, references) for entry in value]
    if not isinstance(value, str) or not value.startswith("/"):
        return value
    if value.startswith(f"{root}/"):
        references.add(value)
        return value.removeprefix(f"{root}/")
    path = Path(value)
    code = code_file(path.parent, path.name)
    try:
        if code.is_file():
            return f"{file_sha256(code)}/{path.name}"
        # a module of the environment, of which lm-eval's path names no file
        return path.name if path.parent.is_dir() and re.fullmatch(r"\w+(\.\w+)+", path.name) else value
    except OSError:  # a text that begins with a slash, and is too long for a path
        return value


def record_digest(record: TaskRecord) -> str:
    """`config_digest` of the task as it is on disk now; of a group: sha256 over those of its files and its tasks."""
    if not record.members:
        return config_digest(record.path, root_of(record.include_path))
    files = [config_digest(root_of(root_name) / file, root_of(root_name)) for root_name, file in record.group_files]
    return hashlib.sha256("\n".join([*files, *map(record_digest, record.members)]).encode()).hexdigest()


def root_of(include_path: str | None) -> Path:
    """The folder that a record's files are relative to."""
    return PACKAGE if include_path is None else Path(include_path)


def build_task(name: str, path: Path) -> Task:
    """lm-eval's task of a YAML file; its data set is loaded. Raises InputError where lm-eval cannot."""
    with _building(name, path):
        (task,) = TaskManager(include_path=None, include_defaults=False).load([str(path)])["tasks"].values()
    return task


@contextlib.contextmanager
def _building(name: str, path: Path | None = None) -> Iterator[None]:
    try:
        with errors_only("lm_eval"):  # it remarks on every default that a task's file leaves to it
            yield
    except InputError:
        raise
    except Exception as error:  # whatever a task's code, its template or the data library raises
        raise InputError(f"{name}: lm-eval cannot build the task ({cause_of(error, path)}).", hint_of(error)) from error


def _expansion(name: str, folder: Path, include_path: str | Path | None) -> Expansion | None:
    """The tasks of a group or tag declared under `folder`; None where nothing there is called so."""
    near = folders_naming([name], folder)
    if not near:
        return None
    if folder != PACKAGE / "tasks":
        near = [folder]
    # those folders are enough for most groups; others name tasks, or share tags with tasks, from anywhere
    everywhere = [PACKAGE / "tasks", *([] if include_path is None else [Path(include_path)])]
    missing: tuple[str, ...] = ()
    for places in (near, everywhere):
        with errors_only("lm_eval"):
            index = TaskIndex.build(list(places))  # a later folder's win
        if name not in index:
            return None
        expansion = Expansion()
        try:
            expand(name, index, {}, expansion)
        except KeyError as error:
            missing = error.args
            continue
        except RecursionError:
            raise InputError(
                f"{name}: the group is one of its own tasks, by its name or that of a group within it.",
                "correct the group's YAML file.",
            ) from None
        if places is everywhere or set(folders_naming(expansion.tags, folder)) <= set(near):
            return expansion
    task, *reason = missing
    hint = f"write {task!r} into a YAML file of its own." if reason else "correct the group's YAML file."
    raise InputError(f"{name}: the group names {task!r}, {''.join(reason) or 'which is not a task'}.", hint)


def _record(task: str, path: Path, overrides: Mapping[str, object], include_path: str | None) -> TaskRecord:
    root = root_of(include_path)
    config = {**read_task_file(path), **overrides}
    _check_keys(path, config)
    if "class" in config:
        built = build_task(task, path)
        output_type, directions = built.OUTPUT_TYPE, built.higher_is_better()
        if output_type == "multiple_choice" and not isinstance(built, ConfigurableTask):
            raise InputError(
                f"{task}: its class does not say which choices a document has, and which is right.",
                "derive it from lm-eval's ConfigurableTask, or write the task in YAML with functions.",
            )
    else:
        output_type, directions = config.get("output_type", "generate_until"), _directions(config)
    if output_type not in OUTPUT_TYPES:
        raise InputError(
            f"{task}: its output type {output_type!r} is not supported.",
            f"choose a task of type {', '.join(OUTPUT_TYPES)}.",
        )
    for key, reason in _NOT_SUPPORTED.items():
        if config.get(key):
            raise InputError(f"{task}: tasks with {key} are not supported.", reason)
    if (config.get("dataset_kwargs") or {}).get("streaming"):
        raise InputError(
            f"{task}: its data are read as a stream (dataset_kwargs: streaming), whose documents have no numbers.",
            "take `streaming` out of dataset_kwargs.",
        )
    filters = [entry["name"] for entry in config.get("filter_list") or [{"name": "none"}]]
    if repeated := sorted({name for name in directions if _metric_names(config).count(name) > 1}):
        log.warning("%s: metric_list has %s twice; the last counts, as in lm-eval", task, " and ".join(repeated))
    keys = {f"{metric},{name}": better for name in filters for metric, better in directions.items()}
    return TaskRecord(
        task=task,
        file=path.relative_to(root).as_posix(),
        include_path=include_path,
        output_type=output_type,
        metrics=tuple(keys),
        higher_is_better=keys,
        config_digest=config_digest(path, root),
        version=_version(config),
    )


def _check_keys(path: Path, config: Document) -> None:
    for key, word in (("metric_list", "metric"), ("filter_list", "name")):
        entries = config.get(key) or []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) and word in entry for entry in entries):
            raise InputError(f"{path}: {key} is no list of entries with a {word}.", f"write `- {word}: ...` for each.")
    if not any(config.get(key) for key in ("class", "dataset_path", "custom_dataset")):
        raise InputError(
            f"{path}: it names no data.", "give dataset_path: a data set of the hub, or json with data_files."
        )


def _expanded_record(name: str, expansion: Expansion, include_path: str | Path | None) -> TaskRecord:
    """The record of a group, with the metrics that all its tasks have; of one task that the text scan did not see."""
    members = []
    for entry, overrides in expansion.tasks:
        root_name, _ = _place(entry.yaml_path, include_path)
        members.append(_record(entry.name, entry.yaml_path, overrides, root_name))
    if not expansion.group_files and not expansion.tags:
        return members[0]
    types = {member.output_type: member.task for member in members}
    if len(types) != 1:
        listed = ", ".join(f"{task} {output_type}" for output_type, task in types.items())
        raise InputError(
            f"{name}: its tasks differ in output type ({listed or 'it has none'}).", "name its tasks one by one."
        )
    better: dict[str, bool | None] = {}  # a task that does not say goes with those that do, which must not differ
    for key in members[0].metrics:
        stated = {member.higher_is_better.get(key) for member in members} - {None}
        if all(key in member.metrics for member in members) and len(stated) < 2:
            better[key] = stated.pop() if stated else None
    if not better:
        raise InputError(f"{name}: its tasks have no metric in common.", "name its tasks one by one.")
    files = tuple(_place(path, include_path) for path in expansion.group_files)
    record = TaskRecord(
        task=name,
        file=files[0][1] if files else name,
        include_path=files[0][0] if files else members[0].include_path,
        output_type=members[0].output_type,
        metrics=tuple(better),
        higher_is_better=better,
        config_digest="",
        version=_version(load_yaml(expansion.group_files[0], resolve_func=False)) if expansion.group_files else None,
        members=tuple(members),
        group_files=files,
    )
    return replace(record, config_digest=record_digest(record))


class _FilePlace(NamedTuple):
    """A task file: `include_path` as it was given, None for lm-eval's own, and the file in it."""

    include_path: str | None
    file: str


def _place(path: Path, include_path: str | Path | None) -> _FilePlace:
    """(include_path as it was given, file in it), or (None, file in the lm_eval package)."""
    if include_path is not None and path.is_relative_to(include_path):
        return _FilePlace(str(include_path), path.relative_to(include_path).as_posix())
    return _FilePlace(None, path.relative_to(PACKAGE).as_posix())


def _version(config: Mapping[str, object]) -> str | None:
    metadata = config.get("metadata")
    return str(metadata["version"]) if isinstance(metadata, dict) and "version" in metadata else None


def _directions(config: Document) -> dict[str, bool | None]:
    """Metric names of a YAML task and whether higher is better, by lm-eval's rules for what is left out; None where
    lm-eval does not know the metric."""
    entries = config.get("metric_list")
    if entries is None:
        entries = [{"metric": name} for name in DEFAULT_METRIC_REGISTRY[config.get("output_type", "generate_until")]]
    directions = {}
    for entry, name in zip(entries, _metric_names({"metric_list": entries}), strict=True):
        better = entry.get("higher_is_better")
        if better is None:
            with errors_only("lm_eval"):
                better = is_higher_better(name)
        directions[name] = None if better is None else bool(better)
    return directions


def _metric_names(config: Document) -> list[str]:
    """The metrics that a YAML task lists, a `!function` by the name of its function."""
    named = [str(entry["metric"]) for entry in config.get("metric_list") or ()]
    return [name.rpartition(".")[2] if "/" in name else name for name in named]


def read_task_file(path: Path) -> Document:
    """A task's YAML file with what it includes, its functions unread. Raises InputError where it cannot be read."""
    try:
        result: Document = load_yaml(path, resolve_func=False)
        return result
    except Exception as error:  # whatever the parser and what it includes raise
        raise InputError(f"{path}: lm-eval cannot read it ({first_line(error)}).", "correct the YAML file.") from error


# ----------------------------------------------------------------------------------------------------------------------
# A loaded lm-eval task, or a group of them, and its documents by address.

FEWSHOT_SEED = 1234  # lm-eval's default
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
    docs: tuple[Doc, ...]

    def __len__(self) -> int:
        return len(self.docs)


def load_task(record: TaskRecord, num_fewshot: int = 0, *, mutual_information: bool = False) -> AnyTask:
    """Build the lm-eval task of a record from its YAML file and its local or cached data set; of a group, all of them.

    num_fewshot: examples before each question, from the documents that the task names for that.
    mutual_information: each choice is also scored without the question, which adds lm-eval's `acc_mutual_info`.
    Raises InputError where a file is gone or changed since the record was made, lm-eval cannot build the task, a
    column that it reads is missing, or its examples would be documents that are scored.
    """
    _check_unchanged(record)
    alone = _alone(record)
    task = alone(_build)(record)
    for member_part in tasks_in(task).values():
        for documents in ("training_docs", "validation_docs", "test_docs"):
            setattr(member_part, documents, alone(getattr(member_part, documents)))
    for name, member_part in tasks_in(task).items():
        _set_fewshot(name, member_part, num_fewshot)
        if mutual_information:
            _add_mutual_information(name, member_part)
        _check_columns(name, member_part)
    return task


def _alone(record: TaskRecord) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What makes a function run a task's code by itself: without what other tasks and processes kept, and in lm-eval's
    order where it draws at random."""
    cache = mkdtemp(dir=get_temporary_cache_files_directory())
    files = data_files(record)
    named = hashlib.sha256(json.dumps(states_of(files, small=0)).encode()).hexdigest()[:16]
    data = f"{datasets.config.HF_DATASETS_CACHE}/local/{named}" if files else None
    draws = any(draws_at_random(member.path) for member in record.members or (record,))

    def alone(function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with the caches of this task, and lm-eval's seeds where it needs them."""
        seeded = order_of_lm_eval()(function) if draws else function
        fresh: Callable[..., Any] = fresh_code(cache, data)(seeded)
        return fresh

    return alone


def data_files(record: TaskRecord) -> list[Path]:
    """The local files that a task, or the tasks of a group, name as their data."""
    return [file for member in record.members or (record,) for file in local_data(member.path)]


def _build(record: TaskRecord) -> AnyTask:
    if not record.members:
        return build_task(record.task, record.path)
    with _building(record.task):
        return build_group(record.task, record.paths)


def tasks_in(task: AnyTask) -> dict[str, Task]:
    """The tasks of a group by name, or the one task."""
    return task.members if isinstance(task, TaskGroup) else {task.config.task: task}


def rows(task: AnyTask, kind: str) -> Sequence[Doc]:
    """lm-eval's documents of one kind (`train`, `validation`, `test`) that the task has; of a group: those of its tasks
    one after the other."""
    if isinstance(task, TaskGroup):
        return GroupRows({name: rows(member, kind) for name, member in task.members.items()})
    documents = getattr(task, f"{WORDS[kind]}_docs")()
    return documents if hasattr(documents, "__getitem__") else list(documents)


def address_of(documents: Sequence[Doc], kind: str, number: int) -> str:
    """The address of a row of `rows(task, kind)`."""
    return documents.address(kind, number) if isinstance(documents, GroupRows) else f"{kind}:{number}"


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
        member_task = task.members.get(member) if isinstance(task, TaskGroup) else task
        if member_task is None:
            raise InputError(
                f"{task.config.task}: the group has no task {member!r} any more.", "its tasks changed; split it again."
            )
        source = rows(member_task, kind) if has_documents(member_task, kind) else ()
        if max(numbers) >= len(source):
            raise InputError(
                f"{member_task.config.task}: there is no document {kind}:{max(numbers)}, only {len(source)} of them.",
                "the data set changed after it was split; split it again.",
            )
        chosen = source.select(numbers) if hasattr(source, "select") else [source[row] for row in numbers]
        for number, doc in zip(numbers, chosen, strict=True):
            documents[f"{name}:{number}"] = GroupDocument(doc, member) if isinstance(task, TaskGroup) else doc
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


RECORD_AGAIN = f"record it again: {again('prefetch-benchmark')} and the id of its row as --benchmark."


def _check_unchanged(record: TaskRecord) -> None:
    for path in record.paths:
        if not path.is_file():
            raise InputError(f"{record.task}: {path} does not exist any more.", RECORD_AGAIN)
    imports = [
        path for path, digest in record.imported if not Path(path).is_file() or file_sha256(Path(path)) != digest
    ]
    if imports:
        raise InputError(
            f"{record.task}: {imports[0]}, which its code imports, changed after it was recorded.", RECORD_AGAIN
        )
    if record_digest(record) != record.config_digest:
        subject = f"a file of the group's {len(record.paths)}" if record.members else str(record.path)
        raise InputError(f"{record.task}: {subject} or its code changed after it was recorded.", RECORD_AGAIN)


def with_imports(record: TaskRecord, before: Collection[str]) -> TaskRecord:
    """The record with the user's files that its code imported from outside of its folders. before: the names of the
    modules that were imported before it was built."""
    known = {code.resolve() for path in record.paths for code in python_files(path.parent)}
    files = {getattr(sys.modules[name], "__file__", None) for name in set(sys.modules) - set(before)}
    own = {Path(file).resolve() for file in files if file and file.endswith(".py") and is_own_code(file)} - known
    return replace(record, imported=tuple((os.path.relpath(file), file_sha256(file)) for file in sorted(own)))


def _set_fewshot(name: str, task: Task, count: int) -> None:
    """Pin the number of examples, under lm-eval's rules for where they come from. It falls back on the documents that
    are scored, and would then show a question its own answer."""
    if count:
        config, fewshot = task.config, task.fewshot_cfg
        if config.num_fewshot == 0:
            raise InputError(
                f"{name}: its YAML file says num_fewshot: 0, which lm-eval does not override.",
                "leave num_fewshot empty in the benchmarks sheet.",
            )
        scored = config.test_split or config.validation_split
        if fewshot.split is not None:
            has_own_pool = fewshot.split == scored and fewshot.split != config.test_split
        elif config.fewshot_config is not None and fewshot.samples is not None:
            has_own_pool = False
        else:
            has_own_pool = (config.training_split or config.validation_split or config.test_split) == scored
        if has_own_pool:
            raise InputError(
                f"{name}: its examples would be the documents of {scored!r}, which are scored.",
                "give the task a fewshot_split, or leave num_fewshot empty.",
            )
        pool = task.sampler.df
        if fewshot.fewshot_indices is not None:
            raise InputError(
                f"{name}: its fewshot_config has fewshot_indices, which lm-eval reads and does not use.",
                "give these examples as `samples`, or select them in its `process_docs`.",
            )
        if len(pool) < count:
            raise InputError(f"{name}: {count} examples asked for, it has {len(pool)}.", "lower num_fewshot.")
    task.set_config("num_fewshot", count)


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
