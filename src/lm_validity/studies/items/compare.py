"""Two models compared on every benchmark that both have: what is known, what is decided of the second, and the page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from lm_validity import words
from lm_validity.errors import InputError
from lm_validity.pages.page import Answer, Finding, Lede, Page, Picture, Section, Table
from lm_validity.pages.svg import KINDS, NAMES, points
from lm_validity.results.put import NONE, Column, Rows
from lm_validity.results.sections import POINTS, Dots, Lines, Says, SectionOf, Series, TableOf
from lm_validity.studies.items import answers, statistics
from lm_validity.studies.items.answers import CELL, Frames
from lm_validity.studies.items.statistics import LEVEL, NO_TEST, Decision, PairedDifference, SamplingPart, Test, Verdict
from lm_validity.tables.counted import Counted
from lm_validity.tables.items import Shared, shared_items
from lm_validity.tables.schema import PROTOCOLS, trained_here
from lm_validity.tables.settings import UNLIKE_SETTINGS, Unlike, without_settings
from lm_validity.words import Missing, Reason, ReasonCode, count, is_known, listing, number

NO_ITEMS = Missing(Reason("The score is not known item by item for both models.", ReasonCode.NO_ITEMS))
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


class Unit(NamedTuple):
    """What counts once in all together: a benchmark, or several that share items, as the row of all of them."""

    benchmarks: tuple[str, ...]
    row: Difference


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
    models: Sequence[str], counted: Counted, items: Path | None, unlike: Unlike, shared: Sequence[Shared] | None = None
) -> Comparison:
    """Compare two models by their scores that count, of each one state of its training.

    unlike: what becomes of answers to different documents of a benchmark; where they are not refused, the scores are
    compared by their errors. shared: the benchmarks that share items, where that is known already. Raises InputError
    where unlike documents are refused, for one model twice, and where the two share no benchmark.
    """
    first, second = models
    if first == second:
        raise InputError(f"the model {first!r} is named twice.", "name two different models.")
    counted = replace(counted, rows=counted.rows[counted.rows["value"].notna()])
    raw = None if items is None else answers.model_answers(items, counted.rows, ["doc_hash", "gold"])
    by_model, cells, rows = Answers(raw, first, second), answers.cell_scores(counted), list[Difference]()
    one_sided, apart, partly = list[str](), list[str](), list[str]()
    places = {key[:0:-1] for key in cells.index}  # protocol and benchmark
    for protocol, benchmark in sorted(places, key=lambda place: (PROTOCOLS.index(place[0]), place[1])):
        keys = [(model, benchmark, protocol) for model in (first, second)]
        if not all(key in cells.index for key in keys):
            one_sided.append(f"{benchmark} ({protocol})")
            continue
        pair, in_common = by_model.items(benchmark, protocol), answers.unlike_items(by_model.items(benchmark, protocol))
        row = compared_cells(cells.loc[keys[0]], cells.loc[keys[1]], pair, by_model.raw(benchmark, protocol))
        rows.append(row)
        if pair[0] is not None and pair[1] is not None and not set(pair[0]["doc_id"]) & set(pair[1]["doc_id"]):
            apart.append(benchmark)
        elif row.paired and in_common:
            partly.append(f"{benchmark} ({in_common})")
    if not rows:
        reasons = [note for note in counted.notes if "stay out" in note] or ["compare models with common scores."]
        raise InputError(f"{counted.source}: {first} and {second} share no benchmark.", reasons[0])
    if apart and unlike == "refused":
        raise InputError(
            f"{items}: {first} and {second} answered no common document of {listing(apart, 3)}.",
            "give answers to the same items, or compare the scores by their errors: --mix-versions.",
        )
    shared = _shared(rows, raw) if shared is None else shared
    notes = {
        "No common document, so the scores are compared by their errors: {}.": apart,
        "Compared on the items that both answered, and the scores are of all that each answered: {}.": partly,
        "Only one of the two models has a score on {}.": one_sided,
    }
    said_before = (UNLIKE_SETTINGS, *counted.kept_out)
    return Comparison(
        first,
        second,
        tuple(rows),
        tuple(units_of(rows, shared, by_model, cells["better"])),
        tuple(shared),
        (*(note for note in counted.notes if not note.startswith(said_before)), *words.with_names(notes)),
        (*_alike(rows), *words.with_names({SHARED: [" and ".join(group.benchmarks) for group in shared]})),
        trained_here(counted.rows),
    )


class Answers:
    """The answers of two models to rows of `model_answers`, by benchmark and protocol; None where there are none."""

    def __init__(self, raw: pd.DataFrame | None, first: str, second: str):
        self._models = first, second
        self._raw = {} if raw is None else {key: rows for key, rows in raw.groupby(CELL)}
        self._items = {} if raw is None else {key: rows for key, rows in answers.mean_items(raw).groupby(CELL)}

    def items(self, benchmark: str, protocol: str) -> Frames:
        """Of each model the rows of `mean_items`."""
        return [self._items.get((model, benchmark, protocol)) for model in self._models]

    def raw(self, benchmark: str, protocol: str) -> Frames:
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


def units_of(rows: list[Difference], shared: Sequence[Shared], by_model: Answers, better: pd.Series) -> Iterator[Unit]:
    """The tested benchmarks of each protocol, those that share items as one, at the place of their first."""
    for protocol in dict.fromkeys(row.protocol for row in rows):
        tested = {row.benchmark: row for row in rows if row.protocol == protocol and row.tested is not None}
        groups = dict[str, tuple[Shared, list[str]]]()
        for group in shared:
            names = [name for name in group.benchmarks if name in tested and tested[name].paired is not None]
            if len({(tested[name].in_points, tested[name].metric) for name in names}) == 1 and len(names) > 1:
                groups |= dict.fromkeys(names, (group, names))
        for name, row in tested.items():
            if name not in groups:
                yield Unit((name,), row)
            elif groups[name][1][0] == name:
                whole = by_model.together(*groups[name], protocol)
                pair, sign = whole.items("", protocol), float(better.xs((name, protocol), level=(1, 2)).iloc[0])
                scores = np.array([np.nan if frame is None else frame["correct"].mean() for frame in pair])
                joined = _on_items(row, sign, scores, pair, whole.raw("", protocol))
                yield Unit(tuple(groups[name][1]), row if joined.tested is None else joined)


def compared_cells(first: pd.Series, second: pd.Series, items: Frames, raw: Frames) -> Difference:
    """Two models on a benchmark: on the items that both answered, where their scores are means of these; else by
    standard errors; else without a test.

    first, second: their rows of `cell_scores`. items, raw: the rows of `mean_items` and `model_answers` of each.
    """
    sign, scores = float(first["better"]), (float(first["value"]), float(second["value"]))
    _, benchmark, protocol = first.name
    change = float(sign * (scores[1] - scores[0]))
    row = Difference(benchmark, protocol, first["metric"], scores, bool(first["in_points"]), change)
    on_items = _on_items(row, sign, np.array(scores), items, raw)
    errors = float(first["stderr"]), float(second["stderr"])
    if on_items.paired is not None or not np.isfinite(errors).all() or max(errors) == 0:
        return on_items
    now, once = first["part"] + second["part"], first["once"] + second["once"]
    sampling = None
    if np.isfinite([now, once]).all():
        sampling = SamplingPart(float(now), float(once), float(first["runs"] + second["runs"] - 2))
    tested = statistics.unpaired_difference(change, errors, sampling)
    return replace(row, test="standard errors", tested=tested, sampling=sampling)


def _on_items(row: Difference, sign: float, scores: np.ndarray, items: Frames, raw: Frames) -> Difference:
    """The row, with the second model less the first on the items that both answered; as it is without one, or for
    scores that are no means of these."""
    matrix = answers.answers_matrix(items, scores)
    common = np.isfinite(matrix.correct).all(axis=0)
    if not common.any():
        return row
    first, second = sign * matrix.correct[:, common]
    noises = [None if frame is None else answers.noise_of_runs(frame, matrix.documents[common], sign) for frame in raw]
    known = [noise for noise in noises if noise is not None]
    subjects = None if matrix.subjects is None else matrix.subjects[common]
    paired = statistics.paired_difference(second, first, subjects, known)
    test = "McNemar" if paired.first_only is not None else "paired t"
    return replace(
        row,
        change=paired.difference,
        test="clustered by subject" if paired.clusters else test,
        tested=paired.test,
        paired=paired,
        sampling=SamplingPart.of(known) if len(known) == len(noises) else None,
    )


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
    claims, single = list[statistics.Claim](), list[Judged]()
    for row in comparison.differences:
        items = row.paired.items if row.paired else None
        claims.append(statistics.Claim(row.tested, margins.of(row.benchmark).loss, items, row.sampling))
    for row, claim, verdict in zip(comparison.differences, claims, statistics.verdicts(claims), strict=True):
        must, subjects = margins.of(row.benchmark).must, (row.paired and row.paired.clusters) or 0
        place = row.benchmark, row.protocol
        single.append(Judged(*place, verdict, row.in_points, must, items=claim.items or 0, subjects=subjects))
    together = list[Judged]()
    for protocol in comparison.protocols:
        units = [unit for unit in comparison.units if unit.row.protocol == protocol]
        decisions = {each.verdict.decision for each in single if each.protocol == protocol}
        together.append(_together(protocol, units, decisions, margins, LEVEL / len(comparison.protocols)))
    return [*together, *single]


def _together(protocol: str, units: Sequence[Unit], decisions: set[Decision], margins: Margins, level: float) -> Judged:
    """The mean over the tested benchmarks whose scores are fractions or, where none are, over all if they have one
    metric. Of unlike units there is no mean: decided is what is decided on every benchmark."""
    units = [unit for unit in units if unit.row.in_points] or [*units]
    if not units:
        return Judged(None, protocol, Verdict("not known", NOTHING_TESTED, NOTHING_TESTED), counted=0)
    share, metrics = units[0].row.in_points, {unit.row.metric for unit in units}
    if not share and len(units) > 1 and (len(metrics) > 1 or None in metrics):
        alike: Decision = "not worse" if decisions == {"better", "not worse"} else "not known"
        alike = next(iter(decisions)) if len(decisions) == 1 else alike
        return Judged(None, protocol, Verdict(alike, UNLIKE_UNITS, UNLIKE_UNITS), in_points=False, counted=len(units))
    losses = [[margins.of(name).loss for name in unit.benchmarks] for unit in units]
    mean = float(np.mean([np.mean(np.array(of_unit, dtype=float)) for of_unit in losses]))  # NaN where one has none
    margin = None if np.isnan(mean) else mean
    verdict = statistics.joint_verdict([unit.row.tested for unit in units if unit.row.tested], margin, level)
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
MOST_FLIPS = 1000  # on the page; the CSV has all
FEW = 7  # benchmarks on a site's first page


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
        paired, smallest = row.paired, NO_TEST if row.tested is None else row.tested.detectable()
        counted = ("items", paired.items) if paired else None
        at.put("first_score", row.scores[0], "score", counted=counted)
        at.put("second_score", row.scores[1], "score", counted=counted)
        at.put("test", row.test, "text")
        at.put("items", paired.items if paired else NO_ITEMS, "items")
        at.put("smallest_detectable", paired.smallest_detectable if paired else smallest, "score", counted=counted)
        for quantity, value, none, unit in (
            ("change_p", verdict.p, NO_TEST, "probability"),
            ("margin_p", verdict.p_margin, NO_MARGIN, "probability"),
            ("items_to_decide", verdict.items_needed, NO_TEST, "items"),
            ("runs_to_decide", verdict.runs_needed, NO_TEST, "runs"),
            ("subjects", paired.clusters if paired else None, NONE, "subjects"),
        ):
            at.put(quantity, none if value is None else value, unit)
        only = (None, None) if paired is None else (paired.second_only, paired.first_only)
        for side, right in zip(("first", "second"), only, strict=True):
            at.put(f"{side}_only_right", NONE if right is None else right, "items", counted=counted)
    return rows


def training_rows(rows: Rows, comparison: Comparison, counted: Counted, items: Path | None = None) -> None:
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
            found = judged(compare_counted(models, there, items, "kept", shared), Margins())
        except InputError:  # no benchmark in common at this point
            continue
        for benchmark, protocol, verdict, *_ in found:
            at = rows.of(subject=benchmark, protocol=protocol, unit=points.unit, point=point)
            at.put("change_along_training", verdict.change, "score", {"items": verdict.interval}, level=verdict.level)


# ----------------------------------------------------------------------------------------------------------------------
# Verdicts in words.


def short_names(first: str, second: str) -> tuple[str, str]:
    """The models without their owners (`owner/model`), where that leaves two names."""
    short = first.rsplit("/", 1)[-1], second.rsplit("/", 1)[-1]
    return short if all(short) and short[0] != short[1] else (first, second)


def to_decide(found: Judged) -> str:
    """`1,200 items or 9 runs of each`: what would decide where nothing is known; "" where that is not known either."""
    verdict = found.verdict
    if verdict.decision != "not known" or found.benchmark is None:
        return ""
    items = ""
    if is_known(verdict.items_needed):  # of answers clustered by subject, more subjects decide, not more of their items
        subjects = -(-verdict.items_needed * found.subjects // max(found.items, 1))
        items = f"{subjects:,} subjects like these" if found.subjects else f"{verdict.items_needed:,} items"
    if verdict.runs_needed is statistics.RUNS_DO_NOT_DECIDE:
        return f"{items or 'more items'}, not more runs"
    runs = f"{verdict.runs_needed:,} runs of each" if is_known(verdict.runs_needed) else ""
    return " or ".join(filter(None, (items, runs)))


def written(found: Judged, value: float, *, signed: bool = True) -> str:
    """A change or a margin in the unit of the scores, of fractions in points."""
    return points(value, 1, signed=signed) if found.in_points else words.decimal(value, 3, signed=signed)


def verdict_words(found: Judged) -> str:
    """`worse: −2.1 points (95%: −3.3 to −0.9)`; what Holm's adjustment left undecided with its p."""
    verdict, text = found.verdict, str(found.verdict.decision)
    margin = "" if verdict.margin is None else written(found, verdict.margin, signed=False)
    if margin and text in ("worse", "not worse"):
        text += f" by more than {margin}"
    if isinstance(verdict.change, Missing):
        reason = str(verdict.change.reason).rstrip(".")
        return f"{text}: {reason[:1].lower()}{reason[1:]}"
    text += f": {written(found, verdict.change)}{' points' if found.in_points else ''}"
    if not isinstance(ends := verdict.interval, tuple):
        return text
    text += f" ({100 * verdict.level:g}%: {' to '.join(written(found, end) for end in ends)}"
    p, p_margin, loss = number(verdict.p), number(verdict.p_margin), -(verdict.margin or 0.0)
    if not ends[0] <= 0 <= ends[1] and p >= LEVEL and verdict.decision != "worse":
        text += f"; p {words.decimal(p, 2)} after Holm"
    if verdict.decision == "not known" and margin and not ends[0] <= loss <= ends[1] and p_margin >= LEVEL:
        text += f"; p of a loss of {margin} is {words.decimal(p_margin, 2)} after Holm"
    return f"{text})"


