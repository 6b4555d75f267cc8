"""Sheets of models and benchmarks, and the importers of score files: layouts, unknown values, clear
errors.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lm_validity.errors import InputError
from lm_validity.tables.formats.import_files import import_files, read_files
from lm_validity.tables.formats.published import read_lm_harmony
from lm_validity.tables.formats.score_files import ImportLog, ImportOptions
from lm_validity.tables.schema import SCORES
from lm_validity.tables.sheets import completed, read_benchmarks, read_models


def read_lm_eval(paths):
    """The scores of lm-eval's files, none of which may be left out."""
    return read_files(paths, ImportOptions(format="lm-eval"), ImportLog(strict=True))


def write(path, text: str):
    path.write_text(text, encoding="utf-8")
    return path


def test_models_with_the_published_names(tmp_path):
    text = "model_id,family,params_B,tokens_B,instruction_tuned,display_name,in_compute_plot\n"
    text += 'org/a,F,0.5,300,0,A,1\n"org/b,c",,,,1,,0\n'
    sheet = read_models(write(tmp_path / "m.csv", text))
    assert sheet["model"].tolist() == ["org/a", "org/b,c"]
    assert sheet["parameters_b"].tolist()[0] == 0.5 and np.isnan(sheet["parameters_b"][1])
    assert sheet["in_compute_analysis"].tolist()[0] is True
    assert sheet["label"][0] == "A" and pd.isna(sheet["label"][1]) and pd.isna(sheet["family"][1])
    assert sheet["instruction_tuned"].tolist() == [False, True]


def test_tabs_byte_order_mark_and_unknown_columns(tmp_path):
    path = write(tmp_path / "m.tsv", "\ufeffmodel\tdtype\tinstruction_tuned\nx\tsomewhere, else\tTRUE\n\ny\t\t\n")
    sheet = read_models(path)
    assert sheet["model"].tolist() == ["x", "y"]
    assert sheet["instruction_tuned"][0] and pd.isna(sheet["instruction_tuned"][1])
    assert "dtype" not in sheet


