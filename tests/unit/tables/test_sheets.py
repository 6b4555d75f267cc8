"""Sheets of models and benchmarks: what is read, what is refused and where, and what they complete in scores."""

import numpy as np
import pandas as pd
import pytest

from lm_validity.errors import InputError
from lm_validity.tables.counted import completed
from lm_validity.tables.schema import read_benchmark_facts, read_model_facts


def write(path, text: str):
    path.write_text(text, encoding="utf-8")
    return path


def test_models_with_the_published_names(tmp_path):
    text = "model_id,family,params_B,tokens_B,instruction_tuned,display_name,in_compute_plot\n"
    text += 'org/a,F,0.5,300,0,A,1\n"org/b,c",,,,1,,0\n'
    sheet = read_model_facts(write(tmp_path / "m.csv", text))
    assert sheet["model"].tolist() == ["org/a", "org/b,c"]
    assert sheet["parameters_b"].tolist()[0] == 0.5 and np.isnan(sheet["parameters_b"][1])
    assert sheet["in_compute_analysis"].tolist()[0] is True
    assert sheet["label"][0] == "A" and pd.isna(sheet["label"][1]) and pd.isna(sheet["family"][1])
    assert sheet["instruction_tuned"].tolist() == [False, True]


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("m.tsv", "\ufeffmodel\tdtype\tinstruction_tuned\nx\tsomewhere, else\tTRUE\n\ny\t\t\n",
         {"model": ["x", "y"], "instruction_tuned": [True, pd.NA]}),
        ("m.csv", '\nmodel, path,family,\na, "org/a, the first",F,\nb,org/b,G,\n',
         {"path": ["org/a, the first", "org/b"], "family": ["F", "G"]}),
    ],
    ids=["tabs, a byte order mark, an unknown column", "blanks after commas, an empty last column"],
)  # fmt: skip
def test_odd_sheets(tmp_path, name, text, columns):
    sheet = read_model_facts(write(tmp_path / name, text))
    assert {column: sheet[column].tolist() for column in columns} == columns and "dtype" not in sheet


def test_benchmarks_complete_a_bare_metric(tmp_path):
    text = "task,category,metric,output_type,higher_is_better\na,x,acc,multiple_choice,1\n"
    text += 'b,,"exact_match,strict",generate_until,\n'
    sheet = read_benchmark_facts(write(tmp_path / "b.csv", text))
    assert sheet["metric"].tolist() == ["acc,none", "exact_match,strict"]
    assert sheet["higher_is_better"].isna().tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model,parameters_b\na,big\n", "row 2, column 'parameters_b', value 'big': not a number"),
        ("model,tokens_b\na,1\nb,-3\n", "row 3, column 'tokens_b', value '-3': should be greater than 0"),
        ("model,family\n,x\n", "row 2, column 'model', value '': empty"),
        ("model\n", "no rows"),
        ("model,family\na,x,y\n", "3 values for 2 columns"),
        ("model,family,family\na,x,y\n", "two columns are called 'family'"),
    ],
)
def test_bad_sheets_say_where(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_model_facts(write(tmp_path / "m.csv", text))


def test_reports_read_the_sheets_that_the_workflow_reads(tmp_path):
    """Comments, blank lines and a quoted word at the start of a value."""
    text = '# mine\n\nmodel\tpath\tlabel\n# the large one\na\torg/a\t"Big" model\n\nb\torg/b\tx\tlow\n'
    with pytest.raises(InputError, match="row 7: 4 values for 3 columns"):
        read_model_facts(write(tmp_path / "m.tsv", text))
    sheet = read_model_facts(write(tmp_path / "m.tsv", text.replace("\tlow", "")))
    assert sheet["model"].tolist() == ["a", "b"] and "Big" in sheet["label"][0]
    with pytest.raises(InputError, match="row 2: a quote does not end"):
        read_model_facts(write(tmp_path / "m.csv", 'model,path\n"a,org/a\nb,org/b\n'))


def test_a_sheet_completes_scores_under_its_own_metric_only(tmp_path):
    sheet = read_benchmark_facts(
        write(tmp_path / "b.csv", "benchmark,metric,higher_is_better,num_fewshot\nx,acc,1,5\n")
    )
    metrics = ["acc,none", "ppl,none", None, "acc,none"]
    scores = pd.DataFrame({"benchmark": ["x", "x", "x", "y"], "metric": metrics})
    scores["higher_is_better"] = pd.array([None] * 4, dtype="boolean")
    scores["num_fewshot"] = pd.array([0, None, None, None], dtype="Int64")
    found = completed(scores, sheet)
    assert found["metric"].tolist() == ["acc,none", "ppl,none", "acc,none", "acc,none"]
    assert found["higher_is_better"].astype(object).fillna("?").tolist() == [True, "?", True, "?"]
    assert found["num_fewshot"].fillna(-1).tolist() == [0, 5, 5, -1]
