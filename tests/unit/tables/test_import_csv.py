"""Tables of scores as CSV: long and wide, percentages, what leaderboards have beside their scores, repeated rows."""

import pandas as pd
import pytest
from tests.unit.tables.conftest import options_of, read_files
from typer.testing import CliRunner

from lm_validity.cli import imports
from lm_validity.errors import InputError
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.formats.score_files import ImportLog, ImportOptions
from lm_validity.tables.schema import ITEMS, SCORES, read_scores, read_table


@pytest.fixture
def read(tmp_path):
    def make(text: str, log: ImportLog | None = None, name: str = "scores.csv", **options) -> pd.DataFrame:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return read_files([path], options_of(**options), log or ImportLog())

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


@pytest.mark.parametrize("separator", ["\t", ",", ";"])
def test_a_text_of_separated_cells_is_a_table(read, separator):
    scores = read("model,x,y\na,0.5,0.25\nb,0.75,\n".replace(",", separator), name="scores.txt")
    assert by_cell(scores) == EXPECTED


def test_columns_that_are_named(read):
    text = "who,what,how,x\na,p,.5,9\nb,q,.75,9\n"
    scores = read(text, columns="model=who,benchmark=what,value=how")
    assert by_cell(scores) == {("a", "p"): 0.5, ("b", "q"): 0.75}
    scores = read(text, columns="model=who", scores="how")
    assert by_cell(scores) == {("a", "how"): 0.5, ("b", "how"): 0.75}
    scores = read(text, columns="benchmark=who", across="models", scores="how")
    assert by_cell(scores) == {("how", "a"): 0.5, ("how", "b"): 0.75}


def test_every_column_of_a_score(read):
    text = "model,benchmark,metric,value,stderr,checkpoint,step,tokens_b,shots,seed,protocol,split,n_items,"
    text += "higher_is_better,prepared_on\n"
    text += "a,x,acc,0.5,0.1,s1,1000,2.5,5,0,train_before_test,validation,200,true,x\nb,x,acc,0.6,,,,,,,,,,,\n"
    first, second = (row for _, row in read(text).iterrows())
    assert first[["metric", "checkpoint", "protocol", "split"]].tolist() == [
        "acc,none", "s1", "train_before_test", "validation",
    ]  # fmt: skip
    assert first[["stderr", "iteration", "tokens_b", "num_fewshot", "seed", "n_items"]].tolist() == [
        0.1, 1000, 2.5, 5, 0, 200,
    ]  # fmt: skip
    assert (
        first["prepared_on"] == "x"
        and first["higher_is_better"]
        and pd.isna(second["higher_is_better"])
        and pd.isna(second["stderr"])
    )
    assert second[["checkpoint", "protocol", "split"]].tolist() == ["final", "direct", "test"]


def test_units_are_decided_over_all_values_of_a_benchmark(read):
    text = "model,x\na,50\nb,0.75\n"
    log = ImportLog()
    assert by_cell(read(text, log)) == {("a", "x"): 0.5}
    assert [(each.where, each.decided) for each in log.reading.decisions if each.kind == "left out"] == [
        ("b on x", "left out")
    ]
    assert by_cell(read(text, percent=True)) == {("a", "x"): 0.5, ("b", "x"): 0.0075}
    assert by_cell(read(text, as_is=True)) == {("a", "x"): 50, ("b", "x"): 0.75}
    for beyond in ("1100", "-0.5"):
        with pytest.raises(InputError, match=r"no score is left: x: .* and unit,x,points"):
            read(f"model,x\na,{beyond}\n")
        assert by_cell(read(f"model,x\na,{beyond}\n", corrections={("unit", "x"): "points"})) == {
            ("a", "x"): float(beyond)
        }
    long = "model,benchmark,value,stderr\na,x,50,2\n"
    assert read(long, percent=True)[["value", "stderr"]].iloc[0].tolist() == [0.5, 0.02]


def test_what_is_left_out_is_said(read):
    log = ImportLog()
    read("model,type,x,raw,average\na,base,50,.5,50\nb,,60,,60\n", log, percent=True)
    out = {each.where for each in log.reading.decisions if each.kind == "left out"}
    assert out == {"type", "average"}  # no numbers; not a benchmark's name
    assert "Empty cells, no score: 1." in log.notes
    assert by_cell(read("model,average\na,.5\n", scores="average")) == {("a", "average"): 0.5}


