"""Commands of a study of one's own: its folder, what it takes, how it stands, what it found; and tools beside it, item
filters and lm-eval's own command line."""

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lm_validity.cli.options import (
    DEFAULT,
    Calibration,
    Configfile,
    make_group,
    report_folders,
    say_findings,
    site_reports,
    snakemake_command,
)
from lm_validity.cli.plan import run_to_its_end
from lm_validity.config.load import build_run, load_run, read_values, render_defaults, render_yaml
from lm_validity.config.rows import Sheets
from lm_validity.errors import InputError, did_you_mean
from lm_validity.files import check_file, check_folder, replaced_folder, write_text
from lm_validity.monitor import check
from lm_validity.monitor.render import PAGE_MARKS, render_cost, render_matrix, render_page, render_summary
from lm_validity.monitor.status import Estimator, RunState, progress, unplanned_pairs
from lm_validity.run.inputs import check_study, check_tasks, note_changes, study_of
from lm_validity.words import all_findings, count, say, say_markdown

if TYPE_CHECKING:
    from lm_validity.studies.signal.filters.recipe import UnanimousJudge


def register(app: typer.Typer) -> None:
    """Add the commands that begin a study and watch it."""
    for command in (init, config, cost, preflight, status, findings, forget, card):
        app.command()(command)
    app.command(
        "lm-eval",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
        help="Run lm-eval's own command line. `run --model lm-validity` scores with shared contexts.",
    )(lm_eval)
    app.add_typer(filters, name="filter")


def init(folder: Annotated[Path, typer.Argument(help="New folder. Its name becomes the run's.")]) -> None:
    """Write a new study's folder: Snakefile of the installed workflow, configuration, sheets, profiles and a README."""
    from lm_validity.template.folder import make_study

    make_study(folder)
    say(f"{folder}: a new study. Its README.md says what to do next.", *_lacking())


def _lacking() -> list[str]:
    """What the commands of a study's README need and Python does not find."""
    absent = [name for name in ("snakemake", "torch") if find_spec(name) is None]
    if absent:
        return [
            f"Not installed: {' and '.join(absent)}, which its commands need. Install lm-validity[cells] from where "
            "you have the package."
        ]
    return []


def status(
    configfile: Configfile = DEFAULT,
    html: Annotated[Path | None, typer.Option(help="Also write the matrix as a page.")] = None,
    matrix: Annotated[bool, typer.Option(help="Print the matrix of models and benchmarks.")] = True,
    watch: Annotated[float | None, typer.Option(min=1, help="Repeat after this many seconds.")] = None,
) -> None:
    """Say which cells are done, running, failed, stale or missing, and the rate and expected finish. Only reads."""
    if html is not None:
        check_file(html, PAGE_MARKS)
    while True:
        run = load_run(configfile)
        state = RunState(run)
        so_far = progress(state.cells, Estimator(run).seconds)
        say(render_summary(state, so_far))
        if matrix:
            say(render_matrix(state.cells, unplanned_pairs(run)))
        if html is not None:
            write_text(html, render_page(run.name, state, so_far, refresh=watch, folder=html.parent))
            say(html)
        if watch is None or so_far.done == so_far.cells:
            return
        sys.stdout.flush()
        time.sleep(watch)


def config(
    configfile: Configfile = DEFAULT,
    defaults: Annotated[bool, typer.Option("--defaults", help="With the defaults instead, without a run.")] = False,
) -> None:
    """Print every key of a run's configuration with its meaning and value."""
    print(render_defaults() if defaults else render_yaml(load_run(configfile).configuration), end="")


def cost(configfile: Configfile = DEFAULT, calibration: Calibration = None) -> None:
    """Say how many jobs, GPU hours, memory and storage a run is expected to take."""
    run = load_run(configfile)
    check_tasks(run)
    say(render_cost(Estimator(run, map(load_run, calibration or ())), RunState(run)))


def preflight(
    configfile: Configfile = DEFAULT,
    fast: Annotated[bool, typer.Option("--fast", help="Do not check every file's sha256.")] = False,
) -> int:
    """Before you submit: say what is missing, damaged or locked, and what would be computed again because its recipe
    changed. One line each. Damaged cells, and manifests of damaged cells or of another recipe, are removed, so that
    they are made again."""
    sheets = Sheets()
    run = build_run(read_values(configfile), str(configfile), sheets)
    check_study(run.results, study_of(run, configfile, sheets))
    for line in check.recomputed_cells(run):
        say(f"will be computed again: {line}")
    for change in note_changes(run):
        say(f"will be computed again: {change.describe()}")
    problems = [*check.remove_outdated(run), *check.readiness_problems(run), *check.record_problems(run)]
    if not run.configuration.replay:
        from lm_validity.cells.models.prefetch import access_problems

        problems += access_problems(check.unfetched_models(run))
    problems += [*check.repair(run, verify=not fast), *check.damaged_outputs(run)]
    problems += [*check.leases(run, stale=True), *check.orphan_problems(run)]
    for message in [*check.leases(run, stale=False), *problems]:
        say(message)
    verdict = count(len(problems), "problem") if problems else "nothing missing, damaged or locked"
    say(f"{run.name}: {verdict}")
    return 1 if problems else 0


