"""How often does `compare --gate` fail a model that it should not, pass one that it should not, and find a loss?

    python -m benchmarks.coverage.gates [--worlds 200]      # prints the table of docs/reference/coverage.md

An item is right with a probability of its own, whose logit is normal (standard deviation 2). Model B's logits are lower
by what makes its expected score on each benchmark lower by the loss. Answers are sampled: each run draws them anew, so
that a model against itself differs too.
"""

import argparse
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from scipy import optimize
from scipy.special import expit

from lm_validity.statistics import run_noise
from lm_validity.studies.items import statistics
from lm_validity.studies.items.compare import (
    Answers,
    Comparison,
    Difference,
    Margin,
    Margins,
    Unit,
    gate,
    judged,
    units_of,
)
from lm_validity.studies.items.statistics import McNemarTest, paired_difference
from lm_validity.tables.items import shared_items

MARGIN, SPREAD = 0.02, 2.0
LOSSES = (0.0, 0.5, 0.75, 1.0, 2.0)  # in margins
WITHIN = (0.0, 0.5, 0.75, 1.0)  # losses that are not beyond the margin
COLUMNS = {  # losses in margins, of which the highest share counts; with a margin; decision
    "equal: worse, no margin": ((0.0,), False, "worse"),
    "loss within the margin: worse": (WITHIN, True, "worse"),
    "loss of the margin: passes": ((1.0,), True, "not worse"),
    "equal: passes": ((0.0,), True, "not worse"),
    "loss of two margins: worse": ((2.0,), True, "worse"),
}


@dataclass(frozen=True)
class World:
    """Benchmarks of so many items, each answered in so many runs. shock: the standard deviation of what all items of a
    run share on a benchmark, in logits; throughout: one for all benchmarks of a run. subjects: of each benchmark, on
    which each model's logits differ by .3. shared: `copies`, `formats` (a correlation of .8) or `halves` of one set."""

    name: str
    benchmarks: int = 1
    items: int = 1000
    runs: int = 1
    shock: float = 0.0
    throughout: bool = False
    subjects: int = 0
    shared: str = ""
    protocols: tuple[str, ...] = ("direct",)

    @property
    def losses(self) -> tuple[float, ...]:
        """In margins; of benchmarks that share items the first and the last but one, since finding them takes time."""
        return (0.0, 1.0) if self.shared else LOSSES

    @property
    def spread(self) -> float:
        """Of the logit of an answer."""
        return float(np.sqrt(SPREAD**2 + self.shock**2 + (0.3**2 if self.subjects else 0.0)))


BOTH = ("direct", "train_before_test")
SIZES, SHOCKED = ((200, 1), (2000, 1), (200, 5), (2000, 5), (200, 20), (2000, 20)), (2, 3, 4, 10)
WORLDS = [
    *(World(f"{items} items", benchmarks, items) for items, benchmarks in SIZES),
    *(World(f"{runs} runs", 3, runs=runs) for runs in (2, 4, 10)),
    *(World(f"{runs} runs, shock {shock}", 3, runs=runs, shock=shock) for shock in (0.1, 0.2) for runs in SHOCKED),
    *(World(f"{runs} runs, one shock 0.2", 3, runs=runs, shock=0.2, throughout=True) for runs in (2, 4)),
    World("4 runs, shock 0.2", 1, runs=4, shock=0.2),
    *(World(f"{subjects} subjects", 1, 810, subjects=subjects) for subjects in (3, 4, 5, 8, 9, 10, 12)),
    *(World(shared, 5 if shared == "formats" else 3, shared=shared) for shared in ("copies", "formats", "halves")),
    World("two protocols", 1, protocols=BOTH),
    World("two protocols", 5, protocols=BOTH),
    World("two protocols, 4 runs, shock 0.2", 3, runs=4, shock=0.2, protocols=BOTH),
]  # fmt: skip


@cache
def shift(loss: float, spread: float = SPREAD) -> float:
    """How much lower logits make the expected score lower by `loss`."""
    points, weights = np.polynomial.hermite_e.hermegauss(60)

    def mean(lower: float) -> float:
        return float(weights @ expit(spread * points - lower) / weights.sum())

    return float(optimize.brentq(lambda lower: mean(0.0) - mean(lower) - loss, 0.0, 5.0)) if loss else 0.0


@cache
def mcnemar(items: int, first_only: int, second_only: int) -> McNemarTest:
    """One object for each table, whose p and interval are computed once."""
    return _Remembered(items, first_only, second_only)


class _Remembered(McNemarTest):
    @cache  # noqa: B019  (as many as there are tables)
    def p(self, null: float) -> float:
        return super().p(null)

    @cache  # noqa: B019
    def interval(self, level: float = 0.05) -> tuple[float, float]:
        return super().interval(level)


