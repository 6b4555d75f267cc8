"""Commands of a study of one's own: its folder, what it takes, how it stands, what it found, which cells it plans; and
tools beside it, item filters and lm-eval's own command line."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

import typer

from lm_validity.cli import app as root
from lm_validity.cli import options
from lm_validity.cli.options import DEFAULT, command
from lm_validity.config import load
from lm_validity.config.load import PlannedCell, Run, load_run, read_values
from lm_validity.config.rows import Sheets
from lm_validity.errors import InputError, did_you_mean
from lm_validity.files import check_file, check_folder, replaced_folder, write_text
from lm_validity.monitor import check, render
from lm_validity.monitor.status import Estimator, RunState, progress, total, training_costs, unplanned_pairs
from lm_validity.plans import drawing
from lm_validity.run.inputs import check_study, check_tasks, note_changes, study_of
from lm_validity.run.rules.base import Participants
from lm_validity.run.workspace import Workspace
from lm_validity.words import all_findings, count, listing, say, say_markdown

if TYPE_CHECKING:
    from lm_validity.plans.rounds import Goal, Round
    from lm_validity.studies.signal.filters.recipe import UnanimousJudge


@command(root)
def init(folder: Path) -> None:
    """Write a new study's folder: Snakefile of the installed workflow, configuration, sheets, profiles and a README."""
    from lm_validity.template.folder import make_study

    make_study(folder)
    say(f"{folder}: a new study. Its README.md says what to do next.")
    if lacking := [name for name in ("snakemake", "torch") if find_spec(name) is None]:
        say(
            f"Not installed: {' and '.join(lacking)}, which its commands need. Install lm-validity[cells] from where "
            "you have the package."
        )


@command(root)
def status(configfile: Path = DEFAULT, html: Path | None = None, matrix: bool = True) -> None:
    """Say which cells are done, running, failed, stale or missing, and the rate and expected finish. Only reads."""
    if html is not None:
        check_file(html, render.PAGE_MARKS)
    run = load_run(configfile)
    state = RunState(run)
    so_far = progress(state.cells, Estimator(run).seconds)
    say(render.render_summary(state, so_far))
    if matrix:
        say(render.render_matrix(state.cells, unplanned_pairs(run)))
    if html is not None:
        write_text(html, render.render_page(run.name, state, so_far, html.parent))
        say(html)


@command(root)
def config(configfile: Path = DEFAULT, defaults: bool = False) -> None:
    """Print every key of a run's configuration with its meaning and value."""
    print(load.render_defaults() if defaults else load.render_yaml(load_run(configfile).configuration), end="")


@command(root)
def cost(configfile: Path = DEFAULT, calibration: list[Path] | None = None) -> None:
    """Say how many jobs, GPU hours, memory and storage a run is expected to take."""
    run = load_run(configfile)
    check_tasks(run)
    say(render.render_cost(_estimator(run, calibration), RunState(run)))


def _estimator(run: Run, calibration: Iterable[Path] | None) -> Estimator:
    """What cells of the run cost, by its finished ones and those of other configurations."""
    return Estimator(run, map(load_run, calibration or ()))


@command(root)
def preflight(configfile: Path = DEFAULT, fast: bool = False) -> int:
    """Before you submit: say what is missing, damaged or locked, and what would be computed again because its recipe
    changed. One line each. Damaged cells, and manifests of damaged cells or of another recipe, are removed, so that
    they are made again."""
    sheets = Sheets()
    run = load.build_run(read_values(configfile), str(configfile), sheets)
    check_study(run.results, study_of(run, configfile, sheets))
    for line in (*check.recomputed_cells(Workspace(run)), *(change.describe() for change in note_changes(run))):
        say(f"will be computed again: {line}")
    problems = [*check.remove_outdated(run), *check.readiness_problems(run), *check.record_problems(run)]
    if not run.configuration.replay:
        from lm_validity.cells.models.prefetch import access_problems

        problems += access_problems(check.unfetched_models(run))
    problems += [*check.repair(run, verify=not fast), *check.damaged_outputs(run)]
    problems += [*check.leases(run, stale=True), *check.orphan_problems(run)]
    verdict = count(len(problems), "problem") if problems else "nothing missing, damaged or locked"
    say(*check.leases(run, stale=False), *problems, f"{run.name}: {verdict}")
    return 1 if problems else 0


