"""Rule `pretrain_on_test`: trials of the bias study, and the plan that a job of it is told."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from lm_validity.config.load import Run
from lm_validity.config.rows import Positive
from lm_validity.config.sections import Adapter, HeadTraining, Prompting, TextTraining
from lm_validity.config.sheets import BiasModel
from lm_validity.run.cell import Job, Recipe, TextsRecord, TrialCell
from lm_validity.run.rules.base import LEAST_MINUTES, PASSES_A_STEP, Effort, Participants, Rule, make_groups

if TYPE_CHECKING:
    from lm_validity.run.workspace import Workload, Workspace

# ----------------------------------------------------------------------------------------------------------------------
# What the configuration and the sheets say about a batch of trials of the bias study.
#
# Standard library and pydantic only: the Snakefile asks at parse time.

# what changes memory or time and no number: it neither enters a recipe nor reruns a job
COST_ONLY = ("gradient_checkpointing",)
# of a plan, what a job's settings say; the cell names the others
SETTINGS = ("architecture", "dtype", "drop_duplicate_texts", "planted_leak", "seeds")


Architecture = Literal["masked", "causal"]
Seeds = Literal["varied", "fixed"]


class Pretraining(TextTraining):
    """A trial's pretraining on unlabelled texts.

    packing: texts joined into one sequence (zero-shot only); 0: none. adapter: train this instead of all weights;
    zero-shot needs one. gradient_checkpointing: memory only.
    """

    epochs: Positive
    packing: Annotated[int, Field(ge=0)] = 0
    adapter: Adapter | None = None
    gradient_checkpointing: bool = False


class Classification(HeadTraining):
    """How a language model becomes a classifier.

    method: `head`, a linear layer, all weights trained on the m labelled texts; `zero_shot`, the class whose name has
        the highest mean token log-probability after the prompt, nothing trained.
    max_length: null is the model's limit, as in the authors' code (the paper's text says 256).
    pooler: under `paper` base has the model's, the pretrained arms a fresh one (as in the authors' code, where
        extra - base thereby mixes pretraining with the loss of the pooler).
    prompt_characters: zero-shot prompts quote this much of a text. predict_batch: cost only.
    """

    method: Literal["head", "zero_shot"] = "head"
    prompt_characters: Positive = Prompting.model_fields["prompt_characters"].default
    predict_batch: Positive = 64


def _pretraining(run: Run, cell: TrialCell) -> Pretraining:
    experiment, task = run.bias.experiments[cell.experiment], run.tasks[cell.task]
    if experiment.method == "zero_shot":
        prompting = run.bias.zero_shot
        epochs, size = prompting.epochs, task.pretraining_batch or prompting.batch_size
        values = prompting.model_dump(include={"learning_rate", "max_length", *COST_ONLY}) | {"weight_decay": 0.0}
        values["adapter"] = prompting.model_dump(include=set(Adapter.model_fields))
        if experiment.packing:  # one packed sequence a step
            values |= {"packing": prompting.packed_texts, "max_length": prompting.packed_max_length}
            size = 1
    else:
        settings = run.bias.pretraining
        masked = run.language_models[cell.model].architecture == "masked"
        epochs = settings.masked_epochs if masked else settings.causal_epochs
        size = task.pretraining_batch or settings.batch_size
        values = settings.model_dump(include=set(TextTraining.model_fields) - {"batch_size"}) | {"adapter": None}
    return Pretraining(epochs=experiment.pretraining_epochs or epochs, batch_size=size, **values)


def _classification(run: Run, cell: TrialCell) -> Classification:
    if run.bias.experiments[cell.experiment].method == "zero_shot":
        return Classification(method="zero_shot", prompt_characters=run.bias.zero_shot.prompt_characters)
    settings, task = run.bias.training, run.tasks[cell.task]
    masked = run.language_models[cell.model].architecture == "masked"
    return Classification(
        **settings.model_dump(exclude={"epochs", "batch_size"}),
        method="head",
        epochs=task.training_epochs or settings.epochs,
        batch_size=(task.masked_batch if masked else task.causal_batch) or settings.batch_size,
    )


# ----------------------------------------------------------------------------------------------------------------------
# What a job of the bias study is told: a language model, a task's texts, sizes, subsamples, hyperparameters.
#
# Imports nothing heavy. Defaults are those of the configuration's section `bias`, chosen for validity; its key `paper`
# gives those of the authors' code (arXiv 2410.00179). Fields that say "memory only" or "cost only" change no number
# beyond rounding and stay out of `recipe()`.

ARMS = ("base", "extra", "test")


@dataclass(frozen=True)
class TaskData:
    """A task as `data.prefetch_task` wrote it: one parquet file of `row`, `text` and `label`.

    sha256: of the texts and labels (`data.content_digest`), not of the file's bytes.
    """

    name: str
    path: str
    sha256: str
    class_names: tuple[str, ...]
    description: str = ""

    @classmethod
    def of_record(cls, record: TextsRecord) -> "TaskData":
        """What a plan says of a prefetched task, from its record."""
        names = tuple(record["class_names"])
        return cls(record["task"], record["path"], record["sha256"], names, record["description"])


@dataclass(frozen=True)
class TrialPlan:
    """A batch of trials of one (experiment, language model, task, m, n).

    model_path: a local folder in hub format.
    model_digest: of its files, or the commit, for the recipe.
    m: labelled training texts, floor(m / C) of each class; n: texts of extra and of test. subsamples: from 1.
    seeds: `varied`, training randomness differs from subsample to subsample (the same in the three arms: they differ
        in the pretraining texts and in nothing else); `fixed`, seed 42 in every training, as in the authors' code.
    shuffle: order of the training texts drawn anew each epoch; off only to compare programs.
    drop_duplicate_texts: draw from the first row of each text only (`data.first_rows`), so that no test text is
        also one of extra or train; off in the authors' code.
    planted_leak: FOR TESTING ONLY. Share of the test arm's pretraining texts that carry their label's name.
    share_base: (n, subsamples) of the study's other cells with this (experiment, language model, task, m). The base
        arm does not depend on n, so whichever job trains it first also predicts the others' test texts
        (`ResidentWorker.run`). Cost only.
    """

    experiment: str
    language_model: str
    model_path: str
    architecture: Architecture
    data: TaskData
    m: int
    n: int
    subsamples: tuple[int, ...]
    pretraining: Pretraining
    classification: Classification
    model_digest: str = ""
    seeds: Seeds = "varied"
    shuffle: bool = True
    drop_duplicate_texts: bool = True
    planted_leak: float = 0.0
    dtype: str = "float32"
    device: str = "cpu"
    share_base: tuple[tuple[int, int], ...] = ()

    def quantizes(self) -> bool:
        """Whether weights are 4-bit, on a GPU or a CPU."""
        adapter = self.pretraining.adapter
        return adapter is not None and adapter.quantization == "nf4"

    def base_recipe(self) -> Recipe:
        """What the base arm's numbers depend on, n and subsample aside: nothing of the pretraining, but whether the
        weights are 4-bit."""
        values = self.recipe()
        for key in ("experiment", "n", "pretraining", "planted_leak"):
            values.pop(key, None)
        return values | {"quantized": self.quantizes()}

    def recipe(self) -> Recipe:
        """Everything that determines the trials' numbers, as plain JSON values; without the list of subsamples, since
        a trial does not depend on its batch."""
        values = asdict(self)
        for cost_only in ("model_path", "device", "share_base", "subsamples"):
            del values[cost_only]
        del values["data"]["path"]
        values["pretraining"] = self.pretraining.model_dump(exclude={"gradient_checkpointing"})
        values["classification"] = self.classification.model_dump(exclude={"predict_batch"})
        values["data"]["class_names"] = list(self.data.class_names)
        if self.classification.method == "zero_shot":
            values["scored"] = "as choices"  # before, beside a prefix of all prompts: rounded otherwise
        if self.quantizes():
            values["four_bit_weights"] = "on every machine"  # before, only where bitsandbytes was: other cells
        return values


# ----------------------------------------------------------------------------------------------------------------------
# From a batch of trials in the grid to the plan of its worker: the configuration and the login node's records.


def plan_values(run: Run, cell: TrialCell) -> TrialPlan:
    """The plan of a cell without its files: what the configuration and the sheets say that its trials depend on. Of
    pretraining and classification the fields that they say something of are set (`model_fields_set`)."""
    row, experiment = run.language_models[cell.model], run.bias.experiments[cell.experiment]
    return TrialPlan(
        experiment=cell.experiment,
        language_model=cell.model,
        model_path="",
        architecture=row.architecture,
        data=TaskData(cell.task, "", "", ()),
        m=cell.m,
        n=cell.n,
        subsamples=tuple(range(cell.first, cell.last + 1)),
        pretraining=_pretraining(run, cell),
        classification=_classification(run, cell),
        seeds=run.bias.seeds,
        drop_duplicate_texts=run.bias.drop_duplicate_texts,
        planted_leak=experiment.planted_leak,
        # where all weights are trained: in half precision most of AdamW's steps are smaller than a weight's last bit
        dtype=row.dtype if experiment.method == "zero_shot" else "float32",
        share_base=tuple((n, experiment.count_subsamples(n)) for n in experiment.n if n != cell.n),
    )


def make_plan(records: "Workspace", cell: TrialCell, device: str = "cpu") -> TrialPlan:
    """The plan of a cell. `device` changes no number beyond rounding and is not in the plan's recipe."""
    point = records.language_model_record(cell.model)["checkpoints"]["final"]
    data = TaskData.of_record(records.trial_task_record(cell.task))
    plan = plan_values(records.run, cell)
    return replace(plan, model_path=point["path"], model_digest=point["digest"], data=data, device=device)


