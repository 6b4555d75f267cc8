"""Pictures of one benchmark: the panels of its card, and the cells of its row in the table of all benchmarks."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
import pandas as pd
from markupsafe import Markup

from lm_validity.config.groups import parse_group
from lm_validity.missing import Missing
from lm_validity.pages import svg as draw
from lm_validity.pages.page import Outcome, Panel
from lm_validity.results.put import Rows
from lm_validity.results.sections import Dots, Points, Series
from lm_validity.site.cards.values import CardSources, Value, Values, measured_value, tokens_words
from lm_validity.site.cards.verdict import NOT_MEASURED, PARTLY, YES, Mark, Verdict
from lm_validity.studies.agreement.statistics.noise import shown_ceiling
from lm_validity.words import count, decimal, percent

WIDTH, HEIGHT = 360, 132  # of a panel's picture
SHARES = (0.0, 0.5, 0.8, 1.0)


def outcome(answer: str) -> Outcome:
    """The mark's word for a rule's answer: `in part` for PARTLY, else the answer itself."""
    return cast(Outcome, "in part" if answer == PARTLY else answer)


def ceiling_of(values: Values, tau: Value, key: str) -> float | None:
    """The noise ceiling `key` of an agreement, where it is shown."""
    ceiling = measured_value(values, key)
    limit = math.nan if ceiling is None else shown_ceiling(ceiling.number, tau.number)
    return None if math.isnan(limit) else limit


def between(value: Value, write: Callable[[float], str] = decimal) -> str:
    """`95%: 0.30 to 0.68`, or "" where there is no interval."""
    return "" if value.interval is None else f"95%: {write(value.interval[0])} to {write(value.interval[1])}"


def said(value: Value, write: Callable[[float], str] = decimal) -> str:
    """`0.52, 95%: 0.30 to 0.68`, for labels."""
    return ", ".join(filter(None, (write(value.number), between(value, write))))


def in_brackets(words: str) -> str:
    """The words in brackets after a space; nothing for no words."""
    return f" ({words})" if words else ""


def in_points(values: Values) -> bool:
    """Whether scores are from -1 to 1, so that gaps are written in points."""
    ends = [value for value in values.values() if value.quantity.name in ("lowest", "highest") and value.is_measured]
    return all(-1 <= end.number <= 1 for end in ends)


def is_corpus(values: Values) -> bool:
    """Whether it is a perplexity corpus, whose scores have no end at 1."""
    kind = values.get("output_type")
    return kind is not None and kind.estimate == "loglikelihood_rolling"


class GapWords(NamedTuple):
    """What a card says of the smallest difference: the words, and the interval in words."""

    words: str
    interval: str


def gap_words(values: Values, gap: Value) -> GapWords:
    """A gap in words, in points where scores are from -1 to 1, and its interval in brackets."""
    if in_points(values):
        return GapWords(
            f"{draw.points(gap.number, 1)} points", in_brackets(between(gap, lambda end: draw.points(end, 1)))
        )
    return GapWords(decimal(gap.number, 3), in_brackets(between(gap, lambda end: decimal(end, 3))))


def lowest_tau(cards: Sequence[Values], keys: Sequence[str]) -> float:
    """Where an axis of tau begins: 0, or lower by halves where a value or an interval is."""
    lows = [0.0]
    for values in cards:
        lows += [min(value.number, *(value.interval or ())) if value.interval else value.number
                 for key in keys if (value := measured_value(values, key)) is not None]  # fmt: skip
    return math.floor(2 * min(lows)) / 2


def drawn_taus(values: Values, quantity: str) -> dict[str, Value]:
    """A tau by protocol; without an interval only where none has one: of few models it would mislead."""
    taus = {
        protocol: value
        for protocol in draw.KINDS
        if (value := measured_value(values, f"{quantity}.{protocol}")) is not None
    }
    certain = {protocol: value for protocol, value in taus.items() if value.interval is not None}
    return certain or taus


def same_models(taus: Mapping[str, Value]) -> bool:
    """Whether the taus of both protocols are over equally many models, so that they may be compared."""
    return len({value.basis.get("models", value.basis.get("pairs")) for value in taus.values()}) == 1


def halves(low: float) -> list[float]:
    """From `low`, a multiple of one half, to 1 by halves: the grid lines of a tau."""
    return [half / 2 for half in range(int(2 * low), 3)]


def plain(value: float) -> str:
    """A number of an axis, without zeros at its end."""
    return f"{value:g}".replace("-", "−")


# ----------------------------------------------------------------------------------------------------------------------
# The panels of a card.


def card_panels(sources: CardSources, benchmark: str, values: Values, verdict: Verdict) -> list[Panel]:
    """Up to five questions, the first of those that the data answer."""
    made = (
        _ranks_panel(values, verdict),
        _apart_panel(values, verdict),
        _scores_panel(sources, benchmark, values),
        _lead_panel(values),
        _gap_panel(values),
        _training_panel(sources, benchmark, values, verdict),
    )
    return [panel for panel in made if panel is not None][:5]


def _drawn(label: str, shown: Iterable[tuple[str, Value]], unit: str = "", dashed: Sequence[float] = ()) -> Markup:
    """The values `shown`, each on its interval in the line of its name, in the colour of its protocol."""
    rows, series = Rows("card"), list[Series]()
    for name, value in shown:
        quantity, protocol = value.quantity.name, value.protocol or "direct"
        ends = value.interval or Missing(value.interval_reason or "There is none.")
        rows.put(quantity, value.number, unit or value.quantity.unit, {"": ends}, protocol=protocol)
        mark, words = ("s", "noise ceiling") if "ceiling" in quantity else (draw.KINDS[protocol], "")
        series.append(Series(quantity, {"subject": name}, {"protocol": protocol}, mark, words))
    return Dots(series, label, dashed=dashed).draw(rows).svg


def _ranks_panel(values: Values, verdict: Verdict) -> Panel | None:
    """Agreement over all models, then among models of similar size."""
    overall = drawn_taus(values, "tau")
    if not overall:
        return None
    rows = list[tuple[str, Value]]()
    for quantity, name in (("tau", "all models"), ("tau_within_2", "at most 2× apart")):
        for protocol, value in drawn_taus(values, quantity).items():
            key = f"{quantity.replace('tau', 'tau_ceiling')}.{protocol}"
            rows += [(name, value)] if protocol in overall else []
            rows += [(name, values[key])] if ceiling_of(values, value, key) is not None else []
    if len(overall) > 1 and same_models(overall):
        words = f"**{' → '.join(decimal(value.number) for value in overall.values())}** after training"
    elif len(overall) > 1:
        words = ", ".join(f"**{decimal(value.number)}** {draw.NAMES[protocol]} ({value.basis['models']} models)"
                          for protocol, value in overall.items())  # fmt: skip
    else:
        ((protocol, value),) = overall.items()
        words = f"**{decimal(value.number)}** {draw.NAMES[protocol]}{in_brackets(between(value))}"
    mark, question = verdict.marks["ranks"], "Does it rank models like the others?"
    picture = _drawn("Agreement (tau) with the other benchmarks", rows, dashed=(1.0,))
    return Panel(question, words, picture, outcome(mark.outcome), mark.word)


def _apart_panel(values: Values, verdict: Verdict) -> Panel | None:
    value = separated(values)
    if value is None:
        return None
    mark, is_similar = verdict.marks["apart"], value.quantity.name == "separated_within_2"
    pairs, name = ("similar pairs", "at most 2× apart") if is_similar else ("pairs", "all pairs")
    words = f"**{percent(value.number)}** of {pairs}{in_brackets(between(value, percent))}, "
    question = "Does it tell similar models apart?" if is_similar else "Does it tell models apart?"
    picture = _drawn("Share of pairs of models told apart", [(name, value)], dashed=SHARES)
    return Panel(question, words + draw.NAMES[value.protocol or "direct"], picture, outcome(mark.outcome), mark.word)


def separated(values: Values) -> Value | None:
    """The share of pairs of similar models that it tells apart; of all pairs without sizes."""
    keys = (f"separated_{name}.{protocol}" for protocol in draw.KINDS for name in ("within_2", "all"))
    return next(filter(None, (measured_value(values, key) for key in keys)), None)


def _range_words(values: Values, scores: Mapping[str, np.ndarray]) -> str:
    """`**0.00 to 0.26** direct, to **0.32** train before test`."""
    parts = []
    for protocol, numbers in scores.items():
        low, high = (measured_value(values, f"{end}.{protocol}") for end in ("lowest", "highest"))
        ends = (low.number if low else numbers.min(), high.number if high else numbers.max())
        parts.append(f"**{decimal(ends[0])} to {decimal(ends[1])}** {draw.NAMES[protocol]}")
    return ", ".join(parts)


def _scores_panel(sources: CardSources, benchmark: str, values: Values) -> Panel | None:
    """Scores of all models by size, where sizes are known."""
    frame = sources.scores_of(benchmark)
    if frame["model"].map(sources.sizes).nunique() < 2:
        return None
    rows = Rows("card")
    for model in frame["model"].unique():
        if size := sources.sizes.get(model):
            rows.put("parameters", 1e9 * size, "parameters", subject=model)
    for row in frame.itertuples():
        rows.put("score", row.value, "score", subject=row.model, protocol=row.protocol)
    scores = {protocol: own["value"].to_numpy() for protocol, own in frame.groupby("protocol")}
    words = f"{_range_words(values, scores)}; {count(frame['model'].nunique(), 'model')}"
    label = "Scores by number of parameters"
    picture = Points("parameters", "score", draw.NAMES, label, height=110).draw(rows).svg
    return Panel("What do scores look like?", words, picture)


def _lead_panel(values: Values) -> Panel | None:
    """The lead of a group at equal compute, direct and after; the interval in words is of the change."""
    leads = [value for protocol in draw.KINDS if (value := measured_value(values, f"lead.{protocol}")) is not None]
    change = measured_value(values, "readiness_change")
    if change is None or len(leads) < len(draw.KINDS):
        return None
    pair = ", after training ".join(
        f"{'leads' if value.number >= 0 else 'trails'} by {draw.points(abs(value.number))}" for value in leads
    )
    group, interval = parse_group(str(change.basis["group"])).words, "no interval"
    if change.interval is not None:
        interval = f"95% of the change: {' to '.join(draw.points_apart(change.interval))}"
    shown = [(draw.NAMES[str(value.protocol)], value) for value in leads]
    picture = _drawn(f"Lead of {group} at equal compute, in points", shown, "accuracy")
    return Panel(f"Do {group} lead?", f"**{pair}** points at equal compute ({interval})", picture)


def _gap_panel(values: Values) -> Panel | None:
    gaps = [gap for protocol in draw.KINDS if (gap := measured_value(values, f"smallest_difference.{protocol}"))]
    if not gaps:
        return None
    words, interval = gap_words(values, gaps[0])
    unit = "accuracy" if in_points(values) else ""
    shown = [(draw.NAMES[gap.protocol or "direct"], gap) for gap in gaps]
    picture = _drawn("The smallest gap that is detected with 80% power", shown, unit)
    return Panel("Smallest gap it can detect", f"**{words}**: with 80% power{interval}", picture)


class MeanCurve(NamedTuple):
    """The mean learning curve: positions in training (points,), and the models' mean score at each."""

    progress: np.ndarray
    mean: np.ndarray


