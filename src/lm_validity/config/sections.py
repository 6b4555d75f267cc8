"""The configuration's sections."""

import re
from collections.abc import Collection
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ModelWrapValidatorHandler, field_validator, model_validator

from lm_validity.config.rows import LONGEST_NAME, ConfigSection, Positive, check_distinct, key


def e2lm_tokens_b(iteration: float) -> float:
    """Billions of tokens that a dense-{500m,1b,3b}-{arch1,arch2} model of the NeurIPS 2025 early-training competition
    has seen after so many optimizer steps (its scoring notebook): sequences of 4096 tokens, 256, 512 and 768 of them a
    step in three phases of as many sequences each, then 1024. A step in which a phase ends is shared by both sizes."""
    sequences, remaining = 0.0, float(iteration)
    for batch in (256, 512, 768):
        steps = min(remaining, 4_882_812 / 3 / batch)
        sequences += steps * batch
        remaining -= steps
    return (sequences + remaining * 1024) * 4096 / 1e9


# ----------------------------------------------------------------------------------------------------------------------
# Section `cards`: from which values on a benchmark's card says that something holds.

Share = Annotated[float, Field(ge=0, le=1)]


class Cards(ConfigSection):
    """Thresholds of the verdicts on benchmark cards (docs/reference/cards.md). A verdict needs the whole 95% interval
    on one side of its threshold. Otherwise it says "not known"."""

    separated: Share = key(0.8, "A benchmark tells models apart if it separates at least this share of their pairs.")
    not_separated: Share = key(0.5, "A benchmark cannot tell models apart if it separates less than this share.")
    agrees: float = key(0.5, "A benchmark agrees with the others if its mean tau is at least this.", ge=-1, le=1)
    reliable: Share = key(0.8, "Scores are reliable if at least this share of their variance is not noise.")
    early: Share = key(
        0.5, "A benchmark is ready early if above chance, with its order settled, by this share of training."
    )
    bias: float = key(0.01, "Effect of having seen test text, in accuracy, that must be excluded.", gt=0, le=1)
    prompt: float = key(0.02, "Range of a model's score over prompts that must be excluded.", gt=0)
    leakage: Share = key(0.01, "Largest share of the training rows looked at that may occur in test.")
    suspicious: Share = key(0.02, "Largest share of items that may surely work against the benchmark.")
    at_best: Share = key(0.2, "Largest share of the models that may reach the best score.")


CARDS = Cards()


# ----------------------------------------------------------------------------------------------------------------------
# The configuration's section `finetuning`: LoRA fine-tuning of the agreement study.
#
# Only the standard library and pydantic are imported: the Snakefile reads this at parse time.

# keys of a fine-tune that change its cost, and its numbers by rounding only: in no recipe, and in no state of training
COST_ONLY = frozenset(("micro_batch", "gradient_checkpointing"))


class OneFinetune(ConfigSection):
    """What every LoRA fine-tune of a run has in common. The order of the fields is that of a job's settings, by which
    Snakemake sees what has changed; fields without a description are no keys."""

    epochs: Positive = key(5, "Passes over the training split, with validation after each.")
    effective_batch: Positive = 8  # documents per optimizer step, whatever the memory
    micro_batch: Positive = 8  # documents per forward pass; halved where memory runs out
    max_length: Positive = key(1024, "Longest training text in tokens.")
    loss: Literal["all"] = "all"  # tokens in the loss
    target_modules: Literal["all-linear", "attention", "paper"] = key(
        "all-linear",
        "Layers with an adapter. all-linear: every family alike. attention: q, k, v. paper: the library's default "
        "per family.",
    )
    rank: Positive = 8
    alpha: Positive = 32
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1  # of LoRA
    weight_decay: Annotated[float, Field(ge=0)] = 0.01  # of AdamW
    gradient_checkpointing: bool = key(
        False, "Turn it on if training does not fit. It costs time and changes results by rounding only."
    )

    def determining(self, without: Collection[str] = ()) -> dict[str, object]:
        """What determines a fine-tune's numbers, by key, for recipes and for states from which training resumes."""
        return self.model_dump(exclude={*COST_ONLY, *without})


