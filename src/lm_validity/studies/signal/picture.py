"""The page's picture of learning curves: a panel a benchmark, those of the highest signal quality first."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from lm_validity.pages.page import Outcome, Panel, Picture, panel_grid
from lm_validity.pages.svg import Axis, LogAxis, curve, line, lines_svg, round_values, shortened, text
from lm_validity.results.put import Row, Rows, ends_of
from lm_validity.studies.signal.benchmark import WHICH_DIRECTION, BenchmarkCurves, SignalData
from lm_validity.words import count, decimal, is_known, number, shared_beginning

MOST_BENCHMARKS, MOST_MODELS, MOST_POINTS = 24, 60, 30_000  # that are drawn
DOUBLING = 1.8  # from a checkpoint to the next
DOUBLINGS = 4  # checkpoints in a row, from which on training is drawn on a logarithmic axis


def curves_picture(data: SignalData, rows: Rows) -> Picture:
    """The curves of each benchmark, best first. Of many benchmarks and models some are drawn, and of many points."""
    quality = {name: rows.value("signal_quality_mean", subject=name) for name in data.benchmarks}
    best_first = sorted(data.benchmarks.values(), key=lambda each: -np.nan_to_num(quality[each.benchmark], nan=-1))
    drawn = best_first[:MOST_BENCHMARKS]
    points_of_each = max(min(MOST_POINTS // sum(min(len(each.scored), MOST_MODELS) for each in drawn), 60), 2)
    panels = [_panel(data, rows, benchmark, points_of_each) for benchmark in drawn]
    return Picture(_model_choice(data, drawn) + panel_grid(panels), _note(data, drawn))


def _model_choice(data: SignalData, drawn: Sequence[BenchmarkCurves]) -> Markup:
    """A field that shows the curves of one model only; nothing where there is one model."""
    names = {
        model: name for model, name in _names(data).items() if any(model in benchmark.scored for benchmark in drawn)
    }
    if len(names) < 2:
        return Markup("")
    options = Markup("").join(
        Markup("<option{}>{}</option>").format(" selected" if model in data.own_models else "", name)
        for model, name in sorted(names.items(), key=lambda pair: pair[1])
    )
    field = '<p class="pick"><label>Show one model <select><option value="">all</option>{}</select></label></p>'
    return Markup(field).format(options)


def quality_words(row: Row | None) -> str:
    """`0.93 (95%: 0.80 to 0.97)`, or unknown."""
    if row is None or row.value is None:
        return "unknown"
    ends = ends_of(row)
    return decimal(row.value) + (f" (95%: {decimal(ends[0])} to {decimal(ends[1])})" if ends else "")


def _mark(rows: Rows, name: str) -> tuple[Outcome, str]:
    """Whether scores are shown to improve steadily, and the word for it."""
    steady = rows.row("steady", subject=name)
    if steady is None or steady.value is None:
        asked = steady is not None and steady.reason == WHICH_DIRECTION.reason
        return ("not known", "is lower better?") if asked else ("not measured", "not tested")
    return ("yes", "steady") if steady.value else ("not known", "not shown")


def _panel(data: SignalData, rows: Rows, benchmark: BenchmarkCurves, points_of_each: int) -> Panel:
    mark = _mark(rows, benchmark.benchmark)
    quality = quality_words(rows.row("signal_quality_mean", subject=benchmark.benchmark))
    value, _, interval = quality.partition(" ")
    words = f"signal quality **{value}** {interval}".rstrip() + "; lower is better" * (benchmark.direction < 0)
    picture = _curve_picture(data, benchmark, points_of_each, quality, steady=mark[0] == "yes")
    return Panel(benchmark.benchmark, words, picture, *mark)


def _note(data: SignalData, drawn: Sequence[BenchmarkCurves]) -> str:
    """How to read the curves, and what is not drawn."""
    numbers = sorted({len(benchmark.scored) for benchmark in drawn})
    models = count(numbers[-1], "model") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} models"
    which_models = f"{MOST_MODELS} of the models" if numbers[-1] > MOST_MODELS else "each model"
    note = f"Scores of {models} during training ({data.progress.words}). Thin: {which_models}; "
    note += "point at one for its name. "
    if any(len(benchmark.mean_curve) > 1 for benchmark in drawn):
        note += "Thick: their mean where all have a score; dashed where it is not shown to improve steadily. "
    note += "Dotted: chance. " if any(is_known(benchmark.chance) for benchmark in drawn) else ""
    note += "Signal quality runs from 0 to 1; at 1 scores improve without a setback."
    note += " From one line of the axis to the next, training is ten times as long." if doubles(data) else ""
    if len(data.benchmarks) > len(drawn):
        note += f" The {len(drawn)} of {len(data.benchmarks)} with the highest signal quality are drawn."
    return note


def _names(data: SignalData) -> dict[str, str]:
    """Each model's label, without what all labels begin with."""
    labels = {model: str(label) for model, label in data.learning.facts["label"].items()}
    begin = shared_beginning(labels.values()) if len(labels) > 1 else 0
    return {model: label[begin:] or label for model, label in labels.items()}


def _some(number: int, limit: int) -> np.ndarray:
    """Indices of at most so many of a number of things, the first and the last among them."""
    return np.unique(np.linspace(0, number - 1, min(number, limit)).round().astype(int))


# ----------------------------------------------------------------------------------------------------------------------
# The axis of training.


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