def tally(comparison: Comparison, found: Sequence[Judged], protocol: str) -> str:
    """`not worse by more than 1.0: +0.3 points (95%: −0.2 to +0.8); found better on 2 of 24 benchmarks, worse on 1`."""
    together, *single = [each for each in found if each.protocol == protocol]
    decisions = [each.verdict.decision for each in single]
    tested = sum(row.tested is not None for row in comparison.under(protocol))
    up, down = (str(decisions.count(decision) or "none") for decision in ("better", "worse"))
    return f"{verdict_words(together)}; found better on {up} of {count(tested, 'benchmark')}, worse on {down}"


# ----------------------------------------------------------------------------------------------------------------------
# The page.


def comparison_page(
    comparison: Comparison, found: Sequence[Judged], rows: Rows, notes: Sequence[str], flips: pd.DataFrame, point: str
) -> Page:
    """The page: who is better on what, with a picture and a table of every benchmark, along training, and the items
    that one of the two alone gets right. `notes`: before those of the comparison. `point`: a sentence on the point of
    training at which they are compared, to stand beside the picture; may be empty."""
    names, protocols = short_names(comparison.first, comparison.second), comparison.protocols
    said = {protocol: tally(comparison, found, protocol) for protocol in protocols}
    lede = "; ".join(f"{NAMES[each]}, {sentence}" if len(said) > 1 else sentence for each, sentence in said.items())
    sections = [_benchmark_section(names).drawn(rows)]
    if rows.all("change_along_training"):
        sections.append(_training_section(names, rows, protocols, POINTS if found[0].in_points else "").drawn(rows))
    if len(flips):
        sections.append(_flip_section(comparison, flips))
    label = f"{names[1]} minus {names[0]}, in points, each with its own 95% interval"
    if sizes := [row.value for row in rows.all("smallest_detectable") if row.value is not None]:
        span = " to ".join(dict.fromkeys(points(size, 1) for size in (min(sizes), max(sizes))))
        label += f". Each test by itself finds gaps of {span} with 80% power"
    picture = _changes(rows, comparison, protocols, label)
    if picture.svg and point:
        picture = Picture(picture.svg, f"{point} {picture.note}")
    question = f"Is {names[1]} better than {names[0]}?"
    return Page(
        name="compare",
        title=f"{comparison.first} against {comparison.second}",
        question="Which of the two models is better, and on what? "
        + words.explain_protocols(protocols, trained_here=comparison.trained_here),
        findings=[
            Finding(f"{names[1]} against {names[0]}, {NAMES[each]}: {sentence}.") for each, sentence in said.items()
        ],
        sections=sections,
        notes=[*notes, *comparison.notes],
        lede=Lede(question, lede[:1].upper() + lede[1:]),
        picture=picture if picture.svg else None,
        answers=[_answer(question, comparison, found[0], rows, point)],
    )


