"""What stands above the folds of the factors page: every world says a finding, and its numbers are the summary's."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from tests.unit.studies.agreement.conftest import DIRECT, TRAINED, score_rows
from tests.unit.studies.agreement.test_front import BENCHMARKS, NAMES, scores

from lm_validity.config.sections import Reports
from lm_validity.studies.agreement.factors.report import report_factors
from lm_validity.tables.schema import SCORES, write_table

MODELS = "model,family,parameters_b,tokens_b\n" + "".join(
    f"{name},F{i % 5},{1 + i // 4},{300 * (i + 1)}\n" for i, name in enumerate(NAMES)
)
LONG = [f"{'x' * 80}-{name}" for name in NAMES]


def report(folder, table, resamples=60, names=NAMES, models=MODELS, stderr=0.01) -> tuple[dict, dict]:
    """page.json and summary.json, without the figures' files."""
    write_table(pd.DataFrame(score_rows(table, names, stderr)), SCORES, folder / "scores.parquet")
    (folder / "models.csv").write_text(models)
    (folder / "benchmarks.csv").write_text(BENCHMARKS)
    paths = [folder / name for name in ("scores.parquet", "models.csv", "benchmarks.csv")]
    report_factors(*paths, folder / "factors", Reports(resamples=resamples))
    return tuple(json.loads((folder / "factors" / f"{name}.json").read_text()) for name in ("page", "summary"))


WORLDS = {
    "both": (scores(), {}),
    "direct": ({DIRECT: scores()[DIRECT]}, {}),
    "without compute or intervals": (scores(), {"resamples": 0, "models": "model\nm00\n"}),
    "two models": ({p: {name: of[:2] for name, of in t.items()} for p, t in scores().items()}, {"names": NAMES[:2]}),
    "constant": ({DIRECT: {f"task{i}": [0.5] * 16 for i in range(8)}}, {}),
    "long names": (scores(), {"names": LONG, "models": re.sub(r"^m\d", f"{'x' * 80}-\\g<0>", MODELS, flags=re.M)}),
}


@pytest.mark.parametrize("world", WORLDS)
def test_every_world_keeps_to_the_grammar(tmp_path, world):
    table, options = WORLDS[world]
    page, _ = report(tmp_path, table, **options)
    assert page["lede"]["heading"]
    for said in (page["lede"], *page["answers"]):
        assert len(said["sentence"].split()) <= 18 and not re.search("nan|None", said["sentence"])
        assert len(re.findall(r"\d+%?: ", said["interval"])) <= 1
    drawn = [page["picture"]["svg"]] if page["picture"] else []
    drawn += [one["svg"] for one in (*page["panels"], *page["answers"])]
    assert all(re.search(r'aria-label="[^"]{20,}', svg) and "nan" not in svg for svg in drawn)
    assert (page["picture"] is not None) == (
        "tokens_b" in options.get("models", MODELS) and world not in ("two models", "constant")
    )
    assert bool(page["answers"]) == (world in ("both", "direct", "long names"))


def test_equal_scores_under_both_protocols_have_equal_numbers(tmp_path):
    """What is drawn at random is drawn alike under both, so that a difference is one of scores."""
    _, summary = report(tmp_path, {p: scores()[DIRECT] for p in (DIRECT, TRAINED)}, 0)
    for part in ("completion", "parallel_analysis"):
        assert summary[part][DIRECT] == summary[part][TRAINED] is not None


def test_the_heading_and_the_numbers_are_the_summarys(tmp_path):
    page, summary = report(tmp_path, scores())
    shares, over = summary["explained_variance_in_both"], summary["explained_variance_in_both_interval"]
    assert f"explains {100 * shares[TRAINED][0]:.0f}%" in page["lede"]["sentence"]
    families = summary["explained_variance_in_both_interval_clustered"][TRAINED]
    ends = max((ends for ends in (over[TRAINED][0], families) if ends), key=lambda ends: ends[1] - ends[0])
    assert page["lede"]["interval"] == f"95%: {100 * ends[0]:.0f}% to {100 * ends[1]:.0f}%"
    assert page["lede"]["heading"].startswith("One ability explains most differences") == (ends[0] > 0.5)
    explained, ranks, misleading = page["panels"]
    assert explained["text"].startswith(
        " → ".join(f"{'**' * (not i)}{100 * shares[p][0]:.0f}%" for i, p in enumerate((DIRECT, TRAINED)))
    )
    first = min(summary["potential"][TRAINED].items(), key=lambda item: item[1]["rank"])
    assert first[0] in ranks["text"] and first[0] in page["answers"][0]["sentence"]
    low = [each["interval_by_pairs"][0] for each in summary["potential"][TRAINED].values()]
    assert ranks["text"].startswith(f"**{sum(end <= 1 for end in low)} of 16**")
    best = sum(end <= 1 for end in low)
    words = f"Any of {best} models could be the best of 16" if 1 < best < 16 else f"{best} of 16 models may be best"
    assert page["answers"][0]["sentence"].startswith(f"{words}; ")
    ends = "{:g} to {:g}".format(*first[1]["interval_by_pairs"])
    assert page["answers"][0]["interval"] == f"95%: {ends}" and ends in ranks["text"]
    assert f"95% interval {ends}" in "".join(finding["sentence"] for finding in page["findings"])
    gaps = pd.read_csv(tmp_path / "factors" / "tables" / "misleading_direct_ranks.csv")
    assert misleading["text"].startswith(f"**{int(((gaps['low'] > 0) | (gaps['high'] < 0)).sum())} of 16**")
    assert "; about 0.8 would" in misleading["text"]  # 5% of 16


