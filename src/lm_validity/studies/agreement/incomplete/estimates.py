"""From a table with missing cells to what can be said despite them; taus are never those of a filled table."""

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from lm_validity.config.plan import AUDIT
from lm_validity.studies.agreement.incomplete.summary import (
    Incomplete,
    Pooled,
    Prediction,
    Range,
    Standing,
    Trust,
)
from lm_validity.studies.agreement.score_checks import ERROR_RATES
from lm_validity.studies.agreement.score_matrix import ScoreMatrix
from lm_validity.studies.agreement.statistics.ranking import average_ranks, pair_signs
from lm_validity.studies.agreement.statistics.resampling import Interval
from lm_validity.studies.agreement.statistics.sparse import (
    LEAST_CELLS,
    MOST_CELLS,
    MOST_MODELS,
    NORMAL_95,
    CellProcess,
    Losses,
    assisted_tau,
    expected_signs,
    fit_process,
    mean_standing,
    pooled_tau,
    rank_draws,
    widening_of,
)
from lm_validity.summaries import Missing, known
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import Reason, ReasonCode

DRAWS = 400
SEED = 5  # of the draws, and of the cells that weights are fitted on
DRAWN_CELLS = 20_000  # that are drawn so often; of larger tables fewer draws are kept in memory
JACKKNIFED = 5  # models; with fewer, the taus without each of them say nothing about other models
MINIMUM_MODELS = 3  # with a score; fewer leave nothing to predict from
HARDLY = 3  # measured cells per model of a family: with fewer, its predictions are those of other families
NO_COMPARISON = "No two models are known on two benchmarks."
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


def incomplete_protocols(matrix: ScoreMatrix, seed: int = SEED) -> dict[str, Incomplete]:
    """What is known of each protocol that has scores and lacks some; nothing for a complete table."""
    is_task = ~matrix.is_corpus
    return {
        protocol: _incomplete(matrix, protocol, seed)
        for protocol in PROTOCOLS
        if matrix.has(protocol) and not np.isfinite(matrix.oriented(protocol)[:, is_task]).all()
    }


@dataclass(frozen=True)
class Fitted:
    """A protocol's process with how far it can be trusted, and the factor by which its intervals are widened for it."""

    process: CellProcess
    trust: Trust
    widening: float


def fit_cells(matrix: ScoreMatrix, protocol: str, seed: int = SEED) -> Fitted | None:
    """The process of a protocol's measured cells; None where there are too few or too many."""
    scores = matrix.measured(protocol)[:, ~matrix.is_corpus]
    process = _fit(matrix, protocol, scores, seed)
    return None if process is None else Fitted(process, *_trust(matrix, protocol, scores, process, seed))


def _incomplete(matrix: ScoreMatrix, protocol: str, seed: int) -> Incomplete:
    is_task = ~matrix.is_corpus
    measured, planned = np.isfinite(matrix.measured(protocol)[:, is_task]), matrix.planned(protocol)[:, is_task]
    fitted, scores = fit_cells(matrix, protocol, seed), matrix.oriented(protocol)[:, is_task]
    by_scores = int((measured & ~np.isfinite(scores)).sum())
    # agreement must not learn of cells that scores chose, not even through a prediction
    process = None if fitted is None else fitted.process
    unchosen = _fit(matrix, protocol, scores, seed) if by_scores else process
    return Incomplete(
        cells=int(measured.sum()),
        missing=int((~measured).sum()),
        unplanned=int((~measured & ~planned).sum()),
        by_scores=by_scores,
        kendall_tau=_pooled(matrix, scores, unchosen),
        ranks=Missing(NO_PROCESS) if fitted is None else _standings(matrix, fitted, seed),
        trust=Missing(NO_PROCESS) if fitted is None else fitted.trust,
        predictions=[] if fitted is None else _predictions(matrix, fitted, planned),
        measured=measured,
    )


