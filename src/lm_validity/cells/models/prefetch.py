"""Fetching models on the login node: pinned revisions, the files that count, and a model's digest."""

import glob
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, get_args

import huggingface_hub
import huggingface_hub.constants
from huggingface_hub import ModelInfo
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoSibling

from lm_validity.cells.models.chat import CHAT_DATE, read_chat_template
from lm_validity.cells.models.weights import (
    ADAPTER_FILES,
    TWO_IN_ONE,
    check_quantized,
    check_weights,
    has_own_head,
    read_saved,
    read_tensors,
)
from lm_validity.config.load import Run
from lm_validity.config.rows import split_revision
from lm_validity.config.sheets import FINAL, Checkpoint, Dtype, Model
from lm_validity.errors import PREFETCH, CellError, InputError, Problem, Refusal, again, first_line
from lm_validity.files import Document, file_sha256, read_json_or
from lm_validity.run.architectures import INDEX, WHOLE, HubModel, weight_names, why_not_causal
from lm_validity.run.inputs import MODEL_FILES
from lm_validity.run.records import (
    AdapterRecord,
    AppliedRules,
    CheckpointRecord,
    FolderRecord,
    ModelRecord,
)
from lm_validity.run.scoring import PADDING_COUNTS

if TYPE_CHECKING:
    from lm_validity.cells.models.own_adapter import Fit

# ----------------------------------------------------------------------------------------------------------------------
# The hub before anything is fetched: may this account have the models, and is there room for them?
#
# Asks the hub a small question a model; without a network nothing can be said, and `prefetch` will say it.

AT_ONCE = 8


def access_problems(models: dict[str, HubModel]) -> list[Problem]:
    """`models`: name for messages -> those that were not fetched yet."""
    if huggingface_hub.constants.HF_HUB_OFFLINE or not models:
        return []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(_ask, models.values()))
    problems = [
        Problem(f"{model} ({models[model].path})", *answer)
        for model, answer in zip(models, answers, strict=True)
        if isinstance(answer, Refusal)
    ]
    needed_bytes = sum(answer for answer in answers if isinstance(answer, int))
    cache = Path(huggingface_hub.constants.HF_HUB_CACHE)
    free = shutil.disk_usage(next(path for path in (cache, *cache.parents) if path.exists())).free
    if needed_bytes > free:
        problem = f"{needed_bytes / 1e9:.0f} GB of models to download, {free / 1e9:.0f} GB free"
        problems.append(Problem(str(cache), problem, "free some space, or point HF_HOME at a larger disk"))
    return problems


def _ask(model: HubModel) -> int | Refusal:
    """Bytes to download; or why there will be none. 0 where the hub cannot be asked."""
    path = model.path
    try:
        information = huggingface_hub.HfApi().model_info(path, revision=model.revision, files_metadata=True)
        if information.gated and huggingface_hub.get_token() is None:
            return Refusal("gated, and no token is stored on this machine", accept_licence(path))
        if information.gated:
            huggingface_hub.HfApi().auth_check(path)
        return sum(file.size or 0 for file in files_to_fetch(path, information, model.folders))
    except (HFValidationError, *hub_errors()) as error:
        return refusal(error, path, "`path` in the sheet") or 0


def refusal(error: Exception, page: str, named: str) -> Refusal | None:
    """(what is wrong, what to do) where the hub does not give a model or data set away; None for all other errors.
    page: its page on the hub. named: where its id stands."""
    if isinstance(error, GatedRepoError):  # which is a RepositoryNotFoundError too
        return Refusal("gated, and this account has no access", accept_licence(page))
    if isinstance(error, RevisionNotFoundError):
        return Refusal("no such revision on the hub", "correct `revision` in the sheet")
    if isinstance(error, RepositoryNotFoundError):
        return Refusal("no such repository on the hub, or a private one", f"check {named}, or `hf auth login`")
    if isinstance(error, HFValidationError):
        problem = "neither a folder here nor a hub id"
        return Refusal(problem, f"check {named}: a folder must exist, a hub id is owner/name")
    return None


