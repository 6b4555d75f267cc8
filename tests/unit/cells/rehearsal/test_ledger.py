"""What the ledger books, against what can be counted by hand; and on real tensors as on pretended ones."""

import pytest
import torch

from lm_validity.cells.rehearsal import rehearse
from lm_validity.cells.rehearsal.device import KIND, Ledger, pretended_gpus
from lm_validity.cells.training.loop import FinetuneSettings

SMALL = {"vocab_size": 500, "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4}
SMALL |= {"num_hidden_layers": 2, "max_position_embeddings": 128}
SHAPES = {
    "llama": SMALL | {"model_type": "llama", "num_key_value_heads": 2},
    "gemma2": SMALL | {"model_type": "gemma2", "num_key_value_heads": 2, "head_dim": 16},
    "gpt_neox": SMALL | {"model_type": "gpt_neox"},
    "opt": SMALL | {"model_type": "opt", "ffn_dim": 160, "word_embed_proj_dim": 64},
}


def test_bytes_are_those_of_what_is_alive():
    with pretended_gpus() as ledger:
        kept = torch.zeros(300, 2, device=KIND)  # 2,400 bytes: five blocks of 512
        assert (ledger.live_bytes, ledger.peak_bytes) == (2560, 2560)
        view = kept[:10]
        more = kept + 1
        assert ledger.live_bytes == 2 * 2560
        del more
        assert (ledger.live_bytes, ledger.peak_bytes) == (2560, 2 * 2560)
        del kept
        assert ledger.live_bytes == 2560  # the view holds it
        del view
        assert ledger.live_bytes == 0
        ledger.restart()
        assert ledger.peak_bytes == 0


def test_launches_operations_and_reads_are_counted():
    with pretended_gpus() as ledger:
        left, right = torch.ones(4, 8, device=KIND), torch.ones(8, 16, device=KIND)
        assert counted(ledger, lambda: left @ right) == (1, 0)
        assert ledger.flops == {torch.float32: 2 * 4 * 8 * 16}
        assert counted(ledger, lambda: left.T) == (0, 0)  # a view is no kernel
        assert counted(ledger, lambda: left.sum().item()) == (1, 1)
        assert counted(ledger, lambda: left.cpu()) == (0, 1)
        assert counted(ledger, lambda: (left > 0).tolist()) == (1, 1)
        assert counted(ledger, lambda: left[left > 0])[1] == 1
        assert counted(ledger, lambda: torch.ones(3).sum().item()) == (0, 0)  # the host's own business


def counted(ledger: Ledger, work) -> tuple[int, int]:
    """Kernels launched, and how often the host waited."""
    ledger.restart()
    work()
    return ledger.launches.total(), ledger.host_reads.total()


def test_the_hosts_side_is_real():
    with pretended_gpus():
        assert torch.arange(5).sum().item() == 10
        assert torch.ones(3, device=KIND).cpu().tolist() == [0, 0, 0]  # there is nothing to bring back


def compared(kind: str, checkpointing: bool, **shape) -> tuple[int, int]:
    """Peaks of a pass: on pretended tensors, on real ones of a CPU. Without dropout, whose masks a CPU keeps."""
    config = rehearse.causal_config(kind, SHAPES[kind] | shape)
    settings = FinetuneSettings(
        learning_rate=1e-4, effective_batch=4, dropout=0.0, gradient_checkpointing=checkpointing
    )

    def peak(ledger: Ledger, device: str) -> int:
        lm = rehearse.pretend_model(config, kind, dtype="float32", device=device, batch_size=4, max_length=None)
        lm.scorer = "rows"
        return rehearse.train(lm, ledger, settings, 96, [4])["4"]["peak"]

    with pretended_gpus() as ledger:
        pretended = peak(ledger, KIND)
    with Ledger("cpu") as ledger:
        real = peak(ledger, "cpu")
    return pretended, real


@pytest.mark.parametrize(
    "kind", [one if one == "llama" else pytest.param(one, marks=pytest.mark.slow) for one in SHAPES]
)
def test_training_takes_the_same_memory_on_real_tensors(kind):
    pretended, real = compared(kind, False)
    assert pretended == pytest.approx(real, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHAPES)
def test_recomputed_activations_take_the_same_memory_on_real_tensors(kind):
    pretended, real = compared(kind, True, num_hidden_layers=4)
    assert pretended == pytest.approx(real, rel=0.02)


@pytest.mark.parametrize("name", ["silu", "mish"])
def test_a_derivative_that_is_one_kernel_on_a_gpu_is_one_here(name):
    with pretended_gpus() as ledger:
        x = torch.ones(8, device=KIND, requires_grad=True)
        y = getattr(torch.nn.functional, name)(x)
        ledger.restart()
        y.backward(torch.ones_like(y))
        assert ledger.launches == {f"{name}_backward": 1, "ones_like": 1}
