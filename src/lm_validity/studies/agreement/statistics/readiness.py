"""The lead of a group of models at equal pretraining compute, and what preparation for the test changes about it.

score = lead * group + f(log10 compute) + error, f piecewise linear with knots (Dominguez-Olmedo, Dorner and Hardt 2024,
arXiv 2407.07890, which asks whether newer models lead only because they were prepared for the test). The lead is
regressed direct, after preparation, and on the difference of both scores: the change, after minus direct.

Models of one family are no independent evidence, so errors are by family. The standard error is that of the jackknife
that leaves out each family in turn (CR3), which families of unequal size do not deceive as they deceive CR1
(MacKinnon, Nielsen and Webb 2023, Journal of Applied Econometrics 38:671). p and interval are the wider of two t tests:
of that error, with a degree of freedom for each family but one; and of CR2 with Bell and McCaffrey's degrees of freedom
(2002, Survey Methodology 28:169), which are few where few families are in the group. Both are symmetric about the
estimate: the interval holds exactly the values that p does not refuse at 5%.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from lm_validity.statistics import LEVEL

LEAST_FAMILIES = 6  # with members in the group or outside; 6 have 32 distinct sets of signs
LEAST_FAMILIES_A_SIDE = 3  # with members in the group, and with members outside
LEAST_BEYOND = 3  # models on either side of a knot: of fewer, the segment's slope is noise


class Effect(NamedTuple):
    """A group's coefficient. `standard_error`: CR3, the jackknife over families, NaN where the coefficient rests on one
    family; `p` (two-sided), `low`, `high` (95%): NaN where there are too few families or no error."""

    value: float
    standard_error: float
    p: float
    low: float
    high: float
    models: int


def knots_within(compute: np.ndarray, knots: Sequence[float]) -> tuple[float, ...]:
    """The knots with at least `LEAST_BEYOND` models of known compute (models,) on either side, in rising order."""
    return tuple(knot for knot in sorted(knots) if min((compute < knot).sum(), (compute > knot).sum()) >= LEAST_BEYOND)


def compute_terms(compute: np.ndarray, knots: Sequence[float]) -> np.ndarray:
    """(models, 2 + knots) a constant, and log10 of compute as one column a segment: a line that bends at each knot.

    The knots are those of `knots_within`; without any the line is straight. NaN where compute is unknown.
    """
    log = np.log10(compute)
    bends = np.log10(knots_within(compute, knots))
    middle = log[np.isfinite(log)].mean() if np.isfinite(log).any() else 0.0  # so that columns are of one size
    return np.column_stack([np.ones_like(log), log - middle, *(np.maximum(log - bend, 0) for bend in bends)])


def group_effect(
    scores: np.ndarray, group: np.ndarray, terms: np.ndarray, families: np.ndarray, *, tested: bool = True
) -> Effect:
    """The coefficient of `group` in a regression of `scores`, with the models' compute held equal.

    scores: (models,) or, for what several benchmarks have in common, (models, benchmarks): each benchmark then has its
    own `terms`, and the group one coefficient (the mean of theirs where no score is missing). group: (models,) 0 or 1.
    terms: (models, terms), as `compute_terms`. families: (models,) whole numbers, on which errors are clustered. Rows
    with a NaN take no part. tested: False for the coefficient alone, without its error.

    NaN where the group is a combination of the terms, as where all models are in it.
    """
    columns = np.reshape(np.asarray(scores, dtype=float), (len(scores), -1))
    is_known = _known(scores, terms)
    # the rows of all benchmarks one below another; of scores and group what the terms leave (Frisch, Waugh and Lovell)
    benchmark, model = np.nonzero(is_known.T)
    width = terms.shape[1]
    regressed = np.zeros((len(model), width * columns.shape[1]))
    for j in range(columns.shape[1]):
        rows = benchmark == j
        regressed[rows, j * width : (j + 1) * width] = terms[model[rows]]
    basis = np.linalg.svd(regressed, full_matrices=False)
    within_basis = basis.U[:, 1e-10 * (basis.S.max(initial=0) or 1) < basis.S]
    side = group[model].astype(float)
    y, d = (values - within_basis @ (within_basis.T @ values) for values in (columns[model, benchmark], side))
    if d @ d <= 1e-10 * max(side @ side, 1):
        return Effect(np.nan, np.nan, np.nan, np.nan, np.nan, 0)
    value, models = float(d @ y / (d @ d)), int(is_known.any(axis=1).sum())
    if not tested:
        return Effect(value, np.nan, np.nan, np.nan, np.nan, models)
    error, tests = _by_family(y - value * d, d, within_basis, families[model])
    reach, p = np.nan, np.nan
    if error > 1e-12 and enough_families(group, families, scores, terms):
        reach = max(stats.t.ppf(1 - LEVEL / 2, freedom) * of_test for of_test, freedom in tests)
        p = max(2 * stats.t.sf(abs(value) / of_test, freedom) for of_test, freedom in tests)
    return Effect(value, error, float(p), value - reach, value + reach, models)


class _ByFamily(NamedTuple):
    """The jackknife's standard error of a coefficient, and (standard error, degrees of freedom) of both tests."""

    error: float
    tests: list[tuple[float, float]]


