"""lm-eval tasks and groups of tasks by name: found once where there is a network, remembered in a record.

lm-eval's own index reads 14,000 YAML files with a YAML parser (15 s). Here a text scan finds the file that
declares the task, or the folder that holds the group; a `TaskRecord` remembers them, and a job loads those alone.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import lm_eval
import lm_eval.api.metrics  # fills the registries of metrics that are read below
from lm_eval.api.registry import DEFAULT_METRIC_REGISTRY, is_higher_better
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager

from lm_validity.cells.lm_eval_internals import load_yaml
from lm_validity.cells.models.quiet import errors_only
from lm_validity.cells.tasks.groups import Expansion, expand, read_index
from lm_validity.config.sheets import OUTPUT_TYPES
from lm_validity.errors import InputError, first_line, nearest
from lm_validity.run.store import file_sha256
from lm_validity.run.task_files import code_file, python_files

PACKAGE = Path(lm_eval.__file__).resolve().parent

_TASK_LINE = re.compile(r"^[\"']?task[\"']?:[ \t]*[\"']?([^\s\"'#\[]+)", re.MULTILINE)
_GROUP_LINE = re.compile(r"^[\"']?group[\"']?:[ \t]*[\"']?([^\s\"'#\[]+)", re.MULTILINE)
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
    members: of a group, the records of its tasks. group_files: the YAML files of groups, as (include_path, file).
    """

    task: str
    file: str
    include_path: str | None
    output_type: str
    metrics: tuple[str, ...]
    higher_is_better: Mapping[str, bool | None]
    config_digest: str
    dataset_path: str | None
    dataset_name: str | None
    version: str | None
    description: str
    members: tuple["TaskRecord", ...] = ()
    group_files: tuple[tuple[str | None, str], ...] = ()
    lm_eval_version: str = field(default=lm_eval.__version__)

    @property
    def path(self) -> Path:
        """The task's YAML file on this machine."""
        return root_of(self.include_path) / self.file

    @property
    def group_paths(self) -> list[Path]:
        """The YAML files that declare the groups the task was reached by."""
        return [root_of(include_path) / file for include_path, file in self.group_files]

    def to_json(self) -> dict[str, Any]:
        """The record as JSON stores it; `from_json` reads it back."""
        members = [member.to_json() for member in self.members]
        files = [list(file) for file in self.group_files]
        return {**asdict(self), "metrics": list(self.metrics), "members": members, "group_files": files}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "TaskRecord":
        """The record in `value`, which may hold other keys beside it."""
        own = {entry.name: value[entry.name] for entry in fields(cls) if entry.name in value}
        own["metrics"] = tuple(own["metrics"])
        own["members"] = tuple(cls.from_json(member) for member in own.get("members", ()))
        own["group_files"] = tuple((place, file) for place, file in own.get("group_files", ()))
        return cls(**own)


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
    for root, folder, given in roots:
        for path, text in _texts(root / folder):
            if path.suffix != ".yaml":
                continue
            declared = [] if _GROUP_LINE.search(text) else _TASK_LINE.findall(text)
            names += [*declared, *_GROUP_LINE.findall(text)]
            if task in declared:
                return _record(task, path, {}, given)
        found = _expansion(task, root / folder, include_path)
        if found is not None:
            return _group_record(task, found, include_path)
    similar = nearest(task, names)
    raise InputError(
        f"{task}: no lm-eval task has this name.",
        (f"did you mean {similar!r}? " if similar else "")
        + "`lm-eval ls tasks` lists them; include_path is the folder of your own tasks.",
    )


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
    named = [code for reference in sorted(references) if (code := _code_file(reference)).is_file()]
    for code in named:
        digest.update(code.read_bytes())
    folders = {path.resolve().parent, *(code.parent for code in named)} if root != PACKAGE else ()
    others = {code for folder in folders for code in python_files(folder)} - {*named}
    for code in sorted(others, key=lambda code: code.relative_to(resolved).as_posix()):
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
    code, place = _code_file(value), Path(value)
    try:
        if code.is_file():
            return f"{file_sha256(code)}/{place.name}"
        # a module of the environment, of which lm-eval's path names no file
        return place.name if place.parent.is_dir() and re.fullmatch(r"\w+(\.\w+)+", place.name) else value
    except OSError:  # a text that begins with a slash, and is too long for a path
        return value


