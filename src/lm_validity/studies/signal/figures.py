"""Figures of the signal report."""

import altair as alt
import pandas as pd

from lm_validity.pages import figures

_PANEL_WIDTH = 210
_PANEL_HEIGHT = 130
_COLUMNS = 3


def learning_curves(frame: pd.DataFrame, x_title: str) -> alt.FacetChart:
    """One panel a benchmark, each with its own scale of scores; a dashed line at chance where it is known."""
    models = list(dict.fromkeys(frame["model"]))
    base = alt.Chart().encode(
        x=alt.X("progress:Q", title=x_title, axis=alt.Axis(format=".4~g", tickCount=5)),
        color=_model_color(models),
    )
    y = alt.Y("score:Q", title=None, scale=alt.Scale(zero=False))
    band = base.transform_filter("isValid(datum.low)").mark_area(opacity=0.15)
    line = base.mark_line(strokeWidth=1.6).encode(
        y=y,
        tooltip=figures.tooltips(model="Model", checkpoint="Checkpoint", progress=f"{x_title}|.4~g", score="Score|.4f"),
    )
    chance = alt.Chart().mark_rule(strokeDash=[4, 4], color=figures.MISSING_COLOR).encode(y="mean(chance):Q")
    layers = [line]
    if frame["low"].notna().any():
        layers.insert(0, band.encode(y=alt.Y("low:Q", title=None), y2="high:Q"))
    if frame["chance"].notna().any():
        layers.append(chance.transform_filter("isValid(datum.chance)"))
    panel = alt.layer(*layers, data=figures.chart_data(frame)).properties(width=_PANEL_WIDTH, height=_PANEL_HEIGHT)
    return panel.facet(facet=alt.Facet("benchmark:N", title=None), columns=_COLUMNS).resolve_scale(y="independent")


def curves_width() -> int:
    """Pixels that the panels need side by side."""
    return _COLUMNS * (_PANEL_WIDTH + 55)


def quality_dots(frame: pd.DataFrame, order: list[str], levels: list[float]) -> alt.LayerChart:
    """Mean signal quality by benchmark, with its interval, and the levels of curves that learn nothing."""
    chart = figures.interval_dots(
        frame,
        y="benchmark",
        value="signal_quality",
        title="Signal quality, mean over models",
        y_order=order,
        color=alt.value(figures.CATEGORY_COLORS[0]),
        tooltip=figures.tooltips(
            benchmark="Benchmark", signal_quality="Signal quality|.3f", low="Low|.3f", high="High|.3f", p="p|.3f"
        ),
        zero=True,
    )
    if not levels:
        return chart
    return figures.layered(chart, *(figures.dashed_lines("at", level) for level in levels))


def quality_heatmap(frame: pd.DataFrame, order: list[str], models: list[str]) -> alt.LayerChart:
    """Signal quality of every model on every benchmark."""
    return figures.heatmap(
        frame,
        x="label",
        y="benchmark",
        value="signal_quality",
        title="Signal quality",
        x_order=models,
        y_order=order,
        tooltip=figures.tooltips(
            benchmark="Benchmark",
            label="Model",
            signal_quality="Signal quality|.3f",
            monotonicity="Monotonicity|.3f",
            autocorrelation="Autocorrelation|.3f",
        ),
        number_format=".2f",
    )


def consistency_dots(frame: pd.DataFrame, order: list[str]) -> alt.LayerChart:
    """Ranking consistency by benchmark and size; one half is a coin flip."""
    sizes = list(dict.fromkeys(frame["size"]))
    chart = figures.interval_dots(
        frame,
        y="benchmark",
        value="consistency",
        title="Ranking consistency",
        y_order=order,
        offset="size",
        color=figures.listed_color("size", figures.cycled_colors(sizes), "Size"),
        tooltip=figures.tooltips(benchmark="Benchmark", size="Size", consistency="Consistency|.3f"),
        zero=True,
    )
    return figures.layered(chart, figures.dashed_lines("at", 0.5))


def settling_lines(frame: pd.DataFrame, x_title: str) -> alt.LayerChart:
    """Agreement of the models' ranking with the final one along training, a line per benchmark; rings where models are
    read between their checkpoints."""
    benchmarks = list(dict.fromkeys(frame["benchmark"]))
    color = _model_color(benchmarks, "benchmark", "Benchmark")
    rings = alt.Chart(figures.chart_data(frame[frame["interpolated"] > 0])).mark_point(size=22)
    chart = figures.lines(
        frame,
        x="progress",
        y="tau",
        color=color,
        x_title=x_title,
        y_title="Kendall's tau with the final ranking",
        tooltip=figures.tooltips(benchmark="Benchmark", progress=f"{x_title}|.4~g", tau="Tau|.2f"),
        points=False,
    )
    if not frame["interpolated"].any():
        return chart
    return figures.layered(chart, rings.encode(x="progress:Q", y="tau:Q", color=color))


def filter_dots(frame: pd.DataFrame) -> alt.LayerChart:
    """In-sample, held-out and random choices of the same size, a row a filter, score and split."""
    kinds = {"where it was fitted": "#d55e00", "held out": "#2f7ec0", "random, same size": "#8a8a8a"}
    return figures.interval_dots(
        frame,
        y="row",
        value="value",
        title="Signal quality, mean over models",
        y_order=list(dict.fromkeys(frame["row"])),
        offset="kind",
        color=figures.listed_color("kind", kinds),
        tooltip=figures.tooltips(row="Filter", kind="Items chosen", value="Signal quality|.3f"),
        zero=True,
        row_height=30,
    )


def metric_heatmap(frame: pd.DataFrame, metrics: list[str], benchmarks: list[str]) -> alt.LayerChart:
    """Signal quality of every item score on every benchmark."""
    return figures.heatmap(
        frame,
        x="benchmark",
        y="label",
        value="signal_quality",
        title="Signal quality",
        x_order=benchmarks,
        y_order=metrics,
        tooltip=figures.tooltips(label="Item score", benchmark="Benchmark", signal_quality="Signal quality|.3f"),
        number_format=".2f",
    )


def subgroup_dots(frame: pd.DataFrame) -> alt.LayerChart:
    """Signal quality of subjects or of answer lengths."""
    return figures.interval_dots(
        frame,
        y="row",
        value="signal_quality",
        title="Signal quality, mean over models",
        y_order=list(frame["row"]),
        color=alt.value(figures.CATEGORY_COLORS[0]),
        tooltip=figures.tooltips(row="Items", items="Number|d", signal_quality="Signal quality|.3f"),
        zero=True,
    )


def _model_color(names: list[str], field: str = "model", title: str = "Model") -> alt.Color:
    # A band comes first in its layer and would lend the legend its faintness
    stroke = {"symbolOpacity": 1, "symbolType": "stroke", "symbolStrokeWidth": 3}
    colors = figures.cycled_colors(names)
    return figures.listed_color(field, colors, title, columns=4, symbolLimit=60, labelLimit=160, **stroke)
