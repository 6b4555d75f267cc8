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
def test_tokens_of_the_final_checkpoint(tmp_path, monkeypatch, final, in_models_sheet, expected):
    """Its own where the checkpoints sheet has them, else those of the model's row."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.tsv").write_text(CHECKPOINTS + final)
    (tmp_path / "m.tsv").write_text(f"model\tpath\ttokens_b\tcheckpoints\na\torg/a\t{in_models_sheet}\tsteps.tsv\n")
    (tmp_path / "b.tsv").write_text("benchmark\nquiz\n")
    run = build_run({"name": "run", "models": "m.tsv", "benchmarks": "b.tsv", "studies": ["signal"]}, "f.yaml")
    merger = Merger(run, partial=True)
    cells = {
        name: BenchmarkCell("evaluate_model", "a", "quiz", name, "plain", split="test") for name in ("early", "final")
    }
    tokens = {name: merger._key(cell)["tokens_b"] for name, cell in cells.items()}
    assert tokens == {"early": 2.5, "final": expected}


def test_rows_have_the_number_of_examples_of_the_sheet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.tsv").write_text("model\tpath\na\torg/a\n")
    (tmp_path / "b.tsv").write_text("benchmark\tnum_fewshot\nquiz\t5\nother\t\n")
    run = build_run({"name": "run", "models": "m.tsv", "benchmarks": "b.tsv", "studies": ["signal"]}, "f.yaml")
    merger = Merger(run, partial=True)
    cells = [BenchmarkCell("evaluate_model", "a", name, "final", "plain", split="test") for name in ("quiz", "other")]
    assert [merger._key(cell)["num_fewshot"] for cell in cells] == [5, 0]


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
