"""Both reports on four models and three benchmarks whose values were computed by hand."""

import math

import numpy as np
import pandas as pd
import pytest
from tests.unit.studies.agreement.conftest import DIRECT, NAMES, SMALL, TRAINED, factors_of, run, score_rows

from lm_validity.studies.agreement.factors import report_factors
from lm_validity.studies.agreement.report import report_agreement
from lm_validity.words import UNDER


def test_agreement_by_hand(tmp_path):
    summary = run(tmp_path, score_rows())
    assert (summary["models"], summary["benchmarks"], summary["pairs"]) == (4, 3, 3)
    direct, trained = summary["kendall_tau"][DIRECT], summary["kendall_tau"][TRAINED]
    assert [tau for *_, tau in direct["by_pair"]] == pytest.approx([2 / 3, -1, -2 / 3])
    assert direct["mean"] == pytest.approx(-1 / 3)
    assert trained["mean"] == pytest.approx((1 + 2 * 5 / math.sqrt(30)) / 3)
    assert direct["by_benchmark"]["a"] == pytest.approx(-1 / 6)
    assert direct["by_category"] == {
        "x": {"x": pytest.approx(2 / 3), "y": pytest.approx(-5 / 6)},
        "y": {"x": pytest.approx(-5 / 6), "y": None},
    }
    assert summary["improved_pairs"] == 3
    assert direct["interval"] is None
    perplexity = summary["perplexity"]
    assert perplexity["models"] == 4
    assert perplexity["corpus_benchmark"][DIRECT] == pytest.approx((1 + 2 / 3 - 1) / 3)
    assert perplexity["corpus_corpus"] == {DIRECT: None, TRAINED: None}
    # base models m0 to m2: trained scores rise as bits per byte fall
    assert perplexity["before_after"]["base"] == pytest.approx(1.0)
    assert perplexity["before_after"]["instruction_tuned"] is None
    assert any("fewer than 3 models" in note and "G" in note for note in summary["notes"])


def test_significance_by_hand(tmp_path):
    # steps of 0.1 with standard error 0.05: only differences above 1.96 · 0.0707 = 0.139 count
    summary = run(tmp_path, score_rows(stderr=0.05))
    # a and b directly: significant pairs of a 0-2, 0-3, 1-3; of b 0-1, 0-3, 2-3; one in common
    assert summary["significance_tau"][DIRECT]["mean"] == pytest.approx((1 / 3 - 1 - 1 / 3) / 3)


def test_factors_by_hand(tmp_path):
    rows = factors_of(tmp_path, score_rows())
    # correlations of (1,2,3,4), (1,3,2,4), (4,3,2,1): .8, -1, -.8; the components of that matrix
    matrix = np.array([[1, 0.8, -1], [0.8, 1, -0.8], [-1, -0.8, 1]])
    expected = np.sort(np.linalg.eigvalsh(matrix))[::-1] / 3
    found = [row.value for row in rows.all("explained_variance", protocol=DIRECT)]
    assert found == pytest.approx(expected.tolist(), abs=1e-12)
    relation = rows.row("first_component_compute", protocol=TRAINED, correlation="kendall")
    assert (relation.n, relation.value) == (4, pytest.approx(1.0))
    assert rows.labels("subject", "first_component_score") == NAMES


def test_several_seeds_are_averaged(tmp_path):
    direct = score_rows({DIRECT: SMALL[DIRECT]})
    seeds = []
    for seed, shift in ((0, 0.0), (1, 0.1)):
        rows = score_rows({TRAINED: SMALL[TRAINED]}).assign(seed=seed)
        # in seed 1 the last model of benchmark a falls to 0.15: its mean (.4 + .15) / 2 = .275 is between .2 and .3
        rows.loc[(rows["benchmark"] == "a") & (rows["model"] == "m3"), "value"] -= 2.5 * shift
        seeds.append(rows)
    summary = run(tmp_path, pd.concat([direct, *seeds]))
    pairs = {(a, b): tau for a, b, tau in summary["kendall_tau"][TRAINED]["by_pair"]}
    assert pairs["a", "b"] == pytest.approx(4 / 6)
    # reliability: seed 0 and seed 1 order the models of a alike but for m3 against m1 and m2
    assert summary["reliability"] == {"a": pytest.approx(2 / 6), "b": pytest.approx(1), "c": pytest.approx(1)}


@pytest.mark.parametrize("report", [report_agreement, report_factors])
def test_equal_means_over_seeds_are_ties_in_whatever_order_they_were_summed(tmp_path, report):
    rolled = [[0.1, 0.2, 0.3], [0.3, 0.1, 0.2], [0.2, 0.3, 0.1], [0.2, 0.2, 0.2]]
    seeds = [
        score_rows({TRAINED: SMALL[TRAINED] | {"c": [scores[seed] for scores in rolled]}}).assign(seed=seed)
        for seed in range(3)
    ]
    summary = run(tmp_path, pd.concat([score_rows({DIRECT: SMALL[DIRECT]}), *seeds]), report=report)
    constant = f"{UNDER[TRAINED].capitalize()}, all models have the same score on c"
    assert any(note.startswith(constant) for note in summary["notes"])
    if report is report_agreement:
        assert summary["kendall_tau"][TRAINED]["by_benchmark"]["c"] is None
