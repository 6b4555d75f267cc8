"""The items report: how finely benchmarks tell models apart, and which items work against them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from markupsafe import Markup

from lm_validity.errors import InputError
from lm_validity.missing import Missing, Reason, ReasonCode, is_known, number
from lm_validity.pages import svg
from lm_validity.pages.figures import PROTOCOL_LABELS, cycled_colors, lines, listed_color, tooltips
from lm_validity.pages.page import Figure, Finding, Lede, Page, Panel, Part, Picture, Section, Table
from lm_validity.pages.svg import KINDS
from lm_validity.repeats import SampledScore, pass_at_k, pass_hat_k
from lm_validity.results.files import joined, write_report
from lm_validity.studies.items.answers import model_items, model_scores
from lm_validity.studies.items.statistics import ItemParameters, fit_2pl, resolution
from lm_validity.tables.documents import NoDocuments, read_documents
from lm_validity.tables.schema import PROTOCOLS, trained_here
from lm_validity.words import UNDER, count, explain_protocols, percent

# ----------------------------------------------------------------------------------------------------------------------
# The items report: what the items of each benchmark are worth, under direct evaluation and train before test.

FEWEST = 3  # models and items of a fit
LISTED = 50  # items with negative discrimination, of a benchmark and protocol
TOO_FEW = Missing(Reason("The 2PL model needs at least 3 models and 3 items.", ReasonCode.TOO_FEW))
NOT_GRADED = Missing("The items are not scored between 0 (wrong) and 1 (right).")


FITTED = ("discrimination_median", "negative", "negative_certain", "information", "reliability")
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


@dataclass(frozen=True)
class ItemsData:
    """What the sections read: an entry of summary.json for each benchmark and protocol, beside each its 2PL fit, and
    the items of negative discrimination, the surest first. `trained_here`: a run of the workflow made the fine-tunes.

    In an entry, abilities are in standard deviations between these models. all_equal: items that all models get right,
    or all wrong. neighbours to minimal_detectable_difference: see `statistics.resolution`. negative: items whose
    estimated discrimination is below zero; negative_certain: so after correction for their number. information: test
    information at the models' abilities, median. reliability: share of the variance of estimated abilities that is no
    error. sampled: of each model with several runs, its error and what further runs would make of it; passes: for each
    number of runs k, pass@k and pass^k.
    """

    benchmarks: list[dict[str, Any]]
    fits: list[ItemParameters | Missing]
    negative_items: list[dict[str, Any]]
    notes: tuple[str, ...]
    trained_here: bool
    sampled: list[dict[str, Any]] = field(default_factory=list)
    passes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def by_protocol(self) -> dict[str, list[dict[str, Any]]]:
        """The benchmarks of each protocol under which there are any."""
        rows = {protocol: [row for row in self.benchmarks if row["protocol"] == protocol] for protocol in PROTOCOLS}
        return {protocol: rows_of_protocol for protocol, rows_of_protocol in rows.items() if rows_of_protocol}


def report_items(
    scores: str | Path,
    items: str | Path,
    output: str | Path,
    documents: Sequence[Path] = (),
    benchmarks: str | Path | None = None,
    models: str | Path | None = None,
) -> None:
    """Write summary.json, tables, figures and the page of the items report under `output`."""
    write_report(*items_report(analyze_items(scores, items, documents, benchmarks, models)), output)


def items_report(data: ItemsData) -> tuple[Page, dict[str, Any]]:
    """The page and the summary."""
    parts = joined(each_benchmark(data), items_against_it(data), several_runs(data))
    page = Page(
        name="items",
        title="Items",
        question="How finely do these benchmarks tell models apart, and which items work against them? "
        + explain_protocols(data.by_protocol, own=data.trained_here),
        findings=parts.findings,
        sections=parts.sections,
        notes=data.notes,
        lede=_lede(data),
        picture=_picture(data),
        panels=parts.panels[::-1],
    )
    return page, parts.summary | {"notes": data.notes}


def analyze_items(
    scores: str | Path,
    items: str | Path,
    documents: Sequence[str | Path] = (),
    benchmarks: str | Path | None = None,
    models: str | Path | None = None,
) -> ItemsData:
    """Analyse the items behind the selected scores, one benchmark at a time: a table may be larger than memory.

    `documents`: tables with the texts of the items. `models`: a sheet, whose reruns take no part. Raises InputError
    where no item belongs to a selected score.
    """
    counted = model_scores(scores, benchmarks=benchmarks, sheet_of_models=models)
    data = ItemsData([], [], [], counted.notes, trained_here(counted.rows))
    for benchmark, of_benchmark in counted.rows.groupby("benchmark"):
        answers = model_items(items, of_benchmark)
        texts = _texts(documents, str(benchmark)) if len(answers) else {}
        for protocol, answers_of_protocol in answers.groupby("protocol"):
            key = {"benchmark": str(benchmark), "protocol": str(protocol)}
            table = answers_of_protocol.pivot(index="model", columns="doc_id", values="correct")
            entry, fit = _fitted(table, answers_of_protocol.drop_duplicates("doc_id").set_index("doc_id")["subject"])
            data.benchmarks.append(key | entry)
            data.fits.append(fit)
            for model, rows_of_model in answers_of_protocol[answers_of_protocol["runs"] > 1].groupby("model"):
                data.sampled.append(key | {"model": str(model)} | _sampled(rows_of_model))
                data.passes.extend(key | {"model": str(model)} | passed for passed in _passes(rows_of_model))
            if not isinstance(fit, Missing):
                data.negative_items.extend(key | item for item in _negative(fit, table, texts))
    if not data.benchmarks:
        raise InputError(
            f"{items}: no item belongs to a selected score of {scores}.", "are both tables of the same run or import?"
        )
    return data


def _texts(documents: Sequence[str | Path], benchmark: str) -> dict[str, str]:
    """Context by doc_id, from the first table that has the benchmark."""
    for path in documents:
        try:
            table = read_documents(path, benchmark)
        except NoDocuments:
            continue
        return dict(zip(table["doc_id"], table["context"], strict=True))
    return {}


def _fitted(table: pd.DataFrame, subject: pd.Series) -> tuple[dict[str, Any], ItemParameters | Missing]:
    """The entry of a benchmark from its `table` of models and items and the `subject` of each item; and the fit."""
    correct, subjects = table.to_numpy(dtype=float), subject.reindex(table.columns)
    fit: ItemParameters | Missing = TOO_FEW
    if np.nanmin(correct, initial=0) < 0 or np.nanmax(correct, initial=1) > 1:
        fit = NOT_GRADED
    elif min(correct.shape) >= FEWEST:
        fit = fit_2pl(correct)
    entry = {
        "models": len(table),
        "items": table.shape[1],
        "all_equal": int((np.nanmax(correct, axis=0) == np.nanmin(correct, axis=0)).sum()),
        **vars(resolution(correct, subjects.to_numpy(dtype=str) if (subjects != "").all() else None)),
    }
    if isinstance(fit, Missing):
        return entry | dict.fromkeys(FITTED, fit), fit
    return entry | {
        "discrimination_median": float(np.median(fit.discrimination)),
        "negative": int((fit.discrimination < 0).sum()),
        "negative_certain": int(fit.negative().sum()),
        "information": float(np.median(fit.information(fit.abilities))),
        "reliability": float(1 - np.mean(fit.ability_sds**2)),
    }, fit


def _negative(fit: ItemParameters, table: pd.DataFrame, texts: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Items with a negative discrimination, the surest first; `certain`: after correction for their number."""
    certain, shares = fit.negative(), table.mean().to_numpy()
    order = np.argsort(fit.discrimination_z, kind="stable")
    for index in order[fit.discrimination[order] < 0][:LISTED]:
        name = str(table.columns[index])
        yield {
            "doc_id": name,
            "share_right": float(shares[index]),
            "discrimination": float(fit.discrimination[index]),
            "discrimination_se": float(fit.discrimination_se[index]),
            "certain": bool(certain[index]),
            "text": texts.get(name),
        }


