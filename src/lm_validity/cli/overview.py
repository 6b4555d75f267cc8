"""Subcommands that say how a run stands and what it will cost. They read files and change nothing."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from lm_validity.cli.configfile import DEFAULT, Calibration, Configfile
from lm_validity.config.load import load_run


def register(app: typer.Typer) -> None:
    """Add this module's subcommands."""
    for command in (status, cost, config):
        app.command()(command)


def status(
    configfile: Configfile = DEFAULT,
    html: Annotated[Path | None, typer.Option(help="Also write the matrix as a page.")] = None,
    matrix: Annotated[bool, typer.Option(help="Print the matrix of models and benchmarks.")] = True,
    watch: Annotated[float | None, typer.Option(min=1, help="Repeat after this many seconds.")] = None,
) -> None:
    """Say which cells are done, running, failed, stale or missing, and the rate and expected finish. Only reads."""
    from lm_validity.files import write_text
    from lm_validity.monitor.cost import Estimator
    from lm_validity.monitor.planning import unplanned_pairs
    from lm_validity.monitor.render import render_matrix, render_page, render_summary
    from lm_validity.monitor.status import RunState, progress

    while True:
        run = load_run(configfile)
        state = RunState(run)
        so_far = progress(state.cells, Estimator(run).seconds)
        print(render_summary(state, so_far))
        if matrix:
            print(render_matrix(state.cells, unplanned_pairs(run)))
        if html is not None:
            write_text(html, render_page(run.name, state, so_far, refresh=watch))
            print(html)
        if watch is None or so_far.done == so_far.cells:
            return
        sys.stdout.flush()
        time.sleep(watch)


def config(
    configfile: Configfile = DEFAULT,
    defaults: Annotated[bool, typer.Option("--defaults", help="With the defaults instead, without a run.")] = False,
) -> None:
    """Print every key of a run's configuration with its meaning and value."""
    from lm_validity.config.generate import render_defaults, render_yaml

    print(render_defaults() if defaults else render_yaml(load_run(configfile).configuration), end="")


def cost(
    configfile: Configfile = DEFAULT,
    calibration: Calibration = None,
) -> None:
    """Say how many jobs, GPU hours, memory and storage a run is expected to take."""
    from lm_validity.monitor.cost import Estimator
    from lm_validity.monitor.render import render_cost
    from lm_validity.monitor.status import RunState

    run = load_run(configfile)
    print(render_cost(Estimator(run, map(load_run, calibration or ())), RunState(run)))
