"""Hostile inputs, each from a fuzzer: one line, exit code 2, nothing half-written, and no more memory than it takes."""

import resource

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.test_outputs import call

from lm_validity.errors import InputError
from lm_validity.tables.schema import ITEMS, SCORES, read_scores, write_table

DEEP = "[" * 100_000 + "]" * 100_000
SCORE = ("model", "benchmark", "protocol", "value")


def test_compare_where_the_protocol_is_not_known(place):
    scores = pd.read_parquet(place / "given/scores.parquet")
    scores.loc[0, "protocol"] = None
    write_table(scores, SCORES, place / "scores.parquet")
    common = {"benchmark": "knot", "protocol": "direct", "split": "test"}
    rows = [common | {"model": model, "doc_id": str(i), "correct": i % 2}
            for model in ("ash-1b", "ash-2b") for i in range(9)]  # fmt: skip
    for protocol in (None, "direct"):
        rows[0]["protocol"] = protocol
        write_table(pd.DataFrame(rows), ITEMS, place / "items.parquet")
        for table in ("given/scores.parquet", "scores.parquet"):
            code, problem = call("compare", "ash-1b", "ash-2b", "--scores", table, "--items", "items.parquet")
            assert code == 0 or (code == 2 and "protocol" in problem), problem


@pytest.mark.parametrize(
    "command",
    [
        ("import", "given/table.csv"),
        ("report", "given/table.csv"),
        ("export", "every-eval-ever", "given/scores.parquet", "--organization", "me"),
        ("compare", "ash-1b", "ash-2b", "--scores", "given/scores.parquet"),
    ],
)
@pytest.mark.parametrize("output", ["/proc", "/proc/here"])
def test_an_output_where_no_file_can_be(place, command, output):
    code, problem = call(*command, "--output", output)
    assert code == 2 and output in problem


def test_a_small_file_of_very_many_rows_is_refused_before_it_is_read(tmp_path):
    """40 million rows in a few kilobytes; its rows alone would take gigabytes."""
    rows = 40_000_000
    one = {
        name: pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows // 40, "int8")), pa.array(["a"]))
        for name in SCORE[:3]
    }
    batch = pa.table({**one, "value": pa.array(np.zeros(rows // 40))})
    with pq.ParquetWriter(tmp_path / "many.parquet", batch.schema, compression="zstd") as writer:
        for _ in range(40):
            writer.write_table(batch)
    assert (tmp_path / "many.parquet").stat().st_size < 2**20
    del batch, one
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="40,000,000 rows"):
        read_scores(tmp_path / "many.parquet")
    for command in ("import", "report"):
        assert call(command, tmp_path / "many.parquet", "--output", tmp_path / "out")[0] == 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes
