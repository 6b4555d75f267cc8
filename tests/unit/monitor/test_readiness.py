"""What would make jobs fail after hours in a queue is named before, each in a line with what to do."""

import importlib.metadata
import json
import os
import socket
from pathlib import Path

import pytest

from lm_validity.config.load import build_run, load_run
from lm_validity.config.sheets import FINAL, Checkpoint
from lm_validity.files import write_json
from lm_validity.monitor.check import leases, readiness_problems, record_problems, unfetched_models
from lm_validity.run.inputs import HubModel
from lm_validity.run.store import hold_lease, process_start

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
    points = (
        Checkpoint(checkpoint="early", subfolder="steps/2"),
        Checkpoint(checkpoint="late", subfolder="steps/1"),
        FINAL,
    )
    run.models["oak-s"] = run.models["oak-s"].model_copy(update={"checkpoints": points})
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


def test_a_language_model_of_the_bias_study_must_fit_one_gpu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("models.tsv").write_text("language_model\tpath\tarchitecture\tsize_class\nelm\torg/elm\tcausal\tlarge\n")
    Path("tasks.tsv").write_text("task\tpath\ttext\tlabel\tclass_names\nnews\torg/news\ttext\tlabel\tgood|bad\n")
    values = {"name": "run", "studies": ["bias"], "bias": {"language_models": "models.tsv", "tasks": "tasks.tsv"}}

    def found(**large):
        return lines(build_run({**values, "size_classes": {"large": large}}, "f.yaml"))

    (line,) = found(gpu_memory_gb=30, gpu=8)
    assert line.startswith("language model elm: ") and "'large' has 8 x 30 GB" in line
    assert "size_class " in line and "size_classes.gpu" not in line  # more GPUs would not help
    assert found(gpu_memory_gb=240) == found(gpu_memory_gb=240, gpu=8) == []
    assert found(gpu_memory_gb=30, gpu=0) == []  # on the processor


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
