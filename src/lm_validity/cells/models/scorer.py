"""lm-eval's HFLM with another way to compute log-likelihoods, and its check against HFLM."""

import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from transformers import masking_utils

from lm_validity.cells.models.head import States, keep_saved_head, largest_logit, narrowed_head, part_positions
from lm_validity.cells.models.prefetch import position_switch
from lm_validity.errors import CellError, first_line

# ----------------------------------------------------------------------------------------------------------------------
# GPU memory that runs out where nothing can be made smaller: an error of the cell, so that other cells continue.

MORE_MEMORY = "give its size class a GPU with more memory, or more of them (`gpu`)"


# what CUDA's own allocations say, which torch raises as errors of another kind
_WORDS = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
T = TypeVar("T")


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a GPU's memory ran out: that of torch, or that of a library beside it."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _WORDS)


def in_batches(items: Sequence[T], size: int, compute: Callable[[Sequence[T]], None]) -> None:
    """Compute the items in order, at most `size` at a time, and half as many from where memory runs out."""
    start = 0
    while start < len(items):
        fits = True
        try:
            compute(items[start : start + size])
        except RuntimeError as error:
            if size == 1 or not is_out_of_memory(error):
                raise
            fits = False
        if fits:
            start += size
        else:  # outside `except`, whose traceback holds the tensors that did not fit
            size //= 2
            torch.cuda.empty_cache()


@contextlib.contextmanager
def must_fit(name: str, doing: str, hint: str) -> Iterator[None]:
    """Inside the block torch's out-of-memory error becomes a CellError: retries of the same size would fail as well.

    name: the model's. doing: what did not fit, as in "one text of 2048 tokens to score". hint: what to change.
    """
    failed = None
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        failed = CellError(f"{name}: out of memory with {doing} ({first_line(error)[:160]}).", hint)
    if failed is not None:  # outside `except`, whose traceback holds the tensors that did not fit
        torch.cuda.empty_cache()
        raise failed


# ----------------------------------------------------------------------------------------------------------------------
# What a process did with its model, counted by phase of the work, for the sidecar of each cell.


