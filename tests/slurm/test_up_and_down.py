"""The program behind `make slurm-test`, started as make starts it: Slurm is down again whatever happens, and a Slurm
that it did not start stays untouched. Runs before the cluster is up: these tests bring it up and down themselves."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from machine import clean_environment, lives, processes, wait_for
from slurm_cluster import CLONE, ETC, STATE, Cluster

PROGRAM = Path(__file__).with_name("slurm_cluster.py")
CONF = ETC / "slurm.conf"
DAEMONS = ("slurmctld", "slurmd", "slurmstepd", "munged")

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


def call(*arguments: object, program: Path = PROGRAM, **variables: str) -> subprocess.CompletedProcess:
    command = (sys.executable, program, *map(str, arguments))
    return subprocess.run(command, env=clean_environment() | variables, capture_output=True, text=True, timeout=240)


def everything() -> set:
    """What a Slurm leaves on a machine: its processes and files."""
    running = {pid for name in DAEMONS for pid in processes(name)}
    return running | {path for path in (CONF, ETC / "gres.conf", STATE) if path.exists()}


@pytest.fixture(autouse=True)
def before():
    """A machine that may have the cluster and has none; what there was must be all that there is afterwards."""
    possible = call("check")
    if possible.returncode != 0:
        pytest.skip(possible.stderr.strip())
    assert call("down").returncode == 0
    found = everything()
    yield found
    assert everything() == found


def test_down_after_the_command_failed(before):
    """Its exit code is handed on, and a job that it left is ended."""
    done = call("run", "--", "sh", "-c", "srun -n1 hostname && sbatch --wrap 'sleep 300' -o /dev/null && exit 7")
    assert done.returncode == 7, done.stdout + done.stderr
    assert "Slurm is up after" in done.stdout and "Submitted batch job" in done.stdout
    assert everything() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_down_after_a_signal_and_a_second_call_is_refused(before, tmp_path, number):
    """While the command of the first submits a job and waits."""
    (tmp_path / "job").write_text("#!/bin/sh\necho $$ > pid\nexec sleep 300\n")
    command = (sys.executable, PROGRAM, "run", "--", "sh", "-c", "sbatch --parsable job; exec sleep 300")
    heard = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731 - a shell may have ignored it
    pid, quiet = tmp_path / "pid", {"stdout": subprocess.DEVNULL, "preexec_fn": heard}
    with subprocess.Popen(command, cwd=tmp_path, env=clean_environment(), **quiet) as process:
        try:
            wait_for("the job runs", lambda: pid.exists() and pid.read_text().strip(), 120)
            second = call("run", "--", "true")
            assert second.returncode == 3
            assert f"another call of this program uses the test cluster, in {CLONE}\n" in second.stderr
            assert process.poll() is None and Cluster().answers()
            process.send_signal(number)
            assert process.wait(60) == (-number if number == signal.SIGINT else 128 + number)
        finally:
            process.kill()
            call("down")
    assert everything() == before and not lives(int(pid.read_text()))


@pytest.mark.parametrize("action", ["run", "up", "down", "check"])
def test_another_slurms_configuration_is_refused(action):
    ETC.mkdir(exist_ok=True)
    CONF.write_text("ClusterName=theirs\n")
    try:
        done = call(action, *(("--", "true") if action == "run" else ()))
        assert done.returncode == 3
        assert f"{CONF} is another Slurm's configuration: it stays untouched" in done.stderr
        assert CONF.read_text() == "ClusterName=theirs\n"
    finally:
        CONF.unlink()
