"""Two models compared: values by hand, tables without items, shared items, bad input, and the page."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import expit
from tests.unit.compared import compare_models

from lm_validity.errors import InputError
from lm_validity.studies.items.compare import Margin, Margins, comparison_page, comparison_rows, gate, judged
from lm_validity.studies.items.report import analyze_items
from lm_validity.tables.counted import Sources
from lm_validity.tables.items import shared_items

DIRECT, TRAINED = "direct", "train_before_test"


@pytest.fixture
def answers():
    """200 items of two benchmarks: `far` separates a from b, `near` does not."""
    generator = np.random.default_rng(0)
    drawn = {
        name: generator.uniform(size=(2, 200)) < shares for name, shares in (("far", [[0.7], [0.4]]), ("near", 0.5))
    }
    return {(m, name, DIRECT): values[i] for name, values in drawn.items() for i, m in enumerate("ab")}


def compared(folder, *models, items=True, **options):
    names = models or ("a", "b")
    return compare_models(*names, folder / "scores.parquet", folder / "items.parquet" if items else None, **options)


def decisions(comparison, margins=None):
    """By benchmark and protocol; all together under None."""
    found = judged(comparison, margins or Margins())
    return {(each.benchmark, each.protocol): each.verdict.decision for each in found}


def test_common_items_are_compared_pairwise_and_corrected(write, answers):
    comparison = compared(folder := write(answers))
    far, near = comparison.differences
    first, second = (answers[m, "far", DIRECT].astype(float) for m in "ab")
    only = int((second > first).sum()), int((first > second).sum())
    assert (far.paired.first_only, far.paired.second_only, far.paired.items, far.test) == (*only, 200, "McNemar")
    assert far.tested.p(0.0) == pytest.approx(stats.binomtest(only[0], sum(only)).pvalue)
    assert far.change == pytest.approx(second.mean() - first.mean()) and far.tested.interval()[1] < 0
    by_name = {each.benchmark: each.verdict for each in judged(comparison, Margins())}
    assert by_name["far"].p == pytest.approx(2 * far.tested.p(0.0)) and by_name["near"].p == near.tested.p(0.0)
    assert decisions(comparison) == {("far", DIRECT): "worse", ("near", DIRECT): "not known", (None, DIRECT): "worse"}
    swapped = compared(folder, "b", "a")
    assert (swapped.differences[0].change, decisions(swapped)["far", DIRECT]) == (pytest.approx(-far.change), "better")
    assert decisions(compared(write(answers, higher_is_better=False)))["far", DIRECT] == "better"


def test_a_gate_over_two_protocols_shares_its_level(write, answers):
    """Holm goes over the benchmarks of both; the interval of all together under each is 97.5%."""
    trained = {(m, b, TRAINED): v for (m, b, _), v in answers.items()}
    comparison = compared(write(answers | trained))
    found = {(each.benchmark, each.protocol): each.verdict for each in judged(comparison, Margins())}
    far = comparison.differences[0]
    assert found["far", DIRECT].p == found["far", TRAINED].p == pytest.approx(4 * far.tested.p(0.0))
    for protocol in (DIRECT, TRAINED):
        ends = np.array([row.tested.interval(0.025) for row in comparison.under(protocol)])
        changes = np.array([row.change for row in comparison.under(protocol)])
        reach = np.sqrt(np.square(ends - changes[:, None]).sum(axis=0)) / 2
        assert found[None, protocol].level == 0.975
        assert found[None, protocol].interval == pytest.approx(changes.mean() + np.array([-1, 1]) * reach)


def test_without_items_standard_errors_are_used_or_nothing(write, answers):
    far, _ = compared(write(answers), items=False).differences
    first, second = (answers[m, "far", DIRECT].astype(float) for m in "ab")
    error = np.hypot(first.std(ddof=1), second.std(ddof=1)) / np.sqrt(200)
    assert far.test == "standard errors"
    assert far.tested.p(0.0) == pytest.approx(2 * stats.norm.sf(abs(first.mean() - second.mean()) / error))
    impossible = write(answers, changes=lambda s: s.assign(stderr=s["stderr"].mask(s["benchmark"] == "far", 0.0)))
    comparison = compared(impossible, items=False)
    assert [row.test for row in comparison.differences] == ["none", "standard errors"]
    comparison = compared(write(answers, changes=lambda scores: scores.assign(stderr=None)), items=False)
    assert all(row.test == "none" and row.tested is None for row in comparison.differences)
    # a score that is no mean of its items is not tested on them
    squared = write(answers, changes=lambda scores: scores.assign(value=scores["value"] ** 2))
    assert {row.test for row in compared(squared).differences} == {"standard errors"}


def test_models_with_other_items_are_compared_on_the_common_ones(write, answers):
    answers = {key: value.astype(float) for key, value in answers.items()}
    answers["b", "far", DIRECT][:50] = np.nan
    folder = write(answers, changes=lambda s: s.assign(value=[np.nanmean(v) for v in answers.values()]))
    comparison = compared(folder)
    far = comparison.differences[0]
    assert far.paired.items == 150 and far.test == "McNemar"
    assert far.change == pytest.approx(np.mean((answers["b", "far", DIRECT] - answers["a", "far", DIRECT])[50:]))
    (note,) = [note for note in comparison.notes if "far" in note and "150 of up to 200" in note]
    assert "near" not in note
    rows = analyze_items(Sources(folder / "scores.parquet", items=folder / "items.parquet")).rows
    for name in ("far", "near"):
        alike = (answers["a", name, DIRECT] == answers["b", name, DIRECT]).sum()
        assert rows.value("equal_items", subject=name) == alike


@pytest.mark.parametrize(
    ("kept", "models", "problem"),
    [
        (None, "ac", "no score of the model 'c'"),
        (None, "aa", "named twice"),
        ([("a", "far", DIRECT), ("b", "near", DIRECT)], "ab", "share no benchmark"),
    ],
)
def test_what_cannot_be_compared_is_named(write, answers, kept, models, problem):
    folder = write({key: value for key, value in answers.items() if kept is None or key in kept})
    with pytest.raises(InputError, match=problem):
        compared(folder, *models)


# ----------------------------------------------------------------------------------------------------------------------
# Benchmarks that share items.


def sampled(generator, logits):
    """Right-or-wrong answers of a and b, alike in expectation."""
    return {model: (generator.random(len(logits)) < expit(logits)).astype(float) for model in "ab"}


def shared_world(kind):
    """{(model, benchmark, protocol): answers} and the names that share items."""
    generator = np.random.default_rng(7)
    easy = 2 * generator.standard_normal(400)
    whole, other = sampled(generator, easy), sampled(generator, 2 * generator.standard_normal(400))
    parts = {
        "a copy": {"exam": whole, "exam_chat": whole},
        "formats": {f"exam{k}": sampled(generator, 0.9 * easy + 0.8 * generator.standard_normal(400)) for k in "xyz"},
        "halves": {"exam": whole, "exam_1": {m: v[:200] for m, v in whole.items()},
                   "exam_2": {m: v[200:] for m, v in whole.items()}},
        "others": {"exam": whole, "more": sampled(generator, 2 * generator.standard_normal(300))},
    }[kind]  # fmt: skip
    names = () if kind == "others" else tuple(sorted(parts))
    cells = {(m, name, DIRECT): values for name, of in (parts | {"other": other}).items() for m, values in of.items()}
    return cells, names


@pytest.mark.parametrize("kind", ["a copy", "formats", "halves", "others"])
def test_benchmarks_that_share_items_count_once_in_all_together(write, kind):
    """The mean is of `other` and of the mean over the shared items, tested item by item."""
    cells, names = shared_world(kind)
    comparison = compared(write(cells))
    assert [group.benchmarks for group in comparison.shared] == ([names] if names else [])
    changes = {name: cells["b", name, DIRECT] - cells["a", name, DIRECT] for _, name, _ in cells}
    alone = [changes[name].mean() for name in sorted(changes) if name not in names]
    if names:
        items = changes["exam"] if "exam" in names else np.mean([changes[name] for name in names], axis=0)
        together = [unit for unit in comparison.units if len(unit.benchmarks) > 1]
        assert [unit.benchmarks for unit in together] == [names]
        assert together[0].row.tested.error == pytest.approx(items.std(ddof=1) / np.sqrt(400), rel=0.01)
        assert any(" and ".join(names) in line for line in comparison.doubts)
        alone.append(items.mean())
    (found,) = [each for each in judged(comparison, Margins()) if each.benchmark is None]
    assert found.verdict.change == pytest.approx(np.mean(alone)) and found.counted == len(alone)


@pytest.mark.parametrize(
    ("gold", "is_shared"),
    [
        (lambda draw, n: draw.integers(0, 4, n), True),
        (lambda draw, n: np.arange(n) % 4, False),  # the right answer's place rotates, or answers stand in order
        (lambda draw, n: np.arange(n) * 4 // n, False),
    ],
)
def test_equal_gold_answers_tell_of_shared_items_unless_their_order_is_a_rule(gold, is_shared):
    draw = np.random.default_rng(0)
    frame = answered(draw, x=80, y=80).assign(doc_id=[f"test:{n}" for n in range(80)] * 4)
    found = shared_items(frame.assign(gold=np.tile(gold(draw, 80), 4)))
    assert [group.benchmarks for group in found] == [("x", "y")] * is_shared


def answered(draw, **sizes) -> pd.DataFrame:
    """Answers of two models to so many items of each benchmark."""
    places = [(m, name, f"{name}{n}") for m in "ab" for name, size in sizes.items() for n in range(size)]
    frame = pd.DataFrame(places, columns=["model", "benchmark", "doc_id"])
    return frame.assign(correct=(draw.random(len(frame)) < 0.6).astype(float))


def test_items_are_shared_by_hash_whatever_their_names_and_answers():
    frame = answered(np.random.default_rng(0), x=90, y=40, z=90)
    first = frame["benchmark"].map({"x": 0, "y": 60, "z": 500})
    (group,) = shared_items(frame.assign(doc_hash="h" + (first + frame["doc_id"].str[1:].astype(int)).astype(str)))
    assert group.benchmarks == ("x", "y") and group.documents.nunique() == 100
    assert group.documents["y", "y5"] == group.documents["x", "x65"]


def test_one_model_under_two_names_is_said_first(write, answers):
    cells = {(m, name, DIRECT): answers["a", name, DIRECT] for m in "ab" for name in ("far", "near")}
    assert "the same answers to all 400 items" in compared(folder := write(cells)).doubts[0]
    assert not compared(folder, items=False).doubts  # two equal scores may be chance
    cells |= {(m, name, DIRECT): answers["a", "far", DIRECT] for m in "ab" for name in ("more", "most")}
    assert "the same score on all 4 benchmarks" in compared(write(cells), items=False).doubts[0]
    assert not compared(write(answers)).doubts


# ----------------------------------------------------------------------------------------------------------------------
# The gate, and the page.


@pytest.mark.parametrize(
    ("margin", "must", "decision"),
    [(None, False, "worse"), (0.05, False, "worse"), (0.3, False, "not known"), (0.9, False, "not worse")],
)
def test_the_gate_fails_where_the_loss_is_surely_beyond_the_margin(write, answers, margin, must, decision):
    cells = {key: value for key, value in answers.items() if key[1] == "far"}
    comparison = compared(write(cells))
    low, high = comparison.differences[0].tested.interval()
    assert -0.45 < low < high < -0.15
    assert gate(judged(comparison, Margins({}, Margin(margin, must)))) == decision


def test_the_page_has_the_rows(write, answers):
    comparison = compared(write(answers | {(m, "far", TRAINED): answers[m, "far", DIRECT] for m in "ab"}))
    found = judged(comparison, Margins({}, Margin(0.02)))
    rows = comparison_rows(comparison, found)
    page = comparison_page(comparison, found, rows, ["first"], pd.DataFrame(), "")
    frame = page.sections[0].tables[0].frame
    assert frame["verdict"].tolist() == [each.verdict.decision for each in found if each.benchmark is not None]
    assert frame["change"].tolist() == [row.change for row in comparison.differences]
    assert page.notes[0] == "first" and all(name in page.picture.svg for name in ("far", "near", "direct"))
    assert "worse by more than 2.0" in page.lede.sentence
    assert len(page.findings) == 2
