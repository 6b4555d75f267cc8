"""Tiny models and local lm-eval tasks, without network, no miniature world."""

import json
import logging
import tempfile
from functools import cache
from pathlib import Path
from unittest import mock

import lm_eval
import torch
import transformers
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from lm_validity.cells.models.language_model import load_language_model
from lm_validity.cells.tasks.evaluation import RESAMPLES, prepare_requests, score_prepared
from lm_validity.cells.tasks.tasks import Documents, fetch_documents, rows

COLORS = ("red", "green", "blue", "dark gray")
NAMES = [
    f"{first}{last}" for first in ("Mel", "Tor", "Vi", "Sa", "Quo") for last in ("ri", "dan", "x", "lu", "pe", "no")
]
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

TASKS = {
    "toy_choice": """
output_type: multiple_choice
doc_to_text: "Question: what is the color of {{name}}?\\nAnswer:"
doc_to_choice: choices
doc_to_target: gold
metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_mutual_info}]
""",
    "toy_cola": """
output_type: multiple_choice
description: "Say yes or no.\\n\\n"
doc_to_text: "{{name}} is {{choices[0]}}. Is this so? "
doc_to_choice: ["no", "yes"]
doc_to_target: "{{(gold == 0) | int}}"
metric_list: [{metric: mcc}, {metric: acc}]
""",
    "toy_blank": """
output_type: multiple_choice
doc_to_text: !function blank.doc_to_text
doc_to_choice: !function blank.doc_to_choice
doc_to_target: !function blank.doc_to_target
metric_list: [{metric: acc}]
""",
    "toy_generation": """
output_type: generate_until
description: "Answer these questions:\\n\\n"
doc_to_text: "Q: color of {{name}}?\\nA:"
doc_to_target: "{{aliases}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 6, do_sample: false}
filter_list:
  - {name: stripped, filter: [{function: remove_whitespace}, {function: take_first}]}
num_fewshot: 3
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true}]
""",
    "toy_corpus": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}, {metric: word_perplexity}]
""",
}

BLANK = """
def doc_to_text(doc):
    return doc["gold"] % 2

def doc_to_choice(doc):
    return [f"We saw {doc['name']} near a {choice}" for choice in doc["choices"][:2]]

def doc_to_target(doc):
    return "house at night."
"""


def toy_rows(split: str) -> list[dict]:
    """Rows whose names differ between the splits, so that nothing overlaps."""
    tag, count = {"train": ("a", 24), "validation": ("b", 10), "test": ("c", 14)}[split]
    rows = []
    for number, name in enumerate(NAMES[:count]):
        shift = number % len(COLORS)
        choices = list(COLORS[shift:] + COLORS[:shift])
        gold = (number * 3 + 1) % 4
        rows.append(
            {
                "name": name + tag,
                "choices": choices,
                "gold": gold,
                "aliases": [choices[gold], choices[gold].upper()],
                "text": f"{name}{tag} is {choices[gold]} and was seen near the old house. " * (1 + number % 7),
                "subject": "names" if number % 2 else "colors",
            }
        )
    return rows


def write_toy_tasks(folder: Path, splits=("train", "validation", "test"), rows=toy_rows) -> Path:
    """The toy tasks over JSON lines in `folder`, which becomes their include_path."""
    files = {}
    for split in splits:
        files[split] = str(folder / "data" / f"{split}.jsonl")
        Path(files[split]).parent.mkdir(parents=True, exist_ok=True)
        Path(files[split]).write_text("".join(json.dumps(row) + "\n" for row in rows(split)))
    kinds = {"train": "training_split", "validation": "validation_split", "test": "test_split"}
    common = "dataset_path: json\n" + f"dataset_kwargs: {json.dumps({'data_files': files})}\n"
    common += "".join(f"{kinds[split]}: {split}\n" for split in splits)
    (folder / "blank.py").write_text(BLANK)
    for name, body in TASKS.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{common}{body.lstrip()}metadata: {{version: 1.0}}\n")
    return folder


def toy_tokenizer(adds_bos: bool, chat: bool) -> transformers.PreTrainedTokenizerFast:
    """Byte-level BPE, so that merges across the border of context and continuation do occur."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [row["text"] + " Question: what is the color of Answer: yes no" for row in toy_rows("train")]
    tokenizer.train_from_iterator(texts, trainer)
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    if chat:
        fast.chat_template = CHAT_TEMPLATE
    return fast


def toy_model(kind: str, folder: Path, *, seed: int = 0, positions: int = 96) -> Path:
    """A random model: `llama` or a `gemma` (their tokenizer adds BOS and has a chat template) or `gpt2` (neither)."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _model_files(kind, seed, positions).items():
        (folder / name).write_bytes(content)
    return folder


@cache
def _model_files(kind: str, seed: int, positions: int) -> dict[str, bytes]:
    tokenizer = toy_tokenizer(adds_bos=kind != "gpt2", chat=kind != "gpt2")
    common = {"vocab_size": 420, "bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.3}
    if kind.startswith("gemma"):
        kinds = {"gemma": transformers.GemmaConfig, "gemma2": transformers.Gemma2Config}
        config = kinds[kind](
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=positions,
            **common,
        )
    elif kind == "llama":
        config = transformers.LlamaConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=positions,
            **common,
        )
    else:
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=positions, **common)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def load_toy(folder: Path, **options):
    return load_language_model(folder, dtype="float32", device="cpu", eval_batch_size=8, **options)


def head_of(documents: Documents, number: int) -> Documents:
    return Documents(documents.task, documents.split, documents.addresses[:number], documents.docs[:number])


def all_documents(task, kind: str = "test") -> Documents:
    return fetch_documents(task, kind, [f"{kind}:{row}" for row in range(len(rows(task, kind)))])


def evaluate(lm, task, docs, *, metric, **options):
    return score_prepared(lm, prepare_requests(lm, task, docs, **options), metric=metric)


def lm_eval_itself(
    model: Path,
    tasks: Path,
    name: str,
    num_fewshot: int = 0,
    *,
    chat: bool = False,
    resamples: int = RESAMPLES,
    **model_args,
):
    """What `lm_eval.simple_evaluate` finds, without its record of the machine, for which it starts pip and git."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with (
        mock.patch("lm_eval.evaluator.add_env_info"),
        mock.patch("lm_eval.evaluator.get_git_commit_hash", return_value=None),
    ):
        return lm_eval.simple_evaluate(
            model="hf",
            model_args={"pretrained": str(model), "dtype": "float32", **model_args},
            tasks=[name],
            num_fewshot=num_fewshot,
            device="cpu",
            batch_size=8,
            bootstrap_iters=resamples,
            apply_chat_template=chat,
            task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        )