def accept_licence(page: str) -> str:
    """What to do about a gated model or data set."""
    return f"accept its licence at https://huggingface.co/{page} and run `hf auth login`"


# ----------------------------------------------------------------------------------------------------------------------
# What a model's files bring along that would change its answers from model to model.
#
# A generation_config.json may set a repetition penalty or a longest answer: what a task says is all that counts here,
# so only the special tokens are read from it.

# of a generation_config.json; the ones for sampling change no greedy answer
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
# of a config.json, however the architecture calls them
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
HARMLESS = ("do_sample", "temperature", "top_p", "top_k", "max_length", "transformers_version", "use_cache")


def ignored_generation_settings(folder: Path) -> list[str]:
    """Names of a generation_config.json's settings that would change greedy answers, sorted."""
    settings = _settings(folder / "generation_config.json")
    set_there = (
        name for name, value in settings.items() if value is not None and not name.startswith(("_", "output_"))
    )
    return sorted(name for name in set_there if name not in (*TOKENS, *HARMLESS))


def _settings(path: Path) -> dict[str, object]:
    settings = read_json_or(path, {})
    return settings if isinstance(settings, dict) else {}


def adapts_otherwise(configuration: Mapping[str, object]) -> bool:
    """Whether all-linear means other weights of this config.json's model than all of its linear layers: experts too, no
    routers, no towers for images or sounds, no state-space layers that kernels read past."""
    parts = _with_text_config(configuration)
    tower = any(name.removesuffix("_config") in ("vision", "audio") for name in configuration)
    kinds = " ".join(str(part.get("model_type")) for part in parts)
    return (
        _has_experts(configuration)
        or tower
        or any(kind in kinds for kind in ("mamba", "jamba", "zamba", "bamba", "nemotron_h", "falcon_h1"))
    )


def _with_text_config(configuration: Mapping[str, object]) -> list[Mapping[str, object]]:
    return [part for part in (configuration, configuration.get("text_config")) if isinstance(part, dict)]


def _has_experts(configuration: Mapping[str, object]) -> bool:
    """Whether this config.json's model is a mixture of experts."""
    counts = (part.get(key) for part in _with_text_config(configuration) for key in EXPERT_COUNTS)
    return any(isinstance(experts, int) and experts > 1 for experts in counts)


def position_switch(configuration: Document) -> int | None:
    """The length beyond which this config.json's model encodes positions by the longest text of a batch (longrope,
    dynamic scaling); None where it never does."""
    for part in (configuration, configuration.get("text_config") or {}):
        tables = part.get("rope_parameters") or part.get("rope_scaling") or {}
        for table in (tables, *(value for value in tables.values() if isinstance(value, dict))):
            kind = str(table.get("rope_type") or table.get("type") or "")
            longest = part.get("max_position_embeddings")
            if kind in ("longrope", "su"):
                name = "original_max_position_embeddings"
                return table.get(name) or part.get(name) or longest
            if "dynamic" in kind:
                return longest
    return None


# ----------------------------------------------------------------------------------------------------------------------
# Where a model's files are on this machine, and the precisions that it can be loaded in, by torch's names. Imports no
# torch: the login node reads this module.

DTYPES: tuple[str, ...] = get_args(Dtype)


def model_folder(path: str | Path, *, revision: str | None = None, subfolder: str | None = None) -> Path:
    """The local folder of a model: `path` itself, or the cached snapshot of a hub id, and `subfolder` in it.

    Raises CellError where there is none, or where it has no safetensors.
    """
    folder = Path(path)
    if not os.path.isdir(folder) and folder.parent.name == "snapshots":
        # recorded by another user: the same commit in one's own cache
        folder = Path(huggingface_hub.constants.HF_HUB_CACHE, *folder.parts[-3:])
    if not os.path.isdir(folder):
        try:
            folder = cached_snapshot(str(path), revision)
        except (LocalEntryNotFoundError, HFValidationError) as error:
            raise CellError(
                f"{path}: neither a folder nor a model in the local hub cache.",
                "check the path in the models sheet, or prefetch the model on a machine with network.",
            ) from error
    folder = folder / (subfolder or "")
    if (folder / ADAPTER_FILES[0]).is_file() and (folder / "config.json").is_file():
        raise CellError(f"{path}: {folder} {TWO_IN_ONE[0]}.", f"{TWO_IN_ONE[1]}.")
    if not any(folder.glob("*.safetensors")):
        raise CellError(
            f"{path}: no *.safetensors in {subfolder or 'the folder'}.",
            "only safetensors are loaded: convert the weights with model.save_pretrained(folder).",
        )
    return folder


