"""Components of the variance of scores, and how reliable a mean over benchmarks, items or seeds is."""

from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.statistics.ranking import finite_mean


@dataclass(frozen=True)
class VarianceComponents:
    """Components of the variance of standardised scores: 1 is the variance of the models on one benchmark.

    `model`: differences that hold on all benchmarks; `model_benchmark`: those that hold on one benchmark only, whatever
    its items, seeds and prompts; `item`, `seed`, `prompt`, `training`, `sampling`: measurement error of one score, of
    its items, of a repeated fine-tune, of the prompt, of training the model again and of sampling its answers (NaN
    where it was not measured, and then within `model_benchmark`, for sampling within `item`). `reliability`: of the
    mean over `benchmarks` benchmarks for an order of models, Eρ² in Cronbach's notation. Estimates below 0 are set to
    0; `raw_model`, `raw_model_benchmark` are as estimated.
    """

    model: float
    model_benchmark: float
    item: float
    seed: float
    prompt: float
    training: float
    sampling: float
    reliability: float
    raw_model: float
    raw_model_benchmark: float
    benchmarks: int


def variance_components(
    scores: np.ndarray,
    item_error: np.ndarray,
    seed_error: np.ndarray,
    prompt_error: np.ndarray | float = np.nan,
    training_error: np.ndarray | float = np.nan,
    sampling_error: np.ndarray | float = np.nan,
) -> VarianceComponents:
    """A generalisability study (Cronbach et al. 1972; Brennan 2001) of models × benchmarks, both random.

    `scores`: (models, benchmarks), more is better; `item_error`, `seed_error`: (models, benchmarks) standard errors of
    the scores from their items and from the seeds that were averaged, NaN where unknown; `prompt_error`: (benchmarks,)
    standard deviation of a model's score over prompts, less what a prompt does to all models; `training_error`:
    (models, benchmarks) that of a score between trainings of one model, as if independent between benchmarks;
    `sampling_error`: (models, benchmarks) the part of `item_error` that is due to sampling the answers. Each is
    standardised over its models, so that benchmarks of different spread weigh alike and the component of benchmarks
    is 0. With the mean squares of models and of the residual,

        model = (MS_model - MS_residual) / k
        model_benchmark = MS_residual - item - sampling - seed - prompt - training

    these being mean squared errors in units of the benchmark's variance. A difference of mean squares
    may be below 0 and is then set to 0 (Brennan 2001, section 3.4): the component is too small to be seen, or the
    standard errors are too large. Over the models that have
    every benchmark, benchmarks that are constant among these left out. It assumes that models are exchangeable;
    families make `model` larger than it is between models of one family. NaN for fewer than 3 models or 2 benchmarks.
    """
    complete = np.isfinite(scores).all(axis=1)
    values = scores[complete]
    if len(values):
        spread = values.std(axis=0)
        varied = spread > 1e-12 * np.maximum(np.abs(values).max(axis=0), 1e-300)
    if len(values) < 3 or varied.sum() < 2:
        nan = float("nan")
        return VarianceComponents(nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, benchmarks=0)
    z = (values[:, varied] - values[:, varied].mean(axis=0)) / spread[varied]
    models, benchmarks = z.shape
    means = z.mean(axis=1, keepdims=True)
    between = benchmarks * float(means.var(ddof=1))
    residual = float(((z - means) ** 2).sum() / ((models - 1) * (benchmarks - 1)))
    item, seed, training, sampling = (
        finite_mean((np.broadcast_to(error, scores.shape)[complete][:, varied] / spread[varied]) ** 2)
        for error in (item_error, seed_error, training_error, sampling_error)
    )
    item = max(item - np.nan_to_num(sampling), 0.0) if np.isfinite(item) else item
    prompt = finite_mean((np.broadcast_to(prompt_error, spread.shape)[varied] / spread[varied]) ** 2)
    raw_model = (between - residual) / benchmarks
    raw_model_benchmark = float(residual - np.nansum([item, seed, prompt, training, sampling]))
    model = max(raw_model, 0.0)
    return VarianceComponents(
        model=model,
        model_benchmark=max(raw_model_benchmark, 0.0),
        item=item,
        seed=seed,
        prompt=prompt,
        training=training,
        sampling=sampling,
        reliability=model / (model + residual / benchmarks),
        raw_model=raw_model,
        raw_model_benchmark=raw_model_benchmark,
        benchmarks=benchmarks,
    )


def reliability_of(
    components: VarianceComponents, benchmarks: float, items: float = 1.0, seeds: float = 1.0, prompts: float = 1.0
) -> float:
    """A decision study: Eρ² of a mean over `benchmarks` benchmarks with `items` times the items, likewise the others.

        Eρ² = model / (model + (model_benchmark + item / items + seed / seeds + prompt / prompts) / benchmarks)

    in [0, 1]; components that were not measured stay within model_benchmark. Each model has one training, whose noise
    is added to these.
    """
    of_items = (components.item / items, components.sampling / items)  # each answer is sampled by itself
    parts = (*of_items, components.seed / seeds, components.prompt / prompts, components.training)
    error = (components.model_benchmark + sum(part for part in parts if np.isfinite(part))) / benchmarks
    model = components.model
    return model / (model + error) if model + error > 0 else float("nan")
