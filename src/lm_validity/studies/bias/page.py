"""The bias report: does pretraining on a benchmark's unlabelled test text inflate its score?"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.config.load import BiasPlan
from lm_validity.pages.page import Answer, Finding, Lede, Page
from lm_validity.results import sections
from lm_validity.results.put import Column, Condition, Row, Rows, ends_of
from lm_validity.results.sections import Dots, Lines, PanelOf, Says, SectionOf, Series, TableOf
from lm_validity.studies.bias import numbers
from lm_validity.studies.bias.trials import coverage_notes, provenance_notes, read_trials
from lm_validity.words import count

READING_NOTES = (
    "Boost and bias share the extra arm: if chance raises accuracy(extra), the boost rises and the bias falls. "
    "Do not read the two together as if they were independent.",
    "A boost from text of the benchmark's own domain can itself be unfair: a model may generalise better within "
    "that domain only, and a score that it gains there need not show elsewhere.",
    "Means of a cell and their standard errors are over task means. In means by task, every cell (language model, m, "
    "n) has the same weight. Intervals are 95% intervals, except those of posteriors, which are 89%, as in the paper.",
)
MEANT = {
    "bias": "the test's own texts instead of other texts",
    "boost": "other texts of the same source instead of none",
}
NAMES = {
    "equations": "the printed formula",
    "notebooks": "the author's fitted formula",
    "overdispersed": "the formula with training noise",
}
BIAS, BOOST = {"effect": "bias"}, {"effect": "boost"}
SETTING = {"experiment": "{}", "m": "m={}", "n": "n={}"}  # what a setting is called in a chart
LEVEL, CHANCE = 0.05, 0.11
SMALL = 0.005  # half a point of accuracy, which an experiment should be able to find
POINTS = "Change in accuracy, in points"
CHANGE = "+.4f"  # how a table shows an effect


def report_bias(
    trials: str | Path, output: str | Path, sampler: str = "laplace", formula: str = "all", plan: BiasPlan | None = None
) -> None:
    """Write results.parquet, results.csv and the page of the bias report under `output`.

    `trials`: a trials table. `sampler`: laplace (seconds a fit) or nuts (minutes; needs the extra `bayes`). `formula`:
    all, or one of `statistics.latent.FORMULAS`. `plan`: where tasks stop on the width of their interval.
    """
    table = read_trials(trials)
    rows = bias_rows(table, plan, sampler, formula)
    sections.write_rows(bias_page(table, rows, plan), rows, output)


def bias_rows(trials: pd.DataFrame, plan: BiasPlan | None, sampler: str, formula: str) -> Rows:
    """Everything that the trials of a study tell. Raises InputError where they are not those of its plan."""
    rows = Rows("bias")
    if plan is not None:
        numbers.stop_rows(rows, trials, plan)  # first: it refuses trials that are not those of the plan
    numbers.mean_rows(rows, trials)
    numbers.task_rows(rows, trials, plan)
    numbers.cell_rows(rows, trials)
    numbers.model_rows(rows, trials, formula, sampler)
    numbers.trial_rows(rows, trials)
    return rows


# ----------------------------------------------------------------------------------------------------------------------
# What the page shows, as data.

FINDINGS = (
    Says(
        "effect",
        "{experiment}Pretraining on {effect} changes accuracy by {value:+} points ({interval}), over {n:task}, each "
        "cell with the same weight.",
        by={"experiment": {}, "effect": MEANT},
    ),
    Says(
        "effect_excluded_beyond",
        "{experiment}Two one-sided tests at 5% exclude a bias of {value} points or more in either direction.",
        BIAS,
        by={"experiment": {}},
    ),
    Says(
        "task_effect_p_adjusted",
        "{experiment}By itself the bias of {significant} of {count:task} differs from 0 (t tests over subsamples at 5% "
        "after Holm's correction over the tasks of all experiments).",
        BIAS,
        by={"experiment": {}},
    ),
    Says(
        "marginal_effect",
        "{experiment}In the hierarchical model of all answers, with {formula}, the 95% interval of the {effect} of a "
        "setting by itself excludes zero in {apart} of {count:setting}.",
        by={"experiment": {}, "effect": {"bias": "bias", "boost": "boost"}, "formula": NAMES},
    ),
)


def both(quantity: str, names: dict[str, str], heading: str = "", **where: str) -> list[Series]:
    """Boost in grey over bias in ink."""
    return [
        Series(quantity, names, BOOST | where, "s", f"reading {MEANT['boost']}", heading),
        Series(quantity, names, BIAS | where, "k", f"reading {MEANT['bias']}", heading),
    ]


def picture(quoted: str) -> Dots:
    """All tasks of each experiment on top, then each task of the one that is quoted."""
    return Dots(
        [
            *both("effect", {"experiment": "{}"}, "All {n} tasks"),
            *both("task_effect", {"subject": "{}"}, experiment=quoted),
        ],
        f"{POINTS}, with 95% intervals: of each task over random draws of the texts, of all tasks "
        "over tasks. Band: one point up or down",
        band=0.01,
        sorted=True,
    )


def panels(rows: Rows, quoted: str) -> list[PanelOf]:
    """Three questions, each with its chart."""
    of_quoted = BIAS | {"experiment": quoted}
    smallest = np.nan_to_num(rows.value("effect_smallest_detectable", **of_quoted))
    return [
        PanelOf(
            "Would 0.5 points have been found?",
            Says(
                "effect_smallest_detectable",
                "**{value} points** would be found with 80% power; smaller ones (grey band) more rarely; dashed: 0.5",
                of_quoted,
            ),
            Dots(
                [Series("effect", {"effect": "the change"}, of_quoted)], POINTS, band=smallest, dashed=(-SMALL, SMALL)
            ),
            outcome=lambda smallest: "yes" if smallest <= SMALL else "no",
        ),
        PanelOf(
            "In which settings?",
            Says(
                "setting_effect",
                "**{apart} of {with_interval}** settings have an interval without zero (by chance: 1 in 20)",
                BIAS,
            ),
            Dots([Series("setting_effect", SETTING, BIAS)], "Change by the test's own texts, in points, by setting"),
        ),
        PanelOf(
            "What would one draw of the texts show?",
            Says(
                "slices_excluding_zero",
                "**{span}** of studies with one draw find an effect; 11% (dashed) if there is none",
            ),
            Dots(
                [Series("slices_excluding_zero", SETTING)],
                "Studies with one draw that find an effect",
                dashed=(0, CHANCE, 1),
            ),
        ),
    ]


def of_task(effect: str) -> dict[str, Column]:
    """The columns of a task's effect."""
    where = {"effect": effect}
    return {
        **Column("task_effect", effect, CHANGE, where=where).with_ends(effect),
        f"{effect}_excluded_beyond": Column("task_effect_excluded_beyond", "excluded beyond", ".4f", where=where),
        f"{effect}_subsamples": Column("task_effect_subsamples", "subsamples", ".0f", where=where),
    }


