"""The scorer against lm-eval's HFLM, and what is scored, written and trained on against plain passes over one text."""

import json
import logging
import subprocess
import sys
from functools import cache, partial

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_eval.models.huggingface import HFLM
from toy_run import run_of
from toy_world import answers_of, in_memory, loglikelihood, never_fits, random_model, request, save_model, toy_tokenizer

from lm_validity.cells.models import passes
from lm_validity.cells.models.passes import CHECK_SHARE, batches, plant
from lm_validity.cells.models.scorer import SharedContextLM
from lm_validity.cells.tasks.evaluation import Example
from lm_validity.cells.training.loop import FinetuneSettings, rows_are_alike
from lm_validity.errors import CellError

# architecture: its sizes, ways that must be found exact
SHARED = {"rows", "packed", "cached"}
ONE_HEAD = {"num_key_value_heads": 1}
CAPPED = {"final_logit_softcapping": 5.0, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16}
ARCHITECTURES = {
    "llama": ({}, SHARED),
    "gpt2": ({}, SHARED),
    "gpt_neox": ({}, SHARED),
    "qwen2": (ONE_HEAD, SHARED),
    "opt": ({"dropout": 0.0}, SHARED),
    # logits soft-capped after the head, attention soft-capped, every second layer a sliding window
    "gemma2": (CAPPED | {"sliding_window": 24, "attn_implementation": "eager"}, SHARED),
    "mistral": (ONE_HEAD | {"sliding_window": 24}, SHARED),
    "gpt_neo": ({"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 24}, SHARED),
    # no position ids: biases made from a 2-D mask, a state that reads one token after another
    "bloom": ({}, {"rows"}),
    "mamba": ({}, {"rows"}),
}


@pytest.fixture(scope="module")
def models():
    """A function (architecture) -> (random model, tokenizer), each made once."""

    @cache
    def make(name: str):
        return random_model(name, 3, **ARCHITECTURES[name][0]), toy_tokenizer(adds_bos=name == "llama")

    return make


def build(kind, models, name: str, **options):
    model, tokenizer = models(name)
    return kind(pretrained=model, tokenizer=tokenizer, **{"batch_size": 8, "max_length": 96} | options)


own, shipped = partial(build, SharedContextLM), partial(build, HFLM)


def random_requests(seed: int = 0, questions: int = 9) -> list:
    """Questions of 1 to 80 context tokens with up to 5 choices: shared beginnings, equal ones, one token, too long."""
    random = np.random.default_rng(seed)
    requests = []
    for question in range(questions):
        context = random.integers(420, size=int(random.integers(1, 12 if question % 2 else 80))).tolist()
        stem = random.integers(420, size=3).tolist()
        for choice in range(int(random.integers(1, 6))):
            own_part = random.integers(420, size=int(random.integers(1, 12))).tolist()
            continuation = [stem[:1], stem, [*stem, *own_part], own_part, own_part[:1]][choice]
            requests.append(((f"q{question}", f"c{choice}"), context, continuation))
    long = random.integers(420, size=140).tolist()
    requests += [(("long", "a"), long, long[:2]), (("long", "b"), long, long[:9]), (("long", "c"), long, long[3:5])]
    return requests


def differences(found, expected, requests) -> float:
    """Largest difference of log-likelihoods a token; greedy decoding must agree exactly."""
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    return max(
        abs(mine - theirs) / len(continuation)
        for (mine, _), (theirs, _), (_, _, continuation) in zip(found, expected, requests, strict=True)
    )


def check(lm, models, name: str, requests) -> None:
    """The numbers are those of lm-eval's own class."""
    expected = shipped(models, name)._loglikelihood_tokens(requests, disable_tqdm=True)
    assert differences(lm._loglikelihood_tokens(requests), expected, requests) < 1e-4


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_way_gives_lm_evals_numbers(models, name):
    requests = random_requests()
    expected = shipped(models, name)._loglikelihood_tokens(requests, disable_tqdm=True)
    assert len({value for value, _ in expected}) > len(expected) // 2, "the numbers say something"
    for way in ("auto", "packed", "cached", "rows"):
        lm = own(models, name, scorer=way)
        assert differences(lm._loglikelihood_tokens(requests), expected, requests) < 1e-4, way
        assert lm._allowed == ARCHITECTURES[name][1], way
        # asked for a shared way, a model that can share did so, and no other
        assert bool(lm.counters["shared_tokens"]) == (way != "rows" and lm._allowed == SHARED), way


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gpt_neo"])
@pytest.mark.parametrize("way", ["packed", "cached"])
def test_trees_longer_than_a_window_go_as_rows(models, name, way):
    lm = own(models, name, scorer=way)
    check(lm, models, name, [request for request in random_requests() if len(request[1]) > 24])
    assert lm.counters["shared_tokens"] == 0


WINDOWS = ["sliding_window", "sliding_window_size", "attention_window_size", "attention_chunk_size", "window_size"]


@pytest.mark.parametrize("name", [*WINDOWS, "index_topk"])
def test_a_window_is_known_by_whatever_name_a_configuration_has_for_it(models, name, monkeypatch):
    """Or a tree larger than it would be packed under a mask that shows what the layer cannot see."""
    lm = own(models, "llama")
    assert lm._window == lm.max_length
    monkeypatch.setattr(lm.model.config, name, 24, raising=False)
    assert lm._window == 24


def test_the_probes_tolerance_is_that_of_the_models_own_logits(models, monkeypatch):
    lm, seen = own(models, "gpt2"), []
    monkeypatch.setattr(type(lm), "tolerance", lambda self, largest: seen.append(largest) or 1e-4)
    handle = lm.model.lm_head.register_forward_hook(lambda module, inputs, output: output - 65)
    try:
        lm._probe()
    finally:
        handle.remove()
    assert 60 < seen[0] < 75, "GPT-2's are about -65"


LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}


def long_model() -> transformers.PreTrainedModel:
    """A random model with other frequencies for texts of more than 24 tokens."""
    made = {"original_max_position_embeddings": 24}
    return random_model("phi3", 3, **made, pad_token_id=None, rope_parameters=LONGROPE | made)


@pytest.mark.parametrize("way", ["auto", "packed", "cached", "rows"])
def test_a_text_longer_than_the_model_was_made_for_changes_no_other(way):
    """Its position encoding is another: with it in a batch, short texts differed by nats."""
    model = long_model()
    random, requests = np.random.default_rng(0), []
    for length in (3, 60, 15, 21, 40, 5, 60):
        context = random.integers(420, size=length).tolist()
        requests += [(None, context, random.integers(420, size=size).tolist()) for size in (1, 2, 7)]
    expected = [loglikelihood(model, context, continuation) for _, context, continuation in requests]
    lm = SharedContextLM(pretrained=model, tokenizer=toy_tokenizer(), batch_size=8, max_length=96, scorer=way)
    found = [value for value, _ in lm._loglikelihood_tokens(requests)]
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert way in ("auto", "rows") or lm.counters["shared_tokens"] > 0, "short questions still share"


def test_a_wrong_mask_is_found_out(models, monkeypatch, caplog):
    """The probe is what keeps an unknown architecture exact: with a mask that shows siblings it refuses the way, and
    says so."""
    lm = own(models, "llama")
    monkeypatch.setattr(
        "lm_validity.cells.models.scorer.Tree.visible", lambda tree, start=0: np.tri(len(tree), dtype=bool)[start:]
    )
    check(lm, models, "llama", random_requests())
    assert lm._allowed == {"rows"}
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    refused = [line.partition(" differs")[0] for line in warned if "is not used" in line]
    assert refused == ["scorer: packed", "scorer: cached"]


def test_texts_under_a_head_that_cannot_be_narrowed_are_scored_one_by_one(models, monkeypatch):
    lm = own(models, "gpt2")
    other = torch.nn.Linear(1, 1)
    monkeypatch.setattr(lm.model, "get_output_embeddings", lambda: other)
    check(lm, models, "gpt2", random_requests())
    assert lm._allowed == frozenset()


def test_a_diverged_adapter_says_nothing_about_the_model(models):
    lm = own(models, "llama")
    weight = lm.model.lm_head.weight
    kept = weight.data.clone()
    weight.data.fill_(float("nan"))
    assert not any(np.isfinite(value) for value, _ in lm._loglikelihood_tokens(random_requests()))
    weight.data.copy_(kept)
    lm._loglikelihood_tokens(random_requests())
    assert lm._allowed == SHARED and lm.counters["shared_tokens"]


def test_bfloat16_is_within_its_rounding(models):
    model, tokenizer = models("llama")
    requests = random_requests()
    exact = shipped(models, "llama")._loglikelihood_tokens(requests, disable_tqdm=True)
    half = transformers.AutoModelForCausalLM.from_config(model.config)
    half.load_state_dict(model.state_dict())
    lm = SharedContextLM(pretrained=half.bfloat16().eval(), tokenizer=tokenizer, batch_size=8, max_length=96)
    found = lm._loglikelihood_tokens(requests)
    assert lm._allowed == SHARED
    for (mine, _), (theirs, _), (_, _, continuation) in zip(found, exact, requests, strict=True):
        assert abs(mine - theirs) / len(continuation) < 0.3


def test_texts_are_tokenised_as_by_lm_eval(models):
    texts = [("Question: what is Melri?\nAnswer:", " red"), ("Question: what is Melri?\nAnswer:", " dark gray")]
    texts += [("trailing space ", "red"), ("trailing space ", "blue"), ("", "red house"), ("a", "b")]
    requests = [request(*pair) for pair in texts]
    for name in ("llama", "gpt2"):
        found = own(models, name).loglikelihood(requests, disable_tqdm=True)
        expected = shipped(models, name).loglikelihood(requests, disable_tqdm=True)
        assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=1e-4)