def tokenizer_folder(adapter: Path | None, weights: Path, root: Path) -> Path:
    """Where the tokenizer is: an adapter's own comes first, and a checkpoint's subfolder may hold the weights alone."""
    places = [folder for folder in (adapter, weights) if folder and any(folder.glob("tokenizer*"))]
    return [*places, root][0]


class ModelFolders(NamedTuple):
    """The folders of a model's weights and of its tokenizer."""

    weights: Path
    tokenizer: Path


def model_and_tokenizer_folder(
    path: str | Path,
    adapter: str | Path | None = None,
    *,
    revision: str | None = None,
    subfolder: str | None = None,
) -> ModelFolders:
    """The folder of a model's weights, and that of its tokenizer, which an adapter may bring."""
    folder = model_folder(path, revision=revision, subfolder=subfolder)
    root = folder.parents[len(Path(subfolder).parts) - 1] if subfolder else folder
    return ModelFolders(folder, tokenizer_folder(Path(adapter) if adapter else None, folder, root))


def check_on_gpus(name: str, device_map: dict[str, object]) -> None:
    """Raise CellError where accelerate left layers to the processor or the disk: slow, and nothing to train on."""
    not_on_gpu = sorted({str(device) for device in device_map.values()} & {"cpu", "disk"})
    if not_on_gpu:
        raise CellError(
            f"{name}: does not fit the GPUs of the job (layers on {', '.join(not_on_gpu)}).",
            "give its size class more GPUs (`gpu`), or GPUs with more memory.",
        )


# ----------------------------------------------------------------------------------------------------------------------
# Login node: fetch models at a pinned revision, and record what the jobs will read.
#
# Hub models come as safetensors only. What is recorded holds no token and nothing that differs between users but the
# path of the local copy.

log = logging.getLogger(__name__)

OWN_HEAD = "of the checkpoint"
_LAYER = re.compile(r"\.(\d+)\.")  # the first number in a tensor's name
TOKENIZER_FILES = ("token*.json", "vocab*", "merges*", "special*", "*.model", "*.jinja", "*.tiktoken")
VOCABULARIES = ("tokenizer.json", "*.model", "vocab*", "*.tiktoken", "tokenizer.*")


def prefetch_model(model: Model, *, chat: bool = True, causal: bool = True) -> ModelRecord:
    """Fetch (or find) a model with its checkpoints; the record that jobs read.

    chat: whether instruction-tuned models are asked in their chat template, which must then be there. causal: whether
    what is not a causal language model is refused; the bias study takes masked ones too.
    """
    fetched: dict[str | None, _Fetched] = {}
    checkpoints = {}
    for point in model.checkpoints:
        revision = point.revision or model.revision
        if revision not in fetched:
            fetched[revision] = _fetch(model, revision)
        checkpoints[point.checkpoint] = _checkpoint_record(model, point, fetched[revision])
    final = checkpoints["final"]
    folder, sha = Path(final["path"]), final["revision"]
    adapter_folder = Path(final["adapter"]["path"]) if "adapter" in final else None
    weights = folder / (final["subfolder"] or "")
    where = f"model {model.model!r}"
    if (weights / ADAPTER_FILES[0]).is_file() and not (weights / "config.json").is_file():
        raise InputError(
            f"{where}: {model.path} is a PEFT adapter, not a model.",
            "put its base model into the column `path`, and this into the column `adapter`.",
        )
    configuration = read_saved(where, weights / "config.json", "a model folder is what save_pretrained writes.")
    wrong = why_not_causal(configuration) if causal else None
    if wrong is not None:
        raise InputError(f"{where}: {wrong[0]}.", f"{wrong[1]}.")
    tokenizer = tokenizer_folder(adapter_folder, weights, folder)
    template = read_chat_template(tokenizer)
    as_saved = _as_saved(where, checkpoints, causal=causal, chat=chat and model.instruction_tuned)
    if chat and model.instruction_tuned and template is None:
        raise InputError(
            f"{where}: instruction-tuned, but its tokenizer has no chat template ({tokenizer}).",
            "add chat_template.jinja to the tokenizer's folder, or set instruction_tuned to 0 in the models sheet.",
        )
    return {
        **_applied(configuration, template, weights),
        **as_saved,
        "model": model.model,
        "path": str(folder),
        "revision": sha,
        "checkpoints": checkpoints,
        "chat_template": template is not None,
        "architecture": (configuration.get("architectures") or [configuration.get("model_type")])[0],
        "context_length": configuration.get("max_position_embeddings") or configuration.get("n_positions"),
    }


