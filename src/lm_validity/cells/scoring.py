"""Workers of the scoring rules, selection on validation, and judges."""

import gc
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_validity.cells.models.prefetch import DTYPES
from lm_validity.cells.runner import Files, Worker
from lm_validity.errors import CellError, InputError
from lm_validity.run.cell import BenchmarkCell, Job, Prompt, given
from lm_validity.run.rules import scoring_rule_of
from lm_validity.run.rules.select_adapter import SELECT_ADAPTER
from lm_validity.run.rules.select_prompt import SELECT_PROMPT
from lm_validity.run.store import Place
from lm_validity.run.workspace import Workspace

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from lm_validity.cells.models.language_model import LanguageModel
    from lm_validity.cells.models.vllm_answers import VllmAnswers
    from lm_validity.cells.tasks.evaluation import PreparedRequests


# ----------------------------------------------------------------------------------------------------------------------
# Choosing on validation: the prompt of the direct regime, and the adapter of train-before-test.
#
# Reads validation results only. An adapter is chosen over the untouched model only where it is strictly better.

PROMPT_ORDER = ("plain", "chat")  # ties go to the earlier one


def select_prompt(workspace: Workspace, cell: BenchmarkCell) -> dict[str, Any]:
    """The direct regime's prompt: the best on validation, ties to plain."""
    benchmark = workspace.run.benchmarks[cell.benchmark]
    values = direct_validation(workspace, cell)
    better = 1 if benchmark.higher_is_better else -1
    best = max(values, key=lambda prompt: (better * values[prompt], -PROMPT_ORDER.index(prompt)))
    return {
        "prompt": best,
        "metric": benchmark.metric,
        "validation_value": values[best],
        "validation_values": values,
    }


def direct_validation(workspace: Workspace, cell: BenchmarkCell) -> dict[str, float]:
    """The untouched model's validation value of the benchmark's metric, by prompt."""
    metric = workspace.run.benchmarks[cell.benchmark].metric
    values: dict[str, float] = {}
    for direct in SELECT_PROMPT.stands_on(workspace.grid, cell):
        values[given(direct.prompt)] = workspace.finished(direct)["result"]["metrics"][metric]["value"]
    return values


def select_adapter(workspace: Workspace, cell: BenchmarkCell) -> dict[str, Any]:
    """The best (learning rate, prompt, epoch) on validation for (model, benchmark, seed).

    Ties go to the earlier epoch, then the smaller rate, then plain. A fine-tune that diverged is recorded and left
    out; where all diverged the cell fails. The untouched model stays unless an adapter is strictly better than the
    best direct prompt: then `learning_rate`, `epoch` and `folder` are None and the test score is the direct cell's.
    """
    benchmark = workspace.run.benchmarks[cell.benchmark]
    better = 1 if benchmark.higher_is_better else -1
    direct = select_prompt(workspace, cell)
    rows, candidates = [], []
    for candidate in SELECT_ADAPTER.candidates(workspace.grid, cell):
        trained = workspace.finished(candidate)
        result = trained["result"]
        rows.append(
            {
                "prompt": candidate.prompt,
                "learning_rate": candidate.learning_rate,
                "epoch": result["best_epoch"],
                "validation_value": result["best_value"],
                "diverged": result["diverged"],
                "adapted_share": result.get("adapted_share"),  # cells of earlier versions and replays have none
            }
        )
        if not result["diverged"]:
            order = (
                better * result["best_value"],
                -result["best_epoch"],
                -float(given(candidate.learning_rate)),
                -PROMPT_ORDER.index(given(candidate.prompt)),
            )
            candidates.append((order, trained["folder"], rows[-1]))
    if not candidates:
        raise CellError(
            f"every fine-tune of {cell.model} on {cell.benchmark} (seed {cell.seed}) diverged",
            "try smaller finetuning.learning_rates, or check the training data.",
        )
    _, folder, best = max(candidates, key=lambda candidate: candidate[0])
    choice = {
        "metric": benchmark.metric,
        "direct_prompt": direct["prompt"],
        "direct_validation_value": direct["validation_value"],
        "candidates": rows,
    }
    if better * best["validation_value"] > better * direct["validation_value"]:
        keys = ("prompt", "learning_rate", "epoch", "validation_value")
        return choice | {key: best[key] for key in keys} | {"folder": folder}
    return choice | {
        "prompt": direct["prompt"],
        "learning_rate": None,
        "epoch": None,
        "validation_value": direct["validation_value"],
        "folder": None,
    }


