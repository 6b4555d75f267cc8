"""Jobs of one machine start warm: a process imports torch and the rest once, and forks for each job.

    python -m lm_validity.cli.warm snakemake --profile profiles/local

runs a command while a server stands by. Most of what a small job costs is imports. First on the command's PATH is a
small client named `lm-validity`, which hands over its arguments, folder, environment and streams to the server and ends
with the exit code of the process that this forks. Nothing else differs: the command line is that of the package. Where
a variable that libraries read at import is not the server's, the client becomes the real command. A forked process has
the command's name in /proc/<id>/comm.
"""

import array
import ast
import atexit
import contextlib
import ctypes
import gc
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

BIN = Path(sys.executable).parent
MAPPED, LARGE_PAGE, MADV_COLLAPSE = Path("/proc/self/maps"), 2 << 20, 25  # Linux 6.1; earlier ones leave things alone
READ_AT_IMPORT = ("HF_", "TRANSFORMERS_", "TORCH", "CUDA_", "PYTHON", "TOKENIZERS_", "LM_", "DATASETS_")
COMMANDS = {"lm-validity": "lm_validity.cli:main"}  # name of a console script -> what it calls
IMPORTED = (
    "lm_validity.cli",
    "lm_eval.evaluator",
    "lm_eval.models.huggingface",
    "lm_validity.cells.runner",
    "lm_validity.cells.workers",
    "lm_validity.cells.trials.worker",
    "lm_validity.cli.jobs",
    "lm_validity.cli.reports",
    "lm_validity.site.report",
    "lm_validity.studies.agreement.report",
    "lm_validity.studies.bias.page",
    "lm_validity.studies.signal.report",
    "lm_validity.tables.merge",
)

# Without the modules socket, signal, array and json, whose imports are more than half of its time.
CLIENT = """#!{python} -IS
import _signal, _socket, os, sys
READ_AT_IMPORT = {prefixes!r}
mine = {{key: value for key, value in os.environ.items() if key.startswith(READ_AT_IMPORT)}}
if mine != {expected!r}:
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
server.connect({address!r})
request = ascii([[{name!r}, *sys.argv[1:]], os.getcwd(), dict(os.environ)]).encode()
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
server.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
pid = int(server.recv(32))
for number in (_signal.SIGTERM, _signal.SIGINT):
    _signal.signal(number, lambda number, frame: os.kill(pid, number))
code = int(server.recv(32))
if code < 0:
    if -code != _signal.SIGKILL:
        _signal.signal(-code, _signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def main() -> None:
    """Run the command line that follows, whose jobs start warm; end with its exit code."""
    with (
        tempfile.TemporaryDirectory(prefix="lm-") as parent,
        warm_commands(Path(parent) / "bin", dict(os.environ)) as folder,
        subprocess.Popen(sys.argv[1:], env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}) as process,
    ):
        # Ctrl-C goes to all; the command ends its jobs, and then itself
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
        code = process.wait()
    sys.exit(code if code >= 0 else 128 - code)


@contextlib.contextmanager
def warm_commands(
    folder: Path,
    environment: dict[str, str],
    imported: Sequence[str] = IMPORTED,
    commands: Mapping[str, str] = COMMANDS,
) -> Iterator[Path]:
    """A folder for the front of PATH, whose `commands` start warm with the modules `imported` while the context lasts.
    A command waits for the server's imports."""
    folder.mkdir(parents=True, exist_ok=True)
    address = str(folder / f"socket-{min(commands)}")
    expected = {key: value for key, value in environment.items() if key.startswith(READ_AT_IMPORT)}
    common = {"python": sys.executable, "prefixes": READ_AT_IMPORT, "expected": expected, "address": address}
    for name in commands:
        client = folder / name
        client.write_text(CLIENT.format(name=name, real=str(BIN / name), **common))
        client.chmod(0o755)
    program = (sys.executable, __file__, address, ascii([dict(commands), list(imported)]))
    with open(folder / "errors", "a") as errors:
        server = subprocess.Popen(
            program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, process_group=0
        )
    try:
        if server.stdout is None or server.stdout.readline() != b"listening\n":
            raise RuntimeError((folder / "errors").read_text())
        yield folder
    finally:
        server.communicate()  # its standard input is closed: it ends


