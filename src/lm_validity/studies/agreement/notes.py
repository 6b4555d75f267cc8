"""Notes on the data of the agreement reports: what is missing, equal, assumed or left out of which comparison."""

from dataclasses import dataclass

import numpy as np

from lm_validity.missing import is_known, known, number
from lm_validity.studies.agreement.score_matrix import MINIMUM_FAMILY, ScoreMatrix, family_members, large_families
from lm_validity.studies.agreement.statistics.ranking import kendall_tau_matrix, mean_over_pairs, pair_signs
from lm_validity.studies.agreement.values import Value, shown_limit
from lm_validity.tables.schema import DIRECT, OWN, PROTOCOLS, TRAINED
from lm_validity.words import UNDER, count, decimal, listing, with_names

WHY_ABOVE = (
    "Where benchmarks order all models alike, this happens by chance in half of all tables. A ceiling counts the noise "
    "of each score as independent. Models that answer the same items share part of theirs, and so do benchmarks with "
    "items in common. Standard errors that are too large can cause this too."
)
FAR = (
    "Far from all other models: {}. A noise ceiling takes the distance to such a model for the scale of all "
    "differences: it is too low (measured: by .04), and the tau without noise too high."
)
OPPOSED = (
    "Nothing says whether higher or lower is better on {}, and the order of the models there is against that of the "
    "other benchmarks. Whether benchmarks agree is not known until the column `higher_is_better` of the benchmarks "
    "sheet says it: 0 if lower is better, else 1."
)


def resample_notes(resamples: int, asked_resamples: int) -> list[str]:
    """That a large table was resampled less often than asked for."""
    if resamples >= asked_resamples:
        return []
    return [f"The table is large: intervals over models are from {resamples} resamples instead of {asked_resamples}."]


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
        twins = _same_rows(scores[protocol], matrix.models)
        without = [name for name, _, error, ok in columns if ok.any() and not np.isfinite(error[ok]).any()]
        notes += with_names(
            {
                f"{under}, all models have the same score on {{}}, so there is no tau.": constant,
                f"{under}, {{}} have exactly the same scores on all benchmarks. Perhaps it is one model twice.": twins,
                f"{under}, there are no standard errors on {{}}. Without them no difference is significant there, and "
                "the benchmark is not in the noise ceiling.": without,
            }
        )
    return notes


def _same_rows(scores: np.ndarray, models: tuple[str, ...]) -> list[str]:
    """Sets of models with equal scores on at least two benchmarks, and on all that they have."""
    rows: dict[bytes, list[str]] = {}
    for name, row in zip(models, scores, strict=True):
        if np.isfinite(row).sum() >= 2 and np.ptp(row[np.isfinite(row)]) > 0:
            rows.setdefault(np.nan_to_num(row, nan=np.inf).tobytes(), []).append(name)
    return [" and ".join(names) for names in rows.values() if len(names) > 1]


def comparison_notes(matrix: ScoreMatrix, in_both: np.ndarray, *, complete: bool) -> list[str]:
    """Which cells a comparison is over if it leaves some out; `in_both`: (models, benchmarks) under both protocols."""
    if complete or not all(matrix.has(p) for p in PROTOCOLS):
        return []
    models, benchmarks = in_both.any(axis=1).sum(), in_both.any(axis=0).sum()
    return [
        f"{in_both.sum()} of {in_both.size} cells ({count(models, 'model')}, {count(benchmarks, 'benchmark')}) are "
        "known under both protocols. Everything that compares the two uses these cells, and only values that are "
        "defined under both. Figures of one protocol use all of its cells."
    ]


