"""What a row of results.parquet is.

Rows are unique by `UNIQUE`. Those that differ in `interval_for` alone are intervals of one number, which each repeats.
"""

import json
from typing import NamedTuple

from lm_validity.missing import Missing, Reason, ReasonCode

COLUMNS = {
    "study": "the report: agreement, factors, readiness, signal, bias, items, ranking, compare or screening",
    "quantity": "what the number is",
    "subject": "what it is of: a benchmark, a model, a family, a category or a task; null: of all together",
    "other": "the other one, where it is of two",
    "protocol": "`direct` or `train_before_test`; null: of neither alone",
    "conditions": "what else it belongs to, as JSON with sorted keys; `{}` where there is nothing else",
    "value": "the number; 1 and 0 for yes and no; null where it is missing, and in the row of a text",
    "low": "lower end of the interval",
    "high": "upper end of the interval",
    "level": "of the interval: 0.95 or 0.89",
    "interval_for": "what the interval is over; null: the number has none",
    "n": "how many things the number rests on, where that is known",
    "unit": "of value, low and high; `yes_or_no`, or `text`",
    "text": "the result, where it is a text",
    "reason": "why the value is missing or, where there is one, its interval: a sentence",
    "reason_code": "the same as a code",
    "basis": "what `n` counts",
}
INTERVALS = {
    "models": "models",
    "families": "families of models, each as a whole",
    "benchmarks": "benchmarks, as a sample of a population of benchmarks",
    "categories": "categories of benchmarks, as a sample of a population of categories",
    "items": "test items, or scores by their standard errors",
    "missing_cells": "the scores that are missing",
    "checkpoints": "checkpoints, or other trainings where there are any",
    "differences": "the differences between models, within their noise",
    "coin_flips": "the order of the models, as though coins decided it",
    "pairs": "benchmarks, each model compared with every other one",
    "tasks": "tasks",
    "subsamples": "subsamples",
    "middle_subsamples": "subsamples: the middle half of them",
    "posterior": "the posterior",
}
UNIQUE = ("study", "quantity", "subject", "other", "protocol", "conditions", "interval_for")
RANGE = Missing(Reason("This is a range, without a value in its middle.", ReasonCode.RANGE))
Conditions = dict[str, float | str | None]
NONE = Missing(Reason("There is none here.", ReasonCode.NONE))


class Row(NamedTuple):
    """A row of results.parquet; what is in the columns: `COLUMNS`."""

    study: str
    quantity: str
    subject: str | None
    other: str | None
    protocol: str | None
    conditions: str
    value: float | None
    low: float | None
    high: float | None
    level: float | None
    interval_for: str | None
    n: int | None
    unit: str
    text: str | None
    reason: str | None
    reason_code: str | None
    basis: str | None

    @property
    def said(self) -> Conditions:
        """The row's conditions as a dictionary, from the JSON text of its column."""
        conditions: Conditions = json.loads(self.conditions)
        return conditions
