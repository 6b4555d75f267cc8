"""The published study as a replay through every rule: all of it, to the published numbers, and with a plan, to the
headline of the estimators on the masked table.

About twenty minutes of processor time: `make test-slow`.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sparse_grid
from tests.unit.monitor.conftest import run_all
from tests.workflow.conftest import Project

from lm_validity.config.load import load_run
from lm_validity.results.put import Rows
from lm_validity.studies.agreement.statistics.ranking import kendall_tau
from lm_validity.studies.agreement.statistics.sparse import mean_standing, rank_draws
from lm_validity.tables.merge import Merger

ROOT = Path(__file__).parents[2]
TRAINED = "train_before_test"
CONFIG = Path("config/paper/train_before_test_replay.yaml")
RESULTS = Path("results/train_before_test_replay")

pytestmark = [pytest.mark.slow, pytest.mark.published]


@pytest.fixture(scope="module")
def case(table) -> sparse_grid.Case:
    """The default plan with seed 0."""
    return next(sparse_grid.cases(table, 0))


def short_names() -> pd.Series:
    """Id in the published file -> id in the models sheet."""
    return pd.read_csv(ROOT / "config/paper/train_before_test_models.tsv", sep="\t").set_index("path")["model"]


def project_with(case: sparse_grid.Case, folder: Path, served: dict) -> Project:
    """A project that replays the served scores, with the plan in its configuration."""
    project, name = Project(folder), short_names()
    (folder / "all_results.json").write_text(json.dumps(served))
    rows = "".join(f"{name[model]}\t{benchmark}\n" for model, benchmark in sorted(case.planned))
    (folder / "list.tsv").write_text(f"model\tbenchmark\n{rows}")
    where = ("--configfile", str(CONFIG), "--output", "plan.tsv")
    assert "736 of 1,464 pairs" in project.lm_validity("plan", "--cells", "list.tsv", *where).stdout
    (folder / CONFIG).write_text(f"{(folder / CONFIG).read_text()}\nplan: plan.tsv\n")
    return project


@pytest.fixture(scope="module")
def replayed(case, tmp_path_factory) -> Project:
    served = json.loads((sparse_grid.PUBLISHED / "scores.json").read_text())
    project = project_with(case, tmp_path_factory.mktemp("planned"), served)
    project.snakemake("--configfile", str(CONFIG))
    return project


def test_the_page_has_the_headline_of_the_same_seed_without_the_workflow(replayed, table, case):
    """Against `measure` of the same plan: the fit takes other cells to find its weights, so ranks may differ a bit."""
    expected = sparse_grid.measure(table, case, 0)
    found = Rows.read(replayed.folder / RESULTS / "reports/agreement/results.parquet")
    cells = [found.value(name) for name in ("cells", "cells_missing", "cells_unplanned", "cells_by_scores")]
    assert cells == [736, 728, 728, 0]
    assert found.value("tau_pooled") == pytest.approx(expected["pooled"], abs=1e-12)
    assert found.value("tau_assisted") == pytest.approx(expected["assisted"], abs=0.02)
    assert abs(expected["pooled error"]) <= 0.025 and expected["hours"] <= 0.25
    ranks = pd.DataFrame(found.all("rank_predicted")).set_index("subject").loc[short_names()[table.models]]
    low, high, truth = ranks["low"].to_numpy(), ranks["high"].to_numpy(), rank_draws(table.scores[None])[0]
    assert np.mean((low <= truth) & (truth <= high)) >= 0.92
    tau = kendall_tau(-ranks["value"].to_numpy(float), mean_standing(table.scores))
    assert tau >= 0.94 and tau == pytest.approx(expected["ranking tau"], abs=0.01)
    page = json.loads((replayed.folder / RESULTS / "reports/agreement/page.json").read_text())
    assert any("736 of 1,464 cells were measured" in one["sentence"] for one in page["findings"])
    # direct scores of all, 61 models of which 24 plainly and in chat; a planned cell is tuned with 3 rates
    said = replayed.lm_validity("status", "--configfile", str(CONFIG), "--no-matrix").stdout
    assert " cells done (100.0%)." in said and "736 of 1,464" in said


def test_scores_of_cells_that_are_not_planned_change_no_byte(replayed, table, case, tmp_path, monkeypatch):
    """Absurd trained scores there: the tables, from which all reports are made, are the same. Without Snakemake."""
    served = json.loads((sparse_grid.PUBLISHED / "scores.json").read_text())
    for key, value in ((TRAINED, 0.999), (f"{TRAINED}_stderr", 0.5)):
        for benchmark in table.benchmarks:
            column = served[key][benchmark]
            column |= {model: value for model in table.models if (model, benchmark) not in case.planned}
    project = project_with(case, tmp_path, served)
    monkeypatch.chdir(project.folder)
    run = load_run(CONFIG)
    run_all(run)
    merger = Merger(run)
    merger.write_scores(RESULTS / "tables")
    merger.write_items(RESULTS / "tables")
    tables = replayed.tables(run.name)
    assert set(tables) == {"scores.parquet", "selections.parquet", "losses.parquet", "items.parquet"}
    assert project.tables(run.name) == tables


def test_the_replayed_study_gives_the_published_numbers(tmp_path):
    project = Project(tmp_path)
    shutil.copyfile(sparse_grid.PUBLISHED / "scores.json", tmp_path / "all_results.json")
    project.snakemake("--configfile", str(CONFIG))
    results = tmp_path / RESULTS
    rows = Rows.read(results / "reports" / "agreement" / "results.parquet")
    counts = [rows.value(name) for name in ("models", "benchmarks", "pairs", "improved_pairs")]
    assert counts == [61, 24, 276, 274]
    for protocol, mean in (("direct", 0.517332), ("train_before_test", 0.755234)):
        assert rows.value("tau_mean", protocol=protocol) == pytest.approx(mean, abs=5e-7)
    page = json.loads((results / "reports" / "agreement" / "page.json").read_text())
    assert "no model was run" in page["notes"][0]
    selections = pd.read_parquet(results / "tables" / "selections.parquet")
    assert len(selections) == 37 * 24 * 4 + 24 * 24 * 7 and selections.selected.sum() == 61 * 24
    done = project.lm_validity("status", "--configfile", str(CONFIG), "--no-matrix")
    assert "13,704 of 13,704 cells done (100.0%)." in done.stdout
