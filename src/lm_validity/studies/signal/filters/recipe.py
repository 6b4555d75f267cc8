"""Recipes of filters: read, applied, judged on models that the filter did not see, and written as files.

Also the language model that is asked for verdicts on single questions.
"""

import hashlib
import json
import math
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import pandas as pd
import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from lm_validity.config.load import read_values
from lm_validity.errors import InputError, did_you_mean
from lm_validity.files import Document, check_folder, json_text, replaced_folder, write_text
from lm_validity.studies.signal.filters import kinds
from lm_validity.studies.signal.filters.kinds import Candidates, Filters, ItemFilter, Selection
from lm_validity.studies.signal.statistics import items as splits
from lm_validity.studies.signal.statistics.quality import MINIMUM_CHECKPOINTS, Controls
from lm_validity.tables.items import BenchmarkItems, match_documents, questions, read_benchmark_items, read_documents
from lm_validity.tables.schema import as_in_scores, read_model_facts

# ----------------------------------------------------------------------------------------------------------------------
# Language-model verdicts on single questions: Accept or Reject, several times, cached.
#
# Two uses. Team Noor's filter keeps a question if k of k independent promptings accept it. The competition's
# alignment check asks once for each of 50 random questions and reports the share accepted. The judge is any
# local causal model (`lm_validity.cells.workers`) or an OpenAI-compatible endpoint.

PROMPT_VERSION = "1"
_INSTRUCTION = """Does answering this question need domain, academic or professional knowledge?

Accept: sciences, mathematics, engineering, medicine, law, business, economics, history, philosophy and other \
fields of study or of a profession.
Reject: general language, common sense, vocabulary, trivia, sentiment, plain reading comprehension.

{item}

Reply with one word, Accept or Reject."""

# A judge turns a prompt and the number of the repetition into a reply; the same pair may give the same reply
Judge = Callable[[str, int], str]


def item_text(context: str, choices: list[str], gold: int) -> str:
    """A question as the judge sees it: the options with letters, and the right one."""
    options = "\n".join(f"{chr(ord('A') + index)}) {choice}" for index, choice in enumerate(choices))
    return f"Question: {context}\n{options}\nAnswer: {chr(ord('A') + gold)}"


def parse_verdict(reply: str) -> bool | None:
    """True for Accept, False for Reject; None for a reply that says neither or both."""
    words = set(re.findall(r"[a-z]+", reply.casefold()))
    accept, reject = "accept" in words, "reject" in words
    return None if accept == reject else accept


@dataclass
class VerdictCache:
    """Verdicts in a file of JSON lines, one a prompting; a question that was judged is never sent again."""

    path: Path
    judge_name: str

    def __post_init__(self) -> None:
        self._known: dict[str, bool | None] = {}
        if self.path.is_file():
            lines = self.path.read_text(encoding="utf-8").splitlines()
            for number, line in enumerate(lines, start=1):
                try:
                    entry = json.loads(line)
                    self._known[entry["key"]] = entry["verdict"]
                except (json.JSONDecodeError, KeyError, TypeError):
                    # A run that was killed can leave a last line half written
                    if number != len(lines) or not line.startswith('{"key": '[: len(line)]):
                        raise InputError(f"{self.path}: line {number} is not a verdict.", "delete the line.") from None

    def verdict(self, judge: Judge, prompt: str, repetition: int) -> bool | None:
        """The cached verdict, or a new one from the judge, written at once."""
        text = json.dumps([self.judge_name, PROMPT_VERSION, prompt, repetition])
        key = hashlib.sha256(text.encode()).hexdigest()
        if key not in self._known:
            verdict = parse_verdict(judge(prompt, repetition))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as handle:
                handle.write(json.dumps({"key": key, "judge": self.judge_name, "verdict": verdict}) + "\n")
            self._known[key] = verdict
        return self._known[key]


