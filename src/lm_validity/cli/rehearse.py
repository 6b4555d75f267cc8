"""Subcommand `rehearse`: do the models of a run fit their GPUs, and what is their work? Asked without a GPU."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from lm_validity.cli.configfile import DEFAULT, Configfile
from lm_validity.config.load import Run, load_run
from lm_validity.errors import PREFETCH, InputError, first_line

if TYPE_CHECKING:
    from lm_validity.config.sheets import Model
    from lm_validity.run.rehearsals import Rehearsal


def register(app: typer.Typer) -> None:
    """Add this module's subcommands."""
    app.command()(rehearse)


def rehearse(
    configfile: Configfile = DEFAULT,
    model: Annotated[list[str] | None, typer.Option(help="Only these models.")] = None,
) -> None:
    """Run every model's work at full size on a fake GPU: say which micro-batch fits, or what to change. Exit 2
    if a model cannot be run as configured."""
    from lm_validity.run.rehearsals import memory_problem, question_of, read_rehearsal, rehearsed_models

    run = load_run(configfile)
    known = [row.model for row in rehearsed_models(run)]
    unknown = [name for name in model or () if name not in known]
    if unknown:
        raise InputError(f"--model {unknown[0]}: not a model of this run.", f"choose one of {', '.join(known)}.")
    for line in rehearse_run(run, model):
        print(line, flush=True)
    rows = [row for row in rehearsed_models(run) if not model or row.model in model]
    found = [(row, read_rehearsal(run, row)) for row in rows]
    failed = [row.model for row, known in found if known is None and question_of(run, row) is not None]
    if failed:
        raise InputError(f"{', '.join(failed)}: not rehearsed, see above.", "correct the model's row, or leave it out.")
    problems = [one for row, known in found if known is not None for one in memory_problem(run, row, known)]
    if problems:
        rest = f" ({len(problems) - 1} more, above)" if len(problems) > 1 else ""
        raise InputError(f"{problems[0].where}: {problems[0].what}{rest}.", f"{problems[0].action}.")


def rehearse_run(run: Run, only: list[str] | None = None) -> Iterator[str]:
    """A line for each model; what nobody has asked yet is rehearsed first, and kept. A model that cannot be run has its
    line too."""
    from dataclasses import asdict

    from lm_validity.files import write_json
    from lm_validity.run.rehearsals import question_of, read_rehearsal, rehearsal_path, rehearsed_models

    for row in rehearsed_models(run):
        if only and row.model not in only:
            continue
        question = question_of(run, row)
        if question is None:
            yield f"{row.model}: not rehearsed, its config.json is not here; run {PREFETCH} first"
            continue
        found = read_rehearsal(run, row)
        if found is None:
            from lm_validity.cells.rehearsal.rehearse import rehearse as ask

            try:
                found = ask(f"model {row.model!r}", question)
            except Exception as error:  # no causal model, a bug on GPUs, or an operation that cannot be faked
                unforeseen = f"{type(error).__name__}: {first_line(error)[:200]}"
                what = error.problem if isinstance(error, InputError) else unforeseen
                yield f"{row.model}: FAILS on the fake GPU ({what})"
                continue
            write_json(rehearsal_path(run, question), asdict(found))
        yield _line(run, row, found)


def _line(run: Run, row: "Model", found: "Rehearsal") -> str:
    from lm_validity.run.rehearsals import checkpoints_activations, judge, needed_gb

    verdict, details = judge(run, row, found), found.details
    words = [f"{row.model}: {found.parameters / 1e9:.2f}B parameters"]
    if found.refused:
        words.append(f"CANNOT BE FINE-TUNED: {found.refused}")
    if found.training:
        peaks = found.checkpointed if checkpoints_activations(run, row) else found.training
        listed = ", ".join(f"{needed_gb(peak):.1f} at {rows}" for rows, peak in sorted(peaks.items()))
        words.append(f"training takes {listed} rows per pass (GB)")
    words.append(f"scoring a full batch {needed_gb(found.scoring):.1f} GB")
    if verdict.available and verdict.fits:
        at = f" at micro-batch {verdict.micro_batch}" if verdict.micro_batch else ""
        words.append(f"fits{at} on {row.size_class!r} ({verdict.available:g} GB); smallest: {verdict.smallest_class}")
    elif verdict.available:
        words.append(f"DOES NOT FIT {row.size_class!r} ({verdict.available:g} GB): {verdict.advice}")
    else:
        words.append(f"size class {row.size_class!r} has no GPU")
    if details["config"] != "config.json":
        words.append(f"unverified: {details['config']}")
    return "; ".join(words)
