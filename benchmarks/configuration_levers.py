"""config/test.yaml through Snakemake, whole: as shipped against the same with every lever off.

    python benchmarks/configuration_levers.py --output FILE [--rounds N]

Off means: one cell per process, lm-eval's own scoring code, batch 1 as lm-eval's default. The miniature world is made
in each run on both sides. Every selected score must be the same.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pandas as pd
import yaml
from _measure import compare, describe_machine, interleave, run_quietly, write_records

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
OFF = {
    "evaluation": {"scorer": "lm-eval", "batch_size": 1},
    "batching": {
        "evaluate_model": {"benchmarks": 1, "checkpoints": 1},
        "finetune_adapter": {"benchmarks": 1, "learning_rates": 1},
        "evaluate_adapter": {"benchmarks": 1},
    },
}


def run(folder: Path, changes: dict) -> pd.DataFrame:
    """One complete run in an empty folder; its scores."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "config", folder / "config")
    path = folder / "config" / "test.yaml"
    values = yaml.safe_load(path.read_text())
    for section, keys in changes.items():
        values[section] = values.get(section, {}) | keys
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    os.environ["PATH"] = f"{BIN}:{os.environ['PATH']}"
    command = [str(BIN / "snakemake"), "--snakefile", str(ROOT / "Snakefile"), "--configfile", "config/test.yaml"]
    run_quietly([*command, "--cores", "2", "--scheduler", "greedy"], folder)
    scores = pd.read_parquet(folder / "results/test/tables/scores.parquet")
    keys = ["model", "benchmark", "protocol", "split", "metric"]
    return scores[scores.selected].set_index(keys).value.sort_index()


def record_of(costs: dict, results: dict) -> dict:
    """The record of the rounds so far."""
    assert results["ours"].index.equals(results["levers off"].index)
    return compare(
        "config/test.yaml, whole",
        "the same with every lever off",
        costs["levers off"],
        costs["ours"],
        target=1.3,
        agreement=float((results["ours"] - results["levers off"]).abs().max()),
        tolerance=0.0,
        detail=f"2 models x 2 benchmarks x 2 learning rates, {len(results['ours'])} selected scores compared",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(describe_machine(), flush=True)

    def keep(costs: dict, results: dict) -> None:
        write_records(arguments.output, [record_of(costs, results)], len(costs["ours"]) == arguments.rounds)

    with tempfile.TemporaryDirectory() as name:
        sides = {"ours": lambda: run(Path(name) / "on", {}), "levers off": lambda: run(Path(name) / "off", OFF)}
        interleave(sides, arguments.rounds, keep)


if __name__ == "__main__":
    main()
