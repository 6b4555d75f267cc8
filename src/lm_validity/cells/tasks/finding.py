"""lm-eval tasks and groups of tasks by name: found once where there is a network, remembered in a record."""

import hashlib
import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import lm_eval
from lm_eval.api.registry import DEFAULT_METRIC_REGISTRY, is_higher_better
from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.tasks import TaskManager
from pydantic import TypeAdapter

from lm_validity.cells import lm_eval_internals as internals
from lm_validity.config.sheets import OUTPUT_TYPES
from lm_validity.errors import InputError, did_you_mean, first_line
from lm_validity.files import Document, absent, file_sha256
from lm_validity.run.scoring import GROUP_LINE, TASK_LINE, code_file, python_files

# ----------------------------------------------------------------------------------------------------------------------
# What the YAML files of lm-eval, and of the user, declare: a text scan, where lm-eval's index takes 15 s.

PACKAGE = Path(lm_eval.__file__).resolve().parent


_READ: dict[Path, Sequence[tuple[Path, str]]] = {}  # of lm-eval's own folder, once a process


def _texts(folder: Path) -> Sequence[tuple[Path, str]]:
    """The files under `folder` that declare tasks or that these include, with their texts, in the order in which
    lm-eval keeps the first of several that declare a name."""
    if folder in _READ:
        return _READ[folder]
    paths = [path for path in folder.rglob("*") if path.suffix in ("", ".yaml") and path.is_file()]
    paths.sort(key=lambda path: path.as_posix())
    texts = [(path, path.read_text(encoding="utf-8-sig", errors="replace")) for path in paths]
    if folder == PACKAGE / "tasks":
        _READ[folder] = texts
    return texts


class Declaration(NamedTuple):
    """The names in a YAML file: of tasks, unless it is a group's, and of groups."""

    path: Path
    tasks: Sequence[str]
    groups: Sequence[str]


def declarations_in(folder: Path) -> Sequence[Declaration]:
    """Of the YAML files among `_texts`, in their order."""
    declared = []
    for path, text in _texts(folder):
        if path.suffix == ".yaml":
            groups = GROUP_LINE.findall(text)
            declared.append(Declaration(path, [] if groups else TASK_LINE.findall(text), groups))
    return declared


def folders_naming(names: Collection[str], folder: Path) -> list[Path]:
    """Top folders under `folder` with a YAML file (or a template that YAML files include) with one of the names in
    it; `folder` itself where such a file lies in it directly."""
    if not names:
        return []
    words = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])")
    folders = set()
    for path, text in _texts(folder):
        if any(name in text for name in names) and words.search(text):
            parts = path.relative_to(folder).parts
            folders.add(folder / parts[0] if len(parts) > 1 else folder)
    return [folder] if folder in folders else sorted(folders)


# ----------------------------------------------------------------------------------------------------------------------
# Groups and tags: which tasks they name, in lm-eval's order, by its own index.


@dataclass
class Expansion:
    """What a group's name stands for, by an index: the YAML files of groups on the way, tags, and tasks with
    overrides."""

    index: Mapping[str, internals.Entry]
    group_files: list[Path] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)
    tasks: list[tuple[internals.Entry, Document]] = field(default_factory=list)

    def add(self, name: str, overrides: Document) -> None:
        """Add the tasks that a name stands for, in lm-eval's order. Raises KeyError for one that the index lacks."""
        entry = self.index[name]
        if entry.kind == internals.Kind.TAG:
            self.tags.add(name)
            self.tasks += [(self.index[task], overrides) for task in sorted(entry.tags)]
        elif entry.kind == internals.Kind.GROUP:
            if entry.yaml_path not in self.group_files:
                self.group_files.append(entry.yaml_path)
            self._add_members(entry.cfg, overrides)
        else:
            self.tasks.append((entry, overrides))

    def _add_members(self, config: Document, overrides: Document) -> None:
        settings = {key: value for key, value in config.items() if key not in internals.GROUP_FIELD_NAMES} | overrides
        for item in config.get("task") or ():
            if isinstance(item, str):
                self.add(item, settings)
            elif "group" not in item and item["task"] not in self.index and len(item) > 1:
                raise KeyError(item["task"], "which its own file defines; lm-validity wants a file for each task")
            elif "group" not in item:
                self.add(item["task"], settings | item)
            elif item["group"] in self.index:
                self.add(item["group"], settings | {key: value for key, value in item.items() if key != "group"})
            else:  # a group within the group, named nowhere else
                self._add_members(item, settings)


