"""config/test.yaml through every rule, and what a second run computes after files were lost or things were killed.

Computing is counted in store folders and their sidecars, not in Snakemake's jobs: a job may start and find everything.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest
from tests.golden.recipes import EXPECTED, recipes
from tests.workflow.conftest import TOKEN, Project

from lm_validity.results.put import Rows

CONFIG = ("--configfile", "config/test.yaml")
RESULTS = Path("results/test")
MODELS = ("forum-llama-xs", "data-gpt2-xs")


def computed(before: dict, after: dict) -> set[str]:
    return {cell for cell, written in after.items() if before.get(cell) != written}


def names(cells: set[str]) -> set[str]:
    """Without their rule, model and recipe."""
    return {cell.split("--")[0].rpartition("/")[2] for cell in cells}


@pytest.fixture
def project(finished, tmp_path) -> Project:
    """A copy of the finished run, to be damaged. Times are kept: Snakemake looks at them."""
    return finished.copy_to(tmp_path / "copy")


def test_a_run_gives_tables_reports_and_a_page(finished):
    root = finished.folder / RESULTS
    scores = pd.read_parquet(root / "tables" / "scores.parquet")
    cells = scores[scores.split.eq("test") & scores.selected].groupby(["protocol", "metric"]).size()
    assert cells["direct", "acc,none"] == cells["train_before_test", "acc,none"] == 2
    assert cells["direct", "exact_match,none"] == cells["train_before_test", "exact_match,none"] == 2
    assert scores.n_items.gt(0).all() and scores.value.between(0, 1).all()
    selections = pd.read_parquet(root / "tables" / "selections.parquet")
    chosen = selections[selections.selected]
    assert len(chosen) == 4 and len(selections) == 4 * 3
    # the best on validation, the untouched model where nothing is strictly better
    for _, group in selections.groupby(["model", "benchmark"]):
        picked = group[group.selected].iloc[0]
        assert picked.validation_value == group.validation_value.max()
        assert pd.isna(picked.learning_rate) == (picked.validation_value <= picked.direct_validation_value)
    items = pd.read_parquet(root / "tables" / "items.parquet")
    merged = items.groupby(["model", "benchmark", "protocol", "split"]).correct.mean()
    for row in scores[scores.metric.isin(["acc,none", "exact_match,none"])].itertuples():
        assert merged[row.model, row.benchmark, row.protocol, row.split] == pytest.approx(row.value)
    assert Rows.read(root / "reports" / "agreement" / "results.parquet").value("models") == 2
    assert "<html" in (root / "report" / "index.html").read_text()[:400]
    card = json.loads((root / "report" / "cards" / "cloze" / "card.json").read_text())
    rows = {(row["quantity"], row["protocol"]): row["value"] for row in card["rows"]}
    assert rows["train_leakage", None] is not None and rows["models", "direct"] == 2


def test_recipes_are_those_on_record(finished):
    """Nobody's finished cells are computed again. Where that is meant: tests/golden/recipes.py --renew, and say so."""
    recorded, found = json.loads(EXPECTED.read_text()), recipes(finished.folder / RESULTS)
    # whether an adapter is better on validation, and so is evaluated on test, may differ with the processor
    always = {label for label in recorded if not label.startswith("evaluate_adapter/")}
    assert always <= set(found) and len(always) == 16
    assert {label: recipe for label, recipe in found.items() if label in recorded} == {
        label: recipe for label, recipe in recorded.items() if label in found
    }


def test_no_token_is_in_any_file(finished):
    """The environment held one: no log, result, record, report or Snakemake's own file may repeat it."""
    files = [path for folder in ("results", ".snakemake") for path in (finished.folder / folder).rglob("*")]
    files = [path for path in files if path.is_file()]
    assert len(files) > 100 and not [path for path in files if TOKEN.encode() in path.read_bytes()]


def test_cost_learns_from_the_finished_cells_and_status_sees_them(finished):
    """Measured hours are given back."""
    done = finished.lm_validity("cost", *CONFIG)
    found = re.search(r"by (\d+) finished cells on a processor without GPU", done.stdout)
    assert int(found[1]) == len(finished.sidecars()) and "uncalibrated" not in done.stdout
    hours = float(re.search(r"^ *fine-tune +8 +4 +([\d.]+)", done.stdout, re.MULTILINE)[1])
    assert 0 < hours < 1
    done = finished.lm_validity("status", *CONFIG, "--html", "status.html")
    assert re.search(r"^(\d+) of \1 cells done \(100\.0%\)", done.stdout, re.MULTILINE)
    assert "100% done" in (finished.folder / "status.html").read_text()


