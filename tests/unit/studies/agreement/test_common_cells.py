"""Where cells are missing, comparisons of the two protocols are over the cells known under both: by hand."""

import json

import pytest
from tests.unit.studies.agreement.conftest import DIRECT, TRAINED, agreement_of, factors_of, run, score_rows

from lm_validity.missing import Missing, is_known

# m3 has no trained score, and c ranks nobody directly
TABLE = {
    DIRECT: {
        "a": [0.1, 0.2, 0.3, 0.4],
        "b": [0.1, 0.2, 0.5, 0.3],  # 5 of 6 pairs as in a; all 3 among m0 to m2
        "c": [0.5, 0.5, 0.5, 0.5],
        "wiki": [1.3, 1.2, 1.1, 1.0],
    },
    TRAINED: {
        "a": [0.1, 0.2, 0.3, None],
        "b": [0.1, 0.3, 0.2, None],  # 2 of 3 pairs as in a
        "c": [0.1, 0.2, 0.3, None],
        "wiki": [1.3, 1.2, 1.1, None],
    },
}
THIRD = pytest.approx(1 / 3)


def test_the_change_is_that_of_the_same_models_and_pairs(tmp_path):
    summary = run(tmp_path, score_rows(TABLE))
    assert summary["kendall_tau"][DIRECT]["mean"] == pytest.approx(2 / 3)
    assert summary["kendall_tau"][TRAINED]["mean"] == pytest.approx((1 + 1 / 3 + 1 / 3) / 3)
    assert (summary["models"], summary["models_in_both"], summary["cells_in_both"]) == (4, 3, 9)
    assert summary["improvement"]["means"] == {DIRECT: pytest.approx(1), TRAINED: THIRD}
    assert summary["improvement"]["mean"] == pytest.approx(-2 / 3)
    # a and b: tau(prep, prep) - tau(direct, direct) + or - (tau(prep_a, direct_b) - tau(direct_a, prep_b)); c: none
    assert summary["improvement"]["test"]["effect"] == pytest.approx(-2 / 3)
    assert (summary["improved_pairs"], summary["compared_pairs"]) == (0, 1)
    assert summary["significance_tau"]["improved_pairs"] == 0 and summary["significance_tau"]["compared_pairs"] == 1
    in_both = summary["perplexity"]["in_both"]["corpus_benchmark"]
    assert summary["perplexity"]["corpus_benchmark"][DIRECT] == pytest.approx((1 + 2 / 3) / 2)
    assert in_both == {DIRECT: pytest.approx(1), TRAINED: pytest.approx(2 / 3)}
    assert any("9 of 12 cells (3 models, 3 benchmarks) are known under both" in note for note in summary["notes"])


def test_of_four_models_the_page_gives_no_change_and_the_table_gives_that_of_its_common_cells(tmp_path):
    run(tmp_path, score_rows(TABLE))
    page = json.loads((tmp_path / "report" / "page.json").read_text(encoding="utf-8"))
    assert not [f for f in page["findings"] if "changes the" in f["sentence"]]
    summary = json.loads((tmp_path / "report" / "summary.json").read_text(encoding="utf-8"))
    assert summary["improvement"]["means"] == {DIRECT: pytest.approx(1), TRAINED: pytest.approx(1 / 3)}
    pooled = summary["pooled"]["all"]
    assert (pooled["models"], pooled["change"], pooled["change_interval"]) == (3, pytest.approx(-2 / 3), None)


def test_intervals_of_the_change_are_over_the_models_known_under_both(tmp_path):
    models = "model\n" + "".join(f"m{i}\n" for i in range(12))
    table = {
        p: {name: [(0.1 + 0.05 * i) ** power for i in range(12)] for name, power in (("a", 1), ("b", 2), ("c", 3))}
        for p in (DIRECT, TRAINED)
    }
    for scores in table[TRAINED].values():
        scores[2:] = [None] * 10
    rows = score_rows(table, names=[f"m{i}" for i in range(12)])
    summary = agreement_of(tmp_path, rows, models=models, resamples=20)
    assert summary["improvement"]["mean"] == pytest.approx(0)
    assert summary["improvement"]["interval"] == Missing("Fewer than 3 models have scores under both protocols.")
    # a mean of two models is not put beside that of twelve; over the common cells both are there
    scored = {p: (tau["models"], is_known(tau["mean"])) for p, tau in summary["kendall_tau"].items()}
    assert scored == {DIRECT: (12, True), TRAINED: (2, False)}
    assert not is_known(summary["significance_tau"][TRAINED]["mean"])
    assert all(is_known(mean) for mean in summary["improvement"]["means"].values())


def test_one_factor_is_compared_over_the_same_models(tmp_path):
    table = score_rows(TABLE)
    rows, alone = (factors_of(tmp_path, each) for each in (table, table.query("model != 'm3' and benchmark != 'c'")))
    assert [rows.value(name) for name in ("models", "models_in_both", "cells_in_both")] == [4, 3, 6]  # c: none directly
    for protocol in (DIRECT, TRAINED):
        place = {"protocol": protocol, "component": 1}
        own = alone.value("explained_variance", **place)
        assert own == alone.value("explained_variance_in_both", **place)
        assert rows.value("explained_variance_in_both", **place) == pytest.approx(own)
    assert rows.value("explained_variance", protocol=DIRECT, component=1) != pytest.approx(
        alone.value("explained_variance", protocol=DIRECT, component=1)
    )


def test_ranks_are_compared_among_the_models_known_under_both(tmp_path):
    table = {DIRECT: {name: [0.1, 0.2, 0.3, 0.4] for name in "abc"}}
    table[TRAINED] = {name: [0.1, 0.2, 0.3, None] for name in "abc"}
    rows = factors_of(tmp_path, score_rows(table), resamples=20)
    gaps = [rows.value("rank_gap", subject=name) for name in ("m0", "m1", "m2")]
    assert gaps == [0, 0, 0]  # m3, not fine-tuned, is first directly
