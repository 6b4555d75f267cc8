"""How often do the intervals of sampled runs hold what they should? Simulated answers of known truth.

    python -m benchmarks.coverage.runs [--worlds 1000]      # prints the table of docs/reference/coverage.md

An item is right with a probability of its own, whose logit is normal (standard deviation 2). Model B's logits are lower
by what makes its expected score lower by 5 points. Each run draws all answers anew, and all its items share a shock.
`MODELS` models share the deviation between runs where only scores are known.
"""

import argparse
from collections.abc import Iterator
from itertools import product

import numpy as np
from benchmarks.coverage.gates import SPREAD, shift
from numpy.polynomial import hermite_e
from scipy import stats
from scipy.special import expit

from lm_validity.statistics import SampledScore, error_of_mean, pass_at_k, pass_hat_k, run_noise, typical_spread
from lm_validity.studies.items.statistics import paired_difference, satterthwaite
from lm_validity.words import Missing

RUNS, ITEMS, SHOCKS = (1, 2, 4, 10), (30, 200, 2000), (0.0, 0.1, 0.2)
LOSS, MODELS, LEVEL = 0.05, 8, 0.95
COLUMNS = ("score", "score, from scores", "pass@K", "pass^K", "difference")
POINTS, WEIGHTS = hermite_e.hermegauss(60)
CHANCE, SHARES = expit(SPREAD * POINTS), WEIGHTS / WEIGHTS.sum()  # of being right, and how common it is


def answers(easy: np.ndarray, runs: int, shock: float, rng: np.random.Generator) -> np.ndarray:
    """(runs, items) right or wrong of a model for which the items' logits are `easy` (items,)."""
    moved = easy + shock * rng.standard_normal((runs, 1))
    return (rng.random((runs, len(easy))) < expit(moved)).astype(float)


def held(items: int, runs: int, rng: np.random.Generator, shock: float = 0.0) -> Iterator[bool]:
    """Of one world whether the interval of each of `COLUMNS` holds the truth."""
    easy = SPREAD * rng.standard_normal(items)
    first, second = (
        answers(logits, runs, shock, rng) for logits in (easy, easy - shift(LOSS, float(np.hypot(SPREAD, shock))))
    )
    noise, between = run_noise(first, [(None, run) for run in range(runs)]), first.mean(axis=0).var(ddof=1)
    freedom, error, miss = items - 1.0, np.sqrt(between / items), abs(first.mean() - 0.5)
    if noise is not None:
        found = SampledScore(between, items, noise)
        freedom, error = satterthwaite([(found.item_error, items - 1), (noise.total, noise.freedom)]), found.error
    yield miss <= stats.t.ppf((1 + LEVEL) / 2, freedom) * error
    others = [answers(SPREAD * rng.standard_normal(items), runs, shock, rng).mean(axis=1) for _ in range(MODELS - 1)]
    scores = np.vstack([first.mean(axis=1), *others])
    one_run = np.sqrt(np.mean(scores[0] * (1 - scores[0]) / (items - 1)))
    reach = stats.norm.ppf((1 + LEVEL) / 2) * float(error_of_mean(one_run, typical_spread(scores), runs))
    yield miss <= reach
    right, drawn = first.sum(axis=0), np.full(items, runs)
    for estimate, truth in ((pass_at_k, SHARES @ (1 - (1 - CHANCE) ** runs)), (pass_hat_k, SHARES @ CHANCE**runs)):
        passed = estimate(right, drawn, runs)
        assert not isinstance(passed, Missing)
        yield passed.interval[0] <= truth <= passed.interval[1]
    noises = [known for model in (first, second) if (known := run_noise(model, [(None, run) for run in range(runs)]))]
    interval = paired_difference(first.mean(axis=0), second.mean(axis=0), None, noises).interval
    yield not isinstance(interval, Missing) and interval[0] <= LOSS <= interval[1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage.runs", description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=1000)
    worlds = parser.parse_args().worlds
    print(f"| items | runs | shock | {' | '.join(COLUMNS)} |")
    print("|---|---|---|" + "---|" * len(COLUMNS))
    for items, runs, shock in product(ITEMS, RUNS, SHOCKS):
        if shock and (runs == 1 or items < 200):
            continue  # of one run the shock is not known
        rng = np.random.default_rng([items, runs, round(10 * shock)])
        every = np.array([tuple(held(items, runs, rng, shock)) for _ in range(worlds)])
        cells = [f"{share:.3f}".removeprefix("0") for share in every.mean(axis=0)]
        print(f"| {items} | {runs} | {shock:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
