"""Shared by the rules. The run, its grid, and small functions from wildcards to files and settings.

Parsed by every job on a cluster: standard library and pydantic only, no pandas, no network.
"""

import atexit
import gc
import glob
import hashlib
import re
import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

try:
    from lm_validity.config import load
    from lm_validity.config.rows import Sheets
    from lm_validity.config.sections import PRETRAINING_VERSION
    from lm_validity.config.sheets import SOURCE_COLUMNS, read_pool
    from lm_validity.errors import InputError
    from lm_validity.files import json_text, read_json, write_text
    from lm_validity.monitor import status
    from lm_validity.run import inputs
    from lm_validity.run.rules import RULES
    from lm_validity.run.scoring import prompt_settings
    from lm_validity.run.workspace import Grid, reports_of, tables_of
except ImportError as error:
    # The workflow catalog lints a clone in which nothing is installed.
    if "--lint" not in sys.argv:
        raise WorkflowError(
            f"lm_validity cannot be imported ({error}). Hint: install lm-validity[cells], or in a clone `make demo` and "
            "then `source .venv/bin/activate`."
        )

    include: "without_package.smk"


# The workflow itself, or a module of another one, which may put a prefix before the paths of all rules.
MODIFIER = workflow.modifier
IS_MODULE = not MODIFIER.is_main_snakefile()


def with_prefix(path):
    """Where a declared path is on disk. Snakemake itself puts the prefix of a module before what rules declare."""
    return str(MODIFIER.modify_path(str(path)))


def as_planned(values):
    """What a run wrote down when it started, and its sheets: for Snakemake in a job, which may start days after them.
    The values themselves, and the sheets of today, for the Snakemake that plans.
    """
    results = values.get("results", "results")
    written = Path(with_prefix(f"{results}/{values.get('name')}"), "configuration.json")
    if workflow.is_main_process or not written.is_file():
        return values, Sheets()
    return read_json(written) | {"results": results}, load.planned_sheets(written)


try:
    if workflow.is_main_process:
        if set("{}") & set(str(workflow.basedir)):
            raise InputError(
                f"{workflow.basedir}: Snakemake takes braces in a path for names of values.",
                "rename that folder.",
            )
        for path in [] if IS_MODULE else workflow.configfiles:
            # of a key that is there twice Snakemake takes the last, and of 010 its 8
            load.read_values(path)
    VALUES, SHEETS = as_planned(config)
    SOURCE = ", ".join(map(str, workflow.configfiles)) or "config"
    RUN = load.build_run(VALUES, SOURCE, SHEETS)
    WORLD = RUN.configuration.miniature
    POOL = read_pool(WORLD.pool, sheets=SHEETS) if WORLD else {}
    GRID = Grid(RUN)
    if workflow.is_main_process:
        inputs.check_tasks(RUN)
        load.check_curves(RUN)
        if not IS_MODULE:
            inputs.check_study(
                RUN.results, inputs.study_of(RUN, workflow.configfiles[0], SHEETS)
            )
        inputs.note_changes(RUN, Path(with_prefix(RUN.results)))
    CELLS = GRID.all_manifests()
except (InputError, OSError) as error:
    raise WorkflowError(str(error))

status.keep_polled_jobs()
status.show_ends_of_logs()
status.skip_hidden_jobs(workflow.output_settings.quiet or ())

# A graph of 30,000 jobs is millions of objects that all stay: no look for garbage while it is built.
if not IS_MODULE:
    gc.disable()


def digest_of(path):
    """params: the digest of a sheet's text, which the times of its file say nothing of; empty for None."""
    text = (SHEETS.text(path) if path else None) or ""
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


def digests_of(*keys):
    """params: those of the sheets that the configuration names under these keys."""
    return " ".join(digest_of(getattr(RUN.configuration, key)) for key in keys)


RESULTS = str(RUN.results)
PLACE = with_prefix(RESULTS)
LOGS = f"{RESULTS}/logs"
# as a word of the reports' command lines; nothing where every cell is fine-tuned
PLAN_OPTION = f"--plan {shlex.quote(RUN.configuration.plan)}" if RUN.plan else ""
CHECK = f"{RESULTS}/cells/check.json"


wildcard_constraints:
    model="[^/]+",
    benchmark="[^/]+",
    batch="[^/]+",


def all_cells(wildcards):
    """input: every manifest. A function, so that 30,000 paths are not parsed once per rule."""
    return CELLS


def checked_cells(wildcards):
    """input of targets: the check of all cells, which depends on every manifest, and the manifests that are gone.

    Snakemake does not restore a missing file whose descendants exist, so these are named. Not all of them: before it
    runs a job, Snakemake looks up each input in each job it comes from, minutes where both are 30,000.
    """
    if not Path(with_prefix(CHECK)).exists():
        return [CHECK]
    folders = {path.rpartition("/")[0] for path in CELLS}
    found = {
        f"{folder}/{name}"
        for folder in folders
        for name in glob.glob("*.json", root_dir=with_prefix(folder))
    }
    return [CHECK, *(path for path in CELLS if path not in found)]


# The rules that compute cells ask their objects in lm_validity.run.rules; these take a rule's name, return a function.


def job_of(rule_name, wildcards):
    """The job of a rule's wildcards; a clear error where someone asks for a file of no job."""
    model = getattr(wildcards, RULES[rule_name].wildcard)
    try:
        return GRID.jobs[rule_name, model, wildcards.batch]
    except KeyError:
        raise WorkflowError(
            f"{rule_name}: no batch {wildcards.batch!r} of model {model!r} in this run."
        )


def inputs_of(rule_name):
    """input: the records, documents and manifests that a job reads."""
    return lambda wildcards: GRID.inputs(job_of(rule_name, wildcards))


def settings_of(rule_name):
    """params: what the configuration says that can change the job's numbers."""
    return lambda wildcards: GRID.settings(job_of(rule_name, wildcards))


def resource_of(rule_name, part):
    """threads, resources: gpus, cpus, mem_mb or minutes, by the model's size class, the cells and the attempt."""
    return lambda wildcards, attempt: getattr(
        RULES[rule_name].resources(RUN, job_of(rule_name, wildcards), attempt), part
    )


def study_reports(*studies):
    """The reports of studies of this run."""
    return [
        f"{RESULTS}/reports/{name}/results.parquet"
        for study in studies
        for name in reports_of(study, RUN.configuration)
    ]


def required_reports(study):
    """input: a study's reports; an error where the configuration does not ask for the study."""

    def reports(wildcards):
        if study not in RUN.configuration.studies:
            raise WorkflowError(
                f"study {study!r} is not in this configuration's `studies` ({', '.join(RUN.configuration.studies)}). "
                f"Hint: add it there."
            )
        return study_reports(study)

    return reports
