"""What is used of lm-eval beside its documented interface, in one place.

`pyproject.toml` bounds lm-eval's version for the sake of this module. A test compares each name and signature with
what the installed version has.
"""

import contextlib
import functools
import glob
import json
import logging
import os
import random
import re
import site
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import datasets
import lm_eval.utils
import numpy as np
from datasets.exceptions import DatasetGenerationError
from datasets.table import CastError
from jinja2 import UndefinedError
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_metric, get_metric_aggregation, is_higher_better
from lm_eval.api.task import Task
from lm_eval.api.utils import maybe_delimit
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from lm_eval.models.utils import normalize_gen_kwargs, resolve_max_length
from lm_eval.tasks._factory import GROUP_FIELD_NAMES, TaskFactory
from lm_eval.tasks._index import Entry, Kind, TaskIndex
from lm_eval.tasks._yaml_loader import load_yaml
from pyarrow.lib import ArrowInvalid

from lm_validity import words
from lm_validity.errors import InputError, first_line

__all__ = ["GROUP_FIELD_NAMES", "Entry", "Kind", "TaskFactory", "TaskIndex", "load_yaml"]  # for others, as they are
__all__ += ["maybe_delimit", "normalize_gen_kwargs", "resolve_max_length"]

# lm-eval compiles a task's templates for every document and field; the same source is the same template
lm_eval.utils.env.from_string = functools.lru_cache(maxsize=4096)(lm_eval.utils.env.from_string)


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


_PACKAGES = [*map(sysconfig.get_path, ("purelib", "platlib")), *site.getsitepackages(), site.getusersitepackages()]
# what is installed as editable is elsewhere; `os` is of the standard library
_LIBRARIES = {Path(str(module.__file__)).resolve().parent for module in (os, lm_eval.utils, words)}
_LIBRARIES |= {Path(path).resolve() for path in _PACKAGES}


def is_own_code(file: str | None) -> bool:
    """Whether a module's file is the user's, and none of the interpreter's, its packages' or this package's."""
    return bool(file) and not any(Path(str(file)).resolve().is_relative_to(path) for path in _LIBRARIES)


@contextlib.contextmanager
def fresh_code(cache: str, data: str | None) -> Iterator[None]:
    """Run a task's code as its files are now. What libraries keep of an earlier run knows it by less than that: the
    data library what `map` and `from_generator` made by a fingerprint without the functions that theirs call, and local
    data by their time; Python what it compiled by time and size. cache: a folder for what is made here, of each task
    that is built. data: one for data sets of local files; None: the data library's own, for those of the hub. What the
    code draws at random, it draws from lm-eval's seeds of Python's and NumPy's generators, whose states are restored.
    """
    config, cached, generator = datasets.config, datasets.Dataset._get_cache_file_path, datasets.Dataset.from_generator
    shared, compiled = config.HF_DATASETS_CACHE, SourceFileLoader.get_code
    states = random.getstate(), np.random.get_state()  # noqa: NPY002

    def compile_own(self: SourceFileLoader, name: str) -> CodeType | None:
        """The code of a module, compiled anew where it is the user's."""
        if not is_own_code(self.path):
            return compiled(self, name)
        return self.source_to_code(self.get_data(self.path), self.path)

    datasets.Dataset._get_cache_file_path = lambda self, fingerprint: f"{cache}/{fingerprint}.arrow"
    datasets.Dataset.from_generator = functools.partial(generator, cache_dir=cache)
    config.HF_DATASETS_CACHE, SourceFileLoader.get_code = data or shared, compile_own  # type: ignore[method-assign,assignment]
    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)  # noqa: NPY002
    try:
        yield
    finally:
        datasets.Dataset._get_cache_file_path, datasets.Dataset.from_generator = cached, staticmethod(generator)
        config.HF_DATASETS_CACHE, SourceFileLoader.get_code = shared, compiled  # type: ignore[method-assign]
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


def apply_filters(task: Task, requests: list[Instance]) -> None:
    """Apply the task's filters to the answers of these requests."""
    task._instances = requests
    task.apply_filters()


def add_mutual_information(name: str, task: Task) -> None:
    """Let a loaded task score each choice without the question, too, which adds lm-eval's `acc_mutual_info`."""
    metric = "acc_mutual_info"
    if metric in task.aggregation():
        return
    if task.OUTPUT_TYPE != "multiple_choice" or callable(task.config.process_results):
        problem = f"{name}: lm-eval cannot add {metric} to it: it has no choices, or scores its answers itself."
        raise InputError(problem, "leave mutual_information empty in the benchmarks sheet.")
    task._metric_fn_list[metric], task._metric_fn_kwargs[metric] = get_metric(metric), {}
    task._aggregation_list[metric] = get_metric_aggregation(metric)
    task._higher_is_better[metric] = is_higher_better(metric)


@contextlib.contextmanager
def building(name: str, path: Path | None = None) -> Iterator[None]:
    """Inside the block what a task's code, its template or the data library raises is an InputError; lm-eval, which
    remarks on every default that a task's file leaves to it, is silent."""
    try:
        with errors_only("lm_eval"):
            yield
    except InputError:
        raise
    except Exception as error:
        hint = "check its YAML file and columns; on a machine without network, run the prefetch step first."
        if "Dataset scripts" in str(error):
            hint = "most such data sets of the hub have files, too: `dataset_kwargs: {revision: refs/convert/parquet}`."
        raise InputError(f"{name}: lm-eval cannot build the task ({_cause(error, path)}).", hint) from error


