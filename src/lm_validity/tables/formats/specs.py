"""The formats of harnesses, as data: how a file is recognised, the way to its scores, and where their columns stand.

`engine.py` says what a path is, and reads the files. Code stands here where a path cannot say it. lm-eval's files are
read by `lm_eval.py`, logs of Inspect by `import_inspect.py`, files of every_eval_ever by
`every_eval_ever.py`.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lm_validity.config.rows import read_text_rows
from lm_validity.config.sections import e2lm_tokens_b
from lm_validity.config.sheets import metric_key
from lm_validity.errors import InputError
from lm_validity.files import Document
from lm_validity.tables.cell_text import is_no_score, plain
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.engine import Place, Spec, csv_rows, json_lines, same
from lm_validity.tables.formats.joining import typed_scores
from lm_validity.tables.formats.score_files import EVERY, Opened, ScoreFile, check_rows, folder_name, training_point
from lm_validity.tables.schema import DEFAULTS, Claim, Item


def _drawn(options: Document, seed: object = None) -> dict[str, str] | None:
    """That all answers were drawn with a temperature, and the seed; None where they were not."""
    return {EVERY: "" if seed is None else str(seed)} if checked.is_sampled(options) else None


def _head(opened: Opened) -> str:
    """The first line of a file."""
    return opened.head.split(b"\n", 1)[0].decode("utf-8", "replace").strip("\ufeff\r ")


# ---- HELM: stats.json and per_instance_stats.json beside run_spec.json -----------------------------------------------

_HELM_HINT = "HELM writes stats.json and run_spec.json into the folder of a run."
_HELM_BESIDE = ("run_spec.json", "per_instance_stats.json", "scenario.json", "scenario_state.json", "instances.json",
                "display_requests.json", "display_predictions.json")  # fmt: skip
_HELM_OTHER = re.compile(
    r"(num|max|min|inference|training|estimated|finish_reason|prompt|batch|predicted|logprob)(_.*)?"
)


def _helm_split(stats: object, where: str) -> tuple[str, dict[str, float]]:
    """The split that counts (`test`, else `valid`) and its means by metric, without perturbations and parts."""
    splits: dict[str, dict[str, float]] = defaultdict(dict)
    for stat in stats if isinstance(stats, list) else [None]:
        name, mean = checked.part(stat, "name"), checked.finite(checked.part(stat).get("mean"))
        if not isinstance(name.get("name"), str):
            raise InputError(f"{where}: a value without a name.", _HELM_HINT)
        if not (name.get("perturbation") or name.get("sub_split")) and mean is not None:
            splits[str(name.get("split"))][name["name"]] = mean
    split = "test" if splits.get("test") else "valid"
    return split, splits.get(split, {})


def _helm(root: Place) -> Iterator[Place]:
    means = _helm_split(root.root, str(root.path))[1]
    items = means.get("num_instances", 0)
    for name, mean in means.items():
        if not (_HELM_OTHER.fullmatch(name) or is_no_score(name)):
            yield root.below(name, {"value": mean, "n_items": int(items) if items >= 1 else None})


def _helm_with_items(file: ScoreFile, root: Place, places: list[Place]) -> ScoreFile:
    path = root.path.with_name("per_instance_stats.json")
    if not (file.rows and path.is_file()):
        return file
    names = {str(row["metric"]) for row in file.rows}
    shared: Item = {"benchmark": file.rows[0]["benchmark"], "num_fewshot": file.rows[0].get("num_fewshot")}
    return replace(file, items=partial(_helm_items, path, _helm_split(root.root, str(root.path))[0], names, shared))


def _helm_items(path: Path, split: str, names: set[str], shared: Item) -> Iterator[Item]:
    """A row for each instance, with the means over the trials by metric; the first one is `correct`."""
    trials: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for instance in checked.read_json_file(path, _HELM_HINT):
        if not isinstance(instance, dict) or "instance_id" not in instance:
            raise InputError(f"{path}: an instance without an instance_id.", _HELM_HINT)
        own_split, means = _helm_split(instance.get("stats"), f"{path}, {instance['instance_id']}")
        for name in means if own_split == split and not instance.get("perturbation") else ():
            if metric_key(name) in names:
                trials[str(instance["instance_id"])][metric_key(name)].append(means[name])
    for document, metrics in trials.items():
        means_of_item = [(name, sum(values) / len(values)) for name, values in metrics.items()]
        yield {**shared, "doc_id": document, "correct": means_of_item[0][1], "metric_values": means_of_item}


_ADAPTER = "run_spec.json:adapter_spec"
HELM = Spec(
    "helm",
    (_ADAPTER,),
    {"metric": ("@0", metric_key), "value": "value", "n_items": "n_items"},
    _helm,
    common={
        "model": f"{_ADAPTER}.model",
        "benchmark": ("run_spec.json:name", lambda name: re.sub(
            r"(?<=[:,])(model|model_deployment|data_augmentation)=[^,]*,?", "", name).rstrip(":,")),
        "num_fewshot": f"{_ADAPTER}.max_train_instances",
    },
    of_file={
        "settings": (_ADAPTER, lambda adapter: ",".join(
            f"{name}={adapter.get(name)}" for name in ("temperature", "num_outputs", "max_tokens"))),
        "sampling": (_ADAPTER, lambda adapter: _drawn(adapter, adapter.get("random") or "")),
    },
    made={"limit": f"{_ADAPTER}.max_eval_instances", "temperature": f"{_ADAPTER}.temperature",
          "max_gen_toks": f"{_ADAPTER}.max_tokens"},
    beside=_HELM_BESIDE,
    finish=_helm_with_items,
)  # fmt: skip


# ---- lighteval: results/MODEL/results_DATE.json, tasks `suite|task|shots` or `task|shots` ----------------------------

_LIGHTEVAL_HINT = "lighteval writes such a file below its --output-dir: results/<model>/results_<date>.json."
_AVERAGE = ":_average"
_FEWEST_TASKS = 3  # of a group whose mean counts in their place
_WEIGHTS = ("revision", "subfolder", "base_model", "delta_weights", "adapter_weights")
_NO_SETTINGS = (*_WEIGHTS, "model_name", "batch_size", "device", "model_parallel", "cache_dir", "compile",
                "generation_parameters")  # fmt: skip
# Metrics of likelihoods, which no sampling changes
_LIKELIHOOD = re.compile(
    r"(acc|acc_norm\w*|loglikelihood\w*|mc[12]|truthfulqa_mc\w*|ppl|\w*perplexity|bits_per_byte|mrr|recall@\d+)"
)


def _task_of(key: str, path: Path) -> tuple[str, str, int]:
    """Suite, name and solved examples in the key of a task."""
    *suite, name, shots = key.split("|") if key.count("|") in (1, 2) else ("", "", "")
    if not name.strip() or not shots.isdigit():
        problem = f"{path}, 'results': {key[:60]!r} is not the scores of a task 'task|shots'."
        raise InputError(problem, _LIGHTEVAL_HINT)
    return "".join(suite), name, int(shots)


def _lighteval(root: Place) -> Iterator[Place]:
    """The scores of tasks and, with the error of a mean, of groups of three or more tasks with the same metrics. `all`,
    the mean of everything, is none."""
    results = {key: metrics for key, metrics in root.root["results"].items() if key != "all"}
    for key, metrics in results.items():
        if not isinstance(metrics, dict):
            raise InputError(f"{root.path}, 'results', {key[:60]!r}: no object of metrics.", _LIGHTEVAL_HINT)
    named = {key: _task_of(key, root.path) for key in results}
    members = {key: [key] for key, task in named.items() if not task[1].endswith(_AVERAGE)}
    places = defaultdict[tuple[str, str, int], list[str]](list)
    for task in members:
        suite, name, shots = named[task]
        places[suite, name.partition(":")[0], shots].append(task)
    inside = dict[str, str]()
    for key, (suite, name, shots) in named.items():
        group = name.removesuffix(_AVERAGE)
        below = places.get((suite, group, shots), [])
        if group != name and len(below) >= _FEWEST_TASKS and len({frozenset(results[task]) for task in below}) == 1:
            members[key] = below
            inside |= dict.fromkeys(below, group)
    for key, tasks in members.items():
        suite, name, shots = named[key]
        configs = [_lighteval_task(root.root, task) for task in tasks]
        shared = {"benchmark": name.removesuffix(_AVERAGE), "suite": suite or None, "group": inside.get(key),
                  "num_fewshot": shots, "n_items": _total(configs, "effective_num_docs", f"{root.path}, {key}"),
                  "total": _total(configs, "original_num_docs", f"{root.path}, {key}"),
                  "version": checked.part(root.root, "versions").get(key)}  # fmt: skip
        for metric, value in results[key].items():
            if metric.endswith("_stderr"):
                continue
            errors = [
                checked.standard_error(results[task].get(f"{metric}_stderr"), f"{root.path}, {task}") for task in tasks
            ]
            of_mean = None if None in errors else math.hypot(*filter(None, errors)) / len(errors)
            cell = {"value": value, "stderr": of_mean, "higher_is_better": _lighteval_direction(configs[0], metric)}
            yield root.below(key, shared | {"metric": metric} | cell)


def _lighteval_task(document: Document, key: str) -> Document:
    """What a file says of a task, whose key there may lack the solved examples or the suite."""
    without_shots = key.rpartition("|")[0]
    keys = (key, without_shots, without_shots.rpartition("|")[2])
    return next(filter(None, (checked.part(document, "config_tasks", name) for name in keys)), {})


def _total(configs: list[Document], name: str, where: str) -> int | None:
    """The sum over tasks; None where one does not say it (lighteval writes -1)."""
    numbers = [
        number for config in configs if (number := checked.whole(config.get(name), f"{where}, {name!r}") or 0) > 0
    ]
    return sum(numbers) if len(numbers) == len(configs) else None


def _lighteval_direction(config: Document, metric: str) -> object:
    entries = config.get("metrics") or config.get("metric")
    found = [entry for entry in checked.objects(entries) if entry.get("metric_name") == metric]
    direction = found[0].get("higher_is_better") if found else None
    return direction if isinstance(direction, bool) else None


def _lighteval_file(file: ScoreFile, root: Place, places: list[Place]) -> ScoreFile:
    """The file with its groups, and the tasks whose answers are written, and so may be sampled."""
    general = root.root["config_general"]
    config = checked.part(general, "model_config")
    drawn = next(filter(None, (checked.part(each, "generation_parameters") for each in (general, config))), {})
    members = {row["benchmark"]: group for row in file.rows if (group := row.get("group"))}
    written = set[str]()
    for key, metrics in root.root["results"].items() if checked.is_sampled(drawn) else ():
        choices = all(_LIKELIHOOD.fullmatch(name) for name in metrics if not name.endswith("_stderr"))
        if not choices and _lighteval_task(root.root, key).get("generation_size", 2) not in (-1, 0, 1, None):
            name = key.split("|")[-2] if "|" in key else key
            written |= {name, members.get(name, name)}
    settings = [f"{key}={value}" for key, value in sorted(config.items()) if key not in _NO_SETTINGS]
    settings += [f"{key}={value}" for key, value in sorted(drawn.items()) if key != "seed" and value is not None]
    weights = [file.common["model"], *(str(config[key]) for key in _WEIGHTS if config.get(key))]
    seed = "" if drawn.get("seed") is None else str(drawn["seed"])
    sampling = dict.fromkeys(written, seed)
    return replace(file, members=members, sampling=sampling, settings=",".join(settings), weights="@".join(weights))


_GENERAL, _MODEL = "^config_general", "^config_general.model_config"


def _generation(name: str) -> str:
    return f"{_GENERAL}.generation_parameters.{name}|{_MODEL}.generation_parameters.{name}"


LIGHTEVAL = Spec(
    "lighteval",
    lambda opened: isinstance(opened.document, dict)
    and all(isinstance(opened.document.get(key), dict) for key in ("config_general", "results")),
    same("benchmark", "suite", "group", "num_fewshot", "n_items", "value", "stderr", "higher_is_better")
    | {"metric": ("metric", metric_key)},
    _lighteval,
    common={
        "model": f"{_GENERAL}.model_name|{_MODEL}.model_name",
        "": (_MODEL, lambda config: training_point(
            {key: str(config[key]) for key in ("revision", "subfolder") if config.get(key)}).claim()),
        "prompt": (f"{_MODEL}.override_chat_template", f"{_GENERAL}.use_chat_template",
                   lambda override, use: "chat" if override or use else None),
    },
    of_file={
        "limited": (f"{_GENERAL}.max_samples", lambda limit: True),
    },
    made={
        "harness_version": (f"{_GENERAL}.lighteval_sha", lambda version: None if version == "?" else version),
        "chat_template": (f"{_MODEL}.override_chat_template", f"{_GENERAL}.use_chat_template",
                          lambda override, use: override or use),
        "system_instruction": f"{_MODEL}.system_prompt",
        "limit": f"{_GENERAL}.max_samples",
        "temperature": _generation("temperature"),
        "top_p": _generation("top_p"),
        "max_gen_toks": _generation("max_new_tokens"),
        "dtype": (f"{_MODEL}.dtype", lambda dtype: None if dtype == "auto" else str(dtype).removeprefix("torch.")),
        "adapter": f"{_MODEL}.adapter_weights",
        "seed": _generation("seed"),
    },
    made_of_score={"task_version": "version", "n_items_scored": "n_items", "n_items_total": "total"},
    finish=_lighteval_file,
)  # fmt: skip

# ---- mteb: results/MODEL/REVISION/TASK.json, with model_meta.json beside it ------------------------------------------


def _mteb(root: Place) -> Iterator[Place]:
    """The subsets of the test split, else of the first one."""
    splits = {name: entries for name, entries in root.root["scores"].items() if isinstance(entries, list)}
    if not splits:
        raise InputError(f"{root.path}: no scores of a split.", "mteb writes results/MODEL/REVISION/TASK.json.")
    split = "test" if "test" in splits else next(iter(splits))
    for number, entry in enumerate(splits[split]):
        yield root.below(split, entry).below(number, entry if checked.part(entry).get("hf_subset", "default") else {})


def _mteb_file(file: ScoreFile, root: Place, places: list[Place]) -> ScoreFile:
    used = places[0].keys[0] if places else ""
    others = [split for split in root.root["scores"] if split != used]
    note = f"{root.find('task_name')}: the scores of {used} count, not those of {', '.join(others)}."
    weights = f"{file.common['model']}@{root.path.parent.name}"
    return replace(file, weights=weights, notes=(note,) if others and used else ())


MTEB = Spec(
    "mteb",
    ("mteb_version", "scores", "task_name"),
    {
        "benchmark": ("^task_name", "hf_subset",
                      lambda task, subset: task if subset in (None, "default") else f"{task}/{subset}"),
        "metric": "=main_score",
        "value": ("main_score", checked.finite),
        "higher_is_better": ("^task_name", lambda name: True),
    },
    _mteb,
    common={"model": "model_meta.json:name"},
    of_file={
        "facts": ("model_meta.json:name", "model_meta.json:n_parameters", lambda name, size: {
            name: {"parameters_b": size / 1e9}} if name and checked.finite(size) else None),
    },
    made={"harness_version": "^mteb_version"},
    named_by=lambda opened: folder_name(opened.path.parent if re.fullmatch(
        r"[0-9a-f]{6,40}|\d+|external|no_revision_available", opened.path.parent.name) else opened.path),
    beside=("model_meta.json",),
    finish=_mteb_file,
)  # fmt: skip

# ---- promptfoo: {"results": {"results": [{"provider", "testIdx", "success", "score", ...}]}} -------------------------

_ERRORED = 2  # of `failureReason`: no answer came


def _promptfoo(root: Place) -> Iterator[Place]:
    """The tests, each with the prompt's label where a provider has several prompts, which are benchmarks."""
    tests = [test for test in root.root["results"]["results"] if test.get("failureReason") != _ERRORED]
    labels = defaultdict[str, set[Any]](set)
    for test in tests:
        labels[str(test.get("provider"))].add(_prompt(test))
    several = max(map(len, labels.values()), default=0) > 1
    for number, test in enumerate(tests):
        yield root.below(f"results {number}", test | ({"_prompt": _prompt(test)} if several else {}))


