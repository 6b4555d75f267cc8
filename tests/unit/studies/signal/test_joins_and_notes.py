"""The signal report beside its sheets: models joined by path, metrics that do not match, and a reason for each null."""

import numpy as np
import pandas as pd
import pytest
from signal_world import World, item_rows, models_sheet, score_rows, write_world

from lm_validity.config.sections import Reports, SignalConventions
from lm_validity.errors import InputError
from lm_validity.results.summary import summary_values
from lm_validity.studies.signal.report import analyze_signal, signal
from lm_validity.tables.schema import SCORES, write_table


@pytest.fixture(scope="module")
def rows():
    return item_rows(World(items=20, checkpoints=12))


@pytest.fixture
def summary_of(tmp_path, rows):
    """The summary of these items (and scores, and a benchmarks sheet's text), without resamples."""

    def make(items=rows, scores=None, models=None, benchmarks=None, with_items=True, **conventions):
        files = write_world(tmp_path, items=items)
        write_table(score_rows(items) if scores is None else scores, SCORES, files.scores)
        if models is not None:
            models.to_csv(files.models, index=False)
        sheet = None
        if benchmarks is not None:
            sheet = tmp_path / "benchmarks.csv"
            sheet.write_text(benchmarks)
        section = Reports(resamples=0, signal=SignalConventions(**conventions))
        found = files.items if with_items else None
        return summary_values(signal(analyze_signal(files.scores, files.models, sheet, found, section))[1])

    return make


def noted(summary, *words):
    return any(all(word in note for word in words) for note in summary["notes"])


# ---- joins -------------------------------------------------------------------------------------------------------


def test_scores_may_name_models_by_their_path(rows, summary_of):
    hub = rows.assign(model="org/" + rows["model"])
    sheet = models_sheet().assign(path=lambda sheet: "org/" + sheet["model"])
    expected, found = summary_of(models=sheet), summary_of(hub, models=sheet)
    assert set(found["models"]) == {f"org/{model}" for model in expected["models"]}
    assert found["overall"]["facts"] == expected["overall"]["facts"] is not None
    assert not noted(found, "Not in the models sheet")


def test_a_score_without_a_value_is_a_missing_checkpoint(rows, summary_of):
    scores = score_rows(rows)
    at = (scores["model"] == "large-deep") & (scores["iteration"] == 5000)
    found = summary_of(scores=scores.assign(value=scores["value"].mask(at)), with_items=False)
    assert found["models"] == summary_of(scores=scores[~at], with_items=False)["models"]
    assert found["models"]["large-deep"]["facts"]["checkpoints"] == 11
    assert noted(found, "large-deep on facts at step-5")


def test_labels_that_several_models_have_become_their_ids(tmp_path, rows):
    files = write_world(tmp_path, items=rows)
    models_sheet().assign(label=["X", "X", "Y", "Z", ""]).to_csv(files.models, index=False)
    facts = analyze_signal(files.scores, files.models, section=Reports(resamples=0)).learning.facts
    assert facts["label"].to_dict() == {
        "small-deep": "small-deep",
        "small-wide": "small-wide",
        "large-deep": "Y",
        "large-wide": "Z",
        "large-deep-web": "large-deep-web",
    }


def test_benchmarks_without_scores_under_the_sheets_metric_are_named(rows, summary_of):
    both = pd.concat([rows, rows.assign(benchmark="other")])
    # the sheet's metric of `other` is one that the table knows, of another benchmark
    scores = pd.concat([score_rows(both), score_rows(rows).assign(benchmark="unlisted", metric="acc_norm,none")])
    sheet = "benchmark,metric,studies\nfacts,acc,\nother,acc_norm,\nabsent,acc,signal\nnot_ours,acc,agreement\n"
    summary = summary_of(both, scores=scores, benchmarks=sheet)
    assert set(summary["overall"]) == {"facts"}
    assert "other: no score under its metric acc_norm,none; the table has acc,none." in summary["notes"]
    assert "Benchmarks of the sheet without any score: absent, not_ours." in summary["notes"]


def test_a_metric_that_matches_nowhere_is_the_errors_cause(summary_of):
    words = "'facts', column 'metric': no score has the metric 'acc_norm,none'.*'acc,none'"
    with pytest.raises(InputError, match=words):
        summary_of(benchmarks="benchmark,metric\nfacts,acc_norm\n")


# ---- chance ------------------------------------------------------------------------------------------------------


