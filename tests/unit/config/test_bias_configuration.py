"""The bias study's section, sheets and batches: every subsample in exactly one cell, mistakes named with their row."""

from pathlib import Path

import pytest

from lm_validity.config.load import build_run, key_values, load_run
from lm_validity.errors import InputError
from lm_validity.run.rules import read_cell
from lm_validity.run.rules.pretrain_on_test import plan_values
from lm_validity.run.workspace import Grid

ROOT = Path(__file__).resolve().parents[3]
MODELS = "language_model\tpath\tarchitecture\tsize_class\nbert\torg/bert\tmasked\ttiny\ngpt\torg/gpt\tcausal\ttiny\n"
TASKS = (
    "task\tpath\ttext\tlabel\tclass_names\trows\tcausal_batch\n"
    "news\torg/news\ttext\tlabel\tgood|bad\t500\t4\n"
    "mail\torg/mail\tsubject|body\tlabel\tham|spam|neither\t\t\n"
)


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(bias=None, models=MODELS, tasks=TASKS, **more):
        Path("models.tsv").write_text(models)
        Path("tasks.tsv").write_text(tasks)
        section = {"language_models": "models.tsv", "tasks": "tasks.tsv", **(bias or {})}
        return build_run({"name": "run", "studies": ["bias"], "bias": section, **more}, "f.yaml")

    return make


def test_every_subsample_is_in_one_cell_whatever_the_batches(make_run):
    experiments = {"head": {"m": [10, 20], "n": [30, 40], "subsamples": {30: 7, 40: 3}}}
    for size, cells_a_job in ((1, 1), (3, 2), ("all", "all")):
        run = make_run(
            {"experiments": experiments, "subsamples_a_cell": size},
            batching={"pretrain_on_test": {"cells": cells_a_job}},
        )
        grid = Grid(run)
        cells = [cell for job in grid.jobs.values() for cell in job.cells]
        drawn = [(cell[:6], i) for cell in cells for i in range(cell.first, cell.last + 1)]
        assert len(drawn) == len(set(drawn)) == 2 * 2 * 2 * (7 + 3)
        assert all(read_cell(cell._asdict()) == cell for cell in cells)
        assert len({cell.name for cell in cells if cell.model == "bert"}) == len(cells) / 2
        assert all(len(job.cells) == 1 for job in grid.jobs.values()) == (cells_a_job == 1)
    assert len(grid.jobs) == 2
    assert grid.all_manifests() == [
        f"results/run/cells/pretrain_on_test/{name}/all-cells.json" for name in ("bert", "gpt")
    ]


def test_hyperparameters_come_from_sheet_experiment_and_architecture(make_run):
    run = make_run({"experiments": {"head": {}, "over": {"pretraining_epochs": 5}}})
    values = {cell[1:4]: plan_values(run, cell) for job in Grid(run).jobs.values() for cell in job.cells}
    assert values["bert", "head", "news"].pretraining.epochs == 2
    assert values["gpt", "head", "news"].pretraining.epochs == 1
    assert values["gpt", "over", "news"].pretraining.epochs == 5
    assert values["gpt", "head", "news"].classification.batch_size == 4
    assert values["bert", "head", "news"].classification.batch_size == 16
    assert values["gpt", "head", "mail"].classification.batch_size == 16
    assert values["bert", "head", "news"].seeds == "varied"
    authors = make_run({"paper": True})
    values = plan_values(authors, next(iter(Grid(authors).jobs.values())).cells[0])
    assert values.seeds == "fixed" and values.classification.pooler == "paper"
    assert values.classification.max_length is None and values.drop_duplicate_texts is False


def test_settings_tell_what_changes_numbers(make_run):
    def said(**bias):
        return [Grid(run).settings(job) for run in [make_run(bias)] for job in Grid(run).jobs.values()]

    before = said()
    assert said(training={"epochs": 4}) != before
    ask = {"experiments": {"ask": {"method": "zero_shot", "language_models": ["gpt"]}}}
    assert said(**ask, zero_shot={"gradient_checkpointing": True}) == said(**ask)
    assert said(subsamples_a_cell=10) != before
    assert said(paper=True) != before


ASK = {"method": "zero_shot"}


