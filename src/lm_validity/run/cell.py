"""Cells and jobs. A *cell* is one unit of GPU work and of resume; a *job* is one process that Snakemake starts, for one
model or for several adapters of one, with one or several cells.

Rules have cells of different kinds; what all have in common is `Cell`. Standard library only: the Snakefile builds them
at parse time.
"""

from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

T = TypeVar("T")
Prompt = Literal["plain", "chat"]


class Cell(Protocol):
    """What every cell has. Cells are named tuples: equal values are one cell, and a manifest holds the values by name
    (`rules.read_cell` makes the cell of them again)."""

    @property
    def rule(self) -> str:
        """The rule that computes it."""

    @property
    def model(self) -> str:
        """The id of its model, in the sheet of its rule."""

    @property
    def name(self) -> str:
        """The cell within its rule and model; it names files."""

    @property
    def subject(self) -> str:
        """What the model is tried on: a benchmark, or a task of the bias study."""

    def _asdict(self) -> dict[str, Any]: ...


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

    @property
    def name(self) -> str:
        """The cell within its model, e.g. `arc_easy.plain.lr2e-5.seed0` or `arc_easy.final.plain.test`."""
        rate = f"lr{self.learning_rate}" if self.learning_rate else None
        seed = f"seed{self.seed}" if self.seed is not None else None
        parts = (self.benchmark, self.checkpoint, self.prompt, rate, seed, self.split)
        return ".".join(part for part in parts if part)

    @property
    def subject(self) -> str:
        """The benchmark."""
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
