"""`lm-validity import …` and `export …`: result files of other programs into our tables, and back."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from lm_validity.cli.options import make_group, paths_or_command
from lm_validity.errors import InputError
from lm_validity.files import as_written
from lm_validity.terminal import say

if TYPE_CHECKING:
    import pandas as pd

    from lm_validity.tables.formats.score_files import CsvOptions, ImportOptions

Choice = TypeVar("Choice", bound=str | None)
NAME = "FILES..."  # of the command without a name, as the help lists it
app = make_group(
    "Turn result files from elsewhere into tables. The format is recognised by content.", paths_or_command(NAME)
)


def register(root: typer.Typer) -> None:
    """Add this module's subcommands."""
    root.add_typer(app, name="import")
    root.add_typer(exports, name="export")


# Options of `import` and of `report`
Output = Annotated[Path, typer.Option(help="Folder for the tables.")]
Strict = Annotated[bool, typer.Option("--strict", help="Fail if a file would be skipped or a score occurs twice.")]
ModelNames = Annotated[
    list[str] | None, typer.Option("--model", help="PATH=NAME: the model's name for a file, or for all in a folder.")
]
TokensPerStep = Annotated[
    float | None, typer.Option(min=1, help="Training tokens per optimizer step, for checkpoints named by steps.")
]
FormatName = Annotated[str | None, typer.Option("--format", help="Read the files as this format only.")]
PathPattern = Annotated[
    str | None,
    typer.Option("--path", help="Names from paths: '{model}-{task}.json', '{model}/step_{iteration}', {seed}, ..."),
]
Protocol = Annotated[
    str | None, typer.Option(help="direct or train_before_test: what all files hold (one folder: PROTOCOL=FOLDER).")
]
PreparedOn = Annotated[
    str | None,
    typer.Option(help="The benchmark whose training set, or the data that, models were prepared on before the test."),
]
Groups = Annotated[str, typer.Option(help="keep: a group's own score (MMLU) where it has an error; split: its tasks.")]
ErrorsFromItems = Annotated[
    bool, typer.Option("--errors-from-items", help="Standard errors of accuracies from their numbers of items.")
]
Columns = Annotated[str, typer.Option(help="model=Model,value=Score,...: which column of a CSV file holds what.")]
ScoreColumns = Annotated[
    str,
    typer.Option("--scores", help="COLUMN,eval/*,FIRST..LAST,...: the columns of a wide CSV table that hold scores."),
]
Across = Annotated[str | None, typer.Option(help="benchmarks or models: what the columns of a wide CSV table are.")]
Percent = Annotated[bool, typer.Option("--percent", help="Scores of CSV files are percentages.")]
AsIs = Annotated[bool, typer.Option("--as-is", help="Scores of CSV files are neither fractions nor percentages.")]
RepeatsOf = Annotated[
    str, typer.Option("--repeats", help="Different scores under one key of a CSV file: refuse, or first.")
]
Schema = Annotated[
    Path | None, typer.Option(help="eval.schema.json of every_eval_ever. Default: the installed package's.")
]


@app.command(NAME)
def of_any_format(
    results: Annotated[
        list[Path], typer.Argument(help="Files, or folders to search for them; PROTOCOL=FOLDER for one protocol's.")
    ],
    output: Output,
    model: ModelNames = None,
    path: PathPattern = None,
    protocol: Protocol = None,
    prepared_on: PreparedOn = None,
    groups: Groups = "keep",
    errors_from_items: ErrorsFromItems = False,
    tokens_per_step: TokensPerStep = None,
    format_name: FormatName = None,
    strict: Strict = False,
    columns: Columns = "",
    scores: ScoreColumns = "",
    across: Across = None,
    percent: Percent = False,
    as_is: AsIs = False,
    repeats: RepeatsOf = "refuse",
    schema: Schema = None,
) -> None:
    """Turn result files of any known format into scores.parquet and, where there are answers, items.parquet."""
    _import(
        results,
        output,
        model=model,
        path=path,
        protocol=protocol,
        prepared_on=prepared_on,
        groups=groups,
        errors_from_items=errors_from_items,
        tokens_per_step=tokens_per_step,
        format_name=format_name,
        strict=strict,
        csv=csv_options(columns, scores, across, repeats, percent=percent, as_is=as_is),
        schema=schema,
    )


@app.command("lm-eval")
def lm_eval(
    results: Annotated[list[Path], typer.Argument(help="Result files, or folders to search for them.")],
    output: Output,
    strict: Strict = False,
    model: ModelNames = None,
    path: PathPattern = None,
    groups: Groups = "keep",
    tokens_per_step: TokensPerStep = None,
) -> None:
    """Turn lm-eval's own result files and samples into scores.parquet and items.parquet."""
    _import(
        results,
        output,
        format_name="lm-eval",
        strict=strict,
        model=model,
        path=path,
        groups=groups,
        tokens_per_step=tokens_per_step,
    )


