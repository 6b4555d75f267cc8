"""What a job of the bias study is told: a language model, a task's texts, sizes, subsamples, hyperparameters.

Imports nothing heavy. Defaults are those of the configuration's section `bias`, chosen for validity; its key `paper`
gives those of the authors' code (arXiv 2410.00179). Fields that say "memory only" or "cost only" change no number
beyond rounding and stay out of `recipe()`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from lm_validity.config.bias import Adapter, HeadTraining, Prompting, TextTraining
from lm_validity.config.section import Positive
from lm_validity.run.recipe import scale_settings

Architecture = Literal["masked", "causal"]
Method = Literal["head", "zero_shot"]
ARMS = ("base", "extra", "test")


@dataclass(frozen=True)
class TaskData:
    """A task as `data.prefetch_task` wrote it: one parquet file of `row`, `text` and `label`.

    sha256: of the texts and labels (`data.content_digest`), not of the file's bytes.
    """

    name: str
    path: str
    sha256: str
    class_names: tuple[str, ...]
    description: str = ""

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "TaskData":
        """What a plan says of a prefetched task, from its record."""
        names = tuple(record["class_names"])
        return cls(record["task"], record["path"], record["sha256"], names, record["description"])


class Pretraining(TextTraining):
    """A trial's pretraining on unlabelled texts.

    packing: texts joined into one sequence (zero-shot only); 0: none. adapter: train this instead of all weights;
    zero-shot needs one. gradient_checkpointing, micro_batch: memory only.
    """

    epochs: Positive
    packing: Annotated[int, Field(ge=0)] = 0
    adapter: Adapter | None = None
    gradient_checkpointing: bool = False


class Classification(HeadTraining):
    """How a language model becomes a classifier.

    method: `head`, a linear layer, all weights trained on the m labelled texts; `zero_shot`, the class whose name has
        the highest mean token log-probability after the prompt, nothing trained.
    max_length: null is the model's limit, as in the authors' code (the paper's text says 256).
    pooler: under `paper` base has the model's, the pretrained arms a fresh one (as in the authors' code, where
        extra - base thereby mixes pretraining with the loss of the pooler).
    prompt_characters: zero-shot prompts quote this much of a text. predict_batch: cost only.
    """

    method: Method = "head"
    prompt_characters: Positive = Prompting.model_fields["prompt_characters"].default
    predict_batch: Positive = 64


@dataclass(frozen=True)
class TrialPlan:
    """A batch of trials of one (experiment, language model, task, m, n).

    model_path: a local folder in hub format, or a hub id in the local cache (with revision).
    model_digest: of its files, or the commit, for the recipe.
    m: labelled training texts, floor(m / C) of each class; n: texts of extra and of test. subsamples: from 1.
    seeds: `varied`, training randomness differs from subsample to subsample (the same in the three arms: they differ
        in the pretraining texts and in nothing else); `fixed`, seed 42 in every training, as in the authors' code.
    shuffle: order of the training texts drawn anew each epoch; off only to compare programs.
    drop_duplicate_texts: draw from the first row of each text only (`data.first_rows`), so that no test text is
        also one of extra or train; off in the authors' code.
    planted_leak: FOR TESTING ONLY. Share of the test arm's pretraining texts that carry their label's name.
    share_base: (n, subsamples) of the study's other cells with this (experiment, language model, task, m). The base
        arm does not depend on n, so whichever job trains it first also predicts the others' test texts
        (`ResidentWorker.run`). Cost only.
    """

    experiment: str
    language_model: str
    model_path: str
    architecture: Architecture
    data: TaskData
    m: int
    n: int
    subsamples: tuple[int, ...]
    pretraining: Pretraining
    classification: Classification
    model_revision: str | None = None
    model_digest: str = ""
    seeds: Literal["varied", "fixed"] = "varied"
    shuffle: bool = True
    drop_duplicate_texts: bool = True
    planted_leak: float = 0.0
    dtype: str = "float32"
    device: str = "cpu"
    share_base: tuple[tuple[int, int], ...] = ()

    def quantizes(self) -> bool:
        """Whether weights are 4-bit, on a GPU or a CPU."""
        adapter = self.pretraining.adapter
        return adapter is not None and adapter.quantization == "nf4"

    def base_recipe(self) -> dict[str, Any]:
        """What the base arm's numbers depend on, n and subsample aside: nothing of the pretraining, but whether the
        weights are 4-bit."""
        values = self.recipe()
        for other in ("experiment", "n", "pretraining", "planted_leak", *scale_settings(self.dtype)):
            values.pop(other, None)
        return values | {"quantized": self.quantizes()}

    def recipe(self) -> dict[str, Any]:
        """Everything that determines the trials' numbers, as plain JSON values; without the list of subsamples, since
        a trial does not depend on its batch."""
        values = asdict(self)
        for cost_only in ("model_path", "model_revision", "device", "share_base", "subsamples"):
            del values[cost_only]
        del values["data"]["path"]
        values["pretraining"] = self.pretraining.model_dump(exclude={"gradient_checkpointing", "micro_batch"})
        values["classification"] = self.classification.model_dump(exclude={"predict_batch"})
        values["data"]["class_names"] = list(self.data.class_names)
        if self.quantizes():
            values["four_bit_weights"] = "on every machine"  # before, only where bitsandbytes was: other cells
        return values | (scale_settings(self.dtype) if self.pretraining.adapter is not None else {})
