"""Random models of stated size with a tokenizer of one token a word, and benchmarks of stated lengths."""

import json
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers


def word_tokenizer(vocabulary: int) -> transformers.PreTrainedTokenizerFast:
    """`w0 w1 …`: a token a word, so that lengths are what they are said to be."""
    words = {"</s>": 0, "Question:": 1, "Answer:": 2} | {f"w{number}": number for number in range(3, vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", bos_token="</s>")


def random_model(width: int, layers: int, vocabulary: int, seed: int = 0, kind: str = "llama"):
    """An untrained Llama or GPT-2 in float32."""
    # wider than usual: near-uniform predictions would agree whatever was computed
    common = {"vocab_size": vocabulary, "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.05}
    if kind == "llama":
        config = transformers.LlamaConfig(
            hidden_size=width,
            intermediate_size=width * 8 // 3 // 8 * 8,
            num_hidden_layers=layers,
            num_attention_heads=max(1, width // 64),
            max_position_embeddings=512,
            **common,
        )
    else:
        config = transformers.GPT2Config(
            n_embd=width, n_layer=layers, n_head=max(1, width // 64), n_positions=512, **common
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def parameters(model) -> str:
    return f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f}M parameters"


def describe_model(model) -> dict:
    """The sizes that a ratio depends on."""
    config = model.config.get_text_config()
    return {
        "architecture": config.model_type,
        "width": config.hidden_size,
        "layers": config.num_hidden_layers,
        "vocabulary": config.vocab_size,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def questions(
    count: int, context: tuple[int, int], choice: tuple[int, int], vocabulary: int, seed: int = 0, choices: int = 4
) -> list[dict]:
    """Documents with contexts and choices of lengths drawn evenly from the two ranges (ends included). The right choice
    begins with a word that the wrong ones do not have, so that there is something to learn."""
    random = np.random.default_rng(seed)

    def words(length: int) -> list[str]:
        return [f"w{number}" for number in random.integers(13, vocabulary, size=length)]

    found = []
    for number in range(count):
        gold = int(random.integers(choices))
        texts = []
        for place in range(choices):
            length = int(random.integers(choice[0], choice[1] + 1))
            first = 3 + int(random.integers(5)) + (0 if place == gold else 5)
            texts.append(" ".join([f"w{first}", *words(length - 1)]))
        length = int(random.integers(context[0], context[1] + 1))
        found.append({"id": f"{seed}-{number}", "context": " ".join(words(length)), "choices": texts, "gold": gold})
    return found


def write_task(folder: Path, name: str, splits: dict[str, list[dict]]) -> None:
    """A multiple-choice task of lm-eval over JSON lines; `splits` by train, validation, test."""
    files = {}
    for split, rows in splits.items():
        path = folder / "data" / name / f"{split}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        files[split] = str(path)
    keys = {"train": "training_split", "validation": "validation_split", "test": "test_split"}
    lines = [
        f"task: {name}",
        "dataset_path: json",
        f"dataset_kwargs: {json.dumps({'data_files': files})}",
        *(f"{keys[split]}: {split}" for split in splits),
        "output_type: multiple_choice",
        'doc_to_text: "{{context}}"',
        "doc_to_choice: choices",
        "doc_to_target: gold",
        "metric_list: [{metric: acc}, {metric: acc_norm}]",
        "metadata: {version: 1.0}",
    ]
    (folder / f"{name}.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