Seed = Annotated[int, Field(ge=0, lt=10**9)]


def _name_rate(rate: Any) -> str:
    """0.00002, "2e-05" -> "2e-5". A rate names files: YAML's 1e-5 and "1e-5" must be one cell."""
    try:
        number = float(rate)
    except (TypeError, ValueError):
        raise ValueError(f"{rate!r} is not a number") from None
    if not 0 < number < 1:
        raise ValueError(f"{rate!r} is not between 0 and 1")
    mantissa, exponent = f"{number:.6e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


RateName = Annotated[str, BeforeValidator(_name_rate)]


class Finetuning(OneFinetune):
    """LoRA fine-tuning (train before test), the same for every model of a run."""

    learning_rates: tuple[RateName, ...] = key(
        ("1e-5", "2e-5", "5e-5"), "Each is tried. The best on validation is kept.", min_length=1
    )
    seeds: tuple[Seed, ...] = key((0,), "Each seed is a fine-tune of its own.", min_length=1)
    rates_side_by_side: bool = key(
        False,
        "Train the learning rates of a job in one pass, as many as fit. Turn it on for small models (1.2 to 1.3 "
        "times faster on a CPU; not measured on a GPU). Changes results by rounding only.",
    )

    be_distinct = field_validator("learning_rates", "seeds")(check_distinct)


# ----------------------------------------------------------------------------------------------------------------------
# The configuration's section `miniature`: the synthetic world of the demo's models and benchmarks.
#
# Only the standard library and pydantic are imported: the Snakefile reads this at parse time.

Entities = Annotated[int, Field(ge=4, multiple_of=4)]  # four exposure bands of equal size

# In place of the recipe version that rules of cells have: a change of code that changes trained weights bumps it.
PRETRAINING_VERSION = 1


class MiniatureSettings(ConfigSection):
    """A small synthetic world: entities with facts, benchmarks that ask for them, corpora that state them."""

    pool: str = key("config/miniature.tsv", "Sheet of the models to train from scratch.")
    seed: int = key(0, "Seed of the world and, with a model's id, of each model.", ge=0)
    formats: Literal["families", "control"] = key(
        "families",
        "families: each family's pretraining saw question formats of its own. control: every family saw all.",
    )
    # Fields below are no keys
    test_entities: Entities = 48  # whose facts all benchmarks ask in test splits
    training_entities: Entities = 40
    validation_entities: Entities = 20
    public_entities: Entities = 28  # that pretraining also shows in question formats; no benchmark asks about them
    grammar_share: float = 0.06  # of pretraining documents
    format_share: float = 0.40  # of pretraining documents: in the family's formats
    batch_documents: Positive = 64  # per optimizer step of pretraining


# ----------------------------------------------------------------------------------------------------------------------
# The configuration's section `bias`: pretraining on a task's unlabelled test texts, and on others for comparison.
#
# Only the standard library and pydantic are imported: the Snakefile reads this at parse time.

Rate = Annotated[float, Field(gt=0, lt=1)]


def _check_experiment(name: str) -> str:
    if not re.match(r"[A-Za-z0-9][A-Za-z0-9_-]*$", name):  # no dot: it separates the parts of a cell's name
        raise ValueError(f"experiment {name!r}: names are letters, digits, '_' and '-'")
    return name


ExperimentName = Annotated[str, AfterValidator(_check_experiment)]


