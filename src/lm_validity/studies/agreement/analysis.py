"""What the agreement report computes without resampling: arrays by protocol, NaN where undefined."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lm_validity.statistics import section_generator
from lm_validity.studies.agreement.comparison import ProtocolComparison, compare_protocols
from lm_validity.studies.agreement.item_significance import use_paired_tests
from lm_validity.studies.agreement.score_matrix import ScoreMatrix
from lm_validity.studies.agreement.statistics.factors import Ceiling, noise_ceiling
from lm_validity.studies.agreement.statistics.noise import VarianceComponents, variance_components
from lm_validity.studies.agreement.statistics.ranking import (
    Agreement,
    PairSigns,
    PerplexityAgreement,
    TauVariant,
    finite_mean,
    kendall_tau_matrix,
    mean_over_pairs,
    pair_signs,
    perplexity_agreement,
    significant_signs,
    summarize_agreement,
)
from lm_validity.studies.agreement.statistics.subsets import LeftOut, SubsetAgreement, leave_one_out, subset_agreement
from lm_validity.studies.agreement.summary import SelectionOnTest
from lm_validity.summaries import known, number
from lm_validity.tables.reruns import NOT_MEASURED
from lm_validity.tables.schema import OWN, PROTOCOLS
from lm_validity.words import UNDER, Reason, ReasonCode, count, decimal, listing, no_scores

MINIMUM_FAMILY = 3  # models of a family: with two a tau can only be -1, 0 or 1
NO_FAMILIES = f"The models sheet names no family of at least {MINIMUM_FAMILY} models with scores."
DIRECT, TRAINED = PROTOCOLS


@dataclass(frozen=True)
class AgreementAnalysis:
    """All results without resampling. Arrays over benchmarks are in the order of `tasks` (no perplexity corpora).

    What is given by protocol is over all scores of that protocol; `comparison` is over the cells known under both.
    `noise`: standard errors from items and, where it was measured, from training the model again. `notes`: on the data.
    """

    matrix: ScoreMatrix
    tasks: list[str]
    categories: list[str | None]
    scores: dict[str, np.ndarray]
    stderr: dict[str, np.ndarray]
    noise: dict[str, np.ndarray]
    corpora: dict[str, np.ndarray]
    tau: dict[str, np.ndarray]
    agreement: dict[str, Agreement]
    significant: dict[str, PairSigns]
    significance: dict[str, Agreement]
    significance_tau: dict[str, np.ndarray]
    comparison: ProtocolComparison
    families: dict[str, dict[str, float]]
    perplexity: dict[str, PerplexityAgreement] | None
    before_after: dict[str, np.ndarray]
    ceiling: dict[str, Ceiling]
    variance: dict[str, VarianceComponents]
    subsets: dict[str, SubsetAgreement]
    influence: dict[str, list[LeftOut]]
    reliability: dict[str, float]
    maximum: SelectionOnTest | None
    variant: TauVariant = "b"
    notes: tuple[str, ...] = ()

    @property
    def side_by_side(self) -> dict[str, Agreement]:
        """What sentences on both protocols read: the comparison's means, or each protocol's own if there is none."""
        return self.comparison.agreement if self.comparison.improved[1] else self.agreement

    @property
    def scores_side_by_side(self) -> dict[str, np.ndarray]:
        """The scores that pictures of both protocols show: those of common cells, or each protocol's own."""
        return self.comparison.scores if len(self.comparison.models) else self.scores

    @property
    def significant_side_by_side(self) -> dict[str, PairSigns]:
        """The significant differences among `scores_side_by_side`."""
        return self.comparison.significant if len(self.comparison.models) else self.significant


