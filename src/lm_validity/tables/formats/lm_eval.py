"""lm-eval's files: results -> scores, with lm-eval's keys `name,filter`, and how they were made; samples -> items."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lm_validity.errors import InputError, first_line
from lm_validity.files import Document
from lm_validity.tables.formats import engine, score_files
from lm_validity.tables.formats.engine import Answer, Place, Spec, finite, is_sampled, items_of, part
from lm_validity.tables.formats.score_files import ImportLog, Opened, ScoreFile, date_in, folder_name, parse_arguments
from lm_validity.tables.metrics import is_no_score
from lm_validity.tables.schema import LARGEST_SCORE, Claim, Item

# ----------------------------------------------------------------------------------------------------------------------
# Result files: the layouts of lm-eval 0.3 (metrics without a filter, `acc` and `acc_stderr`), of 0.4.0 to 0.4.2 (the
# model in `config.model_args` only) and of later versions (`model_name`, `n-samples`, `higher_is_better`).

HINT = "lm-eval writes such a file with --output_path: results_<date>.json."
# entries of a task's results that are no metrics
_NO_METRICS = ("alias", "name", "bypass", "run_stats", "sample_len", "sample_count", "samples", "solved_avg")
_SAID = ("chat_template_sha", "system_instruction_sha", "fewshot_as_multiturn")  # further settings
# Arguments of a model beside its name that make another model of it
_CHANGES = ("load_in_4bit", "load_in_8bit", "autogptq", "gptqmodel", "gguf_file", "quantization")
# Parts of a file that are objects where they are there
_SECTIONS = ("config", "groups", "group_subtasks", "configs", "versions", "task_hashes", "n-shot", "n-samples",
             "higher_is_better")  # fmt: skip


def _recognises(opened: Opened) -> bool:
    """Whether there are results with metrics by task, not with objects of these."""
    results = part(opened.document).get("results")
    values = [value for task in part(results).values() for value in part(task).values()]
    return isinstance(results, dict) and (not values or any(not isinstance(value, dict | list) for value in values))


def _load(opened: Opened) -> list[Document]:
    """The file with all of its parts, and with `arguments` (those of the model) and `seed` (of what is drawn at random;
    "" where it is not said)."""
    said = {name: value for name, value in opened.document.items() if value or name not in _SECTIONS}
    document: Document = {name: {} for name in _SECTIONS} | said
    config, arguments = document["config"], parse_arguments(document["config"].get("model_args"))
    seeds = (arguments.get("seed"), config.get("torch_seed"), config.get("random_seed"))
    seed = next((str(seed) for seed in seeds if seed is not None), "")
    return [document | {"arguments": arguments, "seed": seed}]


def _point_of(arguments: dict[str, str], path: Path) -> Claim:
    """The checkpoint, of the arguments, else a step in the name of the file."""
    if not {"revision", "step", "subfolder"} & set(arguments):
        step = score_files.training_point({"revision": path.stem})["iteration"]
        return score_files.training_point({} if step is None else {"step": str(step)})
    return score_files.training_point(arguments)


def _weights(arguments: dict[str, str], name: object) -> str:
    """Path, revision and adapter as one text."""
    base = score_files.model_place(arguments.get("pretrained") or str(name)).path
    return "@".join(filter(None, (base, *map(arguments.get, ("revision", "subfolder", "step", "peft", "delta")))))


def _sampled(document: Document) -> set[str]:
    """The tasks whose answers were drawn with a temperature, as far as the file says so."""
    over = document["config"].get("gen_kwargs")
    over = parse_arguments(over) if isinstance(over, str) else part(over)
    texts = {task: part(of_task, "generation_kwargs") for task, of_task in document["configs"].items()
             if part(of_task).get("output_type", "generate_until") == "generate_until"}  # fmt: skip
    return {task for task, options in texts.items() if is_sampled(options | over)}


def _settings(document: Document) -> str:
    """What changes scores beside weights and task, as one text; without the seed of what was sampled."""
    said = {name: document.get(name) or None for name in _SAID}
    said["gen_kwargs"] = document["config"].get("gen_kwargs") or None
    return engine.as_text(document["arguments"] | said | ({"seed": None} if _sampled(document) else {}))


def _identity(document: Document, path: Path, name: object) -> dict[str, str]:
    """What tells two models of one name apart: parameters, quantisation, and the folder that alone names a model."""
    arguments, parameters = document["arguments"], finite(document["config"].get("model_num_parameters")) or 0
    changed = [f"{name}={arguments[name]}" for name in _CHANGES
               if arguments.get(name, "").lower() not in ("", "false", "none")]  # fmt: skip
    identity = {"quantisation": ", ".join(changed) or "none"}
    identity |= {} if name or "/" in str(document["config"].get("model")) else score_files.folder_identity(path)
    return identity | ({"number of parameters": f"{parameters:.0f}"} if parameters > 0 else {})


def _groups(document: Document) -> dict[str, list[str]]:
    """The tasks of each group whose own score counts: with an error, and of like tasks, none of another such group.

    Tasks are alike if there are three or more with the same metrics whose names begin as the group's does: those of
    MMLU are, those of a suite (`pythia`, `glue`) or of different measures (`truthfulqa`) are not.
    """
    results = document["results"]
    names, own_scores = set(document["groups"]), {**document["groups"], **results}
    subtasks = {name: list(members) for name, members in document["group_subtasks"].items() if members}
    if not subtasks:  # lm-eval 0.4.0 does not list them
        subtasks = {name: [task for task in results if task.startswith(f"{name}_")] for name in names}
    below = {name: _below(name, subtasks) for name in subtasks}
    groups: dict[str, list[str]] = {}
    for name in sorted(below, key=lambda group: -len(below[group])):
        tasks = [task for task in below[name] if task not in subtasks and isinstance(results.get(task), dict)]
        kinds = {frozenset(metric for metric in results[task] if "," in metric) for task in tasks}
        start = re.split(r"[-_]", name)[0]
        alike = len(tasks) > 2 and len(kinds) == 1 and all(re.split(r"[-_]", task)[0] == start for task in tasks)
        scores = part(own_scores, name)
        has_error = any(finite(scores[metric]) is not None for metric in scores if "_stderr" in metric)
        if alike and has_error and not any(name in below[other] for other in groups):
            groups[name] = tasks
    return groups


def _below(name: str, subtasks: dict[str, list[str]]) -> set[str]:
    """Everything in a group, in the groups of it too."""
    members = set(map(str, subtasks.get(name, ())))
    return members.union(*(_below(member, subtasks) for member in members))


def _scores(root: Place) -> Iterator[tuple[object, Document]]:
    """The scores of all tasks, and of the groups whose own score counts."""
    document = root.root
    # lm-eval 0.4.0 lists groups under `groups` only; later versions have tasks in `group_subtasks` too, without members
    groups = {name for name, members in document["group_subtasks"].items() if members} | set(document["groups"])
    kept = _groups(document)
    group_of = {task: group for group, tasks in kept.items() for task in tasks}
    sampled = _sampled(document)
    for task, metrics in ((document["groups"] if kept else {}) | document["results"]).items():
        if not isinstance(metrics, dict) or (task in groups and task not in kept):
            continue
        members = kept.get(task, [task])
        shared = _of_task(document, task, members) | {"group": group_of.get(task)}
        shared["drawn"] = document["seed"] if sampled.intersection((task, *members)) else None
        directions = document["higher_is_better"].get(task) or document["higher_is_better"].get(members[0]) or {}
        for cell in _metrics(metrics):
            direction = directions.get(cell["metric"].partition(",")[0])
            yield f"{task}, {cell['metric']}", shared | cell | {"higher_is_better": direction}


def _metrics(metrics: Document) -> Iterator[Document]:
    """The key `name,filter` of each metric of a task, its value (None: missing, or no number) and its error."""
    before_filters = not any("," in key for key in metrics)
    for key, value in metrics.items():
        name, comma, filter_name = key.partition(",")
        is_metric = name.strip() and name not in _NO_METRICS and not name.endswith(("_stderr", "_std_err"))
        if is_metric and (filter_name or (before_filters and not is_no_score(name))):
            stems = (name, re.sub(r"_(avg|mean)$", "", name))  # evalchemy's errors are `x_std_err`, also of `x_avg`
            errors = (f"{name}_stderr{comma}{filter_name}", *(f"{stem}_std_err" for stem in stems))
            error = next((metrics[error] for error in errors if error in metrics), None)
            yield {"metric": key if comma else f"{key},none", "value": finite(value), "stderr": error}


def _of_task(document: Document, task: str, members: list[str]) -> Document:
    """What all scores of a task, or of a group whose tasks agree in it, have in common."""
    of_run = document["config"].get("num_fewshot")
    if isinstance(of_run, list):  # of each task, in an order that the file does not say
        of_run = of_run[0] if of_run and of_run.count(of_run[0]) == len(of_run) else None
    examples = set()
    for member in members:
        said = (document["n-shot"].get(member), part(document["configs"], member).get("num_fewshot"), of_run)
        examples.add(next((shots for shots in said if shots is not None), None))

    def agreed(section: str) -> str | None:
        names = [task] if task in document[section] else members
        values = {str(value) for name in names if (value := document[section].get(name))}
        return values.pop() if len(values) == 1 else None

    def total(name: str) -> int | None:
        counts: list[Any] = [(document["n-samples"].get(member) or {}).get(name) for member in members]
        return None if None in counts else sum(counts)

    return {
        "benchmark": task,
        "num_fewshot": examples.pop() if len(examples) == 1 else None,
        "n_items": total("effective"),
        "n_items_total": total("original"),
        "task_version": agreed("versions"),
        "task_hash": agreed("task_hashes"),
    }


_NAMED = "|".join(("model_name", *(f"arguments.{name}" for name in score_files.NAMES)))
LM_EVAL = Spec(
    "lm-eval",
    _recognises,
    _scores,
    {
        # leaderboards write the hub id where lm-eval has the kind of model
        "model": (_NAMED, "config.model", lambda name, kind: name or (kind if "/" in str(kind) else None)),
        "": ("arguments", "%", _point_of),
        "date": ("date", engine.date_of),
        "identity": ("", "%", _NAMED, _identity),
        "parameters_b": ("config.model_num_parameters", lambda number: number / 1e9 if number > 0 else None),
        "limited": ("config.limit", lambda limit: True),
        "weights": ("arguments", _NAMED, _weights),
        "settings": ("", _settings),
        "harness_version": "lm_eval_version|git_hash",
        "chat_template": ("", lambda file: bool(file["chat_template"]) if "chat_template" in file else None),
        "system_instruction": ("", lambda file: str(
            file.get("system_instruction_sha") or file.get("system_instruction") or "none"
        ) if "system_instruction" in file else None),
        "limit": "config.limit",
        "backend": ("config.model", lambda kind: None if "/" in kind else kind),
        "dtype": ("arguments.dtype", lambda dtype: None if dtype == "auto" else dtype.removeprefix("torch.")),
        "seed": ("seed", lambda seed: int(seed) if seed.isdigit() else None),
        "adapter": ("arguments", lambda arguments: arguments and (
            arguments.get("peft") or arguments.get("delta") or "none")),
    },
    # the folder of a file that was named itself may be anything
    named_by=lambda opened: None if opened.named else folder_name(opened.path),
    load=_load,
)  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------------
# One line of samples_*.jsonl: what it says of a document and of the model's answer to it.
#
# Lines differ between versions: log-likelihoods are numbers or texts, requests a list or an object, and the metrics and
# the filter are named since 0.4.5 only.

_NO_VALUES = frozenset(
    ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash", "prompt_hash",
     "target_hash")
)  # fmt: skip
_PAIRS = ("mcc", "f1")  # metrics whose value of a document is the pair (gold, predicted)
_WEIGHTED: dict[str, Callable[[float], float]] = {
    "bits_per_byte": lambda mean: -mean / math.log(2),
    "byte_perplexity": lambda mean: math.exp(min(-mean, 700.0)),  # which is more than any score
}
_WEIGHTED["word_perplexity"] = _WEIGHTED["byte_perplexity"]


class Sample(NamedTuple):
    """One answer. `item` has columns of ITEMS, `gold` only of a multiple choice (None: unknown).

    `values`: the document's value of each metric, a number.
    """

    filter: str | None  # None where the line does not say
    item: Item
    values: dict[str, float]


def read_sample(line: Document) -> Sample:
    """Raises KeyError, TypeError or ValueError for what is no sample."""
    if not isinstance(line.get("filter"), str | None):
        raise TypeError(f"its filter is {line['filter']!r}, not a name")
    if line["doc_id"] is None:
        raise TypeError("its doc_id is null")
    names = line.get("metrics")
    if not isinstance(names, list):
        names = [name for name in line if name not in _NO_VALUES]
    metrics = {name: _value(name, line.get(name)) for name in names}
    values = {name: value for name, value in metrics.items() if value is not None and abs(value) <= LARGEST_SCORE}
    item = Item(doc_id=_text(line["doc_id"]) or "", doc_hash=_text(line.get("doc_hash")))
    item["subject"] = _text(part(line, "doc").get("subject"))
    requests, responses = _requests(line.get("arguments")), line.get("resps") or []
    answers = [response[0] for response in responses]  # left out where they are not to be published
    if not answers and not values:
        raise KeyError("answers (resps) and no metrics")
    first = answers[0] if answers else None
    if isinstance(first, list) and len(answers) > 1:
        item |= _choices(line, requests, answers, values)
    elif isinstance(first, list) or (answers and requests and len(requests[0]) == 1):  # a text alone: rolling
        item["choice_loglikelihoods"] = [_loglikelihood(first)]
    elif answers:
        item["response"] = _text(first)
    return Sample(line.get("filter"), item, values)


def _choices(line: Document, requests: list[list[object]], answers: list[object], values: dict[str, float]) -> Item:
    """Log-likelihoods and lengths of the choices, and the right one."""
    loglikelihoods = [_loglikelihood(answer) for answer in answers]
    texts = [str(request[1]) for request in requests] if all(len(request) > 1 for request in requests) else []
    columns: Item = {}
    half = len(answers) // 2
    is_twice = len(texts) == len(answers) == 2 * half and texts[:half] == texts[half:]
    if is_twice and not any(str(request[0]) for request in requests[half:]):  # acc_mutual_info, without the question
        columns["unconditional_loglikelihoods"] = loglikelihoods[half:]
        loglikelihoods, texts = loglikelihoods[:half], texts[:half]
    columns["choice_loglikelihoods"] = loglikelihoods
    if len(texts) == len(loglikelihoods):
        texts = [text.removeprefix(" ") for text in texts]  # lm-eval's target delimiter, which its lengths leave out
        columns["choice_characters"] = [len(text) for text in texts]
        columns["choice_bytes"] = [len(text.encode(errors="replace")) for text in texts]
    return columns | Item(gold=_gold(line.get("target"), texts, loglikelihoods, values.get("acc")))


def _gold(target: object, texts: list[str], loglikelihoods: list[float], accuracy: float | None) -> int | None:
    """The right choice: the target as its place or its text, and not at odds with whether the answer was right.

    An `acc` that contradicts every reading of the target is no share of right answers (truthfulqa_mc2, say).
    """
    chosen = loglikelihoods.index(max(loglikelihoods))
    named = str(target).strip()
    equal_places = [index for index, text in enumerate(texts) if text.strip() == named]
    places = [int(named)] if named.isascii() and named.isdigit() and int(named) < len(loglikelihoods) else []
    places += equal_places if len(equal_places) == 1 else []
    if accuracy == 1.0 and (chosen in places or not places):
        return chosen
    if accuracy == 0.0 and not places and len(loglikelihoods) == 2:
        return 1 - chosen
    right = [index for index in places if accuracy != 0.0 or index != chosen]
    return next(iter([*right, *places]), None)


def _value(name: str, value: object) -> float | None:
    """A document's own value of a metric; None where it has none."""
    if not isinstance(value, list):
        return float(value) if isinstance(value, bool) else finite(value)
    if len(value) == 2 and name in _PAIRS:
        return float(value[0] == value[1])
    if len(value) == 2 and name in _WEIGHTED:
        total, weight = finite(value[0]), finite(value[1])
        return None if total is None or not weight else _WEIGHTED[name](total / weight)
    return None


