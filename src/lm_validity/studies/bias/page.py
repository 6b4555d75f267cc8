"""The bias report: does pretraining on a benchmark's unlabelled test text inflate its score?"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from lm_validity.config.plan import BiasPlan
from lm_validity.missing import Missing, is_known, number
from lm_validity.pages import svg
from lm_validity.pages.page import Answer, Finding, Lede, Page, Panel, Part, Picture
from lm_validity.results.files import joined, write_report
from lm_validity.studies.bias.effect_sections import (
    belonging,
    cell_section,
    power_section,
    shared_section,
    stop_section,
    task_section,
    test_section,
)
from lm_validity.studies.bias.effects import (
    DETECTABLE_BIAS,
    TaskEffect,
    biases_found,
    tasks_found,
)
from lm_validity.studies.bias.model_sections import SHORT, formula_section, power_words, setting_section, slice_section
from lm_validity.studies.bias.numbers import BiasSummary, Extent, analyze_bias
from lm_validity.studies.bias.trials import Study, read_trials
from lm_validity.words import count, with_interval

if TYPE_CHECKING:
    from lm_validity.studies.bias.statistics.effects import JointMean


def report_bias(
    trials: str | Path,
    output: str | Path,
    sampler: str = "laplace",
    formula: str = "all",
    plan: BiasPlan | None = None,
) -> None:
    """Write summary.json, tables, figures and the page of the bias report under `output`.

    `trials`: a trials table. `sampler`, `formula`: as `analyze_bias` has them. `plan`: where tasks stop on the width of
    their interval.
    """
    study = Study(read_trials(trials), plan)
    summary = analyze_bias(study, sampler, formula)
    write_report(bias_page(study, summary), summary, output)


def bias_page(study: Study, summary: BiasSummary) -> Page:
    """The page: the means over tasks, then a section for each question."""
    excludes_zero = biases_found(summary.headline)
    quoted = quoted_experiment(study, excludes_zero)
    figures: dict[str, Means] = {
        experiment: {effect: mean for effect, mean in by_effect.items() if not isinstance(mean, Missing)}
        for experiment, by_effect in summary.headline.items()
    }
    parts = joined(
        _headline(study, summary, figures, quoted),
        cell_section(summary.cells),
        task_section(study, summary.tasks, summary.by_task, summary.distributions),
        stop_section(study, summary.stops),
        setting_section(study, summary.settings, summary.fits),
        formula_section(study, summary.fits, summary.trial_spreads),
        test_section(study, summary.permutation),
        shared_section(summary.correlations, summary.accuracies),
        slice_section(study, summary.meta_analysis),
        power_section(study, summary.power),
        belonging(summary.base_drift, summary.base_by_n, summary.pretraining_loss, summary.test_set_mismatches),
    )
    basis, verdict = (
        _basis_words(study, quoted, summary.extent[quoted]),
        _verdict(figures, excludes_zero, summary.by_task),
    )
    return Page(
        name="bias",
        title="Test text seen",
        question="Does pretraining on a benchmark's unlabelled test text inflate its score? The boost is what "
        "pretraining on other text from the same source adds to accuracy. The bias is what the test set's own text "
        "adds beyond that.",
        findings=parts.findings,
        sections=parts.sections,
        notes=summary.notes,
        lede=_lede(figures, verdict, quoted),
        picture=_forest(figures, [row for row in summary.by_task if row.experiment == quoted], basis),
        panels=parts.panels,
        answers=_answers(figures, basis, verdict, quoted),
    )


# ----------------------------------------------------------------------------------------------------------------------
# The answer: means over tasks.


def _headline(study: Study, summary: BiasSummary, figures: "Mapping[str, Means]", quoted: str) -> Part:
    """Mean bias and boost of each experiment, with what they rest on, and an alarm where fits failed; the size that the
    `quoted` experiment could have found."""
    fits = summary.fits
    findings = []
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
        for effect, meant in MEANT.items():
            mean = figures[experiment].get(effect)
            if mean is None:
                continue
            ends = None if isinstance(mean.interval, Missing) else mean.interval
            sentence = f"{study.prefix(experiment)}{unmoved(mean)}Pretraining on {meant} changes accuracy by "
            sentence += f"{with_interval(mean.mean, ends, 4, signed=True)}."
            if effect == "bias" and is_known(mean.excluded_beyond):
                sentence += " Two one-sided tests at 5%, which correspond to a narrower interval, exclude a bias "
                sentence += f"of {number(mean.excluded_beyond):.4f} or more in either direction."
            signs = f"{mean.positive} of {count(mean.tasks, 'task')} went up, {mean.negative} down."
            basis = _basis(summary.complete[experiment][effect], mean)
            findings.append(Finding(sentence, f"{basis} {signs} {_by_setting(summary, experiment, effect)}"))
    if with_effect := tasks_found(summary.by_task):
        tested = _tested(summary.by_task)
        largest = max(with_effect, key=lambda row: abs(row.mean))
        ends = None if isinstance(largest.interval, Missing) else largest.interval
        sentence = f"On {len(with_effect)} of {count(tested, 'task')} the bias differs from 0, most on "
        sentence += (
            f"{study.prefix(largest.experiment)}{largest.task}: {with_interval(largest.mean, ends, 4, signed=True)}."
        )
        findings.append(Finding(sentence, "t tests over subsamples, at 5% after Holm's correction over the tasks."))
    return Part({}, findings=findings, panel=_size_panel(figures[quoted].get("bias")))


def _tested(rows: Sequence[TaskEffect]) -> int:
    """How many tasks have a test of their own."""
    return sum(not isinstance(row.p_adjusted, Missing) for row in rows)


def unmoved(mean: "JointMean") -> str:
    """What tasks without any difference do to the interval; empty for fewer than a third of the tasks."""
    still = mean.tasks - mean.positive - mean.negative
    if 3 * still < mean.tasks or isinstance(mean.interval, Missing):
        return ""
    return (
        f"{still} of {count(mean.tasks, 'task')} show no difference at all. This makes the t interval too narrow. In "
        "simulations where half of the tasks were like that, it contained the truth in 88% of cases with 5 tasks and "
        "in 94% with 25. "
    )


def _basis(complete: Extent, mean: "JointMean") -> str:
    """What the mean of an experiment rests on: trials that lack an arm of the effect do not count."""
    interval = "95% t interval over the tasks' means, with equal weight for each cell."
    if mean.experiments > 1:
        interval += f" It holds over {mean.experiments} experiments at once (Bonferroni's correction)."
    if isinstance(mean.interval, Missing):
        interval = f"mean over the tasks, with equal weight for each cell. {mean.interval.reason}"
    parts = [
        count(complete.language_models, "language model"),
        count(complete.settings, "setting") + " of m (labelled texts) and n (texts of pretraining)",
        count(complete.trials, "trial"),
    ]
    return f"{', '.join(parts)}. Model-free: {interval}"


def _by_setting(summary: BiasSummary, experiment: str, effect: str) -> str:
    """What the hierarchical model says by setting, and what it could have found where it finds nothing."""
    fits = summary.fits
    fits_of_effect = fits.of(effect, experiment, fits.main)
    outside = sum(low > 0 or high < 0 for low, high in (fit.marginal_interval for fit in fits_of_effect))
    words = (
        f"In the hierarchical model of all answers ({SHORT[fits.main]}), the 95% interval of a setting by itself "
        f"excludes zero in {outside} of {count(len(fits_of_effect), 'setting')}"
    )
    means = [row.over_tasks for row in summary.settings if (row.experiment, row.effect) == (experiment, effect)]
    intervals = [mean.interval for mean in means if not isinstance(mean.interval, Missing)]
    words += f", the model-free one in {sum(low > 0 or high < 0 for low, high in intervals)}." if intervals else "."
    power = power_words(means)
    return words if outside or power is None else f"{words} {power}"


# ----------------------------------------------------------------------------------------------------------------------
# Above the folds.

Means = Mapping[str, "JointMean"]  # by effect, where it is known
MEANT = {
    "bias": "the test's own texts instead of other texts",
    "boost": "other texts of the same source instead of none",
}
KINDS = {"boost": "s", "bias": "k"}  # of marks
BAND = 0.01  # accuracy: one point
MOST_ROWS = 60  # tasks that the picture shows


def quoted_experiment(study: Study, found: Mapping[str, bool | None]) -> str:
    """The experiment whose numbers are quoted: that with most trials or, where others decide the answer, of these.

    `found`: of `biases_found`.
    """
    if found[study.main] or True not in found.values():
        return study.main
    trials = study.trials["experiment"].value_counts(sort=False)
    return str(trials[[name for name, decided in found.items() if decided]].idxmax())


def _points(value: float) -> str:
    return svg.points(value, 2, signed=True)


def _interval_words(mean: "JointMean | TaskEffect") -> str:
    if isinstance(mean.interval, Missing):
        return ""
    experiments = 1 if isinstance(mean, TaskEffect) else mean.experiments
    over = f" over {experiments} experiments" if experiments > 1 else ""
    return f"95%{over}: {_points(mean.interval[0])} to {_points(mean.interval[1])}"


class _Verdict(NamedTuple):
    """What the experiments find together: the heading of the page, and how the first page's answer begins."""

    heading: str
    answer: str
    of_tasks: bool = False  # that single tasks have an effect, and the mean over all is not shown to


