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
    def make(files: dict, **options):
        for name, document in files.items():
            path = tmp_path / "swe" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(document))
        scores = read_files([tmp_path], ImportOptions(**options), log := ImportLog())
        return scores.set_index("model"), log

    return make


def test_images_and_containers_of_a_report_are_no_items(read):
    """6 and 8 of 10 instances, whatever was left running."""
    left = {"unremoved_images": [f"image.{name}:latest" for name in ITEMS], "unstopped_containers": ["box"]}
    scores, log = read({"ant.run1.json": report(6, **left), "bee.run1.json": report(8)})
    assert scores["value"].to_dict() == {"ant": 0.6, "bee": 0.8} and set(scores["n_items"]) == {10} and log.items == 20
    assert {each.source for each in log.reading.decisions if each.what == "items"} == {"said by the file"}


def test_lists_of_the_leaderboard_name_their_items(read):
    """4 that are resolved, and 2 without an answer or a log: 6 named; hosts are none."""
    results = {"resolved": ITEMS[:4], "no_generation": ITEMS[4:5], "no_logs": ITEMS[5:6], "hosts": ["x", "y"]}
    scores, log = read({"20240101_ant/results/results.json": results})
    assert scores.at["20240101_ant", "value"] == pytest.approx(4 / 6) and log.items == 6
    assert {each.kind for each in log.reading.decisions if each.what == "items"} == {"unsure"}


def test_more_items_than_there_are_is_refused_unless_the_reader_says_how_many(read, tmp_path):
    with pytest.raises(InputError, match=r"ant\.run1\.json: its lists name 10 items, of 8"):
        read({"ant.run1.json": report(6, total=8)})
    other = {"total_instances": 10, "resolved_ids": [f"other__{number}" for number in range(5)]}
    files = {"ant.run1.json": report(6), "bee.run1.json": other}
    with pytest.raises(InputError, match="all lists name 15 items, of 10"):
        read(files)
    reading = tmp_path / "reading.tsv"
    reading.write_text("what\twhere\tdecided\nitems\tswe\t20\n")
    scores, _ = read(files, reading=reading)
    assert scores["value"].to_dict() == {"ant": 0.3, "bee": 0.25}


def test_reports_that_count_differently_are_unsure(read):
    scores, log = read({"ant.run1.json": report(6), "bee.run1.json": report(8, total=20)})
    assert scores["value"].to_dict() == {"ant": 0.3, "bee": 0.4}
    assert {each.kind for each in log.reading.decisions if each.what == "items"} == {"unsure"}


def test_a_broken_cell_of_parts_is_counted_as_missing(tmp_path):
    """The overall score counts, of its parts too."""
    path = tmp_path / "seer" / "seer_Shapes_acc.csv"
    path.parent.mkdir()
    path.write_text('"split","Overall","round","square"\n"none","0.5","N/A","0.25"\n')
    scores = read_files([tmp_path], ImportOptions(), log := ImportLog())
    assert scores["value"].tolist() == [0.5] and set(scores["model"]) == {"seer"}
    assert any("1 score" in note for note in log.notes)


def test_answers_in_other_events_of_a_log_are_named(tmp_path):
    """Of four matches two are right; a judge's two answers do not count."""
    spec = {"spec": {"completion_fns": ["wren-1b"], "eval_name": "tides.s1.simple-v0"}}
    right = [("match", name, name in "ab") for name in "abcd"] + [("judge", name, True) for name in "ab"]
    events = [
        {"type": kind, "sample_id": name, "data": {"correct": value, "text": "\u2028"}} for kind, name, value in right
    ]
    (tmp_path / "log.jsonl").write_text(
        "\n".join(json.dumps(line, ensure_ascii=False) for line in [spec, *events]) + "\n", "utf-8"
    )
    scores = read_files([tmp_path], ImportOptions(), log := ImportLog())
    assert scores["value"].tolist() == [0.5] and log.items == 4
    assert [each.values for each in log.reading.decisions if each.decided == "left out"] == [2]


def test_of_what_must_not_be_less_is_better(read):
    """DeepEval's bias and toxicity are shares with a maximum; of its relevancy nothing is known."""
    names = {"Bias": 0.2, "Toxicity": 0.1, "Answer Relevancy": 0.7}
    measured = [{"name": name, "score": score} for name, score in names.items()]
    cases = [{"name": f"case {number}", "metricsData": measured} for number in range(3)]
    scores, _ = read({"run.json": {"testFile": "quiz.py", "hyperparameters": {"model": "ant"}, "testCases": cases}})
    better = scores.set_index("metric")["higher_is_better"]
    assert better["bias,none"] == False and better["toxicity,none"] == False  # noqa: E712 # nullable
    assert pd.isna(better["answer_relevancy,none"])