def _prompt(test: Document) -> object:
    return checked.part(test, "prompt").get("label") or test.get("promptIdx")


PROMPTFOO = Spec(
    "promptfoo",
    lambda opened: bool(tests := checked.objects(checked.part(opened.document, "results").get("results")))
    and {"provider", "testIdx", "success"} <= set(tests[0]),
    {
        "model": "provider.label|provider.id|provider",
        "benchmark": ("^config.description", "%", "_prompt", lambda name, path, prompt: (
            name or path.stem) + (f" ({prompt})" if prompt is not None else "")),
        "metric": "=score,none",
        "doc_id": "testIdx",
        "value": ("score", "success",
                  lambda score, success: int(success is True) if checked.finite(score) is None else score),
    },
    _promptfoo,
)  # fmt: skip

# ---- DeepEval: {"testCases": [{"name", "metricsData": [{"name", "score", ...}]}]} ------------------------------------

_CASES, _MEASURED = ("testCases", "test_cases"), ("metricsData", "metrics_data")
_LESS_IS_BETTER = ("bias", "toxicity", "hallucination")  # their thresholds are maxima


def _deepeval(root: Place) -> Iterator[Place]:
    for number, case in enumerate(next(filter(None, (checked.objects(root.root.get(name)) for name in _CASES)), [])):
        for measure in next(filter(None, (checked.objects(case.get(name)) for name in _MEASURED)), []):
            name = case.get("name") or case.get("input") or number
            if measure.get("name"):
                yield root.below(name, {"doc_id": name, "metric": plain(str(measure["name"])),
                                        "value": None if measure.get("error") else measure.get("score")})  # fmt: skip


