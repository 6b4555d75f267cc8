"""Length of the gold answer: strata, and whether a filter is a filter of lengths in disguise."""

from dataclasses import dataclass, field

import numpy as np
from scipy.stats import spearmanr

from lm_validity.errors import InputError
from lm_validity.studies.signal.filters.base import Candidates
from lm_validity.tables.item_arrays import BenchmarkItems


def answer_lengths(answers: BenchmarkItems) -> np.ndarray:
    """Length (items,) of each gold answer: in tokens of the first model, else in characters."""
    lengths = answers.models[0].tokens if answers.models[0].tokens is not None else answers.characters
    if lengths is None or answers.gold is None:
        raise InputError(
            f"benchmark {answers.benchmark!r}: lengths of the choices are unknown.",
            "evaluate with choice_tokens or choice_characters kept.",
        )
    return lengths[np.arange(len(lengths)), answers.gold]


def length_strata(lengths: np.ndarray, strata: int) -> np.ndarray:
    """Group (items,) of each item, 0 = shortest, by quantiles of the lengths; equal lengths share a group.

    Few distinct lengths give fewer groups than asked for.
    """
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, strata + 1)[1:-1]))
    groups = np.searchsorted(edges, lengths, side="left")
    return np.unique(groups, return_inverse=True)[1]


def length_dependence(kept: np.ndarray, lengths: np.ndarray) -> float:
    """Spearman correlation of being kept with the answer's length; NaN where either does not vary."""
    if np.ptp(kept.astype(float)) == 0 or np.ptp(lengths) == 0:
        return float("nan")
    return float(spearmanr(kept.astype(float), lengths).statistic)


@dataclass(frozen=True)
class LengthRange:
    """Keeps items whose gold answer has at least `minimum` and at most `maximum` tokens (or characters)."""

    minimum: float = 0.0
    maximum: float = float("inf")
    name: str = field(default="length_range", init=False)
    fitted: bool = field(default=False, init=False)

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True where the gold answer's length is within both bounds, bounds included. Raises InputError where lengths
        are unknown."""
        lengths = answer_lengths(candidates.need_answers(self.name))
        return (lengths >= self.minimum) & (lengths <= self.maximum)
