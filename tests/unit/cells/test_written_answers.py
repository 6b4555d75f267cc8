"""Answers: written together, ended by their own stop strings, drawn with their own random numbers."""

import datetime
import gzip
import json

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
import transformers.utils.chat_template_utils as rendering
from lm_eval.models.huggingface import HFLM
from scipy.stats import chisquare
from toy_run import merged, run_all, sidecars
from toy_world import answers_of, edit, load_toy, loglikelihood, request, toy_model, toy_rows

from lm_validity.cells.lm_eval_internals import errors_only
from lm_validity.cells.models.language_model import DrawTokens, Sampling
from lm_validity.config.load import build_run
from lm_validity.errors import InputError
from lm_validity.run.workspace import Workspace
from lm_validity.tables.schema import read_scores

PROMPTS = [f"Q: {name}" for name in ("moss", "a stone", "the old house", "tea", "is", "was seen near", "color")]


def one_at_a_time(lm, stops: list[str]) -> list[str]:
    """lm-eval's own answers at batch 1."""
    with errors_only("lm_eval.models.huggingface"):
        theirs = HFLM(pretrained=lm.base, tokenizer=lm.tokenizer, batch_size=1)
    options = {"until": stops, "max_gen_toks": 24, "do_sample": False}
    return theirs.generate_until([request(prompt, dict(options)) for prompt in PROMPTS], disable_tqdm=True)


@pytest.fixture(params=[True, False])
def walking(request, lm, monkeypatch):
    """(model whose next token is a function of the last one, list of its forward passes): its answers are lively. Not
    every model's configuration names an end-of-text token."""
    forward, passes = lm.base.forward, []

    def walk(input_ids=None, **options):
        passes.append(input_ids.shape)
        found = forward(input_ids=input_ids, **options)
        following = 278 + (21 * input_ids[:, -1] + 3) % 100  # goes through 100 words of the vocabulary
        if lm.ends:
            following[following % 9 == 0] = lm.tokenizer.eos_token_id
        found.logits = torch.nn.functional.one_hot(following, found.logits.shape[-1])[:, None].float()
        return found

    lm.ends = False
    monkeypatch.setattr(lm.base, "forward", walk)
    if not request.param:
        monkeypatch.setattr(lm.base.generation_config, "eos_token_id", None)
    return lm, passes


def different_stops(lm) -> list[str]:
    """For each prompt a string of its answer, unless the answer holds another prompt's."""
    stops: list[str] = []
    for number, answer in enumerate(one_at_a_time(lm, ["never said"])):
        if not any(stop in answer for stop in stops):
            stops.append(answer[5 + 2 * number : 9 + 2 * number])
    assert len(stops) > 1, "all answers hold one string: nothing would be tested"
    return stops


def test_each_row_ends_with_its_own_stop_string(walking, monkeypatch):
    """Rows that meet different strings: lm-eval's answers at batch 1, and a batch as long as its longest answer."""
    lm, passes = walking
    monkeypatch.setattr(lm, "check_answers", lambda *answers, **options: None)  # whose passes are not generation's
    stops, alone = different_stops(lm), []
    for prompt in PROMPTS:
        passes.clear()
        answers_of(lm, [prompt], stops)
        alone.append(len(passes))
    passes.clear()
    found = answers_of(lm, PROMPTS, stops)
    assert len(passes) == max(alone) < 24, "lm-eval goes on to 24 tokens, because no string is in all answers"
    assert found == one_at_a_time(lm, stops)
    assert len(set(alone)) > 1 and len(set(found)) > 1


def test_nothing_stands_behind_the_end_of_a_text(walking):
    """Rows that meet the end-of-text token, each at its own word: what the others still write is not theirs."""
    lm, _ = walking
    lm.ends = True
    alone = [answers_of(lm, [prompt])[0] for prompt in PROMPTS]
    assert answers_of(lm, PROMPTS) == alone == one_at_a_time(lm, ["never said"])
    assert len({len(answer.split()) for answer in alone}) > 1