def distributions(rows: Rows) -> Iterator[Dots]:
    """The paper's figure 1 for each language model, in the largest of its settings."""
    largest = dict[tuple[Condition, Condition], tuple[Condition, Condition]]()
    for row in rows.all("cell_trials"):
        at = row.said
        key, setting = (at["experiment"], at["language_model"]), (at["m"], at["n"])
        largest[key] = max(largest.get(key, setting), setting)
    for (experiment, model), (m, n) in largest.items():
        where = {"experiment": experiment, "language_model": model, "m": m, "n": n}
        yield Dots(
            [
                Series("subsample_effect", {"subject": "{}"}, where | effect, mark, name, inner="middle_subsamples")
                for name, effect, mark in (("boost", BOOST, "s"), ("bias", BIAS, "k"))
            ],
            f"{experiment}, {model}, m={m}, n={n}: change in accuracy in a single subsample, in points; the "
            "median, the middle half (bar) and the middle 90% of the subsamples",
            sorted=True,
        )


SECTIONS = (
    SectionOf(
        "By language model, m and n",
        Says("cell_effect", "{experiment}The bias is {span:+} points in {count:cell}.", BIAS, by={"experiment": {}}),
        TableOf(
            "cells",
            {"experiment": "experiment", "language_model": "language model", "m": "m", "n": "n"},
            {
                "boost_mean": Column("cell_effect", "boost", CHANGE, where=BOOST),
                "boost_se": Column("cell_effect_standard_error", "its error", ".4f", where=BOOST),
                "bias_mean": Column("cell_effect", "bias", CHANGE, where=BIAS),
                "bias_se": Column("cell_effect_standard_error", "its error", ".4f", where=BIAS),
                "subsamples": Column("cell_subsamples", "subsamples", ".0f"),
                "tasks": Column("cell_tasks", "tasks", ".0f"),
                "trials": Column("cell_trials", "trials", ".0f"),
            },
            "Means by language model, m and n",
            "Means and standard errors over task means: every task has the same weight.",
        ),
        explanation="There are three arms: base (no pretraining), extra (pretraining on other text from the same "
        "source) and test (pretraining on the test set's own text). The boost is accuracy under extra minus accuracy "
        "under base. The bias is accuracy under test minus accuracy under extra. m labelled examples train the "
        "classifier, n texts are pretrained on, and n test items are scored.",
        hint="the cells of the study",
    ),
    SectionOf(
        "Task by task",
        Says(
            "task_effect",
            "{experiment}{above} of {count:task} have a positive bias, {apart} an interval without zero. The largest "
            "in size is {value:+} points ({name}; {interval}).",
            BIAS,
            by={"experiment": {}},
        ),
        TableOf(
            "tasks",
            {"experiment": "experiment", "subject": "task"},
            of_task("boost")
            | of_task("bias")
            | {"p_adjusted": Column("task_effect_p_adjusted", "p of the bias (Holm)", "p", where=BIAS)},
            "Boost and bias by task",
            "Every cell (language model, m, n) has the same weight. Excluded beyond: one-sided tests at 5% exclude "
            "effects of this size or larger.",
            sorted_by="bias",
        ),
        distributions,
        "Subsamples differ in training set, test set and training noise. That is why single experiments disagree.",
        "distributions over draws of the texts",
    ),
    SectionOf(
        "How the conclusion depends on the formula",
        Says(
            "beta",
            "{experiment}With {formula}, the 89% interval of the bias excludes zero in {apart} of {count:setting} "
            "({apart_above} up, {apart_below} down).",
            BIAS,
            by={"experiment": {}, "formula": NAMES},
        ),
        TableOf(
            "posterior",
            {name: name for name in ("experiment", "m", "n", "effect", "formula", "sampler")},
            {
                "beta_mean": Column("beta", "beta", CHANGE),
                "beta_low": Column("beta", "low", CHANGE, "low"),
                "beta_high": Column("beta", "high", CHANGE, "high"),
                "beta_sd": Column("beta_sd", "standard deviation of beta", ".4f"),
                "marginal": Column("marginal_effect", "effect in accuracy", CHANGE),
                "difference": Column("predicted_difference", "difference", CHANGE),
                "difference_low": Column("predicted_difference", "low", CHANGE, "low"),
                "difference_high": Column("predicted_difference", "high", CHANGE, "high"),
                "log_evidence": Column("log_evidence", "log evidence", ".1f"),
                "divergences": Column("divergences", "divergences", ".0f"),
                "rhat_max": Column("rhat_max", "largest R-hat", ".3f"),
                "effective_nodes": Column("effective_nodes", "effective nodes", ".0f"),
                "effective_draws_min": Column("effective_draws_min", "effective draws", ".0f"),
            },
            "All fits",
            "beta is in log-odds, differences are in accuracy, intervals are 89%. Compare log evidence within one "
            "setting and effect only.",
            folded=True,
        ),
        [
            Dots(
                [
                    Series("beta", SETTING, BIAS | {"formula": formula}, mark, words)
                    for (formula, words), mark in zip(NAMES.items(), "sdk", strict=True)
                ],
                "beta of the bias, in log-odds: posterior means with 89% intervals, as in the paper",
            ),
            Dots(
                [
                    Series("predicted_difference", SETTING, where | {"formula": "overdispersed"}, mark, where["effect"])
                    for where, mark in ((BOOST, "s"), (BIAS, "k"))
                ],
                "Average accuracy difference in points if these same classifiers answered new test items, with 89% "
                "intervals (the formula with training noise)",
            ),
        ],
        "All three formulas model how likely a right answer is. The printed formula (equations) is that of the paper "
        "(arXiv:2410.00179). It gives each task and each subsample a level and explains the rest by the drawing of n "
        "test items. But a model trained twice on the same subsample also gives different answers. A formula that "
        "ignores such training noise mistakes it for information, and finds effects that another training would not "
        "show. The author's fitted formula (notebooks) gives each task its own effect and is more cautious. The "
        "formula with training noise (overdispersed, the default) also lets language models differ by task and "
        "measures the training noise of each.",
        "as in the paper",
    ),
)


