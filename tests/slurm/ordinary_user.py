"""This environment for a user who may not look into its folders: root's home, a private checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# for subprocess: as this user, without root's groups
NOBODY = {"user": "nobody", "group": "nogroup", "extra_groups": []}
SCRIPTS = ("snakemake", "lm-validity")


class Environment(NamedTuple):
    """Where its programs are, those that make trouble, and the variables that it needs."""

    programs: Path
    trouble: Path
    variables: dict[str, str]


class CannotMount(Exception):
    """This machine does not let root mount, as in many containers."""


@contextmanager
def environment_for_everyone(folder: Path) -> Iterator[Environment]:
    """A virtual environment under `folder` with this Python, its packages and this package, while the block runs.

    Mounted, because a copy is gigabytes; read-only, so that whatever removes `folder` cannot remove the checkout.
    Raises CannotMount.
    """
    packages = Path(sysconfig.get_path("purelib"))
    own_packages = folder / packages.relative_to(sys.prefix)
    mounts = {Path(sys.base_prefix): folder / "python", packages: own_packages, ROOT / "src": folder / "src"}
    mounted = []
    try:
        for source, target in mounts.items():
            target.mkdir(parents=True)
            done = subprocess.run(("mount", "-o", "bind,ro", source, target), capture_output=True, text=True)
            if done.returncode != 0:
                raise CannotMount(done.stderr.strip())
            mounted.append(target)
        yield _environment(folder)
    finally:
        for target in mounted:  # lazily: a process of a failed test may still use it
            subprocess.run(("umount", "--lazy", target), check=True)


def _environment(folder: Path) -> Environment:
    """The files that make `folder` a virtual environment around what is mounted there."""
    programs, trouble, python = folder / "bin", folder / "trouble", folder / "python"
    programs.mkdir()
    executable = python / Path(os.path.realpath(sys.executable)).relative_to(os.path.realpath(sys.base_prefix))
    (programs / "python").symlink_to(executable)
    (folder / "pyvenv.cfg").write_text(f"home = {executable.parent}\n")
    for name in SCRIPTS:
        script = (Path(sys.executable).parent / name).read_text().partition("\n")[2]
        (programs / name).write_text(f"#!{programs / 'python'}\n{script}")
        (programs / name).chmod(0o755)
    shutil.copytree(Path(__file__).parent / "bin", trouble)
    # a Python built with a shared library looks for it where this user may not
    return Environment(programs, trouble, {"PYTHONPATH": str(folder / "src"), "LD_LIBRARY_PATH": str(python / "lib")})
