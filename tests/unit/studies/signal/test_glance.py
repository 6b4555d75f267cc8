"""The page of the signal report before its folds, and its answers for a site's first page, in many worlds."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lm_validity.config.sections import Reports
from lm_validity.missing import Missing
from lm_validity.pages.page import page_document
from lm_validity.pages.svg import LogAxis
from lm_validity.results.rows import rows_of
from lm_validity.studies.signal import order, ready
from lm_validity.studies.signal.report import analyze_signal, signal
from lm_validity.tables.schema import SCORES, write_table

LONG = "a_benchmark_with_a_name_of_" + "eighty_letters_" * 4
NAMES = ["facts", "flat", "שפה", LONG]


def page_of(folder, models=4, checkpoints=12, names=NAMES, resamples=60, tokens_b=10.0, stderr=0.01, fall=False,
            later=0.0, lower_is_better=()):  # fmt: skip
    """The page and the results of a world in which all benchmarks but `flat` rise, or fall from 3 where lower is
    better; models differ in level, and each begins `later` billion tokens after the one before."""
    rng = np.random.default_rng(0)
    rows = [
        {"model": f"m{i}", "checkpoint": f"step{step}", "iteration": 1000 * step,
         "tokens_b": tokens_b * step + later * i, "benchmark": name, "protocol": "direct", "metric": "acc,none",
         "stderr": stderr, "n_items": 2000,
         "value": 0.25 + 2.75 * (name in lower_is_better) + 0.002 * rng.standard_normal() + (name != "flat")
         * (0.4 + 0.1 * min(i, 3)) * (-0.5 if fall or name in lower_is_better else 1) * step / checkpoints}
        for name in names for i in range(models) for step in range(1, checkpoints + 1)
    ]  # fmt: skip
    write_table(pd.DataFrame(rows), SCORES, folder / "scores.parquet")
    sheet = [{"model": f"m{i}", "size": f"{i // 2}b", "architecture": f"a{i % 2}"} for i in range(models)]
    pd.DataFrame(sheet).to_csv(folder / "m.csv", index=False)
    direction = {name: {"higher_is_better": 0} for name in lower_is_better}
    listed = [{"benchmark": name, "metric": "acc", "chance": 0.25} | direction.get(name, {}) for name in names]
    pd.DataFrame(listed).to_csv(folder / "b.csv", index=False)
    section = Reports(resamples=resamples)
    data = analyze_signal(folder / "scores.parquet", folder / "m.csv", folder / "b.csv", section=section)
    page, summary = signal(data)
    return page_document(page), pd.DataFrame(rows_of("signal", summary))


def words(text):
    return len(re.findall(r"\S+", text))


def ready_of(rows):
    """Billions of tokens by which benchmarks are ready, by the definition, and how many were measured: above chance for
    good, and the upper end of the interval of the settled order, before the last point of training."""
    found, counted, both = [], 0, False
    for _, own in rows.groupby("subject"):
        one = own.drop_duplicates("quantity").set_index("quantity")
        if "above_chance" not in one.index or "settled_from" not in one.index:
            continue
        start, settled = one.loc["above_chance_from_mean"], one.loc["settled_from"]
        last = own.loc[own["quantity"] == "point_tokens", "value"].astype(float).max()
        by = max(float(start["value"]), float(settled["high"]))
        at_chance = one.loc["above_chance", "value"] == 0
        known = not np.isnan(by) and bool(one.loc["common_points_at_end", "value"])
        counted += at_chance or not np.isnan(by)
        found += [by] if known and by < last and not at_chance else []
        both |= not np.isnan(by)
    return (found, counted) if both else ([], 0)


WORLDS = {
    "whole": {},
    "two models": {"models": 2},
    "one benchmark": {"names": ["facts"]},
    "no intervals": {"resamples": 0},
    "no standard errors": {"stderr": np.nan},
    "three checkpoints": {"checkpoints": 3},
    "tokens unknown": {"tokens_b": np.nan},
    "falling": {"fall": True},
    "at chance": {"names": ["flat"]},
    "nothing in common": {"later": 1000.0},
}


@pytest.mark.parametrize("world", WORLDS)
def test_a_page_is_short_and_its_pictures_say_their_numbers(tmp_path, world):
    page, rows = page_of(tmp_path, **WORLDS[world])
    lede, panels, answers = page["lede"], page["panels"], page["answers"]
    assert lede["heading"] and words(lede["sentence"]) <= 18
    assert all(0 < words(answer["sentence"]) <= 18 for answer in answers) and len(panels) <= 3
    assert all(re.search(r"\w\.$", answer["sentence"]) for answer in answers)
    assert len([answer for answer in answers if answer["question"] == "Do scores improve steadily in training?"]) == 1
    pictures = [page["picture"]["svg"], *(each["svg"] for each in (*panels, *answers))]
    labels = [label for picture in pictures for label in re.findall(r'<svg[^>]*aria-label="([^"]*)"', picture)]
    pictures_in_all = sum(picture.count('role="img"') for picture in pictures)
    assert len(labels) == pictures_in_all and all("nan" not in label.split() for label in labels)
    assert "nan" not in re.sub(r'aria-label="[^"]*"', "", " ".join(pictures))
    steady, svg, heading = rows[rows["quantity"] == "steady"]["value"], page["picture"]["svg"], lede["heading"]
    ready, counted = ready_of(rows)
    if counted:
        assert [int(number) for number in re.findall(r"\d+", heading)] == ([len(ready), counted] if ready else [])
        by = sorted(re.findall(r">ready by ([\d.,]+) ", svg.split('class="n640"')[0]))
        assert by == sorted(f"{tokens:.3g}" for tokens in ready)
        heading = re.findall(r"<h2>([^<]*)</h2>", svg)[0]
    assert (">ready by " in svg) == bool(ready)
    if steady.notna().any() and steady.sum():
        assert [int(number) for number in re.findall(r"\d+", heading)] == [steady.sum(), steady.notna().sum()]
        assert f"{int(steady.sum())} of {steady.notna().sum()} " in answers[0]["sentence"]
    else:
        assert not re.search(r"\d", heading)
    assert page["picture"]["svg"].count('class="mk y"') == steady.sum()
    shown = re.findall(r"signal quality <b>([^<]*)</b>(?: \(95%: (.*?) to (.*?)\))?", page["picture"]["svg"])
    quality = rows[rows["quantity"] == "signal_quality_mean"][["value", "low", "high"]].astype(float)
    expected = quality.apply(lambda row: tuple("" if np.isnan(each) else f"{each:.2f}" for each in row), axis=1)
    assert sorted(shown) == sorted((value or "unknown", low, high) for value, low, high in expected)


def test_answers_that_need_no_more_data_are_given_and_others_say_what_is_missing(tmp_path):
    outcomes = {}
    for world in ("whole", "no intervals", "no standard errors"):
        (tmp_path / world).mkdir()
        page, rows = page_of(tmp_path / world, **WORLDS[world])
        outcomes[world] = {panel["question"].split()[0:2][1]: panel["outcome"] for panel in page["panels"]}
        assert {"whole": 3, "no intervals": 3, "no standard errors": 3}[world] == len(page["answers"])
        lasts = rows[rows["quantity"].isin(["consistency_lasts", "fitted_consistency_lasts"])]
        assert (lasts["reason_code"] == "skipped").any() == (world == "no intervals")
    assert outcomes["whole"]["scores"] == "in part" and outcomes["no standard errors"]["scores"] == "not measured"
    assert outcomes["no intervals"]["an"] == "not measured"
    assert "does" not in outcomes["whole"] and outcomes["no standard errors"]["does"] == "not measured"


def test_scores_of_which_lower_is_better_improve_and_are_no_points(tmp_path):
    page, rows = page_of(tmp_path, names=["facts", "loss"], lower_is_better=["loss"])
    steady = rows[rows["quantity"] == "steady"].set_index("subject")["value"]
    assert steady["loss"] == 1
    question, chance = page["answers"][0]["question"], page["panels"][-1]
    assert question == "Do scores improve steadily in training?" and " improve steadily" in page["picture"]["svg"]
    above = [page["lede"]["heading"], page["lede"]["sentence"], page["picture"]["note"], page["answers"][0]["sentence"]]
    assert not re.search(r"\brises?\b", " ".join([*above, page["question"]]))
    assert "facts" in chance["svg"] and "loss" not in chance["svg"]


@pytest.mark.parametrize("world", ["whole", "nothing in common"])
def test_each_benchmark_of_the_answer_has_a_curve(tmp_path, world):
    page, _ = page_of(tmp_path, **WORLDS[world])
    curves = re.findall(r'<polyline points="([^"]*)"', page["answers"][0]["svg"])
    assert [len(curve.split()) for curve in curves] == [12] * len(NAMES)


def test_names_do_not_overlap_in_panels(tmp_path):
    """By the letters' room: 6 pixels a letter of 11.5 pixels, the line 11 high."""
    page, _ = page_of(tmp_path, names=[*NAMES, *(f"benchmark_{i}" for i in range(8))])
    for panel in page["panels"]:
        boxes = []
        pattern = r'<text x="([\d.-]+)" y="([\d.-]+)" class="[^"]*" text-anchor="(\w+)">([^<]*)<'
        for x, y, anchor, text in re.findall(pattern, panel["svg"]):
            width = 6 * len(text)
            left = float(x) - {"start": 0, "middle": width / 2, "end": width}[anchor]
            boxes.append((left, left + width, float(y), text))
        for place, (left, right, y, text) in enumerate(boxes):
            for left_too, right_too, y_too, other in boxes[:place]:
                assert right <= left_too or right_too <= left or abs(y - y_too) >= 11, (panel["question"], text, other)


