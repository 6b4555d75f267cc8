"""The bias study's part of the miniature: a tiny BERT trained to the byte, and text-classification tasks."""

import json
from collections import Counter

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from lm_validity.cells.training.miniature import pretrain_model
from lm_validity.config.sections import MiniatureSettings
from lm_validity.config.sheets import MiniatureModel
from lm_validity.miniature.build import TASKS, TEXTS, write_world
from lm_validity.miniature.world import make_world

SETTINGS = MiniatureSettings(seed=5, batch_documents=32)
ROW = MiniatureModel(
    model="forum-bert", family="forum", architecture="bert", size="xs", hidden_size=32, layers=2, steps=100,
    learning_rate=5e-3, studies="bias",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("miniature")
    write_world(SETTINGS, folder / "world")
    for name in ("first", "second"):
        pretrain_model(SETTINGS, folder / "world", ROW, folder / name)
    return folder


def test_a_bert_is_in_hub_format_and_the_same_bytes_twice(made):
    assert (made / "first" / "model.safetensors").read_bytes() == (made / "second" / "model.safetensors").read_bytes()
    tokenizer = AutoTokenizer.from_pretrained(made / "first")
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("the boats near the road")["input_ids"])
    assert tokens == ["[CLS]", "the", "boats", "near", "the", "road", "[SEP]"]
    loss = json.loads((made / "first" / "training.json").read_text())["points"][-1]["loss"]
    model = AutoModelForMaskedLM.from_pretrained(made / "first", dtype=torch.float32)
    assert loss < 0.8 * torch.tensor(float(model.config.vocab_size)).log().item()
    # the pooler that hub BERTs bring is there
    found = AutoModelForSequenceClassification.from_pretrained(made / "first", output_loading_info=True)[1]
    assert set(found["missing_keys"]) == {"classifier.weight", "classifier.bias"}


def test_classification_tasks_are_balanced_distinct_and_in_the_worlds_words(made):
    tokenizers = [AutoTokenizer.from_pretrained(made / "world" / name) for name in ("tokenizer", "tokenizer_masked")]
    assert len(TASKS) >= 4
    for task in TASKS:
        lines = (made / "world" / "classification" / f"{task.name}.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        assert rows == task.rows(make_world(SETTINGS))
        assert len({row["text"] for row in rows}) == len(rows) == TEXTS
        counts = Counter(row["label"] for row in rows)
        assert set(counts) == set(range(len(task.class_names))) and len(set(counts.values())) == 1
        for tokenizer in tokenizers:
            for text in [*task.class_names, *(row["text"] for row in rows)]:
                assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"], text
        # no word gives a class away: each of a class's words occurs in another class too, or is one of many
        for label in counts:
            own = Counter(word for row in rows if row["label"] == label for word in set(row["text"].split()))
            elsewhere = {word for row in rows if row["label"] != label for word in row["text"].split()}
            assert max((own[word] for word in set(own) - elsewhere), default=0) < 0.1 * counts[label]
