"""Like sizes over common cells, categories as clusters, corrected taus with intervals, noise of seeds and prompts."""

import numpy as np
import pandas as pd
import pytest
from tests.unit.studies.agreement.conftest import (
    DIRECT,
    TRAINED,
    agreement_of,
    agreement_page,
    factors_of,
    score_rows,
    section_of,
)

from lm_validity.missing import Missing, is_known
from lm_validity.studies.agreement.reasons import NARROWER
from lm_validity.studies.agreement.similar import ABOVE_CEILING
from lm_validity.studies.agreement.statistics.noise import mean_tau_left_out
from lm_validity.studies.agreement.statistics.ranking import kendall_tau_matrix, mean_over_pairs, pair_signs
from lm_validity.studies.agreement.statistics.resampling import transformed_interval
from lm_validity.words import no_scores

NAMES = [f"m{i}" for i in range(14)]
MODELS = "model,family,parameters_b\n" + "".join(f"{name},F{i // 3},{1 + i // 2}\n" for i, name in enumerate(NAMES))
TASKS = ["a", "b", "c", "d", "e"]
BENCHMARKS = "benchmark,category,metric,output_type,higher_is_better\n" + "".join(
    f"{name},{category},acc,multiple_choice,1\n" for name, category in zip(TASKS, "xxyyz", strict=True)
)
SHEETS = {"models": MODELS, "benchmarks": BENCHMARKS}
SIMILAR, VARIANCE = "Models of similar size", "Where differences between scores come from"


def size_finding(page):
    """The finding on models of similar size."""
    (finding,) = [finding for finding in page.findings if finding.sentence.startswith("Among models at most 2×")]
    return finding


def table(seed=0, noise=(0.6, 0.3)) -> dict:
    rng = np.random.default_rng(seed)
    ability = np.linspace(-1, 1, 14)
    return {
        p: {name: (0.5 + 0.1 * (ability + spread * rng.normal(size=14))).tolist() for name in TASKS}
        for p, spread in zip((DIRECT, TRAINED), noise, strict=True)
    }


