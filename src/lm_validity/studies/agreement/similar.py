"""Agreement among models of like size or compute and within families of models, and with rankings by perplexity."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.missing import Missing, Reason, ReasonCode, as_columns, is_known, known, number
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.results.summary import page_only
from lm_validity.statistics import section_generator
from lm_validity.studies.agreement.data import JACKKNIFED, Data, draws
from lm_validity.studies.agreement.intervals import ByProtocol, Range, RangeByProtocol, Value, each, ends, over_families
from lm_validity.studies.agreement.notes import WHY_ABOVE
from lm_validity.studies.agreement.pooled import HEADLINE_RATIO, LEAST_PAIRS, Pooled
from lm_validity.studies.agreement.reasons import (
    LOST_CLUSTER,
    LOST_MODEL,
    NO_FAMILIES,
    SMALL_FAMILY,
    no_clusters,
    no_correction,
)
from lm_validity.studies.agreement.score_matrix import (
    MINIMUM_FAMILY,
    distance_groups,
    family_members,
    large_families,
    measurement_error,
    size_ratios,
    tuned_members,
)
from lm_validity.studies.agreement.statistics.noise import (
    Ceiling,
    ExpectedSigns,
    corrected_interval,
    mean_tau_left_out,
    noise_ceiling,
    noise_corrected_tau,
)
from lm_validity.studies.agreement.statistics.ranking import (
    PairSigns,
    PerplexityAgreement,
    finite_mean,
    kendall_tau_matrix,
    known_in_all,
    mean_over_pairs,
    pair_signs,
    perplexity_agreement,
    resampled_kendall_tau,
)
from lm_validity.studies.agreement.statistics.resampling import (
    cluster_numbers,
    multiplicities,
    percentile_interval,
    resampled_mean_tau,
    transformed_interval,
)
from lm_validity.studies.agreement.wording import (
    WHICH_INTERVAL,
    both_intervals,
    noise_leaves,
    over_both,
    plotted,
    shown_mean,
    value_in_words,
    which_interval,
    with_ceiling,
)
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import UNDER, count, no_scores

# model sizes within these ratios, and beyond the last one
RATIOS = ((1.0, 1.25), (1.0, 2.0), (1.0, 4.0), (4.0, None))
MOST_CELLS = 3600  # of a heatmap
ABOVE_CEILING = f"The tau observed is above its noise ceiling, so there is no noise left to correct for. {WHY_ABOVE}"
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


LABELS = figures.PROTOCOL_LABELS
RatioRows = list[RatioRow] | Missing


class ByRatio(NamedTuple):
    """Agreement by protocol among pairs of models by their distance in size, and in pretraining compute."""

    by_size: dict[str, RatioRows]
    by_compute: dict[str, RatioRows]


class Scored(NamedTuple):
    """Scores (models, benchmarks) under a protocol with their noise ceiling, and the models' families."""

    protocol: str
    scores: np.ndarray
    ceiling: Ceiling
    families: np.ndarray


# ----------------------------------------------------------------------------------------------------------------------
# Among models of like size.


def by_ratio(data: Data, scores: dict[str, np.ndarray], ceiling: dict[str, Ceiling]) -> ByRatio:
    """Agreement by distance in size and in compute; missing where fewer than two models with scores have one."""
    by_distance = ByRatio({}, {})
    for (by_protocol, size, quantity), p in product(
        zip(by_distance, data.matrix.sizes(), ("parameters", "pretraining compute"), strict=True), PROTOCOLS
    ):
        scored = np.isfinite(scores[p]).any(axis=1)
        first, second = np.triu_indices(len(size), 1)
        if not data.matrix.has(p):
            by_protocol[p] = Missing(no_scores(p))
        elif np.isfinite(size[scored]).sum() < 2:
            reason = f"Fewer than two of the models compared here have known {quantity}."
            by_protocol[p] = Missing(Reason(reason, ReasonCode.TOO_FEW))
        else:
            ratio, present = size_ratios(size)[first, second], scored[first] & scored[second]
            scored_models = Scored(p, scores[p], ceiling[p], data.matrix.families)
            masks = [present & (ratio > low if high is None else ratio <= high) for low, high in RATIOS]
            by_protocol[p] = among_pairs(scored_models, masks, RATIOS)
    return by_distance


