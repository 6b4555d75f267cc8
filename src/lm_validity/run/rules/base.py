"""What a rule is: one object that knows everything that one kind of cell needs, from the jobs of a run to the worker.

The grid, the workspace, the tables, the monitor, the command line and the Snakefile ask the rule and compare no names.
A new rule is a class here with its line in `RULES`, a Snakemake rule, and a worker under `cells/`. Standard library,
pydantic and PyYAML only: the Snakefile asks at parse time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

from lm_validity.config.load import Run
from lm_validity.config.sections import SizeClass
from lm_validity.config.sheets import BiasModel, Model
from lm_validity.run.cell import Cell, CellT, Job, Recipe, models_of
from lm_validity.run.participants import Participants, size_class
from lm_validity.run.records import Choice, Records

LEAST_MINUTES = 5


class Resources(NamedTuple):
    """GPUs, processor cores, memory of the machine in MB, minutes."""

    gpus: int
    cpus: int
    mem_mb: int
    minutes: int


class Work(Protocol):
    """The analytic model that turns a cell's work into seconds and bytes (`monitor.cost.Workload`)."""

    run: Run

    def documents(self, benchmark: str, split: str) -> int:
        """Number of documents in a benchmark's split."""

    def tokens(self, kind: str, benchmark: str) -> float:
        """Tokens per document: `scored` (all choices) or `trained`."""

    def parameters(self, row: Model | BiasModel) -> float:
        """Number of parameters of a model, from the sheet or assumed."""

    def computing_seconds(self, row: Model | BiasModel, operations: float, passes: float, steps: float) -> float:
        """Seconds of so many floating-point operations in so many forward passes and optimizer steps."""

    def scoring_operations(self, row: Model, benchmark: str, split: str) -> float:
        """Floating-point operations of scoring the documents of a split."""

    def scoring_seconds(self, row: Model, benchmark: str, split: str) -> float:
        """Seconds to score the documents of a split."""

    def adapter_bytes(self, row: Model) -> float:
        """Size of a trained adapter."""


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
    tables: ClassVar[tuple[str, ...]] = ()  # the merged tables that its cells are rows of
    parts: ClassVar[tuple[str, ...]] = ("",)  # a job declares a manifest for each
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

    def model_records(self, run: Run, job: Job[CellT]) -> list[str]:
        """The login node's record of each model, unless a manifest that the job reads already depends on it."""
        return [f"{run.results}/prefetch/{self.sheet}/{model}.json" for model in models_of(job)]

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

    def settings_key(self, run: Run, job: Job[CellT]) -> tuple[object, ...]:
        """Jobs of a rule with equal keys have equal settings, so that they are described once."""
        return job

    def recipe(self, records: Records, cell: CellT) -> Recipe:
        """Everything that determines the cell's numbers and nothing else; rule and version are added. Every rule with
        cells in the store has its own."""
        return {}

    def stand_in(self, records: Records, cell: CellT) -> Cell | None:
        """The cell of another rule whose result is also this one's, where nothing has to be computed for it."""
        return None

    def choice(self, cell: CellT, content: Choice) -> Cell | None:
        """The cell that a result kept in the manifest chose; None where it chose none."""
        return None

    def side_by_side(self, run: Run, job: Job[CellT]) -> list[list[CellT]]:
        """Groups of a job's cells that its worker can compute together (`compute_together`)."""
        return []

    def writes_with_vllm(self, run: Run, cell: CellT) -> bool:
        """Whether vLLM writes the cell's answers."""
        return False

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

    def seconds(self, work: Work, cell: CellT) -> float:
        """Expected seconds of one cell; 0 where nothing is computed."""
        return 0.0

    def operations(self, work: Work, cell: CellT) -> float:
        """Floating-point operations of one cell; 0 where no model runs, or nobody asks."""
        return 0.0

    def stored_bytes(self, work: Work, cell: CellT) -> float:
        """What a finished cell takes in the store."""
        return 0.0

    def shared_work(self, work: Path) -> Iterable[Path]:
        """Folders of the work directory that jobs share beside the store: they go when cells are forgotten."""
        return ()
