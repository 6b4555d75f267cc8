"""lm-eval tasks by name: found once where there is a network, loaded quickly everywhere else.

lm-eval's own index reads 14,000 YAML files with a YAML parser (15 s). Here a text scan finds the one file
that declares the task; a `TaskRecord` remembers it, and a job loads that file alone.
"""

import contextlib
import functools
import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import datasets
import lm_eval
import lm_eval.api.metrics  # fills the registries of metrics that are read below
import lm_eval.utils
from lm_eval.api.registry import DEFAULT_METRIC_REGISTRY, is_higher_better
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from lm_validity.errors import InputError, nearest
from lm_validity.tables.schema import OUTPUT_TYPES

PACKAGE = Path(lm_eval.__file__).resolve().parent
KINDS = ("train", "validation", "test")

_TASK_LINE = re.compile(r"^task:[ \t]*[\"']?([^\s\"'#\[]+)", re.MULTILINE)
_GROUP_LINE = re.compile(r"^(?:group|tag):[ \t]*[\"']?([^\s\"'#\[]+)|^[ \t]+- ([^\s:]+)[ \t]*$", re.MULTILINE)
# what says where the data lies, not what the task is: the data themselves are hashed document by document
_NOT_DIGESTED = ("dataset_kwargs", "metadata", "tag", "task_alias")

datasets.disable_progress_bars()
# lm-eval compiles a task's template anew for every document and field; the same source is the same template
if not hasattr(lm_eval.utils.env.from_string, "cache_info"):
    lm_eval.utils.env.from_string = functools.lru_cache(maxsize=4096)(lm_eval.utils.env.from_string)


@dataclass(frozen=True)
class TaskRecord:
    """Everything a job needs to load one lm-eval task without searching for it. `to_json` is portable.

    include_path: the configured folder of local tasks as it was given; null for a task shipped with lm-eval.
    file: the task's YAML relative to `include_path`, or to the lm_eval package.
    metrics: lm-eval's keys `name,filter` in the task's order.
    config_digest: sha256 of the resolved configuration and the code files it names, without the data's place.
    """

    task: str
    file: str
    include_path: str | None
    output_type: str
    metrics: tuple[str, ...]
    higher_is_better: Mapping[str, bool]
    config_digest: str
    dataset_path: str | None
    dataset_name: str | None
    version: str | None
    description: str
    lm_eval_version: str = field(default=lm_eval.__version__)

    @property
    def path(self) -> Path:
        return (PACKAGE if self.include_path is None else Path(self.include_path)) / self.file

    def to_json(self) -> dict:
        return {**asdict(self), "metrics": list(self.metrics)}

    @classmethod
    def from_json(cls, value: dict) -> "TaskRecord":
        """The record in `value`, which may hold other keys beside it."""
        own = {entry.name: value[entry.name] for entry in fields(cls)}
        return cls(**own | {"metrics": tuple(value["metrics"])})


@dataclass(frozen=True)
class Documents:
    """Documents of one task in a fixed order. Each has an address `<kind>:<row>`, its row in lm-eval's
    training_docs, validation_docs or test_docs."""

    task: str
    split: str
    addresses: tuple[str, ...]
    docs: tuple[dict, ...]

    def __len__(self) -> int:
        return len(self.docs)

    def head(self, limit: int | None) -> "Documents":
        """The first `limit` documents (all of them for None)."""
        return Documents(self.task, self.split, self.addresses[:limit], self.docs[:limit])


def find_task(task: str, include_path: str | Path | None = None) -> TaskRecord:
    """Find an lm-eval task by name: in `include_path` first, else among the tasks shipped with lm-eval.

    Reads text files only (0.3 s), except for tasks written in Python, which must be built to be known.
    Raises InputError for an unknown name (with the nearest one), a group, an unsupported output type.
    """
    roots = [(PACKAGE, "tasks", None)]
    if include_path is not None:
        if not Path(include_path).is_dir():
            raise InputError(f"{include_path}: no such folder of lm-eval tasks.", "check include_path.")
        roots.insert(0, (Path(include_path), ".", str(include_path)))
    names: list[str] = []
    for root, folder, given in roots:
        texts = _yaml_texts(root / folder)
        for path, text in texts:
            declared = _TASK_LINE.findall(text)
            names += declared
            if task in declared and not re.search(r"^group:", text, re.MULTILINE):
                return _record(task, path, root, given)
        if given is None and any(task in found for _, text in texts for found in _GROUP_LINE.findall(text)):
            raise InputError(
                f"{task}: is a group of lm-eval tasks, not a task.",
                "name its tasks one by one; `lm-eval ls tasks` lists them.",
            )
    similar = nearest(task, names)
    raise InputError(
        f"{task}: no lm-eval task has this name.",
        (f"did you mean {similar!r}? " if similar else "")
        + "`lm-eval ls tasks` lists them; include_path is the folder of your own tasks.",
    )


def load_task(record: TaskRecord) -> Task:
    """Build the lm-eval task of a record, zero-shot, from its one YAML file and its local or cached data set.

    Raises InputError where the file is gone or changed since the record was made, lm-eval cannot build the
    task, or a column that it reads is missing.
    """
    path = record.path
    if not path.is_file():
        raise InputError(f"{record.task}: {path} does not exist any more.", "run the prefetch step again.")
    if config_digest(path, _root(record)) != record.config_digest:
        raise InputError(f"{record.task}: {path} changed after it was recorded.", "run the prefetch step again.")
    task = _build(record.task, path)
    task.set_config("num_fewshot", 0)
    _check_columns(record.task, task)
    return task


