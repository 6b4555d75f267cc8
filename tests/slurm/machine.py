"""Commands, packages and processes of this machine, for the test cluster. Standard library only."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path


class Refused(Exception):
    """This machine cannot have the test cluster, or has another one."""


def check_machine() -> None:
    """Raise Refused where this is no Debian or we are not root."""
    if not Path("/etc/debian_version").is_file() or shutil.which("apt-get") is None:
        raise Refused("this is not Debian: the test cluster is installed with apt-get")
    if os.geteuid() != 0:
        raise Refused("not root: packages, /etc/slurm and device files need it")


def install(packages: tuple[str, ...]) -> None:
    """apt-get the packages that are missing, without letting them start daemons of their own."""
    missing = [
        name for name in packages if "install ok installed" not in output("dpkg-query", "-W", "-f=${Status}", name)
    ]
    if not missing:
        return
    print(f"installing {' '.join(missing)}", flush=True)
    policy = Path("/usr/sbin/policy-rc.d")
    own_policy = not policy.exists()
    if own_policy:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:  # no package lists, or old ones
            subprocess.run(["apt-get", "update", "-q"], env=environment, capture_output=True)
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
    finally:
        if own_policy:
            policy.unlink()
    if done.returncode != 0:
        raise Refused(f"{' '.join(command)}: {' '.join((done.stdout + done.stderr).split()[-60:])}")


def clean_environment() -> dict:
    """Without variables of a Slurm job or client: they would change what our commands do."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_", "SRUN_"))}


def output(*command: str) -> str:
    """A command's standard output, whatever its exit code; nothing where it does not answer."""
    try:
        return subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=60).stdout
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""


def wait_for(what: str, condition: Callable[[], bool], seconds: float) -> None:
    """Poll until the condition holds. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.05)


def stat_of(pid: int | str) -> tuple[str, list[str]]:
    """A process's name and the fields after it; ("", ["X"]) where it is gone."""
    try:
        _, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")
    except OSError:
        return "", ["X"]
    name, _, fields = rest.rpartition(")")
    return name, fields.split()


def lives(pid: int) -> bool:
    """Nobody may reap daemons in a container: a zombie does not live."""
    return stat_of(pid)[1][0] not in "ZX"


def processes(name: str) -> list[int]:
    """Living processes of a name."""
    every = (folder.name for folder in Path("/proc").glob("[0-9]*"))
    return [int(pid) for pid in every if stat_of(pid)[0] == name and lives(int(pid))]


def open_files(pid: int) -> list[str]:
    """The files that a process holds open."""
    found = []
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            found.append(os.readlink(link))
    except OSError:
        pass
    return found


def read_pid(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def kill_and_wait(pid: int | None, number: signal.Signals) -> None:
    """Signal a process and wait up to five seconds until it is gone."""
    if pid is None or not lives(pid):
        return
    os.kill(pid, number)
    deadline = time.monotonic() + 5
    while lives(pid) and time.monotonic() < deadline:
        time.sleep(0.02)


def kill_session(leader: int) -> None:
    """SIGKILL a process and everything in its session: a job step and all that it started."""
    session = stat_of(leader)[1][3:4]
    every = (folder.name for folder in Path("/proc").glob("[0-9]*"))
    for pid in [int(pid) for pid in every if session and stat_of(pid)[1][3:4] == session]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