def _sums(rows: Sequence[dict[str, Any]], *names: str) -> list[int]:
    return [sum(row[name] for row in rows) for name in names]


# ----------------------------------------------------------------------------------------------------------------------
# Above the folds: which share of neighbours is told apart, and the gap that this takes.

MOST_ROWS = 60  # benchmarks that the picture shows
FEW_MODELS = 20  # below it, discriminations of single items say little


def _lede(data: ItemsData) -> Lede:
    """How many neighbours in rankings are told apart, direct where that is known."""
    for protocol, rows in data.by_protocol.items():
        pairs, resolved = _sums(rows, "neighbours", "resolved")
        if pairs:
            share = "Half" if 2 * resolved == pairs else "Most" if 2 * resolved > pairs else "Fewer than half"
            begin = "Direct" if protocol == "direct" else "After training"
            return Lede(
                f"{share} of the neighbours in rankings are told apart",
                f"{begin}, {resolved} of {count(pairs, 'pair')} of models with neighbouring ranks differ beyond chance",
            )
    return Lede("Not known: how finely do these benchmarks tell models apart?", "No two models answered the same items")


def _picture(data: ItemsData) -> Picture | None:
    """A row for each benchmark: the share of neighbours told apart, and the gap that takes."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in data.benchmarks:
        if is_known(row["share_resolved"]):
            rows.setdefault(row["benchmark"], []).append(row)
    if not rows:
        return None
    rows_shown = sorted(rows.values(), key=lambda of_benchmark: -number(of_benchmark[0]["share_resolved"]))[:MOST_ROWS]
    note = (
        "Left: share of neighbours in the benchmark's ranking whose answers to common items differ beyond chance (p < "
        ".05, each by itself). Right: the gap that such a test finds four times out of five, median over neighbours, "
        "in points (hundredths)."
    )
    if any(row["reliability"] is NOT_GRADED for of_benchmark in rows_shown for row in of_benchmark):
        note += " Gaps of scores that are no shares are in the table alone."
    if len(rows_shown) < len(rows):
        note += f" The first {len(rows_shown)} of {len(rows)} benchmarks."
    sizes = ((1180.0, 230.0, "w640"), (380.0, 118.0, "n640"))
    return Picture(Markup("").join(_picture_svg(rows_shown, *size) for size in sizes), note)


def _picture_svg(rows: list[list[dict[str, Any]]], width: float, room: float, kind: str) -> Markup:
    """The protocols of a benchmark are a row; `room` pixels for names."""
    gaps = {
        (row["benchmark"], row["protocol"]): gap
        for of_benchmark in rows
        for row in of_benchmark
        if is_known(gap := row["minimal_detectable_difference"]) and row["reliability"] is not NOT_GRADED
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
        marks.append(svg.text(4, y + 4, svg.shortened(of_benchmark[0]["benchmark"], int(room / 6.4)), "lab"))
        for row in of_benchmark:
            at = y + (0 if len(of_benchmark) == 1 else -4 if row["protocol"] == "direct" else 4)
            marks.append(svg.dot(shares(number(row["share_resolved"])), at, KINDS[row["protocol"]]))
            if gap := gaps.get((row["benchmark"], row["protocol"])):
                marks.append(svg.dot(sizes(gap), at, KINDS[row["protocol"]]))
    description = "; ".join(
        f"{row['benchmark']} {PROTOCOL_LABELS[row['protocol']].lower()} {row['resolved']} of {row['neighbours']}"
        for of_benchmark in rows
        for row in of_benchmark
    )
    return svg.svg(
        width, height, f"Neighbours in rankings told apart, counts without intervals: {description}.", *marks, kind=kind
    )


def _shares_svg(title: str, rows: list[dict[str, Any]], noun: str) -> Markup:
    """A dot for each benchmark: which share of its items that is. The largest first, at most 10."""
    shares = [(row["benchmark"], row[noun] / row["items"], None) for row in rows]
    shares = sorted(shares, key=lambda share: -share[1])[:10]
    values = svg.round_values(0, max(0.05, shares[0][1]), 5)
    description = "; ".join(f"{name} {100 * share:.1f}%" for name, share, _ in shares)
    label = f"{title}, shares without intervals: {description}."
    return svg.named_rows(label, shares, values, [f"{100 * value:g}%" for value in values], KINDS[rows[0]["protocol"]])


# ----------------------------------------------------------------------------------------------------------------------
# The sections.


def each_benchmark(data: ItemsData) -> Part:
    """How finely each benchmark tells models apart, and how much its items say of their abilities."""
    figures, findings = [], []
    for index, (protocol, rows) in enumerate(data.by_protocol.items(), 1):
        pairs, resolved = _sums(rows, "neighbours", "resolved")
        words = f"{UNDER[protocol].capitalize()}, no two models have answered the same items."
        if pairs:
            words = (
                f"{UNDER[protocol].capitalize()}, {resolved} of {count(pairs, 'pair')} of neighbours in a benchmark's "
                f"ranking ({percent(resolved / pairs)}) differ by more than chance (p < .05, each by itself)."
            )
        if fitted := [row for row in rows if is_known(row["negative"])]:
            certain, negative, items = _sums(fitted, "negative_certain", "negative", "items")
            words += f" {negative} of {count(items, 'item')} have a negative discrimination, which is certain for "
            words += f"{certain} of them."
            fewest = min(row["models"] for row in fitted)
            if fewest < FEW_MODELS:
                words += f" With {fewest} models, the discrimination of a single item says little."
            title = f"Test information, {PROTOCOL_LABELS[protocol].lower()}"
            figures.append(Figure(f"information_{index}", title, _information(data, protocol)))
        findings.append(Finding(words))
    table = Table(
        "benchmarks",
        "Benchmarks",
        pd.DataFrame(data.benchmarks).replace({"protocol": PROTOCOL_LABELS}),
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
    first = next(iter(data.by_protocol.values()))
    alike, items = _sums(first, "all_equal", "items")
    panel = Panel(
        "Which items count?",
        f"**{alike} of {count(items, 'item')}** are answered alike by all models and tell none apart",
        _shares_svg("Items that all models answer alike", first, "all_equal"),
    )
    return Part({"benchmarks": data.benchmarks}, section, findings, panel=panel)


def _information(data: ItemsData, protocol: str) -> alt.LayerChart:
    abilities = np.linspace(-3, 3, 25)
    curves = [
        {"benchmark": row["benchmark"], "ability": ability, "information": value}
        for row, fit in zip(data.benchmarks, data.fits, strict=True)
        if row["protocol"] == protocol and not isinstance(fit, Missing)
        for ability, value in zip(abilities, fit.information(abilities), strict=True)
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


def items_against_it(data: ItemsData) -> Part:
    """Items that weaker models answer better; the panel is of the protocol that the page begins with."""
    rows = data.negative_items
    frame = pd.DataFrame(rows)
    if rows and frame["text"].isna().all():
        frame = frame.drop(columns="text")
    fitted = any(is_known(row["negative"]) for row in data.benchmarks)
    finding = "No item has a negative discrimination." if fitted else "Discriminations are not known."
    if rows:
        finding = f"{count(len(rows), 'item')} listed."
        if len(data.benchmarks) == 1:
            finding += f" The most certain is {rows[0]['doc_id']} of {rows[0]['benchmark']}."
    table = Table(
        "negative_items",
        "Items with negative discrimination",
        frame.replace({"protocol": PROTOCOL_LABELS}),
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
    panel, first = None, [row for row in next(iter(data.by_protocol.values())) if is_known(row["negative_certain"])]
    if first:
        certain, items = _sums(first, "negative_certain", "items")
        too_few = min(row["models"] for row in first) < FEW_MODELS
        panel = Panel(
            "Do items work against the benchmark?",
            f"**{certain} of {count(items, 'item')}** are answered better by weaker models, beyond chance",
            _shares_svg("Items that weaker models answer better", first, "negative_certain"),
            "yes" if certain else "not known" if too_few else "no",
        )
    return Part({"negative_items": rows}, section, panel=panel)


# ----------------------------------------------------------------------------------------------------------------------
# Sampled runs: what another run would do, and how often one of k runs, or each of them, is right.

_K = (1, 2, 3, 4, 5, 6, 8, 10, 16, 32, 64, 100)
UNLIKE_RUNS = Missing("The items have unlike numbers of runs.")
EVERY_RUN_HELPS = Missing("All noise is noise of sampling: every run helps.")
GRADED = Missing("Answers are graded: one of k runs is neither right nor wrong.")


def _sampled(rows_of_model: pd.DataFrame) -> dict[str, Any]:
    """The error of a model's mean over runs: as it is, with one run more, with endlessly many; and the share of
    sampling in the squared error of one run. own: rows of `model_items`."""
    names = ("error", "error_one_more_run", "error_endless_runs", "share_of_sampling", "runs_that_help")
    means, runs = rows_of_model["correct"].to_numpy(dtype=float), rows_of_model["runs"].to_numpy(dtype=int)
    entry: dict[str, Any] = {"runs": int(runs.min()), "items": len(rows_of_model), "score": float(means.mean())}
    if len(set(runs)) > 1 or len(rows_of_model) < 2 or rows_of_model["within"].isna().any():
        return entry | dict.fromkeys(names, UNLIKE_RUNS)
    score = SampledScore(
        entry["score"],
        float(rows_of_model["within"].mean()),
        float(means.var(ddof=1)),
        len(rows_of_model),
        int(runs[0]),
    )
    help_most = score.runs_that_help
    values = (score.error, score.error_with(score.runs + 1), score.error_with(np.inf), score.share_of_sampling)
    return entry | dict(zip(names, (*values, EVERY_RUN_HELPS if help_most is None else help_most), strict=True))


def _passes(rows_of_model: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """pass@k and pass^k for each k up to the runs of the item with the fewest. own: rows of `model_items`."""
    runs = rows_of_model["runs"].to_numpy(dtype=int)
    right = rows_of_model["correct"].to_numpy(dtype=float) * runs
    share = rows_of_model["correct"].to_numpy(dtype=float)
    # right-or-wrong answers have this variance between K runs
    variance = share * (1 - share) * runs / np.maximum(runs - 1, 1)
    if not np.allclose(rows_of_model["within"], variance) or not np.allclose(right, right.round()):
        yield {"k": 1} | dict.fromkeys(("pass_at_k", "pass_hat_k"), GRADED)
        return
    for k in sorted({k for k in _K if k < runs.min()} | {int(runs.min())}):
        entry: dict[str, Any] = {"k": k}
        for name, estimate in (("pass_at_k", pass_at_k), ("pass_hat_k", pass_hat_k)):
            estimated = estimate(right.round(), runs, k)
            assert not isinstance(estimated, Missing)
            entry |= {name: estimated.value, f"{name}_interval": estimated.interval}
        yield entry


def several_runs(data: ItemsData) -> Part:
    """Whether another run or another item would help, and pass@k and pass^k; nothing where each model was run once."""
    summary = {"sampled": data.sampled, "passes": data.passes}
    if not data.sampled:
        return Part(summary)
    rows_known = [row for row in data.sampled if is_known(row["share_of_sampling"])]
    finding = f"{count(len(data.sampled), 'score')} are means over sampled runs."
    if rows_known:
        median = float(np.median([row["share_of_sampling"] for row in rows_known]))
        finding += f" In one run, sampling is {percent(median)} of the squared error (median)."
    tables = [
        Table(
            "sampled_runs",
            "Another run, or another item?",
            pd.DataFrame(data.sampled).replace({"protocol": PROTOCOL_LABELS}),
            labels={
                "error": "error",
                "error_one_more_run": "with one run more",
                "error_endless_runs": "with endless runs",
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
        | {f"{name} (95%)": _ends(row.get(f"{name}_interval")) for name in ("pass_at_k", "pass_hat_k")}
        for row in data.passes
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
    return Part(summary, section)


def _ends(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else " to ".join(f"{end:.3f}" for end in interval)
