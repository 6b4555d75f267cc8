"""From the scores table and the two sheets to the arrays that the statistics read: models × benchmarks, by protocol."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lm_validity.config.load import Plan, read_cells
from lm_validity.config.rows import Group
from lm_validity.errors import InputError
from lm_validity.results.put import Rows
from lm_validity.statistics import cluster_codes
from lm_validity.studies.agreement.statistics import ranking
from lm_validity.studies.agreement.statistics.factors import pretraining_compute
from lm_validity.studies.agreement.statistics.ranking import finite_mean
from lm_validity.tables.counted import Sources, count_scores
from lm_validity.tables.items import item_values, items_of_scores, open_items, shared_items, with_chance
from lm_validity.tables.metrics import FRACTIONS, PERPLEXITY
from lm_validity.tables.schema import PROTOCOLS, TRAINED, reruns_of, trained_here, unique_labels
from lm_validity.tables.training import Sampling, TrainingNoise, training_noise
from lm_validity.words import UNDER, listing, with_names

# Columns of `ScoreMatrix.selected`, by which items are joined to their scores
SELECTED = ("model", "checkpoint", "benchmark", "protocol", "prompt", "prompt_variant", "num_fewshot", "seed")
ERRORS = ("stderr", "sampling_error")  # whose squares are averaged over seeds
KINDS = ("value", "n_items", *ERRORS)  # of numbers of a cell
STUDY = "agreement"  # the study whose models and benchmarks these reports read
MINIMUM_FAMILY = 3  # models of a family: with two a tau can only be -1, 0 or 1
# ratios of two models' sizes, at least and at most: of like size, and all pairs whatever their sizes
LIKE_SIZE, ANY_SIZE = (1.0, 2.0), (1.0, None)
DISTANCE_EDGES = (1.25, 2.0, 4.0)  # ratios of two models' sizes that reports tell apart
ERROR_RATES = (*FRACTIONS, "error", "error_rate", "err")  # where lower is better: shares of wrong answers


class Sizes(NamedTuple):
    """Parameters in billions and pretraining compute (models,), NaN where unknown."""

    parameters: np.ndarray
    compute: np.ndarray


@dataclass(frozen=True)
class ScoreMatrix:
    """Scores of n models on k benchmarks.

    `value[protocol]`, `stderr[protocol]` and `n_items[protocol]` are (n, k) arrays, NaN where unknown, in
    the metric's own units and direction; several seeds are averaged (`stderr`: root mean square over seeds,
    since they share the test items). `by_seed` maps each seed to a (n, k) array of its train-before-test scores.
    `model_facts` and `benchmark_facts` are the sheets' rows in the order of `models` and `benchmarks`.
    `selected` names the rows of the table behind the scores and their metrics. `plan`: the cells that were to be
    fine-tuned, None where all were; `aside`: `value` and `stderr` of its cells that earlier scores chose, which are in
    nothing else here. `training`: by protocol and benchmark, from models that were trained again; these reruns are no
    models. `sampling_error[protocol]`: (n, k) the part of `stderr` that is due to sampled answers, NaN where no model
    has two runs; `sampling`: by (protocol, benchmark) how far runs differ. `notes` says what was left out or assumed;
    `overlapping`: benchmarks that are left out since others hold their items; `trained_here`: a run of the workflow
    made the fine-tunes.
    """

    models: tuple[str, ...]
    benchmarks: tuple[str, ...]
    value: dict[str, np.ndarray]
    stderr: dict[str, np.ndarray]
    n_items: dict[str, np.ndarray]
    by_seed: dict[int, np.ndarray]
    model_facts: pd.DataFrame
    benchmark_facts: pd.DataFrame
    selected: pd.DataFrame
    sources: tuple[str, ...]
    notes: tuple[str, ...] = ()
    trained_here: bool = False
    plan: Plan | None = None
    aside: dict[str, np.ndarray] | None = None
    training: dict[str, dict[str, TrainingNoise]] = field(default_factory=dict)
    sampling_error: dict[str, np.ndarray] = field(default_factory=dict)
    sampling: Mapping[tuple[str, str], Sampling] = field(default_factory=dict)
    overlapping: tuple[str, ...] = ()

    @property
    def is_corpus(self) -> np.ndarray:
        """(k,) True for perplexity corpora, which count only where perplexity is compared."""
        return np.asarray((self.benchmark_facts["output_type"] == PERPLEXITY).to_numpy(dtype=bool))

    @property
    def fractions(self) -> np.ndarray:
        """(k,) True for benchmarks, not corpora, whose scores lie in [0, 1], so that points mean the same on each."""
        in_unit_interval = [np.isnan(scores) | ((scores >= 0) & (scores <= 1)) for scores in self.value.values()]
        return np.asarray(np.logical_and.reduce(in_unit_interval).all(axis=0) & ~self.is_corpus)

    @property
    def direction(self) -> np.ndarray:
        """(k,) +1 where a higher score is better, -1 where a lower one is."""
        return np.where(self.benchmark_facts["higher_is_better"].to_numpy(dtype=bool), 1.0, -1.0)

    @property
    def assumed(self) -> np.ndarray:
        """(k,) True where neither the sheet nor the scores say the direction, and higher counts as better."""
        return np.asarray(~self.benchmark_facts["direction_known"].to_numpy(dtype=bool))

    @property
    def labels(self) -> tuple[str, ...]:
        """(n,) short names for figures, unique."""
        return tuple(self.model_facts["label"])

    @property
    def families(self) -> np.ndarray:
        """(n,) family names, None where unknown."""
        return np.asarray(self.model_facts["family"].to_numpy(dtype=object))

    def oriented(self, protocol: str) -> np.ndarray:
        """(n, k) scores of which more is better."""
        return np.asarray(self.value[protocol] * self.direction)

    def measured(self, protocol: str, kind: str = "value") -> np.ndarray:
        """(n, k) oriented scores (or `stderr`) for ranks and predictions, with the cells that earlier scores chose."""
        own_values = self.oriented(protocol) if kind == "value" else self.stderr[protocol]
        if self.aside is None or protocol != TRAINED:
            return own_values
        values_aside = self.aside[kind] * (self.direction if kind == "value" else 1.0)
        return np.where(np.isfinite(self.aside["value"]), values_aside, own_values)

    def sizes(self) -> Sizes:
        """(n,) parameters in billions and pretraining compute, NaN where unknown or, compute, kept out by the sheet."""
        parameters = self.model_facts["parameters_b"].to_numpy(float)
        compute = pretraining_compute(parameters, self.model_facts["tokens_b"].to_numpy(float))
        trusted = self.model_facts["in_compute_analysis"].fillna(value=True).to_numpy(dtype=bool)
        return Sizes(parameters, np.where(trusted, compute, np.nan))

    def seed_error(self, protocol: str) -> np.ndarray:
        """(n, k) standard errors of scores from repeated fine-tuning, NaN where a benchmark has no repeated cell.

        The variance between seeds, pooled over the models of a benchmark, over the number of seeds of the cell. Seeds
        share the test items, so this comes on top of `stderr`.
        """
        error = np.full(self.value[protocol].shape, np.nan)
        if protocol != TRAINED or len(self.by_seed) < 2:
            return error
        seeds = np.array(list(self.by_seed.values()))
        number = np.isfinite(seeds).sum(axis=0)
        squares = np.nansum((seeds - finite_mean(seeds, axis=0)) ** 2, axis=0)
        freedom = np.maximum(number - 1, 0).sum(axis=0)
        variance = np.divide(squares.sum(axis=0), freedom, out=np.full(len(freedom), np.nan), where=freedom > 0)
        return np.asarray(np.sqrt(np.divide(variance, number, out=error, where=number > 0)))

    def training_error(self, protocol: str) -> np.ndarray:
        """(n, k) standard deviation of a score between trainings of one model, NaN where it was not measured."""
        noise = self.training.get(protocol, {})
        row = [noise[name].sd if name in noise else np.nan for name in self.benchmarks]
        return np.tile(row, (len(self.models), 1))

    def planned(self, protocol: str) -> np.ndarray:
        """(n, k) True unless the plan leaves the cell out; direct scores are always planned."""
        if self.plan is None or protocol != TRAINED:
            return np.ones(self.value[protocol].shape, dtype=bool)
        return np.array([[(model, name) in self.plan for name in self.benchmarks] for model in self.models])

    def without(self, names: Collection[str], note: str) -> "ScoreMatrix":
        """The matrix without these benchmarks; `note` says why."""
        kept = ~np.isin(self.benchmarks, list(names))
        value, stderr, n_items, sampling = (
            {protocol: values[:, kept] for protocol, values in of_kind.items()}
            for of_kind in (self.value, self.stderr, self.n_items, self.sampling_error)
        )
        return replace(
            self,
            value=value,
            stderr=stderr,
            n_items=n_items,
            sampling_error=sampling,
            benchmarks=tuple(np.array(self.benchmarks, dtype=object)[kept]),
            by_seed={seed: values[:, kept] for seed, values in self.by_seed.items()},
            benchmark_facts=self.benchmark_facts[kept].reset_index(drop=True),
            selected=self.selected[~self.selected["benchmark"].isin(names)].reset_index(drop=True),
            aside=None if self.aside is None else {kind: values[:, kept] for kind, values in self.aside.items()},
            notes=(*self.notes, note),
            overlapping=(*self.overlapping, *names),
        )

    def labelled(self, rows: Rows) -> Rows:
        """The rows of a report, with the models by their `labels`."""
        labels = dict(zip(self.models, self.labels, strict=True))
        return Rows(rows.study, (row._replace(subject=labels.get(row.subject or "", row.subject)) for row in rows))

    def task_names(self) -> list[str]:
        """Benchmarks that are not perplexity corpora, in order."""
        return [name for name, corpus in zip(self.benchmarks, self.is_corpus, strict=True) if not corpus]

    def has(self, protocol: str) -> bool:
        """Whether any score of a benchmark (not a corpus) is known under `protocol`."""
        return bool(np.isfinite(self.value[protocol][:, ~self.is_corpus]).any())

    @property
    def protocols(self) -> list[str]:
        """The protocols that have scores."""
        return [protocol for protocol in PROTOCOLS if self.has(protocol)]


def read_score_matrix(sources: Sources, also: Collection[str] = (), groups: Sequence[Group] = ()) -> ScoreMatrix:
    """Read the selected test rows of each benchmark's metric, and the plan of what was to be fine-tuned.

    `also`: models of the sheet that are rows although they may have no score. `groups`: whose columns `model_facts` has
    too. Raises InputError as `count_scores` and `Counted.last`, and for scores of perplexity corpora only.
    """
    counted = count_scores(sources, study=STUDY, groups=groups)
    last = counted.last()
    everyone = set(last.rows["model"])
    if not also:  # of a plan's next round every model is a row
        last = last.without_copies("benchmark", "protocol")
    rows, notes, facts, model_sheet = last.rows, list(last.notes), last.benchmarks, last.models
    reruns = reruns_of(model_sheet)
    model_names = dict.fromkeys(model_sheet["model"])
    scored = set(rows["model"])
    notes += with_names(
        {
            "Models that are not in the models sheet, of unknown family and size: {}.": sorted(
                everyone - set(model_names)
            ),
            "Models of the sheet without any score: {}.": [m for m in model_names if m not in {*everyone, *reruns}],
        }
    )
    # in the order of the sheet, then those that are not in it, by name
    present = scored | set(also)
    names = (*(name for name in model_names if name in present), *sorted(present - set(model_names)))
    columns = tuple(facts["benchmark"])
    if (facts["output_type"] == PERPLEXITY).all():
        raise InputError(
            f"{sources.scores}: scores of perplexity corpora only ({listing(columns)}).",
            "the report compares benchmarks; their rows or their output types in the sheet are missing.",
        )
    planned = None if sources.plan is None else read_cells(sources.plan)
    # agreement over cells that earlier scores chose, where models are close, is not the agreement of the benchmarks
    chosen = {pair for pair, cell in (planned or {}).items() if cell.by_scores}
    cells = zip(rows["model"], rows["benchmark"], rows["protocol"] == TRAINED, strict=True)
    is_aside = np.array([trained and (model, name) in chosen for model, name, trained in cells], dtype=bool)
    aside = _pivot(rows[is_aside], names, columns) if chosen else None
    rows = rows[~is_aside]
    model_facts = model_sheet.set_index("model").reindex(list(names)).rename_axis("model").reset_index()
    model_facts["label"] = unique_labels(model_facts["label"], model_facts["model"])
    model_facts["family"] = model_facts["family"].astype(object).where(model_facts["family"].notna(), None)
    by_protocol = {protocol: rows[rows["protocol"] == protocol] for protocol in PROTOCOLS}
    pivots = {protocol: _pivot(part, names, columns) for protocol, part in by_protocol.items()}
    arrays = {kind: {protocol: pivot[kind] for protocol, pivot in pivots.items()} for kind in KINDS}
    seeded = by_protocol[TRAINED].dropna(subset="seed").groupby("seed", sort=True)
    return ScoreMatrix(
        models=names,
        benchmarks=columns,
        value=arrays["value"],
        stderr=arrays["stderr"],
        n_items=arrays["n_items"],
        by_seed={int(seed): _pivot(seed_rows, names, columns)["value"] for seed, seed_rows in seeded},
        model_facts=model_facts,
        benchmark_facts=with_chance(facts, sources.items),
        selected=rows[[*SELECTED, "metric"]].reset_index(drop=True),
        sources=tuple(sorted(rows["source"].dropna().unique())),
        notes=tuple(notes),
        trained_here=trained_here(rows),
        training={p: training_noise(counted.rows[counted.rows["protocol"] == p], reruns) for p in PROTOCOLS},
        plan=planned,
        aside=aside,
        sampling_error=arrays["sampling_error"],
        sampling=counted.sampling,
    )


def _pivot(rows: pd.DataFrame, models: Sequence[str], benchmarks: Sequence[str]) -> dict[str, np.ndarray]:
    """Of each of `KINDS` means over seeds (models, benchmarks); root mean squares for standard errors."""
    row_of, column_of = ({name: index for index, name in enumerate(names)} for names in (models, benchmarks))
    columns = np.array([column_of.get(name, -1) for name in rows["benchmark"]], dtype=int)
    cell = len(benchmarks) * np.array([row_of.get(name, -1) for name in rows["model"]], dtype=int) + columns
    is_shown = (columns >= 0) & (cell >= 0)
    numbers = {kind: rows[kind].astype("float64").to_numpy(dtype=float)[is_shown] for kind in KINDS}
    squares = {kind: values**2 if kind in ERRORS else values for kind, values in numbers.items()}
    seeds = pd.DataFrame(squares, dtype=float).groupby(cell[is_shown])
    means = seeds.mean()
    # equal means of different seeds' scores are ties, which the last digits of the sums would break
    lowest, values = seeds["value"].min(), means["value"]
    means["value"] = lowest.where(lowest == seeds["value"].max(), values.round(12))
    arrays = {}
    for kind in KINDS:
        table = np.full(len(models) * len(benchmarks), np.nan)
        table[means.index] = np.sqrt(means[kind]) if kind in ERRORS else means[kind]
        arrays[kind] = table.reshape(len(models), len(benchmarks))
    return arrays


# ----------------------------------------------------------------------------------------------------------------------
# Sizes and families of the models, and the noise of their scores.


def measurement_error(matrix: ScoreMatrix, protocol: str) -> np.ndarray:
    """(models, benchmarks) standard errors of the scores from items and, where several were trained, from seeds of the
    fine-tune and from trainings of the model.

    A benchmark without repeated trainings has the noise of its items alone. NaN where standard errors are.
    """
    errors = matrix.stderr[protocol], matrix.seed_error(protocol), matrix.training_error(protocol)
    stderr, seed_error, training_error = (error[:, ~matrix.is_corpus] for error in errors)
    return np.asarray(np.sqrt(stderr**2 + np.nan_to_num(seed_error) ** 2 + np.nan_to_num(training_error) ** 2))


def size_ratios(size: np.ndarray) -> np.ndarray:
    """(models, models) the larger over the smaller `size` (models,), less rounding; NaN where one is unknown."""
    logarithm = np.log(np.where(size > 0, size, np.nan))
    return np.asarray(np.exp(np.abs(logarithm[:, None] - logarithm)) * (1 - 1e-9))


def distance_groups(sizes: Sizes) -> np.ndarray:
    """(pairs,) numbers of the groups of pairs of models, as `pair_signs` has them, that no distance in size or compute
    of a report divides."""
    pairs, codes = np.triu_indices(len(sizes.parameters), 1), []
    for size in sizes:
        ratio = size_ratios(size)[pairs]
        codes.append(np.where(np.isnan(ratio), len(DISTANCE_EDGES) + 1, np.digitize(ratio, DISTANCE_EDGES, right=True)))
    by_size, by_compute = codes
    group = (len(DISTANCE_EDGES) + 2) * by_size + by_compute
    present = np.bincount(group) > 0
    return np.asarray((np.cumsum(present) - 1)[group])


def family_members(families: np.ndarray) -> dict[str, np.ndarray]:
    """Indices of the models of each family, in order of first appearance."""
    return {name: np.flatnonzero(families == name) for name in dict.fromkeys(families) if name is not None}


def tuned_members(matrix: ScoreMatrix) -> dict[str, np.ndarray]:
    """Indices of base and of instruction-tuned models; models of unknown kind are in neither."""
    tuned = matrix.model_facts["instruction_tuned"]
    return {
        "base": np.flatnonzero(tuned.eq(other=False).fillna(value=False)),
        "instruction_tuned": np.flatnonzero(tuned.eq(other=True).fillna(value=False)),
    }


# ----------------------------------------------------------------------------------------------------------------------
# What items tell: which models differ, given that they answered the same questions, and benchmarks that share them.


_KEY = [name for name in SELECTED if name != "benchmark"]
_COLUMNS = [*_KEY, "run", "split", "doc_id", "subject", "correct", "metric_values"]
TESTED = {  # how the differences on benchmarks of one protocol are tested and what is left out, in sentences
    "paired": "differences on {} are tested item by item (McNemar's test).",
    "clustered": "differences on {} are tested item by item, with their subjects as clusters.",
    "unpaired": "the metric of {} is not the mean of its items, so it is tested by standard errors.",
    "left_out": "items do not give the score of {}, so these models are tested by standard errors there.",
    "disjoint": "models have no item in common on {}, so they are tested by standard errors.",
    "trained": "differences on {} are tested by standard errors and the noise of training, which items do not show.",
    "repeated": "some items appear more than once for one model and seed, and are averaged: {}.",
}


def use_paired_tests(signs: dict[str, ranking.PairSigns], path: str | Path, matrix: ScoreMatrix) -> list[str]:
    """Put the paired test into `signs` (by protocol) wherever the items give the benchmark's score. Returns what was
    tested how, in sentences.

    A benchmark whose noise of training is known keeps the test from standard errors and that noise: the paired test is
    about these very trainings. A metric that is not the mean of its items (Matthews correlation, F1) keeps it too, and
    so does a model whose items do not make up its score, or that shares none with the other model. One benchmark is
    read at a time: a table of items may be larger than memory. Items have the metric's own direction, as `matrix.value`
    has; signs say which model is better.
    """
    table = open_items(path)
    tested_how: dict[str, dict[str, list[str]]] = {protocol: {how: [] for how in TESTED} for protocol in signs}
    for column, task in enumerate(matrix.task_names()):
        items = _selected_items(table, matrix, task)
        index = matrix.benchmarks.index(task)
        for protocol, tested in tested_how.items():
            rows = items[items["protocol"] == protocol]
            if rows.empty:
                continue
            if task in matrix.training.get(protocol, {}):
                tested["trained"].append(task)
                continue
            if (rows["repeats"] > 1).any():
                tested["repeated"].append(f"{task} ({int((rows['repeats'] > 1).sum())})")
            by_model = rows.pivot(index="model", columns="doc_id", values="correct")
            correct = by_model.reindex(list(matrix.models)).to_numpy(dtype=float)
            subjects = rows.drop_duplicates("doc_id").set_index("doc_id")["subject"].reindex(by_model.columns)
            labels = subjects.to_numpy(dtype=str)
            score = matrix.value[protocol][:, index]
            made_up = np.abs(ranking.finite_mean(correct, axis=1) - score) <= 1e-6
            has_other_scores = np.isfinite(correct).any(axis=1) & np.isfinite(score) & ~made_up
            if made_up.sum() <= has_other_scores.sum():  # of a metric that is something else a few may agree by chance
                tested["unpaired"].append(task)
                continue
            tested["left_out"] += [f"{matrix.labels[i]} on {task}" for i in np.flatnonzero(has_other_scores)]
            oriented = matrix.direction[index] * np.where(made_up[:, None], correct, np.nan)
            better = ranking.paired_signs(oriented, clusters=labels)
            if not better.known.any():
                tested["disjoint"].append(task)
                continue
            apart = int((made_up[better.first] & made_up[better.second] & (better.known[:, 0] == 0)).sum())
            if apart:
                tested["disjoint"].append(f"{task} ({apart} pairs of models)")
            signs[protocol] = ranking.replace_column(signs[protocol], column, better)
            tested["paired" if cluster_codes(labels) is None else "clustered"].append(task)
    sentences = [
        f"{UNDER[protocol].capitalize()}, {sentence}"
        for protocol, tested in tested_how.items()
        for sentence in with_names({sentence: tested[how] for how, sentence in TESTED.items()})
    ]
    return sentences or [f"No item of {path} belongs to a selected score: significance is from standard errors."]


SHOWN = 3  # models whose answers tell whether two benchmarks share items
OVERLAP = (
    "Benchmarks that share items are one: of {} the one with most items counts, so {} left out of the agreement. The "
    "same items twice would agree with themselves."
)


def without_shared_items(matrix: ScoreMatrix, path: str | Path) -> ScoreMatrix:
    """The matrix with one benchmark, that of most items, of those that share items by the answers of a few models."""
    table, tasks = open_items(path), matrix.task_names()
    for protocol in matrix.protocols:
        scored = np.isfinite(matrix.value[protocol][:, ~matrix.is_corpus]).sum(axis=1)
        models = [matrix.models[index] for index in np.argsort(-scored, kind="stable")[:SHOWN]]
        chosen = pc.field("benchmark").isin(tasks) & pc.field("model").isin(models)
        columns = ["model", "benchmark", "protocol", "split", "doc_id", "gold", "doc_hash", "correct"]
        rows = table.to_table(columns=[name for name in columns if name in table.schema.names], filter=chosen)
        answers = rows.to_pandas()
        answers = answers[(answers["protocol"] == protocol) & (answers["split"].fillna("test") == "test")]
        for group in shared_items(answers.dropna(subset="correct")):
            sizes = group.documents.groupby(level=0).size()
            first = max(group.benchmarks, key=lambda name: (sizes[name], -tasks.index(name)))
            others = [name for name in group.benchmarks if name != first]
            are = "is" if len(others) == 1 else "are"
            matrix = matrix.without(others, OVERLAP.format(listing(group.benchmarks), f"{listing(others)} {are}"))
        if len(answers):
            break
    return matrix


def _selected_items(table: ds.Dataset, matrix: ScoreMatrix, task: str) -> pd.DataFrame:
    """Items behind the selected scores of one benchmark: `model, protocol, doc_id, subject, correct`, over seeds and
    runs. `repeats`: most rows that one document has under one seed and run.
    """
    columns = [name for name in _COLUMNS if name in table.schema.names]
    rows = table.to_table(columns=columns, filter=pc.field("benchmark") == task)
    selected = matrix.selected[matrix.selected["benchmark"] == task]
    metric = next(iter(selected["metric"].dropna()), None)
    items = rows.select([name for name in columns if name != "metric_values"]).to_pandas()
    items = items.assign(correct=item_values(rows, metric).to_pandas()).reindex(columns=_COLUMNS)
    items = items_of_scores(items, selected, _KEY)
    repeats = items.groupby(["model", "protocol", "doc_id", "seed", "run"], dropna=False)["correct"].transform("size")
    means = items.assign(repeats=repeats).groupby(["model", "protocol", "doc_id"], as_index=False)
    return means.agg({"correct": "mean", "repeats": "max", "subject": "first"})
