"""`lm-validity import …` and `export …`: result files of other programs into our tables, and back."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from lm_validity.cli.options import keyword, make_group, paths_or_command, seen_as
from lm_validity.errors import InputError
from lm_validity.files import as_written, replaced_folder
from lm_validity.words import say

if TYPE_CHECKING:
    from lm_validity.tables.formats.score_files import ImportOptions

NAME = "FILES..."  # of the command without a name, as the help lists it
app = make_group(
    "Turn result files from elsewhere into tables. Harnesses are recognised; of other tables it asks what is not sure.",
    paths_or_command(NAME),
)


def register(root: typer.Typer) -> None:
    """Add the commands that read and write tables of scores."""
    root.add_typer(app, name="import")
    root.add_typer(exports, name="export")


Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for the tables.")]


class _Option(NamedTuple):
    """An option of several commands."""

    annotation: object
    default: object


def _option(kind: Any, default: object, meaning: str, *names: str) -> _Option:
    return _Option(Annotated[kind, typer.Option(*names, help=meaning)], default)


# Options of `import` and of `report`
_OPTIONS = {
    "model": _option(list[str] | None, None, "PATH=NAME: the model's name for a file, or for all in a folder."),
    "protocol": _option(
        str | None, None, "direct or train_before_test: what all files hold (one folder: PROTOCOL=FOLDER)."
    ),
    "prepared_on": _option(
        str | None,
        None,
        "What models were prepared on before the test: a benchmark (its training set), or other data by name.",
    ),
    "strict": _Option(
        Annotated[bool, typer.Option("--strict", help="Fail if a file would be skipped or a score occurs twice.")],
        default=False,
    ),
    "columns": _option(
        str | None, None, "What columns are: 'model=COLUMN, benchmark=COLUMN, score=COLUMN'; `*` is the header."
    ),
    "reading": _option(Path | None, None, "reading.yaml of an import, perhaps corrected: columns, units, directions."),
}


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with `results`, a list of paths without PROTOCOL=, and the import options in the place of its
    `options`: what these say of the files."""

    def called(results: list[Path] | Path, **option_values: object) -> None:
        """Calls the command with the paths and what the options say of them."""
        values = {name: option_values.pop(name) for name in _OPTIONS}
        parsed = _import_options(results if isinstance(results, list) else [results], **values)
        command(results=parsed.paths, options=parsed.options, **option_values)

    return seen_as(command, called, "options", [keyword(name, *option) for name, option in _OPTIONS.items()])


@app.command(NAME)
@takes_options
def of_any_format(
    results: Annotated[
        list[Path], typer.Argument(help="Files, or folders to search for them; PROTOCOL=FOLDER for one protocol's.")
    ],
    output: Output,
    options: "ImportOptions",
) -> None:
    """Turn result files of any known format into scores.parquet and, where there are answers, items.parquet."""
    _import(results, output, options)


for _name, _files in (("lm-eval", "lm-eval"), ("csv", "a table"), ("every-eval-ever", "every_eval_ever")):
    app.command(_name, help=f"The same, of files of {_files}.")(of_any_format)


class _Authors(NamedTuple):
    """A published file: what it is, the module and the function that read it, and the table that it becomes."""

    meaning: str
    module: str
    reader: str
    table: str


_AUTHORS = {
    "lm-harmony": _Authors(
        "the train-before-test authors' all_results.json", "lm_validity.tables.formats.specs", "read_lm_harmony",
        "scores",
    ),
    "e2lm": _Authors(
        "learning curves of the early-training competition, its plot-data-combined-all.json or a column per benchmark",
        "lm_validity.tables.formats.specs", "read_e2lm", "scores",
    ),
    "pretrain-on-test": _Authors(
        "the author's folder accuracies_..., or a CSV with a row per task and subsample",
        "lm_validity.studies.bias.trials", "read_pretrain_on_test", "trials",
    ),
}  # fmt: skip


def _of_authors(authors: _Authors) -> Callable[[Path, Path], None]:
    def command(source: Annotated[Path, typer.Argument(help=f"{authors.meaning}.")], output: Output) -> None:
        from lm_validity.tables import schema

        read = getattr(importlib.import_module(authors.module), authors.reader)
        table = output / f"{authors.table}.parquet"
        with replaced_folder(output, "import", inputs=[source]) as folder:
            rows = read(source)
            schema.write_table(rows, getattr(schema, authors.table.upper()), folder / table.name)
        say(f"{len(rows)} rows from {source}.")
        _say_where(table)

    return command


