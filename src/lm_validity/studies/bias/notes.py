"""What a reader of the bias report must know about its data, and the reason of each null."""

import math

import pandas as pd

from lm_validity.studies.bias.analysis import BiasAnalysis
from lm_validity.studies.bias.statistics.effects import missing_trials
from lm_validity.studies.bias.statistics.model import EFFECTS
from lm_validity.studies.bias.table import ARMS, CELL
from lm_validity.words import count, listing

GAPS_SHOWN = 12  # of an experiment; the rest is counted


def notes(analysis: BiasAnalysis) -> list[str]:
    """What a reader must know about these data and about what is null."""
    found = [
        "Boost and bias share the extra arm: chance that raises accuracy(extra) raises the boost and lowers the bias. "
        "Do not read the two together as if they were independent.",
        "A boost from text of the benchmark's own domain can itself be unfair: a model may generalise better within "
        "that domain only, and a score that it gains there need not show elsewhere.",
        "cells: means over all subsamples of all tasks, standard errors over task means. tasks: every cell (language "
        "model, m, n) weighs the same. Intervals of posteriors are 89%, equal-tailed; all others are 95%.",
    ]
    if analysis.sampler == "laplace":
        found.append("divergences and rhat_max are null: the Laplace path draws no chains (see effective_nodes).")
    else:
        found.append("log_evidence is null: NUTS does not estimate it.")
    return found + _missing_notes(analysis) + _provenance_notes(analysis) + _reliability_notes(analysis)


def _missing_notes(analysis: BiasAnalysis) -> list[str]:
    trials, found = analysis.trials, []
    for arm in ARMS:
        if missing := int(trials[arm].isna().sum()):
            effects = " and ".join(effect for effect, arms in EFFECTS.items() if arm in arms)
            found.append(f"{missing} of {len(trials)} trials have no arm {arm}; they do not count for {effects}.")
    found += [note for key in analysis.overall for note in _effect_notes(analysis, *key)]
    if lonely := [f"{effect}_se" for effect in EFFECTS if (analysis.cells[f"{effect}_tasks"] == 1).any()]:
        names = f"{lonely[0]} is" if len(lonely) == 1 else "boost_se and bias_se are"
        found.append(f"{names} null in cells with one task that has both arms: standard errors are over tasks.")
    found += _gap_notes(trials)
    if any(result is None for result in analysis.meta.values()):
        found.append("meta_analysis is null where every task has one subsample: a slice would be the whole data.")
    if any(result is not None and math.isnan(result.share_t_excluding_zero) for result in analysis.meta.values()):
        found.append("share_t_excluding_zero is null in settings with one task: its interval is one over tasks.")
    known = analysis.power.dropna(subset=["power"])
    if len(known) < len(analysis.power):
        found.append(
            "power, and with it the other values of its row, is null where fewer than two tasks have two subsamples: "
            "variances are unknown."
        )
    if known["subsamples_needed"].isna().any() or known["tasks_needed"].isna().any():
        found.append(
            "Where power is known, subsamples_needed and tasks_needed are null if more alone of the one would never "
            "suffice: then the tasks differ too much, or there are too few subsamples."
        )
    models = trials.groupby("experiment")["language_model"].nunique()
    for experiment in models.index[models == 1]:
        found.append(f"Experiment {experiment} has one language model: the terms that tell models apart are dropped.")
    return found


def _effect_notes(analysis: BiasAnalysis, experiment: str, effect: str) -> list[str]:
    """Where an experiment has no value of an effect for want of arms."""
    cells, tasks = (frame[frame["experiment"] == experiment] for frame in (analysis.cells, analysis.tasks))
    mean, found = analysis.overall[experiment, effect], []
    arms = f"the arms {' and '.join(reversed(EFFECTS[effect]))}"
    if mean is None:
        return [f"Experiment {experiment}: {effect} is null throughout: no trial has {arms}."]
    if lacking := int((cells[f"{effect}_tasks"] == 0).sum()):
        found.append(f"{effect}_mean and {effect}_se are null in {lacking} of {count(len(cells), 'cell')}")
    if len(names := tasks.loc[tasks[effect].isna(), "task"]):
        found.append(f"{effect} is null for {listing(names)}")
    found = [f"Experiment {experiment}: {null}: no trial there has {arms}." for null in found]
    if mean.interval is None:
        found.append(
            f"Experiment {experiment}: the headline's {effect} has no standard error and no interval: one task alone "
            f"has {arms}."
        )
    return found