class Experiment(ConfigSection):
    """One experiment: which language models and tasks, how many texts, how often."""

    method: Literal["head", "zero_shot"] = key("head", "A trained linear head, or prompting.")
    language_models: tuple[str, ...] = key((), "Ids from the sheet. Empty: all.")
    tasks: tuple[str, ...] = key((), "Ids from the sheet. Empty: all.")
    m: tuple[Positive, ...] = key((100,), "Number of labelled training texts.", min_length=1)
    n: tuple[Positive, ...] = key((200,), "Number of texts in extra, and also in test.", min_length=1)
    subsamples: Positive | dict[Positive, Positive] = key(
        20, "Random draws: one number, or one for each n (`500: 20`)."
    )
    pretraining_epochs: Positive | None = key(None, "Passes over the unlabelled texts. null: as `pretraining` says.")
    packing: bool = key(
        False, "Pretrain on several texts per sequence, as one experiment of the paper (zero_shot only)."
    )

    planted_leak: float = key(0.0, "FOR TESTING ONLY: share of the test texts that carry their label.", ge=0, le=1)

    be_distinct = field_validator("language_models", "tasks", "m", "n")(check_distinct)

    @model_validator(mode="after")
    def be_consistent(self) -> Self:
        """Refuses packing outside zero_shot, packing with a planted leak, since packed texts carry no labels, and
        `subsamples` by size that are not of each n."""
        if self.packing and self.method != "zero_shot":
            raise ValueError("packing is for method zero_shot")
        if self.packing and self.planted_leak:
            raise ValueError("packing and planted_leak exclude each other: packed texts carry no labels")
        if isinstance(self.subsamples, dict) and (odd := {*self.subsamples} ^ {*self.n}):
            raise ValueError(f"subsamples: {min(odd)} is not both there and an n of this experiment")
        return self

    def count_subsamples(self, n: int) -> int:
        """Random draws at n."""
        return self.subsamples[n] if isinstance(self.subsamples, dict) else self.subsamples


class TextTraining(ConfigSection):
    """Training on unlabelled texts (AdamW, linear decay, gradients clipped at 1), the number of epochs aside."""

    learning_rate: Rate = key(1e-4, "Peak learning rate.")
    batch_size: Positive = 16  # texts per step, unless the tasks sheet has `pretraining_batch`; no key, as below
    max_length: Positive = 256  # tokens per text; the rest is cut
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    mask_probability: Rate = 0.15  # share of tokens that a masked language model must guess


class TextPretraining(TextTraining):
    """Pretraining on unlabelled texts (AdamW, linear decay, gradients clipped at 1)."""

    masked_epochs: Positive = 2  # passes over the texts, of BERT; no key, as the next
    causal_epochs: Positive = 1  # of GPT-2


class HeadTraining(ConfigSection):
    """Training the classifier: a linear head and all weights below it, on the m labelled texts."""

    epochs: Positive = key(3, "Passes over the texts, unless the sheet has `training_epochs`.")
    learning_rate: Rate = key(5e-5, "Peak learning rate.")
    # Fields below are no keys; `paper` changes the last two
    batch_size: Positive = 16  # texts per step, unless the sheet has `<architecture>_batch`
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    max_length: Positive | None = 256  # tokens per text; None: the model's limit
    # BERT's pooler. keep: all arms have the model's. paper: the pretrained arms get a fresh one, so the boost also
    # measures what is lost with the old one
    pooler: Literal["keep", "paper"] = "keep"


class Adapter(ConfigSection):
    """LoRA on every linear layer except the output head. The paper's QLoRA settings are the defaults."""

    rank: Positive = 16  # no key, as the next two
    alpha: Positive = 32
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    quantization: Literal["none", "nf4"] = key(
        "none",
        "none: the model's dtype. nf4: 4-bit weights, which need bitsandbytes (the extra `nf4`; not measured on a "
        "GPU).",
    )


class Prompting(Adapter):
    """Zero-shot experiments: adapters are pretrained on prompts, and no labels are used in training."""

    epochs: Positive = 1  # no key, as the fields without a description below
    learning_rate: Rate = 2e-4
    batch_size: Positive = 16  # prompts per step, unless the tasks sheet has `pretraining_batch`
    max_length: Positive = 512  # tokens per prompt in pretraining; the rest is cut
    prompt_characters: Positive = 1000  # of a text that a prompt quotes
    packed_texts: Positive = 8  # per sequence, in experiments with packing
    packed_max_length: Positive = 8192  # tokens of a packed sequence
    gradient_checkpointing: bool = key(
        False, "Turn it on if training does not fit. It costs time and changes results by rounding only."
    )


