"""The readiness report: does a group of models lead at equal compute, and is the lead gone once all are prepared?"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from lm_validity.config.sections import Agreement
from lm_validity.missing import Missing, as_columns, is_known, number
from lm_validity.pages import svg
from lm_validity.pages.page import Answer, Finding, Lede, Page, Panel, Part, Picture, Section, Table
from lm_validity.results.files import joined, write_report
from lm_validity.studies.agreement.readiness.numbers import (
    Gap,
    GroupSummary,
    Points,
    ReadinessSummary,
    analyze_readiness,
)
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import count, decimal, explain_protocols, listing

CHOICES = {"straight_line": "a straight line", "larger_of_both": "the larger score as the prepared one"}
LEADS = {  # heads of columns
    protocol: (f"lead, {words}", "from", "to", "standard error of the lead", "p of the lead")
    for protocol, words in ((DIRECT, "direct"), (TRAINED, "train before test"))
}
MOST_DRAWN = 12  # benchmarks of the slopes


def report_readiness(
    scores: str | Path,
    models: str | Path,
    benchmarks: str | Path,
    output: str | Path,
    section: Agreement,
    plan: str | Path | None = None,
) -> None:
    """Write summary.json, results, tables and the page of the readiness report under `output`.

    The arguments but `output` are those of `analyze_readiness`. Raises InputError as that.
    """
    summary = analyze_readiness(scores, models, benchmarks, section, plan)
    write_report(readiness_page(summary), summary, output)


def readiness_page(summary: ReadinessSummary) -> Page:
    """The page: the lead of each group, direct and after, with that of the first group as its heading."""
    first = summary.groups[0]
    parts = joined(*(_group(group, number) for number, group in enumerate(summary.groups, 1)))
    pairs_shown = first.shown
    note = "The group's lead at equal compute, in points: direct on the left, train before test on the right."
    if any(is_known(fit.interval) for _, gap in pairs_shown for fit in gap.lead.values()):
        note += " Vertical lines: 95% intervals over families."
    if len(pairs_shown) > MOST_DRAWN:
        note += f" Drawn are the {MOST_DRAWN - 1} benchmarks that change most."
    return Page(
        name="readiness",
        title="Readiness gap",
        question="Does a group of models lead because it can do more, or because it was prepared for the test? "
        f"{explain_protocols(summary.protocols, trained_here=summary.trained_here)}",
        lede=_lede(first),
        picture=Picture(_slopes(first, MOST_DRAWN, 1180, "w640") + _slopes(first, 4, 340, "n640"), note),
        panels=parts.panels,
        # an estimate without an interval is no answer
        answers=[answer for group in summary.groups if (answer := _answer(group)).interval],
        findings=parts.findings,
        sections=parts.sections,
        notes=summary.notes,
    )


def _group(summary: GroupSummary, group_number: int) -> Part:
    """The fold, finding and panel of a group; `group_number`: from 1, for the names of files."""
    bends = f"bends at {listing(f'{knot:.0e}' for knot in summary.knots)} FLOP" if summary.knots else "is straight"
    section = Section(
        f"The lead of {summary.words}",
        finding=_sentence(summary)[0],
        explanation="The lead is the coefficient of the group in a regression of the score on the group and on log10 "
        f"of compute (6 × parameters × tokens). The line against compute {bends}. The change is after minus direct. "
        "Standard errors are of the jackknife over families (CR3). Intervals and p are the wider of its t test and of "
        "CR2's. In points, equal gains in ability are unequal near chance and near 1. On the logit scale they are "
        "equal. A straight line, and the larger of both scores as the prepared one, are checks.",
        tables=_tables(summary, group_number),
    )
    return Part(
        {},
        section=section,
        findings=[Finding(*_sentence(summary))],
        panel=Panel(
            f"Score against compute: {summary.words} (filled) and others",
            f"Mean over **{count(len(summary.benchmarks), 'benchmark')}**",
            _scatter(summary.points),
        ),
    )


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


def _scatter(points: Points) -> Markup:
    """Scores against compute, direct beside after; filled dots are the group."""
    log = np.log10(points.compute)
    known_scores = np.concatenate([points.direct, points.prepared])
    low, high = float(np.nanmin(known_scores)), float(np.nanmax(known_scores))
    y = svg.Axis(min(low, 0.0) if low < 0.2 else low, high, 122, 26)
    step, digits = (0.2, 1) if high - y.low > 0.3 else (0.1, 1) if high - y.low > 0.12 else (0.02, 2)
    levels = np.arange(np.ceil(y.low / step - 1e-9), np.floor(high / step + 1e-9) + 1) * step
    powers = range(int(np.floor(log.min())), int(np.ceil(log.max())) + 1)
    marks = []
    for start, words, scores, kind in (
        (30, "direct", points.direct, "d"),
        (220, "train before test", points.prepared, "t"),
    ):
        x = svg.Axis(log.min(), log.max(), start + 6, start + 144)
        marks.append(svg.text(start, 12, words, kind))
        for level in levels:
            marks.append(svg.line(start, y(level), start + 150, y(level), "g"))
            marks.append(svg.text(start - 5, y(level) + 4, decimal(float(level), digits), "", "end"))
        for power in powers:
            if log.min() <= power <= log.max():
                marks.append(svg.text(x(power), 138, f"1e{power}", "", "middle"))
        for model in np.flatnonzero(np.isfinite(scores)):
            mark = ("k", 3.2) if points.side[model] else ("s hollow", 2.6)
            marks.append(svg.dot(x(log[model]), y(scores[model]), *mark))
    marks.append(svg.text(370, 156, "pretraining compute, floating-point operations", "", "end"))
    ends = f"10^{log.min():.0f} to 10^{log.max():.0f} FLOP"
    label = f"Scores of {len(log)} models against compute, {ends}; {int(points.side.sum())} filled dots are the group."
    return svg.svg(380, 160, label, *marks)


def _tables(summary: GroupSummary, group_number: int) -> list[Table]:
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
            further_rows.append({"benchmark": benchmark, "choice": CHOICES[name], **check.lead, "change": check.change})
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
    formats = (
        dict.fromkeys(in_points, "+.1f")
        | dict.fromkeys(errors, ".1f")
        | dict.fromkeys(["logit", "logit_low", "logit_high"], "+.2f")
        | {"logit_error": ".2f"}
        | dict.fromkeys([*p_values, "p_adjusted", "logit_p"], "p")
    )
    leads = Table(
        f"leads_{group_number}",
        "Leads at equal compute, in points",
        pd.DataFrame(rows),
        formats=formats,
        scales=dict.fromkeys([*in_points, *errors], 100.0),
        labels=labels,
    )
    of_scores = {"compute": ".2e", **dict.fromkeys(PROTOCOLS, ".3f")}
    return [
        leads,
        replace(
            leads,
            name=f"other_choices_{group_number}",
            title="Other choices, in points",
            frame=pd.DataFrame(further_rows),
            folded=True,
        ),
        Table(f"scores_{group_number}", "Scores and compute", summary.scores, formats=of_scores, folded=True),
    ]
