"""A causal language model, loaded once a job: its tokens, its adapter, its answers, its memory."""

import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from lm_validity.cells.lm_eval_internals import normalize_gen_kwargs, resolve_max_length
from lm_validity.cells.models.loading import (
    check_on_gpus,
    check_saved_ends,
    keep_saved_head,
    load_weights,
    names_what_fails,
    say_unread,
    takes_rows,
)
from lm_validity.cells.models.passes import MORE_MEMORY, is_out_of_memory, must_fit
from lm_validity.cells.models.prefetch import model_folder, tokenizer_folder
from lm_validity.cells.models.provenance import errors_only
from lm_validity.cells.models.scorer import EncodedRequest, NotPlain, SharedContextLM, Way
from lm_validity.cells.models.tokenizer import (
    CHAT_DATE,
    close_thought,
    fixed_date,
    load_tokenizer,
    lost_bytes,
    render,
    thought_settings,
)
from lm_validity.errors import CellError, first_line

if TYPE_CHECKING:
    from lm_validity.cells.models.own_adapter import OwnAdapter

# ----------------------------------------------------------------------------------------------------------------------
# Writing answers token by token: when a row is over, what a broken logit is, and lm-eval's words for sampling.


class StopStrings(transformers.StoppingCriteria):
    """Ends each row of a batch once its answer holds one of the stop strings.

    lm-eval's criterion ends a batch only when all rows hold one and the same string, so that rows with different ones
    go on to the longest answer that is allowed. Where a row ends is as in lm-eval at batch 1: its last tokens, two more
    than the string has, are decoded and searched.
    """

    def __init__(self, tokenizer: transformers.PreTrainedTokenizerBase, strings: Sequence[str], start: int, rows: int):
        self.tokenizer, self.start = tokenizer, start
        self.done = [False] * rows
        self.by_length: dict[int, list[str]] = {}
        for string in strings:
            length = len(tokenizer.encode(string, add_special_tokens=False)) + 2
            self.by_length.setdefault(length, []).append(string)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **_: object) -> torch.BoolTensor:
        """(rows,): which rows are done, those of earlier tokens included."""
        ends = input_ids[:, self.start :][:, -max(self.by_length, default=1) :].tolist()
        if len(ends) != len(self.done):  # of a beam search, whose rows are others at each token
            return torch.tensor([self._has_ended(end) for end in ends], device=input_ids.device)
        self.done = [done or self._has_ended(end) for done, end in zip(self.done, ends, strict=True)]
        return torch.tensor(self.done, device=input_ids.device)

    def _has_ended(self, end: list[int]) -> bool:
        return any(
            string in text
            for length, strings in self.by_length.items()
            for text in [self.tokenizer.decode(end[-length:])]
            for string in strings
        )


class Sampling(NamedTuple):
    """How answers are drawn: the temperature, the probability that the likeliest tokens share, and the run's seed."""

    temperature: float
    top_p: float
    seed: int

    def generator(self, prompt: Sequence[int], repeat: int) -> np.random.Generator:
        """The random numbers of one answer: the same in every batch. `repeat`: of a prompt that is asked again."""
        digest = hashlib.sha256(",".join(map(str, prompt)).encode()).digest()
        return np.random.default_rng([self.seed, int.from_bytes(digest[:8], "big"), repeat])


class DrawTokens(transformers.LogitsProcessor):
    """Draws the next token of each row with the row's own random numbers, and leaves it as the only one possible.

    transformers draws all rows of a batch from one generator, so that an answer would depend on its neighbours.
    """

    def __init__(self, sampling: Sampling, generators: Sequence[np.random.Generator]):
        self.sampling, self.generators = sampling, generators
        self.nucleus = transformers.TopPLogitsWarper(sampling.top_p) if sampling.top_p < 1 else None

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """(rows, tokens): 0 for the drawn token, minus infinity for all others."""
        scaled = scores.float() / self.sampling.temperature
        if self.nucleus is not None:
            scaled = self.nucleus(input_ids, scaled)
        cumulative = torch.softmax(scaled, dim=-1).double().cumsum(dim=-1)
        drawn = torch.tensor([[rng.random()] for rng in self.generators], dtype=torch.float64, device=scores.device)
        # right: a token of probability 0 is never the first whose cumulated probability lies above the number
        tokens = torch.searchsorted(cumulative, drawn * cumulative[:, -1:], right=True)
        tokens = tokens.clamp(max=scores.shape[-1] - 1)
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens, 0.0)


