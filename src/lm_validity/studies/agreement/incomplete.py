"""A table with missing cells: what can be said despite them, and what both protocols say over the same comparisons.

Taus are never those of a filled table.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import altair as alt
import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.config.plan import AUDIT
from lm_validity.missing import Missing, Reason, ReasonCode, as_columns, is_known, known, number
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.statistics import Interval
from lm_validity.studies.agreement.data import BY_CHANCE, JACKKNIFED, Data
from lm_validity.studies.agreement.intervals import Range, Value, each
from lm_validity.studies.agreement.pooled import NO_COMPARISON, Pooled
from lm_validity.studies.agreement.score_matrix import ERROR_RATES, ScoreMatrix, family_members
from lm_validity.studies.agreement.statistics.ranking import average_ranks, finite_mean, pair_signs
from lm_validity.studies.agreement.statistics.sparse import (
    LEAST_CELLS,
    MOST_CELLS,
    MOST_MODELS,
    NORMAL_95,
    CellProcess,
    Losses,
    expected_signs,
    fit_process,
    mean_standing,
    pooled_tau,
    rank_draws,
    widening_of,
)
from lm_validity.studies.agreement.wording import value_in_words
from lm_validity.tables.schema import DIRECT
from lm_validity.words import UNDER, count, decimal, listing, percent

DRAWS = 400
SEED = 5  # of the draws, and of the cells that weights are fitted on
DRAWN_CELLS = 20_000  # that are drawn so often; of larger tables fewer draws are kept in memory
MINIMUM_MODELS = 3  # with a score; fewer leave nothing to predict from
HARDLY = 3  # measured cells per model of a family: with fewer, its predictions are those of other families
NO_PROCESS = (
    f"There are fewer than {LEAST_CELLS} known cells or more than {MOST_CELLS:,}, or fewer than {MINIMUM_MODELS} "
    f"models or more than {MOST_MODELS}."
)
NO_ERROR = Reason(
    f"Fewer than {JACKKNIFED} models, or too few comparisons without one of them, or all of them agree.",
    ReasonCode.TOO_FEW,
)
LEAST_CHECKED = 19  # cells that a 95% quantile takes
FEW_RESIDUALS = Reason(f"Fewer than {LEAST_CHECKED} cells can be checked.", ReasonCode.TOO_FEW)


@dataclass(frozen=True)
class Trust:
    """How far predictions can be trusted.

    `source`: `audit`, random cells that were predicted without any of them, where there are at least 19; else `left
    out`: each known cell is predicted from the others, which cannot show what only the cells that were left out have in
    common. `coverage`: share of `cells` inside their 95% interval before it is widened; `widening`: factor of all
    intervals; `hardly_measured`: families with fewer than 3 measured cells per model, in order of first appearance.
    """

    source: str
    cells: int
    coverage: Value
    widening: Value
    hardly_measured: list[str]


class Fitted(NamedTuple):
    """A protocol's process, how far it can be trusted, and the factor by which its intervals are widened for it."""

    process: CellProcess
    trust: Trust
    widening: float


@dataclass(frozen=True)
class PooledAgreement:
    """Agreement pooled over pairs of models, and the same `assisted` by predictions; intervals over models.

    `comparisons`: (pair of models, pair of benchmarks) with all four cells known; `differ`: the two are more than two
    standard errors of their difference apart.
    """

    mean: Value
    interval: Range
    comparisons: int
    by_benchmark: dict[str, Value]
    assisted: Value
    assisted_interval: Range
    assisted_by_benchmark: dict[str, Value]
    differ: bool | Missing


@dataclass(frozen=True)
class RankRange:
    """A model's rank despite missing cells, and its 95% interval."""

    rank: Value
    interval: Range


@dataclass(frozen=True)
class Incomplete:
    """A protocol that lacks cells: how many are measured and `missing`, of these `unplanned` by plan, `by_scores` of
    the measured ones chosen by earlier scores; pooled agreement, and by model its rank."""

    cells: int
    missing: int
    unplanned: int
    by_scores: int
    kendall_tau: PooledAgreement
    ranks: dict[str, RankRange] | Missing
    trust: Trust | Missing


