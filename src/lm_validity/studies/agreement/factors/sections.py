"""Sections of the factors report for decisions: which model to pick, which cells to run next, what it rests on."""

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Section, Table
from lm_validity.studies.agreement.factors.summary import FactorsSummary
from lm_validity.studies.agreement.values import MOST_DRAWN, plotted
from lm_validity.summaries import Missing, as_columns, is_known, number
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import count, percent

DIRECT, TRAINED = PROTOCOLS
SHOWN_CELLS = 200  # missing cells worth running next that the page lists


def potential_section(summary: FactorsSummary) -> Section | None:
    """The potential ranking with intervals, the best model by budget, and models that direct ranks mislead about."""
    if not summary.potential:
        return None
    protocol = main_protocol(summary)
    frame = _rank_frame(summary, protocol)
    figure = Figure(
        "potential",
        "Potential ranking" if protocol == TRAINED else "Ranks on the first component",
        _rank_chart(plotted(frame).head(MOST_DRAWN), summary),
        caption="Line: 95% interval over benchmarks." + first_shown(len(frame)),
        wide=True,
    )
    tables = [_budget_table(summary, protocol), _rank_table(frame)]
    finding = ""
    if summary.common_ranks:
        misleading = rank_gaps(summary)
        tables.append(_misleading_table(misleading))
        finding = _misleading_sentence(misleading)
    which = "" if protocol == TRAINED else " The ranks here are under direct evaluation."
    return Section(
        "Which model to pick",
        finding=finding,
        explanation=f"Potential is the rank on the first factor under train before test.{which} The interval is for "
        "other benchmarks like these: benchmarks are resampled. It is too narrow where benchmarks of a category are "
        "alike. Where categories are known, quote the table's interval over categories: whole categories are "
        "resampled. A share of resamples is not the probability that a model truly is among the first.",
        figures=[figure],
        tables=tables,
    )


def main_protocol(summary: FactorsSummary) -> str:
    """The protocol whose ranks are the potential: train before test where it has any."""
    return TRAINED if TRAINED in summary.potential else DIRECT


def first_shown(models: int) -> str:
    """The end of a caption of a figure that shows the first models only."""
    return f" The first {MOST_DRAWN} models." if models > MOST_DRAWN else ""


def _rank_chart(frame: pd.DataFrame, summary: FactorsSummary) -> alt.LayerChart:
    return figures.interval_dots(
        frame,
        y="model",
        value="rank",
        title="Rank on the first component (1 = best)",
        y_order=frame.sort_values("rank")["model"].tolist(),
        color=figures.family_color(summary.matrix.families),
        tooltip=figures.tooltips(
            model="Model", family="Family", parameters_b="Parameters (billions)|~g", rank="Rank|~g",
            low="from|~g", high="to|~g", direct_rank="Direct rank|~g",
        ),
        focus=True,
        row_height=14,
    )  # fmt: skip


def _rank_table(frame: pd.DataFrame) -> Table:
    ranks = [name for name in frame.columns if name not in ("model", "family", "parameters_b")]
    resampled = "categories" if frame["low_categories"].map(is_known).any() else "single benchmarks"
    return Table(
        "potential",
        "Ranks with intervals",
        frame,
        formats={name: ".2f" if name.startswith("top_") else ".0f" for name in ranks} | {"parameters_b": ".3g"},
        labels={
            "parameters_b": "parameters (billions)",
            "low": "from",
            "high": "to",
            "low_categories": "from, categories",
            "high_categories": "to, categories",
            "top_1": "first, share of resamples",
            "top_3": "in the first 3",
            "top_10": "in the first 10",
            "direct_rank": "direct rank",
        },
        caption=f"Shares are over resamples of {resampled}.",
        folded=True,
    )


def beyond_interval(gaps: pd.DataFrame) -> pd.DataFrame:
    """The rows whose gap is surely not 0, the largest gap first."""
    return gaps[(gaps["low"] > 0) | (gaps["high"] < 0)]


def _misleading_sentence(frame: pd.DataFrame) -> str:
    surely = beyond_interval(frame)
    if surely.empty:
        return "For no model does the interval of the gap between both ranks exclude 0."
    first = surely.iloc[0]
    return (
        f"For {count(len(surely), 'model')} the interval of the gap between both ranks excludes 0. The largest gap is "
        f"that of {first['model']}: {first['gap']:+.0f} places under train before test (95% interval "
        f"{first['low']:+.0f} to {first['high']:+.0f})."
    )


