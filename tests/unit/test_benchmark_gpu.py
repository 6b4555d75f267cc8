"""`benchmarks/gpu.py`: in 16 bits a few questions may be answered otherwise, as lm-eval's own batch sizes do."""

import gc
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import gpu


@pytest.mark.parametrize(("own", "ours", "given"), [(0, 2, True), (0, 3, False), (4, 6, True), (4, 7, False)])
def test_two_questions_more_than_lm_evals_batch_sizes_differ_by(own, ours, given, monkeypatch):
    """Of 16 questions; a tolerance of none would withhold every ratio in bfloat16."""
    monkeypatch.setattr(gpu, "QUESTIONS", 16)
    monkeypatch.setattr(gc, "collect", int)  # lm-eval calls it at each batch size that it tries
    monkeypatch.setattr(gpu, "LENGTHS", {"short": ((3, 5), (1, 3))})
    # asked first about lm-eval's batch of 1 against that of 32, then about ours against each
    answers = iter([own / 16, ours / 16, ours / 16, ours / 16])
    monkeypatch.setattr(gpu, "difference", lambda *arguments: next(answers))
    if given:
        assert len(gpu.scoring_records("tiny", "bfloat16", "cpu", rounds=1)) == 3
    else:
        with pytest.raises(SystemExit, match="scores differ"):
            gpu.scoring_records("tiny", "bfloat16", "cpu", rounds=1)
