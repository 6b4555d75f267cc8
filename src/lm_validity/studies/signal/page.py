"""The signal report's page: sentences, figures and tables out of its summary."""

import math

import numpy as np
import pandas as pd

from lm_validity.pages.figures import CATEGORY_COLORS
from lm_validity.pages.page import Figure, Finding, Page, Section, Table
from lm_validity.studies.signal import figures as signal_figures
from lm_validity.studies.signal.page_items import filter_findings, filter_section, metric_section, subgroup_section
from lm_validity.studies.signal.page_quality import quality_findings, quality_section
from lm_validity.studies.signal.page_tables import as_numbers, compliance_section, criteria_section
from lm_validity.studies.signal.printed import printed_section
from lm_validity.studies.signal.stages import stage_findings, stage_section
from lm_validity.studies.signal.statistics.ranking import E2LM_WINDOWS
from lm_validity.studies.signal.summary import Ranking, SignalSummary
from lm_validity.summaries import Missing, as_columns, is_known, number
from lm_validity.words import count, explain_protocols, listing

_RANKING_LABELS = {
    "coin_flip_p": "p (coin flips)",
    "with_last": "same order as at the end",
    "fitted": "consistency, fitted windows",
    "settled_from_b": "nearly settled, separable pairs",
    "stable_from_b": "settled",
    "nearly_stable_from_b": "nearly settled",
    "nearly_stable_low_b": "nearly settled, from",
    "nearly_stable_high_b": "nearly settled, to",
    "size_order_share": "larger model ahead (share)",
    "separated_from_b": "sizes told apart from",
}
_NEARLY = "Nearly settled means that 9 of 10 pairs stay in their final order (tau 0.8)."


def signal_page(summary: SignalSummary) -> Page:
    """The page of the report."""
    sections = [
        stage_section(summary),
        _curve_section(summary),
        quality_section(summary),
        _ranking_section(summary),
        compliance_section(summary),
        filter_section(summary),
        metric_section(summary),
        subgroup_section(summary),
        criteria_section(summary),
        printed_section(summary.printed_tables),
    ]
    return Page(
        name="signal",
        title="Early signal",
        question="Does a benchmark tell you anything early in training? Each model is scored at checkpoints along "
        f"its pretraining, under direct evaluation. {explain_protocols(['direct'])} Signal quality is high if scores "
        "rise steadily. The order of the models has settled when it stays as it is at the end, and nearly settled "
        "when 9 of 10 pairs do.",
        findings=[
            *stage_findings(summary),
            *quality_findings(summary),
            *_ranking_findings(summary),
            *filter_findings(summary),
        ],
        sections=[section for section in sections if section is not None],
        notes=summary.notes,
    )


def _last(ranking: Ranking) -> float:
    """Progress of the last checkpoint."""
    return math.nan if isinstance(ranking.tokens_b, Missing) else float(ranking.tokens_b[-1])


