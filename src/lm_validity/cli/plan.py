"""`lm-validity plan`: which models are fine-tuned on which benchmarks, from expected cost and before any score."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lm_validity.cli.configfile import DEFAULT, Calibration, Configfile
from lm_validity.config.load import load_run
from lm_validity.errors import InputError


def register(app: typer.Typer) -> None:
    """Add this module's subcommand."""
    app.command()(plan)


def plan(
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
        Path | None, typer.Option(help="File of the plan. Default: plan.tsv beside the configuration.")
    ] = None,
    calibration: Calibration = None,
) -> None:
    """Write the sheet of cells to fine-tune, and say what it costs and saves. If the configuration already has a plan,
    --cells and --audit add a round to it."""
    from lm_validity.config.plan import read_cells
    from lm_validity.monitor import planning
    from lm_validity.monitor.cost import Estimator
    from lm_validity.monitor.planning import (
        check_place,
        describe_hours_of_a_gpu,
        describe_savings,
        describe_uncounted,
        is_plan_of,
        listed_cells,
        training_costs,
        write_plan,
    )

    if sum((cells is not None, audit is not None, budget is not None)) > 1:
        raise InputError("--cells, --audit and --budget exclude each other.", "give only one.")
    run = load_run(configfile)
    if audit is not None and run.plan is None:
        raise InputError(
            f"--audit {audit}: {configfile} has no plan, and an audit adds to one.",
            "make the first plan with `lm-validity plan`, and name it under plan.",
        )
    place = check_place(run, configfile, output, adds_a_round=cells is not None or audit is not None)
    estimator = Estimator(run, map(load_run, calibration or ()))
    costs, before = training_costs(estimator), run.plan or {}
    if cells is not None:
        added = listed_cells(read_cells(cells, *run.agreement_names), before, cells, run.ruled_out)
    elif audit is not None:
        added = planning.audit(costs, before, audit, seed, run.ruled_out)
    else:
        added = planning.first_plan(estimator, costs, design, seed, budget)
    planned = [*before.values(), *added]
    write_plan(place, planned, run)
    print(f"{place}: {len(planned):,} of {len(costs):,} pairs of model and benchmark, {len(added):,} of them new")
    for reason in dict.fromkeys(one.reason for one in added):
        print(f"  {reason}: {sum(one.reason == reason for one in added):,}")
    print(describe_savings(estimator, [(one.model, one.benchmark) for one in planned]))
    warnings = (describe_hours_of_a_gpu(estimator), describe_uncounted(estimator))
    for line in filter(None, (planning.describe_whole(costs, planned), *warnings)):
        print(line)
    if not is_plan_of(run, place):
        print(f"Set `plan: {place}` in {configfile}.")
