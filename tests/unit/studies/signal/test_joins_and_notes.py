"""The signal report beside its sheets: models joined by path, metrics that do not match, tokens that are unknown, and a
reason for each number that is missing."""

import numpy as np
import pandas as pd
import pytest
from signal_world import MODELS, World, found_in, item_rows, models_sheet, score_rows, write_world
from typer.testing import CliRunner

from lm_validity.cli import register_commands
from lm_validity.config.load import validate
from lm_validity.config.sections import SignalConventions
from lm_validity.errors import InputError
from lm_validity.results.put import Rows
from lm_validity.tables.schema import SCORES, write_table


@pytest.fixture(scope="module")
def rows():
    return item_rows(World(items=20, checkpoints=12))


@pytest.fixture
def found(tmp_path, rows):
    """What the report says of these items (and scores, and a benchmarks sheet's text), without resamples."""

    def make(items=rows, scores=None, models=None, benchmarks=None, with_items=True, **conventions):
        files = write_world(tmp_path, items=items)
        write_table(score_rows(items) if scores is None else scores, SCORES, files.scores)
        if models is not None:
            models.to_csv(files.models, index=False)
        sheet = None
        if benchmarks is not None:
            sheet = tmp_path / "benchmarks.csv"
            sheet.write_text(benchmarks)
        return found_in(files, sheet, with_items=with_items, resamples=0, **conventions)

    return make


def test_benchmarks_without_scores_under_the_sheets_metric_are_named(rows, found):
    both = pd.concat([rows, rows.assign(benchmark="other")])
    # the sheet's metric of `other` is one that the table knows, of another benchmark
    scores = pd.concat([score_rows(both), score_rows(rows).assign(benchmark="unlisted", metric="acc_norm,none")])
    sheet = "benchmark,metric,studies\nfacts,acc,\nother,acc_norm,\nabsent,acc,signal\nnot_ours,acc,agreement\n"
    summary = found(both, scores=scores, benchmarks=sheet)
    assert summary.rows.labels("subject", "overall") == ["facts"]
    assert summary.noted("other", "acc_norm,none", "acc,none") and summary.noted("absent, not_ours")
    words = "'facts', column 'metric': no score has the metric 'acc_norm,none'.*'acc,none'"
    with pytest.raises(InputError, match=words):
        found(benchmarks="benchmark,metric\nfacts,acc_norm\n")


def with_items(rows, **columns):
    return {"items": rows.assign(**columns)}


def lower(rows):
    errors = rows.assign(correct=1 - rows["correct"])
    return {"items": errors, "scores": score_rows(errors).assign(higher_is_better=False)}


def at_chance(rows):
    right = rows["doc_id"].isin([f"test:{i}" for i in range(5)]) & ~rows["model"].str.endswith("web")  # 5 of 20: 1/4
    return with_items(rows, correct=right.astype(float)) | {"normalisation": "above_chance"}


@pytest.mark.parametrize(
    ("world", "reasons"),
    [
        (lambda rows: with_items(rows, correct=[np.ptp(logits) for logits in rows["choice_loglikelihoods"]]),
         {"chance": "no chance level"}),
        (lower, {"chance": "no chance level"}),
        (lambda rows: {"with_items": False, "normalisation": "above_chance"},
         {"compliance": "no chance level", "overall": "needs"}),
        (lambda rows: with_items(rows, tokens_b=rows["iteration"] / 1000 * 250),
         {"consistency": "base window (100 to 200 billion tokens)"}),
        (lambda rows: {"base_window": (20, 60), "later_window": (300, 400)}, {"consistency": "(300 to 400 billion"}),
        (lambda rows: with_items(rows, tokens_b=rows["tokens_b"] + 1000 * (rows["model"] == "large-deep-web")),
         {"compliance": "no point of training in common: large-deep ends"}),
        (at_chance, {"compliance": "not above 0"}),
        (lambda rows: {"items": rows[rows["model"] == "small-deep"]},
         {"compliance": "no pair of a science and a web model", "consistency": "no two architectures",
          "settled_from": "two models"}),
    ],
)  # fmt: skip
def test_what_is_missing_says_why(rows, found, world, reasons):
    summary = found(**world(rows))
    for quantity, words in reasons.items():
        assert np.isnan(summary.value(quantity)) and words in summary.reason(quantity)


