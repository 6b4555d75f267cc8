"""The items report: how finely benchmarks tell models apart, and which items work against them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from markupsafe import Markup

from lm_validity.missing import Missing, is_known, number
from lm_validity.pages import svg
from lm_validity.pages.figures import PROTOCOL_LABELS, Layers, cycled_colors, lines, listed_color, tooltips
from lm_validity.pages.page import Figure, Finding, Lede, Page, Panel, Part, Picture, Section, Table
from lm_validity.pages.svg import KINDS
from lm_validity.results.files import joined, write_report
from lm_validity.studies.items.numbers import (
    ABILITIES,
    LISTED,
    NOT_GRADED,
    ItemsOfBenchmark,
    ItemsSummary,
    analyze_items,
)
from lm_validity.words import UNDER, count, explain_protocols, percent

_LABELS = {
    "doc_id": "item",
    "all_equal": "all models alike",
    "neighbours": "pairs of neighbours",
    "resolved": "neighbours told apart",
    "share_resolved": "neighbours told apart (share)",
    "discrimination_median": "median discrimination",
    "discrimination_se": "standard error",
    "negative": "negative discrimination",
    "negative_certain": "negative discrimination, certain",
    "share_right": "share of models that are right",
}


def report_items(
    scores: str | Path,
    items: str | Path,
    output: str | Path,
    documents: Sequence[Path] = (),
    benchmarks: str | Path | None = None,
    models: str | Path | None = None,
) -> None:
    """Write summary.json, tables, figures and the page of the items report under `output`."""
    summary = analyze_items(scores, items, documents, benchmarks, models)
    write_report(items_page(summary), summary, output)


def items_page(summary: ItemsSummary) -> Page:
    """The page: how many neighbours are told apart, each benchmark, items that work against one, sampled runs."""
    parts = joined(each_benchmark(summary), items_against_it(summary), several_runs(summary))
    return Page(
        name="items",
        title="Items",
        question="How finely do these benchmarks tell models apart, and which items work against them? "
        + explain_protocols(summary.by_protocol, trained_here=summary.trained_here),
        findings=parts.findings,
        sections=parts.sections,
        notes=summary.notes,
        lede=_lede(summary),
        picture=_picture(summary),
        panels=parts.panels[::-1],
    )


def _frame(records: Sequence[object], *left_out: str) -> pd.DataFrame:
    """The frame of a table: a row for each record, a column for each field but those `left_out`."""
    rows = [{name: value for name, value in vars(record).items() if name not in left_out} for record in records]
    return pd.DataFrame(rows).replace({"protocol": PROTOCOL_LABELS})


def _sums(rows: Sequence[ItemsOfBenchmark], *names: str) -> list[int]:
    """Of each field the sum over benchmarks."""
    return [sum(getattr(row, name) for row in rows) for name in names]


# ----------------------------------------------------------------------------------------------------------------------
# Above the folds: which share of neighbours is told apart, and the gap that this takes.

MOST_ROWS = 60  # benchmarks that the picture shows
FEW_MODELS = 20  # below it, discriminations of single items say little


def _lede(summary: ItemsSummary) -> Lede:
    """How many neighbours in rankings are told apart, direct where that is known."""
    for protocol, rows in summary.by_protocol.items():
        pairs, resolved = _sums(rows, "neighbours", "resolved")
        if pairs:
            share = "Half" if 2 * resolved == pairs else "Most" if 2 * resolved > pairs else "Fewer than half"
            begin = "Direct" if protocol == "direct" else "After training"
            return Lede(
                f"{share} of the neighbours in rankings are told apart",
                f"{begin}, {resolved} of {count(pairs, 'pair')} of models with neighbouring ranks differ beyond chance",
            )
    return Lede("Not known: how finely do these benchmarks tell models apart?", "No two models answered the same items")


def _picture(summary: ItemsSummary) -> Picture | None:
    """A row for each benchmark: the share of neighbours told apart, and the gap that takes."""
    rows: dict[str, list[ItemsOfBenchmark]] = {}
    for row in summary.benchmarks:
        if is_known(row.share_resolved):
            rows.setdefault(row.benchmark, []).append(row)
    if not rows:
        return None
    rows_shown = sorted(rows.values(), key=lambda of_benchmark: -number(of_benchmark[0].share_resolved))[:MOST_ROWS]
    note = (
        "Left: share of neighbours in the benchmark's ranking whose answers to common items differ beyond chance (p < "
        ".05, each by itself). Right: the gap that such a test finds four times out of five, median over neighbours, "
        "in points (hundredths)."
    )
    if any(row.reliability is NOT_GRADED for of_benchmark in rows_shown for row in of_benchmark):
        note += " Gaps of scores that are not fractions are in the table only."
    if len(rows_shown) < len(rows):
        note += f" The first {len(rows_shown)} of {len(rows)} benchmarks."
    sizes = ((1180.0, 230.0, "w640"), (380.0, 118.0, "n640"))
    return Picture(Markup("").join(_picture_svg(rows_shown, *size) for size in sizes), note)


def _picture_svg(rows: list[list[ItemsOfBenchmark]], width: float, room: float, kind: str) -> Markup:
    """The protocols of a benchmark are a row; `room` pixels for names."""
    gaps = {
        (row.benchmark, row.protocol): gap
        for of_benchmark in rows
        for row in of_benchmark
        if is_known(gap := row.minimal_detectable_difference) and row.reliability is not NOT_GRADED
    }
    middle, height = room + (width - room) / 2, 30 + 23 * len(rows) + 26
    shares = svg.Axis(0, 1, room, middle - 24)
    sizes = svg.Axis(0, max([0.01, *gaps.values()]), middle + 24, width - 16)
    values = svg.round_values(0, sizes.high, 6 if width > 500 else 4)
    percents = (0, 0.25, 0.5, 0.75, 1) if width > 500 else (0, 0.5, 1)
    marks = [
        *(svg.box(0, 24 + 23 * index, width, 23, "zone") for index in range(1, len(rows), 2)),
        svg.text(shares(0), 12, "neighbours told apart", "lab"),
        svg.text(sizes(0), 12, "gap with 80% power" if width > 500 else "gap, 80% power", "lab"),
        svg.ticks(shares, percents, 20, height - 26, [percent(value) for value in percents]),
        svg.ticks(sizes, values, 20, height - 26, [words.lstrip("+") for words in svg.written_points(values)]),
    ]
    for index, of_benchmark in enumerate(rows):
        y = 24 + 23 * (index + 0.5)
        marks.append(svg.text(4, y + 4, svg.shortened(of_benchmark[0].benchmark, int(room / 6.4)), "lab"))
        for row in of_benchmark:
            dot_y = y + (0 if len(of_benchmark) == 1 else -4 if row.protocol == "direct" else 4)
            marks.append(svg.dot(shares(number(row.share_resolved)), dot_y, KINDS[row.protocol]))
            if size := gaps.get((row.benchmark, row.protocol)):
                marks.append(svg.dot(sizes(size), dot_y, KINDS[row.protocol]))
    description = "; ".join(
        f"{row.benchmark} {PROTOCOL_LABELS[row.protocol].lower()} {row.resolved} of {row.neighbours}"
        for of_benchmark in rows
        for row in of_benchmark
    )
    return svg.svg(
        width, height, f"Neighbours in rankings told apart, counts without intervals: {description}.", *marks, kind=kind
    )


def _shares_svg(title: str, rows: list[ItemsOfBenchmark], noun: str) -> Markup:
    """A dot for each benchmark: which share of its items that is. The largest first, at most 10."""
    shares = [(row.benchmark, getattr(row, noun) / row.items, None) for row in rows]
    shares = sorted(shares, key=lambda share: -share[1])[:10]
    values = svg.round_values(0, max(0.05, shares[0][1]), 5)
    description = "; ".join(f"{name} {100 * share:.1f}%" for name, share, _ in shares)
    label = f"{title}, shares without intervals: {description}."
    return svg.named_rows(label, shares, values, [f"{100 * value:g}%" for value in values], KINDS[rows[0].protocol])


# ----------------------------------------------------------------------------------------------------------------------
# The sections.


def each_benchmark(summary: ItemsSummary) -> Part:
    """How finely each benchmark tells models apart, and how much its items say of their abilities."""
    figures, findings = [], []
    for index, (protocol, rows) in enumerate(summary.by_protocol.items(), 1):
        pairs, resolved = _sums(rows, "neighbours", "resolved")
        words = f"{UNDER[protocol].capitalize()}, no two models have answered the same items."
        if pairs:
            words = (
                f"{UNDER[protocol].capitalize()}, {resolved} of {count(pairs, 'pair')} of neighbours in a benchmark's "
                f"ranking ({percent(resolved / pairs)}) differ by more than chance (p < .05, each by itself)."
            )
        if fitted := [row for row in rows if is_known(row.negative)]:
            certain, negative, items = _sums(fitted, "negative_certain", "negative", "items")
            words += f" {negative} of {count(items, 'item')} have a negative discrimination, which is certain for "
            words += f"{certain} of them."
            fewest = min(row.models for row in fitted)
            if fewest < FEW_MODELS:
                words += f" With {fewest} models, the discrimination of a single item says little."
            title = f"Test information, {PROTOCOL_LABELS[protocol].lower()}"
            figures.append(Figure(f"information_{index}", title, _information(summary, protocol)))
        findings.append(Finding(words))
    table = Table(
        "benchmarks",
        "Benchmarks",
        _frame(summary.benchmarks, "information_curve"),
        labels=_LABELS,
        formats=dict.fromkeys(["share_resolved", "discrimination_median", "reliability"], ".2f")
        | {"minimal_detectable_difference": ".3f", "information": ".1f"}
        | dict.fromkeys(["negative", "negative_certain"], ".0f"),
    )
    section = Section(
        "Benchmark by benchmark",
        hint="information, reliability, gaps that are found",
        explanation=(
            "Neighbours told apart: pairs of neighbouring ranks whose models differ by more than chance on their "
            "common items. Minimal detectable difference: what such a test finds four times out of five, median over "
            "neighbours. The other figures are from item response theory (2PL). Each item has a difficulty and a "
            "discrimination, which says how much more likely a better model is to answer it correctly. Test "
            "information adds up over items. One over its square root is the error of a model's ability, in standard "
            "deviations of these models. Reliability is the share of the variance of abilities that is not error. "
            "Guessing is not modelled: with four choices an item, discriminations come out at about three quarters of "
            "the truth, and the errors of abilities too small. "
            "Each protocol has its own scale."
        ),
        figures=figures,
        tables=[table],
    )
    first = next(iter(summary.by_protocol.values()))
    alike, items = _sums(first, "all_equal", "items")
    if max(row.models for row in first) < 2:
        return Part({}, section, findings)
    panel = Panel(
        "Which items count?",
        f"**{alike} of {count(items, 'item')}** are answered alike by all models and tell none apart",
        _shares_svg("Items that all models answer alike", first, "all_equal"),
    )
    return Part({}, section, findings, panel=panel)


def _information(summary: ItemsSummary, protocol: str) -> Layers:
    curves = [
        {"benchmark": row.benchmark, "ability": ability, "information": value}
        for row in summary.benchmarks
        if row.protocol == protocol and not isinstance(row.information_curve, Missing)
        for ability, value in zip(ABILITIES, row.information_curve, strict=True)
    ]
    colors = cycled_colors(dict.fromkeys(point["benchmark"] for point in curves))
    return lines(
        pd.DataFrame(curves),
        x="ability",
        y="information",
        color=listed_color("benchmark", colors),
        x_title="Ability",
        y_title="Information",
        tooltip=tooltips(benchmark="Benchmark", ability="Ability|.2f", information="Information|.1f"),
        points=False,
    )


def items_against_it(summary: ItemsSummary) -> Part:
    """Items that weaker models answer better; the panel is of the protocol that the page begins with."""
    rows = summary.negative_items
    frame = _frame(rows)
    if rows and frame["text"].isna().all():
        frame = frame.drop(columns="text")
    fitted = any(is_known(row.negative) for row in summary.benchmarks)
    finding = "No item has a negative discrimination." if fitted else "Discriminations are not known."
    if rows:
        finding = f"{count(len(rows), 'item')} listed."
        if len(summary.benchmarks) == 1:
            finding += f" The most certain is {rows[0].doc_id} of {rows[0].benchmark}."
    table = Table(
        "negative_items",
        "Items with negative discrimination",
        frame,
        labels=_LABELS,
        formats={"share_right": ".2f", "discrimination": "+.2f", "discrimination_se": ".2f"},
        folded=len(rows) > LISTED,
    )
    section = Section(
        "Items on which better models do worse",
        hint="each with its text, where that is known",
        finding=finding,
        explanation=(
            "A negative discrimination means that models that do well elsewhere get this item wrong. Wrong gold "
            "answers and ambiguous questions can cause this. So can chance if there are few models. Certain: below "
            f"zero after correction for the number of items (Benjamini and Hochberg). At most {LISTED} for each "
            "benchmark and protocol."
        ),
        tables=[table] if rows else [],
    )
    panel, first = None, [row for row in next(iter(summary.by_protocol.values())) if is_known(row.negative_certain)]
    if first:
        certain, items = _sums(first, "negative_certain", "items")
        too_few = min(row.models for row in first) < FEW_MODELS
        panel = Panel(
            "Do items work against the benchmark?",
            f"**{certain} of {count(items, 'item')}** are answered better by weaker models, beyond chance",
            _shares_svg("Items that weaker models answer better", first, "negative_certain"),
            "yes" if certain else "not known" if too_few else "no",
        )
    return Part({}, section, panel=panel)


def several_runs(summary: ItemsSummary) -> Part:
    """Whether another run or another item would help, and pass@k and pass^k; nothing where each model was run once."""
    if not summary.sampled:
        return Part({})
    rows_known = [row for row in summary.sampled if is_known(row.share_of_sampling)]
    finding = f"{count(len(summary.sampled), 'score')} are means over sampled runs."
    if rows_known:
        median = float(np.median([row.share_of_sampling for row in rows_known]))
        finding += f" In one run, sampling is {percent(median)} of the squared error (median)."
    tables = [
        Table(
            "sampled_runs",
            "Another run, or another item?",
            _frame(summary.sampled),
            labels={
                "error": "error",
                "error_one_more_run": "with one run more",
                "error_endless_runs": "with infinitely many runs",
                "share_of_sampling": "share of sampling in one run",
                "runs_that_help": "runs that help",
            },
            formats=dict.fromkeys(["score", "error", "error_one_more_run", "error_endless_runs"], ".4f")
            | {"share_of_sampling": ".2f", "runs_that_help": ".0f"},
            caption="Errors are for other items and other runs. Runs that help: from here on, only more items lower "
            "the error by more than 5%.",
        )
    ]
    rows = [
        {name: value for name, value in row.items() if not name.endswith("_interval")}
        | {
            "pass_at_k (95%)": _ends(row.get("pass_at_k_interval")),
            "pass_hat_k (95%)": _ends(row.get("pass_hat_k_interval")),
        }
        for row in summary.passes
    ]
    tables.append(
        Table(
            "passes",
            "pass@k and pass^k",
            pd.DataFrame(rows).replace({"protocol": PROTOCOL_LABELS}),
            labels={"pass_at_k": "one of k right", "pass_hat_k": "all of k right"},
            formats=dict.fromkeys(["pass_at_k", "pass_hat_k"], ".3f"),
            caption="For each item unbiased; not known for more runs than an item has. Intervals are over items.",
            folded=True,
        )
    )
    section = Section(
        "Sampled runs", hint="another run or another item, pass@k, pass^k", finding=finding, tables=tables
    )
    return Part({}, section)


def _ends(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else " to ".join(f"{end:.3f}" for end in interval)
