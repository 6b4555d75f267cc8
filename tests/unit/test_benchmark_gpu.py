"""`benchmarks/gpu.py`: in 16 bits a few questions may be answered otherwise, as lm-eval's own batch sizes do."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import gpu


@pytest.mark.parametrize(("own", "ours", "given"), [(0, 2, True), (0, 3, False), (4, 6, True), (4, 7, False)])
def test_two_questions_more_than_lm_evals_batch_sizes_differ_by(own, ours, given, monkeypatch):
    """Of 16 questions; a tolerance of none would withhold every ratio in bfloat16."""
    monkeypatch.setattr(gpu, "QUESTIONS", 16)
    monkeypatch.setattr(gpu, "LENGTHS", {"short": ((3, 5), (1, 3))})
    # asked first about lm-eval's batch of 1 against that of 32, then about ours against each
    answers = iter([own / 16, ours / 16, ours / 16])
    monkeypatch.setattr(gpu, "difference", lambda *arguments: next(answers))
    if given:
        assert len(gpu.scoring_records("tiny", "bfloat16", "cpu", rounds=1)) == 2
    else:
        with pytest.raises(SystemExit, match="scores differ"):
            gpu.scoring_records("tiny", "bfloat16", "cpu", rounds=1)


@pytest.mark.slow
def test_adapters_cost_half_of_the_launches_that_pefts_did():
    """Those were 4158 and 5558 (docs/explanation/performance.md)."""
    script = Path(__file__).parents[2] / "benchmarks" / "_launches.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    cells = [line.split("|") for line in done.stdout.splitlines() if line.startswith(("| 0.5B", "| 8B"))]
    small, large = (int(row[3]) for row in cells)
    assert small <= 4158 / 2 and large <= 5558 / 2