def forget(
    patterns: Annotated[list[str], typer.Argument(help="Shell patterns of rule/model/cell.")],
    configfile: Configfile = DEFAULT,
) -> None:
    """Drop cells from the store, so that they are computed again."""
    for folder in check.forget(load_run(configfile), patterns):
        say(f"forgot {folder}")


def findings(
    site: Annotated[
        Path | None, typer.Argument(help="Folder of a site that `lm-validity report` wrote. Default: the run's.")
    ] = None,
    configfile: Configfile = DEFAULT,
    print_all: Annotated[
        bool, typer.Option("--all", help="Print all findings, then a number with its interval on each line.")
    ] = False,
) -> None:
    """Print where the report is, and what each study found, in at most 12 lines."""
    if site is not None:
        reports, where, hint = site_reports(site), quote(str(site)), "name a folder that `lm-validity report` wrote."
    else:
        run = load_run(configfile)
        site, reports = run.results / "report", report_folders(run)
        where = "" if configfile == DEFAULT else f"--configfile {quote(str(configfile))}"
        hint = "run the workflow to its end; `lm-validity status` says how far it is, with the same --configfile."
    if not (site / "index.html").is_file():
        raise InputError(f"{site / 'index.html'}: it does not exist yet.", hint)
    if not reports:
        raise InputError(f"{site}: no report with findings in it.", hint)
    if print_all:
        say(f"Report: {site / 'index.html'}", *all_findings(reports))
    else:
        say_findings(site, reports, where)


def card(
    benchmarks: Annotated[
        list[str],
        typer.Argument(
            metavar="TASK.yaml | BENCHMARK...", help="YAML file of an lm-eval task, or names of benchmarks."
        ),
    ],
    configfile: Configfile = DEFAULT,
    profile: Annotated[Path | None, typer.Option(help="Snakemake's profile. Default: profiles/local.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Say what would run, but run nothing.")] = False,
    no_code: Annotated[
        bool, typer.Option("--no-code", help="Refuse a task file that names code, before any of it runs.")
    ] = False,
) -> None:
    """Score one new benchmark, given as a task file, on the configured models, and write its card. Given names of
    benchmarks, print their cards from a finished run.

    For a task file, the workflow computes the cells of the new benchmark only. Finished cells of other benchmarks are
    read for the agreement with them. Code that the task file names (`!function`) is run, and said before: read a task
    from somebody else before you score it, or give --no-code.
    """
    if not any(name.endswith((".yaml", ".yml")) for name in benchmarks):
        say_markdown("\n".join(_cards(benchmarks, configfile)))
        return
    from lm_validity.site.own_task import read_own_task, write_own_report, write_run
    from lm_validity.template.folder import SHIPPED

    if len(benchmarks) > 1:
        raise InputError(f"{' '.join(benchmarks)}: more than one task file.", "give one task file at a time.")
    _say_code(Path(benchmarks[0]), refuse=no_code)
    own_task = read_own_task(Path(benchmarks[0]), configfile)
    write_run(own_task)
    say(*own_task.lines())
    local = Path("profiles/local")
    command = snakemake_command(
        "scores",
        *("--snakefile", str(SHIPPED / "workflow" / "Snakefile")),
        *("--profile", str(profile or (local if local.is_dir() else SHIPPED / local))),
        *("--configfile", str(own_task.configfile)),
        *(("--dry-run", "--quiet", "rules") if dry_run else ()),
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # rules start lm-validity by name
    os.environ["PATH"] = path
    code = run_to_its_end(command)
    if code:
        raise typer.Exit(code)
    if not dry_run:
        say(*write_own_report(own_task))


def _say_code(task: Path, *, refuse: bool) -> None:
    """Say which code a task file has lm-eval run, before it runs. Raises InputError where it is to be refused."""
    from lm_validity.run.scoring import named_code

    code = named_code(task) if task.is_file() else []
    if code and refuse:
        raise InputError(f"{task}: it names code: {', '.join(code)}.", "read it, and leave out --no-code to run it.")
    if code:
        say(f"Code that this task runs on this machine: {', '.join(code)}.")


def _cards(benchmarks: list[str], configfile: Path) -> list[str]:
    """The Markdown of cards in the run's site. Raises InputError for one that is not there."""
    from lm_validity.site.cards.card import FOLDER, folder_name

    run = load_run(configfile)
    cards = []
    for name in benchmarks:
        if name not in run.benchmarks:
            hint = did_you_mean(name, run.benchmarks, f"its benchmarks: {', '.join(run.benchmarks) or 'none'}.")
            hint = "a task of your own is an lm-eval file, TASK.yaml." if Path(name).exists() else hint
            raise InputError(f"{configfile}: no benchmark {name!r} in this run.", hint)
        path = run.results / "report" / FOLDER / folder_name(name) / "card.md"
        if not path.is_file():
            hint = f"run the workflow first: snakemake --profile profiles/local --configfile {configfile}."
            raise InputError(f"{path}: no card of {name!r}.", hint)
        cards.append(path.read_text(encoding="utf-8"))
    return cards


# ----------------------------------------------------------------------------------------------------------------------
# lm-eval's own command line.


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
    from lm_validity.studies.signal.filters.recipe import Tables, apply_recipe, read_recipe

    tables = Tables(items, documents, models)
    for line in apply_recipe(read_recipe(recipe, _make_judge), output, tables, controls, seed):
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