def test_what_is_gone_is_asked_for_and_nothing_else(project):
    """By dry runs of both targets, also where everything that stands on a manifest exists, with and without the check
    that stands on all of them; and tables between cells and reports that are there. First a run that does nothing."""
    cells, before = project.folder / RESULTS / "cells", project.sidecars()
    done = project.snakemake(*CONFIG)
    assert "Nothing to be done" in done.stdout + done.stderr and project.sidecars() == before

    def planned(target: str) -> set[str]:
        done = project.snakemake(target, "-n", "--quiet", "rules", *CONFIG)
        return set(re.findall(r"^([a-z]+_[a-z]+)\s+1$", done.stdout, re.MULTILINE))

    shutil.rmtree(project.folder / RESULTS / "tables")
    assert {"merge_scores", "merge_items"} <= planned("all") and "check_cells" not in planned("all")
    for rule in ("finetune_adapter", "evaluate_adapter"):
        min((cells / rule).rglob("*.json")).unlink()
    wanted = {"finetune_adapter", "evaluate_adapter", "check_cells"}
    assert wanted <= planned("all") and wanted <= planned("scores")
    (cells / "check.json").unlink()
    assert wanted <= planned("all") and wanted <= planned("scores")


def test_lost_and_forgotten_cells_are_computed_again_and_nothing_else(project):
    before, expected = project.sidecars(), project.tables()
    damaged, deleted = (
        min(cell for cell in before if cell.startswith(rule)) for rule in ("finetune", "evaluate_model")
    )
    store = project.folder / RESULTS / "store"
    victim = next(path for path in (store / damaged).rglob("*.safetensors"))
    victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    shutil.rmtree(store / deleted)
    said = project.lm_validity("preflight", *CONFIG, code=1).stdout
    assert damaged in said and deleted in said and "will be computed again" in said
    said = project.lm_validity("forget", "evaluate_model/*/table.*.test", *CONFIG).stdout
    assert said.count("forgot evaluate_model/") == 2
    done = project.lm_validity("forget", "finetune/*", *CONFIG, code=2)
    assert "no finished cell matches 'finetune/*'. Hint:" in done.stderr
    project.snakemake("scores", *CONFIG)
    # on a CPU a cell's bytes are the same again, so what stands on it is found in the store
    forgotten = {cell for cell in before if cell.startswith("evaluate_model") and "/table.final.plain.test--" in cell}
    assert computed(before, project.sidecars()) == {damaged, deleted} | forgotten and len(forgotten) == 2
    assert project.tables() == expected


def test_a_sheet_edited_while_a_job_runs_changes_nothing(project):
    """Both models have another dtype while a fine-tune runs, and then their own again: the job reads the sheet as it
    was when the run was planned. So does the Snakemake that a job on a cluster starts."""
    before, expected = project.sidecars(), project.tables()
    project.lm_validity("forget", f"finetune_adapter/{MODELS[0]}/cloze.*.lr1e-3.*", *CONFIG)
    sheet = project.folder / "config" / "test_models.tsv"
    front, path = project.folder / "bin", project.environment()["PATH"]
    front.mkdir()
    (front / "lm-validity").write_text(
        f"#!/bin/sh\nPATH={path}\n"
        f'test "$1" = finetune-adapter && sed -i s/float32/bfloat16/ {sheet}\n'
        'lm-validity "$@"\ncode=$?\n'
        f"sed -i s/bfloat16/float32/ {sheet}\nexit $code\n"
    )
    (front / "lm-validity").chmod(0o755)
    command = project.snakemake_command("scores", "--cores", "2", "--rerun-incomplete", *CONFIG)
    done = project.run(*command, PATH=f"{front}:{path}")
    assert "finetune_adapter" in done.stderr
    assert names(computed(before, project.sidecars())) == {"cloze.plain.lr1e-3.seed0"}
    assert project.tables() == expected
    sheet.write_text(sheet.read_text().replace(f"{MODELS[0]}\t", "renamed\t"))
    job = f"finetune_adapter:model={MODELS[0]},batch=cloze.plain.all-rates.seed0"
    project.snakemake("--mode", "remote", "--target-jobs", job, "--force", "--nolock", *CONFIG)


def test_comments_unrelated_keys_and_batch_sizes_compute_nothing(project):
    before, config = project.sidecars(), project.folder / "config" / "test.yaml"
    text = config.read_text().replace("batch_size: 64", "batch_size: 16").replace("resamples: 200", "resamples: 150")
    config.write_text("# a comment\n" + text.replace("epochs: 3", "epochs: 3, gradient_checkpointing: true"))
    project.snakemake("scores", *CONFIG)
    assert project.sidecars() == before


