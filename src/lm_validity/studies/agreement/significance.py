"""Which differences between models are significant: agreement on these alone, contradictions, aligned rankings."""

from dataclasses import dataclass
from typing import NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.missing import Missing, is_known, known
from lm_validity.pages import figures
from lm_validity.pages.figures import bump, bump_width
from lm_validity.pages.page import Figure, Part, Section, Table
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.intervals import Range, Value, each, ends
from lm_validity.studies.agreement.similar_page import by_protocol as grids_by_protocol
from lm_validity.studies.agreement.similar_page import heatmap_notes, tau_heatmaps
from lm_validity.studies.agreement.statistics.ranking import (
    AlignedPair,
    aligned_figures,
    average_ranks,
    better_than,
    improved_pairs,
    kendall_tau_matrix,
    known_in_all,
    mean_over_pairs,
    opposite_significant_pairs,
    rank_bands,
    summarize_agreement,
)
from lm_validity.studies.agreement.statistics.resampling import percentile_interval, resampled_mean_tau
from lm_validity.studies.agreement.tau import TauOfPair, by_category, by_pair, category_grid
from lm_validity.studies.agreement.wording import over_both, plotted, shown_mean, value_in_words
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import UNDER, count, no_scores

LABELS = figures.PROTOCOL_LABELS
MOST_MODELS = 300  # that rankings are aligned of
TIED = "The models known on both benchmarks are tied on one of them."
NO_SIGNIFICANT = "On one of the two benchmarks no difference of the models in common is known to be significant."


@dataclass(frozen=True)
class SignificanceTau:
    """Agreement under one protocol, counting significant differences only; by benchmark their number too."""

    mean: Value
    interval: Range
    significant_pairs: dict[str, int]
    by_benchmark: dict[str, Value]
    by_pair: list[TauOfPair]
    by_category: dict[str, dict[str, Value]]


@dataclass(frozen=True)
class Significance:
    """That of both protocols; how many pairs of benchmarks agree more under train before test, of those compared."""

    direct: SignificanceTau
    train_before_test: SignificanceTau
    improved_pairs: int | Missing
    compared_pairs: int

    @property
    def by_protocol(self) -> dict[str, SignificanceTau]:
        """The tau of significant differences by protocol, direct first."""
        return dict(zip(PROTOCOLS, (self.direct, self.train_before_test), strict=True))

    @property
    def by_benchmark(self) -> dict[str, dict[str, Value]]:
        """The mean taus of each protocol by benchmark."""
        return {protocol: tau.by_benchmark for protocol, tau in self.by_protocol.items()}


def significance_tau(data: Data) -> Significance:
    """Agreement by protocol, counting significant differences only, and pairs that agree more."""
    by_protocol = {}
    for p in PROTOCOLS:
        tau = kendall_tau_matrix(data.significant[p])
        agreement = summarize_agreement(tau, data.categories)
        reason = data.no_tau(p, NO_SIGNIFICANT)
        mean, interval = data.mean_or_reason(p, agreement.mean, NO_SIGNIFICANT), None
        if data.no_intervals is None:
            resampled = resampled_mean_tau(data.significant[p], data.weights)
            interval = percentile_interval(resampled, len(data.matrix.models))
        pairs = np.abs(data.significant[p].sign).sum(axis=0).astype(int)
        by_protocol[p] = SignificanceTau(
            mean=mean,
            interval=ends(mean, interval, data.no_intervals),
            significant_pairs=dict(zip(data.tasks, pairs, strict=True)),
            by_benchmark=each(data.tasks, agreement.by_benchmark, reason),
            by_pair=by_pair(data.tasks, tau, reason),
            by_category=by_category(agreement, data.categories, reason),
        )
    common = _common_tau(data)
    improved, compared = improved_pairs(common[DIRECT], common[TRAINED])
    pairs_improved = improved if compared else Missing(data.nothing_compared("significance tau"))
    return Significance(by_protocol[DIRECT], by_protocol[TRAINED], pairs_improved, compared)


