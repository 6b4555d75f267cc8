"""What a curve that learns nothing scores, and scores at chance: random walks, standard errors, the sheet's chance."""

import json

import numpy as np
import pandas as pd
import pytest
from signal_world import MODELS, models_sheet

from lm_validity.config.sections import Reports
from lm_validity.errors import InputError
from lm_validity.missing import Missing, is_known
from lm_validity.studies.signal.report import analyze_signal, report_signal, signal
from lm_validity.studies.signal.statistics.quality import (
    above_chance_from,
    drawn_around,
    exceedance_p,
    shuffled_quality,
    signal_quality,
    walked_quality,
)
from lm_validity.studies.signal.statistics.ranking import separable_pairs, settled_from, settling_interval
from lm_validity.tables.schema import SCORES, write_table

NAMES = tuple(f"step-{i}" for i in range(20))


# ---- random walks ------------------------------------------------------------------------------------------------


def rejected(curves, null):
    """Share of curves (draws, n) with p <= 0.05 against a null's draws."""
    p = [exceedance_p(float(signal_quality(curve).signal_quality), null(curve)) for curve in curves]
    return np.mean(np.array(p) <= 0.05)


def test_random_walks_are_more_than_white_noise_but_not_more_than_random_walks():
    rng = np.random.default_rng(0)
    walks = np.cumsum(rng.standard_normal((150, 20)), axis=1)
    assert rejected(walks, lambda curve: shuffled_quality([curve], 199, rng)[:, 0]) > 0.5
    assert rejected(walks, lambda curve: walked_quality([curve], [NAMES], 199, rng)[:, 0]) <= 0.05 + 2 * 0.018


def test_a_curve_that_climbs_steadily_is_more_than_a_random_walk():
    rng = np.random.default_rng(1)
    climbs = np.sqrt(np.arange(20)) + 0.1 * rng.standard_normal((20, 20))
    assert rejected(climbs, lambda curve: walked_quality([curve], [NAMES], 199, rng)[:, 0]) > 0.9


def test_models_share_the_signs_of_their_steps():
    curve = np.cumsum(np.random.default_rng(2).standard_normal(20))
    draws = walked_quality([curve, 3 * curve - 1, curve[:10]], [NAMES, NAMES, NAMES[:10]], 50, np.random.default_rng(0))
    np.testing.assert_allclose(draws[:, 0], draws[:, 1])
    # to the tenth checkpoint the same signs; another model's own checkpoints have signs of their own
    alone = walked_quality([curve[:10]], [NAMES[:10]], 50, np.random.default_rng(0))
    assert draws.shape == (50, 3) and np.isfinite(draws).all() and not np.allclose(draws[:, 2], draws[:, 0])
    assert alone.shape == (50, 1)


def test_walks_keep_the_first_value_and_the_sizes_of_steps():
    curve = np.array([1.0, 4.0, 4.5, 4.0, 9.0, 9.0, 8.0, 7.0])
    found = {
        round(float(value), 9) for value in walked_quality([curve], [NAMES[:8]], 400, np.random.default_rng(0))[:, 0]
    }
    steps = np.diff(curve)
    possible = set()
    for code in range(2**7):
        signs = np.array([1 if code >> bit & 1 else -1 for bit in range(7)])
        walk = np.concatenate([[1.0], 1.0 + np.cumsum(signs * steps)])
        possible.add(round(float(signal_quality(walk).signal_quality), 9))
    assert found <= possible and len(found) > 20


# ---- chance ------------------------------------------------------------------------------------------------------


def test_above_chance_for_good():
    values, errors = np.array([0.30, 0.50, 0.26, 0.31, 0.40]), np.full(5, 0.02)
    assert above_chance_from(values, errors, 0.25) == 3
    assert above_chance_from(values, np.full(5, 0.1), 0.25) is None
    assert above_chance_from(values, np.zeros(5), 0.25) == 0


def test_draws_by_standard_errors():
    draws = drawn_around(np.array([0.2, 0.8]), np.array([0.01, 0.0]), 4000, np.random.default_rng(0))
    assert draws[:, 0].std() == pytest.approx(0.01, rel=0.05) and (draws[:, 1] == 0.8).all()
    assert np.corrcoef(draws[:, 0], np.roll(draws[:, 0], 1))[0, 1] == pytest.approx(0, abs=0.05)


# ---- the report --------------------------------------------------------------------------------------------------


NO_DIRECTION = ("bits", "walk", "short")


