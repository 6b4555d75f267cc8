"""The hierarchical model's effect in accuracy for new tasks, splits and trainings like these.

beta is a difference of log-odds. What it means in accuracy depends on where on the logistic curve a task lies. Averaged
over tasks, splits and trainings drawn anew from the fitted population, with the language models weighing the same:

    g(beta) = mean over models and z ~ N(0, 1) of  expit(level + s z + beta / 2) - expit(level + s z - beta / 2)

s² is the sum of all variances of the model: tasks, pairs, and the noise of training. g grows with beta and g(0) = 0, so
an interval of beta becomes one of g(beta), and excludes zero exactly where beta's does. The levels are held at their
estimates; the standard deviations are averaged over their posterior. (Zeger, Liang & Albert 1988, Biometrics
44:1049-1060, call such effects population-averaged.) It speaks for tasks like these: it fails where the log-odds of the
tasks are far from normal.
"""

import numpy as np
from scipy.special import expit

from lm_validity.studies.bias.statistics.model import Design

QUADRATURE_NODES = 32


def marginal_effect(levels: np.ndarray, spreads: np.ndarray, weights: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """g at each of `beta` (B,), in accuracy (-1 to 1).

    levels (L,): mean log-odds of each language model; spreads (M, L): s at M draws or nodes of the posterior, whose
    weights (M,) sum to 1. Nothing may be NaN. Gauss-Hermite quadrature over z.
    """
    points, mass = np.polynomial.hermite_e.hermegauss(QUADRATURE_NODES)
    mass = mass / mass.sum()
    middle = levels[None, :, None] + spreads[:, :, None] * points  # (M, L, nodes)
    effects = [expit(middle + value / 2) - expit(middle - value / 2) for value in beta]
    return np.array([weights @ (effect @ mass).mean(axis=1) for effect in effects])


def model_levels(design: Design, fixed: np.ndarray) -> np.ndarray:
    """(L,) mean log-odds of the language models between the two arms, from `fixed` effects (mu, alphas; L,)."""
    models = len(fixed)
    return design.columns[: 2 * models : 2, :models] @ fixed


def model_spreads(design: Design, scales: np.ndarray) -> np.ndarray:
    """(M, L) root of the sum of all variances of a language model, at standard deviations (M, H)."""
    models = design.beta
    shared = (scales[:, : design.pair + 1] ** 2).sum(axis=1, keepdims=True)
    own = scales[:, design.pair + 1 :] ** 2 if design.noise is not None else np.zeros((len(scales), models))
    return np.sqrt(shared + own)
