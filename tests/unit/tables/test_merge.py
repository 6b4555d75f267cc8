"""Merging: what the tables say about a checkpoint."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from tests.unit.monitor.conftest import MADE_UP, run_all

from lm_validity.config.load import build_run, load_run
from lm_validity.run.cell import BenchmarkCell
from lm_validity.tables.merge import Merger

FIXTURES = Path(__file__).parents[2] / "fixtures"
CHECKPOINTS = "checkpoint\titeration\ttokens_b\nearly\t1000\t2.5\n"


@pytest.mark.parametrize(
    ("final", "in_models_sheet", "expected"),
    [
        ("final\t4000\t10.5\n", "", 10.5),
        ("final\t4000\t10.5\n", "11", 10.5),
        ("final\t4000\t\n", "11", 11.0),
        ("", "11", 11.0),
        ("", "", None),
    ],
)
def test_tokens_and_numbers_of_examples(tmp_path, monkeypatch, final, in_models_sheet, expected):
    """The final checkpoint's own tokens where the checkpoints sheet has them, else those of the model's row."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.tsv").write_text(CHECKPOINTS + final)
    (tmp_path / "m.tsv").write_text(f"model\tpath\ttokens_b\tcheckpoints\na\torg/a\t{in_models_sheet}\tsteps.tsv\n")
    (tmp_path / "b.tsv").write_text("benchmark\tnum_fewshot\nquiz\t5\nother\t\n")
    run = build_run({"name": "run", "models": "m.tsv", "benchmarks": "b.tsv", "studies": ["signal"]}, "f.yaml")
    merger, places = Merger(run, partial=True), [("quiz", "early"), ("other", "final")]
    keys = [
        merger._key(BenchmarkCell("evaluate_model", "a", benchmark, checkpoint, "plain", split="test"))
        for benchmark, checkpoint in places
    ]
    assert [(key["num_fewshot"], key["tokens_b"]) for key in keys] == [(5, 2.5), (0, expected)]


def test_of_several_prompts_the_chosen_one_counts(tmp_path, monkeypatch):
    shutil.copytree(MADE_UP, tmp_path / "replay")
    monkeypatch.chdir(tmp_path)
    run = load_run("replay/replay.yaml")
    run_all(run)
    Merger(run).write_scores(tmp_path)
    scores = pd.read_parquet(tmp_path / "scores.parquet")
    direct = scores[(scores["protocol"] == "direct") & (scores["split"] == "test")]
    groups = direct.groupby(["model", "benchmark", "metric"])
    assert (groups["prompt"].nunique() == 2).any() and (groups["selected"].sum() == 1).all()
