"""What jobs ask for is enough for what they have to do, from 70 million to 14 billion parameters."""

import csv
from pathlib import Path

import pytest

from lm_validity.config.load import Run, build_run, key_values, load_run
from lm_validity.monitor.check import gpu_memory_problems
from lm_validity.run.rules import rule_of
from lm_validity.run.workspace import Grid, Workload

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def paper(monkeypatch):
    monkeypatch.chdir(ROOT)
    return load_run("config/paper/train_before_test.yaml")


def published_workload(run: Run) -> Workload:
    """The analytic model with the published numbers of documents."""
    workload = Workload(run)
    with open("config/paper/train_before_test_benchmarks.tsv", encoding="utf-8") as handle:
        rows = {row["benchmark"]: row for row in csv.DictReader(handle, delimiter="\t")}
    columns = {"train": "train_used", "validation": "validation_used", "test": "test_rows"}
    workload.documents = lambda benchmark, split: min(
        int(rows[benchmark][f"published_{columns[split]}"]), getattr(run.configuration.splits, split)
    )
    return workload


def test_starting_is_at_most_a_tenth_of_jobs_under_auto(paper):
    """The default batching, on the published grid: a start and a load against the cells, by size class and rule."""
    values = key_values(paper.configuration) | {"batching": {}}
    run = build_run(values, "f.yaml")
    workload, spent = published_workload(run), {}
    for job in Grid(run).jobs.values():
        if job.rule.startswith("select"):
            continue
        start, cells = spent.get((run.models[job.model].size_class, job.rule), (0.0, 0.0))
        start += workload.start_seconds(run.models[job.model])
        cells += sum(map(workload.seconds, job.cells))
        spent[run.models[job.model].size_class, job.rule] = (start, cells)
        assert rule_of(job).minutes(run, job) <= 12 * 60 or len({cell.benchmark for cell in job.cells}) == 1
    assert len(spent) == 15
    for group, (start, cells) in spent.items():
        assert start / (start + cells) <= 0.1, group


def test_jobs_have_time_on_a_gpu_half_as_fast_and_memory_for_the_weights(paper):
    """Every job of the published grid, by the analytic model of an H200 times two, and the weights, which pass through
    the machine's memory on their way to the GPU, with a half to spare; a second attempt has double."""
    workload, sizes = published_workload(paper), set()
    for job in Grid(paper).jobs.values():
        if job.rule.startswith("select"):
            continue
        row = paper.models[job.model]
        sizes.add(row.parameters_b)
        first, second = (rule_of(job).resources(paper, job, attempt) for attempt in (1, 2))
        seconds = sum(map(workload.seconds, job.cells)) + workload.start_seconds(row)
        assert 2 * seconds < 60 * first.minutes, job
        assert first.mem_mb * 1e6 > 1.5 * workload.parameters(row) * 2 and first.gpus == 1
        assert (second.minutes, second.mem_mb) == (2 * first.minutes, 2 * first.mem_mb)
    assert min(sizes) < 0.1 and max(sizes) > 14


@pytest.mark.parametrize("name", ["train_before_test", "early_training", "pretrain_on_test"])
def test_every_published_model_fits_the_gpus_of_its_class(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert not list(gpu_memory_problems(load_run(f"config/paper/{name}.yaml")))


def test_a_replay_asks_for_no_gpu(monkeypatch):
    monkeypatch.chdir(ROOT)
    run = load_run("config/paper/train_before_test_replay.yaml")
    assert {rule_of(job).resources(run, job).gpus for job in Grid(run).jobs.values()} == {0}
