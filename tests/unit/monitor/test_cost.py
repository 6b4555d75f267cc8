"""The expected cost: analytic, corrected by finished cells, its error shown."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lm_validity.config.load import load_run
from lm_validity.files import write_json
from lm_validity.monitor.render import render_cost, warnings_of
from lm_validity.monitor.status import Estimator, RunState, needs
from lm_validity.run import workspace as formula
from lm_validity.run.rules.base import PASSES_A_STEP, size_class
from lm_validity.run.workspace import LAUNCH_SECONDS, Workload, Workspace, adapter_parameters, gpu_gb


@pytest.fixture
def real(made_up):
    """The made-up sheets as a real run, which nobody ever starts."""
    text = Path("replay/replay.yaml").read_text()
    Path("real.yaml").write_text(
        text.replace("replay: { scores: replay/scores.json }", "").replace(": replay\n", ": real\n")
    )
    return load_run("real.yaml")


def finish(run, rule, models, seconds, rates=("1e-5", "2e-5"), machine=None):
    """Finished cells whose sidecars say `seconds(cell, what the analytic model says)`."""
    workload, store = Workload(run), Workspace(run).store
    for job in Workspace(run).grid.jobs.values():
        for cell in job.cells:
            if cell.rule == rule and cell.model in models and cell.learning_rate in (None, *rates):
                sidecar = {"wall_seconds": seconds(cell, workload.seconds(cell)), "peak_memory_mb": 1234}
                sidecar |= {"machine": machine} if machine else {}
                store.commit(store.address(cell, {"of": cell.name}), {}, sidecar, lambda folder: None)


def test_a_model_that_is_only_scored_needs_no_memory_to_train(real):
    """Of 8 billion parameters: fine-tuning takes several gigabytes more than the weights, scoring two."""
    row = next(row for row in real.models.values() if size_class(real, row).gpu)

    def needed(study: str) -> float:
        one = row.model_copy(update={"studies": (study,), "parameters_b": 8.0})
        return Workload(replace(real, models={one.model: one})).gpu_gb(one)

    assert row.dtype == "bfloat16" and needed("signal") == pytest.approx(16 + 2) and needed("agreement") > 20


def finetuning(real, **values):
    return real.configuration.finetuning.model_copy(update=values)


def test_adapter_of_a_seven_billion_model(real):
    """Llama-2-7B: LoRA of rank 8 on all linear layers trains 20.0 million parameters."""
    for layers, parameters in (("all-linear", 19.99e6), ("attention", 6.29e6)):
        settings = finetuning(real, rank=8, target_modules=layers)
        assert adapter_parameters(6.74e9, settings) == pytest.approx(parameters, rel=0.05)


def test_memory_of_fine_tuning(real):
    """Llama-3-8B, one text of 1024 tokens: 23.9 GB counted on tensors without content; of 8192, no more for logits."""
    usual = real.configuration.finetuning
    assert 28 < gpu_gb(14e9, "bfloat16", usual) < 48 and gpu_gb(14e9, "float32", usual) > 64
    assert gpu_gb(0.07e9, "bfloat16", usual) < 4
    settings = finetuning(real, max_length=1024, rank=8)
    assert gpu_gb(8.03e9, "bfloat16", settings) == pytest.approx(23.9, rel=0.03)
    assert gpu_gb(8.03e9, "bfloat16", settings, recomputed=True) < 19.5
    assert gpu_gb(0.07e9, "bfloat16", finetuning(real, max_length=8192, rank=8, gradient_checkpointing=True)) < 2.5
    row = next(row for row in real.models.values() if size_class(real, row).gpu)
    row = row.model_copy(update={"parameters_b": 8.0})
    real = replace(real, models={row.model: row})
    spare, sizes = {"gradient_checkpointing": True}, real.configuration.size_classes
    classes = {name: one.model_copy(update=spare) for name, one in sizes.items()}
    spared = replace(real, configuration=real.configuration.model_copy(update={"size_classes": classes}))
    assert Workload(spared).gpu_gb(row) < Workload(real).gpu_gb(row)


def test_logits_at_a_time_are_those_of_the_head():
    head = pytest.importorskip("lm_validity.cells.models.passes")
    assert formula.LOGITS_AT_A_TIME == head.PART


def test_uncalibrated_says_so(real):
    text = render_cost(Estimator(real), RunState(real))
    assert "UNCALIBRATED" in text and "(proverbs, riddles, sums)" in text and "on a CPU" not in text


def test_hours_of_a_gpu_where_there_is_none_are_called_so(real):
    def is_said(run) -> bool:
        (warning,) = [line for line in warnings_of(Estimator(run)) if "hours of a GPU" in line] or [""]
        assert warning in render_cost(Estimator(run), RunState(run))
        return bool(warning)

    assert not is_said(real)
    configured = real.configuration
    on_cpu = configured.model_copy(update={"evaluation": configured.evaluation.model_copy(update={"device": "cpu"})})
    assert is_said(replace(real, configuration=on_cpu))
    sizes = configured.size_classes.items()
    classes = {name: one.model_copy(update={"gpu": int(name == "medium")}) for name, one in sizes}
    run = replace(real, configuration=configured.model_copy(update={"size_classes": classes}))
    assert is_said(run)
    # a cell that finished on a GPU corrects no hours of a CPU; one on a CPU, of any class, does
    finish(run, "evaluate_model", ("oak-m",), lambda cell, predicted: predicted, machine={"gpu": "H200"})
    assert Estimator(run).measured and is_said(run)
    finish(run, "evaluate_model", ("oak-s",), lambda cell, predicted: 30 * predicted)
    assert not is_said(run)


def test_jobs_and_requests_are_those_of_the_grid(real):
    found = {need.rule: need for need in needs(Estimator(real))}
    assert {rule: (need.cells, need.jobs) for rule, need in found.items()} == {
        "evaluate_model": (42, 7),
        "finetune_adapter": (42, 7),
        "select_prompt": (3, 1),
        "select_adapter": (18, 6),
        "evaluate_adapter": (18, 6),
    }
    minutes = {"tiny": 150, "small": 180, "medium": 240}
    models = ["tiny", "small", "medium", "tiny", "small", "small", "small"]  # elm-m-chat has two prompts
    assert found["finetune_adapter"].requested_gpu_hours == sum(minutes[name] * 6 for name in models) / 60


def test_work_grows_with_documents_parameters_and_epochs(real):
    # up to a billion parameters a step is bound by its launch, not by its arithmetic
    real.models["oak-l"] = real.models["oak-l"].model_copy(update={"parameters_b": 14.0})
    workload = Workload(real)
    cells = {cell.name + cell.model: cell for job in Workspace(real).grid.jobs.values() for cell in job.cells}
    small, large = (cells[f"riddles.plain.lr1e-5.seed0{model}"] for model in ("oak-s", "oak-l"))
    assert workload.seconds(small) < workload.seconds(large)
    test, validation = (cells[f"riddles.final.plain.{split}oak-s"] for split in ("test", "validation"))
    assert workload.seconds(test) > 5 * workload.seconds(validation)  # 10,000 documents and 1,000


def test_medians_of_finished_cells_correct_the_formula(real):
    """Of the rule and size class; else of the rule; else of everything."""
    finish(real, "finetune_adapter", ("oak-s", "elm-s"), lambda cell, predicted: 3 * predicted)
    workload, cells = Workload(real), [cell for job in Workspace(real).grid.jobs.values() for cell in job.cells]
    for rule in ("finetune_adapter", "evaluate_model"):
        for cell in (cell for cell in cells if cell.rule == rule):
            assert Estimator(real).seconds(cell) == pytest.approx(3 * workload.seconds(cell), rel=1e-3)
    text = render_cost(Estimator(real), RunState(real))
    assert "by 12 finished cells" in text and "uncalibrated" in text  # of the other rules


def test_another_runs_cells_are_learned_from(real):
    Path("second.yaml").write_text(Path("real.yaml").read_text().replace(": real\n", ": second\n"))
    other = load_run("second.yaml")
    finish(other, "evaluate_model", ("oak-s",), lambda cell, predicted: predicted / 2)
    assert not Estimator(real).measured
    estimator = Estimator(real, [other])
    cell = next(c for j in Workspace(real).grid.jobs.values() for c in j.cells if c.model == "oak-s")
    assert estimator.seconds(cell) == pytest.approx(Workload(real).seconds(cell) / 2, rel=1e-3)


def test_a_replay_teaches_nothing_about_cost(built):
    assert Estimator(built).measured == []


def test_the_time_of_a_resumed_cell_is_that_of_its_last_attempt_only(real):
    cell, other, *_ = (c for j in Workspace(real).grid.jobs.values() for c in j.cells if c.rule == "finetune_adapter")
    store = Workspace(real).store
    store.commit(store.address(cell, {}), {}, {"wall_seconds": 10.0}, lambda folder: None)
    store.commit(store.address(other, {}), {}, {"wall_seconds": 1.0, "resumed_epochs": 1}, lambda folder: None)
    assert [one.seconds for one in Estimator(real).measured] == [10.0]


def test_parameters_the_sheet_does_not_know_are_counted_in_the_weights(real, tmp_path):
    real.models["oak-s"] = real.models["oak-s"].model_copy(update={"parameters_b": None})
    # a typical model of its size class
    assert Workload(real).parameters(real.models["oak-s"]) == 0.12e9
    header = json.dumps({"__metadata__": {"format": "pt"}, "a": {"shape": [3, 4]}, "b": {"shape": [5]}}).encode()
    (tmp_path / "weights").mkdir()
    for name in ("model-1", "model-2", "consolidated"):  # the last holds the weights of the two once more
        (tmp_path / f"weights/{name}.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    write_json(tmp_path / "weights/model.safetensors.index.json", {"weight_map": shards})
    point = {"path": str(tmp_path / "weights"), "subfolder": None}
    write_json(real.results / "prefetch/models/oak-s.json", {"checkpoints": {"final": point}})
    workload = Workload(real)
    assert workload.parameters(real.models["oak-s"]) == 34 and not workload.assumed


def test_trials_cost_what_their_epochs_cost(monkeypatch):
    """The published bias study: overtraining pretrains twice as long as the main experiment does."""
    monkeypatch.chdir(Path(__file__).parents[3])
    run = load_run("config/paper/pretrain_on_test.yaml")
    workload = Workload(run)
    cells = {
        cell.experiment: cell
        for job in Workspace(run).grid.jobs.values()
        for cell in job.cells
        if (cell.model, cell.m, cell.n, cell.first) == ("gpt2", 100, 100, 1)
    }
    seconds = {name: workload.seconds(cells[name]) / (cells[name].last - cells[name].first + 1) for name in cells}
    one = run.configuration.bias.pretraining.causal_epochs
    more = run.configuration.bias.experiments["overtraining"].pretraining_epochs
    batch = run.tasks[cells["main"].task].pretraining_batch or run.configuration.bias.pretraining.batch_size
    assert cells["main"].task == cells["overtraining"].task and more > one
    # two arms of 100 texts are pretrained `more - one` epochs longer, and steps of so small a model take their launches
    added = 2 * 100 * (more - one) / batch * PASSES_A_STEP * LAUNCH_SECONDS
    assert seconds["overtraining"] - seconds["main"] == pytest.approx(added)
