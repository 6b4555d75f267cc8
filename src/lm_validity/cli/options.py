"""What several commands share: which configuration they read, options in place of its keys, and the help of commands
that have subcommands."""

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_origin

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from lm_validity.config.load import Run, read_values, validate
from lm_validity.config.rows import ConfigSection
from lm_validity.config.sections import Configuration
from lm_validity.errors import InputError
from lm_validity.files import report_problems
from lm_validity.run.workspace import reports_of
from lm_validity.words import headlines, say

if TYPE_CHECKING:  # typer's copy of click is private
    from typer._click.core import Context
    from typer._click.formatting import HelpFormatter

# what typer raises for a wrong command line; its own module of exceptions is private
UsageError: type[typer.BadParameter] = typer.BadParameter.__base__  # type: ignore[assignment] # it has all that is asked

# ----------------------------------------------------------------------------------------------------------------------
# Which configuration a command reads where none is named: the one that `snakemake` reads in the same folder. Options
# in place of its keys.

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


def takes_section(name: str, *keys: str, **renamed: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a command with the `section` of this name: the defaults, or the section of `--configfile`, changed by the
    options that the command gets for these keys of it (`signal.ties`: `--ties`). `renamed`: key -> option's name."""
    default: ConfigSection = Configuration.model_fields[name].default
    options = {renamed.get(key, key.rpartition(".")[2]): key for key in keys}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        """The command with these options in the place of its `section`."""

        def called(configfile: Path | None, **section_values: object) -> None:
            """Calls the command with the configuration's section, in which each option that was given counts."""
            section = default
            if configfile is not None:
                section = getattr(validate(read_values(configfile), str(configfile)), name)
            values = section.model_dump()
            for option, key in options.items():
                if (word := section_values.pop(option)) is not None:
                    *above, last = key.split(".")
                    holder = values
                    for part in above:
                        holder = holder[part]
                    holder[last] = word
            command(section=validate(values, f"report {command.__name__}", type(default)), **section_values)

        added = [_parameter(option, default, key) for option, key in options.items()]
        file = Annotated[Path | None, typer.Option(help="The run's configuration, for all that no option says.")]
        return seen_as(command, called, "section", [*added, keyword("configfile", file)])

    return decorate


def _parameter(option: str, section: ConfigSection, key: str) -> inspect.Parameter:
    """An option with the key's type, meaning and default."""
    *above, last = key.split(".")
    holder = section
    for part in above:  # of signal.ties: the section `signal`
        holder = getattr(holder, part)
    field, value = type(holder).model_fields[last], getattr(holder, last)
    several = get_origin(field.annotation) is tuple
    word = ",".join(f"{part:g}" for part in value) if several else value
    kind: Any = str if several else field.annotation
    help_ = f"{field.description} [default: {word}]"
    return keyword(option, Annotated[kind | None, typer.Option(f"--{option.replace('_', '-')}", help=help_)])


def keyword(name: str, annotation: object, default: object = None) -> inspect.Parameter:
    """A parameter that `seen_as` adds."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def seen_as(
    command: Callable[..., None], called: Callable[..., None], name: str, added: list[inspect.Parameter]
) -> Callable[..., None]:
    """`called`, which typer sees as `command` with the parameters `added` in place of the one of this name."""
    signature = inspect.signature(command)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != name] + added
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def report_folders(run: Run) -> list[Path]:
    """The reports of the studies that the configuration asks for; older ones of others may lie beside them. Raises
    InputError where one is not whole: a site without it would not say so."""
    names = [name for study in run.configuration.studies for name in reports_of(study, run.configuration)]
    folders = [run.results / "reports" / name for name in names]
    for problem in (problem for folder in folders for problem in report_problems(folder)):
        raise InputError(f"{problem.where}: {problem.description}.", f"{problem.action}.")
    return [folder for folder in folders if (folder / "page.json").is_file()]


def snakemake_command(*arguments: str) -> tuple[str, ...]:
    """Snakemake's command line. Raises ModuleNotFoundError where it is not installed."""
    if find_spec("snakemake") is None:
        raise ModuleNotFoundError(name="snakemake")
    return (sys.executable, "-m", "snakemake", *arguments)


def site_reports(site: Path) -> list[Path]:
    """The studies' reports in a site that `lm-validity report` wrote; of a run's site those beside it, and a report of
    its own is itself one. None where it is no site."""
    from lm_validity.site.first_page import ORDER

    studies = [name for name in ORDER if name not in ("beside", "data")]
    places = [site / name for name in studies]
    places += [site.parent / "reports" / name for name in studies if (site / name / "index.html").is_file()]
    page_folders = [folder for folder in (*places, site) if (folder / "page.json").is_file()]
    return [folder for folder in page_folders if folder != site or len(page_folders) == 1]


def say_findings(site: Path, reports: list[Path], where: str) -> None:
    """Print where a site is and what its reports found; `where`: the arguments of `lm-validity findings` for it."""
    say(f"Report: {site / 'index.html'}", *headlines(reports))
    program = "lm-validity" if which("lm-validity") else sys.argv[0]  # as it was called, where PATH does not lead to it
    say(f"All findings and their intervals: {program} findings --all {where}".rstrip())


# ----------------------------------------------------------------------------------------------------------------------
# Options. Typer takes the last of two values.


def refuse_repeated(command: TyperCommand | TyperGroup, ctx: "Context", words: list[str]) -> None:
    """Raises BadParameter for an option of one value that the parser finds twice."""
    try:
        found = command.make_parser(ctx).parse_args(list(words))[2]
    except UsageError as error:
        error.ctx = error.ctx or ctx  # the parser does not say which command's hint helps
        raise
    options = [
        option for option in found if isinstance(option, TyperOption) and not (option.multiple or option.is_flag)
    ]
    for option in options:
        if options.count(option) > 1:
            raise typer.BadParameter(f"{max(option.opts, key=len)} is there twice, and takes one value.", ctx)


class OneOfEach(TyperCommand):
    """A command that refuses an option of one value that is given twice."""

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Look at the words before they count."""
        refuse_repeated(self, ctx, args)
        return super().parse_args(ctx, args)


# ----------------------------------------------------------------------------------------------------------------------
# Help. Typer's own cuts a subcommand's sentence to fit one line.


class WholeHelp(TyperGroup):
    """A command with subcommands, each listed with the whole first sentence of its help."""

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Look at the words before a subcommand's name."""
        refuse_repeated(self, ctx, args)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write all subcommands as one group."""
        self.write_group(formatter, "Commands", self.list_commands(ctx))

    def write_group(self, formatter: "HelpFormatter", title: str, names: Iterable[str]) -> None:
        """Write the subcommands of these names under a title."""
        with formatter.section(title):
            formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=200)) for name in names])


def paths_or_command(name: str) -> type[WholeHelp]:
    """A group whose first argument is a subcommand's name, or else a path for the command `name`."""

    class PathsOrCommand(WholeHelp):
        def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
            """Put `name` before a first argument that is neither a subcommand nor a call for help."""
            asks = args[:1] in (["--help"], ["-h"]) and isinstance(self.commands[name], GroupedOptions)
            if asks or (args and args[0] not in self.commands and args[0] not in ("--help", "-h")):
                args = [name, *args]
            return super().parse_args(ctx, args)

    return PathsOrCommand


class GroupedOptions(OneOfEach):
    """A command whose help lists its options by what they are for, then examples, and the commands beside it."""

    groups: ClassVar[dict[str, tuple[str, ...]]] = {}
    examples: ClassVar[tuple[tuple[str, str], ...]] = ()  # (command, what it does)
    beside: ClassVar[str] = ""  # the title of the commands beside it

    def format_usage(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write how the command is called, without the name that stands for its first argument."""
        assert ctx.parent is not None, "it is a subcommand"
        formatter.write_usage(ctx.parent.command_path, f"{ctx.info_name} [OPTIONS]")

    def format_options(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write each group of options under its title; those of no group come last."""
        records = {
            parameter.name: record for parameter in self.get_params(ctx) if (record := parameter.get_help_record(ctx))
        }
        listed = [name for names in self.groups.values() for name in names]
        ungrouped = tuple(name for name in records if name not in listed)
        for title, names in (*self.groups.items(), ("Further options", ungrouped)):
            with formatter.section(title):
                formatter.write_dl([records[name] for name in names if name in records])

    def format_epilog(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write the examples, and the commands beside this one."""
        with formatter.section("Examples"):
            for line, meaning in self.examples:
                formatter.write(f"  {line}\n      {meaning}\n")
        group = ctx.parent and ctx.parent.command
        assert isinstance(group, WholeHelp)
        group.write_group(formatter, self.beside, [name for name in group.list_commands(ctx) if name != ctx.info_name])


def make_group(text: str, cls: type[WholeHelp] = WholeHelp) -> typer.Typer:
    """A command with subcommands. Without arguments it shows its help."""
    return typer.Typer(cls=cls, help=text, no_args_is_help=True, rich_markup_mode=None)
