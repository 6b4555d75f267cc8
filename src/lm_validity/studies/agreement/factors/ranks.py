"""Ranks by the first factor: which model to pick, where direct ranks mislead, and missing cells predicted by it."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lm_validity.config.groups import KNOTS
from lm_validity.missing import Missing, Reason, ReasonCode, as_columns, is_known, known, number
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.statistics import LEVEL, Interval
from lm_validity.studies.agreement.data import JACKKNIFED
from lm_validity.studies.agreement.factors.components import FactorData, by_model, range_at, simulations
from lm_validity.studies.agreement.factors.components_page import LABELS, model_figure
from lm_validity.studies.agreement.intervals import Range, Value
from lm_validity.studies.agreement.statistics.factors import (
    LEAST_UNITS,
    OneFactorModel,
    RankDraws,
    ability_ranks,
    best_by_budget,
    check_held_out,
    fit_one_factor,
    rank_intervals,
    ranks_over_benchmarks,
    second_factor,
)
from lm_validity.studies.agreement.statistics.readiness import compute_terms, excess_over_prediction
from lm_validity.studies.agreement.statistics.resampling import (
    cluster_multiplicities,
    cluster_numbers,
    hull,
    share_in_top,
)
from lm_validity.studies.agreement.wording import plotted, value_in_words
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import UNDER, count, listing, percent

NORMAL_95 = 1.959964
SHOWN_CELLS = 200  # missing cells worth running next that the page lists
SECOND_FACTOR_LEVEL = 0.05
NO_RANK_INTERVAL = (
    f"There are fewer than {LEAST_UNITS} benchmarks, or the model has one of them, or most resamples give the "
    "model no rank: they contain none of its benchmarks, or fewer than two on which models differ."
)
NO_CATEGORIES = f"The benchmarks sheet names fewer than {LEAST_UNITS} categories, or no category with two benchmarks."
NO_EXCESS = Reason(
    "The model's compute or one of its scores is not known, or too few models are left to predict it.",
    ReasonCode.TOO_FEW,
)


# ----------------------------------------------------------------------------------------------------------------------
# Which model to pick.


@dataclass(frozen=True)
class ModelRank:
    """A model's rank on the first component, 1 = best, with intervals over benchmarks, over their categories, and the
    one that holds for whichever model comes first (`rank_intervals`); and the share of resamples, of categories where
    there are some, in which it is among the first 1, 3 or 10."""

    rank: Value
    interval_population_of_benchmarks: Range
    interval_population_of_categories: Range
    interval_by_pairs: Range
    share_in_top: dict[str, Value]


RanksOfModels = dict[str, ModelRank]


@dataclass(frozen=True)
class BestModel:
    """The best model of at most so many parameters, the share of resamples in which it is, and its rivals."""

    parameters_b: float
    model: str
    probability_best: Value
    rivals: list[str]


@dataclass(frozen=True)
class DirectExcess:
    """How far a model's direct score lies above what the other models predict."""

    value: Value
    interval: Range


def ranks_of_models(data: FactorData, drawn: dict[str, RankDraws]) -> dict[str, RanksOfModels]:
    """By protocol the ranks of the models; `drawn`: ranks over benchmarks, none without resampling."""
    categories = _category_ranks(data) if drawn else {}
    return {p: _ranks(data, p, entry, categories.get(p)) for p, entry in drawn.items()}