def test_many_benchmarks_and_many_models_are_drawn_in_part(tmp_path):
    page, _ = page_of(tmp_path, models=1, checkpoints=5, names=[f"b{i}" for i in range(26)], resamples=0)
    assert page["picture"]["svg"].count('<svg class="lines') == 24 and "24 of 26" in page["picture"]["note"]
    page, _ = page_of(tmp_path, models=62, checkpoints=62, names=["facts"], resamples=0)
    lines = re.findall(r'<polyline points="([^"]*)" class="ln"', page["picture"]["svg"])
    assert len(lines) == 60 and {len(each.split()) for each in lines} == {60}
    assert "60 of the models" in page["picture"]["note"]


def test_a_family_is_one_row_and_one_panel_that_opens(tmp_path):
    names = ["facts", *(f"exam-{subject}" for subject in ("art", "law", "logic", "music", "physics"))]
    page, _ = page_of(tmp_path, names=names, resamples=0)
    svg = page["picture"]["svg"]
    assert svg.count("exam (5)") >= 2 and svg.count('<a href="#family-') == 1
    fold = re.findall(r'<details class="fold" id="family-\d+">(.*?)</details>', svg, re.S)
    assert len(fold) == 1 and fold[0].count('<svg class="lines') == 5
    assert svg.count('<svg class="lines') == 5 + 2


