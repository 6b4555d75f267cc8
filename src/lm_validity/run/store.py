"""The store of finished cells: a folder for each, which is never changed once it is there; and leases: which process
computes a cell, and which GPUs of a machine a job holds."""

import contextlib
import fcntl
import hashlib
import json
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Generic, NamedTuple, TextIO, TypedDict
from uuid import uuid4

from lm_validity.errors import InputError, again
from lm_validity.files import file_sha256, read_json, read_json_or, read_object, write_json
from lm_validity.run.cell import Cell, CellRecord, CellT, CellT_co, Recipe, label, recipe_hash

# ----------------------------------------------------------------------------------------------------------------------
# The store: one folder a finished cell, written under a temporary name and renamed, never changed afterwards.
#
#     results/<run>/store/<rule>/<model>/<cell name>--<hash>/
#         cell.json      key, recipe, result
#         items.parquet  per document, where the cell scored documents
#         adapter/       PEFT format, where the cell trained one
#         losses.parquet of every training step, beside the adapter
#         sha256.json    of all of the above
#         sidecar.json   cost, machine and versions: what may differ from run to run, and enters no table
#
# Snakemake does not know these files, so it neither deletes nor reruns them: whatever it starts again finds them here.


class Address(NamedTuple, Generic[CellT_co]):
    """Where the store keeps a cell of a given recipe, whether or not it is there yet."""

    cell: CellT_co
    recipe: Recipe
    folder: str  # relative to the store's root


class Sidecar(TypedDict, total=False):
    """What is read of the cost of a finished cell. `counters`: counts by name, and under `by_phase` those of each
    phase; a replayed cell has none."""

    wall_seconds: float | None
    counters: dict[str, Any]
    versions: dict[str, str]
    epochs: int
    truncated_texts: int
    cut_answers: int


Values = Mapping[str, object]  # an object of JSON


class Store:
    """Finished cells below one folder."""

    def __init__(self, root: str | Path):
        self.root = Path(root)

    def address(self, cell: CellT, recipe: Recipe) -> Address[CellT]:
        """The address of a cell with this recipe, whether or not its folder exists."""
        return Address(cell, recipe, f"{label(cell)}--{recipe_hash(recipe)}")

    def path(self, address: Address[Cell] | str) -> Path:
        """A cell's folder, whether or not it exists. A string is that folder relative to the root."""
        return self.root / (address if isinstance(address, str) else address.folder)

    def has(self, address: Address[Cell] | str) -> bool:
        """Whether the cell is finished. Folders are renamed into place whole, so the index file is enough."""
        return (self.path(address) / "sha256.json").is_file()

    def lease(self, folder: str) -> Path:
        """The lease of a cell's folder. A name may have 255 bytes: the end of a longer one is replaced by its hash."""
        name = folder.replace("/", ".")
        if len(name.encode()) > 200:
            name = f"{name[:40]}--{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        return self.root / ".leases" / f"{name}.json"

    def read(self, address: Address[Cell] | str) -> CellRecord:
        """The cell's record: `key`, `recipe`, `result`. Raises InputError where it is missing or damaged."""
        record: CellRecord = read_json(check_read(self, address, "cell.json"))
        return record

    def sidecar(self, folder: str) -> Sidecar:
        """What a cell cost and where it ran; empty where that file is gone: no number depends on it."""
        sidecar: Sidecar = read_json_or(self.root / folder / "sidecar.json", {})
        return sidecar

    def digest(self, address: Address[Cell] | str) -> str:
        """sha256 over the cell's files, its sidecar left out."""
        return file_sha256(self.path(address) / "sha256.json")

    def commit(self, address: Address[Cell], result: Values, sidecar: Values, write: Callable[[Path], None]) -> None:
        """Write a finished cell. `write` puts items or an adapter into the folder it is given.

        Where another process finished the same cell first, its folder stays: the recipe is the same.
        """
        target = self.path(address)
        temporary = target.with_name(f".writing-{uuid4().hex}")
        temporary.mkdir(parents=True)
        # without `run` where nothing is sampled, as before there were runs
        key = {name: part for name, part in address.cell._asdict().items() if name != "run" or part is not None}
        try:
            write(temporary)
            write_json(temporary / "cell.json", {"key": key, "recipe": address.recipe, "result": result})
            files = sorted(path.relative_to(temporary).as_posix() for path in temporary.rglob("*") if path.is_file())
            write_json(temporary / "sha256.json", {name: file_sha256(temporary / name) for name in files})
            write_json(temporary / "sidecar.json", sidecar)
            if target.exists() and not self.has(address):
                shutil.rmtree(target)  # a folder someone emptied by hand
            try:
                os.rename(temporary, target)
            except OSError:
                if not self.has(address):
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def damage(self, folder: str) -> str | None:
        """What is wrong with a finished cell's files, or None. Reads every byte."""
        path = self.root / folder
        if not (path / "sha256.json").is_file():
            return "missing from the store"
        index = read_json_or(path / "sha256.json", None)
        if index is None:
            return "sha256.json cannot be read"
        for name, expected in index.items():
            file = path / name
            if not file.is_file():
                return f"{name} is missing"
            if file_sha256(file) != expected:
                return f"{name} does not have the recorded sha256"
        return None

    def folders(self) -> Iterator[str]:
        """Every finished cell's folder, relative to the root, sorted."""
        for index in sorted(self.root.glob("*/*/*/sha256.json")):
            if not index.parent.name.startswith("."):  # a writer that was killed
                yield index.parent.relative_to(self.root).as_posix()

    def remove(self, folder: str) -> None:
        """Forget a cell: renamed away first, so that a reader never sees half of it."""
        path = self.root / folder
        if not path.exists():
            return
        gone = Path(tempfile.mkdtemp(prefix=".removing-", dir=path.parent))
        os.rename(path, gone / "cell")
        shutil.rmtree(gone, ignore_errors=True)


