"""Verdicts of a comparison: better, worse, not worse by more than a margin, not known; and all benchmarks together."""

import numpy as np
import pytest
from scipy import stats

from lm_validity.studies.items import statistics
from lm_validity.words import is_known


def judged(tests, margins, *others):
    return statistics.verdicts([statistics.Claim(*values) for values in zip(tests, margins, *others, strict=True)])


def decisions(tests, margins):
    return [one.decision for one in judged(tests, margins)]


@pytest.mark.parametrize(
    ("gained", "lost", "margin", "decision"),
    [
        (30, 5, None, "better"),  # scipy.stats.binomtest(30, 35).pvalue = 2e-5
        (5, 30, None, "worse"),
        (5, 30, 0.005, "worse"),  # -.025, 95% from -.038 to -.013
        (5, 30, 0.02, "not known"),  # surely a loss, of the margin or not
        (5, 30, 0.05, "not worse"),  # surely a loss, and surely smaller than the margin
        (8, 12, None, "not known"),
        (8, 12, 0.001, "not known"),
        (8, 12, 0.02, "not worse"),
        (0, 0, 0.01, "not worse"),  # 1,000 items that never differ
    ],
)
def test_one_benchmark(gained, lost, margin, decision):
    assert decisions([statistics.McNemarTest(1000, gained, lost)], [margin]) == [decision]


def test_an_untested_benchmark_is_not_known_and_counts_in_no_correction():
    test = statistics.McNemarTest(1000, 12, 30)  # p = .0080
    first, second = judged([None, test], [0.01, None], [None, 1000])
    assert first.decision == "not known" and not is_known(first.p)
    assert second.p == pytest.approx(stats.binomtest(12, 42).pvalue)


def test_holm_over_benchmarks_for_each_claim():
    # p of no difference: .0209, and .5 four times; Holm: .0209 * 5 > .05
    tests = [statistics.StudentTest(x, x / z, np.inf) for x, z in ((-0.02, -2.31), *[(-0.002, -0.6745)] * 4)]
    assert decisions(tests[:1], [None]) == ["worse"]
    assert decisions(tests, [None] * 5) == ["not known"] * 5
    # the margin as the true loss: z = 2.4, p = .0164; alone it is refused, of five it is not
    one = statistics.StudentTest(0.0, 0.01 / 2.4, np.inf)
    assert decisions([one], [0.01]) == ["not worse"]
    assert decisions([one] * 5, [0.01] * 5) == ["not known"] * 5
    assert decisions([one] * 5, [0.01] + [None] * 4)[0] == "not worse"


def test_what_would_decide_is_the_nearer_claim():
    # -0.004 with 5,000 items, standard error .004: nothing is known within a margin of .01
    (found,) = judged([statistics.StudentTest(-0.004, 0.004, np.inf)], [0.01], [5000])
    assert found.decision == "not known"
    shift = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    # .006 from the observed loss to the margin; to zero it is .004
    assert found.items_needed == np.ceil((shift * 0.004 / 0.006) ** 2 * 5000)


def test_the_joint_verdict_is_that_of_the_mean_and_of_one_benchmark_its_own_interval():
    test = statistics.McNemarTest(500, 20, 35)
    assert statistics.joint_verdict([test], None).interval == pytest.approx(test.interval())
    tests = [statistics.StudentTest(-0.01, 0.01, np.inf)] * 9
    found = statistics.joint_verdict(tests, 0.02)
    assert found.interval == pytest.approx((-0.01 - 1.959964 * 0.01 / 3, -0.01 + 1.959964 * 0.01 / 3))
    assert (found.decision, statistics.joint_verdict(tests, None).decision) == ("not worse", "worse")


def test_another_run_or_another_item():
    """A difference of .02 with an error of .01, of whose square .00008 is noise of 4 runs each: .00032 with one.

    With R runs the squared error is .00002 + .00032 / R; 4 times out of 5 it takes (.02 / 2.8016)² = .00005096."""
    part, test = statistics.SamplingPart(0.00008, 0.00032, np.inf), statistics.StudentTest(0.02, 0.01, np.inf)
    room = (0.02 / (stats.norm.ppf(0.975) + stats.norm.ppf(0.8))) ** 2 - 0.00002
    assert part.runs_needed(test, 0.02) == np.ceil(0.00032 / room) == 11
    # .0000183 < .00002: the items alone are too few
    assert part.runs_needed(test, 0.012) is statistics.RUNS_DO_NOT_DECIDE
    (found,) = judged([statistics.StudentTest(0.018, 0.01, np.inf)], [None], [500], [part])
    assert found.decision == "not known" and found.runs_needed == np.ceil(0.00032 / (0.81 * (room + 0.00002) - 0.00002))
    (found,) = judged([statistics.StudentTest(0.018, 0.01, np.inf)], [None], [500])
    assert not is_known(found.runs_needed)
