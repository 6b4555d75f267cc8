"""Further sections of the bias page: tests, single splits, power and provenance."""

from collections.abc import Callable

import pandas as pd

from lm_validity.pages.page import Figure, Section, Table
from lm_validity.studies.bias import figures
from lm_validity.studies.bias.analysis import DETECTABLE_BIAS, BiasAnalysis
from lm_validity.studies.bias.statistics.effects import task_means
from lm_validity.studies.bias.statistics.model import EFFECTS
from lm_validity.studies.bias.table import CELL
from lm_validity.words import count, percent


def experiments(analysis: BiasAnalysis) -> list[str]:
    """The experiments in the order of the tables."""
    return list(dict.fromkeys(analysis.cells["experiment"]))


def prefix(analysis: BiasAnalysis, experiment: str) -> str:
    """`clean: ` before a sentence on one of several experiments; nothing where there is only one."""
    return f"{experiment}: " if len(experiments(analysis)) > 1 else ""


def per_experiment(analysis: BiasAnalysis, sentence: Callable[[BiasAnalysis, str], str]) -> str:
    """What `sentence` says of each experiment; empty sentences are left out."""
    said = {name: sentence(analysis, name) for name in experiments(analysis)}
    return " ".join(prefix(analysis, name) + words for name, words in said.items() if words)


def cell_table(analysis: BiasAnalysis) -> Table:
    """Means by cell; what each effect rests on only where that is not all that the cell holds."""
    cells = analysis.cells
    own = [f"{effect}_{size}" for effect in EFFECTS for size in ("subsamples", "tasks", "trials")]
    complete = all((cells[name] == cells[name.partition("_")[2]]).all() for name in own)
    caption = "Means over all subsamples of all tasks; standard errors over task means."
    return Table(
        "cells",
        "Means by language model, m and n",
        cells.drop(columns=own) if complete else cells,
        formats=dict.fromkeys(["boost_mean", "bias_mean"], "+.4f") | dict.fromkeys(["boost_se", "bias_se"], ".4f"),
        caption=caption if complete else f"{caption} Those of an effect are over the trials that have both its arms.",
    )


def permutation_section(analysis: BiasAnalysis) -> Section:
    """Exact sign-flip tests, task by task."""
    keys = [*CELL, "task"]
    means = [task_means(analysis.trials, e, keys).rename(columns={e: "mean"}).assign(effect=e) for e in EFFECTS]
    table = analysis.permutation.merge(pd.concat(means), "left", [*keys, "effect"])
    return Section(
        "Tests by task",
        finding=per_experiment(analysis, lambda _, name: _tests_sentence(table[table["experiment"] == name])),
        explanation=(
            "For each task of a cell: if the two arms were exchangeable, how often would flipping the sign of each "
            "subsample's difference at random give a mean at least as large? Exact, all 2^K sign patterns, one-sided. "
            "q is adjusted over the tasks of a cell by Benjamini and Hochberg's method."
        ),
        figures=[
            Figure(
                "task_bias",
                "Mean bias by task and cell",
                figures.task_heatmap(analysis, table),
                "Hover for p and q; q < .05 is marked ●.",
                wide=True,
                min_width=640,
            )
        ]
        if (table["effect"] == "bias").any()
        else [],
        tables=[
            Table(
                "permutation",
                "Sign-flip tests",
                table[[*CELL, "task", "effect", "mean", "trials", "p", "p_adjusted"]],
                formats={"mean": "+.4f", "p": ".4f", "p_adjusted": ".4f"},
                labels={"p_adjusted": "q"},
                folded=True,
            )
        ],
    )


def _tests_sentence(table: pd.DataFrame) -> str:
    parts = []
    for effect in ("bias", "boost"):
        tests = table[table["effect"] == effect]
        if len(tests):
            found, smallest = int((tests["p_adjusted"] < 0.05).sum()), tests["p_adjusted"].min()
            parts.append(f"{found} of {len(tests)} tests of a {effect} have q < .05 (smallest {_small(smallest)})")
    return "; ".join(parts) + "." if parts else ""