# ----------------------------------------------------------------------------------------------------------------------
# What a name stands for, and everything that a job needs to load it without searching.
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
    hint = "`lm-eval ls tasks` lists them; include_path is the folder of your own tasks."
    raise InputError(f"{task}: no lm-eval task has this name.", did_you_mean(task, names, hint))


def _check_tags(name: str, declarations: Sequence[Declaration]) -> None:
    """Raises InputError where a task's own file names its group, as it did before lm-eval had tags: it builds none."""
    for path, tasks, groups in declarations:
        if name in tasks or (groups and name in path.read_text("utf-8", errors="replace")):
            config = read_task_file(path)
            if "group" in config and isinstance(config.get("task"), str) and name in (config["task"], *groups):
                raise InputError(f"{path}: it declares a task and its group in one.", "write `tag:` for `group:`.")


def config_digest(path: Path, root: Path) -> str:
    """sha256 of a task's resolved YAML and its code, wherever `root`, the folder that it belongs to, may lie.

    Of a shipped task, its code is the files that the YAML names. Of a local one, it is every Python file in and under
    the folders of the YAML and of those files, since they may import each other; a file outside `root` that an included
    YAML names counts by its content.
    """
    config = internals.load_yaml(path, resolve_func=False)
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
    with internals.building(name, path):
        (task,) = TaskManager(include_path=None, include_defaults=False).load([str(path)])["tasks"].values()
    return task


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
        with internals.errors_only("lm_eval"):
            index = internals.TaskIndex.build(list(places))  # a later folder's win
        if name not in index:
            return None
        expansion = Expansion(index)
        try:
            expansion.add(name, {})
        except KeyError as error:
            missing = error.args
            continue
        except RecursionError:
            problem = f"{name}: the group is one of its own tasks, by its name or that of a group within it."
            raise InputError(problem, "correct the group's YAML file.") from None
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
            hint = "derive it from lm-eval's ConfigurableTask, or write the task in YAML with functions."
            raise InputError(f"{task}: its class does not say which choices a document has, and which is right.", hint)
    else:
        output_type, directions = config.get("output_type", "generate_until"), _directions(config)
    if output_type not in OUTPUT_TYPES:
        hint = f"choose a task of type {', '.join(OUTPUT_TYPES)}."
        raise InputError(f"{task}: its output type {output_type!r} is not supported.", hint)
    for key, reason in _NOT_SUPPORTED.items():
        if config.get(key):
            raise InputError(f"{task}: tasks with {key} are not supported.", reason)
    if (config.get("dataset_kwargs") or {}).get("streaming"):
        problem = f"{task}: its data are read as a stream (dataset_kwargs: streaming), whose documents have no numbers."
        raise InputError(problem, "take `streaming` out of dataset_kwargs.")
    filters = [entry["name"] for entry in config.get("filter_list") or [{"name": "none"}]]
    keys = {f"{metric},{name}": better for name in filters for metric, better in directions.items()}
    file, digest = path.relative_to(root).as_posix(), config_digest(path, root)
    return TaskRecord(task, file, include_path, output_type, tuple(keys), keys, digest, _version(config))


def _check_keys(path: Path, config: Document) -> None:
    for key, word in (("metric_list", "metric"), ("filter_list", "name")):
        entries = config.get(key) or []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) and word in entry for entry in entries):
            raise InputError(f"{path}: {key} is no list of entries with a {word}.", f"write `- {word}: ...` for each.")
    if not any(config.get(key) for key in ("class", "dataset_path", "custom_dataset")):
        raise InputError(f"{path}: it names no data.", "give dataset_path: of the hub, or json with data_files.")


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
    root_name, file = files[0] if files else (members[0].include_path, name)
    version = _version(internals.load_yaml(expansion.group_files[0], resolve_func=False)) if files else None
    output_type, metrics = members[0].output_type, tuple(better)
    record = TaskRecord(name, file, root_name, output_type, metrics, better, "", version, (), tuple(members), files)
    return replace(record, config_digest=record_digest(record))


