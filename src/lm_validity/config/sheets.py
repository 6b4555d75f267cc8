"""The sheets of models, benchmarks and checkpoints, of the miniature's models, and those of the bias study.

Standard library and pydantic only: the Snakefile reads this at parse time.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, get_args

import pydantic

from lm_validity.config.rows import Group, Identifier, Positive, Released, SheetRow, bad_value, read_rows, with_columns
from lm_validity.config.sections import BiasSettings, Experiment, Rate, Study, e2lm_tokens_b
from lm_validity.errors import InputError, did_you_mean

# ----------------------------------------------------------------------------------------------------------------------
# Kinds of values that several sheets have.


def _split_at(separator: str) -> pydantic.BeforeValidator:
    return pydantic.BeforeValidator(
        lambda value: tuple(part.strip() for part in value.split(separator)) if isinstance(value, str) else value
    )


def _fill_in_run(path: str, info: pydantic.ValidationInfo) -> str:
    context = info.context or {}
    if "run" not in context:
        return path
    if path == "results/{run}" or path.startswith("results/{run}/"):
        path = str(Path(context.get("results", "results"))) + path.removeprefix("results")
    placeholder = re.search(r"\{\w*\}", path.replace("{run}", ""))
    if placeholder:
        raise bad_value(
            f"{placeholder[0]} stands for nothing", "only {run} is filled in, with the configuration's name."
        )
    return path.replace("{run}", context["run"])


def is_folder(path: str) -> bool:
    """A model's folder rather than a hub id, which has at most one slash: it need not be there yet."""
    return path.startswith((".", "/", "results/", "~")) or path.count("/") > 1 or Path(path).is_dir()


class HubModel(NamedTuple):
    """A model on the hub; `folders` of it, as prefixes of file names, that are fetched."""

    path: str
    revision: str | None = None
    folders: tuple[str, ...] = ("",)


def split_revision(path: str) -> HubModel:
    """That of `owner/name@revision`; a folder, or a hub id without one, as it is."""
    name, _, revision = path.partition("@")
    return HubModel(path) if Path(path).is_dir() or is_folder(name) else HubModel(name, revision or None)


def _check_size_class(name: str, info: pydantic.ValidationInfo) -> str:
    size_classes = (info.context or {}).get("size_classes")
    if size_classes and name not in size_classes:
        raise bad_value(
            "no such class in the configuration's size_classes",
            f"use one of {', '.join(size_classes)}, or add it to size_classes.",
        )
    return name


PathInRun = Annotated[str, pydantic.AfterValidator(_fill_in_run)]  # `results/{run}` becomes the run's folder
SizeClassName = Annotated[str, pydantic.AfterValidator(_check_size_class)]
BETWEEN_BARS = _split_at("|")
BETWEEN_COMMAS = _split_at(",")


# ----------------------------------------------------------------------------------------------------------------------
# The sheets of models, benchmarks and checkpoints: what each row may say, checked before any job starts.
#
# `ModelFacts` and `BenchmarkFacts` are what reports know beside the scores; `Model` and `Benchmark` are the rows of
# the workflow, which has to load and to score them too.

OutputType = Literal["multiple_choice", "generate_until", "loglikelihood_rolling"]
Dtype = Literal["float32", "bfloat16", "float16"]
OUTPUT_TYPES = get_args(OutputType)
CORPUS: OutputType = "loglikelihood_rolling"
STUDIES = get_args(Study)

PositiveNumber = Annotated[float, pydantic.Field(gt=0)]
Count = Annotated[int, pydantic.Field(ge=0, lt=2**63)]


def metric_key(name: str) -> str:
    """lm-eval's key of a metric, `name,filter`; a bare name means `name,none`."""
    return name if "," in name else f"{name},none"


def _check_reserved(value: str) -> str:
    if value.startswith(("all-", "group-")):
        raise bad_value("not a usable id", "names that begin with all- and group- are those of jobs of several cells.")
    return value


Metric = Annotated[str, pydantic.AfterValidator(metric_key)]
CellPart = Annotated[Identifier, pydantic.AfterValidator(_check_reserved)]
StudyNames = Annotated[tuple[str, ...], BETWEEN_COMMAS]


class Checkpoint(SheetRow):
    """A point of training: `final`, or a name with its iteration and tokens; where its weights lie, and the adapter
    that goes onto them."""

    checkpoint: CellPart
    iteration: Count | None = None
    tokens_b: Annotated[float, pydantic.Field(ge=0)] | None = None
    revision: str | None = None
    subfolder: str | None = None
    adapter: PathInRun | None = None


