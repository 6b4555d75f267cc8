"""The lead of a group of models at equal pretraining compute, and what preparation for the test changes about it.

score = lead * group + f(log10 compute) + error, f piecewise linear with knots (Dominguez-Olmedo, Dorner and Hardt 2024,
arXiv 2407.07890, which asks whether newer models lead only because they were prepared for the test). The lead is
regressed direct, after preparation, and on the difference of both scores: the change, after minus direct.

Models of one family are no independent evidence, so errors are by family. The standard error is CR1. For p and
interval there are Student's t with a degree of freedom for each family but one, and a restricted wild cluster bootstrap
(Cameron, Gelbach and Miller 2008, Review of Economics and Statistics 90:414); the wider of both counts. Where few
families are in the group, t alone is too sure of itself (MacKinnon and Webb 2017, Journal of Applied Econometrics
32:233).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from lm_validity.statistics import LEVEL

LEAST_FAMILIES = 6  # with members in the group or outside; 6 have 32 distinct sets of signs
LEAST_FAMILIES_A_SIDE = 3  # with members in the group, and with members outside
LEAST_BEYOND = 3  # models on either side of a knot: of fewer, the segment's slope is noise
_ENUMERATED = 13  # families up to which all sets of signs are used
_DRAWS = 9999
_FARTHEST = 50  # standard errors from the estimate at which an end of the interval is given up


class Effect(NamedTuple):
    """A group's coefficient. `standard_error`: CR1 by family; `p` (two-sided), `low`, `high` (95%): NaN where there are
    too few families, the ends also where the bootstrap bounds no interval."""

    value: float
    standard_error: float
    p: float
    low: float
    high: float
    models: int


class Excess(NamedTuple):
    """(models,) how far each score lies above what the other models predict for it, with the 95% prediction interval
    of that difference. NaN where unknown."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


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
    scores: np.ndarray, group: np.ndarray, terms: np.ndarray, families: np.ndarray, rng: np.random.Generator | None
) -> Effect:
    """The coefficient of `group` in a regression of `scores`, with the models' compute held equal.

    scores: (models,) or, for what several benchmarks have in common, (models, benchmarks): each benchmark then has its
    own `terms`, and the group one coefficient (the mean of theirs where no score is missing). group: (models,) 0 or 1.
    terms: (models, terms), as `compute_terms`. families: (models,) whole numbers, on which errors are clustered. Rows
    with a NaN take no part. rng: of the bootstrap's signs where there are more than 13 families; None: no bootstrap.

    NaN where the group is a combination of the terms, as where all models are in it.
    """
    columns = np.reshape(np.asarray(scores, dtype=float), (len(scores), -1))
    known = _known(scores, terms)
    # the rows of all benchmarks one below another; of scores and group what the terms leave (Frisch, Waugh and Lovell)
    benchmark, model = np.nonzero(known.T)
    width = terms.shape[1]
    regressed = np.zeros((len(model), width * columns.shape[1]))
    for j in range(columns.shape[1]):
        rows = benchmark == j
        regressed[rows, j * width : (j + 1) * width] = terms[model[rows]]
    basis = np.linalg.svd(regressed, full_matrices=False)
    within = basis.U[:, 1e-10 * (basis.S.max(initial=0) or 1) < basis.S]
    side = group[model].astype(float)
    y, d = (values - within @ (within.T @ values) for values in (columns[model, benchmark], side))
    if d @ d <= 1e-10 * max(side @ side, 1):
        return Effect(np.nan, np.nan, np.nan, np.nan, np.nan, 0)
    clusters = (np.unique(families[model])[:, None] == families[model]).astype(float)
    models = int(known.any(axis=1).sum())
    bread = float(d @ d)
    value = float(d @ y) / bread
    sums = clusters @ (d * (y - value * d))
    rank = within.shape[1] + 1
    number = len(clusters)
    if number < 2 or len(y) <= rank:
        return Effect(value, np.nan, np.nan, np.nan, np.nan, models)
    correction = number / (number - 1) * (len(y) - 1) / (len(y) - rank)
    error = float(np.sqrt(correction * sums @ sums)) / bread
    if rng is None or error < 1e-12 or not enough_families(group, families, scores, terms):
        return Effect(value, error, np.nan, np.nan, np.nan, models)
    bootstrap, student = _WildBootstrap(y, d, within, clusters, rng), stats.t(number - 1)
    reach = student.ppf(1 - LEVEL / 2) * error
    # the wider of both: at six families the bootstrap alone refuses a true value in up to 6% of cases
    low, high = min(bootstrap.end(value, -error), value - reach), max(bootstrap.end(value, error), value + reach)
    if not np.isfinite(high - low):
        low = high = np.nan
    return Effect(value, error, max(bootstrap.p(0.0), float(2 * student.sf(abs(value) / error))), low, high, models)


