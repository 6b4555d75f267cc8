"""What would make jobs fail after hours in a queue is named before, each in a line with what to do."""

import importlib.metadata
import json
import os
import socket
from pathlib import Path

import pytest

from lm_validity.config.load import build_run, load_run
from lm_validity.config.sheets import FINAL, Checkpoint, HubModel
from lm_validity.files import write_json
from lm_validity.monitor.check import (
    gpu_memory_problems,
    leases,
    package_problems,
    readiness_problems,
    record_problems,
    unfetched_models,
)
from lm_validity.monitor.render import matrix, render_matrix
from lm_validity.monitor.status import CellState, Estimator, RunState
from lm_validity.run.store import hold_lease, process_start
from lm_validity.run.workspace import Grid, Workspace

POINT = {"final": {"path": "gone", "subfolder": None, "digest": ""}}


@pytest.fixture(autouse=True)
def invented_benchmarks(monkeypatch):
    """The benchmarks of these runs are in nobody's files."""
    monkeypatch.setattr("lm_validity.run.inputs.task_problem", lambda name, include_path, *, trains: None)


@pytest.fixture
def real(made_up):
    """The made-up sheets as a real run, with a build of torch that knows GPUs."""

    def load(**changes):
        text = Path("replay/replay.yaml").read_text().replace("replay: { scores: replay/scores.json }", "")
        lines = [f"{key}: {json.dumps(value)}" for key, value in changes.items()]
        Path("real.yaml").write_text(text.replace("name: replay", "name: real") + "\n".join(lines) + "\n")
        return load_run("real.yaml")

    return load


