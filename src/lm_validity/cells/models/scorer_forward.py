"""Forward passes of the scorer: log-probabilities at the tokens that are scored, and nothing else.

Three ways, which agree up to rounding:

- `score_rows`: chains, padded on the right, causal attention. What lm-eval does, without the vocabulary at positions
  that nobody scores.
- `score_packed`: trees, all branches behind their trunk in one row. A 4-D mask shows each token its ancestors only, and
  position ids are depths.
- `score_cached`: trees in two passes. Trunks as plain causal rows fill the key-value cache, then the branches look at
  their trunk through it. Dense masks cost the square of a row's length; here that of the branches' only.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lm_validity.cells.models.head import States, narrowed_head, part_positions
from lm_validity.cells.models.scorer_plan import Tree

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
    if not batches:
        return {}
    device = batches[0].values.device
    values = torch.cat([scores.values.to(device) for scores in batches], 1).cpu()
    found, first = {}, 0
    for scores in batches:
        own = torch.empty(2, len(scores.places))
        own[:, scores.places] = values[:, first : first + len(scores.places)]
        first, start = first + len(scores.places), 0
        for request, length in scores.requests:
            place = slice(start, start + length)
            found[request] = (float(own[0, place].sum()), bool(own[1, place].all()))
            start += length
    return found


def score_rows(
    model: torch.nn.Module, forward: Forward, trees: Sequence[Tree], device: torch.device, part: int | None = None
) -> Scores:
    """Score chains, each in a row. Right padding is behind every token that counts, so no mask is needed."""
    width = max(map(len, trees))
    inputs = _padded([tree.tokens for tree in trees], width, device)
    return _Wanted(trees).scores(model, forward, part, inputs.numel(), input_ids=inputs, use_cache=False)


def score_packed(
    model: torch.nn.Module, forward: Forward, trees: Sequence[Tree], device: torch.device, part: int | None = None
) -> Scores:
    """Score trees in one pass."""
    width = max(map(len, trees))
    inputs = _padded([tree.tokens for tree in trees], width, device)
    positions = _padded([tree.depths for tree in trees], width, device)
    visible = np.zeros((len(trees), 1, width, width), dtype=bool)
    visible[:, :, range(width), range(width)] = True  # a token that looks at nothing would be not a number
    for number, tree in enumerate(trees):
        visible[number, 0, : len(tree), : len(tree)] = tree.visible()
    return _Wanted(trees).scores(
        model,
        forward,
        part,
        inputs.numel(),
        input_ids=inputs,
        position_ids=positions,
        attention_mask=_additive(visible, model.dtype, device),
        use_cache=False,
    )


def score_cached(
    model: torch.nn.Module, forward: Forward, trees: Sequence[Tree], device: torch.device, part: int | None = None
) -> Scores:
    """Score trees in two passes; each trunk has two tokens or more. The trunk's last token goes with the branches, so
    that everything scored is in the second pass."""
    trunks = [tree.tokens[: tree.context - 1] for tree in trees]
    first = _padded(trunks, max(map(len, trunks)), device)
    with narrowed_head(model, torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long)):
        cache = forward(input_ids=first, use_cache=True).past_key_values
    branches = [tree.tokens[tree.context - 1 :] for tree in trees]
    past, width = first.shape[1], max(map(len, branches))
    second = _padded(branches, width, device)
    positions = _padded([tree.depths[tree.context - 1 :] for tree in trees], width, device)
    visible = np.zeros((len(trees), 1, width, past + width), dtype=bool)
    visible[:, :, range(width), range(past, past + width)] = True
    for number, tree in enumerate(trees):
        seen = tree.visible(tree.context - 1)
        visible[number, 0, : len(seen), : tree.context - 1] = seen[:, : tree.context - 1]
        visible[number, 0, : len(seen), past : past + len(seen)] = seen[:, tree.context - 1 :]
    return _Wanted(trees, offsets=[tree.context - 1 for tree in trees]).scores(
        model,
        forward,
        part,
        first.numel() + second.numel(),
        input_ids=second,
        position_ids=positions,
        attention_mask=_additive(visible, model.dtype, device),
        past_key_values=cache,
        use_cache=True,
    )


class _Wanted:
    """The positions of a batch whose predictions are scored, each once, and what is read there."""

    def __init__(self, trees: Sequence[Tree], offsets: Sequence[int] | None = None):
        places: dict[tuple[int, int], int] = {}
        self._requests: list[tuple[int, int]] = []  # number, tokens of its continuation
        targets: list[int] = []
        rows: list[int] = []
        for number, tree in enumerate(trees):
            offset = offsets[number] if offsets else 0
            for request, path, continuation in tree.requests:
                own = [places.setdefault((number, node - offset), len(places)) for node in path]
                rows += own
                targets += continuation
                self._requests.append((request, len(own)))
        self.rows, self.targets = np.array(rows), np.array(targets)  # what the host alone reads
        found = torch.tensor(list(places))
        self.batch, self.position = found[:, 0], found[:, 1]

    def scores(
        self, model: torch.nn.Module, forward: Forward, part: int | None, padded: int, **inputs: object
    ) -> Scores:
        """Log-likelihoods of a forward pass with these inputs. part: positions whose logits are computed at a time,
        None where the model's head cannot be computed separately; their softmax is a part at a time even so."""
        values, found_places = [], []
        for start, logits in self._logits(model, forward, part, inputs):
            here = np.flatnonzero((self.rows >= start) & (self.rows < start + len(logits)))
            rows, targets = (
                torch.from_numpy(each).to(logits.device, non_blocking=True)
                for each in (self.rows[here] - start, self.targets[here])
            )
            greedy = logits.argmax(-1)[rows] == targets
            # float32 whatever the model's dtype: eight bits would round log-probabilities to quarters of a nat
            log_probabilities = torch.log_softmax(logits, -1, dtype=torch.float32)[rows, targets]
            values.append(torch.stack((log_probabilities, greedy.float())))
            found_places.append(here)
        return Scores(torch.cat(values, 1), np.concatenate(found_places), self._requests, padded, len(self.batch))

    def _logits(
        self, model: torch.nn.Module, forward: Forward, part: int | None, inputs: dict[str, Any]
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """First position and logits (positions, vocabulary) of one part after another."""
        count = len(self.batch)
        if part is not None and count > part:
            states = States(model, forward, **inputs)
            device = states.hidden.device
            hidden = states.hidden[
                self.batch.to(device, non_blocking=True), self.position.to(device, non_blocking=True)
            ]
            yield from ((start, states.logits(hidden[start : start + part])) for start in range(0, count, part))
            return
        with narrowed_head(model, self.batch, self.position):
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
