"""Agreement with noise taken out, and among models of like size or compute; families and categories as clusters."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.statistics import section_generator
from lm_validity.studies.agreement.data import Data, measurement_error, no_ceiling
from lm_validity.studies.agreement.statistics.factors import LEAST_MODELS, Ceiling, noise_ceiling
from lm_validity.studies.agreement.statistics.noise import (
    cluster_numbers,
    corrected_interval,
    mean_tau_left_out,
    means_without_clusters,
    noise_corrected_tau,
    shown_ceiling,
    taus_left_out,
    transformed_interval,
)
from lm_validity.studies.agreement.statistics.ranking import PairSigns, kendall_tau_matrix, pair_signs
from lm_validity.studies.agreement.statistics.resampling import Interval
from lm_validity.studies.agreement.values import (
    LOST_CATEGORY,
    LOST_CLUSTER,
    LOST_MODEL,
    WHICH_INTERVAL,
    WHY_ABOVE,
    Entry,
    Range,
    Value,
    both_intervals,
    each,
    ends,
    no_categories,
    no_clusters,
    over_families,
    value_in_words,
    which_interval,
    with_ceiling,
)
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import (
    UNDER,
    Missing,
    Reason,
    ReasonCode,
    as_columns,
    count,
    decimal,
    is_known,
    known,
    no_scores,
    number,
)

# model sizes within these ratios, and beyond the last one
RATIOS = ((1.0, 1.25), (1.0, 2.0), (1.0, 4.0), (4.0, None))
HEADLINE_RATIO = 2.0  # models that a reader chooses between
LEAST_PAIRS = 10  # of models; fewer say nothing about a mean over pairs of benchmarks
ABOVE_CEILING = f"The tau observed is above its noise ceiling, so there is no noise left to correct for. {WHY_ABOVE}"
TOO_LARGE = "The table has too many models and benchmarks to take the noise ceiling apart."
SIZE_ALONE = "Among models of very different sizes, benchmarks can agree merely because scores rise with size."
TAU_LABELS = {
    "low": "from",
    "high": "to",
    "low_families": "from, families",
    "high_families": "to, families",
    "ceiling": "noise ceiling",
    "corrected": "noise-corrected",
    "corrected_low": "noise-corrected, from",
    "corrected_high": "noise-corrected, to",
    "corrected_low_families": "noise-corrected, from, families",
    "corrected_high_families": "noise-corrected, to, families",
    "significance_tau": "tau, significant differences only",
}


@dataclass(frozen=True)
class RatioRow:
    """Agreement among pairs of models whose sizes differ by a factor from `at_least` to `at_most` (null: any)."""

    at_most: float | None
    at_least: float
    pairs_of_models: int
    mean: Value
    ceiling: Value
    corrected: Value
    interval: Range
    interval_clustered: Range
    corrected_interval: Range
    corrected_interval_clustered: Range


class Scored(NamedTuple):
    """Scores (models, benchmarks) under a protocol with their noise ceiling, and the models' families."""

    protocol: str
    scores: np.ndarray
    ceiling: Ceiling
    families: np.ndarray

    @classmethod
    def of(cls, data: Data, protocol: str) -> "Scored":
        """All scores of the protocol."""
        return cls(protocol, data.scores[protocol], data.ceiling[protocol], data.matrix.families)

    @property
    def no_correction(self) -> str:
        """Why the noise ceiling cannot correct a tau, empty where it can."""
        return no_correction(self.ceiling, self.scores, self.protocol)


# ----------------------------------------------------------------------------------------------------------------------
# Without the noise.


def no_correction(ceiling: Ceiling, scores: np.ndarray, protocol: str) -> str:
    """Why a noise ceiling cannot correct a tau, empty where it can."""
    if np.isnan(ceiling.mean_tau):
        return no_ceiling(ceiling, scores, protocol)
    if ceiling.models < LEAST_MODELS:
        return f"The noise ceiling is over {count(ceiling.models, 'model')}, fewer than {LEAST_MODELS}."
    if not ceiling.above_zero:
        return f"At a tau of {decimal(ceiling.mean_tau)} the noise ceiling is not clearly above 0."
    return ""


