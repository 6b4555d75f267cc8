"""The configuration: one Pydantic model per section. config.yaml's comments and schema.json come from here.

Only the standard library and pydantic are imported: the Snakefile reads this at parse time.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from lm_validity.config.bias import BiasSettings
from lm_validity.config.cards import Cards
from lm_validity.config.finetuning import Finetuning
from lm_validity.config.miniature import MiniatureSettings
from lm_validity.config.section import Positive, Section, bad_value
from lm_validity.config.training_tokens import E2LM_BATCH_RAMP, BatchRamp

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
DocumentBos = Literal["auto", "once", "every", "lm-eval"]
Many = Positive | Literal["all"]
AsManyAsFit = Many | Literal["auto"]


class Splits(Section):
    """How documents are divided. Train, validation and test are disjoint by construction."""

    train: Positive = Field(50_000, description="Largest number of training documents per benchmark.")
    validation: Positive = Field(1_000, description="Largest number of validation documents per benchmark.")
    test: Positive = Field(10_000, description="Largest number of test documents per benchmark.")
    seed: int = Field(0, ge=0, description="Seed of the permutation that makes and caps the splits.")
    allow_overlap: tuple[str, ...] = Field(
        (),
        description="Benchmarks that may lose more than 5% of a split to documents that also occur in test.",
    )


class Evaluation(Section):
    """Scoring through lm-eval, the same for direct and fine-tuned models."""

    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|all|cuda(:[0-9]+)?)$",
        description="auto, cpu, cuda, cuda:0 or all. auto: the CPU if the size class has no GPU, else its GPUs. A job "
        "that needs GPUs and cannot use them ends and says why. It never computes on the CPU instead.",
    )
    batch_size: Positive = Field(32, description="Sequences per forward pass. Affects speed only.")
    scorer: Literal["auto", "packed", "cached", "rows", "lm-eval"] = Field(
        "auto",
        description="How choices are scored. Affects speed, and results by rounding only. auto: a question's context "
        "is computed once for all its choices, in the faster of two ways (packed, cached), if that is exact for the "
        "model. rows: each choice by itself. lm-eval: lm-eval's own code.",
    )
    generation_backend: Literal["transformers", "vllm"] = Field(
        "transformers",
        description="Program that writes the answers of generation tasks on test: transformers or vLLM. Turn vLLM on "
        "if these answers take most of the time. It needs a GPU and the extra `vllm`, was not measured, and can change "
        "answers. Validation always uses transformers. Part of a cell's recipe.",
    )
    generation_cache: Literal["dynamic", "static"] = Field(
        "dynamic",
        description="Cache of keys and values while answers are generated. dynamic grows with the answers. static has "
        "room for the longest answer from the start, and on a GPU transformers compiles the model for it: try it there "
        "(not measured). Affects speed, and results by rounding only.",
    )
    max_length: Positive | None = Field(
        None, description="Longest context in tokens, at most the model's own limit. null: that limit."
    )
    max_generated_tokens: Positive = Field(
        256, description="Longest answer of a generation task, unless the task sets its own."
    )
    document_bos: DocumentBos = Field(
        "auto",
        description="Perplexity corpora: where a beginning-of-text token goes. once: one per document. every: one per "
        "window. lm-eval: as in lm-eval, which puts its own before the tokenizer's and then scores the latter. auto: "
        "every for Gemma, which needs it, once for all others. The models sheet's column of this name overrides it.",
    )
    instruction_tuned_prompts: tuple[Literal["plain", "chat"], ...] = Field(
        ("plain", "chat"),
        min_length=1,
        description="Prompts tried for instruction-tuned models. The choice is made on validation. "
        "Base models are always plain.",
    )
    mixed_dtypes: bool = Field(
        False,
        description="Let models of the agreement study differ in dtype, if one cannot run in the others' dtype. They "
        "are then not compared at equal precision.",
    )
    system_instruction: str | None = Field(
        None, description="System message under the chat prompt, the same in training and evaluation."
    )
    chat_answer_start: Literal["template", "lm-eval"] = Field(
        "template",
        description="Chat prompt: the white space before an answer. template: what the template itself puts there. "
        "lm-eval: none. There is no difference if a template's prompt ends in a line break (Llama 3, Qwen, Gemma, Yi).",
    )

    @model_validator(mode="after")
    def have_a_gpu_for_vllm(self) -> Self:
        """Refuses vLLM on the CPU, since it needs a GPU, and on any GPU but the first, the only one it writes on."""
        if self.generation_backend == "vllm" and self.device == "cpu":
            raise ValueError("generation_backend vllm needs a GPU, and device is cpu: set one of them otherwise")
        if self.generation_backend == "vllm" and self.device.startswith("cuda:") and self.device != "cuda:0":
            raise ValueError(
                f"generation_backend vllm writes on the first GPU, and device is {self.device}: "
                "set CUDA_VISIBLE_DEVICES instead"
            )
        return self


class EvaluateBatch(Section):
    """Cells of one model that share a process."""

    benchmarks: AsManyAsFit = Field("auto", description="Benchmarks per job.")
    checkpoints: AsManyAsFit = Field("auto", description="Checkpoints per job.")


class FinetuneBatch(Section):
    """Fine-tunes of one model that share a process."""

    benchmarks: AsManyAsFit = Field("auto", description="Benchmarks per job.")
    learning_rates: AsManyAsFit = Field("auto", description="Learning rates per job.")


class AdapterBatch(Section):
    """Selected adapters of one model that share a process."""

    benchmarks: AsManyAsFit = Field("auto", description="Benchmarks per job.")


class TrialBatch(Section):
    """Batches of trials of one language model that share a process."""

    cells: Many = Field(1, description="Batches of subsamples per job.")


class Batching(Section):
    """How many cells share a process: a number, all, or auto. auto takes as many as job_hours allow, by the minutes of
    the model's size class. It changes cost, never a result, because cells are stored one by one."""

    job_hours: float = Field(
        12.0,
        gt=0,
        description="Longest time that a job of several cells asks for under auto, at its first attempt. The second "
        "asks for twice that. A killed job loses only its current cell (a fine-tune: the current epoch).",
    )
    evaluate_model: EvaluateBatch = Field(EvaluateBatch(), description="Evaluation of models as they are (direct).")
    finetune_adapter: FinetuneBatch = Field(FinetuneBatch(), description="LoRA fine-tuning.")
    evaluate_adapter: AdapterBatch = Field(AdapterBatch(), description="Selection and the one look at test.")
    pretrain_on_test: TrialBatch = Field(TrialBatch(), description="Trials of the bias study.")


