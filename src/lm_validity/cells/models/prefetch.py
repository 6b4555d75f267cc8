"""Fetching models on the login node: pinned revisions, the files that count, and a model's digest."""

import glob
import hashlib
import logging
import shutil
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import huggingface_hub
import huggingface_hub.constants
from huggingface_hub import errors as hub
from safetensors import SafetensorError, safe_open

from lm_validity.config.load import Run
from lm_validity.config.sheets import FINAL, Checkpoint, HubModel, Model, split_revision
from lm_validity.errors import PREFETCH, CellError, InputError, Problem, Refusal, again, first_line
from lm_validity.files import Document, file_sha256, read_json_or, read_object
from lm_validity.run.cell import CheckpointRecord, FolderRecord, ModelRecord
from lm_validity.run.inputs import INDEX, MODEL_FILES, WHOLE, is_as_recorded, why_not_causal

# ----------------------------------------------------------------------------------------------------------------------
# The hub before anything is fetched: may this account have the models, and is there room for them?
#
# Asks the hub a small question a model; without a network nothing can be said, and `prefetch` will say it.

AT_ONCE = 8
# what huggingface_hub raises for an id that is none, and where the hub cannot be reached or answers badly: its HTTP
# client's own errors too
HUB_ERRORS: tuple[type[Exception], ...] = (ValueError, *hub.HfHubHTTPError.__bases__)


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
    try:
        huggingface_hub.HfApi().auth_check(model.path)
        patterns = (_patterns(folder) for folder in model.folders)
        files = [
            file
            for options in patterns
            for file in huggingface_hub.snapshot_download(model.path, revision=model.revision, dry_run=True, **options)
        ]
        needed_bytes: int = sum(file.file_size for file in files if file.will_download)
    except HUB_ERRORS as error:
        return refusal(error, model.path, "`path` in the sheet") or 0
    return needed_bytes


def _patterns(folder: str) -> dict[str, list[str]]:
    """Which files of a hub model are fetched: of a folder ("" or "name/"), and of none below it. In the hub's patterns
    a * stands for a / too. Mistral's weights come twice, as consolidated.safetensors too."""
    prefix = glob.escape(folder)
    return {
        "allow_patterns": [f"{prefix}{pattern}" for pattern in MODEL_FILES],
        "ignore_patterns": [f"{prefix}*/*", f"{prefix}consolidated*"],
    }


# what the hub says -> what is wrong, what to do; `page`: of a repository on the hub, `column`: where its id stands
_LICENCE = "accept its licence at https://huggingface.co/{page} and run `hf auth login`"
_ID = "check {column}: a folder must exist, a hub id is owner/name"
_LOGIN = "check {column}, or `hf auth login`"
_REFUSALS: dict[type[Exception], Refusal] = {  # a gated repository is one that is not found, too
    hub.GatedRepoError: Refusal("gated, and this account has no access", _LICENCE),
    hub.RevisionNotFoundError: Refusal("no such revision on the hub", "correct `revision` in the sheet"),
    hub.RepositoryNotFoundError: Refusal("no such repository on the hub, or a private one", _LOGIN),
    hub.HFValidationError: Refusal("neither a folder here nor a hub id", _ID),
}


def refusal(error: Exception, page: str, column: str) -> Refusal | None:
    """Why the hub does not give a model or data set away, and what to do; None for all other errors."""
    reason = next((refusal for kind, refusal in _REFUSALS.items() if isinstance(error, kind)), None)
    return reason and Refusal(reason.problem, reason.hint.format(page=page, column=column))


# ----------------------------------------------------------------------------------------------------------------------
# Where a model's files are on this machine. Imports no torch: the login node reads this module.

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def model_folder(path: str | Path, subfolder: str | None = None) -> Path:
    """The folder of a model's weights. Raises CellError where it has no safetensors."""
    folder = Path(path, subfolder or "")
    if not any(folder.glob("*.safetensors")):
        hint = "is it there, and as save_pretrained writes it? Only safetensors are loaded."
        raise CellError(f"{path}: no *.safetensors in {subfolder or 'the folder'}.", hint)
    return folder


