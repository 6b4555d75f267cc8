"""lm-eval's result files, and what their model arguments say."""

import glob
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from lm_validity.errors import InputError
from lm_validity.files import Document, as_written
from lm_validity.tables.cell_text import plain
from lm_validity.tables.claims import Claim, Settings, as_record
from lm_validity.tables.decisions import LEFT_OUT, OF_TASKS, UNSURE, Decision
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.score_files import Format, ImportOptions, Opened, ScoreFile, date_in
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

    def claim(self) -> Claim:
        """What claims of this point have in common."""
        return {"checkpoint": self.checkpoint, "iteration": self.iteration, "tokens_b": self.tokens_b}


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

    def of(self, path: Path | str) -> Claim:
        """What a path says; {} where it does not fit the pattern."""
        match = self.expression.search(re.sub("/+", "/", str(path)))
        if match is None:
            return {}
        self.used = True
        texts = {_COLUMNS.get(name, name): value for name, value in match.groupdict().items()}
        claim = as_record(Claim, texts | {name: int(texts[name]) for name in _NUMBERS if name in texts})
        if "iteration" in claim:
            claim.setdefault("checkpoint", f"step{claim['iteration']}")
        return claim


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
    results = opened.document.get("results") if isinstance(opened.document, dict) else None
    if not isinstance(results, dict):
        return isinstance(results, list)
    tasks = [entry for entry in results.values() if isinstance(entry, dict)]  # metrics by task, not objects of these
    entries = [(name, value) for task in tasks for name, value in task.items()]
    return not entries or any(not isinstance(value, dict) or date_in(name) is not None for name, value in entries)


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
        model = opened.model or path.stem.removesuffix("_agg")
        file = _curves(document, path, model)
        return [file if opened.model else replace(file, decisions=(by_path(path, model),))]
    config = _section(document, "config", path)
    arguments = parse_arguments(config.get("model_args"))
    name, of_folder = _name(document, config, arguments, opened)
    own_record = _section(document, "lm_validity", path)
    groups = _groups(document, path)
    rows, missing, odd = _rows(document, config, own_record, groups, path)
    if odd and not rows and not missing:
        raise InputError(f"{path}: {odd[0]} is not a finite number.", "run that task again.")
    members = {
        task: group
        for group, tasks in groups.items()
        for task in tasks
        if options.said("benchmark", group) not in OF_TASKS
    }
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
            members=members,
            decisions=(
                *((by_path(path, name),) if of_folder and not opened.model and "/" not in name else ()),
                *(
                    Decision("metric", metric, "left out", "values", LEFT_OUT, 1, "", f"{metric} is no number")
                    for metric in odd
                ),
            ),
        )
    ]


def _of_file(
    document: Document, config: Document, arguments: dict[str, str], own_record: Document, path: Path
) -> Claim:
    """What all claims of a file share, as far as it says it."""
    if own_record:
        checks = {name: check for name, check in checked.OF_FILE.items() if name in own_record}
        return as_record(
            Claim, {name: check(own_record[name], f"{path}, 'lm_validity', {name!r}") for name, check in checks.items()}
        )
    if not arguments.get("revision") and config.get("model_revision"):
        arguments = arguments | {"revision": str(config["model_revision"])}
    point = training_point(arguments)
    if point.checkpoint == "final" and not {"revision", "step"} & set(arguments):
        point = training_point({"revision": path.stem}, only_steps=True)
    return {**point.claim(), "prompt": "chat" if document.get("chat_template") else "plain"}


def _weights(name: str, config: Document, arguments: dict[str, str]) -> str:
    """Path, revision and adapter as one text."""
    base = model_place(arguments.get("pretrained") or name).path
    further_arguments = [arguments.get(key, "") for key in ("revision", "subfolder", "step", "peft", "delta")]
    return "@".join(
        [base, *(value for value in (*further_arguments, str(config.get("model_revision") or "")) if value)]
    )


def _sampling(document: Document, config: Document, arguments: dict[str, str], path: Path) -> dict[str, str]:
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


def _seed(config: Document, arguments: dict[str, str]) -> str:
    """The seed of what a run draws at random; "" where it is not said."""
    seeds = (arguments.get("seed"), config.get("torch_seed"), config.get("random_seed"))
    return next((str(seed) for seed in seeds if seed is not None), "")


