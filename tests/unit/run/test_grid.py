"""The grid: every cell in exactly one job, whatever the batching; names that can be files; dependencies.

A plan leaves fine-tunes out and nothing else, and a later round leaves the earlier one as it is. Jobs, settings lines
and resources of shipped configurations are on record: nothing would rerun.
"""

import json
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from tests.golden.grid_lines import CONFIGURATIONS, EXPECTED, ROOT, describe

from lm_validity.config.load import build_run
from lm_validity.errors import InputError
from lm_validity.run.cell import BenchmarkCell
from lm_validity.run.rules import rule_of
from lm_validity.run.rules.base import make_groups
from lm_validity.run.workspace import Grid


@pytest.fixture
def make_grid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("c.tsv").write_text("checkpoint\titeration\nearly\t1\nlate\t2\n")
    Path("m.tsv").write_text(
        "model\tpath\tinstruction_tuned\tcheckpoints\tstudies\n"
        "base\torg/a\t0\t\tagreement\n"
        "chatty\torg/b\t1\t\tagreement\n"
        "young\torg/c\t0\tc.tsv\tsignal\n"
        "both\torg/d\t0\tc.tsv\tagreement,signal\n"
    )
    Path("b.tsv").write_text("benchmark\tstudies\nx\t\ny\tagreement\nz\tsignal\n")

    def make(**more):
        given = {"name": "run", "models": "m.tsv", "benchmarks": "b.tsv", "studies": ["agreement", "signal"], **more}
        return Grid(build_run(given, "f.yaml"))

    return make


SIZES = [1, 2, "all", "auto"]


@pytest.mark.parametrize(("few", "many"), list(product(SIZES, SIZES)))
def test_batching_changes_jobs_and_never_cells(make_grid, few, many):
    def grid(few, many):
        batching = {
            "evaluate_model": {"benchmarks": few, "checkpoints": many},
            "finetune_adapter": {"benchmarks": few, "learning_rates": many},
            "evaluate_adapter": {"benchmarks": few},
        }
        return make_grid(finetuning={"learning_rates": ["1e-5", "2e-5", "5e-5"], "seeds": [0, 1]}, batching=batching)

    other = grid(few, many)
    assert len(other.cells()) == len(set(other.cells()))
    assert set(other.cells()) == set(grid(1, 1).cells())
    manifests = other.all_manifests()
    assert len(manifests) == len(set(manifests))


def test_two_jobs_of_one_name_are_refused(make_grid):
    Path("c.tsv").write_text("checkpoint\titeration\na.b\t1\nb\t2\n")
    Path("b.tsv").write_text("benchmark\tstudies\narc\tsignal\narc.a\tsignal\n")
    one = {"evaluate_model": {"benchmarks": 1, "checkpoints": 1}}
    grid = make_grid(studies=["signal"], batching=one)
    with pytest.raises(InputError, match=r"'arc\.a\.b\.plain'"):
        grid.all_manifests()


def test_counts_of_cells(make_grid):
    grid = make_grid(finetuning={"learning_rates": ["1e-5", "2e-5", "5e-5"], "seeds": [0, 1]})
    count = Counter(cell.rule for cell in grid.cells())
    # agreement: base, chatty (two prompts), both; benchmarks x, y; two splits. signal: young, both; 3 checkpoints; x, z
    # on test, of which (both, final, x, test) is the same cell in both studies
    assert count["evaluate_model"] == (1 + 2 + 1) * 2 * 2 + 2 * 3 * 2 - 1
    assert count["finetune_adapter"] == (1 + 2 + 1) * 2 * 3 * 2
    assert count["select_adapter"] == count["evaluate_adapter"] == 3 * 2 * 2
    assert count["select_prompt"] == 2


def test_one_cell_a_job_is_named_by_its_cell(make_grid):
    grid = make_grid(batching={"finetune_adapter": {"benchmarks": 1, "learning_rates": 1}})
    cell = BenchmarkCell("finetune_adapter", "base", "x", None, "plain", "1e-5", 0)
    assert cell.name == "x.plain.lr1e-5.seed0"
    assert grid.job_of[cell].batch == cell.name
    assert grid.manifest_of(cell) == "results/run/cells/finetune_adapter/base/x.plain.lr1e-5.seed0.json"


MADE = {"a": 30.0, "b": 40.0, "c": 200.0, "d": 50.0, "e": 50.0}


@pytest.mark.parametrize(
    ("members", "size", "groups"),
    [
        ("abc", 2, {"group-1-of-2-parts": "ab", "group-2-of-2-parts": "c"}),
        ("ab", "all", {"all-parts": "ab"}),
        ("a", "all", {"lra": "a"}),
        ("abcde", "auto", {"group-1-of-3-parts": "ab", "group-2-of-3-parts": "c", "group-3-of-3-parts": "de"}),
        ("c", "auto", {"lrc": "c"}),  # what takes longer is alone
        ("", "auto", {}),
    ],
)
def test_groups_are_cut_in_order(members, size, groups):
    made = make_groups({name: MADE[name] for name in members}, size, "parts", 100, "lr")
    assert {name: "".join(group) for name, group in made} == groups


