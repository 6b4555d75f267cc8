"""Workers of the scoring rules, and judges."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pyarrow
import torch

from lm_validity.cells.models.language_model import LanguageModel, Sampling, load_language_model
from lm_validity.cells.models.scorer import EncodedRequest
from lm_validity.cells.models.tokenizer import close_thought, render
from lm_validity.cells.tasks.evaluation import PreparedRequests, prepare_requests, score_prepared
from lm_validity.cells.training.lora import use_adapter
from lm_validity.cells.training.worker import Computed, Worker
from lm_validity.config.sheets import Dtype
from lm_validity.errors import CellError, InputError
from lm_validity.run.cell import BenchmarkCell, Job, Prompt, derive_seed, given
from lm_validity.run.rules import scoring_rule_of
from lm_validity.run.store import Address
from lm_validity.run.workspace import Workspace
from lm_validity.tables.schema import ITEMS, write_table

# ----------------------------------------------------------------------------------------------------------------------
# Scores of one model on documents: untouched, or with the adapters that were selected.


class Scorer(Worker):
    """What both kinds of scoring share."""

    def __init__(self, workspace: Workspace, job: Job[BenchmarkCell]):
        super().__init__(workspace, job)
        self._kept = KeptRequests()

    def _score(self, lm: LanguageModel, cell: BenchmarkCell, prompt: Prompt) -> Computed:
        """Score the documents of a cell with the model as it is."""
        rule = scoring_rule_of(cell)
        benchmark, split = cell.benchmark, rule.scored_split(cell)

        def prepare() -> PreparedRequests:
            return prepare_requests(
                lm,
                self._task(benchmark),
                self._documents(benchmark, split),
                prompt=prompt,
                system_instruction=self.run.configuration.evaluation.system_instruction,
            )

        prepared = self._kept.requests(lm, (benchmark, split, prompt), prepare)
        lm.sampling = self._sampling(cell)
        try:
            evaluation = score_prepared(lm, prepared, metric=self.run.benchmarks[benchmark].metric)
        finally:
            lm.sampling = None
        result: dict[str, object] = {
            "metrics": {
                key: {"value": value, "stderr": error, "n_items": evaluation.valued[key]}
                for key, (value, error) in evaluation.metrics.items()
            },
            "n_items": len(evaluation.items),
            "prompt_sha256": evaluation.prompt_sha256,
            "max_length": lm.max_length,
            "truncated_requests": evaluation.truncated_requests,
            "task_version": self.workspace.task_record(benchmark)["record"]["version"],
        }
        if self.run.benchmarks[benchmark].output_type == "loglikelihood_rolling":
            result["document_bos"] = lm.window_prefix
        of_documents = pyarrow.schema([ITEMS.field(name) for name in evaluation.items])
        return Computed(result, lambda folder: write_table(evaluation.items, of_documents, folder / "items.parquet"))

    def _sampling(self, cell: BenchmarkCell) -> Sampling | None:
        """How the answers of a sampled run are drawn: its seed comes from the cell's key."""
        generation = self.run.configuration.evaluation.generation
        if generation is None or cell.run is None:
            return None
        return Sampling(generation.temperature, generation.top_p, derive_seed(cell.rule, cell.model, cell.name))


class ModelScorer(Scorer):
    """Scores of an untouched model (rule `evaluate_model`)."""

    def _compute(self, address: Address[BenchmarkCell]) -> Computed:
        lm = self._language_model(given(address.cell.checkpoint))
        return self._score(lm, address.cell, given(address.cell.prompt))


class AdapterScorer(Scorer):
    """Scores of selected adapters (rule `evaluate_adapter`)."""

    def _compute(self, address: Address[BenchmarkCell]) -> Computed:
        selection = self.workspace.selection(address.cell)
        trained = given(selection["folder"])
        damage = self.store.damage(trained)
        if damage:
            raise CellError(
                f"{self.store.path(trained)}: {damage}.",
                "run `lm-validity preflight`, then the workflow again: the cell is computed anew.",
            )
        lm = self._language_model("final")
        with use_adapter(lm, self.store.path(trained) / "adapter"):
            return self._score(lm, address.cell, selection["prompt"])


class KeptRequests:
    """Built and tokenised requests, for the next checkpoint with the same tokenizer.

    At most MOST_KEPT requests are held (about a kilobyte each); beyond that all are built again.
    """

    MOST_KEPT = 100_000

    def __init__(self) -> None:
        self._tokenizer: str | None = None
        self._prepared: dict[tuple[str, str, str], PreparedRequests] = {}
        self._encodings: dict[tuple[str, str], EncodedRequest] = {}

    def requests(
        self, lm: LanguageModel, key: tuple[str, str, str], prepare: Callable[[], PreparedRequests]
    ) -> PreparedRequests:
        """The prepared requests of (benchmark, split, prompt), built by `prepare` where they are not kept."""
        tokenizer = lm.tokenizer_key()
        n_kept = sum(len(group) for prepared in self._prepared.values() for group in prepared.requests)
        if tokenizer != self._tokenizer or n_kept > self.MOST_KEPT:
            self._tokenizer, self._prepared, self._encodings = tokenizer, {}, {}
        lm.share_encodings(self._encodings)
        if key not in self._prepared:
            self._prepared[key] = prepare()
        return self._prepared[key]


# ----------------------------------------------------------------------------------------------------------------------
# A local causal language model as judge of single questions (see `lm_validity.studies.signal.filters.recipe`).


class LocalJudge:
    """Answers prompts with a model read from a local folder: greedy first, sampled in repetitions.

    The prompt goes through the tokenizer's chat template where it has one. Samples are seeded by prompt and
    repetition and leave the global random state as it was.
    """

    def __init__(
        self, path: str | Path, *, dtype: str, device: str = "cpu", temperature: float = 0.7, max_new_tokens: int = 8
    ):
        if dtype not in get_args(Dtype):
            raise InputError(f"dtype {dtype!r} is not known.", f"one of {', '.join(get_args(Dtype))}.")
        try:
            self.lm = load_language_model(path, dtype=dtype, device=device, eval_batch_size=1)
        except CellError as error:
            raise InputError(error.problem, error.hint) from error
        self.model, self.tokenizer = self.lm.base, self.lm.tokenizer
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens

    @torch.inference_mode()
    def __call__(self, prompt: str, repetition: int) -> str:
        """The model's reply, without the prompt."""
        tokens = self._encode(prompt).to(self.model.device)
        sampling = {"do_sample": False} if repetition == 0 else {"do_sample": True, "temperature": self.temperature}
        seed = int.from_bytes(hashlib.sha256(f"{repetition}\0{prompt}".encode()).digest()[:7], "big")
        devices = [self.model.device] if self.model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            output = self.model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=self.max_new_tokens,
                pad_token_id=self.tokenizer.pad_token_id or self.tokenizer.eos_token_id or 0,
                **sampling,
            )
        result: str = self.tokenizer.decode(output[0, tokens.shape[1] :], skip_special_tokens=True)
        return result

    def _encode(self, prompt: str) -> torch.Tensor:
        if not self.tokenizer.chat_template:
            return self.tokenizer(prompt, return_tensors="pt")["input_ids"]
        text = render(self.tokenizer, [prompt], self.lm.chat_template_args)
        text = close_thought(text) if self.lm.closes_thoughts else text
        return self.tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
