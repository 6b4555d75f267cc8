"""`lm-validity plan`: designs from expected cost and chance, what they cost and save, and what is said of the rest."""

import json
import random
import re
import shutil
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from tests.unit.monitor.conftest import run_all

from lm_validity.cells.runner import read_served
from lm_validity.cli import study as command
from lm_validity.config.load import load_run, read_plan
from lm_validity.errors import InputError
from lm_validity.monitor.render import describe_plan, render_matrix, render_page, render_summary
from lm_validity.monitor.status import Estimator, RunState, progress, total, training_costs, unplanned_pairs
from lm_validity.plans import drawing
from lm_validity.plans.drawing import write_plan
from lm_validity.run.store import hold_lease
from lm_validity.tables.merge import Merger

MODELS = [f"m{i:02}" for i in range(24)]
BENCHMARKS = [f"b{j:02}" for j in range(12)]
SIZE = {model: float(i) for i, model in enumerate(MODELS)}
# benchmark b05 costs most, its neighbours less
COSTS = {(m, b): 1 + SIZE[m] + 10.0 * (6 - abs(j - 5)) for m in MODELS for j, b in enumerate(BENCHMARKS)}


def pairs(cells) -> set:
    return {(one.model, one.benchmark) for one in cells}


def test_the_cheapest_benchmarks_and_a_block_of_every_size():
    cells = drawing.cheap_and_block(COSTS, SIZE, seed=3)
    cheap = {one.benchmark for one in cells if one.reason == drawing.CHEAP}
    order = sorted(BENCHMARKS, key=lambda b: sum(COSTS[m, b] for m in MODELS))
    assert cheap == set(order[:5])  # 10 of 24, of 12
    block = sorted({one.model for one in cells if one.reason == drawing.IN_BLOCK})
    assert len(block) == 9 and pairs(cells) == {(m, b) for m in MODELS for b in BENCHMARKS if b in cheap or m in block}
    edges = [one * 24 // 9 for one in range(10)]
    assert [int(np.searchsorted(edges, MODELS.index(m), side="right")) for m in block] == list(range(1, 10))
    drawn = {one.model: one.probability for one in cells if one.reason == drawing.IN_BLOCK}
    assert set(drawn.values()) == {1 / 2, 1 / 3}
    assert {one.probability for one in cells if one.reason == drawing.CHEAP} == {1}


def test_every_model_of_a_stratum_is_drawn_as_often_as_its_probability_says():
    times = Counter(m for seed in range(3000) for m in drawing.draw_block(MODELS, random.Random(seed)))
    probability = {m: p for seed in range(50) for m, p in drawing.draw_block(MODELS, random.Random(seed)).items()}
    for model in MODELS:
        assert times[model] / 3000 == pytest.approx(probability[model], abs=0.035)


def test_a_budget_buys_as_many_cheap_benchmarks_as_it_can():
    more, fewer = (drawing.cheap_and_block(COSTS, SIZE, 0, budget) for budget in (9_000, 6_000))
    assert total(COSTS, pairs(more)) <= 9_000 and total(COSTS, pairs(fewer)) <= 6_000
    assert pairs(fewer) < pairs(more)
    left = [b for b in BENCHMARKS if any((m, b) not in pairs(fewer) for m in MODELS)]
    cheapest = min(sum(COSTS[m, b] for m in MODELS if (m, b) not in pairs(fewer)) for b in left)
    assert total(COSTS, pairs(fewer)) + cheapest > 6_000
    with pytest.raises(InputError, match="a budget of 100 hours: the block of 9 models and the 2 cheapest"):
        drawing.cheap_and_block(COSTS, SIZE, 0, 100)


@pytest.mark.parametrize("seed", range(3))
def test_a_balanced_plan_takes_models_and_benchmarks_equally_often(seed):
    cells = drawing.balanced(COSTS, seed)
    of_models, of_benchmarks = (Counter(getattr(one, key) for one in cells) for key in ("model", "benchmark"))
    assert len(cells) == round(0.4 * len(COSTS)) and {one.probability for one in cells} == {len(cells) / len(COSTS)}
    assert max(of_models.values()) - min(of_models.values()) <= 1
    assert max(of_benchmarks.values()) - min(of_benchmarks.values()) <= 2
    with pytest.raises(InputError, match="fewer than 3 models"):
        drawing.balanced(COSTS, seed, budget=200)


def test_an_audit_draws_unplanned_cells_into_the_next_round():
    before = {(one.model, one.benchmark): one for one in drawing.cheap_and_block(COSTS, SIZE, 0)}
    cells = drawing.audit(COSTS, before, 20, seed=1)
    assert len(pairs(cells)) == 20 and not pairs(cells) & set(before)
    assert {one.round for one in cells} == {2} and {one.reason for one in cells} == {drawing.AUDIT}
    assert {one.probability for one in cells} == {20 / (len(COSTS) - len(before))}
    with pytest.raises(InputError, match="cells are not planned"):
        drawing.audit(COSTS, before, 2_000, seed=1)


def test_the_shipped_plan_is_what_the_command_draws():
    """`lm-validity plan --design balanced`, with a budget that pays for 60% of the cells."""
    run = load_run("config/sparse.yaml")
    models, benchmarks = run.agreement_names
    drawn = drawing.balanced({(m, b): 1 for m in models for b in benchmarks}, seed=0, budget=49)
    assert [(one.model, one.benchmark) for one in drawn] == list(run.plan) and len(drawn) == 49


# ---- a run --------------------------------------------------------------------------------

PLANNED = [(m, "riddles") for m in ("oak-s", "oak-m", "oak-l", "elm-s", "elm-m", "elm-m-chat")]
PLANNED += [(m, b) for m in ("oak-s", "oak-l", "elm-m-chat") for b in ("proverbs", "sums")]


@pytest.fixture
def planned(made_up):
    """The made-up run with a plan of 12 of its 18 cells."""
    rows = "".join(f"{m}\t{b}\t1\n" for m, b in PLANNED)
    Path("replay/plan.tsv").write_text(f"model\tbenchmark\tround\n{rows}")
    text = Path("replay/replay.yaml").read_text()
    Path("replay/replay.yaml").write_text(f"{text}\nplan: replay/plan.tsv\n")
    return load_run("replay/replay.yaml")


def test_costs_are_of_every_pair_and_add_up(planned):
    costs = training_costs(Estimator(planned))
    assert len(costs) == 18 and set(PLANNED) < set(costs)
    run = load_run("replay/replay.yaml")
    estimator, whole = Estimator(run), 0.0
    for job in Merger(run).grid.jobs.values():
        if job.rule in ("finetune_adapter", "evaluate_adapter"):
            whole += sum(map(estimator.seconds, job.cells)) / 3600
    assert total(costs, PLANNED) == pytest.approx(whole)
    # two prompts, so twice the fine-tunes, of a model that is as large
    assert costs["elm-m-chat", "sums"] > 1.9 * costs["elm-m", "sums"]


def test_unplanned_is_not_missing(planned):
    run_all(planned)
    state = RunState(planned)
    assert {one.state for one in state.cells} == {"done"}
    merger = Merger(planned, partial=True)
    merger.write_scores(Path("tables"))
    trained = pd.read_parquet("tables/scores.parquet").query("protocol == 'train_before_test'")
    assert set(zip(trained.model, trained.benchmark, strict=True)) == set(PLANNED) and not merger.missing
    rest = unplanned_pairs(planned)
    assert len(rest) == 6 and "12 of 18" in describe_plan(planned) and "in 1 round." in describe_plan(planned)
    so_far = progress(state.cells, lambda cell: 1.0)
    assert describe_plan(planned) in render_summary(state, so_far)
    rows = [line.split() for line in render_matrix(state.cells, rest).splitlines()]
    assert ["oak-m", "#", "-", "-"] in rows and ["oak-s", "#", "#", "#"] in rows
    page = render_page("run", state, so_far, Path())
    assert len(re.findall('title="[^"]*fine-tuning is not planned"', page)) == 6
    assert page.count('class="scroll"') == page.count('class="scroll" tabindex="0"') == 2  # reached by keyboard


def test_scores_of_unplanned_cells_change_no_byte(planned):
    """Absurd trained scores where nothing is planned: the tables, of which alone reports are made, stay the same."""
    path, written = Path("replay/scores.json"), []
    honest = path.read_text()
    for text in (honest, poison(honest, planned)):
        path.write_text(text)
        shutil.rmtree(planned.results, ignore_errors=True)
        read_served.cache_clear()
        run_all(planned)
        merger, folder = Merger(planned), planned.results / "tables"
        merger.write_scores(folder)
        merger.write_items(folder)
        written.append({file.name: file.read_bytes() for file in folder.glob("*.parquet")})
    names = ("scores", "settings", "selections", "losses", "items")
    assert set(written[0]) == {f"{name}.parquet" for name in names}
    assert written[0] == written[1] and path.read_text() != honest


def poison(text: str, run) -> str:
    """The authors' file with every trained score of an unplanned cell set to 0.999."""
    found = json.loads(text)
    for model, benchmark in unplanned_pairs(run):
        path = run.models[model].path
        assert path in found["train_before_test"][benchmark]
        found["train_before_test"][benchmark][path] = 0.999
    return json.dumps(found)


# ---- the command --------------------------------------------------------------------------------


def call(**options):
    alone = SimpleNamespace(invoked_subcommand=None)
    given = {"context": alone, "configfile": Path("replay/replay.yaml"), "design": "cheap-and-block", "cells": None,
             "audit": None, "budget": None, "seed": 0, "output": None, "calibration": None}  # fmt: skip
    command.plan(**given | options)


def names(run):
    return run.agreement_names


def test_the_command_writes_a_plan_that_is_read_back(made_up, capsys):
    call(design="balanced", output=Path("plan.tsv"), budget=1e9)
    found = read_plan("plan.tsv", *names(made_up))
    assert len(found) == 18 and {one.reason for one in found.values()} == {drawing.BALANCED}
    said = capsys.readouterr().out  # sums of the same hours in another order differ in their last digit
    assert " 0 hours saved" in said and "18 of 18" in said and "UNCALIBRATED" in said and "Set `plan: plan.tsv`" in said
    assert "Documents of 3 benchmarks are not counted" in said
    before = Path("plan.tsv").read_bytes()
    with pytest.raises(InputError, match="exists already"):
        call(output=Path("plan.tsv"))
    assert Path("plan.tsv").read_bytes() == before


def test_a_round_can_be_written_to_a_new_file_but_over_no_other(planned):
    before = Path("replay/plan.tsv").read_bytes()
    call(audit=2, output=Path("longer.tsv"))
    longer = Path("longer.tsv").read_bytes()
    assert len(read_plan("longer.tsv", *names(planned))) == 14
    with pytest.raises(InputError, match="exists already"):
        call(audit=3, output=Path("longer.tsv"))
    assert Path("longer.tsv").read_bytes() == longer and Path("replay/plan.tsv").read_bytes() == before


def test_a_list_of_ones_own_and_an_audit_become_rounds(planned):
    Path("mine.tsv").write_text("model\tbenchmark\noak-m\tsums\n")
    call(cells=Path("mine.tsv"))
    call(audit=2, seed=4)
    found = read_plan("replay/plan.tsv", *names(planned))
    assert list(found)[:12] == PLANNED and {found[pair].round for pair in PLANNED} == {1}
    assert (found["oak-m", "sums"].round, found["oak-m", "sums"].reason) == (2, drawing.LISTED)
    audited = [one for one in found.values() if one.reason == drawing.AUDIT]
    assert len(audited) == 2 and {one.round for one in audited} == {3} and {one.probability for one in audited} == {0.4}
    with pytest.raises(InputError, match="planned already, in round 2"):
        call(cells=Path("mine.tsv"))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "it has a plan already"),
        ({"audit": 1, "budget": 2.0}, "exclude each other"),
        ({"audit": 100}, "6 cells are not planned"),
        ({"cells": Path("nowhere.tsv")}, "nowhere.tsv: no such sheet. Hint: check the path"),
    ],
)
def test_a_wrong_command_changes_nothing(planned, options, problem):
    before = Path("replay/plan.tsv").read_bytes()
    with pytest.raises(InputError, match=problem):
        call(**options)
    assert Path("replay/plan.tsv").read_bytes() == before


