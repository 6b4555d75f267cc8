"""Sampled runs of 62 reasoning models: figures that were computed from the files without this project.

REAL_DATA/sober-reasoning is a clone of zhikaili1150/sober-reasoning. It states no licence: no table of it is here."""

import os
from pathlib import Path

import pytest

from lm_validity.tables.counted import count_scores
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.formats.score_files import ImportOptions

FOLDER = Path(os.environ.get("REAL_DATA", "")) / "sober-reasoning" / "result"
pytestmark = [
    pytest.mark.published,
    pytest.mark.skipif(
        "REAL_DATA" not in os.environ or not FOLDER.is_dir(), reason="REAL_DATA names no folder of clones"
    ),
]
# deviation between runs, error of one run, share of sampling, best run above the mean, falls; None: not given
FIGURES = {
    "aime24": (0.062, 0.084, 0.54, 0.094, 0.42),
    "amc23": (0.050, 0.070, 0.51, 0.075, 0.43),
    # 25% fall by at least a point, which is five items; by more than a point, 22%: numpy over the files
    "math_500": (0.012, 0.016, 0.55, 0.010, 0.223),
}


def test_the_noise_of_sampling(tmp_path):
    scores, log = import_files([FOLDER], tmp_path, ImportOptions(format="lighteval"))
    assert log.files == 2831 and len(log.repeated) == 434 and scores["model"].nunique() == 62
    counted = count_scores(tmp_path / "scores.parquet")
    assert len(counted.rows) == 372 and counted.rows["runs"].min() == 3
    for benchmark, expected in FIGURES.items():
        found = counted.sampling["direct", benchmark]
        values = (found.spread, found.one_run, found.share, found.luck, found.falls)
        assert values == pytest.approx(expected, abs=0.005), benchmark