def write_scores(folder, values, errors=None, sheet="benchmark,metric,chance\nfacts,acc,0.25\n"):
    """Scores of all models on `facts` from curves {model: (n,)}, with standard errors, and a benchmarks sheet. Of the
    metric `own` of `bits`, `walk*` and `short`, nothing says the direction."""
    metrics = {name: "own,none" if name.rstrip("0123456789") in NO_DIRECTION else "acc,none" for name in values}
    rows = [
        {"model": model, "checkpoint": f"step-{i}", "iteration": 1000 * i, "tokens_b": 10.0 * i, "benchmark": benchmark,
         "protocol": "direct", "metric": metrics[benchmark], "value": value, "stderr": errors}
        for benchmark, curves in values.items() for model, curve in curves.items()
        for i, value in enumerate(curve, start=1)
    ]  # fmt: skip
    write_table(pd.DataFrame(rows), SCORES, folder / "scores.parquet")
    models_sheet().to_csv(folder / "models.csv", index=False)
    (folder / "benchmarks.csv").write_text(sheet)
    return folder / "scores.parquet", folder / "models.csv", folder / "benchmarks.csv"


def climbing(top):
    return {model: np.linspace(0.25, top + 0.01 * place, 16) for place, model in enumerate(MODELS)}


def drifting(seed):
    rng = np.random.default_rng(seed)
    return {model: 0.25 + 0.01 * np.cumsum(rng.standard_normal(16)) / 4 for model in MODELS}


def test_benchmarks_at_chance_are_not_among_those_that_rise(tmp_path):
    drifts = {f"chance{seed}": drifting(seed) for seed in range(6)}
    # with 470 items the error is 0.02; without their number it would be 14 times the scatter of a drift
    sheet = "benchmark,metric,chance,n_items\n" + "".join(f"{name},acc,0.25,470\n" for name in ("facts", *drifts))
    paths = write_scores(tmp_path, {"facts": climbing(0.6), **drifts}, 0.02, sheet)
    report_signal(paths[0], paths[1], tmp_path / "r", paths[2], section=Reports(resamples=400))
    found = json.loads((tmp_path / "r" / "summary.json").read_text())["benchmarks"]
    assert found["facts"]["signal_quality_walk_p"] < 0.05 and found["facts"]["models_above_chance"] == 4
    assert {found[name]["models_above_chance"] for name in drifts} == {0}
    assert {name for name, entry in found.items() if entry["steady"]} == {"facts"}
    assert np.mean([found[name]["signal_quality_null_p"] < 0.05 for name in drifts]) >= 0.5
    # 0.25 + 0.02 * 1.96 lies between the second and the third of sixteen steps up
    assert found["facts"]["above_chance_from_b"] == 30.0
    page = json.loads((tmp_path / "r" / "page.json").read_text())
    sentences = [finding["sentence"] for finding in page["findings"]]
    assert any("1 of 7 benchmarks (facts)" in text for text in sentences)
    assert any("6 of 7 benchmarks" in text for text in sentences)
    # of models that all guess there is no order to settle
    assert [text for text in sentences if "told apart" in text and "chance" not in text]


def test_standard_errors_give_intervals_where_there_are_no_items(tmp_path):
    paths = write_scores(tmp_path, {"facts": climbing(0.6)}, 0.02)
    found = signal(analyze_signal(*paths, section=Reports(resamples=100)))[1]
    entry = found.benchmarks["facts"]
    assert entry.interval_source == "standard errors"
    assert entry.signal_quality_interval[0] < entry.signal_quality <= entry.signal_quality_interval[1]
    assert is_known(found.ranking["facts"].nearly_stable_from_interval_b)
    without = signal(analyze_signal(*write_scores(tmp_path, {"facts": climbing(0.6)}), section=Reports(resamples=100)))[
        1
    ]
    assert isinstance(without.benchmarks["facts"].signal_quality_interval, Missing)
    assert isinstance(without.benchmarks["facts"].models_above_chance, Missing)
    assert without.benchmarks["facts"].chance == 0.25
    assert isinstance(without.ranking["facts"].nearly_stable_from_interval_b, Missing)


def test_standard_errors_far_beyond_the_scatter_of_the_curves_are_not_used(tmp_path):
    """As of a mean over subjects whose error is that of one subject."""
    found = signal(
        analyze_signal(*write_scores(tmp_path, {"facts": drifting(0)}, 0.02), section=Reports(resamples=100))
    )[1]
    assert [(one.benchmark, one.code, one.scores) for one in found.standard_errors] == [("facts", "beyond_scatter", 80)]
    entry, ranking = found.benchmarks["facts"], found.ranking["facts"]
    assert isinstance(entry.interval_source, Missing) and isinstance(entry.models_above_chance, Missing)
    assert isinstance(ranking.separable_pairs, Missing)


