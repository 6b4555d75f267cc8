"""How far and how often models were trained, and how often they were asked: checkpoints in their order, the noise of
training, and sampled runs, which are averaged so that one score stands for a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


def checkpoints_in_order(rows: pd.DataFrame) -> list[str]:
    """The names of the checkpoints of scores in order of training; a null name is `final`."""
    points = rows.groupby(rows["checkpoint"].fillna("final"))[["iteration", "tokens_b"]].max().astype("Float64")
    order = training_order(*points.to_numpy(dtype=float, na_value=np.nan).T)
    result: list[str] = points.index[order].tolist()
    return result


# ----------------------------------------------------------------------------------------------------------------------
# Models that were trained twice: the noise of training, which no number of items shows.

LAST_CHECKPOINTS = 5  # of which the noise is the mean: those of one training hardly differ, so one would do
NOT_MEASURED = Reason(
    "The noise of training was not measured: the models sheet names no second training of a model (column rerun_of).",
    ReasonCode.NO_RERUNS,
)


@dataclass(frozen=True)
class TrainingNoise:
    """How far a score moves if the model is trained again.

    sd: between trainings of one model, in the score's unit, on the same items. reruns: its degrees of freedom.
    """

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
    variances: dict[str, list[tuple[float, int]]] = {}
    for (benchmark, _), group in rows.groupby(["benchmark", "root"], sort=True):
        values = group.pivot_table(index="checkpoint", columns="model", values="value")
        values = values.reindex(checkpoints_in_order(group)).dropna()
        if values.shape[1] < 2 or values.empty:
            continue
        variance = float(values.tail(LAST_CHECKPOINTS).var(axis=1, ddof=1).mean())
        variances.setdefault(benchmark, []).append((variance, values.shape[1] - 1))
    return {
        benchmark: TrainingNoise(
            float(
                np.sqrt(np.average([part_noise for part_noise, _ in parts], weights=[number for _, number in parts]))
            ),
            sum(number for _, number in parts),
        )
        for benchmark, parts in variances.items()
    }


# ----------------------------------------------------------------------------------------------------------------------
# Sampled runs in a table of scores.

# what two runs of one score have in common
_SAME = ("model", "checkpoint", "iteration", "tokens_b", "benchmark", "protocol", "prompt", "prompt_variant",
         "num_fewshot", "seed", "split", "metric")  # fmt: skip


@dataclass(frozen=True)
class Sampling:
    """How far the score of one model moves from run to run on a benchmark, in the score's unit.

    models: with at least two runs. fewest, most: their runs. spread: the standard deviation between runs of a typical
    model, d. one_run: the root mean square of the standard errors of one run, s; NaN where unknown. share: of sampling
    in one run's squared error, d² / s², at most 1.
    """

    models: int
    fewest: int
    most: int
    spread: float
    one_run: float
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
    runs = rows["run"].notna() if "run" in rows else pd.Series(data=False, index=rows.index)
    if not runs.any():
        return Averaged(rows.assign(runs=pd.array([pd.NA] * len(rows), "Int64"), sampling_error=np.nan), {}, [])
    rows, notes = _comparable(rows, source)
    runs = rows["run"].notna()
    sampled = rows[runs].copy()
    sampled["_key"] = sampled.groupby(list(_SAME), dropna=False, sort=False).ngroup()
    noise = {key: _sampling(group) for key, group in sampled.groupby(["protocol", "benchmark"], sort=True)}
    grouped = sampled.assign(_square=sampled["stderr"].astype("float64") ** 2).groupby("_key", sort=False)
    means = sampled.drop_duplicates("_key").set_index("_key", drop=False)
    number_of_runs = grouped.size()
    spread = np.array([number_or_nan(noise[p, b]) for p, b in zip(means["protocol"], means["benchmark"], strict=True)])
    one_run = np.sqrt(grouped["_square"].mean().reindex(means.index).to_numpy(dtype=float))
    k = number_of_runs.reindex(means.index).to_numpy(dtype=float)
    means = means.assign(
        value=grouped["value"].mean().reindex(means.index),
        stderr=error_of_mean(one_run, spread, k),
        runs=pd.array(k.astype(int), "Int64"),
        sampling_error=spread / np.sqrt(k),
        run=pd.array([pd.NA] * len(means), "Int64"),
    ).drop(columns="_key")
    single_rows = rows[~runs].assign(runs=pd.array([pd.NA] * int((~runs).sum()), "Int64"), sampling_error=np.nan)
    several = number_of_runs[number_of_runs > 1]
    if len(several):
        low, high = int(several.min()), int(several.max())
        many = f"{low} to {high}" if low < high else f"{low}"
        notes = [f"Sampled runs are averaged: {many} runs of each of {count(len(several), 'score')}.", *notes]
    notes += _far_runs(sampled)
    together = pd.concat([single_rows, means.set_index(sampled.drop_duplicates("_key").index)]).sort_index()
    return Averaged(together, {key: sampling for key, sampling in noise.items() if sampling.models}, notes)


def number_or_nan(sampling: Sampling) -> float:
    """The spread between runs, NaN where no model has two."""
    return sampling.spread if sampling.models else float("nan")


def _comparable(rows: pd.DataFrame, source: object) -> tuple[pd.DataFrame, list[str]]:
    """The rows without those that are no run among runs, and without runs on other items; notes that count them."""
    keys = [rows[name] for name in _SAME]
    runs = rows["run"].notna()
    twice = rows[runs & rows.duplicated([*_SAME, "run"], keep=False)]
    for row in twice.itertuples():
        raise InputError(
            f"{source}: two scores of run {row.run} of {row.model} on {row.benchmark} ({row.protocol}).",
            "keep one of them, or number the runs in the column `run`.",
        )
    mixed = ~runs & runs.groupby(keys, dropna=False).transform("any")
    items = rows["n_items"].where(runs)
    commonest_count = items.groupby(keys, dropna=False).transform(commonest)
    differs = runs & items.notna() & (items != commonest_count).fillna(value=False)
    note = with_names(
        {
            "Where sampled runs are there, the likeliest answers stay out: {}.": _named(rows[mixed]),
            "Runs with another number of items than most of the same score stay out: {}.": _named(rows[differs]),
        }
    )
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
        numbered = group.assign(_n=group.groupby("_key", sort=False).cumcount())
        table = numbered.pivot(index="_key", columns="_n", values="value")
        squares = (numbered["stderr"].astype("float64") ** 2).groupby(numbered["_key"]).mean().reindex(table.index)
        far = pd.DataFrame(far_runs(table.to_numpy(float), np.sqrt(squares.to_numpy(float)), tests), *table.axes)
        is_far = [bool(far.at[key, number]) for key, number in zip(numbered["_key"], numbered["_n"], strict=True)]
        for key, row in numbered[is_far].set_index("_key").iterrows():
            rest_mean = (table.loc[key].sum() - row["value"]) / (table.loc[key].count() - 1)
            values = f"{row['value']:.3g}, mean of the others {rest_mean:.3g}"
            far_names.append(f"{row['model']} on {row['benchmark']}, run {row['run']} ({values})")
    return with_names({"Runs far from the others of the same score are averaged with them: {}.": far_names})


def _sampling(group: pd.DataFrame) -> Sampling:
    """The noise of one benchmark under one protocol. Checkpoints and seeds of a model are as models of their own."""
    by_score = group.groupby("_key", sort=False)
    table = group.assign(_n=by_score.cumcount()).pivot_table(index="_key", columns="_n", values="value").to_numpy(float)
    several = table[np.isfinite(table).sum(axis=1) > 1]
    one_run = float(np.sqrt((group["stderr"].astype("float64") ** 2).groupby(group["_key"]).mean().mean()))
    if not len(several):
        return Sampling(0, 1, 1, float("nan"), one_run, float("nan"))
    spread, runs = typical_spread(several), np.isfinite(several).sum(axis=1)
    errors = (group["stderr"].astype("float64") ** 2).groupby(group["_key"]).mean()
    squares = spread_of_runs(table) ** 2
    is_known = np.isfinite(squares) & np.isfinite(errors.to_numpy(float))
    share = (
        float(squares[is_known].mean() / errors.to_numpy(float)[is_known].mean()) if is_known.any() else float("nan")
    )
    return Sampling(
        models=len(several),
        fewest=int(runs.min()),
        most=int(runs.max()),
        spread=spread,
        one_run=one_run,
        share=min(share, 1.0),
    )