def analyze_agreement(
    matrix: ScoreMatrix,
    items: str | Path | None = None,
    variant: TauVariant = "b",
    seed: int = 0,
    prompt_error: dict[str, np.ndarray] | None = None,
) -> AgreementAnalysis:
    """Everything that needs no bootstrap; the ceiling's and the subsets' simulations start from `seed`.

    `prompt_error`: by protocol (benchmarks,) how far the prompt moves a score, where it was measured.
    """
    is_task = ~matrix.is_corpus
    tasks = matrix.task_names()
    categories = [name if isinstance(name, str) else None for name in matrix.benchmark_facts["category"][is_task]]
    scores = {p: matrix.oriented(p)[:, is_task] for p in PROTOCOLS}
    stderr = {p: matrix.stderr[p][:, is_task] for p in PROTOCOLS}
    seed_error = {p: matrix.seed_error(p)[:, is_task] for p in PROTOCOLS}
    training_error = {p: matrix.training_error(p)[:, is_task] for p in PROTOCOLS}
    noise = {p: np.sqrt(stderr[p] ** 2 + np.nan_to_num(training_error[p]) ** 2) for p in PROTOCOLS}
    corpora = {p: corpus_scores(matrix, p) for p in PROTOCOLS}
    tau = {p: kendall_tau_matrix(pair_signs(scores[p]), variant=variant) for p in PROTOCOLS}
    significant, paired_notes = _significant(matrix, scores, noise, items, tasks)
    significance_tau = {p: kendall_tau_matrix(significant[p]) for p in PROTOCOLS}
    comparison = compare_protocols(
        scores, corpora, tau, significant, categories, large_families(matrix.families), variant
    )
    of_ceiling, of_subsets = section_generator("noise ceiling", seed), section_generator("subsets", seed)
    ceiling = {p: noise_ceiling(scores[p], measurement_error(matrix, p), of_ceiling) for p in PROTOCOLS}
    maximum = selected_on_test(matrix, scores)
    return AgreementAnalysis(
        matrix=matrix,
        tasks=tasks,
        categories=categories,
        scores=scores,
        stderr=stderr,
        noise=noise,
        corpora=corpora,
        tau=tau,
        agreement={p: summarize_agreement(tau[p], categories) for p in PROTOCOLS},
        significant=significant,
        significance={p: summarize_agreement(significance_tau[p], categories) for p in PROTOCOLS},
        significance_tau=significance_tau,
        comparison=comparison,
        families=_family_agreement(matrix.families, scores),
        perplexity={p: perplexity_agreement(corpora[p], scores[p]) for p in PROTOCOLS} if not is_task.all() else None,
        before_after=_before_after(matrix, corpora, scores),
        ceiling=ceiling,
        variance={
            p: variance_components(scores[p], stderr[p], seed_error[p], (prompt_error or {}).get(p), training_error[p])
            for p in PROTOCOLS
        },
        subsets={p: subset_agreement(scores[p], of_subsets) for p in PROTOCOLS if matrix.has(p)},
        influence={
            p: leave_one_out(scores[p], list(matrix.models), tasks, matrix.families) for p in PROTOCOLS if matrix.has(p)
        },
        reliability=_reliability(matrix, is_task, tasks),
        maximum=maximum,
        variant=variant,
        notes=(
            *matrix.notes,
            *coverage_notes(matrix, scores, stderr, tasks),
            *paired_notes,
            *comparison_notes(matrix, comparison.known, whole=comparison.whole),
            *family_notes(matrix.families),
            *_perplexity_notes(matrix, corpora),
            *(note for p in PROTOCOLS for note in ceiling_notes(p, ceiling[p], tasks)),
            *selection_notes(maximum),
            *([] if any(matrix.training.values()) else [NOT_MEASURED]),
        ),
    )


def measurement_error(matrix: ScoreMatrix, protocol: str) -> np.ndarray:
    """(models, benchmarks) standard errors of the scores from items and, where several were trained, from seeds of the
    fine-tune and from trainings of the model.

    A benchmark without repeated trainings has the noise of its items alone. NaN where standard errors are.
    """
    errors = matrix.stderr[protocol], matrix.seed_error(protocol), matrix.training_error(protocol)
    stderr, seed_error, training_error = (error[:, ~matrix.is_corpus] for error in errors)
    return np.sqrt(stderr**2 + np.nan_to_num(seed_error) ** 2 + np.nan_to_num(training_error) ** 2)


def corpus_scores(matrix: ScoreMatrix, protocol: str) -> np.ndarray:
    """(models, corpora) oriented scores on the perplexity corpora, NaN for models kept out of that analysis."""
    scores = matrix.oriented(protocol)[:, matrix.is_corpus]
    excluded = (~matrix.model_facts["in_perplexity_analysis"].fillna(value=True)).to_numpy(dtype=bool)
    return np.where(excluded[:, None], np.nan, scores)


def family_members(families: np.ndarray) -> dict[str, np.ndarray]:
    """Indices of the models of each family, in order of first appearance."""
    return {name: np.flatnonzero(families == name) for name in dict.fromkeys(families) if name is not None}


def large_families(families: np.ndarray) -> dict[str, np.ndarray]:
    """`family_members` of the families of at least `MINIMUM_FAMILY` models."""
    return {name: rows for name, rows in family_members(families).items() if len(rows) >= MINIMUM_FAMILY}


def tuned_members(matrix: ScoreMatrix) -> dict[str, np.ndarray]:
    """Indices of base and of instruction-tuned models; models of unknown kind are in neither."""
    tuned = matrix.model_facts["instruction_tuned"]
    return {
        "base": np.flatnonzero(tuned.eq(other=False).fillna(value=False)),
        "instruction_tuned": np.flatnonzero(tuned.eq(other=True).fillna(value=False)),
    }


