"""From the scores table and the sheets to learning curves, one per model and benchmark, and their common points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.tables.counted import Sources, count_scores
from lm_validity.tables.items import with_chance
from lm_validity.tables.schema import reruns_of, unique_labels
from lm_validity.tables.training import NOT_MEASURED, TrainingNoise, in_tokens, training_noise, training_order
from lm_validity.words import count, decimal, listing, scale_of, with_names

STUDY = "signal"  # as the sheets' column `studies` names it
E2LM_STEP = 4000  # iterations between the checkpoints that the competition scored
E2LM_TOKENS_B = 206.0

# Two points of training whose tokens differ by no more than this share are the same
SAME_POINT = 0.05


class Curve(NamedTuple):
    """Scores of one model on one benchmark in order of training; `values` are oriented: higher is better.

    Tokens are known at all checkpoints of all curves of a report, or at none.
    """

    checkpoints: tuple[str, ...]
    iterations: np.ndarray  # NaN where unknown
    tokens_b: np.ndarray  # all NaN where unknown
    values: np.ndarray
    errors: np.ndarray  # standard errors of the values over items; NaN where unknown

    def at(self, chosen: np.ndarray) -> "Curve":
        """The curve at some of its checkpoints: `chosen` is a mask (n,) or indices."""
        names = tuple(np.array(self.checkpoints, dtype=object)[chosen])
        return Curve(names, self.iterations[chosen], self.tokens_b[chosen], self.values[chosen], self.errors[chosen])

    @property
    def progress(self) -> np.ndarray:
        """Where training stood, in no unit of its own: tokens in billions, else iterations, else 1, 2, ..."""
        for axis_values in (self.tokens_b, self.iterations):
            if not np.isnan(axis_values).any():
                return axis_values
        return np.arange(1.0, len(self.values) + 1)


class ModelFacts(NamedTuple):
    """What the models sheet says of a model; None where it says nothing."""

    size: str | None
    architecture: str | None
    training_data: str | None


@dataclass(frozen=True)
class LearningCurves:
    """Everything the report reads: curves by benchmark and model, and what is known about models and benchmarks."""

    curves: dict[str, dict[str, Curve]]
    facts: pd.DataFrame  # index: models in the sheet's order; label, size, architecture, training_data
    direction: dict[str, float]  # +1 where the benchmark's metric is better when higher, else -1
    assumed: frozenset[str]  # benchmarks of which neither sheet nor table says the direction: higher counts as better
    selection: str
    num_fewshot: dict[str, int]  # solved examples before each question, by benchmark; absent where unknown
    metrics: dict[str, str]  # by benchmark; absent where unknown
    chance: dict[str, float]  # the score of guessing, by benchmark; absent where unknown
    training_noise: dict[str, TrainingNoise]  # by benchmark; absent where no model was trained twice
    notes: tuple[str, ...]

    @cached_property
    def model_facts(self) -> dict[str, ModelFacts]:
        """What is known of each model, one by one."""
        rows = self.facts[list(ModelFacts._fields)].astype(object).itertuples()
        return {model: ModelFacts(*(None if pd.isna(value) else value for value in values)) for model, *values in rows}

    def scored(self, benchmark: str) -> list[str]:
        """Models that count in a benchmark's own scores: not those trained on web text only, kept for comparison."""
        with_curve = [model for model in self.facts.index if model in self.curves[benchmark]]
        science = [model for model in with_curve if self.facts.at[model, "training_data"] != "web"]
        return science or with_curve


STEPS_HINT = "Give their steps (iteration) or tokens (tokens_b)."


def read_learning_curves(sources: Sources, selection: str) -> LearningCurves:
    """Direct test scores of every model with at least two checkpoints.

    Raises InputError as `count_scores` and `Counted.along_training`, and where no model has two. Gaps are named in
    `notes`.
    """
    counted = count_scores(sources).along_training().without_copies("benchmark", "checkpoint")
    sheet, notes = counted.models, list(counted.notes)
    rows = _on_one_axis(counted.rows, notes)
    better = with_chance(counted.benchmarks, sources.items).set_index("benchmark")
    directions = {str(name): 1.0 if up else -1.0 for name, up in better["higher_is_better"].items()}
    assumed = frozenset(better.index[~better["direction_known"]])
    again = reruns_of(sheet)
    noise = training_noise(rows, again)
    curves = _curves(rows, directions, notes)
    first = {name: {m: curve for m, curve in by_model.items() if m not in again} for name, by_model in curves.items()}
    curves = {benchmark: by_model for benchmark, by_model in first.items() if by_model}
    if not curves:
        unordered = any("say the order" in note for note in notes)
        raise InputError(
            f"{sources.scores}: no model has direct test scores at two checkpoints of a benchmark"
            f"{' whose order is known' if unordered else ''}.",
            STEPS_HINT if unordered else "the signal study needs scores along training.",
        )
    with_curves = {model for by_model in curves.values() for model in by_model}
    unlisted = sorted(with_curves - set(sheet["model"]))
    notes += with_names({"Not in the models sheet, size and architecture unknown: {}.": unlisted})
    names = [*(model for model in sheet["model"] if model in with_curves), *unlisted]
    facts = sheet.set_index("model").reindex(names)[["label", *ModelFacts._fields]]
    facts["label"] = unique_labels(facts["label"], pd.Series(names, index=names))
    notes += [*_gaps(curves), *([] if noise else [NOT_MEASURED])]
    by_benchmark = rows.groupby("benchmark")
    examples, metrics = (by_benchmark[name].first().dropna().to_dict() for name in ("num_fewshot", "metric"))
    chance = better["chance"].dropna().to_dict()
    return LearningCurves(curves, facts, directions, assumed, selection, examples, metrics, chance, noise, (*notes,))


