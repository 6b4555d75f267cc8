"""What beginning every rolling window with the beginning-of-text token is worth to a model that needs it.

    python workflow/scripts/measure_document_bos.py

Trains a tiny Gemma on windows of the miniature world's prose that all begin with the token, as Gemma's were, and scores
long documents of it under each setting of `evaluation: document_bos`. Prints the table of
docs/reference/prompts_and_perplexity.md. About half a CPU-minute; not part of the tests.
"""

import random
import tempfile
from itertools import islice
from pathlib import Path

import torch
from transformers import AutoTokenizer, GemmaConfig, GemmaForCausalLM

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.config.sections import MiniatureSettings
from lm_validity.miniature.build import BEGIN_ID, build_tokenizer, vocabulary, write_tokenizer
from lm_validity.miniature.world import make_world, pretraining_documents

WINDOW, STEPS, BATCH, DOCUMENTS, SENTENCES = 32, 800, 32, 40, 60


def texts(seed: int, count: int) -> list[str]:
    """Long documents: sentences of the miniature's prose one after another."""
    settings = MiniatureSettings(grammar_share=0.0, format_share=0.0)
    stream = pretraining_documents(settings, make_world(settings), "web", "science", random.Random(seed))
    return [" ".join(islice(stream, SENTENCES)) for _ in range(count)]


def train(model: GemmaForCausalLM, tokens: list[int], generator: torch.Generator) -> None:
    """Language modelling on windows that begin with the token and go on anywhere in the text."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    stream = torch.tensor(tokens)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - step / STEPS)
        starts = torch.randint(0, len(stream) - WINDOW, (BATCH,), generator=generator)
        rows = torch.stack([stream[start : start + WINDOW - 1] for start in starts])
        rows = torch.cat([torch.full((BATCH, 1), BEGIN_ID), rows], dim=1)
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    world = make_world(MiniatureSettings())
    config = GemmaConfig(
        vocab_size=len(vocabulary(world)), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=32, max_position_embeddings=WINDOW,
        bos_token_id=BEGIN_ID, eos_token_id=BEGIN_ID, pad_token_id=None, initializer_range=0.08,
    )  # fmt: skip
    model = GemmaForCausalLM(config)
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(build_tokenizer(world), Path(folder))
        tokenizer = AutoTokenizer.from_pretrained(folder)
    training = [token for text in texts(1, 400) for token in tokenizer.encode(text, add_special_tokens=False)]
    train(model.train(), training, torch.Generator().manual_seed(0))
    documents = texts(2, DOCUMENTS)
    size = sum(len(text.encode()) for text in documents)
    for setting in ("every", "once", "lm-eval"):
        lm = LanguageModel(model.eval(), tokenizer, model_id="gemma", eval_batch_size=32, window_prefix=setting)
        nats = sum(lm.loglikelihood_rolling([_Request(text) for text in documents]))
        print(f"| `{setting}` | {-nats / size / torch.log(torch.tensor(2.0)).item():.4f} |")


class _Request:
    def __init__(self, text: str):
        self.args = (text,)


if __name__ == "__main__":
    main()
