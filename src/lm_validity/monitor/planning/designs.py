"""Which models are fine-tuned on which benchmarks, decided from expected cost and chance before any score is known."""

import itertools
import random
from collections.abc import Collection, Iterable, Mapping, Sequence

from lm_validity.config.plan import AUDIT, BLOCK, PlannedCell
from lm_validity.errors import InputError
from lm_validity.monitor.cost import Estimator
from lm_validity.monitor.planning.savings import Cost, Pair, total
from lm_validity.words import count

CHEAP_SHARE = 10 / 24  # of the benchmarks, for all models
BLOCK_SHARE, LEAST_BLOCK = 0.15, 9  # of the models, on all benchmarks
BALANCED_SHARE = 0.4  # of the cells
CHEAP, IN_BLOCK, BALANCED, LISTED = "cheap benchmark", "block", "balanced", "own list"


def cheap_and_block(
    costs: Mapping[Pair, Cost], parameters: Mapping[str, float], seed: int, budget: float | None = None
) -> list[PlannedCell]:
    """The cheapest benchmarks for all models, and all benchmarks for a block of models drawn by size.

    `costs` of all (model, benchmark); `parameters` by model, for the strata. Without a budget 10 of 24 benchmarks are
    cheap; with one, as many as fit into that many hours beside the block. Raises InputError where a budget does not
    hold the block and two benchmarks.
    """
    models, benchmarks = (list(dict.fromkeys(pair[place] for pair in costs)) for place in (0, 1))
    block = draw_block(sorted(models, key=lambda name: parameters[name]), random.Random(seed))
    order = sorted(benchmarks, key=lambda name: total(costs, ((model, name) for model in models)).hours)
    least = min(2, len(order))
    number = max(least, round(CHEAP_SHARE * len(order)))
    if budget is not None:
        number = _affordable(costs, block, order, budget)
        if number < least:
            needed = _hours_of(costs, block, order, least)
            raise InputError(
                f"a budget of {budget:g} hours: the block of {count(len(block), 'model')} and the {least} cheapest "
                f"benchmarks need {needed:.4g} hours.",
                "raise it, leave models or benchmarks out, or write a plan with `lm-validity plan --design balanced`.",
            )
    cheap = set(order[:number])
    return [
        _planned(model, benchmark, CHEAP, 1.0, seed)
        if benchmark in cheap
        else _planned(model, benchmark, IN_BLOCK, block[model], seed)
        for model, benchmark in costs
        if benchmark in cheap or model in block
    ]


def first_plan(
    estimator: Estimator, costs: Mapping[Pair, Cost], design: str, seed: int, budget: float | None
) -> list[PlannedCell]:
    """The first round by `cheap-and-block` or `balanced`."""
    if design == "balanced":
        return balanced(costs, seed, budget)
    rows = estimator.run.models
    return cheap_and_block(costs, {name: estimator.workload.parameters(rows[name]) for name, _ in costs}, seed, budget)


def describe_whole(costs: Mapping[Pair, Cost], planned: Collection[PlannedCell]) -> str | None:
    """That a plan leaves nothing out, and what would; None where it does."""
    if len(planned) < len(costs):
        return None
    line = "This plan is the full grid: it leaves no cell out."
    if len({model for model, _ in costs}) <= LEAST_BLOCK and any(one.reason == IN_BLOCK for one in planned):
        line += f" With {LEAST_BLOCK} models or fewer the block is all of them; `--design balanced` leaves cells out."
    return line


