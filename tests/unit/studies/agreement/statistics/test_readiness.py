"""The lead of a group at equal compute: against statsmodels and closed forms, and in simulated worlds."""

import numpy as np
import pytest
from scipy import stats

from lm_validity.config.sections import KNOTS
from lm_validity.studies.agreement.readiness import compute_terms, group_effect, outside_overlap

LOG = np.array(
    [21.26, 21.71, 23.4, 22.75, 21.28, 22.3, 22.44, 21.48, 23.2, 21.34, 22.17, 22.55, 22.29, 22.76, 23.21, 23.87, 21.85,
     22.95, 23.09, 21.88]
)  # fmt: skip
SCORES = np.array(
    [0.271, 0.363, 0.526, 0.342, 0.217, 0.364, 0.414, 0.301, 0.53, 0.244, 0.322, 0.33, 0.312, 0.44, 0.486, 0.574, 0.33,
     0.38, 0.402, 0.332]
)  # fmt: skip
PREPARED = np.array(
    [0.308, 0.373, 0.582, 0.332, 0.171, 0.393, 0.443, 0.29, 0.491, 0.255, 0.197, 0.365, 0.337, 0.358, 0.489, 0.526,
     0.368, 0.278, 0.356, 0.367]
)  # fmt: skip
FAMILIES = np.arange(20) % 7
GROUP = (FAMILIES < 3).astype(int)
TERMS = compute_terms(10**LOG, KNOTS)
DESIGN = np.column_stack([GROUP, TERMS])


def effect(scores=SCORES, group=GROUP, terms=TERMS, families=FAMILIES):
    return group_effect(scores, group, terms, families)


def test_the_coefficient_is_that_of_statsmodels_and_its_error_the_jackknifes():
    # OLS(...).fit() of statsmodels 0.15.0
    found = effect()
    assert (found.value, found.models) == (pytest.approx(0.061417472974263074, rel=1e-9), 20)
    rest = [one != FAMILIES for one in range(7)]
    without = np.array([np.linalg.lstsq(DESIGN[rows], SCORES[rows], rcond=None)[0][0] for rows in rest])
    assert found.standard_error == pytest.approx(np.sqrt(6 / 7 * np.sum((without - found.value) ** 2)), rel=1e-9)


def test_with_families_of_one_the_second_test_is_hc2_with_bell_and_mccaffreys_degrees_of_freedom():
    # HC2 of statsmodels' OLS; the degrees of freedom from the full matrices of their paper
    inverse = np.linalg.inv(DESIGN.T @ DESIGN)
    hat = DESIGN @ inverse @ DESIGN.T
    weights = (inverse @ DESIGN.T)[0] / np.sqrt(1 - np.diag(hat))
    hc2 = np.sqrt(np.sum((weights * (SCORES - hat @ SCORES)) ** 2))
    parts = weights[:, None] * (np.eye(20) - hat)
    eigenvalues = np.linalg.eigvalsh(parts @ parts.T)
    freedom = eigenvalues.sum() ** 2 / np.sum(eigenvalues**2)
    found = effect(families=np.arange(20))
    reach = max(stats.t.ppf(0.975, freedom) * hc2, stats.t.ppf(0.975, 19) * found.standard_error)
    assert (found.high - found.low) / 2 == pytest.approx(reach, rel=1e-9)


def test_p_and_interval_never_contradict_each_other():
    """Groups of three models, one in each of three large families: p and interval came from tests that disagreed."""
    rng = np.random.default_rng(10)
    families, close = np.repeat(np.arange(12), [8, 7, 6, 5, 4, 3, 2, 1, 1, 1, 1, 1]), 0
    group = np.isin(np.arange(len(families)), [7, 14, 20]).astype(float)
    for _ in range(60):
        terms = compute_terms(10 ** rng.uniform(21, 24, len(families)), KNOTS)
        scores = 0.04 * rng.standard_normal(12)[families] + 0.03 * rng.standard_normal(len(families))
        found = effect(scores, group, terms, families)
        assert (found.p <= 0.05) == (not found.low <= 0 <= found.high)
        for end in (found.low, found.high):  # each end is the value that the test refuses at exactly 5%
            assert effect(scores - end * group, group, terms, families).p == pytest.approx(0.05, rel=1e-6)
        close += found.p < 0.2
    assert close > 3


