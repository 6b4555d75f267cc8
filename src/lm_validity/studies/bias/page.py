"""The bias report's page: the answer first, then what it rests on, then how much the analysis decides."""

import numpy as np
import pandas as pd

from lm_validity.pages.page import Figure, Finding, Page, Section, Table
from lm_validity.studies.bias import figures
from lm_validity.studies.bias.formulas import formula_conclusions
from lm_validity.studies.bias.sections import (
    cell_table,
    loss_section,
    meta_section,
    per_experiment,
    per_rows,
    permutation_section,
    power_section,
    prefix,
    provenance_section,
)
from lm_validity.studies.bias.statistics.model import EFFECTS, FORMULAS
from lm_validity.studies.bias.summary import BiasSummary, Fit, Setting, Task, rows_frame
from lm_validity.studies.bias.table import SETTING
from lm_validity.studies.bias.violins import predictive_ridges, violins
from lm_validity.summaries import Missing, is_known, number, summary_values
from lm_validity.words import count, decimal, percent, with_interval

CHANGE = "+.4f"


def bias_page(summary: BiasSummary) -> Page:
    """The page of the report."""
    sections = [
        _answer_section(summary),
        _task_section(summary),
        _formula_section(summary),
        permutation_section(summary),
        meta_section(summary),
        power_section(summary),
        provenance_section(summary),
        loss_section(summary),
    ]
    return Page(
        name="bias",
        title="Pretraining on test text",
        question="Does pretraining on a benchmark's unlabelled test text inflate its score?",
        findings=_findings(summary),
        sections=[section for section in sections if section is not None],
        notes=summary_values(summary)["notes"],
    )


def _findings(summary: BiasSummary) -> list[Finding]:
    found = [finding for name in summary.experiments for finding in _experiment_findings(summary, name)]
    unreliable = [fit for fit in summary.posterior if not fit.reliable]
    if unreliable:
        alarm = Finding(
            f"{count(len(unreliable), 'fit')} of {len(summary.posterior)} did not converge: ignore their intervals.",
            "They are listed under the notes on these data.",
            alarm=True,
        )
        found.insert(0, alarm)
    return found


def _experiment_findings(summary: BiasSummary, experiment: str) -> list[Finding]:
    start = prefix(summary, experiment)
    bias, boost = (summary.headline[experiment][effect] for effect in ("bias", "boost"))
    bases, found = {effect: _basis(summary, experiment, effect) for effect in EFFECTS}, []
    if not isinstance(bias, Missing):
        change = with_interval(bias.mean, _ends(bias.interval), 4, signed=True)
        sentence = f"{start}Pretraining on the test set's own unlabelled text, instead of other text from the same "
        sentence += f"source, changes accuracy by {change}."
        signs = f"{bias.positive} of {count(bias.tasks, 'task')} went up, {bias.negative} down."
        found.append(Finding(sentence, f"{bases['bias']} {signs} {_headline_fits(summary, experiment, 'bias')}"))
    if not isinstance(boost, Missing):
        change = with_interval(boost.mean, _ends(boost.interval), 4, signed=True)
        sentence = f"{start}Pretraining on other unlabelled text from the same source changes accuracy by {change}."
        down = f"{boost.negative} of {count(boost.tasks, 'task')} went down."
        if isinstance(bias, Missing) or bases["boost"] != bases["bias"]:
            down = f"{bases['boost']} {down}"
        found.append(Finding(sentence, f"{down} {_headline_fits(summary, experiment, 'boost')}"))
    for finding in (_formula_finding(summary, experiment), _meta_finding(summary, experiment)):
        if finding is not None:
            found.append(finding)
    return found


def _ends(interval: tuple[float, float] | Missing) -> tuple[float, float] | None:
    return None if isinstance(interval, Missing) else interval


def _basis(summary: BiasSummary, experiment: str, effect: str) -> str:
    """What the effect's mean rests on: trials that lack an arm of it do not count."""
    cells = [c for c in summary.cells if c.experiment == experiment and getattr(c, f"{effect}_trials")]
    models, settings = len({cell.language_model for cell in cells}), len({(cell.m, cell.n) for cell in cells})
    mean = summary.headline[experiment][effect]
    interval = "95% t interval over the tasks' means, cells weighing the same."
    if not isinstance(mean, Missing) and not is_known(mean.interval):
        interval = "the task's mean, cells weighing the same; one task has no interval over tasks."
    parts = [
        count(models, "language model"),
        count(settings, "setting") + " of m and n",
        count(sum(getattr(cell, f"{effect}_trials") for cell in cells), "trial"),
    ]
    return f"{', '.join(parts)}. Model-free: {interval}"


