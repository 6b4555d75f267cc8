"""A user's own PEFT adapter: added to the weights of its base model when that is loaded.

The result is an ordinary model, so that scoring, fine-tuning and writing answers need to know nothing of it. An adapter
can be taken off again, bit for bit, so that several adapters of one base share its load. LoRA only, DoRA and
rank-stabilised LoRA included. Whether adapter and base belong together is tried on the login node too, on a model
without values.
"""

import contextlib
import logging
import re
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners.lora.layer import ParamWrapper
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME, transformers_weight_conversion
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from lm_validity.cells.models.passes import is_out_of_memory
from lm_validity.cells.models.provenance import replaced
from lm_validity.errors import CellError, first_line
from lm_validity.files import read_json

log = logging.getLogger(__name__)

# what PEFT and safetensors raise for an adapter that is damaged, or made for another model
UNFIT = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, re.error, SafetensorError)
_SECOND = re.compile(r"\.lora_(embedding_)?B(\.weight)?$")
NOT_WEIGHTS = re.compile(r"lora_|trainable_tokens|original_module")  # tensors that are no layer's weights
_PREFIX, _OF_LORA = "base_model.model.", re.compile(r"(\.base_layer)*\.lora_.*")  # around the name of an adapted layer
Shapes = Mapping[str, tuple[int, ...]]


