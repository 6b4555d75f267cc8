"""What is measured and checked on a GPU, with the CPU in its place and with faults planted: `gpu_check.py`, and
`gpu_quarter_hour.py` with its cheap stages, what a kill leaves, and how two runs are compared.
"""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import gpu_check
import gpu_pack
import gpu_quarter_hour
from gpu_check import each_check
from gpu_quarter_hour import STAGES, Place, compared, run_parts, run_stage, shares

from lm_validity.cells.models import passes

TINY = Place("cpu", tiny=True)


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()]


def test_all_stages_fit_into_eight_minutes():
    assert sum(seconds for seconds, _ in STAGES.values()) <= 480


def test_our_layers_give_the_gradients_of_pefts(tmp_path):
    """Bit by bit on a CPU, with the masks of training; and times of all three."""
    assert run_parts("adapter", TINY, tmp_path) == 0
    (line,) = lines(tmp_path)
    assert line["relative difference of gradients"] == line["relative difference of the loss"] == 0
    assert all(line[side]["seconds"] > 0 for side in ("ours", "PEFT's with our masks", "PEFT's with its own"))
    assert line["PEFT's with its own"]["loss"] != line["ours"]["loss"]  # other masks: dropout was there


def test_a_part_that_fails_is_a_line_and_the_next_begins(tmp_path, monkeypatch):
    def parts(place):
        def breaks():
            yield {"found": 1}
            raise RuntimeError("CUDA out of memory")

        yield "first", breaks
        yield "second", lambda: iter([{"found": 2}])

    monkeypatch.setitem(STAGES, "rates", (1, parts))
    assert run_parts("rates", TINY, tmp_path) == 1
    found = [(line["about"], line.get("found"), line.get("detail")) for line in lines(tmp_path)]
    assert found == [("first", 1, None), ("first", None, "RuntimeError: CUDA out of memory"), ("second", 2, None)]


def test_a_stage_is_ended_when_its_seconds_are_over(tmp_path, monkeypatch):
    """With all that it started."""
    program, started = tmp_path / "stage.py", tmp_path / "started"
    program.write_text(
        f"import os, time\nif child := os.fork():\n    print(child, file=open({str(started)!r}, 'w'), flush=True)\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(gpu_quarter_hour, "__file__", str(program))
    monkeypatch.setitem(STAGES, "rates", (1, None))
    start = time.monotonic()
    line = run_stage("rates", SimpleNamespace(output=tmp_path, device="cuda", shapes="tiny"))
    assert line["outcome"] == "ended after 1 s" and time.monotonic() - start < 30
    state = Path(f"/proc/{int(started.read_text())}/stat")
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":  # else init has not yet buried it
        assert time.monotonic() - start < 30
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("value", "outcome", "apart"), [(0.54, "passed", 0.04), (0.56, "failed", 0.06), (None, "failed", 0.0)]
)
def test_scores_of_two_runs_may_differ_by_a_twentieth(value, outcome, apart):
    there = pd.DataFrame({"model": ["a", "b"], "value": [0.5, 0.25], "stderr": [0.1, 0.1]})
    here = there.assign(value=[value, 0.25], stderr=[0.2, 0.1])
    found = compared(here, there)
    assert (found["outcome"], found["largest difference"]["stderr"]) == (outcome, pytest.approx(0.1))
    assert found["largest difference"]["value"] == pytest.approx(apart)
    assert compared(there.iloc[:1], there)["outcome"] == "failed"


def test_what_is_missing_in_both_tables_is_alike():
    there = pd.DataFrame({"variant": ["x", None, None, "x"], "rate": [1e-4, np.nan, np.nan, 1e-4]})
    assert compared(there, there)["rows with other entries"] == {}
    here = pd.DataFrame({"variant": ["y", None, "x", None], "rate": [1e-4, np.nan, 1e-4, np.nan]})
    assert compared(here, there)["rows with other entries"] == {"variant": 3, "rate": 2}


def test_products_are_told_from_what_memory_limits():
    """A large product and a large sum on the CPU: each is most of its own profile."""
    a = torch.ones(400, 400)
    found = shares(TINY, lambda: [a @ a for _ in range(20)], 1.0)["share of kernel time"]
    assert found["matrix products"] > 0.5 and sum(found.values()) == pytest.approx(1)
    found = shares(TINY, lambda: [a.exp() for _ in range(20)], 1.0)["share of kernel time"]
    assert found["memory"] > 0.9


def test_the_pack_holds_what_the_cells_need_and_no_torch():
    of_torch = gpu_pack.needed("torch", (), (), "3.12") | {"torch"}
    everything = gpu_pack.needed("lm-validity", ("cells",), of_torch, "3.12")
    assert {"transformers", "peft", "lm-eval", "snakemake", "rouge-score"} <= everything
    assert not everything & {"torch", "sympy", "pytest", "lm-validity", "snakemake-executor-plugin-slurm"}
    there = gpu_pack.names_in(
        "numpy==2.1\nSnakeMake >= 9  # by hand\n\n# pip list\nvl_convert_python @ file:///there\n"
    )
    assert there == {"numpy", "snakemake", "vl-convert-python"}
    fewer = gpu_pack.needed("lm-validity", ("cells",), of_torch | there, "3.12")
    assert not fewer & {"numpy", "snakemake", "vl-convert-python", "pulp"} and "peft" in fewer  # pulp is snakemake's
    assert [pin for pin in gpu_pack.pins(fewer) if pin.startswith("peft==")]
    with pytest.raises(SystemExit, match="not-there"):
        gpu_pack.pins({"not-there"})


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
