"""What a run costs: the formula of `run.rules.base`, times the medians of what finished cells took over it."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from lm_validity.config.load import Run
from lm_validity.files import read_json_or
from lm_validity.run.cell import BenchmarkCell, Cell
from lm_validity.run.rules import RULES, rule_of
from lm_validity.run.rules.base import size_class
from lm_validity.run.rules.benchmarks import EVALUATE_ADAPTER, FINETUNE_ADAPTER
from lm_validity.run.workspace import Grid, Workload

NO_GPU = "a processor without GPU"
SIDECARS = 30  # read a (rule, model): enough for a median
TRAINING_RULES = (FINETUNE_ADAPTER.name, EVALUATE_ADAPTER.name)  # the rules whose cells a plan leaves out
Pair = tuple[str, str]  # model, benchmark


class Measured(NamedTuple):
    """One finished cell: what it took, and what the formula says. Memory in MB, null where not recorded."""

    rule: str
    size_class: str
    seconds: float
    predicted: float
    memory_mb: float | None
    gpu_memory_mb: float | None
    device: str


class Estimator:
    """Expected cost of a run's cells. `sources`: other runs whose finished cells are learned from too."""

    def __init__(self, run: Run, sources: Iterable[Run] = ()):
        self.run, self.workload = run, Workload(run)
        self.measured = [cell for source in (run, *sources) for cell in self._measure(source)]
        ratios: dict[tuple[str, ...], list[float]] = {}
        for cell in self.measured:
            for key in ((cell.rule, cell.size_class), (cell.rule,), ()) if cell.predicted else ():
                ratios.setdefault(key, []).append(cell.seconds / cell.predicted)
        self._corrections = {key: median(values) for key, values in ratios.items()}

    def seconds(self, cell: Cell) -> float:
        """Expected seconds of a cell: the formula's, times the median ratio of its rule and size class, else of its
        rule, else of all cells."""
        keys = ((cell.rule, rule_of(cell).row(self.run, cell.model).size_class), (cell.rule,), ())
        return self.workload.seconds(cell) * next(
            (self._corrections[key] for key in keys if key in self._corrections), 1
        )

    @property
    def counts_cpus_as_gpus(self) -> bool:
        """Whether a size class computes on a CPU, and no cell that finished on one corrects its hours, a GPU's."""
        device, rows = self.run.configuration.evaluation.device, Grid(self.run).used_rows
        on_cpu = device == "cpu" or not all(size_class(self.run, row).gpu for row in rows)
        return on_cpu and not any(cell.device == NO_GPU for cell in self.measured)

    def _measure(self, run: Run) -> list[Measured]:
        """Sidecars of a run's finished cells; those of a replay say nothing about cost, nor do those of cells that were
        resumed, whose earlier attempts nobody timed."""
        workload, measured = self.workload if run is self.run else Workload(run), []
        by_model: dict[tuple[str, str], list[Cell]] = {}
        for job in Grid(run).jobs.values():
            for cell in () if rule_of(job).on_login_node else job.cells:
                by_model.setdefault((job.rule, cell.model), []).append(cell)
        for (rule, model), cells in by_model.items():
            folder, row = run.results / "store" / rule / model, RULES[rule].row(run, model)
            names = {path.name.rpartition("--")[0]: path for path in folder.glob("*--*")}
            present = [(cell, names[cell.name]) for cell in cells if cell.name in names]
            for cell, path in present[:: max(1, len(present) // SIDECARS)][:SIDECARS]:
                sidecar = read_json_or(path / "sidecar.json", {})
                if "replay" in sidecar or not sidecar.get("wall_seconds") or sidecar.get("resumed_epochs"):
                    continue  # of no model, without a time, or with that of the last attempt only
                memory = (sidecar.get("peak_memory_mb"), sidecar.get("peak_gpu_memory_mb"))
                device = (sidecar.get("machine") or {}).get("gpu") or NO_GPU
                seconds = sidecar["wall_seconds"]
                measured.append(Measured(rule, row.size_class, seconds, workload.seconds(cell), *memory, device))
        return measured


class Need(NamedTuple):
    """One rule's cells: how many, in how many jobs, expected GPU hours and hours of processes, and requested ones."""

    rule: str
    cells: int
    jobs: int
    hours: float
    gpu_hours: float
    requested_gpu_hours: float


def needs(estimator: Estimator, unfinished: Collection[Cell] | None = None) -> list[Need]:
    """Per rule, over all cells, or over the `unfinished` ones. Selections run on the login node and cost nothing."""
    run, by_rule = estimator.run, dict[str, Need]()
    for job in Grid(run).jobs.values():
        cells = [cell for cell in job.cells if unfinished is None or cell in unfinished]
        if not cells:
            continue
        rule = rule_of(job)
        request, seconds = rule.resources(run, job), 0.0
        if not rule.on_login_node:
            start = estimator.workload.start_seconds(rule.row(run, job.model))
            seconds = sum(map(estimator.seconds, cells)) + start
        hours, requested = seconds / 3600, request.minutes * request.gpus / 60
        need = Need(job.rule, len(cells), 1, hours, hours * request.gpus, requested)
        by_rule[job.rule] = sum_of([by_rule[job.rule], need]) if job.rule in by_rule else need
    return list(by_rule.values())


def sum_of(rows: Collection[Need], rule: str | None = None) -> Need:
    """Several needs as one, under another name or the first one's."""
    columns = zip(*(row[1:] for row in rows), strict=True)
    return Need(rule or next(iter(rows)).rule, *map(sum, columns))


# ----------------------------------------------------------------------------------------------------------------------
# What fine-tuning each model on each benchmark is expected to cost, and what a plan leaves out of it.


def training_costs(estimator: Estimator) -> dict[Pair, float]:
    """(model, benchmark) -> expected hours (GPU hours where the model's size class has GPUs) of all fine-tunes and of
    the look at test, of every pair of the study, planned or not.

    In the order of the sheets, models outside. Without the start of processes, which several pairs share.
    """
    costs: dict[Pair, float] = {}
    for job in Grid(replace(estimator.run, plan=None)).jobs.values():
        if job.rule not in TRAINING_RULES:
            continue
        gpus = max(1, rule_of(job).size_class(estimator.run, job.model).gpu)
        for cell in job.cells:
            assert isinstance(cell, BenchmarkCell)
            pair = cell.model, cell.benchmark
            costs[pair] = costs.get(pair, 0.0) + estimator.seconds(cell) * gpus / 3600
    return costs


def total(costs: Mapping[Pair, float], pairs: Iterable[Pair]) -> float:
    """The hours of some pairs together."""
    return sum(costs[pair] for pair in pairs)


def unplanned_pairs(run: Run) -> list[Pair]:
    """(model, benchmark) of the agreement study that the plan leaves out, in the order of the sheets."""
    grid = Grid(run)
    return [
        (model.model, benchmark)
        for model in grid.agreement_models
        for benchmark in grid.benchmarks("agreement")
        if not grid.is_planned(model.model, benchmark)
    ]
