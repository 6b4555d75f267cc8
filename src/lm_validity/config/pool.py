"""The pool sheet of the miniature world: one row per model that is trained from scratch.

Standard library and pydantic only: the Snakefile reads this at parse time.
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from lm_validity.config.rows import Identifier, SheetRow, Sheets, read_rows
from lm_validity.errors import InputError


class MiniatureModel(SheetRow):
    """One row of the pool sheet: what the model reads in pretraining, how it is built, how long it trains."""

    model: Identifier = Field(description="Id, also the folder.")
    family: Literal["web", "forum", "exam", "data"] = Field(description="Whose question formats its pretraining saw.")
    training_data: Literal["science", "web"] = Field(
        "science", description="science: every attribute is stated; web: the science attributes never are."
    )
    architecture: Literal["llama", "gpt2", "bert"] = Field(
        description="Architecture class in transformers; bert is for the bias study only."
    )
    size: str = Field(description="Label of the size, for the signal study.")
    hidden_size: int = Field(ge=8, description="Width.")
    layers: int = Field(ge=1, description="Blocks.")
    steps: int = Field(ge=1, description="Optimizer steps: a budget in steps gives the same model on a busy machine.")
    learning_rate: float = Field(gt=0, lt=1, description="Peak learning rate.")
    checkpoint_every: int | None = Field(None, ge=1, description="Steps between checkpoints kept; empty keeps none.")
    studies: str = Field("agreement", description="Studies it takes part in, comma-separated (for the models sheet).")
    tuned_from: str | None = Field(
        None, description="Pool id of the model it goes on from, trained further on dialogues: instruction-tuned."
    )

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Iterations kept beside the final model (the last step is the final model itself)."""
        return tuple(range(self.checkpoint_every, self.steps, self.checkpoint_every)) if self.checkpoint_every else ()

    @property
    def heads(self) -> int:
        """Attention heads: one for every 32 dimensions, at least 2."""
        return max(2, self.hidden_size // 32)

    @property
    def feedforward_size(self) -> int:
        """Width of the feed-forward layer: 8/3 of the model's for gated Llama, 4 times for GPT-2."""
        return self.hidden_size * 8 // 3 // 8 * 8 if self.architecture == "llama" else 4 * self.hidden_size

    @model_validator(mode="after")
    def keep_masked_models_to_the_bias_study(self) -> Self:
        """Refuses a bert in any other study, and a bert with checkpoints: only the bias study takes masked models, and
        only their final weights."""
        if self.architecture == "bert" and (self.studies != "bias" or self.checkpoint_every):
            raise ValueError("a bert is for the bias study only: studies must be bias, without checkpoints")
        return self

    @model_validator(mode="after")
    def divide_evenly(self) -> Self:
        """Refuses a width that does not give every head an even number of dimensions, and steps that are no multiple of
        `checkpoint_every`."""
        if self.hidden_size % (2 * self.heads):
            raise ValueError(f"hidden_size must be a multiple of {2 * self.heads} for {self.heads} heads")
        if self.checkpoint_every and self.steps % self.checkpoint_every:
            raise ValueError("steps must be a multiple of checkpoint_every")
        return self


def read_pool(path: str | Path, sheets: Sheets | None = None) -> dict[str, MiniatureModel]:
    """The pool sheet by model id, in the sheet's order. Raises InputError naming row, column and value."""
    path = Path(path)
    described_in = "docs/explanation/miniature.md"
    pool = read_rows(path, MiniatureModel, setting="miniature: pool", described_in=described_in, sheets=sheets)
    for row in pool.values():
        _check_parent(path, row, pool)
    return pool


def _check_parent(path: Path, row: MiniatureModel, pool: dict[str, MiniatureModel]) -> None:
    """A tuned model goes on from a model of the pool that is not tuned itself and is built like it."""
    if row.tuned_from is None:
        return
    where = f"{path}, model {row.model!r}, column 'tuned_from', value {row.tuned_from!r}"
    parent = pool.get(row.tuned_from)
    if parent is None or parent.tuned_from is not None:
        raise InputError(f"{where}: no model of the pool that was trained from scratch.", "name one of its other rows.")
    for column in ("family", "training_data", "architecture", "hidden_size", "layers"):
        if getattr(row, column) != getattr(parent, column):
            raise InputError(f"{where}: they differ in {column!r}.", "a tuned model is built like its parent.")
