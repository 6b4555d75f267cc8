"""The readiness report: does a group of models lead at equal compute, and is the lead gone once all are prepared?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup
from scipy.special import logit

from lm_validity.config.groups import Group, parse_group
from lm_validity.config.sections import Agreement
from lm_validity.errors import InputError
from lm_validity.missing import Missing, Reason, ReasonCode, as_columns, is_known, known, number
from lm_validity.pages import svg
from lm_validity.pages.page import Answer, Finding, Lede, Page, Panel, Part, Picture, Section, Table
from lm_validity.results.files import joined, write_report
from lm_validity.results.summary import page_only
from lm_validity.statistics import holm
from lm_validity.studies.agreement.data import selected_on_test
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
from lm_validity.words import count, decimal, explain_protocols, listing, with_names

Value = float | Missing
Range = tuple[float, float] | Missing
CHECKS = {"straight_line": "a straight line", "larger_of_both": "the larger score as the prepared one"}
LEADS = {  # heads of columns
    protocol: (f"lead, {words}", "from", "to", "standard error of the lead", "p of the lead")
    for protocol, words in ((DIRECT, "direct"), (TRAINED, "train before test"))
}
MOST_DRAWN = 12  # benchmarks of the slopes
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
    prepared: str = page_only()

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


def report_readiness(
    scores: str | Path,
    models: str | Path,
    benchmarks: str | Path,
    output: str | Path,
    section: Agreement,
    plan: str | Path | None = None,
) -> None:
    """Write summary.json, results, tables and the page of the readiness report under `output`.

    Raises InputError where the section names no group, as `read_score_matrix` and `members`, and where no benchmark
    has scores under both protocols.
    """
    if not section.groups:
        raise InputError("report readiness: no group.", "name one with --group, or in agreement.groups.")
    parsed = [parse_group(text) for text in section.groups]
    matrix = read_score_matrix(scores, models, benchmarks, plan, groups=parsed)
    groups = [
        readiness(matrix, group, models, section.knots, group_number) for group_number, group in enumerate(parsed, 1)
    ]
    summaries, parts = [group.summary["group"] for group in groups], joined(*groups)
    notes = tuple(dict.fromkeys([*matrix.notes, *parts.notes]))
    pairs_shown = summaries[0].shown
    note = "The group's lead at equal compute, in points: direct on the left, train before test on the right."
    if any(is_known(fit.interval) for _, gap in pairs_shown for fit in gap.lead.values()):
        note += " Vertical lines: 95% intervals over families."
    if len(pairs_shown) > MOST_DRAWN:
        note += f" Drawn are the {MOST_DRAWN - 1} benchmarks that change most."
    page = Page(
        name="readiness",
        title="Readiness gap",
        question="Does a group of models lead because it can do more, or because it was prepared for the test? "
        f"{explain_protocols(matrix.protocols, own=matrix.trained_here)}",
        lede=_lede(summaries[0]),
        picture=Picture(_slopes(summaries[0], MOST_DRAWN, 1180, "w640") + _slopes(summaries[0], 4, 340, "n640"), note),
        panels=parts.panels,
        # an estimate without an interval is no answer
        answers=[answer for summary in summaries if (answer := _answer(summary)).interval],
        findings=parts.findings,
        sections=parts.sections,
        notes=notes,
    )
    write_report(page, ReadinessSummary(len(matrix.models), summaries, notes), output)


def readiness(matrix: ScoreMatrix, group: Group, sheet: str | Path, knots: Sequence[float], group_number: int) -> Part:
    """A group's leads at equal compute under both protocols, and what changes.

    `sheet`: of the models. `group_number`: for the names of files. Over the cells known under both protocols, of
    models of known compute, on benchmarks whose scores are fractions. Raises InputError where there are none.
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

    # each benchmark, with Holm's adjustment over them, and what all have in common
    logits = [_logits(matrix, int(j), direct[:, k], prepared[:, k]) for k, j in enumerate(columns_used)]
    gaps = {
        matrix.benchmarks[j]: _gap(direct[:, k], prepared[:, k], logits[k], data) for k, j in enumerate(columns_used)
    }
    tested = {name: number(gap.change.p) for name, gap in gaps.items() if is_known(gap.change.p)}
    for name, p in zip(tested, holm(np.array(list(tested.values()))), strict=True):
        gaps[name] = replace(gaps[name], p_adjusted=float(p))
    together = _gap(direct, prepared, np.column_stack(logits), data) if len(gaps) > 1 else Missing(ONE_BENCHMARK)

    inside, outside = outside_overlap(compute, side)
    summary = GroupSummary(
        group=group.text,
        models={"inside": int(side.sum()), "outside": int((1 - side).sum())},
        families={name: len(set(numbers[side == flag])) for name, flag in (("inside", 1), ("outside", 0))},
        alone={"inside": inside, "outside": outside},
        unknown=int((~compared).sum()),
        knots=list(knots_within(compute, knots)),
        together=together,
        benchmarks=gaps,
        words=group.words,
        prepared=_convention(matrix),
    )
    bends = f"bends at {listing(f'{knot:.0e}' for knot in summary.knots)} FLOP" if summary.knots else "is straight"
    scores = pd.DataFrame(
        {
            "model": labels[i],
            "family": families[i] or "unknown",
            "group": "in it" if side[i] else "outside",
            "benchmark": matrix.benchmarks[j],
            "compute": compute[i],
            DIRECT: direct[i, k],
            TRAINED: prepared[i, k],
        }
        for k, j in enumerate(columns_used)
        for i in np.flatnonzero(np.isfinite(direct[:, k]))
    )
    section = Section(
        f"The lead of {summary.words}",
        finding=_sentence(summary)[0],
        explanation="The lead is the coefficient of the group in a regression of the score on the group and on log10 "
        f"of compute (6 × parameters × tokens). The line against compute {bends}. The change is after minus direct. "
        "Standard errors are of the jackknife over families (CR3). Intervals and p are the wider of its t test and of "
        "CR2's. In points, equal gains in ability are unequal near chance and near 1. On the logit scale they are "
        "equal. A straight line, and the larger of both scores as the prepared one, are checks.",
        tables=_tables(summary, scores, group_number),
    )
    unused = [matrix.benchmarks[j] for j in np.flatnonzero(~matrix.fractions & ~matrix.is_corpus)]
    return Part(
        {"group": summary},
        section=section,
        findings=[Finding(*_sentence(summary))],
        notes=with_names(
            {
                "Benchmarks whose scores are no fractions have no part in leads: {}.": unused,
            }
        ),
        panel=Panel(
            f"Score against compute: {summary.words} (filled) and others",
            f"Mean over **{count(len(columns_used), 'benchmark')}**",
            _scatter(compute, finite_mean(direct, axis=1), finite_mean(prepared, axis=1), side),
        ),
    )


