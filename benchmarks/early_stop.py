"""What `finetuning.early_stop` would have saved and cost in a finished run that trained every epoch.

    python benchmarks/early_stop.py results/demo [results/sparse ...]

Each fine-tune is cut where the rule would have stopped it. A set is a model on a benchmark under a prompt and seed: the
best of its rates and epochs on validation is chosen with and without the stop.
"""

import argparse
import json
from itertools import groupby
from pathlib import Path

import numpy as np

from lm_validity.config.sections import PATIENCE


def epochs_until_stop(values: list[float]) -> int:
    """How many epochs of these validation values (more is better) an early stop trains."""
    best = 0
    for number in range(1, len(values)):
        best = number if values[number] > values[best] else best
        if number - best >= PATIENCE:
            return number + 1
    return len(values)


def read_fine_tunes(results: Path) -> list[tuple[tuple, list[float], float]]:
    """((model, benchmark, prompt, seed), oriented validation values by epoch, points a unit is worth), in order."""
    found = []
    for path in sorted(results.glob("store/finetune_adapter/*/*/cell.json")):
        cell = json.loads(path.read_text())
        key, sign = cell["key"], 1 if cell["recipe"]["higher_is_better"] else -1
        if cell["result"]["diverged"]:
            continue
        values = [sign * epoch["validation_value"] for epoch in cell["result"]["epochs"]]
        fraction = cell["recipe"]["metric"].startswith(("acc", "exact_match"))
        found.append(
            ((key["model"], key["benchmark"], key["prompt"], key["seed"]), values, 100.0 if fraction else np.nan)
        )
    return sorted(found, key=lambda one: one[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+")
    options = parser.parse_args()
    tunes = [one for folder in options.results for one in read_fine_tunes(folder)]
    kept = [epochs_until_stop(values) for _, values, _ in tunes]
    trained = sum(len(values) for _, values, _ in tunes)
    lost, sets = [], 0
    for _, group in groupby(zip(tunes, kept, strict=True), key=lambda one: one[0][0]):
        members = [(values, number, points) for (_, values, points), number in group]
        whole = max(max(values) for values, _, _ in members)
        stopped = max(max(values[:number]) for values, number, _ in members)
        lost.append((whole - stopped) * members[0][2])
        sets += 1
    points = np.array(lost)[np.isfinite(lost)]
    print(f"{len(tunes)} fine-tunes in {sets} sets: {trained - sum(kept)} of {trained} epochs saved ", end="")
    print(
        f"({1 - sum(kept) / trained:.1%}), {sum(k < len(v) for (_, v, _), k in zip(tunes, kept, strict=True))} stopped"
    )
    print(f"{len(points)} sets of accuracies: {points.mean():.3f} points of validation lost on average", end="")
    print(
        f" (standard error {points.std(ddof=1) / len(points) ** 0.5:.3f}), none in {np.mean(points == 0):.0%}, ", end=""
    )
    print(f"{points.max():.1f} at most")


if __name__ == "__main__":
    main()