def tokenizer_folder(adapter: Path | None, weights: Path, root: Path) -> Path:
    """Where the tokenizer is: an adapter's own comes first, and a checkpoint's subfolder may hold the weights alone."""
    return next((folder for folder in (adapter, weights) if folder and any(folder.glob("tokenizer*"))), root)


def read_chat_template(folder: Path) -> str | None:
    """The chat template(s) among a tokenizer's files, None where there is none."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    settings = read_json_or(folder / "tokenizer_config.json", {})
    template = settings.get("chat_template") if isinstance(settings, dict) else None
    return str(template) if template else None


# ----------------------------------------------------------------------------------------------------------------------
# Login node: fetch models at a pinned revision, and record what the jobs will read.
#
# Hub models come as safetensors only. What is recorded holds no token and nothing that differs between users but the
# path of the local copy.

log = logging.getLogger(__name__)

TOKENIZER_FILES = ("token*.json", "vocab*", "merges*", "special*", "*.model", "*.jinja", "*.tiktoken")
VOCABULARIES = ("tokenizer.json", "*.model", "vocab*", "*.tiktoken", "tokenizer.*")


def prefetch_model(model: Model, *, chat: bool = True, causal: bool = True) -> ModelRecord:
    """Fetch (or find) a model with its checkpoints; the record that jobs read.

    chat: whether instruction-tuned models are asked in their chat template, which must then be there. causal: whether
    what is not a causal language model is refused; the bias study takes masked ones too.
    """
    fetched: dict[str | None, Path] = {}
    checkpoints = {}
    for point in model.checkpoints:
        revision = point.revision or model.revision
        if revision not in fetched:
            fetched[revision] = _fetch(model, revision)
        checkpoints[point.checkpoint] = _checkpoint_record(model, point, fetched[revision])
    final = checkpoints["final"]
    weights, where = Path(final["path"], final["subfolder"] or ""), f"model {model.model!r}"
    if (weights / ADAPTER_FILES[0]).is_file() and not (weights / "config.json").is_file():
        hint = "put its base model into the column `path`, and this into the column `adapter`."
        raise InputError(f"{where}: {model.path} is a PEFT adapter, not a model.", hint)
    configuration = _read_saved(where, weights / "config.json", "a model folder is what save_pretrained writes.")
    wrong = why_not_causal(configuration) if causal else None
    if wrong is not None:
        raise InputError(f"{where}: {wrong[0]}.", f"{wrong[1]}.")
    for name, checkpoint in checkpoints.items():
        in_template = chat and model.instruction_tuned
        _check_checkpoint(f"{where}, checkpoint {name!r}", checkpoint, causal=causal, chat=in_template)
    has_template = read_chat_template(_tokenizer_of(final)) is not None
    return {"model": model.model, "checkpoints": checkpoints, "chat_template": has_template}


def prefetch_language_model(run: Run, language_model: str) -> ModelRecord:
    """Fetch a language model at a pinned revision, or take a local folder; the record of `prefetch_model`."""
    row = run.language_models[language_model]
    model = Model(model=language_model, path=row.path, revision=row.revision, dtype=row.dtype)
    return prefetch_model(model, causal=row.architecture == "causal")


def _tokenizer_of(point: CheckpointRecord) -> Path:
    root, adapter = Path(point["path"]), Path(point["adapter"]["path"]) if "adapter" in point else None
    return tokenizer_folder(adapter, root / (point["subfolder"] or ""), root)


def _check_checkpoint(where: str, point: CheckpointRecord, *, causal: bool, chat: bool) -> None:
    """Raise InputError where a checkpoint's weights are not whole, or weights, tokenizer and adapter do not belong
    together. chat: whether it is asked in its chat template."""
    weights = Path(point["path"], point["subfolder"] or "")
    check_weights(where, weights)
    from lm_validity.cells.models.tokenizing import examine

    try:
        embeddings = None
        if "adapter" in point:
            from lm_validity.cells.models.loading import check_fit

            embeddings = check_fit(weights, Path(point["adapter"]["path"]), where)
        examine(_tokenizer_of(point), where, weights=weights, causal=causal, embeddings=embeddings, chat=chat)
    except CellError as error:
        raise InputError(error.problem, error.hint) from None


def _checkpoint_record(model: Model, point: Checkpoint, folder: Path) -> CheckpointRecord:
    commit, folder_of_weights = None if model.is_local else folder.name, folder / (point.subfolder or "")
    if not any(folder_of_weights.glob("*.safetensors")):
        problem = f"model {model.model!r}, checkpoint {point.checkpoint!r}: no *.safetensors in {folder_of_weights}."
        hint = "convert other weights with model.save_pretrained(folder), or choose a revision that has them."
        raise InputError(problem, hint)
    if commit is not None:
        digest = f"{commit}/{point.subfolder}" if point.subfolder else commit
    else:  # a local folder: what it is, is what is in it
        digest = folder_digest(folder_of_weights)
        if not (folder_of_weights / "tokenizer_config.json").is_file():  # the tokenizer is the root's
            digest = f"{digest}/{folder_digest(folder, TOKENIZER_FILES)}"
    record: CheckpointRecord = {"path": str(folder), "subfolder": point.subfolder, "revision": commit, "digest": digest}
    adapter = model.adapter_of(point)
    if adapter is not None:
        record["adapter"] = _adapter_record(model, adapter, point.revision or model.revision)
        record["digest"] += f"+{record['adapter']['digest']}"
    return record


# ways to begin LoRA that subtract from the base's weights what the adapter begins with
CHANGES_ITS_BASE = ("pissa", "olora", "corda", "loftq")


def _adapter_record(model: Model, adapter: str, of_base: str | None) -> FolderRecord:
    """Fetch (or find) an adapter of the user's. of_base: its base's revision.

    Raises InputError where the folder does not hold a LoRA adapter in safetensors.
    """
    path, revision, _ = split_revision(adapter)
    single_checkpoint = model.model_copy(update={"path": path, "revision": revision, "checkpoints": (FINAL,)})
    folder = _fetch(single_checkpoint, revision, "adapter")
    commit = None if single_checkpoint.is_local else folder.name
    where = f"model {model.model!r}, adapter {adapter}"
    saved = "an adapter's folder is what PEFT's save_pretrained writes."
    configuration = _read_saved(where, folder / ADAPTER_FILES[0], saved)
    kind, begun = configuration.get("peft_type"), str(configuration.get("init_lora_weights")).lower()
    half = "tokenizer_config.json" if (folder / "tokenizer_config.json").is_file() else "chat template"
    has_half = half != "chat template" or read_chat_template(folder) is not None
    has_vocabulary = any(path for pattern in VOCABULARIES for path in folder.glob(pattern))
    lacks_weights = not (folder / ADAPTER_FILES[1]).is_file()
    behind, repeats = (configuration.get(key) for key in ("alora_invocation_tokens", "layer_replication"))
    merge = "merge the two where it was trained, and give the merged model as `path`"
    saves = "save it with PEFT's path_initial_model_for_weight_conversion, or give a merged model as `path`"
    files = "copy the base model's tokenizer files into it, or remove what is there to have the base's"
    part = f"its training took a part out of the base's weights (init_lora_weights {begun})"
    refusals = (
        (kind != "LORA", f"a PEFT adapter of type {kind}, and only LoRA can be added to the weights here", merge),
        (repeats, "it repeats layers of its base (layer_replication)", merge),
        (behind, "it works behind its invocation tokens only (alora_invocation_tokens)", "take the row out"),
        (begun.startswith(CHANGES_ITS_BASE), part, saves),
        (lacks_weights, f"no {ADAPTER_FILES[1]} in {folder}", "save the adapter with a newer PEFT, as safetensors"),
        (has_half and not has_vocabulary, f"its folder has a {half} and no vocabulary that goes with it", files),
    )
    for refused, problem, hint in refusals:
        if refused:
            raise InputError(f"{where}: {problem}.", f"{hint}.")
    read_tensors(where, folder / ADAPTER_FILES[1])
    base, trained_on = configuration.get("base_model_name_or_path"), configuration.get("revision")
    if isinstance(base, str) and Path(base).name != Path(model.path).name:
        log.warning("model %s: its adapter was trained on %s, and `path` is %s", model.model, base, model.path)
    if trained_on not in (None, "main", of_base) and not model.is_local:
        words = "model %s: its adapter was trained on revision %s of its base, and `revision` is %s"
        log.warning(words, model.model, trained_on, of_base or "main")
    return {"path": str(folder), "revision": commit, "digest": commit or folder_digest(folder)}


def check_unchanged(model: str, record: ModelRecord, files: Collection[str]) -> None:
    """Raise InputError where a local model's files, or its adapter's, are not those that were recorded.

    files: those that are there now (`run.inputs.own_files`).
    """
    sources = record.get("sources", {})
    for path in [*sources, *(file for file in files if file not in sources)]:
        if path not in sources or not is_as_recorded(path, sources[path]):
            is_new, is_gone = path not in sources, not Path(path).exists()
            event = "is gone since" if is_gone else "is new since" if is_new else "changed after"
            hint = f"run {again(f'prefetch-model --model {model}')}, then the workflow: its cells are new ones."
            raise InputError(f"model {model!r}: {path} {event} the model was recorded.", hint)


def _fetch(model: Model, revision: str | None, column: str = "path") -> Path:
    """A hub model's revision, downloaded (resumable) or, where the hub is out of reach, found in the local cache; of a
    local model the folder alone."""
    sheet = f"`{column}` in the models sheet{'' if column == 'path' else ', or in its sheet of checkpoints'}"
    if model.is_local:
        folder = Path(model.path).expanduser()
        if not folder.is_dir():
            problem = f"model {model.model!r}, column {column!r}: {model.path} is not a folder."
            raise InputError(problem, f"correct {sheet}.")
        return folder
    try:
        for name in model.folders:
            folder = Path(huggingface_hub.snapshot_download(model.path, revision=revision, **_patterns(name)))
    except HUB_ERRORS as error:
        problem, hint = f"download failed ({first_line(error)})", "run it again: downloads resume"
        if isinstance(error, hub.LocalEntryNotFoundError):
            problem, hint = "not in the local cache, and the hub is out of reach", f"run {PREFETCH} online"
        problem, hint = refusal(error, model.path, sheet) or (problem, hint)
        raise InputError(f"model {model.model!r}, column {column!r} ({model.path}): {problem}.", f"{hint}.") from None
    return folder


def folder_digest(folder: Path, patterns: tuple[str, ...] = MODEL_FILES) -> str:
    """sha256 over the names and bytes of the files that determine what a local model computes."""
    digest = hashlib.sha256()
    # training.json and such notes do not change what a model computes, but telling them apart is not worth an error
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}):
        digest.update(f"{path.name} {file_sha256(path)}\n".encode())
    return digest.hexdigest()


# ----------------------------------------------------------------------------------------------------------------------
# The weights of a model's folder: all there, whole, and of one model. Headers alone are read, and where two tensors
# have to be compared, their first rows.

_POINTER = b"version https://git-lfs"
_AGAIN = "fetch or copy the file again."
INTEGERS = ("F8", "F4", "I8", "U8", "I4", "I16", "I32", "U32", "I64")  # how the format calls what is quantized


class SavedTensor(NamedTuple):
    """A tensor of a safetensors file: its dtype by the format's name, and its shape."""

    path: Path
    dtype: str
    shape: tuple[int, ...]


