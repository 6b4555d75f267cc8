"""A causal language model, loaded once a job: its tokens, its adapter, its answers, its memory."""

import contextlib
import hashlib
import logging
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Required, TypedDict, Unpack

import numpy as np
import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor

from lm_validity.cells.lm_eval_internals import errors_only, normalize_gen_kwargs, resolve_max_length
from lm_validity.cells.models import loading, tokenizing
from lm_validity.cells.models.passes import MORE_MEMORY, is_out_of_memory, must_fit
from lm_validity.cells.models.prefetch import model_folder, tokenizer_folder
from lm_validity.cells.models.scorer import EncodedRequest, NotPlain, SharedContextLM, Way
from lm_validity.errors import CellError, first_line

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
        self.first: Tensor | None = None
        self.broken: Tensor | None = None

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """The logits as they came: only looked at."""
        self.first = scores.clone() if self.first is None else self.first
        broken = (scores.isnan() | scores.isposinf()).any()
        self.broken = broken if self.broken is None else self.broken | broken
        return scores


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
# settings of sampling: a task's own make room for those of a run
OF_SAMPLING = frozenset(("do_sample", "temperature", "top_p", "top_k", "min_p", "num_beams"))
MOST_LOST = 0.01  # share of a corpus's bytes that a tokenizer may lose: by so much bits per byte are too low


class Options(TypedDict, total=False):
    """How a language model is asked.

    eval_batch_size: texts of a batch. model_id: the name that results and adapters carry; never a path of this machine.
    max_length: longest context in tokens, never more than the model's own limit; null is that limit.
    max_generated_tokens: longest answer of a generation task that sets none itself; 256 where it is not given.
    window_prefix: how rolling windows begin. `once`: one BOS before the document (lm-eval with
        add_bos_token=False). `every`: one BOS before every window, for models that need it (Gemma).
        `lm-eval`: lm-eval's default, which scores a tokenizer's own BOS after its prefix BOS. All three agree
        where the tokenizer adds no BOS and the document fits one window. `auto`: `every` for the Gemma architectures,
        `once` for all others; the attribute then holds which of them it is.
    system_instruction: the system message of prompts in the chat template.
    """

    eval_batch_size: Required[int]
    model_id: str
    max_length: int | None
    max_generated_tokens: int
    window_prefix: WindowPrefix
    scorer: Way
    system_instruction: str | None


class NonFiniteScore(CellError):
    """A log-likelihood, logit or metric that is not a finite number: the model diverged or overflowed."""