def of_head(**experiment) -> dict:
    return {"bias": {"experiments": {"head": experiment}}}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"models": MODELS.replace("causal", "casual")}, r"row 3, column 'architecture', value 'casual'"),
        ({"models": MODELS.replace("tiny\ngpt", "small-ish\ngpt")}, r"row 2, column 'size_class', value 'small-ish'"),
        ({"models": MODELS.replace("size_class", "sizeclass")}, r"column 'sizeclass'.*did you mean 'size_class'"),
        ({"tasks": TASKS.replace("good|bad", "good")}, r"tasks.tsv, row 2.*two or more"),
        ({"tasks": TASKS.replace("mail\t", "news\t")}, r"row 3, column 'task', value 'news': this id occurs twice"),
        ({"tasks": TASKS.replace("500", "409")}, r"task 'news', experiment 'head': 409 rows, but m \+ 2n = 500"),
        (of_head(m=[2]), r"task 'mail'.*m = 2 labelled texts for 3 classes"),
        (of_head(tasks=["nws"]), r"value 'nws': not in tasks.tsv.*did you mean 'news'"),
        (of_head(**ASK), r"'bert' is a masked language model"),
        (of_head(packing=True), r"packing is for method zero_shot"),
        (of_head(**ASK, packing=True, planted_leak=0.5), r"packing and planted_leak exclude each other"),
        (of_head(m=[50, 100, 50]), r"bias.experiments.head.m.*holds a value twice"),
        (of_head(tasks=["news", "news"]), r"tasks.*holds a value twice"),
        (of_head(n=[30, 40], subsamples={30: 5}), r"40 is not both there and an n"),
        (of_head(subsamples={"99": 5}), r"99 is not both there and an n"),
        (of_head(subsample=5), r"unknown key.*did you mean 'subsamples'"),
        ({"bias": {"experiments": {"a.b": {}}}}, r"experiment 'a.b'"),
        ({"bias": {"pretraning": {}}}, r"unknown key 'bias.pretraning'.*did you mean 'pretraining'"),
    ],
)
def test_mistakes_are_named(make_run, change, problem):
    with pytest.raises(InputError, match=problem):
        make_run(**change)


class TestPublishedSheets:
    @pytest.fixture
    def run(self, monkeypatch):
        monkeypatch.chdir(ROOT)
        return load_run("config/paper/pretrain_on_test.yaml")

    def test_the_grid_of_the_paper(self, run):
        cells = [cell for job in Grid(run).jobs.values() for cell in job.cells]
        trials = {}
        for cell in cells:
            trials[cell.experiment] = trials.get(cell.experiment, 0) + cell.last - cell.first + 1
        assert trials == {"main": 27_000, "overtraining": 13_500, "zero_shot": 500, "packing": 500}
        assert len(run.tasks) == 25

    def test_a_study_that_stops_on_widths_has_batch_after_batch(self, run, tmp_path):
        """25 subsamples of each task, then 25 more of one, not at n = 500, which has 20 subsamples."""
        values, plan = key_values(run.configuration), tmp_path / "batches.tsv"
        values["bias"] |= {"stop_at_half_width": 0.01, "plan": str(plan)}
        first = Grid(build_run(values, "f.yaml")).jobs
        assert len(first) == (2 + 1) * 25 * 2 * 4 + 2 * 25
        plan.write_text("experiment\ttask\tround\tsubsamples\nmain\tag_news\t2\t50\n")
        second = Grid(build_run(values, "f.yaml")).jobs
        assert first.items() <= second.items() and len(second) == len(first) + 2 * 2 * 3

    def test_tasks(self, run):
        tasks = run.tasks.values()
        assert sum(task.training_epochs == 1 and task.pretraining_batch == 8 for task in tasks) == 7
        assert sum(task.training_epochs == 3 and task.pretraining_batch == 16 for task in tasks) == 18
        assert sum(task.shorter_than == 1000 for task in tasks) == 4
        assert len(run.tasks["massive"].class_names) == 18 and len(run.tasks["mtop_domain"].class_names) == 11
        for task in tasks:
            assert "/" in task.path and task.description and task.majority_share
            assert 1 / len(task.class_names) <= task.majority_share < 1
            # what was a loading script is read from the hub's conversion to parquet
            assert (task.revision == "refs/convert/parquet") == bool(task.files)
            if task.rows:  # the published share is a count of rows
                assert abs(round(task.majority_share * task.rows) / task.rows - task.majority_share) < 1e-6