class WatchLogits(transformers.LogitsProcessor):
    """Remembers on the device the logits of the first tokens, and whether generation met one that is NaN or +inf.
    Greedy search would take an argmax of NaN for an answer, which then scores 0."""

    def __init__(self) -> None:
        self.first: torch.Tensor | None = None
        self.broken: torch.Tensor | None = None

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """The logits as they came: only looked at."""
        self.first = scores.clone() if self.first is None else self.first
        broken = (scores.isnan() | scores.isposinf()).any()
        self.broken = broken if self.broken is None else self.broken | broken
        return scores


def sampling_options(options: Mapping[str, object]) -> dict[str, object]:
    """A task's generation options for transformers, by lm-eval's rule: greedy where no temperature is set, or 0."""
    by_name = {"temperature": 0.0, **options}
    if by_name["temperature"] == 0.0 and by_name.get("do_sample") is None:
        by_name["do_sample"] = False
    if by_name["temperature"] == 0.0 and by_name["do_sample"] is False:
        del by_name["temperature"]
    return by_name


# ----------------------------------------------------------------------------------------------------------------------
# A causal language model as lm-eval sees it, loaded from local safetensors with everything about it stated.
#
# `LanguageModel` is lm-eval's HFLM with the scorer of `scorer.py`: the same numbers, computed faster. Added are the
# tokens of a request as a public method (training text and item tables need them), each request's encoding kept for the
# next epoch, one BOS per document in rolling perplexity, and counters.

log = logging.getLogger(__name__)
transformers.utils.logging.disable_progress_bar()
WindowPrefix = Literal["auto", "once", "every", "lm-eval"]
# all that is read of a generation_config.json: a task's settings alone say how answers are written
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
MOST_LOST = 0.01  # share of a corpus's bytes that a tokenizer may lose: by so much bits per byte are too low


class NonFiniteScore(CellError):
    """A log-likelihood, logit or metric that is not a finite number: the model diverged or overflowed."""


