"""Models before they are loaded: what is fetched of them, which are causal, and what a rehearsal says of each."""

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, TypedDict

from lm_validity.config.load import Run
from lm_validity.config.rows import is_folder, split_revision
from lm_validity.config.sections import SizeClass
from lm_validity.config.sheets import Dtype, Model
from lm_validity.errors import Problem, Refusal
from lm_validity.files import Document, read_json, read_json_or
from lm_validity.run.participants import Participants, size_class

# ----------------------------------------------------------------------------------------------------------------------
# The models of a run that have yet to be fetched from the hub.


class HubModel(NamedTuple):
    """A model on the hub; `folders` of it, as prefixes of file names, that are fetched."""

    path: str
    revision: str | None = None
    folders: tuple[str, ...] = ("",)


def unfetched_models(run: Run) -> dict[str, HubModel]:
    """Hub models without a record yet, by what they are called: `model` or `language model`, and the id."""
    results, unfetched = run.results / "prefetch", dict[str, HubModel]()
    for model in Participants(run).used_models:
        row = run.models[model]
        if not row.is_local and not (results / "models" / f"{model}.json").is_file():
            unfetched[f"model {model}"] = HubModel(row.path, row.revision, row.folders)
        for adapter in row.adapters:
            if not is_folder(adapter) and not (results / "models" / f"{model}.json").is_file():
                unfetched[f"model {model}, adapter {adapter}"] = HubModel(*split_revision(adapter))
    for model, language_model in run.language_models.items():
        if not is_folder(language_model.path) and not (results / "language_models" / f"{model}.json").is_file():
            unfetched[f"language model {model}"] = HubModel(language_model.path, language_model.revision)
    return unfetched


