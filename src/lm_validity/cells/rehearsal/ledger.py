"""What a computation does on a device: bytes alive and their peak, kernels launched, reads back to the host, FLOPs.

Every operation of torch passes by, whether the tensors are real or pretended (`device.py`).
"""

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
BLOCK = 512  # bytes: the CUDA caching allocator rounds every tensor up to a multiple
# a kernel's result, or its size, that the host waits for
READS = {aten._local_scalar_dense: "item", aten.nonzero: "nonzero", aten.equal: "equal", aten.masked_select: "nonzero"}


class Counts(NamedTuple):
    """Kernels launched, and how often the host waited for the device."""

    launches: int
    host_reads: int


class Ledger(TorchDispatchMode):
    """Inside `with Ledger(kind)` everything on devices of this kind ("cpu" for real tensors) is booked.

    live, peak: bytes by device index (None for a CPU), in blocks of 512. launches: kernels by name; one of a group of
    tensors (`foreach`, `fused`) counts once. host_reads: how often the host waited for a value, by name.
    flops: floating-point operations of matrix products by the dtype of their first factor.
    """

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.live: Counter[int | None] = Counter()
        self.peak: Counter[int | None] = Counter()
        self.launches: Counter[str] = Counter()
        self.host_reads: Counter[str] = Counter()
        self.flops: Counter[torch.dtype] = Counter()
        self._storages: dict[int, tuple[int | None, int, weakref.ref[torch.UntypedStorage]]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; to make sure of it at every operation takes longer than the ledger

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()  # what is there already need not be searched at every collection
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        gc.unfreeze()
        super().__exit__(*raised)

    def restart(self) -> None:
        """Count anew; what is alive stays, and is the new peak."""
        gc.collect()
        self.peak = Counter(self.live)
        for counted in (self.launches, self.host_reads, self.flops):
            counted.clear()

    def count(self, work: Callable[[], object]) -> Counts:
        """Do some work and count it."""
        self.restart()
        work()
        return Counts(self.launches.total(), self.host_reads.total())

    @property
    def peak_bytes(self) -> int:
        """Peak of the device that has most."""
        return max(self.peak.values(), default=0)

    @property
    def live_bytes(self) -> int:
        """What is alive on the device that has most."""
        return max(self.live.values(), default=0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE:  # asked at every turn, and no kernel
            return place_of(args[0])
        kwargs = kwargs or {}
        self._note_read(func, args, kwargs)
        result = func(*args, **kwargs)
        here = [tensor for tensor in _tensors(result) if place_of(tensor).type == self.kind]
        if here and not func.is_view:
            self.launches[func.overloadpacket.__name__] += 1
            self._note_operations(func, args, kwargs, result)
            for tensor in here:
                self._note_storage(tensor)
        return result

    def _note_read(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = args[0] if args else None
        if not isinstance(first, torch.Tensor):
            return
        place = place_of(first)
        of_device = place.type == self.kind
        name = READS.get(func.overloadpacket)
        if name is None and self.kind != "cpu":
            if func.overloadpacket is aten._to_copy and str(kwargs.get("device")) == "cpu":
                name = "copy"
            elif func.overloadpacket is aten.copy_ and place.type == "cpu":
                name, of_device = "copy", place_of(args[1]).type == self.kind
            elif func.overloadpacket in (aten.index, aten.index_put, aten.index_put_) and any(
                one is not None and one.dtype == torch.bool for one in args[1]
            ):
                name = "nonzero"
        if of_device and name is not None:
            self.host_reads[name] += 1

    def _note_operations(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            factors = [one for one in args if isinstance(one, torch.Tensor)]
            self.flops[factors[-1].dtype] += count(*args, **kwargs, out_val=result)

    def _note_storage(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        index, size = place_of(tensor).index, -(-storage.nbytes() // BLOCK) * BLOCK
        self._storages[key] = (index, size, weakref.ref(storage, self._freeing(key)))
        self.live[index] += size
        self.peak[index] = max(self.peak[index], self.live[index])

    def _freeing(self, key: int) -> Callable[[object], None]:
        return lambda _: self._free(key)

    def _free(self, key: int) -> None:
        index, size, _ = self._storages.pop(key)
        self.live[index] -= size


def place_of(tensor: torch.Tensor) -> torch.device:
    """A tensor's device, without asking torch, for which that is an operation like any other."""
    return getattr(tensor, "fake_device", None) or tensor.device


def _tensors(result: object) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, list | tuple):
        for one in result:
            yield from _tensors(one)
