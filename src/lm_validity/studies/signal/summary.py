"""From scores to summary.json of the signal report."""

import numpy as np

from lm_validity.studies.signal.analysis import (
    BenchmarkResult,
    interval_of,
    overall_interval,
    quality_interval,
    quality_p,
)
from lm_validity.studies.signal.anchors import criteria_entry
from lm_validity.studies.signal.curves import LearningCurves
from lm_validity.studies.signal.filters.apply import trial_json
from lm_validity.studies.signal.scores import (
    STABLE_TAU,
    Options,
    compliance_of,
    mean_of_known,
    point_values,
    ranked_curves,
)
from lm_validity.studies.signal.statistics.compliance import NORMALISATIONS
from lm_validity.studies.signal.statistics.overall import WeightSensitivity, per_item_score_ratio, weight_sensitivity
from lm_validity.studies.signal.statistics.quality import net_rise
from lm_validity.studies.signal.statistics.ranking import agreement_with_last, size_ordering
from lm_validity.studies.signal.statistics.resampling import Interval, exceedance_p, resampling_interval
from lm_validity.studies.signal.statistics.splits import FilterTrial

WEIGHT_DRAWS = 10_000


def signal_summary(
    learning: LearningCurves, results: dict[str, BenchmarkResult], options: Options, resamples: int, notes: list[str]
) -> dict:
    """The dictionary of summary.json (numpy types and NaN are replaced on writing)."""
    sensitivity = _sensitivity(results)
    return {
        "selection": learning.selection,
        "conventions": {
            "convention": options.convention,
            "ties": options.ties,
            "normalisation": options.normalisation,
            "weights": dict(
                zip(("signal_quality", "ranking_consistency", "compliance"), options.weights.as_array(), strict=True)
            ),
            "windows_b": {
                "base": options.windows.base,
                "later": options.windows.later,
                "relative": options.windows.relative,
            },
            "resamples": resamples,
        },
        "models": {
            model: {
                name: _model_entry(result, model) for name, result in results.items() if model in result.design.curves
            }
            for model in learning.models
        },
        "benchmarks": {name: _benchmark_entry(result) for name, result in results.items()},
        "ranking_consistency": {name: _consistency_entry(result) for name, result in results.items()},
        "compliance": {name: _compliance_entry(result, options) for name, result in results.items()},
        "overall": {name: result.scores.overall for name, result in results.items()},
        "overall_interval": {name: _bounds(overall_interval(result)) for name, result in results.items()},
        "overall_null_p": {name: _overall_p(result, options) for name, result in results.items()},
        "weight_sensitivity": _sensitivity_entry(sensitivity),
        "ranking": {name: _ranking_entry(result) for name, result in results.items()},
        "criteria": {name: criteria_entry(result, learning.facts) for name, result in results.items()},
        "item_metrics": {name: _metric_entries(result) for name, result in results.items() if result.items},
        "filters": {name: _filter_entries(result) for name, result in results.items() if result.items},
        "subgroups": {name: _subgroup_entries(result) for name, result in results.items() if result.items},
        "notes": notes,
    }


def _bounds(interval: Interval) -> list[float] | None:
    return [interval.low, interval.high] if np.isfinite(interval.low) else None


def _model_entry(result: BenchmarkResult, model: str) -> dict:
    quality = result.scores.quality[model]
    resampled = None if result.resampled is None else result.resampled.quality[model]
    curve = result.design.curves[model].at(result.design.selected[model])
    null = result.quality_null[model]

    def bounds(name: str, minimum: float = 0.0):
        draws = None if resampled is None else getattr(resampled, name)
        return _bounds(interval_of(getattr(quality, name), draws, minimum, 1.0))

    known = null.size and np.isfinite(null).all()
    return {
        "monotonicity": quality.monotonicity,
        "monotonicity_interval": bounds("monotonicity"),
        "rank_correlation": quality.rank_correlation,
        "autocorrelation": quality.autocorrelation,
        "autocorrelation_interval": bounds("autocorrelation"),
        "signal_quality": quality.signal_quality,
        "signal_quality_interval": bounds("signal_quality"),
        "signal_quality_null_p": exceedance_p(float(quality.signal_quality), null),
        "signal_quality_null_mean": null.mean() if known else None,
        "signal_quality_null_95": np.quantile(null, 0.95) if known else None,
        "checkpoints": len(curve.values),
        "net_rise": net_rise(curve.values) if len(curve.values) else None,
        "degenerate": bool(quality.degenerate) if len(curve.values) else None,
    }


