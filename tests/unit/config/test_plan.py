"""The plan sheet: what is wrong with it is said with file, row and hint, before any job."""

from pathlib import Path

import pytest

from lm_validity.config.load import build_run, read_plan
from lm_validity.errors import InputError

MODELS, BENCHMARKS = ["m1", "m2", "m3", "m4"], ["x", "y"]
HEADER = "model\tbenchmark\tround\treason\tprobability\tseed\n"
WHOLE = HEADER + "".join(f"{m}\t{b}\t1\tblock\t0.5\t0\n" for m in MODELS for b in BENCHMARKS)


def plan(tmp_path, text) -> Path:
    path = tmp_path / "plan.tsv"
    path.write_text(text)
    return path


def test_a_plan_is_read_by_model_and_benchmark(tmp_path):
    found = read_plan(plan(tmp_path, WHOLE), MODELS, BENCHMARKS)
    assert list(found)[:3] == [("m1", "x"), ("m1", "y"), ("m2", "x")]
    assert (found["m1", "x"].round, found["m1", "x"].probability, found["m1", "x"].seed) == (1, 0.5, 0)


def test_two_columns_are_enough_for_a_list_of_ones_own(tmp_path):
    text = "model\tbenchmark\n" + "".join(f"{m}\t{b}\n" for m in MODELS for b in BENCHMARKS)
    found = read_plan(plan(tmp_path, text), MODELS, BENCHMARKS)
    assert len(found) == 8 and found["m4", "y"].round == 1 and found["m4", "y"].probability is None


@pytest.mark.parametrize(
    ("line", "problem", "hint"),
    [
        ("m5\tx\t1\t\t\t\n", r"plan\.tsv, row 10, column 'model', value 'm5'", "the plan may name m1, m2"),
        ("m1\tz\t1\t\t\t\n", r"row 10, column 'benchmark', value 'z'", "the plan may name x, y"),
        ("m1\tx\t2\t\t\t\n", r"row 10, column 'model', value 'm1', column 'benchmark', value 'x'.*row 2", "its own id"),
        ("m1\tx\t1\t\t0\t\n", r"row 10, column 'probability', value '0'", "leave it empty"),
        ("m1\tx\t1\t\t1.5\t\n", r"row 10, column 'probability', value '1\.5'", "leave it empty"),
        ("m1\tx\t0\t\t\t\n", r"row 10, column 'round', value '0'", "leave it empty"),
    ],
)
def test_a_bad_row_has_file_row_and_hint(tmp_path, line, problem, hint):
    with pytest.raises(InputError, match=problem) as caught:
        read_plan(plan(tmp_path, WHOLE + line), MODELS, BENCHMARKS)
    assert hint in caught.value.hint


def test_a_benchmark_without_a_block_is_refused(tmp_path):
    text = "".join(line for line in WHOLE.splitlines(True) if not line.startswith(("m1\ty", "m2\ty")))
    with pytest.raises(InputError, match=r"plan\.tsv: benchmark 'y' is planned for 2 models") as caught:
        read_plan(plan(tmp_path, text), MODELS, BENCHMARKS)
    assert "add rows" in caught.value.hint


def test_a_plan_that_is_not_written_yet_names_its_command(tmp_path):
    with pytest.raises(InputError, match=r"no such plan") as caught:
        read_plan(tmp_path / "plan.tsv", MODELS, BENCHMARKS)
    assert "lm-validity plan" in caught.value.hint


def test_a_plan_without_the_agreement_study_is_refused(tmp_path):
    with pytest.raises(InputError, match="'plan' is of the study agreement"):
        build_run({"name": "run", "studies": ["signal"], "models": "m", "benchmarks": "b", "plan": "p"}, "f.yaml")
