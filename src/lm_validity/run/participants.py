"""Who takes part in a run: the models, benchmarks and prompts of each study, and how many cells share a job.

Standard library and pydantic only: the Snakefile asks at parse time.
"""

from functools import cached_property

from lm_validity.config.load import Run
from lm_validity.config.sections import SizeClass
from lm_validity.config.sheets import Benchmark, BiasModel, Model
from lm_validity.run.cell import Prompt


class Participants:
    """The rows of a run's sheets that its studies use."""

    def __init__(self, run: Run):
        self.run = run
        self.configuration = run.configuration

    def takes_part(self, row: Model | Benchmark, study: str) -> bool:
        """Whether the run has the study and the row is in it."""
        return study in self.configuration.studies and study in row.studies

    @cached_property
    def agreement_models(self) -> list[Model]:
        """Rows of the agreement study's models, in the sheet's order; none where the run lacks the study."""
        return [model for model in self.run.models.values() if self.takes_part(model, "agreement")]

    @cached_property
    def signal_models(self) -> list[Model]:
        """Rows of the signal study's models, in the sheet's order; none where the run lacks the study."""
        return [model for model in self.run.models.values() if self.takes_part(model, "signal")]

    def benchmarks(self, study: str) -> tuple[str, ...]:
        """Ids of a study's benchmarks, in the sheet's order, without other wordings (`variants`)."""
        rows = self.run.benchmarks.values()
        return tuple(row.benchmark for row in rows if self.takes_part(row, study) and not row.variant_of)

    @cached_property
    def variants(self) -> tuple[str, ...]:
        """Other wordings of benchmarks: scored as the models come, on test, in the agreement study. A replay has none:
        it serves the score that counts of each benchmark."""
        rows = () if self.configuration.replay else self.run.benchmarks.values()
        return tuple(row.benchmark for row in rows if row.variant_of and self.takes_part(row, "agreement"))

    def is_test_only(self, benchmark: str) -> bool:
        """Whether a benchmark is only scored, never trained on: then it needs no train and validation documents."""
        return benchmark not in self.benchmarks("agreement")

    @cached_property
    def used_models(self) -> list[str]:
        """Ids of the models that any study of the run uses, in the sheet's order."""
        return [row.model for row in self.run.models.values() if any(self.takes_part(row, s) for s in row.studies)]

    @cached_property
    def used_benchmarks(self) -> list[str]:
        """Ids of the benchmarks and variants that any study of the run uses, in the sheet's order."""
        rows = self.run.benchmarks.values()
        used_rows = (row for row in rows if not row.variant_of or row.benchmark in self.variants)
        return [row.benchmark for row in used_rows if any(self.takes_part(row, study) for study in row.studies)]

    @property
    def used_rows(self) -> list[Model | BiasModel]:
        """The rows of every model that a study of the run uses."""
        return [*(self.run.models[model] for model in self.used_models), *self.run.language_models.values()]

    def prompts(self, model: str, benchmark: str) -> tuple[Prompt, ...]:
        """Base models and corpora are always plain; else instruction-tuned ones are tried as the configuration says."""
        corpus = self.run.benchmarks[benchmark].output_type == "loglikelihood_rolling"
        if corpus or not self.run.models[model].instruction_tuned:
            return ("plain",)
        return self.configuration.evaluation.instruction_tuned_prompts

    def is_planned(self, model: str, benchmark: str) -> bool:
        """Whether the model is fine-tuned on the benchmark: all are where there is no plan."""
        return self.run.plan is None or (model, benchmark) in self.run.plan

    def rounds(self, model: str) -> list[tuple[str, tuple[str, ...]]]:
        """(end of its batches' names, benchmarks that the model is fine-tuned on) of each round of the plan.

        Only later rounds have an end, so that a further round renames no job of an earlier one. The first plan of a run
        may regroup its jobs; their finished cells are found in the store.
        """
        everything = self.benchmarks("agreement")
        if self.run.plan is None:
            return [("", everything)] if everything else []
        by_round: dict[int, list[str]] = {}
        for name in everything:
            if (model, name) in self.run.plan:
                by_round.setdefault(self.run.plan[model, name].round, []).append(name)
        return [(end_of_round(number), tuple(names)) for number, names in sorted(by_round.items())]

    @property
    def longest_job(self) -> float:
        """Minutes that a job may take, where its cells are as many as fit into that."""
        return 60.0 * self.configuration.batching.job_hours


def end_of_round(number: int) -> str:
    """The end of the names of a round's jobs. The first has none; so a later round renames no job of an earlier one."""
    return f".round{number}" if number > 1 else ""


def size_class(run: Run, row: Model | BiasModel) -> SizeClass:
    """The size class of a model of any study."""
    return run.configuration.size_classes[row.size_class]


def kind_label(sheet: str) -> str:
    """What a row of a sheet of `Run` is called, e.g. "language model"."""
    return sheet.removesuffix("s").replace("_", " ")


def kind_and_id(row: Model | BiasModel) -> tuple[str, str]:
    """("models" or "language_models", id): the name of the sheet in `Run` and of its folder of prefetch records."""
    return ("models", row.model) if isinstance(row, Model) else ("language_models", row.language_model)
