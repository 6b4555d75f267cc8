"""The readiness report: does a group of models lead at equal compute, and is the lead gone once all are prepared?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.special import logit

from lm_validity import words
from lm_validity.config.rows import Group, parse_group
from lm_validity.config.sections import Agreement
from lm_validity.errors import InputError
from lm_validity.pages import svg
from lm_validity.pages.page import Answer, Finding, Lede, Page, Panel
from lm_validity.results.put import Column, Ends, Row, Rows, ends_of, reason_of
from lm_validity.results.sections import POINTS, Dots, Points, Says, SectionOf, Series, TableOf, write_rows
from lm_validity.statistics import LEVEL, holm
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, read_score_matrix
from lm_validity.studies.agreement.statistics.ranking import finite_mean
from lm_validity.studies.agreement.statistics.resampling import cluster_numbers
from lm_validity.tables.counted import Sources
from lm_validity.tables.items import NO_CHANCE
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED, group_members
from lm_validity.words import Missing, Reason, ReasonCode, count, decimal, known, too_few

LEAST_FAMILIES = 6  # with members in the group or outside; 6 have 32 distinct sets of signs
LEAST_FAMILIES_A_SIDE = 3  # with members in the group, and with members outside
LEAST_BEYOND = 3  # models on either side of a knot: of fewer, the segment's slope is noise
NOT_ONE_FAMILY = Missing(Reason("The group is not one family.", ReasonCode.NONE))
LEAST_SHARE = 0.005  # of the way from chance to 1: shares nearer to either end count as this far, on the logit scale
MOST_DRAWN = 12  # benchmarks of the picture
NO_LEAD = too_few("The group cannot be told from compute here, or no score is known.")
NO_ERROR = too_few("There are too few models or families for a standard error.")
FEW_FAMILIES = too_few(
    f"An interval needs at least {LEAST_FAMILIES} families of models, {LEAST_FAMILIES_A_SIDE} with members in the "
    f"group and {LEAST_FAMILIES_A_SIDE} with members outside."
)
NO_SPREAD = Reason(
    "The models do not differ but for the group and compute: there is no spread.", ReasonCode.NO_INTERVAL
)


# ----------------------------------------------------------------------------------------------------------------------
# The lead of a group of models at equal pretraining compute, and what preparation for the test changes about it.
#
# score = lead * group + f(log10 compute) + error, f piecewise linear with knots (Dominguez-Olmedo, Dorner and Hardt
# 2024, arXiv 2407.07890, which asks whether newer models lead only because they were prepared for the test). The lead
# is regressed direct, after preparation, and on the difference of both scores: the change, after minus direct.
#
# Models of one family are no independent evidence, so errors are by family. The standard error is that of the
# jackknife that leaves out each family in turn (CR3), which families of unequal size do not deceive as they deceive
# CR1 (MacKinnon, Nielsen and Webb 2023, Journal of Applied Econometrics 38:671). p and interval are the wider of two
# t tests: of that error, with a degree of freedom for each family but one; and of CR2 with Bell and McCaffrey's
# degrees of freedom (2002, Survey Methodology 28:169), which are few where few families are in the group. Both are
# symmetric about the estimate: the interval holds exactly the values that p does not refuse at 5%.


class Effect(NamedTuple):
    """A group's coefficient. `standard_error`: CR3, the jackknife over families, NaN where the coefficient rests on one
    family; `p` (two-sided), `low`, `high` (95%): NaN where there are too few families or no error."""

    value: float
    standard_error: float
    p: float
    low: float
    high: float
    models: int


def knots_within(compute: np.ndarray, knots: Sequence[float]) -> tuple[float, ...]:
    """The knots with at least `LEAST_BEYOND` models of known compute (models,) on either side, in rising order."""
    return tuple(knot for knot in sorted(knots) if min((compute < knot).sum(), (compute > knot).sum()) >= LEAST_BEYOND)


def compute_terms(compute: np.ndarray, knots: Sequence[float]) -> np.ndarray:
    """(models, 2 + knots) a constant, and log10 of compute as one column a segment: a line that bends at each knot.

    The knots are those of `knots_within`; without any the line is straight. NaN where compute is unknown.
    """
    log = np.log10(compute)
    bends = np.log10(knots_within(compute, knots))
    middle = log[np.isfinite(log)].mean() if np.isfinite(log).any() else 0.0  # so that columns are of one size
    return np.column_stack([np.ones_like(log), log - middle, *(np.maximum(log - bend, 0) for bend in bends)])


def group_effect(scores: np.ndarray, group: np.ndarray, terms: np.ndarray, families: np.ndarray) -> Effect:
    """The coefficient of `group` in a regression of `scores`, with the models' compute held equal.

    scores: (models,) or, for what several benchmarks have in common, (models, benchmarks): each benchmark then has its
    own `terms`, and the group one coefficient (the mean of theirs where no score is missing). group: (models,) 0 or 1.
    terms: (models, terms), as `compute_terms`. families: (models,) whole numbers, on which errors are clustered. Rows
    with a NaN take no part.

    NaN where the group is a combination of the terms, as where all models are in it.
    """
    columns = np.reshape(np.asarray(scores, dtype=float), (len(scores), -1))
    is_known = _known(scores, terms)
    # the rows of all benchmarks one below another; of scores and group what the terms leave (Frisch, Waugh and Lovell)
    benchmark, model = np.nonzero(is_known.T)
    width = terms.shape[1]
    regressed = np.zeros((len(model), width * columns.shape[1]))
    for j in range(columns.shape[1]):
        rows = benchmark == j
        regressed[rows, j * width : (j + 1) * width] = terms[model[rows]]
    basis = np.linalg.svd(regressed, full_matrices=False)
    within_basis = basis.U[:, 1e-10 * (basis.S.max(initial=0) or 1) < basis.S]
    side = group[model].astype(float)
    y, d = (values - within_basis @ (within_basis.T @ values) for values in (columns[model, benchmark], side))
    if d @ d <= 1e-10 * max(side @ side, 1):
        return Effect(np.nan, np.nan, np.nan, np.nan, np.nan, 0)
    value, models = float(d @ y / (d @ d)), int(is_known.any(axis=1).sum())
    spanned = np.column_stack([within_basis, d / np.sqrt(d @ d)])
    tests = _by_family(y - value * d, d / (d @ d), spanned, families[model])
    error, reach, p = float(tests[0, 0]) if len(tests) else np.nan, np.nan, np.nan
    if error > 1e-12 and enough_families(group, families, scores, terms):
        reach = max(stats.t.ppf(1 - LEVEL / 2, freedom) * of_test for of_test, freedom in tests)
        p = max(2 * stats.t.sf(abs(value) / of_test, freedom) for of_test, freedom in tests)
    return Effect(value, error, float(p), float(value - reach), float(value + reach), models)


def _by_family(residual: np.ndarray, weights: np.ndarray, basis: np.ndarray, families: np.ndarray) -> np.ndarray:
    """(tests, 2) standard error and degrees of freedom of both tests of the coefficient, first the jackknife's.

    residual, weights: (rows,) of the whole regression, and those whose sum over the scores is the coefficient; basis:
    (rows, 1 + terms) orthonormal, of terms and group; families: (rows,). A family's residuals e_g are turned into
    (I - H_gg)^-power e_g, H the projection on terms and group: with power 1 the sum is what leaving the family out
    changes (CR3), with 1/2 it is CR2's. A direction that the rows of one family alone decide has no residual; where the
    coefficient rests on one, there is none without that family, and no test.
    """
    numbers = np.unique(families)
    left_out, halves, squares = (np.zeros(len(numbers)) for _ in range(3))
    projected = np.zeros((len(numbers), basis.shape[1]))
    for index, family in enumerate(numbers):
        rows = families == family
        eigenvalues, turned = np.linalg.eigh(np.eye(rows.sum()) - basis[rows] @ basis[rows].T)
        free = eigenvalues > 1e-10
        own_weights, errors = turned.T @ weights[rows], turned.T @ residual[rows]
        if np.abs(own_weights[~free]).max(initial=0) > 1e-8 * np.abs(weights).max():
            return np.empty((0, 2))
        left_out[index] = own_weights[free] @ (errors[free] / eigenvalues[free])
        half = turned[:, free] @ (own_weights[free] / np.sqrt(eigenvalues[free]))
        halves[index], projected[index], squares[index] = half @ residual[rows], basis[rows].T @ half, half @ half
    number = len(numbers)
    if number < 2:
        return np.empty((0, 2))
    jackknife = float(np.sqrt((number - 1) / number * left_out @ left_out))
    spread = np.diag(squares) - projected @ projected.T  # of the families' parts of CR2, with independent errors
    freedom = float(np.trace(spread) ** 2 / np.square(spread).sum())
    return np.array([[jackknife, number - 1], [np.sqrt(halves @ halves), freedom]])


def _known(scores: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """(models, benchmarks) which scores take part."""
    return np.asarray(np.isfinite(np.reshape(scores, (len(scores), -1))) & np.isfinite(terms).all(axis=1)[:, None])


def enough_families(group: np.ndarray, families: np.ndarray, scores: np.ndarray, terms: np.ndarray) -> bool:
    """Whether there are families enough for an interval, among the models that `group_effect` regresses."""
    is_known = _known(scores, terms).any(axis=1)
    inside, outside = (len(set(families[is_known & (group == side)])) for side in (1, 0))
    return len(set(families[is_known])) >= LEAST_FAMILIES and min(inside, outside) >= LEAST_FAMILIES_A_SIDE


def outside_overlap(compute: np.ndarray, others: np.ndarray) -> int:
    """How many models have a compute beyond the range of the others', (models,) each, NaN where unknown.

    There the lead rests on the line through the other side's models, not on models of like compute.
    """
    compute, others = compute[np.isfinite(compute)], others[np.isfinite(others)]
    return int((~((compute >= others.min()) & (compute <= others.max()))).sum()) if len(others) else len(compute)


# ----------------------------------------------------------------------------------------------------------------------
# The numbers.


@dataclass(frozen=True)
class _Compared:
    """The models of known compute and side: `side` 1 in the group, `families` numbers, `terms` of the line of scores
    against compute."""

    side: np.ndarray
    families: np.ndarray
    terms: np.ndarray

    def put(self, at: Rows, quantity: str, unit: str, scores: np.ndarray, models: int) -> Effect:
        """The group's lead in `scores`, (models,) or (models, benchmarks) with NaN where unknown, and its interval over
        families. Missing with the first reason that there is: no lead, no standard error, too few families, no
        spread."""
        effect = group_effect(scores, self.side, self.terms, self.families)
        enough = enough_families(self.side, self.families, scores, self.terms)
        value, ends = known(effect.value, NO_LEAD), known(effect.low, NO_SPREAD if enough else FEW_FAMILIES)
        lacks = known(effect.standard_error, NO_ERROR)
        interval: Ends = (effect.low, effect.high)
        for reason in (ends, lacks, value):
            interval = reason if isinstance(reason, Missing) else interval
        at.put(quantity, value, unit, {"families": interval}, counted=("models", models))
        return effect


def readiness_rows(matrix: ScoreMatrix, groups: Sequence[Group], sheet: str | Path, knots: Sequence[float]) -> Rows:
    """The leads of the groups at equal compute under both protocols, and what changes. `sheet`: of the models."""
    rows, compute = Rows("readiness"), matrix.sizes().compute
    rows.put("models", len(matrix.models), "models")
    for model, operations in zip(matrix.models, compute, strict=True):
        if np.isfinite(operations):
            rows.put("compute", operations, "operations", subject=model)
    for group in groups:
        _put_group(rows.of(group=group.text), matrix, group, sheet, knots)
    return rows


def _put_group(at: Rows, matrix: ScoreMatrix, group: Group, sheet: str | Path, knots: Sequence[float]) -> None:
    """Over the cells known under both protocols, of models of known compute, on benchmarks whose scores are fractions.
    Raises InputError where there are none."""
    compute, side = matrix.sizes().compute, np.array(group_members(matrix.model_facts, group, sheet), dtype=float)
    compared = np.isfinite(compute) & np.isfinite(side)
    in_both = np.logical_and.reduce([np.isfinite(matrix.value[p]) for p in PROTOCOLS]) & compared[:, None]
    columns = np.flatnonzero(matrix.fractions & in_both.any(axis=0))
    if not len(columns):
        raise InputError(
            f"group {group.text!r}: no benchmark has scores under both protocols of models of known compute.",
            "the change of a lead needs direct and train-before-test scores, as fractions.",
        )
    scores = {p: np.where(in_both, matrix.oriented(p), np.nan)[compared][:, columns] for p in PROTOCOLS}
    side, compute, numbers = side[compared], compute[compared], cluster_numbers(matrix.families[compared])
    data = _Compared(side, numbers, compute_terms(compute, knots))
    for name, flag in (("inside", 1), ("outside", 0)):
        beyond = outside_overlap(compute[side == flag], compute[side != flag])
        at.put("models_compared", int((side == flag).sum()), "models", side=name)
        at.put("families_compared", len(set(numbers[side == flag])), "families", side=name)
        at.put("models_beyond_overlap", beyond, "models", side=name)
    at.put("models_of_unknown_side", int((~compared).sum()), "models")
    for place, knot in enumerate(knots_within(compute, knots), 1):
        at.put("knot", knot, "operations", place=place)
    for p in PROTOCOLS:
        means = finite_mean(scores[p], axis=1)
        for model, mean, inside in zip(np.array(matrix.models)[compared], means, side, strict=True):
            if np.isfinite(mean):
                sides = "inside" if inside else "outside"
                at.put("mean_score", float(mean), "score", subject=model, protocol=p, side=sides)
    pairs = zip(columns, scores[DIRECT].T, scores[TRAINED].T, strict=True)
    logits = np.column_stack([_logits(matrix, int(column), *pair) for column, *pair in pairs])
    if len(columns) > 1:
        _put_gap(at, scores[DIRECT], scores[TRAINED], logits, data)
    names = [matrix.benchmarks[column] for column in columns]
    tested = {
        name: _put_gap(at.of(subject=name), scores[DIRECT][:, k], scores[TRAINED][:, k], logits[:, k], data)
        for k, name in enumerate(names)
    }
    known_p = {name: effect.p for name, effect in tested.items() if np.isfinite(effect.p)}
    adjusted = dict(zip(known_p, holm(np.array(list(known_p.values()))), strict=True))
    for name in names:
        change = at.row("readiness_change", subject=name, group=group.text)
        assert change is not None
        value = float(adjusted[name]) if name in adjusted else reason_of(change) or Missing(NO_SPREAD)
        counted = ("models", change.n or 0)
        at.put("readiness_change_p_adjusted", value, "probability", counted=counted, subject=name)


def _put_gap(at: Rows, direct: np.ndarray, prepared: np.ndarray, logits: np.ndarray, data: _Compared) -> Effect:
    """The leads and their change of arrays (models,) or (models, benchmarks); `logits`: the change on that scale, NaN
    where chance is unknown."""
    change = prepared - direct
    models = int(np.isfinite(change.reshape(len(change), -1)).any(axis=1).sum())
    at.put("models", models, "models")
    for p, scores in ((DIRECT, direct), (TRAINED, prepared)):
        data.put(at.of(protocol=p), "lead", "score", scores, models)
    moved = data.put(at, "readiness_change", "score", change, models)
    if np.isfinite(logits).any():
        data.put(at, "readiness_logit_change", "logit", logits, models)
    else:
        at.put("readiness_logit_change", NO_CHANCE, "logit", {"families": NO_CHANCE}, counted=("models", models))
    if len(set(data.families[data.side == 1])) == 1 and np.isfinite(moved.value):  # the ranks of placebo groups
        groups = (data.families == family for family in np.unique(data.families))
        placebos = np.array([group_effect(change, group, data.terms, data.families).value for group in groups])
        rank = float(1 + (placebos < moved.value - 1e-12).sum())
        at.put("readiness_placebo_rank", rank, "rank", counted=("families", int(np.isfinite(placebos).sum())))
    else:
        at.put("readiness_placebo_rank", NOT_ONE_FAMILY, "rank")
    return moved


def _logits(matrix: ScoreMatrix, column: int, direct: np.ndarray, prepared: np.ndarray) -> np.ndarray:
    """(models,) the change of the oriented scores of a benchmark, the `column` of the matrix, as logits of the shares
    of the way from chance to 1; NaN where chance is unknown. A gain in ability that is the same for all is the same on
    this scale, whereas in points it is small near chance and near 1."""
    chance, lower = float(matrix.benchmark_facts["chance"].iloc[column]), matrix.direction[column] < 0
    best = 1 - chance if not lower else chance  # an error rate is negative here: from -chance up to 0
    shares = ((scores + (chance if lower else -chance)) / best for scores in (direct, prepared))
    first, last = (logit(np.clip(share, LEAST_SHARE, 1 - LEAST_SHARE)) for share in shares)
    return np.asarray(last - first)


# ----------------------------------------------------------------------------------------------------------------------
# What the page shows of the rows.


def report_readiness(sources: Sources, output: str | Path, section: Agreement) -> None:
    """Write results.parquet, results.csv and the page of the readiness report under `output`.

    Raises InputError where the section names no group, as `read_score_matrix` and `group_members`, and where no
    benchmark has scores under both protocols.
    """
    if not section.groups:
        raise InputError("report readiness: no group.", "name one with --group, or in agreement.groups.")
    groups = [parse_group(text) for text in section.groups]
    matrix = read_score_matrix(sources, groups=groups)
    rows = readiness_rows(matrix, groups, sources.models or "", section.knots)
    write_rows(_page(matrix, groups, rows), rows, output)


@dataclass(frozen=True)
class _Told:
    """A group with the rows of the report, models by their labels and scores in points."""

    rows: Rows
    group: Group

    @property
    def benchmarks(self) -> list[str | None]:
        """All together where there are several, then each."""
        return [row.subject for row in self.rows.all("readiness_change", group=self.group.text)]

    def row(self, quantity: str, subject: str | None = None, **place: str) -> Row:
        """A number of the group."""
        found = self.rows.row(quantity, subject=subject, group=self.group.text, **place)
        assert found is not None, quantity
        return found

    def leads(self) -> tuple[float, float] | None:
        """Of what is shown first, direct and after; None where one is not known."""
        pair = [self.row("lead", self.benchmarks[0], protocol=p).value for p in PROTOCOLS]
        return None if pair[0] is None or pair[1] is None else (pair[0], pair[1])

    def gap(self) -> str:
        """`seen models lead by 20 points, and by 0 after training`."""
        pair = self.leads()
        assert pair is not None
        sides = ["lead by" if round(100 * value) >= 0 else "trail by" for value in pair]
        then = "by" if sides[0] == sides[1] else sides[1]
        where = f" on {self.benchmarks[0]}" if self.benchmarks[0] else ""
        first, last = (svg.points(abs(value)) for value in pair)
        return f"{self.group.words} {sides[0]} {first} points{where}, and {then} {last} after training"

    def interval(self) -> str:
        """Of the change of what is shown first."""
        ends = ends_of(self.row("readiness_change", self.benchmarks[0]))
        return "95% of the change: {} to {}".format(*svg.points_apart(ends)) if ends else ""

    def lede(self) -> Lede:
        """The heading, and the sentence of the first page. That a lead shrinks, falls or rises is said where the
        interval of the change excludes zero; that there is no lead never."""
        pair = self.leads()
        if pair is None:
            return Lede("No lead can be estimated", f"Compute and being among {self.group.words} cannot be told apart")
        ends, gap = ends_of(self.row("readiness_change", self.benchmarks[0])), f"At equal compute, {self.gap()}"
        if ends is None:
            return Lede(gap, "Whether the lead changes is not known: there is no interval")
        heading = "No change of the lead was found"
        if ends[0] > 0:
            heading = f"The group gains{self.scale()}"
        elif ends[1] < 0:
            heading = f"{'The lead shrinks' if abs(pair[1]) < pair[0] else 'The group falls back'}{self.scale()}"
        return Lede(heading, gap, self.interval())

    def scale(self) -> str:
        """On which scale the lead changes, for the heading: in points alone, equal gains in ability may look so."""
        ends, change = (
            ends_of(self.row(f"readiness_{name}", self.benchmarks[0])) for name in ("logit_change", "change")
        )
        assert change is not None
        if ends is None:
            return " in points once every model is prepared"
        same_sign = ends[0] > 0 if sum(change) > 0 else ends[1] < 0
        return " once every model is prepared" if same_sign else " in points; on the logit scale that was not found"

    def dots(self, most: int = MOST_DRAWN) -> Dots:
        """The leads of each benchmark, direct and after."""
        series = [
            Series("lead", {"subject": "{}"}, {"group": self.group.text, "protocol": p}, svg.KINDS[p], svg.NAMES[p])
            for p in PROTOCOLS
        ]
        label = "The group's lead at equal compute, in points, with 95% intervals over families"
        return Dots(series, label, sorted=True, most=most)

    def answer(self) -> Answer:
        """What the first page of a site says of the group."""
        models = [self.row("models_compared", side=side).value or 0 for side in ("inside", "outside")]
        return Answer(
            f"Do {self.group.words} lead because they were prepared?",
            f"{self.lede().sentence}.",
            self.dots(3).draw(self.rows).svg,
            self.interval(),
            f"{models[0]:.0f} models in the group, {models[1]:.0f} outside",
        )

    def finding(self, prepared: str) -> Finding:
        """The gap with the interval of the change, and what it rests on. `prepared`: what the prepared scores are."""
        first, pair, interval = self.benchmarks[0], self.leads(), self.interval()
        inside, outside = ("inside", "outside")
        number = {
            (name, side): int(self.row(name, side=side).value or 0)
            for name in ("models_compared", "families_compared", "models_beyond_overlap")
            for side in (inside, outside)
        }
        unknown, rank = int(self.row("models_of_unknown_side").value or 0), self.row("readiness_placebo_rank", first)
        change, logits = self.row("readiness_change", first), ends_of(self.row("readiness_logit_change", first))
        basis = [
            f"Mean over {len(self.benchmarks) - 1} benchmarks." if first is None else "",
            f"{count(number['models_compared', inside], 'model')} of "
            f"{count(number['families_compared', inside], 'family', 'families')} in the group, "
            f"{number['models_compared', outside]} of {number['families_compared', outside]} outside.",
            f"{unknown} of unknown compute or side are left out." if unknown else "",
            f"Beyond the computes of the other side lie {number['models_beyond_overlap', inside]} of the group and "
            f"{number['models_beyond_overlap', outside]} outside it.",
            prepared,
            change.reason or "",
            f"The group's change has rank {rank.value:.0f} among the {rank.n} families (1 falls most)."
            if rank.value is not None
            else "",
            "Not known whether it also changes on the logit scale. A group with more ability gains fewer points near 1."
            if logits is None
            else "On the logit scale the change is {} to {} (95%), which {} none.".format(
                *(decimal(end, 2, signed=True) for end in logits),
                "excludes" if logits[0] > 0 or logits[1] < 0 else "does not exclude",
            ),
            "This is an association: groups may differ in what compute does not measure, such as the quality of the "
            "data.",
        ]
        sentence = self.lede().sentence if pair is None else f"At equal compute, {self.gap()}"
        return Finding(f"{sentence}{interval and f' ({interval})'}.", " ".join(filter(None, basis)))

    def section(self, number: int) -> SectionOf:
        """The fold of the group; `number`: from 1, for the names of files."""
        place = {"group": self.group.text}
        knots = [f"{row.value:.0e}" for row in self.rows.all("knot", **place)]
        columns = {
            **{
                p: Column("lead", f"lead, {name}", "+.1f", where={"protocol": p, **place}, scale=100)
                for p, name in svg.NAMES.items()
            },
            "change": Column("readiness_change", "change", "+.1f", "value", place, scale=100),
            "low": Column("readiness_change", "change from", "+.1f", "low", place, scale=100),
            "high": Column("readiness_change", "change to", "+.1f", "high", place, scale=100),
            "p_adjusted": Column("readiness_change_p_adjusted", "p, Holm", "p", where=place),
            "logit": Column("readiness_logit_change", "change, logits", "+.2f", "value", place),
            "logit_low": Column("readiness_logit_change", "logits from", "+.2f", "low", place),
            "logit_high": Column("readiness_logit_change", "logits to", "+.2f", "high", place),
        }
        return SectionOf(
            f"The lead of {self.group.words}",
            Says("readiness_change", "The change is {span:+} points.", place),
            TableOf(f"leads_{number}", {"subject": "benchmark"}, columns, "Leads at equal compute, in points"),
            [self.dots(60)],
            explanation="The lead is the coefficient of the group in a regression of the score on the group and on "
            "log10 of compute (6 × parameters × tokens). The line against compute "
            f"{f'bends at {words.listing(knots)} FLOP' if knots else 'is straight'}. The change is after minus direct. "
            "Standard errors are of the jackknife over families (CR3). Intervals and p are the wider of its t test and "
            "of CR2's. In points, equal gains in ability are unequal near chance and near 1. On the logit scale they "
            "are equal.",
        )

    def panel(self) -> Panel:
        """Scores against compute."""
        several, place = len(self.benchmarks) - (self.benchmarks[0] is None), {"group": self.group.text}
        points = Points(
            "compute", "mean_score", svg.NAMES, "Mean scores against pretraining compute in floating-point operations.",
            told="side", marks={"inside": "k", "outside": "s hollow"}, height=110, where=place,
        )  # fmt: skip
        question = f"Score against compute: {self.group.words} (filled) and others"
        return Panel(question, f"Mean over **{count(several, 'benchmark')}**", points.draw(self.rows).svg)


def _page(matrix: ScoreMatrix, groups: Sequence[Group], rows: Rows) -> Page:
    """The lead of each group, direct and after, with that of the first group as the heading."""
    units, labelled = dict.fromkeys(("lead", "readiness_change"), POINTS), matrix.labelled(rows)
    shown = Rows(rows.study, (row._replace(unit=units.get(row.quantity, row.unit)) for row in labelled))
    told = [_Told(shown, group) for group in groups]
    unused = [matrix.benchmarks[j] for j in np.flatnonzero(~matrix.fractions & ~matrix.is_corpus)]
    sections = [each.section(number).drawn(shown) for number, each in enumerate(told, 1)]
    return Page(
        name="readiness",
        title="Readiness gap",
        question="Does a group of models lead because it can do more, or because it was prepared for the test? "
        f"{words.explain_protocols(matrix.protocols, trained_here=matrix.trained_here)}",
        lede=told[0].lede(),
        picture=told[0].dots().draw(shown),
        panels=[each.panel() for each in told],
        # an estimate without an interval is no answer
        answers=[answer for each in told if (answer := each.answer()).interval],
        findings=[each.finding(_convention(matrix)) for each in told],
        sections=sections,
        notes=[
            *matrix.notes,
            *words.with_names({"Benchmarks whose scores are not fractions take no part in leads: {}.": unused}),
        ],
    )


def _convention(matrix: ScoreMatrix) -> str:
    """What the scores after preparation are, in a sentence."""
    if matrix.trained_here:
        return (
            "Scores under train before test are of the fine-tune that is best on validation, or of the untouched model "
            "where none is better there."
        )
    if Data(matrix, {}).selected_on_test:
        return "Scores under train before test are the larger of both on the test split."
    return "Scores under train before test are as the source gives them, also where they are below the direct score."
