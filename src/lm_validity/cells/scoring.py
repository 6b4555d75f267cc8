"""Workers of the scoring rules, vLLM where it writes the answers, and judges."""

import gc
import hashlib
import importlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pyarrow
import torch
from lm_eval.api.instance import Instance

from lm_validity.cells.models.language_model import OF_SAMPLING, LanguageModel, Sampling, load_language_model
from lm_validity.cells.models.prefetch import model_and_tokenizer_folder
from lm_validity.cells.models.scorer import EncodedRequest
from lm_validity.cells.models.tokenizer import close_thought, render
from lm_validity.cells.tasks.evaluation import PreparedRequests, prepare_requests, score_prepared
from lm_validity.cells.training.lora import use_adapter
from lm_validity.cells.worker import Computed, Worker
from lm_validity.config.sheets import Dtype
from lm_validity.errors import CellError, InputError, first_line
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
        self._engine: VllmAnswers | None = None  # vLLM's, where it writes the answers

    def _release(self) -> None:
        super()._release()
        if self._engine is not None:  # it holds the model of the last checkpoint, and most of the GPU's memory
            self._engine = None
            gc.collect()

    def _score(self, lm: LanguageModel, cell: BenchmarkCell, prompt: Prompt, adapter: Path | None = None) -> Computed:
        """Score the documents of a cell with the model as it is, which has `adapter` in it where there is one."""
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
        lm.writer = self._writer(lm, cell, adapter) if rule.writes_with_vllm(self.run, cell) else None
        self._notes |= {"generation_backend": "vllm"} if lm.writer else {}
        lm.sampling = self._sampling(cell)
        try:
            evaluation = score_prepared(lm, prepared, metric=self.run.benchmarks[benchmark].metric)
        finally:
            lm.sampling = None
            lm.writer = None  # it knows the model: neither would be freed before the next checkpoint
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

    def _writer(self, lm: LanguageModel, cell: BenchmarkCell, adapter: Path | None) -> "VllmAnswers":
        """vLLM's engine for the loaded checkpoint, made once; it writes with `adapter` or without any."""
        if self._engine is None:
            point = self.workspace.model_record(self.model.model)["checkpoints"][cell.checkpoint or "final"]
            places = model_and_tokenizer_folder(point["path"], subfolder=point["subfolder"])
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
        folder = self.store.path(trained) / "adapter"
        with use_adapter(lm, folder):
            return self._score(lm, address.cell, selection["prompt"], folder)


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
# Answers of generation tasks written by vLLM, through lm-eval's own model class for it: a GPU and the extra `vllm`.
#
# What is asked is made by `LanguageModel` as for every other cell; vLLM gets the same prompts, and the tokens it makes
# of them are compared before anything is generated. Its kernels are others, so answers can differ: that vLLM wrote them
# is part of a cell's recipe.

MODULE = "lm_eval.models.vllm_causallms"
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM makes room for
FREE_SHARE = 0.9  # of the GPU memory that the model in transformers leaves free


class VllmAnswers:
    """vLLM's engine for one checkpoint, and the adapter it writes with.

    folder, tokenizer_folder: local folders. gpus: GPUs that the model is spread over. rank: of the adapters; None for
    none. Raises CellError where vLLM is not installed or cannot load the model.
    """

    def __init__(
        self, lm: LanguageModel, folder: Path, tokenizer_folder: Path, *, dtype: str, gpus: int, rank: int | None = None
    ):
        self.lm = lm
        if lm.own_head:  # vLLM believes the configuration
            raise CellError(
                f"{lm.model_id}: its config.json ties head and embeddings, and its file holds a head of its own.",
                "set tie_word_embeddings to false there, or generation_backend to transformers.",
            )
        options = {}
        if rank is not None:
            options = {"enable_lora": True, "max_lora_rank": next((room for room in RANKS if room >= rank), None)}
            if options["max_lora_rank"] is None:
                raise CellError(
                    f"finetuning.rank {rank} is more than vLLM takes ({RANKS[-1]}).",
                    "set generation_backend to transformers.",
                )
        try:
            engine_class = importlib.import_module(MODULE).VLLM
        except ImportError as error:
            raise CellError(
                f"evaluation.generation_backend is vllm, which cannot be imported ({error}).",
                "pip install 'lm-validity[cells,vllm]', or set it to transformers.",
            ) from error
        memory = [torch.cuda.mem_get_info(gpu) for gpu in range(gpus)]  # vLLM is told a share of a whole GPU
        try:
            self.engine = engine_class(
                pretrained=str(folder),
                tokenizer=str(tokenizer_folder),
                dtype=dtype,
                tensor_parallel_size=gpus,
                max_length=lm.max_length,
                max_gen_toks=lm.max_gen_toks,
                batch_size="auto",
                add_bos_token=lm.add_bos_token,
                gpu_memory_utilization=FREE_SHARE * min(free / total for free, total in memory),
                **options,
            )
        # vLLM says with any of these, assertions too, that it does not support a model. A RuntimeError (out of memory,
        # an engine that died) is the job's: it ends, and is tried again
        except (ValueError, NotImplementedError, AssertionError) as error:
            raise CellError(
                f"{lm.model_id}: vLLM cannot load it ({first_line(error)}).", "set generation_backend to transformers."
            ) from error
        self._adapters: dict[Path, object] = {}

    def use_adapter(self, folder: Path | None) -> None:
        """Write with the adapter of `folder` from now on, or with none."""
        if folder is not None and folder not in self._adapters:
            request = importlib.import_module("vllm.lora.request").LoRARequest
            self._adapters[folder] = request(folder.parent.name, len(self._adapters) + 1, str(folder.resolve()))
        self.engine.lora_request = None if folder is None else self._adapters[folder]

    def _sampled(self, requests: list[Instance]) -> list[Instance]:
        """The requests with the run's temperature and a seed of their own, where answers are sampled."""
        sampling = self.lm.sampling
        if sampling is None:
            return requests
        draws_asked = Counter[str]()
        drawn = []
        for request in requests:
            prompt, options = request.args
            options_of_request = {name: value for name, value in options.items() if name not in OF_SAMPLING}
            seed = derive_seed(sampling.seed, prompt, draws_asked[prompt]) % 2**32
            options_of_request |= {
                "do_sample": True,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "seed": seed,
            }
            drawn.append(replace(request, arguments=(prompt, options_of_request)))
            draws_asked[prompt] += 1
        return drawn

    def __call__(self, requests: list[Instance]) -> list[str]:
        """One answer a request, cut at its stop strings by lm-eval. Raises CellError where vLLM's tokens of a prompt
        are not those that transformers would see."""
        prompts = [request.args[0] for request in requests]
        encoded = [list(self.lm.tok_encode(prompt)) for prompt in prompts]
        for prompt, tokens, theirs in zip(prompts, encoded, self.engine.tok_encode(prompts), strict=True):
            if tokens != list(theirs):
                raise CellError(
                    f"{self.lm.model_id}: vLLM's tokens of a prompt differ from transformers': {prompt[:60]!r}.",
                    "set generation_backend to transformers for this model.",
                )
        try:
            answers: list[str] = self.engine.generate_until(self._sampled(requests), disable_tqdm=True)
        except ValueError as error:
            raise CellError(
                f"{self.lm.model_id}: vLLM cannot write its answers ({first_line(error)}).",
                "set generation_backend to transformers.",
            ) from error
        counters = self.lm.counters
        made = sum(len(self.lm.tok_encode(answer, add_special_tokens=False)) for answer in answers)
        counters.generated_tokens += made
        counters.forward_tokens += sum(map(len, encoded)) + made
        return answers


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