def coverage_notes(
    matrix: ScoreMatrix, scores: dict[str, np.ndarray], stderr: dict[str, np.ndarray], tasks: list[str]
) -> list[str]:
    """What is missing, constant or without a standard error, in sentences."""
    notes = []
    for protocol in PROTOCOLS:
        known_cells = np.isfinite(scores[protocol])
        if not known_cells.any():
            continue
        planned, under = matrix.planned(protocol)[:, ~matrix.is_corpus], UNDER[protocol].capitalize()
        aside = np.isfinite(matrix.measured(protocol)[:, ~matrix.is_corpus]) & ~known_cells
        notes += _missing_notes(under, known_cells, matrix.models, tasks, planned, aside)
        columns = list(zip(tasks, scores[protocol].T, stderr[protocol].T, known_cells.T, strict=True))
        constant = [name for name, column, _, ok in columns if ok.sum() > 1 and np.ptp(column[ok]) == 0]
        if constant:
            notes.append(f"{under}, all models have the same score on {listing(constant)}, so there is no tau.")
        twins = _same_rows(scores[protocol], matrix.models)
        if twins:
            notes.append(
                f"{under}, {listing(twins)} have exactly the same scores on all benchmarks. Perhaps it is one "
                "model twice."
            )
        without = [name for name, _, error, ok in columns if ok.any() and not np.isfinite(error[ok]).any()]
        if without:
            notes.append(
                f"{under}, there are no standard errors on {listing(without)}. Without them no difference is "
                "significant there, and the benchmark is not in the noise ceiling."
            )
    return notes


def _same_rows(scores: np.ndarray, models: tuple[str, ...]) -> list[str]:
    """Sets of models with equal scores on at least two benchmarks, and on all that they have."""
    rows: dict[bytes, list[str]] = {}
    for name, row in zip(models, scores, strict=True):
        if np.isfinite(row).sum() >= 2 and np.ptp(row[np.isfinite(row)]) > 0:
            rows.setdefault(np.nan_to_num(row, nan=np.inf).tobytes(), []).append(name)
    return [" and ".join(names) for names in rows.values() if len(names) > 1]


def comparison_notes(matrix: ScoreMatrix, known: np.ndarray, *, whole: bool) -> list[str]:
    """Which cells a comparison is over if it leaves some out; `known`: (models, benchmarks) under both protocols."""
    if whole or not all(matrix.has(p) for p in PROTOCOLS):
        return []
    models, benchmarks = known.any(axis=1).sum(), known.any(axis=0).sum()
    return [
        f"{known.sum()} of {known.size} cells ({count(models, 'model')}, {count(benchmarks, 'benchmark')}) are known "
        "under both protocols. Everything that compares the two uses these cells, and only values that are defined "
        "under both. Figures of one protocol use all of its cells."
    ]


def _missing_notes(
    under: str, known: np.ndarray, models: tuple[str, ...], tasks: list[str], planned: np.ndarray, aside: np.ndarray
) -> list[str]:
    if known.all():
        return []
    cells = [f"{models[i]} on {tasks[j]}" for i, j in zip(*np.nonzero(~known & planned & ~aside), strict=True)]
    each = "each tau is over the models known on both benchmarks"
    notes = []
    if not planned.all():
        left_out = int((~known & ~planned).sum())
        notes.append(f"{under}, {left_out} of {known.size} cells are not planned and not missing; {each}.")
    if aside.any():
        notes.append(
            f"{under}, {aside.sum()} of {known.size} cells were chosen by earlier scores. They are used for the "
            "ranks despite missing cells and for the predictions, but for no agreement."
        )
    if cells:
        notes.append(f"{under}, {len(cells)} of {known.size} cells are missing ({listing(cells, 6)}); {each}.")
    nowhere = [name for name, row in zip(models, known, strict=True) if not row.any()]
    if nowhere:
        notes.append(f"{under}, there is no score at all for {listing(nowhere)}.")
    return notes


def family_notes(families: np.ndarray) -> list[str]:
    """Which families are too small for figures of their own."""
    large = large_families(families)
    small = [name for name in family_members(families) if name not in large]
    return (
        [f"Families of fewer than {MINIMUM_FAMILY} models get no figures of their own: {listing(small)}."]
        if small
        else []
    )


def ceiling_notes(protocol: str, ceiling: Ceiling, tasks: list[str]) -> list[str]:
    """Which benchmarks the noise ceiling leaves out, where there is one."""
    out = [task for task, used in zip(tasks, ceiling.used, strict=True) if not used]
    if not out or not np.isfinite(ceiling.mean_tau):
        return []
    return [f"{UNDER[protocol].capitalize()}, the noise ceiling is over the benchmarks other than {listing(out)}."]


