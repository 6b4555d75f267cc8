"""A run's grid, store and manifests, the recipes of its cells and how much work they are."""

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Collection
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from lm_validity.config.load import Run
from lm_validity.config.sections import Configuration, OneFinetune
from lm_validity.config.sheets import BiasModel, Model, is_folder
from lm_validity.errors import CellError, InputError, again
from lm_validity.files import Document, file_sha256, read_json, read_json_or, write_json
from lm_validity.run import cell as records
from lm_validity.run.cell import BenchmarkCell, Cell, CellT, Choice, Job, Recipe
from lm_validity.run.inputs import weight_files
from lm_validity.run.rules import RULES, read_cell, rule_of
from lm_validity.run.rules.base import Effort, Participants, kind_and_id, size_class
from lm_validity.run.rules.benchmarks import SELECT_ADAPTER
from lm_validity.run.store import Address, Store


def reports_of(study: str, configuration: Configuration) -> tuple[str, ...]:
    """The reports of a study, by name."""
    if study != "agreement":
        return (study,)
    return ("agreement", "factors", "models", *(["readiness"] if configuration.agreement.groups else []))


def tables_of(studies: Collection[str]) -> tuple[str, ...]:
    """The tables into which the cells of these studies are merged, by name."""
    scored = ("scores", "selections", "items") if {"agreement", "signal"} & set(studies) else ()
    return (*scored, *(("trials", "probabilities") if "bias" in studies else ()))


class Grid(Participants):
    """All jobs of a run, and the manifests they write (paths relative to the working directory)."""

    def __init__(self, run: Run):
        super().__init__(run)
        self._folder = f"{run.results}/cells"

    @cached_property
    def jobs(self) -> dict[tuple[str, str, str], Job[Cell]]:
        """Every job by (rule, model, batch): rule by rule, in the order of the sheets.

        Raises InputError where two would have one name.
        """
        jobs = {}
        for rule in RULES.values():
            for job in rule.jobs(self):
                if job[:3] in jobs:
                    raise InputError(
                        f"model {job.model!r}: two jobs of {job.rule} would have the name {job.batch!r}.",
                        "ids are joined by dots: rename a benchmark or a checkpoint whose id has a dot in it.",
                    )
                jobs[job[:3]] = job
        return jobs

    @cached_property
    def job_of(self) -> dict[Cell, Job[Cell]]:
        """Each cell of the grid with the job that computes it."""
        return {cell: job for job in self.jobs.values() for cell in job.cells}

    def cells(self, table: str | None = None) -> list[Cell]:
        """The cells of every rule, or of those whose cells are rows of a merged table; in the grid's order."""
        jobs = (job for job in self.jobs.values() if table is None or table in rule_of(job).tables)
        return [cell for job in jobs for cell in job.cells]

    # ---- files --------------------------------------------------------------------------------------------------

    def manifests(self, job: Job[Cell]) -> list[str]:
        """What a job declares: a manifest for each part of its rule."""
        stem = f"{self._folder}/{job.rule}/{job.model}/{job.batch}"
        return [f"{stem}{part}.json" for part in rule_of(job).parts]

    def manifest_of(self, cell: Cell) -> str:
        """The manifest that lists a cell."""
        rule = rule_of(cell)
        return self.manifests(self.job_of[cell])[rule.parts.index(rule.part(cell))]

    def all_manifests(self) -> list[str]:
        """The manifests of every job."""
        return [path for job in self.jobs.values() for path in self.manifests(job)]

    def dependencies(self, job: Job[Cell]) -> list[str]:
        """Manifests of the cells that a job's cells depend on, without repetition, in a fixed order."""
        beneath = (dependency for cell in job.cells for dependency in rule_of(job).stands_on(self, cell))
        return list(dict.fromkeys(map(self.manifest_of, beneath)))

    def inputs(self, job: Job[Cell]) -> list[str]:
        """Every file that a job reads: the login node's records, documents, manifests."""
        rule = rule_of(job)
        records = [f"{self.run.results}/prefetch/{rule.sheet}/{job.model}.json"] if rule.reads_records else []
        return [*records, *rule.data_files(self.run, job), *self.dependencies(job)]

    # ---- settings -----------------------------------------------------------------------------------------------

    def settings(self, job: Job[Cell]) -> str:
        """A job's recipe settings in one line: Snakemake reruns the job when it changes, and for nothing else."""
        return rule_of(job).settings(self.run, job)

    def describe_points(self) -> str:
        """Iterations and tokens of all checkpoints, which tables copy from the sheets: a digest in twelve digits."""
        points = [
            (model.model, model.tokens_b, point.checkpoint, point.iteration, point.tokens_b)
            for model in self.run.models.values()
            for point in model.checkpoints
        ]
        return hashlib.sha256(repr(points).encode()).hexdigest()[:12]