def potential(
    data: FactorData,
    ranks: dict[str, RanksOfModels],
    excess: dict[str, DirectExcess],
    gaps: pd.DataFrame | None,
    drawn: dict[str, RankDraws],
) -> Part:
    """The potential ranking with intervals, the best model by budget, and models that direct ranks mislead about.

    `ranks`, `excess`, `gaps`, `drawn`: as `ranks_of_models`, `direct_excess`, `rank_gaps` and `drawn_ranks` give.
    """
    names, sizes = data.matrix.models, data.matrix.model_facts["parameters_b"].to_numpy(float)
    choices = {
        p: [
            BestModel(
                parameters_b=choice.parameters_b,
                model=names[choice.model],
                probability_best=known(choice.probability_best, "No resample ranks a model of that size."),
                rivals=[names[i] for i in choice.rivals],
            )
            for choice in best_by_budget(entry, sizes)
        ]
        for p, entry in drawn.items()
    }
    summary = {"potential": ranks, "best_by_budget": choices, "direct_excess": excess}
    if not ranks:
        return Part(summary)
    protocol = main_protocol(ranks)
    direct = [ranks[DIRECT][name].rank if DIRECT in ranks else np.nan for name in names]
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
    return Part(summary, section, [_pick_finding(data, ranks[protocol], protocol)], _lost_notes(data, drawn))


def main_protocol(ranks: dict[str, RanksOfModels]) -> str:
    """The protocol whose ranks are the potential: train before test where it has any."""
    return TRAINED if TRAINED in ranks else DIRECT


def drawn_ranks(data: FactorData) -> dict[str, RankDraws]:
    """By protocol the ranks over benchmarks; nothing without resampling."""
    if data.no_intervals is not None:
        return {}
    return {p: ranks_over_benchmarks(data.scores[p], data.benchmark_weights) for p in data.matrix.protocols}


def _category_ranks(data: FactorData) -> dict[str, RankDraws]:
    """Ranks when whole categories are resampled; a benchmark of unknown category is one of its own."""
    clusters = cluster_numbers(np.array(data.categories, dtype=object))
    units = int(clusters.max()) + 1
    if units < LEAST_UNITS or units == len(clusters):
        return {}
    weights = cluster_multiplicities(clusters, data.resamples, np.random.default_rng(4))
    return {p: ranks_over_benchmarks(data.scores[p], weights, units) for p in data.matrix.protocols}


def _ranks(data: FactorData, protocol: str, drawn: RankDraws, categories: RankDraws | None) -> RanksOfModels:
    clusters = cluster_numbers(np.array(data.categories, dtype=object))
    over_benchmarks, by_pairs = drawn.interval(), rank_intervals(data.scores[protocol], clusters)
    # few categories vary less in resamples than in truth: never shorter than over benchmarks one by one
    over_categories = None if categories is None else hull(categories.interval(), over_benchmarks)
    tops = {str(first): share_in_top((categories or drawn).draws, first) for first in (1, 3, 10)}
    ranks: RanksOfModels = {}
    for i, (model, score) in enumerate(by_model(data, protocol).items()):
        if isinstance(score, Missing):
            ranks[model] = ModelRank(score, score, score, score, dict.fromkeys(tops, score))
            continue
        ranks[model] = ModelRank(
            rank=float(drawn.rank[i]),
            interval_population_of_benchmarks=range_at(over_benchmarks, i, NO_RANK_INTERVAL),
            interval_population_of_categories=Missing(NO_CATEGORIES)
            if over_categories is None
            else range_at(over_categories, i, NO_RANK_INTERVAL),
            interval_by_pairs=range_at(by_pairs, i, NO_RANK_INTERVAL),
            share_in_top={first: known(float(share[i]), NO_RANK_INTERVAL) for first, share in tops.items()},
        )
    return ranks


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
        {
            "parameters_b": choice.parameters_b,
            "model": labels[choice.model],
            "probability_best": choice.probability_best,
            "rivals": ", ".join(labels[name] for name in choice.rivals),
        }
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


def _lost_notes(data: FactorData, drawn: dict[str, RankDraws]) -> list[str]:
    """What weakens intervals that are given."""
    labels, notes = np.array(data.matrix.labels, dtype=object), []
    for protocol, ranks in drawn.items():
        defined = np.isfinite(ranks.draws).mean(axis=0)
        part = np.isfinite(ranks.rank) & np.isfinite(ranks.interval().low) & (defined < 1)
        if part.any():
            notes.append(
                f"{UNDER[protocol].capitalize()}, intervals of ranks over benchmarks leave out resamples that give a "
                "model no rank, since they contain none of its benchmarks, or fewer than two on which models differ: "
                f"{listing(labels[part])}."
            )
    return notes


