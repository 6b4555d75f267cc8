"""The numbers of the agreement report: by hand, over common cells, by size, with clusters, and missing."""

import math

import numpy as np
import pandas as pd
import pytest
from tests.unit.studies.agreement import conftest
from tests.unit.studies.agreement.conftest import DIRECT, TRAINED, by_subject, score_rows

from lm_validity.results.put import Rows
from lm_validity.studies.agreement.data import Data, estimate, range_of
from lm_validity.studies.agreement.report import agreement
from lm_validity.studies.agreement.statistics.ranking import kendall_tau_matrix, mean_over_pairs, pair_signs
from lm_validity.studies.agreement.statistics.resampling import mean_tau_left_out, transformed_interval
from lm_validity.tables.schema import read_scores
from lm_validity.tables.training import NOT_MEASURED
from lm_validity.words import UNDER, Missing, is_known

# fourteen models of five families on five benchmarks of three categories
MANY = [f"m{i}" for i in range(14)]
TASKS = ["a", "b", "c", "d", "e"]
SHEETS = {
    "models": "model,family,parameters_b\n" + "".join(f"{m},F{i // 3},{1 + i // 2}\n" for i, m in enumerate(MANY)),
    "benchmarks": "benchmark,category,metric,output_type,higher_is_better\n"
    + "".join(f"{name},{category},acc,multiple_choice,1\n" for name, category in zip(TASKS, "xxyyz", strict=True)),
}


def table(noise=(0.6, 0.3), seed=0) -> dict:
    rng, ability = np.random.default_rng(seed), np.linspace(-1, 1, 14)
    return {
        p: {name: (0.5 + 0.1 * (ability + spread * rng.normal(size=14))).tolist() for name in TASKS}
        for p, spread in zip((DIRECT, TRAINED), noise, strict=True)
    }


def taus(found: Rows, protocol: str) -> dict[tuple, float | None]:
    return {(row.subject, row.other): row.value for row in found.all("tau", protocol=protocol)}


# ----------------------------------------------------------------------------------------------------------------------
# By hand, on four models and three benchmarks.


OF_A, IN_Y = {"protocol": DIRECT, "subject": "a"}, {"protocol": DIRECT, "subject": "y"}
BY_HAND = [
    ("models", {}, 4),
    ("benchmarks", {}, 3),
    ("pairs", {}, 3),
    ("improved_pairs", {}, 3),
    ("tau", OF_A | {"other": "b"}, 2 / 3),
    ("tau", OF_A | {"other": "c"}, -1),
    ("tau", {"protocol": DIRECT, "subject": "b"}, -2 / 3),
    ("tau_mean", {"protocol": DIRECT}, -1 / 3),
    ("tau_mean", {"protocol": TRAINED}, (1 + 2 * 5 / math.sqrt(30)) / 3),
    ("tau_with_others", OF_A, -1 / 6),
    ("tau_of_categories", {"protocol": DIRECT, "subject": "x", "other": "x"}, 2 / 3),
    ("tau_of_categories", IN_Y | {"other": "x"}, -5 / 6),
    ("tau_of_categories", IN_Y | {"other": "y"}, ""),
    ("tau_corpus_benchmark", {"protocol": DIRECT}, (1 + 2 / 3 - 1) / 3),
    ("tau_of_corpus", {"protocol": DIRECT, "subject": "wiki", "other": "b"}, 2 / 3),
    ("tau_corpus_corpus", {"protocol": DIRECT}, "There is one perplexity corpus."),
    # base models m0 to m2: trained scores rise as bits per byte fall
    ("tau_before_after", {"kind": "base"}, 1),
    ("tau_before_after", {"kind": "instruction_tuned"}, "(1)"),
    # steps of 0.1 with standard error 0.05: only differences above 1.96 · 0.0707 = 0.139 count: of a 0-2, 0-3, 1-3, of
    # b 0-1, 0-3, 2-3; one in common
    ("significance_tau_mean", {"protocol": DIRECT}, (1 / 3 - 1 - 1 / 3) / 3),
]


def test_numbers_by_hand(tmp_path):
    rows = conftest.agreement_of(tmp_path, score_rows(stderr=0.05))
    for quantity, place, expected in BY_HAND:
        value = estimate(rows, quantity, **place).value
        if isinstance(expected, str):
            assert isinstance(value, Missing) and expected in value.reason, (quantity, place)
        else:
            assert value == pytest.approx(expected), (quantity, place)


def seeds(tables) -> pd.DataFrame:
    """Direct scores, and those after training with a seed for each table."""
    trained = [
        score_rows({TRAINED: conftest.SMALL[TRAINED] | table}).assign(seed=seed) for seed, table in enumerate(tables)
    ]
    return pd.concat([score_rows({DIRECT: conftest.SMALL[DIRECT]}), *trained])


