"""The two reports on tables of which something cannot be computed: they are written and say why."""

import json

import numpy as np
import pandas as pd
import pytest
from tests.unit.reports.conftest import DIRECT, NAMES, run, score_rows

from lm_validity.errors import InputError
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


def test_prompts_are_shown_at_the_checkpoint_whose_test_score_counts(tmp_path):
    rows = score_rows().assign(prompt="plain")
    tuned = rows[(rows["model"] == "m3") & (rows["protocol"] == DIRECT) & (rows["benchmark"] == "a")]
    validation = [
        tuned.assign(
            split="validation", metric="acc", prompt=prompt, value=value, checkpoint=checkpoint, selected=chosen
        )
        for prompt, checkpoint, value, chosen in (
            ("plain", "step1", 0.9, True),
            ("chat", "step1", 0.1, False),
            ("plain", "final", 0.3, False),
            ("chat", "final", 0.5, True),
        )
    ]
    only_early = tuned.assign(model="m0", split="validation", checkpoint="step1")
    run(tmp_path, pd.concat([rows, *validation, only_early, only_early.assign(checkpoint="step2")]))
    table = pd.read_csv(tmp_path / "report" / "tables" / "prompts.csv")
    assert table[["model", "benchmark", "plain", "chat", "chosen"]].to_numpy().tolist() == [
        ["m3", "a", 0.3, 0.5, "chat"]
    ]


def test_where_both_prompts_are_marked_as_chosen_the_one_scored_on_test_is_shown(tmp_path):
    rows = score_rows().assign(prompt="plain")
    tuned = rows[(rows["model"] == "m3") & (rows["protocol"] == DIRECT) & (rows["benchmark"] == "a")]
    run(tmp_path, pd.concat([rows, *(tuned.assign(split="validation", prompt=p) for p in ("chat", "plain"))]))
    table = pd.read_csv(tmp_path / "report" / "tables" / "prompts.csv")
    assert table["chosen"].tolist() == ["plain"]


def test_the_only_checkpoint_of_a_model_is_used_whatever_its_name(tmp_path):
    rows = score_rows()
    rows.loc[rows["model"] == "m2", "checkpoint"] = "main"
    summary = run(tmp_path, rows)
    assert summary["models"] == 4
    assert "No final checkpoint: the only or last one is used for m2 (main)." in summary["notes"]
    assert run(tmp_path, rows.assign(checkpoint="main"))["models"] == 4


def test_the_last_of_several_checkpoints_is_used(tmp_path):
    rows = score_rows()
    early = rows.assign(checkpoint="step1", iteration=1, value=0.5)
    summary = run(tmp_path, pd.concat([early, rows.assign(checkpoint="step2", iteration=2)]))
    assert summary["kendall_tau"][DIRECT]["mean"] == pytest.approx(-1 / 3)
    used = ", ".join(f"{name} (step2)" for name in NAMES)
    assert f"No final checkpoint: the only or last one is used for {used}." in summary["notes"]


def test_checkpoints_of_which_the_last_is_unknown_are_an_error_that_names_them(tmp_path):
    rows = score_rows()
    early = rows[rows["model"] == "m2"].assign(checkpoint="step1", iteration=1)
    rows.loc[rows["model"] == "m2", "checkpoint"] = "main"
    with pytest.raises(InputError, match="m2 has the checkpoints main, step1, none of them 'final', and how far main"):
        run(tmp_path, pd.concat([rows, early]))
