"""Training losses: stored with a fine-tune, merged into a table."""

import pytest
from toy_run import run_all, start_run

from lm_validity.site.gather import table_kind
from lm_validity.tables import merge
from lm_validity.tables.merge import Merger
from lm_validity.tables.schema import LOSSES, write_table


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
    (job,) = [job for job in workspace.grid.jobs.values() if job.rule == "finetune_adapter"]
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
