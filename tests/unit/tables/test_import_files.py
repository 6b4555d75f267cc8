"""What is the same for all formats: which one a file has, names from paths, protocols, groups, scores in conflict."""

import gzip
import json
import re
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from tests.unit.tables.conftest import options_of, read_files
from typer.testing import CliRunner

from lm_validity.cli import imports, reports
from lm_validity.errors import InputError
from lm_validity.outputs import replaced_folder
from lm_validity.tables.counted import report_rows
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.formats.model_names import PathPattern, model_place
from lm_validity.tables.formats.score_files import ImportLog, ImportOptions
from lm_validity.tables.schema import SCORES, read_scores, write_table


def put(path, document) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))


def result(model: str, accuracy: float = 0.5, task: str = "quiz", arguments: str = "", **more) -> dict:
    config = {"model_args": f"pretrained={model}{arguments}"}
    return {"results": {task: {"acc,none": accuracy, "acc_stderr,none": 0.01}}, "config": config, **more}


def evaluation(model: str, value: float) -> dict:
    metric = {"metric_id": "acc", "lower_is_better": False}
    one = {"evaluation_name": "quiz", "metric_config": metric, "score_details": {"score": value}}
    return {"schema_version": "0.2.0", "model_info": {"id": model}, "evaluation_results": [one]}


def read(folder, **options) -> tuple[pd.DataFrame, ImportLog]:
    log = ImportLog()
    return read_files([folder], options_of(**options), log), log


def test_a_folder_of_several_formats(tmp_path):
    put(tmp_path / "in" / "a.json", result("org/a", 0.1))
    put(tmp_path / "in" / "b.json", evaluation("org/b", 0.2))
    put(tmp_path / "in" / "c.csv", "model,quiz\norg/c,0.3\n")
    put(tmp_path / "in" / "config.json", {"architectures": []})
    scores, log = import_files([tmp_path / "in"], tmp_path / "out")
    assert scores.set_index("model")["value"].to_dict() == {"org/a": 0.1, "org/b": 0.2, "org/c": 0.3}
    assert log.formats == {"lm-eval": 1, "every_eval_ever": 1, "csv": 1} and len(log.skipped) == 1
    written = json.loads((tmp_path / "out" / "import.json").read_text())
    assert written["formats"] == dict(log.formats) and scores["source"].tolist() == [
        "lm-eval",
        "every_eval_ever",
        "csv",
    ]


def test_what_commands_wrote_of_results_is_no_result(tmp_path):
    """A page among the results it is of: its tables are not read again. An export's files are results."""
    put(tmp_path / "in" / "a.json", result("org/a", 0.1))
    with replaced_folder(tmp_path / "in" / "page", "report") as page:
        write_table(read(tmp_path / "in")[0].assign(model="org/old"), SCORES, page / "scores.parquet")
        put(page / "data" / "tables" / "models.csv", "model,quiz\norg/b,0.2\n")
    put(tmp_path / "in" / "page" / "mine.csv", "model,quiz\norg/c,0.3\n")  # a file of another's in that folder
    with replaced_folder(tmp_path / "in" / "files", "export every-eval-ever") as files:
        put(files / "d.json", result("org/d", 0.4))
    scores, log = read(tmp_path / "in")
    assert scores.set_index("model")["value"].to_dict() == {"org/a": 0.1, "org/c": 0.3, "org/d": 0.4}
    assert any("page/scores.parquet" in line for line in log.notes)
    (tmp_path / "in" / "page" / "mine.csv").unlink()
    scores, _ = read(tmp_path / "in" / "page")  # alone it is the table that it holds
    assert scores.set_index("model")["value"].to_dict() == {"org/old": 0.1}


def test_a_file_of_no_known_format_that_was_named_is_refused(tmp_path):
    put(tmp_path / "x.json", {"a": 1})
    with pytest.raises(InputError, match="of no known format"):
        read(tmp_path / "x.json")
    with pytest.raises(InputError, match="--format lm-evil: not known"):
        read(tmp_path / "x.json", format="lm-evil")