def check_read(store: Store, address: Address[Cell] | str, name: str) -> Path:
    """The path of one file of a cell, its sha256 checked. Raises InputError where it is missing or damaged."""
    path = store.path(address) / name
    expected = read_json_or(store.path(address) / "sha256.json", {}).get(name)
    if expected is None or not path.is_file() or file_sha256(path) != expected:
        raise InputError(
            f"{path}: missing or damaged (sha256 differs).",
            f"run {again('preflight')}, then the workflow again: the cell is computed anew.",
        )
    return path


# ----------------------------------------------------------------------------------------------------------------------
# Leases: two jobs never compute one cell. A second job waits until the first is done, or is gone.
#
# A lease is a file that names its holder (host, pid, Slurm job) and is touched every HEARTBEAT seconds. It is stale
# when its process on this host no longer exists; when, on another host, it was not touched for STALE seconds, or its
# Slurm job no longer exists. After a controller was killed its jobs may live on: they still hold their leases, so a
# second run waits for them and takes over what they finish.

HEARTBEAT = 30.0
STALE = 300.0
POLL = 2.0  # seconds between two looks at what another job holds


@contextlib.contextmanager
def hold_lease(path: Path, finished: Callable[[], bool], say: Callable[[str], None] = print) -> Iterator[bool]:
    """Yield True with the lease held, or False when `finished()` became true while another job held it. `say` is told
    once whom it waits for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_waiting = False
    while not _take(path):
        if is_stale(path):
            _break(path)
            continue
        if finished():
            yield False
            return
        if not is_waiting:
            say(f"waiting for {describe_holder(path)}")
        is_waiting = True
        time.sleep(POLL)
    stop, mine = threading.Event(), path.read_text(encoding="utf-8")
    beat = threading.Thread(target=_beat, args=(path, mine, stop), daemon=True)
    beat.start()
    try:
        # the other job may have finished between our look into the store and the lease
        yield not finished()
    finally:
        stop.set()
        beat.join()
        if _is_mine(path, mine):
            path.unlink(missing_ok=True)


def is_stale(path: Path) -> bool:
    """Whether the holder is gone: no heartbeat for STALE seconds, or its process or Slurm job does not exist."""
    try:
        age = _now(path.parent) - path.stat().st_mtime
        holder = read_object(path)
    except FileNotFoundError:
        return False  # released meanwhile: try to take it
    except ValueError:
        return age > 2 * POLL  # killed while writing it
    if holder.get("host") == socket.gethostname():
        # a process that was stopped for a while is still the holder
        return not is_alive(holder.get("pid"), holder.get("started"))
    if age > STALE:
        return True
    if holder.get("slurm_job") and age > 2 * HEARTBEAT:  # a living holder touches it: ask the scheduler rarely
        return _slurm_job_is_gone(holder["slurm_job"])
    return False


def _now(folder: Path) -> float:
    """The time by the clock of the file system, which also dates the heartbeats; this machine's clock may be wrong."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:  # only looking on, in a folder of somebody else
        return time.time()


def describe_holder(path: Path) -> str:
    """Who holds a lease, for a message."""
    holder = read_json_or(path, None)
    if holder is None:
        return f"another job ({path.name})"
    job = f", Slurm job {holder['slurm_job']}" if holder.get("slurm_job") else ""
    return f"another job ({path.stem}; host {holder.get('host')}, pid {holder.get('pid')}{job})"


