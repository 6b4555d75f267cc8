"""The worker's numbers are those of the library's Trainer in the authors' loop, where randomness is off; and the speed
benchmark gives no ratio where they are not."""

import argparse
import importlib.util
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "bias_trials.py"
ARGUMENTS = argparse.Namespace(width=8, layers=1, vocabulary=100, subsamples=1, rounds=1)


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)  # for the helpers beside it
    specification = importlib.util.spec_from_file_location("bias_trials", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.setattr(module, "TRAINING_TEXTS", 20)
    monkeypatch.setattr(module, "TEST_TEXTS", (10, 20))
    return module


@pytest.mark.parametrize("architecture", ["masked", "causal"])
def test_probabilities_are_the_trainers(benchmark, tmp_path, architecture):
    record = benchmark.measure(architecture, tmp_path, ARGUMENTS)
    assert record["agreement"] < 1e-5 and record["ratio"] > 0 and record["target"] == 3


def test_no_ratio_where_an_accuracy_differs(benchmark, tmp_path, monkeypatch):
    def wrong(plans, folder):
        found = resident(plans, folder)
        for trials in found:
            for key in trials:
                trials[key] = np.roll(trials[key], 1, axis=1)
        return found

    resident = benchmark.resident
    monkeypatch.setattr(benchmark, "resident", wrong)
    with pytest.raises(SystemExit, match="accuracies differ between the two sides"):
        benchmark.measure("causal", tmp_path, ARGUMENTS)
