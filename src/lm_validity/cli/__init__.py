"""The command line. Every rule's shell line is one of these subcommands; heavy imports wait until one is called."""

import errno
import sys

import typer

from lm_validity.errors import CellError, InputError

# what no second attempt mends: a file where a folder should be, no permission, a read-only disk
UNUSABLE = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS)

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
    from lm_validity.cli import cells, exports, filters, imports, lm_eval, miniature, overview, reports, run, simulate

    cells.register(app)
    run.register(app)
    overview.register(app)
    lm_eval.register(app)
    app.add_typer(imports.app, name="import")
    app.add_typer(exports.app, name="export")
    app.add_typer(reports.app, name="report")
    app.add_typer(miniature.app, name="miniature")
    app.add_typer(filters.app, name="filter")
    app.add_typer(simulate.app, name="simulate")
    try:
        app()
    except (InputError, CellError) as error:
        print(f"Error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in UNUSABLE or not error.filename:
            raise
        print(
            f"Error: {error.filename}: {error.strerror}. Hint: choose another place, or correct what is there.",
            file=sys.stderr,
        )
        sys.exit(2)
