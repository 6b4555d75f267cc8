"""Weights as transformers loads them: what it would leave out, draw at random or put elsewhere without a word, and
whether what came of them is a causal language model."""

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from lm_validity.cells.models.passes import is_out_of_memory, replaced
from lm_validity.errors import CellError, first_line
from lm_validity.files import read_json
from lm_validity.run.inputs import weight_files

if TYPE_CHECKING:
    from peft import PeftModel

log = logging.getLogger(__name__)

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


class LoadedWeights(NamedTuple):
    """missing: tensors of the model that the files lack, which transformers draws at random. unread: tensors of the
    files that the model has no place for, and needs none, such as a value head or a tower for images."""

    model: transformers.PreTrainedModel
    missing: list[str]
    unread: list[str]


def load_weights(
    loader: type[_BaseAutoModelClass], folder: Path, name: str, kind: str, labels: int | None = None, **options: object
) -> LoadedWeights:
    """A model of a class of the library, from local safetensors and without remote code, as it is asked here.

    kind: of language model, for messages. labels: of a classifier. Raises CellError where it cannot be loaded, or where
    its configuration is not that of its weights: transformers would leave layers and biases out, and compute without.
    """
    local = {"local_files_only": True, "trust_remote_code": False}
    with names_what_fails(name, kind):
        configuration = transformers.AutoConfig.from_pretrained(
            folder, **({} if labels is None else {"num_labels": labels}), **local
        )
        wish = str(getattr(configuration, "_attn_implementation", None) or "")
        installed = getattr(transformers.utils, f"is_{wish.replace('attention', 'attn')}_available", lambda: False)
        if wish.startswith("flash_attention") and not installed():  # another way to the same numbers
            log.warning("%s: its config.json asks for %s, which is not installed: computed without it", name, wish)
            configuration._attn_implementation = None
        options |= {"config": configuration, "use_safetensors": True, "ignore_mismatched_sizes": True, **local}
        model, loading = loader.from_pretrained(folder, output_loading_info=True, **options)
    if loading["mismatched_keys"]:
        tensor, *shapes = min(loading["mismatched_keys"])
        saved, expected = ("x".join(map(str, shape)) for shape in shapes)
        problem = f"{name}: {tensor} is {saved} in its weights, and {expected} by its config.json."
        raise CellError(problem, "one of the two is of another model: copy both from where the model was saved.")
    keep_four_bits(model)
    for part in (model.config, model.config.get_text_config()):
        part.return_dict = True  # some say false: a tuple, whose logits have no name
        if getattr(part, "output_router_logits", False):  # of training: a loss of routers, which padding breaks
            part.output_router_logits = False
    unread = sorted(loading["unexpected_keys"])
    parts = [] if getattr(model.config, "quantization_config", None) else sorted(_own_parts(model, unread, folder))
    if parts:  # quantized weights bring more
        problem = f"{name}: its weights have tensors such as {parts[0]}, and by its config.json the model is without."
        raise CellError(problem, "config.json is of another model, or was changed: copy that of the weights.")
    return LoadedWeights(model, sorted(loading["missing_keys"]), unread)


@contextlib.contextmanager
def names_what_fails(name: str, kind: str) -> Iterator[None]:
    """Inside the block what a model's files make transformers raise is a CellError. A full disk, a GPU that fails or
    memory that runs out is the machine's fault: the job must fail, so that retries apply."""
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, SafetensorError, RuntimeError) as error:
        # of transformers' own RuntimeErrors: tensors that cannot be converted
        of_files = not isinstance(error, RuntimeError) or re.search("state_dict|conversion of the weights", str(error))
        if not of_files or getattr(error, "errno", None) is not None:
            raise
        hint = "it needs config.json, *.safetensors and a tokenizer of an architecture that is known."
        if isinstance(error, ImportError):
            hint = "install what it names into the environment of the jobs; or give quantized weights in bfloat16."
        elif isinstance(error, KeyError):
            hint = "a value of its config.json is not known: is it misspelt, or of a newer transformers?"
        elif "Unrecognized configuration class" in str(error):
            hint = "it is of another kind: correct `architecture` in the bias study's sheet, or leave the model out."
        raise CellError(f"{name}: cannot be loaded as a {kind} language model ({first_line(error)}).", hint) from error


