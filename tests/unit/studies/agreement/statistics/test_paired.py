"""Greedy alignment by hand and against its definition; McNemar's test against counts and statsmodels' formula."""

import numpy as np

from lm_validity.studies.agreement.statistics.ranking import paired_signs, significant_signs


def test_mcnemar_by_counts():
    # model 0 alone right on 15 items, model 1 alone on 4: (15 - 4) / sqrt(19) = 2.52; model 2 equals model 0
    both, neither = np.ones(10), np.zeros(8)
    first = np.concatenate([both, neither, np.ones(15), np.zeros(4)])
    second = np.concatenate([both, neither, np.zeros(15), np.ones(4)])
    signs = paired_signs(np.array([first, second, first]))
    assert signs.sign[:, 0].tolist() == [1, 0, -1]
    assert paired_signs(np.array([first, second]), z=2.6).sign[0, 0] == 0


def test_paired_test_uses_common_items_and_beats_the_unpaired_one():
    rng = np.random.default_rng(0)
    difficulty = rng.random(400)
    first = (difficulty < 0.60).astype(float)
    second = (difficulty < 0.57).astype(float)  # right wherever the easier items are: differs on few items only
    unpaired = significant_signs(np.array([[first.mean()], [second.mean()]]), np.full((2, 1), 0.0245))
    assert unpaired.sign[0, 0] == 0
    assert paired_signs(np.array([first, second])).sign[0, 0] == 1
    second[:200] = np.nan
    half = paired_signs(np.array([first, second]))
    assert half.known[0, 0] == 1
    second[:] = np.nan
    assert paired_signs(np.array([first, second])).known[0, 0] == 0


def test_items_of_one_subject_count_together():
    rng = np.random.default_rng(0)
    subjects = np.repeat([f"s{i}" for i in range(12)], 25)
    # the first model is better by a share that differs from subject to subject
    lead = np.repeat(rng.choice([-0.35, 0.5], p=[0.4, 0.6], size=12), 25)
    second = (rng.random(300) < 0.5).astype(float)
    first = np.where(rng.random(300) < np.abs(lead), (lead > 0).astype(float), second)
    correct = np.array([first, second])
    correct[0, ::40] = np.nan
    sums = np.array([np.nansum((correct[0] - correct[1])[subjects == f"s{i}"]) for i in range(12)])
    statistic = abs(sums.sum()) / np.sqrt((sums**2).sum())
    assert abs(paired_signs(correct, z=statistic - 1e-9, clusters=subjects).sign[0, 0]) == 1
    assert paired_signs(correct, z=statistic + 1e-9, clusters=subjects).sign[0, 0] == 0
    assert abs(paired_signs(correct, z=statistic + 1e-9).sign[0, 0]) == 1  # single items claim more