class OwnAdapter:
    """An adapter in the weights of `model`. `keep`: also a copy on the CPU of the weights that it changes, by which
    `take_off` restores them."""

    def __init__(self, model: PreTrainedModel, folder: str | Path, name: str, *, keep: bool = False):
        """Raises CellError where the adapter does not fit the model, or is not the same once it is in the weights."""
        self._before: list[tuple[torch.nn.Module, torch.Tensor]] | None = None
        try:
            adapted, layers_only = _put_on(model, Path(folder))
            expected = _logits(model)
            if keep and layers_only:
                layers = [layer.get_base_layer() for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
                self._before = [(layer, layer.weight.detach().to("cpu", copy=True)) for layer in layers]
            adapted.merge_and_unload()
        except UNFIT as error:
            if isinstance(error, RuntimeError) and is_out_of_memory(error):
                raise
            raise _unfit(name, folder, error) from error
        if not expected.isfinite().all():
            raise CellError(
                f"{name}: with {folder} its logits are not finite.",
                "its training diverged: give an earlier checkpoint of it, or none.",
            )
        difference, scale = (_logits(model) - expected).abs().max(), expected.abs().max()
        if not difference <= scale * (1e-4 if model.dtype == torch.float32 else 5e-2):
            raise CellError(
                f"{name}: {folder} computes something else once it is added to the weights.",
                "the model uses the adapted weights in several places (an output layer tied to the embeddings, a "
                "shared block), or reads them past the adapter (dt_proj of Mamba): give a merged model, in which such "
                "weights are apart, as `path`, or leave it out.",
            )

    def take_off(self) -> bool:
        """Give the base model back as it was; False where that cannot be done and it has to be loaded again."""
        if self._before is None:
            return False
        for layer, weight in self._before:
            layer.weight.data.copy_(weight)
        return True


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
            _put_on(model, folder)
    except NotImplementedError:  # of an operation that needs values
        return None
    except UNFIT as error:
        raise _unfit(name, folder, error) from error
    with safe_open(folder / SAFETENSORS_WEIGHTS_NAME, "pt") as file:
        # a layer's change is the product of two matrices, of which the second begins as zero
        seconds = [tensor for tensor in file.keys() if _SECOND.search(tensor)]  # noqa: SIM118
        if 2 * len(seconds) == len(file.keys()) and not any(file.get_tensor(tensor).any() for tensor in seconds):
            log.warning(
                "%s: %s changes nothing: it is as it was before its first training step, so that its scores are its "
                "base's",
                *(name, folder),
            )
    result: int = model.get_input_embeddings().weight.shape[0]
    return result


def _unfit(name: str, folder: str | Path, error: BaseException) -> CellError:
    return CellError(
        f"{name}: {folder} is not an adapter of this base model ({first_line(error)}).",
        "check `path` and `adapter` in the models sheet: the adapter's configuration names its base. Else merge them "
        "where the adapter was trained, and give the merged model as `path`.",
    )


class _Adapted(NamedTuple):
    """A model with an adapter's layers. layers_only: they change nothing but weights of layers, so that the adapter can
    be taken off again."""

    model: PeftModel
    layers_only: bool


def _put_on(model: PreTrainedModel, folder: Path) -> _Adapted:
    """The model with an adapter's layers. What was trained with more tokens than its base has, or fewer, is given as
    many. Raises UNFIT."""
    with safe_open(folder / SAFETENSORS_WEIGHTS_NAME, "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    tokens = _trained_tokens(model, shapes)
    _check_rows(folder, tokens or model.get_input_embeddings().weight.shape[0])
    if tokens is not None:
        model.resize_token_embeddings(tokens, mean_resizing=False)  # each row is one of the file's from here on
    adapted_layers = {_OF_LORA.sub("", name).removeprefix(_PREFIX) for name in shapes if ".lora_" in name}
    as_given = adapted_layers <= {name for name, _ in model.named_modules()}
    with names_as_given() if as_given else contextlib.nullcontext():
        adapted = PeftModel.from_pretrained(model, str(folder), is_trainable=False).eval()
    if read_json(folder / CONFIG_NAME).get("lora_bias"):
        layers = [layer.get_base_layer() for layer in adapted.modules() if isinstance(layer, BaseTunerLayer)]
        if any(getattr(layer, "bias", None) is None for layer in layers):
            raise ValueError("it has biases (lora_bias) for layers that have none, where no weight can hold them")
    if not as_given:
        _check_converted(adapted, folder)
        return _Adapted(adapted, layers_only=False)
    return _Adapted(adapted, _check_tensors(adapted, set(shapes)) and tokens is None)


def _trained_tokens(model: PreTrainedModel, shapes: Shapes) -> int | None:
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


def _check_rows(folder: Path, tokens: int) -> None:
    """Raise ValueError where an adapter changes embeddings of tokens that the model does not have."""
    rows = read_json(folder / CONFIG_NAME).get("trainable_token_indices") or []
    last = max((row for part in (rows.values() if isinstance(rows, dict) else [rows]) for row in part), default=0)
    if last >= tokens:
        raise ValueError(f"it changes the embedding of token {last}, of {tokens} embeddings")


def _check_tensors(adapted: PeftModel, names_in_file: set[str]) -> bool:
    """Whether the adapter changes nothing but the weights of its layers, so that it can be taken off again.

    Raises ValueError where its file lacks a tensor that the model needs, or holds one that the model has no place for:
    PEFT would go on with an adapter that reaches a part of the model, or none.
    """
    names_expected = set(get_peft_model_state_dict(adapted, save_embedding_layers=False))
    missing = names_expected - names_in_file
    surplus = names_in_file - set(get_peft_model_state_dict(adapted, save_embedding_layers=True))
    _refuse_parts(missing, surplus)
    configuration = adapted.peft_config["default"]
    fused = any(isinstance(layer, ParamWrapper) for layer in adapted.modules())
    trains_more = configuration.bias != "none" or configuration.lora_bias or configuration.modules_to_save
    return names_in_file == names_expected and not fused and not trains_more


def _check_converted(adapted: PeftModel, folder: Path) -> None:
    """Raise ValueError where PEFT has no place for a tensor of a file whose names are those of earlier versions, or
    finds none for a layer of the adapter."""
    with warnings.catch_warnings(action="ignore"):
        loaded = adapted.load_adapter(str(folder), "default", is_trainable=False)
    _refuse_parts(loaded.missing_keys, [name for name in loaded.unexpected_keys if "lora_" in name])


def _refuse_parts(missing: Collection[str], surplus: Collection[str]) -> None:
    if names := missing or surplus:
        problem = "lacks" if missing else "has no place in the model for"
        raise ValueError(f"its file {problem} {min(names)}" + (f" and {len(names) - 1} more" if len(names) > 1 else ""))


def names_as_given() -> contextlib.AbstractContextManager[None]:
    """Inside the block PEFT takes an adapter's names for what they are in this transformers. For mixtures of experts it
    would take some for those of an older version, and put something else in their place, or leave their tensors out."""

    def same(model: object, peft_config: object, adapter_state_dict: object, adapter_name: str = "default") -> object:
        return adapter_state_dict

    return replaced(
        (transformers_weight_conversion, "convert_peft_config_for_transformers", lambda *arguments, **options: None),
        (transformers_weight_conversion, "convert_peft_adapter_state_dict_for_transformers", same),
    )


def _logits(model: PreTrainedModel) -> torch.Tensor:
    rows = torch.arange(5, 13, device=model.device)[None] % model.config.get_text_config().vocab_size
    with torch.no_grad():
        return model(input_ids=rows, use_cache=False).logits.float()
