"""Models that were trained twice: noise of the report, not models of it."""

import numpy as np
import pytest
from tests.unit.studies.agreement.conftest import DIRECT, MODELS, NAMES, agreement_of, score_rows

from lm_validity.missing import Missing
from lm_validity.tables.reruns import NOT_MEASURED

AGAIN = MODELS.replace("tuned\n", "tuned,rerun_of\n").replace(",0\n", ",0,\n").replace(",1\n", ",1,\n")
SCORES = {"a": [0.3, 0.4, 0.5, 0.6], "b": [0.3, 0.5, 0.4, 0.6], "c": [0.6, 0.4, 0.5, 0.3]}


def found(tmp_path, models):
    """On `a` training m0 again gives 0.06 more, on `b` 0.02; `c` was not scored again."""
    rows = score_rows({DIRECT: {name: [*values, values[0] + more] for name, values, more in zip(
        SCORES, SCORES.values(), (0.06, 0.02, 0.0), strict=True)}}, [*NAMES, "again"], stderr=0.01)  # fmt: skip
    return agreement_of(tmp_path, rows[(rows["model"] != "again") | (rows["benchmark"] != "c")], models=models)


def test_a_rerun_is_noise_of_training_and_no_model(tmp_path):
    alone, again = found(tmp_path, MODELS), found(tmp_path, AGAIN + "again,F,1,10,0,m0\n")
    assert (alone["models"], again["models"]) == (5, 4)
    assert NOT_MEASURED in alone["notes"] and NOT_MEASURED not in again["notes"]
    assert not any(note.endswith(" again.") for note in again["notes"])
    training = {"a": 0.06**2 / 2, "b": 0.02**2 / 2, "c": 0.0}
    for name, values in SCORES.items():
        figures, variance = again["by_benchmark"][DIRECT][name], np.var(values, ddof=1)
        assert (figures["models"], figures["reruns"]) == (4, int(name != "c"))
        assert figures["reliability"] == pytest.approx(1 - (0.01**2 + training[name]) / variance)
        assert isinstance(figures["training_noise"], Missing) == (name == "c")
    assert again["by_benchmark"][DIRECT]["a"]["training_noise"] == pytest.approx(0.06 / np.sqrt(2))
    # a gap of 0.1 is beyond 1.96 errors of items, and not beyond those of items and training
    pairs = {name: again["by_benchmark"][DIRECT][name]["by_distance"][-1].separated for name in ("a", "c")}
    assert pairs == {"a": pytest.approx(3 / 6), "c": 1.0}
    ceilings = [one["kendall_tau"][DIRECT]["ceiling"] for one in (again, found(tmp_path, AGAIN + "again,F,1,10,0,\n"))]
    assert ceilings[0] < ceilings[1]
