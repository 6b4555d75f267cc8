"""What `make demo` costs, in imports of what its jobs stand on: torch, transformers, peft and lm-eval.

    python benchmarks/demo.py

In a clone in which `make demo` has not run yet but all is installed. CPU-seconds of all processes, since other programs
may share the machine; the import is the best of three before the run and three after it.
"""

import subprocess
import sys
from pathlib import Path

from _measure import Cost, measure, run_quietly

RESULTS = Path("results/demo")
IMPORTS = [sys.executable, "-c", "import torch, transformers, peft, lm_eval"]


def cost_of_imports() -> float:
    """CPU-seconds, the least of three."""
    return min(measure(lambda: run_quietly(IMPORTS, Path.cwd()))[0].cpu for _ in range(3))


def main() -> None:
    """Measure and print."""
    if RESULTS.exists():
        raise SystemExit(f"Error: {RESULTS} is there. Hint: move it away, so that everything is computed.")
    before = cost_of_imports()
    demo: Cost = measure(lambda: subprocess.run(["make", "demo"], check=True))[0]
    once = min(before, cost_of_imports())
    ratio = demo.cpu / once
    print(
        f"make demo: {demo.cpu:.0f} CPU-seconds, {demo.wall / 60:.1f} minutes, {ratio:.0f} imports of {once:.1f} each"
    )


if __name__ == "__main__":
    main()
