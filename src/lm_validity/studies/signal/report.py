"""The signal report: does a benchmark say something early in training?"""

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from lm_validity.config.sections import REPORTS, Reports
from lm_validity.pages.page import Answer, Finding, Lede, Outcome, Page, Panel, Picture, panel_grid
from lm_validity.pages.svg import Axis, LogAxis, curve, line, lines_svg, shortened, text
from lm_validity.results.put import Column, Condition, Row, Rows, ends_of, labels_of
from lm_validity.results.sections import TOKENS, Dots, Says, SectionOf, Series, TableOf, Written, row_words, write_rows
from lm_validity.studies.signal import benchmark as base
from lm_validity.studies.signal.benchmark import BenchmarkCurves, CurveDesign, ItemAnalysis, SignalData
from lm_validity.studies.signal.curves import read_learning_curves
from lm_validity.studies.signal.filters.recipe import DESIGNS
from lm_validity.studies.signal.numbers import FILTERS, analyze_items, notes_on, signal_rows
from lm_validity.studies.signal.statistics.quality import E2LM_WINDOWS, fewest_checkpoints
from lm_validity.tables.counted import Sources
from lm_validity.tables.items import item_benchmarks, read_benchmark_items
from lm_validity.words import Missing, count, decimal, explain_protocols, listing, number, percent, shared_beginning

OF_BENCHMARK = {"subject": "{}"}
IN_ANSWER = 8  # benchmarks that an answer of a site's first page draws


def report_signal(sources: Sources, output: Path, section: Reports = REPORTS, own_models: Sequence[str] = ()) -> None:
    """Write results.parquet, tables and the page of the signal report under `output`.

    `own_models`: models of the reader, whose curves stand out among those of others.
    """
    data = replace(analyze_signal(sources, section), own_models=tuple(own_models))
    rows = signal_rows(data)
    write_rows(signal_page(data, rows), rows, output)


def analyze_signal(sources: Sources, section: Reports = REPORTS) -> SignalData:
    """Every benchmark with its scores and nulls, from tables only. Raises InputError for bad input.

    One benchmark's items are in memory at a time.
    """
    learning = read_learning_curves(sources, section.checkpoints)
    items = sources.items
    with_items = item_benchmarks(items) if items is not None else []
    analyzed = {}
    for name in learning.curves:
        design = CurveDesign.of(learning, name, section.signal)
        of_items: ItemAnalysis | Missing = base.NO_ITEMS
        if items is not None and name in with_items:
            answers = read_benchmark_items(items, name, learning.num_fewshot.get(name), learning.metrics.get(name))
            of_items = analyze_items(design, answers, section)
        analyzed[name] = base.analyze_benchmark(design, of_items, section)
    return SignalData(learning, section, analyzed)


# ----------------------------------------------------------------------------------------------------------------------
# What the page shows, as data.

