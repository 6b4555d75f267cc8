"""Points of training that several learning curves have in common, and what each curve says there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lm_validity.studies.signal.curves import SAME_POINT, Curve
from lm_validity.words import decimal, scale_of

NAMES, TOKENS, SHARES = "names", "tokens", "share of training"  # what curves are aligned by

_ROUNDING = 1e-6


@dataclass(frozen=True)
class Places:
    """Where points of training lie on one curve: `share` of the way from one checkpoint to the next, (points,) each.

    On a checkpoint, `share` is 0 and `before` is `after`.
    """

    before: np.ndarray
    after: np.ndarray
    share: np.ndarray

    def read(self, values: np.ndarray) -> np.ndarray:
        """Values (..., points) on straight lines between those of the checkpoints, (..., n).

        Standard errors are read in the same way: as though those of the two neighbours were one error, which they
        nearly are, since checkpoints answer the same items. Independent ones would give less.
        """
        return (1.0 - self.share) * values[..., self.before] + self.share * values[..., self.after]

    def only(self, point: int) -> "Places":
        """One of the points."""
        return Places(self.before[[point]], self.after[[point]], self.share[[point]])

    def within(self, checkpoints: np.ndarray) -> "Places":
        """The same for the curve of which `checkpoints` (n,) are those of this one."""
        return Places(checkpoints[self.before], checkpoints[self.after], self.share)


@dataclass(frozen=True)
class Alignment:
    """Common points of several curves in order, none with a `reason` where there are none; `places`: one a curve."""

    by: str
    places: tuple[Places, ...]
    progress: np.ndarray  # (points,) tokens in billions, else shares of training, iterations or 1, 2, ...
    tokens_b: np.ndarray  # (points,); all NaN where unknown
    at_end: bool  # whether the last point is the last checkpoint of every curve
    reason: str = ""

    @property
    def interpolated(self) -> np.ndarray:
        """(points,) number of curves that are read between two of their checkpoints."""
        return np.sum([places.share > 0 for places in self.places], axis=0)


def own_ends(curves: Sequence[Curve]) -> list[Places]:
    """The last checkpoint of each curve, whether or not others have it."""
    last = [np.array([len(curve.values) - 1]) for curve in curves]
    return [Places(at, at, np.zeros(1)) for at in last]


def align(named: dict[str, Curve], kept: Sequence[np.ndarray] = ()) -> Alignment:
    """The points of training that all curves have, of the checkpoints `kept` (n,) of each, boolean, else of all.

    Where all have one schedule, checkpoints belong together by name. Else by tokens where these are known, else by the
    share of training, which is known where every curve has iterations up to a checkpoint called `final`. Then the
    points are those checkpoints of the curve with the fewest that lie within the range of every curve, and the two ends
    of that range; other curves are read between their neighbouring checkpoints. Nothing is extrapolated. Where neither
    is known and schedules differ there is no common point: checkpoints of one name may be different points of training.
    """
    whole, names = list(named.values()), list(named)
    at = [np.flatnonzero(mask) for mask in kept] or [np.arange(len(curve.values)) for curve in whole]
    curves = [curve.at(chosen) for curve, chosen in zip(whole, at, strict=True)]
    if any(not len(curve.values) for curve in curves):
        return _nothing(curves, "No checkpoint is selected.")
    first = curves[0]
    if all(_one_schedule(first, curve) for curve in curves[1:]):
        here = [np.arange(len(first.values))] * len(curves)
        places = [Places(chosen, chosen, np.zeros(len(chosen))) for chosen in here]
        return Alignment(NAMES, _within(places, at), first.progress, first.tokens_b, at_end=True)
    if not any(np.isnan(curve.tokens_b).any() for curve in curves):
        by, axes = TOKENS, [curve.tokens_b for curve in curves]
    elif all(curve.checkpoints[-1] == "final" and not np.isnan(curve.iterations).any() for curve in curves):
        by, axes = SHARES, [curve.iterations / curve.iterations[-1] for curve in curves]
    else:
        return _nothing(
            curves, "The models' checkpoints differ and their tokens are unknown, so no points of training are common."
        )
    low, high = max(axis[0] for axis in axes), min(axis[-1] for axis in axes)
    if low > high:
        ends, begins = (names[pick([axis[end] for axis in axes])] for pick, end in ((np.argmin, -1), (np.argmax, 0)))
        scale, unit = scale_of(high)
        return _nothing(
            curves,
            f"The models have no point of training in common: {ends} ends at {decimal(high * scale)} {unit} tokens, "
            f"and {begins} begins at {decimal(low * scale)}.",
        )
    inside = [axis[(axis > low * (1 + _ROUNDING)) & (axis < high * (1 - _ROUNDING))] for axis in axes]
    points = np.unique([low, *min(inside, key=len), high])
    return Alignment(
        by,
        _within([_places(axis, points) for axis in axes], at),
        points,
        points if by == TOKENS else np.full(len(points), np.nan),
        at_end=all(axis[-1] <= high * (1 + SAME_POINT) for axis in axes),
    )


def _nothing(curves: list[Curve], reason: str) -> Alignment:
    none = np.array([], dtype=float)
    places = Places(none.astype(np.intp), none.astype(np.intp), none)
    return Alignment("", (places,) * len(curves), none, none, at_end=False, reason=reason)


def _within(places: list[Places], at: list[np.ndarray]) -> tuple[Places, ...]:
    return tuple(found.within(chosen) for found, chosen in zip(places, at, strict=True))


def _one_schedule(first: Curve, second: Curve) -> bool:
    """The same names in the same order, at about the same tokens or, where these are unknown, the same iterations."""
    if first.checkpoints != second.checkpoints:
        return False
    tokens = np.array([first.tokens_b, second.tokens_b])
    if not np.isnan(tokens).any():
        return bool((np.ptp(tokens, axis=0) <= SAME_POINT * tokens.max(axis=0)).all())
    iterations = np.array([first.iterations, second.iterations])
    return bool((np.isnan(iterations).any(axis=0) | (iterations[0] == iterations[1])).all())


def _places(axis: np.ndarray, points: np.ndarray) -> Places:
    """Where `points` lie on the ascending `axis` (n,), all of them within it."""
    before = np.clip(np.searchsorted(axis, points * (1 + _ROUNDING), side="right") - 1, 0, len(axis) - 1)
    after = np.minimum(before + 1, len(axis) - 1)
    on = np.abs(points - axis[before]) <= _ROUNDING * np.abs(points)
    after = np.where(on, before, after)
    width = axis[after] - axis[before]
    share = np.divide(points - axis[before], width, out=np.zeros(len(points)), where=width > 0)
    return Places(before, after, share)
