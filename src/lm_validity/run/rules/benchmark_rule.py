"""What rules of models and benchmarks share: data files, the settings line, the scoring part of a recipe, costs."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from lm_validity.config.load import Run
from lm_validity.config.sections import SizeClass
from lm_validity.config.sheets import Model
from lm_validity.run.cell import BenchmarkCell, Job, Prompt, models_of
from lm_validity.run.participants import Participants
from lm_validity.run.records import Records
from lm_validity.run.rules.base import LEAST_MINUTES, Rule, Work
from lm_validity.run.scoring import document_bos, document_order, scoring_settings

GENERATION = 5  # an answer written token by token takes this many times as long as choices that are only scored
ITEM_BYTES, RECORD_BYTES = 300, 5000  # a document's row of items.parquet; the small files of a cell


class BenchmarkRule(Rule[BenchmarkCell, Model]):
    """A rule whose cells are of one model and one benchmark."""

    cell_type = BenchmarkCell
    protocol: ClassVar[Literal["direct", "train_before_test"]] = "direct"  # that its cells belong to

    def splits(self, cell: BenchmarkCell) -> tuple[str, ...]:
        """The splits whose documents a cell reads."""
        return ()

    def data_files(self, run: Run, job: Job[BenchmarkCell]) -> list[str]:
        """The file of each split whose documents a cell of the job reads, once each."""
        folder = f"{run.results}/splits"
        found = {f"{folder}/{cell.benchmark}/{split}.json": None for cell in job.cells for split in self.splits(cell)}
        return list(found)

    def asked_minutes(self, of_size: SizeClass, output_type: str) -> float:
        """Minutes that a cell of a model of this size asks for."""
        return of_size.evaluate_minutes * (GENERATION if output_type == "generate_until" else 1)

    def minutes(self, run: Run, job: Job[BenchmarkCell], attempt: int = 1) -> int:
        """The sum of `asked_minutes` over its cells, times the attempt; at least LEAST_MINUTES."""
        of_size = self.size_class(run, job.model)
        asked = sum(self.asked_minutes(of_size, run.benchmarks[cell.benchmark].output_type) for cell in job.cells)
        return max(LEAST_MINUTES, int(asked * attempt))

    def minutes_by_benchmark(self, plan: Participants, model: str, benchmarks: tuple[str, ...]) -> dict[str, float]:
        """Benchmark -> minutes that a cell of the model asks for."""
        of_size, rows = self.size_class(plan.run, model), plan.run.benchmarks
        return {name: self.asked_minutes(of_size, rows[name].output_type) for name in benchmarks}

    # ---- settings -----------------------------------------------------------------------------------------------

    def settings_key(self, run: Run, job: Job[BenchmarkCell]) -> tuple[object, ...]:
        """(dtype, document_bos, the cells without rule and model); where a job has several models, its cells keep
        theirs."""
        # without the model: most models share what can differ by it
        several = models_of(job)[1:]
        cells = tuple(cell[1 if several else 2 :] for cell in job.cells)
        return (self.row(run, job.model).dtype, document_bos(run, job.model), cells)

    def settings(self, run: Run, job: Job[BenchmarkCell]) -> str:
        """Words `key=value`: which cells they are and `job_settings`, then what all benchmarks have in common, then
        what each has of its own as `benchmark.key=value`, or its bare name."""
        # which cells: a list in the configuration may grow while the batch keeps its name
        words = [f"models={','.join(models_of(job))}"] if models_of(job)[1:] else []
        for name in ("checkpoint", "learning_rate", "seed", "split"):
            values = dict.fromkeys(str(getattr(cell, name)) for cell in job.cells if getattr(cell, name) is not None)
            words += [f"{name}={','.join(values)}"] if values else []
        words += self.job_settings(run)
        parts = {cell.benchmark: self.cell_settings(run, cell) for cell in job.cells}
        first = next(iter(parts.values()))
        common = {key: value for key, value in first.items() if all(part.get(key) == value for part in parts.values())}
        words += [f"{key}={value}" for key, value in common.items()]
        for benchmark, part in parts.items():
            own = [f"{benchmark}.{key}={value}" for key, value in part.items() if key not in common]
            words += own or [benchmark]
        return " ".join(words)

    def job_settings(self, run: Run) -> list[str]:
        """Settings that are no single cell's, as words of the settings line."""
        return []

    def cell_settings(self, run: Run, cell: BenchmarkCell) -> dict[str, Any]:
        """What the configuration says that can change a cell's numbers, but for what the cell itself names."""
        row = run.benchmarks[cell.benchmark]
        settings = {"metric": row.metric, "higher_is_better": row.higher_is_better}
        if cell.prompt:
            settings |= scoring_settings(run, cell.model, cell.benchmark, cell.prompt)
        return settings | self._backend(run, cell)

    def _backend(self, run: Run, cell: BenchmarkCell) -> dict[str, Any]:
        return {"generation_backend": "vllm"} if self.writes_with_vllm(run, cell) else {}

    def scoring_recipe(self, records: Records, cell: BenchmarkCell, prompt: str) -> dict[str, Any]:
        """What every cell that scores documents of a benchmark depends on."""
        record = records.task_record(cell.benchmark)
        task = {"task": record["digest"]}
        if record.get("fewshot"):
            task["fewshot"] = record["fewshot"]
        if order := document_order(record):
            task["document_order"] = order
        settings = scoring_settings(records.run, cell.model, cell.benchmark, prompt)
        model, generated = records.model_record(cell.model), "max_generated_tokens" in settings
        if prompt == "chat" and "chat_date" in model:
            settings["chat_date"] = model["chat_date"]  # before, today's: other cells
        if generated and "ignored_generation_settings" in model:
            settings["ignored_generation_settings"] = model["ignored_generation_settings"]  # before, heeded
        if "position_switch" in model and _longest(records.run, model) > model["position_switch"]:
            settings["position_switch"] = model["position_switch"]  # before, by the longest of a batch: other cells
        return task | settings | self._backend(records.run, cell)