def _text(value: object) -> str | None:
    """A text that a table can hold: half a pair of surrogates becomes a question mark."""
    return None if value is None else str(value).encode(errors="replace").decode()


def _requests(arguments: object) -> list[list[object]]:
    """The arguments of each request; [] where the line has none."""
    if isinstance(arguments, dict):
        arguments = list(arguments.values())
    if not isinstance(arguments, list):
        return []
    return [list(argument.values()) if isinstance(argument, dict) else list(argument) for argument in arguments]


def _loglikelihood(answer: Any) -> float:
    """From `-1.5`, `"-1.5"`, `[-1.5, false]` or `["-1.5", "False"]`."""
    return float(answer[0] if isinstance(answer, list) else answer)


# ----------------------------------------------------------------------------------------------------------------------
# Files of samples.

_NAME = re.compile(r"samples_(.+?)(?:_(\d{4}-\d\d-\d\d[T_-]\d\d[-:]\d\d[-:]\d\d(?:\.\d+)?))?\.jsonl(?:\.gz)?$")
# Metrics whose score is not the mean over documents
_NO_MEAN = frozenset(("perplexity", "ppl", "word_perplexity", "byte_perplexity", "bits_per_byte", "mcc", "f1"))


def task_of(path: Path) -> str | None:
    """The task in a name that lm-eval gives to samples; None in another name."""
    return name[1] if (name := _NAME.match(path.name)) else None


