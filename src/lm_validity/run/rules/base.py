"""Who takes part in a run, and what a rule is: one object that knows everything that one kind of cell needs, from the
jobs of a run to the worker.

The grid, the workspace, the tables, the monitor, the command line and the Snakefile ask the rule and compare no names.
A new rule is a class beside this module with its line in `RULES`, a Snakemake rule, and a worker under `cells/`.
Standard library, pydantic and PyYAML only: the Snakefile asks at parse time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, NamedTuple, TypeVar

from lm_validity.config.load import Run
from lm_validity.config.sections import SizeClass
from lm_validity.config.sheets import Benchmark, BiasModel, Model
from lm_validity.run.cell import Cell, CellT, Choice, Job, Prompt, Recipe

if TYPE_CHECKING:
    from lm_validity.run.workspace import Workload, Workspace

LEAST_MINUTES = 5


class Resources(NamedTuple):
    """GPUs, processor cores, memory of the machine in MB, minutes."""

    gpus: int
    cpus: int
    mem_mb: int
    minutes: int


class Effort(NamedTuple):
    """What a part of a cell computes: floating-point operations, and forward passes one after the other, of which an
    optimizer step takes as long as PASSES_A_STEP."""

    operations: float
    passes: float


PASSES_A_STEP = 3


# ----------------------------------------------------------------------------------------------------------------------
# Who takes part in a run: the models, benchmarks and prompts of each study, and how many cells share a job.


class Participants:
    """The rows of a run's sheets that its studies use."""

    def __init__(self, run: Run):
        self.run = run
        self.configuration = run.configuration
        # minutes that a job may take, where its cells are as many as fit into that
        self.longest_job = 60.0 * run.configuration.batching.job_hours

    def takes_part(self, row: Model | Benchmark, study: str) -> bool:
        """Whether the run has the study and the row is in it."""
        return study in self.configuration.studies and study in row.studies

    def models(self, study: str) -> list[Model]:
        """Rows of a study's models, in the sheet's order; none where the run lacks the study."""
        return [model for model in self.run.models.values() if self.takes_part(model, study)]

    def benchmarks(self, study: str) -> tuple[str, ...]:
        """Ids of a study's benchmarks, in the sheet's order, without other wordings (`variants`)."""
        rows = self.run.benchmarks.values()
        return tuple(row.benchmark for row in rows if self.takes_part(row, study) and not row.variant_of)

    @cached_property
    def variants(self) -> tuple[str, ...]:
        """Other wordings of benchmarks: scored as the models come, on test, in the agreement study. A replay has none:
        it serves the score that counts of each benchmark."""
        rows = () if self.configuration.replay else self.run.benchmarks.values()
        return tuple(row.benchmark for row in rows if row.variant_of and self.takes_part(row, "agreement"))

    def is_test_only(self, benchmark: str) -> bool:
        """Whether a benchmark is only scored, never trained on: then it needs no train and validation documents."""
        return benchmark not in self.benchmarks("agreement")

    @cached_property
    def used_models(self) -> list[str]:
        """Ids of the models that any study of the run uses, in the sheet's order."""
        return [row.model for row in self.run.models.values() if any(self.takes_part(row, s) for s in row.studies)]

    @cached_property
    def used_benchmarks(self) -> list[str]:
        """Ids of the benchmarks and variants that any study of the run uses, in the sheet's order."""
        rows = self.run.benchmarks.values()
        used_rows = (row for row in rows if not row.variant_of or row.benchmark in self.variants)
        return [row.benchmark for row in used_rows if any(self.takes_part(row, study) for study in row.studies)]

    @property
    def used_rows(self) -> list[Model | BiasModel]:
        """The rows of every model that a study of the run uses."""
        return [*(self.run.models[model] for model in self.used_models), *self.run.language_models.values()]

    def prompts(self, model: str, benchmark: str) -> tuple[Prompt, ...]:
        """Base models and corpora are always plain; else instruction-tuned ones are tried as the configuration says."""
        corpus = self.run.benchmarks[benchmark].output_type == "loglikelihood_rolling"
        if corpus or not self.run.models[model].instruction_tuned:
            return ("plain",)
        return self.configuration.evaluation.instruction_tuned_prompts

    def is_planned(self, model: str, benchmark: str) -> bool:
        """Whether the model is fine-tuned on the benchmark: all are where there is no plan."""
        return self.run.plan is None or (model, benchmark) in self.run.plan

    def rounds(self, model: str) -> list[tuple[str, tuple[str, ...]]]:
        """(end of its batches' names, benchmarks that the model is fine-tuned on) of each round of the plan.

        The first plan of a run may regroup its jobs; their finished cells are found in the store.
        """
        everything = self.benchmarks("agreement")
        if self.run.plan is None:
            return [("", everything)] if everything else []
        by_round: dict[int, list[str]] = {}
        for name in everything:
            if (model, name) in self.run.plan:
                by_round.setdefault(self.run.plan[model, name].round, []).append(name)
        return [(self.end_of_round(number), tuple(names)) for number, names in sorted(by_round.items())]

    def end_of_round(self, number: int) -> str:
        """The end of the names of a round's jobs. The first has none: so a later round renames no job of an earlier
        one."""
        return f".round{number}" if number > 1 else ""


