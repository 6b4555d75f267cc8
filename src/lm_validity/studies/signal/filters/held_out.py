"""Judge filters on models and checkpoints that they were not fitted on."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.studies.signal.filters.base import (
    Candidates,
    ItemFilter,
    keep_items,
    leaves,
    model_scores,
    reference_models,
    with_references,
)
from lm_validity.studies.signal.statistics.quality import MINIMUM_CHECKPOINTS, Convention
from lm_validity.studies.signal.statistics.splits import (
    FilterTrial,
    Fold,
    Rows,
    disjoint_checkpoints,
    judge_filter,
    leave_one_group_out,
)
from lm_validity.tables.item_arrays import BenchmarkItems

DESIGNS = {
    "architecture": "each architecture's models scored with items chosen on the other's",
    "size": "each size's models scored with items chosen on the other sizes'",
    "model": "each model scored with items chosen on the others",
    "checkpoints": "alternate checkpoints scored with items chosen on those between",
    "references": "the other models scored with items that the filter's own two models chose",
    "fit_models": "the other models scored with items chosen on the recipe's fit_models",
}


def folds_by_design(
    candidates: Candidates,
    models: pd.DataFrame,
    fit_models: tuple[str, ...] = (),
    filters: Sequence[ItemFilter] = (),
) -> dict[str, list[Fold]]:
    """The designs that the models allow. `models` has model, size and architecture (null where unknown).

    Without two architectures or two sizes, models are left out one by one. Models with fewer than eight
    checkpoints cannot be scored and take no part. With `fit_models` there is one fold: these choose, the
    others are scored. Models by which one of `filters` chooses take no part but in `fit_models`; where no
    filter looks at others, there is one fold that scores all others.
    """
    answers = candidates.need_answers("held-out judgement")
    facts = models.set_index("model").reindex([model.model for model in answers.models])
    counts = [len(model.checkpoints) for model in answers.models]
    references = reference_models(filters)
    free = [index for index, model in enumerate(answers.models) if model.model not in references]
    usable = [index for index in free if counts[index] >= MINIMUM_CHECKPOINTS]

    everything = [(index, np.arange(counts[index])) for index in range(len(counts))]
    fitted = [item_filter for item_filter in leaves(filters) if item_filter.fitted]
    if references and all(reference_models([item_filter]) for item_filter in fitted):
        chosen = [row for row in everything if row[0] not in free]
        others = [everything[index] for index in usable if answers.models[index].model not in fit_models]
        return {"references": [Fold("other models", tuple(chosen), tuple(others))]} if others else {}
    if fit_models:
        chosen = [row for row in everything if answers.models[row[0]].model in fit_models]
        others = [everything[index] for index in usable if answers.models[index].model not in fit_models]
        return {"fit_models": [Fold("other models", tuple(chosen), tuple(others))]} if chosen and others else {}

    designs = {}
    for design in ("architecture", "size"):
        named = [index for index in usable if pd.notna(facts[design].iloc[index])]
        designs[design] = _leave_out(named, [str(facts[design].iloc[index]) for index in named], counts)
    if not any(designs.values()):
        designs["model"] = _leave_out(usable, [answers.models[index].model for index in usable], counts)
    designs["checkpoints"] = [
        _renumbered(fold, free) for fold in disjoint_checkpoints([counts[index] for index in free])
    ]
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
    candidates = with_references(candidates, filters)
    answers = candidates.need_answers("held-out judgement")
    scored = [model_scores(answers, model, metric) for model in answers.models]
    designs = folds_by_design(candidates, models, fit_models, filters)
    if not designs:
        raise InputError(
            f"benchmark {answers.benchmark!r}: nothing is left to judge the filter on that it was not fitted to; "
            f"models and checkpoints: {_listing(answers)}.",
            f"give a second model with at least {MINIMUM_CHECKPOINTS} checkpoints, or "
            f"{2 * MINIMUM_CHECKPOINTS - 1} checkpoints of one.",
        )

    def fit(rows: Rows) -> np.ndarray:
        return keep_items(filters, candidates.rows(rows)).kept

    return {
        design: judge_filter(fit, scored, folds, generator, controls, convention) for design, folds in designs.items()
    }


def verdict(trial: FilterTrial) -> str:
    """One sentence for a trial: all of in-sample, held-out and control, and what follows."""
    fitted = f"{trial.in_sample:.3f}" if np.isfinite(trial.in_sample) else "unknown (it keeps nothing)"
    figures = (
        f"signal quality {fitted} where it was fitted, {trial.held_out:.3f} where it was not "
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
    return [_renumbered(fold, indices) for fold in leave_one_group_out(groups, [counts[index] for index in indices])]


def _renumbered(fold: Fold, indices: list[int]) -> Fold:
    """A fold of some of the models, numbered as among all."""

    def renumber(rows: Rows) -> Rows:
        return tuple((indices[model], checkpoints) for model, checkpoints in rows)

    return replace(fold, fit=renumber(fold.fit), score=renumber(fold.score))


def _listing(answers: BenchmarkItems) -> str:
    return ", ".join(f"{model.model} {len(model.checkpoints)}" for model in answers.models)
