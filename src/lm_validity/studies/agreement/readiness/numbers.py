"""Does a group of models lead at equal compute, and is the lead gone once all are prepared? The numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import logit

from lm_validity.config.groups import Group, parse_group
from lm_validity.config.sections import Agreement
from lm_validity.errors import InputError
from lm_validity.missing import Missing, Reason, ReasonCode, is_known, known, number
from lm_validity.results.summary import page_only
from lm_validity.statistics import holm
from lm_validity.studies.agreement.notes import selected_on_test
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, read_score_matrix
from lm_validity.studies.agreement.statistics.ranking import finite_mean
from lm_validity.studies.agreement.statistics.readiness import (
    LEAST_FAMILIES,
    LEAST_FAMILIES_A_SIDE,
    compute_terms,
    enough_families,
    group_effect,
    knots_within,
    leads_of_families,
    outside_overlap,
    without_families,
)
from lm_validity.studies.agreement.statistics.resampling import cluster_numbers
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.tables.sheets import group_members
from lm_validity.words import with_names

Value = float | Missing
Range = tuple[float, float] | Missing
CHECKS = ("straight_line", "larger_of_both")
LEAST_SHARE = 0.005  # of the way from chance to 1: shares nearer to either end count as this far, on the logit scale
NO_LEAD = Reason("The group cannot be told from compute here, or no score is known.", ReasonCode.TOO_FEW)
NO_ERROR = Reason("There are too few models or families for a standard error.", ReasonCode.TOO_FEW)
FEW_FAMILIES = Reason(
    f"An interval needs at least {LEAST_FAMILIES} families of models, {LEAST_FAMILIES_A_SIDE} with members in the "
    f"group and {LEAST_FAMILIES_A_SIDE} with members outside.",
    ReasonCode.TOO_FEW,
)
ONE_BENCHMARK = Reason("There is one benchmark only.", ReasonCode.NONE)
ALL_TOGETHER = Reason("It is of all benchmarks together.", ReasonCode.NONE)
NO_SPREAD = Reason(
    "The models do not differ but for the group and compute: there is no spread.", ReasonCode.NO_INTERVAL
)
NO_CHANCE = Reason("The benchmarks sheet names no chance level (column chance).", ReasonCode.NO_CHANCE)
NOT_ONE_FAMILY = Reason("The group is not one family.", ReasonCode.NONE)


@dataclass(frozen=True)
class LeadFit:
    """A group's lead in points of a score that is a fraction, under a protocol, or the change of it; interval and p by
    families."""

    value: Value
    standard_error: Value
    interval: Range
    p: Value


@dataclass(frozen=True)
class Check:
    """The leads, and the change, under another choice: a straight line, or the larger of both scores as the prepared
    one."""

    lead: dict[str, Value]
    change: Value


@dataclass(frozen=True)
class Gap:
    """On one benchmark, or what all have in common. `change`: after minus direct; `logit_change`: the same of the
    logits of the shares of the way from chance to 1, for benchmarks of known chance.

    p_adjusted: of the change, Holm's over the benchmarks. without_family: the change. placebo_rank: of the change of a
    group that is one family, 1 = falls most, among `placebo_families` as groups of their own.
    """

    models: int
    lead: dict[str, LeadFit]
    change: LeadFit
    logit_change: LeadFit
    p_adjusted: Value
    checks: dict[str, Check]
    without_family: dict[str, Value]
    placebo_rank: Value
    placebo_families: int | Missing


class Points(NamedTuple):
    """Each model's compute in operations, means over the benchmarks under both protocols, and `side`: 1 in the group,
    0 outside. All (models,)."""

    compute: np.ndarray
    direct: np.ndarray
    prepared: np.ndarray
    side: np.ndarray


@dataclass(frozen=True)
class GroupSummary:
    """`models`: of known compute and side; `unknown`: others with scores. `alone`: models beyond the computes of the
    other side, on which its line is an extrapolation."""

    group: str
    models: dict[str, int]
    families: dict[str, int]
    alone: dict[str, int]
    unknown: int
    knots: list[float]
    together: Gap | Missing
    benchmarks: dict[str, Gap]
    words: str = page_only()
    prepared: str = page_only()  # what the scores after preparation are, in a sentence
    scores: pd.DataFrame = page_only()  # of each model and benchmark, with its compute
    points: Points = page_only()
    notes: tuple[str, ...] = page_only()

    @property
    def shown(self) -> list[tuple[str, Gap]]:
        """What the page shows by name, the benchmarks together first; there is at least one."""
        together = [] if isinstance(self.together, Missing) else [("all together", self.together)]
        return [*together, *self.benchmarks.items()]


@dataclass(frozen=True)
class ReadinessSummary:
    """What the readiness report found: its groups, and the notes that go with them."""

    models: int
    groups: list[GroupSummary]
    notes: tuple[str, ...]
    protocols: tuple[str, ...] = page_only()
    trained_here: bool = page_only()  # a run of the workflow made the fine-tunes


@dataclass(frozen=True)
class _Compared:
    """The models of known compute and side: `side` 1 in the group, `families` numbers, `terms` of the line that bends
    and `straight` of the one that does not."""

    side: np.ndarray
    families: np.ndarray
    family_names: list[str]
    terms: np.ndarray
    straight: np.ndarray

    def fit(self, scores: np.ndarray) -> LeadFit:
        """The group's lead in `scores`, (models,) or (models, benchmarks); NaN where unknown. Missing with the first
        reason that there is: no lead, no standard error, too few families, no spread."""
        effect = group_effect(scores, self.side, self.terms, self.families)
        enough = enough_families(self.side, self.families, scores, self.terms)
        reason = NO_SPREAD if enough else FEW_FAMILIES
        value = known(effect.value, NO_LEAD)
        error = value if isinstance(value, Missing) else known(effect.standard_error, NO_ERROR)
        interval = error if isinstance(error, Missing) else known(effect.low, reason)
        ends = interval if isinstance(interval, Missing) else (effect.low, effect.high)
        return LeadFit(value, error, ends, error if isinstance(error, Missing) else known(effect.p, reason))

    def lead(self, scores: np.ndarray, terms: np.ndarray) -> Value:
        """The lead alone, with other `terms` of compute."""
        return known(group_effect(scores, self.side, terms, self.families, tested=False).value, NO_LEAD)


def analyze_readiness(
    scores: str | Path,
    models: str | Path,
    benchmarks: str | Path,
    section: Agreement,
    plan: str | Path | None = None,
) -> ReadinessSummary:
    """The leads of the groups that the section names, and what of them changes.

    Raises InputError where the section names no group, as `read_score_matrix` and `members`, and where no benchmark
    has scores under both protocols.
    """
    if not section.groups:
        raise InputError("report readiness: no group.", "name one with --group, or in agreement.groups.")
    parsed = [parse_group(text) for text in section.groups]
    matrix = read_score_matrix(scores, models, benchmarks, plan, groups=parsed)
    groups = [readiness(matrix, group, models, section.knots) for group in parsed]
    notes = dict.fromkeys([*matrix.notes, *(note for group in groups for note in group.notes)])
    return ReadinessSummary(len(matrix.models), groups, tuple(notes), tuple(matrix.protocols), matrix.trained_here)


def readiness(matrix: ScoreMatrix, group: Group, sheet: str | Path, knots: Sequence[float]) -> GroupSummary:
    """A group's leads at equal compute under both protocols, and what changes.

    `sheet`: of the models. Over the cells known under both protocols, of models of known compute, on benchmarks whose
    scores are fractions. Raises InputError where there are none.
    """
    compute, side = matrix.sizes()[1], np.array(group_members(matrix.model_facts, group, sheet), dtype=float)
    compared = np.isfinite(compute) & np.isfinite(side)
    in_both = np.logical_and.reduce([np.isfinite(matrix.value[p]) for p in PROTOCOLS]) & compared[:, None]
    columns_used = np.flatnonzero(matrix.fractions & in_both.any(axis=0))
    if not len(columns_used):
        raise InputError(
            f"group {group.text!r}: no benchmark has scores under both protocols of models of known compute.",
            "the change of a lead needs direct and train-before-test scores, as fractions.",
        )
    direct, prepared = (np.where(in_both, matrix.oriented(p), np.nan)[compared][:, columns_used] for p in PROTOCOLS)
    side, compute, families = side[compared], compute[compared], matrix.families[compared]
    labels = np.array(matrix.labels)[compared]
    numbers = cluster_numbers(families)
    named = [family or label for family, label in zip(families, labels, strict=True)]
    data = _Compared(
        side=side,
        families=numbers,
        family_names=[named[np.flatnonzero(numbers == cluster)[0]] for cluster in np.unique(numbers)],
        terms=compute_terms(compute, knots),
        straight=compute_terms(compute, ()),
    )

    names = [matrix.benchmarks[column] for column in columns_used]
    logits = np.column_stack(
        [_logits(matrix, int(column), direct[:, k], prepared[:, k]) for k, column in enumerate(columns_used)]
    )
    gaps = _gaps(names, direct, prepared, logits, data)
    scores = pd.DataFrame(
        {
            "model": labels[model],
            "family": families[model] or "unknown",
            "group": "in it" if side[model] else "outside",
            "benchmark": name,
            "compute": compute[model],
            DIRECT: direct[model, k],
            TRAINED: prepared[model, k],
        }
        for k, name in enumerate(names)
        for model in np.flatnonzero(np.isfinite(direct[:, k]))
    )
    unused = [matrix.benchmarks[j] for j in np.flatnonzero(~matrix.fractions & ~matrix.is_corpus)]
    inside, outside = outside_overlap(compute, side)
    return GroupSummary(
        group=group.text,
        models={"inside": int(side.sum()), "outside": int((1 - side).sum())},
        families={name: len(set(numbers[side == flag])) for name, flag in (("inside", 1), ("outside", 0))},
        alone={"inside": inside, "outside": outside},
        unknown=int((~compared).sum()),
        knots=list(knots_within(compute, knots)),
        together=_gap(direct, prepared, logits, data) if len(gaps) > 1 else Missing(ONE_BENCHMARK),
        benchmarks=gaps,
        words=group.words,
        prepared=_convention(matrix),
        scores=scores,
        points=Points(compute, finite_mean(direct, axis=1), finite_mean(prepared, axis=1), side),
        notes=tuple(with_names({"Benchmarks whose scores are not fractions take no part in leads: {}.": unused})),
    )


def _gaps(
    benchmarks: Sequence[str], direct: np.ndarray, prepared: np.ndarray, logits: np.ndarray, data: _Compared
) -> dict[str, Gap]:
    """The gap on each benchmark, of arrays (models, benchmarks), with Holm's adjustment over the benchmarks."""
    gaps = {name: _gap(direct[:, k], prepared[:, k], logits[:, k], data) for k, name in enumerate(benchmarks)}
    tested = {name: number(gap.change.p) for name, gap in gaps.items() if is_known(gap.change.p)}
    for name, p in zip(tested, holm(np.array(list(tested.values()))), strict=True):
        gaps[name] = replace(gaps[name], p_adjusted=float(p))
    return gaps


