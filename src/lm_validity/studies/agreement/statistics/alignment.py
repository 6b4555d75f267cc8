"""Greedy alignment of two rankings: as alike as significance allows (Train-before-Test, appendix C, algorithm 3)."""

from typing import NamedTuple

import numpy as np

from lm_validity.studies.agreement.statistics.ranking import kendall_tau


class Alignment(NamedTuple):
    """Two orders of the same models (indices, best first) that keep every significant difference of their benchmark.

    `crossings`: model pairs ordered oppositely; `tau`: Kendall's tau of the two orders.
    """

    first: np.ndarray
    second: np.ndarray
    crossings: int
    tau: float


def align_rankings(
    better_first: np.ndarray, better_second: np.ndarray, ranks_first: np.ndarray, ranks_second: np.ndarray
) -> Alignment:
    """Order the models of two benchmarks best first, changing places only among models not significantly different.

    `better_*`: (n, n) True where the row's model is significantly better than the column's; `ranks_*`: (n,)
    plain ranks of the raw scores, 1 = best, ties averaged. Both orders grow from the top. At each step
    every model whose significantly better ones are all placed may come next; of all pairs (a for the first
    order, b for the second) the one that is smallest in

        (place of a in the second order + place of b in the first, n + 1 if not yet placed; a is not b;
         plain rank of a in the second + of b in the first; a; b)

    is placed.
    """
    n = len(ranks_first)
    place_first, place_second = np.full(n, n + 1), np.full(n, n + 1)
    waiting_first, waiting_second = better_first.sum(axis=0), better_second.sum(axis=0)
    order_first, order_second = [], []
    for step in range(1, n + 1):
        a = np.flatnonzero((place_first > n) & (waiting_first == 0))
        b = np.flatnonzero((place_second > n) & (waiting_second == 0))
        # one number for the first three keys: ranks are whole or half; the first smallest has the smallest a, then b
        key = 2 * (place_second[a][:, None] + place_first[b]) + (a[:, None] != b)
        key = key * (4 * n + 1) + 2 * (ranks_second[a][:, None] + ranks_first[b])
        best = int(np.argmin(key))
        chosen_a, chosen_b = int(a[best // b.size]), int(b[best % b.size])
        place_first[chosen_a], place_second[chosen_b] = step, step
        waiting_first = waiting_first - better_first[chosen_a]
        waiting_second = waiting_second - better_second[chosen_b]
        order_first.append(chosen_a)
        order_second.append(chosen_b)
    tau = kendall_tau(-place_first.astype(float), -place_second.astype(float))
    return Alignment(np.array(order_first), np.array(order_second), crossings(place_first, place_second), tau)


def crossings(first: np.ndarray, second: np.ndarray) -> int:
    """Model pairs that two score or place vectors (n,) order oppositely; ties cross nothing."""
    i, j = np.triu_indices(len(first), 1)
    return int((np.sign(first[i] - first[j]) * np.sign(second[i] - second[j]) < 0).sum())


def violations(order: np.ndarray, better: np.ndarray) -> int:
    """Pairs of an order (indices, best first) in which a model stands before one that is significantly better."""
    placed = better[np.ix_(order, order)]
    return int(np.tril(placed, -1).sum())