@dataclass
class Counters:
    """Counts since the last cell was committed.

    model_loads: times weights were read.
    evaluate_passes: times all documents of a split were scored.
    forward_tokens, forward_tokens_padded: tokens that scoring put through the model; padded ones include the real.
    shared_tokens: tokens that scoring did not compute again, because a choice shares them with another.
    scored_rows: positions whose vocabulary was computed. generated_tokens: tokens of generated answers.
    training_tokens, training_tokens_padded: the same of forward passes in training. optimizer_steps: taken.
    truncated_requests: requests longer than the model, which lost context on the left.
    oom_halvings: times a batch was halved because memory ran out.
    """

    model_loads: int = 0
    evaluate_passes: int = 0
    forward_tokens: int = 0
    forward_tokens_padded: int = 0
    shared_tokens: int = 0
    scored_rows: int = 0
    generated_tokens: int = 0
    training_tokens: int = 0
    training_tokens_padded: int = 0
    optimizer_steps: int = 0
    truncated_requests: int = 0
    oom_halvings: int = 0
    by_phase: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is counted inside the block is also booked under the phase `name`."""
        before = Counter(self._totals())
        try:
            yield
        finally:
            self.by_phase[name].update(Counter(self._totals()) - before)

    def add(self, other: dict[str, Any]) -> None:
        """Count what `other` has, as `to_json` gives it."""
        for key, value in other.items():
            if key != "by_phase":
                setattr(self, key, getattr(self, key) + value)
        for phase, counts in other["by_phase"].items():
            self.by_phase[phase].update(counts)

    def _totals(self) -> dict[str, int]:
        return {key: value for key, value in vars(self).items() if key != "by_phase"}

    def to_json(self) -> dict[str, Any]:
        """Totals, and under `by_phase` those of each phase that are not zero."""
        return self._totals() | {"by_phase": {name: dict(own) for name, own in sorted(self.by_phase.items()) if own}}


def equal_part(counts: dict[str, Any], number: int, parts: int) -> dict[str, Any]:
    """Part `number` (from 0) of counts that several cells caused together. All parts have the counts as their sum."""
    return {
        key: equal_part(value, number, parts) if isinstance(value, dict) else (value + parts - 1 - number) // parts
        for key, value in counts.items()
    }


# ----------------------------------------------------------------------------------------------------------------------
# Position encodings that depend on the longest text of a forward pass.
#
# longrope has a second set of frequencies for texts beyond the length that the model was first made for. Dynamic
# scaling has another set for every length beyond it, and keeps that of the longest text until a short one comes. So
# that a text's numbers do not depend on what else is in its batch, texts share a forward pass only where their
# encoding is the same.


class PositionEncoding:
    """What the encoding of a text of a model depends on beside the positions."""

    def __init__(self, model: torch.nn.Module):
        self._model = model
        configuration = model.config.get_text_config().to_dict()
        self._dynamic = "dynamic" in str(configuration.get("rope_parameters"))
        self._limit = position_switch(configuration)  # the length up to which all texts are alike

    @property
    def varies(self) -> bool:
        """Whether it depends on the text at all."""
        return self._limit is not None

    def of(self, length: int) -> int:
        """0 for texts up to the length that the model was made for; beyond it 1 (longrope), or the length itself."""
        if self._limit is None or length <= self._limit:
            return 0
        return length if self._dynamic else 1

    @torch.no_grad()
    def forget(self) -> None:
        """Have a dynamic encoding forget the texts before."""
        if not self._dynamic:
            return
        for module in self._model.modules():
            kinds = getattr(module, "rope_type", None)
            by_layer = kinds if isinstance(kinds, dict) else {None: kinds}
            device = next(module.buffers(), torch.zeros(0)).device
            short = torch.zeros(1, 1, dtype=torch.long, device=device)
            for layer_type, kind in by_layer.items():
                if kind and "dynamic" in kind:
                    options = {} if layer_type is None else {"layer_type": layer_type}
                    module(torch.zeros(1, device=device), short, **options)


# ----------------------------------------------------------------------------------------------------------------------
# Reads of the GPU by the host, each of which waits for all work that was launched before.


@contextlib.contextmanager
def never_packed() -> Iterator[None]:
    """Inside the block no row without a mask holds several texts, which transformers otherwise looks up on the GPU in
    every forward pass."""
    before = getattr(masking_utils, "find_packed_sequence_indices", None)  # None: a version that does not look here
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = before


# ----------------------------------------------------------------------------------------------------------------------
# What a scorer has to compute: requests with one context as a tree of tokens, and trees gathered into batches.
#
# A request is a context and a continuation in tokens. Requests whose context tokens are equal (the choices of one
# question) become one *tree*: the context is its trunk, each continuation a branch, and beginnings that branches share
# are there once. The position of a token is its depth, and it may look at its ancestors and itself only, so its
# log-probability is what it would be in a row of its own.

Request = tuple[object, list[int], list[int]]  # lm-eval's: (key, context tokens, continuation tokens)


class Tree:
    """Requests of one context, which is all that it has at first.

    tokens: the context, then the branches' nodes; parents: index of the token before (-1: none); depths: positions.
    requests: (number of the request, nodes that predict its continuation, the continuation), the nodes being the
    last of the context and all of the branch but its end.
    """

    def __init__(self, context: Sequence[int]):
        self.tokens, self.context = list(context), len(context)
        self.parents, self.depths = list(range(-1, self.context - 1)), list(range(self.context))
        self.requests: list[tuple[int, list[int], list[int]]] = []

    def add(self, number: int, continuation: list[int], children: dict[tuple[int, int], int]) -> None:
        """Hang a continuation below the context. `children`: (parent, token) -> node, this tree's alone."""
        node = self.context - 1
        path = [node]
        for token in continuation[:-1]:
            key = (node, token)
            if key not in children:
                children[key] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(node)
                self.depths.append(self.depths[node] + 1)
            node = children[key]
            path.append(node)
        self.requests.append((number, path, list(continuation)))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """Whether no token has two successors: then a plain row of tokens says it all."""
        return all(parent == place - 1 for place, parent in enumerate(self.parents))

    @property
    def row_lengths(self) -> list[int]:
        """Tokens of each different row, if each is computed by itself (lm-eval's way)."""
        return [self.depths[end] + 1 for end in {path[-1] for _, path, _ in self.requests}]

    @property
    def longest(self) -> int:
        """Tokens of the longest path."""
        return max(self.depths) + 1

    def chains(self, *, alone: bool = False) -> list["Tree"]:
        """The same requests, each in a row of its own; a row that begins another is part of it. alone: each row is as
        long as it is by itself."""
        child: dict[int, int] = {}
        for node in () if alone else range(len(self) - 1, self.context - 1, -1):
            child[self.parents[node]] = node
        made: dict[tuple[int, int | None], Tree] = {}
        for number, path, continuation in self.requests:
            leaf = path[-1]
            while leaf in child:
                leaf = child[leaf]
            key = leaf, number if alone else None
            if key not in made:
                row, node = [], leaf
                while node >= 0:
                    row.append(self.tokens[node])
                    node = self.parents[node]
                made[key] = Tree(row[::-1])
                made[key].context = self.context
            made[key].requests.append((number, [self.depths[node] for node in path], continuation))
        return list(made.values())

    def visible(self, start: int = 0) -> np.ndarray:
        """Which tokens each token from `start` on may look at: bool, (tokens - start, tokens)."""
        seen = np.zeros((len(self), len(self)), dtype=bool)
        seen[: self.context, : self.context] = np.tri(self.context, dtype=bool)
        for node in range(self.context, len(self)):
            seen[node] = seen[self.parents[node]]
            seen[node, node] = True
        return seen[start:]


