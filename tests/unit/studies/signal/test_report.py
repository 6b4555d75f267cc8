"""What the signal report finds and shows."""

import json

import numpy as np
import pandas as pd
import pytest
import signal_world
from signal_world import MODELS, World, curve_rows, found_in, item_rows, score_rows, write_scores, write_world

from lm_validity.config.sections import Reports
from lm_validity.errors import InputError
from lm_validity.results.put import UNIQUE
from lm_validity.studies.signal.report import report_signal, settling
from lm_validity.studies.signal.statistics.quality import autocorrelation, signal_quality
from lm_validity.tables.counted import Sources
from lm_validity.tables.schema import SCORES, read_table, write_table

SCIENCE = [model for model, facts in MODELS.items() if facts[2] == "science"]


@pytest.fixture(scope="module")
def found(rising):
    return found_in(rising, resamples=60)


@pytest.fixture(scope="module")
def rows():
    return item_rows(World(items=20, checkpoints=9))


def write(folder, rows, scores=None) -> signal_world.Files:
    files = write_world(folder, items=rows)
    if scores is not None:
        write_table(scores, SCORES, files.scores)
    return files


def test_signal_quality_is_that_of_the_curves(rising, found):
    assert found.models() == set(MODELS)
    for (model, benchmark), rows in read_table(rising.scores, SCORES).groupby(["model", "benchmark"]):
        expected = signal_quality(rows.sort_values("iteration")["value"].to_numpy())
        for name in ("monotonicity", "autocorrelation", "signal_quality"):
            row = found.row(name, benchmark, model=model)
            assert row.value == pytest.approx(float(getattr(expected, name))) and row.n == 12
            assert 0 <= row.low <= row.value <= row.high <= 1
    expected = np.mean([found.value("signal_quality", model=model) for model in SCIENCE])
    assert found.value("signal_quality_mean") == pytest.approx(expected)  # the web model is left out
    assert (found.value("models"), found.value("items"), found.value("chance")) == (4, 120, 0.25)
    assert found.value("signal_quality_mean") > found.value("signal_quality_mean", "noise") + 0.3


def test_the_order_of_models_compliance_and_the_overall_score(found):
    # 20 billion tokens per step up to 240: base 100 to 180, later 220 and 240
    assert found.noted("rests on 2 later checkpoints", "the competition had 47")
    assert found.value("consistency_pairs") == 2 and 0 <= found.value("consistency") <= 1
    low, high = found.ends("nearly_stable_from")
    points = {row.value for row in found.rows.all("point_tokens", subject="facts")}
    assert low <= high and {low, high, found.value("nearly_stable_from")} <= points
    assert found.ends("compliance_raw_gap")[0] > 0
    low, high = found.ends("compliance_raw_gap", "noise")
    assert low < 0 < high
    parts = [found.value(name) for name in ("signal_quality_mean", "consistency", "compliance")]
    assert found.value("overall") == pytest.approx(np.dot([0.5, 0.1, 0.4], parts))
    low, high = found.ends("overall")
    assert low < found.value("overall") < high
    assert found.value("ready") == 1 and found.value("ready_by") == found.ends("settled_from")[1]


def test_filters_are_never_shown_in_sample_only(found):
    places = [row.said for row in found.rows.all("filter_p", subject="noise")]
    assert {place["design"] for place in places} == {"architecture", "size"}
    for place in places:
        trial = {name: found.value(f"filter_{name}", "noise", **place) for name in ("in_sample", "held_out", "p")}
        assert np.isfinite(list(trial.values())).all()
        if place["filter"].startswith("slope") and place["score"] == "confidence_margin":
            assert trial["in_sample"] - trial["held_out"] > 0.2


def test_what_is_written(rising, found, tmp_path):
    report_signal(Sources(rising.scores, rising.models, items=rising.items), tmp_path, Reports(resamples=60))
    assert len(json.loads((tmp_path / "page.json").read_text())["sections"]) == 4
    assert {"in_sample", "held_out", "control_mean"} <= set(pd.read_csv(tmp_path / "tables" / "filters.csv").columns)
    written = pd.read_parquet(tmp_path / "results.parquet")
    assert len(written) and not written.duplicated(list(UNIQUE)).any()
    assert json.loads((tmp_path / "results.json").read_text()) == [row._asdict() for row in found.rows]
    lacks = written["value"].isna() & written["text"].isna() | written["interval_for"].notna() & written["low"].isna()
    assert (written["reason"].notna() == lacks).all() and (written["reason_code"].notna() == lacks).all()


def test_without_resamples_or_items(rising, found):
    bare, skipped = found_in(rising, with_items=False), found_in(rising, resamples=0)
    assert "skipped" in skipped.reason("signal_quality", model="small-deep")
    assert "skipped" in skipped.reason("signal_quality_mean_walk_p")
    for other in (bare, skipped):
        assert other.value("signal_quality_mean") == found.value("signal_quality_mean")
    assert "no items table" in bare.reason("filter_p") and np.isfinite(bare.value("signal_quality_mean_walk_p"))


