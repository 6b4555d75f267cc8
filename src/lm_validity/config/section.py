"""What all sections of the configuration, and the rows of its sheets, have in common.

Only the standard library and pydantic are imported: the Snakefile reads this at parse time.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Unknown keys are errors; values are frozen once read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def check_distinct(values: tuple[object, ...]) -> tuple[object, ...]:
    """A validator: raises ValueError for a value that is there twice."""
    if len(set(values)) != len(values):
        raise ValueError("holds a value twice")
    return values


def bad_value(problem: str, hint: str, column: str | None = None) -> PydanticCustomError:
    """What a validator raises to give its own hint. `column`: for a validator of the whole row."""
    return PydanticCustomError("bad_value", "{problem}", {"problem": problem, "hint": hint, "column": column})
