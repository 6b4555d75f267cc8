"""`lm-validity plan`: which models are fine-tuned on which benchmarks, first from expected cost and before any score,
then in rounds by what was measured."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lm_validity.cli.options import DEFAULT, Calibration, Configfile, WholeHelp, snakemake_command
from lm_validity.config.load import Run, build_run, load_run, read_values
from lm_validity.errors import InputError
from lm_validity.files import write_text
from lm_validity.monitor.render import describe_savings, warnings_of
from lm_validity.monitor.status import Estimator, total, training_costs
from lm_validity.plans import drawing
from lm_validity.run.rules.base import Participants
from lm_validity.words import count, listing, say

if TYPE_CHECKING:
    from lm_validity.plans.rounds import Goal, Round

NAMED = 6  # benchmarks listed where some were not counted
GoalOption = Annotated[
    str | None,
    typer.Option(
        help="Goal of the agreement study. tau=.95: the expected agreement with the full grid's ranking. rank=2: no "
        "rank interval reaches more than 2 places up or down. budget=500: the hours that the whole plan takes."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the first round.")]


def register(app: typer.Typer) -> None:
    """Add `plan` with its subcommands."""
    group = typer.Typer(
        cls=WholeHelp, invoke_without_command=True, subcommand_metavar="[COMMAND [ARGS]...]", rich_markup_mode=None
    )
    group.callback()(plan)
    for name, command in SUBCOMMANDS.items():
        group.command(name)(command)
    app.add_typer(group, name="plan")


def plan(
    context: typer.Context,
    configfile: Configfile = DEFAULT,
    design: Annotated[
        Literal["cheap-and-block", "balanced"],
        typer.Option(
            help="The cheap benchmarks for all models and all benchmarks for some, or a random share of all cells."
        ),
    ] = "cheap-and-block",
    cells: Annotated[Path | None, typer.Option(help="Your own list instead: columns model and benchmark.")] = None,
    audit: Annotated[int | None, typer.Option(min=1, help="Add a round of this many random unplanned cells.")] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            min=0, help="Upper limit in hours for fine-tuning and for scoring adapters, as `cost` counts them."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random draws.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File of the plan. Default: plan.tsv beside the configuration."),
    ] = None,
    calibration: Calibration = None,
) -> None:
    """Write the sheet of cells to fine-tune, and say what it costs and saves. If the configuration already has a plan,
    --cells and --audit add a round to it."""
    if context.invoked_subcommand is not None:
        sources = ((name, context.get_parameter_source(name)) for name in context.params)
        for name in (name for name, source in sources if source is not None and source.name == "COMMANDLINE"):
            command = f"plan {context.invoked_subcommand}"
            raise InputError(f"--{name} comes before the subcommand of `{command}`.", f"write {command} --{name} ...")
        return
    if sum((cells is not None, audit is not None, budget is not None)) > 1:
        raise InputError("--cells, --audit and --budget exclude each other.", "give only one.")
    run = load_run(configfile)
    if audit is not None and run.plan is None:
        raise InputError(
            f"--audit {audit}: {configfile} has no plan, and an audit adds to one.",
            "make the first plan with `lm-validity plan`, and name it under plan.",
        )
    plan_path = drawing.check_place(run, configfile, output, adds_a_round=cells is not None or audit is not None)
    estimator = Estimator(run, map(load_run, calibration or ()))
    costs, earlier_plan = training_costs(estimator), run.plan or {}
    if cells is not None:
        added = drawing.listed_cells(run, cells)
    elif audit is not None:
        added = drawing.audit(costs, earlier_plan, audit, seed, run.ruled_out)
    else:
        added = drawing.first_plan(estimator, costs, design, seed, budget)
    planned = [*earlier_plan.values(), *added]
    drawing.write_plan(plan_path, planned, run)
    say(f"{plan_path}: {len(planned):,} of {len(costs):,} pairs of model and benchmark, {len(added):,} of them new")
    for reason in dict.fromkeys(cell.reason for cell in added):
        say(f"  {reason}: {sum(cell.reason == reason for cell in added):,}")
    say(describe_savings(estimator, [(cell.model, cell.benchmark) for cell in planned]))
    say(*warnings_of(estimator))
    if not drawing.is_plan_of(run, plan_path):
        say(f"Set `plan: {plan_path}` in {configfile}.")


def next_round(goal: GoalOption = None, configfile: Configfile = DEFAULT, calibration: Calibration = None) -> None:
    """Add a round, and say why. Agreement study, with --goal: the unmeasured cells that make the ranks most certain for
    the fewest hours. They count towards ranks, not towards agreement. Bias study, if tasks stop on the width of their
    interval: a batch of subsamples for the tasks whose interval is too wide."""
    from lm_validity.plans.rounds import parse_goal

    _add_rounds(configfile, None if goal is None else parse_goal(goal), calibration)


def run_rounds(
    goal: GoalOption = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments for snakemake, after a --.")] = None,
    configfile: Configfile = DEFAULT,
    seed: Seed = 0,
    calibration: Calibration = None,
) -> None:
    """Run the workflow, add a round as `plan next` does, and repeat until there is nothing to add. If the
    configuration's `plan` names a file that does not exist yet, write the first plan to it. A second call continues."""
    from lm_validity.plans.rounds import parse_goal

    target, options = None if goal is None else parse_goal(goal), tuple(arguments or ())
    snakemake_command()  # which says so where it is not installed
    for option in (option for option in options if option.startswith(("-n", "--dry", "--unlock"))):
        raise InputError(f"{option}: nothing is computed with it, and a round depends on results.", "leave it out.")
    if target is None:
        _load_what_goes_on(configfile, target)
    else:
        _plan_first(configfile, target, seed, calibration, options)
    while True:
        _run_workflow(configfile, *options)
        chosen_round, added = _add_rounds(configfile, target, calibration)
        if added:
            continue
        if chosen_round is not None and not chosen_round.reached:
            sys.exit(1)
        return