def test_contexts_are_computed_once(models):
    """Ten questions of 40 context tokens and 4 choices of 5 tokens: 40 + 4 * 4 tokens each, not 4 * 44."""
    random = np.random.default_rng(1)
    requests = []
    for _ in range(10):
        context = random.integers(420, size=40).tolist()
        requests += [(("", ""), context, [choice, *random.integers(420, size=4).tolist()]) for choice in (1, 2, 3, 4)]
    for way in ("packed", "cached"):
        lm = own(models, "gpt2", scorer=way)
        lm._loglikelihood_tokens(requests)
        counters = lm.counters
        assert counters["forward_tokens"] == counters["forward_tokens_padded"] == 10 * (40 + 16)
        assert counters["shared_tokens"] == 10 * 4 * 44 - counters["forward_tokens"]
    lm = own(models, "gpt2", scorer="lm-eval")
    lm._loglikelihood_tokens(requests)
    assert lm.counters["forward_tokens_padded"] == 10 * 4 * 44


@pytest.mark.parametrize("room", [3, 0])
def test_running_out_of_memory_halves_the_batch_and_says_so(models, monkeypatch, room):
    """Three trees fit at once; or none, which then go as rows. One row that does not fit is the caller's."""
    requests, score, ran = random_requests(questions=20), passes.score, []

    def limited(way, model, forward, trees, *options):
        if len(trees) > room and (room or way != "rows"):
            raise torch.OutOfMemoryError("CUDA out of memory")
        ran.append(len(trees))
        return score(way, model, forward, trees, *options)

    lm = own(models, "llama", scorer="packed", batch_size=32)
    lm._allowed = frozenset(SHARED)
    monkeypatch.setattr(passes, "score", limited)
    check(lm, models, "llama", requests)
    halvings = lm.counters["oom_halvings"]
    assert halvings >= 1 and (not room or max(ran) <= room)
    if room:
        lm._loglikelihood_tokens(requests)
        assert lm.counters["oom_halvings"] == halvings, "the smaller batch is kept"
    monkeypatch.setattr(passes, "score", never_fits)
    with pytest.raises(torch.OutOfMemoryError):
        lm._loglikelihood_tokens(requests)


