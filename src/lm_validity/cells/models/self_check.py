"""What a model is asked in a way that saves time is held against plain passes over one text at a time.

A few of the very requests of a cell are looked at: those in which a fault would show, as far as they exceed in size
what was looked at before, for at most `CHECK_SHARE` of the tokens. A way that differs is not used again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

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


def extremes(lengths: Sequence[int], batch: int) -> Iterator[Telling]:
    """Of texts that are computed in batches by length: the longest, and the one with most padding."""
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    longest = order[-1]
    yield Telling("length", lengths[longest], longest, lengths[longest])
    batches = [order[start : start + batch] for start in range(0, len(order), batch)]
    members = max(batches, key=lambda members: lengths[members[-1]] - lengths[members[0]])
    yield Telling("padding", 1 + lengths[members[-1]] - lengths[members[0]], members[0], lengths[members[0]])


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