@app.command("csv")
def csv(
    scores: Annotated[Path, typer.Argument(metavar="FILE", help="CSV or TSV with a header, gzipped or not.")],
    output: Output,
    columns: Columns = "",
    scores_in: ScoreColumns = "",
    across: Across = None,
    percent: Percent = False,
    as_is: AsIs = False,
    repeats: RepeatsOf = "refuse",
) -> None:
    """Turn a table of scores into scores.parquet: a score per row, or a column per benchmark or model."""
    _import(
        [scores],
        output,
        format_name="csv",
        csv=csv_options(columns, scores_in, across, repeats, percent=percent, as_is=as_is),
    )


@app.command("every-eval-ever")
def every_eval_ever(
    files: Annotated[list[Path], typer.Argument(help="Files of every_eval_ever, or folders to search for them.")],
    output: Output,
    strict: Strict = False,
    schema: Schema = None,
) -> None:
    """Turn files of every_eval_ever into scores.parquet. Each file is one evaluation of one model."""
    _import(files, output, format_name="every_eval_ever", strict=strict, schema=schema)


@app.command("lm-harmony")
def lm_harmony(scores: Annotated[Path, typer.Argument(help="The authors' all_results.json.")], output: Output) -> None:
    """Turn the train-before-test authors' all_results.json into scores.parquet."""
    from lm_validity.tables.formats.published import read_lm_harmony
    from lm_validity.tables.schema import SCORES, write_table

    write_table(read_lm_harmony(scores), SCORES, output / "scores.parquet")


@app.command("e2lm")
def e2lm(
    curves: Annotated[
        Path,
        typer.Argument(
            help="The organisers' plot-data-combined-all.json, or a row per model and checkpoint, a column per "
            "benchmark (CSV)."
        ),
    ],
    output: Output,
) -> None:
    """Turn learning curves of the early-training competition into scores.parquet."""
    from lm_validity.tables.formats.published import read_e2lm
    from lm_validity.tables.schema import SCORES, write_table

    write_table(read_e2lm(curves), SCORES, output / "scores.parquet")


@app.command("pretrain-on-test")
def pretrain_on_test(
    accuracies: Annotated[
        Path,
        typer.Argument(
            help="The author's folder accuracies_..., or a row per task and subsample with three accuracies (CSV or "
            "CSV.GZ)."
        ),
    ],
    output: Output,
) -> None:
    """Turn accuracies of the pretrain-on-test study into trials.parquet."""
    from lm_validity.studies.bias.import_published import read_pretrain_on_test
    from lm_validity.tables.schema import TRIALS, write_table

    write_table(read_pretrain_on_test(accuracies), TRIALS, output / "trials.parquet")


def _import(results: list[Path], output: Path, **given: Any) -> None:
    """Import, and say what was read, where it is, and the command that goes on from there."""
    from lm_validity.tables.formats.import_files import import_files

    paths, options = import_options(results, **given)
    scores, log = import_files(paths, output, options)
    say(*log.lines(scores), f"Written: {output / 'scores.parquet'}")
    say(f"Pages of these scores: lm-validity report {quote(str(output))} --output report")


def import_options(
    results: list[Path],
    *,
    model: list[str] | None = None,
    protocol: str | None = None,
    groups: str = "keep",
    format_name: str | None = None,
    schema: Path | None = None,
    csv: "CsvOptions | None" = None,
    **others: Any,
) -> "tuple[list[Path], ImportOptions]":
    """The paths without PROTOCOL=, and what was said of the files. Raises InputError for values that are not known."""
    from lm_validity.tables.formats.import_every_eval_ever import find_schema
    from lm_validity.tables.formats.score_files import CsvOptions, ImportOptions
    from lm_validity.tables.schema import PROTOCOLS

    paths, protocols = list[Path](), dict[Path, str]()
    for result in results:
        before, _, path = str(result).partition("=")
        if before not in PROTOCOLS or result.exists():
            paths.append(result)
            continue
        place = as_written(path)
        if protocols.setdefault(place, before) != before:
            raise InputError(f"{path}: under two protocols.", "give each folder once.")
        paths.append(Path(path))
    options = ImportOptions(
        names=_names_of(model or []),
        protocols=protocols,
        protocol=_one_of("--protocol", protocol, (*PROTOCOLS, None)),
        split_groups=_one_of("--groups", groups, ("keep", "split")) == "split",
        format=format_name,
        schema=None if schema is None else find_schema(schema),
        csv=csv or CsvOptions(),
        **others,
    )
    return paths, options