PLACES = {
    "org/a": ("org/a", "final"),
    "a": ("a", "final"),
    "/runs/a/": ("a", "final"),
    "/cache/models--org--a/snapshots/0123abc": ("org/a", "final"),
    "/cache/a/snapshots/model/": ("a", "final"),
    "./out/model": ("out", "final"),
    "/runs/a//step_30": ("a", "step_30"),
    "out/checkpoint-500": ("out", "checkpoint-500"),
    "/x/a/iter_0001000/": ("a", "iter_0001000"),
    "/x/a/global_step1000": ("a", "global_step1000"),
}


@pytest.mark.parametrize(("raw", "meant"), PLACES.items())
def test_names_and_checkpoints_in_the_paths_of_models(raw, meant):
    place = model_place(raw)
    digits = "".join(filter(str.isdigit, meant[1]))
    assert (place.name, place.point.checkpoint) == meant
    assert place.point.iteration == (int(digits) if digits else None)


def test_checkpoint_folders_are_checkpoints_of_one_model(tmp_path):
    for step in (10, 20):
        put(tmp_path / f"{step}.json", result(f"/runs/tuned/a//step_{step}", step / 100))
    put(tmp_path / "end.json", result("/runs/tuned/a/", 0.9))
    scores, log = read(tmp_path)
    assert set(scores["model"]) == {"a"} and log.facts["a"]["path"] == "/runs/tuned/a"
    assert scores.set_index("checkpoint")["value"].to_dict() == {"step_10": 0.1, "step_20": 0.2, "final": 0.9}
    assert any("step_10, step_20" in note for note in log.notes)


def test_a_pattern_gives_model_and_task(tmp_path):
    put(tmp_path / "llama-7b-quiz_mc.json", result("/x/llama-hf-7"))
    put(tmp_path / "llama-7b-other.json", result("/y/llama-7", task="other"))
    scores, _ = read(tmp_path, path="{model}-{task}.json")
    assert sorted(zip(scores["model"], scores["benchmark"], strict=True)) == [
        ("llama-7b", "other"),
        ("llama-7b", "quiz_mc"),
    ]
    with pytest.raises(InputError, match="no path of a file or model ends so"):
        read(tmp_path, path="{model}.txt")
    for wrong in ("x.json", "{modle}.json", "{model}-{model}.json"):
        with pytest.raises(InputError, match="--path"):
            PathPattern(wrong)


def test_a_pattern_for_the_paths_of_models(tmp_path):
    for run, step in (("a", 3), ("b", 4)):
        put(tmp_path / f"{run}.json", result(f"/x/{run}/out/save{step}", step / 10))
    scores, _ = read(tmp_path, path="{model}/out//save{iteration}")
    assert scores[["model", "checkpoint", "iteration"]].values.tolist() == [["a", "step3", 3], ["b", "step4", 4]]


def test_a_newer_run_of_the_same_weights_counts(tmp_path):
    put(tmp_path / "old.json", result("/x/a/", 0.1, date=1.0))
    put(tmp_path / "new.json", result("/x/a", 0.2, date=2.0, arguments=",device=cuda"))
    scores, log = read(tmp_path)
    assert scores["value"].tolist() == [0.2] and len(log.repeated) == 1
    for name, value in (("2024-01-01", 0.3), ("2024-01-02", 0.4)):  # of equal dates the time stamp decides
        put(tmp_path / f"a_results_{name}.json", result("/x/a", value, date=3.0))
    assert read(tmp_path)[0]["value"].tolist() == [0.4]


@pytest.mark.parametrize(
    ("other", "pattern"),
    [
        (result("/x/tuned/a", 0.2, date=2.0), "{model}/a"),
        (result("/x/base/a", 0.2, date=2.0, arguments=",dtype=float16"), "{model}.json"),
        (result("/x/base/a", 0.2), "{model}.json"),
        (
            result("/x/base/a", 0.2, date=2.0, arguments=",peft=b,pretrained=/x/base/a") | {"model_name": "a"},
            "{model}.json",
        ),
    ],
    ids=["path", "settings", "no date", "adapter"],
)
def test_other_scores_under_one_name_are_a_conflict(tmp_path, other, pattern):
    put(tmp_path / "in" / "first.json", result("/x/base/a", 0.1, date=1.0))
    put(tmp_path / "in" / "second.json", other)
    put(tmp_path / "in" / "third.json", result("/x/base/b", 0.1, date=1.0))
    with pytest.raises(InputError, match=r"1 score with different values.*(0.1 and 0.2|0.2 and 0.1)") as refused:
        import_files([tmp_path / "in"], tmp_path / "out")
    assert f"--path '{pattern}'" in refused.value.hint
    places = re.search(r"direct=(\S+) train_before_test=(\S+)", refused.value.hint).groups()
    protocols = dict(zip(map(Path, places), ("direct", "train_before_test"), strict=True))
    assert len(read(tmp_path / "in", protocols=protocols)[0]) == 3
    assert len(read(tmp_path / "in", path=pattern)[0]) == 3
    assert (
        all(name in refused.value.problem for name in ("first.json", "second.json")) and not (tmp_path / "out").exists()
    )


