"""How often do joint sets of ranks hold the rank of every model? Tables and answers of known order.

    python -m benchmarks.coverage.ranks [--tables 200]     # a table of docs/reference/coverage.md, a minute

A set of equal models must hold all of their ranks: then nothing may be found.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lm_validity.studies.items.statistics import p_by_errors, paired_tests
from lm_validity.studies.models.order import Leads, Order, leads_over_benchmarks, order_of

Rng = np.random.Generator
Abilities = Callable[[Rng, int], np.ndarray]


class World(NamedTuple):
    """Tables of `models` on `benchmarks`: ability and a part of each benchmark, by how much both vary (`noise`; of each
    model by itself where it is unequal), in `categories` that share half of it, with a share of cells missing."""

    abilities: Abilities
    models: int
    benchmarks: int
    noise: tuple[float, float] = (1.0, 1.0)
    categories: int = 0
    missing: float = 0.0
    heavy: bool = False

    def order(self, rng: Rng) -> tuple[np.ndarray, Order]:
        """The abilities, and the order that a page gives."""
        shape, ability = (self.models, self.benchmarks), self.abilities(rng, self.models)
        part = rng.standard_t(2.5, shape) if self.heavy else rng.normal(size=shape)
        clusters = np.arange(self.benchmarks)
        if self.categories:
            clusters = clusters % self.categories
            part = np.sqrt(0.5) * (part + rng.normal(size=(self.models, self.categories))[:, clusters])
        scores = ability[:, None] + rng.uniform(*self.noise, size=(self.models, 1)) * part
        scores[rng.random(shape) < self.missing] = np.nan
        leads = leads_over_benchmarks(scores, clusters, standardised=True)
        return ability, order_of(leads)


class Answers(NamedTuple):
    """Answers of `models` to `items`, as likely right as ability and difficulty say; `paired`: compared item by item,
    else by their standard errors."""

    abilities: Abilities
    models: int
    items: int
    paired: bool = True

    def order(self, rng: Rng) -> tuple[np.ndarray, Order]:
        """The expected shares of right answers to other items, and the order that a page gives."""
        ability = self.abilities(rng, self.models)
        right = rng.random((self.models, self.items)) < 1 / (1 + np.exp(rng.normal(size=self.items) - ability[:, None]))
        scores = right.mean(axis=1)
        errors = right.std(1) / self.items**0.5
        p = paired_tests(right.astype(float))[0] if self.paired else p_by_errors(scores, errors)[0]
        return ability, order_of(Leads(scores[:, None] - scores, errors, errors, p))


def normal(rng: Rng, models: int) -> np.ndarray:
    """Abilities that vary as much as a benchmark's own part."""
    return rng.normal(size=models)


def equal(rng: Rng, models: int) -> np.ndarray:
    """No differences."""
    return np.zeros(models)


def clumps(rng: Rng, models: int) -> np.ndarray:
    """Three groups of equal models."""
    return 2.0 * (np.arange(models) % 3)


def outlier(rng: Rng, models: int) -> np.ndarray:
    """One model far below equal ones."""
    return np.where(np.arange(models), 0.0, -6.0)


WORLDS: dict[str, World | Answers] = {
    "normal, 20 × 8": World(normal, 20, 8),
    "equal models, 20 × 8": World(equal, 20, 8),
    "equal models, 61 × 24": World(equal, 61, 24),
    "equal models, 8 × 8": World(equal, 8, 8),
    "three clumps of equal models, 20 × 8": World(clumps, 20, 8),
    "one far below equal models, 20 × 8": World(outlier, 20, 8),
    "unequal noise, equal models, 20 × 8": World(equal, 20, 8, noise=(0.05, 1.2)),
    "a fifth of the cells missing, equal models, 20 × 12": World(equal, 20, 12, missing=0.2),
    "benchmarks in three categories, equal models, 20 × 12": World(equal, 20, 12, categories=3),
    "heavy tails, equal models, 20 × 8": World(equal, 20, 8, heavy=True),
    "50 items, 10 equal models, item by item": Answers(equal, 10, 50),
    "500 items, 20 equal models, item by item": Answers(equal, 20, 500),
    "500 items, 20 models in clumps, item by item": Answers(clumps, 20, 500),
    "500 items, 20 equal models, by errors": Answers(equal, 20, 500, paired=False),
}


def held(ability: np.ndarray, order: Order) -> bool:
    """Whether every model's set has all ranks that it may have by its ability."""
    low, high = (1 + (ability > ability[:, None]).sum(axis=1), (ability >= ability[:, None]).sum(axis=1))
    return bool(((order.low <= low) & (high <= order.high)).all())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage.ranks", description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=200)
    tables = parser.parse_args().tables
    print("| world | all ranks held | pairs told apart | may be best |\n|---|---|---|---|")
    for seed, (name, world) in enumerate(WORLDS.items()):
        rng, found = np.random.default_rng(seed), []
        for _ in range(tables):
            ability, order = world.order(rng)
            pairs = world.models * (world.models - 1) / 2
            found.append((held(ability, order), order.ahead.sum() / pairs, (order.low == 1).sum()))
        shares = np.mean(found, axis=0)
        print(f"| {name} | {shares[0]:.3f} | {shares[1]:.2f} | {shares[2]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
