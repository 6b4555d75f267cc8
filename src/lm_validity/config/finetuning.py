"""The configuration's section `finetuning`: LoRA fine-tuning of the agreement study.

Only the standard library and pydantic are imported: the Snakefile reads this at parse time.
"""

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from lm_validity.config.section import Positive, Section, bad_value, check_distinct

PATIENCE = 2  # epochs without improvement after which an early stop comes


class OneFinetune(Section):
    """What every LoRA fine-tune of a run has in common. The order of the fields is that of a job's settings, by which
    Snakemake sees what has changed."""

    epochs: Positive = Field(5, description="Passes over the training split, with validation after each.")
    effective_batch: Positive = Field(8, description="Documents per optimizer step. It does not depend on memory.")
    micro_batch: Positive = Field(
        8, description="Documents per forward pass. If memory runs out, it is halved. The effective batch stays."
    )
    max_length: Positive = Field(1024, description="Longest training text in tokens.")
    loss: Literal["all", "completion"] = Field("all", description="Tokens in the loss: all, or the answer's only.")
    target_modules: Literal["all-linear", "attention", "paper"] = Field(
        "all-linear",
        description="Layers that get an adapter. all-linear treats every family alike. attention: q, k, v. "
        "paper: the library's default per family, as published.",
    )
    rank: Positive = Field(8, description="LoRA rank.")
    alpha: Positive = Field(32, description="LoRA alpha.")
    dropout: float = Field(0.1, ge=0, lt=1, description="LoRA dropout.")
    weight_decay: float = Field(0.01, ge=0, description="AdamW weight decay.")
    gradient_checkpointing: bool = Field(
        False,
        description="Trade time for memory. Turn it on if training does not fit at micro-batch 1. Changes results by "
        "rounding only.",
    )
    early_stop: bool = Field(
        False,
        description="Stop a learning rate after 2 epochs without improvement on validation. Turn it on to save epochs, "
        "at some cost in validation scores. Not with target_modules: paper, which trains as published.",
    )

    @field_validator("early_stop")
    @classmethod
    def train_as_published(cls, early_stop: int | None, info: ValidationInfo) -> int | None:
        """Refuses an early stop with target_modules `paper`, which trains all epochs as published."""
        if early_stop and info.data.get("target_modules") == "paper":
            raise bad_value("target_modules: paper trains every epoch as published", "set early_stop to false.")
        return early_stop


class Finetuning(OneFinetune):
    """LoRA fine-tuning (train before test), the same for every model of a run."""

    learning_rates: tuple[str, ...] = Field(
        ("1e-5", "2e-5", "5e-5"),
        min_length=1,
        description="Tried one by one. The best on validation is kept.",
    )
    seeds: tuple[int, ...] = Field((0,), min_length=1, description="Each seed is a fine-tune of its own.")
    rates_side_by_side: bool = Field(
        False,
        description="Train the learning rates of a job in one forward and backward pass. Turn it on if a GPU waits for "
        "launches, as with small models (not measured there; 1.2 to 1.3 times faster on a CPU). Changes results by "
        "rounding only. If memory runs out, fewer rates are trained together.",
    )

    @field_validator("learning_rates", mode="before")
    @classmethod
    def keep_as_written(cls, rates: object) -> object:
        """A rate names files: YAML's 1e-5 and "1e-5" must be one cell, so both become the same short text."""
        if isinstance(rates, list | tuple):
            return tuple(_rate_name(rate) for rate in rates)
        return rates

    be_distinct = field_validator("learning_rates", "seeds")(check_distinct)


def _rate_name(rate: Any) -> str:
    """0.00002, "2e-05" -> "2e-5"."""
    try:
        number = float(rate)
    except (TypeError, ValueError):
        raise ValueError(f"{rate!r} is not a number") from None
    if not 0 < number < 1:
        raise ValueError(f"{rate!r} is not between 0 and 1")
    mantissa, exponent = f"{number:.6e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"
