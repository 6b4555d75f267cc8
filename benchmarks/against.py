"""The CPU-seconds of this tree against those of another one of this project, side by side, in rounds.

    python benchmarks/against.py OTHER [--rounds N] [--only NAME ...]

OTHER is the root of an earlier commit's work tree, with a .venv of its own. Each command runs in both, one after the
other, so that what else the machine does meets both alike.
"""

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path

from _measure import interleave, run_quietly
from large_tables import Size, write_world

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = [ROOT / "examples" / "published" / name for name in ("scores.json", "models.csv", "benchmarks.csv")]


def report(scores: Path, models: Path, benchmarks: Path) -> list[str]:
    """The command that makes a site of a table and its sheets, in a folder of its own."""
    return ["lm-validity", "report", *map(str, (scores, "--models", models, "--benchmarks", benchmarks))]


def main() -> None:
    """Run what is named in both trees and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tables = Path(folder, "tables")
        tables.mkdir()
        write_world(Size("report", 416, 128), tables)
        commands = {
            "help": ["lm-validity", "--help"],
            "published": report(*PUBLISHED),
            "416x128": report(*(tables / name for name in ("scores.parquet", "models.tsv", "benchmarks.tsv"))),
            "collection": ["pytest", "--collect-only", "-q", "tests/workflow", "tests/published", "tests/unit"],
        }
        for name in arguments.only or commands:
            sides = {}
            for side, tree in {"this": ROOT, "other": arguments.other.resolve()}.items():
                program, *options = commands[name]
                output = ["--output", str(Path(folder, f"{name}-{side}"))] if "report" in options else []
                command = [str(tree / ".venv" / "bin" / program), *options, *output]
                sides[side] = partial(run_quietly, command, tree)
            costs, _ = interleave(sides, arguments.rounds)
            this, other = (statistics.median(cost.cpu for cost in costs[side]) for side in sides)
            print(f"{name}: {this:.2f} against {other:.2f} CPU-seconds: {other / this:.2f} times faster", flush=True)


if __name__ == "__main__":
    main()