DEEPEVAL = Spec(
    "deepeval",
    lambda opened: isinstance(opened.document, dict)
    and any(_deepeval(Place(opened.document, opened.document, opened.path))),
    {
        "doc_id": "doc_id",
        "metric": ("metric", metric_key),
        "value": "value",
    },
    _deepeval,
    common={
        "model": ("^hyperparameters.model", lambda name: name if isinstance(name, str) else None),
        "benchmark": ("^datasetAlias|^testFile", "%",
                      lambda name, path: re.sub(r"\.py$", "", str(name or path.parent.parent.name))),
    },
    named_by=lambda opened: folder_name(opened.path),
    finish=lambda file, root, places: replace(file, rows=[
        row | Claim(higher_is_better=False) if str(row["metric"]).partition(",")[0] in _LESS_IS_BETTER else row
        for row in file.rows]),
)  # fmt: skip

# ---- OpenCompass: summary_DATE.csv with dataset, version, metric, mode and a column a model --------------------------

_KEYS = ("dataset", "version", "metric", "mode")
_MEANS = re.compile(r"(naive|weighted|macro|micro|harmonic)?_?(average|mean)|standard_deviation|sum")


def _opencompass(root: Place) -> Iterator[Place]:
    """The cells, without titles of sections and averages."""
    for number, row in enumerate(root.root, 2):
        if _MEANS.fullmatch(row["metric"] or "") or row["dataset"].startswith("--"):
            continue
        for model in (name for name in row if name and name not in _KEYS):
            value = checked.parsed(row[model])
            yield root.below(
                f"row {number}", row | {"model": model, "value": value / 100 if isinstance(value, float) else value}
            )


