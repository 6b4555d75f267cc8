"""Result files written by lm-eval itself (`results_*.json`) -> scores.

Read are the layouts of lm-eval 0.3 (metrics without a filter, `acc` and `acc_stderr`), of 0.4.0 to 0.4.2 (the model in
`config.model_args` only), of later versions (`model_name`, `n-samples`, `higher_is_better`), and what `export lm-eval`
writes.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from lm_validity.errors import InputError
from lm_validity.tables.json_values import finite, flag, number, score, text, whole
from lm_validity.tables.model_arguments import parse_arguments, training_point
from lm_validity.tables.schema import SCORES

_KEY = (
    "benchmark",
    "model",
    "protocol",
    "checkpoint",
    "num_fewshot",
    "seed",
    "split",
    "prompt",
    "prompt_variant",
    "metric",
)
# entries of a task's results that are no metrics
_NO_METRICS = frozenset(("alias", "name", "sample_len"))
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
_HINT = "lm-eval writes such a file with --output_path: results_<date>.json."


def read_lm_eval(paths: Iterable[str | Path]) -> pd.DataFrame:
    """One row per (model, task, metric) of each file, with the columns of `SCORES`.

    Every metric is kept under lm-eval's key `name,filter`; reports take the one that the benchmarks sheet names.
    `checkpoint` and `iteration` are those of the model's `revision` or `step`, `num_fewshot` is the number of solved
    examples that the file gives for the task. lm-eval does not say which split it scored nor how a model was prepared:
    split `test`, protocol `direct`, unless the file was written by `export lm-eval`, which does. Groups (averages over
    tasks) stay out, since their members are there.

    Raises InputError for a file that is not an lm-eval result, a value that is not of its column's type (a score that
    is no finite number, a count of items that is not whole), or the same score twice.
    """
    rows: list[dict] = []
    origin: dict[tuple, Path] = {}
    for path in map(Path, paths):
        for row in _rows(path):
            key = tuple(row[column] for column in _KEY)
            if key in origin:
                raise InputError(
                    f"{path}: {row['model']}, {row['benchmark']}, {row['metric']}, prompt {row['prompt']}, "
                    f"checkpoint {row['checkpoint']} is also in {origin[key]}.",
                    "give each score once.",
                )
            origin[key] = path
            rows.append(row)
    if not rows:
        raise InputError("no scores in the given files.", _HINT)
    frame = pd.DataFrame(rows).reindex(columns=SCORES.names)
    return frame.sort_values(list(_KEY), ignore_index=True, kind="stable")


def _rows(path: Path) -> Iterable[dict]:
    document = _read(path)
    config = _section(document, "config", path)
    arguments = parse_arguments(config.get("model_args"))
    model = _model_name(document, arguments, path)
    own = _section(document, "lm_validity", path)
    # lm-eval 0.4.0 lists groups under `groups` only; later versions have tasks in `group_subtasks` too, without members
    groups = {name for name, members in _section(document, "group_subtasks", path).items() if members}
    groups |= set(_section(document, "groups", path))
    counts = _section(document, "n-samples", path, of_objects=True)
    all_directions = _section(document, "higher_is_better", path, of_objects=True)
    selected = _section(own, "selected", path)
    examples = _section(document, "n-shot", path)
    configs = _section(document, "configs", path)
    point = {} if own else training_point(arguments)._asdict()
    of_file = {
        name: check(own.get(name, point.get(name, default)), f"{path}, 'lm_validity', {name!r}")
        for name, (default, check) in _OF_FILE.items()
    }
    if "prompt" not in own:
        of_file["prompt"] = "chat" if document.get("chat_template") else "plain"
    for task, metrics in document["results"].items():
        if task in groups or not isinstance(metrics, dict):
            continue
        count = whole((counts.get(task) or {}).get("effective"), f"{path}, 'n-samples', {task!r}, 'effective'")
        directions = all_directions.get(task) or {}
        shots = _examples(task, examples, configs, config)
        before_filters = not any("," in key for key in metrics)
        for key, value in metrics.items():
            name, _, filter_name = key.partition(",")
            if name in _NO_METRICS or name.endswith("_stderr") or not (filter_name or before_filters):
                continue
            error = metrics.get(f"{name}_stderr,{filter_name}" if filter_name else f"{name}_stderr")
            yield {
                "model": model,
                **of_file,
                "benchmark": task,
                "num_fewshot": whole(shots, f"{path}, number of solved examples of {task!r}"),
                "metric": key if filter_name else f"{key},none",
                "value": score(value, f"{path}, {task}, {key}", "run that task again."),
                "stderr": finite(error),
                "n_items": count,
                "higher_is_better": flag(directions.get(name), f"{path}, 'higher_is_better', {task!r}, {name!r}"),
                "selected": flag(selected.get(task, True), f"{path}, 'selected', {task!r}"),
                "source": "lm-eval",
            }


def _read(path: Path) -> dict:
    if not path.is_file():
        raise InputError(f"{path}: no such file.", _HINT)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}).", _HINT) from error
    if not isinstance(document, dict) or not isinstance(document.get("results"), dict):
        raise InputError(f"{path}: no object 'results' in it.", _HINT)
    return document


def _section(document: dict, name: str, path: Path, of_objects: bool = False) -> dict:
    """An object that not every file has; {} where it is absent or null."""
    section = document.get(name) or {}
    if not isinstance(section, dict):
        raise InputError(f"{path}: {name!r} is no object but {str(section)[:60]}.", _HINT)
    for key, value in section.items() if of_objects else ():
        if not isinstance(value, dict | None):
            raise InputError(f"{path}: {name!r}, {key!r} is no object but {str(value)[:60]}.", _HINT)
    return section


def _examples(task: str, examples: dict, configs: dict, config: dict):
    """Solved examples before each question as the file has them: of the task, else of the whole run; else None."""
    if examples.get(task) is not None:
        return examples[task]
    of_task = configs.get(task)
    found = of_task.get("num_fewshot") if isinstance(of_task, dict) else None
    return config.get("num_fewshot") if found is None else found


def _model_name(document: dict, arguments: dict[str, str], path: Path) -> str:
    """lm-eval records the model under `model_name`; older files have it in the arguments only."""
    name = document.get("model_name") or arguments.get("pretrained")
    if not isinstance(name, str) or not name:
        raise InputError(f"{path}: neither 'model_name' nor 'config.model_args.pretrained' names the model.", _HINT)
    return name
