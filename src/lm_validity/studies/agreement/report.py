"""The agreement report: do benchmarks agree on which model is better, before and after equal preparation?"""

from pathlib import Path
from typing import get_args

import numpy as np

from lm_validity.errors import InputError, nearest
from lm_validity.files import write_json
from lm_validity.pages.page import write_page
from lm_validity.studies.agreement.analysis import DIRECT, PREPARED, AgreementAnalysis, analyze_agreement
from lm_validity.studies.agreement.notes import undefined_notes
from lm_validity.studies.agreement.page import agreement_page
from lm_validity.studies.agreement.pair_alignment import PairAlignment, align_pairs
from lm_validity.studies.agreement.prompt_section import prompt_choices
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, listing, read_score_matrix
from lm_validity.studies.agreement.statistics.agreement import mean_over_pairs
from lm_validity.studies.agreement.statistics.missing import finite_mean
from lm_validity.studies.agreement.statistics.ranking import TauVariant
from lm_validity.studies.agreement.statistics.resampling import Interval
from lm_validity.studies.agreement.uncertainty import AgreementUncertainty, agreement_uncertainty
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import plain


def report_agreement(
    scores: str | Path,
    models: str | Path,
    benchmarks: str | Path,
    output: str | Path,
    items: str | Path | None = None,
    resamples: int = 2000,
    tau: TauVariant = "b",
    align: str | None = None,
    selections: str | Path | None = None,
) -> None:
    """Write summary.json, tables, figures and the page of the agreement report under `output`.

    `items`: makes significance paired. `selections`: shows which prompts were chosen after preparation.
    `resamples`: 0 skips intervals and the alignment of all pairs. `tau`: the variant of Kendall's tau without
    resampling. `align`: the two benchmarks of the bump plot; by default the pair within one category whose
    direct rankings contradict each other most.
    """
    matrix = read_score_matrix(scores, models, benchmarks)
    pair = _alignment_pair(align, matrix)
    if tau not in get_args(TauVariant):
        raise InputError(f"--tau {tau}: no such variant of Kendall's tau.", "a, b or c.")
    analysis = analyze_agreement(matrix, items=items, variant=tau)
    uncertainty = agreement_uncertainty(analysis, resamples)
    alignments = align_pairs(analysis, pair, every=resamples > 0)
    summary = agreement_summary(analysis, uncertainty, alignments, tau, resamples)
    choices = prompt_choices(scores, selections, matrix)
    write_page(agreement_page(analysis, uncertainty, alignments, summary, choices), output)
    write_json(Path(output) / "summary.json", summary)


def agreement_summary(
    analysis: AgreementAnalysis,
    uncertainty: AgreementUncertainty,
    alignments: list[PairAlignment],
    tau: TauVariant,
    resamples: int,
) -> dict:
    """The keys of summary.json."""
    comparison = analysis.comparison
    improved, compared = comparison.improved
    significance_improved, significance_compared = comparison.significance_improved
    means = {p: comparison.agreement[p].mean for p in PROTOCOLS}
    notes = [*analysis.notes, *undefined_notes(analysis), *_method_notes(analysis, uncertainty, tau, resamples)]
    summary = {
        "models": len(analysis.matrix.models),
        "benchmarks": len(analysis.tasks),
        "pairs": len(analysis.tasks) * (len(analysis.tasks) - 1) // 2,
        "cells_in_both": int(comparison.known.sum()),
        "models_in_both": len(comparison.models),
        "improved_pairs": improved if compared else None,
        "compared_pairs": compared,
        "kendall_tau": {p: _tau_summary(analysis, uncertainty, p) for p in PROTOCOLS},
        "improvement": {
            "mean": means[PREPARED] - means[DIRECT],
            "means": means,
            "interval": uncertainty.improvement,
            "interval_population_of_benchmarks": uncertainty.improvement_population,
            "test": uncertainty.test._asdict(),
        },
        "significance_tau": {
            **{p: _significance_summary(analysis, uncertainty, p) for p in PROTOCOLS},
            "improved_pairs": significance_improved if significance_compared else None,
            "compared_pairs": significance_compared,
        },
        "perplexity": _perplexity_summary(analysis, uncertainty),
        "families": analysis.families,
        "families_in_both": comparison.families,
        "families_interval": uncertainty.families,
        "reliability": analysis.reliability,
        "subsets": {p: vars(subset) for p, subset in analysis.subsets.items()},
        "influence": {p: [vars(left) for left in rows] for p, rows in analysis.influence.items()},
        "alignment": [pair.summary() for pair in alignments],
        "selected_on_test": vars(analysis.maximum) if analysis.maximum else None,
        "resamples": resamples,
        "notes": notes,
    }
    return plain(summary)


def _alignment_pair(align: str | None, matrix: ScoreMatrix) -> tuple[str, str] | None:
    if align is None:
        return None
    names = matrix.task_names()
    pair = tuple(name.strip() for name in align.split(","))
    if len(pair) != 2 or pair[0] == pair[1]:
        raise InputError(f"--align {align}: not two benchmarks.", "write two names with a comma between them.")
    for name in pair:
        if name not in names:
            like = nearest(name, names)
            hint = f"did you mean {like!r}?" if like else f"the benchmarks are {listing(names)}."
            raise InputError(f"--align {align}: no benchmark {name!r}.", hint)
    return pair


