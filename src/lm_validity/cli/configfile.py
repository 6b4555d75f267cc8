"""Which configuration a command reads where none is named: the one that `snakemake` reads in the same folder."""

import re
from pathlib import Path
from typing import Annotated

import typer

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
