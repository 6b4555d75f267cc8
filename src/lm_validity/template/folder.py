"""A new study's folder: a Snakefile that takes the workflow from the installed package, and what a user edits."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from lm_validity.config.sections import DEFAULT_SIZE_CLASSES, NAME
from lm_validity.config.sheets import read_benchmarks, read_models
from lm_validity.errors import InputError
from lm_validity.files import made_folder, make_writable, write_text
from lm_validity.outputs import check_folder
from lm_validity.site.gather import gather
from lm_validity.site.guess import guess_benchmarks, guess_models, leave_sparse_out
from lm_validity.tables.formats.score_files import ImportOptions
from lm_validity.tables.metrics import find_task_facts

FILES = Path(__file__).parent / "files"
SHIPPED = Path(__file__).parents[1] / "shipped"  # in a clone these are links to the repository's own folders
SMALL = SHIPPED / "config" / "small"
SHEETS = ("models.tsv", "benchmarks.tsv")
HEADER = """\
# The study {name}. `lm-validity config --defaults` has the keys that are left out.
"""


def make_study(folder: Path, scores: Sequence[Path] = ()) -> list[str]:
    """Write a new folder: the small study to be edited, or one around result files; what to print.

    Raises InputError where the folder has something in it, its name is no name of a run, the files have no scores,
    or nothing can be written there; nothing is written then.
    """
    folder = Path(folder)
    name = folder.resolve().name
    if not re.match(NAME, name):
        raise InputError(
            f"{folder}: the folder's name becomes the run's.", "use letters, digits, '.', '_' and '-', no spaces."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: already there, and not empty.", "name a new folder.")
    study_folder = folder.resolve()
    check_folder(study_folder, "init", inputs=scores)
    with made_folder(study_folder.parent):
        make_writable(study_folder.parent)
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=study_folder.parent) as temporary:
            draft = Path(temporary) / "study"
            draft.mkdir()
            lines = _write(draft, name, scores)
            study_folder.mkdir(exist_ok=True)  # an empty one stays: it may be where the command was started
            for path in draft.iterdir():
                path.rename(study_folder / path.name)
    return [*lines, f"{folder}: a new study. Its README.md says what to do next."]


def _write(folder: Path, name: str, scores: Sequence[Path]) -> list[str]:
    shutil.copytree(SHIPPED / "config", folder / "config", ignore=shutil.ignore_patterns("test*", "README.md"))
    shutil.copytree(SHIPPED / "profiles", folder / "profiles")
    (folder / "slurm").symlink_to("profiles/slurm")
    shutil.copy(FILES / "Snakefile", folder)
    shutil.copy(FILES / "gitignore", folder / ".gitignore")
    small = (SMALL / "small.yaml").read_text(encoding="utf-8")
    named = small[small.index("name: small") :].replace(
        "name: small", f"name: {json.dumps(name)}", 1
    )  # 123 and on are no texts
    configuration = HEADER.format(name=name) + named.replace("config/small/", "")  # the sheets are beside it
    (folder / "study.yaml").write_text(configuration, encoding="utf-8")
    about = (FILES / "scores.md").read_text(encoding="utf-8") if scores else ""
    readme = (FILES / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text(readme.format(name=name, scores=about), encoding="utf-8")
    if not scores:
        for sheet in SHEETS:
            shutil.copy(SMALL / sheet, folder)
        return []
    from lm_validity.template.folder import write_sheets  # pandas, only where it is needed

    return write_sheets(scores, folder, *SHEETS)


# ----------------------------------------------------------------------------------------------------------------------
# The workflow's two sheets from result files: what `lm-validity report` guesses, in the workflow's columns.

_SIZES = ((0.2, "tiny"), (1, "small"), (4, "medium"), (10, "large"))  # below so many billions of parameters
MODEL_COLUMNS = (
    "model", "path", "label", "family", "parameters_b", "tokens_b", "instruction_tuned", "size_class", "dtype",
)  # fmt: skip
BENCHMARK_COLUMNS = ("benchmark", "task", "category", "metric", "output_type", "higher_is_better", "chance")
ABOUT_MODELS = """\
# Guessed from the results and the models' names: everything but `label`. Look at each row.
# path: what the results call the model; for the workflow a hub id or a folder in Hugging Face format.
# Rows that begin with # are left out: they have scores on fewer than half of the benchmarks.
"""
ABOUT_BENCHMARKS = """\
# Guessed from the results and lm-eval's tasks: everything but the names. Look at each row.
# Rows that begin with # are left out: no task of lm-eval has that name, or fewer than half of the models have scores.
"""


def write_sheets(paths: Iterable[Path], folder: Path, models_name: str, benchmarks_name: str) -> list[str]:
    """Import results into `folder`/scores and write the sheets; what to print. Raises InputError as `gather` does, and
    where no score or no task of lm-eval is found."""
    (folder / "scores").mkdir()
    gathered = gather(paths, folder / "scores", ImportOptions())
    if gathered.scores is None:
        raise InputError("no scores in the files given.", "give result files of lm-eval, scores.parquet or a CSV.")
    models, benchmarks = guess_models(gathered.scores, gathered.facts), guess_benchmarks(gathered.scores)
    notes = leave_sparse_out(models, benchmarks, gathered.scores, to_include="take the # from its row in")
    has_facts = benchmarks["benchmark"].map(lambda name: find_task_facts(name) is not None)
    if not has_facts.any():
        raise InputError(
            f"none of the benchmarks is a task of lm-eval ({', '.join(benchmarks['benchmark'][:3])}, ...).",
            "start without --from, and write a sheet of benchmarks.",
        )
    keep = benchmarks["studies"].isna() & has_facts
    models = models.assign(
        path=models.get("path", models["model"]).fillna(models["model"]), dtype="bfloat16", model=_ids(models["model"])
    )
    models["size_class"] = models["parameters_b"].map(size_class)
    benchmarks = benchmarks.assign(task=benchmarks["benchmark"])
    _write_sheet(folder / models_name, ABOUT_MODELS, models[list(MODEL_COLUMNS)], models["studies"].isna())
    _write_sheet(folder / benchmarks_name, ABOUT_BENCHMARKS, benchmarks[list(BENCHMARK_COLUMNS)], keep)
    read_models(folder / models_name, folder.name, DEFAULT_SIZE_CLASSES)
    read_benchmarks(folder / benchmarks_name, folder.name)
    return [*gathered.lines, *notes]


def size_class(parameters_b: float | None) -> str:
    """The size class of a model by billions of parameters; small where they are unknown."""
    if parameters_b is None or pd.isna(parameters_b):
        return "small"
    return next((name for limit, name in _SIZES if parameters_b < limit), "huge")


def _ids(names: pd.Series) -> list[str]:
    """Ids for file names: hub ids without their owner, in lower case; with it where two would be the same."""
    short = [_plain(name.rstrip("/").rpartition("/")[2]) for name in names]
    return [
        short_name if short.count(short_name) == 1 else _plain(name)
        for short_name, name in zip(short, names, strict=True)
    ]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "model"


def _write_sheet(path: Path, about: str, sheet: pd.DataFrame, kept_rows: pd.Series) -> None:
    """The sheet as text under its comments; rows that are not kept are comments too."""
    lines = sheet.to_csv(sep="\t", index=False, lineterminator="\n", float_format="%.12g").splitlines()
    rows = [line if keep else f"# {line}" for line, keep in zip(lines[1:], kept_rows, strict=True)]
    write_text(path, about + "\n".join([lines[0], *rows]) + "\n")