def _take(path: Path) -> bool:
    # written whole under another name and linked: whoever sees the lease can read it
    holder = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": process_start(os.getpid()),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "taken": time.time(),
    }
    mine = path.with_name(f".taking.{_me()}")
    try:
        mine.write_text(json.dumps(holder), encoding="utf-8")
        os.link(mine, path)
    except FileExistsError:
        return mine.stat().st_nlink == 2  # over NFS the reply to a link that succeeded may be lost, and asked for again
    finally:
        mine.unlink(missing_ok=True)
    return True


def _me() -> str:
    return f"{socket.gethostname()}.{os.getpid()}.{threading.get_ident()}"


def _break(path: Path) -> None:
    """Remove a stale lease. Renamed first: of two jobs that try, one wins."""
    gone = path.with_name(f".stale.{_me()}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, gone)
        if is_stale(gone):
            gone.unlink(missing_ok=True)
        else:  # between our look and the rename someone else broke it and took it: give it back
            with contextlib.suppress(FileExistsError):
                os.link(gone, path)
            gone.unlink(missing_ok=True)


def _beat(path: Path, mine: str, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT):
        with contextlib.suppress(OSError):
            if _is_mine(path, mine):
                os.utime(path)


def _is_mine(path: Path, mine: str) -> bool:
    """Whether the lease is still the one that was taken: a process that slept too long may have lost it."""
    try:
        return path.read_text(encoding="utf-8") == mine
    except OSError:
        return False


def _status(pid: int) -> list[str]:
    """What Linux says of a process after its name (proc_pid_stat(5)): state first, at 19 its start in clock ticks since
    boot. Nothing where there is no such process, or no Linux."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return []


def process_start(pid: int) -> str | None:
    """The start time of a process, so that a reused pid is not mistaken for it; None where it cannot be known."""
    state = _status(pid)
    return state[19] if state else None


def is_alive(pid: int | None, started: str | None) -> bool:
    """Whether a process of this host still is the one that started then, and computes: a zombie does not."""
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    state = _status(pid)
    return not state or (state[0] != "Z" and started in (None, state[19]))


def _slurm_job_is_gone(job: str) -> bool:
    if shutil.which("squeue") is None:
        return False
    try:
        answer = subprocess.run(
            ["squeue", "--noheader", "--jobs", job, "--format", "%T"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    if answer.returncode != 0:
        return "Invalid job id" in answer.stderr
    return answer.stdout.strip() not in ("RUNNING", "SUSPENDED", "COMPLETING", "STOPPED")


# ----------------------------------------------------------------------------------------------------------------------
# GPUs of one machine: two jobs of a user never compute on the same one.
#
# Snakemake counts GPUs, but does not say which one a job may use. A job that sees more GPUs than it needs therefore
# locks as many as it needs and sees these alone. The system gives a lock back when its process ends, however it ends.

_held: list[TextIO] = []  # until the process ends


def hold_gpus(count: int, say: Callable[[str], None] = print) -> None:
    """Leave this process as many of the GPUs that it sees as it needs; waits while other jobs hold them.

    To be called before torch looks at the GPUs. Changes nothing where the process sees no more than it needs: a
    scheduler gave it its own, or there are too few for a choice.
    """
    visible = _visible_gpus()
    if not 0 < count < len(visible):
        return
    # a Slurm job may number its GPUs from 0, as the next job on the node does
    owner = "-".join([str(os.getuid()), *filter(None, [os.environ.get("SLURM_JOB_ID")])])
    folder = Path(tempfile.gettempdir(), f"lm-validity-gpus-{owner}")
    folder.mkdir(mode=0o700, exist_ok=True)
    is_waiting = False
    while not (gpus := _lock(folder, visible, count)):
        if not is_waiting:
            say(f"waiting for {count} of the GPUs {','.join(visible)}: other jobs on this machine hold them")
        is_waiting = True
        time.sleep(POLL * random.uniform(0.5, 1.5))
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)


def _visible_gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them, or their numbers."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",")]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(("nvidia-smi", "--list-gpus"), capture_output=True, text=True).stdout
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in listed.splitlines()))]


def _lock(folder: Path, visible: list[str], count: int) -> list[str]:
    """The first GPUs that nobody holds, locked; none where they are too few."""
    with ExitStack() as files:
        locked = []
        for name in visible:
            file = files.enter_context(open(folder / name.replace("/", "_"), "w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            locked.append((name, file))
            if len(locked) == count:
                _held.extend(file for _, file in locked)
                files.pop_all()
                return [name for name, _ in locked]
    return []
