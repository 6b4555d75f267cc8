"""One benchmark's scores from learning curves, the same code for the curves themselves and for resampled ones."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from lm_validity.config.sections import SignalConventions
from lm_validity.studies.signal.alignment import Alignment, align
from lm_validity.studies.signal.curves import (
    Curve,
    LearningCurves,
    select,
    select_for_compliance,
    select_for_ranking,
)
from lm_validity.studies.signal.statistics.quality import (
    SignalQuality,
    overall_score,
    signal_quality,
)
from lm_validity.studies.signal.statistics.ranking import (
    E2LM_WINDOWS,
    Normalisation,
    PairConsistency,
    RankingWindows,
    compliance,
    pair_consistency,
)
from lm_validity.summaries import Missing
from lm_validity.tables.reruns import NOT_MEASURED, TrainingNoise

FITTED_WINDOWS = replace(E2LM_WINDOWS, relative=True)

# Scores of each model, (..., n): leading axes are resamples, the last one the checkpoints of the model's curve
Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class Pair:
    """Two models at their common points of training, and which of these lie in the windows of ranking consistency."""

    first: str
    second: str
    alignment: Alignment
    size: str = ""
    base: np.ndarray | None = None
    later: np.ndarray | None = None

    def read(self, values: Values) -> tuple[np.ndarray, np.ndarray]:
        """The (..., points) of both models' values (..., n)."""
        first, second = self.alignment.places
        return first.read(values[self.first]), second.read(values[self.second])

    @property
    def windows(self) -> tuple[np.ndarray, np.ndarray]:
        """(base, later) of a pair that has them."""
        assert self.base is not None and self.later is not None
        return self.base, self.later

    @property
    def counts(self) -> bool:
        """Whether there is a checkpoint in either window."""
        base, later = self.windows
        return bool(base.any() and later.any())


@dataclass(frozen=True)
class Design:
    """Which models and checkpoints of one benchmark each score reads."""

    benchmark: str
    direction_assumed: bool  # nothing says it
    direction: float  # -1 where the metric is better when lower: curves are the metric times this
    windows: RankingWindows
    curves: dict[str, Curve]
    reruns: dict[str, list[Curve]]  # other trainings of models in `curves`
    training_noise: TrainingNoise | Missing
    selected: dict[str, np.ndarray]  # by model: checkpoints of signal quality
    scored: list[str]
    sizes: dict[str, list[str]]  # scored models by size
    ranking_pairs: list[Pair]
    fitted_pairs: list[Pair]  # the same pairs, with windows that fit the length of each one's training
    compliance_pairs: list[Pair]  # first: science, second: web
    alignment: Alignment  # of the scored models
    larger_pairs: list[tuple[int, int]]  # (smaller, larger) among `scored`, alike but for size


@dataclass(frozen=True)
class OrderScores:
    """Ranking consistency under one choice of windows; arrays have the values' leading shape."""

    pairs: list[PairConsistency]
    by_size: dict[str, np.ndarray]
    value: np.ndarray
    with_last: np.ndarray


@dataclass(frozen=True)
class Scores:
    """Scores of one benchmark; arrays have the values' leading shape."""

    quality: dict[str, SignalQuality]
    mean_quality: np.ndarray  # over scored models
    quality_by_size: dict[str, np.ndarray]
    consistency: OrderScores
    fitted: OrderScores
    compliance: np.ndarray
    gap: np.ndarray
    overall: np.ndarray