class LanguageModel(SharedContextLM):
    """lm-eval's HFLM over a loaded model and tokenizer, with this project's scorer.

    answer_start: the white space that the chat template puts between a prompt and the answer; lm-eval puts none.
    closes_thoughts: whether the chat template opens a thought, which is closed before an answer (`tokenizer`).
    """

    # lm-eval's, whose types are not known
    batch_size_per_gpu: int
    max_gen_toks = 256  # where the task sets no length of an answer
    chat_template_args: dict[str, object]

    def __init__(
        self, model: transformers.PreTrainedModel, tokenizer: tokenizing.Tokenizer, **options: Unpack[Options]
    ):
        model.requires_grad_(requires_grad=False)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        longest = options.get("max_length")
        with errors_only("lm_eval.models.huggingface"):  # it warns that arguments that were not given are ignored
            super().__init__(
                pretrained=model,
                tokenizer=tokenizer,
                backend="causal",
                batch_size=options["eval_batch_size"],
                max_length=longest and min(longest, resolve_max_length(model.config, tokenizer, default=longest)),
                scorer=options.get("scorer", "auto"),
            )
        self.base = model
        self.model_id = options["model_id"]
        self.system_instruction = options.get("system_instruction")
        self.chat_template_args = tokenizing.chat_options(tokenizer, self.chat_template_args)
        defaults = model.generation_config
        if defaults is not None:  # the hub's penalties and lengths: answers are by the task's settings alone
            tokens = {name: getattr(defaults, name) for name in TOKENS}
            model.generation_config = transformers.GenerationConfig(**tokens)
        self.max_gen_toks = options.get("max_generated_tokens", 256)
        window_prefix = options.get("window_prefix", "auto")
        if window_prefix == "auto":  # the same test by which lm-eval adds BOS to every other request of Gemma's
            window_prefix = "every" if "gemma" in getattr(model.config, "model_type", "") else "once"
        self.sampling: Sampling | None = None  # of the cell at hand; None: what the task says, else the likeliest
        self._asked = Counter[tuple[int, ...]]()  # prompt -> how often it was answered in this call
        self.window_prefix: WindowPrefix = window_prefix
        self.answer_start = self._template_answer_start()
        self._encoded: dict[tuple[str, str], EncodedRequest] = {}
        self._prompts: list[Instance] = []  # of the answers at hand
        self.answers_alone = False  # whether answers may not share a batch; found by `check_answers`

    def _template_answer_start(self) -> str:
        """White space between the template's generation prompt and an assistant's answer: " " for `[/INST] Oslo`, ""
        where the prompt itself ends in a line break. Without it a choice would be scored that the model never saw."""
        if self.tokenizer.chat_template is None:
            return ""
        options = self.chat_template_args
        try:
            prompt = tokenizing.render(self.tokenizer, ["question"], options)
            dialogue = tokenizing.render(self.tokenizer, ["question", "answer"], options, prompt=False)
        except Exception:  # whatever a template raises; rendering the real prompts will name it
            return ""
        between = dialogue[len(prompt) :].partition("answer")[0]
        return between if dialogue.startswith(prompt) and between.isspace() else ""

    def loses_system_message(self) -> bool:
        """Whether prompts would lack a system message: the chat template refuses one, and lm-eval leaves it out then,
        or does not print it."""
        try:
            options = self.chat_template_args
            prompt = tokenizing.render(self.tokenizer, ["question"], options, system="Be brief.", prompt=False)
        except Exception:  # whatever a template raises
            return True
        return "Be brief." not in prompt

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """lm-eval's; a template that prints the date of today prints CHAT_DATE, and one that opens a thought has it
        closed (`chat`)."""
        with tokenizing.fixed_date():
            prompt = super().apply_chat_template(chat_history, add_generation_prompt)
        return tokenizing.close_thought(prompt) if add_generation_prompt else prompt

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
        longest = self.max_length - prefix_of_each_window
        windows = get_rolling_token_windows(self.document_tokens(text), self.prefix_token_id, longest, context_len=1)
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
        lost = [tokenizing.lost_bytes(self.tokenizer, text) for text in texts]
        total = sum(len(text.encode()) for text in texts)
        if sum(lost) > MOST_LOST * total:
            worst = texts[max(range(len(texts)), key=lost.__getitem__)]
            problem = f"{self.model_id}: its tokenizer loses {sum(lost)} of {total} bytes of texts ({worst[:40]!r})."
            raise CellError(problem, "leave the corpus out for this model, or take one that the tokenizer can write.")
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
        outgrow the position encoding (`outgrows`): its own length alone decides when that changes."""
        rows, self._prompts = self.batch_size, requests
        longest = 0  # tokens of a prompt and its longest answer
        for request in requests if self.longrope_limit < math.inf else ():
            room = self.room_for_prompt(request)
            longest = max(longest, min(len(self.tok_encode(request.args[0])), room) + self.max_length - room)
        if self.answers_alone or self.outgrows(longest):
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
                self.counters["oom_halvings"] += 1
                torch.cuda.empty_cache()
        finally:
            self.batch_size_per_gpu = rows

    @torch.no_grad()
    def check_answers(self, prompts: Tensor, mask: Tensor, texts: Tensor, first: Tensor, *, greedy: bool) -> None:
        """Raise NotPlain where an answer of a batch is not what a plain pass over prompt and answer alone gives: the
        same log-likelihoods of its first token, and of greedy answers each token the likeliest there. Two rows are
        looked at, the one with most padding and the one with least, where they exceed what was checked before.

        prompts: (rows, tokens), padded on the left, where the mask is 0. texts: prompts and answers. first: (rows,
        vocabulary), the logits by which the first token was chosen. greedy: whether the likeliest tokens were.
        """
        if self.longrope_limit < math.inf:  # an answer that outgrows it goes on from states of the shorter one
            return
        padding = (mask == 0).sum(1).tolist()
        longest_padding, least = padding.index(max(padding)), padding.index(min(padding))
        for kind, row, size in (
            ("padding", longest_padding, padding[longest_padding] + 1),
            ("length", least, texts.shape[1]),
        ):
            if self.checks.exceeds("answers", kind, size):
                prompt, answer = prompts[row, padding[row] :], texts[row, prompts.shape[1] :].tolist()
                while answer and answer[-1] == self.tokenizer.pad_token_id:  # behind its end
                    answer.pop()
                self._check_answer(prompt, answer if greedy else answer[:1], first[row], greedy=greedy)

    def _check_answer(self, prompt: Tensor, answer: list[int], first: Tensor, *, greedy: bool) -> None:
        by_itself = ((request.args[0], self.room_for_prompt(request)) for request in self._prompts)
        if not any(self.tok_encode(text)[-room:] == prompt.tolist() for text, room in by_itself):
            raise NotPlain("a prompt has other tokens in a batch than by itself")
        if not answer:
            return
        answer_tokens = torch.tensor(answer, device=prompt.device)
        try:
            logits = self._forward(input_ids=torch.cat((prompt, answer_tokens))[None, :-1], use_cache=False).logits
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return
        if logits.shape[1] < len(answer):  # an architecture that gives the last position's alone
            return
        logits = logits[0, -len(answer) :].float()
        # the cache and the padding add up otherwise, each time
        tolerance = 10 * self.tolerance(float(logits.abs().max()))
        gap = float((first.to(logits).log_softmax(-1) - logits[0].log_softmax(-1)).abs().max())
        if not gap <= tolerance:
            raise NotPlain(f"log-likelihoods of a prompt's next token are {gap:.2g} from those of a plain pass")
        chosen = logits[torch.arange(len(answer)), answer_tokens.to(logits.device)]
        gap = float((logits.amax(-1) - chosen).max())
        if greedy and not gap <= tolerance:
            raise NotPlain(f"a token of an answer is {gap:.2g} below the likeliest of a plain pass")

    def room_for_prompt(self, request: Instance) -> int:
        """Tokens of a generation prompt that the model sees: all but those of the longest answer."""
        result: int = self.max_length - normalize_gen_kwargs(request.args[1], self.max_gen_toks)["max_gen_toks"]
        return result

    def _model_generate(
        self, context: Tensor, max_length: int, stop: list[str], *, attention_mask: Tensor, **options: object
    ) -> Tensor:
        """Tokens (rows, longest) of a batch of prompts and their answers. lm-eval's, but each row ends by itself."""
        rows, start = context.shape
        watch = WatchLogits()
        processors: list[transformers.LogitsProcessor] = [watch]
        if self.sampling is not None:
            options = {name: value for name, value in options.items() if name not in OF_SAMPLING}
            generators = []
            for tokens, seen in zip(context.tolist(), attention_mask.tolist(), strict=True):
                prompt = tuple(token for token, is_seen in zip(tokens, seen, strict=True) if is_seen)
                generators.append(self.sampling.generator(prompt, self._asked[prompt]))
                self._asked[prompt] += 1
            processors.append(DrawTokens(self.sampling, generators))
        # transformers pads a row that is over only where it knows an end-of-text token, which not every model names
        if self.model.generation_config.eos_token_id is None:
            options["eos_token_id"] = self.tokenizer.eos_token_id
        settings = {"do_sample": False, "temperature": 0.0, **options}  # lm-eval's rule: greedy where none is set, or 0
        if not settings["do_sample"]:
            del settings["temperature"]
        try:
            generated = self.model.generate(
                input_ids=context,
                attention_mask=attention_mask,
                max_length=max_length,
                stopping_criteria=transformers.StoppingCriteriaList([StopStrings(self.tokenizer, stop, start, rows)]),
                logits_processor=transformers.LogitsProcessorList(processors),
                pad_token_id=self.tokenizer.pad_token_id,
                use_cache=True,
                **settings,
            )
        except (TypeError, ValueError) as error:  # so it says that it does not know a setting, or not this value
            problem = f"{self.model_id}: transformers cannot write answers with {options} ({first_line(error)})."
            raise CellError(problem, "correct the task's generation_kwargs.") from error
        made = int((generated[:, start:] != self.tokenizer.pad_token_id).sum())
        self.counters["generated_tokens"] += made
        self.counters["forward_tokens"] += int(attention_mask.sum()) + made
        self.counters["forward_tokens_padded"] += generated.numel()
        if watch.broken is not None and watch.broken.item():
            hint = "the model diverged or its dtype overflows: try a smaller learning rate, or dtype float32."
            raise NonFiniteScore(f"{self.model_id}: a logit is not finite while it generates.", hint)
        greedy = self.sampling is None and not options.get("do_sample")
        if watch.first is not None and len(watch.first) == rows and set(options) <= OF_SAMPLING | {"eos_token_id"}:
            self.check_answers(context, attention_mask, generated, watch.first, greedy=greedy)
        return generated


