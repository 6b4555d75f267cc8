"""Do the intervals hold what they should, how often, in which worlds? Simulated tables of known truth.

    python -m benchmarks.coverage run [--tables 500] [--world normal] [--size 61x24] [--budget MINUTES]
    python -m benchmarks.coverage page

Both take --results FOLDER (results/coverage); `page` takes --page FILE (docs/reference/coverage.md).

`run` computes the tables that are not in the folder yet, of all worlds and sizes or of those named, and may be killed
at any time. `page` writes what is there. Table number t of a world and size is the same in every run.
"""

import argparse
import time
import zlib
from functools import cache
from pathlib import Path

import numpy as np
from benchmarks.coverage import results
from benchmarks.coverage.studies import STUDIES, Simulate, Study

STEP = 100  # tables of one world before the next has its turn


def run(study: Study, world: str, size: str, tables: int, folder: Path, deadline: float) -> None:
    """Compute the rows of a world and size that are missing, until the deadline (seconds of `time.monotonic`)."""
    path = folder / f"{study.name}-{world}-{size}.csv"
    done = results.finished(path)
    if done >= tables or time.monotonic() > deadline:
        return
    seed = zlib.crc32(f"{study.name} {world} {size}".encode())
    simulate = prepared(study.name, world, size, seed)
    for table in range(done, tables):
        if time.monotonic() > deadline:
            return
        started = time.process_time()
        found = simulate(np.random.default_rng([seed, table]))
        results.append(path, table, time.process_time() - started, found)
    print(f"{path.stem}: {tables} tables", flush=True)


@cache
def prepared(study: str, world: str, size: str, seed: int) -> Simulate:
    """What simulates a table: the truth of a world may take seconds."""
    return next(one for one in STUDIES if one.name == study).prepare(world, size, [seed])


def main() -> None:
    """Run simulations or write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("run", "page"))
    parser.add_argument("--tables", type=int, default=500, help="tables of each world and size (500)")
    parser.add_argument("--world", action="append", help="a world; may be repeated (all)")
    parser.add_argument("--size", action="append", help="a size; may be repeated (all)")
    parser.add_argument("--budget", type=float, default=float("inf"), help="minutes after which no table is begun")
    parser.add_argument("--results", type=Path, default=Path("results/coverage"))
    parser.add_argument("--page", type=Path, default=Path("docs/reference/coverage.md"))
    options = parser.parse_args()
    if options.action == "page":
        from benchmarks.coverage.page import write_page

        write_page(options.results, options.page)
        return
    deadline = time.monotonic() + 60 * options.budget
    for group in chosen(parser, options.world, options.size):
        for tables in [*range(STEP, options.tables, STEP), options.tables]:
            for study, world, size in group:
                run(study, world, size, tables, options.results, deadline)


def chosen(parser: argparse.ArgumentParser, worlds: list[str] | None, sizes: list[str] | None) -> list[list]:
    """Groups of (study, world, size) of those named; a group's worlds take turns, the largest sizes come last."""
    groups = [
        [
            (study, world, size)
            for study in STUDIES
            for size in study.sizes[rank : rank + 1]
            for world in study.worlds
            if (not worlds or world in worlds) and (not sizes or size in sizes)
        ]
        for rank in range(max(len(study.sizes) for study in STUDIES))
    ]
    if not any(groups):
        every = {name for study in STUDIES for name in (*study.worlds, *study.sizes)}
        parser.error(f"no such world or size. Hint: there are {', '.join(sorted(every))}.")
    return groups


if __name__ == "__main__":
    main()
