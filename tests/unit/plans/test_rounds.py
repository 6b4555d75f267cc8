"""`lm-validity plan next` and `rounds`: which cells are added to a plan, when nothing is, and what runs in turn."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.unit.monitor.conftest import MADE_UP, built, finished_once, made_up, prefetch, run_all  # noqa: F401 (fixtures)

from lm_validity.cli import study as command
from lm_validity.config.load import BY_SCORES, RULED_OUT, load_run, read_cells
from lm_validity.errors import InputError
from lm_validity.monitor.render import hours_in_words
from lm_validity.monitor.status import Estimator, total, training_costs
from lm_validity.plans.rounds import Outlook, check_finished, choose_round, parse_goal, standing_of
from lm_validity.tables.merge import Merger
from lm_validity.tables.schema import SCORES, write_table

CONFIG = Path("replay/replay.yaml")
MODELS = ("oak-s", "oak-m", "oak-l", "elm-s", "elm-m", "elm-m-chat")
PLANNED = [(m, "riddles") for m in MODELS] + [(m, b) for m in MODELS[::2] for b in ("proverbs", "sums")]


def compute(configfile=CONFIG) -> None:
    """What the workflow would do up to the tables."""
    run = load_run(configfile)
    run_all(run)
    Merger(run).write_scores(run.results / "tables")


@pytest.fixture(scope="module")
def measured_once(tmp_path_factory) -> Path:
    """The folder of the made-up run with 12 of its 18 cells planned and measured; nobody changes it."""
    folder = tmp_path_factory.mktemp("measured")
    shutil.copytree(MADE_UP, folder / "replay")
    with contextlib.chdir(folder):
        rows = "".join(f"{m}\t{b}\tblock\n" for m, b in PLANNED)
        Path("replay/plan.tsv").write_text(f"model\tbenchmark\treason\n{rows}")
        CONFIG.write_text(f"{CONFIG.read_text()}\nplan: replay/plan.tsv\n")
        compute()
    return folder


@pytest.fixture
def measured(measured_once, tmp_path, monkeypatch):
    """A copy of it."""
    shutil.copytree(measured_once, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return load_run(CONFIG)


def costs_of(run) -> dict:
    return training_costs(Estimator(run))


@pytest.mark.parametrize("goal", ["tau=1", "tau=0", "rank", "rank=-1", "rank=nan", "p=.05", "budget=soon", ""])
def test_what_is_no_goal_is_refused(goal):
    with pytest.raises(InputError, match="not a goal"):
        parse_goal(goal)


def test_a_goal_is_reached_by_width_or_expected_agreement():
    outlook = Outlook(0.95, np.array([1.0, 2.5]))
    reached = {"tau=.95": True, "tau=.96": False, "rank=2.5": True, "rank=2.4": False, "budget=1": False}
    assert {goal: parse_goal(goal).reached(outlook) for goal in reached} == reached
    assert list(parse_goal("rank=2").models(outlook)) == [False, True]


def test_the_next_round_is_added_to_the_plan_and_changes_no_earlier_row(measured, capsys):
    before = Path("replay/plan.tsv").read_text().splitlines()
    command.next_round("tau=.999", CONFIG)
    plan = read_cells("replay/plan.tsv")
    assert list(plan)[:12] == PLANNED and {plan[pair].round for pair in PLANNED} == {1}
    added = [one for one in plan.values() if one.round == 2]
    # at most a tenth of 18 cells, and at least one
    assert len(plan) == 12 + len(added) == 14 and {(one.reason, one.seed) for one in added} == {(BY_SCORES, None)}
    assert len(Path("replay/plan.tsv").read_text().splitlines()) == len(before) + 2
    said = capsys.readouterr().out
    assert "tau=0.999" in said and said.count("expected tau ") == 2
    assert all(f"{one.model} on {one.benchmark}" in said for one in added)
    with pytest.raises(InputError, match=r"2 planned .*/tables ") as caught:
        command.next_round("tau=.999", CONFIG)
    assert all(words in caught.value.hint for words in ("run the workflow", f"'{RULED_OUT}'", "replay/plan.tsv"))


def test_a_cell_that_the_plan_rules_out_is_never_chosen_again(measured):
    """What it costs is then infinite; the other unmeasured cells have hours."""
    path, free = Path("replay/plan.tsv"), costs_of(measured).keys() - measured.plan.keys()
    out = sorted(free)[::2]
    path.write_text(path.read_text() + "".join(f"{m}\t{b}\tcannot succeed\n" for m, b in out))
    run = load_run(CONFIG)
    check_finished(standing := standing_of(run), run.plan)
    hours = standing.hours(costs_of(run), run.plan)
    models, benchmarks = standing.names
    assert {(models[i], benchmarks[j]) for i, j in zip(*np.nonzero(np.isfinite(hours)), strict=True)} == free - set(out)


def test_a_goal_that_is_reached_and_a_budget_that_is_spent_or_exceeded_add_nothing(measured, capsys):
    before, spent = Path("replay/plan.tsv").read_bytes(), total(costs_of(measured), PLANNED)
    for goal in ("tau=0.01", "rank=6", f"budget={spent * 1.0001}", "budget=0.0001"):
        command.next_round(goal, CONFIG)
        said = capsys.readouterr().out
        assert ("is reached" in said) == (goal != "budget=0.0001") == (f" {hours_in_words(spent)} " not in said)
    assert Path("replay/plan.tsv").read_bytes() == before


def test_a_budget_is_of_the_whole_plan_and_not_exceeded(measured):
    costs = costs_of(measured)
    spent, cheapest = total(costs, PLANNED), min(costs[m, "sums"] for m in MODELS[1::2])
    found = choose_round(standing_of(measured), parse_goal(f"budget={spent + 1.5 * cheapest}"), costs)
    assert found.cells and found.hours <= 1.5 * cheapest
    assert found.hours == pytest.approx(total(costs, [(one.model, one.benchmark) for one in found.cells]))


def test_a_planned_benchmark_without_any_score_is_not_finished(built):  # noqa: F811
    folder, planned = built.results / "tables", {(m, b): None for m in MODELS for b in built.benchmarks}
    Merger(built).write_scores(folder)
    check_finished(standing_of(built), planned)
    rows = pd.read_parquet(folder / "scores.parquet")
    write_table(rows[rows.benchmark != "sums"], SCORES, folder / "scores.parquet")
    with pytest.raises(InputError, match=r"6 planned .*/tables ") as caught:
        check_finished(standing_of(built), planned)
    assert "oak-s on sums" in caught.value.problem and "plan --cells" in caught.value.hint


@pytest.mark.parametrize("limit", ["MOST_CELLS", "MOST_MODELS", "DRAWS"])
def test_what_to_do_without_a_prediction_depends_on_why(measured, monkeypatch, limit):
    monkeypatch.setattr(f"lm_validity.plans.rounds.{limit}", 5)
    monkeypatch.setattr("lm_validity.plans.rounds.fit_cells", lambda *_: None)
    with pytest.raises(InputError, match=r"no model of the scores") as caught:
        standing_of(measured)
    assert ("more cells" if limit == "DRAWS" else "--cells") in caught.value.hint


def test_nothing_is_chosen_before_anything_is_measured(made_up):  # noqa: F811
    with pytest.raises(InputError, match=r"replay\.yaml"):
        command.next_round("rank=2", CONFIG)
    with pytest.raises(InputError, match=r"scores\.parquet: no such file.* run the workflow"):
        standing_of(made_up)


@pytest.fixture
def workflow(monkeypatch):
    """The workflow in this process; the commands that were run."""
    calls = []

    def run(arguments) -> int:
        calls.append(arguments[3:])
        if "prefetch" in arguments:
            prefetch(load_run(arguments[-1]))
        else:
            compute(Path(arguments[-1]))
        return 0

    monkeypatch.setattr(command, "run_to_its_end", run)
    return calls


def test_rounds_run_workflow_and_next_in_turn_until_the_goal_is_reached(measured, workflow, capsys):
    command.run_rounds("tau=.9999999", ["--cores", "1"], CONFIG)
    plan, once = read_cells("replay/plan.tsv"), ("--cores", "1", "--configfile", str(CONFIG))
    assert 12 < len(plan) <= 18 and [one.round for one in plan.values()] == sorted(one.round for one in plan.values())
    assert set(workflow) == {once} and len(workflow) == 1 + len({one.round for one in plan.values()}) - 1
    workflow.clear()
    command.run_rounds("tau=.9999999", None, CONFIG)
    assert len(workflow) == 1 and "is reached" in capsys.readouterr().out


def test_rounds_begin_with_a_plan_where_there_is_none(made_up, workflow):  # noqa: F811
    with pytest.raises(InputError, match="'plan'"):
        command.run_rounds("rank=2", None, CONFIG)
    assert not workflow
    CONFIG.write_text(f"{CONFIG.read_text()}\nplan: replay/first.tsv\n")
    command.run_rounds("rank=2", None, CONFIG)
    # six models: the block is all of them
    assert len(read_cells("replay/first.tsv")) == 18
    assert workflow[0][0] == "prefetch" and len(workflow) == 2


@pytest.mark.parametrize("option", ["-np", "--dry-ru", "--unlock"])
def test_no_plan_comes_of_a_workflow_that_does_not_run(made_up, workflow, option):  # noqa: F811
    """Its documents would not be counted, so that no benchmark is known to be cheap."""
    CONFIG.write_text(f"{CONFIG.read_text()}\nplan: replay/first.tsv\n")
    with pytest.raises(InputError, match=f"{option}: nothing is computed"):
        command.run_rounds("rank=2", ["--cores", "1", option], CONFIG)
    assert not workflow and not Path("replay/first.tsv").exists()


@pytest.mark.parametrize("left_out", [None, "sums"])
def test_no_plan_comes_of_documents_that_are_not_counted(made_up, monkeypatch, left_out):  # noqa: F811
    """With --summary, --lint and others Snakemake ends well, and has computed nothing."""
    CONFIG.write_text(f"{CONFIG.read_text()}\nplan: replay/first.tsv\n")
    if left_out:
        prefetch(made_up)
        (made_up.results / "prefetch" / "benchmarks" / f"{left_out}.json").unlink()
    calls = []
    monkeypatch.setattr(command, "run_to_its_end", lambda arguments: calls.append(arguments) or 0)
    with pytest.raises(InputError) as caught:
        command.run_rounds("rank=2", ["--summary"], CONFIG)
    assert "sums" in caught.value.problem and len(calls) == 1 and not Path("replay/first.tsv").exists()


@pytest.mark.parametrize(("goal", "error"), [("rank=2", SystemExit), (None, InputError)])
def test_a_workflow_that_fails_ends_the_rounds_and_none_runs_for_nothing(measured, monkeypatch, goal, error):
    before, calls = Path("replay/plan.tsv").read_bytes(), []
    monkeypatch.setattr(command, "run_to_its_end", lambda _: calls.append(_) or 3)
    with pytest.raises(error) as caught:
        command.run_rounds(goal, None, CONFIG)
    assert Path("replay/plan.tsv").read_bytes() == before and len(calls) == (goal is not None)
    assert getattr(caught.value, "code", 3) == 3


# Snakemake's part: asked to end, it takes its time, longer than `subprocess.run` would wait; its code may be 0
STOPPED = """
import signal, sys, time
def stop(number, frame):
    time.sleep(0.5)
    open("stopped", "w").close()
    sys.exit(number if sys.argv[1] == "code" else 0)
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGTERM, stop)
open("ready", "w").close()
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "to_all", "ends", "code"),
    [
        (signal.SIGINT, True, "code", signal.SIGINT),
        (signal.SIGTERM, False, "code", signal.SIGTERM),
        (signal.SIGTERM, False, "well", 128 + signal.SIGTERM),
    ],
)
def test_who_interrupts_the_rounds_lets_the_workflow_stop_its_jobs_and_ends_them(tmp_path, number, to_all, ends, code):
    """Ctrl-C goes to both processes, as a terminal sends it; SIGTERM to the first one only."""
    (tmp_path / "slow.py").write_text(STOPPED)
    program = "import sys; from lm_validity.cli.study import run_to_its_end as run; sys.exit(run(sys.argv[1:]))"
    arguments = (sys.executable, "-c", program, sys.executable, "slow.py", ends)
    with subprocess.Popen(arguments, cwd=tmp_path, start_new_session=True) as process:
        while not (tmp_path / "ready").exists():
            time.sleep(0.05)
        (os.killpg if to_all else os.kill)(process.pid, number)
        assert process.wait() == code and (tmp_path / "stopped").exists()