QUALITY = Dots(
    [Series("signal_quality_mean", OF_BENCHMARK)],
    "Signal quality, mean over models, with 95% intervals over items",
    dashed=(1.0,),
    sorted=True,
)
QUALITY_SECTION = SectionOf(
    "Signal quality",
    Says(
        "signal_quality_mean",
        "Signal quality is {value} on {name} ({interval}), the highest of {count:benchmark}; the lowest is {least} on "
        "{least_name}.",
    ),
    TableOf(
        "signal_quality",
        {"subject": "benchmark"},
        {
            **Column("signal_quality_mean", "signal quality", ".3f").with_ends("signal_quality"),
            "walk_p": Column("signal_quality_mean_walk_p", "p (random walk)", "p"),
            "steady": Column("steady", "shown to be steady"),
            "chance": Column("chance", "chance", ".3f"),
            "models": Column("models", "models"),
            "models_above_chance": Column("above_chance", "models above chance"),
            "above_chance_from_b": Column("above_chance_from_mean", "above chance from (billion tokens)", ".4g"),
            "items": Column("items", "items"),
        },
        "By benchmark",
        sorted_by="signal_quality",
    ),
    [QUALITY],
    hint="how steadily scores improve",
)
EXPLAINED = (
    "Half monotonicity, half autocorrelation. Autocorrelation is as in the competition's {convention}. Equal scores "
    "{ties}. p (random walk) compares with curves whose steps have random signs. More items mean less noise and so a "
    "higher signal quality: compare benchmarks with like numbers of items. The interval is for benchmarks of this "
    "size, noise included. One from standard errors takes each checkpoint to have items of its own: since checkpoints "
    "share their items, it is too wide, and too low for noisy curves."
)
CONVENTIONS = {"code": "scoring code", "paper": "paper", "stable": "count as an increase", "average": "share ranks"}
NORMALISED = {
    "none": "not divided by anything",
    "joint_minmax": "divided by the joint range of both models",
    "sci_range": "divided by the range of the science model",
    "above_chance": "divided by the science model's gain over chance",
}
ORDER_SECTION = SectionOf(
    "Order of the models",
    Says("consistency", "Ranking consistency is {span} over {count:benchmark}; 50% is what coins would give."),
    TableOf(
        "ranking",
        {"subject": "benchmark"},
        {
            **Column("consistency", "consistency", ".3f").with_ends("consistency"),
            "coin_flip_p": Column("consistency_coin_flip_p", "p (coin flips)", "p"),
            "lasts": Column("consistency_lasts", "shown to last"),
            "pairs": Column("consistency_pairs", "pairs of models"),
            "separable_pairs": Column("separable_pairs", "pairs told apart at the end"),
            **Column("settled_from", "nearly settled, pairs told apart", ".4g").with_ends("settled_from_b"),
            "nearly_stable_from_b": Column("nearly_stable_from", "nearly settled, all pairs", ".4g"),
        },
        "Ranking consistency and settling",
        "Nearly settled: after so many billion tokens, 9 of 10 pairs of models (tau 0.8) are in their final order for "
        "good. The final order is that at the last common point; a value there means: not settled. Pairs told apart: "
        "their scores there differ by more than noise.",
    ),
    [
        Dots(
            [Series("consistency", OF_BENCHMARK)], "Ranking consistency, with 95% intervals", dashed=(0.5,), sorted=True
        ),
        Dots([Series("settled_from", OF_BENCHMARK)], "Billion tokens after which the order is nearly settled"),
    ],
    hint="whether an early order lasts, and when it settles",
)
COMPLIANCE_SECTION = SectionOf(
    "Compliance and overall score",
    Says(
        "compliance_raw_gap",
        "The science model is ahead by more than item noise on {apart_above} of {with_interval} benchmarks, and behind "
        "on {apart_below}.",
    ),
    TableOf(
        "compliance",
        {"subject": "benchmark"},
        {
            **Column("compliance", "compliance", ".3f").with_ends("compliance"),
            **Column("compliance_raw_gap", "lead in the score", ".3f").with_ends("raw_gap"),
            **Column("overall", "overall score", ".3f").with_ends("overall"),
        },
        "Science against web",
    ),
    [Dots([Series("overall", OF_BENCHMARK)], "Overall score, with 95% intervals over items", sorted=True)],
    hint="models of science texts against models of web texts",
)
OF_TRIAL: dict[str, str] = {"filter": "{}", "subject": "on {}", "design": "by {}"}
SCORES_OF_FILTERS = tuple(dict.fromkeys(metric for _, _, metric in FILTERS))
FILTER_SECTION = SectionOf(
    "Filters on data they were not fitted on",
    Says("filter_p", "{count:trial} of filters on models or checkpoints that they did not see."),
    TableOf(
        "filters",
        {"subject": "benchmark", "filter": "filter", "score": "item score", "design": "design"},
        {
            "unfiltered": Column("filter_unfiltered", "all items", ".3f"),
            "in_sample": Column("filter_in_sample", "where it was fitted", ".3f"),
            "held_out": Column("filter_held_out", "held out", ".3f"),
            "control_mean": Column("filter_control_mean", "random choices, mean", ".3f"),
            "p": Column("filter_p", "p", "p"),
            "useful": Column("filter_useful", "useful"),
            "items": Column("filter_kept_in_sample", "items", part="n"),
            "kept_in_sample": Column("filter_kept_in_sample", "items kept"),
        },
        "All trials",
        folded=True,
    ),
    [
        Dots(
            [
                Series(f"filter_{kind}", OF_TRIAL, {"score": score}, mark, words)
                for kind, mark, words in (
                    ("control_mean", "s", f"mean of {base.CONTROLS} random choices of as many items"),
                    ("in_sample", "hollow", "where it was fitted"),
                    ("held_out", "k", "held out"),
                )
                for score in SCORES_OF_FILTERS
            ],
            "Signal quality of the items that a filter keeps, by the item score of its authors",
        )
    ],
    hint="whether fewer items give more signal",
)
READY = (
    Series("ready_by", OF_BENCHMARK, mark="k", words="ready for sure: both"),
    Series("settled_from", OF_BENCHMARK, mark="s", words="the models’ order is nearly settled (95% interval)"),
    Series("above_chance_from_mean", OF_BENCHMARK, mark="hollow", words="from here above chance for good"),
)


