"""How often does a page say something that is not so? Simulated tables, read and reported as a user's are.

    python -m benchmarks.coverage.verdicts [--tables 200] [--world NAME]   # a table of docs/reference/coverage.md

A world draws two protocols of one truth, in which benchmarks agree equally well, or one protocol. What is false there
is written beside it; *not known* is never false.
"""

import argparse
import re
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.factors import factors
from lm_validity.studies.agreement.report import agreement
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, read_score_matrix, without_shared_items
from lm_validity.tables.counted import Sources
from lm_validity.tables.schema import DIRECT, ITEMS, PROTOCOLS, SCORES, write_table

RESAMPLES, NOISE, ITEMS_EACH = 200, 0.2, 120  # NOISE: standard error, where models have a standard deviation of 1
SAYS = {  # what a heading says: a claim, by the beginning or a part of it
    "disagree": "disagree more than noise|disagree beyond noise",
    "agree": "little more than noise|order these models alike",
    "change": "agree better|agree less",
    "one ability": "^One ability explains",
    "several": "^More than one ability",
}


@dataclass(frozen=True)
class World:
    """`draw`: (models, benchmarks) noise-free scores of each protocol, and the standard errors; `false`: the claims of
    `SAYS` that are false. `missing`: the cells to leave out, of scores. `unknown`: whether nothing says the direction
    of the first benchmark, the other one. `overlap`: the second and third benchmark are halves of the first."""

    says: str
    size: tuple[int, int]
    draw: Callable[[tuple[int, int], np.random.Generator], np.ndarray]
    false: tuple[str, ...]
    protocols: tuple[str, ...] = PROTOCOLS
    missing: Callable[[np.ndarray, np.random.Generator], np.ndarray] | None = None
    families: int = 0
    unknown: bool = False
    overlap: bool = False
    noise: float = NOISE


