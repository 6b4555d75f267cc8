"""Agreement with noise taken out, among models of like size or compute, and with families as clusters."""

from dataclasses import replace

import numpy as np

from lm_validity.statistics import section_generator
from lm_validity.studies.agreement.analysis import (
    AgreementAnalysis,
    measurement_error,
    no_ceiling,
)
from lm_validity.studies.agreement.statistics.factors import LEAST_MODELS, Ceiling, noise_ceiling
from lm_validity.studies.agreement.statistics.noise import (
    LEAST_CLUSTERS,
    MOST_IN_ONE,
    cluster_numbers,
    corrected_interval,
    mean_tau_left_out,
    means_without_clusters,
    noise_corrected_tau,
    taus_left_out,
    transformed_interval,
)
from lm_validity.studies.agreement.statistics.ranking import PairSigns, kendall_tau_matrix, pair_signs
from lm_validity.studies.agreement.statistics.resampling import Interval
from lm_validity.studies.agreement.summary import ByRatio, CorrectedTau, Range, RatioRow, TauSummary, Value, ends
from lm_validity.summaries import Missing, is_known, known
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import Reason, ReasonCode, count, decimal, no_scores

# model sizes within these ratios, and beyond the last one
RATIOS = ((1.0, 1.25), (1.0, 2.0), (1.0, 4.0), (4.0, None))
HEADLINE_RATIO = 2.0  # models that a reader chooses between
LEAST_PAIRS = 10  # of models; fewer say nothing about a mean over pairs of benchmarks
ABOVE_CEILING = (
    "The tau observed is above its noise ceiling, so there is no noise left to correct for. Errors that benchmarks "
    "share, standard errors that are too large, or chance can cause this."
)


def no_correction(ceiling: Ceiling, scores: np.ndarray, protocol: str) -> str:
    """Why a noise ceiling cannot correct a tau, empty where it can."""
    if np.isnan(ceiling.mean_tau):
        return no_ceiling(ceiling, scores, protocol)
    if ceiling.models < LEAST_MODELS:
        return f"The noise ceiling is over {count(ceiling.models, 'model')}, fewer than {LEAST_MODELS}."
    if not ceiling.above_zero:
        return f"At a tau of {decimal(ceiling.mean_tau)} the noise ceiling is not clearly above 0."
    return ""


def corrected_tau(analysis: AgreementAnalysis, protocol: str) -> CorrectedTau:
    """The agreement without measurement error: over all, by benchmark, by pair."""
    ceiling, names = analysis.ceiling[protocol], analysis.tasks
    reason = no_correction(ceiling, analysis.scores[protocol], protocol)
    mean = known(float(noise_corrected_tau(ceiling.observed, ceiling.mean_tau)), reason or ABOVE_CEILING)
    pairs = np.ones(len(analysis.significant[protocol].first), dtype=bool)
    found = _among_pairs(analysis, protocol, pairs) if not reason else None
    of_rows = np.array([_finite_mean(row) for row in ceiling.observed_by_pair])
    by_benchmark = np.asarray(noise_corrected_tau(of_rows, ceiling.by_benchmark))
    by_pair = np.asarray(noise_corrected_tau(ceiling.observed_by_pair, ceiling.by_pair))
    why = reason or "The pair has no tau or no noise ceiling, or its tau is above the ceiling."
    if reason:
        mean, by_benchmark, by_pair = Missing(reason), np.full(len(names), np.nan), np.full(by_pair.shape, np.nan)
    why_not = reason or "The benchmark has no tau or no noise ceiling, or its tau is above the ceiling."
    of_benchmarks = {name: known(float(tau), why_not) for name, tau in zip(names, by_benchmark, strict=True)}
    places = [(int(i), int(j)) for i, j in zip(*np.triu_indices(len(names), 1), strict=True)]
    of_pairs = {pair: known(float(by_pair[pair]), why) for pair in places}
    benchmark_intervals, pair_intervals = _corrected_intervals(analysis, protocol)
    lost = TOO_LARGE if ceiling.expected is None else LOST_MODEL
    return CorrectedTau(
        mean=mean,
        interval=found.corrected_interval if found and is_known(mean) else _as_missing(mean),
        interval_clustered=found.corrected_interval_clustered if found and is_known(mean) else _as_missing(mean),
        by_benchmark=of_benchmarks,
        by_benchmark_interval={
            name: ends(of_benchmarks[name], benchmark_intervals.get(j), lost) for j, name in enumerate(names)
        },
        by_pair=[(names[i], names[j], tau) for (i, j), tau in of_pairs.items()],
        by_pair_interval=[
            (names[i], names[j], ends(tau, pair_intervals.get((i, j)), lost)) for (i, j), tau in of_pairs.items()
        ],
    )


