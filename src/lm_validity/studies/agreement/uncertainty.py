"""Intervals of the agreement report by resampling models, and models with benchmarks."""

from dataclasses import dataclass, field
from functools import partial
from typing import TypedDict

import numpy as np

from lm_validity.statistics import section_generator
from lm_validity.studies.agreement.analysis import (
    DIRECT,
    MINIMUM_FAMILY,
    TRAINED,
    AgreementAnalysis,
    large_families,
    tuned_members,
)
from lm_validity.studies.agreement.statistics.ranking import (
    finite_mean,
    kendall_tau_matrix,
    known_in_all,
    pair_signs,
    resampled_kendall_tau,
)
from lm_validity.studies.agreement.statistics.resampling import (
    Interval,
    PairedTest,
    agreement_contributions,
    mean_over_pairs_by_resample,
    multiplicities,
    percentile_interval,
    sign_flip_test,
    two_way_interval,
)
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import Reason, ReasonCode


class _PerplexityIntervals(TypedDict, total=False):
    """Fields of `AgreementUncertainty`; none without a perplexity corpus."""

    corpus_benchmark: dict[str, Interval[float]]
    corpus_corpus: dict[str, Interval[float]]
    average_average: dict[str, Interval[float]]
    before_after: dict[str, Interval[float]]


class _ChangeIntervals(TypedDict, total=False):
    """Fields of `AgreementUncertainty`; none where too few models have scores under both protocols."""

    improvement: Interval[float]
    improvement_population: Interval[float]
    pair_change: Interval[np.ndarray]


_NO_TEST = PairedTest(float("nan"), float("nan"), 0)


@dataclass(frozen=True)
class AgreementUncertainty:
    """95% intervals, by protocol; for other models (these benchmarks) unless the name says `population`.

    `by_benchmark`: arrays (k,); `by_category`: (c, c); `pair_change`: (k, k) of the change by train before test;
    `test`: the paired test of an improvement over benchmarks. What compares the protocols is over the cells known
    under both, and over the models that have such a cell. `reason`: why intervals that are not here are missing.
    """

    reason: str
    mean: dict[str, Interval[float]] = field(default_factory=dict)
    mean_population: dict[str, Interval[float]] = field(default_factory=dict)
    improvement: Interval[float] | None = None
    improvement_population: Interval[float] | None = None
    by_benchmark: dict[str, Interval[np.ndarray]] = field(default_factory=dict)
    by_category: dict[str, Interval[np.ndarray]] = field(default_factory=dict)
    pair_change: Interval[np.ndarray] | None = None
    significance: dict[str, Interval[float]] = field(default_factory=dict)
    families: dict[str, dict[str, Interval[float]]] = field(default_factory=dict)
    corpus_benchmark: dict[str, Interval[float]] = field(default_factory=dict)
    corpus_corpus: dict[str, Interval[float]] = field(default_factory=dict)
    average_average: dict[str, Interval[float]] = field(default_factory=dict)
    before_after: dict[str, Interval[float]] = field(default_factory=dict)
    test: PairedTest = _NO_TEST

    @property
    def improvement_reason(self) -> str:
        """Why there is no interval of what train before test changes."""
        return (
            Reason("Fewer than 3 models have scores under both protocols.", ReasonCode.TOO_FEW)
            if self.mean
            else self.reason
        )

    @property
    def before_after_reason(self) -> str:
        """Why there is no interval among base or among instruction-tuned models."""
        return (
            Reason(f"There are fewer than {MINIMUM_FAMILY} such models.", ReasonCode.TOO_FEW)
            if self.mean
            else self.reason
        )