def _gap_notes(trials: pd.DataFrame) -> list[str]:
    """Cells that lack tasks or subsamples which others have: what an average over cells then compares."""
    gaps, found = {effect: missing_trials(trials, effect) for effect in EFFECTS}, []
    for experiment in trials["experiment"].unique():
        words = {effect: _gap_words(frame[frame["experiment"] == experiment]) for effect, frame in gaps.items()}
        same = len(set(words.values())) == 1
        for effect, gap in list(words.items())[: 1 if same else None]:
            if gap:
                concerned = " and the ".join(EFFECTS) if same else effect
                found.append(
                    f"Experiment {experiment} has gaps, for the {concerned}: {gap}. Averages over cells and over tasks "
                    "there are not of the same tasks and trials."
                )
    return found


def _gap_words(gaps: pd.DataFrame) -> str:
    """`gpt2 at m = 50, n = 50 and m = 50, n = 100 has no trial of trec and fewer of sst2 (3 of 5); …`."""
    places: dict[tuple[str, str], list[str]] = {}
    for (_, language_model, m, n), cell in gaps.groupby(CELL):
        none, fewer = cell[cell["subsamples"] == 0], cell[cell["subsamples"] > 0]
        parts = [f"no trial of {listing(none['task'])}"] if len(none) else []
        if len(fewer):
            listed = listing(f"{row.task} ({row.subsamples} of {row.expected})" for row in fewer.itertuples())
            parts.append(f"fewer of {listed}" if parts else f"fewer trials of {listed}")
        places.setdefault((str(language_model), " and ".join(parts)), []).append(f"m = {m}, n = {n}")
    said = [f"{model} at {' and '.join(where)} has {words}" for (model, words), where in places.items()]
    rest = [f"and {len(said) - GAPS_SHOWN} more"] if len(said) > GAPS_SHOWN else []
    return "; ".join(said[:GAPS_SHOWN] + rest)


def _provenance_notes(analysis: BiasAnalysis) -> list[str]:
    found = [
        f"Mixed provenance: the base accuracy of {row.language_model} at m = {row.m} is {row.base:.4f} for n = "
        f"{row.n} and {row.reference_base:.4f} for n = {row.reference_n} ({_standing_out(row.z)}), though the base arm "
        "never sees the n texts. These rows come from different code or data; trends over n at this m are "
        "confounded."
        for row in analysis.drift[analysis.drift["mixed"]].itertuples()
    ]
    if analysis.drift["z"].isna().any():
        found.append(
            "base_drift: z is null where no task's base accuracies vary within either value of n but those of the two "
            "differ: without a spread z has no bound, and p is 0."
        )
    if len(analysis.mismatches):
        setting = analysis.mismatches.groupby(["experiment", "m", "n"])[["mismatched", "subsamples"]].sum()
        places = ", ".join(f"{row.mismatched} at m = {key[1]}, n = {key[2]}" for key, row in setting.iterrows())
        names = ", ".join(sorted(analysis.mismatches["task"].unique()))
        found.append(
            f"Subsamples of the same number had different test sets in different language models ({places}; tasks "
            f"{names}). The formulas equations and notebooks share a pair effect between models and are wrong for "
            "these; overdispersed pairs within a model and is not affected."
        )
    return found


def _standing_out(z: float) -> str:
    return "no spread within subsamples" if math.isnan(z) else f"z = {z:.1f}"


def _reliability_notes(analysis: BiasAnalysis) -> list[str]:
    return [
        f"UNRELIABLE FIT: {fit.effect} at m = {fit.m}, n = {fit.n}, formula {fit.formula} ({fit.experiment}): "
        + (
            f"{fit.divergences} divergences, largest r-hat {fit.rhat_max:.3f}, {fit.effective:.0f} effective draws."
            if fit.sampler == "nuts"
            else f"only {fit.effective:.0f} effective nodes."
        )
        for fit in analysis.fits
        if not fit.reliable
    ]
