"""What the page shows of ranks by the first factor: which model to pick, misleading ranks, missing cells predicted."""

import numpy as np
import pandas as pd

from lm_validity.missing import Missing, as_columns, is_known, number
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.studies.agreement.data import JACKKNIFED
from lm_validity.studies.agreement.factors.components import FactorData
from lm_validity.studies.agreement.factors.components_page import LABELS, model_figure
from lm_validity.studies.agreement.factors.ranks import (
    BestModel,
    Completion,
    DirectExcess,
    RanksOfModels,
    beyond_interval,
    by_chance,
    main_protocol,
)
from lm_validity.studies.agreement.wording import plotted, value_in_words
from lm_validity.tables.schema import DIRECT, TRAINED
from lm_validity.words import UNDER, count, percent

SHOWN_CELLS = 200  # missing cells worth running next that the page lists


# ----------------------------------------------------------------------------------------------------------------------
# Which model to pick.


def potential(
    data: FactorData,
    ranks: dict[str, RanksOfModels],
    choices: dict[str, list[BestModel]],
    excess: dict[str, DirectExcess],
    gaps: pd.DataFrame | None,
    notes: list[str],
) -> Part:
    """The potential ranking with intervals, the best model by budget, and models that direct ranks mislead about.

    `gaps`: as `rank_gaps` gives; `notes`: what weakens the intervals.
    """
    summary = {"potential": ranks, "best_by_budget": choices, "direct_excess": excess}
    if not ranks:
        return Part(summary)
    protocol = main_protocol(ranks)
    direct = [ranks[DIRECT][name].rank if DIRECT in ranks else np.nan for name in data.matrix.models]
    sizes = data.matrix.model_facts["parameters_b"].to_numpy(float)
    frame = pd.DataFrame(
        {
            "model": label,
            "family": family,
            "parameters_b": size,
            "rank": rank.rank,
            **as_columns(rank.interval_population_of_benchmarks),
            **as_columns(rank.interval_population_of_categories, "low_categories", "high_categories"),
            **as_columns(rank.interval_by_pairs, "low_pairs", "high_pairs"),
            **{f"top_{first}": share for first, share in rank.share_in_top.items()},
            "direct_rank": direct_rank,
        }
        for label, family, size, rank, direct_rank in zip(
            *data.model_columns.values(), sizes, ranks[protocol].values(), direct, strict=True
        )
    ).sort_values("rank", key=lambda column: column.map(number), ignore_index=True)
    fields = {
        "parameters_b": "Parameters (billions)|~g", "rank": "Rank|~g", "low": "from|~g", "high": "to|~g",
        "direct_rank": "Direct rank|~g",
    }  # fmt: skip
    axis, caption = "Rank on the first component (1 = best)", "Line: 95% interval over benchmarks."
    title = "Potential ranking" if protocol == TRAINED else "Ranks on the first component"
    caveat = "" if protocol == TRAINED else " The ranks here are under direct evaluation."
    section = Section(
        "Which model to pick",
        finding="" if gaps is None else _gap_sentence(gaps),
        explanation=f"Potential is the rank on the first factor under train before test.{caveat} The interval is for "
        "other benchmarks like these: benchmarks are resampled. It is too narrow where benchmarks of a category are "
        "alike. Where categories are known, quote the table's interval over categories: whole categories are "
        "resampled. Both are for a model that was named before. Which one leads is known only afterwards: the interval "
        "for any model leaves out just the places of models that are surely better or surely worse, every pair being "
        "compared over the benchmarks. A share of resamples is not the probability that a model truly is among the "
        "first.",
        figures=[model_figure(data, "potential", title, plotted(frame), "rank", axis, fields, caption)],
        tables=[
            _budget_table(data, choices[protocol]),
            _rank_table(frame),
            *([] if gaps is None else [_gap_table(gaps)]),
        ],
    )
    return Part(summary, section, [_pick_finding(data, ranks[protocol], protocol)], notes)


def _rank_table(frame: pd.DataFrame) -> Table:
    resampled = "categories" if frame["low_categories"].map(is_known).any() else "single benchmarks"
    return Table(
        "potential",
        "Ranks with intervals",
        frame,
        formats={name: ".2f" if name.startswith("top_") else ".0f" for name in frame.columns[3:]}
        | {"parameters_b": ".3g"},
        labels={
            "parameters_b": "parameters (billions)",
            "low": "from",
            "high": "to",
            "low_categories": "from, categories",
            "high_categories": "to, categories",
            "low_pairs": "from, any model",
            "high_pairs": "to, any model",
            "top_1": "first, share of resamples",
            "top_3": "in the first 3",
            "top_10": "in the first 10",
            "direct_rank": "direct rank",
        },
        caption=f"Shares are over resamples of {resampled}.",
        folded=True,
    )


