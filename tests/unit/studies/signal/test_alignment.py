"""Which checkpoints of several models are the same point of training, and what is said where few or none are."""

import numpy as np
import pytest
from signal_world import curve_rows, found_in, write_scores

from lm_validity.studies.signal.curves import Curve, align
from lm_validity.studies.signal.statistics.quality import difference_errors, error_covariance
from lm_validity.tables.training import NOT_MEASURED


def curve(tokens, names=None, iterations=None):
    """A curve whose values are its tokens, with a standard error of a tenth of them."""
    tokens = np.array(tokens, dtype=float)
    iterations = np.arange(1.0, len(tokens) + 1) * 1000 if iterations is None else np.array(iterations, dtype=float)
    names = [f"step{int(number)}" for number in iterations] if names is None else names
    return Curve(tuple(names), iterations, tokens, tokens.copy(), tokens / 10)


def without_tokens(found):
    return found._replace(tokens_b=np.full(len(found.values), np.nan))


def read(curves, found):
    return [places.read(each.values) for each, places in zip(curves.values(), found.places, strict=True)]


def test_names_that_stand_for_different_tokens_are_no_common_points():
    """step1000 of a model with a batch six times as large is six times as far."""
    curves = {"small": curve([1, 2, 3, 4, 5, 6]), "large": curve([2.5, 5.5, 8.5])}
    found = align(curves)
    # the checkpoints of `large` up to the end of `small`, and that end
    np.testing.assert_allclose(found.tokens_b, [2.5, 5.5, 6])
    np.testing.assert_allclose(read(curves, found), [found.tokens_b] * 2)
    assert (found.by, found.at_end) == ("tokens", False)
    small = found.places[0]
    # the errors of both neighbours, never less than the smaller one; nothing outside of a model's own range
    np.testing.assert_allclose(small.read(curves["small"].errors), [0.25, 0.55, 0.6])
    assert (small.earlier >= 0).all() and (small.later <= 5).all() and ((small.share >= 0) & (small.share < 1)).all()


def test_one_schedule_is_aligned_by_name_with_or_without_tokens():
    curves = {"a": curve([1, 2, 3]), "b": curve([1.02, 2.04, 3.06])}
    for known in (curves, {name: without_tokens(found) for name, found in curves.items()}):
        found = align(known)
        assert (found.by, found.at_end) == ("names", True)
        np.testing.assert_array_equal(read(known, found)[1], [1.02, 2.04, 3.06])


def test_without_tokens_the_share_of_training_needs_its_end():
    a = without_tokens(curve([1, 2, 3, 4], ["step1", "step2", "step3", "final"], [1, 2, 3, 4]))
    b = without_tokens(curve([1, 2], ["step50", "final"], [50, 100]))
    found = align({"a": a, "b": b})
    assert found.by == "share of training" and found.at_end and np.isnan(found.tokens_b).all()
    np.testing.assert_allclose(found.progress, [0.5, 1.0])
    open_end = b._replace(checkpoints=("step50", "step100"))
    assert not len(align({"a": a, "b": open_end}).progress) and align({"a": a, "b": open_end}).reason


# ---- the report --------------------------------------------------------------------------------------------------

SHEET = "benchmark,metric,higher_is_better,chance\nfacts,points,1,0.25\n"


def found_of(folder, tokens, score, models=None, resamples=0):
    """What is found of models with 12 checkpoints: {model: tokens of a step}, and `score(model, tokens)`."""
    curves = {model: [score(model, each * step) for step in range(1, 13)] for model, each in tokens.items()}
    rows = curve_rows({"facts": curves}, lambda model, step: tokens[model] * step, metric="points,none", stderr=0.01)
    files = write_scores(folder, rows, SHEET, models or "model\n" + "\n".join(tokens) + "\n")
    return found_in(files, folder / "benchmarks.csv", resamples=resamples)


# Two models cross at 9 billion tokens; by the names of their checkpoints `slow` is never ahead
TOKENS = {"fast": 1.0, "slow": 6.0}
CROSSING = {"fast": lambda at: 0.5 + 0.01 * at, "slow": lambda at: 0.41 + 0.02 * at}


def test_the_order_along_training_is_that_at_equal_tokens(tmp_path):
    found = found_of(tmp_path, TOKENS, lambda model, at: CROSSING[model](at))
    # `slow` begins at 6, `fast` ends at 12: both are checkpoints of both, and the order turns between them
    assert [row.value for row in found.rows.all("point_tokens")] == [6, 12]
    assert (found.value("common_points"), found.value("common_points_at_end")) == (2, 0)
    assert found.value("separable_pairs") == 1 and found.value("settled_from") == 12
    assert "end at different points" in found.reason("ready")


@pytest.mark.parametrize(("gap", "separable"), [(0.0277, 0), (0.0278, 1)])
def test_pairs_are_told_apart_by_the_closed_form_at_any_number_of_resamples(tmp_path, gap, separable):
    """1.96 times the root of 0.01 squared twice is 0.02772."""
    levels = {"a": 0.5, "b": 0.5 + gap}
    for resamples in (0, 7):
        found = found_of(tmp_path, dict.fromkeys(levels, 1.0), lambda model, at: levels[model], resamples=resamples)
        assert found.value("separable_pairs") == separable


def test_errors_of_differences_are_those_over_shared_items():
    rng = np.random.default_rng(0)
    scores = (rng.random((3, 60)) < 0.5 + 0.3 * (rng.random(60) - 0.5)).astype(float)
    found = difference_errors(error_covariance(scores)[None])[:, 0]
    pairs = [(0, 1), (0, 2), (1, 2)]
    np.testing.assert_allclose(found, [(scores[i] - scores[j]).std(ddof=1) / np.sqrt(60) for i, j in pairs])
    subjects = np.arange(60) % 12
    clustered = error_covariance(scores, subjects)
    whole = np.sqrt(np.diag(error_covariance(np.array([scores[i] - scores[j] for i, j in pairs]), subjects)))
    np.testing.assert_allclose(difference_errors(clustered[None])[:, 0], whole)


def test_reruns_are_noise_and_no_models(tmp_path):
    """Items tell `a` and `b` apart; a second training of `a` differs from the first by more than `b` does."""
    levels = {"a": 0.5, "b": 0.55, "a2": 0.58}
    wobble = {"a": 0.005, "b": 0.006, "a2": 0.007}
    tokens = dict.fromkeys(levels, 1.0)

    def score(model, at):
        return levels[model] + wobble[model] * (at % 3)

    alone = found_of(tmp_path, tokens, score)
    assert alone.models() == {"a", "b", "a2"} and alone.value("separable_pairs") == 3 and NOT_MEASURED in alone.notes
    found = found_of(tmp_path, tokens, score, models="model,rerun_of\na,\nb,\na2,a\n")
    assert found.models() == {"a", "b"} and found.value("models") == 2 and NOT_MEASURED not in found.notes
    # .05 is far beyond 1.96 errors of items (.014), and within 1.96 of trainings (.08 between the two of `a`)
    assert found.value("separable_pairs") == 0
