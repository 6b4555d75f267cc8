"""config/sparse.yaml, the miniature with a plan, and the same study on the full grid."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau
from tests.workflow.conftest import Project

from lm_validity.results.put import Rows
from lm_validity.studies.agreement.statistics.sparse import mean_standing

pytestmark = pytest.mark.slow
CONFIG = Path("config/sparse.yaml")
RESULTS = Path("results/sparse")
TRAINED = "train_before_test"


@pytest.fixture(scope="module")
def planned(tmp_path_factory) -> Project:
    """A complete run of the configuration as it is shipped."""
    project = Project(tmp_path_factory.mktemp("planned"))
    project.snakemake("--configfile", str(CONFIG))
    return project


@pytest.fixture(scope="module")
def full(planned, tmp_path_factory) -> Project:
    """The same run without its plan: what was computed is found in the store."""
    project = planned.copy_to(tmp_path_factory.mktemp("full") / "copy")
    text = (project.folder / CONFIG).read_text()
    (project.folder / CONFIG).write_text("".join(row for row in text.splitlines(True) if not row.startswith("plan:")))
    project.snakemake("--configfile", str(CONFIG))
    return project


def rows_of(project: Project) -> Rows:
    return Rows.read(project.folder / RESULTS / "reports/agreement/results.parquet")


def prepared_scores(project: Project) -> pd.DataFrame:
    """(models, benchmarks) trained scores on test, without the corpora."""
    scores = pd.read_parquet(project.folder / RESULTS / "tables/scores.parquet")
    mine = scores[(scores.protocol == TRAINED) & scores.metric.isin(["acc,none", "exact_match,none"])]
    return mine.pivot(index="model", columns="benchmark", values="value")


def test_only_planned_cells_are_prepared(planned):
    plan = pd.read_csv(planned.folder / "config/sparse_plan.tsv", sep="\t")
    scores = pd.read_parquet(planned.folder / RESULTS / "tables/scores.parquet")
    found = scores[(scores.protocol == TRAINED) & scores.selected]
    assert set(zip(found.model, found.benchmark, strict=True)) == set(zip(plan.model, plan.benchmark, strict=True))
    direct = scores[(scores.protocol == "direct") & scores.selected & (scores.split == "test")]
    assert len(set(zip(direct.model, direct.benchmark, strict=True))) == 81
    trained = {tuple(cell.split("/")[1:]) for cell in planned.sidecars("sparse") if cell.startswith("finetune")}
    assert {(model, name.split(".")[0]) for model, name in trained} == set(zip(plan.model, plan.benchmark, strict=True))


def test_the_pages_say_what_was_measured_and_spared(planned):
    rows, folder = rows_of(planned), planned.folder / RESULTS
    cells, missing, unplanned = (rows.value(name) for name in ("cells", "cells_missing", "cells_unplanned"))
    page = json.loads((folder / "reports/agreement/page.json").read_text())
    said = " ".join(one["sentence"] for one in page["findings"])
    assert f"{cells:.0f} of 63 cells were measured" in said and missing == unplanned
    page = json.loads((folder / "reports/computation/page.json").read_text())
    assert any(" 49 of 81 " in one["sentence"] for one in page["findings"])
    predictions = rows.all("score_predicted", protocol=TRAINED)
    assert len(predictions) == missing == len(rows.all("score_predicted", planned="no"))
    assert " 49 of 81 " in (folder / "report/index.html").read_text()


def test_the_ranking_is_nearly_that_of_the_full_grid_and_its_intervals_hold_it(planned, full):
    """Nothing is computed twice; the cells that both have are the same."""
    sparse, whole = prepared_scores(planned), prepared_scores(full)
    before, after = planned.sidecars("sparse"), full.sidecars("sparse")
    assert before.items() <= after.items() and whole.shape == (9, 7) and whole.notna().all(axis=None)
    both = sparse.notna().to_numpy()
    np.testing.assert_array_equal(whole.reindex_like(sparse).to_numpy()[both], sparse.to_numpy()[both])
    standing = mean_standing(whole.to_numpy())
    rank = pd.Series((-standing).argsort().argsort() + 1.0, whole.index)
    found = pd.DataFrame(rows_of(planned).all("rank_predicted")).set_index("subject").loc[whole.index]
    assert kendalltau(found["value"], rank)[0] > 0.7
    assert np.mean((found["low"] <= rank) & (rank <= found["high"])) >= 8 / 9
    assert not rows_of(full).all("cells_missing")
