"""`lm-validity import …`: score files of others into our tables."""

from pathlib import Path
from shlex import quote
from typing import Annotated, TypeVar

import typer

from lm_validity.cli.help import make_group
from lm_validity.errors import InputError

Choice = TypeVar("Choice", bound=str | None)
app = make_group("Turn score files from elsewhere into tables.")
Strict = Annotated[bool, typer.Option("--strict", help="Fail if a file would be skipped or a score occurs twice.")]
Output = Annotated[Path, typer.Option(help="Folder for the table.")]


@app.command("lm-eval")
def lm_eval(
    results: Annotated[list[Path], typer.Argument(help="Result files, or folders to search for them.")],
    output: Output,
    strict: Strict = False,
    model: Annotated[
        list[str] | None, typer.Option(help="PATH=NAME: the model's name for a file, or for all files in a folder.")
    ] = None,
    tokens_per_step: Annotated[
        float | None, typer.Option(min=1, help="Training tokens per optimizer step, for checkpoints named by steps.")
    ] = None,
) -> None:
    """Turn lm-eval's own result files and samples into scores.parquet and items.parquet."""
    from lm_validity.tables.formats.import_lm_eval import import_lm_eval

    scores, log = import_lm_eval(
        results, output, strict=strict, names=names_of(model or []), tokens_per_step=tokens_per_step
    )
    _say(log.lines(scores), output)


@app.command("csv")
def csv(
    scores: Annotated[Path, typer.Argument(metavar="FILE", help="CSV or TSV with a header, gzipped or not.")],
    output: Output,
    columns: Annotated[
        str, typer.Option(help="model=Model,benchmark=Task,value=Score,...: which column of the file holds what.")
    ] = "",
    scores_in: Annotated[
        str, typer.Option("--scores", help="COLUMN,COLUMN,...: the columns of a wide table that hold scores.")
    ] = "",
    across: Annotated[
        str | None, typer.Option(help="benchmarks or models: what the columns of a wide table are.")
    ] = None,
    percent: Annotated[bool, typer.Option("--percent", help="Scores are percentages.")] = False,
    as_is: Annotated[bool, typer.Option("--as-is", help="Scores are neither fractions nor percentages.")] = False,
    repeats: Annotated[
        str, typer.Option(help="Different scores under one key: refuse, or first (use the first).")
    ] = "refuse",
) -> None:
    """Turn a table of scores into scores.parquet: a score per row, or a column per benchmark or model."""
    from lm_validity.tables.formats.import_csv import Across, CsvOptions, Repeats, Unit, read_csv_scores
    from lm_validity.tables.formats.import_log import ImportLog

    columns_are: Across | None = _one_of("--across", across, ("benchmarks", "models", None))
    of_repeats: Repeats = _one_of("--repeats", repeats, ("refuse", "first"))
    if percent and as_is:
        raise InputError("--percent and --as-is: scores are one or the other.", "leave out one of them.")
    unit: Unit = "percentages" if percent else "neither" if as_is else "fractions"
    options = CsvOptions(_pairs(columns), tuple(_split(scores_in)), columns_are, unit, of_repeats)
    log = ImportLog()
    found = read_csv_scores(scores, options, log)
    log.write(found, output)
    _say(log.lines(found), output)


@app.command("every-eval-ever")
def every_eval_ever(
    files: Annotated[list[Path], typer.Argument(help="Files of every_eval_ever, or folders to search for them.")],
    output: Output,
    strict: Strict = False,
    schema: Annotated[
        Path | None, typer.Option(help="eval.schema.json to check the files against. Default: the installed package's.")
    ] = None,
) -> None:
    """Turn files of every_eval_ever into scores.parquet. Each file is one evaluation of one model."""
    from lm_validity.tables.formats.every_eval_ever import find_schema
    from lm_validity.tables.formats.import_every_eval_ever import read_every_eval_ever
    from lm_validity.tables.formats.import_log import ImportLog

    log = ImportLog(strict=strict)
    found = read_every_eval_ever(files, find_schema(schema), log)
    log.write(found, output)
    _say(log.lines(found), output)


@app.command("lm-harmony")
def lm_harmony(scores: Annotated[Path, typer.Argument(help="The authors' all_results.json.")], output: Output) -> None:
    """Turn the train-before-test authors' all_results.json into scores.parquet."""
    from lm_validity.tables.formats.import_lm_harmony import read_lm_harmony
    from lm_validity.tables.schema import SCORES, write_table

    write_table(read_lm_harmony(scores), SCORES, output / "scores.parquet")


@app.command("e2lm")
def e2lm(
    curves: Annotated[Path, typer.Argument(help="A row per model and checkpoint, a column per benchmark (CSV).")],
    output: Output,
) -> None:
    """Turn learning curves in the early-training layout (curves.csv) into scores.parquet."""
    from lm_validity.tables.formats.import_e2lm import read_e2lm
    from lm_validity.tables.schema import SCORES, write_table

    write_table(read_e2lm(curves), SCORES, output / "scores.parquet")


@app.command("pretrain-on-test")
def pretrain_on_test(
    accuracies: Annotated[
        Path, typer.Argument(help="A row per task and subsample with three accuracies (CSV or CSV.GZ).")
    ],
    output: Output,
) -> None:
    """Turn accuracies of the pretrain-on-test study (CSV, may be gzipped) into trials.parquet."""
    from lm_validity.studies.bias.import_published import read_pretrain_on_test
    from lm_validity.tables.schema import TRIALS, write_table

    write_table(read_pretrain_on_test(accuracies), TRIALS, output / "trials.parquet")


def _say(lines: list[str], output: Path) -> None:
    """What was imported, where it is, and the command that goes on from there."""
    print("\n".join([*lines, f"Written: {output / 'scores.parquet'}"]))
    print(f"Pages of these scores: lm-validity report {quote(str(output))} --output report")


def names_of(given: list[str]) -> dict[Path, str]:
    """PATH=NAME as a dictionary of absolute paths."""
    names = {}
    for one in given:
        path, _, name = one.rpartition("=")
        if not path or not name:
            raise InputError(f"--model {one}: not PATH=NAME.", "write a file or folder, '=' and the model's name.")
        names[Path(path).resolve()] = name
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
