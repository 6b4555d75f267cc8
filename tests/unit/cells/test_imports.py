"""Seconds of imports, where thousands of jobs find their cells in the store: what needs no model imports no torch."""

import subprocess
import sys

import pytest
from toy_run import run_all, start_run

from lm_validity.cells import runner


@pytest.mark.parametrize(
    ("modules", "left_out"),
    [
        (("runner",), {"torch", "huggingface_hub", "pandas"}),  # selections, and jobs that are finished
        (("models.prefetch", "tasks.splits", "trials.data"), {"torch", "peft"}),  # the login node
    ],
)
def test_steps_without_a_model_import_no_torch(modules, left_out):
    code = f"import sys, {', '.join(f'lm_validity.cells.{name}' for name in modules)}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not left_out & set(found.stdout.split())


def test_a_job_whose_cells_are_in_the_store_makes_no_worker(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    workspace = start_run(tmp_path, finetuning={"epochs": 1})
    run_all(workspace, "finetune_adapter")
    (manifest,) = (workspace.run.results / "cells" / "finetune_adapter" / "m").iterdir()
    before = manifest.read_bytes()
    manifest.unlink()
    monkeypatch.setattr(runner, "resolve_name", None)
    run_all(workspace, "finetune_adapter")
    assert manifest.read_bytes() == before
