"""A job: asks the store, computes what is missing, commits each cell, writes the manifest last.

Imports no torch, nor does what it calls, until a cell really has to be computed.
"""

import importlib.metadata
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

from lm_validity.config.load import Run
from lm_validity.config.sheets import Benchmark, Model
from lm_validity.errors import CellError, InputError
from lm_validity.files import read_json, write_json
from lm_validity.run.cell import BenchmarkCell, Cell, Job, given, label
from lm_validity.run.rules import benchmark_rule_of, rule_of
from lm_validity.run.rules.benchmarks import SELECT_ADAPTER, SELECT_PROMPT
from lm_validity.run.scoring import prompt_settings
from lm_validity.run.store import Entry, Place, hold_gpus, hold_lease, write_manifest
from lm_validity.run.workspace import MissingCell, Workspace

# ----------------------------------------------------------------------------------------------------------------------
# What a job does: ask the store, compute what is missing, commit cell by cell, write the manifest last.
#
# If the cell itself is the cause (CellError), it becomes a failure record and the other cells continue. Anything else
# (a crash, out of memory, a signal) ends the process with the finished cells kept, so that Snakemake's retries apply.

log = logging.getLogger(__name__)


def run_job(workspace: Workspace, job: Job[Cell]) -> None:
    """Run one job and write its manifest(s)."""
    rule, entries = rule_of(job), run_cells(workspace, job)
    for part, path in zip(rule.parts, workspace.grid.manifests(job), strict=True):
        write_manifest(path, [entry for entry in entries if rule.part(entry.cell) == part])
    failed = sum(entry.status == "failed" for entry in entries)
    log.info("%s %s %s: %d cells, %d failed", job.rule, job.model, job.batch, len(entries), failed)


def run_cells(workspace: Workspace, job: Job[Cell]) -> list[Entry]:
    """The manifest entries of a job's cells, computed where they are not in the store."""
    rule = rule_of(job)
    if not rule.in_store:
        make = resolve_name(rule.worker)
        return [_try(cell, lambda cell: Entry(cell, "done", content=make(workspace, cell))) for cell in job.cells]

    @cache
    def worker() -> Any:
        return ReplayWorker(workspace) if workspace.replay else resolve_name(rule.worker)(workspace, job)

    if not workspace.replay:
        for cells in rule.side_by_side(workspace.run, job):
            _compute_together(workspace, worker, cells)
    return [_try(cell, lambda cell: _stored(workspace, worker, cell)) for cell in job.cells]


def _try(cell: Cell, finish: Callable[[Cell], Entry]) -> Entry:
    """The cell's entry. A failure that the cell itself causes is recorded."""
    try:
        return finish(cell)
    except MissingCell as error:
        return Entry(cell, "missing", error=error.problem)
    except CellError as error:
        log.error("cell failed: %s: %s", label(cell), error)
        return Entry(cell, "failed", error=error.problem, hint=error.hint)


def _lease(workspace: Workspace, place: Place[Cell]) -> AbstractContextManager[bool]:
    """The lease of a cell that is missing. Its GPUs come first: who holds a lease never waits for a job that may wait
    for this lease."""
    # the other devices name their GPUs
    if workspace.run.configuration.evaluation.device in ("auto", "cuda") and not workspace.replay:
        hold_gpus(rule_of(place.cell).size_class(workspace.run, place.cell.model).gpu, say=log.info)
    return hold_lease(workspace.store.lease(place.folder), lambda: workspace.store.has(place), say=log.info)


def _compute_together(workspace: Workspace, worker: Callable[[], Any], cells: list[Cell]) -> None:
    """Bring those of the cells that are missing to their end side by side; what cannot be computed so is left to
    `_stored`, which says why."""
    missing = [place for place in map(workspace.place, cells) if not workspace.store.has(place)]
    with ExitStack() as leases:
        held = [place for place in missing if leases.enter_context(_lease(workspace, place))]
        if len(held) < 2:
            return
        log.info("computing %d cells side by side, from %s on", len(held), held[0].label)
        try:
            with worker().shared_cost(held):
                worker().compute_together(held)
        except CellError as error:
            log.info("not side by side: %s", error)