def drawn(world: World, loss: float, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Of each benchmark the answers (models, runs, items) of A and B, and the items' subjects."""
    lower, of_runs = shift(loss, world.spread), world.shock * rng.standard_normal((2, world.runs, 1))
    whole, first = rng.standard_normal(world.items), np.empty((2, 1, 0))
    for number in range(world.benchmarks):
        easy = rng.standard_normal(world.items)
        if world.shared == "formats":
            easy = np.sqrt(0.8) * whole + np.sqrt(0.2) * easy
        logits = np.stack([SPREAD * easy, SPREAD * easy - lower])[:, None, :]
        subjects = None
        if world.subjects:
            subjects = np.arange(world.items) % world.subjects
            logits = logits + 0.3 * rng.standard_normal((2, 1, world.subjects))[..., subjects]
        shock = of_runs if world.throughout else world.shock * rng.standard_normal((2, world.runs, 1))
        answers = (rng.random((2, world.runs, world.items)) < expit(logits + shock)).astype(float)
        if number and world.shared in ("copies", "halves"):
            half = world.items // 2
            part = {"copies": slice(None), "halves": slice((number - 1) * half, number * half)}[world.shared]
            answers = first[..., part]  # of the same whole
        elif not number:
            first = answers
        yield answers, subjects


def difference(name: str, protocol: str, answers: np.ndarray, subjects: np.ndarray | None) -> Difference:
    """One benchmark of A against B, as `compare` tests it."""
    first, second = answers.mean(axis=1)
    labels = [(None, run) for run in range(answers.shape[1])]
    noises = [noise for model in answers if (noise := run_noise(model, labels)) is not None]
    paired = paired_difference(second, first, subjects, noises)
    tested = paired.test
    if isinstance(tested, McNemarTest):
        tested = mcnemar(tested.items, tested.first_only, tested.second_only)
    scores = float(first.mean()), float(second.mean())
    return Difference(name, protocol, "acc", scores, True, paired.difference, "test", tested, paired)


def compared(world: World, loss: float, rng: np.random.Generator) -> Comparison:
    """A against B on all benchmarks under all protocols."""
    rows, frames = list[Difference](), list[pd.DataFrame]()
    for protocol in world.protocols:
        for number, (answers, subjects) in enumerate(drawn(world, loss, rng)):
            rows.append(difference(f"b{number}", protocol, answers, subjects))
            if world.shared:
                key = {"benchmark": f"b{number}", "protocol": protocol, "seed": -1, "run": None, "subject": ""}
                ids = np.arange(answers.shape[-1]).astype(str)
                frames += [
                    pd.DataFrame({"model": m, **key, "doc_id": ids, "correct": own[0]})
                    for m, own in zip("ab", answers, strict=True)
                ]
    units = [Unit((row.benchmark,), row) for row in rows if row.tested is not None]
    shared = []
    if world.shared:
        raw = pd.concat(frames, ignore_index=True)
        shared = shared_items(raw)
        better = pd.Series(1.0, raw.groupby(["model", "benchmark", "protocol"]).size().index)
        units = list(units_of(rows, shared, Answers(raw, "a", "b"), better))
    return Comparison("a", "b", tuple(rows), tuple(units), tuple(shared), ())


def shares(world: World, worlds: int) -> Iterator[float]:
    """The share of worlds with the loss and the decision of each of `COLUMNS`; NaN where it was not tried."""
    found = dict[tuple[float, bool], list[str]]()
    for loss in world.losses:
        rng = np.random.default_rng([zlib.crc32(repr(world).encode()), round(100 * loss)])
        for _ in range(worlds):
            comparison = compared(world, loss * MARGIN, rng)
            for margin in (None, MARGIN):
                decision = gate(judged(comparison, Margins({}, Margin(margin, must=False))))
                found.setdefault((loss, margin is not None), []).append(decision)
    for losses, with_margin, decision in COLUMNS.values():
        tried = [found[loss, with_margin].count(decision) / worlds for loss in losses if loss in world.losses]
        yield max(tried, default=float("nan"))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage.gates", description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--only", default="", help="worlds whose name holds this")
    arguments = parser.parse_args()
    statistics.noncentrality_needed = lambda _: 2.8  # how many items would decide is not asked
    print(f"| world × benchmarks | {' | '.join(COLUMNS)} |")
    print("|---|" + "---|" * len(COLUMNS))
    for world in WORLDS:
        if arguments.only in world.name:
            found = shares(world, arguments.worlds)
            cells = ["" if np.isnan(share) else f"{share:.3f}".removeprefix("0") for share in found]
            print(f"| {world.name} × {world.benchmarks} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