@pytest.mark.parametrize(
    "given",
    [
        *[{}, {"temperature": 0.7}, {"temperature": 0.7, "do_sample": True}, {"temperature": 0.0, "do_sample": None}],
        {"temperature": 0.0, "do_sample": False, "top_p": 1},
    ],
)
def test_sampling_by_lm_evals_rule(given, lm, monkeypatch):
    with errors_only("lm_eval.models.huggingface"):
        theirs = HFLM(pretrained=lm.base, tokenizer=lm.tokenizer, batch_size=1)
    seen, generate = [], lm.base.generate
    monkeypatch.setattr(lm.base, "generate", lambda **options: seen.append(options) or generate(**options))
    for model in (lm, theirs):
        model.generate_until([request(PROMPTS[0], {"until": ["x"], "max_gen_toks": 2, **given})], disable_tqdm=True)
    ours, expected = ({key: options.get(key) for key in ("do_sample", "temperature", "top_p")} for options in seen)
    assert ours == expected


COLUMNS = {"output_type": "generate_until", "metric": "exact_match,stripped"}
GENERATION = {"benchmark": "toy_generation", "columns": COLUMNS}


def few_rows(split: str) -> list[dict]:
    return [row | {"aliases": ["blue"]} for row in toy_rows(split)[:10]]


def draws(sampling: Sampling, logits: torch.Tensor, number: int) -> np.ndarray:
    """The tokens that `number` rows draw from the same logits (tokens,)."""
    generators = [sampling.generator([row], 0) for row in range(number)]
    left = DrawTokens(sampling, generators)(torch.zeros(number, 1, dtype=torch.long), logits.repeat(number, 1))
    assert (torch.isfinite(left).sum(dim=1) == 1).all(), "one token is left for each row"
    return left.argmax(dim=1).numpy()


LIKELY = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
DRAWS = [  # of the logits, at a temperature and a top_p: the expected probabilities
    (torch.tensor([1.0, 0.0, -1.0, 0.5]), Sampling(0.5, 1.0, 3), None),  # those of doubled logits
    (LIKELY, Sampling(1.0, 0.79, 5), [0.625, 0.375]),  # up to .8 the first two, in the proportion 5 to 3
]


@pytest.mark.parametrize(("logits", "sampling", "expected"), DRAWS)
def test_tokens_are_drawn_with_the_models_probabilities(logits, sampling, expected):
    """2,000 rows: the counts have the expected p (a chi-square test), and only tokens that share top_p are drawn."""
    expected = torch.softmax(2 * logits.double(), 0).tolist() if expected is None else expected
    counts = np.bincount(draws(sampling, logits, 2000), minlength=len(expected))
    assert len(counts) == len(expected) and chisquare(counts, np.multiply(2000, expected)).pvalue > 1e-3


def answers(lm, seed: int, words=("red", "blue", "a", "red"), rows: int = 4) -> list[str]:
    lm.sampling = Sampling(1.5, 0.95, seed)
    lm.batch_size_per_gpu = rows
    found = answers_of(lm, words, longest=8, temperature=0.0)
    lm.sampling = None
    return found


