"""LoRA adapters: which layers get them, and low-rank layers."""

import contextlib
import functools
import hashlib
import json
import math
import re
import struct
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora.layer import ParamWrapper
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from safetensors.torch import save
from torch import Tensor
from torch.autograd.function import FunctionCtx
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lm_validity.cells.models.loading import names_as_given
from lm_validity.config.sections import Adapter, OneFinetune
from lm_validity.errors import CellError, first_line
from lm_validity.files import replace_file, write_text

# ----------------------------------------------------------------------------------------------------------------------
# Which weights of a model get an adapter: linear layers that a text goes through, and experts that are one tensor.

# query, key and value projections as transformers' architectures name them, alone or fused
ATTENTION_PROJECTIONS = frozenset(
    ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "c_attn", "Wqkv", "in_proj", "query", "key", "value")
)
# of a state-space mixer, whose fused kernels read these weights without calling the layer: an adapter would be ignored
READ_BY_KERNELS = ("out_proj", "x_proj", "dt_proj")
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
MAMBA_BY_ANOTHER_NAME = ("falcon_h1", "nemotron_h")  # where PEFT refuses them as well


class Adaptable(Protocol):
    """What an adapter is put on, `LanguageModel` for one. base: the model whose layers get adapters; it is changed in
    place. model_id: the name that adapters carry and that errors give."""

    base: PreTrainedModel
    model_id: str


