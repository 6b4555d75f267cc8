"""The signal study in two stages, really run: what each stage computes, and kills between the two and in the second."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from scipy.stats import rankdata, spearmanr
from tests.workflow.conftest import ROOT, Project

from lm_validity.config.miniature import MiniatureSettings
from lm_validity.config.pool import read_pool
from lm_validity.miniature.build import benchmarks_sheet, model_sheets

CONFIG = ("--configfile", "stages.yaml")
RESULTS, PLAN = Path("results/stages"), Path("stages.tsv")
MODELS, BENCHMARKS = ("exam-llama-xs", "exam-gpt2-xs"), ("cloze", "question", "choose")
EVERY = {*(str(step) for step in range(6, 120, 6)), "final"}
SOMETHING, NOTHING = 0.575, 0.0
ROUNDS = ("rounds", *CONFIG, "--", "--snakefile", str(ROOT / "Snakefile"), "--cores", "2", "--rerun-incomplete")
TINY = {"family": "exam", "training_data": "science", "size": "xs", "hidden_size": 32, "layers": 2, "steps": 120}
TINY |= {"learning_rate": 5e-3, "checkpoint_every": 6, "studies": "signal"}
POOL = [{"model": model, "architecture": model.split("-")[1], **TINY} for model in MODELS]
STUDY = f"""\
name: stages
studies: [signal]
models: config/stages_models.tsv
benchmarks: config/stages_benchmarks.tsv
evaluation: {{ device: cpu, batch_size: 64 }}
reports: {{ resamples: 20 }}
miniature: {{ pool: config/stages_pool.tsv }}
signal: {{ plan: {PLAN}, says_something: {SOMETHING}, says_nothing: {NOTHING} }}
"""


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Project:
    """The first stage of two models of 20 checkpoints on three benchmarks."""
    project = Project(tmp_path_factory.mktemp("stages"))
    folder = project.folder / "config"
    pd.DataFrame(POOL).to_csv(folder / "stages_pool.tsv", sep="\t", index=False)
    settings = MiniatureSettings(pool=str(folder / "stages_pool.tsv"))
    for name, text in model_sheets(settings, read_pool(settings.pool)).items():
        (folder / (name or "stages_models.tsv")).write_text(text)
    named = benchmarks_sheet(BENCHMARKS).splitlines()
    rows = (row.rpartition("\t")[0] + "\tsignal\n" for row in named[1:])
    (folder / "stages_benchmarks.tsv").write_text(f"{named[0]}\n{''.join(rows)}")
    (project.folder / "stages.yaml").write_text(STUDY)
    project.snakemake(*CONFIG)
    return project


@pytest.fixture(scope="module")
def second(first, tmp_path_factory) -> Project:
    """`next` and the second stage, undisturbed."""
    project = first.copy_to(tmp_path_factory.mktemp("second") / "copy")
    project.lm_validity("next", *CONFIG)
    project.snakemake(*CONFIG)
    return project


def early(project: Project, model: str) -> set[str]:
    """The checkpoints with at most a quarter of the model's tokens: fewer than eight, so all are in the first stage."""
    models = pd.read_csv(project.folder / "config/stages_models.tsv", sep="\t").set_index("model")
    points = pd.read_csv(project.folder / f"config/checkpoints/{model}.tsv", sep="\t", dtype={"checkpoint": str})
    found = set(points.checkpoint[points.tokens_b <= models.tokens_b[model] / 4])
    assert 4 <= len(found) <= 8
    return found


def cells(project: Project) -> dict[tuple[str, str], set[str]]:
    """(model, benchmark) -> the checkpoints in the store."""
    found: dict[tuple[str, str], set[str]] = {}
    for name in project.sidecars("stages"):
        rule, model, cell = name.split("/")
        benchmark, checkpoint, prompt, split = cell.partition("--")[0].split(".")
        assert (rule, prompt, split) == ("evaluate_model", "plain", "test")
        found.setdefault((model, benchmark), set()).add(checkpoint)
    return found


def manifests(project: Project) -> dict[str, tuple[bytes, int]]:
    """The declared files of the jobs, with the times at which they were written."""
    folder = project.folder / RESULTS / "cells/evaluate_model"
    return {f"{at.parent.name}/{at.name}": (at.read_bytes(), at.stat().st_mtime_ns) for at in folder.glob("*/*.json")}


def stages_on_page(project: Project) -> dict[str, tuple[str, int]]:
    """Benchmark -> (verdict, checkpoints)."""
    summary = json.loads((project.folder / RESULTS / "reports/signal/summary.json").read_text())
    return {one["benchmark"]: (one["verdict"], one["checkpoints"]) for one in summary["stages"]}


