"""`lm-validity compare A B`: which of two models is better, and on what."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command()(compare)


def compare(
    model_a: Annotated[str, typer.Argument(help="The first model, as the scores table names it.")],
    model_b: Annotated[str, typer.Argument(help="The model to compare it with.")],
    scores: Annotated[Path, typer.Option(help="scores.parquet")],
    items: Annotated[Path | None, typer.Option(help="items.parquet, to compare item by item.")] = None,
    benchmarks: Annotated[Path | None, typer.Option(help="Benchmarks sheet (CSV or TSV), for metrics.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for a page, its tables and summary.json.")] = None,
) -> None:
    """Compare two models on every benchmark that both have."""
    from lm_validity.studies.items.compare import compare_models, comparison_lines, write_comparison

    summary = compare_models(model_a, model_b, scores, items, benchmarks)
    print("\n".join(comparison_lines(summary)))
    if output is not None:
        write_comparison(summary, output)
        print(f"Page: {output / 'index.html'}")
