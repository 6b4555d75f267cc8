"""`benchmarks/published_program.py`: what can be seen without a checkout of that program."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

PROGRAM = """
import json, os, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder = os.path.join("results", options["--exp_name"])
os.makedirs(folder)
task = open("lm_eval/tasks/toy/toy.yaml").read()
tokenizer = json.load(open(os.path.join(options["--base_model"], "tokenizer_config.json")))["tokenizer_class"]
rate = float(sys.argv[sys.argv.index("--train_param.learning_rate") + 1])
found = {"task": task, "tokenizer": tokenizer, "before_train_eval_acc,none": 0.25, "before_train_test_acc,none": 0.5}
found |= {"best_eval_score": rate, "best_test_score": 100 * rate}
with open(os.path.join(folder, "1.result"), "w") as handle:
    handle.write("".join(json.dumps({key: value}) + "\\n" for key, value in found.items()) + "\\n$END$\\n")
"""


@pytest.fixture
def world(tmp_path):
    """A model's folder and a task, as `whole_cell.write_world` leaves them, and a checkout with a stand-in."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer_config.json").write_text('{"tokenizer_class": "Newer", "kept": 1}')
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "toy.yaml").write_text("task: toy\n")
    checkout = tmp_path / "checkout"
    (checkout / "lm_eval" / "tasks").mkdir(parents=True)
    (checkout / "main.py").write_text(PROGRAM)
    return tmp_path, checkout


def test_the_rate_that_is_best_on_validation_is_taken_unless_none_beats_the_direct_score(world, monkeypatch):
    import published_program

    folder, checkout = world
    program = published_program.prepare(checkout, folder)
    found = published_program.published(program, Path(sys.executable), folder)
    assert found == {"direct validation": 0.25, "direct test": 0.5, "selected": 0.5}, "0.001 does not beat 0.25"
    record = published_program.read_record(program / "results" / "rate-1e-3" / "1.result")
    assert record["task"] == "task: toy\n" and record["tokenizer"] == "PreTrainedTokenizerFast"
    assert "Newer" in (folder / "model" / "tokenizer_config.json").read_text(), "our own model stays as it is"
    monkeypatch.setattr(published_program, "RATES", ("0.3", "0.6", "0.4"))
    assert published_program.published(program, Path(sys.executable), folder)["selected"] == 60.0


def test_what_is_no_checkout_is_refused(tmp_path):
    import published_program

    with pytest.raises(SystemExit, match=r"no checkout of lm-harmony. Hint: "):
        published_program.prepare(tmp_path, tmp_path)


def test_without_a_checkout_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.delenv("LM_HARMONY", raising=False)
    output = tmp_path / "found.json"
    command = [sys.executable, str(BENCHMARKS / "published_program.py"), "--output", str(output)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "no checkout of lm-harmony" in process.stdout and json.loads(output.read_text()) == []
