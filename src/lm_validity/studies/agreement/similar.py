"""Agreement with noise taken out, and among models of like size or compute; families and categories as clusters."""

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.statistics import section_generator
from lm_validity.studies.agreement.data import (
    LOST_CLUSTER,
    LOST_MODEL,
    WHICH_INTERVAL,
    WHY_ABOVE,
    Data,
    Entry,
    Range,
    Value,
    both_intervals,
    ends,
    measurement_error,
    no_clusters,
    no_correction,
    noise_leaves,
    over_families,
    value_in_words,
    which_interval,
    with_ceiling,
)
from lm_validity.studies.agreement.statistics.noise import (
    Ceiling,
    corrected_interval,
    mean_tau_left_out,
    noise_ceiling,
    noise_corrected_tau,
)
from lm_validity.studies.agreement.statistics.ranking import PairSigns, pair_signs
from lm_validity.studies.agreement.statistics.resampling import (
    cluster_numbers,
    transformed_interval,
)
from lm_validity.summaries import Missing, as_columns, is_known, known
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import UNDER, Reason, ReasonCode, count, no_scores

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


ByRatio = dict[str, dict[str, list[RatioRow] | Missing]]  # by `by_size_ratio`, `by_compute_ratio`, then by protocol


class Scored(NamedTuple):
    """Scores (models, benchmarks) under a protocol with their noise ceiling, and the models' families."""

    protocol: str
    scores: np.ndarray
    ceiling: Ceiling
    families: np.ndarray


# ----------------------------------------------------------------------------------------------------------------------
# Among models of like size.


def size_ratios(size: np.ndarray, signs: PairSigns) -> np.ndarray:
    """(pairs,) the larger over the smaller `size` (models,) of each pair, less rounding; NaN where one is unknown."""
    logarithm = np.log(np.where(size > 0, size, np.nan))
    return np.exp(np.abs(logarithm[signs.first] - logarithm[signs.second])) * (1 - 1e-9)


def by_ratio(data: Data, scores: dict[str, np.ndarray], ceiling: dict[str, Ceiling]) -> ByRatio:
    """Agreement by distance in size and in compute; missing where fewer than two models with scores have one."""
    by_distance: ByRatio = {"by_size_ratio": {}, "by_compute_ratio": {}}
    for (by_protocol, size, what), p in product(
        zip(by_distance.values(), data.matrix.sizes(), ("parameters", "pretraining compute"), strict=True), PROTOCOLS
    ):
        scored, signs = np.isfinite(scores[p]).any(axis=1), pair_signs(scores[p])
        if not data.matrix.has(p):
            by_protocol[p] = Missing(no_scores(p))
        elif np.isfinite(size[scored]).sum() < 2:
            reason = f"Fewer than two of the models compared here have known {what}."
            by_protocol[p] = Missing(Reason(reason, ReasonCode.TOO_FEW))
        else:
            ratio, present = size_ratios(size, signs), scored[signs.first] & scored[signs.second]
            of = Scored(p, scores[p], ceiling[p], data.matrix.families)
            by_protocol[p] = [
                among_pairs(of, present & (ratio > low if high is None else ratio <= high), high, low)
                for low, high in RATIOS
            ]
    return by_distance


def by_ratio_in_both(data: Data, own: ByRatio) -> ByRatio:
    """The same over the cells known under both; `own`: over all cells of each."""
    if data.whole:
        return own
    absent = [p for p in PROTOCOLS if not data.matrix.has(p)]
    if absent:
        return {key: dict.fromkeys(PROTOCOLS, Missing(no_scores(absent[0]))) for key in own}
    rng = section_generator("noise ceiling of models of similar size", 6)
    errors = {p: measurement_error(data.matrix, p) for p in PROTOCOLS}
    return by_ratio(
        data, data.compared_scores, {p: noise_ceiling(data.compared_scores[p], errors[p], rng) for p in PROTOCOLS}
    )


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
    reason = no_correction(ceiling, of.scores, of.protocol)
    if ceiling.expected is None and not reason:
        reason = TOO_LARGE
    expected = None if reason else ceiling.expected
    tau, limit = mean_tau_left_out(signs, expected, pairs, models)
    mean = known(float(tau[0]), "No pair of benchmarks has a tau among these pairs of models.")
    corrected = known(float(noise_corrected_tau(tau[0], limit[0])), reason or ABOVE_CEILING)
    interval = ends(mean, transformed_interval(tau[0], tau[1:], "tau"), LOST_MODEL)
    of_corrected = ends(corrected, corrected_interval(tau[0], limit[0], tau[1:]), LOST_MODEL)
    clusters = no_clusters(of.families)
    clustered: Range = Missing(clusters)
    corrected_clustered: Range = Missing(clusters)
    if not clusters:
        taus, limits = mean_tau_left_out(signs, expected, pairs, families)
        clustered = ends(mean, transformed_interval(taus[0], taus[1:], "tau", sizes), LOST_CLUSTER)
        corrected_clustered = ends(corrected, corrected_interval(taus[0], limits[0], taus[1:], sizes), LOST_CLUSTER)
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


def similar_sizes(data: Data, own: ByRatio, in_both: ByRatio, pooled: Entry) -> Part:
    """Agreement by distance in parameters and in compute, with ceilings and corrected.

    The finding is on models that a reader chooses between: those of like size.
    """
    finding = _pooled_finding(data, pooled) if data.lacks_many else _size_finding(data, own, in_both)
    rows = []
    for what, key in (("parameters", "by_size_ratio"), ("compute", "by_compute_ratio")):
        sources = [("all of the protocol", own[key])]
        if not data.whole and data.improved[1]:
            sources.append(("known under both", in_both[key]))
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


def _size_finding(data: Data, own: ByRatio, in_both: ByRatio) -> Finding | None:
    all_rows, common_rows = (
        {
            p: row
            for p, of_protocol in ratios["by_size_ratio"].items()
            for row in ([] if isinstance(of_protocol, Missing) else of_protocol)
            if row.at_most == HEADLINE_RATIO and is_known(row.mean)
        }
        for ratios in (own, in_both)
    )
    both = len(common_rows) == len(PROTOCOLS)
    rows = common_rows if both else all_rows
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
