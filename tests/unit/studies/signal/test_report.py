"""The signal report on generated worlds: keys, intervals, what is missing, and what the filters found."""

import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
from signal_world import MODELS, World, item_rows, models_sheet, score_rows, write_world

from lm_validity.config.sections import Reports
from lm_validity.errors import InputError
from lm_validity.missing import Missing
from lm_validity.results.keys import lines_of
from lm_validity.results.rows import UNIQUE
from lm_validity.results.summary import summary_values
from lm_validity.studies.signal.report import analyze_signal, report_signal, signal
from lm_validity.studies.signal.statistics.quality import signal_quality
from lm_validity.tables.schema import SCORES, read_table, write_table
from lm_validity.words import decimal


def report(files, output, resamples=60):
    """summary.json and page.json of a whole report."""
    report_signal(files.scores, files.models, output, section=Reports(resamples=resamples), items=files.items)
    return json.loads((output / "summary.json").read_text()), json.loads((output / "page.json").read_text())


def summary_of(files, with_items=True, **section):
    """The summary alone: figures take most of a report's time."""
    section = Reports(**{"resamples": 5, **section})
    items = files.items if with_items else None
    return summary_values(signal(analyze_signal(files.scores, files.models, section=section, items=items))[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def reported(rising, folder):
    return report(rising, folder)


def test_signal_quality_is_that_of_the_curves(rising, reported):
    summary, _ = reported
    scores = read_table(rising.scores, SCORES)
    assert set(summary["models"]) == set(MODELS)
    for (model, benchmark), rows in scores.groupby(["model", "benchmark"]):
        entry = summary["models"][model][benchmark]
        curve = rows.sort_values("iteration")["value"].to_numpy()
        expected = signal_quality(curve)
        assert entry["net_rise"] == pytest.approx(curve[-1] - curve[0])
        assert entry["signal_quality"] == pytest.approx(float(expected.signal_quality))
        assert entry["checkpoints"] == 12 and 0 < entry["signal_quality_null_p"] <= 1
        low, high = entry["signal_quality_interval"]
        assert 0 <= low <= entry["signal_quality"] <= high <= 1


def test_means_leave_the_web_model_out(reported):
    summary, _ = reported
    science = [model for model, facts in MODELS.items() if facts[2] == "science"]
    expected = np.mean([summary["models"][model]["facts"]["signal_quality"] for model in science])
    entry = summary["benchmarks"]["facts"]
    assert entry["signal_quality"] == pytest.approx(expected) and entry["models"] == 4
    assert set(entry["signal_quality_by_size"]) == {"500m", "1b"}
    assert entry["items"] == 120 and entry["chance"] == pytest.approx(0.25)
    assert entry["signal_quality"] > summary["benchmarks"]["noise"]["signal_quality"] + 0.3


def test_ranking_consistency_and_settling(reported):
    summary, _ = reported
    entry = summary["ranking_consistency"]["facts"]
    # 20 billion tokens per step up to 240: base 100 to 180, later 220 and 240
    assert set(entry["by_size"]) == {"500m", "1b"} and entry["value"] is not None
    assert {(p["base_checkpoints"], p["later_checkpoints"]) for p in entry["pairs"]} == {(5, 2)}
    assert entry["value"] == pytest.approx(np.mean(list(entry["by_size"].values())))
    assert any("2 later checkpoints" in note for note in summary["notes"])
    ranking = summary["ranking"]["facts"]
    assert ranking["agreement_with_last"][-1] == 1.0 and ranking["size_pairs"] == 2
    low, high = ranking["nearly_stable_from_interval_b"]
    assert low <= high and {low, high, ranking["nearly_stable_from_b"]} <= set(ranking["tokens_b"])
    assert np.mean(ranking["size_order_share"]) > 0.8 and ranking["separated_from_b"] is not None


def test_compliance_separates_facts_from_noise(reported):
    summary, _ = reported
    facts, noise = summary["compliance"]["facts"], summary["compliance"]["noise"]
    assert facts["pairs"] == [["large-deep", "large-deep-web"]] and facts["normalisation"] == "joint_minmax"
    assert facts["raw_gap_interval"][0] > 0 and facts["null_p"] < 0.05
    assert noise["raw_gap_interval"][0] < 0 < noise["raw_gap_interval"][1] and noise["null_p"] > 0.05
    assert set(facts["normalisations"]) == {"none", "joint_minmax", "sci_range", "above_chance"}
    assert facts["normalisations"]["none"] == pytest.approx(max(0, facts["raw_gap"]))
    sq, rc, cs = (
        summary["benchmarks"]["facts"]["signal_quality"],
        summary["ranking_consistency"]["facts"]["value"],
        facts["value"],
    )
    assert summary["overall"]["facts"] == pytest.approx(0.5 * sq + 0.1 * rc + 0.4 * cs)
    low, high = summary["overall_interval"]["facts"]
    assert low < summary["overall"]["facts"] < high
    assert summary["overall_null_p"]["facts"] < 0.05 < summary["overall_null_p"]["noise"]
    assert sum(entry["share_first"] for entry in summary["weight_sensitivity"].values()) == pytest.approx(1.0)


def test_filters_are_never_shown_in_sample_only(reported):
    summary, page = reported
    trials = summary["filters"]["noise"]
    assert {trial["design"] for trial in trials} == {"architecture", "size"}
    for trial in trials:
        assert None not in (trial["in_sample"], trial["held_out"], trial["control_mean"], trial["p"])
        assert trial["optimism_gap"] == pytest.approx(trial["in_sample"] - trial["held_out"])
    slope = [t for t in trials if t["filter"].startswith("slope") and t["score"] == "confidence_margin"]
    assert len(slope) == 2
    assert all(t["in_sample"] > t["control_high"] and t["optimism_gap"] > 0.2 for t in slope)
    assert any("chance" in f["sentence"] or "found nothing" in f["sentence"] for f in page["findings"])


def test_the_report_on_noise_says_that_filters_found_nothing(tmp_path):
    files = write_world(tmp_path, World(rise=0.0, checkpoints=14, items=150, seed=3))
    _, page = report(files, tmp_path / "report", resamples=0)
    sentences = " ".join(finding["sentence"] for finding in page["findings"])
    assert "The filters found nothing that holds beyond the data they were fitted on." in sentences


def test_item_metrics_and_subgroups(reported):
    summary, _ = reported
    metrics = summary["item_metrics"]["facts"]
    assert {"accuracy", "confidence_margin_per_token", "pmi", "bits_per_byte"} <= set(metrics)
    mean = summary["benchmarks"]["facts"]["signal_quality"]
    assert metrics["accuracy"]["signal_quality"] == pytest.approx(mean) and metrics["accuracy"]["less_accuracy"] is None
    low, high = metrics["confidence_margin"]["less_accuracy_interval"]
    assert low <= metrics["confidence_margin"]["less_accuracy"] <= high
    groups = summary["subgroups"]["facts"]
    assert [g["name"] for g in groups if g["kind"] == "subject"] == ["subject 0", "subject 1", "subject 2"]
    assert sum(g["items"] for g in groups if g["kind"] == "answer length") == 120


def test_page_and_files(reported, folder):
    _, page = reported
    titles = [section["title"] for section in page["sections"]]
    assert titles[:2] == ["Signal quality", "Order of the models"] and len(titles) == 8
    assert "12 checkpoints" in page["findings"][0]["sentence"]
    for name in ("signal_quality", "settling", "filters_0", "item_metrics"):
        assert (folder / "figures" / f"{name}.svg").stat().st_size > 1000
    table = pd.read_csv(folder / "tables" / "filters.csv")
    assert {"in_sample", "held_out", "control_high"} <= set(table.columns)


def numbers_of(value, where=""):
    """(place, number) of every number of a summary."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers_of(item, f"{where}.{key}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield where, float(value)


def test_every_number_is_in_a_row_and_every_quantity_in_some_summary(reported, folder):
    summary, _ = reported
    rows = pd.read_parquet(folder / "results.parquet")
    checks = {line.quantity for line in lines_of("signal") if line.path.startswith("standard_errors")}
    assert set(rows["quantity"]) == {line.quantity for line in lines_of("signal")} - checks
    assert not rows.duplicated(list(UNIQUE)).any()
    said = set(rows[["value", "low", "high"]].to_numpy().ravel())
    assert [where for where, number in numbers_of(summary) if number not in said] == []
    whole = (rows["value"].notna() | rows["text"].notna()) & (rows["interval_for"].isna() | rows["low"].notna())
    assert (rows["reason"].isna() == whole).all() and (rows["reason_code"].isna() == whole).all()


def test_same_input_gives_the_same_summary(rising, reported):
    assert summary_of(rising, resamples=60) == reported[0]


def test_without_resamples_or_items(rising):
    summary = summary_of(rising, resamples=0)
    entry = summary["models"]["small-deep"]["facts"]
    assert entry["signal_quality_interval"] is None and entry["signal_quality_null_p"] is None
    assert any("skipped" in note for note in summary["notes"])
    bare = summary_of(rising, with_items=False)
    assert bare["models"]["small-deep"]["facts"]["signal_quality"] == entry["signal_quality"]
    assert bare["models"]["small-deep"]["facts"]["signal_quality_null_p"] is not None
    assert bare["filters"] == {"facts": None, "noise": None}


@pytest.fixture(scope="module")
def rows():
    return item_rows(World(items=20, checkpoints=9))


def write(tmp_path, rows, scores=None):
    files = write_world(tmp_path, items=rows)
    if scores is not None:
        write_table(scores, SCORES, files.scores)
    return files


def test_a_checkpoint_missing_for_one_model_is_named(tmp_path, rows):
    gone = (rows["model"] == "large-wide") & (rows["checkpoint"] == "step-4")
    summary = summary_of(write(tmp_path, rows[~gone]))
    assert any("large-wide lacks 1 checkpoint" in note and "step-4" in note for note in summary["notes"])
    assert summary["models"]["large-wide"]["facts"]["checkpoints"] == 8


def test_fewer_than_eight_checkpoints_are_named(tmp_path, rows):
    few = rows[(rows["model"] != "small-wide") | (rows["iteration"] <= 5000)]
    summary = summary_of(write(tmp_path, few))
    assert any("models.small-wide.facts.signal_quality" in note and "8 selected" in note for note in summary["notes"])
    entry = summary["models"]["small-wide"]["facts"]
    assert entry["signal_quality"] is None and entry["monotonicity"] is not None


def test_a_model_without_checkpoints_takes_no_part(tmp_path, rows):
    scores = score_rows(rows)
    lone = scores[scores["model"] == "small-deep"].tail(1).assign(model="finished", checkpoint="final")
    files = write(tmp_path, rows, pd.concat([scores, lone]))
    summary = summary_of(files, resamples=0)
    assert "finished" not in summary["models"]
    assert any("single checkpoint take no part: finished" in note for note in summary["notes"])


def test_items_that_do_not_reproduce_the_score_give_no_interval(tmp_path, rows):
    scores = score_rows(rows)
    scores["value"] = scores["value"] + 0.01
    summary = summary_of(write(tmp_path, rows, scores))
    assert summary["models"]["small-deep"]["facts"]["signal_quality_interval"] is None
    assert any("not the mean over its items" in note for note in summary["notes"])


def test_lower_is_better_turns_curves_round(tmp_path, rows):
    scores = score_rows(rows)
    scores["value"], scores["higher_is_better"] = 1 - scores["value"], False
    turned = rows.assign(correct=1 - rows["correct"])
    before = summary_of(write(tmp_path / "a", rows), resamples=20)
    after, _ = report(write(tmp_path / "b", turned, scores), tmp_path / "rb", resamples=20)
    for model, entry in before["models"].items():
        assert after["models"][model]["facts"]["signal_quality"] == pytest.approx(entry["facts"]["signal_quality"])
        assert after["models"][model]["facts"]["signal_quality_interval"] == pytest.approx(
            entry["facts"]["signal_quality_interval"]
        )
    noise, of_errors = (each["criteria"]["facts"]["signal_and_noise"] for each in (before, after))
    assert of_errors["signal_to_noise"] == pytest.approx(noise["signal_to_noise"])
    # spread and scatter are the same, relative to the mean error
    assert of_errors["signal"] / noise["signal"] == pytest.approx(of_errors["noise"] / noise["noise"])
    assert of_errors["signal"] > 0
    curves = pd.read_csv(tmp_path / "rb" / "tables" / "learning_curves.csv")
    assert curves["score"].iloc[0] == pytest.approx(scores["value"].iloc[0])


def test_constant_curves_are_degenerate(tmp_path, rows):
    flat = rows.assign(correct=np.where(rows["doc_id"] < "test:15", 1.0, 0.0))
    summary = summary_of(write(tmp_path, flat))
    entry = summary["models"]["small-deep"]["facts"]
    assert entry["degenerate"] and entry["signal_quality"] == 0.0
    assert any("Constant curves, scored 0" in note for note in summary["notes"])


def test_short_trainings_have_relative_windows(tmp_path, rows):
    summary = summary_of(write(tmp_path, rows.assign(tokens_b=rows["tokens_b"] * 1e-6)))
    assert summary["conventions"]["windows_b"]["relative"] is True
    # nine checkpoints: 10% to 20% holds the first (1/9), from 22% the eight others but the second... 2/9 = 22.2%
    pairs = summary["ranking_consistency"]["facts"]["pairs"]
    assert {(pair["base_checkpoints"], pair["later_checkpoints"]) for pair in pairs} == {(1, 8)}


def test_selection_of_the_competition(tmp_path):
    world = World(items=20, checkpoints=16)
    files = write(tmp_path, item_rows(world).assign(checkpoint=lambda r: "it" + (2 * r["iteration"]).astype(str)))
    scores = read_table(files.scores, SCORES)
    scores["iteration"] *= 2  # 2000 to 32000
    write_table(scores, SCORES, files.scores)
    summary = summary_of(files, resamples=0, checkpoints="e2lm", with_items=False)
    # every 4000 iterations and 20 billion tokens a 2000: 40, 80, ..., 200
    assert {entry["facts"]["checkpoints"] for entry in summary["models"].values()} == {5}


def test_bad_scores_are_named(tmp_path, rows):
    scores = score_rows(rows)
    with pytest.raises(
        InputError, match=r"two selected test scores of small-deep on facts \(direct\) at checkpoint 'step-1'"
    ):
        report(write(tmp_path / "a", rows, pd.concat([scores, scores.head(1)])), tmp_path / "r")
    with pytest.raises(InputError, match=r"several metrics .*acc,none.*f1,none"):
        report(write(tmp_path / "b", rows, pd.concat([scores, scores.assign(metric="f1,none")])), tmp_path / "r")
    with pytest.raises(InputError, match="along training"):
        report(write(tmp_path / "c", rows, scores[scores["checkpoint"] == "step-1"]), tmp_path / "r")
    unnamed = scores.reset_index(drop=True)
    unnamed.loc[4, "model"] = None  # grouping by model would drop it without a word
    with pytest.raises(InputError, match=r"scores\.parquet, row 4, column 'model': empty"):
        report(write(tmp_path / "e", rows, unnamed), tmp_path / "r")
    with pytest.raises(InputError, match="protocol 'direct'"):
        report(write(tmp_path / "d", rows, scores.assign(protocol="train_before_test")), tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_models_sheet_with_sizes_only(tmp_path, rows):
    files = write(tmp_path, rows)
    models_sheet()[["model", "size"]].to_csv(files.models, index=False)
    summary = summary_of(files)
    assert summary["ranking_consistency"]["facts"]["value"] is None
    assert summary["compliance"]["facts"]["value"] is None and summary["overall"]["facts"] is None
    assert any(note.startswith("ranking_consistency.facts.value") for note in summary["notes"])
    assert any(note.startswith("compliance.facts.value") for note in summary["notes"])


def test_names_of_users_are_escaped(tmp_path, rows):
    nasty = "<script>alert(1)</script>"
    files = write(tmp_path, rows.assign(benchmark=nasty))
    report(files, tmp_path / "r", resamples=0)
    assert "<script>alert(1)" not in (tmp_path / "r" / "index.html").read_text()


def test_replicated_trainings_give_the_seed_criteria(tmp_path):
    rows = item_rows(World(items=40, checkpoints=9, models=("small-deep", "large-deep")))
    twin = item_rows(replace(World(items=40, checkpoints=9, models=("small-deep",)), seed=0))
    twin["correct"] = item_rows(World(items=40, checkpoints=9, models=("small-deep",), noise=1.4))["correct"]
    files = write(tmp_path, pd.concat([rows, twin.assign(model="small-deep-again")]))
    sheet = models_sheet()
    sheet.loc[len(sheet)] = ["small-deep-again", "500m", "deep", "science"]
    sheet.to_csv(files.models, index=False)
    summary = summary_of(files, resamples=0)
    fine = summary["criteria"]["facts"]["finetasks"]
    assert fine["signal_to_noise"] > 0 and fine["non_randomness"] is not None
    assert fine["monotonicity_passes"] in (True, False)


def test_equal_answer_lengths_leave_the_matched_filter_out(tmp_path, rows):
    same = pd.Series([[2, 2, 2, 2]] * len(rows), index=rows.index)
    summary = summary_of(write(tmp_path, rows.assign(choice_tokens=same)))
    assert not any("matched" in trial["filter"] for trial in summary["filters"]["facts"])
    assert any("equally long" in note for note in summary["notes"])


def test_no_filter_is_judged_by_a_score_that_an_item_of_one_choice_lacks(tmp_path, rows):
    alone, rows = (rows["doc_id"] == rows["doc_id"].iloc[0]).to_numpy(), rows.assign()
    rows["gold"] = rows["gold"].mask(alone, 0)
    for name in rows.columns[rows.columns.str.contains("^choice_|^unconditional_")]:
        rows[name] = [values[:1] if one else values for values, one in zip(rows[name], alone, strict=True)]
    trials = summary_of(write(tmp_path, rows))["filters"]["facts"]
    judged = [[trial[name] for name in ("unfiltered", "p", "per_item_score_ratio")] for trial in trials]
    for trial, values in zip(trials, judged, strict=True):
        assert (None in values) == (values == [None] * 3) == (trial["score"] != "correct")
        assert trial["useful"] is False or trial["score"] == "correct"


def test_a_filter_that_keeps_nothing_over_all_models_has_no_optimism(tmp_path):
    """Half of the items rise in either architecture and fall twice as fast in the other: the mean falls everywhere."""
    rows = item_rows(World(models=("small-deep", "small-wide"), items=40, checkpoints=10)).reset_index(drop=True)
    even = rows["doc_id"].str[5:].astype(int) % 2 == 0
    rises = even == (rows["model"] == "small-deep")
    step = rows["iteration"] / 1000 * np.where(rises, 1.0, -2.0)
    rows["choice_loglikelihoods"] = [
        [margin if choice == gold else 0.0 for choice in range(4)]
        for margin, gold in zip(step, rows["gold"], strict=True)
    ]
    files = write(tmp_path, rows)
    summary, page = report(files, tmp_path / "report", resamples=0)
    slopes = [t for t in summary["filters"]["facts"] if t["filter"].startswith("slope")]
    assert slopes and {t["in_sample"] for t in slopes} == {t["optimism_gap"] for t in slopes} == {None}
    assert all(t["held_out"] is not None for t in slopes)
    known = [t["optimism_gap"] for t in summary["filters"]["facts"] if t["optimism_gap"] is not None]
    (basis,) = (f["basis"] for f in page["findings"] if "random choices" in f["basis"])
    gained = re.compile(r"they gain ([+-][.\d]+) more")
    assert known and gained.search(basis)[1] == decimal(np.mean(known), signed=True)
    data = analyze_signal(files.scores, files.models, items=files.items, section=Reports(resamples=0))
    facts = data.benchmarks["facts"]
    slopes = [trial for trial in facts.items.trials if trial.filter.startswith("slope")]
    data = replace(data, benchmarks={"facts": replace(facts, items=replace(facts.items, trials=slopes))})
    only_slopes = next(finding for finding in signal(data)[0].findings if "random choices" in finding.basis)
    assert not gained.search(only_slopes.basis)


def test_resamples_that_never_settle_count_as_the_end_of_training(tmp_path, rows):
    """One model is ahead by one item throughout; in the resamples without that item the models tie to the end."""
    two = rows[rows["model"].isin(["small-deep", "small-wide"])]
    number = two["doc_id"].str[5:].astype(int)
    two = two.assign(correct=((number < 10) | ((number == 10) & (two["model"] == "small-deep"))).astype(float))
    ranking = summary_of(write(tmp_path, two), resamples=100)["ranking"]["facts"]
    assert ranking["stable_from_b"] == ranking["nearly_stable_from_b"] == 20.0
    assert ranking["stable_from_interval_b"] == ranking["nearly_stable_from_interval_b"] == [20.0, 180.0]


# ---- models of several sizes and architectures, from scores alone ------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """A model of the sheet and its scores."""

    size: str
    architecture: str
    values: list[float]


def analyzed(folder, models, resamples=0, tokens_b=20.0):
    """The analysis of one benchmark, `facts`; billions of tokens a checkpoint."""
    rows = [
        {"model": name, "checkpoint": f"step-{step}", "tokens_b": tokens_b * step, "benchmark": "facts",
         "protocol": "direct", "metric": "acc,none", "value": value}
        for name, model in models.items()
        for step, value in enumerate(model.values, start=1)
    ]  # fmt: skip
    write_table(pd.DataFrame(rows), SCORES, folder / "scores.parquet")
    sheet = [{"model": name, "size": model.size, "architecture": model.architecture} for name, model in models.items()]
    pd.DataFrame(sheet).to_csv(folder / "models.csv", index=False)
    return analyze_signal(folder / "scores.parquet", folder / "models.csv", section=Reports(resamples=resamples))


def unequal_pairs(turning=24):
    """One pair at size s1 whose order turns, three pairs at size s2 whose order stays; `turning`: checkpoints of one
    of the pair."""
    models = {f"s2-{name}": Trained("s2", name, [0.1 * place] * 24) for place, name in enumerate("abc")}
    turns = Trained("s1", "a", [0.5] * 10 + [0.3] * (turning - 10))
    return {"s1-a": turns, "s1-b": Trained("s1", "b", [0.4] * 24), **models}


def test_interval_and_coins_of_consistency_give_each_size_one_vote_as_the_value_does(tmp_path):
    analysis = analyzed(tmp_path, unequal_pairs(), resamples=2000)
    entry = summary_values(signal(analysis)[1])["ranking_consistency"]["facts"]
    assert entry["by_size"] == {"s1": 0.0, "s2": 1.0} and entry["value"] == 0.5
    # Orders are constant within the windows, so that no draw of blocks can differ from the value
    assert entry["interval"] == [0.5, 0.5]
    # Gaps that never change, or once, last as long as the training: one coin per pair, of one pair and of three
    pair = 0.25
    _, coin = analysis.benchmarks["facts"].order_draws["chosen"]
    assert coin.std() == pytest.approx(np.sqrt((pair + pair / 3) / 4), rel=0.05)


def test_consistency_has_no_interval_where_a_pair_of_it_is_too_short_for_blocks(tmp_path):
    summary = summary_values(
        signal(analyzed(tmp_path, unequal_pairs(14), resamples=20))[1]
    )  # four later checkpoints: 220 to 280
    entry = summary["ranking_consistency"]["facts"]
    assert entry["value"] == 0.5 and entry["interval"] is None
    note = "ranking_consistency.facts.interval: One of its pairs has fewer than 8 later"
    assert any(text.startswith(note) for text in summary["notes"])
    # A pair without any later checkpoint is not in the value, nor in what is missing for the interval
    summary = summary_values(signal(analyzed(tmp_path, unequal_pairs(10), resamples=20))[1])
    entry = summary["ranking_consistency"]["facts"]
    assert entry["value"] == 1.0 and entry["interval"] == [1.0, 1.0]
    assert not any(text.startswith(note) for text in summary["notes"])


def test_relative_windows_are_shares_of_each_pairs_own_training(tmp_path):
    """The small pair is over at 20 billion tokens (a model of it goes on), the large one at 40."""
    models = {
        "small-a": Trained("s", "a", [0.2] * 30),
        "small-b": Trained("s", "b", [0.1] * 20),
        "large-a": Trained("l", "a", [0.4] * 40),
        "large-b": Trained("l", "b", [0.3] * 40),
    }
    pairs = summary_values(signal(analyzed(tmp_path, models, tokens_b=1.0))[1])["ranking_consistency"]["facts"]["pairs"]
    # base: 2 and 3 (of 20), 4 to 7 (of 40); later: from 4.4 and from 8.8
    counts = {pair["size"]: (pair["base_checkpoints"], pair["later_checkpoints"]) for pair in pairs}
    assert counts == {"s": (2, 16), "l": (4, 32)}


def across_sizes(folder, finals):
    """Decision accuracy from the smallest to the largest size; `finals` are (size, architecture, last score)."""
    models = {f"model {i}": Trained(size, shape, [0.0, last]) for i, (size, shape, last) in enumerate(finals)}
    return signal(analyzed(folder, models))[1].criteria["facts"].decision_accuracy.smallest_to_largest


def test_decisions_across_sizes_average_repeated_trainings(tmp_path):
    # The worst of a is below b at the small size, its mean is not
    seeds = [("100m", "a", 0.2), ("100m", "a", 0.6), ("1b", "a", 0.7), ("100m", "b", 0.3), ("1b", "b", 0.6)]
    assert across_sizes(tmp_path, seeds) == 1.0


def test_decisions_across_sizes_are_at_sizes_that_all_recipes_have(tmp_path):
    b = [("100m", "b", 0.3), ("500m", "b", 0.5)]
    # a is ahead at 100m and behind at 500m; at 1b it is ahead of anything smaller
    assert across_sizes(tmp_path, [("100m", "a", 0.4), ("500m", "a", 0.45), ("1b", "a", 0.9), *b]) == 0.0
    none_in_common = across_sizes(tmp_path, [("500m", "a", 0.4), ("1b", "a", 0.9), *b])
    one_recipe = across_sizes(tmp_path, b)
    assert isinstance(none_in_common, Missing) and isinstance(one_recipe, Missing) and none_in_common != one_recipe
