"""The program behind `make slurm-test`, started as make starts it: Slurm is down again whatever happens, and a Slurm
that it did not start stays untouched. Runs before the cluster is up: these tests bring it up and down themselves."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from machine import clean_environment, lives, processes, wait_for
from ordinary_user import NOBODY, CannotMount, environment_for_everyone
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


@pytest.fixture
def running(tmp_path):
    """A call of `run` whose command submits a job and waits; and the process of that job."""
    script = tmp_path / "job"
    script.write_text("#!/bin/sh\necho $$ > pid\nexec sleep 300\n")
    command = (sys.executable, PROGRAM, "run", "--", "sh", "-c", "sbatch --parsable job; exec sleep 300")
    process = subprocess.Popen(
        command, cwd=tmp_path, env=clean_environment(), stdout=subprocess.DEVNULL,
        # a shell that started us in the background has it ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    pid = tmp_path / "pid"
    try:
        wait_for("the job runs", lambda: pid.exists() and pid.read_text().strip(), 120)
        yield process, int(pid.read_text())
    finally:
        process.kill()
        process.wait()
        call("down")


def test_down_after_the_command_failed(before):
    """Its exit code is handed on, and a job that it left is ended."""
    done = call("run", "--", "sh", "-c", "srun -n1 hostname && sbatch --wrap 'sleep 300' -o /dev/null && exit 7")
    assert done.returncode == 7, done.stdout + done.stderr
    assert "Slurm is up after" in done.stdout and "Submitted batch job" in done.stdout
    assert everything() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_down_after_a_signal(before, running, number):
    process, job = running
    process.send_signal(number)
    assert process.wait(60) == (-number if number == signal.SIGINT else 128 + number)
    assert everything() == before and not lives(job)


def test_a_killed_call_is_cleaned_up_by_the_next(before, running):
    process, job = running
    process.kill()
    process.wait()
    assert lives(job) and Cluster().answers()
    done = call("run", "--", "true")
    assert done.returncode == 0, done.stderr
    assert everything() == before and not lives(job)


def test_down_after_slurm_did_not_work(before, tmp_path):
    """All daemons run, and the job that proves it does not."""
    (tmp_path / "srun").symlink_to(shutil.which("true"))
    done = call("run", "--", "echo", "never", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 1 and "never" not in done.stdout
    assert "a job does not see its fake GPU" in done.stderr and f"== {STATE}/log/slurmctld.log" in done.stderr
    assert everything() == before


def test_a_second_call_is_refused(running):
    second = call("run", "--", "true")
    assert second.returncode == 3
    assert f"another call of this program uses the test cluster, in {CLONE}\n" in second.stderr
    assert running[0].poll() is None and Cluster().answers()


def test_another_clones_cluster_is_refused(tmp_path):
    """`up` holds no lock once it is done. What a clone left that is gone may be taken down."""
    folder = tmp_path / "clone" / "tests" / "slurm"
    folder.mkdir(parents=True)
    for name in ("slurm_cluster.py", "machine.py"):
        shutil.copy(PROGRAM.with_name(name), folder)
    theirs = folder / PROGRAM.name
    assert call("up", program=theirs).returncode == 0
    try:
        for action in (("run", "--", "true"), ("up",), ("down",)):
            done = call(*action)
            assert done.returncode == 3 and f"the test cluster of {tmp_path / 'clone'} is up" in done.stderr
        Cluster().down()
        assert Cluster().answers()
        shutil.rmtree(tmp_path / "clone")
        assert call("down").returncode == 0 and not Cluster().answers()
    finally:
        shutil.rmtree(tmp_path / "clone", ignore_errors=True)
        call("down")


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


def test_a_running_slurm_with_files_elsewhere_is_refused(running, tmp_path):
    """Two clusters, one running: the other neither starts nor takes anything down."""
    code = "import sys; from pathlib import Path; from slurm_cluster import Cluster\n"
    code += "getattr(Cluster(Path(sys.argv[1])), sys.argv[2])()"
    state = str(tmp_path / "state")
    for action, said in (("up", "is another Slurm's configuration: it stays untouched"), ("down", "")):
        command = (sys.executable, "-c", code, state, action)
        done = subprocess.run(command, cwd=PROGRAM.parent, capture_output=True, text=True)
        assert said in done.stderr and done.returncode == (1 if said else 0)
        assert Cluster().is_ours() and Cluster().answers() and lives(running[1])


def test_a_running_daemon_of_another_slurm_is_refused(tmp_path):
    shutil.copy(shutil.which("sleep"), tmp_path / "slurmctld")
    theirs = subprocess.Popen((tmp_path / "slurmctld", "300"))
    try:
        wait_for("it runs", lambda: processes("slurmctld") == [theirs.pid], 10)
        for action in ("up", "down"):
            done = call(action)
            assert done.returncode == 3
            assert f"slurmctld (pid {theirs.pid}) is running and was not started by this program" in done.stderr
        assert theirs.poll() is None
    finally:
        theirs.kill()
        theirs.wait()


def test_another_slurms_variable_is_refused(tmp_path):
    done = subprocess.run(
        (sys.executable, PROGRAM, "up"),
        env=os.environ | {"SLURM_CONF": str(tmp_path / "slurm.conf")}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 3 and "belongs to another Slurm" in done.stderr


def test_another_user_than_root_is_told_why_not():
    folder = Path(tempfile.mkdtemp(prefix="lm-validity-nobody-"))
    folder.chmod(0o755)
    try:
        with environment_for_everyone(folder) as environment:
            for name in ("slurm_cluster.py", "machine.py"):
                shutil.copy(PROGRAM.with_name(name), folder)
            command = (environment.programs / "python", folder / "slurm_cluster.py", "run", "--", "true")
            done = subprocess.run(command, cwd="/", env=environment.variables, capture_output=True, text=True, **NOBODY)
        assert done.returncode == 3 and "not root: packages, /etc/slurm and device files need it" in done.stderr
    except CannotMount as reason:
        pytest.skip(f"mount is not allowed here: {reason}")
    finally:
        shutil.rmtree(folder)
