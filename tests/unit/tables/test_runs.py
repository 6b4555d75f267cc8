"""Sampled runs of a table of scores: one score for all, with the error of their mean."""

import numpy as np
import pandas as pd
import pytest

from lm_validity.config.sections import Reports
from lm_validity.errors import InputError
from lm_validity.files import read_json
from lm_validity.studies.agreement.report import report_agreement
from lm_validity.tables.counted import Sources
from lm_validity.tables.schema import SCORES, write_table
from lm_validity.tables.training import average_runs

KEY = {"checkpoint": "final", "protocol": "direct", "split": "test", "metric": "acc,none", "selected": True}


def table(values: dict[tuple[str, str], list[float]], error: float = 0.05, items: int = 100) -> pd.DataFrame:
    """Rows of SCORES: (model, benchmark) -> the scores of its runs."""
    rows = [
        KEY | {"model": m, "benchmark": b, "run": run, "value": value, "stderr": error, "n_items": items}
        for (m, b), runs in values.items()
        for run, value in enumerate(runs)
    ]
    frame = pd.DataFrame(rows).reindex(columns=SCORES.names)
    return frame.astype({"run": "Int64", "n_items": "Int64", "stderr": "float64"})


def test_runs_are_one_score_with_the_error_of_their_mean():
    """Spreads .02 (of .40, .42, .44) and .04 (.50, .54, .58): d² = .001; s = .05; error² = .0025 - .001 + .001 / 3."""
    rows, noise, notes = average_runs(table({("a", "x"): [0.40, 0.42, 0.44], ("b", "x"): [0.50, 0.54, 0.58]}), "f")
    assert rows["value"].tolist() == pytest.approx([0.42, 0.54]) and rows["runs"].tolist() == [3, 3]
    assert rows["stderr"].tolist() == pytest.approx([np.sqrt(0.0025 - 0.001 + 0.001 / 3)] * 2)
    assert rows["sampling_error"].tolist() == pytest.approx([np.sqrt(0.001 / 3)] * 2)
    found = noise["direct", "x"]
    assert found.models == 2
    assert found.spread == pytest.approx(np.sqrt(0.001)) and found.share == pytest.approx(0.001 / 0.0025)

    assert len(notes) == 1 and "3 runs of each of 2 scores" in notes[0]


def test_a_table_without_runs_stays_as_it_is():
    before = table({("a", "x"): [0.4]}).assign(run=pd.array([pd.NA], "Int64"))
    rows, noise, notes = average_runs(before, "f")
    pd.testing.assert_frame_equal(rows[before.columns], before)
    assert not noise and not notes and rows["sampling_error"].isna().all()


def test_one_run_has_the_noise_of_those_of_others_and_alone_none():
    rows, *_ = average_runs(table({("a", "x"): [0.40, 0.44], ("b", "x"): [0.5]}, error=0.01), "f")
    assert rows.set_index("model")["stderr"].to_dict() == pytest.approx(
        {"a": np.sqrt(0.5e-4 + 0.0008 / 2), "b": np.sqrt(0.5e-4 + 0.0008)}  # half of s² = 1e-4 is the items'
    )
    rows, noise, notes = average_runs(table({("a", "x"): [0.40], ("b", "x"): [0.5]}), "f")
    assert noise == {} and notes == [] and rows["stderr"].tolist() == [0.05, 0.05]
    with pytest.raises(InputError, match="run 1 of a on x"):
        average_runs(table({("a", "x"): [0.40, 0.42]}).assign(run=pd.array([1, 1], "Int64")), "f")


def test_likeliest_answers_and_other_items_stay_out_and_are_counted():
    rows = table({("a", "x"): [0.40, 0.42, 0.90], ("b", "x"): [0.5, 0.6]})
    rows.loc[2, "n_items"] = 10
    greedy = rows.iloc[[3]].assign(run=pd.array([pd.NA], "Int64"), value=0.1)
    averaged, _, notes = average_runs(pd.concat([rows, greedy], ignore_index=True), "f")
    assert averaged["value"].tolist() == pytest.approx([0.41, 0.55])
    assert sum("b on x" in note for note in notes) == 1 and sum("a on x" in note for note in notes) == 1


def test_a_run_far_from_the_others_is_named():
    """One run 25 points below the mean of its score's others; usual spreads, and one of two runs, are not."""
    rng = np.random.default_rng(3)
    runs = {(f"m{i}", b): list(0.3 + 0.05 * i + 0.015 * rng.normal(size=5)) for i in range(6) for b in "xy"}
    assert not [note for note in average_runs(table(runs, error=0.02), "f").notes if "m2" in note]
    runs["m2", "x"][3] -= 0.25
    (note,) = [note for note in average_runs(table(runs, error=0.02), "f").notes if "m2" in note]
    assert "m2 on x, run 3" in note and note.count(" on ") == 1
    assert f"others {np.mean(np.delete(runs['m2', 'x'], 3)):.3g}" in note
    assert len(average_runs(table(runs, error=0.1), "f").notes) == 1  # within three errors of a run
    pairs = {key: values[:2] for key, values in runs.items()} | {("m2", "x"): [0.1, 0.6]}
    assert len(average_runs(table(pairs, error=0.02), "f").notes) == 1


def test_a_report_over_runs(tmp_path):
    """Ten models, three benchmarks, five runs: the mean's ranking, and the noise of a run."""
    rng = np.random.default_rng(4)
    ability = np.linspace(0.3, 0.7, 10)
    runs = {
        (f"m{i}", b): list(ability[i] + 0.01 * rng.normal() + 0.03 * rng.normal(size=5))
        for i in range(10)
        for b in "xyz"
    }
    write_table(table(runs, error=0.045), SCORES, tmp_path / "scores.parquet")
    (tmp_path / "m.tsv").write_text("model\n" + "".join(f"m{i}\n" for i in range(10)))
    (tmp_path / "b.tsv").write_text("benchmark\tmetric\n" + "".join(f"{b}\tacc\n" for b in "xyz"))
    paths = [tmp_path / name for name in ("scores.parquet", "m.tsv", "b.tsv")]
    report_agreement(Sources(*paths), tmp_path / "out", section=Reports(resamples=0))
    results = pd.read_parquet(tmp_path / "out" / "results.parquet")

    def of(quantity: str, subject: str | None = None) -> float:
        rows = results[(results["quantity"] == quantity) & (results["protocol"] == "direct")]
        return float(rows[rows["subject"] == subject]["value"].iloc[0]) if subject else float(rows["value"].iloc[0])

    spread = np.sqrt(np.mean([np.var(runs[f"m{i}", "x"], ddof=1) for i in range(10)]))
    assert of("sampling_noise", "x") == pytest.approx(spread)
    assert of("sampling_share", "x") == pytest.approx(spread**2 / 0.045**2)
    assert any("5 runs of each of 30 scores" in note for note in read_json(tmp_path / "out" / "page.json")["notes"])
