"""What the agreement rests on: subsets of benchmarks, each family or benchmark alone, sources of variance."""

from dataclasses import dataclass

import numpy as np

from lm_validity.missing import Missing, Reason, ReasonCode, known
from lm_validity.repeats import NO_RUNS
from lm_validity.statistics import section_generator
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.intervals import Range, Value, ends
from lm_validity.studies.agreement.reasons import LOST_MODEL
from lm_validity.studies.agreement.statistics.resampling import transformed_interval
from lm_validity.studies.agreement.statistics.subsets import leave_one_out, one_with_others, subset_agreement
from lm_validity.studies.agreement.statistics.variance import reliability_of, variance_components
from lm_validity.tables.reruns import NOT_MEASURED
from lm_validity.tables.schema import DIRECT, PROTOCOLS
from lm_validity.words import no_scores

FEW_SUBSET_MODELS = Reason("There are fewer than 8 models, or too few of their scores.", ReasonCode.TOO_FEW)


# ----------------------------------------------------------------------------------------------------------------------
# How many benchmarks are enough.


@dataclass(frozen=True)
class Subsets:
    """How well subsets of `sizes` benchmarks rank the models, as `statistics.subsets.SubsetAgreement` has it, and one
    benchmark with all others together."""

    sizes: list[int]
    random_mean: list[Value]
    random_low: list[Value]
    random_high: list[Value]
    greedy_mean: list[Value]
    greedy_order: list[int]
    others_mean: list[Value]
    one_with_others: Value
    one_with_others_interval: Range


def subsets_of_benchmarks(data: Data) -> dict[str, Subsets]:
    """By protocol how well subsets of the benchmarks rank the models, by size, and one with all others together."""
    rng = section_generator("subsets", 0)
    return {p: _subsets(data.scores[p], rng) for p in data.matrix.protocols}


def _subsets(scores: np.ndarray, rng: np.random.Generator) -> Subsets:
    """Of `scores` (models, benchmarks), more is better, NaN where missing; `rng` draws the random subsets."""

    def curve(taus: np.ndarray) -> list[Value]:
        return [known(float(tau), FEW_SUBSET_MODELS) for tau in taus]

    subsets, taus = subset_agreement(scores, rng), one_with_others(scores)
    with_others = known(float(taus[0]), "No benchmark has a tau with the others.")
    return Subsets(
        sizes=subsets.sizes.tolist(),
        random_mean=curve(subsets.random_mean),
        random_low=curve(subsets.random_low),
        random_high=curve(subsets.random_high),
        greedy_mean=curve(subsets.greedy_mean),
        greedy_order=subsets.greedy_order.tolist(),
        others_mean=[*curve(subsets.others_mean[:-1]), Missing("There is no other benchmark left.")],
        one_with_others=with_others,
        one_with_others_interval=ends(with_others, transformed_interval(taus[0], taus[1:], "tau"), LOST_MODEL),
    )


# ----------------------------------------------------------------------------------------------------------------------
# Without one family, benchmark or model.


@dataclass(frozen=True)
class FiguresWithoutPart:
    """The headline figures without one `kind` of part: a family, a benchmark or a model, of this `name`."""

    kind: str
    name: str
    mean_tau: Value
    first_component: Value


def left_out(data: Data) -> dict[str, list[FiguresWithoutPart]]:
    """By protocol the headline figures without each family, benchmark and model."""
    reason = "Without this part, too little of the table would be left."
    return {
        p: [
            FiguresWithoutPart(part.kind, part.name, known(part.mean_tau, reason), known(part.first_component, reason))
            for part in leave_one_out(data.scores[p], list(data.matrix.models), data.tasks, data.matrix.families)
        ]
        for p in data.matrix.protocols
    }


# ----------------------------------------------------------------------------------------------------------------------
# Where variance comes from.

COMPONENTS = {
    "model": "is shared by all benchmarks",
    "model_benchmark": "is specific to that benchmark, with any noise that was not measured",
    "item": "is noise of the items",
    "seed": "is noise of the seeds",
    "prompt": "is due to the prompt",
    "training": "is noise of training the models again",
    "sampling": "is noise of sampling the answers",
}


