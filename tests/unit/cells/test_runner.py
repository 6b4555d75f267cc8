"""Jobs: the adapter and prompt that are chosen on validation, scores that are served, and what is imported."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from toy_run import run_all

from lm_validity.cells import runner
from lm_validity.cells.runner import read_served, run_cells, select_adapter, select_prompt
from lm_validity.config.load import build_run
from lm_validity.errors import CellError, InputError
from lm_validity.run.cell import BenchmarkCell, Job
from lm_validity.run.workspace import Entry, Workspace, write_manifest
from lm_validity.tables.schema import SCORES, write_table

RATES = ("1e-4", "1e-3")


@pytest.fixture
def choose(tmp_path, monkeypatch):
    """A function: validation values of the direct prompts and of the fine-tunes -> the selection of one cell."""
    monkeypatch.chdir(tmp_path)
    Path("m.tsv").write_text("model\tpath\tinstruction_tuned\nm\torg/m\t1\n")

    def run(direct, tuned, better=True, failed=(), select=select_adapter):
        Path("b.tsv").write_text(f"benchmark\thigher_is_better\nx\t{int(better)}\n")
        values = {"name": "run", "models": "m.tsv", "benchmarks": "b.tsv", "finetuning": {"learning_rates": RATES}}
        workspace = Workspace(build_run(values, "f"))
        grid, store = workspace.grid, workspace.store
        by_manifest: dict[str, list[Entry]] = {}
        for job in grid.jobs.values():
            for cell in job.cells:
                result = result_of(cell, direct, tuned)
                if result is None:
                    continue
                address = store.address(cell, result)
                store.commit(address, result, {}, lambda folder: None)
                entry = Entry(cell, "done", folder=address.folder)
                if (cell.prompt, cell.learning_rate) in failed:
                    entry = Entry(cell, "failed", error="NaN", hint="")
                by_manifest.setdefault(grid.manifest_of(cell), []).append(entry)
        for path, entries in by_manifest.items():
            write_manifest(path, entries)
        cell = BenchmarkCell(select.__name__, "m", "x", seed=None if select is select_prompt else 0)
        run.entries = run_cells(workspace, Job(cell.rule, "m", "batch", (cell,)))
        return select(workspace, cell)

    return run


def result_of(cell, direct, tuned):
    if cell.rule == "evaluate_model" and cell.split == "validation":
        return {"metrics": {"acc,none": {"value": direct[cell.prompt], "stderr": None}}, "n_items": 10}
    if cell.rule == "finetune_adapter":
        value, epoch = tuned.get((cell.prompt, cell.learning_rate), (None, None))
        return {"best_value": value, "best_epoch": epoch, "diverged": value is None, "adapted_share": 0.14}
    return None


DIRECT = {"plain": 0.5, "chat": 0.4}


def test_the_best_value_wins(choose):
    tuned = {("plain", "1e-4"): (0.6, 1), ("chat", "1e-3"): (0.7, 5), ("plain", "1e-3"): (0.2, 1)}
    choice = choose(DIRECT, tuned)
    assert choice["validation_value"] == 0.7 and choice["direct_validation_value"] == 0.5
    assert choice["folder"].startswith("finetune_adapter/m/x.chat.lr1e-3.seed0--")
    assert sum(row["diverged"] for row in choice["candidates"]) == 1
    assert {row["adapted_share"] for row in choice["candidates"]} == {0.14}, "a column of the table of selections"


EVERY = {(prompt, rate): (0.6, 2) for prompt in ("plain", "chat") for rate in RATES}
FALLS = {("plain", "1e-4"): (1.2, 3), ("plain", "1e-3"): (1.1, 2)}
CHOICES = [  # direct values, fine-tunes, whether more is better, and what is chosen
    (DIRECT, {("plain", "1e-4"): (0.6, 1), ("chat", "1e-3"): (0.7, 5)}, True, ("chat", "1e-3", 5)),
    # ties go to the earlier epoch, then to the smaller rate, then to plain
    (DIRECT, EVERY | {("chat", "1e-3"): (0.6, 1)}, True, ("chat", "1e-3", 1)),
    (DIRECT, EVERY, True, ("plain", "1e-4", 2)),
    (DIRECT, {("plain", "1e-3"): (0.6, 2), ("chat", "1e-4"): (0.6, 2)}, True, ("chat", "1e-4", 2)),
    # the untouched model stays unless an adapter is strictly better
    ({"plain": 0.3, "chat": 0.5}, {("plain", "1e-4"): (0.5, 1)}, True, ("chat", None, None)),
    ({"plain": 1.5, "chat": 1.6}, FALLS, False, ("plain", "1e-3", 2)),
    ({"plain": 1.0, "chat": 1.6}, FALLS, False, ("plain", None, None)),
]


@pytest.mark.parametrize(("direct", "tuned", "better", "expected"), CHOICES)
def test_which_adapter_is_chosen(choose, direct, tuned, better, expected):
    choice = choose(direct, tuned, better=better)
    assert (choice["prompt"], choice["learning_rate"], choice["epoch"]) == expected
    assert (choice["folder"] is None) == (expected[1] is None)
    assert choice["direct_validation_value"] == (max if better else min)(direct.values())
    if choice["folder"] is None:
        assert choice["validation_value"] == choice["direct_validation_value"]


def test_all_diverged_fails_this_cell(choose):
    with pytest.raises(CellError, match=r"every fine-tune of m on x \(seed 0\) diverged"):
        choose(DIRECT, {})
    assert choose.entries[0].status == "failed" and "smaller" in choose.entries[0].hint


def test_a_failed_candidate_makes_the_selection_missing(choose):
    with pytest.raises(CellError, match="finetune_adapter"):
        choose(DIRECT, {("plain", "1e-4"): (0.6, 1)}, failed={("plain", "1e-3")})
    assert choose.entries[0].status == "missing"


def test_the_prompt_is_chosen_on_validation_and_ties_go_to_plain(choose):
    assert choose({"plain": 0.3, "chat": 0.5}, {}, select=select_prompt)["prompt"] == "chat"
    assert choose({"plain": 0.5, "chat": 0.5}, {}, select=select_prompt)["prompt"] == "plain"
    chosen = choose({"plain": 1.2, "chat": 1.1}, {}, better=False, select=select_prompt)
    assert chosen["prompt"] == "chat" and chosen["validation_values"] == {"plain": 1.2, "chat": 1.1}


ROW = {"model": "org/m", "checkpoint": "final", "benchmark": "x", "protocol": "direct", "split": "test"}
ROW |= {"metric": "acc,none", "value": 0.25, "stderr": 0.01, "n_items": 7, "selected": True, "source": "lm-eval"}


def table(path, *rows):
    write_table(pd.DataFrame(rows), SCORES, path)
    return str(path)


def test_of_a_table_the_selected_test_rows_are_served(tmp_path):
    early = {**ROW, "checkpoint": "step1", "value": 0.2, "stderr": None, "n_items": None}
    seeds = [{**ROW, "protocol": "train_before_test", "seed": seed, "value": 0.5 + seed} for seed in (0, 1)]
    left_out = [{**ROW, "split": "validation"}, {**ROW, "selected": False, "prompt": "chat"}]
    served = read_served(table(tmp_path / "scores.parquet", ROW, early, *seeds, *left_out), "")
    assert served["org/m", "final", "x", "direct", None] == (0.25, 0.01, 7, "replay:lm-eval")
    assert served["org/m", "step1", "x", "direct", None] == (0.2, None, None, "replay:lm-eval")
    assert [served["org/m", "final", "x", "train_before_test", seed].value for seed in (0, 1)] == [0.5, 1.5]
    assert len(served) == 4


def test_two_scores_of_one_key_are_refused(tmp_path):
    with pytest.raises(InputError, match="two selected test scores"):
        read_served(table(tmp_path / "twice.parquet", ROW, {**ROW, "metric": "acc_norm,none"}), "")


def test_the_authors_file_is_served(tmp_path):
    path = tmp_path / "all_results.json"
    path.write_text(json.dumps({"direct_eval": {"x": {"org/m": 0.25}}, "train_before_test": {"x": {"org/m": 0.5}}}))
    served = read_served(str(path), "")
    assert served["org/m", "final", "x", "train_before_test", None] == (0.5, None, None, "replay:lm-harmony")


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


def test_private_modules_of_lm_eval_are_imported_in_one_place():
    private = re.compile(r"from lm_eval[\w.]*\._(?!_)|from lm_eval\.(api|models)\.utils")
    files = Path(runner.__file__).parents[1].rglob("*.py")
    found = {path.name for path in files if private.search(path.read_text(encoding="utf-8"))}
    assert found == {"lm_eval_internals.py"}


def test_a_job_whose_cells_are_in_the_store_makes_no_worker(start, monkeypatch):
    workspace = start(finetuning={"epochs": 1})
    run_all(workspace, "finetune_adapter")
    (manifest,) = (workspace.run.results / "cells" / "finetune_adapter" / "m").iterdir()
    before = manifest.read_bytes()
    manifest.unlink()
    monkeypatch.setattr(runner, "resolve_name", None)
    run_all(workspace, "finetune_adapter")
    assert manifest.read_bytes() == before
