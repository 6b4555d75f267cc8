"""The bias report: does pretraining on a benchmark's unlabelled test text inflate its score?"""

from pathlib import Path
from typing import Any

import pandas as pd

from lm_validity.config.bias_plan import BiasPlan
from lm_validity.pages.page import Finding, Page, Part, write_report
from lm_validity.studies.bias.effects import (
    cell_section,
    effects_by_task,
    headline,
    power_section,
    shared_section,
    stop_section,
    task_effects,
    task_section,
    test_section,
)
from lm_validity.studies.bias.hierarchy import (
    SHORT,
    Fits,
    fit_all,
    formula_section,
    power_words,
    setting_effects,
    setting_section,
    slice_section,
)
from lm_validity.studies.bias.statistics.effects import MeanOverTasks
from lm_validity.studies.bias.statistics.model import EFFECTS
from lm_validity.studies.bias.trials import Study, belonging, coverage_notes, read_trials
from lm_validity.summaries import Missing, is_known, number
from lm_validity.words import count, with_interval

READING_NOTES = (
    "Boost and bias share the extra arm: if chance raises accuracy(extra), the boost rises and the bias falls. "
    "Do not read the two together as if they were independent.",
    "A boost from text of the benchmark's own domain can itself be unfair: a model may generalise better within "
    "that domain only, and a score that it gains there need not show elsewhere.",
    "Means of a cell and their standard errors are over task means. In means by task, every cell (language model, m, "
    "n) has the same weight. Intervals are 95% intervals, except those of the sections on the "
    "formulas and on one subsample per task, which are 89%, as in the paper.",
)


def report_bias(
    trials: str | Path,
    output: str | Path,
    sampler: str = "laplace",
    formula: str = "all",
    plan: BiasPlan | None = None,
) -> None:
    """Write summary.json, tables, figures and the page of the bias report under `output`.

    `trials`: a trials table. `sampler`: laplace (seconds a fit) or nuts (minutes; needs the extra `bayes`).
    `formula`: all, or one of `statistics.model.FORMULAS`. `plan`: where tasks stop on the width of their interval.
    """
    write_report(*bias(Study(read_trials(trials), plan), sampler, formula), output)


def bias(study: Study, sampler: str = "laplace", formula: str = "all") -> tuple[Page, dict[str, Any]]:
    """The page and the summary."""
    stops = stop_section(study)  # first: it refuses trials that are not those of the plan
    by_task = effects_by_task(study.trials, study.plan)
    fits = fit_all(study.trials, formula, sampler)
    parts = [
        _headline(study, fits),
        cell_section(study),
        task_section(study, by_task),
        stops,
        setting_section(study, fits),
        formula_section(study, fits),
        test_section(study),
        shared_section(study),
        slice_section(study, fits),
        power_section(study),
        belonging(study),
    ]
    summary: dict[str, Any] = {}
    for part in parts:
        summary |= part.summary
    notes = [*READING_NOTES, *coverage_notes(study.trials, study.plan), *(n for part in parts for n in part.notes)]
    page = Page(
        name="bias",
        title="Pretraining on test text",
        question="Does pretraining on a benchmark's unlabelled test text inflate its score? The boost is what "
        "pretraining on other text from the same source adds to accuracy. The bias is what the test set's own text "
        "adds beyond that.",
        findings=[finding for part in parts for finding in part.findings if finding is not None],
        sections=[part.section for part in parts if part.section is not None],
        notes=notes,
    )
    return page, summary | {"notes": notes}


# ----------------------------------------------------------------------------------------------------------------------
# The answer: means over tasks.


