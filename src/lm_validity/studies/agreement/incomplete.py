"""A table with missing cells: what can be said despite them, and how far predictions can be trusted.

Taus are never those of a filled table. Predictions stand apart from results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import stats

from lm_validity.config.load import AUDIT
from lm_validity.pages import svg
from lm_validity.pages.page import Finding, Section
from lm_validity.results.put import Column, Ends, Row, Rows, ends_of
from lm_validity.results.sections import Says, SectionOf, TableOf
from lm_validity.statistics import Interval
from lm_validity.studies.agreement.data import BY_CHANCE, JACKKNIFED, Data
from lm_validity.studies.agreement.score_matrix import ERROR_RATES, ScoreMatrix, family_members
from lm_validity.studies.agreement.similar import NO_COMPARISON
from lm_validity.studies.agreement.statistics import sparse
from lm_validity.studies.agreement.statistics.ranking import average_ranks, finite_mean, pair_signs
from lm_validity.studies.agreement.values import Range, Value
from lm_validity.tables.schema import DIRECT
from lm_validity.words import (
    UNDER,
    Missing,
    Reason,
    ReasonCode,
    count,
    decimal,
    known,
    listing,
    number,
    percent,
    with_interval,
)

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
GAPS = {
    "": "",
    "by value": "Scores are not missing by chance: by their other scores, the models that lack them are not like the "
    "others.",
    "not seen": "Whether scores are missing by chance cannot be seen: too few are there.",
}
NOWHERE = "The model has no score."
LEAST_CHECKED = 19  # cells that a 95% quantile takes
LEAST_COVERAGE = 0.9  # of predictions, below which a note warns
NONE_LOST = Reason("No cell that was to be there is missing.", ReasonCode.NONE)
UNSEEN = Reason("The models' other scores do not tell how high the missing ones would be.", ReasonCode.TOO_FEW)
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


# ----------------------------------------------------------------------------------------------------------------------
# The numbers.


def put_incomplete(rows: Rows, data: Data) -> dict[str, Trust | None]:
    """Of each protocol that has scores and lacks some, as rows: how many cells are measured and missing, of these not
    planned, of the measured ones chosen by earlier scores; pooled agreement; ranks and predictions with intervals.

    Cells that earlier scores chose are in ranks and predictions, and in no agreement. Returns how far the predictions
    of each protocol can be trusted, None where there are none.
    """
    matrix, trusted = data.matrix, dict[str, Trust | None]()
    for p in data.incomplete:
        at, scores, planned = rows.of(protocol=p), data.scores[p], matrix.planned(p)[:, ~matrix.is_corpus]
        measured = np.isfinite(matrix.measured(p)[:, ~matrix.is_corpus])
        fitted, by_scores = fit_cells(matrix, p), int((measured & ~np.isfinite(scores)).sum())
        at.put("cells", int(measured.sum()), "cells")
        at.put("cells_missing", int((~measured).sum()), "cells")
        at.put("cells_unplanned", int((~measured & ~planned).sum()), "cells")
        at.put("cells_by_scores", by_scores, "cells")
        lost, standing = int(data.lost[p].sum()), data.standing_of_missing[p]
        interval = {"models": (standing.interval.low, standing.interval.high)}
        why = NONE_LOST if not lost else UNSEEN
        at.put("standing_of_missing", standing.value, "sd", interval, counted=("missing_cells", lost), why=why)
        # agreement must not learn of cells that scores chose, not even through a prediction
        process = None if fitted is None else fitted.process
        _put_pooled(at, scores, _fit(matrix, p, scores) if by_scores else process)
        trusted[p] = None if fitted is None else fitted.trust
        if fitted is None:
            lacks = Missing(NO_PROCESS)
            at.put("rank_predicted", lacks, "rank", {"missing_cells": lacks})
        else:
            _put_ranks(at, matrix, fitted)
            counted = ("cells", fitted.trust.cells)
            at.put("predictions_coverage", fitted.trust.coverage, "share", counted=counted)
            _put_predictions(at, matrix, fitted, planned)
    return trusted


def _put_pooled(at: Rows, scores: np.ndarray, process: sparse.CellProcess | None) -> None:
    """Agreement of `scores` pooled over pairs of models, and assisted by the predictions of a `process` where there is
    one."""
    signs, models = pair_signs(scores), int(np.isfinite(scores).any(axis=1).sum())
    measured = sparse.pooled_tau(signs)
    counted, mean = ("comparisons", measured.comparisons), known(measured.mean, NO_COMPARISON)
    interval = _jackknifed(measured.mean, measured.standard_error, models)
    at.put("tau_pooled", mean, "tau", {"models": interval}, counted=counted)
    lacks = mean if isinstance(mean, Missing) else Missing(NO_PROCESS)
    assisted: Value = lacks
    over: Ends = lacks
    if process is not None and not isinstance(mean, Missing):
        helped = sparse.pooled_tau(signs, sparse.expected_signs(process))
        assisted = known(helped.mean, NO_COMPARISON)
        over = _jackknifed(helped.mean, helped.standard_error, models)
    at.put("tau_assisted", assisted, "tau", {"models": over}, counted=counted)


def _jackknifed(mean: float, error: float, models: int) -> Range:
    """mean ± t standard errors within [-1, 1], with one degree of freedom less than models: a jackknife over models."""
    if models < JACKKNIFED or not np.isfinite(mean) or not error > 0:
        return Missing(NO_ERROR)
    reach = stats.t.ppf(0.975, models - 1) * error
    return Interval(float(max(-1.0, mean - reach)), float(min(1.0, mean + reach)))


def _put_ranks(at: Rows, matrix: ScoreMatrix, fitted: Fitted) -> None:
    """By model the rank by its mean standardised score over all benchmarks, missing scores drawn from the process, and
    the 95% interval for these; a model without any score has none."""
    scored = np.flatnonzero(fitted.process.measured.any(axis=1))
    tables = drawn_tables(fitted)[:, scored]
    ranks = np.full((3, len(matrix.models)), np.nan)
    ranks[0, scored] = average_ranks(sparse.mean_standing(tables).mean(axis=0))
    ranks[1:, scored] = np.quantile(sparse.rank_draws(tables), [0.025, 0.975], axis=0)
    for model, rank, low, high in zip(matrix.models, *ranks.tolist(), strict=True):
        at.put("rank_predicted", rank, "rank", {"missing_cells": (low, high)}, subject=model, why=NOWHERE)


def _put_predictions(at: Rows, matrix: ScoreMatrix, fitted: Fitted, planned: np.ndarray) -> None:
    """Every cell that was not measured, of models and benchmarks with a score; in the metric's own units and
    direction."""
    direction, names, process = matrix.direction[~matrix.is_corpus], matrix.task_names(), fitted.process
    value, *ends = (part * direction for part in process.predict(fitted.widening))
    hidden = ~process.measured & process.measured.any(axis=1, keepdims=True) & process.measured.any(axis=0)
    for i, j in zip(*np.nonzero(hidden), strict=True):
        low, high = sorted(float(end[i, j]) for end in ends)
        place = {"subject": matrix.models[i], "other": names[j], "planned": "yes" if planned[i, j] else "no"}
        at.put("score_predicted", float(value[i, j]), "score", {"missing_cells": (low, high)}, **place)


# ----------------------------------------------------------------------------------------------------------------------
# How cells are predicted, and how far that can be trusted.


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


def drawn_tables(fitted: Fitted, draws: int = DRAWS) -> np.ndarray:
    """(draws, models, benchmarks) tables with the missing scores drawn, their intervals widened."""
    process = fitted.process
    fewer = max(100, min(draws, DRAWS * DRAWN_CELLS // process.scores.size))
    return process.draws(fewer, np.random.default_rng(SEED), fitted.widening)


# ----------------------------------------------------------------------------------------------------------------------
# What the page shows of the rows.

UNDERS = {"protocol": {p: words.capitalize() for p, words in UNDER.items()}}
SECTION = SectionOf(
    "Despite missing cells",
    Says("tau_pooled", "{protocol}, pooled tau is {value} ({interval}).", by=UNDERS),
    explanation="Pooled agreement counts every comparison of two models on two benchmarks once. It is the share of "
    "comparisons that agree minus the share that disagree, so a pair of benchmarks with few models in common gets "
    "little weight. The assisted estimate adds a statistical model's predictions for comparisons that were not "
    "measured. It is then corrected by the model's errors on measured comparisons. Neither estimate fills missing "
    "cells. Models are ranked by their mean standardised score over all benchmarks, averaged over many draws of "
    "the missing scores.",
    hint="pooled agreement, ranks and predictions",
)


class Despite(NamedTuple):
    """What the page says despite missing cells."""

    section: Section | None = None
    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()


def despite_missing_cells(rows: Rows, data: Data, trusted: Mapping[str, Trust | None]) -> Despite:
    """Of each protocol that lacks cells: ranks with intervals, and predictions in a table of their own. Findings only
    where so many cells are missing that headlines are pooled. `trusted`: how far predictions can be."""
    if not data.incomplete:
        return Despite()
    labels = dict(zip(data.matrix.models, data.matrix.labels, strict=True))
    shown = Rows(rows.study, (row._replace(subject=labels.get(row.subject or "", row.subject)) for row in rows))
    tables, notes, findings = [], list[str](), list[Finding]()
    for p in data.incomplete:
        title, place = svg.NAMES[p].capitalize(), {"protocol": p}
        notes += _trust_notes(svg.NAMES[p].capitalize(), trusted[p])
        if np.isfinite(rows.value("tau_pooled", **place)) and data.lacks_many:
            findings.append(_finding(rows, data, p))
        for quantity, index, form, words, caption in (
            ("rank_predicted", {"subject": "model"}, ".1f", "ranks despite missing cells", "95% intervals over the "
             "values that missing cells may have had, for these benchmarks and items."),
            ("score_predicted", {"subject": "model", "other": "benchmark", "planned": "planned"}, ".3f",
             "predicted scores of cells that were not measured", "Predictions, not results. Only the assisted "
             "estimates and the ranks use the same model."),
        ):  # fmt: skip
            if any(row.value is not None for row in rows.all(quantity, **place)):
                columns = {
                    "value": Column(quantity, quantity.split("_")[0], form),
                    "low": Column(quantity, "from", form, "low"),
                    "high": Column(quantity, "to", form, "high"),
                }
                name, order = f"{quantity}_{p}", "value" if quantity == "rank_predicted" else ""
                table = TableOf(name, index, columns, f"{title}: {words}", caption, place, order, folded=True)
                tables.append(table.made(shown))
    return Despite(replace(SECTION.drawn(rows), tables=tables, notes=notes), findings, notes)


def _told(row: Row | None) -> str:
    """A tau with its interval."""
    return "unknown" if row is None else with_interval(row.value, ends_of(row))


def _finding(rows: Rows, data: Data, protocol: str) -> Finding:
    """Pooled agreement, alone and assisted, and how many cells it rests on."""
    cells, missing, unplanned, by_scores = (
        int(rows.value(name, protocol=protocol))
        for name in ("cells", "cells_missing", "cells_unplanned", "cells_by_scores")
    )
    pooled, assisted = (rows.row(name, protocol=protocol) for name in ("tau_pooled", "tau_assisted"))
    assert pooled is not None and assisted is not None
    scored, models = data.models(protocol), len(data.matrix.models)
    on = "" if scored == models else f" ({scored} of {count(models, 'model')})"
    sentence = (
        f"{UNDER[protocol].capitalize()}, {cells:,} of {cells + missing:,} cells were measured{on}. "
        f"Pooled over pairs of models{BY_CHANCE if missing > unplanned else ''}, tau is {_told(pooled)}"
    )
    if assisted.value is not None:
        sentence += f". Assisted by predictions it is {_told(assisted)}"
    basis = [
        f"{unplanned:,} cells are not planned." if unplanned else "",
        f"{count(by_scores, 'measured cell')} chosen by earlier scores are left out." if by_scores else "",
        f"{pooled.n or 0:,} comparisons.",
        f"There is no interval for other models. {pooled.reason}"
        if pooled.low is None
        else "Intervals are for other models on these benchmarks.",
        GAPS[data.gaps(protocol)],
    ]
    return Finding(f"{sentence}.", " ".join(filter(None, basis)))


def _trust_notes(label: str, trust: Trust | None) -> list[str]:
    """How often known cells lie inside their intervals, and warnings where that is too seldom."""
    if trust is None:
        return [f"{label}: no predictions. {NO_PROCESS}"]
    cells, audited, hardly = trust.cells, trust.source == AUDIT, trust.hardly_measured
    coverage, widening = number(trust.coverage), number(trust.widening)
    what = f"{count(cells, 'random cell')} of the audit"
    if not audited:
        what = f"{count(cells, 'measured cell')}, each predicted from the others"
    notes = [f"{label}: of {what}, {percent(coverage)} lie inside their 95% interval."]
    if widening > 1:
        notes[0] += f" All intervals were made {decimal(widening)} times as wide for this reason."
    if not audited:
        notes[0] += (
            " The cells that are hard to predict may all be unmeasured. Only an audit of random unmeasured cells can "
            "show this (`lm-validity plan --audit 40`)."
        )
    if coverage < LEAST_COVERAGE:
        notes.append(f"{label}: fewer than 90% lie inside. The predictions are less certain than their intervals say.")
    if hardly:
        notes.append(
            f"{label}: fewer than 3 measured cells per model in {listing(hardly)}. Predictions for these families are "
            "based on other families, so their intervals may be too narrow."
        )
    return notes
