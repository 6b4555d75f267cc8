"""The reports on the authors' published scores of 61 models × 24 benchmarks give the paper's numbers.

Expected values: recomputed from the published scores alone (six decimals); the paper prints the same to two.
"""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.decomposition import PCA
from typer.testing import CliRunner

from lm_validity.results.put import Rows

PUBLISHED = Path(__file__).parents[2] / "examples" / "published"

pytestmark = pytest.mark.published
DIRECT, TRAINED = "direct", "train_before_test"


def run(*arguments) -> None:
    from lm_validity.cli import app, imports, reports

    if not app.registered_groups:
        app.add_typer(imports.app, name="import")
        app.add_typer(reports.app, name="report")
    CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict:
    """Both summaries without resampling, through the command line."""
    folder = tmp_path_factory.mktemp("train_before_test")
    run("import", "lm-harmony", PUBLISHED / "scores.json", "--output", folder)
    summaries = {"folder": folder}
    for name in ("agreement", "factors"):
        with pytest.MonkeyPatch.context() as patch:  # nothing here looks at the figures' files
            patch.setattr("lm_validity.pages.figures.save_figure", lambda spec, stem: None)
            run(
                *("report", name, "--scores", folder / "scores.parquet", "--models", PUBLISHED / "models.csv"),
                *("--benchmarks", PUBLISHED / "benchmarks.csv", "--output", folder / name, "--resamples", 0),
            )
    summaries["agreement"] = json.loads((folder / "agreement" / "summary.json").read_text(encoding="utf-8"))
    summaries["factors"] = Rows.read(folder / "factors" / "results.parquet")
    return summaries


def near(value: float):
    return pytest.approx(value, abs=1e-6)


def test_headline_agreement(reports):
    summary = reports["agreement"]
    assert (summary["models"], summary["benchmarks"], summary["pairs"]) == (61, 24, 276)
    assert summary["kendall_tau"][DIRECT]["mean"] == near(0.517332)
    assert summary["kendall_tau"][TRAINED]["mean"] == near(0.755234)
    assert summary["improved_pairs"] == 274


def test_agreement_by_benchmark_and_pair(reports):
    tau = reports["agreement"]["kendall_tau"]
    assert tau[DIRECT]["by_benchmark"]["nq_open"] == near(0.227128)
    assert tau[TRAINED]["by_benchmark"]["nq_open"] == near(0.739145)
    worse = {
        frozenset(after[:2]): (round(before[2], 4), round(after[2], 4))
        for before, after in zip(tau[DIRECT]["by_pair"], tau[TRAINED]["by_pair"], strict=True)
        if after[2] <= before[2]
    }
    assert worse == {
        frozenset(("social_iqa", "mathqa")): (0.7389, 0.6652),
        frozenset(("social_iqa", "commonsense_qa")): (0.7239, 0.5947),
    }


def test_agreement_within_and_between_categories(reports):
    tau = reports["agreement"]["kendall_tau"]
    assert tau[DIRECT]["by_category"]["LU"]["LU"] == near(0.539337)
    assert tau[TRAINED]["by_category"]["LU"]["LU"] == near(0.749143)
    assert tau[DIRECT]["by_category"]["Math"]["Math"] == near(0.553308)
    assert tau[TRAINED]["by_category"]["Math"]["Math"] == near(0.840088)
    page = json.loads((reports["folder"] / "agreement" / "page.json").read_text(encoding="utf-8"))
    (finding,) = (one["finding"] for one in page["sections"] if "'tau_by_category'" in str(one["tables"]))
    assert re.findall(r"0\.\d+", finding) == ["0.57", "0.50", "0.77", "0.75"]  # within and between, by protocol
    # the authors' heatmaps round each tau to three decimals first: hence the tolerance of one in the second
    names = ["LU", "CR", "QA", "PBC", "Math", "Med"]
    for protocol, printed in (
        (DIRECT, (0.54, 0.68, 0.61, 0.66, 0.55, 0.62)),
        (TRAINED, (0.75, 0.76, 0.83, 0.77, 0.84, 0.80)),
    ):
        diagonal = [tau[protocol]["by_category"][name][name] for name in names]
        np.testing.assert_allclose(diagonal, printed, atol=0.0056)
        assert tau[protocol]["by_category"]["LU"]["Med"] == near(tau[protocol]["by_category"]["Med"]["LU"])


