"""What each benchmark alone can tell, for its card: the agreement report's figures benchmark by benchmark."""

import numpy as np
import pandas as pd

from lm_validity.statistics import models_above_chance
from lm_validity.studies.agreement.analysis import AgreementAnalysis
from lm_validity.studies.agreement.by_benchmark.separation import (
    ceiling_with_others,
    items_needed,
    reliability,
    separated_share,
    smallest_difference,
    tau_with_others,
    typical_difference,
)
from lm_validity.studies.agreement.score_checks import FRACTIONS
from lm_validity.studies.agreement.statistics.ranking import Z_95, PairSigns, pair_signs
from lm_validity.studies.agreement.summary import BenchmarkFigures, DistanceRow, ends
from lm_validity.summaries import Missing, known
from lm_validity.tables.reruns import NOT_MEASURED
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import UNDER, Reason, ReasonCode

# ratios of two models' sizes, and all pairs whatever their sizes
DISTANCES = ((1.0, 1.25), (1.0, 2.0), (1.0, 4.0), (2.0, None), (4.0, None), (1.0, None))
LIKE_SIZE = 2.0
NO_ERRORS = Reason("Fewer than 2 models have a standard error there.", ReasonCode.NO_ERRORS)
FEW = Reason(
    "Fewer than 3 models have the scores and standard errors, or their scores are all equal.", ReasonCode.TOO_FEW
)
NO_INTERVAL = Reason("Without one of the models there is no value, so there is no interval.", ReasonCode.NO_INTERVAL)
NO_CEILING = "There is no noise ceiling over such pairs of models."


def benchmark_figures(analysis: AgreementAnalysis) -> dict[str, dict[str, BenchmarkFigures | Missing]]:
    """By protocol and benchmark; missing where the benchmark has no score under the protocol."""
    return {protocol: _of_protocol(analysis, protocol) for protocol in PROTOCOLS}


def _of_protocol(analysis: AgreementAnalysis, protocol: str) -> dict[str, BenchmarkFigures | Missing]:
    scores, signs = analysis.scores[protocol], analysis.significant[protocol]
    sizes = analysis.matrix.sizes()[0]
    masks = [_within(sizes, *distance) for distance in DISTANCES]
    taus = [tau_with_others(scores, mask) for mask in masks]
    everyone, expected = pair_signs(scores), analysis.ceiling[protocol].expected
    ceilings = [ceiling_with_others(everyone, expected, mask) for mask in masks]
    found: dict[str, BenchmarkFigures | Missing] = {}
    for place, name in enumerate(analysis.tasks):
        if not np.isfinite(scores[:, place]).any():
            found[name] = Missing(f"The benchmark has no score {UNDER[protocol]}.")
            continue
        significant, tested = _squares(signs, place, len(scores))
        rows = []
        for (at_least, at_most), mask, tau, ceiling in zip(DISTANCES, masks, taus, ceilings, strict=True):
            share = separated_share(significant, tested, mask)
            why = Reason(
                "Fewer than 3 models have such pairs with standard errors or items in common.", ReasonCode.TOO_FEW
            )
            separated = known(share.value, why)
            mean = known(tau[place].value, "No other benchmark has a tau with it over such pairs of models.")
            rows.append(
                DistanceRow(
                    at_least,
                    at_most,
                    int(np.triu(tested & mask, 1).sum()),
                    separated,
                    ends(separated, share.interval, why),
                    mean,
                    ends(mean, tau[place].interval, NO_INTERVAL),
                    mean if isinstance(mean, Missing) else known(float(ceiling[place]), NO_CEILING),
                )
            )
        found[name] = _figures(analysis, protocol, place, sizes, rows)
    return found


