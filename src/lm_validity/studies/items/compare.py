"""Two models compared on every benchmark that both have: numbers, lines for the terminal, and a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from markupsafe import Markup

from lm_validity.errors import InputError
from lm_validity.missing import Missing, Reason, ReasonCode, as_columns, is_known, number
from lm_validity.pages import figures, svg
from lm_validity.pages.figures import PROTOCOL_LABELS
from lm_validity.pages.page import Figure, Finding, Lede, Page, Picture, Section, Table
from lm_validity.pages.svg import KINDS
from lm_validity.results.summary import page_only
from lm_validity.statistics import holm
from lm_validity.studies.items.item_report import CELL, model_items, model_scores
from lm_validity.studies.items.statistics import (
    LEVEL,
    RUNS_DO_NOT_DECIDE,
    McNemarTest,
    SamplingPart,
    StudentTest,
    Verdict,
    joint_verdict,
    paired_difference,
    unpaired_difference,
    verdicts,
)
from lm_validity.tables.counted import Counted, are_fractions
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED, trained_here
from lm_validity.tables.settings import UNLIKE_SETTINGS, Unlike, without_settings
from lm_validity.words import count, decimal, explain_protocols, listing, with_names

SAME_SCORE = 1e-6  # a score this close to the mean of its items is that mean
FIRST, SECOND, OPEN, UNTESTED = "first better", "second better", "not separated", "not tested"  # outcomes
NO_TEST = Missing(
    Reason("Neither common items nor the standard errors of both scores are known.", ReasonCode.NO_ERRORS)
)
# fields of `PairedDifference` that a comparison has under the same name
OF_PAIRED = (
    "difference", "interval", "items", "first_only", "second_only", "p", "smallest_detectable", "items_needed",
)  # fmt: skip
NO_ITEMS = Missing(Reason("The score is not known item by item for both models.", ReasonCode.NO_ITEMS))


@dataclass(frozen=True)
class Comparison:
    """One benchmark under one protocol. `difference` is positive where the first model is better.

    test: how `p` was computed. p_adjusted: Holm's, over the benchmarks of the protocol. Sizes are in the metric's unit.
    """

    benchmark: str
    protocol: str
    metric: str | None
    first_score: float
    second_score: float
    difference: float
    interval: tuple[float, float] | Missing = NO_TEST
    test: str = "none"
    items: int | Missing = NO_ITEMS
    subjects: int | None = None
    first_only: int | None = None
    second_only: int | None = None
    p: float | Missing = NO_TEST
    p_adjusted: float | Missing = NO_TEST
    smallest_detectable: float | Missing = NO_TEST
    items_needed: int | Missing = NO_TEST
    tested: StudentTest | McNemarTest | None = page_only(default=None)
    in_points: bool = page_only(default=True)  # the scores are fractions
    sampling: SamplingPart | None = page_only(default=None)  # in the squared error of the difference

    @property
    def outcome(self) -> str:
        """What the test decides after correction."""
        if isinstance(self.p_adjusted, Missing):
            return UNTESTED
        if self.p_adjusted >= LEVEL or self.difference == 0:
            return OPEN
        return FIRST if self.difference > 0 else SECOND


@dataclass(frozen=True)
class Joint:
    """What is decided about the second model against the first, on all benchmarks together. change, interval: second
    less first, better upwards; the mean over `of` benchmarks, those in one unit. share: they are fractions."""

    protocol: str
    verdict: str
    change: float | Missing
    interval: tuple[float, float] | Missing
    margin: float | Missing
    of: int | None = page_only(default=None)
    share: bool = page_only(default=True)


@dataclass(frozen=True, kw_only=True)
class Judged(Joint):
    """The same on one benchmark. p, p_margin: of no change, and of a loss of the margin, after Holm over the
    benchmarks. items_needed, runs_needed: as of `Verdict`. must: the gate passes only where this is decided."""

    benchmark: str
    p: float | Missing
    p_margin: float | Missing
    items_needed: int | Missing
    runs_needed: int | Missing
    must: bool = page_only(default=False)


@dataclass(frozen=True)
class AtPoint:
    """The second model less the first at a point of training that both have, in billions of tokens or (`unit`
    iteration) steps: on a benchmark, or the mean over all (None). interval: 95%, of this point by itself."""

    benchmark: str | None
    protocol: str
    unit: str
    point: float
    change: float | Missing
    interval: tuple[float, float] | Missing
    share: bool = page_only(default=True)


@dataclass(frozen=True)
class CompareSummary:
    """The comparison of two models."""

    first: str
    second: str
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]
    verdicts: tuple[Judged, ...] = ()
    joint: tuple[Joint, ...] = ()
    along_training: tuple[AtPoint, ...] = ()
    trained_here: bool = page_only(default=False)  # a run of the workflow made the fine-tunes

    @property
    def by_protocol(self) -> dict[str, list[Comparison]]:
        """The comparisons of each protocol under which there are any."""
        names = dict.fromkeys(row.protocol for row in self.comparisons)
        return {name: [row for row in self.comparisons if row.protocol == name] for name in names}


# ----------------------------------------------------------------------------------------------------------------------
# The comparison: on common items, else by standard errors.


def compare_models(
    first: str,
    second: str,
    scores: str | Path,
    items: str | Path | None = None,
    benchmarks: str | Path | None = None,
    *,
    unlike: Unlike = "refused",
) -> CompareSummary:
    """Compare two models on every benchmark and protocol under which both have a score.

    unlike: what becomes of unlike versions of a task, or unlike parts of the items. Raises InputError where they are
    refused, for a model without scores, and as `compare_counted`.
    """
    counted = model_scores(scores, [first, second], benchmarks, unlike=unlike)
    return compare_counted(first, second, counted, items, unlike=unlike)


def compare_counted(
    first: str, second: str, counted: Counted, items: str | Path | None = None, *, unlike: Unlike = "refused"
) -> CompareSummary:
    """Compare two models by their scores that count, of each one state of its training.

    unlike: what becomes of answers to different documents of a benchmark; where they are not refused, the scores are
    compared by their errors. Raises InputError where they are, for one model twice, and where the two share no
    benchmark.
    """
    if first == second:
        raise InputError(f"the model {first!r} is named twice.", "name two different models.")
    counted = replace(counted, rows=counted.rows[counted.rows["value"].notna()])
    rows, said_elsewhere = counted.rows, (UNLIKE_SETTINGS, *counted.kept_out)
    notes = tuple(note for note in counted.notes if not note.startswith(said_elsewhere))
    by_cell = {} if items is None else {key: group for key, group in model_items(items, rows).groupby(CELL)}
    cells = cell_scores(counted)
    compared: list[Comparison] = []
    one_sided, apart = list[str](), list[str]()
    for protocol in PROTOCOLS:
        of_protocol = []
        for benchmark in sorted({name for _, name, under in cells.index if under == protocol}):
            keys = [(model, benchmark, protocol) for model in (first, second)]
            if all(key in cells.index for key in keys):
                pair = [by_cell.get(key) for key in keys]
                if _without_common_document(pair):
                    apart.append(benchmark)
                of_protocol.append(compared_cells(benchmark, protocol, cells.loc[keys[0]], cells.loc[keys[1]], pair))
            else:
                one_sided.append(f"{benchmark} ({protocol})")
        adjusted = iter(holm(np.array([row.p for row in of_protocol if is_known(row.p)])).tolist())
        compared += [replace(row, p_adjusted=next(adjusted) if is_known(row.p) else row.p) for row in of_protocol]
    if not compared:
        reasons = [note for note in counted.notes if "stay out" in note] or ["compare models with common scores."]
        raise InputError(f"{counted.source}: {first} and {second} share no benchmark.", reasons[0])
    if apart and unlike == "refused":
        raise InputError(
            f"{items}: {first} and {second} answered no common document of {listing(apart, 3)}.",
            "give answers to the same items, or compare the scores by their errors: --mix-versions.",
        )
    if apart:
        notes = (*notes, f"No common document, so the scores are compared by their errors: {listing(apart)}.")
    if one_sided:
        notes = (*notes, f"Only one of the two models has a score on {listing(one_sided)}.")
    return CompareSummary(
        first, second, tuple(compared), (*notes, *_test_notes(compared)), trained_here=trained_here(rows)
    )


def _without_common_document(answers: Sequence[pd.DataFrame | None]) -> bool:
    """Whether both models have answers to a benchmark, but to different documents of it."""
    documents = [set(frame["doc_id"]) for frame in answers if frame is not None and len(frame)]
    return len(documents) == len(answers) and not set.intersection(*documents)


def cell_scores(counted: Counted) -> pd.DataFrame:
    """By model, benchmark and protocol: `value`, `stderr`, `metric` (None where unknown), `better` (1, -1), `in_points`
    (the benchmark's scores are fractions); over seeds. Of the squared error, `part` is that of sampled runs, and `once`
    what it would be with one run; NaN where unknown."""
    rows = counted.rows
    squares = {
        name: rows[error].astype(float) ** 2 for name, error in (("variance", "stderr"), ("part", "sampling_error"))
    }
    cells = rows.assign(**squares, once=squares["part"] * rows["runs"].astype(float)).groupby(CELL)
    cells = cells.agg(
        value=("value", "mean"),
        variance=("variance", "mean"),
        part=("part", "mean"),
        once=("once", "mean"),
        metric=("metric", "first"),
    )
    cells["stderr"] = np.sqrt(cells.pop("variance"))  # seeds share their items: averaging does not shrink this error
    facts = counted.benchmarks.set_index("benchmark").loc[cells.index.get_level_values("benchmark")]
    metric = cells["metric"].astype(object).where(cells["metric"].notna().to_numpy(), facts["metric"].to_numpy())
    metric = metric.where(metric.notna(), None)
    fractions = are_fractions(cells.assign(metric=metric).reset_index(), counted.benchmarks)
    return cells.assign(metric=metric, better=np.where(facts["higher_is_better"], 1.0, -1.0), in_points=fractions)


def compared_cells(
    benchmark: str, protocol: str, first: pd.Series, second: pd.Series, answers: list[pd.DataFrame | None]
) -> Comparison:
    sign, scores = first["better"], (float(first["value"]), float(second["value"]))
    row = Comparison(benchmark, protocol, first["metric"], *scores, float(sign * (scores[0] - scores[1])))
    row = replace(row, in_points=bool(first["in_points"]))
    correct, subjects = answers_matrix(answers, np.array(scores))
    common = np.isfinite(correct).all(axis=0)
    if common.any():
        of_first, of_second = sign * correct[:, common]
        paired = paired_difference(of_first, of_second, None if subjects is None else subjects[common])
        ungraded = "McNemar" if paired.first_only is not None else "paired t"
        test = "clustered by subject" if paired.clusters else ungraded
        return replace(
            row,
            test=test,
            subjects=paired.clusters,
            tested=paired.test,
            sampling=_sampling_of_items(answers),
            **{name: getattr(paired, name) for name in OF_PAIRED},
        )
    errors = float(first["stderr"]), float(second["stderr"])
    if not np.isfinite(errors).all() or max(errors) == 0:
        return row
    unpaired = unpaired_difference(row.difference, errors)
    items_at_least = Missing(Reason("Items needed are known from common items only.", ReasonCode.NO_ITEMS))
    return replace(
        row,
        interval=unpaired.interval(),
        test="standard errors",
        p=unpaired.p(0.0),
        smallest_detectable=unpaired.detectable(),
        items_needed=items_at_least,
        tested=unpaired,
        sampling=_known_part(first["part"] + second["part"], first["once"] + second["once"]),
    )


def _sampling_of_items(answers: list[pd.DataFrame | None]) -> SamplingPart | None:
    """From the variance between an item's runs: its mean has 1 / runs of it, and the mean over items 1 / items²."""
    frames = [frame.set_index("doc_id")[["within", "runs"]] for frame in answers if frame is not None]
    joined = pd.concat(frames, axis=1, join="inner")
    within_runs, runs = joined["within"].to_numpy(dtype=float), joined["runs"].to_numpy(dtype=float)
    return _known_part(*(float(variances.sum() / len(joined) ** 2) for variances in (within_runs / runs, within_runs)))


def _known_part(now: float, once: float) -> SamplingPart | None:
    """The part of sampling in a squared error; None where a model was run once."""
    return SamplingPart(now, once) if np.isfinite([now, once]).all() else None


def answers_matrix(answers: Sequence[pd.DataFrame | None], scores: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """(M, I) the answers of M models to all documents, NaN where unknown; (I,) subjects, None where any is unknown.

    The row of a model whose score (M,) is no mean of its items, such as F1, is NaN: a test on items would not be a test
    of the score.
    """
    frames = [
        frame.assign(place=index)
        for index, (frame, score) in enumerate(zip(answers, scores, strict=True))
        if frame is not None and abs(frame["correct"].mean() - score) <= SAME_SCORE
    ]
    if not frames:
        return np.full((len(answers), 0), np.nan), None
    rows = pd.concat(frames, ignore_index=True)
    document, names = pd.factorize(rows["doc_id"])
    correct = np.full((len(answers), len(names)), np.nan)
    correct[rows["place"], document] = rows["correct"]
    subjects = np.empty(len(names), dtype=object)
    subjects[document] = rows["subject"]
    return correct, subjects.astype(str) if (subjects != "").all() else None


def _test_notes(rows: list[Comparison]) -> list[str]:
    words = {
        "McNemar": "McNemar's exact test on common items: benchmarks {}.",
        "paired t": "Paired t test on common items, which are graded: benchmarks {}.",
        "clustered by subject": "Clustered by subject, so the result speaks for new subjects too: benchmarks {}.",
        "standard errors": "By standard errors, as if the models had answered different items, which is mostly too "
        "cautious: benchmarks {}.",
        "none": "No test is possible, because there are neither common items nor standard errors: benchmarks {}.",
    }
    benchmarks = {test: dict.fromkeys(row.benchmark for row in rows if row.test == test) for test in words}
    return with_names({sentence: benchmarks[test] for test, sentence in words.items()})


# ----------------------------------------------------------------------------------------------------------------------
# Verdicts about the second model.

NO_MARGIN = Missing(Reason("No margin was named.", ReasonCode.NONE))
NOTHING_TESTED = Missing(Reason("No benchmark could be tested.", ReasonCode.NO_ERRORS))
UNLIKE_UNITS = Missing(Reason("The benchmarks' scores have different units, and so no mean.", ReasonCode.NONE))


@dataclass(frozen=True)
class Margin:
    """The loss that is accepted on a benchmark (None: none was named), and whether the gate must know it there."""

    loss: float | None = None
    must: bool = False


def judged(summary: CompareSummary, margins: Mapping[str, Margin], everywhere: Margin) -> CompareSummary:
    """The comparison with its verdicts about the second model; `everywhere`: of benchmarks that `margins` does not
    name. The margin of all together is the mean of theirs, if each has one."""
    judged_rows, together = list[Judged](), list[Joint]()
    for protocol, rows in summary.by_protocol.items():
        tests = [None if row.tested is None else row.tested.reversed() for row in rows]
        of_rows = [margins.get(row.benchmark, everywhere) for row in rows]
        counts = [row.items if isinstance(row.items, int) else None for row in rows]
        verdicts_found = verdicts(tests, [margin.loss for margin in of_rows], counts, [row.sampling for row in rows])
        for verdict, row, margin in zip(verdicts_found, rows, of_rows, strict=True):
            judged_rows.append(
                Judged(
                    *_decided(protocol, verdict),
                    benchmark=row.benchmark,
                    p=verdict.p_difference,
                    p_margin=NO_MARGIN if verdict.p_margin is None else verdict.p_margin,
                    items_needed=verdict.items_needed,
                    runs_needed=verdict.runs_needed,
                    must=margin.must,
                    share=row.in_points,
                )
            )
        together.append(
            _together(protocol, rows, tests, [margin.loss for margin in of_rows], judged_rows[-len(rows) :])
        )
    return replace(summary, verdicts=tuple(judged_rows), joint=tuple(together))


def _decided(
    protocol: str, verdict: Verdict
) -> tuple[str, str, float | Missing, tuple[float, float] | Missing, float | Missing]:
    change = NO_TEST if np.isnan(verdict.difference) else verdict.difference
    margin = NO_MARGIN if verdict.margin is None else verdict.margin
    return protocol, verdict.decision, change, verdict.interval, margin


def _together(
    protocol: str,
    rows: Sequence[Comparison],
    tests: Sequence[StudentTest | McNemarTest | None],
    losses: Sequence[float | None],
    judged_rows: Sequence[Judged],
) -> Joint:
    """The mean over the tested benchmarks whose scores are fractions or, where none are, over all if they have one
    metric. Of unlike units there is no mean: decided is what is decided on every benchmark."""
    tested = [index for index, test in enumerate(tests) if test is not None]
    shares = [index for index in tested if rows[index].in_points] or tested
    if not shares:
        return Joint(protocol, "not known", NOTHING_TESTED, NOTHING_TESTED, NO_MARGIN)
    share, metrics = rows[shares[0]].in_points, {rows[index].metric for index in shares}
    if not share and len(shares) > 1 and (len(metrics) > 1 or None in metrics):
        verdicts_found = {judged_row.verdict for judged_row in judged_rows}
        unlike = "not worse" if verdicts_found == {"better", "not worse"} else "not known"
        unlike = verdicts_found.pop() if len(verdicts_found) == 1 else unlike
        return Joint(protocol, unlike, UNLIKE_UNITS, UNLIKE_UNITS, NO_MARGIN, share=False)
    losses_known = [loss for index in shares if (loss := losses[index]) is not None]
    loss = float(np.mean(losses_known)) if len(losses_known) == len(shares) else None
    mean = joint_verdict([test for index in shares if (test := tests[index]) is not None], loss)
    return Joint(*_decided(protocol, mean), of=len(shares), share=share)


def gate(summary: CompareSummary) -> Literal["not worse", "worse", "not known"]:
    """Whether the second model may pass: *worse* if it is on a benchmark, after Holm, or on all together; *not worse*
    if it is decided so on all together and wherever it must be; else *not known*."""
    decided: list[Joint] = [*summary.verdicts, *summary.joint]
    if any(verdict.verdict == "worse" for verdict in decided):
        return "worse"
    must_hold: list[Joint] = [*summary.joint, *(verdict for verdict in summary.verdicts if verdict.must)]
    return "not known" if any(verdict.verdict == "not known" for verdict in must_hold) else "not worse"


def to_decide(judged_row: Judged) -> str:
    """`1,200 items or 9 runs of each`: what would decide where nothing is known; "" where that is not known either."""
    if judged_row.verdict != "not known":
        return ""
    items = f"{judged_row.items_needed:,} items" if is_known(judged_row.items_needed) else ""
    if judged_row.runs_needed is RUNS_DO_NOT_DECIDE:
        return f"{items or 'more items'}, not more runs,"
    runs = f"{judged_row.runs_needed:,} runs of each" if is_known(judged_row.runs_needed) else ""
    return " or ".join(filter(None, (items, runs)))


def verdict_words(joint: Joint) -> str:
    """`worse: −2.1 points (95%: −3.3 to −0.9)`; what Holm's adjustment left undecided with its p."""
    share = joint.share

    def written(value: float, *, signed: bool = True) -> str:
        return svg.points(value, 1, signed=signed) if share else decimal(value, 3, signed=signed)

    words: str = joint.verdict
    if words == "not worse" and isinstance(joint.margin, float):
        words = f"not worse by more than {written(joint.margin, signed=False)}"
    if isinstance(joint.change, Missing):
        reason = str(joint.change.reason).rstrip(".")
        return f"{words}: {reason[:1].lower()}{reason[1:]}"
    text = f"{words}: {written(joint.change)}{' points' if share else ''}"
    if isinstance(joint.interval, tuple):
        text += f" (95%: {' to '.join(map(written, joint.interval))}"
        surely = joint.interval[0] > 0 or joint.interval[1] < 0
        if surely and isinstance(joint, Judged) and joint.verdict in ("not known", "not worse") and is_known(joint.p):
            text += f"; p {decimal(number(joint.p), 2)} after Holm" if number(joint.p) >= LEVEL else ""
        text += _margin_left_open(joint)
        text += ")"
    return text


def _margin_left_open(joint: Joint) -> str:
    """The p of a loss of the margin, where the interval by itself excludes that loss and Holm's adjustment does not."""
    if joint.verdict != "not known" or not isinstance(joint, Judged) or not isinstance(joint.interval, tuple):
        return ""
    if not (is_known(joint.margin) and is_known(joint.p_margin)) or joint.interval[0] <= -number(joint.margin):
        return ""
    size = number(joint.margin)
    written = svg.points(size, 1) if joint.share else decimal(size, 3)
    return f"; p of a loss of {written} is {decimal(number(joint.p_margin), 2)} after Holm"


# ----------------------------------------------------------------------------------------------------------------------
# The difference along training.

MOST_POINTS = 40  # of training, evenly chosen among more


def along_training(first: str, second: str, counted: Counted, items: str | Path | None = None) -> tuple[AtPoint, ...]:
    """The difference at each point of training that both have, first to last; nothing where they share fewer than two.

    counted: at all checkpoints. The interval of each is that of the last point, by the same test, without a correction
    for the number of points.
    """
    points = counted.common_points()
    if points.unit is None or len(points.common) < 2:
        return ()
    places = np.unique(np.linspace(0, len(points.common) - 1, MOST_POINTS).round().astype(int))
    points_found = list[AtPoint]()
    counted = replace(counted, rows=without_settings(counted.rows))  # what differs was said
    for point in np.array(points.common)[places].tolist():
        counted_there = counted.at_point(points.unit, point)
        try:
            summary = judged(compare_counted(first, second, counted_there, items, unlike="kept"), {}, Margin())
        except InputError:  # no benchmark in common at this point
            continue
        points_found += [
            AtPoint(
                judged_row.benchmark if isinstance(judged_row, Judged) else None,
                judged_row.protocol,
                points.unit,
                point,
                judged_row.change,
                judged_row.interval,
                share=judged_row.share,
            )
            for judged_row in (*summary.joint, *summary.verdicts)
        ]
    return tuple(points_found)


def _training_section(summary: CompareSummary) -> Section | None:
    """The mean difference along training with its band, and a table of every benchmark."""
    points = summary.along_training
    if not points:
        return None
    unit = "Billions of tokens" if points[0].unit == "tokens_b" else "Steps"
    rows = [
        {"benchmark": point.benchmark or "all together", "protocol": point.protocol, "point": point.point}
        | {"change": point.change}
        | as_columns(point.interval)
        for point in points
    ]
    mean = pd.DataFrame(
        [
            {"protocol": PROTOCOL_LABELS[point.protocol], "point": point.point, "change": number(point.change)}
            | {end: number(value) for end, value in as_columns(point.interval).items()}
            for point in points
            if point.benchmark is None
        ]
    )
    names = short_names(summary.first, summary.second)
    spaced = mean["point"].min() > 0 and mean["point"].max() > 20 * mean["point"].min()
    chart = figures.lines(
        mean,
        x="point",
        y="change",
        x_title=unit,
        y_title=" less ".join(svg.shortened(name, 20) for name in names[::-1]),
        tooltip=figures.tooltips(point=f"{unit}|.6~g", change="Difference|+.4f", low="95% from|+.4f", high="to|+.4f"),
        log_x=bool(spaced),
    )
    chart = figures.layered(chart, figures.dashed_lines("zero", 0.0, channel="y"))
    return Section(
        "The difference along training",
        hint=f"{count(mean['point'].nunique(), 'point')} that both models have",
        explanation="At each point the two are compared as at the last one, by the same test. The band is the 95% "
        "interval of each point by itself: over many points some exclude 0 by chance.",
        figures=[Figure("along_training", "All benchmarks together", chart, wide=True)],
        tables=[
            Table(
                "along_training",
                "Every point",
                pd.DataFrame(rows).replace({"protocol": PROTOCOL_LABELS}),
                formats=dict.fromkeys(["change", "low", "high"], "+.4f") | {"point": ".6g"},
                labels={"point": unit.lower(), "change": "difference", "low": "95% from", "high": "to"},
                folded=True,
            )
        ],
    )


# ----------------------------------------------------------------------------------------------------------------------
# The comparison in a sentence.


def comparison_sentence(summary: CompareSummary, protocol: str) -> str:
    """Who wins where under a protocol, and what could have been found where nobody does."""
    rows = summary.by_protocol[protocol]
    up, down, still = (sum(row.outcome == outcome for row in rows) for outcome in (FIRST, SECOND, OPEN))
    tested = count(up + down + still, "tested benchmark")
    sentence = (
        f"{summary.first} is better than {summary.second} on {up} of {tested} and worse on {down} "
        f"({PROTOCOL_LABELS[protocol].lower()}; Holm's correction, 5% level)."
    )
    sizes = [
        number(row.smallest_detectable) for row in rows if row.outcome == OPEN and is_known(row.smallest_detectable)
    ]
    if sizes:
        span = " to ".join(dict.fromkeys(decimal(size, 3) for size in (min(sizes), max(sizes))))
        sentence += f" Where they are not separated, each test by itself finds a difference of {span} four times out "
        sentence += "of five. Smaller ones may exist."
    return sentence


# ----------------------------------------------------------------------------------------------------------------------
# The comparison as a page: who is better on what, a row for each benchmark.

MOST_ROWS = 60  # benchmarks that the picture shows
NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def comparison_page(summary: CompareSummary) -> Page:
    """The page of a comparison."""
    first, second = short_names(summary.first, summary.second)
    return Page(
        name="compare",
        title=f"{summary.first} against {summary.second}",
        question="Which of the two models is better, and on what? "
        + explain_protocols(summary.by_protocol, own=summary.trained_here),
        findings=[Finding(comparison_sentence(summary, protocol)) for protocol in summary.by_protocol],
        sections=[_benchmark_section(summary), *filter(None, [_training_section(summary)])],
        notes=summary.notes,
        lede=Lede(f"{first} or {second}: which is better?", _answer(summary)),
        picture=_forest(summary),
    )


def short_names(first: str, second: str) -> tuple[str, str]:
    """The models without their owners (`owner/model`), where that leaves two names."""
    short = first.rsplit("/", 1)[-1], second.rsplit("/", 1)[-1]
    return short if all(short) and short[0] != short[1] else (first, second)


def _answer(summary: CompareSummary) -> str:
    """`Direct, b is better on 11 of 24 benchmarks, a on none; after training, three and three.` Of one protocol:
    `b is better on 11 of 24 benchmarks; a on none (not fine-tuned)`."""
    names, named = short_names(summary.first, summary.second), False
    alone = len(summary.by_protocol) == 1
    clauses: list[str] = []
    if all(row.outcome == UNTESTED for row in summary.comparisons):
        return "Not known: neither common items nor the standard errors of both models are there"
    for protocol, rows in summary.by_protocol.items():
        wins = [sum(row.outcome == outcome for row in rows) for outcome in (FIRST, SECOND)]
        tested = count(sum(row.outcome != UNTESTED for row in rows), "benchmark")
        on_average = _better_on_average(summary, protocol)
        if not named and wins[1] > wins[0]:  # the better one first, from here on
            names = names[::-1]
        if names[0] != short_names(summary.first, summary.second)[0]:
            wins = wins[::-1]
        wins_of_first, less = (NUMBERS[win] if win < len(NUMBERS) else str(win) for win in wins)
        if all(row.outcome == UNTESTED for row in rows):
            clause = "no benchmark can be tested"
        elif not any(wins):
            clause = f"neither is found better on {tested}" if not clauses else "neither is found better"
        elif not named:
            wins_words = wins[0] if clauses else f"{wins[0]} of {tested}"
            clause, named = f"{names[0]} is better on {wins_words}{';' if alone else ','} {names[1]} on {less}", True
        else:
            clause = f"each on {wins_of_first}" if wins[0] == wins[1] else f"{wins_of_first} and {less}"
        if on_average is not None:
            by_itself = f"none of {tested} decides by itself" if not any(wins) else f"by benchmark, {clause}"
            clause = f"{on_average} is better on average; {by_itself}"
        if alone:
            clause = clause if clause.startswith(names) else clause[:1].upper() + clause[1:]
            return f"{clause} ({'not fine-tuned' if protocol == DIRECT else 'after training'})"
        clauses.append(f"{'direct' if protocol == DIRECT else 'after training'}, {clause}")
    sentence = "; ".join(clauses)
    return sentence[:1].upper() + sentence[1:]


def _better_on_average(summary: CompareSummary, protocol: str) -> str | None:
    """The name of the model that all benchmarks together decide for; None where they decide for neither."""
    joint = next((joint for joint in summary.joint if joint.protocol == protocol), None)
    if joint is None or joint.verdict not in ("better", "worse") or not is_known(joint.change):
        return None
    return short_names(summary.first, summary.second)[joint.verdict == "better"]


def _benchmark_section(summary: CompareSummary) -> Section:
    left_out, rows = ("difference", "interval", "tested", "sampling", "in_points"), []
    for row in summary.comparisons:
        change, interval = _second_less_first(row)
        named = {name: value for name, value in vars(row).items() if name not in left_out}
        rows.append(named | {"change": change} | as_columns(interval) | {"outcome": row.outcome})
    names = short_names(summary.first, summary.second)
    signed = dict.fromkeys(["change", "low", "high"], "+.4f")
    numbers = dict.fromkeys(["first_score", "second_score", "smallest_detectable"], ".4f")
    table = Table(
        "comparisons",
        "All benchmarks",
        pd.DataFrame(rows),
        formats=signed | numbers | dict.fromkeys(["p", "p_adjusted"], "p") | {"items_needed": ".0f", "items": ".0f"},
        labels={"first_score": summary.first, "second_score": summary.second, "first_only": f"only {summary.first}"}
        | {"second_only": f"only {summary.second}", "change": " less ".join(names[::-1])},
        caption="Only: items that one of the two models alone gets right. Smallest detectable: the difference that the "
        "test finds four times out of five. Items needed: how many items like these it takes to find the observed "
        "difference four times out of five.",
    )
    return Section(
        "Every benchmark",
        hint="scores, intervals, corrected p, items needed",
        explanation=(
            f"Each interval is 95%, for {names[1]} less {names[0]}, as in the verdicts: above 0, {names[1]} is better. "
            "If both models answered the same items, they are compared item by item. This detects smaller "
            "differences than comparing two scores. If the items have at least 10 subjects, these are clusters. p is "
            "two-sided. The "
            "adjusted p holds for all benchmarks of a protocol together: with 0.05 as the limit, the probability of "
            "any false finding among them is at most 5% (Holm 1979)."
        ),
        tables=[table],
    )


def _second_less_first(row: Comparison) -> tuple[float, tuple[float, float] | Missing]:
    """The difference and its interval in the direction of the verdicts; `Comparison` has the other one."""
    interval = row.interval if isinstance(row.interval, Missing) else (-row.interval[1], -row.interval[0])
    return 0.0 - row.difference, interval


def _forest(summary: CompareSummary) -> Picture | None:
    """Differences with their intervals, a row for each benchmark with a test; nothing of scores that are no shares."""
    shares = [row for row in summary.comparisons if row.in_points]
    tested = [row for row in shares if row.outcome != UNTESTED]
    drawn: dict[str, dict[str, Comparison]] = {}
    for row in tested or shares:
        drawn.setdefault(row.benchmark, {})[row.protocol] = row
    if not drawn:
        return None
    largest = sorted(drawn, key=lambda name: -max(abs(row.difference) for row in drawn[name].values()))[:MOST_ROWS]
    rows = [list(drawn[name].values()) for name in largest]
    rows.sort(key=lambda of_benchmark: of_benchmark[0].difference)  # where the second model is best comes first
    sizes = [number(row.smallest_detectable) for row in tested if is_known(row.smallest_detectable)]
    names = [svg.shortened(name, 20) for name in short_names(summary.first, summary.second)]
    note, key = f"{names[1]} less {names[0]}, in points (hundredths).", Markup("")
    if tested:
        note += " Large dots: separated after correction (5%). Not separated is not equal."
    if sizes:
        span = " to ".join(dict.fromkeys(svg.points(size, 1) for size in (min(sizes), max(sizes))))
        note += f" Gaps of {span} points are found four times out of five, each by itself."
        key = svg.key(("bar", "gaps too small to detect reliably"))
    if left_out := len({row.benchmark for row in summary.comparisons}) - len(rows):
        note += f" In the table: {count(left_out, 'benchmark')} more, not tested, in other units, or with smaller gaps."
    sizes_of_svg = ((1180.0, 190.0, 300.0, "w640"), (380.0, 104.0, 8.0, "n640"))
    return Picture(key + Markup("").join(_forest_svg(summary, rows, *size) for size in sizes_of_svg), note)


def _forest_svg(
    summary: CompareSummary, rows: Sequence[Sequence[Comparison]], width: float, room: float, right: float, kind: str
) -> Markup:
    """The comparisons of a benchmark are a row; `room` pixels for names on the left, and for words on the `right`."""
    names, wide = short_names(summary.first, summary.second), right > 100
    all_rows = [row for of_benchmark in rows for row in of_benchmark]
    changes = {id(row): _second_less_first(row) for row in all_rows}
    ends = [end for _, interval in changes.values() if isinstance(interval, tuple) for end in interval]
    detectable = [number(row.smallest_detectable) for row in all_rows if is_known(row.smallest_detectable)]
    least, highest = -max(detectable, default=0.01), max(detectable, default=0.01)
    ends += [change for change, _ in changes.values()]
    axis = svg.Axis(min(least, *ends), max(highest, *ends), room, width - right)
    height, values = 46 + 23 * len(rows) + 26, svg.round_values(axis.low, axis.high, 12 if wide else 6)
    written = svg.written_points(values)
    left_letters, right_letters = (int(space / 6.4) - (9 if wide else 2) for space in (axis(0), width - axis(0)))
    better = " better" if wide else ""
    marks = [
        *(svg.box(0, 46 + 23 * index, width, 23, "zone") for index in range(1, len(rows), 2)),
        svg.ticks(axis, values, 30, height - 24, written),
        *(svg.text(axis(value), 26, words, "", "middle") for value, words in zip(values, written, strict=True)),
        svg.text(axis(0) - 6, 11, f"← {svg.shortened(names[0], left_letters)}{better}", "lab", "end"),
        svg.text(axis(0) + 6, 11, f"{svg.shortened(names[1], right_letters)}{better} →", "lab"),
    ]
    protocols = [name for name in PROTOCOLS if name in summary.by_protocol]
    columns = {name: width - right + 16 + 142 * index for index, name in enumerate(protocols)}
    if wide:
        marks += [svg.text(x, 26, PROTOCOL_LABELS[name].lower(), KINDS[name]) for name, x in columns.items()]
    words = {FIRST: svg.shortened(names[0], 21), SECOND: svg.shortened(names[1], 21)}
    for index, of_benchmark in enumerate(rows):
        middle = 46 + 23 * (index + 0.5)
        marks.append(svg.text(4, middle + 4, svg.shortened(of_benchmark[0].benchmark, int(room / 6.4)), "lab"))
        for row in of_benchmark:
            y = middle + (0 if len(protocols) == 1 else 5 if row.protocol == TRAINED else -5)
            color, decided = KINDS[row.protocol], row.outcome in words
            change, interval = changes[id(row)]
            if is_known(row.smallest_detectable):
                reach = number(row.smallest_detectable)
                marks.append(svg.line(axis(-reach), y, axis(reach), y, "ax thick"))
            if isinstance(interval, tuple):
                marks.append(svg.whisker(axis, interval, y, color if decided else f"{color} wide"))
            marks.append(svg.dot(axis(change), y, color, 4.2 if decided else 3.0))
            if wide:
                word = words.get(row.outcome, row.outcome)
                marks.append(svg.text(columns[row.protocol], middle + 4, word, "lab" if decided else ""))
    description = "; ".join(", ".join([of_benchmark[0].benchmark, *map(_said, of_benchmark)]) for of_benchmark in rows)
    label = f"{names[1]} less {names[0]} in points, with 95% intervals. {description}."
    return svg.svg(width, height, label, *marks, kind=kind)


def _said(row: Comparison) -> str:
    """The numbers of a comparison for a label."""
    change, ends = _second_less_first(row)
    interval = " to ".join(svg.points(end, 1, signed=True) for end in ends) if isinstance(ends, tuple) else ""
    name = PROTOCOL_LABELS[row.protocol].lower()
    return f"{name} {svg.points(change, 1, signed=True)} ({interval or 'no interval'}), {row.outcome}"