def _benchmark_entry(result: BenchmarkResult) -> dict:
    by_size = result.scores.quality_by_size
    resampled = None if result.resampled is None else result.resampled.quality_by_size
    return {
        "signal_quality": result.scores.mean_quality,
        "signal_quality_interval": _bounds(quality_interval(result)),
        "signal_quality_null_p": quality_p(result),
        "rank_correlation": mean_of_known([result.scores.quality[m].rank_correlation for m in result.design.scored]),
        "signal_quality_by_size": by_size,
        "signal_quality_by_size_interval": {
            size: _bounds(interval_of(value, None if resampled is None else resampled[size], 0.0, 1.0))
            for size, value in by_size.items()
        },
        "models": len(result.design.scored),
        "items": result.items.items or None if result.items else None,
        "chance": result.chance,
    }


def _consistency_entry(result: BenchmarkResult) -> dict:
    scores, coin = result.scores, result.consistency_coin
    resampled = None if result.resampled is None else result.resampled.consistency
    details = [
        {
            "size": pair.size,
            "first": pair.first,
            "second": pair.second,
            "value": found.value,
            "base_gap": found.base_gap,
            "with_last": found.with_last,
            "base_checkpoints": found.base_checkpoints,
            "later_checkpoints": found.later_checkpoints,
        }
        for pair, found in zip(result.design.ranking_pairs, scores.pairs, strict=True)
    ]
    known = coin.size and np.isfinite(coin).all()
    return {
        "value": scores.consistency,
        "by_size": scores.consistency_by_size,
        "interval": _bounds(interval_of(scores.consistency, result.consistency_blocks, 0.0, 1.0)),
        "item_interval": _bounds(interval_of(scores.consistency, resampled, 0.0, 1.0)),
        "with_last": scores.with_last,
        "coin_flip_interval": list(np.quantile(coin, [0.025, 0.975])) if known else None,
        "coin_flip_p": exceedance_p(float(scores.consistency), coin),
        "pairs": details,
    }


def _compliance_entry(result: BenchmarkResult, options: Options) -> dict:
    resampled, scores = result.resampled, result.scores
    null = None if result.items is None else result.items.compliance_null
    return {
        "value": scores.compliance,
        "interval": _bounds(interval_of(scores.compliance, None if resampled is None else resampled.compliance, 0.0)),
        "null_p": exceedance_p(float(scores.compliance), np.array([]) if null is None else null),
        "raw_gap": scores.gap,
        "raw_gap_interval": _bounds(interval_of(scores.gap, None if resampled is None else resampled.gap)),
        "normalisation": options.normalisation,
        "normalisations": {
            name: compliance_of(result.design, point_values(result.design), name, result.chance)[0]
            for name in NORMALISATIONS
        },
        "pairs": [[pair.first, pair.second] for pair in result.design.compliance_pairs],
        "checkpoints": [len(pair.first_at) for pair in result.design.compliance_pairs],
    }


def _overall_p(result: BenchmarkResult, options: Options) -> float:
    """p of the overall score when all three parts follow their own nulls, drawn independently."""
    null = None if result.items is None else result.items.compliance_null
    if null is None or result.consistency_coin.size != null.size:
        return float("nan")
    quality = mean_of_known([result.quality_null[model] for model in result.design.scored])
    draws = np.stack([quality, result.consistency_coin, null], axis=-1) @ options.weights.as_array()
    return exceedance_p(float(result.scores.overall), draws)