def _applied(configuration: Document, template: str | None, weights: Path) -> AppliedRules:
    """What the files of a model's `weights` say that enters recipes, but for `_as_saved`. configuration: its
    config.json. template: its chat template."""
    applied: AppliedRules = {}
    if configuration.get("model_type") in PADDING_COUNTS:
        applied["answers_alone"] = "one at a time"
    if any(word in (template or "") for word in ("date_string", "strftime_now")):  # it prints the date of today
        applied["chat_date"] = str(CHAT_DATE)
    if ignored := ignored_generation_settings(weights):
        applied["ignored_generation_settings"] = ignored
    if switch := position_switch(configuration):
        applied["position_switch"] = switch
    if adapts_otherwise(configuration):
        applied["all_linear"] = "what a text goes through"
    return applied


def _as_saved(where: str, points: Mapping[str, CheckpointRecord], *, causal: bool, chat: bool) -> AppliedRules:
    """`as_saved`, `thought` and `loses` of a model's record: what was found in the weights and tokenizers of
    its checkpoints. chat: whether it is asked in its chat template. Raises InputError for what is not whole, or does
    not belong together."""
    rules, thoughts, losses = dict[str, str](), set[bool](), set[str]()
    tried = set[tuple[Path, Path, int | None]]()
    for name, point in points.items():
        root, adapter = Path(point["path"]), point["adapter"]["path"] if "adapter" in point else None
        weights = root / (point["subfolder"] or "")
        folder = tokenizer_folder(Path(adapter) if adapter else None, weights, root)
        embeddings, of_adapter = _with_adapter(f"{where}, checkpoint {name!r}", weights, adapter) or (None, {})
        rules |= of_adapter
        if (weights, folder, embeddings) in tried:
            continue
        tried.add((weights, folder, embeddings))
        tensors = check_weights(f"{where}, checkpoint {name!r}", weights)
        check_quantized(where, tensors, _settings(weights / "config.json"))
        if causal:
            _check_parts(f"{where}, checkpoint {name!r}", weights, tensors)
        try:
            from lm_validity.cells.models.tokenizer import examine
        except ImportError:  # a login node without transformers: the jobs will say it
            continue
        try:
            digests = examine(folder, where, weights=weights, causal=causal, embeddings=embeddings, chat=chat)
        except CellError as error:
            raise InputError(error.problem, error.hint) from None
        rules |= digests.rules
        thoughts.add(digests.closes_thoughts)
        losses |= digests.loses
        if digests.tied and has_own_head(tensors, digests.vocabulary):
            rules["own_head"] = OWN_HEAD
    applied: AppliedRules = {}
    if rules:
        applied["as_saved"] = rules
    if True in thoughts:
        applied["thought"] = "closed"
    if losses:
        applied["loses"] = sorted(losses)
    return applied


