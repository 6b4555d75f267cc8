"""Tables of scores as CSV: long and wide, percentages, what leaderboards have beside their scores, repeated rows."""

import pandas as pd
import pytest
from typer.testing import CliRunner

from lm_validity.cli import imports
from lm_validity.errors import InputError
from lm_validity.tables.formats.import_files import read_files
from lm_validity.tables.formats.import_log import ImportLog
from lm_validity.tables.formats.score_files import CsvOptions, ImportOptions
from lm_validity.tables.schema import SCORES, read_scores


@pytest.fixture
def read(tmp_path):
    def make(text: str, log: ImportLog | None = None, **options) -> pd.DataFrame:
        path = tmp_path / "scores.csv"
        path.write_text(text, encoding="utf-8")
        return read_files([path], ImportOptions(csv=CsvOptions(**options)), log or ImportLog())

    return make


def by_cell(scores: pd.DataFrame) -> dict:
    return scores.set_index(["model", "benchmark"])["value"].to_dict()


EXPECTED = {("a", "x"): 0.5, ("a", "y"): 0.25, ("b", "x"): 0.75}


@pytest.mark.parametrize(
    "text",
    [
        "model,benchmark,value\na,x,0.5\na,y,0.25\nb,x,.75\n",
        "Task;Model;Score\nx;a;.5\ny;a;.25\nx;b;.75\n".replace(";", "\t"),
        "model;benchmark;value\na;x;0.5\na;y;0.25\nb;x;.75\n",
        "scenario,score,llm_model,tag\nx,.5,a,one\ny,.25,a,two\nx,.75,b,\n",
        "model,x,y\na,0.5,0.25\nb,0.75,\n",
        "Model Name,License,x,y,Average ⬆️,#Params (B)\na,mit,0.5,0.25,.375,7\nb,,0.75,-,.75,7.5\n",
        "benchmark,a,b\nx,0.5,0.75\ny,0.25,N/A\n",
        "model,x,y\na,50%,25 %\nb,75%,\n",
    ],
    ids=["long", "long-tabs", "long-semicolons", "long-other-names", "wide", "leaderboard", "models-across", "signs"],
)
def test_layouts_by_their_headers(text, read):
    scores = read(text)
    assert by_cell(scores) == EXPECTED and list(scores.columns) == SCORES.names
    assert set(scores["protocol"]) == {"direct"} and set(scores["source"]) == {"csv"} and scores["metric"].isna().all()


def test_columns_that_are_named(read):
    text = "who,what,how,x\na,p,.5,9\nb,q,.75,9\n"
    scores = read(text, columns={"model": "who", "benchmark": "what", "value": "how"})
    assert by_cell(scores) == {("a", "p"): 0.5, ("b", "q"): 0.75}
    scores = read(text, columns={"model": "who"}, scores=("how",))
    assert by_cell(scores) == {("a", "how"): 0.5, ("b", "how"): 0.75}
    scores = read(text, columns={"benchmark": "who"}, across="models", scores=("how",))
    assert by_cell(scores) == {("how", "a"): 0.5, ("how", "b"): 0.75}


def test_every_column_of_a_score(read):
    text = "model,benchmark,metric,value,stderr,checkpoint,step,tokens_b,shots,seed,protocol,split,n_items,"
    text += "higher_is_better\n"
    text += "a,x,acc,0.5,0.1,s1,1000,2.5,5,0,train_before_test,validation,200,true\nb,x,acc,0.6,,,,,,,,,,\n"
    first, second = (row for _, row in read(text).iterrows())
    assert first[["metric", "checkpoint", "protocol", "split"]].tolist() == [
        "acc,none", "s1", "train_before_test", "validation",
    ]  # fmt: skip
    assert first[["stderr", "iteration", "tokens_b", "num_fewshot", "seed", "n_items"]].tolist() == [
        0.1, 1000, 2.5, 5, 0, 200,
    ]  # fmt: skip
    assert first["higher_is_better"] and pd.isna(second["higher_is_better"]) and pd.isna(second["stderr"])
    assert second[["checkpoint", "protocol", "split"]].tolist() == ["final", "direct", "test"]


def test_percentages_are_said(read):
    text = "model,x\na,50\nb,0.75\n"
    with pytest.raises(InputError, match="row 2, column 'x': 50 is not a fraction"):
        read(text)
    assert by_cell(read(text, unit="percentages")) == {("a", "x"): 0.5, ("b", "x"): 0.0075}
    assert by_cell(read(text, unit="neither")) == {("a", "x"): 50, ("b", "x"): 0.75}
    with pytest.raises(InputError, match="1100 is not a percentage"):
        read("model,x\na,1100\n", unit="percentages")
    with pytest.raises(InputError, match="is not a fraction"):
        read("model,x\na,-0.5\n")
    long = "model,benchmark,value,stderr\na,x,50,2\n"
    assert read(long, unit="percentages")[["value", "stderr"]].iloc[0].tolist() == [0.5, 0.02]


