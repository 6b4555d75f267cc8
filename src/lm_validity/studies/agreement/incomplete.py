"""A table with missing cells: what can be said despite them, and what both protocols say over the same comparisons.

Taus are never those of a filled table.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.config.plan import AUDIT
from lm_validity.missing import Missing, Reason, ReasonCode, known
from lm_validity.results.summary import page_only
from lm_validity.statistics import Interval
from lm_validity.studies.agreement.data import JACKKNIFED, Data
from lm_validity.studies.agreement.score_matrix import ERROR_RATES, ScoreMatrix, family_members
from lm_validity.studies.agreement.similar import NO_COMPARISON
from lm_validity.studies.agreement.statistics import sparse
from lm_validity.studies.agreement.statistics.ranking import average_ranks, finite_mean, pair_signs
from lm_validity.studies.agreement.values import Range, Value, each
from lm_validity.tables.schema import DIRECT

DRAWS = 400
SEED = 5  # of the draws, and of the cells that weights are fitted on
DRAWN_CELLS = 20_000  # that are drawn so often; of larger tables fewer draws are kept in memory
MINIMUM_MODELS = 3  # with a score; fewer leave nothing to predict from
HARDLY = 3  # measured cells per model of a family: with fewer, its predictions are those of other families
NO_PROCESS = (
    f"There are fewer than {sparse.LEAST_CELLS} known cells or more than {sparse.MOST_CELLS:,}, or fewer than "
    f"{MINIMUM_MODELS} models or more than {sparse.MOST_MODELS}."
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

    process: sparse.CellProcess
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
    the measured ones chosen by earlier scores; pooled agreement, and by model its rank.

    `cells_of_models`: (models,) how many are measured. `predictions`: a row for each cell that is not, of models and
    benchmarks with a score, in the metric's own units and direction; none without a process.
    """

    cells: int
    missing: int
    unplanned: int
    by_scores: int
    kendall_tau: PooledAgreement
    ranks: dict[str, RankRange] | Missing
    trust: Trust | Missing
    cells_of_models: np.ndarray = page_only()
    predictions: pd.DataFrame = page_only()


def despite_missing_cells(data: Data) -> dict[str, Incomplete]:
    """Of each protocol that has scores and lacks some: pooled agreement, ranks with intervals, and predictions.

    Cells that earlier scores chose are in ranks and predictions, and in no agreement.
    """
    matrix, entries = data.matrix, {}
    for p in data.incomplete:
        scores, planned = data.scores[p], matrix.planned(p)[:, ~matrix.is_corpus]
        measured = np.isfinite(matrix.measured(p)[:, ~matrix.is_corpus])
        fitted, by_scores = fit_cells(matrix, p), int((measured & ~np.isfinite(scores)).sum())
        # agreement must not learn of cells that scores chose, not even through a prediction
        process = None if fitted is None else fitted.process
        entries[p] = Incomplete(
            cells=int(measured.sum()),
            missing=int((~measured).sum()),
            unplanned=int((~measured & ~planned).sum()),
            by_scores=by_scores,
            kendall_tau=_pooled(matrix, scores, _fit(matrix, p, scores) if by_scores else process),
            ranks=Missing(NO_PROCESS) if fitted is None else _standings(matrix, fitted),
            trust=Missing(NO_PROCESS) if fitted is None else fitted.trust,
            cells_of_models=measured.sum(axis=1),
            predictions=pd.DataFrame() if fitted is None else _predictions(matrix, fitted, planned),
        )
    return entries


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
    widening, measured = sparse.widening_of(residuals), np.isfinite(scores).sum(axis=1)
    limit, families = min(HARDLY, scores.shape[1]), family_members(matrix.families)
    trust = Trust(
        source=source,
        cells=len(residuals),
        coverage=known(finite_mean(np.abs(residuals) <= sparse.NORMAL_95), FEW_RESIDUALS),
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


def _fit(matrix: ScoreMatrix, protocol: str, scores: np.ndarray) -> sparse.CellProcess | None:
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
    losses = sparse.Losses(lower, lower & names.isin(ERROR_RATES).to_numpy(dtype=bool))
    return sparse.fit_process(scores, stderr, direct, size, matrix.families, SEED, losses)


def _pooled(matrix: ScoreMatrix, scores: np.ndarray, process: sparse.CellProcess | None) -> PooledAgreement:
    """Agreement of `scores`, assisted by the predictions of a `process` where there is one."""
    names, signs, models = matrix.task_names(), pair_signs(scores), int(np.isfinite(scores).any(axis=1).sum())
    measured = sparse.pooled_tau(signs)
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
    helped = sparse.pooled_tau(signs, sparse.expected_signs(process))
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
    rank = average_ranks(sparse.mean_standing(tables).mean(axis=0))
    low, high = np.quantile(sparse.rank_draws(tables), [0.025, 0.975], axis=0)
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