def make_design(learning: LearningCurves, benchmark: str, options: SignalConventions) -> Design:
    """Decide once what belongs together: pairs of architectures, science and web models, common points of training."""
    curves = {
        model: learning.curves[benchmark][model] for model in learning.models if model in learning.curves[benchmark]
    }
    facts, selection = learning.facts, learning.selection
    scored = learning.scored(benchmark)
    sizes: dict[str, list[str]] = {}
    for model in scored:
        if pd.notna(facts.at[model, "size"]):
            sizes.setdefault(str(facts.at[model, "size"]), []).append(model)
    windows = windows_of(learning, options)
    return Design(
        benchmark=benchmark,
        direction_assumed=benchmark in learning.assumed,
        direction=learning.direction[benchmark],
        windows=windows,
        curves=curves,
        reruns=learning.reruns.get(benchmark, {}),
        training_noise=learning.training_noise.get(benchmark, Missing(NOT_MEASURED)),
        selected={model: select(curve, selection) for model, curve in curves.items()},
        scored=scored,
        sizes=sizes,
        ranking_pairs=_ranking_pairs(curves, facts, sizes, selection, windows),
        fitted_pairs=_ranking_pairs(curves, facts, sizes, selection, FITTED_WINDOWS),
        compliance_pairs=_compliance_pairs(curves, facts, selection),
        alignment=align({model: curves[model] for model in scored}),
        larger_pairs=_larger_pairs(scored, facts),
    )


def windows_of(learning: LearningCurves, conventions: SignalConventions) -> RankingWindows:
    """The windows of ranking consistency. The competition's are scaled to the length of each pair's training where
    every training is over before the first of them, or tokens are unknown."""
    windows = RankingWindows(conventions.base_window, conventions.later_window)
    if windows != E2LM_WINDOWS:
        return windows
    ends = [curve.tokens_b[-1] for by_model in learning.curves.values() for curve in by_model.values()]
    return replace(windows, relative=bool(not np.nanmax([*ends, 0.0]) >= windows.base[0]))


def point_values(design: Design) -> Values:
    """The curves themselves."""
    return {model: curve.values for model, curve in design.curves.items()}


def compute_scores(design: Design, values: Values, options: SignalConventions, chance: float | None = None) -> Scores:
    """All scores of a benchmark from `values`, e.g. bootstrap means (resamples, n) of every model."""
    quality = {
        model: signal_quality(values[model][..., design.selected[model]], options.convention, options.ties)
        for model in design.curves
    }
    by_model = {model: quality[model].signal_quality for model in design.scored}
    mean_quality = mean_of_known(list(by_model.values()))
    consistency = _order_scores(design.ranking_pairs, values)
    value, gap = compliance_of(design, values, options.normalisation, chance)
    return Scores(
        quality=quality,
        mean_quality=mean_quality,
        quality_by_size={
            size: mean_of_known([by_model[model] for model in models]) for size, models in design.sizes.items()
        },
        consistency=consistency,
        fitted=_order_scores(design.fitted_pairs, values),
        compliance=value,
        gap=gap,
        overall=overall_score(
            np.stack(np.broadcast_arrays(mean_quality, consistency.value, value), -1), options.weights
        ),
    )


def _order_scores(pairs: list[Pair], values: Values) -> OrderScores:
    found = [pair_consistency(*pair.read(values), *pair.windows) for pair in pairs]
    by_size = _by_size(pairs, [each.value for each in found])
    value = mean_of_known(list(by_size.values()))
    return OrderScores(found, by_size, value, mean_over_sizes(pairs, [each.with_last for each in found]))


