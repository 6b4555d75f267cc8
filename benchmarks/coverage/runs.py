"""How often do the intervals of sampled runs hold what they should? Simulated answers of known truth.

    python -m benchmarks.coverage.runs [--worlds 1000]      # prints the table of docs/reference/coverage.md

An item is right with a probability of its own, whose logit is normal (standard deviation 2). Model B's logits are lower
by what makes its expected score lower by 5 points. Each run draws all answers anew. `MODELS` models share the deviation
between runs where only scores are known.
"""

import argparse
from collections.abc import Iterator

import numpy as np
from benchmarks.coverage.gates import SPREAD, shift
from numpy.polynomial import hermite_e
from scipy import stats
from scipy.special import expit

from lm_validity.missing import Missing
from lm_validity.repeats import error_of_mean, pass_at_k, pass_hat_k, sampled_score, typical_spread
from lm_validity.studies.items.statistics import paired_difference

RUNS, ITEMS = (1, 2, 4, 10), (30, 200, 2000)
LOSS, MODELS, LEVEL = 0.05, 8, 0.95
COLUMNS = ("score", "score, from scores", "pass@K", "pass^K", "difference", "other runs", "other runs, from scores")
POINTS, WEIGHTS = hermite_e.hermegauss(60)
CHANCE, SHARES = expit(SPREAD * POINTS), WEIGHTS / WEIGHTS.sum()  # of being right, and how common it is


def answers(easy: np.ndarray, runs: int, rng: np.random.Generator) -> np.ndarray:
    """(runs, items) right or wrong of a model for which the items' logits are `easy` (items,)."""
    return (rng.random((runs, len(easy))) < expit(easy)).astype(float)


def held(items: int, runs: int, rng: np.random.Generator) -> Iterator[bool | None]:
    """Of one world whether the interval of each of `COLUMNS` holds the truth; None where there is none."""
    easy = SPREAD * rng.standard_normal(items)
    first, second = answers(easy, runs, rng), answers(easy - shift(LOSS), runs, rng)
    normal, student = stats.norm.ppf((1 + LEVEL) / 2), stats.t.ppf((1 + LEVEL) / 2, items - 1)
    found = sampled_score(first)
    yield abs(found.score - 0.5) <= student * found.error
    others = [answers(SPREAD * rng.standard_normal(items), runs, rng).mean(axis=1) for _ in range(MODELS - 1)]
    scores = np.vstack([first.mean(axis=1), *others])
    one_run = np.sqrt(np.mean(scores[0] * (1 - scores[0]) / (items - 1)))
    spread = typical_spread(scores)
    yield abs(found.score - 0.5) <= normal * float(error_of_mean(one_run, spread, runs))
    right, drawn = first.sum(axis=0), np.full(items, runs)
    for estimate, truth in ((pass_at_k, SHARES @ (1 - (1 - CHANCE) ** runs)), (pass_hat_k, SHARES @ CHANCE**runs)):
        passed = estimate(right, drawn, runs)
        assert not isinstance(passed, Missing)
        yield passed.interval[0] <= truth <= passed.interval[1]
    interval = paired_difference(first.mean(axis=0), second.mean(axis=0)).interval
    yield None if isinstance(interval, Missing) else interval[0] <= LOSS <= interval[1]
    again = answers(easy, runs, rng).mean()  # as many further runs on the same items
    if runs == 1:
        yield from (None, None)
        return
    reach = stats.t.ppf((1 + LEVEL) / 2, items * (runs - 1)) * np.sqrt(2) * found.error_of_runs
    yield abs(again - found.score) <= reach + 1e-12
    yield abs(again - found.score) <= stats.t.ppf((1 + LEVEL) / 2, MODELS * (runs - 1)) * spread * np.sqrt(2 / runs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage.runs", description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=1000)
    worlds = parser.parse_args().worlds
    print(f"| items | runs | {' | '.join(COLUMNS)} |")
    print("|---|---|" + "---|" * len(COLUMNS))
    for items in ITEMS:
        for runs in RUNS:
            rng = np.random.default_rng([items, runs])
            every = [tuple(held(items, runs, rng)) for _ in range(worlds)]
            cells = []
            for column in zip(*every, strict=True):
                known = [one for one in column if one is not None]
                cells.append(f"{np.mean(known):.3f}".removeprefix("0") if known else "")
            print(f"| {items} | {runs} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
