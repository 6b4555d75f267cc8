"""The published study as a replay: 61 models x 24 benchmarks x 3 rates through every rule, to the published numbers.

About eleven minutes of processor time: `make test-slow`.
"""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from tests.workflow.conftest import Project

from lm_validity.results.put import Rows

PUBLISHED = Path(__file__).parents[2] / "examples" / "published"

pytestmark = [pytest.mark.slow, pytest.mark.published]


def test_the_replayed_study_gives_the_published_numbers(tmp_path):
    project = Project(tmp_path)
    shutil.copyfile(PUBLISHED / "scores.json", tmp_path / "all_results.json")
    project.snakemake("--configfile", "config/paper/train_before_test_replay.yaml")
    results = tmp_path / "results" / "train_before_test_replay"
    rows = Rows.read(results / "reports" / "agreement" / "results.parquet")
    counts = [rows.value(name) for name in ("models", "benchmarks", "pairs", "improved_pairs")]
    assert counts == [61, 24, 276, 274]
    for protocol, mean in (("direct", 0.517332), ("train_before_test", 0.755234)):
        assert rows.value("tau_mean", protocol=protocol) == pytest.approx(mean, abs=5e-7)
    page = json.loads((results / "reports" / "agreement" / "page.json").read_text())
    assert "no model was run" in page["notes"][0]
    selections = pd.read_parquet(results / "tables" / "selections.parquet")
    assert len(selections) == 37 * 24 * 4 + 24 * 24 * 7 and selections.selected.sum() == 61 * 24
    done = project.lm_validity("status", "--configfile", "config/paper/train_before_test_replay.yaml", "--no-matrix")
    assert "13,704 of 13,704 cells done (100.0%)." in done.stdout
