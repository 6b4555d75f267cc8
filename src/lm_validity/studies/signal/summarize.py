"""From the results of all benchmarks to the summary."""

from typing import Any

import numpy as np
import pandas as pd

from lm_validity.config.sections import SignalConventions
from lm_validity.studies.signal.analysis import BenchmarkResult
from lm_validity.studies.signal.anchors import criteria_of
from lm_validity.studies.signal.curves import LearningCurves
from lm_validity.studies.signal.entries import (
    benchmark_quality,
    compliance_score,
    consistency_of,
    model_quality,
    overall_p,
)
from lm_validity.studies.signal.items import ItemAnalysis, too_few_checkpoints
from lm_validity.studies.signal.scores import windows_of
from lm_validity.studies.signal.settling import ranking_of
from lm_validity.studies.signal.statistics.quality import fewest_checkpoints, weight_sensitivity
from lm_validity.studies.signal.statistics.ranking import E2LM_WINDOWS, RankingWindows
from lm_validity.studies.signal.statistics.resampling import noise_levels
from lm_validity.studies.signal.summary import (
    Conventions,
    NoiseLevel,
    Progress,
    SignalSummary,
    WeightShare,
    Windows,
    bounds,
)
from lm_validity.summaries import Missing, known, number
from lm_validity.words import listing, scale_of

WEIGHT_DRAWS = 10_000
NOISE_DRAWS = 20_000
E2LM_LATER_CHECKPOINTS = 47  # of the competition's ranking consistency, 222.8 to 994.5 billion tokens


def summarize_results(
    learning: LearningCurves,
    results: dict[str, BenchmarkResult],
    options: SignalConventions,
    resamples: int,
) -> SignalSummary:
    """The summary of all benchmarks."""
    incomplete = "The overall score needs signal quality, ranking consistency and compliance."
    overall = {name: known(float(result.scores.overall), incomplete) for name, result in results.items()}
    found = [result.items for result in results.values() if isinstance(result.items, ItemAnalysis)]
    progress, windows = _progress(results), windows_of(learning, options)
    return SignalSummary(
        selection=learning.selection,
        conventions=_conventions(options, windows, resamples),
        models={
            model: {
                name: model_quality(result, model, options)
                for name, result in results.items()
                if model in result.design.curves
            }
            for model in learning.models
        },
        benchmarks={name: benchmark_quality(result, options) for name, result in results.items()},
        ranking_consistency={name: consistency_of(result) for name, result in results.items()},
        compliance={name: compliance_score(result, options) for name, result in results.items()},
        overall=overall,
        overall_interval={
            name: bounds(overall[name], result.draws(lambda scores: scores.overall)) for name, result in results.items()
        },
        overall_null_p={name: overall_p(result, overall[name], options) for name, result in results.items()},
        weight_sensitivity=_sensitivity(results),
        ranking={name: ranking_of(result) for name, result in results.items()},
        criteria={name: criteria_of(result, learning.facts, resamples) for name, result in results.items()},
        item_metrics=_of_items(results, "metrics"),
        filters=_of_items(results, "trials"),
        subgroups=_of_items(results, "subgroups"),
        standard_errors=learning.error_checks,
        notes=(
            *learning.notes,
            *(note for items in found for note in items.notes),
            *_later_checkpoints(results, windows),
            *_constant_curves(results),
        ),
        labels=learning.facts["label"].to_dict(),
        curves=pd.concat([_drawn(learning, result, progress) for result in results.values()], ignore_index=True),
        progress=progress,
        noise=_noise_level(results, options),
    )


def _conventions(options: SignalConventions, windows: RankingWindows, resamples: int) -> Conventions:
    parts = ("signal_quality", "ranking_consistency", "compliance")
    return Conventions(
        convention=options.convention,
        ties=options.ties,
        normalisation=options.normalisation,
        weights=dict(zip(parts, options.weights, strict=True)),
        windows_b=Windows(windows.base, windows.later, windows.relative),
        resamples=resamples,
    )


def _of_items(results: dict[str, BenchmarkResult], part: str) -> dict[str, Any]:
    """A part of every benchmark's item analysis, or why there is none."""
    return {
        name: result.items if isinstance(result.items, Missing) else getattr(result.items, part)
        for name, result in results.items()
    }