def compliance_of(
    design: Design, values: Values, normalisation: Normalisation, chance: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Compliance and raw gap, mean over the pairs of a science and a web model; NaN without one."""
    if normalisation == "above_chance" and chance is None:
        return np.array(np.nan), np.array(np.nan)
    found = [compliance(*pair.read(values), normalisation, chance) for pair in design.compliance_pairs]
    return mean_of_known([each.value for each in found]), mean_of_known([each.gap for each in found])


def mean_of_known(arrays: list[np.ndarray]) -> np.ndarray:
    """Mean over a list of equally shaped arrays, NaN left out; NaN where none is known."""
    if not arrays:
        return np.array(np.nan)
    stacked = np.stack(np.broadcast_arrays(*arrays))
    known = ~np.isnan(stacked)
    total = np.where(known, stacked, 0.0).sum(axis=0)
    count = known.sum(axis=0)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def mean_over_sizes(pairs: list[Pair], values: list[np.ndarray]) -> np.ndarray:
    """Mean over sizes of the mean over the pairs of each, so that every size has one vote; NaN is left out."""
    return mean_of_known(list(_by_size(pairs, values).values()))


def ranked_curves(design: Design, values: Values) -> np.ndarray:
    """Values (..., models, points) of the scored models at their common points of training."""
    places = zip(design.scored, design.alignment.places, strict=True)
    return np.stack([found.read(values[model]) for model, found in places], axis=-2)


def _ranking_pairs(
    curves: dict[str, Curve], facts: pd.DataFrame, sizes: dict[str, list[str]], selection: str, windows: RankingWindows
) -> list[Pair]:
    """Pairs of one size and training data and of two architectures, the alphabetically first architecture first."""
    pairs = []
    for size, models in sizes.items():
        by_name = sorted(models, key=lambda model: (str(facts.at[model, "architecture"]), model))
        for first, second in combinations(by_name, 2):
            a, b = facts.loc[first], facts.loc[second]
            known = pd.notna(a["architecture"]) and pd.notna(b["architecture"])
            if not known or a["architecture"] == b["architecture"] or not _alike(a, b, "training_data"):
                continue
            both = {first: curves[first], second: curves[second]}
            found = align(both, [select_for_ranking(curve, selection) for curve in both.values()])
            # relative windows are shares of the training, whatever it is counted in; the others are billions of tokens
            base, later = windows.masks(found.progress if windows.relative else found.tokens_b)
            pairs.append(Pair(first, second, found, size, base, later))
    return pairs


def _compliance_pairs(curves: dict[str, Curve], facts: pd.DataFrame, selection: str) -> list[Pair]:
    """Pairs of a science and a web model of one size, of one architecture where it is known."""
    pairs, rows = [], facts.to_dict("index")
    for science in curves:
        for web in curves:
            a, b = rows[science], rows[web]
            if a["training_data"] != "science" or b["training_data"] != "web":
                continue
            if pd.isna(a["size"]) or a["size"] != b["size"] or not _alike(a, b, "architecture"):
                continue
            both = {science: curves[science], web: curves[web]}
            found = align(both, [select_for_compliance(curve, selection) for curve in both.values()])
            pairs.append(Pair(science, web, found, str(a["size"])))
    return pairs


def _larger_pairs(models: list[str], facts: pd.DataFrame) -> list[tuple[int, int]]:
    """Indices (smaller, larger) of models that differ in parameters but not in architecture and training data."""
    pairs, rows = [], facts.to_dict("index")
    for (i, first), (j, second) in combinations(enumerate(models), 2):
        a, b = rows[first], rows[second]
        if not (_alike(a, b, "architecture") and _alike(a, b, "training_data")):
            continue
        sizes = parameters(a), parameters(b)
        if np.isnan(sizes).any() or sizes[0] == sizes[1]:
            continue
        pairs.append((i, j) if sizes[0] < sizes[1] else (j, i))
    return pairs


def parameters(fact: Mapping[str, Any]) -> float:
    """Parameters in billions, from the sheet or from a size such as 500m or 1b; NaN where neither says."""
    if pd.notna(fact["parameters_b"]):
        return float(fact["parameters_b"])
    size = str(fact["size"]).casefold() if pd.notna(fact["size"]) else ""
    scale = {"k": 1e-6, "m": 1e-3, "b": 1.0}.get(size[-1:])
    try:
        return float(size[:-1]) * scale if scale is not None else float("nan")
    except ValueError:
        return float("nan")


def _alike(a: Mapping[str, Any], b: Mapping[str, Any], column: str) -> bool:
    """Equal, or unknown in either."""
    return bool(pd.isna(a[column]) or pd.isna(b[column]) or a[column] == b[column])


def _by_size(pairs: list[Pair], values: list[np.ndarray]) -> dict[str, np.ndarray]:
    found: dict[str, list[np.ndarray]] = {}
    for pair, value in zip(pairs, values, strict=True):
        found.setdefault(pair.size, []).append(value)
    return {size: mean_of_known(each) for size, each in found.items()}
