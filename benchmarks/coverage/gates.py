"""How often does `compare --gate` fail a model against itself, and find a loss? Simulated answers of known truth.

    python -m benchmarks.coverage.gates [--worlds 400]      # prints the table of docs/reference/coverage.md

An item is right with a probability of its own, whose logit is normal (standard deviation 2). Model B's logits are lower
by what makes its expected score on each benchmark lower by the loss. Answers are sampled: each run draws them anew, so
that a model against itself differs too. With several runs an item's value is its mean over them.
"""

import argparse
from functools import cache

import numpy as np
from scipy import optimize
from scipy.special import expit

from lm_validity.studies.items.compare.numbers import CompareSummary, Comparison, Margin, gate, judged
from lm_validity.studies.items.statistics import McNemarTest, paired_difference

MARGIN, SPREAD = 0.02, 2.0
SIZES = ((30, 1), (200, 1), (2000, 1), (30, 5), (200, 5), (2000, 5), (200, 20), (2000, 20))  # items, benchmarks
LOSSES = (0.0, MARGIN, 2 * MARGIN)
RUNS = (1, 8)


@cache
def shift(loss: float) -> float:
    """How much lower logits make the expected score lower by `loss`."""
    points, weights = np.polynomial.hermite_e.hermegauss(60)

    def mean(lower: float) -> float:
        return float(weights @ expit(SPREAD * points - lower) / weights.sum())

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
    def interval(self) -> tuple[float, float]:
        return super().interval()

    def reversed(self) -> McNemarTest:
        return mcnemar(self.items, self.second_only, self.first_only)


def compared(items: int, loss: float, runs: int, rng: np.random.Generator) -> Comparison:
    """One benchmark of A against B."""
    easy = SPREAD * rng.standard_normal(items)
    first, second = (rng.binomial(runs, expit(logits)) / runs for logits in (easy, easy - shift(loss)))
    if runs == 1:
        test = mcnemar(items, int((first > second).sum()), int((second > first).sum()))
    else:
        test = paired_difference(first, second).test
    scores = float(first.mean()), float(second.mean())
    return Comparison("b", "direct", None, *scores, scores[0] - scores[1], items=items, tested=test)


def shares(items: int, benchmarks: int, loss: float, runs: int, worlds: int) -> dict[tuple[bool, str], float]:
    """(with a margin, decision of the gate) -> share of worlds."""
    rng = np.random.default_rng([items, benchmarks, round(1000 * loss), runs])
    found = []
    for _ in range(worlds):
        rows = tuple(compared(items, loss, runs, rng) for _ in range(benchmarks))
        summary = CompareSummary("a", "b", rows, ())
        for margin in (None, MARGIN):
            found.append((margin is not None, gate(judged(summary, {}, Margin(margin)))))
    return {key: found.count(key) / worlds for key in set(found)}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage.gates", description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=400)
    worlds = parser.parse_args().worlds
    heads = [f"{'equal' if not loss else f'{100 * loss:.0f} points lower'}: {word}" for loss in LOSSES for word in
             ("worse", "worse, margin", "passes, margin")]  # fmt: skip
    print(f"| items × benchmarks | runs | {' | '.join(heads)} |")
    print("|---|---|" + "---|" * len(heads))
    for runs in RUNS:
        for items, benchmarks in SIZES:
            cells = []
            for loss in LOSSES:
                found = shares(items, benchmarks, loss, runs, worlds)
                for key in ((False, "worse"), (True, "worse"), (True, "not worse")):
                    cells.append(f"{found.get(key, 0.0):.3f}".removeprefix("0"))
            print(f"| {items} × {benchmarks} | {runs} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
