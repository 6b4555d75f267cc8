"""What is scored, written and trained on is held against plain passes over one text at a time."""

import logging

import numpy as np
import pytest
import torch
from test_scorer import long_model, own, random_requests
from test_scorer import models as models
from toy_run import run_of
from toy_world import answers_of, in_memory, loglikelihood, random_model

from lm_validity.cells.models import passes
from lm_validity.cells.models.passes import CHECK_SHARE
from lm_validity.cells.tasks.evaluation import Example
from lm_validity.cells.training.loop import FinetuneSettings, rows_are_alike
from lm_validity.errors import CellError


def plain_values(model, requests) -> list[float]:
    return [loglikelihood(model, context, continuation) for _, context, continuation in requests]


@pytest.mark.parametrize("way", ["auto", "packed", "cached", "rows"])
def test_a_row_that_changes_with_those_beside_it_is_scored_alone(way):
    """Doge's layers choose among all positions of a batch's rows, padding included, once they are longer than
    `keep_window_size`: of no use is what a short probe says."""
    model = random_model("doge", max_position_embeddings=256, keep_window_size=48)
    draw = np.random.default_rng(1)
    requests = []
    for length, choices in ((40, 4), (90, 9), (30, 30)):
        context = draw.integers(2, 420, length).tolist()
        requests += [(None, context, draw.integers(2, 420, choices).tolist()) for _ in range(4)]
    lm = in_memory(model, adds_bos=True, scorer=way)
    found = [value for value, _ in lm._loglikelihood_tokens(list(requests))]
    assert found == pytest.approx(plain_values(model, requests), abs=1e-3)
    assert lm.alone
    assert [value for value, _ in lm._loglikelihood_tokens(list(requests))] == pytest.approx(found, abs=1e-6)


@pytest.mark.parametrize("way", ["packed", "cached"])
def test_a_way_that_fails_on_long_questions_only_is_given_up(models, way, monkeypatch, caplog):
    score = passes.score

    def broken(kind, model, forward, trees, *options):
        scores = score(kind, model, forward, trees, *options)
        if kind == way and max(map(len, trees)) > 18:  # longer than the probe's
            scores.values[0] -= 1.0
        return scores

    requests = [request for request in random_requests() if len(request[1]) < 90]
    monkeypatch.setattr(passes, "score", broken)
    lm = own(models, "llama", scorer=way)
    with caplog.at_level(logging.WARNING):
        found = [value for value, _ in lm._loglikelihood_tokens(list(requests))]
    assert found == pytest.approx(plain_values(lm.model, requests), abs=1e-3)
    assert way not in lm._allowed and "rows" in lm._allowed and not lm.alone
    assert f"{way} differs by" in caplog.text


def test_the_check_costs_a_fiftieth_and_is_not_repeated(models, monkeypatch):
    plain_passes = []
    plain = passes.plain
    monkeypatch.setattr(
        passes, "plain", lambda *arguments: plain_passes.append(len(arguments[1][1])) or plain(*arguments)
    )
    lm = own(models, "gpt2")
    lm.narrows_head()
    plain_passes.clear()
    requests = random_requests(questions=200)
    lm._loglikelihood_tokens(list(requests))
    first, tokens = len(plain_passes), lm.counters["forward_tokens"]
    assert 2 <= first <= 12, "four kinds of sizes a way"
    for _ in range(4):  # what did not fit into the first budgets
        lm._loglikelihood_tokens(list(requests))
    first = len(plain_passes)
    assert first <= 12
    lm._loglikelihood_tokens(list(requests))
    assert len(plain_passes) == first
    longer = [(None, list(range(5, 95)), [5]), *requests]
    lm._loglikelihood_tokens(longer)
    assert first < len(plain_passes) <= first + 3 and sum(plain_passes[first:]) <= max(CHECK_SHARE * tokens, 95)


