"""The example cards in docs/examples and the pictures of the documentation are what their commands make today."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.published]


def test_example_cards_are_up_to_date():
    """Rewrite them with: python docs/generate_examples.py"""
    command = [sys.executable, ROOT / "docs" / "generate_examples.py", "--check"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
