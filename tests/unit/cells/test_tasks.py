"""Finding and loading lm-eval tasks."""

import inspect
import json
import random
import shutil
import time
from pathlib import Path

import datasets
import huggingface_hub
import lm_eval
import pytest
import yaml
from lm_eval.tasks import TaskManager
from toy_world import TASKS, write_toy_tasks

from lm_validity.cells.tasks import finding
from lm_validity.cells.tasks.answers import metrics_of_an_answer
from lm_validity.cells.tasks.finding import PACKAGE, TaskRecord, build_task, find_task, read_task_name
from lm_validity.cells.tasks.splits import prefetch_benchmark
from lm_validity.cells.tasks.tasks import load_task, rows
from lm_validity.config.sheets import Benchmark
from lm_validity.errors import InputError
from lm_validity.run import inputs, scoring
from lm_validity.run.inputs import task_problem
from lm_validity.run.scoring import task_sources


def test_shipped_tasks_are_found_without_data():
    record = find_task("arc_challenge")  # declared in a file that includes another
    assert record.file == "tasks/arc/arc_challenge.yaml" and record.include_path is None
    assert record.metrics == ("acc,none", "acc_norm,none")
    assert find_task("gsm8k").metrics == ("exact_match,strict-match", "exact_match,flexible-extract")
    assert find_task("cola").higher_is_better == {"mcc,none": True}
    assert find_task("wikitext").higher_is_better["bits_per_byte,none"] is False


PAIR = """def score(predictions, references, **kwargs):
    return float(predictions == references)

def pair(references, predictions):
    return {"same": float(references == predictions), "size": float(len(predictions[0]))}

def size(document, results):
    return {"size": len(results[0])}

def choose(document, results):
    return {"margin": results[0][0] - results[1][0]}

def fails(document, results):
    return {"size": 1 / len(results[0])}
"""
QUIZ = [{"q": f"is {n} even?", "c": ["yes", "no"], "a": n % 2, "text": "no", "n": [1, 2]} for n in range(4)]
WRITES = {"output_type": "generate_until", "doc_to_choice": None, "doc_to_target": "text"}


@pytest.fixture
def quiz(write_file):
    """A function (code of own.py, keys of the YAML file) -> the folder of a task."""
    plain = {"task": "own_quiz", "doc_to_text": "{{q}}", "doc_to_choice": "c", "doc_to_target": "a"}
    return lambda code="", **keys: write_file({"test": QUIZ}, code, **plain | {"metric_list": None} | keys)


@pytest.mark.parametrize("stated", [{}, {"high_is_better": True}, {"higher_is_better": False}])  # a typing error
@pytest.mark.parametrize("better", [True, False])
def test_a_direction_is_the_tasks_or_where_nobody_states_it_the_sheets(quiz, caplog, stated, better):
    metric = {"metric": "!function own.score", "aggregation": "mean", **stated}
    folder, direction = quiz(PAIR, **WRITES, metric_list=[metric]), stated.get("higher_is_better")
    kind = {"output_type": "generate_until", "higher_is_better": better}
    row = Benchmark(benchmark="mine", task="own_quiz", include_path=str(folder), metric="score,none", **kind)
    assert find_task("own_quiz", folder).higher_is_better == {"score,none": direction}
    if direction is not None and better:
        with pytest.raises(InputError, match="higher_is_better is 1 in the sheet, and the task says otherwise"):
            prefetch_benchmark(row)
        return
    with caplog.at_level("INFO", "lm_validity"):
        assert prefetch_benchmark(row)["record"]["higher_is_better"] == {"score,none": direction}
    said = [line for line in caplog.messages if "does not say whether a higher score,none is better" in line]
    assert len(said) == (direction is None)
    assert all(line.endswith(f"{int(better)} (1 where it is empty)") for line in said)