def run_server(address: str, commands: dict[str, str], imported: list[str]) -> None:
    """Fork a process for each command until standard input ends; the first waits for the imports."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address)
    listening.listen(64)
    print("listening", flush=True)
    selector = selectors.DefaultSelector()
    for source in (listening, sys.stdin.fileno()):
        selector.register(source, selectors.EVENT_READ)
    if any(key.fileobj is listening for key, _ in selector.select()):  # a run with nothing to do imports nothing
        import_everything(imported)
    waiting: dict[int, socket.socket] = {}
    ended, child_ended = os.pipe()
    os.set_blocking(child_ended, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(child_ended)
    selector.register(ended, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listening:
                connection, _ = listening.accept()
                pid = start(connection, commands)
                waiting[pid] = connection
                connection.send(str(pid).encode())
            elif key.fileobj == ended:
                os.read(ended, 4096)
            elif not os.read(sys.stdin.fileno(), 1):
                return
        report_ended(waiting)


def import_everything(imported: Sequence[str]) -> None:
    """Import the modules, do what each process would do first, and put all of it where a fork does not copy it."""
    for name in imported:
        import_module(name)
    if "transformers" in sys.modules:
        # a thousand regular expressions, which transformers would compile in each process that loads a model
        import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("llama")
    if "snakemake.cli" in sys.modules:
        sys.modules["snakemake.cli"].get_argument_parser()  # looks for plugins, and imports them
    if "lm_validity.cli" in sys.modules:
        sys.modules["lm_validity.cli"].command()
    registry: dict[object, object] = vars(weakref.finalize)["_registry"]
    registry.clear()  # at its end each process would have torch forget its operators one by one
    gc.collect()
    gc.freeze()
    take_large_pages()


def take_large_pages() -> None:
    """Half of what a fork costs is its table of small pages: what was imported moves into large ones, where it can."""
    if not MAPPED.exists():
        return
    madvise = ctypes.CDLL(None).madvise
    for line in MAPPED.read_text().splitlines():
        ends, rights, *_, inode_and_path = line.split(maxsplit=4)
        begin, end = (int(part, 16) for part in ends.split("-"))
        begin, end = -(-begin // LARGE_PAGE) * LARGE_PAGE, end // LARGE_PAGE * LARGE_PAGE
        if "w" in rights and inode_and_path.split() in (["0"], ["0", "[heap]"]) and begin < end:
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_COLLAPSE)


def report_ended(waiting: dict[int, socket.socket]) -> None:
    """Tell the clients of the processes that have ended their exit codes."""
    while waiting:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with contextlib.suppress(BrokenPipeError), waiting.pop(pid) as connection:
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def start(connection: socket.socket, commands: Mapping[str, str]) -> int:
    """Fork; the child runs the command and never returns."""
    size = array.array("i", [0, 0, 0]).itemsize * 3
    request, ancillary, _, _ = connection.recvmsg(1 << 20, socket.CMSG_SPACE(size))
    streams = array.array("i")
    streams.frombytes(ancillary[0][2][:size])
    pid = os.fork()
    if pid:
        for stream in streams:
            os.close(stream)
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        command, folder, environment = ast.literal_eval(request.decode())
        code = run_command(commands, command, folder, environment, streams)
    finally:
        os._exit(code)


def run_command(
    commands: Mapping[str, str], command: list[str], folder: str, environment: dict[str, str], streams: Any
) -> int:
    """The command line in this process, as the console script runs it; its exit code."""
    name = command[0]
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [str(BIN / name), *command[1:]]
    if "torch" in sys.modules and "OMP_NUM_THREADS" in environment:
        sys.modules["torch"].set_num_threads(int(environment["OMP_NUM_THREADS"]))  # read at import; a rule sets its own
    try:
        sys.exit(resolve_name(commands[name])())
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    vars(atexit)["_run_exitfuncs"]()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    if sys.argv[1:2] and "socket-" in sys.argv[1]:
        sys.path[0] = os.getcwd()  # as for `python -m`, not the folder of this file
        run_server(sys.argv[1], *ast.literal_eval(sys.argv[2]))
    else:
        main()
