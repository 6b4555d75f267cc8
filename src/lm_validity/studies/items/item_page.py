"""The page of the items report."""

from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.pages.figures import CATEGORY_COLORS, PROTOCOL_LABELS, lines, tooltips
from lm_validity.pages.page import Figure, Finding, Page, Section, Table, write_report
from lm_validity.studies.items.item_report import LISTED, Item, ItemsOfBenchmark, ItemsSummary, analyze_items
from lm_validity.summaries import Missing, is_known
from lm_validity.words import UNDER, count, explain_protocols, percent

SHOWN_ABILITIES = np.linspace(-3, 3, 25)
PROTOCOLS = ("direct", "train_before_test")
FEW_MODELS = 20  # below it, discriminations of single items say little
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
    documents: tuple[Path, ...] = (),
    benchmarks: str | Path | None = None,
    models: str | Path | None = None,
) -> None:
    """Write summary.json, tables, figures and the page of the items report under `output`."""
    summary = analyze_items(scores, items, documents, benchmarks, models)
    write_report(items_page(summary), summary, output)


def items_page(summary: ItemsSummary) -> Page:
    """The page of the report."""
    return Page(
        name="items",
        title="What the items are worth",
        question="How finely do these benchmarks tell models apart, and which items work against them? "
        + explain_protocols(_protocols(summary), own=summary.trained_here),
        findings=[Finding(_finding(summary, protocol)) for protocol in _protocols(summary)],
        sections=[_benchmark_section(summary), _negative_section(summary)],
        notes=summary.notes,
    )


def _protocols(summary: ItemsSummary) -> list[str]:
    return [name for name in PROTOCOLS if any(row.protocol == name for row in summary.benchmarks)]


def _finding(summary: ItemsSummary, protocol: str) -> str:
    rows = [row for row in summary.benchmarks if row.protocol == protocol]
    pairs, resolved = sum(row.neighbours for row in rows), sum(row.resolved for row in rows)
    words = f"{UNDER[protocol].capitalize()}, no two models have answered the same items."
    if pairs:
        words = (
            f"{UNDER[protocol].capitalize()}, {resolved} of {count(pairs, 'pair')} of neighbours in a benchmark's "
            f"ranking ({percent(resolved / pairs)}) differ by more than chance (p < .05, each by itself)."
        )
    known = [row for row in rows if is_known(row.negative)]
    if known:
        certain, negative = (sum(getattr(row, name) for row in known) for name in ("negative_certain", "negative"))
        words += (
            f" {negative} of {count(sum(row.items for row in known), 'item')} have a negative discrimination, "
            f"which is certain for {certain} of them."
        )
        fewest = min(row.models for row in known)
        if fewest < FEW_MODELS:
            words += f" With {fewest} models, the discrimination of a single item says little."
    return words


def _benchmark_section(summary: ItemsSummary) -> Section:
    names = [name for name in ItemsOfBenchmark.__dataclass_fields__ if name != "fit"]
    frame = pd.DataFrame([[getattr(row, name) for name in names] for row in summary.benchmarks], columns=names)
    return Section(
        "Benchmark by benchmark",
        explanation=(
            "Neighbours told apart: pairs of neighbouring ranks whose models differ by more than chance on their "
            "common items. Minimal detectable difference: what such a test finds four times out of five, median over "
            "neighbours. The other figures are from item response theory (2PL). Each item has a difficulty and a "
            "discrimination, which says how much more likely a better model is to answer it correctly. Test "
            "information adds up over items. One over its square root is the error of a model's ability, in standard "
            "deviations of these models. Reliability is the share of the variance of abilities that is not error. "
            "Each protocol has its own scale."
        ),
        figures=[
            Figure(f"information_{index}", f"Test information, {PROTOCOL_LABELS[protocol].lower()}", _information(rows))
            for index, protocol in enumerate(_protocols(summary), 1)
            if (rows := [r for r in summary.benchmarks if r.protocol == protocol and is_known(r.fit)])
        ],
        tables=[
            Table(
                "benchmarks",
                "Benchmarks",
                frame.replace({"protocol": PROTOCOL_LABELS}),
                labels=_LABELS,
                formats=dict.fromkeys(["share_resolved", "discrimination_median", "reliability"], ".2f")
                | {"minimal_detectable_difference": ".3f", "information": ".1f"}
                | dict.fromkeys(["negative", "negative_certain"], ".0f"),
            )
        ],
    )


def _information(rows: list[ItemsOfBenchmark]) -> alt.LayerChart:
    found = []
    for row in rows:
        if not isinstance(row.fit, Missing):
            values = row.fit.information(SHOWN_ABILITIES)
            points = zip(SHOWN_ABILITIES, values, strict=True)
            found += [{"benchmark": row.benchmark, "ability": a, "information": v} for a, v in points]
    frame = pd.DataFrame(found)
    names = frame["benchmark"].drop_duplicates().tolist()
    colors = [CATEGORY_COLORS[index % len(CATEGORY_COLORS)] for index in range(len(names))]
    return lines(
        frame,
        x="ability",
        y="information",
        color=alt.Color("benchmark:N", scale=alt.Scale(domain=names, range=colors), title=None),
        x_title="Ability",
        y_title="Information",
        tooltip=tooltips(benchmark="Benchmark", ability="Ability|.2f", information="Information|.1f"),
        points=False,
    )


def _negative_section(summary: ItemsSummary) -> Section:
    rows = summary.negative_items
    frame = pd.DataFrame([vars(row) for row in rows], columns=list(Item.__dataclass_fields__))
    if frame["text"].isna().all():
        frame = frame.drop(columns="text")
    alone = bool(rows) and len(summary.benchmarks) == 1
    worst = f" The most certain is {rows[0].doc_id} of {rows[0].benchmark}." if alone else ""
    return Section(
        "Items on which better models do worse",
        finding=f"{count(len(rows), 'item')} listed.{worst}" if rows else "No item has a negative discrimination.",
        explanation=(
            "A negative discrimination means that models that do well elsewhere get this item wrong. Wrong gold "
            "answers and ambiguous questions can cause this. So can chance if there are few models. Certain: below "
            f"zero after correction for the number of items (Benjamini and Hochberg). At most {LISTED} for each "
            "benchmark and protocol."
        ),
        tables=[
            Table(
                "negative_items",
                "Items with negative discrimination",
                frame.replace({"protocol": PROTOCOL_LABELS}),
                labels=_LABELS,
                formats={"share_right": ".2f", "discrimination": "+.2f", "discrimination_se": ".2f"},
                folded=len(rows) > LISTED,
            )
        ]
        if rows
        else [],
    )
