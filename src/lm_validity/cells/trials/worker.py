"""Trials of a job: zero-shot prompts, arms, the files of finished trials, and the batch that is committed."""

import contextlib
import json
import logging
import shutil
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from lm_validity.cells.models.passes import MORE_MEMORY, Request, must_fit
from lm_validity.cells.models.prefetch import check_unchanged
from lm_validity.cells.runner import Stopwatch
from lm_validity.cells.training.loop import layers_recomputed
from lm_validity.cells.training.lora import BatchPosition
from lm_validity.cells.trials import training
from lm_validity.cells.trials.data import Draw, LoadedTask, draw_hash, draw_trial, read_task, without_duplicates
from lm_validity.cells.trials.training import Arm, Batch, LogitsAndLabels, ResidentModel, padded
from lm_validity.cells.workers import resolve_device
from lm_validity.errors import CellError
from lm_validity.files import replace_file
from lm_validity.run.cell import Job, TrialCell, derive_seed, recipe_hash
from lm_validity.run.inputs import own_files
from lm_validity.run.rules.pretrain_on_test import ARMS, PRETRAIN_ON_TEST, TaskData, TrialPlan, make_plan
from lm_validity.run.store import Address
from lm_validity.run.workspace import Workspace
from lm_validity.tables.schema import PROBABILITIES, TRIALS, write_table

# ----------------------------------------------------------------------------------------------------------------------
# The zero-shot prompt of arXiv 2410.00179: an instruction with the class names, the text, a cue for the answer.
#
# Note the blank before the cue, which the paper's figure hides.

QUERY = "### Text:"
CUE = " ### Answer:"


class PromptFormat(NamedTuple):
    """A task's prompts. characters: how much of a text is quoted."""

    class_names: tuple[str, ...]
    description: str
    characters: int

    @property
    def instruction(self) -> str:
        """What all prompts of the task begin with."""
        names = "\n".join(self.class_names)
        return f"Your task is to classify a given text as one of these categories:\n{names}\n\n{self.description}\n\n"

    def query(self, text: str) -> str:
        """One text as a prompt quotes it, cut to `characters`."""
        return f"{QUERY} {text[: self.characters]}\n"

    def prompt(self, text: str) -> str:
        """What is scored, and what is pretrained on: it ends before the answer."""
        return f"{self.instruction}{self.query(text)}{CUE}"

    def packed(self, texts: Sequence[str]) -> str:
        """Several texts under one instruction, without a cue."""
        return self.instruction + "\n\n".join(self.query(text) for text in texts)


# ----------------------------------------------------------------------------------------------------------------------
# Zero-shot trials: pretrain a causal LM (LoRA, or all weights) on prompts without answers, then prompt it.
#
# A class's score is the mean log-probability of its name's tokens after the prompt; the probabilities are the scores'
# softmax. They are scored as the choices of a benchmark are: a prompt is computed once for all classes.