def _rank_frame(summary: FactorsSummary, protocol: str) -> pd.DataFrame:
    matrix, direct = summary.matrix, summary.potential.get(DIRECT, {})
    rows = [
        {
            "model": label,
            "family": family or "unknown",
            "parameters_b": size,
            "rank": found.rank,
            **as_columns(found.interval_population_of_benchmarks),
            **as_columns(found.interval_population_of_categories, "low_categories", "high_categories"),
            **{f"top_{first}": share for first, share in found.share_in_top.items()},
            "direct_rank": direct[model].rank if model in direct else np.nan,
        }
        for (model, found), label, family, size in zip(
            summary.potential[protocol].items(),
            matrix.labels,
            matrix.families,
            matrix.model_facts["parameters_b"].to_numpy(float),
            strict=True,
        )
    ]
    return pd.DataFrame(rows).sort_values("rank", key=lambda ranks: ranks.map(number), ignore_index=True)


def _budget_table(summary: FactorsSummary, protocol: str) -> Table:
    labels = dict(zip(summary.matrix.models, summary.matrix.labels, strict=True))
    rows = [
        {
            "parameters_b": choice.parameters_b,
            "model": labels[choice.model],
            "probability_best": choice.probability_best,
            "rivals": ", ".join(labels[name] for name in choice.rivals),
        }
        for choice in summary.best_by_budget[protocol]
    ]
    frame = pd.DataFrame(rows, columns=["parameters_b", "model", "probability_best", "rivals"])
    return Table(
        "best_by_budget",
        "Best model by parameter budget",
        frame,
        formats={"parameters_b": ".3g", "probability_best": ".2f"},
        labels={
            "parameters_b": "from (billions)",
            "probability_best": "best in this share of resamples of benchmarks",
            "rivals": "rivals (best in 5% or more)",
        },
        caption="Each row applies from its size up to the next row's. Shares are over resamples of single benchmarks.",
    )


def rank_gaps(summary: FactorsSummary) -> pd.DataFrame:
    """Direct rank minus rank under train before test, by model, the largest gap first: positive where a model is better
    than its direct rank says."""
    direct, trained = (summary.common_ranks[p] for p in PROTOCOLS)
    gap = direct.minus(trained)
    interval = gap.interval()
    frame = pd.DataFrame(
        {
            "model": summary.matrix.labels,
            "family": [family or "unknown" for family in summary.matrix.families],
            "direct_rank": direct.rank,
            "tuned_rank": trained.rank,
            "gap": gap.rank,
            "low": interval.low,
            "high": interval.high,
        }
    )
    if summary.direct_excess:
        excess = [summary.direct_excess[model] for model in summary.matrix.models]
        ends = pd.DataFrame([as_columns(one.interval, "excess_low", "excess_high") for one in excess])
        frame = frame.assign(excess=[one.value for one in excess]).join(ends)
    return frame.reindex(frame["gap"].abs().sort_values(ascending=False, kind="stable").index).reset_index(drop=True)


def _misleading_table(frame: pd.DataFrame) -> Table:
    points = dict.fromkeys(("excess", "excess_low", "excess_high"), "+.1f")
    return Table(
        "misleading_direct_ranks",
        "Gaps between both ranks",
        frame,
        formats={"direct_rank": ".0f", "tuned_rank": ".0f"} | dict.fromkeys(("gap", "low", "high"), "+.0f") | points,
        scales=dict.fromkeys(points, 100.0),
        labels={
            "direct_rank": "direct rank",
            "tuned_rank": "rank under train before test",
            "gap": "places gained",
            "excess": "direct score above prediction, points",
            "excess_low": "from",
            "excess_high": "to",
        },
        caption="Positive places: better under train before test than the direct rank suggests; interval over "
        "benchmarks. The prediction of the mean direct score is from compute and the mean score under train before "
        "test of the other models. The models that lie far above it are the most flattered by readiness; of models "
        "like the others, 5% have an interval without 0 by chance.",
        folded=True,
    )