class Batched(NamedTuple):
    """A group of neighbours in a list, which share a job."""

    name: str
    members: tuple[str, ...]


def make_groups(
    minutes: Mapping[str, float], size: int | str, noun: str, longest: float = 0.0, prefix: str = ""
) -> list[Batched]:
    """Cut the keys of `minutes`, in order, into runs of at most `size` ("all": one run; "auto": as many as take at most
    `longest` together; what takes longer is alone), each named for its files.

    A run of one is named by its member; the whole list is `all-<noun>`; others `group-<i>-of-<n>-<noun>`.
    """
    cuts: list[list[str]] = []
    total = 0.0
    for member, duration in minutes.items():
        total += duration
        if not cuts or (total > longest if size == "auto" else len(cuts[-1]) == size):
            cuts.append([])
            total = duration
        cuts[-1].append(member)
    if len(cuts) == 1 < len(minutes):
        return [Batched(f"all-{noun}", tuple(minutes))]
    if len(cuts) == len(minutes):
        return [Batched(f"{prefix}{member}", (member,)) for member in minutes]
    return [Batched(f"group-{i}-of-{len(cuts)}-{noun}", tuple(cut)) for i, cut in enumerate(cuts, 1)]


def size_class(run: Run, row: Model | BiasModel) -> SizeClass:
    """The size class of a model of any study."""
    return run.configuration.size_classes[row.size_class]


def kind_label(sheet: str) -> str:
    """What a row of a sheet of `Run` is called, e.g. "language model"."""
    return sheet.removesuffix("s").replace("_", " ")


def kind_and_id(row: Model | BiasModel) -> tuple[str, str]:
    """("models" or "language_models", id): the name of the sheet in `Run` and of its folder of prefetch records."""
    return ("models", row.model) if isinstance(row, Model) else ("language_models", row.language_model)


# ----------------------------------------------------------------------------------------------------------------------
# The rule.

RowT = TypeVar("RowT", bound=Model | BiasModel)


