"""A plan leaves fine-tunes out and nothing else, and a later round leaves the earlier one as it is."""

from pathlib import Path

import pytest

from lm_validity.config.load import build_run
from lm_validity.run.rules import rule_of
from lm_validity.run.workspace import Grid

MODELS, BENCHMARKS = [f"m{i}" for i in range(6)], ["u", "v", "w", "x"]
TRAINING_RULES = {"finetune_adapter", "select_adapter", "evaluate_adapter"}
BLOCK = [(m, b) for m in MODELS[:3] for b in BENCHMARKS]
ROUND_1 = BLOCK + [(m, "u") for m in MODELS[3:]]
ROUND_2 = [(m, b) for m in MODELS[3:5] for b in ("v", "x")]


@pytest.fixture
def make_grid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tuned = "".join(f"{m}\torg/{m}\t{i % 2}\n" for i, m in enumerate(MODELS))
    Path("m.tsv").write_text(f"model\tpath\tinstruction_tuned\n{tuned}")
    Path("b.tsv").write_text("benchmark\n" + "".join(f"{b}\n" for b in BENCHMARKS))

    def make(*rounds, size="auto"):
        rows = "".join(f"{m}\t{b}\t{number}\n" for number, pairs in enumerate(rounds, 1) for m, b in pairs)
        Path("plan.tsv").write_text(f"model\tbenchmark\tround\n{rows}")
        sizes = {rule: {"benchmarks": size} for rule in ("finetune_adapter", "evaluate_adapter")}
        given = {"name": "run", "models": "m.tsv", "benchmarks": "b.tsv", "batching": sizes}
        return Grid(build_run(given | ({"plan": "plan.tsv"} if rounds else {}), "f.yaml"))

    return make


def description(grid) -> dict:
    """What Snakemake sees of every job, by its name."""
    found = {}
    for job in grid.jobs.values():
        files = [grid.manifests(job), grid.inputs(job)]
        found[job[:3]] = repr([job.cells, grid.settings(job), files, rule_of(job).resources(grid.run, job)])
    return found


@pytest.mark.parametrize("size", [1, 2, "all", "auto"])
def test_a_later_round_changes_no_job_of_an_earlier_one_and_a_plan_of_everything_is_no_plan(make_grid, size):
    everything = [(m, b) for m in MODELS for b in BENCHMARKS]
    assert description(make_grid(everything, size=size)) == description(make_grid(size=size))
    before, after = description(make_grid(ROUND_1, size=size)), description(make_grid(ROUND_1, ROUND_2, size=size))
    assert before.items() <= after.items() and len(after) > len(before)
    added = {rule for rule, *_ in set(after) - set(before)}
    assert added == TRAINING_RULES


def test_only_planned_cells_are_fine_tuned_and_all_are_scored_directly(make_grid):
    whole, planned = make_grid(), make_grid(ROUND_1, ROUND_2)
    for rule in TRAINING_RULES:
        found = {(cell.model, cell.benchmark) for cell in planned.cells() if cell.rule == rule}
        assert found == {*ROUND_1, *ROUND_2}
    direct = [[cell for cell in grid.cells() if cell.rule not in TRAINING_RULES] for grid in (whole, planned)]
    assert direct[0] == direct[1]
    assert set(planned.cells()) < set(whole.cells())