# ----------------------------------------------------------------------------------------------------------------------
# Which safetensors of a folder are its model. Some come twice: Mistral's also as consolidated.safetensors.

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def weight_names(names: Collection[str], index: str | None) -> set[str]:
    """Of a folder's *.safetensors, those that transformers loads: model.safetensors, else the shards that the index
    (the text of model.safetensors.index.json) names; all where there is neither, or the index cannot be read."""
    if WHOLE in names:
        return {WHOLE}
    try:
        return {*names} if index is None else {*names} & {*json.loads(index)["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {*names}


def weight_files(folder: Path) -> list[Path]:
    """The weights of a local model, or of a checkpoint of it."""
    index = folder / INDEX
    names = [path.name for path in folder.glob("*.safetensors")]
    return [folder / name for name in sorted(weight_names(names, index.read_text() if index.is_file() else None))]


# ----------------------------------------------------------------------------------------------------------------------
# Whether a config.json is that of a causal language model, by what transformers lists of architectures.
#
# The lists are read from its source: importing it takes seconds a model, and a login node may have no torch.

Lists: TypeAlias = dict[str, dict[str, str | tuple[str, ...]]]  # name -> {model_type: class or classes}

_CAUSAL, _MASKED = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"
_SEQ_TO_SEQ = "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"
# of models for other work; some of them load as causal ones, with weights drawn at random or with eyes for the answer
_OTHER_WORK: tuple[str, ...] = (
    _MASKED,
    _SEQ_TO_SEQ,
    "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
)
_OTHER_WORK += ("MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES")
_OTHER_WORK += ("MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",)
SEE_AHEAD = ("xlnet", "cpmant")  # listed as causal; each position sees those behind it

UNKNOWN = "models are loaded without remote code: choose a model of a known architecture, or update transformers"
TAKE_OUT = (
    "take the model out of the sheet, or choose one with a language modelling head; a masked language model can take "
    "part in the bias study (`language_models`)"
)


def why_not_causal(config: object) -> Refusal | None:
    """(what is wrong with a config.json, what to do), or None for a causal language model. None also where transformers
    is not installed, or keeps its lists elsewhere: loading the model will say it then."""
    if not isinstance(config, dict):
        return Refusal("config.json is not an object", "a model folder is what save_pretrained writes")
    lists = _lists()
    if lists is None:
        return None
    kind, named = config.get("model_type"), config.get("architectures") or []
    if not isinstance(kind, str | None) or not isinstance(named, list) or not all(isinstance(n, str) for n in named):
        return Refusal(
            "model_type or architectures of its config.json is not text",
            "a model folder is what save_pretrained writes",
        )
    if kind not in lists["CONFIG_MAPPING_NAMES"] and kind not in lists[_CAUSAL]:
        return Refusal(f"transformers does not know model_type {kind!r} of its config.json", UNKNOWN)
    problem = f"config.json is not that of a causal language model ({', '.join(named) or f'model_type {kind}'})"
    if kind not in lists[_CAUSAL] or kind in SEE_AHEAD or (kind == "xlm" and not config.get("causal")):
        return Refusal(problem, TAKE_OUT)
    if kind in _encoders(lists) and not config.get("is_decoder"):
        return Refusal(problem, TAKE_OUT)
    other_work = {name for key in _OTHER_WORK for name in _classes(lists[key].values())} - _classes(
        lists[_CAUSAL].values()
    )
    if named and (named[0] in other_work or _has_no_head(config, named[0], lists)):
        return Refusal(problem, TAKE_OUT)
    return None


def _encoders(lists: Lists) -> set[str]:
    """Architectures such as BERT, whose causal class still sees all tokens unless `is_decoder` is set."""
    return set(lists[_MASKED]) & set(lists[_CAUSAL]) - set(lists[_SEQ_TO_SEQ]) - {"xlm"}


def _has_no_head(config: Document, name: str, lists: Lists) -> bool:
    """A model's body alone: without tied embeddings nothing stands for its head."""
    body = name in _classes([lists["MODEL_MAPPING_NAMES"].get(config["model_type"], ())])
    return body and (config["model_type"] in lists[_MASKED] or config.get("tie_word_embeddings") is False)


def _classes(entries: Iterable[str | tuple[str, ...]]) -> set[str]:
    return {name for entry in entries for name in ((entry,) if isinstance(entry, str) else entry)}


@cache
def _lists() -> Lists | None:
    """What the source of transformers lists; None where that has not all of them."""
    lists: Lists = {}
    try:
        spec = importlib.util.find_spec("transformers")
        if spec is None or spec.submodule_search_locations is None:
            return None
        (folder,) = spec.submodule_search_locations
        for file in ("modeling_auto.py", "auto_mappings.py"):
            text = (Path(folder) / "models" / "auto" / file).read_text(encoding="utf-8")
            lists |= {name: dict(ast.literal_eval(pairs)) for name, pairs in _ordered(ast.parse(text))}
    except (AttributeError, ValueError, OSError, SyntaxError):
        return None
    list_names = {"CONFIG_MAPPING_NAMES", "MODEL_MAPPING_NAMES", _CAUSAL, *_OTHER_WORK}
    return lists if list_names <= set(lists) else None


def _ordered(module: ast.Module) -> Iterator[tuple[str, ast.List]]:
    """(name, list of pairs) of each `NAME = OrderedDict([...])` that is written out."""
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=[ast.List(elts=pairs) as listed])):
                if all(isinstance(pair, ast.Tuple) for pair in pairs):
                    yield name, listed


# ----------------------------------------------------------------------------------------------------------------------
# What `lm-validity rehearse` found out about each model, as files that anybody may read: no torch is imported here.
#
# A rehearsal is of a question: a model's config.json, the settings that its memory depends on, and the versions of the
# libraries. Its file is named by a hash of the question, so that models of one shape share it and nothing stale is
# read.

VERSION = 3  # of what a rehearsal measures; another one asks every question again
LIBRARIES = ("torch", "transformers", "peft", "lm_eval")
CONTEXT_GB = 1.0  # CUDA's context and what lies unused between tensors, which no rehearsal sees
# of a config.json, what is about its files and not its shape
_NOT_SHAPE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache")


class RehearsalSettings(TypedDict):
    """What the memory of a model's work depends on beside its config.json. trains, rolls, writes: whether it is
    fine-tuned, scores corpora, writes answers. training_tokens: of the longest training text."""

    dtype: Dtype
    batch_size: int
    scorer: Literal["auto", "rows", "packed", "cached", "lm-eval"]
    max_length: int | None
    trains: bool
    rolls: bool
    writes: bool
    effective_batch: int
    micro_batch: int
    loss: Literal["all"]
    target_modules: Literal["all-linear", "attention", "paper"]
    rank: int
    training_tokens: int


