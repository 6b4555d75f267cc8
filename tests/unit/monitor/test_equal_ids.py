"""One id in the models sheet and in the bias study's sheet: two models, whose jobs have nothing in common."""

from pathlib import Path

import pytest

from lm_validity.config.load import build_run
from lm_validity.files import write_json
from lm_validity.monitor.check import gpu_memory_problems, package_problems, record_problems, unfetched_models
from lm_validity.monitor.render import matrix, render_matrix
from lm_validity.monitor.status import CellState, Estimator, RunState
from lm_validity.run.inputs import HubModel
from lm_validity.run.workspace import Grid, Workspace


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
        bias = {
            "language_models": "language_models.tsv",
            "tasks": "tasks.tsv",
            "experiments": {"head": {"m": [10], "n": [30], "subsamples": 20}},
        }
        values = {"name": "run", "studies": ["agreement", "bias"], "bias": bias, **sections}
        return build_run({**values, "models": "models.tsv", "benchmarks": "benchmarks.tsv"}, "f.yaml")

    return make


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
    cells = [
        CellState(cell, "done" if cell.rule == "pretrain_on_test" else "missing") for cell in Grid(make_run()).cells()
    ]
    assert {tuple(square): dict(counts) for square, counts in matrix(cells).items()} == {
        ("models", "gpt2", "quiz"): {"missing": len(cells) - 1},
        ("language_models", "gpt2", "quiz"): {"done": 1},
    }
    assert [line for line in render_matrix(cells).splitlines() if line.startswith("gpt2")] == ["gpt2 .", "gpt2 #"]
