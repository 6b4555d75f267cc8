"""A new study's folder: a Snakefile that takes the workflow from the installed package, and what a user edits."""

import json
import re
import shutil
import tempfile
from pathlib import Path

from lm_validity.config.sections import NAME
from lm_validity.errors import InputError
from lm_validity.files import check_folder, made_folder, make_writable

FILES = Path(__file__).parent / "files"
SHIPPED = Path(__file__).parents[1] / "shipped"  # in a clone these are links to the repository's own folders
SMALL = SHIPPED / "config" / "small"
SHEETS = ("models.tsv", "benchmarks.tsv")
HEADER = """\
# The study {name}. `lm-validity config --defaults` has the keys that are left out.
"""


def make_study(folder: Path) -> None:
    """Write a new folder: the small study, to be edited.

    Raises InputError where the folder has something in it, its name is no name of a run, or nothing can be written
    there; nothing is written then.
    """
    folder = Path(folder)
    name, study_folder = folder.resolve().name, folder.resolve()
    if not re.match(NAME, name):
        raise InputError(
            f"{folder}: the folder's name becomes the run's.", "use letters, digits, '.', '_' and '-', no spaces."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: already there, and not empty.", "name a new folder.")
    check_folder(study_folder, "init")
    with made_folder(study_folder.parent):
        make_writable(study_folder.parent)
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=study_folder.parent) as temporary:
            draft = Path(temporary) / "study"
            draft.mkdir()
            _write(draft, name)
            study_folder.mkdir(exist_ok=True)  # an empty one stays: it may be where the command was started
            for path in draft.iterdir():
                path.rename(study_folder / path.name)


def _write(folder: Path, name: str) -> None:
    shutil.copytree(SHIPPED / "config", folder / "config", ignore=shutil.ignore_patterns("test*", "README.md"))
    shutil.copytree(SHIPPED / "profiles", folder / "profiles")
    (folder / "slurm").symlink_to("profiles/slurm")
    shutil.copy(FILES / "Snakefile", folder)
    shutil.copy(FILES / "gitignore", folder / ".gitignore")
    small = (SMALL / "small.yaml").read_text(encoding="utf-8")
    named = small[small.index("name: small") :].replace("name: small", f"name: {json.dumps(name)}", 1)  # 123 is no text
    configuration = HEADER.format(name=name) + named.replace("config/small/", "")  # the sheets are beside it
    (folder / "study.yaml").write_text(configuration, encoding="utf-8")
    readme = (FILES / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text(readme.format(name=name), encoding="utf-8")
    for sheet in SHEETS:
        shutil.copy(SMALL / sheet, folder)
