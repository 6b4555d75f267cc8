"""Results that must not be used: of another recipe, as after a sheet was edited for a moment, or damaged."""

import errno
import os
import shutil
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from tests.unit.monitor.test_status import ONE

from lm_validity.cells.runner import run_job
from lm_validity.cli import jobs, study
from lm_validity.cli.options import report_folders
from lm_validity.config.load import Run, load_run, planned_sheets
from lm_validity.errors import InputError
from lm_validity.files import write_json
from lm_validity.monitor.check import damaged_outputs, record_problems
from lm_validity.monitor.render import render_stale
from lm_validity.monitor.status import RunState
from lm_validity.run.cell import BenchmarkCell, label
from lm_validity.run.store import is_stale
from lm_validity.run.workspace import Workspace
from lm_validity.tables.merge import Merger
from lm_validity.words import headlines

CONFIG = Path("replay/replay.yaml")
SCORE = BenchmarkCell("evaluate_adapter", "oak-m", "riddles", seed=0)


@pytest.fixture
def wrong(built) -> Run:
    """The fine-tune beneath a score was computed in another precision, and its manifest and the selection say so."""
    workspace = Workspace(built)
    store, right = workspace.store, workspace.address(ONE)
    record = store.read(right)
    other = store.address(ONE, record["recipe"] | {"dtype": "float16"})
    store.commit(other, record["result"], {}, lambda folder: None)
    for rule in ("finetune_adapter", "select_adapter"):
        for path in (built.results / "cells" / rule / "oak-m").glob("*.json"):
            path.write_text(path.read_text().replace(right.folder, other.folder))
    return built


def test_no_table_is_made_from_it(wrong):
    with pytest.raises(InputError, match=label(ONE)):
        Merger(wrong).write_scores(Path("tables"))
    partial = Merger(wrong, partial=True)
    partial.write_scores(Path("tables"))
    scores = pd.read_parquet("tables/scores.parquet")
    assert {one.cell for one in partial.missing} == {SCORE, SCORE._replace(rule="select_adapter")}
    assert len(scores[scores.model.eq("oak-m") & scores.protocol.eq("train_before_test")]) == 2


@pytest.mark.parametrize("gone", ["select_adapter/oak-m", "finetune_adapter/oak-m"])
def test_a_partial_table_has_the_rest_where_a_score_stands_on_what_is_not_there(built, gone):
    """As after preflight: the score's own manifest is there, the choice or the fine-tune below it is not."""
    folder = built.results / ("cells" if gone.startswith("select") else "store") / gone
    shutil.rmtree(folder)
    partial = Merger(built, partial=True)
    partial.write_scores(Path("tables"))
    scores = pd.read_parquet("tables/scores.parquet")
    absent = {one.cell for one in partial.missing if one.cell.rule == "evaluate_adapter"}
    assert SCORE in absent and {cell.model for cell in absent} == {"oak-m"}
    assert set(scores[scores.protocol.eq("train_before_test")].model) == set(scores.model) - {"oak-m"}


@pytest.mark.parametrize("command", ["check_cells", "preflight"])
def test_it_is_named_and_computed_again(wrong, capsys, command):
    if command == "check_cells":
        with pytest.raises(SystemExit) as end:
            jobs.check_cells(CONFIG, output=Path("check.json"))
        assert end.value.code == 1 and not Path("check.json").exists()
        assert f"{label(ONE)}: dtype float16 -> bfloat16" in capsys.readouterr().out
    else:
        study.preflight(CONFIG, fast=True)
    for rule in ("finetune_adapter", "select_adapter"):  # as Snakemake does: one is gone, the other depends on it
        for job in Workspace(wrong).grid.jobs.values():
            workspace = Workspace(wrong)
            gone = not all(Path(path).is_file() for path in workspace.grid.manifests(job))
            assert not gone or job.rule == "finetune_adapter"
            if job.rule == rule and (gone or rule == "select_adapter"):
                run_job(workspace, job)
    Merger(wrong).write_scores(Path("tables"))


def test_a_damaged_cell_that_no_manifest_lists_is_noticed(built, capsys):
    """Its manifest is gone too: a job does not list it as done, and preflight removes it."""
    (job,) = [job for job in Workspace(built).grid.jobs.values() if ONE in job.cells]
    (manifest,) = Workspace(built).grid.manifests(job)
    whole = Path(manifest).read_text()
    folder = built.results / "store" / Workspace(built).address(ONE).folder
    Path(manifest).unlink()
    os.truncate(folder / "cell.json", 10)
    with pytest.raises(InputError, match="missing or damaged"):
        run_job(Workspace(built), job)
    assert study.preflight(CONFIG) == 1
    assert f"{label(ONE)}--" in capsys.readouterr().out and not folder.exists()
    run_job(Workspace(built), job)
    assert study.preflight(CONFIG) == 0
    assert Path(manifest).read_text() == whole


