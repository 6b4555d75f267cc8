"""Help of commands that have subcommands. Typer's own cuts a subcommand's sentence to fit one line."""

from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperGroup


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
