"""Writes docs/gallery/: pictures of the sites of public collections of results, what their first pages say, and the
pictures that open some tutorials and how-tos. Some sites are there themselves, each as one file that opens live.

    python docs/generate_gallery.py REAL_DATA          # rewrite what is not up to date
    python docs/generate_gallery.py REAL_DATA NAME ... # only these collections and pictures
    python docs/generate_gallery.py REAL_DATA --check  # exit 1 where something is not

REAL_DATA is a folder of clones of the collections below, each under its own name. Of one that is not there, the gallery
keeps what it has. The data are no part of this project, so `make docs` does not call this. `findings.json` holds what
the sites say, and `pages.json` remembers which pages the pictures show.
"""

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from generate_examples import ROOT, screenshots

from lm_validity.config.generate import renew
from lm_validity.files import read_json
from lm_validity.site.first_page import ORDER, chosen_answers
from lm_validity.site.one_file import into_one_file

FOLDER = ROOT / "docs" / "gallery"
FINDINGS, PAGE = FOLDER / "findings.json", FOLDER / "index.md"


class Collection(NamedTuple):
    """`commands` run where the clone of `repository` lies. `folder`: of the card. `heights` in pixels: of the
    pictures of the first page and of the card. `drawn`: whether they are in this folder, not those of docs/images/.
    `live`: whether the site itself is there, as one file; its licence has to allow that."""

    name: str
    title: str
    repository: str
    commit: str
    licence: str
    what: str
    commands: tuple[str, ...]
    folder: str
    heights: tuple[int, int] = (900, 545)
    drawn: bool = True
    live: bool = False

    @property
    def clone(self) -> str:
        return self.repository.partition("/")[2]

    @property
    def card(self) -> str:
        return f"cards/{self.folder}"


class Picture(NamedTuple):
    """Of a page that `commands` write to the folder `site`, which opens `shown_in`; the rest as in Collection."""

    name: str
    shown_in: str
    clone: str
    commands: tuple[str, ...]
    page: str
    height: int


def _sheets_of_the_tutorial() -> str:
    """The command of the tutorial on readiness that writes the two sheets."""
    text = (ROOT / "docs" / "tutorials" / "readiness.md").read_text("utf-8")
    return textwrap.dedent(re.findall(r"^ +python - <<'END'\n.*?^ +END\n", text, re.M | re.S)[0])