def _corrected_intervals(
    analysis: AgreementAnalysis, protocol: str
) -> tuple[dict[int, Interval[float]], dict[tuple[int, int], Interval[float]]]:
    """Intervals over models of the corrected taus by benchmark and by pair of benchmarks, of those that have a ceiling.

    Each model is left out of the taus; ceilings stay those of the whole table. A benchmark's are means over its pairs
    that have both.
    """
    expected = analysis.ceiling[protocol].expected
    if expected is None:
        return {}, {}
    signs = pair_signs(analysis.scores[protocol])
    everything, models = np.ones(len(signs.first), bool), np.arange(len(analysis.matrix.models))
    taus, limits = taus_left_out(signs, expected, everything, models)
    places = [(a, b) for a, b in zip(*np.triu_indices(len(expected.columns)), strict=True) if a != b]
    columns = expected.columns
    both = np.isfinite(taus[:, :1]) & np.isfinite(limits[:, :1])
    taus, limits = (np.where(both, values, np.nan) for values in (taus, limits))
    by_pair = {(columns[a], columns[b]): _corrected(taus[i], limits[i]) for i, (a, b) in enumerate(places)}
    by_benchmark = {}
    for place, column in enumerate(columns):
        own = both[:, 0] & np.array([place in pair for pair in places], dtype=bool)
        if own.any():
            by_benchmark[column] = _corrected(taus[own].mean(axis=0), limits[own].mean(axis=0))
    return by_benchmark, by_pair


def _finite_mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def _as_missing(value: Value) -> Missing:
    return value if isinstance(value, Missing) else Missing(ABOVE_CEILING)


def clustered_interval(analysis: AgreementAnalysis, protocol: str, mean: Value) -> Range:
    """The interval of the mean tau with families as clusters."""
    reason = no_clusters(analysis.matrix.families)
    if isinstance(mean, Missing) or reason:
        return mean if isinstance(mean, Missing) else Missing(reason)
    families, scores = _families(analysis), analysis.scores[protocol]
    taus, _ = _means_left_out(scores, families)
    return ends(mean, transformed_interval(taus[0], taus[1:], "tau", _sizes(scores, families)), LOST_CLUSTER)


def clustered_change(analysis: AgreementAnalysis, mean: Value) -> Range:
    """The interval of the change by train before test with families as clusters, over the cells known under both."""
    reason = no_clusters(analysis.matrix.families)
    if isinstance(mean, Missing) or reason:
        return mean if isinstance(mean, Missing) else Missing(reason)
    change, _, sizes = _changes_left_out(analysis)
    return ends(mean, transformed_interval(change[0], change[1:], "change", sizes), LOST_CLUSTER)


def population_interval(analysis: AgreementAnalysis, protocol: str, mean: Value) -> Range:
    """The interval of the mean tau for other models and other benchmarks: families and categories as clusters.

    Models of a table without families are clusters of their own.
    """
    reason = no_categories(analysis.categories)
    if isinstance(mean, Missing) or reason:
        return mean if isinstance(mean, Missing) else Missing(reason)
    families, scores = _families(analysis), analysis.scores[protocol]
    taus, categories = _means_left_out(scores, families, analysis.categories)
    sizes, of_categories = _sizes(scores, families), np.bincount(_categories(analysis))
    return ends(mean, transformed_interval(taus[0], taus[1:], "tau", sizes, categories, of_categories), LOST_CATEGORY)


