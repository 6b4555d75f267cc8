"""Collect what a GPU machine without a network lacks, as wheels in one folder.

    python benchmarks/gpu_pack.py [--there FILE] [--output .gpu] [--python 3.12]

In an environment that has the package (`make demo`): the packages of the extra `cells` at the versions of
envs/constraints.txt, but for torch and what torch brings. FILE: what the machine has (`pip list --format=freeze`
there), one package a line, which is left out with all that only it needs; a name added by hand, such as `snakemake`,
leaves that out as well. Then the checkout and the folder are all that goes to the machine (gpu_quarter_hour.sh).
"""

import argparse
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
GLIBC = range(39, 16, -1)  # minor versions of the C library that a wheel may ask for: the newest first
SOURCE_ONLY = frozenset(
    ("connection-pool", "rouge-score", "sqlitedict", "word2number")
)  # no wheel is published, and all are plain Python


def names_in(text: str) -> set[str]:
    """Package names of lines like `name==1.0`, as registries compare them."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return {canonicalize_name(re.split(r"[\s=<>!~;\[@]", line, maxsplit=1)[0]) for line in lines if line}


def needed(top: str, extras: Collection[str], left_out: Collection[str], python: str) -> set[str]:
    """Everything that a package needs on Linux, but for what is left out and what only that needs."""
    found: set[str] = set()
    waiting = [(top, frozenset(extras))]
    seen = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        for text in importlib.metadata.requires(name) or ():
            requirement = Requirement(text)
            other = canonicalize_name(requirement.name)
            places = [{"python_version": python, "sys_platform": "linux", "extra": each} for each in wanted or [""]]
            applies = requirement.marker is None or any(map(requirement.marker.evaluate, places))
            if applies and other not in left_out:
                found |= {other} - {canonicalize_name(top)}
                waiting.append((other, frozenset(requirement.extras)))
    return found


def pins(names: Collection[str]) -> list[str]:
    """Those packages at the versions that the project is tested with. Raises SystemExit where one has none."""
    lines = (ROOT / "envs/constraints.txt").read_text(encoding="utf-8").splitlines()
    known = {canonicalize_name(line.partition("==")[0]): line for line in lines if "==" in line}
    if missing := sorted(set(names) - known.keys()):
        raise SystemExit(f"Error: envs/constraints.txt has no version of {', '.join(missing)}.")
    return [known[name] for name in sorted(names)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--there", type=Path, help="what the machine has")
    parser.add_argument("--output", type=Path, default=ROOT / ".gpu")
    parser.add_argument("--python", default="3.12", help="version there")
    arguments = parser.parse_args()
    there = names_in(arguments.there.read_text(encoding="utf-8")) if arguments.there else set()
    of_torch = needed("torch", (), (), arguments.python) | {"torch"}
    wanted = pins(needed("lm-validity", ("cells",), there | of_torch, arguments.python))
    arguments.output.mkdir(parents=True, exist_ok=True)
    folder = str(arguments.output / "wheels")
    plain = [pin for pin in wanted if names_in(pin) & SOURCE_ONLY]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC] + [
        "manylinux2014_x86_64",
        "manylinux1_x86_64",
        "any",
    ]
    options = ["--python-version", arguments.python, "--implementation", "cp", "--only-binary=:all:"]
    options += [f"--platform={name}" for name in platforms]
    rest = [pin for pin in wanted if pin not in plain]
    subprocess.run([*pip, "download", "-q", "--no-deps", *options, "-d", folder, *rest], check=True)
    if plain:
        subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", folder, *plain], check=True)
    files = list(Path(folder).glob("*.whl"))
    print(f"{len(files)} packages, {sum(file.stat().st_size for file in files) / 1e6:.0f} MB in {folder}")


if __name__ == "__main__":
    main()
