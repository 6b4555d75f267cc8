"""One result file of lm-eval -> its scores.

Read are the layouts of lm-eval 0.3 (metrics without a filter, `acc` and `acc_stderr`), of 0.4.0 to 0.4.2 (the model in
`config.model_args` only), of later versions (`model_name`, `n-samples`, `higher_is_better`), what `export lm-eval`
writes, and those of BigScience's fork: a list of results with the name of the prompt, results by date, and curves
(`checkpoints`, `tokens` and one value per checkpoint).
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lm_validity.errors import InputError
from lm_validity.tables.formats.found_files import Found, date_in
from lm_validity.tables.formats.json_values import (
    finite,
    flag,
    number,
    read_json_file,
    score,
    standard_error,
    text,
    whole,
)
from lm_validity.tables.formats.model_arguments import model_name, parse_arguments, training_point
from lm_validity.tables.formats.score_files import ScoreFile

PARAMETERS = "number of parameters"  # in `ScoreFile.identity`
HINT = "lm-eval writes such a file with --output_path: results_<date>.json."
# entries of a task's results that are no metrics
_NO_METRICS = frozenset(
    ("alias", "name", "sample_len", "sample_count", "samples", "task_name", "prompt_name", "fixed_answer_choice_list",
     "dataset_path", "dataset_name", "subset", "prompt_id", "prompt_jinja", "prompt_original_task", "comment")
)  # fmt: skip
# What `export lm-eval` says of a whole file: what holds where the file does not say, and how it is checked
_OF_FILE = {
    "checkpoint": ("final", text),
    "iteration": (None, whole),
    "tokens_b": (None, number),
    "protocol": ("direct", text),
    "prompt": ("plain", text),
    "prompt_variant": (None, text),
    "seed": (None, whole),
    "split": ("test", text),
}
# Arguments of a model beside its name that make another model of it
_CHANGES = ("load_in_4bit", "load_in_8bit", "autogptq", "gptqmodel", "gguf_file", "quantization")


def read_result_file(found: Found, given_name: str | None = None) -> ScoreFile:
    """The scores of a file under lm-eval's keys `name,filter`.

    `checkpoint` and `iteration` are those of the model's `revision` or `step`, else of a step in the file's name,
    `num_fewshot` is the number of solved examples that the file gives for the task. lm-eval does not say which split it
    scored nor whether a model was fine-tuned: split `test`, protocol `direct`, unless the file was written by `export
    lm-eval`, which does. Groups (averages over tasks) stay out, since their members are there. The model's name is
    `given_name`, else the file's; a file without one that was found in a folder has that folder's.

    Raises InputError for a file that is not an lm-eval result and for a value that is not of its column's type. NaN,
    infinity and null are scores that are missing.
    """
    path = found.path
    document = _read(path)
    if isinstance(document.get("checkpoints"), list) and isinstance(document["results"], dict):
        return _curves(document, path, given_name or path.stem.removesuffix("_agg"))
    config = _section(document, "config", path)
    arguments = parse_arguments(config.get("model_args"))
    name, of_folder = _name(document, config, arguments, found, given_name)
    own = _section(document, "lm_validity", path)
    rows, missing = _rows(document, config, own, path)
    return ScoreFile(
        path=path,
        rows=rows,
        common={"model": name, **_of_file(document, config, arguments, own, path)},
        date=_date(document, path),
        identity={} if given_name else _identity(config, arguments, path if of_folder else None),
        limited=config.get("limit") is not None,
        commit=str(config.get("model_sha") or ""),
        missing=missing,
    )


def _of_file(
    document: dict[str, Any], config: dict[str, Any], arguments: dict[str, str], own: dict[str, Any], path: Path
) -> dict[str, Any]:
    """The columns that all rows of a file share."""
    if own:
        point: dict[str, object] = {}
    else:
        if not arguments.get("revision") and config.get("model_revision"):
            arguments = arguments | {"revision": str(config["model_revision"])}
        found = training_point(arguments)
        if found.checkpoint == "final" and not {"revision", "step"} & set(arguments):
            found = training_point({"revision": path.stem}, only_steps=True)
        point = found._asdict()
    of_file = {
        name: check(own.get(name, point.get(name, default)), f"{path}, 'lm_validity', {name!r}")
        for name, (default, check) in _OF_FILE.items()
    }
    if "prompt" not in own:
        of_file["prompt"] = "chat" if document.get("chat_template") else "plain"
    return of_file


def _rows(
    document: dict[str, Any], config: dict[str, Any], own: dict[str, Any], path: Path
) -> tuple[list[dict[str, Any]], int]:
    """Rows of all tasks, and how many scores are missing."""
    # lm-eval 0.4.0 lists groups under `groups` only; later versions have tasks in `group_subtasks` too, without members
    groups = {name for name, members in _section(document, "group_subtasks", path).items() if members}
    groups |= set(_section(document, "groups", path))
    counts = _section(document, "n-samples", path, of_objects=True)
    all_directions = _section(document, "higher_is_better", path, of_objects=True)
    selected = _section(own, "selected", path)
    examples, configs = _section(document, "n-shot", path), _section(document, "configs", path)
    rows, missing = [], 0
    for task, variant, metrics in _tasks(document["results"], path):
        if task in groups:
            continue
        common = {
            "benchmark": task,
            "num_fewshot": whole(
                _examples(task, examples, configs, config), f"{path}, number of solved examples of {task!r}"
            ),
            "n_items": whole((counts.get(task) or {}).get("effective"), f"{path}, 'n-samples', {task!r}, 'effective'"),
            "selected": flag(selected.get(task, True), f"{path}, 'selected', {task!r}"),
        }
        if variant is not None:
            common["prompt_variant"] = text(variant, f"{path}, {task}, 'prompt_name'")
        directions = all_directions.get(task) or {}
        for row in _metrics(metrics, f"{path}, {task}"):
            if row["value"] is None:
                missing += 1
                continue
            name = row["metric"].partition(",")[0]
            direction = flag(directions.get(name), f"{path}, 'higher_is_better', {task!r}, {name!r}")
            rows.append({**common, **row, "higher_is_better": direction})
    return rows, missing


def _tasks(results: Any, path: Path) -> Iterable[tuple[str, str | None, dict[str, Any]]]:
    """Name, wording of the prompt and metrics of each task, in any of the layouts."""
    if isinstance(results, list):
        for entry in results:
            if not isinstance(entry, dict) or not isinstance(entry.get("task_name"), str):
                raise InputError(f"{path}: a result without 'task_name': {str(entry)[:60]}.", HINT)
            yield entry["task_name"], entry.get("prompt_name"), entry
        return
    for task, metrics in results.items():
        if not isinstance(metrics, dict):
            continue
        dates = {date_in(key): value for key, value in metrics.items() if isinstance(value, dict)}
        known = [date for date in dates if date is not None]
        if dates and len(known) == len(dates):
            metrics = dates[max(known)]
        yield metrics.get("task_name", task), metrics.get("prompt_name"), metrics


def _metrics(metrics: dict[str, Any], where: str) -> Iterable[dict[str, Any]]:
    """`metric`, `value` (None: missing) and `stderr` of each metric of a task."""
    before_filters = not any("," in key for key in metrics)
    for key, value in metrics.items():
        name, _, filter_name = key.partition(",")
        if name in _NO_METRICS or not name.strip() or name.endswith("_stderr") or not (filter_name or before_filters):
            continue
        unknown = value is None or (isinstance(value, float) and not math.isfinite(value))
        yield {
            "metric": key if filter_name else f"{key},none",
            "value": None if unknown else score(value, f"{where}, {key}", "run that task again."),
            "stderr": standard_error(
                metrics.get(f"{name}_stderr,{filter_name}" if filter_name else f"{name}_stderr"), f"{where}, {key}"
            ),
        }


def _curves(document: dict[str, Any], path: Path, model: str) -> ScoreFile:
    """Curves: `checkpoints` (steps) and `tokens`, and for each task and metric one value per checkpoint."""
    steps = [whole(step, f"{path}, 'checkpoints'") for step in document["checkpoints"]]
    tokens = document.get("tokens") or [None] * len(steps)
    rows, missing = [], 0
    for task, metrics in document["results"].items():
        for metric, values in metrics.items() if isinstance(metrics, dict) else ():
            if metric.endswith("_stderr"):
                continue
            errors = metrics.get(f"{metric}_stderr") or [None] * len(steps)
            if not all(isinstance(each, list) and len(each) == len(steps) for each in (values, errors, tokens)):
                raise InputError(f"{path}, {task}, {metric}: not one value for each of {len(steps)} checkpoints.", HINT)
            for step, seen, value, error in zip(steps, tokens, values, errors, strict=True):
                if step is None or finite(value) is None:
                    missing += 1
                    continue
                rows.append(
                    {
                        "checkpoint": f"step{step}",
                        "iteration": step,
                        "tokens_b": None if (known := finite(seen)) is None else known / 1e9,
                        "benchmark": task,
                        "metric": f"{metric},none",
                        "value": finite(value),
                        "stderr": standard_error(error, f"{path}, {task}, {metric}, checkpoint {step}"),
                    }
                )
    return ScoreFile(path, rows, {"model": model}, date_in(path.name), missing=missing)


def _read(path: Path) -> dict[str, Any]:
    document = read_json_file(path, HINT)
    if not isinstance(document, dict) or not isinstance(document.get("results"), dict | list):
        raise InputError(f"{path}: no object 'results' in it.", HINT)
    results = document["results"]
    if not any(isinstance(one, dict) and one for one in (results if isinstance(results, list) else results.values())):
        raise InputError(f"{path}: no task's metrics in 'results'.", HINT)
    return document


def _section(document: dict[str, Any], name: str, path: Path, *, of_objects: bool = False) -> dict[str, Any]:
    """An object that not every file has; {} where it is absent or null."""
    section = document.get(name) or {}
    if not isinstance(section, dict):
        raise InputError(f"{path}: {name!r} is not an object but {str(section)[:60]}.", HINT)
    for key, value in section.items() if of_objects else ():
        if not isinstance(value, dict | None):
            raise InputError(f"{path}: {name!r}, {key!r} is not an object but {str(value)[:60]}.", HINT)
    return section


def _examples(task: str, examples: dict[str, Any], configs: dict[str, Any], config: dict[str, Any]) -> object:
    """Solved examples before each question as the file has them: of the task, else of the whole run; else None."""
    if examples.get(task) is not None:
        return examples[task]
    of_task = configs.get(task)
    found = of_task.get("num_fewshot") if isinstance(of_task, dict) else None
    return config.get("num_fewshot") if found is None else found


def _date(document: dict[str, Any], path: Path) -> float | None:
    """The file's `date` (seconds since 1970), else the date in its name."""
    return finite(document.get("date")) or date_in(path.stem)


