"""The configuration's section `bias`: pretraining on a task's unlabelled test texts, and on others for comparison.

Only the standard library and pydantic are imported: the Snakefile reads this at parse time.
"""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, field_validator, model_validator

from lm_validity.config.section import Positive, Section, check_distinct

Rate = Annotated[float, Field(gt=0, lt=1)]
EXPERIMENT = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"  # no dot: it separates the parts of a cell's name


def _keys_as_text(value: object) -> object:
    """YAML reads `500: 20` with a number as key."""
    return {str(key): one for key, one in value.items()} if isinstance(value, dict) else value


class Experiment(Section):
    """One experiment: which language models and tasks, how many texts, how often."""

    method: Literal["head", "zero_shot"] = Field("head", description="A trained linear head, or prompting.")
    language_models: tuple[str, ...] = Field((), description="Ids from the sheet. Empty: all.")
    tasks: tuple[str, ...] = Field((), description="Ids from the sheet. Empty: all.")
    m: tuple[Positive, ...] = Field((100,), min_length=1, description="Number of labelled training texts.")
    n: tuple[Positive, ...] = Field((200,), min_length=1, description="Number of texts in extra, and also in test.")
    subsamples: Positive | Annotated[dict[str, Positive], BeforeValidator(_keys_as_text)] = Field(
        20, description="Random draws: one number, or by n (`500: 20`) or by m and n (`100,500: 20`)."
    )
    pretraining_epochs: Positive | None = Field(
        None, description="Passes over the unlabelled texts. null: those of the section `pretraining`."
    )
    packing: bool = Field(
        False,
        description="Pretrain on several texts per sequence, as one of the paper's experiments does (zero_shot only).",
    )

    planted_leak: float = Field(
        0.0,
        ge=0,
        le=1,
        description="FOR TESTING ONLY: share of the test arm's pretraining texts that carry their label.",
    )

    be_distinct = field_validator("language_models", "tasks", "m", "n")(check_distinct)

    @model_validator(mode="after")
    def be_consistent(self) -> Self:
        """Refuses packing outside zero_shot, and packing with a planted leak, since packed texts carry no labels. Of
        `subsamples` given by size, refuses an unknown size (a typing mistake) and a size left without a number."""
        if self.packing and self.method != "zero_shot":
            raise ValueError("packing is for method zero_shot")
        if self.packing and self.planted_leak:
            raise ValueError("packing and planted_leak exclude each other: packed texts carry no labels")
        if isinstance(self.subsamples, dict):
            known = {str(n) for n in self.n} | {f"{m},{n}" for m in self.m for n in self.n}
            for key in self.subsamples:
                if key.replace(" ", "") not in known:
                    raise ValueError(f"subsamples: {key!r} is no n and no m,n of this experiment")
            for m in self.m:
                for n in self.n:
                    if self._own_count(m, n) is None:
                        raise ValueError(f"subsamples: nothing for m = {m}, n = {n}")
        return self

    def count_subsamples(self, m: int, n: int) -> int:
        """Random draws at (m, n); an entry of its own comes before one for all m."""
        count = self._own_count(m, n)
        assert count is not None, "be_consistent has seen to it"
        return count

    def _own_count(self, m: int, n: int) -> int | None:
        if not isinstance(self.subsamples, dict):
            return self.subsamples
        given = {key.replace(" ", ""): value for key, value in self.subsamples.items()}
        return given.get(f"{m},{n}", given.get(str(n)))


class TextTraining(Section):
    """Training on unlabelled texts (AdamW, linear decay, gradients clipped at 1), the number of epochs aside."""

    learning_rate: Rate = Field(1e-4, description="Peak learning rate.")
    batch_size: Positive = Field(16, description="Texts per step, unless the tasks sheet has `pretraining_batch`.")
    max_length: Positive = Field(256, description="Tokens per text. The rest is cut.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay.")
    mask_probability: Rate = Field(0.15, description="Share of tokens that a masked language model must guess.")
    micro_batch: Positive | None = Field(
        None,
        description="Texts per forward pass. Set it if memory runs out. Affects memory only. null: the whole batch.",
    )


class TextPretraining(TextTraining):
    """Pretraining on unlabelled texts (AdamW, linear decay, gradients clipped at 1)."""

    masked_epochs: Positive = Field(2, description="Passes over the texts for masked language models (BERT).")
    causal_epochs: Positive = Field(1, description="Passes over the texts for causal language models (GPT-2).")


class HeadTraining(Section):
    """Training the classifier: a linear head and all weights below it, on the m labelled texts."""

    epochs: Positive = Field(3, description="Passes over the texts, unless the sheet has `training_epochs`.")
    learning_rate: Rate = Field(5e-5, description="Peak learning rate.")
    batch_size: Positive = Field(16, description="Texts per step, unless the sheet has `<architecture>_batch`.")
    weight_decay: float = Field(0.01, ge=0, description="AdamW weight decay.")
    max_length: Positive | None = Field(256, description="Tokens per text. null: the model's limit.")
    pooler: Literal["keep", "none", "paper"] = Field(
        "keep",
        description="BERT's pooler. keep: all arms have the model's. none: the head reads the first token. paper: the "
        "pretrained arms get a fresh one, so the boost also measures what is lost with the old one.",
    )


