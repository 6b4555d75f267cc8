"""How much work a cell is, by a formula of parameters and tokens, with what it stores and the memory that it needs.

Constants are estimates for one GPU with Hugging Face code run eagerly; finished cells correct them (`monitor.cost`).
Where neither splits nor records exist yet, documents are the caps of the configuration.
"""

import json
import math
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from lm_validity.config.load import Run
from lm_validity.config.rows import is_folder
from lm_validity.config.sections import OneFinetune
from lm_validity.config.sheets import BiasModel, Model
from lm_validity.files import read_json
from lm_validity.run.architectures import weight_files
from lm_validity.run.cell import Cell
from lm_validity.run.records import read_record_or
from lm_validity.run.rules import rule_of
from lm_validity.run.rules.base import Effort, Participants, kind_and_id, size_class

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
    layers = (parameters / (12 * 128**2)) ** (
        1 / 3
    )  # each of 12 width^2 parameters; as wide models, width = 128 layers
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
        self._parameters, self.documents = cache(self._find_parameters), cache(self._documents)

    @property
    def used_rows(self) -> list[Model | BiasModel]:
        """The rows of every model that a study of the run uses."""
        return Participants(self.run).used_rows

    def parameters(self, row: Model | BiasModel) -> float:
        """Parameters from the sheet, else from the fetched weights, else of a typical model of the size class."""
        return self._parameters(*kind_and_id(row))

    def _find_parameters(self, kind: str, model: str) -> float:
        row = getattr(self.run, kind)[model]
        if getattr(row, "parameters_b", None):
            return float(row.parameters_b) * 1e9
        counted = _count_parameters(self.run.results / "prefetch" / kind / f"{model}.json")
        if not counted:
            self.assumed.setdefault("parameters by size class", set()).add(model)
        return counted or TYPICAL_B.get(row.size_class, 1.0) * 1e9

    def _documents(self, benchmark: str, split: str) -> int:
        """Documents of a split: as divided, as fetched, or the cap."""
        results = self.run.results
        cap: int = getattr(self.run.configuration.splits, split)
        divided: int | None = read_record_or(results / "splits" / benchmark / f"{split}.json").get("documents")
        record = read_record_or(results / "prefetch" / "benchmarks" / f"{benchmark}.json")
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

    def stored_bytes(self, cell: Cell) -> float:
        """What a finished cell takes in the store."""
        return rule_of(cell).stored_bytes(self, cell)

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
        return gpu_gb(
            parameters, row.dtype, self.run.configuration.finetuning, recomputed=of_size.gradient_checkpointing
        )
