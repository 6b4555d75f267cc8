"""Trials of a job: arms, the files of finished ones, and the batch that is committed."""

import contextlib
import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from lm_validity.cells.models.passes import MORE_MEMORY, must_fit
from lm_validity.cells.models.prefetch import check_unchanged
from lm_validity.cells.models.provenance import Stopwatch
from lm_validity.cells.training.worker import resolve_device
from lm_validity.cells.trials.data import Draw, LoadedTask, draw_hash, draw_trial, read_task, without_duplicates
from lm_validity.cells.trials.methods import HeadTrials, ZeroShotTrials
from lm_validity.cells.trials.training import Arm, ResidentModel, TrialCounters
from lm_validity.errors import CellError
from lm_validity.files import replace_file
from lm_validity.run.cell import Job, ModelRecord, derive_seed, recipe_hash
from lm_validity.run.inputs import own_files
from lm_validity.run.rules.pretrain_on_test import ARMS, PRETRAIN_ON_TEST, TaskData, TrialCell, TrialPlan, make_plan
from lm_validity.run.store import Address
from lm_validity.run.workspace import Workspace
from lm_validity.tables.schema import PROBABILITIES, TRIALS, write_table

# ----------------------------------------------------------------------------------------------------------------------
# The bias study's jobs: batches of trials into the store.

log = logging.getLogger(__name__)


def trial_device(device: str, size_class: str, gpus: int) -> str:
    """The device of a trial for `evaluation.device`, as `resolve_device` but never more than one GPU."""
    single = device == "all" or (device == "auto" and gpus)
    return resolve_device("cuda" if single else device, size_class, gpus)


class TrialWorker:
    """Computes batches of trials of one language model, which stays loaded."""

    def __init__(self, workspace: Workspace, job: Job[TrialCell]):
        self.workspace, self.row = workspace, workspace.run.language_models[job.model]
        self._resident = ResidentWorker()

    def compute(self, address: Address[TrialCell]) -> None:
        """Compute one batch and commit it to the store. Raises CellError for a failure that the cell causes.

        The work directory is named after the recipe and outlives a kill; the finished trials in it are kept.
        """
        stopwatch, workspace = Stopwatch(), self.workspace
        configuration, row = workspace.run.configuration, self.row
        gpus = configuration.size_classes[row.size_class].gpu
        device = trial_device(configuration.evaluation.device, row.size_class, gpus)
        plan = make_plan(workspace, address.cell, device)
        record = workspace.language_model_record(address.cell.model)
        check_unchanged(address.cell.model, record, own_files(workspace.run, "language_models", address.cell.model))
        work = workspace.work / address.folder
        self._resident.run(plan, work, shared=PRETRAIN_ON_TEST.base_arms(workspace.work), record=record)
        result: dict[str, object] = {}

        def write(folder: Path) -> None:
            result.update(write_tables(plan, work, folder))

        sidecar = stopwatch.costs(torch.device(device)) | {"counters": self._resident.take_counters()}
        workspace.store.commit(address, result, sidecar, write)
        # only now: a job killed before the commit resumes from it
        shutil.rmtree(work, ignore_errors=True)


# ----------------------------------------------------------------------------------------------------------------------
# The bias study's resident worker: one process computes a batch of trials and appends each as it finishes.
#
# A finished trial is one parquet file, `trial-00007.parquet`: per arm and test observation the class probabilities,
# and in its metadata the recipe, the pretraining losses and the hash of the test set. It is written beside its place
# and renamed, so that a kill at any moment leaves whole trials only, and the next process goes on with the first
# missing one.

FIXED_SEED = 42  # of every training in the authors' code
_TRIAL_COLUMNS = pa.schema([PROBABILITIES.field(name) for name in ("arm", "row", "label", "probabilities")])


class _About(TypedDict):
    """What a finished trial's file says of it. losses: of pretraining, by arm; the base has none. test_hash: of the
    test rows. quantized: the model had 4-bit weights."""

    recipe: str
    losses: dict[str, float | None]
    quantized: bool
    test_hash: str


