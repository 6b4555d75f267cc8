"""The command line. Every rule's shell line is one of these subcommands; heavy imports wait until one is called."""

import contextlib
import errno
import functools
import re
import signal
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lm_validity.cli.options import UsageError, WholeHelp
from lm_validity.errors import CellError, InputError, Question
from lm_validity.words import error_text

if TYPE_CHECKING:  # typer's copy of click is private
    from typer._click.core import Command, Context
    from typer._click.formatting import HelpFormatter

# what no second attempt mends: a file where a folder should be, no permission, a read-only disk, too long a name
UNUSABLE = (
    errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP
)  # fmt: skip
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the error of a write does not say which file it was

# The extras of packages that a page does without; an installation without any has all reports.
CELLS = (
    "torch", "transformers", "tokenizers", "safetensors", "peft", "accelerate", "datasets", "lm_eval", "sklearn"
)  # fmt: skip
EXTRAS = {"snakemake": "workflow", **dict.fromkeys(CELLS, "cells")}

# What `lm-validity --help` lists, in its order. Reference pages list the others too.
GROUPS = {
    "Results that you have": ("report", "compare", "card", "import", "export", "filter"),
    "A study of your own": ("init", "config", "cost", "preflight", "status", "findings", "forget", "plan"),
}
FURTHER = ("lm-eval", "simulate")


class GroupedHelp(WholeHelp):
    """The help of the program, which lists its commands by group."""

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Put the home folder for `~` where no shell did, as after `--output=`."""
        home = str(Path.home()).replace("\\", r"\\")
        return super().parse_args(ctx, [re.sub(r"^([\w-]+=)?~(?=/|$)", rf"\g<1>{home}", word) for word in args])

    def format_commands(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write the commands of each group under the group's title."""
        for title, names in GROUPS.items():
            self.write_group(formatter, title, names)
        formatter.write_paragraph()
        further = f"Further commands: {', '.join(FURTHER)}, and those of the workflow's jobs."
        formatter.write_text(f"{further} Each has --help.")


app = typer.Typer(
    name="lm-validity",
    help="How far can a language-model benchmark be trusted?",
    cls=GroupedHelp,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(value: object) -> None:
    if value:
        from importlib.metadata import version

        print(version("lm-validity"))
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")]


@app.callback()
def _options(version: Version = False) -> None:
    """How far can a language-model benchmark be trusted?"""


@functools.cache
def command() -> "Command":
    """The command line as it is called, made once a process."""
    made: Command = typer.main.get_command(register_commands())
    return made


def register_commands() -> typer.Typer:
    """The whole command line; the modules that add to it are imported only now."""
    from lm_validity.cli import jobs, reports, study  # noqa: F401

    return app


def main() -> None:
    """Run the command line. docs/reference/commands.md lists the exit codes."""
    try:
        _prepare_process()
        code = command()(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except UsageError as error:
        _refuse_usage(error)
    except (typer.Abort, KeyboardInterrupt):
        print("Interrupted.", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except Question as question:
        _ask(question)
    except (InputError, CellError) as error:
        _refuse(error.problem, error.hint)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        _refuse(
            f"this command needs {error.name}, which is not installed.",
            f"install it with its extra: lm-validity[{extra}], from where you have the package.",
        )
    except OSError as error:
        full, barred = error.errno in FULL, error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        if not full and (error.errno not in UNUSABLE or not error.filename):
            raise
        way = "make room" if full else "get the right to use it" if barred else "correct this path"
        _refuse(f"{error.filename or 'a file'}: {error.strerror}.", f"{way}, or choose another place.")


def _refuse_usage(error: typer.BadParameter) -> NoReturn:
    """End with exit code 2, and with what is wrong with the command line."""
    message = error.format_message()
    if "\n" in message:  # no arguments: the message is the help
        error.show()
        sys.exit(2)
    command = error.ctx.command_path if error.ctx else "lm-validity"
    _refuse(message.replace("Value error, ", ""), f"`{command} --help` lists what it takes.")


def _prepare_process() -> None:
    """Have a time limit or a closed terminal end the program as an error does: drafts and processes are removed. Names
    of files that the terminal cannot show are spelt."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            with contextlib.suppress(OSError):  # a stream that was exchanged for one of another kind
                stream.reconfigure(errors="backslashreplace")

    def end(number: int, frame: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores one
            signal.signal(number, end)


def _ask(question: Question) -> None:
    """Print the question and end with exit code 2; on a terminal run the command again with the reading chosen."""
    print(f"Error: {question.problem}\n{question.hint}", file=sys.stderr)
    if not question.readings or not (sys.stdin.isatty() and sys.stderr.isatty()):
        sys.exit(2)
    number = typer.prompt("Number of the reading (0: none)", type=int, err=True)
    if not 0 < number <= len(question.readings):
        sys.exit(2)
    sys.argv += ["--columns", question.readings[number - 1]]
    main()


def _refuse(problem: str, hint: str) -> NoReturn:
    """End with exit code 2, and with one line for programs or two paragraphs in a terminal."""
    print(error_text(problem, hint), file=sys.stderr)
    sys.exit(2)