def by_ratio_in_both(data: Data, in_each: ByRatio) -> ByRatio:
    """The same over the cells known under both; `in_each`: over all cells of each."""
    if data.whole:
        return in_each
    absent = [p for p in PROTOCOLS if not data.matrix.has(p)]
    if absent:
        missing: dict[str, RatioRows] = dict.fromkeys(PROTOCOLS, Missing(no_scores(absent[0])))
        return ByRatio(missing, missing)
    rng = section_generator("noise ceiling of models of similar size", 6)
    errors, groups = {p: measurement_error(data.matrix, p) for p in PROTOCOLS}, distance_groups(data.matrix.sizes())
    ceilings = {p: noise_ceiling(data.compared_scores[p], errors[p], rng, groups=groups) for p in PROTOCOLS}
    return by_ratio(data, data.compared_scores, ceilings)


class LeftOut(NamedTuple):
    """Mean taus over some pairs of models, (1 + clusters,): of all and without each cluster that has such a pair;
    `limit`: the ceiling of all; `sizes`: (clusters,) their numbers of models that do."""

    taus: np.ndarray
    limit: float
    sizes: np.ndarray


def among_pairs(
    scored: Scored, masks: list[np.ndarray], ratios: Sequence[tuple[float, float | None]]
) -> list[RatioRow]:
    """For each mask of pairs of models, of one of the `ratios` of sizes: the mean tau over them, its ceiling, and both
    corrected for noise."""
    signs, ceiling = pair_signs(scored.scores), scored.ceiling
    reason = no_correction(ceiling, scored.scores, scored.protocol)
    expected, clusters = ceiling.expected if reason is None else None, no_clusters(scored.families)
    enough = [index for index, pairs in enumerate(masks) if pairs.sum() >= LEAST_PAIRS]
    chosen = np.array([masks[index] for index in enough], dtype=bool).reshape(len(enough), len(signs.first))
    models = _left_out(signs, expected, chosen, np.arange(len(scored.families)))
    families = _left_out(signs, expected, chosen, cluster_numbers(scored.families)) if clusters is None else []
    rows = []
    for index, (pairs, (low, high)) in enumerate(zip(masks, ratios, strict=True)):
        size = high, low, int(pairs.sum())
        if index not in enough:
            too_few = Missing(Reason(f"There are fewer than {LEAST_PAIRS} such pairs of models.", ReasonCode.TOO_FEW))
            rows.append(RatioRow(*size, too_few, too_few, too_few, too_few, too_few, too_few, too_few))
            continue
        row_index = enough.index(index)
        of_families = families[row_index] if clusters is None else Missing(clusters)
        rows.append(_ratio_row(scored, size, models[row_index], of_families, reason))
    return rows


def _left_out(
    signs: PairSigns, expected: ExpectedSigns | None, masks: np.ndarray, clusters: np.ndarray
) -> list[LeftOut]:
    """Of each mask (masks, pairs)."""
    if not len(masks):
        return []
    left_out_sizes = []
    for pairs, taus, limit in zip(masks, *mean_tau_left_out(signs, expected, masks, clusters), strict=True):
        in_pairs = np.zeros(len(clusters), dtype=bool)
        in_pairs[signs.first[pairs]] = in_pairs[signs.second[pairs]] = True
        sizes = np.bincount(clusters, in_pairs, minlength=len(taus) - 1)
        not_empty = np.concatenate([[True], sizes > 0])
        left_out_sizes.append(LeftOut(taus[not_empty], float(limit), sizes[sizes > 0]))
    return left_out_sizes


def _ratio_row(
    scored: Scored,
    size: tuple[float | None, float, int],
    models: LeftOut,
    families: LeftOut | Missing,
    reason: str | None,
) -> RatioRow:
    """`reason`: why nothing is corrected for noise, None where it is."""
    tau, limit = models.taus[0], models.limit
    mean = known(float(tau), "No pair of benchmarks has a tau among these pairs of models.")
    corrected = known(float(noise_corrected_tau(tau, limit)), reason or ABOVE_CEILING)
    interval = ends(mean, transformed_interval(tau, models.taus[1:], "tau"), LOST_MODEL)
    of_corrected = ends(corrected, corrected_interval(tau, limit, models.taus[1:]), LOST_MODEL)
    clustered: Range
    corrected_clustered: Range
    if isinstance(families, Missing):
        clustered = corrected_clustered = families
    else:
        taus, sizes = families.taus, families.sizes
        clustered = ends(mean, transformed_interval(taus[0], taus[1:], "tau", sizes), LOST_CLUSTER)
        corrected_clustered = ends(
            corrected, corrected_interval(taus[0], families.limit, taus[1:], sizes), LOST_CLUSTER
        )
    return RatioRow(
        *size,
        mean=mean,
        ceiling=known(limit, reason or LOST_MODEL),
        corrected=corrected,
        interval=interval,
        interval_clustered=over_families(clustered, interval, scored.families),
        corrected_interval=of_corrected,
        corrected_interval_clustered=over_families(corrected_clustered, of_corrected, scored.families),
    )


