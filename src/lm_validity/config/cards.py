"""Section `cards`: from which values on a benchmark's card says that something holds."""

from typing import Annotated

from pydantic import Field

from lm_validity.config.section import Section

Share = Annotated[float, Field(ge=0, le=1)]


class Cards(Section):
    """Thresholds of the verdicts on benchmark cards (docs/reference/cards.md). A verdict needs the whole 95% interval
    on one side of its threshold; else it says "not known"."""

    separated: Share = Field(0.8, description="Share of pairs of models from which on a benchmark separates them.")
    not_separated: Share = Field(0.5, description="Share of pairs below which a benchmark cannot separate them.")
    agrees: float = Field(0.5, ge=-1, le=1, description="Mean tau from which on a benchmark agrees with the others.")
    reliable: Share = Field(0.8, description="Share of the variance between models that is no noise of items.")
    bias: float = Field(0.01, gt=0, le=1, description="Effect of test text seen, in accuracy, that is to be excluded.")
    prompt: float = Field(0.02, gt=0, description="Range of a model's score over prompts that is to be excluded.")
    leakage: Share = Field(0.01, description="Largest share of the rows looked at for training that occur in test.")
    suspicious: Share = Field(0.02, description="Largest share of items that surely work against the benchmark.")
    at_best: Share = Field(0.2, description="Largest share of the models that reach the best score.")
