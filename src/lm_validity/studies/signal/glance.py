"""What the page shows before its folds, and a site's first page of it: the finding, the curves, and three answers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from lm_validity.missing import Missing, is_known, number
from lm_validity.pages.page import Answer, Lede, Outcome, Panel, Picture, panel_grid
from lm_validity.pages.svg import Axis, box, curve, dot, line, points, shortened, svg, text, ticks, whisker
from lm_validity.studies.signal.benchmark import WHICH_DIRECTION, BenchmarkCurves, SignalData
from lm_validity.studies.signal.statistics.quality import fewest_checkpoints
from lm_validity.words import count, decimal, percent

WIDTH = 380
MOST_ROWS, MOST_BENCHMARKS, MOST_MODELS, MOST_POINTS = 48, 24, 60, 30_000  # that are drawn


def at_a_glance(data: SignalData, results: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a `Page`: lede, picture, panels and answers."""
    best_first = sorted(data.benchmarks.values(), key=lambda each: -np.nan_to_num(number(each.quality), nan=-1))
    lasting, chance = _lasting(data, results["ranking_consistency"]), _above_chance(data)
    panels = (_settling(data, results["ranking"]), lasting[0], chance[0])
    answers = (_steady_answer(data, best_first), lasting[1], chance[1])
    return {
        "lede": _lede(data),
        "picture": _curves(data, best_first),
        "panels": [panel for panel in panels if panel is not None],
        "answers": [answer for answer in answers if answer is not None],
    }


def _tested(data: SignalData) -> tuple[int, int]:
    """On how many benchmarks scores improve steadily, and on how many that could be tested."""
    tested = [steady for steady in data.steady.values() if is_known(steady)]
    return sum(tested), len(tested)


def _not_tested(data: SignalData) -> tuple[str, str]:
    """What is known of no benchmark, and why."""
    if data.falling:
        return "Scores fall steadily: is lower better?", "Nothing says which direction is better."
    if any(is_known(benchmark.quality) for benchmark in data.benchmarks.values()):
        return "Whether scores improve steadily was not tested", "Nothing was resampled, so there is no test."
    fewest = fewest_checkpoints(data.options.convention)
    heading = "Too few checkpoints to say whether scores improve steadily"
    return heading, f"That takes {fewest} checkpoints of a model."


def _lede(data: SignalData) -> Lede:
    steady, tested = _tested(data)
    if not tested:
        return Lede(*_not_tested(data))
    if not steady:
        heading = "On no benchmark are scores shown to improve steadily during training"
        return Lede(
            heading, "More steadily than a random walk. Noise, or scores that fall before they rise, may hide it."
        )
    heading = f"On {steady} of {count(tested, 'benchmark')}, scores improve steadily during training"
    rest = "" if steady == tested else f" For the other{'s' * (tested - steady > 1)} this is not shown."
    return Lede(heading, f"“Steadily” means: beats a random walk.{rest}")


# ----------------------------------------------------------------------------------------------------------------------
# The curves.


def _mark(data: SignalData, benchmark: BenchmarkCurves) -> tuple[Outcome, str]:
    steady = data.steady[benchmark.benchmark]
    if steady is WHICH_DIRECTION:
        return "not known", "is lower better?"
    if isinstance(steady, Missing):
        return "not measured", "not tested"
    return ("yes", "steady") if steady else ("not known", "not shown")


def _quality(benchmark: BenchmarkCurves) -> tuple[str, str]:
    """Its signal quality, and the interval in brackets."""
    ends = benchmark.quality_interval
    interval = f" (95%: {decimal(ends[0])} to {decimal(ends[1])})" if is_known(ends) else ""
    return decimal(benchmark.quality) if is_known(benchmark.quality) else "unknown", interval