# ----------------------------------------------------------------------------------------------------------------------
# Headlines and findings.


def yes_of(rows: Rows, quantity: str) -> tuple[list[str], list[str]]:
    """The benchmarks of which a quantity says yes (or a number above 0), and all of which it is known."""
    known_rows = [row for row in rows.all(quantity) if row.value is not None]
    return [str(row.subject) for row in known_rows if row.value], [str(row.subject) for row in known_rows]


def falling(rows: Rows) -> list[str]:
    """The benchmarks whose scores fall steadily, while nothing says which direction is better."""
    return [str(row.subject) for row in rows.all("steady") if row.reason == base.WHICH_DIRECTION.reason]


def ready_lede(rows: Rows) -> Lede | None:
    """How many benchmarks are ready before the end of training, and the first of them; None where that is unknown of
    all."""
    ready, decided = yes_of(rows, "ready")
    if not decided:
        return None
    sentence = "Ready: above chance for good, and the models’ order nearly settled."
    late, of_all = len(decided) - len(ready), count(len(rows.all("ready")), "benchmark")
    sentence += f" Not before the end: {late}." if late else ""
    if not ready:
        return Lede("No benchmark is shown to be ready before the end of training", sentence)
    by = {name: rows.value("ready_by", subject=name) for name in ready}
    first = [name for name in ready if by[name] == min(by.values())]
    who = first[0] if len(first) == 1 else count(len(first), "benchmark")
    heading = (
        f"{len(ready)} of {of_all} {'is' if len(ready) == 1 else 'are'} shown to be ready before the end of training"
    )
    return Lede(heading, f"{sentence} First: {who}, by {Written(by[first[0]], TOKENS)} tokens.")


def steady_lede(data: SignalData, rows: Rows) -> Lede:
    """On how many benchmarks scores improve steadily, and what that means, or why it was not tested."""
    steady, tested = yes_of(rows, "steady")
    if not tested and falling(rows):
        return Lede("Scores fall steadily, and nothing says which direction is better", "Is lower better?")
    if not tested and yes_of(rows, "signal_quality_mean")[1]:
        return Lede("Whether scores improve steadily was not tested", "Nothing was resampled, so there is no test.")
    if not tested:
        fewest = fewest_checkpoints(data.section.signal.convention)
        heading = "Too few checkpoints to say whether scores improve steadily"
        return Lede(heading, f"That takes {fewest} checkpoints of a model.")
    if not steady:
        heading = "On no benchmark are scores shown to improve steadily during training"
        basis = "More steadily than a random walk. Noise, or scores that fall before they rise, may hide it."
        return Lede(heading, basis)
    missed = [name for name in tested if name not in steady]
    remainder = f" Not shown, or at chance: {listing(missed, 4)}." if missed else ""
    heading = f"On {len(steady)} of {count(len(tested), 'benchmark')}, scores improve steadily during training"
    return Lede(heading, f"“Steadily” means: beats a random walk (false discovery rate 5%).{remainder}")


