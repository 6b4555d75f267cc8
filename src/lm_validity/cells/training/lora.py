"""LoRA adapters: which layers get one, how they are put on and taken off, and PEFT's files with stable bytes."""

import contextlib
import functools
import hashlib
import json
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model, get_peft_model_state_dict
from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from safetensors.torch import save_file
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lm_validity.cells.training.low_rank import DEFAULT_ADAPTER, BatchDropout, BatchPosition, adapted_forward
from lm_validity.errors import CellError
from lm_validity.files import replace_file, write_text

# PEFT asks transformers by a name that is going out of use; nothing for the user to act on
warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)

# query, key and value projections as transformers' architectures name them, alone or fused
ATTENTION_PROJECTIONS = frozenset(
    ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "c_attn", "Wqkv", "in_proj", "query", "key", "value")
)


class Adaptable(Protocol):
    """What an adapter is put on, `LanguageModel` for one. model_id: the name that adapters carry."""

    base: PreTrainedModel
    model_id: str


def target_modules(lm: Adaptable, rule: str) -> list[str]:
    """Names of the layers that get an adapter, the last part of their path, sorted.

    `all-linear`: every linear layer but the output head, the one rule that treats all families alike;
    `attention`: query, key and value; `paper`: PEFT's default for the architecture, as in the published grid.
    Raises CellError where the architecture has none.
    """
    linear = _linear_layers(lm.base)
    short = {name: name.rpartition(".")[2] for name in linear}
    architecture = lm.base.config.model_type
    if rule == "all-linear":
        chosen = set(short.values())
    elif rule == "attention":
        chosen = set(short.values()) & ATTENTION_PROJECTIONS
    else:
        known = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(architecture, [])
        chosen = set(short.values()) & set(known if isinstance(known, list) else [])
    if not chosen:
        raise CellError(
            f"{lm.model_id}: no layers for adapters under target_modules {rule!r} (architecture {architecture!r}).",
            "use target_modules all-linear, which needs no table of architectures."
            if rule != "all-linear"
            else "the model has no linear layer that PEFT can adapt.",
        )
    return sorted(chosen)


def _linear_layers(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not head
    }


class AdapterShape(Protocol):
    """What is read of a section of the configuration that has adapters."""

    rank: int
    alpha: int
    dropout: float


def add_adapter(
    lm: Adaptable, shape: AdapterShape, rule: str, position: BatchPosition, also: Sequence[str] = ()
) -> PeftModel:
    """Put fresh adapters on the base model, seeded by `position.seed`; their weights are float32.

    rule: which layers get one, see `target_modules`.
    also: names of further adapters, equal to the first in everything, dropout masks included.
    The base model is changed in place until `PeftModel.unload` gives it back as it was.
    """
    modules = target_modules(lm, rule)
    layers = _linear_layers(lm.base)
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=shape.rank,
        lora_alpha=shape.alpha,
        lora_dropout=shape.dropout,
        target_modules=modules,
        # PEFT takes a short name wherever it ends a path, the output head's included
        exclude_modules=_excluded(lm, modules),
        fan_in_fan_out=any(isinstance(layers[name], Conv1D) for name in layers if name.rpartition(".")[2] in modules),
    )
    model = get_peft_model(lm.base, config)
    config.base_model_name_or_path = lm.model_id  # PEFT put the folder's path there
    generator = torch.Generator().manual_seed(position.seed)
    for name in also:
        model.add_adapter(name, config)
    for number, module in enumerate(adapted_layers(model)):
        dropout = BatchDropout(shape.dropout, position, number) if shape.dropout > 0 else None
        start = torch.empty(module.lora_A[DEFAULT_ADAPTER].weight.shape)
        torch.nn.init.kaiming_uniform_(start, a=math.sqrt(5), generator=generator)  # PEFT's own, from our generator
        for name in (DEFAULT_ADAPTER, *also):
            with torch.no_grad():
                module.lora_A[name].weight.copy_(start)
            if dropout:
                module.lora_dropout[name] = dropout
            for part in (module.lora_A, module.lora_B):
                part[name].requires_grad_(True)
        module.forward = functools.partial(adapted_forward, module, position)  # gone with the layer at `unload`
    return model.eval()


def adapted_layers(model: PeftModel) -> list[torch.nn.Module]:
    """The layers that carry adapters, in the model's order."""
    return [module for module in model.modules() if DEFAULT_ADAPTER in getattr(module, "lora_A", {})]


def adapter_parameters(model: PeftModel, adapter: str) -> dict[str, torch.nn.Parameter]:
    """Trainable weights of one adapter under the names that the first one has."""
    part = f".{adapter}."
    return {
        name.replace(part, f".{DEFAULT_ADAPTER}."): value
        for name, value in model.named_parameters()
        if value.requires_grad and part in name
    }


def _excluded(lm: Adaptable, modules: list[str]) -> list[str] | None:
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
        save_file(tensors, temporary, metadata={"format": "pt"})
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextlib.contextmanager
def use_adapter(lm: Adaptable, folder: str | Path) -> Iterator[None]:
    """Score with a saved adapter inside the block; after it the base model is what it was.

    PEFT puts the adapter's layers into the base model itself, so `lm` scores with them at once.
    Raises CellError where the folder does not hold an adapter of this model.
    """
    try:
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