class ZeroShotTrials(training.Trials):
    """The stages of a trial with a resident causal LM."""

    def __init__(self, plan: TrialPlan, task: LoadedTask, model: ResidentModel, counters: Counter[str]):
        super().__init__(plan, task, model, counters)
        self.format = PromptFormat(task.class_names, task.description, plan.classification.prompt_characters)
        self.answers: list[list[int]] = []
        for name in task.class_names:  # two that are the same tokens, as unknown words are, would tie
            self.answers.append(self._answer_tokens(name))
            equal_name = task.class_names[self.answers.index(self.answers[-1])]
            if equal_name != name:
                where = f"task {task.name!r}: the tokenizer of {model.model_id}"
                hint = "use other class names, or leave the model out."
                raise CellError(f"{where} writes the classes {equal_name!r} and {name!r} as the same tokens.", hint)
        self.longest_answer = max(map(len, self.answers))
        self._prompts: dict[int, list[int]] = {}

    def prepare(self, rows: np.ndarray) -> None:
        """Tokenise the observations' prompts. Raises CellError for one that the model cannot read whole."""
        self._encode(rows)

    def pretrain(self, rows: np.ndarray, seed: int, leaks: int) -> float:
        """Pretrain on prompts; the last epoch's mean loss over all tokens, in nats.

        leaks: how many of the prompts carry their answer, a planted leak.
        """
        settings = self.plan.pretraining
        self._forget_training()
        texts = self._pretraining_texts(rows, leaks)
        if settings.packing:  # sequences may lose their end to packed_max_length, not to the model's own limit
            limit, longest = self.model.limit, settings.max_length
            lengths = [len(tokens) for tokens in self.model.tokenizer(texts, verbose=False)["input_ids"]]
            if max(lengths) > limit and longest > limit:
                where = f"task {self.task.name!r}: a packed sequence has {max(lengths)} tokens"
                hint = "leave `packing` out of the experiment, or take a model that reads more."
                raise CellError(f"{where}, the model reads {limit}.", hint)
            self.counters["packed_sequences_cut"] += sum(length > longest for length in lengths)
        sequences = [tokens for tokens, _ in self.model.encode(texts, settings.max_length)]
        position = BatchPosition(seed)
        self.model.adapt(position)

        def make_batch(examples: np.ndarray) -> Batch:
            """The sequences of these examples, padded; begins a step of the adapter's dropout."""
            ids, attention = padded([sequences[index] for index in examples], self.model.tokenizer.pad_token_id)
            position.step, (position.rows, position.width), position.training = position.step + 1, ids.shape, True
            position.length = position.width
            return self.batch(ids, attention, training.next_tokens(ids, attention))

        def predict(batch: Batch) -> LogitsAndLabels:
            """The logits of all positions (rows * positions, tokens) and the token that each is to predict."""
            position.start, position.count = batch.first, len(batch.input_ids)
            output = self.model.lm(**batch.inputs(), use_cache=False)
            return LogitsAndLabels(output.logits.flatten(0, 1), batch.labels.flatten())

        with layers_recomputed(self.model.lm, recompute=settings.gradient_checkpointing):
            loss = self._train(self.model.lm, len(sequences), make_batch, predict, seed)
        position.rest()
        return loss

    def classify(self, rows: np.ndarray, arm: Arm, seed: int) -> None:
        """Nothing is trained on labels; base is the model as it came."""
        if arm == "base":
            self._forget_training()

    @torch.no_grad()
    def probabilities(self, rows: np.ndarray) -> np.ndarray:
        """Class probabilities (observations, classes), float32."""
        prompts, scorer = self._encode(rows), self.model.scorer
        requests: list[Request] = [(None, prompt, answer) for prompt in prompts for answer in self.answers]
        counted = scorer.counters["forward_tokens"]
        sums = [value for value, _ in scorer._loglikelihood_tokens(requests)]
        self.counters["forward_tokens"] += scorer.counters["forward_tokens"] - counted
        lengths = torch.tensor([len(answer) for answer in self.answers])
        scores = torch.tensor(sums).reshape(len(rows), -1) / lengths
        probabilities: np.ndarray = scores.softmax(dim=-1).numpy()
        return probabilities

    # ---- tokens and weights -----------------------------------------------------------------------------------------

    def _encode(self, rows: np.ndarray) -> list[list[int]]:
        """Their prompts' tokens, of those not seen before as well: a base arm is also asked about other jobs' texts."""
        missing = [int(row) for row in rows if int(row) not in self._prompts]
        texts = [self.format.prompt(self.task.texts[row]) for row in missing]
        encoded = self.model.tokenizer(texts, verbose=False)["input_ids"] if texts else []
        for row, tokens in zip(missing, encoded, strict=True):
            n_tokens = len(tokens) + self.longest_answer
            if n_tokens > self.model.limit:
                problem = f"{self.task.where(row)}: its prompt and answer have {n_tokens} tokens, the model reads "
                raise CellError(f"{problem}{self.model.limit}.", "lower prompt_characters.")
            self._prompts[row] = tokens
        return [self._prompts[int(row)] for row in rows]

    def _answer_tokens(self, name: str) -> list[int]:
        """Tokens of an answer as they follow the cue."""
        prompt = f"{self.format.query('text')}{CUE}"
        tokens_before = self.model.tokenizer(prompt)["input_ids"]
        tokens_of_both = self.model.tokenizer(f"{prompt} {name}")["input_ids"]
        if tokens_of_both[: len(tokens_before)] != tokens_before:  # a merge over the border: the answer by itself
            tokens_before, tokens_of_both = [], self.model.tokenizer(f" {name}", add_special_tokens=False)["input_ids"]
        if len(tokens_of_both) == len(tokens_before):
            where = f"task {self.task.name!r}: the tokenizer of {self.model.model_id}"
            raise CellError(f"{where} makes no token of the class {name!r}.", "use other class names.")
        result: list[int] = tokens_of_both[len(tokens_before) :]
        return result

    def _pretraining_texts(self, rows: np.ndarray, leaks: int) -> list[str]:
        texts = [self.task.texts[row] for row in rows]
        size = self.plan.pretraining.packing
        if size:
            return [self.format.packed(texts[start : start + size]) for start in range(0, len(texts), size)]
        answers = [f" {self.task.class_name(row)}" for row in rows[:leaks]] + [""] * (len(rows) - leaks)
        return [self.format.prompt(text) + answer for text, answer in zip(texts, answers, strict=True)]


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
        self._resident.run(plan, work, shared=PRETRAIN_ON_TEST.base_arms(workspace.work))
        result: dict[str, object] = {}
        sidecar = stopwatch.costs(torch.device(device)) | {"counters": dict(self._resident.counters)}
        self._resident.counters.clear()
        workspace.store.commit(address, result, sidecar, lambda folder: result.update(write_tables(plan, work, folder)))
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
        self.counters = Counter[str]()
        self._model_key: tuple[object, ...] | None = None
        self._model: ResidentModel | None = None

    def run(self, plan: TrialPlan, folder: Path, shared: Path | None = None) -> None:
        """Compute the plan's trials that are not in `folder` yet.

        folder: a work directory that survives kills (nobody's declared output). Trials of another recipe in it, and
            those with 4-bit weights where this process has none (or the reverse), are computed anew.
        shared: a directory of base arms that jobs of other n and experiments may read; null: `folder`. They are the
            same bytes as if each job had trained its own.
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
                probabilities = trial.compute()
            about: _About = {
                "recipe": recipe_hash(plan.recipe()),
                "losses": trial.losses,
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

    def _trials(self, plan: TrialPlan, task: LoadedTask) -> training.HeadTrials | ZeroShotTrials:
        options = plan.classification
        head = (options.pooler, len(plan.data.class_names)) if options.method == "head" else None
        source = (plan.model_path, plan.architecture, plan.dtype, plan.device)
        key = (*source, head, plan.pretraining.adapter)
        if self._model is None or self._model_key != key:
            self._model = self._model_key = None  # never two models at once
            self._model = ResidentModel(plan)
            self._model_key = key
            self.counters["model_loads"] += 1
        return (ZeroShotTrials if head is None else training.HeadTrials)(plan, task, self._model, self.counters)


@lru_cache(maxsize=1)
def _read_task(data: TaskData, *, unique: bool) -> LoadedTask:
    task = read_task(data)
    return without_duplicates(task) if unique else task


class _Trial:
    """One subsample's three arms."""

    def __init__(self, trials: training.HeadTrials | ZeroShotTrials, subsample: int, draw: Draw, shared: Path):
        self.trials, self.subsample, self.draw, self.shared = trials, subsample, draw, shared
        self.losses: dict[str, float | None] = {"base": None}  # of pretraining, by arm, once it is computed
        plan, task = self.plan, self.task = trials.plan, trials.task
        key = (plan.language_model, task.name, plan.m, subsample)
        fixed = plan.seeds == "fixed"
        # the arms differ in the pretraining texts and in nothing else; base is the same for every n and experiment
        self.classification_seed = FIXED_SEED if fixed else derive_seed("bias classification", *key)
        self.pretraining_seed = FIXED_SEED if fixed else derive_seed("bias pretraining", *key, plan.n)

    def compute(self) -> dict[str, np.ndarray]:
        """Probabilities (n, classes) of each arm."""
        probabilities = {"base": self._base()}
        pretrained: dict[Arm, np.ndarray] = {"extra": self.draw.extra, "test": self.draw.test}
        for arm, rows in pretrained.items():
            # labels leak into the pretraining texts only where a test of this program plants them
            leaks = round(self.plan.planted_leak * len(rows)) if arm == "test" else 0
            self.losses[arm] = self.trials.pretrain(rows, self.pretraining_seed, leaks)
            self.trials.classify(self.draw.train, arm, self.classification_seed)
            probabilities[arm] = self._predicted(self.draw.test)
        return probabilities

    def _base(self) -> np.ndarray:
        """The arm without pretraining, read where another job of the study has left it."""
        plan, test = self.plan, self.draw.test
        with contextlib.suppress(OSError, ValueError, EOFError):  # never there, or damaged
            arm = np.load(self._base_path(plan.n))
            if arm.shape == (len(test), 1 + len(self.task.class_names)) and np.array_equal(arm[:, 0], test):
                self.trials.counters["shared_base_arms"] += 1
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
            hint = "lower the learning rates, or use float32."
            raise CellError(f"task {self.task.name!r}, subsample {self.subsample}: a probability is not finite.", hint)
        return probabilities


