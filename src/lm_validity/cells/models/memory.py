"""GPU memory that runs out where nothing can be made smaller: an error of the cell, so that other cells continue."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from lm_validity.errors import CellError, first_line

MORE_MEMORY = "give its size class a GPU with more memory, or more of them (`gpu`)"


# what CUDA's own allocations say, which torch raises as errors of another kind
_WORDS = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
T = TypeVar("T")


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a GPU's memory ran out: that of torch, or that of a library beside it."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _WORDS)


def in_batches(items: Sequence[T], size: int, compute: Callable[[Sequence[T]], None]) -> None:
    """Compute the items in order, at most `size` at a time, and half as many from where memory runs out."""
    start = 0
    while start < len(items):
        fits = True
        try:
            compute(items[start : start + size])
        except RuntimeError as error:
            if size == 1 or not is_out_of_memory(error):
                raise
            fits = False
        if fits:
            start += size
        else:  # outside `except`, whose traceback holds the tensors that did not fit
            size //= 2
            torch.cuda.empty_cache()


@contextlib.contextmanager
def must_fit(name: str, doing: str, hint: str) -> Iterator[None]:
    """Inside the block torch's out-of-memory error becomes a CellError: retries of the same size would fail as well.

    name: the model's. doing: what did not fit, as in "one text of 2048 tokens to score". hint: what to change.
    """
    failed = None
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        failed = CellError(f"{name}: out of memory with {doing} ({first_line(error)[:160]}).", hint)
    if failed is not None:  # outside `except`, whose traceback holds the tensors that did not fit
        torch.cuda.empty_cache()
        raise failed
