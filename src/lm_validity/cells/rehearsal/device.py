"""A pretended GPU: tensors that have a shape, a type and a device, and no contents.

The host's side is real: tensors on the CPU are computed, and what is read back from the device is zeros. An operation
of tensors on two devices fails as it would on a GPU. torch's fake tensors do the work; a build without CUDA cannot
compute gradients on a fake `cuda`, so the device is one of torch's Python backends, called `gpu`.
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
import torch.utils.backend_registration as registration
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from lm_validity.cells.rehearsal.ledger import Ledger, place_of
from lm_validity.cells.rehearsal.remembered import Remembered
from lm_validity.cells.rehearsal.stand_ins import installed

aten = torch.ops.aten
KIND, KIND_KEY = "gpu", "PrivateUse1"  # as torch is asked for it, and its name among torch's dispatch keys
GPUS = 8
_INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)


@contextlib.contextmanager
def pretended_gpus() -> Iterator[Ledger]:
    """Inside the block torch has pretended GPUs, `gpu:0` and on; what is done on them is booked."""
    _register()
    ledger = Ledger(KIND)
    # gradients on this thread, which the ledger sees, for any number of devices
    with torch.autograd.set_multithreading_enabled(False), installed(KIND, ledger), _Pretended(), ledger:
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
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [one for one in torch.utils._pytree.arg_tree_leaves(*args, **kwargs) if isinstance(one, torch.Tensor)]
        wanted = kwargs.get("device")
        if not any(isinstance(one, FakeTensor) for one in tensors) and (
            wanted is None or torch.device(wanted).type != KIND
        ):
            return func(*args, **kwargs)  # the host's own work
        if func is aten._local_scalar_dense.default:
            return torch.zeros((), dtype=args[0].dtype).item()
        if func is aten.equal.default:
            return True
        if func is aten._to_copy.default and wanted is not None and torch.device(wanted).type == "cpu":
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if func is aten.copy_.default and not isinstance(args[0], FakeTensor):
            return args[0].zero_()
        if func is aten.nonzero.default:
            return self._numbers(args[0], _places(args[0]), args[0].dim())
        if func in _INDEXING:
            args = (args[0], self._checked(*args[:2]), *args[2:])
        _check_generator(kwargs)
        return self._remembered(func, types, args, kwargs)

    def _checked(self, indexed: torch.Tensor, by: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """What a tensor is indexed by; of masks, as many places as they may have."""
        if place_of(indexed).type == "cpu" and any(one is not None and place_of(one).type == KIND for one in by):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        found: list[torch.Tensor | None] = []
        for one in by:
            if one is None or one.dtype != torch.bool:
                found.append(one)
            else:
                found += [self._numbers(one, _places(one)) for _ in range(one.dim())]
        return found

    def _numbers(self, like: torch.Tensor, *shape: int) -> torch.Tensor:
        with self:
            return torch.zeros(shape, dtype=torch.long, device=place_of(like))


def _places(mask: torch.Tensor) -> int:
    """How many elements of a mask count as set, which nobody can know: of a matrix one in each column, as for the
    tokens of one expert where all choose it; otherwise all."""
    return mask.numel() // (mask.shape[0] if mask.dim() > 1 else 1)


def _check_generator(kwargs: dict[str, Any]) -> None:
    """Fail as a GPU would where random numbers are to come from the host's generator (see `stand_ins`)."""
    if kwargs.pop("generator", None) is not None:
        raise RuntimeError(f"Expected a {KIND!r} device type for generator but found 'cpu'")


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

    def set_device(self, index: object) -> None:
        pass

    def synchronize(self, device: object = None) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def device_count(self) -> int:
        return GPUS


class _Guard(registration._DummyDeviceGuard):
    def device_count(self) -> int:
        return GPUS

    def deviceCount(self) -> int:
        return GPUS


@cache
def _register() -> tuple[object, ...]:
    """Make the device known to torch, once a process; what is returned must be kept, torch does not."""
    kept = _Module(), _Guard(), registration._DummyPrivateUse1Hook()
    registration._setup_privateuseone_for_python_backend(
        KIND, backend_module=kept[0], device_guard=kept[1], hook=kept[2]
    )
    # one kernel each on a CPU and on CUDA; on any other device several, unless it says that it has one of its own
    kernels = torch.library.Library("aten", "IMPL")
    for name in ("silu_backward", "mish_backward"):
        kernels.impl(name, _never_called, KIND_KEY)
    return *kept, kernels


def _never_called(*arguments: object) -> None:
    """The fake tensors answer before a kernel is asked."""
    raise AssertionError