def test_repeated_scores(read):
    log = ImportLog()
    assert len(read("model,x\na,.5\na,.5\n", log)) == 1 and any("Twice" in note for note in log.notes)
    text = "model,x,precision\na,.5,f16\na,.6,f32\n"
    with pytest.raises(InputError, match="row 3: another score of a on x"):
        read(text)
    assert read(text, repeats="first")["value"].tolist() == [0.5]
    assert read(text, columns="checkpoint=precision")["checkpoint"].tolist() == ["f16", "f32"]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a,b\n1,2\n", {}, "no column of models among a, b"),
        ("model,b\na,x\n", {}, "no column of scores"),
        ("model,average\na,.5\n", {}, "no column of scores"),
        ("model,b\na,.5\n", {"columns": "modle=b"}, "did you mean 'model'"),
        ("model,b\na,.5\n", {"columns": "model=modl"}, "no column 'modl'"),
        ("model,b\na,.5\n", {"scores": "c"}, "no column 'c'"),
        ("model,benchmark,value\na,x,high\n", {}, "row 2, column 'value': 'high' is not a number"),
        ("model,x\na,high\nb,high\n", {"scores": "x"}, "row 2, column 'x': 'high'"),
        ("model,x\n,.5\n", {}, "row 2, column 'model': empty"),
        ("model,benchmark,value,seed\na,x,.5,1.5\n", {}, "row 2, column 'seed': '1.5' is not a seed"),
        ("model,benchmark,value,shots\na,x,.5,-5\n", {}, "'-5' is not a num_fewshot"),
        ("model,benchmark,value,n_items\na,x,.5,-1\n", {}, "'-1' is not a n_items"),
        ("model,benchmark,value,protocol\na,x,.5,prepared\n", {}, "'prepared' is not a protocol"),
        ("model,benchmark,value,higher_is_better\na,x,.5,up\n", {}, "'up' is not a higher_is_better"),
        ("model,benchmark,value,stderr\na,x,.5,big\n", {}, "column 'stderr': 'big' is not a number"),
        ("model,x\na,inf\n", {"scores": "x"}, "'inf' is not a number"),
        ("model,x\na,5e300\n", {"scores": "x", "as_is": True}, "'5e300' is not a number"),
        ("model,x\na,\n", {"scores": "x"}, "no scores"),
        ("model,benchmark,value,stderr\na,x,.5,.1\nb,x,.5,-.1\n", {}, "row 3, column 'stderr': -.1 is negative"),
    ],
)
def test_bad_tables_say_where(text, options, words, read):
    with pytest.raises(InputError, match=words):
        read(text, **options)


def test_decimal_commas_are_read_where_no_number_has_a_point(read):
    assert by_cell(read("model;benchmark;value\na;x;0,5\n")) == {("a", "x"): 0.5}
    assert by_cell(read("model;x;y\na;1;0,5\nb;51,25%;1\n"))["b", "x"] == pytest.approx(0.5125)


def test_thousands_are_no_decimal_commas(read):
    log = ImportLog()
    assert by_cell(read('model,x,downloads\na,.5,"1,234"\nb,.6,"12,345"\n', log)) == {("a", "x"): 0.5, ("b", "x"): 0.6}
    assert [each.where for each in log.reading.decisions if each.kind == "left out"] == ["downloads"]


def test_the_command(tmp_path):
    (tmp_path / "t.csv").write_text('Name,"x, hard",y\na,50,60\n')
    command = ["csv", str(tmp_path / "t.csv"), "--output", str(tmp_path / "out")]
    columns = [*command, "--columns", "model=Name", "--percent"]
    assert CliRunner().invoke(imports.app, [*columns, "--scores", '"x, hard"']).exit_code == 0
    assert by_cell(read_scores(tmp_path / "out" / "scores.parquet")) == {("a", "x, hard"): 0.5}
    for wrong in (["--across", "rows"], ["--repeats", "last"], ["--percent", "--as-is"], ["--columns", "Name"]):
        assert isinstance(CliRunner().invoke(imports.app, [*command, *wrong]).exception, InputError)


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("who,what,how,x\na,p,.5,9\nb,q,.75,9\n", {"columns": "model=who,benchmark=what,value=how"}, [0.5, 0.75]),
        ("model,e/a,e/b,f\nm,.1,.2,.3\n", {"scores": "e/*"}, [0.1, 0.2]),
        ("model,e/a,e/b,f,g\nm,.1,.2,.3,.4\n", {"scores": "e/b..f"}, [0.2, 0.3]),
        ("who,x,y\na,.5,.25\nb,.75,.5\n", {"columns": "benchmark=who", "across": "models"}, [0.5, 0.25, 0.75, 0.5]),
        ("model,x\na,50\nb,.75\n", {"percent": True}, [0.5, 0.0075]),
        ("model,x\na,50\nb,.75\n", {"as_is": True}, [50, 0.75]),
        ("model,x,precision\na,.5,f16\na,.6,f32\n", {"repeats": "first"}, [0.5]),
        ("model,benchmark,value,n_items\na,x,.5,101\n", {"errors_from_items": True}, [0.5]),
        ("model,step,x\na,100,.5\na,200,.6\n", {"tokens_per_step": 2e6}, [0.5, 0.6]),
        ("Who,x\ng-step_100,.5\ng-step_200,.6\n", {"columns": "model=Who"}, [0.5, 0.6]),
    ],
    ids=["columns", "pattern", "range", "across", "percent", "as is", "first", "errors", "tokens", "steps"],
)
def test_a_hidden_option_is_rows_of_a_reading(text, options, expected, tmp_path):
    """The reading.tsv of an import with the option, given back without it, gives the same scores."""
    (tmp_path / "t.csv").write_text(text)
    scores = import_files([tmp_path / "t.csv"], tmp_path / "by_option", options_of(**options)).scores
    back = ImportOptions(reading=tmp_path / "by_option/reading.tsv")
    pd.testing.assert_frame_equal(import_files([tmp_path / "t.csv"], tmp_path / "back", back).scores, scores)
    assert scores.sort_values(["benchmark", "model"])["value"].tolist() == pytest.approx(expected)
    if "errors_from_items" in options:
        assert scores["stderr"].tolist() == pytest.approx([0.05])  # sqrt(.25 / 100)
    if "step" in text:
        assert scores["iteration"].tolist() == [100, 200] and set(scores["model"]) <= {"a", "g"}
    if "tokens_per_step" in options:
        assert scores["tokens_b"].tolist() == pytest.approx([0.2, 0.4])


