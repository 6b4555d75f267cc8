"""Further sections of the bias page: tests, single splits, power and provenance."""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import numpy as np

from lm_validity.pages.page import Figure, Section, Table
from lm_validity.studies.bias import figures
from lm_validity.studies.bias.statistics.effects import MODEL_FREE_SLICES
from lm_validity.studies.bias.statistics.model import EFFECTS
from lm_validity.studies.bias.summary import (
    BiasSummary,
    Cell,
    Drift,
    Loss,
    Mismatch,
    Power,
    Slices,
    TaskTest,
    rows_frame,
)
from lm_validity.studies.bias.table import CELL
from lm_validity.summaries import is_known, number
from lm_validity.words import count, percent


def prefix(summary: BiasSummary, experiment: str) -> str:
    """`clean: ` before a sentence on one of several experiments; nothing where there is only one."""
    return f"{experiment}: " if len(summary.experiments) > 1 else ""


def per_experiment(summary: BiasSummary, sentence: Callable[[str], str]) -> str:
    """What `sentence` says of each experiment; empty sentences are left out."""
    said = {name: sentence(name) for name in summary.experiments}
    return " ".join(prefix(summary, name) + words for name, words in said.items() if words)


class OfExperiment(Protocol):
    """A row of one experiment."""

    @property
    def experiment(self) -> str:
        """The experiment's name, as in `BiasSummary.experiments`."""


RowT = TypeVar("RowT", bound=OfExperiment)


def per_rows(summary: BiasSummary, rows: Iterable[RowT], sentence: Callable[[list[RowT]], str]) -> str:
    """What `sentence` says of the rows of each experiment."""
    return per_experiment(summary, lambda name: sentence([row for row in rows if row.experiment == name]))


def power_words(summary: BiasSummary, experiment: str, effect: str) -> str:
    """What the t tests over tasks of an experiment's settings could have found; empty where that is unknown."""
    settings = [row.over_tasks for row in summary.settings if (row.experiment, row.effect) == (experiment, effect)]
    sizes = [number(mean.smallest_detectable) for mean in settings if is_known(mean.smallest_detectable)]
    if not sizes:
        return ""
    size = f"{min(sizes):.4f}" if len(sizes) == 1 else f"between {min(sizes):.4f} and {max(sizes):.4f}, by setting,"
    return f"A t test over the tasks of a setting finds an effect of {size} four times out of five."


def cell_table(summary: BiasSummary) -> Table:
    """Means by cell; what each effect rests on only where that is not all that the cell holds."""
    cells = rows_frame(Cell, summary.cells)
    own = [f"{effect}_{size}" for effect in EFFECTS for size in ("subsamples", "tasks", "trials")]
    complete = all((cells[name] == cells[name.partition("_")[2]]).all() for name in own)
    caption = "Means and standard errors over task means: every task has the same weight."
    return Table(
        "cells",
        "Means by language model, m and n",
        cells.drop(columns=own) if complete else cells,
        formats=dict.fromkeys(["boost_mean", "bias_mean"], "+.4f") | dict.fromkeys(["boost_se", "bias_se"], ".4f"),
        caption=caption if complete else f"{caption} The figures of an effect use the trials that have both its arms.",
    )


