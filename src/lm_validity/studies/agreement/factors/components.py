"""Factors of the score matrix: how many there are, what the first explains, within families, by model, with compute."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, TypeVar

import numpy as np

from lm_validity.missing import Missing, Reason, ReasonCode, is_known, known
from lm_validity.statistics import Interval, section_generator
from lm_validity.studies.agreement.data import JACKKNIFED, Data
from lm_validity.studies.agreement.intervals import Range, RangeByProtocol, Value, each, ends, over_families, wider
from lm_validity.studies.agreement.reasons import (
    FEW_IN_BOTH,
    LOST_CLUSTER,
    SMALL_FAMILY,
    no_ceiling,
    no_clusters,
)
from lm_validity.studies.agreement.score_matrix import MINIMUM_FAMILY, family_members, measurement_error
from lm_validity.studies.agreement.statistics.factors import (
    Components,
    parallel_analysis,
    principal_components,
    relate_to_compute,
    share_intervals,
    without_group_means,
    without_size,
)
from lm_validity.studies.agreement.statistics.noise import ShareCeiling, share_ceiling
from lm_validity.studies.agreement.statistics.ranking import (
    known_in_all,
    pair_signs,
    resampled_kendall_tau,
)
from lm_validity.studies.agreement.statistics.resampling import cluster_numbers, multiplicities, percentile_interval
from lm_validity.tables.schema import DIRECT, PROTOCOLS
from lm_validity.words import UNDER, count, listing, no_scores

SHOWN_COMPONENTS = 5
MINIMUM_RESAMPLED_FAMILY = 10  # models of a family: fewer give no usable interval of a share of variance
FEW_IN_COMMON = (
    f"Two benchmarks have fewer than half of the models in common, or fewer than {JACKKNIFED} models have scores and "
    "most have none. Correlations over so few models make the first share "
    "too large, and so would a table with predicted cells."
)
NO_COMPONENTS = Reason("Fewer than two benchmarks can take part, so there are no components.", ReasonCode.TOO_FEW)
NO_SHARE_INTERVAL = Reason(
    "Without one of the models there is no such component, or its share is 1.", ReasonCode.NO_INTERVAL
)
Shares = list[float] | Missing
simulations = partial(section_generator, seed=2)
resamples = partial(section_generator, seed=3)
T = TypeVar("T", float, Interval[float])


class FactorData(Data):
    """`common`, `in_both`, `models_in_both` and `whole`: of the benchmarks that take part in the components of both."""

    @cached_property
    def components(self) -> dict[str, Components]:
        """By protocol the principal components of all its scores."""
        return {p: principal_components(self.scores[p]) for p in PROTOCOLS}

    @cached_property
    def common(self) -> dict[str, np.ndarray]:
        """(models, benchmarks) scores of the cells known under both protocols."""
        common = known_in_all(self.scores)
        used_columns = np.logical_and.reduce([principal_components(scores).included for scores in common.values()])
        return {p: np.where(used_columns, scores, np.nan) for p, scores in common.items()}

    @cached_property
    def common_components(self) -> dict[str, Components]:
        """The principal components of the scores known under both protocols (`common`)."""
        return {p: principal_components(self.common[p]) for p in PROTOCOLS}

    @cached_property
    def whole(self) -> bool:
        """Whether a comparison of the protocols leaves out no cell."""
        return all(np.array_equal(self.common[p], self.scores[p], equal_nan=True) for p in PROTOCOLS)

    @cached_property
    def benchmark_weights(self) -> np.ndarray:
        """(resamples, benchmarks) how often each benchmark is in a resample, the same for both protocols: so the gap of
        a model's two ranks has an interval."""
        return multiplicities(len(self.tasks), self.resamples, resamples("benchmarks"))

    @property
    def compute(self) -> np.ndarray:
        """Compute of each model's pretraining in floating-point operations, (models,); NaN where unknown."""
        return self.matrix.sizes().compute

    @property
    def model_columns(self) -> dict[str, Sequence[str]]:
        """The first columns of a table with a row for each model."""
        return {"model": self.matrix.labels, "family": [family or "unknown" for family in self.matrix.families]}

    def unless_unscored(self, protocol: str, reason: str) -> str:
        """Why something of a protocol is missing: it has no scores, or `reason`."""
        return reason if self.matrix.has(protocol) else no_scores(protocol)


def entry_of(values: Sequence[T | Missing] | Missing, index: int) -> T | Missing:
    """An entry of a list that may be missing as a whole, or have no such entry."""
    if isinstance(values, Missing):
        return values
    return values[index] if index < len(values) else Missing("There is no such component.")