class Rule(ABC, Generic[CellT, RowT]):
    """One kind of cell, of models in one sheet. Subclasses say what differs; every method is asked about one run, job
    or cell."""

    name: ClassVar[str]
    words: ClassVar[str]  # what its jobs do, as status and cost call it
    summary: ClassVar[str]  # one line: the help of the rule's subcommand
    # In every recipe: bump it when a change of code changes numbers. Cells of the old version stay and are not mixed
    # in. None: the result is small enough for the manifest, and the store has no cells of this rule.
    recipe_version: int | None = None
    cell_type: ClassVar[Callable[..., Cell]]
    worker: ClassVar[str]  # "module:name" under `cells/`, imported by the job that computes
    sheet: ClassVar[Literal["models", "language_models"]] = "models"  # of `Run`: where the ids of its models are
    protocol: ClassVar[Literal["direct", "train_before_test"]] = "direct"  # that scores belong to
    tables: ClassVar[tuple[str, ...]] = ()  # the merged tables that its cells are rows of
    parts: ClassVar[tuple[str, ...]] = ("",)  # a job declares a manifest for each
    reads_records = True  # of its models; False: the manifests that its jobs read already depend on them
    on_login_node = False  # computes nothing: its jobs are no jobs of a cluster, and cost nothing

    # ---- names --------------------------------------------------------------------------------------------------

    @property
    def wildcard(self) -> str:
        """The Snakemake wildcard (with `batch`) and the command-line option that hold the model's id."""
        return self.sheet.removesuffix("s")

    @property
    def in_store(self) -> bool:
        """Whether finished cells lie in the store, each in the folder of its recipe."""
        return self.recipe_version is not None

    # ---- jobs and files -----------------------------------------------------------------------------------------

    @abstractmethod
    def jobs(self, plan: Participants) -> Iterator[Job[CellT]]:
        """The jobs of a run, in the order of its sheets."""

    def part(self, cell: CellT) -> str:
        """Which of `parts` lists the cell."""
        return ""

    @abstractmethod
    def data_files(self, run: Run, job: Job[CellT]) -> list[str]:
        """The files of documents, and what the login node wrote about them, that a job reads."""

    def stands_on(self, plan: Participants, cell: CellT) -> Iterable[Cell]:
        """The cells of other rules whose results a cell needs; their manifests are inputs of its job."""
        return ()

    # ---- what determines the numbers ----------------------------------------------------------------------------

    @abstractmethod
    def settings(self, run: Run, job: Job[CellT]) -> str:
        """A job's recipe settings in one line: Snakemake reruns the job when it changes, and for nothing else."""

    def recipe(self, records: "Workspace", cell: CellT) -> Recipe:
        """Everything that determines the cell's numbers and nothing else; rule and version are added. Every rule with
        cells in the store has its own."""
        return {}

    def stand_in(self, records: "Workspace", cell: CellT) -> Cell | None:
        """The cell of another rule whose result is also this one's, where nothing has to be computed for it."""
        return None

    def choice(self, cell: CellT, content: Choice) -> Cell | None:
        """The cell that a result kept in the manifest chose; None where it chose none."""
        return None

    def side_by_side(self, run: Run, job: Job[CellT]) -> list[list[CellT]]:
        """Groups of a job's cells that its worker can compute together (`compute_together`)."""
        return []

    # ---- what it costs ------------------------------------------------------------------------------------------

    def row(self, run: Run, model: str) -> RowT:
        """The sheet row of a model of this rule. Both sheets may hold the same id: that is two models."""
        row: RowT = getattr(run, self.sheet)[model]
        return row

    def size_class(self, run: Run, model: str) -> SizeClass:
        """The size class of a model of this rule."""
        return size_class(run, self.row(run, model))

    def mask_settings(self, run: Run, model: str, dropout: float) -> dict[str, str]:
        """What a recipe says of LoRA's dropout on a GPU, which draws the masks of a block at once. Before, it drew them
        layer by layer and dropped other elements. A CPU still does, so nothing is said there."""
        on_a_gpu = self.size_class(run, model).gpu > 0 and run.configuration.evaluation.device != "cpu"
        return {"dropout_masks": "of a block"} if dropout and on_a_gpu else {}

    @abstractmethod
    def minutes(self, run: Run, job: Job[CellT], attempt: int = 1) -> int:
        """Minutes that a job asks for: what its cells need by size class, times the attempt."""

    def resources(self, run: Run, job: Job[CellT], attempt: int = 1) -> Resources:
        """What a job asks of a machine, by the size class of its model. A replay runs no model: it asks for no GPU."""
        of_size = self.size_class(run, job.model)
        if self.on_login_node:
            return Resources(0, 1, of_size.mem_mb, LEAST_MINUTES)
        gpus = 0 if run.configuration.replay else of_size.gpu
        return Resources(gpus, of_size.cpus, of_size.mem_mb * attempt, self.minutes(run, job, attempt))

    def efforts(self, work: "Workload", cell: CellT) -> list[Effort]:
        """What one cell computes, in parts; nothing where no model runs."""
        return []

    def stored_bytes(self, work: "Workload", cell: CellT) -> float:
        """What a finished cell takes in the store."""
        return 0.0

    def shared_work(self, work: Path) -> Iterable[Path]:
        """Folders of the work directory that jobs share beside the store: they go when cells are forgotten."""
        return ()
