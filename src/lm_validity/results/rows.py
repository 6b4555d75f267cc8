"""What a row of results.parquet is.

Rows are unique by `UNIQUE`. Those that differ in `interval_for` alone are intervals of one number, which each repeats.
"""

import json
from typing import NamedTuple

from lm_validity.missing import Missing, Reason, ReasonCode

UNIQUE = ("study", "quantity", "subject", "other", "protocol", "conditions", "interval_for")
RANGE = Missing(Reason("This is a range, without a value in its middle.", ReasonCode.RANGE))
Conditions = dict[str, float | str | None]
NONE = Missing(Reason("There is none here.", ReasonCode.NONE))


class Row(NamedTuple):
    """A row of results.parquet; docs/reference/results.md says what is in its columns."""

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
