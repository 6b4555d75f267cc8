"""Real snakemake runs in a folder of their own."""

import contextlib
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from tests.workflow.warm_programs import BARE_PROGRAM, COMMANDS, MORE, OTHERS, PROGRAM

from lm_validity.cli import warm as warm_start
from lm_validity.cli.warm import IMPORTED, warm_commands

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
TOKEN = "hf_nobodysTokenThatMustNotShow"
COMMON = ("--cores", "2", "--keep-going", "--rerun-incomplete", "--scheduler", "greedy")
STARTED_WITH = dict(os.environ)  # without what libraries add when a test imports them


class Project:
    """A working directory with the configurations, where snakemake and lm-validity are run as a user would."""

    front = ""  # what stands first on the PATH: commands that start warm

    def __init__(self, folder: Path):
        self.folder = folder
        if not (folder / "config").exists():
            shutil.copytree(ROOT / "config", folder / "config")

    def run(self, *command: str, code: int | None = 0, **environment: str) -> subprocess.CompletedProcess:
        """Run a command; fail with its output where the exit code is not `code` (None: any)."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment(**environment), capture_output=True, text=True
        )
        if code is not None and done.returncode != code:
            pytest.fail(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
        return done

    def in_terminal(self, *command: str) -> str:
        """What a command that succeeds writes to a terminal."""
        screen, terminal = pty.openpty()
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
        written = b""
        with subprocess.Popen(command, cwd=self.folder, env=self.environment(TERM="xterm"), **streams) as process:
            os.close(terminal)
            with contextlib.suppress(OSError):  # nobody writes there any more
                while part := os.read(screen, 1 << 16):
                    written += part
        os.close(screen)
        assert process.returncode == 0, written[-6000:].decode()
        return written.decode()

    def environment(self, **more: str) -> dict:
        """No network, one thread a process, the package of this environment."""
        path = f"{self.front}{BIN}:{STARTED_WITH['PATH']}"
        return {**STARTED_WITH, "PATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_TOKEN": TOKEN, **more}

    def snakemake_command(self, *arguments: str) -> tuple[str, ...]:
        return ("snakemake", "--snakefile", str(ROOT / "Snakefile"), "--directory", str(self.folder), *arguments)

    def snakemake(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess:
        """Run the workflow on two cores, going on after a failed job, as the profiles do."""
        return self.run(*self.snakemake_command(*COMMON, *arguments), code=code)

    def lm_validity(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess:
        return self.run("lm-validity", *arguments, code=code)

    def sidecars(self, run: str = "test") -> dict[str, int]:
        """Cell folder -> time its sidecar was written: changes exactly when the cell is computed."""
        store = self.folder / "results" / run / "store"
        found = {}
        for path in store.glob("*/*/*/sidecar.json"):
            with contextlib.suppress(FileNotFoundError):  # a run that goes on renames folders into place
                found[path.parent.relative_to(store).as_posix()] = path.stat().st_mtime_ns
        return found

    def tables(self, run: str = "test") -> dict[str, bytes]:
        folder = self.folder / "results" / run / "tables"
        return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}

    def keep(self, model: str) -> None:
        """This model alone, in the sheet of config/test.yaml; cells of others stay in the store."""
        sheet = self.folder / "config/test_models.tsv"
        header, *rows = sheet.read_text().splitlines(keepends=True)
        sheet.write_text("".join([header, *(row for row in rows if row.startswith(f"{model}\t"))]))

    def processes(self) -> dict[int, list[bytes]]:
        """The words of each process in this folder."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if Path(os.readlink(folder / "cwd")) == self.folder:
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().split(b"\0")
        return dict(sorted(found.items()))

    def cells(self) -> list[int]:
        """Processes of cells, started as such or forked by the server of warm commands."""
        real = str(BIN / "lm-validity").encode()
        return [pid for pid, words in self.processes().items() if real in words or is_warm(pid, words, "lm-validity")]

    def copy_to(self, folder: Path) -> "Project":
        """A copy, to be damaged. Times are kept: Snakemake looks at them."""
        subprocess.run(("cp", "-a", self.folder, folder), check=True)
        return Project(folder)


def is_warm(pid: int, words: list[bytes], name: str) -> bool:
    """Whether a process with these words is a warm command of this name."""
    if words[1:2] != [warm_start.__file__.encode()]:
        return False
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == name
    return False


WARM = "WARM_COMMANDS"  # their folder, by which the processes of a test run find it


@contextlib.contextmanager
def warm_projects() -> Iterator[str]:
    """The folder of commands that start warm, for every project. It is short: so are the names of sockets."""
    with (
        tempfile.TemporaryDirectory() as parent,
        warm_commands(
            Path(parent) / "bin", environment := Project(Path(parent)).environment(), (*IMPORTED, *MORE), COMMANDS
        ) as folder,
        warm_commands(folder, environment, OTHERS, {BARE_PROGRAM: COMMANDS[PROGRAM]}),
    ):
        yield str(folder)


def pytest_configure(config: pytest.Config) -> None:
    """The first process of a test run starts the one server of all, which imports while tests are collected."""
    if "PYTEST_XDIST_WORKER" in os.environ or config.option.collectonly:
        return
    stack = contextlib.ExitStack()
    os.environ[WARM] = stack.enter_context(warm_projects())
    config.add_cleanup(lambda: (stack.close(), os.environ.pop(WARM)))


@pytest.fixture(scope="session", autouse=True)
def warm():
    """Jobs of every project start warm. A first process that did not see this file has started no server."""
    with contextlib.nullcontext(os.environ[WARM]) if WARM in os.environ else warm_projects() as folder:
        Project.front = f"{folder}:"
        yield
        Project.front = ""


def made_once(tmp_path_factory, name: str, make: Callable[[Project], object]) -> Project:
    """A project that one process of the test run makes for all; nobody changes it."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    with FileLock(root / f"{name}.lock"):
        project = Project(root / name)
        if not (root / f"{name}.done").exists():
            make(project)
            (root / f"{name}.done").touch()
    return project


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Project:
    """One complete run of config/test.yaml."""

    run = ("--configfile", "config/test.yaml")
    return made_once(tmp_path_factory, "finished", lambda project: project.snakemake(*run))


@pytest.fixture(scope="session")
def replayed(tmp_path_factory) -> Project:
    """One complete run of replay/replay.yaml, and in terminal.txt what it showed in a terminal."""

    def make(project: Project) -> None:
        shutil.copytree(Path(__file__).with_name("replay"), project.folder / "replay", dirs_exist_ok=True)
        command = project.snakemake_command(*COMMON, "--configfile", "replay/replay.yaml")
        (project.folder / "terminal.txt").write_text(project.in_terminal(*command))

    return made_once(tmp_path_factory, "replayed", make)


@pytest.fixture
def project(tmp_path) -> Project:
    return Project(tmp_path)
