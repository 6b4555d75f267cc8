"""`lm-validity rehearse` from a config.json alone: an answer on disk, asked once; bad input in one line."""

import json
import sys
from pathlib import Path

import pytest

from lm_validity.cells.rehearsal import rehearse as rehearsing
from lm_validity.cli import main

CONFIG = {"model_type": "llama", "vocab_size": 500, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
CONFIG |= {"num_attention_heads": 4, "max_position_embeddings": 64}


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """A function (config.json, settings of the size class) -> (exit code, standard output, standard error) of the
    command, in a run of one local model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lm-validity", "rehearse", "--configfile", "run.yaml"])

    def call(config: dict, **size_class: object) -> tuple[int, str, str]:
        Path("model").mkdir(exist_ok=True)
        Path("model/config.json").write_text(json.dumps(config))
        Path("models.tsv").write_text("model\tpath\tsize_class\tdtype\nmine\t./model\tone\tbfloat16\n")
        Path("benchmarks.tsv").write_text(
            "benchmark\ttask\tcategory\tmetric\toutput_type\thigher_is_better\nq\tq\tLU\tacc,none\tmultiple_choice\t1\n"
        )
        settings = {
            "name": "run",
            "models": "models.tsv",
            "benchmarks": "benchmarks.tsv",
            "finetuning": {"max_length": 32},
            "evaluation": {"batch_size": 2},
            "size_classes": {"one": {"gpu_memory_gb": 40} | size_class},
        }
        Path("run.yaml").write_text(json.dumps(settings))
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return call


def test_a_model_is_asked_about_once(command, monkeypatch):
    code, out, _ = first = command(CONFIG)
    head, row = (line.split() for line in out.splitlines()[:2])
    assert code == 0 and head == ["model", "size", "1", "2", "4", "8", "score", "class", "has", "fits", "least"]
    assert [row[0], *row[-4:]] == ["mine", "one", "40", "8", "one"]
    (path,) = Path("results/run/rehearsal").glob("*.json")
    answer = json.loads(path.read_text())
    assert set(answer["training"]) == {"1", "2", "4", "8"} and answer["details"]["config"] == "config.json"
    monkeypatch.setattr(rehearsing, "_measure", None)
    assert command(CONFIG) == first
    code, out, _ = command(CONFIG, gpu_memory_gb=0.5)  # the same answer, another verdict
    assert out.splitlines()[1].split()[-4:] == ["one", "0.5", "no", "-"]
    assert code == 1 and "micro-batch 1" in out and "GPUs of 0.5 GB" in out


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
        CONFIG | {"num_attention_heads": 7},  # 64 is no multiple of it
    ],
)
def test_a_model_that_cannot_be_run_is_exit_code_1(config, command):
    code, out, error = command(config)
    assert code == 1 and error == "" and out.splitlines()[1].split() == ["mine", "-", "-", "one", "-", "FAILS", "-"]
    assert "\nmine: FAILS on the fake GPU (" in out
    assert not Path("results/run/rehearsal").exists()


def test_a_wrong_size_class_is_exit_code_2(command):
    code, out, error = command(CONFIG, gpu_type="mi300")
    assert code == 2 and out == "" and "mi300" in error and "Hint: " in error