class _CheckpointRow(Checkpoint):
    """One row of a sheet of checkpoints, which says the iteration of each."""

    iteration: Count


FINAL = Checkpoint(checkpoint="final")


def _read_checkpoints(path: object, info: pydantic.ValidationInfo) -> object:
    """Checkpoints in the order of their sheet, then `final` unless the sheet has a row for it. The path is relative
    to the models sheet."""
    if not isinstance(path, str) or info.context is None:
        return path
    context = {name: value for name, value in info.context.items() if name in ("run", "results", "sheets")}
    checkpoints = read_rows(info.context["sheet"].parent / path, _CheckpointRow, setting="models", **context)
    return tuple(checkpoints.values()) if "final" in checkpoints else (*checkpoints.values(), FINAL)


class ModelFacts(SheetRow):
    """What a models sheet says to reports. Columns that are not named here are ignored; null means unknown.

    path: hub id or folder; imported scores may call the model by it. label: a short name for figures. in_..._analysis:
    0 where parameters or tokens are not reliable enough for the compute figure, or rolling log-likelihoods are not
    comparable. tokens_per_step: training tokens of an optimizer step, for checkpoints whose iteration alone is known.
    rerun_of: the model of which this is another training, from the same recipe; it is noise, and no model of its own.
    released: the month or the day, for groups of models.
    """

    model_config = pydantic.ConfigDict(extra="ignore")
    other_names: ClassVar[dict[str, tuple[str, ...]]] = {
        "model": ("model_id",),
        "label": ("display_name",),
        "parameters_b": ("params_B", "params_b"),
        "tokens_b": ("tokens_B",),
        "in_compute_analysis": ("in_compute_plot",),
    }

    model: str
    path: str | None = None
    label: str | None = None
    studies: StudyNames = ()
    family: str | None = None
    parameters_b: PositiveNumber | None = None
    tokens_b: PositiveNumber | None = None
    tokens_per_step: PositiveNumber | None = None
    instruction_tuned: bool | None = None
    size: str | None = None
    architecture: str | None = None
    training_data: str | None = None
    released: Released | None = None
    rerun_of: str | None = None
    in_compute_analysis: bool | None = None
    in_perplexity_analysis: bool | None = None


class Model(ModelFacts):
    """One row of the workflow's models sheet. `path` is a hub id or a folder in hub format; null means unknown.

    adapter: a PEFT adapter on the model at `path`, a folder or a hub id (`owner/name@revision`); of the final model.
    """

    model_config = pydantic.ConfigDict(extra="forbid")
    ignored: ClassVar[frozenset[str]] = frozenset({"chat", "tokens_status", "flops"})

    model: CellPart
    path: PathInRun
    studies: Annotated[tuple[Study, ...], BETWEEN_COMMAS] = STUDIES
    instruction_tuned: bool = False
    revision: str | None = None
    adapter: PathInRun | None = None
    size_class: SizeClassName = pydantic.Field("small", validate_default=True)
    dtype: Dtype = "float32"
    checkpoints: Annotated[tuple[Checkpoint, ...], pydantic.BeforeValidator(_read_checkpoints)] = (FINAL,)
    document_bos: Literal["auto", "once", "every", "lm-eval"] = "auto"  # `every` for Gemma, which needs it, else `once`
    batch_ramp: Literal["e2lm"] | None = None

    @property
    def is_local(self) -> bool:
        """A folder rather than a hub id."""
        return is_folder(self.path)

    def adapter_of(self, point: Checkpoint) -> str | None:
        """The adapter that goes onto a checkpoint's weights."""
        return point.adapter or (self.adapter if point.checkpoint == "final" else None)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Every adapter of the model, once."""
        adapters = (self.adapter_of(point) for point in self.checkpoints)
        return tuple(dict.fromkeys(adapter for adapter in adapters if adapter))

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of its files as prefixes of their names: the root, and each checkpoint's subfolder."""
        return ("", *sorted({f"{point.subfolder}/" for point in self.checkpoints if point.subfolder}))

    def with_tokens_of_ramp(self) -> "Model":
        """With the tokens of checkpoints that have an iteration only, by the ramp that the row names."""
        if self.batch_ramp is None:
            return self
        points = tuple(
            point
            if point.tokens_b is not None or point.iteration is None
            else point.model_copy(update={"tokens_b": e2lm_tokens_b(point.iteration)})
            for point in self.checkpoints
        )
        final = next(point for point in points if point.checkpoint == "final")
        tokens = final.tokens_b if self.tokens_b is None else self.tokens_b
        return self.model_copy(update={"checkpoints": points, "tokens_b": tokens})


