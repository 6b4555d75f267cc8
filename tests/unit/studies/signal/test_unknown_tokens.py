"""The signal report where the tokens of checkpoints are unknown: nothing else is called billions of tokens."""

import numpy as np
import pandas as pd
import pytest
from signal_world import MODELS, World, item_rows, models_sheet, score_rows, write_world

from lm_validity.config.sections import Reports, SignalConventions
from lm_validity.errors import InputError
from lm_validity.results.summary import summary_values
from lm_validity.studies.signal.report import analyze_signal, report_signal, signal
from lm_validity.tables.schema import SCORES, write_table


@pytest.fixture(scope="module")
def rows():
    return item_rows(World(items=20, checkpoints=9))


def write(folder, rows, scores):
    files = write_world(folder, items=rows)
    write_table(scores, SCORES, files.scores)
    return files


def summary_of(files, **conventions):
    section = Reports(resamples=5, signal=SignalConventions(**conventions))
    return summary_values(signal(analyze_signal(files.scores, files.models, items=files.items, section=section))[1])


def in_billions(summary):
    keys = ("tokens_b", "stable_from_b", "stable_from_interval_b", "nearly_stable_from_b", "separated_from_b")
    return [summary["ranking"]["facts"][key] for key in (*keys, "nearly_stable_from_interval_b")]


def test_checkpoints_without_tokens_stay_out_where_others_have_them(tmp_path, rows):
    scores = score_rows(rows)
    lost = (scores["model"] == "large-wide") & (scores["checkpoint"] == "step-4")
    summary = summary_of(write(tmp_path, rows, scores.assign(tokens_b=scores["tokens_b"].mask(lost))))
    assert any("without tokens_b" in note and "large-wide at step-4" in note for note in summary["notes"])
    assert summary["models"]["large-wide"]["facts"]["checkpoints"] == 8
    # the axis is billions of tokens still, 20 a checkpoint
    np.testing.assert_allclose(summary["ranking"]["facts"]["tokens_b"], [20.0 * n for n in range(1, 10) if n != 4])
    assert summary["ranking"]["facts"]["stable_from_b"] in summary["ranking"]["facts"]["tokens_b"]


def test_iterations_are_never_called_tokens(tmp_path, rows):
    scores = score_rows(rows).assign(tokens_b=np.nan)
    files = write(tmp_path, rows, scores)
    known = summary_of(write(tmp_path / "known", rows, score_rows(rows)))
    report_signal(files.scores, files.models, tmp_path / "r", items=files.items, section=Reports(resamples=5))
    summary = summary_of(files)
    assert in_billions(summary) == [None] * 6 and None not in in_billions(known)[:2]
    assert any(note.startswith("Tokens are unknown") for note in summary["notes"])
    assert not any("tie" in note.split() for note in summary["notes"])
    # what needs no unit stays
    ranking = summary["ranking"]["facts"]
    assert ranking["agreement_with_last"] == known["ranking"]["facts"]["agreement_with_last"]
    assert summary["criteria"]["facts"] == known["criteria"]["facts"]
    settling = (tmp_path / "r" / "index.html").read_text()
    assert "No training reaches" not in settling and "Tokens are unknown: the competition" in settling
    # windows in billions of tokens: 1000 to 9000 iterations are none
    fixed = summary_of(files, base_window=(1000, 3000), later_window=(3000, 9000))
    assert fixed["ranking_consistency"]["facts"]["value"] is None
    assert any("consistency.facts.value" in note and "tokens are unknown" in note for note in fixed["notes"])


def test_the_models_total_alone_is_no_axis(tmp_path, rows):
    """Checkpoints with iterations only, and the final one's tokens from the models sheet."""
    scores = score_rows(rows).assign(tokens_b=np.nan)
    scores.loc[scores["checkpoint"] == "step-9", "checkpoint"] = "final"
    files = write(tmp_path, rows.assign(checkpoint=rows["checkpoint"].replace("step-9", "final")), scores)
    models_sheet().assign(tokens_b=180.0).to_csv(files.models, index=False)
    summary = summary_of(files)
    assert set(summary["models"]) == set(MODELS) and in_billions(summary) == [None] * 6
    assert pd.notna(summary["benchmarks"]["facts"]["signal_quality"])


def test_checkpoints_whose_order_nobody_says_are_no_curve(tmp_path, rows):
    """In the order of their names, step-10 would come before step-9, and a rise might be a fall."""
    scores = score_rows(rows)
    nameless = scores.assign(tokens_b=np.nan, iteration=scores["iteration"].mask(scores["model"] == "large-wide"))
    summary = summary_of(write(tmp_path, rows, nameless))
    assert "large-wide" not in summary["models"] and any("large-wide" in note for note in summary["notes"])
    with pytest.raises(InputError, match="whose order is known"):
        summary_of(write(tmp_path, rows, scores.assign(tokens_b=np.nan, iteration=pd.NA)))


def test_checkpoints_without_a_place_stay_out_beside_others_that_have_one(tmp_path, rows):
    """`step-2` and `step-3` of one model have neither steps nor tokens: its curve is that of its other checkpoints."""
    scores = score_rows(rows)
    places = (scores["model"] == "large-wide") & scores["checkpoint"].isin(["step-2", "step-3"])
    nameless = scores.assign(tokens_b=np.nan, iteration=scores["iteration"].mask(places))
    assert places.any()
    summary = summary_of(write(tmp_path, rows, nameless))
    assert "large-wide" in summary["models"]
    assert any("step-2 of large-wide, step-3 of large-wide" in note for note in summary["notes"])
