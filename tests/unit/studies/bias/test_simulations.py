"""The simulations beside the report: one command and one page each, and nothing of them in the report."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from lm_validity.cli import reports
from lm_validity.errors import InputError
from lm_validity.studies.bias.page import report_bias
from lm_validity.studies.bias.simulations import PCA_RANKS, PCA_SIZES, write_prior_simulation
from lm_validity.studies.bias.statistics.effects import simulate_pca
from lm_validity.tables.schema import TRIALS, write_table


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("lm_validity.pages.page.save_figure", lambda spec, stem: None)
    monkeypatch.setattr("lm_validity.studies.bias.hierarchy.SLICES", 5)


def run(*arguments):
    return CliRunner().invoke(reports.simulations, [str(argument) for argument in arguments], catch_exceptions=False)


def test_the_command_writes_the_values_of_the_simulation(tmp_path):
    run("pca", "--output", tmp_path, "--splits", 3)
    table = pd.read_csv(tmp_path / "tables" / "pca_simulation.csv").set_index(["effective_rank", "n"])
    assert len(table) == len(PCA_RANKS) * len(PCA_SIZES)
    base, extra, test = simulate_pca(10, 50, 3).T
    for effect, of in (("bias", test - extra), ("boost", extra - base)):
        expected = [of.mean(), of.std(ddof=1) / np.sqrt(3)]
        assert table.loc[(10, 50), [effect, f"{effect}_se"]].tolist() == pytest.approx(expected)
    assert (tmp_path / "index.html").is_file()


def test_the_priors_have_a_page_of_their_own(tmp_path, rows):
    write_table(rows(tasks=2, subsamples=2, sizes=(40,)), TRIALS, tmp_path / "trials.parquet")
    run("prior", "--trials", tmp_path / "trials.parquet", "--output", tmp_path / "prior", "--draws", 20)
    page = json.loads((tmp_path / "prior" / "page.json").read_text())
    assert [figure["name"] for figure in page["sections"][0]["figures"]] == ["prior_accuracy", "prior_difference"]
    with pytest.raises(InputError, match="unknown formula 'all'"):
        write_prior_simulation(tmp_path / "trials.parquet", tmp_path / "other", "all", 20)
    assert not (tmp_path / "other").exists()


def test_the_report_has_neither(tmp_path, rows):
    write_table(rows(tasks=2, subsamples=2, sizes=(40,)), TRIALS, tmp_path / "trials.parquet")
    report_bias(tmp_path / "trials.parquet", tmp_path / "bias", formula="equations")
    assert "pca_simulation" not in json.loads((tmp_path / "bias" / "summary.json").read_text())
    figures = [
        f["name"] for s in json.loads((tmp_path / "bias" / "page.json").read_text())["sections"] for f in s["figures"]
    ]
    assert not {"pca_simulation", "prior_accuracy", "prior_difference"} & set(figures)
