"""The configuration's section `miniature`: the synthetic world of the demo's models and benchmarks.

Only the standard library and pydantic are imported: the Snakefile reads this at parse time.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from lm_validity.config.section import Section

Entities = Annotated[int, Field(ge=4, multiple_of=4)]  # four exposure bands of equal size

# In place of the recipe version that rules of cells have: a change of code that changes trained weights bumps it.
PRETRAINING_VERSION = 1


class MiniatureSettings(Section):
    """A small synthetic world: entities with facts, benchmarks that ask for them, corpora that state them."""

    pool: str = Field(
        "config/miniature.tsv",
        description="Sheet of the models to train from scratch, relative to the working directory.",
    )
    seed: int = Field(0, ge=0, description="Seed of the world and, with a model's id, of each model.")
    formats: Literal["families", "control"] = Field(
        "families",
        description="families: each family's pretraining saw question formats of its own. "
        "control: every family saw every format, so the remaining effect is not due to formats.",
    )
    test_facts: Literal["shared", "disjoint"] = Field(
        "shared",
        description="shared: every benchmark asks for the same test facts in its own format. "
        "disjoint: no test fact is asked by two benchmarks (fewer items each).",
    )
    test_entities: Entities = Field(48, description="Entities whose facts are asked in test splits (shared).")
    training_entities: Entities = Field(40, description="Entities whose facts are asked in training splits.")
    validation_entities: Entities = Field(20, description="Entities whose facts are asked in validation splits.")
    public_entities: Entities = Field(
        28,
        description="Entities that pretraining also shows in question formats. No benchmark asks about them.",
    )
    grammar_share: float = Field(0.06, ge=0, lt=1, description="Share of pretraining documents about grammar.")
    format_share: float = Field(0.40, ge=0, lt=1, description="Share of pretraining documents in the family's formats.")
    batch_documents: int = Field(64, ge=1, description="Documents per optimizer step of pretraining.")

    @model_validator(mode="after")
    def leave_room_for_prose(self) -> Self:
        """Refuses shares of grammar and formats that add up to 1 or more: only prose states the facts that are
        tested."""
        if self.grammar_share + self.format_share >= 1:
            raise ValueError("grammar_share and format_share leave no room for prose")
        return self