# ---- writing ------------------------------------------------------------------------------------


def test_of_two_commands_at_once_one_waits_and_then_sees_the_other_s_round(planned, capsys, monkeypatch):
    """Both have read the same plan. While one holds the lease, the other waits: no round is lost."""
    monkeypatch.setattr("lm_validity.run.store.POLL", 0.1)
    place, cells = Path("replay/plan.tsv"), [drawing.planned_cell(("oak-m", "sums"), drawing.AUDIT, 2, 0.5, 0)]
    found = []

    def second() -> None:
        try:
            write_plan(place, [*planned.plan.values(), *cells], planned)
        except InputError as error:
            found.append(error)

    with hold_lease(place.with_name(".plan.tsv.lease"), finished=lambda: False):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive() and not found
        place.write_text(place.read_text() + "elm-m\tproverbs\t2\n")
    thread.join(10)
    assert "changed while this command ran" in str(found[0])
    assert ("elm-m", "proverbs") in read_plan(place, *names(planned))
    assert "waiting for another" in capsys.readouterr().out and not list(Path("replay").glob(".*lease*"))


def test_what_a_plan_rules_out_is_not_planned_and_stays_in_it(planned):
    """A row with the reason `cannot succeed`: no command plans it, and none forgets it."""
    place, rest = Path("replay/plan.tsv"), unplanned_pairs(planned)
    rows = [*((*pair, "block") for pair in PLANNED), *((*pair, "cannot succeed") for pair in rest[:5])]
    place.write_text("model\tbenchmark\treason\n" + "".join("\t".join(row) + "\n" for row in rows))
    run = load_run("replay/replay.yaml")
    assert set(run.plan) == set(PLANNED) and set(run.ruled_out) == set(rest[:5]) and unplanned_pairs(run) == rest
    with pytest.raises(InputError, match="1 cell is not planned"):
        call(audit=2)
    Path("mine.tsv").write_text("model\tbenchmark\n{}\t{}\n".format(*rest[0]))
    with pytest.raises(InputError, match="rules it out"):
        call(cells=Path("mine.tsv"))
    call(audit=1)
    after = load_run("replay/replay.yaml")
    assert set(after.plan) == {*PLANNED, rest[5]} and set(after.ruled_out) == set(rest[:5])