def _training_axis(data: SignalData, last: float, start: float, end: float) -> Axis:
    """From billions of tokens, in the page's unit, to pixels."""
    if not doubles(data):
        return Axis(0, last, start, end)
    curves = [curve.progress for benchmark in data.benchmarks.values() for curve in benchmark.curves.values()]
    first = min(float(positions[positions > 0].min()) for positions in curves if (positions > 0).any())
    return LogAxis(min(first * data.progress.scale / 2, last / 2), last, start, end)


def _axis_values(axis: Axis) -> list[float]:
    """Where lines stand on an axis of training: powers of ten on a logarithmic one, and its end."""
    if not isinstance(axis, LogAxis):
        return round_values(axis.low, axis.high, 5)
    powers = 10.0 ** np.arange(np.ceil(np.log10(axis.low)), np.floor(np.log10(axis.high)) + 1)
    return [float(power) for power in powers if power < axis.high / 2] + [axis.high]


def _amount(value: float) -> str:
    """An amount of training: three digits, no power of ten."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# ----------------------------------------------------------------------------------------------------------------------
# The curves of one benchmark.


class _Drawn(NamedTuple):
    """A curve of a picture: progress in billions and values (points,), and its kind."""

    progress: np.ndarray
    values: np.ndarray
    kind: str


def _curve_picture(
    data: SignalData, benchmark: BenchmarkCurves, points_of_each: int, quality: str, *, steady: bool
) -> Markup:
    names, mean, scored = _names(data), benchmark.mean_curve, benchmark.scored
    some = [scored[index] for index in _some(len(scored), MOST_MODELS)]
    curves: dict[str, _Drawn] = {}
    for model in dict.fromkeys([*some, *(model for model in data.own_models if model in scored)]):
        of_model, kind = benchmark.curves[model], "ln me" if model in data.own_models else "ln"
        points = _some(len(of_model.values), points_of_each)
        curves[names[model]] = _Drawn(of_model.progress[points], benchmark.direction * of_model.values[points], kind)
    values = [benchmark.direction * benchmark.curves[model].values for model in scored]
    low_word, high_word = _ends(min(each.min() for each in values), max(each.max() for each in values))
    label = f"{benchmark.benchmark}: scores of {count(len(values), 'model')} in training, {low_word} to {high_word}. "
    if len(mean):
        first, at_end = _ends(float(mean[0]), float(mean[-1]))
        label += f"Their mean goes from {first} to {at_end}. "
    label += f"Signal quality {quality}."
    last = max(float(benchmark.curves[model].progress[-1]) for model in scored)
    thick = _Drawn(benchmark.alignment.progress, mean, "ln m" if steady else "ln m no")
    return _lines(data, curves, label, last, number(benchmark.chance), thick)


def _lines(
    data: SignalData, curves: Mapping[str, _Drawn], label: str, last: float, chance: float, thick: _Drawn
) -> Markup:
    """Named curves, the highest and the lowest at the end with their names, as are the reader's own; `thick`: a curve
    that lies on top."""
    width, bottom, scale = 270, 78, data.progress.scale
    end = width - (78 if len(curves) > 1 else 2)
    least, highest = (
        min(each.values.min() for each in curves.values()),
        max(each.values.max() for each in curves.values()),
    )
    room = (highest - least) / 2
    drawn_chance = least - room <= chance <= highest + room
    if drawn_chance:
        least, highest = min(least, chance), max(highest, chance)
    x_axis, up = _training_axis(data, last * scale, 34, end), Axis(least, highest, bottom - 3, 10)
    marks = [line(34, bottom, end, bottom, "ax")]
    if isinstance(x_axis, LogAxis):
        marks += [line(x_axis(value), 8, x_axis(value), bottom, "g") for value in _axis_values(x_axis)[:-1]]
    if drawn_chance:
        marks.append(line(34, up(chance), end, up(chance), "chance"))
    for name, (progress, values, kind) in [*curves.items(), ("", thick)]:
        marks.append(curve([x_axis(x * scale) for x in progress], [up(y) for y in values], kind, name))
    marks += _labels(curves, up, end + 4) if len(curves) > 1 else []
    low_word, high_word = _ends(least, highest)
    first = _axis_values(x_axis)[0] if isinstance(x_axis, LogAxis) else 0.0
    marks += [
        text(30, 14, high_word, "", "end"),
        text(30, bottom, low_word, "", "end"),
        text(x_axis(first), bottom + 15, _amount(first), "", "middle" if first else "start"),
        text(end, bottom + 15, f"{_amount(last * scale)} {data.progress.words}", "", "end"),
    ]
    return lines_svg(width, bottom + 19, label, *marks, x_axis=x_axis, up=up, unit=data.progress.words)


def _labels(curves: Mapping[str, _Drawn], up: Axis, x: float, apart: float = 12) -> list[Markup]:
    """The names of the reader's own models, of the highest and of the lowest curve, those that have room."""
    at_end = {name: float(drawn.values[-1]) for name, drawn in curves.items()}
    own_names = [name for name, drawn in curves.items() if drawn.kind.endswith("me")]
    placed: dict[float, Markup] = {}
    for name in [*own_names, max(at_end, key=lambda key: at_end[key]), min(at_end, key=lambda key: at_end[key])]:
        y = up(at_end[name]) + 4
        if all(abs(y - placed_y) >= apart for placed_y in placed):
            placed[y] = text(x, y, shortened(name, 11), "num" if name in own_names else "lab")
    return list(placed.values())


def _ends(low: float, high: float) -> tuple[str, str]:
    """Two numbers with as many digits as tell them apart."""
    for digits in range(0 if max(abs(low), abs(high)) >= 100 else 2, 6):
        words = decimal(low, digits), decimal(high, digits)
        if words[0] != words[1]:
            return words
    return decimal(low), decimal(high)