def _check_parts(where: str, weights: Path, names: Collection[str]) -> None:
    """Raise InputError where the weights have layers after the last one of their config.json's model, or biases that
    it is without. torch is imported only where the names and config.json leave that open."""
    parts = _with_text_config(_settings(weights / "config.json"))
    layers = max(
        (layers for part in parts for key in LAYER_COUNTS if isinstance(layers := part.get(key), int)), default=0
    )
    more_layers = any(int(number[1]) >= layers for number in map(_LAYER.search, names) if number)
    says_without = any(value is False and "bias" in key for part in parts for key, value in part.items())
    if not more_layers and not (says_without and any(name.endswith(".bias") for name in names)):
        return
    try:
        from lm_validity.cells.models.loading import check_names
    except ImportError:  # as above: the jobs will say it
        return
    try:
        check_names(weights, names, where)
    except CellError as error:
        raise InputError(error.problem, error.hint) from None


def _with_adapter(where: str, weights: Path, adapter: str | None) -> "Fit | None":
    """What an adapter of the user's makes of a model, which it may have been trained to have more tokens; None without
    one, or where it cannot be tried here. Raises InputError where it is not one of this model."""
    if adapter is None:
        return None
    try:
        from lm_validity.cells.models.own_adapter import check_fit
    except ImportError:  # as above: the jobs will say it
        return None
    try:
        return check_fit(weights, Path(adapter), where)
    except CellError as error:
        raise InputError(error.problem, error.hint) from None


def prefetch_language_model(run: Run, language_model: str) -> ModelRecord:
    """Fetch a language model at a pinned revision, or take a local folder; the record of `prefetch_model`."""
    row = run.language_models[language_model]
    model = Model(model=language_model, path=row.path, revision=row.revision, dtype=row.dtype)
    return prefetch_model(model, causal=row.architecture == "causal")


def _checkpoint_record(model: Model, point: Checkpoint, fetched: "_Fetched") -> CheckpointRecord:
    folder, sha, digest = fetched
    folder_of_weights = folder / (point.subfolder or "")
    if not any(folder_of_weights.glob("*.safetensors")):
        raise InputError(
            f"model {model.model!r}, checkpoint {point.checkpoint!r}: no *.safetensors in {folder_of_weights}.",
            "only safetensors are loaded; convert other weights with model.save_pretrained(folder).",
        )
    files = None
    if sha is None:  # a local folder: what it is, is what is in it
        digest, files = folder_digest(folder_of_weights), file_states(folder_of_weights)
        if not (folder_of_weights / "tokenizer_config.json").is_file():  # the tokenizer is the root's
            digest = f"{digest}/{folder_digest(folder, TOKENIZER_FILES)}"
    elif point.subfolder:
        digest = f"{digest}/{point.subfolder}"
    record: CheckpointRecord = {
        "path": str(folder),
        "subfolder": point.subfolder,
        "revision": sha,
        "digest": digest,
        "files": files,
    }
    adapter = model.adapter_of(point)
    if adapter is not None:
        record["adapter"] = _adapter_record(model, adapter, point.revision or model.revision)
        record["digest"] += f"+{record['adapter']['digest']}"
    return record


# ways to begin LoRA that subtract from the base's weights what the adapter begins with
CHANGES_ITS_BASE = ("pissa", "olora", "corda", "loftq")

# where else a column may stand
_OR_CHECKPOINTS = {"path": "", "adapter": ", or in its sheet of checkpoints"}


