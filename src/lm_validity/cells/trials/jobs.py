"""The bias study's jobs: what the login node records of language models and tasks, and batches of trials into the
store."""

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_validity.cells.models.prefetch import check_unchanged, prefetch_model
from lm_validity.config.load import Run
from lm_validity.config.sheets import Model
from lm_validity.run.cell import Job
from lm_validity.run.rules.pretrain_on_test import PRETRAIN_ON_TEST
from lm_validity.run.store import Place
from lm_validity.run.trial_plans import make_plan
from lm_validity.run.trial_settings import TrialCell
from lm_validity.run.workspace import Workspace

if TYPE_CHECKING:
    from lm_validity.cells.trials.worker import ResidentWorker

log = logging.getLogger(__name__)


def prefetch_language_model(run: Run, language_model: str) -> dict[str, Any]:
    """Fetch a language model at a pinned revision, or take a local folder; the record of `prefetch.prefetch_model`."""
    row = run.language_models[language_model]
    model = Model(model=language_model, path=row.path, revision=row.revision, dtype=row.dtype)
    return prefetch_model(model, causal=row.architecture == "causal")


def prefetch_trial_task(run: Run, task: str) -> dict[str, Any]:
    """Read a task's texts and labels, check them against the sheet and the experiments' sizes; the record of it."""
    from lm_validity.cells.trials.data import prefetch_task

    experiments = run.bias.experiments.values()
    wanted = [one for one in experiments if task in (one.tasks or run.tasks)]
    sizes = sorted({(m, n) for one in wanted for m in one.m for n in one.n})
    unique = run.bias.drop_duplicate_texts
    output = run.results / "prefetch" / "tasks" / f"{task}.parquet"
    record = prefetch_task(run.tasks[task], output, sizes, unique=unique)
    if record["duplicate_rows"]:
        log.warning(
            "task %r: %d of %d rows have a text that occurs more than once; %s.",
            task,
            record["duplicate_rows"],
            record["rows"],
            f"{record['unique_texts']} are drawn from" if unique else "a test text can also be in extra or train",
        )
    return record


def trial_device(wanted: str, size_class: str, gpus: int) -> str:
    """The device of a trial for `evaluation.device`, as `worker.resolve_device` but never more than one GPU."""
    from lm_validity.cells.worker import resolve_device

    single = wanted == "all" or (wanted == "auto" and gpus)
    return resolve_device("cuda" if single else wanted, size_class, gpus)


class TrialWorker:
    """Computes batches of trials of one language model, which stays loaded. torch is imported when the first batch
    really has to be computed."""

    def __init__(self, workspace: Workspace, job: Job[TrialCell]):
        self.workspace, self.row = workspace, workspace.run.language_models[job.model]
        self._resident: ResidentWorker | None = None

    def compute(self, place: Place[TrialCell]) -> None:
        """Compute one batch and commit it to the store. Raises CellError for a failure that the cell causes.

        The work directory is named after the recipe and outlives a kill; the finished trials in it are kept.
        """
        import torch

        from lm_validity.cells.models.sidecar import Stopwatch
        from lm_validity.cells.trials.worker import ResidentWorker, write_tables

        stopwatch, workspace = Stopwatch(), self.workspace
        configuration, row = workspace.run.configuration, self.row
        gpus = configuration.size_classes[row.size_class].gpu
        device = trial_device(configuration.evaluation.device, row.size_class, gpus)
        plan = make_plan(workspace, place.cell, device)
        record = workspace.language_model_record(place.cell.model)
        check_unchanged(place.cell.model, record["checkpoints"]["final"])
        work = workspace.work / place.folder
        self._resident = self._resident or ResidentWorker()
        self._resident.run(plan, work, shared=PRETRAIN_ON_TEST.base_arms(workspace.work))
        result: dict[str, Any] = {}

        def write(folder: Path) -> None:
            result.update(write_tables(plan, work, folder))

        sidecar = stopwatch.costs(torch.device(device)) | {"counters": self._resident.take_counters()}
        workspace.store.commit(place, result, sidecar, write)
        # only now: a job killed before the commit resumes from it
        shutil.rmtree(work, ignore_errors=True)
