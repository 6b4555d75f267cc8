"""The comparison of two models: a table for the terminal, and a page."""

from pathlib import Path

import altair as alt
import pandas as pd

from lm_validity.pages.figures import CATEGORY_COLORS, PROTOCOL_LABELS, interval_dots, tooltips
from lm_validity.pages.page import Figure, Finding, Page, Section, Table, write_report
from lm_validity.studies.items.compare import CompareSummary, Comparison
from lm_validity.summaries import Missing, as_columns, is_known, number
from lm_validity.words import count, decimal, explain_protocols

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
    table = [COLUMNS, *(_line(row) for row in summary.comparisons)]
    widths = [max(len(line[column]) for line in table) for column in range(len(COLUMNS))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in table]
    findings = [comparison_sentence(summary, protocol) for protocol in summary.protocols]
    return [*lines, "", *findings, *summary.notes]


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
