"""What the rules share that take place after the fine-tunes: the selections on validation and the look at test."""

from collections.abc import Iterator

from lm_validity.config.sheets import Model
from lm_validity.run.cell import BenchmarkCell, Group, Job
from lm_validity.run.participants import Participants
from lm_validity.run.rules.benchmark_rule import BenchmarkRule


def adapter_groups(rule: BenchmarkRule, plan: Participants, model: Model, benchmarks: tuple[str, ...]) -> list[Group]:
    """Benchmarks of a model that share a job by `batching.evaluate_adapter`, as evaluations of adapters take."""
    size = plan.configuration.batching.evaluate_adapter
    minutes = rule.minutes_by_benchmark(plan, model.model, benchmarks)
    return plan.groups(model, benchmarks, size.benchmarks, "benchmarks", minutes=minutes)


def jobs_by_seed(rule: BenchmarkRule, plan: Participants) -> Iterator[Job[BenchmarkCell]]:
    """A job for each model, round of the plan, of `adapter_groups` and seed, with a cell for each benchmark."""
    for model in plan.agreement_models:
        for end, benchmarks in plan.rounds(model.model):
            for group in adapter_groups(rule, plan, model, benchmarks):
                for seed in plan.configuration.finetuning.seeds:
                    cells = tuple(rule.cell_type(rule.name, model.model, name, seed=seed) for name in group.members)
                    yield Job(rule.name, model.model, f"{group.name}.seed{seed}{end}", cells)