def test_models_of_like_size_are_compared_on_the_cells_known_under_both(tmp_path):
    scores = table()
    for name in TASKS:
        scores[TRAINED][name][:4] = [None] * 4
    page, summary = agreement_page(tmp_path, score_rows(scores, NAMES), **SHEETS)
    own = next(row for row in summary["kendall_tau"][DIRECT]["by_size_ratio"] if row.at_most == 2)
    both = next(row for row in summary["improvement"]["by_size_ratio"][DIRECT] if row.at_most == 2)
    common = np.array([scores[DIRECT][name][4:] for name in TASKS]).T
    signs, size = pair_signs(common), np.array([1 + i // 2 for i in range(4, 14)])
    ratio = np.exp(np.abs(np.log(size[signs.first]) - np.log(size[signs.second]))) <= 2
    kept = signs._replace(sign=signs.sign * ratio[:, None], known=signs.known * ratio[:, None])
    assert both.mean == pytest.approx(mean_over_pairs(kendall_tau_matrix(kept)))
    assert both.pairs_of_models == ratio.sum() < own.pairs_of_models and own.mean != pytest.approx(both.mean)
    pooled = summary["pooled"]["like_size"]  # all 50 common cells: the pooled tau is the mean over pairs
    assert [pooled[key] for key in ("pairs_of_models", "models", "comparisons")] == [ratio.sum(), 10, 10 * ratio.sum()]
    assert pooled["mean"][DIRECT] == pytest.approx(both.mean, abs=0.02)
    assert f"{pooled['mean'][DIRECT]:.2f}" in size_finding(page).sentence
    assert set(section_of(page, SIMILAR).tables[0].frame["cells"]) == {"all of the protocol", "known under both"}


def test_with_every_cell_like_sizes_are_those_of_each_protocol(tmp_path):
    page, summary = agreement_page(tmp_path, score_rows(table(), NAMES), **SHEETS)
    for p in (DIRECT, TRAINED):
        assert summary["improvement"]["by_size_ratio"][p] == summary["kendall_tau"][p]["by_size_ratio"]
    assert "cells" not in section_of(page, SIMILAR).tables[0].frame
    assert "both protocols" not in size_finding(page).basis


@pytest.mark.parametrize("protocol", [DIRECT, TRAINED])
def test_the_change_by_sizes_of_one_protocol_alone_lacks_the_other_protocol(tmp_path, protocol):
    other = TRAINED if protocol == DIRECT else DIRECT
    found = agreement_of(tmp_path, score_rows({protocol: table()[protocol]}, NAMES), **SHEETS)
    assert not isinstance(found["kendall_tau"][protocol]["by_size_ratio"], Missing)
    for distance in ("by_size_ratio", "by_compute_ratio"):
        assert found["improvement"][distance] == dict.fromkeys((DIRECT, TRAINED), Missing(no_scores(other)))


def test_categories_as_clusters_give_an_interval_for_other_benchmarks(tmp_path):
    page, summary = agreement_page(tmp_path, score_rows(table(), NAMES), resamples=50, **SHEETS)
    for p in (DIRECT, TRAINED):
        tau = summary["kendall_tau"][p]
        low, high = tau["interval_population_of_categories"]
        assert low < tau["mean"] < high and (low, high) != tuple(tau["interval_clustered"])
    assert is_known(summary["improvement"]["interval_population_of_categories"])
    bases = " ".join(finding.basis for finding in page.findings)
    assert bases.count("categories of benchmarks as clusters: ") == 2
    for sheet in (BENCHMARKS.replace(",y,", ",x,"), BENCHMARKS.replace("b,x", "b,v").replace("d,y", "d,w")):
        other = agreement_of(tmp_path, score_rows(table(), NAMES), models=MODELS, benchmarks=sheet)
        assert isinstance(other["kendall_tau"][DIRECT]["interval_population_of_categories"], Missing)


@pytest.mark.parametrize("benchmarks", [4, 5])
def test_the_smallest_p_of_few_benchmarks_is_said(benchmarks, tmp_path):
    scores = {
        p: {name: values for name, values in of.items() if name in TASKS[:benchmarks]} for p, of in table().items()
    }
    page, summary = agreement_page(tmp_path, score_rows(scores, NAMES), **SHEETS)
    test = summary["improvement"]["test"]
    assert test["units"] == benchmarks and test["p"] >= 0.5**benchmarks
    bases = " ".join(finding.basis for finding in page.findings)
    assert ("0.0625" in bases) == (benchmarks == 4) and "0.0312" not in bases


def test_intervals_over_families_count_models_of_each_family(tmp_path):
    families = np.repeat([0, 1, 2, 3], [6, 4, 3, 1])
    models = "model,family,parameters_b\n" + "".join(
        f"{name},F{family},{1 + i}\n" for i, (name, family) in enumerate(zip(NAMES, families, strict=True))
    )
    scores = table(noise=(0.9, 0.6))
    for name in TASKS:
        scores[DIRECT][name][12] = None  # family 2 has two models with a score
    summary = agreement_of(tmp_path, score_rows(scores, NAMES), models=models, benchmarks=BENCHMARKS)
    rows = np.array([scores[DIRECT][name] for name in TASKS], dtype=float).T
    signs = pair_signs(rows)
    for row, close, sizes in (
        (None, np.ones(len(signs.first), bool), [6, 4, 2, 1]),
        (
            summary["kendall_tau"][DIRECT]["by_size_ratio"][0],
            (signs.second + 1) / (signs.first + 1) <= 1.25,
            [3, 4, 2, 1],
        ),
    ):
        close &= (signs.first != 12) & (signs.second != 12)
        tau, _ = mean_tau_left_out(signs, None, close, families)
        found = summary["kendall_tau"][DIRECT]["interval_clustered"] if row is None else row.interval_clustered
        assert tuple(found) == pytest.approx(transformed_interval(tau[0], tau[1:], "tau", sizes))
    one = models.replace("F1", "F0").replace("F2", "F0")
    few = agreement_of(tmp_path, score_rows(scores, NAMES), models=one, benchmarks=BENCHMARKS)
    assert isinstance(few["kendall_tau"][DIRECT]["interval_clustered"], Missing)


def test_there_is_no_interval_over_families_where_one_holds_most_models_or_that_is_narrower_than_over_models(tmp_path):
    def found(families):
        rows = "".join(f"{name},F{family},1\n" for name, family in zip(NAMES, families, strict=True))
        sheets = {"models": "model,family,parameters_b\n" + rows, "benchmarks": BENCHMARKS}
        page, summary = agreement_page(tmp_path, score_rows(table(noise=(0.9, 0.6)), NAMES), **sheets)
        return summary["kendall_tau"][DIRECT]["by_size_ratio"][0], size_finding(page).basis

    largest, basis = found([0] * 8 + [1, 2, 3, 4, 5, 6])  # as many as 2.8 of equal size
    assert largest.interval_clustered == Missing("8 of 14 models are of one family.") and is_known(largest.interval)
    assert largest.interval_clustered.reason in basis
    assert is_known(found([0] * 7 + [1, 2, 3, 4, 5, 6, 7])[0].interval_clustered)
    narrower, _ = found(np.random.default_rng(146).permutation(np.arange(14) % 3))
    assert narrower.interval_clustered == Missing(NARROWER) and is_known(narrower.interval)


def test_corrected_taus_have_intervals_by_benchmark_and_by_pair(tmp_path):
    summary = agreement_of(tmp_path, score_rows(table(noise=(1.0, 0.7)), NAMES, stderr=0.02), **SHEETS)
    plain = summary["kendall_tau"][DIRECT]
    corrected = plain["corrected"]
    assert len(corrected["by_pair_interval"]) == 10 and list(corrected["by_benchmark_interval"]) == TASKS
    known = 0
    for (*pair, tau), (*same, interval) in zip(corrected["by_pair"], corrected["by_pair_interval"], strict=True):
        assert pair == same and isinstance(tau, Missing) <= isinstance(interval, Missing)
        if is_known(interval):
            known += 1
            assert -1 <= interval.low < tau < interval.high <= 1
    assert known
    low, high = corrected["by_benchmark_interval"]["a"]
    assert low < corrected["by_benchmark"]["a"] < high
    assert corrected["by_benchmark"]["a"] > plain["by_benchmark"]["a"]
    without = agreement_of(tmp_path, score_rows(table(), NAMES, stderr=None), **SHEETS)["kendall_tau"][DIRECT]
    assert isinstance(without["corrected"]["by_benchmark_interval"]["a"], Missing)


def test_seeds_lower_the_ceiling_of_the_first_component(tmp_path):
    rng = np.random.default_rng(1)
    scores = {TRAINED: table(noise=(0.3, 0.3))[TRAINED]}
    rows = score_rows(scores, NAMES, stderr=0.005)
    seeds = [rows.assign(seed=s, value=rows["value"] + 0.06 * rng.normal(size=len(rows))) for s in (0, 1)]
    both = pd.concat(seeds)
    of_means = both.groupby(["model", "benchmark"], as_index=False).agg({"value": "mean"})
    one_seed = rows.drop(columns="value").merge(of_means, on=["model", "benchmark"])
    ceilings = [
        factors_of(tmp_path, each, **SHEETS).value("first_component_ceiling", protocol=TRAINED)
        for each in (both, one_seed)
    ]
    assert ceilings[0] < ceilings[1] - 0.05


def test_benchmarks_at_chance_are_set_apart_beside_the_noise_ceiling(tmp_path):
    """Two of five benchmarks are guessed on; the page names the agreement of the others and what noise would leave."""
    scores = table()
    for name in "de":
        scores[DIRECT][name] = (0.25 + 0.001 * np.arange(14) * (-1) ** np.arange(14)).tolist()
    sheet = BENCHMARKS.replace("is_better\n", "is_better,chance\n").replace(",1\n", ",1,0.25\n")
    rows = score_rows({DIRECT: scores[DIRECT]}, NAMES, 0.02)
    page, summary = agreement_page(tmp_path, rows, models=MODELS, benchmarks=sheet)
    tau = summary["kendall_tau"][DIRECT]
    above = tau["above_chance"]
    assert (above["above"], above["known"]) == (3, 5)
    assert above["mean"] == pytest.approx(
        np.mean([value for *pair, value in tau["by_pair"] if set(pair) <= set("abc")])
    )
    assert above["mean"] > tau["mean"] and above["ceiling"] > tau["ceiling"]
    (sentence,) = [finding.sentence for finding in page.findings if f"{tau['mean']:.2f}" in finding.sentence]
    for value in (tau["ceiling"], above["mean"], above["ceiling"]):
        assert f"{value:.2f}" in sentence


def test_why_there_is_no_correction_is_said_where_tau_is_above_its_ceiling(tmp_path):
    rows = score_rows({DIRECT: table(noise=(0.05, 0.05))[DIRECT]}, NAMES, stderr=0.03)
    page, summary = agreement_page(tmp_path, rows, **SHEETS)
    tau = summary["kendall_tau"][DIRECT]
    assert tau["mean"] > tau["ceiling"] and tau["corrected"]["mean"] == Missing(ABOVE_CEILING)
    assert ABOVE_CEILING in " ".join(finding.basis for finding in page.findings)


@pytest.mark.parametrize(("resamples", "shown"), [(0, False), (50, True)])
def test_a_change_is_a_headline_with_its_interval_only(tmp_path, resamples, shown):
    sheets = {"models": "model\nm0\n", "benchmarks": BENCHMARKS}
    page, summary = agreement_page(tmp_path, score_rows(table(), NAMES), resamples, **sheets)
    change = f"{summary['improvement']['mean']:+.2f}"
    assert any(change in finding.sentence for finding in page.findings) == shown


def test_the_interval_without_noise_is_no_surer_than_resampling_where_models_are_two_equal_groups(tmp_path):
    """Eight models far below eight others on every benchmark; within a group, two benchmarks have one order and two the
    reverse. Of pairs of models drawn from equal groups half are within one, so that the mean tau of other models is
    .5 + .5 (2 - 4) / 6 = 1/3. Leaving out one model at a time moves it by .01 only."""
    places = np.arange(8) / 100
    up, down = ([*(0.2 + order), *(0.7 + order)] for order in (places, places[::-1]))
    other = [*down[:-2], down[-1], down[-2]]  # without this, leaving out a model moves it not at all
    names = [f"m{i}" for i in range(16)]
    rows = score_rows({DIRECT: {"a": up, "b": up, "c": down, "d": other}}, names, stderr=1e-4)
    sheets = {
        "models": "model\n" + "\n".join(names) + "\n",
        "benchmarks": "benchmark,metric,higher_is_better\n" + "".join(f"{name},acc,1\n" for name in "abcd"),
    }
    found = agreement_of(tmp_path, rows, resamples=400, **sheets)["kendall_tau"][DIRECT]
    low, high = found["corrected"]["interval"]
    assert found["mean"] == pytest.approx((64 + 56 * -1 / 3 + 2 * (2 - 1) / 6) / 120) and low < 1 / 3 < high
    sine = np.sin(np.pi / 2 * np.array([*found["interval"], found["ceiling"]]))
    assert (low, high) == pytest.approx(2 / np.pi * np.arcsin(sine[:2] / sine[2]))
    for name, (low, high) in found["corrected"]["by_benchmark_interval"].items():
        low_observed, high_observed = found["by_benchmark_interval"][name]
        assert high - low > 0.9 * (high_observed - low_observed)
