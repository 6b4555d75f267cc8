"""Sparse plans in hours and words: what fine-tunes cost, what a plan saves, and what it leaves out."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from lm_validity.config.load import Run
from lm_validity.errors import PREFETCH
from lm_validity.monitor.cost import UNCOUNTED, Estimator
from lm_validity.run.cell import BenchmarkCell
from lm_validity.run.grid import Grid
from lm_validity.run.rules import rule_of
from lm_validity.run.rules.benchmarks import EVALUATE_ADAPTER, FINETUNE_ADAPTER
from lm_validity.words import count, listing

# ----------------------------------------------------------------------------------------------------------------------
# What fine-tuning each model on each benchmark is expected to cost, and what a plan costs and saves of it.

TRAINING_RULES = (FINETUNE_ADAPTER.name, EVALUATE_ADAPTER.name)  # the rules whose cells a plan leaves out
ROUNDING = 1e-9  # of the whole: what sums in another order differ by
Pair = tuple[str, str]  # model, benchmark


class Cost(NamedTuple):
    """Expected hours (GPU hours where the model's size class has GPUs) and floating-point operations."""

    hours: float
    operations: float

    def plus(self, addend: "Cost") -> "Cost":
        """The sum of two costs."""
        return Cost(self.hours + addend.hours, self.operations + addend.operations)


def training_costs(estimator: Estimator) -> dict[Pair, Cost]:
    """(model, benchmark) -> all fine-tunes and the look at test, of every pair of the study, planned or not.

    In the order of the sheets, models outside. Without the start of processes, which several pairs share.
    """
    costs: dict[Pair, Cost] = {}
    for job in Grid(replace(estimator.run, plan=None)).jobs.values():
        if job.rule not in TRAINING_RULES:
            continue
        rule = rule_of(job)
        gpus = max(1, rule.size_class(estimator.run, job.model).gpu)
        for cell in job.cells:
            hours = estimator.seconds(cell) * gpus / 3600
            cost = Cost(hours, rule.operations(estimator.workload, cell))
            assert isinstance(cell, BenchmarkCell)
            pair = cell.model, cell.benchmark
            costs[pair] = costs.get(pair, Cost(0.0, 0.0)).plus(cost)
    return costs


def total(costs: Mapping[Pair, Cost], pairs: Iterable[Pair]) -> Cost:
    """The cost of some pairs together."""
    result = Cost(0.0, 0.0)
    for pair in pairs:
        result = result.plus(costs[pair])
    return result


class Savings(NamedTuple):
    """Expected cost of fine-tuning all pairs, and the planned ones; `calibrated`: by how many finished cells."""

    all_pairs: Cost
    planned: Cost
    calibrated: int

    @property
    def hours(self) -> str:
        """The planned hours of all, in words."""
        return _part(self.planned.hours, self.all_pairs.hours, hours_in_words)

    @property
    def operations(self) -> str:
        """The planned floating-point operations of all, in words."""
        return _part(self.planned.operations, self.all_pairs.operations, "{:.3g}".format)

    @property
    def saved(self) -> str:
        """The hours that the plan saves, in words."""
        spared = self.all_pairs.hours - self.planned.hours
        return hours_in_words(spared if spared > ROUNDING * self.all_pairs.hours else 0.0)


def savings_of(estimator: Estimator, pairs: Iterable[Pair]) -> Savings:
    """What the planned pairs cost, and all of them."""
    costs = training_costs(estimator)
    calibrated = sum(cell.rule in TRAINING_RULES for cell in estimator.measured)
    return Savings(total(costs, costs), total(costs, set(pairs)), calibrated)


def describe_savings(estimator: Estimator, pairs: Iterable[Pair]) -> str:
    """What the planned pairs cost, and what leaving out the others saves, in one line."""
    savings = savings_of(estimator, pairs)
    trust = "" if savings.calibrated else " UNCALIBRATED: no finished fine-tune to learn from."
    return (
        f"fine-tuning and scoring of adapters: {savings.hours} hours and {savings.operations} floating-point "
        f"operations. {savings.saved} hours saved, not counting the starts of processes.{trust}"
    )


def describe_uncounted(estimator: Estimator) -> str | None:
    """A warning where benchmarks' costs rest on the splits' caps instead of counted documents; None where none do."""
    names = estimator.workload.assumed.get(UNCOUNTED, ())
    if not names:
        return None
    return (
        f"Documents of {count(len(names), 'benchmark')} are not counted yet, so cheap ones cannot be told from costly "
        f"ones. Run {PREFETCH}, then plan."
    )


def describe_hours_of_a_gpu(estimator: Estimator) -> str | None:
    """A warning where what computes on a CPU is estimated by a GPU's speed; None where nothing is."""
    names = estimator.of_a_gpu()
    if not names:
        return None
    if estimator.run.configuration.evaluation.device == "cpu":
        caveat = "`evaluation: device` is cpu, and these hours and GPUs are a GPU's"
    else:
        caveat = f"Size classes with gpu: 0 ({listing(names)}) have the hours of a GPU"
    return f"{caveat}: the CPU takes many times as long, and no cell finished on a CPU corrects them."


def hours_in_words(value: float) -> str:
    """Hours with as many digits as they deserve."""
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"


def _part(part: float, total: float, words: Callable[[float], str]) -> str:
    share = f" ({part / total:.1%})" if total else ""
    return f"{words(part)} of {words(total)}{share}"


# ----------------------------------------------------------------------------------------------------------------------
# What a plan leaves out, in words: it is not planned, which is not the same as missing.


def unplanned_pairs(run: Run) -> list[tuple[str, str]]:
    """(model, benchmark) of the agreement study that the plan leaves out, in the order of the sheets."""
    grid = Grid(run)
    return [
        (model.model, benchmark)
        for model in grid.agreement_models
        for benchmark in grid.benchmarks("agreement")
        if not grid.is_planned(model.model, benchmark)
    ]


def describe_plan(run: Run) -> str | None:
    """One line on how much is planned; None where there is no plan."""
    if run.plan is None:
        return None
    unplanned, rounds = len(unplanned_pairs(run)), max(cell.round for cell in run.plan.values())
    return (
        f"plan {run.configuration.plan}: {len(run.plan):,} of {len(run.plan) + unplanned:,} pairs of model and "
        f"benchmark are fine-tuned, in {count(rounds, 'round')}. {unplanned:,} are not planned and do not count as "
        "missing. All are scored under direct evaluation."
    )


def describe_plans(run: Run) -> list[str]:
    """A line on the plan of each study that has one."""
    return [line for line in (describe_plan(run), describe_bias_plan(run)) if line]


def describe_bias_plan(run: Run) -> str | None:
    """One line on how many subsamples are planned; None where all are."""
    plan = run.bias_plan
    if plan is None:
        return None
    parts = []
    for name, experiment in run.bias.experiments.items():
        numbers = [plan.planned(name, task) for task in experiment.tasks or run.tasks]
        low, high = min(numbers), max(numbers)
        parts.append(f"{name}: {low} to {high}" if low < high else f"{name}: {low}")
        parts[-1] += f" of {plan.subsamples[name]} subsamples of {count(len(numbers), 'task')}"
    return (
        f"plan {run.bias.plan}: {'; '.join(parts)}. Tasks whose interval is ±{plan.half_width:g} or narrower stop. "
        "`lm-validity plan next` continues with the others. What is not planned does not count as missing."
    )
