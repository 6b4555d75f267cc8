"""What scoring and training do not keep: logits of all positions at once, attention matrices; and never a read of the
GPU in a step. The numbers are the same."""

import logging

import numpy as np
import pytest
import torch
import transformers
from test_scorer import SHARED, differences, random_model, random_requests
from torch.utils._python_dispatch import TorchDispatchMode
from toy_run import run_of
from toy_world import toy_tokenizer

from lm_validity.cells.models import passes
from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.tasks.evaluation import Example
from lm_validity.cells.training.loop import FinetuneSettings, TrainingRun, layers_recomputed

SPLIT = ["llama", "gpt2", "pythia", "opt", "gemma2", "mamba"]


def model_of(name: str) -> LanguageModel:
    model = random_model(name)
    return LanguageModel(model, toy_tokenizer(adds_bos=False, chat=False), model_id=name, eval_batch_size=8)


@pytest.fixture(params=SPLIT)
def lm(request) -> LanguageModel:
    return model_of(request.param)


def largest_logits(lm) -> list[int]:
    """Positions that each call of the output head sees from now on."""
    seen = []
    lm.base.get_output_embeddings().register_forward_hook(
        lambda module, inputs, output: seen.append(output[..., 0].numel())
    )
    return seen


def training(lm, micro_batch: int = 4) -> TrainingRun:
    """Fresh adapters in training on sixteen texts of 5 to 30 tokens, always the same."""
    draw = np.random.default_rng(1)
    examples = [Example(tuple(map(int, draw.integers(5, 400, size=size))), 1) for size in draw.integers(5, 30, size=16)]
    return run_of(lm, examples, FinetuneSettings(learning_rate=3e-3, rank=4, alpha=8, micro_batch=micro_batch))


def steps(one: TrainingRun) -> tuple[list[float], list[torch.Tensor]]:
    """Losses and adapter weights after two steps."""
    (member,) = one.trainings
    losses = [float(one.step(one.trainings, batch)) for batch in member.batches(1)]
    weights = [weight.detach().clone() for weight in member.parameters.values()]
    one.end()
    return losses, weights


def test_scores_in_parts_are_those_of_all_logits_at_once(lm, monkeypatch):
    requests = [request for request in random_requests() if len(request[1]) < 80]
    expected = lm._loglikelihood_tokens(requests)
    monkeypatch.setattr(passes, "PART", 6 * 420)
    monkeypatch.setattr(lm, "_holds", lambda *_: True)  # the check is a plain pass over one text, whole
    seen = largest_logits(lm)
    assert differences(lm._loglikelihood_tokens(requests), expected, requests) < 2e-5
    assert max(seen) == 6, "never more positions than a part"


def test_a_head_that_is_not_apart_is_not_split(monkeypatch):
    lm = model_of("llama")
    monkeypatch.setattr(type(lm.base), "get_decoder", lambda self: None)
    monkeypatch.setattr(type(lm.base), "base_model", property(lambda self: self))
    requests = random_requests()[:8]
    found = lm._loglikelihood_tokens(requests)
    assert lm.head_part() is None and lm._allowed == SHARED
    monkeypatch.setattr(passes, "PART", 6 * 420)
    seen, softmax = [], torch.log_softmax
    monkeypatch.setattr(
        torch, "log_softmax", lambda logits, *a, **k: seen.append(len(logits)) or softmax(logits, *a, **k)
    )
    assert lm._loglikelihood_tokens(requests) == found
    assert max(seen) == 6, "the softmax is in parts all the same"


def test_training_in_parts_keeps_no_logits_and_changes_rounding_only(lm, monkeypatch):
    losses, weights = steps(training(lm))
    monkeypatch.setattr(passes, "PART", 6 * 420)
    one = training(lm)
    seen = largest_logits(lm)  # from here on: which layers get adapters is found out on a text of its own
    again, others = steps(one)
    assert max(seen) == 6
    assert again == pytest.approx(losses, rel=1e-5)
    assert max(float((one - other).abs().max()) for one, other in zip(weights, others, strict=True)) < 1e-4


def test_lm_evals_scorer_means_whole_logits():
    lm = model_of("llama")
    lm.scorer = "lm-eval"
    assert lm.head_part() is None


class Reads(TorchDispatchMode):
    """Operations that a GPU would have to answer before the host can go on, and copies to the host."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.found: list[str] = []
        for name in ("cpu", "tolist"):
            plain = getattr(torch.Tensor, name)
            monkeypatch.setattr(torch.Tensor, name, self._noting(name, plain))

    def _noting(self, name, plain):
        def noted(*arguments, **options):
            self.found.append(name)
            return plain(*arguments, **options)

        return noted

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(one is not None and one.dtype == torch.bool for one in args[1])
        if by_mask or name in ("nonzero", "_local_scalar_dense", "masked_select", "unique"):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("part", [passes.PART, 6 * 420])
def test_a_training_step_reads_nothing_back(narrow, part, monkeypatch):
    monkeypatch.setattr(passes, "PART", part)
    lm = model_of("llama")
    lm.scorer = "auto" if narrow else "lm-eval"
    one = training(lm)
    batches = list(one.trainings[0].batches(1))
    one.step(one.trainings, batches[0])
    with Reads(monkeypatch) as reads:
        one.step(one.trainings, batches[1])
    assert reads.found == []


@pytest.mark.parametrize("way", ["packed", "cached", "rows"])
@pytest.mark.parametrize("part", [passes.PART, 6 * 420])
def test_scores_are_read_once_however_many_batches_there_are(way, part, monkeypatch):
    lm = model_of("llama")
    lm.scorer = way
    requests = [request for request in random_requests() if len(request[1]) < 80]
    lm._loglikelihood_tokens(requests[:2])
    monkeypatch.setattr(passes, "PART", part)
    lm.batch_size_per_gpu = 2
    calls = []
    lm.base.register_forward_pre_hook(lambda module, inputs: calls.append(1))
    with Reads(monkeypatch) as reads:
        lm._loglikelihood_tokens(requests)
    assert len(calls) > 4 and [name for name in reads.found if name != "_local_scalar_dense"] == ["cpu"]
    first = reads.found.index("cpu")
    assert "_local_scalar_dense" not in reads.found[:first], "what comes after is on the host already"


def test_checkpointing_without_effect_is_said(caplog):
    config = transformers.OpenAIGPTConfig(vocab_size=50, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    with caplog.at_level(logging.WARNING), layers_recomputed(transformers.OpenAIGPTLMHeadModel(config)):
        pass
    assert "gradient_checkpointing has no effect: OpenAIGPTLMHeadModel" in caplog.text
