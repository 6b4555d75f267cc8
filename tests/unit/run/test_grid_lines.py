"""Shipped configurations give the jobs, settings lines and resources that are on record: nothing would rerun."""

import json

import pytest
from tests.golden.grid_lines import CONFIGURATIONS, EXPECTED, ROOT, describe

RECORDED = json.loads(EXPECTED.read_text())


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_jobs_are_those_on_record(configuration, monkeypatch):
    """Where a change is meant: python tests/golden/grid_lines.py --renew, and say so in the commit."""
    monkeypatch.chdir(ROOT)
    assert describe(configuration) == RECORDED[configuration]


def test_every_record_is_of_a_configuration():
    assert set(RECORDED) == set(CONFIGURATIONS)