def add_model(
    model: Annotated[str, typer.Argument(help="Id of the model. Its row must already be in the models sheet.")],
    goal: Annotated[
        str | None,
        typer.Option(
            help="rank=2: its rank interval reaches at most 2 places up or down. budget=5: hours of its cells. Without "
            "a goal, nothing is planned."
        ),
    ] = None,
    configfile: Configfile = DEFAULT,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File of the plan, if there is none yet. Default: plan.tsv beside the configuration."
        ),
    ] = None,
    calibration: Calibration = None,
) -> None:
    """Say which few cells place a new model among those of a finished study, at what cost, and with what interval. With
    --goal, these cells become a round of the plan."""
    from lm_validity.plans.rounds import (
        describe_cells,
        describe_joining,
        earlier_cells,
        joining_cells,
        parse_goal,
        place_model,
    )

    target = None if goal is None else parse_goal(goal)
    if target is not None and target.kind == "tau":
        raise InputError(f"--goal {goal}: one model cannot be ranked.", "write rank=2 or budget=5.")
    run = load_run(configfile)
    earlier = earlier_cells(run, model)
    plan_path = None if target is None else drawing.check_place(run, configfile, output, adds_a_round=True)
    joining = place_model(run, model, training_costs(Estimator(run, map(load_run, calibration or ()))))
    for line in describe_joining(joining):
        say(line)
    if plan_path is None or target is None:
        return
    say(describe_cells(joining, target))
    cells = joining_cells(joining, target, earlier)
    if not cells:
        return
    drawing.write_plan(plan_path, [*earlier.values(), *cells], run)
    say(f"{plan_path}: {count(len(cells), 'cell')} of {model} added as round {cells[0].round}")
    if not drawing.is_plan_of(run, plan_path):
        say(f"Set `plan: {plan_path}` in {configfile}.")


SUBCOMMANDS: dict[str, Callable[..., int | None]] = {"next": next_round, "run": run_rounds, "add-model": add_model}


