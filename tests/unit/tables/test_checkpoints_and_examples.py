"""Points of training and numbers of solved examples: read from result files, kept apart, one number for the reports."""

import json

import pandas as pd
import pytest
from tests.unit.tables.conftest import read_files

from lm_validity.tables.counted import report_rows
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


SHOTS = "num_fewshot"
CHOICES = {  # rows, the number that the sheet names, the places of the rows that count, how many notes
    "commonest": ([{SHOTS: 0}, {SHOTS: 5}, {SHOTS: 5}], None, [1, 2], 2),
    "tie": ([{SHOTS: 0}, {SHOTS: 5}], None, [0], 2),
    "unknown": ([{SHOTS: 5}, {SHOTS: 0}, {}], None, [1, 2], 2),
    "sheet": ([{SHOTS: 0}, {SHOTS: 0}, {SHOTS: 5}], 5, [2], 2),
    "none known": ([{}, {}], None, [0, 1], 0),
    "the sheet's has no score": ([{SHOTS: 0}, {SHOTS: 0}], 5, [], 2),
    "known before unknown": ([{"model": "m0", SHOTS: 5}, {"model": "m0"}, {"model": "m1"}], None, [0, 2], 2),
    "metrics of one evaluation count once": (
        [{"model": "a", SHOTS: 5, "metric": f"m{number},none"} for number in range(5)]
        + [{"model": "a", SHOTS: 0}, {"model": "b", SHOTS: 0}], None, [5, 6], 2),
    "the task's own wording, else the commonest": (
        [{"model": "a", "prompt_variant": variant} for variant in (None, "v1", "v2")]
        + [{"model": name, "benchmark": "other", "prompt_variant": variant}
           for name, variant in (("a", "v2"), ("a", "v1"), ("b", "v2"))], None, [0, 3, 5], 2),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "of_sheet", "counting", "said"), CHOICES.values(), ids=CHOICES)
def test_reports_read_one_number_of_examples_and_one_wording(rows, of_sheet, counting, said, tmp_path):
    rows = [{"model": f"m{number}", "value": number} | row for number, row in enumerate(rows)]
    table, notes = read_scores(score_table(tmp_path / "scores.parquet", rows)), []
    sheet = pd.DataFrame({"benchmark": ["quiz", "other"], "num_fewshot": of_sheet, "prepared_on": None})
    assert report_rows(table, sheet, notes)["value"].tolist() == counting
    assert len(notes) == said


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