def plant(requests: Sequence[Request], max_length: int) -> tuple[list[Tree], list[bool]]:
    """The trees of all requests, in the order of their first request, and whether each request was truncated: cut on
    the left as lm-eval does. The model sees at most `max_length` tokens, the last one of a request is only predicted.

    Contexts are compared after truncation, so choices that lose different numbers of tokens share nothing.
    """
    trees: dict[tuple[int, ...], Tree] = {}
    children: dict[tuple[int, ...], dict[tuple[int, int], int]] = {}
    truncated = []
    for number, (_, context, continuation) in enumerate(requests):
        surplus = max(0, len(context) + len(continuation) - (max_length + 1))
        truncated.append(surplus > 0)
        key = tuple(context[surplus:])
        if key not in trees:
            trees[key], children[key] = Tree(key), {}
        trees[key].add(number, continuation, children[key])
    return list(trees.values()), truncated


def batches(trees: Sequence[Tree], rows: int) -> Iterator[list[Tree]]:
    """Trees of similar size together, the longest first, never more tokens than `rows` rows of single choices would be.

    The order depends on the trees alone, not on the order of the documents.
    """
    ordered = sorted(trees, key=lambda tree: (-len(tree), tree.tokens))
    batch: list[Tree] = []
    for tree in ordered:
        longest = max((each.longest for each in batch), default=0)
        if batch and (len(batch) + 1) * len(batch[0]) > rows * max(longest, tree.longest):
            yield batch
            batch = []
        batch.append(tree)
    if batch:
        yield batch


# ----------------------------------------------------------------------------------------------------------------------
# Forward passes of the scorer: log-probabilities at the tokens that are scored, and nothing else.
#
# Three ways, which agree up to rounding:
#
# - `rows`: chains, padded on the right, causal attention. What lm-eval does, without the vocabulary at positions that
#   nobody scores.
# - `packed`: trees, all branches behind their trunk in one row. A 4-D mask shows each token its ancestors only, and
#   position ids are depths.
# - `cached`: trees in two passes. Trunks as plain causal rows fill the key-value cache, then the branches look at their
#   trunk through it. Dense masks cost the square of a row's length; here that of the branches' only.

Forward = Callable[..., Any]  # the model: input_ids=…, returning an object with .logits


