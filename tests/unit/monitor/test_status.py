"""The state of each cell, from files alone: every state is made and must be found; nothing is opened without need."""

import json
import os
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.unit.monitor.conftest import run_all

from lm_validity.config.load import load_run
from lm_validity.monitor.render import (
    computation_page,
    count_spent,
    describe_progress,
    render_matrix,
    render_page,
    render_summary,
)
from lm_validity.monitor.status import CellState, RunState, progress
from lm_validity.run import workspace
from lm_validity.run.cell import BenchmarkCell
from lm_validity.run.store import Store, hold_lease

CELLS = {"evaluate_model": 42, "finetune_adapter": 42, "select_prompt": 3, "select_adapter": 18, "evaluate_adapter": 18}
ONE = BenchmarkCell("finetune_adapter", "oak-m", "riddles", None, "plain", "1e-5", 0)


def alike(cell) -> float:
    return 1.0


numbers = re.compile(r"\d+(?:\.\d+)?").findall


def total(run) -> Counter:
    return sum(RunState(run).counts.values(), Counter())


def folder_of(run, cell) -> Path:
    (found,) = (run.results / "store" / cell.rule / cell.model).glob(f"{cell.name}--*")
    return found


def test_a_finished_cell_counts_before_its_job_is(built):
    """The manifest comes last; what is in the store is done."""
    shutil.rmtree(built.results / "cells" / "finetune_adapter")
    assert RunState(built).counts["finetune_adapter"]["done"] == 42


def test_a_removed_cell_is_missing_with_what_stands_on_it(built):
    choice = json.loads((built.results / "cells/select_adapter/oak-m/all-benchmarks.seed0.json").read_text())
    (chosen,) = (row["content"] for row in choice["cells"] if row["cell"]["benchmark"] == "riddles")
    assert chosen["learning_rate"] == "1e-5"
    shutil.rmtree(folder_of(built, ONE))
    states = {one.cell: one.state for one in RunState(built).cells}
    assert states[ONE] == "missing"
    assert states[BenchmarkCell("select_adapter", "oak-m", "riddles", seed=0)] == "missing"


def test_a_cell_of_another_recipe_is_stale(built):
    text = Path("replay/replay.yaml").read_text()
    Path("other.yaml").write_text(text.replace("finetuning: {", "finetuning: { max_length: 500,"))
    counts = RunState(load_run("other.yaml")).counts
    assert counts["finetune_adapter"]["stale"] == 42 and counts["evaluate_model"]["done"] == 42
    # oak-s on sums kept the untouched model, which did not change
    assert counts["select_adapter"] == {"done": 1, "stale": 17, "running": 0, "failed": 0, "missing": 0}


def test_a_held_lease_is_running_and_a_stale_one_is_not(built):
    folder = folder_of(built, ONE)
    name = folder.relative_to(built.results / "store").as_posix().replace("/", ".")
    shutil.rmtree(folder)
    lease = built.results / "store" / ".leases" / f"{name}.json"
    with hold_lease(lease, lambda: False):
        assert total(built)["running"] == 1
    lease.write_text(json.dumps({"host": os.uname().nodename, "pid": 2**22 - 1, "started": "1"}))
    assert total(built)["running"] == 0


def test_a_failed_cell_is_named_with_its_error(made_up):
    scores = json.loads(Path("replay/scores.json").read_text())
    del scores["direct_eval"]["sums"]["made-up/Oak-M"]
    Path("replay/scores.json").write_text(json.dumps(scores))
    run_all(made_up)
    state = RunState(made_up)
    failed = [one for one in state.cells if one.state == "failed"]
    assert [one.cell.name for one in failed] == ["sums.final.plain.validation", "sums.final.plain.test"]
    text = render_summary(state, progress(state.cells, alike))
    assert "failed: evaluate_model/oak-m/sums.final.plain.test: replay/scores.json: " in text
    # what stands on it cannot be there, and is not counted as failed by its own fault
    assert state.counts["select_adapter"] == {"done": 17, "missing": 1, "running": 0, "failed": 0, "stale": 0}


def test_the_page_shows_each_square_and_escapes(made_up):
    scores = json.loads(Path("replay/scores.json").read_text())
    run_state = RunState(made_up)
    so_far = progress(run_state.cells, alike)
    run_state.cells[0] = run_state.cells[0]._replace(state="failed", error="<script>alert(1)</script>")
    page = render_page("a <b> run", run_state, so_far, Path())
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page and "a &lt;b&gt; run" in page
    assert page.count('class="square"') == 6 * len(scores["direct_eval"])
    assert "elm-m-chat, sums: 11 missing" in page  # 2 prompts x 2 splits, 2 x 2 rates, prompt, adapter, test


def test_a_square_leads_to_the_log_of_what_failed(made_up):
    state = RunState(made_up)
    cells = [one for one in state.cells if (one.cell.model, one.cell.subject) == ("oak-s", "sums")][:2]
    logs = []
    for one in cells:
        job = state.workspace.grid.job_of[one.cell]
        logs.append(made_up.results / "logs" / job.rule / job.model / f"{job.batch}.log")
        logs[-1].parent.mkdir(parents=True, exist_ok=True)
        logs[-1].write_text("the log")
    state.cells[state.cells.index(cells[0])] = cells[0]._replace(state="failed", error="no")
    page = render_page("run", state, progress(state.cells, alike), made_up.results / "pages")
    relative = f"../{logs[0].relative_to(made_up.results).as_posix()}"
    assert page.count(f'href="{relative}"') >= 2, "in the list of failed cells and at the square"
    assert "1 failed" in page.split("</h1>")[0]
    nowhere = render_page("run", state, progress(state.cells, alike), Path("elsewhere"))
    assert relative not in nowhere and logs[0].name in nowhere


