"""lm-eval's result files, and what their model arguments say."""

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lm_validity.errors import InputError
from lm_validity.files import as_written
from lm_validity.tables.cell_text import plain
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.score_files import Format, ImportOptions, Opened, ScoreFile, date_in
from lm_validity.tables.reading import LEFT_OUT, Decision
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import count, listing

# ----------------------------------------------------------------------------------------------------------------------
# What arguments, paths and file names say of a model: its name, and the point of its training that was evaluated.

# Optimizer steps in the name of a revision or folder: step1000, global_step-1000, iter_0001000; "step10k" is left alone
_STEPS = re.compile(r"(?<![a-z])(?:global_?)?(?:steps?|iter(?:ation)?s?)[-_]?(\d{1,15})(?![\da-z])", re.IGNORECASE)
_TOKENS = re.compile(r"(?<![a-z])tokens[-_]?(\d{1,9}(?:\.\d+)?)B(?![a-z])", re.IGNORECASE)
_LATER_STAGE = re.compile(r"(?<![a-z])stage[-_]?([2-9]|\d\d+)(?!\d)", re.IGNORECASE)
# Arguments from which lm-eval takes the model's name: that of an adapter before that of its base
_NAMES = ("peft", "delta", "pretrained", "model", "path", "engine")
# A folder that holds a checkpoint: step_30, checkpoint-500, iter_0001000, global_step1000
_FOLDER = re.compile(
    r"(?:checkpoint|ckpt|(?:global_?)?steps?|iter(?:ation)?s?)[-_]?(\d{1,15})(?:[-_](?:hf|converted|fp16|bf16))?", re.I
)
_CACHE = re.compile(r"models--([^/]+?)--([^/]+)")  # of a hub id, in its cache
_COLUMNS = {"task": "benchmark", "step": "iteration"}  # other names of a pattern's fields
_NUMBERS = ("iteration", "seed", "num_fewshot")
_KINDS = {"protocol": "|".join(PROTOCOLS), **dict.fromkeys(_NUMBERS, "[0-9]{1,15}")}
_FIELDS = ("model", "benchmark", "task", "checkpoint", "iteration", "step", "protocol", "seed", "num_fewshot")
_FINISHED = frozenset(("", "main", "master", "none", "null", "final"))


class Point(NamedTuple):
    """A point of training: `checkpoint` is `final` for the finished model."""

    checkpoint: str = "final"
    iteration: int | None = None
    tokens_b: float | None = None


def parse_arguments(arguments: object) -> dict[str, str]:
    """`model_args` as lm-eval records them: a text `a=b,c=d`, or an object. Values are texts; {} for anything else."""
    if isinstance(arguments, str):
        pairs = (part.split("=", 1) for part in arguments.split(",") if "=" in part)
        return {name.strip(): value.strip() for name, value in pairs}
    if isinstance(arguments, dict):
        return {str(name): "" if value is None else str(value) for name, value in arguments.items()}
    return {}


def training_point(arguments: dict[str, str], *, only_steps: bool = False) -> Point:
    """The point of training that `revision`, `subfolder` and `step` name; `final` for none of them and for `main`.

    The checkpoint has the revision's own name, so that two revisions of one model stay apart. Its iteration and its
    tokens are what that name says: `step1000`, `iter_1000`, `stage1-step1000-tokens4B`. Steps of a later stage of
    training are counted from that stage's beginning and give no iteration. `only_steps`: what names no step is `final`,
    and a step is the checkpoint's name.
    """
    names = [arguments.get(name, "") for name in ("revision", "subfolder")]
    names = [name for name in names if name.lower() not in _FINISHED]
    step = arguments.get("step", "")
    if step.isascii() and step.isdigit() and len(step) < 16:
        return Point("/".join([*names, f"step{int(step)}"]), int(step))
    names += [step] if step else []
    if not names:
        return Point()
    name = "/".join(names)
    later = _LATER_STAGE.search(name)
    steps, tokens = _STEPS.findall(name), _TOKENS.findall(name)
    iteration = int(steps[-1]) if steps and not later else None
    if only_steps:
        return Point() if iteration is None else Point(f"step{iteration}", iteration)
    return Point(name, iteration, float(tokens[-1]) if tokens and not later else None)


