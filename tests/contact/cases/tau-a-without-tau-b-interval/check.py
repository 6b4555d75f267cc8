"""No interval, ceiling or correction of tau-b beside the mean of tau-a."""

import pandas as pd


def check(case, out):
    """Raises AssertionError."""
    rows = pd.read_parquet(out / "agreement" / "results.parquet")
    rows = rows[(rows["protocol"] == "direct") & rows["subject"].isna()]
    mean = rows[rows["quantity"] == "tau_mean"]
    assert len(mean) and mean[["low", "high"]].isna().all(axis=None) and mean["reason"].notna().all()
    others = rows[rows["quantity"].isin(["tau_ceiling", "tau_mean_corrected"])]
    assert len(others) and others["value"].isna().all()