def findings(data: SignalData, rows: Rows) -> Iterator[Finding]:
    """What the page finds, in sentences."""
    if names := falling(rows):
        sentence = f"Is lower better on {listing(names, 4)}? Scores fall steadily there, and nothing says which "
        basis = f"Mean rank correlation of score and checkpoint of {-base.FALLING} or less. Fill in the column "
        yield Finding(f"{sentence}direction is better.", f"{basis}`higher_is_better` of the benchmarks sheet.")
    if yes_of(rows, "steady")[1]:
        lede, basis = steady_lede(data, rows), "A test by random signs of the steps between checkpoints (Benjamini-"
        yield Finding(f"{lede.heading}. {lede.sentence}", f"{basis}Hochberg). It is cautious if curves are noisy.")
    above, known_of = yes_of(rows, "above_chance")
    if known_of:
        missed = [name for name in known_of if name not in above]
        sentence = f"On {_some_of(above, known_of)}, a model is shown to end above chance".replace("**", "")
        sentence += f"; on none of {listing(missed, 4)}." if missed else "."
        yield Finding(sentence, "One-sided tests of the last scores by their standard errors, at 5% (Holm).")
    yield from _settling_finding(rows)
    reasons: dict[str, list[str]] = {}  # why nothing is said of the order along training
    for name, benchmark in data.benchmarks.items():
        if benchmark.alignment.reason is not None:
            reasons.setdefault(benchmark.alignment.reason, []).append(name)
    for reason, names in reasons.items():
        yield Finding(f"{reason} So nothing is said of when their order settles on {listing(names, 4)}.")
    yield from _filter_finding(rows)


def settling(rows: Rows) -> tuple[str, list[Row]]:
    """Of which pairs of models it is known when their order settles, as a quantity, with its rows of benchmarks not at
    chance: of those that can be told apart or, where the noise of scores is unknown, of all."""
    at_chance = [row.subject for row in rows.all("above_chance") if row.value == 0]
    told = [row.subject for row in rows.all("separable_pairs") if row.value is not None]
    if told:
        return "settled_from", [row for row in rows.all("settled_from") if row.subject in {*told} - {*at_chance}]
    found = [row for row in rows.all("nearly_stable_from") if row.value is not None and row.subject not in at_chance]
    return "nearly_stable_from", found


def _before_the_end(rows: Rows, found: Sequence[Row]) -> dict[str, float]:
    """By how many tokens the order settles, for sure, on the benchmarks on which it does before the last point."""
    last = {row.subject: row.value or 0.0 for row in rows.all("point_tokens")}  # of each its last
    ends = {str(row.subject): pair[1] for row in found if (pair := ends_of(row))}
    return {name: end for name, end in ends.items() if end < last[name]}


def _settling_finding(rows: Rows) -> Iterator[Finding]:
    """From when on the models are in their final order: for sure where the interval ends before the last point."""
    quantity, found = settling(rows)
    if not found or all(row.reason == base.UNKNOWN_TOKENS for row in found):
        return
    if quantity == "nearly_stable_from":
        basis = "The noise of scores is unknown: equal models may seem to settle late, and an order by chance to last."
        yield Finding("When the models’ order settles is not known.", basis)
        return
    surely = _before_the_end(rows, found)
    at_end = all(rows.value("common_points_at_end", subject=row.subject) == 1 for row in found)
    where = "the end of training" if at_end else "the last point that all models have"
    sentence = f"On {len(surely)} of {count(len(found), 'benchmark')}, the order of the models that can be told apart "
    sentence += f"is nearly settled before {where}, noise allowed for"
    for pick, word in {min: "first on ", max: "last on "}.items() if len(surely) > 1 else [(min, "")] * len(surely):
        name = pick(surely, key=surely.__getitem__)
        sentence += f"; {word}{name}, by {Written(surely[name], TOKENS)} tokens"
    if equal := [str(row.subject) for row in found if rows.value("separable_pairs", subject=row.subject) == 0]:
        sentence += f". No two models can be told apart there on {listing(equal, 4)}"
    basis = "Pairs of models whose scores there differ by more than noise (false discovery rate 5%); 9 of 10 stay in "
    yield Finding(f"{sentence}.", f"{basis}their final order (tau 0.8).")