def samples_alone(path: Path, model: str | None, log: ImportLog) -> ScoreFile:
    """Samples without a result file, whose means are the scores, of a model that `model` or the folder names. Raises
    InputError, with the line, for a line that is no sample."""
    items = [*items_of(_answers(path, (), log))]
    rows = [row for row in engine.scores_of(items) if str(row["metric"]).partition(",")[0] not in _NO_MEAN]
    with engine.opened(path) as handle:
        requests = _requests(json.loads(next(filter(bytes.strip, handle), b"{}")).get("arguments"))
    drawn = any(isinstance(each, dict) and is_sampled(each) for request in requests for each in request)
    common = Claim(model=model or folder_name(path), source="lm-eval", drawn="" if drawn else None)
    identity = {} if model else score_files.folder_identity(path)
    return ScoreFile(path, rows, common, date_in(path.stem), identity=identity, items=items.copy)


def samples_beside(path: Path, model: str | None, results: list[ScoreFile], log: ImportLog) -> ScoreFile:
    """Samples with what one of the result files of their folder and task says: that of their date, else the best one.
    Raises InputError where these are of several models and none of that date."""
    task, date = str(task_of(path)), date_in(path.stem)
    of_date = [result for result in results if date is not None and date_in(result.path.stem) == date]
    if not of_date and len({result.common["model"] for result in results}) > 1:
        hint = f"put each model's files into a folder of its own, or name it: --model '{path}=NAME'."
        raise InputError(f"{path}: result files of several models are in its folder, none of its date.", hint)
    best = max(of_date or results, key=lambda result: result.rank)
    rows = [row for row in best.rows if row["benchmark"] == best.members.get(task, task)]
    common = best.common | Claim(num_fewshot=rows[0].get("num_fewshot"), run=rows[0].get("run"))
    common |= Claim(model=model or common["model"])
    scored = tuple(str(row["metric"]) for row in rows)
    date = best.date if date is None else date
    return ScoreFile(path, [], common, date, limited=best.limited, items=lambda: items_of(_answers(path, scored, log)))