def agreement_uncertainty(analysis: AgreementAnalysis, resamples: int, seed: int = 1) -> AgreementUncertainty:
    """Resample `resamples` times; 0 gives the paired test alone, which needs no resampling of models."""
    draws = partial(section_generator, seed=seed)
    test = _paired_test(analysis, draws("paired test"))
    models = len(analysis.matrix.models)
    reason = no_intervals(resamples, models)
    if reason:
        return AgreementUncertainty(reason, test=test)
    weights = multiplicities(models, resamples, draws("models"))
    benchmark_weights = multiplicities(len(analysis.tasks), resamples, draws("benchmarks"))
    tau = {p: resampled_kendall_tau(pair_signs(analysis.scores[p]), weights) for p in PROTOCOLS}
    mean = {p: mean_over_pairs_by_resample(tau[p]) for p in PROTOCOLS}
    population = {p: mean_over_pairs_by_resample(tau[p], benchmark_weights) for p in PROTOCOLS}
    observed = {p: kendall_tau_matrix(pair_signs(analysis.scores[p])) for p in PROTOCOLS}
    fixed_models = {
        p: mean_over_pairs_by_resample(np.broadcast_to(observed[p], tau[p].shape), benchmark_weights) for p in PROTOCOLS
    }
    significance = {
        p: mean_over_pairs_by_resample(resampled_kendall_tau(analysis.significant[p], weights)) for p in PROTOCOLS
    }
    others = np.where(np.eye(len(analysis.tasks), dtype=bool), np.nan, 1.0)
    return AgreementUncertainty(
        reason,
        mean={p: percentile_interval(mean[p], models) for p in PROTOCOLS},
        mean_population={p: two_way_interval(population[p], mean[p], fixed_models[p], models) for p in PROTOCOLS},
        by_benchmark={p: percentile_interval(finite_mean(tau[p] * others, axis=2), models) for p in PROTOCOLS},
        by_category={p: percentile_interval(_category_means(tau[p], analysis, p), models) for p in PROTOCOLS},
        significance={p: percentile_interval(significance[p], models) for p in PROTOCOLS},
        families=_families(analysis, resamples, draws("families")),
        **_perplexity(analysis, weights, resamples, draws("perplexity")),
        **_changes(analysis, tau, benchmark_weights, draws("changes")),
        test=test,
    )


def no_intervals(resamples: int, models: int) -> str:
    """Why there are no intervals over models, empty where there are."""
    if resamples == 0:
        return Reason("No resampling was asked for (--resamples 0).", ReasonCode.SKIPPED)
    return (
        Reason(f"There are too few models to resample ({models}).", ReasonCode.TOO_FEW)
        if models < MINIMUM_FAMILY
        else ""
    )


def _changes(
    analysis: AgreementAnalysis, tau: dict[str, np.ndarray], benchmark_weights: np.ndarray, rng: np.random.Generator
) -> _ChangeIntervals:
    """Intervals of what train before test changes; `tau`: (resamples, k, k) of each protocol's own scores.

    Where cells are left out, the models that have one known under both protocols are resampled by themselves.
    """
    comparison = analysis.comparison
    rows = comparison.models
    if len(rows) < MINIMUM_FAMILY:
        return {}
    signs = {p: pair_signs(comparison.scores[p][rows]) for p in PROTOCOLS}
    if not comparison.whole:
        weights = multiplicities(len(rows), len(benchmark_weights), rng)
        tau = {p: resampled_kendall_tau(signs[p], weights) for p in PROTOCOLS}
    tau = known_in_all(tau)
    observed = known_in_all({p: kendall_tau_matrix(signs[p]) for p in PROTOCOLS})
    fixed_models = {p: np.broadcast_to(observed[p], tau[p].shape) for p in PROTOCOLS}
    over_models, over_both, over_benchmarks = (
        mean_over_pairs_by_resample(taus[TRAINED], weights) - mean_over_pairs_by_resample(taus[DIRECT], weights)
        for taus, weights in ((tau, None), (tau, benchmark_weights), (fixed_models, benchmark_weights))
    )
    return {
        "improvement": percentile_interval(over_models, len(rows)),
        "improvement_population": two_way_interval(over_both, over_models, over_benchmarks, len(rows)),
        "pair_change": percentile_interval(tau[TRAINED] - tau[DIRECT], len(rows)),
    }


