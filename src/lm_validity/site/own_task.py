"""One new benchmark on the models of a run: a run of its own beside that run, and a report over both.

The run `<run>-<benchmark>` has the models and settings of the configured run and one benchmark, that of a task file. It
shares the store of the configured run, so the benchmark's cells are there when its row is added to the sheet. What the
configured run has finished is read and never computed again.

    results/<run>-<benchmark>/card/     configuration.json, models.tsv, benchmarks.tsv, plan.tsv, tables/
    results/<run>-<benchmark>/report/   the site
"""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from lm_validity.cells.tasks.finding import find_own_task, read_task_name
from lm_validity.config.load import PlannedCell, Run, key_values, load_run
from lm_validity.config.rows import LAYOUT, read_text_rows
from lm_validity.config.sheets import Benchmark
from lm_validity.errors import InputError
from lm_validity.files import read_json, replace_file, write_json, write_text
from lm_validity.run.scoring import named_files
from lm_validity.site.cards import card as cards
from lm_validity.site.gather import Given
from lm_validity.site.report import report_site
from lm_validity.tables.merge import Merger
from lm_validity.tables.metrics import PREFERRED, metric_direction
from lm_validity.tables.schema import ITEMS, SCORES, SELECTIONS
from lm_validity.words import count

STUDIES = ("agreement", "signal")  # what a task file can take part in
_TABLES = {"scores": SCORES, "items": ITEMS, "selections": SELECTIONS}


@dataclass(frozen=True)
class OwnTask:
    """A task file beside a configured run. `row`: its row of the benchmarks sheet, as texts. `trains`: whether it has
    documents to train on; without, it is scored direct only. `results`: of the task's run, `<run>-<benchmark>`, beside
    those of the configured run."""

    base: Run
    row: dict[str, str]
    trains: bool
    results: Path

    @property
    def name(self) -> str:
        """The name of the benchmark that the task becomes."""
        return self.row["benchmark"]

    @property
    def folder(self) -> Path:
        """The folder of the run's configuration, sheets, plan and tables."""
        return self.results / "card"

    @property
    def configfile(self) -> Path:
        """The configuration of the task's run, which `write_run` makes."""
        return self.folder / "configuration.json"

    @property
    def studies(self) -> tuple[str, ...]:
        """The studies that its run computes cells for. Curves are of direct scores, so `signal` needs no training."""
        studies = tuple(study for study in STUDIES if study in self.base.configuration.studies)
        return studies if self.trains else ("signal",)

    def lines(self) -> list[str]:
        """What will be computed, for a terminal."""
        protocols = "direct and train before test" if "agreement" in self.studies else "direct only"
        reason = "" if self.trains else " (the task has no training split)"
        return [
            f"Benchmark {self.name}: {protocols}{reason}; metric {self.row['metric']}.",
            f"Run {self.results.name}: its cells go into {self.base.results / 'store'}.",
        ]


def read_own_task(path: Path, configfile: Path) -> OwnTask:
    """The task file as a benchmark of the configured run's models.

    Writes nothing, but for a copy of the task's files where they lie in the working directory itself: all Python files
    below a task's folder are part of its recipe. Raises InputError for a file that is no task, a name that the sheet
    has or that cannot be an id, a metric without a direction, and models that are not there yet.
    """
    name = read_task_name(path)
    base = load_run(configfile)
    _check_base(base, configfile)
    if name in base.benchmarks:
        raise InputError(
            f"{path}: {base.configuration.benchmarks} has a benchmark {name!r}.",
            "give the task another name, or run the workflow for the benchmark of the sheet.",
        )
    results, folder = base.results.with_name(f"{base.name}-{name}"), path.parent
    _check_id(path, name, results)
    copied = folder.resolve() == Path.cwd()
    if copied:
        folder = _copy_task(path, results / "task")
    try:
        record, trains = find_own_task(path, name, folder)
        metric = _main_metric(path, record.higher_is_better)
    except InputError:
        if copied:
            shutil.rmtree(folder)
            with suppress(OSError):  # what an earlier call computed stays
                folder.parent.rmdir()
        raise
    row = {"benchmark": name, "task": name, "include_path": str(folder), "output_type": record.output_type}
    return OwnTask(base, row | metric, trains, results)


