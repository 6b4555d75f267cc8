"""One command from result files to a site: import, guess the two sheets, write every report that the data allow."""

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from lm_validity.config.cards import Cards
from lm_validity.config.plan import read_cells
from lm_validity.config.sections import Reports
from lm_validity.errors import InputError, nearest
from lm_validity.files import made_folder, read_json, write_text
from lm_validity.pages.page import write_page
from lm_validity.site.beside import Beside, add_beside, beside_page
from lm_validity.site.cards.sources import CardSources
from lm_validity.site.cards.write import FOLDER as CARDS
from lm_validity.site.cards.write import write_cards
from lm_validity.site.choose import Job, choose_reports, run_reports
from lm_validity.site.compose import build_site
from lm_validity.site.data_page import data_page
from lm_validity.site.gather import Gathered, gather
from lm_validity.site.guess import guess_benchmarks, guess_lines, guess_models, leave_sparse_out, shared_categories
from lm_validity.tables.formats.score_files import ImportOptions, with_item_errors
from lm_validity.tables.schema import SCORES, write_table
from lm_validity.tables.sheets import as_in_scores, read_benchmarks, read_models
from lm_validity.words import count

MODELS, BENCHMARKS = "models.tsv", "benchmarks.tsv"


@dataclass(frozen=True)
class Given:
    """What a reader may give beside the results. `options`: how files are imported; `splits` and `source`: as cards
    take them; `plan`: the sheet of what was to be fine-tuned, other cells are not missing."""

    models: Path | None = None
    benchmarks: Path | None = None
    beside: Path | None = None
    options: ImportOptions = field(default_factory=ImportOptions)
    resamples: int = Reports().resamples
    processes: int = 2
    cards: Cards = field(default_factory=Cards)
    splits: Path | None = None
    source: str = ""
    plan: Path | None = None


def report_site(paths: Iterable[str | Path], output: str | Path, given: Given) -> list[str]:
    """Write a site with index.html, the sheets, scores.parquet and a folder a report under `output`; what to print.

    Raises InputError for bad input, for data that allow no report, and for a sheet that names none of the models or
    benchmarks; nothing is written then.
    """
    if given.plan is not None:
        read_cells(given.plan)  # a bad plan is the reader's to mend, not a report that cannot be written
    output = Path(output)
    with (
        made_folder(output.parent),
        tempfile.TemporaryDirectory(prefix=f".{output.name[:50]}.", dir=output.parent) as name,
    ):
        folder = Path(name) / "site"
        folder.mkdir()
        found = gather(paths, folder, given.options)
        lines = [*found.lines]
        beside: Beside | None = None
        sheets: tuple[pd.DataFrame, pd.DataFrame] | None = None
        if found.scores is not None:
            scores, beside = add_beside(found.scores, given.beside)
            sheets, notes = _sheets(scores, found, given, folder)
            if given.options.errors_from_items and "n_items" in sheets[1]:
                items = scores["n_items"].fillna(scores["benchmark"].map(sheets[1].set_index("benchmark")["n_items"]))
                scores, number = with_item_errors(scores, items)
                lines += [f"Standard errors from the sheet's numbers of items: {count(number, 'score')}."] * (
                    number > 0
                )
            write_table(with_tokens(scores, sheets[0]), SCORES, folder / "scores.parquet")
            lines += [*guess_lines(*sheets), *notes]
        lines += _write_reports(found, beside, sheets, given, folder)
        for path, name in ((given.models, MODELS), (given.benchmarks, BENCHMARKS)):
            if path is not None and path.resolve() == (output / name).resolve():
                shutil.copyfile(path, folder / name)  # the reader's own file stays as it is
        _move(folder, output)
    return [*lines, f"The report: {output / 'index.html'}"]


def _write_reports(
    found: Gathered, beside: Beside | None, sheets: tuple[pd.DataFrame, pd.DataFrame] | None, given: Given, folder: Path
) -> list[str]:
    """Every report that the data allow and the site of them; a line for each that they do not allow."""
    jobs, absent = choose_reports(found, sheets, folder, given.resamples, given.plan)
    written, failed = run_reports(jobs, given.processes)
    absent |= failed
    if not written:
        reasons = " ".join(f"{name.capitalize()}: {reason}" for name, reason in absent.items())
        raise InputError(f"no report can be written from these data. {reasons}", _hint(jobs, given))
    pages = [job.output for job in jobs if job.name in written]
    if beside is not None and sheets is not None:
        write_page(beside_page(beside, folder / "scores.parquet", *sheets), folder / "beside")
        pages.append(folder / "beside")
    if sheets is not None:
        write_page(data_page(pd.read_parquet(folder / "scores.parquet"), *sheets, found.lines, absent), folder / "data")
        pages.append(folder / "data")
    pages += _cards(found, given, pages, folder)
    build_site(pages, folder)
    return [f"No {name} report: {reason}" for name, reason in absent.items()]