def test_a_column_has_the_role_that_the_reader_gives_it_and_no_other(read):
    """Seeds that are read as runs are none of fine-tuning; a column of datasets that is one of models has no tasks."""
    seeds = "model,benchmark,value,seed\na,x,.5,0\na,x,.6,1\nb,x,.7,0\nb,x,.8,1\n"
    scores = read(seeds, corrections={("column", "seed"): "run"})
    assert scores["seed"].isna().all() and scores["run"].tolist() == [0, 1, 0, 1]
    scores = read("name,dataset,score\nq,m1,.5\nq,m2,.6\n", corrections={("column", "dataset"): "model"})
    assert by_cell(scores) == {("m1", "score"): 0.5, ("m2", "score"): 0.6}


def test_options_of_columns_that_are_not_there_are_refused(read):
    """Also where a table is turned, or its title left out; a column of texts is no score because of a pattern."""
    turned = "0,1,2\nTask,vt,qa\nScore,50,60\n"
    for text in (turned, "Results of spring,,\nmodel,x,y\na,.5,.6\n"):
        name = text.partition(",")[0]
        for options in ({"columns": f"model={name}"}, {"columns": f"benchmark={name}"}, {"scores": name}):
            with pytest.raises(InputError, match=f"no column '{name}'"):
                read(text, **options)
    assert set(read("task,acc,x\nvt,.5,.6\nqa,.6,.7\n", scores="*a*", across="benchmarks")["model"]) == {"vt", "qa"}


def test_rows_of_a_reading_about_one_thing_count_before_those_about_all(tmp_path):
    text = "model,x,y,val_loss\na,50,0.75,3.5\nb,60,0.5,3.25\n"
    rows = {("unit", "*"): "percent", ("unit", "y"): "share"}
    (tmp_path / "t.csv").write_text(text)
    scores = import_files([tmp_path / "t.csv"], tmp_path / "o", ImportOptions(corrections=rows)).scores
    values = {("a", "x"): 0.5, ("a", "y"): 0.75, ("b", "x"): 0.6, ("b", "y"): 0.5}
    assert by_cell(scores) == values | {("a", "val_loss"): 3.5, ("b", "val_loss"): 3.25}  # which has no bounds
    wide = "model,e/a,e/b,other\nm,.1,.2,.3\n"
    (tmp_path / "w.csv").write_text(wide)
    rows = {("column", "e/*"): "left out", ("column", "e/b"): "score"}
    scores = import_files([tmp_path / "w.csv"], tmp_path / "o2", ImportOptions(corrections=rows)).scores
    assert by_cell(scores) == {("m", "e/b"): 0.2, ("m", "other"): 0.3}
    (tmp_path / "v.csv").write_text("model,e/a..x,other\nn,.4,.5\n")  # whose column is no range in the other table
    rows = {("column", "e/a..x"): "left out"}
    scores = import_files([tmp_path / "w.csv", tmp_path / "v.csv"], tmp_path / "o5", ImportOptions(corrections=rows))[0]
    assert set(by_cell(scores)) == {("m", "e/a"), ("m", "e/b"), ("m", "other"), ("n", "other")}
    rows = {("column", "steps"): "score"}  # by its name a number of steps
    (tmp_path / "s.csv").write_text("model,steps\nm,.5\n")
    assert by_cell(import_files([tmp_path / "s.csv"], tmp_path / "o3", ImportOptions(corrections=rows)).scores) == {
        ("m", "steps"): 0.5
    }
    (tmp_path / "run.csv").write_text("step,x\n100,.5\n")
    for tokens in ("many", "0"):
        options = ImportOptions(corrections={("tokens_per_step", "*"): tokens})
        with pytest.raises(InputError, match="is no number of tokens"):
            import_files([tmp_path / "run.csv"], tmp_path / "o4", options)


def test_what_a_table_says_of_models_is_no_score(read):
    """Sizes, tokens, learning rates and dates, in the models sheet's units; tokens of checkpoints are those of rows."""
    log = ImportLog()
    text = "model,Model Size (B),Pretraining Data Size (T),vocabulary_size,peak_lr,date,x\n"
    scores = read(text + "a,7,2,32000,3e-4,2024-01-02,.5\nb,70,15,128000,1e-4,2024-07-23,.6\n", log)
    assert by_cell(scores) == {("a", "x"): 0.5, ("b", "x"): 0.6}
    own = {"vocabulary_size": 32000, "peak_lr": 3e-4, "date": "2024-01-02"}
    assert log.facts["a"] == {"parameters_b": 7, "tokens_b": 2000, **own}
    counts = "model,params,tokens,x\na,1439795200,28795904000,.5\nb,411616256,2058081280,.6\n"
    read(counts, log := ImportLog())
    assert log.facts["b"] == {"parameters_b": pytest.approx(0.411616256), "tokens_b": pytest.approx(2.05808128)}
    along = "model,step,batch_size_in_tokens,throughput/total_tokens,x\na,100,4e6,4e8,.5\na,200,4e6,8e8,.6\n"
    scores = read(along, log := ImportLog())
    assert scores["tokens_b"].tolist() == pytest.approx([0.4, 0.8]) and log.facts["a"] == {"tokens_per_step": 4e6}
    assert scores["checkpoint"].tolist() == ["step100", "step200"]


def test_an_unnamed_first_column_of_texts_is_that_of_the_models(read):
    assert by_cell(read(",x\na,.5\nb,.6\n")) == {("a", "x"): 0.5, ("b", "x"): 0.6}
    assert by_cell(read(",model,x\n0,a,.5\n1,b,.6\n")) == {("a", "x"): 0.5, ("b", "x"): 0.6}
    scores = read(",who,x\n0,a,.5\n1,b,.6\n", log := ImportLog())
    assert by_cell(scores) == {("a", "x"): 0.5, ("b", "x"): 0.6}
    assert ("column", "who", "model") in {each[:3] for each in log.reading.decisions if each.kind == "unsure"}
    assert len(read(",who,x\n0,a,.5\n1,b,.6\n", columns="model=who")) == 2


