"""A recipe applied: the items that stay, and how the filter does on models that it did not see."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.files import json_text
from lm_validity.studies.signal.filters.kinds import (
    Candidates,
    ItemFilter,
    keep_items,
    leaves,
    model_scores,
    reference_models,
    with_references,
)
from lm_validity.studies.signal.filters.recipe import Recipe, selection_files, task_files, write_files
from lm_validity.studies.signal.statistics.items import (
    FilterTrial,
    Fold,
    Rows,
    disjoint_checkpoints,
    judge_filter,
    leave_one_group_out,
)
from lm_validity.studies.signal.statistics.quality import MINIMUM_CHECKPOINTS, Convention
from lm_validity.tables.documents import match_documents, read_documents
from lm_validity.tables.items import read_benchmark_items
from lm_validity.tables.sheets import as_in_scores, read_models

# ----------------------------------------------------------------------------------------------------------------------
# Judge filters on models and checkpoints that they were not fitted on.

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
    names = [model.model for model in answers.models]
    facts = models.set_index("model").reindex(names)
    references = reference_models(filters)
    counts = [len(model.checkpoints) for model in answers.models]
    free = [0 if name in references else number for name, number in zip(names, counts, strict=True)]
    usable = [number >= MINIMUM_CHECKPOINTS for number in free]

    of_filter = [item_filter for item_filter in leaves(filters) if item_filter.fitted]
    alone = bool(references) and all(reference_models([item_filter]) for item_filter in of_filter)
    if alone or fit_models:
        choosing = references if alone else fit_models
        everything = [(index, np.arange(number)) for index, number in enumerate(counts)]
        fit = tuple(row for row in everything if names[row[0]] in choosing)
        score = tuple(row for row in everything if usable[row[0]] and names[row[0]] not in fit_models)
        design = "references" if alone else "fit_models"
        return {design: [Fold("other models", fit, score)]} if score and (fit or alone) else {}

    def left_out(groups: Iterable[object]) -> list[Fold]:
        """By group of the usable models; others take no part."""
        known = zip(groups, usable, strict=True)
        return leave_one_group_out([str(group) if use and pd.notna(group) else None for group, use in known], counts)

    designs = {design: left_out(facts[design]) for design in ("architecture", "size")}
    if not any(designs.values()):
        designs["model"] = left_out(names)
    designs["checkpoints"] = disjoint_checkpoints(free)
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
            f"models and checkpoints: {', '.join(f'{m.model} {len(m.checkpoints)}' for m in answers.models)}.",
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


# ----------------------------------------------------------------------------------------------------------------------
# Run a recipe: choose the items, judge the choice, write both.


def apply_recipe(
    recipe: Recipe,
    output: Path,
    *,
    items: Path | None = None,
    documents: Path | None = None,
    models: Path | None = None,
    controls: int = 200,
    seed: int = 0,
) -> list[str]:
    """Write what the recipe keeps under `output`; returns lines that say what happened.

    A recipe with fitted filters is judged on models and checkpoints that it was not fitted on; where that is
    impossible nothing is written, since its in-sample figure alone would mislead. Nor is anything where the kept
    documents cannot be exported as the recipe asks.
    """
    output = Path(output)
    candidates, fewshot = _candidates(recipe, items, documents)
    candidates = with_references(candidates, recipe.filters)
    trials = _judged(recipe, candidates, models, controls, seed)
    selection = keep_items(list(recipe.filters), _fit_rows(recipe, candidates))
    lines = [f"{step.filter}: {step.after} of {step.before} items stay" for step in selection.steps]
    lines += [f"{DESIGNS[design]}: {verdict(trial)}" for design, trial in trials.items()]

    # All texts before the first file: what cannot be exported leaves nothing behind
    files = selection_files(
        selection, name=recipe.name, benchmark=recipe.benchmark, task=recipe.task, recipe=recipe.settings
    )
    if trials:
        files["judgement.json"] = json_text({design: trial_json(trial) for design, trial in trials.items()})
    task = {}
    if candidates.documents is not None:
        task = task_files(candidates.documents, selection.doc_ids, name=recipe.name, fewshot=fewshot, **recipe.export)
        lines.append(f"lm-eval task: {output / 'tasks' / f'{recipe.name}.yaml'}")
    write_files(files, output)
    write_files(task, output / "tasks")
    return lines


def _judged(
    recipe: Recipe, candidates: Candidates, models: Path | None, controls: int, seed: int
) -> dict[str, FilterTrial]:
    """Trials by design; none for a recipe whose filters do not look at answers along training."""
    if not any(item_filter.fitted for item_filter in recipe.filters):
        return {}
    if models is None:
        raise InputError(
            f"recipe {recipe.name!r} has filters that are fitted to answers.",
            "give --models, so that they are judged on models that they did not see.",
        )
    answers = candidates.need_answers("held-out judgement")
    return judge(
        list(recipe.filters),
        candidates,
        as_in_scores(read_models(models), {model.model for model in answers.models}),
        recipe.score,
        np.random.default_rng(seed),
        controls,
        fit_models=recipe.fit_models,
    )


def trial_json(trial: FilterTrial) -> dict[str, Any]:
    """A trial as JSON: fractions unrounded, what cannot be computed as null."""
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in vars(trial).items()
    }


def _candidates(recipe: Recipe, items: Path | None, documents: Path | None) -> tuple[Candidates, pd.DataFrame | None]:
    """The items to choose from, and the documents' few-shot examples."""
    if items is None and documents is None:
        raise InputError("nothing to filter.", "give --items, --documents or both.")
    answers = None if items is None else read_benchmark_items(items, recipe.benchmark)
    texts = fewshot = None
    if documents is not None:
        texts = read_documents(documents, recipe.benchmark)
        if "split" in texts.columns:
            fewshot = texts[texts["split"] == "fewshot"].reset_index(drop=True)
            texts = texts[texts["split"] != "fewshot"].reset_index(drop=True)
        if answers is not None:
            texts = match_documents(texts, answers.doc_ids, documents)
    if answers is not None:
        return Candidates(answers.doc_ids, answers, texts), fewshot
    assert texts is not None, "either the answers or the texts are given"
    doc_ids = texts["doc_id"].to_numpy()
    return Candidates(doc_ids, answers, texts), fewshot


def _fit_rows(recipe: Recipe, candidates: Candidates) -> Candidates:
    """The answers of the models that fitted filters may look at."""
    if not recipe.fit_models:
        return candidates
    answers = candidates.need_answers("fit_models")
    names = [model.model for model in answers.models]
    for name in recipe.fit_models:
        if name not in names:
            raise InputError(f"recipe {recipe.name!r}: no items of model {name!r}.", f"models: {', '.join(names)}.")
    rows = [
        (names.index(name), np.arange(len(answers.models[names.index(name)].checkpoints))) for name in recipe.fit_models
    ]
    return candidates.rows(tuple(rows))
