"""The signal study's first stage, decided: which benchmarks get the other checkpoints."""

from pathlib import Path

from lm_validity.config.load import Run
from lm_validity.config.signal_plan import COLUMNS, DecidedBenchmark, SignalPlan, read_decisions
from lm_validity.errors import InputError
from lm_validity.monitor.planning import write_sheet
from lm_validity.run.participants import Participants
from lm_validity.studies.signal.curves import LearningCurves, read_learning_curves
from lm_validity.studies.signal.stages import first_stage
from lm_validity.summaries import is_known
from lm_validity.words import count, listing

NAMED = 6  # scores listed where some are missing


def add_stage(run: Run) -> tuple[list[str], int]:
    """Write what the first stage says of benchmarks that are not decided yet: lines on them, and how many there are.

    Each is a row for which the workflow runs again, also where none gets the other checkpoints: the page says what was
    decided.

    Raises InputError where scores of the first stage are not in the run's table.
    """
    plan, configuration = _plan(run), run.configuration
    benchmarks = Participants(run).benchmarks("signal")
    waiting = [name for name in benchmarks if name not in plan.rows]
    if not waiting:
        return [f"the first stage of the signal study has decided on all {len(benchmarks)} benchmarks"], 0
    scores = run.results / "tables" / "scores.parquet"
    if not scores.is_file():
        raise InputError(f"{scores}: no such file.", "run the workflow first. Benchmarks are decided by their scores.")
    assert configuration.models is not None, "the study signal has them"
    learning = read_learning_curves(
        scores, configuration.models, configuration.benchmarks, configuration.reports.checkpoints, plan.is_planned
    )
    _check_finished(run, learning, waiting)
    number = 1 + max((row.round for row in plan.rows.values()), default=1)
    rows = [_decide(run, learning, name, number) for name in waiting]
    place = Path(plan.settings.plan)
    write_sheet(
        place,
        COLUMNS,
        [*plan.rows.values(), *rows],
        unchanged=lambda: read_decisions(place, benchmarks) == plan.rows,
        read_back=lambda temporary: read_decisions(temporary, benchmarks),
    )
    undecided = sum(row.verdict == "undecided" for row in rows)
    lines = [f"  {_describe(row)}" for row in rows]
    return [*lines, f"{place}: {undecided} of {len(rows)} benchmarks get all checkpoints"], len(rows)


def _plan(run: Run) -> SignalPlan:
    """The plan of a run that has one."""
    assert run.signal_plan is not None
    return run.signal_plan


def _decide(run: Run, learning: LearningCurves, benchmark: str, number: int) -> DecidedBenchmark:
    plan, ties = _plan(run), run.configuration.reports.signal.ties
    value, models = first_stage(learning, benchmark, plan, ties)
    mean = value if is_known(value) else None
    return DecidedBenchmark.model_construct(
        benchmark=benchmark, round=number, verdict=plan.verdict(mean), rank_correlation=mean, models=models
    )


def _describe(row: DecidedBenchmark) -> str:
    if row.rank_correlation is None or row.models is None:
        return f"{row.benchmark}: {row.verdict}, no model has a first stage"
    return f"{row.benchmark}: {row.verdict}, rank correlation {row.rank_correlation:.2f} ({count(row.models, 'model')})"


def _check_finished(run: Run, learning: LearningCurves, benchmarks: list[str]) -> None:
    """Raises InputError where a first stage is not in the table whole."""
    missing = [
        f"{model} on {name}"
        for name in benchmarks
        for model, first in _plan(run).first.items()
        if first and not first <= set(_checkpoints(learning, name, model))
    ]
    if missing:
        raise InputError(
            f"{count(len(missing), 'curve of the first stage is', 'curves of the first stage are')} not whole in "
            f"{run.results}/tables yet "
            f"({listing(missing, NAMED)}).",
            "run the workflow first.",
        )


def _checkpoints(learning: LearningCurves, benchmark: str, model: str) -> tuple[str, ...]:
    curve = learning.curves.get(benchmark, {}).get(model)
    return () if curve is None else curve.checkpoints
