"""What a run will cost: the analytic model of `workload`, corrected by the sidecars of finished cells.

The correction of a (rule, size class) is what its cells took over what was predicted for them, sum over sum: a median
would leave out the cells that load a model, and be too low for every total. Its error is found by leaving out: each
model's cells are predicted from the other models' (each cell from the other cells, where only one model was run).
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from lm_validity.config.load import Run
from lm_validity.files import read_json_or
from lm_validity.monitor.workload import Workload
from lm_validity.run.cell import Cell
from lm_validity.run.grid import Grid
from lm_validity.run.participants import kind_and_id, size_class
from lm_validity.run.rules import RULES, rule_of

NO_GPU = "a processor without GPU"
SIDECARS = 30  # read a (rule, model): enough for a median


class Measured(NamedTuple):
    """One finished cell: what it took, and what the analytic model says. Memory in MB, null where not recorded."""

    rule: str
    size_class: str
    model: tuple[str, str]  # kind and id
    seconds: float
    predicted: float
    stored: int
    stored_predicted: float
    memory_mb: float | None
    gpu_memory_mb: float | None
    device: str


class Error(NamedTuple):
    """Error of the calibrated times, as factors. cell: half of the cells are within it; total, worst: half of the
    models' totals are, and all of them; by: what was left out."""

    cells: int
    cell: float
    total: float
    worst: float
    by: str


