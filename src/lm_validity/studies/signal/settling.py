"""The order of the models along training: does an early order last, and from when on is it the final one?"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lm_validity.missing import Missing, is_known, known
from lm_validity.studies.signal.benchmark import (
    CHOSEN,
    FITTED,
    SKIPPED,
    UNKNOWN_TOKENS,
    BenchmarkCurves,
    Bounds,
    Found,
    Pair,
    SignalData,
    Value,
    bounds,
    discoveries,
    known_bounds,
    p_value,
)
from lm_validity.studies.signal.statistics.quality import QUANTILE
from lm_validity.studies.signal.statistics.ranking import (
    RankingWindows,
    agreement_with_last,
    difference_errors,
    separable_pairs,
    settled_from,
    settling_interval,
    size_ordering,
)

STABLE_TAU = 0.8  # a ranking that differs from the final one in one pair of ten
ONE_LATER = "The order at the last checkpoint is compared with that of other later checkpoints, and there is none."


# ----------------------------------------------------------------------------------------------------------------------
# Ranking consistency: whether an early order lasts.


@dataclass(frozen=True)
class PairOrder:
    """Ranking consistency of one pair of models. with_last: compared with the order at the last checkpoint."""

    size: str
    first: str
    second: str
    value: Value
    base_gap: Value
    with_last: Value
    base_checkpoints: int
    later_checkpoints: int


@dataclass(frozen=True)
class WindowConsistency:
    """Ranking consistency under one kind of windows, mean over pairs of one size, then over sizes.

    interval: over checkpoints; coin_flip_interval: the level of coins.
    """

    value: Value
    by_size: dict[str, Value]
    interval: Bounds
    item_interval: Bounds
    with_last: Value
    coin_flip_interval: Bounds
    coin_flip_p: Value
    pairs: list[PairOrder]


@dataclass(frozen=True)
class FittedConsistency(WindowConsistency):
    """Under windows that are fitted to each pair's training; `lasts`: longer than coin tosses would."""

    lasts: Found


@dataclass(frozen=True)
class Consistency(WindowConsistency):
    """Under the chosen windows and the fitted ones; `lasts`: longer than coin tosses would."""

    fitted: FittedConsistency
    lasts: Found


def consistencies(data: SignalData) -> dict[str, Consistency]:
    """Ranking consistency by benchmark, and whether the order lasts longer than coin tosses would, on which."""
    chosen, fitted = (
        {name: _consistency(benchmark, kind) for name, benchmark in data.benchmarks.items()}
        for kind in (CHOSEN, FITTED)
    )
    lasts, fitted_lasts = (
        discoveries({name: entry.coin_flip_p for name, entry in entries.items()}) for entries in (chosen, fitted)
    )
    return {
        name: Consistency(
            **vars(entry),
            fitted=FittedConsistency(**vars(fitted[name]), lasts=fitted_lasts[name]),
            lasts=lasts[name],
        )
        for name, entry in chosen.items()
    }


def _consistency(benchmark: BenchmarkCurves, kind: str) -> WindowConsistency:
    pairs, windows = benchmark.ranking_pairs[kind], benchmark.windows[kind]
    scores, draws = benchmark.scores.orders[kind], benchmark.order_draws[kind]
    reason = _no_consistency(benchmark, pairs, windows)
    value = known(float(scores.value), reason)
    p = p_value(value, draws.coins)
    coins: Bounds = p if isinstance(p, Missing) else SKIPPED
    if is_known(p) and not isinstance(draws.coins, Missing):
        low, high = np.quantile(draws.coins, [0.025, 0.975])
        coins = float(low), float(high)
    of_pairs = []
    for pair, score in zip(pairs, scores.pairs, strict=True):
        why_pair = _no_consistency(benchmark, [pair], windows)
        of_pairs.append(
            PairOrder(
                size=pair.size,
                first=pair.first,
                second=pair.second,
                value=known(float(score.value), why_pair),
                base_gap=known(float(score.base_gap), why_pair),
                with_last=known(float(score.with_last), ONE_LATER if pair.windows.later.any() else why_pair),
                base_checkpoints=int(pair.windows.base.sum()),
                later_checkpoints=int(pair.windows.later.sum()),
            )
        )
    return WindowConsistency(
        value=value,
        by_size={
            size: known(float(mean), _no_consistency(benchmark, [pair for pair in pairs if pair.size == size], windows))
            for size, mean in scores.by_size.items()
        },
        interval=bounds(value, draws.blocks, 0.0, 1.0),
        item_interval=bounds(value, benchmark.draws(lambda resampled: resampled.orders[kind].value), 0.0, 1.0),
        with_last=known(float(scores.with_last), reason if isinstance(value, Missing) else ONE_LATER),
        coin_flip_interval=coins,
        coin_flip_p=p,
        pairs=of_pairs,
    )


