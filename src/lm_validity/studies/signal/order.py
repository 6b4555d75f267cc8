"""The order of the models along training: does an early order last, and from when on is it the final one?"""

from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.missing import Missing, as_columns, is_known, known, number
from lm_validity.pages import figures
from lm_validity.pages.figures import CATEGORY_COLORS
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.studies.signal.benchmark import (
    CHOSEN,
    FITTED,
    SKIPPED,
    UNKNOWN_TOKENS,
    BenchmarkCurves,
    Bounds,
    Pair,
    SignalData,
    Value,
    bounds,
    discoveries,
    known_bounds,
    p_value,
    part,
    shown_or_not,
)
from lm_validity.studies.signal.curves import SHARES
from lm_validity.studies.signal.statistics.quality import QUANTILE
from lm_validity.studies.signal.statistics.ranking import (
    E2LM_WINDOWS,
    RankingWindows,
    agreement_with_last,
    difference_errors,
    separable_pairs,
    settled_from,
    settling_interval,
    size_ordering,
)
from lm_validity.words import count, decimal, listing

STABLE_TAU = 0.8  # a ranking that differs from the final one in one pair of ten
E2LM_LATER_CHECKPOINTS = 47  # of the competition's ranking consistency, 222.8 to 994.5 billion tokens
ONE_LATER = "The order at the last checkpoint is compared with that of other later checkpoints, and there is none."
NEARLY = "Nearly settled means that 9 of 10 pairs stay in their final order (tau 0.8)."


# ----------------------------------------------------------------------------------------------------------------------
# Ranking consistency.


def _consistency(benchmark: BenchmarkCurves, kind: str) -> dict[str, Any]:
    """Ranking consistency under one kind of windows, mean over pairs of one size, then over sizes; its two intervals,
    and the level of coins."""
    pairs, windows = benchmark.ranking_pairs[kind], benchmark.windows[kind]
    scores, (blocks, coin) = benchmark.scores.orders[kind], benchmark.order_draws[kind]
    reason = _no_consistency(benchmark, pairs, windows)
    value = known(float(scores.value), reason)
    p = p_value(value, coin)
    coins: Bounds = p if isinstance(p, Missing) else SKIPPED
    if is_known(p) and not isinstance(coin, Missing):
        low, high = np.quantile(coin, [0.025, 0.975])
        coins = float(low), float(high)
    of_pairs = []
    for pair, score in zip(pairs, scores.pairs, strict=True):
        why_pair = _no_consistency(benchmark, [pair], windows)
        of_pairs.append(
            {
                "size": pair.size,
                "first": pair.first,
                "second": pair.second,
                "value": known(float(score.value), why_pair),
                "base_gap": known(float(score.base_gap), why_pair),
                "with_last": known(float(score.with_last), ONE_LATER if pair.windows[1].any() else why_pair),
                "base_checkpoints": int(pair.windows[0].sum()),
                "later_checkpoints": int(pair.windows[1].sum()),
            }
        )
    return {
        "value": value,
        "by_size": {
            size: known(float(mean), _no_consistency(benchmark, [pair for pair in pairs if pair.size == size], windows))
            for size, mean in scores.by_size.items()
        },
        "interval": bounds(value, blocks, 0.0, 1.0),
        "item_interval": bounds(value, benchmark.draws(lambda resampled: resampled.orders[kind].value), 0.0, 1.0),
        "with_last": known(float(scores.with_last), reason if isinstance(value, Missing) else ONE_LATER),
        "coin_flip_interval": coins,
        "coin_flip_p": p,
        "pairs": of_pairs,
    }


