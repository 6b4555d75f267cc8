"""The check of a new cluster's GPU, with the CPU in the GPU's place and with faults planted."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import gpu_check
from gpu_check import each_check

from lm_validity.cells.models import passes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    gpu_check.write_model(place)
    return place


def outcomes(found) -> dict[str, str]:
    return {one.check: one.outcome for one in found}


@pytest.mark.slow
def test_the_cpu_is_ready():
    found = list(each_check("cpu"))
    said = outcomes(found)
    assert set(said.values()) <= {"passed", "skipped"}
    assert {check for check, outcome in said.items() if outcome == "skipped"} <= {"GPU", "bitsandbytes"}
    assert {"scores in bfloat16", "training in float32", "rates side by side", "answers in float32"} <= set(said)


def test_products_that_are_not_float32_are_seen(monkeypatch):
    """TF32 keeps ten bits."""
    plain = torch.Tensor.__matmul__

    def coarse(one, other):
        product = plain(one, other)
        return product * (1 + 2.0**-11) if product.dtype == torch.float32 else product

    assert outcomes(gpu_check._products("cpu")) == dict.fromkeys(gpu_check.PRODUCT, "passed")
    monkeypatch.setattr(torch.Tensor, "__matmul__", coarse)
    assert outcomes(gpu_check._products("cpu"))["float32"] == "failed"


def test_scores_that_differ_and_ways_that_are_refused_are_seen(folder, monkeypatch):
    device = []  # loads in turn: the device, the CPU
    load = gpu_check._load

    def wrong(place, where, dtype="float32"):
        lm = load(place, where, dtype)
        device.append(lm)
        if len(device) % 2:
            lm.base.lm_head.weight.data[:, :8] *= 1.5
        return lm

    def alike(visible, dtype, device):
        raise RuntimeError("no mask of ours")

    monkeypatch.setattr(gpu_check, "_load", wrong)
    monkeypatch.setattr(passes, "_additive", alike)
    said = outcomes(gpu_check._scores(folder, "cpu"))
    assert said == {
        "scores in float32": "failed",
        "scorer in float32": "noted",
        "scores in bfloat16": "failed",
        "scorer in bfloat16": "noted",
    }


@pytest.mark.parametrize(("same", "outcome"), [(16, "passed"), (15, "noted"), (8, "noted"), (7, "failed")])
def test_answers_may_differ_where_rounding_decides(same, outcome):
    ours = ["a"] * same + ["b"] * (16 - same)
    assert gpu_check._alike("answers", ours, ["a"] * 16, "the CPU's").outcome == outcome
