"""What one benchmark tells, and how its models were prompted."""

from collections import Counter

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from scipy import stats
from tests.unit.studies.agreement.conftest import DIRECT, by_subject, run, score_rows, written

from lm_validity.config.sections import Reports
from lm_validity.results.put import Rows
from lm_validity.studies.agreement.benchmarks import expected_range, put_prompt_ranges
from lm_validity.studies.agreement.report import report_agreement
from lm_validity.studies.agreement.score_matrix import read_score_matrix
from lm_validity.studies.agreement.statistics import noise
from lm_validity.studies.agreement.statistics.ranking import pair_signs
from lm_validity.tables.counted import Sources
from lm_validity.tables.schema import SELECTIONS, read_scores, write_table

EVERY = ~np.eye(12, dtype=bool)


def separated_share(significant, known, within):
    return noise.separated_shares(significant[None], known[None], within)[0]


def test_reliability_is_the_share_that_is_no_noise_and_its_interval_covers_the_truth():
    scores, stderr = np.array([0.1, 0.2, 0.3, 0.4]), np.full(4, 0.05)
    found = noise.reliability(scores, stderr)
    assert found.value == pytest.approx(1 - 0.0025 / scores.var(ddof=1))
    assert found.interval.low <= found.value <= found.interval.high <= 1
    assert noise.reliability(scores, np.full(4, 1.0)).value == 0
    assert all(np.isnan(noise.reliability(*of).value) for of in ((scores[:2], stderr[:2]), (np.ones(4), stderr)))
    rng, covered = np.random.default_rng(1), 0
    for _ in range(300):
        scores = rng.normal(0, np.sqrt(0.8), 15) + rng.normal(0, np.sqrt(0.2), 15)
        low, high = noise.reliability(scores, np.full(15, np.sqrt(0.2))).interval
        covered += low <= 0.8 <= high
    assert covered >= 0.9 * 300


def test_share_of_separated_pairs():
    rng, known = np.random.default_rng(0), np.ones((12, 12), dtype=bool)
    significant = np.triu(rng.random((12, 12)) < 0.5, 1)
    significant |= significant.T
    found, everything = (separated_share(pairs, known, EVERY) for pairs in (significant, known))
    assert found.value == significant[np.triu_indices(12, 1)].mean()
    assert 0 < found.interval.low < found.value < found.interval.high < 1
    assert (everything.value, everything.interval.high) == (1, 1)
    assert everything.interval.low == pytest.approx(stats.beta.ppf(0.025, 12, 1))  # 12 models, not 66 pairs
    assert np.isnan(separated_share(significant, known, ~known).value)
    known[0] = known[:, 0] = False  # a model without a standard error: its pairs are not counted
    share = separated_share(significant & known, known, EVERY).value
    assert share == significant[1:, 1:][np.triu_indices(11, 1)].mean()


def test_share_interval_covers_where_pairs_share_models():
    """The share of pairs further apart than 1 of normal models, over draws of the models."""
    rng, truth, covered = np.random.default_rng(2), 2 * stats.norm.sf(1 / np.sqrt(2)), 0
    for _ in range(300):
        ability = rng.normal(size=20)
        apart = np.abs(np.subtract.outer(ability, ability)) > 1
        low, high = separated_share(apart, np.ones((20, 20), dtype=bool), ~np.eye(20, dtype=bool)).interval
        covered += low <= truth <= high
    assert covered >= 0.92 * 300


def test_tau_with_others_is_scipys():
    rng = np.random.default_rng(3)
    scores = rng.integers(0, 6, size=(12, 4)).astype(float)
    scores[2, 1] = np.nan
    found = noise.tau_with_others(scores, EVERY)
    for j in range(4):
        taus = []
        for other in set(range(4)) - {j}:
            both = np.isfinite(scores[:, j] + scores[:, other])
            taus.append(stats.kendalltau(scores[both, j], scores[both, other]).statistic)
        assert found[j].value == pytest.approx(np.mean(taus))
        assert found[j].interval.low < found[j].value < found[j].interval.high