class SizeBatching(Section):
    """Differences from the run's `batching` for models of one size. If a rule or limit is absent, the run's is used."""

    job_hours: float | None = Field(None, gt=0, description="Longest time that a job asks for under auto.")
    evaluate_model: EvaluateBatch | None = Field(None, description="Evaluation of models as they are (direct).")
    finetune_adapter: FinetuneBatch | None = Field(None, description="LoRA fine-tuning.")
    evaluate_adapter: AdapterBatch | None = Field(None, description="Selection and the one look at test.")


class Replay(Section):
    """Use known scores instead of running models: the whole workflow without a GPU. Its tables and pages say so."""

    scores: str = Field(
        description="The train-before-test authors' all_results.json, or a scores.parquet (any `lm-validity import`)."
    )


def _split_numbers(value: object) -> object:
    """`100,200` as the command line has it."""
    return value.split(",") if isinstance(value, str) else value


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


class SignalConventions(Section):
    """Conventions of the signal report (docs/reference/signal.md). The defaults are those of the competition's code."""

    convention: Convention = Field("code", description="Lags and centring of the autocorrelation.")
    ties: Ties = Field(
        "stable", description="Equal scores. stable: they count as an increase. average: they share ranks."
    )
    normalisation: Normalisation = Field(
        "joint_minmax", description="What compliance divides the science model's lead by."
    )
    base_window: Window = Field(
        (100.0, 200.0), description="Ranking consistency: window that sets the order, billion tokens."
    )
    later_window: Window = Field(
        (220.0, 1000.0), description="Ranking consistency: window in which that order should hold."
    )
    weights: Weights = Field(
        (0.5, 0.1, 0.4),
        description="Weights of signal quality, ranking consistency and compliance in the overall score.",
    )

    def as_words(self) -> dict[str, str]:
        """Each value as the command line has it."""
        values = self.model_dump()
        return {key: ",".join(f"{one:g}" for one in v) if isinstance(v, tuple) else v for key, v in values.items()}

    def as_arguments(self) -> str:
        """Options of `lm-validity report signal`."""
        return " ".join(f"--{key.replace('_', '-')} {word}" for key, word in self.as_words().items())


E2LM = SignalConventions()  # the competition's


class Reports(Section):
    """The pages."""

    resamples: int = Field(2000, ge=0, description="Resamples for intervals. 0 skips intervals.")
    checkpoints: Checkpoints = Field(
        "all",
        description="Checkpoints of the signal report. e2lm: iterations divisible by 4000, at most 206 billion tokens.",
    )
    signal: SignalConventions = Field(E2LM, description=SignalConventions.__doc__)


class Screening(Section):
    """Which candidate benchmarks are kept (`snakemake screening`). The thresholds are the train-before-test study's."""

    training_examples: int = Field(1000, ge=0, description="Smallest number of training examples of a benchmark.")
    unimproved_share: float = Field(
        0.2, ge=0, le=1, description="Largest share of models that fine-tuning does not improve."
    )
    negative_share: float = Field(
        0.5, ge=0, le=1, description="Largest share of the other benchmarks with negative agreement (direct)."
    )


