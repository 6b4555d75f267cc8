"""The ranking of models on one benchmark: values by scipy and by hand, and what is not known."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lm_validity.studies.items.ranking import report_ranking
from lm_validity.studies.items.statistics import holm_over_pairs, may_be_best, p_by_errors
from lm_validity.tables.counted import Sources


def ranking(write, cells, items=False, changes=None, **columns):
    """The rows of results.parquet of `cells`, {model: items}, and the page."""
    folder = write({(m, "facts", "direct"): v for m, v in cells.items()}, changes=changes, **columns)
    higher = int(columns.get("higher_is_better", True))
    sheets = {"models": "model\n" + "\n".join(cells)}
    sheets["benchmarks"] = f"benchmark,metric,higher_is_better\nfacts,acc,{higher}"
    for name, text in sheets.items():
        (folder / f"{name}.csv").write_text(text + "\n")
    tables = (folder / "scores.parquet", folder / "models.csv", folder / "benchmarks.csv")
    report_ranking(Sources(*tables, folder / "items.parquet" if items else None), folder / "out")
    page = json.loads((folder / "out" / "page.json").read_text())
    return pd.read_parquet(folder / "out" / "results.parquet"), page


def one(rows, quantity, other=None, **conditions):
    """The row of a quantity."""
    found = rows[rows["quantity"] == quantity]
    found = found[found["other"].isna()] if other is None else found[found["other"] == other]
    for name, value in conditions.items():
        found = found[[json.loads(text).get(name) == value for text in found["conditions"]]]
    assert len(found) == 1, (quantity, other, conditions)
    return found.iloc[0]


def right(share, items=1000):
    """`items` answers of which a share is right."""
    return (np.arange(items) < round(share * items)).astype(float)


def test_pairs_by_standard_errors_are_z_tests():
    scores, errors = np.array([0.8, 0.75, 0.7, 0.7]), np.array([0.01, 0.02, 0.0, 0.0])
    p, detectable = p_by_errors(scores, errors)
    z = 0.05 / np.sqrt(0.01**2 + 0.02**2)
    assert p[0, 1] == pytest.approx(2 * (1 - stats.norm.cdf(z))) and p[1, 0] == p[0, 1]
    assert np.isnan(p[2, 3]) and np.isnan(np.diag(p)).all()  # neither has an error
    assert stats.norm.sf(stats.norm.ppf(0.975) - detectable[0, 1] / np.sqrt(5e-4)) == pytest.approx(0.8, abs=1e-6)


def stepped_down(p):
    """Which p Holm's procedure rejects at 5%: from the smallest on until one is above 0.05 / (those that are left)."""
    rejected = np.zeros(len(p), dtype=bool)
    for step, place in enumerate(np.argsort(p)):
        if p[place] > 0.05 / (len(p) - step):
            break
        rejected[place] = True
    return rejected


def test_holm_goes_over_the_known_pairs():
    generator = np.random.default_rng(1)
    upper = np.triu(generator.uniform(size=(6, 6)) ** 4, 1)
    p = np.where(np.eye(6, dtype=bool), np.nan, upper + upper.T)
    p[1, 4] = p[4, 1] = np.nan
    adjusted = holm_over_pairs(p)
    first, second = np.triu_indices(6, 1)
    kept = np.isfinite(p[first, second])
    assert np.array_equal(adjusted[first, second][kept] < 0.05, stepped_down(p[first, second][kept]))
    assert np.nanmin(adjusted) == pytest.approx(14 * np.nanmin(p))  # of 15 pairs one is unknown
    assert np.isnan(adjusted[1, 4]) and np.array_equal(adjusted, adjusted.T, equal_nan=True)


def test_who_may_be_best_is_corrected_for_the_tests_with_the_first():
    p = np.full((4, 4), np.nan)
    p[0, 1:] = 0.0166, 0.0167, np.nan  # two tests: 0.025 is the limit
    assert may_be_best(p).tolist() == [True, False, False, True]
    p[0, 3] = 0.9  # three: 0.05 / 3 = 0.016667
    assert may_be_best(p).tolist() == [True, False, True, True]


def test_the_truly_best_model_is_seldom_left_out():
    """Equal models are the worst case: any that is left out is as good as the best."""
    generator = np.random.default_rng(2)
    lost = 0
    for _ in range(2000):
        scores = generator.normal(0, [0.01, 0.01, 0.02, 0.01, 0.015])
        order = np.argsort(-scores)
        p, _ = p_by_errors(scores[order], np.array([0.01, 0.01, 0.02, 0.01, 0.015])[order])
        lost += not may_be_best(p)[list(order).index(0)]  # which one is the best is arbitrary: the first
    assert lost / 2000 < 0.025 + 3 * np.sqrt(0.025 * 0.975 / 2000)