def mean_curve(frame: pd.DataFrame) -> MeanCurve:
    """The models' mean where all have scores, read between their checkpoints: positions and values. Empty where they
    have no stretch of training in common."""
    curves = [rows.sort_values("at") for _, rows in frame.groupby("model")]
    start, end = max(rows["at"].min() for rows in curves), min(rows["at"].max() for rows in curves)
    progress = np.unique(np.concatenate([rows["at"].to_numpy() for rows in curves]))
    progress = progress[(progress >= start) & (progress <= end)]
    return MeanCurve(progress, np.mean([np.interp(progress, rows["at"], rows["value"]) for rows in curves], axis=0))


def _mean_path(x_axis: draw.Axis, up: draw.Axis, progress: np.ndarray, mean: np.ndarray, mark: Mark) -> Markup:
    """The mean curve, dashed where it is not shown to improve steadily."""
    return draw.curve([*map(x_axis, progress)], [*map(up, mean)], "ln m" if mark.outcome == YES else "ln m no")


def _training_panel(sources: CardSources, benchmark: str, values: Values, verdict: Verdict) -> Panel | None:
    frame = sources.curves[sources.curves["benchmark"] == benchmark]
    quality = measured_value(values, "signal_quality")
    if frame.empty:
        return None
    chance = measured_value(values, "chance")
    drawn = [*frame["value"], *([chance.number] if chance else [])]
    low, high, last = min(drawn), max(drawn), float(frame["at"].max())
    x_axis, up = draw.Axis(0, last, 34, WIDTH - 8), draw.Axis(low, high, 104, 10)
    marks = [
        draw.line(34, 104, WIDTH - 8, 104, "ax"),
        draw.text(30, 108, decimal(low), "", "end"),
        draw.text(30, 16, decimal(high), "", "end"),
    ]
    settled, starts = measured_value(values, "settled_from"), measured_value(values, "signal_from")
    if sources.in_tokens and settled is not None and settled.interval is not None:
        left_end, right_end = (x_axis(end) for end in settled.interval)
        marks += [draw.box(left_end, 6, max(right_end - left_end, 1), 98, "zone")]
        anchor, x = ("start", left_end + 4) if left_end < 180 else ("end", right_end - 4)
        marks.append(draw.text(x, 17, "order settles (95%)", "", anchor))
    if chance is not None:
        marks += [draw.line(34, up(chance.number), WIDTH - 8, up(chance.number), "chance")]
    for _, rows in frame.groupby("model"):
        marks.append(
            draw.curve([x_axis(progress) for progress in rows["at"]], [up(value) for value in rows["value"]], "ln")
        )
    progress, mean = mean_curve(frame)
    mark = verdict.marks["steady"]
    marks.append(_mean_path(x_axis, up, progress, mean, mark))
    if sources.in_tokens and starts is not None:
        marks.append(draw.line(x_axis(starts.number), 84, x_axis(starts.number), 104, "k w"))
        x = x_axis(starts.number)
        anchor, x = ("start", x + 4) if x < 250 else ("end", x - 4)
        marks.append(draw.text(x, 98, "above chance", "num", anchor))
    end = tokens_words(last) if sources.in_tokens else f"{last:,.0f} steps"
    marks += [draw.text(34, 121, "0"), draw.text(WIDTH - 8, 121, end, "", "end")]
    number = frame["model"].nunique()
    ends = f"their mean goes from {decimal(mean[0])} to {decimal(mean[-1])}" if len(mean) else "no points in common"
    label = f"Scores of {number} models in training; {ends}. "
    label += f"Signal quality {said(quality)}." if quality else ""
    words = f"**Signal quality {decimal(quality.number)}**{in_brackets(between(quality))}; " if quality else ""
    words += f"{number} models"
    question = "Do scores improve steadily in training?"
    return Panel(question, words, draw.svg(WIDTH, HEIGHT, label, *marks), outcome(mark.outcome), mark.word)