def test_cells_that_are_gone_from_the_store_are_named_where_no_job_computes_them(built):
    """A store that was not copied with the rest: Snakemake sees the manifests, and has nothing to do."""
    assert not render_stale(RunState(built), [], "own.yaml")
    records = (built.results / "prefetch").rename("elsewhere")
    assert "gone" not in render_stale(RunState(built), [], "own.yaml")  # what is not known is no cell that is gone
    records.rename(built.results / "prefetch")
    shutil.rmtree(built.results / "store")
    grid = Workspace(built).grid
    stored = Counter(cell.rule for cell in grid.cells() if not cell.rule.startswith("select"))
    said = render_stale(RunState(built), [], "own.yaml")
    assert "preflight --configfile own.yaml" in said and len(stored) == 3
    assert all(f"{rule}: {number}" in said for rule, number in stored.items())
    assert not render_stale(RunState(built), grid.jobs.values(), "own.yaml")


@pytest.mark.parametrize(("reason", "way"), [(errno.ENOSPC, "free some space"), (errno.EROFS, "get the right")])
def test_a_full_disk_is_noticed(built, capsys, monkeypatch, reason, way):
    def fail(handle: int) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(os, "fsync", fail)
    assert study.preflight(CONFIG, fast=True) == 1
    said = capsys.readouterr().out
    assert f"{built.results}: no file can be written" in said and way in said


def test_a_store_in_which_nobody_may_write_is_noticed(built, capsys, monkeypatch):
    """Also as root, whom no mode of a folder keeps out, but a disk that is mounted to be read."""
    closed = [built.results / "store", built.results / "store" / "evaluate_model" / "oak-m"]
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **more: Path(path) not in closed and may(path, mode, **more))
    assert study.preflight(CONFIG, fast=True) == 1
    said = capsys.readouterr().out
    assert f"{closed[0]}: no file can be written there" in said and said.count("written") == 1


def test_what_cannot_be_removed_is_named_with_all_the_rest_and_not_called_removed(wrong, capsys, monkeypatch):
    """A run of somebody else: preflight ended at the first one, and had perhaps removed manifests without a word."""
    manifests = sorted((wrong.results / "cells").glob("*/*/*.json"))
    cut = next(path for path in manifests if "evaluate_model" in str(path))
    outdated = Path(Workspace(wrong).grid.manifest_of(ONE))
    cut.write_text("{")
    folder = next((wrong.results / "store" / "evaluate_model").glob("*/*"))
    os.truncate(folder / "cell.json", 10)

    def refuse(*paths: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "refused")

    with monkeypatch.context() as closed:
        closed.setattr(Path, "unlink", refuse)
        closed.setattr(os, "rename", refuse)
        assert study.preflight(CONFIG) == 1
        said = capsys.readouterr().out.splitlines()
        closed.setattr(os, "access", lambda path, mode, **more: Path(path) != folder.parent)
        with pytest.raises(InputError, match="nothing was forgotten"):
            study.forget(["evaluate_model/*"], CONFIG)
    assert sorted((wrong.results / "cells").glob("*/*/*.json")) == manifests and folder.exists()
    for path in (cut, outdated, folder.relative_to(wrong.results / "store")):
        assert [line for line in said if line.startswith(f"{path}: ") and "not removed (refused)" in line], path
    assert study.preflight(CONFIG) == 1 and not cut.exists() and not folder.exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tables/scores.parquet", "lm-validity merge"),
        ("splits/riddles/test.json", "lm-validity split-benchmark --benchmark riddles"),
        ("splits/riddles/documents.parquet", "lm-validity split-benchmark --benchmark riddles"),
        ("sheets.json", "delete it"),
        ("reports/agreement/page.json", "delete the folder results/replay/reports/agreement"),
    ],
)
@pytest.mark.parametrize("left", [0.0, 0.5])
def test_a_cut_file_that_the_workflow_takes_for_finished_is_named(built, name, said, left):
    """Snakemake sees a file and its time: a table of half its bytes failed every later run, with a hint that led
    nowhere."""
    path = built.results / name
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = Path("whole.parquet")
    pd.DataFrame({"value": range(100)}).to_parquet(whole)
    content = whole.read_bytes() if path.suffix == ".parquet" else b'{"documents": [1, 2, 3], "digest": ""}'
    draft = path.with_name(f".{path.name}.1.tmp")  # of a job at work
    draft.write_bytes(content[:9])
    path.write_bytes(content)
    assert not any(str(one) in str(damaged_outputs(built)) for one in (path, draft))
    path.write_bytes(content[: int(left * len(content))])
    (problem,) = (str(problem) for problem in damaged_outputs(built) if str(path) in str(problem))
    assert said in problem
    if name == "sheets.json":
        cut = built.results / "configuration.json"
        cut.write_text('{"name": "rep')
        with pytest.raises(InputError, match="Hint: a run wrote it"):
            load_run(cut)
        with pytest.raises(InputError, match=r"sheets.json: not a whole file"):
            planned_sheets(built.results / "configuration.json")
    assert path.exists()


