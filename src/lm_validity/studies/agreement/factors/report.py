"""The factors report: how many factors does the score matrix have, what is the first, and which model to pick?

Above the folds stand what the first factor explains and what it follows, and three panels; the answer for the first
page of a site is which model is best.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from lm_validity.config.sections import REPORTS, Reports
from lm_validity.missing import Missing, is_known, number
from lm_validity.pages import svg
from lm_validity.pages.page import Answer, Lede, Page, Panel, Picture
from lm_validity.pages.svg import KINDS, NAMES
from lm_validity.results.files import Report, joined, write_report
from lm_validity.statistics import Interval
from lm_validity.studies.agreement.data import JACKKNIFED
from lm_validity.studies.agreement.factors import components, components_page, ranks, ranks_page
from lm_validity.studies.agreement.factors.components import (
    ExplainedVariance,
    FactorData,
    RelationWithInterval,
    WithCompute,
)
from lm_validity.studies.agreement.factors.ranks import RanksOfModels
from lm_validity.studies.agreement.intervals import wider
from lm_validity.studies.agreement.notes import comparison_notes, coverage_notes, selected_on_test, selection_notes
from lm_validity.studies.agreement.robustness import influence, left_out
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, read_score_matrix
from lm_validity.studies.agreement.statistics.noise import shown_ceiling
from lm_validity.tables.schema import DIRECT, TRAINED
from lm_validity.words import count, decimal, explain_protocols

MAINLY = 0.5  # share of the variance from which on, interval and all, models differ mainly in one way
FOLLOWS = 0.5  # tau with compute from which on, interval and all, the factor follows compute
LEAST_DRAWN = 3  # models whose compute is known, for the picture
FIRST_RANKS = 8  # models of the panels with a row for each one
NAME_WIDTH = 21  # characters


class Ranked(NamedTuple):
    """A model's label, its rank, and the interval of that which a sentence quotes."""

    label: str
    rank: float
    interval: Interval[float] | None


# what summary.json holds, in this order
KEYS = (
    "models", "benchmarks", "cells_in_both", "models_in_both", "explained_variance_in_both",
    "explained_variance_in_both_interval", "explained_variance_in_both_interval_clustered", "pc1_compute_in_both",
    "explained_variance", "explained_variance_interval", "explained_variance_interval_clustered",
    "explained_variance_without_size", "first_component_ceiling", "parallel_analysis", "families", "pc1_scores",
    "pc1_loadings", "pc1_compute", "potential", "best_by_budget", "direct_excess", "completion", "influence",
    "standard_errors", "resamples", "notes",
)  # fmt: skip


def report_factors(
    scores: str | Path,
    models: str | Path,
    benchmarks: str | Path,
    output: str | Path,
    section: Reports = REPORTS,
    plan: str | Path | None = None,
) -> None:
    """Write summary.json, tables, figures and the page of the factors report under `output`.

    Without resamples, intervals are skipped, and with them the choice of a model by budget. `plan`: what was to be
    fine-tuned.
    """
    report = factors(read_score_matrix(scores, models, benchmarks, plan), section.resamples)
    write_report(report.page, report.summary, output)


