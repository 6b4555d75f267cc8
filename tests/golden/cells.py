"""What two trees of this project compute, byte by byte: cells of config/test.yaml and config/test_bias.yaml.

    python tests/golden/cells.py [COMMIT]

runs both configurations with the code of a commit (HEAD) and with the tree at hand, and exits 1 where a cell's recipe,
its files or a table of the run differ. A commit's record is kept in `build/golden/`. Processors differ in the last
digits of trained weights: both are made on one machine, in 4 minutes each on two cores.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNS = {"test": "config/test.yaml", "test_bias": "config/test_bias.yaml"}
PARTS = ("src", "workflow", "config", "profiles", "envs", "Snakefile")


def record(tree: Path, folder: Path) -> dict[str, str]:
    """Run both configurations with a tree's code in `folder`; the digest of each cell and each table."""
    for part in PARTS:
        copy = shutil.copytree if (tree / part).is_dir() else shutil.copy
        copy(tree / part, folder / part)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"PYTHONPATH": f"{folder / 'src'}", "PATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    found = dict[str, str]()
    for name, configuration in RUNS.items():
        command = ["snakemake", "--profile", "profiles/local", "--cores", "2", "--configfile", configuration]
        done = subprocess.run(command, cwd=folder, env={**os.environ, **own}, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        results = folder / "results" / name
        for file in sorted([*results.glob("store/*/*/*/sha256.json"), *results.glob("tables/*.parquet")]):
            place = file.parent if file.name == "sha256.json" else file
            found[f"{name}/{place.relative_to(results)}"] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def of_commit(commit: str, kept: Path) -> dict[str, str]:
    """The record of a commit, made once."""
    sha = subprocess.check_output(["git", "rev-parse", "--short", commit], cwd=ROOT, text=True).strip()
    path = kept / f"{sha}.json"
    if not path.is_file():
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as work:
            archive = subprocess.check_output(["git", "archive", sha], cwd=ROOT)
            subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(record(Path(folder), Path(work)), indent=1), encoding="utf-8")
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return found


def main() -> None:
    old = of_commit(sys.argv[1] if len(sys.argv) > 1 else "HEAD", ROOT / "build" / "golden")
    with tempfile.TemporaryDirectory() as work:
        new = record(ROOT, Path(work))
    lines = [f"gone: {name}" for name in old.keys() - new.keys()]
    lines += [f"new: {name}" for name in new.keys() - old.keys()]
    lines += [f"differs: {name}" for name in old.keys() & new.keys() if old[name] != new[name]]
    print(*sorted(lines), f"{len(old)} cells and tables before, {len(new)} now", sep="\n")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
