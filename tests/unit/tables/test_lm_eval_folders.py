"""Folders of lm-eval's result files as real ones are: reruns, foreign and broken files, old layouts, names."""

import json
import os

import pytest
from tests.unit.tables.conftest import put
from typer.testing import CliRunner

from lm_validity.cli import reports
from lm_validity.errors import InputError
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.formats.score_files import ImportOptions, date_in
from lm_validity.tables.schema import read_scores


def result(model: str | None = "org/a", accuracy: float = 0.5, **more) -> dict:
    document = {"results": {"quiz": {"acc,none": accuracy, "acc_stderr,none": 0.01}}, **more}
    return document if model is None else document | {"model_name": model}


@pytest.fixture
def imported(tmp_path):
    """Imports a folder of the files given; the scores as read back, and the log."""

    def make(files: dict, strict: bool = False, names: dict | None = None):
        for name, content in files.items():
            put(tmp_path / "in" / name, content)
        names = {(tmp_path / "in" / path).resolve(): name for path, name in (names or {}).items()}
        _, log = import_files([tmp_path / "in"], tmp_path / "out", ImportOptions(strict=strict, names=names or {}))
        return read_scores(tmp_path / "out" / "scores.parquet"), log

    return make


def refused(tmp_path, imported, files: dict, words: str, **options) -> None:
    with pytest.raises(InputError, match=words):
        imported(files, **options)
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


def test_dates_in_names():
    known = date_in("results_2024-11-26T10-47-32.305387")
    assert known == pytest.approx(1732618052.305387)
    assert date_in("a_2022-07-13-11-29-13") == date_in("2022-07-13T11:29:13") < known
    assert date_in("2024-11-26") == date_in("x2024-11-26_00-00") and date_in("2024-13-45") is None
    assert date_in("v1.1_step1000") is None and date_in("12024-11-26") is None


FOREIGN = {
    "org__a/results.json": result(),
    "org__a/config.json": {"architectures": ["Llama"]},
    "org__a/broken.json": '{"results": {"quiz": {"acc,none": 0.',
    "org__a/list.json": [1, 2],
    "org__a/wrong.json": result(accuracy="high"),
    "README.md": "# results",
    "plot.py": "",
    ".cache/results.json": result(accuracy=0.9),
}


def test_foreign_and_broken_files_are_listed_and_skipped(imported, tmp_path):
    scores, log = imported(FOREIGN)
    assert scores["value"].tolist() == [0.5]
    assert {os.path.basename(path) for path, _ in log.skipped} == {
        "config.json", "broken.json", "list.json", "wrong.json",
    }  # fmt: skip
    assert dict(log.other_files) == {".md": 1, ".py": 1}
    written = json.loads((tmp_path / "out" / "import.json").read_text())
    assert written["models"] == ["org/a"] and len(written["skipped"]) == 4


@pytest.mark.parametrize("results", [[], {}, {"quiz": 5}, {"quiz": {}}])
def test_a_file_without_any_metric_is_skipped(imported, results):
    _, log = imported({"a.json": result(), "b.json": result("org/b") | {"results": results}})
    assert log.files == 1 and [os.path.basename(path) for path, _ in log.skipped] == ["b.json"]


def test_strict_refuses_what_would_be_left_out(imported, tmp_path):
    refused(tmp_path, imported, FOREIGN, "none of its|no table|columns of", strict=True)


