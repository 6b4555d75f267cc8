"""The formats of harnesses, as data: how a file is recognised, the way to its scores, and where their columns stand.

`engine.py` says what a path is, and reads the files. Code stands here where a path cannot say it. lm-eval's files are
read by `lm_eval.py`, logs of Inspect and files of every_eval_ever by `evaluations.py`.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from lm_validity.config.sheets import metric_key
from lm_validity.files import Document
from lm_validity.tables.formats import engine
from lm_validity.tables.formats.engine import Answer, Place, Spec, checked, finite, is_sampled, objects, parsed, part
from lm_validity.tables.formats.joining import score_frame
from lm_validity.tables.formats.score_files import Opened, folder_name, training_point
from lm_validity.tables.metrics import is_no_score, plain
from lm_validity.tables.schema import SCORES, Claim, Item

Entries = Iterator[tuple[object, Document]]


# ---- HELM: stats.json and per_instance_stats.json beside run_spec.json -----------------------------------------------

_HELM_BESIDE = ("run_spec.json", "per_instance_stats.json", "scenario.json", "scenario_state.json", "instances.json",
                "display_requests.json", "display_predictions.json")  # fmt: skip
_HELM_OTHER = ("num_", "max_", "min_", "inference_", "training_", "estimated_", "finish_reason_", "prompt_", "batch_",
               "predicted_", "logprob")  # fmt: skip


def _helm_split(stats: object, where: object) -> tuple[str, dict[str, float]]:
    """The split that counts (`test`, else `valid`) and its means by metric, without perturbations and parts."""
    splits: dict[str, dict[str, float]] = defaultdict(dict)
    for stat in stats if isinstance(stats, list) else [None]:
        name, mean = part(stat, "name"), finite(part(stat).get("mean"))
        metric = checked("metric", name.get("name"), str(where))
        if not (name.get("perturbation") or name.get("sub_split")) and mean is not None:
            splits[str(name.get("split"))][metric] = mean
    split = "test" if splits.get("test") else "valid"
    return split, splits.get(split, {})


def _helm(root: Place) -> Entries:
    means = _helm_split(root.root, root.path)[1]
    items = means.get("num_instances", 0)
    for name, mean in means.items():
        if not (name.startswith(_HELM_OTHER) or is_no_score(name)):
            yield name, {"metric": metric_key(name), "value": mean, "n_items": int(items) or None}


def _helm_answers(path: Path, root: Place, rows: list[Claim]) -> Iterator[Answer]:
    """The values of all trials of the instances, without perturbations."""
    split = _helm_split(root.root, root.path)[0]
    shared, metrics = rows[0], {row["metric"] for row in rows}
    for instance in engine.read_json_file(path):
        named = part(instance).get("instance_id")
        document = checked("doc_id", named if named is None else str(named), str(path))
        item = Item(benchmark=shared["benchmark"], num_fewshot=shared.get("num_fewshot"), doc_id=document)
        own_split, means = _helm_split(instance.get("stats"), f"{path}, {document}")
        for name, mean in means.items() if own_split == split and not instance.get("perturbation") else ():
            if metric_key(name) in metrics:
                yield Answer(item, metric_key(name), mean)


_ADAPTER = "run_spec.json:adapter_spec"
HELM = Spec(
    "helm",
    (_ADAPTER,),
    _helm,
    {
        "model": f"{_ADAPTER}.model",
        "benchmark": ("run_spec.json:name", lambda name: re.sub(
            r"(?<=[:,])(model|model_deployment|data_augmentation)=[^,]*,?", "", name).rstrip(":,")),
        "num_fewshot": f"{_ADAPTER}.max_train_instances",
        "drawn": (_ADAPTER, lambda adapter: str(adapter.get("random") or "") if is_sampled(adapter) else None),
        "settings": (_ADAPTER, lambda adapter: ",".join(
            f"{name}={adapter.get(name)}" for name in ("temperature", "num_outputs", "max_tokens"))),
        "limit": f"{_ADAPTER}.max_eval_instances",
        "temperature": f"{_ADAPTER}.temperature",
        "max_gen_toks": f"{_ADAPTER}.max_tokens",
    },
    beside=_HELM_BESIDE,
    answers_in=lambda root: root.beside_it("per_instance_stats.json"),
    answers=_helm_answers,
)  # fmt: skip


# ---- lighteval: results/MODEL/results_DATE.json, tasks `suite|task|shots` or `task|shots` ----------------------------

_AVERAGE = ":_average"
_FEWEST_TASKS = 3  # of a group whose mean counts in their place
_WEIGHTS = ("revision", "subfolder", "base_model", "delta_weights", "adapter_weights")
# Metrics of likelihoods, which no sampling changes
_LIKELIHOOD = re.compile(
    r"(acc|acc_norm\w*|loglikelihood\w*|mc[12]|truthfulqa_mc\w*|ppl|\w*perplexity|bits_per_byte|mrr|recall@\d+)"
)


def _lighteval(root: Place) -> Entries:
    """The scores of tasks and, with the error of a mean, of groups of three or more tasks with the same metrics. `all`,
    the mean of everything, is none."""
    results = {key: metrics for key, metrics in root.root["results"].items() if key != "all"}
    parts = {key: ("", *key.split("|"))[-3:] for key in results}
    tasks = {key: (suite, name, int(shots)) for key, (suite, name, shots) in parts.items()}
    members = {key: [key] for key, (_, name, _) in tasks.items() if not name.endswith(_AVERAGE)}
    group_of = dict[str, str]()
    for key, (suite, name, shots) in tasks.items():
        group = name.removesuffix(_AVERAGE)
        inside = [task for task in tasks if task in members and (suite, group, shots) == (
            tasks[task][0], tasks[task][1].partition(":")[0], tasks[task][2])]  # fmt: skip
        if group != name and len(inside) >= _FEWEST_TASKS and len({frozenset(results[task]) for task in inside}) == 1:
            group_of |= dict.fromkeys(inside, group)
            members[key] = inside
    options = root.find(_OPTIONS) or {}
    seed = "" if options.get("seed") is None else str(options["seed"])
    for key, inside in members.items():
        suite, name, shots = tasks[key]
        configs = [_lighteval_task(root.root, task) for task in inside]
        is_written = any(  # whether answers are texts, which may be sampled
            config.get("generation_size", 2) not in (-1, 0, 1, None)
            and not all(_LIKELIHOOD.fullmatch(name.removesuffix("_stderr")) for name in results[task])
            for task, config in zip(inside, configs, strict=True)
        )
        shared = {
            "benchmark": name.removesuffix(_AVERAGE),
            "suite": suite or None,
            "group": group_of.get(key),
            "num_fewshot": shots,
            "n_items": _total(configs, "effective_num_docs"),
            "n_items_total": _total(configs, "original_num_docs"),
            "task_version": str(part(root.root, "versions").get(key, "")) or None,
            "drawn": seed if is_written and is_sampled(options) else None,
        }
        for metric, value in results[key].items():
            if not metric.endswith("_stderr"):
                errors = [finite(results[task].get(f"{metric}_stderr")) for task in inside]
                of_mean = None if None in errors else math.hypot(*filter(None, errors)) / len(errors)
                error = of_mean if len(inside) > 1 else errors[0]
                declared = objects(configs[0].get("metrics") or configs[0].get("metric"))
                ways = [each.get("higher_is_better") for each in declared if each.get("metric_name") == metric]
                cell = {"value": value, "stderr": error, "higher_is_better": ways[0] if ways else None}
                yield key, shared | {"metric": metric_key(metric)} | cell


def _lighteval_task(document: Document, key: str) -> Document:
    """What a file says of a task, whose key there may lack the solved examples or the suite."""
    without_shots = key.rpartition("|")[0]
    keys = (key, without_shots, without_shots.rpartition("|")[2])
    return next(filter(None, (part(document, "config_tasks", name) for name in keys)), {})


def _total(configs: list[Document], name: str) -> int | None:
    """The sum over tasks; None where one does not say it (lighteval writes -1)."""
    numbers = [number for config in configs if (number := engine.fitting("n_items", config.get(name)) or 0) > 0]
    return sum(numbers) if len(numbers) == len(configs) else None


_GENERAL, _MODEL = "config_general", "config_general.model_config"
_OPTIONS = f"{_GENERAL}.generation_parameters|{_MODEL}.generation_parameters"


def _generation(name: str) -> str:
    return f"{_GENERAL}.generation_parameters.{name}|{_MODEL}.generation_parameters.{name}"


LIGHTEVAL = Spec(
    "lighteval",
    ("config_general", "results"),
    _lighteval,
    {
        "model": f"{_GENERAL}.model_name|{_MODEL}.model_name",
        "": (_MODEL, lambda config: training_point(
            {key: str(config[key]) for key in ("revision", "subfolder") if config.get(key)})),
        "limited": (f"{_GENERAL}.max_samples", lambda limit: True),
        "weights": (_MODEL, lambda config: "@".join(str(config[key]) for key in _WEIGHTS if config.get(key))),
        "settings": (_MODEL, _OPTIONS, lambda config, options: engine.as_text(config, {**part(options), "seed": None})),
        "harness_version": (f"{_GENERAL}.lighteval_sha", lambda version: None if version == "?" else version),
        "chat_template": f"{_MODEL}.override_chat_template|{_GENERAL}.use_chat_template",
        "system_instruction": f"{_MODEL}.system_prompt",
        "limit": f"{_GENERAL}.max_samples",
        "temperature": _generation("temperature"),
        "top_p": _generation("top_p"),
        "max_gen_toks": _generation("max_new_tokens"),
        "dtype": (f"{_MODEL}.dtype", lambda dtype: None if dtype == "auto" else str(dtype).removeprefix("torch.")),
        "adapter": f"{_MODEL}.adapter_weights",
        "seed": _generation("seed"),
    },
)  # fmt: skip

# ---- mteb: results/MODEL/REVISION/TASK.json, with model_meta.json beside it ------------------------------------------


def _mteb_note(scores: Document, task: str) -> tuple[str, ...]:
    first, *others = sorted(scores, key="test".__ne__)
    return (f"{task}: the scores of {first} count, not those of {', '.join(others)}.",) if others else ()


def _mteb(root: Place) -> Entries:
    """The scores of the test split, else of the first one."""
    task, scores = root.root["task_name"], root.root["scores"]
    for number, entry in enumerate(scores[min(scores, key="test".__ne__)]):
        subset = entry.get("hf_subset") or "default"
        benchmark = task if subset == "default" else f"{task}/{subset}"
        columns = {"metric": "main_score", "value": finite(entry.get("main_score")), "higher_is_better": True}
        yield number, {"benchmark": benchmark} | columns


MTEB = Spec(
    "mteb",
    ("mteb_version", "scores", "task_name"),
    _mteb,
    {
        "model": "model_meta.json:name",
        "weights": ("%", lambda path: path.parent.name),
        "notes": ("scores", "task_name", _mteb_note),
        "parameters_b": ("model_meta.json:n_parameters", lambda size: size / 1e9),
        "harness_version": "mteb_version",
    },
    beside=("model_meta.json",),
)

# ---- promptfoo: {"results": {"results": [{"provider", "testIdx", "success", "score", ...}]}} -------------------------

_ERRORED = 2  # of `failureReason`: no answer came


def _promptfoo(root: Place) -> Entries:
    """The tests; of several prompts of a provider their mean counts, as of all answers to one item."""
    benchmark = root.find("config.description") or root.path.stem
    for number, test in enumerate(root.root["results"]["results"]):
        if test.get("failureReason") == _ERRORED:
            continue
        provider, score = test["provider"], test.get("score")
        model = part(provider).get("label") or part(provider).get("id") or provider
        value = int(test.get("success") is True) if finite(score) is None else score
        columns = {"model": model, "benchmark": benchmark, "metric": "score,none"}
        yield f"results {number}", columns | {"doc_id": str(test["testIdx"]), "value": value}


PROMPTFOO = Spec(
    "promptfoo",
    lambda opened: (
        bool(tests := objects(part(opened.document, "results").get("results")))
        and {"provider", "testIdx", "success"} <= set(tests[0])
    ),
    _promptfoo,
)

# ---- DeepEval: {"testCases": [{"name", "metricsData": [{"name", "score", ...}]}]} ------------------------------------

_LESS_IS_BETTER = ("bias", "toxicity", "hallucination")  # their thresholds are maxima


def _deepeval(root: Place) -> Entries:
    for number, case in enumerate(objects(root.root.get("testCases"))):
        name = str(case.get("name") or case.get("input") or number)
        for measure in objects(case.get("metricsData")):
            if measure.get("name"):
                metric = plain(str(measure["name"]))
                direction = {"higher_is_better": False} if metric in _LESS_IS_BETTER else {}
                value = None if measure.get("error") else measure.get("score")
                yield name, direction | {"doc_id": name, "metric": metric_key(metric), "value": value}


DEEPEVAL = Spec(
    "deepeval",
    lambda opened: any(_deepeval(Place(part(opened.document), opened.path, {}))),
    _deepeval,
    {
        "model": ("hyperparameters.model", lambda name: name if isinstance(name, str) else None),
        "benchmark": ("datasetAlias|testFile", "%",
                      lambda name, path: re.sub(r"\.py$", "", str(name or path.parent.parent.name))),
    },
    named_by=lambda opened: folder_name(opened.path),
)  # fmt: skip

# ---- OpenCompass: summary_DATE.csv with dataset, version, metric, mode and a column a model --------------------------

_KEYS = ("dataset", "version", "metric", "mode")
_MEANS = re.compile(r"(naive|weighted|macro|micro|harmonic)?_?(average|mean)|standard_deviation|sum")


def _opencompass(root: Place) -> Entries:
    """The cells, without titles of sections and averages."""
    for number, row in zip(root.root.index, root.root.to_dict("records"), strict=True):
        if _MEANS.fullmatch(row["metric"]) or row["dataset"].startswith("--"):
            continue
        version = None if row["version"] == "-" else row["version"]
        shared = {"benchmark": row["dataset"], "metric": metric_key(row["metric"]), "task_version": version}
        for model in (name for name in row if name and name not in _KEYS):
            value = parsed(row[model])
            value = value / 100 if isinstance(value, float) else value
            yield f"row {number}", shared | {"model": model, "value": value}


OPENCOMPASS = Spec(
    "opencompass",
    lambda opened: opened.head.lstrip(b"\xef\xbb\xbf").startswith(b"dataset,version,metric,mode"),
    _opencompass,
)

# ---- simple-evals: EVAL_MODEL.json with `score`, and `NAME:std` of each number ---------------------------------------

_SIMPLE = re.compile(
    r"(mmlu|math|gpqa|mgsm|drop|humaneval|simpleqa|browsecomp|healthbench(?:_hard|_consensus|_meta)?)"
    r"_(.+?)(_\d{8}_\d{6})?(_DEBUG)?"
)


def _simple(path: Path, group: int) -> str | None:
    """The benchmark (1) or the model (2) in a file's name."""
    return found[group] if (found := _SIMPLE.fullmatch(path.stem)) else None


