"""What a process did with its model, counted by phase of the work, for the sidecar of each cell."""

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Counters:
    """Counts since the last cell was committed.

    model_loads: times weights were read.
    evaluate_passes: times all documents of a split were scored.
    forward_tokens, forward_tokens_padded: tokens that scoring put through the model; padded ones include the real.
    shared_tokens: tokens that scoring did not compute again, because a choice shares them with another.
    scored_rows: positions whose vocabulary was computed. generated_tokens: tokens of generated answers.
    training_tokens, training_tokens_padded: the same of forward passes in training. optimizer_steps: taken.
    truncated_requests: requests longer than the model, which lost context on the left.
    oom_halvings: times a batch was halved because memory ran out.
    """

    model_loads: int = 0
    evaluate_passes: int = 0
    forward_tokens: int = 0
    forward_tokens_padded: int = 0
    shared_tokens: int = 0
    scored_rows: int = 0
    generated_tokens: int = 0
    training_tokens: int = 0
    training_tokens_padded: int = 0
    optimizer_steps: int = 0
    truncated_requests: int = 0
    oom_halvings: int = 0
    by_phase: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is counted inside the block is also booked under the phase `name`."""
        before = self._totals()
        try:
            yield
        finally:
            for key, value in self._totals().items():
                if value > before[key]:
                    self.by_phase[name][key] += value - before[key]

    def add(self, other: dict[str, Any]) -> None:
        """Count what `other` has, as `to_json` gives it."""
        for key, value in other.items():
            if key != "by_phase":
                setattr(self, key, getattr(self, key) + value)
        for phase, counts in other["by_phase"].items():
            for key, value in counts.items():
                self.by_phase[phase][key] += value

    def _totals(self) -> dict[str, int]:
        return {key: value for key, value in vars(self).items() if key != "by_phase"}

    def to_json(self) -> dict[str, Any]:
        """Totals, and under `by_phase` those of each phase that are not zero."""
        return self._totals() | {"by_phase": {name: dict(counts) for name, counts in sorted(self.by_phase.items())}}


def equal_part(counts: dict[str, Any], number: int, parts: int) -> dict[str, Any]:
    """Part `number` (from 0) of counts that several cells caused together. All parts have the counts as their sum."""
    return {
        key: equal_part(value, number, parts) if isinstance(value, dict) else (value + parts - 1 - number) // parts
        for key, value in counts.items()
    }