def _headline_fits(summary: BiasSummary, experiment: str, effect: str) -> str:
    fits = summary.fits(effect, experiment, summary.headline_formula)
    outside = sum(fit.excludes_zero != 0 for fit in fits)
    return (
        f"Hierarchical model ({summary.headline_formula}): the 89% interval excludes zero in {outside} of "
        f"{count(len(fits), 'setting')}."
    )


def _outside(fits: list[Fit]) -> str:
    """`6 of 8 settings (3 up, 3 down)`."""
    up, down = (sum(fit.excludes_zero == sign for fit in fits) for sign in (1, -1))
    return f"{up + down} of {count(len(fits), 'setting')}" + (f" ({up} up, {down} down)" if up + down else "")


def _which(fits: list[Fit]) -> str:
    """`m = 50, n = 200 down`, for each interval that excludes zero."""
    signs = {1: "up", -1: "down"}
    return " and ".join(f"m = {fit.m}, n = {fit.n} {signs[fit.excludes_zero]}" for fit in fits if fit.excludes_zero)


def _bias_by_formula(summary: BiasSummary, experiment: str) -> dict[str, list[Fit]]:
    """The fits of the bias by formula, in the order of the settings; only formulas that were fitted."""
    by_formula = {name: summary.fits("bias", experiment, name) for name in FORMULAS}
    return {name: fits for name, fits in by_formula.items() if fits}


def _formula_finding(summary: BiasSummary, experiment: str) -> Finding | None:
    by_formula = _bias_by_formula(summary, experiment)
    conclusions = {tuple((fit.m, fit.n, fit.excludes_zero) for fit in fits) for fits in by_formula.values()}
    if len(conclusions) < 2:
        return None
    counts = {name: _outside(fits) for name, fits in by_formula.items()}
    if len(set(counts.values())) == 1:  # as many settings, but not the same ones
        counts = {name: f"{counts[name]}: {_which(fits)}" for name, fits in by_formula.items()}
    parts = [f"{words} under {name}" for name, words in counts.items()]
    return Finding(
        f"{prefix(summary, experiment)}Which model is fitted decides what one would conclude: the 89% interval "
        f"of the bias excludes zero in {'; '.join(parts)}.",
        "A binomial alone knows only the chance of drawing test items and takes the noise of training for an effect; "
        "see the section on the formulas.",
    )


def _meta_finding(summary: BiasSummary, experiment: str) -> Finding | None:
    results = [row for row in summary.meta_analysis if row.experiment == experiment and is_known(row.share_beyond)]
    if not results:
        return None
    result = max(results, key=lambda row: (row.m, row.n))
    model_free = "with one task there is no interval over tasks to set beside it."
    if is_known(result.share_t_excluding_zero):
        model_free = "an interval from the spread over tasks, which needs no model, misses zero in "
        model_free += f"{percent(number(result.share_t_excluding_zero))}, where 11% is nominal."
    return Finding(
        f"{prefix(summary, experiment)}With a single split per task, {percent(number(result.share_beyond))} of "
        f"{result.slices} such studies would have reported a bias beyond ±0.04 log-odds, and "
        f"{percent(number(result.share_excluding_zero))} a binomial model's interval without zero.",
        f"m = {result.m}, n = {result.n}; {model_free}",
    )


def _answer_section(summary: BiasSummary) -> Section:
    return Section(
        "The answer by setting",
        finding=per_rows(summary, [row for row in summary.settings if row.effect == "bias"], _answer_sentence),
        explanation=(
            "boost = accuracy after pretraining on other text from the same source, less accuracy without pretraining. "
            "bias = accuracy after pretraining on the test set's own text, less the former. m labelled examples train "
            "the classifier; n texts are pretrained on, and n test items evaluated. Both share the arm extra, "
            "so chance that raises it raises the one and lowers the other. A boost from text of the benchmark's own "
            "domain can itself be unfair. By formula: posterior predictive "
            "means of the average accuracy difference with 89% intervals, had these very classifiers answered new test "
            "items. Model-free: plain means over the tasks with 95% t intervals; these also ask how it would be on "
            "other tasks like these, and with other splits, and are mostly wider."
        ),
        figures=[
            Figure(
                f"answer_{effect}",
                f"{effect.capitalize()} in accuracy",
                figures.answer(summary, effect),
                f"{' − '.join(EFFECTS[effect])}, by formula, and model-free.",
            )
            for effect in ("bias", "boost")
            if summary.fits(effect)
        ]
        + [
            Figure(
                "posterior_predictive",
                "Posterior predictive distributions",
                predictive_ridges(summary),
                f"Average accuracy difference by setting, formula {summary.headline_formula}.",
                wide=True,
            )
        ],
        tables=[
            cell_table(summary),
            _setting_table(summary),
        ],
    )


