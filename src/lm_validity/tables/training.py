"""How far and how often models were trained, and how often they were asked: checkpoints in their order, the noise of
training, and sampled runs, which are averaged so that one score stands for a model."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.statistics import error_of_mean, far_runs, spread_of_runs, typical_spread
from lm_validity.words import Reason, ReasonCode, count, with_names

# ----------------------------------------------------------------------------------------------------------------------
# How far. Tokens say it; steps do where tokens are not known at all checkpoints.


def training_order(iterations: np.ndarray, tokens_b: np.ndarray) -> np.ndarray:
    """Indices that put checkpoints (n,) in order of training, by tokens, else by iteration (NaN: unknown).

    Where neither is known of all, those without an iteration come last: that is where a final checkpoint stands.
    """
    progress = iterations if np.isnan(tokens_b).any() else tokens_b
    return np.argsort(progress, kind="stable")


def last_iterations(rows: pd.DataFrame) -> pd.Series:
    """The most steps that any score of a model says, by model; null where none says any."""
    return rows.groupby("model")["iteration"].max()


def progress(rows: pd.DataFrame) -> pd.Series:
    """How far the model of each score was trained: billions of tokens where any curve has these at two checkpoints,
    else steps; NaN where unknown."""
    return rows["tokens_b" if in_tokens(rows) else "iteration"].astype("float64")


def in_tokens(rows: pd.DataFrame) -> bool:
    """Whether any learning curve has tokens at two of its checkpoints, so that curves are drawn over tokens."""
    n_with_tokens = rows["tokens_b"].notna().groupby([rows["benchmark"], rows["model"]]).sum()
    return bool((n_with_tokens > 1).any())


# ----------------------------------------------------------------------------------------------------------------------
# Models that were trained twice: the noise of training, which no number of items shows.

LAST_CHECKPOINTS = 5  # of which the noise is the mean: those of one training hardly differ, so one would do
NOT_MEASURED = Reason(
    "The noise of training was not measured: the models sheet names no second training of a model (column rerun_of).",
    ReasonCode.NO_RERUNS,
)


class TrainingNoise(NamedTuple):
    """How far a score moves if the model is trained again: `sd`, between trainings of one model on the same items, in
    the score's unit; `reruns`: its degrees of freedom."""

    sd: float
    reruns: int


def training_noise(rows: pd.DataFrame, reruns: Mapping[str, str]) -> dict[str, TrainingNoise]:
    """The noise of training by benchmark, from scores (`model, benchmark, checkpoint, iteration, tokens_b, value`) of
    one protocol and metric.

        sd^2 = sum over models of (their squared deviations from the mean of their trainings, averaged over the last
               five checkpoints that all of these have) / sum of (trainings - 1)

    Several scores of a checkpoint (seeds of a fine-tune) are averaged. Trainings of one model have the same schedule,
    so checkpoints of one name are one point of training. Benchmarks without a model of which two trainings have a
    checkpoint in common are absent.
    """
    rows = rows.assign(checkpoint=rows["checkpoint"].fillna("final"), root=rows["model"].map(reruns))
    rows["root"] = rows["root"].where(rows["root"].notna(), rows["model"])
    rows = rows[rows["root"].isin(set(reruns.values()))]
    noise: dict[str, TrainingNoise] = {}
    for benchmark, of_benchmark in rows.groupby("benchmark", sort=True):
        parts = []
        for _, group in of_benchmark.groupby("root", sort=True):
            points = group.groupby("checkpoint")[["iteration", "tokens_b"]].max().astype("Float64")
            order = training_order(*points.to_numpy(dtype=float, na_value=np.nan).T)
            values = group.pivot_table(index="checkpoint", columns="model", values="value")
            values = values.reindex(points.index[order]).dropna().tail(LAST_CHECKPOINTS)
            if values.shape[1] > 1 and len(values):
                parts.append((float(values.var(axis=1, ddof=1).mean()), values.shape[1] - 1))
        if parts:
            variances, freedom = np.array(parts).T
            sd = float(np.sqrt(np.average(variances, weights=freedom)))
            noise[str(benchmark)] = TrainingNoise(sd, int(freedom.sum()))
    return noise


# ----------------------------------------------------------------------------------------------------------------------
# Sampled runs in a table of scores.

# what two runs of one score have in common
_SAME = ("model", "checkpoint", "iteration", "tokens_b", "benchmark", "protocol", "prompt", "prompt_variant",
         "num_fewshot", "seed", "split", "metric")  # fmt: skip


class Sampling(NamedTuple):
    """How far the score of one model moves from run to run on a benchmark: `models` with at least two runs; `spread`,
    the standard deviation between runs of a typical model, d, in the score's unit; `share` of sampling in one run's
    squared error s², d² / s², at most 1. Both NaN where unknown."""

    models: int
    spread: float
    share: float


class Averaged(NamedTuple):
    """The rows with one score for all runs, `runs` and `sampling_error` beside it; the noise by (protocol, benchmark);
    what was averaged and what stays out."""

    rows: pd.DataFrame
    noise: dict[tuple[str, str], Sampling]
    notes: list[str]


