"""The readiness report on small worlds whose truth is known."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from lm_validity.cli.reports import app
from lm_validity.config.sections import Agreement
from lm_validity.errors import InputError
from lm_validity.pages import svg
from lm_validity.site.report import Given, report_site
from lm_validity.studies.agreement.readiness.page import report_readiness
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


def logistic_files(folder, boost, chance=0.25):
    """A world of equal gains in logits (1.5), in which the group of 8 of 20 families has `boost` more ability."""
    paths = files(folder, families=20, tasks=("quiz",), members=3)
    table, models = pd.read_parquet(paths[0]), pd.read_csv(paths[1])
    rng = np.random.default_rng(7)
    models["seen"] = [int(place % 20 < 8) for place in range(60)]
    models["parameters_b"] = 10 ** (rng.uniform(-0.5, 0.5, 60) + 0.5)
    ability = np.log10(models["parameters_b"]) + boost * models["seen"] + 0.2 * rng.standard_normal(60)
    of_model = dict(zip(models["model"], ability, strict=True))
    logits = table["model"].map(of_model) + np.where(table["protocol"] == TRAINED, 1.5, 0.0)
    logits += rng.normal(0, 0.02, len(table))
    table["value"] = 0.25 + 0.75 / (1 + np.exp(-logits))
    models.to_csv(paths[1], index=False)
    pd.DataFrame({"benchmark": ["quiz"], "metric": ["acc"], "chance": [chance]}).to_csv(paths[2], index=False)
    write_table(table, SCORES, paths[0])
    return paths


@pytest.mark.parametrize(("chance", "scale"), [(0.25, "; on the logit scale that was not found"), (None, "")])
def test_more_ability_with_equal_gains_in_logits_shrinks_in_points_only(tmp_path, chance, scale):
    report_readiness(*logistic_files(tmp_path, 2.0, chance), tmp_path / "out", Agreement(groups=("seen",)))
    rows = pd.read_parquet(tmp_path / "out" / "results.parquet")
    points = row(rows, "readiness_change", "quiz")
    assert points["high"] < 0
    logits = row(rows, "readiness_logit_change", "quiz")
    if chance is None:
        assert logits["reason_code"] == "no_chance"
    else:
        assert logits["value"] == pytest.approx(0, abs=0.03)  # each model gains 1.5
    page = json.loads((tmp_path / "out" / "page.json").read_text())
    heading = page["lede"]["heading"]
    assert heading.startswith("The lead shrinks in points")
    assert heading.endswith(scale or "once every model is prepared")


def test_one_model_under_two_names_is_of_one_family(tmp_path):
    paths = files(tmp_path, families=12, members=2)
    table, models = pd.read_parquet(paths[0]), pd.read_csv(paths[1])
    once = report_rows(paths, tmp_path / "once")
    again = models[models["family"] != "f0"].assign(
        model=lambda sheet: sheet["model"] + "-copy", family=lambda sheet: sheet["family"] + "-copy"
    )
    copies = table.assign(model=table["model"] + "-copy")
    copies = copies[copies["model"].isin(again["model"])]
    pd.concat([models, again]).to_csv(paths[1], index=False)
    write_table(pd.concat([table, copies]), SCORES, paths[0])
    twice = report_rows(paths, tmp_path / "twice")
    assert row(twice, "families_compared", conditions="outside")["value"] == 9
    assert row(once, "families_compared", conditions="outside")["value"] == 9
    summary = json.loads((tmp_path / "twice" / "summary.json").read_text())
    assert any("count once" in note for note in summary["notes"])


def report_rows(paths, output):
    report_readiness(*paths, output, Agreement(groups=("seen",)))
    return pd.read_parquet(output / "results.parquet")


def test_an_end_of_an_interval_that_is_not_zero_is_not_written_as_zero():
    assert svg.points_apart((-0.1134, -0.0029)) == ("−11.3", "−0.3")
    assert svg.points_apart((-0.11, 0.0)) == ("−11", "+0")
    assert svg.points_apart((-0.11, 0.02)) == ("−11", "+2")


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