def _answer_sentence(settings: list[Setting]) -> str:
    if not settings:
        return "No setting has the arms extra and test."
    means = [row.mean for row in settings]
    return (
        f"Averaged over tasks and language models, the bias lies between {min(means):+.4f} and {max(means):+.4f} in "
        f"{count(len(means), 'setting')}."
    )


def _setting_table(summary: BiasSummary) -> Table:
    """Model-free means beside the model's, one row a setting and effect."""
    frame = rows_frame(Setting, summary.settings).drop(columns="interval")
    frame = frame.rename(columns={"mean": "model_free", "standard_error": "model_free_se"})
    for name in dict.fromkeys(fit.formula for fit in summary.posterior):
        fits = [
            [fit.experiment, fit.m, fit.n, fit.effect, fit.difference_mean, float(fit.difference_draws.std())]
            for fit in summary.posterior
            if fit.formula == name
        ]
        columns = [*SETTING, "effect", name, f"{name}_sd"]
        frame = frame.merge(pd.DataFrame(fits, columns=columns), "left", [*SETTING, "effect"])
    numbers = [column for column in frame.columns if column not in [*SETTING, "effect", "tasks"]]
    return Table(
        "settings",
        "Model-free and model-based differences",
        frame,
        formats={name: ".4f" if name.endswith(("_se", "_sd")) else CHANGE for name in numbers},
        caption="Accuracy differences: mean over tasks with its standard error, posterior predictive means and sds.",
    )


def _task_sentence(tasks: list[Task]) -> str:
    biases = {task.task: number(task.bias) for task in tasks if is_known(task.bias)}
    if not biases:
        return "No task has both arms of the bias."
    largest = max(biases, key=lambda name: abs(biases[name]))
    return (
        f"{sum(bias > 0 for bias in biases.values())} of {count(len(biases), 'task')} have a positive bias; the "
        f"largest in size is {decimal(biases[largest], 4, signed=True)} ({largest})."
    )


def _by_bias(task: Task) -> tuple[str, bool, float]:
    """Largest first, unknown last."""
    return task.experiment, not is_known(task.bias), -number(task.bias) if is_known(task.bias) else 0.0


def _task_section(summary: BiasSummary) -> Section:
    return Section(
        "Task by task",
        finding=per_rows(summary, summary.tasks, _task_sentence),
        explanation=(
            "Each violin is the distribution over subsamples: above the line the boost, below it the bias. "
            "Subsamples differ by training set, test set and the noise of training, which is why single "
            "experiments disagree."
        ),
        figures=violins(summary),
        tables=[
            Table(
                "tasks",
                "Boost and bias by task",
                rows_frame(Task, sorted(summary.tasks, key=_by_bias)),
                formats={"boost": CHANGE, "bias": CHANGE},
                caption="Every cell (language model, m, n) weighs the same.",
            )
        ],
    )


def _formula_sentence(summary: BiasSummary, experiment: str) -> str:
    by_formula = _bias_by_formula(summary, experiment)
    lines = [f"{_outside(fits)} under {name}" for name, fits in by_formula.items()]
    return f"The 89% interval of the bias excludes zero in {'; '.join(lines)}." if lines else ""


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


def _formula_section(summary: BiasSummary) -> Section:
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
                "Posterior means and 89% intervals.",
            ),
            *_calibration_figures(summary),
        ]
        if finding
        else [],
        tables=[_posterior_table(summary)],
    )


def _formula_words(summary: BiasSummary) -> str:
    words = (
        "All three formulas say how likely a right answer is. equations, as printed in the paper, gives each task "
        "and each split a level and explains the rest as chance in drawing n test items. But a model trained "
        "twice on the same split also answers differently. A formula that has no place for this noise mistakes it "
        "for information: its intervals are too narrow, and it finds effects that another training would not show. "
        "notebooks, which the author fitted, lets each task have its own effect and so becomes more careful. "
        "overdispersed, the default here, also lets language models differ by task and measures the noise of "
        "training for each of them."
    )
    ratios = per_experiment(summary, lambda name: _noise_ratio(summary, name))
    return " ".join(part for part in (words, formula_conclusions(summary), ratios) if part)


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
        f"Spread of a single trial's bias at m = {m}, n = {n} against what the binomial explains: {'; '.join(parts)}."
    )


def _posterior_table(summary: BiasSummary) -> Table:
    rows = [
        {
            **{key: getattr(fit, key) for key in [*SETTING, "effect", "formula", "sampler", "beta_mean", "beta_sd"]},
            "beta_low": fit.interval[0],
            "beta_high": fit.interval[1],
            "difference": fit.difference_mean,
            "difference_low": fit.difference_interval[0],
            "difference_high": fit.difference_interval[1],
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
        "beta in log-odds, differences in accuracy, 89% intervals. Compare log evidence within a setting and effect."
    )
    return Table("posterior", "All fits", frame, formats=formats, caption=caption, folded=True)
