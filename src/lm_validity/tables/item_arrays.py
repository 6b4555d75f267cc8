"""items.parquet as arrays of one benchmark: models, checkpoints, items, choices (read by `read_items`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np


def training_order(iterations: np.ndarray, tokens_b: np.ndarray) -> np.ndarray:
    """Indices that put checkpoints (n,) in order of training, by tokens, else by iteration (NaN: unknown).

    Where neither is known of all, those without an iteration come last: that is where a final checkpoint stands.
    """
    progress = iterations if np.isnan(tokens_b).any() else tokens_b
    return np.argsort(progress, kind="stable")


@dataclass(frozen=True)
class ModelItems:
    """One model's answers at its checkpoints, in order of training. Unknown numbers are NaN."""

    model: str
    checkpoints: tuple[str, ...]
    iterations: np.ndarray  # (checkpoints,)
    tokens_b: np.ndarray  # (checkpoints,)
    correct: np.ndarray  # (checkpoints, items): the item's value of the benchmark's metric
    loglikelihoods: np.ndarray | None  # (checkpoints, items, choices) nats; NaN beyond an item's choices
    unconditional: np.ndarray | None  # the same without the question, where it was computed
    tokens: np.ndarray | None  # (items, choices) length in this model's tokens
    scores: dict[str, np.ndarray] = field(default_factory=dict)  # (checkpoints, items) where already computed


@dataclass(frozen=True)
class BenchmarkItems:
    """All answers to one benchmark's items."""

    benchmark: str
    doc_ids: np.ndarray  # (items,) text
    subjects: np.ndarray  # (items,) text, "" where unknown
    gold: np.ndarray | None  # (items,) index of the right choice; None for generation and rolling tasks
    characters: np.ndarray | None  # (items, choices)
    bytes: np.ndarray | None  # (items, choices)
    models: tuple[ModelItems, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def choices(self) -> np.ndarray | None:
        """Number of choices of each item (items,)."""
        if self.models[0].loglikelihoods is None:
            return None
        return np.count_nonzero(~np.isnan(self.models[0].loglikelihoods[0]), axis=-1)

    def rows(self, rows: Iterable[tuple[int, Sequence[int] | np.ndarray]]) -> "BenchmarkItems":
        """Only the given checkpoints of the given models: pairs of a model's index and checkpoint indices."""
        return replace(self, models=tuple(_at(self.models[model], np.asarray(at)) for model, at in rows))

    def take(self, kept: np.ndarray) -> "BenchmarkItems":
        """Only the kept items: boolean (items,) or indices."""
        return replace(
            self,
            doc_ids=self.doc_ids[kept],
            subjects=self.subjects[kept],
            gold=_index(self.gold, kept),
            characters=_index(self.characters, kept),
            bytes=_index(self.bytes, kept),
            models=tuple(
                replace(
                    model,
                    correct=model.correct[:, kept],
                    loglikelihoods=_index(model.loglikelihoods, (slice(None), kept)),
                    unconditional=_index(model.unconditional, (slice(None), kept)),
                    tokens=_index(model.tokens, kept),
                    scores={name: scores[:, kept] for name, scores in model.scores.items()},
                )
                for model in self.models
            ),
        )


def _index(array: np.ndarray | None, kept: np.ndarray | tuple[slice, np.ndarray]) -> np.ndarray | None:
    return None if array is None else array[kept]


def _at(model: ModelItems, checkpoints: np.ndarray) -> ModelItems:
    return replace(
        model,
        checkpoints=tuple(model.checkpoints[index] for index in checkpoints),
        iterations=model.iterations[checkpoints],
        tokens_b=model.tokens_b[checkpoints],
        correct=model.correct[checkpoints],
        loglikelihoods=_index(model.loglikelihoods, checkpoints),
        unconditional=_index(model.unconditional, checkpoints),
        scores={name: scores[checkpoints] for name, scores in model.scores.items()},
    )