def test_benchmarks_complete_a_bare_metric(tmp_path):
    text = "task,category,metric,output_type,higher_is_better\na,x,acc,multiple_choice,1\n"
    text += 'b,,"exact_match,strict",generate_until,\n'
    sheet = read_benchmarks(write(tmp_path / "b.csv", text))
    assert sheet["metric"].tolist() == ["acc,none", "exact_match,strict"]
    assert sheet["higher_is_better"].isna().tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,family\na,b\n", "no column 'model'"),
        ("model,parameters_b\na,big\n", "row 2, column 'parameters_b', value 'big': not a number"),
        ("model,tokens_b\na,1\nb,-3\n", "row 3, column 'tokens_b', value '-3': should be greater than 0"),
        ("model,instruction_tuned\na,maybe\n", "row 2, column 'instruction_tuned', value 'maybe': not a yes or no"),
        ("model,family\na,x\na,y\n", "row 3, column 'model', value 'a': this id occurs twice .also in row 2"),
        ("model,family\n,x\n", "row 2, column 'model', value '': empty"),
        ("model\n", "no rows"),
        ("model,family\na,x,y\n", "3 values for 2 columns"),
        ("model,family,family\na,x,y\n", "two columns are called 'family'"),
    ],
)
def test_bad_sheets_say_where(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_models(write(tmp_path / "m.csv", text))


def test_unknown_output_type_gets_a_hint(tmp_path):
    with pytest.raises(InputError, match="did you mean 'multiple_choice'"):
        read_benchmarks(write(tmp_path / "b.csv", "benchmark,output_type\na,multiplechoice\n"))


def test_lm_harmony(tmp_path):
    document = {
        "train_before_test": {"rte": {"org/a": 0.7}, "wiki": {"org/a": 0.9}},
        "train_before_test_stderr": {"rte": {"org/a": 0.02}, "wiki": {"org/a": "N/A"}},
        "direct_eval": {"rte": {"org/a": 0.5}},
        "direct_eval_stderr": {"rte": {"org/a": 0.03}},
    }
    frame = read_lm_harmony(write(tmp_path / "all_results.json", json.dumps(document)))
    assert list(frame.columns) == SCORES.names
    assert frame[["benchmark", "protocol", "value"]].values.tolist() == [
        ["rte", "direct", 0.5],
        ["rte", "train_before_test", 0.7],
        ["wiki", "train_before_test", 0.9],
    ]
    assert frame["stderr"].isna().tolist() == [False, False, True]
    assert frame["metric"].isna().all() and frame["seed"].isna().all()
    direct = {name: block for name, block in document.items() if name.startswith("direct_eval")}
    alone = read_lm_harmony(write(tmp_path / "direct.json", json.dumps(direct)))
    pd.testing.assert_frame_equal(alone, frame.head(1), check_dtype=False)
    recognised, _ = import_files([tmp_path / "all_results.json"], tmp_path / "tables")
    said = ["model", "benchmark", "protocol", "value", "source"]
    assert recognised[said].values.tolist() == frame[said].values.tolist() and recognised["prompt"].isna().all()


@pytest.mark.parametrize("unknown", ["N/A", None, {"rte": "N/A"}, {"rte": None}, {"rte": {"org/a": 10**400}}])
def test_a_standard_error_that_is_no_number_is_unknown_at_any_level(tmp_path, unknown):
    document = {"direct_eval": {"rte": {"org/a": 0.5}}, "train_before_test": {}, "direct_eval_stderr": unknown}
    frame = read_lm_harmony(write(tmp_path / "all_results.json", json.dumps(document)))
    assert frame["value"].tolist() == [0.5] and frame["stderr"].isna().all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "not JSON"),
        ('{"direct_eval": {"t": {"m": 1%s}}, "train_before_test": {}}' % ("0" * 400), "is not a finite number"),
        ("[1]", "no object 'direct_eval'"),
        ('{"direct_eval": {}, "train_before_test": {}}', "no scores"),
        ('{"direct_eval": {"t": {"m": "x"}}, "train_before_test": {}}', "direct_eval, t, m: 'x'"),
        ('{"direct_eval": {"t": {"m": NaN}}, "train_before_test": {}}', "nan is not a finite number"),
    ],
)
def test_bad_lm_harmony_files(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_lm_harmony(write(tmp_path / "x.json", text))


LM_EVAL = {
    "results": {
        "mmlu": {"acc,none": 0.5, "alias": "mmlu"},
        "arc": {
            "alias": "arc",
            "acc,none": 0.4,
            "acc_stderr,none": 0.01,
            "acc_norm,none": 0.45,
            "sample_len": 9,
        },
        "wiki": {"bits_per_byte,none": 0.9, "bits_per_byte_stderr,none": "N/A"},
    },
    "group_subtasks": {"mmlu": ["arc"], "arc": []},
    "higher_is_better": {"arc": {"acc": True}, "wiki": {"bits_per_byte": False}},
    "n-samples": {"arc": {"original": 100, "effective": 9}},
    "model_name": "org/model",
}


def test_lm_eval_results(tmp_path):
    frame = read_lm_eval([write(tmp_path / "results.json", json.dumps(LM_EVAL))])
    assert list(frame.columns) == SCORES.names
    rows = {(row.benchmark, row.metric): row for row in frame.itertuples()}
    assert set(rows) == {("arc", "acc,none"), ("arc", "acc_norm,none"), ("wiki", "bits_per_byte,none")}
    accuracy = rows["arc", "acc,none"]
    assert (accuracy.model, accuracy.value, accuracy.stderr, accuracy.n_items) == ("org/model", 0.4, 0.01, 9)
    assert accuracy.prompt == "plain" and accuracy.protocol == "direct"
    assert not rows["wiki", "bits_per_byte,none"].higher_is_better
    assert pd.isna(rows["wiki", "bits_per_byte,none"].stderr)


def test_lm_eval_of_two_models_and_twice_the_same(tmp_path):
    first = write(tmp_path / "a.json", json.dumps(LM_EVAL))
    other = write(tmp_path / "b.json", json.dumps(LM_EVAL | {"model_name": "other", "chat_template": "{{ x }}"}))
    frame = read_lm_eval([first, other])
    assert set(frame["model"]) == {"org/model", "other"} and set(frame["prompt"]) == {"plain", "chat"}
    assert len(read_lm_eval([first, first])) == 3  # one file, named twice
    again = write(tmp_path / "again.json", json.dumps(LM_EVAL))
    with pytest.raises(InputError, match="3 scores also in"):
        read_lm_eval([first, again])


@pytest.mark.parametrize(
    ("document", "message"),
    [({}, "no object 'results'"), ({"results": {"a": {"acc,none": 1}}}, "names the model")],
)
def test_bad_lm_eval_files(tmp_path, document, message):
    with pytest.raises(InputError, match=message):
        read_lm_eval([write(tmp_path / "r.json", json.dumps(document))])


def test_an_output_that_is_no_folder_is_one_line(tmp_path):
    scores = {"t": {"org/a": 0.5}}
    write(tmp_path / "s.json", json.dumps({"direct_eval": scores, "train_before_test": scores}))
    write(tmp_path / "taken", "a file")
    program = Path(sys.executable).parent / "lm-validity"
    for output in ("taken", "taken/below"):
        command = [program, "import", "lm-harmony", "s.json", "--output", output]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.startswith("Error: taken") and done.stderr.count("\n") == 1
        assert "Hint: " in done.stderr and (tmp_path / "taken").read_text() == "a file"


def test_reports_read_the_sheets_that_the_workflow_reads(tmp_path):
    """Comments, blank lines and a quoted word at the start of a value."""
    text = '# mine\n\nmodel\tpath\tlabel\n# the large one\na\torg/a\t"Big" model\n\nb\torg/b\tx\tlow\n'
    with pytest.raises(InputError, match="row 7: 4 values for 3 columns"):
        read_models(write(tmp_path / "m.tsv", text))
    sheet = read_models(write(tmp_path / "m.tsv", text.replace("\tlow", "")))
    assert sheet["model"].tolist() == ["a", "b"] and "Big" in sheet["label"][0]
    with pytest.raises(InputError, match="row 2: a quote does not end"):
        read_models(write(tmp_path / "m.csv", 'model,path\n"a,org/a\nb,org/b\n'))


def test_blanks_after_commas_and_an_empty_last_column(tmp_path):
    text = '\nmodel, path,family,\na, "org/a, the first",F,\nb,org/b,G,\n'
    sheet = read_models(write(tmp_path / "m.csv", text))
    assert sheet["path"].tolist() == ["org/a, the first", "org/b"] and sheet["family"].tolist() == ["F", "G"]


def test_a_sheet_completes_scores_under_its_own_metric_only(tmp_path):
    sheet = read_benchmarks(write(tmp_path / "b.csv", "benchmark,metric,higher_is_better,num_fewshot\nx,acc,1,5\n"))
    metrics = ["acc,none", "ppl,none", None, "acc,none"]
    scores = pd.DataFrame({"benchmark": ["x", "x", "x", "y"], "metric": metrics})
    scores["higher_is_better"] = pd.array([None] * 4, dtype="boolean")
    scores["num_fewshot"] = pd.array([0, None, None, None], dtype="Int64")
    found = completed(scores, sheet)
    assert found["metric"].tolist() == ["acc,none", "ppl,none", "acc,none", "acc,none"]
    assert found["higher_is_better"].astype(object).fillna("?").tolist() == [True, "?", True, "?"]
    assert found["num_fewshot"].fillna(-1).tolist() == [0, 5, 5, -1]