def no_ceiling(ceiling: Ceiling, scores: np.ndarray, protocol: str) -> str:
    """Why a noise ceiling of `scores` (models, benchmarks) under `protocol` is not defined."""
    if not np.isfinite(scores).any():
        return no_scores(protocol)
    if (np.isfinite(scores).sum(axis=0) >= 2).sum() < 2:
        return Reason(
            "Fewer than two benchmarks have scores of two models, so there is no noise ceiling.", ReasonCode.TOO_FEW
        )
    if ceiling.used.sum() < 2:
        return Reason(
            "Fewer than two benchmarks on which models differ have standard errors, so there is no noise ceiling.",
            ReasonCode.TOO_FEW,
        )
    return Reason(
        "No two benchmarks with standard errors have models in common that differ, so there is no noise ceiling.",
        ReasonCode.TOO_FEW,
    )


def _perplexity_notes(matrix: ScoreMatrix, corpora: dict[str, np.ndarray]) -> list[str]:
    absent = matrix.models_without(corpora) if matrix.is_corpus.any() else []
    return [f"No perplexity of {listing(absent)}: left out of the comparisons with perplexity."] if absent else []


def _significant(
    matrix: ScoreMatrix,
    scores: dict[str, np.ndarray],
    stderr: dict[str, np.ndarray],
    items: str | Path | None,
    tasks: list[str],
) -> tuple[dict[str, PairSigns], list[str]]:
    """Significant differences from standard errors, paired over items where those are given, and notes on that."""
    signs = {p: significant_signs(scores[p], stderr[p]) for p in PROTOCOLS}
    return (signs, []) if items is None else use_paired_tests(signs, items, matrix, tasks)


def _family_agreement(families: np.ndarray, scores: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Mean tau within each family, NaN for those of fewer than `MINIMUM_FAMILY` models."""
    large = large_families(families)
    return {
        name: {
            p: mean_over_pairs(kendall_tau_matrix(pair_signs(scores[p][rows]))) if name in large else float("nan")
            for p in PROTOCOLS
        }
        for name, rows in family_members(families).items()
    }


def _before_after(
    matrix: ScoreMatrix, corpora: dict[str, np.ndarray], scores: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """(corpora, benchmarks) taus of direct perplexity with train-before-test scores, base and tuned models apart."""
    if not matrix.is_corpus.any():
        return {}
    return {
        kind: kendall_tau_matrix(pair_signs(corpora[DIRECT][rows]), others=pair_signs(scores[TRAINED][rows]))
        for kind, rows in tuned_members(matrix).items()
    }


def _reliability(matrix: ScoreMatrix, is_task: np.ndarray, tasks: list[str]) -> dict[str, float]:
    """Mean tau between two seeds, by benchmark: how well a repeated fine-tune gives the same order."""
    seeds = [scores[:, is_task] for scores in matrix.by_seed.values()]
    if len(seeds) < 2:
        return {}
    result = {}
    for j, task in enumerate(tasks):
        columns = np.column_stack([scores[:, j] for scores in seeds])
        tau = kendall_tau_matrix(pair_signs(columns))
        result[task] = finite_mean(tau[np.triu_indices(len(seeds), 1)])
    return result


def selected_on_test(matrix: ScoreMatrix, scores: dict[str, np.ndarray]) -> SelectionOnTest | None:
    """Detect train-before-test scores that were replaced by direct ones where those were better on the test split."""
    if set(matrix.sources) <= {OWN}:
        return None  # selected on validation; equal cells are those that fell back to the untouched model
    both = np.isfinite(scores[DIRECT]) & np.isfinite(scores[TRAINED])
    equal = both & (scores[TRAINED] == scores[DIRECT])
    below = both & (scores[TRAINED] < scores[DIRECT])
    # many equal cells mean that a protocol was copied or that scores are constant, which is something else
    if below.any() or not 5 <= equal.sum() <= both.sum() / 5:
        return None
    without = np.where(equal, np.nan, scores[TRAINED])
    return SelectionOnTest(
        equal=int(equal.sum()),
        below=0,
        cells=int(both.sum()),
        mean_tau_without=known(
            mean_over_pairs(kendall_tau_matrix(pair_signs(without))), "Without the equal cells no tau is defined."
        ),
    )


def selection_notes(found: SelectionOnTest | None) -> list[str]:
    """What scores chosen on the test split mean."""
    if found is None:
        return []
    return [
        f"No train-before-test score is below its direct score, and {found.equal} of {found.cells} are exactly equal. "
        "So the train-before-test scores of this table are the better of both protocols on the test split, not a "
        "choice made on validation. Where fine-tuning does not help, the score is then too high by chance, and the "
        "model keeps its direct score there. Without the equal cells the mean tau under train before test is "
        f"{decimal(number(found.mean_tau_without), 4)}."
    ]
