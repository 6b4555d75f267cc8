"""Which weights of a model get an adapter: linear layers that a text goes through, and experts that are one tensor."""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lm_validity.cells.models.hub_defaults import EXPERT_COUNTS
from lm_validity.errors import CellError

# query, key and value projections as transformers' architectures name them, alone or fused
ATTENTION_PROJECTIONS = frozenset(
    ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "c_attn", "Wqkv", "in_proj", "query", "key", "value")
)
# of a state-space mixer, whose fused kernels read these weights without calling the layer: an adapter would be ignored
READ_BY_KERNELS = ("out_proj", "x_proj", "dt_proj")
MAMBA_BY_ANOTHER_NAME = ("falcon_h1", "nemotron_h")  # where PEFT refuses them as well


class Adaptable(Protocol):
    """What an adapter is put on, `LanguageModel` for one. model_id: the name that adapters carry."""

    @property
    def base(self) -> PreTrainedModel:
        """The model whose layers get adapters; it is changed in place."""

    @property
    def model_id(self) -> str:
        """The name that adapters carry and that errors give."""


@dataclass(frozen=True)
class Targets:
    """layers: path -> linear layer. experts: paths of three-dimensional tensors, each one matrix per expert.
    names: of the layers, as PEFT takes them: last parts of their paths where these name nothing else, else paths.
    share: of the weights that a text goes through (embeddings, output head and vectors left out), those with an
    adapter."""

    layers: dict[str, torch.nn.Module]
    experts: tuple[str, ...]
    names: tuple[str, ...]
    share: float

    @property
    def described(self) -> tuple[str, ...]:
        """The names with `*` for numbers of layers and experts, sorted: one entry per kind of layer."""
        return tuple(sorted({_pattern(name) for name in (*self.names, *self.experts)}))


def find_targets(lm: Adaptable, rule: str) -> Targets:
    """What gets an adapter under a rule.

    `all-linear`: every linear layer that a text goes through but the output head, and experts: the one rule that treats
    all families alike; `attention`: query, key and value; `paper`: PEFT's default for the architecture, as in the
    published grid. Never routers, which choose experts, and never towers for other inputs than text.
    Raises CellError where the architecture has none.
    """
    everything = _reached(lm.base)
    reached = {name: module for name, module in everything.items() if _adaptable(lm.base, name, module)}
    architecture: str = lm.base.config.model_type
    experts: tuple[str, ...] = ()
    wanted: Collection[str]
    if rule == "all-linear":
        wanted, experts = {_last(name) for name in reached}, _fused_experts(everything)
    elif rule == "attention":
        wanted = ATTENTION_PROJECTIONS
    else:
        known = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(architecture, [])
        wanted = set(known if isinstance(known, list) else [])
    layers = {name: module for name, module in reached.items() if _last(name) in wanted}
    if not layers and not experts:
        raise CellError(
            f"{lm.model_id}: no layers for adapters under target_modules {rule!r} (architecture {architecture!r}).",
            "use target_modules all-linear, which needs no table of architectures."
            if rule != "all-linear"
            else "the model has no linear layer that PEFT can adapt.",
        )
    holders = {name.rpartition(".")[0]: everything[name.rpartition(".")[0]] for name in experts}
    share = _share(everything.values(), [*layers.values(), *holders.values()])
    return Targets(layers, experts, _names(lm.base, layers), share)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _pattern(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def _reached(model: PreTrainedModel) -> dict[str, torch.nn.Module]:
    """Path -> module with matrices of its own, of those that a text goes through: found by trying. Of modules that
    differ in their number only, all are, since a short text meets few experts. The embeddings and the output head are
    left out, and what returns no tensor (routers that are linear layers)."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    weighty = {
        name: module
        for name, module in model.named_modules()
        if module not in ends and any(weight.ndim > 1 for weight in module.parameters(recurse=False))
    }
    met: set[str] = set()

    def note(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: met.add(_pattern(name)) if isinstance(output, torch.Tensor) else None

    handles = [module.register_forward_hook(note(name)) for name, module in weighty.items()]
    vocabulary = model.config.get_text_config().vocab_size
    try:
        with torch.no_grad():
            model(input_ids=torch.arange(5, 37, device=model.device)[None] % vocabulary, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return {name: module for name, module in weighty.items() if _pattern(name) in met}


def _adaptable(model: PreTrainedModel, name: str, module: torch.nn.Module) -> bool:
    linear = isinstance(module, torch.nn.Linear | Conv1D)
    return linear and not _is_router(model, name, module) and not _is_bypassed(model, name)


def _is_router(model: PreTrainedModel, name: str, layer: torch.nn.Module) -> bool:
    """A layer whose outputs are one an expert, or one gate, and whose path says so."""
    config = model.config.get_text_config()
    counts = {getattr(config, key, None) for key in EXPERT_COUNTS} - {None}
    outputs = layer.nf if isinstance(layer, Conv1D) else layer.out_features
    named = any("gate" in part or "router" in part for part in name.split(".")[-2:])
    return bool(counts) and named and outputs in {1, *(count for count in counts if isinstance(count, int))}


def _is_bypassed(model: PreTrainedModel, name: str) -> bool:
    parent, _, last = name.rpartition(".")
    of_mamba = "mamba" in type(model.get_submodule(parent)).__name__.lower()
    return last in READ_BY_KERNELS and (of_mamba or model.config.model_type in MAMBA_BY_ANOTHER_NAME)


def _fused_experts(reached: dict[str, torch.nn.Module]) -> tuple[str, ...]:
    """Paths of tensors (experts, rows, columns) of mixtures of experts."""
    return tuple(
        f"{path}.{name}"
        for path, module in reached.items()
        if "experts" in type(module).__name__.lower()
        for name, weight in module.named_parameters(recurse=False)
        if weight.ndim == 3
    )


def _names(model: PreTrainedModel, layers: dict[str, torch.nn.Module]) -> tuple[str, ...]:
    short = {_last(name) for name in layers}
    head = model.get_output_embeddings()
    alike = {name for name, module in model.named_modules() if _last(name) in short and module is not head}
    return tuple(sorted(short if alike == set(layers) else layers))


def _share(reached: Iterable[torch.nn.Module], adapted: Iterable[torch.nn.Module]) -> float:
    """Weights of matrices of the adapted modules over those of all that a text goes through."""

    def count(modules: Iterable[torch.nn.Module]) -> int:
        weights = (weight for module in modules for weight in module.parameters(recurse=False))
        return sum(weight.numel() for weight in weights if weight.ndim > 1)

    return count(adapted) / max(1, count(reached))