def _common_tau(data: Data) -> dict[str, np.ndarray]:
    """(benchmarks, benchmarks) over the cells known under both protocols."""
    return known_in_all({p: kendall_tau_matrix(signs) for p, signs in data.common_significant.items()})


def significant_differences(data: Data, significance: Significance) -> Part:
    """Agreement where only significant differences count: bars, grid, heatmaps, contradictions."""
    summary, names, by_protocol = {"significance_tau": significance}, data.tasks, significance.by_protocol
    if not any(is_known(tau.mean) for tau in by_protocol.values()):
        return Part(summary)
    frame = plotted(
        pd.DataFrame(
            {
                "benchmark": name,
                "protocol": label,
                "tau": by_protocol[p].by_benchmark[name],
                "pairs": by_protocol[p].significant_pairs[name],
            }
            for name in names
            for p, label in LABELS.items()
        )
    )
    direct = frame[frame["protocol"] == LABELS[DIRECT]].sort_values("tau", ascending=False)
    chart = figures.grouped_bars(
        frame,
        x="benchmark",
        value="tau",
        title="Mean tau, significant differences only",
        x_order=direct["benchmark"].tolist(),
        tooltip=figures.tooltips(
            benchmark="Benchmark", protocol="Protocol", tau="tau|.3f", pairs="Pairs of models that differ|d"
        ),
    )
    charts = [Figure("significance_by_benchmark", "Mean tau by benchmark", chart, wide=True, min_width=460)]
    grids = {p: kendall_tau_matrix(data.significant[p]) for p in PROTOCOLS}
    of_pairs = grids_by_protocol("significance_by_pair", grids, "{}, all pairs")
    charts += tau_heatmaps(of_pairs, names, names, without_diagonal=True, row_height=16)
    categories = list(significance.direct.by_category)
    if categories:
        grids = {p: category_grid(tau.by_category) for p, tau in by_protocol.items()}
        of_categories = grids_by_protocol("significance_by_category", grids, "{}, categories")
        charts += tau_heatmaps(of_categories, categories, categories, number_format=".2f", row_height=34)
    means = own_means = {p: tau.mean for p, tau in by_protocol.items()}
    if data.lacks_many and significance.compared_pairs:
        common = _common_tau(data)
        means = {p: known(mean_over_pairs(common[p]), data.no_tau(p, NO_SIGNIFICANT)) for p in PROTOCOLS}
    parts = [
        f"{shown_mean(means[p], own_means[p], by_protocol[p].interval)} {UNDER[p]}"
        for p in PROTOCOLS
        if is_known(means[p])
    ]
    addition = (
        f". {significance.improved_pairs} of {significance.compared_pairs} pairs agree more under train before test"
        if is_known(significance.improved_pairs)
        else ""
    )
    section = Section(
        "Counting significant differences only",
        hint="and pairs of models that two benchmarks contradict each other on",
        finding="When models that do not differ significantly count as tied, the mean tau is "
        f"{' and '.join(parts)}{over_both(partly=means != own_means)}{addition}.",
        explanation="Two models differ significantly if their scores are more than 1.96 standard errors of the "
        "difference apart. If item results are known, McNemar's test decides. Tau is computed over pairs of "
        "models, since a tie of A with B and of B with C does not mean that A ties with C.",
        figures=charts,
        notes=heatmap_notes(names, names),
        tables=[
            Table(
                "contradictions",
                "Contradictions: pairs of models that the two benchmarks order significantly in opposite ways",
                _contradictions(data),
                folded=True,
            )
        ],
    )
    return Part(summary, section)


def _contradictions(data: Data) -> pd.DataFrame:
    """One row per pair of benchmarks: the model pairs that both order significantly, but oppositely, by protocol."""
    names, (first, second) = np.array(data.tasks, dtype=object), np.triu_indices(len(data.tasks), 1)
    frame = pd.DataFrame({"benchmark": names[first], "with": names[second]})
    for p, signs in data.significant_side_by_side.items():
        opposite = opposite_significant_pairs(signs)[first, second].astype(int)
        frame[LABELS[p]] = opposite if data.matrix.has(p) else [Missing(no_scores(p))] * len(frame)
    return frame


