"""Rooms stay small enough to find one's way in. What may import what is checked by import-linter (pyproject.toml)."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST = 20
FOLDERS = sorted({path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("*.py")})


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_flat_folder_has_over_twenty_modules(folder):
    modules = [path.name for path in (ROOT / folder).glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MOST