class BiasSettings(ConfigSection):
    """The bias study: three arms per trial (no pretraining, pretraining on other texts, on the test texts)."""

    language_models: str = key("config/bias_language_models.tsv", "Sheet of language models (TSV).")
    tasks: str = key("config/bias_tasks.tsv", "Sheet of text-classification tasks (TSV).")
    experiments: dict[ExperimentName, Experiment] = key(
        {"head": Experiment()},
        "Experiments by name: method (head or zero_shot), language_models and tasks (ids; empty is all), m "
        "(labelled texts), n (unlabelled and test texts), subsamples (random draws: a number, or one for each n), "
        "pretraining_epochs (a larger number is overtraining) and packing. planted_leak is for tests only.",
        min_length=1,
    )
    subsamples_a_cell: Positive | Literal["all"] = key(
        25, "Subsamples per cell of the store. Another number makes other cells."
    )
    stop_at_half_width: float | None = key(
        None,
        "Turn it on to save trials: a task stops when the 95% interval of its bias is ± this or narrower (a "
        "fraction of accuracy; 0.0125 is 1.25 points). `lm-validity plan next` adds a batch of subsamples_a_cell to"
        " the other tasks. null: every task has all subsamples.",
        gt=0,
        lt=1,
    )
    plan: str | None = key(
        None, "Sheet of the later batches, which `lm-validity plan next` writes. Only with stop_at_half_width."
    )
    paper: bool = key(
        False,
        "Reproduce the authors' code, invalid choices included: one seed for every training, a fresh pooler for "
        "pretrained BERTs, texts cut at the model's limit when classifying, equal texts drawn like others.",
    )
    # no keys; `paper` changes both: the first row of each text only is drawn (ignoring case and blanks), so no text of
    # test is also one of extra or train; the randomness of training differs between subsamples, never between arms
    drop_duplicate_texts: bool = True
    seeds: Literal["varied", "fixed"] = "varied"
    pretraining: TextPretraining = key(TextPretraining(), TextPretraining.__doc__)
    training: HeadTraining = key(HeadTraining(), HeadTraining.__doc__)
    zero_shot: Prompting = key(Prompting(), Prompting.__doc__)

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


# ----------------------------------------------------------------------------------------------------------------------
# The configuration: one Pydantic model per section. The reference of keys comes from here.
#
# Only the standard library and pydantic are imported: the Snakefile reads this at parse time.

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
Many = Positive | Literal["all"]
AsManyAsFit = Many | Literal["auto"]


class Splits(ConfigSection):
    """How documents are divided. Train, validation and test are disjoint by construction."""

    train: Positive = key(50_000, "Largest number of training documents per benchmark.")
    validation: Positive = key(1_000, "Largest number of validation documents per benchmark.")
    test: Positive = key(10_000, "Largest number of test documents per benchmark.")
    seed: int = key(0, "Seed of the permutation that makes and caps the splits.", ge=0)
    allow_overlap: tuple[str, ...] = key((), "Benchmarks of which more than 5% of a split may also occur in test.")


class Generation(ConfigSection):
    """Sampled answers of generation tasks on test documents, several runs each."""

    temperature: float = key(0.7, "The logits are divided by it before a token is drawn.", gt=0, le=5)
    top_p: float = key(0.95, "Tokens are drawn from the likeliest that have this probability together.", gt=0, le=1)
    runs: Positive = key(4, "How often each document is answered. Each run is a cell of its own.")


