"""LoRA adapters: which layers get one, how they are put on and taken off, and PEFT's files with stable bytes."""

import contextlib
import functools
import hashlib
import json
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora.layer import ParamWrapper
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import transformers_weight_conversion
from safetensors.torch import save
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lm_validity.cells.training.low_rank import (
    DEFAULT_ADAPTER,
    BatchDropout,
    BatchPosition,
    Block,
    CannotStack,
    adapted_forward,
)
from lm_validity.cells.training.targets import Adaptable, find_targets
from lm_validity.errors import CellError, first_line
from lm_validity.files import replace_file, write_text

# PEFT asks transformers by a name that is going out of use; nothing for the user to act on
warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)


class AdapterShape(Protocol):
    """What is read of a section of the configuration that has adapters."""

    @property
    def rank(self) -> int:
        """Rows of the factor A, columns of the factor B."""

    @property
    def alpha(self) -> int:
        """What an adapter adds is multiplied by alpha / rank."""

    @property
    def dropout(self) -> float:
        """Share of an adapter's inputs that a training step leaves out, from 0 up to but not 1."""


def add_adapter(
    lm: Adaptable, shape: AdapterShape, rule: str, position: BatchPosition, also: Sequence[str] = ()
) -> PeftModel:
    """Put fresh adapters on the base model, seeded by `position.seed`; their weights are float32.

    rule: which layers get one, see `targets.find_targets`.
    also: names of further adapters, equal to the first in everything, dropout masks included.
    The base model is changed in place until `PeftModel.unload` gives it back as it was.
    """
    targets = find_targets(lm, rule)
    if targets.experts and also:
        raise CannotStack
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=shape.rank,
        lora_alpha=shape.alpha,
        # PEFT folds an expert's adapter into its weight, where nothing can be dropped; the layers' own comes below
        lora_dropout=0.0 if targets.experts else shape.dropout,
        target_modules=list(targets.names),
        target_parameters=list(targets.experts) or None,
        # PEFT takes a short name wherever it ends a path, the output head's included
        exclude_modules=_excluded(lm, targets.names),
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in targets.layers.values()),
    )
    try:
        with _names_as_given():
            model = get_peft_model(lm.base, config)
            for name in also:
                model.add_adapter(name, config)
    except Exception as error:  # whatever PEFT says about an architecture, in the middle of its work
        _take_off(lm.base)
        raise CellError(
            f"{lm.model_id}: PEFT cannot adapt it under target_modules {rule!r} ({first_line(error)}).",
            "try target_modules attention, or leave the model out of the agreement study (column studies).",
        ) from error
    config.base_model_name_or_path = lm.model_id  # PEFT put the folder's path there
    generator = torch.Generator().manual_seed(position.seed)
    blocks: dict[str, Block] = {}
    for number, (path, module) in enumerate(adapted_layers(model).items()):
        block = blocks.setdefault(_block_of(path), Block())
        dropout = BatchDropout(shape.dropout, position, number, block)
        start = torch.empty(module.lora_A[DEFAULT_ADAPTER].weight.shape)
        torch.nn.init.kaiming_uniform_(start, a=math.sqrt(5), generator=generator)  # PEFT's own, from our generator
        for name in (DEFAULT_ADAPTER, *also):
            with torch.no_grad():
                module.lora_A[name].weight.copy_(start)
            if not isinstance(module, ParamWrapper):
                block.features[number] = module.in_features
                module.lora_dropout[name] = dropout
            for part in (module.lora_A, module.lora_B):
                part[name].requires_grad_(requires_grad=True)
        if not isinstance(module, ParamWrapper):  # gone with the layer at `unload`
            module.forward = functools.partial(adapted_forward, module, position)
    return model.eval()


def adapted_layers(model: PeftModel) -> dict[str, torch.nn.Module]:
    """Path -> layer that carries adapters, in the model's order."""
    return {name: module for name, module in model.named_modules() if DEFAULT_ADAPTER in getattr(module, "lora_A", {})}


def _block_of(path: str) -> str:
    """The part of a layer's path that layers of one block share: all up to the last number in it."""
    numbered = re.match(r".*\.\d+(?=\.)", path)
    return numbered[0] if numbered else path


def adapter_parameters(model: PeftModel, adapter: str) -> dict[str, torch.nn.Parameter]:
    """Trainable weights of one adapter under the names that the first one has."""
    part = f".{adapter}."
    return {
        name.replace(part, f".{DEFAULT_ADAPTER}."): value
        for name, value in model.named_parameters()
        if value.requires_grad and part in name
    }


@contextlib.contextmanager
def _names_as_given() -> Iterator[None]:
    """Inside the block PEFT takes names for what they are in this transformers. For mixtures of experts it would take
    them for those of an older version and put something else in their place."""
    names = ("convert_peft_config_for_transformers", "convert_peft_adapter_state_dict_for_transformers")
    before = {name: getattr(transformers_weight_conversion, name) for name in names}
    transformers_weight_conversion.convert_peft_config_for_transformers = lambda *arguments, **options: None
    transformers_weight_conversion.convert_peft_adapter_state_dict_for_transformers = (
        lambda model, peft_config, adapter_state_dict, adapter_name="default": adapter_state_dict
    )
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(transformers_weight_conversion, name, function)


def _take_off(base: PreTrainedModel) -> None:
    """Put the layers back that PEFT replaced before it gave up."""
    for name, module in list(base.named_modules()):
        if isinstance(module, BaseTunerLayer) and ".base_layer" not in name:
            parent, _, last = name.rpartition(".")
            setattr(base.get_submodule(parent), last, module.get_base_layer())


def _excluded(lm: Adaptable, modules: Sequence[str]) -> list[str] | None:
    head = lm.base.get_output_embeddings()
    names = [name for name, module in lm.base.named_modules() if module is head]
    return [name for name in names if name.rpartition(".")[2] in modules] or None


def adapter_tensors(model: PeftModel, adapter: str = DEFAULT_ADAPTER) -> dict[str, torch.Tensor]:
    """A copy of an adapter's weights on the CPU under PEFT's names."""
    # left to itself, PEFT asks the hub whether the vocabulary was resized
    state = get_peft_model_state_dict(model, adapter_name=adapter, save_embedding_layers=False)
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in sorted(state.items())}


def save_adapter(model: PeftModel, tensors: dict[str, torch.Tensor], folder: Path) -> str:
    """Write an adapter as PEFT reads it, atomically, without a path or time stamp; the sha256 of its weights'
    file."""
    config = model.peft_config["default"].to_dict() | {"inference_mode": True}
    plain = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    write_text(folder / "adapter_config.json", json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n")
    path = folder / "adapter_model.safetensors"
    with replace_file(path) as temporary:
        temporary.write_bytes(save(tensors, metadata={"format": "pt"}))  # raises OSError on a full disk
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextlib.contextmanager
def use_adapter(lm: Adaptable, folder: str | Path) -> Iterator[None]:
    """Score with a saved adapter inside the block; after it the base model is what it was.

    PEFT puts the adapter's layers into the base model itself, so `lm` scores with them at once.
    Raises CellError where the folder does not hold an adapter of this model.
    """
    try:
        with _names_as_given():
            model = PeftModel.from_pretrained(lm.base, str(folder), is_trainable=False)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CellError(
            f"{folder}: not an adapter of {lm.model_id} ({reason}).", "compute the fine-tune that makes it again."
        ) from error
    model.eval()
    try:
        yield
    finally:
        model.unload()