def _plan_first(
    configfile: Path, goal: "Goal", seed: int, calibration: Iterable[Path] | None, options: tuple[str, ...]
) -> None:
    """Write the first round, unless it is there. Documents are counted before, so that cheap benchmarks are known."""
    import yaml

    values = read_values(configfile)
    plan_path = values.get("plan") if isinstance(values, dict) else None
    if not isinstance(values, dict) or not isinstance(plan_path, str) or not plan_path:
        raise InputError(
            f"{configfile}: key 'plan' names no file.", "set `plan: plan.tsv`. The plan will be written there."
        )
    if Path(plan_path).is_file():
        return
    unplanned = values | {"plan": None}
    run = build_run(unplanned, str(configfile))
    copy = run.results / "unplanned.yaml"
    write_text(copy, yaml.safe_dump(unplanned))
    _run_workflow(copy, "prefetch", *options)
    _check_counted(run)
    estimator = Estimator(run, map(load_run, calibration or ()))
    costs = training_costs(estimator)
    cells = drawing.first_plan(estimator, costs, "cheap-and-block", seed, None)
    if goal.kind == "budget" and total(costs, ((cell.model, cell.benchmark) for cell in cells)) > goal.value:
        cells = drawing.first_plan(estimator, costs, "cheap-and-block", seed, goal.value)
    drawing.write_plan(Path(plan_path), cells, run)
    say(f"{plan_path}: round 1, {len(cells):,} of {len(costs):,} pairs of model and benchmark")


def _check_counted(run: Run) -> None:
    """Raises InputError where Snakemake ended well and benchmarks have no record: it was asked for something else than
    to run the workflow (--summary, --lint, --touch, --dag), and cheap benchmarks cannot be told from costly ones."""
    folder = run.results / "prefetch" / "benchmarks"
    missing = [name for name in Participants(run).used_benchmarks if not (folder / f"{name}.json").is_file()]
    if missing:
        raise InputError(
            f"{folder}: Snakemake ended well, but documents of {count(len(missing), 'benchmark')} are not counted "
            f"({listing(missing, NAMED)}), so no plan was written.",
            "leave out options with which Snakemake does not run the workflow, such as -n.",
        )


def _run_workflow(configfile: Path, *options: str) -> None:
    code = run_to_its_end(snakemake_command(*options, "--configfile", str(configfile)))
    if code:
        sys.exit(code)


def run_to_its_end(command: Sequence[str]) -> int:
    """Run a command; its exit code, 128 + number where a signal ended it, or came here and it ended with 0.

    Ctrl-C reaches the command too, which may take a while to stop its jobs: it is waited for. (`subprocess.run` would
    kill it after a quarter of a second.) SIGTERM is passed on to it.
    """
    received: list[int] = []
    with subprocess.Popen(command) as process:

        def pass_on(number: int, frame: object) -> None:
            received.append(number)
            if number == signal.SIGTERM:
                process.send_signal(number)

        handlers = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            code = process.wait()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    if code == 0 and received:
        return 128 + received[0]
    return 128 - code if code < 0 else code


def _add_rounds(
    configfile: Path, goal: "Goal | None", calibration: Iterable[Path] | None
) -> "tuple[Round | None, int]":
    """(the agreement study's round, if a goal is given; how many rows the plans of all studies got)."""
    from lm_validity.plans import rounds

    run, chosen_round, added = _load_what_goes_on(configfile, goal), None, 0
    if goal is not None:
        plan_path = rounds.plan_place(run, configfile)
        standing = rounds.standing_of(run)
        assert run.plan is not None, "plan_place has seen to it"
        rounds.check_finished(standing, run.plan)
        costs = training_costs(Estimator(run, map(load_run, calibration or ())))
        chosen_round = rounds.choose_round(standing, goal, costs)
        if chosen_round.cells:
            drawing.write_plan(plan_path, [*run.plan.values(), *chosen_round.cells], run)
        added = len(chosen_round.cells)
        say(*rounds.describe_round(chosen_round))
    if run.bias_plan is not None:
        lines, rows = rounds.add_batch(run)
        added += rows
        say(*lines)
    return chosen_round, added


def _load_what_goes_on(configfile: Path, goal: "Goal | None") -> Run:
    """The run. Raises InputError where no study in it goes on: before the workflow, which may take days."""
    run = load_run(configfile)
    if goal is None and run.bias_plan is None:
        raise InputError(
            f"{configfile}: no study in it continues without a goal.",
            "give --goal for a plan of the agreement study, or set bias.stop_at_half_width.",
        )
    return run
