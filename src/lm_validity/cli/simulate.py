"""`lm-validity simulate …`: simulations that explain a study's statistics."""

from pathlib import Path
from typing import Annotated

import typer

from lm_validity.cli.help import make_group

app = make_group("Run a simulation and write its page.")
Output = Annotated[Path, typer.Option(help="Folder for the page, its figures and tables.")]


@app.command("pca")
def pca(output: Output, splits: Annotated[int, typer.Option(min=2, help="Splits for each rank and n.")] = 100) -> None:
    """Simulate principal components fitted on test rows: a case in which unlabelled test data inflate a score."""
    from lm_validity.studies.bias.simulations import write_pca_simulation

    write_pca_simulation(output, splits)


@app.command("prior")
def prior(
    trials: Annotated[Path, typer.Option(help="trials.parquet, for the layout of the simulated data.")],
    output: Output,
    formula: Annotated[str, typer.Option(help="equations, notebooks or overdispersed.")] = "overdispersed",
    draws: Annotated[int, typer.Option(min=10, help="Simulated data sets.")] = 300,
) -> None:
    """Show what the priors of the bias study's model imply before any data."""
    from lm_validity.studies.bias.simulations import write_prior_simulation

    write_prior_simulation(trials, output, formula, draws)
