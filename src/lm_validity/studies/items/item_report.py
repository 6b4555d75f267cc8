"""The items report: how finely benchmarks tell models apart, and which items work against them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
import pyarrow.compute as pc
from markupsafe import Markup

from lm_validity.errors import InputError, did_you_mean
from lm_validity.pages import svg
from lm_validity.pages.figures import CATEGORY_COLORS, PROTOCOL_LABELS, lines, tooltips
from lm_validity.pages.page import Figure, Finding, Lede, Page, Panel, Picture, Section, Table, write_report
from lm_validity.pages.svg import KINDS
from lm_validity.studies.items.statistics import ItemParameters, fit_2pl, resolution
from lm_validity.summaries import Missing, is_known, number, page_only
from lm_validity.tables.documents import NoDocuments, read_documents
from lm_validity.tables.items import items_of_scores, open_items
from lm_validity.tables.reruns import reruns_of
from lm_validity.tables.schema import PROTOCOLS, read_scores, trained_here
from lm_validity.tables.sheets import as_in_scores, completed, read_benchmarks, read_models, report_rows
from lm_validity.tables.standard_errors import checked_errors, error_notes
from lm_validity.words import UNDER, Reason, ReasonCode, count, explain_protocols, percent

# ----------------------------------------------------------------------------------------------------------------------
# Scores and items of some models, as the statistics of this study take them.

CELL = ["model", "benchmark", "protocol"]
_KEYS = [*CELL, "checkpoint", "prompt", "prompt_variant", "num_fewshot", "seed"]
_ITEM_COLUMNS = [*_KEYS, "split", "doc_id", "subject", "correct"]


def model_scores(
    path: str | Path, models: list[str] | None = None, benchmarks: str | Path | None = None
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The selected test scores of `models` (all by default), one metric for each benchmark, and notes.

    Of several checkpoints a model's final one counts, else its last. Raises InputError for a model without scores and
    for a benchmark with several metrics of which neither the sheet nor a known direction names one.
    """
    notes: list[str] = []
    rows = read_scores(path)
    for model in models or []:
        if model not in set(rows["model"]):
            hint = did_you_mean(model, rows["model"].unique(), "see the table's column `model` for the names.")
            raise InputError(f"{path}: no score of the model {model!r}.", hint)
    rows = rows[rows["model"].isin(models)] if models else rows
    sheet = None if benchmarks is None else read_benchmarks(benchmarks)
    if sheet is not None:
        known = sheet.dropna(subset=["metric"]).set_index("benchmark")["metric"]
        wanted = rows["benchmark"].map(known)
        rows = completed(rows[rows["metric"].isna() | wanted.isna() | (rows["metric"] == wanted)], sheet)
    rows, checks = checked_errors(_one_metric(report_rows(rows, sheet, notes), path), sheet)
    notes += error_notes(checks)
    rows = _final(rows)
    if rows.empty:
        raise InputError(f"{path}: no selected test score.", "are the rows `selected`, and of the split test?")
    return rows[np.isfinite(rows["value"].astype(float))], tuple(notes)


def _one_metric(rows: pd.DataFrame, path: str | Path) -> pd.DataFrame:
    """Of several metrics of a benchmark the one whose direction is known: a run's own tables mark theirs so."""
    several = rows.groupby("benchmark")["metric"].transform("nunique") > 1
    rows = rows[~several | rows["higher_is_better"].notna()]
    counts = rows.groupby("benchmark")["metric"].nunique()
    if (counts > 1).any():
        name = counts.index[counts > 1][0]
        metrics = ", ".join(sorted(rows.loc[rows["benchmark"] == name, "metric"].dropna().unique()))
        raise InputError(
            f"{path}: {name} has several metrics ({metrics}).",
            "name one in a sheet: --benchmarks (the one that lm-validity report writes will do).",
        )
    return rows


def _final(rows: pd.DataFrame) -> pd.DataFrame:
    final = rows["checkpoint"].fillna("final") == "final"
    has_final = final.groupby([rows[key] for key in CELL]).transform("any")
    rows = rows[final | ~has_final]
    order = rows["iteration"].astype("Float64").fillna(rows["tokens_b"].astype("Float64")).fillna(0)
    last = order.groupby([rows[key] for key in CELL]).transform("max")
    return rows[order == last]