class LanguageModel(SharedContextLM):
    """lm-eval's HFLM over a loaded model and tokenizer, with this project's scorer.

    max_length: longest context in tokens, never more than the model's own limit; null is that limit.
    model_id: the name that results and adapters carry; never a path of this machine.
    max_generated_tokens: longest answer of a generation task that sets none itself.
    window_prefix: how rolling windows begin. `once`: one BOS before the document (lm-eval with
        add_bos_token=False). `every`: one BOS before every window, for models that need it (Gemma).
        `lm-eval`: lm-eval's default, which scores a tokenizer's own BOS after its prefix BOS. All three agree
        where the tokenizer adds no BOS and the document fits one window. `auto`: `every` for the Gemma architectures,
        `once` for all others; the attribute then holds which of them it is.
    answer_start: the white space that the chat template puts between a prompt and the answer; lm-eval puts none.
    closes_thoughts: whether the chat template opens a thought, which is closed before an answer (`tokenizer`).
    """

    closes_thoughts = False

    # lm-eval's, whose types are not known
    batch_size_per_gpu: int
    chat_template_args: dict[str, object]

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        tokenizer: transformers.PreTrainedTokenizerBase,
        *,
        model_id: str,
        eval_batch_size: int,
        max_length: int | None = None,
        max_generated_tokens: int = 256,
        window_prefix: WindowPrefix = "auto",
        scorer: Way = "auto",
    ):
        model.requires_grad_(requires_grad=False)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        with errors_only("lm_eval.models.huggingface"):  # it warns that arguments that were not given are ignored
            super().__init__(
                pretrained=model,
                tokenizer=tokenizer,
                backend="causal",
                batch_size=eval_batch_size,
                max_length=max_length
                and min(max_length, resolve_max_length(model.config, tokenizer, default=max_length)),
                scorer=scorer,
            )
        self.base = model
        self.model_id = model_id
        self.own_adapter: OwnAdapter | None = None  # of the user's, in the weights of `base`
        if "date_string" in str(tokenizer.chat_template):
            self.chat_template_args = self.chat_template_args | {"date_string": CHAT_DATE.strftime("%d %b %Y")}
        if tokenizer.chat_template is not None:
            template_options, self.closes_thoughts = thought_settings(tokenizer, self.chat_template_args)
            self.chat_template_args = self.chat_template_args | template_options
        defaults = model.generation_config
        if defaults is not None:  # the hub's penalties and lengths: answers are by the task's settings alone
            tokens = {name: getattr(defaults, name) for name in TOKENS}
            model.generation_config = transformers.GenerationConfig(**tokens)
        self.max_generated_tokens = max_generated_tokens
        if window_prefix == "auto":  # the same test by which lm-eval adds BOS to every other request of Gemma's
            window_prefix = "every" if "gemma" in getattr(model.config, "model_type", "") else "once"
        self.sampling: Sampling | None = None  # of the cell at hand; None: what the task says, else the likeliest
        self._asked = Counter[tuple[int, ...]]()  # prompt -> how often it was answered in this call
        self.window_prefix: WindowPrefix = window_prefix
        self.answer_start = self._template_answer_start()
        self._encoded: dict[tuple[str, str], EncodedRequest] = {}
        self._prompts: list[Instance] = []  # of the answers at hand
        self.answers_alone = False  # whether answers may not share a batch; found by `check_answers`

    @property
    def max_gen_toks(self) -> int:
        """Longest answer where the task sets none; lm-eval's default is 256."""
        return self.max_generated_tokens

    def _template_answer_start(self) -> str:
        """White space between the template's generation prompt and an assistant's answer: " " for `[/INST] Oslo`, ""
        where the prompt itself ends in a line break. Without it a choice would be scored that the model never saw."""
        if self.tokenizer.chat_template is None:
            return ""
        options = self.chat_template_args
        try:
            prompt = render(self.tokenizer, ["question"], options)
            dialogue = render(self.tokenizer, ["question", "answer"], options, prompt=False)
        except Exception:  # whatever a template raises; rendering the real prompts will name it
            return ""
        between = dialogue[len(prompt) :].partition("answer")[0]
        return between if dialogue.startswith(prompt) and between.isspace() else ""

    def loses_system_message(self) -> bool:
        """Whether prompts would lack a system message: the chat template refuses one, and lm-eval leaves it out then,
        or does not print it."""
        try:
            prompt = render(self.tokenizer, ["question"], self.chat_template_args, system="Be brief.", prompt=False)
        except Exception:  # whatever a template raises
            return True
        return "Be brief." not in prompt

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """lm-eval's; a template that prints the date of today prints CHAT_DATE, and one that opens a thought has it
        closed (`chat`)."""
        with fixed_date():
            prompt = super().apply_chat_template(chat_history, add_generation_prompt)
        return close_thought(prompt) if self.closes_thoughts and add_generation_prompt else prompt

    def encode_request(self, context: str, continuation: str) -> EncodedRequest:
        """Token ids of context and continuation as lm-eval scores them; kept until `share_encodings`."""
        key = (context, continuation)
        if key not in self._encoded and context:
            self._encoded[key] = self._encode_pair(context, continuation)
        elif key not in self._encoded:
            self._encoded[key] = EncodedRequest([self.prefix_token_id], self._without_prefix(continuation))
        return self._encoded[key]

    def _without_prefix(self, text: str) -> list[int]:
        tokens = self.tok_encode(text, add_special_tokens=False)
        result: list[int] = tokens[1:] if tokens[:1] == [self.prefix_token_id] else tokens
        return result

    def share_encodings(self, encodings: dict[tuple[str, str], EncodedRequest]) -> None:
        """Use and extend these encodings from now on, which may outlive this model: of another checkpoint with the same
        tokenizer, or none where the next cell has other documents."""
        self._encoded = encodings

    def tokenizer_key(self) -> str:
        """Two models of the same key render and encode every request alike."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        described = backend.to_str() if backend is not None else f"{id(self.tokenizer)}"
        special = self.tokenizer.special_tokens_map
        settings = (self.tokenizer.chat_template, self.prefix_token_id, self.add_bos_token, special)
        return hashlib.sha256(f"{described}{settings}".encode()).hexdigest()

    def document_tokens(self, text: str) -> list[int]:
        """Token ids that are predicted in a document of a perplexity corpus: without a leading BOS, unless
        `window_prefix` is `lm-eval`."""
        if self.window_prefix == "lm-eval":
            result: list[int] = self.tok_encode(text)
            return result
        return self._without_prefix(text)

    def rolling_windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        """(context, predicted) token ids of each window over a document; every token is predicted once."""
        prefix_of_each_window = self.window_prefix == "every"
        windows = get_rolling_token_windows(
            token_list=self.document_tokens(text),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length - 1 if prefix_of_each_window else self.max_length,
            context_len=1,
        )
        disjoint = [make_disjoint_window(window) for window in windows]
        if prefix_of_each_window:
            disjoint[1:] = [([self.prefix_token_id, *context], predicted) for context, predicted in disjoint[1:]]
        return disjoint

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """lm-eval's loglikelihood with kept encodings."""
        encoded = [(request.args, *self.encode_request(*request.args)) for request in requests]
        with self._scoring_fits():
            return self._loglikelihood_tokens(encoded)

    def _scoring_fits(self) -> contextlib.AbstractContextManager[None]:
        return must_fit(self.model_id, "one text to score", f"{MORE_MEMORY}, or lower evaluation.max_length.")

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """Summed log-likelihood of each document over its rolling windows, in nats. Raises CellError for texts that the
        tokenizer does not write: what it loses would cost the model nothing."""
        self._check_written([request.args[0] for request in requests])
        windows = [
            (number, (None, *window))
            for number, request in enumerate(requests)
            for window in self.rolling_windows(request.args[0])
        ]
        totals = [0.0] * len(requests)
        with self._scoring_fits():
            scores = self._loglikelihood_tokens([window for _, window in windows])
        for (number, _), (loglikelihood, _) in zip(windows, scores, strict=True):
            totals[number] += loglikelihood
        return totals

    def _check_written(self, texts: list[str]) -> None:
        lost = [lost_bytes(self.tokenizer, text) for text in texts]
        total = sum(len(text.encode()) for text in texts)
        if sum(lost) > MOST_LOST * total:
            worst = texts[max(range(len(texts)), key=lost.__getitem__)]
            raise CellError(
                f"{self.model_id}: its tokenizer loses {sum(lost)} of {total} bytes of the texts "
                f"({sum(map(bool, lost))} of {len(texts)} texts, such as {worst[:40]!r}), which would count as known.",
                "leave the corpus out for this model, or take one that the tokenizer can write.",
            )
        if any(lost):
            log.warning("%s: its tokenizer loses %d of %d bytes of the texts", self.model_id, sum(lost), total)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """One answer a request. A prompt that leaves no room
        for the longest answer loses its beginning, which is counted."""
        self.count_truncated(
            len(self.tok_encode(request.args[0])) > self.room_for_prompt(request) for request in requests
        )
        with must_fit(self.model_id, "one answer to write", f"{MORE_MEMORY}, or lower evaluation.max_length."):
            return self._write(requests)

    def _write(self, requests: list[Instance]) -> list[str]:
        """Answers by the model itself in batches, all of them again in batches of half the size where memory runs out.
        They are written one by one where they are not those of a plain pass (`check_answers`), and where a text may
        outgrow the position encoding (`PositionEncoding`): its own length alone decides when that changes."""
        rows, self._prompts = self.batch_size, requests
        encoding = self.position_encoding
        if self.answers_alone or (encoding.varies and any(encoding.of(self._longest(request)) for request in requests)):
            self.batch_size_per_gpu = 1
        try:
            while True:
                self._asked.clear()
                try:
                    result: list[str] = super().generate_until(requests, disable_tqdm=True)
                    return result
                except NotPlain as error:
                    if self.batch_size_per_gpu == 1:
                        hint = "transformers cannot continue a plain prompt with this model: leave the task out."
                        raise CellError(f"{self.model_id}: {error}, in a batch of one too.", hint) from error
                    log.warning("%s: %s; its answers are written one by one", self.model_id, error)
                    self.answers_alone, self.batch_size_per_gpu = True, 1
                    self.checks.forget("answers")
                    continue
                except RuntimeError as error:
                    if self.batch_size_per_gpu == 1 or not is_out_of_memory(error):
                        raise
                self.batch_size_per_gpu //= 2
                self.counters.oom_halvings += 1
                torch.cuda.empty_cache()
        finally:
            self.batch_size_per_gpu = rows

    def _longest(self, request: Instance) -> int:
        """Tokens of a prompt and its longest answer."""
        room = self.room_for_prompt(request)
        result: int = min(len(self.tok_encode(request.args[0])), room) + self.max_length - room
        return result

    def is_prompt(self, tokens: list[int]) -> bool:
        """Whether these are the tokens by which one of the prompts at hand is known by itself."""
        return any(
            self.tok_encode(request.args[0])[-self.room_for_prompt(request) :] == tokens for request in self._prompts
        )

    def _generators(self, context: torch.Tensor, mask: torch.Tensor) -> list[np.random.Generator]:
        """The random numbers of each row's answer."""
        assert self.sampling is not None
        generators = []
        for tokens, seen in zip(context.tolist(), mask.tolist(), strict=True):
            prompt = tuple(token for token, is_seen in zip(tokens, seen, strict=True) if is_seen)
            generators.append(self.sampling.generator(prompt, self._asked[prompt]))
            self._asked[prompt] += 1
        return generators

    def room_for_prompt(self, request: Instance) -> int:
        """Tokens of a generation prompt that the model sees: all but those of the longest answer."""
        result: int = self.max_length - normalize_gen_kwargs(request.args[1], self.max_gen_toks)["max_gen_toks"]
        return result

    def _model_generate(
        self,
        context: torch.Tensor,
        max_length: int,
        stop: list[str],
        *,
        attention_mask: torch.Tensor,
        **options: object,
    ) -> torch.Tensor:
        """Tokens (rows, longest) of a batch of prompts and their answers. lm-eval's, but each row ends by itself."""
        rows, start = context.shape
        self.position_encoding.forget()
        watch = WatchLogits()
        processors: list[transformers.LogitsProcessor] = [watch]
        if self.sampling is not None:
            options = {name: value for name, value in options.items() if name not in OF_SAMPLING}
            processors.append(DrawTokens(self.sampling, self._generators(context, attention_mask)))
        # transformers pads a row that is over only where it knows an end-of-text token, which not every model names
        if self.model.generation_config.eos_token_id is None:
            options["eos_token_id"] = self.tokenizer.eos_token_id
        try:
            generated = self.model.generate(
                input_ids=context,
                attention_mask=attention_mask,
                max_length=max_length,
                stopping_criteria=transformers.StoppingCriteriaList([StopStrings(self.tokenizer, stop, start, rows)]),
                logits_processor=transformers.LogitsProcessorList(processors),
                pad_token_id=self.tokenizer.pad_token_id,
                use_cache=True,
                **sampling_options(options),
            )
        except (TypeError, ValueError) as error:  # so it says that it does not know a setting, or not this value
            raise CellError(
                f"{self.model_id}: transformers cannot write answers with {options} ({first_line(error)}).",
                "correct the task's generation_kwargs.",
            ) from error
        made = int((generated[:, start:] != self.tokenizer.pad_token_id).sum())
        self.counters.generated_tokens += made
        self.counters.forward_tokens += int(attention_mask.sum()) + made
        self.counters.forward_tokens_padded += generated.numel()
        if watch.broken is not None and watch.broken.item():
            raise NonFiniteScore(
                f"{self.model_id}: a logit is not finite while it generates.",
                "the model diverged or its dtype overflows: try a smaller learning rate, or dtype float32.",
            )
        greedy = self.sampling is None and not options.get("do_sample")
        if watch.first is not None and len(watch.first) == rows and set(options) <= OF_SAMPLING | {"eos_token_id"}:
            self.check_answers(context, attention_mask, generated, watch.first, greedy=greedy)
        return generated