def test_an_answer_depends_on_its_run_and_prompt_and_not_on_its_batch(llama):
    """And no generator of the process is drawn from."""
    state = torch.get_rng_state()
    first = answers(llama, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert answers(llama, seed=1) == first == answers(llama, seed=1, rows=1)
    assert answers(llama, seed=2) != first
    assert answers(llama, seed=1, words=("blue",)) == first[1:2]
    assert first[0] != first[3], "a prompt that is asked twice is answered twice"


def scores(workspace) -> pd.DataFrame:
    """The merged table of scores."""
    merged(workspace)
    return read_scores("tables/scores.parquet")


def test_runs_are_cells_and_more_runs_compute_only_themselves(start):
    sampled = {"generation": {"temperature": 2.0, "top_p": 1.0, "runs": 2}}
    one_rate = {"learning_rates": ("2e-2",)}
    workspace = start(rows=few_rows, evaluation=sampled, finetuning=one_rate, **GENERATION)
    run_all(workspace)
    names = set(sidecars(workspace.store))
    assert {"toy_generation.final.plain.run0.test", "toy_generation.final.plain.run1.test"} <= names
    assert "toy_generation.final.plain.validation" in names, "selection does not depend on luck"
    assert "toy_generation.final.plain.test" not in names
    before = scores(workspace)
    on_test = before[before["split"] == "test"]
    assert sorted(on_test.groupby("protocol")["run"].unique().map(list)["direct"]) == [0, 1]
    assert on_test[on_test["protocol"] == "train_before_test"]["run"].nunique() == 2
    assert before[before["split"] == "validation"]["run"].isna().all()
    settings = pd.read_parquet("tables/settings.parquet")
    assert settings[settings["run"].notna()]["temperature"].eq(2.0).all() and len(settings) == 4

    written = {path: path.stat().st_mtime_ns for path in workspace.store.root.glob("*/*/*/cell.json")}
    values = workspace.run.configuration.model_dump(exclude_unset=True, mode="json")
    values["evaluation"]["generation"]["runs"] = 3
    more = Workspace(build_run(values, "toy"))
    run_all(more)
    now = {path: path.stat().st_mtime_ns for path in more.store.root.glob("*/*/*/cell.json")}
    assert all(now[path] == time for path, time in written.items())
    new = {path.parent.name.partition("--")[0] for path in set(now) - set(written)}
    assert {name.replace("seed0.", "").removesuffix(".test").split(".")[-1] for name in new} == {"run2"}
    after = scores(more)
    pd.testing.assert_frame_equal(after[after["run"].ne(2).fillna(True)].reset_index(drop=True), before)


def test_greedy_cells_know_nothing_of_runs(start):
    workspace = start(rows=few_rows, **GENERATION)
    for job in workspace.grid.jobs.values():
        assert "run" not in workspace.grid.settings(job).replace("truncate", "")
        assert all(cell.run is None for cell in job.cells)
    run_all(workspace, "evaluate_model")
    for folder in workspace.store.folders():
        record = workspace.store.read(folder)
        assert "run" not in record["key"] and not {"run", "temperature", "top_p"} & set(record["recipe"])


@pytest.mark.parametrize("wrong", [{"temperature": 0}, {"top_p": 1.2}, {"runs": 0}, {"warmth": 0.7}])
def test_wrong_settings_are_refused(wrong):
    values = {"name": "x", "studies": ["agreement"], "evaluation": {"generation": wrong}}
    with pytest.raises(InputError, match=next(iter(wrong))):
        build_run(values, "x")


WORDS = ("red", "a color of blue and", "yes no yes")


def alone(folder, longest=24, **options):
    """The tokens that transformers' own generate writes behind each word by itself."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    written = []
    for word in WORDS:
        rows = tokenizer(word, return_tensors="pt")
        with torch.no_grad():
            ids = model.generate(rows.input_ids, max_new_tokens=longest, do_sample=False, pad_token_id=1, **options)
        written.append(tokenizer.decode(ids[0][rows.input_ids.shape[1] :]))
    return written


def test_the_side_on_which_a_tokenizer_pads_changes_no_answer(tmp_path):
    """Answers written together are those written alone, whatever tokenizer_config.json says of padding."""
    folder = toy_model("llama", tmp_path)
    edit(folder / "tokenizer_config.json", padding_side="right", clean_up_tokenization_spaces=True)
    wanted = [text.partition("</s>")[0] for text in alone(folder)]
    lm = load_toy(folder)
    assert answers_of(lm, WORDS, ["</s>"]) == wanted and len(set(wanted)) > 1
    # blanks before punctuation, which are cleaned up otherwise, stay
    text = "x != y , he said . ok ?"
    assert lm.tok_decode(lm.tok_encode(text, add_special_tokens=False)) == text


def test_a_stop_string_that_is_a_special_token_ends_an_answer(tmp_path):
    """Decoding leaves special tokens out, so the string never stands in the decoded text."""
    folder = toy_model("llama", tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    first = tokenizer.encode(alone(folder)[0], add_special_tokens=False)[3]  # a token that the model does write
    named = tokenizer.convert_ids_to_tokens(first)
    tokenizer.add_special_tokens({"additional_special_tokens": [named]})
    tokenizer.save_pretrained(folder)
    wanted = [text.partition("</s>")[0].partition(tokenizer.decode([first]))[0] for text in alone(folder)]
    assert answers_of(load_toy(folder), WORDS, [tokenizer.decode([first])])[0] == wanted[0]


def test_templates_whose_roles_must_alternate_take_solved_examples(llama):
    """Solved examples stand in one question, so a template that refuses two turns of one role refuses nothing."""
    llama.tokenizer.chat_template = (
        "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m['content'] }}>{% endfor %}"
    )
    for content in ("question", "question answer\n\nquestion answer\n\nquestion"):
        assert llama.apply_chat_template([{"role": "user", "content": content}]) == f"<{content}>"


def test_an_empty_question_has_one_beginning(llama):
    """The answer's log-likelihood behind the tokenizer's own beginning of text, which is there once."""
    begin, *ids = llama.tokenizer(" green and red").input_ids
    assert begin == llama.prefix_token_id != ids[0]
    found = llama.loglikelihood([request("", " green and red")])[0][0]
    assert found == pytest.approx(loglikelihood(llama.base, [begin], ids), abs=1e-4)


def test_a_compressed_file_that_changed_is_read_again(write_task, tmp_path):
    """The data library keeps what it read of a file, under the file's name."""
    path = tmp_path / "quiz.jsonl.gz"
    for word in ("first", "second"):
        with gzip.open(path, "wt") as file:
            file.write(json.dumps({"q": word, "choices": ["a", "b"], "gold": 0}) + "\n")
        task = write_task({"test": []}, dataset_kwargs={"data_files": {"test": str(path)}})
        assert [doc["q"] for doc in task.test_docs()] == [word]


QUESTION = [{"role": "user", "content": "red"}]
# Llama 3.2's way, and Granite's
BY_VARIABLE = "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
DATED = [
    BY_VARIABLE + "<{{ date_string }}>{{ messages[0].content }}",
    "{{ strftime_now('%B %d, %Y') }} {{ messages }}",
    "<{{ date_string | default('1 Jan 2000') }}>{{ messages[0].content }}",  # with a date of its own
]


class OtherDay(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(2031, 5, 6)


@pytest.mark.parametrize("template", DATED)
def test_a_template_prints_the_same_date_every_day(llama, template, tmp_path, monkeypatch):
    llama.tokenizer.chat_template = template
    llama.tokenizer.save_pretrained(tmp_path)
    llama.base.save_pretrained(tmp_path)
    dated = load_toy(tmp_path)
    today = dated.apply_chat_template(QUESTION)
    assert "2024" in today and "26" in today
    monkeypatch.setattr(rendering, "datetime", OtherDay)
    assert dated.apply_chat_template(QUESTION) == today
    asks = "2031" in dated.tokenizer.apply_chat_template(QUESTION, tokenize=False)
    assert asks == ("strftime_now" in template), "the first two do ask for the day"


@pytest.mark.parametrize("setting", [{"repetition_penalty": 1.8}, {"max_new_tokens": 2}, {"no_repeat_ngram_size": 1}])
def test_a_hubs_generation_settings_change_no_answer(tmp_path, setting):
    """But for its end tokens: Llama 3 Instruct ends an answer with another token than a document."""

    def answers() -> list[str]:
        options = {"until": ["</s>"], "max_gen_toks": 12}
        return load_toy(folder).generate_until([request(word, options) for word in ("red", "blue", "a")])

    folder = toy_model("llama", tmp_path)
    plain = answers()
    edit(folder / "generation_config.json", **setting)
    ((name, value),) = setting.items()
    assert getattr(transformers.GenerationConfig.from_pretrained(folder), name) == value
    assert answers() == plain and len(set(plain)) > 1
    edit(folder / "generation_config.json", eos_token_id=[1, 7])
    assert load_toy(folder).base.generation_config.eos_token_id == [1, 7]


@pytest.mark.parametrize(
    ("device", "gpu", "said"), [("auto", 1, True), ("cuda:0", 1, True), ("cpu", 1, False), ("auto", 0, False)]
)
def test_recipes_of_fine_tunes_on_a_gpu_name_how_masks_are_drawn(start, device, gpu, said):
    sizes = {"small": {"gpu": gpu}}
    workspace = start(evaluation={"device": device}, size_classes=sizes)
    cells = {job.rule: cell for job in workspace.grid.jobs.values() for cell in job.cells}
    assert ("dropout_masks" in workspace.recipe(cells["finetune_adapter"])) == said
    assert "dropout_masks" not in workspace.recipe(cells["evaluate_model"])
