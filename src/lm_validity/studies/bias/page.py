"""The bias report's page: the answer first, then what it rests on, then how much the analysis decides."""

import pandas as pd

from lm_validity.pages.page import Figure, Finding, Page, Section, Table
from lm_validity.studies.bias import figures
from lm_validity.studies.bias.distributions import distribution_section
from lm_validity.studies.bias.formulas import CHANGE, SHORT, formula_finding, formula_section
from lm_validity.studies.bias.sections import (
    cell_table,
    loss_section,
    meta_section,
    per_rows,
    permutation_section,
    power_section,
    power_words,
    prefix,
    provenance_section,
)
from lm_validity.studies.bias.statistics.effects import MARGINS, MODEL_FREE_SLICES, MeanOverTasks
from lm_validity.studies.bias.statistics.model import EFFECTS
from lm_validity.studies.bias.stops import stop_section
from lm_validity.studies.bias.summary import BiasSummary, Setting, Task, rows_frame
from lm_validity.studies.bias.table import SETTING
from lm_validity.studies.bias.violins import violins
from lm_validity.summaries import Missing, as_columns, is_known, number
from lm_validity.words import count, decimal, percent, with_interval


def bias_page(summary: BiasSummary) -> Page:
    """The page of the report."""
    sections = [
        _answer_section(summary),
        _task_section(summary),
        stop_section(summary),
        formula_section(summary),
        permutation_section(summary),
        distribution_section(summary),
        meta_section(summary),
        power_section(summary),
        provenance_section(summary),
        loss_section(summary),
    ]
    return Page(
        name="bias",
        title="Pretraining on test text",
        question="Does pretraining on a benchmark's unlabelled test text inflate its score? The boost is what "
        "pretraining on other text from the same source adds to accuracy. The bias is what the test set's own text "
        "adds beyond that.",
        findings=_findings(summary),
        sections=[section for section in sections if section is not None],
        notes=summary.notes,
    )


