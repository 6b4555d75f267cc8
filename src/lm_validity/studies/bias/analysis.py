"""The bias report's summary, computed from the trials table."""

import pandas as pd

from lm_validity.config.plan import BiasPlan
from lm_validity.studies.bias.by_task import effects_by_task
from lm_validity.studies.bias.distributions import model_correlations
from lm_validity.studies.bias.effects import (
    cell_effects,
    coverage_notes,
    headline,
    mean_losses,
    setting_effects,
    task_effects,
    task_tests,
)
from lm_validity.studies.bias.fits import fit_all, reliability_notes
from lm_validity.studies.bias.provenance import base_drift, mismatched_test_sets, provenance_notes
from lm_validity.studies.bias.statistics.effects import (
    VarianceComponents,
    detection_power,
    smallest_detectable,
    subsamples_needed,
    tasks_needed,
    variance_components,
)
from lm_validity.studies.bias.statistics.model import FORMULAS
from lm_validity.studies.bias.stops import task_stops
from lm_validity.studies.bias.summary import BiasSummary, Power
from lm_validity.studies.bias.table import CELL, setting_counts
from lm_validity.summaries import Missing

HEADLINE_FORMULA = "overdispersed"
DETECTABLE_BIAS = 0.005  # half a point of accuracy, what the power analysis asks for
READING_NOTES = (
    "Boost and bias share the extra arm: if chance raises accuracy(extra), the boost rises and the bias falls. "
    "Do not read the two together as if they were independent.",
    "A boost from text of the benchmark's own domain can itself be unfair: a model may generalise better within "
    "that domain only, and a score that it gains there need not show elsewhere.",
    "Means of a cell and their standard errors are over task means. In means by task, every cell (language model, m, "
    "n) has the same weight. Intervals are 95% intervals, except those of the sections on the "
    "formulas and on one subsample per task, which are 89%, as in the paper.",
)


def analyze_bias(
    trials: pd.DataFrame, sampler: str = "laplace", formula: str = "all", plan: BiasPlan | None = None
) -> BiasSummary:
    """Analyse the frame of `table.pair_arms` with the named sampler and formula (or all formulas). `plan`: where tasks
    stop on the width of their interval."""
    stops = task_stops(trials, plan)
    names = list(FORMULAS) if formula == "all" else [formula]
    fits, slices = fit_all(setting_counts(trials), names, sampler)
    tasks, drift, mismatches = task_effects(trials), base_drift(trials), mismatched_test_sets(trials)
    notes = (
        *READING_NOTES,
        *coverage_notes(trials, plan),
        *provenance_notes(drift, mismatches),
        *reliability_notes(fits),
    )
    return BiasSummary(
        headline=headline(tasks),
        cells=cell_effects(trials),
        tasks=tasks,
        by_task=effects_by_task(trials, plan),
        stops=stops,
        settings=setting_effects(trials),
        posterior=fits,
        permutation=task_tests(trials),
        correlations=model_correlations(trials),
        meta_analysis=slices,
        power=cell_power(trials),
        base_drift=drift,
        pretraining_loss=mean_losses(trials),
        test_set_mismatches=mismatches,
        notes=notes,
        trials=trials,
        headline_formula=HEADLINE_FORMULA if HEADLINE_FORMULA in names else names[0],
    )


def cell_power(trials: pd.DataFrame) -> tuple[Power, ...]:
    """What each cell could have detected, and what it would take to detect `DETECTABLE_BIAS`."""
    rows = []
    both = trials.dropna(subset=["extra", "test"])
    for key, cell in both.groupby(CELL):
        components = variance_components(((cell["test"] - cell["extra"]) / cell["total"]).to_numpy(), cell["task"])
        tasks = cell["task"].nunique()
        subsamples = max(1, round(len(cell) / tasks))
        rows.append(_power(key, components, tasks, subsamples))
    return tuple(rows)


def _power(
    key: tuple[str, str, int, int], components: VarianceComponents | Missing, tasks: int, subsamples: int
) -> Power:
    if isinstance(components, Missing):
        why = components
        return Power(*key, DETECTABLE_BIAS, why, why, tasks, subsamples, why, why, why, why)
    return Power(
        *key,
        effect_size=DETECTABLE_BIAS,
        within_task_sd=components.within_task,
        between_tasks_sd=components.between_tasks,
        tasks=tasks,
        subsamples=subsamples,
        power=detection_power(DETECTABLE_BIAS, components, tasks, subsamples),
        smallest_detectable=smallest_detectable(components, tasks, subsamples),
        subsamples_needed=subsamples_needed(DETECTABLE_BIAS, components, tasks),
        tasks_needed=tasks_needed(DETECTABLE_BIAS, components, subsamples),
    )