def test_a_file_of_steps_is_one_run(read):
    scores = read("_step,x,c4/CrossEntropyLoss\n100,.5,3.5\n200,.6,3.25\n", name="190M-0.5xC.csv")
    assert set(scores["model"]) == {"190M-0.5xC"} and scores["iteration"].tolist() == [100, 100, 200, 200]
    losses = scores[scores["benchmark"] == "c4/CrossEntropyLoss"]
    assert losses["value"].tolist() == [3.5, 3.25] and losses["higher_is_better"].tolist() == [False] * 2
    long = read("benchmark,step,value\nx,100,.5\ny,100,.6\n", name="run.csv")
    assert by_cell(long) == {("run", "x"): 0.5, ("run", "y"): 0.6}


def test_steps_at_the_end_of_models_names(read):
    text = "model,x\ng-1-main,.9\ng-1-step_00002385,.5\ng-1-step_00004770,.6\nother-step_7,.4\n"
    scores = read(text).set_index("value").sort_index()
    assert scores["model"].tolist() == ["other-step_7", "g-1", "g-1", "g-1"]  # one step alone is a name
    assert scores["checkpoint"].tolist() == ["final", "step2385", "step4770", "final"]
    tuned = read("model,x\nspin-iter1,.5\nspin-iter2,.6\n")
    assert tuned["model"].tolist() == ["spin-iter1", "spin-iter2"] and set(tuned["checkpoint"]) == {"final"}


def test_standard_errors_behind_a_sign_in_a_column_or_in_a_file_beside(read, tmp_path):
    text = "model,x,y\na,60.17 ± 1.40,50+/-2\nb,12.5% ± 0.5%,60\n"
    scores = read(text, log := ImportLog())  # of which kind they are is not known
    assert scores["stderr"].isna().all() and by_cell(scores)["a", "x"] == pytest.approx(0.6017)
    assert {each.where for each in log.reading.decisions if each.kind == "unsure"} == {"x", "y"}
    (tmp_path / "r.tsv").write_text("what\twhere\tdecided\nerrors\tx\tstderr\nerrors\ty\tci95\n")
    scores = import_files([tmp_path / "scores.csv"], tmp_path / "o", ImportOptions(reading=tmp_path / "r.tsv"))[0]
    errors = scores.set_index(["model", "benchmark"])["stderr"]
    assert errors["a", "x"] == pytest.approx(0.014) and errors["a", "y"] == pytest.approx(0.02 / 1.959964)
    assert errors["b", "x"] == pytest.approx(0.005) and pd.isna(errors["b", "y"])
    scores = read("model,x,x_stderr\na,.5,.01\nb,.6,\n")
    assert set(scores["benchmark"]) == {"x"} and scores["stderr"].iloc[0] == 0.01 and pd.isna(scores["stderr"].iloc[1])
    frame = pd.DataFrame({"x": [0.5, 0.6]}, index=["a", "b"])
    frame.to_parquet(tmp_path / "wide.parquet")
    (frame / 10).to_parquet(tmp_path / "wide_err.parquet")
    scores = read_files([tmp_path / "wide.parquet", tmp_path / "wide_err.parquet"], ImportOptions(), ImportLog())
    assert by_cell(scores) == {("a", "x"): 0.5, ("b", "x"): 0.6} and scores["stderr"].tolist() == [0.05, 0.06]
    long = "model,benchmark,value\na,x,{}\nb,x,{}\n"
    (tmp_path / "long_err.csv").write_text(long.format(0.05, 0.06))
    log = ImportLog()
    assert read(long.format(0.5, 0.6), log, "long.csv")["stderr"].tolist() == [0.05, 0.06]
    assert any("long_err.csv" in line for line in log.notes)
    (tmp_path / "long_err.csv").write_text("model,y,z\nc,.5,.6\n")  # of other columns: scores of its own
    assert read(long.format(0.5, 0.6), name="long.csv")["stderr"].isna().all()
    assert by_cell(read_files([tmp_path / "long_err.csv"], ImportOptions(), ImportLog())) == {
        ("c", "y"): 0.5,
        ("c", "z"): 0.6,
    }
    (frame.head(1) / 10).to_parquet(tmp_path / "wide_err.parquet")
    with pytest.raises(InputError, match=r"wide_err\.parquet: not of the same rows"):
        read_files([tmp_path / "wide.parquet"], ImportOptions(), ImportLog())


def test_columns_of_differences_are_left_out(read):
    log = ImportLog()
    assert set(read("model,x,y,gap\na,.5,.5,-.2\nb,.6,.7,.1\n", log)["benchmark"]) == {"x", "y"}
    assert [each.where for each in log.reading.decisions if each.kind == "left out"] == ["gap"]


def test_scores_by_pattern_and_range(read):
    text = "model,e/a,e/b,f,g\nm,.1,.2,.3,.4\n"
    assert set(read(text, scores="e/*")["benchmark"]) == {"e/a", "e/b"}
    assert set(read(text, scores="e/b..f,g")["benchmark"]) == {"e/b", "f", "g"}
    with pytest.raises(InputError, match="no column 'h'"):
        read(text, scores="f..h")