# ----------------------------------------------------------------------------------------------------------------------
# How much work a cell is, by a formula of parameters and tokens, with what it stores and the memory that it needs.
#
# Constants are estimates for one GPU with Hugging Face code run eagerly; finished cells correct them (`monitor`).
# Where neither splits nor records exist yet, documents are the caps of the configuration.

# floating-point operations per second that training and evaluation reach: 40% of an H200's peak in 16 bits
RATE = {"bfloat16": 395e12, "float16": 395e12, "float32": 45e12}
# of other GPUs, as a share of an H200's: (products in 16 bits without sparsity, float32). In teraflops: H100 and H200
# as SXM modules 989 and 67, in 16 bits H100 PCIe 756 and NVL 835 (glennklockwood.com/garden/processors/h100, which
# quotes NVIDIA's white paper); A100 312 and 19.5, L40S 362 and 91.6, A40 150 and 37.4 (hmc-tech.com/gpu,
# which lists NVIDIA's figures)
SPEED = {"h200": (1, 1), "h100": (1, 1), "l40s": (362 / 989, 91.6 / 67), "a100": (312 / 989, 19.5 / 67)}
SPEED |= {"a40": (150 / 989, 37.4 / 67)}
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
LAUNCH_SECONDS = 0.028  # least time of a forward pass
START_SECONDS, LOAD_RATE = 20.0, 1e9  # a process until it loads a model; bytes per second of that
LOGITS_AT_A_TIME = 2**26  # `PART` of cells/models/passes.py
UNCOUNTED = "documents by the splits' caps"  # what is assumed of a benchmark that was not fetched
TYPICAL_B = {"miniature": 0.0005, "tiny": 0.12, "small": 0.6, "medium": 2.0, "large": 7.0, "huge": 13.0}


class DocumentTokens(NamedTuple):
    """Tokens of a document, scored with all choices and in training, and the sequences that are scored."""

    scored: int
    trained: int
    sequences: int


TOKENS = {
    "multiple_choice": DocumentTokens(160, 50, 4),
    "generate_until": DocumentTokens(150, 150, 1),
    "loglikelihood_rolling": DocumentTokens(1000, 800, 1),
}


def adapter_parameters(parameters: float, settings: OneFinetune) -> float:
    """LoRA's of a model: rank * (in + out) summed over the layers' projections; a gated MLP is 8/3 as wide."""
    # each of 12 width^2 parameters; as wide models, width = 128 layers
    layers = (parameters / (12 * 128**2)) ** (1 / 3)
    widths = 19 if settings.target_modules == "all-linear" else 6  # q, k, v: 6; output projection and MLP: 13
    return float(settings.rank * layers * widths * 128 * layers)


