"""Kernel launches and bytes moved by one LoRA pass, counted on tensors without content: no GPU, no memory.

    python benchmarks/_launches.py [SHAPE ...]

Every operation that computes something counts as one launch and moves its inputs and outputs once. That is what the
host asks for, not what a GPU was seen to do: a library's matrix product may launch two kernels, and a cache may save
traffic. Views and allocations count nothing. What the adapters add is the difference from a pass of the model alone,
with a gradient of its embeddings.
"""

import argparse
from collections import Counter

import torch
import transformers
from _toys import word_tokenizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import masking_utils

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.training.loop import FinetuneSettings, Training
from lm_validity.cells.training.lora import BatchPosition, add_adapter
from lm_validity.cells.training.text import Example

# configuration, tokens a text
SHAPES = {
    "0.5B": (
        transformers.Qwen2Config(
            hidden_size=896,
            intermediate_size=4864,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            vocab_size=151_936,
        ),
        64,
    ),
    "8B": (
        transformers.LlamaConfig(
            hidden_size=4096,
            intermediate_size=14_336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            vocab_size=128_256,
        ),
        512,
    ),
}
ROWS = 8
NO_LAUNCH = ("empty", "empty_like", "new_empty", "empty_strided", "detach", "_unsafe_view", "_reshape_alias")


class Launches(TorchDispatchMode):
    """Counts operations that compute, and the bytes of what they read and write."""

    def __init__(self):
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not func.is_view and name not in NO_LAUNCH:
            self.kernels[name] += 1
            tensors = [one for one in tree_leaves((args, kwargs, result)) if isinstance(one, torch.Tensor)]
            self.bytes += sum(one.nbytes for one in {id(one): one for one in tensors}.values())
        return result


def flash(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **_):
    """What a GPU runs where there is no mask."""
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, 1) if groups > 1 else each for each in (key, value))
    return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]


def count(shape: str, adapted: bool) -> Launches:
    """One pass of ROWS texts of equal length in bfloat16, forward and backward."""
    config, tokens = SHAPES[shape]
    torch.nn.functional.scaled_dot_product_attention = flash
    masking_utils.find_packed_sequence_indices = lambda position_ids: None  # it reads a value
    BatchPosition.generator = lambda self, device, layer: None  # tensors without content have no random numbers
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        with torch.device("cpu"):
            lm = LanguageModel(model, word_tokenizer(1000), model_id=shape, eval_batch_size=8)
        lm._allowed, lm._splits = frozenset({"rows"}), False  # the probe compares values, of which there are none
        examples = [Example(tuple(range(5, 5 + tokens)), 1)] * ROWS
        settings = FinetuneSettings(learning_rate=1e-4, micro_batch=ROWS)
        position = BatchPosition(1)
        adapters = add_adapter(lm, settings, "all-linear", position).to("meta")
        one = Training(lm, adapters, examples, settings, position)
        batch = next(one.batches(1))
        if not adapted:
            one.model.unload()
            model.get_input_embeddings().weight.requires_grad_()  # so that there is a backward pass
        with Launches() as found:
            one._accumulate(batch, ROWS * (tokens - 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES))
    print(
        "| shape | launches a pass | of the adapters | a layer | GB moved | by the adapters |\n"
        "|---|---|---|---|---|---|"
    )
    for shape in parser.parse_args().shapes:
        whole, alone = count(shape, adapted=True), count(shape, adapted=False)
        moved = whole.bytes - alone.bytes
        launches = whole.kernels.total() - alone.kernels.total()
        layers = 7 * SHAPES[shape][0].num_hidden_layers
        print(
            f"| {shape}, {ROWS} x {SHAPES[shape][1]} tokens | {whole.kernels.total()} | {launches} | "
            f"{launches / layers:.1f} | {whole.bytes / 1e9:.0f} | {moved / 1e9:.0f} |"
        )


if __name__ == "__main__":
    main()
