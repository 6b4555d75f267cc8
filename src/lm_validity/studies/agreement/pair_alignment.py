"""Aligned rankings of pairs of benchmarks: which changes of rank are significant."""

import numpy as np
import pandas as pd

from lm_validity.studies.agreement.analysis import DIRECT, AgreementAnalysis
from lm_validity.studies.agreement.statistics.ranking import (
    align_rankings,
    average_ranks,
    better_than,
    crossings,
    kendall_tau,
    opposite_significant_pairs,
    rank_bands,
    violations,
)
from lm_validity.studies.agreement.summary import PairAlignment
from lm_validity.summaries import Missing, known
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import no_scores

MOST_MODELS = 300  # that rankings are aligned of


def align_pairs(analysis: AgreementAnalysis, align: tuple[str, str] | None, *, every: bool) -> list[PairAlignment]:
    """Alignments of the pair to show and, with `every`, of all pairs of benchmarks, under both protocols."""
    if len(analysis.matrix.models) > MOST_MODELS:
        return []  # the time is cubic in the models, and nobody can read the figure
    shown = _pair_to_show(analysis, align)
    if shown is None or not any(signs.sign.any() for signs in analysis.significant_side_by_side.values()):
        return []  # without a significant difference any two rankings can be aligned
    size = len(analysis.tasks)
    pairs = [(i, j) for i in range(size) for j in range(i + 1, size)] if every else [shown]
    if shown not in pairs:
        pairs.append(shown)
    found = []
    for protocol in PROTOCOLS:
        better = _better(analysis, protocol)
        found += [_align(analysis, protocol, pair, better, shown=pair == shown) for pair in pairs]
    return [one for one in found if one is not None]


def _better(analysis: AgreementAnalysis, protocol: str) -> list[np.ndarray]:
    """By benchmark, (models, models): where the row's model is significantly better than the column's."""
    signs, models = analysis.significant_side_by_side[protocol], len(analysis.matrix.models)
    return [better_than(signs, column, models) for column in range(len(analysis.tasks))]


def _pair_to_show(analysis: AgreementAnalysis, align: tuple[str, str] | None) -> tuple[int, int] | None:
    """The pair asked for, else that of one category (or any) with most significant direct contradictions."""
    if align is not None:
        return analysis.tasks.index(align[0]), analysis.tasks.index(align[1])
    size = len(analysis.tasks)
    if size < 2:
        return None
    protocol = DIRECT if analysis.matrix.has(DIRECT) else PROTOCOLS[1]
    opposite = opposite_significant_pairs(analysis.significant_side_by_side[protocol])
    pairs = [(i, j) for i in range(size) for j in range(i + 1, size)]
    categories = analysis.categories
    same = [(i, j) for i, j in pairs if categories[i] is not None and categories[i] == categories[j]]
    return max(same or pairs, key=lambda pair: opposite[pair])


def _align(
    analysis: AgreementAnalysis, protocol: str, pair: tuple[int, int], all_better: list[np.ndarray], *, shown: bool
) -> PairAlignment | None:
    scores = analysis.scores_side_by_side[protocol][:, pair]
    rows = np.flatnonzero(np.isfinite(scores).all(axis=1))
    if len(rows) < 2:
        return None
    first, second = (all_better[column][np.ix_(rows, rows)] for column in pair)
    scores = scores[rows]
    ranks = average_ranks(scores)
    aligned = align_rankings(first, second, ranks[:, 0], ranks[:, 1])
    tied = "The models known on both benchmarks are tied on one of them."
    return PairAlignment(
        protocol=protocol,
        benchmarks=(analysis.tasks[pair[0]], analysis.tasks[pair[1]]),
        models=len(rows),
        tau=known(kendall_tau(scores[:, 0], scores[:, 1]), tied),
        crossings=crossings(scores[:, 0], scores[:, 1]),
        aligned_tau=known(aligned.tau, tied),
        aligned_crossings=aligned.crossings,
        opposite_significant_pairs=int((first & second.T).sum()),
        violations=violations(aligned.first, first) + violations(aligned.second, second),
        rows=rows,
        ranks=ranks,
        bands=(rank_bands(first), rank_bands(second)),
        aligned=aligned,
        shown=shown,
    )


def contradictions(analysis: AgreementAnalysis) -> pd.DataFrame:
    """One row per pair of benchmarks: the model pairs that both order significantly, but oppositely, by protocol."""
    names, (first, second) = np.array(analysis.tasks, dtype=object), np.triu_indices(len(analysis.tasks), 1)
    frame = pd.DataFrame({"benchmark": names[first], "with": names[second]})
    for p, signs in analysis.significant_side_by_side.items():
        opposite = opposite_significant_pairs(signs)[first, second].astype(int)
        frame[p] = opposite if analysis.matrix.has(p) else [Missing(no_scores(p))] * len(frame)
    return frame


def method_notes(analysis: AgreementAnalysis) -> list[str]:
    """Which rankings are not aligned, which tau is used, and how significance differs from a published one."""
    notes = []
    if len(analysis.matrix.models) > MOST_MODELS:
        notes.append(f"Rankings of more than {MOST_MODELS} models are not aligned.")
    if analysis.variant != "b":
        notes.append(
            f"Kendall's tau-{analysis.variant} instead of tau-b; intervals, families, perplexity and the noise ceiling "
            f"use tau-b, the test tau-{analysis.variant}."
        )
    if any(source.endswith("lm-harmony") for source in analysis.matrix.sources):
        notes.append(
            "Significance: two models are tied where they differ by at most 1.96 standard errors of their difference, "
            "and tau-b is taken over pairs of models. The paper prints 0.58 and 0.77 for its own, unpublished "
            "definition, which does not follow from its published scores; the figures here are this definition's."
        )
    return notes
