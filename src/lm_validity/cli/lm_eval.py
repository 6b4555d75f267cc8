"""`lm-validity lm-eval …`: lm-eval's own command line, with this project's scorer among its models."""

import sys

import typer


def register(app: typer.Typer) -> None:
    """Add this module's subcommand."""
    app.command(
        "lm-eval",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
        help="Run lm-eval's own command line. `run --model lm-validity` scores with shared contexts.",
    )(lm_eval)


def lm_eval(context: typer.Context) -> None:
    """Hand the arguments to lm-eval's own command line, after registering the model `lm-validity`."""
    from lm_eval.__main__ import cli_evaluate

    import lm_validity.cells.models.scorer  # noqa: F401 (registers the model)

    sys.argv = ["lm-eval", *context.args]
    cli_evaluate()