def test_several_seeds_are_averaged(tmp_path):
    # in seed 1 the last model of benchmark a falls to 0.15: its mean (.4 + .15) / 2 = .275 is between .2 and .3
    found = conftest.agreement_of(tmp_path, seeds([{}, {"a": [0.1, 0.2, 0.3, 0.15]}]))
    assert taus(found, TRAINED)["a", "b"] == pytest.approx(4 / 6)
    # reliability: seed 0 and seed 1 order the models of a alike but for m3 against m1 and m2
    assert by_subject(found, "tau_between_seeds") == {"a": pytest.approx(2 / 6), "b": 1, "c": 1}


def test_equal_means_over_seeds_are_ties_in_whatever_order_they_were_summed(tmp_path):
    rolled = zip([0.1, 0.2, 0.3], [0.3, 0.1, 0.2], [0.2, 0.3, 0.1], [0.2, 0.2, 0.2], strict=True)
    page, found = conftest.agreement_page(tmp_path, seeds([{"c": list(scores)} for scores in rolled]))
    constant = f"{UNDER[TRAINED].capitalize()}, all models have the same score on c"
    assert any(note.startswith(constant) for note in page.notes)
    assert by_subject(found, "tau_with_others", protocol=TRAINED)["c"] is None


AGAIN = conftest.MODELS.replace("tuned\n", "tuned,rerun_of\n").replace(",0\n", ",0,\n").replace(",1\n", ",1,\n")


def test_a_rerun_is_noise_of_training_and_no_model(tmp_path):
    """On `a` training m0 again gives 0.06 more, on `b` 0.02; `c` was not scored again."""
    scores = {"a": [0.3, 0.4, 0.5, 0.6], "b": [0.3, 0.5, 0.4, 0.6], "c": [0.6, 0.4, 0.5, 0.3]}
    more = zip(scores, scores.values(), (0.06, 0.02, 0.0), strict=True)
    rows = score_rows(
        {DIRECT: {name: [*of, of[0] + gain] for name, of, gain in more}}, [*conftest.NAMES, "again"], stderr=0.01
    )
    rows = rows[(rows["model"] != "again") | (rows["benchmark"] != "c")]
    (alone_page, alone), (page, again) = (
        conftest.agreement_page(tmp_path, rows, models=models)
        for models in (conftest.MODELS, AGAIN + "again,F,1,10,0,m0\n")
    )
    assert (alone.value("models"), again.value("models")) == (5, 4)
    assert NOT_MEASURED in alone_page.notes and NOT_MEASURED not in page.notes
    training = {"a": 0.06**2 / 2, "b": 0.02**2 / 2, "c": 0.0}
    for name, values in scores.items():
        at = {"protocol": DIRECT, "subject": name}
        assert (again.value("benchmark_models", **at), again.row("training_noise", **at).n) == (4, int(name != "c"))
        share = 1 - (0.01**2 + training[name]) / np.var(values, ddof=1)
        assert again.value("reliability", **at) == pytest.approx(share)
        assert is_known(estimate(again, "training_noise", **at).value) == (name != "c")
    assert again.value("training_noise", protocol=DIRECT, subject="a") == pytest.approx(0.06 / np.sqrt(2))
    # a gap of 0.1 is beyond 1.96 errors of items, and not beyond those of items and training
    separated = by_subject(again, "separated", protocol=DIRECT, at_most=None)
    assert (separated["a"], separated["c"]) == (pytest.approx(3 / 6), 1.0)
    other = conftest.agreement_of(tmp_path, rows, models=AGAIN + "again,F,1,10,0,\n")
    assert again.value("tau_ceiling", protocol=DIRECT) < other.value("tau_ceiling", protocol=DIRECT)


# ----------------------------------------------------------------------------------------------------------------------
# Over what is known under both protocols.

# m3 has no trained score, and c ranks nobody directly
COMMON = {
    DIRECT: {
        "a": [0.1, 0.2, 0.3, 0.4],
        "b": [0.1, 0.2, 0.5, 0.3],  # 5 of 6 pairs as in a; all 3 among m0 to m2
        "c": [0.5, 0.5, 0.5, 0.5],
        "wiki": [1.3, 1.2, 1.1, 1.0],
    },
    TRAINED: {
        "a": [0.1, 0.2, 0.3, None],
        "b": [0.1, 0.3, 0.2, None],  # 2 of 3 pairs as in a
        "c": [0.1, 0.2, 0.3, None],
        "wiki": [1.3, 1.2, 1.1, None],
    },
}