def test_chance_is_known_of_right_and_wrong_items_only(rows, summary_of):
    summary = summary_of()
    assert summary["benchmarks"]["facts"]["chance"] == 0.25 and not noted(summary, "1 or 0")
    assert summary["compliance"]["facts"]["normalisations"]["above_chance"] is not None
    gap = rows.assign(correct=[np.ptp(scores) for scores in rows["choice_loglikelihoods"]])
    summary = summary_of(gap)
    assert summary["benchmarks"]["facts"]["items"] == 20  # the items are used all the same
    assert summary["benchmarks"]["facts"]["chance"] is None
    assert summary["compliance"]["facts"]["normalisations"]["above_chance"] is None
    assert noted(summary, "above_chance_from_b", "1 or 0")


def test_lower_is_better_has_no_chance_level(rows, summary_of):
    errors = rows.assign(correct=1 - rows["correct"])
    summary = summary_of(errors, score_rows(errors).assign(higher_is_better=False))
    assert summary["benchmarks"]["facts"]["chance"] is None
    assert noted(summary, "above_chance_from_b", "lower is better")


# ---- a reason for each null --------------------------------------------------------------------------------------


def test_compliance_above_chance_without_items_is_null_with_its_reason(summary_of):
    summary = summary_of(with_items=False, normalisation="above_chance")
    assert summary["compliance"]["facts"]["value"] is None and summary["overall"]["facts"] is None
    assert noted(summary, "overall.facts")
    summary = summary_of(with_items=False)
    assert summary["compliance"]["facts"]["normalisations"]["above_chance"] is None
    assert summary["overall"]["facts"] is not None and not noted(summary, "overall.facts")


def test_an_empty_base_window_is_the_reason_of_a_null_consistency(rows, summary_of):
    summary = summary_of(rows.assign(tokens_b=rows["iteration"] / 1000 * 250))
    assert summary["ranking_consistency"]["facts"]["value"] is None
    assert noted(summary, "ranking_consistency.facts.value", "base window (100 to 200 billion tokens)")
    assert not noted(summary, "rests on") and not noted(summary, "later window")


def test_a_pair_without_checkpoints_in_a_window_is_named_beside_others(rows, summary_of):
    late = rows["model"].str.startswith("small") & (rows["tokens_b"] < 200)
    summary = summary_of(rows[~late])
    assert summary["ranking_consistency"]["facts"]["by_size"]["500m"] is None
    assert noted(summary, "ranking_consistency.facts.by_size.500m, ranking_consistency.facts.pairs", "base window")
    assert noted(summary, "rests on 2 later checkpoints", "the competition had 47")


def test_a_later_window_of_ones_own_is_named_as_given(summary_of):
    empty = summary_of(base_window=(20, 60), later_window=(300, 400))
    assert noted(empty, "consistency.facts.value", "later window (300 to 400 billion tokens)")
    rests = summary_of(base_window=(20, 60), later_window=(100, 160))
    assert noted(rests, "rests on 4 later checkpoints")
    assert not noted(rests, "competition")


def test_benchmarks_without_pairs_are_named_beside_others(rows, summary_of):
    alone = rows[rows["model"] == "small-deep"].assign(benchmark="alone")
    summary = summary_of(pd.concat([rows, alone]))
    assert summary["compliance"]["alone"]["value"] is None
    for key in ("ranking_consistency.alone.value", "compliance.alone.value", "overall.alone"):
        assert noted(summary, key) and not noted(summary, key.replace("alone", "facts"))


def test_models_without_a_common_checkpoint_have_no_compliance(rows, summary_of):
    web = rows["model"] == "large-deep-web"
    summary = summary_of(rows.assign(tokens_b=rows["tokens_b"] + 1000 * web))
    assert summary["compliance"]["facts"]["value"] is None
    assert noted(summary, "compliance.facts.value", "no point of training in common: large-deep ends")


def test_a_science_curve_at_chance_has_no_compliance_above_it(rows, summary_of):
    web = rows["model"].str.endswith("web").to_numpy()
    first = rows["doc_id"].isin([f"test:{i}" for i in range(5)]).to_numpy()  # 5 of 20: 1/4, as guessing among four
    summary = summary_of(rows.assign(correct=np.where(web, 0.0, first.astype(float))), normalisation="above_chance")
    assert summary["benchmarks"]["facts"]["chance"] == 0.25 and summary["compliance"]["facts"]["value"] is None
    assert noted(summary, "compliance.facts.value", "not above 0")
