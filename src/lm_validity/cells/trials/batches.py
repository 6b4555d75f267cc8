"""Batches of texts of very different lengths without the padding: short texts share a row.

A text in a shared row sees itself alone (a block-diagonal attention mask) and counts its positions from zero, so its
vectors are those of a row of its own up to rounding. Architectures whose code is not known to take such masks and
positions get one padded row a text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

IGNORED = -100  # cross_entropy's label of what is not predicted
SHARED_ROWS = frozenset(("bert", "gpt2", "llama", "mistral", "qwen2"))  # model types


@dataclass(frozen=True)
class Batch:
    """input_ids: (rows, tokens). attention_mask: (rows, tokens), or of shared rows additive (rows, 1, tokens, tokens)
    with position_ids (rows, tokens). labels: (rows, tokens) of token ids, or one class per text; IGNORED where nothing
    is predicted. places: (texts, 3), row, first and last token of each text. tokens: without padding. predicted: labels
    that are not IGNORED, counted before the batch goes to its device, which the host would wait for. host_labels: the
    labels where they were before that."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    labels: torch.Tensor
    tokens: int
    position_ids: torch.Tensor | None = None
    places: torch.Tensor | None = None
    predicted: int = 0
    host_labels: torch.Tensor | None = None

    def inputs(self) -> dict[str, torch.Tensor]:
        """What a model's forward pass is called with."""
        found = {"input_ids": self.input_ids, "attention_mask": self.attention_mask}
        return found if self.position_ids is None else found | {"position_ids": self.position_ids}

    def rows(self, start: int, stop: int) -> "Batch":
        """Some of the rows; of labelled tokens only, since classes are not by row."""
        positions = None if self.position_ids is None else self.position_ids[start:stop]
        return replace(
            self,
            input_ids=self.input_ids[start:stop],
            attention_mask=self.attention_mask[start:stop],
            labels=self.labels[start:stop],
            position_ids=positions,
            places=None,
            host_labels=None if self.host_labels is None else self.host_labels[start:stop],
        )

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device; the labels are also kept on the host, for `predicted_places`."""
        names = ("input_ids", "attention_mask", "labels", "position_ids", "places")
        present = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in present.items()}
        return replace(self, **moved, predicted=int((self.labels != IGNORED).sum()), host_labels=self.labels)

    def predicted_places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Row and position of each labelled token, on the device: found on the host, which would wait for a device to
        count them."""
        assert self.host_labels is not None, "`to` keeps them"
        found = np.nonzero(self.host_labels.numpy() != IGNORED)
        row, position = (torch.from_numpy(each).to(self.labels.device, non_blocking=True) for each in found)
        return row, position


def padded(sequences: Sequence[Sequence[int]], padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask (texts, longest), padded on the right."""
    width = max(map(len, sequences))
    ids = np.full((len(sequences), width), padding, dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, tokens in enumerate(sequences):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
    return torch.from_numpy(ids), torch.from_numpy(mask)


def next_tokens(ids: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
    """At each position the token to predict from it; IGNORED at the end and in the padding."""
    labels = torch.full_like(ids, IGNORED)
    labels[:, :-1] = torch.where(attention[:, 1:] == 1, ids[:, 1:], IGNORED)
    return labels


def share_rows(
    ids: torch.Tensor, attention: torch.Tensor, labels: torch.Tensor, *, causal: bool, dtype: torch.dtype
) -> Batch:
    """The texts of a padded batch (texts, tokens) in as few rows as first fit finds, longest first.

    labels: token labels of the shape of `ids`, which move with their tokens, or (texts,), which stay. causal: a token
    sees none after it. dtype: the model's, of the additive mask.
    """
    lengths = attention.sum(dim=1).tolist()
    places, width = _first_fit(lengths), max(lengths)
    shape = (1 + max(row for row, _ in places), width)
    # numpy's slices: many small copies, for which a tensor's are ten times as slow
    shared, positions = np.full(shape, int(ids[0, 0])), np.zeros(shape, dtype=np.int64)
    owner = np.full(shape, -1)  # padding sees padding: a row without any key would be NaN
    moved = np.full(shape, IGNORED)
    own_ids, own_labels, counting = ids.numpy(), labels.numpy(), np.arange(width)
    for text, ((row, first), length) in enumerate(zip(places, lengths, strict=True)):
        last = first + length
        shared[row, first:last] = own_ids[text, :length]
        positions[row, first:last] = counting[:length]
        owner[row, first:last] = text
        if labels.ndim > 1:
            moved[row, first:last] = own_labels[text, :length]
    unseen = owner[:, :, None] != owner[:, None, :]
    if causal:
        unseen |= counting[:, None] < counting
    mask = torch.zeros(unseen.shape, dtype=dtype).masked_fill_(torch.from_numpy(unseen), torch.finfo(dtype).min)
    spans = [(row, first, first + length - 1) for (row, first), length in zip(places, lengths, strict=True)]
    return Batch(
        torch.from_numpy(shared),
        mask[:, None],
        torch.from_numpy(moved) if labels.ndim > 1 else labels,
        sum(lengths),
        torch.from_numpy(positions),
        torch.tensor(spans),
    )


def _first_fit(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """(row, first token) of each text; rows hold as many tokens as the longest text."""
    width, used = max(lengths), list[int]()
    found: list[tuple[int, int]] = [(0, 0)] * len(lengths)
    for text in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        row = next((row for row, taken in enumerate(used) if taken + lengths[text] <= width), len(used))
        if row == len(used):
            used.append(0)
        found[text] = (row, used[row])
        used[row] += lengths[text]
    return found
