"""The signal report's page: sentences, figures and tables out of its summary."""

import numpy as np
import pandas as pd

from lm_validity.pages.figures import CATEGORY_COLORS
from lm_validity.pages.page import Figure, Finding, Page, Section, Table
from lm_validity.studies.signal import figures as signal_figures
from lm_validity.studies.signal.alignment import SHARES
from lm_validity.studies.signal.page_items import filter_findings, filter_section, metric_section, subgroup_section
from lm_validity.studies.signal.page_quality import quality_findings, quality_section
from lm_validity.studies.signal.page_tables import as_numbers, compliance_section, criteria_section
from lm_validity.studies.signal.statistics.ranking import E2LM_WINDOWS
from lm_validity.studies.signal.summary import Bounds, CommonPoints, Ranking, SignalSummary
from lm_validity.summaries import Missing, as_columns, is_known, number
from lm_validity.words import count, decimal, explain_protocols, listing

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
    "separable_at_end": "separable pairs, own ends",
    "aligned_by": "models aligned by",
    "points": "common points",
    "interpolated": "of them interpolated",
    "last_b": "last common point",
}
_NEARLY = "Nearly settled means that 9 of 10 pairs stay in their final order (tau 0.8)."


def signal_page(summary: SignalSummary) -> Page:
    """The page of the report."""
    sections = [
        _curve_section(summary),
        quality_section(summary),
        _ranking_section(summary),
        compliance_section(summary),
        filter_section(summary),
        metric_section(summary),
        subgroup_section(summary),
        criteria_section(summary),
    ]
    return Page(
        name="signal",
        title="Early signal",
        question="Does a benchmark tell you anything early in training? Each model is scored at checkpoints along "
        f"its pretraining, under direct evaluation. {explain_protocols(['direct'])} Signal quality is high if scores "
        "rise steadily. The order of the models has settled when it stays as it is at the end, and nearly settled "
        "when 9 of 10 pairs do.",
        findings=[
            *quality_findings(summary),
            *_ranking_findings(summary),
            *filter_findings(summary),
        ],
        sections=[section for section in sections if section is not None],
        notes=summary.notes,
    )


def _ranking_findings(summary: SignalSummary) -> list[Finding]:
    """From when on the models have their final order: those that differ there, where noise is known.

    "At the end" only where the last point that all models have is the end of every training.
    """
    at_chance = [name for name, entry in summary.benchmarks.items() if entry.models_above_chance == 0]
    ranked = {n: ranking for n, ranking in summary.ranking.items() if is_known(ranking) and n not in at_chance}
    told = {name: ranking for name, ranking in ranked.items() if is_known(ranking.separable_pairs)}
    where, there = _common_words(summary, list(told or ranked))
    subject = f"The order of the models that can be told apart {there}" if told else "The order of the models"
    if told:
        basis = "Over pairs of models whose scores there differ by more than noise (false discovery rate 5%). "
        points = {name: (one.settled_from_b, one.settled_from_interval_b) for name, one in told.items()}
    else:
        basis = (
            "Over all pairs of models. The noise of the scores is unknown, so equal models may seem to settle late. "
        )
        points = {name: (one.nearly_stable_from_b, one.nearly_stable_from_interval_b) for name, one in ranked.items()}
    basis += _NEARLY + (f" {count(len(at_chance), 'benchmark')} at chance left out." if at_chance else "")
    known = {name: (number(at), ends) for name, (at, ends) in points.items() if is_known(at)}
    axes = {name: axis for name in known if is_known(axis := ranked[name].tokens_b)}
    # the last point agrees with itself: that is no settling; an interval of the whole training says nothing
    open_ends = [name for name, (at, _) in known.items() if at == axes[name][-1]]
    unsure = [
        name
        for name, (_, ends) in known.items()
        if name not in open_ends and is_known(ends) and ends[0] <= axes[name][0] and ends[1] >= axes[name][-1]
    ]
    settled = [name for name in known if name not in (*open_ends, *unsure)]
    parts = []
    if settled:
        early, late = (pick(settled, key=lambda name: known[name][0]) for pick in (min, max))
        parts.append(f"{subject} is nearly settled {_when(summary, axes[early][0], *known[early])} on {early}")
        if known[late][0] > known[early][0]:
            parts[0] += f", and only {_when(summary, axes[late][0], *known[late])} on {late}"
    if unsure:
        start = "it" if parts else subject
        parts.append(
            f"{start} may settle anywhere from the first point to the last, given noise, on {listing(unsure, 4)}"
        )
    if open_ends:
        start = "" if parts else f"{subject} is "
        parts.append(f"{start}not nearly settled before the last point on {listing(open_ends, 4)}")
    equal = [name for name, ranking in told.items() if ranking.separable_pairs == 0]
    if equal:
        parts.append(f"no two models can be told apart {there} on {listing(equal, 4)}")
    sentence = "; ".join(parts)
    found = [Finding(f"{sentence[0].upper()}{sentence[1:]} ({where}).", basis)] if parts else []
    return [*found, *_unaligned_findings(summary)]