def factors(matrix: ScoreMatrix, resamples: int = 0) -> Report:
    """The report on the factors of a score matrix: its page and the contents of summary.json."""
    data = FactorData(matrix, {}, resamples)
    drawn, excess = ranks.drawn_ranks(data), ranks.direct_excess(data)
    gaps = ranks.rank_gaps(data, excess, drawn)
    variance, compute = components.explain_variance(data), components.relate_components(data)
    ranked_models = ranks.ranks_of_models(data, drawn)
    parts = joined(
        components_page.explained_variance(data, variance),
        components_page.within_families(data, components.family_shares(data)),
        components_page.first_component(data),
        components_page.with_compute(data, compute),
        ranks_page.potential(
            data, ranked_models, ranks.best_models(data, drawn), excess, gaps, ranks.rank_notes(data, drawn)
        ),
        ranks_page.completion(data, ranks.completion(data)),
        influence(left_out(data), {p: variance.over_all.first(p) for p in data.matrix.protocols}, "first_component"),
    )
    notes = (
        *matrix.notes,
        *coverage_notes(matrix, data.scores, data.stderr, data.tasks),
        *selection_notes(selected_on_test(matrix, data.scores)),
        *components.component_notes(data),
        *comparison_notes(matrix, data.in_both, complete=data.whole),
        *parts.notes,
    )
    summary = {
        "models": len(matrix.models),
        "benchmarks": len(data.tasks),
        "cells_in_both": int(data.in_both.sum()),
        "models_in_both": len(data.models_in_both),
        "standard_errors": matrix.error_checks,
        "resamples": resamples,
        "notes": notes,
    } | parts.summary
    protocol, ranked = ranks.main_protocol(ranked_models), _best_first(data, ranked_models)
    panels = _explained(variance), _first_ranks(protocol, ranked), _misleading(gaps)
    page = Page(
        name="factors",
        title="Factors and potential",
        question="How many factors does the score matrix have, what is the first, and which model has most potential? "
        "A factor (here a principal component) is a weighted sum of the benchmarks. The first is the one along which "
        f"models differ most. {explain_protocols(matrix.protocols, trained_here=matrix.trained_here)}",
        lede=_lede(variance, compute),
        picture=_against_compute(data, compute),
        panels=[panel for panel in panels if panel is not None],
        answers=[_best_answer(protocol, ranked)] if ranked else [],
        findings=parts.findings,
        sections=parts.sections,
        notes=notes,
    )
    return Report(page, {key: summary[key] for key in KEYS})


# ----------------------------------------------------------------------------------------------------------------------
# The finding.


def _lede(variance: ExplainedVariance, compute: WithCompute) -> Lede:
    """Of one protocol, over all its cells, as its noise ceiling, shuffled tables and relation to compute are."""
    shares = variance.over_all.known
    if not shares:
        return Lede("In how many ways do these models differ?", "Not known: the components cannot be computed.")
    protocol = TRAINED if TRAINED in shares else DIRECT
    first, interval = shares[protocol][0], variance.over_all.quoted(protocol)
    heading = "Not known whether one ability explains most differences"
    # noise alone makes the first share small, and few benchmarks or models make it large
    ceiling, shuffled = variance.ceiling[protocol], variance.parallel[protocol]
    if interval is not None and is_known(ceiling) and interval[1] < min(MAINLY, ceiling):
        heading = "More than one ability explains the differences"
    # a share of 1 has no interval, since it is 1 without any of the models too
    least = interval[0] if interval is not None else first if first > 1 - 1e-9 else 0.0
    if is_known(shuffled) and least > max(MAINLY, shuffled.null_95[0]):
        heading = "One ability explains most differences"
        with_compute = compute.over_all[protocol].kendall_interval
        if not isinstance(with_compute, Missing) and with_compute.low > FOLLOWS:
            heading += ", and it follows pretraining compute"
    when = "After training for the test, one" if protocol == TRAINED else "Direct, one"
    sentence = f"{when} factor explains {svg.points(first)}% of the differences between models"
    ends = "" if interval is None else f"95%: {svg.points(interval[0])}% to {svg.points(interval[1])}%"
    return Lede(heading, sentence, ends)


# ----------------------------------------------------------------------------------------------------------------------
# The first factor against pretraining compute.


