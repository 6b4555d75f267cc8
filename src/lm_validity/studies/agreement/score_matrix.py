"""From the scores table and the two sheets to the arrays that the statistics read: models × benchmarks, by protocol."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.config.groups import Group
from lm_validity.config.plan import Plan, read_cells
from lm_validity.errors import InputError
from lm_validity.studies.agreement.statistics.factors import pretraining_compute
from lm_validity.studies.agreement.statistics.ranking import finite_mean
from lm_validity.tables.reruns import TrainingNoise, reruns_of, training_noise
from lm_validity.tables.schema import PROTOCOLS, TRAINED, read_scores, replay_notes, trained_here
from lm_validity.tables.sheets import (
    NO_STUDY,
    as_in_scores,
    benchmark_metric,
    check_directions,
    of_study,
    read_benchmarks,
    read_models,
    report_rows,
    unique_labels,
)
from lm_validity.tables.standard_errors import CHOICES, SHARES_OF_ITEMS, ErrorCheck, checked_errors, error_notes
from lm_validity.words import listing, with_names

PERPLEXITY = "loglikelihood_rolling"
# Columns of `ScoreMatrix.selected`, by which items are joined to their scores
SELECTED = ("model", "checkpoint", "benchmark", "protocol", "prompt", "prompt_variant", "num_fewshot", "seed")
STUDY = "agreement"  # the study whose models and benchmarks these reports read
FRACTIONS = (*SHARES_OF_ITEMS, "f1", "mcc")
ERROR_RATES = (*FRACTIONS, "error", "error_rate", "err")  # where lower is better: shares of wrong answers


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
    models. `notes` says what was left out or assumed; `error_checks`: standard errors that are not used;
    `trained_here`: a run of the workflow made the fine-tunes.
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
    error_checks: tuple[ErrorCheck, ...] = ()
    trained_here: bool = False
    plan: Plan | None = None
    aside: dict[str, np.ndarray] | None = None
    training: dict[str, dict[str, TrainingNoise]] = field(default_factory=dict)

    @property
    def is_corpus(self) -> np.ndarray:
        """(k,) True for perplexity corpora, which count only where perplexity is compared."""
        return (self.benchmark_facts["output_type"] == PERPLEXITY).to_numpy(dtype=bool)

    @property
    def fractions(self) -> np.ndarray:
        """(k,) True for benchmarks, not corpora, whose scores lie in [0, 1], so that points mean the same on each."""
        within = [np.isnan(scores) | ((scores >= 0) & (scores <= 1)) for scores in self.value.values()]
        return np.logical_and.reduce(within).all(axis=0) & ~self.is_corpus

    @property
    def direction(self) -> np.ndarray:
        """(k,) +1 where a higher score is better, -1 where a lower one is."""
        return np.where(self.benchmark_facts["higher_is_better"].to_numpy(dtype=bool), 1.0, -1.0)

    @property
    def labels(self) -> tuple[str, ...]:
        """(n,) short names for figures, unique."""
        return tuple(self.model_facts["label"])

    @property
    def families(self) -> np.ndarray:
        """(n,) family names, None where unknown."""
        return self.model_facts["family"].to_numpy(dtype=object)

    def oriented(self, protocol: str) -> np.ndarray:
        """(n, k) scores of which more is better."""
        return self.value[protocol] * self.direction

    def measured(self, protocol: str, kind: str = "value") -> np.ndarray:
        """(n, k) oriented scores (or `stderr`) for ranks and predictions, with the cells that earlier scores chose."""
        own = self.oriented(protocol) if kind == "value" else self.stderr[protocol]
        if self.aside is None or protocol != TRAINED:
            return own
        more = self.aside[kind] * (self.direction if kind == "value" else 1.0)
        return np.where(np.isfinite(self.aside["value"]), more, own)

    def sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """(n,) parameters in billions and pretraining compute, NaN where unknown or, compute, kept out by the sheet."""
        parameters = self.model_facts["parameters_b"].to_numpy(float)
        compute = pretraining_compute(parameters, self.model_facts["tokens_b"].to_numpy(float))
        trusted = self.model_facts["in_compute_analysis"].fillna(value=True).to_numpy(dtype=bool)
        return parameters, np.where(trusted, compute, np.nan)

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
        return np.sqrt(np.divide(variance, number, out=error, where=number > 0))

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


def read_score_matrix(
    scores: str | Path,
    models: str | Path,
    benchmarks: str | Path,
    plan: str | Path | None = None,
    also: Collection[str] = (),
    groups: Sequence[Group] = (),
) -> ScoreMatrix:
    """Read the selected test rows of each benchmark's metric, and the plan of what was to be fine-tuned.

    The benchmarks sheet decides which benchmarks count; the models sheet only adds what is known about each
    model. `also`: models of the sheet that are rows although they may have no score. `groups`: whose columns
    `model_facts` has too. Raises InputError for bad
    files, a score without a model or benchmark, an unknown protocol, two selected scores of one model on one
    benchmark, or scores of one benchmark in two units.
    """
    rows = read_scores(scores)
    notes = replay_notes(rows)
    _check_protocols(rows, scores)
    benchmark_sheet = read_benchmarks(benchmarks)
    rows = report_rows(rows, benchmark_sheet, notes)
    model_sheet = as_in_scores(read_models(models, groups), set(rows["model"]))
    notes += _other_study_notes(model_sheet, rows, "model") + _other_study_notes(benchmark_sheet, rows, "benchmark")
    model_sheet, rows = _of_this_study(model_sheet, rows, "model")
    benchmark_sheet, rows = _of_this_study(benchmark_sheet, rows, "benchmark")
    rows, checks = checked_errors(rows, benchmark_sheet)
    reruns, trainings = reruns_of(model_sheet), rows
    rows, used = _last_checkpoint(rows[~rows["model"].isin(reruns)], scores)
    notes += [f"No final checkpoint: the only or last one is used for {listing(used)}."] if used else []
    scored, listed = set(rows["benchmark"]), set(benchmark_sheet["benchmark"])
    notes += with_names(
        {
            "Benchmarks with scores that are not in the benchmarks sheet stay out: {}.": sorted(scored - listed),
            "Benchmarks of the sheet without any score: {}.": sorted(listed - scored),
        }
    )
    rows = rows[rows["benchmark"].isin(benchmark_sheet["benchmark"])]
    rows = benchmark_metric(rows, benchmark_sheet, scores, notes)
    if rows.empty:
        raise InputError(
            f"{scores}: no selected test score of any benchmark in {benchmarks}.",
            "are the sheet's benchmark ids and metrics those of the scores table?",
        )
    rows = _finite_values(rows, scores, notes)
    known = dict.fromkeys(model_sheet["model"])
    scored = set(rows["model"])
    notes += with_names(
        {
            "Models that are not in the models sheet, of unknown family and size: {}.": sorted(scored - set(known)),
            "Models of the sheet without any score: {}.": [m for m in known if m not in scored and m not in reruns],
        }
    )
    # in the order of the sheet, then those that are not in it, by name
    present = scored | set(also)
    names = (*(name for name in known if name in present), *sorted(present - set(known)))
    check_directions(rows, benchmark_sheet, scores)
    notes += direction_notes(rows, benchmark_sheet, scores)
    facts = _benchmark_facts(rows, benchmark_sheet)
    notes += unit_notes(rows, facts, scores) + error_notes(checks)
    columns = tuple(facts["benchmark"])
    if (facts["output_type"] == PERPLEXITY).all():
        raise InputError(
            f"{scores}: scores of perplexity corpora only ({listing(columns)}).",
            "the report compares benchmarks; their rows or their output types in the sheet are missing.",
        )
    planned = None if plan is None else read_cells(plan)
    rows, aside = _chosen_by_scores(rows, planned, names, columns)
    by_protocol = {protocol: rows[rows["protocol"] == protocol] for protocol in PROTOCOLS}
    arrays = {
        kind: {protocol: _pivot(of, names, columns, kind) for protocol, of in by_protocol.items()}
        for kind in ("value", "stderr", "n_items")
    }
    seeded = by_protocol[TRAINED].dropna(subset="seed").groupby("seed", sort=True)
    return ScoreMatrix(
        models=names,
        benchmarks=columns,
        value=arrays["value"],
        stderr=arrays["stderr"],
        n_items=arrays["n_items"],
        by_seed={int(seed): _pivot(of, names, columns, "value") for seed, of in seeded},
        model_facts=_model_facts(names, model_sheet),
        benchmark_facts=facts,
        selected=rows[[*SELECTED, "metric"]].reset_index(drop=True),
        sources=tuple(sorted(rows["source"].dropna().unique())),
        notes=tuple(notes),
        error_checks=tuple(checks),
        trained_here=trained_here(rows),
        training=_training(trainings, reruns, benchmark_sheet, scores),
        plan=planned,
        aside=aside,
    )


def _training(
    rows: pd.DataFrame, reruns: Mapping[str, str], sheet: pd.DataFrame, path: str | Path
) -> dict[str, dict[str, TrainingNoise]]:
    """By protocol and benchmark, from the scores at all checkpoints."""
    rows = rows[rows["benchmark"].isin(sheet["benchmark"]) & rows["model"].isin({*reruns, *reruns.values()})]
    rows = benchmark_metric(rows, sheet, path, []) if len(rows) else rows
    return {protocol: training_noise(rows[rows["protocol"] == protocol], reruns) for protocol in PROTOCOLS}


def _chosen_by_scores(
    rows: pd.DataFrame, plan: Plan | None, models: Sequence[str], benchmarks: Sequence[str]
) -> tuple[pd.DataFrame, dict[str, np.ndarray] | None]:
    """The rows without the fine-tuned cells that earlier scores chose, and those cells' arrays (None: there are none).

    Agreement over cells chosen where models are close is not the agreement of the benchmarks.
    """
    chosen = {pair for pair, cell in (plan or {}).items() if cell.by_scores}
    if not chosen:
        return rows, None
    pairs = zip(rows["model"], rows["benchmark"], rows["protocol"] == TRAINED, strict=True)
    aside = np.array([trained and (model, name) in chosen for model, name, trained in pairs], dtype=bool)
    return rows[~aside], {kind: _pivot(rows[aside], models, benchmarks, kind) for kind in ("value", "stderr")}


def _check_protocols(rows: pd.DataFrame, path: str | Path) -> None:
    unknown = rows[~rows["protocol"].isin(PROTOCOLS)]
    if len(unknown):
        raise InputError(
            f"{path}, row {unknown.index[0]}, column 'protocol': {unknown['protocol'].iloc[0]!r} is not a protocol.",
            f"one of {', '.join(PROTOCOLS)}.",
        )


def _of_this_study(sheet: pd.DataFrame, rows: pd.DataFrame, key: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The sheet and the scores without models (benchmarks) that the sheet gives to other studies only."""
    ours = of_study(sheet, STUDY)
    return sheet[ours].reset_index(drop=True), rows[~rows[key].isin(sheet.loc[~ours, key])]


