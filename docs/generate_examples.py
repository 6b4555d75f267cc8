"""Writes the example cards of docs/examples/ and the pictures of docs/images/ from the published scores of 61 models.

    python docs/generate_examples.py all_results.json          # rewrite those that are not up to date
    python docs/generate_examples.py all_results.json --check  # exit 1 where one is not (in the slow tests)

The score file is that of the authors of *Train-before-Test Harmonizes Language Model Rankings*
(docs/tutorials/published_scores.md says where it is). It is no part of this project, so `make docs` does not call this.
Screenshots need chromium; each is taken again when the page it shows has changed, which `pages.json` remembers.
"""

import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from lm_validity.config.generate import renew
from lm_validity.files import read_json
from lm_validity.pages.svg import RAMP

ROOT = Path(__file__).resolve().parents[1]
FOLDER, IMAGES = ROOT / "docs" / "examples", ROOT / "docs" / "images"
SHEETS = ROOT / "config" / "paper"
BENCHMARKS = ("hellaswag", "nq_open", "openbookqa")
SHOTS = {  # page, height in pixels
    "first_page": ("index.html", 820),
    "card": ("cards/nq_open/index.html", 620),
    "sparse": ("sparse/index.html", 690),
}
MADE = "<!-- Made by docs/generate_examples.py from published scores: do not edit this page. -->\n"


def make_site(scores: Path, work: Path) -> Path:
    """The site of the published scores, from an import and a report in the folder `work`."""
    sheets = [f"--{name}={SHEETS / f'train_before_test_{name}.tsv'}" for name in ("models", "benchmarks")]
    _lm_validity("import", "lm-harmony", scores, "--output", work / "scores")
    _lm_validity("report", work / "scores" / "scores.parquet", *sheets, "--output", work / "site")
    _sparse_report(work, sheets)
    return work / "site"


def _sparse_report(work: Path, sheets: list[str]) -> None:
    """The agreement report as it would be if only the cells of a plan had been fine-tuned."""
    configuration = ("--configfile", SHEETS / "train_before_test.yaml")
    _lm_validity("plan", *configuration, "--design", "balanced", "--output", work / "plan.tsv")
    scores, plan = pd.read_parquet(work / "scores" / "scores.parquet"), pd.read_csv(work / "plan.tsv", sep="\t")
    models = pd.read_csv(SHEETS / "train_before_test_models.tsv", sep="\t", comment="#")
    paths = plan["model"].map(models.set_index("model")["path"])
    planned = pd.MultiIndex.from_arrays([paths, plan["benchmark"]])
    cells = pd.MultiIndex.from_frame(scores[["model", "benchmark"]])
    scores[(scores["protocol"] == "direct") | cells.isin(planned)].to_parquet(work / "planned.parquet")
    tables = ("--scores", work / "planned.parquet", "--plan", work / "plan.tsv")
    _lm_validity("report", "agreement", *tables, *sheets, "--output", work / "site" / "sparse")


def page(card: Path) -> str:
    """A card as a page: headings one level up, and a link to what its lines mean instead of the last line."""
    *lines, _ = card.read_text(encoding="utf-8").splitlines()
    lines = [line[1:] if line.startswith("##") else line for line in lines]
    return "\n".join([lines[0], "", MADE, *lines[2:], "[What each line means](../reference/cards.md).", ""])