def _fit(matrix: ScoreMatrix, protocol: str, scores: np.ndarray, seed: int) -> CellProcess | None:
    """The process of a protocol's scores; for train before test, the direct scores are known beside them.

    None where there are too few or too many.
    """
    if np.isfinite(scores).any(axis=1).sum() < MINIMUM_MODELS:
        return None
    is_task, other = ~matrix.is_corpus, PROTOCOLS[0]
    direct = matrix.oriented(other)[:, is_task]
    if protocol == other:
        direct = np.full_like(direct, np.nan)
    facts = matrix.model_facts[["parameters_b", "tokens_b"]].to_numpy(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.log(np.where(facts > 0, facts, np.nan))
    stderr, lower = matrix.measured(protocol, "stderr")[:, is_task], matrix.direction[is_task] < 0
    metrics = matrix.selected.drop_duplicates("benchmark").set_index("benchmark")["metric"]
    names = metrics.reindex(matrix.task_names()).str.split(",").str[0]
    losses = Losses(lower, lower & names.isin(ERROR_RATES).to_numpy(dtype=bool))
    return fit_process(scores, stderr, direct, size, matrix.families, seed, losses)


def _pooled(matrix: ScoreMatrix, scores: np.ndarray, process: CellProcess | None) -> Pooled:
    names, signs = matrix.task_names(), pair_signs(scores)
    own = pooled_tau(signs)
    by_benchmark = {name: known(float(tau), NO_COMPARISON) for name, tau in zip(names, own.by_benchmark, strict=True)}
    models = int(np.isfinite(scores).any(axis=1).sum())
    mean, interval = known(own.mean, NO_COMPARISON), _interval(own.mean, own.standard_error, models)
    if process is None or isinstance(mean, Missing):
        reason = mean if isinstance(mean, Missing) else Missing(NO_PROCESS)
        nothing: dict[str, float | Missing] = {name: reason for name in names}
        return Pooled(mean, interval, own.comparisons, by_benchmark, reason, reason, nothing, reason)
    helped = assisted_tau(signs, expected_signs(process))
    return Pooled(
        mean=mean,
        interval=interval,
        comparisons=own.comparisons,
        by_benchmark=by_benchmark,
        assisted=known(helped.mean, NO_COMPARISON),
        assisted_interval=_interval(helped.mean, helped.standard_error, models),
        assisted_by_benchmark={
            name: known(float(tau), NO_COMPARISON) for name, tau in zip(names, helped.by_benchmark, strict=True)
        },
        differ=bool(abs(helped.mean - own.mean) > 2 * helped.difference_error)
        if np.isfinite(helped.difference_error)
        else Missing(NO_ERROR),
    )


def _interval(mean: float, error: float, models: int) -> Range:
    """mean ± t standard errors within [-1, 1], with one degree of freedom less than models: a jackknife over models."""
    if models < JACKKNIFED or not np.isfinite(mean) or not error > 0:
        return Missing(NO_ERROR)
    reach = stats.t.ppf(0.975, models - 1) * error
    return Interval(float(max(-1.0, mean - reach)), float(min(1.0, mean + reach)))


# ---- how far predictions can be trusted ------------------------------------------------------------------------------


def _trust(
    matrix: ScoreMatrix, protocol: str, scores: np.ndarray, process: CellProcess, seed: int
) -> tuple[Trust, float]:
    """How well known cells were predicted, and the factor by which intervals are widened for it.

    By the audit's cells, predicted without any of them, where there are at least 19; else each known cell is predicted
    from the others, which cannot show what only the cells that were left out have in common.
    """
    audited = _audited(matrix, protocol) & np.isfinite(scores)
    source, residuals = "left out", process.residuals()
    if audited.sum() >= LEAST_CHECKED:
        without = _fit(matrix, protocol, np.where(audited, np.nan, scores), seed)
        if without is not None:
            hidden = replace(without, scores=np.where(audited, scores, np.nan))
            source, residuals = AUDIT, hidden.residuals()
    residuals = residuals[np.isfinite(residuals)]
    widening = widening_of(residuals)
    hardly = _hardly_measured(matrix, np.isfinite(scores))
    coverage = float(np.mean(np.abs(residuals) <= NORMAL_95)) if len(residuals) else float("nan")
    factor = known(widening, FEW_RESIDUALS)
    found = Trust(source, len(residuals), known(coverage, FEW_RESIDUALS), factor, hardly)
    return found, widening if np.isfinite(widening) else 1.0


def _audited(matrix: ScoreMatrix, protocol: str) -> np.ndarray:
    """(models, benchmarks) cells that the plan drew to check predictions."""
    names = matrix.task_names()
    if matrix.plan is None or protocol == PROTOCOLS[0]:
        return np.zeros((len(matrix.models), len(names)), dtype=bool)
    drawn = {pair for pair, cell in matrix.plan.items() if cell.reason == AUDIT}
    return np.array([[(model, name) in drawn for name in names] for model in matrix.models])


def _hardly_measured(matrix: ScoreMatrix, measured: np.ndarray) -> list[str]:
    """Families with fewer than 3 measured cells per model, in order of first appearance."""
    families, number = matrix.families, measured.sum(axis=1)
    limit = min(HARDLY, measured.shape[1])
    names = dict.fromkeys(name for name in families if isinstance(name, str))
    return [name for name in names if number[families == name].mean() < limit]


# ---- ranks and predictions -------------------------------------------------------------------------------------------


def drawn_tables(fitted: Fitted, seed: int = SEED, draws: int = DRAWS) -> np.ndarray:
    """(draws, models, benchmarks) tables with the missing scores drawn, their intervals widened."""
    process = fitted.process
    fewer = max(100, min(draws, DRAWS * DRAWN_CELLS // process.scores.size))
    return process.draws(fewer, np.random.default_rng(seed), fitted.widening)


def _standings(matrix: ScoreMatrix, fitted: Fitted, seed: int) -> dict[str, Standing]:
    """Ranks over all benchmarks, missing scores drawn from the process; a model without any score has none."""
    scored = np.flatnonzero(fitted.process.measured.any(axis=1))
    tables = drawn_tables(fitted, seed)[:, scored]
    rank = average_ranks(mean_standing(tables).mean(axis=0))
    low, high = np.quantile(rank_draws(tables), [0.025, 0.975], axis=0)
    nowhere = Missing("The model has no score.")
    found = dict.fromkeys(matrix.models, Standing(nowhere, nowhere))
    for place, row in enumerate(scored):
        bounds = Interval(float(low[place]), float(high[place]))
        found[matrix.models[row]] = Standing(float(rank[place]), bounds)
    return found


def _predictions(matrix: ScoreMatrix, fitted: Fitted, planned: np.ndarray) -> list[Prediction]:
    """Every cell that was not measured, of models and benchmarks with a score; in the metric's own direction."""
    direction, names, process = matrix.direction[~matrix.is_corpus], matrix.task_names(), fitted.process
    value, low, high = (part * direction for part in process.predict(fitted.widening))
    hidden = ~process.measured & process.measured.any(axis=1, keepdims=True) & process.measured.any(axis=0)
    return [
        Prediction(
            matrix.models[i],
            names[j],
            bool(planned[i, j]),
            float(value[i, j]),
            Interval(float(min(low[i, j], high[i, j])), float(max(low[i, j], high[i, j]))),
        )
        for i, j in zip(*np.nonzero(hidden), strict=True)
    ]