def test_requests_without_tokens_and_unknown_ways_are_named(models):
    with pytest.raises(CellError, match="1 context and 0 continuation tokens"):
        own(models, "llama")._loglikelihood_tokens([(("q", ""), [5], [])])
    with pytest.raises(CellError, match=r"'fast' is not known.*packed, cached, rows, lm-eval"):
        own(models, "llama", scorer="fast")
    assert own(models, "llama")._loglikelihood_tokens([]) == []


tokens = st.lists(st.integers(2, 5), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=12), st.integers(1, 5))
def test_trees_hold_every_request_once_with_its_own_tokens(pairs, rows):
    """What a tree says its requests' tokens are is what they are; batches and rows hold each request once."""
    trees = plant([(None, context, continuation) for context, continuation in pairs], max_length=100)

    def read(parts) -> dict:
        found = {}
        for tree in parts:
            for number, path, continuation in tree.requests:
                ancestors = [tree.tokens[place] for place in np.flatnonzero(tree.visible()[path[-1]])]
                assert number not in found
                assert [tree.depths[node] for node in path] == list(range(tree.context - 1, len(ancestors)))
                found[number] = ([*ancestors, continuation[-1]], tree.context)
        return found

    expected = {number: ([*context, *rest], len(context)) for number, (context, rest) in enumerate(pairs)}
    chains = [chain for tree in trees for chain in tree.chains()]
    assert read(trees) == read(chains) == expected
    assert all(chain.is_chain for chain in chains)
    assert sum(map(len, trees)) <= sum(map(len, chains)) <= sum(sum(tree.row_lengths) for tree in trees)
    for parts in (trees, chains):
        made = list(batches(parts, rows))
        assert read(tree for batch in made for tree in batch) == expected
        for batch in made:
            assert len(batch) == 1 or len(batch) * len(batch[0]) <= rows * max(tree.longest for tree in batch)


