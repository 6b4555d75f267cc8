"""The example cards in docs/examples and the pictures of the documentation are what their commands make today."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCORES = ROOT / "examples" / "published" / "scores.json"

pytestmark = [pytest.mark.slow, pytest.mark.published]


def test_example_cards_are_up_to_date():
    """Rewrite them with: python docs/generate_examples.py all_results.json"""
    command = [sys.executable, ROOT / "docs" / "generate_examples.py", SCORES, "--check"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.skipif("REAL_DATA" not in os.environ, reason="REAL_DATA names no folder of clones")
def test_the_gallery_is_up_to_date():
    """Rewrite it with: python docs/generate_gallery.py REAL_DATA"""
    command = [sys.executable, ROOT / "docs" / "generate_gallery.py", os.environ["REAL_DATA"], "--check"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