@pytest.mark.parametrize(
    ("keys", "metric", "missing"),
    [
        ({**WRITES, "metric_list": [{"metric": "!function own.pair", "aggregation": "mean"}]}, "size", "pair"),
        ({**WRITES, "process_results": "!function own.size"}, "size", "sizes"),
        ({"process_results": "!function own.choose"}, "margin", "margins"),
        ({"metric_list": [{"metric": "acc_mutual_info"}]}, "acc_mutual_info", "acc_norm"),
    ],
)
def test_a_metric_is_one_that_an_answer_is_given(quiz, keys, metric, missing):
    """Whatever name the task's file has for it."""
    folder = str(quiz(PAIR, **keys))
    row = {"benchmark": "own_quiz", "include_path": folder, "output_type": keys.get("output_type", "multiple_choice")}
    assert prefetch_benchmark(Benchmark(**row, metric=f"{metric},none"))
    with pytest.raises(InputError, match=f"lm-eval has no metric '{missing},none'"):
        prefetch_benchmark(Benchmark(**row, metric=f"{missing},none"))


def test_code_that_takes_no_empty_answer_has_the_metrics_of_its_file(quiz):
    task = load_task(find_task("own_quiz", quiz(PAIR, **WRITES, process_results="!function own.fails")))
    assert metrics_of_an_answer(task) == {}


def test_a_group_takes_a_direction_from_those_of_its_tasks_that_state_one(tmp_path):
    folder = write_toy_tasks(tmp_path)
    text = (folder / "toy_choice.yaml").read_text().partition("metric_list:")[0].partition("\n")[2]
    stated = {"a": ("", "higher_is_better: true", ""), "b": ("", "higher_is_better: false", "higher_is_better: false")}
    for name, more in stated.items():
        entries = [f"  - {{metric: {metric}, {words}}}" for metric, words in zip("uvw", more, strict=True)]
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{text}metric_list:\n" + "\n".join(entries) + "\n")
    (folder / "both.yaml").write_text("group: both\ntask: [a, b]\n")
    assert find_task("both", folder).higher_is_better == {"u,none": None, "w,none": False}  # of v they disagree


GPQA = {
    "task": "own_gpqa",
    "process_docs": "!function own.process_docs",
    "validation_split": "train",
    "doc_to_text": "{{Question}} {{choice1}} {{choice2}} {{choice3}} {{choice4}}",
    "doc_to_choice": ["(A)", "(B)", "(C)", "(D)"],
    "doc_to_target": "answer",
}


def test_a_task_that_draws_from_the_process_has_lm_evals_order(write_file, monkeypatch, tmp_path):
    """gpqa's code over rows of its format: whatever the state of the process, and whatever order the data library has
    kept from another program."""
    answers = ["Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3))]
    rows = [{"Question": f"q{n}"} | {answer: f"{answer} {n}" for answer in answers} for n in range(40)]
    code = (PACKAGE / "tasks" / "gpqa" / "zeroshot" / "utils.py").read_text()
    record, letters = find_task("own_gpqa", write_file({"train": rows}, code, **GPQA)), []
    for seed in (5, 6):
        random.seed(seed)
        state, task = random.getstate(), load_task(record)
        letters += ["".join(doc["answer"][1] for doc in task.eval_docs) for _ in range(2)]
        assert random.getstate() == state
        build_task("own_gpqa", record.path)  # leaves its own order beside the data set
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "empty")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # the dummy asks for a tokenizer
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    found = lm_eval.simple_evaluate("dummy", tasks=["own_gpqa"], task_manager=manager, bootstrap_iters=0)
    theirs = "".join(sample["doc"]["answer"][1] for sample in found["samples"]["own_gpqa"])
    assert letters == [theirs] * 4


# group: (tasks, metrics, first task, its file)
SHIPPED_GROUPS = {
    "mmlu": (57, ("acc,none",), "mmlu_abstract_algebra", "tasks/mmlu/default/mmlu_abstract_algebra.yaml"),
    "mmlu_continuation": (57, ("acc,none", "acc_norm,none"), "mmlu_abstract_algebra_continuation", None),
    "noor": (12, ("acc,none", "acc_norm,none"), "noor_abstract_algebra", None),
    "sciknoweval_mcqa": (4, ("acc,none", "acc_norm,none"), "sciknoweval_mcqa_var5shots_Biology", None),
    "ai2_arc": (2, ("acc,none", "acc_norm,none"), "arc_challenge", None),  # a tag
}


