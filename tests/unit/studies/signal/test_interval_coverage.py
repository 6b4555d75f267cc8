"""How often item intervals hold the mean score of newly drawn items (docs/reference/signal.md quotes the numbers)."""

import numpy as np
import pytest

from lm_validity.studies.signal.statistics.quality import (
    draw_items,
    resample_item_means,
    resampling_interval,
    signal_quality,
)

REPEATS = 200
RESAMPLES = 300

# items, checkpoints, rise, whether items are right or wrong: from pure noise to a clear rise
BENCHMARKS = [
    (200, 14, 0.0, True),
    (200, 14, 0.1, False),
    (200, 27, 0.1, True),
    (1000, 14, 0.1, False),
    (200, 14, 0.3, True),
    (200, 27, 0.3, True),
    (1000, 14, 0.3, False),
    (200, 27, 1.0, True),
]


def new_items(rng, items, checkpoints, rise, binary):
    """Items of random difficulty that rise with the square root of training, with noise at every checkpoint."""
    training = np.sqrt(np.linspace(0, 1, checkpoints))[:, None]
    scores = rng.normal(0, 1, items) + rise * training + rng.standard_normal((checkpoints, items))
    return (scores > 0.5).astype(float) if binary else scores


def quality_of(curves):
    return signal_quality(curves).signal_quality


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_coverage(benchmark):
    rng = np.random.default_rng(BENCHMARKS.index(benchmark))
    truth = np.mean([quality_of(new_items(rng, *benchmark).mean(axis=1)) for _ in range(1000)])
    joint = percentiles = width = 0
    for _ in range(REPEATS):
        scores = new_items(rng, *benchmark)
        draws = quality_of(resample_item_means(scores, draw_items(scores.shape[1], RESAMPLES, rng)))
        lower, upper = resampling_interval(float(quality_of(scores.mean(axis=1))), draws, 0.0, 1.0)
        low, high = np.quantile(draws, [0.025, 0.975])
        joint += lower <= truth <= upper
        percentiles += low <= truth <= high
        width += upper - lower
    print(
        f"{benchmark}: mean score {truth:.3f}, coverage {joint / REPEATS:.3f} (percentiles alone "
        f"{percentiles / REPEATS:.3f}), mean width {width / REPEATS:.2f}"
    )
    # Standard error at 0.94 is 0.017
    assert joint / REPEATS >= 0.9
