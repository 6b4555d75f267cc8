"""A document has one number, whatever its place in a file."""

import pandas as pd


def check(case, out):
    items = pd.read_parquet(out / "items.parquet")
    assert items.groupby("doc_hash")["doc_id"].nunique().eq(1).all()
    assert items.groupby("doc_id")["model"].nunique().eq(2).all()