def _cards(found: Gathered, given: Given, pages: list[Path], folder: Path) -> list[Path]:
    """The folder of the cards' table, where there are scores."""
    if found.scores is None:
        return []
    tables = (folder / "scores.parquet", folder / BENCHMARKS, pages, found.items)
    sources = CardSources(*tables, given.splits, given.cards, given.source)
    return [folder / CARDS] if write_cards(sources, folder) else []


def _hint(jobs: list[Job], given: Given) -> str:
    if jobs:
        return "correct the data or the sheets."
    return "add results of more models" + ("." if given.beside else ", or published scores with --beside.")


def _sheets(
    scores: pd.DataFrame, found: Gathered, given: Given, folder: Path
) -> tuple[tuple[pd.DataFrame, pd.DataFrame], list[str]]:
    """The sheets given, guesses where none is; written into `folder`. Models that a given sheet lacks are guessed."""
    models, benchmarks = guess_models(scores, found.facts), guess_benchmarks(scores, found.groups)
    decided, notes = list[str](), list[str]()
    if given.models is not None:
        own = as_in_scores(read_models(given.models), set(scores["model"]))
        notes += _check_names(own["model"], scores["model"], given.models, "models")
        models = pd.concat([own, models[~models["model"].isin(own["model"])]], ignore_index=True)
        decided += own["model"].tolist()
    if given.benchmarks is not None:
        benchmarks = read_benchmarks(given.benchmarks).assign(guessed=None)
        notes += _check_names(benchmarks["benchmark"], scores["benchmark"], given.benchmarks, "benchmarks")
        decided += benchmarks["benchmark"].tolist()
    notes += leave_sparse_out(models, benchmarks, scores, decided)
    if given.benchmarks is None:
        benchmarks = shared_categories(benchmarks)
    for sheet, name in ((models, MODELS), (benchmarks, BENCHMARKS)):
        write_text(folder / name, _as_tsv(sheet))
    return (models, benchmarks), notes


def _check_names(names: pd.Series, known: pd.Series, path: Path, what: str) -> list[str]:
    """A line for each name without scores that is nearly one with scores. Raises InputError if no name has scores."""
    if not names.isin(known).any():
        raise InputError(
            f"{path}: names none of the {what} that have scores ({', '.join(sorted(known.unique())[:3])}, ...).",
            "write their names as in the results, or leave the sheet out to have one guessed.",
        )
    unlisted = sorted(set(known) - set(names))
    near = {name: nearest(name, unlisted) for name in names if name not in set(known)}
    return [f"{path}: {name} has no scores. Did you mean {close}?" for name, close in near.items() if close]


def _as_tsv(sheet: pd.DataFrame) -> str:
    """The sheet as text: booleans as 0 and 1, empty where unknown."""
    plain = sheet.astype(object).map(lambda value: int(value) if isinstance(value, bool) else value)
    return plain.to_csv(sep="\t", index=False, lineterminator="\n", float_format="%.12g")


def with_tokens(scores: pd.DataFrame, models: pd.DataFrame) -> pd.DataFrame:
    """The scores with billions of training tokens from iterations, where the sheet says the tokens in a step."""
    step = scores["model"].map(models.set_index("model")["tokens_per_step"].astype("float64"))
    tokens = scores["iteration"].astype("float64") * step / 1e9
    return scores.assign(tokens_b=scores["tokens_b"].astype("float64").fillna(tokens))


def _move(folder: Path, output: Path) -> None:
    """Put what is in `folder` into `output` in the place of what is called the same there; reports that an earlier call
    wrote and this one did not are removed."""
    output.mkdir(exist_ok=True)
    for page in output.glob("*/page.json"):
        name = page.parent.name
        if not (folder / name).exists() and read_json(page).get("name") == name:
            shutil.rmtree(page.parent)
    for path in folder.iterdir():
        target = output / path.name
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        path.replace(target)
