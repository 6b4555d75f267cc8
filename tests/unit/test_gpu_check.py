"""The check of a new cluster's GPU, with the CPU in the GPU's place and with faults planted."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import gpu_check
from gpu_check import CheckResult, each_check

from lm_validity.cells.models import trees
from lm_validity.errors import InputError


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
    assert {check for check, outcome in said.items() if outcome == "skipped"} <= {
        "GPU",
        "bitsandbytes",
        "vLLM",
    }
    assert {"scores in bfloat16", "training in float32", "rates side by side", "answers in float32"} <= set(said)


def test_without_a_gpu_there_is_nothing_to_check(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="can use 0"):
        list(each_check("cuda"))


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
    monkeypatch.setattr(trees, "_additive", alike)
    said = outcomes(gpu_check._scores(folder, "cpu"))
    assert said == {
        "scores in float32": "failed",
        "scorer in float32": "noted",
        "scores in bfloat16": "failed",
        "scorer in bfloat16": "noted",
    }


def test_whatever_is_raised_is_a_finding():
    def broken():
        yield CheckResult("first", "passed", "")
        raise RuntimeError("CUDA error: no kernel image is available\nmore")

    first, second = gpu_check._tried("second", broken())
    assert first.outcome == "passed" and second == CheckResult(
        "second", "failed", "RuntimeError: CUDA error: no kernel image is available"
    )


@pytest.mark.parametrize(("same", "outcome"), [(16, "passed"), (15, "noted"), (8, "noted"), (7, "failed")])
def test_answers_may_differ_where_rounding_decides(same, outcome):
    ours = ["a"] * same + ["b"] * (16 - same)
    assert gpu_check._alike("answers", ours, ["a"] * 16, "the CPU's").outcome == outcome


def test_a_gpu_that_emulates_bfloat16_is_said(monkeypatch):
    """A V100: torch says that it supports the dtype."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(
        torch.Tensor, "to", lambda tensor, to, plain=torch.Tensor.to: plain(tensor, "cpu" if to == "cuda" else to)
    )
    assert outcomes(gpu_check._products("cuda")) == {"float32": "passed", "float16": "passed", "bfloat16": "noted"}


def test_others_memory_is_said(monkeypatch):
    properties = SimpleNamespace(name="H200", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: ((139e9, 140e9), (20e9, 140e9))[number])
    monkeypatch.setattr(gpu_check, "_driver", lambda: "570.1")
    assert outcomes(gpu_check._describe("cuda")) | {"versions": ""} == {
        "versions": "",
        "driver": "passed",
        "GPU 0": "passed",
        "GPU 1": "noted",
    }