def test_items_that_do_not_make_the_scores_give_no_interval(tmp_path, rows):
    scores = score_rows(rows)
    summary = found_in(write(tmp_path, rows, scores.assign(value=scores["value"] + 0.01)))
    assert "not the mean over its items" in summary.reason("signal_quality", model="small-deep")


def test_lower_is_better_turns_curves_round(tmp_path, rows):
    scores = score_rows(rows)
    scores["value"], scores["higher_is_better"] = 1 - scores["value"], False
    before = found_in(write(tmp_path / "a", rows), resamples=20)
    after = found_in(write(tmp_path / "b", rows.assign(correct=1 - rows["correct"]), scores), resamples=20)
    for row in before.rows.all("signal_quality"):
        other = after.row("signal_quality", **row.said)
        assert (other.value, other.low, other.high) == pytest.approx((row.value, row.low, row.high))


def test_selection_of_the_competition(tmp_path):
    rows = item_rows(World(items=20, checkpoints=16))
    files = write(tmp_path, rows.assign(iteration=2 * rows["iteration"]))
    summary = found_in(files, resamples=0, checkpoints="e2lm", with_items=False)
    # every 4000 iterations and 20 billion tokens a 2000: 40, 80, ..., 200
    assert {row.n for row in summary.rows.all("signal_quality")} == {5}