def _findings(summary: BiasSummary) -> list[Finding]:
    found = [finding for name in summary.experiments for finding in _experiment_findings(summary, name)]
    unreliable = [fit for fit in summary.posterior if not fit.reliable]
    if unreliable:
        alarm = Finding(
            f"{len(unreliable)} of {count(len(summary.posterior), 'fit')} did not converge: do not use their "
            "intervals.",
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
        sentence = f"{start}{unmoved(bias)}Pretraining on the test set's own unlabelled text, instead of other text "
        sentence += f"from the same source, changes accuracy by {change}."
        if is_known(bias.excluded_beyond):
            sentence += " Two one-sided tests at 5%, which correspond to the narrower 90% interval, exclude a bias of "
            sentence += f"{number(bias.excluded_beyond):.4f} or more in either direction."
        signs = f"{bias.positive} of {count(bias.tasks, 'task')} went up, {bias.negative} down."
        found.append(Finding(sentence, f"{bases['bias']} {signs} {_headline_fits(summary, experiment, 'bias')}"))
    if not isinstance(boost, Missing):
        change = with_interval(boost.mean, _ends(boost.interval), 4, signed=True)
        sentence = f"{start}{unmoved(boost)}Pretraining on other unlabelled text from the same source, instead "
        sentence += f"of none, changes accuracy by {change}."
        down = f"{boost.negative} of {count(boost.tasks, 'task')} went down."
        if isinstance(bias, Missing) or bases["boost"] != bases["bias"]:
            down = f"{bases['boost']} {down}"
        found.append(Finding(sentence, f"{down} {_headline_fits(summary, experiment, 'boost')}"))
    for finding in (formula_finding(summary, experiment), _meta_finding(summary, experiment)):
        if finding is not None:
            found.append(finding)
    return found


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


def _ends(interval: tuple[float, float] | Missing) -> tuple[float, float] | None:
    return None if isinstance(interval, Missing) else interval


def _basis(summary: BiasSummary, experiment: str, effect: str) -> str:
    """What the effect's mean rests on: trials that lack an arm of it do not count."""
    cells = [c for c in summary.cells if c.experiment == experiment and getattr(c, f"{effect}_trials")]
    models, settings = len({cell.language_model for cell in cells}), len({(cell.m, cell.n) for cell in cells})
    mean = summary.headline[experiment][effect]
    interval = "95% t interval over the tasks' means, with equal weight for each cell."
    if not isinstance(mean, Missing) and isinstance(mean.interval, Missing):
        interval = f"mean over the tasks, with equal weight for each cell. {mean.interval.reason}"
    parts = [
        count(models, "language model"),
        count(settings, "setting") + " of m (labelled texts) and n (texts of pretraining)",
        count(sum(getattr(cell, f"{effect}_trials") for cell in cells), "trial"),
    ]
    return f"{', '.join(parts)}. Model-free: {interval}"


def _headline_fits(summary: BiasSummary, experiment: str, effect: str) -> str:
    """What the hierarchical model says by setting, and what it could have found where it finds nothing."""
    key, fits = (experiment, effect), summary.fits(effect, experiment, summary.headline_formula)
    outside = sum(fit.marginal_excludes_zero != 0 for fit in fits)
    words = (
        f"In the hierarchical model of all answers ({SHORT[summary.headline_formula]}), the 95% interval excludes zero "
        f"in {outside} of {count(len(fits), 'setting')}"
    )
    intervals = [row.over_tasks.interval for row in summary.settings if (row.experiment, row.effect) == key]
    known = [interval for interval in intervals if not isinstance(interval, Missing)]
    words += f", the model-free one in {sum(low > 0 or high < 0 for low, high in known)}." if known else "."
    return words if outside else f"{words} {power_words(summary, experiment, effect)}".rstrip()


def _meta_finding(summary: BiasSummary, experiment: str) -> Finding | None:
    results = [row for row in summary.meta_analysis if row.experiment == experiment and is_known(row.share_beyond)]
    if not results:
        return None
    result = max(results, key=lambda row: (row.m, row.n))
    model_free = "With one task there is no interval over tasks to compare with."
    if is_known(result.share_t_excluding_zero):
        model_free = "An 89% t interval over tasks, which needs no model, excludes zero in "
        model_free += (
            f"{percent(number(result.share_t_excluding_zero))} of {MODEL_FREE_SLICES:,} such studies. Without "
        )
        model_free += "an effect, 11% would be expected. The studies are drawn from one set of trials."
    return Finding(
        f"{prefix(summary, experiment)}If each task had only one random draw of its texts (one subsample), "
        f"{percent(number(result.share_beyond))} of {result.slices} such studies would have an estimate beyond ±0.04 "
        f"log-odds (one point of accuracy, near 50%). In {percent(number(result.share_excluding_zero))}, the 89% "
        "interval of a binomial model would have excluded zero.",
        f"m = {result.m}, n = {result.n}. {model_free}",
    )


def _answer_section(summary: BiasSummary) -> Section:
    return Section(
        "The answer by setting",
        finding=per_rows(summary, [row for row in summary.settings if row.effect == "bias"], _answer_sentence),
        explanation=(
            "There are three arms: base (no pretraining), extra (pretraining on other text from the same source) and "
            "test (pretraining on the test set's own text). The boost is accuracy under extra minus accuracy under "
            "base. The bias is accuracy under test minus accuracy under extra. m labelled examples train the "
            "classifier, n texts are pretrained on, and n test items are scored. Boost and bias share the arm extra: "
            "chance that raises one lowers the other. A boost from text of the benchmark's own domain can itself be "
            "unfair. Both intervals are 95% intervals and answer the same question: how large is the effect on average "
            "over tasks like these, with new subsamples and new trainings? The model-free one is the mean over the "
            "tasks with a t interval. The marginal one is the effect in the hierarchical model "
            f"({SHORT[summary.headline_formula]}), converted from log-odds to accuracy and averaged over new tasks, "
            "subsamples and trainings. The column p (equivalence) is from two one-sided tests (TOST). It is small if "
            "the effect is clearly smaller than half a point of accuracy. Excluded beyond is the smallest effect that "
            "these tests rule out."
        ),
        figures=[
            Figure(
                f"answer_{effect}",
                f"{effect.capitalize()} in accuracy",
                figures.answer(summary, effect),
                f"{' − '.join(EFFECTS[effect])}: means with 95% intervals for new tasks and trainings.",
            )
            for effect in ("bias", "boost")
            if summary.fits(effect)
        ],
        tables=[
            cell_table(summary),
            _setting_table(summary),
        ],
    )


def _answer_sentence(settings: list[Setting]) -> str:
    if not settings:
        return "No setting has the arms extra and test."
    means = [row.over_tasks.mean for row in settings]
    return (
        f"Averaged over tasks and language models, the bias lies between {min(means):+.4f} and {max(means):+.4f} in "
        f"{count(len(means), 'setting')}."
    )


def _setting_table(summary: BiasSummary) -> Table:
    """Model-free means beside the model's marginal effects, one row for each setting and effect."""
    of_headline = [fit for fit in summary.posterior if fit.formula == summary.headline_formula]
    fits, rows = {(fit.experiment, fit.m, fit.n, fit.effect): fit for fit in of_headline}, []
    for row in summary.settings:
        key = (row.experiment, row.m, row.n, row.effect)
        free, fit = row.over_tasks, fits[key]
        p = free.equivalence if isinstance(free.equivalence, Missing) else free.equivalence[0].p
        ends = as_columns(free.interval).values()
        known = (free.mean, free.standard_error, *ends, free.tasks, free.excluded_beyond, p, free.smallest_detectable)
        rows.append([*key, *known, fit.marginal_mean, *fit.marginal_interval])
    columns = ["mean", "standard_error", "low", "high", "tasks", "excluded_beyond", "equivalence_p"]
    columns += ["smallest_detectable", "marginal", "marginal_low", "marginal_high"]
    formats = dict.fromkeys(["mean", "low", "high", "marginal", "marginal_low", "marginal_high"], CHANGE)
    sizes = dict.fromkeys(["standard_error", "excluded_beyond", "smallest_detectable"], ".4f")
    return Table(
        "settings",
        "Model-free and model-based effects",
        pd.DataFrame(rows, columns=[*SETTING, "effect", *columns]),
        formats=formats | sizes | {"equivalence_p": "p"},
        labels={"equivalence_p": f"p (equivalence: |effect| below {MARGINS[0]})"},
        caption="Differences of accuracy with 95% intervals. Excluded beyond: one-sided tests at 5% exclude "
        "effects of this size or larger. Smallest detectable: a t test over these tasks finds it four times out "
        "of five.",
    )


def _task_sentence(tasks: list[Task]) -> str:
    biases = {task.task: number(task.bias) for task in tasks if is_known(task.bias)}
    if not biases:
        return "No task has both arms of the bias."
    largest = max(biases, key=lambda name: abs(biases[name]))
    return (
        f"{sum(bias > 0 for bias in biases.values())} of {count(len(biases), 'task')} have a positive bias. The "
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
            "Each violin is the distribution over subsamples: the boost above the line, the bias below it. "
            "Subsamples differ in training set, test set and training noise. That is why single experiments disagree."
        ),
        figures=violins(summary),
        tables=[
            Table(
                "tasks",
                "Boost and bias by task",
                rows_frame(Task, sorted(summary.tasks, key=_by_bias)),
                formats={"boost": CHANGE, "bias": CHANGE},
                caption="Every cell (language model, m, n) has the same weight.",
            )
        ],
    )
