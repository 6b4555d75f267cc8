"""A whole run over toy models and toy tasks in one process: prefetch, splits, and jobs through the store."""

from contextlib import ExitStack
from pathlib import Path

from toy_world import toy_model, toy_rows, write_toy_tasks

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.models.prefetch import prefetch_model
from lm_validity.cells.runner import run_job
from lm_validity.cells.tasks.evaluation import Example
from lm_validity.cells.tasks.splits import prefetch_benchmark, write_splits
from lm_validity.cells.training.loop import FinetuneSettings, Member, Plan, TrainingRun, started
from lm_validity.config.load import Run, build_run
from lm_validity.files import write_json
from lm_validity.run.inputs import own_files, states_of
from lm_validity.run.store import Store
from lm_validity.run.workspace import Workspace

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
    write_toy_tasks(_made(folder / "tasks"), rows=rows)
    toy_model("llama", folder / "model")
    names = [f"step{number}" for number in range(1, checkpoints + 1)]
    for number, name in enumerate(names, start=1):
        toy_model("llama", folder / "model" / name, seed=number)
    sheet = "checkpoint\titeration\ttokens_b\tsubfolder\n"
    sheet += "".join(f"{name}\t{number}\t0.00{number}\t{name}\n" for number, name in enumerate(names, start=1))
    Path("points.tsv").write_text(sheet)
    points = "points.tsv" if names else ""
    Path("models.tsv").write_text(f"model\tpath\tdtype\tcheckpoints\nm\t{folder / 'model'}\tfloat32\t{points}\n")
    sheet = {"benchmark": benchmark, "task": benchmark, "include_path": str(folder / "tasks"), **(columns or {})}
    Path("benchmarks.tsv").write_text("\t".join(sheet) + "\n" + "\t".join(sheet.values()) + "\n")
    values = {
        "name": "toy",
        "studies": list(studies),
        "models": "models.tsv",
        "benchmarks": "benchmarks.tsv",
        "finetuning": {"learning_rates": RATES, "epochs": 5} | sections.pop("finetuning", {}),
        "evaluation": {"device": "cpu"} | sections.pop("evaluation", {}),
        **sections,
    }
    workspace = Workspace(build_run(values, "toy"))
    run = workspace.run
    record_model(run, "m")
    record = prefetch_benchmark(run.benchmarks[benchmark])
    write_json(run.results / "prefetch" / "benchmarks" / f"{benchmark}.json", record)
    write_splits(workspace, benchmark)
    return Workspace(run)


def record_model(run: Run, model: str) -> None:
    """Write what `prefetch-model` writes of a model, with the states of its files."""
    record = prefetch_model(run.models[model]) | {"sources": states_of(own_files(run, "models", model))}
    write_json(run.results / f"prefetch/models/{model}.json", record)


def run_all(workspace: Workspace, *rules: str) -> None:
    """Every job of the named rules, in their order."""
    for rule in rules:
        for job in [job for job in workspace.grid.jobs.values() if job.rule == rule]:
            run_job(Workspace(workspace.run), job)


def sidecars(store: Store) -> dict[str, dict]:
    """Cell -> sidecar, of every finished cell."""
    found = sorted(store.root.glob("*/*/*/sidecar.json"))
    return {
        path.parent.name.partition("--")[0]: store.sidecar(str(path.parent.relative_to(store.root))) for path in found
    }


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run_of(lm: LanguageModel, examples: list[Example], settings: FinetuneSettings) -> TrainingRun:
    """Fresh adapters in training; `end` takes them off the model."""
    stack = ExitStack()
    run = stack.enter_context(started(Plan(lm, examples, [Member(settings, Path("nowhere"))], float, 7)))
    run.end = stack.close
    return run
