"""When unlabelled test data do bias a score: principal components before linear regression.

Appendix G of arXiv 2410.00179: 20 features of known effective rank, a linear target with noise; `base`
regresses on the features, `extra` and `test` on the components of n other rows or of the n test rows. Fitting
the components on the test rows inflates R^2, most where the features have no low-rank structure to find.
"""

from dataclasses import dataclass

import numpy as np
from sklearn.datasets import make_regression
from sklearn.model_selection import train_test_split

FEATURES = 20
INFORMATIVE = 10
NOISE = 1.0
TRAIN = 100
DATA_SEED = 123
SPLIT_SEED = 42


@dataclass(frozen=True)
class PcaSimulation:
    """Test R^2 of each trial (R,) in the three arms."""

    base: np.ndarray
    extra: np.ndarray
    test: np.ndarray

    @property
    def bias(self) -> tuple[float, float]:
        """Mean test - extra and its standard error."""
        difference = self.test - self.extra
        return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))

    @property
    def boost(self) -> tuple[float, float]:
        """Mean extra - base and its standard error."""
        difference = self.extra - self.base
        return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))


def simulate_pca(effective_rank: int, n: int, trials: int = 2000) -> PcaSimulation:
    """Split one data set of 100 + 2n rows `trials` times (seeds 42, 43, …); components = int(0.6 rank)."""
    features, target = make_regression(
        n_samples=TRAIN + 2 * n,
        n_features=FEATURES,
        n_informative=INFORMATIVE,
        effective_rank=effective_rank,
        noise=NOISE,
        random_state=DATA_SEED,
    )
    components = int(0.6 * effective_rank)
    scores = np.empty((trials, 3))
    for trial in range(trials):
        train, rest = train_test_split(np.arange(len(target)), train_size=TRAIN, random_state=SPLIT_SEED + trial)
        extra, test = train_test_split(rest, train_size=n, test_size=n, random_state=SPLIT_SEED + 1 + trial)
        for arm, rows in enumerate((None, extra, test)):
            axes = np.eye(FEATURES) if rows is None else _components(features[rows], components)
            origin = 0.0 if rows is None else features[rows].mean(axis=0)
            projected = (features - origin) @ axes
            scores[trial, arm] = _test_r2(projected, target, train, test)
    return PcaSimulation(*scores.T)


def _components(features: np.ndarray, number: int) -> np.ndarray:
    """(features, number) directions of largest variance."""
    return np.linalg.eigh(np.cov(features, rowvar=False))[1][:, ::-1][:, :number]


def _test_r2(features: np.ndarray, target: np.ndarray, train: np.ndarray, test: np.ndarray) -> float:
    """R^2 on the test rows of least squares with an intercept, fitted on the train rows."""
    centre, level = features[train].mean(axis=0), target[train].mean()
    weights = np.linalg.lstsq(features[train] - centre, target[train] - level, rcond=None)[0]
    residual = target[test] - level - (features[test] - centre) @ weights
    return float(1.0 - np.sum(residual**2) / np.sum((target[test] - target[test].mean()) ** 2))
