"""Result files of lighteval -> scores.

Its tasks are called `suite|task|shots`, since the end of 2025 `task|shots`. The row `all` is a mean over everything,
and `mmlu:_average|5` one over the tasks of `mmlu:`, where the standard error is a mean of errors too.
"""

import math
import re
from collections import defaultdict
from typing import NamedTuple

from lm_validity.config.sheets import metric_key
from lm_validity.errors import InputError
from lm_validity.files import Document
from lm_validity.tables.claims import Claim, Settings
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.lm_eval_results import training_point
from lm_validity.tables.formats.score_files import Format, ImportOptions, Opened, ScoreFile, date_in

_HINT = "lighteval writes such a file below its --output-dir: results/<model>/results_<date>.json."
_AVERAGE = ":_average"
_FEWEST_TASKS = 3  # of a group whose mean counts in their place
# Keys of the model's configuration that tell its weights, and those that change no score
_WEIGHTS = ("revision", "subfolder", "base_model", "delta_weights", "adapter_weights")
_NO_SETTINGS = (*_WEIGHTS, "model_name", "batch_size", "device", "model_parallel", "cache_dir", "compile",
                "generation_parameters")  # fmt: skip


# Metrics of likelihoods, which no sampling changes; the length of answers where a file does not say it
_LIKELIHOOD = re.compile(
    r"(acc|acc_norm\w*|loglikelihood\w*|mc[12]|truthfulqa_mc\w*|ppl|\w*perplexity|bits_per_byte|mrr|recall@\d+)"
)
_LONG = 2


class _Task(NamedTuple):
    """A task of a file: `shots` are solved examples before each question."""

    key: str
    suite: str
    name: str
    shots: int
    metrics: Document


class _Group(NamedTuple):
    """The row of a group's means, and its tasks; a task alone is one of itself."""

    row: _Task
    members: list[_Task]


def _recognises(opened: Opened) -> bool:
    document = opened.document
    return isinstance(document, dict) and all(
        isinstance(document.get(key), dict) for key in ("config_general", "results")
    )


