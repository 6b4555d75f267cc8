"""Reading items into arrays: order, alignment, and every kind of bad input named."""

import numpy as np
import pandas as pd
import pytest
from signal_world import World, item_rows, write_world

from lm_validity.errors import InputError
from lm_validity.tables.items import item_benchmarks, read_benchmark_items

SMALL = World(models=("small-deep", "large-wide"), checkpoints=3, items=12)


def read(tmp_path, rows, benchmark="facts"):
    return read_benchmark_items(write_world(tmp_path, items=rows).items, benchmark)


def test_arrays_follow_the_table_whatever_its_order(tmp_path):
    rows = item_rows(SMALL)
    items = read(tmp_path, rows.sample(frac=1.0, random_state=0))
    assert item_benchmarks(tmp_path / "items.parquet") == ["facts"]
    assert [model.model for model in items.models] == ["large-wide", "small-deep"]
    model = items.models[1]
    assert model.checkpoints == ("step-1", "step-2", "step-3")
    assert list(model.iterations) == [1000, 2000, 3000] and list(model.tokens_b) == [20, 40, 60]
    one = rows[(rows["model"] == "small-deep") & (rows["checkpoint"] == "step-2")].set_index("doc_id")
    for item, doc_id in enumerate(items.doc_ids):
        assert items.gold[item] == one.at[doc_id, "gold"] and items.subjects[item] == one.at[doc_id, "subject"]
        assert model.correct[1, item] == one.at[doc_id, "correct"]
        assert model.loglikelihoods[1, item] == pytest.approx(one.at[doc_id, "choice_loglikelihoods"])
        assert list(items.characters[item]) == list(one.at[doc_id, "choice_characters"])
        assert list(model.tokens[item]) == list(one.at[doc_id, "choice_tokens"])


def test_a_final_checkpoint_is_ordered_by_its_tokens(tmp_path):
    rows = item_rows(SMALL)
    rows.loc[rows["checkpoint"] == "step-3", ["checkpoint", "iteration"]] = ["final", None]
    assert read(tmp_path, rows).models[0].checkpoints == ("step-1", "step-2", "final")
    rows["tokens_b"] = None
    assert read(tmp_path, rows).models[0].checkpoints == ("step-1", "step-2", "final")


def test_items_with_different_numbers_of_choices(tmp_path):
    rows = item_rows(SMALL)
    short = rows["doc_id"] == "test:4"
    for column in (
        "choice_loglikelihoods",
        "unconditional_loglikelihoods",
        "choice_tokens",
        "choice_characters",
        "choice_bytes",
    ):
        rows.loc[short, column] = pd.Series([list(v[:3]) for v in rows.loc[short, column]], index=rows.index[short])
    rows.loc[short, "gold"] = 1
    items = read(tmp_path, rows)
    at = list(items.doc_ids).index("test:4")
    assert items.choices[at] == 3 and (np.delete(items.choices, at) == 4).all()
    assert np.isnan(items.models[0].loglikelihoods[:, at, 3]).all()


def _cell(rows, doc_id="test:7"):
    return rows.index[(rows["model"] == "small-deep") & (rows["checkpoint"] == "step-2") & (rows["doc_id"] == doc_id)][
        0
    ]


def _twice(rows):
    return pd.concat([rows, rows.loc[[_cell(rows)]]])


def _dropped(rows):
    return rows.drop(_cell(rows))


def _set(column, value):
    def change(rows):
        rows.at[_cell(rows), column] = value
        return rows

    return change


def _gold_everywhere(value):
    def change(rows):
        rows.loc[rows["doc_id"] == "test:7", "gold"] = value
        return rows

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_twice, ["small-deep", "step-2", "test:7", "twice"]),
        (_dropped, ["small-deep", "step-2", "test:7", "one of them only"]),
        (_set("choice_loglikelihoods", [-1.0, -2.0]), ["small-deep", "step-2", "test:7", "2 choices, 4"]),
        (_set("choice_loglikelihoods", None), ["small-deep", "step-2", "test:7", "0 choices, 4"]),
        (_set("choice_loglikelihoods", [-1.0, np.nan, -1.0, -1.0]), ["step-2", "test:7", "choice 1 is nan"]),
        (_set("gold", 9), ["small-deep", "step-2", "test:7", "gold"]),
        (_gold_everywhere(4), ["test:7", "gold", "4 is out of range for 4 choices"]),
        (_gold_everywhere(-1), ["test:7", "-1 is out of range"]),
    ],
)  # fmt: skip
def test_bad_items_are_named(tmp_path, change, words):
    with pytest.raises(InputError) as error:
        read(tmp_path, change(item_rows(SMALL)))
    for word in ["items.parquet", *words]:
        assert word in str(error.value)


def test_missing_lengths_are_named(tmp_path):
    rows = item_rows(SMALL)
    first = rows.index[
        (rows["model"] == "large-wide") & (rows["checkpoint"] == "step-1") & (rows["doc_id"] == "test:0")
    ]
    rows.at[first[0], "choice_characters"] = [3]
    with pytest.raises(InputError, match=r"large-wide.*choice_characters.*1 lengths for 4 choices"):
        read(tmp_path, rows)
