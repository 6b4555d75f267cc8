"""The report's conventions as options."""

import re

import numpy as np
import pytest
from signal_world import World, write_world

from lm_validity.cli import main
from lm_validity.config.load import validate
from lm_validity.config.sections import Reports, SignalConventions
from lm_validity.errors import InputError
from lm_validity.files import read_json
from lm_validity.results.summary import summary_values
from lm_validity.studies.signal.report import analyze_signal, signal
from lm_validity.studies.signal.statistics.quality import autocorrelation
from lm_validity.tables.schema import SCORES, read_table

OTHERS = {"convention": "paper", "ties": "average", "normalisation": "none"}
OTHERS |= {"base_window": "0,100", "later_window": "120,240", "weights": "1,0,0"}
PRINTED = "table,dataset,SQ,RC,CS,global_printed\nT1,good,0.959,0.837,0.419,0.731\nT1,odd,0.88,0.759,0.479,0.689\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("options"), World(items=40))


def summary_of(files, **conventions):
    section = Reports(resamples=0, signal=SignalConventions(**conventions))
    return summary_values(signal(analyze_signal(files.scores, files.models, section=section))[1])


def test_conventions_change_the_numbers_they_name(files):
    default = summary_of(files)
    other = summary_of(files, **OTHERS)
    named = other["conventions"]
    assert (named["convention"], named["ties"], named["normalisation"]) == ("paper", "average", "none")
    assert named["windows_b"] == {"base": [0, 100], "later": [120, 240], "relative": False}
    assert default["conventions"]["windows_b"]["relative"] == (max(_tokens(files)) < 100)
    scores = read_table(files.scores, SCORES)
    (model, benchmark), rows = next(iter(scores.groupby(["model", "benchmark"])))
    curve = rows.sort_values("iteration")["value"].to_numpy()
    for summary, convention in ((default, "code"), (other, "paper")):
        found = summary["models"][model][benchmark]["autocorrelation"]
        assert found == pytest.approx(float(autocorrelation(curve, convention)))
    assert default["compliance"]["facts"]["value"] != other["compliance"]["facts"]["value"]
    assert other["compliance"]["facts"]["value"] == pytest.approx(max(0, other["compliance"]["facts"]["raw_gap"]))
    assert other["overall"]["facts"] == pytest.approx(other["benchmarks"]["facts"]["signal_quality"])


def test_filters_and_benchmarks_count_ties_alike(files):
    found = {}
    for ties in ("stable", "average"):
        section = Reports(resamples=0, signal=SignalConventions(ties=ties))
        data = analyze_signal(files.scores, files.models, section=section, items=files.items)
        summary = summary_values(signal(data)[1])
        (whole,) = {trial["unfiltered"] for trial in summary["filters"]["facts"] if trial["score"] == "correct"}
        found[ties] = whole
        assert whole == pytest.approx(summary["benchmarks"]["facts"]["signal_quality"])
    assert found["stable"] != found["average"]


def test_the_raw_gap_needs_no_chance_level(files):
    other, above = (summary_of(files, normalisation=name)["compliance"]["facts"] for name in ("none", "above_chance"))
    assert above["value"] is above["interval"] is None
    assert above["raw_gap"] == other["raw_gap"]


def _tokens(files):
    return read_table(files.scores, SCORES)["tokens_b"]


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
    with pytest.raises(InputError, match=re.escape(problem)):
        validate(given, "report signal", SignalConventions)


def test_options_go_before_the_configuration_and_this_before_the_defaults(files, tmp_path, monkeypatch):
    """Each by one key: the first is given nowhere else, the second in the file too."""
    text = "{name: run, models: m, benchmarks: b, reports: {resamples: 7, checkpoints: e2lm}}"
    (tmp_path / "run.yaml").write_text(text)
    words = ["report", "signal", "--scores", files.scores, "--models", files.models, "--output", tmp_path / "r"]
    words += ["--configfile", tmp_path / "run.yaml", "--convention", "paper", "--selection", "all"]
    monkeypatch.setattr("sys.argv", ["lm-validity", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    summary = read_json(tmp_path / "r" / "summary.json")
    named = summary["conventions"]
    assert end.value.code == 0 and (named["resamples"], named["convention"], summary["selection"]) == (
        7,
        "paper",
        "all",
    )
    assert named["normalisation"] == "joint_minmax"


def test_score_per_item_of_every_trial(files):
    found = summary_values(
        signal(analyze_signal(files.scores, files.models, items=files.items, section=Reports(resamples=0)))[1]
    )
    trials = [trial for entries in found["filters"].values() for trial in entries if trial["held_out"] is not None]
    assert trials
    for trial in trials:
        expected = trial["held_out"] / trial["kept_in_sample"] / (trial["unfiltered"] / trial["items"])
        assert trial["per_item_score_ratio"] == pytest.approx(expected)
    metrics = found["item_metrics"]["facts"]
    assert {"pmi", "pmi_per_token", "pmi_per_character", "accuracy_pmi"} <= set(metrics)
    assert all(np.isfinite(entry["signal_quality"]) for entry in metrics.values())
