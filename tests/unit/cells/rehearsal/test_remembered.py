"""An answer that is remembered is the one that torch gave, and nothing is taken for something else."""

import pytest
import torch

from lm_validity.cells.rehearsal import device, rehearse
from lm_validity.cells.rehearsal.device import KIND, pretended_gpus
from lm_validity.run.rehearsals import RehearsalInput


def look(tensor: torch.Tensor) -> tuple:
    return tensor.shape, tensor.stride(), tensor.dtype, str(tensor.device)


def test_the_second_answer_is_like_the_first(monkeypatch):
    monkeypatch.setattr(device.Remembered, "_known", {})
    with pretended_gpus() as ledger:
        x = torch.ones(4, 6, device=KIND)
        works = [lambda: x.T @ x, lambda: x.T + 1, lambda: x.topk(2)[1], lambda: x.to(torch.bfloat16).softmax(0)]
        first = [look(work()) for work in works]
        asked = len(device.Remembered._known)
        assert [look(work()) for work in works] == first
        assert len(device.Remembered._known) == asked
        assert ledger.live_bytes == 512  # all but x is gone


def test_what_is_told_apart(monkeypatch):
    monkeypatch.setattr(device.Remembered, "_known", {})
    with pretended_gpus() as ledger:
        whole = torch.ones(300, dtype=torch.long, device=KIND)
        assert [(whole + one).dtype for one in (1, 1.0, 1)] == [torch.int64, torch.float32, torch.int64]
        other = torch.ones(300, dtype=torch.long, device=f"{KIND}:1")
        assert (other + 1).device.index == 1 and (whole + 1).device.index == 0
        for _ in range(2):
            with pytest.raises(RuntimeError):
                whole + other
        before = ledger.live[0]
        for _ in range(2):
            assert whole.add_(1) is whole and whole.view(3, 100)[1].shape == (100,)
            assert ledger.live[0] == before  # nothing of its own


SHAPE = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 4, "max_position_embeddings": 64}
SETTINGS = {"dtype": "bfloat16", "batch_size": 2, "scorer": "auto", "max_length": None, "trains": True, "writes": True}
SETTINGS |= {"effective_batch": 2, "micro_batch": 2, "rank": 4, "loss": "all", "target_modules": "all-linear"}
SETTINGS |= {"training_tokens": 32}
KINDS = {
    "llama": {"num_key_value_heads": 2},
    "gpt_neox": {},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 16},
    "mixtral": {"num_key_value_heads": 2, "num_local_experts": 4},
    "mamba": {"state_size": 8},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_rehearsal_is_the_same_without_a_memory(kind, monkeypatch):
    """To the byte and the launch: every figure."""

    def measured() -> dict[str, float]:
        question = RehearsalInput({"model_type": kind} | SHAPE | KINDS[kind], SETTINGS, True)
        return rehearse.rehearse(kind, question).details["figures"]

    found = measured()
    monkeypatch.setattr(
        device.Remembered,
        "__call__",
        lambda self, func, types, args, kwargs: self._answer(func, types, args, kwargs),
    )
    assert measured() == found
