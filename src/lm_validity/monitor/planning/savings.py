"""What fine-tuning each model on each benchmark is expected to cost, and what a plan costs and saves of it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from lm_validity.errors import PREFETCH
from lm_validity.monitor.cost import Estimator
from lm_validity.monitor.workload import UNCOUNTED
from lm_validity.run.cell import BenchmarkCell
from lm_validity.run.grid import Grid
from lm_validity.run.rules import rule_of
from lm_validity.run.rules.evaluate_adapter import EVALUATE_ADAPTER
from lm_validity.run.rules.finetune_adapter import FINETUNE_ADAPTER
from lm_validity.words import count, listing

TRAINING_RULES = (FINETUNE_ADAPTER.name, EVALUATE_ADAPTER.name)  # the rules whose cells a plan leaves out
ROUNDING = 1e-9  # of the whole: what sums in another order differ by
Pair = tuple[str, str]  # model, benchmark


class Cost(NamedTuple):
    """Expected hours (GPU hours where the model's size class has GPUs) and floating-point operations."""

    hours: float
    operations: float

    def plus(self, other: "Cost") -> "Cost":
        """The sum of two costs."""
        return Cost(self.hours + other.hours, self.operations + other.operations)


def training_costs(estimator: Estimator) -> dict[Pair, Cost]:
    """(model, benchmark) -> all fine-tunes and the look at test, of every pair of the study, planned or not.

    In the order of the sheets, models outside. Without the start of processes, which several pairs share.
    """
    found: dict[Pair, Cost] = {}
    for job in Grid(replace(estimator.run, plan=None)).jobs.values():
        if job.rule not in TRAINING_RULES:
            continue
        rule = rule_of(job)
        gpus = max(1, rule.size_class(estimator.run, job.model).gpu)
        for cell in job.cells:
            hours = estimator.seconds(cell) * gpus / 3600
            one = Cost(hours, rule.operations(estimator.workload, cell))
            assert isinstance(cell, BenchmarkCell)
            pair = cell.model, cell.benchmark
            found[pair] = found.get(pair, Cost(0.0, 0.0)).plus(one)
    return found


def total(costs: Mapping[Pair, Cost], pairs: Iterable[Pair]) -> Cost:
    """The cost of some pairs together."""
    result = Cost(0.0, 0.0)
    for pair in pairs:
        result = result.plus(costs[pair])
    return result


class Savings(NamedTuple):
    """Expected cost of fine-tuning all pairs, and the planned ones; `calibrated`: by how many finished cells."""

    whole: Cost
    planned: Cost
    calibrated: int

    @property
    def hours(self) -> str:
        """The planned hours of all, in words."""
        return _part(self.planned.hours, self.whole.hours, hours_in_words)

    @property
    def operations(self) -> str:
        """The planned floating-point operations of all, in words."""
        return _part(self.planned.operations, self.whole.operations, "{:.3g}".format)

    @property
    def saved(self) -> str:
        """The hours that the plan saves, in words."""
        spared = self.whole.hours - self.planned.hours
        return hours_in_words(spared if spared > ROUNDING * self.whole.hours else 0.0)


def savings_of(estimator: Estimator, pairs: Iterable[Pair]) -> Savings:
    """What the planned pairs cost, and all of them."""
    costs = training_costs(estimator)
    calibrated = sum(one.rule in TRAINING_RULES for one in estimator.measured)
    return Savings(total(costs, costs), total(costs, set(pairs)), calibrated)


def describe_savings(estimator: Estimator, pairs: Iterable[Pair]) -> str:
    """What the planned pairs cost, and what leaving out the others saves, in one line."""
    found = savings_of(estimator, pairs)
    trust = "" if found.calibrated else " UNCALIBRATED: no finished fine-tune to learn from."
    return (
        f"fine-tuning and scoring of adapters: {found.hours} hours and {found.operations} floating-point operations. "
        f"{found.saved} hours saved, not counting the starts of processes.{trust}"
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
        which = "`evaluation: device` is cpu, and these hours and GPUs are a GPU's"
    else:
        which = f"Size classes with gpu: 0 ({listing(names)}) have the hours of a GPU"
    return f"{which}: the CPU takes many times as long, and no cell finished on a CPU corrects them."


def hours_in_words(value: float) -> str:
    """Hours with as many digits as they deserve."""
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"


def _part(part: float, whole: float, words: Callable[[float], str]) -> str:
    share = f" ({part / whole:.1%})" if whole else ""
    return f"{words(part)} of {words(whole)}{share}"