def test_agreement_among_models_of_like_size_and_without_noise(reports):
    """The figures of an independent recomputation, to two decimals."""
    expected = {
        DIRECT: ([0.28, 0.32, 0.38, 0.69], 0.19, 0.54),
        TRAINED: ([0.40, 0.48, 0.60, 0.95], 0.34, 0.84),
    }
    for protocol, (by_size, within_two_in_compute, corrected) in expected.items():
        tau = reports["agreement"]["kendall_tau"][protocol]
        assert [row["mean"] for row in tau["by_size_ratio"]] == pytest.approx(by_size, abs=0.006)
        assert [row["at_most"] for row in tau["by_size_ratio"]] == [1.25, 2, 4, None]
        assert tau["by_compute_ratio"][1]["mean"] == pytest.approx(within_two_in_compute, abs=0.006)
        assert tau["corrected"]["mean"] == pytest.approx(corrected, abs=0.006)
    shares = [row["mean"] / row["ceiling"] for row in tau["by_size_ratio"]]
    assert (shares[0], shares[1], shares[3]) == pytest.approx((0.75, 0.80, 0.98), abs=0.006)
    # that recomputation has t with 5 degrees of freedom for families of 26, 8, 8, 8, 7 and 4 models: too narrow
    low, high = np.arctanh(np.array(reports["agreement"]["improvement"]["interval_clustered"]) / 2)
    freedom = 61**2 / (26**2 + 3 * 8**2 + 7**2 + 4**2) - 1
    reach = (high - low) / 2 * stats.t.ppf(0.975, 5) / stats.t.ppf(0.975, freedom)
    narrow = 2 * np.tanh((high + low) / 2 + np.array([-reach, reach]))
    assert narrow == pytest.approx([0.165, 0.311], abs=0.002)


def test_perplexity(reports):
    perplexity = reports["agreement"]["perplexity"]
    assert perplexity["models"] == 53
    assert perplexity["corpus_benchmark"] == {DIRECT: near(0.477289), TRAINED: near(0.740397)}
    assert perplexity["corpus_corpus"] == {DIRECT: near(0.764877), TRAINED: near(0.780358)}
    assert perplexity["average_average"] == {DIRECT: near(0.548621), TRAINED: near(0.837446)}
    assert perplexity["before_after"] == {"base": near(0.778496), "instruction_tuned": near(0.505353)}
    assert list(perplexity["same_corpus"].values()) == [near(0.830189), near(0.793904), near(0.775036)]


def test_components(reports):
    rows = reports["factors"]
    shares = {p: [row.value for row in rows.all("explained_variance", protocol=p)] for p in (DIRECT, TRAINED)}
    assert (shares[DIRECT][0], shares[TRAINED][0]) == (near(0.695849), near(0.863594))
    assert (sum(shares[DIRECT]), sum(shares[TRAINED])) == (near(0.913258), near(0.973751))
    for protocol, expected in ((DIRECT, 0.736626), (TRAINED, 0.927972)):
        place = {"subject": "Qwen", "protocol": protocol, "component": 1}
        assert rows.value("explained_variance_within_family", **place) == near(expected)
        assert len(rows.all("first_component_score", protocol=protocol)) == 61


def test_first_component_and_compute(reports):
    expected = {
        DIRECT: {"kendall": 0.739795, "pearson": 0.921701},
        TRAINED: {"kendall": 0.864617, "spearman": 0.968903, "pearson": 0.968505},
    }
    for protocol, values in expected.items():
        for name, value in values.items():
            row = reports["factors"].row("first_component_compute", protocol=protocol, correlation=name)
            assert (row.n, row.value) == (37, near(value))


def test_significance(reports):
    values = reports["agreement"]["significance_tau"]
    # 0.570438 with the published standard error of 0 of pythia-70m on nq_open, of which it solves 0 of 3,610 items
    assert values[DIRECT]["mean"] == near(0.570389)
    assert values[TRAINED]["mean"] == near(0.795089)
    assert values["improved_pairs"] == 260


def test_the_page_says_that_prepared_scores_are_a_maximum_over_test_scores(reports):
    chosen = reports["agreement"]["selected_on_test"]
    assert (chosen["equal"], chosen["below"], chosen["cells"]) == (48, 0, 1464)
    page = (reports["folder"] / "agreement" / "index.html").read_text(encoding="utf-8")
    assert chosen["mean_tau_without"] == near(0.738594) and all(one in page for one in ("48 of 1464", "0.739"))


def test_other_conventions_do_not_give_the_papers_numbers(reports):
    """Centring without scaling gives 71% and 89%."""
    from lm_validity.studies.agreement.score_matrix import read_score_matrix

    matrix = read_score_matrix(
        reports["folder"] / "scores.parquet", PUBLISHED / "models.csv", PUBLISHED / "benchmarks.csv"
    )
    scores = {p: matrix.oriented(p)[:, ~matrix.is_corpus] for p in (DIRECT, TRAINED)}
    centered = {p: PCA().fit(scores[p]).explained_variance_ratio_[0] for p in scores}
    assert (round(centered[DIRECT], 3), round(centered[TRAINED], 3)) == (0.709, 0.890)