def test_a_ranking_from_standard_errors(write):
    shares = {"a": 0.80, "b": 0.79, "c": 0.70, "d": 0.60}
    rows, page = ranking(write, {name: right(share) for name, share in shares.items()})
    errors = {name: np.sqrt(s * (1 - s) / 999) for name, s in shares.items()}
    assert one(rows, "may_be_best").value == 2 and one(rows, "first").text == "a"
    assert one(rows, "pairs").value == one(rows, "tested_pairs").value == 6 and one(rows, "paired_pairs").value == 0
    pairs = [(x, y) for x in shares for y in shares if x < y]
    p = [2 * stats.norm.sf((shares[x] - shares[y]) / np.hypot(errors[x], errors[y])) for x, y in pairs]
    assert one(rows, "separated_pairs").value == stepped_down(np.array(p)).sum() == 5
    sizes = [(stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * np.hypot(errors[x], errors[y]) for x, y in pairs]
    assert one(rows, "smallest_detectable").value == pytest.approx(np.median(sizes))
    behind = one(rows, "behind_first", "b")
    reach = stats.norm.ppf(0.975) * np.hypot(errors["a"], errors["b"])
    assert (behind.value, behind.low, behind.high) == pytest.approx((0.01, 0.01 - reach, 0.01 + reach))
    score = one(rows, "score", "d")
    assert (score.value, score.high - score.value) == pytest.approx((0.6, stats.norm.ppf(0.975) * errors["d"]))
    assert "2 of 4 models may be best on facts" in page["lede"]["heading"]


def test_common_items_separate_what_standard_errors_do_not(write):
    """b is right wherever c is, and on 12 of 1,000 items more: McNemar's p is 2 · 0.5^12."""
    cells = {"a": right(0.8), "b": right(0.788), "c": np.roll(right(0.3), 500)}
    apart, _ = ranking(write, cells)
    rows, _ = ranking(write, cells, items=True)
    assert one(apart, "may_be_best").value == 2 and one(rows, "may_be_best").value == 1
    assert one(rows, "behind_first_p_adjusted", "b").value == pytest.approx(4 * 0.5**12)
    assert one(rows, "paired_pairs").value == 3
    assert one(rows, "separated_pairs").value == 3 and one(apart, "separated_pairs").value == 2


def test_equal_models_may_all_be_best(write):
    rows, page = ranking(write, {name: right(0.6) for name in "abcd"})
    assert one(rows, "may_be_best").value == 4 and one(rows, "separated_pairs").value == 0
    assert [one(rows, "place", name).value for name in "abcd"] == [1, 1, 1, 1]
    assert page["lede"]["heading"].startswith("Any of the 4 models")


def test_without_errors_nobody_is_best(write):
    rows, page = ranking(
        write,
        {"a": right(0.9, 20), "b": right(0.1, 20), "c": right(0.5, 20)},
        changes=lambda scores: scores.assign(stderr=np.nan, n_items=None),
    )
    for quantity in ("may_be_best", "separated_pairs", "smallest_detectable"):
        row = one(rows, quantity)
        assert pd.isna(row.value) and row.reason_code == "no_errors"
    assert page["lede"]["heading"].endswith("is not known") and one(rows, "place", "c").value == 2
    assert page["answers"][0]["sentence"] == f"{page['lede']['heading']}."


def test_models_that_share_the_highest_score_are_counted(write):
    """The lede names one of them; 2 of 100 items' answers of a pair differ, so a third may be best too."""
    rows, page = ranking(write, {"a": right(0.6), "b": right(0.6), "c": right(0.59), "d": right(0.2)})
    assert [one(rows, "place", name).value for name in "abcd"] == [1, 1, 3, 4]
    assert one(rows, "may_be_best").value == 3 and page["lede"]["heading"].endswith("a and 1 more score highest")


def test_where_less_is_better_the_lowest_is_first(write):
    rows, _ = ranking(write, {"a": right(0.9), "b": right(0.2), "c": right(0.5)}, higher_is_better=False)
    assert one(rows, "first").text == "b" and one(rows, "may_be_best").value == 1
    assert one(rows, "behind_first", "c").value == pytest.approx(0.3)
    assert [one(rows, "place", name).value for name in "bca"] == [1, 2, 3]


def test_copies_of_a_model_count_once(write):
    """b answers every item as a does, c as many of others: of three models two are ranked, and the copy is named."""
    generator = np.random.default_rng(0)
    a, c = generator.permuted(np.vstack([right(0.5, 200)] * 2), axis=1)
    rows, page = ranking(write, {"a": a, "b": a, "c": c}, items=True)
    assert one(rows, "models").value == 2 and one(rows, "pairs").value == 1
    assert any("count once: b (as a)" in note for note in page["notes"])
