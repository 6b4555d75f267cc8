"""Scores of items, and splits of models on which filters are chosen and judged."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from lm_validity.config.sections import E2LM, SignalConventions
from lm_validity.studies.signal.statistics.quality import (
    MINIMUM_CHECKPOINTS,
    exceedance_p,
    random_items_quality,
    signal_quality,
)

# ----------------------------------------------------------------------------------------------------------------------
# Scores of single multiple-choice items from the log-likelihoods of their choices.
#
# Notation: ll_i = sum_t log p(y_t | prompt, y_<t) of choice i in nats, g the gold choice, |c_i| its length in
# tokens or characters. Arrays have shape (..., items, choices); choices that an item does not have are NaN.
# Every score is oriented as `METRICS` says; all but bits per byte are higher for a better model.


def _of_gold(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    index = np.broadcast_to(gold, values.shape[:-1])[..., None]
    return np.take_along_axis(values, index, axis=-1)[..., 0]


def _distractors(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """The values with the gold choice's made NaN."""
    return np.where(np.arange(values.shape[-1]) == gold[:, None], np.nan, values)


def _best_distractor(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    # fmax skips NaN; NaN where every distractor is
    result: np.ndarray = np.fmax.reduce(_distractors(values, gold), axis=-1)
    return result


def _accuracy(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    chosen = np.argmax(np.where(np.isnan(values), -np.inf, values), axis=-1)
    correct = (chosen == gold).astype(float)
    return np.where(np.isnan(_of_gold(values, gold)), np.nan, correct)


def _log_probability_gap(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    wrong = _distractors(values, gold)
    count = np.count_nonzero(~np.isnan(wrong), axis=-1)
    total = np.nansum(wrong, axis=-1)
    mean = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    result: np.ndarray = _of_gold(values, gold) - mean
    return result


def _normalised_probability(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    # Relative to the largest, so that log-likelihoods of long answers do not all underflow to 0
    largest = np.fmax.reduce(values, axis=-1)
    total = np.nansum(np.exp(values - largest[..., None]), axis=-1)
    result: np.ndarray = np.exp(_of_gold(values, gold) - largest) / total
    return result


Score = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class ItemMetric:
    """How one item score is computed, and what must be known for it."""

    score: Score  # of ll_i, or ll_i / |c_i|, and the gold choices
    per: str | None = None  # None, "token", "character" or "byte": lengths it divides by
    higher_is_better: bool = True
    unconditional: bool = False  # needs the choices' log-likelihoods without the question


_SCORES: dict[str, Score] = {
    "accuracy": _accuracy,
    "accuracy_pmi": _accuracy,
    "log_likelihood": _of_gold,
    "log_probability_gap": _log_probability_gap,
    "confidence_margin": lambda values, gold: _of_gold(values, gold) - _best_distractor(values, gold),
    "probability": lambda values, gold: np.exp(_of_gold(values, gold)),
    "probability_margin": lambda values, gold: np.exp(_of_gold(values, gold)) - np.exp(_best_distractor(values, gold)),
    "normalised_probability": _normalised_probability,
    "pmi": _of_gold,
}
METRICS: dict[str, ItemMetric] = {
    f"{name}_per_{per}" if per else name: ItemMetric(score, per, unconditional=name.endswith("pmi"))
    for name, score in _SCORES.items()
    for per in (None, "token", "character")
    if per is None or name != "accuracy_pmi"
}
METRICS["bits_per_byte"] = ItemMetric(
    lambda values, gold: -_of_gold(values, gold) / np.log(2.0), "byte", higher_is_better=False
)


def item_scores(
    metric: str,
    loglikelihoods: np.ndarray,
    gold: np.ndarray,
    lengths: np.ndarray | None = None,
    unconditional: np.ndarray | None = None,
) -> np.ndarray:
    """One score an item: shape (..., items) for `loglikelihoods` (..., items, choices) and `gold` (items,).

    `lengths` are tokens, characters or bytes of the choices, as `METRICS[metric].per` says, and broadcast
    against the log-likelihoods. With ll_i replaced by ll_i / |c_i| where a length is used:

        accuracy                  1 if ll_g is the largest (of equal ones the first counts, as in lm-eval), else 0
        accuracy_pmi              the same for ll_i - ll_i(unconditional)
        log_likelihood            ll_g; per token it is CLL = (log p(q, a) - log p(q)) / |a|
        log_probability_gap       ll_g - mean_{i != g} ll_i
        confidence_margin         ll_g - max_{i != g} ll_i
        probability               exp ll_g
        probability_margin        exp ll_g - max_{i != g} exp ll_i
        normalised_probability    exp ll_g / sum_i exp ll_i
        pmi                       ll_g - ll_g(unconditional)
        bits_per_byte             -ll_g / (ln 2 bytes_g)

    Sources: accuracies as in lm-eval; gap, margin and CLL: NeurIPS 2025 E2LMC (teams Morai, Noor,
    Shaikespear); probabilities: DataDecide (arXiv 2504.11393). An item with a single choice has no
    distractor: NaN. lm-eval's `acc_norm` divides by characters.
    """
    described = METRICS[metric]
    values = loglikelihoods
    if described.unconditional:
        if unconditional is None:
            raise ValueError(f"{metric} needs unconditional log-likelihoods")
        values = values - unconditional
    if described.per is not None:
        if lengths is None:
            raise ValueError(f"{metric} needs the choices' lengths in {described.per}s")
        values = values / lengths
    return described.score(values, gold)


# ----------------------------------------------------------------------------------------------------------------------
# Filters judged where they were not fitted.
#
# A filter that keeps the items whose scores rose makes any benchmark rise on the checkpoints it looked at: of
# pure noise it makes a signal quality above 0.9. So items are chosen on some models (or checkpoints) and
# scored on others, and a random choice of as many items is scored beside it.

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
        Fold(
            f"without {group}",
            fit=tuple(row for name, row in rows if name != group),
            score=tuple(row for name, row in rows if name == group),
        )
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
        if scored.size >= MINIMUM_CHECKPOINTS:
            score.append((model, scored))
            fit.append((model, np.setdiff1d(np.arange(count), scored)))
    return [Fold("alternate checkpoints", tuple(fit), tuple(score))] if fit else []


def judge_filter(
    fit: Fit,
    scored: Curves,
    folds: list[Fold],
    generator: Generator,
    controls: int = 200,
    options: SignalConventions = E2LM,
) -> FilterTrial:
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

    unfiltered, held_out, control = 0.0, 0.0, np.zeros(controls)
    for weight, fold in zip(weights, folds, strict=True):
        filter_fitted = fit(fold.fit)
        curves = _take(scored, fold.score)
        unfiltered += weight * mean_quality(curves, np.ones(items, dtype=bool), options)
        held_out += weight * mean_quality(curves, filter_fitted, options)
        control += weight * random_items_quality(curves, int(filter_fitted.sum()), controls, generator, options)
    in_sample = mean_quality(_take(scored, in_sample_rows), in_sample_kept, options)
    p = exceedance_p(held_out, control)
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


def mean_quality(curves: Curves, is_kept: np.ndarray, options: SignalConventions = E2LM) -> float:
    """Mean over models of the signal quality of the mean over kept items; NaN where nothing is kept."""
    if not is_kept.any():
        return float("nan")
    return float(
        np.mean([signal_quality(values[:, is_kept].mean(axis=1), options).signal_quality for values in curves])
    )


def _take(curves: Curves, rows: Rows) -> Curves:
    return [curves[model][checkpoints] for model, checkpoints in rows]
