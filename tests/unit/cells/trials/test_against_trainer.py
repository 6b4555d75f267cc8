"""The worker's numbers are those of the library's Trainer in the authors' loop, where randomness is off; and the speed
benchmark ends where they are not."""

import argparse
import importlib.util
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "bias_trials.py"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)  # for the helpers beside it
    monkeypatch.setattr("accelerate.utils.memory.gc.collect", lambda: 0)  # of all that the tests imported
    specification = importlib.util.spec_from_file_location("bias_trials", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    small = {"WIDTH": 8, "LAYERS": 1, "VOCABULARY": 100, "TRAINING_TEXTS": 20, "TEST_TEXTS": (10, 20)}
    for name, value in small.items():
        monkeypatch.setattr(module, name, value)
    return module


def test_probabilities_of_masked_models_are_the_trainers(benchmark, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "TEST_TEXTS", (10,))
    record = benchmark.measure("masked", tmp_path, argparse.Namespace(subsamples=1, rounds=1))
    assert record["agreement"] < 1e-5 and record["ratio"] > 0 and record["target"] == 3


def test_probabilities_of_causal_models_are_the_trainers_and_others_are_refused(benchmark, tmp_path):
    model = benchmark.write_model("causal", tmp_path / "model")
    plans = benchmark.make_plans("causal", model, benchmark.write_task(tmp_path), 1)
    task = benchmark.read_task(plans[0].data)
    theirs = [{1: benchmark.AuthorsLoop(plan, task, tmp_path).run(1)} for plan in plans]
    ours = benchmark.resident(plans, tmp_path / "ours")
    assert len(plans) == 2 and max(map(benchmark.largest_difference, plans, [task] * 2, theirs, ours)) < 1e-5
    wrong = {key: np.roll(probabilities, 1, axis=1) for key, probabilities in ours[0].items()}
    with pytest.raises(SystemExit, match="accuracies differ between the two sides"):
        benchmark.largest_difference(plans[0], task, theirs[0], wrong)
