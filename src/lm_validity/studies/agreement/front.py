"""What stands above the folds of the agreement page: its sentence, its answers and their pictures."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from lm_validity.config.sections import Cards
from lm_validity.pages import svg
from lm_validity.pages.page import Answer, Lede, Outcome, Page, Panel, Picture
from lm_validity.pages.svg import KINDS, NAMES
from lm_validity.results.put import Condition, Rows, ends_of, labels_of
from lm_validity.results.sections import Dots, Series
from lm_validity.statistics import Interval
from lm_validity.studies.agreement import data as base
from lm_validity.studies.agreement.data import Data, Estimate, Range, Value
from lm_validity.studies.agreement.score_matrix import ANY_SIZE, LIKE_SIZE
from lm_validity.studies.agreement.statistics import ranking
from lm_validity.studies.agreement.statistics.noise import in_clumps
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import Missing, count, decimal, is_known, number

# ----------------------------------------------------------------------------------------------------------------------
# What stands above the folds: the finding, the ranks as carpets, three panels; and the answers for the first page of a
# site. There are three cases. Both protocols are *compared*; or one alone has scores; or *so few* models have both that
# nothing is known of the other ones yet.


MOST_READ = 10_000  # ranks that a carpet can read out; more would make the page slow
LINE, LETTER = 12.0, 6.1  # pixels between two lines of names, and of a letter's width
CARPET = 440  # units of the width of a picture of ranks, which screens stretch or shrink
AS_ONE = 0.95  # tau without noise from which on, interval and all, benchmarks count as agreeing but for noise
AGREE_QUESTION = "Do benchmarks agree on the better model?"
CHANGE_QUESTION = "Do benchmarks agree better after training?"


class Change(NamedTuple):
    """Mean tau under direct evaluation and after training, their difference with its intervals, and how surely it holds
    for other benchmarks too. Pooled where many cells are missing."""

    direct: Value
    trained: Value
    change: Estimate
    for_others: Range

    @classmethod
    def of(cls, rows: Rows, data: Data) -> "Change":
        """Where many cells are missing, that of the pooled tau."""
        if data.lacks_many and rows.row("tau_pooled_change", pairs="all") is not None:
            before, after = (
                base.estimate(rows, "tau_pooled_in_both", pairs="all", protocol=p).value for p in PROTOCOLS
            )
            pooled, none = base.estimate(rows, "tau_pooled_change", pairs="all"), "There is none of the pooled tau."
            return cls(before, after, pooled, Missing(none))
        before, after = (base.estimate(rows, "tau_mean_in_both", protocol=p).value for p in PROTOCOLS)
        return cls(before, after, base.estimate(rows, "tau_change"), base.for_others(rows, "tau_change"))

    @property
    def arrow(self) -> str:
        """Mean tau direct and after training, with an arrow between, such as `0.52 → 0.76`."""
        return f"{_tau(self.direct)} → {_tau(self.trained)}"


def above_the_folds(rows: Rows, data: Data, rule: Cards) -> Page:
    """The agreement page without its folds; of one protocol where only one has scores, or both on too few models.

    `rule`: the thresholds from which on the cards say that a benchmark tells models apart."""
    protocols, everyone = data.matrix.protocols, np.arange(len(data.matrix.models))
    # from most to least agreement, directly where that is known
    taus = {p: {row.subject: row.value for row in rows.all("tau_with_others", protocol=p)} for p in PROTOCOLS}
    ordered = taus[DIRECT] if any(tau is not None for tau in taus[DIRECT].values()) else taus[TRAINED]
    agreeing = [np.inf if (tau := ordered.get(name)) is None else -tau for name in data.tasks]
    columns = np.argsort(agreeing, kind="stable").tolist()
    change, p = Change.of(rows, data), protocols[0]
    too_few = len(data.models_in_both) < min(base.JACKKNIFED, len(everyone) / 2)
    if len(protocols) == 2 and not too_few and is_known(change.change.value):
        means = {DIRECT: change.direct, TRAINED: change.trained}
        scores = {protocol: data.common[protocol][data.models_in_both] for protocol in means}
        columns = [column for column in columns if data.in_both[:, column].any()]
        lede, picture = _change_lede(data, change), _carpets(data, scores, means, columns, data.models_in_both)
        panels = [_for_whom(change), _by_size(rows, PROTOCOLS, whole=data.whole)]
        answers = [_change_answer(data, change, columns, lede)]
    else:
        agreement = Agreement.of(rows, data, p)
        lede = _noise_lede(data, agreement, p)
        picture = _carpets(data, data.scores, {p: agreement.mean.value}, columns, everyone)
        panels = [_against_noise(agreement, p), _by_size(rows, [p], whole=True)]
        answers = [_noise_answer(data, agreement, p, columns, lede)]
        if too_few and len(protocols) == 2:
            text = f"**{len(data.models_in_both)} of {len(everyone)}** models have both scores"
            trained = Panel(CHANGE_QUESTION, text, _progress(change), "not known", "not known yet")
            lede, panels[0] = _not_yet(data, change), trained
            answers = [_not_yet_answer(data, change, agreement, lede)]
    apart = _apart(rows, p, rule)
    answers += [apart] if apart is not None else []
    shown = [panel for panel in panels if panel is not None]
    return Page("agreement", "Ranking agreement", [], [], lede=lede, picture=picture, panels=shown, answers=answers)


@dataclass(frozen=True)
class Agreement:
    """The mean tau under a protocol, its noise ceiling, the `limit` where that may be named, and the tau without noise.

    `answer`: whether benchmarks disagree more than noise explains: `disagree` surely, `agree` surely, `order` (every
    benchmark orders the models alike), `direction` (that of a benchmark must be known first), `clumps` (of models,
    within which noise is hardly known), `noise` (so much that the benchmarks hardly tell the models apart), `by value`
    or `not seen` (scores are missing) or `unknown`. `numbers`: the agreement in words. `interval`: the one that
    decided, in words.
    """

    mean: Estimate
    ceiling: Value
    limit: Value
    corrected: Estimate
    answer: str
    numbers: str
    interval: str

    @classmethod
    def of(cls, rows: Rows, data: Data, protocol: str) -> "Agreement":
        """From the tau without noise and its interval; without these, as where the tau is above its ceiling, from the
        observed ones, and then disagreement is never sure."""
        observed, ceiling, without_noise = (
            base.estimate(rows, name, protocol=protocol) for name in ("tau_mean", "tau_ceiling", "tau_mean_corrected")
        )
        mean, limit = observed.value, base.shown_limit(ceiling.value, observed.value)
        made = partial(cls, observed, ceiling.value, limit, without_noise)
        if data.opposed[protocol]:
            signs = ranking.pair_signs(data.turned(protocol))
            turned = decimal(ranking.mean_over_pairs(ranking.kendall_tau_matrix(signs)))
            return made("direction", f"{_tau(mean)} as the scores stand, {turned} if so", "")
        hardly = is_known(limit) and number(limit) < HARDLY
        numbers = f", where noise allows at most {_tau(limit)}" if hardly else f" of a possible {_tau(limit)}"
        numbers = _tau(mean) + (numbers if is_known(limit) else "")
        if gaps := data.gaps(protocol):
            return made(gaps, numbers, "")
        corrected = without_noise.quoted
        decided = observed.quoted if corrected is None else corrected
        interval = _with("95%" if corrected is None else "95% without noise", decided)
        if is_known(mean) and mean > 1 - 1e-9:
            return made("order", numbers, interval)
        if corrected is not None and round(corrected.high, 2) < 1:
            return made("clumps" if in_clumps(data.scores[protocol]) else "disagree", numbers, interval)
        sure = decided is not None and decided[0] >= AS_ONE
        return made("agree" if sure else "noise" if hardly else "unknown", numbers, interval)


def _with(prefix: str, interval: Interval[float] | None, *, sign: bool = False) -> str:
    return f"{prefix}: {base.in_words(interval, signed=sign)}" if interval is not None else ""


def _tau(value: Value) -> str:
    return decimal(number(value)) if is_known(value) else "not known"


# ----------------------------------------------------------------------------------------------------------------------
# Sentences.


def _change_lede(data: Data, change: Change) -> Lede:
    quoted, these = change.change.quoted, f"These {len(data.tasks)} benchmarks agree"
    unknown = "Not known whether benchmarks agree better after training"
    if opposed := dict.fromkeys(name for p in PROTOCOLS for name in data.opposed[p]):
        return Lede(f"{unknown}: is lower better on {_named(opposed)}?", f"As the scores stand: {change.arrow}")
    heading, interval = unknown, _with("95% of the change", quoted, sign=True)
    if gaps := data.gaps(*PROTOCOLS):
        heading, interval = f"{heading}: {LACKING[gaps]}", ""
    elif unchanged := _unchanged(data):
        heading, interval = unchanged, ""
    elif quoted is not None:
        heading = f"No change found in how well these {len(data.tasks)} benchmarks agree"
        if not quoted[0] <= 0 <= quoted[1]:
            comparative = "better" if quoted[0] > 0 else "less"
            heading = f"{these} {comparative} once every model has trained for the test"
            if against := dict.fromkeys(name for p in PROTOCOLS for name in data.against[p]):
                heading = f"{these} {comparative} after training, if higher is better on {_named(against)}"
    improved, compared = data.improved
    return Lede(
        heading,
        f"How well two benchmarks’ rankings agree: {change.arrow}; better for {improved} of {count(compared, 'pair')}",
        interval,
    )


def _change_answer(data: Data, change: Change, columns: list[int], lede: Lede) -> Answer:
    models = data.models_in_both
    width, values_shown, marks = 178, (change.direct, change.trained), []
    for p, value, x in zip((DIRECT, TRAINED), values_shown, (0, 202), strict=True):
        marks += [
            svg.carpet(_ranks(data.common[p][models][:, columns]), x, 20, width, 94),
            svg.text(x, 13, NAMES[p], f"{KINDS[p]} big"),
            svg.text(x + width, 13, _tau(value), f"{KINDS[p]} big", "end"),
        ]
    words = f"columns: {count(len(columns), 'benchmark')} · rows: {count(len(models), 'model')} · dark: ranked first"
    label = (
        f"Ranks of {count(len(models), 'model')} on {count(len(columns), 'benchmark')}, as two heat maps. Mean "
        f"agreement: direct {_tau(change.direct)}, train before test {_tau(change.trained)}. "
        f"{lede.interval or 'There is no interval of the change'}."
    )
    picture = svg.svg(380, 132, label, *marks, svg.text(0, 128, words))
    whom = _whom(change.change) if lede.interval else "; no interval"
    basis = f"{count(len(models), 'model')}, {count(len(columns), 'benchmark')}{whom}."
    if lede.interval:
        basis += f" For other benchmarks too, the change is {base.in_words(change.for_others, signed=True)}."
    basis += _missing(data, *PROTOCOLS)
    return Answer(CHANGE_QUESTION, f"{lede.heading}: {change.arrow}", picture, lede.interval, basis, "The rankings")


LACKING = {
    "by value": "scores are missing, and not by chance",
    "not seen": "scores are missing, and too few are there to see whether by chance",
}
WHY_LOST = {
    "by value": "not by chance: models that lack some stand higher or lower on the others than chance would have them",
    "not seen": "whether by chance cannot be seen",
    "": "by chance, it is assumed",
}


def _missing(data: Data, *protocols: str) -> str:
    """How many scores that were to be there are missing: an interval takes it for granted that they are missing by
    chance."""
    lost = [data.lost[p] for p in data.incomplete]
    missing, total = sum(int(cells.sum()) for cells in lost), sum(cells.size for cells in lost)
    twice = len(data.matrix.overlapping)
    said = f" {count(twice, 'benchmark')} left out: others hold the same items." if twice else ""
    return said + (f" {missing} of {total} scores are missing: {WHY_LOST[data.gaps(*protocols)]}." if missing else "")


def _whom(number: Estimate) -> str:
    """Whom the quoted interval is for, to follow what it rests on."""
    if number.quoted is None:
        return "; no interval"
    families = " and new families" if number.quoted is number.families else ""
    return f"; the 95% interval covers new models{families}"


SAME_SCORES = "Every score after training for the test is the same as the direct one"


def _unchanged(data: Data) -> str:
    """What to say where all benchmarks order the models alike under both protocols, or have the same scores, as where
    one file was given twice; else empty."""
    first, second = (data.compared_scores[p][data.models_in_both] for p in PROTOCOLS)
    signs = [ranking.pair_signs(scores) for scores in (first, second)]
    same = np.array_equal(*(part.sign * part.known for part in signs)) and all(part.known.any() for part in signs)
    alike = "After training for the test, no two models changed places on any benchmark"
    return "" if not same else SAME_SCORES if np.array_equal(first, second, equal_nan=True) else alike


def _named(names: Collection[str]) -> str:
    """`toxicity`, or `toxicity and 2 more`."""
    first, *further_names = names
    return svg.shortened(first, 24) + (f" and {len(further_names)} more" if further_names else "")


HARDLY = 0.1  # a noise ceiling below it: the benchmarks hardly tell the models apart
HEADINGS = {
    "disagree": "Benchmarks disagree more than noise explains",
    "agree": "Benchmarks disagree little more than noise explains",
    "order": "All benchmarks order these models alike",
    "unknown": "Not known whether benchmarks disagree more than noise explains",
    "noise": "Not known whether benchmarks agree: they hardly tell these models apart",
    **{gaps: f"Not known whether benchmarks agree: {words}" for gaps, words in LACKING.items()},
    "clumps": "Not known whether benchmarks disagree more than noise explains: models lie in clumps",
}


def _noise_lede(data: Data, entry: Agreement, protocol: str) -> Lede:
    if not is_known(entry.mean.value):
        return Lede("Not known whether benchmarks agree: they give no two rankings to compare")
    if entry.answer == "direction":
        asks = f"Not known whether benchmarks agree: is lower better on {_named(data.opposed[protocol])}?"
        return Lede(asks, f"How well two rankings agree: {entry.numbers}")
    heading = HEADINGS[entry.answer]
    if entry.answer == "disagree" and data.against[protocol]:  # it rests on directions that nobody says
        heading = f"Benchmarks disagree beyond noise, if higher is better on {_named(data.against[protocol])}"
    return Lede(heading, f"How well two benchmarks’ rankings agree: {entry.numbers}", entry.interval)


def _noise_answer(data: Data, entry: Agreement, protocol: str, columns: list[int], lede: Lede) -> Answer:
    sentence = f"{lede.heading}: {entry.numbers}" if lede.sentence else lede.heading
    if entry.answer == "direction":
        sentence = f"Not known: is lower better on {_named(data.opposed[protocol])}? Agreement: {entry.numbers}"
    ranks = _ranks(data.scores[protocol][:, columns])
    words = f"columns: {count(len(columns), 'benchmark')} · rows: {count(len(ranks), 'model')} · dark: ranked first"
    marks = [svg.carpet(ranks, 0, 0, 380, 110), svg.text(0, 128, words)]
    ceiling = f", noise ceiling {_tau(entry.limit)}" if is_known(entry.limit) else ""
    label = (
        f"Ranks of {count(len(ranks), 'model')} on {count(len(columns), 'benchmark')}. Mean agreement "
        f"{_tau(entry.mean.value)}, {lede.interval or 'no interval'}{ceiling}."
    )
    decided = entry.mean if entry.corrected.quoted is None else entry.corrected
    whom = _whom(decided) if lede.interval else "; no interval"
    ordered = int(np.isfinite(ranking.mean_with_others(data.tau[protocol])).sum())
    some = f"{ordered} of " if 0 < ordered < len(columns) else ""
    models = count(data.models(protocol), "model")
    basis = f"{models}, {some}{count(len(columns), 'benchmark')}{whom}.{_missing(data, protocol)}"
    picture = svg.svg(380, 132, label, *marks)
    return Answer(AGREE_QUESTION, sentence, picture, lede.interval, basis, "The rankings")


def _not_yet(data: Data, change: Change) -> Lede:
    trained, interval = f"{len(data.models_in_both)} of {count(len(data.matrix.models), 'model')}", change.change.quoted
    heading = f"Not known yet: {trained} have both scores"
    if interval is None:
        return Lede(heading)
    so_far = decimal(number(change.change.value), signed=True)
    return Lede(heading, f"Change in agreement so far: {so_far}", _with("95%", interval, sign=True))


def _not_yet_answer(data: Data, change: Change, direct: Agreement, lede: Lede) -> Answer:
    sentence, mean = f"{lede.heading}. {lede.sentence}".removesuffix(". "), direct.mean.value
    basis = f"On the {count(len(data.models_in_both), 'model')} with both scores."
    if is_known(mean):
        basis += f" Direct, on {count(data.models(DIRECT), 'model')}, agreement is {_tau(mean)}."
    return Answer(CHANGE_QUESTION, sentence, _progress(change), lede.interval, basis, "The rankings")


# ----------------------------------------------------------------------------------------------------------------------
# The carpets.


def _order(scores: np.ndarray) -> np.ndarray:
    """Indices of the models of `scores` (models, benchmarks), from best to worst mean rank; without a score last."""
    mean_ranks = ranking.finite_mean(ranking.average_ranks(scores), axis=1)
    return np.asarray(np.argsort(mean_ranks, kind="stable"))


def _ranks(scores: np.ndarray) -> np.ndarray:
    """(models, benchmarks) the ranks of `scores`, in the order of `_order`."""
    return np.asarray(ranking.average_ranks(scores)[_order(scores)])


def _carpets(
    data: Data, scores: dict[str, np.ndarray], means: dict[str, Value], columns: list[int], models: np.ndarray
) -> Picture:
    """The ranks under the protocols of `means`, side by side where the screen is wide."""
    carpets = (_carpet(data, p, scores[p], mean, columns, models) for p, mean in means.items())
    kind = "pair" if len(means) == 2 else "alone"
    drawn = Markup('<div class="{}">{}</div>').format(kind, Markup("").join(carpets))
    note = (
        f"Each column is a benchmark’s ranking of {count(len(models), 'model')}, each row a model, best on average at "
        "the top; dark: ranked first, grey: no score. Toward the right, columns agree less with the others. Agreement "
        "is 1 for the same order and 0 for unrelated ones."
    )
    return Picture(drawn, note)


def _carpet(
    data: Data, protocol: str, scores: np.ndarray, mean: Value, columns: list[int], models: np.ndarray
) -> Markup:
    scores = scores[:, columns]
    ranks, order = _ranks(scores), _order(scores)
    names = [svg.shortened(data.tasks[column], 18) for column in columns]
    labels = [data.matrix.labels[models[row]] for row in order]
    width, top, height = CARPET, 24, min(280, max(60, 24 * len(ranks)))
    cell, left_margin = (width - 8) / max(len(names), 1), 4.0
    written = cell >= LINE + 1
    if written:  # names run down to the left of their columns, the steeper the closer these are
        angle = max(math.pi / 4, math.asin(min(1.0, LINE / cell)))
        slope_across, down = math.cos(angle) * LETTER, math.sin(angle) * LETTER
        left_margin = max(4.0, *(slope_across * len(name) - (index + 0.5) * cell for index, name in enumerate(names)))
        cell = (width - left_margin - 4) / len(names)
    bottom = top + height
    marks = [
        svg.text(left_margin, 14, NAMES[protocol], f"{KINDS[protocol]} big"),
        svg.text(width - 4, 14, f"agreement {_tau(mean)}", "num big", "end"),
        svg.carpet(ranks, left_margin, top, width - left_margin - 4, height),
    ]
    if cell >= 5:
        gap = Markup(
            '<line x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}" style="stroke:var(--paper)" stroke-width="1.4"/>'
        )
        marks += [gap.format(left_margin + index * cell, top, bottom) for index in range(1, len(names))]
    if written:
        slanted = Markup(
            '<text transform="translate({:.1f},{}) rotate({:.0f})" text-anchor="end" class="lab">{}</text>'
        )
        for index, name in enumerate(names):
            marks.append(
                slanted.format(left_margin + (index + 0.5) * cell + 4, bottom + 12, -math.degrees(angle), name)
            )
        below = 22 + down * max(map(len, names))
    else:
        marks.append(svg.text(left_margin, bottom + 15, f"{len(names)} benchmarks, most agreement first"))
        below = 20.0
    label = (
        f"{NAMES[protocol]}: ranks of {count(len(ranks), 'model')} (rows) on {count(len(names), 'benchmark')} "
        f"(columns). Mean agreement {_tau(mean)}."
    )
    if ranks.size > MOST_READ or not ranks.size:
        return svg.svg(width, round(bottom + below), label, *marks)
    description = {
        "rows": labels,
        "columns": [data.tasks[column] for column in columns],
        "label": NAMES[protocol],
        "ranks": [[round(float(rank), 1) if math.isfinite(rank) else None for rank in row] for row in ranks],
    }
    return svg.carpet_svg(width, round(bottom + below), f"{label} Arrow keys read a rank.", *marks, ranks=description)


# ----------------------------------------------------------------------------------------------------------------------
# Panels.


_Estimated = tuple[float, Range | None]
_Lines = Mapping[str, Mapping[str, _Estimated]]  # by name and kind of mark


def _dots(label: str, lines: _Lines, dashed: Sequence[float] = (), unit: str = "tau") -> Markup:
    """A line for each name with a mark of each kind, on its interval."""
    rows = Rows("front")
    for name, marks in lines.items():
        for kind, (value, interval) in marks.items():
            rows.put(
                "tau", value, unit, {"models": interval or Missing("There is no interval.")}, subject=name, other=kind
            )
    kinds = dict.fromkeys(kind for marks in lines.values() for kind in marks)
    words = {KINDS[p]: NAMES[p] for p in PROTOCOLS} if len(kinds) > 1 else {}
    series = [Series("tau", {"subject": "{}"}, {"other": kind}, kind, words.get(kind, "")) for kind in kinds]
    return Dots(series, label, dashed=dashed).draw(rows).svg


def _for_whom(change: Change) -> Panel:
    """The intervals of the change, by whom they hold for."""
    estimated, value = change.change, number(change.change.value)
    names = {
        "models of these families" if is_known(estimated.families) else "other models": estimated.models,
        "other families, too": estimated.families,
        "other benchmarks, too": change.for_others,
    }
    lines = {name: {"k": (value, ends)} for name, ends in names.items() if is_known(ends)}
    picture = _dots("Change in agreement", lines or {"these models": {"k": (value, None)}}, unit="change")
    text = f"Change **{decimal(value, signed=True)}**"
    text += "; lines: 95% intervals" if lines else ", for these models: there is no interval"
    return Panel("For whom does the change hold?", text, picture, None if lines else "not known")


def _by_size(rows: Rows, protocols: Sequence[str], *, whole: bool) -> Panel | None:
    """Agreement by distance in size, of two protocols over the cells known under both; nothing where sizes are not
    known."""
    where, lines, headline = "" if whole else "_in_both", dict[str, dict[str, _Estimated]](), list[str]()
    for row in rows.all(f"tau_mean{where}_by_ratio", distance="size"):
        labels, protocol = labels_of(row), row.protocol
        if row.value is None or protocol is None or protocol not in protocols:
            continue
        least, most = labels["at_least"], labels["at_most"]
        name = f"at most {most:g}×" if most else f"more than {least:g}×"
        place = {"protocol": protocol, "distance": "size", "at_least": least, "at_most": most}
        tau = base.estimate(rows, row.quantity, **place)
        lines.setdefault(name, {})[KINDS[protocol]] = row.value, tau.quoted
        headline += [_tau(tau.value)] * ((least, most) == LIKE_SIZE)
    if not lines:
        return None
    text = "By distance in size"
    if len(headline) == len(protocols):
        text = f"**{' → '.join(headline)}** among models at most 2× apart in size"
    picture = _dots("Agreement among pairs of models, by distance in size", lines)
    return Panel("Does size make them agree?", text, picture)


def _against_noise(entry: Agreement, protocol: str) -> Panel | None:
    """The mean agreement beside what noise would leave of a perfect one, and without that noise."""
    if not is_known(entry.mean.value):
        return None
    taus = {"observed": entry.mean} | ({"without noise": entry.corrected} if is_known(entry.corrected.value) else {})
    lines = {name: {KINDS[protocol]: (number(tau.value), tau.quoted)} for name, tau in taus.items()}
    label, text, limit = "Agreement", f"**{entry.numbers}**", entry.limit
    dashed = [number(limit)] if is_known(limit) else []
    if dashed:
        label += f". Dashed: noise ceiling {_tau(limit)}"
    else:
        allowance = "how much noise would allow" if is_known(entry.ceiling) else "without standard errors, noise"
        text += f"; {allowance} is not known"
    question = "Do they disagree more than noise explains?"
    outcomes: dict[str, Outcome] = {"disagree": "yes", "agree": "no", "order": "no"}
    return Panel(question, text, _dots(label, lines, dashed), outcomes.get(entry.answer, "not known"))


def _progress(change: Change) -> Markup:
    """The change on the models that have both scores."""
    value, label = number(change.change.value), "Change in agreement, direct → train before test"
    lines = {"so far": {"k": (value, change.change.quoted)}} if math.isfinite(value) else {}
    return _dots(label, lines, unit="change")


# ----------------------------------------------------------------------------------------------------------------------
# Which benchmarks tell similar models apart.


def _apart(rows: Rows, protocol: str, rule: Cards) -> Answer | None:
    """Of each benchmark the share of pairs of similar models that it tells apart, by the rule of the cards.

    Of all pairs where nothing is known of similar models.
    """
    for least, most in (LIKE_SIZE, ANY_SIZE):
        place: dict[str, Condition] = {"protocol": protocol, "at_least": least, "at_most": most}
        found = rows.all("separated", **place)
        shares = [row.value for row in found if row.value is not None]
        if shares:
            break
    else:
        return None
    alike, ends = (least, most) == LIKE_SIZE, [pair for row in found if (pair := ends_of(row))]
    yes, no = sum(low >= rule.separated for low, _ in ends), sum(high < rule.not_separated for _, high in ends)
    pairs, under = "similar pairs" if alike else "pairs", f"{rule.not_separated:.0%}".replace("50%", "half")
    series = [Series("separated", {"subject": "{}"}, place, KINDS[protocol])]
    label = f"Share of {pairs} told apart, {NAMES[protocol]}"
    chart = Dots(series, label, dashed=(rule.not_separated,), sorted=True, most=12).draw(rows)
    many, fewer = sum(share >= rule.separated for share in shares), sum(share < rule.not_separated for share in shares)
    basis = "Similar: at most 2× apart in size. " if alike else "Pairs of models whatever their sizes. "
    basis += f"Counted among these models. Sure for other models like them, by the 95% intervals: {yes} and {no}."
    if uncounted := len(found) - len(shares):
        basis += f" Not counted, since fewer than 3 models have such pairs: {count(uncounted, 'benchmark')}."
    sentence = (
        f"On {many or 'none'} of {count(len(shares), 'benchmark')}, at least {rule.separated:.0%} of {pairs} are "
    )
    sentence += f"told apart; on {fewer or 'none'}, under {under}"
    if not many and not fewer:
        where = f"On all {len(shares)} benchmarks" if len(shares) > 1 else "On the one benchmark"
        sentence = f"{where}, {under} to {rule.separated:.0%} of {pairs} are told apart"
    question = f"Can they tell {'similar ' if alike else ''}models apart?"
    return Answer(question, sentence, chart.svg, "", basis, "Which ones")
