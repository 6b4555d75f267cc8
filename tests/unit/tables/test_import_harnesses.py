"""What small harnesses write."""

import pandas as pd
import pytest
from tests.unit.tables.conftest import put, read_files

from lm_validity.errors import InputError
from lm_validity.tables.formats.score_files import ImportLog, ImportOptions


@pytest.fixture
def read(tmp_path):
    """What an import of files (texts, or values as JSON) reads and says."""

    def make(files: dict, **options):
        for name, content in files.items():
            put(tmp_path / "in" / name, content)
        scores = read_files([tmp_path], ImportOptions(), log := ImportLog(**options))
        return scores.set_index("model"), log

    return make


def test_of_what_must_not_be_less_is_better(read):
    """DeepEval's bias and toxicity are shares with a maximum; of its relevancy nothing is known."""
    names = {"Bias": 0.2, "Toxicity": 0.1, "Answer Relevancy": 0.7}
    measured = [{"name": name, "score": score} for name, score in names.items()]
    cases = [{"name": f"case {number}", "metricsData": measured} for number in range(3)]
    scores, _ = read({"run.json": {"testFile": "quiz.py", "hyperparameters": {"model": "ant"}, "testCases": cases}})
    better = scores.set_index("metric")["higher_is_better"]
    assert not better["bias,none"] and not better["toxicity,none"] and pd.isna(better["answer_relevancy,none"])


OLMES = {"model_config": {"model": "acme/ant"}, "task_config": {"num_shots": 5}, "num_instances": 500}


@pytest.mark.parametrize(
    ("files", "row"),
    [
        (
            {"metrics.json": OLMES | {"task_name": "quiz", "metrics": {"primary_score": 0.3, "note": "x"}}},
            {"model": "acme/ant", "benchmark": "quiz", "metric": "primary_score,none", "value": 0.3, "num_fewshot": 5},
        ),
        (
            {"gpqa_gpt-x_20250101_101010.json": {"score": 0.4, "score:std": 0.5, "score:bootstrap_std": 0.02}},
            {"model": "gpt-x", "benchmark": "gpqa", "metric": "score,none", "value": 0.4, "stderr": 0.02},
        ),
    ],
)
def test_one_score_of_a_file(read, files, row):
    scores, _ = read(files)
    (found,) = scores.reset_index().to_dict("records")
    assert {name: found[name] for name in row} == pytest.approx(row)


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("mteb.json", {"mteb_version": "1", "task_name": "t", "scores": "high"}),
        ("eval.json", {"eval": {"task": "t", "model": "m", "config": {"epochs": "two"}, "model_args": {},
                                "task_args": {}}, "status": "success", "plan": {}, "results": {"scores": []}}),
    ],
)  # fmt: skip
def test_a_mangled_file_of_a_harness_is_named(read, name, document):
    with pytest.raises(InputError, match=name):
        read({name: document}, strict=True)


@pytest.mark.parametrize(("spec", "stats"), [([], []), ({"adapter_spec": {}}, []), ({"adapter_spec": {}}, {})])
def test_a_damaged_run_of_helm_is_refused(read, spec, stats):
    with pytest.raises(InputError, match=r"run_spec\.json|stats\.json"):
        read({"run_spec.json": spec, "stats.json": stats}, strict=True)