def _other_study_notes(sheet: pd.DataFrame, rows: pd.DataFrame, key: str) -> list[str]:
    others = sheet[~of_study(sheet, STUDY) & sheet[key].isin(rows[key])]
    sparse = others["studies"] == NO_STUDY
    kind = f"{key.capitalize()}s"
    left_out = (
        f"{kind} with `{NO_STUDY}` in the sheet's column `studies` stay out: {{}}. `lm-validity report` writes that "
        "where fewer than half of the scores are known."
    )
    return with_names(
        {
            f"{kind} of other studies stay out: {{}}.": sorted(others.loc[~sparse, key]),
            left_out: sorted(others.loc[sparse, key]),
        }
    )


def _last_checkpoint(rows: pd.DataFrame, path: str | Path) -> tuple[pd.DataFrame, list[str]]:
    """Rows of the finished model; for a model without a checkpoint called final, those of its only or its last one.

    Also names the models of the second kind with the checkpoint used.
    """
    final = rows["checkpoint"].isna() | (rows["checkpoint"] == "final")
    unfinished = set(rows["model"]) - set(rows.loc[final, "model"])
    kept, used = [rows[final]], []
    for model, group in rows[rows["model"].isin(unfinished)].groupby("model", sort=True):
        progress = group["iteration"].astype("float64").fillna(group["tokens_b"])
        reached = progress.groupby(group["checkpoint"]).transform("max")
        names = group["checkpoint"].unique()
        if len(names) > 1 and reached.isna().any():
            raise InputError(
                f"{path}: {model} has the checkpoints {listing(sorted(names))}, none of them 'final', and how far "
                f"{listing(sorted(group.loc[reached.isna(), 'checkpoint'].unique()))} was trained is not in the table.",
                "fill in 'iteration' or 'tokens_b', or call the checkpoint that counts 'final'.",
            )
        if reached.notna().any():
            group = group[(reached == reached.max()) & (progress.isna() | (progress == reached))]
        kept.append(group)
        used.append(f"{model} ({group['checkpoint'].iloc[0]})")
    return pd.concat(kept), used