@dataclass(frozen=True)
class Scores:
    """What a batch's forward passes gave, on their device: the host need not wait for it. `read` waits.

    values: (2, scored tokens), log-probabilities in nats and 1 where greedy decoding gives the token; places: where in
    the order of the requests each of them belongs. requests: (number, scored tokens) of each request. padded: tokens
    computed; rows: positions whose vocabulary was computed.
    """

    values: torch.Tensor
    places: np.ndarray
    requests: list[tuple[int, int]]
    padded: int
    rows: int


def read(batches: Sequence[Scores]) -> dict[int, tuple[float, bool]]:
    """number of a request -> (log-likelihood in nats, whether greedy decoding gives it). One read for all batches."""
    device = batches[0].values.device
    values = torch.cat([scores.values.to(device) for scores in batches], 1).cpu()
    answers = {}
    for scores, columns in zip(batches, values.split([len(each.places) for each in batches], 1), strict=True):
        own = torch.empty(2, len(scores.places))
        own[:, scores.places] = columns
        parts = own.split([length for _, length in scores.requests], 1)
        for (request, _), (log_probabilities, greedy) in zip(scores.requests, parts, strict=True):
            answers[request] = (float(log_probabilities.sum()), bool(greedy.all()))
    return answers


def score(
    way: str, model: torch.nn.Module, forward: Forward, trees: Sequence[Tree], device: torch.device, part: int | None
) -> Scores:
    """Score trees one way; `rows` takes chains, `cached` trunks of two tokens or more. part: positions whose logits are
    computed at a time; None where the model's head cannot be computed separately."""
    # cached: the trunk's last token goes with the branches, so that everything scored is in the second pass
    starts = [tree.context - 1 if way == "cached" else 0 for tree in trees]
    own = list(zip(trees, starts, strict=True))
    past, width = max(starts), max(len(tree) - start for tree, start in own)
    inputs: dict[str, Any] = {"use_cache": way == "cached"}
    if way == "cached":
        nowhere = torch.zeros(1, dtype=torch.long)
        with narrowed_head(model, nowhere, nowhere):
            first = _padded([tree.tokens[:start] for tree, start in own], past, device)
            inputs["past_key_values"] = forward(input_ids=first, use_cache=True).past_key_values
    inputs["input_ids"] = _padded([tree.tokens[start:] for tree, start in own], width, device)
    if way != "rows":  # right padding is behind every token of a chain that counts: it needs no mask
        inputs["position_ids"] = _padded([tree.depths[start:] for tree, start in own], width, device)
        visible = np.zeros((len(trees), 1, width, past + width), dtype=bool)
        visible[:, :, range(width), range(past, past + width)] = True  # what looks at nothing would be not a number
        for number, (tree, start) in enumerate(own):
            seen = tree.visible(start)
            visible[number, 0, : len(seen), :start] = seen[:, :start]
            visible[number, 0, : len(seen), past : past + len(seen)] = seen[:, start:]
        inputs["attention_mask"] = _additive(visible, model.dtype, device)

    positions: dict[tuple[int, int], int] = {}  # those whose predictions are scored, each once
    rows, targets, requests = [], [], []
    for number, (tree, start) in enumerate(own):
        for request, path, continuation in tree.requests:
            rows += [positions.setdefault((number, node - start), len(positions)) for node in path]
            targets += continuation
            requests.append((request, len(path)))
    values, places = _log_probabilities(
        _logits(model, forward, torch.tensor(list(positions)), part, inputs), np.array(rows), np.array(targets)
    )
    return Scores(values, places, requests, len(trees) * (past + width), len(positions))


def _log_probabilities(
    parts: Iterable[tuple[int, torch.Tensor]], rows: np.ndarray, targets: np.ndarray
) -> tuple[torch.Tensor, np.ndarray]:
    """`values` and `places` of Scores, from the logits' parts; `rows`: the position that predicts each of `targets`."""
    values, places = [], []
    for start, logits in parts:
        here = np.flatnonzero((rows >= start) & (rows < start + len(logits)))
        predicting, wanted = (
            torch.from_numpy(each).to(logits.device, non_blocking=True) for each in (rows[here] - start, targets[here])
        )
        greedy = logits.argmax(-1)[predicting] == wanted
        # float32 whatever the model's dtype: eight bits would round log-probabilities to quarters of a nat
        log_probabilities = torch.log_softmax(logits, -1, dtype=torch.float32)[predicting, wanted]
        values.append(torch.stack((log_probabilities, greedy.float())))
        places.append(here)
    return torch.cat(values, 1), np.concatenate(places)