def _ranking_entry(result: BenchmarkResult) -> dict | None:
    """The order of the models along training, over the checkpoints that they have in common."""
    design, scores = result.design, result.scores
    if len(design.ranked) < 2 or len(design.ranked_tokens) < 2:
        return None
    curves = ranked_curves(design, point_values(design))
    ordering = size_ordering(curves, design.larger_pairs)
    resampled, end = result.resampled, float(design.ranked_tokens[-1])
    return {
        "models": design.ranked,
        "tokens_b": None if np.isnan(design.ranked_tokens).any() else design.ranked_tokens,
        "agreement_with_last": agreement_with_last(curves),
        "stable_from_b": scores.stable_from,
        "stable_from_interval_b": _percentiles(None if resampled is None else resampled.stable_from, end),
        "nearly_stable_tau": STABLE_TAU,
        "nearly_stable_from_b": scores.nearly_stable_from,
        "nearly_stable_from_interval_b": _percentiles(None if resampled is None else resampled.nearly_stable_from, end),
        "size_pairs": ordering.pairs,
        "size_order_share": ordering.share if ordering.pairs else None,
        "size_gap": ordering.gap if ordering.pairs else None,
        "separated_from_b": _separated_from(result, ordering.gap) if ordering.pairs else None,
    }


def _percentiles(resampled: np.ndarray | None, end: float) -> list[float] | None:
    """95% percentiles of a token count over item resamples; None where it is unknown in all of them.

    A resample without one (its models tie at the last checkpoint) never settles: it counts as the end of training.
    """
    if resampled is None or resampled.size == 0 or np.isnan(resampled).all():
        return None
    known = np.where(np.isnan(resampled), end, resampled)
    return list(np.quantile(known, [0.025, 0.975], method="nearest"))


def _separated_from(result: BenchmarkResult, gap: np.ndarray) -> float | None:
    """Tokens from which larger models are ahead by more than chance of items for good; None without resamples."""
    if result.items is None or result.items.resampled is None:
        return None
    draws = size_ordering(ranked_curves(result.design, result.items.resampled), result.design.larger_pairs).gap
    low = np.array([resampling_interval(float(value), draws[:, at]).low for at, value in enumerate(gap)])
    for_good = np.flip(np.logical_and.accumulate(np.flip(low > 0)))
    return float(result.design.ranked_tokens[np.argmax(for_good)]) if for_good.any() else None


def _metric_entries(result: BenchmarkResult) -> dict:
    return {
        each.metric: {
            "signal_quality": each.quality.value,
            "interval": _bounds(each.quality),
            "less_accuracy": None if each.less_accuracy is None else each.less_accuracy.value,
            "less_accuracy_interval": None if each.less_accuracy is None else _bounds(each.less_accuracy),
        }
        for each in result.items.metrics
    }


def _filter_entries(result: BenchmarkResult) -> list[dict]:
    return [
        {
            "filter": each.filter,
            "score": each.score,
            "design": each.design,
            **trial_json(each.trial),
            "length_dependence": each.length_dependence,
            "per_item_score_ratio": _per_item_score_ratio(each.trial),
        }
        for each in result.items.trials
    ]


def _per_item_score_ratio(trial: FilterTrial) -> float:
    """Held-out quality per item that was kept, over that of all items; NaN where nothing was kept."""
    if not trial.kept_in_sample or not trial.unfiltered:
        return float("nan")
    return per_item_score_ratio(trial.held_out, trial.kept_in_sample, trial.unfiltered, trial.items)


def _subgroup_entries(result: BenchmarkResult) -> list[dict]:
    return [
        {
            "kind": each.kind,
            "name": each.name,
            "items": each.items,
            "signal_quality": each.quality.value,
            "interval": _bounds(each.quality),
            "last_score": each.last_score,
            "last_log_likelihood_per_token": each.last_log_likelihood,
        }
        for each in result.items.subgroups
    ]


def _sensitivity(results: dict[str, BenchmarkResult]) -> tuple[list[str], WeightSensitivity] | None:
    """Over the benchmarks with all three parts, where there are at least two."""
    parts = {
        name: np.array([result.scores.mean_quality, result.scores.consistency, result.scores.compliance], dtype=float)
        for name, result in results.items()
    }
    complete = [name for name, row in parts.items() if np.isfinite(row).all()]
    if len(complete) < 2:
        return None
    components = np.stack([parts[name] for name in complete])
    return complete, weight_sensitivity(components, WEIGHT_DRAWS, np.random.default_rng(0))


def _sensitivity_entry(sensitivity: tuple[list[str], WeightSensitivity] | None) -> dict | None:
    if sensitivity is None:
        return None
    names, found = sensitivity
    return {
        name: {"share_first": found.share_first[i], "rank_interval": [found.rank_low[i], found.rank_high[i]]}
        for i, name in enumerate(names)
    }