def corrected_tau(data: Data, protocol: str) -> Entry:
    """The agreement without measurement error: over all, by benchmark, by pair; intervals over models.

    A benchmark's or a pair's interval leaves out one model at a time; ceilings stay those of the whole table.
    """
    of, names = Scored.of(data, protocol), data.tasks
    ceiling, reason = of.ceiling, of.no_correction
    mean: Value = Missing(reason)
    by_benchmark, by_pair = np.full(len(names), np.nan), np.full((len(names), len(names)), np.nan)
    interval: Range = Missing(reason)
    clustered: Range = Missing(reason)
    if not reason:
        mean = known(float(noise_corrected_tau(ceiling.observed, ceiling.mean_tau)), ABOVE_CEILING)
        everyone = among_pairs(of, np.ones(len(pair_signs(of.scores).first), dtype=bool))
        interval = mean if isinstance(mean, Missing) else everyone.corrected_interval
        clustered = mean if isinstance(mean, Missing) else everyone.corrected_interval_clustered
        defined = [row[np.isfinite(row)] for row in ceiling.observed_by_pair]
        observed = np.array([row.mean() if len(row) else np.nan for row in defined])
        by_benchmark = np.asarray(noise_corrected_tau(observed, ceiling.by_benchmark))
        by_pair = np.asarray(noise_corrected_tau(ceiling.observed_by_pair, ceiling.by_pair))
    benchmark_intervals: dict[int, Interval[float]] = {}
    pair_intervals: dict[tuple[int, int], Interval[float]] = {}
    if ceiling.expected is not None:
        signs, columns = pair_signs(of.scores), ceiling.expected.columns
        taus, limits = taus_left_out(
            signs, ceiling.expected, np.ones(len(signs.first), bool), np.arange(len(data.matrix.models))
        )
        places = [(a, b) for a, b in zip(*np.triu_indices(len(columns)), strict=True) if a != b]
        both = np.isfinite(taus[:, :1]) & np.isfinite(limits[:, :1])
        taus, limits = (np.where(both, values, np.nan) for values in (taus, limits))
        pair_intervals = {(columns[a], columns[b]): _corrected(taus[i], limits[i]) for i, (a, b) in enumerate(places)}
        for place, column in enumerate(columns):
            own = both[:, 0] & np.array([place in pair for pair in places], dtype=bool)
            if own.any():
                benchmark_intervals[column] = _corrected(taus[own].mean(axis=0), limits[own].mean(axis=0))
    lost = TOO_LARGE if ceiling.expected is None else LOST_MODEL
    alone = " has no tau or no noise ceiling, or its tau is above the ceiling."
    of_benchmarks = each(names, by_benchmark.tolist(), reason or f"The benchmark{alone}")
    of_pairs = {
        (int(i), int(j)): known(float(by_pair[i, j]), reason or f"The pair{alone}")
        for i, j in zip(*np.triu_indices(len(names), 1), strict=True)
    }
    return {
        "mean": mean,
        "interval": interval,
        "interval_clustered": clustered,
        "by_benchmark": of_benchmarks,
        "by_benchmark_interval": {
            name: ends(of_benchmarks[name], benchmark_intervals.get(j), lost) for j, name in enumerate(names)
        },
        "by_pair": [(names[i], names[j], tau) for (i, j), tau in of_pairs.items()],
        "by_pair_interval": [
            (names[i], names[j], ends(tau, pair_intervals.get((i, j)), lost)) for (i, j), tau in of_pairs.items()
        ],
    }


def _corrected(tau: np.ndarray, limit: np.ndarray, sizes: np.ndarray | None = None) -> Interval[float]:
    return corrected_interval(tau[0], limit[0], tau[1:], sizes)


# ----------------------------------------------------------------------------------------------------------------------
# Families of models and categories of benchmarks as clusters.


def clustered_interval(data: Data, protocol: str, mean: Value) -> Range:
    """The interval of the mean tau with families as clusters."""
    reason = no_clusters(data.matrix.families)
    if isinstance(mean, Missing) or reason:
        return mean if isinstance(mean, Missing) else Missing(reason)
    taus, _, sizes, _ = _left_out(data, data.scores[protocol], categories=False)
    return ends(mean, transformed_interval(taus[0], taus[1:], "tau", sizes), LOST_CLUSTER)