def _logits(
    model: torch.nn.Module, forward: Forward, positions: torch.Tensor, part: int | None, inputs: dict[str, Any]
) -> Iterator[tuple[int, torch.Tensor]]:
    """First position and logits (positions, vocabulary) of one part after another. positions: (rows and columns)."""
    count, (batch, position) = len(positions), positions.T
    if part is not None and count > part:
        states = States(model, forward, **inputs)
        batch, position = (each.to(states.hidden.device, non_blocking=True) for each in (batch, position))
        hidden = states.hidden[batch, position]
        yield from ((start, states.logits(hidden[start : start + part])) for start in range(0, count, part))
        return
    with narrowed_head(model, batch, position):
        logits = forward(**inputs).logits
    if logits.shape[:2] != (1, count):
        raise ValueError(f"logits of shape {tuple(logits.shape)} for {count} positions")
    part = part_positions(model)
    yield from ((start, logits[0, start : start + part]) for start in range(0, count, part))


def _padded(rows: Sequence[Sequence[int]], width: int, device: torch.device) -> torch.Tensor:
    """(rows, width) of int64, filled on the right with zeros, which no counted token looks at."""
    filled = np.zeros((len(rows), width), dtype=np.int64)
    for number, row in enumerate(rows):
        filled[number, : len(row)] = row
    return torch.from_numpy(filled).to(device, non_blocking=True)