def _small(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "below .001"


def meta_section(analysis: BiasAnalysis) -> Section | None:
    """What a study with one split per task would have concluded."""
    results = {key: value for key, value in analysis.meta.items() if value is not None}
    if not results:
        return None
    rows = [
        [*key, len(result.means), result.share_beyond, result.share_excluding_zero, result.share_t_excluding_zero]
        for key, result in results.items()
    ]
    columns = ["experiment", "m", "n", "slices", "beyond", "excluding_zero", "t_excluding_zero"]
    frame = pd.DataFrame(rows, columns=columns)
    return Section(
        "With one split per task",
        finding=per_experiment(analysis, lambda _, name: _slices_sentence(frame[frame["experiment"] == name])),
        explanation=(
            "Each slice keeps one random subsample per language model and task, as most benchmarks do. The larger "
            "n, the surer a binomial model is of differences that are noise of training."
        ),
        figures=[
            Figure(
                "meta_analysis",
                "Posterior mean of the bias over slices",
                figures.meta_curves(results),
                "Cumulative share of 500 slices, log-odds; the dashed lines are ±0.04.",
            )
        ],
        tables=[
            Table(
                "meta_analysis",
                "Shares of the slices",
                frame,
                formats=dict.fromkeys(columns[4:], ".3f"),
                labels={
                    "beyond": "|mean| > 0.04",
                    "excluding_zero": "binomial interval excludes 0",
                    "t_excluding_zero": "t interval over tasks excludes 0",
                },
                caption="89% intervals: without an effect, 0.11 would be right.",
            )
        ],
    )


def _slices_sentence(frame: pd.DataFrame) -> str:
    if frame.empty:
        return ""
    low, high = frame["excluding_zero"].min(), frame["excluding_zero"].max()
    return (
        f"A study with one split per task, analysed by a binomial model, finds an effect in {percent(low)} to "
        f"{percent(high)} of cases, depending on m and n."
    )


def power_section(analysis: BiasAnalysis) -> Section:
    """How many subsamples and tasks it takes to detect half a point."""
    power = analysis.power
    known = power.dropna(subset=["power"])
    return Section(
        "What could have been found",
        finding=per_experiment(analysis, lambda _, name: _power_sentence(known[known["experiment"] == name])),
        explanation=(
            "A two-sided t test over task means at the 5% level. Variance between tasks and within a task (splits, "
            "noise of training) is estimated from these data; more subsamples reduce only the latter."
        ),
        figures=[Figure("power", "Power against the number of subsamples", figures.power_curves(known), _POWER_CAPTION)]
        if len(known)
        else [],
        tables=[
            Table(
                "power",
                f"To detect a bias of {DETECTABLE_BIAS} with power 0.8",
                power,
                formats=dict.fromkeys(["within_task_sd", "between_tasks_sd", "smallest_detectable"], ".4f")
                | {"power": ".2f"},
                caption="subsamples needed with these tasks; tasks needed with these subsamples; a dash: never, or "
                "unknown where the power is.",
            )
        ],
    )


def _power_sentence(known: pd.DataFrame) -> str:
    if known.empty:
        return "Too few tasks or subsamples to estimate what could have been detected."
    smallest = known["smallest_detectable"]
    return (
        f"With its tasks and subsamples, a cell finds a bias between {smallest.min():.4f} (best cell) and "
        f"{smallest.max():.4f} (worst) four times out of five; {int((known['power'] >= 0.8).sum())} of "
        f"{count(len(known), 'cell')} would find one of {DETECTABLE_BIAS}."
    )


_POWER_CAPTION = f"To find a bias of {DETECTABLE_BIAS} with as many tasks as the cell has."


def provenance_section(analysis: BiasAnalysis) -> Section | None:
    """Rows that come from different code, data or splits."""
    drift, mismatches = analysis.drift, analysis.mismatches
    if drift.empty and mismatches.empty:
        return None
    mixed = drift[drift["mixed"]] if len(drift) else drift
    parts = [f"{len(mixed)} of {count(len(drift), 'comparison')} of base accuracy between values of n differ"]
    if len(mismatches):
        share = mismatches["mismatched"].sum()
        parts.append(f"{share} subsamples of the same number had different test sets in different language models")
    tables = []
    if len(drift):
        numbers = dict.fromkeys(["base", "reference_base"], ".4f") | {"difference": "+.4f", "z": ".1f", "p": ".2g"}
        tables.append(Table("base_drift", "Base accuracy between values of n", drift, formats=numbers))
    if len(mismatches):
        tables.append(Table("test_set_mismatches", "Different test sets under one number", mismatches))
    return Section(
        "Do the rows belong together?",
        finding="; ".join(parts) + ".",
        explanation=(
            "The base arm never sees the n texts, so for a given m its accuracy cannot depend on n. Where it does, the "
            "rows come from different code, library versions or data, and a trend over n is a comparison of these."
        ),
        figures=[Figure("base_drift", "Base accuracy by n", figures.base_by_n(analysis))] if len(drift) else [],
        tables=tables,
    )


def loss_section(analysis: BiasAnalysis) -> Section | None:
    """How well pretraining went, where the trials say so."""
    losses = analysis.losses
    if losses.empty:
        return None
    return Section(
        "How pretraining went",
        finding=(
            f"The last epoch's mean loss lies between {losses[['extra', 'test']].min().min():.2f} and "
            f"{losses[['extra', 'test']].max().max():.2f} nats a predicted token."
        ),
        explanation=(
            "Means over all subsamples of all tasks. The two arms read texts of one source, so their losses should "
            "agree; an experiment with more epochs should have the lower loss, or it was not trained harder."
        ),
        tables=[
            Table(
                "pretraining_loss",
                "Mean pretraining loss",
                losses,
                formats=dict.fromkeys(["extra", "test"], ".4f"),
            )
        ],
    )
