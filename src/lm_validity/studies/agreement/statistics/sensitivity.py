"""How far off the scores of missing cells would have to be to change a conclusion."""

from typing import NamedTuple

import numpy as np

from lm_validity.studies.agreement.statistics.agreement import mean_over_pairs
from lm_validity.studies.agreement.statistics.completion import fit_one_factor
from lm_validity.studies.agreement.statistics.missing import finite_mean
from lm_validity.studies.agreement.statistics.ranking import kendall_tau_matrix, pair_signs

SHIFTS = np.arange(-3.0, 3.01, 0.5)  # in standard deviations of a benchmark over its models
DRAWS = 20
MANY_MODELS = 300  # from here on fewer tables are drawn: each averages over more pairs of models


class TippingPoints(NamedTuple):
    """The shifts nearest to 0 at which a figure leaves its bounds; 0 where it is outside there, NaN where nowhere."""

    below: float
    above: float


def shifted_means(
    scores: dict[str, np.ndarray], rng: np.random.Generator, shifts: np.ndarray = SHIFTS, draws: int = DRAWS
) -> dict[str, np.ndarray]:
    """Mean tau-b by protocol (shifts,) with missing cells drawn around what the other scores suggest, and shifted.

    `scores`: by protocol (models, benchmarks), more is better. One factor is fitted to the known cells of all protocols
    together. A missing cell is drawn from its predictive distribution, and `shift` standard deviations of its benchmark
    over the models are added: the pattern-mixture model of Rubin (1977, JASA 72:538), with the delta adjustment of
    Carpenter and Kenward (2013, Multiple Imputation and its Application, ch. 10). Means over `draws` tables, the same
    draws for all shifts. It takes one factor and one shift for all cells; a shift that differs between benchmarks is
    not covered. Benchmarks without two distinct scores stay as they are.
    """
    table = np.hstack(list(scores.values()))
    model = fit_one_factor(table)
    missing = ~np.isfinite(table) & np.isfinite(model.scale)
    draws = max(1, int(draws * min(1.0, (MANY_MODELS / len(table)) ** 2)))
    ends = np.cumsum([part.shape[1] for part in scores.values()])[:-1]
    # what has no missing cell is the same in every table
    whole = [not part.any() for part in np.split(missing, ends, axis=1)]
    means = {
        p: np.full((draws, len(shifts)), _mean_tau(part) if same else np.nan)
        for (p, part), same in zip(scores.items(), whole, strict=True)
    }
    for draw in range(draws):
        ability = model.ability + np.sqrt(model.ability_variance) * rng.standard_normal(len(table))
        own = np.sqrt(model.specific) * rng.standard_normal(table.shape)
        suggested = model.center + model.scale * (model.intercept + np.outer(ability, model.loading) + own)
        for place, shift in enumerate(shifts):
            completed = np.where(missing, suggested + shift * model.scale, table)
            for protocol, part, same in zip(scores, np.split(completed, ends, axis=1), whole, strict=True):
                if not same:
                    means[protocol][draw, place] = _mean_tau(part)
    return {protocol: np.asarray(finite_mean(values, axis=0)) for protocol, values in means.items()}


def _mean_tau(scores: np.ndarray) -> float:
    return mean_over_pairs(kendall_tau_matrix(pair_signs(scores)))


def tipping_points(shifts: np.ndarray, values: np.ndarray, low: float, high: float) -> TippingPoints:
    """Where a figure `values` (shifts,) first leaves [low, high] as `shifts` (ascending, with 0) go down and up from 0.

    Linear between shifts. A tipping point in the sense of Yan, Lee and Li (2009, J. Biopharm. Stat. 19:1085). NaN in
    `values` counts as inside.
    """
    zero = int(np.flatnonzero(shifts == 0)[0])
    down, up = np.arange(zero, -1, -1), np.arange(zero, len(shifts))
    return TippingPoints(*(_first_outside(shifts[way], values[way], low, high) for way in (down, up)))


def _first_outside(shifts: np.ndarray, values: np.ndarray, low: float, high: float) -> float:
    outside = np.flatnonzero((values < low) | (values > high))
    if not len(outside):
        return float("nan")
    place = int(outside[0])
    if place == 0 or not np.isfinite(values[place - 1]):
        return float(shifts[place])
    bound = low if values[place] < low else high
    share = (bound - values[place - 1]) / (values[place] - values[place - 1])
    return float(shifts[place - 1] + share * (shifts[place] - shifts[place - 1]))