def _verdict(
    means: Mapping[str, Means], excludes_zero: Mapping[str, bool | None], rows: Sequence[TaskEffect]
) -> _Verdict:
    """From the intervals of all experiments: in how many of them scores surely rise, and in how many they fall. Where
    none decides, in how many tasks by themselves scores surely change.

    `excludes_zero`: of `biases_found`. `rows`: the effects by task.
    """
    if True not in excludes_zero.values():
        if with_effect := tasks_found(rows):
            tasks = _tested(rows)
            extent = f"{len(with_effect)} of {count(tasks, 'task')}" if tasks > 1 else "the one task"
            remainder = ", not shown over all" if tasks > 1 else ""
            heading = f"Having read the test's texts changes scores on {extent}{remainder}"
            return _Verdict(heading, f"On {extent}{remainder}", of_tasks=True)
        if False in excludes_zero.values():
            return _Verdict("No effect found of having read the test's texts", "No effect found")
        state = "Not known" if any("bias" in row for row in means.values()) else "Not measured"
        return _Verdict(f"{state}: does having read the test's texts change scores?", "Not known")
    raised = sum(bool(decided) and means[name]["bias"].mean > 0 for name, decided in excludes_zero.items())
    lowered = sum(map(bool, excludes_zero.values())) - raised
    extent = count(len(excludes_zero), "experiment")
    if raised and lowered:
        words = f"raises scores in {raised} and lowers them in {lowered} of {extent}"
        return _Verdict(f"Having read the test's texts {words}", f"It {words}")
    where = "" if raised + lowered == len(excludes_zero) else f" in {raised + lowered} of {extent}"
    answer = f"Yes{where and ','}{where}" if raised else f"It lowers scores{where}"
    return _Verdict(f"Having read the test's texts changes scores{where}", answer)