class ModelPlace(NamedTuple):
    """A model's name as its path gives it, the path without what does not tell models apart, and a checkpoint."""

    name: str
    path: str
    point: Point


def model_place(raw: str) -> ModelPlace:
    """The model that a name or path in a file means.

    A hub id stays as it is. Of a path, slashes at the end, the folders `snapshots/<hash>` and `model` and a folder of a
    checkpoint (`step_30`, `checkpoint-500`, `iter_0001000`, `global_step1000`) are taken off; the name is its last
    folder, or the hub id of a folder in the hub's cache.
    """
    parts = [part for part in raw.split("/") if part not in ("", ".")]
    point = Point()
    folder = _FOLDER.fullmatch(parts[-1]) if len(parts) > 1 else None
    if folder is not None:
        point = Point(parts.pop(), int(folder[1]))
    if not parts:  # the root of a disk, which has no name: `check_rows` asks for one
        return ModelPlace("", raw, point)
    local = raw.startswith(("/", "./", "../", "~")) or len(parts) > 2 or (folder is not None and len(parts) > 1)
    if not local:
        return ModelPlace("/".join(parts) or raw, "/".join(parts), point)
    if "snapshots" in parts[1:]:
        parts = parts[: parts.index("snapshots", 1)]
    elif parts[-1] == "model" and len(parts) > 1:
        parts.pop()
    path = "/" * raw.startswith("/") + "/".join(parts)
    cached = _CACHE.fullmatch(parts[-1])
    return ModelPlace("/".join(cached.groups()) if cached else parts[-1], path, point)


@dataclass
class PlacesRead:
    """What was read from the paths of models, to be said."""

    paths: dict[str, set[str]] = field(default_factory=dict)
    checkpoints: Counter[str] = field(default_factory=Counter)

    def read(self, raw: str) -> ModelPlace:
        """Where a model's weights are, as `model_place` finds it; each answer is kept for the next call."""
        place_read = model_place(raw)
        if place_read.path != place_read.name:
            self.paths.setdefault(place_read.name, set()).add(place_read.path)
        if place_read.point.iteration is not None:
            self.checkpoints[place_read.point.checkpoint] += 1
        return place_read

    def lines(self) -> list[str]:
        """A line for each kind of reading, and for each name that several paths have."""
        lines = []
        if self.paths:
            name, paths = min(self.paths.items())
            lines.append(
                f"Named by the last folder of their paths: {count(len(self.paths), 'model')} ({name} is {min(paths)})."
            )
        several = {name: sorted(paths) for name, paths in sorted(self.paths.items()) if len(paths) > 1}
        if several:
            name, examples = next(iter(several.items()))
            lines.append(
                f"Of several paths, each taken as one model: {listing(list(several), 5)} "
                f"(such as {listing(examples, 2)})."
            )
        if self.checkpoints:
            names = listing(list(self.checkpoints), 3)
            lines.append(f"Checkpoints read from folders ({names}): {count(self.checkpoints.total(), 'file')}.")
        return lines


