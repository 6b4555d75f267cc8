"""The published study as a replay: 61 models x 24 benchmarks x 3 rates through every rule, to the published numbers.

About eleven minutes of processor time: `make test-slow`.
"""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from tests.workflow.conftest import Project

PUBLISHED = Path(__file__).parents[2] / "examples" / "published"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.published,
]


def test_the_replayed_study_gives_the_published_numbers(tmp_path):
    project = Project(tmp_path)
    shutil.copyfile(PUBLISHED / "scores.json", tmp_path / "all_results.json")
    project.snakemake("--configfile", "config/paper/train_before_test_replay.yaml")
    results = tmp_path / "results" / "train_before_test_replay"
    summary = json.loads((results / "reports" / "agreement" / "summary.json").read_text())
    assert (summary["models"], summary["benchmarks"], summary["pairs"], summary["improved_pairs"]) == (61, 24, 276, 274)
    assert summary["kendall_tau"]["direct"]["mean"] == pytest.approx(0.517332, abs=5e-7)
    assert summary["kendall_tau"]["train_before_test"]["mean"] == pytest.approx(0.755234, abs=5e-7)
    assert "no model was run" in summary["notes"][0]
    selections = pd.read_parquet(results / "tables" / "selections.parquet")
    assert len(selections) == 37 * 24 * 4 + 24 * 24 * 7 and selections.selected.sum() == 61 * 24
    done = project.lm_validity("status", "--configfile", "config/paper/train_before_test_replay.yaml", "--no-matrix")
    assert "13,704 of 13,704 cells done (100.0%)." in done.stdout