TWICE = r"two selected test scores of small-deep on facts \(direct\) at checkpoint 'step-1'"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda scores: pd.concat([scores, scores.head(1)]), TWICE),
        (lambda scores: pd.concat([scores, scores.assign(metric="f1,none")]), r"several metrics .*acc,none.*f1,none"),
        (lambda scores: scores[scores["checkpoint"] == "step-1"], "along training"),
        (lambda scores: scores.assign(model=scores["model"].mask(scores.index == 4)), "row 4, .*'model': empty"),
        (lambda scores: scores.assign(protocol="train_before_test"), "protocol 'direct'"),
        (lambda scores: scores.assign(tokens_b=np.nan, iteration=pd.NA), "whose order is known"),
    ],
)
def test_bad_scores_are_named(tmp_path, rows, change, words):
    files = write(tmp_path, rows, change(score_rows(rows)))
    with pytest.raises(InputError, match=words):
        report_signal(Sources(files.scores, files.models), tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_no_filter_is_judged_by_a_score_that_an_item_of_one_choice_lacks(tmp_path, rows):
    summary = found_in(write(tmp_path, signal_world.with_fewer_choices(rows, rows["doc_id"] == "test:0", 1)))
    for row in summary.rows.all("filter_p"):
        unknown = [np.isnan(summary.value(f"filter_{name}", **row.said)) for name in ("unfiltered", "p")]
        assert unknown == [row.said["score"] != "correct"] * 2
        assert not summary.value("filter_useful", **row.said) or row.said["score"] == "correct"


def analyzed(folder, models, resamples=0, tokens_b=20.0):
    """One benchmark, `facts`, of models {name: (size, architecture, values)}; billions of tokens a checkpoint."""
    curves = {name: values for name, (_, _, values) in models.items()}
    rows = curve_rows({"facts": curves}, lambda model, step: tokens_b * step)
    lines = [f"{name},{size},{shape}\n" for name, (size, shape, _) in models.items()]
    files = write_scores(folder, rows, models="model,size,architecture\n" + "".join(lines))
    found = found_in(files, resamples=resamples)
    return found.data.benchmarks["facts"], found


def unequal_pairs(turning=24):
    """One pair at size s1 whose order turns, three pairs at size s2 whose order stays; `turning`: checkpoints of one
    of the pair."""
    models = {f"s2-{name}": ("s2", name, [0.1 * place] * 24) for place, name in enumerate("abc")}
    return {"s1-a": ("s1", "a", [0.5] * 10 + [0.3] * (turning - 10)), "s1-b": ("s1", "b", [0.4] * 24), **models}


def test_interval_and_coins_of_consistency_give_each_size_one_vote_as_the_value_does(tmp_path):
    benchmark, summary = analyzed(tmp_path, unequal_pairs(), resamples=2000)
    # Orders are constant within the windows, so that no draw of blocks can differ from the value
    assert summary.value("consistency") == 0.5 and summary.ends("consistency") == (0.5, 0.5)
    # Gaps that never change, or once, last as long as the training: one coin per pair, of one pair and of three
    pair = 0.25
    assert benchmark.order_draws.coins.std() == pytest.approx(np.sqrt((pair + pair / 3) / 4), rel=0.05)


def test_consistency_has_no_interval_where_a_pair_of_it_is_too_short_for_blocks(tmp_path):
    _, summary = analyzed(tmp_path, unequal_pairs(14), resamples=20)  # four later checkpoints: 220 to 280
    assert summary.value("consistency") == 0.5 and "fewer than 8 later" in summary.reason("consistency")
    # A pair without any later checkpoint is not in the value, nor in what is missing for the interval
    _, summary = analyzed(tmp_path, unequal_pairs(10), resamples=20)
    assert summary.value("consistency") == 1.0 and summary.ends("consistency") == (1.0, 1.0)


def test_relative_windows_are_shares_of_each_pairs_own_training(tmp_path):
    """The small pair is over at 20 billion tokens (a model of it goes on), the large one at 40."""
    models = {"small-a": ("s", "a", [0.2] * 30), "small-b": ("s", "b", [0.1] * 20)}
    models |= {"large-a": ("l", "a", [0.4] * 40), "large-b": ("l", "b", [0.3] * 40)}
    benchmark, _ = analyzed(tmp_path, models, tokens_b=1.0)
    # base: 2 and 3 (of 20), 4 to 7 (of 40); later: from 4.4 and from 8.8
    windows = {pair.size: tuple(int(mask.sum()) for mask in pair.windows) for pair in benchmark.ranking_pairs}
    assert windows == {"s": (2, 16), "l": (4, 32)}


def test_conventions_change_the_numbers_they_name(rising, found):
    others = {"convention": "paper", "ties": "average", "normalisation": "none", "weights": (1, 0, 0)}
    other = found_in(rising, resamples=0, base_window=(0, 100), later_window=(120, 240), **others)
    scores = read_table(rising.scores, SCORES).query("model == 'small-deep' and benchmark == 'facts'")
    curve = scores.sort_values("iteration")["value"].to_numpy()
    for each, convention in ((found, "code"), (other, "paper")):
        expected = float(autocorrelation(curve, convention))
        assert each.value("autocorrelation", model="small-deep") == pytest.approx(expected)
    assert other.value("compliance") == pytest.approx(max(0, other.value("compliance_raw_gap")))
    assert other.value("compliance_raw_gap") == found.value("compliance_raw_gap")
    assert other.value("overall") == pytest.approx(other.value("signal_quality_mean"))
    # filters count ties as benchmarks do
    for each in (found, other):
        whole = {each.value("filter_unfiltered", **row.said) for row in each.rows.all("filter_p", subject="facts")
                 if row.said["score"] == "correct"}  # fmt: skip
        assert [*whole] == [pytest.approx(each.value("signal_quality_mean"))]


LONG = "a_benchmark_with_a_name_of_" + "eighty_letters_" * 4
NAMES = ["facts", "flat", "שפה", LONG]


def page_of(folder, models=4, names=NAMES, resamples=60, value=None):
    """What is found of a world in which all benchmarks but `flat` rise; models differ in level."""
    rng = np.random.default_rng(0)

    def usual(name, i, step):
        return 0.25 + 0.002 * rng.standard_normal() + (name != "flat") * (0.4 + 0.1 * min(i, 3)) * step / 12

    value = value or usual
    curves = {name: {f"m{i}": [value(name, i, step) for step in range(1, 13)] for i in range(models)} for name in names}
    rows = curve_rows(curves, lambda model, step: 10.0 * step, stderr=0.01, n_items=2000)
    sheet = "model,size,architecture\n" + "".join(f"m{i},{i // 2}b,a{i % 2}\n" for i in range(models))
    listed = "benchmark,metric,chance,higher_is_better\n" + "".join(f"{name},acc,0.25,1\n" for name in names)
    files = write_scores(folder, rows, listed, sheet)
    return found_in(files, folder / "benchmarks.csv", resamples=resamples)


def test_ready_is_the_later_of_above_chance_and_settled_before_the_last_common_point(tmp_path):
    rows = page_of(tmp_path).rows
    for row in rows.all("ready_by"):
        start, settled = (rows.row(name, subject=row.subject) for name in ("above_chance_from_mean", "settled_from"))
        last = max(point.value for point in rows.all("point_tokens", subject=row.subject))
        known = start.value is not None and settled.high is not None
        by = max(start.value, settled.high) if known else None
        assert row.value == (by if known and by < last else None)
        assert (rows.value("ready", subject=row.subject) == 1) == (row.value is not None)
    by = [row.value for row in rows.all("ready_by") if row.value is not None]
    assert by and by == sorted(by)  # the earliest first
    # at chance: not shown, which is no "no"
    assert rows.row("ready", subject="flat").value is None and "No model" in rows.row("ready", subject="flat").reason


@pytest.mark.parametrize(
    ("gaps", "interval", "surely"),
    [
        ([-0.001, *[0.001] * 10, 0.1], (10.0, 120.0), 0),  # any point of training
        ([-0.001, *[0.1] * 11], (10.0, 20.0), 1),
        ([0.1] * 12, (10.0, 10.0), 1),
        ([-0.1, -0.001, *[0.1] * 10], (20.0, 30.0), 1),
    ],
)
def test_an_order_is_settled_before_the_end_where_its_interval_ends_there(tmp_path, gaps, interval, surely):
    found = page_of(tmp_path, 2, ["facts"], resamples=0, value=lambda name, i, step: 0.5 + i * gaps[step - 1])
    quantity, (row,) = settling(found.rows)
    assert (quantity, (row.low, row.high)) == ("settled_from", interval)
    sentence = next(sentence for sentence in found.sentences if "settled" in sentence)
    assert f"On {surely} of 1 benchmark" in sentence and (f"by {interval[1]:.0f} billion" in sentence) == surely
