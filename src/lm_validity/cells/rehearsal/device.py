"""A GPU that is not there: its memory ledger, and what stands in for kernels, optimizers and files."""

import contextlib
import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
import torch.utils.backend_registration as registration
import transformers.masking_utils as masking
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.fx.node import Argument
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from lm_validity.cells.models.own_adapter import replaced

# ----------------------------------------------------------------------------------------------------------------------
# What a computation does on a device: bytes alive and their peak, kernels launched, reads back to the host, FLOPs.
#
# Every operation of torch passes by, whether the tensors are real or pretended.

aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
KIND, KIND_KEY = "gpu", "PrivateUse1"  # the device as torch is asked for it, and its name among torch's dispatch keys
GPUS = 8
BLOCK = 512  # bytes: the CUDA caching allocator rounds every tensor up to a multiple
# a kernel's result, or its size, that the host waits for
READS = {aten._local_scalar_dense: "item", aten.nonzero: "nonzero", aten.equal: "equal", aten.masked_select: "nonzero"}


class Ledger(TorchDispatchMode):
    """Inside `with Ledger(kind)` everything on devices of this kind ("cpu" for real tensors) is booked.

    live, peak: bytes by device index (None for a CPU), in blocks of 512. launches: kernels by name; one of a group of
    tensors (`foreach`, `fused`) counts once. host_reads: how often the host waited for a value, by name.
    flops: floating-point operations of matrix products by the dtype of their first factor.
    """

    _frozen_by_others = (
        False  # found once: to count a million frozen objects takes longer than to look through the rest
    )

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.live: Counter[int | None] = Counter()
        self.peak: Counter[int | None] = Counter()
        self.launches: Counter[str] = Counter()
        self.host_reads: Counter[str] = Counter()
        self.flops: Counter[torch.dtype] = Counter()
        self._thaw = False  # whether the garbage collector's objects were frozen here, and not by who came before
        self._storages: dict[int, tuple[int | None, int, weakref.ref[torch.UntypedStorage]]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; to make sure of it at every operation takes longer than the ledger

    def __enter__(self) -> Self:
        gc.collect()
        self._thaw = not Ledger._frozen_by_others and gc.get_freeze_count() == 0
        if self._thaw:
            gc.freeze()  # what is there already need not be searched at every collection
        result: Self = super().__enter__()
        return result

    def __exit__(self, *raised: object) -> None:
        if self._thaw:
            gc.unfreeze()
        else:
            Ledger._frozen_by_others = True
        super().__exit__(*raised)

    def restart(self) -> None:
        """Count anew; what is alive stays, and is the new peak."""
        gc.collect()
        self.peak = Counter(self.live)
        for counted in (self.launches, self.host_reads, self.flops):
            counted.clear()

    @property
    def peak_bytes(self) -> int:
        """Peak of the device that has most."""
        return max(self.peak.values(), default=0)

    @property
    def live_bytes(self) -> int:
        """What is alive on the device that has most."""
        return max(self.live.values(), default=0)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Argument, ...] = (),
        kwargs: dict[str, Argument] | None = None,
    ) -> object:
        if func is _DEVICE:  # asked at every turn, and no kernel
            return place_of(args[0])
        kwargs = kwargs or {}
        self._note_read(func, args, kwargs)
        result = func(*args, **kwargs)
        leaves = torch.utils._pytree.arg_tree_leaves(result)
        own_tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and place_of(leaf).type == self.kind]
        if own_tensors and not func.is_view:
            self.launches[func.overloadpacket.__name__] += 1
            operations = flop_registry.get(func.overloadpacket)
            if operations is not None:
                factors = [argument for argument in args if isinstance(argument, torch.Tensor)]
                self.flops[factors[-1].dtype] += operations(*args, **kwargs, out_val=result)
            for tensor in own_tensors:
                self._note_storage(tensor)
        return result

    def _note_read(self, func: OpOverload, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> None:
        first = args[0] if args else None
        if not isinstance(first, torch.Tensor):
            return
        device = place_of(first)
        of_device = device.type == self.kind
        name = READS.get(func.overloadpacket)
        if name is None and self.kind != "cpu":
            if func.overloadpacket is aten._to_copy and str(kwargs.get("device")) == "cpu":
                name = "copy"
            elif func.overloadpacket is aten.copy_ and device.type == "cpu":
                name, of_device = "copy", place_of(args[1]).type == self.kind
            elif func.overloadpacket in (aten.index, aten.index_put, aten.index_put_) and any(
                index is not None and index.dtype == torch.bool for index in args[1]
            ):
                name = "nonzero"
        if of_device and name is not None:
            self.host_reads[name] += 1

    def _note_storage(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        index, size = place_of(tensor).index, -(-storage.nbytes() // BLOCK) * BLOCK
        self._storages[key] = (index, size, weakref.ref(storage, lambda _: self._free(key)))
        self.live[index] += size
        self.peak[index] = max(self.peak[index], self.live[index])

    def _free(self, key: int) -> None:
        index, size, _ = self._storages.pop(key)
        self.live[index] -= size


def place_of(tensor: torch.Tensor) -> torch.device:
    """A tensor's device, without asking torch, for which that is an operation like any other."""
    return getattr(tensor, "fake_device", None) or tensor.device


# ----------------------------------------------------------------------------------------------------------------------
# What torch's fake tensors answer to an operation, asked once for tensors of the same shapes.
#
# torch goes through its meta kernels, most of them in Python, at every operation, and its own cache takes nearly as
# long. Layers are alike, and so are passes: of Llama-3-8B's 53,000 operations fewer than one in ten is new.

_UNDECLARED = (aten._unsafe_view.default,)  # views that do not say so
# an answer by the mode at hand, arguments and keywords
Make = Callable[[FakeTensorMode, tuple[object, ...], dict[str, object]], object]


class _Unknown(Exception):
    """Nothing that can be remembered."""


class Remembered:
    """`mode` answers what is new; the rest is made again from what it answered. All depths and models of a process
    share what is known."""

    _known: ClassVar[dict[tuple[object, ...], Make]] = {}

    def __init__(self, mode: FakeTensorMode, answer: Callable[..., object]):
        self._mode, self._answer = mode, answer

    def __call__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Argument, ...], kwargs: dict[str, Argument]
    ) -> object:
        """The result of one operator of torch, made again where its like was answered before."""
        if func.is_view or func in _UNDECLARED:
            return self._view(func, types, args, kwargs)
        try:
            key = _described(args), _described(tuple(kwargs.items()))
        except _Unknown:
            return self._answer(func, types, args, kwargs)
        if (func, key) in self._known:
            return self._known[func, key](self._mode, args, kwargs)
        result = self._answer(func, types, args, kwargs)
        try:
            # an operation that changes the shape of what it is given is asked every time
            if key == (_described(args), _described(tuple(kwargs.items()))):
                self._known[func, key] = _remade(result, args, kwargs)
        except _Unknown:
            pass
        return result

    def _view(
        self, func: OpOverload, types: Sequence[type], args: tuple[Argument, ...], kwargs: dict[str, Argument]
    ) -> object:
        if kwargs or not isinstance(args[0], FakeTensor):
            return self._answer(func, types, args, kwargs)
        kernel = aten.alias.default if func is aten.detach.default else func  # the one without its pretended device
        with in_kernel_invocation_manager(self._mode):
            seen = kernel(*args)
        # what changes nothing gives the tensor itself
        wrapped = [
            tensor if isinstance(tensor, FakeTensor) else FakeTensor(self._mode, tensor, args[0].fake_device)
            for tensor in ([seen] if isinstance(seen, torch.Tensor) else seen)
        ]
        return wrapped[0] if isinstance(seen, torch.Tensor) else wrapped


def _described(value: object) -> object:
    """What an answer depends on, to be looked up by. Raises _Unknown for what is neither pretended nor a constant."""
    if isinstance(value, FakeTensor):
        return value.shape, value.stride(), value.dtype, value.fake_device
    if isinstance(value, list | tuple):
        return tuple(map(_described, value))
    if isinstance(value, bool | int | float):
        return type(value), value  # 1 and 1.0 are two
    if value is None or isinstance(value, str | torch.dtype | torch.device | torch.layout | torch.memory_format):
        return value
    raise _Unknown


def _remade(result: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Make:
    """How an answer is made again: a new tensor, or one that was given. Raises _Unknown where it shares memory with
    something given."""
    if isinstance(result, list | tuple):
        parts = [_remade(value, args, kwargs) for value in result]
        return lambda mode, args, kwargs: tuple(part(mode, args, kwargs) for part in parts)
    if not isinstance(result, FakeTensor):
        if isinstance(result, torch.Tensor):
            raise _Unknown
        return lambda mode, args, kwargs: result
    arguments: list[tuple[int | str, object]] = [*enumerate(args), *kwargs.items()]
    where = next((where for where, value in arguments if value is result), None)
    if where is not None:
        return lambda mode, args, kwargs: kwargs[where] if isinstance(where, str) else args[where]
    storage = result.untyped_storage()._cdata
    leaves = torch.utils._pytree.arg_tree_leaves(*args, **kwargs)
    if any(leaf.untyped_storage()._cdata == storage for leaf in leaves if isinstance(leaf, torch.Tensor)):
        raise _Unknown
    new = {"size": result.shape, "stride": result.stride(), "dtype": result.dtype, "device": "meta"}
    device = result.fake_device
    return lambda mode, args, kwargs: FakeTensor(mode, torch.empty_strided(**new), device)


# ----------------------------------------------------------------------------------------------------------------------
# What torch and transformers would do on a GPU and cannot do on a pretended one, put in for as long as it is used.

_REAL_ATTENTION = F.scaled_dot_product_attention
_REAL_APPLY = torch.nn.Module._apply
_DRAWING = ("bernoulli_", "normal_", "uniform_")


def _installed(ledger: Ledger) -> contextlib.AbstractContextManager[None]:
    """Inside the block the stand-ins are in place."""

    def packed_sequences(position_ids: torch.Tensor) -> None:
        """Rows here are never several texts behind each other; a GPU would be asked."""
        ledger.host_reads["packed sequences"] += position_ids.device.type == KIND

    def to_list(tensor: torch.Tensor) -> list[object]:
        """One copy to the host, which is a read for each number of a fake tensor."""
        result: list[object] = tensor.cpu().tolist()
        return result

    return replaced(
        (FakeTensor, "tolist", to_list),
        *((torch.Tensor, name, _drawing(name)) for name in _DRAWING),
        (F, "scaled_dot_product_attention", _attention),
        (torch, "Generator", _Generator),
        (torch.nn.Module, "_apply", _apply),
        # a fake tensor counts as tracing, and tracing builds masks that a GPU does not
        (masking, "is_tracing", lambda tensor=None: False),
        (masking, "find_packed_sequence_indices", packed_sequences),
    )


Change = Callable[[torch.Tensor], torch.Tensor]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The kernel that CUDA would take: flash in 16 bits without a mask, memory-efficient with a mask or in float32,
    plain products where one head of keys is broadcast."""
    heads, of_keys = query.shape[1], key.shape[1]
    if query.device.type != KIND or (heads != of_keys and not enable_gqa):
        return _REAL_ATTENTION(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(
            f"Expected attn_mask dtype to be bool or float or to match query dtype, not {attn_mask.dtype}"
        )
    half = query.dtype in (torch.bfloat16, torch.float16)
    if attn_mask is None and half and query.shape[-1] == value.shape[-1] <= 256:
        flash = aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    if heads != of_keys:
        key, value = (tensor.repeat_interleave(heads // of_keys, 1) for tensor in (key, value))
    if attn_mask is not None:
        attn_mask = attn_mask.expand(query.shape[0], heads, query.shape[2], key.shape[2])
    keeps = torch.is_grad_enabled() and query.requires_grad
    efficient = aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, attn_mask, keeps, dropout_p, is_causal, scale=scale)[0]


class _Generator(torch.Generator):
    """torch's, which knows no generator of a pretended device."""

    def __new__(cls, device: object = "cpu") -> Self:
        requested_device = torch.device(device)
        made: Self = super().__new__(cls, device="cpu" if requested_device.type == KIND else requested_device)
        made.asked = requested_device
        return made

    @property
    def device(self) -> torch.device:
        return self.asked


def _drawing(name: str) -> Callable[..., torch.Tensor]:
    """A method that fills a tensor with random numbers. Below it torch knows no more which generator was given, so
    that one of the tensor's own device is left out, and any other is refused."""
    draw = getattr(torch.Tensor, name)

    def drawn(tensor: torch.Tensor, *arguments: object, generator: torch.Generator | None = None) -> torch.Tensor:
        on_fake_device = generator is not None and tensor.device.type == KIND == generator.device.type
        return draw(tensor, *arguments, generator=None if on_fake_device else generator)

    return drawn


def _apply(self: torch.nn.Module, change: Change, recurse: bool = True) -> torch.nn.Module:
    """torch's own puts new contents into a parameter, which a fake one does not allow: a new parameter in its place,
    one for all modules that share it."""

    def pretended(value: torch.Tensor) -> bool:  # or would be
        return isinstance(value, FakeTensor) or isinstance(change(value[:0] if value.dim() else value), FakeTensor)

    modules = list(self.modules()) if recurse else [self]
    if not any(pretended(value) for module in modules for value in module.parameters(recurse=False)):
        return _REAL_APPLY(self, change, recurse)
    made: dict[int, torch.Tensor] = {}

    def changed(value: torch.Tensor) -> torch.Tensor:
        if id(value) not in made:
            with torch.no_grad():
                new = change(value)
            of_parameter = isinstance(value, torch.nn.Parameter) and new is not value
            made[id(value)] = torch.nn.Parameter(new, value.requires_grad) if of_parameter else new
        return made[id(value)]

    for module in modules:
        for table in (module._parameters, module._buffers):
            table.update({name: changed(value) for name, value in table.items() if value is not None})
    return self


# ----------------------------------------------------------------------------------------------------------------------
# A pretended GPU: tensors that have a shape, a type and a device, and no contents.
#
# The host's side is real: tensors on the CPU are computed, and what is read back from the device is zeros. An operation
# of tensors on two devices fails as it would on a GPU. torch's fake tensors do the work; a build without CUDA cannot
# compute gradients on a fake `cuda`, so the device is one of torch's Python backends, called `gpu`.

_INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)


@contextlib.contextmanager
def pretended_gpus() -> Iterator[Ledger]:
    """Inside the block torch has pretended GPUs, `gpu:0` and on; what is done on them is booked."""
    _register()
    ledger = Ledger(KIND)
    # gradients on this thread, which the ledger sees, for any number of devices
    with torch.autograd.set_multithreading_enabled(False), _installed(ledger), _Pretended(), ledger:
        yield ledger


class _Pretended(FakeTensorMode):
    """torch's fake tensors for the pretended device alone."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.cache_enabled = False  # torch's own, which takes longer than what `Remembered` does
        self._remembered = Remembered(self, super().__torch_dispatch__)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in the ledger

    avoid_device_init = property(lambda self: True)  # there is no device to initialise

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Argument, ...] = (),
        kwargs: dict[str, Argument] | None = None,
    ) -> object:
        kwargs = dict(kwargs or {})
        tensors = [
            leaf for leaf in torch.utils._pytree.arg_tree_leaves(*args, **kwargs) if isinstance(leaf, torch.Tensor)
        ]
        device = kwargs.get("device")
        if not any(isinstance(tensor, FakeTensor) for tensor in tensors) and (
            device is None or torch.device(device).type != KIND
        ):
            return func(*args, **kwargs)  # the host's own work
        if func is aten._local_scalar_dense.default:
            return torch.zeros((), dtype=args[0].dtype).item()
        if func is aten.equal.default:
            return True
        if func is aten._to_copy.default and device is not None and torch.device(device).type == "cpu":
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if func is aten.copy_.default and not isinstance(args[0], FakeTensor):
            return args[0].zero_()
        if func is aten.nonzero.default:
            return self._numbers(args[0], _places(args[0]), args[0].dim())
        if func in _INDEXING:
            args = (args[0], self._checked(*args[:2]), *args[2:])
        # fail as a GPU would where random numbers are to come from the host's generator (see `_drawing`)
        if kwargs.pop("generator", None) is not None:
            raise RuntimeError(f"Expected a {KIND!r} device type for generator but found 'cpu'")
        return self._remembered(func, types, args, kwargs)

    def _checked(self, indexed: torch.Tensor, by: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """What a tensor is indexed by; of masks, as many places as they may have."""
        if place_of(indexed).type == "cpu" and any(index is not None and place_of(index).type == KIND for index in by):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        indices: list[torch.Tensor | None] = []
        for index in by:
            if index is None or index.dtype != torch.bool:
                indices.append(index)
            else:
                indices += [self._numbers(index, _places(index)) for _ in range(index.dim())]
        return indices

    def _numbers(self, like: torch.Tensor, *shape: int) -> torch.Tensor:
        with self:
            return torch.zeros(shape, dtype=torch.long, device=place_of(like))


def _places(mask: torch.Tensor) -> int:
    """How many elements of a mask count as set, which nobody can know: of a matrix one in each column, as for the
    tokens of one expert where all choose it; otherwise all."""
    result: int = mask.numel() // (mask.shape[0] if mask.dim() > 1 else 1)
    return result


class _Module(registration._DummyBackendModule):
    """What torch asks of a device's module."""

    def device(self, index: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        return torch.empty(16, dtype=torch.uint8, device="cpu")

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def device_count(self) -> int:
        return GPUS


class _Guard(registration._DummyDeviceGuard):
    def deviceCount(self) -> int:
        return GPUS


@cache
def _register() -> tuple[object, ...]:
    """Make the device known to torch, once a process; what is returned must be kept, torch does not."""
    registrations = _Module(), _Guard(), registration._DummyPrivateUse1Hook()
    registration._setup_privateuseone_for_python_backend(
        KIND, backend_module=registrations[0], device_guard=registrations[1], hook=registrations[2]
    )
    # one kernel each on a CPU and on CUDA; on any other device several, unless it says that it has one of its own
    kernels = torch.library.Library("aten", "IMPL")
    for name in ("silu_backward", "mish_backward"):
        kernels.impl(name, _never_called, KIND_KEY)
    return *registrations, kernels


def _never_called(*arguments: object) -> None:
    """The fake tensors answer before a kernel is asked."""
    raise AssertionError