def draw_block(models: Sequence[str], rng: random.Random) -> dict[str, float]:
    """Model -> the probability with which it was drawn: one model from each of equally large groups of neighbours.

    `models`: from the smallest to the largest. 15% of them, and at least 9.
    """
    number = min(len(models), max(LEAST_BLOCK, round(BLOCK_SHARE * len(models))))
    edges = [one * len(models) // number for one in range(number + 1)]
    groups = [models[low:high] for low, high in itertools.pairwise(edges)]
    return {rng.choice(group): 1 / len(group) for group in groups}


def _affordable(costs: Mapping[Pair, Cost], block: Iterable[str], order: Sequence[str], budget: float) -> int:
    """How many benchmarks, cheapest first, all models can be fine-tuned on within a budget of hours."""
    fitting = (n for n in range(len(order), -1, -1) if _hours_of(costs, block, order, n) <= budget)
    return next(fitting, -1)


def _hours_of(costs: Mapping[Pair, Cost], block: Iterable[str], order: Sequence[str], number: int) -> float:
    cheap = set(order[:number])
    return total(costs, (pair for pair in costs if pair[1] in cheap or pair[0] in block)).hours


def balanced(costs: Mapping[Pair, Cost], seed: int, budget: float | None = None) -> list[PlannedCell]:
    """Every model on nearly the same number of benchmarks drawn at random, every benchmark with as many models.

    40% of the cells, or as many as a budget of hours allows. Raises InputError where that leaves a benchmark fewer
    models than a plan needs.
    """
    models, benchmarks = (list(dict.fromkeys(pair[place] for pair in costs)) for place in (0, 1))
    order = _balanced_order(models, benchmarks, random.Random(seed))
    number = round(BALANCED_SHARE * len(order))
    if budget is not None:
        spent, number = 0.0, 0
        for pair in order:
            spent += costs[pair].hours
            if spent > budget:
                break
            number += 1
    chosen = set(order[:number])
    if any(sum(name == benchmark for _, name in chosen) < min(BLOCK, len(models)) for benchmark in benchmarks):
        raise InputError(
            f"{number} of {len(order)} cells leave a benchmark fewer than {BLOCK} models.",
            "raise the budget, or leave benchmarks out.",
        )
    probability = number / len(order)
    return [_planned(*pair, BALANCED, probability, seed) for pair in costs if pair in chosen]


def _balanced_order(models: list[str], benchmarks: list[str], rng: random.Random) -> list[Pair]:
    """All pairs, so that after any number of them models and benchmarks are taken nearly equally often.

    In each turn every model, in random order, takes the benchmark taken least so far that it does not have yet.
    """
    taken = dict.fromkeys(benchmarks, 0)
    free = {model: set(benchmarks) for model in models}
    order = []
    for _ in benchmarks:
        for model in rng.sample(models, len(models)):
            benchmark = min(sorted(free[model]), key=lambda name: (taken[name], rng.random()))
            free[model].remove(benchmark)
            taken[benchmark] += 1
            order.append((model, benchmark))
    return order


def audit(
    costs: Mapping[Pair, Cost],
    planned: Mapping[Pair, PlannedCell],
    number: int,
    seed: int,
    ruled_out: Collection[Pair] = (),
) -> list[PlannedCell]:
    """`number` random cells of those neither planned nor ruled out, as the next round. Raises InputError where there
    are fewer."""
    rest = [pair for pair in costs if pair not in planned and pair not in ruled_out]
    if number > len(rest):
        raise InputError(
            f"--audit {number}: {count(len(rest), 'cell is', 'cells are')} not planned.", "ask for at most as many."
        )
    chosen = set(random.Random(seed).sample(rest, number))
    later, probability = next_round(planned), number / len(rest)
    return [_planned(*pair, AUDIT, probability, seed, later) for pair in rest if pair in chosen]


def next_round(planned: Mapping[Pair, PlannedCell]) -> int:
    """The round after the last one; 1 where nothing is planned yet."""
    return 1 + max((one.round for one in planned.values()), default=0)


def _planned(model: str, benchmark: str, reason: str, probability: float, seed: int, later: int = 1) -> PlannedCell:
    # made here of names of the sheets: nothing to validate
    return PlannedCell.model_construct(
        model=model, benchmark=benchmark, round=later, reason=reason, probability=probability, seed=seed
    )