OF_SAMPLING = frozenset(
    ("do_sample", "temperature", "top_p", "top_k", "min_p", "num_beams")
)  # a task's own, where ours hold


def load_language_model(
    path: str | Path,
    *,
    dtype: str,
    device: str,
    eval_batch_size: int,
    max_length: int | None = None,
    max_generated_tokens: int = 256,
    subfolder: str | None = None,
    model_id: str | None = None,
    window_prefix: WindowPrefix = "auto",
    scorer: Way = "auto",
    adapter: str | Path | None = None,
    keep_base: bool = False,
) -> LanguageModel:
    """Load a model from a folder: safetensors, no network, no remote code.

    dtype: `float32`, `bfloat16` or `float16`; never the checkpoint's by default.
    adapter: folder of a PEFT adapter that is added to the weights; keep_base: so that it can be exchanged for another.
    device: `cpu`, `cuda`, `cuda:N`; `all`, one model over all GPUs of the job, layer by layer (accelerate).
    Raises CellError where the folder, its safetensors or its tokenizer are missing or cannot be read, where weights of
    a causal language model are missing, where a position sees those behind it, or where the model does not fit.
    """
    folder = model_folder(path, subfolder)
    folder_of_tokenizer = tokenizer_folder(Path(adapter) if adapter else None, folder, Path(path))
    name = model_id or str(path)
    with must_fit(name, "its weights to load", f"{MORE_MEMORY}."):
        with names_what_fails(str(path), "causal"):
            tokenizer = load_tokenizer(folder_of_tokenizer, str(path), weights=folder)
        model = _read_weights(folder, str(path), getattr(torch, dtype), device)
        if tokenizer.eos_token_id is None:
            problem = f"{path}: the tokenizer has no end-of-text token."
            raise CellError(problem, "set eos_token in tokenizer_config.json.")
        if device != "all":
            model.to(device)
        own_adapter = _own_adapter(model, adapter, name, keep=keep_base)
    lm = LanguageModel(
        model,
        tokenizer,
        model_id=model_id or Path(path).name,
        eval_batch_size=eval_batch_size,
        max_length=max_length,
        max_generated_tokens=max_generated_tokens,
        window_prefix=window_prefix,
        scorer=scorer,
    )
    lm.own_adapter = own_adapter
    if own_adapter is None:
        check_saved_ends(lm.base, folder, str(path))
    if not takes_rows(lm.base, str(path)):
        lm.batch_size_per_gpu, lm.alone = 1, True
    with lm.counters.phase("load"):
        lm.counters.model_loads += 1
    return lm