# ----------------------------------------------------------------------------------------------------------------------
# The cells of the table of all benchmarks.


class TableCell(NamedTuple):
    """`sort`: what the column is sorted by, None last. `words`: beside the picture, where there is no mark. `counts`:
    of a group, how many benchmarks have each answer."""

    sort: float | None
    picture: Markup = Markup("")
    mark: Mark | None = None
    words: str = ""
    counts: tuple[tuple[str, int], ...] = ()
    gap_reason: str | None = None  # why it is not known or not measured


EMPTY = TableCell(None)
HIGH = 28  # of a cell's picture


def scores_cell(sources: CardSources, benchmark: str, values: Values, width: int = 118) -> TableCell:
    """A tick for each model, on an axis from 0 to 1; scores of metrics that go beyond 1 or below -1 in words."""
    frame = sources.scores_of(benchmark)
    if frame.empty:
        return EMPTY
    scores = {protocol: frame.loc[frame["protocol"] == protocol, "value"].to_numpy() for protocol in draw.KINDS}
    scores = {protocol: numbers for protocol, numbers in scores.items() if len(numbers)}
    words = _range_words(values, scores).replace("**", "")
    if is_corpus(values) or not frame["value"].between(-1, 1).all():
        return TableCell(float(frame["value"].max()), words=words.partition(",")[0].rpartition(" ")[0])
    axis = draw.Axis(0, 1, 1, width - 1)
    marks = [draw.ticks(axis, (0, 0.5, 1), 3, 25)]
    for index, (protocol, numbers) in enumerate(scores.items()):
        top = 8 if len(scores) == 1 else 4 + 11 * index
        marks.append(draw.rug(axis, numbers.tolist(), top, top + (12 if len(scores) == 1 else 9), draw.KINDS[protocol]))
    label = f"Scores of {frame['model'].nunique()} models: {words}"
    return TableCell(float(frame["value"].max()), draw.svg(width, HIGH, label, *marks))


