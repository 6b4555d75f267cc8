"""What a job asks of a cluster, by the size class of its model and the attempt.

Standard library only: the Snakefile reads this at parse time.
"""

from typing import NamedTuple

from lm_validity.config.bias_sheets import LanguageModel
from lm_validity.config.load import Run
from lm_validity.config.sections import SizeClass
from lm_validity.config.sheets import Model
from lm_validity.run.batches import cell_minutes
from lm_validity.run.grid import Grid, Job
from lm_validity.run.trial_grid import TRIALS_RULE

LEAST_MINUTES = 5
# Jobs without a model of their own: a process that reads and writes small files.
LIGHT_RULES = ("select_prompt", "select_adapter")


class Resources(NamedTuple):
    """GPUs, processor cores, memory of the machine in MB, minutes."""

    gpus: int
    cpus: int
    mem_mb: int
    minutes: int


def model_row(run: Run, rule: str, model: str) -> Model | LanguageModel:
    """The sheet row of a job's or cell's model. The rule decides which sheet: both may hold the same id."""
    return (run.language_models if rule == TRIALS_RULE else run.models)[model]


def used_rows(run: Run) -> list[Model | LanguageModel]:
    """The rows of every model that a study of the run uses."""
    return [*(run.models[model] for model in Grid(run).used_models), *run.language_models.values()]


def kind_and_id(row: Model | LanguageModel) -> tuple[str, str]:
    """("models" or "language_models", id): the name of the sheet in `Run` and of its folder of prefetch records."""
    return ("models", row.model) if isinstance(row, Model) else ("language_models", row.language_model)


def size_class(run: Run, row: Model | LanguageModel) -> SizeClass:
    """The size class of a model of any study."""
    return run.configuration.size_classes[row.size_class]


def job_minutes(run: Run, job: Job, attempt: int = 1) -> int:
    """Minutes a job asks for: its cells' (of the bias study its trials') by size class and rule, times the attempt."""
    one = size_class(run, model_row(run, job.rule, job.model))
    if job.rule == TRIALS_RULE:
        trials = sum(cell.last - cell.first + 1 for cell in job.cells)
        return int((LEAST_MINUTES + trials * one.trial_minutes) * attempt)
    minutes = sum(cell_minutes(one, job.rule, run.benchmarks[cell.benchmark].output_type) for cell in job.cells)
    return max(LEAST_MINUTES, int(minutes * attempt))


def job_resources(run: Run, job: Job, attempt: int = 1) -> Resources:
    """What a job asks for. A replay runs no model, so it asks for no GPU."""
    one = size_class(run, model_row(run, job.rule, job.model))
    if job.rule in LIGHT_RULES:
        return Resources(0, 1, one.mem_mb, LEAST_MINUTES)
    gpus = 0 if run.configuration.replay else one.gpu
    return Resources(gpus, one.cpus, one.mem_mb * attempt, job_minutes(run, job, attempt))