def _stored(workspace: Workspace, worker: Callable[[], Any], cell: Cell) -> Entry:
    """The entry of a cell that the store holds; computed only if it does not yet."""
    stand_in = rule_of(cell).stand_in(workspace, cell)
    if stand_in is not None:
        folder = workspace.finished(stand_in)["folder"]
    else:
        place = workspace.place(cell)
        folder = place.folder
        if not workspace.store.has(place):
            with _lease(workspace, place) as is_held:
                if is_held:
                    log.info("computing %s", place.label)
                    worker().compute(place)
    workspace.store.read(folder)  # raises where it is damaged
    return Entry(cell, "done", folder=folder, sha256=workspace.store.digest(folder))


def write_splits(workspace: Workspace, benchmark: str) -> None:
    """Divide a benchmark's documents and write one file per split, so that training never opens test; and the texts of
    the test documents, for filters.

    Raises InputError where another wording of a benchmark does not ask its questions, which are split first.
    """
    from lm_validity.tables.documents import write_no_documents

    texts = workspace.split_path(benchmark, "test").with_name("documents.parquet")
    if workspace.replay:
        for name in ("train", "validation", "test"):
            nothing = {"split": name, "documents": 0, "digest": "replayed", "replay": workspace.replay}
            write_json(workspace.split_path(benchmark, name), nothing)
        write_no_documents(texts)
        return
    from lm_validity.cells.tasks.splits import Split, documents, make_splits, write_documents
    from lm_validity.cells.tasks.tasks import AnyTask, TaskRecord, load_task

    def load(name: str) -> AnyTask:
        record = TaskRecord.from_json(workspace.task_record(name)["record"])
        return load_task(record, **prompt_settings(workspace.run, name))

    settings, task = workspace.run.configuration.splits, load(benchmark)
    splits = make_splits(
        task,
        caps=(settings.train, settings.validation, settings.test),
        seed=settings.seed,
        allow_overlap=benchmark in settings.allow_overlap,
        test_only=workspace.grid.is_test_only(benchmark),
    )
    test, variant_of = documents(task, splits.test), workspace.run.benchmarks[benchmark].variant_of
    if (
        variant_of is not None
    ):  # its documents are the benchmark's in the same order: equal in every column that both have
        theirs = documents(load(variant_of), Split.from_json(read_json(workspace.split_path(variant_of, "test")))).docs
        equal_documents = len(test) == len(theirs) and all(
            doc.keys() & document.keys() and all(doc[name] == document[name] for name in doc.keys() & document.keys())
            for doc, document in zip(test.docs, theirs, strict=True)
        )
        if not equal_documents:
            raise InputError(
                f"benchmark {benchmark!r}: its test documents are not those of {variant_of!r}.",
                "another wording reads the same data and split names, changes none of their columns, and differs in "
                "its templates.",
            )
    for name, split in zip(splits._fields, splits, strict=True):
        # a benchmark that is only scored has no train and validation; the rule's files say so
        written = split.to_json() if split is not None else {"split": name, "documents": 0, "digest": None}
        write_json(workspace.split_path(benchmark, name), written)
        log.info("%s %s: %d documents", benchmark, name, written["documents"])
    write_documents(benchmark, task, test, texts)


# ----------------------------------------------------------------------------------------------------------------------
# Choosing on validation: the prompt of the direct regime, and the adapter of train-before-test.
#
# Reads validation results only. An adapter is chosen over the untouched model only where it is strictly better.

PROMPT_ORDER = ("plain", "chat")  # ties go to the earlier one


def select_prompt(workspace: Workspace, cell: BenchmarkCell) -> dict[str, Any]:
    """The direct regime's prompt: the best on validation, ties to plain."""
    benchmark = workspace.run.benchmarks[cell.benchmark]
    values: dict[str, float] = {}
    for direct in SELECT_PROMPT.stands_on(workspace.grid, cell):
        values[given(direct.prompt)] = workspace.finished(direct)["result"]["metrics"][benchmark.metric]["value"]
    better = 1 if benchmark.higher_is_better else -1
    best = max(values, key=lambda prompt: (better * values[prompt], -PROMPT_ORDER.index(prompt)))
    return {
        "prompt": best,
        "metric": benchmark.metric,
        "validation_value": values[best],
        "validation_values": values,
    }