# ----------------------------------------------------------------------------------------------------------------------
# Scores of one model on documents: untouched, or with the adapters that were selected.


class Scorer(Worker):
    """What both kinds of scoring share."""

    def __init__(self, workspace: Workspace, job: Job[BenchmarkCell]):
        super().__init__(workspace, job)
        self._kept = KeptRequests()
        self._engine: VllmAnswers | None = None  # vLLM's, where it writes the answers

    def _release(self) -> None:
        super()._release()
        if self._engine is not None:  # it holds the model of the last checkpoint, and most of the GPU's memory
            self._engine = None
            gc.collect()

    def _score(
        self, lm: "LanguageModel", cell: BenchmarkCell, prompt: Prompt, adapter: Path | None = None
    ) -> tuple[dict[str, Any], Files]:
        """Score the documents of a cell with the model as it is, which has `adapter` in it where there is one."""
        from lm_validity.cells.tasks.evaluation import PreparedRequests, prepare_requests, score_prepared

        rule = scoring_rule_of(cell)
        benchmark, split = cell.benchmark, rule.scored_split(cell)

        def prepare() -> PreparedRequests:
            return prepare_requests(
                lm,
                self._task(benchmark),
                self._documents(benchmark, split),
                prompt=prompt,
                system_instruction=self._system_instruction,
            )

        prepared = self._kept.requests(lm, (benchmark, split, prompt), prepare)
        lm.writer = self._writer(lm, cell, adapter) if rule.writes_with_vllm(self.run, cell) else None
        self._notes |= {"generation_backend": "vllm"} if lm.writer else {}
        try:
            found = score_prepared(lm, prepared, metric=self.run.benchmarks[benchmark].metric)
        finally:
            lm.writer = None  # it knows the model: neither would be freed before the next checkpoint
        metrics = {key: {"value": value, "stderr": error} for key, (value, error) in found.metrics.items()}
        result = {
            "metrics": metrics,
            "n_items": found.n_items,
            "prompt_sha256": found.prompt_sha256,
            "max_length": lm.max_length,
            "truncated_requests": found.truncated_requests,
            "task_version": self.workspace.task_record(benchmark)["record"]["version"],
        }
        if self.run.benchmarks[benchmark].output_type == "loglikelihood_rolling":
            result["document_bos"] = lm.window_prefix
        return result, lambda folder: _write_items(found.items, folder)

    def _writer(self, lm: "LanguageModel", cell: BenchmarkCell, adapter: Path | None) -> "VllmAnswers":
        """vLLM's engine for the loaded checkpoint, made once; it writes with `adapter` or without any."""
        import torch

        from lm_validity.cells.models.prefetch import model_and_tokenizer_folder
        from lm_validity.cells.models.vllm_answers import VllmAnswers

        if self._engine is None:
            point = self.workspace.model_record(self.model.model)["checkpoints"][cell.checkpoint or "final"]
            places = model_and_tokenizer_folder(point["path"], revision=point["revision"], subfolder=point["subfolder"])
            self._engine = VllmAnswers(
                lm,
                *places,
                dtype=self.model.dtype,
                gpus=torch.cuda.device_count() if self._device == "all" else 1,
                rank=self.run.configuration.finetuning.rank if adapter else None,
            )
        self._engine.use_adapter(adapter)
        return self._engine


class ModelScorer(Scorer):
    """Scores of an untouched model (rule `evaluate_model`)."""

    def _compute(self, place: Place[BenchmarkCell]) -> tuple[dict[str, Any], Files]:
        lm = self._language_model(given(place.cell.checkpoint))
        return self._score(lm, place.cell, given(place.cell.prompt))