# ----------------------------------------------------------------------------------------------------------------------
# Two rankings side by side, rearranged to agree as far as the significant differences allow.


def aligned_rankings(data: Data, align: tuple[str, str] | None) -> Part:
    """Bump plots of the pair that `align` names, else of that of one category (or any) with most significant direct
    contradictions; and, with intervals asked for, the figures of all pairs of benchmarks.

    Nothing for many models: the time is cubic in them, and nobody can read the figure. Nothing without a significant
    difference either: then any two rankings can be aligned.
    """
    signs, size = data.significant_side_by_side, len(data.tasks)
    notes = _method_notes(data)
    pairs = [(i, j) for i in range(size) for j in range(i + 1, size)]
    if (
        not pairs
        or len(data.matrix.models) > MOST_MODELS
        or not any(signs_of_protocol.sign.any() for signs_of_protocol in signs.values())
    ):
        return Part({"alignment": []}, notes=notes)
    if align is not None:
        pair_shown = data.tasks.index(align[0]), data.tasks.index(align[1])
    else:
        opposite = opposite_significant_pairs(signs[DIRECT if data.matrix.has(DIRECT) else TRAINED])
        categories = data.categories
        alike = [(i, j) for i, j in pairs if categories[i] is not None and categories[i] == categories[j]]
        pair_shown = max(alike or pairs, key=lambda pair: opposite[pair])
    pairs = pairs if data.resamples > 0 else [pair_shown]
    rows, charts, sentences = [], [], []
    for p in PROTOCOLS:
        better = np.array([better_than(signs[p], column, len(data.matrix.models)) for column in range(size)])
        # over the models known on both benchmarks, under both protocols where both have scores
        scores = (data.common if len(data.models_in_both) else data.scores)[p]
        for aligned in aligned_figures(better, scores, pairs if pair_shown in pairs else [*pairs, pair_shown]):
            pair, models = aligned.pair, aligned.models
            if len(models) < 2:
                continue
            rows.append(row := Alignment.of(data, p, aligned))
            if pair == pair_shown:
                bands = [better[column][np.ix_(models, models)] for column in pair]
                places = _places(models, average_ranks(scores[models][:, pair]), aligned.orders, bands)
                charts.append(
                    Figure(
                        f"bump_{p}",
                        LABELS[p],
                        _bump_chart(data, p, pair, places),
                        caption=f"{row.aligned_crossings} of {row.crossings} crossings remain. Select a family "
                        "to see its rank bands.",
                        min_width=bump_width(data.matrix.labels),
                    )
                )
                sentences.append(
                    f"{LABELS[p]}: {count(row.opposite_significant_pairs, 'pair')} of models in significant "
                    f"contradiction, tau {value_in_words(row.tau)} as scored and "
                    f"{value_in_words(row.aligned_tau)} aligned."
                )
    if not charts:
        return Part({"alignment": rows}, notes=notes)
    table = pd.DataFrame(
        {
            "benchmark": row.benchmarks[0],
            "with": row.benchmarks[1],
            "protocol": LABELS[row.protocol],
            "models": row.models,
            "tau": row.tau,
            "crossings": row.crossings,
            "aligned_tau": row.aligned_tau,
            "aligned_crossings": row.aligned_crossings,
            "opposite_significant_pairs": row.opposite_significant_pairs,
            "violations": row.violations,
        }
        for row in rows
    )
    section = Section(
        f"Two benchmarks side by side: {data.tasks[pair_shown[0]]} and {data.tasks[pair_shown[1]]}",
        hint="rearranged to agree as far as significant differences allow",
        finding=" ".join(sentences),
        explanation="Two models are in significant contradiction if each benchmark orders them significantly, and in "
        "opposite ways. Unless `--align` names two benchmarks, the page shows the two with the most contradictions, "
        "of one category if categories are known. To align them, both rankings are rearranged step by step to agree "
        "while every significant difference keeps its order. The crossings that remain could not be removed "
        "in this way. A rank band holds every rank that a model can have if all significant differences are kept.",
        figures=charts,
        tables=[
            Table(
                "alignment",
                "Aligned pairs of benchmarks",
                table,
                formats={"tau": ".3f", "aligned_tau": ".3f"},
                labels={
                    "crossings": "crossings as scored",
                    "aligned_tau": "tau after alignment",
                    "aligned_crossings": "crossings after alignment",
                    "opposite_significant_pairs": "pairs in significant contradiction",
                    "violations": "significant differences broken (should be 0)",
                },
                folded=True,
            )
        ],
    )
    return Part({"alignment": rows}, section, notes=notes)


