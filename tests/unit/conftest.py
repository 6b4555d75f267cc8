"""A small table of scores in a working directory of its own."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lm_validity.tables.schema import SCORES, write_table

BENCHMARKS = ("knot", "loom", "plough")


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A working directory with a table of scores in `given`, as CSV and as parquet."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(7)
    rows = [
        {"model": f"ash-{i + 1}b", "checkpoint": "final", "benchmark": name, "protocol": "direct", "prompt": "plain",
         "split": "test", "metric": "acc,none", "value": 0.3 + 0.08 * i + 0.03 * rng.random(), "stderr": 0.02,
         "higher_is_better": True, "selected": True, "source": "csv"}
        for i in range(4)
        for name in BENCHMARKS
    ]  # fmt: skip
    (tmp_path / "given").mkdir()
    write_table(pd.DataFrame(rows), SCORES, tmp_path / "given" / "scores.parquet")
    frame = pd.DataFrame(rows).pivot(index="model", columns="benchmark", values="value")
    frame.add_suffix(" ↑").to_csv(tmp_path / "given" / "table.csv")
    frame.reset_index()[["model"]].to_csv(tmp_path / "given" / "models.csv", index=False)
    pd.DataFrame({"benchmark": BENCHMARKS}).assign(output_type="multiple_choice").to_csv(
        tmp_path / "given" / "benchmarks.csv", index=False
    )
    return tmp_path