def select_adapter(workspace: Workspace, cell: BenchmarkCell) -> dict[str, Any]:
    """The best (learning rate, prompt, epoch) on validation for (model, benchmark, seed).

    Ties go to the earlier epoch, then the smaller rate, then plain. A fine-tune that diverged is recorded and left
    out; where all diverged the cell fails. The untouched model stays unless an adapter is strictly better than the
    best direct prompt: then `learning_rate`, `epoch` and `folder` are None and the test score is the direct cell's.
    """
    benchmark = workspace.run.benchmarks[cell.benchmark]
    better = 1 if benchmark.higher_is_better else -1
    direct = select_prompt(workspace, cell)
    rows, folders = [], []
    for candidate in SELECT_ADAPTER.candidates(workspace.grid, cell):
        trained = workspace.finished(candidate)
        result = trained["result"]
        rows.append(
            {
                "prompt": candidate.prompt,
                "learning_rate": candidate.learning_rate,
                "epoch": result["best_epoch"],
                "validation_value": result["best_value"],
                "diverged": result["diverged"],
                "adapted_share": result.get("adapted_share"),  # cells of earlier versions and replays have none
            }
        )
        folders.append(trained["folder"])

    def order(number: int) -> tuple[float, ...]:
        row = rows[number]
        best = better * row["validation_value"]
        return best, -row["epoch"], -float(row["learning_rate"]), -PROMPT_ORDER.index(row["prompt"])

    number = max((number for number, row in enumerate(rows) if not row["diverged"]), key=order, default=None)
    if number is None:
        raise CellError(
            f"every fine-tune of {cell.model} on {cell.benchmark} (seed {cell.seed}) diverged",
            "try smaller finetuning.learning_rates, or check the training data.",
        )
    chosen, folder = rows[number], folders[number]
    if not better * chosen["validation_value"] > better * direct["validation_value"]:
        chosen, folder = direct | {"learning_rate": None, "epoch": None}, None
    return {
        "metric": benchmark.metric,
        "direct_prompt": direct["prompt"],
        "direct_validation_value": direct["validation_value"],
        "candidates": rows,
        **{key: chosen[key] for key in ("prompt", "learning_rate", "epoch", "validation_value")},
        "folder": folder,
    }


# ----------------------------------------------------------------------------------------------------------------------
# Replay: known scores are served instead of running models, so that the whole workflow runs without a GPU.
#
# Every rule, path, manifest, merge and report is the real one; only what a model would have said comes from a file. It
# cannot be taken for a result: the file's sha256 is in every recipe (so these cells lie in folders of their own), each
# score's `source` begins with `replay:`, and every page says so. No torch here.
#
# Published files hold test scores only. Where a selection asks for validation, the test score stands in: that of train
# before test for every prompt and learning rate, the direct one for the untouched model.


class Served(NamedTuple):
    """One score of the file. n_items is null where the file does not say."""

    value: float
    stderr: float | None
    n_items: int | None
    source: str


