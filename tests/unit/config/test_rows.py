"""The reader of sheets: columns by their names, values by their kinds, mistakes by file, row, column and value."""

import gzip
from pathlib import Path

import pytest

from lm_validity.config.rows import read_rows
from lm_validity.config.sheets import (
    Benchmark,
    BenchmarkFacts,
    Checkpoint,
    Model,
    ModelFacts,
    read_benchmarks,
    read_models,
    split_revision,
)
from lm_validity.errors import InputError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "sheet.tsv") -> Path:
    Path(name).write_text(text, encoding="utf-8")
    return Path(name)


def test_other_names_of_a_column_count_where_its_own_is_absent():
    row = read_rows(write("model_id,params_b,params_B,in_compute_plot\na,1,2,no\n"), ModelFacts)["a"]
    assert (row.parameters_b, row.in_compute_analysis, row.tokens_b) == (2.0, False, None)
    row = read_rows(write("model_id,parameters_b,params_B\na,,2\n"), ModelFacts)["a"]
    assert row.parameters_b is None
    assert list(read_rows(write("task,metric\nx,acc\n"), BenchmarkFacts)) == ["x"]
    # in the workflow's sheet it is a column of its own
    with pytest.raises(InputError, match="no column 'benchmark'"):
        read_benchmarks(write("task\tmetric\nx\tacc\n"), "run")


def test_pandas_writes_yes_and_no_as_numbers_where_cells_are_empty():
    rows = read_rows(write("model,instruction_tuned,size\na,1.0,1.0\nb,0.0,\nc,,\n"), ModelFacts)
    assert [row.instruction_tuned for row in rows.values()] == [True, False, None] and rows["a"].size == "1.0"
    with pytest.raises(InputError, match=r"value '1\.5': not a yes or no"):
        read_rows(write("model,instruction_tuned\na,1.5\n"), ModelFacts)


def test_a_column_is_named_in_an_error_as_the_sheet_has_it():
    with pytest.raises(InputError, match=r"sheet\.tsv, row 2, column 'params_B', value 'seven': not a number"):
        read_rows(write("model_id\tparams_B\na\tseven\n"), ModelFacts)


def test_the_workflow_reads_what_reports_read():
    text = "model\tpath\tdisplay_name\tin_compute_plot\tflops\tpublished_rank\na\torg/a\tA\t0\t1e20\t3\n"
    row = read_models(write(text), "run")["a"]
    assert (row.label, row.in_compute_analysis) == ("A", False)
    with gzip.open("sheet.tsv.gz", "wt") as handle:
        handle.write(text)
    assert read_models("sheet.tsv.gz", "run") == {"a": row}
    assert read_models(write(text.replace("\t", ","), "sheet.csv"), "run") == {"a": row}


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("model\tpath\tstudies\na\tb\tsignal,agremeent\n", "'studies', value 'agremeent': unknown", "'agreement'?"),
        ("model\tpath\tdtype\na\tb\tbf16x\n", "column 'dtype', value 'bf16x': unknown", "did you mean 'bfloat16'?"),
        ("model\tpath\tdocument_bos\na\tb\tno\n", "'document_bos', value 'no': unknown", "once, every,"),
        ("model\tpath\tinstruction_tuned\na\tb\tmaybe\n", "value 'maybe': not a yes or no", "leave it empty"),
        ("model\tpath\ttokens_b\na\tb\tinf\n", "column 'tokens_b', value 'inf': not a number", "leave it empty"),
        ("model\tpath\nall-a\tb\n", "column 'model', value 'all-a': not a usable id", "jobs of several cells"),
        ("modle\tpath\na\tb\n", "sheet.tsv: no column 'model'", "rename 'modle' to 'model'"),
        ("model\tpath\ttoken_b\na\tb\t1\n", "sheet.tsv: unknown column 'token_b'", "did you mean 'tokens_b'?"),
        ("model\tpath\na\tb\n\n# end\na\tc\n", "column 'model', value 'a': this id occurs twice (also in row 2)", ""),
        ("model\tpath\na\tb\norg/b\tb\n", "row 3, column 'model', value 'org/b': not a usable id", "go into `path`"),
        ("model\tpath\tdtype\na\t\tfloat32\n", "row 2, column 'path'", "every row needs it"),
        (f"model\tpath\n{'bc' * 61}\tb\n", "122 characters, too many", "at most 120"),
        ("model\tpath\na\tresults/{name}/b\n", "'path', value 'results/{name}/b': {name} stands for", "{run}"),
        ("# mine\n\nmodel\tpath\tdtype\n# later\nb\tb\tbfloat\n", "row 5, column 'dtype', value 'bfloat'", ""),
        ("model\tpath\tdtype\nb\torg/b\n", "row 2: 2 values for 3 columns", "separator"),
        ("model\tpath\tsize_class\na\tb\tgiant\n", "value 'giant': no such class", "use one of small"),
        ("model\tpath\n", "no rows", ""),
    ],
)  # fmt: skip
def test_mistakes(text, problem, hint):
    with pytest.raises(InputError) as caught:
        read_models(write(text), "run", size_classes={"small": None})
    assert problem in caught.value.problem and hint in caught.value.hint


