"""Scores of single multiple-choice items from the log-likelihoods of their choices.

Notation: ll_i = sum_t log p(y_t | prompt, y_<t) of choice i in nats, g the gold choice, |c_i| its length in
tokens or characters. Arrays have shape (..., items, choices); choices that an item does not have are NaN.
Every score is oriented as `METRICS` says; all but bits per byte are higher for a better model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np


@dataclass(frozen=True)
class ItemMetric:
    """How one item score is read: its name in figures, its range, and what must be known to compute it."""

    label: str
    per: str | None = None  # None, "token", "character" or "byte": lengths it divides by
    higher_is_better: bool = True
    minimum: float = -np.inf
    maximum: float = np.inf
    unconditional: bool = False  # needs the choices' log-likelihoods without the question


_share = partial(ItemMetric, minimum=0.0, maximum=1.0)
_margin = partial(ItemMetric, minimum=-1.0, maximum=1.0)

METRICS: dict[str, ItemMetric] = {
    "accuracy": _share("accuracy"),
    "accuracy_per_token": _share("accuracy, per token", "token"),
    "accuracy_per_character": _share("accuracy, per character", "character"),
    "accuracy_pmi": _share("accuracy by PMI", unconditional=True),
    "log_likelihood": ItemMetric("log-likelihood", maximum=0.0),
    "log_likelihood_per_token": ItemMetric("CLL (per token)", "token", maximum=0.0),
    "log_likelihood_per_character": ItemMetric("log-lik., per character", "character", maximum=0.0),
    "log_probability_gap": ItemMetric("gap to mean (Morai)"),
    "log_probability_gap_per_token": ItemMetric("gap, per token", "token"),
    "log_probability_gap_per_character": ItemMetric("gap, per character", "character"),
    "confidence_margin": ItemMetric("margin to best (Noor)"),
    "confidence_margin_per_token": ItemMetric("margin, per token", "token"),
    "confidence_margin_per_character": ItemMetric("margin, per character", "character"),
    "probability": _share("probability"),
    "probability_per_token": _share("prob., per token", "token"),
    "probability_per_character": _share("prob., per character", "character"),
    "probability_margin": _margin("prob. margin"),
    "probability_margin_per_token": _margin("prob. margin, token", "token"),
    "probability_margin_per_character": _margin("prob. margin, character", "character"),
    "normalised_probability": _share("norm. prob."),
    "normalised_probability_per_token": _share("norm. prob., token", "token"),
    "normalised_probability_per_character": _share("norm. prob., character", "character"),
    "pmi": ItemMetric("PMI", unconditional=True),
    "pmi_per_token": ItemMetric("PMI, per token", "token", unconditional=True),
    "pmi_per_character": ItemMetric("PMI, per character", "character", unconditional=True),
    "bits_per_byte": ItemMetric("bits per byte", "byte", higher_is_better=False, minimum=0.0),
}


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
    values = np.asarray(loglikelihoods, dtype=float)
    if described.unconditional:
        if unconditional is None:
            raise ValueError(f"{metric} needs unconditional log-likelihoods")
        values = values - unconditional
    if described.per is not None:
        if lengths is None:
            raise ValueError(f"{metric} needs the choices' lengths in {described.per}s")
        values = values / lengths
    base = metric if metric in _SCORES else metric.removesuffix(f"_per_{described.per}")
    return _SCORES[base](values, np.asarray(gold, dtype=np.intp))


def _of_gold(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    index = np.broadcast_to(gold, values.shape[:-1])[..., None]
    return np.take_along_axis(values, index, axis=-1)[..., 0]


def _distractors(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """The values with the gold choice's made NaN."""
    return np.where(np.arange(values.shape[-1]) == gold[:, None], np.nan, values)


def _best_distractor(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    # fmax skips NaN; NaN where every distractor is
    return np.fmax.reduce(_distractors(values, gold), axis=-1)


def _accuracy(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    chosen = np.argmax(np.where(np.isnan(values), -np.inf, values), axis=-1)
    correct = (chosen == gold).astype(float)
    return np.where(np.isnan(_of_gold(values, gold)), np.nan, correct)


def _log_likelihood(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    return _of_gold(values, gold)


def _log_probability_gap(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    wrong = _distractors(values, gold)
    count = np.count_nonzero(~np.isnan(wrong), axis=-1)
    total = np.nansum(wrong, axis=-1)
    mean = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return _of_gold(values, gold) - mean


def _confidence_margin(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    return _of_gold(values, gold) - _best_distractor(values, gold)


def _probability(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    return np.exp(_of_gold(values, gold))


def _probability_margin(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    return np.exp(_of_gold(values, gold)) - np.exp(_best_distractor(values, gold))


def _normalised_probability(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    # Relative to the largest, so that log-likelihoods of long answers do not all underflow to 0
    largest = np.fmax.reduce(values, axis=-1)
    total = np.nansum(np.exp(values - largest[..., None]), axis=-1)
    return np.exp(_of_gold(values, gold) - largest) / total


def _bits_per_byte(values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    return -_of_gold(values, gold) / np.log(2.0)


_SCORES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "accuracy": _accuracy,
    "accuracy_pmi": _accuracy,
    "log_likelihood": _log_likelihood,
    "log_probability_gap": _log_probability_gap,
    "confidence_margin": _confidence_margin,
    "probability": _probability,
    "probability_margin": _probability_margin,
    "normalised_probability": _normalised_probability,
    "pmi": _log_likelihood,
    "bits_per_byte": _bits_per_byte,
}