def test_a_matrix_of_answers_is_items(tmp_path):
    """With a benchmark's name and a number in the header, and without a header."""
    columns = [f"{name}_{number}" for name in ("arc", "boolq") for number in range(10)]
    rows = {"a": [1] * 5 + [0] * 5 + [1] * 10, "b": [1, 0] * 10}
    lines = [",".join(["model", *columns]), *(",".join([name, *map(str, values)]) for name, values in rows.items())]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    scores, log = import_files([tmp_path / "t.csv"], tmp_path / "out")
    assert by_cell(scores) == {("a", "arc"): 0.5, ("a", "boolq"): 1, ("b", "arc"): 0.5, ("b", "boolq"): 0.5}
    assert scores["stderr"].iloc[0] == pytest.approx((0.25 / 9) ** 0.5) and set(scores["n_items"]) == {10}
    items = read_table(tmp_path / "out/items.parquet", ITEMS)
    own = items[(items["model"] == "b") & (items["benchmark"] == "boolq")]
    assert own["doc_id"].tolist() == [str(number) for number in range(10)] and own["correct"].tolist() == [1, 0] * 5
    assert log.items == 40
    (tmp_path / "all.csv").write_text("\n".join(",".join(f"{value}.0" for value in values) for values in rows.values()))
    scores, log = import_files([tmp_path / "all.csv"], tmp_path / "out2")
    assert by_cell(scores) == {("all-1", "all"): 0.75, ("all-2", "all"): 0.5} and log.items == 40


def imported(tmp_path, text: str, name: str = "t.csv", **options):
    """Scores, items and the decisions by what they concern, of one file."""
    (tmp_path / name).write_text(text)
    scores, log = import_files([tmp_path / name], tmp_path / "out", options_of(**options))
    decided = {(each.what, each.where): (each.decided, each.kind) for each in log.reading.decisions}
    return scores, read_table(tmp_path / "out/items.parquet", ITEMS), decided


def test_metrics_of_one_item_are_scores_of_their_own(tmp_path):
    """Half right by exact match; f1 is 1 where that is and 0.5 elsewhere: 0.75. The one that counts is `correct`."""
    rows = [
        f"{model},squad,{metric},q{n},{value}"
        for model in ("a", "b") for n in range(8)
        for metric, value in (("f1", 0.5 + n % 2 / 2), ("exact_match", n % 2))
    ]  # fmt: skip
    only = [f"c,squad,f1,q{n},0.25" for n in range(8)]
    scores, items, _ = imported(tmp_path, "model,benchmark,metric,question_id,value\n" + "\n".join([*rows, *only]))
    values = scores.set_index(["model", "metric"])["value"].to_dict()
    exact, f1 = "exact_match,none", "f1,none"
    assert values == {("a", exact): 0.5, ("a", f1): 0.75, ("b", exact): 0.5, ("b", f1): 0.75, ("c", f1): 0.25}
    assert set(scores["n_items"]) == {8} and len(items) == 24
    own = items[items["model"] == "a"]
    assert own["correct"].tolist() == [0, 1] * 4
    assert [dict(both) for both in own["metric_values"][:2]] == [{f1: 0.5, exact: 0}, {f1: 1, exact: 1}]
    other = items[items["model"] == "c"]
    assert other["correct"].isna().all() and dict(other["metric_values"].iloc[0]) == {f1: 0.25}


def test_each_row_of_answers_has_its_own_examples_in_the_prompt(tmp_path):
    rows = [f"{model},{name},{q},{q % of == 0:d}" for model in "ab" for name, of in (("arc,0", 2), ("gsm,5", 4))
            for q in range(8)]  # fmt: skip
    scores, items, _ = imported(tmp_path, "model,benchmark,num_fewshot,question_id,correct\n" + "\n".join(rows))
    own = scores[scores["model"] == "b"].set_index("benchmark")
    assert own["num_fewshot"].to_dict() == {"arc": 0, "gsm": 5} and own["value"].to_dict() == {"arc": 0.5, "gsm": 0.25}
    assert items.groupby("benchmark")["num_fewshot"].unique().map(list).to_dict() == {"arc": [0], "gsm": [5]}
    rows = [f"{model},arc,{shots},{q},{q < shots:d}" for model in "ab" for shots in (0, 2) for q in range(8)]
    scores, items, _ = imported(tmp_path, "model,benchmark,num_fewshot,question_id,correct\n" + "\n".join(rows))
    assert scores.set_index(["model", "num_fewshot"])["value"].to_dict() == {
        ("a", 0): 0, ("a", 2): 0.25, ("b", 0): 0, ("b", 2): 0.25,
    }  # fmt: skip
    assert len(items) == 32


def test_answers_at_checkpoints_and_of_protocols_are_not_averaged(tmp_path):
    places = [("early", "direct", 4), ("final", "direct", 2), ("final", "train_before_test", 1)]
    rows = [f"{m},{at},{how},arc,{q},{q % of == 0:d}" for m in "ab" for at, how, of in places for q in range(8)]
    text = "model,checkpoint,protocol,benchmark,question_id,correct\n" + "\n".join(rows)
    scores, items, _ = imported(tmp_path, text)
    key = ["checkpoint", "protocol"]
    expected = {("early", "direct"): 0.25, ("final", "direct"): 0.5, ("final", "train_before_test"): 1}
    assert scores[scores["model"] == "a"].set_index(key)["value"].to_dict() == expected
    assert items[items["model"] == "b"].groupby(key)["correct"].mean().to_dict() == expected and len(items) == 48


RATINGS = {"a": [8, 9, 10], "b": [6, 7, 8], "c": [4, 5, 6]}  # means 9, 7, 5