def _headline(study: Study, fits: Fits) -> Part:
    """Mean bias and boost of each experiment, with what they rest on, and an alarm where fits failed."""
    means, findings = headline(task_effects(study.trials)), []
    unreliable = sum(not fit.reliable for fit in fits.fits)
    if unreliable:
        findings.append(
            Finding(
                f"{unreliable} of {count(len(fits.fits), 'fit')} did not converge: do not use their intervals.",
                "They are listed under the notes on these data.",
                alarm=True,
            )
        )
    for experiment in study.experiments:
        begin = study.prefix(experiment)
        own = study.trials[study.trials["experiment"] == experiment]
        bias, boost = means[experiment]["bias"], means[experiment]["boost"]
        bases = {effect: _basis(own, effect, means[experiment][effect]) for effect in EFFECTS}
        if not isinstance(bias, Missing):
            sentence = f"{begin}{unmoved(bias)}Pretraining on the test set's own unlabelled text, instead of other "
            sentence += f"text from the same source, changes accuracy by {_change(bias)}."
            if is_known(bias.excluded_beyond):
                sentence += " Two one-sided tests at 5%, which correspond to the narrower 90% interval, exclude a bias "
                sentence += f"of {number(bias.excluded_beyond):.4f} or more in either direction."
            signs = f"{bias.positive} of {count(bias.tasks, 'task')} went up, {bias.negative} down."
            findings.append(Finding(sentence, f"{bases['bias']} {signs} {_by_setting(own, fits, experiment, 'bias')}"))
        if not isinstance(boost, Missing):
            sentence = f"{begin}{unmoved(boost)}Pretraining on other unlabelled text from the same source, instead of "
            sentence += f"none, changes accuracy by {_change(boost)}."
            down = f"{boost.negative} of {count(boost.tasks, 'task')} went down."
            if isinstance(bias, Missing) or bases["boost"] != bases["bias"]:
                down = f"{bases['boost']} {down}"
            findings.append(Finding(sentence, f"{down} {_by_setting(own, fits, experiment, 'boost')}"))
    return Part({"headline": means}, findings=findings)


def _change(mean: MeanOverTasks) -> str:
    ends = None if isinstance(mean.interval, Missing) else mean.interval
    return with_interval(mean.mean, ends, 4, signed=True)


def unmoved(mean: MeanOverTasks) -> str:
    """What tasks without any difference do to the interval; empty for fewer than a third of the tasks."""
    still = mean.tasks - mean.positive - mean.negative
    if 3 * still < mean.tasks or isinstance(mean.interval, Missing):
        return ""
    return (
        f"{still} of {count(mean.tasks, 'task')} show no difference at all. This makes the t interval too narrow. In "
        "simulations where half of the tasks were like that, it contained the truth in 88% of cases with 5 tasks and "
        "in 94% with 25. "
    )


def _basis(trials: pd.DataFrame, effect: str, mean: MeanOverTasks | Missing) -> str:
    """What the mean of an experiment rests on: trials that lack an arm of the effect do not count."""
    both = trials.dropna(subset=list(EFFECTS[effect]))
    interval = "95% t interval over the tasks' means, with equal weight for each cell."
    if not isinstance(mean, Missing) and isinstance(mean.interval, Missing):
        interval = f"mean over the tasks, with equal weight for each cell. {mean.interval.reason}"
    parts = [
        count(both["language_model"].nunique(), "language model"),
        count(len(both[["m", "n"]].drop_duplicates()), "setting")
        + " of m (labelled texts) and n (texts of pretraining)",
        count(len(both), "trial"),
    ]
    return f"{', '.join(parts)}. Model-free: {interval}"


def _by_setting(trials: pd.DataFrame, fits: Fits, experiment: str, effect: str) -> str:
    """What the hierarchical model says by setting, and what it could have found where it finds nothing."""
    own = fits.of(effect, experiment, fits.main)
    outside = sum(fit.marginal_excludes_zero != 0 for fit in own)
    words = (
        f"In the hierarchical model of all answers ({SHORT[fits.main]}), the 95% interval excludes zero "
        f"in {outside} of {count(len(own), 'setting')}"
    )
    settings = setting_effects(trials)
    means = settings.loc[settings["effect"] == effect, "over_tasks"]
    known = [mean.interval for mean in means if is_known(mean.interval)]
    words += f", the model-free one in {sum(low > 0 or high < 0 for low, high in known)}." if known else "."
    return words if outside else f"{words} {power_words(means)}".rstrip()
