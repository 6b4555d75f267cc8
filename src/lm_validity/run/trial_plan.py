"""What a job of the bias study is told: a language model, a task's texts, sizes, subsamples, hyperparameters.

Imports nothing heavy. The defaults are chosen for validity; `paper_options` gives those of the authors' code
(arXiv 2410.00179). Fields that say "memory only" or "cost only" change no number beyond rounding and stay out of
`recipe()`.
"""

from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from typing import Literal

from lm_validity.errors import InputError

Architecture = Literal["masked", "causal"]
Method = Literal["head", "zero_shot"]
ARMS = ("base", "extra", "test")


@dataclass(frozen=True)
class TaskSource:
    """A row of the tasks sheet: where the texts come from and what must be true of them. Read by
    `bias_data.prefetch_task` only.

    name: the task's id. path: a hub data set id, or a local file (.jsonl, .json, .csv, .tsv, .parquet).
    configuration, split, revision: of the hub data set.
    files: patterns of parquet files in the hub repository, instead of what the library finds by itself;
        with revision refs/convert/parquet the conversion of a data set that was a script, e.g.
        `bypublisher/train/*.parquet`.
    text_columns: joined by a line break. label_column: class numbers 0 to C-1, or the values listed in `labels`.
    labels: values of the label column in the order of the classes, compared as text (booleans as 0 and 1); empty:
        numbers 0 to C-1.
    class_names: in the order of the labels; zero-shot answers. description: what the prompt says of the task, e.g.
        "The text is a news article. Answer with its topic."
    drop_empty: leave out rows without text instead of refusing them. shorter_than: keep texts with fewer
        characters.
    rows, majority_share: what the sheet says of the rows that are left (share of the largest class);
        null: not checked. share_tolerance: largest difference of the share.
    """

    name: str
    path: str
    text_columns: tuple[str, ...]
    label_column: str
    class_names: tuple[str, ...]
    description: str = ""
    configuration: str | None = None
    split: str = "train"
    revision: str | None = None
    files: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    drop_empty: bool = False
    shorter_than: int | None = None
    rows: int | None = None
    majority_share: float | None = None
    share_tolerance: float = 0.001


@dataclass(frozen=True)
class TaskData:
    """A task as `bias_data.prefetch_task` wrote it: one parquet file of `row`, `text` and `label`.

    sha256: of the texts and labels (`bias_data.content_digest`), not of the file's bytes.
    """

    name: str
    path: str
    sha256: str
    class_names: tuple[str, ...]
    description: str = ""


@dataclass(frozen=True)
class Adapter:
    """LoRA on every linear layer but the output head; the paper's QLoRA settings are the defaults.

    quantization: nf4 is 4-bit with bfloat16 arithmetic where there is a GPU and bitsandbytes; elsewhere the same code
    runs in `dtype`, and the trials' records say so.
    """

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.05
    quantization: Literal["none", "nf4"] = "none"


@dataclass(frozen=True)
class Pretraining:
    """Pretraining on unlabelled texts: AdamW, linear decay without warm-up, gradients clipped at norm 1.

    max_length: tokens of a text, the rest is cut. mask_probability: of masked LMs (80/10/10).
    packing: texts joined into one sequence (zero-shot only); 0: none.
    adapter: train this instead of all weights; zero-shot needs one. gradient_checkpointing, micro_batch (null: the
    whole batch): memory only.
    """

    epochs: int = 2
    learning_rate: float = 1e-4
    batch_size: int = 16
    max_length: int = 256
    weight_decay: float = 0.0
    mask_probability: float = 0.15
    packing: int = 0
    adapter: Adapter | None = None
    gradient_checkpointing: bool = False
    micro_batch: int | None = None


@dataclass(frozen=True)
class Classification:
    """How a language model becomes a classifier.

    method: `head`, a linear layer, all weights trained on the m labelled texts; `zero_shot`, the class whose name has
        the highest mean token log-probability after the prompt, nothing trained.
    max_length: tokens of a text; null is the model's limit, as in the authors' code (the paper's text says 256).
    pooler: of BERT-like models. `keep`: every arm has the pooler that the model came with; `none`: the head reads the
        first token's vector; `paper`: base has the model's, the pretrained arms a fresh one (as in the authors' code,
        where extra - base thereby mixes pretraining with the loss of the pooler).
    prompt_characters: zero-shot prompts quote this much of a text. predict_batch: cost only.
    """

    method: Method = "head"
    epochs: int = 3
    learning_rate: float = 5e-5
    batch_size: int = 16
    weight_decay: float = 0.01
    max_length: int | None = 256
    pooler: Literal["keep", "none", "paper"] = "keep"
    prompt_characters: int = 1000
    predict_batch: int = 64