def related(load: float) -> Callable[[tuple[int, int], np.random.Generator], np.ndarray]:
    """Benchmarks that share an ability, with this loading each; one ability for both protocols."""

    def draw(size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
        ability = rng.normal(size=(1, size[0], 1))
        return load * ability + np.sqrt(1 - load**2) * rng.normal(size=(2, *size))

    return draw


def placed(abilities: Callable[[int, np.random.Generator], np.ndarray]) -> Callable:
    """One order of the models on all benchmarks."""

    def draw(size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
        return np.tile(abilities(size[0], rng)[None, :, None], (2, 1, size[1]))

    return draw


def clumps(number: int) -> Callable:
    """Abilities in so many close clumps."""
    return placed(lambda n, rng: 2.0 * (np.arange(n) % number) + 0.1 * rng.normal(size=n))


def in_families(size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Families of three: half of the variance of each benchmark is between them, and benchmarks are independent."""
    of_family = rng.normal(size=(2, size[0] // 3, size[1]))
    return np.sqrt(0.5) * (np.repeat(of_family, 3, axis=1) + rng.normal(size=(2, *size)))


def outlier(n: int, rng: np.random.Generator) -> np.ndarray:
    """One model lies six standard deviations below."""
    abilities = rng.normal(size=n)
    abilities[0] = -6.0
    return abilities


def low(share: float) -> Callable[[np.ndarray, np.random.Generator], np.ndarray]:
    """Half of the lowest scores of each benchmark is missing; twice this share of the models has these."""
    return lambda scores, rng: (
        (stats.rankdata(scores, axis=0) <= 2 * share * len(scores)) & (rng.random(scores.shape) < 0.5)
    )


def ablest(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The best third of the models lacks half of its scores."""
    best = np.argsort(-scores.mean(axis=1))[: len(scores) // 3]
    gone = np.zeros(scores.shape, dtype=bool)
    gone[best] = rng.permuted(np.tile(np.arange(scores.shape[1]) < scores.shape[1] // 2, (len(best), 1)), axis=1)
    return gone


def by_chance(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A quarter of the scores is missing, whatever they are."""
    return rng.random(scores.shape) < 0.25


CHANGE, NOISE_ONLY, ANY = ("change",), ("disagree",), ("change", "agree", "one ability")
normal = placed(lambda n, rng: rng.normal(size=n))
ONE = (DIRECT,)
WORLDS = {
    "independent": World("no factor: independent benchmarks", (20, 8), related(0.0), ANY),
    "families": World(
        "families of three, independent benchmarks", (24, 8), in_families, ANY, families=3
    ),
    "one order": World("one order, 20 × 8", (20, 8), normal, NOISE_ONLY, ONE),
    "two clumps": World("one order, models in two clumps", (20, 8), clumps(2), NOISE_ONLY, ONE),
    "three clumps": World("one order, models in three clumps", (20, 8), clumps(3), NOISE_ONLY, ONE),
    "outlier": World("one order, one model far below", (20, 8), placed(outlier), NOISE_ONLY, ONE),
    "direction": World(
        "one order, unknown direction of a benchmark that is an error", (20, 8),
        normal, ("disagree", "agree"), ONE, unknown=True,
    ),
    "directions": World(
        "the same with both protocols", (20, 8), related(0.8), CHANGE, unknown=True,
    ),
    "overlap": World("a benchmark and its two halves beside three independent ones", (12, 6), related(0.0),
                     ("agree", "one ability"), ONE, overlap=True, noise=0.0),
    "by chance": World("a quarter missing by chance, after training", (20, 8), related(0.8), CHANGE, missing=by_chance),
    "by chance, 12": World("the same, 12 × 6", (12, 6), related(0.8), CHANGE, missing=by_chance),
    **{
        f"low {share:g}, {n}, {load:g}": World(
            f"half of the lowest {2 * share:.0%} missing after training, {n} × {k}, loadings {load:g}", (n, k),
            related(load), CHANGE, missing=low(share),
        )
        for n, k, load, share in (
            (12, 6, 0.8, 0.25), (20, 8, 0.8, 0.125), (20, 8, 0.8, 0.25), (20, 8, 0.5, 0.25), (40, 12, 0.5, 0.25),
        )
    },
    "ablest": World("the ablest third lacks half after training", (20, 8), related(0.8), CHANGE, missing=ablest),
    "one order, low": World(
        "one order, half of the lower half missing, 20 × 8", (20, 8), normal,
        NOISE_ONLY, ONE, missing=low(0.25),
    ),
}  # fmt: skip


def matrix_of(world: World, rng: np.random.Generator, folder: Path) -> tuple[ScoreMatrix, Data]:
    """A table of the world, written and read."""
    models, benchmarks = world.size
    rows = []
    truth = world.draw(world.size, rng)
    answers = []
    for index, protocol in enumerate(world.protocols):
        scores = truth[index] + world.noise * rng.normal(size=world.size)
        if world.overlap:
            right = rng.random((models, benchmarks, ITEMS_EACH)) < stats.norm.cdf(0.5 * truth[index])[:, :, None]
            right[:, 1, : ITEMS_EACH // 2], right[:, 2, : ITEMS_EACH // 2] = (
                right[:, 0, : ITEMS_EACH // 2],
                right[:, 0, ITEMS_EACH // 2 :],
            )
            answers.append(right)
            scores = right.mean(axis=2)
            scores[:, 1:3] = right[:, 1:3, : ITEMS_EACH // 2].mean(axis=2)
        gone = np.zeros(world.size, dtype=bool)
        if world.missing is not None and index == len(world.protocols) - 1:
            gone = world.missing(scores, rng)
        for (i, j), score in np.ndenumerate(scores):
            if not gone[i, j]:
                value = -score if world.unknown and j == 0 else score
                error = np.sqrt(max(score * (1 - score), 1e-4) / ITEMS_EACH) if world.overlap else world.noise
                rows.append((f"m{i:02}", f"b{j}", protocol, value, error))
    table = pd.DataFrame(rows, columns=["model", "benchmark", "protocol", "value", "stderr"])
    table = table.assign(checkpoint="final", split="test", metric="score,none", selected=True, source="simulated")
    write_table(table, SCORES, folder / "scores.parquet")
    sheet = {"model": [f"m{i:02}" for i in range(models)]}
    if world.families:
        sheet["family"] = [f"f{i // world.families}" for i in range(models)]
    pd.DataFrame(sheet).to_csv(folder / "models.csv", index=False)
    better = ["" if world.unknown and j == 0 else 1 for j in range(benchmarks)]
    pd.DataFrame(
        {"benchmark": [f"b{j}" for j in range(benchmarks)], "metric": "score", "higher_is_better": better}
    ).to_csv(folder / "benchmarks.csv", index=False)
    matrix = read_score_matrix(Sources(*(folder / name for name in ("scores.parquet", "models.csv", "benchmarks.csv"))))
    if world.overlap:
        matrix = without_shared_items(matrix, _items(answers[0], folder / "items.parquet"))
    return matrix, Data.of(matrix, RESAMPLES)


def _items(right: np.ndarray, path: Path) -> Path:
    """The items of the overlapping benchmarks: those of b1 and b2 are halves of b0's."""
    half, rows = ITEMS_EACH // 2, []
    for model, answers in enumerate(right):
        for benchmark, own in enumerate(answers):
            number = half if benchmark in (1, 2) else ITEMS_EACH
            for item in range(number):
                text = f"0-{item + (benchmark == 2) * half}" if benchmark < 3 else f"{benchmark}-{item}"
                rows.append((f"m{model:02}", f"b{benchmark}", f"{item}", text, float(own[item])))
    table = pd.DataFrame(rows, columns=["model", "benchmark", "doc_id", "doc_hash", "correct"])
    table = table.assign(checkpoint="final", protocol=DIRECT, prompt="plain", split="test")
    write_table(table, ITEMS, path)
    return path


def verdicts(world: World, rng: np.random.Generator) -> tuple[list[str], str]:
    """What the agreement page and the factors page claim, and the heading of the first."""
    with tempfile.TemporaryDirectory() as folder:
        matrix, data = matrix_of(world, rng, Path(folder))
        heading = agreement(data)[0].lede.heading
        other = factors(matrix, RESAMPLES)[0].lede.heading if {"one ability", "several"} & {*world.false} else ""
    said = [words for words in (heading, other) if not words.startswith("Not known")]
    return [claim for claim, words in SAYS.items() if any(re.search(words, one) for one in said)], heading


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage.verdicts", description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--world", action="append", choices=[*WORLDS])
    options = parser.parse_args()
    print("| world | what would be false | said | not known |\n|---|---|---|---|")
    for name in options.world or WORLDS:
        world, found = WORLDS[name], []
        for table in range(options.tables):
            claims, heading = verdicts(world, np.random.default_rng([zlib.crc32(name.encode()), table]))
            found.append((any(claim in world.false for claim in claims), heading.startswith("Not known")))
        false, unknown = np.mean(found, axis=0)
        print(f"| {world.says} | {', '.join(world.false)} | {false:.3f} | {unknown:.3f} |", flush=True)


if __name__ == "__main__":
    main()
