"""Section `cards`: from which values on a benchmark's card says that something holds."""

from typing import Annotated

from pydantic import Field

from lm_validity.config.section import Section

Share = Annotated[float, Field(ge=0, le=1)]


class Cards(Section):
    """Thresholds of the verdicts on benchmark cards (docs/reference/cards.md). A verdict needs the whole 95% interval
    on one side of its threshold. Otherwise it says "not known"."""

    separated: Share = Field(
        0.8, description="A benchmark tells models apart if it separates at least this share of their pairs."
    )
    not_separated: Share = Field(
        0.5, description="A benchmark cannot tell models apart if it separates less than this share."
    )
    agrees: float = Field(
        0.5, ge=-1, le=1, description="A benchmark agrees with the others if its mean tau is at least this."
    )
    reliable: Share = Field(
        0.8, description="Scores are reliable if at least this share of their variance between models is not noise."
    )
    bias: float = Field(
        0.01, gt=0, le=1, description="Effect of having seen test text, in accuracy, that must be excluded."
    )
    prompt: float = Field(0.02, gt=0, description="Range of a model's score over prompts that must be excluded.")
    leakage: Share = Field(0.01, description="Largest share of the training rows looked at that may occur in test.")
    suspicious: Share = Field(0.02, description="Largest share of items that may surely work against the benchmark.")
    at_best: Share = Field(0.2, description="Largest share of the models that may reach the best score.")