def permutation_section(summary: BiasSummary) -> Section:
    """Exact sign-flip tests, task by task."""
    of_bias = [test for test in summary.permutation if test.effect == "bias"]
    table = rows_frame(TaskTest, summary.permutation)
    return Section(
        "Tests by task",
        finding=per_rows(summary, summary.permutation, _tests_sentence),
        explanation=(
            "Each task of a cell has an exact one-sided sign-flip test. It asks: if the two arms were exchangeable, "
            "how often would random signs of the subsamples' differences give a mean at least as large? All 2^K sign "
            "patterns are counted. q is p adjusted over the tasks of a cell by the method of Benjamini and Hochberg."
        ),
        figures=[
            Figure(
                "task_bias",
                "Mean bias by task and cell",
                figures.task_heatmap(of_bias),
                "Hover for p and q; q < .05 is marked ●.",
                wide=True,
                min_width=640,
            )
        ]
        if of_bias
        else [],
        tables=[
            Table(
                "permutation",
                "Sign-flip tests",
                table[[*CELL, "task", "effect", "mean", "trials", "p", "p_adjusted", "smallest_detectable"]],
                formats={"mean": "+.4f"} | {"p": "p", "p_adjusted": "p", "smallest_detectable": ".4f"},
                labels={"p_adjusted": "q"},
                caption="Smallest detectable: the mean difference for which q < .05 four times out of five, if this "
                "were the cell's only task with an effect.",
                folded=True,
            )
        ],
    )


def _tests_sentence(tests: list[TaskTest]) -> str:
    parts = []
    for effect in ("bias", "boost"):
        own = [test for test in tests if test.effect == effect]
        if own:
            found = sum(test.p_adjusted < 0.05 for test in own)
            smallest = _small(min(test.p_adjusted for test in own))
            parts.append(f"{found} of {count(len(own), 'test')} of a {effect} have q < .05 (smallest {smallest}).")
            parts += [_test_power(own)] if not found else []
    return " ".join(parts)


def _test_power(tests: list[TaskTest]) -> str:
    sizes = [number(test.smallest_detectable) for test in tests if is_known(test.smallest_detectable)]
    if not sizes:
        return "What these tests could have found is unknown, or they could have found nothing."
    return (
        f"Such a test finds an effect of {np.median(sizes):.4f} in a single task four times out of five (median over "
        f"{count(len(sizes), 'test')}; {min(sizes):.4f} to {max(sizes):.4f}), so smaller effects may exist."
    )


