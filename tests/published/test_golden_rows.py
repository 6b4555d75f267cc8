"""The rows of all reports, on the published tables and on small worlds, are those on record (tests/golden/rows.py)."""

import json

import pytest
from tests.golden.rows import RECORDS, STUDIES, record_of, rows_of

from lm_validity.results.put import UNIQUE

RECORDED = {study: json.loads((RECORDS / f"{study}.json").read_text(encoding="utf-8")) for study in STUDIES}
# The optimizer of the bias model stops near the mode: what it finds depends on the processor's last digits.
NEAR = {"bias": 1e-3}


def worlds():
    for study, found in RECORDED.items():
        for world in found:
            yield pytest.param(study, world, marks=[pytest.mark.slow] if world == "published" else [])


@pytest.mark.published
@pytest.mark.parametrize(("study", "world"), worlds())
def test_rows_are_those_on_record(study, world):
    """Where a change is meant: python tests/golden/rows.py --renew STUDY, and name the quantities in the CHANGELOG."""
    rows = rows_of(study, world)
    assert rows is not None and not rows.duplicated(list(UNIQUE)).any()
    lacking = rows["value"].isna() & rows["text"].isna() | rows["interval_for"].notna() & rows["low"].isna()
    assert (rows["reason"].notna() == lacking).all() and (rows["reason_code"].notna() == lacking).all()
    record, found = RECORDED[study][world], record_of(rows)
    assert found.keys() == record.keys()
    for quantity, sums in record.items():
        assert found[quantity] == pytest.approx(sums, rel=NEAR.get(study, 1e-8), abs=1e-9), quantity