def test_the_matrix_has_a_sign_a_square(built):
    lines = render_matrix(RunState(built).cells).splitlines()
    assert lines[1].split() == ["oak-s", "#", "#", "#"] and lines[-2] == "1: riddles, 2: proverbs, 3: sums"


def test_nothing_is_wider_than_the_terminal(monkeypatch):
    """A model with a long name on 30 benchmarks, whose columns are numbered downwards, in two blocks."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    names = [f"benchmark-{number}" for number in range(30)]
    cells = [BenchmarkCell("evaluate_model", "m" * 80, name, "final", "plain", split="test") for name in names]
    lines = render_matrix([CellState(cell, "done") for cell in cells]).splitlines()[:-2]
    assert max(map(len, lines)) <= 60 and [line.count("#") for line in lines] == [0, 0, 15, 0, 0, 15]
    assert lines[1].split() == [*"123456789", *"012345"] and lines[2].startswith("m" * 29 + "…")


NOW = 100_000.0
RECENT = [NOW - 360 * number for number in range(10)]
SHORT = BenchmarkCell("evaluate_model", "m", "x", "final", "plain", split="test")


@pytest.mark.parametrize(
    ("finished", "missing", "rate", "seconds", "words"),
    [
        # 10 cells in the last hour, 20 left: two hours; an older cell only says that the run is older
        ([NOW - 9000, *RECENT], [ONE] * 20, 10, 7200, ["11", "31", "35.5", "10.0", "60", "2.0"]),
        # a run that began ten minutes ago is measured from its first cell
        ([NOW - 600, NOW - 300, NOW], [ONE] * 4, 12, 1200, ["3", "7", "42.9", "12.0", "10", "20"]),
        # work rather than number of cells: a fine-tune takes a hundred times as long as a score
        ([NOW - 9000, *(NOW - 10 * number for number in range(36))], [ONE], 36, 1000 / 360 * 3600, ["37", "38"]),
        ([1.0], [ONE], None, None, ["1", "2", "50.0"]),
        ([1.0], [], None, 0.0, ["1", "1", "100.0"]),
    ],
)
def test_rate_and_finish_are_those_of_the_last_hour(finished, missing, rate, seconds, words):
    is_mixed = len(missing) == 1
    cells = [CellState(SHORT if is_mixed else ONE, "done", finished=moment) for moment in finished]
    cells += [CellState(cell, "missing") for cell in missing]
    found = progress(cells, lambda cell: 1000.0 if cell is ONE and is_mixed else 10.0, NOW)
    assert (found.rate, found.remaining_seconds) == (rate, seconds and pytest.approx(seconds))
    assert numbers(describe_progress(found, NOW))[: len(words)] == words


def test_finished_cells_are_found_without_opening_their_manifests(built, monkeypatch):
    """30,000 cells in seconds: one listing of the store; manifests are opened for selections only."""
    opened = []

    original = workspace.read_manifest
    monkeypatch.setattr(workspace, "read_manifest", lambda path: opened.append(str(path)) or original(path))
    assert total(built)["done"] == sum(CELLS.values())
    assert opened and {path.split("/")[3] for path in opened} == {"select_prompt", "select_adapter"}
    assert len(opened) == len(set(opened)) == 7


def commit(store: Store, name: str, counters: dict | None, rule: str = "evaluate_model", **more) -> None:
    cell = BenchmarkCell(rule, "m", name, "final", "plain", split="test")
    sidecar = {"wall_seconds": 1800.0, "counters": {"by_phase": counters}} if counters is not None else {}
    store.commit(store.address(cell, {"name": name}), {}, sidecar | more, lambda folder: None)


def test_counters_are_summed_by_rule(tmp_path):
    store = Store(tmp_path)
    assert computation_page(count_spent(store)) is None
    commit(store, "replayed", None)
    assert computation_page(count_spent(store)) is None
    commit(store, "a", {"load": {"model_loads": 1}, "test": {"evaluate_passes": 1, "forward_tokens": 500}})
    commit(store, "b", {"test": {"evaluate_passes": 1, "forward_tokens": 700, "truncated_requests": 2}})
    train = {"train": {"optimizer_steps": 30}, "validation": {"evaluate_passes": 5}}
    commit(store, "c", train, rule="finetune_adapter", truncated_texts=3)
    page = computation_page(count_spent(store))
    (finding,) = page.findings  # cells, hours, model loads, passes, optimizer steps; texts that were cut
    assert (numbers(finding.sentence), numbers(finding.basis)) == (["4", "1.50", "1", "7", "30"], ["5"])
    frame = page.sections[0].tables[0].frame.set_index("job")
    assert frame.loc["score models", ["cells", "hours", "forward_tokens", "cut"]].tolist() == [3, 1.0, 1200, 2]
    assert frame.loc["fine-tune", ["cells", "evaluate_passes", "cut"]].tolist() == [1, 5, 3]