def _small(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "below .001"


def meta_section(summary: BiasSummary) -> Section | None:
    """What a study with one split per task would have concluded."""
    results = [row for row in summary.meta_analysis if is_known(row.means)]
    if not results:
        return None
    shares = ["share_beyond", "share_excluding_zero", "share_t_excluding_zero"]
    return Section(
        "With one subsample per task",
        finding=per_rows(summary, results, _slices_sentence),
        explanation=(
            "Each slice keeps one random subsample per language model and task, as most benchmarks do. A binomial "
            "model ignores training noise. Where there is any, a larger n makes it too certain."
        ),
        figures=[
            Figure(
                "meta_analysis",
                "Posterior mean of the bias over slices",
                figures.meta_curves(results),
                f"Cumulative share of {results[0].slices} slices, in log-odds. The dashed lines are ±0.04.",
            )
        ],
        tables=[
            Table(
                "meta_analysis",
                "Shares of the slices",
                rows_frame(Slices, results)[["experiment", "m", "n", "slices", *shares]],
                formats=dict.fromkeys(shares, ".3f"),
                labels={
                    "share_beyond": "|mean| > 0.04",
                    "share_excluding_zero": "binomial interval excludes 0",
                    "share_t_excluding_zero": "t interval over tasks excludes 0",
                },
                caption="89% intervals: without an effect, a share of 0.11 is expected. The last column is "
                f"from {MODEL_FREE_SLICES:,} slices. The Monte Carlo standard error of the others is at most "
                f"{0.5 / np.sqrt(results[0].slices):.3f}.",
            )
        ],
    )


def _slices_sentence(results: list[Slices]) -> str:
    if not results:
        return ""
    shares = [number(row.share_excluding_zero) for row in results]
    return (
        f"A study with one subsample per task, analysed by a binomial model, finds an effect in {percent(min(shares))} "
        f"to {percent(max(shares))} of cases, by m and n (11% would be expected if none exists)."
    )


def power_section(summary: BiasSummary) -> Section:
    """How many subsamples and tasks it takes to detect half a point."""
    known = [row for row in summary.power if is_known(row.power)]
    sizes = sorted({row.effect_size for row in summary.power})
    of_size = f" of {' or '.join(map(str, sizes))}" if sizes else ""
    caption = f"To find a bias{of_size} with as many tasks as the cell has."
    return Section(
        "What could have been found",
        finding=per_rows(summary, known, _power_sentence),
        explanation=(
            "A two-sided t test over task means at the 5% level. The variance between tasks and within a task "
            "(subsamples, training noise) is estimated from these data. More subsamples reduce only the variance "
            "within."
        ),
        figures=[Figure("power", "Power against the number of subsamples", figures.power_curves(known), caption)]
        if known
        else [],
        tables=[
            Table(
                "power",
                f"To detect a bias{of_size} with power 0.8",
                rows_frame(Power, summary.power),
                formats=dict.fromkeys(["within_task_sd", "between_tasks_sd", "smallest_detectable"], ".4f")
                | {"power": ".2f", "subsamples_needed": ".0f", "tasks_needed": ".0f"},
                caption="Subsamples needed with these tasks, and tasks needed with these subsamples.",
            )
        ],
    )


def _power_sentence(known: list[Power]) -> str:
    if not known:
        return "Too few tasks or subsamples to estimate what could have been detected."
    smallest = [number(row.smallest_detectable) for row in known]
    cells = f"is {smallest[0]:.4f}"
    if len(known) > 1:
        cells = f"is {min(smallest):.4f} in the best cell and {max(smallest):.4f} in the worst"
    return (
        f"The smallest bias that a cell would detect four times out of five {cells}. "
        f"{sum(number(row.power) >= 0.8 for row in known)} of {count(len(known), 'cell')} would detect a bias of "
        f"{known[0].effect_size} that often."
    )


def provenance_section(summary: BiasSummary) -> Section | None:
    """Rows that come from different code, data or splits."""
    drift, mismatches = summary.base_drift, summary.test_set_mismatches
    if not drift and not mismatches:
        return None
    mixed = sum(row.mixed for row in drift)
    parts = [f"In {mixed} of {count(len(drift), 'comparison')}, base accuracy differs between values of n"]
    tables = []
    if drift:
        numbers = dict.fromkeys(["base", "reference_base"], ".4f") | {"difference": "+.4f", "z": ".1f", "p": "p"}
        frame = rows_frame(Drift, drift)
        tables.append(Table("base_drift", "Base accuracy between values of n", frame, formats=numbers))
    if mismatches:
        share = sum(row.mismatched for row in mismatches)
        parts.append(f"{share} subsamples with the same number had different test sets in different language models")
        frame = rows_frame(Mismatch, mismatches)
        tables.append(Table("test_set_mismatches", "Different test sets under one number", frame))
    return Section(
        "Do the rows belong together?",
        finding=". ".join(parts) + ".",
        explanation=(
            "The base arm never sees the n texts, so for a given m its accuracy cannot depend on n. If it does, the "
            "rows come from different code, library versions or data, and a trend over n compares these."
        ),
        figures=[Figure("base_drift", "Base accuracy by n", figures.base_by_n(summary))] if drift else [],
        tables=tables,
    )


def loss_section(summary: BiasSummary) -> Section | None:
    """How well pretraining went, where the trials say so."""
    losses = summary.pretraining_loss
    if not losses:
        return None
    values = [value for row in losses for value in (row.extra, row.test)]
    return Section(
        "How pretraining went",
        finding=(
            f"The last epoch's mean loss lies between {min(values):.2f} and {max(values):.2f} nats per predicted token."
        ),
        explanation=(
            "Means over all subsamples of all tasks. The two arms read texts from one source, so their losses should "
            "agree. An experiment with more epochs should have the lower loss."
        ),
        tables=[
            Table(
                "pretraining_loss",
                "Mean pretraining loss",
                rows_frame(Loss, losses),
                formats=dict.fromkeys(["extra", "test"], ".4f"),
            )
        ],
    )
