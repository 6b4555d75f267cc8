"""`lm-validity miniature …`: the synthetic world and the tiny models trained in it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lm_validity.cli.help import make_group
from lm_validity.config.load import planned_sheets, read_values, validate
from lm_validity.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from lm_validity.config.sections import MiniatureSettings

app = make_group("Make the miniature world and its models.")
ConfigFile = Annotated[Path, typer.Option("--configfile", help="Configuration with a section `miniature`.")]


def _settings(configfile: Path) -> "MiniatureSettings":
    """The section `miniature` of a configuration file; the sheets it names may not exist yet."""
    section = validate(read_values(configfile), str(configfile)).miniature
    if section is None:
        raise InputError(f"{configfile}: no section `miniature`.", "config/config.yaml has one.")
    return section


@app.command("world")
def world(
    output: Annotated[Path, typer.Option(help="Folder for the world.")],
    configfile: ConfigFile = Path("config/config.yaml"),
) -> None:
    """Write facts, benchmarks (lm-eval tasks over JSON lines), perplexity corpora and tokenizers."""
    from lm_validity.miniature.build import describe, write_world
    from lm_validity.miniature.world import read_world

    write_world(_settings(configfile), output)
    print(f"{output}: {describe(read_world(output))}")


@app.command("pretrain")
def pretrain(
    model: Annotated[str, typer.Argument(help="Id in the pool sheet.")],
    world: Annotated[Path, typer.Option(help="Folder of the world.")],
    output: Annotated[Path, typer.Option(help="Folder for the model, in hub format.")],
    configfile: ConfigFile = Path("config/config.yaml"),
    start: Annotated[
        Path | None, typer.Option(help="Folder of the model it is tuned from. Default: beside the output.")
    ] = None,
) -> None:
    """Train one tiny language model from scratch and keep its checkpoints. A tuned model starts from its parent."""
    from lm_validity.cells.training.miniature import pretrain_model
    from lm_validity.config.sheets import read_pool

    settings = _settings(configfile)
    pool = read_pool(settings.pool, planned_sheets(configfile))
    if model not in pool:
        hint = did_you_mean(model, pool, f"models there: {', '.join(pool)}.")
        raise InputError(f"{settings.pool}: no model {model!r}.", hint)
    row = pool[model]
    if row.tuned_from:
        start = start or output.parent / row.tuned_from
    pretrain_model(settings, world, row, output, start=start, progress=_print_progress)


@app.command("sheets")
def sheets(
    models: Annotated[Path, typer.Option(help="Models sheet to write, with checkpoints/ beside it.")],
    benchmarks: Annotated[Path, typer.Option(help="Benchmarks sheet to write.")],
    configfile: ConfigFile = Path("config/config.yaml"),
    only: Annotated[list[str] | None, typer.Option(help="Benchmarks to list. Default: all.")] = None,
) -> None:
    """Write the sheets that describe the pool and the benchmarks, with parameters and tokens counted."""
    from lm_validity.config.sheets import read_pool
    from lm_validity.files import write_text
    from lm_validity.miniature.build import benchmarks_sheet, model_sheets

    settings = _settings(configfile)
    for name, text in model_sheets(settings, read_pool(settings.pool)).items():
        write_text(models.parent / name if name else models, text)
    write_text(benchmarks, benchmarks_sheet(tuple(only or ())))


def _print_progress(step: int, steps: int, loss: float) -> None:
    print(f"step {step} of {steps}, loss {loss:.3f} nats per token", flush=True)
