"""What says whether higher is better on a benchmark, and what wins where several do."""

import pandas as pd

from lm_validity.tables.metrics import settled_directions


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
    by_scores = rows.assign(higher_is_better=None, metric=[metric for metric, *_ in told.values()])
    unsaid = settled_directions(by_scores, sheet.assign(metric=None, higher_is_better=None), "s.csv").facts
    assert unsaid["higher_is_better"].tolist() == [False, True, False, True, True]
    facts, (note,) = settled_directions(rows, sheet, "s.csv")
    found = facts.set_index("benchmark")
    assert found["higher_is_better"].to_dict() == {
        "own": True, "scored": False, "rate": False, "right": True, "odd": True,
    }  # fmt: skip
    assert found["direction_known"].to_dict() == {name: name != "odd" for name in told}
    assert "odd" in note and "rate" not in note