for _name, _authors in _AUTHORS.items():
    app.command(_name, help=f"Turn {_authors.meaning} into {_authors.table}.parquet.")(_of_authors(_authors))


def _import(results: list[Path], output: Path, options: "ImportOptions") -> None:
    """Import, and say what was read, where it is, and the command that goes on from there."""
    from lm_validity.tables.formats.import_files import import_files

    with replaced_folder(output, "import", inputs=results) as folder:
        scores, log = import_files(results, folder, options)
    say(*log.lines(scores))
    _say_where(output / "scores.parquet")


def _say_where(table: Path) -> None:
    say(f"Written: {table}", f"Pages of it: lm-validity report {quote(str(table.parent))} --output report")


class _Asked(NamedTuple):
    """The paths without PROTOCOL=, and what was said of the files."""

    paths: list[Path]
    options: "ImportOptions"


def _import_options(results: list[Path], **option_values: object) -> _Asked:
    """What is to be imported, and how. Raises InputError for values that are not known."""
    values: dict[str, Any] = {name: option.default for name, option in _OPTIONS.items()} | option_values
    from lm_validity.tables.formats.score_files import ImportOptions
    from lm_validity.tables.schema import PROTOCOLS

    if values["protocol"] not in (*PROTOCOLS, None):
        raise InputError(f"--protocol {values['protocol']}: not known.", f"choose one of {', '.join(PROTOCOLS)}.")
    paths, protocols = list[Path](), dict[Path, str]()
    for result in results:
        model_name, _, path = str(result).partition("=")
        if model_name not in PROTOCOLS or result.exists():
            paths.append(result)
            continue
        folder = as_written(path)
        if protocols.setdefault(folder, model_name) != model_name:
            raise InputError(f"{path}: under two protocols.", "give each folder once.")
        paths.append(Path(path))
    options = ImportOptions(
        names=_names_of(values["model"] or []),
        protocols=protocols,
        protocol=values["protocol"],
        command=typed_command(),
        **{name: values[name] for name in ("prepared_on", "strict", "columns", "reading")},
    )
    return _Asked(paths, options)


def typed_command() -> str:
    """The command as it was typed, without what it said of columns: what is printed is to be pasted."""
    words, skip = ["lm-validity"], False
    for word in sys.argv[1:]:
        if not skip and not word.startswith(("--columns=", "--reading=")) and word not in ("--columns", "--reading"):
            words.append(word)
        skip = word in ("--columns", "--reading")
    return join(words)


def _names_of(texts: list[str]) -> dict[Path, str]:
    """PATH=NAME as a dictionary of absolute paths."""
    names = {}
    for pair in texts:
        path, _, name = pair.rpartition("=")
        if not path or not name:
            raise InputError(f"--model {pair}: not PATH=NAME.", "write a file or folder, '=' and the model's name.")
        names[as_written(path)] = name
    return names


# ----------------------------------------------------------------------------------------------------------------------
# Exports

Benchmarks = Annotated[
    Path | None,
    typer.Option(
        help="Benchmarks sheet (CSV or TSV): fills in metrics, directions and num_fewshot that the table lacks."
    ),
]
exports = make_group("Write tables in the formats of other programs.")


@exports.command("every-eval-ever")
def export_every_eval_ever(
    scores: Annotated[Path, typer.Argument(help="scores.parquet")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Folder for the files, which are in data/<collection>/<developer>/<model>/ below it."
        ),
    ],
    organization: Annotated[str, typer.Option(help="Who publishes the scores.")],
    relationship: Annotated[
        str,
        typer.Option(help="Relationship to the models' developers: first_party, third_party, collaborative or other."),
    ] = "other",
    collection: Annotated[str, typer.Option(help="Name of the collection of files.")] = "lm-validity",
    benchmarks: Benchmarks = None,
) -> None:
    """Turn scores.parquet into files of every_eval_ever, one per evaluation of a model."""
    from lm_validity.tables.counted import completed
    from lm_validity.tables.formats.evaluations import with_directions, write_every_eval_ever
    from lm_validity.tables.schema import read_benchmark_facts, read_scores

    table = read_scores(scores)
    if benchmarks is not None:
        table = completed(table, read_benchmark_facts(benchmarks))
    scores_with_directions, unknown = with_directions(table)
    with replaced_folder(output, "export every-eval-ever", inputs=[scores]) as folder:
        written = write_every_eval_ever(scores_with_directions, folder, organization, relationship, collection)
    if unknown:
        say(f"Left out, since it is not known whether higher is better: {', '.join(unknown)}.")
    say(f"{output}: {len(written)} files.")
