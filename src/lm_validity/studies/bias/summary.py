"""The bias report's result: built once by `analysis`, written to summary.json, and all that its page shows.

Effects are fractions of accuracy: boost = accuracy(extra) - accuracy(base), bias = accuracy(test) - accuracy(extra).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pandas as pd

from lm_validity.studies.bias.statistics.effects import MeanOverTasks
from lm_validity.summaries import Missing, named, page_only

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = TypeVar("Row", bound="DataclassInstance")


@dataclass(frozen=True)
class Cell:
    """Means of a language model at one m and n, standard errors over task means.

    `subsamples` (the largest number that a task has), `tasks`, `trials`: what the cell holds, whatever the arms. The
    same with `boost_` and `bias_` before them: what has both arms of the effect, on which its mean rests.
    """

    experiment: str
    language_model: str
    m: int
    n: int
    boost_mean: float | Missing
    boost_se: float | Missing
    bias_mean: float | Missing
    bias_se: float | Missing
    subsamples: int
    tasks: int
    trials: int
    boost_subsamples: int
    boost_tasks: int
    boost_trials: int
    bias_subsamples: int
    bias_tasks: int
    bias_trials: int


@dataclass(frozen=True)
class Task:
    """Means of a task; every one of its `cells` weighs the same."""

    experiment: str
    task: str
    boost: float | Missing
    bias: float | Missing
    cells: int


@dataclass(frozen=True)
class TaskEffect:
    """Mean of one task over its cells, which weigh the same; the interval is over subsamples, the random draws.

    excluded_beyond: effects of this size or larger, up or down, are excluded at the 5% level, for this task.
    """

    experiment: str
    task: str
    effect: str
    mean: float
    interval: tuple[float, float] | Missing
    excluded_beyond: float | Missing
    cells: int
    subsamples: int
    trials: int


@dataclass(frozen=True)
class TaskStop:
    """How far a task is in a study whose tasks stop on the width of their interval.

    `subsamples` with both arms of the bias, of the experiment's `most`; half_width: of the interval as it was looked
    at, 0 where all differences are the same; stop_at: the width to reach. state: "stopped", "too wide",
    "planned, not there yet", "cannot be narrow" or "all subsamples".
    """

    experiment: str
    task: str
    subsamples: int
    most: int
    half_width: float | Missing
    stop_at: float
    state: str


@dataclass(frozen=True)
class Setting:
    """Model-free mean over the tasks of an (experiment, m, n); the language models of a task are averaged first."""

    experiment: str
    m: int
    n: int
    effect: str
    over_tasks: MeanOverTasks


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One fit of the hierarchical model; `difference*` are accuracies, `beta*` and `scales` log-odds.

    `marginal_*`: the effect in accuracy for new tasks and trainings, with a 95% interval (see `statistics.marginal`).
    `difference_draws`: posterior predictive, for these tasks and trainings; `by_task`: its quantiles and the observed
    difference of each task. `accuracies`: predicted and observed, by task, language_model and arm.
    `effective_nodes`: of the importance sampling; `effective_draws_min`: the smallest of any parameter.
    """

    experiment: str
    m: int
    n: int
    effect: str
    formula: str
    sampler: str
    beta_mean: float
    beta_sd: float
    interval: tuple[float, float] = named("interval89")
    marginal_mean: float
    marginal_interval: tuple[float, float]
    difference_mean: float
    difference_interval: tuple[float, float] = named("difference_interval89")
    divergences: int | Missing
    rhat_max: float | Missing
    effective_nodes: float | Missing
    effective_draws_min: float | Missing
    reliable: bool
    log_evidence: float | Missing
    scales: dict[str, float] = named("standard_deviations")
    difference_draws: np.ndarray = page_only()
    accuracies: pd.DataFrame | Missing = page_only()
    by_task: pd.DataFrame | Missing = page_only()

    @property
    def excludes_zero(self) -> int:
        """1 or -1 where the 89% interval of beta lies above or below zero, else 0."""
        return _side(self.interval)

    @property
    def marginal_excludes_zero(self) -> int:
        """1 or -1 where the 95% interval of the marginal effect lies above or below zero, else 0."""
        return _side(self.marginal_interval)


def _side(interval: tuple[float, float]) -> int:
    return int(interval[0] > 0) - int(interval[1] < 0)


