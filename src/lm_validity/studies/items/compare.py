"""Two models compared on every benchmark that both have."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.pages.figures import CATEGORY_COLORS, PROTOCOL_LABELS, interval_dots, tooltips
from lm_validity.pages.page import Figure, Finding, Page, Section, Table, write_report
from lm_validity.statistics import holm
from lm_validity.studies.items.item_report import CELL, cell_scores, model_items, model_scores
from lm_validity.studies.items.statistics import LEVEL, paired_difference, unpaired_difference
from lm_validity.summaries import Missing, as_columns, is_known, number, page_only
from lm_validity.tables.schema import trained_here
from lm_validity.terminal import render_table
from lm_validity.words import Reason, ReasonCode, count, decimal, explain_protocols, listing

# ----------------------------------------------------------------------------------------------------------------------
# Two models compared on every benchmark that both have: on their common items, else by their standard errors.

SAME_SCORE = 1e-6  # a score this close to the mean of its items is that mean


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
    interval: tuple[float, float] | Missing
    test: str
    items: int | Missing
    subjects: int | None
    first_only: int | None
    second_only: int | None
    p: float | Missing
    p_adjusted: float | Missing
    smallest_detectable: float | Missing
    items_needed: int | Missing


@dataclass(frozen=True)
class CompareSummary:
    """The comparison of two models."""

    first: str
    second: str
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]
    trained_here: bool = page_only(default=False)  # a run of the workflow made the fine-tunes

    def better(self, sign: int, protocol: str) -> list[Comparison]:
        """The comparisons of a protocol that the first (1) or second (-1) model wins after correction."""
        rows = [row for row in self.comparisons if row.protocol == protocol and is_known(row.p_adjusted)]
        return [row for row in rows if number(row.p_adjusted) < LEVEL and np.sign(row.difference) == sign]

    @property
    def protocols(self) -> list[str]:
        """Protocols under which the models were compared."""
        return list(dict.fromkeys(row.protocol for row in self.comparisons))


def compare_models(
    first: str,
    second: str,
    scores: str | Path,
    items: str | Path | None = None,
    benchmarks: str | Path | None = None,
) -> CompareSummary:
    """Compare two models on every benchmark and protocol under which both have a score.

    Raises InputError for a model without scores, for one model twice, and where the two share no benchmark.
    """
    if first == second:
        raise InputError(f"the model {first!r} is named twice.", "name two different models.")
    rows, notes = model_scores(scores, [first, second], benchmarks)
    answers = pd.DataFrame(columns=[*CELL, "doc_id", "subject", "correct"])
    if items is not None:
        answers = model_items(items, rows)
    by_cell = {key: group for key, group in answers.groupby(CELL)}
    cells = cell_scores(rows).set_index(CELL)
    found, one_sided = [], []
    for benchmark, protocol in sorted({(b, p) for _, b, p in cells.index}, key=lambda key: (key[1], key[0])):
        keys = [(model, benchmark, protocol) for model in (first, second)]
        if all(key in cells.index for key in keys):
            pair = [by_cell.get(key) for key in keys]
            found.append(_comparison(cells.loc[keys[0]], cells.loc[keys[1]], pair, benchmark, protocol))
        else:
            one_sided.append(f"{benchmark} ({protocol})")
    if not found:
        raise InputError(f"{scores}: {first} and {second} share no benchmark.", "compare models with common scores.")
    if one_sided:
        notes = (*notes, f"Only one of the two models has a score on {listing(one_sided)}.")
    return CompareSummary(first, second, tuple(_adjusted(found)), (*notes, *_test_notes(found)), trained_here(rows))


def _comparison(
    one: pd.Series, other: pd.Series, answers: list[pd.DataFrame | None], benchmark: str, protocol: str
) -> Comparison:
    sign = one["better"]
    difference = float(sign * (one["value"] - other["value"]))
    unknown = Missing(
        Reason("Neither common items nor the standard errors of both scores are known.", ReasonCode.NO_ERRORS)
    )
    row = Comparison(
        benchmark=benchmark,
        protocol=protocol,
        metric=one["metric"],
        first_score=float(one["value"]),
        second_score=float(other["value"]),
        difference=difference,
        interval=unknown,
        test="none",
        items=Missing(Reason("The score is not known item by item for both models.", ReasonCode.NO_ITEMS)),
        subjects=None,
        first_only=None,
        second_only=None,
        p=unknown,
        p_adjusted=unknown,
        smallest_detectable=unknown,
        items_needed=unknown,
    )
    common = _common_items(answers, (one["value"], other["value"]))
    if common is not None:
        return _on_items(row, common, sign)
    errors = float(one["stderr"]), float(other["stderr"])
    if not np.isfinite(errors).all() or max(errors) == 0:
        return row
    error, p, smallest = unpaired_difference(difference, errors)
    return replace(
        row,
        interval=(difference - 1.96 * error, difference + 1.96 * error),
        test="standard errors",
        p=p,
        smallest_detectable=smallest,
        items_needed=Missing(Reason("Items needed are known from common items only.", ReasonCode.NO_ITEMS)),
    )


def _common_items(answers: list[pd.DataFrame | None], scores: tuple[float, float]) -> pd.DataFrame | None:
    """`first`, `second`, `subject` of the documents that both models have; None where the scores are no means of items.

    A metric such as F1 is not the mean of its items: a test on items would not be a test of the score.
    """
    known = [items for items in answers if items is not None]
    if len(known) < len(answers):
        return None
    if any(abs(i["correct"].mean() - s) > SAME_SCORE for i, s in zip(known, scores, strict=True)):
        return None
    one, other = (items.set_index("doc_id")[["correct", "subject"]] for items in known)
    common = one.join(other[["correct"]].rename(columns={"correct": "second"}), how="inner")
    return None if common.empty else common.rename(columns={"correct": "first"})


def _on_items(row: Comparison, common: pd.DataFrame, sign: float) -> Comparison:
    subjects = common["subject"].to_numpy(dtype=str)
    first, second = (sign * common[name].to_numpy(dtype=float) for name in ("first", "second"))
    found = paired_difference(first, second, subjects if (subjects != "").all() else None)
    test = "clustered by subject" if found.clusters else "paired t"
    if found.clusters is None and found.first_only is not None:
        test = "McNemar"
    return replace(
        row,
        difference=found.difference,
        interval=found.interval,
        test=test,
        items=found.items,
        subjects=found.clusters,
        first_only=found.first_only,
        second_only=found.second_only,
        p=found.p,
        smallest_detectable=found.smallest_detectable,
        items_needed=found.items_needed,
    )


def _adjusted(rows: list[Comparison]) -> list[Comparison]:
    """With Holm's adjusted p over the benchmarks of each protocol that have a p."""
    adjusted = {}
    for protocol in {row.protocol for row in rows}:
        tested = [row for row in rows if row.protocol == protocol and is_known(row.p)]
        for row, p in zip(tested, holm(np.array([row.p for row in tested])), strict=True):
            adjusted[row] = float(p)
    return [replace(row, p_adjusted=adjusted.get(row, row.p)) for row in rows]


