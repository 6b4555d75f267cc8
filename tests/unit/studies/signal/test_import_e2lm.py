"""Learning curves as CSV: what is read, and what is refused."""

import pytest
from tests.unit.tables.conftest import put, read_files

from lm_validity.errors import InputError
from lm_validity.tables.formats.score_files import ImportLog, ImportOptions
from lm_validity.tables.schema import SCORES

GOOD = "model,iteration,gtokens,arc,mmlu\nm,4000,4.1943,0.25,0.3\nm,8000,10.11,,0.31\n"


def read(tmp_path, content, name="curves.csv"):
    return read_files([put(tmp_path / name, content)], ImportOptions(), ImportLog(strict=True))


def test_rows_and_columns(tmp_path):
    rows = read(tmp_path, GOOD)
    assert list(rows.columns) == SCORES.names and len(rows) == 3  # the empty cell is no row
    first = rows.iloc[0]
    assert (first["model"], first["benchmark"], first["checkpoint"]) == ("m", "arc", "iter_0004000")
    assert first["value"] == 0.25 and first["tokens_b"] == 4.1943 and first["protocol"] == "direct"
    assert rows["metric"].isna().all() and rows["higher_is_better"].isna().all() and rows["seed"].isna().all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model,iteration,gtokens,\nm,1,1,\n", ["no scores"]),
        ("model,iteration,gtokens,arc\n", ["no row"]),
        ("model,iteration,gtokens,arc\n,4000,4,0.1\n", ["row 2", "'model'"]),
        ("model,iteration,gtokens,arc\nm,4000,4,high\n", ["row 2", "'arc'", "'high'"]),
        ("model,iteration,gtokens,arc\nm,4000,4,inf\n", ["row 2", "'arc'", "inf"]),
        ("model,iteration,gtokens,arc\nm,40.5,4,0.1\n", ["row 2", "'iteration'", "40.5"]),
        ("model,iteration,gtokens,arc\nm,,4,0.1\n", ["row 2", "'iteration'"]),
        ("model,iteration,gtokens,arc\nm,4000,4,0.1\nm,4000,4,0.2\n", ["m on arc", "0.1", "0.2"]),
        ("model,iteration,gtokens,mmlu\nA,1000,1,20,5\n", ["row 2", "5 values for 4 columns"]),
        ("model,iteration,gtokens,mmlu\nA,1000,1,.2,\n", ["row 2", "5 values for 4 columns"]),
        ("model,iteration,gtokens,mmlu,mmlu\nA,1000,1,.2,.3\n", ["two columns are called 'mmlu'"]),
        ("model,iteration,gtokens,arc,mmlu\nm,4000,4,,\n", ["no scores"]),
        ('model,iteration,gtokens,arc\nm,1,1,0.1\n\n"m",2,1,high\n', ["row 4", "'high'"]),
        ('model,iteration,gtokens,arc\nm,1,1,0.1\n"m,2,1,0.3\n', ["row 3: a quote does not end"]),
    ],
)  # fmt: skip
def test_bad_files_are_named(tmp_path, text, words):
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    for word in ["curves.csv", *words]:
        assert word in str(error.value)