# ---- files --------------------------------------------------------------------------------------------------------


class TrialTables(NamedTuple):
    """The finished trials of a plan: columns of TRIALS, by subsample and arm; and class probabilities, one row an
    observation and arm, with columns of PROBABILITIES."""

    trials: pd.DataFrame
    probabilities: pd.DataFrame


def read_tables(plan: TrialPlan, folder: Path) -> TrialTables:
    """The plan's finished trials in `folder`; others are not there."""
    rows, frames = list[dict[str, object]](), list[pd.DataFrame]()
    for subsample in plan.subsamples:
        if (table := _read_trial(plan, folder, subsample)) is None:
            continue
        key = {"experiment": plan.experiment, "language_model": plan.language_model, "task": plan.data.name}
        about, frame = _about(table), table.to_pandas().assign(**key, m=plan.m, n=plan.n, subsample=subsample)
        frames.append(frame)
        for arm in ARMS:
            rows_of_arm = frame[frame["arm"] == arm]
            predicted = np.stack(rows_of_arm["probabilities"].to_list()).argmax(axis=1)
            row: dict[str, object] = {**key, "m": plan.m, "n": plan.n, "subsample": subsample, "arm": arm}
            row |= {"correct": int((predicted == rows_of_arm["label"]).sum()), "total": len(rows_of_arm)}
            rows.append(row | {"pretraining_loss": about["losses"][arm], "test_hash": about["test_hash"]})
    probabilities = pd.concat(frames) if frames else pd.DataFrame(columns=PROBABILITIES.names)
    return TrialTables(pd.DataFrame(rows, columns=TRIALS.names), probabilities[PROBABILITIES.names])


def write_tables(plan: TrialPlan, folder: Path, output: Path) -> dict[str, object]:
    """Write trials.parquet and probabilities.parquet of a complete `folder` into `output` (a cell's folder of the
    store); what the cell's record says of them. The same bytes whatever kills and resumes there were.

    Raises CellError where a trial is missing.
    """
    trials, probabilities = read_tables(plan, folder)
    missing = sorted(set(plan.subsamples) - set(trials["subsample"]))
    if missing:
        problem = f"task {plan.data.name!r}: {len(missing)} trials are missing (subsample {missing[0]})."
        raise CellError(problem, "run the job again.")
    write_table(trials, TRIALS, output / "trials.parquet")
    write_table(probabilities, PROBABILITIES, output / "probabilities.parquet")
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
