"""A tiny BERT, a tiny GPT-2 and a small text-classification task, in the formats that real ones have."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from toy_world import write_lines

from lm_validity.cells.trials.data import prefetch_task
from lm_validity.cells.trials.worker import write_tables
from lm_validity.config.sheets import Task
from lm_validity.run.rules.pretrain_on_test import Classification, Pretraining, TaskData, TrialPlan

CLASSES = ("animal", "tool", "plant")
NOUNS = {
    "animal": ["cat", "dog", "cow", "owl", "bee", "fox"],
    "tool": ["saw", "axe", "pen", "jar", "cup", "key"],
    "plant": ["oak", "fig", "ivy", "pea", "yam", "kiwi"],
}
FILLERS = ["the", "a", "old", "new", "big", "red", "is", "was", "near", "on", "here", "there", "seen", "found"]
PROMPT = "Your task is to classify a given text as one of these categories: The what thing it Answer with ### Text"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "</s>")


def toy_rows(count: int = 150, seed: int = 0) -> list[dict]:
    """Texts of 4 to 9 words, one or two of which tell the class."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        label = CLASSES[number % len(CLASSES)]
        words = [str(word) for word in rng.choice(FILLERS, rng.integers(3, 8))]
        for noun in rng.choice(NOUNS[label], rng.integers(1, 3)):
            words.insert(int(rng.integers(len(words) + 1)), str(noun))
        rows.append({"text": " ".join(words), "kind": label, "label": CLASSES.index(label)})
    return rows


def toy_source(folder: Path, texts: list[dict] | None = None, **options) -> Task:
    """The sheet's row of the toy task, whose JSON lines are written into `folder`."""
    path = folder / "toy.jsonl"
    write_lines(path, toy_rows() if texts is None else texts)
    values = {"text": ("text",), "label": "label", "class_names": CLASSES}
    values |= {"description": "The Text is what thing. Answer with what thing it is."}
    return Task(task="toy", path=str(path), **values | options)


def toy_tokenizer(kind: str) -> transformers.PreTrainedTokenizerFast:
    words = sorted({*FILLERS, *CLASSES, *" ".join(map(" ".join, NOUNS.values())).split(), *PROMPT.split()})
    pieces = sorted({"#", ":", "categories", "###", ".", *words})
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*SPECIAL, *pieces])}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if kind == "bert":
        ends = [("[CLS]", SPECIAL.index("[CLS]")), ("[SEP]", SPECIAL.index("[SEP]"))]
        tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
        named = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]", "pad_token": "[PAD]"}
    else:  # no padding token, as GPT-2
        named = {"eos_token": "</s>"}
    named |= {"unk_token": "[UNK]", "model_max_length": 96}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)


def toy_model(kind: str, folder: Path, *, dropout: float = 0.1, pooler: bool = False, width: int = 16) -> Path:
    """A random BERT (with its masked-LM head, and a pooler as hub models have) or GPT-2."""
    tokenizer = toy_tokenizer(kind)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"max_position_embeddings": 96, "initializer_range": 0.2, "intermediate_size": 2 * width}
    if kind == "bert":
        sizes |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout) | {"pad_token_id": 0}
        loader = transformers.BertForPreTraining if pooler else transformers.BertForMaskedLM
    else:
        sizes |= dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), dropout)
        sizes |= dict.fromkeys(("bos_token_id", "eos_token_id"), tokenizer.eos_token_id)
        loader = transformers.GPT2LMHeadModel
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = loader(transformers.AutoConfig.for_model(kind, **sizes))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def toy_plan(kind: str, model: Path, record: dict, **options) -> TrialPlan:
    """A plan that takes a fraction of a second a trial."""
    values = {"m": 12, "n": 15, "subsamples": (1, 2), "model_digest": "toy"}
    pretraining = {"epochs": 1, "learning_rate": 5e-3, "batch_size": 8} | options.pop("pretraining", {})
    classification = {"epochs": 2, "learning_rate": 5e-3, "batch_size": 6} | options.pop("classification", {})
    kinds = (f"tiny-{kind}", str(model), "masked" if kind == "bert" else "causal")
    stages = {"pretraining": Pretraining(**pretraining), "classification": Classification(**classification)}
    return TrialPlan("main", *kinds, TaskData.of_record(record), **stages, **values | options)


def toy_task(folder: Path, rows: list[dict] | None = None) -> dict:
    """The record of the prefetched toy task."""
    return prefetch_task(toy_source(folder, rows), folder / "toy.parquet")


def on_texts(plan: TrialPlan, folder: Path, rows: list[dict]) -> TrialPlan:
    """The plan on other texts."""
    record = toy_task(folder, rows)
    return replace(plan, data=replace(plan.data, path=record["path"], sha256=record["sha256"]))


def table_bytes(plan: TrialPlan, folder: Path, output: Path) -> dict[str, bytes]:
    """The plan's finished tables, byte by byte."""
    output.mkdir(exist_ok=True)
    write_tables(plan, folder, output)
    return {path.name: path.read_bytes() for path in output.iterdir()}