@command(root)
def forget(patterns: list[str], configfile: Path = DEFAULT) -> None:
    """Drop cells from the store, so that they are computed again."""
    for folder in check.forget(load_run(configfile), patterns):
        say(f"forgot {folder}")


@command(root)
def findings(site: Path | None = None, configfile: Path = DEFAULT, print_all: bool = False) -> None:
    """Print where the report is, and what each study found, in at most 12 lines."""
    if site is not None:
        reports, where = options.site_reports(site), quote(str(site))
        hint = "name a folder that `lm-validity report` wrote."
    else:
        run = load_run(configfile)
        site, reports = run.results / "report", options.report_folders(run)
        where = "" if configfile == DEFAULT else f"--configfile {quote(str(configfile))}"
        hint = "run the workflow to its end; `lm-validity status` says how far it is, with the same --configfile."
    if not (site / "index.html").is_file():
        raise InputError(f"{site / 'index.html'}: it does not exist yet.", hint)
    if not reports:
        raise InputError(f"{site}: no report with findings in it.", hint)
    if print_all:
        say(f"Report: {site / 'index.html'}", *all_findings(reports))
    else:
        options.say_findings(site, reports, where)


# ----------------------------------------------------------------------------------------------------------------------
# `lm-validity card …`


@command(root)
def card(
    benchmarks: list[str], configfile: Path = DEFAULT, profile: Path | None = None, dry_run: bool = False,
    no_code: bool = False,
) -> None:  # fmt: skip
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
    program = options.snakemake_command(
        "scores",
        *("--snakefile", str(SHIPPED / "workflow" / "Snakefile")),
        *("--profile", str(profile or (local if local.is_dir() else SHIPPED / local))),
        *("--configfile", str(own_task.configfile)),
        *(("--dry-run", "--quiet", "rules") if dry_run else ()),
    )
    # rules start lm-validity by name
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    if code := run_to_its_end(program):
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
# `lm-validity plan …`: which models are fine-tuned on which benchmarks, first from expected cost and before any score,
# then in rounds by what was measured.

NAMED = 6  # benchmarks listed where some were not counted
plans = typer.Typer(
    cls=options.WholeHelp, invoke_without_command=True, subcommand_metavar="[COMMAND [ARGS]...]", rich_markup_mode=None
)
root.add_typer(plans, name="plan")


@plans.callback()
@options.described
def plan(
    context: typer.Context, configfile: Path = DEFAULT,
    design: Literal["cheap-and-block", "balanced"] = "cheap-and-block", cells: Path | None = None,
    audit: int | None = None, budget: float | None = None, seed: int = 0, output: Path | None = None,
    calibration: list[Path] | None = None,
) -> None:  # fmt: skip
    """Write the sheet of cells to fine-tune, and say what it costs and saves. If the configuration already has a plan,
    --cells and --audit add a round to it."""
    if context.invoked_subcommand is not None:
        sources = ((name, context.get_parameter_source(name)) for name in context.params)
        for name in (name for name, source in sources if source is not None and source.name == "COMMANDLINE"):
            program = f"plan {context.invoked_subcommand}"
            raise InputError(f"--{name} comes before the subcommand of `{program}`.", f"write {program} --{name} ...")
        return
    if sum((cells is not None, audit is not None, budget is not None)) > 1:
        raise InputError("--cells, --audit and --budget exclude each other.", "give only one.")
    run = load_run(configfile)
    if audit is not None and run.plan is None:
        raise InputError(
            f"--audit {audit}: {configfile} has no plan, and an audit adds to one.",
            "make the first plan with `lm-validity plan`, and name it under plan.",
        )
    path = drawing.check_place(run, configfile, output, adds_a_round=cells is not None or audit is not None)
    estimator = _estimator(run, calibration)
    costs, earlier = training_costs(estimator), run.plan or {}
    if cells is not None:
        added = drawing.listed_cells(run, cells)
    elif audit is not None:
        added = drawing.audit(costs, earlier, audit, seed, run.ruled_out)
    else:
        added = drawing.first_plan(estimator, costs, design, seed, budget)
    planned = [*earlier.values(), *added]
    lines = [f"{path}: {len(planned):,} of {len(costs):,} pairs of model and benchmark, {len(added):,} of them new"]
    reasons = [cell.reason for cell in added]
    lines += [f"  {reason}: {reasons.count(reason):,}" for reason in dict.fromkeys(reasons)]
    lines.append(render.describe_savings(estimator, [(cell.model, cell.benchmark) for cell in planned]))
    lines += render.warnings_of(estimator)
    _write_plan(run, configfile, path, planned, lines)


