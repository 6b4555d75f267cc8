"""lm-eval's HFLM with another way to compute log-likelihoods, and its check against plain passes."""

import contextlib
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from transformers.modeling_outputs import CausalLMOutputWithPast

from lm_validity.cells.models import passes
from lm_validity.cells.models.loading import keep_four_bits, keep_saved_head
from lm_validity.cells.models.passes import Request, Scores, Tree
from lm_validity.errors import CellError

# ----------------------------------------------------------------------------------------------------------------------
# lm-eval's log-likelihoods, several times faster: a question's context is computed once for all its choices, and the
# vocabulary only where something is scored.
#
# `SharedContextLM` is lm-eval's HFLM with another `_loglikelihood_tokens`, registered as the model `lm-validity`, so
# that `lm-validity lm-eval run --model lm-validity --model_args pretrained=…` is lm-eval's own command line with this
# scorer. Which way is exact for a model is not guessed from its name: before its first use each way is held against
# plain passes of this very model, and what disagrees is not used.

log = logging.getLogger(__name__)

# lm-eval: HFLM as it is; rows: each choice by itself; packed, cached: shared contexts, one way always; auto: the faster
Way = Literal["auto", "packed", "cached", "rows", "lm-eval"]
MAX_MASK = 4096**2  # pairs of tokens in a dense mask; trees beyond it are not packed
MAX_BATCH = 64  # rows per batch where lm-eval's command line says batch_size=auto, halved as memory needs

# how configurations call the number of tokens that a layer's attention reaches back, or chooses from
_WINDOWS = ["sliding_window", "sliding_window_size", "attention_chunk_size", "attention_window_size", "window_size"]
_WINDOWS += ["keep_window_size", "index_topk"]
_IN_PARTS = "rows in parts"
_PROBE_SEED, _PROBE_CONTEXTS, _PROBE_CHOICES = 20250729, (3, 11, 7), 4

# What attention costs a multiplication, in units of the linear layers: under a dense mask, and causal without one.
# A second pass costs as much as PASS_COST tokens per question. CPU: fitted to the table of packed, cached and rows in
# docs/explanation/lab_record.md; CUDA: not measured, set so that short contexts are packed.
DENSE_COST = 0.7
CAUSAL_COST = {"cpu": 0.3, "cuda": 0.15}
PASS_COST = {"cpu": 48, "cuda": 256}


def begins(tokens: Sequence[int], start: Sequence[int]) -> bool:
    """Whether the tokens begin with those of `start`, and go on."""
    return len(tokens) > len(start) and list(tokens[: len(start)]) == list(start)


class Counters(Counter[str]):
    """Counts since the last cell was committed.

    model_loads: times weights were read.
    evaluate_passes: times all documents of a split were scored.
    forward_tokens, forward_tokens_padded: tokens that scoring put through the model; padded ones include the real.
    shared_tokens: tokens that scoring did not compute again, because a choice shares them with another.
    generated_tokens: tokens of generated answers. training_tokens: of forward passes in training.
    optimizer_steps: taken.
    truncated_requests: requests longer than the model, which lost context on the left.
    oom_halvings: times a batch was halved because memory ran out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_phase: dict[str, Counter[str]] = defaultdict(Counter)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is counted inside the block is also booked under the phase `name`."""
        totals_before = Counter(self)
        try:
            yield
        finally:
            self.by_phase[name].update(Counter(self) - totals_before)


class NotPlain(Exception):
    """What a batch gave is not what a plain pass over one text gives."""


class EncodedRequest(NamedTuple):
    """Token ids of a request's context, and of the continuation that is scored behind it."""

    context: list[int]
    continuation: list[int]


Answer = tuple[float, bool]  # log-likelihood in nats, and whether greedy decoding gives the continuation


