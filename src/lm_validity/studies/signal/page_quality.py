"""The part of the signal page on signal quality, beside that of curves that learn nothing."""

import pandas as pd
from scipy.stats import false_discovery_control

from lm_validity.pages.page import Figure, Finding, Section, Table
from lm_validity.studies.signal import figures as signal_figures
from lm_validity.studies.signal.page_tables import as_numbers
from lm_validity.studies.signal.statistics.quality import FINETASKS_MONOTONICITY
from lm_validity.studies.signal.summary import BenchmarkQuality, SignalSummary, Value
from lm_validity.summaries import Missing, as_columns, is_known, number
from lm_validity.words import count, decimal, listing, with_interval

_LEVEL = 0.05
_QUALITY_LABELS = {
    "p": "p (white noise)",
    "walk_p": "p (random walk)",
    "noise_free_quality": "without noise of items",
    "noise_free_low": "from",
    "noise_free_high": "to",
    "models_above_chance": "models above chance",
}
_AUTOCORRELATION = {"code": "scoring code", "paper": "paper"}
_TIES = {"stable": "count as an increase", "average": "share their ranks"}


def quality_findings(summary: SignalSummary) -> list[Finding]:
    """The highest and the lowest, how many rise more than drift, and how many are at chance."""
    falling = [
        name
        for name, entry in summary.benchmarks.items()
        if entry.direction_assumed and number(entry.rank_correlation) <= -FINETASKS_MONOTONICITY
    ]
    known = {
        name: entry
        for name, entry in summary.benchmarks.items()
        if is_known(entry.signal_quality) and name not in falling
    }
    basis = (
        f"{count(len(summary.models), 'model')}, {count(len(summary.benchmarks), 'benchmark')}, "
        f"at {'the checkpoints of the competition' if summary.selection == 'e2lm' else 'all checkpoints'}."
    )
    asked = [_direction_question(falling)] if falling else []
    if not known:
        return asked or [Finding("No signal quality can be computed.", basis)]
    order = sorted(known, key=lambda name: -number(known[name].signal_quality))
    sentence = f"Signal quality is {_extremes(known, order)}"
    if not isinstance(summary.noise, Missing):
        sentence += (
            f". For comparison: over {summary.noise.checkpoints} checkpoints, pure noise has a mean signal quality of "
            f"{decimal(summary.noise.white)}, and a random walk {decimal(summary.noise.walk)}"
        )
    found = [Finding(sentence + ".", basis), *_noise_findings(known, order), *_chance_findings(summary.benchmarks)]
    return [*asked, *found]


def _direction_question(falling: list[str]) -> Finding:
    """Scores that fall steadily where nothing says which direction is better: most likely the other one."""
    sentence = f"Is lower better on {listing(falling, 4)}? Scores fall steadily there, and nothing says which "
    sentence += "direction is better. Their signal quality is not compared until that is known."
    basis = f"Mean rank correlation of score and checkpoint of {-FINETASKS_MONOTONICITY} or less. Fill in the column "
    return Finding(sentence, basis + "`higher_is_better` of the benchmarks sheet.")


def _extremes(known: dict[str, BenchmarkQuality], order: list[str]) -> str:
    """`highest on a, 0.90 (…), and lowest on b, 0.20 (…)`, of benchmarks in falling `order`."""

    def described(name: str) -> str:
        interval = known[name].signal_quality_interval
        return f"{name}, {with_interval(number(known[name].signal_quality), interval if is_known(interval) else None)}"

    lowest = f", and lowest on {described(order[-1])}" if len(order) > 1 else ""
    return f"highest on {described(order[0])}{lowest}"


