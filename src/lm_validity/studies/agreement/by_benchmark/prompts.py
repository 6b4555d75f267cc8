"""How much a benchmark's score depends on the prompt: the range over prompts that one model was scored under."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.config.sheets import metric_key
from lm_validity.studies.agreement.prompt_section import LEAST_MODELS
from lm_validity.studies.agreement.score_matrix import ScoreMatrix
from lm_validity.studies.agreement.statistics.resampling import Interval
from lm_validity.studies.agreement.summary import PromptRange
from lm_validity.summaries import Missing
from lm_validity.tables.schema import SCORES, read_table
from lm_validity.words import Reason, ReasonCode

ONE_PROMPT = Missing(
    Reason("No model has scores of it under two prompts, all else being equal.", ReasonCode.NO_PROMPTS)
)
ONE_MODEL = Missing("One model was scored under several prompts.")
_SAME = ["model", "checkpoint", "benchmark", "protocol", "seed", "split", "metric", "num_fewshot"]


def prompt_ranges(scores: str | Path, matrix: ScoreMatrix) -> dict[str, PromptRange | Missing]:
    """By benchmark (no perplexity corpora): best less worst score of a model over prompts and wordings, mean over
    models with a t interval.

    Over direct scores that differ in `prompt` or `prompt_variant` alone, on either split; of a model with several such
    groups the mean. Scores under two prompts share their items, and part of their range is chance: it is an upper
    bound of what the prompt does.
    """
    rows = _direct_rows(scores, matrix)
    prompt = rows["prompt"].fillna("plain").astype(str) + "\n" + rows["prompt_variant"].fillna("").astype(str)
    groups = rows.assign(prompt=prompt).groupby(_SAME, dropna=False)
    found = groups.agg(low=("value", "min"), high=("value", "max"), prompts=("prompt", "nunique")).reset_index()
    found = found[(found["prompts"] > 1) & np.isfinite(found["high"] - found["low"])]
    return {name: _range(found[found["benchmark"] == name]) for name in matrix.task_names()}


def wording_error(scores: str | Path, matrix: ScoreMatrix) -> np.ndarray:
    """(benchmarks,) how far the wording moves a model's direct score, as a standard deviation; no corpora.

    Half the variance over models of the difference of two wordings (`prompt_variant`), all else being equal, mean over
    pairs of wordings. As with plain and chat (`prompt_error`), what a wording does to all models alike is not in it,
    and what the noise of the two scores' items does not share is. NaN for fewer than 3 models under both.
    """
    rows = _direct_rows(scores, matrix)
    rows = rows.assign(wording=rows["prompt_variant"].fillna(""), prompt=rows["prompt"].fillna("plain"))
    key = ["benchmark", "prompt", "split", "metric", "checkpoint", "num_fewshot", "model"]
    rows = rows.fillna({"split": "", "metric": "", "checkpoint": "final", "num_fewshot": -1})
    values = rows.pivot_table(index=key, columns="wording", values="value", aggfunc="first")
    found = np.full(len(matrix.task_names()), np.nan)
    for place, name in enumerate(matrix.task_names()):
        of_one = values[values.index.get_level_values("benchmark") == name]
        variances = [
            (of_one[first] - of_one[second]).groupby("model").mean().dropna()
            for first, second in combinations(values.columns, 2)
        ]
        variances = [differences.var(ddof=1) / 2 for differences in variances if len(differences) >= LEAST_MODELS]
        if variances:
            found[place] = np.sqrt(np.mean(variances))
    return found


def _direct_rows(scores: str | Path, matrix: ScoreMatrix) -> pd.DataFrame:
    """Direct scores of each benchmark's metric, selected or not."""
    rows = read_table(scores, SCORES)
    metric = matrix.benchmark_facts.set_index("benchmark")["metric"]
    wanted, given = rows["benchmark"].map(metric), rows["metric"].map(metric_key, na_action="ignore")
    return rows[(rows["protocol"] == "direct") & (wanted.isna() | given.isna() | (given == wanted))]


def _range(rows: pd.DataFrame) -> PromptRange | Missing:
    if rows.empty:
        return ONE_PROMPT
    ranges = (rows["high"] - rows["low"]).groupby(rows["model"]).mean().to_numpy(dtype=float)
    prompts = int(rows["prompts"].max())
    if len(ranges) < 2:
        return PromptRange(float(ranges[0]), ONE_MODEL, 1, prompts)
    reach = stats.t.ppf(0.975, len(ranges) - 1) * ranges.std(ddof=1) / np.sqrt(len(ranges))
    interval = Interval(float(max(0.0, ranges.mean() - reach)), float(ranges.mean() + reach))
    return PromptRange(float(ranges.mean()), interval, len(ranges), prompts)
