"""Prints the unit tests nearest to the paths given (`make test-near`).

They are in the folder of tests/unit/ that mirrors the path's own in src/lm_validity/, or in the nearest one above it. A
study's tests go together. Where there is no such folder, they are the files of tests/unit/ itself.
"""

import sys
from pathlib import Path

SOURCE, UNIT = Path("src/lm_validity"), Path("tests/unit")


def nearest(path: Path) -> list[Path]:
    """Folders and files for pytest, from the root of the repository."""
    if path.is_relative_to(UNIT) and path.name.startswith("test_") and path.is_file():
        return [path]
    root = UNIT if path.is_relative_to(UNIT) else SOURCE
    inner = Path(*path.relative_to(root).parts[:2]) if path.is_relative_to(root) else Path()
    mirrored = (UNIT / folder for folder in (inner, *inner.parents)[:-1])
    folder = next((folder for folder in mirrored if folder.is_dir()), None)
    return [folder] if folder else sorted(UNIT.glob("test_*.py"))


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("Error: nothing has changed since HEAD. Hint: make test-near AT=src/lm_validity/studies/signal")
    print(*sorted({str(test) for path in sys.argv[1:] for test in nearest(Path(path))}))