def gpu_gb(parameters: float, dtype: str, settings: OneFinetune, *, recomputed: bool = False) -> float:
    """The least GPU memory that fine-tuning needs: weights, one text's activations and logits, the CUDA context.

    Activations: 34 * tokens * width * layers bytes in 16 bits (Korthikanti et al. 2022, eq. 1, without the attention
    matrix); logits: 150,000 words in 10 bytes, a part of them at a time; context: 1 GB. At least what scoring needs.
    `recomputed`: the size class asks for gradient checkpointing. Llama-3-8B in bfloat16 with 1024 tokens: 23.4 GB;
    counted on tensors without content, 23.9.
    """
    layers: float = (parameters / (12 * 128**2)) ** (1 / 3)
    activations = 34 * settings.max_length * 128 * layers**2 * BYTES[dtype] / 2
    if settings.gradient_checkpointing or recomputed:
        activations /= layers
    logits = 10 * min(settings.max_length * 150_000, LOGITS_AT_A_TIME)
    trained = 16 * adapter_parameters(parameters, settings)
    return max((parameters * BYTES[dtype] + activations + trained + logits) / 1e9 + 1, scoring_gb(parameters, dtype))


def scoring_gb(parameters: float, dtype: str) -> float:
    """The least GPU memory that scoring needs: weights, a part of the logits, the CUDA context."""
    return parameters * BYTES[dtype] / 1e9 + 2


def _count_parameters(record: Path) -> float:
    """Parameters of a fetched model, from the headers of its weights' files; 0 where that cannot be read."""
    try:
        point = read_json(record)["checkpoints"]["final"]
        total = 0
        for path in weight_files(Path(point["path"]) / (point["subfolder"] or "")):
            with open(path, "rb") as handle:
                header = json.loads(handle.read(int.from_bytes(handle.read(8), "little")))
            total += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
        return float(total)
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


