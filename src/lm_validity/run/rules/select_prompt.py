"""Rule `select_prompt`: the prompt of direct scores, plain or chat, by validation."""

from collections.abc import Iterator

from lm_validity.config.load import Run
from lm_validity.run.cell import BenchmarkCell, Job
from lm_validity.run.participants import Participants
from lm_validity.run.rules.benchmark_rule import BenchmarkRule
from lm_validity.run.rules.evaluate_model import EVALUATE_MODEL
from lm_validity.run.rules.selections import adapter_groups


class SelectPrompt(BenchmarkRule):
    """A cell is (model, benchmark), where there are several prompts: a base model has nothing to choose, nor has a
    corpus, which has no prompt."""

    name = "select_prompt"
    summary = "Choose the prompt of direct scores on validation."
    worker = "lm_validity.cells.runner:select_prompt"
    on_login_node = True

    def cell(self, model: str, benchmark: str) -> BenchmarkCell:
        """A cell of this rule."""
        return BenchmarkCell(self.name, model, benchmark)

    def has_choice(self, plan: Participants, model: str, benchmark: str) -> bool:
        """Whether there is anything to choose."""
        return len(plan.prompts(model, benchmark)) > 1

    def choice_for(self, plan: Participants, score: BenchmarkCell) -> BenchmarkCell | None:
        """The cell whose choice says whether a score counts; None where there was nothing to choose. Signal curves have
        one prompt, and an adapter's was chosen with it."""
        direct = score.rule == EVALUATE_MODEL.name and score.checkpoint == "final"
        chosen = direct and self.has_choice(plan, score.model, score.benchmark)
        return self.cell(score.model, score.benchmark) if chosen else None

    def jobs(self, plan: Participants) -> Iterator[Job[BenchmarkCell]]:
        """One for each model and group of benchmarks, planned or not, in which there is something to choose."""
        # direct scores are taken of every benchmark, planned or not
        benchmarks = plan.benchmarks("agreement")
        for model in plan.agreement_models:
            for group in adapter_groups(self, plan, model, benchmarks):
                open_choice = (name for name in group.members if self.has_choice(plan, model.model, name))
                cells = tuple(self.cell(model.model, name) for name in open_choice)
                if cells:
                    yield Job(self.name, model.model, group.name, cells)

    def model_records(self, run: Run, job: Job[BenchmarkCell]) -> list[str]:
        """No record: the manifests of the scores that it compares already depend on it."""
        return []

    def stands_on(self, plan: Participants, cell: BenchmarkCell) -> list[BenchmarkCell]:
        """The direct scores on validation, with every prompt."""
        prompts = plan.prompts(cell.model, cell.benchmark)
        return [EVALUATE_MODEL.cell(cell.model, cell.benchmark, "final", one, "validation") for one in prompts]


SELECT_PROMPT = SelectPrompt()