OPENCOMPASS = Spec(
    "opencompass",
    lambda opened: opened.path.suffix == ".csv" and _head(opened).split(",")[:4] == [*_KEYS],
    {"model": "model", "benchmark": "dataset", "metric": ("metric", metric_key), "value": "value"},
    _opencompass,
    made_of_score={"task_version": ("version", lambda version: None if version == "-" else version)},
    load=lambda opened: csv_rows(opened.path),
    suffixes=(".csv",),
)

# ---- simple-evals: EVAL_MODEL.json with `score`, and `NAME:std` of each number ---------------------------------------

_SIMPLE = re.compile(
    r"(mmlu|math|gpqa|mgsm|drop|humaneval|simpleqa|browsecomp|healthbench(?:_hard|_consensus|_meta)?)"
    r"_(.+?)(_\d{8}_\d{6})?(_DEBUG)?"
)


def _simple(path: Path, part: int) -> str | None:
    """The benchmark (1) or the model (2) in a file's name."""
    return found[part] if (found := _SIMPLE.fullmatch(path.stem)) else None


SIMPLE_EVALS = Spec(
    "simple-evals",
    lambda opened: isinstance(opened.document, dict) and _simple(opened.path, 1) is not None
    and checked.finite(opened.document.get("score")) is not None and any(":std" in name for name in opened.document),
    {"metric": "=score,none", "value": "^score", "stderr": "^score:bootstrap_std", "n_items": "^score:n_samples"},
    common={"benchmark": ("%", lambda path: _simple(path, 1))},
    named_by=lambda opened: _simple(opened.path, 2),
)  # fmt: skip

