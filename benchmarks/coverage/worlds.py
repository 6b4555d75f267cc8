"""Simulated score tables: models that differ in ability, benchmarks that measure it more or less well, and noise.

    latent = l · ability + √(1 - l²) · specific,     score = scale(latent) + standard error · normal

Each benchmark has one of `TYPES` types (how much it measures ability, its noise, its difficulty), drawn anew for every
table: that is the population of benchmarks. Direct and prepared scores share the ability and nothing else.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from lm_validity.tables.schema import PROTOCOLS

TYPES = 12
FREEDOM = 2.5  # degrees of freedom of the heavy tails: a variance, and no fourth moment
NOISE = 0.2  # standard error of a score, where the models' standard deviation is 1
ITEMS = {"accuracy": 500, "ties": 40}  # of a benchmark whose scores are shares of items
RANGES = dict(zip(PROTOCOLS, ((0.5, 0.9), (0.8, 0.98)), strict=True))
LOADINGS = {p: low + (np.arange(TYPES) + 0.5) / TYPES * (high - low) for p, (low, high) in RANGES.items()}


class World(NamedTuple):
    """`family`, `category`: shares of variance that families of models, and categories of benchmarks, have in common.

    `scale`: linear; accuracy, with floors and ceilings; ties, a share of few items. `missing`: which cells are.
    """

    says: str
    heavy: bool = False
    family: float = 0.0
    category: float = 0.0
    scale: str = "linear"
    unequal_noise: bool = False
    missing: str = ""


WORLDS = {
    "normal": World("Everything is normal; families and categories are names only."),
    "heavy_tails": World("Abilities and specific parts have t distributions with 2.5 degrees of freedom.", heavy=True),
    "families": World("Half of the variance of models, on each benchmark too, is between families.", family=0.5),
    "categories": World("Half of what a benchmark measures beside ability is its category's.", category=0.5),
    "saturation": World("Accuracies from chance (0.25) to 1, many models near either end.", scale="accuracy"),
    "ties": World("Accuracies over 40 items: many models score the same.", scale="ties"),
    "unequal_noise": World("Standard errors from 0.05 to 1.2 by benchmark and model.", unequal_noise=True),
    "missing_at_random": World("As normal; a fifth of the cells is missing, whatever their values.", missing="random"),
    "missing_ablest": World("As normal; the ablest third of the models lacks half of its cells.", missing="ablest"),
}


class Size(NamedTuple):
    """Numbers of models by family and of benchmarks by category."""

    families: tuple[int, ...]
    categories: tuple[int, ...]


SIZES = {
    "61x24": Size((26, 8, 8, 8, 7, 4), (4,) * 6),
    "20x8": Size((7, 5, 3, 3, 2), (2,) * 4),
    "6x4": Size((3, 2, 1), (2, 1, 1)),
}


@dataclass(frozen=True)
class Table:
    """One simulated study. By protocol: `scores`, `stderr` (models, benchmarks), NaN where missing.

    `ability`: (models,); `by_category`: (models, categories) what a category adds; `families`, `categories`: numbers
    from 0 of models and of benchmarks; `types`: (benchmarks,); `family_means`: (families, benchmarks) of the latent
    scores, by protocol.
    """

    scores: dict[str, np.ndarray]
    stderr: dict[str, np.ndarray]
    ability: np.ndarray
    by_category: np.ndarray
    families: np.ndarray
    categories: np.ndarray
    types: np.ndarray
    family_means: dict[str, np.ndarray]


def draw_table(world: World, size: Size, rng: np.random.Generator) -> Table:
    """A table of new models and new benchmarks."""
    families, categories = (np.repeat(np.arange(len(part)), part) for part in size)
    models, types = len(families), rng.integers(TYPES, size=len(categories))
    of_family = rng.normal(size=len(size.families))
    ability = _mixed(_standard(world, models, rng), of_family[families], world.family)
    by_category = rng.normal(size=(models, len(size.categories)))
    scores, stderr, means = {}, {}, {}
    for protocol in PROTOCOLS:
        loading = LOADINGS[protocol][types]
        own = _standard(world, (models, len(types)), rng)
        shared = rng.normal(size=(len(size.families), len(types)))
        specific = _mixed(own, by_category[:, categories], world.category)
        specific = _mixed(specific, shared[families], world.family)
        latent = loading * ability[:, None] + np.sqrt(1 - loading**2) * specific
        _, *parts = scored(world, latent, types, rng)
        stderr[protocol], scores[protocol] = _without_cells(world, parts, ability, rng)
        means[protocol] = np.sqrt(world.family) * (loading * of_family[:, None] + np.sqrt(1 - loading**2) * shared)
    return Table(scores, stderr, ability, by_category, families, categories, types, means)


def scored(world: World, latent: np.ndarray, types: np.ndarray, rng: np.random.Generator) -> tuple:
    """(noise-free scores, standard errors, scores) of `latent` (models, benchmarks)."""
    place = (types + 0.5) / TYPES  # from 0 to 1
    if world.scale == "linear":
        stderr = np.full(latent.shape, NOISE)
        if world.unequal_noise:
            stderr = 0.1 * 6**place * np.exp(rng.uniform(-np.log(2), np.log(2), (len(latent), 1)))
        return latent, stderr, latent + stderr * rng.normal(size=latent.shape)
    difficulty = 3 * ((5 * types) % TYPES + 0.5) / TYPES - 1.5  # not in the order of the loadings
    chance = 0.25 if world.scale == "accuracy" else 0.0
    share = chance + (1 - chance) * stats.norm.cdf(1.5 * latent + difficulty)
    items = ITEMS[world.scale]
    found = rng.binomial(items, share) / items
    return share, np.sqrt(found * (1 - found) / (items - 1)), found


def _standard(world: World, shape, rng: np.random.Generator) -> np.ndarray:
    """Draws of variance 1."""
    if world.heavy:
        return rng.standard_t(FREEDOM, shape) / np.sqrt(FREEDOM / (FREEDOM - 2))
    return rng.normal(size=shape)


def _mixed(own: np.ndarray, common: np.ndarray, share: float) -> np.ndarray:
    return np.sqrt(1 - share) * own + np.sqrt(share) * common


def _without_cells(
    world: World, parts: list[np.ndarray], ability: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """`parts` with NaN where cells are missing."""
    shape = parts[0].shape
    gone = np.zeros(shape, dtype=bool)
    if world.missing == "random":
        gone = rng.random(shape) < 0.2
    if world.missing == "ablest":
        ablest = np.argsort(-ability)[: len(ability) // 3]
        gone[ablest] = rng.permuted(np.tile(np.arange(shape[1]) < shape[1] // 2, (len(ablest), 1)), axis=1)
    return [np.where(gone, np.nan, part) for part in parts]
