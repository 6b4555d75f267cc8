"""The command line. Every rule's shell line is one of these subcommands; heavy imports wait until one is called."""

import errno
import sys
from typing import NoReturn

import typer

from lm_validity.errors import CellError, InputError

# what no second attempt mends: a file where a folder should be, no permission, a read-only disk
UNUSABLE = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS)

# of the extra `cells`; an installation without it has all reports
CELLS = ("torch", "transformers", "tokenizers", "safetensors", "peft", "accelerate", "datasets", "lm_eval")

# what typer raises for a wrong command line; its own module of exceptions is private
UsageError = typer.BadParameter.__base__

app = typer.Typer(
    name="lm-validity",
    help="How far can a language-model benchmark be trusted?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run the command line: exit 0 on success, 2 with one line on bad input."""
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
        run,
        simulate,
    )

    cells.register(app)
    gpu.register(app)
    run.register(app)
    overview.register(app)
    card.register(app)
    plan.register(app)
    rehearse.register(app)
    compare.register(app)
    init.register(app)
    lm_eval.register(app)
    app.add_typer(imports.app, name="import")
    app.add_typer(exports.app, name="export")
    app.add_typer(reports.app, name="report")
    app.add_typer(miniature.app, name="miniature")
    app.add_typer(filters.app, name="filter")
    app.add_typer(simulate.app, name="simulate")
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
        _refuse(f"this command needs {error.name}, which is not installed.", "pip install 'lm-validity[cells]'.")
    except OSError as error:
        if error.errno not in UNUSABLE or not error.filename:
            raise
        _refuse(f"{error.filename}: {error.strerror}.", "choose another place, or correct what is there.")


def _refuse(problem: str, hint: str) -> NoReturn:
    """End with one line and exit code 2."""
    print(f"Error: {' '.join(f'{problem} Hint: {hint}'.split())}", file=sys.stderr)
    sys.exit(2)
