"""What is the same for all formats: which one a file has, names from paths, protocols, groups, scores in conflict."""

import gzip
import json

import pandas as pd
import pytest
from tests.unit.tables.conftest import put, read_files
from typer.testing import CliRunner

from lm_validity.cli import reports
from lm_validity.errors import InputError
from lm_validity.files import replaced_folder
from lm_validity.tables.counted import report_rows
from lm_validity.tables.formats.engine import checked
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.formats.score_files import ImportLog, ImportOptions, model_place
from lm_validity.tables.schema import SCORES, read_scores, write_table


def result(model: str, accuracy: float = 0.5, task: str = "quiz", arguments: str = "", **more) -> dict:
    config = {"model_args": f"pretrained={model}{arguments}"}
    return {"results": {task: {"acc,none": accuracy, "acc_stderr,none": 0.01}}, "config": config, **more}


def evaluation(model: str, value: float) -> dict:
    metric = {"metric_id": "acc", "lower_is_better": False}
    one = {"evaluation_name": "quiz", "metric_config": metric, "score_details": {"score": value}}
    return {"schema_version": "0.2.0", "model_info": {"id": model}, "evaluation_results": [one]}


def read(folder, **options) -> tuple[pd.DataFrame, ImportLog]:
    log = ImportLog()
    return read_files([folder], ImportOptions(**options), log), log


def test_a_folder_of_several_formats(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json.gz").write_bytes(gzip.compress(json.dumps(result("org/a", 0.1)).encode()))
    put(tmp_path / "in" / "b.json", evaluation("org/b", 0.2))
    put(tmp_path / "in" / "c.csv", "model,benchmark,acc\norg/c,quiz,0.3\n")
    put(tmp_path / "in" / "config.json", {"architectures": []})
    scores, log = import_files([tmp_path / "in"], tmp_path / "out")
    assert scores.set_index("model")["value"].to_dict() == {"org/a": 0.1, "org/b": 0.2, "org/c": 0.3}
    assert log.formats == {"lm-eval": 1, "every_eval_ever": 1, "table": 1} and len(log.skipped) == 1
    written = json.loads((tmp_path / "out" / "import.json").read_text())
    assert written["formats"] == dict(log.formats) and scores["source"].tolist() == [
        "lm-eval",
        "every_eval_ever",
        "table",
    ]


def test_what_commands_wrote_of_results_is_no_result(tmp_path):
    """A page among the results it is of: its tables are not read again. An export's files are results."""
    put(tmp_path / "in" / "a.json", result("org/a", 0.1))
    with replaced_folder(tmp_path / "in" / "page", "report") as page:
        write_table(read(tmp_path / "in")[0].assign(model="org/old"), SCORES, page / "scores.parquet")
        put(page / "data" / "tables" / "models.csv", "model,quiz\norg/b,0.2\n")
    put(tmp_path / "in" / "page" / "mine.csv", "model,benchmark,acc\norg/c,quiz,0.3\n")  # of another
    with replaced_folder(tmp_path / "in" / "files", "export every-eval-ever") as files:
        put(files / "d.json", result("org/d", 0.4))
    scores, log = read(tmp_path / "in")
    assert scores.set_index("model")["value"].to_dict() == {"org/a": 0.1, "org/c": 0.3, "org/d": 0.4}
    assert any("page/scores.parquet" in line for line in log.notes)
    (tmp_path / "in" / "page" / "mine.csv").unlink()
    scores, _ = read(tmp_path / "in" / "page")  # alone it is the table that it holds
    assert scores.set_index("model")["value"].to_dict() == {"org/old": 0.1}


def test_a_table_says_sizes_and_families_of_its_models(tmp_path):
    put(tmp_path / "a.csv", "model,x,params_b,family\nant,0.5,7,F\nbee,0.6,,G\ncat,0.7,13,\n")
    _, log = read(tmp_path, columns="model=model, benchmark=*, score=x")
    sizes = {"ant": {"parameters_b": 7.0, "family": "F"}, "bee": {"family": "G"}, "cat": {"parameters_b": 13.0}}
    assert log.facts == sizes


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
    assert (place.name, place.point["checkpoint"]) == meant
    assert place.point["iteration"] == (int(digits) if digits else None)


def test_a_newer_run_of_the_same_weights_counts(tmp_path):
    put(tmp_path / "old.json", result("/x/a/", 0.1, date=1.0))
    put(tmp_path / "new.json", result("/x/a", 0.2, date=2.0, arguments=",device=cuda"))
    scores, log = read(tmp_path)
    assert scores["value"].tolist() == [0.2] and len(log.repeated) == 1
    for name, value in (("2024-01-01", 0.3), ("2024-01-02", 0.4)):  # the date in the name, where the file has none
        put(tmp_path / f"a_results_{name}.json", result("/x/a", value))
    assert read(tmp_path)[0]["value"].tolist() == [0.4]


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
    done = CliRunner().invoke(reports.imports, [*command, str(tmp_path / "out"), "--prepared-on", "others"])
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


@pytest.mark.parametrize("document", [group("N/A"), group(tasks=("mmlu_a", "piqa", "sciq"))])
def test_a_group_without_an_error_or_of_unlike_tasks_is_its_tasks(tmp_path, document):
    put(tmp_path / "a.json", document)
    assert len(read(tmp_path)[0]) == 3


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
    with pytest.raises(InputError, match=f"^e.json, '{column}'"):
        checked(column, value, "e.json")


def test_of_a_gzipped_file_that_is_cut_nothing_counts(tmp_path):
    """What could be unpacked of it, whole lines, is not read as if it were all."""
    (tmp_path / "in").mkdir()
    lines = [f'{{"model": "ant-{row}b", "coins": 0.{row}, "tides": 0.5}}\n' for row in range(1000, 6000)]
    packed = gzip.compress("".join(lines).encode())
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "in" / "b.jsonl.gz").write_bytes(gzip.compress(lines[0].encode()))
    options = ImportOptions(columns="model=model, benchmark=*, score=coins,tides")
    scores, log = import_files([tmp_path / "in"], tmp_path / "out", options)
    assert set(scores["model"]) == {"ant-1000b"}
    assert [path for path, _ in log.skipped] == [str(tmp_path / "in" / "a.jsonl.gz")]


def test_a_small_gzip_file_of_a_large_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("lm_validity.config.rows._LARGEST", 1000)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"model,b\na," + b"0" * 2000))
    with pytest.raises(InputError, match="more than"):
        read(tmp_path / "b.csv.gz")