def csv_options(
    columns: str, scores: str, across: str | None, repeats: str, *, percent: bool, as_is: bool
) -> "CsvOptions":
    """How CSV files are to be read."""
    from lm_validity.tables.formats.score_files import CsvOptions

    if percent and as_is:
        raise InputError("--percent and --as-is: scores are one or the other.", "leave out one of them.")
    return CsvOptions(
        _pairs(columns),
        tuple(_split(scores)),
        _one_of("--across", across, ("benchmarks", "models", None)),
        "percentages" if percent else "neither" if as_is else "fractions",
        _one_of("--repeats", repeats, ("refuse", "first")),
    )


def _names_of(given: list[str]) -> dict[Path, str]:
    """PATH=NAME as a dictionary of absolute paths."""
    names = {}
    for one in given:
        path, _, name = one.rpartition("=")
        if not path or not name:
            raise InputError(f"--model {one}: not PATH=NAME.", "write a file or folder, '=' and the model's name.")
        names[as_written(path)] = name
    return names


def _split(text: str) -> list[str]:
    """Values between commas, quoted where they hold one themselves."""
    from csv import reader

    return [value.strip() for value in next(reader([text], skipinitialspace=True), []) if value.strip()]


def _pairs(text: str) -> dict[str, str]:
    """a=b,c=d as a dictionary."""
    pairs = {}
    for one in _split(text):
        role, _, column = one.partition("=")
        if not role.strip() or not column.strip():
            raise InputError(f"--columns {one}: not NAME=COLUMN.", "write model=Model,benchmark=Task,value=Score.")
        pairs[role.strip()] = column.strip()
    return pairs


def _one_of(option: str, value: str | None, known: tuple[Choice, ...]) -> Choice:
    """The value as one of those known. Raises InputError for others."""
    for one in known:
        if one == value:
            return one
    raise InputError(f"{option} {value}: not known.", f"choose one of {', '.join(filter(None, known))}.")


# ----------------------------------------------------------------------------------------------------------------------
# Exports

Benchmarks = Annotated[
    Path | None,
    typer.Option(
        help="Benchmarks sheet (CSV or TSV): fills in metrics, directions and num_fewshot that the table lacks."
    ),
]
exports = make_group("Write tables in the formats of other programs.")


@exports.command("lm-eval")
def export_lm_eval(
    scores: Annotated[Path, typer.Argument(help="scores.parquet")],
    output: Annotated[Path, typer.Option(help="Folder for the result files, one folder per model.")],
    benchmarks: Benchmarks = None,
) -> None:
    """Turn scores.parquet into result files in lm-eval's layout, which `import lm-eval` reads back."""
    from lm_validity.tables.formats.export_lm_eval import write_lm_eval

    written = write_lm_eval(_scores(scores, benchmarks), output)
    say(f"{output}: {len(written)} result files")


@exports.command("every-eval-ever")
def export_every_eval_ever(
    scores: Annotated[Path, typer.Argument(help="scores.parquet")],
    output: Annotated[
        Path, typer.Option(help="Folder for the files, which are in data/<collection>/<developer>/<model>/ below it.")
    ],
    organization: Annotated[str, typer.Option(help="Who publishes the scores.")],
    relationship: Annotated[
        str,
        typer.Option(help="Relationship to the models' developers: first_party, third_party, collaborative or other."),
    ] = "other",
    collection: Annotated[str, typer.Option(help="Name of the collection of files.")] = "lm-validity",
    benchmarks: Benchmarks = None,
    schema: Annotated[
        Path | None, typer.Option(help="eval.schema.json to check the files against. Default: the installed package's.")
    ] = None,
) -> None:
    """Turn scores.parquet into files of every_eval_ever, one per evaluation of a model."""
    from lm_validity.tables.formats.export_every_eval_ever import with_directions, write_every_eval_ever
    from lm_validity.tables.formats.import_every_eval_ever import find_schema

    rules = find_schema(schema)
    known, unknown = with_directions(_scores(scores, benchmarks))
    written = write_every_eval_ever(known, output, organization, relationship, collection, rules)
    if unknown:
        say(f"Left out, since it is not known whether higher is better: {', '.join(unknown)}.")
    say(f"{output}: {len(written)} files, {'' if rules else 'not '}checked against the schema of every_eval_ever")


def _scores(path: Path, benchmarks: Path | None) -> "pd.DataFrame":
    """The table, with what it leaves open from the sheet."""
    from lm_validity.tables.schema import read_scores
    from lm_validity.tables.sheets import completed, read_benchmarks

    scores = read_scores(path)
    return scores if benchmarks is None else completed(scores, read_benchmarks(benchmarks))