SIMPLE_EVALS = Spec(
    "simple-evals",
    lambda opened: _simple(opened.path, 1) is not None
    and finite(part(opened.document).get("score")) is not None and any(":std" in name for name in opened.document),
    lambda root: [("the score", {
        "benchmark": _simple(root.path, 1), "metric": "score,none", "value": root.root["score"],
        "stderr": root.root.get("score:bootstrap_std"), "n_items": root.root.get("score:n_samples")})],
    named_by=lambda opened: _simple(opened.path, 2),
)  # fmt: skip

# ---- olmes: metrics.json, or metrics-all.jsonl with a line a task ----------------------------------------------------


OLMES = Spec(
    "olmes",
    ("task_name", "metrics", "task_config"),
    lambda root: ((name, {"metric": metric_key(name), "value": value})
                  for name, value in root.root["metrics"].items() if finite(value) is not None),
    {
        "model": "model_config.model",
        "benchmark": "task_name",
        "num_fewshot": "task_config.num_shots",
        "n_items": "num_instances",
        "limit": "task_config.limit",
        "n_items_scored": "num_instances",
    },
)  # fmt: skip


# ---- train before test: {train_before_test | direct_eval}[_stderr] -> benchmark -> model id -> number ----------------

_BLOCKS = {"direct": "direct_eval", "train_before_test": "train_before_test"}