def _paired_test(analysis: AgreementAnalysis, rng: np.random.Generator) -> PairedTest:
    """The sign-flip test; all its taus of the analysis' variant, or exchanging rankings would not flip signs."""
    scores, tau = analysis.comparison.scores, analysis.comparison.tau
    if not analysis.comparison.improved[1]:
        return _NO_TEST
    trained_direct = kendall_tau_matrix(
        pair_signs(scores[TRAINED]), variant=analysis.variant, others=pair_signs(scores[DIRECT])
    )
    contributions = agreement_contributions(tau[DIRECT], tau[TRAINED], trained_direct)
    return sign_flip_test(contributions, rng)


def _category_means(tau: np.ndarray, analysis: AgreementAnalysis, protocol: str) -> np.ndarray:
    """(resamples, c, c) means within and between categories."""
    names = analysis.agreement[protocol].categories
    members = [np.array([c == name for c in analysis.categories]) for name in names]
    off_diagonal = np.where(np.eye(tau.shape[1], dtype=bool), np.nan, 1.0)
    result = np.full((len(tau), len(names), len(names)), np.nan)
    for i, rows in enumerate(members):
        for j, columns in enumerate(members):
            block = (tau * off_diagonal)[:, rows][:, :, columns]
            result[:, i, j] = finite_mean(block.reshape(len(tau), -1), axis=1)
    return result


def _families(
    analysis: AgreementAnalysis, resamples: int, rng: np.random.Generator
) -> dict[str, dict[str, Interval[float]]]:
    """Intervals of each family's mean tau, resampling the models of the family."""
    intervals: dict[str, dict[str, Interval[float]]] = {}
    for name, rows in large_families(analysis.matrix.families).items():
        weights = multiplicities(len(rows), resamples, rng)
        intervals[name] = {
            p: percentile_interval(
                mean_over_pairs_by_resample(resampled_kendall_tau(pair_signs(analysis.scores[p][rows]), weights)),
                len(rows),
            )
            for p in PROTOCOLS
        }
    return intervals


def _perplexity(
    analysis: AgreementAnalysis, weights: np.ndarray, resamples: int, rng: np.random.Generator
) -> _PerplexityIntervals:
    if analysis.perplexity is None:
        return {}
    models = len(analysis.matrix.models)
    result: _PerplexityIntervals = {
        "corpus_benchmark": {},
        "corpus_corpus": {},
        "average_average": {},
        "before_after": {},
    }
    for protocol in PROTOCOLS:
        corpora, scores = analysis.corpora[protocol], analysis.scores[protocol]
        signs = pair_signs(corpora)
        across = resampled_kendall_tau(signs, weights, others=pair_signs(scores))
        result["corpus_benchmark"][protocol] = percentile_interval(
            finite_mean(across.reshape(len(weights), -1), axis=1), models
        )
        within = mean_over_pairs_by_resample(resampled_kendall_tau(signs, weights))
        result["corpus_corpus"][protocol] = percentile_interval(within, models)
        averages = np.column_stack([corpora.mean(axis=1), scores.mean(axis=1)])
        averages[~np.isfinite(averages).all(axis=1)] = np.nan
        draws = resampled_kendall_tau(pair_signs(averages), weights)[:, 0, 1]
        result["average_average"][protocol] = percentile_interval(draws, models)
    for kind, rows in tuned_members(analysis.matrix).items():
        if len(rows) >= MINIMUM_FAMILY:
            draws = resampled_kendall_tau(
                pair_signs(analysis.corpora[DIRECT][rows]),
                multiplicities(len(rows), resamples, rng),
                others=pair_signs(analysis.scores[TRAINED][rows]),
            )
            result["before_after"][kind] = percentile_interval(
                finite_mean(draws.reshape(resamples, -1), axis=1), len(rows)
            )
    return result
