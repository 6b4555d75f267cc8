"""The two models that `lm-validity compare` is given: by name in a table of scores, or as two files or folders."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lm_validity.errors import InputError, did_you_mean
from lm_validity.site.gather import BENCHMARKS, MODELS, gather
from lm_validity.site.guess import guess_benchmarks
from lm_validity.tables.formats.score_files import ImportOptions
from lm_validity.tables.items import open_items
from lm_validity.tables.schema import SCORES, SETTINGS, read_scores, write_table
from lm_validity.tables.settings import FILE
from lm_validity.tables.sheets import read_model_facts
from lm_validity.words import count, listing


@dataclass(frozen=True)
class TwoModels:
    """Two models of one table of scores, with what lies beside it. folder: of what is there for a while only."""

    first: str
    second: str
    folder: Path
    scores: Path
    items: Path | None = None
    benchmarks: Path | None = None
    lines: tuple[str, ...] = field(default=())


@contextmanager
def two_models(first: str, second: str, source: Path | None, items: Path | None) -> Iterator[TwoModels]:
    """The models by name or label of `source`, or without one of two files or folders, as long as the block runs.
    Raises InputError as `gather`, in the words of what was given, and for a name that no model or several have."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            yield (
                _of_folders(first, second, folder)
                if source is None
                else _of_table(first, second, source, items, folder)
            )
        except InputError as error:  # about a table that will have been there only for a while
            source_name = str(source or f"{first} and {second}")
            places = {
                str(folder / "items.parquet"): f"{first} and {second}",
                str(folder / "1"): first,
                str(folder / "2"): second,
                str(folder / "scores.parquet"): source_name,
            }
            problem, hint = error.problem, error.hint
            for path, words in places.items():
                problem, hint = problem.replace(path, words), hint.replace(path, words)
            raise InputError(problem, hint) from error


def _of_table(first: str, second: str, source: Path, items: Path | None, folder: Path) -> TwoModels:
    """The models by id or label, unique ends of ids included."""
    places = [source] if source.is_file() else [source / "scores.parquet", source / "tables" / "scores.parquet"]
    scores = next((scores_path for scores_path in places if scores_path.is_file()), None)
    if scores is None:
        raise InputError(
            f"{source}: no scores.parquet here.", "name the folder of a page, or leave it out and name two folders."
        )
    beside = scores.with_name("items.parquet")
    sheet, benchmarks_path = scores.with_name(MODELS), scores.with_name(BENCHMARKS)
    names = read_scores(scores)["model"].unique().tolist()
    labels = dict[str, list[str]]()
    if sheet.is_file():
        for model, label in read_model_facts(sheet)[["model", "label"]].itertuples(index=False):
            if model in names and isinstance(label, str):
                labels.setdefault(label, []).append(model)
    for name in names:
        if (short := name.rsplit("/", 1)[-1]) != name:
            labels.setdefault(short, []).append(name)
    return TwoModels(
        _named(first, names, labels, source),
        _named(second, names, labels, source),
        folder,
        scores,
        items or (beside if beside.is_file() else None),
        benchmarks_path if benchmarks_path.is_file() else None,
    )


def _named(text: str, names: Sequence[str], labels: dict[str, list[str]], source: Path) -> str:
    """The model that a reader means. Raises InputError where none or several are called so."""
    if text in names:
        return text
    models = sorted(set(labels.get(text, ())))
    if len(models) == 1:
        return models[0]
    if models:
        raise InputError(f"{source}: {text!r} is the label of {listing(models)}.", "give one of these names.")
    hint = did_you_mean(text, [*names, *labels], f"models here are {listing(sorted(names), 6)}.")
    raise InputError(f"{source}: no score of the model {text!r}.", hint)


def _of_folders(first: str, second: str, folder: Path) -> TwoModels:
    """The one model of each of two files or folders, which may have the same name in both."""
    gathered, models = [], []
    for index, name in enumerate((first, second)):
        if not Path(name).exists():
            raise InputError(
                f"{name}: no file or folder.", "for two models of a page, name its folder: compare A B FOLDER."
            )
        subfolder = folder / str(index + 1)
        subfolder.mkdir()
        imported = gather([name], subfolder, ImportOptions())
        if imported.scores is None:
            raise InputError(f"{name}: no scores.", "name result files, or a folder that holds them.")
        of_models = sorted(imported.scores["model"].unique())
        if len(of_models) > 1:
            raise InputError(
                f"{name}: {count(len(of_models), 'model')} ({listing(of_models, 3)}), where one is compared.",
                f"name two of them: lm-validity compare {of_models[0]} {of_models[1]} {name}",
            )
        gathered.append(imported)
        models += of_models
    if models[0] == models[1]:
        models = [f"{Path(name).name or name}" for name in (first, second)]
        models = [first, second] if models[0] == models[1] else models
    frames = [imported.scores.assign(model=model) for imported, model in zip(gathered, models, strict=True)]  # type: ignore[union-attr]
    scores = pd.concat([frame.dropna(axis=1, how="all") for frame in frames], ignore_index=True)
    write_table(scores.reindex(columns=SCORES.names), SCORES, folder / "scores.parquet")
    sheet = guess_benchmarks(read_scores(folder / "scores.parquet"), {**gathered[0].groups, **gathered[1].groups})
    sheet.to_csv(folder / BENCHMARKS, sep="\t", index=False)
    items = [imported.items for imported in gathered]
    joined = None
    if all(items):
        tables = [
            open_items(path).to_table().drop_columns(["model"]).append_column("model", pa.array([model] * rows))
            for path, model, rows in (
                (p, m, open_items(p).count_rows()) for p, m in zip(items, models, strict=True) if p
            )
        ]
        joined = folder / "items.parquet"
        pq.write_table(pa.concat_tables(tables, promote_options="default"), joined)
    settings = [
        imported.settings.assign(model=model)
        for imported, model in zip(gathered, models, strict=True)
        if imported.settings is not None
    ]
    if settings:
        write_table(pd.concat(settings, ignore_index=True), SETTINGS, folder / FILE)
    lines = [line for imported in gathered for line in imported.lines if line.startswith(("No finite", "Left out"))]
    return TwoModels(
        models[0],
        models[1],
        folder,
        folder / "scores.parquet",
        joined,
        folder / BENCHMARKS,
        tuple(lines),
    )