def _budget_table(data: FactorData, choices: list[BestModel]) -> Table:
    labels = dict(zip(data.matrix.models, data.matrix.labels, strict=True))
    named = [
        vars(choice) | {"model": labels[choice.model], "rivals": ", ".join(labels[name] for name in choice.rivals)}
        for choice in choices
    ]
    return Table(
        "best_by_budget",
        "Best model by parameter budget",
        pd.DataFrame(named, columns=["parameters_b", "model", "probability_best", "rivals"]),
        formats={"parameters_b": ".3g", "probability_best": ".2f"},
        labels={
            "parameters_b": "from (billions)",
            "probability_best": "best in this share of resamples of benchmarks",
            "rivals": "rivals (best in 5% or more)",
        },
        caption="Each row applies from its size up to the next row's. Shares are over resamples of single benchmarks.",
    )


def _pick_finding(data: FactorData, ranks: RanksOfModels, protocol: str) -> Finding | None:
    everyone, ranks = len(ranks), {name: rank for name, rank in ranks.items() if is_known(rank.rank)}
    if not ranks or len(ranks) < min(JACKKNIFED, everyone / 2):
        return None
    name = min(ranks, key=lambda name: number(ranks[name].rank))
    best, label = ranks[name], dict(zip(data.matrix.models, data.matrix.labels, strict=True))[name]
    resampled = "categories" if is_known(best.interval_population_of_categories) else "benchmarks"
    bounds, first = best.interval_by_pairs, best.share_in_top["1"]
    interval = "" if isinstance(bounds, Missing) else f", 95% interval {bounds.low:.0f} to {bounds.high:.0f}"
    basis = (
        "Interval over benchmarks, each model compared with every other one."
        if interval
        else "These benchmarks give no interval for others like them."
    )
    if is_known(first):
        basis += (
            f" It is first in {percent(number(first))} of the resamples of {resampled}. That is "
            "not the probability that it truly is first: a model that leads by chance leads in most of them."
        )
    words = " (its potential)" if protocol == TRAINED else ""
    ranked = f"{len(ranks)}" if len(ranks) == everyone else f"the {count(len(ranks), 'model')} with enough scores"
    return Finding(
        f"{label} ranks first on the first factor {UNDER[protocol]}{words}: rank {number(best.rank):.0f} of "
        f"{ranked}{interval}.",
        basis,
    )


# ----------------------------------------------------------------------------------------------------------------------
# Where direct ranks mislead.


def _gap_sentence(gaps: pd.DataFrame) -> str:
    surely = beyond_interval(gaps)
    if surely.empty:
        return "For no model does the interval of the gap between both ranks exclude 0."
    first = surely.iloc[0]
    return (
        f"For {count(len(surely), 'model')} the interval of the gap between both ranks excludes 0 "
        f"({by_chance(int(gaps['gap'].notna().sum()))}). The largest gap is that of {first['model']}: "
        f"{first['gap']:+.0f} places under train before test (95% interval {first['low']:+.0f} to "
        f"{first['high']:+.0f})."
    )


