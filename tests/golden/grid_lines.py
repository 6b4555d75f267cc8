"""What Snakemake sees of every shipped configuration: jobs, cells, settings lines, files and resources, as digests.

    python tests/golden/grid_lines.py --renew    write grid_lines.json anew, in the commit that means to change them

A digest that changes means that finished runs would rerun jobs, or that jobs ask for something else.
"""

import hashlib
import json
import sys
from pathlib import Path

from lm_validity.config.load import load_run
from lm_validity.run.cell import Cell
from lm_validity.run.rules import RULES
from lm_validity.run.workspace import Grid

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = Path(__file__).with_name("grid_lines.json")
CONFIGURATIONS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "config").rglob("*.yaml"))


def describe(configuration: str) -> dict:
    """Rule -> number of jobs and a digest of them, in their order; run from the repository's root."""
    run = load_run(configuration)
    grid = Grid(run)
    rows: dict[str, list] = {}
    for job in grid.jobs.values():
        rule = RULES[job.rule]
        resources = [list(rule.resources(run, job, attempt)) for attempt in (1, 2)]
        files = [grid.manifests(job), grid.dependencies(job), rule.data_files(run, job)]
        row = [*job[:3], [parts(cell) for cell in job.cells], grid.settings(job), *files, *resources]
        rows.setdefault(job.rule, []).append(row)
    found = {name: {"jobs": len(jobs), "sha256": digest(jobs)} for name, jobs in rows.items()}
    return found | {"points": grid.describe_points()}


def parts(cell: Cell) -> list:
    """The parts of a cell; without that of sampled runs where it has none, as in the records of before."""
    return list(cell)[:-1] if getattr(cell, "run", 0) is None else list(cell)


def digest(rows: list) -> str:
    """Sixteen hex digits of the SHA-256 of JSON values."""
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


if __name__ == "__main__":
    if sys.argv[1:] != ["--renew"]:
        sys.exit(__doc__)
    EXPECTED.write_text(json.dumps({path: describe(path) for path in CONFIGURATIONS}, indent=1) + "\n")
