"""How the conclusion depends on the formula: what each would have one conclude, in words and in figures."""

import numpy as np
import pandas as pd

from lm_validity.pages.page import Figure, Finding, Section, Table
from lm_validity.studies.bias import figures
from lm_validity.studies.bias.sections import per_experiment, prefix
from lm_validity.studies.bias.statistics.model import FORMULAS
from lm_validity.studies.bias.summary import BiasSummary, Fit
from lm_validity.studies.bias.table import SETTING
from lm_validity.studies.bias.violins import predictive_ridges
from lm_validity.summaries import as_columns
from lm_validity.words import count

CHANGE = "+.4f"
SHORT = {
    "equations": "the printed formula",
    "notebooks": "the author's fitted formula",
    "overdispersed": "the formula with training noise",
}


def formula_finding(summary: BiasSummary, experiment: str) -> Finding | None:
    """A finding where the formulas would have one conclude different things."""
    by_formula = _bias_by_formula(summary, experiment)
    conclusions = {tuple((fit.m, fit.n, fit.excludes_zero) for fit in fits) for fits in by_formula.values()}
    if len(conclusions) < 2:
        return None
    counts = {name: _outside(fits) for name, fits in by_formula.items()}
    if len(set(counts.values())) == 1:  # as many settings, but not the same ones
        counts = {name: f"{counts[name]}: {_which(fits)}" for name, fits in by_formula.items()}
    parts = [f"with {SHORT[name]} in {words}" for name, words in counts.items()]
    return Finding(
        f"{prefix(summary, experiment)}The conclusion depends on the model that is fitted. The 89% interval of the "
        f"bias excludes zero {'; '.join(parts)}.",
        "A plain binomial accounts only for the drawing of test items and mistakes training noise for an effect. The "
        "section on the formulas explains this.",
    )


def formula_section(summary: BiasSummary) -> Section:
    """All formulas side by side, at the level of the paper, 89%."""
    finding = per_experiment(summary, lambda name: _formula_sentence(summary, name))
    return Section(
        "How the conclusion depends on the formula",
        finding=finding,
        explanation=_formula_words(summary),
        figures=[
            Figure(
                "formula_bias",
                "beta of the bias, in log-odds",
                figures.formula_intervals(summary, "bias"),
                "Posterior means with 89% intervals, as in the paper.",
            ),
            Figure(
                "posterior_predictive",
                "Posterior predictive distributions",
                predictive_ridges(summary),
                f"The paper's figures 2 to 4, with {SHORT[summary.headline_formula]}: the average accuracy difference "
                "if these same classifiers answered new test items. It does not cover other trainings, subsamples or "
                "tasks. Where training is noisy, their intervals exclude zero too often, even without an effect.",
                wide=True,
            ),
            *_calibration_figures(summary),
        ]
        if finding
        else [],
        tables=[_posterior_table(summary)],
    )


def _formula_sentence(summary: BiasSummary, experiment: str) -> str:
    by_formula = _bias_by_formula(summary, experiment)
    lines = [f"with {SHORT[name]} in {_outside(fits)}" for name, fits in by_formula.items()]
    return f"The 89% interval of the bias excludes zero {'; '.join(lines)}." if lines else ""


def _formula_words(summary: BiasSummary) -> str:
    words = (
        "All three formulas model how likely a right answer is. The printed formula (equations) is that of the paper "
        "(arXiv:2410.00179). It gives each task and each subsample a level and explains the rest by the drawing of n "
        "test items. "
        "But a model trained twice on the same subsample also gives different answers. A formula that ignores such "
        "training noise mistakes it for information. Where there is much, its intervals are too narrow, and it finds "
        "effects that another training would not show. The author's fitted formula (notebooks) gives each task its own "
        "effect and is more cautious. The formula with training noise (overdispersed, the default) also lets language "
        "models differ by task and measures the training noise of each."
    )
    ratios = per_experiment(summary, lambda name: _noise_ratio(summary, name))
    return " ".join(part for part in (words, _formula_conclusions(summary), ratios) if part)


def _noise_ratio(summary: BiasSummary, experiment: str) -> str:
    """Observed spread of a trial's bias against the binomial's, in the experiment's setting with the largest m, n."""
    trials = summary.trials
    known = trials[trials["experiment"] == experiment].dropna(subset=["extra", "test"])
    if known.empty:
        return ""
    m, n = max(zip(known["m"], known["n"], strict=True))
    parts = []
    for name, group in known[(known["m"] == m) & (known["n"] == n)].groupby("language_model"):
        difference = (group["test"] - group["extra"]) / group["total"]
        shares = pd.concat([group["test"], group["extra"]]) / pd.concat([group["total"]] * 2)
        binomial = np.sqrt(2 * float((shares * (1 - shares) / pd.concat([group["total"]] * 2)).mean()))
        if len(group) > 1 and binomial > 0:
            parts.append(f"{name} {difference.std():.4f} against {binomial:.4f}")
    if not parts:
        return ""
    return (
        f"Standard deviation of a single trial's bias at m = {m}, n = {n}, against what the binomial explains: "
        f"{', '.join(parts)}."
    )