class AdapterScorer(Scorer):
    """Scores of selected adapters (rule `evaluate_adapter`)."""

    def _compute(self, place: Place[BenchmarkCell]) -> tuple[dict[str, Any], Files]:
        from lm_validity.cells.training.lora import use_adapter

        selection = self.workspace.selection(place.cell)
        damage = self.store.damage(selection["folder"])
        if damage:
            raise CellError(
                f"{self.store.path(selection['folder'])}: {damage}.",
                "run `lm-validity preflight`, then the workflow again: the cell is computed anew.",
            )
        lm = self._language_model("final")
        folder = self.store.path(selection["folder"]) / "adapter"
        with use_adapter(lm, folder):
            return self._score(lm, place.cell, selection["prompt"], folder)


class KeptRequests:
    """Built and tokenised requests, for the next checkpoint with the same tokenizer.

    At most MOST_KEPT requests are held (about a kilobyte each); beyond that all are built again.
    """

    MOST_KEPT = 100_000

    def __init__(self) -> None:
        self._tokenizer: str | None = None
        self._prepared: dict[tuple[str, str, str], PreparedRequests] = {}
        self._encodings: dict[tuple[str, str], tuple[list[int], list[int]]] = {}

    def requests(
        self, lm: "LanguageModel", key: tuple[str, str, str], prepare: "Callable[[], PreparedRequests]"
    ) -> "PreparedRequests":
        """The prepared requests of (benchmark, split, prompt), built by `prepare` where they are not kept."""
        tokenizer = lm.tokenizer_key()
        kept = sum(len(group) for prepared in self._prepared.values() for group in prepared.requests)
        if tokenizer != self._tokenizer or kept > self.MOST_KEPT:
            self._tokenizer, self._prepared, self._encodings = tokenizer, {}, {}
        lm.share_encodings(self._encodings)
        if key not in self._prepared:
            self._prepared[key] = prepare()
        return self._prepared[key]


def _write_items(items: "pd.DataFrame", folder: Path) -> None:
    """items.parquet of a cell: the columns of ITEMS that belong to a document."""
    import pyarrow

    from lm_validity.tables.schema import ITEMS, write_table

    own = ITEMS.names[ITEMS.names.index("doc_id") :]
    write_table(items, pyarrow.schema([ITEMS.field(name) for name in own]), folder / "items.parquet")


# ----------------------------------------------------------------------------------------------------------------------
# A local causal language model as judge of single questions (see `lm_validity.studies.signal.filters.recipe`).


class LocalJudge:
    """Answers prompts with a model read from a local folder: greedy first, sampled in repetitions.

    The prompt goes through the tokenizer's chat template where it has one. Samples are seeded by prompt and
    repetition and leave the global random state as it was.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        dtype: str,
        device: str = "cpu",
        temperature: float = 0.7,
        max_new_tokens: int = 8,
    ):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        if dtype not in DTYPES:
            raise InputError(f"dtype {dtype!r} is not known.", f"one of {', '.join(DTYPES)}.")
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
            self.model = AutoModelForCausalLM.from_pretrained(
                str(path), local_files_only=True, use_safetensors=True, dtype=getattr(torch, dtype)
            )
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}: no model could be loaded ({error}).",
                "give a folder in Hugging Face format with safetensors.",
            ) from error
        self.model.to(device).eval()
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens

    def __call__(self, prompt: str, repetition: int) -> str:
        """The model's reply, without the prompt."""
        import torch

        tokens = self._encode(prompt).to(self.model.device)
        sampling = {"do_sample": False} if repetition == 0 else {"do_sample": True, "temperature": self.temperature}
        seed = int.from_bytes(hashlib.sha256(f"{repetition}\0{prompt}".encode()).digest()[:7], "big")
        devices = [self.model.device] if self.model.device.type == "cuda" else []
        with torch.inference_mode(), torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            output = self.model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=self.max_new_tokens,
                pad_token_id=self.tokenizer.pad_token_id or self.tokenizer.eos_token_id or 0,
                **sampling,
            )
        return self.tokenizer.decode(output[0, tokens.shape[1] :], skip_special_tokens=True)

    def _encode(self, prompt: str) -> "torch.Tensor":
        if self.tokenizer.chat_template:
            text = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
            )
            return self.tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        return self.tokenizer(prompt, return_tensors="pt")["input_ids"]