def test_chance_of_a_metric_that_is_better_when_lower(tmp_path):
    sheet = "benchmark,metric,higher_is_better,chance\nfacts,acc,0,0.75\n"
    errors = {model: 1 - values for model, values in climbing(0.6).items()}
    found = signal(
        analyze_signal(*write_scores(tmp_path, {"facts": errors}, 0.02, sheet), section=Reports(resamples=0))
    )[1]
    assert found.benchmarks["facts"].models_above_chance == 4 and found.benchmarks["facts"].chance == 0.75


def rows_of_steady(folder, benchmark):
    rows = pd.read_parquet(folder / "results.parquet")
    return list(rows[(rows["quantity"] == "steady") & (rows["subject"] == benchmark)].itertuples())


def quality_sentences(paths, folder):
    report_signal(paths[0], paths[1], folder, paths[2], section=Reports(resamples=20))
    return [finding["sentence"] for finding in json.loads((folder / "page.json").read_text())["findings"]]


def test_a_score_that_falls_steadily_is_asked_for_its_direction(tmp_path):
    """Bits per byte: with a known direction they improve, without one nothing is said of them but the question."""
    bits = {model: 2 - values for model, values in climbing(0.6).items()}
    falls, both = {"bits": bits}, {"facts": climbing(0.6), "bits": bits}
    for name, known, curves in (("no", "", both), ("yes", "0", both), ("alone", "", falls)):
        (tmp_path / name).mkdir()
        sheet = f"benchmark,metric,higher_is_better,chance\nfacts,acc,1,0.25\nbits,own,{known},\n"
        paths = write_scores(tmp_path / name, curves, 0.02, sheet)
        _, summary = signal(analyze_signal(*paths, section=Reports(resamples=0)))
        entry = summary.benchmarks["bits"]
        assert entry.direction_assumed == (not known) and abs(entry.rank_correlation) == 1
        # FineTasks' monotonicity is not cut off at 0
        assert summary.criteria["bits"].finetasks.monotonicity == pytest.approx(1 if known else -1)
        first, *others = quality_sentences(paths, tmp_path / name / "r")
        assert ("?" in first and "bits" in first) == (not known)
        (steady,) = rows_of_steady(tmp_path / name / "r", "bits")
        assert (pd.isna(steady.value), bool(steady.value == 1)) == (not known, bool(known))
        compared = [one for one in (first, *others) if "1.00" in one]
        assert any("bits" in one or "2 benchmarks" in one for one in compared) == bool(known)


def test_a_drift_that_falls_by_chance_is_asked_for_nothing(tmp_path):
    """Random walks that all models share: half of them end below where they began, three in ten by a rank correlation
    of -.5. Three checkpoints of noise fall as often."""
    steps = np.random.default_rng(1).normal(0, 0.02, (8, 10))
    drifts = {f"walk{index}": {"large-deep": 0.5 + walk} for index, walk in enumerate(np.cumsum(steps, axis=1))}
    short = {"short": {"large-deep": np.array([0.52, 0.50, 0.49])}}
    for curves in (drifts, short):
        paths = write_scores(tmp_path, curves, 0.02, "benchmark,metric\n" + "".join(f"{name},own\n" for name in curves))
        data = analyze_signal(*paths, section=Reports(resamples=200))
        down = [name for name, entry in data.benchmarks.items() if entry.rank_correlation <= -0.5]
        assert len(down) >= (3 if curves is drifts else 1) and data.falling == []


def test_a_chance_level_that_some_model_passes_everywhere_is_said_so(tmp_path):
    low = {model: np.full(16, 0.25) for model in MODELS}
    sheet = "benchmark,metric,chance\nfacts,acc,0.25\nlow,acc,0.25\n"
    for curves, expected in ((low | {"large-deep": climbing(0.6)["large-deep"]}, "On each of 2"), (low, "on 1 of 2")):
        paths = write_scores(tmp_path, {"facts": climbing(0.6), "low": curves}, 0.02, sheet)
        assert any(expected in one for one in quality_sentences(paths, tmp_path / "r"))


@pytest.mark.parametrize("value", ["25", "-0.1", "1", "nan", "a quarter"])
def test_a_chance_that_is_no_fraction_is_named(tmp_path, value):
    paths = write_scores(tmp_path, {"facts": climbing(0.6)}, 0.02, f"benchmark,chance\nfacts,{value}\n")
    with pytest.raises(InputError, match="row 2, column 'chance'"):
        analyze_signal(*paths, section=Reports(resamples=0))


