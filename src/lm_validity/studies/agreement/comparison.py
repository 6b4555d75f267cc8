"""The two protocols compared: over the cells known under both, and over the taus defined under both."""

from dataclasses import dataclass, replace

import numpy as np

from lm_validity.studies.agreement.statistics.ranking import (
    Agreement,
    PairSigns,
    PerplexityAgreement,
    TauVariant,
    improved_pairs,
    kendall_tau_matrix,
    known_in_all,
    mean_over_pairs,
    pair_signs,
    perplexity_agreement,
    summarize_agreement,
)


@dataclass(frozen=True)
class ProtocolComparison:
    """What compares the protocols. Dictionaries by protocol hold arrays of one shape that are NaN in the same places.

    `scores`: (models, benchmarks), NaN unless the cell is known under both protocols; `tau`: (benchmarks,
    benchmarks) of these, NaN unless defined under both; `improved`, `significance_improved`: (pairs whose tau is
    greater under train before test, pairs compared); `families`: mean tau by family and protocol, NaN where there is
    none; `whole`: no cell and no tau was left out, so that `agreement` is that of each protocol alone.
    """

    scores: dict[str, np.ndarray]
    tau: dict[str, np.ndarray]
    agreement: dict[str, Agreement]
    improved: tuple[int, int]
    significant: dict[str, PairSigns]
    significance: dict[str, Agreement]
    significance_improved: tuple[int, int]
    families: dict[str, dict[str, float]]
    perplexity: dict[str, PerplexityAgreement]
    whole: bool

    @property
    def known(self) -> np.ndarray:
        """(models, benchmarks) True for the cells known under both protocols."""
        return np.isfinite(next(iter(self.scores.values())))

    @property
    def models(self) -> np.ndarray:
        """Indices of the models with such a cell."""
        return np.flatnonzero(self.known.any(axis=1))


def compare_protocols(
    scores: dict[str, np.ndarray],
    corpora: dict[str, np.ndarray],
    tau: dict[str, np.ndarray],
    significant: dict[str, PairSigns],
    categories: list[str | None],
    families: dict[str, np.ndarray],
    variant: TauVariant,
) -> ProtocolComparison:
    """Compare `scores` (models, benchmarks) of both protocols, more is better; `corpora`: (models, corpora).

    `tau`: (benchmarks, benchmarks) of each protocol alone; `significant`: signs of the significant differences;
    `families`: indices of the models of each family that has figures of its own.
    """
    common = known_in_all(scores)
    both = pair_signs(next(iter(common.values()))).known
    signs = {
        p: PairSigns(given.sign * both, given.known * both, given.first, given.second)
        for p, given in significant.items()
    }
    common_tau = known_in_all({p: kendall_tau_matrix(pair_signs(common[p]), variant=variant) for p in common})
    significance_tau = known_in_all({p: kendall_tau_matrix(signs[p]) for p in common})
    first, second = common
    return ProtocolComparison(
        scores=common,
        tau=common_tau,
        agreement={p: summarize_agreement(common_tau[p], categories) for p in common},
        improved=improved_pairs(common_tau[first], common_tau[second]),
        significant=signs,
        significance={p: summarize_agreement(significance_tau[p], categories) for p in common},
        significance_improved=improved_pairs(significance_tau[first], significance_tau[second]),
        families={name: _mean_taus({p: common[p][rows] for p in common}) for name, rows in families.items()},
        perplexity=_perplexity(known_in_all(corpora), common),
        whole=all(
            np.array_equal(common[p], scores[p], equal_nan=True)
            and np.array_equal(common_tau[p], tau[p], equal_nan=True)
            for p in common
        ),
    )


def _mean_taus(scores: dict[str, np.ndarray]) -> dict[str, float]:
    tau = known_in_all({p: kendall_tau_matrix(pair_signs(values)) for p, values in scores.items()})
    return {p: mean_over_pairs(values) for p, values in tau.items()}


def _perplexity(corpora: dict[str, np.ndarray], scores: dict[str, np.ndarray]) -> dict[str, PerplexityAgreement]:
    results = {p: perplexity_agreement(corpora[p], scores[p]) for p in scores}
    across = known_in_all({p: result.corpus_benchmark for p, result in results.items()})
    within = known_in_all({p: result.corpus_corpus for p, result in results.items()})
    return {p: replace(results[p], corpus_benchmark=across[p], corpus_corpus=within[p]) for p in results}
