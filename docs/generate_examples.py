"""Writes what the documentation shows of the published scores in examples/: cards, the tutorial's numbers, pictures.

    python docs/generate_examples.py          # rewrite what is not up to date
    python docs/generate_examples.py --check  # exit 1 where something is not (in the slow tests)

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
from generate_reference import renew

from lm_validity.files import read_json
from lm_validity.pages.svg import RAMP
from lm_validity.results.put import Rows

ROOT = Path(__file__).resolve().parents[1]
FOLDER, IMAGES = ROOT / "docs" / "examples", ROOT / "docs" / "images"
EXAMPLES, SHEETS = ROOT / "examples", ROOT / "config" / "paper"
TUTORIAL = ROOT / "docs" / "tutorials" / "published_scores.md"
BENCHMARKS = ("hellaswag", "nq_open", "openbookqa")
COMPARED = ("Qwen/Qwen2-7B", "01-ai/Yi-9B")
SHOTS = {  # page, height in pixels
    "first_page": ("index.html", 820),
    "card": ("cards/nq_open/index.html", 620),
    "sparse": ("sparse/index.html", 690),
    "compare": ("compare/index.html", 575),
    "bias": ("bias/index.html", 800),
}
MADE = "<!-- Made by docs/generate_examples.py from published scores: do not edit this page. -->\n"


def make_site(work: Path) -> Path:
    """The site of the published scores in the folder `work`, and beside it a comparison and the bias report."""
    site = work / "site"
    _lm_validity("report", EXAMPLES / "published", "--output", site)
    _lm_validity("compare", *COMPARED, site, "--output", site / "compare")
    trials = EXAMPLES / "pretrain_on_test" / "accuracies.csv.gz"
    _lm_validity("import", "pretrain-on-test", trials, "--output", work / "trials")
    bias = ("--trials", work / "trials" / "trials.parquet", "--formula", "overdispersed")
    _lm_validity("report", "bias", *bias, "--output", site / "bias")
    sheets = [f"--{name}={SHEETS / f'train_before_test_{name}.tsv'}" for name in ("models", "benchmarks")]
    _lm_validity("import", "lm-harmony", EXAMPLES / "published" / "scores.json", "--output", work / "scores")
    _sparse_report(work, sheets)
    return site


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


def tutorial(site: Path) -> str:
    """The page of the tutorial with its numbers from the rows of the reports. Before each is a comment that names its
    row, and after it an empty one: `<!-- agreement tau_mean protocol=direct .2f -->0.52<!-- . -->`."""
    rows = {name: Rows.read(site / name / "results.parquet") for name in ("agreement", "factors")}

    def written(match: re.Match[str]) -> str:
        """The number that an address names: report, quantity and conditions, and its part or `ends`."""
        report, quantity, *words = match[2].split()
        place = dict(word.split("=") for word in words if "=" in word)
        over = place.pop("over", None)
        numbers = {name: float(value) for name, value in place.items() if name in ("at_least", "at_most", "component")}
        row = rows[report].row(quantity, over=over, **place | numbers)
        if row is None:
            raise SystemExit(f"Error: {TUTORIAL}: no row for {match[2]!r}.")
        form = next((word for word in words if word[:1] in ".0+"), ".2f")
        if "ends" in words:
            return f"<!-- {match[2]} -->{row.low:{form}} to {row.high:{form}}<!-- . -->"
        return f"<!-- {match[2]} -->{row.n if 'n' in words else row.value:{form}}<!-- . -->"

    text = TUTORIAL.read_text(encoding="utf-8")
    return re.sub(r"(<!-- ((?:agreement|factors) [^>]*?) -->)[^<]*<!-- \. -->", written, text)


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
        site = make_site(Path(work))
        texts = {FOLDER / f"{name}.md": page(site / "cards" / name / "card.md") for name in BENCHMARKS}
        texts |= {TUTORIAL: tutorial(site), IMAGES / "hero.svg": hero(site / "agreement")}
        stale = renew(texts.items())
        sys.exit(screenshots(site, SHOTS, IMAGES, check="--check" in sys.argv) or stale)
