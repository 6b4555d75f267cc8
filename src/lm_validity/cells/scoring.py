"""Scores of one model on documents: untouched, or with the adapters that were selected."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_validity.cells.worker import Files, Worker
from lm_validity.errors import CellError
from lm_validity.run.cell import BenchmarkCell, Job, Prompt, given
from lm_validity.run.rules import scoring_rule_of
from lm_validity.run.store import Place
from lm_validity.run.workspace import Workspace

if TYPE_CHECKING:
    import pandas as pd

    from lm_validity.cells.models.language_model import LanguageModel
    from lm_validity.cells.models.vllm_answers import VllmAnswers
    from lm_validity.cells.tasks.evaluation import PreparedRequests


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

        from lm_validity.cells.models.model_files import model_and_tokenizer_folder
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
