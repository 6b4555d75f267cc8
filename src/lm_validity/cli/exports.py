"""`lm-validity export …`: our tables in the layouts of others."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Write tables in the layouts of others.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def export() -> None:
    """Write tables in the layouts of others."""  # with one command only, typer would leave out its name


@app.command("lm-eval")
def lm_eval(
    scores: Annotated[Path, typer.Argument(help="scores.parquet")],
    output: Annotated[Path, typer.Option(help="Folder for the result files, one folder a model.")],
    benchmarks: Annotated[
        Path | None, typer.Option(help="Benchmarks sheet (CSV or TSV): its num_fewshot goes under `n-shot`.")
    ] = None,
) -> None:
    """scores.parquet -> result files in lm-eval's layout (results_*.json), which `import lm-eval` reads back."""
    from lm_validity.tables.export_lm_eval import write_lm_eval
    from lm_validity.tables.schema import read_scores
    from lm_validity.tables.sheets import read_benchmarks

    examples = {}
    if benchmarks is not None:
        known = read_benchmarks(benchmarks).set_index("benchmark")["num_fewshot"].dropna()
        examples = known.astype(int).to_dict()
    written = write_lm_eval(read_scores(scores), output, examples)
    print(f"{output}: {len(written)} result files")