class ReplayWorker:
    """Stands where `Worker` stands: commits cells from the scores file."""

    def __init__(self, workspace: Workspace):
        self.workspace, self.run = workspace, workspace.run

    def compute(self, place: Place[BenchmarkCell]) -> None:
        """Commit one cell. Raises CellError where the file has no such score."""
        started, cell = time.time(), place.cell
        served = self._served(cell)
        scores = "scores" in benchmark_rule_of(cell).tables
        result: dict[str, Any]
        if scores:
            metric = self.run.benchmarks[cell.benchmark].metric
            result = {
                "metrics": {metric: {"value": served.value, "stderr": served.stderr}},
                "n_items": served.n_items,
                "prompt_sha256": None,
                "task_version": None,
                "source": f"{served.source}:test" if cell.split == "validation" else served.source,
            }
        else:  # what a fine-tune of the real kind records, as far as a selection reads it
            result = {
                "epochs": [],
                "best_epoch": 1,
                "best_value": served.value,
                "diverged": False,
                "reason": None,
                "adapter_sha256": None,
                "source": f"{served.source}:test",
            }
        path, digest = self.workspace.served
        sidecar = {
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
            "wall_seconds": round(time.time() - started, 3),
            "replay": {"scores": path, "sha256": digest},
            "versions": {"lm-validity": importlib.metadata.version("lm-validity"), "replay": digest},
        }

        def write_files(folder: Path) -> None:
            if scores:  # a finished fine-tune has an adapter's folder, which nobody opens in a replay
                from pyarrow import parquet

                from lm_validity.tables.schema import ITEMS

                parquet.write_table(ITEMS.empty_table(), folder / "items.parquet")

        self.workspace.store.commit(place, result, sidecar, write_files)

    def _served(self, cell: BenchmarkCell) -> Served:
        protocol = benchmark_rule_of(cell).protocol
        path, digest = self.workspace.served
        scores, row = read_served(path, digest), self.run.models[cell.model]
        for model in (row.model, row.path):
            for seed in (cell.seed, None):
                score = scores.get((model, cell.checkpoint or "final", cell.benchmark, protocol, seed))
                if score is not None:
                    return score
        raise CellError(
            f"{path}: no {protocol} score of {row.path} ({cell.checkpoint or 'final'}) on {cell.benchmark}.",
            "leave the model or the benchmark out of the sheets, or complete the file.",
        )


@cache
def read_served(path: str, digest: str) -> dict[tuple[object, ...], Served]:
    """(model, checkpoint, benchmark, protocol, seed) -> score, of the selected test rows of a score file.

    digest: the file's sha256; it is read once as long as that stays. `.parquet`: a table with the columns of SCORES;
    anything else: the authors' JSON. Raises InputError for neither, and for two scores of one key.
    """
    from lm_validity.tables.formats.published import read_lm_harmony
    from lm_validity.tables.schema import REPLAY, read_scores

    table = read_scores(path) if str(path).endswith(".parquet") else read_lm_harmony(path)
    rows = table[table["selected"].fillna(value=True).astype(bool) & (table["split"].fillna("test") == "test")]
    scores: dict[tuple[object, ...], Served] = {}
    for row in rows.astype(object).where(rows.notna(), None).to_dict("records"):
        seed = None if row["seed"] is None else int(row["seed"])
        key = (row["model"], row["checkpoint"] or "final", row["benchmark"], row["protocol"], seed)
        if key in scores:
            raise InputError(f"{path}: two selected test scores of {key}.", "keep one of each.")
        items = None if row["n_items"] is None else int(row["n_items"])
        source = (row["source"] or Path(path).name).removeprefix(REPLAY)
        scores[key] = Served(float(row["value"]), row["stderr"], items, f"{REPLAY}{source}")
    return scores


# ---- what the login node writes down -----------------------------------------------------------------------------


def model_record(run: Run, row: Model) -> dict[str, Any]:
    """A model's record, as `prefetch_model` writes it, without fetching anything."""
    sha = _check_listed(run, 0, {row.model, row.path}, f"model {row.model!r} ({row.path})")
    point = {"path": row.path, "subfolder": None, "revision": None, "digest": f"{row.path} replayed", "files": None}
    return {
        "model": row.model,
        "path": row.path,
        "revision": None,
        "checkpoints": {checkpoint.checkpoint: point for checkpoint in row.checkpoints},
        "chat_template": row.instruction_tuned,
        "architecture": None,
        "context_length": None,
        "replay": sha,
    }


def benchmark_record(run: Run, row: Benchmark) -> dict[str, Any]:
    """A benchmark's record, as `prefetch_benchmark` writes it, without its data set."""
    sha = _check_listed(run, 2, {row.benchmark}, f"benchmark {row.benchmark!r}")
    return {
        "record": {"task": row.task, "version": None, "metrics": [row.metric]},
        "digest": f"{row.task} replayed",
        "output_type": row.output_type,
        "documents": {},
        "data": None,
        "fewshot": None,
        "replay": sha,
    }


def _check_listed(run: Run, part: int, names: set[str], noun: str) -> str:
    """sha256 of the score file, which must have at least one score of the model or benchmark."""
    path, digest = Workspace(run).served
    if not any(key[part] in names for key in read_served(path, digest)):
        raise InputError(f"{path}: no score of {noun}.", "leave it out of the sheet, or complete the file.")
    return digest