# ----------------------------------------------------------------------------------------------------------------------
# The answer over all experiments, and the page.


def excludes_zero(row: Row) -> bool | None:
    """Whether an interval lies apart from 0; None without one."""
    ends = ends_of(row)
    return None if ends is None else ends[0] > 0 or ends[1] < 0


def quoted_experiment(rows: Rows) -> str:
    """The experiment whose numbers are quoted: that with most trials or, where others decide the answer, of these."""
    trials = dict.fromkeys((str(each) for each in rows.labels("experiment", "effect")), 0.0)
    for row in rows.all("cell_trials"):
        trials[str(row.said["experiment"])] += row.value or 0.0
    deciding = [str(row.said["experiment"]) for row in rows.all("effect", **BIAS) if excludes_zero(row)]
    main = max(trials, key=trials.__getitem__)
    return main if main in deciding or not deciding else max(deciding, key=trials.__getitem__)


def verdict(rows: Rows) -> tuple[str, str]:
    """The heading of the page, and how the first page's answer begins, from the intervals of all experiments: in how
    many of them scores surely rise, and in how many they fall; where none decides, on how many tasks they change."""
    means = rows.all("effect", **BIAS)
    signs = [(row.value or 0.0) > 0 for row in means if excludes_zero(row)]
    extent = count(len(means), "experiment")
    if not signs:
        tests = [row.value for row in rows.all("task_effect_p_adjusted", **BIAS) if row.value is not None]
        if found := sum(p < LEVEL for p in tests):
            on = f"{found} of {count(len(tests), 'task')}, not shown over all" if len(tests) > 1 else "the one task"
            return f"Having read the test's texts changes scores on {on}", f"On {on}"
        if any(excludes_zero(row) is False for row in means):
            return "No effect found of having read the test's texts", "No effect found"
        state = "Not known" if any(row.value is not None for row in means) else "Not measured"
        return f"{state}: does having read the test's texts change scores?", "Not known"
    if len(set(signs)) == 2:
        words = f"raises scores in {sum(signs)} and lowers them in {signs.count(False)} of {extent}"
        return f"Having read the test's texts {words}", f"It {words}"
    where = "" if len(signs) == len(means) else f" in {len(signs)} of {extent}"
    answer = f"Yes{where and ','}{where}" if signs[0] else f"It lowers scores{where}"
    return f"Having read the test's texts changes scores{where}", answer


