"""What the login node wrote about a run's models, tasks and splits: what recipes are made from.

Reads JSON only, so that a job whose cells are all in the store never imports torch.
"""

from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from lm_validity.config.load import Run
from lm_validity.errors import InputError
from lm_validity.files import file_sha256, read_json
from lm_validity.run.cell import BenchmarkCell


class FolderRecord(TypedDict):
    """Weights that were found. files: size and time of each file of a local folder; None for those of the hub."""

    path: str
    revision: str | None
    digest: str
    files: dict[str, list[int]] | None


class AdapterRecord(FolderRecord):
    """An adapter of the user's. tokenizer: digest of its own, None where it has none."""

    tokenizer: str | None


class CheckpointRecord(FolderRecord):
    """A checkpoint of a model: where it is, and what it is by its digest."""

    subfolder: str | None
    adapter: NotRequired[AdapterRecord]


class AppliedRules(TypedDict, total=False):
    """What was found in a model's files, where it is so; each is in the recipes of the cells whose numbers it changes.

    answers_alone: padding would change its answers. chat_date: its chat template prints a date.
    ignored_generation_settings: of its generation_config.json. position_switch: the length beyond which positions are
    encoded otherwise. all_linear: it is not simply all linear layers. checked: the version of the check for what
    follows. as_saved: the rules by which weights and tokenizers are kept as they were saved. thought: the chat template
    opens one, which is closed. loses: what tokenizers lose of a text.
    """

    answers_alone: str
    chat_date: str
    ignored_generation_settings: list[str]
    position_switch: int
    all_linear: str
    checked: int
    as_saved: dict[str, str]
    thought: str
    loses: list[str]


class ModelRecord(AppliedRules):
    """What `prefetch-model` writes about a model."""

    model: str
    path: str
    revision: str | None
    checkpoints: dict[str, CheckpointRecord]
    chat_template: bool
    architecture: str | None
    context_length: int | None


class ReplayedModel(ModelRecord):
    """The same of a model in a replay, with the sha256 of the scores that are served in its place."""

    replay: str


class Records(ABC):
    """The records of one run, and of finished cells what others depend on (`run.workspace` reads these)."""

    def __init__(self, run: Run):
        self.run = run
        self._json: dict[str, dict[str, object]] = {}

    @abstractmethod
    def selection(self, cell: BenchmarkCell) -> dict[str, Any]:
        """The choice that `select_adapter` made for (model, benchmark, seed)."""

    @abstractmethod
    def stored(self, folder: str) -> dict[str, Any]:
        """The record of a finished cell, by its folder in the store."""

    def model_record(self, model: str) -> dict[str, Any]:
        """What `prefetch-model` wrote about a model: a `ModelRecord`.

        Raises InputError where the file is missing, is not JSON, or was made with another `replay` setting. So do the
        other records.
        """
        return self._read(f"prefetch/models/{model}.json", f"lm-validity prefetch-model --model {model}")

    def task_record(self, benchmark: str) -> dict[str, Any]:
        """What `prefetch-benchmark` wrote about a benchmark: its lm-eval task, and digests of what determines its
        numbers."""
        return self._read(
            f"prefetch/benchmarks/{benchmark}.json", f"lm-validity prefetch-benchmark --benchmark {benchmark}"
        )

    def language_model_record(self, language_model: str) -> dict[str, Any]:
        """What `prefetch-language-model` wrote about a model of the bias study; the keys are those of
        `model_record`."""
        command = f"lm-validity prefetch-language-model --language-model {language_model}"
        return self._read(f"prefetch/language_models/{language_model}.json", command)

    def trial_task_record(self, task: str) -> dict[str, Any]:
        """What `prefetch-task` wrote about a task of the bias study; the task's texts are in a parquet file beside
        it."""
        return self._read(f"prefetch/tasks/{task}.json", f"lm-validity prefetch-task --task {task}")

    def split_path(self, benchmark: str, split: str) -> Path:
        """The file of a benchmark's split (train, validation or test), whether or not it exists."""
        return self.run.results / "splits" / benchmark / f"{split}.json"

    def split_digest(self, benchmark: str, split: str) -> str:
        """sha256 over the addresses and the rendered texts of a split's documents. Raises InputError as
        `model_record`."""
        digest: str = self.split_record(benchmark, split)["digest"]
        return digest

    def split_record(self, benchmark: str, split: str) -> dict[str, Any]:
        """What `split-benchmark` wrote about a split."""
        return self._read(f"splits/{benchmark}/{split}.json", f"lm-validity split-benchmark --benchmark {benchmark}")

    def _read(self, name: str, command: str) -> dict[str, Any]:
        if name not in self._json:
            path = self.run.results / name
            try:
                self._json[name] = read_json(path)
            except FileNotFoundError:
                raise InputError(f"{path}: no such file.", f"make it first: {command}.") from None
            except ValueError as error:
                raise InputError(f"{path}: not valid JSON ({error}).", f"delete it and run {command}.") from error
            if self._json[name].get("replay") != self.replay:  # neither stands in for the other
                raise InputError(f"{path}: made with another `replay` setting.", f"delete it and run {command}.")
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
    def served(self) -> tuple[str, str]:
        """(the file of scores, its sha256) of a replay."""
        settings, digest = self.run.configuration.replay, self.replay
        assert settings is not None and digest is not None, "no replay"
        return settings.scores, digest