def _settings(document: Document, config: Document, arguments: dict[str, str], *, seed: bool) -> str:
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


def _made(document: Document, config: Document, arguments: dict[str, str]) -> Settings:
    """How the scores of a file were made, as far as it says so."""
    version = document.get("lm_eval_version") or document.get("git_hash")
    backend, dtype, limit = config.get("model"), arguments.get("dtype"), config.get("limit")
    seed, system = (
        _seed(config, arguments),
        document.get("system_instruction_sha") or document.get("system_instruction"),
    )
    return {
        "harness": "lm-eval",
        "harness_version": version if isinstance(version, str) else None,
        "chat_template": bool(document["chat_template"]) if "chat_template" in document else None,
        "system_instruction": str(system or "none") if "system_instruction" in document else None,
        "limit": checked.finite(limit),
        "backend": backend if isinstance(backend, str) and "/" not in backend else None,
        "dtype": dtype.removeprefix("torch.") if dtype and dtype != "auto" else None,
        "seed": int(seed) if seed.isdigit() else None,
        "adapter": (arguments.get("peft") or arguments.get("delta") or "none") if arguments else None,
    }


def _made_of_task(document: Document, task: str, members: list[str], path: Path) -> Settings:
    """The version, hash and number of documents of a task, or of a group whose tasks agree in them."""
    counts = _section(document, "n-samples", path, of_objects=True)

    def agreed(section: str) -> str | None:
        of_tasks = _section(document, section, path)
        names = [task] if task in of_tasks else members
        values = {str(of_tasks[name]) for name in names if of_tasks.get(name)}
        return values.pop() if len(values) == 1 else None

    def total(name: str) -> int | None:
        said = [(counts.get(member) or {}).get(name) for member in members]
        numbers = [number for number in said if type(number) is int]
        return sum(numbers) if len(numbers) == len(members) else None

    return {
        "task_version": agreed("versions"),
        "task_hash": agreed("task_hashes"),
        "n_items_scored": total("effective"),
        "n_items_total": total("original"),
    }


def _groups(document: Document, path: Path) -> dict[str, list[str]]:
    """The tasks of each group whose own score counts: with an error, and of like tasks, none of another such group.

    Tasks are alike if there are three or more with the same metrics whose names begin as the group's does: those of
    MMLU are, those of a suite (`pythia`, `glue`) or of different measures (`truthfulqa`) are not.
    """
    results = checked.part(document, "results")
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


class _Rows(NamedTuple):
    """The claims of a file, how many scores are missing, and the metrics that are no numbers."""

    claims: list[Claim]
    missing: int
    odd: list[str]