# ----------------------------------------------------------------------------------------------------------------------
# How much the components explain.


class FirstShares(NamedTuple):
    """By protocol the shares of variance of the first components, their ranges over models, and the first one's range
    with families as clusters."""

    shares: dict[str, Shares]
    ranges: dict[str, list[Range] | Missing]
    families: dict[str, Range]

    @property
    def known(self) -> dict[str, list[float]]:
        """The shares of the protocols that have components."""
        return {p: shares for p, shares in self.shares.items() if not isinstance(shares, Missing)}

    def first(self, protocol: str) -> Value:
        """The share of the first component."""
        return entry_of(self.shares[protocol], 0)

    def quoted(self, protocol: str) -> Interval[float] | None:
        """The interval of the first share that a sentence quotes."""
        return wider(entry_of(self.ranges[protocol], 0), self.families[protocol])


@dataclass(frozen=True)
class Parallel:
    """Parallel analysis: the number of factors, overall and within families, the shares of tables with shuffled
    columns, and how probable so large a first share is among them."""

    factors: int
    factors_within_families: int | Missing
    null_mean: list[float]
    null_95: list[float]
    p_first: float


@dataclass(frozen=True)
class ExplainedVariance:
    """By protocol: what the components explain, over all cells and over those known under `in_both`, of scores less
    what goes with size, at most in view of noise, and in shuffled tables; and the loadings of the first."""

    over_all: FirstShares
    in_both: FirstShares
    without_size: dict[str, Shares]
    ceilings: dict[str, ShareCeiling]
    ceiling: dict[str, Value]
    parallel: dict[str, Parallel | Missing]
    loadings: dict[str, dict[str, Value]]

    @property
    def is_compared(self) -> bool:
        """Whether both protocols have components over the cells known under both."""
        return len(self.in_both.known) == len(PROTOCOLS)

    @property
    def compared(self) -> FirstShares:
        """The shares that compare the protocols: over the cells known under both where both have components."""
        return self.in_both if self.is_compared else self.over_all

    @property
    def summary(self) -> dict[str, object]:
        """What summary.json holds of the components, by its keys."""
        return {
            f"explained_variance{over}{part}": values
            for over, parts in (("_in_both", self.in_both), ("", self.over_all))
            for part, values in zip(("", "_interval", "_interval_clustered"), parts, strict=True)
        } | {
            "explained_variance_without_size": self.without_size,
            "first_component_ceiling": self.ceiling,
            "parallel_analysis": self.parallel,
            "pc1_loadings": self.loadings,
        }


def explain_variance(data: FactorData) -> ExplainedVariance:
    """The share of each component, beside that of shuffled tables, and the loadings of the first."""
    matrix, of_ceiling = data.matrix, simulations("noise ceiling")
    ceilings = {p: share_ceiling(data.scores[p], measurement_error(matrix, p), of_ceiling) for p in matrix.protocols}
    parallel = {p: _parallel(data, p) for p in PROTOCOLS}
    over_all = _first_shares(data, data.scores, data.components, data.scores)
    of_both = {p: scores[data.models_in_both] for p, scores in data.common.items()}
    in_both = over_all if data.whole else _first_shares(data, data.common, data.common_components, of_both)
    constant = "The benchmark is constant, alone or without enough common models: not in the components."
    loadings = {
        p: each(data.tasks, data.components[p].loadings, entry.reason if isinstance(entry, Missing) else constant)
        for p, entry in over_all.shares.items()
    }
    return ExplainedVariance(
        over_all=over_all,
        in_both=in_both,
        without_size={p: _without_size(data, p) for p in PROTOCOLS},
        ceilings=ceilings,
        ceiling={
            p: known(entry.first_component, no_ceiling(entry.included, data.scores[p], p))
            for p, entry in ceilings.items()
        },
        parallel=parallel,
        loadings=loadings,
    )