def _additive(visible: np.ndarray, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A mask that is added to attention scores: 0 where visible, the dtype's lowest elsewhere; eager attention and SDPA
    both take it."""
    mask = torch.from_numpy(visible).to(device, non_blocking=True)
    return torch.zeros(mask.shape, dtype=dtype, device=device).masked_fill_(~mask, torch.finfo(dtype).min)


# ----------------------------------------------------------------------------------------------------------------------
# lm-eval's log-likelihoods, several times faster: a question's context is computed once for all its choices, and the
# vocabulary only where something is scored.
#
# `SharedContextLM` is lm-eval's HFLM with another `_loglikelihood_tokens`, registered as the model `lm-validity`, so
# that `lm-validity lm-eval run --model lm-validity --model_args pretrained=…` is lm-eval's own command line with this
# scorer. Which way is exact for a model is not guessed from its name: before its first use each way is held against
# HFLM's own numbers on this very model, and what disagrees is not used.

log = logging.getLogger(__name__)

# lm-eval: HFLM as it is; rows: each choice by itself; packed, cached: shared contexts, one way always; auto: the faster
Way = Literal["auto", "packed", "cached", "rows", "lm-eval"]
MAX_MASK = 4096**2  # pairs of tokens in a dense mask; trees beyond it are not packed
MAX_BATCH = 64  # rows per batch where lm-eval's command line says batch_size=auto, halved as memory needs

# Largest difference from HFLM a token: rounding in float32; elsewhere what another order of sums gives at 8 bits
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
HALF_TOLERANCE = 0.1
# how configurations call the number of tokens that a layer's attention reaches back, or chooses from
_WINDOWS = (
    "sliding_window",
    "sliding_window_size",
    "attention_chunk_size",
    "attention_window_size",
    "window_size",
    "index_topk",
)
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

    def _create_model(self, *arguments: Any, **options: Any) -> None:
        super()._create_model(*arguments, **options)
        keep_saved_head(self.model)  # HFLM ties weights next

    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = True, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        if not requests:
            return []
        if not self.narrows_head():
            return self._score_as_lm_eval(requests, override_bs)
        for key, context, continuation in requests:
            if not context or not continuation or len(continuation) > self.max_length:
                raise CellError(
                    f"a request has {len(context)} context and {len(continuation)} continuation tokens, "
                    f"the model takes {self.max_length}: {str(key)[:80]!r}.",
                    "every choice needs a token, and must fit into the model.",
                )
        asked = self.batch_size if override_bs is None else override_bs
        rows = MAX_BATCH if asked == "auto" else max(1, int(asked))
        trees, truncated = plant(requests, self.max_length)
        self.count_truncated(truncated)
        scores: list[Scores] = []
        for way, members in self._by_way(trees).items():
            for batch in self._batches(members, rows):
                scores += self._score(way, batch)
        by_number = read(scores)
        answers = [by_number[number] for number in range(len(requests))]
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
        """HFLM's, with the context tokenised once for choices that follow each other. White space at the context's end
        goes to the continuation.

        HFLM takes what is behind as many tokens as the context has by itself. Where a token of the whole text reaches
        over the border, that loses a part of the continuation, or all. Then the white space stays with the context,
        if that has the tokens of the whole; else the continuation's tokens are those that it has by itself.
        """
        if self.backend != "causal":
            return super()._encode_pair(context, continuation)
        kept = context.rstrip()
        if self._last_context is None or self._last_context[0] != kept:
            self._last_context = (kept, self.tok_encode(kept))
        tokens = self._last_context[1]
        whole = self.tok_encode(context + continuation)
        if begins(whole, tokens):
            return list(tokens), whole[len(tokens) :]
        if kept != context and begins(whole, longer := self.tok_encode(context)):
            return longer, whole[len(longer) :]
        apart = self.tok_encode(context[len(kept) :] + continuation, add_special_tokens=False)
        if self.tok_decode([*tokens, *apart]) != self.tok_decode(whole):
            raise CellError(
                f"{continuation!r} cannot be told apart from what is before it: the tokenizer merges both.",
                "put a blank between question and answers (target_delimiter).",
            )
        return list(tokens), apart

    def _score_as_lm_eval(self, requests: list[Request], override_bs: int | None) -> list[tuple[float, bool]]:
        # one row for all continuations that differ in their last token only
        rows = {(*context, *continuation[:-1]) for _, context, continuation in requests}
        self.counters.forward_tokens += sum(min(len(row), self.max_length) for row in rows)
        lengths = (len(context) + len(continuation) for _, context, continuation in requests)
        self.count_truncated(length > self.max_length + 1 for length in lengths)
        # HFLM runs equal rows once, wherever they are cut into context and continuation, and gives all of them the sum
        # of the first one's tokens: requests of one row and another cut are asked in another call
        cuts: dict[tuple[int, ...], list[int]] = defaultdict(list)
        alike: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, (_, context, continuation) in enumerate(requests):
            of_row = cuts[(*context, *continuation[:-1])]
            if len(context) not in of_row:
                of_row.append(len(context))
            length = min(len(context) + len(continuation) - 1, self.max_length)
            own = self.scorer != "lm-eval" and self.position_encoding.of(length)
            alike[int(own), of_row.index(len(context))].append(number)
        by_number: dict[int, tuple[float, bool]] = {}
        for numbers in alike.values():
            self.position_encoding.forget()
            these = [requests[number] for number in numbers]
            answers = super()._loglikelihood_tokens(these, disable_tqdm=True, override_bs=override_bs)
            by_number |= zip(numbers, answers, strict=True)
        return [by_number[number] for number in range(len(requests))]

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

    def narrows_head(self) -> bool:
        """Whether this model can compute logits of chosen positions alone (`narrowed_head`), found by trying."""
        if self.scorer == "lm-eval" or self.backend != "causal":
            return False
        return "rows" in (self._probe() if self._allowed is None else self._allowed)

    def head_part(self) -> int | None:
        """Positions whose logits are computed at a time, or None where the head cannot be computed separately."""
        return part_positions(self.model) if self.narrows_head() and self._splits else None

    def describe_scorer(self) -> dict[str, Any]:
        """For a sidecar: the way asked for, those that are exact on this model (null before the first use), and the
        tokens of a batch that memory allowed, where they were fewer than asked for."""
        ways = None if self._allowed is None else sorted(self._allowed)
        return {"scorer": self.scorer, "exact_ways": ways, "token_limit": self._token_limit}

    # ---- which way ----------------------------------------------------------------------------------------------

    def _by_way(self, trees: Sequence[Tree]) -> dict[str, list[Tree]]:
        """Trees by the way they are scored; chains go as rows."""
        by_way: dict[str, list[Tree]] = {"packed": [], "cached": [], "rows": []}
        for tree in trees:
            way = self._way(tree)
            if way == "rows":
                chains = tree.chains(alone=bool(self.position_encoding.of(tree.longest)))
                self.counters.forward_tokens += sum(map(len, chains))
                by_way["rows"] += chains
            else:
                self.counters.forward_tokens += len(tree)
                self.counters.shared_tokens += sum(tree.row_lengths) - len(tree)
                by_way[way].append(tree)
        return by_way

    def _way(self, tree: Tree) -> str:
        if tree.is_chain or len(tree) > self._window or self.position_encoding.of(tree.longest):
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

    def _run(self, way: str, batch: Sequence[Tree], part: int | None = None) -> Scores:
        return score(way, self.model, self._forward, batch, self.device, part)

    def _score(self, way: str, batch: list[Tree]) -> list[Scores]:
        """Score one batch, in halves where memory runs out; a tree alone goes as rows then."""
        longest = max(map(len, batch))
        most = max(1, self._token_limit // longest) if self._token_limit else len(batch)
        if len(batch) > most:
            parts = (batch[start : start + most] for start in range(0, len(batch), most))
            return [scores for part in parts for scores in self._score(way, part)]
        try:
            scores = self._run(way, batch, self.head_part() if self._splits else None)
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
            return self._score(way, batch)
        self.counters.forward_tokens_padded += scores.padded
        self.counters.scored_rows += scores.rows
        return [scores]

    # ---- what is exact ------------------------------------------------------------------------------------------

    def _probe(self) -> frozenset[str]:
        """The ways that give HFLM's numbers on this model, by trying them on a few random tokens.

        Kept for the process, unless the numbers are not finite: an adapter that diverged says nothing about the model.
        """
        random = np.random.default_rng(_PROBE_SEED)
        vocabulary = min(self.model.config.get_text_config().vocab_size, len(self.tokenizer))
        requests: list[Request] = []
        for length in _PROBE_CONTEXTS:
            context = random.integers(vocabulary, size=length).tolist()
            for choice in range(_PROBE_CHOICES):
                requests.append((None, context, random.integers(vocabulary, size=1 + choice).tolist()))
        before, self.counters = self.counters, Counters()
        try:
            with largest_logit(self.model) as largest:
                expected = [value for value, _ in super()._loglikelihood_tokens(requests, disable_tqdm=True)]
            tolerance = self._tolerance(largest())
            trees, _ = plant(requests, self.max_length)
            chains = [chain for tree in trees for chain in tree.chains()]
            attempts = {
                "rows": partial(self._run, "rows", chains),
                _IN_PARTS: partial(self._run, "rows", chains, _PROBE_CHOICES),
            }
            if self.model.config._attn_implementation in ("sdpa", "eager"):  # others take no mask of ours
                attempts |= {way: partial(self._run, way, trees) for way in ("packed", "cached")}
            exact = frozenset(
                way for way, attempt in attempts.items() if self._agrees(way, attempt, requests, expected, tolerance)
            )
        finally:
            self.counters = before
        if np.isfinite(expected).all():
            self._allowed, self._splits = exact - {_IN_PARTS}, _IN_PARTS in exact
        return exact - {_IN_PARTS}

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
            answers = read([attempt()])
        except Exception as error:  # whatever an architecture raises at a mask it does not know
            if isinstance(error, RuntimeError) and is_out_of_memory(error):
                raise
            log.info("scorer: %s is not possible with this model (%s: %s)", way, type(error).__name__, error)
            return False
        for number, (_, _, continuation) in enumerate(requests):
            difference = abs(answers[number][0] - expected[number])
            if not difference <= tolerance * len(continuation) * max(1.0, abs(expected[number]) / 100):
                log.warning(
                    "scorer: %s differs by %.2g nats on this model and is not used: slower, not wrong%s",
                    way,
                    difference,
                    "" if self.model.dtype in TOLERANCE else "; dtype float32 would allow it if this is rounding",
                )
                return False
        return True
