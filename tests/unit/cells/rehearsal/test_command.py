"""`lm-validity rehearse` from a config.json alone: an answer on disk, asked once; bad input in one line."""

import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from lm_validity.cells.rehearsal import rehearse as rehearsing
from lm_validity.cli import main
from lm_validity.cli.rehearse import register
from lm_validity.errors import InputError

CONFIG = {"model_type": "llama", "vocab_size": 500, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
CONFIG |= {"num_attention_heads": 4, "max_position_embeddings": 64}


@pytest.fixture
def command(tmp_path, monkeypatch):
    """A function (config.json, GB of GPU memory) -> result of the command, in a run of one local model."""
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    register(app)  # alone in it, so that its name is not written

    def call(config: dict, gigabytes: float = 40):
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
            "size_classes": {"one": {"gpu_memory_gb": gigabytes}},
        }
        Path("run.yaml").write_text(json.dumps(settings))
        return CliRunner().invoke(app, ["--configfile", "run.yaml"])

    return call


def test_a_model_is_asked_about_once(command, monkeypatch):
    first = command(CONFIG)
    assert first.exit_code == 0, first.output
    assert first.output.startswith("mine: ") and "fits at micro-batch 2 on 'one'" in first.output
    (path,) = Path("results/run/rehearsal").glob("*.json")
    answer = json.loads(path.read_text())
    assert set(answer["training"]) == {"1", "2"} and answer["details"]["config"] == "config.json"
    monkeypatch.setattr(rehearsing, "_measure", None)
    assert command(CONFIG).output == first.output
    small = command(CONFIG, gigabytes=0.5)  # the same answer, another verdict
    assert isinstance(small.exception, InputError)
    assert "micro-batch 1" in small.exception.problem and "GPUs of 0.5 GB" in small.exception.hint


def test_what_is_no_causal_language_model_is_one_line(command):
    refused = command({"model_type": "bert", "architectures": ["BertForMaskedLM"]})
    assert isinstance(refused.exception, InputError) and "mine: not rehearsed" in refused.exception.problem
    assert refused.output.startswith("mine: FAILS")
    assert not Path("results/run/rehearsal").exists()


@pytest.mark.parametrize(
    ("config", "size_class", "words"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, {}, "not rehearsed"),
        (CONFIG | {"num_attention_heads": 7}, {}, "not rehearsed"),  # 64 is no multiple of it
        ({"model_type": "bert"}, {"gpu_type": "mi300"}, "mi300"),
    ],
)
def test_a_failure_is_exit_code_2_and_one_line(config, size_class, words, command, monkeypatch, capsys):
    command(config)
    settings = json.loads(Path("run.yaml").read_text())
    settings["size_classes"]["one"] |= size_class
    Path("run.yaml").write_text(json.dumps(settings))
    monkeypatch.setattr(sys, "argv", ["lm-validity", "rehearse", "--configfile", "run.yaml"])
    with pytest.raises(SystemExit) as ended:
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and words in line and "Hint: " in line