@dataclass(frozen=True)
class TaskTest:
    """Exact sign-flip test of one task in a cell; adjusted over the tasks of the cell.

    smallest_detectable: the mean difference that q < .05 finds four times out of five, were this the cell's only task
    with an effect.
    """

    experiment: str
    language_model: str
    m: int
    n: int
    task: str
    effect: str
    p: float
    p_adjusted: float
    smallest_detectable: float | Missing
    mean: float = page_only()
    trials: int = page_only()


@dataclass(frozen=True)
class Correlation:
    """Whether two language models show an effect in the same subsamples: see `statistics.effects.common_subsamples`.

    `tasks` with at least three common subsamples whose differences vary, `subsamples` of them together. null_interval:
    of the mean, 95%, where subsamples have nothing in common; p: one-sided, greater.
    """

    experiment: str
    m: int
    n: int
    effect: str
    language_model: str
    other: str
    tasks: int
    subsamples: int
    correlation: float | Missing
    null_interval: tuple[float, float] | Missing
    p: float | Missing


@dataclass(frozen=True)
class Slices:
    """What studies with one split for each task would have found; `means` (slices,) of beta's posterior."""

    experiment: str
    m: int
    n: int
    slices: int
    threshold: float
    share_beyond: float | Missing
    share_excluding_zero: float | Missing
    share_t_excluding_zero: float | Missing
    means: np.ndarray | Missing = page_only()


@dataclass(frozen=True)
class Power:
    """What a cell's t test over task means can find."""

    experiment: str
    language_model: str
    m: int
    n: int
    effect_size: float
    within_task_sd: float | Missing
    between_tasks_sd: float | Missing
    tasks: int
    subsamples: int
    power: float | Missing
    smallest_detectable: float | Missing
    subsamples_needed: int | Missing
    tasks_needed: int | Missing


@dataclass(frozen=True)
class Drift:
    """Base accuracy at one n against the n with most trials, which it cannot depend on; `mixed`: it does."""

    experiment: str
    language_model: str
    m: int
    n: int
    reference_n: int
    base: float
    reference_base: float
    difference: float
    z: float | Missing
    p: float
    mixed: bool


@dataclass(frozen=True)
class Loss:
    """Mean pretraining loss of a cell's two arms, nats for each predicted token."""

    experiment: str
    language_model: str
    m: int
    n: int
    extra: float
    test: float


@dataclass(frozen=True)
class Mismatch:
    """Subsamples that language models share by number, and how many of them have different test sets."""

    experiment: str
    m: int
    n: int
    task: str
    subsamples: int
    mismatched: int


@dataclass(frozen=True)
class BiasSummary:
    """Everything that the report says. `trials` is the frame of `table.pair_arms`."""

    headline: dict[str, dict[str, MeanOverTasks | Missing]]
    cells: tuple[Cell, ...]
    tasks: tuple[Task, ...]
    by_task: tuple[TaskEffect, ...]
    stops: tuple[TaskStop, ...]
    settings: tuple[Setting, ...]
    posterior: tuple[Fit, ...]
    permutation: tuple[TaskTest, ...]
    correlations: tuple[Correlation, ...]
    meta_analysis: tuple[Slices, ...]
    power: tuple[Power, ...]
    base_drift: tuple[Drift, ...]
    pretraining_loss: tuple[Loss, ...]
    test_set_mismatches: tuple[Mismatch, ...]
    notes: tuple[str, ...]
    trials: pd.DataFrame = page_only()
    headline_formula: str = page_only()

    @property
    def experiments(self) -> list[str]:
        """The experiments in the order of the tables."""
        return list(dict.fromkeys(cell.experiment for cell in self.cells))

    def fits(self, effect: str, experiment: str | None = None, formula: str | None = None) -> list[Fit]:
        """The fits of an effect, of one experiment or formula where given, in the order of the settings."""
        chosen = {"experiment": experiment, "formula": formula}
        wanted = {"effect": effect} | {name: value for name, value in chosen.items() if value is not None}
        return [fit for fit in self.posterior if all(getattr(fit, name) == v for name, v in wanted.items())]


def rows_frame(kind: type[Row], rows: Sequence[Row]) -> pd.DataFrame:
    """Rows of the dataclass `kind` as a frame, a column for each field; `Missing` values stay as they are."""
    names = [one.name for one in fields(kind)]
    return pd.DataFrame([[getattr(row, name) for name in names] for row in rows], columns=names)