def test_the_change_is_that_of_the_same_models_and_pairs(tmp_path):
    page, found = conftest.agreement_page(tmp_path, score_rows(COMMON))
    assert [found.value("models"), found.row("tau_change").n, found.value("cells_in_both")] == [4, 3, 9]
    assert [found.value("tau_mean", protocol=p) for p in (DIRECT, TRAINED)] == pytest.approx([2 / 3, 5 / 9])
    assert [found.value("tau_mean_in_both", protocol=p) for p in (DIRECT, TRAINED)] == pytest.approx([1, 1 / 3])
    assert found.value("tau_change") == pytest.approx(-2 / 3)
    for quantity in ("improved_pairs", "significance_improved_pairs"):
        row = found.row(quantity)
        assert (row.value, row.n) == (0, 1)
    assert found.value("tau_corpus_benchmark", protocol=DIRECT) == pytest.approx((1 + 2 / 3) / 2)
    both = {p: found.value("tau_perplexity_in_both", protocol=p, kind="corpus_benchmark") for p in (DIRECT, TRAINED)}
    assert both == {DIRECT: pytest.approx(1), TRAINED: pytest.approx(2 / 3)}
    assert any("9 of 12 cells (3 models, 3 benchmarks) are known under both" in note for note in page.notes)
    # of so few models there is no interval, and no headline
    assert not [f for f in page.findings if "changes the" in f.sentence]
    pooled = estimate(found, "tau_pooled_change", pairs="all")
    assert pooled.value == pytest.approx(-2 / 3) and not is_known(pooled.models)


SIMILAR = {"distance": "size", "at_least": 1.0, "at_most": 2.0, "protocol": DIRECT}


