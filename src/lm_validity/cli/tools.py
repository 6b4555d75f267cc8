"""Tools beside the studies: item filters, lm-eval's own command line."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lm_validity.cli.options import make_group
from lm_validity.errors import InputError
from lm_validity.outputs import check_folder, replaced_folder
from lm_validity.terminal import say

if TYPE_CHECKING:
    from lm_validity.studies.signal.filters.recipe import UnanimousJudge


def register(app: typer.Typer) -> None:
    """Add the commands for tasks, simulations and lm-eval."""
    app.command(
        "lm-eval",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
        help="Run lm-eval's own command line. `run --model lm-validity` scores with shared contexts.",
    )(lm_eval)
    app.add_typer(filters, name="filter")


def lm_eval(context: typer.Context) -> None:
    """Hand the arguments to lm-eval's own command line, after registering the model `lm-validity`."""
    from lm_eval.__main__ import cli_evaluate

    import lm_validity.cells.models.scorer  # noqa: F401 (registers the model)

    sys.argv = ["lm-eval", *context.args]
    cli_evaluate()


# ----------------------------------------------------------------------------------------------------------------------
# `lm-validity filter …`: choose items of a benchmark, and judge the choice where it was not made.

filters = make_group("Filter a benchmark's items, and judge the filter on models it did not see.")
TEXTS = "The documents' texts (JSON lines or parquet)."
Documents = Annotated[Path, typer.Argument(help=TEXTS)]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for the kept ids, the judgement and the task.")]


@filters.command("apply")
def apply(
    recipe: Annotated[Path, typer.Argument(help="The filters and their settings (YAML).")],
    output: Output,
    items: Annotated[Path | None, typer.Option(help="items.parquet")] = None,
    documents: Annotated[Path | None, typer.Option(help=TEXTS)] = None,
    models: Annotated[
        Path | None, typer.Option(help="Models sheet, whose sizes or architectures are left out in turn.")
    ] = None,
    controls: Annotated[
        int, typer.Option(min=1, help="Number of random choices of the same size, for comparison.")
    ] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the random choices.")] = 0,
) -> None:
    """Run a recipe's filters. Write the kept ids, an lm-eval task, and how well the filters work on other models."""
    from lm_validity.studies.signal.filters.recipe import apply_recipe, read_recipe

    for line in apply_recipe(
        read_recipe(recipe, _make_judge), output, items=items, documents=documents, models=models,
        controls=controls, seed=seed,
    ):  # fmt: skip
        say(line)


@filters.command("leakage")
def leakage(documents: Documents) -> None:
    """Say how often the gold answer, or a distractor, appears in its question's prompt or examples."""
    from lm_validity.studies.signal.filters.kinds import leakage_rates
    from lm_validity.tables.items import read_documents

    rates = leakage_rates(read_documents(documents))
    say(f"gold answers in the prompt: {rates.gold:.4f}; distractors: {rates.distractors:.4f}; {rates.items} items")
    if rates.examples == rates.examples:  # NaN without whole prompts
        say(f"gold answers in the examples before it: {rates.examples:.4f}")


@filters.command("align")
def align(
    documents: Documents,
    output: Output,
    model: Annotated[str, typer.Option(help="Folder of a local model, or the name of a model at the endpoint.")],
    url: Annotated[str | None, typer.Option(help="OpenAI-compatible endpoint. It ends in /v1.")] = None,
    key_variable: Annotated[str | None, typer.Option(help="Environment variable that holds the key.")] = None,
    dtype: Annotated[str, typer.Option(help="Precision of a local model.")] = "bfloat16",
    device: Annotated[str, typer.Option(help="Device of a local model.")] = "cpu",
    items: Annotated[int, typer.Option(min=1, help="Questions drawn at random.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the drawn questions.")] = 0,
) -> None:
    """Say what share of randomly drawn questions a language model accepts as asking for domain knowledge."""
    from lm_validity.files import write_json
    from lm_validity.studies.signal.filters.recipe import VerdictCache, alignment
    from lm_validity.tables.items import read_documents

    settings = {"model": model, "url": url, "key_variable": key_variable, "dtype": dtype, "device": device}
    judged = _make_judge({key: value for key, value in settings.items() if value is not None})
    check_folder(output, "filter align", inputs=[documents], names=["alignment.json"])
    cache = VerdictCache(output / "verdicts.jsonl", judged.judge_name)
    result = alignment(read_documents(documents), judged.judge, cache, items, seed)
    low, high = result.interval
    record = {"accepted": result.accepted, "interval": [low, high], "items": result.items, "judge": model}
    with replaced_folder(output, "filter align", inputs=[documents]) as folder:
        write_json(folder / "alignment.json", record)
    say(f"accepted: {result.accepted:.3f} [{low:.3f}, {high:.3f}] of {result.items} items")


def _make_judge(settings: dict[str, Any]) -> "UnanimousJudge":
    """The unanimous judge of a recipe's `llm_judge` step: an endpoint where `url` is given, else a local
    model."""
    from lm_validity.studies.signal.filters.recipe import EndpointJudge, Judge, UnanimousJudge

    settings = dict(settings)
    if "model" not in settings:
        raise InputError("llm_judge: no model is named.", "give model: a local folder, or a name at url.")
    promptings, cache = settings.pop("promptings", 5), Path(settings.pop("cache", "verdicts.jsonl"))
    name = f"{settings['model']}@{settings['url']}" if "url" in settings else str(settings["model"])
    try:
        if "url" in settings:
            of_local_models = ("dtype", "device")
            judge: Judge = EndpointJudge(**{key: settings[key] for key in settings if key not in of_local_models})
        else:
            from lm_validity.cells.scoring import LocalJudge

            judge = LocalJudge(settings.pop("model"), **{"dtype": "bfloat16", **settings})
    except TypeError as error:
        from lm_validity.studies.signal.filters.recipe import JUDGE_SETTINGS

        raise InputError(f"llm_judge: {error}.", f"its settings are {', '.join(JUDGE_SETTINGS)}.") from error
    return UnanimousJudge(judge, name, cache, promptings)