def _own_parts(model: transformers.PreTrainedModel, unread: list[str], folder: Path) -> Iterator[str]:
    """Those of the tensors that have their like in the model: layers after its last one, biases of layers without."""
    patterns = {_NUMBER.sub("*", name) for name, _ in model.named_parameters(remove_duplicate=False)}
    text = model.config.get_text_config()
    # layers that predict further tokens stand behind the last one
    extra_layers = [
        value for key, value in text.to_dict().items() if re.search("nextn|mtp", key) and isinstance(value, int)
    ]
    last = getattr(text, "num_hidden_layers", 0) + max(extra_layers, default=0)
    modules = dict(model.named_modules())
    for name in unread:
        if _NUMBER.sub("*", name) in patterns:
            if last <= max(map(int, _NUMBER.findall(name)), default=last):
                yield name
            continue
        layer = modules.get(name.removesuffix(".bias"))
        without = isinstance(getattr(layer, "weight", None), torch.Tensor) and getattr(layer, "bias", 0) is None
        if name.endswith(".bias") and without and _is_not_zero(folder, name):
            yield name


def _is_not_zero(folder: Path, name: str) -> bool:
    """Whether a tensor of the files is not zero; of one that is there under another name it is not known."""
    for path in weight_files(folder):
        with safe_open(path, "pt") as file:
            if name in file.keys():  # noqa: SIM118
                return bool(file.get_tensor(name).any())
    return True


# ----------------------------------------------------------------------------------------------------------------------
# Loaded weights as they were saved, and in their place.


def keep_saved_head(model: torch.nn.Module) -> None:
    """Have the configuration of a model just loaded say so where its file holds a head of its own, although config.json
    ties it to the embeddings. Loading keeps both; but whoever ties weights later (lm-eval, PEFT) would put the
    embeddings in the place of the head."""
    root = next((part for part in model.modules() if isinstance(part, transformers.PreTrainedModel)), None)
    if root is None:
        return
    untied = set(root.get_expanded_tied_weights_keys(all_submodels=True)) - set(root.all_tied_weights_keys)
    for part in root.modules() if untied else ():
        if isinstance(part, transformers.PreTrainedModel):
            part.config.tie_word_embeddings = part.config.get_text_config().tie_word_embeddings = False


def keep_four_bits(model: torch.nn.Module) -> None:
    """Leave weights of four bits as they are stored. On CPUs with AVX-512 for bfloat16 bitsandbytes packs them anew at
    the first forward pass, which takes only matrices whose rows are a multiple of 32 and leaves other tensors in the
    place of those that were loaded; and such a CPU would round otherwise than others."""
    for part in model.modules():
        if hasattr(part, "support_avx512bf16_for_cpu"):
            part.support_avx512bf16_for_cpu = False


def check_on_gpus(name: str, device_map: Mapping[str, object]) -> None:
    """Raise CellError where accelerate left layers to the processor or the disk: slow, and nothing to train on."""
    not_on_gpu = sorted({str(device) for device in device_map.values()} & {"cpu", "disk"})
    if not_on_gpu:
        hint = "give its size class more GPUs (`gpu`), or GPUs with more memory."
        raise CellError(f"{name}: does not fit the GPUs of the job (layers on {', '.join(not_on_gpu)}).", hint)


def check_saved_ends(model: transformers.PreTrainedModel, folder: Path, name: str) -> None:
    """Raise CellError where embeddings or head in memory are not those of the checkpoint, by some rows of the tensors
    that the file has under the same name."""
    parameters = [*model.named_parameters(remove_duplicate=False)]
    for part in (model.get_input_embeddings(), model.get_output_embeddings()):
        weight = getattr(part, "weight", None)
        if weight is None or weight.ndim != 2 or weight.is_meta or not weight.is_floating_point():
            continue
        names = {key for key, parameter in parameters if parameter is weight}
        rows = torch.linspace(0, len(weight) - 1, min(len(weight), 16)).long().tolist()
        for file in weight_files(folder):
            with safe_open(file, "pt") as tensors:
                for key in names & set(tensors.keys()):
                    saved = tensors.get_slice(key)
                    if tuple(saved.get_shape()) != tuple(weight.shape):
                        continue
                    rows_in_file = torch.cat([saved[row : row + 1] for row in rows]).to(weight.dtype)
                    if not torch.equal(weight[rows].cpu(), rows_in_file):
                        hint = "this is a fault of loading: report it with the model's config.json."
                        raise CellError(f"{name}: {key} in memory is not that of {file}.", hint)