class ResidentWorker:
    """Keeps one loaded model and one task; the next plan that needs the same ones finds them."""

    def __init__(self) -> None:
        self.counters = TrialCounters()
        self._model_key: tuple[object, ...] | None = None
        self._model: ResidentModel | None = None

    def run(self, plan: TrialPlan, folder: Path, shared: Path | None = None, record: ModelRecord | None = None) -> None:
        """Compute the plan's trials that are not in `folder` yet.

        folder: a work directory that survives kills (nobody's declared output). Trials of another recipe in it, and
            those with 4-bit weights where this process has none (or the reverse), are computed anew.
        shared: a directory of base arms that jobs of other n and experiments may read; null: `folder`. They are the
            same bytes as if each job had trained its own.
        record: what the login node recorded of the model, held against the loaded one.
        Raises CellError for what is the task's or the model's fault, naming the task and, where one is at fault, the
        row.
        """
        folder.mkdir(parents=True, exist_ok=True)
        pending = [subsample for subsample in plan.subsamples if _read_trial(plan, folder, subsample) is None]
        if not pending:
            return
        task = _read_task(plan.data, unique=plan.drop_duplicate_texts)
        draws = {subsample: draw_trial(task, plan.m, plan.n, subsample) for subsample in pending}
        trials = self._trials(plan, task)
        trials.prepare(np.unique(np.concatenate([rows for draw in draws.values() for rows in draw])))
        spares = plan.classification.method == "zero_shot" and not plan.pretraining.gradient_checkpointing
        spared = ", or set bias.zero_shot.gradient_checkpointing" if spares else ""
        for subsample, draw in draws.items():
            trial = _Trial(trials, subsample, draw, shared or folder)
            with must_fit(plan.language_model, "one batch of a trial", f"{MORE_MEMORY}{spared}."):
                probabilities, losses = trial.compute()
            about: _About = {
                "recipe": recipe_hash(plan.recipe()),
                "losses": losses,
                "quantized": trials.model.quantized,
                "test_hash": draw_hash(task, draw.test),
            }
            columns = [
                np.repeat(ARMS, len(draw.test)),
                np.tile(task.rows[draw.test], len(ARMS)),
                np.tile(task.labels[draw.test], len(ARMS)),
                [row for arm in ARMS for row in probabilities[arm]],
            ]
            schema = _TRIAL_COLUMNS.with_metadata({"trial": json.dumps(about)})
            with replace_file(_trial_path(folder, subsample)) as temporary:
                pq.write_table(pa.table(columns, schema=schema), temporary, compression="zstd")
            log.info("%s %s m=%d n=%d: subsample %d", plan.language_model, task.name, plan.m, plan.n, subsample)

    def take_counters(self) -> dict[str, int]:
        """What was done since the last call, for a sidecar."""
        taken, self.counters = asdict(self.counters), TrialCounters()
        return taken

    def _trials(self, plan: TrialPlan, task: LoadedTask) -> HeadTrials | ZeroShotTrials:
        options = plan.classification
        head = (options.pooler, len(plan.data.class_names)) if options.method == "head" else None
        source = (plan.model_path, plan.architecture, plan.dtype, plan.device)
        key = (*source, head, plan.pretraining.adapter)
        if self._model is None or self._model_key != key:
            self._model = self._model_key = None  # never two models at once
            self._model = ResidentModel(plan)
            self._model_key = key
            self.counters.model_loads += 1
        return (ZeroShotTrials if head is None else HeadTrials)(plan, task, self._model, self.counters)


@lru_cache(maxsize=1)
def _read_task(data: TaskData, *, unique: bool) -> LoadedTask:
    task = read_task(data)
    return without_duplicates(task) if unique else task


class TrialResult(NamedTuple):
    """Probabilities (n, classes) and pretraining loss of each arm."""

    probabilities: dict[str, np.ndarray]
    losses: dict[str, float | None]


class _Trial:
    """One subsample's three arms."""

    def __init__(self, trials: HeadTrials | ZeroShotTrials, subsample: int, draw: Draw, shared: Path):
        self.trials, self.subsample, self.draw, self.shared = trials, subsample, draw, shared
        plan, task = self.plan, self.task = trials.plan, trials.task
        key = (plan.language_model, task.name, plan.m, subsample)
        fixed = plan.seeds == "fixed"
        # the arms differ in the pretraining texts and in nothing else; base is the same for every n and experiment
        self.classification_seed = FIXED_SEED if fixed else derive_seed("bias classification", *key)
        self.pretraining_seed = FIXED_SEED if fixed else derive_seed("bias pretraining", *key, plan.n)

    def compute(self) -> TrialResult:
        """Probabilities (n, classes) and pretraining loss of each arm."""
        probabilities = {"base": self._base()}
        losses: dict[str, float | None] = {"base": None}
        pretrained: dict[Arm, np.ndarray] = {"extra": self.draw.extra, "test": self.draw.test}
        for arm, rows in pretrained.items():
            # labels leak into the pretraining texts only where a test of this program plants them
            leaks = round(self.plan.planted_leak * len(rows)) if arm == "test" else 0
            losses[arm] = self.trials.pretrain(rows, self.pretraining_seed, leaks)
            self.trials.classify(self.draw.train, arm, self.classification_seed)
            probabilities[arm] = self._predicted(self.draw.test)
        return TrialResult(probabilities, losses)

    def _base(self) -> np.ndarray:
        """The arm without pretraining, read where another job of the study has left it."""
        plan, test = self.plan, self.draw.test
        with contextlib.suppress(OSError, ValueError, EOFError):  # never there, or damaged
            arm = np.load(self._base_path(plan.n))
            if arm.shape == (len(test), 1 + len(self.task.class_names)) and np.array_equal(arm[:, 0], test):
                self.trials.counters.shared_base_arms += 1
                result: np.ndarray = arm[:, 1:].astype(np.float32)
                return result
        self.trials.classify(self.draw.train, "base", self.classification_seed)
        for n, subsamples in plan.share_base:
            # one test set after another, in batches of their own: the same bytes as a job of that n alone
            if subsamples >= self.subsample:
                # a fault of texts that this job does not need is left to that job, which meets and names it
                with contextlib.suppress(CellError):
                    self._write_base(n, draw_trial(self.task, plan.m, n, self.subsample).test)
        return self._write_base(plan.n, test)

    def _base_path(self, n: int) -> Path:
        """Named after everything that the base arm depends on."""
        recipe = self.plan.base_recipe() | {"seed": self.classification_seed}
        return self.shared / recipe_hash(recipe) / f"n{n}-{self.subsample:05d}.npy"

    def _write_base(self, n: int, test: np.ndarray) -> np.ndarray:
        """Predict the test set of this or another n, for whichever job asks."""
        probabilities = self._predicted(test)
        with replace_file(self._base_path(n)) as temporary:
            np.save(temporary, np.column_stack([test.astype(np.float64), probabilities]))
        return probabilities

    def _predicted(self, test: np.ndarray) -> np.ndarray:
        probabilities: np.ndarray = self.trials.probabilities(test)
        if not np.isfinite(probabilities).all():
            raise CellError(
                f"task {self.task.name!r}, subsample {self.subsample}: a probability is not finite.",
                "lower the learning rates, or use float32.",
            )
        return probabilities


