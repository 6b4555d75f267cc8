"""Power: which bias the cells of the study could have found, and what would find a smaller one."""

import altair as alt
import pandas as pd

from lm_validity.missing import Missing, is_known
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Part, Section, Table
from lm_validity.studies.bias.effects import with_difference
from lm_validity.studies.bias.statistics.effects import (
    EffectVariance,
    detection_power,
    smallest_detectable,
    subsamples_needed,
    tasks_needed,
    variance_components,
)
from lm_validity.studies.bias.trials import CELL, Study, series_color
from lm_validity.words import count

# ----------------------------------------------------------------------------------------------------------------------
# What could have been found.

DETECTABLE_BIAS = 0.005  # half a point of accuracy, what the power analysis asks for


def cell_power(trials: pd.DataFrame) -> pd.DataFrame:
    """What each cell's t test over task means could have detected, and what it takes to detect `DETECTABLE_BIAS`."""
    rows = []
    for key, cell in with_difference(trials, "bias").groupby(CELL):
        tasks = cell["task"].nunique()
        subsamples = max(1, round(len(cell) / tasks))
        components = variance_components(cell["difference"].to_numpy(), cell["task"].to_numpy())
        if isinstance(components, Missing):
            values: list[float | Missing] = [components] * 6
        else:
            values = [
                components.within_task,
                components.between_tasks,
                detection_power(DETECTABLE_BIAS, components, tasks, subsamples),
                smallest_detectable(components, tasks, subsamples),
                subsamples_needed(DETECTABLE_BIAS, components, tasks),
                tasks_needed(DETECTABLE_BIAS, components, subsamples),
            ]
        rows.append([*key, DETECTABLE_BIAS, *values[:2], tasks, subsamples, *values[2:]])
    columns = ["effect_size", "within_task_sd", "between_tasks_sd", "tasks", "subsamples", "power"]
    return pd.DataFrame(rows, columns=[*CELL, *columns, "smallest_detectable", "subsamples_needed", "tasks_needed"])


def power_section(study: Study) -> Part:
    """How many subsamples and tasks it takes to detect half a point."""
    frame = cell_power(study.trials)
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
        figures=[Figure("power", "Power against the number of subsamples", _power_curves(able), caption)]
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
    return Part({"power": frame.to_dict("records")}, section)


def _power_curves(cells: pd.DataFrame) -> alt.LayerChart:
    """Power to find `DETECTABLE_BIAS` against the number of subsamples, a line per cell."""
    rows = []
    for row in cells.itertuples():
        components = EffectVariance(row.between_tasks_sd, row.within_task_sd)
        cell = f"{row.experiment}, {row.language_model}, m={row.m}, n={row.n}"
        for subsamples in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
            value = detection_power(DETECTABLE_BIAS, components, row.tasks, subsamples)
            rows.append({"model": row.language_model, "cell": cell, "subsamples": subsamples, "power": value})
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
        domain=(0, 1),
        points=False,
    )
    for layer in chart.layer:
        layer.encoding.x.axis = alt.Axis(values=[1, 10, 100, 1000], format="d", grid=True)
    return figures.layered(chart, figures.dashed_lines("goal", 0.8, channel="y"))