class Estimator:
    """Expected cost of a run's cells. `sources`: other runs whose finished cells are learned from too."""

    def __init__(self, run: Run, sources: Iterable[Run] = ()):
        self.run, self.workload = run, Workload(run)
        self.measured = [one for source in (run, *sources) for one in self._measure(source)]
        self._seconds = corrections([(one.rule, one.size_class, one.seconds, one.predicted) for one in self.measured])
        self._stored = corrections(
            [(one.rule, one.size_class, one.stored, one.stored_predicted) for one in self.measured]
        )

    def seconds(self, cell: Cell) -> float:
        """Expected seconds of a cell."""
        return self.workload.seconds(cell) * self._correction(self._seconds, cell)

    def stored_bytes(self, cell: Cell) -> float:
        """Expected bytes of a cell in the store."""
        return self.workload.stored_bytes(cell) * self._correction(self._stored, cell)

    def _correction(self, found: dict[tuple[str, ...], float], cell: Cell) -> float:
        return correction(found, cell.rule, rule_of(cell).row(self.run, cell.model).size_class)

    def is_calibrated(self, rule: str) -> bool:
        """Whether any finished cell of this rule was learned from."""
        return any(one.rule == rule for one in self.measured)

    def of_a_gpu(self) -> list[str]:
        """Size classes that compute without a GPU, whose hours are a GPU's all the same: no cell finished on a CPU, of
        the class or (where it has none) of the whole run, corrects them."""
        found, configuration = [], self.run.configuration
        for name in dict.fromkeys(row.size_class for row in Grid(self.run).used_rows):
            known = [one for one in self.measured if one.size_class == name] or self.measured
            on_cpu = configuration.evaluation.device == "cpu" or not configuration.size_classes[name].gpu
            if on_cpu and not (known and all(one.device == NO_GPU for one in known)):
                found.append(name)
        return found

    # ---- learning -----------------------------------------------------------------------------------------------

    def _measure(self, run: Run) -> list[Measured]:
        """Sidecars of a run's finished cells; those of a replay say nothing about cost, nor do those of cells that were
        resumed, whose earlier attempts nobody timed."""
        workload = self.workload if run is self.run else Workload(run)
        found = []
        tokens: dict[tuple[str, str], list[float]] = {}
        waiting = []
        for (rule, model), cells in _cells_by_model(run).items():
            folder = run.results / "store" / rule / model
            names = {path.name.rpartition("--")[0]: path for path in folder.glob("*--*")} if folder.is_dir() else {}
            there = [(cell, names[cell.name]) for cell in cells if cell.name in names]
            row = RULES[rule].row(run, model)
            for cell, path in there[:: max(1, len(there) // SIDECARS)][:SIDECARS]:
                sidecar = _read_sidecar(path)
                if sidecar is None:
                    continue
                counted = RULES[rule].counted_tokens(workload, cell, sidecar)
                if counted is not None:
                    tokens.setdefault(counted[0], []).append(counted[1])
                waiting.append((cell, row, path, sidecar))
        # tokens first: the analytic model is of counted tokens wherever they were counted
        for key, values in tokens.items():
            workload.counted_tokens[key] = median(values)
            if key[1] in self.run.benchmarks:
                self.workload.counted_tokens.setdefault(key, median(values))
        for cell, row, path, sidecar in waiting:
            stored = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            found.append(
                Measured(
                    cell.rule,
                    row.size_class,
                    kind_and_id(row),
                    sidecar["wall_seconds"],
                    workload.seconds(cell),
                    stored,
                    workload.stored_bytes(cell),
                    sidecar.get("peak_memory_mb"),
                    sidecar.get("peak_gpu_memory_mb"),
                    (sidecar.get("machine") or {}).get("gpu") or NO_GPU,
                )
            )
        return found

    def error(self) -> Error | None:
        """How well finished cells are predicted by the others; None where there are fewer than two."""
        if len(self.measured) < 2:
            return None
        by_model = len({one.model for one in self.measured}) > 1
        groups: dict[object, list[Measured]] = {}
        for number, one in enumerate(self.measured):
            groups.setdefault(one.model if by_model else number, []).append(one)
        cells, totals = [], []
        for left_out, inside in groups.items():
            rest = [one for name, others in groups.items() if name != left_out for one in others]
            found = corrections([(one.rule, one.size_class, one.seconds, one.predicted) for one in rest])
            expected = [one.predicted * correction(found, one.rule, one.size_class) for one in inside]
            cells += [abs(math.log(value / one.seconds)) for value, one in zip(expected, inside, strict=True)]
            totals.append(abs(math.log(sum(expected) / sum(one.seconds for one in inside))))
        cell, total, worst = (math.exp(value) for value in (median(cells), median(totals), max(totals)))
        return Error(len(cells), cell, total, worst, "model" if by_model else "cell")


def corrections(cells: list[tuple[str, str, float, float]]) -> dict[tuple[str, ...], float]:
    """(rule, size class), (rule,) and () -> measured over predicted, of (rule, size class, measured, predicted)."""
    sums: dict[tuple[str, ...], list[float]] = {}
    for rule, name, measured, predicted in cells:
        for key in ((rule, name), (rule,), ()):
            group = sums.setdefault(key, [0.0, 0.0])
            group[0] += measured
            group[1] += predicted
    return {key: measured / predicted for key, (measured, predicted) in sums.items() if predicted}


def correction(found: dict[tuple[str, ...], float], rule: str, name: str) -> float:
    """That of the size class, else of the rule, else of everything; 1 where nothing was measured."""
    return next((found[key] for key in ((rule, name), (rule,), ()) if key in found), 1.0)


class Need(NamedTuple):
    """One rule's cells: how many, in how many jobs, expected GPU hours and hours of processes, and requested ones."""

    rule: str
    cells: int
    jobs: int
    hours: float
    gpu_hours: float
    requested_gpu_hours: float
    calibrated: bool


def needs(estimator: Estimator, unfinished: Collection[Cell] | None = None) -> list[Need]:
    """Per rule, over all cells, or over the `unfinished` ones. Selections run on the login node and cost nothing."""
    run, found = estimator.run, dict[str, Need]()
    for job in Grid(run).jobs.values():
        cells = [cell for cell in job.cells if unfinished is None or cell in unfinished]
        if not cells:
            continue
        rule = rule_of(job)
        asked, seconds = rule.resources(run, job), 0.0
        if not rule.on_login_node:
            start = estimator.workload.start_seconds(rule.row(run, job.model))
            seconds = sum(map(estimator.seconds, cells)) + start
        before = found.get(job.rule) or Need(job.rule, 0, 0, 0.0, 0.0, 0.0, estimator.is_calibrated(job.rule))
        found[job.rule] = before._replace(
            cells=before.cells + len(cells),
            jobs=before.jobs + 1,
            hours=before.hours + seconds / 3600,
            gpu_hours=before.gpu_hours + seconds * asked.gpus / 3600,
            requested_gpu_hours=before.requested_gpu_hours + asked.minutes * asked.gpus / 60,
        )
    return list(found.values())


@dataclass
class ClassMemory:
    """Memory of a size class: its models, what a job's first attempt asks for, and the largest GPU memory expected
    (`gpu_gb`) and the largest memory measured, 0 where none was."""

    mem_mb: int
    gpus: int
    models: int = 0
    gpu_gb: float = 0.0
    measured_mb: float = 0.0
    measured_gpu_mb: float = 0.0


def memory_by_class(estimator: Estimator) -> dict[str, ClassMemory]:
    """Memory by size class, in the order of the models."""
    run, found = estimator.run, dict[str, ClassMemory]()
    for model in Grid(run).used_rows:
        one = size_class(run, model)
        row = found.setdefault(model.size_class, ClassMemory(one.mem_mb, one.gpu))
        row.models += 1
        row.gpu_gb = max(row.gpu_gb, estimator.workload.gpu_gb(model))
    for name, row in found.items():
        same = [one for one in estimator.measured if one.size_class == name]
        row.measured_mb = max((one.memory_mb or 0.0 for one in same), default=0.0)
        row.measured_gpu_mb = max((one.gpu_memory_mb or 0.0 for one in same), default=0.0)
    return found


def _cells_by_model(run: Run) -> dict[tuple[str, str], list[Cell]]:
    found: dict[tuple[str, str], list[Cell]] = {}
    for job in Grid(run).jobs.values():
        if not rule_of(job).on_login_node:
            for cell in job.cells:
                found.setdefault((job.rule, cell.model), []).append(cell)
    return found


def _read_sidecar(folder: Path) -> dict[str, Any] | None:
    """A finished cell's sidecar, unless it is a replay's, has no time, or has only that of the last attempt."""
    sidecar = read_json_or(folder / "sidecar.json", {})
    unknown = "replay" in sidecar or not sidecar.get("wall_seconds") or sidecar.get("resumed_epochs")
    return None if unknown else sidecar
