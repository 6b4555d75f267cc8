"""How the cost of reports grows with the size of a table: models, benchmarks, checkpoints, items.

    python benchmarks/large_tables.py --output FILE.json [--folder FOLDER] [--only NAME ...]

Each size is a table of random scores with a common ability, a part of each benchmark's own and binomial noise, under
both protocols, and is read by the command of its row in a process of its own. CPU-seconds are those of all its
processes, the memory that of the largest. A row with a limit has a ratio: the limit over what was measured.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from _measure import write_records

from lm_validity.tables.schema import DIRECT, ITEMS, SCORES, TRAINED, write_table

N_ITEMS = 1000  # behind each score
SCALE = 1.8  # between a normal ability and its logit


@dataclass(frozen=True)
class Size:
    """A table's size and the command on it. `cpu`, `mb`: limits, None for none; `items`: documents of each benchmark
    in a table of items; with `checkpoints` the scores are direct ones along the training of each model."""

    command: str
    models: int
    benchmarks: int
    checkpoints: int = 1
    items: int = 0
    cpu: float | None = None
    mb: float | None = None

    @property
    def name(self) -> str:
        """`agreement_100x160`."""
        more = f"_{self.checkpoints}_checkpoints" * (self.checkpoints > 1) + f"_{self.items}_items" * (self.items > 0)
        return f"{self.command}_{self.models}x{self.benchmarks}{more}"


SIZES = (
    Size("agreement", 100, 6),
    Size("agreement", 100, 40),
    Size("agreement", 100, 160, cpu=30, mb=1500),
    Size("agreement", 400, 6),
    Size("agreement", 1600, 6, cpu=60, mb=1500),
    Size("factors", 100, 40),
    Size("factors", 100, 160),
    Size("factors", 400, 6),
    Size("factors", 1600, 6),
    Size("signal", 20, 20, checkpoints=10),
    Size("signal", 20, 20, checkpoints=40),
    Size("signal", 80, 20, checkpoints=10),
    Size("signal", 20, 80, checkpoints=10),
    Size("items", 20, 6, items=250),
    Size("items", 20, 6, items=1000),
    Size("items", 80, 6, items=250),
    Size("items", 20, 24, items=250),
    Size("report", 100, 24),
    Size("report", 416, 128, cpu=180, mb=1500),
)


def accuracies(size: Size, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """By protocol true accuracies (models, checkpoints, benchmarks)."""
    ability = rng.normal(size=(size.models, 1, 1))
    own = rng.normal(size=(size.models, 1, size.benchmarks))
    hardness = rng.normal(size=size.benchmarks)
    training = np.linspace(-1.5, 0, size.checkpoints)[:, None] if size.checkpoints > 1 else 0.0
    logits = {DIRECT: ability + own - hardness + training, TRAINED: ability + own / 2 - hardness + 0.5}
    protocols = (DIRECT,) if size.checkpoints > 1 or size.items else (DIRECT, TRAINED)
    return {p: 1 / (1 + np.exp(-SCALE * logits[p])) for p in protocols}


def write_world(size: Size, folder: Path) -> None:
    """scores.parquet, with `items` items.parquet, and both sheets."""
    rng = np.random.default_rng(0)
    models = np.array([f"family{i % 40}/model{i}" for i in range(size.models)])
    benchmarks = np.array([f"bench{j}" for j in range(size.benchmarks)])
    grid = np.indices((size.models, size.checkpoints, size.benchmarks)).reshape(3, -1)
    frames, correct = [], None
    for protocol, truth in accuracies(size, rng).items():
        n = size.items or N_ITEMS
        if size.items:
            correct = rng.random((*truth.shape, n)) < truth[..., None]
            values = correct.mean(axis=-1).ravel()
        else:
            values = rng.binomial(n, truth).ravel() / n
        step = grid[1] + 1
        frame = pd.DataFrame({"model": models[grid[0]], "benchmark": benchmarks[grid[2]], "value": values})
        frame = frame.assign(protocol=protocol, stderr=np.sqrt(values * (1 - values) / n), n_items=n)
        if size.checkpoints > 1:
            frame = frame.assign(checkpoint=[f"step{k}" for k in step], iteration=step * 1000, tokens_b=step * 10.0)
        frames.append(frame.reindex(columns=SCORES.names).assign(checkpoint=frame.get("checkpoint", "final")))
    write_table(pd.concat(frames, ignore_index=True), SCORES, folder / "scores.parquet")
    if correct is not None:
        rows = np.repeat(np.arange(grid.shape[1]), size.items)
        items = pd.DataFrame({"model": models[grid[0]][rows], "benchmark": benchmarks[grid[2]][rows]})
        items = items.assign(checkpoint="final", protocol=DIRECT, correct=correct.ravel().astype(float))
        items["doc_id"] = np.tile(np.arange(size.items), grid.shape[1]).astype(str)
        write_table(items.reindex(columns=ITEMS.names), ITEMS, folder / "items.parquet")
    sheet = pd.DataFrame({"model": models, "path": models, "label": models})
    sheet["family"] = [name.partition("/")[0] for name in models]
    sheet["parameters_b"], sheet["tokens_b"] = 0.1 + np.arange(size.models) % 7, 100 + np.arange(size.models) % 11
    sheet.to_csv(folder / "models.tsv", sep="\t", index=False)
    sheet = pd.DataFrame({"benchmark": benchmarks, "task": benchmarks, "output_type": "multiple_choice"})
    sheet["category"], sheet["chance"] = [f"kind{j % 6}" for j in range(size.benchmarks)], 0.0
    sheet.to_csv(folder / "benchmarks.tsv", sep="\t", index=False)


def command_line(size: Size) -> list[str]:
    """The command on the files of its folder."""
    sheets = ["--models", "models.tsv", "--benchmarks", "benchmarks.tsv"]
    if size.command == "report":
        return ["lm-validity", "report", "scores.parquet", *sheets, "--output", "out"]
    tables = ["--scores", "scores.parquet", *(["--items", "items.parquet"] if size.items else [])]
    return ["lm-validity", "report", size.command, *tables, *sheets, "--output", "out"]


def run(size: Size, folder: Path) -> tuple[float, float, float]:
    """Seconds, CPU-seconds and MB of the command; its output is in out/ and log."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    started = time.perf_counter()
    with open(folder / "log", "w") as log:
        child = subprocess.Popen(command_line(size), cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        _, child.returncode, used = os.wait4(child.pid, 0)
    if child.returncode:
        raise SystemExit(f"Error: {size.name} failed. Hint: {folder / 'log'} has its output.")
    return time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def record(size: Size, wall: float, cpu: float, mb: float) -> list[dict]:
    """What was measured, as the records of `_measure` are: seconds, and the memory where it has a limit."""
    detail = f"{cpu:.1f} CPU s, {wall:.1f} s on the clock, largest process {mb:.0f} MB"
    common = {"device": "cpu", "agreement": None, "detail": detail}
    found = []
    for name, value, limit, unit in (
        (size.name, cpu, size.cpu, "CPU seconds"),
        (f"{size.name}_memory", mb, size.mb, "MB"),
    ):
        if limit is None and unit == "MB":
            continue
        ratio = None if limit is None else limit / value
        found.append(
            {"name": name, "baseline": f"the limit of {limit:g} {unit}" if limit else "none", "ratio": ratio}
            | {"ratio_low": ratio, "ratio_high": ratio, "target": 1 if limit else None, "unit": unit}
            | {"value": value, **common}
        )
    return found


def main() -> None:
    """Measure every size, or those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path, help="file of the records")
    parser.add_argument("--folder", default=Path("results/large_tables"), type=Path, help="where tables are made")
    parser.add_argument("--only", nargs="*", help="sizes, such as agreement_100x160")
    arguments = parser.parse_args()
    records: list[dict] = []
    for size in SIZES:
        if arguments.only and size.name not in arguments.only:
            continue
        folder = arguments.folder / size.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_world(size, folder)
        found = run(size, folder)
        print(f"{size.name}: {found[1]:.1f} CPU s, {found[0]:.1f} s, {found[2]:.0f} MB", flush=True)
        records += record(size, *found)
        write_records(arguments.output, records, finished=False)
    write_records(arguments.output, records)


if __name__ == "__main__":
    main()