# ----------------------------------------------------------------------------------------------------------------------
# The rule.

TRIAL_TOKENS = 128
TEXT_BYTES, RECORD_BYTES = 100, 5000  # a predicted text's rows in the tables; the small files of a cell


class PretrainOnTest(Rule[TrialCell, BiasModel]):
    """A cell is a batch of subsamples of one (experiment, language model, task, m, n)."""

    name, words = "pretrain_on_test", "bias trials"
    summary = "Run trials of the bias study: no pretraining, pretraining on other texts, and on the test texts."
    recipe_version = 1
    cell_type = TrialCell
    worker = "lm_validity.cells.trials.worker:TrialWorker"
    sheet = "language_models"
    tables = ("trials", "probabilities")

    # ---- jobs and files -----------------------------------------------------------------------------------------

    def jobs(self, plan: Participants) -> Iterator[Job[TrialCell]]:
        """For each language model and round of the plan, its batches of subsamples, as many per job as
        `batching.pretrain_on_test.cells` says."""
        size = plan.configuration.batching.pretrain_on_test.cells
        for model in plan.run.language_models:
            rounds: dict[int, dict[str, TrialCell]] = {}
            for number, cell in self.cells_by_round(plan.run, model):
                rounds.setdefault(number, {})[cell.name] = cell
            for number, cells in sorted(rounds.items()):
                for group in make_groups(dict.fromkeys(cells, 0.0), size, "cells"):
                    # a batch of one cell has the cell's name
                    end = plan.end_of_round(number) if len(group.members) > 1 else ""
                    yield Job(self.name, model, f"{group.name}{end}", tuple(cells[name] for name in group.members))

    def cells_by_round(self, run: Run, model: str) -> Iterator[tuple[int, TrialCell]]:
        """(round of the plan, cell) of a language model."""
        settings = run.bias
        for name, experiment in settings.experiments.items():
            if model not in (experiment.language_models or run.language_models):
                continue
            for task in experiment.tasks or run.tasks:
                for m in experiment.m:
                    for n in experiment.n:
                        count, done = experiment.count_subsamples(n), 0
                        step = count if settings.subsamples_a_cell == "all" else settings.subsamples_a_cell
                        totals = run.bias_plan.totals(name, task) if run.bias_plan else {1: count}
                        for number, total in totals.items():
                            upto = min(total, count)
                            for first in range(done + 1, upto + 1, step):
                                last = min(first + step - 1, upto)
                                yield number, TrialCell(self.name, model, name, task, m, n, first, last)
                            done = upto

    def data_files(self, run: Run, job: Job[TrialCell]) -> list[str]:
        """The login node's records of the tasks, and their texts."""
        folder, tasks = f"{run.results}/prefetch/tasks", dict.fromkeys(cell.task for cell in job.cells)
        return [f"{folder}/{task}.{kind}" for task in tasks for kind in ("json", "parquet")]

    # ---- what determines the numbers ----------------------------------------------------------------------------

    def settings(self, run: Run, job: Job[TrialCell]) -> str:
        """`names={values}` for each set of values (JSON) that cells share, with the names of these cells. What the job
        and the names say is left out, and so is what changes memory or time only."""
        names: dict[str, list[str]] = {}
        for cell in job.cells:
            values = plan_values(run, cell)
            of_trials = {key: getattr(values, key) for key in SETTINGS} | {
                "pretraining": values.pretraining.model_dump(exclude_unset=True, exclude=set(COST_ONLY)),
                "classification": values.classification.model_dump(exclude_unset=True),
            }
            names.setdefault(json.dumps(of_trials, sort_keys=True, separators=(",", ":")), []).append(cell.name)
        return " ".join(f"{','.join(names_of_settings)}={settings}" for settings, names_of_settings in names.items())

    def recipe(self, records: "Workspace", cell: TrialCell) -> Recipe:
        """The plan of the cell's trials, its range of subsamples, and how dropout masks are drawn where an adapter is
        trained."""
        settings = {"subsamples": [cell.first, cell.last]}
        plan, run = make_plan(records, cell), records.run
        adapter = plan.pretraining.adapter
        masks = self.mask_settings(run, cell.model, adapter.dropout) if adapter is not None else {}
        return plan.recipe() | settings | masks

    # ---- what it costs ------------------------------------------------------------------------------------------

    def minutes(self, run: Run, job: Job[TrialCell], attempt: int = 1) -> int:
        """Minutes to load the model, and those of the trials."""
        trials = sum(cell.count for cell in job.cells)
        return int((LEAST_MINUTES + trials * self.size_class(run, job.model).trial_minutes) * attempt)

    def efforts(self, work: "Workload", cell: TrialCell) -> list[Effort]:
        """Three arms trained on m texts, two of them pretrained on n; n predicted."""
        values, row = plan_values(work.run, cell), self.row(work.run, cell.model)
        of_texts, of_labels = values.pretraining, values.classification
        pretraining: float = 2 * cell.n * of_texts.epochs
        training = 3 * cell.m * of_labels.epochs if of_labels.method == "head" else 0
        steps = pretraining / of_texts.batch_size + training / of_labels.batch_size
        operations = 6 * work.parameters(row) * (training + pretraining + cell.n) * TRIAL_TOKENS
        return [Effort(cell.count * operations, cell.count * PASSES_A_STEP * (1 + steps))]

    def stored_bytes(self, work: "Workload", cell: TrialCell) -> float:
        """Bytes of the rows of n predicted texts in three arms for every subsample, and of the cell's small files."""
        return TEXT_BYTES * cell.n * 3 * cell.count + RECORD_BYTES

    # ---- what jobs share ----------------------------------------------------------------------------------------

    def base_arms(self, work: Path) -> Path:
        """Where jobs share the arms that do not depend on n."""
        return work / self.name / f"base_arms_v{self.recipe_version}"

    def shared_work(self, work: Path) -> Iterable[Path]:
        """The folders of base arms, those of earlier recipe versions among them."""
        return (work / self.name).glob("base_arms_*")


PRETRAIN_ON_TEST = PretrainOnTest()