def fit_cells(matrix: ScoreMatrix, protocol: str) -> Fitted | None:
    """The process of a protocol's measured cells; None where there are too few or too many."""
    scores = matrix.measured(protocol)[:, ~matrix.is_corpus]
    process = _fit(matrix, protocol, scores)
    if process is None:
        return None
    audited = _audited(matrix, protocol) & np.isfinite(scores)
    source, residuals = "left out", process.residuals()
    if audited.sum() >= LEAST_CHECKED:
        without = _fit(matrix, protocol, np.where(audited, np.nan, scores))
        if without is not None:
            source, residuals = AUDIT, replace(without, scores=np.where(audited, scores, np.nan)).residuals()
    residuals = residuals[np.isfinite(residuals)]
    widening, measured = widening_of(residuals), np.isfinite(scores).sum(axis=1)
    limit, families = min(HARDLY, scores.shape[1]), family_members(matrix.families)
    trust = Trust(
        source=source,
        cells=len(residuals),
        coverage=known(finite_mean(np.abs(residuals) <= NORMAL_95), FEW_RESIDUALS),
        widening=known(widening, FEW_RESIDUALS),
        hardly_measured=[name for name, rows in families.items() if measured[rows].mean() < limit],
    )
    return Fitted(process, trust, widening if np.isfinite(widening) else 1.0)


def _audited(matrix: ScoreMatrix, protocol: str) -> np.ndarray:
    """(models, benchmarks) cells that the plan drew to check predictions."""
    names = matrix.task_names()
    if matrix.plan is None or protocol == DIRECT:
        return np.zeros((len(matrix.models), len(names)), dtype=bool)
    drawn = {pair for pair, cell in matrix.plan.items() if cell.reason == AUDIT}
    return np.array([[(model, name) in drawn for name in names] for model in matrix.models])