@dataclass(frozen=True)
class Alignment:
    """Two benchmarks under one protocol as `models` are scored and, under `aligned_`, once aligned: tau and crossings;
    pairs of models in significant contradiction, and significant differences that the alignment breaks."""

    protocol: str
    benchmarks: tuple[str, str]
    models: int
    tau: Value
    crossings: int
    aligned_tau: Value
    aligned_crossings: int
    opposite_significant_pairs: int
    violations: int

    @classmethod
    def of(cls, data: Data, protocol: str, aligned: AlignedPair) -> "Alignment":
        """The row of summary.json on one pair of benchmarks whose rankings were aligned."""
        (first, second), figures = aligned.pair, aligned.figures
        return cls(
            protocol=protocol,
            benchmarks=(data.tasks[first], data.tasks[second]),
            models=len(aligned.models),
            tau=known(figures.tau, TIED),
            crossings=figures.crossings,
            aligned_tau=known(figures.aligned_tau, TIED),
            aligned_crossings=figures.aligned_crossings,
            opposite_significant_pairs=figures.opposite,
            violations=figures.violations,
        )


class _Place(NamedTuple):
    """Where the model of an index stands in the aligned order of one side, its rank as scored, and the best and worst
    rank that significant differences leave it."""

    side: int
    aligned_rank: int
    model: int
    rank: float
    best: int
    worst: int


def _places(
    models: np.ndarray, ranks: np.ndarray, orders: tuple[np.ndarray, np.ndarray], better: list[np.ndarray]
) -> list[_Place]:
    """The places of all models in both orders."""
    return [
        _Place(side, rank, models[position], ranks[position, side], int(best[position]), int(worst[position]))
        for side, (order, (best, worst)) in enumerate(zip(orders, map(rank_bands, better), strict=True))
        for rank, position in enumerate(order, start=1)
    ]


def _bump_chart(data: Data, protocol: str, pair: tuple[int, int], places: list[_Place]) -> alt.LayerChart:
    matrix = data.matrix
    scores, errors = matrix.oriented(protocol), matrix.stderr[protocol]
    columns = [matrix.benchmarks.index(data.tasks[task]) for task in pair]
    frame = pd.DataFrame(
        {
            "model": matrix.labels[entry.model],
            "family": matrix.families[entry.model] or "unknown",
            "benchmark": data.tasks[pair[entry.side]],
            "side": entry.side,
            "place": entry.aligned_rank,
            "rank": entry.rank,
            "best": entry.best,
            "worst": entry.worst,
            "score": scores[entry.model, columns[entry.side]],
            "error": errors[entry.model, columns[entry.side]],
        }
        for entry in places
    )
    return bump(frame, matrix.families)


def _method_notes(data: Data) -> list[str]:
    """Which rankings are not aligned, which tau is used, and how significance differs from a published one."""
    notes = []
    if len(data.matrix.models) > MOST_MODELS:
        notes.append(f"Rankings of more than {MOST_MODELS} models are not aligned.")
    if data.variant != "b":
        notes.append(
            f"Kendall's tau-{data.variant} instead of tau-b: the mean and its change have no interval, ceiling or "
            f"correction. Models of similar size, families and perplexity use tau-b, the test tau-{data.variant}."
        )
    if any(source.endswith("lm-harmony") for source in data.matrix.sources):
        notes.append(
            "Significance: two models are tied where they differ by at most 1.96 standard errors of their difference, "
            "and tau-b is taken over pairs of models. The paper prints 0.58 and 0.77 for its own, unpublished "
            "definition, which does not follow from its published scores; the figures here are this definition's."
        )
    return notes