def _filter_finding(rows: Rows) -> Iterator[Finding]:
    """Whether any filter of items holds beyond the data that it was fitted on."""
    judged = [labels_of(row) for row in rows.all("filter_p") if row.value is not None]
    if not judged:
        return
    basis = f"A filter keeps some of a benchmark's items. {count(len(judged), 'trial')} of filters on models or "
    basis += f"checkpoints that they did not see, each against {base.CONTROLS} random choices of as many items."
    useful = [place for place in judged if rows.value("filter_useful", **place)]
    if not useful:
        yield Finding("The filters found nothing that holds beyond the data they were fitted on.", basis)
        return

    def gain(place: dict[str, Condition]) -> float:
        return rows.value("filter_held_out", **place) - rows.value("filter_control_mean", **place)

    best = max(useful, key=gain)
    sentence = f"In {len(useful)} of {count(len(judged), 'trial')} ({percent(len(useful) / len(judged))}), a filter of "
    sentence += "items beats both no filter and 97.5% of random choices of as many items. By chance, at most 2.5% of "
    sentence += f"trials would. The largest gain over random choices is {decimal(gain(best), signed=True)}, with the "
    yield Finding(f"{sentence}filter {best['filter']} on {best['subject']}.", basis)


# ----------------------------------------------------------------------------------------------------------------------
# The picture of learning curves: a panel a benchmark, those of the highest signal quality first.

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


def _panel(data: SignalData, rows: Rows, benchmark: BenchmarkCurves, points_of_each: int) -> Panel:
    """Signal quality in words, the curves, and whether scores are shown to improve steadily."""
    name, steady = benchmark.benchmark, rows.value("steady", subject=benchmark.benchmark)
    outcome: Outcome = "yes" if steady == 1 else "not known"
    word = "steady" if steady == 1 else "is lower better?" if name in falling(rows) else "not shown"
    if np.isnan(steady) and name not in falling(rows):
        outcome, word = "not measured", "not tested"
    quality = next(map(row_words, rows.all("signal_quality_mean", subject=name)), "") or "unknown"
    value, _, interval = quality.partition(" ")
    words = f"signal quality **{value}** {interval}".rstrip() + "; lower is better" * (benchmark.direction < 0)
    kind = "ln m" if steady == 1 else "ln m no"
    picture = _curve_picture(data, benchmark, points_of_each, f"Signal quality {quality}.", kind)
    return Panel(name, words, picture, outcome, word)


def _note(data: SignalData, drawn: Sequence[BenchmarkCurves]) -> str:
    """How to read the curves, and what is not drawn."""
    numbers = sorted({len(benchmark.scored) for benchmark in drawn})
    models = count(numbers[-1], "model") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} models"
    which_models = f"{MOST_MODELS} of the models" if numbers[-1] > MOST_MODELS else "each model"
    note = f"Scores of {models} during training ({data.progress.words}). Thin: {which_models}; "
    note += "point at one for its name. "
    if any(len(benchmark.mean_curve) > 1 for benchmark in drawn):
        note += "Thick: their mean where all have a score; dashed where it is not shown to improve steadily. "
    note += "Dotted: chance. " if not all(isinstance(benchmark.chance, Missing) for benchmark in drawn) else ""
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
    """Whether some checkpoints in a row lie at multiples of each other, rather than at equal steps."""
    curves = [curve for benchmark in data.benchmarks.values() for curve in benchmark.curves.values()]
    positions, run = max((np.unique(curve.progress) for curve in curves), key=len), 0
    positions = positions[positions > 0]
    for ratio in positions[1:] / positions[:-1]:
        run = run + 1 if ratio >= DOUBLING else 0
        if run == DOUBLINGS:
            return True
    return False


def _training_axis(data: SignalData, last: float, start: float, end: float) -> Axis:
    """From billions of tokens, in the page's unit, to pixels."""
    if not doubles(data):
        return Axis(0, last, start, end)
    curves = [curve.progress for benchmark in data.benchmarks.values() for curve in benchmark.curves.values()]
    first = min(float(positions[positions > 0].min()) for positions in curves if (positions > 0).any())
    return LogAxis(min(first * data.progress.scale / 2, last / 2), last, start, end)