def _finite_values(rows: pd.DataFrame, path: str | Path, notes: list[str]) -> pd.DataFrame:
    """Non-finite scores become missing, with a note; negative standard errors and double scores are refused."""
    finite = np.isfinite(rows["value"].to_numpy(dtype=float))
    lost = [f"{m} on {b}" for m, b in zip(rows["model"][~finite], rows["benchmark"][~finite], strict=True)]
    notes += with_names({"Scores without a finite value count as missing: {}.": lost})
    errors = rows["stderr"].to_numpy(dtype=float)
    if (errors < 0).any():
        first = rows[errors < 0].iloc[0]
        raise InputError(
            f"{path}: {first['model']} on {first['benchmark']}, column 'stderr': {first['stderr']} is negative.",
            "leave it empty where unknown.",
        )
    double = rows[rows.duplicated(["model", "benchmark", "protocol", "seed"], keep=False)]
    if len(double):
        first = double.iloc[0]
        raise InputError(
            f"{path}: two selected test scores of {first['model']} on {first['benchmark']} ({first['protocol']}).",
            "set 'selected' to false for all but one of prompt and metric.",
        )
    return rows.assign(
        value=np.where(finite, rows["value"], np.nan), stderr=np.where(np.isfinite(errors), errors, np.nan)
    )


