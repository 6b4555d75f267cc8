"""Where p is above .05, the interval of 95% holds 0."""

import pandas as pd


def check(case, out):
    rows = pd.read_parquet(out / "c" / "results.parquet").set_index("quantity")
    assert rows.loc["change", "low"] <= 0 <= rows.loc["change", "high"]
    assert rows.loc["verdict", "text"] not in ("better", "worse")
