"""Which configuration a command reads, and options in place of its keys."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from lm_validity.config.load import read_values, validate
from lm_validity.config.rows import Section
from lm_validity.config.sections import Configuration

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
    default: Section = Configuration.model_fields[name].default
    options = {renamed.get(key, key.rpartition(".")[2]): key for key in keys}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def called(configfile: Path | None, **given: Any) -> None:
            section = default
            if configfile is not None:
                section = getattr(validate(read_values(configfile), str(configfile)), name)
            values = section.model_dump()
            for option, key in options.items():
                if (word := given.pop(option)) is not None:
                    _below(values, key)[key.rpartition(".")[2]] = word
            command(section=validate(values, f"report {command.__name__}", type(default)), **given)

        own = inspect.signature(command)
        parameters = [one for one in own.parameters.values() if one.name != "section"]
        parameters += [_parameter(option, default, key) for option, key in options.items()]
        file = Annotated[Path | None, typer.Option(help="The run's configuration, for all that no option says.")]
        parameters.append(_keyword("configfile", file))
        called.__name__, called.__doc__ = command.__name__, command.__doc__
        called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        return called

    return decorate


def _below(values: Any, key: str) -> Any:
    """What holds the last part of `key`, such as the values of `signal` for signal.ties."""
    for part in key.split(".")[:-1]:
        values = values[part] if isinstance(values, dict) else getattr(values, part)
    return values


def _parameter(option: str, section: Section, key: str) -> inspect.Parameter:
    """An option with the key's type, meaning and default."""
    holder, last = _below(section, key), key.rpartition(".")[2]
    field, value = type(holder).model_fields[last], getattr(holder, last)
    several = get_origin(field.annotation) is tuple
    word = ",".join(f"{part:g}" for part in value) if several else value
    kind: Any = str if several else field.annotation
    help_ = f"{field.description} [default: {word}]"
    return _keyword(option, Annotated[kind | None, typer.Option(f"--{option.replace('_', '-')}", help=help_)])


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