def load_language_model(
    path: str | Path, *, dtype: str, device: str, subfolder: str = "", adapter: str = "", **options: Unpack[Options]
) -> LanguageModel:
    """Load a model from a folder: safetensors, no network, no remote code.

    dtype: `float32`, `bfloat16` or `float16`; never the checkpoint's by default.
    adapter: folder of a PEFT adapter of the user's, which is added to the weights.
    device: `cpu`, `cuda`, `cuda:N`; `all`, one model over all GPUs of the job, layer by layer (accelerate).
    Raises CellError where the folder, its safetensors or its tokenizer are missing or cannot be read, where weights of
    a causal language model are missing, where a position sees those behind it, or where the model does not fit.
    """
    folder = model_folder(path, subfolder)
    folder_of_tokenizer = tokenizer_folder(Path(adapter) if adapter else None, folder, Path(path))
    name = options.setdefault("model_id", Path(path).name)
    with must_fit(name, "its weights to load", f"{MORE_MEMORY}."):
        with loading.names_what_fails(str(path), "causal"):
            tokenizer = tokenizing.load_tokenizer(folder_of_tokenizer, str(path), weights=folder)
        placing = {"dtype": getattr(torch, dtype), "device_map": "auto" if device == "all" else None}
        loader = transformers.AutoModelForCausalLM
        model, missing, unread = loading.load_weights(loader, folder, str(path), "causal", **placing)
        if missing:  # transformers draws them at random, anew in each process, and only warns
            raise CellError(
                f"{path}: its weights lack {len(missing)} of a causal language model's tensors "
                f"({', '.join(missing[:3])}){f'; they have {unread[0]}, which it does not know' if unread else ''}.",
                "is it a classifier, a reward model, a headless backbone, or saved with a prefix (torch.compile, "
                "PEFT)? Save it with save_pretrained, with its language modelling head.",
            )
        loading.keep_saved_head(model)
        if device == "all" and torch.cuda.is_available():
            loading.check_on_gpus(str(path), getattr(model, "hf_device_map", {}))  # absent where all is in one place
        if tokenizer.eos_token_id is None:
            problem = f"{path}: the tokenizer has no end-of-text token."
            raise CellError(problem, "set eos_token in tokenizer_config.json.")
        if device != "all":
            model.to(device)
        if adapter:
            loading.put_on(model, adapter, name)
    lm = LanguageModel(model, tokenizer, **options)
    if not adapter:
        loading.check_saved_ends(lm.base, folder, str(path))
    if not loading.takes_rows(lm.base, str(path)):
        lm.batch_size_per_gpu, lm.alone = 1, True
    with lm.counters.phase("load"):
        lm.counters["model_loads"] += 1
    return lm
