"""The filter that all models have counts."""

import pandas as pd

from lm_validity.site.gather import guess_benchmarks


def check(case, out):
    sheet = guess_benchmarks(pd.read_parquet(out / "scores.parquet"))
    assert set(sheet["metric"]) == {"exact_match,flexible-extract"}, sheet