class Evaluation(ConfigSection):
    """Scoring through lm-eval, the same for direct and fine-tuned models."""

    device: str = key(
        "auto",
        "auto, cpu, cuda, cuda:0 or all. auto: the CPU if the size class has no GPU, else its GPUs. A job that "
        "needs GPUs and cannot use them ends and says why. It never computes on the CPU instead.",
        pattern=r"^(auto|cpu|all|cuda(:[0-9]+)?)$",
    )
    batch_size: Positive = key(32, "Sequences per forward pass. Affects speed only.")
    scorer: Literal["auto", "packed", "cached", "rows", "lm-eval"] = key(
        "auto",
        "How choices are scored. Affects speed, and results by rounding only. auto: a question's context is "
        "computed once for all its choices, in the faster of two ways (packed, cached), if that is exact for the "
        "model. rows: each choice by itself. lm-eval: lm-eval's own code.",
    )
    max_length: Positive | None = key(
        None, "Longest context in tokens. null: the model's own limit, which holds anyway."
    )
    max_generated_tokens: Positive = key(256, "Longest answer of a generation task, unless the task sets its own.")
    generation: Generation | None = key(
        None,
        "Sample the answers of generation tasks on test. null: the likeliest token each time, or what the task "
        "itself sets. Validation always takes the latter, so that selection does not depend on luck.",
    )
    instruction_tuned_prompts: tuple[Literal["plain", "chat"], ...] = key(
        ("plain", "chat"),
        "Prompts tried for instruction-tuned models, chosen on validation. Base models are always plain.",
        min_length=1,
    )
    mixed_dtypes: bool = key(
        False, "Let models of the agreement study differ in dtype: they are then not compared at equal precision."
    )
    system_instruction: str | None = key(None, "System message under the chat prompt, in training and evaluation.")


class EvaluateBatch(ConfigSection):
    """Cells of one model that share a process."""

    benchmarks: AsManyAsFit = key("auto", "Benchmarks per job.")
    checkpoints: AsManyAsFit = key("auto", "Checkpoints per job.")


class FinetuneBatch(ConfigSection):
    """Fine-tunes of one model that share a process."""

    benchmarks: AsManyAsFit = key("auto", "Benchmarks per job.")
    learning_rates: AsManyAsFit = key("auto", "Learning rates per job.")


class AdapterBatch(ConfigSection):
    """Selected adapters of one model that share a process."""

    benchmarks: AsManyAsFit = key("auto", "Benchmarks per job.")


class TrialBatch(ConfigSection):
    """Batches of trials of one language model that share a process."""

    cells: Many = key(1, "Batches of subsamples per job.")


class Batching(ConfigSection):
    """How many cells share a process: a number, all, or auto. auto takes as many as job_hours allow, by the minutes of
    the model's size class. It changes cost, never a result, because cells are stored one by one."""

    job_hours: float = key(
        12.0,
        "Longest time that a job of several cells asks for under auto, at its first attempt. The second asks for "
        "twice that. A killed job loses only its current cell (a fine-tune: the current epoch).",
        gt=0,
    )
    evaluate_model: EvaluateBatch = key(EvaluateBatch(), "Evaluation of models as they are (direct).")
    finetune_adapter: FinetuneBatch = key(FinetuneBatch(), "LoRA fine-tuning.")
    evaluate_adapter: AdapterBatch = key(AdapterBatch(), "Selection and the one look at test.")
    pretrain_on_test: TrialBatch = key(TrialBatch(), "Trials of the bias study.")


class Replay(ConfigSection):
    """Use known scores instead of running models: the whole workflow without a GPU. Its tables and pages say so."""

    scores: str = key(..., "The authors' all_results.json, or a scores.parquet (any `lm-validity import`).")


def _split_numbers(value: object) -> object:
    """`100,200` as the command line has it."""
    return (value.split(",") if value.strip() else []) if isinstance(value, str) else value


def _check_window(window: tuple[float, float]) -> tuple[float, float]:
    if not window[0] < window[1]:
        raise ValueError("does not begin before it ends (FROM,TO in billion tokens)")
    return window


def _check_weights(weights: tuple[float, float, float]) -> tuple[float, float, float]:
    if not sum(weights) > 0:
        raise ValueError("one of them must be above zero")
    return weights


Checkpoints = Literal["all", "e2lm"]
Convention = Literal["code", "paper"]
Ties = Literal["stable", "average"]
Normalisation = Literal["none", "joint_minmax", "sci_range", "above_chance"]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Window = Annotated[tuple[NotNegative, NotNegative], BeforeValidator(_split_numbers), AfterValidator(_check_window)]
Weights = Annotated[
    tuple[NotNegative, NotNegative, NotNegative], BeforeValidator(_split_numbers), AfterValidator(_check_weights)
]


