"""What torch's fake tensors answer to an operation, asked once for tensors of the same shapes.

torch goes through its meta kernels, most of them in Python, at every operation, and its own cache takes nearly as long.
Layers are alike, and so are passes: of Llama-3-8B's 53,000 operations fewer than one in ten is new.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

aten = torch.ops.aten
_UNDECLARED = (aten._unsafe_view.default,)  # views that do not say so


class _New(NamedTuple):
    """A tensor with a storage of its own."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class _Given(NamedTuple):
    """A tensor that was given: the name of an argument, or its place."""

    where: str | int


class _Unknown(Exception):
    """Nothing that can be remembered."""


class Remembered:
    """`mode` answers what is new; the rest is made again from what it answered. All depths and models of a process
    share what is known."""

    _known: ClassVar[dict[tuple[object, ...], Any]] = {}

    def __init__(self, mode: FakeTensorMode, answer: Callable[..., object]):
        self._mode, self._answer = mode, answer

    def __call__(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """The result of one operator of torch, made again where its like was answered before."""
        if func.is_view or func in _UNDECLARED:
            return self._view(func, types, args, kwargs)
        try:
            key = _described(args), _described(tuple(kwargs.items()))
        except _Unknown:
            return self._answer(func, types, args, kwargs)
        if (func, key) in self._known:
            return self._made(self._known[func, key], args, kwargs)
        result = self._answer(func, types, args, kwargs)
        try:
            # an operation that changes the shape of what it is given is asked every time
            if key == (_described(args), _described(tuple(kwargs.items()))):
                self._known[func, key] = _noted(result, args, kwargs)
        except _Unknown:
            pass
        return result

    def _view(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if kwargs or not isinstance(args[0], FakeTensor):
            return self._answer(func, types, args, kwargs)
        kernel = aten.alias.default if func is aten.detach.default else func  # the one without its pretended device
        with in_kernel_invocation_manager(self._mode):
            seen = kernel(*args)
        # what changes nothing gives the tensor itself
        wrapped = [
            one if isinstance(one, FakeTensor) else FakeTensor(self._mode, one, args[0].fake_device)
            for one in ([seen] if isinstance(seen, torch.Tensor) else seen)
        ]
        return wrapped[0] if isinstance(seen, torch.Tensor) else wrapped

    def _made(self, noted: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if isinstance(noted, _New):
            empty = torch.empty_strided(noted.shape, noted.stride, dtype=noted.dtype, device="meta")
            return FakeTensor(self._mode, empty, noted.device)
        if isinstance(noted, _Given):
            return kwargs[noted.where] if isinstance(noted.where, str) else args[noted.where]
        if isinstance(noted, tuple):
            return tuple(self._made(one, args, kwargs) for one in noted)
        return noted


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


def _noted(result: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """How an answer is made again. Raises _Unknown where it shares memory with something given."""
    if isinstance(result, list | tuple):
        return tuple(_noted(one, args, kwargs) for one in result)
    if not isinstance(result, FakeTensor):
        if isinstance(result, torch.Tensor):
            raise _Unknown
        return result
    given: list[tuple[int | str, object]] = [*enumerate(args), *kwargs.items()]
    for where, one in given:
        if one is result:
            return _Given(where)
    storage = result.untyped_storage()._cdata
    if any(
        one.untyped_storage()._cdata == storage
        for one in torch.utils._pytree.arg_tree_leaves(*args, **kwargs)
        if isinstance(one, torch.Tensor)
    ):
        raise _Unknown
    return _New(result.shape, result.stride(), result.dtype, result.fake_device)
