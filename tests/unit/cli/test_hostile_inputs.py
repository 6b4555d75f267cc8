"""Hostile inputs, each from a fuzzer: one line, exit code 2, nothing half-written, and no more memory than it takes."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.test_outputs import call

from lm_validity.errors import InputError
from lm_validity.files import read_json, read_json_or
from lm_validity.tables.schema import ITEMS, SCORES, read_scores, write_table

DEEP = "[" * 100_000 + "]" * 100_000
SCORE = ("model", "benchmark", "protocol", "value")


def test_the_root_of_a_disk_is_no_model(place):
    config = {"results": {"knot": {"acc,none": 0.5}}, "config": {"model_args": "pretrained=/"}}
    (place / "results.json").write_text(json.dumps(config))
    code, problem = call("import", "results.json", "--output", "out")
    assert code == 2 and "results.json" in problem and "'model'" in problem and not (place / "out").exists()
    assert call("import", "results.json", "--model", "results.json=ash-1b", "--output", "out")[0] == 0


@pytest.mark.parametrize("command", ["import", "report"])
def test_a_parquet_file_without_columns(place, command):
    pq.write_table(pa.table({}), place / "empty.parquet")
    code, problem = call(command, "empty.parquet", "--output", "out")
    assert code == 2 and "empty.parquet" in problem and not (place / "out").exists()


@pytest.mark.parametrize("command", ["import", "report"])
@pytest.mark.parametrize("own", [True, False])
def test_a_parquet_file_with_bytes_that_are_no_text(place, command, own):
    text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], "int32")), pa.py_buffer(b"\xff\xfe")]
    )
    columns = {
        "model": text,
        "benchmark": pa.array(["knot"]),
        "protocol": pa.array(["direct"]),
        "value": pa.array([0.5]),
    }
    pq.write_table(
        pa.table({name: columns[name] for name in (SCORE if own else ("model", "value"))}), place / "s.parquet"
    )
    code, problem = call(command, "s.parquet", "--output", "out")
    assert code == 2 and "s.parquet" in problem and not (place / "out").exists()


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


def test_json_that_nests_deeper_than_python_reads(tmp_path):
    path = tmp_path / "record.json"
    path.write_text(DEEP)
    assert read_json_or(path, "none") == "none"
    with pytest.raises(ValueError, match="nested"):
        read_json(path)


@pytest.mark.timeout(20)
def test_a_pipe_is_no_file(tmp_path):
    """Nobody writes into it: a reader would wait for ever."""
    os.mkfifo(tmp_path / "cell.json")
    assert read_json_or(tmp_path / "cell.json", "none") == "none"


def test_a_name_in_a_folder_that_is_no_utf_8(place):
    """As a process of its own, whose standard output says so."""
    folder = place / "mine"
    folder.mkdir()
    (folder / "table.csv").write_text((place / "given/table.csv").read_text())
    Path(os.fsdecode(bytes(folder) + b"/r\xe9sum\xe9.csv")).write_text("no table")
    Path(os.fsdecode(bytes(folder) + b"/r\xe9sultats.json")).write_text("{}")
    command = [sys.executable, "-c", "from lm_validity.cli import main; main()", "import", "mine", "--output", "out"]
    done = subprocess.run(command, cwd=place, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"sultats" in done.stdout and len(read_scores(place / "out" / "scores.parquet")) == 12
    assert "sum" in (place / "out" / "import.json").read_text()
    alone = [*command[:4], os.fsdecode(b"mine/r\xe9sum\xe9.csv"), *command[5:6], "other"]
    done = subprocess.run(alone, cwd=place, capture_output=True)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"Traceback" not in done.stderr


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