def takes_rows(model: transformers.PreTrainedModel, name: str) -> bool:
    """Whether a forward pass can have several rows: the code of some architectures (xLSTM) takes few shapes.

    Raises CellError where it cannot even have one, and where a token's logits depend on the tokens behind it: an
    encoder (RoBERTa, say) loads as a causal model, but every choice would be scored by a model that sees it. Tried on
    two rows that differ in the last token: what configurations say of it (is_decoder) holds for some only.
    """
    rows = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 9]], device=model.device)
    rows = rows % model.config.get_text_config().vocab_size
    for batches in ([rows], [*rows.split(1)]):
        try:
            with torch.no_grad():
                logits = torch.cat([model(input_ids=batch).logits for batch in batches]).float()
            break
        except (ValueError, TypeError, AttributeError, LookupError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and (is_out_of_memory(error) or model.device.type != "cpu"):
                raise  # a GPU's fault may be the machine's
            failed = error
    else:
        hint = "is its config.json that of its weights? Else take it out, or use a transformers that has it repaired."
        raise CellError(f"{name}: {type(model).__name__} cannot compute a text ({first_line(failed)}).", hint)
    difference, scale = (logits[0, :-1] - logits[1, :-1]).abs().max(), logits.abs().max()
    if difference > scale * (1e-4 if model.dtype == torch.float32 else 2e-2):
        problem = f"{name}: {type(model).__name__} sees the tokens that it is to predict: an encoder, not a decoder."
        raise CellError(problem, "a masked language model can take part in the bias study (`language_models`).")
    return len(batches) == 1


# ----------------------------------------------------------------------------------------------------------------------
# A user's own PEFT adapter: added to the weights of its base model when that is loaded.
#
# The result is an ordinary model, so that scoring, fine-tuning and writing answers need to know nothing of it. LoRA
# only, DoRA and rank-stabilised LoRA included. Whether adapter and base belong together is tried on the login node too,
# on a model without values. PEFT is a fifth of what a job has to import: only what has an adapter does.

# what PEFT and safetensors raise for an adapter that is damaged, or made for another model
UNFIT = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, re.error, SafetensorError)
_SECOND = re.compile(r"\.lora_(embedding_)?B(\.weight)?$")
NOT_WEIGHTS = re.compile(r"lora_|trainable_tokens|original_module")  # tensors that are no layer's weights
_PREFIX, _OF_LORA = "base_model.model.", re.compile(r"(\.base_layer)*\.lora_.*")  # around the name of an adapted layer
Shapes = Mapping[str, tuple[int, ...]]


def put_on(model: transformers.PreTrainedModel, folder: str | Path, name: str) -> None:
    """Add an adapter to the weights of `model`. Raises CellError where it does not fit the model, or is not the same
    once it is in the weights."""
    try:
        adapted = _with_layers(model, Path(folder))
        expected = _logits(model)
        adapted.merge_and_unload()
    except UNFIT as error:
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise
        raise _unfit(name, folder, error) from error
    if not expected.isfinite().all():
        hint = "its training diverged: give an earlier checkpoint of it, or none."
        raise CellError(f"{name}: with {folder} its logits are not finite.", hint)
    difference, scale = (_logits(model) - expected).abs().max(), expected.abs().max()
    if not difference <= scale * (1e-4 if model.dtype == torch.float32 else 5e-2):
        raise CellError(
            f"{name}: {folder} computes something else once it is added to the weights.",
            "the model uses the adapted weights in several places (an output layer tied to the embeddings, a "
            "shared block), or reads them past the adapter (dt_proj of Mamba): give a merged model, in which such "
            "weights are apart, as `path`, or leave it out.",
        )


def check_fit(weights: Path, folder: Path, name: str) -> int | None:
    """Try an adapter on a model without values, of the configuration in `weights`: the number of embeddings that the
    two have. None where this transformers or PEFT cannot try it so. Raises CellError where the two do not belong
    together."""
    try:
        configuration = transformers.AutoConfig.from_pretrained(weights, local_files_only=True)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(configuration, trust_remote_code=False)
    except Exception:  # whatever building from a configuration raises: the job will load the model, and say it
        return None
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*no-op|.*missing adapter keys")  # it has no values
            _with_layers(model, folder)
    except NotImplementedError:  # of an operation that needs values
        return None
    except UNFIT as error:
        raise _unfit(name, folder, error) from error
    with safe_open(folder / "adapter_model.safetensors", "pt") as file:
        # a layer's change is the product of two matrices, of which the second begins as zero
        seconds = [tensor for tensor in file.keys() if _SECOND.search(tensor)]  # noqa: SIM118
        if 2 * len(seconds) == len(file.keys()) and not any(file.get_tensor(tensor).any() for tensor in seconds):
            log.warning("%s: %s changes nothing: it is as it was before its first training step", name, folder)
    result: int = model.get_input_embeddings().weight.shape[0]
    return result


def _unfit(name: str, folder: str | Path, error: BaseException) -> CellError:
    return CellError(
        f"{name}: {folder} is not an adapter of this base model ({first_line(error)}).",
        "check `path` and `adapter` in the models sheet: the adapter's configuration names its base. Else merge them "
        "where the adapter was trained, and give the merged model as `path`.",
    )