def population_change(analysis: AgreementAnalysis, mean: Value) -> Range:
    """As `population_interval`, of the change by train before test over the cells known under both protocols."""
    reason = no_categories(analysis.categories)
    if isinstance(mean, Missing) or reason:
        return mean if isinstance(mean, Missing) else Missing(reason)
    change, categories, sizes = _changes_left_out(analysis)
    of_categories = np.bincount(_categories(analysis))
    interval = transformed_interval(change[0], change[1:], "change", sizes, categories, of_categories)
    return ends(mean, interval, LOST_CATEGORY)


def _changes_left_out(analysis: AgreementAnalysis) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Changes of the mean tau, all and without each family; and without each category; and sizes of the families."""
    rows, scores = analysis.comparison.models, compared_scores(analysis)
    families = cluster_numbers(analysis.matrix.families[rows])
    direct, trained = (_means_left_out(scores[p][rows], families, analysis.categories) for p in PROTOCOLS)
    return trained[0] - direct[0], trained[1] - direct[1], np.bincount(families)


def _means_left_out(
    scores: np.ndarray, families: np.ndarray, categories: list[str | None] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Mean taus of `scores` (models, benchmarks), all and without each family; and without each category."""
    signs = pair_signs(scores)
    over_families, _ = mean_tau_left_out(signs, None, np.ones(len(signs.first), bool), families)
    if categories is None:
        return over_families, np.empty(0)
    clusters = cluster_numbers(np.array(categories, dtype=object))
    return over_families, means_without_clusters(kendall_tau_matrix(signs), clusters)