# ---- files --------------------------------------------------------------------------------------------------------


def read_trials(plan: TrialPlan, folder: Path) -> pd.DataFrame:
    """The plan's finished trials in `folder`: columns of TRIALS, by subsample and arm; others are not there."""
    rows = []
    for key, about, frame in _finished(plan, folder):
        for arm in ARMS:
            rows_of_arm = frame[frame["arm"] == arm]
            predicted = np.stack(rows_of_arm["probabilities"].to_list()).argmax(axis=1)
            row: dict[str, object] = {
                **key,
                "arm": arm,
                "correct": int((predicted == rows_of_arm["label"]).sum()),
                "total": len(rows_of_arm),
                "pretraining_loss": about["losses"][arm],
                "test_hash": about["test_hash"],
            }
            rows.append(row)
    return pd.DataFrame(rows, columns=TRIALS.names)


def read_probabilities(plan: TrialPlan, folder: Path) -> pd.DataFrame:
    """Class probabilities of the finished trials, one row an observation and arm: columns of PROBABILITIES."""
    return pd.concat([frame.assign(**key) for key, _, frame in _finished(plan, folder)])[PROBABILITIES.names]


class _FinishedTrial(NamedTuple):
    """A finished trial. key: what names it, by column of TRIALS. observations: its test rows, those of each arm."""

    key: dict[str, str | int]
    about: _About
    observations: pd.DataFrame


def _finished(plan: TrialPlan, folder: Path) -> Iterator[_FinishedTrial]:
    """The plan's finished trials in `folder`."""
    key: dict[str, str | int] = {"experiment": plan.experiment, "language_model": plan.language_model}
    key |= {"task": plan.data.name, "m": plan.m, "n": plan.n}
    for subsample in plan.subsamples:
        table = _read_trial(plan, folder, subsample)
        if table is not None:
            yield _FinishedTrial(key | {"subsample": subsample}, _about(table), table.to_pandas())


def write_tables(plan: TrialPlan, folder: Path, output: Path) -> dict[str, object]:
    """Write trials.parquet and probabilities.parquet of a complete `folder` into `output` (a cell's folder of the
    store); what the cell's record says of them. The same bytes whatever kills and resumes there were.

    Raises CellError where a trial is missing.
    """
    trials = read_trials(plan, folder)
    missing = sorted(set(plan.subsamples) - set(trials["subsample"]))
    if missing:
        raise CellError(
            f"task {plan.data.name!r}: {len(missing)} trials are missing (subsample {missing[0]}).",
            "run the job again.",
        )
    write_table(trials, TRIALS, output / "trials.parquet")
    write_table(read_probabilities(plan, folder), PROBABILITIES, output / "probabilities.parquet")
    accuracy = (trials["correct"] / trials["total"]).groupby(trials["arm"]).mean()
    return {
        "trials": len(plan.subsamples),
        "accuracy": {arm: float(accuracy[arm]) for arm in ARMS},
        "quantized_trials": len(plan.subsamples) if plan.quantizes() else 0,
    }


def _trial_path(folder: Path, subsample: int) -> Path:
    return folder / f"trial-{subsample:05d}.parquet"


def _read_trial(plan: TrialPlan, folder: Path, subsample: int) -> pa.Table | None:
    """A finished trial of this very plan, its weights 4-bit or not as they are here; null where there is none that can
    be read."""
    path = _trial_path(folder, subsample)
    try:
        table = pq.read_table(path, partitioning=None)
        about = _about(table)
        unchanged = about["recipe"] == recipe_hash(plan.recipe()) and about["quantized"] == plan.quantizes()
    except (OSError, pa.ArrowInvalid, TypeError, KeyError, ValueError):
        return None  # never there, or lost with the machine's power: computed anew
    return table if unchanged else None


def _about(table: pa.Table) -> _About:
    result: _About = json.loads(table.schema.metadata[b"trial"])
    return result
