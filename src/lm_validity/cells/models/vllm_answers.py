"""Answers of generation tasks written by vLLM, through lm-eval's own model class for it: a GPU and the extra `vllm`.

What is asked is made by `LanguageModel` as for every other cell; vLLM gets the same prompts, and the tokens it makes of
them are compared before anything is generated. Its kernels are others, so answers can differ: that vLLM wrote them is
part of a cell's recipe.
"""

import importlib
from pathlib import Path

import torch
from lm_eval.api.instance import Instance

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.errors import CellError, first_line

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
                gpu_memory_utilization=FREE_SHARE * _free_share(gpus),
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

    def __call__(self, requests: list[Instance]) -> list[str]:
        """One answer a request, cut at its stop strings by lm-eval. Raises CellError where vLLM's tokens of a prompt
        are not those that transformers would see."""
        prompts = [request.args[0] for request in requests]
        ours = [list(self.lm.tok_encode(prompt)) for prompt in prompts]
        for prompt, tokens, theirs in zip(prompts, ours, self.engine.tok_encode(prompts), strict=True):
            if tokens != list(theirs):
                raise CellError(
                    f"{self.lm.model_id}: vLLM's tokens of a prompt differ from transformers': {prompt[:60]!r}.",
                    "set generation_backend to transformers for this model.",
                )
        try:
            answers = self.engine.generate_until(requests, disable_tqdm=True)
        except ValueError as error:
            raise CellError(
                f"{self.lm.model_id}: vLLM cannot write its answers ({first_line(error)}).",
                "set generation_backend to transformers.",
            ) from error
        counters = self.lm.counters
        made = sum(len(self.lm.tok_encode(answer, add_special_tokens=False)) for answer in answers)
        counters.generated_tokens += made
        counters.forward_tokens += sum(map(len, ours)) + made
        return answers


def _free_share(gpus: int) -> float:
    """Share of a GPU's memory that is free: vLLM is told a share of the whole."""
    shares = []
    for gpu in range(gpus):
        free, total = torch.cuda.mem_get_info(gpu)
        shares.append(free / total)
    return min(shares)
