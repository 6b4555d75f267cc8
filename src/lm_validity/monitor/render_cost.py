"""What a run is expected to cost, as text for a terminal."""

from lm_validity.config.load import Run
from lm_validity.monitor.cost import Estimator, Need, memory_by_class, needs
from lm_validity.monitor.planning import describe_hours_of_a_gpu, describe_plans, describe_savings
from lm_validity.monitor.status import RunState
from lm_validity.run.rules import RULES
from lm_validity.words import count, listing

NAMED = 6  # ids listed where something had to be assumed


def render_cost(estimator: Estimator, state: RunState) -> str:
    """Jobs, hours, memory and storage, of everything and of what is left; what was assumed; how good the guess is."""
    run = estimator.run
    left = {one.cell for one in state.cells if one.state != "done"}
    lines = [_header(run), *_table(needs(estimator)), ""]
    if len(left) < len(state.cells):
        rest = needs(estimator, left)
        lines.append(
            f"left: {len(left):,} of {len(state.cells):,} cells in {sum(one.jobs for one in rest):,} jobs, "
            f"{_hours(sum(one.hours for one in rest))} hours, "
            f"{_hours(sum(one.gpu_hours for one in rest))} of them on GPUs"
        )
    lines += describe_plans(run)
    if run.plan is not None:
        lines.append(describe_savings(estimator, run.plan))
    lines += [*_memory(estimator), *_storage(estimator, state), "", *_trust(estimator)]
    return "\n".join(lines)


def _header(run: Run) -> str:
    width = max(map(len, RULES))
    return (
        f"{run.name}: expected cost\n{'rule':>{width}} {'cells':>8} {'jobs':>7} {'hours':>10} {'GPU hours':>10} "
        f"{'requested':>10}"
    )


def _table(rows: list[Need]) -> list[str]:
    lines = []
    total = Need(
        "total",
        cells=sum(one.cells for one in rows),
        jobs=sum(one.jobs for one in rows),
        hours=sum(one.hours for one in rows),
        gpu_hours=sum(one.gpu_hours for one in rows),
        requested_gpu_hours=sum(one.requested_gpu_hours for one in rows),
        calibrated=True,
    )
    for one in [*rows, total]:
        lines.append(
            f"{one.rule:>16} {one.cells:>8,} {one.jobs:>7,} {_hours(one.hours):>10} {_hours(one.gpu_hours):>10} "
            f"{one.requested_gpu_hours:>10,.0f}" + ("" if one.calibrated or not one.hours else "  uncalibrated")
        )
    lines.append("hours: of processes, one after the other; requested: GPU hours if every job used its time limit")
    return lines


def _memory(estimator: Estimator) -> list[str]:
    lines = ["memory per job, by size class:"]
    for name, row in memory_by_class(estimator).items():
        text = f"  {name}: {count(row.models, 'model')}; asks for {row.mem_mb / 1000:g} GB, {row.gpus} GPU"
        if row.gpu_gb:
            text += f" with at least {row.gpu_gb:.0f} GB"
        if row.measured_mb:
            text += f"; measured {row.measured_mb / 1000:.1f} GB"
        if row.measured_gpu_mb:
            text += f", on the GPU {row.measured_gpu_mb / 1000:.1f} GB"
        lines.append(text)
    return lines


def _storage(estimator: Estimator, state: RunState) -> list[str]:
    stored = sum(estimator.stored_bytes(one.cell) for one in state.cells)
    models = estimator.workload.model_bytes
    fetched = f"{_bytes(models)} of models from the hub" if models else "no models from the hub"
    return [f"storage: {fetched}, {_bytes(stored)} in the store; data sets not counted"]


def _trust(estimator: Estimator) -> list[str]:
    """How far these figures can be trusted."""
    error = estimator.error()
    lines = [warning] if (warning := describe_hours_of_a_gpu(estimator)) else []
    if not estimator.measured:
        lines.append(
            "UNCALIBRATED: no finished cell to learn from. The hours are an analytic model's, by the gpu_type of each "
            "size class. If documents are assumed, they are far too high (`snakemake prefetch` counts them). Run a "
            "few cells of each size class, then ask again."
        )
    else:
        devices = ", ".join(sorted({one.device for one in estimator.measured}))
        lines.append(f"calibrated with {len(estimator.measured)} finished cells on {devices}")
        if error is None:
            lines.append("one finished cell only: no error can be given")
        else:
            lines.append(
                f"error, predicting each {error.by} from the other {error.by}s: half of the cells are within a factor "
                f"of {error.cell:.2f}, half of the {error.by}s' totals within {error.total:.2f}, all within "
                f"{error.worst:.2f}"
            )
    for what, names in sorted(estimator.workload.assumed.items()):
        lines.append(f"assumed: {what} ({listing(sorted(names), NAMED)})")
    return lines


def _hours(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 or not value else f"{value:.3f}"


def _bytes(value: float) -> str:
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 1000:
            return f"{value:,.1f} {unit}"
    return f"{value / 1000:,.1f} TB"