def _no_consistency(benchmark: BenchmarkCurves, pairs: list[Pair], windows: RankingWindows) -> str:
    """Why pairs have no ranking consistency, where they have none."""
    if not pairs:
        return "There are no two architectures of one size (columns size and architecture of the models sheet)."
    if all(pair.alignment.reason for pair in pairs):
        return pairs[0].alignment.reason
    if not windows.relative and all(np.isnan(curve.tokens_b).all() for curve in benchmark.curves.values()):
        return "The windows are in billions of tokens, and tokens are unknown."
    empty = [kind for index, kind in enumerate(("base", "later")) if not any(p.windows[index].any() for p in pairs)]
    if not empty:
        return "No pair has a checkpoint in the base window and one in the later window."
    ends = getattr(windows, empty[0])
    low, high = (end / 10 for end in ends) if windows.relative else ends  # relative: of a training of 1000 billion
    unit = "% of the training" if windows.relative else " billion tokens"
    return f"No checkpoint lies in the {empty[0]} window ({low:g} to {high:g}{unit})."


# ----------------------------------------------------------------------------------------------------------------------
# When the order settles.


class Settling(NamedTuple):
    """From when on an order stays, and when it may have settled given the noise of items."""

    value: Value
    interval: Bounds


def _settling(benchmark: BenchmarkCurves) -> dict[str, Any] | Missing:
    """The order of the models along training, over the points that they have in common.

    Their final order is that at the last of these points, which need not be the end of any training.
    """
    noise, alignment, larger = benchmark.noise, benchmark.alignment, benchmark.larger_pairs
    if len(benchmark.scored) < 2 or len(alignment.progress) < 2:
        too_few = "An order along training needs two models with two points of training in common."
        return Missing(alignment.reason or too_few)
    curves, tokens = benchmark.at_common_points(benchmark.values), alignment.tokens_b
    unknown = bool(np.isnan(tokens).any())
    deviations = noise if isinstance(noise, Missing) else difference_errors(noise)
    all_pairs = np.ones(len(curves) * (len(curves) - 1) // 2, dtype=bool)
    separable = deviations if isinstance(deviations, Missing) else separable_pairs(curves[:, -1], deviations[:, -1])
    tau = agreement_with_last(curves)
    tied = UNKNOWN_TOKENS if unknown else "Models tie at the last common point: their order cannot settle."
    equal = UNKNOWN_TOKENS if unknown else "No two models can be told apart at the last common point."

    def settling(pairs: np.ndarray | Missing, threshold: float, reason: str) -> Settling:
        """From when on the order of the pairs stays, and when it may have settled, given the noise of items."""
        if isinstance(pairs, Missing):
            return Settling(pairs, pairs)
        value = known(float(settled_from(curves, tokens, pairs, threshold)), reason)
        if isinstance(value, Missing):
            return Settling(value, value)
        if isinstance(deviations, Missing):
            return Settling(value, deviations)
        return Settling(value, known_bounds(*settling_interval(curves, deviations, tokens, pairs, threshold), equal))

    stable, stable_ends = settling(all_pairs, 1.0, tied)
    nearly, nearly_ends = settling(all_pairs, STABLE_TAU, tied)
    settled, settled_ends = settling(separable, STABLE_TAU, equal)
    one_size = Missing("No two models differ in size only.")
    share, gap = size_ordering(curves, larger) if larger else (one_size, one_size)
    return {
        "models": benchmark.scored,
        "tokens_b": Missing(UNKNOWN_TOKENS) if unknown else tokens,
        "interpolated": [int(number) for number in alignment.interpolated],  # models between checkpoints, by point
        "agreement_with_last": tau,
        "stable_from_b": stable,
        "stable_from_interval_b": stable_ends,
        "nearly_stable_tau": STABLE_TAU,
        "nearly_stable_from_b": nearly,
        "nearly_stable_from_interval_b": nearly_ends,
        "pairs": len(all_pairs),
        # those whose scores at the last point differ by more than noise
        "separable_pairs": separable if isinstance(separable, Missing) else int(separable.sum()),
        "settled_from_b": settled,  # as nearly_stable_from_b, over the separable pairs
        "settled_from_interval_b": settled_ends,
        "size_pairs": len(larger),
        "size_order_share": share,
        "size_gap": gap,
        "separated_from_b": gap if isinstance(gap, Missing) else _separated_from(benchmark, gap),
    }


def _separated_from(benchmark: BenchmarkCurves, gap: np.ndarray) -> Value:
    """Tokens from which larger models are ahead by more than noise for good: by 1.96 standard errors of the mean gap
    (points,)."""
    noise, larger = benchmark.noise, benchmark.larger_pairs
    if isinstance(noise, Missing):
        return noise
    weights = np.zeros(len(benchmark.scored))
    for pair in larger:
        weights[list(pair)] += np.array([-1, 1]) / len(larger)
    ahead = gap > QUANTILE * np.sqrt(np.maximum(weights @ noise @ weights, 0.0))
    for_good = np.flip(np.logical_and.accumulate(np.flip(ahead)))
    first = known(float(benchmark.alignment.tokens_b[np.argmax(for_good)]), UNKNOWN_TOKENS)
    if isinstance(first, Missing) or for_good.any():
        return first
    return Missing("Larger models are not ahead by more than noise at the last common point.")


# ----------------------------------------------------------------------------------------------------------------------
# The section.


def order_of_models(data: SignalData) -> Part:
    """Whether an early order lasts (ranking consistency), and when the final one is reached."""
    windows = data.windows
    consistency = {
        name: _consistency(benchmark, CHOSEN) | {"fitted": _consistency(benchmark, FITTED)}
        for name, benchmark in data.benchmarks.items()
    }
    for entries in (consistency, {name: entry["fitted"] for name, entry in consistency.items()}):
        # whether the order lasts longer than coin tosses would, on which benchmarks
        for name, lasts in discoveries({name: entry["coin_flip_p"] for name, entry in entries.items()}).items():
            entries[name]["lasts"] = lasts
    ranking = {name: _settling(benchmark) for name, benchmark in data.benchmarks.items()}
    chart, section = _settling_figure(data, ranking), None
    if chart is not None or any(entry["by_size"] for entry in consistency.values()):
        section = Section(
            "Order of the models",
            hint="whether an early order lasts, and when it settles",
            explanation=_windows_in_words(data),
            figures=[] if chart is None else [chart],
            tables=[_table(data, consistency, ranking), *_details(data, consistency, ranking)],
        )
    pairs = [pair for benchmark in data.benchmarks.values() for pair in benchmark.ranking_pairs[CHOSEN]]
    later = sorted({int(pair.windows[1].sum()) for pair in pairs if pair.counts})
    notes = []
    if later and later[0] < E2LM_LATER_CHECKPOINTS:
        ends = later[0] if later[0] == later[-1] else f"{later[0]} to {later[-1]}"
        # other windows than the competition's hold other numbers of its checkpoints
        released = f"; the competition had {E2LM_LATER_CHECKPOINTS} up to 1000 billion tokens, which are not released"
        beside = released if windows == E2LM_WINDOWS else ""
        notes = [f"Ranking consistency rests on {ends} later checkpoints per pair{beside}."]
    findings = [_settling_finding(data, ranking), *_unaligned_findings(data)]
    return Part({"ranking_consistency": consistency, "ranking": ranking}, section, findings, notes)


def _settling_figure(data: SignalData, ranking: dict[str, dict[str, Any] | Missing]) -> Figure | None:
    """Agreement of the models' order with the final one along training, a line per benchmark."""
    alignments = [benchmark.alignment for benchmark in data.benchmarks.values()]
    by_share = any(alignment.by == SHARES for alignment in alignments if not alignment.reason)
    rows = []
    for name, entry in ranking.items():
        if isinstance(entry, Missing):
            continue
        progress = data.benchmarks[name].alignment.progress
        unit = progress[-1] if by_share else 1 / data.progress.scale
        for point, tau, between in zip(progress, entry["agreement_with_last"], entry["interpolated"], strict=True):
            rows.append({"benchmark": name, "progress": point / unit, "tau": tau, "interpolated": between})
    if not rows:
        return None
    lines, caption = pd.DataFrame(rows), ""
    names = list(dict.fromkeys(lines["benchmark"]))
    if len(names) > len(CATEGORY_COLORS):
        quality = {name: data.benchmarks[name].quality for name in names}
        best = sorted(names, key=lambda name: -number(quality[name]) if is_known(quality[name]) else 1.0)
        lines = lines[lines["benchmark"].isin(best[: len(CATEGORY_COLORS)])]
        caption = f"The {len(CATEGORY_COLORS)} benchmarks of highest signal quality. The table has all {len(names)}."
    title = "Share of training" if by_share else data.progress.title
    names_shown = list(dict.fromkeys(lines["benchmark"]))
    stroke = {"symbolOpacity": 1, "symbolType": "stroke", "symbolStrokeWidth": 3}
    color = figures.listed_color(
        "benchmark",
        figures.cycled_colors(names_shown),
        "Benchmark",
        columns=4,
        symbolLimit=60,
        labelLimit=160,
        **stroke,
    )
    chart = figures.lines(
        lines,
        x="progress",
        y="tau",
        color=color,
        x_title=title,
        y_title="Kendall's tau with the final ranking",
        tooltip=figures.tooltips(benchmark="Benchmark", progress=f"{title}|.4~g", tau="Tau|.2f"),
        points=False,
    )
    if lines["interpolated"].any():
        rings = alt.Chart(figures.chart_data(lines[lines["interpolated"] > 0])).mark_point(size=22)
        chart = figures.layered(chart, rings.encode(x="progress:Q", y="tau:Q", color=color))
        caption += " Rings: a model is read between two of its checkpoints."
    return Figure("settling", "When the final order is reached", chart, caption=caption)


def _table(
    data: SignalData, consistency: dict[str, dict[str, Any]], ranking: dict[str, dict[str, Any] | Missing]
) -> Table:
    counted = ("pairs", "separable_pairs", "settled_from_b", "stable_from_b", "nearly_stable_from_b")
    rows = []
    for name, entry in consistency.items():
        settling, benchmark = ranking[name], data.benchmarks[name]
        share = part(settling, "size_order_share")
        rows.append(
            {
                "benchmark": name,
                "consistency": entry["value"],
                **as_columns(entry["interval"]),
                "coin_flip_p": entry["coin_flip_p"],
                "lasts": shown_or_not(entry["lasts"]),
                "fitted": entry["fitted"]["value"],
                "with_last": entry["with_last"],
                **{column: part(settling, column) for column in counted},
                **as_columns(
                    part(settling, "nearly_stable_from_interval_b"), "nearly_stable_low_b", "nearly_stable_high_b"
                ),
                "size_order_share": share if isinstance(share, Missing) else float(np.mean(share)),
                "separated_from_b": part(settling, "separated_from_b"),
                "separable_at_end": benchmark.separable_at_end,
                **{key: part(benchmark.common, key) for key in ("aligned_by", "points", "interpolated", "last_b")},
            }
        )
    frame, words = pd.DataFrame(rows), data.progress.words
    return Table(
        "ranking",
        "Ranking consistency and settling",
        frame,
        formats=dict.fromkeys(frame.columns[1:], ".4g") | {"coin_flip_p": "p"},
        scales={name: data.progress.scale for name in frame.columns if name.endswith("_b")},
        labels={
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
        },
        caption=f"Settled: after so many {words} the final order stays (tau 1). Nearly settled: it "
        "nearly stays (tau 0.8). The final order is that at the last common point. A value there means: not settled. "
        "Separable pairs: their scores there differ by more than noise, or at the end of each training. Sizes told "
        f"apart from: also in {words}. Common points: points of training that all models have. At "
        "interpolated ones, a model is read on the line between two of its checkpoints.",
    )


def _details(
    data: SignalData, consistency: dict[str, dict[str, Any]], ranking: dict[str, dict[str, Any] | Missing]
) -> list[Table]:
    """Each pair of architectures, under the chosen and the fitted windows, and each common point of training."""
    pairs = [
        {"benchmark": name, "windows": windows, **pair}
        for name, entry in consistency.items()
        for windows, entry_of_windows in (("chosen", entry), ("fitted", entry["fitted"]))
        for pair in entry_of_windows["pairs"]
    ]
    columns = {"tokens_b": "tokens_b", "tau": "agreement_with_last", "ahead": "size_order_share", "gap": "size_gap"}
    points = [
        pd.DataFrame({column: entry[key] for column, key in columns.items() if is_known(entry[key])})
        .assign(benchmark=name, point=range(1, len(entry["agreement_with_last"]) + 1))
        .reindex(columns=["benchmark", "point", *columns])
        for name, entry in ranking.items()
        if not isinstance(entry, Missing)
    ]
    labels = {"value": "consistency", "base_gap": "gap in the base window", "with_last": "same order as at the end"}
    labels |= {"tau": "tau with the final ranking", "ahead": "larger model ahead (share)", "gap": "gap between sizes"}
    tables = {
        "pairs_of_architectures": ("Ranking consistency by pair of models", pd.DataFrame(pairs)),
        "order_by_point": ("Order of the models by point of training", pd.concat(points) if points else pd.DataFrame()),
    }
    return [
        Table(name, title, frame, formats=dict.fromkeys(frame.columns[1:], ".4g"), labels=labels, folded=True,
              scales={"tokens_b": data.progress.scale})
        for name, (title, frame) in tables.items() if len(frame)
    ]  # fmt: skip


def _windows_in_words(data: SignalData) -> str:
    windows = data.windows
    if windows.relative:
        reason = "No training reaches 100 billion tokens" if data.progress.in_tokens else "Tokens are unknown"
        return (
            f"{reason}: the competition's windows are scaled to the length of each pair's training, up to its last "
            "common checkpoint (base: 10% to 20% of it, later: from 22%)."
        )
    (base_low, base_high), (low, high) = windows.base, windows.later
    source = " These are the windows of the early-training competition (E2LM)." if windows == E2LM_WINDOWS else ""
    return (
        "Ranking consistency asks whether two models keep, in a later window of training "
        f"({low:g} to {high:g} billion tokens), the order that they had in a base window ({base_low:g} to "
        f"{base_high:g}).{source} Fitted windows: 10% to 20% of each pair's training up to its last common "
        "checkpoint, and from 22%."
    )


# ----------------------------------------------------------------------------------------------------------------------
# What the order says in a sentence.


def _settling_finding(data: SignalData, ranking: dict[str, dict[str, Any] | Missing]) -> Finding | None:
    """From when on the models have their final order: those that differ there, where noise is known.

    "At the end" only where the last point that all models have is the end of every training.
    """
    at_chance = [name for name, benchmark in data.benchmarks.items() if benchmark.models_above_chance == 0]
    ranked = {name: entry for name, entry in ranking.items() if is_known(entry) and name not in at_chance}
    settled_entries = {name: entry for name, entry in ranked.items() if is_known(entry["separable_pairs"])}
    where, remark = _common_words(data, list(settled_entries or ranked))
    key, subject = "nearly_stable_from", "The order of the models"
    basis = "Over all pairs of models. The noise of the scores is unknown, so equal models may seem to settle late. "
    if settled_entries:
        key, subject = "settled_from", f"The order of the models that can be told apart {remark}"
        basis = "Over pairs of models whose scores there differ by more than noise (false discovery rate 5%). "
    basis += NEARLY + (f" {count(len(at_chance), 'benchmark')} at chance left out." if at_chance else "")
    points = {
        name: (entry[f"{key}_b"], entry[f"{key}_interval_b"], data.benchmarks[name].alignment.tokens_b)
        for name, entry in (settled_entries or ranked).items()
        if is_known(entry[f"{key}_b"])
    }
    # the last point agrees with itself: that is no settling; an interval of the whole training says nothing
    open_ends = [name for name, (point, _, axis) in points.items() if point == axis[-1]]
    unsure = [
        name
        for name, (_, ends, axis) in points.items()
        if name not in open_ends and is_known(ends) and ends[0] <= axis[0] and ends[1] >= axis[-1]
    ]
    settled = [name for name in points if name not in (*open_ends, *unsure)]
    parts = []
    if settled:
        early, late = (pick(settled, key=lambda name: points[name][0]) for pick in (min, max))
        parts.append(f"{subject} is nearly settled {_when(data, *points[early])} on {early}")
        if points[late][0] > points[early][0]:
            parts[0] += f", and only {_when(data, *points[late])} on {late}"
    if unsure:
        anywhere = "may settle anywhere from the first point to the last, given noise, on"
        parts.append(f"{'it' if parts else subject} {anywhere} {listing(unsure, 4)}")
    if open_ends:
        start = "" if parts else f"{subject} is "
        parts.append(f"{start}not nearly settled before the last point on {listing(open_ends, 4)}")
    equal = [name for name, entry in settled_entries.items() if entry["separable_pairs"] == 0]
    if equal:
        parts.append(f"no two models can be told apart {remark} on {listing(equal, 4)}")
    sentence = "; ".join(parts)
    return Finding(f"{sentence[0].upper()}{sentence[1:]} ({where}).", basis) if parts else None


def _common_words(data: SignalData, names: list[str]) -> tuple[str, str]:
    """The points of training that the models of some benchmarks have in common, and `at the end` where the last is."""
    common = [data.benchmarks[name].alignment for name in names]
    numbers = sorted({len(alignment.progress) for alignment in common})
    ends = [alignment.tokens_b[-1] * data.progress.scale for alignment in common]
    lasts = sorted({float(end) for end in ends if np.isfinite(end)})
    points = " to ".join(map(str, dict.fromkeys(numbers[:1] + numbers[-1:])))
    until = " to ".join(dict.fromkeys(decimal(last, 1) for last in lasts[:1] + lasts[-1:]))
    where = f"{points} common points of training"
    where += f", the last at {until} {data.progress.words}" if lasts else ""
    return where, "at the end" if all(alignment.at_end for alignment in common) else "at the last common point"


def _when(data: SignalData, point: float, ends: Bounds, axis: np.ndarray) -> str:
    """`after 40.0 (95% interval 20.0 to 60.0) billion tokens`; a lower end at the first point is called that."""
    words, value = data.progress.words, decimal(point * data.progress.scale, 1)
    if not is_known(ends):
        return f"after {value} {words}"
    low, high = (decimal(end * data.progress.scale, 1) for end in ends)
    if ends[0] > axis[0]:
        return f"after {value} (95% interval {low} to {high}) {words}"
    if point == axis[0]:
        return f"from the first point on, {value} {words} (95% interval up to {high})"
    return f"after {value} {words} (95% interval from the first point to {high})"


def _unaligned_findings(data: SignalData) -> list[Finding]:
    """Why nothing is said of the order along training, and what can be said of the ends of the models' trainings."""
    reasons: dict[str, list[str]] = {}
    for name, benchmark in data.benchmarks.items():
        if benchmark.alignment.reason:
            reasons.setdefault(benchmark.alignment.reason, []).append(name)
    findings = []
    for reason, names in reasons.items():
        where = "" if len(names) == len(data.benchmarks) else f" on {listing(names, 4)}"
        sentence = f"{reason} So nothing is said of when their order settles{where}."
        apart = {name: share for name in names if is_known(share := data.benchmarks[name].separable_at_end)}
        if apart:
            least, largest = (pick(apart, key=lambda name: apart[name]) for pick in (min, max))
            models = len(data.benchmarks[largest].scored)
            sentence += (
                f" At the ends of their own trainings, {apart[largest]} of {models * (models - 1) // 2} pairs of "
            )
            sentence += f"models can be told apart on {largest}"
            sentence += f", and {apart[least]} on {least}." if least != largest else "."
        findings.append(
            Finding(sentence, "Two scores differ by more than noise (false discovery rate 5%)." if apart else "")
        )
    return findings
