"""`lm-validity export …`: our tables in the layouts of others."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lm_validity.cli.help import make_group

if TYPE_CHECKING:
    import pandas as pd

Benchmarks = Annotated[
    Path | None,
    typer.Option(
        help="Benchmarks sheet (CSV or TSV): fills in metrics, directions and num_fewshot that the table lacks."
    ),
]
app = make_group("Write tables in the formats of other programs.")


@app.command("lm-eval")
def lm_eval(
    scores: Annotated[Path, typer.Argument(help="scores.parquet")],
    output: Annotated[Path, typer.Option(help="Folder for the result files, one folder per model.")],
    benchmarks: Benchmarks = None,
) -> None:
    """Turn scores.parquet into result files in lm-eval's layout, which `import lm-eval` reads back."""
    from lm_validity.tables.formats.export_lm_eval import write_lm_eval

    written = write_lm_eval(_scores(scores, benchmarks), output)
    print(f"{output}: {len(written)} result files")


@app.command("every-eval-ever")
def every_eval_ever(
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
        print(f"Left out, since it is not known whether higher is better: {', '.join(unknown)}.")
    print(f"{output}: {len(written)} files, {'' if rules else 'not '}checked against the schema of every_eval_ever")


def _scores(path: Path, benchmarks: Path | None) -> "pd.DataFrame":
    """The table, with what it leaves open from the sheet."""
    from lm_validity.tables.schema import read_scores
    from lm_validity.tables.sheets import completed, read_benchmarks

    scores = read_scores(path)
    return scores if benchmarks is None else completed(scores, read_benchmarks(benchmarks))
