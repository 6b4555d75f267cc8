"""Which benchmarks are ready, and from when: above chance for good, and the order of the models nearly settled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from lm_validity.missing import Missing
from lm_validity.pages.page import Outcome
from lm_validity.pages.svg import Axis, LogAxis, box, dot, line, round_values, shortened, svg, text, ticks, whisker
from lm_validity.studies.signal.benchmark import BenchmarkCurves, Bounds, SignalData, Value
from lm_validity.studies.signal.numbers import SignalSummary
from lm_validity.words import beginnings, count

FAMILY = 5  # benchmarks whose names begin alike are one row, and one panel that opens
DOUBLING = 1.8  # from a checkpoint to the next
DOUBLINGS = 4  # checkpoints in a row, from which on training is drawn on a logarithmic axis
WIDTHS = {"w640": (1180, 250, 900), "n640": (360, 122, 268)}  # of the picture, and where its axis begins and ends
ROW = 19
MOST_ROWS = 48


@dataclass(frozen=True)
class Ready:
    """`starts`: from when the mean of the models is above chance for good. `settles`: the 95% interval of when their
    order is nearly settled. `last`: the end of training. All in the page's unit. `reason`: why it is not
    ready, or not known."""

    name: str
    outcome: Outcome
    starts: float | None
    settles: tuple[float, float] | None
    last: float
    reason: str | None = None

    @property
    def by(self) -> float | None:
        """The point of training from which on the benchmark is surely ready; None where it is not known to be."""
        if self.outcome != "yes" or self.starts is None or self.settles is None:
            return None
        return max(self.starts, self.settles[1])


def ready_benchmarks(data: SignalData, summary: SignalSummary) -> list[Ready]:
    """From when on each benchmark tells models apart; those that are ready first, the earliest first."""
    rows = [_ready(data, benchmark, summary) for benchmark in data.benchmarks.values()]
    order_of_outcomes = {"yes": 0, "no": 1, "not known": 2}
    return sorted(rows, key=lambda row: (order_of_outcomes.get(row.outcome, 3), row.by or row.starts or np.inf))


def _ready(data: SignalData, benchmark: BenchmarkCurves, summary: SignalSummary) -> Ready:
    name, scale = benchmark.benchmark, data.progress.scale
    start, ranking = summary.benchmarks[name].above_chance_from_b, summary.ranking[name]
    ends = ranking if isinstance(ranking, Missing) else ranking.settled_from_interval_b
    last = max(float(benchmark.curves[model].progress[-1]) for model in benchmark.scored) * scale
    starts = None if isinstance(start, Missing) else start * scale
    settles = None if isinstance(ends, Missing) else (ends[0] * scale, ends[1] * scale)
    if benchmark.models_above_chance == 0:
        if starts is None:
            return Ready(name, "no", starts, settles, last, "no model is shown to end above chance")
        return Ready(name, "not known", starts, settles, last, "above chance on average, no model by itself")
    if starts is not None and settles is not None and benchmark.alignment.at_end:
        if max(starts, settles[1]) < last:
            return Ready(name, "yes", starts, settles, last)
        if max(starts, settles[0]) >= last:
            return Ready(name, "no", starts, settles, last, "not before the end")
        return Ready(name, "not known", starts, settles, last, "noise allows the whole training")
    return Ready(name, "not known", starts, settles, last, _reason(benchmark, start, ends))


def _reason(benchmark: BenchmarkCurves, start: Value, ends: Bounds) -> str:
    """What is missing, in a few words."""
    if isinstance(benchmark.chance, Missing):
        return "score of guessing unknown"
    if not isinstance(benchmark.models_above_chance, int) or isinstance(benchmark.noise, Missing):
        return "no standard errors"
    if len(benchmark.scored) < 2:
        return "one model has no order"
    if benchmark.alignment.reason is not None or not benchmark.alignment.at_end:
        return "trainings end at different points"
    if isinstance(start, Missing):
        return "the mean is not shown above chance"
    return "no two models told apart" if isinstance(ends, Missing) else "not measured"


def decided_benchmarks(rows: Sequence[Ready]) -> list[Ready]:
    """The benchmarks of which it is known when they rise above chance and when their order settles, and those at
    chance; empty where the first is known of no benchmark."""
    rows_with_both = [row for row in rows if row.starts is not None and row.settles is not None]
    return [row for row in rows if row in rows_with_both or row.outcome == "no"] if rows_with_both else []


# ----------------------------------------------------------------------------------------------------------------------
# Families of benchmarks, and the axis of training.


def families(names: Sequence[str]) -> dict[str, list[str]]:
    """Benchmarks by family, in their order; those alone are a family of one under their own name."""
    begins, members_found = beginnings(names, FAMILY), dict[str, list[str]]()
    for name in names:
        members_found.setdefault(begins.get(name, name), []).append(name)
    return members_found


def doubles(data: SignalData) -> bool:
    """Whether checkpoints lie at multiples of each other for some part of the training, rather than at equal steps."""
    curves = [curve for benchmark in data.benchmarks.values() for curve in benchmark.curves.values()]
    return longest_run(max((np.unique(curve.progress) for curve in curves), key=len)) >= DOUBLINGS


def longest_run(positions: np.ndarray) -> int:
    """The most steps in a row from one of these points (n,), in order, to at least nearly twice as much."""
    positions = positions[positions > 0]
    run = longest = 0
    for ratio in positions[1:] / positions[:-1]:
        run = run + 1 if ratio >= DOUBLING else 0
        longest = max(longest, run)
    return longest


def training_axis(data: SignalData, last: float, start: float, end: float) -> Axis:
    """From billions of tokens, in the page's unit, to pixels."""
    if not doubles(data):
        return Axis(0, last, start, end)
    curves = [curve.progress for benchmark in data.benchmarks.values() for curve in benchmark.curves.values()]
    first = (
        min(float(positions[positions > 0].min()) for positions in curves if (positions > 0).any())
        * data.progress.scale
    )
    return LogAxis(min(first / 2, last / 2), last, start, end)


