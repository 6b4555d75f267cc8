"""The sections of effects without a model: cells, tasks and their stops, tests, common draws, power, and provenance."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.missing import as_columns, is_known, number
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Part, Section, Table
from lm_validity.studies.bias.effects import (
    DETECTABLE_BIAS,
    HOPELESS,
    OPEN,
    PLANNED,
    STOPPED,
    CellPower,
    ModelDistributions,
    TaskEffect,
    TaskStop,
    without_arms,
)
from lm_validity.studies.bias.numbers import (
    BaseDrift,
    CellMeans,
    ModelCorrelation,
    PretrainingLoss,
    TaskMeans,
    TaskTest,
    TestSetMismatch,
)
from lm_validity.studies.bias.trials import CELL, EFFECTS, Study
from lm_validity.words import between, count, decimal, with_names

if TYPE_CHECKING:
    from lm_validity.studies.bias.statistics.effects import Density

EFFECT_COLORS = {"boost": "#2f7ec0", "bias": "#d55e00"}
CHANGE = "+.4f"  # how a page shows an effect


def frame_of(kind: type, records: Sequence[object]) -> pd.DataFrame:
    """The frame of a table: a row for each of the `records`, all of one `kind`, and a column for each of its fields."""
    return pd.DataFrame(map(vars, records), columns=[member.name for member in fields(kind)])


def series_color(names: Iterable[str], field: str, title: str | None = None) -> alt.Color:
    """Colours of the named series, the first name the first colour."""
    names = list(dict.fromkeys(names))
    columns = 2 if len(names) > 3 else 0  # room on a telephone
    return figures.listed_color(field, figures.cycled_colors(names), title, columns=columns)


# ----------------------------------------------------------------------------------------------------------------------
# Means by cell, and task by task.


def cell_section(cells: list[CellMeans]) -> Part:
    """Means by language model, m and n; what each effect rests on only where that is not all that the cell holds."""
    frame = frame_of(CellMeans, cells)
    quantities = [f"{effect}_{size}" for effect in EFFECTS for size in ("subsamples", "tasks", "trials")]
    complete = all((frame[name] == frame[name.partition("_")[2]]).all() for name in quantities)
    caption = "Means and standard errors over task means: every task has the same weight."
    table = Table(
        "cells",
        "Means by language model, m and n",
        frame.drop(columns=quantities) if complete else frame,
        formats=dict.fromkeys(["boost_mean", "bias_mean"], CHANGE) | dict.fromkeys(["boost_se", "bias_se"], ".4f"),
        caption=caption if complete else f"{caption} The figures of an effect use the trials that have both its arms.",
    )
    biases = frame["bias_mean"].map(number).dropna()
    finding = ""
    if len(biases):
        ends = (decimal(end, 4, signed=True) for end in (biases.min(), biases.max()))
        finding = f"The bias {between(*ends)} in {count(len(biases), 'cell')}."
    explanation = (
        "There are three arms: base (no pretraining), extra (pretraining on other text from the same source) and test "
        "(pretraining on the test set's own text). The boost is accuracy under extra minus accuracy under base. The "
        "bias is accuracy under test minus accuracy under extra. m labelled examples train the classifier, n texts are "
        "pretrained on, and n test items are scored."
    )
    section = Section(
        "By language model, m and n", finding, tables=[table], explanation=explanation, hint="the cells of the study"
    )
    return Part({}, section)


VIOLIN_REACH = 0.5  # accuracy differences beyond it are cut, as in the paper's figures


def task_section(
    study: Study, tasks: list[TaskMeans], by_task: list[TaskEffect], models: list[ModelDistributions]
) -> Part:
    """Every task, with the distribution of its effects over subsamples."""
    frame = frame_of(TaskMeans, tasks)
    order = frame.assign(bias=frame["bias"].map(number)).sort_values(["experiment", "bias"], ascending=[True, False])
    violins: list[Figure] = []
    caption = "Density over subsamples, each violin as high as the others; boost above, bias below the line."
    for model in models:
        if model.distributions:
            title = f"{study.prefix(model.experiment)}{model.language_model}"
            violins.append(Figure(f"violins_{len(violins) + 1}", title, _violins(model), caption, min_width=360))

    def sentence(rows: pd.DataFrame) -> str:
        """How many tasks have a positive bias, and the largest in size."""
        biases = rows.set_index("task")["bias"].map(number).dropna()
        if biases.empty:
            return "No task has both arms of the bias."
        largest = biases.abs().idxmax()
        return (
            f"{(biases > 0).sum()} of {count(len(biases), 'task')} have a positive bias. The largest in size is "
            f"{decimal(biases[largest], 4, signed=True)} ({largest})."
        )

    rows_shown = frame.loc[order.index]
    for effect in EFFECTS:
        rows = {(row.experiment, row.task): row for row in by_task if row.effect == effect}
        task_rows = [rows.get(key) for key in zip(rows_shown["experiment"], rows_shown["task"], strict=True)]
        for name in ("excluded_beyond", "subsamples", "trials"):
            rows_shown[f"{effect}_{name}"] = [getattr(row, name) if row else without_arms(effect) for row in task_rows]
    section = Section(
        "Task by task",
        hint="distributions over draws of the texts",
        finding=study.sentences(frame, sentence),
        explanation=(
            "Each violin is the distribution over subsamples: the boost above the line, the bias below it. "
            "Subsamples differ in training set, test set and training noise. That is why single experiments disagree."
        ),
        figures=violins,
        tables=[
            Table(
                "tasks",
                "Boost and bias by task",
                rows_shown,
                formats=dict.fromkeys(EFFECTS, CHANGE) | {f"{effect}_excluded_beyond": ".4f" for effect in EFFECTS},
                caption="Every cell (language model, m, n) has the same weight. Excluded beyond: one-sided tests at 5% "
                "exclude effects of this size or larger.",
            )
        ],
    )
    return Part({}, section)


def _violins(model: ModelDistributions) -> figures.Layers:
    """Split violins by task, the setting chosen from a list."""
    names = model.tasks
    rows: list[dict[str, object]] = [
        {
            "setting": f"m={part.m}, n={part.n}",
            "task": part.task,
            "effect": part.effect,
            "mean": part.mean,
            **half_violin(part.density, names.index(part.task), part.effect),
            "trials": part.trials,
        }
        for part in model.distributions
    ]
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    pick = alt.param(
        name="setting_shown", value=settings[-1], bind=alt.binding_select(options=settings, name="Setting ")
    )
    base = alt.Chart(figures.inline(rows)).transform_filter("datum.setting == setting_shown")
    x_scale = alt.Scale(domain=[-VIOLIN_REACH, VIOLIN_REACH])
    x = alt.X("x:Q", title="Accuracy difference", scale=x_scale)
    area = violin_areas(base, "task", names, 0.6, x, trials="Subsamples")
    mean = base.mark_tick(thickness=2, size=11, color="#444").encode(
        x=alt.X("mean:Q", scale=x_scale), y=alt.Y("middle:Q", axis=_row_axis(names))
    )
    zero = figures.dashed_lines("zero", 0).add_params(pick)
    return figures.layered(zero, area, mean, height=max(27 * len(names), 90))


def violin_areas(chart: alt.Chart, row: str, names: list[str], above: float, x: alt.X, **tips: str) -> alt.Chart:
    """The chart's data, which are of `half_violin`, as areas; its field `row` is one of `names`, the rows from the top.

    `above`: the room over the first row.
    """
    scale = alt.Scale(domain=[len(names) - 0.4, -above], nice=False)
    area = chart.transform_flatten(["x", "edge"]).mark_area(opacity=0.75, interpolate="monotone", clip=True)
    return area.encode(
        x=x,
        y=alt.Y("edge:Q", title=None, axis=_row_axis(names), scale=scale),
        y2=alt.Y2("line:Q"),
        color=figures.listed_color("effect", EFFECT_COLORS),
        detail=alt.Detail(f"{row}:N"),
        tooltip=figures.tooltips(**{row: row.capitalize()}, effect="Effect", mean="Mean|+.4f", **tips),
    )


def half_violin(density: "Density", line: int, effect: str, reach: float = 0.44) -> dict[str, object]:
    """The edge of one half of a violin at the height `line`: the boost's is above it."""
    side = -reach if effect == "boost" else reach  # the axis points down
    edge = line + side * density.heights / density.heights.max()
    return {
        "x": [round(float(value), 5) for value in density.values],
        "edge": [round(float(value), 3) for value in edge],
        "line": line,
        "middle": line + side / 2,
    }