def _place(path: Path, include_path: str | Path | None) -> tuple[str | None, str]:
    """(include_path as it was given, file in it), or (None, file in the lm_eval package)."""
    if include_path is not None and path.is_relative_to(include_path):
        return str(include_path), path.relative_to(include_path).as_posix()
    return None, path.relative_to(PACKAGE).as_posix()


def _version(config: Mapping[str, object]) -> str | None:
    metadata = config.get("metadata")
    return str(metadata["version"]) if isinstance(metadata, dict) and "version" in metadata else None


def _directions(config: Document) -> dict[str, bool | None]:
    """Metric names of a YAML task and whether higher is better, by lm-eval's rules for what is left out; None where
    lm-eval does not know the metric."""
    entries = config.get("metric_list")
    if entries is None:
        entries = [{"metric": name} for name in DEFAULT_METRIC_REGISTRY[config.get("output_type", "generate_until")]]
    directions: dict[str, bool | None] = {}
    for entry in entries:
        metric = str(entry["metric"])  # of a `!function` the name of the function
        name = metric.rpartition(".")[2] if "/" in metric else metric
        if name in directions:
            log.warning("%s: metric_list has %s twice; the last counts, as in lm-eval", config.get("task"), name)
        better = entry.get("higher_is_better")
        if better is None:
            with internals.errors_only("lm_eval"):
                better = is_higher_better(name)
        directions[name] = None if better is None else bool(better)
    return directions


def read_task_file(path: Path) -> Document:
    """A task's YAML file with what it includes, its functions unread. Raises InputError where it cannot be read."""
    try:
        result: Document = internals.load_yaml(path, resolve_func=False)
        return result
    except Exception as error:  # whatever the parser and what it includes raise
        raise InputError(f"{path}: lm-eval cannot read it ({first_line(error)}).", "correct the YAML file.") from error


# ----------------------------------------------------------------------------------------------------------------------
# A task or group of tasks in a YAML file of the user's own: what a row of the benchmarks sheet has to say of it.


def read_task_name(path: Path) -> str:
    """The name that an lm-eval YAML file gives its task, or its group of tasks.

    Raises InputError where there is no such file, lm-eval cannot read it, or it names neither.
    """
    if not path.is_file():
        raise absent(path, otherwise="give the YAML file of an lm-eval task.")
    if path.suffix != ".yaml":
        raise InputError(f"{path}: {OTHER_SUFFIX}.", f"rename it to {path.stem}.yaml.")
    config = read_task_file(path)
    name = config.get("group") or config.get("task")
    if not isinstance(name, str):
        hint = "a task needs task, dataset_path, output_type, doc_to_text and doc_to_target."
        raise InputError(f"{path}: not an lm-eval task: it has no `task: NAME`.", hint)
    return name


class OwnTaskFile(NamedTuple):
    """The record of a task in a user's file, and whether it has documents to train on."""

    record: TaskRecord
    trains: bool


def find_own_task(path: Path, name: str, folder: Path) -> OwnTaskFile:
    """The task `name` of the file, in `folder`, and whether it has documents to train on.

    Raises InputError as `find_task` does, and where another file of the folder declares the name.
    """
    record, trains = find_task(name, folder), True
    if record.path.name != path.name and not record.members:
        raise InputError(f"{path}: {record.path} declares the task {name!r} too.", "give one of them another name.")
    for member in record.members or (record,):
        config = read_task_file(member.path)
        built = build_task(member.task, member.path) if "class" in config else None
        trains &= bool(config.get("training_split") if built is None else built.has_training_docs())
    return OwnTaskFile(record, trains)
