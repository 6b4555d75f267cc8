"""Scores of items, and splits of models on which filters are chosen and judged."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lm_validity.config.sections import SignalConventions
from lm_validity.studies.signal.statistics import quality
from lm_validity.studies.signal.statistics.quality import Controls, Curves

# ----------------------------------------------------------------------------------------------------------------------
# Scores of single multiple-choice items from the log-likelihoods of their choices.
#
# Notation: ll_i = sum_t log p(y_t | prompt, y_<t) of choice i in nats, g the gold choice, |c_i| its length in
# tokens or characters. Arrays have shape (..., items, choices); choices that an item does not have are NaN.
# All are higher for a better model.


def _of_gold(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    index = np.broadcast_to(gold, values.shape[:-1])[..., None]
    return np.take_along_axis(values, index, axis=-1)[..., 0]


def _distractors(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """The values with the gold choice's made NaN."""
    return np.where(np.arange(values.shape[-1]) == gold[:, None], np.nan, values)


def _accuracy(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    chosen = np.argmax(np.where(np.isnan(values), -np.inf, values), axis=-1)
    correct = (chosen == gold).astype(float)
    return np.where(np.isnan(_of_gold(values, gold)), np.nan, correct)


def _log_probability_gap(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    wrong = _distractors(values, gold)
    count = np.count_nonzero(~np.isnan(wrong), axis=-1)
    total = np.nansum(wrong, axis=-1)
    mean = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return np.asarray(_of_gold(values, gold) - mean)


Score = Callable[[np.ndarray, np.ndarray], np.ndarray]


class ItemMetric(NamedTuple):
    """How one item score is computed, of ll_i or ll_i / |c_i| and the gold choices; `per`: token or character, the
    lengths it divides by."""

    score: Score
    per: str | None


_SCORES: dict[str, Score] = {
    "accuracy": _accuracy,
    "log_likelihood": _of_gold,
    "log_probability_gap": _log_probability_gap,
    # fmax skips NaN; NaN where every distractor is
    "confidence_margin": lambda values, gold: _of_gold(values, gold) - np.fmax.reduce(_distractors(values, gold), -1),
    "probability": lambda values, gold: np.exp(_of_gold(values, gold)),
}
METRICS = {
    f"{name}_per_{per}" if per else name: ItemMetric(score, per)
    for name, score in _SCORES.items()
    for per in (None, "token", "character")
}


def item_scores(metric: str, loglikelihoods: np.ndarray, gold: np.ndarray, lengths: np.ndarray | None) -> np.ndarray:
    """One score an item: shape (..., items) for `loglikelihoods` (..., items, choices) and `gold` (items,).

    `lengths` are tokens or characters of the choices, as `METRICS[metric].per` says, and broadcast
    against the log-likelihoods. With ll_i replaced by ll_i / |c_i| where a length is used:

        accuracy                  1 if ll_g is the largest (of equal ones the first counts, as in lm-eval), else 0
        log_likelihood            ll_g; per token it is CLL = (log p(q, a) - log p(q)) / |a|
        log_probability_gap       ll_g - mean_{i != g} ll_i
        confidence_margin         ll_g - max_{i != g} ll_i
        probability               exp ll_g

    Sources: accuracies as in lm-eval; gap, margin and CLL: NeurIPS 2025 E2LMC (teams Morai, Noor,
    Shaikespear); probability: DataDecide (arXiv 2504.11393). An item with a single choice has no
    distractor: NaN. lm-eval's `acc_norm` divides by characters.
    """
    score, per = METRICS[metric]
    if per is None:
        return score(loglikelihoods, gold)
    assert lengths is not None, f"{metric} needs the choices' lengths in {per}s"
    return score(loglikelihoods / lengths, gold)


# ----------------------------------------------------------------------------------------------------------------------
# Filters judged where they were not fitted.
#
# A filter that keeps the items whose scores rose makes any benchmark rise on the checkpoints it looked at: of
# pure noise it makes a signal quality above 0.9. So items are chosen on some models (or checkpoints) and
# scored on others, and a random choice of as many items is scored beside it.

# Which checkpoints of which models: pairs of a model's index and indices of its checkpoints
Rows = tuple[tuple[int, np.ndarray], ...]
# The items (items,), boolean, that a filter keeps when it sees these rows only
Fit = Callable[[Rows], np.ndarray]


class Fold(NamedTuple):
    """One split: rows to fit on and rows to score."""

    fit: Rows
    score: Rows


class FilterTrial(NamedTuple):
    """Mean signal quality over models of a filtered benchmark, by where the filter was fitted.

    `in_sample` is fitted on the curves that are scored, `held_out` on others. `control_high` is the 97.5th percentile
    of random choices of as many items, scored on the same held-out curves. A filter that beats it has found something
    that is not in the numbers it was fitted on.
    """

    unfiltered: float
    in_sample: float
    held_out: float
    control_mean: float
    control_high: float
    p: float  # (1 + controls at least as high as held_out) / (1 + controls)
    useful: bool
    items: int
    kept_in_sample: int


def leave_one_group_out(groups: list[str | None], checkpoints: list[int]) -> list[Fold]:
    """Folds that score one group's models (an architecture, a size) and fit on the other groups'.

    `groups` and `checkpoints` have one entry per model: its group, None where it takes no part, and its number of
    checkpoints. No fold for fewer than two groups.
    """
    rows = [(name, (model, np.arange(checkpoints[model]))) for model, name in enumerate(groups) if name is not None]
    names = sorted({name for name, _ in rows})
    return [
        Fold(tuple(row for name, row in rows if name != group), tuple(row for name, row in rows if name == group))
        for group in (names if len(names) > 1 else ())
    ]


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
        if scored.size >= quality.MINIMUM_CHECKPOINTS:
            score.append((model, scored))
            fit.append((model, np.setdiff1d(np.arange(count), scored)))
    return [Fold(tuple(fit), tuple(score))] if fit else []


def judge_filter(fit: Fit, scored: Curves, folds: list[Fold], controls: Controls) -> FilterTrial:
    """Signal quality in sample, held out, and of random choices of the same size.

    `fit` says which items the filter keeps when it sees only the given rows; `scored` are the item scores
    whose means make the learning curves, one array (checkpoints, items) a model. Quality is averaged over the
    models of each fold, then over folds by their number of models.
    """
    items = scored[0].shape[1]
    rows_scored = {(model, tuple(rows)) for fold in folds for model, rows in fold.score}
    in_sample_rows = tuple((model, np.array(rows)) for model, rows in sorted(rows_scored))
    in_sample_kept = fit(in_sample_rows)
    weights = np.array([len(fold.score) for fold in folds], dtype=float)
    weights /= weights.sum()

    unfiltered, held_out, control, options = 0.0, 0.0, np.zeros(controls.number), controls.options
    for weight, fold in zip(weights, folds, strict=True):
        filter_fitted = fit(fold.fit)
        curves = [scored[model][checkpoints] for model, checkpoints in fold.score]
        unfiltered += weight * mean_quality(curves, np.ones(items, dtype=bool), options)
        held_out += weight * mean_quality(curves, filter_fitted, options)
        control += weight * quality.random_items_quality(curves, int(filter_fitted.sum()), controls)
    in_sample_curves = [scored[model][checkpoints] for model, checkpoints in in_sample_rows]
    in_sample = mean_quality(in_sample_curves, in_sample_kept, options)
    p = quality.exceedance_p(held_out, control)
    return FilterTrial(
        unfiltered=float(unfiltered),
        in_sample=in_sample,
        held_out=float(held_out),
        control_mean=float(control.mean()),
        control_high=float(np.quantile(control, 0.975)),
        p=p,
        useful=bool(p <= 0.025 and held_out > unfiltered),
        items=items,
        kept_in_sample=int(in_sample_kept.sum()),
    )


def mean_quality(curves: Curves, is_kept: np.ndarray, options: SignalConventions) -> float:
    """Mean over models of the signal quality of the mean over kept items; NaN where nothing is kept."""
    if not is_kept.any():
        return float("nan")
    means = (values[:, is_kept].mean(axis=1) for values in curves)
    return float(np.mean([quality.signal_quality(mean, options).signal_quality for mean in means]))