def _changes(rows: Rows, comparison: Comparison, protocols: Sequence[str], label: str, most: int = 60) -> Picture:
    """The changes with their intervals: of the benchmarks whose scores are fractions those that are tested, or all
    where none is."""
    shares = [row for row in comparison.differences if row.in_points and row.protocol in protocols]
    places = {(row.benchmark, row.protocol) for row in ([row for row in shares if row.tested] or shares)}
    drawn = [row for row in rows.all("change") if (row.subject, row.protocol) in places]
    names = {each: NAMES[each] if len(protocols) > 1 else "" for each in protocols}
    series = [Series("change", {"subject": "{}"}, {"protocol": each}, KINDS[each], names[each]) for each in protocols]
    return Dots(series, label, dashed=(0.0,), sorted=True, most=most, unit=POINTS).draw(Rows("compare", drawn))


def _answer(question: str, comparison: Comparison, together: Judged, rows: Rows, point: str) -> Answer:
    """Whether the second model is better, on all benchmarks together, for the first page of a site."""
    verdict, basis = together.verdict, f"{point} " if point else ""
    begin = {"better": "Yes", "worse": "No, it is worse", "not worse": "It is not worse"}
    sentence = begin.get(verdict.decision, "Not known")
    if isinstance(verdict.change, Missing):
        sentence += f". {verdict.change.reason}"
    else:
        sentence += f": {written(together, verdict.change)}{' points' if together.in_points else ''} on average."
        under = f", {NAMES[together.protocol]}" if len(comparison.protocols) > 1 else ""
        basis += f"Mean over {count(together.counted, 'benchmark')}{under}, for these benchmarks only."
    interval = verdict_words(together).partition("(")[2].rstrip(")") if isinstance(verdict.interval, tuple) else ""
    picture = _changes(rows, comparison, [together.protocol], "Change, in points", FEW).svg
    return Answer(question, sentence, picture, interval, basis, "Every benchmark")