@dataclass(frozen=True)
class UnanimousJudge(ItemFilter):
    """Keeps items that all of `promptings` independent promptings accept (team Noor: 5 of 5)."""

    judge: Judge
    judge_name: str
    cache: Path
    promptings: int = 5
    name = "llm_judge"

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True where every prompting accepts the item; a reply that is no verdict counts as not accepted. New verdicts
        are written to the cache."""
        cache, accepts = VerdictCache(Path(self.cache), self.judge_name), []
        for question in questions(candidates.need_documents(self.name)):
            prompt = _INSTRUCTION.format(item=item_text(*question))
            verdicts = [cache.verdict(self.judge, prompt, repetition) for repetition in range(self.promptings)]
            accepts.append(all(verdict is True for verdict in verdicts))
        return np.array(accepts, dtype=bool)


class JudgeAlignment(NamedTuple):
    """The competition's alignment check: the share accepted of a random sample, and its 95% Wilson
    interval."""

    accepted: float
    interval: tuple[float, float]
    items: int


def alignment(documents: pd.DataFrame, judge: UnanimousJudge, items: int, seed: int) -> JudgeAlignment:
    """Share of `items` randomly drawn documents that the judge accepts in one prompting each.

    The threshold that the competition set on it is not published.
    """
    from scipy.stats import binomtest

    candidates = Candidates(documents["doc_id"].to_numpy(), documents=documents)
    drawn = candidates.take(kinds.RandomSubset(min(items, len(documents)), seed).keep(candidates))
    accepted = int(replace(judge, promptings=1).keep(drawn).sum())
    interval = binomtest(accepted, number := len(drawn.doc_ids)).proportion_ci(method="wilson")
    return JudgeAlignment(accepted / number, (float(interval.low), float(interval.high)), number)


@dataclass(frozen=True)
class EndpointJudge:
    """A judge behind an OpenAI-compatible endpoint (`<url>/chat/completions`).

    The key is read from the environment variable named by `key_variable`. The first prompting is greedy;
    repetitions are sampled at `temperature` with the repetition as seed, else five promptings would be one.
    """

    url: str
    model: str
    key_variable: str | None = None
    temperature: float = 0.7
    timeout_s: float = 60.0

    def __call__(self, prompt: str, repetition: int) -> str:
        """The endpoint's reply to one prompt, 8 tokens at most; "" where it says nothing. Raises InputError where the
        key is not set, and where the endpoint does not answer or not in OpenAI's layout."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0.0 if repetition == 0 else self.temperature,
            "seed": repetition,
            "max_tokens": 8,
        }
        headers = {"Content-Type": "application/json"}
        if self.key_variable is not None:
            if self.key_variable not in os.environ:
                raise InputError(f"environment variable {self.key_variable} is not set.", "export the endpoint's key.")
            headers["Authorization"] = f"Bearer {os.environ[self.key_variable]}"
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/chat/completions", data=json.dumps(body).encode(), headers=headers
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as response:
                reply = json.load(response)
            return reply["choices"][0]["message"]["content"] or ""
        except (urllib.error.URLError, TimeoutError, ValueError, LookupError, TypeError) as error:
            problem = f"{self.url}: the judge did not answer with choices[0].message.content ({error!r})."
            raise InputError(problem, "is the endpoint up, and OpenAI-compatible?") from error


# ----------------------------------------------------------------------------------------------------------------------
# Values of settings, checked against the annotations of what they are settings of.

# Of a step `llm_judge`, whichever the judge: an endpoint's, a local model's and the filter's own
JUDGE_SETTINGS = {**get_type_hints(EndpointJudge), "dtype": str, "device": str, "max_new_tokens": int}
JUDGE_SETTINGS |= {"promptings": int, "cache": str}


class Export(NamedTuple):
    """How a recipe's task is written: the number of solved examples, the text before all questions, and what stands
    before a choice."""

    num_fewshot: int = 0
    description: str | None = None
    target_delimiter: str | None = None


def check_settings(settings: Mapping[str, object], annotations: Mapping[str, Any], where: str) -> None:
    """Raises InputError naming the first setting that there is none of, or whose value is not of its annotated type.

    Strict: no number for a text, no text or boolean for a number; an integer for a fraction will do. `.nan`, which
    YAML takes for a number, compares with nothing and is refused.
    """
    for name, value in settings.items():
        if name not in annotations:
            hint = did_you_mean(name, annotations, f"one of {', '.join(annotations)}.")
            raise InputError(f"{where}: unknown key {name!r}.", hint)
        if value != value:
            raise InputError(f"{where}, {name}: {value!r} is not a number.", "write a number.")
        try:
            TypeAdapter(annotations[name], config=ConfigDict(strict=True)).validate_python(value)
        except ValidationError as error:
            reason = "; ".join(dict.fromkeys(problem["msg"] for problem in error.errors()))
            hint = "write a value of that kind; numbers without quotes."
            raise InputError(f"{where}, {name}: {value!r} ({reason}).", hint) from None