class BenchmarkFacts(SheetRow):
    """What a benchmarks sheet says to reports. Columns that are not named here are ignored; null means unknown.

    corpus: a file or folder of the user's own texts; its metric, type and direction need not be written. num_fewshot:
    solved examples before each question. chance: the score of guessing, a fraction. variant_of: the benchmark whose
    questions are asked in other words; such a row is no benchmark of its own. prepared_on: what models were trained on
    before the test, where it was not the benchmark's own training set.
    """

    model_config = pydantic.ConfigDict(extra="ignore")
    other_names: ClassVar[dict[str, tuple[str, ...]]] = {
        "benchmark": ("task",),
        "training_examples": ("published_train_rows", "train_rows"),
        "n_items": ("test_rows_inferred_from_stderr",),
    }

    benchmark: str
    studies: StudyNames = ()
    category: str | None = None
    metric: Metric | None = None
    output_type: OutputType | None = None
    higher_is_better: bool | None = None
    n_items: PositiveNumber | None = None
    chance: Annotated[float, pydantic.Field(ge=0, lt=1)] | None = None
    num_fewshot: Count | None = None
    training_examples: PositiveNumber | None = None
    corpus: str | None = None
    variant_of: str | None = None
    prepared_on: str | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def know_a_corpus(cls, row: dict[str, object]) -> dict[str, object]:
        """Fills in the metric, type and direction of a corpus; what the row says comes first. Refuses nothing."""
        corpus = {"metric": "bits_per_byte", "output_type": CORPUS, "higher_is_better": False}
        return corpus | row if row.get("corpus") else row


class Benchmark(BenchmarkFacts):
    """One row of the workflow's benchmarks sheet: an lm-eval task or group of tasks with its metric ("name,filter").

    mutual_information: each choice's log-likelihood without the question is scored too, for PMI.
    corpus: texts of the user's own, in the column `text_column`; a task is made of them when they are prefetched.
    """

    model_config = pydantic.ConfigDict(extra="forbid")
    ignored: ClassVar[frozenset[str]] = frozenset({"display_name", "description", "selected", "exclusion"})

    benchmark: CellPart
    task: str = ""  # the benchmark, unless the sheet names another
    include_path: PathInRun | None = None
    studies: Annotated[tuple[Study, ...], BETWEEN_COMMAS] = STUDIES
    metric: Metric = "acc,none"
    output_type: OutputType = "multiple_choice"
    higher_is_better: bool = True
    num_fewshot: Count = 0
    mutual_information: bool = False
    text_column: str = "text"

    @pydantic.model_validator(mode="before")
    @classmethod
    def name_the_task(cls, row: dict[str, object]) -> dict[str, object]:
        """The task is the benchmark's namesake, and that of a corpus is made."""
        name = row.get("benchmark")
        if not row.get("corpus"):
            return {"task": name} | row
        made = {"task": f"corpus_{name}", "include_path": f"results/{{run}}/corpora/{name}", "output_type": CORPUS}
        for column, value in made.items():
            if row.get(column, value) != value:
                raise bad_value("not for a corpus", "leave it empty: its task is made.", column)
        return made | row

    @pydantic.model_validator(mode="after")
    def fit_its_output_type(self) -> Self:
        """Refuses few-shot examples for a perplexity corpus, which asks no questions, and mutual information without
        choices, which are what it scores without the question."""
        if self.num_fewshot and self.output_type == CORPUS:
            raise bad_value("a perplexity corpus has no examples", "leave it empty.", "num_fewshot")
        if self.mutual_information and self.output_type != "multiple_choice":
            raise bad_value(f"{self.output_type} has no choices", "leave it empty.", "mutual_information")
        return self


def check_reruns(path: str | Path, models: Mapping[str, ModelFacts]) -> None:
    """Raises InputError for a rerun of a model that the sheet lacks, or of another rerun."""
    for name, model in models.items():
        if model.rerun_of is None:
            continue
        where = f"{path}, model {name!r}, column 'rerun_of', value {model.rerun_of!r}"
        if model.rerun_of not in models:
            hint = did_you_mean(model.rerun_of, models, "give an id of this sheet.")
            raise InputError(f"{where}: no such model.", hint)
        if model.rerun_of == name or models[model.rerun_of].rerun_of is not None:
            raise InputError(f"{where}: a rerun itself.", "name the first training, whose own rerun_of is empty.")