def _logits(matrix: ScoreMatrix, group_number: int, direct: np.ndarray, prepared: np.ndarray) -> np.ndarray:
    """(models,) the change of the oriented scores of a benchmark as logits of the shares of the way from chance to 1;
    NaN where chance is unknown. A gain in ability that is the same for all is the same on this scale, whereas in
    points it is small near chance and near 1."""
    chance, lower = float(matrix.benchmark_facts["chance"].iloc[group_number]), matrix.direction[group_number] < 0
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


# ----------------------------------------------------------------------------------------------------------------------
# The page.


class _GroupSentence(NamedTuple):
    """The finding with the interval of the change, and what it rests on."""

    sentence: str
    basis: str


def _sentence(summary: GroupSummary) -> _GroupSentence:
    """The finding with the interval of the change, and what it rests on."""
    lede, gap = _lede(summary), summary.shown[0][1]
    models, families, twinless = summary.models, summary.families, summary.alone
    basis = [
        f"Mean over {len(summary.benchmarks)} benchmarks." if is_known(summary.together) else "",
        f"{count(models['inside'], 'model')} of {count(families['inside'], 'family', 'families')} in the group, "
        f"{models['outside']} of {families['outside']} outside.",
        f"{summary.unknown} of unknown compute or side are left out." if summary.unknown else "",
        f"Beyond the computes of the other side lie {twinless['inside']} of the group and "
        f"{twinless['outside']} outside it.",
        summary.prepared,
        _in_place(gap),
        _on_logits(gap),
        "This is an association: groups may differ in what compute does not measure, such as the quality of the data.",
    ]
    interval = f" ({lede.interval})" if lede.interval else ""
    return _GroupSentence(f"{lede.sentence}{interval}.", " ".join(filter(None, basis)))


