"""What small harnesses write: which lists of a report are of items, and of how many items shares are."""

import json

import pandas as pd
import pytest
from tests.unit.tables.conftest import read_files

from lm_validity.errors import InputError
from lm_validity.tables.formats.score_files import ImportLog, ImportOptions

ITEMS = [f"repo__{number}" for number in range(10)]


def report(resolved: int, total: int = 10, **more) -> dict:
    lists = {"completed_ids": ITEMS, "resolved_ids": ITEMS[:resolved], "unresolved_ids": ITEMS[resolved:]}
    return {"total_instances": total, **lists, "error_ids": [], "schema_version": 2, **more}


@pytest.fixture
def read(tmp_path):
    """What an import of files (texts, or values as JSON) reads and says."""

    def make(files: dict, **options):
        for name, content in files.items():
            path = tmp_path / "swe" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
        scores = read_files([tmp_path], ImportOptions(**options), log := ImportLog())
        return scores.set_index("model"), log

    return make


LEFT = {"unremoved_images": [f"image.{name}:latest" for name in ITEMS], "unstopped_containers": ["box"]}
LEADERBOARD = {"resolved": ITEMS[:4], "no_generation": ITEMS[4:5], "no_logs": ITEMS[5:6], "hosts": ["x", "y"]}


@pytest.mark.parametrize(
    ("files", "values", "items", "said"),
    [  # images and containers of a report are no items
        ({"ant.run1.json": report(6, **LEFT), "bee.run1.json": report(8)}, {"ant": 0.6, "bee": 0.8}, 20, ""),
        # 4 that are resolved, and 2 without an answer or a log: 6 named; hosts are none
        ({"20240101_ant/results/results.json": LEADERBOARD}, {"20240101_ant": 4 / 6}, 6, "perhaps there are more"),
        ({"ant.run1.json": report(6), "bee.run1.json": report(8, total=20)}, {"ant": 0.3, "bee": 0.4}, 40, "10 to 20"),
    ],
)
def test_lists_of_items(read, files, values, items, said):
    scores, log = read(files)
    assert scores["value"].to_dict() == pytest.approx(values) and log.items == items
    assert any(said in note for note in log.notes)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"ant.run1.json": report(6, total=8)}, r"ant\.run1\.json: its lists name 10 items, of 8"),
        (
            {"ant.run1.json": report(6), "bee.run1.json": {"total_instances": 10, "resolved_ids": list("abcde")}},
            "all lists name 15 items, of 10",
        ),
    ],
)
def test_more_items_than_there_are(read, files, words):
    with pytest.raises(InputError, match=words):
        read(files)


def test_a_broken_cell_of_parts_is_counted_as_missing(read):
    """The overall score counts, of its parts too."""
    scores, log = read({"seer/seer_Shapes_acc.csv": '"split","Overall","round","square"\n"none","0.5","N/A","0.25"\n'})
    assert scores["value"].to_dict() == {"seer": 0.5} and any("1 score" in note for note in log.notes)


def test_answers_in_other_events_of_a_log_are_named(read):
    """Of four matches two are right; a judge's two answers do not count."""
    spec = {"spec": {"completion_fns": ["wren-1b"], "eval_name": "tides.s1.simple-v0"}}
    right = [("match", name, name in "ab") for name in "abcd"] + [("judge", name, True) for name in "ab"]
    events = [
        {"type": kind, "sample_id": name, "data": {"correct": value, "text": "\u2028"}} for kind, name, value in right
    ]
    scores, log = read({"log.jsonl": "\n".join(json.dumps(line, ensure_ascii=False) for line in [spec, *events])})
    assert scores["value"].tolist() == [0.5] and log.items == 4
    assert any("do not count: 2" in note for note in log.notes)


def test_of_what_must_not_be_less_is_better(read):
    """DeepEval's bias and toxicity are shares with a maximum; of its relevancy nothing is known."""
    names = {"Bias": 0.2, "Toxicity": 0.1, "Answer Relevancy": 0.7}
    measured = [{"name": name, "score": score} for name, score in names.items()]
    cases = [{"name": f"case {number}", "metricsData": measured} for number in range(3)]
    scores, _ = read({"run.json": {"testFile": "quiz.py", "hyperparameters": {"model": "ant"}, "testCases": cases}})
    better = scores.set_index("metric")["higher_is_better"]
    assert not better["bias,none"] and not better["toxicity,none"] and pd.isna(better["answer_relevancy,none"])


OLMES = {"model_config": {"model": "acme/ant"}, "task_config": {"num_shots": 5}, "num_instances": 500}
SUMMARY = """dataset,version,metric,mode,ant,bee
--------- Exam ---------,-,-,-,-,-
maps,a1,accuracy,gen,28.24,-
exam,-,naive_average,gen,28.0,34.67
"""


@pytest.mark.parametrize(
    ("files", "row"),
    [
        (
            {"summary_1.csv": SUMMARY},
            {"model": "ant", "benchmark": "maps", "metric": "accuracy,none", "value": 0.2824},
        ),
        (
            {"metrics.json": OLMES | {"task_name": "quiz", "metrics": {"primary_score": 0.3, "note": "x"}}},
            {"model": "acme/ant", "benchmark": "quiz", "metric": "primary_score,none", "value": 0.3, "num_fewshot": 5},
        ),
        (
            {"gpqa_gpt-x_20250101_101010.json": {"score": 0.4, "score:std": 0.5, "chars": 90.0, "chars:std": 3.0}},
            {"model": "gpt-x", "benchmark": "gpqa", "metric": "score,none", "value": 0.4},
        ),
        (
            {"curves.json": {"data": {"ant": {"iteration": [1000, 2000], "gtokens": [1, 2], "arc": [None, 0.4]}}}},
            {"model": "ant", "benchmark": "arc", "checkpoint": "iter_0002000", "tokens_b": 2.0, "value": 0.4},
        ),
    ],
)
def test_one_score_of_a_file(read, files, row):
    scores, _ = read(files)
    (found,) = scores.reset_index().to_dict("records")
    assert {name: found[name] for name in row} == pytest.approx(row)


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("mteb.json", {"mteb_version": "1", "task_name": "t", "scores": "high"}),
        ("eval.json", {"eval": {"task": "t", "model": "m", "config": {"epochs": "two"}, "model_args": {},
                                "task_args": {}}, "status": "success", "plan": {}, "results": {"scores": []}}),
        ("ant-retail.json", [{"task_id": None, "trial": 0, "reward": 1.0}]),
    ],
)  # fmt: skip
def test_a_mangled_file_of_a_harness_is_named(read, name, document):
    with pytest.raises(InputError, match=name):
        read({name: document}, strict=True)
