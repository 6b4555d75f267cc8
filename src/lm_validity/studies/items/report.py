"""The items report: how finely benchmarks tell models apart, which items work against them, and what another sampled
run or another item would help."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.pages.page import Finding, Lede, Page, Panel
from lm_validity.pages.svg import KINDS, NAMES
from lm_validity.results.put import Column, Rows
from lm_validity.results.sections import POINTS, Dots, PanelOf, Says, SectionOf, Series, TableOf, write_rows
from lm_validity.statistics import RunNoise, SampledScore, pass_at_k, pass_hat_k
from lm_validity.studies.items import answers, statistics
from lm_validity.studies.items.statistics import LEVEL, ItemParameters
from lm_validity.tables.counted import Sources
from lm_validity.tables.items import NoDocuments, read_documents
from lm_validity.tables.schema import PROTOCOLS, trained_here
from lm_validity.words import Missing, count, explain_protocols, is_known, too_few

FEWEST = 3  # models and items of a fit
LISTED = 50  # items with negative discrimination, of a benchmark and protocol
FEW_MODELS = 20  # below it, discriminations of single items say little
TOO_FEW = Missing(too_few("The 2PL model needs at least 3 models and 3 items."))
NOT_GRADED = Missing("The items are not scored between 0 (wrong) and 1 (right).")
NO_NEIGHBOURS = Missing(too_few("Fewer than two models have answered the same items."))
NO_DIFFERENCE = Missing("No two neighbours differ.")
UNLIKE_RUNS = Missing("The items differ in their number of runs.")
EVERY_RUN_HELPS = Missing("All noise is noise of sampling: every run helps.")
GRADED = Missing("Answers are graded: one of k runs is neither right nor wrong.")
NUMBERS_OF_RUNS = (1, 2, 3, 4, 5, 6, 8, 10, 16, 32, 64, 100)  # the k of pass@k


class Analysis(NamedTuple):
    """The rows, and what a page needs beside them. graded: benchmarks whose items lie between 0 and 1."""

    rows: Rows
    graded: set[str]
    notes: tuple[str, ...]
    trained_here: bool


def report_items(sources: Sources, output: str | Path, documents: Sequence[Path] = ()) -> None:
    """Write results, tables and the page of the items report under `output`."""
    analysis = analyze_items(sources, documents)
    write_rows(items_page(analysis), analysis.rows, output)


# ----------------------------------------------------------------------------------------------------------------------
# The rows.


def analyze_items(sources: Sources, documents: Sequence[str | Path] = ()) -> Analysis:
    """Analyse the items behind the selected scores, one benchmark at a time: a table may be larger than memory.

    `documents`: tables with the texts of the items. Reruns in the models sheet take no part. Raises InputError where no
    item belongs to a selected score.
    """
    counted, items = answers.model_scores(sources), sources.items
    assert items is not None, "the report is of items"
    rows, graded = Rows("items"), set[str]()
    for benchmark, of_benchmark in counted.rows.groupby("benchmark"):
        raw = answers.model_answers(items, of_benchmark)
        means, texts = answers.mean_items(raw), _texts(documents, str(benchmark)) if len(raw) else {}
        for protocol, of_protocol in means.groupby("protocol"):
            at = rows.of(subject=str(benchmark), protocol=str(protocol))
            table = of_protocol.pivot(index="model", columns="doc_id", values="correct")
            subjects = of_protocol.drop_duplicates("doc_id").set_index("doc_id")["subject"].reindex(table.columns)
            fit = _fit(table.to_numpy(dtype=float))
            graded |= {str(benchmark)} if fit is not NOT_GRADED else set()
            sampled = dict(iter(raw[(raw["protocol"] == protocol) & raw["run"].notna()].groupby("model")))
            noises = {str(model): answers.noise_of_runs(rows_of, table.columns) for model, rows_of in sampled.items()}
            _benchmark_rows(at, table, subjects, fit, [noises.get(model) for model in table.index])
            for model, of_model in of_protocol[of_protocol["runs"] > 1].groupby("model"):
                _sampled_rows(at.of(other=str(model)), of_model, noises.get(str(model)))
                _pass_rows(at.of(other=str(model)), of_model)
            if not isinstance(fit, Missing):
                _negative_rows(at, fit, table, texts)
    if not list(rows):
        raise InputError(
            f"{items}: no item belongs to a selected score of {sources.scores}.",
            "are both tables of the same run or import?",
        )
    return Analysis(rows, graded, counted.notes, trained_here(counted.rows))


def _texts(documents: Sequence[str | Path], benchmark: str) -> dict[str, str]:
    """Context by doc_id, from the first table that has the benchmark."""
    for path in documents:
        try:
            table = read_documents(path, benchmark)
        except NoDocuments:
            continue
        return dict(zip(table["doc_id"], table["context"], strict=True))
    return {}


def _fit(correct: np.ndarray) -> ItemParameters | Missing:
    """The 2PL model of `correct` (models, items), or why there is none."""
    if np.nanmin(correct, initial=0) < 0 or np.nanmax(correct, initial=1) > 1:
        return NOT_GRADED
    return statistics.fit_2pl(correct) if min(correct.shape) >= FEWEST else TOO_FEW


def _benchmark_rows(
    at: Rows, table: pd.DataFrame, subjects: pd.Series, fit: ItemParameters | Missing, runs: Sequence[RunNoise | None]
) -> None:
    """Of a benchmark under a protocol, from its `table` of models and items, the subject of each, the fit, and the
    noise of each model's runs.

    equal_items: that all models, at least two, get right, or all wrong; items without an answer of some model are none
    of these. items_below_zero: with an estimated discrimination below zero; negative_items: so after correction for
    their number.
    """
    correct = table.to_numpy(dtype=float)
    models, items = correct.shape
    clusters = subjects.to_numpy(dtype=str) if (subjects != "").all() else None
    pairs = statistics.neighbour_tests(correct, clusters, runs)
    resolved = sum(pair.p < LEVEL for pair in pairs)
    sizes = [pair.smallest_detectable for pair in pairs if is_known(pair.smallest_detectable)]
    none, counted = NO_DIFFERENCE if pairs else NO_NEIGHBOURS, ("neighbours", len(pairs))
    alike = int((correct == correct[0]).all(axis=0).sum()) if models > 1 else 0
    at.put("models", models, "models")
    at.put("items", items, "items")
    at.put("equal_items", alike, "items", counted=("items", items))
    at.put("neighbours", len(pairs), "pairs")
    at.put("neighbours_resolved", resolved, "pairs", counted=counted)
    share = resolved / len(pairs) if pairs else NO_NEIGHBOURS
    at.put("neighbours_resolved_share", share, "share", counted=counted)
    at.put("paired_difference", float(np.median(sizes)) if sizes else none, "score", counted=("items", items))
    below = fit if isinstance(fit, Missing) else int((fit.discrimination < 0).sum())
    certain = fit if isinstance(fit, Missing) else int(fit.negative().sum())
    at.put("items_below_zero", below, "items", counted=("items", items))
    at.put("negative_items", certain, "items", counted=("items", items))


def _negative_rows(at: Rows, fit: ItemParameters, table: pd.DataFrame, texts: dict[str, str]) -> None:
    """The first `LISTED` items with a negative discrimination, the surest first."""
    certain, shares = fit.negative(), table.mean().to_numpy()
    order = np.argsort(fit.discrimination_z, kind="stable")
    for index in order[fit.discrimination[order] < 0][:LISTED]:
        name = str(table.columns[index])
        of_item = at.of(other=name)
        of_item.put("item_share_right", float(shares[index]), "share")
        of_item.put("item_discrimination", float(fit.discrimination[index]), "discrimination")
        of_item.put("item_negative_certain", float(certain[index]), "yes_or_no")
        if name in texts:
            of_item.put("item_text", texts[name], "text")


def _sampled_rows(at: Rows, items: pd.DataFrame, noise: RunNoise | None) -> None:
    """The errors of a model's mean over several sampled runs, as it is, with one run more and with endlessly many, for
    other items and runs. items: its rows of `mean_items`; noise: of its runs."""
    means, runs = items["correct"].to_numpy(dtype=float), items["runs"].to_numpy(dtype=int)
    counted = ("items", len(items))
    at.put("runs", int(runs.min()), "runs")
    at.put("score_of_runs", float(means.mean()), "score", counted=counted)
    numbers: list[float | Missing] = [UNLIKE_RUNS] * 5
    if len(set(runs)) == 1 and len(items) > 1 and items["within"].notna().all() and noise is not None:
        score = SampledScore(float(means.var(ddof=1)), len(items), noise)
        helping = EVERY_RUN_HELPS if score.runs_that_help is None else score.runs_that_help
        errors = [score.error, score.error_with(noise.runs + 1), score.error_with(np.inf)]
        numbers = [*errors, score.share_of_sampling, helping]
    names = ("sampled_error", "sampled_error_one_more", "sampled_error_endless", "sampled_share", "runs_that_help")
    units = ("score", "score", "score", "share", "runs")
    for name, number, unit in zip(names, numbers, units, strict=True):
        at.put(name, number, unit, counted=None if unit == "runs" else counted)


def _pass_rows(at: Rows, items: pd.DataFrame) -> None:
    """pass@k and pass^k for each k up to the runs of the item with the fewest. `items`: rows of `mean_items`."""
    runs, share = items["runs"].to_numpy(dtype=int), items["correct"].to_numpy(dtype=float)
    right = share * runs
    # right-or-wrong answers have this variance between K runs
    variance = share * (1 - share) * runs / np.maximum(runs - 1, 1)
    graded = not np.allclose(items["within"], variance) or not np.allclose(right, right.round())
    numbers = [1] if graded else sorted({k for k in NUMBERS_OF_RUNS if k < runs.min()} | {int(runs.min())})
    for k in numbers:
        for name, of_runs in (("pass_at_k", pass_at_k), ("pass_hat_k", pass_hat_k)):
            found = GRADED if graded else of_runs(right.round(), runs, k)
            ends = found if isinstance(found, Missing) else found.interval
            at.put(name, found if isinstance(found, Missing) else found.value, "share", {"items": ends}, k=k)


# ----------------------------------------------------------------------------------------------------------------------
# The page.

PLACE = {"subject": "benchmark", "protocol": "protocol"}
BENCHMARKS = SectionOf(
    "Benchmark by benchmark",
    Says("neighbours_resolved_share", "Of the neighbours in a ranking, {span} are told apart."),
    TableOf(
        "benchmarks",
        PLACE,
        {
            "models": Column("models", "models", ".0f"),
            "items": Column("items", "items", ".0f"),
            "equal_items": Column("equal_items", "all models alike", ".0f"),
            "neighbours": Column("neighbours", "pairs of neighbours", ".0f"),
            "resolved": Column("neighbours_resolved", "neighbours told apart", ".0f"),
            "paired_difference": Column("paired_difference", "minimal detectable difference", ".3f"),
            "below_zero": Column("items_below_zero", "negative discrimination", ".0f"),
            "negative": Column("negative_items", "negative discrimination, certain", ".0f"),
        },
        "Benchmarks",
    ),
    hint="gaps that are found, items that all answer alike",
    explanation="Neighbours told apart: pairs of neighbouring ranks whose models differ by more than chance on their "
    "common items (p < .05, each by itself). Minimal detectable difference: what such a test finds four times out of "
    "five, median over neighbours.",
)
NEGATIVE = SectionOf(
    "Items on which better models do worse",
    Says("item_discrimination", "{count:item} listed."),
    TableOf(
        "negative_items",
        PLACE | {"other": "item"},
        {
            "share_right": Column("item_share_right", "share of models that are right", ".2f"),
            "discrimination": Column("item_discrimination", "discrimination", "+.2f"),
            "certain": Column("item_negative_certain", "certain", ".0f"),
            "text": Column("item_text", "text"),
        },
        "Items with negative discrimination",
    ),
    hint="each with its text, where that is known",
    explanation="Each item has a discrimination (2PL item response model): how much more likely a better model is to "
    "answer it correctly. A negative one means that models that do well elsewhere get this item wrong. Wrong gold "
    "answers and ambiguous questions can cause this. So can chance if there are few models. Certain: below zero after "
    f"correction for the number of items (Benjamini and Hochberg). At most {LISTED} for each benchmark and protocol.",
)
RUNS = SectionOf(
    "Sampled runs",
    Says("sampled_share", "In one run, sampling is {span} of the squared error of {count:score}."),
    TableOf(
        "sampled_runs",
        PLACE | {"other": "model"},
        {
            "runs": Column("runs", "runs", ".0f"),
            "score": Column("score_of_runs", "score", ".4f"),
            "error": Column("sampled_error", "error", ".4f"),
            "error_one_more_run": Column("sampled_error_one_more", "with one run more", ".4f"),
            "error_endless_runs": Column("sampled_error_endless", "with infinitely many runs", ".4f"),
            "share_of_sampling": Column("sampled_share", "share of sampling in one run", ".2f"),
            "runs_that_help": Column("runs_that_help", "runs that help", ".0f"),
        },
        "Another run, or another item?",
        "Errors are for other items and other runs. Runs that help: from here on, only more items lower the error by "
        "more than 5%.",
    ),
    hint="another run or another item",
)
PASSES = SectionOf(
    "pass@k and pass^k",
    Says("pass_at_k", "One of k runs is right on {span} of the items, by k and model; intervals: for other items."),
    TableOf(
        "passes",
        PLACE | {"other": "model", "k": "k"},
        {
            **Column("pass_at_k", "one of k right", ".3f").with_ends("pass_at_k"),
            **Column("pass_hat_k", "all of k right", ".3f").with_ends("pass_hat_k"),
        },
        "pass@k and pass^k",
        "For each item unbiased; not known for more runs than an item has. Intervals are for other items and these "
        "runs. What all items of a run share is not in them: where runs differ by it, they held in .62 to .92 of "
        "simulations.",
        folded=True,
    ),
)


def items_page(analysis: Analysis) -> Page:
    """The page: how many neighbours are told apart, each benchmark, items that work against one, sampled runs."""
    rows = analysis.rows
    protocols = [protocol for protocol in PROTOCOLS if rows.all("models", protocol=protocol)]
    sections = [BENCHMARKS, *([NEGATIVE] if rows.all("item_discrimination") else [])]
    sections += [RUNS, PASSES] if rows.all("runs") else []
    marks = {p: (KINDS[p], NAMES[p] if len(protocols) > 1 else "") for p in protocols}
    shares, gaps = (
        [Series(quantity, {"subject": "{}"}, {"protocol": p}, *marks[p]) for p in protocols]
        for quantity in ("neighbours_resolved_share", "paired_difference")
    )
    label = "Share of neighbours in the ranking that differ beyond chance (p < .05, each by itself)"
    sizes = [row for row in rows.all("paired_difference") if row.subject in analysis.graded]
    lede, copies = (
        _lede(rows, protocols),
        [n.rstrip(".") for n in analysis.notes if n.startswith("Models with the same")],
    )
    gap = PanelOf(
        "Which gap is found?",
        Says("paired_difference", "**{span} points** are found four times out of five, by benchmark"),
        Dots(gaps, "Minimal detectable difference of neighbours, in points", sorted=True, most=10),
    ).drawn(Rows("items", [row._replace(unit=POINTS) for row in sizes]))
    return Page(
        name="items",
        title="Items",
        question="How finely do these benchmarks tell models apart, and which items work against them? "
        + explain_protocols(protocols, trained_here=analysis.trained_here),
        findings=[Finding(_finding(rows, protocol)) for protocol in protocols],
        sections=[section.drawn(rows) for section in sections],
        notes=analysis.notes,
        # the models that count once are named in the first sentence: so a terminal names them too
        lede=replace(lede, sentence=". ".join([lede.sentence, *copies])),
        picture=Dots(shares, label, sorted=True).draw(rows),
        panels=[panel for panel in (gap, _items_panel(rows, protocols[0])) if panel is not None],
    )


def _sum(rows: Rows, quantity: str, protocol: str) -> int:
    """Over benchmarks, of those where it is known."""
    return int(sum(row.value or 0.0 for row in rows.all(quantity, protocol=protocol)))


def _told_apart(rows: Rows, protocol: str) -> str:
    """How many neighbours in rankings are told apart under a protocol."""
    pairs, resolved = _sum(rows, "neighbours", protocol), _sum(rows, "neighbours_resolved", protocol)
    words = f"{resolved} of {count(pairs, 'pair')} of models with neighbouring ranks differ beyond chance"
    return f"{NAMES[protocol].capitalize()}: {words if pairs else 'no two models have answered the same items'}"


def _lede(rows: Rows, protocols: Sequence[str]) -> Lede:
    """How many neighbours in rankings are told apart, direct where that is known."""
    for protocol in protocols:
        pairs, resolved = _sum(rows, "neighbours", protocol), _sum(rows, "neighbours_resolved", protocol)
        if pairs:
            share = "Half" if 2 * resolved == pairs else "Most" if 2 * resolved > pairs else "Fewer than half"
            return Lede(f"{share} of the neighbours in rankings are told apart", _told_apart(rows, protocol))
    return Lede("Not known: how finely do these benchmarks tell models apart?", "No two models answered the same items")


def _finding(rows: Rows, protocol: str) -> str:
    """How many neighbours are told apart under a protocol, and how many items work against their benchmark."""
    words = f"{_told_apart(rows, protocol)}."
    fitted = {row.subject: row for row in rows.all("items_below_zero", protocol=protocol) if row.value is not None}
    if fitted:
        items, below = sum(row.n or 0 for row in fitted.values()), _sum(rows, "items_below_zero", protocol)
        words += f" {below} of {count(items, 'item')} have a negative discrimination, which is certain for "
        words += f"{_sum(rows, 'negative_items', protocol)} of them."
        fewest = min(row.value or 0 for row in rows.all("models", protocol=protocol) if row.subject in fitted)
        words += f" With {fewest:.0f} models, that of a single item says little." if fewest < FEW_MODELS else ""
    return words


def _items_panel(rows: Rows, protocol: str) -> Panel | None:
    """Whether items work against their benchmark, under the protocol that the page begins with."""
    negative = [row for row in rows.all("negative_items", protocol=protocol) if row.value is not None]
    if not negative:
        return None
    certain, items = _sum(rows, "negative_items", protocol), sum(row.n or 0 for row in negative)
    series = Series("negative_items", {"subject": "{}"}, {"protocol": protocol})
    picture = Dots([series], "Items", sorted=True, most=10, unit="items").draw(rows).svg
    text = f"**{certain} of {count(items, 'item')}** are answered better by weaker models, beyond chance"
    question = "Do items work against the benchmark?"
    return Panel(question, text, picture, "yes" if certain else "not known", "" if certain else "not shown")
