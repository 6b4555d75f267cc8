"""Why figures of the agreement report are null, in sentences; what is missing altogether is in `coverage_notes`."""

import numpy as np

from lm_validity.studies.agreement.analysis import (
    DIRECT,
    PREPARED,
    AgreementAnalysis,
    large_families,
    tuned_members,
)
from lm_validity.studies.agreement.influence_section import influence_notes
from lm_validity.studies.agreement.score_matrix import listing
from lm_validity.studies.agreement.statistics.agreement import mean_over_pairs
from lm_validity.studies.agreement.statistics.missing import finite_mean
from lm_validity.tables.schema import PROTOCOLS


def undefined_notes(analysis: AgreementAnalysis) -> list[str]:
    """One note for each kind of figure that cannot be computed from the scores at hand."""
    notes = []
    for protocol in PROTOCOLS:
        if analysis.matrix.has(protocol):
            notes += _tau_notes(analysis, protocol)
            notes += _significance_notes(analysis, protocol)
            notes += _family_notes(analysis, protocol)
            if np.isfinite(analysis.agreement[protocol].mean):
                notes += influence_notes(protocol, [left.mean_tau for left in analysis.influence[protocol]])
    if any(np.isnan(subset.random_mean).all() for subset in analysis.subsets.values()):
        notes.append("How many benchmarks are enough is null: fewer than 8 models, or too few of their scores.")
    if all(analysis.matrix.has(protocol) for protocol in PROTOCOLS):
        notes += _improvement_notes(analysis)
    single = [name for name in dict.fromkeys(analysis.categories) if name and analysis.categories.count(name) == 1]
    if single:
        notes.append(f"Categories of one benchmark have no tau within themselves (null): {listing(single)}.")
    if analysis.perplexity is not None:
        notes += [note for protocol in PROTOCOLS for note in _perplexity_notes(analysis, protocol)]
        notes += _before_after_notes(analysis)
    return notes


def _upper(tau: np.ndarray) -> np.ndarray:
    return tau[np.triu_indices(len(tau), 1)]


def _tau_notes(analysis: AgreementAnalysis, protocol: str) -> list[str]:
    known, tau = np.isfinite(analysis.scores[protocol]), _upper(analysis.tau[protocol])
    if known.any(axis=1).sum() < 2:
        return [f"{protocol}: one model has scores, so there is no ranking to compare and every tau is null."]
    if known.any(axis=0).sum() < 2:
        return [f"{protocol}: one benchmark has scores, so there are no two rankings to compare: the mean tau is null."]
    reason = "fewer than two models in common, or all of those tied on one of the two"
    if np.isnan(tau).all():
        return [f"{protocol}: every tau is null, for no pair of benchmarks allows one: {reason}."]
    if np.isnan(tau).any():
        return [f"{protocol}: {np.isnan(tau).sum()} of {len(tau)} pairs of benchmarks have no tau (null): {reason}."]
    return []


def _significance_notes(analysis: AgreementAnalysis, protocol: str) -> list[str]:
    """Of pairs of benchmarks that do have a tau."""
    with_tau = np.isfinite(_upper(analysis.tau[protocol]))
    lost = with_tau & np.isnan(_upper(analysis.significance_tau[protocol]))
    reason = "on one of the two no difference of the models in common is known to be significant"
    if lost.any() and (lost == with_tau).all():
        return [f"{protocol}: the significance tau is null, for no pair of benchmarks allows one: {reason}."]
    if lost.any():
        return [
            f"{protocol}: {lost.sum()} of {len(lost)} pairs of benchmarks have no significance tau (null): {reason}."
        ]
    return []


def _family_notes(analysis: AgreementAnalysis, protocol: str) -> list[str]:
    without = [name for name in large_families(analysis.matrix.families) if np.isnan(analysis.families[name][protocol])]
    if not without:
        return []
    return [f"{protocol}: among the models of {listing(without)} no two benchmarks have a tau: null for the family."]


def _improvement_notes(analysis: AgreementAnalysis) -> list[str]:
    return [
        f"No pair of benchmarks has a {kind} under both protocols: {key} is null."
        for kind, key, (_, compared) in (
            ("tau", "improved_pairs", analysis.comparison.improved),
            ("significance tau", "significance_tau.improved_pairs", analysis.comparison.significance_improved),
        )
        if not compared
    ]


def _perplexity_notes(analysis: AgreementAnalysis, protocol: str) -> list[str]:
    result = analysis.perplexity[protocol]
    corpora = int(np.isfinite(analysis.corpora[protocol]).any(axis=0).sum())
    if not corpora:
        return [f"{protocol}: no perplexity is known, so its comparisons with perplexity are null."]
    notes = []
    if analysis.matrix.has(protocol) and np.isnan(finite_mean(result.corpus_benchmark)):
        notes.append(f"{protocol}: no corpus and benchmark rank two models in common: corpus_benchmark is null.")
    if np.isnan(mean_over_pairs(result.corpus_corpus)):
        reason = "one perplexity corpus" if corpora == 1 else "no two perplexity corpora rank two models in common"
        notes.append(f"{protocol}: {reason}: corpus_corpus is null.")
    return notes


def _before_after_notes(analysis: AgreementAnalysis) -> list[str]:
    members = tuned_members(analysis.matrix)
    if not any(len(rows) for rows in members.values()):
        return []  # said where the taus are computed
    before, after = (
        np.isfinite(values).any(axis=1) for values in (analysis.corpora[DIRECT], analysis.scores[PREPARED])
    )
    notes = []
    for kind, words in (("base", "base"), ("instruction_tuned", "instruction-tuned")):
        if np.isnan(finite_mean(analysis.before_after[kind])):
            both = int((before & after)[members[kind]].sum())
            reason = (
                f"fewer than two {words} models have perplexity before preparation and scores after it ({both})"
                if both < 2
                else f"the {both} {words} models are tied in perplexity or in scores, or share no two"
            )
            notes.append(f"{reason[0].upper()}{reason[1:]}: perplexity.before_after.{kind} is null.")
    return notes