def _row_axis(names: list[str]) -> alt.Axis:
    """Names at the heights 0, 1, 2, …"""
    labels = f"{json.dumps([str(name) for name in names])}[datum.value]"
    return alt.Axis(values=list(range(len(names))), labelExpr=labels, grid=True, gridDash=[1, 3], labelOverlap=False)


# ----------------------------------------------------------------------------------------------------------------------
# Where tasks stop on the width of their interval.


def stop_section(study: Study, stops: list[TaskStop]) -> Part:
    """How many subsamples each task has, and why it has no more; nothing where no task may stop."""
    if not stops:
        return Part({})

    def sentence(rows: pd.DataFrame) -> str:
        """How many tasks stopped before all of their subsamples."""
        if rows.empty:
            return ""
        text = (
            f"{(rows['state'] == STOPPED).sum()} of {count(len(rows), 'task')} stopped before all "
            f"{rows['most'].iloc[0]} subsamples. The mean number is {rows['subsamples'].mean():.1f}."
        )
        waiting = {
            "Still too wide: {}. `lm-validity plan next` adds a batch.": OPEN,
            "Cells that have all their subsamples keep these too wide, so they get no more: {}.": HOPELESS,
            "Planned batches are not finished: {}.": PLANNED,
        }
        names = {words: rows.loc[rows["state"] == state, "task"].tolist() for words, state in waiting.items()}
        return " ".join([text, *with_names(names, 6)])

    frame, stop_at = frame_of(TaskStop, stops), f"{stops[0].stop_at:g}"
    section = Section(
        "Tasks that stopped",
        hint="subsamples of each",
        finding=study.sentences(frame, sentence),
        explanation=(
            f"A task gets further subsamples until the 95% interval of its bias is ±{stop_at} or narrower. Only the "
            "width decides, never the sign of the bias, its size or a p-value. If subsamples are added until an "
            "interval is narrow, it is slightly too often too narrow. The table has the width on which the decision "
            "was made. In summary.json and on cards, the interval of a task that may stop is at least "
            f"±{stop_at} wide."
        ),
        tables=[
            Table(
                "task_stops",
                "Subsamples by task",
                frame,
                formats={"half_width": ".4f", "stop_at": ".4f"},
                caption="Half-width: that of the 95% interval over subsamples on which the decision was made.",
            )
        ],
    )
    return Part({}, section)