def _lede(means: Mapping[str, Means], verdict: _Verdict, quoted: str) -> Lede:
    """The answer over all experiments, and the number of the one that is quoted."""
    bias = means[quoted].get("bias")
    if bias is None:
        return Lede(verdict.heading)
    begin = f"In {quoted}, reading" if len(means) > 1 else "Reading"
    sentence = f"{begin} {MEANT['bias']} changes accuracy by {_points(bias.mean)} points"
    return Lede(verdict.heading, sentence, _interval_words(bias))


Effects = Mapping[str, "JointMean | TaskEffect"]  # what a row of the picture shows


def _forest(means: Mapping[str, Means], rows: Sequence[TaskEffect], basis: str) -> Picture:
    """All tasks of each experiment on top, then each task of the one that is quoted: bias, and boost in grey."""
    moved = {row.task: row.mean for row in rows if row.effect == "bias"}
    order = {row.task: row.mean for row in rows if row.effect == "boost"} or moved
    tasks = sorted(dict.fromkeys(row.task for row in rows), key=lambda task: -abs(moved.get(task, 0.0)))
    largest = sorted(tasks[:MOST_ROWS], key=lambda task: -order.get(task, -1.0))
    tasks_shown = [(task, {row.effect: row for row in rows if row.task == task}) for task in largest]
    total_rows = []
    for name, effects in means.items():
        if effects:
            words = f"All {count(max(mean.tasks for mean in effects.values()), 'task')}"
            total_rows.append((words + (f", {name}" if len(means) > 1 else ""), effects))
    note = (
        f"Change in accuracy, in points. {basis}. Each task: mean over its models and settings, with its "
        "interval over random draws of the texts. All tasks: interval over tasks. Band: one point up or down."
    )
    if len(tasks_shown) < len(tasks):
        note += f" Drawn are the {len(tasks_shown)} of {len(tasks)} tasks that their own texts change most."
    measured = {effect for effects in means.values() for effect in effects}
    entries = [(KINDS[effect], f"reading {meant}") for effect, meant in MEANT.items() if effect in measured]
    sizes = ((1180.0, 230.0, "w640"), (380.0, 118.0, "n640"))
    return Picture(
        svg.key(*entries) + Markup("").join(_rows_svg(total_rows, tasks_shown, *size) for size in sizes), note
    )


