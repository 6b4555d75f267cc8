"""A replay: the worker of a rule is a file of scores that were computed elsewhere."""

import importlib.metadata
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

from lm_validity.config.load import Run
from lm_validity.config.sheets import Benchmark, Model
from lm_validity.errors import CellError, InputError
from lm_validity.files import write_json
from lm_validity.run.cell import BenchmarkCell, CheckpointRecord, Job, ReplayedModel
from lm_validity.run.rules import benchmark_rule_of
from lm_validity.run.store import Address
from lm_validity.run.workspace import Workspace

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

    def __init__(self, workspace: Workspace, job: Job[BenchmarkCell]):
        self.workspace, self.run = workspace, workspace.run

    def compute(self, address: Address[BenchmarkCell]) -> None:
        """Commit one cell. Raises CellError where the file has no such score."""
        started, cell = time.time(), address.cell
        served = self._served(cell)
        scores = "scores" in benchmark_rule_of(cell).tables
        result: dict[str, object]
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

        self.workspace.store.commit(address, result, sidecar, write_files)

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
    from lm_validity.tables.formats.specs import read_lm_harmony
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


def model_record(run: Run, row: Model) -> ReplayedModel:
    """A model's record, as `prefetch_model` writes it, without fetching anything."""
    sha = _check_listed(run, 0, {row.model, row.path}, f"model {row.model!r} ({row.path})")
    point: CheckpointRecord = {"path": row.path, "subfolder": None, "revision": None, "digest": f"{row.path} replayed"}
    return {
        "model": row.model,
        "checkpoints": {checkpoint.checkpoint: point for checkpoint in row.checkpoints},
        "chat_template": row.instruction_tuned,
        "replay": sha,
    }


def benchmark_record(run: Run, row: Benchmark) -> dict[str, object]:
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


def write_splits(workspace: Workspace, benchmark: str) -> None:
    """The files of a benchmark's splits, as `cells.tasks.splits` writes them, without a document."""
    from lm_validity.tables.items import write_no_documents

    for name in ("train", "validation", "test"):
        nothing = {"split": name, "documents": 0, "digest": "replayed", "replay": workspace.replay}
        write_json(workspace.split_path(benchmark, name), nothing)
    write_no_documents(workspace.split_path(benchmark, "test").with_name("documents.parquet"))


def _check_listed(run: Run, part: int, names: set[str], noun: str) -> str:
    """sha256 of the score file, which must have at least one score of the model or benchmark."""
    path, digest = Workspace(run).served
    if not any(key[part] in names for key in read_served(path, digest)):
        raise InputError(f"{path}: no score of {noun}.", "leave it out of the sheet, or complete the file.")
    return digest