# ----------------------------------------------------------------------------------------------------------------------
# Exact tests, task by task.


def test_section(study: Study, tests: list[TaskTest]) -> Part:
    """Exact sign-flip tests, task by task."""
    frame = frame_of(TaskTest, tests)
    of_bias = frame[frame["effect"] == "bias"]
    section = Section(
        "Tests by task",
        hint="exact, corrected",
        finding=study.sentences(frame, _tests_sentence),
        explanation=(
            "Each task of a cell has an exact one-sided sign-flip test. It asks: if the two arms were exchangeable, "
            "how often would random signs of the subsamples' differences give a mean at least as large? All 2^K sign "
            "patterns are counted. q is p adjusted over the tasks of a cell by the method of Benjamini and Hochberg."
        ),
        figures=[
            Figure(
                "task_bias",
                "Mean bias by task and cell",
                _heatmap(study, of_bias),
                "Hover for p and q; q < .05 is marked ●.",
                wide=True,
                min_width=640,
            )
        ]
        if len(of_bias)
        else [],
        tables=[
            Table(
                "permutation",
                "Sign-flip tests",
                frame[[*CELL, "task", "effect", "mean", "trials", "p", "p_adjusted", "smallest_detectable"]],
                formats={"mean": CHANGE, "p": "p", "p_adjusted": "p", "smallest_detectable": ".4f"},
                labels={"p_adjusted": "q"},
                caption="Smallest detectable: the mean difference for which q < .05 four times out of five, if this "
                "were the cell's only task with an effect.",
                folded=True,
            )
        ],
    )
    return Part({}, section)


def _tests_sentence(tested: pd.DataFrame) -> str:
    parts = []
    for effect in ("bias", "boost"):
        rows = tested[tested["effect"] == effect]
        if rows.empty:
            continue
        below, smallest = (rows["p_adjusted"] < 0.05).sum(), rows["p_adjusted"].min()
        p_words = f"{smallest:.3f}" if smallest >= 0.001 else "below .001"
        parts.append(f"{below} of {count(len(rows), 'test')} of a {effect} above 0 have q < .05 (smallest {p_words}).")
        sizes = rows["smallest_detectable"].map(number).dropna()
        if not below and sizes.empty:
            parts.append("What these tests could have found is unknown, or they could have found nothing.")
        elif not below:
            parts.append(
                f"Such a test detects an effect of {sizes.median():.4f} in a single task with 80% power (median "
                f"over {count(len(sizes), 'test')}; {sizes.min():.4f} to {sizes.max():.4f}), so smaller effects may "
                "exist."
            )
    return " ".join(parts)


