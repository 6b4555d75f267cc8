"""The two reports on tables of which something cannot be computed: they are written and say why."""

import json

import numpy as np
from tests.unit.reports.conftest import DIRECT, run, score_rows

from lm_validity.reports.factors import report_factors

FOUR = ["a", "b", "c", "d"]
FOUR_BENCHMARKS = "benchmark,category,metric,higher_is_better\n" + "".join(f"{name},x,acc,1\n" for name in FOUR)


def four_benchmarks(seed=0) -> dict[str, list]:
    rng = np.random.default_rng(seed)
    return {name: [0.1 * i + 0.02 * rng.random() for i in range(4)] for name in FOUR}


def pick_finding(folder) -> str:
    page = json.loads((folder / "report" / "page.json").read_text(encoding="utf-8"))
    (sentence,) = [f["sentence"] for f in page["findings"] if "has most potential" in f["sentence"]]
    return sentence


def test_resamples_without_two_benchmarks_that_differ_leave_the_interval_of_a_rank(tmp_path):
    table = {DIRECT: four_benchmarks() | {"d": [0.0] * 4}}
    summary = run(tmp_path, score_rows(table), benchmarks=FOUR_BENCHMARKS, report=report_factors, resamples=300)
    assert summary["potential"][DIRECT]["m3"]["interval_population_of_benchmarks"] == [1, 1]
    assert "rank 1 of 4, 95% interval 1 to 1." in pick_finding(tmp_path)
    assert any("leave out resamples" in note and "m3" in note for note in summary["notes"])


def test_a_model_with_few_benchmarks_is_picked_without_an_interval_and_a_note_says_why(tmp_path):
    table = four_benchmarks()
    for name in "bcd":
        table[name][3] = None
    summary = run(
        tmp_path, score_rows({DIRECT: table}), benchmarks=FOUR_BENCHMARKS, report=report_factors, resamples=300
    )
    assert summary["best_by_budget"][DIRECT][-1]["model"] == "m3"
    assert summary["potential"][DIRECT]["m3"]["interval_population_of_benchmarks"] == [None, None]
    assert pick_finding(tmp_path).endswith("m3 has most potential: rank 1 of 4.")
    assert any("no interval of the rank over benchmarks (null)" in note and "m3" in note for note in summary["notes"])