def _by_family(residual: np.ndarray, d: np.ndarray, fitted_basis: np.ndarray, families: np.ndarray) -> _ByFamily:
    """Of the coefficient of `d`.

    residual, d: (rows,) of the whole regression, and of the group what the terms leave; within: (rows, terms) an
    orthonormal basis of the terms; families: (rows,). A family's residuals e_g are turned into (I - H_gg)^-power e_g,
    H the projection on terms and group: with power 1 the sum is what leaving the family out changes (CR3), with 1/2 it
    is CR2's. A direction that the rows of one family alone decide has no residual; where the coefficient rests on one,
    there is none without that family: NaN and no test.
    """
    basis = np.column_stack([fitted_basis, d / np.sqrt(d @ d)])
    weights = d / (d @ d)
    numbers = np.unique(families)
    left_out, halves, squares = (np.zeros(len(numbers)) for _ in range(3))
    projected = np.zeros((len(numbers), basis.shape[1]))
    for index, family in enumerate(numbers):
        rows = families == family
        eigenvalues, turned = np.linalg.eigh(np.eye(rows.sum()) - basis[rows] @ basis[rows].T)
        free = eigenvalues > 1e-10
        own_weights, errors = turned.T @ weights[rows], turned.T @ residual[rows]
        if np.abs(own_weights[~free]).max(initial=0) > 1e-8 * np.abs(weights).max():
            return _ByFamily(np.nan, [])
        left_out[index] = own_weights[free] @ (errors[free] / eigenvalues[free])
        half = turned[:, free] @ (own_weights[free] / np.sqrt(eigenvalues[free]))
        halves[index], projected[index], squares[index] = half @ residual[rows], basis[rows].T @ half, half @ half
    number = len(numbers)
    if number < 2:
        return _ByFamily(np.nan, [])
    jackknife = float(np.sqrt((number - 1) / number * left_out @ left_out))
    spread = np.diag(squares) - projected @ projected.T  # of the families' parts of CR2, with independent errors
    freedom = float(np.trace(spread) ** 2 / np.square(spread).sum())
    return _ByFamily(jackknife, [(jackknife, number - 1), (float(np.sqrt(halves @ halves)), freedom)])


def _known(scores: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """(models, benchmarks) which scores take part."""
    result: np.ndarray = np.isfinite(np.reshape(scores, (len(scores), -1))) & np.isfinite(terms).all(axis=1)[:, None]
    return result


def enough_families(group: np.ndarray, families: np.ndarray, scores: np.ndarray, terms: np.ndarray) -> bool:
    """Whether there are families enough for an interval, among the models that `group_effect` regresses."""
    is_known = _known(scores, terms).any(axis=1)
    inside, outside = (len(set(families[is_known & (group == side)])) for side in (1, 0))
    return len(set(families[is_known])) >= LEAST_FAMILIES and min(inside, outside) >= LEAST_FAMILIES_A_SIDE


def leads_of_families(scores: np.ndarray, terms: np.ndarray, families: np.ndarray) -> np.ndarray:
    """(families,) the coefficient of each family as a group of its own, in the order of their numbers; scores as in
    `group_effect`. NaN where it has none."""
    return np.array(
        [
            group_effect(scores, families == family, terms, families, tested=False).value
            for family in np.unique(families)
        ]
    )


class OutsideOverlap(NamedTuple):
    """How many models of the group, and of those outside it, have a compute beyond the range of the others'."""

    group: int
    outside: int


def outside_overlap(compute: np.ndarray, group: np.ndarray) -> OutsideOverlap:
    """The models without one of like compute on the other side.

    There the lead rests on the line through the other side's models, not on models of like compute.
    """
    finite = np.isfinite(compute)
    counts = []
    for side in (1, 0):
        own_side, other_side = compute[finite & (group == side)], compute[finite & (group != side)]
        counts.append(
            int(((own_side < other_side.min()) | (own_side > other_side.max())).sum())
            if len(other_side)
            else len(own_side)
        )
    return OutsideOverlap(*counts)
