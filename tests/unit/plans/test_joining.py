"""`lm-validity plan add-model`: which cells place a model that joins a finished study."""

from pathlib import Path

import pandas as pd
import pytest
from tests.unit.monitor.conftest import built, finished_once, made_up  # noqa: F401 (fixtures)

from lm_validity.cli import study as command
from lm_validity.config.load import JOINS, load_run, read_cells, read_plan
from lm_validity.errors import InputError
from lm_validity.monitor.status import Estimator, training_costs
from lm_validity.plans.rounds import COMPLETE, Joining, JoiningCell, describe_cells, parse_goal, place_model
from lm_validity.run.workspace import Grid
from lm_validity.tables.merge import Merger
from lm_validity.tables.schema import SCORES, write_table

CONFIG, NEW = Path("replay/replay.yaml"), "oak-m"
BENCHMARKS = ["riddles", "proverbs", "sums"]


@pytest.fixture
def study(built):  # noqa: F811
    """The made-up run, finished but for one model, which has direct scores only; a function that drops more rows."""
    folder = built.results / "tables"
    Merger(built).write_scores(folder)

    def drop(which) -> None:
        rows = pd.read_parquet(folder / "scores.parquet")
        write_table(rows[~which(rows)], SCORES, folder / "scores.parquet")

    drop(lambda rows: (rows.model == NEW) & (rows.protocol == "train_before_test"))
    return built, drop


def placed(run):
    return place_model(run, NEW, training_costs(Estimator(run)))


@pytest.mark.parametrize("scored", [True, False])
def test_each_cell_has_its_hours_and_what_it_makes_of_the_interval(study, scored):
    """Also of a model that nothing was measured of, not even directly."""
    run, drop = study
    if not scored:
        drop(lambda rows: rows.model == NEW)
    found, costs = placed(run), training_costs(Estimator(run))
    assert sorted(one.benchmark for one in found.places) == sorted(BENCHMARKS)
    chosen = [costs[NEW, one.benchmark] for one in found.places]
    assert [one.hours for one in found.places] == pytest.approx([sum(chosen[:n]) for n in (1, 2, 3)])
    assert found.whole_hours == pytest.approx(sum(chosen)) and found.models == 6
    assert 1 <= found.interval[0] <= found.rank <= found.interval[1] <= 6
    assert found.half_width == pytest.approx((found.interval[1] - found.interval[0]) / 2)
    widths = [found.half_width, *(one.half_width for one in found.places)]
    assert widths == sorted(widths, reverse=True) and widths[-1] < widths[0]


def test_a_goal_takes_as_many_cells_as_it_needs():
    places = [JoiningCell("a", 1.0, 2.5), JoiningCell("b", 3.0, 2.0), JoiningCell("c", 9.0, 1.5)]
    found = Joining(NEW, 9, 4.0, (1.0, 7.0), 3.0, places, 9.0)
    taken = {"rank=3": (0, True), "rank=2": (2, True), "rank=1": (3, False), "budget=3.5": (2, True),
             "budget=.5": (0, False)}  # fmt: skip
    for goal, (number, reached) in taken.items():
        assert found.until(parse_goal(goal)) == places[:number] and found.reaches(parse_goal(goal)) == reached
    said = {goal: describe_cells(found, parse_goal(goal)) for goal in taken}
    assert "NOT" in said["rank=1"] and len(set(said.values())) == 5


def test_the_cells_become_a_round_and_the_other_models_jobs_stay(study, capsys):
    run, _ = study
    for goal, said in ((None, "oak-m among 6 "), ("rank=6", "rank=6 ")):
        command.add_model(NEW, goal, CONFIG, Path("joined.tsv"))
        assert not Path("joined.tsv").exists() and said in capsys.readouterr().out
    command.add_model(NEW, "budget=1000", CONFIG, Path("joined.tsv"))
    assert "Set `plan: joined.tsv`" in capsys.readouterr().out
    plan = read_plan("joined.tsv", *run.agreement_names)
    own = {name: cell for (model, name), cell in plan.items() if model == NEW}
    assert len(plan) == 18 and {(one.round, one.reason) for one in own.values()} == {(2, JOINS)}
    assert {one.reason for (model, _), one in plan.items() if model != NEW} == {COMPLETE}
    assert {pair for pair, one in plan.items() if one.by_scores} == {(NEW, name) for name in BENCHMARKS}
    CONFIG.write_text(f"{CONFIG.read_text()}\nplan: joined.tsv\n")
    before, after = Grid(run), Grid(load_run(CONFIG))
    for key, job in before.jobs.items():
        if job.model != NEW or job.rule == "evaluate_model":
            assert after.jobs[key] == job and after.settings(job) == before.settings(job)
    with pytest.raises(InputError, match=r"joined\.tsv: 'oak-m' .* 3 "):
        command.add_model(NEW, "rank=1", CONFIG)


def test_another_file_than_the_plan_is_to_be_named(study, capsys):
    rows = "".join(f"{m}\t{b}\n" for m in study[0].models if m != NEW for b in BENCHMARKS)
    Path("others.tsv").write_text(f"model\tbenchmark\n{rows}")
    CONFIG.write_text(f"{CONFIG.read_text()}\nplan: others.tsv\n")
    command.add_model(NEW, "budget=1000", CONFIG, Path("more.tsv"))
    assert "Set `plan: more.tsv`" in capsys.readouterr().out and Path("others.tsv").read_text().count("\n") == 16
    command.add_model(NEW, "budget=1000", CONFIG)
    assert "Set" not in capsys.readouterr().out and read_cells("others.tsv") == read_cells("more.tsv")


@pytest.mark.parametrize(
    ("model", "goal", "drop", "problem"),
    [
        ("oak-n", "rank=1", None, "'oak-n'"),
        ("oak-s", "rank=1", None, "3 planned .*oak-m on "),
        (NEW, "tau=.9", None, "--goal tau=.9"),
        (NEW, "rank=1", ("elm-s", "sums"), r"1 planned .*\(elm-s on sums\)"),
    ],
)
def test_what_cannot_be_placed_is_refused_and_writes_nothing(study, model, goal, drop, problem):
    if drop:
        study[1](lambda rows: (rows.model == drop[0]) & (rows.benchmark == drop[1]) & (rows.protocol != "direct"))
    with pytest.raises(InputError, match=problem):
        command.add_model(model, goal, CONFIG, Path("joined.tsv"))
    assert not Path("joined.tsv").exists()


def test_a_model_with_train_before_test_scores_has_joined_already(built):  # noqa: F811
    Merger(built).write_scores(built.results / "tables")
    with pytest.raises(InputError, match="'oak-m' "):
        placed(built)
