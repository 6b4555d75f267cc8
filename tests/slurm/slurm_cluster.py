"""A real Slurm on this one machine for tests: controller, two virtual nodes, fake GPUs. Debian, as root.

    python tests/slurm/slurm_cluster.py run -- COMMAND...    up, COMMAND, down whatever happens; COMMAND's exit code
    python tests/slurm/slurm_cluster.py up | down
    python tests/slurm/slurm_cluster.py check                exit 0 where this machine can have one, 3 with the reason

Installs Debian's packages where they are missing. Nothing is left running afterwards and /etc/slurm is as before; the
packages stay. It refuses (exit 3) where a Slurm is configured or running that this clone did not start itself.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import machine
from machine import Refused, clean_environment, kill_and_wait, output, processes, read_pid, wait_for

MARK = "# lm-validity test cluster, state in"
ETC = Path("/etc/slurm")  # not SLURM_CONF: the executor plugin's job step drops that variable
STATE = Path("/var/lib/lm-validity-slurm")
CLONE = Path(__file__).resolve().parents[2]
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
NODES = ("n1", "n2")
GPUS = 2

# Everything on 127.0.0.1. config_overrides: nodes may declare more memory and processors than there are.
# Partitions, GPU type and feature are named as in profiles/slurm-example-site.
# Memory is enforced by polling (jobacct_gather/linux), processes are found by linuxproc: no cgroups, no systemd.
SLURM_CONF = """\
ClusterName=lmvalidity
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={state}/run/munge.socket
SlurmctldPort=16917
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=UsePss,OverMemoryKill
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory,CR_LLN
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
SlurmdTimeout=10
ReturnToService=2
KillWait=2
CompleteWait=0
MinJobAge=3600
StateSaveLocation={state}/ctld
SlurmdSpoolDir={state}/spool/%n
SlurmctldPidFile={state}/run/slurmctld.pid
SlurmdPidFile={state}/run/slurmd-%n.pid
SlurmctldLogFile={state}/log/slurmctld.log
SlurmdLogFile={state}/log/slurmd-%n.log
GresTypes=gpu
NodeName=DEFAULT CPUs=4 RealMemory=64000 Gres=gpu:a100:{gpus} Feature=a100_80gb
NodeName=n[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[16920-16921]
PartitionName=DEFAULT Nodes=ALL MaxTime=120 DefaultTime=10 DefMemPerCPU=500 State=UP
PartitionName=cpu Default=YES
PartitionName=gpu
"""


class Cluster:
    """The test cluster whose files are in one folder."""

    def __init__(self, state: Path = STATE):
        self.state, self.log, self.pids = state, state / "log", state / "run"

    # ---- up and down ------------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Install what is missing, configure, start, and prove that a job runs and sees a fake GPU."""
        machine.check_machine()
        self.check_ours()
        machine.install(PACKAGES)
        self.down()
        self._configure()
        socket = self.pids / "munge.socket"
        self._start(
            *("munged", f"--key-file={self.state}/munge/key", f"--socket={socket}", "--num-threads=2"),
            *(f"--pid-file={self.pids}/munged.pid", f"--log-file={self.log}/munged.log"),
            f"--seed-file={self.state}/munge/seed",
        )
        wait_for("munged answers", lambda: output("munge", "-n", "-S", str(socket)) != "", 10)
        self.start_controller("-c")
        for node in NODES:
            self.start_node(node)
        self.wait_for_nodes()
        if not output("srun", "-n1", "-t1", "--gpus=1", "printenv", "CUDA_VISIBLE_DEVICES").strip():
            raise RuntimeError(f"a job does not see its fake GPU\n{self.describe()}")

    def down(self) -> None:
        """End the jobs, then the daemons, and take our files out of /etc/slurm. Harmless when nothing of ours is up."""
        if (ETC / "slurm.conf").exists() and not self.is_ours():
            return
        if self.is_ours() and self.answers():
            output("scancel", *output("squeue", "-h", "-o", "%i").split())
            try:
                wait_for("all jobs ended", lambda: not output("squeue", "-h", "-t", "R,CG,PD").strip(), 15)
            except TimeoutError as error:
                print(error, file=sys.stderr)
        for node in NODES:
            self._stop("slurmd", self.pids / f"slurmd-{node}.pid")
        for step in self.steps():
            machine.kill_session(step)
        self._stop("slurmctld", self.pids / "slurmctld.pid")
        self._stop("munged", self.pids / "munged.pid")
        if self.is_ours():
            for name in ("slurm.conf", "gres.conf"):
                (ETC / name).unlink(missing_ok=True)
        shutil.rmtree(self.state, ignore_errors=True)

    def check_ours(self) -> None:
        """Raise Refused where a Slurm is configured or running that is not this one."""
        if (ETC / "slurm.conf").exists() and not self.is_ours():
            raise Refused(f"{ETC / 'slurm.conf'} is another Slurm's configuration: it stays untouched")
        if "SLURM_CONF" in os.environ:
            raise Refused(f"SLURM_CONF={os.environ['SLURM_CONF']}: this machine belongs to another Slurm")
        mine = {read_pid(path) for path in self.pids.glob("*.pid")}
        for name in ("slurmctld", "slurmd"):
            for pid in processes(name):
                if pid not in mine:
                    raise Refused(f"{name} (pid {pid}) is running and was not started by this program")

    def is_ours(self) -> bool:
        """Whether /etc/slurm/slurm.conf is one that this program wrote for a cluster in this folder."""
        conf = ETC / "slurm.conf"
        return conf.is_file() and conf.read_text().startswith(f"{MARK} {self.state}\n")

    def answers(self) -> bool:
        """Whether the controller does."""
        return " UP" in output("scontrol", "ping")

    # ---- what tests do to it ----------------------------------------------------------------------------------------

    def start_controller(self, *options: str) -> None:
        """Start slurmctld (-c: with an empty queue; without: with the queue it had)."""
        self._start("slurmctld", *options)
        wait_for("slurmctld answers", self.answers, 20)

    def start_node(self, node: str) -> None:
        """Start a node's slurmd."""
        (self.state / "spool" / node).mkdir(parents=True, exist_ok=True)
        self._start("slurmd", "-N", node)

    def kill_controller(self) -> None:
        """SIGKILL slurmctld, as a crash of its machine would."""
        kill_and_wait(read_pid(self.pids / "slurmctld.pid"), signal.SIGKILL)

    def kill_node(self, node: str, *, with_jobs: bool) -> None:
        """SIGKILL a node's slurmd: with its jobs as a power cut would, without them as a cut network would."""
        kill_and_wait(read_pid(self.pids / f"slurmd-{node}.pid"), signal.SIGKILL)
        for step in self.steps(node) if with_jobs else ():
            machine.kill_session(step)

    def wait_for_nodes(self) -> None:
        """Until both nodes take jobs."""
        wait_for("both nodes are up", lambda: set(self.node_states()) <= {"idle", "mix", "alloc", "comp"}, 40)

    def node_states(self) -> list[str]:
        """The state of each node, e.g. idle, alloc, down*; `unknown` where the controller does not answer."""
        return [output("sinfo", "-h", "-n", node, "-o", "%t").strip() or "unknown" for node in NODES]

    def steps(self, node: str = "") -> list[int]:
        """The processes of Slurm that hold job steps of our nodes (of one): they have its log open."""
        log = f"{self.log}/slurmd-{node}"
        return [pid for pid in processes("slurmstepd") if any(path.startswith(log) for path in machine.open_files(pid))]

    def describe(self) -> str:
        """The ends of the daemons' logs."""
        logs = [(path, path.read_text(errors="replace").splitlines()) for path in sorted(self.log.glob("*.log"))]
        return "\n".join("\n".join([f"== {path}", *lines[-8:]]) for path, lines in logs)

    # ---- pieces -----------------------------------------------------------------------------------------------------

    def _configure(self) -> None:
        for name in ("ctld", "spool", "log", "run", "munge", "dev"):
            (self.state / name).mkdir(parents=True)
        (self.state / "munge").chmod(0o700)  # munged refuses a key that others could read
        (self.state / "munge" / "key").write_bytes(os.urandom(128))
        (self.state / "munge" / "key").chmod(0o600)
        for number in range(GPUS):  # /dev/null under another name: Slurm wants character devices
            os.mknod(self.state / "dev" / f"gpu{number}", 0o020666, os.makedev(1, 3))
        ETC.mkdir(exist_ok=True)
        head = f"{MARK} {self.state}\n"
        devices = f"NodeName=n[1-2] Name=gpu Type=a100 File={self.state}/dev/gpu[0-{GPUS - 1}]\n"
        (ETC / "gres.conf").write_text(f"{head}AutoDetect=off\n{devices}")
        (ETC / "slurm.conf").write_text(head + SLURM_CONF.format(state=self.state, gpus=GPUS))

    def _start(self, *command: str) -> None:
        """Start a daemon, which goes to the background by itself."""
        done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=60)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}\n{self.describe()}")

    def _stop(self, name: str, pid_file: Path) -> None:
        """Stop a daemon of ours, and only if its pid is still that daemon's."""
        pid = read_pid(pid_file)
        if pid in processes(name):
            kill_and_wait(pid, signal.SIGTERM)
            kill_and_wait(pid, signal.SIGKILL)
        pid_file.unlink(missing_ok=True)


