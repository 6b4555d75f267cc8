"""Two models compared: verdicts in words, and the page."""

from collections.abc import Sequence

import pandas as pd

from lm_validity.pages.page import Answer, Finding, Lede, Page, Picture, Section, Table
from lm_validity.pages.svg import KINDS, NAMES, points
from lm_validity.results.put import Column, Rows
from lm_validity.results.sections import POINTS, Dots, Lines, Says, SectionOf, Series, TableOf
from lm_validity.studies.items.compare import Comparison, Judged
from lm_validity.studies.items.statistics import LEVEL, RUNS_DO_NOT_DECIDE
from lm_validity.words import Missing, count, decimal, explain_protocols, is_known, number, percent

MOST_FLIPS = 1000  # on the page; the CSV has all
FEW = 7  # benchmarks on a site's first page

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
    if verdict.runs_needed is RUNS_DO_NOT_DECIDE:
        return f"{items or 'more items'}, not more runs"
    runs = f"{verdict.runs_needed:,} runs of each" if is_known(verdict.runs_needed) else ""
    return " or ".join(filter(None, (items, runs)))


def verdict_words(found: Judged) -> str:
    """`worse: −2.1 points (95%: −3.3 to −0.9)`; what Holm's adjustment left undecided with its p."""
    verdict = found.verdict

    def written(value: float, *, signed: bool = True) -> str:
        return points(value, 1, signed=signed) if found.in_points else decimal(value, 3, signed=signed)

    words: str = verdict.decision
    margin = "" if verdict.margin is None else written(verdict.margin, signed=False)
    if margin and verdict.decision in ("worse", "not worse"):
        words += f" by more than {margin}"
    if isinstance(verdict.change, Missing):
        reason = str(verdict.change.reason).rstrip(".")
        return f"{words}: {reason[:1].lower()}{reason[1:]}"
    text = f"{words}: {written(verdict.change)}{' points' if found.in_points else ''}"
    if not isinstance(ends := verdict.interval, tuple):
        return text
    text += f" ({100 * verdict.level:g}%: {' to '.join(map(written, ends))}"
    p, p_margin, undecided = number(verdict.p), number(verdict.p_margin), verdict.decision == "not known"
    if (ends[0] > 0 or ends[1] < 0) and p >= LEVEL and verdict.decision != "worse":
        text += f"; p {decimal(p, 2)} after Holm"
    if (
        undecided
        and margin
        and (ends[0] > -(verdict.margin or 0) or ends[1] < -(verdict.margin or 0))
        and p_margin >= LEVEL
    ):
        text += f"; p of a loss of {margin} is {decimal(p_margin, 2)} after Holm"
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
    comparison: Comparison,
    found: Sequence[Judged],
    rows: Rows,
    notes: Sequence[str],
    flips: pd.DataFrame,
    point: str | None = None,
) -> Page:
    """The page: who is better on what, with a picture and a table of every benchmark, along training, and the items
    that one of the two alone gets right. `notes`: before those of the comparison. `point`: a sentence on the point of
    training at which they are compared, to stand beside the picture."""
    names, protocols = short_names(comparison.first, comparison.second), comparison.protocols
    said = {protocol: tally(comparison, found, protocol) for protocol in protocols}
    lede = "; ".join(f"{NAMES[each]}, {words}" if len(said) > 1 else words for each, words in said.items())
    sections = [_benchmark_section(names).drawn(rows)]
    if rows.all("change_along_training"):
        sections.append(_training_section(names, rows, protocols, POINTS if found[0].in_points else "").drawn(rows))
    if len(flips):
        sections.append(_flip_section(comparison, flips))
    picture = _picture(names, comparison, rows)
    return Page(
        name="compare",
        title=f"{comparison.first} against {comparison.second}",
        question="Which of the two models is better, and on what? "
        + explain_protocols(protocols, trained_here=comparison.trained_here),
        findings=[Finding(f"{names[1]} against {names[0]}, {NAMES[each]}: {words}.") for each, words in said.items()],
        sections=sections,
        notes=[*notes, *comparison.notes],
        lede=Lede(f"Is {names[1]} better than {names[0]}?", lede[:1].upper() + lede[1:]),
        picture=picture if picture is None or point is None else Picture(picture.svg, f"{point} {picture.note}"),
        answers=[_answer(names, comparison, found, rows, point)],
    )


