"""The bias study's sheets, language models and text-classification tasks, checked against the experiments.

Standard library and pydantic only: the Snakefile reads this at parse time.
"""

from collections.abc import Collection
from functools import partial
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from lm_validity.config.rows import (
    BETWEEN_BARS,
    Identifier,
    PathInRun,
    Positive,
    SheetRow,
    Sheets,
    SizeClassName,
    read_rows,
)
from lm_validity.config.sections import BiasSettings, Experiment
from lm_validity.config.sheets import Dtype
from lm_validity.errors import InputError, did_you_mean

ListOfText = Annotated[tuple[str, ...], BETWEEN_BARS]
DESCRIBED_IN = "docs/how_to/bias_study.md"


class LanguageModel(SheetRow):
    """One row of the sheet of language models."""

    language_model: Identifier = Field(description="Id, also in file names.")
    path: PathInRun = Field(description="Hub id, or a folder in hub format.")
    architecture: Literal["masked", "causal"] = Field(
        description="masked: models like BERT. causal: models like GPT-2."
    )
    revision: str | None = Field(None, description="Of the hub. Empty: the main branch, resolved when fetched.")
    dtype: Dtype = Field(
        "float32",
        description="Of the weights, for the method zero_shot. The method head trains all of them, in float32.",
    )
    size_class: SizeClassName = Field(
        "small", validate_default=True, description="One of the configuration's size_classes."
    )


class Task(SheetRow):
    """One row of the sheet of tasks: where the texts are, what they mean, and what must be true of them."""

    task: Identifier = Field(description="Id, also in file names.")
    path: PathInRun = Field(description="Hub id of a data set, or a local .jsonl, .csv, .tsv or .parquet file.")
    text: ListOfText = Field(description="Column of the text. Several, separated by |, are joined by a line break.")
    label: str = Field(description="Column of the class: numbers 0 to C-1, or the values of `labels`.")
    class_names: ListOfText = Field(description="Names of the classes, separated by |, in the order of the labels.")
    configuration: str | None = Field(None, description="Of the hub data set.")
    split: str = Field("train", description="Of the hub data set.")
    revision: str | None = Field(
        None, description="Pinned commit. For a data set that was a script: refs/convert/parquet."
    )
    files: ListOfText = Field((), description="Parquet files in the hub repository (patterns, separated by |).")
    labels: ListOfText = Field(
        (), description="Values of the label column as text (booleans as 0 and 1), in the order of class_names."
    )
    description: str = Field("", description="What a prompt says of the task: what the text is, what to answer.")
    drop_empty: bool = Field(False, description="1: leave out rows without text. Otherwise they are an error.")
    shorter_than: Positive | None = Field(None, description="Keep only texts with fewer characters.")
    rows: Positive | None = Field(None, description="Number of rows that must be left. Empty: not checked.")
    majority_share: float | None = Field(
        None, gt=0, le=1, description="Share of the largest class. Empty: not checked."
    )
    training_epochs: Positive | None = Field(None, description="Instead of the configuration's.")
    pretraining_batch: Positive | None = Field(None, description="Instead of the configuration's.")
    masked_batch: Positive | None = Field(
        None, description="Training batch of masked models, instead of the configuration's."
    )
    causal_batch: Positive | None = Field(None, description="Training batch of causal models.")

    @model_validator(mode="after")
    def name_each_class_once(self) -> Self:
        """Refuses fewer than two class names, a repeated name, and a number of `labels` other than that of the classes:
        each label stands for one class."""
        if len(self.class_names) < 2 or len(set(self.class_names)) < len(self.class_names):
            raise ValueError("class_names must be two or more different names, separated by |")
        if self.labels and len(self.labels) != len(self.class_names):
            raise ValueError(f"{len(self.labels)} labels for {len(self.class_names)} class_names")
        return self


# what the login node reads; the batch sizes are for the jobs
SOURCE_COLUMNS = set(Task.model_fields) - {"training_epochs", "pretraining_batch", "masked_batch", "causal_batch"}


def read_bias_sheets(
    settings: BiasSettings,
    run: str,
    size_classes: Collection[str],
    results: str = "results",
    sheets: Sheets | None = None,
) -> tuple[dict[str, LanguageModel], dict[str, Task]]:
    """Both sheets by id, `results/{run}` in a path replaced by the run's folder, and every experiment checked against
    them."""
    read = partial(
        read_rows, described_in=DESCRIBED_IN, run=run, results=results, size_classes=size_classes, sheets=sheets
    )
    models = read(settings.language_models, LanguageModel, setting="bias: language_models")
    tasks = read(settings.tasks, Task, setting="bias: tasks")
    for name, experiment in settings.experiments.items():
        _check_ids(name, "language_models", experiment.language_models, models, settings.language_models)
        _check_ids(name, "tasks", experiment.tasks, tasks, settings.tasks)
        _check_methods(name, experiment, models, settings)
        for task in experiment.tasks or tasks:
            _check_sizes(name, experiment, tasks[task], settings)
    return models, tasks


def _check_ids(experiment: str, key: str, wanted: tuple[str, ...], known: Collection[str], sheet: str) -> None:
    for identifier in wanted:
        if identifier not in known:
            where = f"bias: experiments.{experiment}.{key}, value {identifier!r}"
            hint = did_you_mean(identifier, known, f"it has {', '.join(known)}.")
            raise InputError(f"{where}: not in {sheet}.", hint)


def _check_methods(name: str, experiment: Experiment, models: dict[str, LanguageModel], settings: BiasSettings) -> None:
    for identifier in experiment.language_models or models:
        if experiment.method == "zero_shot" and models[identifier].architecture == "masked":
            raise InputError(
                f"bias: experiment {name!r}: {identifier!r} is a masked language model and cannot be prompted.",
                f"name causal ones in experiments.{name}.language_models (architecture in {settings.language_models}).",
            )


def _check_sizes(name: str, experiment: Experiment, task: Task, settings: BiasSettings) -> None:
    where = f"{settings.tasks}: task {task.task!r}, experiment {name!r}"
    for m in experiment.m:
        if m < len(task.class_names):
            raise InputError(
                f"{where}: m = {m} labelled texts for {len(task.class_names)} classes.",
                "every class needs at least one: raise m, or leave the task out.",
            )
        for n in experiment.n:
            if task.rows is not None and task.rows < m + 2 * n:
                raise InputError(
                    f"{where}: {task.rows} rows, but m + 2n = {m + 2 * n} are needed (m = {m}, n = {n}).",
                    "lower m or n for it in an experiment of its own, or leave it out.",
                )
