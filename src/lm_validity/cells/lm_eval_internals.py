"""What is used of lm-eval beside its documented interface, in one place.

`pyproject.toml` bounds lm-eval's version for the sake of this module. A test compares each name and signature with
what the installed version has.
"""

import contextlib
import functools
import random
from collections.abc import Iterator

import datasets
import lm_eval.utils
import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_metric, get_metric_aggregation, is_higher_better
from lm_eval.api.task import Task
from lm_eval.api.utils import maybe_delimit
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from lm_eval.models.utils import normalize_gen_kwargs, resolve_max_length
from lm_eval.tasks._factory import GROUP_FIELD_NAMES, TaskFactory
from lm_eval.tasks._index import Entry, Kind, TaskIndex
from lm_eval.tasks._yaml_loader import load_yaml

__all__ = [
    "GROUP_FIELD_NAMES",
    "Entry",
    "Kind",
    "TaskFactory",
    "TaskIndex",
    "add_metric",
    "apply_filters",
    "has_metric",
    "load_yaml",
    "maybe_delimit",
    "normalize_gen_kwargs",
    "order_of_lm_eval",
    "remember_templates",
    "resolve_max_length",
]


def remember_templates() -> None:
    """Compile each of a task's templates once. lm-eval compiles it for every document and field; the same source is
    the same template."""
    if not hasattr(lm_eval.utils.env.from_string, "cache_info"):
        lm_eval.utils.env.from_string = functools.lru_cache(maxsize=4096)(lm_eval.utils.env.from_string)


@contextlib.contextmanager
def order_of_lm_eval(cache: str) -> Iterator[None]:
    """Draw as lm-eval does: from its seeds of Python's and NumPy's generators, whose states are restored afterwards.

    The data library keeps what `map` made beside the data set, for all processes: what is there may be in the order of
    another program or version. So it is kept in `cache` here, one folder for each task that is built.
    """
    before = random.getstate(), np.random.get_state(), datasets.Dataset._get_cache_file_path  # noqa: NPY002
    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)  # noqa: NPY002
    datasets.Dataset._get_cache_file_path = lambda self, fingerprint: f"{cache}/{fingerprint}.arrow"
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        datasets.Dataset._get_cache_file_path = before[2]


def apply_filters(task: Task, requests: list[Instance]) -> None:
    """Apply the task's filters to the answers of these requests."""
    task._instances = requests
    task.apply_filters()


def has_metric(task: Task, metric: str) -> bool:
    """Whether the task computes the metric."""
    return metric in task._metric_fn_list


def add_metric(task: Task, metric: str) -> None:
    """Let a loaded task compute one more of lm-eval's metrics, without arguments."""
    task._metric_fn_list[metric], task._metric_fn_kwargs[metric] = get_metric(metric), {}
    task._aggregation_list[metric] = get_metric_aggregation(metric)
    task._higher_is_better[metric] = is_higher_better(metric)
