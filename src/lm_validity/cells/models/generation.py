"""Writing answers token by token: when a row is over, what a broken logit is, and lm-eval's words for sampling."""

from collections.abc import Sequence
from typing import Any

import torch
import transformers


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
        for row, end in enumerate(ends):
            for length, strings in () if self.done[row] else self.by_length.items():
                text = self.tokenizer.decode(end[-length:])
                self.done[row] |= any(string in text for string in strings)
        return torch.tensor(self.done, device=input_ids.device)


class WatchLogits(transformers.LogitsProcessor):
    """Remembers on the device whether generation met a logit that is NaN or +inf. Greedy search would take an argmax
    of NaN for an answer, which then scores 0."""

    def __init__(self) -> None:
        self.broken: torch.Tensor | None = None

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """The logits as they came: only looked at."""
        found = (scores.isnan() | scores.isposinf()).any()
        self.broken = found if self.broken is None else self.broken | found
        return scores


def sampling_options(options: dict[str, Any]) -> dict[str, Any]:
    """A task's generation options for transformers, by lm-eval's rule: greedy where no temperature is set, or 0."""
    options = {"temperature": 0.0} | options
    if options["temperature"] == 0.0 and options.get("do_sample") is None:
        options["do_sample"] = False
    if options["temperature"] == 0.0 and options["do_sample"] is False:
        del options["temperature"]
    return options