class Targets(NamedTuple):
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
    reached = {
        name: module
        for name, module in everything.items()
        if isinstance(module, torch.nn.Linear | Conv1D) and not _gets_none(lm.base, name, module)
    }
    architecture: str = lm.base.config.model_type
    experts: tuple[str, ...] = ()
    names: Collection[str]
    if rule == "all-linear":
        names, experts = {_last(name) for name in reached}, _fused_experts(everything)
    elif rule == "attention":
        names = ATTENTION_PROJECTIONS
    else:
        suffixes = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(architecture, [])
        names = set(suffixes if isinstance(suffixes, list) else [])
    layers = {name: module for name, module in reached.items() if _last(name) in names}
    if not layers and not experts:
        problem = f"{lm.model_id}: no layers for adapters under target_modules {rule!r} ({architecture!r})."
        raise CellError(problem, "use target_modules all-linear, or leave the model out of the agreement study.")
    adapted = {*layers.values(), *(everything[name.rpartition(".")[0]] for name in experts)}
    share = _matrix_weights(adapted) / max(1, _matrix_weights(everything.values()))
    short, head = {_last(name) for name in layers}, lm.base.get_output_embeddings()
    alike = {name for name, module in lm.base.named_modules() if _last(name) in short and module is not head}
    return Targets(layers, experts, tuple(sorted(short if alike == set(layers) else layers)), share)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _pattern(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def _reached(model: PreTrainedModel) -> dict[str, torch.nn.Module]:
    """Path -> module with matrices of its own, of those that a text goes through: found by trying. Of modules that
    differ in their number only, all are, since a short text meets few experts. The embeddings and the output head are
    left out, and what returns no tensor (routers that are linear layers) or one of another shape than a matrix gives
    (layers by group)."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    weighty = {
        name: module
        for name, module in model.named_modules()
        if module not in ends and any(weight.ndim > 1 for weight in module.parameters(recurse=False))
    }
    met: set[str] = set()

    def note(name: str, module: torch.nn.Module, inputs: tuple[object, ...], output: object) -> None:
        """Note the module, unless it is a linear layer that returned another shape than one matrix makes."""
        rows = inputs[0] if inputs and isinstance(module, torch.nn.Linear) else None
        shape = (*rows.shape[:-1], module.out_features) if isinstance(rows, Tensor) else None
        if isinstance(output, Tensor) and shape in (None, tuple(output.shape)):
            met.add(_pattern(name))

    handles = [module.register_forward_hook(functools.partial(note, name)) for name, module in weighty.items()]
    vocabulary = model.config.get_text_config().vocab_size
    try:
        with torch.no_grad():
            model(input_ids=torch.arange(5, 37, device=model.device)[None] % vocabulary, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return {name: module for name, module in weighty.items() if _pattern(name) in met}


def _gets_none(model: PreTrainedModel, name: str, layer: torch.nn.Module) -> bool:
    """Whether a layer is a router, whose outputs are one an expert, or one gate, and whose path says so; or one of a
    state-space mixer that is read past an adapter."""
    config, (parent, _, last) = model.config.get_text_config(), name.rpartition(".")
    of_mamba = "mamba" in type(model.get_submodule(parent)).__name__.lower()
    if last in READ_BY_KERNELS and (of_mamba or model.config.model_type in MAMBA_BY_ANOTHER_NAME):
        return True
    counts = {getattr(config, key, None) for key in EXPERT_COUNTS} - {None}
    outputs = layer.nf if isinstance(layer, Conv1D) else layer.out_features
    named = any("gate" in part or "router" in part for part in name.split(".")[-2:])
    return bool(counts) and named and outputs in {1, *(count for count in counts if isinstance(count, int))}


def _fused_experts(reached: dict[str, torch.nn.Module]) -> tuple[str, ...]:
    """Paths of tensors (experts, rows, columns) of mixtures of experts."""
    return tuple(
        f"{path}.{name}"
        for path, module in reached.items()
        if "experts" in type(module).__name__.lower()
        for name, weight in module.named_parameters(recurse=False)
        if weight.ndim == 3
    )


def _matrix_weights(modules: Iterable[torch.nn.Module]) -> int:
    weights = (weight for module in modules for weight in module.parameters(recurse=False))
    return sum(weight.numel() for weight in weights if weight.ndim > 1)


# ----------------------------------------------------------------------------------------------------------------------
# What an adapter adds to a layer: dropout that any micro-batch reproduces, and little kept for the backward pass.

DEFAULT_ADAPTER = "default"  # the name PEFT gives to the first
KEPT = 2**23  # elements (bytes) of a block's masks that a GPU keeps for the rest of the step
SMALL = 2**20  # elements of a layer's mask that a CPU keeps as numbers for the backward pass


class CannotStack(Exception):
    """The model mixes the rows of a batch (experts): its rates must be trained one after another."""


@dataclass
class Block:
    """Layers of one block of a model, whose masks a GPU draws in one launch: small models wait for launches.

    features: of each layer's input, by its number. masks: those at hand, (rows, tokens, features) of bool, all of
    `moment`. parts: on a CPU, of each layer's small mask the micro-batch and its part in float32.
    """

    features: dict[int, int] = field(default_factory=dict)
    moment: tuple[int, ...] = ()
    masks: dict[int, Tensor] = field(default_factory=dict)
    parts: dict[int, tuple[tuple[int, ...], Tensor]] = field(default_factory=dict)


@dataclass
class BatchPosition:
    """Where in training a forward pass stands; the dropout masks are a function of it and of nothing else.

    rows, width: documents of the effective batch and tokens of its longest;
    start, count, length: first row, rows and tokens of the micro-batch.
    adapters: those in training. Several: the micro-batch is there once for each, one copy behind another.
    """

    seed: int
    step: int = 0
    rows: int = 0
    width: int = 0
    start: int = 0
    count: int = 0
    length: int = 0
    training: bool = False
    adapters: Sequence[str] = (DEFAULT_ADAPTER,)
    _generators: dict[torch.device, torch.Generator] = field(default_factory=dict)
    _large: Block | None = None  # the one block whose masks are there although they are large
    _constants: dict[tuple[float, torch.device], Tensor] = field(default_factory=dict)

    def generator(self, device: torch.device, layer: int) -> torch.Generator:
        """A generator seeded from (seed, step, layer)."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device)
        packed = struct.pack("<qqq", self.seed, self.step, layer)
        number = int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")
        return self._generators[device].manual_seed(number)

    def rest(self) -> None:
        """A step is over: nothing is dropped until the next, and no large mask waits for it."""
        self.training = False
        self.hold_large(None)

    def hold_large(self, block: Block | None) -> None:
        """Let go of the masks of the large block before: a GPU has no memory to spare for those of all."""
        if self._large is not None and self._large is not block:
            self._large.masks = {}
        self._large = block

    def constant(self, value: float, device: torch.device) -> Tensor:
        """(1,) in float32: a kernel that is given it computes in float32, whatever the other tensors are."""
        if (value, device) not in self._constants:
            self._constants[value, device] = torch.tensor([value], device=device)
        return self._constants[value, device]


class BatchDropout(torch.nn.Module):
    """Dropout of a LoRA layer whose mask belongs to the effective batch.

    The mask is drawn for all rows of the effective batch from (seed, step, layer), and a micro-batch takes its rows of
    it; a GPU draws the masks of a whole block from (seed, step, its first layer). So neither the size of the
    micro-batch, nor a retry, a resume, a validation in between or gradient checkpointing changes what is dropped, and
    no global random state is read. Only layers that see routed tokens (experts) draw by micro-batch.
    """

    def __init__(self, probability: float, position: BatchPosition, layer: int, block: Block):
        super().__init__()
        self.probability, self.position, self.layer, self.block = probability, position, layer, block

    def forward(self, x: Tensor) -> Tensor:
        """x with some of its elements zero and the others scaled."""
        if not self._drops():
            return x
        mask = self._mask(x)
        numbers = mask if mask.dtype == torch.bool else mask.to(x.dtype)
        return (x.reshape(-1, *mask.shape) * numbers * (1 / (1 - self.probability))).reshape(x.shape)

    def dropped(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """`forward` of x in float32, given in a dtype: in one kernel, and without a derivative."""
        if not self._drops():
            return x.to(dtype)
        mask, zero = self._mask(x), self.position.constant(0.0, x.device)
        copies = x.reshape(-1, *mask.shape)
        out = torch.empty(copies.shape, dtype=dtype, device=x.device)
        torch.addcmul(zero, copies, mask, value=1 / (1 - self.probability), out=out)
        return out.reshape(x.shape)

    def _drops(self) -> bool:
        return self.position.training and self.probability > 0

    def _mask(self, x: Tensor) -> Tensor:
        """What is kept of each copy in x (bool, or 0 and 1): one mask for all of them."""
        position, features = self.position, x.shape[-1]
        if x.numel() == len(position.adapters) * position.count * position.length * features:
            return self._batch_mask(features, x.device)
        return self._draw(self.layer, x.shape, x.device)

    def _batch_mask(self, features: int, device: torch.device) -> Tensor:
        """What the micro-batch keeps: (rows, tokens, features), bool, or 0 and 1."""
        position, block = self.position, self.block
        moment = (position.step, position.rows, position.width)
        micro_batch = (*moment, position.start, position.count, position.length)
        if self.layer in block.parts and block.parts[self.layer][0] == micro_batch:
            return block.parts[self.layer][1]
        if block.moment != moment:
            block.moment, block.masks = moment, {}
        if self.layer not in block.masks:
            # on a CPU launches cost little, and numbers stay what they were
            members = {self.layer: features} if device.type == "cpu" else block.features
            sizes = [position.rows * position.width * per_token for per_token in members.values()]
            if device.type != "cpu" and sum(sizes) > KEPT:
                position.hold_large(block)
            drawn = self._draw(min(members), (sum(sizes),), device).split(sizes)
            for (layer, member), mask in zip(members.items(), drawn, strict=True):
                block.masks[layer] = mask.view(position.rows, position.width, member)
        part = block.masks[self.layer][position.start : position.start + position.count, : position.length]
        if device.type == "cpu" and part.numel() <= SMALL:
            part = part.float()  # once, instead of in each kernel that is given it
            block.parts[self.layer] = (micro_batch, part)
        return part

    def _draw(self, layer: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
        mask = torch.empty(shape, dtype=torch.bool, device=device)
        return mask.bernoulli_(1 - self.probability, generator=self.position.generator(device, layer))


def adapted_forward(layer: torch.nn.Module, position: BatchPosition, x: Tensor) -> Tensor:
    """A LoRA layer in training: base(x) + scaling * B A dropout(x), or with B_k A_k for copy k of the micro-batch.

    PEFT's own forward for one adapter, to the bit, but for what it keeps and launches (see `_LowRank`). Raises
    CannotStack where there are copies and the layer sees the tokens in another order (experts).
    """
    result = layer.base_layer(x)
    first, *further_adapters = position.adapters
    down, up = layer.lora_A[first].weight, layer.lora_B[first].weight
    if further_adapters:
        if x.numel() != len(position.adapters) * position.count * position.length * x.shape[-1]:
            raise CannotStack
        down = torch.stack([layer.lora_A[name].weight for name in position.adapters])  # (K, rank, inputs)
        up = torch.stack([layer.lora_B[name].weight for name in position.adapters])  # (K, outputs, rank)
    return _LowRank.apply(result, x, down, up, layer.scaling[first], layer.lora_dropout[first])


class _LowRank(torch.autograd.Function):
    """result + scaling * B A dropout(x), for which autograd would keep dropout(x) and its mask: in bfloat16 training
    four bytes and one an element and layer. Here x alone is kept, which is there anyway; the backward pass draws the
    mask again. Changes of dtype, masks and factors go into one kernel each: a small model's step waits for launches.

    result: (..., outputs). x: (..., inputs). down: (rank, inputs), up: (outputs, rank), both float32, or each with K in
    front, for K copies in x.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, result: Tensor, x: Tensor, down: Tensor, up: Tensor, scaling: float, dropout: BatchDropout
    ) -> Tensor:
        """`result` with the adapter's change of it added, in the shape of `result`."""
        inner = _rows(dropout.dropped(x, down.dtype), down) @ down.mT
        ctx.save_for_backward(x, down, up, inner)
        ctx.scaling, ctx.dropout = scaling, dropout
        change = (inner @ up.mT).reshape(result.shape)
        unit = dropout.position.constant(1.0, x.device)
        return torch.addcmul(result, change, unit, value=scaling, out=torch.empty_like(result))

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of `result`, `x`, `down` and `up`; the other inputs have none."""
        x, down, up, inner = ctx.saved_tensors
        dropout = ctx.dropout
        of_change = _rows(gradient * dropout.position.constant(ctx.scaling, x.device), up)  # float32
        of_inner = of_change @ up
        of_up = of_change.mT @ inner
        of_down = of_inner.mT @ _rows(dropout.dropped(x, down.dtype), down)
        of_x = dropout.dropped((of_inner @ down).reshape(x.shape), x.dtype) if ctx.needs_input_grad[1] else None
        return gradient, of_x, of_down, of_up, None, None


def _rows(x: Tensor, weight: Tensor) -> Tensor:
    """x as (tokens, features), or (K, tokens, features) where the weight has K in front."""
    return x.reshape(*weight.shape[:-2], -1, x.shape[-1])


# ----------------------------------------------------------------------------------------------------------------------
# LoRA adapters: which layers get one, how they are put on and taken off, and PEFT's files with stable bytes.

# PEFT asks transformers by a name that is going out of use; nothing for the user to act on
warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)


def add_adapter(
    lm: Adaptable, shape: Adapter | OneFinetune, rule: str, position: BatchPosition, also: Sequence[str] = ()
) -> PeftModel:
    """Put fresh adapters on the base model, seeded by `position.seed`; their weights are float32.

    rule: which layers get one, see `find_targets`.
    also: names of further adapters, equal to the first in everything, dropout masks included.
    The base model is changed in place until `PeftModel.unload` gives it back as it was.
    """
    targets = find_targets(lm, rule)
    if targets.experts and also:
        raise CannotStack
    head = lm.base.get_output_embeddings()
    heads = [name for name, module in lm.base.named_modules() if module is head]
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=shape.rank,
        lora_alpha=shape.alpha,
        # PEFT folds an expert's adapter into its weight, where nothing can be dropped; the layers' own comes below
        lora_dropout=0.0 if targets.experts else shape.dropout,
        target_modules=list(targets.names),
        target_parameters=list(targets.experts) or None,
        # PEFT takes a short name wherever it ends a path, the output head's included
        exclude_modules=[name for name in heads if _last(name) in targets.names] or None,
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in targets.layers.values()),
    )
    try:
        with names_as_given():
            model = get_peft_model(lm.base, config)
            for name in also:
                model.add_adapter(name, config)
    except Exception as error:  # whatever PEFT says about an architecture, in the middle of its work
        _take_off(lm.base)
        problem = f"{lm.model_id}: PEFT cannot adapt it under target_modules {rule!r} ({first_line(error)})."
        hint = "try target_modules attention, or leave the model out of the agreement study (column studies)."
        raise CellError(problem, hint) from error
    config.base_model_name_or_path = lm.model_id  # PEFT put the folder's path there
    generator = torch.Generator().manual_seed(position.seed)
    blocks: dict[str, Block] = {}
    for number, (path, module) in enumerate(adapted_layers(model).items()):
        numbered = re.match(r".*\.\d+(?=\.)", path)  # layers of one block share all up to the last number
        block = blocks.setdefault(numbered[0] if numbered else path, Block())
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


def adapter_parameters(model: PeftModel, adapter: str) -> dict[str, torch.nn.Parameter]:
    """Trainable weights of one adapter under the names that the first one has."""
    part = f".{adapter}."
    return {
        name.replace(part, f".{DEFAULT_ADAPTER}."): value
        for name, value in model.named_parameters()
        if value.requires_grad and part in name
    }


def _take_off(base: PreTrainedModel) -> None:
    """Put the layers back that PEFT replaced before it gave up."""
    for name, module in list(base.named_modules()):
        if isinstance(module, BaseTunerLayer) and ".base_layer" not in name:
            parent, _, last = name.rpartition(".")
            setattr(base.get_submodule(parent), last, module.get_base_layer())


def adapter_tensors(model: PeftModel, adapter: str = DEFAULT_ADAPTER) -> dict[str, Tensor]:
    """A copy of an adapter's weights on the CPU under PEFT's names."""
    # left to itself, PEFT asks the hub whether the vocabulary was resized
    state = get_peft_model_state_dict(model, adapter_name=adapter, save_embedding_layers=False)
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in sorted(state.items())}


def save_adapter(model: PeftModel, tensors: dict[str, Tensor], folder: Path) -> str:
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
        with names_as_given():
            model = PeftModel.from_pretrained(lm.base, str(folder), is_trainable=False)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        hint = "compute the fine-tune that makes it again."
        raise CellError(f"{folder}: not an adapter of {lm.model_id} ({first_line(error)}).", hint) from error
    model.eval()
    try:
        yield
    finally:
        model.unload()