def _with_layers(model: transformers.PreTrainedModel, folder: Path) -> "PeftModel":
    """The model with an adapter's layers. What was trained with more tokens than its base has, or fewer, is given as
    many. Raises UNFIT."""
    from peft import PeftModel, get_peft_model_state_dict
    from peft.tuners.tuners_utils import BaseTunerLayer

    with safe_open(folder / "adapter_model.safetensors", "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    tokens, settings = _trained_tokens(model, shapes), read_json(folder / "adapter_config.json")
    embeddings = tokens or model.get_input_embeddings().weight.shape[0]
    rows = settings.get("trainable_token_indices") or []
    last = max((row for part in (rows.values() if isinstance(rows, dict) else [rows]) for row in part), default=0)
    if last >= embeddings:
        raise ValueError(f"it changes the embedding of token {last}, of {embeddings} embeddings")
    if tokens is not None:
        model.resize_token_embeddings(tokens, mean_resizing=False)  # each row is one of the file's from here on
    adapted_layers = {_OF_LORA.sub("", name).removeprefix(_PREFIX) for name in shapes if ".lora_" in name}
    as_given = adapted_layers <= {name for name, _ in model.named_modules()}
    with names_as_given() if as_given else contextlib.nullcontext():
        adapted = PeftModel.from_pretrained(model, str(folder), is_trainable=False).eval()
    if settings.get("lora_bias"):
        layers = [layer.get_base_layer() for layer in adapted.modules() if isinstance(layer, BaseTunerLayer)]
        if any(getattr(layer, "bias", None) is None for layer in layers):
            raise ValueError("it has biases (lora_bias) for layers that have none, where no weight can hold them")
    if as_given:
        missing = set(get_peft_model_state_dict(adapted, save_embedding_layers=False)) - set(shapes)
        surplus = set(shapes) - set(get_peft_model_state_dict(adapted, save_embedding_layers=True))
    else:  # the names of earlier versions
        with warnings.catch_warnings(action="ignore"):
            loaded = adapted.load_adapter(str(folder), "default", is_trainable=False)
        missing, surplus = {*loaded.missing_keys}, {name for name in loaded.unexpected_keys if "lora_" in name}
    if names := missing or surplus:  # PEFT would go on with an adapter that reaches a part of the model, or none
        problem = "lacks" if missing else "has no place in the model for"
        raise ValueError(f"its file {problem} {min(names)}" + (f" and {len(names) - 1} more" if len(names) > 1 else ""))
    return adapted


def _trained_tokens(model: transformers.PreTrainedModel, shapes: Shapes) -> int | None:
    """The number of tokens of the embeddings and the head that an adapter's file holds, None where it holds none or
    as many as the model has. Raises ValueError where the two differ, or one is not there: its rows would be random."""
    parts = {"embeddings": model.get_input_embeddings(), "output layer": model.get_output_embeddings()}
    tied = parts["output layer"] is None or parts["output layer"].weight is parts["embeddings"].weight
    now = parts["embeddings"].weight.shape[0]
    names = {id(module): name for name, module in model.named_modules()}
    sizes = {}
    for part, module in parts.items():
        stem = f"base_model.model.{names.get(id(module))}."
        held = [shape for name, shape in shapes.items() if name.startswith(stem) and not NOT_WEIGHTS.search(name)]
        sizes[part] = {shape[0] for shape in held if len(shape) == 2 and shape[1] == module.weight.shape[1]}
    trained = set().union(*sizes.values())
    if trained <= {now}:
        return None
    copied = any("modules_to_save" in name for name in shapes)  # else tied rows are in the file under one name or both
    for part, rows in sizes.items():
        if len(trained) > 1 or (not rows and (not tied or copied)):
            listed = " and ".join(f"{part} of {max(rows) if rows else 'no'} tokens" for part, rows in sizes.items())
            raise ValueError(f"its file holds {listed}, the base model has {now}")
    return trained.pop()


def names_as_given() -> contextlib.AbstractContextManager[None]:
    """Inside the block PEFT takes an adapter's names for what they are in this transformers. For mixtures of experts it
    would take some for those of an older version, and put something else in their place, or leave their tensors out."""
    from peft.utils import transformers_weight_conversion

    def same(model: object, peft_config: object, adapter_state_dict: object, adapter_name: str = "default") -> object:
        return adapter_state_dict

    return replaced(
        (transformers_weight_conversion, "convert_peft_config_for_transformers", lambda *arguments, **options: None),
        (transformers_weight_conversion, "convert_peft_adapter_state_dict_for_transformers", same),
    )


def _logits(model: transformers.PreTrainedModel) -> torch.Tensor:
    rows = torch.arange(5, 13, device=model.device)[None] % model.config.get_text_config().vocab_size
    with torch.no_grad():
        return model(input_ids=rows, use_cache=False).logits.float()
