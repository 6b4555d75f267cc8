"""A group with few-shot prompts and mutual information as a benchmark of a run: prefetch, split, cells, tables."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from toy_groups import SIZES, write_pets
from toy_run import record_model, run_all
from toy_world import toy_model

from lm_validity.cells.tasks.splits import prefetch_benchmark, write_splits
from lm_validity.config.load import build_run
from lm_validity.files import read_json, write_json
from lm_validity.run.workspace import Workspace
from lm_validity.studies.signal.filters.kinds import model_scores
from lm_validity.tables.items import read_benchmark_items, read_documents
from lm_validity.tables.merge import Merger


def prefetch(workspace: Workspace) -> Workspace:
    run = workspace.run
    record = prefetch_benchmark(run.benchmarks["animals"])
    write_json(run.results / "prefetch" / "benchmarks" / "animals.json", record)
    write_splits(workspace, "animals")
    return Workspace(run)


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """One model whose only weights are those of two checkpoints in subfolders, `final` the last of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    write_pets(tmp_path / "tasks")
    for number, name in enumerate(("iter_10", "iter_20")):
        toy_model("gpt2", tmp_path / "model" / name, seed=number)
    Path("points.tsv").write_text("checkpoint\titeration\tsubfolder\nearly\t10\titer_10\nfinal\t20\titer_20\n")
    Path("models.tsv").write_text("model\tpath\tcheckpoints\tbatch_ramp\nm\t./model\tpoints.tsv\te2lm\n")
    Path("benchmarks.tsv").write_text(
        "benchmark\ttask\tinclude_path\tmetric\tnum_fewshot\tmutual_information\nanimals\tpets\ttasks\tacc_norm\t2\t1\n"
    )
    sheets = {"models": "models.tsv", "benchmarks": "benchmarks.tsv", "evaluation": {"device": "cpu"}}
    workspace = Workspace(build_run({"name": "toy", "studies": ["signal"], **sheets}, "toy"))
    run = workspace.run
    record_model(run, "m")
    return prefetch(workspace)


def test_from_the_sheet_to_the_report(workspace):
    run_all(workspace, "evaluate_model")
    merger = Merger(workspace.run)
    merger.write_scores(Path("tables"))
    scores = pd.read_parquet("tables/scores.parquet")
    assert list(scores["checkpoint"].unique()) == ["early", "final"]
    assert list(scores["tokens_b"].unique()) == pytest.approx([10 * 256 * 4096 / 1e9, 20 * 256 * 4096 / 1e9])
    assert set(scores["metric"]) == {"acc,none", "acc_norm,none", "acc_mutual_info,none"}
    assert set(scores["n_items"]) == {sum(SIZES.values())}
    merger.write_items(Path("tables"))
    answers = read_benchmark_items(Path("tables") / "items.parquet", "animals")
    assert set(answers.subjects) == {f"pets_{name}" for name in SIZES}
    (model,) = answers.models
    gold = np.arange(len(answers.gold)), answers.gold
    expected = (model.loglikelihoods - model.unconditional)[(slice(None), *gold)]
    np.testing.assert_allclose(model_scores(answers, model, "pmi"), expected)
    found = scores[(scores["metric"] == "acc_mutual_info,none")].set_index("checkpoint")["value"]
    pmi = model_scores(answers, model, "accuracy_pmi").mean(axis=1)
    np.testing.assert_allclose(pmi, found.loc[list(model.checkpoints)])  # lm-eval's own, weighted by size
    texts = read_documents(workspace.split_path("animals", "test").with_name("documents.parquet"), "animals")
    assert set(texts["doc_id"]) == set(answers.doc_ids) and all(texts["prompt"].str.count("Question:") == 3)


def test_examples_are_part_of_the_recipe(workspace):
    (job,) = workspace.grid.jobs.values()
    cell = job.cells[0]
    before = workspace.address(cell).folder
    assert workspace.recipe(cell)["num_fewshot"] == 2 and workspace.recipe(cell)["mutual_information"] is True
    path = Path("tasks/data/beta/train.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["name"] = "Somebody"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_all(workspace, "evaluate_model")
    entries = pd.DataFrame(read_json(Path(workspace.grid.manifests(job)[1]))["cells"])
    assert entries["error"].str.contains("its few-shot examples changed after they were recorded").all()
    assert prefetch(workspace).address(cell).folder != before