def tau_cell(values: Values, quantity: str, mark: Mark, low: float, width: int) -> TableCell:
    """Agreement with the other benchmarks, a dot for each protocol, and the noise ceiling."""
    taus = drawn_taus(values, quantity)
    if not taus:
        return EMPTY
    axis, label = draw.Axis(low, 1, 5, width - 5), []
    marks = [draw.ticks(axis, halves(low), 2, 26)]
    if len(taus) == 2 and same_models(taus):
        first, second = taus.values()
        marks.append(draw.line(axis(first.number), 9, axis(second.number), 19, "join"))
    for index, (protocol, value) in enumerate(taus.items()):
        y, kind = (14 if len(taus) == 1 else 9 + 10 * index), draw.KINDS[protocol]
        ceiling = ceiling_of(values, value, f"{quantity.replace('tau', 'tau_ceiling')}.{protocol}")
        if ceiling is not None:
            marks.append(draw.line(axis(ceiling), y - 4.5, axis(ceiling), y + 4.5, "s cl"))
        marks += [draw.whisker(axis, value.interval, y, kind), draw.dot(axis(value.number), y, kind, 3.8)]
        limit = f", noise ceiling {decimal(ceiling)}" if ceiling is not None else ""
        label.append(f"{draw.NAMES[protocol]} {said(value)}{limit}")
    picture = draw.svg(width, HIGH, f"Agreement with the other benchmarks: {'; '.join(label)}", *marks)
    return TableCell(next(iter(taus.values())).number, picture, mark)