def _model_facts(names: tuple[str, ...], sheet: pd.DataFrame) -> pd.DataFrame:
    facts = sheet.set_index("model").reindex(list(names)).rename_axis("model").reset_index()
    facts["label"] = unique_labels(facts["label"], facts["model"])
    facts["family"] = facts["family"].astype(object).where(facts["family"].notna(), None)
    return facts


def _benchmark_facts(rows: pd.DataFrame, sheet: pd.DataFrame) -> pd.DataFrame:
    """The sheet's rows of benchmarks with scores; direction from the sheet, else the table, else higher is better."""
    facts = sheet[sheet["benchmark"].isin(rows["benchmark"])].reset_index(drop=True)
    in_table = rows.dropna(subset=["higher_is_better"]).groupby("benchmark")["higher_is_better"].first()
    direction = facts["higher_is_better"].fillna(facts["benchmark"].map(in_table).astype("boolean"))
    # a rolling log-likelihood metric (perplexity, bits per byte) is a loss
    facts["higher_is_better"] = direction.where(direction.notna(), facts["output_type"] != PERPLEXITY).astype(bool)
    return facts


def _pivot(rows: pd.DataFrame, models: Sequence[str], benchmarks: Sequence[str], kind: str) -> np.ndarray:
    """Means over seeds; root mean squares for standard errors."""
    values = rows[kind].astype("float64")
    seeds = (values**2 if kind == "stderr" else values).groupby([rows["model"], rows["benchmark"]])
    table = seeds.mean()
    if kind == "value":
        # equal means of different seeds' scores are ties, which the last digits of the sums would break
        lowest = seeds.min()
        table = lowest.where(lowest == seeds.max(), table.round(12))
    table = table.unstack()
    table = table.reindex(index=list(models), columns=list(benchmarks)).to_numpy(dtype=float)
    return np.sqrt(table) if kind == "stderr" else table


