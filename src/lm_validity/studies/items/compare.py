"""Two models compared on every benchmark that both have: what is known, and what is decided about the second."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.results.put import NONE, Rows
from lm_validity.studies.items.answers import (
    CELL,
    answers_matrix,
    cell_scores,
    mean_items,
    model_answers,
    noise_of_runs,
    unlike_items,
)
from lm_validity.studies.items.statistics import (
    LEVEL,
    NO_TEST,
    Decision,
    PairedDifference,
    SamplingPart,
    Test,
    Verdict,
    joint_verdict,
    paired_difference,
    unpaired_difference,
    verdicts,
)
from lm_validity.tables.counted import Counted
from lm_validity.tables.items import Shared, shared_items
from lm_validity.tables.schema import PROTOCOLS, trained_here
from lm_validity.tables.settings import UNLIKE_SETTINGS, Unlike, without_settings
from lm_validity.words import Missing, Reason, ReasonCode, count, is_known, listing, with_names

NO_ITEMS = Missing(Reason("The score is not known item by item for both models.", ReasonCode.NO_ITEMS))
TESTS = {
    "McNemar": "McNemar's exact test on common items: benchmarks {}.",
    "paired t": "Paired t test on common items, which are graded: benchmarks {}.",
    "clustered by subject": "Clustered by subject, so the result speaks for new subjects too: benchmarks {}.",
    "standard errors": "Unpaired test by standard errors, since there are no answers item by item; it is conservative: "
    "benchmarks {}.",
    "none": "No test is possible, because there are neither common items nor standard errors: benchmarks {}.",
}
SHARED = "Benchmarks that share items count once in all together: {}."
ALIKE = "Both {} {}: they may be one model under two names."


@dataclass(frozen=True)
class Difference:
    """One benchmark under one protocol. change: of the second model's score less the first's, better upwards, in the
    metric's unit. tested, test: None and `none` where there is no test; paired: on common items, where there are any.
    sampling: in the squared error of the change, where both models were run several times. in_points: the scores are
    fractions."""

    benchmark: str
    protocol: str
    metric: str | None
    scores: tuple[float, float]
    in_points: bool
    change: float
    test: str = "none"
    tested: Test | None = None
    paired: PairedDifference | None = None
    sampling: SamplingPart | None = None

    @property
    def items(self) -> int | Missing:
        """The common items of the test."""
        return NO_ITEMS if self.paired is None else self.paired.items

    @property
    def p(self) -> float | Missing:
        """Of no change, by itself."""
        paired = NO_TEST if self.paired is None else self.paired.p
        return paired if self.tested is None else self.tested.p(0.0)


class Unit(NamedTuple):
    """What counts once in all together: a benchmark, or several that share items."""

    benchmarks: tuple[str, ...]
    protocol: str
    metric: str | None
    in_points: bool
    tested: Test


@dataclass(frozen=True)
class Comparison:
    """Two models: their differences by benchmark and protocol, and the units of all together. doubts: what is to be
    said before any verdict."""

    first: str
    second: str
    differences: tuple[Difference, ...]
    units: tuple[Unit, ...]
    shared: tuple[Shared, ...]
    notes: tuple[str, ...]
    doubts: tuple[str, ...] = ()
    trained_here: bool = False  # a run of the workflow made the fine-tunes

    @property
    def protocols(self) -> list[str]:
        """Those under which the two have a benchmark in common."""
        return list(dict.fromkeys(row.protocol for row in self.differences))

    def under(self, protocol: str) -> list[Difference]:
        """The differences under a protocol."""
        return [row for row in self.differences if row.protocol == protocol]


# ----------------------------------------------------------------------------------------------------------------------
# The comparison: on common items, else by standard errors.


def compare_counted(
    first: str,
    second: str,
    counted: Counted,
    items: str | Path | None = None,
    *,
    unlike: Unlike = "refused",
    shared: Sequence[Shared] | None = None,
) -> Comparison:
    """Compare two models by their scores that count, of each one state of its training.

    unlike: what becomes of answers to different documents of a benchmark; where they are not refused, the scores are
    compared by their errors. shared: the benchmarks that share items, where that is known already. Raises InputError
    where unlike documents are refused, for one model twice, and where the two share no benchmark.
    """
    if first == second:
        raise InputError(f"the model {first!r} is named twice.", "name two different models.")
    counted = replace(counted, rows=counted.rows[counted.rows["value"].notna()])
    raw = None if items is None else model_answers(items, counted.rows, ["doc_hash", "gold"])
    answers = Answers(raw, first, second)
    cells, rows = cell_scores(counted), list[Difference]()
    one_sided, apart, partly = list[str](), list[str](), list[str]()
    for protocol in PROTOCOLS:
        for benchmark in sorted({name for _, name, under in cells.index if under == protocol}):
            keys = [(model, benchmark, protocol) for model in (first, second)]
            if not all(key in cells.index for key in keys):
                one_sided.append(f"{benchmark} ({protocol})")
                continue
            pair = answers.items(benchmark, protocol)
            if pair[0] is not None and pair[1] is not None and not set(pair[0]["doc_id"]) & set(pair[1]["doc_id"]):
                apart.append(benchmark)
            of_cells = cells.loc[keys[0]], cells.loc[keys[1]]
            rows.append(compared_cells(benchmark, protocol, *of_cells, pair, answers.raw(benchmark, protocol)))
            if is_known(rows[-1].items) and (words := unlike_items(pair)):
                partly.append(f"{benchmark} ({words})")
    if not rows:
        reasons = [note for note in counted.notes if "stay out" in note] or ["compare models with common scores."]
        raise InputError(f"{counted.source}: {first} and {second} share no benchmark.", reasons[0])
    if apart and unlike == "refused":
        raise InputError(
            f"{items}: {first} and {second} answered no common document of {listing(apart, 3)}.",
            "give answers to the same items, or compare the scores by their errors: --mix-versions.",
        )
    shared = _shared(rows, raw) if shared is None else shared
    said_elsewhere = (UNLIKE_SETTINGS, *counted.kept_out)
    of_test = {words: dict.fromkeys(row.benchmark for row in rows if row.test == test) for test, words in TESTS.items()}
    notes = [
        *(note for note in counted.notes if not note.startswith(said_elsewhere)),
        *with_names(
            {
                "No common document, so the scores are compared by their errors: {}.": apart,
                "Compared on the items that both answered, and the scores are of all that each answered: {}.": partly,
                "Only one of the two models has a score on {}.": one_sided,
                **of_test,
            }
        ),
    ]
    groups = with_names({SHARED: [" and ".join(group.benchmarks) for group in shared]})
    return Comparison(
        first,
        second,
        tuple(rows),
        tuple(units_of(rows, shared, answers, cells["better"])),
        tuple(shared),
        tuple(notes),
        (*_alike(rows), *groups),
        trained_here(counted.rows),
    )


class Answers:
    """The answers of two models to rows of `model_answers`, by benchmark and protocol; None where there are none."""

    def __init__(self, raw: pd.DataFrame | None, first: str, second: str):
        self._models = first, second
        self._raw = {} if raw is None else {key: rows for key, rows in raw.groupby(CELL)}
        self._items = {} if raw is None else {key: rows for key, rows in mean_items(raw).groupby(CELL)}

    def items(self, benchmark: str, protocol: str) -> list[pd.DataFrame | None]:
        """Of each model the rows of `mean_items`."""
        return [self._items.get((model, benchmark, protocol)) for model in self._models]

    def raw(self, benchmark: str, protocol: str) -> list[pd.DataFrame | None]:
        """Of each model the answers of its runs."""
        return [self._raw.get((model, benchmark, protocol)) for model in self._models]

    def together(self, shared: Shared, names: Sequence[str], protocol: str) -> "Answers":
        """The answers to benchmarks that share items as those to one, `""`: an item that stands in several of them has
        the mean of its answers there."""
        frames = [frame for name in names for frame in self.raw(name, protocol) if frame is not None]
        rows = pd.concat(frames, ignore_index=True)
        places = pd.MultiIndex.from_frame(rows[["benchmark", "doc_id"]])
        rows = rows.assign(doc_id=shared.documents.reindex(places).to_numpy(), benchmark="")
        keys = [*CELL, "seed", "run", "doc_id"]
        means = rows.groupby(keys, dropna=False).agg(correct=("correct", "mean"), subject=("subject", "first"))
        return Answers(means.reset_index(), *self._models)


def _alike(rows: Sequence[Difference]) -> Iterator[str]:
    """A line where the two models answered every item alike or, without answers, have all scores in common."""
    items = [0 if row.paired is None else row.paired.items for row in rows]
    if all(row.change == 0 and not (row.paired and row.tested and row.tested.error) for row in rows):
        if all(items):
            yield ALIKE.format("gave the same answers to all", count(sum(items), "item"))
        elif len(rows) > 2:
            yield ALIKE.format("have the same score on all", count(len(rows), "benchmark"))


def _shared(rows: Sequence[Difference], raw: pd.DataFrame | None) -> list[Shared]:
    """The benchmarks that share items, of those that are tested on them under the first protocol with several."""
    for protocol in PROTOCOLS:
        names = {row.benchmark for row in rows if row.paired is not None and row.protocol == protocol}
        if raw is not None and len(names) > 1:
            return shared_items(raw[raw["benchmark"].isin(names) & (raw["protocol"] == protocol)])
    return []


def units_of(
    rows: Sequence[Difference], shared: Sequence[Shared], answers: Answers, better: pd.Series
) -> Iterator[Unit]:
    """The tested benchmarks of each protocol, those that share items as one, at the place of their first."""
    for protocol in dict.fromkeys(row.protocol for row in rows):
        tested = {row.benchmark: row for row in rows if row.protocol == protocol and row.tested is not None}
        groups = dict[str, tuple[Shared, list[str]]]()
        for group in shared:
            names = [name for name in group.benchmarks if name in tested and tested[name].paired is not None]
            if len({(tested[name].in_points, tested[name].metric) for name in names}) == 1 and len(names) > 1:
                groups |= dict.fromkeys(names, (group, names))
        for name, row in tested.items():
            if row.tested is None or (name in groups and groups[name][1][0] != name):
                continue
            unit = Unit((name,), protocol, row.metric, row.in_points, row.tested)
            if name in groups:
                whole = answers.together(*groups[name], protocol)
                pair = [frame for frame in whole.items("", protocol) if frame is not None]
                scores = np.array([frame["correct"].mean() for frame in pair])
                sign = float(better.xs((name, protocol), level=("benchmark", "protocol")).iloc[0])
                found = _on_items(sign, pair, scores, whole.raw("", protocol))
                if found is not None and found.paired.test is not None:
                    unit = unit._replace(benchmarks=tuple(groups[name][1]), tested=found.paired.test)
            yield unit


def compared_cells(
    benchmark: str,
    protocol: str,
    first: pd.Series,
    second: pd.Series,
    answers: Sequence[pd.DataFrame | None],
    raw: Sequence[pd.DataFrame | None],
) -> Difference:
    """Two models on a benchmark: on the items that both answered, where their scores are means of these; else by
    standard errors; else without a test.

    first, second: their rows of `cell_scores`. answers, raw: the rows of `mean_items` and `model_answers` of each, None
    where there are none.
    """
    sign, scores = float(first["better"]), (float(first["value"]), float(second["value"]))
    change = float(sign * (scores[1] - scores[0]))
    row = Difference(benchmark, protocol, first["metric"], scores, bool(first["in_points"]), change)
    found = _on_items(sign, answers, np.array(scores), raw)
    if found is not None:
        ungraded = "McNemar" if found.paired.first_only is not None else "paired t"
        return replace(
            row,
            change=found.paired.difference,
            test="clustered by subject" if found.paired.clusters else ungraded,
            tested=found.paired.test,
            paired=found.paired,
            sampling=found.sampling,
        )
    errors = float(first["stderr"]), float(second["stderr"])
    if not np.isfinite(errors).all() or max(errors) == 0:
        return row
    now, once = first["part"] + second["part"], first["once"] + second["once"]
    sampling = None
    if np.isfinite([now, once]).all():
        sampling = SamplingPart(float(now), float(once), float(first["runs"] + second["runs"] - 2))
    return replace(row, test="standard errors", tested=unpaired_difference(change, errors, sampling), sampling=sampling)


class _OnItems(NamedTuple):
    """A test on common items, and what sampled runs put into it where both models have several."""

    paired: PairedDifference
    sampling: SamplingPart | None


def _on_items(
    sign: float, answers: Sequence[pd.DataFrame | None], scores: np.ndarray, raw: Sequence[pd.DataFrame | None]
) -> _OnItems | None:
    """The second model less the first on the items that both answered; None without one, or for scores that are no
    means of these."""
    matrix = answers_matrix(answers, scores)
    common = np.isfinite(matrix.correct).all(axis=0)
    if not common.any():
        return None
    first, second = sign * matrix.correct[:, common]
    documents = matrix.documents[common]
    noises = [None if rows is None else noise_of_runs(rows, documents, sign) for rows in raw]
    known = [noise for noise in noises if noise is not None]
    paired = paired_difference(second, first, None if matrix.subjects is None else matrix.subjects[common], known)
    return _OnItems(paired, SamplingPart.of(known) if len(known) == len(noises) else None)


# ----------------------------------------------------------------------------------------------------------------------
# Verdicts about the second model.

NO_MARGIN = Missing(Reason("No margin was named.", ReasonCode.NONE))
NOTHING_TESTED = Missing(
    Reason(
        "No benchmark can be tested without the answers item by item, or the standard errors of both models.",
        ReasonCode.NO_ERRORS,
    )
)
UNLIKE_UNITS = Missing(Reason("The benchmarks' scores have different units, and so no mean.", ReasonCode.NONE))


class Margin(NamedTuple):
    """The loss that is accepted on a benchmark (None: none was named), and whether the gate must know it there."""

    loss: float | None = None
    must: bool = False


class Margins(NamedTuple):
    """The losses that are accepted: on benchmarks that a sheet names, and on all others."""

    by_benchmark: Mapping[str, Margin] = {}
    everywhere: Margin = Margin()

    def of(self, benchmark: str) -> Margin:
        """That of a benchmark."""
        return self.by_benchmark.get(benchmark, self.everywhere)


class Judged(NamedTuple):
    """A verdict on a benchmark, or on all together (None). in_points: of fractions. must: the gate passes only where
    this is decided. counted: the benchmarks behind all together, those that share items once. items, subjects: of the
    test; 0 where there are none."""

    benchmark: str | None
    protocol: str
    verdict: Verdict
    in_points: bool = True
    must: bool = True
    counted: int = 1
    items: int = 0
    subjects: int = 0


def judged(comparison: Comparison, margins: Margins) -> list[Judged]:
    """What is decided on each benchmark and, first under each protocol, on all together.

    Holm's adjustment is over the benchmarks of all protocols, and the level of all together is shared by the protocols:
    so a gate over two protocols is wrong no more often than one over one. The margin of all together is the mean of
    those of its benchmarks, if each has one.
    """
    rows = comparison.differences
    found = verdicts(
        [row.tested for row in rows],
        [margins.of(row.benchmark).loss for row in rows],
        [row.items if isinstance(row.items, int) else None for row in rows],
        [row.sampling for row in rows],
    )
    single = [
        Judged(
            row.benchmark,
            row.protocol,
            verdict,
            row.in_points,
            margins.of(row.benchmark).must,
            items=row.paired.items if row.paired else 0,
            subjects=(row.paired and row.paired.clusters) or 0,
        )
        for row, verdict in zip(rows, found, strict=True)
    ]
    together = list[Judged]()
    for protocol in comparison.protocols:
        units = [unit for unit in comparison.units if unit.protocol == protocol]
        decisions = {each.verdict.decision for each in single if each.protocol == protocol}
        level = LEVEL / len(comparison.protocols)
        together.append(_together(protocol, units, decisions, margins, level))
    return [*together, *single]


def _together(protocol: str, units: Sequence[Unit], decisions: set[Decision], margins: Margins, level: float) -> Judged:
    """The mean over the tested benchmarks whose scores are fractions or, where none are, over all if they have one
    metric. Of unlike units there is no mean: decided is what is decided on every benchmark."""
    units = [unit for unit in units if unit.in_points] or [*units]
    if not units:
        return Judged(None, protocol, Verdict("not known", NOTHING_TESTED, NOTHING_TESTED), counted=0)
    share, metrics = units[0].in_points, {unit.metric for unit in units}
    if not share and len(units) > 1 and (len(metrics) > 1 or None in metrics):
        alike: Decision = "not worse" if decisions == {"better", "not worse"} else "not known"
        alike = next(iter(decisions)) if len(decisions) == 1 else alike
        return Judged(None, protocol, Verdict(alike, UNLIKE_UNITS, UNLIKE_UNITS), in_points=False, counted=len(units))
    losses = [[margins.of(name).loss for name in unit.benchmarks] for unit in units]
    known = [
        float(np.mean([loss for loss in of_unit if loss is not None])) for of_unit in losses if None not in of_unit
    ]
    margin = float(np.mean(known)) if len(known) == len(units) else None
    verdict = joint_verdict([unit.tested for unit in units], margin, level)
    return Judged(None, protocol, verdict, share, counted=len(units))


def gate(found: Sequence[Judged]) -> Literal["not worse", "worse", "not known"]:
    """Whether the second model may pass: *worse* if it is on a benchmark, after Holm, or on all together; *not worse*
    if it is decided so on all together and wherever it must be; else *not known*."""
    if any(each.verdict.decision == "worse" for each in found):
        return "worse"
    return "not known" if any(each.verdict.decision == "not known" for each in found if each.must) else "not worse"


# ----------------------------------------------------------------------------------------------------------------------
# The rows.

MOST_POINTS = 40  # of training, evenly chosen among more


def comparison_rows(comparison: Comparison, found: Sequence[Judged]) -> Rows:
    """The rows of a comparison with its verdicts. change: the second model less the first, better upwards."""
    rows = Rows("compare")
    for side in ("first", "second"):
        rows.put(side, getattr(comparison, side), "text")
    by_place = {(row.benchmark, row.protocol): row for row in comparison.differences}
    for benchmark, protocol, verdict, *_ in found:
        at = rows.of(subject=benchmark, protocol=protocol)
        name = "" if benchmark else "joint_"
        margin = NO_MARGIN if verdict.margin is None else verdict.margin
        at.put(f"{name}verdict", verdict.decision, "text")
        at.put(f"{name}change", verdict.change, "score", {"items": verdict.interval}, level=verdict.level)
        at.put(f"{name}margin", margin, "score")
        if benchmark is None:
            continue
        row = by_place[benchmark, protocol]
        paired, detectable = row.paired, NO_TEST if row.tested is None else row.tested.detectable()
        counted = ("items", row.items) if isinstance(row.items, int) else None
        at.put("first_score", row.scores[0], "score", counted=counted)
        at.put("second_score", row.scores[1], "score", counted=counted)
        at.put("test", row.test, "text")
        at.put("items", row.items, "items")
        at.put("change_p", _or(verdict.p, NO_TEST), "probability")
        at.put("margin_p", _or(verdict.p_margin, NO_MARGIN), "probability")
        at.put("items_to_decide", _or(verdict.items_needed, NO_TEST), "items")
        at.put("runs_to_decide", _or(verdict.runs_needed, NO_TEST), "runs")
        at.put("smallest_detectable", paired.smallest_detectable if paired else detectable, "score", counted=counted)
        only = (None, None) if paired is None else (paired.second_only, paired.first_only)
        at.put("subjects", _or(None if paired is None else paired.clusters, NONE), "subjects")
        at.put("first_only_right", _or(only[0], NONE), "items", counted=counted)
        at.put("second_only_right", _or(only[1], NONE), "items", counted=counted)
    return rows


def _or(value: float | Missing | None, none: Missing) -> float | Missing:
    return none if value is None else value


def training_rows(rows: Rows, comparison: Comparison, counted: Counted, items: str | Path | None = None) -> None:
    """The change at each point of training that both have, first to last; nothing where they share fewer than two.

    counted: at all checkpoints. The interval of each is that of the last point, by the same test, without a correction
    for the number of points.
    """
    points = counted.common_points()
    if points.unit is None or len(points.common) < 2:
        return
    places = np.unique(np.linspace(0, len(points.common) - 1, MOST_POINTS).round().astype(int))
    counted = replace(counted, rows=without_settings(counted.rows))  # what differs was said
    models, shared = (comparison.first, comparison.second), comparison.shared
    for point in np.array(points.common)[places].tolist():
        there = counted.at_point(points.unit, point)
        try:
            found = judged(compare_counted(*models, there, items, unlike="kept", shared=shared), Margins())
        except InputError:  # no benchmark in common at this point
            continue
        for benchmark, protocol, verdict, *_ in found:
            at = rows.of(subject=benchmark, protocol=protocol, unit=points.unit, point=point)
            at.put("change_along_training", verdict.change, "score", {"items": verdict.interval}, level=verdict.level)