def _code_file(reference: str) -> Path:
    """The Python file of a `!function` that lm-eval turned into an absolute path."""
    return code_file(Path(reference).parent, Path(reference).name)


def group_digest(record: TaskRecord) -> str:
    """sha256 over the group's own files and its tasks' digests, as they are on disk now."""
    files = [
        config_digest(path, root_of(place))
        for (place, _), path in zip(record.group_files, record.group_paths, strict=True)
    ]
    members = [config_digest(member.path, root_of(member.include_path)) for member in record.members]
    return hashlib.sha256("\n".join([*files, *members]).encode()).hexdigest()


def root_of(include_path: str | None) -> Path:
    """The folder that a record's files are relative to."""
    return PACKAGE if include_path is None else Path(include_path)


def build_task(name: str, path: Path) -> Task:
    """lm-eval's task of a YAML file; its data set is loaded. Raises InputError where lm-eval cannot."""
    try:
        with errors_only("lm_eval"):  # it remarks on every default that a task's file leaves to it
            loaded = TaskManager(include_path=None, include_defaults=False).load([str(path)])
    except Exception as error:  # whatever a task's code, its template or the data library raises
        raise cannot_build(name, error) from error
    (task,) = loaded["tasks"].values()
    return task


def cannot_build(name: str, error: Exception) -> InputError:
    """The error of a task that lm-eval refused, with what lm-eval raised."""
    return InputError(
        f"{name}: lm-eval cannot build the task ({type(error).__name__}: {first_line(error)}).",
        "check its YAML file and columns; on a machine without network, run the prefetch step first.",
    )


def _texts(folder: Path) -> Sequence[tuple[Path, str]]:
    """The files under `folder` that declare tasks or that these include, with their texts.

    In the order in which lm-eval keeps the first of several that declare a name. lm-eval's own are read once a process.
    """
    return _shipped_texts() if folder == PACKAGE / "tasks" else _read_texts(folder)


@cache
def _shipped_texts() -> Sequence[tuple[Path, str]]:
    return _read_texts(PACKAGE / "tasks")


def _read_texts(folder: Path) -> Sequence[tuple[Path, str]]:
    paths = [path for path in folder.rglob("*") if path.suffix in ("", ".yaml") and path.is_file()]
    paths.sort(key=lambda path: path.as_posix())
    return [(path, path.read_text(encoding="utf-8", errors="replace")) for path in paths]


def _expansion(name: str, folder: Path, include_path: str | Path | None) -> Expansion | None:
    """The tasks of a group or tag declared under `folder`; None where nothing there is called so."""
    near = _folders_naming([name], folder)
    if not near:
        return None
    if folder != PACKAGE / "tasks":
        near = [folder]
    # those folders are enough for most groups; others name tasks, or share tags with tasks, from anywhere
    everywhere = [PACKAGE / "tasks", *([] if include_path is None else [Path(include_path)])]
    missing = None
    for places in (near, everywhere):
        index = read_index(places)
        if name not in index:
            return None
        try:
            found = expand(name, index)
        except KeyError as error:
            missing = error.args[0]
            continue
        if places is everywhere or set(_folders_naming(found.tags, folder)) <= set(near):
            return found
    raise InputError(f"{name}: the group names {missing!r}, which is not a task.", "correct the group's YAML file.")


def _folders_naming(names: Iterable[str], folder: Path) -> list[Path]:
    """Top folders under `folder` with a YAML file (or a template that YAML files include) with one of the names in
    it; `folder` itself where such a file lies in it directly."""
    if not names:
        return []
    words = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])")
    found = set()
    for path, text in _texts(folder):
        if words.search(text):
            parts = path.relative_to(folder).parts
            found.add(folder / parts[0] if len(parts) > 1 else folder)
    return [folder] if folder in found else sorted(found)