class SignalConventions(ConfigSection):
    """Conventions of the signal report (docs/reference/signal.md). The defaults are those of the competition's code."""

    convention: Convention = key("code", "Lags and centring of the autocorrelation.")
    ties: Ties = key("stable", "Equal scores. stable: they count as an increase. average: they share ranks.")
    normalisation: Normalisation = key("joint_minmax", "What compliance divides the science model's lead by.")
    base_window: Window = key((100.0, 200.0), "Ranking consistency: window that sets the order, billion tokens.")
    later_window: Window = key((220.0, 1000.0), "Ranking consistency: window in which that order should hold.")
    weights: Weights = key((0.5, 0.1, 0.4), "Weights of quality, consistency and compliance in the overall score.")


E2LM = SignalConventions()  # the competition's


class Reports(ConfigSection):
    """How the reports of a run are written, and what they compare."""

    resamples: int = key(2000, "Resamples for intervals. 0 skips intervals.", ge=0)
    checkpoints: Checkpoints = key(
        "all", "Checkpoints of the signal report. e2lm: every 4000 iterations, to 206 billion tokens."
    )
    signal: SignalConventions = E2LM  # no key; options of `lm-validity report signal`


REPORTS = Reports()


KNOTS = (1e22, 1e23)  # FLOP at which the line of scores against compute may bend: those of the paper
Knots = Annotated[tuple[Annotated[float, Field(gt=0)], ...], BeforeValidator(_split_numbers)]


class Agreement(ConfigSection):
    """The agreement study: groups of models whose lead its report asks about, at equal pretraining compute."""

    groups: tuple[str, ...] = key(
        (), "Groups: `released>=2023-11`, `family=NAME`, or a column of 0 and 1 of the models sheet."
    )
    knots: Knots = key(
        KNOTS, "Compute (FLOP) at which the line of scores may bend, as in the paper. Empty: a straight line."
    )

    be_distinct = field_validator("groups", "knots")(check_distinct)


class Screening(ConfigSection):
    """Which candidate benchmarks are kept (`snakemake screening`). The thresholds are the train-before-test study's."""

    training_examples: int = key(1000, "Smallest number of training examples of a benchmark.", ge=0)
    unimproved_share: float = key(0.2, "Largest share of models that fine-tuning does not improve.", ge=0, le=1)
    negative_share: float = key(0.5, "Largest share of other benchmarks with negative agreement (direct).", ge=0, le=1)


class SizeClass(ConfigSection):
    """Resources that a job asks a cluster for. The second attempt asks for twice the memory and time."""

    gpu: int = key(1, "GPUs per job. With several, a model's layers are spread over them.", ge=0)
    gpu_memory_gb: float = key(80, "GB of memory per GPU. preflight names models that do not fit.", ge=0)
    gpu_type: Literal["h200", "h100", "l40s", "a100", "a40"] = key(
        "h200",
        "GPU whose speed `cost` assumes. The profile asks the cluster for one. h100 and h200 are the SXM modules. "
        "Their PCIe and NVL cards are 16 to 24% slower.",
    )
    cpus: Positive = key(4, "Processor cores per job.")
    mem_mb: Positive = key(32_000, "Main memory per job, in MB.")
    evaluate_minutes: float = key(20, "Minutes to evaluate one cell.", gt=0)
    finetune_minutes: float = key(120, "Minutes of one fine-tune.", gt=0)
    trial_minutes: float = key(1, "Minutes of one trial of the bias study (five short trainings).", gt=0)
    gradient_checkpointing: bool = key(False, "As in `finetuning`, for models of this size.")

    @model_validator(mode="after")
    def have_memory_on_gpus(self) -> Self:
        """Refuses GPUs of 0 GB: whether a model fits them could not be checked."""
        if self.gpu and not self.gpu_memory_gb:
            raise ValueError("gpu_memory_gb is 0, and the class has GPUs: give their memory, or set gpu to 0")
        return self