def _noise_findings(known: dict[str, BenchmarkQuality], order: list[str]) -> list[Finding]:
    """On how many benchmarks the curves rise more steadily than drift would; none without p-values."""
    counted = counted_as_rising(known)
    if counted is None:
        return []
    rising = [name for name in order if name in counted]
    rest = [name for name in order if name not in rising]
    sentence = f"Scores improve more steadily than a random walk on {len(rising)} of {count(len(known), 'benchmark')}"
    sentence += f" ({listing(rising)})" if rising and rest else ""
    sentence += f". On {listing(rest, 4)} this cannot be shown, or scores end at chance." if rest else "."
    basis = (
        "A test by random signs of the steps between checkpoints, false discovery rate 5% (Benjamini-Hochberg). It is "
        "cautious if curves are noisy."
    )
    return [Finding(sentence, basis)]


def counted_as_rising(known: dict[str, BenchmarkQuality]) -> set[str] | None:
    """The benchmarks whose scores improve more steadily than a random walk and end above chance; None without
    p-values."""
    p = {name: entry.signal_quality_walk_p for name, entry in known.items()}
    if not all(is_known(value) for value in p.values()):
        return None
    adjusted = dict(zip(p, false_discovery_control(list(p.values())), strict=True))
    return {
        name
        for name, entry in known.items()
        if adjusted[name] <= _LEVEL and number(entry.rank_correlation) > 0 and entry.models_above_chance != 0
    }


def _chance_findings(benchmarks: dict[str, BenchmarkQuality]) -> list[Finding]:
    """On how many of the benchmarks with a known chance level no model ends above it."""
    known = {name: entry for name, entry in benchmarks.items() if is_known(entry.models_above_chance)}
    if not known:
        return []
    at_chance = [name for name, entry in known.items() if entry.models_above_chance == 0]
    of_all = f"{count(len(known), 'benchmark')} with a known chance level"
    sentence = f"No model ends above chance on {len(at_chance)} of {of_all}: {listing(at_chance, 4)}."
    if not at_chance:
        sentence = f"On each of {of_all}, at least one model ends above chance."
    basis = "One-sided tests of the last scores by their standard errors, at 5% with Holm's adjustment over models."
    return [Finding(sentence, basis)]


def quality_section(summary: SignalSummary) -> Section:
    """Signal quality by benchmark and by model."""
    frame = _benchmark_frame(summary)
    numbers = ("signal_quality", "low", "high", "p", "walk_p")
    drawn = as_numbers(frame[["benchmark", *numbers]], numbers).sort_values("signal_quality", ascending=False)
    frame, order = frame.loc[drawn.index], list(drawn["benchmark"])
    formats = dict.fromkeys((*numbers, "rank_correlation", "chance"), ".3f") | {"p": "p", "walk_p": "p"}
    labels = _QUALITY_LABELS | {"above_chance_from_b": f"above chance from ({summary.progress.words})"}
    scales = {"above_chance_from_b": summary.progress.scale}
    by_model = _model_frame(summary)
    cells = as_numbers(by_model, ("signal_quality", "monotonicity", "autocorrelation"))
    levels = [] if isinstance(summary.noise, Missing) else [summary.noise.white, summary.noise.walk]
    conventions = summary.conventions
    return Section(
        "Signal quality",
        explanation="Half monotonicity, half autocorrelation. Autocorrelation is as in the competition's "
        f"{_AUTOCORRELATION[conventions.convention]}. Equal scores {_TIES[conventions.ties]}. Dashed lines: the means "
        "of curves that learn nothing. White noise has independent points, a random walk independent steps. p (white "
        "noise) compares with shuffled checkpoints and is small for any drift. p (random walk) gives the steps random "
        "signs. Quote this one. More items mean less noise and so a higher signal quality: compare benchmarks at one "
        "number of items or without the noise of items. The interval is for benchmarks of this size, noise included."
        + _interval_words(summary),
        figures=[
            Figure("signal_quality", "Mean over models", signal_figures.quality_dots(drawn, order, levels)),
            Figure(
                "signal_quality_by_model",
                "By model",
                signal_figures.quality_heatmap(
                    cells[["label", "benchmark", "signal_quality", "monotonicity", "autocorrelation"]],
                    order,
                    list(dict.fromkeys(by_model["label"])),
                ),
                wide=True,
            ),
        ],
        tables=[
            Table("signal_quality", "By benchmark", frame, formats=formats, scales=scales, labels=labels),
            Table(
                "signal_quality_by_model",
                "By model and benchmark",
                by_model.drop(columns="label"),
                labels=labels,
                formats=dict.fromkeys(("monotonicity", "autocorrelation", "signal_quality", "rank_correlation"), ".4f")
                | {"p": "p", "walk_p": "p"},
                scales=scales,
                folded=True,
            ),
        ],
    )


