"""Writes docs/gallery/: pictures of the sites of public collections of results, and what their first pages say.

    python docs/generate_gallery.py REAL_DATA          # rewrite what is not up to date
    python docs/generate_gallery.py REAL_DATA --check  # exit 1 where something is not

REAL_DATA is a folder of clones of the collections below, each under its own name. Of one that is not there, the gallery
keeps what it has. The data are no part of this project, so `make docs` does not call this. `findings.json` holds what
the sites say, and `pages.json` remembers which pages the pictures show.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from generate_examples import IMAGES, ROOT, screenshots

from lm_validity.config.generate import renew
from lm_validity.files import read_json
from lm_validity.site.first_page import ORDER, chosen_answers

FOLDER = ROOT / "docs" / "gallery"
FINDINGS, PAGE = FOLDER / "findings.json", FOLDER / "index.md"
OUTPUT = "site"  # of every command below


class Collection(NamedTuple):
    """`commands` run in the folder that has the clone `repository`. `heights` in pixels: of the pictures of the first
    page and of the card. `examples`: the pictures are those of docs/images/."""

    name: str
    title: str
    repository: str
    what: str
    licence: str
    commands: tuple[str, ...]
    benchmark: str
    heights: tuple[int, int]
    examples: bool = False

    @property
    def clone(self) -> str:
        return self.repository.partition("/")[2]


COLLECTIONS = (
    Collection(
        "published",
        "61 models on 24 benchmarks, direct and train before test",
        "socialfoundations/lm-harmony",
        "The scores of *Train-before-Test Harmonizes Language Model Rankings* (ICLR 2026). The [tutorial]"
        "(../tutorials/published_scores.md) reads them in full. The two sheets are in this project.",
        "see the repository",
        (
            "lm-validity import lm-harmony lm-harmony/notebooks/all_results.json --output scores",
            "lm-validity report scores/scores.parquet --models config/paper/train_before_test_models.tsv"
            " --benchmarks config/paper/train_before_test_benchmarks.tsv --output site",
        ),
        "nq_open",
        (820, 620),
        examples=True,
    ),
    Collection(
        "stablelm",
        "StableLM: direct scores only",
        "Stability-AI/StableLM",
        "lm-eval's files for StableLM and the models it was compared with. The [tutorial](../tutorials/stablelm.md) says"
        " what was guessed.",
        "Apache 2.0",
        ("lm-validity report StableLM/evals --output site",),
        "hellaswag",
        (960, 545),
    ),
)  # fmt: skip


def learned(collection: Collection, site: Path) -> dict[str, Any]:
    """What a site says: the sentences of its first page, and the verdict of the card."""
    documents = {path.parent.name: read_json(path) for path in site.glob("*/page.json")}
    answers = chosen_answers([documents[name] for name in ORDER if name in documents])
    card = read_json(_card(collection, site) / "card.json")
    return {
        "answers": [{key: answer[key] for key in ("question", "sentence", "interval")} for answer in answers],
        "verdict": card["verdict"]["sentence"],
    }


def page(findings: dict[str, Any]) -> str:
    """The gallery as Markdown."""
    lines = ["# Gallery: what public results say", "", *INTRODUCTION]
    for collection in COLLECTIONS:
        found, name = findings[collection.name], collection.name
        first, card = ("../images/first_page", "../images/card") if collection.examples else (name, f"{name}_card")
        lines += ["", f"## {collection.title}", "", collection.what, ""]
        for answer in found["answers"]:
            interval = f" ({answer['interval']})" if answer["interval"] else ""
            lines.append(f"- *{answer['question']}* {answer['sentence'].rstrip('.')}{interval}.")
        lines += ["", f"![The first page of the site, with these answers.]({first}.png)", ""]
        lines += [*(f"    {command}" for command in collection.commands), ""]
        lines += [f"The card of {collection.benchmark}: *{found['verdict'].rstrip('.')}.*", ""]
        lines += [f"![The card of {collection.benchmark}.]({card}.png)", ""]
        lines += [f"Data: [{collection.repository}](https://github.com/{collection.repository}). "
                  f"Licence: {collection.licence}."]  # fmt: skip
    return "\n".join(lines) + "\n"


INTRODUCTION = (
    "<!-- Made by docs/generate_gallery.py from public results: do not edit this page. -->",
    "",
    "Each site below was made by the command under its picture, without a GPU, from results that others published.",
    "Start the command in the folder that has the clone. The sentences are those of the site's first page. In brackets",
    "are 95% intervals; each site says which models and benchmarks they are for. The data are no part of this project.",
    "",
    "In a clone, `python docs/generate_gallery.py REAL_DATA` makes this page and its pictures anew. `REAL_DATA` is a",
    "folder of clones of the repositories that are named here.",
)


def _card(collection: Collection, site: Path) -> Path:
    return site / "cards" / collection.benchmark


def _make_site(collection: Collection, data: Path, work: Path) -> Path:
    """Run the commands as a reader would in the folder `data`, but write into `work`."""
    for command in collection.commands:
        words = command.replace("config/paper/", f"{ROOT}/config/paper/").replace(" scores", f" {work}/scores")
        written = words.replace("--output site", f"--output {work}/site")
        subprocess.run(written, shell=True, cwd=data, check=True, stdout=subprocess.DEVNULL)
    return work / "site"


def _main(data: Path, *, check: bool) -> int:
    findings = read_json(FINDINGS) if FINDINGS.is_file() else {}
    stale = 0
    for collection in COLLECTIONS:
        if not (data / collection.clone).exists():
            print(f"{collection.name}: no {data / collection.clone}, so it stays as it is")
            continue
        with tempfile.TemporaryDirectory() as work:
            site = _make_site(collection, data, Path(work))
            findings[collection.name] = learned(collection, site)
            pages = ("index.html", f"cards/{collection.benchmark}/index.html")
            names = (collection.name, f"{collection.name}_card")
            shots = dict(zip(names, zip(pages, collection.heights, strict=True), strict=True))
            stale |= 0 if collection.examples else screenshots(site, shots, FOLDER, check=check)
    texts = {FINDINGS: json.dumps(findings, indent=1, ensure_ascii=False) + "\n", PAGE: page(findings)}
    return renew(texts.items()) or stale


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    sys.exit(_main(Path(sys.argv[1]).resolve(), check="--check" in sys.argv))
