"""The command line. Every rule's shell line is one of these subcommands; heavy imports wait until one is called."""

import errno
import sys
from typing import Annotated, Any, NoReturn

import typer

from lm_validity.cli.help import WholeHelp
from lm_validity.errors import CellError, InputError

# what no second attempt mends: a file where a folder should be, no permission, a read-only disk, too long a name
UNUSABLE = (
    errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP
)  # fmt: skip
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the error of a write does not say which file it was

# of the extra `cells`; an installation without it has all reports
CELLS = ("torch", "transformers", "tokenizers", "safetensors", "peft", "accelerate", "datasets", "lm_eval")

# what typer raises for a wrong command line; its own module of exceptions is private
UsageError: type[typer.BadParameter] = typer.BadParameter.__base__  # type: ignore[assignment] # it has all that is asked

# Commands in the order of `lm-validity --help`; those in no group are the workflow's own.
GROUPS = {
    "Results that you have": ("report", "compare", "card", "import", "export", "filter"),
    "A study of your own": ("init", "cost", "rehearse", "preflight", "status", "findings", "forget"),
    "A study that fine-tunes some cells only": ("plan", "next", "rounds", "add-model"),
    "Tools": ("gpu-check", "lm-eval", "simulate"),
}
WORKFLOW = "Commands that the workflow runs"


class GroupedHelp(WholeHelp):
    """The commands by group."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # typer's copy of click is private
        """Write the groups."""
        others = sorted(set(self.commands) - {name for names in GROUPS.values() for name in names})
        for title, names in {**GROUPS, WORKFLOW: others}.items():
            self.write_group(formatter, title, names)


app = typer.Typer(
    name="lm-validity",
    help="How far can a language-model benchmark be trusted?",
    cls=GroupedHelp,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(asked: object) -> None:
    if asked:
        from importlib.metadata import version

        print(version("lm-validity"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """How far can a language-model benchmark be trusted?"""


def register_commands() -> typer.Typer:
    """The whole command line; its modules are imported only now."""
    from lm_validity.cli import (
        card,
        cells,
        compare,
        exports,
        filters,
        gpu,
        imports,
        init,
        lm_eval,
        miniature,
        overview,
        plan,
        rehearse,
        reports,
        rounds,
        run,
        simulate,
    )

    for module in (cells, gpu, run, overview, card, plan, rounds, rehearse, compare, init, lm_eval):
        module.register(app)
    for name, module in {
        "import": imports,
        "export": exports,
        "report": reports,
        "miniature": miniature,
        "filter": filters,
        "simulate": simulate,
    }.items():
        app.add_typer(module.app, name=name)
    return app


def main() -> None:
    """Run the command line: exit 0 on success, 2 with one line on bad input."""
    register_commands()
    try:
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except UsageError as error:
        if "\n" in error.format_message():  # no arguments: the message is the help
            error.show()
            sys.exit(2)
        command = error.ctx.command_path if error.ctx else "lm-validity"
        _refuse(error.format_message().replace("Value error, ", ""), f"`{command} --help` lists what it takes.")
    except typer.Abort:
        sys.exit(1)
    except (InputError, CellError) as error:
        _refuse(error.problem, error.hint)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in CELLS:
            raise
        _refuse(
            f"this command needs {error.name}, which is not installed.",
            "install it with its extra: lm-validity[cells], from where you have the package.",
        )
    except OSError as error:
        if error.errno in FULL:
            _refuse(
                f"{error.filename or 'a file'} cannot be written: {error.strerror}.", "make room, or write elsewhere."
            )
        if error.errno not in UNUSABLE or not error.filename:
            raise
        _refuse(f"{error.filename}: {error.strerror}.", "choose another path, or correct this one.")


def _refuse(problem: str, hint: str) -> NoReturn:
    """End with one line and exit code 2."""
    print(f"Error: {' '.join(f'{problem} Hint: {hint}'.split())}", file=sys.stderr)
    sys.exit(2)