def test_models_of_like_size_are_compared_on_the_cells_known_under_both(tmp_path):
    scores = table()
    for name in TASKS:
        scores[TRAINED][name][:4] = [None] * 4
    found = conftest.agreement_of(tmp_path, score_rows(scores, MANY), **SHEETS)
    own, both = (estimate(found, f"tau_mean{where}_by_ratio", **SIMILAR) for where in ("", "_in_both"))
    common = np.array([scores[DIRECT][name][4:] for name in TASKS]).T
    signs, size = pair_signs(common), np.array([1 + i // 2 for i in range(4, 14)])
    ratio = np.exp(np.abs(np.log(size[signs.first]) - np.log(size[signs.second]))) <= 2
    kept = signs._replace(sign=signs.sign * ratio[:, None], known=signs.known * ratio[:, None])
    assert both.value == pytest.approx(mean_over_pairs(kendall_tau_matrix(kept)))
    assert both.n == ratio.sum() < own.n and own.value != pytest.approx(both.value)
    pooled = estimate(found, "tau_pooled_in_both", protocol=DIRECT, pairs="like_size")
    # all 50 common cells: the pooled tau is the mean over pairs
    assert pooled.n == 10 * ratio.sum() and pooled.value == pytest.approx(both.value, abs=0.02)
    whole = conftest.agreement_of(tmp_path, score_rows(table(), MANY), **SHEETS)
    assert not whole.all("tau_mean_in_both_by_ratio") and not whole.all("tau_pooled_in_both")


# ----------------------------------------------------------------------------------------------------------------------
# Families and categories as clusters; without noise; above chance.


def test_categories_as_clusters_give_an_interval_for_other_benchmarks(tmp_path):
    found = conftest.agreement_of(tmp_path, score_rows(table(), MANY), resamples=50, **SHEETS)
    for p in (DIRECT, TRAINED):
        tau, categories = estimate(found, "tau_mean", protocol=p), range_of(found, "tau_mean", "categories", protocol=p)
        assert categories.low < tau.value < categories.high and categories != tau.families
    assert is_known(range_of(found, "tau_change", "categories"))
    whole = SHEETS["benchmarks"]
    for sheet in (whole.replace(",y,", ",x,"), whole.replace("b,x", "b,v").replace("d,y", "d,w")):
        other = conftest.agreement_of(tmp_path, score_rows(table(), MANY), **(SHEETS | {"benchmarks": sheet}))
        assert isinstance(range_of(other, "tau_mean", "categories", protocol=DIRECT), Missing)


def test_intervals_over_families_count_models_of_each_family(tmp_path):
    families = np.repeat([0, 1, 2, 3], [6, 4, 3, 1])
    models = "model,family,parameters_b\n" + "".join(
        f"{name},F{family},{1 + i}\n" for i, (name, family) in enumerate(zip(MANY, families, strict=True))
    )
    scores = table(noise=(0.9, 0.6))
    for name in TASKS:
        scores[DIRECT][name][12] = None  # family 2 has two models with a score
    found = conftest.agreement_of(tmp_path, score_rows(scores, MANY), **(SHEETS | {"models": models}))
    signs = pair_signs(np.array([scores[DIRECT][name] for name in TASKS], dtype=float).T)
    close = (signs.second + 1) / (signs.first + 1) <= 1.25
    within = {"distance": "size", "at_least": 1.0, "at_most": 1.25, "protocol": DIRECT}
    for number, pairs, sizes in (
        (estimate(found, "tau_mean", protocol=DIRECT), np.ones(len(signs.first), bool), [6, 4, 2, 1]),
        (estimate(found, "tau_mean_by_ratio", **within), close, [3, 4, 2, 1]),
    ):
        pairs &= (signs.first != 12) & (signs.second != 12)
        tau, _ = mean_tau_left_out(signs, None, pairs, families)
        assert tuple(number.families) == pytest.approx(transformed_interval(tau[0], tau[1:], "tau", sizes))


def test_benchmarks_at_chance_are_set_apart_beside_the_noise_ceiling(tmp_path):
    """Two of five benchmarks are guessed on."""
    scores = table()
    for name in "de":
        scores[DIRECT][name] = (0.25 + 0.001 * np.arange(14) * (-1) ** np.arange(14)).tolist()
    sheet = SHEETS["benchmarks"].replace("is_better\n", "is_better,chance\n").replace(",1\n", ",1,0.25\n")
    rows = score_rows({DIRECT: scores[DIRECT]}, MANY, 0.02)
    found = conftest.agreement_of(tmp_path, rows, **(SHEETS | {"benchmarks": sheet}))
    above = estimate(found, "tau_mean_above_chance", protocol=DIRECT)
    pairs = [tau for pair, tau in taus(found, DIRECT).items() if set(pair) <= set("abc")]
    assert (above.n, above.value) == (3, pytest.approx(np.mean(pairs)))
    assert above.value > np.mean([*taus(found, DIRECT).values()])


def test_the_interval_without_noise_is_no_surer_than_resampling_where_models_are_two_equal_groups(tmp_path):
    """Eight models far below eight others on every benchmark; within a group, two benchmarks have one order and two the
    reverse. Of pairs of models drawn from equal groups half are within one, so that the mean tau of other models is
    .5 + .5 (2 - 4) / 6 = 1/3. Leaving out one model at a time moves it by .01 only."""
    places = np.arange(8) / 100
    up, down = ([*(0.2 + order), *(0.7 + order)] for order in (places, places[::-1]))
    other = [*down[:-2], down[-1], down[-2]]  # without this, leaving out a model moves it not at all
    names = [f"m{i}" for i in range(16)]
    rows = score_rows({DIRECT: {"a": up, "b": up, "c": down, "d": other}}, names, stderr=1e-4)
    sheet = "benchmark,metric,higher_is_better\n" + "".join(f"{name},acc,1\n" for name in "abcd")
    models = "model\n" + "\n".join(names) + "\n"
    page, found = conftest.agreement_page(tmp_path, rows, 400, models=models, benchmarks=sheet)
    assert page.lede.heading.startswith("Not known") and "clumps" in page.lede.heading
    assert page.panels[0].outcome == "not known"  # whether they disagree beyond noise
    tau, corrected = (estimate(found, name, protocol=DIRECT) for name in ("tau_mean", "tau_mean_corrected"))
    low, high = corrected.models
    assert tau.value == pytest.approx((64 + 56 * -1 / 3 + 2 * (2 - 1) / 6) / 120) and low < 1 / 3 < high
    sine = np.sin(np.pi / 2 * np.array([*tau.models, found.value("tau_ceiling", protocol=DIRECT)]))
    assert (low, high) == pytest.approx(2 / np.pi * np.arcsin(sine[:2] / sine[2]))
    for name in "abcd":
        of_one = {"protocol": DIRECT, "subject": name}
        wide, observed = (range_of(found, f"tau_with_others{end}", "models", **of_one) for end in ("_corrected", ""))
        assert wide.high - wide.low > 0.9 * (observed.high - observed.low)


# ----------------------------------------------------------------------------------------------------------------------
# What cannot be computed is missing, with the reason.


def test_two_metrics_that_reverse_the_order_of_the_models_are_said_beside_the_answer(tmp_path):
    """On `a` acc_norm falls where acc rises; on `b` it rises too."""
    rows = score_rows({DIRECT: {name: [0.1, 0.2, 0.3, 0.4, 0.5] for name in "abc"}}, [f"m{i}" for i in range(5)])
    falling = rows["benchmark"] == "a"
    other = rows.assign(metric="acc_norm,none", value=(0.9 - rows["value"]).where(falling, rows["value"]))
    scores = pd.concat([rows, other[other["benchmark"] != "c"]])
    matrix = conftest.matrix_of(
        tmp_path, scores, benchmarks=conftest.BENCHMARKS.replace("wiki,p,acc,loglikelihood_rolling,0\n", "")
    )
    page, _ = agreement(Data.of(matrix), read_scores(tmp_path / "scores.parquet"))
    assert "decides on a (acc, acc_norm): another one reverses" in page.answers[0].basis
    (note,) = [note for note in page.notes if "opposite ways on" in note]
    assert "a (acc, acc_norm)." in note and "b (" not in note
