import json


def check(case, out):
    """Its order is settled from the start, but whether that order is above chance is not known: ready neither way."""
    statements = json.loads((out / "cards" / "late" / "card.json").read_text())["verdict"]["statements"]
    outcomes = {one["rule"]: one["outcome"] for one in statements}
    assert outcomes["settled"] == "yes"
    assert outcomes["ready"] == "not known"
