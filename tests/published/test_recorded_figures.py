"""The reports on the published tables give the numbers on record, each by its key in summary.json, to 1e-9."""

import json

import pytest
from tests.golden.golden_master import differences
from tests.golden.published_figures import EXPECTED, PUBLISHED, figures

RECORDED = json.loads(EXPECTED.read_text())

pytestmark = [
    pytest.mark.slow,
    pytest.mark.published,
    pytest.mark.skipif(not PUBLISHED.is_dir(), reason="no published tables in ../shared/published"),
]


@pytest.mark.parametrize("report", ["agreement", "factors", "signal", "bias"])
def test_figures_are_those_on_record(report, tmp_path):
    """Where a change is meant: python tests/golden/published_figures.py --renew, and list it in the commit."""
    assert list(differences(RECORDED[report], figures(report, tmp_path))) == []