def test_curves_have_names_and_doubling_steps_a_logarithmic_axis(tmp_path):
    page, _ = page_of(tmp_path, names=["facts"], resamples=0)
    svg = page["picture"]["svg"]
    assert set(re.findall(r'data-n="([^"]*)"', svg)) == {"m0", "m1", "m2", "m3"} and "&#34;log&#34;: false" in svg
    even = np.arange(1.0, 9.0)
    assert [ready.longest_run(at) for at in (even, 2.0**even, np.r_[1.0, 2, 4, 8, 16, 20, 24])] == [1, 7, 4]
    axis = LogAxis(1, 1000, 0, 300)
    assert [axis(each) for each in (0, 1, 10, 100, 1000, 2000)] == [0, 0, 100, 200, 300, 300]


@pytest.mark.parametrize(("starts", "outcome"), [(20.0, "not known"), (Missing("never"), "no")])
def test_a_mean_above_chance_and_no_model_by_itself_is_no_sure_no(starts, outcome):
    """Ten models that are each 1.8 standard errors above chance are above it together."""
    benchmark = SimpleNamespace(
        benchmark="quiz",
        models_above_chance=0,
        scored=["m"],
        curves={"m": SimpleNamespace(progress=np.array([10.0, 60.0]))},
    )
    data = SimpleNamespace(benchmarks={"quiz": benchmark}, progress=SimpleNamespace(scale=1.0))
    quality = SimpleNamespace(above_chance_from_b=starts)
    settled = SimpleNamespace(settled_from_interval_b=(30.0, 60.0))
    summary = SimpleNamespace(benchmarks={"quiz": quality}, ranking={"quiz": settled})
    assert [row.outcome for row in ready.ready_benchmarks(data, summary)] == [outcome]


@pytest.mark.parametrize("highs", [(30.0, 30.0), (30.0, 50.0)])
def test_benchmarks_that_settle_at_one_point_are_all_named(highs):
    """With their interval where it is one, else without."""
    axis = np.array([10.0, 20.0, 30.0, 50.0, 80.0])
    alignment = SimpleNamespace(tokens_b=axis, progress=axis, at_end=True)
    names = dict(zip(("tides", "knots"), highs, strict=True))
    benchmarks = {name: SimpleNamespace(alignment=alignment, models_above_chance=None) for name in names}
    data = SimpleNamespace(benchmarks=benchmarks, progress=SimpleNamespace(scale=1.0, words="billion tokens"))
    ranking = {
        name: SimpleNamespace(separable_pairs=3, nearly_settled=lambda high=high, **_: (10.0, (10.0, high)))
        for name, high in names.items()
    }
    sentence = order._settling_finding(data, ranking).sentence
    assert "tides, knots" in sentence and ("30.0" in sentence) == (highs[0] == highs[1]) and "50.0" not in sentence


def test_curves_that_fall_before_they_rise_are_not_laid_to_noise(tmp_path):
    """U without noise: no steady rise is shown, and the sentence has the other cause too."""
    rows = [
        {"model": f"m{i}", "checkpoint": f"step{step}", "iteration": step, "tokens_b": float(step),
         "benchmark": "facts", "protocol": "direct", "metric": "acc,none",
         "value": 0.4 + 0.05 * i + 0.004 * (step - 6.5) ** 2}
        for i in range(3) for step in range(1, 13)
    ]  # fmt: skip
    write_table(pd.DataFrame(rows), SCORES, tmp_path / "scores.parquet")
    (tmp_path / "m.csv").write_text("model\n" + "".join(f"m{i}\n" for i in range(3)))
    page, summary = signal(
        analyze_signal(tmp_path / "scores.parquet", tmp_path / "m.csv", section=Reports(resamples=20))
    )
    table = pd.DataFrame(rows_of("signal", summary))
    assert table[table["quantity"] == "rank_correlation"]["value"].abs().max() < 0.2  # the U goes nowhere
    assert "On no benchmark" in page.lede.heading and "fall before they rise" in page.lede.sentence
