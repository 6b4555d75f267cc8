"""Item scores against hand-computed values."""

import numpy as np
import pytest

from lm_validity.studies.signal.statistics.items import METRICS, item_scores

# Two items; the second has three choices only
LOGLIKELIHOODS = np.log(np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.5, np.nan]]))
GOLD = np.array([0, 1])
LENGTHS = np.array([[2.0, 1.0, 4.0, 2.0], [1.0, 2.0, 1.0, np.nan]])


def score(metric, **more):
    return item_scores(metric, LOGLIKELIHOODS, GOLD, LENGTHS, **more)


def test_scores_by_hand():
    log = np.log
    assert score("accuracy") == pytest.approx([1.0, 0.0])
    assert score("log_likelihood") == pytest.approx([log(0.4), log(0.2)])
    assert score("log_probability_gap") == pytest.approx(
        [log(0.4) - (log(0.3) + log(0.2) + log(0.1)) / 3, log(0.2) - (log(0.1) + log(0.5)) / 2]
    )
    assert score("confidence_margin") == pytest.approx([log(0.4 / 0.3), log(0.2 / 0.5)])
    assert score("probability") == pytest.approx([0.4, 0.2])
    assert score("probability_margin") == pytest.approx([0.1, -0.3])
    assert score("normalised_probability") == pytest.approx([0.4, 0.2 / 0.8])


def test_scores_per_length():
    log = np.log
    assert score("log_likelihood_per_token") == pytest.approx([log(0.4) / 2, log(0.2) / 2])
    # per character the four-character third choice wins the first item
    assert score("accuracy_per_character") == pytest.approx([0.0, 0.0])
    assert score("probability_per_token") == pytest.approx([np.sqrt(0.4), np.sqrt(0.2)])
    assert score("bits_per_byte") == pytest.approx([-np.log2(0.4) / 2, -np.log2(0.2) / 2])
    per = np.exp([log(0.1) / 1, log(0.2) / 2, log(0.5) / 1])
    assert score("normalised_probability_per_token")[1] == pytest.approx(per[1] / per.sum())


def test_scores_with_unconditional_loglikelihoods():
    unconditional = np.log(np.array([[0.2, 0.05, 0.2, 0.1], [0.1, 0.1, 0.5, np.nan]]))
    assert score("pmi", unconditional=unconditional) == pytest.approx([np.log(2.0), np.log(2.0)])
    # 0.3 / 0.05 beats 0.4 / 0.2; in the second item 2 beats 1 and 1
    assert score("accuracy_pmi", unconditional=unconditional) == pytest.approx([0.0, 1.0])


def test_long_answers_do_not_underflow():
    tiny = np.array([[-2000.0, -2001.0]])
    assert item_scores("normalised_probability", tiny, np.array([0])) == pytest.approx([1 / (1 + np.exp(-1))])


RANGES = {
    "probability_margin": (-1, 1), "probability": (0, 1), "normalised_probability": (0, 1), "accuracy": (0, 1),
    "log_likelihood": (-np.inf, 0), "bits_per_byte": (0, np.inf),
}  # fmt: skip


def test_every_metric_computes_and_says_what_it_needs():
    unconditional = np.zeros_like(LOGLIKELIHOODS)
    for metric in METRICS:
        values = score(metric, unconditional=unconditional)
        assert values.shape == (2,) and np.isfinite(values).all(), metric
        low, high = next((ends for start, ends in RANGES.items() if metric.startswith(start)), (-np.inf, np.inf))
        assert (values >= low).all() and (values <= high).all(), metric
    with pytest.raises(ValueError, match="unconditional"):
        item_scores("pmi", LOGLIKELIHOODS, GOLD)
    with pytest.raises(ValueError, match="lengths in tokens"):
        item_scores("accuracy_per_token", LOGLIKELIHOODS, GOLD)