def _in_place(gap: Gap) -> str:
    """Why there is no interval, and the rank that a group of one family has in its place."""
    reason = gap.change.interval.reason if isinstance(gap.change.interval, Missing) else ""
    if isinstance(gap.placebo_rank, Missing):
        return reason
    rank = f"rank {gap.placebo_rank:.0f} among the {gap.placebo_families} families (1 falls most)"
    return f"{reason} The group's change has {rank}."


def _on_logits(gap: Gap) -> str:
    """What the change is on the logit scale, where a change in points may be a gain in ability of unequal size."""
    interval = gap.logit_change.interval
    if isinstance(interval, Missing):
        return (
            "Not known whether it also changes on the logit scale. A group with more ability gains fewer points near 1."
        )
    low, high = (decimal(end, 2, signed=True) for end in interval)
    verb = "excludes" if min(interval) > 0 or max(interval) < 0 else "does not exclude"
    return f"On the logit scale the change is {low} to {high} (95%), which {verb} none."


def _lede(summary: GroupSummary) -> Lede:
    """Heading, and the sentence of the first page. That a lead shrinks, falls or rises is said where the interval of
    the change excludes zero; that there is no lead never."""
    name, gap = summary.shown[0]
    direct, prepared = (number(gap.lead[protocol].value) for protocol in PROTOCOLS)
    if np.isnan(direct - prepared):
        return Lede("No lead can be estimated", f"Compute and being among {summary.words} cannot be told apart")
    where = f"At equal compute, the lead of {summary.words}" + ("" if gap is summary.together else f" on {name}")
    pair = f"{svg.points(direct)} → {svg.points(prepared)} points"
    if isinstance(gap.change.interval, Missing):
        return Lede("An estimate without an interval", f"{where} is {pair}")
    low, high = gap.change.interval
    heading, verb = "No change of the lead was found", "is"
    if low > 0:
        heading, verb = f"The group gains{_scale(gap)}", "rises:"
    elif high < 0:
        heading, verb = f"The group falls back{_scale(gap)}", "falls:"
        if abs(prepared) < direct:
            heading, verb = f"The lead shrinks{_scale(gap)}", "shrinks:"
    return Lede(heading, f"{where} {verb} {pair}", _of_the_change(gap))


def _scale(gap: Gap) -> str:
    """On which scale the lead changes, for the heading: in points alone, equal gains in ability may look so."""
    interval, change = gap.logit_change.interval, number(gap.change.value)
    if isinstance(interval, Missing):
        return " in points once every model is prepared"
    same_sign = interval[0] > 0 if change > 0 else interval[1] < 0
    return " once every model is prepared" if same_sign else " in points; on the logit scale that was not found"


def _answer(summary: GroupSummary) -> Answer:
    """What the first page of a site says of the group."""
    lede = _lede(summary)
    question = f"Do {summary.words} lead because they were prepared?"
    basis = f"{summary.models['inside']} models in the group, {summary.models['outside']} outside"
    return Answer(question, f"{lede.sentence}.", _slopes(summary, 3, 320), lede.interval, basis)


def _of_the_change(gap: Gap) -> str:
    if isinstance(gap.change.interval, Missing):
        return "no interval"
    low, high = svg.points_apart(gap.change.interval)
    return f"95% of the change: {low} to {high}"


