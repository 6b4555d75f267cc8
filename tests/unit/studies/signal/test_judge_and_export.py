"""The judge with its cache, the recipe, and the exported task run by lm-eval itself."""

import http.server
import json
import threading

import pandas as pd
import pytest
from signal_world import World, item_rows, write_world
from typer.testing import CliRunner

from lm_validity.cli.study import filters as app
from lm_validity.errors import InputError
from lm_validity.studies.signal.filters import recipe as recipes
from lm_validity.studies.signal.filters.kinds import Candidates
from lm_validity.studies.signal.filters.recipe import Export, UnanimousJudge, task_files
from lm_validity.tables.items import read_benchmark_items, read_documents
from lm_validity.tables.schema import read_model_facts

DOCUMENTS = [
    {"doc_id": f"test:{i}", "context": f"Question: fact {i}\nAnswer:", "choices": ["one", "two", "three"],
     "gold": i % 3, "subject": "physics" if i % 2 else "law"}
    for i in range(6)
]  # fmt: skip


def write_documents(path, rows=DOCUMENTS):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def applied(folder, recipe, **options):
    """What `filter apply` makes of a recipe's text."""
    (folder / "recipe.yaml").write_text(recipe)
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    return CliRunner().invoke(app, ["apply", str(folder / "recipe.yaml"), "--output", str(folder / "out"), *words])


class Scripted:
    """Accepts items with an even number, except in one repetition of fact 2; counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, prompt, repetition):
        self.calls += 1
        number = int(prompt.split("fact ")[1].split()[0])
        if number == 2 and repetition == 3:
            return "I would Reject this."
        return "Accept." if number % 2 == 0 else "Reject"


def test_a_verdict_is_one_word_of_the_reply():
    replies = {"Accept": True, "  **Reject**. ": False, '{"verdict": "Accept"}': True, "Accept or Reject?": None,
               "unacceptable": None}  # fmt: skip
    assert {reply: recipes.parse_verdict(reply) for reply in replies} == replies
    assert recipes.item_text("Q?", ["a", "b"], 1) == "Question: Q?\nA) a\nB) b\nAnswer: B"


def test_a_unanimous_judge_its_cache_and_its_alignment(tmp_path):
    documents = read_documents(write_documents(tmp_path / "d.jsonl"))
    toy, judge = Candidates(documents["doc_id"].to_numpy(), None, documents), Scripted()
    unanimous = UnanimousJudge(judge, "scripted", tmp_path / "verdicts.jsonl", promptings=5)
    for _ in range(2):
        assert list(unanimous.keep(toy)) == [True, False, False, False, True, False] and judge.calls == 30
        with open(tmp_path / "verdicts.jsonl", "a") as handle:
            handle.write('{"key": "12')  # a half-written last line is what a killed run leaves
    UnanimousJudge(judge, "another", tmp_path / "verdicts2.jsonl").keep(toy)
    assert judge.calls == 60
    result = recipes.alignment(documents, UnanimousJudge(judge, "once", tmp_path / "v.jsonl"), items=50, seed=0)
    assert result.accepted == pytest.approx(0.5) and result.items == 6 and judge.calls == 66
    assert 0 < result.interval[0] < 0.5 < result.interval[1] < 1


@pytest.fixture
def endpoint():
    """A local OpenAI-compatible endpoint that accepts everything and keeps the requests."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append((self.path, self.headers["Authorization"], body))
            reply = json.dumps({"choices": [{"message": {"content": "Accept"}}]}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1", requests
    server.shutdown()
    server.server_close()


def test_endpoint_judge(endpoint, monkeypatch):
    url, requests = endpoint
    monkeypatch.setenv("JUDGE_KEY", "secret")
    judge = recipes.EndpointJudge(url, "small-model", key_variable="JUDGE_KEY")
    assert judge("Is it?", 0) == judge("Is it?", 1) == "Accept"
    (path, key, first), (_, _, second) = requests
    assert path == "/v1/chat/completions" and key == "Bearer secret"
    assert first["temperature"] == 0.0 and second["temperature"] > 0 and second["seed"] == 1
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(InputError, match="JUDGE_KEY is not set"):
        judge("Is it?", 0)
    with pytest.raises(InputError, match="did not answer"):
        recipes.EndpointJudge("http://127.0.0.1:9/v1", "x")("Is it?", 0)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"doc_id": "a", "context": "q", "choices": ["x", "y"]}], ["'gold' is missing"]),
        ([DOCUMENTS[0], DOCUMENTS[0]], ["'test:0'", "twice", "row 2"]),
        ([{**DOCUMENTS[0], "gold": 3}], ["row 1", "'test:0'", "out of range"]),
        ([{**DOCUMENTS[0], "gold": "B"}], ["row 1", "'test:0'", "'gold', value 'B': not a whole number"]),
        ([{**DOCUMENTS[0], "gold": 0.5}], ["row 1", "'0.5': not a whole number"]),
        ([{**DOCUMENTS[0], "gold": None}], ["row 1", "'gold'"]),
        ([DOCUMENTS[1], {**DOCUMENTS[0], "context": None}], ["row 2", "'test:0'", "'context'", "no text"]),
        ([{**DOCUMENTS[0], "context": None, "gold": "B"}], ["row 1", "'context'", "no text"]),
        ([{**DOCUMENTS[0], "choices": ["x"]}], ["row 1", "choices"]),
    ],
)
def test_bad_documents_are_named(tmp_path, rows, words):
    with pytest.raises(InputError) as error:
        read_documents(write_documents(tmp_path / "d.jsonl", rows))
    assert all(word in str(error.value) for word in words)