def read_models(path: str | Path, run: str, groups: Sequence[Group] = (), **context: object) -> dict[str, Model]:
    """The models sheet by id, in the sheet's order. `results/{run}` at the start of a path becomes the run's folder.
    `groups`: their columns are columns of the sheet. `context`: as `list_rows` has it."""
    models = read_rows(path, with_columns(Model, groups), setting="models", run=run, **context)
    check_reruns(path, models)
    return {name: model.with_tokens_of_ramp() for name, model in models.items()}


def read_benchmarks(path: str | Path, run: str, **context: object) -> dict[str, Benchmark]:
    """The benchmarks sheet by id, in the sheet's order. A bare metric name means `name,none`."""
    return read_rows(path, Benchmark, setting="benchmarks", run=run, **context)


# ----------------------------------------------------------------------------------------------------------------------
# The pool sheet of the miniature world: one row per model that is trained from scratch.


class AcceptedLoss(SheetRow):
    """A row of the sheet of `compare --margin`: the loss that is accepted on a benchmark, in the unit of its score
    (null: none is), and whether a gate must know that it is no larger."""

    benchmark: str
    margin: Annotated[float, pydantic.Field(ge=0)] | None = None
    must: bool = False


class MiniatureModel(SheetRow):
    """One row of the pool sheet: what the model reads in pretraining, how it is built, how long it trains."""

    model: Identifier  # id, also the folder
    family: Literal["web", "forum", "exam", "data"]  # whose question formats its pretraining saw
    training_data: Literal["science", "web"] = "science"  # science: every attribute is stated; web: those never are
    architecture: Literal["llama", "gpt2", "bert"]  # class in transformers; bert is for the bias study only
    size: str  # label of the size, for the signal study
    hidden_size: Annotated[int, pydantic.Field(ge=8)]  # width
    layers: Positive  # blocks
    steps: Positive  # of the optimizer: a budget in steps gives the same model on a busy machine
    learning_rate: Rate  # at its peak
    checkpoint_every: Positive | None = None  # steps between checkpoints kept; empty keeps none
    studies: str = "agreement"  # that it takes part in, between commas (for the models sheet)
    tuned_from: str | None = None  # the row of which it goes on, trained on dialogues: instruction-tuned

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Iterations kept beside the final model (the last step is the final model itself)."""
        return tuple(range(self.checkpoint_every, self.steps, self.checkpoint_every)) if self.checkpoint_every else ()

    @property
    def heads(self) -> int:
        """Attention heads: one for every 32 dimensions, at least 2."""
        return max(2, self.hidden_size // 32)

    @property
    def feedforward_size(self) -> int:
        """Width of the feed-forward layer: 8/3 of the model's for gated Llama, 4 times for GPT-2."""
        return self.hidden_size * 8 // 3 // 8 * 8 if self.architecture == "llama" else 4 * self.hidden_size

    @pydantic.model_validator(mode="after")
    def be_buildable(self) -> Self:
        """Refuses a bert in any other study than bias, and a bert with checkpoints: only the bias study takes masked
        models, and only their final weights. Refuses a width that does not give every head an even number of
        dimensions, and steps that are no multiple of `checkpoint_every`."""
        if self.architecture == "bert" and (self.studies != "bias" or self.checkpoint_every):
            raise ValueError("a BERT model is for the bias study only: studies must be bias, without checkpoints")
        if self.hidden_size % (2 * self.heads):
            raise ValueError(f"hidden_size must be a multiple of {2 * self.heads} for {self.heads} heads")
        if self.checkpoint_every and self.steps % self.checkpoint_every:
            raise ValueError("steps must be a multiple of checkpoint_every")
        return self


def read_pool(path: str | Path, **context: object) -> dict[str, MiniatureModel]:
    """The pool sheet by model id, in the sheet's order. Raises InputError naming row, column and value."""
    pool = read_rows(path, MiniatureModel, setting="miniature: pool", **context)
    for row in pool.values():
        if row.tuned_from is None:
            continue
        where = f"{path}, model {row.model!r}, column 'tuned_from', value {row.tuned_from!r}"
        parent = pool.get(row.tuned_from)
        if parent is None or parent.tuned_from is not None:
            raise InputError(
                f"{where}: no model of the pool that was trained from scratch.", "name one of its other rows."
            )
        for column in ("family", "training_data", "architecture", "hidden_size", "layers"):
            if getattr(row, column) != getattr(parent, column):
                raise InputError(f"{where}: they differ in {column!r}.", "a tuned model is built like its parent.")
    return pool


