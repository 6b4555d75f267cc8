"""The reports on the published tables give the numbers on record, each by its key in summary.json, to 1e-9.

Each is also in one row of results.parquet.
"""

import json
import re
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from tests.golden.golden_master import differences
from tests.golden.published_figures import EXPECTED, PUBLISHED, figures

from lm_validity.results.rows import UNIQUE

RECORDED = json.loads(EXPECTED.read_text())

pytestmark = [
    pytest.mark.slow,
    pytest.mark.published,
    pytest.mark.skipif(not PUBLISHED.is_dir(), reason="no published tables in ../shared/published"),
]


# what is in `conditions`: where a number belongs
SAID = re.compile(r"\.(at_least|at_most|m|n|parameters_b|effect_size|margin)$|decision_study\.\d+\.(?!reliability)")


def numbers(value, where=""):
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(one, f"{where}.{key}")
    elif isinstance(value, int | float) and not SAID.search(where):
        yield float(value)


def check_rows(folder: Path) -> None:
    """Every number of summary.json is in one row; what a row lacks has a reason and its code."""
    rows = pd.read_parquet(folder / "results.parquet")
    assert not rows.duplicated(list(UNIQUE)).any()
    ends = pd.concat([rows["low"], rows["high"]])
    values = rows.drop_duplicates([name for name in UNIQUE if name != "interval_for"])["value"]
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert Counter(pd.concat([values, ends]).dropna()) == Counter(numbers(summary))
    lacking = rows["value"].isna() & rows["text"].isna() | rows["interval_for"].notna() & rows["low"].isna()
    assert (rows["reason"].notna() == lacking).all() and (rows["reason_code"].notna() == lacking).all()


@pytest.mark.parametrize("report", ["agreement", "factors", "signal", "bias"])
def test_figures_are_those_on_record(report, tmp_path):
    """Where a change is meant: python tests/golden/published_figures.py --renew, and list it in the commit."""
    assert list(differences(RECORDED[report], figures(report, tmp_path))) == []
    check_rows(tmp_path / report)