def test_folders_in_conflict_have_one_way_apart(tmp_path):
    for place, model, accuracy in ((p, m, a) for p, a in (("base", 0.1), ("tuned", 0.2)) for m in ("a", "b")):
        put(tmp_path / place / f"{model}.json", result(model, accuracy))
    with pytest.raises(InputError, match="2 scores with different values") as refused:
        read(tmp_path)
    assert refused.value.hint.count("--path") == refused.value.hint.count("direct=") == 1
    (pattern,) = re.findall(r"--path '(\S+)'", refused.value.hint)
    assert set(read(tmp_path, path=pattern)[0]["model"]) == {"base", "tuned"}
    put(tmp_path / "third" / "a.json", result("a", 0.3))  # which two protocols do not separate
    with pytest.raises(InputError, match="3 scores with different values") as refused:
        read(tmp_path)
    assert refused.value.hint.count("--path") == 1 and "direct=" not in refused.value.hint


def test_files_of_unlike_models_are_parts_of_one_table(tmp_path):
    """Columns of metrics name no benchmark; only files that contradict each other are benchmarks of their own."""
    for model, accuracy in (("ant", 0.51), ("bee", 0.55), ("cow", 0.59)):
        (tmp_path / f"{model}.csv").write_text(f"model,accuracy,f1\n{model},{accuracy},0.6\n")
    rows, _ = read(tmp_path)
    assert set(rows["benchmark"]) == {"accuracy", "f1"}
    assert rows.loc[rows["benchmark"] == "accuracy"].set_index("model")["value"].to_dict() == {
        "ant": 0.51, "bee": 0.55, "cow": 0.59
    }  # fmt: skip
    for name, value in (("knots", 0.4), ("maps", 0.7)):
        (tmp_path / "tasks").mkdir(exist_ok=True)
        (tmp_path / "tasks" / f"{name}.csv").write_text(f"model,accuracy\nant,{value}\n")
    rows, _ = read(tmp_path / "tasks")
    assert rows.set_index("benchmark")["value"].to_dict() == {"knots": 0.4, "maps": 0.7}


@pytest.mark.parametrize(("below", "named"), [("41.23|20.09", {"MMLU"}), ("44.2|20.1", {"All/MMLU", "Each/MMLU"})])
def test_a_table_that_repeats_scores_with_more_decimals_is_no_other_benchmark(tmp_path, below, named):
    """The finer score counts; scores that rounding does not make equal are told apart by the heading."""
    table = "# {}\n```\n# run it\n```\n|Model|MMLU|GSM8K|\n|-|-|-|\n|ant|{}|\n|bee|51.8|30.3|\n\n"
    (tmp_path / "board.md").write_text(table.format("All", "41.2|20.1") + table.format("Each", below))
    rows, _ = read(tmp_path / "board.md")
    assert set(rows["benchmark"]) == {"GSM8K", *named}
    if named == {"MMLU"}:
        found = rows.set_index(["model", "benchmark"])["value"]
        assert found["ant", "MMLU"] == pytest.approx(0.4123) and found["ant", "GSM8K"] == pytest.approx(0.2009)


def test_equal_scores_of_two_files_are_one(tmp_path):
    put(tmp_path / "first.json", result("/x/base/a", 0.1))
    for difference in (1e-12, 0.00009):  # of a standard error of 0.01 one hundredth is 0.0001
        put(tmp_path / "second.json", result("/x/tuned/a", 0.1 + difference))
        scores, log = read(tmp_path)
        assert len(scores) == 1 and len(log.repeated) == 1
    put(tmp_path / "second.json", result("/x/tuned/a", 0.1002))
    with pytest.raises(InputError, match="different values"):
        read(tmp_path)


