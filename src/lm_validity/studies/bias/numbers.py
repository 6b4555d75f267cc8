"""What the bias study found: the record of which its page and its summary.json are made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pandas as pd

from lm_validity.missing import Missing
from lm_validity.results.summary import page_only
from lm_validity.studies.bias.effects import (
    CellPower,
    ModelDistributions,
    TaskEffect,
    TaskStop,
    accuracies,
    cell_effects,
    cell_power,
    effects_by_task,
    headline,
    model_correlations,
    model_distributions,
    task_effects,
    task_stops,
    task_tests,
)
from lm_validity.studies.bias.hierarchy import (
    Fit,
    Fits,
    SettingEffect,
    SliceShares,
    TrialSpread,
    fit_all,
    setting_effects,
    slice_shares,
    trial_spreads,
    unreliable_fits,
)
from lm_validity.studies.bias.statistics.effects import JointMean
from lm_validity.studies.bias.trials import (
    EFFECTS,
    Study,
    base_by_n,
    base_drift,
    coverage_notes,
    mismatched_test_sets,
    pretraining_losses,
    provenance_notes,
)

READING_NOTES = (
    "Boost and bias share the extra arm: if chance raises accuracy(extra), the boost rises and the bias falls. "
    "Do not read the two together as if they were independent.",
    "A boost from text of the benchmark's own domain can itself be unfair: a model may generalise better within "
    "that domain only, and a score that it gains there need not show elsewhere.",
    "Means of a cell and their standard errors are over task means. In means by task, every cell (language model, m, "
    "n) has the same weight. Intervals are 95% intervals, except those of the sections on the "
    "formulas and on one subsample per task, which are 89%, as in the paper.",
)


@dataclass(frozen=True)
class CellMeans:
    """Means of a cell over its tasks' means, their standard errors, and what they rest on (`effects.cell_effects`)."""

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
class TaskMeans:
    """Means of a task over its `cells`, which weigh the same (`effects.task_effects`)."""

    experiment: str
    task: str
    boost: float | Missing
    bias: float | Missing
    cells: int


@dataclass(frozen=True)
class TaskTest:
    """The exact sign-flip test of an effect in a cell of a task (`effects.task_tests`)."""

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
class ModelCorrelation:
    """Whether two language models show an effect in the same subsamples (`effects.model_correlations`)."""

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
class BaseDrift:
    """Base accuracy at one n against that at another, which cannot depend on it (`trials.base_drift`)."""

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
class PretrainingLoss:
    """Mean loss of a cell's last epoch, by arm, in nats per predicted token (`trials.pretraining_losses`)."""

    experiment: str
    language_model: str
    m: int
    n: int
    extra: float
    test: float


@dataclass(frozen=True)
class TestSetMismatch:
    """Subsamples that language models share by number but not by test set (`trials.mismatched_test_sets`)."""

    experiment: str
    m: int
    n: int
    task: str
    subsamples: int
    mismatched: int


@dataclass(frozen=True)
class Extent:
    """How many language models, tasks, settings of m and n, and trials there are."""

    language_models: int
    tasks: int
    settings: int
    trials: int


@dataclass(frozen=True)
class BiasSummary:
    """What the bias study found.

    headline: by experiment and effect, the mean over tasks. by_task: each task's effects, with intervals over
    subsamples. stops: of tasks that stop on the width of these. posterior: the fits. permutation: tests by task.
    correlations: of an effect between language models. meta_analysis: what slices of one subsample a task show.

    extent: of each experiment, what there is. complete: by experiment and effect, what has both its arms. main: the
    formula to trust.
    """

    headline: dict[str, dict[str, JointMean | Missing]]
    cells: list[CellMeans]
    tasks: list[TaskMeans]
    by_task: list[TaskEffect]
    stops: list[TaskStop]
    settings: list[SettingEffect]
    posterior: tuple[Fit, ...]
    permutation: list[TaskTest]
    correlations: list[ModelCorrelation]
    meta_analysis: list[SliceShares]
    power: list[CellPower]
    base_drift: list[BaseDrift]
    pretraining_loss: list[PretrainingLoss]
    test_set_mismatches: list[TestSetMismatch]
    notes: tuple[str, ...]
    fits: Fits = page_only()
    extent: dict[str, Extent] = page_only()
    complete: dict[str, dict[str, Extent]] = page_only()
    distributions: list[ModelDistributions] = page_only()
    trial_spreads: list[TrialSpread] = page_only()
    accuracies: pd.DataFrame = page_only()
    base_by_n: pd.DataFrame = page_only()


def analyze_bias(study: Study, sampler: str = "laplace", formula: str = "all") -> BiasSummary:
    """Everything that the trials of a study tell. Raises InputError where they are not those of its plan.

    `sampler`: laplace (seconds a fit) or nuts (minutes; needs the extra `bayes`). `formula`: all, or one of
    `statistics.latent.FORMULAS`.
    """
    trials, plan = study.trials, study.plan
    stops = task_stops(trials, plan)  # first: it refuses trials that are not those of the plan
    fits = fit_all(trials, formula, sampler)
    tasks = task_effects(trials)
    drift, mismatches = base_drift(trials), mismatched_test_sets(trials)
    of_experiment = {name: trials[trials["experiment"] == name] for name in study.experiments}
    return BiasSummary(
        headline=headline(tasks),
        cells=_records(CellMeans, cell_effects(trials)),
        tasks=_records(TaskMeans, tasks),
        by_task=effects_by_task(trials, plan),
        stops=stops,
        settings=setting_effects(trials),
        posterior=fits.fits,
        permutation=_records(TaskTest, task_tests(trials)),
        correlations=_records(ModelCorrelation, model_correlations(trials)),
        meta_analysis=slice_shares(fits),
        power=cell_power(trials),
        base_drift=_records(BaseDrift, drift),
        pretraining_loss=_records(PretrainingLoss, pretraining_losses(trials)),
        test_set_mismatches=_records(TestSetMismatch, mismatches),
        notes=(
            *READING_NOTES,
            *coverage_notes(trials, plan),
            *unreliable_fits(fits),
            *provenance_notes(drift, mismatches),
        ),
        fits=fits,
        extent={name: _extent(rows) for name, rows in of_experiment.items()},
        complete={
            name: {effect: _extent(rows.dropna(subset=list(arms))) for effect, arms in EFFECTS.items()}
            for name, rows in of_experiment.items()
        },
        distributions=model_distributions(trials),
        trial_spreads=trial_spreads(trials),
        accuracies=accuracies(trials),
        base_by_n=base_by_n(trials),
    )


RecordType = TypeVar("RecordType")


def _records(kind: Callable[..., RecordType], frame: pd.DataFrame) -> list[RecordType]:
    """The rows of a frame, whose columns are the fields of `kind`."""
    return [kind(**row) for row in frame.to_dict("records")]


def _extent(trials: pd.DataFrame) -> Extent:
    settings = trials[["m", "n"]].drop_duplicates()
    return Extent(trials["language_model"].nunique(), trials["task"].nunique(), len(settings), len(trials))
