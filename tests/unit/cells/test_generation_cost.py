"""Generation: batched, and over as soon as every answer of a batch has met its stop string."""

from types import SimpleNamespace

import pytest
import torch
from lm_eval.models.huggingface import HFLM
from toy_world import evaluate

from lm_validity.cells.models.language_model import sampling_options
from lm_validity.cells.models.provenance import errors_only
from lm_validity.cells.tasks.splits import documents, make_splits


@pytest.fixture
def counted(llama, monkeypatch):
    """(model, list of (rows, tokens) of each forward pass)."""
    calls = []
    forward = llama.base.forward

    def count(input_ids=None, **options):
        calls.append(tuple(input_ids.shape))
        return forward(input_ids=input_ids, **options)

    monkeypatch.setattr(llama.base, "forward", count)
    monkeypatch.setattr(llama, "check_answers", lambda *answers, **options: None)  # whose passes are not generation's
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


PROMPTS = [f"Q: {name}" for name in ("moss", "a stone", "the old house", "tea", "is", "was seen near", "color")]


def as_requests(stops: list[str], longest: int = 24) -> list:
    options = {"until": stops, "max_gen_toks": longest, "do_sample": False}
    return [SimpleNamespace(args=(prompt, options)) for prompt in PROMPTS]


def one_at_a_time(lm, requests) -> list[str]:
    """lm-eval's own answers at batch 1."""
    with errors_only("lm_eval.models.huggingface"):
        theirs = HFLM(pretrained=lm.base, tokenizer=lm.tokenizer, batch_size=1)
    return theirs.generate_until(requests, disable_tqdm=True)


@pytest.fixture
def walking(lm, monkeypatch):
    """(model whose next token is a function of the last one, list of its forward passes): its answers are lively."""
    forward, passes = lm.base.forward, []

    def walk(input_ids=None, **options):
        passes.append(input_ids.shape)
        found = forward(input_ids=input_ids, **options)
        following = 278 + (21 * input_ids[:, -1] + 3) % 100  # goes through 100 words of the vocabulary
        found.logits = torch.nn.functional.one_hot(following, found.logits.shape[-1])[:, None].float()
        return found

    monkeypatch.setattr(lm.base, "forward", walk)
    monkeypatch.setattr(lm, "check_answers", lambda *answers, **options: None)  # whose passes are not generation's
    return lm, passes


def different_stops(lm) -> list[str]:
    """For each prompt a string of its answer, unless the answer holds another prompt's."""
    stops: list[str] = []
    for number, answer in enumerate(one_at_a_time(lm, as_requests(["never said"]))):
        if not any(stop in answer for stop in stops):
            stops.append(answer[5 + 2 * number : 9 + 2 * number])
    assert len(stops) > 1, "all answers hold one string: nothing would be tested"
    return stops


@pytest.mark.parametrize("names_an_end", [True, False])
def test_each_row_ends_with_its_own_stop_string(walking, monkeypatch, names_an_end):
    """Rows that meet different strings: lm-eval's answers at batch 1, and a batch as long as its longest answer. Not
    every model's configuration names an end-of-text token."""
    lm, passes = walking
    if not names_an_end:
        monkeypatch.setattr(lm.base.generation_config, "eos_token_id", None)
    requests, alone = as_requests(different_stops(lm)), []
    for request in requests:
        passes.clear()
        lm.generate_until([request])
        alone.append(len(passes))
    passes.clear()
    found = lm.generate_until(requests)
    assert len(passes) == max(alone) < 24, "lm-eval goes on to 24 tokens, because no string is in all answers"
    assert found == one_at_a_time(lm, requests)
    assert len(set(alone)) > 1 and len(set(found)) > 1


@pytest.mark.parametrize("names_an_end", [True, False])
def test_nothing_stands_behind_the_end_of_a_text(lm, monkeypatch, names_an_end):
    """Rows that meet the end-of-text token, each at its own word: what the others still write is not theirs."""
    end, forward = lm.tokenizer.eos_token_id, lm.base.forward
    if not names_an_end:
        monkeypatch.setattr(lm.base.generation_config, "eos_token_id", None)

    def walk(input_ids=None, **options):
        found = forward(input_ids=input_ids, **options)
        following = 278 + (21 * input_ids[:, -1] + 3) % 100
        following[following % 9 == 0] = end
        found.logits = torch.nn.functional.one_hot(following, found.logits.shape[-1])[:, None].float()
        return found

    monkeypatch.setattr(lm.base, "forward", walk)
    requests = as_requests(["never said"])
    alone = [lm.generate_until([request])[0] for request in requests]
    assert lm.generate_until(requests) == alone == one_at_a_time(lm, requests)
    assert len({len(answer.split()) for answer in alone}) > 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"do_sample": False}),
        ({"temperature": 0.0, "do_sample": None}, {"do_sample": False}),
        ({"temperature": 0.0, "do_sample": False, "top_p": 1}, {"do_sample": False, "top_p": 1}),
        ({"temperature": 0.7}, {"temperature": 0.7}),
        ({"temperature": 0.7, "do_sample": True}, {"temperature": 0.7, "do_sample": True}),
        ({"do_sample": True}, {"temperature": 0.0, "do_sample": True}),
    ],
)
def test_sampling_by_lm_evals_rule(given, expected, lm, monkeypatch):
    assert sampling_options(given) == expected
    seen = {}
    with errors_only("lm_eval.models.huggingface"):
        theirs = HFLM(pretrained=lm.base, tokenizer=lm.tokenizer, batch_size=1)
    monkeypatch.setattr(lm.base, "generate", lambda **options: seen.update(options))
    theirs._model_generate(torch.ones(1, 2, dtype=torch.long), 4, [], **given)
    own = ("input_ids", "max_length", "stopping_criteria", "pad_token_id", "use_cache")
    assert {key: value for key, value in seen.items() if key not in own} == expected
