"""The configuration's section `signal`: the signal study in two stages."""

from typing import Self

from pydantic import Field, model_validator

from lm_validity.config.section import Section


class SignalStages(Section):
    """The signal study in two stages, to save evaluations: every benchmark is scored at 8 checkpoints of the first
    quarter of training, and the undecided ones at the others too."""

    plan: str = Field(
        description="Sheet (TSV) with the verdicts of the first stage, which `lm-validity next` writes. Until it "
        "exists, the first stage runs."
    )
    says_something: float = Field(
        0.75, gt=0, le=1, description="A benchmark says something if its mean rank correlation is at least this."
    )
    says_nothing: float = Field(0.35, ge=-1, lt=1, description="It says nothing if that is below this.")

    @model_validator(mode="after")
    def be_apart(self) -> Self:
        """Refuses `says_nothing` at or above `says_something`: no benchmark could be undecided between them."""
        if not self.says_nothing < self.says_something:
            raise ValueError("says_nothing must be below says_something: between them a benchmark is undecided")
        return self