@pytest.mark.parametrize("fits", [True, False])
def test_a_request_that_does_not_fit_by_itself_says_nothing(models, fits, monkeypatch):
    def plain(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory") if not fits else RuntimeError("another fault")

    lm = own(models, "gpt2")
    expected = [value for value, _ in lm._loglikelihood_tokens(random_requests())]
    lm.checks.forget()
    monkeypatch.setattr(passes, "plain", plain)
    if fits:
        with pytest.raises(RuntimeError, match="another fault"):
            lm._loglikelihood_tokens(random_requests())
    else:
        assert [value for value, _ in lm._loglikelihood_tokens(random_requests())] == expected


PROMPTS = ("Question: what is the color of Melri?\nAnswer:", "Vix", "Toridan is red. Salu is")


def asked(lm, prompts=PROMPTS):
    return answers_of(lm, prompts, ["\n"], 8)


@pytest.fixture
def writer():
    return in_memory(random_model("llama"), adds_bos=True, model_id="writer")


def test_answers_that_change_with_their_batch_are_written_one_by_one(writer, monkeypatch, caplog):
    """A model that looks at the padding on the left, as one whose positions are counted from the row's beginning."""
    expected = [asked(writer, [prompt])[0] for prompt in PROMPTS]
    assert asked(writer) == expected and not writer.answers_alone
    writer.checks.forget("answers")
    forward = writer.model.forward
    monkeypatch.setattr(
        writer.model, "forward", lambda *args, attention_mask=None, position_ids=None, **kw: forward(*args, **kw)
    )
    with caplog.at_level(logging.WARNING):
        assert asked(writer) == expected
    assert writer.answers_alone and "answers are written one by one" in caplog.text
    assert writer.batch_size == 8, "for scoring"


def test_answers_that_are_no_answers_of_the_model_are_refused(writer, monkeypatch):
    forward = writer.model.forward

    def forgets(*arguments, **options):
        found = forward(*arguments, **options)
        if options.get("use_cache"):  # as a generation that loses its state
            found.logits = found.logits.roll(7, -1)
        return found

    monkeypatch.setattr(writer.model, "forward", forgets)
    with pytest.raises(
        CellError, match=r"writer: log-likelihoods of a prompt's next token are .* from those of a plain pass"
    ):
        asked(writer)


def test_a_prompt_with_other_tokens_in_a_batch_is_written_alone(writer):
    """lm-eval asks the first prompt of a batch whether it begins with a BOS of its own, and believes it for all."""
    expected = [asked(writer, [prompt])[0] for prompt in ("<s>Question: what is the color of", "Vix")]
    writer.checks.forget("answers")
    assert asked(writer, ("<s>Question: what is the color of", "Vix")) == expected


def test_texts_are_trained_on_one_by_one_where_they_change_with_those_beside_them(llama):
    draw = np.random.default_rng(0)
    rows = [torch.from_numpy(draw.integers(2, 420, length)) for length in (90, 60, 55, 20)]
    lm = in_memory(random_model("doge", keep_window_size=24), adds_bos=True)
    assert rows_are_alike(lm, rows[:1]) and not rows_are_alike(lm, rows)
    assert rows_are_alike(llama, rows)


SWITCH = 24


@pytest.fixture
def lm():
    return in_memory(long_model(), max_length=96)


def gradients(lm, micro_batch: int) -> list[torch.Tensor]:
    """Of one step on texts on both sides of the switch."""
    draw = np.random.default_rng(1)
    lengths = (60, SWITCH + 1, SWITCH, 20, 8, 40, 40, 5)
    examples = [Example(tuple(map(int, draw.integers(5, 400, size=size))), 1) for size in lengths]
    settings = FinetuneSettings(learning_rate=1e-3, rank=4, alpha=8, dropout=0.0, micro_batch=micro_batch)
    one = run_of(lm, examples, settings)
    one.pass_tokens = 1e9  # as few passes as possible
    for name, parameter in one.trainings[0].parameters.items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(2))
    one.accumulate(one.trainings, next(one.trainings[0].batches(1)))
    found = [parameter.grad.clone() for parameter in one.trainings[0].parameters.values()]
    one.end()
    return found


def test_gradients_do_not_depend_on_who_is_in_the_micro_batch(lm):
    alone, together = gradients(lm, 1), gradients(lm, 8)
    largest = max(float(each.abs().max()) for each in alone)
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4 * largest, rtol=0)


def test_answers_do_not_depend_on_who_is_in_the_batch(lm):
    draw = np.random.default_rng(4)
    words = [lm.tokenizer.decode([number]) for number in range(5, 200)]
    prompts = ["".join(draw.choice(words, size=size)) for size in (4, 12, 40, 6, 30)]
    alone = [asked(lm, [prompt])[0] for prompt in prompts]
    assert asked(lm, prompts) == alone and len(set(alone)) > 1


def test_lm_evals_code_as_a_fallback_keeps_them_apart_too(lm):
    draw = np.random.default_rng(0)
    draws = [[draw.integers(420, size=length).tolist() for length in (size, 2)] for size in (60, 21, 22, 5)]
    requests = [(None, *texts) for texts in draws]
    lm._allowed = frozenset()
    found = [value for value, _ in lm._loglikelihood_tokens(requests)]
    assert found == pytest.approx(plain_values(lm.model, requests), abs=1e-3)


def test_other_encodings_do_not_depend_on_the_text():
    assert not in_memory(random_model("llama")).outgrows(10**6)
