"""How far off missing scores would have to be to change the headline."""

import re
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.studies.agreement.conftest import DIRECT, TRAINED, agreement_of, factors_of, score_rows

from lm_validity.studies.agreement.factors.page import factors_page
from lm_validity.studies.agreement.incomplete.summary import Tipping
from lm_validity.studies.agreement.missing_cells import missing_finding, missing_section
from lm_validity.studies.agreement.page import agreement_page
from lm_validity.studies.agreement.statistics.subsets import shifted_means, tipping_points
from lm_validity.summaries import Missing, is_known, summary_values

SHIFTS = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
NAMES = [f"m{i}" for i in range(12)]
SHEET = "model,family\n" + "".join(f"{name},F{i // 3}\n" for i, name in enumerate(NAMES))


def table(direct_noise=0.8, prepared_noise=0.1, seed=0):
    """Three benchmarks of 12 models whose abilities rise; a corpus as the sheet has one."""
    rng = np.random.default_rng(seed)
    ability = np.linspace(-1, 1, 12)
    return {
        p: {name: (0.5 + 0.1 * (ability + noise * rng.normal(size=12))).tolist() for name in "abc"}
        for p, noise in ((DIRECT, direct_noise), (TRAINED, prepared_noise))
    }


def test_tipping_points_by_hand():
    values = np.array([0.1, 0.3, 0.5, 0.55, 0.7])
    below, above = tipping_points(SHIFTS, values, 0.4, 0.6)
    assert (below, above) == pytest.approx((-0.5, 1 + 1 / 3))
    assert np.isnan(tipping_points(SHIFTS, values, 0.0, 1.0)).all()
    assert tipping_points(SHIFTS, values, 0.6, 0.8) == (0, 0)


def test_drawn_scores_follow_the_other_scores_and_the_shift():
    rng = np.random.default_rng(1)
    truth = rng.normal(size=(80, 1)) + 0.5 * rng.normal(size=(80, 4))
    scores = {"one": truth.copy()}
    scores["one"][rng.random(truth.shape) < 0.3] = np.nan
    whole = shifted_means({"one": truth}, rng, SHIFTS)["one"]
    assert np.ptp(whole) == 0  # nothing to shift
    found = shifted_means(scores, np.random.default_rng(0), SHIFTS)["one"]
    assert found[2] == pytest.approx(whole[2], abs=0.04)
    # cells missing here and there: a shift takes the same models apart on different benchmarks
    assert found[0] < found[1] < found[2] > found[3] > found[4]


def test_a_change_that_rests_on_missing_scores_says_so_and_one_that_does_not(tmp_path):
    scores = table()
    for name in "abc":
        scores[TRAINED][name][:4] = [None] * 4
    summary = agreement_of(tmp_path, score_rows(scores, NAMES), models=SHEET, resamples=100)
    found = summary.missing_cells
    assert found.cells == {DIRECT: 0, TRAINED: 12}
    assert isinstance(found.change, Tipping) and found.change.suggested > 0
    # the direct mean rests on no missing score; the trained one agrees more, whatever its weakest models are worth
    assert not is_known(found.kendall_tau[DIRECT].below) and not is_known(found.kendall_tau[DIRECT].above)
    assert found.masked[DIRECT].cells == 12 and TRAINED not in found.masked
    assert found.masked[DIRECT].mean_without == pytest.approx(summary.improvement.means[DIRECT])
    same = replace(found, masked={DIRECT: replace(found.masked[DIRECT], mean_without=found.masked[DIRECT].mean)})
    for cells, differ in ((found, True), (same, False)):
        assert ("instead of" in missing_section(replace(summary, missing_cells=cells)).finding) == differ
    low, high = (row.kendall_tau[TRAINED] for row in (found.curve[0], found.curve[-1]))
    assert low > high  # placed last on every benchmark they agree; above the others they are out of order


