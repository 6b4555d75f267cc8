"""Points of training and numbers of solved examples: read from result files, kept apart, one number for the reports."""

import json

import pandas as pd
import pyarrow.parquet as pq
import pytest
from tests.unit.tables.conftest import read_files

from lm_validity.studies.agreement.score_matrix import read_score_matrix
from lm_validity.studies.signal.curves import read_learning_curves
from lm_validity.tables.counted import Sources, report_rows
from lm_validity.tables.formats.score_files import ImportLog, ImportOptions, parse_arguments, training_point
from lm_validity.tables.items import read_benchmark_items
from lm_validity.tables.schema import ITEMS, SCORES, read_scores, write_table


def read_lm_eval(paths):
    """The scores of lm-eval's files, none of which may be left out."""
    return read_files(paths, ImportOptions(), ImportLog(strict=True))


def version_0_3(model: str, accuracy: float, examples: int = 0, more: str = "") -> dict:
    """A file in the layout of lm-eval 0.3."""
    return {
        "results": {"quiz": {"acc": accuracy, "acc_stderr": 0.01}},
        "versions": {"quiz": 0},
        "config": {"model": "hf-causal", "model_args": f"pretrained={model}{more}", "num_fewshot": examples},
    }


def files(folder, *documents: dict) -> list:
    paths = [folder / f"{number}.json" for number in range(len(documents))]
    for path, document in zip(paths, documents, strict=True):
        path.write_text(json.dumps(document))
    return paths


def score_table(path, rows: list[dict]):
    common = {"benchmark": "quiz", "protocol": "direct", "split": "test", "metric": "acc,none", "value": 0.5}
    write_table(pd.DataFrame([common | row for row in rows]), SCORES, path)
    return path


@pytest.mark.parametrize(
    ("arguments", "point"),
    [
        ("pretrained=a", ("final",)),
        ("pretrained=a,revision=main", ("final",)),
        ("pretrained=a,revision=None", ("final",)),
        ({"pretrained": "a", "revision": None}, ("final",)),
        ("pretrained=a,revision=step1000", ("step1000", 1000)),
        ("pretrained=a, revision=step0 ,dtype=float16", ("step0", 0)),
        ({"pretrained": "a", "revision": "global_step-5000"}, ("global_step-5000", 5000)),
        ("pretrained=a,revision=iter_0002000", ("iter_0002000", 2000)),
        ("pretrained=a,step=250", ("step250", 250)),
        ({"pretrained": "a", "step": 250}, ("step250", 250)),
        ("pretrained=a,subfolder=checkpoints/step7", ("checkpoints/step7", 7)),
        ("pretrained=a,revision=stage1-step1000-tokens4B", ("stage1-step1000-tokens4B", 1000, 4.0)),
        ("pretrained=a,revision=stage2-ingredient1-step1000-tokens4B", ("stage2-ingredient1-step1000-tokens4B",)),
        ("pretrained=a,revision=step10k", ("step10k",)),
        ("pretrained=a,revision=footstep7", ("footstep7",)),
        ("pretrained=a,revision=v1.1", ("v1.1",)),
    ],
)
def test_points_of_training(arguments, point):
    expected = dict(zip(("checkpoint", "iteration", "tokens_b"), (*point, None, None), strict=False))
    assert training_point(parse_arguments(arguments)) == expected


def test_checkpoints_and_numbers_of_examples_are_scores_of_their_own(tmp_path):
    documents = [
        version_0_3("org/a", 0.3, more=",revision=step1000"),
        version_0_3("org/a", 0.4, more=",revision=step2000"),
        version_0_3("org/a", 0.6, examples=5, more=",revision=step2000"),
    ]
    rows = read_lm_eval(files(tmp_path, *documents)).sort_values("value")
    assert rows["checkpoint"].tolist() == ["step1000", "step2000", "step2000"]
    assert rows["iteration"].tolist() == [1000, 2000, 2000]
    assert rows["num_fewshot"].tolist() == [0, 0, 5]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"n-shot": {"quiz": 3}, "configs": {"quiz": {"num_fewshot": 2}}}, 3),
        ({"configs": {"quiz": {"num_fewshot": 2}}}, 2),
        ({"config": {"num_fewshot": 1}}, 1),
        ({}, None),
    ],
)
def test_examples_of_the_task_come_before_those_of_the_run(more, expected, tmp_path):
    document = {"results": {"quiz": {"acc,none": 0.5}}, "model_name": "a"} | more
    found = read_lm_eval(files(tmp_path, document))["num_fewshot"][0]
    assert found == expected if expected is not None else pd.isna(found)


def test_a_checkpoint_and_a_five_shot_file_do_not_compare_as_final_zero_shot_scores(tmp_path):
    """The two files that were compared without a word: an early checkpoint of one model, five examples of another."""
    documents = [
        version_0_3("org/a", 0.3, more=",revision=step1000"),
        version_0_3("org/a", 0.4),
        version_0_3("org/b", 0.9, examples=5),
        version_0_3("org/b", 0.5),
    ]
    write_table(read_lm_eval(files(tmp_path, *documents)), SCORES, tmp_path / "scores.parquet")
    (tmp_path / "m.csv").write_text("model\norg/a\norg/b\n")
    (tmp_path / "b.csv").write_text("benchmark,metric\nquiz,acc\n")
    matrix = read_score_matrix(Sources(*(tmp_path / name for name in ("scores.parquet", "m.csv", "b.csv"))))
    assert matrix.value["direct"].tolist() == [[0.4], [0.5]]
    assert any("stay out (1): 5 on quiz (models: 1)" in note for note in matrix.notes)