@pytest.mark.slow
def test_lm_evals_own_command_line_runs_the_scorer(models, tmp_path, toy_folder):
    """`lm-validity lm-eval run --model lm-validity …` gives what `--model hf` gives."""
    save_model(models("llama")[0], tmp_path / "model", adds_bos=True)
    script = (
        "import json, sys; import lm_validity.cells.models.scorer\n"
        "import lm_eval.tasks as tasks\n"
        "real = tasks.TaskManager\n"  # the 15 seconds of looking through all shipped tasks are not what is tested
        "tasks.TaskManager = lambda *a, **k: real(*a, **(k | {'include_defaults': False}))\n"
        "from lm_validity.cli import main; main()"
    )
    found = {}
    for name in ("lm-validity", "hf"):
        output = tmp_path / name
        options = f"--model {name} --model_args pretrained={tmp_path / 'model'},dtype=float32 --tasks toy_choice"
        options += f" --include_path {toy_folder} --device cpu --batch_size 8 --output_path {output}"
        arguments = ["lm-eval", "run", *options.split()]
        done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        (path,) = output.rglob("results_*.json")
        found[name] = json.loads(path.read_text())["results"]["toy_choice"]
    assert found["lm-validity"]["acc,none"] == found["hf"]["acc,none"]
    assert found["lm-validity"]["acc_norm,none"] == found["hf"]["acc_norm,none"]


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
    problem = r"writer: log-likelihoods of a prompt's next token are .* from those of a plain pass"
    with pytest.raises(CellError, match=problem):
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
