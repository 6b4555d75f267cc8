"""Every filter on items whose right choice is known by construction."""

import numpy as np
import pandas as pd
import pytest

from lm_validity.errors import InputError
from lm_validity.studies.signal.filters import kinds
from lm_validity.tables.items import BenchmarkItems, ModelItems


def answers(gold_loglikelihoods: dict[str, np.ndarray], tokens=None) -> BenchmarkItems:
    """Two-choice items with choice 0 gold; the distractor stays at -1. Arrays (checkpoints, items) by model."""
    items = next(iter(gold_loglikelihoods.values())).shape[1]
    tokens = np.ones(items) if tokens is None else np.asarray(tokens, dtype=float)
    lengths = np.stack([tokens, np.ones(items)], axis=1)
    models = []
    for name, gold in gold_loglikelihoods.items():
        n = len(gold)
        models.append(
            ModelItems(
                model=name,
                checkpoints=tuple(f"step-{i}" for i in range(n)),
                iterations=np.arange(1.0, n + 1),
                tokens_b=np.arange(1.0, n + 1),
                correct=(gold > -1).astype(float),
                loglikelihoods=np.stack([gold, np.full_like(gold, -1.0)], axis=-1),
                tokens=lengths,
            )
        )
    return BenchmarkItems(
        "toy",
        np.array([f"test:{i}" for i in range(items)]),
        np.array(["physics", "law"] * (items // 2) + ["law"] * (items % 2)),
        np.zeros(items, dtype=int),
        lengths,
        tuple(models),
    )


def candidates(of: BenchmarkItems, documents: pd.DataFrame | None = None) -> kinds.Candidates:
    return kinds.Candidates(of.doc_ids, of, documents)


def documents(rows: list[tuple[str, list[str], int]], **columns) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["context", "choices", "gold"])
    frame.insert(0, "doc_id", [f"test:{i}" for i in range(len(frame))])
    return frame.assign(subject="", **columns)


RISING = np.array([[-3.0, -1.0, -2.0, -2.0], [-2.0, -2.0, -2.0, -1.9], [-1.0, -3.0, -2.0, -1.8]])


# the second model falls where the first rises, more steeply on the last item
BOTH = {"a": RISING, "b": np.array([[-2.0, -2.0, -2.0, -1.0], [-2.1, -2.0, -2.0, -2.0], [-2.2, -2.0, -2.0, -3.0]])}
# differences per token: 1, -1, 0.5, 0
TWO = {"science": np.array([[-1.0, -2.0, -8.0, -3.0]]), "general": np.array([[-2.0, -1.0, -12.0, -3.0]])}
TEXTS = documents(
    [("What?", ["x", "y"], 0), ("what ", ["X.", "z"], 0), ("What?", ["x", "y"], 1)], field=["s", "o", "o"]
)


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
    if isinstance(of, dict):
        toy = candidates(answers(of, tokens=[1, 1, 8, 1] if of is TWO else None))
    else:
        toy = kinds.Candidates(of["doc_id"].to_numpy(), None, of)
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
        item_filter.keep(kinds.Candidates(np.array(["test:0"])) if of is None else candidates(answers(of)))


def test_length_matched_share_keeps_the_distribution_of_lengths():
    # short answers gain, long ones do not
    gold = np.array([[-2.0] * 8, [-1.0, -1.1, -1.2, -1.3, -2.0, -1.9, -2.0, -2.0]])
    toy = candidates(answers({"a": gold}, tokens=[1, 1, 1, 1, 9, 9, 9, 9]))
    plain, matched = kinds.TopShare().keep(toy), kinds.TopShare(length_matched=True).keep(toy)
    assert list(plain) == [True] * 4 + [False] * 4
    assert matched[:4].sum() == matched[4:].sum() == 2 and matched[5]


def test_random_subsets_depend_on_ids_and_seed_only():
    toy = candidates(answers({"a": np.zeros((2, 50))}))
    kept = kinds.RandomSubset(20, seed=1).keep(toy)
    assert kept.sum() == 20 and not np.array_equal(kept, kinds.RandomSubset(20, seed=2).keep(toy))
    order = np.random.default_rng(0).permutation(50)
    shuffled = kinds.RandomSubset(20, seed=1).keep(toy.take(order))
    assert set(toy.doc_ids[order][shuffled]) == set(toy.doc_ids[kept])


def test_filters_compose_and_each_sees_what_is_left():
    toy = candidates(answers({"a": RISING}))
    selection = kinds.keep_items([kinds.Subjects(("law",)), kinds.TopShare(share=0.5)], toy)
    assert selection.doc_ids == ("test:3",)
    assert [(step["before"], step["after"]) for step in selection.steps] == [(4, 2), (2, 1)]
    union = kinds.AnyOf(((kinds.Subjects(("physics",)),), (kinds.Subjects(("law",)), kinds.TopShare(share=0.5))))
    assert list(union.keep(toy)) == [True, False, True, True]
    assert union.fitted and not kinds.AnyOf(((kinds.Subjects(("law",)),),)).fitted


def test_leakage_against_its_base_rate():
    texts = documents(
        [
            ("Iron rusts. What rusts?", ["iron", "gold"], 0),
            ("Which: iron or gold?", ["iron", "gold"], 0),
            ("What glitters?", ["iron", "gold"], 1),
            ("Iron is heavy. What glitters?", ["iron", "gold"], 1),
        ]
    )
    rates = kinds.leakage_rates(texts)
    assert rates.gold == pytest.approx(0.5) and rates.distractors == pytest.approx(0.5) and rates.items == 4
    assert np.isnan(rates.examples)
    # the examples before the question are told apart from the question's own text
    whole = texts.assign(prompt=["Gold glitters.\n\n" + context for context in texts["context"]])
    again = kinds.leakage_rates(whole)
    golds = [choices[gold] == "gold" for choices, gold in zip(texts["choices"], texts["gold"], strict=True)]
    assert again.gold == rates.gold and again.examples == pytest.approx(np.mean(golds)) and any(golds)
    toy = kinds.Candidates(texts["doc_id"].to_numpy(), None, texts)
    # a prompt that lists every option leaks nothing
    assert list(kinds.Leakage().keep(toy)) == [False, True, True, True]


def test_readability_by_hand():
    # 9 words, 5 of at most three letters (The cat sat on not), two sentences
    by_hand = {"The cat sat on mats. Dogs were not there.": (9 + 5) / 2, "no end": 2 + 2, "...": 0}
    assert {text: kinds.readability(text) for text in by_hand} == by_hand


def test_quality_gates():
    rows = [("Is it so?", ["yes", "no"], 0)] * 4
    texts = documents(
        rows,
        dclm=[0.95, 0.1, 0.95, 0.95],
        cosmo=[0.1, 0.95, 0.1, 0.1],
        sci=[0.99, 0.99, 0.2, 0.99],
        tokens=[4, 4, 4, 40],
    )
    toy = kinds.Candidates(texts["doc_id"].to_numpy(), None, texts)
    open_gates = {"tech": None, "med": None, "edu": None, "readability": None}
    # 13 characters: 4 tokens are 0.31 a character, 40 are 3.1
    assert list(kinds.QualityGates(**open_gates).keep(toy)) == [True, True, False, False]
    easy = {**open_gates, "readability": 30.0}
    assert list(kinds.QualityGates(**easy).keep(toy)) == [True, True, False, True]
    with pytest.raises(InputError, match="no column 'tech'"):
        kinds.QualityGates().keep(toy)
    with pytest.raises(InputError, match="needs token counts"):
        kinds.QualityGates(**open_gates).keep(kinds.Candidates(toy.doc_ids, None, texts.drop(columns="tokens")))
    with pytest.raises(InputError, match="'test:2', column 'sci'"):
        holes = texts.assign(sci=[0.99, 0.99, None, 0.99])
        kinds.QualityGates(**open_gates).keep(kinds.Candidates(toy.doc_ids, None, holes))
