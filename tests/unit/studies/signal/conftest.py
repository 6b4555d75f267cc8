"""Makes `signal_world` importable, and one world that several tests read."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from signal_world import Files, World, write_world


@pytest.fixture(scope="session")
def rising(tmp_path_factory) -> Files:
    """Two benchmarks: one that rises with ability, one of pure noise."""
    return write_world(tmp_path_factory.mktemp("rising"), World(), World(benchmark="noise", rise=0.0, seed=1))
