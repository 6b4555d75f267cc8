"""The published scores of train before test, in the layout of their authors."""

import json

import pandas as pd
import pytest
from tests.unit.tables.conftest import put

from lm_validity.errors import InputError
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.formats.specs import read_lm_harmony
from lm_validity.tables.schema import SCORES


def test_lm_harmony(tmp_path):
    document = {
        "train_before_test": {"rte": {"org/a": 0.7}, "wiki": {"org/a": 0.9}},
        "train_before_test_stderr": {"rte": {"org/a": 0.02}, "wiki": {"org/a": "N/A"}},
        "direct_eval": {"rte": {"org/a": 0.5}},
        "direct_eval_stderr": {"rte": {"org/a": 0.03}},
    }
    frame = read_lm_harmony(put(tmp_path / "all_results.json", json.dumps(document)))
    assert list(frame.columns) == SCORES.names
    assert frame[["benchmark", "protocol", "value"]].values.tolist() == [
        ["rte", "direct", 0.5],
        ["rte", "train_before_test", 0.7],
        ["wiki", "train_before_test", 0.9],
    ]
    assert frame["stderr"].isna().tolist() == [False, False, True]
    assert frame["metric"].isna().all() and frame["seed"].isna().all()
    direct = {name: block for name, block in document.items() if name.startswith("direct_eval")}
    alone = read_lm_harmony(put(tmp_path / "direct.json", json.dumps(direct)))
    pd.testing.assert_frame_equal(alone, frame.head(1), check_dtype=False)
    recognised, _ = import_files([tmp_path / "all_results.json"], tmp_path / "tables")
    said = ["model", "benchmark", "protocol", "value", "source"]
    assert recognised[said].values.tolist() == frame[said].values.tolist() and recognised["prompt"].isna().all()


@pytest.mark.parametrize("unknown", ["N/A", None, {"rte": "N/A"}, {"rte": None}, {"rte": {"org/a": 10**400}}])
def test_a_standard_error_that_is_no_number_is_unknown_at_any_level(tmp_path, unknown):
    document = {"direct_eval": {"rte": {"org/a": 0.5}}, "train_before_test": {}, "direct_eval_stderr": unknown}
    frame = read_lm_harmony(put(tmp_path / "all_results.json", json.dumps(document)))
    assert frame["value"].tolist() == [0.5] and frame["stderr"].isna().all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "as JSON"),
        ('{"direct_eval": {"t": {"m": 1%s}}, "train_before_test": {}}' % ("0" * 400), "is not a finite number"),
        ("[1]", "no scores"),
        ('{"direct_eval": {}, "train_before_test": {}}', "no scores"),
        ('{"direct_eval": {"t": {"m": "x"}}, "train_before_test": {}}', "direct_eval, t, m, 'value': 'x'"),
        ('{"direct_eval": {"t": {"m": NaN}}, "train_before_test": {}}', "nan is not a finite number"),
    ],
)
def test_bad_lm_harmony_files(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_lm_harmony(put(tmp_path / "x.json", text))
