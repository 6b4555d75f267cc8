"""Scores of HELM's runs."""

import json

import pytest

from lm_validity.errors import InputError
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.schema import SETTINGS, read_table


def run(folder, spec, stats):
    folder.mkdir(parents=True)
    (folder / "run_spec.json").write_text(json.dumps(spec))
    (folder / "stats.json").write_text(json.dumps(stats))


def stat(name, mean, split="test", **more):
    return {"name": {"name": name, "split": split, **more}, "count": 1, "mean": mean}


def test_a_run_of_helm(tmp_path):
    spec = {
        "name": "mmlu:subject=law,method=joint,model=acme_ant-1b,data_augmentation=canonical",
        "adapter_spec": {"model": "acme/ant-1b", "max_train_instances": 5, "max_eval_instances": 50, "max_tokens": 8},
    }
    stats = [
        stat("exact_match", 0.1, "valid"), stat("exact_match", 0.25), stat("num_instances", 40.0),
        stat("exact_match", 0.2, perturbation={"name": "typos"}), stat("max_prob", 0.5), stat("prefix_match", None),
    ]  # fmt: skip
    run(tmp_path / "in/a", spec, stats)
    (tmp_path / "in/a/scenario_state.json").write_text("{}")
    scores, log = import_files([tmp_path / "in"], tmp_path / "out")
    columns = ["model", "benchmark", "metric", "value", "n_items", "num_fewshot"]
    row = ["acme/ant-1b", "mmlu:subject=law,method=joint", "exact_match,none", 0.25, 40, 5]
    assert scores[columns].values.tolist() == [row] and not log.skipped
    made = read_table(tmp_path / "out/settings.parquet", SETTINGS)
    assert made[["harness", "limit", "max_gen_toks"]].values.tolist() == [["helm", 50, 8]]


@pytest.mark.parametrize(("spec", "stats"), [([], []), ({"adapter_spec": {}}, []), ({"adapter_spec": {}}, {})])
def test_a_damaged_run_of_helm_is_refused(tmp_path, spec, stats):
    run(tmp_path / "a", spec, stats)
    with pytest.raises(InputError, match=r"run_spec\.json|stats\.json"):
        import_files([tmp_path / "a/stats.json"], tmp_path / "out")
