"""Plans and recipes of the bias study's batches: what changes numbers is in the recipe, and nothing else."""

from pathlib import Path

import pytest

from lm_validity.cells.runner import run_job
from lm_validity.config.load import build_run
from lm_validity.errors import InputError
from lm_validity.files import write_json
from lm_validity.run.rules.pretrain_on_test import make_plan
from lm_validity.run.workspace import Workspace

MODELS = "language_model\tpath\tarchitecture\tdtype\nbert\torg/bert\tmasked\t\ngpt\torg/gpt\tcausal\tbfloat16\n"
TASKS = "task\tpath\ttext\tlabel\tclass_names\nnews\torg/news\ttext\tlabel\tgood|bad\n"
EXPERIMENTS = {
    "head": {"n": [50, 100], "subsamples": {50: 3, 100: 2}},
    "ask": {"method": "zero_shot", "language_models": ["gpt"], "subsamples": 2},
    "pack": {"method": "zero_shot", "packing": True, "language_models": ["gpt"], "subsamples": 2},
}


@pytest.fixture
def make_workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("models.tsv").write_text(MODELS)
    Path("tasks.tsv").write_text(TASKS)

    def make(model_digest="abc", text_digest="def", **bias):
        section = {"language_models": "models.tsv", "tasks": "tasks.tsv", "experiments": EXPERIMENTS, **bias}
        run = build_run({"name": "run", "studies": ["bias"], "bias": section}, "f.yaml")
        point = {"path": f"/cache/{model_digest}", "revision": "sha", "digest": model_digest, "subfolder": None}
        for name in run.language_models:
            write_json(run.results / f"prefetch/language_models/{name}.json", {"checkpoints": {"final": point}})
        task = {"task": "news", "path": "somewhere.parquet", "sha256": text_digest, "class_names": ["good", "bad"]}
        task["description"] = "d"
        write_json(run.results / "prefetch/tasks/news.json", task)
        return Workspace(run)

    return make


def cells(workspace) -> dict:
    return {(cell.model, cell.name): cell for job in workspace.grid.jobs.values() for cell in job.cells}


def test_plans_have_what_configuration_and_records_say(make_workspace):
    workspace = make_workspace()
    found = cells(workspace)
    plan = make_plan(workspace, found["bert", "head.news.m100.n50.subsamples1-3"])
    assert (plan.architecture, plan.m, plan.n, plan.subsamples) == ("masked", 100, 50, (1, 2, 3))
    assert plan.model_digest == "abc" and plan.data.class_names == ("good", "bad")
    assert plan.share_base == ((100, 2),)  # the base arm does not depend on n
    assert plan.pretraining.adapter is None and plan.classification.method == "head"
    asked = make_plan(workspace, found["gpt", "ask.news.m100.n200.subsamples1-2"])
    assert asked.classification.method == "zero_shot" and asked.pretraining.adapter.rank == 16
    assert asked.dtype == "bfloat16" and asked.pretraining.packing == 0
    # all weights are trained, which half precision has not the digits for
    assert make_plan(workspace, found["gpt", "head.news.m100.n50.subsamples1-3"]).dtype == "float32"
    packed = make_plan(workspace, found["gpt", "pack.news.m100.n200.subsamples1-2"])
    assert (packed.pretraining.packing, packed.pretraining.batch_size, packed.pretraining.max_length) == (8, 1, 8192)


def test_recipes_hold_what_changes_numbers(make_workspace):
    def folders(**changes):
        workspace = make_workspace(**changes)
        return {key: workspace.address(cell).folder for key, cell in cells(workspace).items()}

    before = folders()
    assert len(set(before.values())) == len(before) == 6
    assert folders(zero_shot={"gradient_checkpointing": True}) == before
    for change in ({"model_digest": "other"}, {"text_digest": "other"}, {"paper": True}):
        assert not set(folders(**change).values()) & set(before.values()), change
    trained = folders(training={"epochs": 7})
    assert {key[1].split(".")[0] for key in before if trained[key] == before[key]} == {"ask", "pack"}


def test_recipes_of_adapters_on_a_gpu_name_how_masks_are_drawn(make_workspace):
    workspace = make_workspace()
    named = [cell.experiment for cell in cells(workspace).values() if "dropout_masks" in workspace.recipe(cell)]
    assert {*named} == {"ask", "pack"}  # the zero-shot experiments, whose size class has a GPU


def test_a_task_that_was_not_fetched_is_named_with_the_command(make_workspace):
    workspace = make_workspace()
    Path("results/run/prefetch/tasks/news.json").unlink()
    with pytest.raises(InputError, match="lm-validity prefetch-task --task news"):
        workspace.address(next(iter(cells(workspace).values())))


def test_a_job_of_trials_without_its_gpu_ends_and_no_cell_is_recorded(make_workspace, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    workspace = make_workspace()
    job = next(iter(workspace.grid.jobs.values()))
    with pytest.raises(InputError, match="size class 'small' with gpu: 1"):
        run_job(workspace, job)
    assert not any(Path(path).exists() for path in workspace.grid.all_manifests())