class RehearsalInput(NamedTuple):
    """config: of a config.json. settings: what else memory depends on. verified: whether the config is the model's
    own file, and not a known shape of its name."""

    config: dict[str, object]
    settings: RehearsalSettings
    verified: bool

    @property
    def key(self) -> str:
        """Name of the question's file."""
        shape = {name: value for name, value in self.config.items() if name not in _NOT_SHAPE}
        text = json.dumps([VERSION, shape, self.settings, _versions()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]


@cache
def _versions() -> dict[str, str]:
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def rehearsed_models(run: Run) -> list[Model]:
    """The models of the agreement and signal studies; the bias study trains whole models and is not rehearsed."""
    return [run.models[model] for model in Participants(run).used_models]


def question_of(run: Run, row: Model) -> RehearsalInput | None:
    """The question about a model, or None where its config.json is not here and its shape is not known."""
    config = config_of(run, row)
    if config is None:
        return None
    evaluation, finetuning = run.configuration.evaluation, run.configuration.finetuning
    settings: RehearsalSettings = {
        "dtype": row.dtype,
        "batch_size": evaluation.batch_size,
        "scorer": evaluation.scorer,
        "max_length": evaluation.max_length,
        "trains": Participants(run).takes_part(row, "agreement"),
        "rolls": any(benchmark.output_type == "loglikelihood_rolling" for benchmark in run.benchmarks.values()),
        "writes": any(benchmark.output_type == "generate_until" for benchmark in run.benchmarks.values()),
        "effective_batch": finetuning.effective_batch,
        "micro_batch": finetuning.micro_batch,
        "loss": finetuning.loss,
        "target_modules": finetuning.target_modules,
        "rank": finetuning.rank,
        "training_tokens": finetuning.max_length,
    }
    return RehearsalInput(*config[:1], settings, config[1])


def config_of(run: Run, row: Model) -> tuple[dict[str, object], bool] | None:
    """(config.json, whether it is the model's own): as fetched, from a folder, or a known shape."""
    folders = []
    try:
        point = read_json(run.results / "prefetch" / "models" / f"{row.model}.json")["checkpoints"]["final"]
        folders.append(Path(point["path"]) / (point["subfolder"] or ""))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    if row.is_local:
        folders.append(Path(row.path).expanduser())
    for folder in folders:
        config = read_json_or(folder / "config.json", None)
        if isinstance(config, dict):
            return config, True
    shape = known_shapes().get(row.path)
    return None if shape is None else (shape, False)


@cache
def known_shapes() -> dict[str, Document]:
    """Hub id -> config.json as far as memory depends on it, of the published grid's models; nobody has compared them
    with the files on the hub."""
    entries = read_json(Path(__file__).with_name("known_shapes.json"))
    return {path: entry["config"] for entry in entries for path in entry["paths"]}


@dataclass(frozen=True)
class Rehearsal:
    """The answer to a question. Peaks in bytes, weights included and CUDA's context not.

    training, checkpointed: peak by micro-batch, the latter with gradient checkpointing; empty where the model is scored
    only, or where `refused` says why it cannot be fine-tuned. scoring: largest peak of a full batch; one_text: of one
    text of at most 2,048 tokens. details: everything else that was counted.
    """

    parameters: float
    weights: float
    scoring: float
    one_text: float
    training: dict[int, float]
    checkpointed: dict[int, float]
    refused: str | None
    details: dict[str, object]

    def largest_micro_batch(self, gigabytes: float, *, checkpointing: bool) -> int | None:
        """The largest rehearsed micro-batch that fits, or None where not even one row does."""
        peaks = self.checkpointed if checkpointing else self.training
        fitting = [rows for rows, peak in peaks.items() if needed_gb(peak) <= gigabytes]
        return max(fitting, default=None)


def needed_gb(peak: float) -> float:
    """Gigabytes of GPU memory for a peak."""
    return peak / 1e9 + CONTEXT_GB


def rehearsal_path(run: Run, question: RehearsalInput) -> Path:
    """The file of the answer to a question, whether or not it exists."""
    return run.results / "rehearsal" / f"{question.key}.json"


def read_rehearsal(run: Run, row: Model) -> Rehearsal | None:
    """What was found out about a model, or None where nobody has asked this question."""
    question = question_of(run, row)
    if question is None:
        return None
    try:
        answer = read_json(rehearsal_path(run, question))
        by_rows = {
            name: {int(rows): peak for rows, peak in answer[name].items()} for name in ("training", "checkpointed")
        }
        return Rehearsal(**{**answer, **by_rows})
    except (OSError, ValueError, KeyError, TypeError):
        return None


# ---- what follows from it ---------------------------------------------------------------------------------------


class FitVerdict(NamedTuple):
    """Of one model in its size class. required: gigabytes at one row (of training, or of scoring). micro_batch: the
    largest that fits, 0 where none does, None where the model is scored only. advice: what to change
    where it does not fit."""

    required: float
    available: float
    micro_batch: int | None
    fits: bool
    smallest_class: str | None
    advice: str | None


def checkpoints_activations(run: Run, row: Model) -> bool:
    """Whether a model's fine-tunes recompute activations: by the run's setting or its size class's."""
    return run.configuration.finetuning.gradient_checkpointing or size_class(run, row).gradient_checkpointing


def judge_fit(run: Run, row: Model, rehearsal: Rehearsal) -> FitVerdict:
    """Whether a model fits its size class, at which micro-batch, and what to change where it does not."""
    size_of_model, trains = size_class(run, row), bool(rehearsal.training)
    checkpointing, available = checkpoints_activations(run, row), total_gb(size_of_model)
    needed_gb = _least_gb(rehearsal, checkpointing=checkpointing)
    rows = (rehearsal.largest_micro_batch(available, checkpointing=checkpointing) or 0) if trains else None
    fits = needed_gb <= available
    classes = run.configuration.size_classes
    holding = [
        name
        for name, size in classes.items()
        if _least_gb(rehearsal, checkpointing=size.gradient_checkpointing or checkpointing) <= total_gb(size)
    ]
    smallest = min(holding, key=lambda name: total_gb(classes[name]), default=None)
    # a size class without GPUs has no memory to compare with
    advice = None if fits or not available else _advice(rehearsal, size_of_model, smallest, checkpointing=checkpointing)
    return FitVerdict(needed_gb, available, rows, fits, smallest, advice)


def _least_gb(rehearsal: Rehearsal, *, checkpointing: bool) -> float:
    """What the model's jobs need at the least: one text scored, one row trained."""
    peaks = rehearsal.checkpointed if checkpointing else rehearsal.training
    return needed_gb(max(rehearsal.one_text, peaks[min(peaks)] if peaks else 0.0))


def total_gb(size: SizeClass) -> float:
    """Memory in GB of all GPUs of a job together; 0 where the size class has none."""
    return size.gpu * size.gpu_memory_gb


def _advice(rehearsal: Rehearsal, size: SizeClass, smallest: str | None, *, checkpointing: bool) -> str:
    ways = []
    if rehearsal.training and not checkpointing and _least_gb(rehearsal, checkpointing=True) <= total_gb(size):
        ways.append(f"set finetuning.gradient_checkpointing (then {_least_gb(rehearsal, checkpointing=True):.0f} GB)")
    if smallest is not None:
        ways.append(f"choose size_class {smallest}")
    gpus = -(-_least_gb(rehearsal, checkpointing=checkpointing) // size.gpu_memory_gb)
    ways.append(f"give the size class {gpus:.0f} GPUs of {size.gpu_memory_gb:g} GB (`gpu`)")
    return ", or ".join(ways)


def memory_problem(run: Run, row: Model, rehearsal: Rehearsal) -> list[Problem]:
    """A problem where the model's size class cannot hold it even at micro-batch 1, or its adapters are refused."""
    problems = []
    if rehearsal.refused and Participants(run).takes_part(row, "agreement"):
        action = "leave it out of the agreement study (column studies), or try target_modules attention"
        problems.append(Problem(f"model {row.model}", f"cannot be fine-tuned: {rehearsal.refused}", action))
    verdict = judge_fit(run, row, rehearsal)
    if verdict.advice is not None:
        doing = "to be fine-tuned at micro-batch 1" if rehearsal.training else "to score one text"
        problem = f"needs {verdict.required:.0f} GB of GPU memory {doing}, size class {row.size_class!r} has "
        problems.append(Problem(f"model {row.model}", f"{problem}{verdict.available:g} GB", verdict.advice))
    return problems


def first_micro_batch(run: Run, row: Model, gigabytes: float) -> int:
    """The micro-batch that a fine-tune begins with on GPUs of so many gigabytes together: as configured, or the largest
    that a rehearsal found to fit."""
    configured, rehearsal = run.configuration.finetuning.micro_batch, read_rehearsal(run, row)
    if rehearsal is None or not rehearsal.training:
        return configured
    return min(
        configured, rehearsal.largest_micro_batch(gigabytes, checkpointing=checkpoints_activations(run, row)) or 1
    )
