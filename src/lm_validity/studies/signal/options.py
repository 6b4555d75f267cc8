"""The signal report's conventions from words, as the command line and the configuration give them."""

from typing import get_args

import numpy as np

from lm_validity.errors import InputError, nearest
from lm_validity.studies.signal.scores import Options
from lm_validity.studies.signal.statistics.compliance import NORMALISATIONS
from lm_validity.studies.signal.statistics.overall import Weights
from lm_validity.studies.signal.statistics.quality import Convention, Ties
from lm_validity.studies.signal.statistics.ranking import RankingWindows


def make_options(
    convention: str = "code",
    ties: str = "stable",
    normalisation: str = "joint_minmax",
    base_window: tuple[float, ...] | str = (100.0, 200.0),
    later_window: tuple[float, ...] | str = (220.0, 1000.0),
    weights: tuple[float, ...] | str = (0.5, 0.1, 0.4),
) -> Options:
    """Raises InputError naming the option and its value. Windows are billions of tokens; the weights are those of
    signal quality, ranking consistency and compliance."""
    for name, value, known in (
        ("convention", convention, get_args(Convention)),
        ("ties", ties, get_args(Ties)),
        ("normalisation", normalisation, NORMALISATIONS),
    ):
        if value not in known:
            like = nearest(value, known)
            raise InputError(
                f"{name}: {value!r} is unknown.",
                f"did you mean {like!r}?" if like else f"use one of {', '.join(known)}.",
            )
    base, later = (_window(name, value) for name, value in (("base", base_window), ("later", later_window)))
    parts = _numbers("weights", weights, 3)
    if min(parts) < 0 or not sum(parts) > 0:
        raise InputError(f"weights: {weights!r}: not all of them are positive.", "the default is 0.5,0.1,0.4.")
    return Options(convention, ties, normalisation, RankingWindows(base, later), Weights(*parts))


def _window(name: str, value) -> tuple[float, float]:
    low, high = _numbers(f"{name} window", value, 2)
    if not 0 <= low < high:
        raise InputError(f"{name} window: {value!r} does not begin before it ends.", "give FROM,TO in billion tokens.")
    return low, high


def _numbers(name: str, value, count: int) -> tuple[float, ...]:
    texts = value.split(",") if isinstance(value, str) else value
    try:
        found = tuple(float(text) for text in texts)
    except ValueError:
        found = ()
    if len(found) != count or not np.isfinite(found).all():
        raise InputError(f"{name}: {value!r} is not a list of {count} numbers.", "separate them by commas.")
    return found
