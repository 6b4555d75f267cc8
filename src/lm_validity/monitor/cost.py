"""What a run costs: a formula of parameters and tokens before the first cell, medians of finished cells after it."""

import json
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import median
from typing import NamedTuple

from lm_validity.config.load import Run
from lm_validity.config.rows import is_folder
from lm_validity.config.sheets import BiasModel, Model
from lm_validity.files import read_json, read_json_or
from lm_validity.run.architectures import weight_files
from lm_validity.run.cell import Cell
from lm_validity.run.grid import Grid
from lm_validity.run.participants import kind_and_id, size_class
from lm_validity.run.records import read_record_or
from lm_validity.run.rules import RULES, rule_of

# ----------------------------------------------------------------------------------------------------------------------
# How much work a cell is, by a formula: documents, tokens, floating-point operations, seconds, bytes.
#
# Constants are estimates for one GPU with Hugging Face code run eagerly; finished cells correct them. Where neither
# splits nor records exist yet, documents are the caps of the configuration.

# floating-point operations per second that training and evaluation reach: 40% of an H200's peak in 16 bits
RATE = {"bfloat16": 395e12, "float16": 395e12, "float32": 45e12}
# of other GPUs, as a share of an H200's: (products in 16 bits without sparsity, float32). In teraflops: H100 and H200
# as SXM modules 989 and 67, in 16 bits H100 PCIe 756 and NVL 835 (glennklockwood.com/garden/processors/h100, which
# quotes NVIDIA's white paper); A100 312 and 19.5, L40S 362 and 91.6, A40 150 and 37.4 (hmc-tech.com/gpu,
# which lists NVIDIA's figures)
SPEED = {"h200": (1, 1), "h100": (1, 1), "l40s": (362 / 989, 91.6 / 67), "a100": (312 / 989, 19.5 / 67)}
SPEED |= {"a40": (150 / 989, 37.4 / 67)}
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
FORWARD_SECONDS, STEP_SECONDS = 0.028, 0.085  # launch floor of a forward pass, and of an optimizer step
PASS_SECONDS, DOCUMENT_SECONDS = 3.0, 0.0012  # host: once an evaluation, and a document
START_SECONDS, LOAD_RATE = 20.0, 1e9  # a process until it loads a model; bytes per second of that
# (scored tokens, training tokens, sequences) a document where nothing was counted yet
TOKENS = {"multiple_choice": (160, 50, 4), "generate_until": (150, 150, 1), "loglikelihood_rolling": (1000, 800, 1)}
LOGITS_AT_A_TIME = 2**26  # `PART` of cells/models/head.py
UNCOUNTED = "documents by the splits' caps"  # what is assumed of a benchmark that was not fetched
TYPICAL_B = {"miniature": 0.0005, "tiny": 0.12, "small": 0.6, "medium": 2.0, "large": 7.0, "huge": 13.0}


class Shape(NamedTuple):
    """A transformer of P parameters as wide models are built: 12 layers' worth of width^2 each, width = 128 layers."""

    layers: float
    width: float


def shape_of(parameters: float) -> Shape:
    """layers = (P / (12 * 128^2))^(1/3), width = 128 * layers."""
    layers = (parameters / (12 * 128**2)) ** (1 / 3)
    return Shape(layers, 128 * layers)


def adapter_parameters(parameters: float, rank: int, target_modules: str) -> float:
    """LoRA: rank * (in + out) summed over the layers' projections; a gated MLP is 8/3 as wide."""
    shape = shape_of(parameters)
    queries_to_values, output_and_mlp = 6 * shape.width, 13 * shape.width  # q, k, v; output projection and MLP
    return rank * shape.layers * (queries_to_values + (output_and_mlp if target_modules == "all-linear" else 0))


