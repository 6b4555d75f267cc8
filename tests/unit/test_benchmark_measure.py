"""A ratio is given only where both sides computed the same."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from _measure import Cost, compare, interleave, write_records


def record(agreement: float, tolerance: float = 1e-4) -> dict:
    theirs, ours = [Cost(4, 8), Cost(6, 12), Cost(9, 9)], [Cost(2, 2), Cost(2, 4), Cost(3, 3)]
    options = {"target": 2.0, "agreement": agreement, "tolerance": tolerance, "detail": "toy"}
    return compare("work", "loop", theirs, ours, **options)


def test_the_ratio_is_the_median_of_the_rounds():
    found = record(0.0)
    assert (found["ratio"], found["ratio_low"], found["ratio_high"]) == (3.0, 2.0, 3.0)
    assert "6.00 against 2.00 CPU-s, 3 rounds; on the clock 3.00 times" in found["detail"]


@pytest.mark.parametrize("agreement", [2e-4, float("inf"), float("nan")])
def test_no_ratio_where_scores_differ(agreement):
    with pytest.raises(SystemExit, match=r"scores differ by .* no ratio is given"):
        record(agreement)


def test_sides_take_turns():
    seen = []
    costs, results = interleave({"a": lambda: seen.append("a") or 1, "b": lambda: seen.append("b") or 2}, 3)
    assert seen == ["a", "b"] * 3 and results == {"a": 1, "b": 2}
    assert len(costs["a"]) == len(costs["b"]) == 3


def test_rounds_of_an_unfinished_measurement_are_not_its_result(tmp_path):
    write_records(tmp_path / "work.json", [record(0.0)], finished=False)
    assert [path.name for path in tmp_path.iterdir()] == ["work.partial.json"]
    write_records(tmp_path / "work.json", [record(0.0)])
    assert [path.name for path in tmp_path.iterdir()] == ["work.json"]
