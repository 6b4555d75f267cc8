"""What the bias study costs where tasks stop on the width of their interval, on the published trials.

    python benchmarks/bias_batches.py [--orders 200] [--output FILE]

Each order shuffles the published subsamples of every task (the language models' together), looks at 10 of them, then
at 5 more at a time, and stops a task as `lm-validity next` does. Truth is the value of all subsamples, which include
those that were looked at: the shares held are therefore upper bounds (docs/reference/coverage.md has worlds of known
truth). The last row stops all tasks together, on the width of the mean over tasks. Needs the published accuracies in
../shared/published.
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.config.bias_plan import LEAST
from lm_validity.studies.bias.by_task import interval_over_subsamples
from lm_validity.studies.bias.statistics.effects import mean_over_tasks

PUBLISHED = Path(__file__).parents[2] / "shared" / "published" / "pretrain_on_test" / "accuracies.csv.gz"
BATCH = 5
WIDTHS = (0.03, 0.02, 0.015, 0.0125, 0.01)  # of a task
TOGETHER = 0.0025  # of the mean over tasks


class Look(NamedTuple):
    """A task at so many subsamples; `parts`: terms of its mean's error. trials: that they took."""

    mean: float
    half_width: float
    trials: int
    parts: np.ndarray


def read_tasks() -> dict[str, list[np.ndarray]]:
    """By task: for each (m, n) the biases (language models, subsamples)."""
    rows = pd.read_csv(PUBLISHED)
    rows["bias"] = rows["test"] - rows["extra"]
    found: dict[str, list[np.ndarray]] = {}
    for (task, _, _), cell in rows.groupby(["task", "m", "n"]):
        by_model = [own.sort_values("subsample")["bias"].to_numpy() for _, own in cell.groupby("lm")]
        found.setdefault(task, []).append(np.array(by_model))
    return found


def look(cells: list[np.ndarray], number: int) -> Look:
    """What `effects_by_task` says of the first `number` subsamples of each cell."""
    most, models = max(cell.shape[1] for cell in cells), len(cells[0])
    parts, means, trials = np.zeros(min(number, most)), [], 0
    for cell in cells:
        own = cell[:, :number]
        apart = (own - own.mean(axis=1, keepdims=True)) / (models * len(cells) * own.shape[1])
        parts[: own.shape[1]] += apart.sum(axis=0)
        means.append(own.mean())
        trials += own.size
    mean = float(np.mean(means))
    interval, _ = interval_over_subsamples(mean, parts, 0.0)
    return Look(mean, (interval[1] - interval[0]) / 2, trials, parts)


def half_width_shown(one: Look, least: float) -> float:
    """Of the interval on the page."""
    (low, high), _ = interval_over_subsamples(one.mean, one.parts, least)
    return (high - low) / 2


def one_order(tasks: dict[str, list[np.ndarray]], whole: dict[str, Look], rng: np.random.Generator) -> dict[str, dict]:
    """What each rule gives in one random order of the subsamples."""
    shuffled = {task: [cell[:, rng.permutation(cell.shape[1])] for cell in cells] for task, cells in tasks.items()}
    numbers = range(LEAST, max(cell.shape[1] for cells in tasks.values() for cell in cells) + 1, BATCH)
    looks = {task: [look(cells, number) for number in numbers] for task, cells in shuffled.items()}
    truth = float(np.mean([one.mean for one in whole.values()]))
    found = {}
    for width in WIDTHS:
        ends = {
            task: next((i for i, one in enumerate(of) if one.half_width <= width), -1) for task, of in looks.items()
        }
        last = {task: looks[task][end] for task, end in ends.items()}
        shown = {
            task: half_width_shown(one, width if ends[task] not in (-1, len(numbers) - 1) else 0.0)
            for task, one in last.items()
        }
        held = np.mean([abs(one.mean - whole[task].mean) <= shown[task] for task, one in last.items()])
        found[f"a task ± {width}"] = _rule(last, [numbers[end] for end in ends.values()], truth, whole) | {
            "task_held": float(held)
        }
    for i, number in enumerate(numbers):
        last = {task: of[i] for task, of in looks.items()}
        row = _rule(last, [number] * len(looks), truth, whole)
        if row["half_width"] <= TOGETHER:
            return found | {f"all tasks together, mean ± {TOGETHER}": row}
    raise AssertionError("the whole table is narrower")


def _rule(last: dict[str, Look], numbers: list[int], truth: float, whole: dict[str, Look]) -> dict[str, float]:
    mean = mean_over_tasks(np.array([one.mean for one in last.values()]))
    low, high = mean.interval
    return {
        "subsamples": float(np.mean(numbers)),
        "trials": sum(one.trials for one in last.values()) / sum(one.trials for one in whole.values()),
        "half_width": (high - low) / 2,
        "held": float(low <= truth <= high),
        "contains_zero": float(low <= 0 <= high),
        "below_half_a_point": float(high < 0.005),
    }


def main() -> None:
    """Print a row for each rule, and write them as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    tasks = read_tasks()
    whole = {task: look(cells, max(cell.shape[1] for cell in cells)) for task, cells in tasks.items()}
    orders = [one_order(tasks, whole, np.random.default_rng([0, seed])) for seed in range(options.orders)]
    rows = {name: pd.DataFrame([one[name] for one in orders]).mean().to_dict() for name in orders[0]}
    print(pd.DataFrame(rows).T.round(4).to_string())
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