Tensors = dict[str, SavedTensor]  # by name


def check_weights(where: str, folder: Path) -> None:
    """Raise InputError, naming the file, where one of a model's files of weights is missing, cut or only the pointer
    that git leaves in place of a large file; where two files hold other values for one tensor; and for integers whose
    config.json does not say what they are multiplied by."""
    if (folder / ADAPTER_FILES[0]).is_file():
        problem = f"{where}: {folder} holds weights and an adapter (adapter_config.json) beside each other."
        hint = "remove the adapter's files if they are merged; else name the base as `path`, the adapter as `adapter`."
        raise InputError(problem, hint)
    names, index = {path.name for path in folder.glob("*.safetensors")}, folder / INDEX
    of_index = set[str]()
    if index.is_file():
        weights = _read_saved(where, index, _AGAIN).get("weight_map")
        of_index = {*weights.values()} if isinstance(weights, dict) else set()
    elif WHOLE not in names:
        problem = f"{where}: neither {WHOLE} nor {INDEX} in {folder}, which has {', '.join(sorted(names)[:3])}."
        hint = f"call the file {WHOLE} where it is the whole model in transformers' format; else {_AGAIN}"
        raise InputError(problem, hint)
    missing = [] if WHOLE in names else sorted(of_index - names)
    if missing or not (of_index or WHOLE in names):
        problem = f"{missing[0]} is not in {folder}" if missing else f"{index} names no file"
        remainder = f", nor are {len(missing) - 1} more files" if missing[1:] else ""
        raise InputError(f"{where}: {problem}{remainder}.", _AGAIN)
    tensors: Tensors = {}  # of the whole file, which is what is loaded where shards are beside it
    for name in [*([WHOLE] if WHOLE in names else []), *sorted(of_index & names - {WHOLE})]:
        of_file = read_tensors(where, folder / name)
        differing = next(
            (tensor for tensor in of_file.keys() & tensors.keys() if _differ(tensor, of_file, tensors)), None
        )
        if WHOLE in names and name != WHOLE:
            differing = next(iter(of_file.keys() - tensors.keys()), differing)
        if differing is not None:
            problem = f"{where}: {folder / name} and a file before it hold different weights ({differing})."
            raise InputError(problem, "remove the files that do not belong to the model, or save it again.")
        tensors |= of_file
    _check_quantized(where, tensors, _read_saved(where, folder / "config.json", _AGAIN))