@dataclass(frozen=True)
class DecisionPlan:
    """The reliability of a mean score over so many benchmarks, with so many times the items, seeds and prompts."""

    benchmarks: int
    items: float
    seeds: float
    prompts: float
    reliability: float


@dataclass(frozen=True)
class Variance:
    """Components of the variance of standardised scores over models, of `benchmarks`, with the reliability of their
    mean; `raw_model`, `raw_model_benchmark`: before what is below zero is set to zero."""

    model: Value
    model_benchmark: Value
    item: Value
    seed: Value
    prompt: Value
    training: Value
    sampling: Value
    reliability: Value
    raw_model: Value
    raw_model_benchmark: Value
    benchmarks: int
    decision_study: list[DecisionPlan]

    @property
    def components(self) -> dict[str, Value]:
        """The parts of the variance by name, in the order of `COMPONENTS`."""
        parts = (
            self.model, self.model_benchmark, self.item, self.seed, self.prompt, self.training, self.sampling
        )  # fmt: skip
        return dict(zip(COMPONENTS, parts, strict=True))


def sources_of_variance(data: Data, prompt_error: dict[str, np.ndarray]) -> dict[str, Variance]:
    """By protocol the components of variance, and what more benchmarks, items or seeds would buy.

    `prompt_error`: by protocol (benchmarks,) how far the prompt moves a score, where it was measured.
    """
    return {p: _components(data, p, prompt_error.get(p, np.nan)) for p in PROTOCOLS}


def _components(data: Data, protocol: str, prompt_error: np.ndarray | float) -> Variance:
    seed_error = data.matrix.seed_error(protocol)[:, ~data.matrix.is_corpus]
    of_sampling = data.matrix.sampling_error.get(protocol)
    sampling_error = np.nan if of_sampling is None else of_sampling[:, ~data.matrix.is_corpus]
    components = variance_components(
        data.scores[protocol],
        data.stderr[protocol],
        seed_error,
        prompt_error,
        data.training_error[protocol],
        sampling_error,
    )
    undefined = np.isnan(components.model)
    too_few = Reason(
        "Fewer than 3 models have every benchmark, or fewer than two benchmarks differ between them.",
        ReasonCode.TOO_FEW,
    )
    reason = too_few if data.matrix.has(protocol) else no_scores(protocol)
    part_of = "is part of model × benchmark."
    no_seed = f"No benchmark was fine-tuned with several seeds. The noise of seeds {part_of}"
    reasons = {
        "item": Reason(f"There are no standard errors. The noise of items {part_of}", ReasonCode.NO_ERRORS),
        "seed": "Nothing is fine-tuned under direct evaluation." if protocol == DIRECT else no_seed,
        "prompt": "The effect of prompts was not measured: no benchmark has 3 models with scores under two prompts or "
        f"wordings. It {part_of}",
        "training": Reason(f"{NOT_MEASURED} It {part_of}", NOT_MEASURED.code),
        "sampling": Reason(f"{NO_RUNS} It is part of the noise of items.", NO_RUNS.code),
    }
    parts = {
        name: known(value, reason if undefined else reasons.get(name, reason))
        for name, value in vars(components).items()
        if name != "benchmarks"
    }
    plans = [] if undefined else [(n, 1.0, 1.0, 1.0) for n in (1, 2, 4, 8, 16, 32, 64)]
    plans += [] if undefined else [(components.benchmarks, factor, 1.0, 1.0) for factor in (0.25, 1.0, 4.0)]
    plans += (
        [(components.benchmarks, 1.0, factor, 1.0) for factor in (2.0, 4.0)] if np.isfinite(components.seed) else []
    )
    plans += [(components.benchmarks, 1.0, 1.0, 2.0)] if np.isfinite(components.prompt) else []
    study = [DecisionPlan(*plan, reliability_of(components, *plan)) for plan in dict.fromkeys(plans)]
    return Variance(**parts, benchmarks=components.benchmarks, decision_study=study)