def test_ratings_of_items_are_no_percentages_unless_the_reader_says_so(tmp_path):
    rows = [f"{model},{n},{value}" for model, own in RATINGS.items() for n, value in enumerate(own)]
    text = "model,question_id,score\n" + "\n".join(rows)
    scores, items, decided = imported(tmp_path, text, "judged.csv")
    assert by_cell(scores) == {("a", "judged"): 9, ("b", "judged"): 7, ("c", "judged"): 5}
    assert scores["stderr"].tolist() == pytest.approx([3**-0.5] * 3)  # a standard deviation of 1, of 3 items
    assert items[items["model"] == "a"]["correct"].tolist() == [8, 9, 10]
    assert decided["unit", "judged"] == ("points", "unsure")
    scores, items, decided = imported(tmp_path, text, "judged.csv", percent=True)
    assert by_cell(scores)["a", "judged"] == pytest.approx(0.09) and items["correct"].max() == pytest.approx(0.1)
    (tmp_path / "reading.tsv").write_text("what\twhere\tdecided\nunit\tjudged\tpercent\n")
    scores, _, decided = imported(tmp_path, text, "judged.csv", reading=tmp_path / "reading.tsv")
    assert by_cell(scores)["b", "judged"] == pytest.approx(0.07)


def test_units_of_items_are_those_of_each_benchmark_and_metric(tmp_path):
    """0 and 100 are percentages, a share of trials is one by its name, ratings and shares stay."""
    parts = {
        "quiz,value": [0, 100, 100, 0], "trials,acc": [66.6, 33.4, 100, 0], "chat,rating": [2, 5, 3, 4],
        "chat,ok": [0, 1, 0, 0],
    }  # fmt: skip
    rows = [f"{m},{place},{n},{v}" for m in "ab" for place, own in parts.items() for n, v in enumerate(own)]
    scores, items, decided = imported(tmp_path, "model,benchmark,metric,question_id,value\n" + "\n".join(rows))
    own = scores[scores["model"] == "a"].set_index(["benchmark", "metric"])["value"]
    assert own.to_dict() == pytest.approx(
        {
            ("quiz", "value,none"): 0.5,
            ("trials", "acc,none"): 0.5,
            ("chat", "rating,none"): 3.5,
            ("chat", "ok,none"): 0.25,
        }
    )
    assert decided["unit", "quiz"] == decided["unit", "trials"] == ("percent", "converted")
    assert decided["unit", "chat"] == ("points", "unsure")
    assert items[items["benchmark"] == "quiz"]["correct"].tolist() == [0, 1, 1, 0] * 2


def test_answers_without_a_value_are_named(tmp_path):
    """Three of five answers of a have a value, two of which are right; the first without is in row 3."""
    answers = {"a": ["1", "", "0", "1", "error"], "b": list("11100")}
    rows = [f"{model},{n},{value}" for model, own in answers.items() for n, value in enumerate(own)]
    scores, items, decided = imported(tmp_path, "model,question_id,correct\n" + "\n".join(rows), "quiz.csv")
    assert by_cell(scores) == pytest.approx({("a", "quiz"): 2 / 3, ("b", "quiz"): 0.6})
    assert scores.set_index("model")["n_items"].to_dict() == {"a": 3, "b": 5} and len(items) == 8
    assert decided["cell", "question_id without a value"] == ("left out", "left out")
    assert scores["higher_is_better"].eq(True).all()  # of a column `correct`; of `score` nobody knows
    scores, _, _ = imported(tmp_path, "model,question_id,score\n" + "\n".join(rows), "other.csv")
    assert scores["higher_is_better"].isna().all()


def test_a_score_a_row_leaves_further_columns_of_scores_out_by_name(read, tmp_path):
    """What n counts nobody says: items, or parameters, of which no standard error is to be judged."""
    header = "model,benchmark,value,n,ci_low,ci_high,acc_norm\n"
    text = (
        header + "a,x,0.5,100,0.4,0.6,0.3\na,y,0.25,50,0.2,0.3,0.2\nb,x,0.75,100,0.7,0.8,0.1\nb,y,0.5,50,0.4,0.6,0.4\n"
    )
    scores = read(text, log := ImportLog())
    assert by_cell(scores)["a", "x"] == 0.5 and scores["n_items"].isna().all()
    assert [each.where for each in log.reading.decisions if each.decided == "left out"] == ["n", "acc_norm"]
    (tmp_path / "reading.tsv").write_text("what\twhere\tdecided\ncolumn\tn\tn_items\n")
    scores = read(text, reading=tmp_path / "reading.tsv")
    assert scores.set_index("benchmark").loc["y", "n_items"].tolist() == [50, 50]


def test_a_letter_for_parameters_is_no_number_of_items(read):
    """Errors of .01 stay, where shares of 160 million items would have errors of 4e-5."""
    rows = [f"{model},{name},0.5,0.01,{n}" for model, n in (("a", 160_000_000), ("b", 410_000_000)) for name in "xy"]
    scores = read("model,benchmark,acc,acc_stderr,N\n" + "\n".join(rows) + "\n")
    scores = scores[scores["metric"] == "acc,none"]
    assert scores["n_items"].isna().all() and scores["stderr"].tolist() == [0.01] * 4


def test_a_very_wide_table_is_refused_at_once(read):
    names = ",".join(f"c{number}x" for number in range(10_001))
    values = ",".join(["0.5"] * 10_001)
    with pytest.raises(InputError, match="10002 columns"):
        read(f"model,{names}\na,{values}\n")
    assert len(read(f"model,{names}\na,{values}\n", scores="c1?x")) == 10