def completion_section(summary: FactorsSummary) -> Section | None:
    """Missing cells predicted by one factor, how good that is, and which cells to run next."""
    if not summary.completion:
        return None
    checks = pd.DataFrame(
        [
            {
                "protocol": figures.PROTOCOL_LABELS[p],
                "missing_cells": completion.missing_cells,
                "held_out_cells": completion.held_out.cells,
                "error_in_sd": completion.held_out.error_in_sd,
                "error_of_the_mean_in_sd": completion.held_out.baseline_in_sd,
                "mean_absolute_error": completion.held_out.mean_absolute_error,
                "error_of_the_mean": completion.held_out.baseline_error,
                "coverage": completion.held_out.coverage,
                "multiplier": completion.held_out.multiplier,
            }
            for p, completion in summary.completion.items()
        ]
    )
    formats = {"error_in_sd": ".3f", "error_of_the_mean_in_sd": ".3f", "mean_absolute_error": ".4f"}
    formats |= {"error_of_the_mean": ".4f", "coverage": ".3f", "multiplier": ".2f"}
    labels = {
        "error_in_sd": "error of one factor (SD)",
        "error_of_the_mean_in_sd": "error of the benchmark's mean as prediction (SD)",
        "mean_absolute_error": "error of one factor (score)",
        "error_of_the_mean": "error of the benchmark's mean as prediction (score)",
        "coverage": "share inside 95% intervals",
        "multiplier": "half an interval, in standard deviations of the prediction",
    }
    tables = [Table("completion_check", "Held-out cells", checks, formats=formats, labels=labels)]
    charts, missing = [], 0
    predictions = _prediction_frame(summary)
    if len(predictions):
        missing = len(predictions)
        tables += _prediction_tables(predictions)
        charts = _completion_charts(summary)
    return Section(
        "Completing the matrix",
        finding=f"{count(missing, 'cell is', 'cells are')} missing and predicted."
        if missing
        else "No cell is missing.",
        explanation="A model with one factor is fitted to the known scores: one ability for each model, a level and a "
        "slope for each benchmark. The scores are hidden in groups, each once, and predicted from the rest. Intervals "
        "are set so that 95% of the hidden scores of the other groups lie inside. All this assumes that whether a "
        "score is missing has nothing to do with its value.",
        figures=charts,
        tables=tables,
    )


def _prediction_frame(summary: FactorsSummary) -> pd.DataFrame:
    """Missing cells with prediction, interval in the metric's units, and what running them would tell."""
    rows = []
    matrix = summary.matrix
    direction = matrix.direction[~matrix.is_corpus]
    for protocol, completion in summary.completion.items():
        model = completion.details.model
        mean, deviation = model.predict()
        reach = completion.held_out.multiplier * deviation
        gain = 1 - model.variance_after() / model.ability_variance[:, None]
        for i, j in zip(*np.nonzero(~np.isfinite(completion.scores)), strict=True):
            ends = sorted([direction[j] * (mean[i, j] - reach[i, j]), direction[j] * (mean[i, j] + reach[i, j])])
            rows.append(
                {
                    "model": matrix.labels[i],
                    "family": matrix.families[i] or "unknown",
                    "benchmark": summary.tasks[j],
                    "protocol": figures.PROTOCOL_LABELS[protocol],
                    "predicted": direction[j] * mean[i, j],
                    "low": ends[0],
                    "high": ends[1],
                    "information": gain[i, j],
                }
            )
    return pd.DataFrame(rows)


def _prediction_tables(predictions: pd.DataFrame) -> list[Table]:
    formats = {"predicted": ".3f", "low": ".3f", "high": ".3f", "information": ".2f"}
    first = predictions.sort_values("information", ascending=False, kind="stable").head(SHOWN_CELLS)
    return [
        Table(
            "next_cells",
            "Cells worth running next",
            first[["model", "family", "benchmark", "protocol", "information"]],
            formats=formats,
            labels={"information": "uncertainty of the model's ability removed"},
            caption="How much of the variance of the model's ability this one cell would remove.",
        ),
        Table(
            "predicted_cells",
            "Predicted scores",
            predictions.drop(columns="information"),
            formats=formats,
            labels={"low": "from", "high": "to"},
            folded=True,
        ),
    ]


def _completion_charts(summary: FactorsSummary) -> list[Figure]:
    charts = []
    for protocol, completion in summary.completion.items():
        known = np.isfinite(completion.scores)
        if known.all() or isinstance(completion.rank_interval, Missing):
            continue
        low, middle, high = np.quantile(completion.details.ranks, [0.025, 0.5, 0.975], axis=0)
        frame = pd.DataFrame(
            {
                "model": summary.matrix.labels,
                "family": [family or "unknown" for family in summary.matrix.families],
                "rank": middle,
                "low": low,
                "high": high,
                "cells": [f"{row.sum()} of {row.size}" for row in known],
            }
        )
        drawn = frame.sort_values("rank", kind="stable").head(MOST_DRAWN)
        chart = figures.interval_dots(
            drawn,
            y="model",
            value="rank",
            title="Rank of the ability (1 = best)",
            y_order=drawn["model"].tolist(),
            color=figures.family_color(summary.matrix.families),
            tooltip=figures.tooltips(
                model="Model", family="Family", rank="Median rank|~g", low="from|~g", high="to|~g", cells="Cells known"
            ),
            focus=True,
            row_height=14,
        )
        caption = f"{percent(1 - known.mean())} of the cells are missing. A model without any score spans all ranks."
        caption += first_shown(len(frame))
        charts.append(
            Figure(f"completed_ranking_{protocol}", f"{figures.PROTOCOL_LABELS[protocol]}", chart, caption=caption)
        )
    return charts
