"""Forward passes: requests as trees of tokens that share their beginnings, the output head at chosen positions, which
texts may share a pass, and the check against plain passes over one text at a time."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from transformers import masking_utils
from transformers.modeling_outputs import CausalLMOutputWithPast, ModelOutput

from lm_validity.errors import CellError, first_line

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
        return all(parent == index - 1 for index, parent in enumerate(self.parents))

    @property
    def row_lengths(self) -> list[int]:
        """Tokens of each different row, if each is computed by itself (lm-eval's way)."""
        return [self.depths[end] + 1 for end in {path[-1] for _, path, _ in self.requests}]

    @property
    def longest(self) -> int:
        """Tokens of the longest path."""
        return max(self.depths) + 1

    def chains(self, *, unshared: bool = False) -> list["Tree"]:
        """The same requests, each in a row of its own; a row that begins another is part of it. alone: each row is as
        long as it is by itself."""
        child: dict[int, int] = {}
        for node in () if unshared else range(len(self) - 1, self.context - 1, -1):
            child[self.parents[node]] = node
        made: dict[tuple[int, int | None], Tree] = {}
        for number, path, continuation in self.requests:
            leaf = path[-1]
            while leaf in child:
                leaf = child[leaf]
            key = leaf, number if unshared else None
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


def plant(requests: Sequence[Request], max_length: int) -> list[Tree]:
    """The trees of all requests, in the order of their first request, which are cut on the left as lm-eval does: the
    model sees at most `max_length` tokens, and the last one of a request is only predicted.

    Contexts are compared after truncation, so choices that lose different numbers of tokens share nothing.
    """
    trees: dict[tuple[int, ...], Tree] = {}
    children: dict[tuple[int, ...], dict[tuple[int, int], int]] = {}
    for number, (_, context, continuation) in enumerate(requests):
        surplus = max(0, len(context) + len(continuation) - (max_length + 1))
        key = tuple(context[surplus:])
        if key not in trees:
            trees[key], children[key] = Tree(key), {}
        trees[key].add(number, continuation, children[key])
    return list(trees.values())


def batches(trees: Sequence[Tree], rows: int) -> Iterator[list[Tree]]:
    """Trees of similar size together, the longest first, never more tokens than `rows` rows of single choices would be.

    The order depends on the trees alone, not on the order of the documents.
    """
    ordered = sorted(trees, key=lambda tree: (-len(tree), tree.tokens))
    batch: list[Tree] = []
    for tree in ordered:
        longest = max((one_tree.longest for one_tree in batch), default=0)
        if batch and (len(batch) + 1) * len(batch[0]) > rows * max(longest, tree.longest):
            yield batch
            batch = []
        batch.append(tree)
    if batch:
        yield batch


# ----------------------------------------------------------------------------------------------------------------------
# The output head by itself: logits of chosen positions, a part of them at a time.
#
# The vocabulary is the widest layer of a model: at every position of a batch of long texts its logits would take more
# memory than the model. What comes after the head (soft-capping, scaling) is the model's own code, which is run on
# hidden states that are there already.

# logits at a time: with their float32 copy and its softmax about 10 bytes each
PART = 2**26


def part_positions(model: torch.nn.Module) -> int:
    """Positions whose logits are computed at a time."""
    result: int = max(1, PART // model.config.get_text_config().vocab_size)
    return result


@contextlib.contextmanager
def narrowed_head(model: torch.nn.Module, batch: torch.Tensor, position: torch.Tensor) -> Iterator[None]:
    """Inside the block the output head sees these positions only: logits are (1, positions, vocabulary).

    What a model does to its logits after the head (soft-capping, scaling) it does to these.
    """

    def select(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden, *further_arguments = arguments
        rows, places = (indices.to(hidden.device, non_blocking=True) for indices in (batch, position))
        return (hidden[rows, places].unsqueeze(0), *further_arguments)

    handle = model.get_output_embeddings().register_forward_pre_hook(select)
    try:
        yield
    finally:
        handle.remove()


class States:
    """Hidden states of a forward pass, from which the model's logits are made later.

    forward: the model, or what calls it; inputs: its arguments. Of the logits only one position's are computed.
    Raises ValueError for a model whose body is not a module of its own.
    """

    def __init__(self, model: torch.nn.Module, forward: Callable[..., CausalLMOutputWithPast], **inputs: object):
        self.model, self.forward = model, forward
        outputs: dict[torch.nn.Module, ModelOutput | tuple[torch.Tensor, ...]] = {}
        # the body as the model calls it: OPT's is the decoder inside of what it calls its base
        bodies = [body for body in (model.base_model, model.get_decoder()) if body is not None and body is not model]
        handles = [
            body.register_forward_hook(lambda module, arguments, output: outputs.setdefault(module, output))
            for body in dict.fromkeys(bodies)
        ]
        first = torch.zeros(1, dtype=torch.long)
        try:
            with narrowed_head(model, first, first):
                forward(**inputs)
        finally:
            for handle in handles:
                handle.remove()
        body = next((body for body in bodies if body in outputs), None)
        if body is None:
            raise ValueError("the head is not apart from the body")
        self.body: torch.nn.Module = body
        self.output = outputs[body]
        self.hidden: torch.Tensor = self.output[0]  # (rows, tokens, width)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(positions, vocabulary) of hidden states (positions, width)."""
        hidden = hidden.unsqueeze(0)
        if isinstance(self.output, tuple):
            output = (hidden, *self.output[1:])
        else:
            output = type(self.output)(**{**self.output, "last_hidden_state": hidden})
        forward_before = self.body.__dict__.get("forward")
        self.body.forward = lambda *arguments, **options: output
        try:
            tokens = torch.zeros(hidden.shape[:2], dtype=torch.long, device=self.model.device)
            return self.forward(input_ids=tokens, use_cache=False).logits[0]
        finally:
            if forward_before is None:
                del self.body.forward
            else:  # accelerate's, which brings inputs to the layer's device
                self.body.forward = forward_before


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

Forward = Callable[..., CausalLMOutputWithPast]  # the model, called with input_ids=…


class Scores(NamedTuple):
    """What a batch's forward passes gave, on their device: the host need not wait for it. `read` waits.

    values: (2, scored tokens), log-probabilities in nats and 1 where greedy decoding gives the token; places: where in
    the order of the requests each of them belongs. requests: (number, scored tokens) of each request. padded: tokens
    computed.
    """

    values: torch.Tensor
    places: np.ndarray
    requests: list[tuple[int, int]]
    padded: int


def read(batches: Sequence[Scores]) -> dict[int, tuple[float, bool]]:
    """number of a request -> (log-likelihood in nats, whether greedy decoding gives it). One read for all batches."""
    device = batches[0].values.device
    values = torch.cat([scores.values.to(device) for scores in batches], 1).cpu()
    answers = {}
    for scores, columns in zip(batches, values.split([len(tree.places) for tree in batches], 1), strict=True):
        values_of_trees = torch.empty(2, len(scores.places))
        values_of_trees[:, scores.places] = columns
        parts = values_of_trees.split([length for _, length in scores.requests], 1)
        for (request, _), (log_probabilities, greedy) in zip(scores.requests, parts, strict=True):
            answers[request] = (float(log_probabilities.sum()), bool(greedy.all()))
    return answers


class PlainScore(NamedTuple):
    """A request's (log-likelihood, whether greedy decoding gives it), and the largest logit that predicts it."""

    score: tuple[float, bool]
    largest_logit: float


def plain(forward: Forward, request: Request, max_length: int, device: torch.device) -> PlainScore:
    """(log-likelihood in nats, whether greedy decoding gives it) of a request by a plain forward pass over its row
    alone, and the largest of the logits that predict it: what every way is measured against."""
    _, context, continuation = request
    row = [*context, *continuation][-(max_length + 1) :]
    logits = forward(input_ids=torch.tensor([row[:-1]], device=device), use_cache=False).logits[0, -len(continuation) :]
    targets = torch.tensor(continuation, device=logits.device)
    log_probabilities = torch.log_softmax(logits, -1, dtype=torch.float32)[torch.arange(len(targets)), targets]
    greedy = bool((logits.argmax(-1) == targets).all())
    return PlainScore((float(log_probabilities.sum()), greedy), float(logits.abs().max()))


def score(
    way: str, model: torch.nn.Module, forward: Forward, trees: Sequence[Tree], device: torch.device, part: int | None
) -> Scores:
    """Score trees one way; `rows` takes chains, `cached` trunks of two tokens or more. part: positions whose logits are
    computed at a time; None where the model's head cannot be computed separately."""
    # cached: the trunk's last token goes with the branches, so that everything scored is in the second pass
    starts = [tree.context - 1 if way == "cached" else 0 for tree in trees]
    starts_of_trees = list(zip(trees, starts, strict=True))
    past, width = max(starts), max(len(tree) - start for tree, start in starts_of_trees)
    inputs: dict[str, object] = {"use_cache": way == "cached"}
    if way == "cached":
        nowhere = torch.zeros(1, dtype=torch.long)
        with narrowed_head(model, nowhere, nowhere):
            first = _padded([tree.tokens[:start] for tree, start in starts_of_trees], past, device)
            inputs["past_key_values"] = forward(input_ids=first, use_cache=True).past_key_values
    inputs["input_ids"] = _padded([tree.tokens[start:] for tree, start in starts_of_trees], width, device)
    if way != "rows":  # right padding is behind every token of a chain that counts: it needs no mask
        inputs["position_ids"] = _padded([tree.depths[start:] for tree, start in starts_of_trees], width, device)
        visible = np.zeros((len(trees), 1, width, past + width), dtype=bool)
        visible[:, :, range(width), range(past, past + width)] = True  # what looks at nothing would be not a number
        for number, (tree, start) in enumerate(starts_of_trees):
            seen = tree.visible(start)
            visible[number, 0, : len(seen), :start] = seen[:, :start]
            visible[number, 0, : len(seen), past : past + len(seen)] = seen[:, start:]
        inputs["attention_mask"] = _additive(visible, model.dtype, device)

    positions: dict[tuple[int, int], int] = {}  # those whose predictions are scored, each once
    rows, targets, requests = [], [], []
    for number, (tree, start) in enumerate(starts_of_trees):
        for request, path, continuation in tree.requests:
            rows += [positions.setdefault((number, node - start), len(positions)) for node in path]
            targets += continuation
            requests.append((request, len(path)))
    predicting, predicted = np.array(rows), np.array(targets)
    values, places = [], []
    for first_of_part, logits in _logits(model, forward, torch.tensor(list(positions)), part, inputs):
        in_part = np.flatnonzero((predicting >= first_of_part) & (predicting < first_of_part + len(logits)))
        from_position, tokens = (
            torch.from_numpy(indices).to(logits.device, non_blocking=True)
            for indices in (predicting[in_part] - first_of_part, predicted[in_part])
        )
        greedy = logits.argmax(-1)[from_position] == tokens
        # float32 whatever the model's dtype: eight bits would round log-probabilities to quarters of a nat
        log_probabilities = torch.log_softmax(logits, -1, dtype=torch.float32)[from_position, tokens]
        values.append(torch.stack((log_probabilities, greedy.float())))
        places.append(in_part)
    return Scores(torch.cat(values, 1), np.concatenate(places), requests, len(trees) * (past + width))


def _logits(
    model: torch.nn.Module, forward: Forward, positions: torch.Tensor, part: int | None, inputs: Mapping[str, object]
) -> Iterator[tuple[int, torch.Tensor]]:
    """First position and logits (positions, vocabulary) of one part after another. positions: (rows and columns)."""
    count, (batch, position) = len(positions), positions.T
    if part is not None and count > part:
        states = States(model, forward, **inputs)
        batch, position = (indices.to(states.hidden.device, non_blocking=True) for indices in (batch, position))
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
# GPU memory that runs out where nothing can be made smaller: an error of the cell, so that other cells continue.

MORE_MEMORY = "give its size class a GPU with more memory, or more of them (`gpu`)"
# what CUDA's own allocations say, which torch raises as errors of another kind
_WORDS = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a GPU's memory ran out: that of torch, or that of a library beside it."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _WORDS)


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
# Reads of the GPU by the host, each of which waits for all work that was launched before.


@contextlib.contextmanager
def replaced(*changes: tuple[object, str, object]) -> Iterator[None]:
    """Inside the block each owner has the given value under the given name."""
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, new in changes:
            setattr(owner, name, new)
        yield
    finally:
        for owner, name, old in originals:
            setattr(owner, name, old)


def never_packed() -> contextlib.AbstractContextManager[None]:
    """Inside the block no row without a mask holds several texts, which transformers otherwise looks up on the GPU in
    every forward pass."""
    return replaced((masking_utils, "find_packed_sequence_indices", lambda position_ids: None))


# ----------------------------------------------------------------------------------------------------------------------
# What a model is asked in a way that saves time is held against plain passes over one text at a time.
#
# A few of the very requests of a cell are looked at: those in which a fault would show, as far as they exceed in size
# what was looked at before, for at most `CHECK_SHARE` of the tokens. A way that differs is not used again.

CHECK_SHARE = 0.02  # of the tokens that are computed, checked again by plain passes
# Largest difference from a plain pass a token: rounding in float32; elsewhere another order of sums at 8 bits
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
HALF_TOLERANCE = 0.1


def tolerance(dtype: torch.dtype, largest: float) -> float:
    """Largest difference a token, where the largest logit is of this size. At 16 bits at least a step between
    neighbouring numbers of the logits' size: GPT-2's are about -65, where bfloat16 moves by half a nat."""
    if dtype in TOLERANCE:
        return TOLERANCE[dtype]
    step = torch.finfo(dtype).eps * 2.0 ** np.floor(np.log2(max(largest, 1.0)))
    return max(HALF_TOLERANCE, float(step))


def allowed_difference(tokens: int, expected: float, one_token: float) -> float:
    """Largest difference of a sum over so many tokens, in nats."""
    return one_token * tokens * max(1.0, abs(expected) / 100)


# a request that a fault would show in: what it is the extreme of, how much, which it is, and its tokens
Telling = tuple[str, int, int, int]


class SelfCheck:
    """What was checked of a model: by way and kind of size, the largest."""

    def __init__(self) -> None:
        self._checked: dict[tuple[str, str], int] = {}

    def exceeds(self, way: str, kind: str, size: int) -> bool:
        """Whether nothing as large was checked before; from now on it was."""
        larger = size > self._checked.get((way, kind), 0)
        if larger:
            self._checked[way, kind] = size
        return larger

    def holds(self, way: str, telling: Iterable[Telling], tokens: int, is_plain: Callable[[int, int], bool]) -> bool:
        """Whether those of the requests that were chosen have the value of a plain pass (`is_plain`: number, tokens).

        tokens: of all requests, of which the check costs no more than its share; one request at least, of a way's
        first requests two.
        """
        fewest = 1 if any(checked == way for checked, _ in self._checked) else 2
        values: dict[int, bool] = {}
        spent = 0
        for kind, size, number, length in telling:
            if size <= self._checked.get((way, kind), 0):
                continue
            if number not in values:
                if spent + length > CHECK_SHARE * tokens and len(values) >= fewest:
                    continue
                spent += length
                values[number] = is_plain(number, length)
            self._checked[way, kind] = size
        return all(values.values())

    def forget(self, way: str | None = None) -> None:
        """Check this way, or all, again when it is used next."""
        self._checked = {key: size for key, size in self._checked.items() if way not in (None, key[0])}