PICTURES = (
    Picture(
        "readiness",
        "tutorials/readiness.md",
        "training-on-the-test-task",
        (
            "ln -s training-on-the-test-task/notebooks/utils.py utils.py",
            _sheets_of_the_tutorial(),
            "lm-validity report direct=training-on-the-test-task/notebooks/evaluations/base"
            " train_before_test=training-on-the-test-task/notebooks/evaluations/e3 --path '{model}-{task}.json'"
            " --models models.tsv --benchmarks benchmarks.tsv --group 'released>=2023-11' --output site",
        ),
        "readiness/index.html",
        540,
    ),
    Picture(
        "compare",
        "how_to/items.md",
        "StableLM",
        (
            "lm-validity report StableLM/evals --output all",
            "lm-validity compare stablelm-3b-4e1t openlm-research/open_llama_3b_v2 --scores all/scores.parquet"
            " --benchmarks all/benchmarks.tsv --output site",
        ),
        "index.html",
        575,
    ),
    Picture(
        "bias",
        "how_to/bias_study.md",
        "pretrain-on-test",
        (
            "lm-validity import pretrain-on-test pretrain-on-test/analysis/accuracies_from_paper --output tables",
            "lm-validity report bias --trials tables/trials.parquet --formula overdispersed --output site",
        ),
        "index.html",
        800,
    ),
)
COLLECTIONS = (
    Collection(
        "published",
        "Direct and train before test: 61 models on 24 benchmarks",
        "socialfoundations/lm-harmony",
        "1b8cc6e",
        "MIT",
        "The scores of *Train-before-Test Harmonizes Language Model Rankings* (ICLR 2026). A trained score is the "
        "better of the two. The sheets are those of this project. [The tutorial](../tutorials/published_scores.md) "
        "reads on.",
        (
            "lm-validity import lm-harmony lm-harmony/notebooks/all_results.json --output scores",
            "lm-validity report scores/scores.parquet --models config/paper/train_before_test_models.tsv"
            " --benchmarks config/paper/train_before_test_benchmarks.tsv --output site",
        ),
        "nq_open",
        drawn=False,
        live=True,
    ),
    Collection(
        "stablelm",
        "Direct scores only: StableLM and others",
        "Stability-AI/StableLM",
        "93eea08",
        "Apache 2.0 for the code, none stated for the results",
        "lm-eval's files of StableLM and of the models it was compared with. [The tutorial](../tutorials/stablelm.md) "
        "says what is guessed.",
        ("lm-validity report StableLM/evals --output site",),
        "hellaswag",
        (930, 545),
    ),
    Collection(
        "pythia",
        "Scores in training: Pythia",
        "EleutherAI/pythia",
        "a19eecb",
        "Apache 2.0",
        "16 models at 27 points of their training. CrowS-Pairs stays out: nothing says which of its two metrics "
        "counts. [The tutorial](../tutorials/pythia.md) reads on.",
        ("lm-validity report pythia/evals/pythia-v1/pythia-*/zero-shot --output site",),
        "arc_easy",
        (820, 745),
        live=True,
    ),
    Collection(
        "test_task",
        "Two benchmarks after training: Training on the Test Task",
        "socialfoundations/training-on-the-test-task",
        "c357810",
        "none stated",
        "The models were fine-tuned on data for MMLU and for GSM8K, so only these two are train before test. "
        "[The tutorial](../tutorials/readiness.md) adds dates, and asks whether newer models lead because they were "
        "prepared.",
        (
            "lm-validity report direct=training-on-the-test-task/notebooks/evaluations/base"
            " train_before_test=training-on-the-test-task/notebooks/evaluations/e3"
            " --path '{model}-{task}.json' --prepared-on mmlu,gsm8k --output site",
        ),
        "mmlu",
    ),
    Collection(
        "gemstones",
        "Widths and depths: Gemstones",
        "mcleish7/gemstone-scaling-laws",
        "5f42047",
        "MIT",
        "22 models of different widths and depths, each at 35 points of its training, with standard errors.",
        (
            r"printf 'what,where,decided\ntokens_per_step,*,4194304\n' > rows.csv",
            "lm-validity report gemstone-scaling-laws/benchmarks/light_eval_df.parquet"
            " gemstone-scaling-laws/benchmarks/light_eval_df_err.parquet --reading rows.csv --output site",
        ),
        "hellaswag",
        (870, 745),
    ),
    Collection(
        "olmo_ladder",
        "Sizes and lengths of training: OLMo-ladder",
        "allenai/OLMo-ladder",
        "67a3f44",
        "Apache 2.0",
        "30 runs of five sizes, trained for one half to ten times as long as Chinchilla would. There are no standard "
        "errors, so what needs them is not measured.",
        (
            r"printf 'what,where,decided\ncolumn,*,left out\ncolumn,eval/downstream/*,score\n' > rows.csv",
            "lm-validity report OLMo-ladder/src/scripts/paper/data/ladder-runs/*xC*.csv"
            " --reading rows.csv --output site",
        ),
        "eval_downstream_hellaswag_val_rc_5shot_len_norm-90596898",
        (900, 565),
    ),
    Collection(
        "sober",
        "Ten sampled runs of each model: reasoning models on six benchmarks",
        "zhikaili1150/sober-reasoning",
        "3aacfab",
        "none stated",
        "lighteval's files of 62 models with three to ten sampled runs on each benchmark. "
        "[The tutorial](../tutorials/repeats.md) says what ten runs say that one does not.",
        ("lm-validity report sober-reasoning/result --format lighteval --output site",),
        "aime24",
        (515, 305),
    ),
)
INTRODUCTION = (
    "<!-- Made by docs/generate_gallery.py from public results: do not edit this page. -->",
    "",
    "Others published these results. Each site was made from them by the command above its picture, in less than a",
    "minute of CPU time and without a GPU. Start the command in the folder where you cloned the repository. The three",
    "sentences are those of the site's first page. Below them is the card of one benchmark. The data are no part of",
    "this project.",
    "",
    "In a clone, `python docs/generate_gallery.py REAL_DATA` makes this page and its pictures anew. `REAL_DATA` is a",
    "folder of clones of the repositories that are named below.",
)