def select(curve: Curve, selection: str, *, spaced: bool = True, early: bool = True) -> np.ndarray:
    """Checkpoints (n,) that signal quality is computed on: those at the selection's spacing, up to its last token.

    Ranking consistency reads them to the end of training (not only `early` ones), compliance at any spacing.
    """
    is_kept = np.ones(len(curve.values), dtype=bool)
    if selection == "e2lm" and spaced:
        is_kept &= np.nan_to_num(curve.iterations, nan=1) % E2LM_STEP == 0
    if selection == "e2lm" and early:
        is_kept &= curve.tokens_b <= E2LM_TOKENS_B
    return is_kept


def _on_one_axis(rows: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Rows with tokens, where any curve has them at two checkpoints; else all rows, and nobody's tokens. What is left
    out is added to the notes, as by all that follow."""
    curve = [rows["benchmark"], rows["model"]]
    has_tokens = rows["tokens_b"].notna()
    if not in_tokens(rows):
        notes.append(
            "Tokens are unknown: curves are over iterations or checkpoints, and what is counted in billions of tokens "
            "(tokens_b, *_from_b) is null. Give tokens_b in the sheet of checkpoints, or a batch_ramp."
        )
        return rows.assign(tokens_b=np.nan)
    left_out = ~has_tokens & (has_tokens.groupby(curve).transform("size") > 1)
    names = [
        f"{model} at {listing(list(checkpoints.unique()), 4)}"
        for model, checkpoints in rows[left_out].groupby("model", sort=True)["checkpoint"]
    ]
    notes += with_names({"Checkpoints without tokens_b are left out, because others have it: {}.": names})
    return rows[~left_out]


def _curves(rows: pd.DataFrame, directions: Mapping[str, float], notes: list[str]) -> dict[str, dict[str, Curve]]:
    """Curves of two checkpoints or more, by benchmark and model."""
    curves: dict[str, dict[str, Curve]] = {}
    single, beside, unordered = set[str](), set[str](), set[tuple[str, str]]()
    columns = rows[["iteration", "tokens_b", "value", "stderr"]].astype("Float64")
    numbers, checkpoints = columns.to_numpy(dtype=float, na_value=np.nan), rows["checkpoint"].to_numpy(dtype=object)
    for (benchmark, model), places in sorted(rows.groupby(["benchmark", "model"]).indices.items()):
        if len(places) < 2:
            single.add(model)
            continue
        has_point = np.isfinite(numbers[places, :2]).any(axis=1)
        if (~has_point).sum() > 1:  # one alone is the end of the training
            if has_point.sum() < 2:
                unordered.add((model, benchmark))
                continue
            beside.update(f"{checkpoint} of {model}" for checkpoint in checkpoints[places[~has_point]])
            places = places[has_point]
        places = places[training_order(*numbers[places, :2].T)]
        iterations, tokens, values, errors = numbers[places].T
        oriented = directions[benchmark] * values
        curve = Curve(tuple(checkpoints[places]), iterations, tokens, oriented, errors)
        curves.setdefault(benchmark, {})[model] = curve
    with_curves = {model for by_model in curves.values() for model in by_model}
    unordered_words = "Left out, since neither steps nor tokens say the order of their checkpoints: {}. "
    left_out = {
        unordered_words + STEPS_HINT: sorted(
            {f"{model} on {benchmark}" if model in with_curves else model for model, benchmark in unordered}
        ),
        "Checkpoints with neither steps nor tokens are left out, beside others that have them: {}.": sorted(beside),
        "Models with a single checkpoint take no part: {}.": sorted(single - with_curves),
        "Some benchmarks have a single checkpoint of {} and leave the model out.": sorted(single & with_curves),
    }
    notes += with_names(left_out)
    return curves


def _gaps(curves: dict[str, dict[str, Curve]]) -> list[str]:
    """Notes that name the checkpoints that some models of a benchmark have and others lack within their training.

    None where checkpoints of one name are different points of training: then nobody lacks any.
    """
    gaps: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for benchmark, by_model in curves.items():
        progress: dict[str, list[float]] = {}
        for curve in by_model.values():
            for name, position in zip(curve.checkpoints, curve.progress, strict=True):
                progress.setdefault(name, []).append(position)
        if any(max(places) - min(places) > SAME_POINT * max(places) for places in progress.values()):
            continue
        for model, curve in by_model.items():
            end, names = curve.progress[-1], curve.checkpoints
            missing = [name for name, places in progress.items() if name not in names and places[-1] < end]
            if missing:
                gaps.setdefault((model, tuple(missing)), []).append(benchmark)
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (model, lacking), benchmarks in gaps.items():
        alike.setdefault((lacking, tuple(benchmarks)), []).append(model)
    notes = []
    for (lacking, concerned), models in alike.items():
        where = "all benchmarks" if len(concerned) == len(curves) else listing(concerned, 4)
        who = f"{listing(models, 4)} {'lacks' if len(models) == 1 else 'lack'}"
        number = count(len(lacking), "checkpoint")
        notes.append(f"{who} {number} that others have, on {where}: {listing(lacking, 6)}.")
    return notes


# ----------------------------------------------------------------------------------------------------------------------
# Points of training that several learning curves have in common, and what each curve says there.

NAMES, TOKENS, SHARES = "names", "tokens", "share of training"  # what curves are aligned by

_ROUNDING = 1e-6


class Places(NamedTuple):
    """Where points of training lie on one curve: `share` of the way from one checkpoint to the next, (points,) each.

    On a checkpoint, `share` is 0 and `earlier` is `later`.
    """

    earlier: np.ndarray
    later: np.ndarray
    share: np.ndarray

    def read(self, values: np.ndarray) -> np.ndarray:
        """Values (..., points) on straight lines between those of the checkpoints, (..., n).

        Standard errors are read in the same way: as though those of the two neighbours were one error, which they
        nearly are, since checkpoints answer the same items. Independent ones would give less.
        """
        return np.asarray((1.0 - self.share) * values[..., self.earlier] + self.share * values[..., self.later])

    def only(self, point: int) -> "Places":
        """Where a single one of the points lies on the curve."""
        return Places(*(values[[point]] for values in self))

    def within(self, checkpoints: np.ndarray) -> "Places":
        """Where the points lie on the larger curve of which `checkpoints` (n,) are the indices of this one's."""
        return Places(checkpoints[self.earlier], checkpoints[self.later], self.share)


class CommonPoints(NamedTuple):
    """Common points of several curves in order, none with a `reason` where there are none; `places`: one a curve."""

    by: str
    places: tuple[Places, ...]
    progress: np.ndarray  # (points,) tokens in billions, else shares of training, iterations or 1, 2, ...
    tokens_b: np.ndarray  # (points,); all NaN where unknown
    at_end: bool  # whether the last point is the last checkpoint of every curve
    reason: str | None = None


def align(named: dict[str, Curve], selections: Sequence[np.ndarray] = ()) -> CommonPoints:
    """The points of training that all curves have, of the checkpoints `selections` (n,) of each, boolean, else of all.

    Where all have one schedule, checkpoints belong together by name. Else by tokens where these are known, else by the
    share of training, which is known where every curve has iterations up to a checkpoint called `final`. Then the
    points are those checkpoints of the curve with the fewest that lie within the range of every curve, and the two ends
    of that range; other curves are read between their neighbouring checkpoints. Nothing is extrapolated. Where neither
    is known and schedules differ there is no common point: checkpoints of one name may be different points of training.
    """
    curves_named, names = list(named.values()), list(named)
    rows_of_curves = [np.flatnonzero(mask) for mask in selections] or [
        np.arange(len(curve.values)) for curve in curves_named
    ]
    curves = [curve.at(chosen) for curve, chosen in zip(curves_named, rows_of_curves, strict=True)]
    if any(not len(curve.values) for curve in curves):
        return _nothing(curves, "No checkpoint is selected.")
    first = curves[0]
    if all(_one_schedule(first, curve) for curve in curves[1:]):
        indices = [np.arange(len(first.values))] * len(curves)
        places = [Places(chosen, chosen, np.zeros(len(chosen))) for chosen in indices]
        return CommonPoints(NAMES, _within(places, rows_of_curves), first.progress, first.tokens_b, at_end=True)
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
    return CommonPoints(
        by,
        _within([_places(axis, points) for axis in axes], rows_of_curves),
        points,
        points if by == TOKENS else np.full(len(points), np.nan),
        at_end=all(axis[-1] <= high * (1 + SAME_POINT) for axis in axes),
    )


def _nothing(curves: list[Curve], reason: str) -> CommonPoints:
    none = np.array([], dtype=float)
    places = Places(none.astype(np.intp), none.astype(np.intp), none)
    return CommonPoints("", (places,) * len(curves), none, none, at_end=False, reason=reason)


def _within(places: list[Places], selections: list[np.ndarray]) -> tuple[Places, ...]:
    return tuple(points.within(chosen) for points, chosen in zip(places, selections, strict=True))


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
    previous_index = np.clip(np.searchsorted(axis, points * (1 + _ROUNDING), side="right") - 1, 0, len(axis) - 1)
    next_index = np.minimum(previous_index + 1, len(axis) - 1)
    on = np.abs(points - axis[previous_index]) <= _ROUNDING * np.abs(points)
    next_index = np.where(on, previous_index, next_index)
    width = axis[next_index] - axis[previous_index]
    share = np.divide(points - axis[previous_index], width, out=np.zeros(len(points)), where=width > 0)
    return Places(previous_index, next_index, share)
