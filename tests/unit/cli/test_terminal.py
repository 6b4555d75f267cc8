"""What a person sees in a terminal, and what a program reads from a pipe."""

import os
import pty
import re
import signal
import subprocess
import sys

import pytest

from lm_validity.cli.warm import warm_commands


@pytest.fixture(scope="module")
def command(tmp_path_factory) -> str:
    """`lm-validity`, which starts warm."""
    folder = tmp_path_factory.mktemp("warm") / "bin"
    imported = ("lm_validity.cli", "lm_validity.cli.reports", "lm_validity.site.report")
    with warm_commands(folder, dict(os.environ), imported) as binaries:
        yield str(binaries / "lm-validity")


def in_terminal(command: str, tmp_path, *words: str, **environment: str) -> tuple[int, str]:
    """Exit code and standard error of a command whose standard error is a terminal of 60 columns."""
    ours, theirs = pty.openpty()
    variables = {**os.environ, "COLUMNS": "60", **environment}
    done = subprocess.run([command, *words], stderr=theirs, stdout=subprocess.DEVNULL, cwd=tmp_path, env=variables)
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 65536):
            text += part
    except OSError:
        pass  # Linux says so when the other end is closed
    os.close(ours)
    return done.returncode, text.decode().replace("\r\n", "\n")


WRONG = ("report", "no-such-folder-of-a-name-that-does-not-fit-in-one-line-of-sixty", "--output", "out")


def test_a_terminal_gets_error_and_help_by_themselves_and_a_program_one_line(command, tmp_path):
    code, text = in_terminal(command, tmp_path, *WRONG, NO_COLOR="")
    assert code == 2 and "\x1b[1;31merror:\x1b[0m" in text and "\n\x1b[1;36mhelp:\x1b[0m" in text
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert max(len(line) for line in plain.splitlines() if "no-such" not in line) <= 60
    assert in_terminal(command, tmp_path, *WRONG, NO_COLOR="1") == (2, plain)
    done = subprocess.run([command, *WRONG], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and re.fullmatch(r"Error: [^\n]+ Hint: [^\n]+\n", done.stderr)


@pytest.mark.parametrize("words", [("-h",), ("report", "-h"), ("import", "-h"), ("status", "-h"), ("plan", "-h")])
def test_h_is_help_everywhere(command, tmp_path, words):
    done = subprocess.run([command, *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("Usage: ")


def interrupted(tmp_path, imported: str, action: signal.Handlers) -> tuple[int, list[str]]:
    """Exit code and further lines of a command that gets Ctrl-C when Python says that it has imported a module."""
    command = [sys.executable, "-X", "importtime", "-m", "lm_validity", "status"]
    started = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=tmp_path, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, action),  # tests may run as such a job themselves
    )  # fmt: skip
    with started, started.stderr as lines:
        next(line for line in lines if line.endswith(f" {imported}\n"))
        started.send_signal(signal.SIGINT)
        further = [line for line in lines if not line.startswith("import time:")]
    return started.returncode, further


@pytest.mark.parametrize("imported", ["typer", "lm_validity.cli", "lm_validity.cli.reports"])
def test_ctrl_c_while_python_imports_is_one_line(tmp_path, imported):
    assert interrupted(tmp_path, imported, signal.SIG_DFL) == (130, ["Interrupted.\n"])


def test_ctrl_c_is_not_heard_where_the_shell_ignores_it(tmp_path):
    """A job that a script starts in the background ends with what it says, not with the terminal's Ctrl-C."""
    code, lines = interrupted(tmp_path, "typer", signal.SIG_IGN)
    assert code == 2 and any("Error: " in line for line in lines)