def gpu_gb(run: Run, parameters: float, dtype: str, *, recomputed: bool = False) -> float:
    """The least GPU memory that fine-tuning needs: weights, one text's activations and logits, the CUDA context.

    Activations: 34 * tokens * width * layers bytes in 16 bits (Korthikanti et al. 2022, eq. 1, without the attention
    matrix); logits: 150,000 words in 10 bytes, a part of them at a time; context: 1 GB. At least what scoring needs.
    `recomputed`: the size class asks for gradient checkpointing. Llama-3-8B in bfloat16 with 1024 tokens: 23.4 GB;
    counted on tensors without content, 23.9.
    """
    settings, shape = run.configuration.finetuning, shape_of(parameters)
    activations = 34 * settings.max_length * shape.width * shape.layers * BYTES[dtype] / 2
    if settings.gradient_checkpointing or recomputed:
        activations /= shape.layers
    trained = 16 * adapter_parameters(parameters, settings.rank, settings.target_modules)
    logits = 10 * min(settings.max_length * 150_000, LOGITS_AT_A_TIME)
    training = (parameters * BYTES[dtype] + activations + trained + logits) / 1e9 + 1
    return max(training, scoring_gb(parameters, dtype))


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
    """What each cell of one run has to do. `assumed` says in words what was not known."""

    def __init__(self, run: Run):
        self.run = run
        self.assumed: dict[str, set[str]] = {}
        self._parameters, self.documents = cache(self._find_parameters), cache(self._documents)

    def _assume(self, assumption: str, name: str) -> None:
        self.assumed.setdefault(assumption, set()).add(name)

    def parameters(self, row: Model | BiasModel) -> float:
        """Parameters from the sheet, else from the fetched weights, else of a typical model of the size class."""
        return self._parameters(*kind_and_id(row))

    def _find_parameters(self, kind: str, model: str) -> float:
        row = getattr(self.run, kind)[model]
        if getattr(row, "parameters_b", None):
            result: float = row.parameters_b * 1e9
            return result
        counted = _count_parameters(self.run.results / "prefetch" / kind / f"{model}.json")
        if counted:
            return counted
        self._assume("parameters by size class", model)
        return TYPICAL_B.get(row.size_class, 1.0) * 1e9

    def _documents(self, benchmark: str, split: str) -> int:
        """Documents of a split: as divided, as fetched, or the cap."""
        results = self.run.results
        cap: int = getattr(self.run.configuration.splits, split)
        divided: int | None = read_record_or(results / "splits" / benchmark / f"{split}.json").get("documents")
        if divided:
            return divided
        record = read_record_or(results / "prefetch" / "benchmarks" / f"{benchmark}.json")
        fetched: int | None = (record.get("documents") or {}).get(split)
        if fetched:
            return min(fetched, cap)
        self._assume(UNCOUNTED, benchmark)
        return cap

    def tokens(self, kind: str, benchmark: str) -> float:
        """Tokens a document: `scored` (all choices) or `trained`."""
        self._assume("tokens per document by output type", benchmark)
        return TOKENS[self.run.benchmarks[benchmark].output_type][0 if kind == "scored" else 1]

    # ---- seconds ------------------------------------------------------------------------------------------------

    def seconds(self, cell: Cell) -> float:
        """Expected seconds of one cell by the analytic model alone; 0 for selections."""
        return rule_of(cell).seconds(self, cell)

    def computing_seconds(self, row: Model | BiasModel, operations: float, passes: float, steps: float) -> float:
        """Seconds of so many floating-point operations: at the device's rate, or what it takes to launch so many
        forward passes and optimizer steps, whichever is longer."""
        of_type = SPEED[size_class(self.run, row).gpu_type][row.dtype == "float32"]
        return max(operations / (RATE[row.dtype] * of_type), passes * FORWARD_SECONDS + steps * STEP_SECONDS)

    def scoring_operations(self, row: Model, benchmark: str, split: str) -> float:
        """Floating-point operations to score a split's documents: two for each parameter and token."""
        return 2 * self.parameters(row) * self.documents(benchmark, split) * self.tokens("scored", benchmark)

    def scoring_seconds(self, row: Model, benchmark: str, split: str) -> float:
        """Seconds to score the documents of a split."""
        output_type, settings = self.run.benchmarks[benchmark].output_type, self.run.configuration.evaluation
        documents = self.documents(benchmark, split)
        passes = -(-documents * TOKENS[output_type][2] // settings.batch_size)
        if output_type == "generate_until":
            passes *= settings.max_generated_tokens
        computing = self.computing_seconds(row, self.scoring_operations(row, benchmark, split), passes, steps=0)
        return PASS_SECONDS + documents * DOCUMENT_SECONDS + computing

    def start_seconds(self, row: Model | BiasModel) -> float:
        """Seconds that a process needs to start and to load the model."""
        return START_SECONDS + self.parameters(row) * BYTES[row.dtype] / LOAD_RATE

    # ---- bytes --------------------------------------------------------------------------------------------------

    def stored_bytes(self, cell: Cell) -> float:
        """What a finished cell takes in the store."""
        return rule_of(cell).stored_bytes(self, cell)

    def adapter_bytes(self, row: Model) -> float:
        """Size of a trained adapter: 32 bits per parameter."""
        settings = self.run.configuration.finetuning
        return 4 * adapter_parameters(self.parameters(row), settings.rank, settings.target_modules)

    @cached_property
    def model_bytes(self) -> float:
        """Weights in the hub's cache, 16 bits per parameter. Each revision that is a checkpoint is its own copy."""
        total = 0.0
        for row in self.run.models.values():
            copies = len({point.revision for point in row.checkpoints})
            total += 0 if row.is_local else 2 * self.parameters(row) * copies
        return total + sum(
            2 * self.parameters(row) for row in self.run.language_models.values() if not is_folder(row.path)
        )

    def gpu_gb(self, row: Model | BiasModel) -> float:
        """The least GPU memory that the model's jobs need, by a formula; 0 where its size class has no GPU."""
        if not size_class(self.run, row).gpu:
            return 0.0
        if isinstance(row, Model) and "agreement" not in {*row.studies} & {*self.run.configuration.studies}:
            return scoring_gb(self.parameters(row), row.dtype)
        recomputed = size_class(self.run, row).gradient_checkpointing
        return gpu_gb(self.run, self.parameters(row), row.dtype, recomputed=recomputed)


# ----------------------------------------------------------------------------------------------------------------------
# What a run will cost: the formula, times the median of what finished cells of a rule and size class took over it.

NO_GPU = "a processor without GPU"
SIDECARS = 30  # read a (rule, model): enough for a median


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
        cells = [
            (cell.rule, cell.size_class, cell.seconds / cell.predicted) for cell in self.measured if cell.predicted
        ]
        self._corrections = corrections(cells)

    def seconds(self, cell: Cell) -> float:
        """Expected seconds of a cell."""
        size = rule_of(cell).row(self.run, cell.model).size_class
        return self.workload.seconds(cell) * correction(self._corrections, cell.rule, size)

    def is_calibrated(self, rule: str) -> bool:
        """Whether any finished cell of this rule was learned from."""
        return any(cell.rule == rule for cell in self.measured)

    def of_a_gpu(self) -> list[str]:
        """Size classes that compute without a GPU, whose hours are a GPU's all the same: no cell finished on a CPU, of
        the class or (where it has none) of the whole run, corrects them."""
        names, configuration = [], self.run.configuration
        for name in dict.fromkeys(row.size_class for row in Grid(self.run).used_rows):
            cells_of_class = [cell for cell in self.measured if cell.size_class == name] or self.measured
            on_cpu = configuration.evaluation.device == "cpu" or not configuration.size_classes[name].gpu
            if on_cpu and not (cells_of_class and all(cell.device == NO_GPU for cell in cells_of_class)):
                names.append(name)
        return names

    # ---- learning -----------------------------------------------------------------------------------------------

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
            names = {path.name.rpartition("--")[0]: path for path in folder.glob("*--*")} if folder.is_dir() else {}
            present = [(cell, names[cell.name]) for cell in cells if cell.name in names]
            for cell, path in present[:: max(1, len(present) // SIDECARS)][:SIDECARS]:
                sidecar = read_json_or(path / "sidecar.json", {})
                if "replay" in sidecar or not sidecar.get("wall_seconds") or sidecar.get("resumed_epochs"):
                    continue  # of no model, without a time, or with that of the last attempt only
                measured.append(
                    Measured(
                        rule,
                        row.size_class,
                        sidecar["wall_seconds"],
                        workload.seconds(cell),
                        sidecar.get("peak_memory_mb"),
                        sidecar.get("peak_gpu_memory_mb"),
                        (sidecar.get("machine") or {}).get("gpu") or NO_GPU,
                    )
                )
        return measured


def corrections(cells: Iterable[tuple[str, str, float]]) -> dict[tuple[str, ...], float]:
    """Medians of what finished cells took over what the formula says: (rule, size class, ratio) of each -> by (rule,
    size class), by (rule,) for all size classes, and by () for all cells."""
    ratios: dict[tuple[str, ...], list[float]] = {}
    for rule, name, ratio in cells:
        for key in ((rule, name), (rule,), ()):
            ratios.setdefault(key, []).append(ratio)
    return {key: median(values) for key, values in ratios.items()}


def correction(factors: dict[tuple[str, ...], float], rule: str, name: str) -> float:
    """That of the size class, else of the rule, else of everything; 1 where nothing was measured."""
    return next((factors[key] for key in ((rule, name), (rule,), ()) if key in factors), 1.0)


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
        total = by_rule.get(job.rule) or Need(job.rule, 0, 0, 0.0, 0.0, 0.0, estimator.is_calibrated(job.rule))
        by_rule[job.rule] = total._replace(
            cells=total.cells + len(cells),
            jobs=total.jobs + 1,
            hours=total.hours + seconds / 3600,
            gpu_hours=total.gpu_hours + seconds * request.gpus / 3600,
            requested_gpu_hours=total.requested_gpu_hours + request.minutes * request.gpus / 60,
        )
    return list(by_rule.values())


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
    run, rows = estimator.run, dict[str, ClassMemory]()
    for model in Grid(run).used_rows:
        of_size = size_class(run, model)
        row = rows.setdefault(model.size_class, ClassMemory(of_size.mem_mb, of_size.gpu))
        row.models += 1
        row.gpu_gb = max(row.gpu_gb, estimator.workload.gpu_gb(model))
    for name, row in rows.items():
        cells_of_class = [cell for cell in estimator.measured if cell.size_class == name]
        row.measured_mb = max((cell.memory_mb or 0.0 for cell in cells_of_class), default=0.0)
        row.measured_gpu_mb = max((cell.gpu_memory_mb or 0.0 for cell in cells_of_class), default=0.0)
    return rows
