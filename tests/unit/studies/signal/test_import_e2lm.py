"""Learning curves as CSV: what is read, and what is refused."""

import json

import pandas as pd
import pytest

from lm_validity.errors import InputError
from lm_validity.tables.formats.specs import read_e2lm
from lm_validity.tables.schema import SCORES, read_table, write_table

GOOD = "model,iteration,gtokens,arc,mmlu\nm,4000,4.1943,0.25,0.3\nm,8000,10.11,,0.31\n"


def read(tmp_path, text):
    path = tmp_path / "curves.csv"
    path.write_text(text)
    return read_e2lm(path)


def test_rows_and_columns(tmp_path):
    rows = read(tmp_path, GOOD)
    assert list(rows.columns) == SCORES.names and len(rows) == 3  # the empty cell is no row
    first = rows.iloc[0]
    assert (first["model"], first["benchmark"], first["checkpoint"]) == ("m", "arc", "iter_0004000")
    assert first["value"] == 0.25 and first["tokens_b"] == 4.1943 and first["protocol"] == "direct"
    assert rows["metric"].isna().all() and rows["higher_is_better"].isna().all() and rows["seed"].isna().all()
    write_table(rows, SCORES, tmp_path / "scores.parquet")
    assert len(read_table(tmp_path / "scores.parquet", SCORES)) == 3


def test_tokens_are_computed_where_the_column_is_absent(tmp_path):
    rows = read(tmp_path, "model,iteration,arc\nm,4000,0.25\nm,64000,0.3\n")
    assert list(rows["tokens_b"]) == pytest.approx([4.194304, 239.546570], abs=1e-6)


def test_the_organisers_file_holds_the_same_by_model(tmp_path):
    columns = {"model_type": ["Proposal"] * 2, "experiment": ["m"] * 2, "iteration": [4000, 8000]}
    columns |= {"arc": [0.25, None], "mmlu": [0.3, 0.31], "gtokens": [4.1943, 10.11]}
    path = tmp_path / "plot-data-combined-all.json"
    path.write_text(json.dumps({"metadata": {}, "data": {"m": columns}}))
    pd.testing.assert_frame_equal(read_e2lm(path), read(tmp_path, GOOD))
    for bad in (columns | {"arc": [0.25]}, columns | {"arc": [0.25, "x"]}, {"arc": [0.25]}, [1], columns | {"arc": 1}):
        path.write_text(json.dumps({"data": {"m": bad}}))
        with pytest.raises(InputError, match=r"plot-data-combined-all\.json"):
            read_e2lm(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("iteration,arc\n4000,0.1\n", ["model", "missing"]),
        ("model,iteration,gtokens\nm,1,1\n", ["benchmark"]),
        ("model,iteration,arc\n", ["no row"]),
        ("model,iteration,arc\n,4000,0.1\n", ["row 2", "'model'"]),
        ("model,iteration,arc\nm,4000,high\n", ["row 2", "'arc'", "'high'"]),
        ("model,iteration,arc\nm,4000,inf\n", ["row 2", "'arc'", "inf"]),
        ("model,iteration,arc\nm,40.5,0.1\n", ["row 2", "'iteration'", "40.5"]),
        ("model,iteration,arc\nm,,0.1\n", ["row 2", "'iteration'"]),
        ("model,iteration,arc\nm,4000,0.1\nm,4000,0.2\n", ["row 3", "'m'", "4000"]),
        ("model,iteration,gtokens,mmlu\nA,1000,1,20,5\n", ["row 2", "5 values for 4 columns"]),
        ("model,iteration,gtokens,mmlu\nA,1000,1,.2,\n", ["row 2", "5 values for 4 columns"]),
        (",model,iteration,gtokens,mmlu\n0,A,1000,1,.2\n", ["row 2", "'benchmark'"]),
        ("model,iteration,gtokens,mmlu,mmlu\nA,1000,1,.2,.3\n", ["two columns are called 'mmlu'"]),
        ("model,iteration,arc,mmlu\nm,4000,,\n", ["no scores"]),
        ('model,iteration,arc\nm,1,0.1\n\n"m",2,high\n', ["row 4", "'high'"]),
        ('model,iteration,arc\nm,1,0.1\n"m,2,0.3\n', ["row 3: a quote does not end"]),
        ('model,iteration,arc\nm,1,0.1\n"m,2,0.3', ["row 3: a quote does not end"]),
        ('model,"iteration,arc\nm,1,0.1\n', ["row 1: a quote does not end"]),
    ],
)  # fmt: skip
def test_bad_files_are_named(tmp_path, text, words):
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    for word in ["curves.csv", *words]:
        assert word in str(error.value)