# ----------------------------------------------------------------------------------------------------------------------
# Whether scores and their directions can be what the benchmarks sheet says they are.


def unit_notes(rows: pd.DataFrame, facts: pd.DataFrame, path: str | Path) -> list[str]:
    """A note on scores that cannot be fractions of the benchmark's items.

    `rows`: selected rows of SCORES with known values, `facts`: the sheet's rows of their benchmarks. Raises InputError
    for a benchmark of choices with fractions for some models and percentages for others.
    """
    above_one = []
    for fact in facts.itertuples():
        here = rows[(rows["benchmark"] == fact.benchmark) & rows["value"].notna()]
        metrics = [name for name in (fact.metric, *here["metric"]) if isinstance(name, str)]
        name = metrics[0].split(",")[0] if metrics else ""
        if here.empty or fact.output_type == "loglikelihood_rolling" or name not in FRACTIONS:
            continue
        high = here["value"] > 1 + 1e-9  # a mean of ones may end above 1
        if high.any() and not high.all() and name in CHOICES:
            first, second = here[high].iloc[0], here[~high].iloc[0]
            raise InputError(
                f"{path}: {fact.benchmark} has percentages and fractions under {name}: {first['value']:.4g} for "
                f"{first['model']} ({first['protocol']}), {second['value']:.4g} for {second['model']} "
                f"({second['protocol']}).",
                "write accuracies as fractions, 0 to 1, and their standard errors too.",
            )
        if high.any():
            above_one.append(
                f"{fact.benchmark} ({name}: {high.sum()} of {len(here)} scores, up to {here['value'].max():.4g})"
            )
    sentence = "Scores above 1 under a metric that gives fractions. They may be percentages: {}."
    return [sentence.format("; ".join(above_one))] if above_one else []


def direction_notes(rows: pd.DataFrame, sheet: pd.DataFrame, path: str | Path) -> list[str]:
    """Notes on benchmarks whose direction in the scores is not that of the sheet, which wins, or is assumed.

    Raises InputError for a benchmark with both directions in the scores and none in the sheet.
    """
    conflicts: dict[bool, list[str]] = {True: [], False: []}
    for benchmark, ours in zip(sheet["benchmark"], sheet["higher_is_better"], strict=True):
        here = rows[(rows["benchmark"] == benchmark) & rows["higher_is_better"].notna()]
        higher = here["higher_is_better"].astype(bool)
        if pd.isna(ours):
            if higher.nunique() > 1:
                raise InputError(
                    f"{path}: {benchmark} has both directions in the scores: higher_is_better is true for "
                    f"{here.loc[higher, 'model'].iloc[0]}, false for {here.loc[~higher, 'model'].iloc[0]}.",
                    "fill in the column 'higher_is_better' of the benchmarks sheet.",
                )
        elif (higher != ours).any():
            conflicts[bool(ours)].append(f"{benchmark} ({(higher != ours).sum()} of {len(higher)} scores)")
    words = {True: "higher", False: "lower"}
    told = set(rows.loc[rows["higher_is_better"].notna(), "benchmark"])
    unknown = sheet["higher_is_better"].isna() & (sheet["output_type"] != PERPLEXITY)
    assumed = [name for name in sheet.loc[unknown, "benchmark"] if name in set(rows["benchmark"]) - told]
    return [
        f"The benchmarks sheet says that {words[ours]} is better, the scores say {words[not ours]}: "
        f"{'; '.join(benchmarks)}. The sheet's direction is used. If it is wrong, the order of the models is reversed "
        "on that benchmark."
        for ours, benchmarks in conflicts.items()
        if benchmarks
    ] + with_names({"Direction unknown, so higher counts as better: {}.": assumed})
