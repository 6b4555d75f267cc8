"""A table with missing cells: what can be said despite them, and how far predictions can be trusted.

Taus are never those of a filled table. Predictions stand apart from results.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from lm_validity import words
from lm_validity.config.load import AUDIT
from lm_validity.pages import svg
from lm_validity.pages.page import Finding, Section
from lm_validity.results.put import Column, Row, Rows, ends_of
from lm_validity.results.sections import Says, SectionOf, TableOf
from lm_validity.statistics import NORMAL_95, Interval
from lm_validity.studies.agreement import data as base
from lm_validity.studies.agreement.data import Data, Range, Value
from lm_validity.studies.agreement.score_matrix import ERROR_RATES, LIKE_SIZE, ScoreMatrix, family_members, size_ratios
from lm_validity.studies.agreement.statistics import ranking, resampling, sparse
from lm_validity.studies.agreement.statistics.ranking import average_ranks, finite_mean, pair_signs
from lm_validity.studies.agreement.statistics.sparse import pooled_left_out
from lm_validity.studies.agreement.tau import LEAST_PAIRS
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import Missing, Reason, ReasonCode, known, too_few

DRAWS = 400
DRAWN_CELLS = 20_000  # that are drawn so often; of larger tables fewer draws are kept in memory
MINIMUM_MODELS = 3  # with a score; fewer leave nothing to predict from
HARDLY = 3  # measured cells per model of a family: with fewer, its predictions are those of other families
NO_PROCESS = (
    f"There are fewer than {sparse.LEAST_CELLS} known cells or more than {sparse.MOST_CELLS:,}, or fewer than "
    f"{MINIMUM_MODELS} models or more than {sparse.MOST_MODELS}."
)
NO_ERROR = too_few(
    f"Fewer than {base.JACKKNIFED} models, or too few comparisons without one of them, or all of them agree."
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
UNSEEN = too_few("The models' other scores do not tell how high the missing ones would be.")
FEW_RESIDUALS = too_few(f"Fewer than {LEAST_CHECKED} cells can be checked.")


@dataclass(frozen=True)
class Fitted:
    """A protocol's process, and how far predictions can be trusted.

    `widening`: factor of all intervals. `source`: `audit`, random cells that were predicted without any of them, where
    there are at least 19; else `left out`: each known cell is predicted from the others, which cannot show what only
    the cells that were left out have in common. `coverage`: share of `cells` inside their 95% interval before it is
    widened; `hardly_measured`: families with fewer than 3 measured cells per model, in order of first appearance.
    """

    process: sparse.CellProcess
    widening: float
    source: str
    cells: int
    coverage: Value
    hardly_measured: list[str]


# ----------------------------------------------------------------------------------------------------------------------
# The numbers.


def put_incomplete(rows: Rows, data: Data) -> dict[str, Fitted | None]:
    """Of each protocol that has scores and lacks some, as rows: how many cells are measured and missing, of these not
    planned, of the measured ones chosen by earlier scores; pooled agreement; ranks and predictions with intervals.

    Cells that earlier scores chose are in ranks and predictions, and in no agreement. Returns how far the predictions
    of each protocol can be trusted, None where there are none.
    """
    matrix, trusted = data.matrix, dict[str, Fitted | None]()
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
        trusted[p] = fitted
        if fitted is None:
            lacks = Missing(NO_PROCESS)
            at.put("rank_predicted", lacks, "rank", {"missing_cells": lacks})
        else:
            _put_ranks(at, matrix, fitted)
            at.put("predictions_coverage", fitted.coverage, "share", counted=("cells", fitted.cells))
            _put_predictions(at, matrix, fitted, planned)
    return trusted


def _put_pooled(at: Rows, scores: np.ndarray, process: sparse.CellProcess | None) -> None:
    """Agreement of `scores` pooled over pairs of models, and assisted by the predictions of a `process` where there is
    one."""
    signs, models = pair_signs(scores), int(np.isfinite(scores).any(axis=1).sum())
    by_process = None if process is None else sparse.expected_signs(process)
    for quantity, expected in (("tau_pooled", np.zeros(1)), ("tau_assisted", by_process)):
        pooled = sparse.pooled_tau(signs, 0.0 if expected is None else expected)
        mean, error = known(pooled.mean, NO_COMPARISON), pooled.standard_error
        interval: Range = Missing(NO_ERROR)
        if models >= base.JACKKNIFED and words.is_known(mean) and error > 0:  # a jackknife over models
            reach = stats.t.ppf(0.975, models - 1) * error
            interval = Interval(float(max(-1.0, mean - reach)), float(min(1.0, mean + reach)))
        if expected is None and words.is_known(mean):
            mean = interval = Missing(NO_PROCESS)
        at.put(quantity, mean, "tau", {"models": interval}, counted=("comparisons", pooled.comparisons))


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
# Taus pooled over the same comparisons for both protocols, for a table with missing cells.


NO_COMPARISON = "No two models are known on two benchmarks."
FEW_MODELS = too_few(f"Fewer than {base.JACKKNIFED} models have comparisons whose cells are all known.")


def put_pooled(rows: Rows, data: Data) -> None:
    """Pooled taus of `all` models and of those of `like_size` as rows, over comparisons whose cells are known under
    every protocol that has scores, and their change; nothing for a complete table, or without common cells.

    A mean over pairs of benchmarks gives a pair with few models in common the weight of any other. With half of the
    published cells, that mean is off by .1 for models of like size (root mean square over 20 plans), the pooled tau by
    .012.
    """
    if not data.incomplete:
        return
    present = data.matrix.protocols
    scores = data.compared_scores if len(present) > 1 else data.scores
    signs = {p: ranking.pair_signs(scores[p]) for p in present}
    either = signs[present[0]]
    compared = either.known.sum(axis=1) >= 2  # two benchmarks, or the pair of models says nothing on agreement
    like = size_ratios(data.matrix.sizes()[0])[either.first, either.second] <= LIKE_SIZE[1]
    for name, pairs, least in (("all", compared, 1), ("like_size", compared & like, LEAST_PAIRS)):
        if pairs.sum() >= least:
            of_pairs = {p: ranking.PairSigns(*(part[pairs] for part in part_signs)) for p, part_signs in signs.items()}
            _put_pooled_in_both(rows.of(pairs=name), data, of_pairs)


def _put_pooled_in_both(at: Rows, data: Data, signs: dict[str, ranking.PairSigns]) -> None:
    """`signs`: by protocol, of the pairs of models that are compared, with the same cells known."""
    either, all_families = next(iter(signs.values())), data.matrix.families
    models = np.unique([either.first, either.second])
    place, cluster = np.zeros((2, len(all_families)), dtype=int)
    families = all_families[models]
    place[models], cluster[models] = np.arange(len(models)), resampling.cluster_numbers(families)
    sizes, benchmarks = np.bincount(cluster[models]), either.known.sum(axis=1)
    counted = "comparisons", round(float((benchmarks * (benchmarks - 1)).sum() / 2))
    lacks = FEW_MODELS if len(models) < base.JACKKNIFED else None
    no_families = lacks or base.no_clusters(families)
    by_model, by_family = ({p: pooled_left_out(part, units) for p, part in signs.items()} for units in (place, cluster))
    if len(signs) == len(PROTOCOLS):
        for taus_of in (by_model, by_family):
            taus_of["change"] = taus_of[TRAINED] - taus_of[DIRECT]
    for key, taus in by_model.items():
        scale = "change" if key == "change" else "tau"
        over_models = Missing(lacks) if lacks else _left_out_interval(taus, scale, None, base.LOST_MODEL)
        clustered = (
            Missing(no_families) if no_families else _left_out_interval(by_family[key], scale, sizes, base.LOST_CLUSTER)
        )
        intervals = {"models": over_models, "families": base.over_families(clustered, over_models, families)}
        intervals = data.sure(intervals, *(PROTOCOLS if key == "change" else [key]))
        name, protocol = ("tau_pooled_change", None) if key == "change" else ("tau_pooled_in_both", key)
        value, why = float(taus[0]), NO_COMPARISON
        at.put(name, value, "tau", intervals, counted=counted, why=why, protocol=protocol)


def _left_out_interval(left_out: np.ndarray, scale: str, sizes: np.ndarray | None, reason: str) -> Range:
    """Missing also where no model changes the figure: that is no certainty about other models."""
    interval = resampling.transformed_interval(left_out[0], left_out[1:], scale, sizes)
    return interval if interval.low < interval.high else Missing(reason)


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
    return Fitted(
        process,
        widening if np.isfinite(widening) else 1.0,
        source,
        len(residuals),
        known(finite_mean(np.abs(residuals) <= NORMAL_95), FEW_RESIDUALS),
        [name for name, rows in families.items() if measured[rows].mean() < limit],
    )


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
    losses = np.array([lower, lower & names.isin(ERROR_RATES).to_numpy(dtype=bool)])
    return sparse.fit_process(scores, stderr, direct, size, matrix.families, losses)


def drawn_tables(fitted: Fitted, draws: int = DRAWS) -> np.ndarray:
    """(draws, models, benchmarks) tables with the missing scores drawn, their intervals widened."""
    process = fitted.process
    fewer = max(100, min(draws, DRAWS * DRAWN_CELLS // process.scores.size))
    return process.draws(fewer, np.random.default_rng(sparse.SEED), fitted.widening)


# ----------------------------------------------------------------------------------------------------------------------
# What the page shows of the rows.

SECTION = SectionOf(
    "Despite missing cells",
    Says("tau_pooled", "{protocol}, pooled tau is {value} ({interval}).", by=base.UNDERS),
    explanation="Pooled agreement counts every comparison of two models on two benchmarks once. It is the share of "
    "comparisons that agree minus the share that disagree, so a pair of benchmarks with few models in common gets "
    "little weight. The assisted estimate adds a statistical model's predictions for comparisons that were not "
    "measured. It is then corrected by the model's errors on measured comparisons. Neither estimate fills missing "
    "cells. Models are ranked by their mean standardised score over all benchmarks, averaged over many draws of "
    "the missing scores.",
    hint="pooled agreement, ranks and predictions",
)


def despite_missing_cells(rows: Rows, data: Data, trusted: Mapping[str, Fitted | None]) -> list[Section]:
    """The fold of each protocol that lacks cells, if there is one: ranks with intervals, and predictions in a table of
    their own. `trusted`: how far predictions can be."""
    tables, notes, shown = [], list[str](), data.matrix.labelled(rows)
    for p in data.incomplete:
        title, place = svg.NAMES[p].capitalize(), {"protocol": p}
        notes += _trust_notes(title, trusted[p])
        for quantity, index, form, heading, caption in (
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
                table = TableOf(name, index, columns, f"{title}: {heading}", caption, place, order, folded=True)
                tables.append(table.made(shown))
    return [replace(SECTION.drawn(rows), tables=tables, notes=notes)] if data.incomplete else []


def _told(row: Row | None) -> str:
    """A tau with its interval."""
    return "unknown" if row is None else words.with_interval(row.value, ends_of(row))


def pooled_finding(rows: Rows, data: Data, protocol: str) -> Finding:
    """Pooled agreement, alone and assisted, and how many cells it rests on."""
    cells, missing, unplanned, by_scores = (
        int(rows.value(name, protocol=protocol))
        for name in ("cells", "cells_missing", "cells_unplanned", "cells_by_scores")
    )
    pooled, assisted = (rows.row(name, protocol=protocol) for name in ("tau_pooled", "tau_assisted"))
    assert pooled is not None and assisted is not None
    scored, models = data.models(protocol), len(data.matrix.models)
    on = "" if scored == models else f" ({scored} of {words.count(models, 'model')})"
    sentence = (
        f"{words.UNDER[protocol].capitalize()}, {cells:,} of {cells + missing:,} cells were measured{on}. "
        f"Pooled over pairs of models{base.BY_CHANCE if missing > unplanned else ''}, tau is {_told(pooled)}"
    )
    if assisted.value is not None:
        sentence += f". Assisted by predictions it is {_told(assisted)}"
    basis = [
        f"{unplanned:,} cells are not planned." if unplanned else "",
        f"{words.count(by_scores, 'measured cell')} chosen by earlier scores are left out." if by_scores else "",
        f"{pooled.n or 0:,} comparisons.",
        f"There is no interval for other models. {pooled.reason}"
        if pooled.low is None
        else "Intervals are for other models on these benchmarks.",
        GAPS[data.gaps(protocol)],
    ]
    return Finding(f"{sentence}.", " ".join(filter(None, basis)))


def _trust_notes(label: str, trust: Fitted | None) -> list[str]:
    """How often known cells lie inside their intervals, and warnings where that is too seldom."""
    if trust is None:
        return [f"{label}: no predictions. {NO_PROCESS}"]
    cells, audited, hardly = trust.cells, trust.source == AUDIT, trust.hardly_measured
    coverage, widening = words.number(trust.coverage), trust.widening
    what = f"{words.count(cells, 'random cell')} of the audit"
    if not audited:
        what = f"{words.count(cells, 'measured cell')}, each predicted from the others"
    notes = [f"{label}: of {what}, {words.percent(coverage)} lie inside their 95% interval."]
    if widening > 1:
        notes[0] += f" All intervals were made {words.decimal(widening)} times as wide for this reason."
    if not audited:
        notes[0] += (
            " The cells that are hard to predict may all be unmeasured. Only an audit of random unmeasured cells can "
            "show this (`lm-validity plan --audit 40`)."
        )
    if coverage < LEAST_COVERAGE:
        notes.append(f"{label}: fewer than 90% lie inside. The predictions are less certain than their intervals say.")
    if hardly:
        notes.append(
            f"{label}: fewer than 3 measured cells per model in {words.listing(hardly)}. Predictions for these "
            "families are based on other families, so their intervals may be too narrow."
        )
    return notes