def test_tables_without_the_columns_are_read(tmp_path):
    path = score_table(tmp_path / "scores.parquet", [{"model": "a"}, {"model": "b"}])
    table = pq.read_table(path).drop_columns(["num_fewshot", "prompt_variant"])
    pq.write_table(table, path)
    rows, notes = read_scores(path), []
    assert rows["num_fewshot"].isna().all() and rows["prompt_variant"].isna().all()
    assert len(report_rows(rows, sheet_of("quiz"), notes)) == 2 and notes == []


def sheet_of(*benchmarks, num_fewshot=None) -> pd.DataFrame:
    return pd.DataFrame({"benchmark": benchmarks, "num_fewshot": num_fewshot, "prepared_on": None})


def of_counts(tmp_path, *counts) -> pd.DataFrame:
    rows = [{"model": f"m{number}", "num_fewshot": count, "value": number} for number, count in enumerate(counts)]
    return read_scores(score_table(tmp_path / "scores.parquet", rows))


@pytest.mark.parametrize(
    ("counts", "sheet", "kept"),
    [
        ((0, 5, 5), None, [1, 2]),
        ((0, 5), None, [0]),
        ((5, 0, None), None, [1, 2]),
        ((0, 0, 5), 5, [2]),
        ((None, None), None, [0, 1]),
        ((0, 0), 5, []),
    ],
    ids=["commonest", "tie", "unknown", "sheet", "none-known", "sheet-has-none"],
)
def test_reports_read_one_number_of_examples(counts, sheet, kept, tmp_path):
    rows, notes = of_counts(tmp_path, *counts), []
    assert report_rows(rows, sheet_of("quiz", num_fewshot=sheet), notes)["value"].tolist() == kept
    assert len(notes) == (0 if set(counts) == {None} else 1 + (len(kept) < len(counts)))


def test_a_score_of_a_known_number_of_examples_counts_before_one_of_an_unknown(tmp_path):
    """Two files of one model, of which one says the number: it counts; a model with the unknown one only keeps it."""
    rows = [
        {"model": "m0", "num_fewshot": 5, "value": 0},
        {"model": "m0", "num_fewshot": None, "value": 1},
        {"model": "m1", "num_fewshot": None, "value": 2},
    ]
    notes: list[str] = []
    table = read_scores(score_table(tmp_path / "scores.parquet", rows))
    assert report_rows(table, sheet_of("quiz"), notes)["value"].tolist() == [0, 2]
    assert len(notes) == 2


def test_metrics_of_one_evaluation_count_once(tmp_path):
    rows = [{"model": "a", "num_fewshot": 5, "metric": f"m{number},none"} for number in range(5)]
    rows += [{"model": model, "num_fewshot": 0} for model in ("a", "b")]
    found = report_rows(read_scores(score_table(tmp_path / "s.parquet", rows)), sheet_of("quiz"), [])
    assert found["num_fewshot"].tolist() == [0, 0]


def test_the_tasks_own_wording_comes_first(tmp_path):
    rows = [{"model": "a", "prompt_variant": variant} for variant in (None, "v1", "v2")]
    rows += [{"model": "a", "benchmark": "other", "prompt_variant": variant} for variant in ("v2", "v1")]
    rows += [{"model": "b", "benchmark": "other", "prompt_variant": "v2"}]
    notes = []
    found = report_rows(read_scores(score_table(tmp_path / "s.parquet", rows)), sheet_of("quiz", "other"), notes)
    assert found["prompt_variant"].fillna("own").tolist() == ["own", "v2", "v2"] and len(notes) == 2


def test_curves_have_one_number_of_examples(tmp_path):
    documents = [
        version_0_3("a", value, examples, f",revision=step{step}")
        for step, value, examples in ((1, 0.1, 0), (2, 0.2, 0), (3, 0.3, 0), (3, 0.9, 5))
    ]
    write_table(read_lm_eval(files(tmp_path, *documents)), SCORES, tmp_path / "scores.parquet")
    (tmp_path / "m.csv").write_text("model\na\n")
    learning = read_learning_curves(Sources(tmp_path / "scores.parquet", tmp_path / "m.csv"), "all")
    curve = learning.curves["quiz"]["a"]
    assert curve.values.tolist() == [0.1, 0.2, 0.3] and curve.checkpoints == ("step1", "step2", "step3")
    assert learning.num_fewshot == {"quiz": 0}


@pytest.mark.parametrize(("asked", "expected"), [(None, [1.0, 1.0]), (5, [0.0, 0.0]), (0, [1.0, 1.0])])
def test_items_of_one_number_of_examples(asked, expected, tmp_path):
    common = {"model": "a", "benchmark": "quiz", "protocol": "direct", "prompt": "plain", "split": "test"}
    rows = [
        common | {"doc_id": name, "num_fewshot": count, "correct": float(count == 0)}
        for count in (0, 5)
        for name in ("x", "y")
    ]
    write_table(pd.DataFrame(rows), ITEMS, tmp_path / "items.parquet")
    found = read_benchmark_items(tmp_path / "items.parquet", "quiz", asked)
    assert found.models[0].correct.tolist() == [expected]
