"""Scores and items of models on small benchmarks, written as a run or an import writes them."""

import numpy as np
import pandas as pd
import pytest

from lm_validity.tables.schema import ITEMS, SCORES, write_table


@pytest.fixture
def write(tmp_path):
    """Write scores.parquet and items.parquet from {(model, benchmark, protocol): values of the items}."""

    def run(cells, subjects=None, changes=None, **columns):
        scores, items = [], []
        for (model, benchmark, protocol), correct in cells.items():
            correct = np.asarray(correct, dtype=float)
            key = {"model": model, "benchmark": benchmark, "protocol": protocol, "checkpoint": "final", "split": "test"}
            stderr = correct.std(ddof=1) / np.sqrt(len(correct))
            one = {"value": correct.mean(), "stderr": stderr, "metric": "acc,none", "higher_is_better": True}
            scores.append(key | one | {"selected": True, "n_items": len(correct)} | columns)
            names = subjects if subjects is not None else [None] * len(correct)
            rows = enumerate(zip(correct, names, strict=True))
            items += [key | {"doc_id": str(d), "correct": v, "subject": s} for d, (v, s) in rows if np.isfinite(v)]
        scores = pd.DataFrame(scores)
        write_table(scores if changes is None else changes(scores), SCORES, tmp_path / "scores.parquet")
        write_table(pd.DataFrame(items), ITEMS, tmp_path / "items.parquet")
        return tmp_path

    return run
