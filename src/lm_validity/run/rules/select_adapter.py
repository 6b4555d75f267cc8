"""Rule `select_adapter`: the best learning rate, prompt and epoch by validation, or the untouched model."""

from collections.abc import Iterator, Mapping
from typing import Any

from lm_validity.config.load import Run
from lm_validity.run.cell import BenchmarkCell, Job, given
from lm_validity.run.participants import Participants
from lm_validity.run.rules.benchmark_rule import BenchmarkRule
from lm_validity.run.rules.finetune_adapter import FINETUNE_ADAPTER
from lm_validity.run.rules.select_prompt import SELECT_PROMPT
from lm_validity.run.rules.selections import jobs_by_seed


class SelectAdapter(BenchmarkRule):
    """A cell is (model, benchmark, seed). Its inputs are validation results only."""

    name = "select_adapter"
    summary = "Choose the best learning rate, prompt and epoch on validation."
    worker = "lm_validity.cells.runner:select_adapter"
    protocol = "train_before_test"
    tables = ("selections",)
    on_login_node = True

    def jobs(self, plan: Participants) -> Iterator[Job[BenchmarkCell]]:
        """One for each model, round of the plan, group of benchmarks and seed."""
        return jobs_by_seed(self, plan)

    def model_records(self, run: Run, job: Job[BenchmarkCell]) -> list[str]:
        """No record: the manifests of the scores that it compares already depend on it."""
        return []

    def job_settings(self, run: Run) -> list[str]:
        """The learning rates that it chooses from, so that it chooses again when the list changes."""
        return [f"candidates={','.join(run.configuration.finetuning.learning_rates)}"]

    def candidates(self, plan: Participants, cell: BenchmarkCell) -> list[BenchmarkCell]:
        """The fine-tunes that a selection of (model, benchmark, seed) chooses from: prompts × learning rates."""
        return [
            FINETUNE_ADAPTER.cell(cell.model, cell.benchmark, prompt, rate, given(cell.seed))
            for prompt in plan.prompts(cell.model, cell.benchmark)
            for rate in plan.configuration.finetuning.learning_rates
        ]

    def stands_on(self, plan: Participants, cell: BenchmarkCell) -> list[BenchmarkCell]:
        """The direct scores on validation with every prompt, and every candidate."""
        return SELECT_PROMPT.stands_on(plan, cell) + self.candidates(plan, cell)

    def choice(self, cell: BenchmarkCell, content: Mapping[str, Any]) -> BenchmarkCell | None:
        """The chosen fine-tune; None where the untouched model stays."""
        if content["folder"] is None:
            return None
        prompt, rate = content["prompt"], content["learning_rate"]
        return FINETUNE_ADAPTER.cell(cell.model, cell.benchmark, prompt, rate, given(cell.seed))


SELECT_ADAPTER = SelectAdapter()
