"""Which differences between models are significant: agreement on these alone, contradictions, aligned rankings."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lm_validity.missing import Missing, is_known, known
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Part, Section
from lm_validity.results.summary import page_only
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.intervals import ByProtocol, Range, Value, each, ends
from lm_validity.studies.agreement.statistics.ranking import (
    improved_pairs,
    kendall_tau_matrix,
    known_in_all,
    mean_over_pairs,
    summarize_agreement,
)
from lm_validity.studies.agreement.statistics.resampling import percentile_interval, resampled_mean_tau
from lm_validity.studies.agreement.wording import over_both, plotted, shown_mean
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import UNDER

NO_SIGNIFICANT = "On one of the two benchmarks no difference of the models in common is known to be significant."


@dataclass(frozen=True)
class SignificanceTau:
    """Agreement under one protocol, counting significant differences only; by benchmark their number too."""

    mean: Value
    interval: Range
    significant_pairs: dict[str, int]
    by_benchmark: dict[str, Value]


@dataclass(frozen=True)
class Significance:
    """That of both protocols; how many pairs of benchmarks agree more under train before test, of those compared.

    `compared_means`: the means that compare the protocols, over the cells known under both where many are missing.
    """

    direct: SignificanceTau
    train_before_test: SignificanceTau
    improved_pairs: int | Missing
    compared_pairs: int
    compared_means: ByProtocol = page_only()

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
    )


# ----------------------------------------------------------------------------------------------------------------------
# What the page shows of it.


LABELS = figures.PROTOCOL_LABELS


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
    charts = [Figure("significance_by_benchmark", "Mean tau by benchmark", chart, wide=True)]
    means, own_means = significance.compared_means, {p: tau.mean for p, tau in by_protocol.items()}
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
        hint="models that do not differ significantly count as tied",
        finding="When models that do not differ significantly count as tied, the mean tau is "
        f"{' and '.join(parts)}{over_both(partly=means != own_means)}{addition}.",
        explanation="Two models differ significantly if their scores are more than 1.96 standard errors of the "
        "difference apart. If item results are known, McNemar's test decides. Tau is computed over pairs of "
        "models, since a tie of A with B and of B with C does not mean that A ties with C.",
        figures=charts,
    )
    return Part(summary, section)