def test_the_default_size_class_must_exist_too():
    path = write("model\tpath\na\tb\n")
    with pytest.raises(InputError, match="row 2, column 'size_class', value 'small': no such class"):
        read_models(path, "run", size_classes={"big": None})
    assert read_models(path, "run", size_classes={"small": None})


def test_checkpoints_are_checked_like_other_rows():
    path = write("model\tpath\tcheckpoints\na\tb\tpoints.tsv\n")
    with pytest.raises(InputError, match=r"points\.tsv: no such sheet"):
        read_models(path, "run")
    for text, problem in {
        "checkpoint\titeration\nx\t\n": "points.tsv, row 2, column 'iteration', value '': empty",
        "checkpoint\ttokens_b\nx\t1\n": "points.tsv: no column 'iteration'",
        "checkpoint\titeration\nx\t10.5\n": "column 'iteration', value '10.5': not a whole number",
        "checkpoint\titeration\ttokens_b\nx\t1\t-1\n": "value '-1': should be greater than or equal to 0",
    }.items():
        write(text, "points.tsv")
        with pytest.raises(InputError) as caught:
            read_models(path, "run")
        assert problem in caught.value.problem
    write("checkpoint\titeration\ttokens_b\nstart\t0\t0\n", "points.tsv")
    start, final = read_models(path, "run")["a"].checkpoints
    assert (start.iteration, start.tokens_b, final) == (0, 0.0, Checkpoint(checkpoint="final"))


def test_what_is_made_of_a_corpus_cannot_be_written_otherwise():
    row = read_benchmarks(write("benchmark\tcorpus\nletters\ttexts\n"), "mine")["letters"]
    assert (row.task, row.include_path) == ("corpus_letters", "results/mine/corpora/letters")
    assert (row.metric, row.output_type, row.higher_is_better) == ("bits_per_byte,none", "loglikelihood_rolling", False)
    for column, value in (("task", "arc"), ("include_path", "mine"), ("output_type", "multiple_choice")):
        with pytest.raises(InputError, match=f"row 2, column '{column}', value '{value}': not for a corpus"):
            read_benchmarks(write(f"benchmark\tcorpus\t{column}\nletters\ttexts\t{value}\n"), "mine")


def test_rows_made_in_python_have_the_sheets_defaults():
    assert Model(model="a", path="b").checkpoints[-1].checkpoint == "final"
    assert Benchmark(benchmark="x").task == "x"


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("me/adapter@refs/pr/1", ("me/adapter", "refs/pr/1")),
        ("me/adapter@v2", ("me/adapter", "v2")),
        ("me/adapter", ("me/adapter", None)),
        ("./my@folder", ("./my@folder", None)),
        ("deep/folder/of@mine", ("deep/folder/of@mine", None)),
    ],
)
def test_a_revision_stands_after_a_hub_id_only(written, found):
    assert split_revision(written)[:2] == found