def _within(sizes: np.ndarray, at_least: float, at_most: float | None) -> np.ndarray:
    """(models, models) pairs whose sizes differ by such a factor; all pairs for 1 to any."""
    if at_least <= 1 and at_most is None:
        return ~np.eye(len(sizes), dtype=bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithm = np.log(np.where(sizes > 0, sizes, np.nan))
        ratio = np.exp(np.abs(logarithm[:, None] - logarithm[None, :]))
    within = ratio > at_least if at_most is None else ratio <= at_most * (1 + 1e-9)
    return within & ~np.eye(len(sizes), dtype=bool)


def _squares(signs: PairSigns, column: int, models: int) -> tuple[np.ndarray, np.ndarray]:
    """(models, models), symmetric: which pairs differ significantly, and of which that is known."""
    significant, tested = np.zeros((2, models, models), dtype=bool)
    for square, values in ((significant, signs.sign), (tested, signs.known)):
        square[signs.first, signs.second] = square[signs.second, signs.first] = values[:, column] != 0
    return significant, tested


def _figures(
    analysis: AgreementAnalysis, protocol: str, place: int, sizes: np.ndarray, by_distance: list[DistanceRow]
) -> BenchmarkFigures:
    """`by_distance` and the figures that need no other benchmark."""
    name = analysis.tasks[place]
    column = analysis.matrix.benchmarks.index(name)
    facts = analysis.matrix.benchmark_facts.iloc[column]
    values, errors = analysis.matrix.value[protocol][:, column], analysis.stderr[protocol][:, place]
    noise, training = analysis.noise[protocol][:, place], analysis.matrix.training.get(protocol, {}).get(name)
    oriented = analysis.scores[protocol][:, place]
    scored = np.isfinite(values)
    counts = analysis.matrix.n_items[protocol][scored, column]
    counts = counts[np.isfinite(counts)]
    items = (
        int(np.median(counts)) if len(counts) else known(_whole(facts["n_items"]), "The number of items is unknown.")
    )
    share = reliability(oriented, noise)
    value = known(share.value, FEW)
    near = _within(sizes, 1.0, LIKE_SIZE)
    difference, _ = typical_difference(oriented, noise, near)
    of_items = typical_difference(oriented, errors, near)[1]
    typical = known(
        difference, Reason("No two models at most 2× apart in size have standard errors there.", ReasonCode.NO_ERRORS)
    )
    return BenchmarkFigures(
        models=int(scored.sum()),
        items=items,
        lowest=float(values[scored].min()),
        highest=float(values[scored].max()),
        models_above_chance=_above_chance(oriented, errors, facts["chance"] * analysis.matrix.direction[column]),
        models_at_best=_at_best(values, errors, facts),
        reliability=value,
        reliability_interval=ends(value, share.interval, NO_INTERVAL),
        training_noise=Missing(NOT_MEASURED) if training is None else training.sd,
        reruns=0 if training is None else training.reruns,
        smallest_difference=known(smallest_difference(noise), NO_ERRORS),
        typical_difference=typical,
        items_needed=_items_needed(items, typical, of_items, 0.0 if training is None else 2 * training.sd**2),
        by_distance=by_distance,
    )


def _whole(number: float | None) -> int | None:
    return int(number) if number is not None and np.isfinite(number) else None


def _above_chance(scores: np.ndarray, errors: np.ndarray, chance: float) -> int | Missing:
    if not np.isfinite(chance):
        return Missing(Reason("The benchmarks sheet names no chance level (column chance).", ReasonCode.NO_CHANCE))
    if not np.isfinite(scores + errors).any():
        return Missing(Reason("There are no standard errors.", ReasonCode.NO_ERRORS))
    return models_above_chance(scores, errors, chance)


def _at_best(values: np.ndarray, errors: np.ndarray, facts: pd.Series) -> int | Missing:
    metric = facts["metric"]
    scored = np.isfinite(values)
    if not isinstance(metric, str) or metric.split(",")[0] not in FRACTIONS or (values[scored] > 1 + 1e-9).any():
        return Missing("The metric is not known to have 1 as its best score.")
    return int((values[scored] + Z_95 * np.nan_to_num(errors[scored]) >= 1).sum())


def _items_needed(items: int | Missing, difference: float | Missing, noise: float, training: float) -> int | Missing:
    if isinstance(items, Missing):
        return items
    if isinstance(difference, Missing):
        return difference
    if difference == 0:
        return Missing("Models of similar size differ by no more than noise, so the number of items needed is unknown.")
    needed = items_needed(items, difference, noise, training)
    if not np.isfinite(needed):
        return Missing("No number of items is enough: training the models again moves their scores more than that.")
    return int(np.ceil(needed))
