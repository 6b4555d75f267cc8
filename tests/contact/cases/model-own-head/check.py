"""Logits are those of the model as it was saved."""

import json

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from lm_validity.cells.models.language_model import load_language_model


def check(case, out):
    """The plain model in memory before it was saved is the reference."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=20, initializer_range=0.3, tie_word_embeddings=False, **sizes)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(out)
    words = ["</s>", "<unk>", "The", "answer", "is", "yes"]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>").save_pretrained(out)
    settings = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(settings | {"tie_word_embeddings": True}))
    lm = load_language_model(out, dtype="float32", device="cpu", eval_batch_size=2)
    rows = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.equal(lm.base(input_ids=rows).logits, model(input_ids=rows).logits)