def _ranking_findings(summary: SignalSummary) -> list[Finding]:
    """From when on the models have their final order: those that differ at the end, where noise is known."""
    at_chance = [name for name, entry in summary.benchmarks.items() if entry.models_above_chance == 0]
    ranked = {n: ranking for n, ranking in summary.ranking.items() if is_known(ranking) and n not in at_chance}
    told = {name: ranking for name, ranking in ranked.items() if is_known(ranking.separable_pairs)}
    points = {name: (ranking.settled_from_b, ranking.settled_from_interval_b) for name, ranking in told.items()}
    subject = "The order of the models that can be told apart at the end"
    basis = "Over pairs of models whose last scores differ by more than noise (false discovery rate 5%). "
    basis += _NEARLY
    if not told:
        points = {
            name: (ranking.nearly_stable_from_b, ranking.nearly_stable_from_interval_b)
            for name, ranking in ranked.items()
        }
        subject = "The order of the models"
        basis = f"Over all pairs of models. {_NEARLY} The noise of the scores is unknown, so equal models may seem to "
        basis += "settle late."
    equal = [name for name, ranking in told.items() if ranking.separable_pairs == 0]
    known = {name: (number(at), interval) for name, (at, interval) in points.items() if is_known(at)}
    # the last checkpoint agrees with itself: that is no settling
    settled = {name: point for name, point in known.items() if point[0] < _last(ranked[name])}
    open_ends = [name for name in known if name not in settled]
    parts = []
    if settled:
        early, late = (pick(settled, key=lambda name: settled[name][0]) for pick in (min, max))
        sentence = f"{subject} is nearly settled after {summary.progress.describe(*settled[early])} on {early}"
        if settled[late][0] > settled[early][0]:
            sentence += f", and only after {summary.progress.describe(*settled[late])} on {late}"
        parts.append(sentence)
    if open_ends:
        start = "" if settled else f"{subject} is "
        parts.append(f"{start}not nearly settled before the last checkpoint on {listing(open_ends, 4)}")
    if equal:
        parts.append(f"no two models can be told apart at the end on {listing(equal, 4)}")
    if not parts:
        return []
    basis += f" {count(len(at_chance), 'benchmark')} at chance left out." if at_chance else ""
    sentence = "; ".join(parts)
    return [Finding(sentence[0].upper() + sentence[1:] + ".", basis)]


def _curve_section(summary: SignalSummary) -> Section:
    frame = summary.curves
    figure = Figure(
        "learning_curves",
        "Scores along training",
        signal_figures.learning_curves(frame, summary.progress.title),
        caption=_curve_caption(frame),
        wide=True,
        min_width=signal_figures.curves_width(),
    )
    table = Table(
        "learning_curves",
        "All scores",
        frame.drop(columns="chance"),
        formats={"score": ".4f"},
        labels={"progress": summary.progress.title, "selected": "used for signal quality"},
        folded=True,
    )
    return Section("Learning curves", figures=[figure], tables=[table])


def _curve_caption(frame: pd.DataFrame) -> str:
    """What is drawn beside the curves: bands need items, chance needs their choices."""
    bands = (
        "Bands: 95% of item resamples or, without items, of draws from the standard errors."
        if frame.low.notna().any()
        else ""
    )
    chance = "Dashed: chance." if frame.chance.notna().any() else ""
    return " ".join(part for part in (bands, chance) if part)


def _ranking_section(summary: SignalSummary) -> Section | None:
    scores = summary.ranking_consistency
    fitted = not any(is_known(entry.value) for entry in scores.values())
    consistency = pd.DataFrame(
        [
            {"benchmark": name, "size": size, "consistency": value}
            for name, entry in scores.items()
            for size, value in (entry.fitted if fitted else entry).by_size.items()
        ],
        columns=["benchmark", "size", "consistency"],
    )
    lines = pd.DataFrame(
        [
            {"benchmark": name, "progress": at * summary.progress.scale, "tau": tau}
            for name, ranking in summary.ranking.items()
            if is_known(ranking) and is_known(ranking.agreement_with_last)
            for at, tau in zip(ranking.progress, ranking.agreement_with_last, strict=True)
        ]
    )
    if consistency.empty and lines.empty:
        return None
    figures = []
    if not consistency.empty:
        order = list(dict.fromkeys(consistency["benchmark"]))
        chart = signal_figures.consistency_dots(as_numbers(consistency, ["consistency"]), order)
        caption = "Share of later checkpoints with the order of the base window. Dashed: a coin flip."
        caption += " Windows are scaled to the length of each training run." if fitted else ""
        figures.append(Figure("ranking_consistency", "Ranking consistency", chart, caption=caption))
    if not lines.empty:
        drawn, caption = _drawn_lines(summary, lines)
        chart = signal_figures.settling_lines(drawn, summary.progress.title)
        figures.append(Figure("settling", "When the final order is reached", chart, caption=caption))
    frame = _ranking_frame(summary)
    table = Table(
        "ranking",
        "Ranking consistency and settling",
        frame,
        formats=dict.fromkeys(frame.columns[1:], ".4g") | {"coin_flip_p": "p"},
        scales={name: summary.progress.scale for name in frame.columns if name.endswith("_b")},
        labels=_RANKING_LABELS,
        caption=f"Settled: after so many {summary.progress.words} the final order stays (tau 1). Nearly settled: it "
        "nearly stays (tau 0.8). A value at the last checkpoint means: not settled. Separable pairs: their last "
        f"scores differ by more than noise. Sizes told apart from: also in {summary.progress.words}.",
    )
    return Section("Order of the models", explanation=_windows(summary), figures=figures, tables=[table])