def clustered_change(data: Data, mean: Value) -> Range:
    """The interval of the change by train before test with families as clusters, over the cells known under both."""
    reason = no_clusters(data.matrix.families)
    if isinstance(mean, Missing) or reason:
        return mean if isinstance(mean, Missing) else Missing(reason)
    change, _, sizes, _ = _changes_left_out(data)
    return ends(mean, transformed_interval(change[0], change[1:], "change", sizes), LOST_CLUSTER)


def population_interval(data: Data, protocol: str, mean: Value) -> Range:
    """The interval of the mean tau for other models and other benchmarks: families and categories as clusters.

    Models of a table without families are clusters of their own.
    """
    reason = no_categories(data.categories)
    if isinstance(mean, Missing) or reason:
        return mean if isinstance(mean, Missing) else Missing(reason)
    taus, categories, sizes, of_categories = _left_out(data, data.scores[protocol])
    return ends(mean, transformed_interval(taus[0], taus[1:], "tau", sizes, categories, of_categories), LOST_CATEGORY)


def population_change(data: Data, mean: Value) -> Range:
    """As `population_interval`, of the change by train before test over the cells known under both protocols."""
    reason = no_categories(data.categories)
    if isinstance(mean, Missing) or reason:
        return mean if isinstance(mean, Missing) else Missing(reason)
    change, categories, sizes, of_categories = _changes_left_out(data)
    interval = transformed_interval(change[0], change[1:], "change", sizes, categories, of_categories)
    return ends(mean, interval, LOST_CATEGORY)


_LeftOut = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _changes_left_out(data: Data) -> _LeftOut:
    """As `_left_out`, of the change over the models with cells known under both protocols."""
    rows = data.models_in_both
    direct, trained = (_left_out(data, data.compared_scores[p][rows], rows) for p in PROTOCOLS)
    families = cluster_numbers(data.matrix.families[rows])
    return trained[0] - direct[0], trained[1] - direct[1], np.bincount(families), direct[3]


def _left_out(data: Data, scores: np.ndarray, rows: np.ndarray | None = None, *, categories: bool = True) -> _LeftOut:
    """Mean taus of `scores`, all and without each family; without each category; models with a score by family;
    benchmarks by category. `rows`: which models the scores are of."""
    families = cluster_numbers(data.matrix.families if rows is None else data.matrix.families[rows])
    signs = pair_signs(scores)
    taus, _ = mean_tau_left_out(signs, None, np.ones(len(signs.first), bool), families)
    sizes = np.bincount(families, np.isfinite(scores).any(axis=1))
    if not categories:
        return taus, np.empty(0), sizes, np.empty(0)
    clusters = cluster_numbers(np.array(data.categories, dtype=object))
    return taus, means_without_clusters(kendall_tau_matrix(signs), clusters), sizes, np.bincount(clusters)


# ----------------------------------------------------------------------------------------------------------------------
# Among models of like size.


def size_ratios(size: np.ndarray, signs: PairSigns) -> np.ndarray:
    """(pairs,) the larger over the smaller `size` (models,) of each pair, less rounding; NaN where one is unknown."""
    logarithm = np.log(np.where(size > 0, size, np.nan))
    return np.exp(np.abs(logarithm[signs.first] - logarithm[signs.second])) * (1 - 1e-9)


def by_ratio(data: Data, of: Scored) -> dict[str, list[RatioRow] | Missing]:
    """Agreement by distance in size and in compute; missing where fewer than two models with scores have one."""
    by_distance: dict[str, list[RatioRow] | Missing] = {}
    scored, signs = np.isfinite(of.scores).any(axis=1), pair_signs(of.scores)
    for key, size, what in zip(
        ("by_size_ratio", "by_compute_ratio"), data.matrix.sizes(), ("parameters", "pretraining compute"), strict=True
    ):
        if not data.matrix.has(of.protocol):
            by_distance[key] = Missing(no_scores(of.protocol))
        elif np.isfinite(size[scored]).sum() < 2:
            reason = f"Fewer than two of the models compared here have known {what}."
            by_distance[key] = Missing(Reason(reason, ReasonCode.TOO_FEW))
        else:
            ratio, present = size_ratios(size, signs), scored[signs.first] & scored[signs.second]
            by_distance[key] = [
                among_pairs(of, present & (ratio > low if high is None else ratio <= high), high, low)
                for low, high in RATIOS
            ]
    return by_distance