def _sensitivity(results: dict[str, BenchmarkResult]) -> dict[str, WeightShare] | Missing:
    """Over the benchmarks with all three parts, where there are at least two."""
    parts = {
        name: np.array(
            [result.scores.mean_quality, result.scores.consistency.value, result.scores.compliance], dtype=float
        )
        for name, result in results.items()
    }
    complete = [name for name, row in parts.items() if np.isfinite(row).all()]
    if len(complete) < 2:
        return Missing("The sensitivity to the weights needs two benchmarks with all three parts.")
    components = np.stack([parts[name] for name in complete])
    found = weight_sensitivity(components, WEIGHT_DRAWS, np.random.default_rng(0))
    return {
        name: WeightShare(found.share_first[i], [found.rank_low[i], found.rank_high[i]])
        for i, name in enumerate(complete)
    }


def _later_checkpoints(results: dict[str, BenchmarkResult], windows: RankingWindows) -> tuple[str, ...]:
    """How many checkpoints ranking consistency rests on, where they are fewer than the competition's."""
    pairs = [pair for result in results.values() for pair in result.design.ranking_pairs]
    counts = sorted({int(pair.windows[1].sum()) for pair in pairs if pair.counts})
    if not counts or counts[0] >= E2LM_LATER_CHECKPOINTS:
        return ()
    ends = counts[0] if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    # other windows than the competition's hold other numbers of its checkpoints
    beside = (
        f"; the competition had {E2LM_LATER_CHECKPOINTS} up to 1000 billion tokens, which are not released"
        if windows == E2LM_WINDOWS
        else ""
    )
    return (f"Ranking consistency rests on {ends} later checkpoints per pair{beside}.",)


def _constant_curves(results: dict[str, BenchmarkResult]) -> tuple[str, ...]:
    constant = [
        f"{model} on {name}"
        for name, result in results.items()
        for model, quality in result.scores.quality.items()
        if result.design.selected[model].any() and quality.degenerate
    ]
    return (f"Constant curves, scored 0: {listing(constant)}.",) if constant else ()


def _progress(results: dict[str, BenchmarkResult]) -> Progress:
    """Billions, millions or thousands of tokens, by the longest training; iterations where tokens are unknown."""
    curves = [curve for result in results.values() for curve in result.design.curves.values()]
    if any(np.isnan(curve.tokens_b).any() for curve in curves):
        return Progress("Iterations or checkpoints", 1.0, "steps", in_tokens=False)
    scale, unit = scale_of(max(curve.tokens_b[-1] for curve in curves))
    return Progress(f"{unit.capitalize()} tokens", scale, f"{unit} tokens")


def _drawn(learning: LearningCurves, result: BenchmarkResult, progress: Progress) -> pd.DataFrame:
    """A benchmark's curves in the metric's own direction: a row per model and checkpoint, with its 95% band."""
    sign, curves = learning.direction[result.design.benchmark], result.design.curves
    resampled = result.resampled
    bands = [
        np.full((2, len(curve.values)), np.nan)
        if isinstance(resampled, Missing)
        else np.sort(sign * np.quantile(resampled[model], [0.025, 0.975], axis=0), axis=0)
        for model, curve in curves.items()
    ]
    low, high = np.concatenate(bands, axis=1)
    labels = learning.facts["label"].to_dict()
    columns = {
        "benchmark": result.design.benchmark,
        "model": [labels[model] for model, curve in curves.items() for _ in curve.values],
        "checkpoint": [name for curve in curves.values() for name in curve.checkpoints],
        "progress": np.concatenate([curve.progress for curve in curves.values()]) * progress.scale,
        "score": sign * np.concatenate([curve.values for curve in curves.values()]),
        "low": low,
        "high": high,
        "selected": np.concatenate([result.design.selected[model] for model in curves]),
        "chance": number(result.chance),
    }
    return pd.DataFrame(columns)


def _noise_level(results: dict[str, BenchmarkResult], options: SignalConventions) -> NoiseLevel | Missing:
    """White noise and random walks of the commonest number of selected checkpoints."""
    counts = [int(at.sum()) for result in results.values() for at in result.design.selected.values()]
    counts = [number for number in counts if number >= fewest_checkpoints(options.convention)]
    if not counts:
        return Missing(too_few_checkpoints(options))
    commonest = max(set(counts), key=counts.count)
    generator = np.random.default_rng(0)
    return NoiseLevel(commonest, *noise_levels(commonest, NOISE_DRAWS, generator, options.convention))
