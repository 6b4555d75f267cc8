"""Every filter on items whose right choice is known by construction."""

import numpy as np
import pandas as pd
import pytest

from lm_validity.errors import InputError
from lm_validity.studies.signal.filters import kinds
from lm_validity.tables.items import BenchmarkItems, ModelItems


def candidates(of, tokens=None) -> kinds.Candidates:
    """Documents, or two-choice items with choice 0 gold, of whose log-likelihoods `of` has arrays (checkpoints, items)
    by model; the distractor stays at -1."""
    if isinstance(of, pd.DataFrame):
        return kinds.Candidates(of["doc_id"].to_numpy(), None, of)
    items = next(iter(of.values())).shape[1]
    lengths = np.stack([np.array(tokens or [1] * items, dtype=float), np.ones(items)], axis=1)
    models = []
    for name, gold in of.items():
        steps, logits = np.arange(1.0, len(gold) + 1), np.stack([gold, np.full_like(gold, -1.0)], axis=-1)
        names, correct = tuple(f"step-{step:.0f}" for step in steps), (gold > -1).astype(float)
        models.append(ModelItems(name, names, steps, steps, correct, loglikelihoods=logits, tokens=lengths))
    names = np.array([f"test:{i}" for i in range(items)])
    subjects = np.array(["physics", "law"] * (items // 2) + ["law"] * (items % 2))
    answers = BenchmarkItems("toy", names, subjects, np.zeros(items, dtype=int), lengths, tuple(models))
    return kinds.Candidates(names, answers)


def documents(rows: list[tuple[str, list[str], int]], **columns) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["context", "choices", "gold"])
    frame.insert(0, "doc_id", [f"test:{i}" for i in range(len(frame))])
    return frame.assign(subject="", **columns)


RISING = np.array([[-3.0, -1.0, -2.0, -2.0], [-2.0, -2.0, -2.0, -1.9], [-1.0, -3.0, -2.0, -1.8]])
# the second model falls where the first rises, more steeply on the last item
BOTH = {"a": RISING, "b": np.array([[-2.0, -2.0, -2.0, -1.0], [-2.1, -2.0, -2.0, -2.0], [-2.2, -2.0, -2.0, -3.0]])}
# differences per token: 1, -1, 0.5, 0
TWO = {"science": np.array([[-1.0, -2.0, -8.0, -3.0]]), "general": np.array([[-2.0, -1.0, -12.0, -3.0]])}
ROWS = [("What?", ["x", "y"], 0), ("what ", ["X.", "z"], 0), ("What?", ["x", "y"], 1)]
TEXTS = documents(ROWS, field=["s", "o", "o"])


@pytest.mark.parametrize(
    ("item_filter", "of", "kept"),
    [
        (kinds.PositiveSlope(), {"a": RISING}, [0, 3]),
        (kinds.PositiveSlope(), BOTH, [0]),
        (kinds.PositiveSlope(pooling="each"), BOTH, []),
        (kinds.TopShare(share=0.5), {"a": RISING}, [0, 3]),
        (kinds.SciScore("science", "general", keep_count=2), TWO, [0, 2]),
        (kinds.SciScore("science", "general", share=0.25), TWO, [0]),
        (kinds.Subjects(("law",)), {"a": RISING}, [1, 3]),
        (kinds.Subjects(("law",), complement=True), {"a": RISING}, [0, 2]),
        (kinds.Subjects(("s",), column="field"), TEXTS, [0]),
        (kinds.Duplicates(), TEXTS, [0, 2]),
    ],
)
def test_what_a_filter_keeps(item_filter, of, kept):
    toy = candidates(of, tokens=[1, 1, 8, 1] if of is TWO else None)
    assert list(np.flatnonzero(item_filter.keep(toy))) == kept


@pytest.mark.parametrize(
    ("item_filter", "of", "words"),
    [
        (kinds.PositiveSlope(), {"a": RISING[:1]}, "'a' has 1 checkpoint"),
        (kinds.PositiveSlope(score="brier"), {"a": RISING}, "not an item metric"),
        (kinds.PositiveSlope(), None, "--items"),
        (kinds.TopShare(share=0.0), {"a": RISING}, "share"),
        (kinds.SciScore("science", "general"), TWO, "either share or keep_count"),
        (kinds.SciScore("none", "general", share=0.5), TWO, "no items of model 'none'"),
        (kinds.Subjects(("physic",)), {"a": RISING}, "did you mean 'physics'"),
        (kinds.Leakage(), {"a": RISING}, "--documents"),
        (kinds.RandomSubset(60), {"a": RISING}, "60 of 4"),
        (kinds.SizeRule(), {"a": RISING}, "4 items are left, at least 100"),
    ],
)
def test_what_a_filter_lacks_is_named(item_filter, of, words):
    with pytest.raises(InputError, match=words):
        item_filter.keep(kinds.Candidates(np.array(["test:0"])) if of is None else candidates(of))


def test_length_matched_share_keeps_the_distribution_of_lengths():
    # short answers gain, long ones do not
    gold = np.array([[-2.0] * 8, [-1.0, -1.1, -1.2, -1.3, -2.0, -1.9, -2.0, -2.0]])
    toy = candidates({"a": gold}, tokens=[1, 1, 1, 1, 9, 9, 9, 9])
    plain, matched = kinds.TopShare().keep(toy), kinds.TopShare(length_matched=True).keep(toy)
    assert list(plain) == [True] * 4 + [False] * 4
    assert matched[:4].sum() == matched[4:].sum() == 2 and matched[5]


def test_random_subsets_depend_on_ids_and_seed_only():
    toy = candidates({"a": np.zeros((2, 50))})
    kept = kinds.RandomSubset(20, seed=1).keep(toy)
    assert kept.sum() == 20 and not np.array_equal(kept, kinds.RandomSubset(20, seed=2).keep(toy))
    order = np.random.default_rng(0).permutation(50)
    shuffled = kinds.RandomSubset(20, seed=1).keep(toy.take(order))
    assert set(toy.doc_ids[order][shuffled]) == set(toy.doc_ids[kept])


def test_filters_compose_and_each_sees_what_is_left():
    toy = candidates({"a": RISING})
    selection = kinds.keep_items([kinds.Subjects(("law",)), kinds.TopShare(share=0.5)], toy)
    assert selection.doc_ids == ("test:3",)
    assert [(step["before"], step["after"]) for step in selection.steps] == [(4, 2), (2, 1)]
    union = kinds.AnyOf(((kinds.Subjects(("physics",)),), (kinds.Subjects(("law",)), kinds.TopShare(share=0.5))))
    assert list(union.keep(toy)) == [True, False, True, True]
    assert union.fitted and not kinds.AnyOf(((kinds.Subjects(("law",)),),)).fitted


def test_leakage_against_its_base_rate():
    golds = {"Iron rusts. What rusts?": 0, "Which: iron or gold?": 0, "What glitters?": 1,
             "Iron is heavy. What glitters?": 1}  # fmt: skip
    texts = documents([(context, ["iron", "gold"], gold) for context, gold in golds.items()])
    rates = kinds.leakage_rates(texts)
    assert (rates.gold, rates.distractors, rates.items) == (0.5, 0.5, 4) and np.isnan(rates.examples)
    # the examples before the question are told apart from the question's own text
    whole = texts.assign(prompt=["Gold glitters.\n\n" + context for context in texts["context"]])
    again = kinds.leakage_rates(whole)
    assert (again.gold, again.examples) == (0.5, 0.5)  # gold is the answer of two
    # a prompt that lists every option leaks nothing
    assert list(kinds.Leakage().keep(candidates(texts))) == [False, True, True, True]


def test_readability_by_hand():
    # 9 words, 5 of at most three letters (The cat sat on not), two sentences
    by_hand = {"The cat sat on mats. Dogs were not there.": (9 + 5) / 2, "no end": 2 + 2, "...": 0}
    assert {text: kinds.readability(text) for text in by_hand} == by_hand


def test_quality_gates():
    columns = {"dclm": [0.95, 0.1, 0.95, 0.95], "cosmo": [0.1, 0.95, 0.1, 0.1], "sci": [0.99, 0.99, 0.2, 0.99]}
    texts = documents([("Is it so?", ["yes", "no"], 0)] * 4, tokens=[4, 4, 4, 40], **columns)
    toy = candidates(texts)
    open_gates = {"tech": None, "med": None, "edu": None, "readability": None}
    # 13 characters: 4 tokens are 0.31 a character, 40 are 3.1
    assert list(kinds.QualityGates(**open_gates).keep(toy)) == [True, True, False, False]
    assert list(kinds.QualityGates(**open_gates | {"readability": 30.0}).keep(toy)) == [True, True, False, True]
    bad = {"no column 'tech'": ({}, texts), "needs token counts": (open_gates, texts.drop(columns="tokens"))}
    bad["'test:2', column 'sci'"] = (open_gates, texts.assign(sci=[0.99, 0.99, None, 0.99]))
    for words, (gates, lacking) in bad.items():
        with pytest.raises(InputError, match=words):
            kinds.QualityGates(**gates).keep(candidates(lacking))
