"""The order of models on one benchmark: values by scipy and by hand, and what is not known."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lm_validity.studies.items.statistics import holm_over_pairs, p_by_errors
from lm_validity.studies.models.report import report_models
from lm_validity.tables.counted import Sources
from lm_validity.tables.schema import SCORES, write_table


def ordered(write, cells, items=False, changes=None, **columns):
    """The rows of results.parquet of `cells`, {model: items}, and the page."""
    folder = write({(m, "facts", "direct"): v for m, v in cells.items()}, changes=changes, **columns)
    (folder / "models.csv").write_text("model\n" + "\n".join(cells))
    sheet = f"benchmark,metric,higher_is_better\nfacts,acc,{int(columns.get('higher_is_better', True))}\n"
    (folder / "benchmarks.csv").write_text(sheet)
    return reported(folder, folder / "items.parquet" if items else None)


def reported(folder, items=None):
    """The rows and the page of models, of the tables and sheets in a folder."""
    tables = (folder / name for name in ("scores.parquet", "models.csv", "benchmarks.csv"))
    report_models(Sources(*tables, items), folder / "out")
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


def stepped_down(p):
    """Which p Holm's procedure rejects at 5%: from the smallest on until one is above 0.05 / (those that are left)."""
    rejected = np.zeros(len(p), dtype=bool)
    for step, place in enumerate(np.argsort(p)):
        if p[place] > 0.05 / (len(p) - step):
            break
        rejected[place] = True
    return rejected


def test_holm_goes_over_the_known_pairs_and_z_tests_need_an_error():
    p = np.random.default_rng(1).uniform(size=(6, 6)) ** 4
    p = np.where(np.eye(6, dtype=bool), np.nan, np.triu(p, 1) + np.triu(p, 1).T)
    p[1, 4] = p[4, 1] = np.nan
    adjusted, upper = holm_over_pairs(p), np.triu(np.isfinite(p))
    assert np.array_equal(adjusted[upper] < 0.05, stepped_down(p[upper]))
    assert np.nanmin(adjusted) == pytest.approx(14 * np.nanmin(p))  # of 15 pairs one is unknown
    assert np.isnan(adjusted[1, 4]) and np.array_equal(adjusted, adjusted.T, equal_nan=True)
    assert np.isnan(p_by_errors(np.array([0.7, 0.6]), np.zeros(2))).all()