def _harmony(root: Place) -> Entries:
    for protocol, block in _BLOCKS.items():
        for benchmark, scores in part(root.root, block).items():
            errors = part(root.root, f"{block}_stderr", benchmark)
            for model, value in scores.items():
                where = f"{block}, {benchmark}, {model}"
                yield where, {
                    "model": model, "benchmark": benchmark, "protocol": protocol, "stderr": errors.get(model),
                    "value": checked("value", value, f"{root.path}, {where}"),
                    "prompt": None,  # whichever was better on validation
                }  # fmt: skip


LM_HARMONY = Spec("lm-harmony", ("direct_eval|train_before_test",), _harmony)


def read_lm_harmony(path: str | Path) -> pd.DataFrame:
    """The columns of SCORES of a file of the train-before-test authors, in the order of the file. Raises InputError,
    with the place, for a file that is none and for a score that is not a finite number."""
    document = engine.read_json_file(Path(path))
    return score_frame(LM_HARMONY.read(Opened(Path(path), named=True, document=document)))[SCORES.names]


# ---- the early-training competition: model, iteration, gtokens and a column a benchmark ------------------------------

_NO_BENCHMARKS = ("model", "iteration", "gtokens")


def _e2lm(root: Place) -> Entries:
    """The cells of benchmarks; an empty one is a checkpoint that was not evaluated on it."""
    for line, row in zip(root.root.index, root.root.to_dict("records"), strict=True):
        where = f"{root.path}: row {line}"
        step = checked("iteration", parsed(row["iteration"]), where)
        shared = {"model": row["model"], "checkpoint": f"iter_{step:07d}", "iteration": step}
        shared["tokens_b"] = parsed(row["gtokens"])
        for name in (name for name, text in row.items() if text and name not in _NO_BENCHMARKS):
            value = checked("value", parsed(row[name]), f"{where}, column {name!r}")
            yield f"row {line}", shared | {"benchmark": name, "value": value}


E2LM = Spec("e2lm", lambda opened: opened.head.lstrip(b"\xef\xbb\xbf").startswith(b"model,iteration,gtokens,"), _e2lm)