# ----------------------------------------------------------------------------------------------------------------------
# Where direct ranks mislead.


def direct_excess(data: FactorData) -> dict[str, DirectExcess]:
    """By model, how far its direct score lies above what the other models predict from its compute and its score under
    train before test; means over the benchmarks whose scores are fractions, of the models known on all of them in both
    ways."""
    matrix = data.matrix
    fractions = matrix.fractions & np.logical_and.reduce([np.isfinite(matrix.value[p]).any(axis=0) for p in PROTOCOLS])
    if not fractions.any():
        return {}
    direct, trained = (matrix.oriented(p)[:, fractions].mean(axis=1) for p in PROTOCOLS)
    excess = excess_over_prediction(direct, trained, compute_terms(data.compute, KNOTS))
    if not np.isfinite(excess.value).any():
        return {}
    return {
        model: DirectExcess(known(value, NO_EXCESS), Missing(NO_EXCESS) if np.isnan(value) else Interval(low, high))
        for model, value, low, high in zip(matrix.models, *(map(float, part) for part in excess), strict=True)
    }


def rank_gaps(data: FactorData, excess: dict[str, DirectExcess], drawn: dict[str, RankDraws]) -> pd.DataFrame | None:
    """Direct rank minus rank under train before test, by model, the largest gap first: positive where a model is better
    than its direct rank says. Over the cells known under both protocols; None without any or without resampling.

    `drawn`: ranks over all cells; `excess`: of `direct_excess`.
    """
    if not drawn or not data.in_both.any():
        return None
    if not data.whole:
        drawn = {p: ranks_over_benchmarks(data.common[p], data.benchmark_weights) for p in PROTOCOLS}
    gap = drawn[DIRECT].minus(drawn[TRAINED])
    ranks = {"direct_rank": drawn[DIRECT].rank, "tuned_rank": drawn[TRAINED].rank, "gap": gap.rank}
    frame = pd.DataFrame({**data.model_columns, **ranks, **gap.interval()._asdict()})
    if excess:
        ends = pd.DataFrame([as_columns(entry.interval, "excess_low", "excess_high") for entry in excess.values()])
        frame = frame.assign(excess=[entry.value for entry in excess.values()]).join(ends)
    return frame.reindex(frame["gap"].abs().sort_values(ascending=False, kind="stable").index).reset_index(drop=True)


def beyond_interval(gaps: pd.DataFrame) -> pd.DataFrame:
    """The rows whose gap is surely not 0, the largest gap first."""
    return gaps[(gaps["low"] > 0) | (gaps["high"] < 0)]


def by_chance(models: int) -> str:
    """How many of so many models lie beyond a 95% interval where none does truly."""
    return f"about {round(LEVEL * models, 1):g} would by chance"


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

CHECKED = (  # columns of the table of held-out cells: name, heading, format
    ("error_in_sd", "error of one factor (SD)", ".3f"),
    ("error_of_the_mean_in_sd", "error of the benchmark's mean as prediction (SD)", ".3f"),
    ("mean_absolute_error", "error of one factor (score)", ".4f"),
    ("error_of_the_mean", "error of the benchmark's mean as prediction (score)", ".4f"),
    ("coverage", "share inside 95% intervals", ".3f"),
    ("multiplier", "half an interval, in standard deviations of the prediction", ".2f"),
)


@dataclass(frozen=True)
class HeldOut:
    """How well one factor predicts held-out cells, as `statistics.factors.HeldOutCheck` has it."""

    mean_absolute_error: Value
    baseline_error: Value
    coverage: Value
    multiplier: Value
    cells: int | Missing
    level: Value
    error_in_sd: Value
    baseline_in_sd: Value

    @property
    def columns(self) -> dict[str, Value]:
        """The figures of the table, by the names of `CHECKED`."""
        values = (
            self.error_in_sd, self.baseline_in_sd, self.mean_absolute_error, self.baseline_error, self.coverage,
            self.multiplier,
        )  # fmt: skip
        return {name: value for (name, *_), value in zip(CHECKED, values, strict=True)}