def bias_page(trials: pd.DataFrame, rows: Rows, plan: BiasPlan | None = None) -> Page:
    """The page: the mean over tasks, three panels, and a section for each question."""
    several = len(rows.labels("experiment", "effect")) > 1
    quoted, (heading, answer) = quoted_experiment(rows), verdict(rows)
    lede, answers, alarm, fits = Lede(heading), list[Answer](), list[Finding](), rows.all("fit_reliable")
    if failed := sum(not row.value for row in fits):
        words = f"{failed} of {count(len(fits), 'fit')} did not converge: do not use their intervals."
        alarm = [Finding(words, "They are listed under the notes on these data.", alarm=True)]
    mean = rows.row("effect", experiment=quoted, **BIAS)
    if mean is not None and mean.value is not None:
        change = f"{sections.Written(mean.value, mean.unit):+} points"
        begin = f"In {quoted}, reading" if several else "Reading"
        interval = sections.interval_words(mean, rows)
        lede = Lede(heading, f"{begin} {MEANT['bias']} changes accuracy by {change}", interval)
        chart = Dots(both("effect", {"effect": "{}"}, experiment=quoted), POINTS).draw(rows)
        models = count(len(rows.labels("language_model", "cell_trials")), "language model")
        basis = f"{f'{quoted}: ' if several else ''}{count(mean.n or 0, 'task')}, {models}"
        where = f"in {quoted}" if several else "the mean change in accuracy is"
        sentence = f"{answer}: {where} {change}"
        question = "Does having seen test text inflate a score?"
        answers.append(Answer(question, sentence, chart.svg, interval, basis, "The experiment"))
    return Page(
        name="bias",
        title="Test text seen",
        question="Does pretraining on a benchmark's unlabelled test text inflate its score? The boost is what "
        "pretraining on other text from the same source adds to accuracy. The bias is what the test set's own text "
        "adds beyond that.",
        findings=[*alarm, *(Finding(sentence) for each in FINDINGS for sentence in each.sentences(rows))],
        sections=[section.drawn(rows) for section in SECTIONS],
        notes=[
            *READING_NOTES,
            *coverage_notes(trials, plan),
            *([] if plan is None else stop_notes(plan, rows)),
            *still_notes(rows),
            *numbers.unreliable_fits(rows),
            *provenance_notes(trials),
        ],
        lede=lede,
        picture=picture(quoted).draw(rows),
        panels=[panel for each in panels(rows, quoted) if (panel := each.drawn(rows)) is not None],
        answers=answers,
    )


