"""A run that was replayed in this process: real manifests and a real store, without Snakemake."""

import contextlib
import shutil
from pathlib import Path

import pytest

from lm_validity.cells.runner import replayed_benchmark, replayed_model, run_job, write_replayed_splits
from lm_validity.config.load import Run, load_run
from lm_validity.config.rows import Sheets
from lm_validity.files import write_json
from lm_validity.run.inputs import STUDY, own_files, states_of, study_of
from lm_validity.run.workspace import Workspace

MADE_UP = Path(__file__).parents[2] / "workflow" / "replay"
ORDER = ("evaluate_model", "finetune_adapter", "select_prompt", "select_adapter", "evaluate_adapter")


def own(run: Run) -> None:
    """Say that the results are of the configuration here."""
    write_json(run.results / STUDY, study_of(run, "replay/replay.yaml", Sheets()))


def prefetch(run: Run) -> None:
    """What the login node and the start of a run write down."""
    own(run)
    sources = {"sources": states_of(own_files(run, "models", ""))}
    for model in run.models.values():
        write_json(run.results / "prefetch" / "models" / f"{model.model}.json", replayed_model(run, model) | sources)
    workspace = Workspace(run)
    for row in run.benchmarks.values():
        record = replayed_benchmark(run, row) | sources
        write_json(run.results / "prefetch" / "benchmarks" / f"{row.benchmark}.json", record)
        write_replayed_splits(workspace, row.benchmark)


def run_all(run: Run) -> None:
    """Every job, in the order in which they stand on each other."""
    prefetch(run)
    for rule in ORDER:
        for job in Workspace(run).grid.jobs.values():
            if job.rule == rule:
                run_job(Workspace(run), job)


@pytest.fixture
def made_up(tmp_path, monkeypatch) -> Run:
    """The made-up run of the replay tests, in a folder of its own; nothing of it computed."""
    shutil.copytree(MADE_UP, tmp_path / "replay")
    monkeypatch.chdir(tmp_path)
    return load_run("replay/replay.yaml")


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory) -> Path:
    """The folder of the same, finished; nobody changes it."""
    folder = tmp_path_factory.mktemp("finished")
    shutil.copytree(MADE_UP, folder / "replay")
    with contextlib.chdir(folder):
        run_all(load_run("replay/replay.yaml"))
    return folder


@pytest.fixture
def built(made_up, finished_once) -> Run:
    """The same, finished, in a folder of its own."""
    shutil.copytree(finished_once / "results", "results")
    own(made_up)
    return made_up