def _drawn_lines(summary: SignalSummary, lines: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The lines of as many benchmarks as there are colours, those of highest signal quality; and a caption."""
    names = list(dict.fromkeys(lines["benchmark"]))
    if len(names) <= len(CATEGORY_COLORS):
        return lines, ""
    quality = {name: summary.benchmarks[name].signal_quality for name in names}
    best = sorted(names, key=lambda name: -number(quality[name]) if is_known(quality[name]) else 1.0)
    drawn = lines[lines["benchmark"].isin(best[: len(CATEGORY_COLORS)])]
    return drawn, f"The {len(CATEGORY_COLORS)} benchmarks of highest signal quality. The table has all {len(names)}."


def _windows(summary: SignalSummary) -> str:
    windows = summary.conventions.windows_b
    if windows.relative:
        reason = "No training reaches 100 billion tokens" if summary.progress.in_tokens else "Tokens are unknown"
        return (
            f"{reason}: the competition's windows are scaled to the length of each pair's training, up to its last "
            "common checkpoint (base: 10% to 20% of it, later: from 22%)."
        )
    (base_low, base_high), (low, high) = windows.base, windows.later
    of_e2lm = (windows.base, windows.later) == (E2LM_WINDOWS.base, E2LM_WINDOWS.later)
    source = " These are the windows of the early-training competition (E2LM)." if of_e2lm else ""
    return (
        "Ranking consistency asks whether two models keep, in a later window of training "
        f"({low:g} to {high:g} billion tokens), the order that they had in a base window ({base_low:g} to "
        f"{base_high:g}).{source} Fitted windows: 10% to 20% of each pair's training up to its last common "
        "checkpoint, and from 22%."
    )


def _ranking_frame(summary: SignalSummary) -> pd.DataFrame:
    rows = []
    for name, entry in summary.ranking_consistency.items():
        ranking = summary.ranking[name]
        rows.append(
            {
                "benchmark": name,
                "consistency": entry.value,
                **as_columns(entry.interval),
                "coin_flip_p": entry.coin_flip_p,
                "fitted": entry.fitted.value,
                "with_last": entry.with_last,
                **_settling_row(ranking),
            }
        )
    return pd.DataFrame(rows)


def _settling_row(ranking: Ranking | Missing) -> dict[str, object]:
    names = (
        "pairs",
        "separable_pairs",
        "settled_from_b",
        "stable_from_b",
        "nearly_stable_from_b",
        "nearly_stable_low_b",
        "nearly_stable_high_b",
        "size_order_share",
        "separated_from_b",
    )
    if isinstance(ranking, Missing):
        return dict.fromkeys(names, ranking)
    share = ranking.size_order_share
    values = (
        ranking.pairs,
        ranking.separable_pairs,
        ranking.settled_from_b,
        ranking.stable_from_b,
        ranking.nearly_stable_from_b,
        *as_columns(ranking.nearly_stable_from_interval_b).values(),
        share if isinstance(share, Missing) else float(np.mean(share)),
        ranking.separated_from_b,
    )
    return dict(zip(names, values, strict=True))
