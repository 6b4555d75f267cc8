"""Cells, jobs and the batches that cells are divided into."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

# ----------------------------------------------------------------------------------------------------------------------
# Recipes: everything that determines a cell's numbers, and nothing else, hashed into the name of its folder.
#
# Batch sizes, devices, library versions and file paths are not in a recipe: they are recorded beside the result.
# A rule's `recipe_version` is one, bumped by hand when a change of code changes numbers.


Recipe = dict[str, object]  # a JSON object, which is compared and hashed whole


def recipe_hash(recipe: Mapping[str, object]) -> str:
    """Twelve hex digits of the SHA-256 of the recipe's canonical JSON."""
    text = json.dumps(recipe, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def derive_seed(*parts: object) -> int:
    """A seed in [0, 2^63) from the parts of a cell's key; the same on every machine."""
    text = json.dumps([str(part) for part in parts])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


# ----------------------------------------------------------------------------------------------------------------------
# Cells and jobs. A *cell* is one unit of GPU work and of resume; a *job* is one process that Snakemake starts, for one
# model or for several adapters of one, with one or several cells.
#
# Rules have cells of different kinds; what all have in common is `Cell`. Standard library only: the Snakefile builds
# them at parse time.

T = TypeVar("T")
Prompt = Literal["plain", "chat"]


class Cell(Protocol):
    """What every cell has. Cells are named tuples: equal values are one cell, and a manifest holds the values by name
    (`rules.read_cell` makes the cell of them again)."""

    @property
    def rule(self) -> str:
        """The name of the rule that computes the cell."""

    @property
    def model(self) -> str:
        """The id of its model, in the sheet of its rule."""

    @property
    def name(self) -> str:
        """The cell within its rule and model; it names files."""

    @property
    def subject(self) -> str:
        """What the model is tried on: a benchmark, or a task of the bias study."""

    def _asdict(self) -> dict[str, object]: ...


CellT = TypeVar("CellT", bound=Cell)
CellT_co = TypeVar("CellT_co", bound=Cell, covariant=True)


class BenchmarkCell(NamedTuple):
    """A model and a benchmark. Parts that a rule does not have are None."""

    rule: str
    model: str
    benchmark: str
    checkpoint: str | None = None
    prompt: Prompt | None = None
    learning_rate: str | None = None
    seed: int | None = None
    split: str | None = None
    run: int | None = None  # of sampled answers, from 0; None: the likeliest answer

    @property
    def name(self) -> str:
        """The cell within its model, e.g. `arc_easy.plain.lr2e-5.seed0` or `arc_easy.final.plain.test`."""
        rate = f"lr{self.learning_rate}" if self.learning_rate else None
        seed = f"seed{self.seed}" if self.seed is not None else None
        run = f"run{self.run}" if self.run is not None else None
        parts = (self.benchmark, self.checkpoint, self.prompt, rate, seed, run, self.split)
        return ".".join(part for part in parts if part)

    @property
    def subject(self) -> str:
        """What the cell is about: its benchmark."""
        return self.benchmark


class Job(NamedTuple, Generic[CellT_co]):
    """One process: the cells that it computes, in order. Jobs are found by (rule, model, batch); `batch` is a readable
    name, and for a job of one cell it is the cell's own name. All cells are of `model`, or they are of models that
    share its weights and its size class (`EvaluateModel`)."""

    rule: str
    model: str
    batch: str
    cells: tuple[CellT_co, ...]


def models_of(job: Job[CellT]) -> tuple[str, ...]:
    """The models of a job's cells, once each, in order."""
    return tuple(dict.fromkeys(cell.model for cell in job.cells))


def given(part: T | None) -> T:
    """A part of a cell that the cells of its rule have."""
    assert part is not None
    return part


def label(cell: Cell) -> str:
    """What a person calls a cell: rule/model/name."""
    return f"{cell.rule}/{cell.model}/{cell.name}"


# ----------------------------------------------------------------------------------------------------------------------
# Which members of a list share a job: so many, all, or (auto) as many as the longest job may take.
#
# Standard library only: the Snakefile builds jobs at parse time.


@dataclass(frozen=True)
class Batched:
    """A group of neighbours in a list, which share a job."""

    name: str
    members: tuple[str, ...]


def make_groups(
    members: tuple[str, ...],
    size: int | Literal["all", "auto"],
    everything: str,
    prefix: str = "",
    *,
    minutes: Mapping[str, float] = MappingProxyType({}),
    longest: float = 0.0,
) -> list[Batched]:
    """Cut `members` into runs of at most `size` ("all": one run; "auto": as long as the sum of their `minutes` is at
    most `longest`), each named for its files.

    A run of one is named by its member; the whole list is `all-<everything>`; others `group-<i>-of-<n>-<everything>`.
    """
    if not members:
        return []
    if size == "auto":
        cuts = list(_by_minutes(members, minutes, longest))
    else:
        limit = len(members) if isinstance(size, str) else size
        cuts = [members[start : start + limit] for start in range(0, len(members), limit)]
    if len(cuts) == 1 and len(members) > 1:
        return [Batched(f"all-{everything}", members)]
    if len(cuts) == len(members):
        return [Batched(f"{prefix}{cut[0]}", cut) for cut in cuts]
    return [Batched(f"group-{i}-of-{len(cuts)}-{everything}", cut) for i, cut in enumerate(cuts, 1)]


def _by_minutes(members: tuple[str, ...], minutes: Mapping[str, float], longest: float) -> Iterator[tuple[str, ...]]:
    """Runs of neighbours whose minutes add up to at most `longest`; one that takes longer is alone."""
    run: list[str] = []
    total = 0.0
    for member in members:
        if run and total + minutes[member] > longest:
            yield tuple(run)
            run, total = [], 0.0
        run.append(member)
        total += minutes[member]
    yield tuple(run)
