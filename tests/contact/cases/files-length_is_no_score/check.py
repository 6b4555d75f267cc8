"""Score and match count; length, distance and rate of failures do not."""

import pandas as pd

from lm_validity.site.gather import guess_benchmarks


def check(case, out):
    sheet = guess_benchmarks(pd.read_parquet(out / "scores.parquet")).set_index("benchmark")["metric"]
    assert sheet["own_gen"] == "score,none", sheet
    assert sheet["own_gen2"] == "relaxed_match,none", sheet