def _record(task: str, path: Path, overrides: Mapping[str, Any], include_path: str | None) -> TaskRecord:
    root = root_of(include_path)
    try:
        config = load_yaml(path, resolve_func=False) | overrides
    except Exception as error:
        raise InputError(
            f"{path}: lm-eval cannot read it ({first_line(error)}).", "correct the task's YAML file."
        ) from error
    if "class" in config:
        built = build_task(task, path)
        output_type, directions = built.OUTPUT_TYPE, built.higher_is_better()
    else:
        output_type, directions = config.get("output_type", "generate_until"), _directions(config)
    _check_supported(task, config, output_type)
    filters = [entry["name"] for entry in config.get("filter_list") or [{"name": "none"}]]
    keys = {f"{metric},{name}": better for name in filters for metric, better in directions.items()}
    return TaskRecord(
        task=task,
        file=path.relative_to(root).as_posix(),
        include_path=include_path,
        output_type=output_type,
        metrics=tuple(keys),
        higher_is_better=keys,
        config_digest=config_digest(path, root),
        dataset_path=config.get("dataset_path"),
        dataset_name=config.get("dataset_name"),
        version=_version(config),
        description=str(config.get("description") or ""),
    )


def _group_record(name: str, found: Expansion, include_path: str | Path | None) -> TaskRecord:
    """The record of a group: the metrics are those that all its tasks have."""
    members = []
    for entry, overrides in found.tasks:
        place, _ = _place(entry.yaml_path, include_path)
        members.append(_record(entry.name, entry.yaml_path, overrides, place))
    types = {member.output_type: member.task for member in members}
    if len(types) != 1:
        listed = ", ".join(f"{task} {output_type}" for output_type, task in types.items())
        raise InputError(
            f"{name}: its tasks differ in output type ({listed or 'it has none'}).", "name its tasks one by one."
        )
    better = _common_directions(members)
    if not better:
        raise InputError(f"{name}: its tasks have no metric in common.", "name its tasks one by one.")
    files = tuple(_place(path, include_path) for path in found.group_files)
    record = TaskRecord(
        task=name,
        file=files[0][1] if files else name,
        include_path=files[0][0] if files else members[0].include_path,
        output_type=members[0].output_type,
        metrics=tuple(better),
        higher_is_better=better,
        config_digest="",
        dataset_path=None,
        dataset_name=None,
        version=_version(load_yaml(found.group_files[0], resolve_func=False)) if found.group_files else None,
        description="",
        members=tuple(members),
        group_files=files,
    )
    return replace(record, config_digest=group_digest(record))


def _common_directions(members: list[TaskRecord]) -> dict[str, bool | None]:
    """The metrics that all tasks of a group have, without those that some take for better where others take the
    opposite; a task that does not say goes with the others."""
    common = {}
    for key in members[0].metrics:
        if all(key in member.metrics for member in members):
            stated = {member.higher_is_better[key] for member in members} - {None}
            if len(stated) < 2:
                common[key] = stated.pop() if stated else None
    return common


def _place(path: Path, include_path: str | Path | None) -> tuple[str | None, str]:
    """(include_path as it was given, file in it), or (None, file in the lm_eval package)."""
    if include_path is not None and path.is_relative_to(include_path):
        return str(include_path), path.relative_to(include_path).as_posix()
    return None, path.relative_to(PACKAGE).as_posix()


def _version(config: Mapping[str, Any]) -> str | None:
    metadata = config.get("metadata")
    return str(metadata["version"]) if isinstance(metadata, dict) and "version" in metadata else None


def _directions(config: dict[str, Any]) -> dict[str, bool | None]:
    """Metric names of a YAML task and whether higher is better, by lm-eval's rules for what is left out; None where
    lm-eval does not know the metric."""
    entries = config.get("metric_list")
    if entries is None:
        entries = [{"metric": name} for name in DEFAULT_METRIC_REGISTRY[config.get("output_type", "generate_until")]]
    directions = {}
    for entry in entries:
        # a `!function` metric is known by the name of its function
        name = str(entry["metric"]).rpartition(".")[2] if "/" in str(entry["metric"]) else str(entry["metric"])
        better = entry.get("higher_is_better")
        if better is None:
            with errors_only("lm_eval"):
                better = is_higher_better(name)
        directions[name] = None if better is None else bool(better)
    return directions


def _check_supported(task: str, config: dict[str, Any], output_type: str | None) -> None:
    if output_type not in OUTPUT_TYPES:
        raise InputError(
            f"{task}: its output type {output_type!r} is not supported.",
            f"choose a task of type {', '.join(OUTPUT_TYPES)}.",
        )
    for key in ("doc_to_image", "doc_to_audio", "unsafe_code"):
        if config.get(key):
            raise InputError(f"{task}: tasks with {key} are not supported.", "choose a task about text alone.")