STEP = "name: x\nbenchmark: b\nfilters:\n  - %s"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (STEP % "positiv_slope", ["step 1", "did you mean 'positive_slope'"]),
        (STEP % "top_share: {shares: 0.5}", ["top_share", "did you mean 'share'"]),
        ("name: x\nbenchmark: b\nfilter: []", ["did you mean 'filters'"]),
        ("name: x\nfilters: [leakage]", ["'benchmark' is missing"]),
        ("name: x\nbenchmark: b\nfilters: {leakage: {}}", ["not a list"]),
        ("name: x\nbenchmark: b\nfilters: [random_subset]", ["random_subset", "count"]),
        ("[", ["not valid YAML"]),
        (STEP % "top_share: {share: half}", ["recipe.yaml: filters, step 1, top_share, share: 'half'", "number"]),
        (STEP % "random_subset: {count: 5.5}", ["random_subset, count: 5.5", "integer"]),
        (STEP % "size_rule: {minimum: [5]}", ["size_rule, minimum: (5,)"]),
        (STEP % "subjects: {values: physics}", ["subjects, values: 'physics'", "tuple"]),
        (STEP % "positive_slope: {pooling: median}", ["positive_slope, pooling: 'median'", "'mean' or 'each'"]),
        (STEP % "quality_gates: {tokens_per_character: [0.1]}", ["quality_gates, tokens_per_character: (0.1,)"]),
        (STEP % "any_of: [[{size_rule: {maximum: long}}]]", ["any_of, step 1, size_rule, maximum: 'long'"]),
        (STEP % "llm_judge: {model: x, promptings: many}", ["llm_judge, promptings: 'many'"]),
        (STEP % "leakage" + "\nfit_models: small", ["recipe.yaml, fit_models: 'small'"]),
        (STEP % "leakage" + "\nexport: {num_fewshot: five}", ["export, num_fewshot: 'five'"]),
        (STEP % "leakage" + "\nexport: 5", ["recipe.yaml, export: 5"]),
    ],
)
def test_bad_recipes_are_named(tmp_path, text, words):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        recipes.read_recipe(tmp_path / "recipe.yaml", lambda settings: None)
    assert all(word in str(error.value) for word in words)


RECIPE = """
name: facts_rising
benchmark: facts
task: facts_cloze
score: confidence_margin
filters:
  - any_of: [[{subjects: {values: [subject 0]}}], [{subjects: {values: [subject 1]}}]]
  - positive_slope: {score: confidence_margin}
  - size_rule: {minimum: 5}
export: {description: "About {{subject}}. "}
"""


def test_apply_writes_ids_judgement_and_task(tmp_path):
    files = write_world(tmp_path, World(items=60))
    rows = [{**DOCUMENTS[0], "doc_id": f"test:{i}", "subject": f"subject {i % 3}"} for i in reversed(range(60))]
    documents = write_documents(tmp_path / "d.jsonl", rows)
    result = applied(tmp_path, RECIPE, items=files.items, models=files.models, documents=documents, controls=20)
    assert result.exit_code == 0, result.output
    assert "any_of: 40 of 60 items stay" in result.output
    assert result.output.count("where it was not") == 2  # by architecture and by size, never in sample alone
    kept = json.loads((tmp_path / "out" / "kept.json").read_text())
    ids = list(pd.read_csv(tmp_path / "out" / "kept.csv")["doc_id"])
    assert kept["items"] == len(ids) and 5 < len(ids) <= 40 and not any(int(i[5:]) % 3 == 2 for i in ids)
    samples = json.loads((tmp_path / "out" / "samples.json").read_text())
    assert samples == {"facts_cloze": sorted(int(i[5:]) for i in ids)}
    judged = json.loads((tmp_path / "out" / "judgement.json").read_text())
    assert set(judged) == {"architecture", "size"}
    assert all({"in_sample", "held_out", "control_high"} <= set(trial) for trial in judged.values())
    lines = (tmp_path / "out" / "tasks" / "facts_rising.test.jsonl").read_text().splitlines()
    assert [json.loads(line)["doc_id"] for line in lines] == ids