def _write_plan(run: Run, configfile: Path, path: Path, planned: Sequence[PlannedCell], lines: Iterable[str]) -> None:
    """Write the plan and print lines on it, the last one where the configuration does not name it."""
    drawing.write_plan(path, planned, run)
    say(*lines)
    if not drawing.is_plan_of(run, path):
        say(f"Set `plan: {path}` in {configfile}.")


@command(plans, "next")
def next_round(goal: str | None = None, configfile: Path = DEFAULT, calibration: list[Path] | None = None) -> None:
    """Add a round, and say why. Agreement study, with --goal: the unmeasured cells that make the ranks most certain for
    the fewest hours. They count towards ranks, not towards agreement. Bias study, if tasks stop on the width of their
    interval: a batch of subsamples for the tasks whose interval is too wide."""
    _add_rounds(configfile, _goal(goal), calibration)


def _goal(goal: str | None) -> "Goal | None":
    from lm_validity.plans.rounds import parse_goal

    return None if goal is None else parse_goal(goal)


@command(plans, "run")
def run_rounds(
    goal: str | None = None, arguments: list[str] | None = None, configfile: Path = DEFAULT, seed: int = 0,
    calibration: list[Path] | None = None,
) -> None:  # fmt: skip
    """Run the workflow, add a round as `plan next` does, and repeat until there is nothing to add. If the
    configuration's `plan` names a file that does not exist yet, write the first plan to it. A second call continues."""
    target, further = _goal(goal), tuple(arguments or ())
    options.snakemake_command()  # which says so where it is not installed
    for word in (word for word in further if word.startswith(("-n", "--dry", "--unlock"))):
        raise InputError(f"{word}: nothing is computed with it, and a round depends on results.", "leave it out.")
    if target is None:
        _load_what_goes_on(configfile, target)
    else:
        _plan_first(configfile, target, seed, calibration, further)
    while True:
        _run_workflow(configfile, *further)
        chosen_round, added = _add_rounds(configfile, target, calibration)
        if added:
            continue
        if chosen_round is not None and not chosen_round.reached:
            sys.exit(1)
        return


@command(plans, "add-model")
def add_model(
    model: str, goal: str | None = None, configfile: Path = DEFAULT, output: Path | None = None,
    calibration: list[Path] | None = None,
) -> None:  # fmt: skip
    """Say which few cells place a new model among those of a finished study, at what cost, and with what interval. With
    --goal, these cells become a round of the plan."""
    from lm_validity.plans import rounds

    target = _goal(goal)
    if target is not None and target.kind == "tau":
        raise InputError(f"--goal {goal}: one model cannot be ranked.", "write rank=2 or budget=5.")
    run = load_run(configfile)
    earlier = rounds.earlier_cells(run, model)
    path = None if target is None else drawing.check_place(run, configfile, output, adds_a_round=True)
    joining = rounds.place_model(run, model, training_costs(_estimator(run, calibration)))
    say(*rounds.describe_joining(joining))
    if path is None or target is None:
        return
    say(rounds.describe_cells(joining, target))
    if cells := rounds.joining_cells(joining, target, earlier):
        line = f"{path}: {count(len(cells), 'cell')} of {model} added as round {cells[0].round}"
        _write_plan(run, configfile, path, [*earlier.values(), *cells], [line])


