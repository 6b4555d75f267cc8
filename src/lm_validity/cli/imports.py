"""`lm-validity import …`: score files of others into our tables."""

from pathlib import Path
from typing import Annotated

import typer

from lm_validity.errors import InputError

app = typer.Typer(
    help="Turn published or foreign score files into tables.", no_args_is_help=True, rich_markup_mode=None
)
Output = Annotated[Path, typer.Option(help="Folder for the table.")]


@app.command("lm-harmony")
def lm_harmony(scores: Path, output: Output) -> None:
    """The train-before-test authors' all_results.json -> scores.parquet."""
    from lm_validity.tables.import_lm_harmony import read_lm_harmony
    from lm_validity.tables.schema import SCORES, write_table

    write_table(read_lm_harmony(scores), SCORES, output / "scores.parquet")


@app.command("e2lm")
def e2lm(curves: Path, output: Output) -> None:
    """Learning curves in the early-training layout (curves.csv) -> scores.parquet."""
    from lm_validity.tables.import_e2lm import read_e2lm
    from lm_validity.tables.schema import SCORES, write_table

    write_table(read_e2lm(curves), SCORES, output / "scores.parquet")


@app.command("pretrain-on-test")
def pretrain_on_test(accuracies: Path, output: Output) -> None:
    """Accuracies of the pretrain-on-test study (CSV, may be gzipped) -> trials.parquet."""
    from lm_validity.studies.bias.import_published import read_pretrain_on_test
    from lm_validity.tables.schema import TRIALS, write_table

    write_table(read_pretrain_on_test(accuracies), TRIALS, output / "trials.parquet")


@app.command("lm-eval")
def lm_eval(
    results: Annotated[list[Path], typer.Argument(help="Result files, or folders that are searched for them.")],
    output: Output,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail where a file would be skipped or a score is there twice.")
    ] = False,
    model: Annotated[
        list[str] | None, typer.Option(help="PATH=NAME: name of the model of a file or of all files in a folder.")
    ] = None,
) -> None:
    """Result files and samples written by lm-eval itself -> scores.parquet, items.parquet."""
    from lm_validity.tables.import_lm_eval import import_lm_eval

    scores, log = import_lm_eval(results, output, strict, _names(model or []))
    print("\n".join(log.lines(scores)))


def _names(given: list[str]) -> dict[Path, str]:
    """PATH=NAME as a dictionary of absolute paths."""
    names = {}
    for one in given:
        path, _, name = one.rpartition("=")
        if not path or not name:
            raise InputError(f"--model {one}: not PATH=NAME.", "write a file or folder, '=' and the model's name.")
        names[Path(path).resolve()] = name
    return names
