"""The noise of training, from models that were trained twice, and the column of the models sheet that names them."""

import numpy as np
import pandas as pd
import pytest

from lm_validity.config.sheets import read_models as read_run_models
from lm_validity.errors import InputError
from lm_validity.tables.schema import as_in_scores, read_model_facts, reruns_of
from lm_validity.tables.training import training_noise


def rows(**curves):
    """Scores on `facts` of {model: {step: value}}."""
    found = [
        {"model": model, "benchmark": "facts", "checkpoint": f"step{step}", "iteration": step, "value": value}
        for model, curve in curves.items()
        for step, value in curve.items()
    ]
    return pd.DataFrame(found).assign(tokens_b=np.nan)


def test_variance_between_trainings_by_hand():
    """Two models: one with two trainings that share seven checkpoints, one with three that share one."""
    a, b = {step: 0.5 for step in range(1, 8)}, {step: 0.5 + 0.02 * (step - 4) for step in range(1, 8)}
    table = rows(a=a, b=b | {9: 9.0}, c={1: 0.1, 2: 0.3}, d={2: 0.4}, e={2: 0.5}, alone={1: 0.0, 2: 1.0})
    found = training_noise(table, {"b": "a", "d": "c", "e": "c"})["facts"]
    # the last five that both have: differences -.02 to .06; half their squares, then the variance of .3, .4 and .5
    first = np.mean([0.02**2, 0, 0.02**2, 0.04**2, 0.06**2]) / 2
    assert found.sd == pytest.approx(np.sqrt((first + 2 * 0.01) / 3)) and found.reruns == 3


def test_nothing_is_measured_without_a_checkpoint_in_common():
    assert training_noise(rows(a={1: 0.1}, b={2: 0.2}), {"b": "a"}) == {}
    assert training_noise(rows(a={1: 0.1}, b={1: 0.2}), {}) == {}


def test_reruns_are_joined_by_path_as_models_are(tmp_path):
    (tmp_path / "m.csv").write_text("model,path,rerun_of\na,org/a,\nb,org/b,a\n")
    sheet = read_model_facts(tmp_path / "m.csv")
    assert reruns_of(sheet) == {"b": "a"}
    assert reruns_of(as_in_scores(sheet, {"org/a", "org/b"})) == {"org/b": "org/a"}


@pytest.mark.parametrize(("name", "problem"), [("c", "no such model"), ("b", "a rerun itself")])
def test_a_rerun_names_a_first_training_of_the_sheet(tmp_path, name, problem):
    (tmp_path / "m.csv").write_text(f"model,path,rerun_of\na,org/a,\nb,org/b,a\nd,org/d,{name}\n")
    for read in (lambda path: read_model_facts(path), lambda path: read_run_models(path, run="r")):
        with pytest.raises(InputError, match=f"m.csv, model 'd', column 'rerun_of', value '{name}': {problem}"):
            read(tmp_path / "m.csv")
