"""Writes the example cards of docs/examples/ from the published scores of 61 models on 24 benchmarks.

    python docs/generate_examples.py all_results.json          # rewrite those that are not up to date
    python docs/generate_examples.py all_results.json --check  # exit 1 where one is not (in the slow tests)

The score file is that of the authors of *Train-before-Test Harmonizes Language Model Rankings*
(docs/tutorials/published_scores.md says where it is). It is no part of this project, so `make docs` does not call this.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from lm_validity.config.generate import renew

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "examples"
SHEETS = ROOT / "config" / "paper"
BENCHMARKS = ("hellaswag", "nq_open", "openbookqa")
MADE = "<!-- Made by docs/generate_examples.py from published scores: do not edit this page. -->\n"


def cards(scores: Path, work: Path) -> dict[Path, str]:
    """The pages, from an import and a report in the folder `work`."""
    sheets = [f"--{name}={SHEETS / f'train_before_test_{name}.tsv'}" for name in ("models", "benchmarks")]
    _lm_validity("import", "lm-harmony", scores, "--output", work / "scores")
    _lm_validity("report", work / "scores" / "scores.parquet", *sheets, "--output", work / "site")
    return {FOLDER / f"{name}.md": page(work / "site" / "cards" / name / "card.md") for name in BENCHMARKS}


def page(card: Path) -> str:
    """A card as a page: headings one level up, and a link to what its lines mean instead of the last line."""
    *lines, _ = card.read_text(encoding="utf-8").splitlines()
    lines = [line[1:] if line.startswith("##") else line for line in lines]
    return "\n".join([lines[0], "", MADE, *lines[2:], "[What each line means](../reference/cards.md).", ""])


def _lm_validity(*arguments: str | Path) -> None:
    subprocess.run(["lm-validity", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        sys.exit(renew(cards(Path(sys.argv[1]), Path(work)).items()))
