"""Random choices, as controls and to keep a benchmark within the competition's size rule."""

import hashlib
from dataclasses import dataclass, field

import numpy as np

from lm_validity.errors import InputError
from lm_validity.studies.signal.filters.base import Candidates

MINIMUM_ITEMS = 100  # size rule of the early-training competition
MAXIMUM_ITEMS = 15_000


def _draw_order(doc_ids: np.ndarray, seed: int) -> np.ndarray:
    """Items in an order that depends on their ids and the seed only, not on the order of the table."""
    keys = [hashlib.sha256(f"{seed}\0{doc_id}".encode()).digest() for doc_id in doc_ids]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.intp)


@dataclass(frozen=True)
class RandomSubset:
    """Keeps a random choice: the control of the same size that every other filter has to beat."""

    count: int
    seed: int = 0
    name: str = field(default="random_subset", init=False)
    fitted: bool = field(default=False, init=False)

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True for `count` items, drawn by hashes of seed and id, so that the order of the items does not matter.
        Raises InputError unless `count` is from 1 to the number of items."""
        size = len(candidates.doc_ids)
        if not 0 < self.count <= size:
            raise InputError(f"filter {self.name!r}: {self.count} of {size} items.", f"write 1 to {size}.")
        kept = np.zeros(size, dtype=bool)
        kept[_draw_order(candidates.doc_ids, self.seed)[: self.count]] = True
        return kept


@dataclass(frozen=True)
class SizeRule:
    """The competition's rule: at least 100 items (else an error), at most 15,000 (else a deterministic
    choice)."""

    minimum: int = MINIMUM_ITEMS
    maximum: int = MAXIMUM_ITEMS
    seed: int = 0
    name: str = field(default="size_rule", init=False)
    fitted: bool = field(default=False, init=False)

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True for all items, or for `maximum` random ones where there are more (`RandomSubset`). Raises InputError for
        fewer than `minimum`."""
        size = len(candidates.doc_ids)
        if size < self.minimum:
            raise InputError(
                f"filter {self.name!r}: {size} items are left, at least {self.minimum} are asked for.",
                "filter less, or set the rule's minimum.",
            )
        if size <= self.maximum:
            return np.ones(size, dtype=bool)
        return RandomSubset(self.maximum, self.seed).keep(candidates)