def stop_notes(plan: BiasPlan, rows: Rows) -> Iterator[str]:
    """Which tasks stopped on the width of their interval, and why the others have no more subsamples."""
    yield (
        "A task gets further subsamples until the 95% interval of its bias is "
        f"±{plan.half_width:g} or narrower. Only the width decides, never the sign of the bias, its size or a "
        "p-value. Such intervals are slightly too often too narrow, so the interval of a task that may stop is at "
        "least that wide here and on cards."
    )
    experiments = rows.labels("experiment", "stop_state")
    for experiment in experiments:
        of_experiment = rows.all("stop_state", experiment=experiment)
        stopped = sum(row.text == numbers.STOPPED for row in of_experiment)
        words = "; ".join(numbers.stop_words(rows, str(experiment), str(row.subject)) for row in of_experiment)
        prefix = f"{experiment}: " if len(experiments) > 1 else ""
        yield f"{prefix}{stopped} of {count(len(of_experiment), 'task')} stopped so. {words}."


def still_notes(rows: Rows) -> Iterator[str]:
    """What tasks without any difference do to the interval over tasks, where they are a third of all or more."""
    for experiment in rows.labels("experiment", "effect"):
        values = [row.value for row in rows.all("task_effect", experiment=experiment, **BIAS)]
        if 3 * values.count(0.0) >= len(values) > 1:
            yield (
                f"Experiment {experiment}: {values.count(0.0)} of {len(values)} tasks show no difference at all, which "
                "makes the t interval over tasks too narrow. In simulations where half of the tasks were like that, it "
                "contained the truth in 88% of cases with 5 tasks and in 94% with 25."
            )


# ----------------------------------------------------------------------------------------------------------------------
# The simulations beside the report, each a page of its own.

OF_PCA = {name: Column("pca_effect", name, "+.3f", where={"effect": name}) for name in ("bias", "boost")}
PCA = SectionOf(
    "Where unlabelled test data do inflate a score",
    Says(
        "pca_effect",
        "Principal components that are fitted on the test rows inflate R² by {value} ({interval}) at {name}, the worst "
        "case here.",
        {"effect": "bias"},
        {"rank": "rank {}", "n": "n = {}"},
    ),
    TableOf("pca_simulation", {"rank": "effective rank", "n": "n"}, OF_PCA, "Bias and boost of R²"),
    [
        Lines(
            [Series("pca_effect", {"n": "{}"}, {"rank": rank, "effect": "bias"}, mark, f"rank {rank}")
             for rank, mark in zip(numbers.PCA_RANKS, "dtks", strict=True)],
            "n", "Bias of R² by n, with 95% bands", "n",
        )
    ],
    "The bias study's three arms on synthetic data. R² is the share of the target's variance that a linear regression "
    "explains on the test rows. base regresses on the features themselves. The other two regress on principal "
    "components: those of other rows (extra), or those of the test rows (test). bias is test less extra.",
)  # fmt: skip
PRIOR = SectionOf(
    "What the priors say",
    Says("prior_difference", "Before any data the average difference lies within {interval} points."),
    TableOf(
        "priors",
        {"formula": "formula"},
        {
            f"{of}_{part}": Column(f"prior_{of}", f"{of}, {part}", "+.3f", part)
            for of in ("accuracy", "difference")
            for part in ("low", "value", "high")
        },
        "Simulated data sets",
    ),
    [
        Dots(
            [
                Series("prior_accuracy", {"formula": "accuracy"}, inner="middle"),
                Series("prior_difference", {"formula": "average difference"}, inner="middle"),
            ],
            "Accuracy and average difference in points under the priors alone: the median, the middle half (bar) and "
            "the middle 89%",
        )
    ],
    "Data sets simulated from the priors alone, in the layout of these trials. Where the priors allow nearly every "
    "accuracy, and differences far larger than the observed ones, a narrow posterior comes from the data.",
)


def write_pca_simulation(output: Path, splits: int) -> None:
    """Write the page of the simulation with principal components: `splits` splits for each rank and n."""
    _write_simulation("pca", "A simulation with principal components", PCA, numbers.pca_rows(splits), output)


def write_prior_simulation(trials: Path, output: Path, formula: str, draws: int) -> None:
    """Write the page of what `formula`'s priors say before any data, in the layout of a table of trials."""
    rows, title = numbers.prior_rows(read_trials(trials), formula, draws), "What the priors of the bias study say"
    _write_simulation("prior", title, PRIOR, rows, output, f"{draws} simulated data sets.")


def _write_simulation(name: str, title: str, section: SectionOf, rows: Rows, output: Path, further: str = "") -> None:
    drawn = section.drawn(rows)
    sections.write_rows(Page(name, title, [Finding(drawn.finding, further)], [drawn]), rows, output)