def learned(collection: Collection, site: Path) -> dict[str, Any]:
    """What a site says: the sentences of its first page, and the verdict of the card."""
    documents = {path.parent.name: read_json(path) for path in site.glob("*/page.json")}
    answers = chosen_answers([documents[name] for name in ORDER if name in documents])
    card = read_json(site / collection.card / "card.json")
    return {
        "population": html.unescape(
            re.findall('<p class="sub">(.*?)</p>', (site / "index.html").read_text("utf-8"))[0]
        ),
        "benchmark": card["benchmark"],
        "answers": [{key: answer[key] for key in ("question", "sentence", "interval")} for answer in answers],
        "verdict": card["verdict"]["sentence"],
    }


def page(findings: dict[str, Any]) -> str:
    """The gallery as Markdown."""
    lines = ["# Gallery: what public results say", "", *INTRODUCTION]
    for collection in COLLECTIONS:
        found, name = findings[collection.name], collection.name
        first, card = (name, f"{name}_card") if collection.drawn else ("../images/first_page", "../images/card")
        lines += ["", f"## {collection.title}", "", collection.what, ""]
        lines += [f"    {command}" for command in collection.commands]
        lines += ["", found["population"], ""]
        for answer in found["answers"]:
            interval = f" ({answer['interval']})" if answer["interval"] else ""
            lines.append(f"- *{answer['question']}* {answer['sentence'].rstrip('.')}{interval}.")
        picture = f"![The first page of the site: these answers, and the table of its benchmarks.]({first}.png)"
        if collection.live and (FOLDER / f"{name}.html").is_file():
            lines += [
                "",
                f"**[Open this site]({name}.html)**, all its pages in one file.",
                "",
                f"[{picture}]({name}.html)",
                "",
            ]
        else:
            lines += ["", picture, ""]
        lines += [f"The card of {found['benchmark']}: *{found['verdict']}*", ""]
        lines += [f"![The card of {found['benchmark']}.]({card}.png)", ""]
        lines += [f"Data: [{collection.repository}](https://github.com/{collection.repository}), commit "
                  f"{collection.commit}. Licence: {collection.licence}."]  # fmt: skip
    return "\n".join(lines) + "\n"


def make_site(collection: Collection | Picture, data: Path, work: Path) -> Path:
    """Run the commands in the folder `work`, as a reader would beside the clone and the sheets."""
    for name, there in ((collection.clone, data / collection.clone), ("config", ROOT / "config")):
        (work / name).symlink_to(there)
    for command in collection.commands:
        subprocess.run(command, shell=True, cwd=work, check=True, stdout=subprocess.DEVNULL)
    return work / "site"


def main(data: Path, names: list[str], *, check: bool) -> int:
    findings = read_json(FINDINGS) if FINDINGS.is_file() else {}
    stale = 0
    for collection in (*COLLECTIONS, *PICTURES):
        if names and collection.name not in names:
            continue
        if not (data / collection.clone).exists():
            print(f"{data / collection.clone}: not there, so the gallery keeps what it has of it")
            continue
        with tempfile.TemporaryDirectory() as work:
            site = make_site(collection, data, Path(work))
            if isinstance(collection, Picture):
                stale |= screenshots(site, {collection.name: (collection.page, collection.height)}, FOLDER, check=check)
                continue
            findings[collection.name] = learned(collection, site)
            first, card = collection.heights
            shots = {collection.name: ("index.html", first),
                     f"{collection.name}_card": (f"{collection.card}/index.html", card)}  # fmt: skip
            stale |= screenshots(site, shots, FOLDER, check=check) if collection.drawn else 0
            if collection.live and not check:
                into_one_file(site)
                shutil.copy(site / "index.html", FOLDER / f"{collection.name}.html")
    text = json.dumps(findings, indent=1, ensure_ascii=False) + "\n"
    return renew([(FINDINGS, text), (PAGE, page(findings))]) or stale


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    given = [word for word in sys.argv[2:] if word != "--check"]
    sys.exit(main(Path(sys.argv[1]).resolve(), given, check="--check" in sys.argv))
