"""Rule `evaluate_model`: zero-shot scores of untouched models, at every checkpoint asked for."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lm_validity.config.sheets import Model
from lm_validity.errors import InputError
from lm_validity.run.cell import BenchmarkCell, Job, Prompt, given
from lm_validity.run.participants import Participants, end_of_round
from lm_validity.run.rules.benchmark_rule import ScoringRule

if TYPE_CHECKING:
    from lm_validity.run.workspace import Workspace


Wanted = dict[tuple[str, str, Prompt], tuple[str, ...]]  # (checkpoint, benchmark, prompt) -> splits to score


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
        agreement = {model.model for model in plan.agreement_models}
        signal = {model.model for model in plan.signal_models}
        for model in plan.run.models.values():
            if model.model in agreement | signal:
                wanted = self._wanted(plan, model, agreement=model.model in agreement, signal=model.model in signal)
                for number, part in self._by_round(plan, model, wanted).items():
                    yield from self._jobs_of(plan, model, part, end_of_round(number))

    def _wanted(self, plan: Participants, model: Model, *, agreement: bool, signal: bool) -> Wanted:
        """What of a model is scored. Selection needs validation; curves need test only."""
        wanted: Wanted = {}
        if signal:
            for point in model.checkpoints:
                for benchmark in plan.benchmarks("signal"):
                    wanted[point.checkpoint, benchmark, "plain"] = ("test",)
        if agreement:
            for benchmark in plan.benchmarks("agreement"):
                for prompt in plan.prompts(model.model, benchmark):
                    wanted["final", benchmark, prompt] = ("validation", "test")
            for variant in plan.variants:
                for prompt in plan.prompts(model.model, variant):
                    wanted["final", variant, prompt] = ("test",)
        return wanted

    def _by_round(self, plan: Participants, model: Model, wanted: Wanted) -> dict[int, Wanted]:
        """Round of the signal study's plan -> what is wanted in it. What agreement needs comes first."""
        stages = plan.run.signal_plan
        if stages is None:
            return {1: wanted}
        later = {name: number for number, names in stages.rounds.items() for name in names}
        found: dict[int, Wanted] = {}
        for key, splits in wanted.items():
            checkpoint, benchmark, _ = key
            of_agreement = "validation" in splits or benchmark in plan.variants
            if of_agreement or checkpoint in stages.first.get(model.model, ()):
                found.setdefault(1, {})[key] = splits
            elif benchmark in later:
                found.setdefault(later[benchmark], {})[key] = splits
        return found

    def _jobs_of(self, plan: Participants, model: Model, wanted: Wanted, end: str) -> Iterator[Job[BenchmarkCell]]:
        size = plan.batching(model).evaluate_model
        checkpoints = tuple(dict.fromkeys(checkpoint for checkpoint, _, _ in wanted))
        benchmarks = tuple(name for name in plan.run.benchmarks if any(name == b for _, b, _ in wanted))
        minutes = {
            name: one * max(len(splits) for (_, benchmark, _), splits in wanted.items() if benchmark == name)
            for name, one in self.minutes_by_benchmark(plan, model.model, benchmarks).items()
        }
        for of_benchmarks in plan.groups(model, benchmarks, size.benchmarks, "benchmarks", minutes=minutes):
            of_one = dict.fromkeys(checkpoints, sum(minutes[name] for name in of_benchmarks.members))
            for of_checkpoints in plan.groups(model, checkpoints, size.checkpoints, "checkpoints", minutes=of_one):
                for prompt in dict.fromkeys(prompt for _, _, prompt in wanted):
                    cells = tuple(
                        self.cell(model.model, benchmark, checkpoint, prompt, split)
                        for checkpoint in of_checkpoints.members
                        for benchmark in of_benchmarks.members
                        for split in wanted.get((checkpoint, benchmark, prompt), ())
                    )
                    if cells:
                        batch = f"{of_benchmarks.name}.{of_checkpoints.name}.{prompt}{end}"
                        yield Job(self.name, model.model, batch, cells)

    def part(self, cell: BenchmarkCell) -> str:
        return f".{cell.split}"

    def scored_split(self, cell: BenchmarkCell) -> str:
        return given(cell.split)

    def scored_prompt(self, workspace: "Workspace", cell: BenchmarkCell) -> Prompt:
        return given(cell.prompt)

    def recipe(self, workspace: "Workspace", cell: BenchmarkCell) -> dict[str, Any]:
        checkpoint = workspace.model_record(cell.model)["checkpoints"].get(given(cell.checkpoint))
        if checkpoint is None:
            raise InputError(
                f"model {cell.model!r} has no checkpoint {cell.checkpoint!r} in its prefetch record.",
                f"run lm-validity prefetch-model --model {cell.model} again.",
            )
        return self.scoring_recipe(workspace, cell, given(cell.prompt)) | {
            "model": checkpoint["digest"],
            "documents": workspace.split_digest(cell.benchmark, given(cell.split)),
        }


EVALUATE_MODEL = EvaluateModel()
