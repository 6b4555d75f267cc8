"""What says whether higher is better on a benchmark, and what wins where several do."""

import pandas as pd

from lm_validity.tables.counted import Sources, count_scores
from lm_validity.tables.metrics import settled_directions
from lm_validity.tables.schema import SCORES, write_table


def test_a_direction_is_the_sheets_else_the_scores_else_the_metrics():
    """TER is a rate of errors and acc a share of right answers; nobody knows the metric `odd`."""
    told = {"own": ("ter,none", True, None), "scored": ("acc,none", None, False), "rate": ("ter,none", None, None)}
    told |= {"right": ("acc,none", None, None), "odd": ("odd,none", None, None)}
    sheet = pd.DataFrame(
        [(name, metric, said, None) for name, (metric, said, _) in told.items()],
        columns=["benchmark", "metric", "higher_is_better", "output_type"],
    ).astype({"higher_is_better": "boolean"})
    rows = pd.DataFrame([("m", name, scored) for name, (*_, scored) in told.items()])
    rows = rows.set_axis(["model", "benchmark", "higher_is_better"], axis=1).assign(metric=None)
    facts, (note,) = settled_directions(rows, sheet, "s.csv")
    found = facts.set_index("benchmark")
    assert found["higher_is_better"].to_dict() == {
        "own": True, "scored": False, "rate": False, "right": True, "odd": True,
    }  # fmt: skip
    assert found["direction_known"].to_dict() == {name: name != "odd" for name in told}
    assert "odd" in note and "rate" not in note


def test_without_a_sheet_the_metric_of_the_scores_says_the_direction(tmp_path):
    rows = [
        {"model": model, "checkpoint": "final", "benchmark": name, "protocol": "direct", "metric": metric, "value": 0.5}
        for model in "ab"
        for name, metric in (("rate", "ter,none"), ("right", "acc,none"), ("odd", "odd,none"))
    ]
    write_table(pd.DataFrame(rows), SCORES, tmp_path / "scores.parquet")
    facts = count_scores(Sources(tmp_path / "scores.parquet")).benchmarks.set_index("benchmark")
    assert facts["higher_is_better"].to_dict() == {"odd": True, "rate": False, "right": True}
    assert facts["direction_known"].to_dict() == {"odd": False, "rate": True, "right": True}