def rows(task: Task, kind: str) -> Sequence[dict] | None:
    """lm-eval's documents of one kind (`train`, `validation`, `test`), or None where the task has none."""
    has, docs = {
        "train": (task.has_training_docs, task.training_docs),
        "validation": (task.has_validation_docs, task.validation_docs),
        "test": (task.has_test_docs, task.test_docs),
    }[kind]
    if not has():
        return None
    found = docs()
    return found if hasattr(found, "__getitem__") else list(found)


def fetch_documents(task: Task, split: str, addresses: Iterable[str]) -> Documents:
    """The documents at `addresses`, in that order; only the kinds of documents named there are touched."""
    addresses = tuple(addresses)
    wanted: dict[str, list[int]] = {}
    for address in addresses:
        kind, _, row = address.partition(":")
        wanted.setdefault(kind, []).append(int(row))
    found: dict[str, dict] = {}
    for kind, numbers in wanted.items():
        source = rows(task, kind)
        size = 0 if source is None else len(source)
        if max(numbers) >= size:
            raise InputError(
                f"{task.config.task}: there is no document {kind}:{max(numbers)}, only {size} of them.",
                "the data set changed after it was split; split it again.",
            )
        chosen = source.select(numbers) if hasattr(source, "select") else [source[row] for row in numbers]
        found.update((f"{kind}:{row}", doc) for row, doc in zip(numbers, chosen, strict=True))
    return Documents(task.config.task, split, addresses, tuple(found[address] for address in addresses))


def config_digest(path: Path, root: Path) -> str:
    """sha256 of a task's resolved YAML and the Python files it names, by their paths relative to `root`."""
    config = load_yaml(path, resolve_func=False)
    for key in _NOT_DIGESTED:
        config.pop(key, None)
    if Path(str(config.get("dataset_path"))).exists():
        config["dataset_path"] = "local"
    prefix = f"{root.resolve()}/"
    text = json.dumps(config, sort_keys=True, default=str)
    digest = hashlib.sha256(text.replace(prefix, "").encode())
    for reference in sorted(set(re.findall(re.escape(prefix) + r"[^\"\s]+", text))):
        code = Path(reference.rpartition(".")[0] + ".py")
        if code.is_file():
            digest.update(code.read_bytes())
    return digest.hexdigest()


def _yaml_texts(folder: Path) -> list[tuple[Path, str]]:
    # lm-eval keeps the first of several files that declare a name, in this order
    paths = sorted(folder.rglob("*.yaml"), key=lambda path: path.as_posix())
    return [(path, path.read_text(encoding="utf-8", errors="replace")) for path in paths]


def _root(record: TaskRecord) -> Path:
    return PACKAGE if record.include_path is None else Path(record.include_path)


def _record(task: str, path: Path, root: Path, include_path: str | None) -> TaskRecord:
    try:
        config = load_yaml(path, resolve_func=False)
    except Exception as error:
        raise InputError(
            f"{path}: lm-eval cannot read it ({_first_line(error)}).", "correct the task's YAML file."
        ) from error
    if "class" in config:
        built = _build(task, path)
        output_type, directions = built.OUTPUT_TYPE, built.higher_is_better()
    else:
        output_type, directions = config.get("output_type", "generate_until"), _directions(config)
    _check_supported(task, config, output_type)
    filters = [entry["name"] for entry in config.get("filter_list") or [{"name": "none"}]]
    keys = {f"{metric},{name}": better for name in filters for metric, better in directions.items()}
    metadata = config.get("metadata")
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
        version=str(metadata["version"]) if isinstance(metadata, dict) and "version" in metadata else None,
        description=str(config.get("description") or ""),
    )


def _directions(config: dict) -> dict[str, bool]:
    """Metric names of a YAML task and whether higher is better, by lm-eval's rules for what is left out."""
    entries = config.get("metric_list")
    if entries is None:
        entries = [{"metric": name} for name in DEFAULT_METRIC_REGISTRY[config.get("output_type", "generate_until")]]
    directions = {}
    for entry in entries:
        # a `!function` metric is known by the name of its function
        name = str(entry["metric"]).rpartition(".")[2] if "/" in str(entry["metric"]) else str(entry["metric"])
        better = entry.get("higher_is_better")
        directions[name] = bool(is_higher_better(name) if better is None else better)
    return directions


def _check_supported(task: str, config: dict, output_type: str | None) -> None:
    if output_type not in OUTPUT_TYPES:
        raise InputError(
            f"{task}: its output type {output_type!r} is not supported.",
            f"choose a task of type {', '.join(OUTPUT_TYPES)}.",
        )
    for key in ("doc_to_image", "doc_to_audio", "unsafe_code"):
        if config.get(key):
            raise InputError(f"{task}: tasks with {key} are not supported.", "choose a task about text alone.")


@contextlib.contextmanager
def errors_only(name: str) -> Iterator[None]:
    """Silence a logger's warnings inside the block."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _build(name: str, path: Path) -> Task:
    try:
        with errors_only("lm_eval"):  # it remarks on every default that a task's file leaves to it
            loaded = TaskManager(include_path=None, include_defaults=False).load([str(path)])
    except Exception as error:  # whatever a task's code, its template or the data library raises
        raise InputError(
            f"{name}: lm-eval cannot build the task ({type(error).__name__}: {_first_line(error)}).",
            "check its YAML file and columns; on a machine without network, run the prefetch step first.",
        ) from error
    (task,) = loaded["tasks"].values()
    return task


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


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]