# ---- olmes: metrics.json, or metrics-all.jsonl with a line a task ----------------------------------------------------


def _olmes(root: Place) -> Iterator[Place]:
    for number, task in enumerate(root.root, 1):
        for name, value in checked.part(task, "metrics").items():
            if checked.finite(value) is not None:
                yield root.below(f"line {number}", task | {"_metric": name, "_value": value})


def _is_olmes(opened: Opened) -> bool:
    keys = {"task_name", "metrics", "task_config"}
    if opened.path.suffix == ".jsonl":
        return all(f'"{key}"' in _head(opened) for key in keys)
    return isinstance(opened.document, dict) and keys <= set(opened.document)


OLMES = Spec(
    "olmes",
    _is_olmes,
    {
        "model": "model_config.model",
        "benchmark": "task_name",
        "metric": ("_metric", metric_key),
        "value": "_value",
        "num_fewshot": "task_config.num_shots",
        "n_items": "num_instances",
    },
    _olmes,
    made_of_score={"limit": "task_config.limit", "n_items_scored": "num_instances"},
    load=lambda opened: json_lines(opened.path) if opened.path.suffix == ".jsonl" else [opened.document],
    suffixes=(".json", ".jsonl"),
)


# ---- train before test: {train_before_test | direct_eval}[_stderr] -> benchmark -> model id -> number ----------------

