"""The bias study in batches: which tasks get another one, what that changes, and what the page says of it."""

import itertools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.unit.config.test_bias_configuration import make_run  # noqa: F401 (a fixture)
from tests.unit.run.test_grid import description

from lm_validity.cli import study as command
from lm_validity.cli.reports import bias as report_command
from lm_validity.config.load import load_run
from lm_validity.errors import InputError
from lm_validity.files import write_json
from lm_validity.monitor.render import describe_plans
from lm_validity.plans.rounds import add_batch
from lm_validity.results.put import Rows, ends_of
from lm_validity.run.workspace import Grid
from lm_validity.studies.bias.numbers import HOPELESS, PLANNED, least_half_width, stop_rows, stop_words, task_rows
from lm_validity.studies.bias.trials import missing_trials, pair_arms, read_trials
from lm_validity.tables.schema import TRIALS, write_table

STOP = {"stop_at_half_width": 0.02, "plan": "plan.tsv", "subsamples_a_cell": 5}
EXPERIMENTS = {"head": {"m": [10], "n": [30, 200], "subsamples": {30: 22, 200: 12}}}
ROW = "experiment\ttask\tround\tsubsamples\thalf_width\n"
CONFIG = Path("run.yaml")
numbers = re.compile(r"\d+(?:\.\d+)?").findall


@pytest.fixture
def start(make_run):  # noqa: F811
    """Write the configuration and load it; options of the section `bias`, and how many cells share a job."""

    def make(cells=1, **bias):
        section = {"language_models": "models.tsv", "tasks": "tasks.tsv", "experiments": EXPERIMENTS, **STOP, **bias}
        make_run()  # writes the sheets
        more = {"batching": {"pretrain_on_test": {"cells": cells}}}
        write_json(CONFIG, {"name": "run", "studies": ["bias"], "bias": section, **more})
        return load_run(CONFIG)

    return make


def subsamples(run) -> dict:
    """By (task, n): the subsamples of the grid, each once in a language model."""
    found: dict = {}
    for job in Grid(run).jobs.values():
        for cell in job.cells:
            found.setdefault((cell.model, cell.task, cell.n), []).extend(range(cell.first, cell.last + 1))
    assert all(len(set(drawn)) == len(drawn) for drawn in found.values())
    return {key[1:]: max(drawn) for key, drawn in found.items() if set(drawn) == set(range(1, len(drawn) + 1))}