def _adapter_record(model: Model, adapter: str, of_base: str | None) -> AdapterRecord:
    """Fetch (or find) an adapter of the user's. of_base: its base's revision. `tokenizer`: digest of its own, null
    where it has none.

    Raises InputError where the folder does not hold a LoRA adapter in safetensors.
    """
    path, revision = split_revision(adapter)
    single_checkpoint = model.model_copy(update={"path": path, "revision": revision, "checkpoints": (FINAL,)})
    folder, sha, digest = _fetch(single_checkpoint, revision, "adapter")
    where = f"model {model.model!r}, adapter {adapter}"
    hint = "an adapter's folder is what PEFT's save_pretrained writes."
    configuration = read_saved(where, folder / ADAPTER_FILES[0], hint)
    kind = configuration.get("peft_type") if isinstance(configuration, dict) else None
    if kind != "LORA":
        raise InputError(
            f"{where}: a PEFT adapter of type {kind}.",
            "only LoRA can be added to the weights here: give a merged model as `path`.",
        )
    if configuration.get("layer_replication"):
        raise InputError(
            f"{where}: it repeats layers of its base (layer_replication), which one set of weights cannot hold.",
            "merge the two where it was trained, and give the merged model as `path`.",
        )
    if configuration.get("alora_invocation_tokens"):
        raise InputError(
            f"{where}: it works behind its invocation tokens only (aLoRA), which no set of weights does.",
            "take the row out: no merged model computes what it does.",
        )
    begun = str(configuration.get("init_lora_weights")).lower()
    if begun.startswith(CHANGES_ITS_BASE):
        raise InputError(
            f"{where}: its training took a part out of the base's weights (init_lora_weights {begun}), and it fits no "
            "other weights.",
            "save it with PEFT's path_initial_model_for_weight_conversion, or give a merged model as `path`.",
        )
    if not (folder / ADAPTER_FILES[1]).is_file():
        raise InputError(
            f"{where}: no {ADAPTER_FILES[1]} in {folder}.",
            "only safetensors are loaded: save the adapter with a newer PEFT.",
        )
    read_tensors(where, folder / ADAPTER_FILES[1], "fetch or copy the file again.")
    half = "tokenizer_config.json" if (folder / "tokenizer_config.json").is_file() else "chat template"
    if (half != "chat template" or read_chat_template(folder)) and not any(
        path for pattern in VOCABULARIES for path in folder.glob(pattern)
    ):
        raise InputError(
            f"{where}: its folder has a {half} and no vocabulary that goes with it.",
            "copy the base model's tokenizer files into it, or remove what is there to have the base's.",
        )
    base = configuration.get("base_model_name_or_path")
    if isinstance(base, str) and Path(base).name != Path(model.path).name:
        log.warning("model %s: its adapter was trained on %s, and `path` is %s", model.model, base, model.path)
    trained_on = configuration.get("revision")
    if trained_on not in (None, "main", of_base) and not model.is_local:
        words = "model %s: its adapter was trained on revision %s of its base, and `revision` is %s"
        log.warning(words, model.model, trained_on, of_base or "main")
    tokenizer = folder_digest(folder, TOKENIZER_FILES) if any(folder.glob("tokenizer*")) else None
    return {
        "path": str(folder),
        "revision": sha,
        "digest": digest if sha else folder_digest(folder),
        "files": None if sha else file_states(folder),
        "tokenizer": tokenizer,
    }


def file_states(folder: Path) -> dict[str, list[int]]:
    """Size and time of each file that determines what a local model computes."""
    states = {path: path.stat() for path in _model_files(folder)}
    return {path.name: [state.st_size, state.st_mtime_ns] for path, state in states.items()}


def check_unchanged(model: str, point: CheckpointRecord) -> None:
    """Raise InputError where a local model's files, or its adapter's, are not those its recorded digest is of."""
    if "adapter" in point:
        _check_folder(model, point["adapter"], None)
    _check_folder(model, point, point["subfolder"])


def _check_folder(model: str, record: FolderRecord, subfolder: str | None) -> None:
    if record.get("files") is None:
        return
    root = Path(record["path"])
    folder_of_weights = root / (subfolder or "")
    digest_of_weights, _, of_tokenizer = record["digest"].partition("+")[0].partition("/")  # before the adapter's
    if file_states(folder_of_weights) != record["files"] and folder_digest(folder_of_weights) != digest_of_weights:
        changed = f"the files in {folder_of_weights}"
    elif of_tokenizer and folder_digest(root, TOKENIZER_FILES) != of_tokenizer:
        changed = f"the tokenizer in {root}"
    else:
        return
    event = "changed after" if root.is_dir() else "are gone since"
    raise InputError(
        f"model {model!r}: {changed} {event} the model was recorded.",
        f"put them back; or run {again(f'prefetch-model --model {model}')}, then the workflow: where the files are "
        "others, its cells are new ones.",
    )


