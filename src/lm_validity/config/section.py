"""What all sections of the configuration have in common.

Only the standard library and pydantic are imported: the Snakefile reads this at parse time.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Unknown keys are errors; values are frozen once read."""

    model_config = ConfigDict(extra="forbid", frozen=True)