GROUP = np.repeat([0.0, 10.0], 6)
SAME = np.equal.outer(GROUP, GROUP) & EVERY
DISTANCES = (SAME, EVERY & ~SAME, EVERY)


def test_tau_at_a_distance_counts_only_such_pairs():
    """Two benchmarks agree between two groups of models and contradict each other within them."""
    order = np.tile(np.arange(6.0), 2)
    scores = np.column_stack([GROUP + order, GROUP - order])
    within, between, _ = (noise.tau_with_others(scores, mask)[0].value for mask in DISTANCES)
    assert (within, between) == (-1, 1) and np.isnan(noise.tau_with_others(scores, EVERY & False)[0].value)


def test_noise_ceiling_at_a_distance_is_that_of_such_pairs():
    """Noise hides the order within two groups of models, not that between them."""
    ability = (GROUP + np.tile(np.linspace(0, 0.5, 6), 2))[:, None]
    scores = np.hstack([ability + np.random.default_rng(4).normal(0, 0.5, (12, 3)), np.ones((12, 1))])
    signs = pair_signs(scores)
    groups = SAME[signs.first, signs.second].astype(int)
    ceiling = noise.noise_ceiling(scores, np.full(scores.shape, 0.5), np.random.default_rng(5), groups=groups)
    near, far, every = (noise.ceiling_with_others(signs, ceiling.expected, mask) for mask in DISTANCES)
    assert every[:3] == pytest.approx(ceiling.by_benchmark[:3], abs=1e-5)
    assert (near[:3] < 0.5).all() and (far[:3] > 0.99).all()
    # the correlation within groups is 0.029 / (0.029 + 0.25): (36 + 30 · 2/π asin(0.104)) / 66 of all pairs
    assert every[:3] == pytest.approx(np.full(3, 0.576), abs=0.1)
    assert np.isnan([near[3], far[3], every[3]]).all()  # a benchmark on which the models do not differ has none
    assert np.isnan(noise.ceiling_with_others(signs, None, SAME)).all()


def test_resolution_in_closed_form():
    errors = np.array([0.01, 0.01, 0.01])
    smallest = noise.smallest_difference(errors)
    assert smallest == pytest.approx((1.959964 + 0.841621) * np.sqrt(2) * 0.01, rel=1e-5)
    difference, variance = noise.typical_difference(np.array([0.0, 0.1, 0.2]), errors, EVERY[:3, :3])
    assert variance == pytest.approx(2e-4) and difference == pytest.approx(np.sqrt(0.02 - 2e-4))
    # with the items needed, the smallest difference is the typical one
    needed = noise.items_needed(1000, difference, variance)
    assert noise.smallest_difference(errors * np.sqrt(1000 / needed)) == pytest.approx(difference)
    assert noise.typical_difference(np.zeros(3), errors, EVERY[:3, :3])[0] == 0


def ranges(tmp_path, change=lambda scores: scores) -> Rows:
    """Three models on `a` under two wordings, one .1 better, and in chat; on `b` under its own only."""
    rows = [
        (model, "a", prompt, variant, base + gain)
        for model, base in zip(("m1", "m2", "m3"), (0.5, 0.6, 0.7), strict=True)
        for prompt, variant, gain in (("plain", None, 0.0), ("plain", "other", 0.1), ("chat", None, 0.02))
    ] + [(model, "b", "plain", None, 0.5) for model in ("m1", "m2", "m3")]
    frame = pd.DataFrame(rows, columns=["model", "benchmark", "prompt", "prompt_variant", "value"])
    selected = (frame["prompt"] == "plain") & frame["prompt_variant"].isna()
    frame = frame.assign(protocol="direct", split="test", metric="acc", checkpoint="final", selected=selected)
    sheets = "model\nm1\nm2\nm3\n", "benchmark,metric,output_type\na,acc,multiple_choice\nb,acc,multiple_choice\n"
    matrix = read_score_matrix(Sources(*written(tmp_path, frame, *sheets)))
    rows = Rows("agreement")
    put_prompt_ranges(rows, change(read_scores(tmp_path / "scores.parquet")), matrix)
    return rows