def _no_consistency(benchmark: BenchmarkCurves, pairs: list[Pair], windows: RankingWindows) -> str:
    """Why pairs have no ranking consistency, where they have none."""
    if not pairs:
        return "There are no two architectures of one size (columns size and architecture of the models sheet)."
    reasons = [pair.alignment.reason for pair in pairs]
    if reasons[0] is not None and None not in reasons:
        return reasons[0]
    if not windows.relative and all(np.isnan(curve.tokens_b).all() for curve in benchmark.curves.values()):
        return "The windows are in billions of tokens, and tokens are unknown."
    ends_of = {"base": windows.base, "later": windows.later}
    empty = [kind for index, kind in enumerate(ends_of) if not any(pair.windows[index].any() for pair in pairs)]
    if not empty:
        return "No pair has a checkpoint in the base window and one in the later window."
    ends = ends_of[empty[0]]
    low, high = (end / 10 for end in ends) if windows.relative else ends  # relative: of a training of 1000 billion
    unit = "% of the training" if windows.relative else " billion tokens"
    return f"No checkpoint lies in the {empty[0]} window ({low:g} to {high:g}{unit})."


# ----------------------------------------------------------------------------------------------------------------------
# When the order settles.


class Settled(NamedTuple):
    """From when on an order stays, and when it may have settled given the noise of items."""

    value: Value
    interval: Bounds


@dataclass(frozen=True)
class Settling:
    """The order of the models along training, over the points that they have in common.

    Their final order is that at the last of these points, which need not be the end of any training. interpolated:
    models between checkpoints, by point. separable_pairs: those whose scores at the last point differ by more than
    noise; settled_from_b is as nearly_stable_from_b, over these.
    """

    models: list[str]
    tokens_b: np.ndarray | Missing
    interpolated: list[int]
    agreement_with_last: np.ndarray
    stable_from_b: Value
    stable_from_interval_b: Bounds
    nearly_stable_tau: float
    nearly_stable_from_b: Value
    nearly_stable_from_interval_b: Bounds
    pairs: int
    separable_pairs: int | Missing
    settled_from_b: Value
    settled_from_interval_b: Bounds
    size_pairs: int
    size_order_share: np.ndarray | Missing
    size_gap: np.ndarray | Missing
    separated_from_b: Value

    def nearly_settled(self, *, separable: bool) -> Settled:
        """From when on 9 of 10 pairs stay in their final order: of the separable ones, or of all."""
        if separable:
            return Settled(self.settled_from_b, self.settled_from_interval_b)
        return Settled(self.nearly_stable_from_b, self.nearly_stable_from_interval_b)


def settling(benchmark: BenchmarkCurves) -> Settling | Missing:
    """When the order of the benchmark's models settles; it needs two models with two points in common."""
    noise, alignment, larger = benchmark.noise, benchmark.alignment, benchmark.larger_pairs
    if len(benchmark.scored) < 2 or len(alignment.progress) < 2:
        too_few = "An order along training needs two models with two points of training in common."
        return Missing(alignment.reason or too_few)
    curves, tokens = benchmark.at_common_points(benchmark.values), alignment.tokens_b
    unknown = bool(np.isnan(tokens).any())
    deviations = noise if isinstance(noise, Missing) else difference_errors(noise)
    all_pairs = np.ones(len(curves) * (len(curves) - 1) // 2, dtype=bool)
    separable = deviations if isinstance(deviations, Missing) else separable_pairs(curves[:, -1], deviations[:, -1])
    tied = UNKNOWN_TOKENS if unknown else "Models tie at the last common point: their order cannot settle."
    equal = UNKNOWN_TOKENS if unknown else "No two models can be told apart at the last common point."

    def settled_of(pairs: np.ndarray | Missing, threshold: float, reason: str) -> Settled:
        """From when on the order of the pairs stays, and when it may have settled, given the noise of items."""
        if isinstance(pairs, Missing):
            return Settled(pairs, pairs)
        value = known(float(settled_from(curves, tokens, pairs, threshold)), reason)
        if isinstance(value, Missing):
            return Settled(value, value)
        if isinstance(deviations, Missing):
            return Settled(value, deviations)
        return Settled(value, known_bounds(*settling_interval(curves, deviations, tokens, pairs, threshold), equal))

    stable = settled_of(all_pairs, 1.0, tied)
    nearly = settled_of(all_pairs, STABLE_TAU, tied)
    settled = settled_of(separable, STABLE_TAU, equal)
    by_size = size_ordering(curves, larger) if larger else Missing("No two models differ in size only.")
    return Settling(
        models=benchmark.scored,
        tokens_b=Missing(UNKNOWN_TOKENS) if unknown else tokens,
        interpolated=[int(curves_between) for curves_between in alignment.interpolated],
        agreement_with_last=agreement_with_last(curves),
        stable_from_b=stable.value,
        stable_from_interval_b=stable.interval,
        nearly_stable_tau=STABLE_TAU,
        nearly_stable_from_b=nearly.value,
        nearly_stable_from_interval_b=nearly.interval,
        pairs=len(all_pairs),
        separable_pairs=separable if isinstance(separable, Missing) else int(separable.sum()),
        settled_from_b=settled.value,
        settled_from_interval_b=settled.interval,
        size_pairs=len(larger),
        size_order_share=by_size if isinstance(by_size, Missing) else by_size.share,
        size_gap=by_size if isinstance(by_size, Missing) else by_size.gap,
        separated_from_b=by_size if isinstance(by_size, Missing) else _separated_from(benchmark, by_size.gap),
    )


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