def _plan_first(
    configfile: Path, goal: "Goal", seed: int, calibration: Iterable[Path] | None, further: tuple[str, ...]
) -> None:
    """Write the first round, unless it is there. Documents are counted before, so that cheap benchmarks are known."""
    import yaml

    values = read_values(configfile)
    path = values.get("plan") if isinstance(values, dict) else None
    if not isinstance(values, dict) or not isinstance(path, str) or not path:
        raise InputError(
            f"{configfile}: key 'plan' names no file.", "set `plan: plan.tsv`. The plan will be written there."
        )
    if Path(path).is_file():
        return
    unplanned = values | {"plan": None}
    run = load.build_run(unplanned, str(configfile))
    copy = run.results / "unplanned.yaml"
    write_text(copy, yaml.safe_dump(unplanned))
    _run_workflow(copy, "prefetch", *further)
    _check_counted(run)
    estimator = _estimator(run, calibration)
    costs = training_costs(estimator)
    cells = drawing.first_plan(estimator, costs, "cheap-and-block", seed, None)
    if goal.kind == "budget" and total(costs, ((cell.model, cell.benchmark) for cell in cells)) > goal.value:
        cells = drawing.first_plan(estimator, costs, "cheap-and-block", seed, goal.value)
    drawing.write_plan(Path(path), cells, run)
    say(f"{path}: round 1, {len(cells):,} of {len(costs):,} pairs of model and benchmark")


def _check_counted(run: Run) -> None:
    """Raises InputError where Snakemake ended well and benchmarks have no record: it was asked for something else than
    to run the workflow (--summary, --lint, --touch, --dag), and cheap benchmarks cannot be told from costly ones."""
    folder = run.results / "prefetch" / "benchmarks"
    missing = [name for name in Participants(run).used_benchmarks if not (folder / f"{name}.json").is_file()]
    if missing:
        raise InputError(
            f"{folder}: Snakemake ended well, but documents of {count(len(missing), 'benchmark')} are not counted "
            f"({listing(missing, NAMED)}), so no plan was written.",
            "leave out options with which Snakemake does not run the workflow, such as -n.",
        )


def _run_workflow(configfile: Path, *further: str) -> None:
    if code := run_to_its_end(options.snakemake_command(*further, "--configfile", str(configfile))):
        sys.exit(code)


def run_to_its_end(program: Sequence[str]) -> int:
    """Run a command; its exit code, 128 + number where a signal ended it, or came here and it ended with 0.

    Ctrl-C reaches the command too, which may take a while to stop its jobs: it is waited for. (`subprocess.run` would
    kill it after a quarter of a second.) SIGTERM is passed on to it.
    """
    received: list[int] = []
    with subprocess.Popen(program) as process:

        def pass_on(number: int, frame: object) -> None:
            received.append(number)
            if number == signal.SIGTERM:
                process.send_signal(number)

        handlers = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            code = process.wait()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    if code == 0 and received:
        return 128 + received[0]
    return 128 - code if code < 0 else code


def _add_rounds(
    configfile: Path, goal: "Goal | None", calibration: Iterable[Path] | None
) -> "tuple[Round | None, int]":
    """(the agreement study's round, if a goal is given; how many rows the plans of all studies got)."""
    from lm_validity.plans import rounds

    run, chosen_round, added = _load_what_goes_on(configfile, goal), None, 0
    if goal is not None:
        path = rounds.plan_place(run, configfile)
        standing = rounds.standing_of(run)
        assert run.plan is not None, "plan_place has seen to it"
        rounds.check_finished(standing, run.plan)
        chosen_round = rounds.choose_round(standing, goal, training_costs(_estimator(run, calibration)))
        if chosen_round.cells:
            drawing.write_plan(path, [*run.plan.values(), *chosen_round.cells], run)
        added = len(chosen_round.cells)
        say(*rounds.describe_round(chosen_round))
    if run.bias_plan is not None:
        lines, rows = rounds.add_batch(run)
        added += rows
        say(*lines)
    return chosen_round, added


def _load_what_goes_on(configfile: Path, goal: "Goal | None") -> Run:
    """The run. Raises InputError where no study in it goes on: before the workflow, which may take days."""
    run = load_run(configfile)
    if goal is None and run.bias_plan is None:
        raise InputError(
            f"{configfile}: no study in it continues without a goal.",
            "give --goal for a plan of the agreement study, or set bias.stop_at_half_width.",
        )
    return run