def test_a_broken_file_that_was_named_is_refused(tmp_path):
    put(tmp_path / "good.json", result())
    put(tmp_path / "broken.json", "{")
    with pytest.raises(InputError, match=r"broken\.json: cannot be read"):
        import_files([tmp_path / "good.json", tmp_path / "broken.json"], tmp_path / "out")
    with pytest.raises(InputError, match="no such file or folder"):
        import_files([tmp_path / "absent"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_folders_name_models_whose_files_do_not(imported, tmp_path):
    files = {"org__a/results.json": result(None), "b/more/results.json": result(None, 0.6)}
    scores, _ = imported(files)
    assert scores.set_index("model")["value"].to_dict() == {"org/a": 0.5, "more": 0.6}
    with pytest.raises(InputError, match="the model"):  # a file that was named itself
        import_files([tmp_path / "in" / "b" / "more" / "results.json"], tmp_path / "other")


def test_two_folders_of_one_name_are_two_models(imported, tmp_path):
    files = {"x/eval/results.json": result(None), "y/eval/results.json": result(None, 0.6)}
    refused(tmp_path, imported, files, "two different models are called eval: folder")
    scores, _ = imported({}, names={"x": "one", "y/eval/results.json": "two"})
    assert scores.set_index("model")["value"].to_dict() == {"one": 0.5, "two": 0.6}


@pytest.mark.parametrize(
    "other",
    [
        {"config": {"model_num_parameters": 7}},
        {"config": {"model_args": "pretrained=org/a,load_in_4bit=True", "model_num_parameters": 6}},
    ],
)
def test_two_different_models_under_one_name_are_refused(other, imported, tmp_path):
    files = {"a.json": result(config={"model_num_parameters": 6}), "b.json": result(accuracy=0.1, **other)}
    refused(tmp_path, imported, files, "two different models are called org/a")
    scores, _ = imported({}, names={"b.json": "org/b"})
    assert sorted(scores["model"]) == ["org/a", "org/b"]


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"model": "hf", "model_args": "pretrained=org/a,peft=me/adapter"}, "me/adapter"),
        ({"model": "org/b", "num_fewshot": 25}, "org/b"),  # a hub id in place of the kind of model
    ],
)
def test_an_adapter_has_a_name_of_its_own(imported, config, name):
    scores, _ = imported({"a.json": result(None, config=config)})
    assert scores["model"].tolist() == [name]


def test_a_step_in_the_name_of_a_file_without_a_revision(imported):
    config = {"model_args": "pretrained=org/a"}
    files = {"a_global_step500_2022-07-13-11-29-13.json": result(None, config=config)}
    files["a.json"] = result(None, 0.6, config=config)
    scores, _ = imported(files)
    assert scores.set_index("checkpoint")["value"].to_dict() == {"step500": 0.5, "final": 0.6}
    assert scores["iteration"].dropna().tolist() == [500]


def test_the_command_prints_a_summary_and_names_models(tmp_path):
    put(tmp_path / "in/x/results.json", result(None))
    put(tmp_path / "in/y.json", {})
    command = [str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--model", f"{tmp_path}/in/x=org/x"]
    done = CliRunner().invoke(reports.imports, command)
    assert done.exit_code == 0 and "1 score" in done.output and "y.json" in done.output
    assert read_scores(tmp_path / "out" / "scores.parquet")["model"].tolist() == ["org/x"]
    for wrong in ("org/x", "=x", f"{tmp_path}/absent=x"):
        done = CliRunner().invoke(reports.imports, [*command[:-1], wrong])
        assert isinstance(done.exception, InputError)


def test_files_that_no_table_can_hold_are_skipped(imported, tmp_path):
    """Half of a surrogate pair, bytes that are no text, numbers that are too large."""
    put(tmp_path / "in" / "half.json", '{"results": {"quiz": {"acc": 0.5}}, "model_name": "\\ud83d"}')
    put(tmp_path / "in" / "whole.json", '{"results": {"quiz": {"acc": 0.5}}, "model_name": "\\ud83d\\ude00"}')
    (tmp_path / "in" / "bytes.json").write_bytes(b'{"results": \xff}')
    put(tmp_path / "in" / "large.json", result("b", **{"n-shot": {"quiz": 10**30}}))
    put(tmp_path / "in" / "LICENSE", "a text")
    config = {"model_args": f"revision=step{10**20}"}
    scores, log = imported({"many.json": result("c", config=config)})
    assert sorted(os.path.basename(path) for path, _ in log.skipped) == ["bytes.json", "half.json", "large.json"]
    assert scores.set_index("model")["iteration"].isna().to_dict() == {"\U0001f600": True, "c": True}
    assert dict(log.other_files) == {"LICENSE": 1}