class Adapter(Section):
    """LoRA on every linear layer except the output head. The paper's QLoRA settings are the defaults."""

    rank: Positive = Field(16, description="LoRA rank, on every linear layer.")
    alpha: Positive = Field(32, description="LoRA alpha.")
    dropout: float = Field(0.05, ge=0, lt=1, description="LoRA dropout.")
    quantization: Literal["none", "nf4"] = Field(
        "none",
        description="none: the model's dtype. nf4: 4-bit weights, if the model does not fit otherwise. They need "
        "bitsandbytes (the extra `nf4`). Not measured on a GPU.",
    )


class Prompting(Adapter):
    """Zero-shot experiments: adapters are pretrained on prompts, and no labels are used in training."""

    epochs: Positive = Field(1, description="Passes over the prompts.")
    learning_rate: Rate = Field(2e-4, description="Peak learning rate.")
    batch_size: Positive = Field(16, description="Prompts per step, unless the tasks sheet has `pretraining_batch`.")
    max_length: Positive = Field(512, description="Tokens per prompt in pretraining. The rest is cut.")
    prompt_characters: Positive = Field(1000, description="Characters of a text that a prompt quotes.")
    packed_texts: Positive = Field(8, description="Texts per sequence in experiments with packing.")
    packed_max_length: Positive = Field(8192, description="Tokens of a packed sequence.")
    gradient_checkpointing: bool = Field(
        False,
        description="Turn it on if training does not fit at micro_batch 1. It costs time and changes results by "
        "rounding only.",
    )
    micro_batch: Positive | None = Field(
        None, description="Prompts per forward pass. Set it if memory runs out. Affects memory only."
    )


class BiasSettings(Section):
    """The bias study: three arms per trial (no pretraining, pretraining on other texts, on the test texts)."""

    language_models: str = Field(
        "config/bias_language_models.tsv",
        description="Sheet of language models (TSV), relative to the working directory.",
    )
    tasks: str = Field("config/bias_tasks.tsv", description="Sheet of text-classification tasks (TSV).")
    experiments: dict[str, Experiment] = Field(
        {"head": Experiment()},
        min_length=1,
        description="Experiments by name: method (head or zero_shot), language_models and tasks (ids; empty is all), m "
        "(labelled texts), n (unlabelled and test texts), subsamples (random draws: a number, or by n, or by `m,n`), "
        "pretraining_epochs (a larger number is overtraining) and packing. planted_leak is for tests only.",
    )
    subsamples_a_cell: Positive | Literal["all"] = Field(
        25, description="Subsamples per finished result in the store. Another number makes other cells."
    )
    stop_at_half_width: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Turn it on to save trials: a task stops when the 95% interval of its bias is ± this or narrower "
        "(a fraction of accuracy; 0.0125 is 1.25 points). `lm-validity next` adds a batch of subsamples_a_cell to the "
        "other tasks. null: every task has all subsamples.",
    )
    plan: str | None = Field(
        None,
        description="Sheet (TSV) of the batches after the first, which `lm-validity next` writes. Only with "
        "stop_at_half_width.",
    )
    paper: bool = Field(
        False,
        description="Reproduce the authors' code, invalid choices included. Overrides seeds, "
        "training.pooler, training.max_length and drop_duplicate_texts.",
    )
    drop_duplicate_texts: bool = Field(
        True,
        description="Draw from the first row of each text only (ignoring case and blanks), so no test text is also "
        "one of extra or train. false: of all rows.",
    )
    seeds: Literal["varied", "fixed"] = Field(
        "varied",
        description="varied: the randomness of training differs between subsamples, never between arms. fixed: it is "
        "the same in all, which underestimates the spread.",
    )
    pretraining: TextPretraining = Field(TextPretraining(), description=TextPretraining.__doc__)
    training: HeadTraining = Field(HeadTraining(), description=HeadTraining.__doc__)
    zero_shot: Prompting = Field(Prompting(), description=Prompting.__doc__)

    @model_validator(mode="wrap")
    @classmethod
    def do_as_the_authors(cls, values: object, read: ModelWrapValidatorHandler[Self]) -> Self:
        """What `paper` means, here and nowhere else: truncation at the model's limit when classifying, a fresh pooler
        after pretraining, one seed for every training, equal texts drawn like any others."""
        settings = read(values)
        if not settings.paper:
            return settings
        training = settings.training.model_copy(update={"max_length": None, "pooler": "paper"})
        return settings.model_copy(update={"training": training, "seeds": "fixed", "drop_duplicate_texts": False})

    @model_validator(mode="after")
    def stop_by_a_plan(self) -> Self:
        """Refuses a half-width without a plan and the reverse: the plan holds the further batches. Refuses both with
        `subsamples_a_cell: all`, to which no batch could be added."""
        if (self.plan is None) != (self.stop_at_half_width is None):
            raise ValueError("stop_at_half_width and plan go together: give the width, and the sheet to write")
        if self.plan is not None and self.subsamples_a_cell == "all":
            raise ValueError("stop_at_half_width needs a number of subsamples_a_cell: that many are a batch")
        return self

    @field_validator("experiments")
    @classmethod
    def name_experiments(cls, experiments: dict[str, Experiment]) -> dict[str, Experiment]:
        """Refuses a name that does not begin with a letter or digit, or that has characters other than these, `_` and
        `-`: a dot would split the cell's name."""
        import re

        for name in experiments:
            if not re.match(EXPERIMENT, name):
                raise ValueError(f"experiment {name!r}: names are letters, digits, '_' and '-'")
        return experiments