# ----------------------------------------------------------------------------------------------------------------------
# lm-eval's own command line.


@root.command(
    "lm-eval",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    help="Run lm-eval's own command line. `run --model lm-validity` scores with shared contexts.",
)
def lm_eval(context: typer.Context) -> None:
    """Hand the arguments to lm-eval's own command line, after registering the model `lm-validity`."""
    from lm_eval.__main__ import cli_evaluate

    import lm_validity.cells.models.scorer  # noqa: F401 (registers the model)

    sys.argv = ["lm-eval", *context.args]
    cli_evaluate()


# ----------------------------------------------------------------------------------------------------------------------
# `lm-validity filter …`: choose items of a benchmark, and judge the choice where it was not made.

filters = options.make_group("Filter a benchmark's items, and judge the filter on models it did not see.")
root.add_typer(filters, name="filter")


@command(filters)
def apply(
    recipe: Path, output: Path, items: Path | None = None, documents: Path | None = None, models: Path | None = None,
    controls: int = 200, seed: int = 0,
) -> None:  # fmt: skip
    """Run a recipe's filters. Write the kept ids, an lm-eval task, and how well the filters work on other models."""
    from lm_validity.studies.signal.filters.recipe import Tables, apply_recipe, read_recipe

    tables = Tables(items, documents, models)
    say(*apply_recipe(read_recipe(recipe, _make_judge), output, tables, controls, seed))


@command(filters)
def leakage(documents: Path) -> None:
    """Say how often the gold answer, or a distractor, appears in its question's prompt or examples."""
    from lm_validity.studies.signal.filters.kinds import leakage_rates
    from lm_validity.tables.items import read_documents

    rates = leakage_rates(read_documents(documents))
    say(f"gold answers in the prompt: {rates.gold:.4f}; distractors: {rates.distractors:.4f}; {rates.items} items")
    if rates.examples == rates.examples:  # NaN without whole prompts
        say(f"gold answers in the examples before it: {rates.examples:.4f}")


@command(filters)
def align(
    documents: Path, output: Path, model: str, url: str | None = None, key_variable: str | None = None,
    dtype: str = "bfloat16", device: str = "cpu", items: int = 50, seed: int = 0,
) -> None:  # fmt: skip
    """Say what share of randomly drawn questions a language model accepts as asking for domain knowledge."""
    from lm_validity.files import write_json
    from lm_validity.studies.signal.filters.recipe import alignment
    from lm_validity.tables.items import read_documents

    settings = {"model": model, "url": url, "key_variable": key_variable, "dtype": dtype, "device": device,
                "cache": output / "verdicts.jsonl"}  # fmt: skip
    judge = _make_judge({key: value for key, value in settings.items() if value is not None})
    check_folder(output, "filter align", inputs=[documents], names=["alignment.json"])
    result = alignment(read_documents(documents), judge, items, seed)
    low, high = result.interval
    record = {"accepted": result.accepted, "interval": [low, high], "items": result.items, "judge": model}
    with replaced_folder(output, "filter align", inputs=[documents]) as folder:
        write_json(folder / "alignment.json", record)
    say(f"accepted: {result.accepted:.3f} [{low:.3f}, {high:.3f}] of {result.items} items")


def _make_judge(settings: dict[str, Any]) -> "UnanimousJudge":
    """The unanimous judge of a recipe's `llm_judge` step: an endpoint where `url` is given, else a local
    model."""
    from lm_validity.studies.signal.filters.recipe import JUDGE_SETTINGS, EndpointJudge, Judge, UnanimousJudge

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
            from lm_validity.cells.workers import LocalJudge

            judge = LocalJudge(settings.pop("model"), **{"dtype": "bfloat16", **settings})
    except TypeError as error:
        raise InputError(f"llm_judge: {error}.", f"its settings are {', '.join(JUDGE_SETTINGS)}.") from error
    return UnanimousJudge(judge, name, cache, promptings)
