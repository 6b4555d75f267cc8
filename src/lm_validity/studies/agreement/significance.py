"""Which differences between models are significant: agreement on these alone, contradictions, aligned rankings."""

from dataclasses import dataclass

import numpy as np

from lm_validity.missing import Missing, known
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
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED

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