def test_checkpoints_without_tokens_stay_out_where_others_have_them(rows, found):
    scores = score_rows(rows)
    lost = (scores["model"] == "large-wide") & (scores["checkpoint"] == "step-4")
    summary = found(scores=scores.assign(tokens_b=scores["tokens_b"].mask(lost)))
    assert summary.noted("without tokens_b", "large-wide at step-4")
    assert summary.row("monotonicity", model="large-wide").n == 11
    # the axis is billions of tokens still, 20 a checkpoint
    points = [row.value for row in summary.rows.all("point_tokens")]
    assert points == [20.0 * n for n in range(1, 13) if n != 4] and summary.value("nearly_stable_from") in points


def test_iterations_are_never_called_tokens(rows, found):
    scores = score_rows(rows).assign(tokens_b=np.nan)
    total = scores.assign(checkpoint=scores["checkpoint"].replace("step-12", "final"))  # the models' total is no axis
    final = rows.assign(checkpoint=rows["checkpoint"].replace("step-12", "final"))
    sheet = models_sheet().assign(tokens_b=240.0)
    for summary in (found(scores=scores), found(final, scores=total, models=sheet)):
        assert summary.models() == set(MODELS) and summary.noted("Tokens are unknown")
        for quantity in ("point_tokens", "nearly_stable_from", "settled_from", "above_chance_from_mean", "ready_by"):
            assert np.isnan(summary.value(quantity))
        assert summary.value("signal_quality_mean") > 0
    # windows in billions of tokens: 1000 to 9000 iterations are none
    fixed = found(scores=scores, base_window=(1000, 3000), later_window=(3000, 9000))
    assert "tokens are unknown" in fixed.reason("consistency")


@pytest.mark.parametrize(
    ("steps", "stays", "words"),
    [
        # in the order of their names, step-10 would come before step-9, and a rise might be a fall
        ([f"step-{n}" for n in range(1, 13)], False, ["large-wide"]),
        (["step-2", "step-3"], True, ["step-2 of large-wide, step-3 of large-wide"]),
    ],
)
def test_checkpoints_whose_order_nobody_says_stay_out(rows, found, steps, stays, words):
    scores = score_rows(rows)
    places = (scores["model"] == "large-wide") & scores["checkpoint"].isin(steps)
    summary = found(scores=scores.assign(tokens_b=np.nan, iteration=scores["iteration"].mask(places)))
    assert ("large-wide" in summary.models()) == stays and summary.noted(*words)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"convention": "papre"}, "report signal: key 'convention', value 'papre'"),
        ({"normalisation": "x"}, "key 'normalisation', value 'x'"),
        ({"base_window": "100"}, "key 'base_window.1'"),
        ({"base_window": "100,200,300"}, "key 'base_window'"),
        ({"base_window": "1e2,many"}, "key 'base_window.1', value 'many'"),
        ({"later_window": "300,200"}, "key 'later_window', value '300,200': does not begin before it ends"),
        ({"weights": "1,nan,0"}, "key 'weights.1', value 'nan'"),
        ({"weights": "1,-1,0"}, "key 'weights.1', value '-1'"),
        ({"weights": "0,0,0"}, "key 'weights', value '0,0,0': one of them must be above zero"),
    ],
)
def test_bad_options_are_named(given, problem):
    with pytest.raises(InputError) as error:
        validate(given, "report signal", SignalConventions)
    assert problem in str(error.value)


def test_options_go_before_the_configuration_and_this_before_the_defaults(tmp_path):
    """Each by one key: the first is given nowhere else, the second in the file too."""
    files = write_world(tmp_path, World(items=40))
    text = "{name: run, models: m, benchmarks: b, reports: {resamples: 7, checkpoints: e2lm}}"
    (tmp_path / "run.yaml").write_text(text)
    words = ["report", "signal", "--scores", files.scores, "--models", files.models, "--output", tmp_path / "r"]
    words += ["--configfile", tmp_path / "run.yaml", "--convention", "paper", "--selection", "all"]
    assert CliRunner().invoke(register_commands(), [*map(str, words)]).exit_code == 0
    p = Rows.read(tmp_path / "r" / "results.parquet").value("signal_quality_mean_walk_p") * 8  # 1 + 7 draws
    assert p == pytest.approx(round(p)) and p <= 8
