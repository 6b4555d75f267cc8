"""Items: their table, their scores, and filters judged on models that they did not see."""

import numpy as np
import pandas as pd
import pytest
from signal_world import World, item_rows, with_fewer_choices, write_world

from lm_validity.errors import InputError
from lm_validity.studies.signal.filters.kinds import slopes
from lm_validity.studies.signal.filters.recipe import trial_sentence
from lm_validity.studies.signal.statistics import items as statistics
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
    for each in (rows, rows.assign(tokens_b=None)):
        assert read(tmp_path, each).models[0].checkpoints == ("step-1", "step-2", "final")


def test_items_with_different_numbers_of_choices(tmp_path):
    rows = item_rows(SMALL)
    items = read(tmp_path, with_fewer_choices(rows, rows["doc_id"] == "test:4", 3))
    at = list(items.doc_ids).index("test:4")
    choices = np.count_nonzero(~np.isnan(items.models[0].loglikelihoods[0]), axis=-1)
    assert choices[at] == 3 and (np.delete(choices, at) == 4).all()
    assert np.isnan(items.models[0].loglikelihoods[:, at, 3]).all()


def _set(column, value, everywhere=False):
    """Another value in one row of `test:7`, or in all its rows."""

    def change(rows, cell):
        places = rows.index[rows["doc_id"] == "test:7"] if everywhere else [cell]
        return rows.assign(**{column: rows[column].mask(rows.index.isin(places), pd.Series([value] * len(rows)))})

    return change


PLACE = ["small-deep", "step-2", "test:7"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows, cell: pd.concat([rows, rows.loc[[cell]]]), [*PLACE, "twice"]),
        (lambda rows, cell: rows.drop(cell), [*PLACE, "one of them only"]),
        (_set("choice_loglikelihoods", [-1.0, -2.0]), [*PLACE, "2 choices, 4"]),
        (_set("choice_loglikelihoods", None), [*PLACE, "0 choices, 4"]),
        (_set("choice_loglikelihoods", [-1.0, np.nan, -1.0, -1.0]), ["step-2", "test:7", "choice 1 is nan"]),
        (_set("gold", 9), [*PLACE, "gold"]),
        (_set("gold", 4, everywhere=True), ["test:7", "gold", "4 is out of range for 4 choices"]),
        (_set("gold", -1, everywhere=True), ["test:7", "-1 is out of range"]),
        (_set("choice_characters", [3], everywhere=True), ["test:7", "choice_characters", "1 lengths for 4 choices"]),
    ],
)  # fmt: skip
def test_bad_items_are_named(tmp_path, change, words):
    rows = item_rows(SMALL)
    cell = rows.query("model == 'small-deep' and checkpoint == 'step-2' and doc_id == 'test:7'").index[0]
    with pytest.raises(InputError) as error:
        read(tmp_path, change(rows, cell))
    assert all(word in str(error.value) for word in ["items.parquet", *words])


# Two items; the second has three choices only
LOGLIKELIHOODS = np.log(np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.5, np.nan]]))
GOLD = np.array([0, 1])
LENGTHS = np.array([[2.0, 1.0, 4.0, 2.0], [1.0, 2.0, 1.0, np.nan]])


def log(*values):
    return sum(map(np.log, values))


BY_HAND = {
    "accuracy": (1.0, 0.0),
    "log_likelihood": (log(0.4), log(0.2)),
    "log_probability_gap": (log(0.4) - log(0.3, 0.2, 0.1) / 3, log(0.2) - log(0.1, 0.5) / 2),
    "confidence_margin": (log(0.4 / 0.3), log(0.2 / 0.5)),
    "probability": (0.4, 0.2),
    "log_likelihood_per_token": (log(0.4) / 2, log(0.2) / 2),
    "accuracy_per_character": (0.0, 0.0),  # the four-character third choice wins the first item
    "probability_per_token": (np.sqrt(0.4), np.sqrt(0.2)),
}
RANGES = {"probability": (0, 1), "accuracy": (0, 1), "log_likelihood": (-np.inf, 0)}


@pytest.mark.parametrize("metric", statistics.METRICS)
def test_scores_are_those_by_hand_and_within_their_range(metric):
    values = statistics.item_scores(metric, LOGLIKELIHOODS, GOLD, LENGTHS)
    assert values == pytest.approx(BY_HAND.get(metric, values)) and np.isfinite(values).all() and values.shape == (2,)
    low, high = next((ends for start, ends in RANGES.items() if metric.startswith(start)), (-np.inf, np.inf))
    assert (values >= low).all() and (values <= high).all()


CHECKPOINTS = 14


def judged(values, fit, seed, controls):
    """The trial of what `fit` keeps of item scores, one model left out at a time."""
    folds = statistics.leave_one_group_out([*"abcd"[: len(values)]], [CHECKPOINTS] * len(values))
    generator = seed if isinstance(seed, np.random.Generator) else np.random.default_rng(seed)
    return statistics.judge_filter(fit, values, folds, Controls(generator, controls))


def test_disjoint_checkpoints_leave_at_least_eight():
    (fold,) = statistics.disjoint_checkpoints([27, 14])
    (model, scored), (same, fitted) = fold.score[0], fold.fit[0]
    assert model == same == 0 and len(fold.score) == 1  # 14 checkpoints leave 7: too few
    assert len(scored) == 14 and scored[-1] == 26
    assert not set(scored) & set(fitted) and len(scored) + len(fitted) == 27
    assert statistics.disjoint_checkpoints([14, 9]) == []
    assert len(statistics.disjoint_checkpoints([15])[0].score[0][1]) == 8


def test_positive_slopes_of_pure_noise_are_found_out():
    generator = np.random.default_rng(0)
    trials = []
    for _ in range(200):
        values = [generator.standard_normal((CHECKPOINTS, 1000)) for _ in range(2)]
        rising = lambda rows, values=values: sum(slopes(values[model][at]) for model, at in rows) > 0  # noqa: E731
        trials.append(judged(values, rising, generator, 100))
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

    def by_gain(rows):
        return sum(values[m][at][-5:].mean(0) - values[m][at][:5].mean(0) for m, at in rows) > 1.0

    trial = judged(values, by_gain, generator, 200)
    assert trial.useful and trial.held_out > trial.control_high > trial.control_mean
    assert trial.in_sample > trial.held_out
    assert trial.items == 400


def test_a_filter_is_not_judged_that_keeps_nothing_or_by_a_score_that_some_items_lack():
    values = [np.random.default_rng(m).standard_normal((CHECKPOINTS, 20)) for m in range(2)]
    nothing = judged(values, lambda rows: np.zeros(20, bool), 0, 10)
    assert np.isnan([nothing.held_out, nothing.p]).all() and not nothing.useful
    values[0][:, 0] = np.nan
    trial = judged(values, lambda rows: np.arange(20) > 0, 0, 50)
    assert np.isfinite(trial.held_out) and np.isnan([trial.unfiltered, trial.control_mean, trial.p]).all()
    assert not trial.useful and "nan" not in trial_sentence(trial)