def test_a_report_without_its_page_is_not_left_out_in_silence(built):
    folder = built.results / "reports" / "agreement"
    (folder / "results.parquet").parent.mkdir(parents=True, exist_ok=True)
    (folder / "results.parquet").touch()
    with pytest.raises(InputError, match=r"page.json: no such file"):
        report_folders(built)
    (folder / "results.parquet").unlink()
    (folder / "page.json").write_text("{")
    for read, argument in ((headlines, [folder]), (report_folders, built)):
        with pytest.raises(InputError, match=r"page.json: not a whole file.*delete"):
            read(argument)
    write_json(folder / "page.json", {"name": "agreement"})
    assert report_folders(built) == [folder]
    (folder / "results.parquet").write_bytes(b"PAR1 and no end")
    with pytest.raises(InputError, match=r"results.parquet: not a whole file"):
        report_folders(built)


def test_a_manifest_without_a_cell_of_its_job_is_none(built, capsys):
    """Copied from another model: the selections in it were looked for for ever."""
    (job,) = [job for job in Workspace(built).grid.jobs.values() if SCORE._replace(rule="select_adapter") in job.cells]
    (manifest,) = map(Path, Workspace(built).grid.manifests(job))
    whole = manifest.read_text()
    manifest.write_text((manifest.parents[1] / "oak-s" / manifest.name).read_text())
    with pytest.raises(InputError, match=f"{manifest}: riddles.seed0 is not in it"):
        Workspace(built).selection(SCORE)
    assert study.preflight(CONFIG, fast=True) == 1 and str(manifest) in capsys.readouterr().out
    assert not manifest.exists()
    run_job(Workspace(built), job)
    assert manifest.read_text() == whole and study.preflight(CONFIG, fast=True) == 0


@pytest.mark.parametrize("content", ["[]", '{"checkpoints": {"final": {}}}'])
@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("prefetch/models/oak-m.json", "prefetch-model --model oak-m"),
        ("prefetch/benchmarks/riddles.json", "prefetch-benchmark --benchmark riddles"),
        ("splits/riddles/train.json", "split-benchmark --benchmark riddles"),
    ],
)
def test_records_that_are_gone_or_no_records_are_named_with_the_command_that_writes_them(built, name, command, content):
    """Snakemake makes none of them again where what was made of it is there."""
    path = built.results / name
    assert command not in f"{record_problems(built)}{damaged_outputs(built)}"
    path.write_text(content)
    with pytest.raises(InputError, match=f"{path}: not a whole record.*{command}"):
        Workspace(built).address(ONE)
    assert command in f"{record_problems(built)}{damaged_outputs(built)}"
    path.unlink()
    (problem,) = [one for one in record_problems(built) if one.where == str(path)]
    assert command in problem.action and RunState(built).counts["finetune_adapter"]["stale"] > 0


def test_side_files_of_another_kind_hold_nothing(built):
    """Of a version to come, or written by another program: a list of failures was a traceback of every command."""
    workspace = Workspace(built)
    counts = RunState(built).counts
    lease = workspace.store.lease(workspace.address(ONE).folder)
    sidecar = workspace.store.path(workspace.address(ONE)) / "sidecar.json"
    for path in (sidecar, lease, built.results / "controller.json"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("[1]")
    for content in ('{"a": 1}', '[{"cell": {"rule": "of_2030", "model": "x"}, "error": "x", "hint": "y"}]', "[3]"):
        (built.results / "cells" / "failed.json").write_text(content)
        assert RunState(built).counts == counts
    assert workspace.store.sidecar(workspace.address(ONE).folder) == {} and not is_stale(lease)
    assert study.preflight(CONFIG, fast=True) == 0


def test_a_table_of_no_study_and_a_check_of_no_cells_are_refused(built, made_up):
    with pytest.raises(InputError, match="--only trials"):
        jobs.merge(CONFIG, only="trials")
    assert not (built.results / "tables").exists()
    Path(Workspace(built).grid.all_manifests()[0]).unlink()
    with pytest.raises(InputError, match="no such file"):
        jobs.check_cells(CONFIG, output=Path("check.json"))
    assert not Path("check.json").exists()


def test_a_study_that_grew_has_no_damaged_manifests(built, capsys):
    """A third learning rate: the manifests of its jobs list two, and Snakemake runs these jobs again."""
    CONFIG.write_text(CONFIG.read_text().replace("2e-5]", "2e-5, 5e-5]"))
    manifests = {path for path in built.results.glob("cells/*/*/*.json")}
    assert study.preflight(CONFIG, fast=True) == 0, capsys.readouterr().out
    assert {path for path in built.results.glob("cells/*/*/*.json")} == manifests
