"""The table of lm-eval's tasks in the package is what its script writes from the installed lm-eval."""

import subprocess
import sys
from pathlib import Path

import pytest

from lm_validity.tables.metrics import TABLE

SCRIPT = Path(__file__).resolve().parents[3] / "workflow" / "scripts" / "tasks_table.py"


@pytest.mark.slow  # lm-eval reads 14,000 YAML files
def test_the_table_is_of_the_installed_lm_eval(tmp_path):
    pytest.importorskip("lm_eval")
    made = tmp_path / "tasks.tsv"
    subprocess.run([sys.executable, SCRIPT, "--output", made], check=True, capture_output=True, text=True)
    assert made.read_text(encoding="utf-8").splitlines() == TABLE.read_text(encoding="utf-8").splitlines()
