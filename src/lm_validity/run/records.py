"""What the login node wrote about a run's models, tasks and splits: what recipes are made from.

Standard library and pydantic only, so that a job whose cells are all in the store never imports torch. A key that
only some models have is not required.
"""

from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

from lm_validity.config.load import Run
from lm_validity.errors import InputError, again
from lm_validity.files import Document, file_sha256, read_object
from lm_validity.run.cell import BenchmarkCell, Prompt, Recipe


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


class AdapterRecord(FolderRecord):
    """An adapter of the user's. tokenizer: digest of its own, None where it has none."""

    tokenizer: str | None


class CheckpointRecord(FolderRecord):
    """A checkpoint of a model: where it is, and what it is by its digest."""

    subfolder: str | None
    adapter: NotRequired[AdapterRecord]


class ModelRecord(TypedDict):
    """What `prefetch-model` writes about a model. sources: the states of a local model's files (`run.inputs`)."""

    model: str
    checkpoints: dict[str, CheckpointRecord]
    chat_template: bool
    sources: NotRequired[dict[str, list[int | str | None]]]


class ReplayedModel(ModelRecord):
    """What is written about a model in a replay: a `ModelRecord`, and the sha256 of the scores that are served for
    it."""

    replay: str


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
    """The record of a finished cell (`cell.json`)."""

    key: dict[str, object]
    recipe: Recipe
    result: CellResult


class FinishedCell(CellRecord):
    """The record of a finished cell that another one needs, and its folder in the store."""

    folder: str


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


class Records(ABC):
    """The records of one run, and of finished cells what others depend on (`run.workspace` reads these)."""

    def __init__(self, run: Run):
        self.run = run
        self._json: dict[str, Any] = {}  # name -> one of the records above, as its reader declares it

    @abstractmethod
    def selection(self, cell: BenchmarkCell) -> Choice:
        """The choice that `select_adapter` made for (model, benchmark, seed)."""

    @abstractmethod
    def stored(self, folder: str) -> CellRecord:
        """The record of a finished cell, by its folder in the store."""

    def model_record(self, model: str) -> ModelRecord:
        """What `prefetch-model` wrote about a model.

        Raises InputError where the file is missing or damaged, or was made with another `replay` setting. So do the
        other records.
        """
        record: ModelRecord = self._read(f"prefetch/models/{model}.json")
        return record

    def task_record(self, benchmark: str) -> BenchmarkRecord:
        """What `prefetch-benchmark` wrote about a benchmark: its lm-eval task, and digests of what determines its
        numbers."""
        record: BenchmarkRecord = self._read(f"prefetch/benchmarks/{benchmark}.json")
        return record

    def language_model_record(self, language_model: str) -> ModelRecord:
        """What `prefetch-language-model` wrote about a model of the bias study."""
        record: ModelRecord = self._read(f"prefetch/language_models/{language_model}.json")
        return record

    def trial_task_record(self, task: str) -> TextsRecord:
        """What `prefetch-task` wrote about a task of the bias study."""
        record: TextsRecord = self._read(f"prefetch/tasks/{task}.json")
        return record

    def split_path(self, benchmark: str, split: str) -> Path:
        """The file of a benchmark's split (train, validation or test), whether or not it exists."""
        return self.run.results / "splits" / benchmark / f"{split}.json"

    def split_record(self, benchmark: str, split: str) -> SplitRecord:
        """What `split-benchmark` wrote about a split. `digest`: sha256 over the addresses and the rendered texts of its
        documents."""
        record: SplitRecord = self._read(f"splits/{benchmark}/{split}.json")
        return record

    def _read(self, name: str) -> Any:
        if name not in self._json:
            path = self.run.results / name
            remedy = f"write it again: {again(made_by(path))}."
            try:
                record = read_record(path)
            except FileNotFoundError:
                raise InputError(f"{path}: no such file.", remedy) from None
            except ValueError as error:
                raise InputError(f"{path}: not a whole record ({error}).", remedy) from error
            if record.get("replay") != self.replay:  # neither stands in for the other
                raise InputError(f"{path}: made with another `replay` setting.", remedy)
            self._json[name] = record
        return self._json[name]

    @cached_property
    def replay(self) -> str | None:
        """sha256 of the scores that are served instead of running models; None in a real run."""
        if self.run.configuration.replay is None:
            return None
        path = Path(self.run.configuration.replay.scores)
        if not path.is_file():
            raise InputError(f"{path}: no such file (replay.scores).", "name your copy of the scores to serve.")
        return file_sha256(path)

    @property
    def served(self) -> ServedScores:
        """The scores of a replay."""
        settings, digest = self.run.configuration.replay, self.replay
        assert settings is not None and digest is not None, "no replay"
        return ServedScores(settings.scores, digest)
