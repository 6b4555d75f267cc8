"""Which differences between models are significant: agreement on these alone, contradictions, aligned rankings."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lm_validity.missing import Missing, known
from lm_validity.results.summary import page_only
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.intervals import ByProtocol, Range, Value, each, ends
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
from lm_validity.studies.agreement.tau import TauOfPair, by_category, by_pair
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED

MOST_MODELS = 300  # that rankings are aligned of
TIED = "The models known on both benchmarks are tied on one of them."
NO_SIGNIFICANT = "On one of the two benchmarks no difference of the models in common is known to be significant."


@dataclass(frozen=True)
class SignificanceTau:
    """Agreement under one protocol, counting significant differences only; by benchmark their number too. `tau`:
    (benchmarks, benchmarks) that of all pairs, NaN where missing."""

    mean: Value
    interval: Range
    significant_pairs: dict[str, int]
    by_benchmark: dict[str, Value]
    by_pair: list[TauOfPair]
    by_category: dict[str, dict[str, Value]]
    tau: np.ndarray = page_only()


@dataclass(frozen=True)
class Significance:
    """That of both protocols; how many pairs of benchmarks agree more under train before test, of those compared.

    `compared_means`: the means that compare the protocols, over the cells known under both where many are missing.
    `contradictions`: by protocol the number of pairs of models that two benchmarks order significantly in opposite
    ways, (benchmarks, benchmarks).
    """

    direct: SignificanceTau
    train_before_test: SignificanceTau
    improved_pairs: int | Missing
    compared_pairs: int
    compared_means: ByProtocol = page_only()
    contradictions: dict[str, np.ndarray] = page_only()

    @property
    def by_protocol(self) -> dict[str, SignificanceTau]:
        """The tau of significant differences by protocol, direct first."""
        return dict(zip(PROTOCOLS, (self.direct, self.train_before_test), strict=True))


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
            tau=tau,
        )
    common = known_in_all({p: kendall_tau_matrix(signs) for p, signs in data.common_significant.items()})
    improved, compared = improved_pairs(common[DIRECT], common[TRAINED])
    means = {p: tau.mean for p, tau in by_protocol.items()}
    if data.lacks_many and compared:
        means = {p: known(mean_over_pairs(common[p]), data.no_tau(p, NO_SIGNIFICANT)) for p in PROTOCOLS}
    return Significance(
        direct=by_protocol[DIRECT],
        train_before_test=by_protocol[TRAINED],
        improved_pairs=improved if compared else Missing(data.nothing_compared("significance tau")),
        compared_pairs=compared,
        compared_means=means,
        contradictions={p: opposite_significant_pairs(signs) for p, signs in data.significant_side_by_side.items()},
    )


# ----------------------------------------------------------------------------------------------------------------------
# Two rankings side by side, rearranged to agree as far as the significant differences allow.


@dataclass(frozen=True)
class Alignment:
    """Two benchmarks under one protocol as `models` are scored and, under `aligned_`, once aligned: tau and crossings;
    pairs of models in significant contradiction, and significant differences that the alignment breaks.

    `places`: of the pair that is drawn, a row for each model and side, as `figures.bump` has them.
    """

    protocol: str
    benchmarks: tuple[str, str]
    models: int
    tau: Value
    crossings: int
    aligned_tau: Value
    aligned_crossings: int
    opposite_significant_pairs: int
    violations: int
    places: pd.DataFrame | None = page_only()


def aligned_rankings(
    data: Data, align: tuple[str, str] | None, contradictions: dict[str, np.ndarray]
) -> list[Alignment]:
    """The pair that `align` names, else that of one category (or any) with most direct `contradictions`; and, with
    intervals asked for, all pairs of benchmarks.

    Nothing for many models: the time is cubic in them, and nobody can read the figure. Nothing without a significant
    difference either: then any two rankings can be aligned.
    """
    signs, size = data.significant_side_by_side, len(data.tasks)
    pairs = [(i, j) for i in range(size) for j in range(i + 1, size)]
    if (
        not pairs
        or len(data.matrix.models) > MOST_MODELS
        or not any(signs_of_protocol.sign.any() for signs_of_protocol in signs.values())
    ):
        return []
    if align is not None:
        pair_drawn = data.tasks.index(align[0]), data.tasks.index(align[1])
    else:
        opposite, categories = contradictions[DIRECT if data.matrix.has(DIRECT) else TRAINED], data.categories
        alike = [(i, j) for i, j in pairs if categories[i] is not None and categories[i] == categories[j]]
        pair_drawn = max(alike or pairs, key=lambda pair: opposite[pair])
    pairs = pairs if data.resamples > 0 else [pair_drawn]
    rows = []
    for p in PROTOCOLS:
        better = np.array([better_than(signs[p], column, len(data.matrix.models)) for column in range(size)])
        # over the models known on both benchmarks, under both protocols where both have scores
        scores = (data.common if len(data.models_in_both) else data.scores)[p]
        for aligned in aligned_figures(better, scores, pairs if pair_drawn in pairs else [*pairs, pair_drawn]):
            (first, second), models, figures = aligned.pair, aligned.models, aligned.figures
            if len(models) < 2:
                continue
            rows.append(
                Alignment(
                    protocol=p,
                    benchmarks=(data.tasks[first], data.tasks[second]),
                    models=len(models),
                    tau=known(figures.tau, TIED),
                    crossings=figures.crossings,
                    aligned_tau=known(figures.aligned_tau, TIED),
                    aligned_crossings=figures.aligned_crossings,
                    opposite_significant_pairs=figures.opposite,
                    violations=figures.violations,
                    places=_places(data, p, aligned, scores, better) if aligned.pair == pair_drawn else None,
                )
            )
    return rows


def _places(data: Data, protocol: str, aligned: AlignedPair, scores: np.ndarray, better: np.ndarray) -> pd.DataFrame:
    """Where each model stands in the aligned order of either side, its rank as scored, and the best and worst rank that
    significant differences leave it. `scores`: (models, benchmarks), `better`: as in `aligned_figures`."""
    matrix, models, rows = data.matrix, aligned.models, []
    ranks = average_ranks(scores[models][:, aligned.pair])
    for side, (column, order) in enumerate(zip(aligned.pair, aligned.orders, strict=True)):
        best, worst = rank_bands(better[column][np.ix_(models, models)])
        rows += [
            {
                "model": matrix.labels[models[index]],
                "family": matrix.families[models[index]] or "unknown",
                "benchmark": data.tasks[column],
                "side": side,
                "place": place,
                "rank": ranks[index, side],
                "best": int(best[index]),
                "worst": int(worst[index]),
                "score": data.scores[protocol][models[index], column],
                "error": data.stderr[protocol][models[index], column],
            }
            for place, index in enumerate(order, start=1)
        ]
    return pd.DataFrame(rows)