def main(arguments: list[str]) -> int:
    """The command line."""
    action = (arguments or ["help"])[0]
    if action not in ("run", "up", "down", "check") or (action == "run" and arguments[1:2] != ["--"]):
        print(__doc__)
        return 2
    cluster = Cluster()
    try:
        machine.check_machine()
        lock = open(STATE.with_suffix(".lock"), "a+")  # noqa: SIM115 - held until this process ends
        lock.seek(0)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refused(f"another call of this program uses the test cluster, in {lock.read()}") from None
        lock.truncate(0)
        print(CLONE, end="", file=lock, flush=True)
        cluster.check_ours()
        if action == "run":
            return run(cluster, arguments[2:])
        if action != "check":
            getattr(cluster, action)()
    except Refused as reason:
        print(f"no test cluster here: {reason}", file=sys.stderr)
        return 3
    return 0


def run(cluster: Cluster, command: list[str]) -> int:
    """Up, the command, down: also where the command fails, and on a signal, which ends the command first."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    try:
        start = time.monotonic()
        cluster.up()
        nodes = output("sinfo", "-N", "-o", "%N %t %c %m %G")
        print(f"Slurm is up after {time.monotonic() - start:.1f} s\n{nodes}", flush=True)
        process = subprocess.Popen(command, env=clean_environment())
        try:
            return process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        cluster.down()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
