"""The readiness report on small worlds whose truth is known."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from lm_validity.cli.reports import app
from lm_validity.config.sections import Agreement
from lm_validity.errors import InputError
from lm_validity.site.report import Given, report_site
from lm_validity.studies.agreement.readiness import report_readiness
from lm_validity.tables.schema import SCORES, write_table

DIRECT, TRAINED = "direct", "train_before_test"


def files(folder, families=8, tasks=("quiz", "sums"), seen=0.2, members=2):
    """Scores and sheets of a world: families 0 to 2 are the group, which has seen the formats of the tests."""
    rng = np.random.default_rng(4)
    models, scores = [], []
    for place in range(families * members):
        family, log = place % families, 21.3 + place / 9
        model = {
            "model": f"m{place}",
            "family": f"f{family}",
            "seen": int(family < 3),
            "released": f"20{20 + family}-05",
        }
        models.append(model | {"parameters_b": 10 ** (log - 21) / 6, "tokens_b": 1000})
        for task in tasks:
            after = 0.3 + 0.1 * (log - 21) + rng.normal(0, 0.005)
            direct = after - 0.25 + seen * model["seen"] + rng.normal(0, 0.01)
            scores += [
                {"model": model["model"], "benchmark": task, "protocol": protocol, "value": value, "split": "test",
                 "checkpoint": "final", "metric": "acc,none", "selected": True, "source": "test"}
                for protocol, value in ((DIRECT, direct), (TRAINED, after))
            ]  # fmt: skip
    pd.DataFrame(models).to_csv(folder / "models.csv", index=False)
    pd.DataFrame({"benchmark": tasks, "metric": "acc"}).to_csv(folder / "benchmarks.csv", index=False)
    write_table(pd.DataFrame(scores), SCORES, folder / "scores.parquet")
    return folder / "scores.parquet", folder / "models.csv", folder / "benchmarks.csv"


def written(folder, groups=("seen",), **world):
    """(rows of results.parquet, page) of the report on such a world."""
    report_readiness(*files(folder, **world), folder / "readiness", Agreement(groups=tuple(groups)))
    rows = pd.read_parquet(folder / "readiness" / "results.parquet")
    return rows, json.loads((folder / "readiness" / "page.json").read_text())


def row(rows, quantity, subject=None, **where):
    kept = rows[
        (rows["quantity"] == quantity) & (rows["subject"].isna() if subject is None else rows["subject"] == subject)
    ]
    for column, value in where.items():
        kept = (
            kept[kept[column].str.contains(value, regex=False)]
            if column == "conditions"
            else kept[kept[column] == value]
        )
    assert len(kept) == 1
    return kept.iloc[0]


def test_a_gap_of_readiness_is_found_and_its_interval_is_of_the_change(tmp_path):
    rows, page = written(tmp_path)
    change = row(rows, "readiness_change")
    assert change["low"] < -0.2 < change["high"] < 0
    assert change["interval_for"] == "families"
    assert change["n"] == 16
    assert row(rows, "lead", "quiz", protocol=DIRECT)["value"] == pytest.approx(0.2, abs=0.02)
    assert row(rows, "lead", "quiz", protocol=TRAINED)["value"] == pytest.approx(0, abs=0.02)
    p = [row(rows, "readiness_change_p", task)["value"] for task in ("quiz", "sums")]
    adjusted = [row(rows, "readiness_change_p_adjusted", task)["value"] for task in ("quiz", "sums")]
    assert adjusted == pytest.approx([min(1, 2 * min(p)) if one == min(p) else max(2 * min(p), one) for one in p])
    interval = page["lede"]["interval"]
    assert interval == f"95% of the change: −{-100 * change['low']:.0f} to −{-100 * change['high']:.0f}"
    assert "shrinks: 20 → 0 points" in page["lede"]["sentence"]
    assert interval.removeprefix("95% of the change: ") in page["picture"]["svg"]
    # the larger of both is what train before test gives here, where no direct score is above it
    check = row(rows, "readiness_change_check", conditions="larger_of_both")
    assert check["value"] == pytest.approx(change["value"])


def test_without_a_gap_none_is_said(tmp_path):
    rows, page = written(tmp_path, seen=0.0)
    change = row(rows, "readiness_change")
    assert change["low"] < 0 < change["high"]
    assert "shrinks" not in page["lede"]["sentence"]


def test_few_families_have_an_estimate_and_the_reason_why_no_interval(tmp_path):
    rows, page = written(tmp_path, families=5, members=4)
    change = row(rows, "readiness_change")
    assert change["value"] == pytest.approx(-0.2, abs=0.02)
    assert (change["reason_code"], page["lede"]["interval"]) == ("too_few", "")
    assert row(rows, "readiness_change_p")["reason_code"] == "too_few"


def test_a_group_of_one_family_has_a_rank_among_families(tmp_path):
    rows, page = written(tmp_path, groups=["family=f1", "released>=2024-01"])
    rank = row(rows, "readiness_placebo_rank", conditions="family=f1")
    assert rank["value"] in (1, 2, 3)  # f0 and f2 have seen the formats too
    assert rank["n"] == 8
    assert f"rank {rank['value']:.0f} among the 8 families" in page["findings"][0]["basis"]
    assert row(rows, "readiness_placebo_rank", conditions="released")["reason_code"] == "none"
    assert [section["title"] for section in page["sections"]] == [
        "The lead of models of the family f1",
        "The lead of models released since January 2024",
    ]


def test_the_command_takes_several_groups_and_knots(tmp_path):
    tables = zip(("--scores", "--models", "--benchmarks"), map(str, files(tmp_path)), strict=True)
    words = ["readiness", *(word for pair in tables for word in pair), "--group", "seen", "--group", "family=f1"]
    for knots, expected in (("", []), ("1e22", [1e22])):
        CliRunner().invoke(app, [*words, "--knots", knots, "--output", str(tmp_path / "out")], catch_exceptions=False)
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert [(one["group"], one["knots"]) for one in summary["groups"]] == [
            ("seen", expected),
            ("family=f1", expected),
        ]


def test_a_site_has_page_answer_and_cards_and_a_bad_group_leaves_nothing(tmp_path):
    scores, models, benchmarks = files(tmp_path)

    def site(name, group):
        given = Given(models, benchmarks, processes=1, agreement=Agreement(groups=(group,)))
        report_site([scores], tmp_path / name, given)
        return tmp_path / name

    folder = site("site", "seen")
    rows = pd.read_parquet(folder / "readiness" / "results.parquet")
    change = row(rows, "readiness_change", "quiz")
    card = json.loads((folder / "cards" / "quiz" / "card.json").read_text())
    assert card["values"]["readiness_change"]["estimate"] == change["value"]
    assert card["values"]["lead.direct"]["basis"] == {"group": "seen", "models": 16}
    low, high = (f"−{-100 * change[end]:.0f}" for end in ("low", "high"))
    assert f"95% of the change: {low} to {high}" in (folder / "cards" / "quiz" / "index.html").read_text()
    assert "lead of seen models shrinks" in (folder / "index.html").read_text()
    with pytest.raises(InputError, match=r"models\.csv: group 'nothing'"):
        site("other", "nothing")
    assert not (tmp_path / "other").exists()


def test_scores_that_are_no_fractions_and_protocols_without_scores(tmp_path):
    scores, models, benchmarks = files(tmp_path)
    table = pd.read_parquet(scores)
    table.loc[table["benchmark"] == "sums", "value"] *= 100
    write_table(table, SCORES, scores)
    report_readiness(scores, models, benchmarks, tmp_path / "out", Agreement(groups=("seen",)))
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert list(summary["groups"][0]["benchmarks"]) == ["quiz"]
    assert any("sums" in note for note in summary["notes"])
    write_table(table[table["protocol"] == DIRECT], SCORES, scores)
    with pytest.raises(InputError, match="both protocols"):
        report_readiness(scores, models, benchmarks, tmp_path / "none", Agreement(groups=("seen",)))
    assert not (tmp_path / "none").exists()