def _sizes(scores: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """(clusters,) numbers of models with a score."""
    return np.bincount(clusters, np.isfinite(scores).any(axis=1))


TOO_LARGE = "The table has too many models and benchmarks to take the noise ceiling apart."
LOST_MODEL = Reason(
    "Without one of the models no tau is left, or a tau is 1 or -1, where this interval does not exist.",
    ReasonCode.NO_INTERVAL,
)
LOST_CLUSTER = (
    f"There are fewer than {LEAST_CLUSTERS} families, or one holds more than half of the models. Or leaving one of "
    "them out leaves no tau, or a tau of 1 or -1."
)
LOST_CATEGORY = (
    f"There are fewer than {LEAST_CLUSTERS} families, or one family or category holds more than half of its kind. Or "
    "leaving a family or a category out leaves no tau, or a tau of 1 or -1."
)
FEW_FAMILIES = 5
NARROWER = (
    f"There are fewer than {FEW_FAMILIES} families, and it would be narrower than the interval over models: these "
    "families happen to differ less than their models do, which says nothing about other families."
)


def no_categories(categories: list[str | None]) -> str:
    """Why categories give no clusters, empty where they do; a benchmark of no category is a cluster of its own."""
    named = [name for name in categories if name is not None]
    if not named:
        return "The benchmarks sheet names no category."
    if len(named) == len(set(named)):
        return "No category has two benchmarks: the interval over benchmarks is that over categories."
    clusters = len(set(named)) + len(categories) - len(named)
    return (
        Reason(f"There are fewer than {LEAST_CLUSTERS} categories.", ReasonCode.TOO_FEW)
        if clusters < LEAST_CLUSTERS
        else ""
    )


def no_clusters(families: np.ndarray) -> str:
    """Why families give no clusters, empty where they do; a model of unknown family is a cluster of its own."""
    named = [name for name in families if name is not None]
    if not named:
        return "The models sheet names no family."
    if len(named) == len(set(named)):
        return "No family has two models: the interval over models is that over families."
    clusters = int(cluster_numbers(families).max()) + 1
    if clusters < LEAST_CLUSTERS:
        return Reason(f"There are fewer than {LEAST_CLUSTERS} families.", ReasonCode.TOO_FEW)
    largest = max(set(named), key=named.count)
    most = named.count(largest)
    return f"{most} of {len(families)} models are of one family." if most > MOST_IN_ONE * len(families) else ""


def over_families(interval: Range, over_models: Range, families: np.ndarray) -> Range:
    """The interval over `families` (models,), missing where they are few and it is narrower than that over models."""
    many = cluster_numbers(families).max() + 1 >= FEW_FAMILIES
    if many or isinstance(interval, Missing) or isinstance(over_models, Missing):
        return interval
    narrower = interval.high - interval.low < over_models.high - over_models.low
    return Missing(NARROWER) if narrower else interval


def _families(analysis: AgreementAnalysis) -> np.ndarray:
    return cluster_numbers(analysis.matrix.families)


def _categories(analysis: AgreementAnalysis) -> np.ndarray:
    return cluster_numbers(np.array(analysis.categories, dtype=object))


def compared_scores(analysis: AgreementAnalysis) -> dict[str, np.ndarray]:
    """Scores of the cells known under both protocols, without benchmarks that rank no two models under one of them."""
    comparison = analysis.comparison
    ranked = np.logical_and.reduce([np.isfinite(np.diag(tau)) for tau in comparison.tau.values()])
    return {p: np.where(ranked, values, np.nan) for p, values in comparison.scores.items()}


def over_both(analysis: AgreementAnalysis, seed: int = 6) -> AgreementAnalysis:
    """The analysis with the scores that compare the protocols, and noise ceilings of these, for `ratio_rows`."""
    scores = compared_scores(analysis)
    rng = section_generator("noise ceiling of models of similar size", seed)
    ceiling = {p: noise_ceiling(scores[p], measurement_error(analysis.matrix, p), rng) for p in PROTOCOLS}
    return replace(analysis, scores=scores, ceiling=ceiling)


def ratio_rows(analysis: AgreementAnalysis, protocol: str, size: np.ndarray) -> list[RatioRow]:
    """Agreement among pairs of models whose `size` (models,), parameters or compute, differs by at most a factor."""
    signs = analysis.significant[protocol]
    ratio = size_ratios(size, signs)
    rows = []
    for at_least, at_most in RATIOS if np.isfinite(ratio).any() else ():
        within = ratio > at_least if at_most is None else ratio <= at_most
        with_score = np.isfinite(analysis.scores[protocol]).any(axis=1)
        scored = within & with_score[signs.first] & with_score[signs.second]
        rows.append(_among_pairs(analysis, protocol, scored, at_most, at_least))
    return rows


def size_ratios(size: np.ndarray, signs: PairSigns) -> np.ndarray:
    """(pairs,) the larger over the smaller `size` (models,) of each pair, less rounding; NaN where one is unknown."""
    logarithm = np.log(np.where(size > 0, size, np.nan))
    return np.exp(np.abs(logarithm[signs.first] - logarithm[signs.second])) * (1 - 1e-9)


def ratios(analysis: AgreementAnalysis, protocol: str, size: np.ndarray, what: str) -> list[RatioRow] | Missing:
    """Agreement among models of like size; missing where fewer than two models with scores have one."""
    if not analysis.matrix.has(protocol):
        return Missing(no_scores(protocol))
    scored = np.isfinite(analysis.scores[protocol]).any(axis=1)
    if np.isfinite(size[scored]).sum() < 2:
        return Missing(Reason(f"Fewer than two of the models compared here have known {what}.", ReasonCode.TOO_FEW))
    return ratio_rows(analysis, protocol, size)


def ratios_in_both(analysis: AgreementAnalysis, tau: dict[str, TauSummary]) -> tuple[ByRatio, ByRatio]:
    """Agreement by distance in size and in compute, by protocol, over the cells known under both."""
    if analysis.comparison.whole:
        return {p: one.by_size_ratio for p, one in tau.items()}, {p: one.by_compute_ratio for p, one in tau.items()}
    absent = [p for p in PROTOCOLS if not analysis.matrix.has(p)]
    if absent:
        nothing: ByRatio = dict.fromkeys(PROTOCOLS, Missing(no_scores(absent[0])))
        return nothing, nothing
    both, (size, compute) = over_both(analysis), analysis.matrix.sizes()
    return (
        {p: ratios(both, p, size, "parameters") for p in PROTOCOLS},
        {p: ratios(both, p, compute, "pretraining compute") for p in PROTOCOLS},
    )


def _among_pairs(
    analysis: AgreementAnalysis, protocol: str, pairs: np.ndarray, at_most: float | None = None, at_least: float = 1.0
) -> RatioRow:
    """Mean tau over the pairs of models in a mask, its ceiling, and both corrected for noise."""
    ratio = (at_most, at_least, int(pairs.sum()))
    if pairs.sum() < LEAST_PAIRS:
        return RatioRow(
            *ratio,
            *[Missing(Reason(f"There are fewer than {LEAST_PAIRS} such pairs of models.", ReasonCode.TOO_FEW))] * 7,
        )
    ceiling = analysis.ceiling[protocol]
    signs = pair_signs(analysis.scores[protocol])
    models = _among(signs, pairs, np.arange(len(analysis.matrix.models)))
    families = _among(signs, pairs, _families(analysis))
    present = np.zeros(len(families), dtype=bool)
    present[signs.first[pairs]] = present[signs.second[pairs]] = True
    sizes = np.bincount(families, present)
    reason = no_correction(ceiling, analysis.scores[protocol], protocol)
    if ceiling.expected is None and not reason:
        reason = TOO_LARGE
    expected = None if reason else ceiling.expected
    tau, limit = mean_tau_left_out(signs, expected, pairs, models)
    tau_families, limit_families = mean_tau_left_out(signs, expected, pairs, families)
    mean = known(float(tau[0]), "No pair of benchmarks has a tau among these pairs of models.")
    corrected = known(float(noise_corrected_tau(tau[0], limit[0])), reason or ABOVE_CEILING)
    clusters = no_clusters(analysis.matrix.families)
    by_family: tuple[Range, Range] = (Missing(clusters), Missing(clusters))
    if not clusters:
        by_family = (
            ends(mean, transformed_interval(tau_families[0], tau_families[1:], "tau", sizes), LOST_CLUSTER),
            ends(corrected, _corrected(tau_families, limit_families, sizes), LOST_CLUSTER),
        )
    interval = ends(mean, transformed_interval(tau[0], tau[1:], "tau"), LOST_MODEL)
    of_corrected = ends(corrected, _corrected(tau, limit), LOST_MODEL)
    return RatioRow(
        *ratio,
        mean=mean,
        ceiling=known(float(limit[0]), reason or LOST_MODEL),
        corrected=corrected,
        interval=interval,
        interval_clustered=over_families(by_family[0], interval, analysis.matrix.families),
        corrected_interval=of_corrected,
        corrected_interval_clustered=over_families(by_family[1], of_corrected, analysis.matrix.families),
    )


def _corrected(tau: np.ndarray, limit: np.ndarray, sizes: np.ndarray | None = None) -> Interval[float]:
    return corrected_interval(tau[0], limit[0], tau[1:], sizes)


def _among(signs: PairSigns, pairs: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """`clusters` renumbered so that those without a pair in the mask are one, left out at the end as nothing is."""
    present = np.unique(clusters[np.concatenate([signs.first[pairs], signs.second[pairs]])])
    numbers = np.full(int(clusters.max()) + 1, -1)
    numbers[present] = np.arange(len(present))
    # models without such a pair take no part: any number will do
    return np.maximum(numbers[clusters], 0)
