"""Ranks by the first factor: of which models, where direct ones mislead, and missing cells predicted by it."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lm_validity.config.groups import KNOTS
from lm_validity.missing import Missing, Reason, ReasonCode, as_columns, known
from lm_validity.results.summary import page_only
from lm_validity.statistics import LEVEL, Interval
from lm_validity.studies.agreement.factors.components import FactorData, by_model, range_at, simulations
from lm_validity.studies.agreement.intervals import Range, Value
from lm_validity.studies.agreement.statistics.factors import (
    LEAST_UNITS,
    RankDraws,
    best_by_budget,
    rank_intervals,
    ranks_over_benchmarks,
)
from lm_validity.studies.agreement.statistics.one_factor import (
    FEWEST_TO_DETERMINE,
    OneFactorModel,
    ability_ranks,
    check_held_out,
    fit_one_factor,
    second_factor,
)
from lm_validity.studies.agreement.statistics.readiness import compute_terms, excess_over_prediction
from lm_validity.studies.agreement.statistics.resampling import (
    cluster_multiplicities,
    cluster_numbers,
    hull,
    share_in_top,
)
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import UNDER, listing

NORMAL_95 = 1.959964
SECOND_FACTOR_LEVEL = 0.05
ALWAYS_FITS = Reason("One factor always fits fewer than four benchmarks, or leaves nothing.", ReasonCode.TOO_FEW)
UNDETERMINED = Missing(Reason("Two benchmarks do not say how much of each is the ability.", ReasonCode.TOO_FEW))
NO_RANK_INTERVAL = (
    f"There are fewer than {LEAST_UNITS} benchmarks, or the model has one of them, or most resamples give the "
    "model no rank: they contain none of its benchmarks, or fewer than two on which models differ."
)
NO_CATEGORIES = f"The benchmarks sheet names fewer than {LEAST_UNITS} categories, or no category with two benchmarks."
NO_EXCESS = Reason(
    "The model's compute or one of its scores is not known, or too few models are left to predict it.",
    ReasonCode.TOO_FEW,
)


# ----------------------------------------------------------------------------------------------------------------------
# Ranks of the models.


@dataclass(frozen=True)
class ModelRank:
    """A model's rank on the first component, 1 = best, with intervals over benchmarks, over their categories, and the
    one that holds for whichever model comes first (`rank_intervals`); and the share of resamples, of categories where
    there are some, in which it is among the first 1, 3 or 10."""

    rank: Value
    interval_population_of_benchmarks: Range
    interval_population_of_categories: Range
    interval_by_pairs: Range
    share_in_top: dict[str, Value]


RanksOfModels = dict[str, ModelRank]


@dataclass(frozen=True)
class BestModel:
    """The best model of at most so many parameters, the share of resamples in which it is, and its rivals."""

    parameters_b: float
    model: str
    probability_best: Value
    rivals: list[str]


@dataclass(frozen=True)
class DirectExcess:
    """How far a model's direct score lies above what the other models predict."""

    value: Value
    interval: Range


def ranks_of_models(data: FactorData, drawn: dict[str, RankDraws]) -> dict[str, RanksOfModels]:
    """By protocol the ranks of the models; `drawn`: ranks over benchmarks, none without resampling."""
    categories = _category_ranks(data) if drawn else {}
    return {p: _ranks(data, p, entry, categories.get(p)) for p, entry in drawn.items()}


def best_models(data: FactorData, drawn: dict[str, RankDraws]) -> dict[str, list[BestModel]]:
    """By protocol the best model of each budget of parameters, from the smallest budget on."""
    names, sizes = data.matrix.models, data.matrix.model_facts["parameters_b"].to_numpy(float)
    return {
        p: [
            BestModel(
                parameters_b=choice.parameters_b,
                model=names[choice.model],
                probability_best=known(choice.probability_best, "No resample ranks a model of that size."),
                rivals=[names[i] for i in choice.rivals],
            )
            for choice in best_by_budget(ranks, sizes)
        ]
        for p, ranks in drawn.items()
    }


def main_protocol(ranks: dict[str, RanksOfModels]) -> str:
    """The protocol whose ranks are the potential: train before test where it has any."""
    return TRAINED if TRAINED in ranks else DIRECT


def drawn_ranks(data: FactorData) -> dict[str, RankDraws]:
    """By protocol the ranks over benchmarks; nothing without resampling."""
    if data.no_intervals is not None:
        return {}
    return {p: ranks_over_benchmarks(data.scores[p], data.benchmark_weights) for p in data.matrix.protocols}