def _longest(run: Run, model: Mapping[str, Any]) -> float:
    """Most tokens that a model (its record) can be given, in training too."""
    limits = (run.configuration.evaluation.max_length, model["context_length"])
    return min((limit for limit in limits if limit), default=math.inf)


class ScoringRule(BenchmarkRule):
    """A rule whose cells are scores on the documents of one split."""

    tables = ("scores", "items")

    @abstractmethod
    def scored_split(self, cell: BenchmarkCell) -> str:
        """The split whose documents are scored."""

    def splits(self, cell: BenchmarkCell) -> tuple[str, ...]:
        """Only the split that is scored."""
        return (self.scored_split(cell),)

    @abstractmethod
    def scored_prompt(self, records: Records, cell: BenchmarkCell) -> Prompt:
        """The prompt that the model is asked with."""

    def writes_with_vllm(self, run: Run, cell: BenchmarkCell) -> bool:
        """On test only: validation selects among cells of which some are still in training, where only transformers
        can write."""
        generated = run.benchmarks[cell.benchmark].output_type == "generate_until"
        on_test = self.scored_split(cell) == "test"
        return generated and on_test and run.configuration.evaluation.generation_backend == "vllm"

    def seconds(self, work: Work, cell: BenchmarkCell) -> float:
        """Expected seconds of scoring the split, without those of loading the model."""
        return work.scoring_seconds(self.row(work.run, cell.model), cell.benchmark, self.scored_split(cell))

    def operations(self, work: Work, cell: BenchmarkCell) -> float:
        """Floating-point operations of scoring the split."""
        return work.scoring_operations(self.row(work.run, cell.model), cell.benchmark, self.scored_split(cell))

    def stored_bytes(self, work: Work, cell: BenchmarkCell) -> float:
        """Bytes of an item's row for every document of the split, and of the cell's small files."""
        return ITEM_BYTES * work.documents(cell.benchmark, self.scored_split(cell)) + RECORD_BYTES

    def counted_tokens(
        self, work: Work, cell: BenchmarkCell, sidecar: Mapping[str, Any]
    ) -> tuple[tuple[str, str], float] | None:
        """Tokens of the forward passes, padding left out, per document of the split; None where the sidecar counts
        none."""
        tokens = (sidecar.get("counters") or {}).get("forward_tokens")
        documents = work.documents(cell.benchmark, self.scored_split(cell))
        return (("scored", cell.benchmark), tokens / documents) if tokens else None
