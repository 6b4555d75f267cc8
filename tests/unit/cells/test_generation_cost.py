"""Generation: batched, and over as soon as every answer of a batch has met its stop string."""

import pytest
import torch

from lm_validity.cells.evaluation import evaluate
from lm_validity.cells.splits import documents, make_splits


@pytest.fixture
def counted(llama, monkeypatch):
    """(model, list of (rows, tokens) of each forward pass)."""
    calls = []
    forward = llama.base.forward

    def count(input_ids=None, **options):
        calls.append(tuple(input_ids.shape))
        return forward(input_ids=input_ids, **options)

    monkeypatch.setattr(llama.base, "forward", count)
    return llama, calls


def test_a_batch_is_generated_together(counted, toy_task):
    lm, calls = counted
    task = toy_task("toy_generation")
    docs = documents(task, make_splits(task).test)
    found = evaluate(lm, task, docs, metric="exact_match,stripped")
    assert max(rows for rows, _ in calls) == 8, "eval_batch_size rows at a time"
    batches = -(-len(docs) // 8)
    assert len(calls) <= batches * 6, "at most max_gen_toks = 6 passes a batch, each of one token after the first"
    assert lm.counters.generated_tokens > 0 and lm.counters.by_phase["test"]["generated_tokens"] > 0
    one = load_toy_answers(lm, task, docs)
    assert list(found.items.response) == one


def load_toy_answers(lm, task, docs) -> list[str]:
    """The answers of one document at a time."""
    answers = []
    for number in range(len(docs)):
        single = type(docs)(docs.task, docs.split, docs.addresses[number : number + 1], docs.docs[number : number + 1])
        answers += list(evaluate(lm, task, single, metric="exact_match,stripped").items.response)
    return answers


def test_generation_ends_when_all_have_stopped(counted, toy_task, monkeypatch):
    """Every next token is the stop string's: one pass a batch instead of six."""
    lm, calls = counted
    stop = lm.tokenizer.encode("\n", add_special_tokens=False)[-1]
    head = lm.base.get_output_embeddings()
    real = head.forward

    def always_stop(hidden):
        logits = real(hidden)
        return torch.full_like(logits, -10.0).index_fill_(-1, torch.tensor([stop]), 10.0)

    monkeypatch.setattr(head, "forward", always_stop)
    task = toy_task("toy_generation")
    docs = documents(task, make_splits(task).test)
    found = evaluate(lm, task, docs, metric="exact_match,stripped")
    assert set(found.items.response) == {""}
    assert len(calls) == -(-len(docs) // 8)