def _benchmark_section(names: tuple[str, str]) -> SectionOf:
    first, second = names
    columns = {
        "verdict": Column("verdict", "verdict"),
        "first_score": Column("first_score", first, ".4f"),
        "second_score": Column("second_score", second, ".4f"),
        **Column("change", f"{second} minus {first}", "+.4f").with_ends("change"),
        "p": Column("change_p", "p of no change", "p"),
        "p_margin": Column("margin_p", "p of a loss of the margin", "p"),
        "test": Column("test", "test"),
        "items": Column("items", "items", ".0f"),
        "subjects": Column("subjects", "subjects", ".0f"),
        "first_only": Column("first_only_right", f"only {first}", ".0f"),
        "second_only": Column("second_only_right", f"only {second}", ".0f"),
        "smallest_detectable": Column("smallest_detectable", "smallest detectable", ".4f"),
        "items_to_decide": Column("items_to_decide", "items that decide", ".0f"),
        "runs_to_decide": Column("runs_to_decide", "runs that decide", ".0f"),
    }
    return SectionOf(
        "Every benchmark",
        Says("change", f"{second} scores higher on {{above}} of {{count:benchmark}}, {first} on {{below}}."),
        TableOf(
            "benchmarks",
            {"subject": "benchmark", "protocol": "protocol"},
            columns,
            "All benchmarks",
            "Only: items that one of the two alone gets right. Smallest detectable: the difference that the test by "
            "itself finds four times out of five. Items, runs that decide: with so many of them (of clustered answers: "
            "in more subjects) the observed difference would be found four times out of five.",
        ),
        hint="verdicts, scores, intervals, what would decide",
        explanation="Better: p of no change is below 5%. Worse, not worse: p of a loss of the margin is below 5%, on "
        "the side of a greater or a smaller loss; without a margin, worse is a sure loss. p is two-sided, after Holm's "
        "correction over all benchmarks; each interval is 95% by itself. All together: the mean change, for these "
        "benchmarks only. Models that answered the same items are compared item by item, others by the standard errors "
        "of their scores, as if independent, which is conservative; subjects, from three on, are clusters, so that the "
        "result speaks for new subjects too; runs of one model share what their spread shows.",
    )


