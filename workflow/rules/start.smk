"""What happens when a run starts and when it fails, as the workflow itself and as a module of another one."""

import os


def start_run():
    """Write down what the jobs read, the merged configuration and the sheets, and which Snakemake drives the run."""
    values = load.key_values(RUN.configuration)
    values["results"] = str(Path(PLACE).parent)
    try:
        source = [*workflow.configfiles, values["name"]][0]
        for name, text in (
            (load.PLANNED_SHEETS, json_text(SHEETS.texts)),
            ("configuration.json", json_text(values)),
            (inputs.STUDY, json_text(inputs.study_of(RUN, source, SHEETS))),
        ):
            path = Path(PLACE, name)
            if not path.is_file() or path.read_bytes() != text.encode():
                write_text(path, text)
        status.record_controller(Path(PLACE))
    except OSError as error:
        raise WorkflowError(
            f"{PLACE}: the run cannot start, since what it was planned with cannot be written ({error.strerror}). "
            "Hint: free space there, or choose another folder with `results`."
        )


def is_locked():
    """Whether a Snakemake that has a lock makes files of this run: this one is about to stop and say so."""
    locks = Path(".snakemake/locks").glob("*.output.lock")
    return any(line.startswith(f"{PLACE}/") for lock in locks for line in lock.open())


STARTED = []


def configfile_of_module(wildcards):
    """params: the configuration's place. Snakemake runs no `onstart` of a module, so the first job to be looked at
    starts the run; nothing does in a dry run, nor where Snakemake only shows something.
    """
    executor = workflow.executor_plugin
    runs = executor is not None and not executor.common_settings.dryrun_exec
    if runs and workflow.is_main_process and not STARTED and not is_locked():
        STARTED.append(True)
        start_run()
    return f"{PLACE}/configuration.json"


# The configuration as merged, written when a run starts (never by a dry run); the jobs read this file.
CONFIGFILE = configfile_of_module if IS_MODULE else f"{PLACE}/configuration.json"


def say_what_is_left(folder, dry):
    """The last lines of a dry run in `folder`, which counts jobs and knows nothing of cells and hours; of every run:
    the finished cells of another recipe that it leaves. A run that checks its cells has named them.
    """
    jobs, is_planned = planned_jobs(), workflow.dag is not None
    if not dry and (
        not is_planned or any(job.rule.name == "check_cells" for job in jobs)
    ):
        return
    from lm_validity.monitor.render import render_left, render_stale

    os.chdir(folder)  # Snakemake has gone back from --directory
    try:
        state = status.RunState(RUN)
        lines = [
            f"{render_left(status.Estimator(RUN), state, asked_again(jobs))} (lm-validity cost)"
        ] * dry
        named = os.path.relpath(workflow.configfiles[-1])
        lines += [render_stale(state, cell_jobs(jobs).values(), named)] * is_planned
    except (InputError, OSError) as error:
        lines = [f"not known what is left ({error})"]
    for line in filter(None, lines):
        print(f"{RUN.name}: {line}", file=sys.stderr)


def planned_jobs():
    """The jobs that this Snakemake plans, finished ones too."""
    return (
        list(workflow.dag.needrun_jobs(exclude_finished=False)) if workflow.dag else []
    )


def cell_jobs(jobs):
    """Those that compute cells, as the grid knows them, by their ids."""
    return {
        job.jobid: job_of(job.rule.name, job.wildcards)
        for job in jobs
        if job.rule.name in RULES
    }


def asked_again(jobs):
    """The jobs of cells that a dry run plans, where it plans to read models or documents anew too: only then is known
    whether their finished cells are still of the present recipe."""
    read_anew = any(re.match("prefetch_|split_", job.rule.name) for job in jobs)
    return cell_jobs(jobs).values() if read_anew else []


# Snakemake has nothing that is called at the end of a dry run, nor where nothing is to be done.
if workflow.is_main_process and not IS_MODULE:
    dry_run = re.compile(r"--dry-?run|-[a-z]*n[a-z0-9]*")
    atexit.register(
        say_what_is_left, os.getcwd(), any(map(dry_run.fullmatch, sys.argv[1:]))
    )


onstart:
    from lm_validity.monitor.render import draw_bar

    gc.enable()
    start_run()
    quiet = workflow.output_settings.quiet or ()
    draw_bar(logger, RUN, cell_jobs(planned_jobs()), quiet)


# Of a module, Snakemake runs this only where the other workflow's own `onerror` calls it: <module's name>.onerror().
onerror:
    written = f"{PLACE}/configuration.json"
    said = []  # what failed comes last, though it is found first
    for command in ("check-cells --after-error", "partial-reports --without-items"):
        lines = shell(
            "lm-validity {command} --configfile {written:q} 2>&1 || true",
            iterable=True,
        )
        said = [*lines, *said]
    for job in sorted(workflow.scheduler.failed, key=lambda job: job.jobid):
        ends = [
            f"{status.last_lines(path)[-1].strip()} ({path})" for path in job.log
        ]
        said.append(": ".join([f"failed job: {job.rule.name}", *ends]))
    # by the logger: what is printed beside it is lost behind the bar of a terminal
    for line in said:
        logger.info(line)