def _powers(axis: Axis) -> list[float]:
    """Where lines stand on a logarithmic axis of training: at powers of ten, up to half its end."""
    if not isinstance(axis, LogAxis):
        return []
    powers = 10.0 ** np.arange(np.ceil(np.log10(axis.low)), np.floor(np.log10(axis.high)) + 1)
    return [float(power) for power in powers if power < axis.high / 2]


def _amount(value: float) -> str:
    """An amount of training: three digits, no power of ten."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# ----------------------------------------------------------------------------------------------------------------------
# The curves of one benchmark.


class _Drawn(NamedTuple):
    """A curve of a picture: progress in the page's unit and values (points,), and its kind."""

    progress: np.ndarray
    values: np.ndarray
    kind: str


def _curve_picture(data: SignalData, benchmark: BenchmarkCurves, points_of_each: int, ending: str, kind: str) -> Markup:
    """The models' curves below their mean, of a `kind`; the highest and the lowest at the end have their names, as have
    the reader's own. `ending`: the last words of its label."""
    names, mean, scored, scale = _names(data), benchmark.mean_curve, benchmark.scored, data.progress.scale
    values = {model: benchmark.direction * benchmark.curves[model].values for model in scored}
    training, curves = {model: benchmark.curves[model].progress * scale for model in scored}, dict[str, _Drawn]()
    chosen = [scored[index] for index in _some(len(scored), MOST_MODELS)]
    for model in dict.fromkeys([*chosen, *(model for model in data.own_models if model in scored)]):
        points, of_kind = _some(len(values[model]), points_of_each), "ln me" if model in data.own_models else "ln"
        curves[names[model]] = _Drawn(training[model][points], values[model][points], of_kind)
    low, high = _ends(min(each.min() for each in values.values()), max(each.max() for each in values.values()))
    label = f"{benchmark.benchmark}: scores of {count(len(values), 'model')} in training, {low} to {high}. "
    if len(mean):
        label += "Their mean goes from {} to {}. ".format(*_ends(float(mean[0]), float(mean[-1])))
    width, bottom, chance = 270, 78, number(benchmark.chance)
    end = width - (78 if len(curves) > 1 else 2)
    least, highest = min(each.values.min() for each in curves.values()), max(c.values.max() for c in curves.values())
    room = (highest - least) / 2
    drawn_chance = least - room <= chance <= highest + room
    if drawn_chance:
        least, highest = min(least, chance), max(highest, chance)
    last = max(float(each[-1]) for each in training.values())
    x_axis, up = _training_axis(data, last, 34, end), Axis(least, highest, bottom - 3, 10)
    powers = _powers(x_axis)
    marks = [line(34, bottom, end, bottom, "ax"), *(line(x_axis(x), 8, x_axis(x), bottom, "g") for x in powers)]
    if drawn_chance:
        marks.append(line(34, up(chance), end, up(chance), "chance"))
    thick = _Drawn(benchmark.alignment.progress * scale, mean, kind)
    for name, drawn in [*curves.items(), ("", thick)]:
        marks.append(curve([*map(x_axis, drawn.progress)], [*map(up, drawn.values)], drawn.kind, name))
    marks += _labels(curves, up, end + 4) if len(curves) > 1 else []
    low, high = _ends(least, highest)
    first = powers[0] if powers else x_axis.low
    marks += [
        text(30, 14, high, "", "end"),
        text(30, bottom, low, "", "end"),
        text(x_axis(first), bottom + 15, _amount(first), "", "middle" if powers else "start"),
        text(end, bottom + 15, f"{_amount(last)} {data.progress.words}", "", "end"),
    ]
    return lines_svg(width, bottom + 19, label + ending, *marks, x_axis=x_axis, up=up, unit=data.progress.words)


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


# ----------------------------------------------------------------------------------------------------------------------
# Panels, answers and the page.


def _outcome(yes: Sized, total: Sized) -> Outcome:
    return "not known" if not yes else "yes" if len(yes) == len(total) else "in part"


def _some_of(yes: Sized, total: Sized) -> str:
    return f"**{len(yes)} of {len(total)}** benchmark{'s' * (len(total) != 1)}"