def test_two_folders_of_two_protocols(tmp_path):
    put(tmp_path / "base" / "a.json", result("/x/a", 0.1))
    put(tmp_path / "tuned" / "a.json", result("/y/a", 0.2))
    command = [f"direct={tmp_path / 'base'}", f"train_before_test={tmp_path / 'tuned'}", "--output"]
    done = CliRunner().invoke(imports.app, [*command, str(tmp_path / "out"), "--prepared-on", "others"])
    assert done.exit_code == 0, done.output
    scores = read_scores(tmp_path / "out" / "scores.parquet").set_index("protocol")
    assert scores["value"].to_dict() == {"direct": 0.1, "train_before_test": 0.2}
    assert scores["prepared_on"].fillna("").to_dict() == {"direct": "", "train_before_test": "others"}
    own = read(tmp_path / "base", protocol="train_before_test")
    assert own[0]["protocol"].tolist() == ["train_before_test"] and any("not given" in note for note in own[1].notes)
    with pytest.raises(InputError, match="none of the scores is train before test"):
        read(tmp_path / "base", prepared_on="others")
    wrong = CliRunner().invoke(
        reports.app, [command[0], command[0].replace("direct", "train_before_test"), *command[2:], "o"]
    )
    assert isinstance(wrong.exception, InputError) and "two protocols" in wrong.exception.problem


def test_links_keep_their_own_names(tmp_path):
    """As a hub's cache has them: what they lead to is in another folder, under another name."""
    for place, accuracy in (("base", 0.1), ("tuned", 0.2)):
        put(tmp_path / "blobs" / place, result("", accuracy))
        (tmp_path / place / "org__a").mkdir(parents=True)
        (tmp_path / place / "org__a" / "results.json").symlink_to(tmp_path / "blobs" / place)
    protocols = {tmp_path / "base": "direct", tmp_path / "tuned": "train_before_test"}
    log = ImportLog()
    scores = read_files(protocols, ImportOptions(protocols=protocols), log)
    assert scores.set_index("protocol")["value"].to_dict() == {"direct": 0.1, "train_before_test": 0.2}
    assert set(scores["model"]) == {"org/a"}


def test_only_its_own_training_set_makes_a_benchmark_train_before_test(tmp_path):
    for name in ("quiz", "other", "third"):
        for protocol in ("direct", "train_before_test"):
            put(tmp_path / protocol / f"{name}.json", result("/x/a", 0.1, name))
    protocols = {tmp_path / "train_before_test": "train_before_test"}
    scores, _ = read(tmp_path, protocols=protocols, prepared_on="quiz, more")
    notes: list[str] = []
    sheet = pd.DataFrame(
        {"benchmark": ["quiz", "other", "third"], "prepared_on": [None, None, "third"], "num_fewshot": None}
    )
    rows = report_rows(scores, sheet, notes)
    trained = rows.loc[rows["protocol"] == "train_before_test", "benchmark"]
    assert sorted(trained) == ["quiz", "third"] and len(rows) == 5
    assert [note for note in notes if "quiz, more" in note and note.endswith("other.")]
    assert [note for note in notes if "own training sets" in note and note.endswith("quiz, third.")]


def group(error: object = 0.003, tasks: tuple[str, ...] = ("mmlu_a", "mmlu_b", "mmlu_c")) -> dict:
    """A file of MMLU in small: three tasks in two groups of a group."""
    own = {"acc,none": 0.5, "acc_stderr,none": error}
    document = result("org/a")
    document["results"] = {"mmlu": own, "mmlu_x": own} | {
        task: {"acc,none": 0.1 * place, "acc_stderr,none": 0.01} for place, task in enumerate(tasks)
    }
    document["groups"] = {"mmlu": own, "mmlu_x": own}
    document["group_subtasks"] = {"mmlu": ["mmlu_x", tasks[2]], "mmlu_x": list(tasks[:2])}
    document["n-shot"] = {"mmlu": 0} | dict.fromkeys(tasks, 5)
    document["n-samples"] = {task: {"effective": 10} for task in tasks}
    document["higher_is_better"] = {task: {"acc": True} for task in tasks}
    return document