def _gap_table(gaps: pd.DataFrame) -> Table:
    points = dict.fromkeys(("excess", "excess_low", "excess_high"), "+.1f")
    return Table(
        "misleading_direct_ranks",
        "Gaps between both ranks",
        gaps,
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


# ----------------------------------------------------------------------------------------------------------------------
# Missing cells.

CHECKED = (  # columns of the table of held-out cells: name, field of `HeldOut`, heading, format
    ("error_in_sd", "error_in_sd", "error of one factor (SD)", ".3f"),
    ("error_of_the_mean_in_sd", "baseline_in_sd", "error of the benchmark's mean as prediction (SD)", ".3f"),
    ("mean_absolute_error", "mean_absolute_error", "error of one factor (score)", ".4f"),
    ("error_of_the_mean", "baseline_error", "error of the benchmark's mean as prediction (score)", ".4f"),
    ("coverage", "coverage", "share inside 95% intervals", ".3f"),
    ("multiplier", "multiplier", "half an interval, in standard deviations of the prediction", ".2f"),
)


def completion(data: FactorData, summary: dict[str, Completion]) -> Part:
    """Missing cells predicted by one factor, how good that is, and which cells to run next."""
    if not summary:
        return Part({"completion": summary})
    predictions, charts, errors, covered = [], [], [], []
    for p, entry in summary.items():
        missing, held_out = entry.missing_cells, entry.held_out
        predictions += [row | {"protocol": LABELS[p]} for row in entry.predictions]
        if missing and is_known(entry.rank_interval):
            charts.append(_completed_ranking(data, p, *entry.ranks))
        if is_known(held_out.mean_absolute_error):
            errors.append(
                f"{value_in_words(held_out.error_in_sd)} standard deviations {UNDER[p]} (the benchmark's mean "
                f"misses it by {value_in_words(held_out.baseline_in_sd)})"
            )
            covered.append(
                f"{UNDER[p]}: {held_out.cells} cells held out in turn, {percent(number(held_out.coverage))} "
                f"inside their 95% intervals, {count(missing, 'missing cell')} predicted"
            )
    checks = pd.DataFrame(
        {
            "protocol": LABELS[p],
            "missing_cells": entry.missing_cells,
            "held_out_cells": entry.held_out.cells,
            **{name: getattr(entry.held_out, field) for name, field, _, _ in CHECKED},
        }
        for p, entry in summary.items()
    )
    table = Table(
        "completion_check",
        "Held-out cells",
        checks,
        formats={name: form for name, _, _, form in CHECKED},
        labels={name: heading for name, _, heading, _ in CHECKED},
    )
    section = Section(
        "Completing the matrix",
        finding=f"{count(len(predictions), 'cell is', 'cells are')} missing and predicted."
        if predictions
        else "No cell is missing.",
        explanation="A model with one factor is fitted to the known scores: one ability for each model, a level and a "
        "slope for each benchmark. The scores are hidden in groups, each once, and predicted from the rest. Intervals "
        "are set so that 95% of the hidden scores of the other groups lie inside. All this assumes that whether a "
        "score is missing has nothing to do with its value.",
        figures=charts,
        tables=[table, *(_prediction_tables(pd.DataFrame(predictions)) if predictions else [])],
    )
    sentence = f"On average, a prediction by one factor misses a held-out score by {' and '.join(errors)}."
    basis = "; ".join(covered)
    finding = Finding(sentence, f"{basis[0].upper()}{basis[1:]}.") if errors else None
    return Part({"completion": summary}, section, [finding])


def _prediction_tables(predictions: pd.DataFrame) -> list[Table]:
    formats = {"predicted": ".3f", "low": ".3f", "high": ".3f", "information": ".2f"}
    # what differs less than the fit is exact to is as good; then the order of the scores
    best = predictions.dropna(subset="information").sort_values(
        "information", key=lambda part: -part.round(6), kind="stable"
    )
    next_cells = Table(
        "next_cells",
        "Cells worth running next",
        best.head(SHOWN_CELLS)[["model", "family", "benchmark", "protocol", "information"]],
        formats=formats,
        labels={"information": "uncertainty of the model's ability removed"},
        caption="How much of the variance of the model's ability this one cell would remove.",
    )
    return [
        *([next_cells] if len(best) else []),
        Table(
            "predicted_cells",
            "Predicted scores",
            predictions.drop(columns="information"),
            formats=formats,
            labels={"low": "from", "high": "to"},
            folded=True,
        ),
    ]


def _completed_ranking(
    data: FactorData, protocol: str, low: np.ndarray, middle: np.ndarray, high: np.ndarray
) -> Figure:
    present = np.isfinite(data.scores[protocol])
    cells = [f"{row.sum()} of {row.size}" for row in present]
    frame = pd.DataFrame({**data.model_columns, "rank": middle, "low": low, "high": high, "cells": cells})
    fields = {"rank": "Median rank|~g", "low": "from|~g", "high": "to|~g", "cells": "Cells known"}
    caption = f"{percent(1 - present.mean())} of the cells are missing. A model without any score spans all ranks."
    axis, frame = "Rank of the ability (1 = best)", frame.sort_values("rank", kind="stable")
    return model_figure(data, f"completed_ranking_{protocol}", LABELS[protocol], frame, "rank", axis, fields, caption)