class PathPattern:
    """`--path '{model}-{task}.json'`: columns from the end of a file's path, or of the path of a model in a file.

    A field takes no slash, and as much as it can from left to right; `*` stands for anything without a slash. Raises
    InputError for a pattern without fields and for a field that is not known.
    """

    def __init__(self, text: str):
        self.text, self.used = text, False
        pieces = re.split(r"(\{[^{}]*\}|\*)", re.sub("/+", "/", text))
        expression = ""
        for piece in pieces:
            if not piece.startswith("{"):
                expression += "[^/]*" if piece == "*" else re.escape(piece)
                continue
            name = piece[1:-1]
            if name not in _FIELDS or f"<{name}>" in expression:
                raise InputError(
                    f"--path '{text}': {piece} is not a field, or is there twice.", f"fields: {', '.join(_FIELDS)}."
                )
            expression += f"(?P<{name}>{_KINDS.get(_COLUMNS.get(name, name), '[^/]+')})"
        if "(?P<" not in expression:
            raise InputError(f"--path '{text}': no field in it.", "write {model}, as in '{model}-{task}.json'.")
        self.expression = re.compile(rf"(?:^|/){expression}/?$")

    def of(self, path: Path | str) -> dict[str, Any]:
        """The columns that a path gives; {} where it does not fit the pattern."""
        match = self.expression.search(re.sub("/+", "/", str(path)))
        if match is None:
            return {}
        self.used = True
        columns: dict[str, Any] = {_COLUMNS.get(name, name): value for name, value in match.groupdict().items()}
        columns |= {name: int(columns[name]) for name in _NUMBERS if name in columns}
        if "iteration" in columns:
            columns.setdefault("checkpoint", f"step{columns['iteration']}")
        return columns


# ----------------------------------------------------------------------------------------------------------------------
# Result files of lm-eval -> their scores.
#
# Read are the layouts of lm-eval 0.3 (metrics without a filter, `acc` and `acc_stderr`), of 0.4.0 to 0.4.2 (the model
# in `config.model_args` only), of later versions (`model_name`, `n-samples`, `higher_is_better`), what `export lm-
# eval` writes, and those of BigScience's fork: a list of results with the name of the prompt, results by date, and
# curves (`checkpoints`, `tokens` and one value per checkpoint).

PARAMETERS = "number of parameters"  # in `ScoreFile.identity`
HINT = "lm-eval writes such a file with --output_path: results_<date>.json."
# entries of a task's results that are no metrics
_NO_METRICS = frozenset(
    ("alias", "name", "bypass", "run_stats",
     "sample_len", "sample_count", "samples", "task_name", "prompt_name", "fixed_answer_choice_list",
     "dataset_path", "dataset_name", "subset", "prompt_id", "prompt_jinja", "prompt_original_task", "comment")
)  # fmt: skip
_SAME = 1e-6  # of a mean over runs and the mean of these
_COUNTS = re.compile(r"(num|n)_\w+|solved(_avg)?|repeat\w*")  # evalchemy's, beside its scores
# Arguments of a model that name its weights, or say where and how fast it runs
_NO_SETTINGS = frozenset(
    ("pretrained", "model", "path", "engine", "revision", "subfolder", "step", "peft", "delta", "device", "device_map",
     "parallelize", "trust_remote_code", "batch_size", "max_batch_size", "cache_dir", "token", "use_fast_tokenizer",
     "tensor_parallel_size", "data_parallel_size", "gpu_memory_utilization", "max_memory_per_gpu", "max_cpu_memory",
     "offload_folder", "low_cpu_mem_usage", "swap_space", "use_accelerate", "base_url", "num_concurrent")
)  # fmt: skip
# Arguments of a model beside its name that make another model of it
_CHANGES = ("load_in_4bit", "load_in_8bit", "autogptq", "gptqmodel", "gguf_file", "quantization")


def _recognises(opened: Opened) -> bool:
    document = opened.document
    return isinstance(document, dict) and isinstance(document.get("results"), dict | list)