def axis_values(axis: Axis) -> list[float]:
    """Where lines stand on an axis of training: powers of ten on a logarithmic one, and its end."""
    if not isinstance(axis, LogAxis):
        return round_values(axis.low, axis.high, 5)
    powers = 10.0 ** np.arange(np.ceil(np.log10(axis.low)), np.floor(np.log10(axis.high)) + 1)
    return [float(power) for power in powers if power < axis.high / 2] + [axis.high]


def amount(value: float) -> str:
    """An amount of training: three digits, no power of ten."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# ----------------------------------------------------------------------------------------------------------------------
# The picture.


def ready_picture(data: SignalData, rows: Sequence[Ready], *, grouped: bool = True) -> Markup:
    """A row a benchmark, or a family of them, sorted by when it is ready; for wide and for narrow screens."""
    by_name = {row.name: row for row in rows}
    groups = families(list(by_name)) if grouped else {name: [name] for name in by_name}
    entries = [(name, [by_name[member] for member in members]) for name, members in groups.items()]
    return Markup("").join(_drawn(data, entries[:MOST_ROWS], kind, *size) for kind, size in WIDTHS.items())


def _drawn(
    data: SignalData, entries: Sequence[tuple[str, list[Ready]]], kind: str, width: int, start: int, end: int
) -> Markup:
    bottom, narrow = 6 + ROW * len(entries), kind == "n640"
    axis = training_axis(data, max(row.last for _, rows in entries for row in rows), start, end)
    values = axis_values(axis)
    if narrow:
        values = [values[0], values[-1]]
    marks = [ticks(axis, values, 2, bottom, [amount(value) for value in values])]
    marks.append(text(end, bottom + 29, f"{data.progress.words} of training", "", "end"))
    descriptions = []
    for index, (name, rows) in enumerate(entries):
        y = 6 + ROW * (index + 0.5)
        words, short = _words(rows, data.progress.words)
        descriptions.append(f"{name}: {words}")
        label = name if len(rows) == 1 else f"{name} ({len(rows)})"
        drawn = [box(0, y - ROW / 2, width, ROW, "hit"), text(0, y + 4, shortened(label, 18 if narrow else 38), "lab")]
        drawn += _marks(axis, rows, y)
        kind_of_words = "num" if any(row.outcome == "yes" for row in rows) else ""
        drawn.append(text(end + 14, y + 4, short if narrow else words, kind_of_words))
        marks.append(Markup('<g class="row" tabindex="0" data-say="{}">{}</g>').format(
            f"{name}: {_details(rows, data.progress.words)}", Markup("").join(drawn)))  # fmt: skip
    label = f"When each benchmark is ready, the earliest first. {'; '.join(descriptions)}."
    return svg(width, bottom + 34, label, *marks, kind=kind)


def _marks(axis: Axis, rows: Sequence[Ready], y: float) -> list[Markup]:
    """Of a benchmark: from when it is above chance, when its order settles, when it is ready. Of a family: a tick for
    each that is ready."""
    if len(rows) > 1:
        ready = [row.by for row in rows if row.by is not None]
        return [line(axis(by), y - 5, axis(by), y + 5, "k w") for by in ready]
    row = rows[0]
    marks = [whisker(axis, row.settles, y, "k" if row.by is not None else "s")]
    if row.starts is not None:
        marks.append(dot(axis(row.starts), y, "hollow", 3.6))
    if row.by is not None:
        marks.append(dot(axis(row.by), y, "k"))
    return marks


class _RowWords(NamedTuple):
    """What stands beside a row, and the same where there is little room."""

    words: str
    short: str


def _words(rows: Sequence[Ready], unit: str) -> _RowWords:
    """From when a benchmark is ready, or how many of a family."""
    ready = sorted(row.by for row in rows if row.by is not None)
    if len(rows) > 1:
        first = f", the first by {amount(ready[0])}" if ready else ""
        return _RowWords(f"{len(ready)} of {len(rows)} ready{first}", f"{len(ready)} of {len(rows)}")
    if ready:
        return _RowWords(f"ready by {amount(ready[0])} {unit}", f"by {amount(ready[0])}")
    no = rows[0].outcome == "no"
    return _RowWords(f"{'no' if no else 'not known'}: {rows[0].reason}", "no" if no else "not known")


def _details(rows: Sequence[Ready], unit: str) -> str:
    """All that is known of a row, in words."""
    if len(rows) > 1:
        ready = [row for row in rows if row.by is not None]
        names = ", ".join(f"{row.name} by {amount(row.by or 0)}" for row in ready[:5])
        remainder = f" and {len(ready) - 5} more" if len(ready) > 5 else ""
        return f"{_words(rows, unit).words}. {f'Ready: {names}{remainder} {unit}.' if ready else ''}"
    row = rows[0]
    starts = "" if row.starts is None else f"above chance for good from {amount(row.starts)}; "
    settles = "" if row.settles is None else f"order settled by {' to '.join(map(amount, row.settles))} (95%); "
    return f"{starts}{settles}{_words(rows, unit).words}."


def ready_note(rows: Sequence[Ready]) -> Markup:
    """How to read the picture."""
    n_others = len(rows) - len(decided_benchmarks(rows))
    addition = f" {count(n_others, 'benchmark is', 'benchmarks are')} not counted: what it takes was not measured."
    addition = addition if n_others else ""
    drawn = len(families([row.name for row in rows]))
    addition += f" The first {MOST_ROWS} of {drawn} rows are drawn." if drawn > MOST_ROWS else ""
    marks = (
        (dot(11, 6, "hollow", 3.6), "from here above chance for good"),
        (line(0, 6, 22, 6, "k w"), "when the models’ order is nearly settled (95% interval)"),
        (dot(11, 6, "k"), "ready for sure: both"),
    )
    entry = Markup('<span><svg viewBox="0 0 22 12" style="width:22px;height:12px" aria-hidden="true">{}</svg>{}</span>')
    spans = Markup("").join(entry.format(*mark) for mark in marks)
    return Markup('<div class="key">{}{}</div>').format(spans, addition)