def _slopes(summary: GroupSummary, limit: int, total: int, kind: str = "") -> Markup:
    """The leads of each benchmark, direct and after, as a row of slopes with whiskers; of many, the `limit` that change
    most."""
    first, *further_pairs = summary.shown
    pairs_shown = [
        first,
        *sorted(further_pairs, key=lambda pair: -abs(np.nan_to_num(number(pair[1].change.value))))[: limit - 1],
    ]
    first_left = 34
    width, top, bottom = min((total - first_left) / len(pairs_shown), 260), 34, 34 + min(total / 4, 180)
    ends = [0.0]
    for fit in (fit for _, gap in pairs_shown for fit in gap.lead.values()):
        ends += [number(fit.value), *(fit.interval if not isinstance(fit.interval, Missing) else ())]
    low, high = np.nanmin(ends), np.nanmax(ends)
    axis = svg.Axis(low - 0.01, high + 0.01, bottom, top)
    step = next(step for step in (0.05, 0.1, 0.2, 0.5, 1.0) if (high - low) / step <= 6 or step == 1.0)
    marks, descriptions, right_end = [], [], first_left + width * len(pairs_shown)
    for level in np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step:
        marks.append(svg.line(first_left, axis(level), right_end, axis(level), "g" if abs(level) > 1e-9 else "ax"))
        marks.append(svg.text(first_left - 6, axis(level) + 4, svg.points(level, signed=abs(level) > 1e-9), "", "end"))
    for index, (name, gap) in enumerate(pairs_shown):
        middle = first_left + width * (index + 0.5)
        left_end, right = middle - 0.2 * width, middle + 0.2 * width
        marks.append(svg.text(middle, 14, svg.shortened(name, int(width / 6.5)), "lab", "middle"))
        points = {x: gap.lead[protocol] for x, protocol in ((left_end, DIRECT), (right, TRAINED))}
        values = [number(fit.value) for fit in points.values()]
        if np.isfinite(values).all():
            marks.append(svg.line(left_end, axis(values[0]), right, axis(values[1]), "k"))
        for (x, fit), mark in zip(points.items(), "dt", strict=True):
            if not isinstance(fit.interval, Missing):
                marks.append(svg.line(x, axis(fit.interval[0]), x, axis(fit.interval[1]), f"{mark} w"))
            if is_known(fit.value):
                marks.append(svg.dot(x, axis(fit.value), mark))
        words = " → ".join(svg.points(value) for value in values)
        marks.append(svg.text(middle, bottom + 18, words, "num", "middle"))
        descriptions.append(f"{name} {words}, {_of_the_change(gap)}")
    label = f"Lead in points, direct and after: {'; '.join(descriptions)}."
    return svg.svg(max(right_end, min(total, 380)), bottom + 28, label, *marks, kind=kind)


def _scatter(compute: np.ndarray, direct: np.ndarray, prepared: np.ndarray, side: np.ndarray) -> Markup:
    """Scores against compute, direct beside after; filled dots are the group."""
    log = np.log10(compute)
    known_scores = np.concatenate([direct, prepared])
    low, high = float(np.nanmin(known_scores)), float(np.nanmax(known_scores))
    y = svg.Axis(min(low, 0.0) if low < 0.2 else low, high, 122, 26)
    step, digits = (0.2, 1) if high - y.low > 0.3 else (0.1, 1) if high - y.low > 0.12 else (0.02, 2)
    levels = np.arange(np.ceil(y.low / step - 1e-9), np.floor(high / step + 1e-9) + 1) * step
    powers = range(int(np.floor(log.min())), int(np.ceil(log.max())) + 1)
    marks = []
    for start, words, scores, kind in ((30, "direct", direct, "d"), (220, "train before test", prepared, "t")):
        x = svg.Axis(log.min(), log.max(), start + 6, start + 144)
        marks.append(svg.text(start, 12, words, kind))
        for level in levels:
            marks.append(svg.line(start, y(level), start + 150, y(level), "g"))
            marks.append(svg.text(start - 5, y(level) + 4, decimal(float(level), digits), "", "end"))
        for power in powers:
            if log.min() <= power <= log.max():
                marks.append(svg.text(x(power), 138, f"1e{power}", "", "middle"))
        for model in np.flatnonzero(np.isfinite(scores)):
            mark = ("k", 3.2) if side[model] else ("s hollow", 2.6)
            marks.append(svg.dot(x(log[model]), y(scores[model]), *mark))
    marks.append(svg.text(370, 156, "pretraining compute, floating-point operations", "", "end"))
    ends = f"10^{log.min():.0f} to 10^{log.max():.0f} FLOP"
    label = f"Scores of {len(log)} models against compute, {ends}; {int(side.sum())} filled dots are the group."
    return svg.svg(380, 160, label, *marks)