# ----------------------------------------------------------------------------------------------------------------------
# What a selection leaves on disk: the kept ids, lm-eval's `--samples` file, and an lm-eval task of its own.
#
# kept.csv                  the ids that stay kept.json                 benchmark, filters with their settings, what
# each step left, sha256 of the ids samples.json              {task: [rows]} for `lm_eval --samples`, where ids are
# rows of the scored split ("test:17", of                           a group's task "mmlu_anatomy/test:17")
# tasks/<name>.yaml, ...    with the documents' texts: a task that runs by `lm_eval --include_path tasks`

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ROW = re.compile(r"(?:(?P<task>.+)/)?(?:test|validation):(?P<row>\d+)")

# lm-eval would resolve data files against the working directory; a loader beside the task finds them anywhere
_LOADER = '''"""Loads the documents beside this file, wherever the folder lies."""

import json
from pathlib import Path

import datasets


def load(files: dict[str, str], **_metadata) -> datasets.DatasetDict:
    """The named splits, without a network or a cache."""
    loaded = {}
    for split, name in files.items():
        with open(Path(__file__).resolve().parent / name, encoding="utf-8") as lines:
            loaded[split] = datasets.Dataset.from_list([json.loads(line) for line in lines])
    return datasets.DatasetDict(loaded)
'''


def check_name(name: str, where: str = "") -> str:
    """A task's name as it may stand in file names. Raises InputError for others."""
    if not _NAME.fullmatch(name):
        raise InputError(f"{where}{name!r} is not a task name.", "use letters, digits, dots, dashes and underscores.")
    return name


def selection_files(selection: Selection, recipe: "Recipe") -> dict[str, str]:
    """kept.csv, kept.json and, where ids are rows of the test split, samples.json: the text of each."""
    ids = list(selection.doc_ids)
    record = {
        "name": check_name(recipe.name),
        "benchmark": recipe.benchmark,
        "items": len(ids),
        "sha256": hashlib.sha256("\n".join(ids).encode()).hexdigest(),
        "steps": selection.steps,
        "recipe": _as_json(recipe.settings),
    }
    files = {
        "kept.csv": pd.DataFrame({"doc_id": ids}).to_csv(index=False, lineterminator="\n"),
        "kept.json": json_text(record),
    }
    rows = [_ROW.fullmatch(doc_id) for doc_id in ids]
    matches = [row for row in rows if row is not None]
    if ids and len(matches) == len(rows):
        by_task: dict[str, list[int]] = {}
        for row in matches:
            by_task.setdefault(row["task"] or recipe.task, []).append(int(row["row"]))
        files["samples.json"] = json_text({name: sorted(numbers) for name, numbers in by_task.items()})
    return files


