"""A whole run over toy models and toy tasks in one process: prefetch, splits, and jobs through the store."""

from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import torch
from toy_world import split_documents, toy_model, toy_rows, write_toy_tasks

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.models.prefetch import prefetch_model
from lm_validity.cells.runner import run_job
from lm_validity.cells.tasks.evaluation import Example, metric_value, prepare_requests, training_examples
from lm_validity.cells.tasks.splits import prefetch_benchmark, write_splits
from lm_validity.cells.training.loop import FinetuneSettings, Member, Plan, TrainingRun, started
from lm_validity.cells.workers import finetune
from lm_validity.config.load import Run, build_run
from lm_validity.files import write_json
from lm_validity.run.cell import Job
from lm_validity.run.inputs import own_files, states_of
from lm_validity.run.store import Store
from lm_validity.run.workspace import Workspace
from lm_validity.tables.merge import Merger

# At these rates they do
RATES = ("1e-2", "2e-2", "3e-2")


def ten_of_each(split: str) -> list[dict]:
    """Few rows of one answer, which the untouched model never gives and a few steps teach it."""
    return [row | {"gold": row["choices"].index("blue")} for row in toy_rows(split)[:10]]


def start_run(
    folder: Path,
    *,
    checkpoints: int = 0,
    studies=("agreement",),
    rows=ten_of_each,
    benchmark: str = "toy_choice",
    columns: dict[str, str] | None = None,
    **sections,
) -> Workspace:
    """A workspace with one Llama `m` and one of the toy benchmarks, prefetched and split; the working directory is
    `folder`. `checkpoints`: further ones, of other weights. `columns`: more of the benchmarks sheet."""
    write_toy_tasks(folder / "tasks", rows=rows)
    toy_model("llama", folder / "model")
    points = []
    for number in range(1, checkpoints + 1):
        toy_model("llama", folder / "model" / (name := f"step{number}"), seed=number)
        points.append({"checkpoint": name, "iteration": number, "tokens_b": number / 1000, "subfolder": name})
    model = {"model": "m", "path": folder / "model", "dtype": "float32"}
    write_sheet("models.tsv", model | ({"checkpoints": write_sheet("points.tsv", *points)} if points else {}))
    row = {"benchmark": benchmark, "task": benchmark, "include_path": folder / "tasks", **(columns or {})}
    write_sheet("benchmarks.tsv", row)
    values = {"name": "toy", "studies": list(studies), "models": "models.tsv", "benchmarks": "benchmarks.tsv"}
    values["finetuning"] = {"learning_rates": RATES, "epochs": 5} | sections.pop("finetuning", {})
    values["evaluation"] = {"device": "cpu"} | sections.pop("evaluation", {})
    run = build_run(values | sections, "toy")
    record_model(run, "m")
    return record_benchmark(run, benchmark)


def write_sheet(path: str, *rows: dict) -> str:
    """A sheet of the rows, which may lack columns; its path."""
    pd.DataFrame(rows).to_csv(path, sep="\t", index=False)
    return path


def record_model(run: Run, model: str) -> None:
    """Write what `prefetch-model` writes of a model, with the states of its files."""
    record = prefetch_model(run.models[model]) | {"sources": states_of(own_files(run, "models", model))}
    write_json(run.results / f"prefetch/models/{model}.json", record)


def record_benchmark(run: Run, benchmark: str) -> Workspace:
    """Write what `prefetch-benchmark` writes of a benchmark, and its splits."""
    record = prefetch_benchmark(run.benchmarks[benchmark])
    write_json(run.results / f"prefetch/benchmarks/{benchmark}.json", record)
    write_splits(Workspace(run), benchmark)
    return Workspace(run)


def run_all(workspace: Workspace, *rules: str) -> None:
    """Every job of the named rules, or of all, in their order."""
    for rule in rules or ("evaluate_model", "finetune_adapter", "select_prompt", "select_adapter", "evaluate_adapter"):
        for job in jobs_of(workspace, rule):
            run_job(Workspace(workspace.run), job)


def jobs_of(workspace: Workspace, rule: str) -> list[Job]:
    return [job for job in workspace.grid.jobs.values() if job.rule == rule]


def merged(workspace: Workspace, table: str = "scores") -> pd.DataFrame:
    """A table of the cells that are finished, as it is written."""
    getattr(Merger(workspace.run, partial=True), f"write_{table}")(Path("tables"))
    return pd.read_parquet(f"tables/{table}.parquet")


def sidecars(store: Store) -> dict[str, dict]:
    """Cell -> sidecar, of every finished cell."""
    found = [path.parent for path in sorted(store.root.glob("*/*/*/sidecar.json"))]
    return {path.name.partition("--")[0]: store.sidecar(str(path.relative_to(store.root))) for path in found}


def steps_of(store: Store) -> list[int]:
    """Steps of an optimizer that each finished cell took itself."""
    counters = [sidecar["counters"]["by_phase"] for sidecar in sidecars(store).values()]
    return [phases.get("train", {}).get("optimizer_steps", 0) for phases in counters]


SETTINGS = FinetuneSettings(learning_rate=3e-3, epochs=3)


class Killed(Exception):
    """As a signal ends a process."""


def make_world(lm, task, metric: str = "acc,none"):
    """(examples, validate) on the first 20 training documents, so that a batch is partial."""
    examples = training_examples(lm, task, split_documents(task, number=20))
    prepared = prepare_requests(lm, task, split_documents(task, "validation"))
    return examples, lambda: metric_value(lm, prepared, metric)


def run(lm, examples, validate, folder, settings=SETTINGS, *, on_epoch=lambda epoch: None, killed_after=0, **options):
    """The fine-tune in `folder`; killed after an epoch, if one is named."""

    def note(epoch):
        on_epoch(epoch)
        if epoch.number == killed_after:
            raise Killed

    return finetune(Plan(lm, examples, [Member(settings, folder, note)], validate, **({"seed": 7} | options)))


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def weights(lm) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in lm.base.state_dict().items()}


def check_unchanged(lm, before: dict[str, torch.Tensor]) -> None:
    """The base model is given back with the weights that it had."""
    after = lm.base.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def run_of(lm: LanguageModel, examples: list[Example], settings: FinetuneSettings) -> TrainingRun:
    """Fresh adapters in training; `end` takes them off the model."""
    stack = ExitStack()
    run = stack.enter_context(started(Plan(lm, examples, [Member(settings, Path("nowhere"))], float, 7)))
    run.end = stack.close
    return run