def _heatmap(study: Study, tested: pd.DataFrame) -> figures.Layers:
    """Mean bias by task and cell."""
    labels = [f"{row.language_model}, {study.label(row.experiment, row.m, row.n)}" for row in tested.itertuples()]
    names, columns = sorted(tested["task"].unique()), list(dict.fromkeys(labels))
    all_rows = pd.MultiIndex.from_product([names, columns], names=["task", "cell"])
    frame = tested.assign(cell=labels).set_index(["task", "cell"])[["mean", "p", "p_adjusted", "trials"]]
    frame = frame.reindex(all_rows).reset_index()
    reach = max(float(np.nanquantile(frame["mean"].abs(), 0.98)), 1e-3)
    chart = figures.heatmap(
        frame,
        x="cell",
        y="task",
        value="mean",
        title="Mean bias",
        x_order=columns,
        y_order=names,
        tooltip=figures.tooltips(
            task="Task", cell="Cell", mean="Mean bias|+.4f", p="p|.4f", p_adjusted="q|.4f", trials="Subsamples"
        ),
        domain=(-reach, reach),
        scheme="redblue",
    )
    marked = alt.Chart(figures.chart_data(frame[frame["p_adjusted"] < 0.05]))
    return figures.layered(
        chart, marked.mark_text(text="●", color="#111", fontSize=8).encode(x=alt.X("cell:N"), y=alt.Y("task:N"))
    )


# ----------------------------------------------------------------------------------------------------------------------
# What lies behind the means, what could have been found, and whether the rows belong together.


def shared_section(correlations: list[ModelCorrelation], accuracies: pd.DataFrame) -> Part:
    """Two tables: effects that language models share, and accuracies by arm."""
    frame = frame_of(ModelCorrelation, correlations)
    tested = frame["p"].map(number).dropna()
    ends = [as_columns(interval, "null_low", "null_high") for interval in frame["null_interval"]]
    frame_shown = frame.drop(columns=["null_interval", "p"]).join(pd.DataFrame(ends, columns=["null_low", "null_high"]))
    frame_shown["p"] = frame["p"]
    section = Section(
        "Behind the means",
        hint="draws that models share, accuracies",
        finding=(
            f"{(tested < 0.05).sum()} of {count(len(tested), 'correlation')} of an effect between two language models "
            "over subsamples have p < .05, each by itself (5% of them would, if nothing were shared)."
            if len(tested)
            else "No two language models have the same subsamples, so it is unknown whether effects depend on the draw."
        ),
        explanation=(
            "If the draw of the texts made an effect, subsamples in which one language model shows a large one would "
            "show a large one in another too. The correlation is Spearman's, over the subsamples of a task, mean over "
            "tasks. By chance: the middle 95% of the same mean where the other model's subsamples are in random order "
            "(1,000 permutations)."
        ),
        tables=[
            Table(
                "model_correlations",
                "Effects in the same subsamples of two language models",
                frame_shown,
                formats=dict.fromkeys(["correlation", "null_low", "null_high"], "+.3f") | {"p": "p"},
                labels={"other": "other model", "null_low": "by chance, low", "null_high": "by chance, high"},
                folded=True,
            ),
            Table(
                "accuracy_by_arm",
                "Accuracy by arm",
                accuracies,
                formats=dict.fromkeys(["mean", "sd", "lowest", "q25", "median", "q75", "highest", "majority"], ".4f")
                | {"below_majority": ".2f"},
                labels={"majority": "share of the largest class", "below_majority": "subsamples below it (share)"},
                caption="Over the subsamples of a task. A classifier that always answers with the largest class has "
                "that class's share.",
                folded=True,
            ),
        ],
    )
    return Part({}, section)


def power_section(study: Study, cells: list[CellPower]) -> Part:
    """How many subsamples and tasks it takes to detect half a point."""
    frame = frame_of(CellPower, cells).drop(columns="curve")
    able = frame[frame["power"].map(is_known).astype(bool)]

    def sentence(rows: pd.DataFrame) -> str:
        """The smallest effect that these tasks and subsamples could have shown."""
        if rows.empty:
            return "Too few tasks or subsamples to estimate what could have been detected."
        least = rows["smallest_detectable"].astype(float)
        size = f"is {least.iloc[0]:.4f}"
        if len(rows) > 1:
            size = f"is {least.min():.4f} in the best cell and {least.max():.4f} in the worst"
        return (
            f"The smallest bias that a cell would detect with 80% power {size}. "
            f"{(rows['power'].astype(float) >= 0.8).sum()} of {count(len(rows), 'cell')} would detect a bias of "
            f"{DETECTABLE_BIAS} that often."
        )

    caption = f"To find a bias of {DETECTABLE_BIAS} with as many tasks as the cell has."
    section = Section(
        "What could have been found",
        hint="by subsamples and tasks",
        finding=study.sentences(able, sentence),
        explanation=(
            "A two-sided t test over task means at the 5% level. The variance between tasks and within a task "
            "(subsamples, training noise) is estimated from these data. More subsamples reduce only the variance "
            "within."
        ),
        figures=[Figure("power", "Power against the number of subsamples", _power_curves(cells), caption)]
        if len(able)
        else [],
        tables=[
            Table(
                "power",
                f"To detect a bias of {DETECTABLE_BIAS} with power 0.8",
                frame,
                formats=dict.fromkeys(["within_task_sd", "between_tasks_sd", "smallest_detectable"], ".4f")
                | {"power": ".2f", "subsamples_needed": ".0f", "tasks_needed": ".0f"},
                caption="Subsamples needed with these tasks, and tasks needed with these subsamples.",
            )
        ],
    )
    return Part({}, section)


