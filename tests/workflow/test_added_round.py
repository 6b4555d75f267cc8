"""A round that is added to a plan, seen from the outside: a real dry run after round 1, and rounds until a goal."""

import itertools
import re
import shutil

import pandas as pd
import pytest
from tests.workflow.conftest import ROOT, Project

CONFIG = ("--configfile", "replay/replay.yaml")
MODELS = ("oak-s", "oak-m", "oak-l", "elm-s", "elm-m", "elm-m-chat")
ROUND_1 = [(m, "riddles") for m in MODELS] + [(m, b) for m in MODELS[::2] for b in ("proverbs", "sums")]
ROUND_2 = [("oak-m", "proverbs"), ("elm-s", "sums"), ("elm-m-chat", "proverbs"), ("elm-m-chat", "sums")]
TRAINING_RULES = {"finetune-adapter", "select-adapter", "evaluate-adapter"}
# made of the cells that are there, so they follow every new one
AFTERWARDS = {"check-cells", "merge"}


def write_plan(project: Project, *rounds: list) -> None:
    rows = "".join(f"{m}\t{b}\t{number}\n" for number, pairs in enumerate(rounds, 1) for m, b in pairs)
    (project.folder / "plan.tsv").write_text(f"model\tbenchmark\tround\n{rows}")


@pytest.fixture(scope="module")
def planned(replayed, tmp_path_factory) -> Project:
    """A finished replay of round 1; what comes before training is that of the replay without a plan."""
    project = replayed.copy_to(tmp_path_factory.mktemp("planned") / "copy")
    for name in ("tables", "reports", "report"):
        shutil.rmtree(project.folder / "results/replay" / name)
    for kind, rule in itertools.product(("store", "cells"), TRAINING_RULES):
        shutil.rmtree(project.folder / "results/replay" / kind / rule.replace("-", "_"), ignore_errors=True)
    config = project.folder / CONFIG[1]
    config.write_text(f"{config.read_text()}\nplan: plan.tsv\n")
    write_plan(project, ROUND_1)
    project.snakemake("scores", *CONFIG)
    assert jobs_of(project) == []
    return project


def jobs_of(project: Project) -> list[tuple[str, str, str]]:
    """(command, model or empty, batch or empty) of every job that a dry run would start, whatever its reason."""
    done = project.run(*project.snakemake_command("-n", "-p", "scores", *CONFIG))
    found = []
    for line in re.findall(r"^Shell command: (?:.* )?lm-validity (.+)$", done.stdout + done.stderr, re.MULTILINE):
        command, *words = line.split()
        given = dict(itertools.pairwise(words))
        found.append((command, given.get("--model", ""), given.get("--batch", "")))
    return found


def test_a_dry_run_computes_the_cells_of_the_new_round_and_no_other(planned, tmp_path):
    project = planned.copy_to(tmp_path / "copy")
    write_plan(project, ROUND_1, ROUND_2)
    jobs = jobs_of(project)
    assert {command for command, *_ in jobs} == TRAINING_RULES | AFTERWARDS
    training = [(model, batch) for command, model, batch in jobs if command in TRAINING_RULES]
    assert {model for model, _ in training} == {model for model, _ in ROUND_2}
    assert len(training) == 10 and all(batch.endswith(".round2") for _, batch in training)


def test_a_setting_of_round_1_that_changes_is_seen(planned, tmp_path):
    """The dry run above would show it."""
    project = planned.copy_to(tmp_path / "copy")
    config = project.folder / CONFIG[1]
    config.write_text(config.read_text().replace("finetuning: {", "finetuning: { max_length: 500,"))
    batches = [batch for command, _, batch in jobs_of(project) if command == "finetune-adapter"]
    assert batches and not any(".round2" in batch for batch in batches)


@pytest.mark.slow
def test_rounds_until_a_goal_with_real_snakemake(planned, tmp_path):
    project = planned.copy_to(tmp_path / "whole")
    before, snakemake = project.sidecars("replay"), ("--snakefile", str(ROOT / "Snakefile"), "--cores", "2")
    done = project.lm_validity("plan", "run", "--goal", "tau=.9999999", *CONFIG, "--", "scores", *snakemake)
    said = done.stdout + done.stderr
    assert "goal tau=0.9999999 is reached" in done.stdout, "the goal takes every cell"
    plan = pd.read_csv(project.folder / "plan.tsv", sep="\t")
    number = plan["round"].max()
    assert number >= 3 and len(re.findall(r"^round \d+: ", said, re.MULTILINE)) == number - 1
    assert before.items() <= project.sidecars("replay").items()
    cells = [cell.split("/") for cell in project.sidecars("replay") if cell.startswith("finetune_adapter")]
    assert {(model, name.split(".")[0]) for _, model, name in cells} == set(
        zip(plan.model, plan.benchmark, strict=True)
    )