def test_tables_in_a_folder_need_a_column_of_models_or_steps(tmp_path):
    (tmp_path / "scores.csv").write_text("model,x\na,.5\n")
    (tmp_path / "sheet.csv").write_text("task,shots\nx,5\n")
    scores = read_files([tmp_path], ImportOptions(), log := ImportLog())
    assert by_cell(scores) == {("a", "x"): 0.5} and "sheet.csv" in log.skipped[0][0]


def test_languages_are_no_ends_of_intervals(tmp_path):
    """Hindi beside other languages is a benchmark; the ends of an interval beside its score are not."""
    text = "model,recall ar,recall hi,coins,coins_lo,coins_hi\nant,0.3,0.2,0.5,0.4,0.6\nbee,0.4,0.3,0.6,0.5,0.7\n"
    (tmp_path / "t.csv").write_text(text)
    scores = import_files([tmp_path / "t.csv"], tmp_path / "out").scores
    assert set(scores["benchmark"]) == {"recall ar", "recall hi", "coins"}


def test_settings_are_no_parts_of_names_and_the_reader_says_which_are(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("name,data,ledger,coins\nant,old,0.3,0.5\nant,new,0.4,0.6\nbee,old,0.5,0.7\n")
    scores, log = import_files([table], tmp_path / "out")
    assert set(scores["model"]) == {"ant old", "ant new", "bee old"}
    assert ("column", "data", "model name") in {each[:3] for each in log.reading.decisions if each.kind == "unsure"}
    table.write_text(table.read_text().replace("name,data", "model,precision"))
    with pytest.raises(InputError, match="another score"):
        import_files([table], tmp_path / "out")
    (tmp_path / "r.tsv").write_text("what\twhere\tdecided\ncolumn\tprecision\tmodel name\n")
    scores = import_files([table], tmp_path / "out", ImportOptions(reading=tmp_path / "r.tsv")).scores
    assert set(scores["model"]) == {"ant old", "ant new", "bee old"}


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        ("model,suite,score", ["column,suite,benchmark"]),
        ("model,area,score", ["column,area,benchmark"]),
        ("checkpoints,tasks,accuracy", ["column,checkpoints,model", "column,tasks,benchmark"]),
    ],
)
def test_a_column_of_benchmarks_is_no_part_of_names(tmp_path, header, rows):
    """Of one score in a row the other column tells benchmarks apart; the hint names the column, and can be followed."""
    table = tmp_path / "t.csv"
    table.write_text(f"{header}\nant,reading,0.3\nbee,reading,0.4\nant,sums,0.5\nbee,sums,0.6\n")
    with pytest.raises(InputError) as caught:
        import_files([table], tmp_path / "out")
    assert rows[0] in caught.value.hint
    (tmp_path / "r.csv").write_text("\n".join(["what,where,decided", *rows]) + "\n")
    scores = import_files([table], tmp_path / "out", ImportOptions(reading=tmp_path / "r.csv")).scores
    assert scores.set_index(["model", "benchmark"])["value"].to_dict() == {
        ("ant", "reading"): 0.3, ("bee", "reading"): 0.4, ("ant", "sums"): 0.5, ("bee", "sums"): 0.6,
    }  # fmt: skip


def test_steps_in_the_names_of_checkpoints_are_their_steps(read):
    text = "model,checkpoint,x\na,step10,.5\na,step9,.4\na,final,.6\nb,checkpoint-500,.3\nb,warm,.2\n"
    found = read(text).set_index(["model", "checkpoint"])["iteration"]
    steps = {("a", "step9"): 9, ("a", "step10"): 10, ("b", "checkpoint-500"): 500}
    assert found.dropna().to_dict() == steps and len(found) == 5


def test_large_whole_numbers_of_a_name_in_id_are_identifiers_and_scores_in_indonesian_are_none(read):
    text = "model,xcopa_id,arc_id,xcopa_it,run_id\na,.61,31,.66,3001\nb,.65,35,.68,3002\nc,.69,38,.69,3003\n"
    scores = read(text)
    assert set(scores["benchmark"]) == {"xcopa_id", "arc_id", "xcopa_it"}
    assert by_cell(scores)["b", "xcopa_id"] == 0.65


@pytest.mark.parametrize(
    "names",
    [
        ("epoch1_step900", "epoch2_step100"),
        ("stage1-step4000", "stage2-step1000"),
        ("run2-step900", "run1-step1000"),
        ("warm-step900", "main-step100"),
        ("step900", "step1k"),
        ("epoch1_step900", "final"),
    ],
)
def test_steps_of_several_counts_are_not_known(read, names):
    """A step counts from the beginning of its stage or run; one that the file says in a column is taken."""
    text = "".join(f"a,{name},.{number}\n" for number, name in enumerate(names, 1))
    assert "iteration" not in (found := read(f"model,checkpoint,x\n{text}")) or found["iteration"].isna().all()
    text = "".join(f"a,{name},{number},.{number}\n" for number, name in enumerate(names, 1))
    assert sorted(read(f"model,checkpoint,step,x\n{text}")["iteration"]) == [1, 2]


def test_steps_behind_the_same_word_are_known(read):
    text = "model,checkpoint,x\na,step0,.1\na,Step_1000,.2\na,final,.3\nb,main-ckpt-20,.1\nb,main-ckpt-9,.2\n"
    found = read(text).set_index(["model", "checkpoint"])["iteration"].dropna().to_dict()
    assert found == {("a", "step0"): 0, ("a", "Step_1000"): 1000, ("b", "main-ckpt-20"): 20, ("b", "main-ckpt-9"): 9}


