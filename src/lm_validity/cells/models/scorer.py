"""lm-eval's log-likelihoods, several times faster: a question's context is computed once for all its choices, and the
vocabulary only where something is scored.

`SharedContextLM` is lm-eval's HFLM with another `_loglikelihood_tokens`, registered as the model `lm-validity`, so that
`lm-validity lm-eval run --model lm-validity --model_args pretrained=…` is lm-eval's own command line with this scorer.
Which way is exact for a model is not guessed from its name: before its first use each way is held against HFLM's own
numbers on this very model, and what disagrees is not used.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM

from lm_validity.cells.models.counters import Counters
from lm_validity.cells.models.head import largest_logit, part_positions
from lm_validity.cells.models.host_reads import never_packed
from lm_validity.cells.models.memory import is_out_of_memory
from lm_validity.cells.models.position_encoding import PositionEncoding
from lm_validity.cells.models.scorer_forward import Scores, read, score_cached, score_packed, score_rows
from lm_validity.cells.models.scorer_plan import Request, Tree, batches, count_row_tokens, plant
from lm_validity.errors import CellError

log = logging.getLogger(__name__)

# lm-eval: HFLM as it is; rows: each choice by itself; packed, cached: shared contexts, one way always; auto: the faster
Way = Literal["auto", "packed", "cached", "rows", "lm-eval"]
_METHODS = {"rows": score_rows, "packed": score_packed, "cached": score_cached}
MAX_MASK = 4096**2  # pairs of tokens in a dense mask; trees beyond it are not packed
MAX_BATCH = 64  # rows per batch where lm-eval's command line says batch_size=auto, halved as memory needs

# Largest difference from HFLM a token: rounding in float32; elsewhere what another order of sums gives at 8 bits
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
HALF_TOLERANCE = 0.1
# how configurations call the number of tokens that a layer's attention reaches back, or chooses from
_WINDOWS: tuple[str, ...] = (
    "sliding_window",
    "sliding_window_size",
    "attention_chunk_size",
    "attention_window_size",
    "window_size",
)
_WINDOWS += ("index_topk",)
_IN_PARTS = "rows in parts"
_PROBE_SEED, _PROBE_CONTEXTS, _PROBE_CHOICES = 20250729, (3, 11, 7), 4

# What attention costs a multiplication, in units of the linear layers: under a dense mask, and causal without one.
# A second pass costs as much as PASS_COST tokens per question. CPU: fitted to `benchmarks/scoring.py --ways` (docs/
# explanation/lab_record.md); CUDA: not measured, set so that short contexts are packed.
DENSE_COST = {"cpu": 0.7, "cuda": 0.7}
CAUSAL_COST = {"cpu": 0.3, "cuda": 0.15}
PASS_COST = {"cpu": 48, "cuda": 256}


@register_model("lm-validity")
class SharedContextLM(HFLM):
    """HFLM with shared contexts. `scorer` says which way (see `Way`); all other arguments are HFLM's.

    Truncation, BOS, batching by length, `is_greedy` and the cache hook are HFLM's. Log-probabilities are float32.
    A batch that does not fit into memory is halved, and counted; for the rest of the process no batch has more tokens.
    """

    def __init__(self, *arguments: Any, scorer: Way = "auto", **options: Any):
        if scorer not in get_args(Way):
            raise CellError(f"scorer {scorer!r} is not known.", f"use one of {', '.join(get_args(Way))}.")
        super().__init__(*arguments, **options)
        self.scorer: Way = scorer
        self.counters = Counters()
        self._allowed: frozenset[str] | None = None  # found by the first probe
        self._splits = False  # whether the head can be computed separately; found with it
        self._token_limit: int | None = None  # tokens of a batch, padding included; set when memory ran out
        self._last_context: tuple[str, list[int]] | None = None

    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = True, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        if not requests:
            return []
        rows = self._rows(override_bs)
        if self.scorer == "lm-eval" or self.backend != "causal":
            return self._score_as_lm_eval(requests, override_bs)
        allowed = self._probe() if self._allowed is None else self._allowed
        if "rows" not in allowed:
            return self._score_as_lm_eval(requests, override_bs)
        self._check_lengths(requests)
        trees, truncated = plant(requests, self.max_length)
        self.count_truncated(truncated)
        scores: list[Scores] = []
        for way, members in self._by_way(trees).items():
            for batch in self._batches(members, rows):
                scores += self._score(way, batch)
        found = read(scores)
        answers = [found[number] for number in range(len(requests))]
        for (key, _, _), answer in zip(requests, answers, strict=True):
            if key is not None:  # windows of a document have none
                self.cache_hook.add_partial("loglikelihood", key, answer)
        return answers

    def _batches(self, trees: Sequence[Tree], rows: int) -> Iterator[list[Tree]]:
        """Batches of trees that have one position encoding, whoever they are with."""
        alike: dict[int, list[Tree]] = {}
        for tree in trees:
            alike.setdefault(self.position_encoding.of(tree.longest), []).append(tree)
        for members in alike.values():
            for batch in batches(members, rows):
                self.position_encoding.forget()
                yield batch

    @cached_property
    def position_encoding(self) -> PositionEncoding:
        """Which texts may share a forward pass."""
        return PositionEncoding(self.model)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """HFLM's, with the context tokenised once for choices that follow each other."""
        if self.backend != "causal":
            return super()._encode_pair(context, continuation)
        kept = context.rstrip()
        if self._last_context is None or self._last_context[0] != kept:
            self._last_context = (kept, self.tok_encode(kept))
        tokens = self._last_context[1]
        whole = self.tok_encode(context + continuation)
        return list(tokens), whole[len(tokens) :]

    def _score_as_lm_eval(self, requests: list[Request], override_bs: int | None) -> list[tuple[float, bool]]:
        # HFLM runs one row for all continuations that differ in their last token only
        rows = {(*context, *continuation[:-1]) for _, context, continuation in requests}
        self.counters.forward_tokens += sum(min(len(row), self.max_length) for row in rows)
        lengths = (len(context) + len(continuation) for _, context, continuation in requests)
        self.count_truncated(length > self.max_length + 1 for length in lengths)
        if self.scorer == "lm-eval" or not self.position_encoding.varies:
            return super()._loglikelihood_tokens(requests, disable_tqdm=True, override_bs=override_bs)
        alike: dict[int, list[int]] = {}
        for number, (_, context, continuation) in enumerate(requests):
            length = min(len(context) + len(continuation) - 1, self.max_length)
            alike.setdefault(self.position_encoding.of(length), []).append(number)
        found: dict[int, tuple[float, bool]] = {}
        for numbers in alike.values():
            self.position_encoding.forget()
            these = [requests[number] for number in numbers]
            answers = super()._loglikelihood_tokens(these, disable_tqdm=True, override_bs=override_bs)
            found |= zip(numbers, answers, strict=True)
        return [found[number] for number in range(len(requests))]

    def count_truncated(self, requests: Iterable[bool]) -> None:
        """Count the requests (whether each is longer than the model) that lose context on the left."""
        lost = [*requests]
        self.counters.truncated_requests += sum(lost)
        if any(lost):
            log.warning("%d of %d requests lose context on the left", sum(lost), len(lost))

    def _model_call(
        self, inps: torch.Tensor, attn_mask: torch.Tensor | None = None, labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        self.counters.forward_tokens_padded += inps.numel()
        self.counters.scored_rows += inps.numel()
        return super()._model_call(inps, attn_mask=attn_mask, labels=labels)

    def _rows(self, override: int | None) -> int:
        asked = override if override is not None else self.batch_size
        return MAX_BATCH if asked == "auto" else max(1, int(asked))

    def _check_lengths(self, requests: Sequence[Request]) -> None:
        for key, context, continuation in requests:
            if not context or not continuation or len(continuation) > self.max_length:
                raise CellError(
                    f"a request has {len(context)} context and {len(continuation)} continuation tokens, "
                    f"the model takes {self.max_length}: {str(key)[:80]!r}.",
                    "every choice needs a token, and must fit into the model.",
                )

    def narrows_head(self) -> bool:
        """Whether this model can compute logits of chosen positions alone (`narrowed_head`), found by trying."""
        if self.scorer == "lm-eval":
            return False
        return "rows" in (self._probe() if self._allowed is None else self._allowed)

    def head_part(self) -> int | None:
        """Positions whose logits are computed at a time, or None where the head cannot be computed separately."""
        return part_positions(self.model) if self.narrows_head() and self._splits else None

    def describe_scorer(self) -> dict[str, Any]:
        """For a sidecar: the way asked for, those that are exact on this model (null before the first use), and the
        tokens of a batch that memory allowed, where they were fewer than asked for."""
        found = None if self._allowed is None else sorted(self._allowed)
        return {"scorer": self.scorer, "exact_ways": found, "token_limit": self._token_limit}

    # ---- which way ----------------------------------------------------------------------------------------------

    def _by_way(self, trees: Sequence[Tree]) -> dict[str, list[Tree]]:
        """Trees by the way they are scored; chains go as rows."""
        found: dict[str, list[Tree]] = {"packed": [], "cached": [], "rows": []}
        for tree in trees:
            way = self._way(tree)
            if way == "rows":
                chains = tree.singles() if self.position_encoding.of(tree.longest) else tree.chains()
                self.counters.forward_tokens += sum(map(len, chains))
                found["rows"] += chains
            else:
                self.counters.forward_tokens += len(tree)
                self.counters.shared_tokens += count_row_tokens([tree]) - len(tree)
                found[way].append(tree)
        return found

    def _way(self, tree: Tree) -> str:
        if (
            tree.is_chain
            or self.scorer == "rows"
            or len(tree) > self._window
            or self.position_encoding.of(tree.longest)
        ):
            return "rows"
        wanted = ("packed", "cached") if self.scorer == "auto" else (self.scorer,)
        branches = len(tree) - tree.context + 1
        dense = {"packed": len(tree) ** 2, "cached": branches * len(tree) if tree.context > 1 else MAX_MASK + 1}
        possible = [way for way in wanted if way in (self._allowed or ()) and dense[way] <= MAX_MASK]
        if self.scorer != "auto":
            return possible[0] if possible else "rows"
        return min(("rows", *possible), key=lambda way: self._cost(way, tree))

    def _cost(self, way: str, tree: Tree) -> float:
        """Cost in units of one token through the linear layers, about 12 d^2 multiplications per layer; a pair of
        tokens in attention costs 2 d, so 1 / (6 d) of it."""
        width = 6 * self._hidden_size
        kind = self.device.type if self.device.type in PASS_COST else "cuda"
        dense, causal = DENSE_COST[kind] / width, CAUSAL_COST[kind] / width
        size, trunk = len(tree), tree.context - 1
        if way == "packed":
            return size + dense * size**2
        if way == "cached":
            branches = size - trunk
            return trunk + causal * trunk**2 + branches + dense * branches * size + PASS_COST[kind]
        lengths = [tree.depths[end] + 1 for end in {path[-1] for _, path, _ in tree.requests}]
        return sum(length + causal * length**2 for length in lengths)

    @property
    def _hidden_size(self) -> int:
        config = self.model.config.get_text_config()
        return getattr(config, "hidden_size", 1024)

    @property
    def _window(self) -> int:
        """Most tokens for which attention is full in every layer; a larger tree's one mask would not fit all layers."""
        config = self.model.config.get_text_config()
        windows = [getattr(config, name, None) for name in _WINDOWS]
        return min([window for window in windows if isinstance(window, int) and window > 0], default=self.max_length)

    # ---- doing it -----------------------------------------------------------------------------------------------

    def _forward(self, **inputs: Any) -> Any:
        with (
            never_packed(),
            torch.no_grad(),
            torch.autocast(
                device_type=self.device.type,
                dtype=self.mixed_precision_dtype,
                enabled=self.mixed_precision_dtype is not None,
            ),
        ):
            return self.model(**inputs)

    def _run(self, way: str, batch: Sequence[Tree]) -> Scores:
        part = {"part": self.head_part()} if self._splits else {}
        return _METHODS[way](self.model, self._forward, batch, self.device, **part)

    def _score(self, way: str, batch: list[Tree]) -> list[Scores]:
        """Score one batch, in halves where memory runs out; a tree alone goes as rows then."""
        longest = max(map(len, batch))
        if self._token_limit and len(batch) > max(1, self._token_limit // longest):
            return self._in_parts(way, batch, max(1, self._token_limit // longest))
        try:
            scores = self._run(way, batch)
        except RuntimeError as error:
            if (len(batch) == 1 and way == "rows") or not is_out_of_memory(error):
                raise
            scores = None
        if scores is None:  # outside `except`, whose traceback holds the tensors that did not fit
            torch.cuda.empty_cache()
            self.counters.oom_halvings += 1
            if len(batch) == 1:
                return self._score("rows", batch[0].chains())
            self._token_limit = len(batch) * longest // 2
            return self._in_parts(way, batch, len(batch) // 2)
        self.counters.forward_tokens_padded += scores.padded
        self.counters.scored_rows += scores.rows
        return [scores]

    def _in_parts(self, way: str, batch: list[Tree], size: int) -> list[Scores]:
        found: list[Scores] = []
        for start in range(0, len(batch), size):
            found += self._score(way, batch[start : start + size])
        return found

    # ---- what is exact ------------------------------------------------------------------------------------------

    def _probe(self) -> frozenset[str]:
        """The ways that give HFLM's numbers on this model, by trying them on a few random tokens.

        Kept for the process, unless the numbers are not finite: an adapter that diverged says nothing about the model.
        """
        requests = self._probe_requests()
        before, self.counters = self.counters, Counters()
        try:
            with largest_logit(self.model) as largest:
                expected = [value for value, _ in super()._loglikelihood_tokens(requests, disable_tqdm=True)]
            tolerance = self._tolerance(largest())
            trees, _ = plant(requests, self.max_length)
            chains = [chain for tree in trees for chain in tree.chains()]
            attempts: dict[str, Callable[[], Scores]] = {
                "rows": partial(self._run, "rows", chains),
                _IN_PARTS: partial(score_rows, self.model, self._forward, chains, self.device, part=_PROBE_CHOICES),
            }
            if self.model.config._attn_implementation in ("sdpa", "eager"):  # others take no mask of ours
                attempts |= {way: partial(self._run, way, trees) for way in ("packed", "cached")}
            found = frozenset(
                way for way, attempt in attempts.items() if self._agrees(way, attempt, requests, expected, tolerance)
            )
        finally:
            self.counters = before
        if np.isfinite(expected).all():
            self._allowed, self._splits = found - {_IN_PARTS}, _IN_PARTS in found
        return found - {_IN_PARTS}

    def _probe_requests(self) -> list[Request]:
        random = np.random.default_rng(_PROBE_SEED)
        vocabulary = min(self.model.config.get_text_config().vocab_size, len(self.tokenizer))
        requests: list[Request] = []
        for length in _PROBE_CONTEXTS:
            context = random.integers(vocabulary, size=length).tolist()
            for choice in range(_PROBE_CHOICES):
                requests.append((None, context, random.integers(vocabulary, size=1 + choice).tolist()))
        return requests

    def _tolerance(self, largest: float) -> float:
        """Largest difference a token. At 16 bits at least a step between neighbouring numbers of the logits' size:
        GPT-2's are about -65, where bfloat16 moves by half a nat."""
        if self.model.dtype in TOLERANCE:
            return TOLERANCE[self.model.dtype]
        step = torch.finfo(self.model.dtype).eps * 2.0 ** np.floor(np.log2(max(largest, 1.0)))
        return max(HALF_TOLERANCE, float(step))

    def _agrees(
        self,
        way: str,
        attempt: Callable[[], Scores],
        requests: list[Request],
        expected: list[float],
        tolerance: float,
    ) -> bool:
        try:
            found = read([attempt()])
        except Exception as error:  # whatever an architecture raises at a mask it does not know
            if isinstance(error, RuntimeError) and is_out_of_memory(error):
                raise
            log.info("scorer: %s is not possible with this model (%s: %s)", way, type(error).__name__, error)
            return False
        for number, (_, _, continuation) in enumerate(requests):
            difference = abs(found[number][0] - expected[number])
            if not difference <= tolerance * len(continuation) * max(1.0, abs(expected[number]) / 100):
                log.warning(
                    "scorer: %s differs by %.2g nats on this model and is not used: slower, not wrong%s",
                    way,
                    difference,
                    "" if self.model.dtype in TOLERANCE else "; dtype float32 would allow it if this is rounding",
                )
                return False
        return True