@pytest.mark.parametrize("name", SHIPPED_GROUPS)
def test_shipped_groups_are_found_without_data(name):
    count, metrics, first, file = SHIPPED_GROUPS[name]
    record = find_task(name)
    assert len(record.members) == count and record.metrics == metrics and record.output_type == "multiple_choice"
    assert record.members[0].task == first and file in (None, record.members[0].file)
    assert TaskRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    assert len({member.config_digest for member in record.members}) == count


def test_templates_are_compiled_once():
    """By the environment that lm-eval renders with."""
    assert lm_eval.utils.env.from_string("{{a}}") is lm_eval.utils.env.from_string("{{a}}")
    assert "env.from_string" in inspect.getsource(lm_eval.utils.apply_template)


def test_unknown_names_get_a_hint(toy_folder):
    with pytest.raises(InputError, match="did you mean 'toy_choice'"):
        find_task("toy_choise", toy_folder)
    with pytest.raises(InputError, match="output type 'loglikelihood' is not supported"):
        find_task("lambada_openai")
    with pytest.raises(InputError, match="no such folder"):
        find_task("toy_choice", toy_folder / "absent")


def test_records_load_fast_and_zero_shot(toy_folder):
    record = TaskRecord.from_json(json.loads(json.dumps(find_task("toy_generation", toy_folder).to_json())) | {"x": 1})
    assert record == find_task("toy_generation", toy_folder)
    started = time.process_time()
    task = load_task(record)
    assert time.process_time() - started < 0.4
    assert task.config.num_fewshot == 0  # the file says 3


DIGEST = "ba2d4a96d6ae4dab75839b04e90ee2d5f58d7e818d3f80b5d9eee6783053db5d"


def test_digest_follows_the_task_not_its_place(tmp_path):
    """Of a folder whose YAML names all its Python files (the demo's is one) recipes of finished cells hold on to it."""
    first, second = (find_task("toy_blank", write_toy_tasks(tmp_path / name)) for name in ("a", "b"))
    assert first.config_digest == second.config_digest == DIGEST
    code = tmp_path / "b" / "blank.py"
    code.write_text(code.read_text().replace("near a", "near the"))
    assert find_task("toy_blank", tmp_path / "b").config_digest != DIGEST
    with pytest.raises(InputError, match="changed after it was recorded"):
        load_task(second)


def write_with_code(folder):
    """Two tasks in one folder: one names a function of a package in it, the other includes a file beside the folder,
    with a function there, one of its own folder, and one of an installed module."""
    tasks = folder / "tasks"
    (tasks / "lib").mkdir(parents=True)
    write_toy_tasks(tasks)
    (tasks / "blank.py").unlink()
    head = (tasks / "toy_choice.yaml").read_text().partition("doc_to_text")[0].partition("\n")[2]
    rest = "doc_to_choice: choices\ndoc_to_target: gold\nmetric_list: [{metric: acc}]\n"
    (tasks / "dotted.yaml").write_text(f"task: dotted\n{head}doc_to_text: !function lib.words.ask\n{rest}")
    (folder / "common.yaml").write_text(
        f"{head}doc_to_text: !function words.ask\nprocess_docs: !function os.path.join\n{rest}"
    )
    (tasks / "including.yaml").write_text("task: including\ninclude: ../common.yaml\n")
    for place in (folder, tasks / "lib"):
        (place / "words.py").write_text("def ask(doc):\n    return f\"What is {doc['name']}?\"\n")
    (tasks / "lib" / "numbers.py").write_text("ONE = 1\n")
    return tasks