@dataclass(frozen=True)
class Completion:
    """Of a protocol: its missing cells, how well held-out ones are predicted, the p of a second factor, and by model
    the ends of its rank's interval."""

    missing_cells: int
    held_out: HeldOut
    second_factor_p: Value
    rank_interval: dict[str, list[float]] | Missing


def completion(data: FactorData) -> Part:
    """Missing cells predicted by one factor, how good that is, and which cells to run next."""
    rng, predictions, charts, errors, covered = simulations("completion"), [], [], [], []
    summary: dict[str, Completion] = {}
    no_check = Reason("There are too few scores to hold any out.", ReasonCode.TOO_FEW)
    for p in data.matrix.protocols:
        scores, missing = data.scores[p], int((~np.isfinite(data.scores[p])).sum())
        model, check = fit_one_factor(scores), check_held_out(scores, rng)
        # a complete table's ranks are of the abilities behind it; a few cells' must also pay for the model's errors
        widening = max(1.0, check.multiplier / NORMAL_95) if missing else 1.0
        ranks = np.quantile(ability_ranks(model, rng, widening=widening), [0.025, 0.5, 0.975], axis=0)
        second = second_factor(scores, np.random.default_rng(0))
        held_out = HeldOut(**{name: known(value, no_check) for name, value in vars(check).items()})
        summary[p] = Completion(
            missing_cells=missing,
            held_out=held_out,
            second_factor_p=known(second, "The residuals of one factor have no components."),
            rank_interval=Missing("These ranks take one factor for granted, and residuals show a second one.")
            if second <= SECOND_FACTOR_LEVEL
            else dict(zip(data.matrix.models, ranks[[0, 2]].T.tolist(), strict=True)),
        )
        if missing:
            predictions += _predictions(data, p, model, check.multiplier)
        if missing and is_known(summary[p].rank_interval):
            charts.append(_completed_ranking(data, p, *ranks))
        if is_known(held_out.mean_absolute_error):
            errors.append(
                f"{value_in_words(held_out.error_in_sd)} standard deviations {UNDER[p]} (the benchmark's mean "
                f"misses it by {value_in_words(held_out.baseline_in_sd)})"
            )
            covered.append(
                f"{UNDER[p]}: {held_out.cells} cells held out in turn, {percent(number(held_out.coverage))} "
                f"inside their 95% intervals, {count(missing, 'missing cell')} predicted"
            )
    if not summary:
        return Part({"completion": summary})
    checks = pd.DataFrame(
        {
            "protocol": LABELS[p],
            "missing_cells": entry.missing_cells,
            "held_out_cells": entry.held_out.cells,
            **entry.held_out.columns,
        }
        for p, entry in summary.items()
    )
    table = Table(
        "completion_check",
        "Held-out cells",
        checks,
        formats={name: form for name, _, form in CHECKED},
        labels={name: heading for name, heading, _ in CHECKED},
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


def _predictions(data: FactorData, protocol: str, model: OneFactorModel, multiplier: float) -> list[dict[str, object]]:
    """Missing cells with prediction, interval in the metric's units, and what running them would tell."""
    direction, (mean, deviation) = data.matrix.direction[~data.matrix.is_corpus], model.predict()
    reach, gain = multiplier * deviation, 1 - model.variance_after() / model.ability_variance[:, None]
    ends = np.sort([direction * (mean - reach), direction * (mean + reach)], axis=0)
    names, families = data.model_columns.values()
    return [
        {
            "model": names[i],
            "family": families[i],
            "benchmark": data.tasks[j],
            "protocol": LABELS[protocol],
            "predicted": direction[j] * mean[i, j],
            "low": ends[0, i, j],
            "high": ends[1, i, j],
            "information": gain[i, j],
        }
        for i, j in zip(*np.nonzero(~np.isfinite(data.scores[protocol])), strict=True)
    ]


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