def _by_items(summary: SignalSummary, entry: BenchmarkQuality) -> dict[str, Value]:
    """Signal quality at the largest number of items that all benchmarks have, of which that many can be had."""
    known = [found for one in summary.benchmarks.values() if is_known(found := _matched(one))]
    common = set.intersection(*map(set, known)) if known else set()
    if not common:
        return {}
    found = _matched(entry)
    return {f"at {max(common)} items": found if isinstance(found, Missing) else found[max(common)]}


def _matched(entry: BenchmarkQuality) -> dict[int, float] | Missing:
    by_items, by_errors = entry.signal_quality_by_items, entry.signal_quality_by_errors
    return by_errors if is_known(by_errors) else by_items


def _interval_words(summary: SignalSummary) -> str:
    """What intervals, and figures at one number of items, rest on where it is not items."""
    matched = [name for name, entry in summary.benchmarks.items() if is_known(entry.signal_quality_by_errors)]
    return _errors_words(summary) + (
        f" Figures at one number of items are based on standard errors for {listing(matched, 4)}. They are too low, "
        "because the checkpoints share their items."
        if matched
        else ""
    )


def _errors_words(summary: SignalSummary) -> str:
    by_errors = [name for name, entry in summary.benchmarks.items() if entry.interval_source == "standard errors"]
    if not by_errors:
        return ""
    return (
        f" Intervals for {listing(by_errors, 4)} are based on standard errors, as if each checkpoint had its own "
        "items. They are too wide, and too low for noisy curves, because checkpoints share their items."
    )


def _benchmark_frame(summary: SignalSummary) -> pd.DataFrame:
    rows = []
    for name, entry in summary.benchmarks.items():
        rows.append(
            {
                "benchmark": name,
                "signal_quality": entry.signal_quality,
                **as_columns(entry.signal_quality_interval),
                "p": entry.signal_quality_null_p,
                "walk_p": entry.signal_quality_walk_p,
                "rank_correlation": entry.rank_correlation,
                "chance": entry.chance,
                "models_above_chance": entry.models_above_chance,
                "above_chance_from_b": entry.above_chance_from_b,
                "items": entry.items,
                **_by_items(summary, entry),
                "noise_free_quality": entry.noise_free_quality,
                **as_columns(entry.noise_free_quality_interval, "noise_free_low", "noise_free_high"),
                **{f"size {size}": value for size, value in entry.signal_quality_by_size.items()},
            }
        )
    return pd.DataFrame(rows)


def _model_frame(summary: SignalSummary) -> pd.DataFrame:
    rows = []
    for model, by_benchmark in summary.models.items():
        for name, entry in by_benchmark.items():
            rows.append(
                {
                    "model": model,
                    "label": summary.labels[model],
                    "benchmark": name,
                    "monotonicity": entry.monotonicity,
                    "autocorrelation": entry.autocorrelation,
                    "signal_quality": entry.signal_quality,
                    **as_columns(entry.signal_quality_interval),
                    "p": entry.signal_quality_null_p,
                    "walk_p": entry.signal_quality_walk_p,
                    "above_chance_from_b": entry.above_chance_from_b,
                    "rank_correlation": entry.rank_correlation,
                    "net_rise": entry.net_rise,
                    "checkpoints": entry.checkpoints,
                }
            )
    return pd.DataFrame(rows)
