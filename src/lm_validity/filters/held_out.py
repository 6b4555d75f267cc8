"""Judge filters on models and checkpoints that they were not fitted on."""

from dataclasses import replace

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.filters.base import Candidates, ItemFilter, keep_items, model_scores
from lm_validity.statistics.signal_quality import MINIMUM_CHECKPOINTS, Convention
from lm_validity.statistics.signal_splits import (
    FilterTrial,
    Fold,
    disjoint_checkpoints,
    judge_filter,
    leave_one_group_out,
)

DESIGNS = {
    "architecture": "each architecture's models scored with items chosen on the other's",
    "size": "each size's models scored with items chosen on the other sizes'",
    "model": "each model scored with items chosen on the others",
    "checkpoints": "alternate checkpoints scored with items chosen on those between",
    "fit_models": "the other models scored with items chosen on the recipe's fit_models",
}


def folds_by_design(
    candidates: Candidates, models: pd.DataFrame, fit_models: tuple[str, ...] = ()
) -> dict[str, list[Fold]]:
    """The designs that the models allow. `models` has model, size and architecture (null where unknown).

    Without two architectures or two sizes, models are left out one by one. Models with fewer than eight
    checkpoints cannot be scored and take no part. With `fit_models` there is one fold: these choose, the
    others are scored.
    """
    answers = candidates.need_answers("held-out judgement")
    facts = models.set_index("model").reindex([model.model for model in answers.models])
    counts = [len(model.checkpoints) for model in answers.models]
    usable = [index for index, count in enumerate(counts) if count >= MINIMUM_CHECKPOINTS]

    if fit_models:
        everything = [(index, np.arange(counts[index])) for index in range(len(counts))]
        chosen = [row for row in everything if answers.models[row[0]].model in fit_models]
        others = [everything[index] for index in usable if answers.models[index].model not in fit_models]
        return {"fit_models": [Fold("other models", tuple(chosen), tuple(others))]} if chosen and others else {}

    designs = {}
    for design in ("architecture", "size"):
        named = [index for index in usable if pd.notna(facts[design].iloc[index])]
        designs[design] = _leave_out(named, [str(facts[design].iloc[index]) for index in named], counts)
    if not any(designs.values()):
        designs["model"] = _leave_out(usable, [answers.models[index].model for index in usable], counts)
    designs["checkpoints"] = disjoint_checkpoints(counts)
    return {design: folds for design, folds in designs.items() if folds}


def judge(
    filters: list[ItemFilter],
    candidates: Candidates,
    models: pd.DataFrame,
    metric: str,
    generator: np.random.Generator,
    controls: int = 200,
    convention: Convention = "code",
    fit_models: tuple[str, ...] = (),
) -> dict[str, FilterTrial]:
    """The filters' trial under each design that the models allow; curves are means of the item score
    `metric`.

    Raises InputError where no design is possible: an in-sample figure alone is not given.
    """
    answers = candidates.need_answers("held-out judgement")
    scored = [model_scores(answers, model, metric) for model in answers.models]
    designs = folds_by_design(candidates, models, fit_models)
    if not designs:
        raise InputError(
            f"benchmark {answers.benchmark!r}: the filter cannot be judged on what it was not fitted on; "
            f"models and checkpoints: {_listing(answers)}.",
            f"give a second model with at least {MINIMUM_CHECKPOINTS} checkpoints, or "
            f"{2 * MINIMUM_CHECKPOINTS - 1} checkpoints of one.",
        )

    def fit(rows):
        return keep_items(filters, candidates.rows(rows)).kept

    return {
        design: judge_filter(fit, scored, folds, generator, controls, convention) for design, folds in designs.items()
    }


def verdict(trial: FilterTrial) -> str:
    """One sentence for a trial: all of in-sample, held-out and control, and what follows."""
    figures = (
        f"signal quality {trial.in_sample:.3f} where it was fitted, {trial.held_out:.3f} where it was not "
        f"(all items: {trial.unfiltered:.3f}; random choices of the same size: {trial.control_mean:.3f}, "
        f"97.5% of them below {trial.control_high:.3f})"
    )
    if not np.isfinite(trial.held_out) or not np.isfinite(trial.p):
        return "The filter keeps nothing in some split: it cannot be judged."
    if trial.useful:
        return f"The filter helps beyond its own data: {figures}."
    return f"The filter found nothing that holds beyond its own data: {figures}."


def _leave_out(indices: list[int], groups: list[str], counts: list[int]) -> list[Fold]:
    """Leave-one-group-out folds of some of the models."""
    folds = leave_one_group_out(groups, [counts[index] for index in indices])

    def renumber(rows):
        return tuple((indices[model], checkpoints) for model, checkpoints in rows)

    return [replace(fold, fit=renumber(fold.fit), score=renumber(fold.score)) for fold in folds]


def _listing(answers) -> str:
    return ", ".join(f"{model.model} {len(model.checkpoints)}" for model in answers.models)