MINUTES = {"gpu": 1, "evaluate_minutes": 60, "finetune_minutes": 120}


# job_hours, the batching of fine-tunes -> cells of each job of a base model: two benchmarks, three rates of two hours.
# One rate a job: as many benchmarks as fit with one rate, not with all three
CUTS = [(hours, {}, cells) for hours, cells in ((1, [1] * 6), (3, [1] * 6), (5, [2, 1] * 2), (12, [6]), (1000, [6]))]


@pytest.mark.parametrize(("hours", "sizes", "cells"), [*CUTS, (5, {"learning_rates": 1}, [2, 2, 2])])
def test_jobs_under_auto_are_as_long_as_allowed_and_no_longer(make_grid, hours, sizes, cells):
    """No job of several parts asks for more than job_hours; no two neighbours would fit one job."""
    grid = make_grid(
        batching={"job_hours": hours, "finetune_adapter": sizes},
        size_classes={"small": MINUTES},
        finetuning={"learning_rates": ["1e-5", "2e-5", "5e-5"]},
    )
    for job in grid.jobs.values():
        minutes, parts = rule_of(job).minutes(grid.run, job), {cell[2:4] + cell[5:6] for cell in job.cells}
        assert minutes <= 60 * hours or len(parts) == 1 or job.rule.startswith("select"), (job.batch, minutes)
    fine = [job for job in grid.jobs.values() if job.rule == "finetune_adapter" and job.model == "base"]
    assert [len(job.cells) for job in fine] == cells


def test_selection_stands_on_validation_only(make_grid):
    grid = make_grid()
    for job in grid.jobs.values():
        if job.rule in ("select_prompt", "select_adapter"):
            assert all("test" not in Path(path).name for path in grid.dependencies(job))
        if job.rule == "finetune_adapter":
            assert {Path(path).stem for path in rule_of(job).data_files(grid.run, job)} == {"train", "validation"}


def test_settings_tell_what_changes_numbers(make_grid):
    def said(rule="finetune_adapter", model="base", batch="x.plain.all-rates.seed0", **more):
        grid = make_grid(batching={"finetune_adapter": {"benchmarks": 1}}, **more)
        return grid.settings(grid.jobs[rule, model, batch])

    before = said()
    assert before != said(finetuning={"epochs": 4})
    no_number = {"finetuning": {"gradient_checkpointing": True}, "evaluation": {"batch_size": 3}}
    assert before == said(**no_number, reports={"resamples": 7})
    # lists may change while the batch keeps its name
    for rates in (["1e-5", "3e-5", "5e-5"], ["1e-5", "2e-5"]):
        assert before != said(finetuning={"learning_rates": rates})
    early = ("evaluate_model", "young", "all-benchmarks.all-checkpoints.plain")
    before = said(*early)
    Path("c.tsv").write_text("checkpoint\titeration\nearly\t1\nlater\t3\n")
    assert before != said(*early)


RECORDED = json.loads(EXPECTED.read_text())


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_jobs_are_those_on_record(configuration, monkeypatch):
    """Where a change is meant: python tests/golden/grid_lines.py --renew, and say so in the commit."""
    monkeypatch.chdir(ROOT)
    assert describe(configuration) == RECORDED[configuration]


def test_every_record_is_of_a_configuration():
    assert set(RECORDED) == set(CONFIGURATIONS)


MODELS, BENCHMARKS = [f"m{i}" for i in range(6)], ["u", "v", "w", "x"]
TRAINING_RULES = {"finetune_adapter", "select_adapter", "evaluate_adapter"}
BLOCK = [(m, b) for m in MODELS[:3] for b in BENCHMARKS]
ROUND_1 = BLOCK + [(m, "u") for m in MODELS[3:]]
ROUND_2 = [(m, b) for m in MODELS[3:5] for b in ("v", "x")]


@pytest.fixture
def make_planned(tmp_path, monkeypatch):
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
def test_a_later_round_changes_no_job_of_an_earlier_one_and_a_plan_of_everything_is_no_plan(make_planned, size):
    everything = [(m, b) for m in MODELS for b in BENCHMARKS]
    assert description(make_planned(everything, size=size)) == description(make_planned(size=size))
    before, after = (
        description(make_planned(ROUND_1, size=size)),
        description(make_planned(ROUND_1, ROUND_2, size=size)),
    )
    assert before.items() <= after.items() and len(after) > len(before)
    added = {rule for rule, *_ in set(after) - set(before)}
    assert added == TRAINING_RULES


def test_only_planned_cells_are_fine_tuned_and_all_are_scored_directly(make_planned):
    whole, planned = make_planned(), make_planned(ROUND_1, ROUND_2)
    for rule in TRAINING_RULES:
        found = {(cell.model, cell.benchmark) for cell in planned.cells() if cell.rule == rule}
        assert found == {*ROUND_1, *ROUND_2}
    direct = [[cell for cell in grid.cells() if cell.rule not in TRAINING_RULES] for grid in (whole, planned)]
    assert direct[0] == direct[1]
    assert set(planned.cells()) < set(whole.cells())
