"""What a person sees in a terminal, and what a program reads from a pipe."""

import os
import pty
import re
import subprocess
import sys

import pytest

PROGRAM = "import sys; sys.argv[0] = 'lm-validity'; from lm_validity.cli import main; main()"


def in_terminal(tmp_path, *words: str, **environment: str) -> tuple[int, str]:
    """Exit code and standard error of a command whose standard error is a terminal of 60 columns."""
    ours, theirs = pty.openpty()
    variables = {**os.environ, "COLUMNS": "60", **environment}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], stderr=theirs, stdout=subprocess.DEVNULL, cwd=tmp_path, env=variables
    )
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


def test_a_terminal_gets_error_and_help_by_themselves(tmp_path):
    code, text = in_terminal(tmp_path, *WRONG, NO_COLOR="")
    assert code == 2 and "\x1b[1;31merror:\x1b[0m" in text and "\n\x1b[1;36mhelp:\x1b[0m" in text
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert max(len(line) for line in plain.splitlines() if "no-such" not in line) <= 60


def test_no_color_is_respected(tmp_path):
    code, text = in_terminal(tmp_path, *WRONG, NO_COLOR="1")
    assert code == 2 and "\x1b" not in text and text.startswith("error:")


def test_a_program_gets_one_line(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, *WRONG], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and re.fullmatch(r"Error: [^\n]+ Hint: [^\n]+\n", done.stderr)


@pytest.mark.parametrize("words", [("-h",), ("report", "-h"), ("import", "-h"), ("status", "-h"), ("plan", "-h")])
def test_h_is_help_everywhere(tmp_path, words):
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("Usage: ")
