"""The signal report's page: sentences, figures and tables out of its results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.stats import false_discovery_control

from lm_validity.pages.page import Figure, Finding, Page, Section, Table
from lm_validity.studies.agreement.score_matrix import listing
from lm_validity.studies.signal import figures as signal_figures
from lm_validity.studies.signal.page_items import filter_findings, filter_section, metric_section, subgroup_section
from lm_validity.studies.signal.page_tables import as_numbers, compliance_section, criteria_section
from lm_validity.studies.signal.printed import printed_section
from lm_validity.studies.signal.statistics.quality import MINIMUM_CHECKPOINTS
from lm_validity.studies.signal.statistics.resampling import white_noise_level
from lm_validity.words import count, decimal, with_interval

if TYPE_CHECKING:
    from lm_validity.studies.signal.report import SignalAnalysis

_NOISE_DRAWS = 20_000
_LEVEL = 0.05
_RANKING_LABELS = {
    "coin_flip_p": "p against coins",
    "with_last": "as the last",
    "stable_from_b": "settled",
    "nearly_stable_from_b": "nearly settled",
    "nearly_stable_low_b": "nearly: low",
    "nearly_stable_high_b": "nearly: high",
    "size_order_share": "larger is better",
    "separated_from_b": "sizes apart from",
}


def signal_page(analysis: SignalAnalysis, summary: dict) -> Page:
    """The page of the report."""
    sections = [
        _curve_section(analysis),
        _quality_section(analysis, summary),
        _ranking_section(analysis, summary),
        compliance_section(summary),
        filter_section(summary),
        metric_section(summary),
        subgroup_section(summary),
        criteria_section(summary),
        printed_section(summary),
    ]
    return Page(
        name="signal",
        title="Early signal",
        question="Does a benchmark say something early in training?",
        findings=[
            *_quality_findings(analysis, summary),
            *_ranking_findings(summary, _progress(analysis)),
            *filter_findings(summary),
        ],
        sections=[section for section in sections if section is not None],
        notes=summary["notes"],
    )


def _noise_level(analysis: SignalAnalysis) -> tuple[int, float, float] | None:
    """The commonest number of checkpoints, and mean and 95th percentile of white noise of that length."""
    counts = [
        int(at.sum()) for result in analysis.results.values() for at in result.design.selected.values() if at.any()
    ]
    counts = [number for number in counts if number >= MINIMUM_CHECKPOINTS]
    if not counts:
        return None
    commonest = max(set(counts), key=counts.count)
    generator = np.random.default_rng(0)
    return commonest, *white_noise_level(commonest, _NOISE_DRAWS, generator, analysis.options.convention)


def _quality_findings(analysis: SignalAnalysis, summary: dict) -> list[Finding]:
    known = {b: e for b, e in summary["benchmarks"].items() if e["signal_quality"] is not None}
    basis = (
        f"{count(len(summary['models']), 'model')}, {count(len(summary['benchmarks']), 'benchmark')}, "
        f"checkpoints: {'those of the competition' if summary['selection'] == 'e2lm' else 'all'}."
    )
    if not known:
        return [Finding("No signal quality can be computed.", basis)]
    order = sorted(known, key=lambda name: -known[name]["signal_quality"])

    def described(name: str) -> str:
        return f"{name}, {with_interval(known[name]['signal_quality'], known[name]['signal_quality_interval'])}"

    sentence = f"Signal quality is highest on {described(order[0])}"
    if len(order) > 1:
        sentence += f", and lowest on {described(order[-1])}"
    noise = _noise_level(analysis)
    if noise is not None:
        sentence += f"; a white-noise curve of {noise[0]} checkpoints scores {decimal(noise[1])} on average"
    findings = [Finding(sentence + ".", basis)]
    p = {name: entry["signal_quality_null_p"] for name, entry in known.items()}
    if all(value is not None for value in p.values()):
        adjusted = dict(zip(p, false_discovery_control(list(p.values())), strict=True))
        quiet = [name for name in order if adjusted[name] > _LEVEL]
        falling = [name for name in order if name not in quiet and known[name]["rank_correlation"] < 0]
        sentence = f"The curves of {len(p) - len(quiet)} of {count(len(p), 'benchmark')} are more than white noise"
        sentence += f" ({listing(falling)} falling instead of rising)" if falling else ""
        sentence += f"; those of {listing(quiet)} cannot be told from it." if quiet else "."
        findings.append(Finding(sentence, "Permutation of checkpoints, false discovery rate 5% (Benjamini-Hochberg)."))
    return findings


def _ranking_findings(summary: dict, progress: _Progress) -> list[Finding]:
    known = {b: e for b, e in summary["ranking"].items() if e and e["nearly_stable_from_b"] is not None}
    # the last checkpoint agrees with itself: that is no settling
    settled = {b: e for b, e in known.items() if e["nearly_stable_from_b"] < e["tokens_b"][-1]}
    open_ends = [name for name in known if name not in settled]
    basis = f"Up to {count(max((len(e['models']) for e in known.values()), default=0), 'model')} at common checkpoints."
    never = f"not before the last checkpoint on {listing(open_ends)}" if open_ends else ""
    if not settled:
        return [Finding(f"The models' final order is reached {never}.", basis)] if never else []
    early = min(settled, key=lambda name: settled[name]["nearly_stable_from_b"])
    late = max(settled, key=lambda name: settled[name]["nearly_stable_from_b"])

    def described(name: str) -> str:
        entry = settled[name]
        tokens = progress.describe(entry["nearly_stable_from_b"], entry["nearly_stable_from_interval_b"])
        return f"{tokens} on {name}"

    tau = settled[early]["nearly_stable_tau"]
    sentence = f"The models' final order is reached for good (tau at least {tau}) from {described(early)}"
    if settled[late]["nearly_stable_from_b"] > settled[early]["nearly_stable_from_b"]:
        sentence += f", and only from {described(late)}"
    sentence += f", and {never}" if never else ""
    return [Finding(sentence + ".", basis)]


@dataclass(frozen=True)
class _Progress:
    """How training is measured on this page: the axis title, the scale from billions, and words."""

    title: str
    scale: float
    words: str
    in_tokens: bool = True

    def describe(self, value: float | None, interval=None) -> str:
        ends = None if interval is None else [end * self.scale for end in interval]
        text = with_interval(None if value is None else value * self.scale, ends, 1)
        return f"{text} {self.words}"


def _progress(analysis: SignalAnalysis) -> _Progress:
    """Billions, millions or thousands of tokens, by the longest training; iterations where tokens are unknown."""
    curves = [curve for result in analysis.results.values() for curve in result.design.curves.values()]
    if any(np.isnan(curve.tokens_b).any() for curve in curves):
        return _Progress("Iterations or checkpoints", 1.0, "steps", in_tokens=False)
    longest = max(curve.tokens_b[-1] for curve in curves)
    if longest >= 1.0:
        scale, unit = 1.0, "billion"
    else:
        scale, unit = (1e3, "million") if longest >= 1e-3 else (1e6, "thousand")
    return _Progress(f"{unit.capitalize()} tokens", scale, f"{unit} tokens")


def _curve_section(analysis: SignalAnalysis) -> Section:
    progress = _progress(analysis)
    frame = signal_figures.curve_frame(analysis.learning, analysis.results, progress.scale)
    figure = Figure(
        "learning_curves",
        "Scores along training",
        signal_figures.learning_curves(frame, progress.title),
        caption=_curve_caption(frame),
        wide=True,
        min_width=signal_figures.curves_width(),
    )
    table = Table("learning_curves", "All scores", frame.drop(columns="chance"), formats={"score": ".4f"}, folded=True)
    return Section("Learning curves", figures=[figure], tables=[table])


def _curve_caption(frame: pd.DataFrame) -> str:
    """What is drawn beside the curves: bands need items, chance needs their choices."""
    bands = (
        "Bands: 95% of item resamples, the same draws for all models and checkpoints."
        if frame.low.notna().any()
        else ""
    )
    chance = "Dashed: chance." if frame.chance.notna().any() else ""
    return " ".join(part for part in (bands, chance) if part)


def _quality_section(analysis: SignalAnalysis, summary: dict) -> Section:
    rows = []
    for name, entry in summary["benchmarks"].items():
        low, high = entry["signal_quality_interval"] or (None, None)
        rows.append(
            {
                "benchmark": name,
                "signal_quality": entry["signal_quality"],
                "low": low,
                "high": high,
                "p": entry["signal_quality_null_p"],
                "rank_correlation": entry["rank_correlation"],
                "items": entry["items"],
                **{f"size {size}": value for size, value in entry["signal_quality_by_size"].items()},
            }
        )
    frame = as_numbers(pd.DataFrame(rows), skip=("benchmark", "items")).sort_values("signal_quality", ascending=False)
    order = list(frame["benchmark"])
    by_model = _model_frame(analysis, summary)
    noise = _noise_level(analysis)
    weights = "Half monotonicity, half autocorrelation"
    conventions = summary["conventions"]
    return Section(
        "Signal quality",
        explanation=f"{weights}; conventions: {conventions['convention']}, ties: {conventions['ties']}. "
        "The dashed line is the mean of white noise, not zero.",
        figures=[
            Figure("signal_quality", "Mean over models", signal_figures.quality_dots(frame, order, noise and noise[1])),
            Figure(
                "signal_quality_by_model",
                "By model",
                signal_figures.quality_heatmap(by_model, order, list(dict.fromkeys(by_model["label"]))),
                wide=True,
            ),
        ],
        tables=[
            Table("signal_quality", "By benchmark", frame, formats=dict.fromkeys(frame.columns[1:6], ".3f")),
            Table(
                "signal_quality_by_model",
                "By model and benchmark",
                by_model.drop(columns="label"),
                formats=dict.fromkeys(("monotonicity", "autocorrelation", "signal_quality", "rank_correlation"), ".4f"),
                folded=True,
            ),
        ],
    )


def _model_frame(analysis: SignalAnalysis, summary: dict) -> pd.DataFrame:
    rows = []
    for model, by_benchmark in summary["models"].items():
        for name, entry in by_benchmark.items():
            low, high = entry["signal_quality_interval"] or (None, None)
            rows.append(
                {
                    "model": model,
                    "label": analysis.learning.facts.at[model, "label"],
                    "benchmark": name,
                    **{key: entry[key] for key in ("monotonicity", "autocorrelation", "signal_quality")},
                    "low": low,
                    "high": high,
                    "p": entry["signal_quality_null_p"],
                    "rank_correlation": entry["rank_correlation"],
                    "net_rise": entry["net_rise"],
                    "checkpoints": entry["checkpoints"],
                }
            )
    return as_numbers(pd.DataFrame(rows), skip=("model", "label", "benchmark", "checkpoints"))


def _ranking_section(analysis: SignalAnalysis, summary: dict) -> Section | None:
    progress = _progress(analysis)
    consistency = pd.DataFrame(
        [
            {"benchmark": name, "size": size, "consistency": value}
            for name, entry in summary["ranking_consistency"].items()
            for size, value in entry["by_size"].items()
        ],
        columns=["benchmark", "size", "consistency"],
    )
    lines = pd.DataFrame(
        [
            {"benchmark": name, "progress": at * progress.scale, "tau": tau}
            for name, entry in summary["ranking"].items()
            if entry
            for at, tau in zip(analysis.results[name].design.ranked_progress, entry["agreement_with_last"], strict=True)
        ]
    )
    if consistency.empty and lines.empty:
        return None
    figures = []
    if not consistency.empty:
        consistency = as_numbers(consistency, skip=("benchmark", "size"))
        order = list(dict.fromkeys(consistency["benchmark"]))
        chart = signal_figures.consistency_dots(consistency, order)
        caption = "Share of later checkpoints with the order of the base window; dashed: a coin flip."
        figures.append(Figure("ranking_consistency", "Ranking consistency", chart, caption=caption))
    if not lines.empty:
        chart = signal_figures.settling_lines(lines, progress.title)
        figures.append(Figure("settling", "When the final order is reached", chart))
    frame = _ranking_frame(summary)
    table = Table(
        "ranking",
        "Ranking consistency and settling",
        frame,
        formats=dict.fromkeys(frame.columns[1:], ".4g"),
        labels=_RANKING_LABELS,
        caption="Settled: tokens in billions from which the final order stays (tau 1), or nearly (tau 0.8).",
    )
    return Section("Order of the models", explanation=_windows(summary, progress), figures=figures, tables=[table])


def _windows(summary: dict, progress: _Progress) -> str:
    windows = summary["conventions"]["windows_b"]
    if windows["relative"]:
        reason = "No training reaches 100 billion tokens" if progress.in_tokens else "Tokens are unknown"
        return (
            f"{reason}: the competition's windows are scaled to the length of each pair's training, up to its last "
            "common checkpoint (base: 10% to 20% of it, later: from 22%)."
        )
    (base_low, base_high), (low, high) = windows["base"], windows["later"]
    return f"Base window {base_low:g} to {base_high:g}, later window {low:g} to {high:g} billion tokens."


def _ranking_frame(summary: dict) -> pd.DataFrame:
    rows = []
    for name, entry in summary["ranking_consistency"].items():
        ranking = summary["ranking"][name] or {}
        low, high = entry["interval"] or (None, None)
        stable_low, stable_high = ranking.get("nearly_stable_from_interval_b") or (None, None)
        share = ranking.get("size_order_share")
        rows.append(
            {
                "benchmark": name,
                "consistency": entry["value"],
                "low": low,
                "high": high,
                "coin_flip_p": entry["coin_flip_p"],
                "with_last": entry["with_last"],
                "stable_from_b": ranking.get("stable_from_b"),
                "nearly_stable_from_b": ranking.get("nearly_stable_from_b"),
                "nearly_stable_low_b": stable_low,
                "nearly_stable_high_b": stable_high,
                "size_order_share": np.mean(share) if share else None,
                "separated_from_b": ranking.get("separated_from_b"),
            }
        )
    return as_numbers(pd.DataFrame(rows), skip=("benchmark",))