def _first_shares(
    data: FactorData,
    scores: dict[str, np.ndarray],
    components: dict[str, Components],
    of_models: dict[str, np.ndarray],
) -> FirstShares:
    """By protocol the first five shares of variance of the components of `scores`; [low, high] of each over the models
    of the scores `of_models`; and of the first with families as clusters."""
    shares: dict[str, Shares] = {}
    ranges: dict[str, list[Range] | Missing] = {}
    families: dict[str, Range] = {}
    names, no_interval = data.matrix.families, data.no_intervals
    if no_interval is None and len(of_models[DIRECT]) < MINIMUM_FAMILY:
        no_interval = FEW_IN_BOTH
    for p in PROTOCOLS:
        entry = shares[p] = first_shares(data, p, components[p], scores[p])
        if isinstance(entry, Missing):
            ranges[p] = families[p] = entry
            continue
        over_models: list[Range] | Missing
        if no_interval is not None:
            over_models = Missing(no_interval)
        else:
            interval = share_intervals(of_models[p], np.arange(len(of_models[p])))
            over_models = [range_at(interval, i, NO_SHARE_INTERVAL) for i in range(len(entry))]
            if not np.isfinite(interval.low).any():
                over_models = Missing(NO_SHARE_INTERVAL)
        ranges[p], no_families = over_models, no_clusters(names)
        if no_families is not None:
            families[p] = Missing(no_families)
        else:
            clustered = ends(entry[0], _first_interval(scores[p], cluster_numbers(names)), LOST_CLUSTER)
            families[p] = over_families(clustered, entry_of(over_models, 0), names)
    return FirstShares(shares, ranges, families)


def _first_interval(scores: np.ndarray, clusters: np.ndarray) -> Interval[float]:
    """Of the first share of variance of `scores`, each of the `clusters` (models,) left out in turn."""
    (low,), (high,) = share_intervals(scores, clusters, 1)
    return Interval(low, high)


def first_shares(data: FactorData, protocol: str, components: Components, scores: np.ndarray) -> Shares:
    """The first five shares of variance of the components of `scores`."""
    if not len(components.explained_variance):
        return Missing(data.unless_unscored(protocol, NO_COMPONENTS))
    if _few_in_common(scores[:, components.included]):
        return Missing(FEW_IN_COMMON)
    result: Shares = components.explained_variance[:SHOWN_COMPONENTS].tolist()
    return result


def range_at(interval: Interval[np.ndarray], index: int, reason: str) -> Range:
    """One of many intervals; missing for the `reason` where it is not finite."""
    low, high = interval.low[index], interval.high[index]
    return Interval(low, high) if np.isfinite(low) else Missing(reason)


def _few_in_common(scores: np.ndarray) -> bool:
    """Whether two benchmarks have fewer than half of the models with `scores` (models, benchmarks) in common, or so few
    models have scores that they say nothing about the others."""
    present = np.isfinite(scores).astype(int)
    models = present.any(axis=1).sum()
    return bool((present.T @ present).min() < models / 2 or models < min(JACKKNIFED, len(scores) / 2))


def _without_size(data: FactorData, protocol: str) -> Shares:
    """Shares of variance of scores less what goes with the logarithm of the number of parameters."""
    size, _ = data.matrix.sizes()
    components = principal_components(without_size(data.scores[protocol], size))
    if np.isfinite(size).sum() < MINIMUM_FAMILY or not len(components.explained_variance):
        too_few = f"Fewer than {MINIMUM_FAMILY} models have a known number of parameters, or {NO_COMPONENTS}"
        return Missing(data.unless_unscored(protocol, too_few))
    return first_shares(data, protocol, components, data.scores[protocol])


def _parallel(data: FactorData, protocol: str) -> Parallel | Missing:
    scores, families = data.scores[protocol], data.matrix.families
    null = parallel_analysis(scores, simulations("parallel analysis"))
    if not len(null.observed):
        return Missing(data.unless_unscored(protocol, NO_COMPONENTS))
    if _few_in_common(scores[:, data.components[protocol].included]):
        return Missing(FEW_IN_COMMON)
    within_families = parallel_analysis(without_group_means(scores, families), simulations("within families"), 200)
    too_few = Missing(f"No family of at least {MINIMUM_FAMILY} models differs on two benchmarks.")
    return Parallel(
        factors=null.factors,
        factors_within_families=within_families.factors if len(within_families.observed) else too_few,
        null_mean=null.null_mean[:SHOWN_COMPONENTS].tolist(),
        null_95=null.null_95[:SHOWN_COMPONENTS].tolist(),
        p_first=null.p_first,
    )


def component_notes(data: FactorData) -> list[str]:
    """Which benchmarks and cells the components leave out."""
    notes = []
    for p in data.matrix.protocols:
        under, components = UNDER[p].capitalize(), data.components[p]
        left_out = [name for name, is_used in zip(data.tasks, components.included, strict=True) if not is_used]
        if left_out:
            notes.append(
                f"{under}, these benchmarks are constant, alone or without enough common models, and not in the "
                f"components: {listing(left_out)}."
            )
        missing = int((~np.isfinite(data.scores[p][:, components.included])).sum())
        if missing and len(components.explained_variance):
            notes.append(
                f"{under}, {missing} cells are missing; correlations are over the models known on both benchmarks "
                f"(smallest eigenvalue share {components.explained_variance[-1]:.3f})."
            )
    return notes


