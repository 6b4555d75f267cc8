"""The models in order: over benchmarks like these, and on each benchmark over its items or errors, as rows.

A place is all benchmarks together (no subject), or one of them, under one protocol.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.results.put import Rows
from lm_validity.studies.agreement.score_matrix import ScoreMatrix
from lm_validity.studies.agreement.statistics.ranking import finite_mean
from lm_validity.studies.agreement.statistics.resampling import cluster_numbers
from lm_validity.studies.items import answers as of_items
from lm_validity.studies.items.statistics import FACTOR, LEVEL, holm_over_pairs, p_by_errors, paired_tests
from lm_validity.studies.models.order import LEAST_BENCHMARKS, Leads, leads_over_benchmarks, more_to_decide, order_of
from lm_validity.words import Missing, Reason, ReasonCode, count, known

MOST_PAIRED = 150  # models, the first of all, of whose pairs there are rows
NO_TEST = Missing(Reason("The models have neither common items nor standard errors.", ReasonCode.NO_ERRORS))
NO_ERROR = Missing(Reason("The score has no standard error.", ReasonCode.NO_ERRORS))
FEW = Missing(
    Reason(f"The model has fewer than {LEAST_BENCHMARKS} benchmarks in common with any other.", ReasonCode.TOO_FEW)
)
DECIDED = Reason("The models are told apart or score alike, or no one number of items says it.", ReasonCode.NONE)
UNKNOWN = Missing(Reason("The models sheet does not say.", ReasonCode.NONE))
Place = tuple[str | None, str]


class ModelOrder(NamedTuple):
    """The rows; the places, all benchmarks together (None) first; and notes."""

    rows: Rows
    places: list[Place]
    notes: tuple[str, ...]


class Scored(NamedTuple):
    """M models on a benchmark. scores, errors (M,), better upwards. items, runs: of each the rows of `mean_items` and
    the answers of its runs, None where there are none. better: -1 where a lower score is better."""

    benchmark: str
    models: list[str]
    scores: np.ndarray
    errors: np.ndarray
    items: list[pd.DataFrame | None]
    runs: list[pd.DataFrame | None]
    better: float
    in_points: bool


def model_order(matrix: ScoreMatrix, items: str | Path | None, copies: Collection[str] = ()) -> ModelOrder:
    """The models of a matrix in order, over all benchmarks and on each, under each protocol.

    items: a table of answers, by which models are compared item by item where the scores are means of these. copies:
    models that are not ranked. Benchmarks of assumed direction are not among all together. Raises InputError for a file
    that is no table of items.
    """
    rows, places, notes = Rows("models"), list[Place](), [*matrix.notes]
    raw = None if items is None else of_items.model_answers(items, matrix.selected)
    answers = {} if raw is None else dict(iter(of_items.mean_items(raw).groupby(of_items.CELL)))
    sampled = {} if raw is None else dict(iter(raw[raw["run"].notna()].groupby(of_items.CELL)))
    chosen = [i for i, model in enumerate(matrix.models) if model not in copies]
    everyone = [matrix.models[i] for i in chosen]
    for model, family, size in zip(everyone, matrix.families[chosen], matrix.sizes().parameters[chosen], strict=True):
        rows.put("family", family or UNKNOWN, "text", other=model)
        rows.put("parameters", float(size), "billions", other=model, why=UNKNOWN.reason)
    everywhere = ~matrix.is_corpus & ~matrix.assumed
    categories = matrix.benchmark_facts["category"].to_numpy(dtype=object)[everywhere]
    for protocol in matrix.protocols:
        scores = matrix.measured(protocol)[np.ix_(chosen, everywhere)]
        in_points = bool(matrix.fractions[everywhere].all())
        leads = leads_over_benchmarks(scores, cluster_numbers(categories), standardised=not in_points)
        if np.isfinite(leads.lead).any():
            has = np.isfinite(scores).astype(float)
            view = rows.of(subject=None, protocol=protocol)
            _put_order(view, everyone, leads, has @ has.T, "benchmarks", in_points=in_points)
            places.append((None, protocol))
    is_small = not places
    for protocol in matrix.protocols:
        shape = (len(matrix.benchmarks), len(everyone), len(everyone))
        lead, error = np.full(shape, np.nan), np.full(shape, np.nan)
        for index, benchmark in enumerate(matrix.benchmarks):
            values, errors = matrix.oriented(protocol)[chosen, index], matrix.stderr[protocol][chosen, index]
            present = np.flatnonzero(np.isfinite(values))
            if len(present) < 2:
                continue
            models, in_points = [everyone[i] for i in present], bool(matrix.fractions[index])
            of_models = [(model, benchmark, protocol) for model in models]
            scored = Scored(
                benchmark, models, values[present], errors[present],
                [answers.get(cell) for cell in of_models], [sampled.get(cell) for cell in of_models],
                float(matrix.direction[index]), in_points,
            )  # fmt: skip
            leads = _put_benchmark(rows.of(subject=benchmark, protocol=protocol), scored, notes, main=is_small)
            places.append((benchmark, protocol))
            if in_points and everywhere[index]:
                lead[index][np.ix_(present, present)] = leads.lead
                error[index][np.ix_(present, present)] = leads.error
        number = (np.isfinite(lead) & np.isfinite(error)).sum(axis=0)
        if is_small and (number > 1).any():  # of so few benchmarks nothing is said about others like them
            error = np.where(number > 1, np.sqrt(np.nansum(error**2 + 0 * lead, axis=0)), np.nan)
            endless = np.full(number.shape, np.inf)
            leads = Leads.tested(finite_mean(lead, axis=0), error / np.maximum(number, 1), endless)
            view = rows.of(subject=None, protocol=protocol)
            _put_order(view, everyone, leads, number, "items", in_points=True)
            places.insert(0, (None, protocol))
    return ModelOrder(rows, places, tuple(notes))


def _put_order(view: Rows, models: Sequence[str], leads: Leads, n: np.ndarray, over: str, *, in_points: bool) -> None:
    """Put the tiers and ranks of models over other benchmarks, or over other items of these, and the leads of all pairs
    of the first of them. n (M, M): the benchmarks that both have."""
    _put_tiers(view, models, leads, finite_mean(leads.lead, axis=1), over, main=True)
    _put_pairs(view, models, leads, n, "accuracy" if in_points else "sd", over, "benchmarks")


def _put_tiers(view: Rows, models: Sequence[str], leads: Leads, score: np.ndarray, over: str, *, main: bool) -> None:
    """Put what the order of the models says of each. score (M,): by which they are ranked, the highest first. main:
    with the tier of each."""
    order, tested, ranked = order_of(leads), int(np.isfinite(leads.p).sum()) // 2, np.isfinite(score)
    rank = stats.rankdata(np.where(ranked, -score, np.inf), method="min").astype(float)
    view.put("models", len(models), "models")
    best = int((order.low == 1).sum()) if tested else NO_TEST
    view.put("may_be_best", best, "models", counted=("models", len(models)))
    view.put("separated_pairs", int(order.ahead.sum()) if tested else NO_TEST, "pairs", counted=("pairs", tested))
    for i in np.argsort(rank, kind="stable"):
        ends = (min(float(order.low[i]), rank[i]), max(float(order.high[i]), rank[i])) if tested else NO_TEST
        view.put("model_rank", float(rank[i]) if ranked[i] else FEW, "rank", {over: ends}, other=models[i])
        if main:
            tier = float(order.tier[i]) if tested and ranked[i] else FEW if tested else NO_TEST
            view.put("tier", tier, "tier", other=models[i])


def _put_pairs(
    view: Rows, models: Sequence[str], leads: Leads, n: np.ndarray, unit: str, over: str, basis: str
) -> None:
    """Put the lead of each tested pair of models, of the one that is ahead, with p after Holm's adjustment over all
    pairs, and how many things more would decide, where its interval is `over` the things of its `basis`. n (M, M): how
    many of these a lead rests on. A pair on benchmarks has the interval that it has by itself."""
    adjusted, score = holm_over_pairs(leads.p), np.nan_to_num(finite_mean(leads.lead, axis=1), nan=-np.inf)
    first = np.argsort(-score, kind="stable")[:MOST_PAIRED]
    further = more_to_decide(leads, np.where(n > 0, n, np.nan)) if basis == over else np.full(n.shape, np.nan)
    reach = stats.t.isf(LEVEL / 2, leads.dof) * leads.error
    for position, i in enumerate(first):
        for j in first[position + 1 :]:
            if np.isfinite(leads.p[i, j]):
                ahead, behind = (i, j) if leads.lead[i, j] >= 0 else (j, i)
                value, pair = float(leads.lead[ahead, behind]), view.of(other=models[ahead], behind=models[behind])
                interval = {over: (value - float(reach[i, j]), value + float(reach[i, j]))}
                counted = (basis, int(n[i, j]))
                pair.put("lead", value, unit, interval if basis == "benchmarks" else None, counted=counted)
                pair.put("lead_p_adjusted", float(adjusted[i, j]), "probability")
                pair.put("more_to_decide", known(float(further[i, j]), DECIDED), over)


def _put_benchmark(view: Rows, scored: Scored, notes: list[str], *, main: bool) -> Leads:
    """Put the order of models on one benchmark, by tests of all pairs on common items, else by standard errors; add to
    the notes what tests do not cover. main: with the tiers of models and the leads of all pairs."""
    p, detectable = p_by_errors(scored.scores, scored.errors)
    matrix = of_items.answers_matrix(scored.items, scored.better * scored.scores)
    noises = [None if rows is None else of_items.noise_of_runs(rows, matrix.documents) for rows in scored.runs]
    *tests, items = paired_tests(scored.better * matrix.correct, matrix.subjects, noises)
    shared = items > 0
    p, detectable = np.where(shared, tests, [p, detectable])
    leads = Leads(scored.scores[:, None] - scored.scores, detectable / FACTOR, np.full(p.shape, np.inf), p)
    _put_tiers(view, scored.models, leads, scored.scores, "items", main=main)
    first, second = np.triu_indices(len(scored.models), 1)
    tested, paired = int(np.isfinite(p[first, second]).sum()), int(shared[first, second].sum())
    sizes = detectable[first, second][np.isfinite(detectable[first, second])]
    view.put("paired_pairs", paired, "pairs")
    gap = float(np.median(sizes)) if len(sizes) else NO_TEST
    view.put("smallest_detectable", gap, "score", counted=("pairs", tested))
    reach = float(stats.norm.isf(LEVEL / 2)) * scored.errors
    for model, score, error in zip(scored.models, scored.better * scored.scores, reach, strict=True):
        ends = (float(score - error), float(score + error)) if np.isfinite(error) else NO_ERROR
        view.put("score", float(score), "score", {"items": ends}, other=model)
    if paired and (unlike := of_items.unlike_items(scored.items)):
        notes.append(
            f"{scored.benchmark}: models did not answer the same items ({unlike} to all). Scores are of all that a "
            "model answered, tests of those that both models answered."
        )
    if main:
        _put_pairs(view, scored.models, leads, items, "accuracy" if scored.in_points else "score", "items", "items")
        if 0 < tested < len(first):
            notes.append(f"{scored.benchmark}: {count(len(first) - tested, 'pair')} of models without a test.")
        if tested > paired:
            notes.append(
                f"{scored.benchmark}: {count(tested - paired, 'pair')} of models compared by standard errors, since "
                "there are no answers item by item; this is conservative."
            )
    return leads