_BLOCKS = {"direct": "direct_eval", "train_before_test": "train_before_test"}
_AUTHORS_FILE = "is it the authors' notebooks/all_results.json?"


def _harmony(root: Place) -> Iterator[Place]:
    results = root.root
    blocks = {protocol: block for protocol, block in _BLOCKS.items() if isinstance(results, dict) and block in results}
    for protocol, block in (blocks or {"direct": "direct_eval"}).items():
        benchmarks = results[block] if blocks else None
        if not isinstance(benchmarks, dict) or not all(isinstance(scores, dict) for scores in benchmarks.values()):
            raise InputError(f"{root.path}: no object {block!r} of benchmarks with scores by model.", _AUTHORS_FILE)
        for benchmark, scores in benchmarks.items():
            errors = checked.part(results, f"{block}_stderr", benchmark)
            for model, value in scores.items():
                where = f"{root.path}, {block}, {benchmark}, {model}"
                cell: dict[str, Any] = {"value": checked.score(value, where, "remove the entry where it is unknown.")}
                cell |= {"model": model, "benchmark": benchmark, "protocol": protocol, "stderr": errors.get(model)}
                yield root.below(model, cell)


LM_HARMONY = Spec(
    "lm-harmony",
    lambda opened: isinstance(opened.document, dict) and bool(set(_BLOCKS.values()) & set(opened.document)),
    same("model", "benchmark", "protocol", "value", "stderr"),
    _harmony,
    # whichever prompt was better on validation
    finish=lambda file, root, places: replace(file, rows=[row | Claim(prompt=None) for row in file.rows]),
)

# ---- the early-training competition: model, iteration, gtokens and a column a benchmark, or lists of them by model ---

_CURVE_KEYS = ("model", "iteration", "gtokens")
_LAYOUT = "the columns are model, iteration, gtokens and one column per benchmark."
_NO_BENCHMARKS = ("model_type", "experiment")  # texts beside the numbers of the organisers' file


def _curves(opened: Opened) -> pd.DataFrame:
    """The file as text; the index is a row's line, or the number of a checkpoint through all models."""
    path = opened.path
    if path.suffix != ".json":
        rows = read_text_rows(path, _LAYOUT)
        for column in ("model", "iteration"):
            if column not in rows.header:
                raise InputError(f"{path}: column {column!r} is missing.", _LAYOUT)
        if "" in rows.header:
            number = rows.header.index("") + 1
            raise InputError(f"{path}: column {number} has no name.", "pandas writes no row numbers with index=False.")
        return rows.frame()
    frames = []
    for model, columns in checked.part(checked.read_json_file(path, _LAYOUT), "data").items():
        lists = {name: values for name, values in checked.part(columns).items() if name not in _NO_BENCHMARKS}
        if "iteration" not in lists or not all(isinstance(values, list) for values in lists.values()):
            raise InputError(f"{path}, {model!r}: not a list for each column, 'iteration' one of them.", _LAYOUT)
        for name, values in lists.items():
            if len(values) != (number := len(lists["iteration"])):
                problem = f"{path}, {model!r}, {name!r}: {len(values)} values for {number} checkpoints."
                raise InputError(problem, "write null where nothing was measured.")
        texts = {name: ["" if value is None else str(value) for value in values] for name, values in lists.items()}
        frames.append(pd.DataFrame({"model": model, **texts}, dtype=str))
    if not frames:
        raise InputError(f"{path}: no object 'data' of models with their curves.", _LAYOUT)
    curves = pd.concat(frames, ignore_index=True).fillna("")
    return curves.set_axis(curves.index + 1)


