"""Jobs: what is chosen on validation, served, imported; how often a run reads a split, loads a model, counts tokens."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from toy_run import RATES, jobs_of, record_model, run_all, sidecars, start_run, ten_of_each
from toy_world import edit

from lm_validity.cells import runner, workers
from lm_validity.cells.runner import read_served, run_cells, select_adapter, select_prompt
from lm_validity.config.load import build_run
from lm_validity.errors import CellError, InputError
from lm_validity.monitor.render import count_spent
from lm_validity.run.cell import BenchmarkCell, Job
from lm_validity.run.workspace import Entry, Workspace, write_manifest
from lm_validity.site.gather import table_kind
from lm_validity.tables import merge
from lm_validity.tables.merge import Merger
from lm_validity.tables.schema import LOSSES, SCORES, write_table

TWO = ("1e-4", "1e-3")


@pytest.fixture
def choose(tmp_path, monkeypatch):
    """A function: validation values of the direct prompts and of the fine-tunes -> the selection of one cell."""
    monkeypatch.chdir(tmp_path)
    Path("m.tsv").write_text("model\tpath\tinstruction_tuned\nm\torg/m\t1\n")

    def run(direct, tuned, better=True, failed=(), select=select_adapter):
        Path("b.tsv").write_text(f"benchmark\thigher_is_better\nx\t{int(better)}\n")
        values = {"name": "run", "models": "m.tsv", "benchmarks": "b.tsv", "finetuning": {"learning_rates": TWO}}
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


EVERY = {(prompt, rate): (0.6, 2) for prompt in ("plain", "chat") for rate in TWO}
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


def test_the_authors_file_is_served_and_two_scores_of_one_key_are_refused(tmp_path):
    path = tmp_path / "all_results.json"
    path.write_text(json.dumps({"direct_eval": {"x": {"org/m": 0.25}}, "train_before_test": {"x": {"org/m": 0.5}}}))
    served = read_served(str(path), "")
    assert served["org/m", "final", "x", "train_before_test", None] == (0.5, None, None, "replay:lm-harmony")
    with pytest.raises(InputError, match="two selected test scores"):
        read_served(table(tmp_path / "twice.parquet", ROW, {**ROW, "metric": "acc_norm,none"}), "")


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


def total(sidecars: dict, key: str, phase: str) -> int:
    return sum(sidecar["counters"]["by_phase"].get(phase, {}).get(key, 0) for sidecar in sidecars.values())


def test_three_rates_read_test_twice_and_validation_sixteen_times(start):
    """The authors' program reads each 21 times."""
    workspace = start()
    run_all(workspace)
    found = sidecars(workspace.store)
    names = {"toy_choice.final.plain.validation", "toy_choice.final.plain.test", "toy_choice.seed0"}
    assert set(found) == names | {f"toy_choice.plain.lr{rate}.seed0" for rate in RATES}, "no fallback"
    assert total(found, "evaluate_passes", "test") == 2
    assert total(found, "evaluate_passes", "validation") == 1 + 3 * 5
    assert total(found, "model_loads", "load") == 3  # one per job: evaluation, fine-tunes of all rates, adapter
    assert total(found, "optimizer_steps", "train") == 3 * 5 * 2  # 10 documents in batches of 8
    counters = Counter()
    for sidecar in found.values():
        counters.update({key: value for key, value in sidecar["counters"].items() if key != "by_phase"})
    assert counters["evaluate_passes"] == 18 and counters["optimizer_steps"] == 30
    assert counters["forward_tokens"] == sum(total(found, "forward_tokens", split) for split in ("validation", "test"))
    assert counters["training_tokens"] == total(found, "training_tokens", "train")
    assert all(sidecar["exact_ways"] == ["cached", "packed", "rows"] for sidecar in found.values())
    assert counters["shared_tokens"] > counters["forward_tokens"], "most of a question is computed once"


def test_answers_that_are_too_long_to_train_on_are_counted_and_refused_where_all_are(start):

    def three_longer(split: str) -> list[dict]:
        rows = ten_of_each(split)
        return [row | {"choices": [f"{choice} indeed" for choice in row["choices"]]} for row in rows[:3]] + rows[3:]

    workspace = start(rows=three_longer, finetuning={"epochs": 1, "max_length": 6})
    run_all(workspace, "finetune_adapter")
    assert {sidecar["cut_answers"] for sidecar in sidecars(workspace.store).values()} == {3}
    assert count_spent(workspace.store)["finetune_adapter"]["cut"] == 3 * 10
    values = workspace.run.configuration.model_dump(exclude_none=True, exclude_defaults=True)
    run = build_run(values | {"finetuning": values["finetuning"] | {"max_length": 1}}, "toy")
    (job,) = jobs_of(Workspace(run), "finetune_adapter")
    entries = run_cells(Workspace(run), job)
    assert {entry.status for entry in entries} == {"failed"} and len(entries) == 3
    assert all("10 training answers" in entry.error and "max_length" in entry.hint for entry in entries)


@pytest.mark.parametrize("tokenizers", ["equal", "different"])
def test_checkpoints_share_requests_where_their_tokenizer_is_the_same(start, tmp_path, monkeypatch, tokenizers):
    workspace = start(checkpoints=3, studies=("signal",))
    if tokenizers == "different":
        path = tmp_path / "model" / "step2" / "tokenizer.json"
        words = json.loads(path.read_text())["model"]
        edit(path, model=words | {"merges": words["merges"][:-1]})
        record_model(workspace.run, "m")
        workspace = Workspace(workspace.run)
    calls, prepare = [], workers.prepare_requests
    monkeypatch.setattr(workers, "prepare_requests", lambda *a, **options: calls.append(1) or prepare(*a, **options))
    run_all(workspace, "evaluate_model")
    cells = sidecars(workspace.store)
    assert len(cells) == 3 + 1 and total(cells, "model_loads", "load") == 4
    assert len(calls) == (1 if tokenizers == "equal" else 3)


def test_losses_are_stored_and_merged(tmp_path, monkeypatch):
    """The same bytes twice."""
    files = []
    for name in "ab":
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        workspace = start_run(tmp_path / name, finetuning={"epochs": 2})
        run_all(workspace, "finetune_adapter")
        files.append([path.read_bytes() for path in sorted(workspace.store.root.rglob("losses.parquet"))])
    assert files[0] == files[1] and len(files[0]) == 3
    (job,) = jobs_of(workspace, "finetune_adapter")
    losses = Merger(workspace.run).losses()
    for cell in job.cells:
        result = workspace.store.read(workspace.address(cell).folder)["result"]
        own = losses[losses["learning_rate"] == cell.learning_rate]
        assert own["step"].tolist() == [*range(1, result["steps"] + 1)]
        for epoch in result["epochs"]:
            of_epoch = own[own["epoch"] == epoch["number"]]
            assert of_epoch["loss"].mean() == pytest.approx(epoch["train_loss"], rel=0.1)
            assert of_epoch["validation_value"].dropna().tolist() == [epoch["validation_value"]]
    monkeypatch.setattr(merge, "LOSSES_AN_EPOCH", 2)
    parts = Merger(workspace.run).losses()
    assert len(parts) == 3 * 2 * 2 and parts["validation_value"].notna().sum() == 3 * 2

    write_table(losses, LOSSES, tmp_path / "losses.parquet")
    assert table_kind(tmp_path / "losses.parquet") == "losses"
