"""All analyses of the published scores with 2,000 resamples: in under a minute, a site under 10 MB (slow)."""

import time
from pathlib import Path

import pytest

from lm_validity.config.sections import Reports
from lm_validity.results.put import Rows
from lm_validity.site.first_page import build_site
from lm_validity.studies.agreement.factors import report_factors
from lm_validity.studies.agreement.report import report_agreement
from lm_validity.tables.formats.published import read_lm_harmony
from lm_validity.tables.schema import SCORES, write_table

PUBLISHED = Path(__file__).parents[2] / "examples" / "published"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.published,
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("published")
    started = time.process_time()
    write_table(read_lm_harmony(PUBLISHED / "scores.json"), SCORES, folder / "scores.parquet")
    paths = [folder / "scores.parquet", PUBLISHED / "models.csv", PUBLISHED / "benchmarks.csv"]
    report_agreement(*paths, folder / "agreement", section=Reports(resamples=2000))
    report_factors(*paths, folder / "factors", section=Reports(resamples=2000))
    build_site([folder / "agreement", folder / "factors"], folder / "site")
    seconds = time.process_time() - started
    agreement = Rows.read(folder / "agreement" / "results.parquet")
    factors = Rows.read(folder / "factors" / "results.parquet")
    return {"folder": folder, "seconds": seconds, "agreement": agreement, "factors": factors}


def test_takes_less_than_a_minute_of_one_core(run):
    assert run["seconds"] < 60


def test_site_is_small_and_whole(run):
    site = run["folder"] / "site"
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    assert size < 10e6


def test_intervals_hold_their_estimates(run):
    agreement, factors = run["agreement"], run["factors"]
    for protocol in ("direct", "train_before_test"):
        tau, wide = (agreement.row("tau_mean", over, protocol=protocol) for over in ("models", "benchmarks"))
        assert wide.low < tau.low < tau.value < tau.high < wide.high
        share = factors.row("explained_variance", "models", protocol=protocol, component=1)
        assert share.low < share.value < share.high
        assert tau.value < agreement.value("tau_ceiling", protocol=protocol) < 1
    assert agreement.row("tau_change").low > 0.1
    assert agreement.value("tau_change_p") == pytest.approx(1e-4)