def _test_notes(rows: list[Comparison]) -> list[str]:
    words = {
        "McNemar": "McNemar's exact test on common items: benchmarks {}.",
        "paired t": "Paired t test on common items, which are graded: benchmarks {}.",
        "clustered by subject": "Clustered by subject, so the result speaks for new subjects too: benchmarks {}.",
        "standard errors": "By standard errors, as if the models had answered different items, which is mostly too "
        "cautious: benchmarks {}.",
        "none": "No test is possible, because there are neither common items nor standard errors: benchmarks {}.",
    }
    counts = Counter(row.test for row in rows)
    return [
        text.format(listing(dict.fromkeys(row.benchmark for row in rows if row.test == test)))
        for test, text in words.items()
        if counts[test]
    ]


# ----------------------------------------------------------------------------------------------------------------------
# The comparison of two models: a table for the terminal, and a page.

COLUMNS = ("benchmark", "protocol", "difference", "low", "high", "p", "p adjusted", "detectable", "items", "test")
OUTCOMES = ("first better", "second better", "not separated", "not tested")


def comparison_sentence(summary: CompareSummary, protocol: str) -> str:
    """Who wins where under a protocol, and what could have been found where nobody does."""
    rows = [row for row in summary.comparisons if row.protocol == protocol]
    up, down = (len(summary.better(sign, protocol)) for sign in (1, -1))
    tested = [row for row in rows if is_known(row.p)]
    sentence = (
        f"{summary.first} is better than {summary.second} on {up} of {count(len(tested), 'tested benchmark')} and "
        f"worse on {down} ({PROTOCOL_LABELS[protocol].lower()}; Holm's correction, 5% level)."
    )
    open_rows = [row for row in tested if row not in (*summary.better(1, protocol), *summary.better(-1, protocol))]
    sizes = [number(row.smallest_detectable) for row in open_rows if is_known(row.smallest_detectable)]
    if sizes:
        span = decimal(min(sizes), 3) if len(sizes) == 1 else f"{decimal(min(sizes), 3)} to {decimal(max(sizes), 3)}"
        sentence += f" Where they are not separated, each test by itself finds a difference of {span} four times out "
        sentence += "of five. Smaller ones may exist."
    return sentence