def _differ(name: str, first: Tensors, second: Tensors) -> bool:
    """Whether a tensor has another type, shape or first row in a second file."""
    import torch

    pair = (first[name], second[name])
    if len({(tensor.dtype, tensor.shape) for tensor in pair}) > 1:
        return True
    rows = []
    for tensor in pair:
        with safe_open(tensor.path, "pt") as file:
            rows.append(file.get_slice(name)[:1] if tensor.shape else file.get_tensor(name))
    return not torch.equal(*rows)


def read_tensors(where: str, path: Path) -> Tensors:
    """The tensors of one safetensors file. Raises InputError where it is cut, damaged or a pointer of Git LFS."""
    with path.open("rb") as start:
        if start.read(len(_POINTER)) == _POINTER:
            problem = f"{where}: {path} is a pointer of Git LFS, not the weights."
            raise InputError(problem, "run `git lfs pull` in that folder.")
    try:
        with safe_open(path, "np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: SavedTensor(path, part.get_dtype(), (*part.get_shape(),)) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{where}: {path} is damaged or cut ({first_line(error)}).", _AGAIN) from None


def _check_quantized(where: str, tensors: Tensors, configuration: Document) -> None:
    """Raise InputError for weights in integers or eight bits whose config.json does not say what they are multiplied
    by, and for bitsandbytes' settings without its scales: they would be read as they are."""
    parts = (configuration, configuration.get("text_config") or {})
    settings: Document = next((part["quantization_config"] for part in parts if part.get("quantization_config")), {})
    scales = ("SCB", "absmax", "quant_state")  # of bitsandbytes, in names beside its weights
    if settings.get("quant_method") == "bitsandbytes" and not any(word in name for name in tensors for word in scales):
        problem = f"{where}: config.json says that bitsandbytes quantized the weights, and the file has no scales."
        raise InputError(problem, "take quantization_config out of config.json where the weights are whole.")
    if settings or any(part.get("compression_config") for part in parts):
        return
    for name, tensor in tensors.items():
        if len(tensor.shape) == 2 and name.endswith("weight") and tensor.dtype.startswith(INTEGERS):
            problem = f"{where}: {name} in {tensor.path} is quantized ({tensor.dtype}), without a quantization_config."
            raise InputError(problem, "copy config.json of the quantized model, or give the model in bfloat16.")


def _read_saved(where: str, path: Path, hint: str) -> Document:
    """A JSON file among a model's. Raises InputError where it cannot be read."""
    try:
        return read_object(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{where}: {path} cannot be read ({error}).", hint) from None