def _read_weights(folder: Path, name: str, dtype: torch.dtype, device: str) -> transformers.PreTrainedModel:
    model, missing, unread = load_weights(
        transformers.AutoModelForCausalLM,
        folder,
        name,
        "causal",
        dtype=dtype,
        device_map="auto" if device == "all" else None,
    )
    if missing:  # transformers draws them at random, anew in each process, and only warns
        raise CellError(
            f"{name}: its weights lack {len(missing)} of a causal language model's tensors ({', '.join(missing[:3])})"
            f"{f'; they have {unread[0]}, which it does not know' if unread else ''}.",
            "is it a classifier, a reward model, a headless backbone, or saved with a prefix (torch.compile, PEFT)? "
            "Save it with save_pretrained, with its language modelling head.",
        )
    say_unread(name, model, unread)
    keep_saved_head(model)
    if device == "all" and torch.cuda.is_available():
        check_on_gpus(name, getattr(model, "hf_device_map", {}))  # absent where all is in one place
    return model


def exchange_adapter(lm: LanguageModel, adapter: str | Path | None) -> bool:
    """Put another adapter (None: none) in place of a loaded model's; False where it has to be loaded anew."""
    if lm.own_adapter is not None and not lm.own_adapter.take_off():
        return False
    with must_fit(lm.model_id, "its adapter to load", f"{MORE_MEMORY}."):
        lm.own_adapter = _own_adapter(lm.base, adapter, lm.model_id, keep=True)
    return True


def _own_adapter(
    model: transformers.PreTrainedModel, adapter: str | Path | None, name: str, keep: bool
) -> "OwnAdapter | None":
    """The user's adapter, put into `model`; None where there is none, and PEFT, a fifth of what a job has to import,
    stays out."""
    if not adapter:
        return None
    from lm_validity.cells.models.own_adapter import OwnAdapter

    return OwnAdapter(model, adapter, name, keep=keep)
