"""The readiness report on small worlds whose truth is known."""

import json

import numpy as np
import pandas as pd
import pytest
from tests.unit.studies.agreement import conftest
from tests.unit.studies.agreement.conftest import DIRECT, TRAINED

from lm_validity.config.sections import Agreement
from lm_validity.errors import InputError
from lm_validity.results.put import Rows
from lm_validity.site.gather import Given
from lm_validity.site.report import report_site
from lm_validity.studies.agreement.readiness import report_readiness
from lm_validity.tables.counted import Sources
from lm_validity.tables.schema import SCORES, write_table


def files(folder, families=8, tasks=("quiz", "sums"), seen=0.2, members=2):
    """Scores and sheets of a world: families 0 to 2 are the group, which has seen the formats of the tests."""
    rng = np.random.default_rng(4)
    models, scores = [], []
    for place in range(families * members):
        family, log = place % families, 21.3 + place / 9
        model = {"model": f"m{place}", "family": f"f{family}", "seen": int(family < 3)}
        model["released"] = f"20{20 + family}-05"
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
    """(page, rows) of the report on such a world."""
    return reported(files(folder, **world), folder / "readiness", groups)


def reported(paths, output, groups=("seen",)):
    return conftest.reported(Sources(*paths), output, Agreement(groups=tuple(groups)), report_readiness)


def test_a_gap_of_readiness_is_found_and_its_interval_is_of_the_change(tmp_path):
    page, rows = written(tmp_path)
    change = rows.row("readiness_change", subject=None)
    assert change.low < -0.2 < change.high < 0 and (change.interval_for, change.n) == ("families", 16)
    for protocol, lead in ((DIRECT, 0.2), (TRAINED, 0.0)):
        assert rows.value("lead", subject="quiz", protocol=protocol) == pytest.approx(lead, abs=0.02)
    assert all(0 < row.value < 0.05 for row in rows.all("readiness_change_p_adjusted"))
    interval = page["lede"]["interval"]
    assert interval == f"95% of the change: −{-100 * change.low:.0f} to −{-100 * change.high:.0f}"
    assert page["lede"]["heading"] == "The lead shrinks in points once every model is prepared"
    assert "seen models lead by 20 points, and by 0 after training" in page["lede"]["sentence"]
    assert "all together" in page["picture"]["svg"]


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
    page, rows = reported(logistic_files(tmp_path, 2.0, chance), tmp_path / "out")
    assert rows.row("readiness_change", subject="quiz").high < 0
    logits = rows.row("readiness_logit_change", subject="quiz")
    if chance is None:
        assert logits.reason_code == "no_chance"
    else:
        assert logits.value == pytest.approx(0, abs=0.03)  # each model gains 1.5
    heading = page["lede"]["heading"]
    assert heading.startswith("The lead shrinks in points")
    assert heading.endswith(scale or "once every model is prepared")


def test_three_models_of_one_family_have_no_lead_that_is_surely_one(tmp_path):
    paths = files(tmp_path, families=3, members=1)
    sheet = pd.read_csv(paths[1]).assign(family="f", seen=[0, 0, 1])
    sheet.to_csv(paths[1], index=False)
    page, rows = reported(paths, tmp_path / "out")
    assert rows.row("readiness_change", subject=None).reason_code == "too_few" and not page["answers"]


def test_a_group_of_one_family_has_a_rank_among_families(tmp_path):
    page, rows = written(tmp_path, groups=["family=f1", "released>=2024-01"])
    rank = rows.row("readiness_placebo_rank", subject=None, group="family=f1")
    assert rank.value in (1, 2, 3) and rank.n == 8  # f0 and f2 have seen the formats too
    assert f"rank {rank.value:.0f} among the 8 families" in page["findings"][0]["basis"]
    assert rows.row("readiness_placebo_rank", subject=None, group="released>=2024-01").reason_code == "none"
    assert [section["title"] for section in page["sections"]] == [
        "The lead of models of the family f1",
        "The lead of models released since January 2024",
    ]


def test_a_site_has_page_answer_and_cards_and_a_bad_group_leaves_nothing(tmp_path):
    scores, *sheets = files(tmp_path)

    def site(name, group):
        report_site([scores], tmp_path / name, Given(*sheets, agreement=Agreement(groups=(group,))))
        return tmp_path / name

    folder = site("site", "seen")
    change = Rows.read(folder / "readiness" / "results.parquet").row("readiness_change", subject="quiz")
    card = json.loads((folder / "cards" / "quiz" / "card.json").read_text())
    rows = {(row["quantity"], row["protocol"]): row for row in card["rows"]}
    assert rows["readiness_change", None]["value"] == change.value
    assert rows["lead", "direct"]["n"] == 16 and json.loads(rows["lead", "direct"]["conditions"]) == {"group": "seen"}
    assert "Do seen models lead because they were prepared?" in (folder / "index.html").read_text()
    with pytest.raises(InputError, match=r"models\.csv: group 'nothing'"):
        site("other", "nothing")
    assert not (tmp_path / "other").exists()


def test_scores_that_are_no_fractions_and_protocols_without_scores(tmp_path):
    scores, models, benchmarks = files(tmp_path)
    table = pd.read_parquet(scores)
    table.loc[table["benchmark"] == "sums", "value"] *= 100
    write_table(table, SCORES, scores)
    page, rows = reported((scores, models, benchmarks), tmp_path / "out")
    assert rows.labels("subject", "lead") == ["quiz"]
    assert any("sums" in note for note in page["notes"])
    write_table(table[table["protocol"] == DIRECT], SCORES, scores)
    with pytest.raises(InputError, match="both protocols"):
        report_readiness(Sources(scores, models, benchmarks), tmp_path / "none", Agreement(groups=("seen",)))
    assert not (tmp_path / "none").exists()
