"""Run a recipe: choose the items, judge the choice, write both."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.files import json_text
from lm_validity.studies.signal.filters.base import Candidates, keep_items, with_references
from lm_validity.studies.signal.filters.export import selection_files, task_files, write_files
from lm_validity.studies.signal.filters.held_out import DESIGNS, judge, verdict
from lm_validity.studies.signal.filters.recipe import Recipe
from lm_validity.studies.signal.statistics.splits import FilterTrial
from lm_validity.tables.documents import match_documents, read_documents
from lm_validity.tables.read_items import read_benchmark_items
from lm_validity.tables.sheets import as_in_scores, read_models


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
    numbers = ("unfiltered", "in_sample", "held_out", "optimism_gap", "control_mean", "control_high", "p")
    return {
        **{name: _number(getattr(trial, name)) for name in numbers},
        "useful": trial.useful,
        "items": trial.items,
        "kept_in_sample": trial.kept_in_sample,
        "kept_by_fold": trial.kept_by_fold,
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


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