def _against_compute(data: FactorData, relations: WithCompute) -> Picture | None:
    """A scatter by protocol, once for wide screens and once for narrow ones."""
    has_compute, drawn = np.isfinite(data.compute), {}
    for protocol, entry in data.components.items():
        if (np.isfinite(entry.scores) & has_compute).sum() >= LEAST_DRAWN:
            drawn[protocol] = entry.scores / (np.nanstd(entry.scores) or 1.0)
    if not drawn:
        return None
    values_drawn = np.concatenate([scores[has_compute & np.isfinite(scores)] for scores in drawn.values()])
    floor, ceiling, beside = np.floor(values_drawn.min()), np.ceil(values_drawn.max()), len(drawn) == 2
    charts = [
        Markup('<div class="{}">{}</div>').format(
            kind,
            Markup("").join(
                _scatter(data, relations.over_all[p], p, scores, width, floor, ceiling) for p, scores in drawn.items()
            ),
        )
        for kind, width in (("pair w640" if beside else "w640", 560 if beside else 900), ("n640", 342))
    ]
    note = (
        f"A factor is a weighted sum of the benchmarks along which models differ. Each dot is one of "
        f"{count(int(has_compute.sum()), 'model')} whose compute is known. Order as by compute: tau is 1 for the same "
        "order and 0 for unrelated ones."
    )
    return Picture(Markup("").join(charts), note)


def _scatter(
    data: FactorData,
    relation: RelationWithInterval,
    protocol: str,
    values: np.ndarray,
    width: int,
    floor: float,
    ceiling: float,
) -> Markup:
    present = np.isfinite(data.compute) & np.isfinite(values)
    power = np.log10(data.compute[present])
    low, high = np.floor(power.min()), np.ceil(power.max())
    x, y = svg.Axis(low, high if high > low else low + 1, 34, width - 12), svg.Axis(floor, ceiling, 244, 44)
    levels = np.arange(floor, ceiling + 0.5, max(1, round((ceiling - floor) / 5)))
    kendall, interval = relation.kendall, relation.kendall_interval
    description = f"order as by compute: {decimal(number(kendall))}" if is_known(kendall) else "order not known"
    marks = [
        svg.text(0, 14, NAMES[protocol], f"{KINDS[protocol]} big"),
        svg.text(width - 12, 14, description, "num big", "end"),
        svg.text(34, 34, "first factor, standard deviations"),
        *(svg.line(34, y(level), width - 12, y(level), "g") for level in levels),
        *(svg.text(28, y(level) + 4, decimal(float(level), 0), "", "end") for level in levels),
    ]
    exponents = np.arange(low, high + 0.5, max(1, round((high - low) / 5)))
    power_of_ten = Markup(
        '<text x="{:g}" y="262" text-anchor="middle">10<tspan dy="-4" style="font-size:11.2px">{:.0f}</tspan></text>'
    )
    marks += [power_of_ten.format(x(float(exponent)), exponent) for exponent in exponents]
    marks.append(svg.text(width - 12, 278, "pretraining compute, floating-point operations", "", "end"))
    places = [(x(float(compute)), y(float(value))) for compute, value in zip(power, values[present], strict=True)]
    marks += [svg.dot(*point, KINDS[protocol]) for point in places]
    labels = np.array(data.matrix.labels, dtype=object)[present]
    for row in dict.fromkeys((int(power.argmin()), int(values[present].argmax()))):
        x_of_label, top = places[row]
        right = x_of_label > width * 0.65
        name = svg.shortened(str(labels[row]), NAME_WIDTH)
        marks.append(svg.text(x_of_label + (-8 if right else 8), top + 4, name, "lab", "end" if right else "start"))
    ends = "" if isinstance(interval, Missing) else f", 95% {decimal(interval.low)} to {decimal(interval.high)}"
    models = count(int(present.sum()), "model")
    label = f"First factor against pretraining compute, {NAMES[protocol]}: {models}, {description}{ends}."
    return svg.svg(width, 284, label, *marks)


# ----------------------------------------------------------------------------------------------------------------------
# Panels and the answer.