def _category_ranks(data: FactorData) -> dict[str, RankDraws]:
    """Ranks when whole categories are resampled; a benchmark of unknown category is one of its own."""
    clusters = cluster_numbers(np.array(data.categories, dtype=object))
    units = int(clusters.max()) + 1
    if units < LEAST_UNITS or units == len(clusters):
        return {}
    weights = cluster_multiplicities(clusters, data.resamples, np.random.default_rng(4))
    return {p: ranks_over_benchmarks(data.scores[p], weights, units) for p in data.matrix.protocols}


def _ranks(data: FactorData, protocol: str, drawn: RankDraws, categories: RankDraws | None) -> RanksOfModels:
    clusters = cluster_numbers(np.array(data.categories, dtype=object))
    over_benchmarks, by_pairs = drawn.interval(), rank_intervals(data.scores[protocol], clusters)
    # few categories vary less in resamples than in truth: never shorter than over benchmarks one by one
    over_categories = None if categories is None else hull(categories.interval(), over_benchmarks)
    tops = {str(first): share_in_top((categories or drawn).draws, first) for first in (1, 3, 10)}
    ranks: RanksOfModels = {}
    for i, (model, score) in enumerate(by_model(data, protocol).items()):
        if isinstance(score, Missing):
            ranks[model] = ModelRank(score, score, score, score, dict.fromkeys(tops, score))
            continue
        ranks[model] = ModelRank(
            rank=float(drawn.rank[i]),
            interval_population_of_benchmarks=range_at(over_benchmarks, i, NO_RANK_INTERVAL),
            interval_population_of_categories=Missing(NO_CATEGORIES)
            if over_categories is None
            else range_at(over_categories, i, NO_RANK_INTERVAL),
            interval_by_pairs=range_at(by_pairs, i, NO_RANK_INTERVAL),
            share_in_top={first: known(float(share[i]), NO_RANK_INTERVAL) for first, share in tops.items()},
        )
    return ranks


def rank_notes(data: FactorData, drawn: dict[str, RankDraws]) -> list[str]:
    """What weakens intervals that are given."""
    labels, notes = np.array(data.matrix.labels, dtype=object), []
    for protocol, ranks in drawn.items():
        defined = np.isfinite(ranks.draws).mean(axis=0)
        part = np.isfinite(ranks.rank) & np.isfinite(ranks.interval().low) & (defined < 1)
        if part.any():
            notes.append(
                f"{UNDER[protocol].capitalize()}, intervals of ranks over benchmarks leave out resamples that give a "
                "model no rank, since they contain none of its benchmarks, or fewer than two on which models differ: "
                f"{listing(labels[part])}."
            )
    return notes


# ----------------------------------------------------------------------------------------------------------------------
# Where direct ranks mislead.


def direct_excess(data: FactorData) -> dict[str, DirectExcess]:
    """By model, how far its direct score lies above what the other models predict from its compute and its score under
    train before test; means over the benchmarks whose scores are fractions, of the models known on all of them in both
    ways."""
    matrix = data.matrix
    fractions = matrix.fractions & np.logical_and.reduce([np.isfinite(matrix.value[p]).any(axis=0) for p in PROTOCOLS])
    if not fractions.any():
        return {}
    direct, trained = (matrix.oriented(p)[:, fractions].mean(axis=1) for p in PROTOCOLS)
    excess = excess_over_prediction(direct, trained, compute_terms(data.compute, KNOTS))
    if not np.isfinite(excess.value).any():
        return {}
    return {
        model: DirectExcess(known(value, NO_EXCESS), Missing(NO_EXCESS) if np.isnan(value) else Interval(low, high))
        for model, value, low, high in zip(matrix.models, *(map(float, part) for part in excess), strict=True)
    }


def rank_gaps(data: FactorData, excess: dict[str, DirectExcess], drawn: dict[str, RankDraws]) -> pd.DataFrame | None:
    """Direct rank minus rank under train before test, by model, the largest gap first: positive where a model is better
    than its direct rank says. Over the cells known under both protocols; None without any or without resampling.

    `drawn`: ranks over all cells; `excess`: of `direct_excess`.
    """
    if not drawn or not data.in_both.any():
        return None
    if not data.whole:
        drawn = {p: ranks_over_benchmarks(data.common[p], data.benchmark_weights) for p in PROTOCOLS}
    gap = drawn[DIRECT].minus(drawn[TRAINED])
    ranks = {"direct_rank": drawn[DIRECT].rank, "tuned_rank": drawn[TRAINED].rank, "gap": gap.rank}
    frame = pd.DataFrame({**data.model_columns, **ranks, **gap.interval()._asdict()})
    if excess:
        ends = pd.DataFrame([as_columns(entry.interval, "excess_low", "excess_high") for entry in excess.values()])
        frame = frame.assign(excess=[entry.value for entry in excess.values()]).join(ends)
    return frame.reindex(frame["gap"].abs().sort_values(ascending=False, kind="stable").index).reset_index(drop=True)


