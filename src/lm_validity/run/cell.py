"""Cells and jobs; what the login node wrote, from which recipes are made."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, Literal, NamedTuple, NotRequired, TypeAlias, TypedDict, TypeVar

from lm_validity.files import Document, read_object

# ----------------------------------------------------------------------------------------------------------------------
# Recipes: everything that determines a cell's numbers, and nothing else, hashed into the name of its folder.
#
# Batch sizes, devices, library versions and file paths are not in a recipe: they are recorded beside the result.
# A rule's `recipe_version` is one, bumped by hand when a change of code changes numbers.


Recipe = dict[str, object]  # a JSON object, which is compared and hashed whole


def recipe_hash(recipe: Mapping[str, object]) -> str:
    """Twelve hex digits of the SHA-256 of the recipe's canonical JSON."""
    text = json.dumps(recipe, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def derive_seed(*parts: object) -> int:
    """A seed in [0, 2^63) from the parts of a cell's key; the same on every machine."""
    text = json.dumps([str(part) for part in parts])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


# ----------------------------------------------------------------------------------------------------------------------
# Cells and jobs. A *cell* is one unit of GPU work and of resume; a *job* is one process that Snakemake starts, for one
# model or for several adapters of one, with one or several cells.
#
# Standard library only: the Snakefile builds them at parse time.

T = TypeVar("T")
Prompt = Literal["plain", "chat"]


class BenchmarkCell(NamedTuple):
    """A model and a benchmark. Parts that a rule does not have are None."""

    rule: str
    model: str
    benchmark: str
    checkpoint: str | None = None
    prompt: Prompt | None = None
    learning_rate: str | None = None
    seed: int | None = None
    split: str | None = None
    run: int | None = None  # of sampled answers, from 0; None: the likeliest answer

    @property
    def name(self) -> str:
        """The cell within its model, e.g. `arc_easy.plain.lr2e-5.seed0` or `arc_easy.final.plain.test`."""
        rate = f"lr{self.learning_rate}" if self.learning_rate else None
        seed = f"seed{self.seed}" if self.seed is not None else None
        run = f"run{self.run}" if self.run is not None else None
        parts = (self.benchmark, self.checkpoint, self.prompt, rate, seed, run, self.split)
        return ".".join(part for part in parts if part)

    @property
    def subject(self) -> str:
        """What the cell is about: its benchmark."""
        return self.benchmark

    @property
    def scored_split(self) -> str:
        """The split whose documents a score is of; an adapter's is always test."""
        return self.split or "test"


class TrialCell(NamedTuple):
    """Subsamples `first` to `last` of one (experiment, language model, task, m, n) of the bias study."""

    rule: str
    model: str
    experiment: str
    task: str
    m: int
    n: int
    first: int
    last: int

    @property
    def name(self) -> str:
        """The cell within its language model, e.g. `head.ag_news.m50.n200.subsamples1-25`."""
        return f"{self.experiment}.{self.task}.m{self.m}.n{self.n}.subsamples{self.first}-{self.last}"

    @property
    def subject(self) -> str:
        """What the cell is about: its task."""
        return self.task

    @property
    def count(self) -> int:  # type: ignore[override] # a cell is no sequence, though a tuple has this name
        """Number of subsamples that the cell computes."""
        return self.last - self.first + 1


# Equal values are one cell, and a manifest holds the values by name (`rules.read_cell` makes the cell of them again).
# A rule has cells of one kind. What all have: `rule`; `model`, an id in the rule's sheet; `name`, the cell within its
# rule and model, which names files; `subject`, what the model is tried on.
Cell: TypeAlias = BenchmarkCell | TrialCell
CellT = TypeVar("CellT", bound=Cell)
CellT_co = TypeVar("CellT_co", bound=Cell, covariant=True)


class Job(NamedTuple, Generic[CellT_co]):
    """One process: the cells that it computes, in order. Jobs are found by (rule, model, batch); `batch` is a readable
    name, and for a job of one cell it is the cell's own name. All cells are of `model`."""

    rule: str
    model: str
    batch: str
    cells: tuple[CellT_co, ...]


def given(part: T | None) -> T:
    """A part of a cell that the cells of its rule have."""
    assert part is not None
    return part


def label(cell: Cell) -> str:
    """What a person calls a cell: rule/model/name."""
    return f"{cell.rule}/{cell.model}/{cell.name}"


# ----------------------------------------------------------------------------------------------------------------------
# What the login node wrote, what lies in the store, and what is chosen of it.


def made_by(path: Path) -> str:
    """The command that writes a record of the login node, or a file of a benchmark's splits."""
    if path.parent.parent.name == "prefetch":
        kind = path.parent.name.removesuffix("s").replace("_", "-")
        return f"prefetch-{kind} --{kind} {path.stem}"
    return f"split-benchmark --benchmark {path.parent.name}"


# folder of records -> what each has, and nothing can be done without; records of splits are in other folders
_NEEDED = {
    "models": ("checkpoints.final.digest",),
    "benchmarks": ("record", "digest"),
    "language_models": ("checkpoints.final.digest",),
    "tasks": ("path", "sha256"),
}


def read_record(path: Path) -> Document:
    """A record of the login node, or of a split; a ValueError says why it is none. Other errors: as of `read_json`."""
    record = read_object(path)
    for key in _NEEDED[path.parent.name] if path.parent.parent.name == "prefetch" else ("digest",):
        holder: object = record
        for name in key.split("."):
            if not isinstance(holder, dict) or name not in holder:
                raise ValueError(f"it has no {key}")
            holder = holder[name]
    return record


def read_record_or(path: Path) -> Document:
    """A record; an empty one where there is none, or none that can be used."""
    try:
        return read_record(path)
    except (OSError, ValueError):
        return {}


class FolderRecord(TypedDict):
    """Weights that were found."""

    path: str
    revision: str | None
    digest: str


class CheckpointRecord(FolderRecord):
    """A checkpoint of a model: where it is, and what it is by its digest."""

    subfolder: str | None
    adapter: NotRequired[FolderRecord]  # of the user's


class ModelRecord(TypedDict):
    """What `prefetch-model` writes about a model. sources: the states of a local model's files (`run.inputs`); replay:
    the sha256 of the scores that are served for it."""

    model: str
    checkpoints: dict[str, CheckpointRecord]
    chat_template: bool
    sources: NotRequired[dict[str, list[int | str | None]]]
    replay: NotRequired[str]


class TaskFiles(TypedDict):
    """An lm-eval task, or a group with its `members`, as `cells.tasks.finding.TaskRecord` is stored. A replay knows no
    files."""

    task: str
    version: str | None
    include_path: NotRequired[str | None]
    file: NotRequired[str]
    members: NotRequired[list["TaskFiles"]]


class BenchmarkRecord(TypedDict):
    """What `prefetch-benchmark` found of a benchmark. `digest`: of its task's configuration and code; `fewshot`: of its
    examples; `data`: of all its documents."""

    record: TaskFiles
    digest: str
    output_type: str
    documents: dict[str, int]
    data: str | None
    fewshot: str | None
    replay: NotRequired[str]


class SplitRecord(TypedDict):
    """What is read of a split's file but for its documents. `digest`: null for the training and validation splits of a
    benchmark that is only scored."""

    split: str
    documents: int
    digest: str | None
    replay: NotRequired[str]


class TextsRecord(TypedDict):
    """What `prefetch-task` found of a task of the bias study; its texts and labels are in the parquet file `path`."""

    task: str
    path: str
    sha256: str
    class_names: list[str]
    description: str


class Score(TypedDict):
    """A cell's value of one metric; without its own number of items, that of the result counts."""

    value: float
    stderr: float | None
    n_items: NotRequired[int]


class CellResult(TypedDict, total=False):
    """What other cells and tables read of a finished cell's result: of scores the first four, of a fine-tune the
    others. `best_epoch` and `best_value` are null where it diverged in its first epoch; `adapted_share` is of
    fine-tunes that ran here, and of no replay."""

    metrics: dict[str, Score]
    n_items: int
    task_version: str | None
    source: str
    best_epoch: int | None
    best_value: float | None
    diverged: bool
    adapter_sha256: str | None
    adapted_share: float


class CellRecord(TypedDict):
    """The record of a finished cell (`cell.json`). folder: in the store, of one that another cell needs."""

    key: dict[str, object]
    recipe: Recipe
    result: CellResult
    folder: NotRequired[str]


class Candidate(TypedDict):
    """A fine-tune that a selection chose from."""

    prompt: Prompt
    learning_rate: str
    epoch: int | None
    validation_value: float | None
    diverged: bool
    adapted_share: float | None


class Choice(TypedDict):
    """What a selection chose by validation, of `select_adapter` with all keys. `learning_rate`, `epoch` and `folder`
    are null where the untouched model stays."""

    prompt: Prompt
    metric: str
    validation_value: float
    validation_values: NotRequired[dict[Prompt, float]]
    direct_prompt: NotRequired[Prompt]
    direct_validation_value: NotRequired[float]
    candidates: NotRequired[list[Candidate]]
    learning_rate: NotRequired[str | None]
    epoch: NotRequired[int | None]
    folder: NotRequired[str | None]


class ServedScores(NamedTuple):
    """The file of scores that a replay serves, and its sha256."""

    path: str
    sha256: str