def _changes(rows: Rows, comparison: Comparison, protocols: Sequence[str]) -> tuple[Rows, list[Series]]:
    """The changes that are in points, tested if any are, and a series for each protocol."""
    shares = [row for row in comparison.differences if row.in_points and row.protocol in protocols]
    kept = {(row.benchmark, row.protocol) for row in ([row for row in shares if row.tested] or shares)}
    drawn = [row for row in rows if row.quantity == "change" and (row.subject, row.protocol) in kept]
    words = {each: NAMES[each] if len(protocols) > 1 else "" for each in protocols}
    series = [Series("change", {"subject": "{}"}, {"protocol": each}, KINDS[each], words[each]) for each in protocols]
    return Rows("compare", drawn), series


def _picture(names: tuple[str, str], comparison: Comparison, rows: Rows) -> Picture | None:
    """The changes with their intervals, a row for each benchmark whose scores are fractions."""
    drawn, series = _changes(rows, comparison, comparison.protocols)
    if not list(drawn):
        return None
    sizes = [row.value for row in rows.all("smallest_detectable") if row.value is not None]
    label = f"{names[1]} minus {names[0]}, in points, each with its own 95% interval"
    if sizes:
        span = " to ".join(dict.fromkeys(points(size, 1) for size in (min(sizes), max(sizes))))
        label += f". Each test by itself finds gaps of {span} with 80% power"
    return Dots(series, label, dashed=(0.0,), sorted=True, unit=POINTS).draw(drawn)


def _answer(
    names: tuple[str, str], comparison: Comparison, found: Sequence[Judged], rows: Rows, point: str | None
) -> Answer:
    """Whether the second model is better, on all benchmarks together, for the first page of a site."""
    together, verdict = found[0], found[0].verdict
    begin = {"better": "Yes", "worse": "No, it is worse", "not worse": "It is not worse"}.get(
        verdict.decision, "Not known"
    )
    basis = f"{point} " if point else ""
    if isinstance(verdict.change, Missing):
        sentence = f"{begin}. {verdict.change.reason}"
    else:
        change = (
            points(verdict.change, 1, signed=True) if together.in_points else decimal(verdict.change, 3, signed=True)
        )
        sentence = f"{begin}: {change}{' points' if together.in_points else ''} on average."
        under = f", {NAMES[together.protocol]}" if len(comparison.protocols) > 1 else ""
        basis += f"Mean over {count(together.counted, 'benchmark')}{under}, for these benchmarks only."
    drawn, series = _changes(rows, comparison, [together.protocol])
    interval = verdict_words(together).partition("(")[2].rstrip(")") if isinstance(verdict.interval, tuple) else ""
    picture = Dots(series, "Change, in points", dashed=(0.0,), sorted=True, most=FEW, unit=POINTS).draw(drawn).svg
    return Answer(f"Is {names[1]} better than {names[0]}?", sentence, picture, interval, basis, "Every benchmark")


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
        "benchmarks only. Models that answered the same items are compared item by item; subjects, from three on, are "
        "clusters; runs of one model share what their spread shows.",
    )


def _training_section(names: tuple[str, str], rows: Rows, protocols: Sequence[str], unit: str) -> SectionOf:
    points_in = rows.all("change_along_training")[0].said["unit"]
    words = "Billions of tokens" if points_in == "tokens_b" else "Steps"
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
            {"subject": "benchmark", "protocol": "protocol", "point": words.lower()},
            Column("change_along_training", "difference", "+.4f").with_ends("change"),
            "Every point",
            folded=True,
        ),
        [Lines(series, "point", label, words, unit)],
        "At each point the two are compared as at the last one, by the same test. The band is the interval of each "
        "point by itself: over many points some exclude 0 by chance.",
        "every point that both models have",
    )


def _flip_section(comparison: Comparison, flips: pd.DataFrame) -> Section:
    caption = f"The first {MOST_FLIPS} of {len(flips)}." if len(flips) > MOST_FLIPS else ""
    labels = {"first_answer": comparison.first, "second_answer": comparison.second, "right": "right with"}
    shown = flips.head(MOST_FLIPS).replace({"protocol": NAMES})
    share = percent(float((flips["right"] == comparison.second).mean()))
    return Section(
        "Items that one of the two alone gets right",
        f"{count(len(flips), 'item')}, {share} of them right with {comparison.second}.",
        tables=[Table("flipped_items", "Items", shown, labels=labels, caption=caption)],
    )
