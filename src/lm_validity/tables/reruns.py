"""Models that were trained twice: the noise of training, which no number of items shows."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lm_validity.missing import Reason, ReasonCode
from lm_validity.tables.counted import checkpoints_in_order

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