@dataclass(frozen=True)
class TrialPlan:
    """A batch of trials of one (experiment, language model, task, m, n).

    model_path: a local folder in hub format, or a hub id in the local cache (with revision).
    model_digest: of its files, or the commit, for the recipe.
    m: labelled training texts, floor(m / C) of each class; n: texts of extra and of test. subsamples: from 1.
    seeds: `varied`, training randomness differs from subsample to subsample (the same in the three arms: they differ
        in the pretraining texts and in nothing else); `fixed`, seed 42 in every training, as in the authors' code.
    shuffle: order of the training texts drawn anew each epoch; off only to compare programs.
    drop_duplicate_texts: draw from the first row of each text only (`bias_data.first_rows`), so that no test text is
        also one of extra or train; off in the authors' code.
    planted_leak: FOR TESTING ONLY. Share of the test arm's pretraining texts that carry their label's name.
    share_base: (n, subsamples) of the study's other cells with this (experiment, language model, task, m). The base
        arm does not depend on n, so whichever job trains it first also predicts the others' test texts
        (`run_trials(shared=...)`). Cost only.
    """

    experiment: str
    language_model: str
    model_path: str
    architecture: Architecture
    data: TaskData
    m: int
    n: int
    subsamples: tuple[int, ...]
    model_revision: str | None = None
    model_digest: str = ""
    pretraining: Pretraining = field(default_factory=Pretraining)
    classification: Classification = field(default_factory=Classification)
    seeds: Literal["varied", "fixed"] = "varied"
    shuffle: bool = True
    drop_duplicate_texts: bool = True
    planted_leak: float = 0.0
    dtype: str = "float32"
    device: str = "cpu"
    share_base: tuple[tuple[int, int], ...] = ()

    def __post_init__(self):
        method, settings = self.classification.method, self.pretraining
        problem = None
        if method == "zero_shot" and self.architecture != "causal":
            problem = "zero_shot needs a causal language model"
        elif method == "head" and (settings.packing or settings.adapter):
            problem = "packing and adapters are for zero_shot"
        elif settings.packing and self.planted_leak:
            problem = "a leak cannot be planted in packed texts"
        if problem:
            raise InputError(f"experiment {self.experiment!r}, {self.language_model!r}: {problem}.", "change either.")

    def quantizes(self) -> bool:
        """Whether weights really are 4-bit: wanted, on a GPU, and with bitsandbytes."""
        adapter = self.pretraining.adapter
        wanted = adapter is not None and adapter.quantization == "nf4"
        return wanted and self.device.startswith("cuda") and find_spec("bitsandbytes") is not None

    def base_recipe(self) -> dict:
        """What the base arm's numbers depend on, n and subsample aside: nothing of the pretraining, but whether the
        weights really are 4-bit here, which another job of the study may see otherwise."""
        values = self.recipe()
        for other in ("experiment", "n", "pretraining", "planted_leak"):
            del values[other]
        return values | {"quantized": self.quantizes()}

    def recipe(self) -> dict:
        """Everything that determines the trials' numbers, as plain JSON values; without the list of subsamples, since
        a trial does not depend on its batch."""
        values = asdict(self)
        for cost_only in ("model_path", "model_revision", "device", "share_base", "subsamples"):
            del values[cost_only]
        del values["data"]["path"], values["classification"]["predict_batch"]
        for memory_only in ("gradient_checkpointing", "micro_batch"):
            del values["pretraining"][memory_only]
        values["data"]["class_names"] = list(self.data.class_names)
        return values


def paper_options(plan: TrialPlan) -> TrialPlan:
    """The plan with the options of the authors' code: truncation at the model's limit when classifying, a fresh
    pooler after pretraining, the same seed in every training, equal texts drawn like any others."""
    classification = replace(plan.classification, max_length=None, pooler="paper")
    return replace(plan, classification=classification, seeds="fixed", drop_duplicate_texts=False)