def apart_cell(values: Values, mark: Mark, width: int = 112) -> TableCell:
    """The share of pairs of similar models that it tells apart, on its interval; of all pairs without sizes."""
    value = separated(values)
    if value is None:
        return EMPTY
    axis = draw.Axis(0, 1, 5, width - 5)
    pairs = "pairs of models at most 2× apart in size" if value.quantity.name == "separated_within_2" else "all pairs"
    label = f"Tells apart {said(value, percent)} of {pairs}, {draw.NAMES[value.protocol or 'direct']}"
    marks = [draw.ticks(axis, SHARES, 2, 26), draw.estimate(axis, value.number, value.interval, 14, "k")]
    return TableCell(value.number, draw.svg(width, HIGH, label, *marks), mark)


def gap_cell(values: Values, widest: float, width: int = 62) -> TableCell:
    """`widest`: the largest gap of all benchmarks whose scores are from 0 to 1, for the length of the bar."""
    value = measured_value(values, "smallest_difference.direct") or measured_value(
        values, "smallest_difference.train_before_test"
    )
    if value is None:
        return EMPTY
    words, interval = gap_words(values, value)
    label = f"The smallest gap that is detected with 80% power: {words}{interval}"
    if not in_points(values):
        return TableCell(value.number, words=words)
    axis = draw.Axis(0, widest, 1, width - 1)
    marks = [draw.line(1, 4, 1, 24, "ax"), draw.box(1, 9.5, axis(value.number) - 1, 9, "s bar")]
    return TableCell(value.number, draw.svg(width, HIGH, label, *marks), words=words.removesuffix(" points"))


def steady_cell(sources: CardSources, benchmark: str, values: Values, mark: Mark, width: int = 76) -> TableCell:
    """The mean score of the models in training; dashed where it is not shown to improve steadily. The answer alone
    where their training has nothing in common."""
    frame = sources.curves[sources.curves["benchmark"] == benchmark]
    quality = measured_value(values, "signal_quality")
    if frame.empty:
        return EMPTY
    sort = quality.number if quality else None
    progress, mean = mean_curve(frame)
    if len(progress) < 2:
        return TableCell(sort, words="no common points") if mark.outcome == NOT_MEASURED else TableCell(sort, mark=mark)
    chance = measured_value(values, "chance")
    drawn = [*mean, *([chance.number] if chance else [])]
    x_axis, up = draw.Axis(progress[0], progress[-1], 2, width - 2), draw.Axis(min(drawn), max(drawn), 26, 3)
    level = up(chance.number) if chance else 26
    base = draw.line(2, level, width - 2, level, "chance" if chance else "ax")
    path = _mean_path(x_axis, up, progress, mean, mark)
    ends = f"from {decimal(mean[0])} to {decimal(mean[-1])}"
    label = f"Mean score of {frame['model'].nunique()} models in training, {ends}; "
    label += f"signal quality {said(quality)}" if quality else "too few checkpoints for more"
    return TableCell(sort, draw.svg(width, HIGH, label, base, path), mark)


def bias_cell(values: Values, mark: Mark, width: int = 112) -> TableCell:
    """What seen test text adds to the score, on its interval; the axis is at least from -5 to 5 points."""
    value = measured_value(values, "bias")
    if value is None:
        return EMPTY
    widest = max(0.05, *(abs(end) for end in value.interval or ()), abs(value.number))
    axis = draw.Axis(-widest, widest, 5, width - 5)
    marks = [draw.ticks(axis, (-widest, 0, widest), 2, 26), draw.estimate(axis, value.number, value.interval, 14, "k")]
    label = f"Test text seen changes the score by {said(value, lambda end: draw.points(end, 1, signed=True))} points"
    return TableCell(value.number, draw.svg(width, HIGH, label, *marks), mark)
