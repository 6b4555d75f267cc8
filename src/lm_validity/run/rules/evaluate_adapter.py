"""Rule `evaluate_adapter`: the selected adapter's score on the test split, once."""

from collections.abc import Iterator
from typing import Any

from lm_validity.config.load import Run
from lm_validity.run.cell import BenchmarkCell, Job, Prompt
from lm_validity.run.participants import Participants
from lm_validity.run.records import Records
from lm_validity.run.rules.benchmark_rule import ScoringRule
from lm_validity.run.rules.evaluate_model import EVALUATE_MODEL
from lm_validity.run.rules.select_adapter import SELECT_ADAPTER
from lm_validity.run.rules.selections import jobs_by_seed


class EvaluateAdapter(ScoringRule):
    """A cell is (model, benchmark, seed). Where no adapter was better on validation, the direct score is the result."""

    name = "evaluate_adapter"
    summary = "Score the selected adapters on test documents, once."
    recipe_version = 2
    worker = "lm_validity.cells.scoring:AdapterScorer"
    protocol = "train_before_test"

    def jobs(self, plan: Participants) -> Iterator[Job[BenchmarkCell]]:
        """One for each model, round of the plan, group of benchmarks and seed, as those of `select_adapter`."""
        return jobs_by_seed(self, plan)

    def model_records(self, run: Run, job: Job[BenchmarkCell]) -> list[str]:
        """No record: the manifests that the job reads already depend on it."""
        return []

    def scored_split(self, cell: BenchmarkCell) -> str:
        """Always test."""
        return "test"

    def scored_prompt(self, records: Records, cell: BenchmarkCell) -> Prompt:
        """The prompt that the selection chose. Raises as `Workspace.selection` where there is none."""
        prompt: Prompt = records.selection(cell)["prompt"]
        return prompt

    def stands_on(self, plan: Participants, cell: BenchmarkCell) -> list[BenchmarkCell]:
        """The selection, and the direct test scores with every prompt, of which one is the result where no adapter was
        better."""
        prompts = plan.prompts(cell.model, cell.benchmark)
        direct = [EVALUATE_MODEL.cell(cell.model, cell.benchmark, "final", prompt, "test") for prompt in prompts]
        return [cell._replace(rule=SELECT_ADAPTER.name), *direct]

    def stand_in(self, records: Records, cell: BenchmarkCell) -> BenchmarkCell | None:
        """The direct score, where the selection kept the untouched model."""
        choice = records.selection(cell)
        if choice["folder"] is not None:
            return None
        return EVALUATE_MODEL.cell(cell.model, cell.benchmark, "final", choice["prompt"], "test")

    def recipe(self, records: Records, cell: BenchmarkCell) -> dict[str, Any]:
        """Needs the selection to be made."""
        selection = records.selection(cell)
        trained = records.stored(selection["folder"])
        return self.scoring_recipe(records, cell, selection["prompt"]) | {
            "model": records.model_record(cell.model)["checkpoints"]["final"]["digest"],
            "adapter": trained["result"]["adapter_sha256"],
            "documents": records.split_digest(cell.benchmark, "test"),
        }


EVALUATE_ADAPTER = EvaluateAdapter()