def _rows(
    document: Document, config: Document, own_record: Document, groups_kept: dict[str, list[str]], path: Path
) -> _Rows:
    """The claims of all tasks and of the groups that are `groups_kept`."""
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
    rows, missing = list[Claim](), 0
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
        common: Claim = {
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
        for metric in _metrics(metrics, f"{path}, {task}"):
            if not metric.is_number:
                odd.append(f"{task}: {metric.key}")
                continue
            if metric.value is None:
                missing += 1
                continue
            name = metric.key.partition(",")[0]
            direction = checked.flag(directions.get(name), f"{path}, 'higher_is_better', {task!r}, {name!r}")
            row: Claim = {"metric": metric.key, "value": metric.value, "stderr": metric.stderr}
            row = common | row | {"higher_is_better": direction}
            rows += [row | run for run in _runs(metrics.get("run_stats"), name, metric.value)] or [row]
    return _Rows(rows, missing, odd)


class _Task(NamedTuple):
    """A task's name, the wording of its prompt, and its metrics."""

    name: str
    variant: str | None
    metrics: Document


def _tasks(results: list[object] | Document, path: Path) -> Iterable[_Task]:
    """Each task, in any of the layouts."""
    if isinstance(results, list):
        for entry in results:
            if not isinstance(entry, dict) or not isinstance(entry.get("task_name"), str):
                raise InputError(f"{path}: a result without 'task_name': {str(entry)[:60]}.", HINT)
            yield _Task(entry["task_name"], entry.get("prompt_name"), entry)
        return
    for task, metrics in results.items():
        if not isinstance(metrics, dict):
            continue
        dates = {date_in(key): value for key, value in metrics.items() if isinstance(value, dict)}
        dates_known = [date for date in dates if date is not None]
        if dates and len(dates_known) == len(dates):
            metrics = dates[max(dates_known)]
        yield _Task(metrics.get("task_name", task), metrics.get("prompt_name"), metrics)


class _Metric(NamedTuple):
    """A metric of a task: its key `name,filter`, and its value, None where that is missing. `is_number`: not of what
    can be no score, such as a table or a list."""

    key: str
    value: float | None = None
    stderr: float | None = None
    is_number: bool = True


def _metrics(metrics: Document, where: str) -> Iterable[_Metric]:
    """The metrics of a task. evalchemy writes `x_std_err`, and counts beside its scores."""
    before_filters = not any("," in key for key in metrics)
    for key, value in metrics.items():
        name, _, filter_name = key.partition(",")
        if name in _NO_METRICS or not name.strip() or not (filter_name or before_filters):
            continue
        if name.endswith(("_stderr", "_std_err")) or (not filter_name and _COUNTS.fullmatch(name)):
            continue
        if isinstance(value, list | dict | str | bool):
            yield _Metric(key, is_number=False)
            continue
        unknown = value is None or (isinstance(value, float) and not math.isfinite(value))
        yield _Metric(
            key if filter_name else f"{key},none",
            None if unknown else checked.score(value, f"{where}, {key}", "run that task again."),
            checked.standard_error(_error_of(metrics, name, filter_name), f"{where}, {key}"),
        )


def _runs(stats: object, name: str, mean: float) -> list[Claim]:
    """evalchemy's runs (`run_stats`) of the metric whose mean over runs `name` is; [] where they do not give it.

    The error beside the mean is one of runs alone; a run's is that of its items."""
    stats_known = [stat for stat in stats if isinstance(stat, dict)] if isinstance(stats, list) else []
    run_values = [checked.finite(stat.get(re.sub(r"_(avg|mean)$", "", name))) for stat in stats_known]
    values = [value for value in run_values if value is not None]
    if len(values) < 2 or len(values) < len(stats_known) or abs(sum(values) / len(values) - mean) > _SAME:
        return []
    runs = list[Claim]()
    for run, (stat, value) in enumerate(zip(stats_known, values, strict=True)):
        total = stat.get("num_total")
        items = total if isinstance(total, int) and total > 1 and 0 <= value <= 1 else None
        error = None if items is None else math.sqrt(value * (1 - value) / (items - 1))
        runs.append({"run": run, "value": value, "stderr": error, "n_items": items})
    return runs


def _error_of(metrics: Document, name: str, filter_name: str) -> object:
    """The standard error beside a metric, under one of the names that programs give it."""
    keys = [f"{name}_stderr,{filter_name}"] if filter_name else [f"{name}_stderr", f"{name}_std_err"]
    if not filter_name:
        keys += [f"{name.removesuffix(end)}_std_err" for end in ("_avg", "_mean") if name.endswith(end)]
    return next((metrics[key] for key in keys if key in metrics), None)


def _curves(document: Document, path: Path, model: str) -> ScoreFile:
    """Curves: `checkpoints` (steps) and `tokens`, and for each task and metric one value per checkpoint."""
    steps = [checked.whole(step, f"{path}, 'checkpoints'") for step in document["checkpoints"]]
    tokens = document.get("tokens") or [None] * len(steps)
    rows, missing = list[Claim](), 0
    for task, metrics in document["results"].items():
        for metric, values in metrics.items() if isinstance(metrics, dict) else ():
            if metric.endswith("_stderr"):
                continue
            errors = metrics.get(f"{metric}_stderr") or [None] * len(steps)
            if not all(isinstance(column, list) and len(column) == len(steps) for column in (values, errors, tokens)):
                raise InputError(f"{path}, {task}, {metric}: not one value for each of {len(steps)} checkpoints.", HINT)
            for step, seen, value, error in zip(steps, tokens, values, errors, strict=True):
                number = checked.finite(value)
                if step is None or number is None:
                    missing += 1
                    continue
                rows.append(
                    {
                        "checkpoint": f"step{step}",
                        "iteration": step,
                        "tokens_b": None if (tokens_known := checked.finite(seen)) is None else tokens_known / 1e9,
                        "benchmark": task,
                        "metric": f"{metric},none",
                        "value": number,
                        "stderr": checked.standard_error(error, f"{path}, {task}, {metric}, checkpoint {step}"),
                    }
                )
    return ScoreFile(path, rows, {"model": model, "unit": "own"}, date_in(path.name), missing=missing)


def _section(document: Document, name: str, path: Path, *, of_objects: bool = False) -> Document:
    """An object that not every file has; {} where it is absent or null."""
    section = document.get(name) or {}
    if not isinstance(section, dict):
        raise InputError(f"{path}: {name!r} is not an object but {str(section)[:60]}.", HINT)
    for key, value in section.items() if of_objects else ():
        if not isinstance(value, dict | None):
            raise InputError(f"{path}: {name!r}, {key!r} is not an object but {str(value)[:60]}.", HINT)
    return section


def _examples(task: str, examples: Document, configs: Document, config: Document) -> object:
    """Solved examples before each question as the file has them: of the task, else of the whole run; else None."""
    of_task, of_run = checked.part(configs, task).get("num_fewshot"), config.get("num_fewshot")
    if isinstance(of_run, list):  # of each task, in an order that the file does not say
        of_run = of_run[0] if of_run and of_run.count(of_run[0]) == len(of_run) else None
    return next((shots for shots in (examples.get(task), of_task) if shots is not None), of_run)


class _Name(NamedTuple):
    """The model's name, and whether it is that of the file's folder."""

    name: str
    of_folder: bool


def _name(document: Document, config: Document, arguments: dict[str, str], opened: Opened) -> _Name:
    name = document.get("model_name") or next(filter(None, map(arguments.get, _NAMES)), None)
    if not name and isinstance(config.get("model"), str) and "/" in config["model"]:
        name = config["model"]  # leaderboards write the hub id where lm-eval has the kind of model
    if isinstance(name, str) and name:
        return _Name(name, of_folder=False)
    if opened.named and not opened.model:
        raise InputError(
            f"{opened.path}: neither 'model_name' nor 'config.model_args.pretrained' names the model.",
            f"name it: --model '{opened.path}=NAME'.",
        )
    return _Name(folder_name(opened.path), of_folder=True)


def folder_name(path: Path) -> str:
    """A model's name from its folder, where lm-eval writes `__` for the `/` of a hub id."""
    return as_written(path).parent.name.replace("__", "/", 1)


_BEFORE = re.compile(r"^(model_)?(outputs?|results?|eval|predictions?)_", re.IGNORECASE)
_BEHIND = re.compile(r"[_-](results?|summary|outputs?|predictions?|scores?|metrics)$", re.IGNORECASE)
_SHOTS = re.compile(r"_(\d{1,2})[-_]?shots?$", re.IGNORECASE)
_NO_NAMES = frozenset(
    ("trainer_state", "", "results", "result", "summary", "scores", "metrics", "all", "output", "outputs")
)


def model_of_path(path: Path, given: str | None, benchmarks: Iterable[str] = ()) -> Claim:
    """The model that a path names, and solved examples: by the file's name without words such as results, or by the
    folder's where the file is called as one of its benchmarks is or has no other word."""
    stem = _BEHIND.sub("", _BEFORE.sub("", re.sub(r"\.(csv|tsv)$", "", path.stem)))
    shots = _SHOTS.search(stem)
    stem = _SHOTS.sub("", stem)
    name = given or (folder_name(path) if plain(stem) in {*_NO_NAMES, *map(plain, benchmarks)} else stem)
    return {"model": name, "num_fewshot": int(shots[1])} if shots else {"model": name}


def pattern_of(path: Path) -> str:
    """The pattern by which the paths of a file and of those beside it name their models."""
    n_alike = sum(1 for _ in as_written(path).parent.parent.glob(f"*/{glob.escape(path.name)}"))
    of_folder = model_of_path(path, None)["model"] == folder_name(path) or n_alike > 1
    dated = path.stem.partition("-20")[0]  # result-2024_01_31
    if of_folder or plain(dated) in _NO_NAMES:
        return f"{{model}}/{path.name}" if dated == path.stem else f"{{model}}/{dated}-*{path.suffix}"
    return f"{{model}}{path.suffix}"


def by_path(path: Path, model: str) -> Decision:
    """That the model of a file is the one that its path names."""
    return Decision("model", model, model, "name", UNSURE, 1, "", f"{path.name} names no model; its path names {model}")


def _identity(config: Document, arguments: dict[str, str], folder: Path | None) -> dict[str, str]:
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