def verdicts(project: Project) -> dict[str, str]:
    """By the scores of the first stage, with another library's rank correlation."""
    scores = pd.read_parquet(project.folder / RESULTS / "tables/scores.parquet")
    metrics = pd.read_csv(project.folder / "config/stages_benchmarks.tsv", sep="\t").set_index("benchmark").metric
    scores = scores[scores.metric == scores.benchmark.map(metrics)].sort_values("tokens_b")
    found = {}
    for benchmark in BENCHMARKS:
        rho = 0.0
        for model in MODELS:
            mine = scores[(scores.model == model) & (scores.benchmark == benchmark)]
            values = mine.value[mine.checkpoint.isin(early(project, model))]
            rho += spearmanr(range(len(values)), rankdata(values, method="ordinal"))[0] / len(MODELS)
        found[benchmark] = "says something" if rho >= SOMETHING else "says nothing" if rho < NOTHING else "undecided"
    return found


def test_the_first_stage_computes_its_checkpoints_and_no_other(first):
    assert cells(first) == {(model, name): early(first, model) for model in MODELS for name in BENCHMARKS}
    most = max(len(early(first, model)) for model in MODELS)
    assert stages_on_page(first) == dict.fromkeys(BENCHMARKS, ("open", most))


def test_the_second_stage_computes_the_rest_of_the_undecided_and_nothing_again(first, second):
    expected = verdicts(first)
    assert "undecided" in expected.values() and set(expected.values()) != {"undecided"}
    plan = pd.read_csv(second.folder / PLAN, sep="\t").set_index("benchmark")
    assert plan.verdict.to_dict() == expected
    whole = [name for name in BENCHMARKS if expected[name] == "undecided"]
    assert cells(second) == {
        (model, name): EVERY if name in whole else early(first, model) for model in MODELS for name in BENCHMARKS
    }
    assert first.sidecars("stages").items() <= second.sidecars("stages").items()
    assert manifests(first).items() < manifests(second).items()
    most = max(len(early(first, model)) for model in MODELS)
    assert stages_on_page(second) == {
        name: (verdict, len(EVERY) if name in whole else most) for name, verdict in expected.items()
    }
    keys = ["model", "checkpoint", "benchmark", "metric"]
    before, after = (
        pd.read_parquet(project.folder / RESULTS / "tables/scores.parquet").set_index(keys).value
        for project in (first, second)
    )
    assert after.loc[before.index].equals(before) and len(after) > len(before)


def test_then_there_is_nothing_to_decide_or_to_do(second):
    before = (second.folder / PLAN).read_bytes()
    assert "has decided on all 3 benchmarks" in second.lm_validity("next", *CONFIG).stdout
    assert (second.folder / PLAN).read_bytes() == before
    done = second.snakemake(*CONFIG)
    assert "Nothing to be done" in done.stdout + done.stderr


def kill_rounds(project: Project, has_come: Callable[[], bool]) -> None:
    """`lm-validity rounds` and all that it started, killed (SIGKILL) once something has come."""
    environment = project.environment()
    process = subprocess.Popen(
        ("lm-validity", *ROUNDS), cwd=project.folder, env=environment, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while not has_come():
        assert process.poll() is None and time.monotonic() < deadline, "it ended before it was killed"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    project.run(*project.snakemake_command("--unlock", *CONFIG))


@pytest.mark.slow  # in `make test`, test_three_kills and the bias study's three kills
def test_kills_between_the_stages_and_in_the_second_lose_nothing(first, second, tmp_path):
    project = first.copy_to(tmp_path / "copy")
    before, front = first.sidecars("stages"), Project.front
    project.front = ""  # a job that starts warm is no child of what is killed
    kill_rounds(project, (project.folder / PLAN).is_file)
    assert project.sidecars("stages") == before, "the second stage has not begun"
    assert (project.folder / PLAN).read_bytes() == (second.folder / PLAN).read_bytes()
    kill_rounds(project, lambda: len(project.sidecars("stages")) > len(before))
    half = project.sidecars("stages")
    assert before.items() < half.items() and len(half) < len(second.sidecars("stages"))
    project.front = front
    project.lm_validity(*ROUNDS)
    assert half.items() < project.sidecars("stages").items()
    assert set(project.sidecars("stages")) == set(second.sidecars("stages"))
    assert project.tables("stages") == second.tables("stages")
    assert stages_on_page(project) == stages_on_page(second)