def settling_panel(data: SignalData, rows: Rows) -> Panel | None:
    """When the order of the models settles; None where it is known of no benchmark."""
    quantity, found = settling(rows)
    if all(row.value is None for row in found):
        return None
    chart = Dots([Series(quantity, OF_BENCHMARK)], "Billion tokens", log=doubles(data), most=24).draw(rows)
    question = "When does the models’ order settle?"
    if quantity == "nearly_stable_from":
        return Panel(question, "**Noise unknown:** equal models may seem to settle late.", chart.svg, "not measured")
    surely = _before_the_end(rows, found)
    words = f"{_some_of(surely, found)}: nearly settled before the last common point, noise allowed for."
    return Panel(question, words, chart.svg, _outcome(surely, found))


class Told(NamedTuple):
    """The answer to a question, in a panel of the page with a larger chart, and on the first page of a site."""

    panel: Panel
    answer: Answer

    @classmethod
    def of(cls, panel: Panel, chart: Dots, rows: Rows, basis: str, link: str) -> "Told":
        """Of a panel without its picture: its words are those of the answer, too."""
        small = replace(chart, most=IN_ANSWER).draw(rows)
        answer = Answer(panel.question, panel.text.replace("**", ""), small.svg, "", f"{basis} {small.note}", link)
        return cls(replace(panel, svg=replace(chart, most=24).draw(rows).svg), answer)


def lasting(data: SignalData, rows: Rows) -> Iterator[Told]:
    """The share of later checkpoints with an early order, beside what coin tosses give."""
    if not yes_of(rows, "consistency")[1]:
        return
    chart = Dots(
        [
            Series("consistency", OF_BENCHMARK, words="later checkpoints with the early order"),
            Series("consistency_coin_flips", OF_BENCHMARK, mark="s", words="95% of coin tosses"),
        ],
        "Share of later checkpoints with the early order",
        dashed=(0.5,),
        sorted=True,
    )
    pairs = count(int(max(row.value or 0 for row in rows.all("consistency_pairs"))), "pair")
    windows = data.windows
    when = f"{windows.base[0]:g} to {windows.base[1]:g} billion tokens, and after {windows.later[0]:g}"
    when = "10% to 20% of training, and after 22%" if windows.relative else when
    basis = f"{pairs} of equally large models. Order at {when}."
    lasts, tested = yes_of(rows, "consistency_lasts")
    words = f"On {_some_of(lasts, tested)}, an early ranking lasts longer than coin tosses would."
    if not lasts:
        words = f"**Not known:** with {pairs} of equally large models, coin tosses can look as stable."
    panel = Panel("Does an early ranking last?", words, Markup(""), _outcome(lasts, tested))
    if not tested:
        words = "**Not tested** against coin tosses: nothing was resampled."
        panel = replace(panel, text=words, outcome="not measured")
    yield Told.of(panel, chart, rows, f"{basis} False discovery rate 5%.", "The orders")


def above_chance(rows: Rows) -> Iterator[Told]:
    """The mean score's distance from chance along training, and how many benchmarks have a model above it."""
    if not rows.all("mean_above_chance"):
        return
    chart = Dots(
        [
            Series("mean_above_chance", OF_BENCHMARK, {"point": "last"}, words="last common point"),
            Series("mean_above_chance", OF_BENCHMARK, {"point": "first"}, "hollow", "first common point"),
        ],
        "Points above chance, mean of the models",
        sorted=True,
    )
    above, known_of = yes_of(rows, "above_chance")
    words = f"On {_some_of(above, known_of)}, a model is shown to end above chance."
    basis = "One-sided tests at 5%, adjusted for the number of models (Holm)."
    panel = Panel("Do scores end above chance?", words, Markup(""), _outcome(above, known_of))
    if not known_of:
        words = "**Not measured:** these scores have no standard errors. Small gaps may be noise."
        panel, basis = replace(panel, text=words, outcome="not measured"), "lm-eval's files have the errors."
    yield Told.of(panel, chart, rows, basis, "Each benchmark")