# ----------------------------------------------------------------------------------------------------------------------
# Sections.


def similar_sizes(data: Data, in_each: ByRatio, in_both: ByRatio, pooled: dict[str, Pooled]) -> Part:
    """Agreement by distance in parameters and in compute, with ceilings and corrected.

    The finding is on models that a reader chooses between: those of like size.
    """
    finding = _pooled_finding(data, pooled) if data.lacks_many else _size_finding(data, in_each, in_both)
    rows = []
    for quantity, of_all, of_common in zip(("parameters", "compute"), in_each, in_both, strict=True):
        sources = [("all of the protocol", of_all)]
        if not data.whole and data.improved.compared:
            sources.append(("known under both", of_common))
        rows += [
            {
                "cells": cells,
                "by": quantity,
                "models": f"within {row.at_most:g}×" if row.at_most else f"more than {row.at_least:g}× apart",
                "protocol": LABELS[p],
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
    charts = [_ratio_figure(with_ceiling(part), str(quantity)) for quantity, part in drawn.groupby("by", sort=False)]
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


def _ratio_figure(frame: pd.DataFrame, quantity: str) -> Figure:
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
    return Figure(f"tau_by_{quantity}_ratio", f"By distance in {quantity}", chart, caption=caption)


def _size_finding(data: Data, in_each: ByRatio, in_both: ByRatio) -> Finding | None:
    all_rows, common_rows = (
        {
            p: row
            for p, of_protocol in ratios.by_size.items()
            for row in ([] if isinstance(of_protocol, Missing) else of_protocol)
            if row.at_most == HEADLINE_RATIO and is_known(row.mean)
        }
        for ratios in (in_each, in_both)
    )
    two_protocols = len(common_rows) == len(PROTOCOLS)
    rows = common_rows if two_protocols else all_rows
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
        cells = common if two_protocols else ", each protocol over all cells it has"
    return Finding(
        "Among models at most 2× apart in size, two benchmarks' rankings "
        f"have a mean Kendall's tau of {' and '.join(parts)}.{noise}",
        f"{pairs} of models{cells}. {SIZE_ALONE} {which_interval([row.interval_clustered for row in rows.values()])}",
    )


def _pooled_finding(data: Data, pooled: dict[str, Pooled]) -> Finding | None:
    """The same where cells are missing; none where too few models have known cells."""
    row = pooled.get("like_size")
    if row is None or not any(is_known(interval) for interval in row.interval.values()):
        return None
    clustered = row.interval_clustered
    parts = [f"{both_intervals(mean, row.interval[p], clustered[p])} {UNDER[p]}" for p, mean in row.mean.items()]
    known_under = " known under both protocols" if len(parts) > 1 else ""
    return Finding(
        "Among models at most 2× apart in size, two benchmarks' rankings "
        f"have{data.assumed} a pooled Kendall's tau of {' and '.join(parts)}.",
        f"{row.comparisons:,} comparisons of two models on two benchmarks{known_under}, each counted once: "
        f"{count(row.pairs_of_models, 'pair')} of {count(row.models, 'model')}. {SIZE_ALONE}"
        f" {which_interval(list(clustered.values()))}",
    )


# ----------------------------------------------------------------------------------------------------------------------
# Heatmaps of taus, of several sections.


def tau_heatmaps(
    values: dict[tuple[str, str], np.ndarray],
    rows: list[str],
    columns: list[str],
    *,
    caption: str = "",
    without_diagonal: bool = False,
    number_format: str | None = None,
    row_height: int,
) -> list[Figure]:
    """Heatmaps of taus on one colour scale, which starts below 0 only where a tau does.

    `values`: (rows, columns) arrays by (file name, title); `number_format` writes each into its cell. None of more
    cells than can be seen (`heatmap_notes`).
    """
    if heatmap_notes(rows, columns):
        return []
    lowest = min((float(np.nanmin(tau)) for tau in values.values() if np.isfinite(tau).any()), default=0.0)
    return [
        Figure(
            name,
            title,
            figures.heatmap(
                figures.matrix_frame(tau, rows, columns, "tau", without_diagonal=without_diagonal),
                x="column",
                y="row",
                value="tau",
                title="Kendall's tau-b",
                x_order=columns,
                y_order=rows,
                tooltip=figures.tooltips(row="", column="with", tau="tau|.3f"),
                domain=(min(0.0, np.floor(10 * lowest) / 10), 1.0),
                number_format=number_format,
                row_height=row_height,
            ),
            caption=caption,
            min_width=460 if len(columns) > 12 else 320,
        )
        for (name, title), tau in values.items()
    ]


def heatmap_notes(rows: list[str], columns: list[str]) -> list[str]:
    """That a heatmap has too many cells to be seen."""
    cells = len(rows) * len(columns)
    return [f"A heatmap of {cells:,} taus could not be read and is left out."] if cells > MOST_CELLS else []


def by_protocol(name: str, values: dict[str, np.ndarray], title: str = "{}") -> dict[tuple[str, str], np.ndarray]:
    """The grids of `tau_heatmaps` from values by protocol, under (file name, title)."""
    return {(f"{name}_{p}", title.format(label)): values[p] for p, label in LABELS.items()}


# ----------------------------------------------------------------------------------------------------------------------
# Families of models.


def families_of_models(data: Data) -> Part:
    """Agreement over the models of each family."""
    matrix, large = data.matrix, large_families(data.matrix.families)
    taus: dict[str, ByProtocol] = {}
    in_both: dict[str, ByProtocol] = {}
    for name, members in family_members(matrix.families).items():
        reason_alone = "No two benchmarks have a tau among the models of the family." if name in large else SMALL_FAMILY
        reasons = {p: reason_alone if matrix.has(p) else no_scores(p) for p in PROTOCOLS}
        of_family = {p: kendall_tau_matrix(pair_signs(data.scores[p][members])) for p in PROTOCOLS}
        means = {p: mean_over_pairs(of_family[p]) if name in large else None for p in PROTOCOLS}
        taus[name] = {p: known(means[p], reasons[p]) for p in PROTOCOLS}
        if name in large:
            common = known_in_all({p: kendall_tau_matrix(pair_signs(data.common[p][members])) for p in PROTOCOLS})
            in_both[name] = {p: known(mean_over_pairs(common[p]), reasons[p]) for p in PROTOCOLS}
    rng = draws("families")
    intervals: dict[str, RangeByProtocol] = {}
    for name, members in large.items():
        if data.no_intervals is not None:
            intervals[name] = dict.fromkeys(PROTOCOLS, Missing(data.no_intervals))
            continue
        weights = multiplicities(len(members), data.resamples, rng)
        resampled = {p: resampled_mean_tau(pair_signs(data.scores[p][members]), weights) for p in PROTOCOLS}
        intervals[name] = {p: ends(None, percentile_interval(taus, len(members))) for p, taus in resampled.items()}
    summary = {"families": taus, "families_in_both": in_both, "families_interval": intervals}
    if not any(is_known(tau) for values in taus.values() for tau in values.values()):
        return Part(summary, Section("Within families", notes=[NO_FAMILIES]))
    frame = pd.DataFrame(
        {
            "family": family,
            "models": int((matrix.families == family).sum()),
            "protocol": label,
            "tau": values[p],
            **as_columns(
                intervals[family][p]
                if family in intervals
                else values[p]
                if isinstance(values[p], Missing)
                else Missing(NO_FAMILIES)
            ),
        }
        for family, values in taus.items()
        for p, label in LABELS.items()
    )
    compared = [values for values in in_both.values() if all(map(is_known, values.values()))]
    larger = sum(number(values[TRAINED]) > number(values[DIRECT]) for values in compared)
    chart = figures.interval_dots(
        plotted(frame[frame["family"].isin(list(in_both))]),
        y="family",
        value="tau",
        title="Mean tau over pairs of benchmarks, models of the family only",
        y_order=list(in_both),
        tooltip=figures.tooltips(
            family="Family", models="Models", protocol="Protocol", tau="tau|.3f", low="from|.3f", high="to|.3f"
        ),
        offset="protocol",
        row_height=26,
    )
    formats = {"tau": ".3f", "low": ".3f", "high": ".3f"}
    section = Section(
        "Within families",
        hint="models of one family only",
        finding=f"In {larger} of {count(len(compared), 'family', 'families')} the benchmarks agree more under train "
        f"before test{over_both(partly=not data.whole)}."
        if compared
        else "",
        explanation="Ranking only the models of one family removes differences between families, such as what they saw "
        "in training.",
        figures=[Figure("tau_by_family", "Mean tau within each family", chart, wide=True)],
        tables=[Table("tau_by_family", "Mean tau within each family", frame, formats=formats, folded=True)],
    )
    return Part(summary, section)


# ----------------------------------------------------------------------------------------------------------------------
# Perplexity.

COMPARISONS = {
    "corpus_benchmark": "corpus with benchmark",
    "corpus_corpus": "corpus with corpus",
    "average_average": "average perplexity with average score",
}
KINDS = {"base": "base models", "instruction_tuned": "instruction-tuned ones"}


@dataclass(frozen=True)
class Perplexity:
    """Agreement of `corpora` with benchmarks and with each other and of both averages, by protocol, of `models` with a
    perplexity; `in_both`: the three over the cells known under both protocols. `same_corpus`: by corpus, of its two
    rankings. `before_after`: by kind of model, of direct perplexity with scores under train before test.

    `taus`: by protocol the taus behind the means, `before_after_taus`: by kind (corpora, benchmarks).
    """

    models: int
    corpora: list[str]
    corpus_benchmark: ByProtocol
    corpus_benchmark_interval: RangeByProtocol
    corpus_corpus: ByProtocol
    corpus_corpus_interval: RangeByProtocol
    average_average: ByProtocol
    average_average_interval: RangeByProtocol
    same_corpus: dict[str, Value]
    in_both: dict[str, ByProtocol]
    before_after: dict[str, Value]
    before_after_interval: dict[str, Range]
    taus: dict[str, PerplexityAgreement] = page_only()
    before_after_taus: dict[str, np.ndarray] = page_only()


def compare_perplexity(data: Data) -> Perplexity | Missing:
    """Corpora against benchmarks in both protocols, and direct perplexity against train-before-test scores."""
    matrix = data.matrix
    if not matrix.is_corpus.any():
        return Missing("There is no perplexity corpus in the tables.")
    corpora = [name for name, corpus in zip(matrix.benchmarks, matrix.is_corpus, strict=True) if corpus]
    taus = {p: perplexity_agreement(data.corpora[p], data.scores[p]) for p in PROTOCOLS}
    means = _perplexity_means(data, taus)
    common_corpora = known_in_all(data.corpora)
    in_both_protocols = {p: perplexity_agreement(common_corpora[p], data.common[p]) for p in PROTOCOLS}
    corpus_to_benchmark, corpus_to_corpus = (
        known_in_all({p: getattr(of_protocol, name) for p, of_protocol in in_both_protocols.items()})
        for name in ("corpus_benchmark", "corpus_corpus")
    )
    in_both_protocols = {
        p: replace(in_both_protocols[p], corpus_benchmark=corpus_to_benchmark[p], corpus_corpus=corpus_to_corpus[p])
        for p in PROTOCOLS
    }
    tuned = tuned_members(matrix)
    before_after_taus = {
        kind: kendall_tau_matrix(
            pair_signs(data.corpora[DIRECT][rows]), other_signs=pair_signs(data.scores[TRAINED][rows])
        )
        for kind, rows in tuned.items()
    }
    before_after = {
        kind: known(finite_mean(tau), _no_before_after(data, kind)) for kind, tau in before_after_taus.items()
    }
    intervals, before_after_intervals = _perplexity_intervals(data, means, before_after)
    twice = (np.column_stack([data.corpora[p][:, index] for p in PROTOCOLS]) for index in range(len(corpora)))
    same_corpus = each(
        corpora,
        (float(kendall_tau_matrix(pair_signs(columns))[0, 1]) for columns in twice),
        Reason("Fewer than two models have its perplexity under both protocols, or they are tied.", ReasonCode.TOO_FEW),
    )
    return Perplexity(
        models=max(of_protocol.models for of_protocol in taus.values()),
        corpora=corpora,
        corpus_benchmark=means["corpus_benchmark"],
        corpus_benchmark_interval=intervals["corpus_benchmark"],
        corpus_corpus=means["corpus_corpus"],
        corpus_corpus_interval=intervals["corpus_corpus"],
        average_average=means["average_average"],
        average_average_interval=intervals["average_average"],
        same_corpus=same_corpus,
        in_both=_perplexity_means(data, in_both_protocols, " under both protocols"),
        before_after=before_after,
        before_after_interval=before_after_intervals,
        taus=taus,
        before_after_taus=before_after_taus,
    )


def perplexity(data: Data) -> Part:
    """Whether perplexity ranks models as benchmarks do: heatmaps, means with intervals, each corpus with itself."""
    entry, tasks = compare_perplexity(data), data.tasks
    if isinstance(entry, Missing):
        return Part({"perplexity": entry})
    corpora, before_after, same_corpus = entry.corpora, entry.before_after, entry.same_corpus
    together = {
        p: np.hstack([of_protocol.corpus_corpus, of_protocol.corpus_benchmark]) for p, of_protocol in entry.taus.items()
    }
    charts = tau_heatmaps(
        by_protocol("perplexity", together), corpora, [*corpora, *tasks], without_diagonal=True, row_height=26
    )
    apart = {
        (f"perplexity_before_{kind}", "Base models" if kind == "base" else "Instruction-tuned models"): tau
        for kind, tau in entry.before_after_taus.items()
        if is_known(before_after[kind])
    }
    caption = "Perplexity under direct evaluation against scores under train before test."
    charts += tau_heatmaps(apart, corpora, tasks, caption=caption, row_height=26)
    compared = (
        (entry.corpus_benchmark, entry.corpus_benchmark_interval),
        (entry.corpus_corpus, entry.corpus_corpus_interval),
        (entry.average_average, entry.average_average_interval),
    )
    rows = [
        {"comparison": title, "protocol": label, "tau": means[p], **as_columns(intervals[p])}
        for title, (means, intervals) in zip(COMPARISONS.values(), compared, strict=True)
        for p, label in LABELS.items()
    ]
    formats = {"tau": ".3f", "low": ".3f", "high": ".3f"}
    tables = [Table("perplexity", "Agreement with perplexity", pd.DataFrame(rows), formats=formats, folded=True)]
    if any(map(is_known, same_corpus.values())):
        frame = pd.DataFrame({"corpus": corpora, "tau": list(same_corpus.values())})
        title = "The same corpus: its direct ranking with that under train before test"
        tables.append(Table("perplexity_same_corpus", title, frame, formats={"tau": ".3f"}, folded=True))
    parts = [
        f"{value_in_words(before_after[kind], entry.before_after_interval[kind])} among {words}"
        for kind, words in KINDS.items()
        if is_known(before_after[kind])
    ]
    sentence = (
        "Between the ranking by perplexity under direct evaluation and the ranking under train before test, tau is "
        f"{' and '.join(parts)}."
    )
    section = Section(
        "Perplexity",
        hint="whether it ranks models as benchmarks do",
        finding=sentence if parts else "",
        figures=charts,
        tables=tables,
    )
    return Part({"perplexity": entry}, section, [_perplexity_finding(data, entry)])


class _PerplexityIntervals(NamedTuple):
    """Intervals of the comparisons by protocol, and of direct perplexity with scores after training."""

    by_comparison: dict[str, RangeByProtocol]
    by_kind: dict[str, Range]


def _perplexity_intervals(
    data: Data, means: dict[str, ByProtocol], before_after: dict[str, Value]
) -> _PerplexityIntervals:
    """Of the comparisons by protocol, and of direct perplexity with scores after training by kind of model."""
    by_comparison: dict[str, RangeByProtocol] = {name: {} for name in COMPARISONS}
    for p in PROTOCOLS:
        resampled = dict.fromkeys(COMPARISONS)
        if data.no_intervals is None:
            signs = pair_signs(data.corpora[p])
            corpus_to_benchmark = resampled_kendall_tau(signs, data.weights, other_signs=pair_signs(data.scores[p]))
            averages = np.column_stack([data.corpora[p].mean(axis=1), data.scores[p].mean(axis=1)])
            averages[~np.isfinite(averages).all(axis=1)] = np.nan
            resampled = {
                "corpus_benchmark": finite_mean(corpus_to_benchmark.reshape(len(corpus_to_benchmark), -1), axis=1),
                "corpus_corpus": resampled_mean_tau(signs, data.weights),
                "average_average": resampled_kendall_tau(pair_signs(averages), data.weights)[:, 0, 1],
            }
        for name, taus in resampled.items():
            interval = None if taus is None else percentile_interval(taus, len(data.matrix.models))
            by_comparison[name][p] = ends(means[name][p], interval, data.no_intervals)
    too_few = Reason(f"There are fewer than {MINIMUM_FAMILY} such models.", ReasonCode.TOO_FEW)
    rng, by_kind = draws("perplexity"), {}
    for kind, rows in tuned_members(data.matrix).items():
        interval = None
        if data.no_intervals is None and len(rows) >= MINIMUM_FAMILY:
            corpus_to_benchmark = resampled_kendall_tau(
                pair_signs(data.corpora[DIRECT][rows]),
                multiplicities(len(rows), data.resamples, rng),
                other_signs=pair_signs(data.scores[TRAINED][rows]),
            )
            interval = percentile_interval(
                finite_mean(corpus_to_benchmark.reshape(len(corpus_to_benchmark), -1), axis=1), len(rows)
            )
        by_kind[kind] = ends(before_after[kind], interval, data.no_intervals or too_few)
    return _PerplexityIntervals(by_comparison, by_kind)


def _perplexity_means(data: Data, taus: dict[str, PerplexityAgreement], where: str = "") -> dict[str, ByProtocol]:
    """The three means by protocol."""
    means: dict[str, ByProtocol] = {name: {} for name in COMPARISONS}
    for p, of_protocol in taus.items():
        corpora = int(np.isfinite(data.corpora[p]).any(axis=0).sum())
        none = "No perplexity is known." if not corpora else ""
        reason_for_benchmarks = (
            no_scores(p) if not data.matrix.has(p) else f"No corpus and benchmark rank two models{where}."
        )
        reason_for_corpora = (
            "There is one perplexity corpus." if corpora == 1 else f"No two corpora rank two models{where}."
        )
        equal = "too equal" if of_protocol.complete_models >= 3 else "too few"
        average = f"{count(of_protocol.complete_models, 'model')} with all corpora and benchmarks: {equal} to compare."
        means["corpus_benchmark"][p] = known(finite_mean(of_protocol.corpus_benchmark), none or reason_for_benchmarks)
        means["corpus_corpus"][p] = known(mean_over_pairs(of_protocol.corpus_corpus), none or reason_for_corpora)
        means["average_average"][p] = known(of_protocol.average_average, average)
    return means


def _no_before_after(data: Data, kind: str) -> str:
    """Why perplexity of untouched models and train-before-test scores cannot be compared among models of a kind."""
    members, words = tuned_members(data.matrix), kind.replace("_", "-")
    if not any(len(rows) for rows in members.values()):
        return "Which models are instruction-tuned is unknown."
    has_direct, has_trained = (
        np.isfinite(values).any(axis=1) for values in (data.corpora[DIRECT], data.scores[TRAINED])
    )
    n_in_both = int((has_direct & has_trained)[members[kind]].sum())
    if n_in_both < 2:
        return f"Fewer than two {words} models have both a perplexity and a train-before-test score ({n_in_both})."
    return f"The {n_in_both} {words} models are tied in perplexity or in scores, or share no two."


def _perplexity_finding(data: Data, entry: Perplexity) -> Finding | None:
    by_protocol, in_both_protocols = entry.corpus_benchmark, entry.in_both["corpus_benchmark"]
    if not is_known(by_protocol[DIRECT]):
        return None
    compared = all(map(is_known, in_both_protocols.values()))
    if compared and data.incomplete and len(data.models_in_both) < JACKKNIFED:  # a mean of taus of 1 and -1
        by_protocol, compared = {p: tau for p, tau in by_protocol.items() if p not in data.incomplete}, False
    entry_shown = in_both_protocols if compared and data.lacks_many else by_protocol
    parts = [
        f"{shown_mean(entry_shown[p], by_protocol[p], entry.corpus_benchmark_interval[p])} {UNDER[p]}"
        for p in entry_shown
        if is_known(entry_shown[p])
    ]
    return Finding(
        f"Between rankings by perplexity and rankings by benchmark{data.assumed}, the mean tau is "
        f"{' and '.join(parts)}.",
        f"{count(entry.models, 'model')} with perplexities on "
        f"{count(len(entry.corpora), 'corpus', 'corpora')}{over_both(partly=entry_shown != by_protocol)}.",
    )