def test_a_group_of_like_tasks_is_one_benchmark(tmp_path):
    put(tmp_path / "a.json", group())
    (row,) = read(tmp_path)[0].itertuples()
    assert (row.benchmark, row.value, row.stderr, row.num_fewshot, row.n_items) == ("mmlu", 0.5, 0.003, 5, 30)
    assert row.higher_is_better
    assert sorted(read(tmp_path, groups="split")[0]["benchmark"]) == ["mmlu_a", "mmlu_b", "mmlu_c"]


@pytest.mark.parametrize("document", [group("N/A"), group(tasks=("mmlu_a", "piqa", "sciq"))])
def test_a_group_without_an_error_or_of_unlike_tasks_is_its_tasks(tmp_path, document):
    put(tmp_path / "a.json", document)
    assert len(read(tmp_path)[0]) == 3


def test_standard_errors_from_numbers_of_items(tmp_path):
    put(
        tmp_path / "a.csv",
        "model,benchmark,metric,value,n_items\na,x,acc,0.2,101\na,y,perplexity,0.2,100\na,z,acc,0.2,\n",
    )
    scores, _ = read(tmp_path / "a.csv", errors_from_items=True)
    assert scores.set_index("benchmark")["stderr"].fillna(0).to_dict() == pytest.approx({"x": 0.04, "y": 0, "z": 0})
    assert read(tmp_path / "a.csv")[0]["stderr"].isna().all()
    put(tmp_path / "b.csv", "model,benchmark,metric,value,n_items,stderr\na,x,acc,0.2,101,\na,y,acc,0.5,101,0.1\n")
    for errors in ({"x": 0.04, "y": 0.1}, {"x": 0, "y": 0.1}):  # an error that a file has stays
        rows = {("errors", name): "from items" for name in "xy" if errors["x"] or name == "y"}
        scores, _ = read(tmp_path / "b.csv", corrections=rows)
        assert scores.set_index("benchmark")["stderr"].fillna(0).to_dict() == pytest.approx(errors)


def test_what_a_file_leaves_open_is_filled_in(tmp_path):
    document = evaluation("m", 0.5) | {"source_metadata": {"additional_details": {"lm_validity_iteration": "5"}}}
    put(tmp_path / "e.json", document)
    row = read(tmp_path)[0].iloc[0]
    assert (row["protocol"], row["split"], row["prompt"], row["iteration"]) == ("direct", "test", "plain", 5)


ODD = {
    "model": ["", "  ", " a", "a\x1b[1m", "a\x00", "a\ufffe", "a\nb", "a\u2028b"],
    "benchmark": ["", "\t", "quiz\x07"],
    "protocol": ["nonsense"],
    "checkpoint": ["step\x001"],
    "value": [5e300, float("inf")],
    "stderr": [-0.1, 1e300],
    "n_items": [-1, 0],
    "num_fewshot": [-5],
    "iteration": [-1],
    "tokens_b": [-1.0],
}


