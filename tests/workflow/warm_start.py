"""Commands of the tests start warm: they are forked from a process that has already imported torch and the rest.

A run of config/test.yaml starts 26 processes, and most of what they cost is imports. The server imports once and forks
a process per command; small clients named `lm-validity` and `snakemake` stand first on the PATH, hand over their
arguments, folder, environment and streams, and end with the command's exit code. Nothing else differs: the command
lines are those of the packages; the files of figures are empty where UNDRAWN is in the environment. A forked process
has the command's name in /proc/<id>/comm. `python-warm` runs a program in such a process, `python-bare` in one
that has imported OTHERS alone: their server is forked before the rest is imported.
Tests that look at what a process imports start the real commands.
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
import weakref
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

BIN = Path(sys.executable).parent
MAPPED, LARGE_PAGE, MADV_COLLAPSE = Path("/proc/self/maps"), 2 << 20, 25  # Linux 6.1; earlier ones leave things alone
# What others read when they are imported. Where one of these differs from the server's, the real command runs.
READ_AT_IMPORT = ("HF_", "TRANSFORMERS_", "TORCH", "CUDA_", "PYTHON", "TOKENIZERS_", "LM_", "DATASETS_")
UNDRAWN = "UNDRAWN_FIGURES"
COMMANDS = {"lm-validity": "lm_validity.cli", "snakemake": "snakemake.cli"}  # name -> module with its `main`
PROGRAM, BARE_PROGRAM = "python-warm", "python-bare"
OTHERS = (  # nothing of this project, and not lm-eval
    "snakemake.cli",
    "torch",
    "peft",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
)
IMPORTED = (
    *COMMANDS.values(),
    "lm_eval.evaluator",
    "lm_eval.models.huggingface",
    "lm_validity.cells.runner",
    "lm_validity.cells.scoring",
    "lm_validity.cells.selection",
    "lm_validity.cells.training.worker",
    "lm_validity.cells.trials.worker",
    "lm_validity.cli.imports",
    "lm_validity.cli.jobs",
    "lm_validity.cli.plan",
    "lm_validity.cli.reports",
    "lm_validity.cli.study",
    "lm_validity.cli.tools",
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


@contextlib.contextmanager
def warm_commands(
    folder: Path, environment: dict[str, str], imported: tuple[str, ...] = IMPORTED, others: tuple[str, ...] = ()
) -> Iterator[Path]:
    """A folder for the front of PATH, whose commands start warm, with `imported`, while the context lasts. A command
    waits for the server's imports. `others`: what that for BARE_PROGRAM imports; without, there is none."""
    folder.mkdir(parents=True)
    address = str(folder / "socket")
    expected = {key: value for key, value in environment.items() if key.startswith(READ_AT_IMPORT)}
    common = {"python": sys.executable, "prefixes": READ_AT_IMPORT, "expected": expected}
    for name in (*COMMANDS, PROGRAM, BARE_PROGRAM):
        client, real = folder / name, str(BIN / (name if name in COMMANDS else "none"))
        own = f"{address}.bare" if name == BARE_PROGRAM else address
        client.write_text(CLIENT.format(name=name, real=real, address=own, **common))
        client.chmod(0o755)
    command = (sys.executable, __file__, address, ",".join(others), *imported)
    with open(folder / "errors", "w") as errors:
        server = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    try:
        assert server.stdout.readline() == b"listening\n", (folder / "errors").read_text()
        yield folder
    finally:
        server.communicate()  # its standard input is closed: it ends


def listen(address: str) -> socket.socket:
    """A socket whose clients wait until they are served."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address)
    listening.listen(64)
    return listening


def main(address: str, others: str, *imported: str) -> None:
    """Serve warm commands, and beside them programs that find `others` alone, until standard input ends."""
    listening, bare = listen(address), listen(f"{address}.bare")
    print("listening", flush=True)
    if others:
        import_everything(others.split(","))
        if os.fork() == 0:
            serve(bare)
            return
    import_everything(imported)
    serve(listening)
    with contextlib.suppress(ChildProcessError):
        os.wait()  # for the other server


def serve(listening: socket.socket) -> None:
    """Fork a process for each command until standard input ends."""
    waiting: dict[int, socket.socket] = {}
    ended, child_ended = os.pipe()
    os.set_blocking(child_ended, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(child_ended)
    selector = selectors.DefaultSelector()
    for source in (listening, ended, sys.stdin.fileno()):
        selector.register(source, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listening:
                connection, _ = listening.accept()
                pid = start(connection)
                waiting[pid] = connection
                connection.send(str(pid).encode())
            elif key.fileobj == ended:
                os.read(ended, 4096)
            elif not os.read(sys.stdin.fileno(), 1):
                return
        report_ended(waiting)


def import_everything(imported: Iterable[str]) -> None:
    for name in imported:
        import_module(name)
    if "transformers" in sys.modules:
        # a thousand regular expressions, which transformers would compile in each process that loads a model
        import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("llama")
    if "snakemake.cli" in sys.modules:
        sys.modules["snakemake.cli"].get_argument_parser()  # looks for plugins, and imports them
    if "lm_validity.cli" in sys.modules:
        sys.modules["lm_validity.cli"].command()
    weakref.finalize._registry.clear()  # at its end each process would have torch forget its operators one by one
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


def start(connection: socket.socket) -> int:
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
        code = run_command(*ast.literal_eval(request.decode()), streams)
    finally:
        os._exit(code)


def run_command(command: list[str], folder: str, environment: dict[str, str], streams: array.array) -> int:
    """The command line in this process, as the console script runs it; its exit code."""
    name, *arguments = command
    Path("/proc/self/comm").write_text(name)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [str(BIN / name), *arguments] if name in COMMANDS else ["-c", *arguments[1:]]
    if UNDRAWN in environment:
        charts = import_module("vl_convert")
        charts.vegalite_to_svg, charts.svg_to_pdf = (lambda spec: "<svg/>"), (lambda svg: b"%PDF")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(environment["OMP_NUM_THREADS"]))  # read at import; a rule sets its own
    try:
        if name not in COMMANDS:
            sys.exit(exec(arguments[0], {"__name__": "__main__"}))
        sys.exit(import_module(COMMANDS[name]).main())
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    main(*sys.argv[1:])