def _calibration_figures(summary: BiasSummary) -> list[Figure]:
    """One an experiment: their accuracies are of different tasks and models."""
    experiments = figures.calibrated_experiments(summary)
    of = {experiment: f": {experiment}" if len(experiments) > 1 else "" for experiment in experiments}
    return [
        Figure(
            "calibration" if number == 0 else f"calibration_{number + 1}",
            f"Predicted and observed accuracy{of[experiment]}",
            figures.calibration(summary, experiment),
            "One point per task, language model and arm of the largest setting.",
        )
        for number, experiment in enumerate(experiments)
    ]


def _posterior_table(summary: BiasSummary) -> Table:
    rows = [
        {
            **{key: getattr(fit, key) for key in [*SETTING, "effect", "formula", "sampler", "beta_mean", "beta_sd"]},
            **as_columns(fit.interval, "beta_low", "beta_high"),
            "difference": fit.difference_mean,
            **as_columns(fit.difference_interval, "difference_low", "difference_high"),
            "log_evidence": fit.log_evidence,
            "divergences": fit.divergences,
            "rhat_max": fit.rhat_max,
            "effective": fit.effective_draws_min if fit.sampler == "nuts" else fit.effective_nodes,
            "reliable": fit.reliable,
        }
        for fit in summary.posterior
    ]
    frame = pd.DataFrame(rows)
    signed = ["beta_mean", "beta_low", "beta_high", "difference", "difference_low", "difference_high"]
    formats = dict.fromkeys(signed, CHANGE) | {
        "beta_sd": ".4f",
        "log_evidence": ".1f",
        "rhat_max": ".3f",
        "effective": ".0f",
    }
    caption = (
        "beta is in log-odds, differences are in accuracy, intervals are 89%. Compare log evidence within one setting "
        "and effect only."
    )
    labels = {
        "beta_sd": "standard deviation of beta",
        "log_evidence": "log evidence",
        "rhat_max": "largest R-hat",
        "effective": "effective draws or nodes",
    }
    return Table("posterior", "All fits", frame, formats=formats, labels=labels, caption=caption, folded=True)


def _bias_by_formula(summary: BiasSummary, experiment: str) -> dict[str, list[Fit]]:
    """The fits of the bias by formula, in the order of the settings; only formulas that were fitted."""
    by_formula = {name: summary.fits("bias", experiment, name) for name in FORMULAS}
    return {name: fits for name, fits in by_formula.items() if fits}


def _outside(fits: list[Fit]) -> str:
    """`6 of 8 settings (3 up, 3 down)`."""
    up, down = (sum(fit.excludes_zero == sign for fit in fits) for sign in (1, -1))
    return f"{up + down} of {count(len(fits), 'setting')}" + (f" ({up} up, {down} down)" if up + down else "")


def _which(fits: list[Fit]) -> str:
    """`m = 50, n = 200 down`, for each interval that excludes zero."""
    signs = {1: "up", -1: "down"}
    return " and ".join(f"m = {fit.m}, n = {fit.n} {signs[fit.excludes_zero]}" for fit in fits if fit.excludes_zero)


def _formula_conclusions(summary: BiasSummary) -> str:
    """A sentence a formula, and whether they agree; for each experiment. Empty where no bias was fitted."""
    parts = []
    for experiment in summary.experiments:
        if by_formula := _bias_by_formula(summary, experiment):
            parts.append(prefix(summary, experiment) + _sentences(by_formula, summary.headline_formula))
    return " ".join(parts)


def _sentences(by_formula: dict[str, list[Fit]], headline: str) -> str:
    said = ". ".join(f"With {SHORT[name]}, {_claim(fits)}" for name, fits in by_formula.items())
    if len(by_formula) == 1:
        return f"{said}."
    if len({tuple(fit.excludes_zero for fit in fits) for fits in by_formula.values()}) == 1:
        return f"{said}. The conclusion does not depend on the formula."
    return (
        f"{said}. The conclusion depends on the formula. Trust {SHORT[headline]} and the model-free interval: only "
        "they account for training noise."
    )


def _claim(fits: list[Fit]) -> str:
    up, down = (sum(fit.excludes_zero == sign for fit in fits) for sign in (1, -1))
    if up and down:
        return (
            f"test text raises scores in {up} of {len(fits)} settings and lowers them in {down}, opposite answers such "
            "as noise gives"
        )
    if up or down:
        return f"test text {'raises' if up else 'lowers'} scores in {_of(up or down, len(fits))}"
    where = "the one setting" if len(fits) == 1 else f"any of {len(fits)} settings"
    return f"no effect can be distinguished from chance in {where}"


def _of(some: int, settings: int) -> str:
    return "the one setting" if settings == 1 else f"{some} of {settings} settings"