def task_files(
    documents: pd.DataFrame, doc_ids: tuple[str, ...], name: str, export: Export, fewshot: pd.DataFrame | None = None
) -> dict[str, str]:
    """The kept documents as a multiple-choice task: the text of each file; <name>.yaml is lm-eval's.

    Where the documents have a column `prompt`, and the export neither `num_fewshot` nor `description`, that is what
    stands before a choice: description and examples included, exactly as the original task showed them. Else prompts
    are the documents' contexts, `description` may use the documents' columns, e.g. {{subject}}, and the first
    `num_fewshot` rows of `fewshot` stand before each question. `target_delimiter` is by default the documents' own,
    else a blank. Raises InputError for what cannot be such a task.
    """
    check_name(name)
    num_fewshot, description = export.num_fewshot, export.description
    if not doc_ids:
        raise InputError(f"task {name!r}: no document is left.", "filter less.")
    if num_fewshot and (fewshot is None or len(fewshot) < num_fewshot):
        raise InputError(
            f"task {name!r}: {num_fewshot} few-shot examples asked for, "
            f"{0 if fewshot is None else len(fewshot)} given.",
            "add documents with split 'fewshot'.",
        )
    documents_kept = documents.set_index("doc_id", drop=False).loc[list(doc_ids)]
    as_scored = "prompt" in documents_kept.columns and not num_fewshot and description is None
    if as_scored and documents_kept["prompt"].isna().any():
        raise InputError(
            f"task {name!r}: its choices are in the prompt, which cannot be written as a task of choices.",
            "use samples.json with lm_eval --samples.",
        )
    names = {"test": f"{name}.test.jsonl"}
    files = {names["test"]: _lines(documents_kept)}
    config: dict[str, object] = {
        "task": name,
        "custom_dataset": "!function dataset.load",
        "dataset_kwargs": {"files": names},
        "output_type": "multiple_choice",
        "test_split": "test",
        "description": description or "",
        "doc_to_text": "prompt" if as_scored else "context",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "target_delimiter": _delimiter(name, documents_kept, export),
        "num_fewshot": num_fewshot,
        "metric_list": [{"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm")],
        "metadata": {"version": 1.0},
    }
    if num_fewshot:
        names["fewshot"] = f"{name}.fewshot.jsonl"
        files[names["fewshot"]] = _lines(fewshot)
        config |= {"fewshot_split": "fewshot", "fewshot_config": {"sampler": "first_n"}}
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    # A YAML tag cannot be written by safe_dump; the quotes around it would make it a string
    text = text.replace("'!function dataset.load'", "!function dataset.load")
    return {**files, "dataset.py": _LOADER, f"{name}.yaml": text}


def write_files(files: dict[str, str], output: Path) -> None:
    """Write each text under its name, in order."""
    for name, text in files.items():
        write_text(output / name, text)