@register_model("lm-validity")
class SharedContextLM(HFLM):
    """HFLM with shared contexts. `scorer` says which way (see `Way`); all other arguments are HFLM's.

    Truncation, BOS, batching by length, `is_greedy` and the cache hook are HFLM's. Log-probabilities are float32.
    A batch that does not fit into memory is halved, and counted; for the rest of the process no batch has more tokens.
    """

    logits_cache: bool  # lm-eval's, whose types are not known

    def __init__(self, *arguments: object, scorer: Way = "auto", **options: object):
        if scorer not in get_args(Way):
            raise CellError(f"scorer {scorer!r} is not known.", f"use one of {', '.join(get_args(Way))}.")
        super().__init__(*arguments, **options)
        self.scorer: Way = scorer
        self.counters = Counters()
        self._allowed: frozenset[str] | None = None  # found by the first probe
        self._splits = False  # whether the head can be computed separately; found with it
        self._token_limit: int | None = None  # tokens of a batch, padding included; set when memory ran out
        self._last_context: tuple[str, list[int]] | None = None
        self.alone = False  # whether texts may not share a forward pass; found by the check
        self.checks = passes.SelfCheck()

    def _create_model(self, *arguments: object, **options: object) -> None:
        super()._create_model(*arguments, **options)
        keep_four_bits(self.model)
        keep_saved_head(self.model)  # HFLM ties weights next

    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = True, override_bs: int | None = None
    ) -> list[Answer]:
        if not requests:
            return []
        self.count_truncated(len(context) + len(text) > self.max_length + 1 for _, context, text in requests)
        if self.scorer == "lm-eval" or self.backend != "causal":
            # lm-eval runs rows of equal tokens once, wherever they are cut into context and continuation, and gives all
            # of them the sum of the first one's predicted tokens
            cuts = {((*context, *text[:-1]), len(context)) for _, context, text in requests}
            shared, self.logits_cache = self.logits_cache, self.logits_cache and len(cuts) == len(dict(cuts))
            try:
                return [*super()._loglikelihood_tokens(requests, disable_tqdm=True, override_bs=override_bs)]
            finally:
                self.logits_cache = shared
        for key, context, continuation in requests:
            if not context or not continuation or len(continuation) > self.max_length:
                problem = f"{str(key)[:80]!r}: {len(context)} context and {len(continuation)} continuation tokens"
                hint = "every choice needs a token, and must fit into the model."
                raise CellError(f"{problem}, the model takes {self.max_length}.", hint)
        if self.alone or not self.narrows_head():
            answers = []
            for request in requests:
                answers.append(passes.plain(self._forward, request, self.max_length, self.device)[0])
                self.counters["forward_tokens"] += self._length(request)
                self.counters["forward_tokens_padded"] += self._length(request)
            return answers
        return self._score_by_way(requests, override_bs)

    def _score_by_way(self, requests: list[Request], override_bs: int | None) -> list[Answer]:
        """The answers of each way, which is not used again where it does not hold: shared contexts become rows then,
        rows plain passes of one text."""
        asked_rows = self.batch_size if override_bs is None else override_bs
        rows = MAX_BATCH if asked_rows == "auto" else max(1, int(asked_rows))
        scores: list[Scores] = []
        by_way: dict[str, list[list[Tree]]] = {}
        for way, members in self._by_way(passes.plant(requests, self.max_length)).items():
            for batch in self._batches(members, rows):
                scores += self._score(way, batch)
                by_way.setdefault(way, []).append(batch)
        by_number = passes.read(scores)
        answers = [by_number[number] for number in range(len(requests))]
        for (key, _, _), answer in zip(requests, answers, strict=True):
            if key is not None:  # windows of a document have none
                self.cache_hook.add_partial("loglikelihood", key, answer)
        for way, scored in by_way.items():
            if not self._holds(way, scored, requests, answers):
                if way == "rows":
                    self.alone = True
                else:
                    self._allowed = (self._allowed or frozenset()) - {way}
                numbers = sorted(number for batch in scored for tree in batch for number, _, _ in tree.requests)
                again = self._loglikelihood_tokens([requests[number] for number in numbers], override_bs=override_bs)
                for number, answer in zip(numbers, again, strict=True):
                    answers[number] = answer
        return answers

    # ---- the check ----------------------------------------------------------------------------------------------

    def _holds(self, way: str, scored: list[list[Tree]], requests: list[Request], answers: list[Answer]) -> bool:
        """Whether some of these very requests have the value that a plain pass over each alone gives: those that a
        fault would show in, which are the longest row that has padding behind it, the longest, one of the question with
        most choices, and the row with most padding. What does not fit into memory by itself, or is no number, says
        nothing."""
        trees = [(tree, max(map(len, batch)) - len(tree)) for batch in scored for tree in batch]
        padded = [(tree, padding) for tree, padding in trees if padding] or trees
        sizes = {
            "length with padding": [(len(tree), tree) for tree, _ in padded],
            "length": [(len(tree), tree) for tree, _ in trees],
            "choices": [(len(tree.requests), tree) for tree, _ in trees],
            "padding": [(padding, tree) for tree, padding in padded],
        }
        telling = []
        for kind, candidates in sizes.items():
            size, tree = max(candidates, key=lambda candidate: candidate[0])
            number = max(tree.requests, key=lambda request: len(request[2]))[0]
            telling.append((kind, size, number, self._length(requests[number])))
        tokens = sum(len(tree) for tree, _ in trees)
        return self.checks.holds(
            way,
            telling,
            tokens,
            lambda number, length: self._is_plain(way, requests[number], answers[number][0], length),
        )

    def _length(self, request: Request) -> int:
        """Tokens of a row that the model sees of a request by itself."""
        length: int = min(len(request[1]) + len(request[2]) - 1, self.max_length)
        return length

    def _is_plain(self, way: str, request: Request, answer: float, length: int) -> bool:
        try:
            (expected, _), largest = passes.plain(self._forward, request, self.max_length, self.device)
        except RuntimeError as error:
            if not passes.is_out_of_memory(error):
                raise
            return True
        if not np.isfinite(expected):
            return True
        difference = abs(answer - expected)
        if difference <= passes.allowed_difference(len(request[2]), expected, self.tolerance(largest)):
            return True
        finding = "scorer: %s differs by %.2g nats from a plain pass on a request of %d tokens and is given up"
        log.warning(finding, way, difference, length)
        return False

    def _batches(self, trees: Sequence[Tree], rows: int) -> Iterator[list[Tree]]:
        """Batches of trees that have one position encoding, so that a text's numbers do not depend on its batch."""
        for is_long in (False, True):
            members = [tree for tree in trees if self.outgrows(tree.longest) == is_long]
            yield from passes.batches(members, rows)

    @cached_property
    def longrope_limit(self) -> float:
        """The length in tokens that the model was first made for, beyond which longrope has other frequencies."""
        config, name = self.model.config.get_text_config(), "original_max_position_embeddings"
        parameters = getattr(config, "rope_parameters", None) or {}
        for table in (parameters, *parameters.values()):
            if isinstance(table, dict) and str(table.get("rope_type")) == "longrope":
                return float(table.get(name) or getattr(config, name, None) or config.max_position_embeddings)
        return math.inf

    def outgrows(self, length: int) -> bool:
        """Whether a text of so many tokens has another position encoding than shorter ones."""
        return length > self.longrope_limit

    def _encode_pair(self, context: str, continuation: str) -> EncodedRequest:
        """HFLM's, with the context tokenised once for choices that follow each other. White space at the context's end
        goes to the continuation.

        HFLM takes what is behind as many tokens as the context has by itself. Where a token of the whole text reaches
        over the border, that loses a part of the continuation, or all. Then the white space stays with the context,
        if that has the tokens of the whole; else the continuation's tokens are those that it has by itself.
        """
        if self.backend != "causal":
            return EncodedRequest(*super()._encode_pair(context, continuation))
        stripped = context.rstrip()
        if self._last_context is None or self._last_context[0] != stripped:
            self._last_context = (stripped, self.tok_encode(stripped))
        tokens = self._last_context[1]
        tokens_of_both = self.tok_encode(context + continuation)
        if begins(tokens_of_both, tokens):
            return EncodedRequest(list(tokens), tokens_of_both[len(tokens) :])
        if stripped != context and begins(tokens_of_both, longer := self.tok_encode(context)):
            return EncodedRequest(longer, tokens_of_both[len(longer) :])
        apart = self.tok_encode(context[len(stripped) :] + continuation, add_special_tokens=False)
        if self.tok_decode([*tokens, *apart]) != self.tok_decode(tokens_of_both):
            problem = f"{continuation!r} cannot be told apart from what is before it: the tokenizer merges both."
            raise CellError(problem, "put a blank between question and answers (target_delimiter).")
        return EncodedRequest(list(tokens), apart)

    def count_truncated(self, requests: Iterable[bool]) -> None:
        """Count the requests (whether each is longer than the model) that lose context on the left."""
        lost = [*requests]
        self.counters["truncated_requests"] += sum(lost)
        if any(lost):
            log.warning("%d of %d requests lose context on the left", sum(lost), len(lost))

    def _model_call(self, inps: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        self.counters["forward_tokens_padded"] += inps.numel()
        return super()._model_call(inps, *arguments, **options)

    def narrows_head(self) -> bool:
        """Whether this model can compute logits of chosen positions alone (`narrowed_head`), found by trying."""
        if self.scorer == "lm-eval" or self.backend != "causal":
            return False
        return "rows" in (self._probe() if self._allowed is None else self._allowed)

    def head_part(self) -> int | None:
        """Positions whose logits are computed at a time, or None where the head cannot be computed separately."""
        return passes.part_positions(self.model) if self.narrows_head() and self._splits else None

    def take_account(self) -> dict[str, object]:
        """For a sidecar: what was counted since it was last taken, and how texts are scored."""
        counters, self.counters = self.counters, Counters()
        phases = {name: dict(counts) for name, counts in sorted(counters.by_phase.items()) if counts}
        totals: dict[str, object] = {**counters, "by_phase": phases}
        return {"counters": totals, "eval_batch_size": self.batch_size, **self.describe_scorer()}

    def describe_scorer(self) -> dict[str, object]:
        """For a sidecar, how texts are scored: the way asked for, those that are exact on this model (None before the
        first use), and the tokens of a batch that memory allowed, where they were fewer than asked for."""
        ways = None if self._allowed is None else sorted(self._allowed)
        return {"scorer": self.scorer, "exact_ways": ways, "token_limit": self._token_limit}

    # ---- which way ----------------------------------------------------------------------------------------------

    def _by_way(self, trees: Sequence[Tree]) -> dict[str, list[Tree]]:
        """Trees by the way they are scored; chains go as rows."""
        by_way: dict[str, list[Tree]] = {"packed": [], "cached": [], "rows": []}
        for tree in trees:
            way = self._way(tree)
            if way == "rows":
                chains = tree.chains(unshared=self.outgrows(tree.longest))
                self.counters["forward_tokens"] += sum(map(len, chains))
                by_way["rows"] += chains
            else:
                self.counters["forward_tokens"] += len(tree)
                self.counters["shared_tokens"] += sum(tree.row_lengths) - len(tree)
                by_way[way].append(tree)
        return by_way

    def _way(self, tree: Tree) -> str:
        if tree.is_chain or len(tree) > self._window or self.outgrows(tree.longest):
            return "rows"
        branches = len(tree) - tree.context + 1
        dense = {"packed": len(tree) ** 2, "cached": branches * len(tree) if tree.context > 1 else MAX_MASK + 1}
        exact = [way for way in dense if way in (self._allowed or ()) and self.scorer in ("auto", way)]
        possible = [way for way in exact if dense[way] <= MAX_MASK]
        if self.scorer == "auto":
            possible = ["rows", *possible]
        return min(possible, key=lambda way: self._cost(way, tree), default="rows")

    def _cost(self, way: str, tree: Tree) -> float:
        """Cost in units of one token through the linear layers, about 12 d^2 multiplications per layer; a pair of
        tokens in attention costs 2 d, so 1 / (6 d) of it."""
        width = 6 * getattr(self.model.config.get_text_config(), "hidden_size", 1024)
        kind = self.device.type if self.device.type in PASS_COST else "cuda"
        dense, causal = DENSE_COST / width, CAUSAL_COST[kind] / width
        size, trunk = len(tree), tree.context - 1
        if way == "packed":
            return size + dense * size**2
        if way == "cached":
            branches = size - trunk
            return trunk + causal * trunk**2 + branches + dense * branches * size + PASS_COST[kind]
        return sum(length + causal * length**2 for length in tree.row_lengths)

    @property
    def _window(self) -> int:
        """Most tokens for which attention is full in every layer; a larger tree's one mask would not fit all layers."""
        config = self.model.config.get_text_config()
        windows = [getattr(config, name, None) for name in _WINDOWS]
        return min([window for window in windows if isinstance(window, int) and window > 0], default=self.max_length)

    # ---- doing it -----------------------------------------------------------------------------------------------

    def _forward(self, **inputs: object) -> CausalLMOutputWithPast:
        with (
            passes.never_packed(),
            torch.no_grad(),
            torch.autocast(
                device_type=self.device.type,
                dtype=self.mixed_precision_dtype,
                enabled=self.mixed_precision_dtype is not None,
            ),
        ):
            return self.model(**inputs)

    def _run(self, way: str, batch: Sequence[Tree], part: int | None = None) -> Scores:
        return passes.score(way, self.model, self._forward, batch, self.device, part)

    def _score(self, way: str, batch: list[Tree]) -> list[Scores]:
        """Score one batch, in halves where memory runs out; a tree alone goes as rows then."""
        longest = max(map(len, batch))
        limit = max(1, self._token_limit // longest) if self._token_limit else len(batch)
        if len(batch) > limit:
            parts = (batch[start : start + limit] for start in range(0, len(batch), limit))
            return [scores for part in parts for scores in self._score(way, part)]
        try:
            scores = self._run(way, batch, self.head_part() if self._splits else None)
        except RuntimeError as error:
            if (len(batch) == 1 and way == "rows") or not passes.is_out_of_memory(error):
                raise
            scores = None
        if scores is None:  # outside `except`, whose traceback holds the tensors that did not fit
            torch.cuda.empty_cache()
            self.counters["oom_halvings"] += 1
            if len(batch) == 1:
                return self._score("rows", batch[0].chains())
            self._token_limit = len(batch) * longest // 2
            return self._score(way, batch)
        self.counters["forward_tokens_padded"] += scores.padded
        return [scores]

    # ---- what is exact ------------------------------------------------------------------------------------------

    def _probe(self) -> frozenset[str]:
        """The ways that give a plain pass's numbers on this model, by trying them on a few random tokens.

        Kept for the process, unless the numbers are not finite: an adapter that diverged says nothing about the model.
        """
        random = np.random.default_rng(_PROBE_SEED)
        vocabulary = min(self.model.config.get_text_config().vocab_size, len(self.tokenizer))
        requests: list[Request] = []
        for length in _PROBE_CONTEXTS:
            context = random.integers(vocabulary, size=length).tolist()
            for choice in range(_PROBE_CHOICES):
                requests.append((None, context, random.integers(vocabulary, size=1 + choice).tolist()))
        counters_before, self.counters = self.counters, Counters()
        try:
            plain = [passes.plain(self._forward, request, self.max_length, self.device) for request in requests]
            if not np.isfinite([score for (score, _), _ in plain]).all():
                log.warning("scorer: log-likelihoods of this model are not numbers")
                return frozenset()
            trees = passes.plant(requests, self.max_length)
            chains = [chain for tree in trees for chain in tree.chains()]
            attempts = {
                "rows": partial(self._run, "rows", chains),
                _IN_PARTS: partial(self._run, "rows", chains, _PROBE_CHOICES),
            }
            if self.model.config._attn_implementation in ("sdpa", "eager"):  # others take no mask of ours
                attempts |= {way: partial(self._run, way, trees) for way in ("packed", "cached")}
            exact = frozenset(way for way, attempt in attempts.items() if self._agrees(way, attempt, requests, plain))
        finally:
            self.counters = counters_before
        self._allowed, self._splits = exact - {_IN_PARTS}, _IN_PARTS in exact
        return exact - {_IN_PARTS}

    def tolerance(self, largest: float) -> float:
        """Largest difference a token, where the largest logit is of this size."""
        return passes.tolerance(self.model.dtype, largest)

    def _agrees(
        self, way: str, attempt: Callable[[], Scores], requests: list[Request], plain: list[passes.PlainScore]
    ) -> bool:
        try:
            answers = passes.read([attempt()])
        except Exception as error:  # whatever an architecture raises at a mask it does not know
            if isinstance(error, RuntimeError) and passes.is_out_of_memory(error):
                raise
            log.info("scorer: %s is not possible with this model (%s: %s)", way, type(error).__name__, error)
            return False
        tolerance = self.tolerance(max(largest for _, largest in plain))
        for number, ((expected, _), _) in enumerate(plain):
            difference = abs(answers[number][0] - expected)
            if not difference <= passes.allowed_difference(len(requests[number][2]), expected, tolerance):
                cause = "" if self.model.dtype in passes.TOLERANCE else "; float32 would allow it if this is rounding"
                finding = "scorer: %s differs by %.2g nats on this model and is not used: slower, not wrong%s"
                log.warning(finding, way, difference, cause)
                return False
        return True
