"""What is used of lm-eval beside its documented interface, in one place.

`pyproject.toml` bounds lm-eval's version for the sake of this module. A test compares each name and signature with
what the installed version has.
"""

import functools

import lm_eval.utils
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_metric, get_metric_aggregation, is_higher_better
from lm_eval.api.task import Task
from lm_eval.api.utils import maybe_delimit
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
    "remember_templates",
    "resolve_max_length",
]


def remember_templates() -> None:
    """Compile each of a task's templates once. lm-eval compiles it for every document and field; the same source is
    the same template."""
    if not hasattr(lm_eval.utils.env.from_string, "cache_info"):
        lm_eval.utils.env.from_string = functools.lru_cache(maxsize=4096)(lm_eval.utils.env.from_string)


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