def _as_json(value: object) -> object:
    """A value as JSON has it: null for what cannot be computed, and an infinite bound as YAML spells it."""
    if isinstance(value, dict):
        return {key: _as_json(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_as_json(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: ".inf", -math.inf: "-.inf"}.get(value)
    return value


def _delimiter(name: str, documents: pd.DataFrame, export: Export) -> str:
    """What the export or else the documents say stands before a choice; a blank where they say nothing."""
    if export.target_delimiter is not None:
        return export.target_delimiter
    if "target_delimiter" not in documents.columns:
        return " "
    delimiters = documents["target_delimiter"].fillna(" ").unique()
    if len(delimiters) > 1:
        raise InputError(
            f"task {name!r}: the documents differ in target_delimiter ({', '.join(map(repr, delimiters))}).",
            "filter them apart, or set target_delimiter in the recipe's export.",
        )
    return str(delimiters[0])


def _lines(documents: pd.DataFrame) -> str:
    """JSON lines with the columns that a task reads."""
    columns = [
        name for name in ("doc_id", "subject", "context", "prompt", "choices", "gold") if name in documents.columns
    ]
    rows = documents[columns].to_dict("records")
    for row in rows:
        row["choices"], row["gold"] = list(row["choices"]), int(row["gold"])
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


# ----------------------------------------------------------------------------------------------------------------------
# A filter recipe: a YAML file that names a benchmark and the filters to run on it, in order.
#
# name: mmlu_rising            # of the exported task
# benchmark: mmlu_var          # as in items.parquet
# task: mmlu_continuation      # its lm-eval task, for samples.json; the benchmark's name where absent
# score: confidence_margin     # item score whose curves are judged; `correct` is the benchmark's own metric
# fit_models: [small-deep]     # models that fitted filters may look at; all where absent
# filters:
#   - subjects: {values: [college_physics]}
#   - positive_slope: {score: confidence_margin}
#   - any_of: [[{subjects: {values: [virology], complement: true}}], [leakage]]
#   - size_rule
# export: {num_fewshot: 5, description: "Questions about {{subject}}.\n\n"}

_KEYS = {**dict.fromkeys(("name", "benchmark", "task", "score"), str | int | float), "fit_models": list[str] | None}
_KEYS |= {"filters": object, "export": dict | None}

# Makes the judge of an `llm_judge` step from its settings (a local model or an endpoint): (judge, its name)
MakeJudge = Callable[[Document], UnanimousJudge]


class Recipe(NamedTuple):
    """A recipe as checked: its filters are made, and keys that the file leaves out have their defaults."""

    name: str
    benchmark: str
    task: str
    score: str
    fit_models: tuple[str, ...]  # empty: all
    filters: tuple[ItemFilter, ...]
    export: Export
    settings: Document  # the file as read, for the record


def read_recipe(path: str | Path, make_judge: MakeJudge) -> Recipe:
    """Read a recipe. Raises InputError for unknown keys, filters or settings, with the nearest valid name, for
    a value of the wrong type, and for a name that no file can have."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file.", "give the path of a recipe.")
    settings = read_values(path)
    if not isinstance(settings, dict):
        raise InputError(f"{path}: not a mapping.", f"write a recipe's keys: {', '.join(_KEYS)}.")
    check_settings(settings, _KEYS, f"{path}")
    for key in ("name", "benchmark", "filters"):
        if not settings.get(key):
            raise InputError(f"{path}: key {key!r} is missing.", "a recipe has at least name, benchmark and filters.")
    export = settings.get("export") or {}
    check_settings(export, get_type_hints(Export), f"{path}: export")
    return Recipe(
        name=check_name(str(settings["name"]), f"{path}, name: "),
        benchmark=str(settings["benchmark"]),
        task=str(settings.get("task") or settings["benchmark"]),
        score=str(settings.get("score") or "correct"),
        fit_models=tuple(settings.get("fit_models") or ()),
        filters=_chain(settings["filters"], f"{path}: filters", make_judge),
        export=Export(**export),
        settings=settings,
    )


def _chain(steps: object, where: str, make_judge: MakeJudge) -> tuple[ItemFilter, ...]:
    if not isinstance(steps, list):
        raise InputError(f"{where}: not a list.", "write one `- filter: {setting: value}` per step.")
    return tuple(_filter(step, f"{where}, step {number}", make_judge) for number, step in enumerate(steps, start=1))


def _filter(step: object, where: str, make_judge: MakeJudge) -> ItemFilter:
    if isinstance(step, str):
        step = {step: {}}
    if not isinstance(step, dict) or len(step) != 1:
        raise InputError(f"{where}: {step!r} is not one filter.", "write `- filter: {setting: value}`.")
    ((name, settings),) = step.items()
    if name == "any_of":
        if not isinstance(settings, list):
            raise InputError(f"{where}: any_of is not a list of chains.", "write a list of lists of filters.")
        return kinds.AnyOf(tuple(_chain(chain, f"{where}, any_of", make_judge) for chain in settings))
    settings = settings or {}
    if not isinstance(settings, dict):
        raise InputError(f"{where}: settings of {name!r} are not a mapping.", "write {setting: value}.")
    if name == "llm_judge":
        check_settings(settings, JUDGE_SETTINGS, f"{where}, {name}")
        return make_judge(settings)
    if name not in kinds.KINDS:
        kinds_known = [*kinds.KINDS, "any_of", "llm_judge"]
        hint = did_you_mean(name, kinds_known, f"one of {', '.join(kinds_known)}.")
        raise InputError(f"{where}: unknown filter {name!r}.", hint)
    kind = kinds.KINDS[name]
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    hints = get_type_hints(kind)
    check_settings(settings, {field.name: hints[field.name] for field in fields(kind)}, f"{where}, {name}")
    try:
        result: ItemFilter = kind(**settings)
        return result
    except TypeError as error:
        hint = f"its settings are {', '.join(field.name for field in fields(kind))}."
        raise InputError(f"{where}, {name}: {error}.", hint) from error


# ----------------------------------------------------------------------------------------------------------------------
# Judge filters on models and checkpoints that they were not fitted on.

# by name: in short, and in a sentence
DESIGNS = {
    "architecture": ("by shape", "each architecture's models scored with items chosen on the others'"),
    "size": ("by size", "each size's models scored with items chosen on the others'"),
    "model": ("by model", "each model scored with items chosen on the others"),
    "checkpoints": ("by time", "alternate checkpoints scored with items chosen on those between"),
    "references": ("by reference", "the other models scored with items that the filter's own two models chose"),
    "fit_models": ("by choice", "the other models scored with items chosen on the recipe's fit_models"),
}


Designs = dict[str, list[splits.Fold]]


def folds_by_design(answers: BenchmarkItems, models: pd.DataFrame, recipe: Recipe | None = None) -> Designs:
    """The designs that the models allow. `models` has model, size and architecture (null where unknown).

    Without two architectures or two sizes, models are left out one by one. Models with fewer than eight
    checkpoints cannot be scored and take no part. With a recipe's `fit_models` there is one fold: these choose, the
    others are scored. Models by which one of its filters chooses take no part but in `fit_models`; where no
    filter looks at others, there is one fold that scores all others.
    """
    filters, fit_models = (recipe.filters, recipe.fit_models) if recipe else ((), ())
    names = [model.model for model in answers.models]
    facts = models.set_index("model").reindex(names)
    references = kinds.reference_models(filters)
    counts = [len(model.checkpoints) for model in answers.models]
    free = [0 if name in references else number for name, number in zip(names, counts, strict=True)]
    usable = [number >= MINIMUM_CHECKPOINTS for number in free]

    of_filter = [item_filter for item_filter in kinds.leaves(filters) if item_filter.fitted]
    without_answers = bool(references) and all(kinds.reference_models([item_filter]) for item_filter in of_filter)
    if without_answers or fit_models:
        choosing = references if without_answers else fit_models
        everything = [(index, np.arange(number)) for index, number in enumerate(counts)]
        fit = tuple(row for row in everything if names[row[0]] in choosing)
        score = tuple(row for row in everything if usable[row[0]] and names[row[0]] not in fit_models)
        design = "references" if without_answers else "fit_models"
        return {design: [splits.Fold(fit, score)]} if score and (fit or without_answers) else {}

    designs: Designs = {}
    for design, groups in {**facts[["architecture", "size"]], "model": names}.items():
        if design != "model" or not any(designs.values()):  # by group of the usable models; others take no part
            by_model = [str(g) if use and pd.notna(g) else None for g, use in zip(groups, usable, strict=True)]
            designs[design] = splits.leave_one_group_out(by_model, counts)
    designs["checkpoints"] = splits.disjoint_checkpoints(free)
    return {design: folds for design, folds in designs.items() if folds}


Trials = dict[str, splits.FilterTrial]  # by design


def judge(filters: Filters, candidates: Candidates, designs: Designs, metric: str, controls: Controls) -> Trials:
    """The filters' trial under each design; curves are means of the item score `metric`."""
    answers = candidates.need_answers("held-out judgement")
    scored = [kinds.model_scores(answers, model, metric) for model in answers.models]
    return {
        design: splits.judge_filter(
            lambda rows: kinds.keep_items(filters, candidates.rows(rows)).is_kept, scored, folds, controls
        )
        for design, folds in designs.items()
    }


def trial_sentence(trial: splits.FilterTrial) -> str:
    """One sentence for a trial: all of in-sample, held-out and control, and what follows."""
    if np.isnan(trial.unfiltered):
        return "The item score is unknown for some items: the filter cannot be judged."
    fitted = f"{trial.in_sample:.3f}" if np.isfinite(trial.in_sample) else "unknown (it keeps nothing)"
    figures = (
        f"signal quality {fitted} where it was fitted, {trial.held_out:.3f} where it was not "
        f"(all items: {trial.unfiltered:.3f}; random choices of the same size: {trial.control_mean:.3f}, "
        f"97.5% of them below {trial.control_high:.3f})"
    )
    if not np.isfinite(trial.held_out) or not np.isfinite(trial.p):
        return "The filter keeps nothing in some split: it cannot be judged."
    if trial.useful:
        return f"The filter helps beyond its own data: {figures}."
    return f"The filter found nothing that holds beyond its own data: {figures}."


# ----------------------------------------------------------------------------------------------------------------------
# Run a recipe: choose the items, judge the choice, write both.


class Tables(NamedTuple):
    """The files that a recipe reads; None where there is none."""

    items: Path | None = None
    documents: Path | None = None
    models: Path | None = None


def apply_recipe(recipe: Recipe, output: Path, tables: Tables, controls: int = 200, seed: int = 0) -> list[str]:
    """Write what the recipe keeps under `output`; returns lines that say what happened.

    A recipe with fitted filters is judged on models and checkpoints that it was not fitted on; where that is
    impossible nothing is written, since its in-sample figure alone would mislead. Nor is anything where the kept
    documents cannot be exported as the recipe asks.
    """
    check_folder(output, "filter apply", inputs=tables)
    candidates, fewshot = _candidates(recipe, tables)
    candidates = kinds.with_references(candidates, recipe.filters)
    trials: Trials = {}
    if any(item_filter.fitted for item_filter in recipe.filters):
        if tables.models is None:
            raise InputError(
                f"recipe {recipe.name!r} has filters that are fitted to answers.",
                "give --models, so that they are judged on models that they did not see.",
            )
        answers = candidates.need_answers("held-out judgement")
        sheet = as_in_scores(read_model_facts(tables.models), {model.model for model in answers.models})
        if not (designs := folds_by_design(answers, sheet, recipe)):  # an in-sample figure alone is not given
            raise InputError(
                f"benchmark {answers.benchmark!r}: nothing is left to judge the filter on that it was not fitted to; "
                f"models and checkpoints: {', '.join(f'{m.model} {len(m.checkpoints)}' for m in answers.models)}.",
                f"give a second model with at least {MINIMUM_CHECKPOINTS} checkpoints, or "
                f"{2 * MINIMUM_CHECKPOINTS - 1} checkpoints of one.",
            )
        drawn = Controls(np.random.default_rng(seed), controls)
        trials = judge(recipe.filters, candidates, designs, recipe.score, drawn)
    selection = kinds.keep_items(recipe.filters, _fit_rows(recipe, candidates))
    lines = ["{filter}: {after} of {before} items stay".format(**step) for step in selection.steps]
    lines += [f"{DESIGNS[design][1]}: {trial_sentence(trial)}" for design, trial in trials.items()]

    # All texts before the first file: what cannot be exported leaves nothing behind
    files = selection_files(selection, recipe)
    if trials:
        files["judgement.json"] = json_text({design: _as_json(trial._asdict()) for design, trial in trials.items()})
    task = {}
    if candidates.documents is not None:
        task = task_files(candidates.documents, selection.doc_ids, recipe.name, recipe.export, fewshot)
        lines.append(f"lm-eval task: {output / 'tasks' / f'{recipe.name}.yaml'}")
    with replaced_folder(output, "filter apply", inputs=tables, names=[*files, *(["tasks"] if task else [])]) as folder:
        write_files(files, folder)
        write_files(task, folder / "tasks")
    return lines


class _ToChoose(NamedTuple):
    """The items to choose from, and the documents' few-shot examples."""

    candidates: Candidates
    fewshot: pd.DataFrame | None


def _candidates(recipe: Recipe, tables: Tables) -> _ToChoose:
    """What the tables have of the recipe's benchmark."""
    items, documents, _ = tables
    if items is None and documents is None:
        raise InputError("nothing to filter.", "give --items, --documents or both.")
    answers = None if items is None else read_benchmark_items(items, recipe.benchmark)
    texts = fewshot = None
    if documents is not None:
        texts = read_documents(documents, recipe.benchmark)
        if "split" in texts.columns:
            fewshot = texts[texts["split"] == "fewshot"].reset_index(drop=True)
            texts = texts[texts["split"] != "fewshot"].reset_index(drop=True)
        if answers is not None:
            texts = match_documents(texts, answers.doc_ids, documents)
    if answers is None:
        assert texts is not None, "either the answers or the texts are given"
        return _ToChoose(Candidates(texts["doc_id"].to_numpy(), None, texts), fewshot)
    return _ToChoose(Candidates(answers.doc_ids, answers, texts), fewshot)


def _fit_rows(recipe: Recipe, candidates: Candidates) -> Candidates:
    """The answers of the models that fitted filters may look at."""
    if not recipe.fit_models:
        return candidates
    answers = candidates.need_answers("fit_models")
    places = {model.model: (index, np.arange(len(model.checkpoints))) for index, model in enumerate(answers.models)}
    for name in recipe.fit_models:
        if name not in places:
            raise InputError(f"recipe {recipe.name!r}: no items of model {name!r}.", f"models: {', '.join(places)}.")
    return candidates.rows(tuple(places[name] for name in recipe.fit_models))