def test_a_changed_recipe_computes_what_it_changes(project):
    """Two new rates of a model, trained side by side, up to the site, which sums what cells took: each has its part.
    Stopped between the last cell and the tables, the next run makes the tables of the new cells."""
    before, tables = project.sidecars(), project.tables()
    project.keep(MODELS[0])
    config = project.folder / "config" / "test.yaml"
    rates = "[1e-3, 2e-3, 4e-3], rates_side_by_side: true"
    config.write_text(config.read_text().replace("[1e-3, 3e-3]", rates))
    project.snakemake(f"{RESULTS}/cells/check.json", *CONFIG)
    assert project.tables() == tables
    project.snakemake(*CONFIG)
    selections = pd.read_parquet(project.folder / RESULTS / "tables" / "selections.parquet")
    assert set(selections.learning_rate.dropna().astype(float)) == {1e-3, 2e-3, 4e-3}
    new = computed(before, project.sidecars())
    trained = {cell for cell in new if cell.startswith("finetune_adapter")}
    assert len(trained) == 4 and all("lr2e-3" in cell or "lr4e-3" in cell for cell in trained)
    assert all(cell.startswith(("finetune_adapter", "evaluate_adapter")) for cell in new)
    assert set(before) <= set(project.sidecars()), "cells of the old recipe stay"
    store = project.folder / RESULTS / "store"
    found = [json.loads((store / cell / "sidecar.json").read_text()) for cell in trained]
    assert {(one["side_by_side"], one["resumed_epochs"]) for one in found} == {(2, 0)}
    phases = [one["counters"]["by_phase"] for one in found]  # what two rates counted together is with the first of them
    assert sorted(phase.get("train", {}).get("optimizer_steps", 0) for phase in phases) == [0, 0, 150, 150]


def test_a_killed_finetune_resumes_after_its_last_epoch(finished, project):
    """kill -9 after epoch 2: the rerun starts at epoch 3, and the result is the same bytes."""
    model, batch = "forum-llama-xs", "cloze.plain.all-rates.seed0"
    cells = [name for name in project.sidecars() if name.startswith(f"finetune_adapter/{model}/cloze.")]
    project.lm_validity("forget", f"finetune_adapter/{model}/cloze.*.lr1e-3.*", *CONFIG)
    command = ("finetune-adapter", *CONFIG, "--model", model, "--batch", batch)
    log = project.folder / "killed.log"
    with open(log, "w") as handle:
        job = subprocess.Popen(("lm-validity", *command), cwd=project.folder, env=project.environment(), stderr=handle)
    try:
        deadline = time.monotonic() + 120
        while "epoch 2:" not in log.read_text():
            assert job.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.005)
    finally:
        (cell,) = project.cells()  # the command itself only waits for it
        os.kill(cell, signal.SIGKILL)
        assert job.wait() != 0
    done = project.lm_validity(*command)
    epochs = [int(number) for number in re.findall(r"lr1e-3\S* epoch (\d+):", done.stderr)]
    assert epochs[0] == 3, done.stderr
    for cell in cells:
        index = RESULTS / "store" / cell / "sha256.json"
        assert (project.folder / index).read_bytes() == (finished.folder / index).read_bytes()
    first = json.loads((project.folder / RESULTS / "store" / sorted(cells)[0] / "sidecar.json").read_text())
    assert first["resumed_epochs"] == 2


def test_a_failed_cell_fails_alone_and_is_named(project):
    """Training data are spoilt when a cell is to be trained: its siblings finish, the run ends with 1, partial reports
    say what is missing, and after the cause is gone the next run computes that cell and what stands on it."""
    before, expected = project.sidecars(), project.tables()
    data = project.folder / RESULTS / "miniature" / "data" / "cloze" / "training.jsonl"
    good = data.read_text()
    first, _, rest = good.partition("\n")
    data.write_text(json.dumps(json.loads(first) | {"context": "something else"}) + "\n" + rest)
    project.lm_validity(
        "forget", *(f"finetune_adapter/forum-llama-xs/{name}.*.lr1e-3.*" for name in ("cloze", "table")), *CONFIG
    )
    done = project.snakemake(*CONFIG, code=1)
    said = done.stdout + done.stderr
    assert "failed cell: finetune_adapter/forum-llama-xs/cloze.plain.lr1e-3.seed0" in said
    recomputed = computed(before, project.sidecars())
    assert {cell.split("/")[2].split(".")[0] for cell in recomputed} == {"table"}
    assert project.tables() == expected, "complete tables are not replaced by incomplete ones"
    page = (project.folder / RESULTS / "partial" / "report" / "index.html").read_text()
    assert "select_adapter forum-llama-xs cloze.seed0" in page
    page = (project.folder / RESULTS / "partial" / "reports" / "agreement" / "index.html").read_text()
    assert "select_adapter forum-llama-xs cloze.seed0" in page
    partial = pd.read_parquet(project.folder / RESULTS / "partial" / "tables" / "scores.parquet")
    rows = partial[(partial.model == "forum-llama-xs") & (partial.protocol == "train_before_test")]
    assert set(rows.benchmark) == {"table"}
    data.write_text(good)
    middle = project.sidecars()
    project.snakemake("scores", *CONFIG)
    assert names(computed(middle, project.sidecars())) == {"cloze.plain.lr1e-3.seed0"}
    assert project.tables() == expected