def _explained(variance: ExplainedVariance) -> Panel | None:
    """The shares of the first three components, beside those of shuffled tables where these are of the same cells."""
    compared = variance.compared
    shares = compared.known
    if not shares:
        return None
    axis, marks, descriptions, ticks = svg.Axis(0, 1, 60, 372), [], [], ""
    marks.append(svg.ticks(axis, (0, 0.25, 0.5, 0.75, 1), 4, 108, ("0%", "25%", "50%", "75%", "100%")))
    for index, name in enumerate(("first", "second", "third")):
        marks.append(svg.text(0, 26 + 34 * index, name, "lab"))
        for protocol, shares_of_protocol in shares.items():
            if index >= len(shares_of_protocol):
                continue
            y = 22 + 34 * index + (0 if len(shares) == 1 else -5 if protocol == DIRECT else 6)
            ends = compared.quoted(protocol) if index == 0 else None
            null, same_cells = variance.parallel[protocol], shares_of_protocol == variance.over_all.shares[protocol]
            if same_cells and not isinstance(null, Missing) and index < len(null.null_95):
                null_position, ticks = axis(null.null_95[index]), "shuffled tables"
                marks.append(svg.line(null_position, y - 5, null_position, y + 5, "k w"))
            limit = shown_ceiling(number(variance.ceiling[protocol]), shares_of_protocol[0])
            if same_cells and index == 0 and np.isfinite(limit):
                marks.append(svg.line(axis(limit), y - 5, axis(limit), y + 5, "s cl"))
            marks.append(svg.estimate(axis, shares_of_protocol[index], ends, y, KINDS[protocol]))
            interval_words = "" if ends is None else f" (95% {svg.points(ends[0])}% to {svg.points(ends[1])}%)"
            descriptions.append(f"{name}, {NAMES[protocol]}: {svg.points(shares_of_protocol[index])}%{interval_words}")
    label = (
        f"Share of the variance that each factor explains. {'; '.join(descriptions)}.{ticks and f' Ticks: {ticks}.'}"
    )
    numbers = " → ".join(f"{svg.points(shares_of_protocol[0])}%" for shares_of_protocol in shares.values())
    return Panel(
        "How much does it explain?",
        f"**{numbers}** of the variance{ticks and f'; solid ticks: {ticks}'}",
        svg.svg(380, 128, label, *marks),
    )


def _best_first(data: FactorData, ranks_by_protocol: dict[str, RanksOfModels]) -> list[Ranked]:
    """The models from the best rank on; [] for too few."""
    if not ranks_by_protocol:
        return []
    by_model = ranks_by_protocol[ranks.main_protocol(ranks_by_protocol)].values()
    rows = [
        Ranked(label, number(rank.rank), wider(rank.interval_by_pairs))
        for label, rank in zip(data.matrix.labels, by_model, strict=True)
        if is_known(rank.rank)
    ]
    enough = len(rows) >= max(2, min(JACKKNIFED, len(by_model) / 2))
    return sorted(rows, key=lambda row: row.rank) if enough else []


def _may_be_first(ranked: list[Ranked]) -> int | None:
    """How many models' intervals hold rank 1, so that no other model is surely better; None where one has no
    interval."""
    ends_at_first = [interval.low <= 1 for _, _, interval in ranked if interval is not None]
    return sum(ends_at_first) if len(ends_at_first) == len(ranked) else None


def _leaders(ranked: list[Ranked], width: int) -> str:
    """`ant-1b ranks`, or `ant-1b and 1 more rank` where several share the first place."""
    shared = sum(model.rank == ranked[0].rank for model in ranked) - 1
    return f"{svg.shortened(ranked[0].label, width)} {f'and {shared} more rank' if shared else 'ranks'}"


def _places(interval: Interval[float]) -> str:
    """`1 to 3`."""
    return f"{interval.low:g} to {interval.high:g}"


