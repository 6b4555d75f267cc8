"""What a run was computed from: which records are of other files now, and whose a results folder is."""

import os
import shutil
from pathlib import Path

import pytest

from lm_validity.config.load import build_run
from lm_validity.config.rows import Sheets
from lm_validity.errors import InputError
from lm_validity.files import read_json, write_json, write_text
from lm_validity.run.inputs import STUDY, changes, check_study, note_changes, note_of, own_files, states_of, study_of
from lm_validity.run.scoring import task_sources

LARGE = 10**12  # bytes: known by size, times and inode, and never read


@pytest.fixture
def run(tmp_path, monkeypatch):
    """One model behind a link with a checkpoint and an adapter, one task, a corpus, each recorded."""
    monkeypatch.chdir(tmp_path)
    task_sources.cache_clear()
    for folder in ("v1", "v1/early", "v2", "adapter", "tasks"):
        (tmp_path / folder).mkdir()
    for folder in ("v1", "v2"):
        (tmp_path / folder / "config.json").write_text("{}")
        with open(tmp_path / folder / "model.safetensors", "wb") as weights:
            weights.truncate(LARGE)
    Path("v1/early/model.safetensors").write_bytes(b"early")
    Path("adapter/adapter_config.json").write_text("{}")
    Path("latest").symlink_to("v1")
    Path("tasks/own.yaml").write_text("task: own")
    Path("corpus.jsonl").write_text("{}")
    Path("points.tsv").write_text("checkpoint\titeration\tsubfolder\nearly\t1\tearly\n")
    Path("models.tsv").write_text("model\tpath\tadapter\tcheckpoints\nm\tlatest\tadapter\tpoints.tsv\n")
    Path("benchmarks.tsv").write_text("benchmark\tinclude_path\tcorpus\nown\ttasks\t\ntexts\t\tcorpus.jsonl\n")
    values = {"name": "r", "models": "models.tsv", "benchmarks": "benchmarks.tsv", "studies": ["signal"]}
    made = build_run(values, "f.yaml")
    record(made)
    return made


def record(run) -> None:
    for kind, names in (("models", run.models), ("benchmarks", run.benchmarks)):
        for name in names:
            path = run.results / "prefetch" / kind / f"{name}.json"
            write_json(path, {"sources": states_of(own_files(run, kind, name))})


def in_place(path: str, content: bytes) -> None:
    """Other bytes at the end of a file under the same size and time."""
    before = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(-len(content), os.SEEK_END)
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def relink() -> None:
    Path("latest").unlink()
    Path("latest").symlink_to("v2")


CHANGES = {
    "a link": (relink, "latest/model.safetensors"),
    "large weights in place": (lambda: in_place("v1/model.safetensors", b"x"), "latest/model.safetensors"),
    "a checkpoint in place": (lambda: in_place("v1/early/model.safetensors", b"x"), "latest/early/model.safetensors"),
    "an adapter": (lambda: in_place("adapter/adapter_config.json", b"[]"), "adapter/adapter_config.json"),
    "a file that is new": (lambda: write_text("v1/chat_template.jinja", ""), "latest/chat_template.jinja"),
    "a file that is gone": (lambda: Path("v1/config.json").unlink(), "latest/config.json"),
    "a task": (lambda: in_place("tasks/own.yaml", b"two"), "tasks/own.yaml"),
    "code of a task": (lambda: write_text("tasks/utils.py", "x = 1"), "tasks/utils.py"),
    "a corpus": (lambda: in_place("corpus.jsonl", b"[]"), "corpus.jsonl"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_another_thing_now_is_found_whatever_its_time(run, what):
    assert changes(run) == []
    change, path = CHANGES[what]
    change()
    task_sources.cache_clear()
    (found,) = changes(run)
    assert found.path == path and path in found.describe()


def test_a_model_of_another_path_than_was_recorded_is_found(run):
    """As where two paths of the sheet were exchanged: each model's cells would be taken for the other's."""
    run.models["m"] = run.models["m"].model_copy(update={"path": "./v2"})
    assert [(change.kind, change.name) for change in changes(run)] == [("models", "m")]


def test_the_same_content_is_no_change(run):
    """Of small files; large ones are read again where anything of them is new."""
    for path in ("v1/config.json", "tasks/own.yaml", "corpus.jsonl"):
        shutil.copy(path, "copy")
        os.replace("copy", path)
    assert changes(run) == []


def test_a_note_is_newer_than_its_record_until_that_is_written_again(run):
    in_place("corpus.jsonl", b"[]")
    note, record_path = note_of(run.results, "benchmarks", "texts"), run.results / "prefetch/benchmarks/texts.json"
    for _ in range(2):
        assert [change.name for change in note_changes(run)] == ["texts"]
        assert note.stat().st_mtime_ns > record_path.stat().st_mtime_ns
    written = note.stat().st_mtime_ns
    note_changes(run)
    assert note.stat().st_mtime_ns == written
    record(run)
    assert note_changes(run) == []
    in_place("corpus.jsonl", b"{}")
    note_changes(run)
    assert note.stat().st_mtime_ns > record_path.stat().st_mtime_ns


def test_a_branch_of_the_hub_that_went_on_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("models.tsv").write_text("model\tpath\nm\towner/name\n")
    Path("benchmarks.tsv").write_text("benchmark\nx\n")
    values = {"name": "r", "models": "models.tsv", "benchmarks": "benchmarks.tsv", "studies": ["signal"]}
    run = build_run(values, "f.yaml")
    hub = tmp_path / "models--owner--name"
    write_text(hub / "refs/main", "a1")
    final = {"path": str(hub / "snapshots/a1"), "revision": "a1"}
    write_json(run.results / "prefetch/models/m.json", {"checkpoints": {"final": final}, "sources": {}})
    assert changes(run) == []
    write_text(hub / "refs/main", "b2")
    assert [change.name for change in changes(run)] == ["m"]


def test_the_results_of_another_study_are_refused_with_the_key(run):
    def study(file: str, **values):
        made = build_run({"name": "r", "models": "models.tsv", "benchmarks": "benchmarks.tsv", **values}, file)
        sheets = Sheets()
        sheets.text("models.tsv")
        return study_of(made, file, sheets)

    with pytest.raises(InputError, match="another version"):
        (run.results / "store").mkdir(parents=True)
        check_study(run.results, study("a.yaml"))
    write_json(run.results / STUDY, study("a.yaml"))
    check_study(run.results, study("a.yaml", finetuning={"epochs": 2}))  # edited
    check_study(run.results, study("moved/a.yaml"))
    with pytest.raises(InputError, match=r"another study, .*a\.yaml; 'finetuning' is another here") as refused:
        check_study(run.results, study("b.yaml", finetuning={"epochs": 2}))
    assert "`name`" in refused.value.hint
    Path("models.tsv").write_text("model\tpath\nm\tv2\n")
    with pytest.raises(InputError, match=r"'models\.tsv' is another here"):
        check_study(run.results, study("b.yaml"))
    write_json(run.results / STUDY, read_json(run.results / STUDY) | {"format": 0})
    with pytest.raises(InputError, match="another version"):
        check_study(run.results, study("a.yaml"))
