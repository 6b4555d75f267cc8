"""The two models that `lm-validity compare` is given: by name in a table of scores, or as two files or folders."""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lm_validity.errors import InputError, did_you_mean
from lm_validity.files import absent
from lm_validity.site.gather import BENCHMARKS, MODELS, NO_ERRORS, Gathered, errors_to_be_had, gather, table_kind
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
def two_models(
    first: str, second: str, source: Path | None, items: Path | None, options: ImportOptions
) -> Iterator[TwoModels]:
    """The models by name or label of `source`, or without one of two files or folders, as long as the block runs.
    options: how files are imported.
    Raises InputError as `gather`, in the words of what was given, and for a name that no model or several have."""
    if source is not None and not source.exists():
        order = (
            f"the folder comes last: compare {second} {source} {first}." if Path(first).is_dir() else "check the path."
        )
        raise absent(source, "file or folder", order)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            yield (
                _of_folders(first, second, folder, options)
                if source is None
                else _of_table(first, second, source, items, folder, options)
            )
        except InputError as error:  # about a table that will have been there only for a while
            source_name = str(source or f"{first} and {second}")
            places = {
                str(folder / "items.parquet"): f"{first} and {second}",
                str(folder / "1"): first,
                str(folder / "2"): second,
                str(folder / "scores.parquet"): source_name,
            }
            raise error.reworded(places) from error


def _of_table(
    first: str, second: str, source: Path, items: Path | None, folder: Path, options: ImportOptions
) -> TwoModels:
    """The models by id or label, unique ends of ids included, of tables written by lm-validity or of result files."""
    places = [source / "scores.parquet", source / "tables" / "scores.parquet"] if source.is_dir() else [source]
    tables = (path for path in places if path.is_file() and path.suffix == ".parquet")
    scores = next((path for path in tables if table_kind(path) == "scores"), None)
    lines = () if scores is None else tuple(errors_to_be_had(read_scores(scores), [scores]))
    if scores is None:
        gathered = _gathered(str(source), folder, options)
        _write_sheet_and_settings(folder, gathered.groups, gathered.settings)
        scores, items = folder / "scores.parquet", items or gathered.items
        lines = _left_out(gathered)
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
        lines,
    )


def _gathered(name: str, folder: Path, options: ImportOptions) -> Gathered:
    """What result files or tables hold, imported into a folder. Raises InputError where there are no scores."""
    gathered = gather([name], folder, options)
    if gathered.scores is None:
        raise InputError(f"{name}: no scores.", "name result files, or a folder that holds them.")
    return gathered


def _write_sheet_and_settings(folder: Path, groups: Mapping[str, str], settings: pd.DataFrame | None) -> None:
    """The guessed sheet of benchmarks and the settings, beside the scores of a folder."""
    sheet = guess_benchmarks(read_scores(folder / "scores.parquet"), groups)
    sheet.to_csv(folder / BENCHMARKS, sep="\t", index=False)
    if settings is not None:
        write_table(settings, SETTINGS, folder / FILE)


def _left_out(gathered: Gathered) -> tuple[str, ...]:
    return tuple(line for line in gathered.lines if line.startswith(("No finite", "Left out", NO_ERRORS)))


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


def _of_folders(first: str, second: str, folder: Path, options: ImportOptions) -> TwoModels:
    """The one model of each of two files or folders, which may have the same name in both."""
    gathered, models = [], []
    if os.path.realpath(first) == os.path.realpath(second):
        raise InputError(f"{first} and {second}: one place, where two models are compared.", "name two of them.")
    for index, name in enumerate((first, second)):
        if not Path(name).exists():
            raise absent(name, "file or folder", "for two models of a page, name its folder: compare A B FOLDER.")
        subfolder = folder / str(index + 1)
        subfolder.mkdir()
        imported = _gathered(name, subfolder, options)
        of_models = sorted(read_scores(subfolder / "scores.parquet")["model"].unique())
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
    joined_groups = {**gathered[0].groups, **gathered[1].groups}
    _write_sheet_and_settings(folder, joined_groups, pd.concat(settings, ignore_index=True) if settings else None)
    return TwoModels(
        models[0],
        models[1],
        folder,
        folder / "scores.parquet",
        joined,
        folder / BENCHMARKS,
        tuple(line for imported in gathered for line in _left_out(imported)),
    )
