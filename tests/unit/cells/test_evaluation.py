"""Our scores against `lm_eval.simple_evaluate` run as itself, for every output type and prompt."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import toy_world
from lm_eval.api.filter import Filter
from lm_eval.api.metrics import stderr_for_metric
from toy_world import all_documents, evaluate, head_of, lm_eval_itself, load_toy, toy_model

from lm_validity.cells.tasks import evaluation
from lm_validity.cells.tasks.evaluation import RESAMPLES, NonFiniteScore, metric_value, prepare_requests
from lm_validity.cells.tasks.tasks import Documents, fetch_documents
from lm_validity.errors import CellError

METRICS = {
    "toy_choice": "acc,none",
    "toy_cola": "mcc,none",
    "toy_blank": "acc,none",
    "toy_generation": "exact_match,stripped",
    "toy_corpus": "bits_per_byte,none",
}
CASES = [
    (kind, name, prompt)
    for kind, prompt in (("llama", "plain"), ("llama", "chat"), ("gpt2", "plain"))
    for name in METRICS
]


@pytest.mark.parametrize(("kind", "name", "prompt"), CASES)
def test_equals_lm_eval(kind, name, prompt, model_folders, toy_folder, toy_task, monkeypatch):
    # a document of a corpus gets one BOS: lm-eval's own setting for that is add_bos_token=False
    rolling = {"add_bos_token": False} if name == "toy_corpus" else {}
    # RESAMPLES of mcc take six seconds, here and in lm-eval: 50 are enough to be the same, or not

    def few(metric, bootstrap_iters):
        assert bootstrap_iters in (RESAMPLES, 50)  # ours, and what lm-eval is asked for
        return stderr_for_metric(metric, bootstrap_iters=50)

    monkeypatch.setattr(evaluation.harness, "stderr_for_metric", few)
    theirs = lm_eval_itself(model_folders[kind], toy_folder, name, chat=prompt == "chat", resamples=50, **rolling)
    expected, samples = theirs["results"][name], theirs["samples"][name]
    task = toy_task(name)
    # the toy template puts a blank before an answer, which lm-eval leaves out
    lm = load_toy(model_folders[kind])
    lm.answer_start = ""
    found = evaluate(lm, task, all_documents(task), metric=METRICS[name], prompt=prompt)

    assert len(found.items) == expected["sample_len"] == 14
    keys = {key for key in expected if "," in key and "_stderr," not in key}
    assert set(found.metrics) == keys
    for key, (value, stderr) in found.metrics.items():
        metric, _, filter_name = key.partition(",")
        # sums of log-likelihoods move by rounding with the order of documents; counts do not
        assert value == pytest.approx(expected[key], rel=1e-6) if name == "toy_corpus" else value == expected[key]
        theirs = expected[f"{metric}_stderr,{filter_name}"]
        assert stderr == (None if theirs == "N/A" else theirs)
    for row, sample in zip(found.items.itertuples(), samples, strict=True):
        assert row.doc_id == f"test:{sample['doc_id']}"
        if name == "toy_generation":
            assert row.response == sample["resps"][0][0]
        elif name == "toy_corpus":
            np.testing.assert_allclose(row.choice_loglikelihoods, [sample["resps"][0][0]], atol=1e-4)
        else:
            theirs = [loglikelihood for ((loglikelihood, _),) in sample["resps"]]
            ours = row.choice_loglikelihoods + (row.unconditional_loglikelihoods or [])
            np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_items_describe_the_documents(llama, toy_task):
    task = toy_task("toy_choice")
    docs = fetch_documents(task, "train", ["train:5", "train:2"])
    found = evaluate(llama, task, docs, metric="acc_norm,none")
    assert list(found.items.doc_id) == ["train:5", "train:2"]
    assert list(found.items.subject) == ["names", "colors"]
    assert list(found.items.gold) == [doc["gold"] for doc in docs.docs]
    assert found.metrics["acc_norm,none"][0] == found.items.correct.mean()
    first = found.items.iloc[0]
    choices = docs.docs[0]["choices"]
    assert first.choice_characters == first.choice_bytes == [len(choice) for choice in choices]
    best = max(range(4), key=lambda index: first.choice_loglikelihoods[index] / first.choice_characters[index])
    assert first.correct == float(best == first.gold)
    assert len(first.unconditional_loglikelihoods) == len(first.choice_tokens) == 4
    assert all(tokens > 0 for tokens in first.choice_tokens)


def test_prepared_requests_score_again_and_disturb_no_random_state(llama, toy_task):
    task = toy_task("toy_choice")
    docs = all_documents(task, "validation")
    prepared = prepare_requests(llama, task, docs)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = metric_value(llama, prepared, "acc_norm,none")
    assert torch.equal(torch.get_rng_state(), state)
    tokens = llama.counters["forward_tokens"]
    assert metric_value(llama, prepared, "acc_norm,none") == first
    assert first == evaluate(llama, task, docs, metric="acc_norm,none").metrics["acc_norm,none"][0]
    assert llama.counters["forward_tokens"] == 3 * tokens and llama.counters["evaluate_passes"] == 3
    assert 0 < llama.counters["forward_tokens"] <= llama.counters["forward_tokens_padded"]


def test_errors_name_the_document(llama, model_folders, toy_task):
    task = toy_task("toy_choice")
    docs = all_documents(task)
    with pytest.raises(CellError, match=r"has no metric 'acc_nrm,none'.*did you mean 'acc_norm,none'"):
        evaluate(llama, task, docs, metric="acc_nrm,none")
    broken = replace(docs, docs=(docs.docs[0] | {"choices": 3}, *docs.docs[1:]))
    with pytest.raises(CellError, match="document test:0 cannot be rendered"):
        evaluate(llama, task, broken, metric="acc,none")
    short = load_toy(model_folders["llama"], max_length=6)
    generation = toy_task("toy_generation")
    with pytest.raises(CellError, match="generates up to 6 tokens, but llama takes 6"):
        evaluate(short, generation, all_documents(generation), metric="exact_match,stripped")
    with torch.no_grad():
        llama.base.model.norm.weight.fill_(math.nan)
    with pytest.raises(NonFiniteScore, match="document test:0 has a log-likelihood that is not finite"):
        evaluate(llama, task, docs, metric="acc,none")
    # what overflowed generates something all the same, which must not score 0
    with pytest.raises(NonFiniteScore, match="toy_generation: llama: a logit is not finite while it generates"):
        evaluate(llama, generation, all_documents(generation), metric="exact_match,stripped")


def test_choices_of_the_same_tokens_are_said_and_refused_where_all_documents_have_them(llama, toy_task, caplog):
    """A word-level tokenizer writes all words that it lacks as one token: lm-eval then takes the first choice."""
    task = toy_task("toy_choice")
    docs = all_documents(task)
    llama.tokenizer = toy_world.word_tokenizer(docs.docs[0]["choices"])
    odd = docs.docs[3] | {"choices": ["red", "kiwi", "plum", "blue"]}
    texts = replace(docs, docs=(*docs.docs[:3], odd, *docs.docs[4:]))
    prepare_requests(llama, task, docs)
    assert "unlike choices" not in caplog.text
    prepare_requests(llama, task, texts)
    assert "unlike choices of 1 of 14 documents, such as test:3" in caplog.text
    with pytest.raises(CellError, match="unlike choices of 1 of 1 documents"):
        prepare_requests(llama, task, Documents("toy_choice", "test", ("test:3",), (odd,)))


@pytest.fixture
def own_scoring(toy_task):
    """The toy generation task with a `process_results` of its own, and four documents."""

    def pearson(pairs):
        return np.corrcoef(*zip(*pairs, strict=True))[0, 1] if len(pairs) > 1 else 0.0

    def load(process_results):
        task = toy_task("toy_generation")
        task.process_results = process_results
        task.aggregation = lambda: {"right": np.mean, "pearsonr": pearson}
        return task, head_of(all_documents(task), 4)

    return load


@pytest.mark.parametrize("part", ["score", "filter"])
def test_a_document_that_the_tasks_own_code_cannot_score_is_named(llama, own_scoring, part):
    class Odd(Filter):
        def apply(self, resps, docs):
            return [[{0: found[0]}[doc["name"] == odd]] for found, doc in zip(resps, docs, strict=True)]

    task, docs = own_scoring(lambda doc, results: {"exact_match": 1 / (part == "filter" or doc["name"] != odd)})
    odd = docs.docs[2]["name"]
    if part == "filter":
        task._filters[0].filters = [Odd]
    error = {"score": "ZeroDivisionError", "filter": "KeyError"}[part]
    with pytest.raises(CellError, match=rf"document test:2 cannot be scored \({error}"):
        evaluate(llama, task, docs, metric="exact_match,stripped")


def test_values_belong_to_the_documents_that_have_them(llama, own_scoring):
    """`right` is left out of every other document, and `pearsonr` has no value of one document alone."""

    def process_results(doc, results):
        pair = {"pearsonr": (len(doc["name"]), 2.0 * len(doc["name"]))}
        return pair | ({"right": float(len(doc["name"]))} if doc["subject"] == "names" else {})

    task, docs = own_scoring(process_results)
    lengths = [float(len(doc["name"])) if doc["subject"] == "names" else math.nan for doc in docs.docs]
    found = evaluate(llama, task, docs, metric="right,stripped")
    np.testing.assert_array_equal(found.items.correct, lengths)
    assert found.metrics["right,stripped"][0] == np.nanmean(lengths)

    found = evaluate(llama, task, docs, metric="pearsonr,stripped")
    assert found.metrics["pearsonr,stripped"][0] == pytest.approx(1) and found.items.correct.isna().all()


def direct_bits_per_byte(lm, text: str, every: bool) -> float:
    """Bits per byte written out: a window ends where the next begins and is filled with context on its left."""
    tokens = lm.tokenizer.encode(text, add_special_tokens=False)
    length, total = lm.max_length - every, 0.0
    for start in range(0, len(tokens), length):
        end = min(start + length, len(tokens))
        before = [lm.tokenizer.bos_token_id] * (every or start == 0)
        row = before + tokens[max(0, end - length - 1) if start else 0 : start]
        total += toy_world.loglikelihood(lm.base, row, tokens[start:end])
    return -total / math.log(2) / len(text.encode())


@pytest.mark.parametrize("kind", ["gemma", "gemma2"])
def test_gemma_begins_every_window_with_bos(kind, tmp_path, toy_task):
    """Chosen by the architecture; bits per byte of documents of up to 14 windows, against the sum written out."""
    folder = toy_model(kind, tmp_path / kind)
    lm, task = load_toy(folder, max_length=13), toy_task("toy_corpus")
    assert lm.window_prefix == "every" and lm.tokenizer.bos_token_id == 0
    docs = all_documents(task)
    docs = replace(docs, docs=tuple(doc | {"text": doc["text"] * 2} for doc in docs.docs))
    found = evaluate(lm, task, docs, metric="bits_per_byte,none")
    windows = [lm.rolling_windows(doc["text"]) for doc in docs.docs]
    assert max(map(len, windows)) > 10
    assert all(row[0] == 0 and [*row, *predicted].count(0) == 1 for one in windows for row, predicted in one)
    expected = [direct_bits_per_byte(lm, doc["text"], every=True) for doc in docs.docs]
    assert found.items.correct.tolist() == pytest.approx(expected, abs=1e-6)
    # the sheet's word goes first, and what lm-eval does is another number
    once = evaluate(load_toy(folder, max_length=13, window_prefix="once"), task, docs, metric="bits_per_byte,none")
    assert abs(once.metrics["bits_per_byte,none"][0] - found.metrics["bits_per_byte,none"][0]) > 1e-4


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_rolling_windows_against_a_direct_computation(kind, every, model_folders, toy_task):
    lm = load_toy(model_folders[kind], max_length=13, window_prefix="every" if every else "once")
    task = toy_task("toy_corpus")
    docs = all_documents(task)
    found = evaluate(lm, task, docs, metric="bits_per_byte,none")
    for row, doc in zip(found.items.itertuples(), docs.docs, strict=True):
        assert row.correct == pytest.approx(direct_bits_per_byte(lm, doc["text"], every), abs=1e-6)
        assert row.choice_tokens == [len(lm.tokenizer.encode(doc["text"], add_special_tokens=False))]
        assert sum(len(predicted) for _, predicted in lm.rolling_windows(doc["text"])) == row.choice_tokens[0]


def test_lm_eval_default_windows_score_a_second_bos(model_folders, toy_folder, toy_task):
    """lm-eval left to itself predicts the tokenizer's BOS from its own; the option repeats that exactly."""
    expected = lm_eval_itself(model_folders["llama"], toy_folder, "toy_corpus")["results"]["toy_corpus"]
    task = toy_task("toy_corpus")
    docs = all_documents(task)
    theirs, ours = (
        evaluate(load_toy(model_folders["llama"], window_prefix=prefix), task, docs, metric="bits_per_byte,none")
        for prefix in ("lm-eval", "once")
    )
    assert theirs.metrics["bits_per_byte,none"][0] == expected["bits_per_byte,none"]
    assert ours.metrics["bits_per_byte,none"][0] != expected["bits_per_byte,none"]