def write_run(task: OwnTask) -> Run:
    """Write the configuration and sheets of the task's run, and join it to the configured run's store and records."""
    task.folder.mkdir(parents=True, exist_ok=True)
    sheets = {"models": task.folder / "models.tsv", "benchmarks": task.folder / "benchmarks.tsv"}
    _write_tsv(sheets["models"], _models(task))
    _write_tsv(sheets["benchmarks"], pd.DataFrame([task.row | {"studies": ",".join(task.studies)}]))
    values = key_values(task.base.configuration)
    values |= {key: str(path) for key, path in sheets.items()}
    values |= {"name": task.results.name, "studies": list(task.studies), "miniature": None, "bias": None}
    values |= {"plan": None}  # it is of the other benchmarks: the new one is scored everywhere
    write_json(task.configfile, values)
    store = task.base.results / "store"
    store.mkdir(parents=True, exist_ok=True)
    if not (task.results / "store").is_symlink():
        (task.results / "store").symlink_to(os.path.relpath(store, task.results))
    # the same records give the same recipes, and no model is looked for again
    records = task.results / "prefetch" / "models"
    records.mkdir(parents=True, exist_ok=True)
    for path in (task.base.results / "prefetch" / "models").glob("*.json"):
        shutil.copy2(path, records)
    return load_run(task.configfile)


def write_own_report(task: OwnTask) -> list[str]:
    """Write the site over the task's scores and all that the configured run has finished; lines to print, the last of
    them the task's card."""
    merger = Merger(task.base, partial=True)
    finished = task.folder / "finished"
    merger.write_scores(finished)
    merger.write_items(finished)
    for name, schema in _TABLES.items():
        parts = [folder / f"{name}.parquet" for folder in (finished, task.results / "tables")]
        _join(parts, schema, task.folder / "tables" / f"{name}.parquet")
    shutil.rmtree(finished)
    sheet = task.folder / "all_benchmarks.tsv"
    settings, report = task.base.configuration, task.results / "report"
    sheet_rows = read_text_rows(Path(settings.benchmarks or ""), LAYOUT).frame()
    _write_tsv(sheet, pd.concat([sheet_rows, pd.DataFrame([task.row])]).fillna(""))
    inputs = Given(
        models=Path(settings.models or ""),
        benchmarks=sheet,
        section=settings.reports,
        cards=settings.cards,
        splits=_all_splits(task),
        source=f"the run {task.results.name}",
        plan=_plan(task),
        agreement=settings.agreement,
    )
    lines = report_site([task.folder / "tables"], report, inputs)
    if merger.missing:
        lines.append(
            f"Not finished in the run {task.base.name}, so not in the report: {count(len(merger.missing), 'cell')}."
        )
    card = report / cards.FOLDER / cards.folder_name(task.name)
    return [*lines, read_json(card / "card.json")["verdict"]["sentence"], f"The card: {card / 'index.html'}"]


def _plan(task: OwnTask) -> Path:
    """What both runs fine-tune, as a sheet: what the configured run plans, and the task on every model if it trains."""
    models, benchmarks = task.base.agreement_names
    pairs = [] if task.base.plan else list(product(models, benchmarks))
    pairs += [(model, task.name) for model in models if "agreement" in task.studies]
    cells = [*(task.base.plan or {}).values(), *(PlannedCell(model=m, benchmark=b) for m, b in pairs)]
    path, columns = task.folder / "plan.tsv", list(PlannedCell.model_fields)
    _write_tsv(path, pd.DataFrame([cell.model_dump() for cell in cells], columns=columns))
    return path


def _all_splits(task: OwnTask) -> Path:
    """A folder of links to the splits of every benchmark."""
    splits_folder = task.folder / "splits"
    shutil.rmtree(splits_folder, ignore_errors=True)
    splits_folder.mkdir()
    for folder in (task.base.results, task.results):
        for splits in (folder / "splits").glob("*"):
            (splits_folder / splits.name).symlink_to(os.path.relpath(splits, splits_folder))
    return splits_folder


