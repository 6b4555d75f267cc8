"""`finetuning.early_stop` in a real run of the miniature: epochs, selection, kills, and what the page says."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest
from tests.workflow.conftest import BIN, Project

from lm_validity.config.sections import PATIENCE

CONFIG = ("--configfile", "config/test.yaml")
RESULTS = Path("results/test")
EPOCHS = 5


def epochs_until_stop(values: list[float]) -> int:
    """How many epochs of these validation values (more is better) an early stop trains."""
    best = 0
    for number in range(1, len(values)):
        best = number if values[number] > values[best] else best
        if number - best >= PATIENCE:
            return number + 1
    return len(values)


def switch_on(project: Project) -> None:
    """Early stops of one model, and a rate that is too high to improve for long."""
    project.keep("forum-llama-xs")
    path = project.folder / CONFIG[1]
    text, before = path.read_text(), "learning_rates: [1e-3, 3e-3], epochs: 3"
    assert before in text
    path.write_text(text.replace(before, f"learning_rates: [1e-3, 3e-2], epochs: {EPOCHS}, early_stop: true"))


@pytest.fixture(scope="module")
def stopped(finished, tmp_path_factory) -> Project:
    """A run with early stops. Models, splits and direct scores are those of the finished one."""
    project = finished.copy_to(tmp_path_factory.mktemp("stopped") / "copy")
    before = set(project.sidecars())
    switch_on(project)
    project.snakemake(*CONFIG)
    new = set(project.sidecars()) - before
    assert {cell.split("/")[0] for cell in new} <= {"finetune_adapter", "evaluate_adapter"}
    assert sum(cell.startswith("finetune_adapter") for cell in new) == 4
    return project


def fine_tunes(project: Project) -> dict[str, dict]:
    """Name -> cell.json of the fine-tunes with early stops, with their sidecar under `sidecar`."""
    found = {}
    for path in sorted((project.folder / RESULTS).glob("store/finetune_adapter/*/*/cell.json")):
        cell = json.loads(path.read_text())
        if cell["recipe"].get("early_stop"):
            cell["sidecar"] = json.loads(path.with_name("sidecar.json").read_text())
            found[f"{path.parts[-3]}/{path.parts[-2].split('--')[0]}"] = cell
    return found


def test_each_rate_ends_two_epochs_after_its_best_and_that_epoch_is_selected(stopped):
    cells = fine_tunes(stopped)
    epochs = {name: [one["validation_value"] for one in cell["result"]["epochs"]] for name, cell in cells.items()}
    assert len(cells) == 4
    for name, values in epochs.items():
        # as if nothing better had come later
        assert len(values) == epochs_until_stop([*values, *[min(values)] * (EPOCHS - len(values))])
        assert cells[name]["result"]["best_epoch"] == values.index(max(values)) + 1
        assert (cells[name]["sidecar"]["epochs"], cells[name]["sidecar"]["epochs_allowed"]) == (len(values), EPOCHS)
    assert {len(values) for values in epochs.values()} > {EPOCHS}, "some stop, some do not"
    selections = pd.read_parquet(stopped.folder / RESULTS / "tables/selections.parquet")
    tried = selections[selections.learning_rate.notna()]
    assert len(tried) == 4 and not tried.diverged.any()
    for row in tried.itertuples():
        values = epochs[f"{row.model}/{row.benchmark}.plain.lr{row.learning_rate}.seed0"]
        assert (row.epoch, row.validation_value) == (values.index(max(values)) + 1, max(values))
    for _, rows in selections.groupby(["model", "benchmark"]):
        (chosen,) = rows[rows.selected].itertuples()
        assert chosen.validation_value == rows.validation_value.max()


@pytest.mark.slow
def test_a_killed_fine_tune_goes_on_and_stops_where_it_would_have(stopped, tmp_path):
    """Killed after its second epoch: no epoch is trained twice, and the cell is the same bytes."""
    project = stopped.copy_to(tmp_path / "copy")
    name = next(name for name, cell in fine_tunes(project).items() if len(cell["result"]["epochs"]) < EPOCHS)
    (model, cell), results = name.split("/"), project.folder / RESULTS
    (folder,) = results.glob(f"store/finetune_adapter/{name}--*")
    whole = {path.name: path.read_bytes() for path in (folder / "sha256.json", folder / "cell.json")}
    shutil.rmtree(folder)
    (manifest,) = results.glob(f"cells/finetune_adapter/{model}/{cell.split('.')[0]}.plain.*.json")
    command = ("finetune-adapter", "--model", model, "--batch", manifest.stem, *CONFIG)
    log = project.folder / "log"
    with log.open("w") as screen:
        environment = project.environment(PATH=f"{BIN}:{os.environ['PATH']}")
        process = subprocess.Popen(
            (BIN / "lm-validity", *command), cwd=project.folder, env=environment, stdout=screen, stderr=screen
        )
        while f"{cell} epoch 2:" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.02)
        process.kill()
        assert process.wait() == -signal.SIGKILL and not folder.exists()
    project.lm_validity(*command)
    assert {name: (folder / name).read_bytes() for name in whole} == whole
    assert json.loads((folder / "sidecar.json").read_text())["resumed_epochs"] == 2
