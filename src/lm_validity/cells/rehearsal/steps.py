"""The work of a run, each kind once, through the code that computes cells: what it takes is in the ledger."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.models.scorer import Way
from lm_validity.cells.models.scorer_plan import Request
from lm_validity.cells.rehearsal.ledger import Ledger
from lm_validity.cells.training import loop
from lm_validity.cells.training.loop import FinetuneSettings, Training
from lm_validity.cells.training.lora import add_adapter
from lm_validity.cells.training.low_rank import BatchPosition
from lm_validity.cells.training.recompute import less_memory
from lm_validity.cells.training.text import Example

CHOICES, CHOICE_TOKENS = 4, 8
WRITTEN = 3  # tokens of an answer: the first comes from the prompt's pass, the others from passes of their own


@dataclass
class Use:
    """What one piece of work took. peak: bytes on the device that has most; weights and all else included."""

    peak: float
    launches: float
    flops: float
    flops_float32: float
    host_reads: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, ledger: Ledger) -> "Use":
        """What the ledger has counted since it was last restarted."""
        in_float32 = sum(count for dtype, count in ledger.flops.items() if dtype.itemsize >= 4)
        return cls(
            ledger.peak_bytes,
            sum(ledger.launches.values()),
            sum(ledger.flops.values()),
            in_float32,
            dict(ledger.host_reads),
        )


def score(lm: LanguageModel, ledger: Ledger, way: Way, questions: int, tokens: int) -> Use:
    """One batch of questions of four choices each, by one of the scorer's ways; `tokens`: of the longest choice with
    its question."""
    requests: list[Request] = [
        (None, [1 + question % 900] * (tokens - CHOICE_TOKENS), [1 + choice] * CHOICE_TOKENS)
        for question in range(questions)
        for choice in range(CHOICES if way != "rows" else 1)
    ]
    lm.scorer = way
    lm.narrows_head()  # the probe comes first, and has a use of its own
    ledger.restart()
    lm._loglikelihood_tokens(requests)
    return Use.of(ledger)


def roll(lm: LanguageModel, ledger: Ledger, tokens: int) -> Use:
    """One window of a perplexity corpus."""
    ledger.restart()
    lm.loglikelihood_rolling([SimpleNamespace(args=(" ".join(["w1"] * (tokens - 1)),))])
    return Use.of(ledger)


def generate(lm: LanguageModel, ledger: Ledger, prompts: int, tokens: int) -> Use:
    """A batch of short answers to prompts of so many tokens: what answers take grows with the cache alone."""
    text = " ".join(["w1"] * (tokens - WRITTEN))
    options = {"until": ["w2"], "max_gen_toks": WRITTEN}
    ledger.restart()
    with _short_answers(lm):
        lm.generate_until([SimpleNamespace(args=(text, dict(options))) for _ in range(prompts)])
    return Use.of(ledger)


class _Enough(Exception):
    pass


@contextlib.contextmanager
def _short_answers(lm: LanguageModel) -> Iterator[None]:
    """Inside the block an answer ends after WRITTEN passes: what would end it is on the device, where nothing is."""
    generate, passes = lm.model.generate, []

    def count(*_: object) -> None:
        passes.append(1)
        if len(passes) > WRITTEN:
            raise _Enough

    def stopped(input_ids: torch.Tensor, max_length: int, **options: Any) -> torch.Tensor:
        passes.clear()
        handle = lm.model.register_forward_pre_hook(count)
        try:
            return generate(input_ids=input_ids, max_length=max_length, **options)
        except _Enough:
            return input_ids.new_zeros(len(input_ids), max_length)
        finally:
            handle.remove()

    lm.model.generate = stopped
    try:
        yield
    finally:
        del lm.model.generate


@dataclass
class TrainingUse:
    """passes: of one forward and backward pass, by micro-batch; update: of the optimizer."""

    passes: dict[int, Use]
    update: Use


def train(
    lm: LanguageModel, ledger: Ledger, settings: FinetuneSettings, tokens: int, micro_batches: Sequence[int]
) -> TrainingUse:
    """A pass at each micro-batch, rows all of `tokens` tokens. As in the middle of a step, the optimizer has its state
    and the weights have the gradients of an earlier pass."""
    position = BatchPosition(1)
    model = add_adapter(lm, settings, settings.target_modules, position)
    try:
        examples = [Example(tuple([1 + place % 900 for place in range(tokens)]), 1)] * settings.effective_batch
        training = Training(lm, model, examples, settings, position)
        (batch,) = training.batches(1)
        short = [replace(row, token_ids=row.token_ids[:2]) for row in batch]
        with less_memory(lm.base, layers=settings.gradient_checkpointing), _one_pass():
            training._accumulate(short, 1)
            training.optimizer.step()
            found = {}
            for rows in micro_batches:
                training.micro_batch = rows
                ledger.restart()
                training._accumulate(batch, 1)
                found[rows] = Use.of(ledger)
            ledger.restart()
            training.update()
            return TrainingUse(found, Use.of(ledger))
    finally:
        model.unload()


@contextlib.contextmanager
def _one_pass() -> Iterator[None]:
    """Inside the block a step has its first pass only: the others would be like it."""
    cut = loop.passes
    loop.passes = lambda *arguments: itertools.islice(cut(*arguments), 1)
    try:
        yield
    finally:
        loop.passes = cut