def cell_scores(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each model, benchmark and protocol: `value`, `stderr`, `metric`, `better` (1, -1); over seeds."""
    cells = rows.assign(variance=rows["stderr"].astype(float) ** 2, up=rows["higher_is_better"].astype("boolean"))
    cells = cells.groupby(CELL).agg(
        value=("value", "mean"), variance=("variance", "mean"), up=("up", "first"), metric=("metric", "first")
    )
    cells["stderr"] = np.sqrt(cells.pop("variance"))  # seeds share their items: averaging does not shrink this error
    cells["metric"] = cells["metric"].astype(object).where(cells["metric"].notna(), None)
    cells["better"] = np.where(cells.pop("up").fillna(value=True).astype(bool), 1.0, -1.0)
    return cells.reset_index()


def model_items(path: str | Path, scores: pd.DataFrame) -> pd.DataFrame:
    """The items behind `scores` (rows of `model_scores`): `model, benchmark, protocol, doc_id, subject, correct`.

    Averaged over seeds. Raises InputError for a file that is no table of items.
    """
    table = open_items(path)
    wanted = pc.field("model").isin(scores["model"].unique().tolist())
    wanted &= pc.field("benchmark").isin(scores["benchmark"].unique().tolist())
    columns = [name for name in _ITEM_COLUMNS if name in table.schema.names]
    items = table.to_table(columns=columns, filter=wanted).to_pandas().reindex(columns=_ITEM_COLUMNS)
    items = items_of_scores(items, scores, _KEYS)
    return items.groupby([*CELL, "doc_id", "subject"], as_index=False)["correct"].mean()


# ----------------------------------------------------------------------------------------------------------------------
# The items report: what the items of each benchmark are worth, under direct evaluation and train before test.

FEWEST = 3  # models and items of a fit
LISTED = 50  # items with negative discrimination, of a benchmark and protocol
TOO_FEW = Reason("The 2PL model needs at least 3 models and 3 items.", ReasonCode.TOO_FEW)
NOT_GRADED = "The items are not scored between 0 (wrong) and 1 (right)."


@dataclass(frozen=True)
class Item:
    """One item: `discrimination` with its standard error; `certain`: below zero after correction for their number."""

    benchmark: str
    protocol: str
    doc_id: str
    share_right: float
    discrimination: float
    discrimination_se: float
    certain: bool
    text: str | None


@dataclass(frozen=True)
class ItemsOfBenchmark:
    """One benchmark under one protocol. Abilities are in standard deviations between these models.

    reliability: share of the variance of estimated abilities that is no error. information: test information at the
    models' abilities, median. negative: items whose estimated discrimination is below zero; negative_certain: so after
    correction for their number. all_equal: items that all models get right, or all wrong. neighbours, resolved,
    share_resolved, minimal_detectable_difference: see `statistics.resolution`.
    """

    benchmark: str
    protocol: str
    models: int
    items: int
    all_equal: int
    neighbours: int
    resolved: int
    share_resolved: float | Missing
    minimal_detectable_difference: float | Missing
    discrimination_median: float | Missing
    negative: int | Missing
    negative_certain: int | Missing
    information: float | Missing
    reliability: float | Missing
    fit: ItemParameters | Missing = page_only()


@dataclass(frozen=True)
class ItemsSummary:
    """All benchmarks, and their items with negative discrimination, the surest first."""

    benchmarks: tuple[ItemsOfBenchmark, ...]
    negative_items: tuple[Item, ...]
    notes: tuple[str, ...]
    trained_here: bool = page_only(default=False)  # a run of the workflow made the fine-tunes

    @property
    def by_protocol(self) -> dict[str, list[ItemsOfBenchmark]]:
        """The benchmarks of each protocol under which there are any."""
        rows = {protocol: [row for row in self.benchmarks if row.protocol == protocol] for protocol in PROTOCOLS}
        return {protocol: own for protocol, own in rows.items() if own}


def analyze_items(
    scores: str | Path,
    items: str | Path,
    documents: Sequence[str | Path] = (),
    benchmarks: str | Path | None = None,
    models: str | Path | None = None,
) -> ItemsSummary:
    """Analyse the items behind the selected scores, one benchmark at a time: a table may be larger than memory.

    `documents`: tables with the texts of the items. `models`: a sheet, whose reruns take no part. Raises InputError
    where no item belongs to a selected score.
    """
    rows, notes = model_scores(scores, None, benchmarks)
    if models is not None:
        rows = rows[~rows["model"].isin(reruns_of(as_in_scores(read_models(models), set(rows["model"]))))]
    fitted, negative = [], []
    for benchmark, of_benchmark in rows.groupby("benchmark"):
        answers = model_items(items, of_benchmark)
        texts = _texts(documents, str(benchmark)) if len(answers) else {}
        for protocol, here in answers.groupby("protocol"):
            row, worst = _benchmark(str(benchmark), str(protocol), here, texts)
            fitted.append(row)
            negative += worst
    if not fitted:
        raise InputError(
            f"{items}: no item belongs to a selected score of {scores}.", "are both tables of the same run or import?"
        )
    return ItemsSummary(tuple(fitted), tuple(negative), notes, trained_here(rows))


def _texts(documents: Sequence[str | Path], benchmark: str) -> dict[str, str]:
    """Context by doc_id, from the first table that has the benchmark."""
    for path in documents:
        try:
            table = read_documents(path, benchmark)
        except NoDocuments:
            continue
        return dict(zip(table["doc_id"], table["context"], strict=True))
    return {}


def _benchmark(
    benchmark: str, protocol: str, answers: pd.DataFrame, texts: dict[str, str]
) -> tuple[ItemsOfBenchmark, list[Item]]:
    table = answers.pivot(index="model", columns="doc_id", values="correct")
    correct = table.to_numpy(dtype=float)
    subjects = answers.drop_duplicates("doc_id").set_index("doc_id")["subject"].reindex(table.columns)
    labels = subjects.to_numpy(dtype=str) if (subjects != "").all() else None
    told_apart, fit = resolution(correct, labels), _fit(correct)
    row = ItemsOfBenchmark(
        benchmark=benchmark,
        protocol=protocol,
        models=len(table),
        items=table.shape[1],
        all_equal=int((np.nanmax(correct, axis=0) == np.nanmin(correct, axis=0)).sum()),
        neighbours=told_apart.neighbours,
        resolved=told_apart.resolved,
        share_resolved=told_apart.share,
        minimal_detectable_difference=told_apart.minimal_detectable_difference,
        discrimination_median=fit if isinstance(fit, Missing) else float(np.median(fit.discrimination)),
        negative=fit if isinstance(fit, Missing) else int((fit.discrimination < 0).sum()),
        negative_certain=fit if isinstance(fit, Missing) else int(fit.negative().sum()),
        information=fit if isinstance(fit, Missing) else float(np.median(fit.information(fit.abilities))),
        reliability=fit if isinstance(fit, Missing) else float(1 - np.mean(fit.ability_sds**2)),
        fit=fit,
    )
    return row, [] if isinstance(fit, Missing) else list(_negative(row, fit, table, texts))


def _fit(correct: np.ndarray) -> ItemParameters | Missing:
    values = correct[np.isfinite(correct)]
    if values.size and (values.min() < 0 or values.max() > 1):
        return Missing(NOT_GRADED)
    return fit_2pl(correct) if min(correct.shape) >= FEWEST else Missing(TOO_FEW)


def _negative(row: ItemsOfBenchmark, fit: ItemParameters, table: pd.DataFrame, texts: dict[str, str]) -> Iterator[Item]:
    """Items with a negative discrimination, the surest first."""
    certain, shares = fit.negative(), table.mean().to_numpy()
    order = np.argsort(fit.discrimination_z, kind="stable")
    for index in order[fit.discrimination[order] < 0][:LISTED]:
        name = str(table.columns[index])
        yield Item(
            row.benchmark,
            row.protocol,
            name,
            float(shares[index]),
            float(fit.discrimination[index]),
            float(fit.discrimination_se[index]),
            bool(certain[index]),
            texts.get(name),
        )


# ----------------------------------------------------------------------------------------------------------------------
# The page of the items report.

SHOWN_ABILITIES = np.linspace(-3, 3, 25)
MOST_ROWS = 60  # benchmarks that the picture shows
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
        title="Items",
        question="How finely do these benchmarks tell models apart, and which items work against them? "
        + explain_protocols(summary.by_protocol, own=summary.trained_here),
        findings=[Finding(_finding(protocol, rows)) for protocol, rows in summary.by_protocol.items()],
        sections=[_benchmark_section(summary), _negative_section(summary)],
        notes=summary.notes,
        lede=_lede(summary),
        picture=_picture(summary),
        panels=[panel for panel in (_negative_panel(summary), _alike_panel(summary)) if panel is not None],
    )


def _finding(protocol: str, rows: list[ItemsOfBenchmark]) -> str:
    pairs, resolved = sum(row.neighbours for row in rows), sum(row.resolved for row in rows)
    words = f"{UNDER[protocol].capitalize()}, no two models have answered the same items."
    if pairs:
        words = (
            f"{UNDER[protocol].capitalize()}, {resolved} of {count(pairs, 'pair')} of neighbours in a benchmark's "
            f"ranking ({percent(resolved / pairs)}) differ by more than chance (p < .05, each by itself)."
        )
    fitted = [row for row in rows if is_known(row.negative)]
    if fitted:
        certain, negative = (sum(getattr(row, name) for row in fitted) for name in ("negative_certain", "negative"))
        words += (
            f" {negative} of {count(sum(row.items for row in fitted), 'item')} have a negative discrimination, "
            f"which is certain for {certain} of them."
        )
        fewest = min(row.models for row in fitted)
        if fewest < FEW_MODELS:
            words += f" With {fewest} models, the discrimination of a single item says little."
    return words


def _lede(summary: ItemsSummary) -> Lede:
    """How many neighbours in rankings are told apart, direct where that is known."""
    for protocol, rows in summary.by_protocol.items():
        pairs, resolved = sum(row.neighbours for row in rows), sum(row.resolved for row in rows)
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
    shown = sorted(rows.values(), key=lambda of_benchmark: -number(of_benchmark[0].share_resolved))[:MOST_ROWS]
    note = (
        "Left: share of neighbours in the benchmark's ranking whose answers to common items differ beyond chance (p < "
        ".05, each by itself). Right: the gap that such a test finds four times out of five, median over neighbours, "
        "in points (hundredths)."
    )
    if len(shown) < len(rows):
        note += f" The first {len(shown)} of {len(rows)} benchmarks."
    sizes = ((1180.0, 230.0, "w640"), (380.0, 118.0, "n640"))
    return Picture(Markup("").join(_picture_svg(shown, *size) for size in sizes), note)


def _picture_svg(rows: list[list[ItemsOfBenchmark]], width: float, room: float, kind: str) -> Markup:
    """The protocols of a benchmark are a row; `room` pixels for names."""
    gaps = [number(row.minimal_detectable_difference) for of_benchmark in rows for row in of_benchmark]
    middle, height = room + (width - room) / 2, 30 + 23 * len(rows) + 26
    shares = svg.Axis(0, 1, room, middle - 24)
    sizes = svg.Axis(0, max(0.01, np.nanmax(gaps, initial=0.01)), middle + 24, width - 16)
    values = svg.round_values(0, sizes.high, 6 if width > 500 else 4)
    percents = (0, 0.25, 0.5, 0.75, 1) if width > 500 else (0, 0.5, 1)
    marks = [
        *(svg.box(0, 24 + 23 * place, width, 23, "zone") for place in range(1, len(rows), 2)),
        svg.text(shares(0), 12, "neighbours told apart", "lab"),
        svg.text(sizes(0), 12, "gap found 4 times in 5" if width > 500 else "gap found 4 in 5", "lab"),
        svg.ticks(shares, percents, 20, height - 26, [percent(value) for value in percents]),
        svg.ticks(sizes, values, 20, height - 26, [words.lstrip("+") for words in svg.written_points(values)]),
    ]
    for place, of_benchmark in enumerate(rows):
        y = 24 + 23 * (place + 0.5)
        marks.append(svg.text(4, y + 4, svg.shortened(of_benchmark[0].benchmark, int(room / 6.4)), "lab"))
        for row in of_benchmark:
            at = y + (0 if len(of_benchmark) == 1 else -4 if row.protocol == "direct" else 4)
            marks.append(svg.dot(shares(number(row.share_resolved)), at, KINDS[row.protocol]))
            if is_known(row.minimal_detectable_difference):
                marks.append(svg.dot(sizes(number(row.minimal_detectable_difference)), at, KINDS[row.protocol]))
    said = "; ".join(
        f"{row.benchmark} {PROTOCOL_LABELS[row.protocol].lower()} {row.resolved} of {row.neighbours}"
        for of_benchmark in rows
        for row in of_benchmark
    )
    return svg.svg(
        width, height, f"Neighbours in rankings told apart, counts without intervals: {said}.", *marks, kind=kind
    )


def _negative_panel(summary: ItemsSummary) -> Panel | None:
    """How many items weaker models answer better, of the protocol that the page begins with."""
    rows = [row for row in next(iter(summary.by_protocol.values())) if is_known(row.negative_certain)]
    if not rows:
        return None
    certain, items = sum(int(number(row.negative_certain)) for row in rows), sum(row.items for row in rows)
    few = min(row.models for row in rows) < FEW_MODELS
    return Panel(
        "Do items work against the benchmark?",
        f"**{certain} of {count(items, 'item')}** are answered better by weaker models, beyond chance",
        _shares_svg("Items that weaker models answer better", rows, [number(row.negative_certain) for row in rows]),
        "yes" if certain else "not known" if few else "no",
    )


def _alike_panel(summary: ItemsSummary) -> Panel:
    """How many items tell no models apart."""
    rows = next(iter(summary.by_protocol.values()))
    alike, items = sum(row.all_equal for row in rows), sum(row.items for row in rows)
    return Panel(
        "Which items count?",
        f"**{alike} of {count(items, 'item')}** are answered alike by all models and tell none apart",
        _shares_svg("Items that all models answer alike", rows, [row.all_equal for row in rows]),
    )


def _shares_svg(title: str, rows: list[ItemsOfBenchmark], counts: Sequence[float]) -> Markup:
    """A dot for each benchmark: which share of its items that is. The largest first, at most 10."""
    shares = [(row.benchmark, number / row.items, None) for row, number in zip(rows, counts, strict=True)]
    shares = sorted(shares, key=lambda share: -share[1])[:10]
    values = svg.round_values(0, max(0.05, shares[0][1]), 5)
    said = "; ".join(f"{name} {100 * share:.1f}%" for name, share, _ in shares)
    label = f"{title}, shares without intervals: {said}."
    return svg.named_rows(label, shares, values, [f"{100 * value:g}%" for value in values], KINDS[rows[0].protocol])


def _benchmark_section(summary: ItemsSummary) -> Section:
    names = [name for name in ItemsOfBenchmark.__dataclass_fields__ if name != "fit"]
    frame = pd.DataFrame([[getattr(row, name) for name in names] for row in summary.benchmarks], columns=names)
    return Section(
        "Benchmark by benchmark",
        hint="information, reliability, gaps that are found",
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
            for index, (protocol, of_protocol) in enumerate(summary.by_protocol.items(), 1)
            if (rows := [row for row in of_protocol if is_known(row.fit)])
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
    curves = []
    for row in rows:
        if not isinstance(row.fit, Missing):
            values = row.fit.information(SHOWN_ABILITIES)
            points = zip(SHOWN_ABILITIES, values, strict=True)
            curves += [{"benchmark": row.benchmark, "ability": a, "information": v} for a, v in points]
    frame = pd.DataFrame(curves)
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
    fitted = any(is_known(row.negative) for row in summary.benchmarks)
    nothing = "No item has a negative discrimination." if fitted else "Discriminations are not known."
    worst = f" The most certain is {rows[0].doc_id} of {rows[0].benchmark}." if alone else ""
    return Section(
        "Items on which better models do worse",
        hint="each with its text, where that is known",
        finding=f"{count(len(rows), 'item')} listed.{worst}" if rows else nothing,
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