# what lm-eval does with a task's first document and metrics, and what is wrong with the task where that line raises
_CAUSES = {
    "self.task_docs.features": "its code (process_docs or custom_dataset) gives no data set, as `map` and `filter` do",
    "self.task_docs[0]": "no document of its scored split is left",
    "choice[0].isspace()": "a choice of its first document is empty or no text",
    "test_choice[test_target]": "the label of its first document is no place of a choice, from 0",
    "INV_AGG_REGISTRY[metric_agg]": "a metric of metric_list has no aggregation, and lm-eval knows none for it",
}


def _known_cause(error: BaseException, path: Path | None) -> str | None:
    if isinstance(error, ValueError) and str(error).startswith("Config name is missing"):
        named = re.search(r"available configs: \[(.*?)\]", str(error))
        return f"its data have several configurations, and dataset_name names none of {named[1] if named else 'them'}"
    if isinstance(error, KeyError) and error.args and path is not None:
        key, text = re.escape(str(error.args[0])), path.read_text(encoding="utf-8", errors="replace")
        if split := re.search(rf"(\w+_split)[\"']?[ \t]*:[ \t]*[\"']?{key}[\"']?\s*(?:[,}}#\n]|$)", text):
            has = _seen(error, "self", "dataset")
            its_splits = f": it has {words.listing(has)}" if has else ""
            return f"its data have no split {error.args[0]!r}, which {split[1]} names{its_splits}"
    lines = [
        frame.line or ""
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).parts[-3:] == ("lm_eval", "api", "task.py")
    ]
    cause = next((cause for code, cause in _CAUSES.items() if lines and code in lines[-1]), None)
    metric = _seen(error, "metric_name")
    return cause if cause is None or not metric else cause.replace("a metric", f"{metric[0]!r}", 1)


def _seen(error: BaseException, variable: str, attribute: str | None = None) -> list[str]:
    """The text, or the keys, that a variable had (or an attribute of it) in the innermost frame that has it, of those
    in which an error was raised."""
    for frame, _ in reversed([*traceback.walk_tb(error.__traceback__)]):
        value = frame.f_locals.get(variable)
        value = value if attribute is None else getattr(value, attribute, None)
        if isinstance(value, str | Mapping):
            return [value] if isinstance(value, str) else [*value]
    return []


def _cause(error: BaseException, path: Path | None) -> str:
    """What is at fault, in a line: the data library says only in an error's cause which column does not fit, and names
    no file."""
    while isinstance(error, DatasetGenerationError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, CastError):
        present, expected = set(error.table_column_names), set(error.requested_column_names)
        if names := sorted(present - expected) or sorted(expected - present):
            files = local_data(path)
            having = [file for file in files if names[0].encode() in file.read_bytes()]
            lacking = [file for file in files if file not in having]
            cause = "its files differ in columns"
            if having and lacking:
                cause = f"{having[0]} has it and {lacking[0]} has not"
            return f"column {names[0]!r}: {cause}"
    if (cause_known := _known_cause(error, path)) is not None:
        return cause_known
    if isinstance(error, StopIteration | ArrowInvalid) and (bad := _bad_file(path)) is not None:
        return bad
    # lm-eval tries its first document's texts
    template = [frame.name for frame in traceback.extract_tb(error.__traceback__) if frame.name.startswith("doc_to_")]
    cause = f"{type(error).__name__}: {first_line(error)}"
    if not template:
        return cause
    if isinstance(error, UndefinedError | KeyError) and (columns := _seen(error, "doc")):
        cause += f"; its columns are {words.listing(columns)}"
    no_text = isinstance(error, ValueError | SyntaxError | TypeError)
    finding = " is no text, such as a date or a number" if no_text else ""
    return f"{template[-1]} of its first document{finding}: {cause}"


def local_data(path: Path | None) -> list[Path]:
    """The local files that a task's YAML file names as its data, by name, by pattern or by their folder."""
    config = {} if path is None else load_yaml(path, resolve_func=False)
    options = config.get("dataset_kwargs") or {}
    named = options.get("data_files") or {}
    lists = named.values() if isinstance(named, dict) else [named]
    patterns = [str(file) for entry in lists for file in ([entry] if isinstance(entry, str) else entry)]
    paths = [Path(file) for pattern in patterns for file in glob.glob(pattern, recursive=True)]
    paths += [Path(str(folder)) for folder in (config.get("dataset_path"), options.get("data_dir")) if folder]
    files = (file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]))
    return sorted({file for file in files if file.is_file()})


def _bad_file(path: Path | None) -> str | None:
    """Which of a task's local files is empty, or the first line, from 1, of one in JSON lines that is not JSON."""
    for file in local_data(path):
        if not file.stat().st_size:
            return f"{file}: an empty file"
        with open(file, encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines if file.suffix in (".jsonl", ".ndjson") else (), start=1):
                try:
                    json.loads(line or "null")
                except ValueError:
                    return f"{file}, line {number}: not JSON"
    return None
