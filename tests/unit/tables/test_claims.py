"""The records of formats have the columns of the tables that are made of them, and no others."""

import pyarrow as pa

from lm_validity.tables.schema import CLAIMS, ITEMS, SCORES, SETTINGS, Claim, with_defaults


def test_records_have_the_columns_of_their_tables():
    assert set(Claim.__annotations__) == {*SCORES.names, *CLAIMS, "made"} and CLAIMS == ("group", "suite", "drawn")
    assert SCORES.field("iteration").type == pa.int64() and ITEMS.field("choice_bytes").type == pa.list_(pa.int64())
    assert [SETTINGS.field(name).type for name in ("limit", "chat_template")] == [pa.float64(), pa.bool_()]


def test_what_a_file_does_not_say_has_the_default_and_null_is_not_said():
    assert with_defaults({"model": "a", "prompt": None, "protocol": "train_before_test"}) == {
        "model": "a", "checkpoint": "final", "protocol": "train_before_test", "prompt": "plain", "split": "test",
        "selected": True,
    }  # fmt: skip