def test_neither_two_benchmarks_nor_noise_decide_in_how_many_ways_models_differ(tmp_path):
    """Of two benchmarks that have nothing in common the first factor explains more than half; of one ability behind
    much noise, less."""
    rng, names = np.random.default_rng(2), [f"m{i:02}" for i in range(60)]
    two = {DIRECT: {f"task{i}": (0.5 + 0.1 * rng.standard_normal(16)).tolist() for i in range(2)}}
    ability = rng.standard_normal(60)
    noisy = {DIRECT: {f"task{i}": (0.5 + 0.005 * ability + 0.01 * rng.standard_normal(60)).tolist() for i in range(8)}}
    models = "model\n" + "\n".join(names)
    for place, (table, options) in enumerate(((two, {}), (noisy, {"names": names, "models": models}))):
        (tmp_path / str(place)).mkdir()
        page, summary = report(tmp_path / str(place), table, **options)
        low, high = summary["explained_variance_interval"][DIRECT][0]
        assert (low > 0.5, high < 0.5) == (place == 0, place == 1)
        assert page["lede"]["heading"] == "Not known whether one ability explains most differences"


@pytest.mark.parametrize("stderr", [0.01, 0.2])
def test_a_ceiling_below_the_first_factors_share_is_neither_drawn_nor_named(tmp_path, stderr):
    page, summary = report(tmp_path, {DIRECT: scores(0.3)[DIRECT]}, stderr=stderr)
    above = summary["explained_variance"][DIRECT][0] > summary["first_component_ceiling"][DIRECT]
    assert above == (stderr == 0.2) == any("above its noise ceiling" in note for note in page["notes"])
    drawn = bool(re.search('class="[^"]*\\bcl\\b', page["panels"][0]["svg"]))
    assert drawn == ("noise would leave" in page["findings"][1]["basis"]) != above


def test_what_stands_together_is_of_the_same_cells(tmp_path):
    """Four models are not trained: one protocol's figures are of all its cells, and the panel compares common ones."""
    table = scores(trained=0.8)
    table[TRAINED] = {name: [*of[:12], *[None] * 4] for name, of in table[TRAINED].items()}
    table[DIRECT]["task0"][:4] = [None] * 4
    page, summary = report(tmp_path, table)
    labels = re.findall('First factor against[^"]*', page["picture"]["svg"])[:2]
    for protocol, label in zip((DIRECT, TRAINED), labels, strict=True):
        own = summary["pc1_compute"][protocol]
        low, high = own["kendall_interval"]
        assert own["kendall"] != summary["pc1_compute_in_both"][protocol]["kendall"] or protocol == TRAINED
        assert f"compute: {own['kendall']:.2f}, 95% {low:.2f} to {high:.2f}" in label.replace("−", "-")
    own, both = (summary[key][TRAINED] for key in ("explained_variance", "explained_variance_in_both"))
    ends = max(
        (summary["explained_variance_interval"][TRAINED][0],
         summary["explained_variance_interval_clustered"][TRAINED] or [0, 0]), key=lambda ends: ends[1] - ends[0],
    )  # fmt: skip
    assert f"{100 * own[0]:.0f}" != f"{100 * both[0]:.0f}"
    assert f"explains {100 * own[0]:.0f}%" in page["lede"]["sentence"]
    assert page["lede"]["interval"] == f"95%: {100 * ends[0]:.0f}% to {100 * ends[1]:.0f}%"
    panel = page["panels"][0]
    assert f"→ {100 * both[0]:.0f}%" in panel["text"] and "shuffled" not in panel["text"] + panel["svg"]


def test_models_that_share_the_first_place_may_both_be_best(tmp_path):
    table = {DIRECT: {name: [*of[:14], 1.0, 1.0] for name, of in scores(0.1)[DIRECT].items()}}
    page, summary = report(tmp_path, table)
    assert sorted(each["rank"] for each in summary["potential"][DIRECT].values())[:2] == [1.5, 1.5]
    answer = page["answers"][0]
    assert answer["sentence"] == "Any of 2 models could be the best of 16; m14 and 1 more rank first"
    assert answer["interval"] == "95%: 1 to 2"
    # whichever order a resample's ties come in, each of the two is among its first one
    assert {each["share_in_top"]["1"] for each in summary["potential"][DIRECT].values()} == {0.0, 1.0}


def test_how_many_may_be_best_is_not_known_where_a_model_has_no_interval(tmp_path):
    """The interval of the first one is still said."""
    table = {p: {name: [None, *of[1:]] if i else of for i, (name, of) in enumerate(t.items())}
             for p, t in scores().items()}  # fmt: skip
    page, summary = report(tmp_path, table)
    assert summary["potential"][TRAINED]["m00"]["interval_population_of_benchmarks"] is None
    answer = page["answers"][0]
    assert answer["sentence"].startswith("Not known") and "without" not in answer["sentence"] and answer["interval"]


def test_one_factor_that_explains_all_is_an_answer(tmp_path):
    """Five benchmarks that are lines of one ability; of two with three models a shuffled table explains as much."""
    ability = np.linspace(0.2, 0.6, 12)
    table = {DIRECT: {f"task{i}": (0.1 + (0.5 + 0.1 * i) * ability).tolist() for i in range(5)}}
    page, summary = report(tmp_path, table, names=NAMES[:12])
    assert summary["explained_variance"][DIRECT][0] == pytest.approx(1)
    assert summary["explained_variance_interval"][DIRECT][0] is None
    assert page["lede"]["heading"].startswith("One ability explains most differences")
    assert "explains 100%" in page["lede"]["sentence"] and page["lede"]["interval"] == ""
    (tmp_path / "few").mkdir()
    few = {DIRECT: {name: of[:3] for name, of in list(table[DIRECT].items())[:2]}}
    page, _ = report(tmp_path / "few", few, names=NAMES[:3])
    assert page["lede"]["heading"].startswith("Not known")