# ---- checks ----------------------------------------------------------------------------------------------------------


def _check_base(base: Run, configfile: Path) -> None:
    if not {*STUDIES} & {*base.configuration.studies}:
        raise InputError(
            f"{configfile}: its `studies` have neither agreement nor signal.",
            "name a configuration whose models are scored on benchmarks.",
        )
    if base.configuration.replay:
        raise InputError(f"{configfile}: a replay runs no model.", "name a configuration without `replay`.")
    for model in base.models.values():
        if model.path.startswith(f"{base.results}/") and not Path(model.path).is_dir():
            raise InputError(
                f"{model.path}: model {model.model!r} does not exist yet.",
                f"run the workflow first: snakemake --configfile {configfile}.",
            )


def _check_id(path: Path, name: str, results: Path) -> None:
    try:
        Benchmark.model_validate({"benchmark": name})
    except ValidationError as error:
        context = error.errors()[0]["ctx"]
        raise InputError(f"{path}: task {name!r}: {context['problem']}.", context["hint"]) from None
    if results.exists() and not ((results / "card").is_dir() or (results / "task").is_dir()):
        raise InputError(f"{results}: the folder of another run.", "give the task another name.")


def _main_metric(path: Path, directions: Mapping[str, bool | None]) -> dict[str, str]:
    """The metric of the report's scores, as `report` guesses it, and whether a higher value is better: columns of the
    benchmarks sheet."""
    order = [*PREFERRED, "bits_per_byte"]
    names = {key: key.partition(",")[0] for key in directions}
    metric = min(directions, key=lambda key: order.index(names[key]) if names[key] in order else len(order))
    better = metric_direction(metric) if directions[metric] is None else directions[metric]
    if better is None:
        raise InputError(
            f"{path}: the task does not say whether a higher {names[metric]} is better.",
            "add higher_is_better to the metric in the file.",
        )
    return {"metric": metric, "higher_is_better": str(int(better))}


# ---- files -----------------------------------------------------------------------------------------------------------


def _copy_task(path: Path, folder: Path) -> Path:
    """The task's file and the files beside it that it names, in a folder of their own."""
    files = {path, *named_files([path])}
    away = sorted(str(file) for file in files if file.parent.resolve() != path.parent.resolve())
    if away:
        raise InputError(f"{path}: it names {away[0]}.", "put the task's file into a folder of its own.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in files:
        shutil.copy2(file, folder)
    return folder


def _models(task: OwnTask) -> pd.DataFrame:
    """The models sheet of the configured run, as texts, with paths as they are seen from the new sheet.

    Direct only: the models take part in `signal`, which scores without training, those of `agreement` at their end.
    """
    sheet = Path(task.base.configuration.models or "")
    frame = read_text_rows(sheet, LAYOUT).frame()
    frame["path"] = [row.path for row in task.base.models.values()]
    if "adapter" in frame:
        frame["adapter"] = [row.adapter or "" for row in task.base.models.values()]
    if "checkpoints" in frame:
        moved = frame["checkpoints"].map(lambda path: os.path.relpath(sheet.parent / path, task.folder))
        frame["checkpoints"] = moved.where(frame["checkpoints"] != "", "")
    if not task.trains:
        studies_used, rows = {*task.base.configuration.studies}, task.base.models.values()
        frame["studies"] = ["signal" if {*STUDIES} & studies_used & {*row.studies} else "bias" for row in rows]
        if "checkpoints" in frame:
            curves = ["signal" in studies_used & {*row.studies} for row in rows]
            frame["checkpoints"] = frame["checkpoints"].where(curves, "")
    return frame


def _write_tsv(path: Path, frame: pd.DataFrame) -> None:
    write_text(path, frame.to_csv(sep="\t", index=False, lineterminator="\n"))


def _join(parts: list[Path], schema: pa.Schema, path: Path) -> None:
    """The rows of several tables in one, a row group at a time."""
    with replace_file(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for table in map(pq.ParquetFile, parts):
            for number in range(table.num_row_groups):
                writer.write_table(table.read_row_group(number))