def test_partial_tables_have_the_direct_score_where_no_adapter_was_better(project):
    """Its cell is in the store; those of adapters are not."""
    whole = pd.read_parquet(project.folder / RESULTS / "tables" / "selections.parquet")
    untouched = whole[whole.selected & whole.learning_rate.isna()]
    assert len(untouched), "the miniature has such a selection"
    project.lm_validity("forget", "evaluate_adapter/*", *CONFIG)
    project.lm_validity("merge", "--partial", *CONFIG)
    partial = pd.read_parquet(project.folder / RESULTS / "partial" / "tables" / "scores.parquet")
    trained = partial[partial.protocol == "train_before_test"]
    assert set(zip(trained.model, trained.benchmark, strict=True)) == set(
        zip(untouched.model, untouched.benchmark, strict=True)
    )


def test_partial_reports_before_anything_is_finished(tmp_path):
    project = Project(tmp_path)
    done = project.snakemake("partial_reports", *CONFIG, code=None)
    assert "still missing" in done.stdout + done.stderr and "report agreement:" not in done.stdout + done.stderr
    assert not (project.folder / RESULTS / "tables").exists()


def test_a_poisoned_test_split_changes_no_selection_and_no_adapter(finished, project):
    """After splitting, every test document is replaced: gold answers permuted, texts that occur nowhere else."""
    for benchmark in ("cloze", "table"):  # a multiple choice, and one whose answers are written
        path = project.folder / RESULTS / f"miniature/data/{benchmark}/test.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for number, row in enumerate(rows):
            row["context"] = f"poison {number}"
            row["gold"] = (row["gold"] + 1) % len(row["choices"])
            row["answer"] = row["choices"][row["gold"]]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    project.lm_validity("forget", "finetune_adapter/*.lr3e-3.*", *CONFIG)
    cells = project.folder / RESULTS / "cells"
    shutil.rmtree(cells / "select_adapter")
    wanted = [f"{RESULTS}/cells/select_adapter/{model}/all-benchmarks.seed0.json" for model in MODELS]
    before = project.sidecars()
    project.snakemake(*wanted, *CONFIG)
    assert len(computed(before, project.sidecars())) == 4
    store = finished.folder / RESULTS / "store" / "finetune_adapter"
    for path in [path for path in store.rglob("*") if path.is_file() and path.name != "sidecar.json"]:
        assert (project.folder / path.relative_to(finished.folder)).read_bytes() == path.read_bytes()
    for path in wanted:
        assert (project.folder / path).read_bytes() == (finished.folder / path).read_bytes()


def test_a_dry_run_counts_finished_cells_whose_model_changed(project):
    """From another folder too: it said that nothing was left, and then, that everything was."""
    weights = project.folder / RESULTS / "miniature" / "models" / MODELS[1] / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-8] + bytes(8))
    dry_run = ("-n", "--configfile", str(project.folder / "config" / "test.yaml"))
    command = project.snakemake_command(*dry_run)
    done = subprocess.run(command, cwd="/", env=project.environment(), capture_output=True, text=True, check=True)
    last = done.stderr.strip().splitlines()[-1]
    assert "left: 0 of 24 cells" in last and "12 finished cells" in last
    assert MODELS[1] in project.lm_validity("preflight", *CONFIG).stdout


def test_other_weights_in_a_local_folder_are_another_model(project):
    """Weights that change after they were recorded are refused by a job, and seen by the next run."""
    folder = project.folder / RESULTS / "miniature" / "models"
    shutil.copy(folder / MODELS[0] / "tokenizer.json", folder / MODELS[0] / "vocabulary.json")
    project.lm_validity("forget", f"evaluate_model/{MODELS[0]}/cloze.*", *CONFIG)
    job = ("evaluate-model", *CONFIG, "--model", MODELS[0], "--batch", "all-benchmarks.final.plain")
    done = project.lm_validity(*job, code=2)
    assert "vocabulary.json is new since" in done.stderr and "`lm-validity prefetch-model" in done.stderr