@pytest.mark.parametrize("task", ["dotted", "including"])
def test_digest_follows_all_code_of_a_local_task_and_not_its_place(tmp_path, task):
    first, second = (write_with_code(tmp_path / name) for name in ("a", "b b"))
    digests = {find_task(task, first).config_digest, find_task(task, second).config_digest}
    assert len(digests) == 1
    # the file that a task names, one that this may import, one beside the folder
    changed = [second / "lib/words.py", second / "lib/numbers.py"]
    changed += [second.parent / "words.py"] if task == "including" else []
    for number, path in enumerate(changed, start=2):
        path.write_text(path.read_text() + "# another line\n")
        digests.add(find_task(task, second).config_digest)
        assert len(digests) == number
    (second / "lib/more.py").write_text("TWO = 2\n")
    assert find_task(task, second).config_digest not in digests


def test_a_task_in_a_folder_of_many_has_the_code_of_its_own_folder(tmp_path):
    """As in a copy of lm-eval's tasks, where another task's code says nothing about this one."""
    write_toy_tasks(tmp_path / "mine")
    before = find_task("toy_blank", tmp_path).config_digest
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "utils.py").touch()
    assert find_task("toy_blank", tmp_path).config_digest == before
    (tmp_path / "mine" / "helpers").mkdir()
    (tmp_path / "mine" / "helpers" / "more.py").touch()
    assert find_task("toy_blank", tmp_path).config_digest != before


def test_a_long_text_that_begins_with_a_slash_is_no_path(tmp_path):
    path = write_toy_tasks(tmp_path) / "toy_choice.yaml"
    text = path.read_text()
    digests = set()
    for end in ("a", "b"):
        path.write_text(text.replace('doc_to_text: "', f'doc_to_text: "/no_think {"x" * 300} {end} '))
        digests.add(find_task("toy_choice", tmp_path).config_digest)
    assert len(digests) == 2


def test_the_files_of_a_folder_of_tasks(tmp_path):
    """Those that Snakemake watches: also code and YAML further down, and what is included from elsewhere."""
    folder = write_with_code(tmp_path)
    (folder / "deep" / ".hidden").mkdir(parents=True)
    (folder / "deep" / ".hidden" / "not.py").touch()
    (folder / "deep" / "more.yaml").write_text("include:\n  - ../base_yaml  # no suffix\n  - 'other.yaml'\ntask: m\n")
    (folder / "base_yaml").write_text('"include": [../outer.yaml, absent.yaml]\n')
    (folder / "deep" / "other.yaml").touch()
    (tmp_path / "outer.yaml").write_text("include: common.yaml\n")
    found = {str(Path(path).relative_to(tmp_path)) for path in task_sources(str(folder))}
    top = {f"tasks/{name}.yaml" for name in (*TASKS, "dotted", "including")}
    below = {"tasks/lib/words.py", "tasks/lib/numbers.py", "tasks/deep/more.yaml", "tasks/deep/other.yaml"}
    assert found == top | below | {"tasks/base_yaml", "common.yaml", "outer.yaml", "words.py"}
    assert task_sources(str(tmp_path / "absent")) == []


def test_of_a_huge_folder_the_files_directly_in_it_are_watched(tmp_path, monkeypatch):
    write_with_code(tmp_path)
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "absent.yaml")
    found = {}
    for most in (3, 1000):
        monkeypatch.setattr(scoring, "MOST_FILES", most)
        task_sources.cache_clear()
        found[most] = task_sources(str(tmp_path))
    assert found[3] == [str(tmp_path / name) for name in ("common.yaml", "words.py")]
    assert str(tmp_path / "tasks" / "lib" / "words.py") in found[1000]


