"""Result files of lighteval in its two layouts of task names: means are left out, groups are one benchmark."""

import json

import pandas as pd
import pytest
from tests.unit.tables.conftest import read_files

from lm_validity.errors import InputError
from lm_validity.tables.formats.score_files import ImportLog, ImportOptions

SUBJECTS = {
    f"mmlu:{name}|5": {"acc": value, "acc_stderr": 0.03} for name, value in (("a", 0.2), ("b", 0.3), ("c", 0.4))
}


def document(results: dict, configs: dict | None = None, **general) -> dict:
    general = {"lighteval_sha": "?", "max_samples": None, "model_name": "org/a", "model_sha": "abc"} | general
    return {"config_general": general, "results": results, "versions": {}, "config_tasks": configs or {}}


@pytest.fixture
def read(tmp_path):
    def make(*documents: dict, **options) -> pd.DataFrame:
        for number, each in enumerate(documents):
            (tmp_path / f"results_2025-11-0{number + 1}T10-00-00.000000.json").write_text(json.dumps(each))
        return read_files([tmp_path], ImportOptions(**options), ImportLog(strict=True))

    return make


def test_names_shots_items_and_directions(read):
    task = {"acc_norm": 0.5, "acc_norm_stderr": 0.02}
    metrics = [{"metric_name": "acc_norm", "higher_is_better": True}, {"metric_name": "ppl", "higher_is_better": False}]
    results = {"leaderboard|arc:challenge|25": task, "lighteval|wiki|0": {"ppl": 9.5, "ppl_stderr": float("nan")}}
    configs = {"leaderboard|arc:challenge": {"effective_num_docs": 1172, "metric": metrics}}
    configs["lighteval|wiki"] = {"effective_num_docs": -1, "metric": metrics}
    rows = read(document({**results, "all": {"acc_norm": 0.5, "ppl": 9.5}}, configs))
    columns = ["model", "benchmark", "metric", "num_fewshot", "value", "higher_is_better"]
    assert rows[columns].values.tolist() == [
        ["org/a", "arc:challenge", "acc_norm,none", 25, 0.5, True], ["org/a", "wiki", "ppl,none", 0, 9.5, False],
    ]  # fmt: skip
    assert rows["n_items"].tolist()[0] == 1172 and rows[["n_items", "stderr"]].iloc[1].isna().all()
    assert set(rows["source"]) == {"lighteval"} and set(rows["checkpoint"]) == {"final"}
    configs = {key.replace("leaderboard|", "") + "|25": value for key, value in configs.items()}
    configs["wiki|25"] = {"effective_num_docs": None, "metrics": 7}  # of no use, and no reason to refuse the file
    new = read(document({"arc:challenge|25": task, "wiki|0": results["lighteval|wiki|0"]}, configs))
    assert new[columns[:5]].equals(rows[columns[:5]]) and new["n_items"].iloc[0] == 1172


def test_a_group_is_its_mean_with_the_error_of_a_mean(read):
    average = {"mmlu:_average|5": {"acc": 0.3, "acc_stderr": 0.03}}
    two = {"arc:a|5": {"acc": 0.5}, "arc:b|5": {"acc": 0.7}, "arc:_average|5": {"acc": 0.6}}
    file = document({**SUBJECTS, **average, **two, "all": {"acc": 0.4}})
    rows = read(file).set_index("benchmark")
    assert list(rows.index) == ["arc:a", "arc:b", "mmlu"] and rows.at["mmlu", "value"] == 0.3
    assert rows.at["mmlu", "stderr"] == pytest.approx(0.03 / 3**0.5) and rows.at["mmlu", "num_fewshot"] == 5


def test_checkpoints_prompts_and_reruns(read):
    files = [
        document(SUBJECTS, model_config={"model_name": "org/a", "revision": "step1000"}),
        document(SUBJECTS, model_config={"model_name": "org/a", "override_chat_template": True}),
    ]
    rows = read(*files)
    assert rows.groupby(["checkpoint", "prompt"]).size().to_dict() == {("final", "chat"): 3, ("step1000", "plain"): 3}
    assert set(rows["iteration"].dropna()) == {1000}


@pytest.mark.parametrize(
    ("results", "general", "words"),
    [
        ({"arc": {"acc": 0.5}}, {}, "not as lighteval writes"),
        ({"arc|x": {"acc": 0.5}}, {}, "not as lighteval writes"),
        ({"arc|5": [1]}, {}, "not as lighteval writes"),
        ({"arc|5": {"acc": 0.5, "acc_stderr": -1}}, {}, "-1"),
        ({"arc|5": {"acc": 0.5}}, {"model_name": ["a"]}, "is no name"),
        ({"arc|5": {"acc": 0.5}}, {"model_name": None}, "the model"),
        ({"arc|5": {"acc": 1e300}}, {}, "1e\\+300"),
        ({"all": {"acc": 0.5}}, {}, "no scores"),
    ],
)
def test_bad_files_say_where(read, results, general, words):
    with pytest.raises(InputError, match=words):
        read(document(results, **general))