def test_what_is_left_out_is_said(read):
    log = ImportLog()
    read("model,type,x,raw,average\na,base,50,.5,50\nb,,60,,60\n", log, unit="percentages")
    assert any("average" in note and "--scores" in note for note in log.notes)
    for named in ("type", "average", "raw"):  # no numbers; not a benchmark's name; fractions already
        assert sum(note.endswith(f": {named}.") for note in log.notes) == 1
    assert "Empty cells, no score: 1." in log.notes
    assert by_cell(read("model,average\na,.5\n", scores=("average",))) == {("a", "average"): 0.5}


def test_repeated_scores(read):
    log = ImportLog()
    assert len(read("model,x\na,.5\na,.5\n", log)) == 1 and any("Twice" in note for note in log.notes)
    text = "model,x,precision\na,.5,f16\na,.6,f32\n"
    with pytest.raises(InputError, match="row 3: another score of a on x"):
        read(text)
    assert read(text, repeats="first")["value"].tolist() == [0.5]
    assert read(text, columns={"checkpoint": "precision"})["checkpoint"].tolist() == ["f16", "f32"]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a,b\n1,2\n", {}, "no column of models among a, b"),
        ("model,b\na,x\n", {}, "no column of scores"),
        ("model,average\na,.5\n", {}, "no column of scores"),
        ("model,b\na,.5\n", {"columns": {"modle": "b"}}, "did you mean 'model'"),
        ("model,b\na,.5\n", {"columns": {"model": "modl"}}, "no column 'modl'"),
        ("model,b\na,.5\n", {"scores": ("c",)}, "no column 'c'"),
        ("model,benchmark,value\na,x,high\n", {}, "row 2, column 'value': 'high' is not a number"),
        ("model,x\na,.5\nb,high\n", {"scores": ("x",)}, "row 3, column 'x': 'high'"),
        ("model,x\n,.5\n", {}, "row 2, column 'model': empty"),
        ("model,benchmark,value,seed\na,x,.5,1.5\n", {}, "row 2, column 'seed': '1.5' is not a seed"),
        ("model,benchmark,value,protocol\na,x,.5,prepared\n", {}, "'prepared' is not a protocol"),
        ("model,benchmark,value,higher_is_better\na,x,.5,up\n", {}, "'up' is not a higher_is_better"),
        ("model,benchmark,value,stderr\na,x,.5,big\n", {}, "column 'stderr': 'big' is not a number"),
        ("model,x\na,inf\n", {"scores": ("x",)}, "'inf' is not a number"),
        ("model,x\na,\n", {"scores": ("x",)}, "no scores"),
        ("model,benchmark,value,stderr\na,x,.5,.1\nb,x,.5,-.1\n", {}, "row 3, column 'stderr': -.1 is negative"),
    ],
)
def test_bad_tables_say_where(text, options, words, read):
    with pytest.raises(InputError, match=words):
        read(text, **options)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("model;benchmark;value\na;x;0,5\n", "row 2, column 'value': '0,5'"),
        ("model;x;y\na;1;0,5\nb;51,25%;1\n", "row 3, column 'x': '51,25%'"),
    ],
)
def test_decimal_commas_are_named(text, place, read):
    with pytest.raises(InputError) as caught:
        read(text)
    assert place in caught.value.problem and "point" in caught.value.hint


def test_thousands_are_no_decimal_commas(read):
    log = ImportLog()
    assert by_cell(read('model,x,downloads\na,.5,"1,234"\nb,.6,"12,345"\n', log)) == {("a", "x"): 0.5, ("b", "x"): 0.6}
    assert any("downloads" in note for note in log.notes)


def test_the_command(tmp_path):
    (tmp_path / "t.csv").write_text('Name,"x, hard",y\na,50,60\n')
    command = ["csv", str(tmp_path / "t.csv"), "--output", str(tmp_path / "out")]
    columns = [*command, "--columns", "model=Name", "--percent"]
    assert CliRunner().invoke(imports.app, [*columns, "--scores", '"x, hard"']).exit_code == 0
    assert by_cell(read_scores(tmp_path / "out" / "scores.parquet")) == {("a", "x, hard"): 0.5}
    for wrong in (["--across", "rows"], ["--repeats", "last"], ["--percent", "--as-is"], ["--columns", "Name"]):
        assert isinstance(CliRunner().invoke(imports.app, [*command, *wrong]).exception, InputError)