def _answers(path: Path, scored: Sequence[str], log: ImportLog) -> Iterator[Answer]:
    """The answers in a file. Raises InputError, with the line, for a line that is no sample.

    scored: the keys `name,filter` of the result file. Further answers to a document are those of further filters, in
    the order of the result file where lines do not name them.
    """
    seen, numbers = set[tuple[str, str]](), Counter[tuple[str, str]]()
    for sample in _samples(path):
        item = sample.item | Item(benchmark=str(task_of(path)))
        yield Answer(item, None, None)
        for metric, value in sample.values.items():
            names = [sample.filter]
            if sample.filter is None:
                names = [name for key in scored for scored_metric, _, name in [key.partition(",")]
                         if scored_metric == metric] or ["none"]  # fmt: skip
            number = numbers[item["doc_id"], metric] if sample.filter is None else 0
            numbers[item["doc_id"], metric] += 1
            if number >= len(names):
                log.note("Several answers to a document and no name of their filters; the first ones count", path)
                continue
            key = f"{metric},{names[number]}"
            if (item["doc_id"], key) in seen:
                log.note("Lines repeat a document; the first one of each counts", path)
                continue
            seen.add((item["doc_id"], key))
            yield Answer(item, key, value)


def _samples(path: Path) -> Iterator[Sample]:
    """The samples of a file, line by line: what is not kept of a line may be larger than memory."""
    number = 0
    try:
        with engine.opened(path) as handle:
            for line in handle:
                number += 1
                if line.strip():
                    yield read_sample(json.loads(line))
    except (*engine.BROKEN_GZIP, OSError) as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}).", HINT) from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        described = f"it has no {error.args[0]}" if isinstance(error, KeyError) else first_line(error)
        raise InputError(f"{path}, line {number}: not a sample of lm-eval ({described}).", HINT) from error