class _Fetched(NamedTuple):
    """The folder of a model's revision, its commit and digest; a local model has the folder alone."""

    folder: Path
    commit: str | None
    digest: str


def _fetch(model: Model, revision: str | None, column: str = "path") -> _Fetched:
    """(folder, commit, digest): of a hub model's revision, whose commit is its digest, downloaded (resumable) and
    verified; of a local model the folder alone."""
    if model.is_local:
        folder = Path(model.path).expanduser()
        if not folder.is_dir():
            raise InputError(
                f"model {model.model!r}, column {column!r}: {model.path} is not a folder.",
                f"correct `{column}` in the models sheet{_OR_CHECKPOINTS[column]}.",
            )
        return _Fetched(folder, None, "")
    where = f"model {model.model!r}, column {column!r} ({model.path})"
    try:
        ask = huggingface_hub.HfApi().model_info
        information = ask_hub(model.path, lambda: ask(model.path, revision=revision, files_metadata=True))
        if information is None:
            folder = cached_snapshot(model.path, revision)
            return _Fetched(folder, folder.name, folder.name)
        files = _wanted(model.path, information, model.folders)
        if not any(file.rfilename.endswith(".safetensors") for file in files):
            raise InputError(f"{where}: no safetensors at {information.sha}.", "choose a revision that has them.")
        new = files_to_fetch(model.path, information, model.folders)
        needed_bytes = sum(file.size or 0 for file in new)
        cache = Path(huggingface_hub.constants.HF_HUB_CACHE)
        cache.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(cache).free
        if free < needed_bytes:
            raise InputError(
                f"{where}: {needed_bytes / 1e9:.1f} GB to download, {free / 1e9:.1f} GB free in the hub cache.",
                "free some space, or point HF_HOME at a larger disk.",
            )
        log.info("%s: revision %s, %.2f GB", model.path, information.sha, needed_bytes / 1e9)
        # by name: in the hub's patterns a * would also stand for the folders of other checkpoints
        names = [glob.escape(file.rfilename) for file in files]
        # by the revision's name, under which the cache then knows the commit without the hub
        folder = Path(huggingface_hub.snapshot_download(model.path, revision=revision, allow_patterns=names))
        if folder.name != information.sha:  # the name went on to another commit in between
            return _fetch(model, revision, column)
    except LocalEntryNotFoundError as error:
        further_error = str(error) if isinstance(error, _Several) else ""
        problem = f"not in the local cache, and the hub is out of reach{further_error}"
        raise InputError(f"{where}: {problem}.", f"run {PREFETCH} online.") from None
    except (HFValidationError, *hub_errors()) as error:
        named = f"`{column}` in the models sheet{_OR_CHECKPOINTS[column]}"
        otherwise = f"download failed ({first_line(error)})", "run it again: downloads resume"
        problem, hint = refusal(error, model.path, named) or otherwise
        raise InputError(f"{where}: {problem}.", f"{hint}.") from None
    _verify(where, folder, files, {file.rfilename for file in new})
    return _Fetched(folder, information.sha, information.sha)


T = TypeVar("T")


def ask_hub(path: str, question: Callable[[], T]) -> T | None:
    """What the hub answers; None where it is out of reach."""
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return None
    try:
        return question()
    except (HfHubHTTPError, HFValidationError):
        raise
    except hub_errors() as error:
        log.warning("%s: the hub is out of reach (%s); the local cache is looked into", path, first_line(error))
        return None


class _Several(LocalEntryNotFoundError):
    """Commits are in the cache, and none of them has the name."""