def _fit(matrix: ScoreMatrix, protocol: str, scores: np.ndarray) -> CellProcess | None:
    """The process of a protocol's scores; for train before test, the direct scores are known beside them.

    None where there are too few or too many.
    """
    if np.isfinite(scores).any(axis=1).sum() < MINIMUM_MODELS:
        return None
    is_task, protocol_direct = ~matrix.is_corpus, DIRECT
    direct = matrix.oriented(protocol_direct)[:, is_task]
    if protocol == protocol_direct:
        direct = np.full_like(direct, np.nan)
    facts = matrix.model_facts[["parameters_b", "tokens_b"]].to_numpy(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.log(np.where(facts > 0, facts, np.nan))
    stderr, lower = matrix.measured(protocol, "stderr")[:, is_task], matrix.direction[is_task] < 0
    metrics = matrix.selected.drop_duplicates("benchmark").set_index("benchmark")["metric"]
    names = metrics.reindex(matrix.task_names()).astype("string").str.split(",").str[0]
    losses = Losses(lower, lower & names.isin(ERROR_RATES).to_numpy(dtype=bool))
    return fit_process(scores, stderr, direct, size, matrix.families, SEED, losses)


def _pooled(matrix: ScoreMatrix, scores: np.ndarray, process: CellProcess | None) -> PooledAgreement:
    """Agreement of `scores`, assisted by the predictions of a `process` where there is one."""
    names, signs, models = matrix.task_names(), pair_signs(scores), int(np.isfinite(scores).any(axis=1).sum())
    measured = pooled_tau(signs)
    mean = known(measured.mean, NO_COMPARISON)
    nothing = mean if isinstance(mean, Missing) else Missing(NO_PROCESS)
    observed = PooledAgreement(
        mean=mean,
        interval=_jackknifed(measured.mean, measured.standard_error, models),
        comparisons=measured.comparisons,
        by_benchmark=each(names, measured.by_benchmark.tolist(), NO_COMPARISON),
        assisted=nothing,
        assisted_interval=nothing,
        assisted_by_benchmark=dict.fromkeys(names, nothing),
        differ=nothing,
    )
    if process is None or isinstance(mean, Missing):
        return observed
    helped = pooled_tau(signs, expected_signs(process))
    return replace(
        observed,
        assisted=known(helped.mean, NO_COMPARISON),
        assisted_interval=_jackknifed(helped.mean, helped.standard_error, models),
        assisted_by_benchmark=each(names, helped.by_benchmark.tolist(), NO_COMPARISON),
        differ=bool(abs(helped.mean - measured.mean) > 2 * helped.difference_error)
        if np.isfinite(helped.difference_error)
        else Missing(NO_ERROR),
    )


def _jackknifed(mean: float, error: float, models: int) -> Range:
    """mean ± t standard errors within [-1, 1], with one degree of freedom less than models: a jackknife over models."""
    if models < JACKKNIFED or not np.isfinite(mean) or not error > 0:
        return Missing(NO_ERROR)
    reach = stats.t.ppf(0.975, models - 1) * error
    return Interval(float(max(-1.0, mean - reach)), float(min(1.0, mean + reach)))


# ----------------------------------------------------------------------------------------------------------------------
# Ranks and predictions.


def drawn_tables(fitted: Fitted, draws: int = DRAWS) -> np.ndarray:
    """(draws, models, benchmarks) tables with the missing scores drawn, their intervals widened."""
    process = fitted.process
    fewer = max(100, min(draws, DRAWS * DRAWN_CELLS // process.scores.size))
    return process.draws(fewer, np.random.default_rng(SEED), fitted.widening)


def _standings(matrix: ScoreMatrix, fitted: Fitted) -> dict[str, RankRange]:
    """By model the rank by its mean standardised score over all benchmarks, missing scores drawn from the process, and
    the 95% interval for these; a model without any score has none."""
    scored = np.flatnonzero(fitted.process.measured.any(axis=1))
    tables = drawn_tables(fitted)[:, scored]
    rank = average_ranks(mean_standing(tables).mean(axis=0))
    low, high = np.quantile(rank_draws(tables), [0.025, 0.975], axis=0)
    nowhere = Missing("The model has no score.")
    standings = dict.fromkeys(matrix.models, RankRange(nowhere, nowhere))
    for index, row in enumerate(scored):
        interval = Interval(float(low[index]), float(high[index]))
        standings[matrix.models[row]] = RankRange(float(rank[index]), interval)
    return standings


def _predictions(matrix: ScoreMatrix, fitted: Fitted, planned: np.ndarray) -> pd.DataFrame:
    """Every cell that was not measured, of models and benchmarks with a score; in the metric's own units and
    direction."""
    direction, names, process = matrix.direction[~matrix.is_corpus], matrix.task_names(), fitted.process
    value, low, high = (part * direction for part in process.predict(fitted.widening))
    hidden = ~process.measured & process.measured.any(axis=1, keepdims=True) & process.measured.any(axis=0)
    return pd.DataFrame(
        {
            "model": matrix.labels[i],
            "benchmark": names[j],
            "planned": "yes" if planned[i, j] else "no",
            "predicted": value[i, j],
            "low": min(low[i, j], high[i, j]),
            "high": max(low[i, j], high[i, j]),
        }
        for i, j in zip(*np.nonzero(hidden), strict=True)
    )


# ----------------------------------------------------------------------------------------------------------------------
# The section.

LEAST_COVERAGE = 0.9
MOST_PREDICTED = 60  # predicted cells in the figure, the most uncertain ones first


def despite_missing_cells(data: Data, pooled: dict[str, Pooled]) -> Part:
    """Of each protocol that has scores and lacks some: pooled agreement by benchmark, ranks with intervals, and
    predictions in a table of their own.

    Cells that earlier scores chose are in ranks and predictions, and in no agreement. Findings only where so many cells
    are missing that headlines are pooled.
    """
    matrix, findings, rows, charts, notes = data.matrix, [], [], [], []
    entries: dict[str, Incomplete] = {}
    tables: list[Table] = []
    for p in data.incomplete:
        title, scores = figures.PROTOCOL_LABELS[p], data.scores[p]
        planned = matrix.planned(p)[:, ~matrix.is_corpus]
        measured = np.isfinite(matrix.measured(p)[:, ~matrix.is_corpus])
        fitted, by_scores = fit_cells(matrix, p), int((measured & ~np.isfinite(scores)).sum())
        # agreement must not learn of cells that scores chose, not even through a prediction
        process = None if fitted is None else fitted.process
        ranks = Missing(NO_PROCESS) if fitted is None else _standings(matrix, fitted)
        tau = _pooled(matrix, scores, _fit(matrix, p, scores) if by_scores else process)
        entries[p] = Incomplete(
            cells=int(measured.sum()),
            missing=int((~measured).sum()),
            unplanned=int((~measured & ~planned).sum()),
            by_scores=by_scores,
            kendall_tau=tau,
            ranks=ranks,
            trust=Missing(NO_PROCESS) if fitted is None else fitted.trust,
        )
        rows += [
            {"benchmark": name, "protocol": title, "pooled": value, "assisted": tau.assisted_by_benchmark[name]}
            for name, value in tau.by_benchmark.items()
        ]
        if is_known(tau.mean):
            findings.append(_finding(p, entries[p], measured))
        if fitted is not None and not isinstance(ranks, Missing):
            tables.append(_rank_table(p, matrix.labels, ranks, measured))
            predicted = _predictions(matrix, fitted, planned)
            if len(predicted):
                tables.append(
                    Table(
                        f"predictions_{p}",
                        f"{title}: predicted scores of cells that were not measured",
                        predicted,
                        formats={"predicted": ".3f", "low": ".3f", "high": ".3f"},
                        labels={"low": "from", "high": "to"},
                        caption="Predictions, not results. Only the assisted estimates and the ranks above use the "
                        "same model.",
                        folded=True,
                    )
                )
                charts.append(_prediction_figure(p, predicted))
        notes += trust_notes(p, entries[p].trust)
    summary = {"incomplete": entries, "pooled": pooled}
    if not entries:
        return Part(summary)
    title, formats = "Pooled agreement of each benchmark with the others", {"pooled": ".3f", "assisted": ".3f"}
    tables = [Table("pooled_tau", title, pd.DataFrame(rows), formats=formats, folded=True), *tables]
    section = Section(
        "Despite missing cells",
        hint="pooled agreement, ranks and predictions",
        explanation="Pooled agreement counts every comparison of two models on two benchmarks once. It is the share of "
        "comparisons that agree minus the share that disagree, so a pair of benchmarks with few models in common gets "
        "little weight. The assisted estimate adds a statistical model's predictions for comparisons that were not "
        "measured. It is then corrected by the model's errors on measured comparisons. Neither estimate fills missing "
        "cells. Models are ranked by their mean standardised score over all benchmarks, averaged over many draws of "
        "the missing scores.",
        figures=charts,
        tables=tables,
        notes=notes,
    )
    return Part(summary, section, findings if data.lacks_many else [])


def _rank_table(protocol: str, labels: Sequence[str], ranks: dict[str, RankRange], measured: np.ndarray) -> Table:
    rows = [
        {"model": label, "measured": int(cells), "rank": standing.rank, **as_columns(standing.interval)}
        for label, standing, cells in zip(labels, ranks.values(), measured.sum(axis=1), strict=True)
    ]
    rows.sort(key=lambda row: number(row["rank"]) if is_known(row["rank"]) else np.inf)
    return Table(
        f"ranks_{protocol}",
        f"{figures.PROTOCOL_LABELS[protocol]}: ranks despite missing cells",
        pd.DataFrame(rows),
        formats={"rank": ".1f", "low": ".1f", "high": ".1f"},
        labels={"measured": "cells measured", "low": "from", "high": "to"},
        caption="95% intervals over the values that missing cells may have had, for these benchmarks and items.",
        folded=True,
    )


def _finding(protocol: str, entry: Incomplete, measured: np.ndarray) -> Finding:
    tau, unplanned = entry.kendall_tau, entry.unplanned
    models = int(measured.any(axis=1).sum())
    on = "" if models == len(measured) else f" ({models} of {count(len(measured), 'model')})"
    sentence = (
        f"{UNDER[protocol].capitalize()}, {entry.cells:,} of {measured.size:,} cells were measured{on}. "
        f"Pooled over pairs of models{BY_CHANCE if entry.missing > unplanned else ''}, tau is "
        f"{value_in_words(tau.mean, tau.interval)}"
    )
    if is_known(tau.assisted):
        sentence += f". Assisted by predictions it is {value_in_words(tau.assisted, tau.assisted_interval)}"
    basis = f"{unplanned:,} cells are not planned. " if unplanned else ""
    if entry.by_scores:
        basis += f"{count(entry.by_scores, 'measured cell')} chosen by earlier scores are left out. "
    basis += f"{tau.comparisons:,} comparisons."
    if not isinstance(tau.interval, Missing):
        basis += " Intervals are for other models on these benchmarks."
    else:
        basis += f" There is no interval for other models. {tau.interval.reason}"
    if is_known(tau.differ) and tau.differ:
        basis += (
            " The two estimates differ by more than twice the standard error of their difference. Either the measured "
            "cells are not typical of the others, or the model predicts them badly."
        )
    return Finding(f"{sentence}.", basis)


def trust_notes(protocol: str, trust: Trust | Missing) -> list[str]:
    """How often known cells lie inside their intervals, and warnings where that is too seldom."""
    label = figures.PROTOCOL_LABELS[protocol]
    if isinstance(trust, Missing):
        return [f"{label}: no predictions. {trust.reason}"]
    audited, coverage, widening = trust.source == AUDIT, number(trust.coverage), number(trust.widening)
    cells = (
        f"{count(trust.cells, 'random cell')} of the audit"
        if audited
        else f"{count(trust.cells, 'measured cell')}, each predicted from the others"
    )
    notes = [f"{label}: of {cells}, {percent(coverage)} lie inside their 95% interval."]
    if widening > 1:
        notes[0] += f" All intervals were made {decimal(widening)} times as wide for this reason."
    if not audited:
        notes[0] += (
            " The cells that are hard to predict may all be unmeasured. Only an audit of random unmeasured cells can "
            "show this (`lm-validity plan --audit 40`)."
        )
    if coverage < LEAST_COVERAGE:
        notes.append(f"{label}: fewer than 90% lie inside. The predictions are less certain than their intervals say.")
    if trust.hardly_measured:
        notes.append(
            f"{label}: fewer than 3 measured cells per model in {listing(trust.hardly_measured)}. Predictions for "
            "these families are based on other families, so their intervals may be too narrow."
        )
    return notes


def _prediction_figure(protocol: str, frame: pd.DataFrame) -> Figure:
    frame = frame.assign(cell=frame["model"] + ", " + frame["benchmark"], width=frame["high"] - frame["low"])
    drawn = frame.sort_values("width", ascending=False).head(MOST_PREDICTED)
    base = alt.Chart(figures.chart_data(drawn)).encode(
        y=alt.Y("cell:N", title=None, scale=figures.discrete(drawn["cell"]), axis=alt.Axis(labelOverlap=False)),
        tooltip=figures.tooltips(
            cell="Not measured", predicted="Predicted|.3f", low="from|.3f", high="to|.3f", planned="Planned"
        ),
    )
    line = base.mark_rule(strokeDash=[4, 3]).encode(x=alt.X("low:Q", title="Predicted score"), x2=alt.X2("high:Q"))
    dot = base.mark_point(filled=False, size=44, strokeDash=[2, 2]).encode(x=alt.X("predicted:Q"))
    chart = alt.layer(line, dot).properties(width="container", height=16 * len(drawn))
    limit_words = (
        f" The {MOST_PREDICTED} most uncertain of {len(frame)} are drawn." if len(frame) > MOST_PREDICTED else ""
    )
    return Figure(
        f"predictions_{protocol}",
        f"{figures.PROTOCOL_LABELS[protocol]}: predicted, not measured",
        chart,
        caption=f"Hollow dot: the predicted score. Dashed line: its 95% interval.{limit_words}",
        wide=True,
    )
