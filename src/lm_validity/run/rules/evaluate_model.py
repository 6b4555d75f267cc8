"""Rule `evaluate_model`: zero-shot scores of untouched models, at every checkpoint asked for."""

from collections.abc import Iterator
from typing import Any

from lm_validity.config.load import Run
from lm_validity.config.sheets import Model
from lm_validity.errors import InputError
from lm_validity.run.cell import BenchmarkCell, Job, Prompt, given
from lm_validity.run.participants import Participants
from lm_validity.run.records import Records
from lm_validity.run.rules.benchmark_rule import ScoringRule
from lm_validity.run.scoring import document_bos

# (model, checkpoint, benchmark, prompt) -> splits to score
Wanted = dict[tuple[str, str, str, Prompt], tuple[str, ...]]


class EvaluateModel(ScoringRule):
    """A cell is (model, checkpoint, benchmark, prompt, split); validation and test have a manifest each."""

    name = "evaluate_model"
    summary = "Score an untouched model on validation and test documents."
    recipe_version = 2
    worker = "lm_validity.cells.scoring:ModelScorer"
    parts = (".validation", ".test")

    def cell(self, model: str, benchmark: str, checkpoint: str, prompt: Prompt, split: str) -> BenchmarkCell:
        """A cell of this rule."""
        return BenchmarkCell(self.name, model, benchmark, checkpoint, prompt, split=split)

    def jobs(self, plan: Participants) -> Iterator[Job[BenchmarkCell]]:
        """Jobs by group of benchmarks, group of checkpoints and prompt. Models with adapters on one base share jobs,
        which load the base once."""
        agreement = {model.model for model in plan.agreement_models}
        signal = {model.model for model in plan.signal_models}
        for models in _sharing_a_load(plan.run, agreement | signal):
            wanted: Wanted = {}
            for model in models:
                wanted |= self._wanted(plan, model, agreement=model.model in agreement, signal=model.model in signal)
            yield from self._jobs_of(plan, models[0], wanted)

    def _wanted(self, plan: Participants, model: Model, *, agreement: bool, signal: bool) -> Wanted:
        """What of a model is scored. Selection needs validation; curves need test only."""
        wanted: Wanted = {}
        if signal:
            for point in model.checkpoints:
                for benchmark in plan.benchmarks("signal"):
                    wanted[model.model, point.checkpoint, benchmark, "plain"] = ("test",)
        if agreement:
            for benchmark in plan.benchmarks("agreement"):
                for prompt in plan.prompts(model.model, benchmark):
                    wanted[model.model, "final", benchmark, prompt] = ("validation", "test")
            for variant in plan.variants:
                for prompt in plan.prompts(model.model, variant):
                    wanted[model.model, "final", variant, prompt] = ("test",)
        return wanted

    def _jobs_of(self, plan: Participants, first: Model, wanted: Wanted) -> Iterator[Job[BenchmarkCell]]:
        """`first`: of the models that share a load. A job is filed under the first model that it has cells of."""
        size = plan.configuration.batching.evaluate_model
        points = dict.fromkeys((model, checkpoint) for model, checkpoint, _, _ in wanted)
        alone = len({model for model, _ in points}) == 1
        named = {checkpoint if alone else f"{model}.{checkpoint}": (model, checkpoint) for model, checkpoint in points}
        benchmarks = tuple(name for name in plan.run.benchmarks if any(name == b for _, _, b, _ in wanted))
        minutes = {
            name: one * max(len(splits) for (_, _, benchmark, _), splits in wanted.items() if benchmark == name)
            for name, one in self.minutes_by_benchmark(plan, first.model, benchmarks).items()
        }
        what = "checkpoints" if alone else "adapters"
        for of_benchmarks in plan.groups(first, benchmarks, size.benchmarks, "benchmarks", minutes=minutes):
            of_one = dict.fromkeys(named, sum(minutes[name] for name in of_benchmarks.members))
            for of_points in plan.groups(first, tuple(named), size.checkpoints, what, minutes=of_one):
                for prompt in dict.fromkeys(prompt for _, _, _, prompt in wanted):
                    cells = tuple(
                        self.cell(model, benchmark, checkpoint, prompt, split)
                        for model, checkpoint in map(named.__getitem__, of_points.members)
                        for benchmark in of_benchmarks.members
                        for split in wanted.get((model, checkpoint, benchmark, prompt), ())
                    )
                    if cells:
                        batch = f"{of_benchmarks.name}.{of_points.name}.{prompt}"
                        yield Job(self.name, cells[0].model, batch, cells)

    def part(self, cell: BenchmarkCell) -> str:
        """`.validation` or `.test`, by the cell's split: what is chosen on validation reads no manifest of test
        scores."""
        return f".{cell.split}"

    def scored_split(self, cell: BenchmarkCell) -> str:
        """The split that the cell names."""
        return given(cell.split)

    def scored_prompt(self, records: Records, cell: BenchmarkCell) -> Prompt:
        """The prompt that the cell names."""
        return given(cell.prompt)

    def recipe(self, records: Records, cell: BenchmarkCell) -> dict[str, Any]:
        """How documents are scored, with the digests of the checkpoint and of the split. Raises InputError where the
        model's prefetch record lacks the checkpoint."""
        checkpoint = records.model_record(cell.model)["checkpoints"].get(given(cell.checkpoint))
        if checkpoint is None:
            raise InputError(
                f"model {cell.model!r} has no checkpoint {cell.checkpoint!r} in its prefetch record.",
                f"run lm-validity prefetch-model --model {cell.model} again.",
            )
        return self.scoring_recipe(records, cell, given(cell.prompt)) | {
            "model": checkpoint["digest"],
            "documents": records.split_digest(cell.benchmark, given(cell.split)),
        }


def _sharing_a_load(run: Run, used: set[str]) -> list[list[Model]]:
    """The used models in the order of their sheet. Those with adapters of one base are together, with the base."""
    found: dict[tuple[object, ...], list[Model]] = {}
    for row in run.models.values():
        if row.model in used:
            # what a loaded model is, but for the adapter, and what a job asks for
            same = (row.path, row.revision, row.dtype, document_bos(run, row.model), row.size_class)
            found.setdefault(same, []).append(row)
    return [
        models
        for rows in found.values()
        for models in ([rows] if any(row.adapters for row in rows) else [[row] for row in rows])
    ]


EVALUATE_MODEL = EvaluateModel()