def cached_snapshot(path: str, revision: str | None, kind: str = "model") -> Path:
    """The folder of a hub model or data set (`kind`) in the local cache, by a revision's name or commit. Where it was
    fetched by commit alone the cache knows no names: the only snapshot there is stands for `main`. Raises
    LocalEntryNotFoundError where there is none, or several."""
    huggingface_hub.utils.validate_repo_id(path)
    storage = Path(huggingface_hub.constants.HF_HUB_CACHE, f"{kind}s--{path.replace('/', '--')}")
    name = storage / "refs" / (revision or "main")
    commit = name.read_text(encoding="utf-8").strip() if name.is_file() else revision
    if commit and (storage / "snapshots" / commit).is_dir():
        return storage / "snapshots" / commit
    snapshots = sorted(folder for folder in storage.glob("snapshots/*") if folder.is_dir())
    if len(snapshots) == 1 and revision in (None, "main"):
        log.warning("%s: commit %s, the only one in the local cache", path, snapshots[0].name)
        return snapshots[0]
    if snapshots:
        raise _Several(f" (there are {', '.join(folder.name for folder in snapshots)})")
    raise LocalEntryNotFoundError("it is not in the local cache")


def files_to_fetch(path: str, information: ModelInfo, folders: tuple[str, ...] = ("",)) -> list[RepoSibling]:
    """The wanted files of a hub model's `model_info` that are not in the local cache yet."""
    return [
        file
        for file in _wanted(path, information, folders)
        if not isinstance(huggingface_hub.try_to_load_from_cache(path, file.rfilename, revision=information.sha), str)
    ]


def _verify(where: str, folder: Path, files: Sequence[RepoSibling], new: set[str]) -> None:
    """Every file has the hub's size; what was downloaded just now also its sha256, where the hub states one."""
    for file in files:
        path = folder / file.rfilename
        if file.size is not None and (not path.is_file() or path.stat().st_size != file.size):
            raise InputError(f"{where}: {file.rfilename} is not complete.", "run it again: downloads resume.")
        expected = getattr(file.lfs, "sha256", None)
        if file.rfilename in new and expected is not None and file_sha256(path) != expected:
            path.resolve().unlink()  # the hub's cache would take it for complete
            raise InputError(f"{where}: {file.rfilename} was damaged on its way.", "run it again.")


def _wanted(path: str, information: ModelInfo, folders: tuple[str, ...]) -> list[RepoSibling]:
    """What is fetched of a hub model's files: of `folders` ("" or "name/"), and of their safetensors the weights alone.
    Where these are in several files, their index is fetched to know their names."""
    by_name = {file.rfilename: file for file in information.siblings}
    files_to_fetch = []
    for folder in folders:
        inside = [name.removeprefix(folder) for name in by_name if name.rpartition("/")[0] == folder.rstrip("/")]
        weights = {name for name in inside if name.endswith(".safetensors") and name not in ADAPTER_FILES}
        index = None
        if INDEX in inside and WHOLE not in weights:
            pattern = glob.escape(f"{folder}{INDEX}")
            snapshot = huggingface_hub.snapshot_download(path, revision=information.sha, allow_patterns=[pattern])
            index = Path(snapshot, folder, INDEX).read_text(encoding="utf-8")
        left_out = weights - weight_names(weights, index)
        chosen = [name for name in inside if any(Path(name).match(pattern) for pattern in MODEL_FILES)]
        files_to_fetch += [by_name[f"{folder}{name}"] for name in chosen if name not in left_out]
    return files_to_fetch


def folder_digest(folder: Path, patterns: tuple[str, ...] = MODEL_FILES) -> str:
    """sha256 over the names and bytes of the files that determine what a local model computes."""
    digest = hashlib.sha256()
    for path in _model_files(folder, patterns):
        digest.update(f"{path.name} {file_sha256(path)}\n".encode())
    return digest.hexdigest()


def _model_files(folder: Path, patterns: tuple[str, ...] = MODEL_FILES) -> list[Path]:
    # training.json and such notes do not change what a model computes, but telling them apart is not worth an error
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})


def hub_errors() -> tuple[type[Exception], ...]:
    """What huggingface_hub raises where the hub cannot be reached or answers badly. Without a network its HTTP client's
    own errors come through, which share a base with HfHubHTTPError that is neither it nor OSError."""
    client = (base for base in HfHubHTTPError.__mro__ if base.__module__.split(".")[0] in ("httpx", "httpx2"))
    return (HfHubHTTPError, OSError, *client)