def _training_section(names: tuple[str, str], rows: Rows, protocols: Sequence[str], unit: str) -> SectionOf:
    points_in = rows.all("change_along_training")[0].said["unit"]
    points_of = "Billions of tokens" if points_in == "tokens_b" else "Steps"
    of_all = {"subject": None}
    series = [
        Series("change_along_training", {}, of_all | {"protocol": each}, KINDS[each], NAMES[each]) for each in protocols
    ]
    label = f"{names[1]} minus {names[0]}, mean over all benchmarks"
    return SectionOf(
        "The difference along training",
        Says("change_along_training", "Over all benchmarks, the difference is {span:+} at {count:point}.", of_all),
        TableOf(
            "along_training",
            {"subject": "benchmark", "protocol": "protocol", "point": points_of.lower()},
            Column("change_along_training", "difference", "+.4f").with_ends("change"),
            "Every point",
            folded=True,
        ),
        [Lines(series, "point", label, points_of, unit)],
        "At each point the two are compared as at the last one, by the same test. The band is the interval of each "
        "point by itself: over many points some exclude 0 by chance.",
        "every point that both models have",
    )


def _flip_section(comparison: Comparison, flips: pd.DataFrame) -> Section:
    caption = f"The first {MOST_FLIPS} of {len(flips)}." if len(flips) > MOST_FLIPS else ""
    labels = {"first_answer": comparison.first, "second_answer": comparison.second, "right": "right with"}
    shown = flips.head(MOST_FLIPS).replace({"protocol": NAMES})
    share = words.percent(float((flips["right"] == comparison.second).mean()))
    return Section(
        "Items that one of the two alone gets right",
        f"{count(len(flips), 'item')}, {share} of them right with {comparison.second}.",
        tables=[Table("flipped_items", "Items", shown, labels=labels, caption=caption)],
    )