def _read(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    """The scores of a file under lm-eval's keys `name,filter`.

    The checkpoint is that of the model's `revision` or `step`, else of a step in the file's name, `num_fewshot` the
    number of solved examples that the file gives for the task. A group of like tasks (MMLU) with a score and an error
    is named by its tasks' rows. A file without a model's name that was found in a folder has that folder's.

    Raises InputError for a file that is not an lm-eval result and for a value that is not of its column's type. NaN,
    infinity and null are scores that are missing.
    """
    path, document = opened.path, opened.document
    if not _recognises(opened):
        raise InputError(f"{path}: no object 'results' in it.", HINT)
    results = document["results"]
    if not any(
        isinstance(metrics, dict) and metrics
        for metrics in (results if isinstance(results, list) else results.values())
    ):
        raise InputError(f"{path}: no task's metrics in 'results'.", HINT)
    if isinstance(document.get("checkpoints"), list) and isinstance(results, dict):
        return [_curves(document, path, opened.model or path.stem.removesuffix("_agg"))]
    config = _section(document, "config", path)
    arguments = parse_arguments(config.get("model_args"))
    name, of_folder = _name(document, config, arguments, opened)
    own_record = _section(document, "lm_validity", path)
    groups = _groups(document, path)
    rows, missing, odd = _rows(document, config, own_record, groups, path)
    if odd and not rows and not missing:
        raise InputError(f"{path}: {odd[0]} is not a finite number.", "run that task again.")
    members = {task: group for group, tasks in groups.items() for task in tasks}
    sampling = _sampling(document, config, arguments, path)
    return [
        ScoreFile(
            path=path,
            rows=rows,
            common={"model": name, "unit": "own", **_of_file(document, config, arguments, own_record, path)},
            date=checked.date(document.get("date")) or date_in(path.stem),
            identity=_identity(config, arguments, path if of_folder else None),
            limited=config.get("limit") is not None,
            commit=str(config.get("model_sha") or ""),
            missing=missing,
            weights=_weights(name, config, arguments),
            settings=_settings(document, config, arguments, seed=not sampling),
            sampling=sampling,
            made=_made(document, config, arguments),
            members={} if options.split_groups else members,
            decisions=tuple(
                Decision("metric", name, "left out", "values", LEFT_OUT, 1, "", f"{name} is no number") for name in odd
            ),
        )
    ]


def _of_file(
    document: dict[str, Any], config: dict[str, Any], arguments: dict[str, str], own_record: dict[str, Any], path: Path
) -> dict[str, Any]:
    """The columns that all rows of a file share, as far as it says them."""
    if own_record:
        checks = {name: check for name, check in checked.OF_FILE.items() if name in own_record}
        return {name: check(own_record[name], f"{path}, 'lm_validity', {name!r}") for name, check in checks.items()}
    if not arguments.get("revision") and config.get("model_revision"):
        arguments = arguments | {"revision": str(config["model_revision"])}
    point = training_point(arguments)
    if point.checkpoint == "final" and not {"revision", "step"} & set(arguments):
        point = training_point({"revision": path.stem}, only_steps=True)
    return {**point._asdict(), "prompt": "chat" if document.get("chat_template") else "plain"}


def _weights(name: str, config: dict[str, Any], arguments: dict[str, str]) -> str:
    """Path, revision and adapter as one text."""
    base = model_place(arguments.get("pretrained") or name).path
    further_arguments = [arguments.get(key, "") for key in ("revision", "subfolder", "step", "peft", "delta")]
    return "@".join(
        [base, *(value for value in (*further_arguments, str(config.get("model_revision") or "")) if value)]
    )


def _sampling(
    document: dict[str, Any], config: dict[str, Any], arguments: dict[str, str], path: Path
) -> dict[str, str]:
    """The seed by task whose answers were drawn with a temperature, as far as the file says so."""
    over = config.get("gen_kwargs")
    over = parse_arguments(over) if isinstance(over, str) else over if isinstance(over, dict) else {}
    seed = _seed(config, arguments)
    tasks = _section(document, "configs", path)
    return {
        task: seed
        for task, of_task in tasks.items()
        if isinstance(of_task, dict)
        and of_task.get("output_type", "generate_until") == "generate_until"
        and checked.is_sampled((of_task.get("generation_kwargs") or {}) | over)
    }


def _seed(config: dict[str, Any], arguments: dict[str, str]) -> str:
    """The seed of what a run draws at random; "" where it is not said."""
    seeds = (arguments.get("seed"), config.get("torch_seed"), config.get("random_seed"))
    return next((str(seed) for seed in seeds if seed is not None), "")


def _settings(document: dict[str, Any], config: dict[str, Any], arguments: dict[str, str], *, seed: bool) -> str:
    """What changes scores beside weights and task, as one text; `seed`: with the seed of what is drawn at random."""
    settings = {
        name: value for name, value in arguments.items() if name not in _NO_SETTINGS and (seed or name != "seed")
    }
    settings_said = {
        name: document.get(name) for name in ("chat_template_sha", "system_instruction_sha", "fewshot_as_multiturn")
    }
    settings_said["gen_kwargs"] = config.get("gen_kwargs")
    settings |= {name: str(value) for name, value in settings_said.items() if value}
    return ",".join(f"{name}={value}" for name, value in sorted(settings.items()))


def _made(document: dict[str, Any], config: dict[str, Any], arguments: dict[str, str]) -> dict[str, Any]:
    """How the scores of a file were made, as far as it says so: columns of SETTINGS."""
    version = document.get("lm_eval_version") or document.get("git_hash")
    backend, dtype, limit = config.get("model"), arguments.get("dtype"), config.get("limit")
    settings_said: dict[str, Any] = {"harness": "lm-eval", "limit": checked.finite(limit)}
    if isinstance(version, str):
        settings_said["harness_version"] = version
    if "chat_template" in document:
        settings_said["chat_template"] = bool(document["chat_template"])
    if "system_instruction" in document:
        settings_said["system_instruction"] = str(
            document.get("system_instruction_sha") or document["system_instruction"] or "none"
        )
    if isinstance(backend, str) and "/" not in backend:
        settings_said["backend"] = backend
    if dtype and dtype != "auto":
        settings_said["dtype"] = dtype.removeprefix("torch.")
    if (seed := _seed(config, arguments)).isdigit():
        settings_said["seed"] = int(seed)
    if arguments:
        settings_said["adapter"] = arguments.get("peft") or arguments.get("delta") or "none"
    return settings_said


def _made_of_task(document: dict[str, Any], task: str, members: list[str], path: Path) -> dict[str, Any]:
    """The version, hash and number of documents of a task, or of a group whose tasks agree in them."""
    counts = _section(document, "n-samples", path, of_objects=True)
    settings_said: dict[str, Any] = {}
    for name, section in (("task_version", "versions"), ("task_hash", "task_hashes")):
        of_tasks = _section(document, section, path)
        values = {
            str(of_tasks[task_name])
            for task_name in ([task] if task in of_tasks else members)
            if of_tasks.get(task_name)
        }
        settings_said[name] = values.pop() if len(values) == 1 else None
    for name, count_name in (("n_items_scored", "effective"), ("n_items_total", "original")):
        numbers = [(counts.get(task_name) or {}).get(count_name) for task_name in members]
        settings_said[name] = sum(numbers) if all(type(number) is int for number in numbers) else None
    return settings_said


def _groups(document: dict[str, Any], path: Path) -> dict[str, list[str]]:
    """The tasks of each group whose own score counts: with an error, and of like tasks, none of another such group.

    Tasks are alike if there are three or more with the same metrics whose names begin as the group's does: those of
    MMLU are, those of a suite (`pythia`, `glue`) or of different measures (`truthfulqa`) are not.
    """
    results = document["results"] if isinstance(document["results"], dict) else {}
    own_groups = {**_section(document, "groups", path), **results}
    names = set(_section(document, "groups", path))
    subtasks = {name: list(members) for name, members in _section(document, "group_subtasks", path).items() if members}
    if not subtasks:  # lm-eval 0.4.0 does not list them
        subtasks = {name: [task for task in results if task.startswith(f"{name}_")] for name in names}
    below = {name: _below(name, subtasks) for name in subtasks}
    groups_kept: dict[str, list[str]] = {}
    for name in sorted(below, key=lambda group: -len(below[group])):
        tasks = [task for task in below[name] if task not in subtasks and isinstance(results.get(task), dict)]
        kinds = {frozenset(metric for metric in results[task] if "," in metric) for task in tasks}
        start = re.split(r"[-_]", name)[0]
        alike = len(tasks) > 2 and len(kinds) == 1 and all(re.split(r"[-_]", task)[0] == start for task in tasks)
        scores = own_groups.get(name)
        errors = [metric for metric in scores if "_stderr" in metric] if isinstance(scores, dict) else []
        has_error = any(checked.finite(own_groups[name][metric]) is not None for metric in errors)
        if alike and has_error and not any(name in below[other_group] for other_group in groups_kept):
            groups_kept[name] = tasks
    return groups_kept


def _below(name: str, subtasks: dict[str, list[str]]) -> set[str]:
    """Everything in a group, in the groups of it too."""
    members: set[str] = set()
    waiting = [name]
    while waiting:
        new = set(map(str, subtasks.get(waiting.pop(), ()))) - members
        members |= new
        waiting += new
    return members


def _rows(
    document: dict[str, Any],
    config: dict[str, Any],
    own_record: dict[str, Any],
    groups_kept: dict[str, list[str]],
    path: Path,
) -> tuple[list[dict[str, Any]], int, list[str]]:
    """Rows of all tasks and of the groups that are `groups_kept`, how many scores are missing, and metrics that are no
    numbers."""
    # lm-eval 0.4.0 lists groups under `groups` only; later versions have tasks in `group_subtasks` too, without members
    groups = {name for name, members in _section(document, "group_subtasks", path).items() if members}
    groups |= set(_section(document, "groups", path))
    counts = _section(document, "n-samples", path, of_objects=True)
    all_directions = _section(document, "higher_is_better", path, of_objects=True)
    selected = _section(own_record, "selected", path)
    examples, configs = _section(document, "n-shot", path), _section(document, "configs", path)
    left_out, odd = groups - set(groups_kept), list[str]()
    group_of = {task: group for group, tasks in groups_kept.items() for task in tasks}
    results = document["results"]
    if groups_kept and isinstance(results, dict):
        results = _section(document, "groups", path) | results
    rows, missing = [], 0
    for task, variant, metrics in _tasks(results, path):
        if task in left_out:
            continue
        shots = {
            checked.whole(
                _examples(member, examples, configs, config), f"{path}, number of solved examples of {member!r}"
            )
            for member in groups_kept.get(task, [task])
        }
        items = [
            checked.whole((counts.get(member) or {}).get("effective"), f"{path}, 'n-samples', {member!r}, 'effective'")
            for member in groups_kept.get(task, [task])
        ]
        common = {
            "benchmark": task,
            "group": group_of.get(task),
            "num_fewshot": shots.pop() if len(shots) == 1 else None,
            "n_items": None if None in items else sum(filter(None, items)),
            "selected": checked.flag(selected.get(task, True), f"{path}, 'selected', {task!r}"),
            "made": _made_of_task(document, task, groups_kept.get(task, [task]), path),
        }
        if variant is not None:
            common["prompt_variant"] = checked.text(variant, f"{path}, {task}, 'prompt_name'")
        directions = all_directions.get(task) or all_directions.get(groups_kept.get(task, [""])[0]) or {}
        for row in _metrics(metrics, f"{path}, {task}"):
            if row["metric"] is None:
                odd.append(f"{task}: {row['value']}")
                continue
            if row["value"] is None:
                missing += 1
                continue
            name = row["metric"].partition(",")[0]
            direction = checked.flag(directions.get(name), f"{path}, 'higher_is_better', {task!r}, {name!r}")
            own_record = {**common, **row, "higher_is_better": direction}
            rows += [own_record | run for run in _runs(metrics.get("run_stats"), name, row["value"])] or [own_record]
    return rows, missing, odd


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
        dates_known = [date for date in dates if date is not None]
        if dates and len(dates_known) == len(dates):
            metrics = dates[max(dates_known)]
        yield metrics.get("task_name", task), metrics.get("prompt_name"), metrics


def _metrics(metrics: dict[str, Any], where: str) -> Iterable[dict[str, Any]]:
    """`metric`, `value` (None: missing) and `stderr` of each metric of a task; `metric` is None for what is no number,
    such as a table or a list, whose key is then the value. evalchemy writes `x_std_err`, and counts beside its scores.
    """
    before_filters = not any("," in key for key in metrics)
    for key, value in metrics.items():
        name, _, filter_name = key.partition(",")
        if name in _NO_METRICS or not name.strip() or not (filter_name or before_filters):
            continue
        if name.endswith(("_stderr", "_std_err")) or (not filter_name and _COUNTS.fullmatch(name)):
            continue
        if isinstance(value, list | dict | str | bool):
            yield {"metric": None, "value": key}
            continue
        unknown = value is None or (isinstance(value, float) and not math.isfinite(value))
        yield {
            "metric": key if filter_name else f"{key},none",
            "value": None if unknown else checked.score(value, f"{where}, {key}", "run that task again."),
            "stderr": checked.standard_error(_error_of(metrics, name, filter_name), f"{where}, {key}"),
        }


def _runs(stats: object, name: str, mean: float) -> list[dict[str, Any]]:
    """evalchemy's runs (`run_stats`) of the metric whose mean over runs `name` is; [] where they do not give it.

    The error beside the mean is one of runs alone; a run's is that of its items."""
    stats_known = [stat for stat in stats if isinstance(stat, dict)] if isinstance(stats, list) else []
    run_values = [checked.finite(stat.get(re.sub(r"_(avg|mean)$", "", name))) for stat in stats_known]
    values = [value for value in run_values if value is not None]
    if len(values) < 2 or len(values) < len(stats_known) or abs(sum(values) / len(values) - mean) > _SAME:
        return []
    runs = []
    for run, (stat, value) in enumerate(zip(stats_known, values, strict=True)):
        total = stat.get("num_total")
        items = total if isinstance(total, int) and total > 1 and 0 <= value <= 1 else None
        error = None if items is None else math.sqrt(value * (1 - value) / (items - 1))
        runs.append({"run": run, "value": value, "stderr": error, "n_items": items})
    return runs


def _error_of(metrics: dict[str, Any], name: str, filter_name: str) -> object:
    """The standard error beside a metric, under one of the names that programs give it."""
    keys = [f"{name}_stderr,{filter_name}"] if filter_name else [f"{name}_stderr", f"{name}_std_err"]
    if not filter_name:
        keys += [f"{name.removesuffix(end)}_std_err" for end in ("_avg", "_mean") if name.endswith(end)]
    return next((metrics[key] for key in keys if key in metrics), None)


def _curves(document: dict[str, Any], path: Path, model: str) -> ScoreFile:
    """Curves: `checkpoints` (steps) and `tokens`, and for each task and metric one value per checkpoint."""
    steps = [checked.whole(step, f"{path}, 'checkpoints'") for step in document["checkpoints"]]
    tokens = document.get("tokens") or [None] * len(steps)
    rows, missing = [], 0
    for task, metrics in document["results"].items():
        for metric, values in metrics.items() if isinstance(metrics, dict) else ():
            if metric.endswith("_stderr"):
                continue
            errors = metrics.get(f"{metric}_stderr") or [None] * len(steps)
            if not all(isinstance(column, list) and len(column) == len(steps) for column in (values, errors, tokens)):
                raise InputError(f"{path}, {task}, {metric}: not one value for each of {len(steps)} checkpoints.", HINT)
            for step, seen, value, error in zip(steps, tokens, values, errors, strict=True):
                if step is None or checked.finite(value) is None:
                    missing += 1
                    continue
                rows.append(
                    {
                        "checkpoint": f"step{step}",
                        "iteration": step,
                        "tokens_b": None if (tokens_known := checked.finite(seen)) is None else tokens_known / 1e9,
                        "benchmark": task,
                        "metric": f"{metric},none",
                        "value": checked.finite(value),
                        "stderr": checked.standard_error(error, f"{path}, {task}, {metric}, checkpoint {step}"),
                    }
                )
    return ScoreFile(path, rows, {"model": model, "unit": "own"}, date_in(path.name), missing=missing)


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
    of_task = configs.get(task)
    of_task = of_task.get("num_fewshot") if isinstance(of_task, dict) else None
    return next((shots for shots in (examples.get(task), of_task) if shots is not None), config.get("num_fewshot"))


def _name(
    document: dict[str, Any], config: dict[str, Any], arguments: dict[str, str], opened: Opened
) -> tuple[str, bool]:
    """The model's name, and whether it is that of the file's folder."""
    name = document.get("model_name") or next(filter(None, map(arguments.get, _NAMES)), None)
    if not name and isinstance(config.get("model"), str) and "/" in config["model"]:
        name = config["model"]  # leaderboards write the hub id where lm-eval has the kind of model
    if isinstance(name, str) and name:
        return name, False
    if opened.named and not opened.model:
        raise InputError(
            f"{opened.path}: neither 'model_name' nor 'config.model_args.pretrained' names the model.",
            f"name it: --model '{opened.path}=NAME'.",
        )
    return folder_name(opened.path), True


def folder_name(path: Path) -> str:
    """A model's name from its folder, where lm-eval writes `__` for the `/` of a hub id."""
    return as_written(path).parent.name.replace("__", "/", 1)


_BEFORE = re.compile(r"^(model_)?(outputs?|results?|eval|predictions?)_", re.IGNORECASE)
_BEHIND = re.compile(r"[_-](results?|summary|outputs?|predictions?|scores?|metrics)$", re.IGNORECASE)
_SHOTS = re.compile(r"_(\d{1,2})[-_]?shots?$", re.IGNORECASE)
_NO_NAMES = frozenset(("", "results", "result", "summary", "scores", "metrics", "all", "output", "outputs"))


def model_of_path(path: Path, given: str | None, benchmarks: Iterable[str] = ()) -> tuple[str, int | None]:
    """The model that a path names, and solved examples: by the file's name without words such as results, or by the
    folder's where the file is called as one of its benchmarks is or has no other word."""
    stem = _BEHIND.sub("", _BEFORE.sub("", re.sub(r"\.(csv|tsv)$", "", path.stem)))
    shots = _SHOTS.search(stem)
    stem = _SHOTS.sub("", stem)
    name = given or (folder_name(path) if plain(stem) in {*_NO_NAMES, *map(plain, benchmarks)} else stem)
    return name, int(shots[1]) if shots else None


def _identity(config: dict[str, Any], arguments: dict[str, str], folder: Path | None) -> dict[str, str]:
    """What tells two models of one name apart: parameters, quantisation, and for a folder's name the folder."""
    changed = [
        f"{name}={arguments[name]}" for name in _CHANGES if arguments.get(name, "").lower() not in ("", "false", "none")
    ]
    identity = {"quantisation": ", ".join(changed) or "none", **({} if folder is None else folder_identity(folder))}
    parameters = checked.finite(config.get("model_num_parameters"))
    return {PARAMETERS: f"{parameters:.0f}", **identity} if parameters and parameters > 0 else identity


def folder_identity(path: Path) -> dict[str, str]:
    """The folder of a model that is named by it. `org__name`, which lm-eval made of a hub id, is one model anywhere."""
    folder = as_written(path).parent
    return {} if "__" in folder.name else {"folder": str(folder)}


FORMAT = Format("lm-eval", (".json", ".jsonl", ""), _recognises, _read)
