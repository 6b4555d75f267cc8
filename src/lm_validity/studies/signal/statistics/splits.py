"""Filters judged where they were not fitted.

A filter that keeps the items whose scores rose makes any benchmark rise on the checkpoints it looked at: of
pure noise it makes a signal quality above 0.9. So items are chosen on some models (or checkpoints) and
scored on others, and a random choice of as many items is scored beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lm_validity.studies.signal.statistics.quality import MINIMUM_CHECKPOINTS, Convention, signal_quality
from lm_validity.studies.signal.statistics.resampling import exceedance_p

# Item scores of each model: (checkpoints, items), checkpoints in order of training
Curves = list[np.ndarray]
# Which checkpoints of which models: pairs of a model's index and indices of its checkpoints
Rows = tuple[tuple[int, np.ndarray], ...]
# The items (items,), boolean, that a filter keeps when it sees these rows only
Fit = Callable[[Rows], np.ndarray]


@dataclass(frozen=True)
class Fold:
    """One split: rows to fit on and rows to score."""

    name: str
    fit: Rows
    score: Rows


@dataclass(frozen=True)
class FilterTrial:
    """Mean signal quality over models of a filtered benchmark, by where the filter was fitted.

    `in_sample` is fitted on the curves that are scored, `held_out` on others; `optimism_gap` is their
    difference. `control_high` is the 97.5th percentile of random choices of as many items, scored on the
    same held-out curves. A filter that beats it has found something that is not in the numbers it was
    fitted on.
    """

    unfiltered: float
    in_sample: float
    held_out: float
    optimism_gap: float
    control_mean: float
    control_high: float
    p: float  # (1 + controls at least as high as held_out) / (1 + controls)
    useful: bool
    items: int
    kept_in_sample: int
    kept_by_fold: dict[str, int]


def leave_one_group_out(groups: list[str], checkpoints: list[int]) -> list[Fold]:
    """Folds that score one group's models (an architecture, a size) and fit on the other groups'.

    `groups` and `checkpoints` have one entry per model: its group and its number of checkpoints. No fold
    for fewer than two groups.
    """
    everything = [np.arange(count) for count in checkpoints]
    folds = []
    for group in sorted(set(groups)) if len(set(groups)) > 1 else ():
        score = tuple((model, everything[model]) for model, name in enumerate(groups) if name == group)
        fit = tuple((model, everything[model]) for model, name in enumerate(groups) if name != group)
        folds.append(Fold(f"without {group}", fit, score))
    return folds


def disjoint_checkpoints(checkpoints: list[int]) -> list[Fold]:
    """Fold that fits on every other checkpoint of each model and scores the rest.

    The last checkpoint is scored. Autocorrelation needs eight points, so models with fewer than 16
    checkpoints are left out; no fold where none is left. Held out are moments of training, not trainings:
    what an item does in these very runs, fluctuations that last longer than a checkpoint included, is seen
    by the filter.
    """
    fit, score = [], []
    for model, count in enumerate(checkpoints):
        scored = np.arange(count)[::-1][::2][::-1]
        if scored.size >= MINIMUM_CHECKPOINTS:
            score.append((model, scored))
            fit.append((model, np.setdiff1d(np.arange(count), scored)))
    return [Fold("alternate checkpoints", tuple(fit), tuple(score))] if fit else []


def judge_filter(
    fit: Fit,
    scored: Curves,
    folds: list[Fold],
    generator: np.random.Generator,
    controls: int = 200,
    convention: Convention = "code",
) -> FilterTrial:
    """Signal quality in sample, held out, and of random choices of the same size.

    `fit` says which items the filter keeps when it sees only the given rows; `scored` are the item scores
    whose means make the learning curves, one array (checkpoints, items) a model. Quality is averaged over the
    models of each fold, then over folds by their number of models.
    """
    if not folds:
        raise ValueError("a filter is judged on at least one fold")
    items = scored[0].shape[1]
    used = {(model, tuple(rows)) for fold in folds for model, rows in fold.score}
    in_sample_rows = tuple((model, np.array(rows)) for model, rows in sorted(used))
    in_sample_kept = fit(in_sample_rows)
    weights = np.array([len(fold.score) for fold in folds], dtype=float)
    weights /= weights.sum()

    unfiltered, held_out, control = 0.0, 0.0, np.zeros(controls)
    kept_by_fold = {}
    for weight, fold in zip(weights, folds, strict=True):
        kept = fit(fold.fit)
        kept_by_fold[fold.name] = int(kept.sum())
        curves = _take(scored, fold.score)
        unfiltered += weight * mean_quality(curves, np.ones(items, dtype=bool), convention)
        held_out += weight * mean_quality(curves, kept, convention)
        control += weight * _random_quality(curves, int(kept.sum()), controls, generator, convention)
    in_sample = mean_quality(_take(scored, in_sample_rows), in_sample_kept, convention)
    known = np.isfinite(held_out) and np.isfinite(control).all() and controls > 0
    high = float(np.quantile(control, 0.975)) if known else float("nan")
    p = exceedance_p(held_out, control)
    return FilterTrial(
        unfiltered=float(unfiltered),
        in_sample=in_sample,
        held_out=float(held_out),
        optimism_gap=in_sample - float(held_out),
        control_mean=float(control.mean()) if known else float("nan"),
        control_high=high,
        p=p,
        useful=bool(known and p <= 0.025 and held_out > unfiltered),
        items=items,
        kept_in_sample=int(in_sample_kept.sum()),
        kept_by_fold=kept_by_fold,
    )


def mean_quality(curves: Curves, kept: np.ndarray, convention: Convention = "code") -> float:
    """Mean over models of the signal quality of the mean over kept items; NaN where nothing is kept."""
    if not kept.any():
        return float("nan")
    return float(
        np.mean([signal_quality(values[:, kept].mean(axis=1), convention).signal_quality for values in curves])
    )


def _take(curves: Curves, rows: Rows) -> Curves:
    return [curves[model][checkpoints] for model, checkpoints in rows]


def _random_quality(
    curves: Curves, size: int, draws: int, generator: np.random.Generator, convention: Convention
) -> np.ndarray:
    """Mean quality (draws,) of random choices of `size` items, each choice scored on all the curves."""
    items = curves[0].shape[1]
    if size == 0:
        return np.full(draws, np.nan)
    # A matrix of 0/1 choices; sums over items for all draws and checkpoints are then one product
    chosen = np.zeros((draws, items))
    for row in chosen:
        row[generator.choice(items, size=size, replace=False)] = 1.0
    return np.mean([signal_quality(chosen @ values.T / size, convention).signal_quality for values in curves], axis=0)