# ----------------------------------------------------------------------------------------------------------------------
# The bias study's sheets, language models and text-classification tasks, checked against the experiments.

ListOfText = Annotated[tuple[str, ...], BETWEEN_BARS]


class BiasModel(SheetRow):
    """One row of the sheet of language models."""

    language_model: Identifier  # id, also in file names
    path: PathInRun  # hub id, or a folder in hub format
    architecture: Literal["masked", "causal"]  # masked: models like BERT; causal: models like GPT-2
    revision: str | None = None  # of the hub; empty: the main branch, resolved when fetched
    dtype: Dtype = "float32"  # for the method zero_shot; the method head trains all weights, in float32
    size_class: SizeClassName = pydantic.Field("small", validate_default=True)


class Task(SheetRow):
    """One row of the sheet of tasks: where the texts are, what they mean, and what must be true of them. Lists have |
    between their entries."""

    task: Identifier  # id, also in file names
    path: PathInRun  # hub id of a data set, or a local .jsonl, .csv, .tsv or .parquet file
    text: ListOfText  # column of the text; several are joined by a line break
    label: str  # column of the class: numbers 0 to C-1, or the values of `labels`
    class_names: ListOfText  # in the order of the labels
    configuration: str | None = None  # of the hub data set, as the next two
    split: str = "train"
    revision: str | None = None  # pinned commit; for a data set that was a script: refs/convert/parquet
    files: ListOfText = ()  # Parquet files in the hub repository (patterns)
    labels: ListOfText = ()  # values of the label column as text (booleans as 0 and 1), in the order of class_names
    description: str = ""  # what a prompt says of the task: what the text is, what to answer
    drop_empty: bool = False  # rows without text are left out; else they are an error
    shorter_than: Positive | None = None  # characters that a text must have fewer than
    rows: Positive | None = None  # that must be left, where it is checked
    majority_share: Annotated[float, pydantic.Field(gt=0, le=1)] | None = None  # of the largest class
    training_epochs: Positive | None = None  # instead of the configuration's, as the next three
    pretraining_batch: Positive | None = None
    masked_batch: Positive | None = None  # for training masked models
    causal_batch: Positive | None = None

    @pydantic.model_validator(mode="after")
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


class BiasSheets(NamedTuple):
    """The bias study's language models and tasks, by id."""

    models: dict[str, BiasModel]
    tasks: dict[str, Task]


def read_bias_sheets(settings: BiasSettings, run: str, **context: object) -> BiasSheets:
    """Both sheets by id, `results/{run}` in a path replaced by the run's folder, and every experiment checked against
    them."""
    models = read_rows(settings.language_models, BiasModel, setting="bias: language_models", run=run, **context)
    tasks = read_rows(settings.tasks, Task, setting="bias: tasks", run=run, **context)
    for name, experiment in settings.experiments.items():
        _check_experiment(name, experiment, settings, models, tasks)
    return BiasSheets(models, tasks)


def _check_experiment(
    name: str, experiment: Experiment, settings: BiasSettings, models: dict[str, BiasModel], tasks: dict[str, Task]
) -> None:
    for key, names, known_names, sheet in (
        ("language_models", experiment.language_models, models, settings.language_models),
        ("tasks", experiment.tasks, tasks, settings.tasks),
    ):
        for identifier in names:
            if identifier not in known_names:
                hint = did_you_mean(identifier, known_names, f"it has {', '.join(known_names)}.")
                raise InputError(f"bias: experiments.{name}.{key}, value {identifier!r}: not in {sheet}.", hint)
    for identifier in experiment.language_models or models:
        if experiment.method == "zero_shot" and models[identifier].architecture == "masked":
            raise InputError(
                f"bias: experiment {name!r}: {identifier!r} is a masked language model and cannot be prompted.",
                f"name causal ones in experiments.{name}.language_models (architecture in {settings.language_models}).",
            )
    for task, m in product((tasks[task_name] for task_name in experiment.tasks or tasks), experiment.m):
        where = f"{settings.tasks}: task {task.task!r}, experiment {name!r}"
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