def windows_in_words(data: SignalData) -> str:
    """What ranking consistency compares, and in which windows of training."""
    windows = data.windows
    if windows.relative:
        reason = "No training reaches 100 billion tokens" if data.progress.in_tokens else "Tokens are unknown"
        return (
            f"{reason}: the competition's windows are scaled to the length of each pair's training, up to its last "
            "common checkpoint (base: 10% to 20% of it, later: from 22%)."
        )
    (base_low, base_high), (low, high) = windows.base, windows.later
    source = " These are the windows of the early-training competition (E2LM)." if windows == E2LM_WINDOWS else ""
    return (
        "Ranking consistency asks whether two models keep, in a later window of training "
        f"({low:g} to {high:g} billion tokens), the order that they had in a base window ({base_low:g} to "
        f"{base_high:g}).{source}"
    )


def sections(data: SignalData, rows: Rows) -> list[SectionOf]:
    """The folds that these numbers fill."""
    options, designs = data.section.signal, {str(row.said.get("design")) for row in rows.all("filter_p")}
    compliance = (
        "Compliance is the science model's mean lead over the web model, and 0 if it is behind. Here the lead is "
        f"{NORMALISED[options.normalisation]}. The interval is for one pair of training runs and does not cover other "
        "seeds. The overall score is {:g} × signal quality + {:g} × ranking consistency + {:g} × compliance."
    )
    told = " ".join(f"{short.capitalize()}: {text}." for name, (short, text) in DESIGNS.items() if name in designs)
    explained = EXPLAINED.format(convention=CONVENTIONS[options.convention], ties=CONVENTIONS[options.ties])
    quality = replace(QUALITY_SECTION, explanation=explained)
    if falling(rows):
        template = "Of {count:benchmark}, those that fall are compared with nothing until their direction is known."
        quality = replace(quality, finding=Says("signal_quality_mean", template))
    found = {
        ("signal_quality_mean",): quality,
        ("consistency", "nearly_stable_from"): replace(ORDER_SECTION, explanation=windows_in_words(data)),
        ("compliance",): replace(COMPLIANCE_SECTION, explanation=compliance.format(*options.weights)),
        ("filter_p",): replace(FILTER_SECTION, explanation=told),
    }
    return [section for quantities, section in found.items() if any(yes_of(rows, each)[1] for each in quantities)]


def signal_page(data: SignalData, rows: Rows) -> Page:
    """The page: when benchmarks are ready, the curves, three answers, and a fold for each kind of number."""
    ready, steady, curves = ready_lede(rows), steady_lede(data, rows), curves_picture(data, rows)
    if ready is not None:
        ends = [row.value for row in rows.all("point_tokens") if row.value is not None]
        label = "Tokens of training; dashed: the last point that all models have"
        drawn = Dots(READY, label, dashed=(max(ends),), log=doubles(data)).draw(rows)
        heading = Markup("<h2>{}</h2><p class=sub>{}</p>").format(steady.heading, steady.sentence)
        curves = Picture(
            drawn.svg + Markup('<p class="note">{}</p>').format(drawn.note) + heading + curves.svg, curves.note
        )
    answered, chart = [*lasting(data, rows), *above_chance(rows)], replace(QUALITY, most=IN_ANSWER).draw(rows)
    question, basis = "Do scores improve steadily in training?", f"{chart.note} {steady.sentence}"
    answer = Answer(question, f"{steady.heading}.", chart.svg, basis=basis, link="The curves")
    panels = [None if ready else settling_panel(data, rows), *(pair.panel for pair in answered)]
    return Page(
        name="signal",
        title="Early signal",
        question="Does a benchmark tell you anything early in training? Each model is scored at checkpoints along "
        f"its pretraining, under direct evaluation. {explain_protocols(['direct'])} Signal quality is high if scores "
        "improve steadily. The order of the models has settled when it stays as it is at the end, and nearly "
        "settled when 9 of 10 pairs do.",
        findings=[*findings(data, rows)],
        sections=[section.drawn(rows) for section in sections(data, rows)],
        notes=notes_on(data),
        lede=ready or steady,
        picture=curves,
        panels=[panel for panel in panels if panel is not None],
        answers=[answer, *(pair.answer for pair in answered)],
    )