def _read(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    """The claims of a file; a group of three or more tasks with the same metrics is named by its tasks' rows.

    Raises InputError for a file that is not lighteval's and for values of other types."""
    path, document = opened.path, opened.document
    if not _recognises(opened):
        raise InputError(f"{path}: no objects 'config_general' and 'results' in it.", _HINT)
    general = document["config_general"]
    config = checked.part(general, "model_config")
    name = checked.text(general.get("model_name") or config.get("model_name"), f"{path}, 'model_name'") or opened.model
    if not name:
        raise InputError(f"{path}: no 'model_name' in 'config_general'.", f"name it: --model '{path}=NAME'.")
    point = training_point({key: str(config[key]) for key in ("revision", "subfolder") if config.get(key)})
    chat = config.get("override_chat_template") or general.get("use_chat_template")
    tasks = [task for key, metrics in document["results"].items() if (task := _task(key, metrics, str(path)))]
    groups = _groups(tasks)
    drawn = next(filter(None, (checked.part(settings, "generation_parameters") for settings in (general, config))), {})
    rows = _rows(tasks, groups, document, str(path))
    seed = "" if drawn.get("seed") is None else str(drawn["seed"])
    return [
        ScoreFile(
            path,
            rows,
            {"model": name, "unit": "own", **point.claim(), **(Claim(prompt="chat") if chat else Claim())},
            date_in(path.stem),
            limited=general.get("max_samples") is not None,
            commit=str(general.get("model_sha") or ""),
            missing=_missing(tasks, groups),
            weights="@".join([name, *(str(config[key]) for key in _WEIGHTS if config.get(key))]),
            settings=",".join(f"{key}={value}" for key, value in sorted(config.items()) if key not in _NO_SETTINGS)
            + "".join(f",{key}={value}" for key, value in sorted(drawn.items()) if key != "seed" and value is not None),
            sampling=dict.fromkeys(_written(tasks, groups, document), seed) if checked.is_sampled(drawn) else {},
            members={task.name: name for name, group in groups.items() for task in group.members},
            made=_made(general, config, drawn, chat=chat),
        )
    ]


def _made(general: Document, config: Document, drawn: Document, *, chat: object) -> Settings:
    """How all scores of a file were made, as far as it says so."""
    version, dtype, max_new_tokens = general.get("lighteval_sha"), config.get("dtype"), drawn.get("max_new_tokens")
    return {
        "harness": "lighteval",
        "harness_version": version if isinstance(version, str) and version != "?" else None,
        "chat_template": chat if isinstance(chat, bool) else None,
        "system_instruction": checked.text(config.get("system_prompt"), "system_prompt"),
        "limit": checked.finite(general.get("max_samples")),
        "temperature": checked.finite(drawn.get("temperature")),
        "top_p": checked.finite(drawn.get("top_p")),
        "max_gen_toks": max_new_tokens if type(max_new_tokens) is int else None,
        "dtype": dtype.removeprefix("torch.") if isinstance(dtype, str) and dtype != "auto" else None,
        "adapter": config.get("adapter_weights") if isinstance(config.get("adapter_weights"), str) else None,
        "seed": drawn.get("seed") if type(drawn.get("seed")) is int else None,
    }


def _written(tasks: list[_Task], groups: dict[str, _Group], document: Document) -> list[str]:
    """The tasks and groups whose answers are written, and so may be sampled; choices are scored by likelihoods."""
    written = [
        task.name
        for task in tasks
        if not all(_LIKELIHOOD.fullmatch(name) for name in task.metrics if not name.endswith("_stderr"))
        and _config(document, task).get("generation_size", _LONG) not in (-1, 0, 1, None)
    ]
    return written + [
        name for name, group in groups.items() if {member.name for member in group.members} & set(written)
    ]


def _task(key: str, metrics: object, where: str) -> _Task | None:
    """A row of the results; None for the mean over everything."""
    if key == "all":
        return None
    *suite, name, shots = key.split("|") if key.count("|") in (1, 2) else ("", "", "")
    if not name.strip() or not shots.isdigit() or not isinstance(metrics, dict):
        raise InputError(f"{where}, 'results': {key[:60]!r} is not the scores of a task 'task|shots'.", _HINT)
    return _Task(key, "".join(suite), name, int(shots), metrics)


def _groups(tasks: list[_Task]) -> dict[str, _Group]:
    """The groups by name whose tasks are several of the same metrics."""
    members: dict[tuple[str, str, int], list[_Task]] = defaultdict(list)
    for task in tasks:
        if not task.name.endswith(_AVERAGE):
            members[task.suite, task.name.partition(":")[0], task.shots].append(task)
    groups = {}
    for task in tasks:
        name = task.name.removesuffix(_AVERAGE)
        own_tasks = members[task.suite, name, task.shots]
        if (
            name != task.name
            and len(own_tasks) >= _FEWEST_TASKS
            and len({frozenset(task_of_group.metrics) for task_of_group in own_tasks}) == 1
        ):
            groups[name] = _Group(task, own_tasks)
    return groups


def _scored(tasks: list[_Task], groups: dict[str, _Group]) -> list[_Group]:
    """All tasks, each as a group of itself, and the groups."""
    return [*(_Group(task, [task]) for task in tasks if not task.name.endswith(_AVERAGE)), *groups.values()]


def _missing(tasks: list[_Task], groups: dict[str, _Group]) -> int:
    """How many scores are no numbers."""
    metrics = (item for group in _scored(tasks, groups) for item in group.row.metrics.items())
    return sum(checked.finite(value) is None for name, value in metrics if not name.endswith("_stderr"))


def _rows(tasks: list[_Task], groups: dict[str, _Group], document: Document, where: str) -> list[Claim]:
    """The claims of groups and of all tasks."""
    inside = {task.key: name for name, group in groups.items() for task in group.members}
    rows = list[Claim]()
    for task, members in _scored(tasks, groups):
        name = task.name.removesuffix(_AVERAGE)
        version = checked.part(document, "versions").get(task.key)
        configs = [_config(document, member) for member in members]
        items = [  # lighteval writes -1 where it does not know
            checked.whole(config.get("effective_num_docs"), f"{where}, {member.key}, 'effective_num_docs'")
            for config, member in zip(configs, members, strict=True)
        ]
        number = sum(filter(None, items)) if all(member and member > 0 for member in items) else None
        totals = [config.get("original_num_docs") for config in configs]
        of_all = [member for member in totals if type(member) is int and member > 0]
        made: Settings = {
            "task_version": None if version is None else str(version),
            "n_items_scored": number,
            "n_items_total": sum(of_all) if len(of_all) == len(totals) else None,
        }
        for metric, value in task.metrics.items():
            if metric.endswith("_stderr") or checked.finite(value) is None:
                continue
            errors = [
                checked.standard_error(member.metrics.get(f"{metric}_stderr"), f"{where}, {member.key}")
                for member in members
            ]
            squares = [error**2 for error in errors if error is not None]
            rows.append(
                {
                    "benchmark": name,
                    "suite": task.suite or None,
                    "group": inside.get(task.key),
                    "metric": metric_key(metric),
                    "num_fewshot": task.shots,
                    "value": checked.score(value, f"{where}, {task.key}, {metric}", _HINT),
                    # of a mean over independent scores
                    "stderr": math.sqrt(sum(squares)) / len(members) if len(squares) == len(members) else None,
                    "n_items": number,
                    "made": made,
                    "higher_is_better": _direction(configs[0], metric),
                }
            )
    return rows


def _config(document: Document, task: _Task) -> Document:
    """The task's part of `config_tasks`, whose keys may lack the shots."""
    keys = (task.key, f"{task.suite}|{task.name}", task.name)
    return next(filter(None, (checked.part(document, "config_tasks", key) for key in keys)), {})


def _direction(config: Document, metric: str) -> bool | None:
    entries = config.get("metrics") or config.get("metric")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("metric_name") == metric:
            direction = entry.get("higher_is_better")
            return direction if isinstance(direction, bool) else None
    return None


FORMAT = Format("lighteval", (".json",), _recognises, _read)
