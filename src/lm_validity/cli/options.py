"""What several commands share: how a function becomes a command, which configuration it reads, options in place of that
one's keys, and the help of commands that have subcommands.

A function's parameters are the options of its command. What they mean stands in `options.tsv`, for all commands or for
one function; in its column *form* whether it is an argument, its limits and further names.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from functools import reduce
from importlib.util import find_spec
from operator import getitem
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_origin

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from lm_validity.config.load import Run, read_values, validate
from lm_validity.config.rows import ConfigSection
from lm_validity.config.sections import CARDS, Configuration
from lm_validity.errors import InputError
from lm_validity.files import report_problems
from lm_validity.run.workspace import reports_of
from lm_validity.words import headlines, say

if TYPE_CHECKING:  # typer's copy of click is private
    from typer._click.core import Context
    from typer._click.formatting import HelpFormatter

# what typer raises for a wrong command line; its own module of exceptions is private
UsageError: type[typer.BadParameter] = typer.BadParameter.__base__  # type: ignore[assignment] # it has all that is asked
CommandT = TypeVar("CommandT", bound=Callable[..., object])

# ----------------------------------------------------------------------------------------------------------------------
# Commands and groups of them. Typer takes the last of two values, and cuts a subcommand's sentence to fit one line.


def refuse_repeated(command: TyperCommand | TyperGroup, ctx: "Context", words: list[str]) -> None:
    """Raises BadParameter for an option of one value that the parser finds twice."""
    try:
        parsed = command.make_parser(ctx).parse_args(list(words))[2]
    except UsageError as error:
        error.ctx = error.ctx or ctx  # the parser does not say which command's hint helps
        raise
    options = [option for option in parsed if isinstance(option, TyperOption)]
    for option in options:
        if options.count(option) > 1 and not (option.multiple or option.is_flag):
            raise typer.BadParameter(f"{max(option.opts, key=len)} is there twice, and takes one value.", ctx)


class OneOfEach(TyperCommand):
    """A command that refuses an option of one value that is given twice."""

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Look at the words before they count."""
        refuse_repeated(self, ctx, args)
        return super().parse_args(ctx, args)


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


class PathsOrCommand(WholeHelp):
    """A group whose first argument is a subcommand's name, or else a path for its first command, a `PathsCommand`."""

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Put the first command's name before a first argument that is no subcommand's."""
        if args and args[0] not in self.commands:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


class PathsCommand(OneOfEach):
    """The command of a group's paths, whose help is the group's: it has no name of its own, and lists the others."""

    def format_usage(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write how the command is called, without the name that stands for its first argument."""
        assert ctx.parent is not None, "it is a subcommand"
        formatter.write_usage(ctx.parent.command_path, f"{ctx.info_name} [OPTIONS]")

    def format_epilog(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write the commands beside this one."""
        group = ctx.parent and ctx.parent.command
        assert isinstance(group, WholeHelp)
        group.write_group(formatter, "Commands", [name for name in group.list_commands(ctx) if name != ctx.info_name])


def make_group(text: str, cls: type[WholeHelp] = WholeHelp) -> typer.Typer:
    """A command with subcommands. Without arguments it shows its help."""
    return typer.Typer(cls=cls, help=text, no_args_is_help=True, rich_markup_mode=None)


def command(
    group: typer.Typer, name: str | None = None, cls: type[TyperCommand] = OneOfEach, text: str | None = None
) -> Callable[[CommandT], CommandT]:
    """Add a function to a group as the command of this name, else of the function's own. `text`: its help, in place of
    the docstring."""

    def added(function: CommandT) -> CommandT:
        group.command(name, cls=cls, help=text)(described(function))
        return function

    return added


def described(function: CommandT) -> CommandT:
    """The function, whose parameters typer sees with the forms and meanings of `options.tsv`."""
    signature = inspect.signature(function)
    parameters = [_described(function.__name__, parameter) for parameter in signature.parameters.values()]
    return _seen_with(function, parameters)


def _seen_with(function: CommandT, parameters: list[inspect.Parameter]) -> CommandT:
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function


_LINES = Path(__file__).with_name("options.tsv").read_text(encoding="utf-8").splitlines()[1:]
_WORDS = {(function, option): words for function, option, *words in (line.split("\t") for line in _LINES)}


def _described(function: str, parameter: inspect.Parameter) -> inspect.Parameter:
    """The parameter with what typer needs; one of another kind (a context) or with its own words as it is."""
    name, default = parameter.name, parameter.default
    words = _WORDS.get((function, name)) or _WORDS.get(("", name))
    if words is None or get_origin(parameter.annotation) is Annotated:
        return parameter
    form = words[0].split("; ") if words[0] else []
    further: dict[str, Any] = {key: value for key, _, value in (word.partition("=") for word in form) if value}
    further |= {"min": int(further["min"])} if "min" in further else {}
    names = [word for word in form if word.startswith("-")]
    names += [f"--{name.replace('_', '-')}"] * (default is not True and not any(word[:2] == "--" for word in names))
    kind = typer.Argument(**further, help=words[1])
    kind = kind if "argument" in form else typer.Option(*names, **further, help=words[1])
    return parameter.replace(annotation=Annotated[parameter.annotation, kind])


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


def takes_section(name: str, *keys: str, **renamed: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a command with the `section` of this name: the defaults, or the section of `--configfile`, changed by the
    options that the command gets for these keys of it (`signal.ties`: `--ties`), and with its `cards`, if it takes
    them. `renamed`: key -> option's name."""
    default: ConfigSection = Configuration.model_fields[name].default
    options = {renamed.get(key, key.rpartition(".")[2]): key for key in keys}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        """The command with these options in the place of its `section`."""

        def called(configfile: Path | None, **section_values: object) -> None:
            """Calls the command with the configuration's section, in which each option that was given counts."""
            run = None if configfile is None else validate(read_values(configfile), str(configfile), Configuration)
            values = (default if run is None else getattr(run, name)).model_dump()
            for option, key in options.items():
                if (word := section_values.pop(option)) is not None:
                    *above, last = key.split(".")
                    reduce(getitem, above, values)[last] = word
            if takes_cards:
                section_values["cards"] = CARDS if run is None else run.cards
            command(section=validate(values, f"report {command.__name__}", type(default)), **section_values)

        file = Annotated[Path | None, typer.Option(help="The run's configuration, for all that no option says.")]
        added = {option: _option_of_key(option, default, key) for option, key in options.items()} | {"configfile": file}
        parameters = {name: parameter for name, parameter in inspect.signature(command).parameters.items()}
        del parameters["section"]
        takes_cards = parameters.pop("cards", None) is not None
        keyword = inspect.Parameter.KEYWORD_ONLY
        new = [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in added.items()]
        called.__name__, called.__doc__ = command.__name__, command.__doc__
        return _seen_with(called, [*parameters.values(), *new])

    return decorate


def _option_of_key(option: str, section: ConfigSection, key: str) -> object:
    """An option with the key's type, meaning and default."""
    *above, last = key.split(".")
    holder = reduce(getattr, above, section)  # of signal.ties: the section `signal`
    field, value = type(holder).model_fields[last], getattr(holder, last)
    several = get_origin(field.annotation) is tuple
    word = ",".join(f"{part:g}" for part in value) if several else value
    kind: Any = str if several else field.annotation
    help_ = f"{field.description} [default: {word}]"
    return Annotated[kind | None, typer.Option(f"--{option.replace('_', '-')}", help=help_)]


# ----------------------------------------------------------------------------------------------------------------------
# The reports of a run and of a site, and what runs Snakemake.


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