def _rank_rows(protocol: str, ranked: list[Ranked], height: float) -> Markup:
    """A row for each of the first models: its rank and interval."""
    rows_shown = ranked[:FIRST_RANKS]
    last = max([2.0, *(rank for _, rank, _ in rows_shown), *(ends.high for *_, ends in rows_shown if ends is not None)])
    axis, step = svg.Axis(1, last, 140, 372), (height - 24) / len(rows_shown)
    between = (1, *range(5, int(last), 5)) if last <= 30 else (1, *range(20, int(last), 20))
    marks = [svg.ticks(axis, between, 0, height - 22, [f"{mark}" for mark in between])]
    descriptions = []
    for index, (label, rank, interval) in enumerate(rows_shown):
        y = step * (index + 0.5)
        marks += [
            svg.text(0, y + 4, svg.shortened(label, NAME_WIDTH), "lab"),
            svg.estimate(axis, rank, interval, y, KINDS[protocol]),
        ]
        interval_words = "" if interval is None else f", 95% {_places(interval)}"
        descriptions.append(f"{label} {rank:g}{interval_words}")
    label = f"Ranks on the first factor, {NAMES[protocol]}: {'; '.join(descriptions)}."
    return svg.svg(380, height, label, *marks)


def _first_ranks(protocol: str, ranked: list[Ranked]) -> Panel | None:
    if not ranked:
        return None
    interval, candidates = ranked[0].interval, _may_be_first(ranked)
    first = f"{_leaders(ranked, NAME_WIDTH)} first"
    text = first if candidates is None else f"**{candidates} of {len(ranked)}** may be first"
    if candidates is not None and interval is not None:
        text += f"; {first}, 95% {_places(interval)}"
    return Panel("Which models rank first?", text, _rank_rows(protocol, ranked, 128))


def _misleading(gaps: pd.DataFrame | None) -> Panel | None:
    """Models whose direct rank and rank under train before test differ beyond their interval."""
    if gaps is None:
        return None
    surely, measured = ranks.beyond_interval(gaps), int(gaps["gap"].notna().sum())
    if not measured:
        return None
    text = f"**{len(surely)} of {measured}** models move beyond their 95% interval; {ranks.by_chance(measured)}"
    rows = surely.head(FIRST_RANKS)
    last = max([2.0, *rows["direct_rank"], *rows["tuned_rank"]])
    axis, step = svg.Axis(1, last, 140, 372), 104 / max(len(rows), 1)
    between = [mark for mark in (1, 10, 20, 30, 40, 50, 100, 200, 500, 1000) if mark <= axis.high]
    marks, descriptions = [svg.ticks(axis, between, 0, 106, [f"{mark}" for mark in between])], []
    for index, row in enumerate(rows.itertuples()):
        y, rank_before, rank_after = step * (index + 0.5), float(row.direct_rank), float(row.tuned_rank)
        marks += [
            svg.text(0, y + 4, svg.shortened(row.model, NAME_WIDTH), "lab"),
            svg.line(axis(rank_before), y, axis(rank_after), y, "join"),
            svg.dot(axis(rank_before), y, "d", 3.6),
            svg.dot(axis(rank_after), y, "t", 3.6),
        ]
        ends = f"{row.low:+.0f} to {row.high:+.0f}"
        descriptions.append(f"{row.model} {rank_before:.0f} to {rank_after:.0f} (95% of the gap: {ends})")
    label = (
        f"Ranks direct and under train before test of the models that move most: {'; '.join(descriptions) or 'none'}."
    )
    return Panel("Where do direct ranks mislead?", text, svg.svg(380, 128, label, *marks))


def _best_answer(protocol: str, ranked: list[Ranked]) -> Answer:
    first, interval, candidates = _leaders(ranked, 30), ranked[0].interval, _may_be_first(ranked)
    ends = "" if interval is None else f"95%: {_places(interval)}"
    sentence = f"Not known: {first} first, without an interval"
    if ends:
        sentence = f"Not known how many models may be best; {first} first"
    if candidates is not None:
        sentence = f"{candidates} of {count(len(ranked), 'model')} may be best; {first} first"
    if candidates is not None and 1 < candidates < len(ranked):
        sentence = f"Any of {candidates} models could be the best of {len(ranked)}; {first} first"
    when = "once every model has trained for the test" if protocol == TRAINED else "direct"
    basis = f"Rank by what the benchmarks share, {when}. May be best: no other model is surely better."
    return Answer("Which model is best?", sentence, _rank_rows(protocol, ranked, 132), ends, basis, "All models")
