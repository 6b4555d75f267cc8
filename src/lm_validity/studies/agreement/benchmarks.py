"""What each benchmark alone can tell, for its card, and how its models were prompted and fine-tuned."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.missing import Missing, Reason, ReasonCode, known
from lm_validity.repeats import NO_RUNS
from lm_validity.statistics import Interval, models_above_chance
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.intervals import Range, Value, each, ends
from lm_validity.studies.agreement.reasons import LOST_MODEL, NO_DIRECTION
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, size_ratios
from lm_validity.studies.agreement.statistics import ranking
from lm_validity.studies.agreement.statistics.noise import ceiling_with_others, reliability, taus_with_others
from lm_validity.studies.agreement.statistics.resampling import hull
from lm_validity.studies.agreement.statistics.separation import (
    items_needed,
    separated_shares,
    smallest_difference,
    typical_difference,
)
from lm_validity.tables.counted import of_metric
from lm_validity.tables.fractions import FRACTIONS
from lm_validity.tables.reruns import NOT_MEASURED
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import UNDER

# ratios of two models' sizes, and all pairs whatever their sizes
DISTANCES = ((1.0, 1.25), (1.0, 2.0), (1.0, 4.0), (2.0, None), (4.0, None), (1.0, None))
LIKE_SIZE = 2.0
LEAST_MODELS = 3  # with two prompts, for the variance between them
UNTOUCHED = "none (direct)"  # no adapter was better on validation
PROMPTS = ("plain", "chat")
COLUMNS = ("model", "benchmark", "protocol", "seed", *PROMPTS, "chosen", "learning_rate", "epoch", "test")
NO_ERRORS = Reason("Fewer than 2 models have a standard error there.", ReasonCode.NO_ERRORS)
PROMPT_WITHOUT_ERROR = Reason("A score under one of the prompts has no standard error.", ReasonCode.NO_ERRORS)
FEW = Reason(
    "Fewer than 3 models have the scores and standard errors, or their scores are all equal.", ReasonCode.TOO_FEW
)
FEW_PAIRS = Reason("Fewer than 3 models have such pairs with standard errors or items in common.", ReasonCode.TOO_FEW)
FEW_SIZES = Reason(
    "The models sheet has the parameters of fewer than 2 of these models (column parameters_b).", ReasonCode.TOO_FEW
)
NO_SIMILAR = Reason("No two models at most 2× apart in size have standard errors there.", ReasonCode.NO_ERRORS)
NO_INTERVAL = Reason("Without one of the models there is no value, so there is no interval.", ReasonCode.NO_INTERVAL)
NO_CHANCE = Reason("The benchmarks sheet names no chance level (column chance).", ReasonCode.NO_CHANCE)
ONE_PROMPT = Missing(
    Reason("No model has scores of it under two prompts, all else being equal.", ReasonCode.NO_PROMPTS)
)
SAME = ["model", "checkpoint", "benchmark", "protocol", "seed", "split", "metric", "num_fewshot"]
ONE_MODEL = Missing("One model was scored under several prompts.")


# ----------------------------------------------------------------------------------------------------------------------
# Numbers of one benchmark.


@dataclass(frozen=True)
class DistanceRow:
    """A benchmark among pairs of models whose sizes differ by a factor from `at_least` to `at_most` (null: any).

    `separated`: the share of the `pairs_of_models` that can be tested whose scores differ significantly; `tau`: mean
    tau with the other benchmarks over the `scored_pairs`, those with scores; `tau_ceiling`: what it would be if all
    ordered the models identically.
    """

    at_least: float
    at_most: float | None
    pairs_of_models: int
    scored_pairs: int
    separated: Value
    separated_interval: Range
    tau: Value
    tau_interval: Range
    tau_ceiling: Value


@dataclass(frozen=True)
class BenchmarkFigures:
    """What one benchmark tells under a protocol, in the metric's own unit and direction.

    `models_above_chance`: as `statistics.models_above_chance` counts them. `models_at_best`: models less than 1.96
    standard errors below 1, the best score of a metric that is a fraction. `reliability`: share of the variance between
    models that is no noise of items. `sampling_noise`, `sampling_share`, `sampling_luck`, `sampling_falls`: how far
    scores move between sampled runs of one model. `smallest_difference`: of two scores, found four times out of five.
    `typical_difference`: between models within a factor 2 of each other's size, without noise. `items_needed`: to find
    that.
    """

    models: int
    items: int | Missing
    lowest: float
    highest: float
    models_above_chance: int | Missing
    models_at_best: int | Missing
    reliability: Value
    reliability_interval: Range
    training_noise: Value
    reruns: int
    sampling_noise: Value
    sampling_share: Value
    sampling_luck: Value
    sampling_falls: Value
    sampled_models: int
    smallest_difference: Value
    typical_difference: Value
    items_needed: int | Missing
    by_distance: list[DistanceRow]


FiguresByName = dict[str, BenchmarkFigures | Missing]


def benchmark_figures(data: Data) -> dict[str, FiguresByName]:
    """By protocol and benchmark; missing where it has no score.

    Where the direction of a benchmark is not known and its order is surely against the others', it has no interval of
    tau, and those of the others hold either way; where it may be, its own interval holds either way.
    """
    return {p: _of_protocol(data, p) for p in PROTOCOLS}


def _of_protocol(data: Data, protocol: str) -> FiguresByName:
    scores, signs, sizes = data.scores[protocol], data.significant[protocol], data.matrix.sizes()[0]
    masks = [_within(sizes, *distance) for distance in DISTANCES]
    taus = taus_with_others(scores, masks)
    turned = taus_with_others(data.turned(protocol), masks) if data.opposed[protocol] else taus
    everyone, expected = ranking.pair_signs(scores), data.ceiling[protocol].expected
    ceilings = [ceiling_with_others(everyone, expected, mask) for mask in masks]
    significant, tested = np.zeros((2, len(data.tasks), len(scores), len(scores)), dtype=bool)
    for square, values in ((significant, signs.sign), (tested, signs.known)):
        square[:, signs.first, signs.second] = square[:, signs.second, signs.first] = values.T != 0
    separation, near = [separated_shares(significant, tested, mask) for mask in masks], _within(sizes, 1.0, LIKE_SIZE)
    by_name: FiguresByName = {}
    for index, name in enumerate(data.tasks):
        if not np.isfinite(scores[:, index]).any():
            by_name[name] = Missing(f"The benchmark has no score {UNDER[protocol]}.")
            continue
        rows = []
        for (at_least, at_most), mask, tau, corrected, ceiling, shares in zip(
            DISTANCES, masks, taus, turned, ceilings, separation, strict=True
        ):
            by_size = (at_least, at_most) != (1.0, None)
            reason = FEW_SIZES if by_size and _few_sizes(sizes) else None
            separated = known(shares[index].value, reason or FEW_PAIRS)
            mean = known(tau[index].value, reason or "No other benchmark has a tau with it over such pairs of models.")
            limit = known(float(ceiling[index]), "There is no noise ceiling over such pairs of models.")
            scored = np.isfinite(scores[:, index])
            rows.append(
                DistanceRow(
                    at_least=at_least,
                    at_most=at_most,
                    pairs_of_models=int((tested[index] & mask).sum()) // 2,
                    scored_pairs=int((np.outer(scored, scored) & mask).sum()) // 2,
                    separated=separated,
                    separated_interval=ends(separated, shares[index].interval, reason or FEW_PAIRS),
                    tau=mean,
                    tau_interval=Missing(NO_DIRECTION)
                    if name in data.opposed[protocol]
                    else ends(
                        mean,
                        data.either_way(protocol, name, hull(tau[index].interval, corrected[index].interval)),
                        LOST_MODEL,
                    ),
                    tau_ceiling=mean if isinstance(mean, Missing) else limit,
                )
            )
        by_name[name] = _figures(data, protocol, index, near, rows)
    return by_name


def _few_sizes(sizes: np.ndarray) -> bool:
    """Whether no two of the (models,) sizes are known, so that no pair of models has a distance."""
    return bool(np.isfinite(sizes).sum() < 2)


def _within(sizes: np.ndarray, at_least: float, at_most: float | None) -> np.ndarray:
    """(models, models) pairs whose sizes differ by such a factor; all pairs for 1 to any."""
    if at_least <= 1 and at_most is None:
        return ~np.eye(len(sizes), dtype=bool)
    ratio = size_ratios(sizes)
    in_range = ratio > at_least if at_most is None else ratio <= at_most
    return in_range & ~np.eye(len(sizes), dtype=bool)


def _figures(
    data: Data, protocol: str, index: int, near: np.ndarray, by_distance: list[DistanceRow]
) -> BenchmarkFigures:
    """Of the benchmark at `index`; `near`: (models, models) pairs of like size."""
    matrix, name = data.matrix, data.tasks[index]
    column = matrix.benchmarks.index(name)
    facts = matrix.benchmark_facts.iloc[column]
    values, errors, noise = matrix.value[protocol][:, column], data.stderr[protocol][:, index], data.noise[protocol]
    oriented, scored = data.scores[protocol][:, index], np.isfinite(values)
    training = matrix.training.get(protocol, {}).get(name)
    trained = 0.0 if training is None else 2 * training.sd**2
    counts = matrix.n_items[protocol][scored, column]
    counts = counts[np.isfinite(counts)]
    of_sheet = None if pd.isna(facts["n_items"]) else int(facts["n_items"])
    items = int(np.median(counts)) if len(counts) else known(of_sheet, "The number of items is unknown.")
    share = reliability(oriented, noise[:, index])
    reliable = known(share.value, FEW)
    no_pairs = FEW_SIZES if _few_sizes(matrix.sizes().parameters) else NO_SIMILAR
    typical = known(typical_difference(oriented, noise[:, index], near).difference, no_pairs)
    above: int | Missing = Missing(NO_CHANCE)
    if np.isfinite(facts["chance"]):
        above = Missing(Reason("There are no standard errors.", ReasonCode.NO_ERRORS))
        if np.isfinite(oriented + errors).any():
            above = models_above_chance(oriented, errors, facts["chance"] * matrix.direction[column])
    fraction = isinstance(facts["metric"], str) and facts["metric"].split(",")[0] in FRACTIONS
    at_best: int | Missing = Missing("The metric is not known to have 1 as its best score.")
    if fraction and not (values[scored] > 1 + 1e-9).any():
        at_best = int((values[scored] + ranking.Z_95 * np.nan_to_num(errors[scored]) >= 1).sum())
    sampling = matrix.sampling.get((protocol, name))
    between_runs: list[Value] = [Missing(NO_RUNS)] * 4
    if sampling is not None:
        measured = sampling.spread, sampling.share, sampling.luck, sampling.falls
        between_runs = [known(value, NO_ERRORS) for value in measured]
    spread, share_of_sampling, luck, falls = between_runs
    return BenchmarkFigures(
        models=int(scored.sum()),
        items=items,
        lowest=float(values[scored].min()),
        highest=float(values[scored].max()),
        models_above_chance=above,
        models_at_best=at_best,
        reliability=reliable,
        reliability_interval=ends(reliable, share.interval, NO_INTERVAL),
        training_noise=Missing(NOT_MEASURED) if training is None else training.sd,
        reruns=0 if training is None else training.reruns,
        sampling_noise=spread,
        sampling_share=share_of_sampling,
        sampling_luck=luck,
        sampling_falls=falls,
        sampled_models=0 if sampling is None else sampling.models,
        smallest_difference=known(smallest_difference(noise[:, index]), NO_ERRORS),
        typical_difference=typical,
        items_needed=_items_needed(items, typical, typical_difference(oriented, errors, near).noise, trained),
        by_distance=by_distance,
    )


def _items_needed(items: int | Missing, difference: Value, noise: float, training: float) -> int | Missing:
    if isinstance(items, Missing):
        return items
    if isinstance(difference, Missing):
        return difference
    if difference == 0:
        return Missing("Models of similar size differ by no more than noise, so the number of items needed is unknown.")
    items_at_least = items_needed(items, difference, noise, training)
    if not np.isfinite(items_at_least):
        return Missing("No number of items is enough: training the models again moves their scores more than that.")
    return int(np.ceil(items_at_least))


# ----------------------------------------------------------------------------------------------------------------------
# How far the prompt moves a score.


@dataclass(frozen=True)
class PromptRange:
    """Best less worst score of a model over prompts and wordings, mean over `models` with a t interval; `prompts`: the
    most that one has. by_chance: the most that noise alone would make of it, as though each prompt had other items."""

    mean: float
    interval: Range
    by_chance: Value
    models: int
    prompts: int


def prompt_ranges(scores: pd.DataFrame, matrix: ScoreMatrix) -> dict[str, PromptRange | Missing]:
    """By benchmark, no perplexity corpora.

    Over direct scores that differ in `prompt` or `prompt_variant` alone, on either split; of a model with several such
    groups the mean; of several runs under one prompt the mean score. Scores under two prompts share their items, and
    part of their range is chance: it is an upper bound of what the prompt does. By chance: the expected range of as
    many independent normal numbers, whose standard deviation is the root mean square of the scores' standard errors,
    those of single runs: at most that.
    """
    rows = scores[(scores["protocol"] == DIRECT) & of_metric(scores, matrix.benchmark_facts)]
    prompt = rows["prompt"].fillna("plain").astype(str) + "\n" + rows["prompt_variant"].fillna("").astype(str)
    squares = pd.to_numeric(rows["stderr"]).astype(float) ** 2
    of_one_prompt = rows.assign(prompt=prompt, square=squares).groupby([*SAME, "prompt"], dropna=False)
    means = of_one_prompt.agg(value=("value", "mean"), square=("square", _mean_or_nan)).reset_index()
    spans = (
        means.groupby(SAME, dropna=False)
        .agg(
            low=("value", "min"),
            high=("value", "max"),
            prompts=("prompt", "nunique"),
            square=("square", _mean_or_nan),
        )
        .reset_index()
    )
    spans = spans[(spans["prompts"] > 1) & np.isfinite(spans["high"] - spans["low"])]
    ranges: dict[str, PromptRange | Missing] = {}
    for name in matrix.task_names():
        of_one = spans[spans["benchmark"] == name]
        if of_one.empty:
            ranges[name] = ONE_PROMPT
            continue
        by_model = (of_one["high"] - of_one["low"]).groupby(of_one["model"]).mean().to_numpy(dtype=float)
        mean, interval = float(by_model.mean()), None
        if len(by_model) > 1:
            reach = stats.t.ppf(0.975, len(by_model) - 1) * by_model.std(ddof=1) / np.sqrt(len(by_model))
            interval = Interval(float(max(0.0, mean - reach)), float(mean + reach))
        chance = np.sqrt(of_one["square"]) * of_one["prompts"].map(expected_range)
        by_chance = known(float(chance.groupby(of_one["model"]).mean().mean(skipna=False)), PROMPT_WITHOUT_ERROR)
        ranges[name] = PromptRange(mean, interval or ONE_MODEL, by_chance, len(by_model), int(of_one["prompts"].max()))
    return ranges


def _mean_or_nan(values: pd.Series) -> float:
    """Mean of (n,) values, NaN where one is missing."""
    return float(values.mean(skipna=False))


def expected_range(numbers: int) -> float:
    """The expected largest less smallest of so many independent standard normal numbers: the integral over x of
    1 - F(x)^n - (1 - F(x))^n."""
    x = np.linspace(-9, 9, 3601)
    below = stats.norm.cdf(x)
    return float(np.trapezoid(1 - below**numbers - (1 - below) ** numbers, x))


# ----------------------------------------------------------------------------------------------------------------------
# The prompts that were chosen, and what fine-tuning trains.


def prompt_choices(scores: pd.DataFrame, selections: pd.DataFrame | None, matrix: ScoreMatrix) -> pd.DataFrame:
    """One row per (model, benchmark, protocol, seed) that had two prompts to choose from, with COLUMNS.

    `plain` and `chat`: validation scores under each prompt, of its best fine-tune where there are some (NaN where none
    counts); `test`: the score that the other figures use. Without `selections` the direct protocol only.
    """
    tables = [_direct_choices(scores, matrix)]
    if selections is not None and len(tables[0]):
        pairs_asked = set(zip(tables[0]["model"], tables[0]["benchmark"], strict=True))
        tables.append(_prepared_choices(selections, pairs_asked, matrix))
    frame = pd.concat(tables, ignore_index=True).reindex(columns=list(COLUMNS))
    frame = frame[frame["model"].isin(matrix.models) & frame["benchmark"].isin(matrix.benchmarks)]
    frame = frame.reset_index(drop=True)
    frame["test"] = [
        matrix.value[row.protocol][matrix.models.index(row.model), matrix.benchmarks.index(row.benchmark)]
        for row in frame.itertuples()
    ]
    return frame


def _direct_choices(rows: pd.DataFrame, matrix: ScoreMatrix) -> pd.DataFrame:
    """Validation scores of the untouched models that were scored under both prompts, at the checkpoint that counts.

    `chosen`: the prompt of the selected row; where none is selected or several are, that of the score on test.
    """
    key = ["model", "benchmark"]
    scored = matrix.selected[matrix.selected["protocol"] == DIRECT].drop_duplicates(key).set_index(key)
    rows = rows[
        (rows["protocol"] == DIRECT) & (rows["split"] == "validation") & of_metric(rows, matrix.benchmark_facts)
    ]
    rows = rows.set_index(key)
    checkpoint = scored["checkpoint"].fillna("final").reindex(rows.index)
    rows = rows[(rows["checkpoint"].fillna("final") == checkpoint).to_numpy(dtype=bool)]
    values = rows.pivot_table(index=key, columns="prompt", values="value", aggfunc="first")
    values = values.reindex(columns=list(PROMPTS)).dropna()
    chosen = rows.loc[rows["selected"].fillna(value=False).to_numpy(dtype=bool), "prompt"]
    chosen = chosen[~chosen.index.duplicated(keep=False)].reindex(values.index)
    frame = values.assign(chosen=chosen.fillna(scored["prompt"].reindex(values.index))).reset_index()
    return frame.assign(protocol=DIRECT, learning_rate="", epoch=np.nan)


def _prepared_choices(selections: pd.DataFrame, pairs_asked: set[tuple[str, str]], matrix: ScoreMatrix) -> pd.DataFrame:
    """The best fine-tune under each prompt, and what was selected."""
    better = dict(zip(matrix.benchmarks, matrix.direction, strict=True))
    rows = []
    for (model, benchmark, seed), group in selections.groupby(["model", "benchmark", "seed"], sort=False):
        if (model, benchmark) not in pairs_asked or benchmark not in better:
            continue
        tuned = group[group["learning_rate"].notna() & ~group["diverged"].fillna(value=False)]
        row = {"model": model, "benchmark": benchmark, "protocol": TRAINED, "seed": seed}
        for prompt in PROMPTS:
            values = tuned.loc[tuned["prompt"] == prompt, "validation_value"] * better[benchmark]
            row[prompt] = values.max() * better[benchmark] if len(values) else np.nan
        selected = group[group["selected"].fillna(value=False)]
        if len(selected):
            chosen = selected.iloc[0]
            untouched = pd.isna(chosen["learning_rate"])
            row |= {"chosen": chosen["prompt"], "learning_rate": UNTOUCHED if untouched else chosen["learning_rate"]}
            row["epoch"] = np.nan if untouched else float(chosen["epoch"])
        rows.append(row)
    return pd.DataFrame(rows)


def agreement_between_seeds(data: Data) -> dict[str, Value]:
    """Agreement of each benchmark with itself when models are fine-tuned again with another seed: the mean tau over
    pairs of seeds. Nothing for one seed."""
    seeds = [scores[:, ~data.matrix.is_corpus] for scores in data.matrix.by_seed.values()]
    if len(seeds) < 2:
        return {}
    too_few = Reason("The seeds have fewer than two models in common, or they are tied.", ReasonCode.TOO_FEW)
    columns = (np.column_stack([scores[:, index] for scores in seeds]) for index in range(len(data.tasks)))
    return each(
        data.tasks,
        (ranking.mean_over_pairs(ranking.kendall_tau_matrix(ranking.pair_signs(column))) for column in columns),
        too_few,
    )
