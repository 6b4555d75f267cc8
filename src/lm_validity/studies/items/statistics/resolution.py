"""How finely a benchmark tells models apart: which neighbours in its ranking differ by more than chance."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lm_validity.studies.items.statistics.paired import paired_difference
from lm_validity.summaries import Missing, is_known, number


@dataclass(frozen=True)
class Resolution:
    """Of the models of one benchmark, best first.

    neighbours: pairs of adjacent ranks. resolved: those whose difference has p < .05, each by itself. share:
    resolved / neighbours. minimal_detectable_difference: median over neighbours of what the paired test finds four
    times out of five.
    """

    neighbours: int
    resolved: int
    share: float | Missing
    minimal_detectable_difference: float | Missing


def resolution(correct: np.ndarray, clusters: np.ndarray | None = None) -> Resolution:
    """Resolution of a benchmark from `correct` (models, items), NaN where unknown; `clusters` (items,) or None.

    Models are ordered by their means over their own items; each neighbouring pair is tested on the items that both have
    (see `paired_difference`; its assumptions hold here). Neighbours were chosen because they are close: where all
    models are equal, chance resolves fewer than 5% of them. Neighbours without a common item are left out.
    """
    known = np.isfinite(correct)
    means = np.array([row[has].mean() if has.any() else np.nan for row, has in zip(correct, known, strict=True)])
    order = [int(index) for index in np.argsort(-means, kind="stable") if np.isfinite(means[index])]
    found = []
    for first, second in pairwise(order):
        both = known[first] & known[second]
        if both.any():
            labels = None if clusters is None else clusters[both]
            found.append(paired_difference(correct[first, both], correct[second, both], labels))
    if not found:
        none = Missing("Fewer than two models have answered the same items.")
        return Resolution(0, 0, none, none)
    p = np.array([pair.p for pair in found])
    sizes = [number(pair.smallest_detectable) for pair in found if is_known(pair.smallest_detectable)]
    return Resolution(
        neighbours=len(found),
        resolved=int((p < 0.05).sum()),
        share=float((p < 0.05).mean()),
        minimal_detectable_difference=float(np.median(sizes)) if sizes else Missing("No two neighbours differ."),
    )