def test_fitted_filters_need_other_models(tmp_path):
    one = item_rows(World(models=("small-deep",), checkpoints=10, items=30))
    files, recipe = write_world(tmp_path, items=one), "name: x\nbenchmark: facts\nfilters: [positive_slope]\n"
    for options, said in (({}, "--models"), ({"models": files.models}, "small-deep 10")):
        result = applied(tmp_path, recipe, items=files.items, **options)
        assert isinstance(result.exception, InputError) and said in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_exported_task_is_what_lm_eval_runs(tmp_path):
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    documents = read_documents(write_documents(tmp_path / "d.jsonl"))
    kept = ("test:4", "test:1")
    fewshot = documents[documents["doc_id"] == "test:0"]
    described = Export(1, "About {{subject}}.\n\n")
    recipes.write_files(task_files(documents, kept, "kept_facts", described, fewshot), tmp_path / "tasks")

    class Third(LM):
        """Finds the second choice most likely, and keeps what it was asked."""

        asked: list = []  # noqa: RUF012

        def loglikelihood(self, requests):
            self.asked += [request.args for request in requests]
            return [(-1.0 if request.args[1] == " two" else -2.0, False) for request in requests]

        def loglikelihood_rolling(self, requests):
            raise NotImplementedError

        generate_until = loglikelihood_rolling

    manager = TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False)
    found = lm_eval.simple_evaluate(Third(), tasks=["kept_facts"], task_manager=manager, bootstrap_iters=0)
    # both kept items have gold 1
    assert found["results"]["kept_facts"]["acc,none"] == 1.0
    assert found["n-samples"]["kept_facts"]["original"] == 2
    context, continuation = Third.asked[0]
    assert continuation == " one"
    assert context == ("About law.\n\nQuestion: fact 0\nAnswer: one\n\nQuestion: fact 4\nAnswer:")
    with pytest.raises(InputError, match="2 few-shot examples asked for, 0 given"):
        task_files(documents, kept, "x", Export(2))
    with pytest.raises(InputError, match="not a task name"):
        task_files(documents, kept, "../x", Export())


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("name: mmlu rising\nfilters: [duplicates]", "recipe.yaml, name: 'mmlu rising' is not a task name"),
        ("name: x\nfilters: [duplicates]\nexport: {num_fewshot: 5}", "5 few-shot examples asked for, 0 given"),
        ("name: x\nfilters: [{subjects: {values: [physics, law], complement: true}}]", "no document is left"),
        ("name: x\nfilters: [{size_rule: {maximum: .nan}}]", "maximum: nan is not a number"),
    ],
)
def test_a_recipe_that_cannot_be_exported_leaves_nothing_behind(tmp_path, recipe, said):
    result = applied(tmp_path, f"benchmark: b\n{recipe}\n", documents=write_documents(tmp_path / "d.jsonl"))
    assert isinstance(result.exception, InputError) and said in str(result.exception)
    assert not (tmp_path / "out").exists()


SCI_SCORE = "sci_score: {science_model: small-deep, general_model: small-wide, share: 0.5}"


@pytest.mark.parametrize(
    ("steps", "designs"),
    [
        ([SCI_SCORE], {"references"}),
        ([SCI_SCORE, "positive_slope"], {"architecture"}),
        ([f"any_of: [[{{{SCI_SCORE}}}], [positive_slope]]"], {"architecture"}),
    ],
)
def test_sci_score_is_judged_without_its_own_models(tmp_path, steps, designs):
    """Folds that leave the two models out do not take them from the filter, and none scores them."""
    files = write_world(tmp_path, World(items=60))
    text = STEP.replace("benchmark: b", "benchmark: facts") % "\n  - ".join(steps)
    result = applied(tmp_path, text, items=files.items, models=files.models, controls=20)
    assert result.exit_code == 0, result.exception
    judged = json.loads((tmp_path / "out" / "judgement.json").read_text())
    assert set(judged) == designs and result.output.count("random choices of the same size") == len(designs)
    recipe = recipes.read_recipe(tmp_path / "recipe.yaml", lambda settings: None)
    answers = read_benchmark_items(files.items, "facts")
    folds = recipes.folds_by_design(answers, read_model_facts(files.models), recipe)
    scored = {answers.models[model].model for design in folds.values() for fold in design for model, _ in fold.score}
    assert scored and not scored & {"small-deep", "small-wide"}
    if designs == {"references"}:  # the two models choose alike whatever is left out
        judged = judged["references"]
        assert judged["in_sample"] == judged["held_out"] and judged["kept_in_sample"] == 30