def _e2lm(root: Place) -> Iterator[Place]:
    """The cells of benchmarks; an empty one is a checkpoint that was not evaluated on it."""
    curves, benchmarks = root.root, [name for name in root.root.columns if name not in _CURVE_KEYS]
    if not benchmarks:
        raise InputError(f"{root.path}: no benchmark column beside {', '.join(_CURVE_KEYS)}.", _LAYOUT)

    def number(line: Any, column: str, text: str) -> float:
        value = pd.to_numeric(text, errors="coerce")
        if not np.isfinite(value) or (column == "iteration" and (value < 0 or value % 1)):
            kind = "step count" if column == "iteration" else "finite number"
            hint = "leave the cell empty where nothing was measured." if column in benchmarks else "write a number."
            raise InputError(f"{root.path}: row {line}, column {column!r}: {text!r} is not a {kind}.", hint)
        return float(value)

    seen = set[tuple[str, int]]()
    for line, row in zip(curves.index, curves.to_dict("records"), strict=True):
        if not row["model"]:
            raise InputError(f"{root.path}: row {line}: column 'model' is empty.", _LAYOUT)
        step = int(number(line, "iteration", row["iteration"]))
        tokens = number(line, "gtokens", row["gtokens"]) if "gtokens" in row else e2lm_tokens_b(step)
        if (row["model"], step) in seen:
            problem = f"{root.path}: row {line}: a second row for model {row['model']!r} at iteration {step}."
            raise InputError(problem, "keep one row per model and checkpoint.")
        seen.add((row["model"], step))
        shared = {"model": row["model"], "checkpoint": f"iter_{step:07d}", "iteration": step, "tokens_b": tokens}
        for name in benchmarks:
            if row[name]:
                yield root.below(f"row {line}", shared | {"benchmark": name, "value": number(line, name, row[name])})


E2LM = Spec(
    "e2lm",
    lambda opened: (
        opened.head.lstrip(b"\xef\xbb\xbf").startswith(b"model,iteration,gtokens,")
        or any(
            isinstance(checked.part(columns).get("iteration"), list)
            for columns in checked.part(opened.document, "data").values()
        )
    ),
    same("model", "checkpoint", "iteration", "tokens_b", "benchmark", "value"),
    _e2lm,
    load=_curves,
    suffixes=(".csv", ".json"),
)


def read_published(path: str | Path, spec: Spec) -> pd.DataFrame:
    """The columns of SCORES of a file of the train-before-test authors or of the competition, sorted.

    Metric, direction and numbers of items are not in the files: null, to be joined from the benchmarks sheet. Raises
    InputError, with the place, for a file that is none and for a score that is not a finite number.
    """
    path = Path(path)
    document = checked.read_json_file(path, _AUTHORS_FILE) if spec is LM_HARMONY else None
    (file,) = spec.read(Opened(path, named=True, document=document))
    if not file.rows:
        raise InputError(f"{path}: no scores in it.", _AUTHORS_FILE if spec is LM_HARMONY else _LAYOUT)
    rows = typed_scores(pd.DataFrame([DEFAULTS | Claim(source=spec.name) | row for row in file.rows]))
    check_rows(rows, path)
    key = ["protocol", "benchmark", "model"] if spec is LM_HARMONY else ["model", "benchmark", "iteration"]
    return rows.sort_values(key, ignore_index=True, kind="stable")


read_lm_harmony = partial(read_published, spec=LM_HARMONY)
read_e2lm = partial(read_published, spec=E2LM)