def measure(run, news: float = 0.005, mail: float = 0.08, shift: float = 0.0, total: int = 2000) -> pd.DataFrame:
    """What the workflow would do up to the table: a bias around `shift` with a standard deviation by task."""
    rows, spread = [], {"news": news, "mail": mail}
    for job in Grid(run).jobs.values():
        for cell in job.cells:
            for number in range(cell.first, cell.last + 1):
                rng = np.random.default_rng([number, cell.n, *cell.task.encode(), *cell.model.encode()])
                test = round(total * (0.5 + shift + spread[cell.task] * rng.normal()))
                key = (cell.experiment, cell.model, cell.task, cell.m, cell.n, number)
                arms = {"base": total // 2, "extra": total // 2, "test": test}
                rows += [(*key, arm, correct, total, None, f"{number}") for arm, correct in arms.items()]
    frame = pd.DataFrame(rows, columns=TRIALS.names)
    write_table(frame, TRIALS, run.results / "tables" / "trials.parquet")
    return frame


def test_the_first_batch_holds_ten_subsamples_in_whole_cells(start):
    assert subsamples(start())["news", 200] == 10
    for a_cell, number in ((5, 10), (4, 12), (25, 22)):
        assert subsamples(start(subsamples_a_cell=a_cell))["news", 30] == number


@pytest.mark.parametrize("cells", [1, 3, "all"])
def test_a_further_batch_changes_no_job_of_an_earlier_one(start, cells):
    before = description(Grid(start(cells)))
    Path("plan.tsv").write_text(f"{ROW}head\tmail\t2\t15\t0.03\n")
    second = start(cells)
    assert subsamples(second) == {("news", 30): 10, ("news", 200): 10, ("mail", 30): 15, ("mail", 200): 12}
    Path("plan.tsv").write_text(f"{ROW}head\tmail\t2\t15\t0.03\nhead\tmail\t3\t20\t\nhead\tnews\t3\t15\t\n")
    third = start(cells)
    assert subsamples(third) == {("news", 30): 15, ("news", 200): 12, ("mail", 30): 20, ("mail", 200): 12}
    descriptions = [before, description(Grid(second)), description(Grid(third))]
    assert all(one.items() < two.items() for one, two in itertools.pairwise(descriptions))


def test_the_cells_are_those_of_the_whole_study(start):
    """So a study that first ran in batches and then in full, or the other way round, computes nothing twice."""
    rows = [f"head\t{task}\t{number}\t{most}\t\n" for number, most in ((2, 20), (3, 25)) for task in ("mail", "news")]
    Path("plan.tsv").write_text(ROW + "".join(rows))
    whole = start(stop_at_half_width=None, plan=None)
    assert set(Grid(start()).cells()) == set(Grid(whole).cells())


def test_an_experiment_may_have_fewer_subsamples_than_when_its_plan_was_written(start):
    Path("plan.tsv").write_text(f"{ROW}head\tmail\t2\t15\t\nhead\tmail\t3\t20\t\n")
    run = start(experiments={"head": {"m": [10], "n": [30], "subsamples": 12}})
    assert subsamples(run) == {("news", 30): 10, ("mail", 30): 12}
    assert run.bias_plan.totals("head", "mail") == {1: 10, 2: 12, 3: 12}


def test_wide_tasks_go_on_and_narrow_ones_stop(start, capsys):
    run = start()
    measure(run)
    command.next_round(None, CONFIG)
    mail, news, added = capsys.readouterr().out.splitlines()
    assert re.search(r"mail: 10 of 22 .*±0\.04", mail) and re.search(r"news: 10 of 22 .*±0\.00", news)
    assert added.startswith("plan.tsv: ") and numbers(added) == ["5", "1", "2"]
    run = load_run(CONFIG)
    assert subsamples(run) == {("news", 30): 10, ("news", 200): 10, ("mail", 30): 15, ("mail", 200): 12}
    (row,) = run.bias_plan.rows.values()
    assert row.half_width == pytest.approx(half_widths(run)["mail"], rel=1e-5)
    assert numbers(describe_plans(run)[0]) == ["10", "15", "22", "2", "0.02"]
    with pytest.raises(InputError, match=r"4 .*/tables .*mail") as caught:
        command.next_round(None, CONFIG)
    assert "run the workflow" in caught.value.hint
    for total in (20, 22, 22):  # until all there are
        measure(run)
        command.next_round(None, CONFIG)
        run = load_run(CONFIG)
        assert subsamples(run)["mail", 30] == total
    mail, _, nothing = capsys.readouterr().out.splitlines()[-3:]
    assert mail.startswith("  mail: 22 of 22 ") and numbers(nothing) == ["0.02"]


def biases(trials, plan=None, maker=task_rows) -> Rows:
    """The rows of single tasks, or where these stop."""
    rows = Rows("bias")
    maker(rows, trials, plan)
    return rows


def half_width(rows: Rows, task: str) -> float:
    """Of the interval of a task's bias."""
    return np.diff(ends_of(rows.row("task_effect", subject=task, effect="bias")))[0] / 2


def half_widths(run) -> dict:
    rows = biases(read_trials(run.results / "tables" / "trials.parquet"))
    return {task: half_width(rows, task) for task in rows.labels("subject", "task_effect")}


@pytest.mark.parametrize("shift", [0.0, 0.3, -0.3])
def test_only_the_width_decides(start, shift):
    """Trials that are all moved by 30 points: the same tasks go on, with the same widths."""
    run = start()
    measure(run, mail=0.06, shift=shift)
    add_batch(run)
    (row,) = load_run(CONFIG).bias_plan.rows.values()
    assert (row.task, row.round, row.subsamples) == ("mail", 2, 15)
    assert row.half_width == pytest.approx(0.03395, abs=1e-4)


def test_no_batch_is_bought_that_cannot_help(start):
    """Of n = 200 there are 10 subsamples only: with few of them the interval stays wide whatever n = 30 gets."""
    experiments = {"head": {"m": [10], "n": [30, 200], "subsamples": {30: 200, 200: 10}}}
    Path("plan.tsv").write_text(f"{ROW}head\tmail\t2\t15\t\nhead\tnews\t2\t15\t\n")
    run = start(experiments=experiments)
    rows = measure(run, 0.08, 0.12)
    lines, added = add_batch(run)
    assert added == 1 and lines[0].startswith("  mail: 15 of 200 ")
    assert load_run(CONFIG).bias_plan.planned("head", "news") == 20
    trials = pair_arms(rows)
    least = least_half_width(trials[trials.task == "mail"], 200)
    endless = pd.concat([trials.assign(subsample=trials.subsample + 15 * k) for k in range(400)])  # of n = 30 alone
    endless = pd.concat([trials[trials.n == 200], endless[endless.n == 30]])
    assert half_width(biases(endless), "mail") == pytest.approx(least, rel=0.02)
    states = biases(trials, run.bias_plan, stop_rows).all("stop_state")
    assert [row.subject for row in states if row.text == HOPELESS] == ["mail"]


def test_the_last_batch_may_be_smaller(start):
    Path("plan.tsv").write_text(f"{ROW}head\tmail\t2\t20\t\n")
    run = start(experiments={"head": {"m": [10], "n": [30], "subsamples": 22}})
    measure(run, 0.1, 0.1)
    assert numbers(add_batch(run)[0][-1]) == ["2", "5", "2", "2"]


def test_a_batch_that_another_command_added_meanwhile_is_not_lost(start):
    run = start()
    measure(run)
    Path("plan.tsv").write_text(f"{ROW}head\tnews\t2\t15\t\n")
    with pytest.raises(InputError, match="changed while"):
        add_batch(run)
    assert "mail" not in Path("plan.tsv").read_text()


def test_an_interval_that_may_have_stopped_is_never_narrower_than_the_width(start):
    run = start()
    rows = measure(run, shift=0.01)
    trials, plan = pair_arms(rows), run.bias_plan
    shown, own = biases(trials, plan), biases(trials)
    news, mail = {"subject": "news", "effect": "bias"}, {"subject": "mail", "effect": "bias"}
    # by Holm over both tasks, of which the other one's interval is wider now
    assert shown.row("task_effect", **mail) == own.row("task_effect", **mail)
    assert shown.value("task_effect", **news) == own.value("task_effect", **news)
    assert shown.value("task_effect_p_adjusted", **news) > own.value("task_effect_p_adjusted", **news)
    assert half_width(shown, "news") == pytest.approx(0.02) and half_width(own, "news") < 0.01
    beyond = [rows.value("task_effect_excluded_beyond", **news) for rows in (shown, own)]
    reach, before = np.array(beyond) - abs(own.value("task_effect", **news))
    assert reach == pytest.approx(0.02 * before / half_width(own, "news"))
    assert shown.all("task_effect", effect="boost") == own.all("task_effect", effect="boost")
    Path("plan.tsv").write_text(f"{ROW}head\tnews\t2\t25\t\n")
    run = load_run(CONFIG)
    trials = pair_arms(measure(run, shift=0.01))
    whole, without = (biases(trials, one).all("task_effect", subject="news") for one in (run.bias_plan, None))
    assert whole == without  # all subsamples are planned and there: nothing was stopped


def test_what_is_not_planned_is_not_missing(start):
    Path("plan.tsv").write_text(f"{ROW}head\tmail\t2\t15\t\n")
    run = start()
    trials = pair_arms(measure(run, 0.01))
    assert missing_trials(trials, "bias", run.bias_plan).empty and not missing_trials(trials, "bias").empty
    fewer = trials[~((trials.task == "news") & (trials.subsample == 4) & (trials.n == 30))]
    gaps = missing_trials(fewer, "bias", run.bias_plan)
    assert set(gaps.task) == {"news"} and set(gaps.expected) == {10} and set(gaps.subsamples) == {9}


def test_a_task_whose_planned_batch_is_not_there_has_neither_stopped_nor_all(start):
    """As the partial report shows it, between `next` and the end of the workflow."""
    run = start()
    rows = measure(run, mail=0.005, shift=0.01)
    Path("plan.tsv").write_text(f"{ROW}head\tnews\t2\t25\t\nhead\tmail\t2\t15\t\n")
    run, trials = load_run(CONFIG), pair_arms(rows)
    rows = biases(trials, run.bias_plan, stop_rows)
    for row in rows.all("stop_state"):
        assert row.text == PLANNED and stop_words(rows, "head", row.subject).startswith(f"{row.subject}: 10 of 22 ")
    for task in ("news", "mail"):
        assert half_width(biases(trials, run.bias_plan), task) == pytest.approx(0.02)


def test_trials_of_another_configuration_are_named(start):
    run = start()
    write_table(measure(run).assign(experiment="other"), TRIALS, Path("other.parquet"))
    with pytest.raises(InputError, match="'other'"):
        report_command(Path("other.parquet"), Path("report"), "laplace", "overdispersed", CONFIG)


@pytest.mark.parametrize(
    ("bias", "row", "problem"),
    [
        ({"plan": None}, "", "stop_at_half_width .*plan"),
        ({"stop_at_half_width": None}, "", "stop_at_half_width .*plan"),
        ({"subsamples_a_cell": "all"}, "", "subsamples_a_cell"),
        ({"stop_at_half_width": 0}, "", "stop_at_half_width"),
        ({}, "head\tpost\t2\t15\t", "row 2, column 'task', value 'post'.* rows "),
        ({}, "body\tmail\t2\t15\t", "row 2, column 'experiment', value 'body'.* rows "),
        ({}, "head\tmail\t1\t15\t", "row 2, column 'round'"),
        ({}, "head\tmail\t2\t13\t", "task 'mail', round 2: 13 .* 5"),
        ({}, "head\tmail\t2\t10\t", "task 'mail', round 2: 10 "),
        ({}, "head\tmail\t2\t15\t\nhead\tmail\t2\t20\t", "occurs twice"),
    ],
)
def test_settings_and_rows_of_the_plan_that_do_not_fit_are_named(start, bias, row, problem):
    Path("plan.tsv").write_text(f"{ROW}{row}\n" if row else ROW)
    with pytest.raises(InputError, match=problem):
        start(**bias)


def test_next_and_rounds_need_something_to_add(start, monkeypatch):
    start(stop_at_half_width=None, plan=None)
    with pytest.raises(InputError, match=r"run\.yaml: .*--goal"):
        command.next_round(None, CONFIG)
    start()
    runs = []

    def run_workflow(configfile, *options):
        runs.append(options)
        measure(load_run(configfile), mail=0.045)

    monkeypatch.setattr(command, "_run_workflow", run_workflow)
    command.run_rounds(None, ["--cores", "1"], CONFIG)
    assert 1 < len(runs) < 5 and set(runs) == {("--cores", "1")}
    assert max(half_widths(load_run(CONFIG)).values()) <= 0.02 and subsamples(load_run(CONFIG))["news", 30] == 10