def _name(
    document: dict[str, Any], config: dict[str, Any], arguments: dict[str, str], found: Found, given: str | None
) -> tuple[str, bool]:
    """The model's name, and whether it is that of the file's folder."""
    name = given or document.get("model_name") or model_name(arguments)
    if not name and isinstance(config.get("model"), str) and "/" in config["model"]:
        name = config["model"]  # leaderboards write the hub id where lm-eval has the kind of model
    if isinstance(name, str) and name:
        return name, False
    if found.named:
        raise InputError(
            f"{found.path}: neither 'model_name' nor 'config.model_args.pretrained' names the model.",
            f"name it: --model '{found.path}=NAME'.",
        )
    return folder_name(found.path), True


def folder_name(path: Path) -> str:
    """A model's name from its folder, where lm-eval writes `__` for the `/` of a hub id."""
    return path.resolve().parent.name.replace("__", "/", 1)


def _identity(config: dict[str, Any], arguments: dict[str, str], folder: Path | None) -> dict[str, str]:
    """What tells two models of one name apart: parameters, quantisation, and for a folder's name the folder."""
    identity = {}
    parameters = finite(config.get("model_num_parameters"))
    if parameters and parameters > 0:
        identity[PARAMETERS] = f"{parameters:.0f}"
    changed = [
        f"{name}={arguments[name]}" for name in _CHANGES if arguments.get(name, "").lower() not in ("", "false", "none")
    ]
    identity["quantisation"] = ", ".join(changed) or "none"
    if folder is not None:
        identity |= folder_identity(folder)
    return identity


def folder_identity(path: Path) -> dict[str, str]:
    """The folder of a model that is named by it. `org__name`, which lm-eval made of a hub id, is one model anywhere."""
    folder = path.resolve().parent
    return {} if "__" in folder.name else {"folder": str(folder)}
