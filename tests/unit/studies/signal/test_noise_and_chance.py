"""What a curve that learns nothing scores, and scores at chance: random walks, standard errors, the sheet's chance."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from signal_world import MODELS, World, curve_rows, found_in, item_rows, with_fewer_choices, write_scores, write_world

from lm_validity.config.sections import Reports
from lm_validity.results.put import Rows
from lm_validity.site.cards.card import make_card
from lm_validity.site.cards.values import CardSources, value_of
from lm_validity.studies.agreement.report import report_agreement
from lm_validity.studies.signal.report import report_signal
from lm_validity.studies.signal.statistics.quality import Controls, signal_quality, walked_quality
from lm_validity.tables.counted import Sources
from lm_validity.tables.schema import SCORES, write_table
from lm_validity.words import listing

NAMES = tuple(f"step-{i}" for i in range(20))


def test_models_share_the_signs_of_their_steps():
    curve = np.cumsum(np.random.default_rng(2).standard_normal(20))
    controls = Controls(np.random.default_rng(0), 50)
    draws = walked_quality([curve, 3 * curve - 1, curve[:10]], [NAMES, NAMES, NAMES[:10]], controls)
    np.testing.assert_allclose(draws[:, 0], draws[:, 1])
    # to the tenth checkpoint the same signs; another model's own checkpoints have signs of their own
    alone = walked_quality([curve[:10]], [NAMES[:10]], controls)
    assert draws.shape == (50, 3) and np.isfinite(draws).all() and not np.allclose(draws[:, 2], draws[:, 0])
    assert alone.shape == (50, 1)


def test_walks_keep_the_first_value_and_the_sizes_of_steps():
    curve = np.array([1.0, 4.0, 4.5, 4.0, 9.0, 9.0, 8.0, 7.0])
    found = walked_quality([curve], [NAMES[:8]], Controls(np.random.default_rng(0), 400))[:, 0]
    walks = 1.0 + np.cumsum(list(product((-1, 1), repeat=7)) * np.diff(curve), axis=1)
    possible = signal_quality(np.column_stack([np.ones(2**7), walks])).signal_quality
    assert {*found.round(9)} <= {*possible.round(9)} and len({*found.round(9)}) > 20


# ---- the report --------------------------------------------------------------------------------------------------

NO_DIRECTION = ("bits", "walk", "short")
CHANCE = "benchmark,metric,chance\nfacts,acc,0.25\n"


def found_of(folder, values, errors=None, sheet=CHANCE, resamples=0):
    """What is found of curves {benchmark: {model: (n,)}} with standard errors and a benchmarks sheet. Of the metric
    `own` of `bits`, `walk*` and `short`, nothing says the direction."""
    metrics = {name: "own,none" if name.rstrip("0123456789") in NO_DIRECTION else "acc,none" for name in values}
    rows = curve_rows(values, lambda model, step: 10.0 * step, stderr=errors)
    files = write_scores(folder, [row | {"metric": metrics[row["benchmark"]]} for row in rows], sheet)
    return found_in(files, folder / "benchmarks.csv", resamples=resamples)


def climbing(top):
    return {model: np.linspace(0.25, top + 0.01 * place, 16) for place, model in enumerate(MODELS)}


def drifting(seed):
    rng = np.random.default_rng(seed)
    return {model: 0.25 + 0.01 * np.cumsum(rng.standard_normal(16)) / 4 for model in MODELS}


def test_benchmarks_at_chance_are_not_among_those_that_rise(tmp_path):
    drifts = {f"chance{seed}": drifting(seed) for seed in range(6)}
    # with 470 items the error is 0.02; without their number it would be 14 times the scatter of a drift
    sheet = "benchmark,metric,chance,n_items\n" + "".join(f"{name},acc,0.25,470\n" for name in ("facts", *drifts))
    found = found_of(tmp_path, {"facts": climbing(0.6), **drifts}, 0.02, sheet, resamples=400)
    assert found.value("signal_quality_mean_walk_p") < 0.05 and found.value("above_chance") == 4
    assert {found.value("above_chance", name) for name in drifts} == {0}
    assert {row.subject for row in found.rows.all("steady") if row.value} == {"facts"}
    # 0.25 + 0.02 * 1.96 lies between the second and the third of sixteen steps up
    assert found.value("above_chance_from_mean") == 30.0
    assert sum("On 1 of 7 benchmarks" in text and listing(drifts, 4) in text for text in found.sentences) == 2
    # of models that all guess there is no order to settle
    assert [text for text in found.sentences if "told apart" in text and "chance" not in text]


def test_standard_errors_give_intervals_where_there_are_no_items(tmp_path):
    found = found_of(tmp_path, {"facts": climbing(0.6)}, 0.02, resamples=100)
    quality = found.row("signal_quality_mean")
    assert quality.low < quality.value <= quality.high
    assert found.row("nearly_stable_from").low is not None
    without = found_of(tmp_path, {"facts": climbing(0.6)}, resamples=100)
    assert without.value("chance") == 0.25 and np.isnan(without.value("above_chance"))
    for name in ("signal_quality_mean", "nearly_stable_from"):
        assert without.row(name).low is None and without.row(name).reason_code == "no_errors"


@pytest.mark.parametrize(("known", "beside"), [("", True), ("0", True), ("", False)])
def test_a_score_that_falls_steadily_is_asked_for_its_direction(tmp_path, known, beside):
    """Bits per byte: with a known direction they improve, without one nothing is said of them but the question."""
    curves = {"facts": climbing(0.6)} if beside else {}
    curves["bits"] = {model: 2 - values for model, values in climbing(0.6).items()}
    sheet = f"benchmark,metric,higher_is_better,chance\nfacts,acc,1,0.25\nbits,own,{known},\n"
    found = found_of(tmp_path, curves, 0.02, sheet, resamples=20)
    assert ("?" in found.sentences[0] and "bits" in found.sentences[0]) == (not known)
    assert found.value("steady", "bits") == 1 if known else "which direction" in found.reason("steady", "bits")


def test_the_order_of_equal_models_is_not_called_late(tmp_path):
    """Two equal models beside two that differ; on `equal` all are."""
    rng = np.random.default_rng(0)
    levels = dict(zip(MODELS, (0.3, 0.5, 0.7, 0.7, 0.3), strict=True))
    apart = {model: level + 0.005 * rng.standard_normal(16) for model, level in levels.items()}
    equal = {model: 0.5 + 0.005 * rng.standard_normal(16) for model in MODELS}
    sheet = "benchmark,metric\nfacts,acc\nequal,acc\n"
    found = found_of(tmp_path, {"facts": apart, "equal": equal}, 0.01, sheet, resamples=200)
    assert (found.row("separable_pairs").n, found.value("separable_pairs")) == (6, 5)
    assert found.value("settled_from") == 10.0
    assert found.value("separable_pairs", "equal") == 0 and "No two models" in found.reason("settled_from", "equal")


def test_one_chance_level_for_both_studies_and_all_lines_of_a_card(tmp_path):
    """The items tell it where the sheet does not, of a question in five with two choices; then no line says that there
    is none, and both studies count the same models above it."""
    items = item_rows(World())
    items = with_fewer_choices(items, items["doc_id"].isin([f"test:{number}" for number in range(24)]), 2)
    files = write_world(tmp_path, World(), items=items)
    scores = pd.read_parquet(files.scores).assign(stderr=0.04)
    write_table(scores, SCORES, files.scores)
    (tmp_path / "b.csv").write_text("benchmark,metric\nfacts,acc\n", encoding="utf-8")
    sources = Sources(files.scores, files.models, tmp_path / "b.csv", files.items)
    report_agreement(sources, tmp_path / "agreement", Reports(resamples=0))
    report_signal(sources, tmp_path / "signal", Reports(resamples=0))
    reports = [tmp_path / "agreement", tmp_path / "signal"]
    rows = make_card(CardSources(files.scores, sources.benchmarks, reports, files.models, files.items), "facts").rows
    assert value_of(rows, "chance") == pytest.approx(0.2 / 2 + 0.8 / 4)
    assert Rows.read(reports[1] / "results.parquet").value("chance", subject="facts") == value_of(rows, "chance")
    assert not any("no chance level" in (row.reason or "") for row in rows)
    # the web model is none of those that the signal study counts
    last = scores[scores["checkpoint"] == "step-12"].set_index("model")["value"]
    above = set(last.index[(last - 0.3) / 0.04 > 2.6])  # far from the border of Holm's tests
    assert set(last.index[(last - 0.3) / 0.04 > 1.6]) == above and above
    assert rows.value("above_chance", protocol="direct") == len(above)
    assert rows.value("signal_at_end") == len(above - {"large-deep-web"})