def _known(scores: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """(models, benchmarks) which scores take part."""
    return np.isfinite(np.reshape(scores, (len(scores), -1))) & np.isfinite(terms).all(axis=1)[:, None]


def enough_families(group: np.ndarray, families: np.ndarray, scores: np.ndarray, terms: np.ndarray) -> bool:
    """Whether there are families enough for an interval, among the models that `group_effect` regresses."""
    known = _known(scores, terms).any(axis=1)
    inside, outside = (len(set(families[known & (group == side)])) for side in (1, 0))
    return len(set(families[known])) >= LEAST_FAMILIES and min(inside, outside) >= LEAST_FAMILIES_A_SIDE


class _WildBootstrap:
    """p of the hypothesis that the coefficient is `x`: the share of sets of signs whose |t| is at least the sample's.

    The sets of -1 and 1, a sign for each family, are all of them but for a common sign, which changes no |t|, or draws;
    the first is all 1, the sample itself. The residuals under the hypothesis are y - x d, linear in x. So are the
    coefficient of a set of signs and the families' sums behind its error, which are therefore computed once for y and
    once for d.
    """

    def __init__(
        self, y: np.ndarray, d: np.ndarray, within: np.ndarray, clusters: np.ndarray, rng: np.random.Generator
    ) -> None:
        number = len(clusters)
        if number <= _ENUMERATED:
            sets = np.arange(2 ** (number - 1))
            self._signs = np.where(sets >> np.arange(number)[:, None] & 1, -1.0, 1.0)
        else:
            self._signs = np.column_stack([np.ones(number), rng.choice((-1.0, 1.0), size=(number, _DRAWS))])
        weighted = clusters * d
        self._parts = []
        for values in (y, d):
            sums = weighted @ values
            # (families, families): what the turned residuals of one family add to the sum of another
            matrix = np.diag(sums) - (weighted @ within) @ ((clusters * values) @ within).T
            self._parts.append((sums, matrix - np.outer(weighted @ d, sums) / (d @ d)))

    def p(self, x: float) -> float:
        """In (0, 1]: the sample itself is one of the sets."""
        sums, matrix = (of_y - x * of_d for of_y, of_d in zip(*self._parts, strict=True))
        errors = np.sqrt(np.square(matrix @ self._signs).sum(axis=0))
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.abs(sums @ self._signs) / errors
        return float(np.mean(t[~np.isnan(t)] >= t[0] * (1 - 1e-9)))

    def end(self, value: float, step: float) -> float:
        """The farthest value in the direction of `step` that is not refused at 5%; infinite where that is far off."""
        steps = 1.0
        while self.p(value + steps * step) > LEVEL:
            steps *= 2
            if steps > _FARTHEST:
                return float(np.copysign(np.inf, step))
        return float(
            optimize.bisect(lambda x: self.p(value + x * step) - LEVEL, steps / 2 if steps > 1 else 0, steps) * step
            + value
        )


def leads_of_families(scores: np.ndarray, terms: np.ndarray, families: np.ndarray) -> np.ndarray:
    """(families,) the coefficient of each family as a group of its own, in the order of their numbers; scores as in
    `group_effect`. NaN where it has none."""
    return np.array(
        [group_effect(scores, families == family, terms, families, None).value for family in np.unique(families)]
    )


def without_families(scores: np.ndarray, group: np.ndarray, terms: np.ndarray, families: np.ndarray) -> np.ndarray:
    """(families,) the group's coefficient without each family in turn, in the order of their numbers; as
    `group_effect`."""
    kept = (families != family for family in np.unique(families))
    return np.array([group_effect(scores[k], group[k], terms[k], families[k], None).value for k in kept])


def outside_overlap(compute: np.ndarray, group: np.ndarray) -> tuple[int, int]:
    """(in the group, outside it) how many models have a compute beyond the range of the others' computes.

    There the lead rests on the line through the other side's models, not on models of like compute.
    """
    known = np.isfinite(compute)
    counts = []
    for side in (1, 0):
        own, others = compute[known & (group == side)], compute[known & (group != side)]
        counts.append(int(((own < others.min()) | (own > others.max())).sum()) if len(others) else len(own))
    return counts[0], counts[1]


def excess_over_prediction(scores: np.ndarray, prepared: np.ndarray, terms: np.ndarray) -> Excess:
    """How far the direct `scores` (models,) lie above what compute and the `prepared` scores (models,) predict.

    Each model is predicted by a regression over the others on `terms` (models, terms) and the prepared score: the
    deleted residual e / (1 - h), with standard error s / sqrt(1 - h), s without the model, and Student's t (Cook and
    Weisberg 1982, Residuals and Influence in Regression, section 2.2). A model like the others lies within its
    interval of zero in 95% of cases; families count as no clusters. NaN where unknown or where fewer than three
    models are left over.
    """
    known = np.isfinite(scores) & np.isfinite(prepared) & np.isfinite(terms).all(axis=1)
    empty = np.full(len(scores), np.nan)
    excess = Excess(empty, empty.copy(), empty.copy())
    design = np.column_stack([terms[known], prepared[known] - np.mean(prepared[known])]) if known.any() else terms[:0]
    basis = np.linalg.svd(design, full_matrices=False)
    columns = basis.U[:, 1e-10 * basis.S.max(initial=0) < basis.S]
    freedom = len(design) - columns.shape[1] - 1
    if freedom < 2:
        return excess
    residual = scores[known] - columns @ (columns.T @ scores[known])
    left = 1 - np.square(columns).sum(axis=1)
    left = np.where(left > 1e-10, left, np.nan)  # a model that alone decides a term is predicted by no other
    variance = np.maximum(residual @ residual - residual**2 / left, 0) / freedom
    reach = stats.t.ppf(1 - LEVEL / 2, freedom) * np.sqrt(variance / left)
    for values, of_known in zip(
        excess, (residual / left, residual / left - reach, residual / left + reach), strict=True
    ):
        values[known] = of_known
    return excess