def _power_curves(cells: list[CellPower]) -> figures.Layers:
    """Power to find `DETECTABLE_BIAS` against the number of subsamples, a line per cell."""
    rows = [
        {
            "model": cell.language_model,
            "cell": f"{cell.experiment}, {cell.language_model}, m={cell.m}, n={cell.n}",
            "subsamples": subsamples,
            "power": power,
        }
        for cell in cells
        for subsamples, power in cell.curve.items()
    ]
    frame = pd.DataFrame(rows)
    chart = figures.lines(
        frame,
        x="subsamples",
        y="power",
        detail="cell",
        color=series_color(frame["model"], "model"),
        x_title="Subsamples per task",
        y_title="Power",
        tooltip=figures.tooltips(cell="Cell", subsamples="Subsamples", power="Power|.2f"),
        log_x=True,
        x_axis=alt.Axis(values=[1, 10, 100, 1000], format="d", grid=True),
        domain=(0, 1),
        points=False,
    )
    return figures.layered(chart, figures.dashed_lines("goal", 0.8, channel="y"))


def belonging(
    drifts: list[BaseDrift], base: pd.DataFrame, losses: list[PretrainingLoss], mismatches: list[TestSetMismatch]
) -> Part:
    """Do the rows belong together: base accuracy by n, pretraining losses, test sets under one number."""
    sentences, explanation, charts, tables = [], [], [], []
    if drifts:
        drift = frame_of(BaseDrift, drifts)
        sentences.append(
            f"In {drift['mixed'].sum()} of {count(len(drift), 'comparison')}, base accuracy differs between values of n"
        )
        explanation.append(
            "The base arm never sees the n texts, so for a given m its accuracy cannot depend on n. If it does, the "
            "rows come from different code, library versions or data, and a trend over n compares these."
        )
        charts.append(Figure("base_drift", "Base accuracy by n", _base_by_n(base)))
        numbers = dict.fromkeys(["base", "reference_base"], ".4f") | {"difference": "+.4f", "z": ".1f", "p": "p"}
        tables.append(Table("base_drift", "Base accuracy between values of n", drift, formats=numbers))
    if mismatches:
        mismatched = sum(row.mismatched for row in mismatches)
        sentences.append(
            f"{mismatched} subsamples with the same number had different test sets in different language models"
        )
        tables.append(
            Table("test_set_mismatches", "Different test sets under one number", frame_of(TestSetMismatch, mismatches))
        )
    if losses:
        values = [loss for row in losses for loss in (row.extra, row.test)]
        sentences.append(
            f"The last epoch's mean pretraining loss lies between {min(values):.2f} and {max(values):.2f} nats per "
            "predicted token"
        )
        explanation.append(
            "Losses are means over all subsamples of all tasks. The two arms read texts from one source, so their "
            "losses should agree. An experiment with more epochs should have the lower loss."
        )
        formats = dict.fromkeys(["extra", "test"], ".4f")
        tables.append(
            Table("pretraining_loss", "Mean pretraining loss", frame_of(PretrainingLoss, losses), formats=formats)
        )
    section = Section(
        "Do the rows belong together?",
        hint="base accuracy, test sets, losses",
        finding="".join(f"{sentence}. " for sentence in sentences).strip(),
        explanation=" ".join(explanation),
        figures=charts,
        tables=tables,
    )
    return Part({}, section if sentences else None)


def _base_by_n(means: pd.DataFrame) -> figures.Layers:
    """Base accuracy against n, a line for each language model and m."""
    return figures.lines(
        means,
        x="n",
        y="base",
        color=series_color(means["line"], "line"),
        detail="experiment",
        x_title="n",
        y_title="Base accuracy",
        tooltip=figures.tooltips(experiment="Experiment", line="Line", n="n", base="Base accuracy|.4f"),
    )