def by_ratio_in_both(data: Data, tau: Entry) -> Entry:
    """The same by protocol over the cells known under both; `tau`: the summary's entries of each protocol alone."""
    keys = "by_size_ratio", "by_compute_ratio"
    if data.whole:
        return {key: {p: tau[p][key] for p in PROTOCOLS} for key in keys}
    absent = [p for p in PROTOCOLS if not data.matrix.has(p)]
    if absent:
        return {key: dict.fromkeys(PROTOCOLS, Missing(no_scores(absent[0]))) for key in keys}
    scores, rng = data.compared_scores, section_generator("noise ceiling of models of similar size", 6)
    ceiling = {p: noise_ceiling(scores[p], measurement_error(data.matrix, p), rng) for p in PROTOCOLS}
    rows = {p: by_ratio(data, Scored(p, scores[p], ceiling[p], data.matrix.families)) for p in PROTOCOLS}
    return {key: {p: rows[p][key] for p in PROTOCOLS} for key in keys}


def among_pairs(of: Scored, pairs: np.ndarray, at_most: float | None = None, at_least: float = 1.0) -> RatioRow:
    """Mean tau over the pairs of models in a mask, its ceiling, and both corrected for noise."""
    ratio = (at_most, at_least, int(pairs.sum()))
    if pairs.sum() < LEAST_PAIRS:
        few = Missing(Reason(f"There are fewer than {LEAST_PAIRS} such pairs of models.", ReasonCode.TOO_FEW))
        return RatioRow(*ratio, few, few, few, few, few, few, few)
    signs, ceiling = pair_signs(of.scores), of.ceiling
    models = _renumbered(signs, pairs, np.arange(len(of.families)))
    families = _renumbered(signs, pairs, cluster_numbers(of.families))
    present = np.zeros(len(families), dtype=bool)
    present[signs.first[pairs]] = present[signs.second[pairs]] = True
    sizes = np.bincount(families, present)
    reason = of.no_correction
    if ceiling.expected is None and not reason:
        reason = TOO_LARGE
    expected = None if reason else ceiling.expected
    tau, limit = mean_tau_left_out(signs, expected, pairs, models)
    tau_families, limit_families = mean_tau_left_out(signs, expected, pairs, families)
    mean = known(float(tau[0]), "No pair of benchmarks has a tau among these pairs of models.")
    corrected = known(float(noise_corrected_tau(tau[0], limit[0])), reason or ABOVE_CEILING)
    interval = ends(mean, transformed_interval(tau[0], tau[1:], "tau"), LOST_MODEL)
    of_corrected = ends(corrected, _corrected(tau, limit), LOST_MODEL)
    clusters = no_clusters(of.families)
    clustered: Range = Missing(clusters)
    corrected_clustered: Range = Missing(clusters)
    if not clusters:
        clustered = ends(mean, transformed_interval(tau_families[0], tau_families[1:], "tau", sizes), LOST_CLUSTER)
        corrected_clustered = ends(corrected, _corrected(tau_families, limit_families, sizes), LOST_CLUSTER)
    return RatioRow(
        *ratio,
        mean=mean,
        ceiling=known(float(limit[0]), reason or LOST_MODEL),
        corrected=corrected,
        interval=interval,
        interval_clustered=over_families(clustered, interval, of.families),
        corrected_interval=of_corrected,
        corrected_interval_clustered=over_families(corrected_clustered, of_corrected, of.families),
    )


