"""Items: their table, their scores, and filters judged on models that they did not see."""

import numpy as np
import pandas as pd
import pytest
from signal_world import World, item_rows, write_world

from lm_validity.errors import InputError
from lm_validity.studies.signal.filters.kinds import slopes
from lm_validity.studies.signal.filters.recipe import trial_sentence
from lm_validity.studies.signal.statistics.items import (
    METRICS,
    disjoint_checkpoints,
    item_scores,
    judge_filter,
    leave_one_group_out,
)
from lm_validity.studies.signal.statistics.quality import Controls, signal_quality
from lm_validity.tables.items import item_benchmarks, read_benchmark_items

SMALL = World(models=("small-deep", "large-wide"), checkpoints=3, items=12)


def read(tmp_path, rows, benchmark="facts"):
    return read_benchmark_items(write_world(tmp_path, items=rows).items, benchmark)


def test_arrays_follow_the_table_whatever_its_order(tmp_path):
    rows = item_rows(SMALL)
    items = read(tmp_path, rows.sample(frac=1.0, random_state=0))
    assert item_benchmarks(tmp_path / "items.parquet") == ["facts"]
    assert [model.model for model in items.models] == ["large-wide", "small-deep"]
    model = items.models[1]
    assert model.checkpoints == ("step-1", "step-2", "step-3")
    assert list(model.iterations) == [1000, 2000, 3000] and list(model.tokens_b) == [20, 40, 60]
    one = rows[(rows["model"] == "small-deep") & (rows["checkpoint"] == "step-2")].set_index("doc_id")
    for item, doc_id in enumerate(items.doc_ids):
        assert items.gold[item] == one.at[doc_id, "gold"] and items.subjects[item] == one.at[doc_id, "subject"]
        assert model.correct[1, item] == one.at[doc_id, "correct"]
        assert model.loglikelihoods[1, item] == pytest.approx(one.at[doc_id, "choice_loglikelihoods"])
        assert list(items.characters[item]) == list(one.at[doc_id, "choice_characters"])
        assert list(model.tokens[item]) == list(one.at[doc_id, "choice_tokens"])


def test_a_final_checkpoint_is_ordered_by_its_tokens(tmp_path):
    rows = item_rows(SMALL)
    rows.loc[rows["checkpoint"] == "step-3", ["checkpoint", "iteration"]] = ["final", None]
    assert read(tmp_path, rows).models[0].checkpoints == ("step-1", "step-2", "final")
    rows["tokens_b"] = None
    assert read(tmp_path, rows).models[0].checkpoints == ("step-1", "step-2", "final")


def test_items_with_different_numbers_of_choices(tmp_path):
    rows = item_rows(SMALL)
    short = rows["doc_id"] == "test:4"
    for column in (
        "choice_loglikelihoods",
        "unconditional_loglikelihoods",
        "choice_tokens",
        "choice_characters",
        "choice_bytes",
    ):
        rows.loc[short, column] = pd.Series([list(v[:3]) for v in rows.loc[short, column]], index=rows.index[short])
    rows.loc[short, "gold"] = 1
    items = read(tmp_path, rows)
    at = list(items.doc_ids).index("test:4")
    assert items.choices[at] == 3 and (np.delete(items.choices, at) == 4).all()
    assert np.isnan(items.models[0].loglikelihoods[:, at, 3]).all()


def _cell(rows, doc_id="test:7"):
    return rows.index[(rows["model"] == "small-deep") & (rows["checkpoint"] == "step-2") & (rows["doc_id"] == doc_id)][
        0
    ]


def _twice(rows):
    return pd.concat([rows, rows.loc[[_cell(rows)]]])


def _dropped(rows):
    return rows.drop(_cell(rows))


def _set(column, value):
    def change(rows):
        rows.at[_cell(rows), column] = value
        return rows

    return change


def _gold_everywhere(value):
    def change(rows):
        rows.loc[rows["doc_id"] == "test:7", "gold"] = value
        return rows

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_twice, ["small-deep", "step-2", "test:7", "twice"]),
        (_dropped, ["small-deep", "step-2", "test:7", "one of them only"]),
        (_set("choice_loglikelihoods", [-1.0, -2.0]), ["small-deep", "step-2", "test:7", "2 choices, 4"]),
        (_set("choice_loglikelihoods", None), ["small-deep", "step-2", "test:7", "0 choices, 4"]),
        (_set("choice_loglikelihoods", [-1.0, np.nan, -1.0, -1.0]), ["step-2", "test:7", "choice 1 is nan"]),
        (_set("gold", 9), ["small-deep", "step-2", "test:7", "gold"]),
        (_gold_everywhere(4), ["test:7", "gold", "4 is out of range for 4 choices"]),
        (_gold_everywhere(-1), ["test:7", "-1 is out of range"]),
    ],
)  # fmt: skip
def test_bad_items_are_named(tmp_path, change, words):
    with pytest.raises(InputError) as error:
        read(tmp_path, change(item_rows(SMALL)))
    for word in ["items.parquet", *words]:
        assert word in str(error.value)


def test_missing_lengths_are_named(tmp_path):
    rows = item_rows(SMALL)
    first = rows.index[
        (rows["model"] == "large-wide") & (rows["checkpoint"] == "step-1") & (rows["doc_id"] == "test:0")
    ]
    rows.at[first[0], "choice_characters"] = [3]
    with pytest.raises(InputError, match=r"large-wide.*choice_characters.*1 lengths for 4 choices"):
        read(tmp_path, rows)