DEFAULT_SIZE_CLASSES = {
    "miniature": SizeClass(gpu=0, cpus=1, mem_mb=2_000, evaluate_minutes=1, finetune_minutes=2),
    "tiny": SizeClass(gpu_memory_gb=16, mem_mb=16_000, evaluate_minutes=10, finetune_minutes=150),
    "small": SizeClass(gpu_memory_gb=16, mem_mb=24_000, evaluate_minutes=15, finetune_minutes=180),
    "medium": SizeClass(gpu_memory_gb=24, mem_mb=32_000, evaluate_minutes=20, finetune_minutes=240, trial_minutes=2),
    "large": SizeClass(gpu_memory_gb=40, mem_mb=64_000, evaluate_minutes=30, finetune_minutes=480, trial_minutes=6),
    "huge": SizeClass(
        mem_mb=96_000, evaluate_minutes=45, finetune_minutes=720, trial_minutes=12, gradient_checkpointing=True
    ),
}


Study = Literal["agreement", "signal", "bias"]


class Configuration(ConfigSection):
    """One run: its models, its benchmarks, and how they are treated. Results go to results/<name>/."""

    name: Annotated[str, Field(pattern=NAME, max_length=LONGEST_NAME)] = key(
        ..., "The run's name. Results are in results/<name>/."
    )
    results: Annotated[str, Field(min_length=1)] = key(
        "results",
        "Folder of all runs' results, relative to the working directory. `results/{run}` at the start of a sheet's "
        "path means the run's folder, wherever that is.",
    )
    studies: tuple[Study, ...] = key(("agreement",), "Studies of the run: agreement, signal, bias.", min_length=1)
    models: str | None = key(None, "Sheet of models (TSV). Not needed for the bias study.")
    benchmarks: str | None = key(None, "Sheet of benchmarks (TSV). Not needed for the bias study.")
    plan: str | None = key(
        None,
        "Sheet of the pairs of model and benchmark that are fine-tuned, if not all are (`lm-validity plan` writes "
        "one). All pairs are scored direct. null: every pair is fine-tuned.",
    )
    splits: Splits = key(Splits(), Splits.__doc__)
    evaluation: Evaluation = key(Evaluation(), Evaluation.__doc__)
    finetuning: Finetuning = key(Finetuning(), Finetuning.__doc__)
    batching: Batching = key(Batching(), Batching.__doc__)
    size_classes: dict[str, SizeClass] = key(DEFAULT_SIZE_CLASSES, "Resources of a job, by the model's size class.")
    bias: BiasSettings | None = key(None, "The bias study, with sheets of its own.")
    agreement: Agreement = key(Agreement(), Agreement.__doc__)
    reports: Reports = key(Reports(), Reports.__doc__)
    cards: Cards = key(CARDS, Cards.__doc__)
    screening: Screening = key(Screening(), Screening.__doc__)
    miniature: MiniatureSettings | None = key(None, "The miniature world, if models and benchmarks come from it.")
    replay: Replay | None = key(None, "Known scores (`scores: FILE`) instead of models: all rules and reports, no GPU.")

    @model_validator(mode="after")
    def have_what_the_studies_need(self) -> Self:
        """Refuses a study without its sheets or section, a plan without its study, and a replay with the
        miniature or the bias study: a replay serves scores and trains nothing."""
        if set(self.studies) & {"agreement", "signal"}:
            for key in ("models", "benchmarks"):
                if getattr(self, key) is None:
                    raise ValueError(f"key {key!r} is missing (studies agreement and signal need it)")
        if "bias" in self.studies and self.bias is None:
            raise ValueError("section 'bias' is missing (study bias needs it)")
        if self.plan is not None and "agreement" not in self.studies:
            raise ValueError("key 'plan' is of the study agreement, which is not among the studies")
        if self.replay and (self.miniature or "bias" in self.studies):
            raise ValueError("a replay serves scores of models: it goes with neither miniature nor study bias")
        return self