def _tables(summary: GroupSummary, scores: pd.DataFrame, group_number: int) -> list[Table]:
    """Leads, other choices and scores; `group_number`: of the group, for the names of files."""
    rows, further_rows = list[dict[str, object]](), list[dict[str, object]]()
    for benchmark, gap in summary.shown:
        row: dict[str, object] = {"benchmark": benchmark, "models": gap.models}
        for protocol, fit in gap.lead.items():
            row |= {protocol: fit.value} | as_columns(fit.interval, f"{protocol}_low", f"{protocol}_high")
            row |= {f"{protocol}_error": fit.standard_error, f"{protocol}_p": fit.p}
        row |= {"change": gap.change.value} | as_columns(gap.change.interval)
        row |= {"logit": gap.logit_change.value} | as_columns(gap.logit_change.interval, "logit_low", "logit_high")
        row |= {"logit_error": gap.logit_change.standard_error, "logit_p": gap.logit_change.p}
        rows.append(row | {"error": gap.change.standard_error, "p": gap.change.p, "p_adjusted": gap.p_adjusted})
        for name, check in gap.checks.items():
            further_rows.append({"benchmark": benchmark, "choice": CHECKS[name], **check.lead, "change": check.change})
        for family, change in gap.without_family.items():
            further_rows.append({"benchmark": benchmark, "choice": f"without {family}", "change": change})
    ends = ("", "_low", "_high", "_error", "_p")
    in_points = [*(f"{protocol}{end}" for protocol in PROTOCOLS for end in ends[:3]), "change", "low", "high"]
    errors, p_values = ([*(f"{p}_{suffix}" for p in PROTOCOLS), suffix] for suffix in ("error", "p"))
    labels = {
        f"{protocol}{end}": word for protocol in PROTOCOLS for end, word in zip(ends, LEADS[protocol], strict=True)
    }
    labels |= {"logit": "change, logits", "logit_low": "logits from", "logit_high": "logits to"}
    labels |= {
        "logit_error": "standard error, logits",
        "logit_p": "p, logits",
        "low": "change from",
        "high": "change to",
        "error": "standard error",
        "p_adjusted": "p, Holm",
    }
    columns: dict[str, Any] = {
        "formats": dict.fromkeys(in_points, "+.1f")
        | dict.fromkeys(errors, ".1f")
        | dict.fromkeys(["logit", "logit_low", "logit_high"], "+.2f")
        | {"logit_error": ".2f"}
        | dict.fromkeys([*p_values, "p_adjusted", "logit_p"], "p"),
        "scales": dict.fromkeys([*in_points, *errors], 100.0),
        "labels": labels,
    }
    formats = {"compute": ".2e", **dict.fromkeys(PROTOCOLS, ".3f")}
    return [
        Table(f"leads_{group_number}", "Leads at equal compute, in points", pd.DataFrame(rows), **columns),
        Table(
            f"other_choices_{group_number}",
            "Other choices, in points",
            pd.DataFrame(further_rows),
            **columns,
            folded=True,
        ),
        Table(f"scores_{group_number}", "Scores and compute", scores, formats=formats, folded=True),
    ]