def _common_words(summary: SignalSummary, names: list[str]) -> tuple[str, str]:
    """The points of training that the models of some benchmarks have in common, and `at the end` where the last is."""
    common = [entry.common for name in names if is_known((entry := summary.benchmarks[name]).common)]
    numbers, scale = sorted({found.points for found in common}), summary.progress.scale
    lasts = sorted({number(found.last_b) * scale for found in common if is_known(found.last_b)})
    points = " to ".join(map(str, dict.fromkeys(numbers[:1] + numbers[-1:])))
    until = " to ".join(dict.fromkeys(decimal(last, 1) for last in lasts[:1] + lasts[-1:]))
    where = f"{points} common points of training"
    where += f", the last at {until} {summary.progress.words}" if lasts else ""
    return where, "at the end" if all(found.at_end for found in common) else "at the last common point"


def _when(summary: SignalSummary, first: float, at: float, ends: Bounds) -> str:
    """`after 40.0 (95% interval 20.0 to 60.0) billion tokens`; a lower end at the first point is called that."""
    if not is_known(ends) or ends[0] > first:
        return f"after {summary.progress.describe(at, ends)}"
    value, high = (decimal(end * summary.progress.scale, 1) for end in (at, ends[1]))
    if at == first:
        return f"from the first point on, {value} {summary.progress.words} (95% interval up to {high})"
    return f"after {value} {summary.progress.words} (95% interval from the first point to {high})"


def _unaligned_findings(summary: SignalSummary) -> list[Finding]:
    """Why nothing is said of the order along training, and what can be said of the ends of the models' trainings."""
    reasons: dict[str, list[str]] = {}
    for name, entry in summary.benchmarks.items():
        if isinstance(entry.common, Missing):
            reasons.setdefault(entry.common.reason, []).append(name)
    found = []
    for reason, names in reasons.items():
        where = "" if len(names) == len(summary.benchmarks) else f" on {listing(names, 4)}"
        sentence = f"{reason} So nothing is said of when their order settles{where}."
        apart = {name: share for name in names if is_known(share := summary.benchmarks[name].separable_at_end)}
        if apart:
            least, most = (pick(apart, key=lambda name: apart[name]) for pick in (min, max))
            models = summary.benchmarks[most].models
            sentence += f" At the ends of their own trainings, {apart[most]} of {models * (models - 1) // 2} pairs of "
            sentence += f"models can be told apart on {most}"
            sentence += f", and {apart[least]} on {least}." if least != most else "."
        found.append(
            Finding(sentence, "Two scores differ by more than noise (false discovery rate 5%)." if apart else "")
        )
    return found


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
    commons = [entry.common for entry in summary.benchmarks.values()]
    by_share, scale = any(is_known(one) and one.aligned_by == SHARES for one in commons), summary.progress.scale
    lines = pd.DataFrame(
        [
            {"benchmark": name, "progress": at / (ranking.progress[-1] if by_share else 1 / scale), "tau": tau}
            | {"interpolated": between}
            for name, ranking in summary.ranking.items()
            if is_known(ranking) and is_known(ranking.agreement_with_last)
            for at, tau, between in zip(
                ranking.progress, ranking.agreement_with_last, ranking.interpolated, strict=True
            )
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
        caption += " Rings: a model is read between two of its checkpoints." if drawn["interpolated"].any() else ""
        x_title = "Share of training" if by_share else summary.progress.title
        chart = signal_figures.settling_lines(drawn, x_title)
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
        "nearly stays (tau 0.8). The final order is that at the last common point. A value there means: not settled. "
        "Separable pairs: their scores there differ by more than noise, or at the end of each training. Sizes told "
        f"apart from: also in {summary.progress.words}. Common points: points of training that all models have. At "
        "interpolated ones, a model is read on the line between two of its checkpoints.",
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
                "separable_at_end": summary.benchmarks[name].separable_at_end,
                **_common_row(summary.benchmarks[name].common),
            }
        )
    return pd.DataFrame(rows)


def _common_row(common: CommonPoints | Missing) -> dict[str, object]:
    names = ("aligned_by", "points", "interpolated", "last_b")
    return {name: common if isinstance(common, Missing) else getattr(common, name) for name in names}


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
