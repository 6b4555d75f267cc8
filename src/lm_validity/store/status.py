"""The state of every cell of a run, from files alone."""

from lm_validity.config.grid import Grid
from lm_validity.config.load import Run
from lm_validity.store.check import existing_entries

STATES = ("done", "running", "failed", "missing")


def count_cells(run: Run) -> dict[str, dict[str, int]]:
    """rule -> state -> number of cells. A cell is running while a lease on it is held."""
    grid = Grid(run)
    counts: dict[str, dict[str, int]] = {}
    total: dict[str, int] = {}
    for job in grid.jobs.values():
        counts.setdefault(job.rule, dict.fromkeys(STATES, 0))
        total[job.rule] = total.get(job.rule, 0) + len(job.cells)
    for _, entries in existing_entries(grid, also_aside=True):
        for entry in entries:
            if entry.status in ("done", "failed"):
                counts[entry.cell.rule][entry.status] += 1
    for lease in (run.results / "store" / ".leases").glob("*.json"):
        rule = lease.name.partition(".")[0]
        if rule in counts:
            counts[rule]["running"] += 1
    for rule, states in counts.items():
        states["missing"] = total[rule] - sum(states.values())
    return counts
