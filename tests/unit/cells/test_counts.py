"""How often a run reads a split, loads a model and computes a token: counted, not timed; and losses by step."""

import json
from collections import Counter

import pytest
from toy_run import RATES, jobs_of, record_model, run_all, sidecars, start_run, ten_of_each
from toy_world import edit

from lm_validity.cells import workers
from lm_validity.cells.runner import run_cells
from lm_validity.config.load import build_run
from lm_validity.monitor.render import count_spent
from lm_validity.run.workspace import Workspace
from lm_validity.site.gather import table_kind
from lm_validity.tables import merge
from lm_validity.tables.merge import Merger
from lm_validity.tables.schema import LOSSES, write_table


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