def _renumbered(signs: PairSigns, pairs: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """`clusters` renumbered so that those without a pair in the mask are one, left out at the end as nothing is."""
    present = np.unique(clusters[np.concatenate([signs.first[pairs], signs.second[pairs]])])
    numbers = np.full(int(clusters.max()) + 1, -1)
    numbers[present] = np.arange(len(present))
    # models without such a pair take no part: any number will do
    return np.maximum(numbers[clusters], 0)


# ----------------------------------------------------------------------------------------------------------------------
# Sections.


def noise_leaves(taus: dict[str, tuple[Value, Value]]) -> str:
    """The noise ceilings that are shown, in a sentence to follow that on the taus. `taus`: with their ceilings."""
    limits = {p: shown_ceiling(number(ceiling), number(tau)) for p, (tau, ceiling) in taus.items()}
    parts = [f"{decimal(limit)} {UNDER[p]}" for p, limit in limits.items() if np.isfinite(limit)]
    return f" Noise would leave benchmarks that order all models alike {' and '.join(parts)}." if parts else ""


def headline_rows(tau: Entry, improvement: Entry) -> tuple[dict[str, RatioRow], bool]:
    """The rows of models that a reader chooses between by protocol, where they have a tau, and whether these are over
    the cells known under both protocols."""
    for by_protocol, both in (
        (improvement["by_size_ratio"], True),
        ({p: tau[p]["by_size_ratio"] for p in PROTOCOLS}, False),
    ):
        rows = {
            p: row
            for p, of_protocol in by_protocol.items()
            for row in ([] if isinstance(of_protocol, Missing) else of_protocol)
            if row.at_most == HEADLINE_RATIO and is_known(row.mean)
        }
        if len(rows) == len(PROTOCOLS) or not both:
            break
    return rows, both


def similar_sizes(data: Data, tau: Entry, improvement: Entry, pooled: Entry) -> Part:
    """Agreement by distance in parameters and in compute, with ceilings and corrected.

    The finding is on models that a reader chooses between: those of like size.
    """
    finding = _pooled_finding(data, pooled) if data.lacks_many else _size_finding(data, tau, improvement)
    rows = []
    for what, key in (("parameters", "by_size_ratio"), ("compute", "by_compute_ratio")):
        sources = [("all of the protocol", {p: tau[p][key] for p in PROTOCOLS})]
        if not data.whole and is_known(improvement["mean"]):
            sources.append(("known under both", improvement[key]))
        rows += [
            {
                "cells": cells,
                "by": what,
                "models": f"within {row.at_most:g}×" if row.at_most else f"more than {row.at_least:g}× apart",
                "protocol": figures.PROTOCOL_LABELS[p],
                "pairs": row.pairs_of_models,
                "tau": row.mean,
                **as_columns(row.interval),
                **as_columns(row.interval_clustered, "low_families", "high_families"),
                "ceiling": row.ceiling,
                "corrected": row.corrected,
                **as_columns(row.corrected_interval, "corrected_low", "corrected_high"),
                **as_columns(row.corrected_interval_clustered, "corrected_low_families", "corrected_high_families"),
            }
            for cells, by_protocol in sources
            for p, of_protocol in by_protocol.items()
            for row in ([] if isinstance(of_protocol, Missing) else of_protocol)
        ]
    if not rows:
        return Part({}, findings=[finding])
    frame = pd.DataFrame(sorted(rows, key=lambda row: row["cells"] == "known under both"))
    drawn = frame[frame["cells"] == frame["cells"].iloc[-1]]  # those known under both protocols where some are not
    charts = [_ratio_figure(with_ceiling(part), str(what)) for what, part in drawn.groupby("by", sort=False)]
    frame = frame.drop(columns="cells") if data.whole else frame
    numbers = [name for name in frame.columns if name not in ("cells", "by", "models", "protocol", "pairs")]
    section = Section(
        "Models of similar size",
        hint="by distance in parameters and in compute, with noise ceilings",
        explanation="Kendall's tau over only those pairs of models whose numbers of parameters (or pretraining "
        "compute) differ by at most the given ratio. The ceiling is the tau that noise alone would allow on the same "
        "pairs. The noise-corrected tau is an estimate without that noise. Where cells are missing, the figure uses "
        "the cells known under both protocols. Where the families of the models are known, there are two intervals. "
        + WHICH_INTERVAL.removeprefix("There are two intervals. "),
        figures=charts,
        tables=[
            Table(
                "tau_by_size_ratio",
                "Agreement by distance in size",
                frame,
                formats=dict.fromkeys(numbers, ".3f"),
                labels=TAU_LABELS,
            )
        ],
    )
    return Part({}, section, [finding])


def _ratio_figure(frame: pd.DataFrame, what: str) -> Figure:
    chart = figures.interval_dots(
        frame,
        y="models",
        value="tau",
        mark="ceiling",
        title="Mean tau",
        y_order=frame["models"].unique().tolist(),
        tooltip=figures.tooltips(
            models="Models", protocol="Protocol", pairs="Pairs of models", tau="tau|.3f", low="from|.3f",
            high="to|.3f", ceiling="noise ceiling|.3f", corrected="noise-corrected|.3f",
        ),
        offset="protocol",
        row_height=30,
    )  # fmt: skip
    caption = "Dot: mean tau. Line: 95% interval over models. Tick: noise ceiling."
    return Figure(f"tau_by_{what}_ratio", f"By distance in {what}", chart, caption=caption)


def _size_finding(data: Data, tau: Entry, improvement: Entry) -> Finding | None:
    rows, both = headline_rows(tau, improvement)
    if not rows:
        return None
    parts = [f"{both_intervals(row.mean, row.interval, row.interval_clustered)} {UNDER[p]}" for p, row in rows.items()]
    without = [f"{value_in_words(row.corrected)} {UNDER[p]}" for p, row in rows.items() if is_known(row.corrected)]
    noise = noise_leaves({p: (row.mean, row.ceiling) for p, row in rows.items()})
    noise += f" The noise-corrected tau is {' and '.join(without)}." if without else ""
    pairs = " and ".join(dict.fromkeys(count(row.pairs_of_models, "pair") for row in rows.values()))
    cells = ""
    if not data.whole and len(rows) > 1:
        common = f", over the {count(int(data.in_both.sum()), 'cell')} known under both protocols"
        cells = common if both else ", each protocol over all cells it has"
    return Finding(
        "Among models at most 2× apart in size, two benchmarks' rankings "
        f"have a mean Kendall's tau of {' and '.join(parts)}.{noise}",
        f"{pairs} of models{cells}. {SIZE_ALONE} {which_interval([row.interval_clustered for row in rows.values()])}",
    )


def _pooled_finding(data: Data, pooled: Entry) -> Finding | None:
    """The same where cells are missing; none where too few models have known cells."""
    row = pooled.get("like_size")
    if row is None or not any(is_known(interval) for interval in row["interval"].values()):
        return None
    clustered = row["interval_clustered"]
    parts = [f"{both_intervals(mean, row['interval'][p], clustered[p])} {UNDER[p]}" for p, mean in row["mean"].items()]
    known_under = " known under both protocols" if len(parts) > 1 else ""
    return Finding(
        "Among models at most 2× apart in size, two benchmarks' rankings "
        f"have{data.assumed} a pooled Kendall's tau of {' and '.join(parts)}.",
        f"{row['comparisons']:,} comparisons of two models on two benchmarks{known_under}, each counted once: "
        f"{count(row['pairs_of_models'], 'pair')} of {count(row['models'], 'model')}. {SIZE_ALONE}"
        f" {which_interval(list(clustered.values()))}",
    )


def without_noise(data: Data, tau: Entry) -> Part:
    """Agreement over all models without measurement error."""
    shown = {p: tau[p]["corrected"] for p in PROTOCOLS if is_known(tau[p]["corrected"]["mean"])}
    if not shown:
        return Part({})
    parts = [
        f"{both_intervals(corrected['mean'], corrected['interval'], corrected['interval_clustered'])} {UNDER[p]}"
        for p, corrected in shown.items()
    ]
    ceilings = [f"{value_in_words(tau[p]['ceiling'])} {UNDER[p]}" for p in shown]
    finding = Finding(
        f"Over all models, the noise-corrected tau{data.assumed} is {' and '.join(parts)}.",
        "It estimates the tau without the noise that was measured: of items, and of seeds where fine-tuning was "
        "repeated. The observed tau is corrected with a noise ceiling: the tau that would be seen if all benchmarks "
        "ordered the models identically and only this noise set them apart. The "
        f"correction is not a simple division. The ceiling is {' and '.join(ceilings)}.",
    )
    return Part({}, findings=[finding])
