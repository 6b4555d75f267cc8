"""What the rules share that take place after the fine-tunes: the selections on validation and the look at test."""

from collections.abc import Iterator

from lm_validity.run.batches import Group
from lm_validity.run.cell import Job
from lm_validity.run.participants import Participants
from lm_validity.run.rules.benchmark_rule import BenchmarkRule


def adapter_groups(rule: BenchmarkRule, plan: Participants) -> Iterator[tuple[str, Group]]:
    """(model, benchmarks that share a job) by `batching.evaluate_adapter`, as evaluations of adapters take."""
    benchmarks = plan.benchmarks("agreement")
    for model in plan.agreement_models if benchmarks else ():
        size = plan.batching(model).evaluate_adapter
        minutes = rule.minutes_by_benchmark(plan, model.model, benchmarks)
        for group in plan.groups(model, benchmarks, size.benchmarks, "benchmarks", minutes=minutes):
            yield model.model, group


def jobs_by_seed(rule: BenchmarkRule, plan: Participants) -> Iterator[Job]:
    """A job for each of `adapter_groups` and seed, with a cell for each benchmark."""
    for model, group in adapter_groups(rule, plan):
        for seed in plan.configuration.finetuning.seeds:
            cells = tuple(rule.cell_type(rule.name, model, name, seed=seed) for name in group.members)
            yield Job(rule.name, model, f"{group.name}.seed{seed}", cells)