@pytest.fixture(autouse=True)
def cuda(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.13.0")


def lines(run) -> list[str]:
    return [str(problem) for problem in readiness_problems(run)]


def test_what_was_not_fetched_is_named(real):
    run = real()
    assert {str(problem).partition(":")[0] for problem in record_problems(run)} == {
        *(f"model {name}" for name in run.models),
        *(f"benchmark {name}" for name in run.benchmarks),
    }
    assert unfetched_models(run)["model oak-s"] == HubModel("made-up/Oak-S") and len(unfetched_models(run)) == 6


def test_a_cell_that_is_being_computed_is_no_problem_and_a_stale_lease_is(real):
    run = real()
    place = run.results / "store" / ".leases" / "evaluate_model.oak-s.json"
    with hold_lease(place, finished=lambda: False):
        assert not leases(run, stale=True) and [one.where for one in leases(run, stale=False)] == [place.stem]
    write_json(place, {"host": socket.gethostname(), "pid": 2**22 + 1, "started": "0"})
    assert [one.where for one in leases(run, stale=True)] == [place.stem] and not leases(run, stale=False)


def test_a_model_is_asked_for_with_the_folders_of_its_checkpoints(real):
    run = real()
    points = [Checkpoint(checkpoint=name, subfolder=f"steps/{n}") for n, name in ((2, "early"), (1, "late"))]
    run.models["oak-s"] = run.models["oak-s"].model_copy(update={"checkpoints": (*points, FINAL)})
    assert unfetched_models(run)["model oak-s"].folders == ("", "steps/1/", "steps/2/")


def test_adapters_on_the_hub_are_asked_for_too(real):
    run = real()
    run.models["oak-s"] = run.models["oak-s"].model_copy(update={"adapter": "me/medical@v2"})
    assert unfetched_models(run)["model oak-s, adapter me/medical@v2"] == HubModel("me/medical", "v2")
    run.models["oak-s"] = run.models["oak-s"].model_copy(update={"adapter": "./adapters/medical"})
    assert len(unfetched_models(run)) == 6


def test_weights_or_an_adapter_that_went_away_are_named(real, tmp_path):
    run = real()
    record = run.results / "prefetch/models/oak-s.json"
    point = {"path": str(tmp_path / "base"), "subfolder": None, "digest": ""}
    point["adapter"] = point | {"path": str(tmp_path / "adapter")}
    write_json(record, {"checkpoints": {"final": point}})
    gone = [str(problem) for problem in record_problems(run) if "no weights" in str(problem)]
    assert ["base" in line for line in gone] == [True, False] and str(tmp_path / "adapter") in gone[1]
    for name in ("base", "adapter"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "any.safetensors").touch()
    assert not any("oak-s" in str(problem) for problem in record_problems(run))


def test_a_model_that_does_not_fit_its_gpus(real):
    run = real(size_classes={"tiny": {}, "small": {}, "medium": {"gpu_memory_gb": 5}})
    (line,) = lines(run)
    assert line.startswith("model oak-l: ") and "'medium' has 1 x 5 GB" in line
    assert lines(real(size_classes={"tiny": {}, "small": {}, "medium": {"gpu_memory_gb": 5, "gpu": 2}})) == []
    assert lines(real(evaluation={"device": "cpu"}, size_classes=run.configuration.model_dump()["size_classes"])) == []


def test_a_model_without_chat_template(real):
    run = real()
    write_json(run.results / "prefetch" / "models" / "elm-m-chat.json", {"chat_template": False, "checkpoints": POINT})
    (line,) = lines(run)
    assert line.startswith("model elm-m-chat: ") and "add chat_template.jinja" in line
    plain = real(evaluation={"instruction_tuned_prompts": ["plain"]})
    assert lines(plain) == []


def test_a_model_that_is_not_causal(real):
    """As fetched by an earlier version, which did not look; one that was not fetched yet is not known."""
    run = real()
    folder = Path("fetched").resolve()
    point = {"final": POINT["final"] | {"path": str(folder)}}
    write_json(run.results / "prefetch/models/oak-s.json", {"checkpoints": point, "chat_template": True})
    write_json(folder / "config.json", {"model_type": "bert", "architectures": ["BertForMaskedLM"]})
    (line,) = lines(run)
    assert line.startswith("model oak-s: config.json ") and "(BertForMaskedLM);" in line
    write_json(folder / "config.json", {"model_type": "llama"})
    assert lines(run) == []


def test_a_lock_whose_snakemake_is_gone(real):
    run = real()
    Path(".snakemake/locks").mkdir(parents=True)
    Path(".snakemake/locks/0.input.lock").write_text("")
    (line,) = lines(run)
    assert line.startswith(".snakemake/locks: ") and "--unlock" in line
    # one that lives is no problem
    record = {"host": socket.gethostname(), "pid": os.getpid(), "started": process_start(os.getpid()), "since": 0.0}
    write_json(run.results / "controller.json", record)
    assert lines(run) == []


def test_a_torch_that_cannot_use_the_gpus(real, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.13.0+cpu")
    (line,) = lines(real())
    assert line.startswith("torch: 2.13.0+cpu ") and "evaluation.device" in line
    assert lines(real(evaluation={"device": "cpu"})) == []
    on_cpu = {name: {"gpu": 0} for name in ("tiny", "small", "medium")}
    assert lines(real(size_classes=on_cpu)) == []
    assert len(lines(real(size_classes=on_cpu, evaluation={"device": "cuda"}))) == 1


def test_a_replay_needs_neither_weights_nor_gpus(built, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.13.0+cpu")
    assert lines(built) == [] and record_problems(built) == []


# ---- one id in the models sheet and in the bias study's sheet: two models, whose jobs have nothing in common ----


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    """A run with the model `gpt2`, huge and in bfloat16, and a tiny language model in float32 of any id."""
    monkeypatch.chdir(tmp_path)
    Path("models.tsv").write_text("model\tpath\tsize_class\tdtype\ngpt2\torg/large\thuge\tbfloat16\n")
    Path("benchmarks.tsv").write_text("benchmark\ttask\nquiz\tquiz\n")
    Path("tasks.tsv").write_text("task\tpath\ttext\tlabel\tclass_names\nnews\torg/news\ttext\tlabel\tgood|bad\n")

    def make(language_model="gpt2", **sections):
        sheet = f"language_model\tpath\tarchitecture\tsize_class\n{language_model}\torg/small\tcausal\ttiny\n"
        Path("language_models.tsv").write_text(sheet)
        bias = {"language_models": "language_models.tsv", "tasks": "tasks.tsv"}
        bias["experiments"] = {"head": {"m": [10], "n": [30], "subsamples": 20}}
        values = {"name": "run", "studies": ["agreement", "bias"], "bias": bias, **sections}
        return build_run({**values, "models": "models.tsv", "benchmarks": "benchmarks.tsv"}, "f.yaml")

    return make


@pytest.mark.parametrize(
    ("tiny", "problem"),
    [
        ({"gpu_memory_gb": 1, "gpu": 8}, "'tiny' has 8 x 1 GB"),
        ({"gpu_memory_gb": 80}, None),
        ({"gpu_memory_gb": 80, "gpu": 8}, None),
        ({"gpu_memory_gb": 1, "gpu": 0}, None),  # on the processor
    ],
)
def test_a_language_model_of_the_bias_study_must_fit_one_gpu(make_run, tiny, problem):
    found = [str(problem) for problem in gpu_memory_problems(make_run("elm", size_classes={"huge": {}, "tiny": tiny}))]
    assert [line.partition(": ")[0] for line in found] == ["language model elm"] * (problem is not None)
    # more GPUs would not help
    assert not found or (problem in found[0] and "size_class " in found[0] and "size_classes.gpu" not in found[0])


def test_4_bit_weights_without_bitsandbytes_are_named_before_the_queue(make_run, monkeypatch):
    asked = make_run().configuration.bias.model_dump(include={"language_models", "tasks"})
    asked |= {"zero_shot": {"quantization": "nf4"}, "experiments": {"prompts": {"method": "zero_shot"}}}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    def named(run) -> list[str]:
        return [problem.action for problem in package_problems(run) if problem.where == "bitsandbytes"]

    (action,) = named(make_run(bias=asked))
    assert "nf4" in action
    assert not named(make_run(bias=asked | {"zero_shot": {}}))
    assert not named(make_run(bias=asked | {"experiments": {"heads": {"method": "head"}}}))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "bitsandbytes")
    assert not named(make_run(bias=asked))


def test_what_is_wrong_with_one_is_not_said_of_the_other(make_run, monkeypatch):
    run = make_run(size_classes={"huge": {"gpu_memory_gb": 1}, "tiny": {"gpu_memory_gb": 80}})
    assert [problem.where for problem in gpu_memory_problems(run)] == ["model gpt2"]
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0+cpu")
    needing = make_run(size_classes={"huge": {"gpu": 0}, "tiny": {"gpu": 1}})
    assert "torch" in {problem.where for problem in package_problems(needing)}
    assert unfetched_models(run) == {"model gpt2": HubModel("org/large"), "language model gpt2": HubModel("org/small")}
    run.results.mkdir(parents=True)
    (run.results / "w.safetensors").touch()
    point = {"path": str(run.results), "subfolder": None, "digest": ""}
    write_json(run.results / "prefetch/models/gpt2.json", {"checkpoints": {"final": point}})
    assert list(unfetched_models(run)) == ["language model gpt2"]
    assert "language model gpt2" in {problem.where for problem in record_problems(run)}
    assert "model gpt2" not in {problem.where for problem in record_problems(run)}


def test_finished_cells_of_one_are_not_the_others(make_run):
    run = make_run()
    for kind in ("models", "language_models"):
        point = {"path": f"/cache/{kind}", "revision": "sha", "digest": f"of {kind}", "subfolder": None}
        write_json(run.results / f"prefetch/{kind}/gpt2.json", {"checkpoints": {"final": point}})
    names = ["good", "bad"]
    text = {"task": "news", "path": "somewhere.parquet", "sha256": "def", "class_names": names, "description": "d"}
    write_json(run.results / "prefetch/tasks/news.json", text)
    write_json(run.results / "prefetch/benchmarks/quiz.json", {"digest": "abc", "record": {}})
    for split in ("train", "validation", "test"):
        write_json(run.results / f"splits/quiz/{split}.json", {"documents": 10, "digest": split})
    workspace = Workspace(run)
    cells = [cell for job in workspace.grid.jobs.values() for cell in job.cells]
    (trials,) = (cell for cell in cells if cell.rule == "pretrain_on_test")
    scored = next(cell for cell in cells if cell.rule == "evaluate_model")
    assert "of language_models" in workspace.recipe(trials).values()
    assert workspace.recipe(scored)["model"] == "of models"
    manifests = workspace.grid.all_manifests()
    assert len(set(manifests)) == len(manifests)

    def done():
        return {one.cell for one in RunState(run).cells if one.state == "done"}

    for cells_done in ([trials], [trials, scored]):
        address = workspace.address(cells_done[-1])
        workspace.store.commit(address, {}, {"wall_seconds": 10.0}, lambda folder: None)
        assert done() == set(cells_done)
    measured = {one.rule: one.size_class for one in Estimator(run).measured}
    assert measured == {"pretrain_on_test": "tiny", "evaluate_model": "huge"}


def test_each_of_equal_ids_has_its_squares(make_run):
    """Model and language model `gpt2`, benchmark and task `quiz`: two squares, not one with the cells of both."""
    text = Path("tasks.tsv").read_text()
    Path("tasks.tsv").write_text(text.replace("news\t", "quiz\t", 1))
    states = {"pretrain_on_test": "done"}
    cells = [CellState(cell, states.get(cell.rule, "missing")) for cell in Grid(make_run()).cells()]
    assert {tuple(square): dict(counts) for square, counts in matrix(cells).items()} == {
        ("models", "gpt2", "quiz"): {"missing": len(cells) - 1},
        ("language_models", "gpt2", "quiz"): {"done": 1},
    }
    assert [line for line in render_matrix(cells).splitlines() if line.startswith("gpt2")] == ["gpt2 .", "gpt2 #"]