def test_a_metric_behind_a_slash_is_one_where_nothing_contradicts_it(read):
    sports = read("model,benchmark,value\na,sports/f1,.31\na,sports/golf,.2\nb,sports/f1,.42\nb,sports/golf,.3\n")
    assert set(sports["benchmark"]) == {"sports/f1", "sports/golf"} and sports["metric"].isna().all()
    own = read("model,benchmark,metric,value\na,coins/acc,f1,.2\nb,coins/acc,f1,.3\na,coins/acc,,.4\nb,coins/acc,,.5\n")
    assert set(own["benchmark"]) == {"coins/acc"} and set(own["metric"].dropna()) == {"f1,none"}
    rows = "a,qa/f1,.3\na,qa/exact_match,.2\na,tides/acc,.1\nb,qa/f1,.4\nb,qa/exact_match,.5\nb,tides/acc,.6\n"
    two = read(f"model,benchmark,value\n{rows}").set_index(["model", "benchmark", "metric"])["value"].to_dict()
    assert two == {
        ("a", "qa", "f1,none"): 0.3, ("a", "qa", "exact_match,none"): 0.2, ("a", "tides", "acc,none"): 0.1,
        ("b", "qa", "f1,none"): 0.4, ("b", "qa", "exact_match,none"): 0.5, ("b", "tides", "acc,none"): 0.6,
    }  # fmt: skip


def test_a_column_of_commits_that_holds_shares_is_a_benchmark(read):
    scores = read("model,coins,code_commit,sha\na,0.31,0.21,1234567\nb,0.42,0.35,7654321\n")
    assert by_cell(scores) == {
        ("a", "coins"): 0.31, ("a", "code_commit"): 0.21, ("b", "coins"): 0.42, ("b", "code_commit"): 0.35
    }  # fmt: skip


def test_a_table_beside_others_is_left_out_only_without_scores(read):
    scores = "| model | coins |\n|---|---|\n| a | 50.5 |\n| b | 51.5 |\n"
    log = ImportLog()
    tasks = "| Task | Context | # Examples |\n|---|---|---|\n| coins | Book | 101 |\n| tides | Book | 102 |\n"
    assert len(read(f"{scores}\ntext\n\n{tasks}", log, name="a.md")) == 2
    texts = [decision.text for decision in log.reading.decisions]
    assert any("a table that is not read" in text and not text.endswith("..") for text in texts)
    twice = "| model | suns |\n|---|---|\n| a | 50.5 |\n| a | 55.5 |\n| b | 12.5 |\n"
    with pytest.raises(InputError, match="another score of a on suns"):
        read(f"{scores}\ntext\n\n{twice}", name="b.md")


def test_a_record_a_file_has_the_benchmark_of_its_task_unless_that_is_a_kind(tmp_path):
    """Of several tasks with one data set the tasks are the benchmarks, of one kind of task the data sets are."""
    rows = [("arc_easy", "acme/arc", 0.5), ("arc_challenge", "acme/arc", 0.3), ("image_retrieval", "coins", 0.4)]
    for task, data, value in rows:
        text = f"model,task,dataset,accuracy\nant-1b,{task},{data},{value}\n"
        (tmp_path / f"{task}.csv").write_text(text)
    scores = read_files([tmp_path], ImportOptions(), ImportLog())
    found = dict(zip(scores["benchmark"], scores["value"], strict=True))
    assert found == {"arc_easy": 0.5, "arc_challenge": 0.3, "coins": 0.4}


def test_items_are_called_as_their_file_without_the_whole_name_of_its_model(tmp_path):
    for model, name in (("a", "law.csv"), ("b", "b_art.csv")):
        rows = "".join(f"{model},{item},{item % 2}\n" for item in range(20))
        (tmp_path / name).write_text(f"model,item,correct\n{rows}")
    assert sorted(read_files([tmp_path], ImportOptions(), ImportLog())["benchmark"]) == ["art", "law"]


def test_a_score_that_is_the_same_for_all_parts_of_a_benchmark_is_one(read):
    """`domain` tells rows apart, but no scores: a benchmark of several domains has a row for each."""
    rows = [f"{model},{name},{part},{value}" for model, name, value in GRID for part in ("law", "art")]
    scores = read("\n".join(["model,benchmark,domain,score", *rows]))
    assert sorted(scores[["model", "benchmark", "value"]].itertuples(index=False, name=None)) == sorted(GRID)


GRID = [("a", "x", 0.5), ("a", "y", 0.4), ("b", "x", 0.6), ("b", "y", 0.3)]


def test_the_row_that_a_refusal_prints_reads_a_table_of_benchmarks_in_columns(read, tmp_path):
    text = "model,language,quiz,essay\na,en,.5,.6\na,de,.4,.5\nb,en,.3,.4\nb,de,.2,.1\n"
    with pytest.raises(InputError) as refused:
        read(text)
    row = next(word for word in refused.value.hint.split() if word.startswith("column,language")) + " name"
    (tmp_path / "said.csv").write_text(f"what,where,decided\n{row}\n")
    scores = read(text, reading=tmp_path / "said.csv")
    assert set(scores["model"]) == {"a en", "a de", "b en", "b de"} and len(scores) == 8


def test_parts_of_the_items_in_two_files_are_refused_with_the_way_out(tmp_path):
    paths = [tmp_path / f"{name}.csv" for name in ("first", "second")]
    for path, rights in zip(paths, ("110", "100"), strict=True):
        rows = "".join(f"{model},quiz,{path.stem}{n},{right}\n" for model in "ab" for n, right in enumerate(rights))
        path.write_text("model,benchmark,question_id,correct\n" + rows)
    with pytest.raises(InputError, match=r"such as that of a on quiz") as refused:
        read_files(paths, options_of(), ImportLog())
    assert "one file of both" in refused.value.hint