BY_CHANCE = 0.02 * 3 / np.sqrt(np.pi)  # the expected range of three independent normal numbers: 3 / √π of their sd


@pytest.mark.parametrize(
    ("change", "by_chance"),
    [
        (lambda scores: scores, np.nan),
        (lambda scores: scores.assign(stderr=0.02), BY_CHANCE),
        (lambda scores: scores.assign(stderr=[np.nan, *[0.02] * (len(scores) - 1)]), np.nan),
        # of sampled runs, at the score of their prompt less .05, 0 and plus .05, that of their means
        (lambda scores: pd.concat([scores.assign(run=run, value=scores["value"] + run / 20 - 0.05, stderr=0.02)
                                   for run in range(3)]), BY_CHANCE),
    ],
)  # fmt: skip
def test_range_over_prompts_and_what_chance_would_make_of_it(tmp_path, change, by_chance):
    found = ranges(tmp_path, change)
    assert by_subject(found, "prompt_range") == {"a": pytest.approx(0.1), "b": None}
    assert (found.row("prompt_range", subject="a").n, found.value("prompts", subject="a")) == (3, 3)
    value = found.value("prompt_range_by_chance", subject="a")
    assert value == pytest.approx(by_chance, rel=1e-6, nan_ok=True)
    assert expected_range(2) == pytest.approx(2 / np.sqrt(np.pi), rel=1e-6)


def test_the_prompts_of_instruction_tuned_models_are_shown_with_their_validation_scores(tmp_path, monkeypatch):
    rows = score_rows().assign(prompt="plain")
    tuned = rows[(rows["model"] == "m3") & (rows["protocol"] == DIRECT) & (rows["benchmark"] != "wiki")]
    validation = [
        tuned.assign(split="validation", prompt=prompt, value=value, selected=prompt == "chat")
        for prompt, value in (("plain", 0.3), ("chat", 0.5))
    ]
    chosen = {"seed": 0, "metric": "acc,none", "direct_validation_value": 0.5, "benchmark": "a"}
    columns = ("model", "prompt", "learning_rate", "epoch", "validation_value", "selected", "diverged")
    tried = [
        ("m3", "plain", None, None, 0.5, False, False),
        ("m3", "plain", "1e-3", 2, 0.6, False, False),
        ("m3", "chat", "1e-3", 3, 0.7, True, False),
        ("m3", "chat", "3e-3", 1, 0.9, False, True),
        ("m1", "plain", "1e-3", 2, 0.6, False, False),
    ]
    selections = pd.DataFrame([chosen | dict(zip(columns, values, strict=True)) for values in tried])
    write_table(selections, SELECTIONS, tmp_path / "selections.parquet")
    run(tmp_path, pd.concat([rows, *validation]))
    read, times = pq.read_table, Counter()
    monkeypatch.setattr("pyarrow.parquet.read_table", lambda path: times.update([path.name]) or read(path))
    sources = Sources(*(tmp_path / name for name in ("scores.parquet", "models.csv", "benchmarks.csv")))
    report_agreement(sources, tmp_path / "report", Reports(resamples=0), tmp_path / "selections.parquet")
    assert times == {"scores.parquet": 1, "selections.parquet": 1}  # all scores; those that count are remembered
    table = pd.read_csv(tmp_path / "report" / "tables" / "prompts.csv")
    assert list(table["benchmark"]) == ["a", "b", "c", "a"] and set(table["model"]) == {"m3"}
    assert (table["chosen"] == "chat").all() and list(table["test"]) == [0.4, 0.4, 0.1, 0.4]
    assert list(table["plain"]) == [0.3, 0.3, 0.3, 0.6] and list(table["chat"]) == [0.5, 0.5, 0.5, 0.7]
    assert table["epoch"].iloc[3] == 3 and table["learning_rate"].iloc[3] == 1e-3
    html = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "for 3 of 3 choices under direct evaluation and for 1 of 1" in html