def test_another_metric_without_a_value_is_left_out(llama, toy_task):
    """A word of a thousand characters: its perplexity is too large for a number, bits per byte are not."""
    task = toy_task("toy_corpus")
    row = all_documents(task).docs[0]
    docs = Documents("toy_corpus", "test", ("test:0", "test:1"), (row | {"text": "seen" * 300}, row | {"text": ""}))
    found = evaluate(llama, task, docs, metric="bits_per_byte,none")
    assert list(found.metrics) == ["bits_per_byte,none"]
    first, empty = found.items.correct
    assert first > 0 and math.isnan(empty), "an empty document has no bits per byte of its own"
    with pytest.raises(CellError, match=r"toy_corpus: word_perplexity,none cannot be computed \(OverflowError"):
        evaluate(llama, task, docs, metric="word_perplexity,none")


def test_what_is_cut_is_counted_whatever_scores(model_folders, toy_task):
    """By lm-eval's own scorer, ours and in generation, where a prompt must leave room for the longest answer."""
    choice, generation = toy_task("toy_choice"), toy_task("toy_generation")
    docs, counts = all_documents(choice), []
    for scorer in ("auto", "rows", "lm-eval"):
        lm = load_toy(model_folders["llama"], max_length=20, scorer=scorer)
        counts.append(evaluate(lm, choice, docs, metric="acc,none").truncated_requests)
    asked = [request.args for group in prepare_requests(lm, choice, docs).requests for request in group]
    lengths = [sum(map(len, lm.encode_request(*texts))) for texts in asked if texts[0]]
    assert 0 < counts[0] == sum(length > 21 for length in lengths) < len(lengths) and len(set(counts)) == 1
    docs = all_documents(generation)
    lengths = sorted(len(lm.tok_encode(group[0].args[0])) for group in prepare_requests(lm, generation, docs).requests)
    for room in (96 - 6, lengths[-1] - 1):
        lm = load_toy(model_folders["llama"], max_length=room + 6)
        cut = evaluate(lm, generation, docs, metric="exact_match,stripped").truncated_requests
        assert cut == sum(length > room for length in lengths) == lm.counters.by_phase["test"]["truncated_requests"]
    assert cut > 0
