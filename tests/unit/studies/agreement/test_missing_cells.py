"""Headlines say what they assume where cells are missing, and a few missing cells change none."""

import re

import numpy as np
import pytest
from tests.unit.studies.agreement.conftest import DIRECT, TRAINED, agreement_page, factors_page, score_rows

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


def test_nothing_is_assumed_where_no_cell_is_missing(tmp_path):
    page, summary = agreement_page(tmp_path, score_rows(table(), NAMES), models=SHEET, resamples=20)
    assert not summary["incomplete"] and not summary["pooled"]
    assert not any("by chance)" in finding.sentence for finding in page.findings)


def test_every_headline_of_a_table_that_lacks_many_cells_says_what_its_interval_assumes(tmp_path):
    scores = table()
    scores[TRAINED]["a"][0] = scores[DIRECT]["b"][3] = None
    page, summary = agreement_page(tmp_path, score_rows(scores, NAMES), models=SHEET, resamples=50)
    sentences = [one.sentence for one in page.findings if "95% interval" in one.sentence]
    assert len(sentences) == 6 and all("by chance)" in one.partition("95% interval")[0] for one in sentences)
    known = [np.array([scores[p][name] for name in "abc"], dtype=float).T for p in (DIRECT, TRAINED)]
    assert summary["cells_in_both"] == np.isfinite(np.sum(known, axis=0)).sum()


@pytest.mark.parametrize("report", [agreement_page, factors_page])
def test_two_of_many_cells_change_no_headline_and_take_no_interval(tmp_path, report):
    """The same sentences as of the whole table, but for their numbers."""
    names = [f"m{i}" for i in range(40)]
    ability, rng = np.linspace(-1, 1, 40), np.random.default_rng(0)
    whole = {
        p: {name: (0.5 + 0.1 * (ability + noise * rng.normal(size=40))).tolist() for name in "abc"}
        for p, noise in ((DIRECT, 0.8), (TRAINED, 0.3))
    }
    sheet = "model,family,parameters_b\n" + "".join(f"{name},F{i % 8},1\n" for i, name in enumerate(names))

    def shapes():
        page, _ = report(tmp_path, score_rows(whole, names), models=sheet, resamples=50)
        return {re.sub(r"[-+−]?\d+(\.\d+)?", "#", one.sentence) for one in page.findings[:4]}

    before = shapes()
    whole[TRAINED]["a"][0] = whole[TRAINED]["b"][3] = None
    assert shapes() == before and sum("over families)" in one for one in before) >= (
        4 if report is agreement_page else 1
    )
