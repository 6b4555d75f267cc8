"""What a plan leaves out, in words: it is not planned, which is not the same as missing."""

from lm_validity.config.load import Run
from lm_validity.monitor.cost import Estimator
from lm_validity.monitor.planning.savings import savings_of
from lm_validity.pages.page import Finding
from lm_validity.run.grid import Grid
from lm_validity.words import count


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
    rest, rounds = len(unplanned_pairs(run)), max(one.round for one in run.plan.values())
    return (
        f"plan {run.configuration.plan}: {len(run.plan):,} of {len(run.plan) + rest:,} pairs of model and benchmark "
        f"are fine-tuned, in {count(rounds, 'round')}. {rest:,} are not planned and do not count as missing. All are "
        "scored under direct evaluation."
    )


def describe_plans(run: Run) -> list[str]:
    """A line on the plan of each study that has one."""
    return [line for line in (describe_plan(run), describe_bias_plan(run), describe_signal_plan(run)) if line]


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
        parts[-1] += f" of {plan.most[name]} subsamples of {count(len(numbers), 'task')}"
    return (
        f"plan {run.bias.plan}: {'; '.join(parts)}. Tasks whose interval is ±{plan.half_width:g} or "
        "narrower stop. `lm-validity next` continues with the others. What is not planned does not count as missing."
    )


def describe_signal_plan(run: Run) -> str | None:
    """One line on the two stages of the signal study; None where it has one."""
    plan = run.signal_plan
    if plan is None:
        return None
    benchmarks = Grid(run).benchmarks("signal")
    open_ones = sum(name not in plan.rows for name in benchmarks)
    whole = sum(map(len, plan.rounds.values()))
    decided = len(benchmarks) - open_ones - whole
    parts = [
        f"{decided} of {count(len(benchmarks), 'benchmark')} {'is' if decided == 1 else 'are'} decided on the first "
        "quarter of training",
        f"{whole} undecided {'gets' if whole == 1 else 'get'} all checkpoints",
        f"{open_ones} {'waits' if open_ones == 1 else 'wait'} for `lm-validity next`",
    ]
    return f"plan {plan.settings.plan}: {', '.join(parts)}. What is not planned does not count as missing."


def plan_finding(run: Run) -> Finding | None:
    """What the plan spares, for a page; None where there is no plan."""
    if run.plan is None:
        return None
    whole, found = len(run.plan) + len(unplanned_pairs(run)), savings_of(Estimator(run), run.plan)
    sentence = (
        f"The plan fine-tunes {len(run.plan):,} of {whole:,} pairs of model and benchmark. It is expected to take "
        f"{found.hours} hours and saves {found.saved}."
    )
    learned = (
        f"the hours are calibrated with {count(found.calibrated, 'finished cell')}"
        if found.calibrated
        else "no finished cell calibrates the hours"
    )
    return Finding(
        sentence,
        f"Fine-tunes and their test scores, without the starts of processes; {learned}. In floating-point operations "
        f"{found.operations}.",
    )
