"""One folder with one `index.html` out of the reports that exist: findings first, then each report."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from lm_validity.config.load import Run
from lm_validity.errors import InputError
from lm_validity.files import read_json, write_text
from lm_validity.pages.page import render

ORDER = ("cards", "beside", "agreement", "factors", "signal", "items", "bias", "data")
SYNTHETIC = "The models of this run are synthetic. They live in a miniature world, made for trying out the workflow."


def build_site(
    report_folders: Sequence[str | Path],
    output: str | Path,
    *,
    missing: Sequence[str] = (),
    title: str = "How far can these benchmarks be trusted?",
    about: str = "",
) -> Path:
    """Compose the `page.json` of each report folder into `output`/index.html and return its path.

    Figures and tables are copied to `output`/<report>/{figures,tables}, unless they are there. `missing` lists what an
    unfinished run lacks (cells, reports): a banner on the page. `about`: a sentence under the title. Raises InputError
    where a folder holds no report.
    """
    output = Path(output)
    documents = {}
    for folder in map(Path, report_folders):
        path = folder / "page.json"
        if not path.is_file():
            raise InputError(f"{path}: no such file.", "run `lm-validity report ...` into that folder first.")
        document = read_json(path)
        documents[document["name"]] = document
        for kind in ("figures", "tables"):
            if (folder / kind).is_dir() and folder != output / document["name"]:
                shutil.copytree(folder / kind, output / document["name"] / kind, dirs_exist_ok=True)
    if not documents:
        raise InputError("no report to build a site from.", "name at least one report folder.")
    names = sorted(documents, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    html = render(
        [documents[name] for name in names],
        title=title,
        folders={name: f"{name}/" for name in names},
        missing=missing,
        about=about,
    )
    write_text(output / "index.html", html)
    return output / "index.html"


def about_run(run: Run) -> str:
    """What the site of a run says under its title: that its models are synthetic, where all are the miniature's."""
    paths = [*(row.path for row in run.models.values()), *(row.path for row in run.language_models.values())]
    return SYNTHETIC if paths and all(map(run.is_miniature, paths)) else ""
