"""Which texts may share a forward pass: as many as fit into memory, whose positions are encoded alike, and as far as
the values of some of them are those of plain passes over one text at a time."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from transformers import masking_utils

from lm_validity.cells.models.provenance import replaced
from lm_validity.errors import CellError, first_line

# ----------------------------------------------------------------------------------------------------------------------
# GPU memory that runs out where nothing can be made smaller: an error of the cell, so that other cells continue.

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


# ----------------------------------------------------------------------------------------------------------------------
# Position encodings that depend on the longest text of a forward pass.
#
# longrope has a second set of frequencies for texts beyond the length that the model was first made for. Dynamic
# scaling has another set for every length beyond it, and keeps that of the longest text until a short one comes. So
# that a text's numbers do not depend on what else is in its batch, texts share a forward pass only where their
# encoding is the same.


class PositionEncoding:
    """What the encoding of a text of a model depends on beside the positions."""

    def __init__(self, model: torch.nn.Module):
        self._model, self._dynamic = model, False
        self._limit: int | None = None  # the length up to which all texts are alike
        config = model.config.get_text_config()
        parameters = getattr(config, "rope_parameters", None) or {}
        for table in (parameters, *parameters.values()):
            kind = str(table.get("rope_type")) if isinstance(table, dict) else ""
            if kind == "longrope":
                name = "original_max_position_embeddings"
                self._limit = table.get(name) or getattr(config, name, None) or config.max_position_embeddings
            elif "dynamic" in kind:
                self._dynamic, self._limit = True, config.max_position_embeddings

    @property
    def varies(self) -> bool:
        """Whether it depends on the text at all."""
        return self._limit is not None

    def of(self, length: int) -> int:
        """0 for texts up to the length that the model was made for; beyond it 1 (longrope), or the length itself."""
        if self._limit is None or length <= self._limit:
            return 0
        return length if self._dynamic else 1

    @torch.no_grad()
    def forget(self) -> None:
        """Have a dynamic encoding forget the texts before."""
        if not self._dynamic:
            return
        for module in self._model.modules():
            kinds = getattr(module, "rope_type", None)
            by_layer = kinds if isinstance(kinds, dict) else {None: kinds}
            device = next(module.buffers(), torch.zeros(0)).device
            short = torch.zeros(1, 1, dtype=torch.long, device=device)
            for layer_type, kind in by_layer.items():
                if kind and "dynamic" in kind:
                    options = {} if layer_type is None else {"layer_type": layer_type}
                    module(torch.zeros(1, device=device), short, **options)


# ----------------------------------------------------------------------------------------------------------------------
# Reads of the GPU by the host, each of which waits for all work that was launched before.


def never_packed() -> contextlib.AbstractContextManager[None]:
    """Inside the block no row without a mask holds several texts, which transformers otherwise looks up on the GPU in
    every forward pass."""
    return replaced((masking_utils, "find_packed_sequence_indices", lambda position_ids: None))


# ----------------------------------------------------------------------------------------------------------------------
# What a model is asked in a way that saves time is held against plain passes over one text at a time.
#
# A few of the very requests of a cell are looked at: those in which a fault would show, as far as they exceed in size
# what was looked at before, for at most `CHECK_SHARE` of the tokens. A way that differs is not used again.

CHECK_SHARE = 0.02  # of the tokens that are computed, checked again by plain passes
# Largest difference from a plain pass a token: rounding in float32; elsewhere another order of sums at 8 bits
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
HALF_TOLERANCE = 0.1


def tolerance(dtype: torch.dtype, largest: float) -> float:
    """Largest difference a token, where the largest logit is of this size. At 16 bits at least a step between
    neighbouring numbers of the logits' size: GPT-2's are about -65, where bfloat16 moves by half a nat."""
    if dtype in TOLERANCE:
        return TOLERANCE[dtype]
    step = torch.finfo(dtype).eps * 2.0 ** np.floor(np.log2(max(largest, 1.0)))
    return max(HALF_TOLERANCE, float(step))


def allowed_difference(tokens: int, expected: float, one_token: float) -> float:
    """Largest difference of a sum over so many tokens, in nats."""
    return one_token * tokens * max(1.0, abs(expected) / 100)


class Telling(NamedTuple):
    """A request that a fault would show in: what it is the extreme of, how much, which it is, and its tokens."""

    kind: str
    size: int
    number: int
    tokens: int


class SelfCheck:
    """What was checked of a model: by way and kind of size, the largest."""

    def __init__(self) -> None:
        self._checked: dict[tuple[str, str], int] = {}

    def exceeds(self, way: str, kind: str, size: int) -> bool:
        """Whether nothing as large was checked before; from now on it was."""
        larger = size > self._checked.get((way, kind), 0)
        if larger:
            self._checked[way, kind] = size
        return larger

    def holds(self, way: str, telling: Iterable[Telling], tokens: int, is_plain: Callable[[int, int], bool]) -> bool:
        """Whether those of the requests that were chosen have the value of a plain pass (`is_plain`: number, tokens).

        tokens: of all requests, of which the check costs no more than its share; one request at least, of a way's
        first requests two.
        """
        fewest = 1 if any(checked == way for checked, _ in self._checked) else 2
        values: dict[int, bool] = {}
        spent = 0
        for kind, size, number, length in telling:
            if size <= self._checked.get((way, kind), 0):
                continue
            if number not in values:
                if spent + length > CHECK_SHARE * tokens and len(values) >= fewest:
                    continue
                spent += length
                values[number] = is_plain(number, length)
            self._checked[way, kind] = size
        return all(values.values())

    def forget(self, way: str | None = None) -> None:
        """Check this way, or all, again when it is used next."""
        self._checked = {key: size for key, size in self._checked.items() if way not in (None, key[0])}
