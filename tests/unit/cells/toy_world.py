"""Tiny models and local lm-eval tasks, without network, no miniature world."""

import json
import logging
import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import lm_eval
import torch
import transformers
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from lm_validity.cells.models.language_model import LanguageModel, load_language_model
from lm_validity.cells.tasks.evaluation import RESAMPLES, prepare_requests, score_prepared
from lm_validity.cells.tasks.splits import documents, make_splits
from lm_validity.cells.tasks.tasks import Documents, address_of, fetch_documents, rows

COLORS = ("red", "green", "blue", "dark gray")
ENDS = ("ri", "dan", "x", "lu", "pe", "no")
NAMES = [f"{first}{last}" for first in ("Mel", "Tor", "Vi", "Sa", "Quo") for last in ENDS]
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
        shift, gold = number % len(COLORS), (number * 3 + 1) % 4
        choices = list(COLORS[shift:] + COLORS[:shift])
        text = f"{name}{tag} is {choices[gold]} and was seen near the old house. " * (1 + number % 7)
        row = {"name": name + tag, "choices": choices, "gold": gold, "aliases": [choices[gold], choices[gold].upper()]}
        rows.append(row | {"text": text, "subject": "names" if number % 2 else "colors"})
    return rows


def write_lines(path, rows) -> None:
    """The rows as JSON lines."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_toy_tasks(folder: Path, splits=("train", "validation", "test"), rows=toy_rows) -> Path:
    """The toy tasks over JSON lines in `folder`, which becomes their include_path."""
    files = {split: str(folder / "data" / f"{split}.jsonl") for split in splits}
    for split, path in files.items():
        write_lines(path, rows(split))
    kinds = {"train": "training_split", "validation": "validation_split", "test": "test_split"}
    common = "dataset_path: json\n" + f"dataset_kwargs: {json.dumps({'data_files': files})}\n"
    common += "".join(f"{kinds[split]}: {split}\n" for split in splits)
    (folder / "blank.py").write_text(BLANK)
    for name, body in TASKS.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{common}{body.lstrip()}metadata: {{version: 1.0}}\n")
    return folder


def toy_tokenizer(*, adds_bos: bool = False, chat: bool = False) -> transformers.PreTrainedTokenizerFast:
    """Byte-level BPE, so that merges across the border of context and continuation do occur."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = [row["text"] + " Question: what is the color of Answer: yes no" for row in toy_rows("train")]
    trained = train_bytes(tokenizer, texts, 420)
    if adds_bos:
        begins = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
        trained.backend_tokenizer.post_processor = begins
    trained.chat_template = CHAT_TEMPLATE if chat else None
    return trained


def train_bytes(tokenizer: Tokenizer, texts: list[str], size: int) -> transformers.PreTrainedTokenizerFast:
    """The tokenizer, trained on the texts from an alphabet of bytes, with a token at the beginning and at the end."""
    tokenizer.decoder, alphabet = decoders.ByteLevel(), pre_tokenizers.ByteLevel.alphabet()
    ends = {"special_tokens": ["<s>", "</s>"]}
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False, **ends)
    tokenizer.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def word_tokenizer(words) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of whole words, all others being unknown."""
    numbers = {word: number for number, word in enumerate(["<unk>", "</s>", *words])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")


SIZES = {"vocab_size": 420, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "max_position_embeddings": 96, "initializer_range": 0.3}
SIZES |= {"bos_token_id": 0, "eos_token_id": 1}
OF_KIND = {kind: {"num_key_value_heads": 1, "head_dim": 16} for kind in ("gemma", "gemma2", "gemma3_text")}
OF_KIND["opt"] = {"ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.3}


def random_model(kind: str, seed: int = 0, **sizes) -> transformers.PreTrainedModel:
    """A tiny model of any architecture of transformers, whose weights are drawn at random."""
    config = transformers.AutoConfig.for_model(kind, **SIZES | OF_KIND.get(kind, {}) | sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def save_model(model: transformers.PreTrainedModel, folder: Path, **tokenizer: bool) -> Path:
    """The files of the model beside those of a toy tokenizer."""
    model.save_pretrained(folder)
    toy_tokenizer(**tokenizer).save_pretrained(folder)
    return folder


def toy_model(kind: str, folder: Path, *, seed: int = 0) -> Path:
    """The files of a random model; the tokenizer adds BOS and has a chat template, that of `gpt2` neither."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _model_files(kind, seed).items():
        (folder / name).write_bytes(content)
    return folder


@cache
def _model_files(kind: str, seed: int) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        save_model(random_model(kind, seed), Path(folder), adds_bos=kind != "gpt2", chat=kind != "gpt2")
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def load_toy(folder: Path, **options) -> LanguageModel:
    return load_language_model(folder, **{"dtype": "float32", "device": "cpu", "eval_batch_size": 8} | options)


def in_memory(model: transformers.PreTrainedModel, *, adds_bos: bool = False, **options) -> LanguageModel:
    """The model with a toy tokenizer."""
    tokenizer = toy_tokenizer(adds_bos=adds_bos)
    return LanguageModel(model, tokenizer, **{"model_id": "toy", "eval_batch_size": 8} | options)


def edit(path: Path, **changes) -> None:
    """Change keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def never_fits(*arguments, **options):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def request(*arguments) -> SimpleNamespace:
    """What lm-eval asks a model for."""
    return SimpleNamespace(args=arguments)


def answers_of(lm, prompts, until=("never said",), longest: int = 24, **options) -> list[str]:
    """What a model writes behind the prompts, as a task with these generation settings asks for it."""
    options = {"until": list(until), "max_gen_toks": longest, "do_sample": False} | options
    return lm.generate_until([request(prompt, dict(options)) for prompt in prompts])


def loglikelihood(model, context: list[int], continuation: list[int]) -> float:
    """The sum of the continuation's log-probabilities in one plain pass over one text."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*context, *continuation[:-1]]])).logits[0].log_softmax(-1)
    return sum(logits[place, token].item() for place, token in enumerate(continuation, start=len(context) - 1))


def head_of(parts: Documents, number: int | None) -> Documents:
    return Documents(parts.task, parts.split, parts.addresses[:number], parts.docs[:number])


def all_documents(task, kind: str = "test") -> Documents:
    """All documents of a split in order, of a group's tasks too."""
    return fetch_documents(task, kind, [address_of(doc, kind, row) for row, doc in enumerate(rows(task, kind))])


def split_documents(task, part: str = "train", number: int | None = None) -> Documents:
    """The first documents, or all, of a part of what the task is split into."""
    return head_of(documents(task, getattr(make_splits(task), part)), number)


def evaluate(lm, task, docs, *, metric, **options):
    return score_prepared(lm, prepare_requests(lm, task, docs, **options), metric=metric)


def lm_eval_itself(model: Path, tasks: Path, name: str, num_fewshot=0, *, chat=False, resamples=RESAMPLES, **more):
    """What `lm_eval.simple_evaluate` finds, without its record of the machine, for which it starts pip and git."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with (
        mock.patch("lm_eval.evaluator.add_env_info"),
        mock.patch("lm_eval.evaluator.get_git_commit_hash", return_value=None),
    ):
        return lm_eval.simple_evaluate(
            model="hf",
            model_args={"pretrained": str(model), "dtype": "float32", **more},
            tasks=[name],
            num_fewshot=num_fewshot,
            device="cpu",
            batch_size=8,
            bootstrap_iters=resamples,
            apply_chat_template=chat,
            task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        )