def hero(report: Path) -> str:
    """The ranks under both protocols as one picture without script or image, for light and dark pages."""
    document = read_json(report / "page.json")
    carpets = [
        json.loads(html.unescape(text)) for text in re.findall(r'data-ranks="([^"]*)"', document["picture"]["svg"])
    ]
    means = re.findall(r">agreement ([^<]+)<", document["picture"]["svg"])
    lede = document["lede"]
    parts = []
    for x, kind, carpet, mean in zip((48, 616), "dt", carpets, means, strict=False):  # the others are for narrow pages
        parts.append(f'<text x="{x}" y="172" class="{kind}" font-size="23" font-weight="700">{carpet["label"]}</text>')
        right = f'<text x="{x + 536}" y="172" font-size="23" font-weight="700" text-anchor="end">'
        parts.append(f"{right}agreement {mean}</text>")
        parts += _cells(carpet["ranks"], x, 188, 536, 336)
    models, benchmarks = len(carpets[0]["rows"]), len(carpets[0]["columns"])
    label = f"Ranks of {models} models on {benchmarks} benchmarks. {lede['sentence']} ({lede['interval']})."
    says = [
        (48, 74, 42, 700, "", "How far can a language-model benchmark be trusted?"),
        (48, 112, 20, 400, "soft", f"Each column is a benchmark’s ranking of {models} models. Dark: ranked first."),
        (48, 566, 22, 600, "", f"{lede['heading']}."),
        (48, 594, 16, 400, "soft", f"{lede['sentence']} ({lede['interval']}). 1 is the same order, 0 none."),
        (48, 616, 16, 400, "soft", "Scores: Train-before-Test, ICLR 2026, as published (trained: the better of both)."),
    ]  # fmt: skip
    texts = [f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" class="{kind}">{words}</text>'
             for x, y, size, weight, kind, words in says]  # fmt: skip
    style = (
        "svg{--paper:#fff;--ink:#16191d;--soft:#59616c;--d:#b9540f;--t:#1f6fb2}"
        "@media(prefers-color-scheme:dark){svg{--paper:#0d1117;--ink:#e9ecf0;--soft:#a3acb8;--d:#f2a066;--t:#6bb2f0}}"
        "text{fill:var(--ink);font-family:Helvetica Neue,Helvetica,Arial,Liberation Sans,sans-serif}"
        ".soft{fill:var(--soft)}.d{fill:var(--d)}.t{fill:var(--t)}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1200 630" role="img" aria-label="{label}">'
        f'<style>{style}</style><rect width="1200" height="630" style="fill:var(--paper)"/>'
        f"{''.join(texts + parts)}</svg>\n"
    )


def _cells(ranks: list[list[float | None]], x: float, y: float, width: float, height: float) -> list[str]:
    """A path for each of 24 shades."""
    shades, across, down = 24, width / len(ranks[0]), height / len(ranks)
    paths: dict[int, list[str]] = {}
    for i, row in enumerate(ranks):
        for j, rank in enumerate(row):
            if rank is not None:
                shade = round((rank - 1) / max(len(ranks) - 1, 1) * (shades - 1))
                at = (
                    f"M{x + j * across:.1f} {y + i * down:.1f}h{across - 1.6:.1f}v{down + 0.1:.1f}h-{across - 1.6:.1f}z"
                )
                paths.setdefault(shade, []).append(at)
    stops = [[int(colour[place : place + 2], 16) for place in (1, 3, 5)] for colour in RAMP]
    drawn = []
    for shade, cells in sorted(paths.items()):
        place = shade / (shades - 1) * (len(stops) - 1)
        first = min(int(place), len(stops) - 2)
        mixed = [round(a + (b - a) * (place - first)) for a, b in zip(stops[first], stops[first + 1], strict=True)]
        drawn.append(f'<path fill="#{"".join(f"{part:02x}" for part in mixed)}" d="{"".join(cells)}"/>')
    return drawn


def screenshots(site: Path, shots: Mapping[str, tuple[str, int]], folder: Path, *, check: bool) -> int:
    """Take the pictures (name: page of the site, height in pixels) of pages that have changed; with `check`, 1 where
    one has. `pages.json` of the folder of pictures remembers the pages."""
    remembered = folder / "pages.json"
    before = read_json(remembered) if remembered.is_file() else {}
    now = {name: hashlib.sha256((site / path).read_bytes()).hexdigest() for name, (path, _) in shots.items()}
    stale = [name for name in shots if before.get(name) != now[name] or not (folder / f"{name}.png").is_file()]
    if check or not stale:
        print(*(f"{folder / name}.png: not up to date" for name in stale), sep="\n", end="\n" if stale else "")
        return int(bool(stale))
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print(f"no chromium: {folder} has old screenshots")
        return 1
    for name in stale:
        path, height = shots[name]
        shot = (f"--screenshot={folder / name}.png", f"--window-size=1280,{height}", "--hide-scrollbars")
        subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", *shot, (site / path).as_uri()],
                       check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)  # fmt: skip
    remembered.write_text(json.dumps(before | now, indent=1) + "\n", encoding="utf-8")
    return 0


def _lm_validity(*arguments: str | Path) -> None:
    subprocess.run(["lm-validity", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        IMAGES.mkdir(exist_ok=True)
        site = make_site(Path(sys.argv[1]).resolve(), Path(work))
        texts = {FOLDER / f"{name}.md": page(site / "cards" / name / "card.md") for name in BENCHMARKS}
        stale = renew({**texts, IMAGES / "hero.svg": hero(site / "agreement")}.items())
        sys.exit(screenshots(site, SHOTS, IMAGES, check="--check" in sys.argv) or stale)