@pytest.mark.parametrize(("column", "value"), [(column, value) for column, values in ODD.items() for value in values])
def test_a_value_that_its_column_cannot_have_is_refused_in_tables_and_in_files(tmp_path, column, value):
    row = {"model": "m", "benchmark": "b", "protocol": "direct", "value": 0.5, "metric": "acc,none"}
    write_table(pd.DataFrame([row, row | {"model": "n", column: value}]), SCORES, tmp_path / "scores.parquet")
    with pytest.raises(InputError, match=f"row 1, column '{column}'"):
        read_scores(tmp_path / "scores.parquet")
    own = {"benchmark", "checkpoint", "protocol", "iteration", "tokens_b", "num_fewshot"}
    document = evaluation("m", 0.5)
    result = document["evaluation_results"][0]
    if column == "model":
        document["model_info"]["id"] = value
    elif column in ("value", "stderr", "n_items"):
        detail = {"value": ("score", value), "stderr": ("uncertainty", {"standard_error": {"value": value}})}
        name, given = detail.get(column, ("uncertainty", {"num_samples": value}))
        result["score_details"][name] = given
    elif column in own:
        place = result["metric_config"] if column in ("benchmark", "num_fewshot") else document
        name = "num_fewshot" if column == "num_fewshot" else f"lm_validity_{column}"
        place = place if place is not document else place.setdefault("source_metadata", {})
        place["additional_details"] = {name: value if isinstance(value, str) else str(value)}
    put(tmp_path / "e.json", json.dumps(document))
    if (column, value) == ("n_items", 0):  # what some converters write for unknown
        assert pd.isna(read(tmp_path / "e.json")[0]["n_items"][0])
        return
    if (column, value) == ("benchmark", ""):  # the evaluation's own name counts
        assert list(read(tmp_path / "e.json")[0]["benchmark"]) == [result["evaluation_name"]]
        return
    with pytest.raises(InputError, match=r"e\.json|no scores"):
        read(tmp_path / "e.json")


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_gzipped_files_are_called_as_they_were_given(tmp_path, ending):
    """What is unpacked lies in a temporary folder, whose name is nobody's model and in no message."""
    for model in ("wren-1b", "finch-2b"):
        (tmp_path / "in" / model).mkdir(parents=True)
        packed = gzip.compress(b"benchmark,score\ncoins,0.5\ntides,0.6\n")
        (tmp_path / "in" / model / "scores.csv.gz").write_bytes(packed)
    options = options_of(path=f"{{model}}/scores.{ending}", format="csv")
    scores, _ = import_files([tmp_path / "in"], tmp_path / "out", options)
    assert set(scores["model"]) == {"wren-1b", "finch-2b"} and len(scores) == 4
    (tmp_path / "in" / "wren-1b" / "more.csv.gz").write_bytes(gzip.compress(b"coins\n"))
    _, log = import_files([tmp_path / "in"], tmp_path / "again", options)
    assert [path for path, _ in log.skipped] == [str(tmp_path / "in" / "wren-1b" / "more.csv.gz")]
    named = tmp_path / "in" / "wren-1b" / "scores.csv.gz"
    scores, _ = import_files([named], tmp_path / "named", options_of(names={named: "a"}))
    assert set(scores["model"]) == {"a"}


def test_of_a_gzipped_file_that_is_cut_nothing_counts(tmp_path):
    """What could be unpacked of it, whole lines, is not read as if it were all."""
    (tmp_path / "in").mkdir()
    lines = [f'{{"model": "ant-{row}b", "coins": 0.{row}, "tides": 0.5}}\n' for row in range(1000, 6000)]
    packed = gzip.compress("".join(lines).encode())
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "in" / "b.jsonl.gz").write_bytes(gzip.compress(lines[0].encode()))
    scores, log = import_files([tmp_path / "in"], tmp_path / "out")
    assert set(scores["model"]) == {"ant-1000b"}
    assert [path for path, _ in log.skipped] == [str(tmp_path / "in" / "a.jsonl.gz")]


def test_a_small_gzip_file_of_a_large_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("lm_validity.config.rows._LARGEST", 1000)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"model,b\na," + b"0" * 2000))
    with pytest.raises(InputError, match="more than"):
        read(tmp_path / "b.csv.gz")


@pytest.mark.parametrize("ending", [".html", ".ipynb", ".XLSX"])
def test_tables_of_other_kinds_are_refused_with_a_way_of_their_own(tmp_path, ending):
    path = tmp_path / f"table{ending}"
    path.write_text("{}")
    with pytest.raises(InputError, match=re.escape(f"{ending} is of no known format")) as refused:
        import_files([path], tmp_path / "out")
    assert "CSV" in refused.value.hint.upper() and "--format" not in refused.value.hint


def test_the_line_for_a_table_of_latex_makes_one_that_is_read(tmp_path):
    path = tmp_path / "t.tex"
    rows = (
        r"\toprule"
        "\n"
        r"Model & Tidal & Ledger \\ \midrule"
        "\n"
        r"\textbf{Ant 1B} \cite{ant} & 41.2 & \textbf{55} \\"
    )
    path.write_text(rows + "\n" + r"\hline Bee & 43.2$_{\pm 0.3}$ & -- \\[2pt]" "\n")
    with pytest.raises(InputError) as refused:
        import_files([path], tmp_path / "out")
    subprocess.run(refused.value.hint.split(", and")[0], shell=True, check=True, cwd=tmp_path)
    scores = import_files([tmp_path / "scores.tsv"], tmp_path / "out").scores
    assert set(zip(scores["model"], scores["benchmark"], scores["value"].round(9), strict=True)) == {
        ("Ant 1B", "Tidal", 0.412),
        ("Ant 1B", "Ledger", 0.55),
        ("Bee", "Tidal", 0.432),
    }