def beyond_interval(gaps: pd.DataFrame) -> pd.DataFrame:
    """The rows whose gap is surely not 0, the largest gap first."""
    return gaps[(gaps["low"] > 0) | (gaps["high"] < 0)]


def by_chance(models: int) -> str:
    """How many of so many models lie beyond a 95% interval where none does truly."""
    return f"about {round(LEVEL * models, 1):g} would by chance"


# ----------------------------------------------------------------------------------------------------------------------
# Missing cells.


@dataclass(frozen=True)
class HeldOut:
    """How well one factor predicts held-out cells, as `statistics.one_factor.HeldOutCheck` has it."""

    mean_absolute_error: Value
    baseline_error: Value
    coverage: Value
    multiplier: Value
    cells: int | Missing
    level: Value
    error_in_sd: Value
    baseline_in_sd: Value


@dataclass(frozen=True)
class Completion:
    """Of a protocol: its missing cells, how well held-out ones are predicted, the p of a second factor, and by model
    the ends of its rank's interval.

    `predictions`: a row for each missing cell. `ranks`: (3, models) the ends of the intervals and the medians between.
    """

    missing_cells: int
    held_out: HeldOut
    second_factor_p: Value
    rank_interval: dict[str, list[float]] | Missing
    predictions: list[dict[str, object]] = page_only()
    ranks: np.ndarray = page_only()


def completion(data: FactorData) -> dict[str, Completion]:
    """By protocol its missing cells predicted by one factor, and how good that is."""
    by_protocol = {}
    no_check = Reason("There are too few scores to hold any out.", ReasonCode.TOO_FEW)
    for p in data.matrix.protocols:
        scores, missing = data.scores[p], int((~np.isfinite(data.scores[p])).sum())
        rng = simulations("completion")  # each protocol by the same draws: equal scores have equal numbers
        model, check = fit_one_factor(scores), check_held_out(scores, rng)
        # a complete table's ranks are of the abilities behind it; a few cells' must also pay for the model's errors
        widening = max(1.0, check.multiplier / NORMAL_95) if missing else 1.0
        ranks = np.quantile(ability_ranks(model, rng, widening=widening), [0.025, 0.5, 0.975], axis=0)
        second, determined = second_factor(scores, np.random.default_rng(0)), _determines(model)
        by_protocol[p] = Completion(
            missing_cells=missing,
            held_out=HeldOut(**{name: known(value, no_check) for name, value in vars(check).items()}),
            second_factor_p=known(second, ALWAYS_FITS),
            rank_interval=UNDETERMINED
            if not determined
            else Missing("These ranks take one factor for granted, and residuals show a second one.")
            if second <= SECOND_FACTOR_LEVEL
            else dict(zip(data.matrix.models, ranks[[0, 2]].T.tolist(), strict=True)),
            predictions=_predictions(data, p, model, check.multiplier) if missing else [],
            ranks=ranks,
        )
    return by_protocol


def _determines(model: OneFactorModel) -> bool:
    """Whether there are benchmarks enough to say how much of each is the ability: of two only the product is known,
    which is all that a prediction of one from the other needs."""
    return bool(np.isfinite(model.loading).sum() >= FEWEST_TO_DETERMINE)


def _predictions(data: FactorData, protocol: str, model: OneFactorModel, multiplier: float) -> list[dict[str, object]]:
    """Missing cells with prediction, interval in the metric's units, and what running them would tell."""
    direction, (mean, deviation) = data.matrix.direction[~data.matrix.is_corpus], model.predict()
    reach, gain = multiplier * deviation, 1 - model.variance_after() / model.ability_variance[:, None]
    gain = np.where(_determines(model), gain, np.nan)
    ends = np.sort([direction * (mean - reach), direction * (mean + reach)], axis=0)
    names, families = data.model_columns.values()
    return [
        {
            "model": names[i],
            "family": families[i],
            "benchmark": data.tasks[j],
            "protocol": protocol,
            "predicted": direction[j] * mean[i, j],
            "low": ends[0, i, j],
            "high": ends[1, i, j],
            "information": gain[i, j],
        }
        for i, j in zip(*np.nonzero(~np.isfinite(data.scores[protocol])), strict=True)
    ]