def test_an_order_from_standard_errors(write):
    shares = {"a": 0.80, "b": 0.79, "c": 0.70, "d": 0.60}
    rows, page = ordered(write, {name: right(share) for name, share in shares.items()})
    errors = {name: np.sqrt(s * (1 - s) / 999) for name, s in shares.items()}
    assert one(rows, "may_be_best").value == 2
    assert one(rows, "separated_pairs").n == 6 and one(rows, "paired_pairs").value == 0
    pairs = [(x, y) for x in shares for y in shares if x < y]
    p = [2 * stats.norm.sf((shares[x] - shares[y]) / np.hypot(errors[x], errors[y])) for x, y in pairs]
    assert one(rows, "separated_pairs").value == stepped_down(np.array(p)).sum() == 5
    sizes = [(stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * np.hypot(errors[x], errors[y]) for x, y in pairs]
    assert one(rows, "smallest_detectable").value == pytest.approx(np.median(sizes))
    assert one(rows, "lead", "a", behind="b").value == pytest.approx(0.01)
    assert one(rows, "lead_p_adjusted", "a", behind="b").value == pytest.approx(max(p))
    ranks = [one(rows, "model_rank", name) for name in shares]
    assert [(row.value, row.low, row.high) for row in ranks] == [(1, 1, 2), (2, 1, 2), (3, 3, 3), (4, 4, 4)]
    assert [one(rows, "tier", name).value for name in shares] == [1, 1, 2, 3]
    score = one(rows, "score", "d")
    assert (score.value, score.high - score.value) == pytest.approx((0.6, stats.norm.ppf(0.975) * errors["d"]))
    assert "2 of 4 models may be best on facts" in page["lede"]["heading"]


def test_common_items_separate_what_standard_errors_do_not(write):
    """b is right wherever c is, and on 12 of 1,000 items more: McNemar's p is 2 · 0.5^12."""
    cells = {"a": right(0.8), "b": right(0.788), "c": np.roll(right(0.3), 500)}
    apart, _ = ordered(write, cells)
    rows, _ = ordered(write, cells, items=True)
    assert one(apart, "may_be_best").value == 2 and one(rows, "may_be_best").value == 1
    assert one(rows, "lead_p_adjusted", "a", behind="b").value == pytest.approx(2 * 0.5**12)  # the largest of three
    assert one(rows, "paired_pairs").value == 3
    assert one(rows, "separated_pairs").value == 3 and one(apart, "separated_pairs").value == 2


@pytest.mark.parametrize(
    ("shares", "ranks", "best", "ending"),
    [
        ((0.6, 0.6, 0.6, 0.6), [1, 1, 1, 1], 4, "a and 3 more rank first"),
        # 2 of 100 items' answers of a pair differ, so a third may be best too
        ((0.6, 0.6, 0.59, 0.2), [1, 1, 3, 4], 3, "a and 1 more rank first"),
    ],
)
def test_models_that_share_the_highest_score_are_counted(write, shares, ranks, best, ending):
    rows, page = ordered(write, dict(zip("abcd", map(right, shares), strict=True)))
    assert [one(rows, "model_rank", name).value for name in "abcd"] == ranks
    assert one(rows, "may_be_best").value == best
    heading = page["lede"]["heading"]
    assert heading.endswith(ending) or (best == 4 and heading.startswith("Any of the 4 models"))


def test_without_errors_nobody_is_best(write):
    cells = {"a": right(0.9, 20), "b": right(0.1, 20), "c": right(0.5, 20)}
    rows, page = ordered(write, cells, changes=lambda scores: scores.assign(stderr=np.nan, n_items=None))
    for quantity in ("may_be_best", "separated_pairs", "smallest_detectable"):
        row = one(rows, quantity)
        assert pd.isna(row.value) and row.reason_code == "no_errors"
    assert page["lede"]["heading"].endswith("is not known") and one(rows, "model_rank", "c").value == 2
    assert page["answers"][0]["sentence"] == f"{page['lede']['heading']}."


def test_where_less_is_better_the_lowest_is_first(write):
    rows, _ = ordered(write, {"a": right(0.9), "b": right(0.2), "c": right(0.5)}, higher_is_better=False)
    assert one(rows, "may_be_best").value == 1
    assert one(rows, "lead", "b", behind="c").value == pytest.approx(0.3)
    assert [one(rows, "model_rank", name).value for name in "bca"] == [1, 2, 3]


def test_copies_of_a_model_count_once(write):
    """b answers every item as a does, c as many of others: of three models two are ranked, and the copy is named."""
    generator = np.random.default_rng(0)
    a, c = generator.permuted(np.vstack([right(0.5, 200)] * 2), axis=1)
    rows, page = ordered(write, {"a": a, "b": a, "c": c}, items=True)
    assert one(rows, "models").value == 2 and one(rows, "separated_pairs").n == 1
    assert any("count once: b (as a)" in note for note in page["notes"])


def together(rows, quantity, other=None, **conditions):
    """The row of a quantity over all benchmarks."""
    return one(rows[rows["subject"].isna()], quantity, other, **conditions)


@pytest.fixture
def report(tmp_path):
    """Write a matrix of scores (models, benchmarks) with their errors; the rows and the page of its order of models."""

    def write(scores, error=0.01, metric="acc"):
        models, benchmarks = [f"m{i}" for i in range(len(scores))], [f"b{j}" for j in range(scores.shape[1])]
        cells = [(m, b, scores[i, j]) for i, m in enumerate(models) for j, b in enumerate(benchmarks)]
        table = pd.DataFrame(cells, columns=["model", "benchmark", "value"]).dropna()
        table = table.assign(protocol="direct", metric=metric, stderr=error)
        write_table(table, SCORES, tmp_path / "scores.parquet")
        pd.DataFrame({"model": models, "family": ["x", "y"] * (len(models) // 2)}).to_csv(tmp_path / "models.csv")
        sheet = pd.DataFrame({"benchmark": benchmarks, "metric": metric, "higher_is_better": 1})
        sheet.to_csv(tmp_path / "benchmarks.csv", index=False)
        return reported(tmp_path)

    return write


def test_over_many_benchmarks_leads_are_paired_t_tests_of_mean_scores(report):
    rng = np.random.default_rng(1)
    scores = np.clip(0.5 + np.array([0.2, 0.1, 0.09, -0.1])[:, None] + 0.05 * rng.normal(size=(4, 8)), 0, 1)
    rows, page = report(scores)
    lead, test = together(rows, "lead", "m0", behind="m3"), stats.ttest_rel(scores[0], scores[3])
    expected = (scores[0] - scores[3]).mean(), *test.confidence_interval()
    assert (lead.value, lead.low, lead.high) == pytest.approx(expected)
    assert (lead.unit, lead.interval_for, lead.n) == ("accuracy", "benchmarks", 8)
    p = [stats.ttest_rel(scores[i], scores[j]).pvalue for i in range(4) for j in range(i)]
    assert together(rows, "separated_pairs").value == stepped_down(np.array(p)).sum()
    assert page["picture"]["svg"].count("<tr class") == 4 and "m0" in page["lede"]["heading"]


def test_over_few_benchmarks_leads_are_z_tests_for_other_items(report):
    scores = np.array([[0.70, 0.60, 0.8], [0.66, 0.58, 0.8], [0.4, 0.3, 0.5], [0.41, 0.3, 0.5]])
    rows, page = report(scores)
    lead = together(rows, "lead", "m0", behind="m1")
    error = 0.01 * np.sqrt(2 * 3) / 3
    assert (lead.value, lead.high) == pytest.approx((0.02, 0.02 + stats.norm.ppf(0.975) * error))
    assert lead.interval_for == "items" and "not for other benchmarks" in page["picture"]["note"]
    # z of m0 over m1 is 2.4, and p .014 twice, since one other pair has a larger p; that of m2 and m3 is .4
    assert [together(rows, "tier", f"m{i}").value for i in range(4)] == [1, 2, 3, 3]
    assert together(rows, "lead_p_adjusted", "m0", behind="m1").value == pytest.approx(4 * stats.norm.sf(0.02 / error))


def test_unlike_units_are_standardised_and_missing_scores_leave_pairs_out(report):
    scores = np.random.default_rng(2).normal(size=(6, 9)) * np.array([1, 50, 3] * 3) + np.arange(6)[:, None] * 40
    scores[0, :5] = np.nan  # m0 has four benchmarks
    rows, _ = report(scores, metric="rating")
    rank = together(rows, "model_rank", "m0")
    assert np.isnan(rank.value) and rank.reason_code == "too_few"
    assert together(rows, "lead", "m5", behind="m1").unit == "sd"


def test_a_page_of_many_models_has_a_line_for_each_and_the_pairs_of_the_first(report):
    rng = np.random.default_rng(3)
    rows, page = report(np.clip(rng.normal(0.5, 0.1, (160, 1)) + rng.normal(0, 0.05, (160, 9)), 0, 1))
    assert page["picture"]["svg"].count("<tr class") == 160
    leads = rows[rows["quantity"] == "lead"]
    paired = {*leads["other"], *(json.loads(text)["behind"] for text in leads["conditions"])}
    ranks = rows[(rows["quantity"] == "model_rank") & rows["subject"].isna()].set_index("other")["value"]
    assert len(ranks) == 160 and len(paired) == 150 and ranks[[*paired]].max() <= 151
