"""The rules' shell lines: one job of cells, or one step before them. Each can be pasted by a person."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from lm_validity.cli.configfile import DEFAULT, Configfile
from lm_validity.config.load import Run, load_planned_run
from lm_validity.errors import InputError, did_you_mean
from lm_validity.files import write_json
from lm_validity.run.participants import kind_label
from lm_validity.run.rules import RULES
from lm_validity.run.rules.base import Rule

RowT = TypeVar("RowT")

ModelId = Annotated[str, typer.Option("--model", help="Id in the models sheet.")]
LanguageModelId = Annotated[str, typer.Option("--language-model", help="Id in the sheet of language models.")]
TaskId = Annotated[str, typer.Option("--task", help="Id in the bias study's sheet of tasks.")]
BenchmarkId = Annotated[str, typer.Option("--benchmark", help="Id in the benchmarks sheet.")]
Batch = Annotated[str, typer.Option(help="The job's batch, as `snakemake -n` names it.")]


def register(app: typer.Typer) -> None:
    """Add this module's subcommands."""
    prefetches = (prefetch_model, prefetch_benchmark, prefetch_language_model, prefetch_task)
    for command in (*prefetches, split_benchmark, *_job_commands()):
        app.command()(command)


def prefetch_model(model: ModelId, configfile: Configfile = DEFAULT) -> None:
    """Fetch a model at a pinned revision, or take a local folder, and record its digest."""

    run = _load(configfile)
    row = _row(run.models, model, "model", run.configuration.models)
    if run.configuration.replay:
        from lm_validity.cells.runner import model_record

        record = model_record(run, row)
    else:
        _try_hub(needed=not row.is_local)
        from lm_validity.cells.models.prefetch import prefetch_model as prefetch

        record = prefetch(row, chat="chat" in run.configuration.evaluation.instruction_tuned_prompts)
    write_json(run.results / "prefetch" / "models" / f"{model}.json", record)


def prefetch_benchmark(benchmark: BenchmarkId, configfile: Configfile = DEFAULT) -> None:
    """Find a benchmark's lm-eval task, fetch its data set, prove that it loads."""

    run = _load(configfile)
    row = _row(run.benchmarks, benchmark, "benchmark", run.configuration.benchmarks)
    if run.configuration.replay:
        from lm_validity.cells.runner import benchmark_record

        record = benchmark_record(run, row)
    else:
        _try_hub(needed=not (row.include_path or row.corpus))
        from lm_validity.cells.tasks.splits import prefetch_benchmark as prefetch

        record = prefetch(row)
    write_json(run.results / "prefetch" / "benchmarks" / f"{benchmark}.json", record)


def prefetch_language_model(language_model: LanguageModelId, configfile: Configfile = DEFAULT) -> None:
    """Fetch a language model of the bias study at a pinned revision, or take a local folder."""
    from lm_validity.cells.trials import worker as trial_worker

    run = _load(configfile)
    _row(run.language_models, language_model, "language model", "the bias study's sheet")
    record = trial_worker.prefetch_language_model(run, language_model)
    write_json(run.results / "prefetch" / "language_models" / f"{language_model}.json", record)


def prefetch_task(task: TaskId, configfile: Configfile = DEFAULT) -> None:
    """Read a text-classification task of the bias study, check it against the sheet, keep its texts."""
    from lm_validity.cells.trials import worker as trial_worker

    run = _load(configfile)
    _row(run.tasks, task, "task", "the bias study's sheet")
    write_json(run.results / "prefetch" / "tasks" / f"{task}.json", trial_worker.prefetch_trial_task(run, task))


def split_benchmark(benchmark: BenchmarkId, configfile: Configfile = DEFAULT) -> None:
    """Divide a benchmark's documents into train, validation and test, disjoint by construction."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from lm_validity.cells.runner import write_splits
    from lm_validity.run.workspace import Workspace

    run = _load(configfile)
    _row(run.benchmarks, benchmark, "benchmark", run.configuration.benchmarks)
    write_splits(Workspace(run), benchmark)


def _try_hub(*, needed: bool) -> None:
    """Ask once whether the hub can be reached. Where it cannot, its libraries look into their caches only: they would
    try again for 20 seconds for each data set. To be called before they are imported."""
    if not needed or "HF_HUB_OFFLINE" in os.environ:
        return
    from urllib.error import HTTPError
    from urllib.request import urlopen

    try:
        urlopen(os.environ.get("HF_ENDPOINT", "https://huggingface.co"), timeout=10).close()
    except HTTPError:
        pass  # it answers
    except OSError as error:
        print(f"The hub cannot be reached ({error}). Only local copies are used.", file=sys.stderr)
        os.environ["HF_HUB_OFFLINE"] = "1"


def _job_commands() -> list[Callable[..., None]]:
    """One command per rule that computes cells; they differ in the name of the command, its help and the sheet."""
    return [_make_command(rule) for rule in RULES.values()]


def _make_command(rule: Rule[Any, Any]) -> Callable[..., None]:
    def of_model(model: ModelId, batch: Batch, configfile: Configfile = DEFAULT) -> None:
        _run_job(rule, model, batch, configfile)

    def of_language_model(language_model: LanguageModelId, batch: Batch, configfile: Configfile = DEFAULT) -> None:
        _run_job(rule, language_model, batch, configfile)

    command = {"models": of_model, "language_models": of_language_model}[rule.sheet]
    command.__name__, command.__doc__ = rule.name, rule.summary
    return command


def _run_job(rule: Rule[Any, Any], model: str, batch: str, configfile: Path) -> None:
    # compute nodes have no network, and a job that finds one must not use it
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # a time limit or scancel ends the process in an orderly way: leases are given back
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    from lm_validity.cells.runner import run_job
    from lm_validity.run.workspace import Workspace

    run = _load(configfile)
    sheets = {"models": run.configuration.models, "language_models": "the bias study's sheet"}
    _row(getattr(run, rule.sheet), model, kind_label(rule.sheet), sheets[rule.sheet])
    workspace = Workspace(run)
    try:
        job = workspace.grid.job(rule.name, model, batch)
    except KeyError:
        batches = [job.batch for job in workspace.grid.jobs.values() if (job.rule, job.model) == (rule.name, model)]
        raise InputError(
            f"{configfile}: {rule.name} of {model} has no batch {batch!r}.",
            did_you_mean(batch, batches, f"it has {batches[:5]}."),
        ) from None
    run_job(workspace, job)


def _load(configfile: Path) -> Run:
    """The run; from here on the job's log goes to stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("lm_validity").setLevel(logging.INFO)
    return load_planned_run(configfile)


def _row(rows: Mapping[str, RowT], identifier: str, kind: str, sheet: str | None) -> RowT:

    if identifier not in rows:
        raise InputError(f"{sheet}: no {kind} {identifier!r}.", did_you_mean(identifier, rows, "check the sheet."))
    return rows[identifier]