# Two items; the second has three choices only
LOGLIKELIHOODS = np.log(np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.5, np.nan]]))
GOLD = np.array([0, 1])
LENGTHS = np.array([[2.0, 1.0, 4.0, 2.0], [1.0, 2.0, 1.0, np.nan]])


def score(metric):
    return item_scores(metric, LOGLIKELIHOODS, GOLD, LENGTHS)


def test_scores_by_hand():
    log = np.log
    assert score("accuracy") == pytest.approx([1.0, 0.0])
    assert score("log_likelihood") == pytest.approx([log(0.4), log(0.2)])
    assert score("log_probability_gap") == pytest.approx(
        [log(0.4) - (log(0.3) + log(0.2) + log(0.1)) / 3, log(0.2) - (log(0.1) + log(0.5)) / 2]
    )
    assert score("confidence_margin") == pytest.approx([log(0.4 / 0.3), log(0.2 / 0.5)])
    assert score("probability") == pytest.approx([0.4, 0.2])


def test_scores_per_length():
    log = np.log
    assert score("log_likelihood_per_token") == pytest.approx([log(0.4) / 2, log(0.2) / 2])
    # per character the four-character third choice wins the first item
    assert score("accuracy_per_character") == pytest.approx([0.0, 0.0])
    assert score("probability_per_token") == pytest.approx([np.sqrt(0.4), np.sqrt(0.2)])


RANGES = {"probability": (0, 1), "accuracy": (0, 1), "log_likelihood": (-np.inf, 0)}


def test_every_metric_computes_and_says_what_it_needs():
    for metric in METRICS:
        values = score(metric)
        assert values.shape == (2,) and np.isfinite(values).all(), metric
        low, high = next((ends for start, ends in RANGES.items() if metric.startswith(start)), (-np.inf, np.inf))
        assert (values >= low).all() and (values <= high).all(), metric
    with pytest.raises(ValueError, match="lengths in tokens"):
        item_scores("accuracy_per_token", LOGLIKELIHOODS, GOLD)


CHECKPOINTS = 14


def positive_slope_of(values):
    return lambda rows: sum(slopes(values[model][at]) for model, at in rows) > 0


def test_disjoint_checkpoints_leave_at_least_eight():
    (fold,) = disjoint_checkpoints([27, 14])
    (model, scored), (same, fitted) = fold.score[0], fold.fit[0]
    assert model == same == 0 and len(fold.score) == 1  # 14 checkpoints leave 7: too few
    assert len(scored) == 14 and scored[-1] == 26
    assert not set(scored) & set(fitted) and len(scored) + len(fitted) == 27
    assert disjoint_checkpoints([14, 9]) == []
    assert len(disjoint_checkpoints([15])[0].score[0][1]) == 8


def test_positive_slopes_of_pure_noise_are_found_out():
    generator = np.random.default_rng(0)
    trials = []
    for _ in range(200):
        values = [generator.standard_normal((CHECKPOINTS, 1000)) for _ in range(2)]
        folds = leave_one_group_out(["deep", "wide"], [CHECKPOINTS] * 2)
        trials.append(judge_filter(positive_slope_of(values), values, folds, Controls(generator, 100)))
    held_out = np.array([trial.held_out for trial in trials])
    noise = signal_quality(generator.standard_normal((50_000, CHECKPOINTS))).signal_quality.mean()
    assert np.mean([trial.in_sample for trial in trials]) > 0.9
    assert held_out.mean() == pytest.approx(noise, abs=3 * held_out.std() / np.sqrt(len(trials)))
    # at most 2.5% are to beat the control by chance: 11 of 200 has a probability of 2%
    assert sum(trial.useful for trial in trials) <= 11


def test_a_filter_that_drops_dead_items_is_useful():
    generator = np.random.default_rng(1)
    rising = np.linspace(0, 1, CHECKPOINTS)[:, None] * (np.arange(400) < 80)
    values = [rising + 1.5 * generator.standard_normal((CHECKPOINTS, 400)) for _ in range(4)]
    folds = leave_one_group_out(["a", "b", "c", "d"], [CHECKPOINTS] * 4)

    def by_gain(rows):
        return sum(values[m][at][-5:].mean(0) - values[m][at][:5].mean(0) for m, at in rows) > 1.0

    trial = judge_filter(by_gain, values, folds, Controls(generator, 200))
    assert trial.useful and trial.held_out > trial.control_high > trial.control_mean
    assert trial.in_sample > trial.held_out
    assert trial.items == 400


def test_a_filter_that_keeps_nothing_cannot_be_judged():
    values = [np.random.default_rng(m).standard_normal((CHECKPOINTS, 20)) for m in range(2)]
    folds = leave_one_group_out(["a", "b"], [CHECKPOINTS] * 2)
    trial = judge_filter(lambda rows: np.zeros(20, bool), values, folds, Controls(np.random.default_rng(0), 10))
    assert np.isnan(trial.held_out) and np.isnan(trial.p) and not trial.useful


def test_a_filter_is_not_judged_by_a_score_that_some_items_lack():
    values = [np.random.default_rng(m).standard_normal((CHECKPOINTS, 20)) for m in range(2)]
    values[0][:, 0] = np.nan
    folds = leave_one_group_out(["a", "b"], [CHECKPOINTS] * 2)
    trial = judge_filter(lambda rows: np.arange(20) > 0, values, folds, Controls(np.random.default_rng(0), 50))
    assert np.isfinite(trial.held_out) and np.isnan([trial.unfiltered, trial.control_mean, trial.p]).all()
    assert not trial.useful and "nan" not in trial_sentence(trial)