def _rows_svg(
    total_rows: Sequence[tuple[str, Effects]], rows: Sequence[tuple[str, Effects]], width: float, room: float, kind: str
) -> Markup:
    """The picture, with `room` pixels for names."""
    ends = _ends(effect for _, row in (*total_rows, *rows) for effect in row.values())
    axis = svg.Axis(min(-1.3 * BAND, *ends), max(1.3 * BAND, *ends), room, width - 16)
    step, top = (19 if len(rows) > 8 else 26), 32 + 38 * len(total_rows)
    height = top + step * len(rows) + 34
    values = svg.round_values(axis.low, axis.high, 12 if width > 500 else 6)
    written = svg.written_points(values)
    marks = [
        svg.box(axis(-BAND), 20, axis(BAND) - axis(-BAND), height - 50, "zone"),
        svg.ticks(axis, values, 20, height - 30, written),
        *(svg.text(axis(value), 12, words, "", "middle") for value, words in zip(values, written, strict=True)),
        svg.line(0, top - 4, width, top - 4, "ax"),
    ]
    places = [(40.0 + 38 * index, 6.0, 4.6, "num", *row) for index, row in enumerate(total_rows)]
    places += [(top + 4 + step * (index + 0.5), 3.5, 3.4, "lab", *row) for index, row in enumerate(rows)]
    for y, apart, radius, style, name, effects in places:
        marks.append(svg.text(0, y + 4, svg.shortened(name, int(room / 6.4)), style))
        for effect, sign in (("boost", -1), ("bias", 1)):
            if effect in effects:
                marks.append(_mark(axis, effects[effect], y + sign * apart, KINDS[effect], radius))
    description = "; ".join(f"{name}: {_said(effects)}" for name, effects in total_rows)
    label = f"Change in accuracy, in points. {description}. Below, a row for each of {count(len(rows), 'task')}."
    return svg.svg(width, height, label, *marks, kind=kind)


