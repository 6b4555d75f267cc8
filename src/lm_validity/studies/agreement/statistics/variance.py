"""Where the variance of scores comes from, and how reliable a mean over benchmarks, items or seeds is."""

from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.statistics.missing import finite_mean


@dataclass(frozen=True)
class VarianceComponents:
    """Components of the variance of standardised scores: 1 is the variance of the models on one benchmark.

    `model`: differences that hold on all benchmarks; `model_benchmark`: those that hold on one benchmark only, other
    items and other seeds included; `item`, `seed`: measurement error of one score, of its items and of a repeated
    training (NaN where standard errors or several seeds are missing). Estimates may fall below 0. `reliability`: of the
    mean over `benchmarks` benchmarks for an order of models, Eρ² in Cronbach's notation.
    """

    model: float
    model_benchmark: float
    item: float
    seed: float
    reliability: float
    benchmarks: int


def variance_components(scores: np.ndarray, item_error: np.ndarray, seed_error: np.ndarray) -> VarianceComponents:
    """A generalisability study (Cronbach et al. 1972; Brennan 2001) of models × benchmarks, both random.

    `scores`: (models, benchmarks), more is better; `item_error`, `seed_error`: (models, benchmarks) standard errors of
    the scores from their items and from the seeds that were averaged, NaN where unknown. Each benchmark is standardised
    over its models, so that benchmarks of different spread weigh alike and the component of benchmarks is 0. With the
    mean squares of models and of the residual,

        model = (MS_model - MS_residual) / k,   model_benchmark = MS_residual - item - seed

    item and seed being mean squared standard errors in units of the benchmark's variance. Over the models that have
    every benchmark, benchmarks that are constant among these left out. It assumes that models are exchangeable;
    families make `model` larger than it is between models of one family. NaN for fewer than 3 models or 2 benchmarks.
    """
    complete = np.isfinite(scores).all(axis=1)
    values = scores[complete]
    nothing = VarianceComponents(*[float("nan")] * 5, benchmarks=0)
    if len(values) < 3:
        return nothing
    spread = values.std(axis=0)
    varied = spread > 1e-12 * np.maximum(np.abs(values).max(axis=0), 1e-300)
    if varied.sum() < 2:
        return nothing
    z = (values[:, varied] - values[:, varied].mean(axis=0)) / spread[varied]
    models, benchmarks = z.shape
    means = z.mean(axis=1, keepdims=True)
    between = benchmarks * float(means.var(ddof=1))
    residual = float(((z - means) ** 2).sum() / ((models - 1) * (benchmarks - 1)))
    item, seed = (
        float(finite_mean((error[complete][:, varied] / spread[varied]) ** 2)) for error in (item_error, seed_error)
    )
    model = (between - residual) / benchmarks
    return VarianceComponents(
        model=model,
        model_benchmark=residual - np.nansum([item, seed]),
        item=item,
        seed=seed,
        reliability=max(model, 0.0) / (max(model, 0.0) + residual / benchmarks),
        benchmarks=benchmarks,
    )


def reliability_of(components: VarianceComponents, benchmarks: float, items: float = 1.0, seeds: float = 1.0) -> float:
    """A decision study: Eρ² of a mean over `benchmarks` benchmarks with `items` times the items and `seeds` the seeds.

        Eρ² = model / (model + (model_benchmark + item / items + seed / seeds) / benchmarks)

    in [0, 1]; unknown item and seed components stay within model_benchmark. Components below 0 count as 0.
    """
    model = max(components.model, 0.0)
    errors = (components.model_benchmark, components.item / items, components.seed / seeds)
    error = sum(max(part, 0.0) for part in errors if np.isfinite(part)) / benchmarks
    return model / (model + error) if model + error > 0 else float("nan")
