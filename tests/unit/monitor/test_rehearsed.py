"""What a rehearsal's file says reaches preflight, cost and the first micro-batch; nothing here imports torch."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from lm_validity.config.load import load_run
from lm_validity.errors import InputError
from lm_validity.files import write_json
from lm_validity.monitor.check import gpu_memory_problems
from lm_validity.monitor.cost import Workload
from lm_validity.run.rehearsals import (
    Rehearsal,
    first_micro_batch,
    judge_fit,
    question_of,
    read_rehearsal,
    rehearsal_path,
)

GB = 1e9
FOUND = Rehearsal(
    parameters=8e9,
    weights=16 * GB,
    scoring=24 * GB,
    one_text=17 * GB,
    training={1: 23 * GB, 2: 29 * GB, 4: 41 * GB, 8: 66 * GB},
    checkpointed={1: 18 * GB, 2: 18 * GB, 4: 19 * GB, 8: 22 * GB},
    refused=None,
    details={"config": "config.json"},
)


@pytest.fixture
def rehearsed(made_up, monkeypatch):
    """A function (answer, **size class of oak-l) -> (run, row) with the answer on disk."""

    def make(found: Rehearsal | None = FOUND, **large):
        text = Path("replay/replay.yaml").read_text().replace("replay: { scores: replay/scores.json }", "")
        classes = {
            "tiny": {"gpu_memory_gb": 16},
            "small": {"gpu_memory_gb": 16},
            "medium": large,
            "cluster": {"gpu_memory_gb": 80},
        }
        text = text.replace("name: replay", "name: real") + f"size_classes: {json.dumps(classes)}\n"
        Path("real.yaml").write_text(text)
        run = load_run("real.yaml")
        row = run.models["oak-l"]
        folder = Path("model").resolve()
        write_json(folder / "config.json", {"model_type": "llama", "hidden_size": 4096})
        write_json(
            run.results / "prefetch" / "models" / "oak-l.json",
            {"checkpoints": {"final": {"path": str(folder), "subfolder": None}}},
        )
        if found is not None:
            write_json(rehearsal_path(run, question_of(run, row)), asdict(found))
        return run, row

    return make


def test_a_file_answers_its_own_question_only(rehearsed):
    run, row = rehearsed()
    assert read_rehearsal(run, row) == FOUND
    assert question_of(run, row).verified
    write_json(Path("model/config.json"), {"model_type": "llama", "hidden_size": 2048})
    assert read_rehearsal(run, row) is None
    assert question_of(run, run.models["oak-s"]) is None  # neither fetched nor of a known shape


def test_a_model_that_is_only_scored_is_not_asked_about_training(rehearsed):
    run, row = rehearsed()
    asked = [
        question_of(run, row.model_copy(update={"studies": (study,)})).settings for study in ("agreement", "signal")
    ]
    assert [one["trains"] for one in asked] == [True, False]


@pytest.mark.parametrize(
    ("gigabytes", "micro_batch"),
    [(80, 8), (66.9, 4), (42, 4), (30, 2), (24, 1)],  # a gigabyte is added for CUDA's context
)
def test_a_fine_tune_begins_with_what_fits(rehearsed, gigabytes, micro_batch):
    run, row = rehearsed(gpu_memory_gb=gigabytes)
    assert first_micro_batch(run, row, gigabytes) == micro_batch
    verdict = judge_fit(run, row, FOUND)
    assert verdict.fits and verdict.micro_batch == micro_batch and verdict.required == 24
    assert gpu_memory_problems(run) == []


def test_without_an_answer_the_micro_batch_is_the_configured_one(rehearsed):
    assert first_micro_batch(*rehearsed(None), 24) == 8


def test_a_size_class_that_cannot_hold_its_model_is_named_with_what_to_change(rehearsed):
    run, row = rehearsed(gpu_memory_gb=20)
    (problem,) = [one for one in gpu_memory_problems(run) if one.where == "model oak-l"]
    assert (
        "needs 24 GB" in problem.description
        and "micro-batch 1" in problem.description
        and "has 20 GB" in problem.description
    )
    assert "gradient_checkpointing (then 19 GB)" in problem.action
    assert "size_class cluster" in problem.action and "2 GPUs of 20 GB" in problem.action
    assert judge_fit(run, row, FOUND).micro_batch == 0 and first_micro_batch(run, row, 20) == 1


def test_a_size_class_without_a_gpu_has_no_memory_to_compare_with(rehearsed):
    run, row = rehearsed(gpu=0, gpu_memory_gb=0)
    verdict = judge_fit(run, row, FOUND)
    assert (verdict.available, verdict.micro_batch, verdict.advice) == (0, 0, None)
    assert not [one for one in gpu_memory_problems(run) if one.where == "model oak-l"]


def test_hours_are_those_of_the_gpu_and_an_unknown_one_is_an_error(rehearsed):
    def seconds(row, run) -> float:
        return Workload(run).computing_seconds(row, 1e18, passes=0, steps=0)

    run, row = rehearsed(gpu_type="a100")
    slow = seconds(row, run)
    run, row = rehearsed()
    by_type = {"bfloat16": 989 / 312, "float16": 989 / 312, "float32": 67 / 19.5}
    assert slow / seconds(row, run) == pytest.approx(by_type[row.dtype])
    with pytest.raises(InputError, match=r"size_classes\.medium\.gpu_type") as error:
        rehearsed(gpu_type="mi300")
    assert "mi300" in error.value.problem and "h200" in error.value.problem and error.value.hint


def test_adapters_that_are_refused_are_a_problem_before_the_queue(rehearsed):
    refused = Rehearsal(**asdict(FOUND) | {"training": {}, "checkpointed": {}, "refused": "no linear layers"})
    run, row = rehearsed(refused, gpu_memory_gb=20)
    (problem,) = [one for one in gpu_memory_problems(run) if one.where == "model oak-l"]
    assert "no linear layers" in problem.description
    assert judge_fit(run, row, refused).required == 18  # it may still be scored


def test_cost_takes_the_rehearsed_memory_and_says_where_it_has_a_formula(rehearsed):
    run, row = rehearsed()
    workload = Workload(run)
    assert workload.gpu_gb(row) == 24 and not workload.assumed
    assert workload.gpu_gb(run.models["oak-s"]) > 0
    assert any("formula" in words for words in workload.assumed)


def test_no_command_imports_what_is_heavy_when_it_starts():
    """What reads rehearsals is among what they import."""
    code = (
        "import sys; from lm_validity.cli import register_commands as start; start(); names = {*sys.modules}; "
        "assert 'lm_validity.monitor.render' in names and not {'torch', 'pandas', 'altair', 'numpy'} & names"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