def _curves(data: SignalData, best_first: Sequence[BenchmarkCurves]) -> Picture:
    """Small multiples, best first. Of many models some are drawn, and of many points."""
    shown = best_first[:MOST_BENCHMARKS]
    lines = sum(min(len(benchmark.scored), MOST_MODELS) for benchmark in shown)
    panels = []
    for benchmark in shown:
        quality, interval = _quality(benchmark)
        words = f"signal quality **{quality}**{interval}" + "; lower is better" * (benchmark.direction < 0)
        picture = _curve_picture(data, benchmark, max(min(MOST_POINTS // lines, 60), 2))
        panels.append(Panel(benchmark.benchmark, words, picture, *_mark(data, benchmark)))
    numbers = sorted({len(benchmark.scored) for benchmark in shown})
    models = count(numbers[-1], "model") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} models"
    each = f"{MOST_MODELS} of the models" if numbers[-1] > MOST_MODELS else "each model"
    note = f"Scores of {models} against {data.progress.words} of training. Thin: {each}. "
    if any(len(benchmark.mean_curve) > 1 for benchmark in shown):
        note += "Thick: their mean where all have a score; dashed where it is not shown to improve steadily. "
    note += "Dotted: chance. " if any(is_known(benchmark.chance) for benchmark in shown) else ""
    note += "Signal quality runs from 0 to 1; at 1 scores improve without a setback."
    _, tested = _tested(data)
    others = len(data.benchmarks) - tested
    if others and tested:
        note += f" {count(others, 'benchmark is', 'benchmarks are')} not tested, and not counted."
    if len(best_first) > len(shown):
        note += f" The {len(shown)} of {len(best_first)} benchmarks with the highest signal quality are drawn."
    return Picture(panel_grid(panels), note)


def _some(number: int, most: int) -> np.ndarray:
    """Indices of at most so many of a number of things, the first and the last among them."""
    return np.unique(np.linspace(0, number - 1, min(number, most)).round().astype(int))


def _curve_picture(data: SignalData, benchmark: BenchmarkCurves, points_of_each: int) -> Markup:
    width, bottom = 270, 74
    progress, mean = benchmark.alignment.progress * data.progress.scale, benchmark.mean_curve
    steady = data.steady[benchmark.benchmark] is True
    curves = {model: benchmark.direction * benchmark.curves[model].values for model in benchmark.scored}
    least, most = min(values.min() for values in curves.values()), max(values.max() for values in curves.values())
    last = max(benchmark.curves[model].progress[-1] for model in benchmark.scored) * data.progress.scale
    chance, room = number(benchmark.chance), (most - least) / 2
    drawn_chance = least - room <= chance <= most + room
    if drawn_chance:
        least, most = min(least, chance), max(most, chance)
    across, up = Axis(0, last, 34, width - 2), Axis(least, most, bottom - 3, 8)
    marks = [line(34, bottom, width - 2, bottom, "ax")]
    if drawn_chance:
        marks.append(line(34, up(chance), width - 2, up(chance), "chance"))
    for place in _some(len(curves), MOST_MODELS):
        model = benchmark.scored[place]
        kept = _some(len(curves[model]), points_of_each)
        at = benchmark.curves[model].progress[kept] * data.progress.scale
        marks.append(curve([across(x) for x in at], [up(y) for y in curves[model][kept]], "ln"))
    marks.append(curve([across(x) for x in progress], [up(y) for y in mean], "ln m" if steady else "ln m no"))
    low_word, high_word = _ends(least, most)
    end = f"{last:,.0f}" if last >= 10 else f"{last:.2g}"
    marks += [
        text(30, 12, high_word, "", "end"),
        text(30, bottom, low_word, "", "end"),
        text(34, bottom + 14, "0"),
        text(width - 2, bottom + 14, f"{end} {data.progress.words}", "", "end"),
    ]
    label = f"{benchmark.benchmark}: scores of {count(len(curves), 'model')} in training, {low_word} to {high_word}. "
    if len(mean):
        first, at_end = _ends(float(mean[0]), float(mean[-1]))
        label += f"Their mean goes from {first} to {at_end}. "
    quality, interval = _quality(benchmark)
    return svg(width, bottom + 18, f"{label}Signal quality {quality}{interval or ', no interval'}.", *marks)


def _ends(low: float, high: float) -> tuple[str, str]:
    """Two numbers with as many digits as tell them apart."""
    for digits in range(0 if max(abs(low), abs(high)) >= 100 else 2, 6):
        words = decimal(low, digits), decimal(high, digits)
        if words[0] != words[1]:
            return words
    return decimal(low), decimal(high)


def _steady_answer(data: SignalData, best_first: Sequence[BenchmarkCurves]) -> Answer:
    steady, tested = _tested(data)
    heading, why = _not_tested(data)
    of_all = count(tested, "benchmark")
    sentence = f"On {steady} of {of_all}, scores improve more steadily than a random walk."
    if not tested:
        sentence = f"{heading}."
        if data.falling:
            sentence = "Not known: scores fall steadily, and nothing says which direction is better."
    elif not steady:
        sentence = f"On none of {of_all} are scores shown to improve more steadily than a random walk."
    shown = best_first[:MOST_BENCHMARKS]
    columns = min(len(shown), 6)
    rows = -(-len(shown) // columns)
    wide, high = WIDTH / columns, 132 / rows
    marks, words = [], []
    for place, benchmark in enumerate(shown):
        left, top = (place % columns) * wide, (place // columns) * high
        mean, progress, name = benchmark.mean_curve, benchmark.alignment.progress, benchmark.benchmark
        if len(mean) < 2:
            longest = max(
                (benchmark.curves[model] for model in benchmark.scored), key=lambda of_model: of_model.progress[-1]
            )
            kept = _some(len(longest.values), 60)
            mean, progress = benchmark.direction * longest.values[kept], longest.progress[kept]
        bottom = top + high - 18
        marks.append(line(left, bottom + 2, left + wide - 12, bottom + 2, "ax"))
        across, up = Axis(0, progress[-1], left, left + wide - 12), Axis(mean.min(), mean.max(), bottom, top + 3)
        kind = "ln m" if data.steady[name] is True else "ln m no"
        marks.append(curve([across(x) for x in progress], [up(y) for y in mean], kind))
        short = shortened(name, max(int((wide - 8) / 6.2), 3))
        marks.append(text(left, bottom + 14, short, "lab" if data.steady[name] is True else ""))
        words.append(f"{name}: signal quality {''.join(_quality(benchmark))}, {_mark(data, benchmark)[1]}")
    label = f"Mean score during training, a curve for each benchmark. {'; '.join(words)}."
    numbers = {len(benchmark.scored) for benchmark in shown}
    models = count(max(numbers), "model")
    basis = f"The first {len(shown)} of {len(best_first)}. " if len(best_first) > len(shown) else ""
    basis += f"Mean of {'up to ' * (len(numbers) > 1)}{models}"
    if any(len(benchmark.mean_curve) < 2 for benchmark in shown):
        basis += "; where their training has nothing in common, the one trained longest"
    basis += ". " + ("Solid: steadier than a random walk (false discovery rate 5%)." if tested else why)
    return Answer(
        "Do scores improve steadily in training?",
        sentence,
        svg(WIDTH, 132, label, *marks),
        basis=basis,
        link="The curves",
    )


# ----------------------------------------------------------------------------------------------------------------------
# Panels: a row a benchmark.


def _rows(names: Sequence[str]) -> tuple[list[float], float, float, list[Markup]]:
    """The rows' heights, the bottom under them, where their axis begins, and their names where these have room."""
    step = min(12.0, 144 / len(names))
    heights = [round(8 + step * (place + 0.5), 1) for place in range(len(names))]
    if step < 12:
        return heights, 8 + step * len(names), 8, []
    words = [text(0, at + 4, shortened(name, 15), "lab") for name, at in zip(names, heights, strict=True)]
    return heights, 8 + step * len(names), 104, words


def _radius(heights: Sequence[float]) -> float:
    """Of dots that do not touch those of the next row."""
    return min(4.2, 0.42 * (heights[1] - heights[0])) if len(heights) > 1 else 4.2


def _outcome(yes: int, of: int) -> Outcome:
    return "not known" if not yes else "yes" if yes == of else "in part"


def _some_of(yes: int, of: int) -> str:
    return f"**{yes} of {of}** benchmark{'s' * (of != 1)}"


def _first_rows(names: Sequence[object]) -> str:
    return f" The first {MOST_ROWS} of {len(names)} are drawn." if len(names) > MOST_ROWS else ""


def _settling(data: SignalData, ranking: Mapping[str, Any]) -> Panel | None:
    """From when on 9 of 10 pairs of models keep their final order; None where no benchmark says."""
    ranked = {name: entry for name, entry in ranking.items() if is_known(entry) and is_known(entry["tokens_b"])}
    told = {name: entry for name, entry in ranked.items() if is_known(entry["separable_pairs"])}
    key, entries = ("settled_from", told) if told else ("nearly_stable_from", ranked)
    scale, settled, shown = data.progress.scale, 0, []
    for name, entry in entries.items():
        if not is_known(entry[f"{key}_b"]) or data.benchmarks[name].models_above_chance == 0:
            continue
        at, ends, last = entry[f"{key}_b"] * scale, entry[f"{key}_interval_b"], entry["tokens_b"][-1] * scale
        interval = (ends[0] * scale, ends[1] * scale) if is_known(ends) else None
        settled += interval is not None and interval[1] < last
        shown.append((name, at, interval, last))
    if not shown:
        return None
    shown.sort(key=lambda row: row[1])
    drawn = shown[:MOST_ROWS]
    heights, bottom, left, marks = _rows([name for name, *_ in drawn])
    end = max(last for *_, last in drawn)
    axis, radius = Axis(0, end, left, WIDTH - 8), _radius(heights)
    values = (0, end / 2, end)
    marks = [ticks(axis, values, 4, bottom, [f"{value:.3g}" for value in values]), *marks]
    words = []
    for (name, at, interval, last), y in zip(drawn, heights, strict=True):
        kind = "k" if at < last else "s"
        marks += [whisker(axis, interval, y, kind), dot(axis(at), y, kind, radius)]
        ends_words = f", 95%: {interval[0]:.3g} to {interval[1]:.3g}" if interval else ", no interval"
        words.append(f"{name} {at:.3g}{ends_words}")
    marks.append(text(WIDTH - 8, bottom + 27, f"{data.progress.words}; grey: not before the last point", "", "end"))
    label = f"From when on nine of ten pairs of models have their final order, in {data.progress.words}: "
    label += f"{'; '.join(words)}."
    outcome, said = _outcome(settled, len(entries)), f"{_some_of(settled, len(entries))}: nearly settled "
    said += "before the last common point, noise allowed for."
    if not told:
        outcome, said = "not measured", "**Noise unknown:** equal models may seem to settle late."
    picture = svg(WIDTH, bottom + 32, label, *marks)
    return Panel("When does the models’ order settle?", said + _first_rows(shown), picture, outcome)


def _lasting(data: SignalData, consistency: Mapping[str, Any]) -> tuple[Panel | None, Answer | None]:
    """The share of later checkpoints with an early order, beside what coin tosses give."""
    # of windows that are fitted to each training where no benchmark has a value in the chosen ones
    fitted = not any(is_known(entry["value"]) for entry in consistency.values())
    entries = {name: entry["fitted"] if fitted else entry for name, entry in consistency.items()}
    known = {name: entry for name, entry in entries.items() if is_known(entry["value"])}
    if not known:
        return None, None
    names = sorted(known, key=lambda name: -known[name]["value"])
    lasts = {name: known[name]["lasts"] for name in names if is_known(known[name]["lasts"])}
    longer = sum(lasts.values())
    drawn = names[:MOST_ROWS]
    heights, bottom, left, labels = _rows(drawn)
    axis, radius = Axis(0, 1, left, WIDTH - 12), _radius(heights)
    marks, words = [ticks(axis, (0, 0.5, 1), 4, bottom, ("0%", "50%", "100%")), *labels], []
    for name, y in zip(drawn, heights, strict=True):
        coin, value = known[name]["coin_flip_interval"], known[name]["value"]
        words.append(f"{name} {percent(value)}")
        if is_known(coin):
            wide = max(axis(coin[1]) - axis(coin[0]), 1)
            marks.append(box(axis(coin[0]), y - 1.2 * radius, wide, 2.4 * radius, "zone"))
            words[-1] += f", coins {percent(coin[0])} to {percent(coin[1])}"
        marks.append(dot(axis(value), y, "k", radius))
    marks.append(text(WIDTH - 8, bottom + 27, "later checkpoints with the early order; shaded: coin tosses", "", "end"))
    label = f"Share of later checkpoints with the early order, and where 95% of coin tosses fall: {'; '.join(words)}."
    picture = svg(WIDTH, bottom + 32, label, *marks)
    pairs = max(len(entry["pairs"]) for entry in known.values())
    question = "Does an early ranking last?"
    (low, high), (later, _) = data.windows.base, data.windows.later
    when = f"{low:g} to {high:g} billion tokens, and after {later:g}"
    if fitted or data.windows.relative:
        when = "10% to 20% of training, and after 22%"
    basis = f"{count(pairs, 'pair')} of equally large models. Order at {when}."
    if not lasts:
        shares = f"{percent(known[names[-1]]['value'])} to {percent(known[names[0]]['value'])}"
        said = f"**{shares}** of later checkpoints keep it; not tested against coin tosses."
        panel = Panel(question, said + _first_rows(names), picture, "not measured")
        return panel, Answer(question, "Not tested: nothing was resampled.", picture, basis=basis, link="The orders")
    sentence = f"On {longer} of {count(len(lasts), 'benchmark')}, an early ranking lasts longer than coin tosses would."
    if not longer:
        sentence = f"Not known: with {count(pairs, 'pair')} of equally large models, coin tosses can look as stable."
    said = f"On {_some_of(longer, len(lasts))}, it lasts longer than coin tosses would (false discovery rate 5%)."
    panel = Panel(question, said + _first_rows(names), picture, _outcome(longer, len(lasts)))
    return panel, Answer(question, sentence, picture, basis=basis, link="The orders")


def _above_chance(data: SignalData) -> tuple[Panel | None, Answer | None]:
    """The mean score's distance from chance at the first and at the last common point."""
    rows: list[tuple[str, float, float]] = []
    for name, benchmark in data.benchmarks.items():
        # a score beyond 1 is no share, so that its distance from chance has no points
        if is_known(benchmark.chance) and len(benchmark.mean_curve) and np.abs(benchmark.mean_curve).max() <= 1:
            first, last = benchmark.direction * (benchmark.mean_curve[[0, -1]] - number(benchmark.chance))
            rows.append((name, float(first), float(last)))
    if not rows:
        return None, None
    rows.sort(key=lambda row: -row[2])
    drawn = rows[:MOST_ROWS]
    heights, bottom, left, labels = _rows([name for name, *_ in drawn])
    low = min(0.0, *(min(row[1:]) for row in drawn))
    high = max(0.05, *(max(row[1:]) for row in drawn))
    axis = Axis(low, high, left, WIDTH - 12)
    step = next(step for step in (0.02, 0.05, 0.1, 0.2, 0.5, 1e9) if (high - low) / step <= 5)
    values = [step * place for place in range(int(np.ceil(low / step)), int(high / step) + 1)]
    written = ["chance" if not value else points(value, signed=True) for value in values]
    marks, radius = [ticks(axis, values, 4, bottom, written), *labels], _radius(heights)
    for (_, first, last), y in zip(drawn, heights, strict=True):
        marks += [
            line(axis(first), y, axis(last), y, "join"),
            dot(axis(first), y, "hollow", 0.75 * radius),
            dot(axis(last), y, "k", radius),
        ]
    marks.append(text(WIDTH - 8, bottom + 27, "points above chance, mean of the models: first → last", "", "end"))
    words = "; ".join(
        f"{name} {points(first, signed=True)} to {points(last, signed=True)}" for name, first, last in drawn
    )
    label = f"Mean score in points above chance, first and last common point: {words}. No intervals."
    picture = svg(WIDTH, bottom + 32, label, *marks)
    question = "Do scores end above chance?"
    counted = [above for b in data.benchmarks.values() if is_known(above := b.models_above_chance)]
    if not counted:
        said = "these scores have no standard errors."
        basis = "Small gaps may be noise. lm-eval's files have the errors."
        panel = Panel(question, f"**Not measured:** {said} Small gaps may be noise.", picture, "not measured")
        return panel, Answer(question, f"Not measured: {said}", picture, basis=basis)
    above = sum(models > 0 for models in counted)
    said = f"On {_some_of(above, len(counted))}, a model is shown to end above chance.{_first_rows(rows)}"
    panel = Panel(question, said, picture, _outcome(above, len(counted)) if above else "no")
    of_all = count(len(counted), "benchmark")
    where = f"On {above} of {of_all}, a model is shown" if above else f"On none of {of_all} is a model shown"
    sentence = f"{where} to end above chance."
    basis = "One-sided tests at 5%, adjusted for the number of models (Holm)."
    return panel, Answer(question, sentence, picture, basis=basis, link="Each benchmark")
