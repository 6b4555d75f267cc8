"""Small trials tables."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from lm_validity.studies.bias.trials import ARMS, pair_arms
from lm_validity.tables.schema import TRIALS


def simulated_rows(models=2, tasks=4, subsamples=5, sizes=(40, 80), arms=ARMS, shift=None, noise=0.0, seed=0):
    """A trials table with accuracies around one half; `shift` adds to the logit of an arm, `noise` is training's."""
    generator, rows = np.random.default_rng(seed), []
    for model, task, n, subsample, arm in product(range(models), range(tasks), sizes, range(subsamples), arms):
        logit = 0.3 * task - 0.4 + (shift or {}).get(arm, 0.0) + noise * generator.standard_normal()
        correct = generator.binomial(n, 1 / (1 + np.exp(-logit)))
        key = ("demo", f"lm{model}", f"task{task}", 16, n, subsample, arm)
        rows.append((*key, int(correct), n, None, f"{task}-{n}-{subsample}"))
    return pd.DataFrame(rows, columns=TRIALS.names)


@pytest.fixture
def rows():
    """The maker of trials tables."""
    return simulated_rows


@pytest.fixture
def trials():
    """The maker of tables with the arms side by side."""
    return lambda **arguments: pair_arms(simulated_rows(**arguments))
