"""The grid: every job of a run, which job computes which cell, and the manifests between them.

What a rule's jobs are, and what they read, the rules say (`run.rules`). Standard library, pydantic and PyYAML only: the
Snakefile builds this at parse time.
"""

import hashlib
from collections.abc import Collection
from functools import cached_property

from lm_validity.config.load import Run
from lm_validity.config.sections import Configuration
from lm_validity.errors import InputError
from lm_validity.run.cell import Cell, Job
from lm_validity.run.rules import RULES, rule_of
from lm_validity.run.rules.base import Participants


def reports_of(study: str, configuration: Configuration) -> tuple[str, ...]:
    """The reports of a study, by name."""
    if study != "agreement":
        return (study,)
    return ("agreement", "factors", *(["readiness"] if configuration.agreement.groups else []))


def tables_of(studies: Collection[str]) -> tuple[str, ...]:
    """The tables into which the cells of these studies are merged, by name."""
    scored = ("scores", "selections", "items") if {"agreement", "signal"} & set(studies) else ()
    return (*scored, *(("trials", "probabilities") if "bias" in studies else ()))


class Grid(Participants):
    """All jobs of a run, and the manifests they write (paths relative to the working directory)."""

    def __init__(self, run: Run):
        super().__init__(run)
        self.cells_folder = f"{run.results}/cells"
        self._settings: dict[tuple[object, ...], str] = {}

    @cached_property
    def jobs(self) -> dict[tuple[str, str, str], Job[Cell]]:
        """Every job by (rule, model, batch): rule by rule, in the order of the sheets.

        Raises InputError where two would have one name.
        """
        jobs = {}
        for rule in RULES.values():
            for job in rule.jobs(self):
                if job[:3] in jobs:
                    raise InputError(
                        f"model {job.model!r}: two jobs of {job.rule} would have the name {job.batch!r}.",
                        "ids are joined by dots: rename a benchmark or a checkpoint whose id has a dot in it.",
                    )
                jobs[job[:3]] = job
        return jobs

    def job(self, rule: str, model: str, batch: str) -> Job[Cell]:
        """The job of that rule, model and batch. Raises KeyError where the run has none."""
        return self.jobs[rule, model, batch]

    @cached_property
    def job_of(self) -> dict[Cell, Job[Cell]]:
        """Each cell of the grid with the job that computes it."""
        return {cell: job for job in self.jobs.values() for cell in job.cells}

    def cells(self, table: str | None = None) -> list[Cell]:
        """The cells of every rule, or of those whose cells are rows of a merged table; in the grid's order."""
        rules = {rule.name for rule in RULES.values() if table is None or table in rule.tables}
        return [cell for job in self.jobs.values() if job.rule in rules for cell in job.cells]

    # ---- files --------------------------------------------------------------------------------------------------

    def manifests(self, job: Job[Cell]) -> list[str]:
        """What a job declares: a manifest for each part of its rule."""
        return [self._manifest(job, part) for part in rule_of(job).parts]

    def manifest_of(self, cell: Cell) -> str:
        """The manifest that lists a cell."""
        part = rule_of(cell).part(cell)
        return self._manifest(self.job_of[cell], part)

    def _manifest(self, job: Job[Cell], part: str) -> str:
        return f"{self.cells_folder}/{job.rule}/{job.model}/{job.batch}{part}.json"

    def all_manifests(self) -> list[str]:
        """The manifests of every job."""
        return [path for job in self.jobs.values() for path in self.manifests(job)]

    def dependencies(self, job: Job[Cell]) -> list[str]:
        """Manifests of the cells that a job's cells depend on, without repetition, in a fixed order."""
        rule = rule_of(job)
        manifests = {
            self.manifest_of(dependency): None for cell in job.cells for dependency in rule.stands_on(self, cell)
        }
        return list(manifests)

    def inputs(self, job: Job[Cell]) -> list[str]:
        """Every file that a job reads: the login node's records, documents, manifests."""
        rule = rule_of(job)
        return [*rule.model_records(self.run, job), *rule.data_files(self.run, job), *self.dependencies(job)]

    # ---- settings -----------------------------------------------------------------------------------------------

    def settings(self, job: Job[Cell]) -> str:
        """A job's recipe settings in one line: Snakemake reruns the job when it changes, and for nothing else."""
        rule = rule_of(job)
        key = (job.rule, *rule.settings_key(self.run, job))
        if key not in self._settings:
            self._settings[key] = rule.settings(self.run, job)
        return self._settings[key]

    def describe_points(self) -> str:
        """Iterations and tokens of all checkpoints, which tables copy from the sheets: a digest in twelve digits."""
        points = [
            (model.model, model.tokens_b, point.checkpoint, point.iteration, point.tokens_b)
            for model in self.run.models.values()
            for point in model.checkpoints
        ]
        return hashlib.sha256(repr(points).encode()).hexdigest()[:12]
