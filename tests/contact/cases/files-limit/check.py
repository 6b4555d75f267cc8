"""Scores of 20 items stay out of a comparison with those of all items."""

from lm_validity.tables.schema import read_scores
from lm_validity.tables.settings import of_one_kind, settings_beside, with_settings


def check(case, out):
    path = out / "scores.parquet"
    notes = []
    kept = of_one_kind(with_settings(read_scores(path), settings_beside(path)), notes, path, "out")
    assert set(kept["model"]) == {"acme/ant-1b", "acme/cat-3b", "acme/elk-7b"}, sorted(set(kept["model"]))
    assert len(kept) == 9 and notes