def comparison_lines(summary: CompareSummary) -> list[str]:
    """The comparison as lines of aligned text."""
    table = render_table(COLUMNS, map(_line, summary.comparisons), text=(0, 1, len(COLUMNS) - 1))
    findings = [comparison_sentence(summary, protocol) for protocol in summary.protocols]
    return [table, "", *findings, *summary.notes]


def _line(row: Comparison) -> tuple[str, ...]:
    ends = (_shown(end, "+.3f") for end in as_columns(row.interval).values())
    cells = (*ends, _shown(row.p, ".2g"), _shown(row.p_adjusted, ".2g"))
    sizes = (_shown(row.smallest_detectable, ".3f"), _shown(row.items, "d"))
    return (row.benchmark, row.protocol, f"{row.difference:+.3f}", *cells, *sizes, row.test)


def _shown(value: float | Missing, form: str) -> str:
    return "-" if isinstance(value, Missing) else format(value, form)


def write_comparison(summary: CompareSummary, output: str | Path) -> None:
    """Write the page, its tables and figures, and summary.json under `output`."""
    write_report(comparison_page(summary), summary, output)


def comparison_page(summary: CompareSummary) -> Page:
    """The page of a comparison."""
    frame = pd.DataFrame([_page_row(summary, row) for row in summary.comparisons])
    signed = dict.fromkeys(["difference", "low", "high"], "+.4f")
    numbers = dict.fromkeys(["first_score", "second_score", "smallest_detectable"], ".4f")
    table = Table(
        "comparisons",
        "All benchmarks",
        frame,
        formats=signed | numbers | dict.fromkeys(["p", "p_adjusted"], "p") | {"items_needed": ".0f", "items": ".0f"},
        labels={"first_score": summary.first, "second_score": summary.second, "first_only": f"only {summary.first}"}
        | {"second_only": f"only {summary.second}"},
        caption="Only: items that one of the two models alone gets right. Smallest detectable: the difference that the "
        "test finds four times out of five. Items needed: how many items like these it takes to find the observed "
        "difference four times out of five.",
    )
    section = Section(
        "Benchmark by benchmark",
        explanation=(
            "Each interval is 95%, for the difference of the two scores. To the right of zero the first model is "
            "better. If both models answered the same items, they are compared item by item. This detects smaller "
            "differences than comparing two scores. If the items have at least 10 subjects, these are clusters. p is "
            "two-sided. The "
            "adjusted p holds for all benchmarks of a protocol together: with 0.05 as the limit, the probability of "
            "any false finding among them is at most 5% (Holm 1979)."
        ),
        figures=[
            Figure(
                f"differences_{number_}",
                PROTOCOL_LABELS[protocol],
                _chart(frame[frame["protocol"] == protocol]),
                min_width=360,
            )
            for number_, protocol in enumerate(summary.protocols, 1)
        ],
        tables=[table],
    )
    return Page(
        name="compare",
        title=f"{summary.first} against {summary.second}",
        question="Which of the two models is better, and on what? "
        + explain_protocols(summary.protocols, own=summary.trained_here),
        findings=[Finding(comparison_sentence(summary, protocol)) for protocol in summary.protocols],
        sections=[section],
        notes=summary.notes,
    )


def _page_row(summary: CompareSummary, row: Comparison) -> dict[str, object]:
    values = {name: value for name, value in vars(row).items() if name != "interval"}
    return values | as_columns(row.interval) | {"outcome": _outcome(summary, row)}


def _outcome(summary: CompareSummary, row: Comparison) -> str:
    if not is_known(row.p_adjusted):
        return OUTCOMES[3]
    if row in summary.better(1, row.protocol):
        return OUTCOMES[0]
    return OUTCOMES[1] if row in summary.better(-1, row.protocol) else OUTCOMES[2]


def _chart(frame: pd.DataFrame) -> alt.LayerChart:
    frame = frame.assign(**{name: frame[name].map(number) for name in ("low", "high", "p_adjusted")})
    frame = frame[["benchmark", "difference", "low", "high", "p_adjusted", "outcome"]].sort_values("difference")
    colors = [CATEGORY_COLORS[0], CATEGORY_COLORS[1], "#888888", "#bbbbbb"]
    return interval_dots(
        frame,
        y="benchmark",
        value="difference",
        title="Difference, better to the right",
        y_order=frame["benchmark"].tolist()[::-1],
        color=alt.Color("outcome:N", scale=alt.Scale(domain=list(OUTCOMES), range=colors), title=None),
        tooltip=tooltips(
            benchmark="Benchmark",
            difference="Difference|+.4f",
            low="Low|+.4f",
            high="High|+.4f",
            p_adjusted="Adjusted p|.2g",
        ),
        zero=True,
    )