class Workload:
    """What each cell of one run has to do. `assumed` says in words what was not known, and of what."""

    def __init__(self, run: Run):
        self.run = run
        self.assumed: dict[str, set[str]] = {}
        self.parameters, self.documents = cache(self._parameters), cache(self._documents)

    def _parameters(self, row: Model | BiasModel) -> float:
        """Parameters from the sheet, else from the fetched weights, else of a typical model of the size class."""
        if isinstance(row, Model) and row.parameters_b:
            return row.parameters_b * 1e9
        kind, model = kind_and_id(row)
        counted = _count_parameters(self.run.results / "prefetch" / kind / f"{model}.json")
        if not counted:
            self.assumed.setdefault("parameters by size class", set()).add(model)
        return counted or TYPICAL_B.get(row.size_class, 1.0) * 1e9

    def _documents(self, benchmark: str, split: str) -> int:
        """Documents of a split: as divided, as fetched, or the cap."""
        results = self.run.results
        cap: int = getattr(self.run.configuration.splits, split)
        divided: int | None = records.read_record_or(results / "splits" / benchmark / f"{split}.json").get("documents")
        record = records.read_record_or(results / "prefetch" / "benchmarks" / f"{benchmark}.json")
        fetched: int | None = (record.get("documents") or {}).get(split)
        if not divided and not fetched:
            self.assumed.setdefault(UNCOUNTED, set()).add(benchmark)
        return divided or min(fetched or cap, cap)

    def seconds(self, cell: Cell) -> float:
        """Expected seconds of one cell by the formula alone: of each part its operations at the GPU's speed, or the
        launches of its passes, whichever takes longer; 0 for selections."""
        rule = rule_of(cell)
        row = rule.row(self.run, cell.model)
        rate = RATE[row.dtype] * SPEED[size_class(self.run, row).gpu_type][row.dtype == "float32"]
        return sum(max(part.operations / rate, part.passes * LAUNCH_SECONDS) for part in rule.efforts(self, cell))

    def tokens(self, benchmark: str) -> DocumentTokens:
        """Tokens of a document, assumed by the benchmark's type."""
        self.assumed.setdefault("tokens per document by output type", set()).add(benchmark)
        return TOKENS[self.run.benchmarks[benchmark].output_type]

    def scoring(self, row: Model, benchmark: str, split: str) -> Effort:
        """What scoring a split's documents computes: two operations for each parameter and token."""
        documents, tokens = self.documents(benchmark, split), self.tokens(benchmark)
        settings = self.run.configuration.evaluation
        passes = -(-documents * tokens.sequences // settings.batch_size)
        if self.run.benchmarks[benchmark].output_type == "generate_until":
            passes *= settings.max_generated_tokens
        return Effort(2 * self.parameters(row) * documents * tokens.scored, passes)

    def start_seconds(self, row: Model | BiasModel) -> float:
        """Seconds that a process needs to start and to load the model."""
        return START_SECONDS + self.parameters(row) * BYTES[row.dtype] / LOAD_RATE

    def adapter_bytes(self, row: Model) -> float:
        """Size of a trained adapter: 32 bits per parameter."""
        return 4 * adapter_parameters(self.parameters(row), self.run.configuration.finetuning)

    @cached_property
    def model_bytes(self) -> float:
        """Weights in the hub's cache, 16 bits per parameter. Each revision that is a checkpoint is its own copy."""
        copies: list[tuple[Model | BiasModel, int]] = [(row, 1) for row in self.run.language_models.values()]
        copies += [(row, len({point.revision for point in row.checkpoints})) for row in self.run.models.values()]
        return sum(2 * self.parameters(row) * number for row, number in copies if not is_folder(row.path))

    def gpu_gb(self, row: Model | BiasModel) -> float:
        """The least GPU memory that the model's jobs need, by a formula; 0 where its size class has no GPU."""
        of_size, parameters = size_class(self.run, row), self.parameters(row)
        if not of_size.gpu:
            return 0.0
        if isinstance(row, Model) and "agreement" not in {*row.studies} & {*self.run.configuration.studies}:
            return scoring_gb(parameters, row.dtype)
        settings = self.run.configuration.finetuning
        return gpu_gb(parameters, row.dtype, settings, recomputed=of_size.gradient_checkpointing)


# ----------------------------------------------------------------------------------------------------------------------
# Manifests: what a job declares to Snakemake. A small list of its cells, each done, failed or missing.
#
# *done* names the cell's folder in the store; *failed* is a cell that itself caused its failure, with the error;
# *missing* is a cell that could not be computed because one that it depends on failed.

ASIDE = ".failed"  # suffix of a manifest that holds a failed cell, set aside so that its job runs again


class Entry(NamedTuple):
    """One cell of a manifest. `content` is for results too small for the store (selections)."""

    cell: Cell
    status: str  # done | failed | missing
    folder: str | None = None
    sha256: str | None = None  # of the cell's files: a recomputed cell with other bytes is another manifest
    error: str | None = None
    hint: str | None = None
    content: Choice | None = None

    @property
    def in_store(self) -> str:
        """The folder of a finished cell whose result lies in the store."""
        assert self.folder is not None, self
        return self.folder

    @property
    def folders(self) -> list[str]:
        """The folders in the store that it names: of its result, or of the cell that it chose."""
        chosen = self.content.get("folder") if self.content is not None else None
        return [folder for folder in (self.folder, chosen) if folder]

    @property
    def chosen(self) -> Choice:
        """The content of a finished cell whose result is kept here."""
        assert self.content is not None, self
        return self.content


def write_manifest(path: str | Path, entries: list[Entry]) -> None:
    """Write a job's manifest, atomically; nulls are left out."""
    rows = []
    for entry in entries:
        row = {"cell": {key: value for key, value in entry.cell._asdict().items() if value is not None}}
        row |= {key: value for key, value in entry._asdict().items() if key != "cell" and value is not None}
        rows.append(row)
    write_json(path, {"cells": rows})
    Path(f"{path}{ASIDE}").unlink(missing_ok=True)


def read_manifest(path: str | Path) -> list[Entry]:
    """The entries of a manifest. Raises InputError where it cannot be read."""
    try:
        rows = read_json(path)["cells"]
        return [Entry(**{**row, "cell": read_cell(row["cell"])}) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: not a readable manifest ({error}).", f"run {again('preflight')}, then the workflow again."
        ) from error


def write_failures(run: Run, failed: list[Entry]) -> None:
    """Keep what failed, since the manifests that say so are removed: for status and partial reports."""
    rows = [{"cell": entry.cell._asdict(), "error": entry.error, "hint": entry.hint} for entry in failed]
    write_json(run.results / "cells" / "failed.json", rows)


def read_failures(run: Run) -> dict[Cell, str]:
    """Cell -> error, of the cells that failed when they were last checked."""
    failures = {}
    for row in read_json_or(run.results / "cells" / "failed.json", []):
        with contextlib.suppress(KeyError, TypeError):  # a file of another kind
            failures[read_cell(row["cell"])] = f"failed: {row['error']}"
    return failures


# ----------------------------------------------------------------------------------------------------------------------

RecordT = TypeVar("RecordT")  # one of the records of `run.cell`
MAKE_AGAIN = "delete it where it is there, and run the workflow again: finished cells stay."


class Workspace:
    """One run's files: its grid, store, manifests and the login node's records."""

    def __init__(self, run: Run, *, also_aside: bool = False):
        self.run, self.grid = run, Grid(run)
        self._json: dict[str, Document] = {}  # by the name of its file
        self.store = Store(run.results / "store")
        # where training keeps what it needs to resume: declared to nobody, so Snakemake never deletes it
        self.work = run.results / "work"
        self._suffixes = ("", ASIDE) if also_aside else ("",)
        self._entries: dict[str, dict[Cell, Entry]] = {}  # by manifest
        self._outdated: dict[Cell, Cell | None] = {}

    # ---- what the login node wrote ------------------------------------------------------------------------------

    def model_record(self, model: str) -> records.ModelRecord:
        """What `prefetch-model` wrote about a model.

        Raises InputError where the file is missing or damaged, or was made with another `replay` setting. So do the
        other records.
        """
        return self._read(f"prefetch/models/{model}.json", records.ModelRecord)

    def task_record(self, benchmark: str) -> records.BenchmarkRecord:
        """What `prefetch-benchmark` wrote about a benchmark: its lm-eval task, and digests of what determines its
        numbers."""
        return self._read(f"prefetch/benchmarks/{benchmark}.json", records.BenchmarkRecord)

    def language_model_record(self, language_model: str) -> records.ModelRecord:
        """What `prefetch-language-model` wrote about a model of the bias study."""
        return self._read(f"prefetch/language_models/{language_model}.json", records.ModelRecord)

    def trial_task_record(self, task: str) -> records.TextsRecord:
        """What `prefetch-task` wrote about a task of the bias study."""
        return self._read(f"prefetch/tasks/{task}.json", records.TextsRecord)

    def split_path(self, benchmark: str, split: str) -> Path:
        """The file of a benchmark's split (train, validation or test), whether or not it exists."""
        return self.run.results / "splits" / benchmark / f"{split}.json"

    def split_record(self, benchmark: str, split: str) -> records.SplitRecord:
        """What `split-benchmark` wrote about a split. `digest`: sha256 over the addresses and the rendered texts of its
        documents."""
        return self._read(f"splits/{benchmark}/{split}.json", records.SplitRecord)

    def _read(self, name: str, kind: Callable[..., RecordT]) -> RecordT:
        if name not in self._json:
            path = self.run.results / name
            remedy = f"write it again: {again(records.made_by(path))}."
            try:
                record = records.read_record(path)
            except (FileNotFoundError, ValueError) as error:
                damage = f"not a whole record ({error})" if isinstance(error, ValueError) else "no such file"
                raise InputError(f"{path}: {damage}.", remedy) from error
            if record.get("replay") != self.replay:  # neither stands in for the other
                raise InputError(f"{path}: made with another `replay` setting.", remedy)
            self._json[name] = record
        return kind(**self._json[name])

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
    def served(self) -> records.ServedScores:
        """The scores of a replay."""
        settings, digest = self.run.configuration.replay, self.replay
        assert settings is not None and digest is not None, "no replay"
        return records.ServedScores(settings.scores, digest)

    # ---- recipes ------------------------------------------------------------------------------------------------

    def address(self, cell: CellT) -> Address[CellT]:
        """A cell's address in the store, from its present recipe."""
        return self.store.address(cell, self.recipe(cell))

    def known_address(self, cell: Cell) -> Address[Cell] | None:
        """Where the present recipe puts the cell, or the one that stands in for it; None where that cannot be known
        yet."""
        try:
            return self.address(rule_of(cell).stand_in(self, cell) or cell)
        except (InputError, CellError, OSError, KeyError):
            return None

    def recipe(self, cell: Cell) -> Recipe:
        """Everything that determines the cell's numbers. An adapter's evaluation needs its selection first."""
        rule = rule_of(cell)
        recipe = {"rule": rule.name, "recipe_version": rule.recipe_version} | rule.recipe(self, cell)
        return recipe | {"replay": self.replay} if self.replay else recipe

    def outdated(self, cell: Cell) -> Cell | None:
        """The finished cell because of which this one must not be used: its manifest has a result of another recipe
        than the present one. It is a cell that this one stands on, else this one itself; None where there is none.

        Raises as `address` where a present recipe cannot be known.
        """
        if cell not in self._outdated:
            beneath = map(self.outdated, rule_of(cell).stands_on(self.grid, cell))
            cause = next((unmet for unmet in beneath if unmet is not None), None)
            self._outdated[cell] = cause or (cell if self._is_outdated(cell) else None)
        return self._outdated[cell]

    def _is_outdated(self, cell: Cell) -> bool:
        rule, entry = rule_of(cell), self.entry(cell)
        if entry is None or entry.status != "done":
            return False
        if entry.folder is not None:
            return entry.folder != self.address(rule.stand_in(self, cell) or cell).folder
        chosen = rule.choice(cell, entry.chosen)
        return chosen is not None and (
            chosen not in self.grid.job_of or entry.chosen["folder"] != self.address(chosen).folder
        )

    # ---- what a cell depends on --------------------------------------------------------------------------------

    def entry(self, cell: Cell) -> Entry | None:
        """The entry of a cell, or None where its manifest does not exist (yet). Each manifest is read once; one that
        is set aside only where asked for."""
        path = self.grid.manifest_of(cell)
        if path not in self._entries:
            manifest = next((path + end for end in self._suffixes if Path(path + end).is_file()), None)
            self._entries[path] = {entry.cell: entry for entry in read_manifest(manifest)} if manifest else {}
        return self._entries[path].get(cell)

    def _done(self, cell: Cell) -> Entry:
        """The entry of a finished cell that another one needs. Raises MissingCell where it failed or is missing."""
        entry = self.entry(cell)
        if entry is None:
            raise InputError(f"{self.grid.manifest_of(cell)}: {cell.name} is not in it.", MAKE_AGAIN)
        if entry.status != "done":
            named = f"{cell.rule} {cell.model} {cell.name}: {entry.error or 'missing'}"
            hint = "remove the cause of that failure and run again."
            raise MissingCell(f"a cell that it depends on failed: {named}", hint)
        return entry

    def finished(self, cell: Cell) -> records.CellRecord:
        """The record of a finished cell that another one needs, with its folder. Raises as `_done`."""
        folder = self._done(cell).in_store
        return {**self.store.read(folder), "folder": folder}

    def selection(self, cell: BenchmarkCell) -> Choice:
        """The choice that `select_adapter` made for (model, benchmark, seed). Raises as `_done`."""
        return self._done(cell._replace(rule=SELECT_ADAPTER.name, run=None)).chosen


class MissingCell(CellError):
    """A cell that this one depends on failed. This one counts as missing."""