class SizeClass(Section):
    """Resources that a job asks a cluster for. The second attempt asks for twice the memory and time."""

    gpu: int = Field(1, ge=0, description="GPUs per job. With several, a model's layers are spread over them.")
    gpu_memory_gb: float = Field(80, ge=0, description="GB of memory per GPU. preflight names models that do not fit.")
    gpu_type: Literal["h200", "h100", "l40s", "a100", "a40"] = Field(
        "h200",
        description="GPU whose speed `cost` assumes. The profile asks the cluster for one. h100 and h200 are the SXM "
        "modules. Their PCIe and NVL cards are 16 to 24% slower.",
    )
    cpus: Positive = Field(4, description="Processor cores per job.")
    mem_mb: Positive = Field(32_000, description="Main memory per job, in MB.")
    evaluate_minutes: float = Field(20, gt=0, description="Minutes to evaluate one cell.")
    finetune_minutes: float = Field(120, gt=0, description="Minutes of one fine-tune.")
    trial_minutes: float = Field(1, gt=0, description="Minutes of one trial of the bias study (five short trainings).")
    gradient_checkpointing: bool = Field(False, description="As in `finetuning`, for models of this size.")
    batching: SizeBatching | None = Field(None, description="As `batching`, for models of this size.")

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


class BatchRampSettings(Section):
    """How iterations become tokens, if the batch of pretraining grew in phases of equal length."""

    sequence_length: Positive = Field(description="Tokens per sequence.")
    ramp_batches: tuple[Positive, ...] = Field(description="Sequences per iteration in each phase.")
    ramp_sequences: float = Field(gt=0, description="Sequences per phase.")
    final_batch: Positive = Field(description="Sequences per iteration after the last phase.")

    def as_ramp(self) -> BatchRamp:
        """The settings as a `BatchRamp`, which turns iterations into tokens."""
        return BatchRamp(self.sequence_length, self.ramp_batches, self.ramp_sequences, self.final_batch)


DEFAULT_BATCH_RAMPS = {
    "e2lm": BatchRampSettings(
        sequence_length=E2LM_BATCH_RAMP.sequence_length,
        ramp_batches=E2LM_BATCH_RAMP.ramp_batches,
        ramp_sequences=E2LM_BATCH_RAMP.ramp_sequences,
        final_batch=E2LM_BATCH_RAMP.final_batch,
    )
}

Study = Literal["agreement", "signal", "bias"]


class Configuration(Section):
    """One run: its models, its benchmarks, and how they are treated. Results go to results/<name>/."""

    name: Annotated[str, Field(pattern=NAME)] = Field(description="The run's name. Results are in results/<name>/.")
    results: Annotated[str, Field(min_length=1)] = Field(
        "results",
        description="Folder of all runs' results, relative to the working directory. `results/{run}` at the start of a "
        "sheet's path means the run's folder, wherever that is.",
    )
    studies: tuple[Study, ...] = Field(
        ("agreement",), min_length=1, description="Studies of the run: agreement, signal, bias."
    )
    models: str | None = Field(
        None, description="Sheet of models (TSV), relative to the working directory. Not needed for the bias study."
    )
    benchmarks: str | None = Field(None, description="Sheet of benchmarks (TSV). Not needed for the bias study.")
    plan: str | None = Field(
        None,
        description="Sheet of the pairs of model and benchmark that are fine-tuned, if not all are (`lm-validity plan` "
        "writes one). All pairs are scored direct. null: every pair is fine-tuned.",
    )
    splits: Splits = Field(Splits(), description=Splits.__doc__)
    evaluation: Evaluation = Field(Evaluation(), description=Evaluation.__doc__)
    finetuning: Finetuning = Field(Finetuning(), description=Finetuning.__doc__)
    batching: Batching = Field(Batching(), description=Batching.__doc__)
    size_classes: dict[str, SizeClass] = Field(
        DEFAULT_SIZE_CLASSES, description="Resources of a job, by the model's size class."
    )
    batch_ramps: dict[str, BatchRampSettings] = Field(
        DEFAULT_BATCH_RAMPS,
        description="How iterations become tokens, for models whose row names one in the column batch_ramp and whose "
        "checkpoints have no tokens_b.",
    )
    bias: BiasSettings | None = Field(None, description="The bias study, with sheets of its own.")
    reports: Reports = Field(Reports(), description=Reports.__doc__)
    cards: Cards = Field(Cards(), description=Cards.__doc__)
    screening: Screening = Field(Screening(), description=Screening.__doc__)
    miniature: MiniatureSettings | None = Field(
        None, description="The miniature world, if models and benchmarks of the sheets come from it."
    )
    container: str | None = Field(
        None,
        description="Image of the jobs under `snakemake --sdm apptainer`, such as envs/lm-validity.sif, for clusters "
        "that run containers only. The image has not been built yet.",
    )
    replay: Replay | None = Field(
        None,
        description="Use known scores (`scores: FILE`) instead of running models: all rules and reports, no GPU.",
    )

    @model_validator(mode="before")
    @classmethod
    def have_no_stages(cls, values: Any) -> Any:
        """Until 0.2 a section `signal` had the study decide some benchmarks on their first checkpoints."""
        if not isinstance(values, dict) or "signal" not in values:
            return values
        if values["signal"] is not None:
            raise bad_value(
                "section 'signal': the signal study has no stages any more",
                "take the section out. Every benchmark is scored at every checkpoint; finished cells stay.",
            )
        return {key: value for key, value in values.items() if key != "signal"}

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