def average_runs(rows: pd.DataFrame, source: object) -> Averaged:
    """The mean over the runs of each score, with the error for other items and other runs.

    rows: of SCORES, with a column `run`. A score's standard error becomes `error_of_mean`(s, d, K), with s the
    root mean square of its runs' errors, d the typical spread between runs of the benchmark's models, and K its runs.
    `sampling_error` is the part d / sqrt(K), NaN where a benchmark has no model with two runs. A model's likeliest
    answers (no run) stay out where it has runs too, as do runs with another number of items than most of the model's;
    both are counted. Raises InputError where one run of a score is there twice.
    """
    rows = rows.assign(runs=pd.array([pd.NA] * len(rows), "Int64"), sampling_error=np.nan)
    if "run" not in rows or rows["run"].isna().all():
        return Averaged(rows, {}, [])
    rows, notes = _comparable(rows, source)
    sampled = rows[rows["run"].notna()]
    sampled = sampled.assign(_key=sampled.groupby(list(_SAME), dropna=False, sort=False).ngroup())
    noise = {key: _sampling(group) for key, group in sampled.groupby(["protocol", "benchmark"], sort=True)}
    means = sampled.drop_duplicates("_key")  # in the order of the groups
    grouped = sampled.assign(_square=sampled["stderr"].astype("float64") ** 2).groupby("_key", sort=False)
    number, one_run = grouped.size().to_numpy(), np.sqrt(grouped["_square"].mean().to_numpy(dtype=float))
    spread = np.array([noise[key].spread for key in zip(means["protocol"], means["benchmark"], strict=True)])
    means = means.assign(
        value=grouped["value"].mean().to_numpy(),
        stderr=error_of_mean(one_run, spread, number),
        runs=pd.array(number, "Int64"),
        sampling_error=spread / np.sqrt(number),
        run=pd.array([pd.NA] * len(means), "Int64"),
    )
    if len(several := number[number > 1]):
        many = f"{several.min()} to {several.max()}" if several.min() < several.max() else f"{several.max()}"
        notes = [f"Sampled runs are averaged: {many} runs of each of {count(len(several), 'score')}.", *notes]
    notes += _far_runs(sampled)
    together = pd.concat([rows[rows["run"].isna()], means.drop(columns="_key")]).sort_index()
    return Averaged(together, {key: sampling for key, sampling in noise.items() if sampling.models}, notes)


def _comparable(rows: pd.DataFrame, source: object) -> tuple[pd.DataFrame, list[str]]:
    """The rows without those that are no run among runs, and without runs on other items; notes that count them."""
    keys = [rows[name] for name in _SAME]
    runs = rows["run"].notna()
    twice = rows[runs & rows.duplicated([*_SAME, "run"], keep=False)]
    for row in twice.itertuples():
        cell = f"run {row.run} of {row.model} on {row.benchmark} ({row.protocol})"
        raise InputError(f"{source}: two scores of {cell}.", "number the runs in the column `run`.")
    mixed = ~runs & runs.groupby(keys, dropna=False).transform("any")
    items = rows["n_items"].where(runs)
    commonest_count = items.groupby(keys, dropna=False).transform(commonest)
    differs = runs & items.notna() & (items != commonest_count).fillna(value=False)
    note = with_names({"Where sampled runs are there, the likeliest answers stay out: {}.": _named(rows[mixed])})
    note += with_names({"Runs with another number of items than most stay out: {}.": _named(rows[differs])})
    return rows[~mixed & ~differs], note


def commonest(values: pd.Series, tie: Callable[[pd.Index], float | str] = max) -> float | str:
    """The commonest of known values, of a tie the larger by default; NaN where none is known."""
    times = values.value_counts()
    return tie(times.index[times == times.max()]) if len(times) else float("nan")


def _named(rows: pd.DataFrame) -> list[str]:
    return [f"{model} on {name}" for model, name in dict.fromkeys(zip(rows["model"], rows["benchmark"], strict=True))]


def _far_runs(sampled: pd.DataFrame) -> list[str]:
    """A note on runs that are far from the others of their score: they count, and may move its mean."""
    sizes = sampled["_key"].value_counts()
    far_names, tests = list[str](), int(sizes[sizes > 2].sum())
    for _, group in sampled.groupby(["protocol", "benchmark"], sort=True) if tests else ():
        numbered = group.assign(_n=group.groupby("_key", sort=False).cumcount()).set_index(["_key", "_n"])
        table = numbered["value"].unstack()
        squares = (numbered["stderr"].astype("float64") ** 2).groupby(level="_key").mean()
        for place, number in np.argwhere(far_runs(table.to_numpy(float), np.sqrt(squares.to_numpy(float)), tests)):
            row = numbered.loc[(table.index[place], table.columns[number])]
            rest_mean = np.nanmean(np.delete(table.to_numpy(float)[place], number))
            values = f"{row['value']:.3g}, mean of the others {rest_mean:.3g}"
            far_names.append(f"{row['model']} on {row['benchmark']}, run {row['run']} ({values})")
    return with_names({"Runs far from the others of the same score are averaged with them: {}.": far_names})


def _sampling(group: pd.DataFrame) -> Sampling:
    """The noise of one benchmark under one protocol. Checkpoints and seeds of a model are as models of their own."""
    numbered = group.assign(_n=group.groupby("_key", sort=False).cumcount())
    table = numbered.pivot_table(index="_key", columns="_n", values="value").to_numpy(float)
    squares = spread_of_runs(table) ** 2
    errors = (group["stderr"].astype("float64") ** 2).groupby(group["_key"]).mean().to_numpy(float)
    is_known = np.isfinite(squares) & np.isfinite(errors)
    share = float(squares[is_known].mean() / errors[is_known].mean()) if is_known.any() else float("nan")
    return Sampling(int(np.isfinite(squares).sum()), typical_spread(table), min(share, 1.0))