def _tau_summary(analysis: AgreementAnalysis, uncertainty: AgreementUncertainty, protocol: str) -> dict:
    names, tau, agreement = analysis.tasks, analysis.tau[protocol], analysis.agreement[protocol]
    ceiling = analysis.ceiling[protocol]
    return {
        "mean": agreement.mean,
        "interval": uncertainty.mean.get(protocol),
        "interval_population_of_benchmarks": uncertainty.mean_population.get(protocol),
        "by_benchmark": dict(zip(names, agreement.by_benchmark, strict=True)),
        "by_benchmark_interval": _by_name(uncertainty.by_benchmark.get(protocol), names),
        "by_pair": [[names[i], names[j], tau[i, j]] for i, j in zip(*np.triu_indices(len(names), 1), strict=True)],
        "by_category": {
            a: {b: agreement.by_category[i, j] for j, b in enumerate(agreement.categories)}
            for i, a in enumerate(agreement.categories)
        },
        "ceiling": ceiling.mean_tau,
        "share_of_ceiling": ceiling.share,
        "ceiling_by_benchmark": dict(zip(names, ceiling.by_benchmark, strict=True)),
    }


def _by_name(interval: Interval | None, names: list[str]) -> dict | None:
    if interval is None:
        return None
    return {name: [low, high] for name, low, high in zip(names, interval.low, interval.high, strict=True)}


def _significance_summary(analysis: AgreementAnalysis, uncertainty: AgreementUncertainty, protocol: str) -> dict:
    agreement = analysis.significance[protocol]
    names, tau = analysis.tasks, analysis.significance_tau[protocol]
    return {
        "mean": agreement.mean,
        "interval": uncertainty.significance.get(protocol),
        "significant_pairs": dict(
            zip(names, np.abs(analysis.significant[protocol].sign).sum(axis=0).astype(int), strict=True)
        ),
        "by_benchmark": dict(zip(names, agreement.by_benchmark, strict=True)),
        "by_pair": [[names[i], names[j], tau[i, j]] for i, j in zip(*np.triu_indices(len(names), 1), strict=True)],
        "by_category": {
            a: {b: agreement.by_category[i, j] for j, b in enumerate(agreement.categories)}
            for i, a in enumerate(agreement.categories)
        },
    }


def _perplexity_summary(analysis: AgreementAnalysis, uncertainty: AgreementUncertainty) -> dict | None:
    perplexity, in_both = analysis.perplexity, analysis.comparison.perplexity
    if perplexity is None:
        return None
    is_corpus = analysis.matrix.is_corpus
    return {
        "models": max(perplexity[p].models for p in PROTOCOLS),
        "corpora": [name for name, corpus in zip(analysis.matrix.benchmarks, is_corpus, strict=True) if corpus],
        "corpus_benchmark": {p: finite_mean(perplexity[p].corpus_benchmark) for p in PROTOCOLS},
        "corpus_benchmark_interval": uncertainty.corpus_benchmark,
        "corpus_corpus": {p: mean_over_pairs(perplexity[p].corpus_corpus) for p in PROTOCOLS},
        "corpus_corpus_interval": uncertainty.corpus_corpus,
        "average_average": {p: perplexity[p].average_average for p in PROTOCOLS},
        "average_average_interval": uncertainty.average_average,
        "in_both": {
            "corpus_benchmark": {p: finite_mean(in_both[p].corpus_benchmark) for p in PROTOCOLS},
            "corpus_corpus": {p: mean_over_pairs(in_both[p].corpus_corpus) for p in PROTOCOLS},
            "average_average": {p: in_both[p].average_average for p in PROTOCOLS},
        },
        "before_after": {kind: finite_mean(tau) for kind, tau in analysis.before_after.items()},
        "before_after_interval": uncertainty.before_after,
    }


def _method_notes(
    analysis: AgreementAnalysis, uncertainty: AgreementUncertainty, tau: TauVariant, resamples: int
) -> list[str]:
    notes = []
    if tau != "b":
        notes.append(
            f"Kendall's tau-{tau} instead of tau-b; intervals, families, perplexity and the noise ceiling use tau-b, "
            f"the test tau-{tau}."
        )
    if resamples == 0:
        notes.append("Intervals are null: no resampling was asked for (--resamples 0).")
    elif not uncertainty.mean:
        notes.append(f"Intervals are null: too few models to resample ({len(analysis.matrix.models)}).")
    elif uncertainty.improvement is None and analysis.comparison.improved[1]:
        notes.append("Intervals of the change are null: fewer than 3 models have scores under both protocols.")
    sources = set(analysis.matrix.sources)
    if any(source.endswith("lm-harmony") for source in sources):
        notes.append(
            "Significance: two models are tied where they differ by at most 1.96 standard errors of their difference, "
            "and tau-b is taken over pairs of models. The paper prints 0.58 and 0.77 for its own, unpublished "
            "definition, which does not follow from its published scores; the figures here are this definition's."
        )
    if not analysis.matrix.has(DIRECT) or not analysis.matrix.has(PREPARED):
        notes.append("One protocol is absent: improvement, its test and improved pairs are null.")
    return notes