def _ends(effects: Iterable["JointMean | TaskEffect"]) -> list[float]:
    """All that an axis has to hold."""
    known_effects = [(effect.mean, effect.interval) for effect in effects]
    return [
        end for mean, interval in known_effects for end in (mean, *(() if isinstance(interval, Missing) else interval))
    ]


def _mark(axis: svg.Axis, effect: "JointMean | TaskEffect", y: float, kind: str, radius: float) -> Markup:
    ends = None if isinstance(effect.interval, Missing) else effect.interval
    return svg.whisker(axis, ends, y, kind) + svg.dot(axis(effect.mean), y, kind, radius)


def _said(effects: Effects) -> str:
    """The numbers of a row for a label."""
    return ", ".join(
        f"{MEANT[name]} {_points(effect.mean)} ({_interval_words(effect) or 'no interval'})"
        for name, effect in effects.items()
    )


def _basis_words(study: Study, experiment: str, extent: Extent) -> str:
    return f"{study.prefix(experiment)}{count(extent.tasks, 'task')}, {count(extent.language_models, 'language model')}"


def _answers(by_experiment: Mapping[str, Means], basis: str, verdict: _Verdict, quoted: str) -> list[Answer]:
    """What a site's first page says, with the numbers of the experiment that is quoted; nothing where no trial has the
    arms."""
    means = by_experiment[quoted]
    if "bias" not in means:
        return []
    bias = means["bias"]
    changed = f"in {quoted} by" if len(by_experiment) > 1 else f"{MEANT['bias']} change accuracy by"
    changed = "the mean change in accuracy is" if verdict.of_tasks else changed
    sentence = f"{verdict.answer}: {changed} {_points(bias.mean)} points"
    ends = _ends(means.values())
    axis = svg.Axis(min(-BAND, *ends), max(BAND, *ends), 12, 368)
    values = svg.round_values(axis.low, axis.high, 8)
    marks = [
        svg.ticks(axis, values, 6, 100, svg.written_points(values)),
        svg.text(12, 129, "change in accuracy, points"),
    ]
    for effect, y, words in (
        ("boost", 44, "reading other texts first"),
        ("bias", 88, "reading the test's own texts instead"),
    ):
        if effect in means:
            marks += [svg.text(12, y - 14, words, "lab"), _mark(axis, means[effect], y, KINDS[effect], 4.2)]
    picture = svg.svg(380, 132, f"Change in accuracy, in points: {_said(means)}.", *marks)
    question = "Does having seen test text inflate a score?"
    return [Answer(question, sentence, picture, _interval_words(bias), basis, "The experiment")]


def _size_panel(bias: "JointMean | None") -> Panel | None:
    """What the interval over tasks could have found, beside half a point."""
    if bias is None or isinstance(bias.smallest_detectable, Missing):
        return None
    smallest = bias.smallest_detectable
    reach = 1.1 * max(smallest, DETECTABLE_BIAS, *map(abs, _ends([bias])))
    axis = svg.Axis(-reach, reach, 12, 348)
    values = svg.round_values(-reach, reach, 7)
    picture = svg.svg(
        360,
        112,
        f"Effects smaller than {svg.points(smallest, 2)} points are too small to detect reliably (80% power). Here: "
        f"{_said({'bias': bias})}.",
        svg.box(axis(-smallest), 16, axis(smallest) - axis(-smallest), 64, "zone"),
        svg.ticks(axis, values, 10, 86, svg.written_points(values)),
        *(svg.line(axis(end), 10, axis(end), 86, "chance") for end in (-DETECTABLE_BIAS, DETECTABLE_BIAS)),
        _mark(axis, bias, 48, "k", 4.2),
    )
    return Panel(
        f"Would {svg.points(DETECTABLE_BIAS, 1)} points have been found?",
        f"**{svg.points(smallest, 2)} points** would be found with 80% power; smaller ones (grey band) more rarely",
        picture,
        "yes" if smallest <= DETECTABLE_BIAS else "no",
    )