def _missing_notes(
    under: str, finite: np.ndarray, models: tuple[str, ...], tasks: list[str], planned: np.ndarray, aside: np.ndarray
) -> list[str]:
    if finite.all():
        return []
    cells = [f"{models[i]} on {tasks[j]}" for i, j in zip(*np.nonzero(~finite & planned & ~aside), strict=True)]
    basis_of_tau = "each tau is over the models known on both benchmarks"
    notes = []
    if not planned.all():
        left_out = int((~finite & ~planned).sum())
        notes.append(f"{under}, {left_out} of {finite.size} cells are not planned and not missing; {basis_of_tau}.")
    if aside.any():
        notes.append(
            f"{under}, {aside.sum()} of {finite.size} cells were chosen by earlier scores. They are used for the "
            "ranks despite missing cells and for the predictions, but for no agreement."
        )
    if cells:
        notes.append(f"{under}, {len(cells)} of {finite.size} cells are missing ({listing(cells, 6)}); {basis_of_tau}.")
    nowhere = [name for name, row in zip(models, finite, strict=True) if not row.any()]
    return notes + with_names({f"{under}, there is no score at all for {{}}.": nowhere})


def family_notes(families: np.ndarray) -> list[str]:
    """Which families are too small for figures of their own."""
    large = large_families(families)
    sentence = f"Families of fewer than {MINIMUM_FAMILY} models get no figures of their own: {{}}."
    return with_names({sentence: [name for name in family_members(families) if name not in large]})


def ceiling_notes(
    protocol: str, included: np.ndarray, tasks: list[str], name: str, limit: float, value: float
) -> list[str]:
    """Which benchmarks the noise ceiling leaves out, where there is one, and why it is not shown where it is below the
    value called `name`. `included`: mask of the others; `limit`: the ceiling of that `value`."""
    notes, under = [], UNDER[protocol].capitalize()
    out = [task for task, is_used in zip(tasks, included, strict=True) if not is_used]
    if out and np.isfinite(limit):
        notes.append(f"{under}, the noise ceiling is over the benchmarks other than {listing(out)}.")
    if value > limit and not is_known(shown_limit(limit, value)):
        notes.append(
            f"{under}, the {name} ({decimal(value)}) is above its noise ceiling ({decimal(limit)}), which is therefore "
            f"not shown. {WHY_ABOVE}"
        )
    return notes


@dataclass(frozen=True)
class SelectedOnTest:
    """Train-before-test scores that look like the larger of both test scores: how many `cells` are known under both
    protocols, `equal` or `below` (none) under train before test, and the mean tau of its rankings without the equal
    ones."""

    equal: int
    below: int
    cells: int
    mean_tau_without: Value


def selected_on_test(matrix: ScoreMatrix, scores: dict[str, np.ndarray]) -> SelectedOnTest | None:
    """Whether train-before-test scores look like the larger of both test scores; None where they do not."""
    if set(matrix.sources) <= {OWN}:
        return None  # selected on validation; equal cells are those that fell back to the untouched model
    in_both_protocols = np.isfinite(scores[DIRECT]) & np.isfinite(scores[TRAINED])
    equal = in_both_protocols & (scores[TRAINED] == scores[DIRECT])
    below = in_both_protocols & (scores[TRAINED] < scores[DIRECT])
    # many equal cells mean that a protocol was copied or that scores are constant, which is something else
    if below.any() or not 5 <= equal.sum() <= in_both_protocols.sum() / 5:
        return None
    without = np.where(equal, np.nan, scores[TRAINED])
    return SelectedOnTest(
        equal=int(equal.sum()),
        below=0,
        cells=int(in_both_protocols.sum()),
        mean_tau_without=known(
            mean_over_pairs(kendall_tau_matrix(pair_signs(without))), "Without the equal cells no tau is defined."
        ),
    )


def selection_notes(chosen: SelectedOnTest | None) -> list[str]:
    """What scores chosen on the test split mean."""
    if chosen is None:
        return []
    return [
        f"No train-before-test score is below its direct score, and {chosen.equal} of {chosen.cells} are exactly "
        "equal. So the train-before-test scores of this table are the better of both protocols on the test split, "
        "not a choice made on validation. Where fine-tuning does not help, the score is then too high by chance, and "
        "the model keeps its direct score there. Without the equal cells the mean tau under train before test is "
        f"{decimal(number(chosen.mean_tau_without), 4)}."
    ]