# ----------------------------------------------------------------------------------------------------------------------
# Within families.


@dataclass(frozen=True)
class FamilyShares:
    """By protocol the shares of the components over the models of one family, and the interval of the first."""

    explained_variance: dict[str, Shares]
    first_component_interval: RangeByProtocol | Missing


def family_shares(data: FactorData) -> dict[str, FamilyShares]:
    """The components' shares within each family."""
    summary: dict[str, FamilyShares] = {}
    for family, members in family_members(data.matrix.families).items():
        shares = {p: _family_shares(data, p, members) for p in PROTOCOLS}
        too_few = Reason(f"The family has fewer than {MINIMUM_RESAMPLED_FAMILY} models.", ReasonCode.TOO_FEW)
        reason = data.no_intervals or (None if len(members) >= MINIMUM_RESAMPLED_FAMILY else too_few)
        intervals: RangeByProtocol | Missing
        if reason is not None:
            intervals = Missing(reason)
        else:
            bounds = {p: _first_interval(data.scores[p][members], np.arange(len(members))) for p in PROTOCOLS}
            intervals = {p: ends(entry_of(shares[p], 0), interval, no_scores(p)) for p, interval in bounds.items()}
        summary[family] = FamilyShares(shares, intervals)
    return summary


def _family_shares(data: FactorData, protocol: str, members: np.ndarray) -> Shares:
    """Shares of variance among the models of one family."""
    if len(members) < MINIMUM_FAMILY:
        return Missing(data.unless_unscored(protocol, SMALL_FAMILY))
    scores = data.scores[protocol][members]
    shares = principal_components(scores).explained_variance
    if not len(shares):
        return Missing(data.unless_unscored(protocol, "Models of the family differ on fewer than two benchmarks."))
    if _few_in_common(scores[:, np.isfinite(scores).any(axis=0)]):
        return Missing(FEW_IN_COMMON)
    result: Shares = shares[:SHOWN_COMPONENTS].tolist()
    return result


# ----------------------------------------------------------------------------------------------------------------------
# The first component by model, and with compute.


def by_model(data: FactorData, protocol: str) -> dict[str, Value]:
    """A model's score on the first component under a protocol, or the reason why it has none."""
    components, reason = data.components[protocol], "The model has no score on a benchmark of the components."
    if not len(components.explained_variance):
        reason = data.unless_unscored(protocol, NO_COMPONENTS)
    return each(data.matrix.models, components.scores, reason)


@dataclass(frozen=True)
class Relation:
    """Correlations of the first component with compute, over `models` that have both."""

    kendall: Value
    spearman: Value
    pearson: Value
    models: int


@dataclass(frozen=True)
class RelationWithInterval(Relation):
    """A `Relation` with the 95% interval of its Kendall's tau over models."""

    kendall_interval: Range


@dataclass(frozen=True)
class WithCompute:
    """By protocol how the first component goes with pretraining compute: over all cells, and over those known under
    both."""

    over_all: dict[str, RelationWithInterval]
    in_both: dict[str, Relation]


def relate_components(data: FactorData) -> WithCompute:
    """The first components against pretraining compute."""
    over_all: dict[str, RelationWithInterval] = {}
    for p in PROTOCOLS:
        relation, interval = _relation(data, p, data.components[p].scores), None
        if data.no_intervals is None and is_known(relation.kendall):
            pairs = np.column_stack([data.components[p].scores, data.compute])
            pairs = pairs[np.isfinite(pairs).all(axis=1)]
            weights = multiplicities(len(pairs), data.resamples, resamples(f"compute {p}"))
            interval = percentile_interval(resampled_kendall_tau(pair_signs(pairs), weights)[:, 0, 1], len(pairs))
        over_models = ends(relation.kendall, interval, data.no_intervals)
        over_all[p] = RelationWithInterval(**vars(relation), kendall_interval=over_models)
    return WithCompute(over_all, {p: _relation(data, p, data.common_components[p].scores) for p in PROTOCOLS})


def _relation(data: FactorData, protocol: str, scores: np.ndarray) -> Relation:
    relation = relate_to_compute(scores, data.compute)
    reason = "Models are equal in compute or in the first component."
    if relation.models < MINIMUM_FAMILY:
        reason = f"{count(relation.models, 'model')} with a first component and known compute: too few for a relation."
    reason = data.unless_unscored(protocol, reason)
    return Relation(
        known(relation.kendall, reason),
        known(relation.spearman, reason),
        known(relation.pearson, reason),
        relation.models,
    )