def test_benchmarks_together_have_the_mean_of_their_leads():
    both = np.column_stack([SCORES, PREPARED])
    apart = [effect(column).value for column in both.T]
    assert effect(both).value == pytest.approx(np.mean(apart))
    assert effect(np.column_stack([SCORES, SCORES])).p == pytest.approx(effect().p)  # no evidence from a copy
    both[:, 1] = np.nan
    assert effect(both) == pytest.approx(effect())


@pytest.mark.parametrize(
    ("families", "inside", "error", "interval"),
    [(5, 3, True, False), (6, 3, True, True), (6, 2, True, False), (7, 1, False, False)],
)
def test_an_interval_needs_six_families_three_on_either_side_and_an_error_two(families, inside, error, interval):
    of = np.arange(20) % families
    found = effect(group=(of < inside).astype(int), families=of)
    assert np.isfinite(found.value) and np.isfinite(found.standard_error) == error
    assert np.isfinite([found.low, found.high, found.p]).tolist() == [interval] * 3


def test_a_group_that_cannot_be_told_from_compute_has_no_lead():
    nothing = np.full(20, np.nan)
    for change in ({"group": np.ones(20)}, {"scores": nothing}, {"terms": compute_terms(nothing, KNOTS)}):
        assert np.isnan(effect(**change).value)


def test_overlap_counts_the_models_beyond_the_other_side():
    compute, group = np.array([1.0, 2, 3, 4, 9, np.nan]), np.array([0, 1, 0, 1, 1, 1])
    inside, outside = compute[group == 1], compute[group == 0]
    assert (outside_overlap(inside, outside), outside_overlap(outside, inside)) == (2, 1)  # 4, 9 above 3; 1 below 2
    assert outside_overlap(compute, compute[:0]) == 5


# ----------------------------------------------------------------------------------------------------------------------
# Simulated worlds. A model's scores share its family's and its own ability; direct evaluation adds what the family and
# the model saw of the test.


def world(rng, models, families, inside, *, gap=0.0, ability=0.0):
    """(terms, group, families, direct, after); `inside`: families in the group, which have seen the test (`gap`) and
    are better (`ability`)."""
    of = np.concatenate([np.arange(families), rng.integers(families, size=models - families)])
    group = np.isin(of, rng.choice(families, inside, replace=False)).astype(int)
    log = rng.uniform(20.5, 24, models)
    after = 0.25 + 0.12 * np.maximum(log - 21.5, 0) + ability * group
    after += rng.normal(0, 0.04, families)[of] + rng.normal(0, 0.03, models)
    seen = gap * group + rng.normal(0, 0.03, families)[of] + rng.normal(0, 0.03, models)
    return compute_terms(10**log, KNOTS), group, of, after + seen, after


SIZES = [(12, 6, 3), (20, 6, 3), (53, 6, 3), (20, 20, 8), (53, 20, 8)]


@pytest.mark.slow
@pytest.mark.parametrize(("models", "families", "inside"), SIZES)
def test_false_alarms_stay_within_five_percent(models, families, inside):
    worlds, refused, rng = 1000 if families < 20 else 400, 0, np.random.default_rng([models, families])
    for _ in range(worlds):
        terms, group, of, direct, after = world(rng, models, families, inside)
        refused += group_effect(after - direct, group, terms, of).p <= 0.05
    # not more than 5%, as far as so many worlds can tell
    assert stats.binomtest(refused, worlds, 0.05, alternative="greater").pvalue > 0.01, refused / worlds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("models", "families", "inside", "power"), [(53, 20, 8, 0.95), (20, 20, 8, 0.85), (20, 6, 3, 0.25)]
)
def test_the_papers_effect_is_found(models, families, inside, power):
    """0.17 on GSM8K, and an interval of 95% that holds it."""
    rng, found = np.random.default_rng([models, families, 1]), []
    for _ in range(100):
        terms, group, of, direct, after = world(rng, models, families, inside, gap=0.17)
        found.append(group_effect(after - direct, group, terms, of))
    assert np.mean([one.p <= 0.05 for one in found]) > power
    bounded = [one for one in found if np.isfinite(one.low)]
    covered = sum(one.low <= -0.17 <= one.high for one in bounded)
    assert stats.binomtest(covered, len(bounded), 0.95, alternative="less").pvalue > 0.01, covered / len(bounded)