def test_the_sign_of_a_change_tips_where_scattered_cells_are_shifted(tmp_path):
    scores = table(direct_noise=0.5, prepared_noise=0.1)
    for place, name in enumerate("abc"):
        for model in range(place, 12, 4):
            scores[TRAINED][name][model] = None
    found = agreement_of(tmp_path, score_rows(scores, NAMES), models=SHEET, resamples=100).missing_cells
    changes = {row.shift: row.change for row in found.curve}
    assert changes[0] > 0 > max(changes[-3], changes[3])
    assert found.change.below < 0 < found.change.above
    last_held, first_tipped = 0.5 * np.floor(found.change.above / 0.5), 0.5 * np.ceil(found.change.above / 0.5)
    assert changes[last_held] >= 0 > changes[first_tipped]


def test_nothing_is_shown_where_no_cell_is_missing(tmp_path):
    summary = agreement_of(tmp_path, score_rows(table(), NAMES), models=SHEET, resamples=20)
    assert summary.missing_cells is None
    assert missing_finding(summary) is None and missing_section(summary) is None
    assert not any("by chance)" in finding.sentence for finding in agreement_page(summary).findings)


def test_the_page_has_the_line_and_no_headline_changes(tmp_path):
    scores = table()
    scores[TRAINED]["a"][0] = scores[DIRECT]["b"][3] = None
    summary = agreement_of(tmp_path, score_rows(scores, NAMES), models=SHEET, resamples=50)
    sentence = missing_finding(summary).sentence
    sentences = [one.sentence for one in agreement_page(summary).findings if "95% interval" in one.sentence]
    assert len(sentences) == 6 and all("by chance)" in one.partition("95% interval")[0] for one in sentences)
    assert sentence.startswith("Missing scores: ") and "under direct evaluation" in sentence and ". the" not in sentence
    assert len(missing_section(summary).tables[0].frame) == 2 * len(summary.missing_cells.curve)
    known = [np.array([scores[p][name] for name in "abc"], dtype=float).T for p in (DIRECT, TRAINED)]
    assert summary.cells_in_both == np.isfinite(np.sum(known, axis=0)).sum()
    values = summary_values(summary)
    assert set(values["missing_cells"]) == {"kendall_tau", "change", "cells", "masked", "curve"}


@pytest.mark.parametrize("report", [agreement_of, factors_of])
def test_two_of_many_cells_change_no_headline_and_take_no_interval(tmp_path, report):
    """The same sentences as of the whole table, but for their numbers."""
    names = [f"m{i}" for i in range(40)]
    ability, rng = np.linspace(-1, 1, 40), np.random.default_rng(0)
    whole = {
        p: {name: (0.5 + 0.1 * (ability + noise * rng.normal(size=40))).tolist() for name in "abc"}
        for p, noise in ((DIRECT, 0.8), (TRAINED, 0.3))
    }
    sheet = "model,family,parameters_b\n" + "".join(f"{name},F{i % 8},1\n" for i, name in enumerate(names))
    page = agreement_page if report is agreement_of else factors_page

    def shapes():
        summary = report(tmp_path, score_rows(whole, names), models=sheet, resamples=50)
        return {re.sub(r"[-+]?\d+(\.\d+)?", "#", one.sentence) for one in page(summary).findings[:4]}

    before = shapes()
    whole[TRAINED]["a"][0] = whole[TRAINED]["b"][3] = None
    assert shapes() == before and sum("over families)" in one for one in before) >= (1 if page is factors_page else 4)


def test_one_protocol_and_no_resamples(tmp_path):
    scores = {DIRECT: table()[DIRECT]}
    scores[DIRECT]["a"][2] = None
    found = agreement_of(tmp_path, score_rows(scores, NAMES), models=SHEET).missing_cells
    assert isinstance(found.change, Missing) and isinstance(found.kendall_tau[DIRECT], Missing)
    assert list(found.kendall_tau) == [DIRECT] and is_known(found.curve[0].kendall_tau[DIRECT])