LAYOUTS = {
    "one line of JSON": lambda task: json.dumps(task),
    "JSON": lambda task: json.dumps(task, indent=1),
    "a byte order mark": lambda task: "\ufeff" + yaml.safe_dump(task),
    "a blank before each colon": lambda task: "\n".join(f'"{key}" : {json.dumps(task[key])}' for key in task),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_task_is_found_in_any_layout_of_yaml(quiz, layout):
    """Also the files that it includes and their code, of which the user is told before it runs."""
    code = "def choices(document):\n    return document['c']\n"
    path = quiz(code, doc_to_choice="!function own.choices") / "own_quiz.yaml"
    path.rename(path.with_name("base"))
    path.write_text(LAYOUTS[layout]({"task": "own_quiz", "include": "base"}), encoding="utf-8")
    record = find_task("own_quiz", path.parent)
    assert (record.file, record.members, record.metrics) == (path.name, (), ("acc,none", "acc_norm,none"))
    assert rows(load_task(record), "test")[0]["q"] == "is 0 even?"
    assert scoring.named_code(path) == [f"choices of {path.parent / 'own.py'}"]
    assert task_problem("own_quiz", str(path.parent), trains=False) is None


@pytest.mark.parametrize("suffix", ["yml", "json"])
def test_a_task_in_a_file_of_another_suffix_is_named(tmp_path, suffix):
    (tmp_path / f"quiz.{suffix}").write_text('{"task": "own_quiz"}', encoding="utf-8")
    with pytest.raises(InputError, match=r"rename it to quiz\.yaml"):
        read_task_name(tmp_path / f"quiz.{suffix}")


def test_a_task_that_is_not_there_or_cannot_train_is_known_without_a_network(tmp_path):
    """By a text scan, of which preflight and cost know before anything is fetched."""
    problem, hint = task_problem("arc_eazy", None, trains=True)
    assert problem == "no lm-eval task has this name" and "did you mean 'arc_easy'?" in hint
    assert task_problem("truthfulqa_mc1", None, trains=True)[0] == "has no training split"
    assert task_problem("truthfulqa_mc1", None, trains=False) is None
    inputs._text.cache_clear()
    for name in ("arc_easy", "gsm8k", "mmlu", "glue", "wikitext", "squadv2", "social_iqa"):
        assert task_problem(name, None, trains=True) is None  # its own split, by an include, a group, a tag, in Python
    assert inputs._text.cache_info().misses < 1000  # of 14,000 files: the Snakefile asks at each start
    (tmp_path / "own.yaml").write_text("task: own_quiz\ninclude: base\ntest_split: test\n", encoding="utf-8")
    (tmp_path / "base").write_text("training_split: null\n", encoding="utf-8")
    assert task_problem("own_quiz", str(tmp_path), trains=True)[0] == "has no training split"
    (tmp_path / "base").write_text("training_split: train\n", encoding="utf-8")
    inputs._text.cache_clear()
    assert task_problem("own_quiz", str(tmp_path), trains=True) is None


LIST = (
    "def rows(data=(), **settings):\n    return list(data)\n\ndef none(data):\n    return data.select([])\n\n"
    "def script(**settings):\n    raise RuntimeError('Dataset scripts are no longer supported, but found quiz.py')\n"
)
UNKNOWN = WRITES | {"metric_list": [{"metric": "exact_match", "aggregation": "nosuch"}]}
WRONG = [
    ({"metric_list": [{"metric": "!function own.none"}]}, "of metric_list has no aggregation"),
    (UNKNOWN, "no aggregation for 'exact_match'"),
    ({"metric_list": ["acc"]}, "metric_list is no list of entries with a metric"),
    ({"filter_list": [{"filter": [{"function": "take_first"}]}]}, "filter_list is no list of entries with a name"),
    ({"dataset_path": None}, "it names no data"),
    ({"dataset_kwargs": {"streaming": True}}, "as a stream"),
    ({"unsafe_code": True}, "tasks with unsafe_code are not supported"),
    ({"process_docs": "!function own.rows"}, r"its code \(process_docs or custom_dataset\) gives no data set"),
    ({"custom_dataset": "!function own.script", "dataset_path": None}, "revision: refs/convert/parquet"),
    ({"test_split": "test[:2]"}, r"no split 'test\[:2\]', which test_split names: it has test"),
    ({"doc_to_text": "{{question.text}}"}, "'question' is undefined; its columns are q, c, a, text, n"),
    ({"doc_to_target": "texts"}, r"doc_to_target reads the column 'texts'.*did you mean 'text'"),
    ({"group": "quizzes"}, "it declares a task and its group in one. Hint: write `tag:`"),
    ({"group": ["quizzes"]}, "it declares a task and its group in one. Hint: write `tag:`"),
    ({"process_docs": "!function own.none"}, "no document of its scored split is left"),
    ({"doc_to_choice": "n"}, "a choice of its first document is empty or no text"),
    ({"doc_to_choice": ["yes"], "doc_to_target": "{{a + 1}}"}, "the label of its first document is no place"),
]


@pytest.mark.parametrize(("keys", "problem"), WRONG, ids=[problem for _, problem in WRONG])
def test_what_is_wrong_with_a_tasks_file_is_named(quiz, keys, problem):
    kind = {"output_type": keys.get("output_type", "multiple_choice"), "metric": "exact_match,none"}
    with pytest.raises(InputError, match=problem):
        prefetch_benchmark(Benchmark(benchmark="own_quiz", include_path=str(quiz(LIST, **keys)), **kind))


def test_the_configurations_of_its_data_are_named(quiz):
    folder = quiz(dataset_kwargs=None)
    configs = [{"config_name": name, "data_files": "test.jsonl"} for name in ("one", "two")]
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n", encoding="utf-8")
    quiz(dataset_path=str(folder), dataset_kwargs=None)
    with pytest.raises(InputError, match="dataset_name names none of 'one', 'two'"):
        load_task(find_task("own_quiz", folder))


def test_of_two_files_that_declare_a_task_the_one_that_is_taken_is_named(quiz, caplog):
    """It is lm-eval's."""
    folder = quiz()
    (folder / "old").mkdir()
    shutil.copy(folder / "own_quiz.yaml", folder / "old")
    assert find_task("own_quiz", folder).file == "old/own_quiz.yaml"
    assert f"{folder}/own_quiz.yaml declares it too; {folder}/old/own_quiz.yaml is taken" in caplog.text


def test_a_metric_that_is_listed_twice_is_said(quiz, caplog):
    find_task("own_quiz", quiz(metric_list=[{"metric": "acc", "weight": 1}, {"metric": "acc_norm"}, {"metric": "acc"}]))
    assert "metric_list has acc twice" in caplog.text and "acc_norm" not in caplog.text


def test_a_task_within_a_groups_file_is_refused_for_that(quiz, monkeypatch):
    folder = quiz()
    (folder / "shipped" / "tasks").mkdir(parents=True)
    monkeypatch.setattr(finding, "PACKAGE", folder / "shipped")  # else all of lm-eval's are searched
    inline = yaml.safe_load((folder / "own_quiz.yaml").read_text()) | {"task": "inline"}
    for tasks, problem in (
        (["own_quiz", inline], "names 'inline', which its own file defines"),
        (["own_quiz", {"task": "absent"}], "names 'absent', which is not a task"),
        ([{"group": "part", "task": ["all"]}], "all: the group is one of its own tasks"),
    ):
        (folder / "all.yaml").write_text(yaml.safe_dump({"group": "all", "task": tasks}))
        with pytest.raises(InputError, match=problem):
            find_task("all", folder)


CLASS = """from lm_eval.api.task import ConfigurableTask, MultipleChoiceTask

class Plain(MultipleChoiceTask):
    OUTPUT_TYPE = "multiple_choice"
    download = has_training_docs = has_validation_docs = has_test_docs = lambda self, *places: False

    def __init__(self, config=None):
        super().__init__(config={"task": "own_quiz"})

    def doc_to_text(self, doc):
        return doc["q"]

class Configurable(ConfigurableTask):
    VERSION = 1

    def __init__(self, config=None):
        super().__init__(config={key: value for key, value in config.items() if key != "class"})
"""


def test_a_class_that_does_not_list_its_choices_is_refused(quiz):
    assert find_task("own_quiz", quiz(CLASS, **{"class": "!function own.Configurable"})).metrics[0] == "acc,none"
    with pytest.raises(InputError, match="does not say which choices a document has"):
        find_task("own_quiz", quiz(CLASS, **{"class": "!function own.Plain"}))
