"""The numbers of the reports on the published tables, without resampling.

    python tests/golden/published_figures.py --renew [REPORT ...]    write published_figures.json anew

Long lists are kept as the count and the sum of their numbers. Of the bias report, whose posterior is found by an
optimizer, the plain means are kept.
"""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # as pytest does

from tests.golden.golden_master import PROSE  # noqa: E402

PUBLISHED = ROOT.parent / "shared" / "published"
EXPECTED = Path(__file__).with_name("published_figures.json")
KEPT = {"bias": ("headline", "cells", "tasks")}  # of the others everything
LONGEST = 20  # entries of a list or mapping that are kept one by one


def commands(folder: Path) -> dict[str, list[list[str]]]:
    """Report -> the arguments of lm-validity that make it, with tables and report below `folder`."""
    harmony, curves, trials = (PUBLISHED / name for name in ("train_before_test", "early_training", "pretrain_on_test"))
    sheets = ["--models", f"{harmony}/models.csv", "--benchmarks", f"{harmony}/benchmarks.csv", "--resamples", "0"]
    scores = ["import", "lm-harmony", f"{harmony}/scores.json", "--output", f"{folder}/harmony"]
    signal = ["--models", f"{curves}/models.csv", "--selection", "e2lm", "--resamples", "0"]

    def report(name: str, *options: str) -> list[str]:
        return ["report", name, *options, "--output", f"{folder}/{name}"]

    of_harmony = ["--scores", f"{folder}/harmony/scores.parquet", *sheets]
    return {
        "agreement": [scores, report("agreement", *of_harmony)],
        "factors": [scores, report("factors", *of_harmony)],
        "signal": [
            ["import", "e2lm", f"{curves}/curves.csv", "--output", f"{folder}/curves"],
            report("signal", "--scores", f"{folder}/curves/scores.parquet", *signal),
        ],
        "bias": [
            ["import", "pretrain-on-test", f"{trials}/accuracies.csv.gz", "--output", f"{folder}/trials"],
            report("bias", "--trials", f"{folder}/trials/trials.parquet", "--formula", "equations"),
        ],
    }


def figures(report: str, folder: Path) -> dict:
    """The numbers of a report that is made now."""
    for arguments in commands(folder)[report]:
        subprocess.run([Path(sys.executable).with_name("lm-validity"), *arguments], check=True, capture_output=True)
    summary = json.loads((folder / report / "summary.json").read_text(encoding="utf-8"))
    return {key: shorten(summary[key]) for key in KEPT.get(report, summary) if key not in PROSE}


def shorten(value):
    """The value, with what is long in it replaced by the count and sum of its numbers."""
    if not isinstance(value, dict | list):
        return value
    if len(value) > LONGEST:
        numbers = list(_numbers(value))
        return {"numbers": len(numbers), "sum": math.fsum(numbers)}
    if isinstance(value, dict):
        return {key: shorten(one) for key, one in value.items()}
    return [shorten(one) for one in value]


def _numbers(value):
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _numbers(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def main() -> None:
    if "--renew" not in sys.argv:
        sys.exit(__doc__)
    recorded = json.loads(EXPECTED.read_text()) if EXPECTED.is_file() else {}
    wanted = [name for name in sys.argv[1:] if name != "--renew"]
    with tempfile.TemporaryDirectory() as folder:
        recorded |= {name: figures(name, Path(folder)) for name in wanted or commands(Path(folder))}
    EXPECTED.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