def test_the_order_of_equal_models_is_not_called_late(tmp_path):
    """Two equal models beside two that differ; on `equal` all are."""
    rng = np.random.default_rng(0)
    levels = dict(zip(MODELS, (0.3, 0.5, 0.7, 0.7, 0.3), strict=True))
    apart = {model: level + 0.005 * rng.standard_normal(16) for model, level in levels.items()}
    equal = {model: 0.5 + 0.005 * rng.standard_normal(16) for model in MODELS}
    sheet = "benchmark,metric\nfacts,acc\nequal,acc\n"
    paths = write_scores(tmp_path, {"facts": apart, "equal": equal}, 0.01, sheet)
    report_signal(paths[0], paths[1], tmp_path / "r", paths[2], section=Reports(resamples=200))
    found = json.loads((tmp_path / "r" / "summary.json").read_text())["ranking"]
    assert (found["facts"]["pairs"], found["facts"]["separable_pairs"]) == (6, 5)
    assert found["facts"]["settled_from_b"] == 10.0 < found["facts"]["stable_from_b"]
    assert found["equal"]["separable_pairs"] == 0 and found["equal"]["settled_from_b"] is None
    page = json.loads((tmp_path / "r" / "page.json").read_text())
    assert any("no two models can be told apart at the end on equal" in f["sentence"] for f in page["findings"])


def test_windows_fit_a_training_that_ends_before_the_later_window(tmp_path):
    """Up to 160 billion tokens: the base window has checkpoints, the later one has none."""
    paths = write_scores(tmp_path, {"facts": climbing(0.6)}, 0.02)
    entry = signal(analyze_signal(*paths, section=Reports(resamples=50)))[1].ranking_consistency["facts"]
    assert isinstance(entry.value, Missing) and entry.fitted.value == 1.0
    # 16 to 32 billion tokens, and from 35.2
    assert {(pair.base_checkpoints, pair.later_checkpoints) for pair in entry.fitted.pairs} == {(2, 13)}
    assert is_known(entry.fitted.interval) and is_known(entry.fitted.item_interval)


def test_a_settling_interval_is_from_differences_beyond_noise():
    """Three models; the first two cross between the second and the third checkpoint, the third is far below."""
    curves = np.array([[0.4, 0.5, 0.6, 0.7, 0.8], [0.5, 0.55, 0.58, 0.6, 0.6], [0.1, 0.1, 0.1, 0.1, 0.1]])
    tokens, every = np.arange(1.0, 6), np.ones(3, dtype=bool)
    noise = np.full((3, 5), 0.03)
    assert settled_from(curves, tokens, every, 0.8) == 3
    # 0.1 is beyond 1.96 * 0.03, 0.05 and 0.02 are not: settled from the second checkpoint, or from the fourth
    assert settling_interval(curves, noise, tokens, every, 0.8) == (2, 4)
    assert settling_interval(curves, 1e-9 * noise, tokens, every, 0.8) == (3, 3)
    # nothing can be told apart at the end
    assert settling_interval(curves, 100 * noise, tokens, every, 0.8) == (1, 5)
    assert np.isnan(settling_interval(curves, noise, tokens, ~every, 0.8)).all()


def test_a_settling_interval_holds_its_value():
    rng = np.random.default_rng(0)
    for _ in range(50):
        curves, noise = np.cumsum(rng.normal(size=(4, 12)), axis=1), np.full((6, 12), rng.uniform(0.1, 3))
        pairs = rng.random(6) < 0.7
        pairs[0] = True
        value = settled_from(curves, np.arange(12.0), pairs, 0.8)
        low, high = settling_interval(curves, noise, np.arange(12.0), pairs, 0.8)
        assert low <= value <= high


@pytest.mark.slow
def test_settling_intervals_hold_the_truth():
    """Six models that rise at different rates towards different ends; half of an item's noise lasts."""
    tokens, held, told = np.arange(1, 17) * 10.0, [], 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        rate, start = rng.uniform(2, 6, size=(6, 1)), 0.25 + 0.02 * rng.normal(size=(6, 1))
        rise = (1 - np.exp(-rate * np.linspace(0.05, 1, 16))) / (1 - np.exp(-rate))
        truth = start + (0.45 + 0.04 * np.arange(6)[:, None] - start) * rise
        draw = np.where(rng.random((6, 16, 1000)) < 0.5, rng.random((6, 16, 1000)), rng.random(1000))
        items = (draw < truth[:, :, None]).astype(float)
        first, second = np.triu_indices(6, 1)
        noise = (items[first] - items[second]).std(axis=2) / np.sqrt(1000)
        separable = separable_pairs(items.mean(axis=2)[:, -1], noise[:, -1])
        low, high = settling_interval(items.mean(axis=2), noise, tokens, separable, 0.8)
        held.append(low <= settled_from(truth, tokens, separable, 0.8) <= high)
        told += high < tokens[-1]
    assert np.mean(held) >= 0.95 and told > 0
