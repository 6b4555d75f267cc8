"""The filters' loop on a run: texts and items in, a task out, scored again by this project and by lm-eval."""

import json
import logging

import numpy as np
import pandas as pd
import pytest

from lm_validity.config.sheets import Benchmark

RECIPE = """
name: cloze_kept
benchmark: cloze
task: miniature_cloze
filters:
  - duplicates
  - leakage
  - random_subset: {count: 40}
"""


@pytest.fixture(scope="module")
def filtered(finished, tmp_path_factory):
    """What `filter apply` writes about the miniature benchmark `cloze`, from the run's tables."""
    folder = tmp_path_factory.mktemp("filtered")
    (folder / "recipe.yaml").write_text(RECIPE)
    results = finished.folder / "results" / "test"
    done = finished.lm_validity(
        *("filter", "apply", str(folder / "recipe.yaml"), "--output", str(folder / "out")),
        *("--items", str(results / "tables" / "items.parquet")),
        *("--documents", str(results / "splits" / "cloze" / "documents.parquet")),
    )
    assert "random_subset: 40 of" in done.stdout and "lm-eval task:" in done.stdout
    return folder / "out"


def kept_items(finished, filtered, model: str) -> pd.DataFrame:
    items = pd.read_parquet(finished.folder / "results" / "test" / "tables" / "items.parquet")
    mine = items[(items["model"] == model) & (items["benchmark"] == "cloze") & (items["protocol"] == "direct")]
    ids = list(pd.read_csv(filtered / "kept.csv")["doc_id"])
    return mine[mine["split"] == "test"].set_index("doc_id").loc[ids]


def test_documents_are_those_of_the_items(finished):
    results = finished.folder / "results" / "test"
    documents = pd.read_parquet(results / "splits" / "cloze" / "documents.parquet").set_index("doc_id")
    items = pd.read_parquet(results / "tables" / "items.parquet")
    items = items[(items["benchmark"] == "cloze") & (items["split"] == "test")]
    assert set(items["doc_id"]) == set(documents.index)
    for item in items.itertuples():
        row = documents.loc[item.doc_id]
        assert row["gold"] == item.gold and [len(one) for one in row["choices"]] == list(item.choice_characters)
        assert row["prompt"].endswith(row["context"]) and row["context"]
    written = pd.read_parquet(results / "splits" / "table" / "documents.parquet")  # generated answers
    assert len(written) and written["choices"].isna().all() and written["context"].str.len().min() > 0


def test_what_a_filter_keeps_scores_as_it_did(finished, filtered):
    """Evaluated again as a benchmark of its own: found, split and scored by the cells' code."""
    pytest.importorskip("lm_eval")
    from lm_validity.cells.models.language_model import load_language_model
    from lm_validity.cells.tasks.evaluation import prepare_requests, score_prepared
    from lm_validity.cells.tasks.finding import TaskRecord
    from lm_validity.cells.tasks.splits import documents, make_splits, prefetch_benchmark
    from lm_validity.cells.tasks.tasks import load_task

    row = Benchmark(benchmark="cloze_kept", include_path=str(filtered / "tasks"), studies=("signal",))
    found = prefetch_benchmark(row)
    assert found["documents"] == {"test": 40}
    task = load_task(TaskRecord.from_json(found["record"]))
    model = sorted(path.name for path in (finished.folder / "results" / "test" / "miniature" / "models").iterdir())[0]
    folder = finished.folder / "results" / "test" / "miniature" / "models" / model
    lm = load_language_model(folder, dtype="float32", device="cpu", eval_batch_size=16)
    asked = prepare_requests(lm, task, documents(task, make_splits(task, test_only=True).test))
    scored = score_prepared(lm, asked, metric="acc,none")
    before = kept_items(finished, filtered, model)
    assert scored.metrics["acc,none"][0] == pytest.approx(before["correct"].mean())
    for again, first in zip(scored.items.itertuples(), before.itertuples(), strict=True):
        np.testing.assert_allclose(again.choice_loglikelihoods, first.choice_loglikelihoods, atol=1e-4)

    import lm_eval
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    theirs = lm_eval.simple_evaluate(
        lm,
        tasks=["cloze_kept"],
        bootstrap_iters=0,
        task_manager=TaskManager(include_path=str(filtered / "tasks"), include_defaults=False),
    )
    assert theirs["results"]["cloze_kept"]["acc,none"] == pytest.approx(before["correct"].mean())
    samples = json.loads((filtered / "samples.json").read_text())
    assert list(samples) == ["miniature_cloze"] and len(samples["miniature_cloze"]) == 40
