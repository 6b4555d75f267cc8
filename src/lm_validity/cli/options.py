"""What several commands share: the help of commands that have subcommands, and the configuration that is read where
none is named."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lm_validity.config.load import Run

# ----------------------------------------------------------------------------------------------------------------------
# Which configuration a command reads where none is named: the one that `snakemake` reads in the same folder.

DEMO = Path("config/config.yaml")


def default_configfile(folder: Path = Path()) -> Path:
    """The configuration that the folder's Snakefile names (study.yaml after `lm-validity init`), else the demo's."""
    try:
        text = (folder / "Snakefile").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return DEMO
    named = re.search(r"""^\s*configfile: *["'](.+)["']\s*$""", text, re.MULTILINE)
    return Path(named[1]) if named and "lm_validity" in text else DEMO


DEFAULT = default_configfile()
Configfile = Annotated[Path, typer.Option(help="The run's configuration.")]
Calibration = Annotated[
    list[Path] | None, typer.Option(help="Another configuration, to learn from its finished cells too.")
]


def report_folders(run: Run) -> list[Path]:
    """The reports of the studies that the configuration asks for; older ones of others may lie beside them."""
    from lm_validity.run.grid import REPORTS_OF

    names = [name for study in run.configuration.studies for name in REPORTS_OF[study]]
    folders = [run.results / "reports" / name for name in names]
    return [folder for folder in folders if (folder / "page.json").is_file()]


# ----------------------------------------------------------------------------------------------------------------------
# Help. Typer's own cuts a subcommand's sentence to fit one line.


class WholeHelp(TyperGroup):
    """A command with subcommands, each listed with the whole first sentence of its help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # typer's copy of click is private
        """Write all subcommands as one group."""
        self.write_group(formatter, "Commands", self.list_commands(ctx))

    def write_group(self, formatter: Any, title: str, names: Iterable[str]) -> None:
        """Write the subcommands of these names under a title."""
        with formatter.section(title):
            formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=200)) for name in names])


def paths_or_command(name: str) -> type[WholeHelp]:
    """A group whose first argument is a subcommand's name, or else a path for the command `name`."""

    class PathsOrCommand(WholeHelp):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # typer's copy of click is private
            """Put `name` before a first argument that is neither a subcommand nor a call for help."""
            if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
                args = [name, *args]
            return super().parse_args(ctx, args)

    return PathsOrCommand


def make_group(text: str, cls: type[WholeHelp] = WholeHelp) -> typer.Typer:
    """A command with subcommands. Without arguments it shows its help."""
    return typer.Typer(cls=cls, help=text, no_args_is_help=True, rich_markup_mode=None)