def _logits(matrix: ScoreMatrix, column: int, direct: np.ndarray, prepared: np.ndarray) -> np.ndarray:
    """(models,) the change of the oriented scores of a benchmark, the `column` of the matrix, as logits of the shares
    of the way from chance to 1; NaN where chance is unknown. A gain in ability that is the same for all is the same on
    this scale, whereas in points it is small near chance and near 1."""
    chance, lower = float(matrix.benchmark_facts["chance"].iloc[column]), matrix.direction[column] < 0
    best = 1 - chance if not lower else chance  # an error rate is negative here: from -chance up to 0
    shares = ((scores + (chance if lower else -chance)) / best for scores in (direct, prepared))
    first, last = (logit(np.clip(share, LEAST_SHARE, 1 - LEAST_SHARE)) for share in shares)
    return np.asarray(last - first)


def _gap(direct: np.ndarray, prepared: np.ndarray, logits: np.ndarray, data: _Compared) -> Gap:
    """Of arrays (models,) or (models, benchmarks); `logits`: the change on that scale, NaN where chance is unknown."""
    change = prepared - direct
    larger = np.where(np.isfinite(change), np.fmax(direct, prepared), np.nan)
    fits = {DIRECT: data.fit(direct), TRAINED: data.fit(prepared)}
    one_family = len(set(data.families[data.side == 1])) == 1
    placebos = leads_of_families(change, data.terms, data.families) if one_family else np.empty(0)
    moved = data.fit(change)
    return Gap(
        models=int(np.isfinite(change.reshape(len(change), -1)).any(axis=1).sum()),
        lead=fits,
        change=moved,
        logit_change=data.fit(logits) if np.isfinite(logits).any() else LeadFit(*[Missing(NO_CHANCE)] * 4),
        p_adjusted=moved.p if isinstance(moved.p, Missing) else Missing(ALL_TOGETHER),
        checks={
            title: Check(
                {DIRECT: data.lead(direct, terms), TRAINED: data.lead(last, terms)}, data.lead(last - direct, terms)
            )
            for title, terms, last in zip(CHECKS, (data.straight, data.terms), (prepared, larger), strict=True)
        },
        without_family={
            family: known(value, NO_LEAD)
            for family, value in zip(
                data.family_names, without_families(change, data.side, data.terms, data.families), strict=True
            )
        },
        placebo_rank=float(1 + (placebos < number(moved.value) - 1e-12).sum())
        if one_family and is_known(moved.value)
        else Missing(NOT_ONE_FAMILY),
        placebo_families=int(np.isfinite(placebos).sum()) if one_family else Missing(NOT_ONE_FAMILY),
    )


def _convention(matrix: ScoreMatrix) -> str:
    """What the scores after preparation are, in a sentence."""
    if matrix.trained_here:
        return (
            "Scores under train before test are of the fine-tune that is best on validation, or of the untouched model "
            "where none is better there."
        )
    if selected_on_test(matrix, {p: matrix.oriented(p)[:, ~matrix.is_corpus] for p in PROTOCOLS}):
        return "Scores under train before test are the larger of both on the test split."
    return "Scores under train before test are as the source gives them, also where they are below the direct score."
