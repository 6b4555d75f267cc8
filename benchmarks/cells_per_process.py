"""Several cells per process: what starting and loading cost, beside what a cell costs, at three sizes of model.

    python benchmarks/cells_per_process.py --output FILE [--rounds N] [--sizes tiny small base]

Eight benchmarks of one model as eight jobs, four, two and one (`batching`), each an `lm-validity` in a process of its
own, from an empty store. Evaluation is two cells per benchmark (validation and test), fine-tuning one (one rate, one
epoch). Every score must be the same, however the cells are divided. A line through the processor seconds gives what a
process costs and what a benchmark costs.
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from _measure import Cost, compare, describe_machine, interleave, run_quietly, write_records
from _toys import parameters, questions, random_model, word_tokenizer, write_task

from lm_validity.cells.models.prefetch import prefetch_model
from lm_validity.cells.runner import write_splits
from lm_validity.cells.tasks.splits import prefetch_benchmark
from lm_validity.config.load import Run, load_run
from lm_validity.files import write_json
from lm_validity.run.cell import Job
from lm_validity.run.grid import Grid
from lm_validity.run.workspace import Workspace

BENCHMARKS, TOGETHER = 8, (1, 2, 4, 8)
# width, layers, vocabulary; documents of train, validation and test
SIZES = {
    "tiny": ((64, 2, 512), {"train": 200, "validation": 100, "test": 200}),
    "small": ((256, 6, 4096), {"train": 100, "validation": 50, "test": 100}),
    "base": ((768, 12, 32_000), {"train": 16, "validation": 8, "test": 12}),
}
COMMANDS = {"evaluate_model": "evaluate-model", "finetune_adapter": "finetune-adapter"}
LM_VALIDITY = str(Path(sys.executable).parent / "lm-validity")


def write_world(folder: Path, shape: tuple[int, int, int], documents: dict[str, int]) -> str:
    """Model, tasks, sheets, a configuration for each number of benchmarks a job; prefetched and split. The size."""
    width, layers, vocabulary = shape
    model = random_model(width, layers, vocabulary)
    model.save_pretrained(folder / "model")
    word_tokenizer(vocabulary).save_pretrained(folder / "model")
    names = [f"toy{number}" for number in range(BENCHMARKS)]
    for number, name in enumerate(names):
        splits = {
            split: questions(count, (12, 60), (2, 8), vocabulary, seed=10 * number + place)
            for place, (split, count) in enumerate(documents.items())
        }
        write_task(folder / "tasks", name, splits)
    (folder / "models.tsv").write_text(f"model\tpath\tdtype\nm\t{folder / 'model'}\tfloat32\n")
    rows = "".join(f"{name}\t{name}\t{folder / 'tasks'}\tacc,none\n" for name in names)
    (folder / "benchmarks.tsv").write_text("benchmark\ttask\tinclude_path\tmetric\n" + rows)
    for together in TOGETHER:
        configuration = {
            "name": "cells",
            "models": str(folder / "models.tsv"),
            "benchmarks": str(folder / "benchmarks.tsv"),
            "evaluation": {"device": "cpu"},
            "finetuning": {"learning_rates": ["1e-3"], "epochs": 1},
            "batching": {rule: {"benchmarks": together} for rule in COMMANDS},
        }
        (folder / f"{together}.yaml").write_text(json.dumps(configuration))
    with contextlib.chdir(folder):
        prepare(load_run("1.yaml"))
    return f"d {width}, {layers} layers, V {vocabulary} ({parameters(model)})"


def prepare(run: Run) -> None:
    """What the login node does, in this process."""
    folder = run.results / "prefetch"
    for row in run.models.values():
        write_json(folder / "models" / f"{row.model}.json", prefetch_model(row, chat=False))
    for row in run.benchmarks.values():
        write_json(folder / "benchmarks" / f"{row.benchmark}.json", prefetch_benchmark(row))
    for name in run.benchmarks:
        write_splits(Workspace(run), name)


def run_jobs(folder: Path, rule: str, together: int) -> dict[str, float]:
    """All jobs of a rule, from an empty store; the score of each cell (of a fine-tune its validation)."""
    for part in ("store", "cells", "work"):
        shutil.rmtree(folder / "results/cells" / part, ignore_errors=True)
    name = f"{together}.yaml"
    with contextlib.chdir(folder):
        jobs: list[Job] = [job for job in Grid(load_run(name)).jobs.values() if job.rule == rule]
    assert len(jobs) == BENCHMARKS // together
    for job in jobs:
        command = [LM_VALIDITY, COMMANDS[rule], "--model", "m", "--batch", job.batch, "--configfile", name]
        run_quietly(command, folder)
    found = {}
    for path in folder.glob("results/cells/store/*/m/*/cell.json"):
        cell = json.loads(path.read_text())
        result = cell["result"]
        value = result["best_value"] if rule == "finetune_adapter" else result["metrics"]["acc,none"]["value"]
        found[str(sorted(cell["key"].items(), key=str))] = value
    return found


def costs_of(costs: dict[str, list[Cost]]) -> tuple[float, float]:
    """Processor seconds of a process and of a benchmark, by least squares over all rounds: a run of p processes and
    BENCHMARKS benchmarks costs p times the one and BENCHMARKS times the other."""
    points = [(BENCHMARKS // int(name), cost.cpu) for name, each in costs.items() for cost in each]
    left = np.array([[processes, BENCHMARKS] for processes, _ in points], dtype=float)
    process, benchmark = np.linalg.lstsq(left, np.array([seconds for _, seconds in points]), rcond=None)[0]
    return float(process), float(benchmark)


def size_records(name: str, rounds: int) -> list[dict]:
    """Records of one size: both rules, each number of benchmarks a process against one per process."""
    shape, documents = SIZES[name]
    records = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        size = write_world(folder, shape, documents)
        for rule in COMMANDS:
            print(f"-- {name}, {rule}", flush=True)
            sides = {str(k): lambda k=k, rule=rule: run_jobs(folder, rule, k) for k in TOGETHER}
            costs, results = interleave(sides, rounds)
            process, benchmark = costs_of(costs)
            counts = ", ".join(f"{count} {split}" for split, count in documents.items())
            for together in TOGETHER[1:]:
                ours, theirs = results[str(together)], results["1"]
                assert ours.keys() == theirs.keys() and len(ours) == BENCHMARKS * (1 + (rule == "evaluate_model"))
                records.append(
                    compare(
                        f"{rule}: {together} benchmarks a process, {name}",
                        "one benchmark a process",
                        costs["1"],
                        costs[str(together)],
                        target=None,
                        agreement=max(abs(ours[key] - value) for key, value in theirs.items()),
                        tolerance=0.0,
                        detail=f"{BENCHMARKS} benchmarks, documents: {counts}; {size}; a process costs {process:.2f} "
                        f"CPU-s before its first cell, a benchmark {benchmark:.2f}, so that starting and loading are "
                        f"{process / (process + together * benchmark):.0%} of {together} in one process and "
                        f"{process / (process + benchmark):.0%} of one",
                    )
                )
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    arguments = parser.parse_args()
    print(describe_machine())
    records = [record for name in arguments.sizes for record in size_records(name, arguments.rounds)]
    write_records(arguments.output, records)


if __name__ == "__main__":
    main()