def test_the_published_benchmarks_pass_the_published_screening(reports):
    """All 24 stay; a reversed copy of one, and one of which nothing is learnt, leave for that reason."""

    from lm_validity.tables.schema import SCORES, read_table, write_table

    folder = reports["folder"]
    arguments = ("--models", PUBLISHED / "models.csv", "--output", folder / "screening")
    scores, sheet = folder / "scores.parquet", PUBLISHED / "benchmarks.csv"
    run("report", "screening", "--scores", scores, "--benchmarks", sheet, *arguments)
    table = pd.read_csv(folder / "screening" / "tables" / "screening.csv")
    assert len(table) == 24 and table["kept"].all() and (table["models"] == 61).all()
    assert table.set_index("benchmark").loc["commonsense_qa", "not_improved"] == 7
    assert table["not_improved"].sum() == 48 and table["training_examples"].min() >= 1000

    rows = read_table(scores, SCORES)
    backwards = rows[rows["benchmark"] == "arc_easy"].assign(benchmark="backwards")
    backwards["value"] = backwards["value"].where(backwards["protocol"] == TRAINED, -backwards["value"])
    copied = rows[(rows["benchmark"] == "piqa") & (rows["protocol"] == DIRECT)]
    stuck = pd.concat([copied, copied.assign(protocol=TRAINED)]).assign(benchmark="stuck")
    write_table(pd.concat([rows, backwards, stuck]), SCORES, folder / "more.parquet")
    text = sheet.read_text().rstrip("\n")
    like = next(line for line in text.splitlines() if line.startswith("arc_easy,"))
    text += "".join("\n" + like.replace("arc_easy", name, 1) for name in ("backwards", "stuck")) + "\n"
    (folder / "more.csv").write_text(text)
    run("report", "screening", "--scores", folder / "more.parquet", "--benchmarks", folder / "more.csv", *arguments)
    table = pd.read_csv(folder / "screening" / "tables" / "screening.csv").set_index("benchmark")
    assert "61 of 61" in table.loc["stuck", "reason"] and table.loc["stuck", "not_improved"] == 61
    assert "24 of 24" in table.loc["backwards", "reason"]
    assert table["kept"].sum() == 24


@pytest.mark.slow
def test_missing_cells_compare_the_protocols_as_if_their_models_were_absent(reports, tmp_path):
    """Without the trained cells of the 12 models below 1B: not the direct mean of 61 models against that of 49."""

    from lm_validity.studies.agreement.data import Data
    from lm_validity.studies.agreement.factors import factors
    from lm_validity.studies.agreement.report import agreement
    from lm_validity.studies.agreement.score_matrix import read_score_matrix
    from lm_validity.tables.schema import SCORES, read_table, write_table

    rows = read_table(reports["folder"] / "scores.parquet", SCORES)
    models = pd.read_csv(PUBLISHED / "models.csv")
    small = rows["model"].isin(models.loc[models["params_B"] < 1, "model_id"])
    tables = {
        "absent": rows[~small],
        TRAINED: rows[~small | (rows["protocol"] == DIRECT)],
        DIRECT: rows[~small | (rows["protocol"] == TRAINED)],
    }
    found, shares = {}, {}
    for name, table in tables.items():
        write_table(table, SCORES, tmp_path / "scores.parquet")
        sheets = (PUBLISHED / "models.csv", PUBLISHED / "benchmarks.csv")
        matrix = read_score_matrix(tmp_path / "scores.parquet", *sheets)
        _, summary = agreement(Data.of(matrix, resamples=200))
        change, significance = summary["improvement"], summary["significance_tau"]
        low, high = change.interval
        assert (low, high) == (pytest.approx(0.187, abs=0.02), pytest.approx(0.306, abs=0.02))
        found[name] = [summary["cells_in_both"], summary["models_in_both"]]
        found[name] += [*change.means.values(), change.test.effect, summary["improved_pairs"]]
        found[name] += [summary["compared_pairs"], significance.improved_pairs, significance.compared_pairs]
        shares[name] = [row.value for row in factors(matrix)[1].all("explained_variance_in_both", component=1)]
    assert found["absent"][:2] == [49 * 24, 49]
    assert found["absent"][2:5] == [near(0.435323), near(0.675534), near(0.240211)]
    assert found[TRAINED] == found[DIRECT] == pytest.approx(found["absent"])
    assert shares[TRAINED] == shares[DIRECT] == pytest.approx(shares["absent"])
