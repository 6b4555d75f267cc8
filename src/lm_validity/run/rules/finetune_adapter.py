"""Rule `finetune_adapter`: LoRA fine-tunes on a benchmark's training documents, validation after each epoch."""

from collections.abc import Iterator, Mapping
from typing import Any

from lm_validity.config.load import Run
from lm_validity.config.sections import SizeClass
from lm_validity.config.sheets import Model
from lm_validity.run.cell import BenchmarkCell, Job, Prompt, given, scale_settings
from lm_validity.run.participants import Participants
from lm_validity.run.records import Records
from lm_validity.run.rules.base import Work
from lm_validity.run.rules.benchmark_rule import RECORD_BYTES, BenchmarkRule

NOT_IN_RECIPE = {"learning_rates", "seeds", "micro_batch", "gradient_checkpointing", "rates_side_by_side"}


class FinetuneAdapter(BenchmarkRule):
    """A cell is (model, benchmark, prompt, learning rate, seed). It never sees the test split."""

    name = "finetune_adapter"
    summary = "Fine-tune a model with LoRA, with validation after each epoch. Never reads test documents."
    recipe_version = 2
    worker = "lm_validity.cells.training.worker:AdapterTrainer"
    protocol = "train_before_test"

    def jobs(self, plan: Participants) -> Iterator[Job[BenchmarkCell]]:
        """One for each model, round of the plan, group of benchmarks, prompt, group of learning rates and seed."""
        for model in plan.agreement_models:
            for end, benchmarks in plan.rounds(model.model):
                yield from self._jobs_of(plan, model, benchmarks, end)

    def _jobs_of(
        self, plan: Participants, model: Model, benchmarks: tuple[str, ...], end: str
    ) -> Iterator[Job[BenchmarkCell]]:
        """The jobs of a model in one round of the plan, whose names have that round's `end`."""
        settings, size = plan.configuration.finetuning, plan.configuration.batching.finetune_adapter
        rates = settings.learning_rates
        one = self.minutes_by_benchmark(plan, model.model, benchmarks)
        in_a_job = len(rates) if isinstance(size.learning_rates, str) else min(size.learning_rates, len(rates))
        of_all = {name: minutes * in_a_job for name, minutes in one.items()}
        for group in plan.groups(model, benchmarks, size.benchmarks, "benchmarks", minutes=of_all):
            a_rate = dict.fromkeys(rates, sum(one[name] for name in group.members))
            of_rates = plan.groups(model, rates, size.learning_rates, "rates", "lr", minutes=a_rate)
            for prompt, members in _by_prompt(plan, model.model, group.members).items():
                for together in of_rates:
                    for seed in settings.seeds:
                        cells = tuple(
                            self.cell(model.model, benchmark, prompt, rate, seed)
                            for benchmark in members
                            for rate in together.members
                        )
                        batch = f"{group.name}.{prompt}.{together.name}.seed{seed}{end}"
                        yield Job(self.name, model.model, batch, cells)

    def cell(self, model: str, benchmark: str, prompt: Prompt, learning_rate: str, seed: int) -> BenchmarkCell:
        """A cell of this rule."""
        return BenchmarkCell(self.name, model, benchmark, None, prompt, learning_rate, seed)

    def splits(self, cell: BenchmarkCell) -> tuple[str, ...]:
        """`train` to learn from and `validation` to score after each epoch; never test."""
        return ("train", "validation")

    def side_by_side(self, run: Run, job: Job[BenchmarkCell]) -> list[list[BenchmarkCell]]:
        """The learning rates of each fine-tune, where the configuration asks for it."""
        alike: dict[tuple[object, ...], list[BenchmarkCell]] = {}
        for cell in job.cells if run.configuration.finetuning.rates_side_by_side else ():
            alike.setdefault((cell.benchmark, cell.prompt, cell.seed), []).append(cell)
        return list(alike.values())

    # ---- settings and recipe ------------------------------------------------------------------------------------

    def training_settings(self, run: Run, benchmark: str) -> dict[str, Any]:
        """What the configuration says that can change a fine-tune, without its learning rate and seed."""
        row = run.benchmarks[benchmark]
        settings = run.configuration.finetuning.model_dump(exclude=NOT_IN_RECIPE)
        if not settings["early_stop"]:
            del settings["early_stop"]  # recipes of before there was one
        return {"metric": row.metric, "higher_is_better": row.higher_is_better, **settings}

    def cell_settings(self, run: Run, cell: BenchmarkCell) -> dict[str, Any]:
        """Those of scoring on validation, and those of training."""
        settings = super().cell_settings(run, cell) | self.training_settings(run, cell.benchmark)
        return settings | scale_settings(self.row(run, cell.model).dtype)

    def recipe(self, records: Records, cell: BenchmarkCell) -> dict[str, Any]:
        """How validation is scored, how training goes, the digests of the model and of both splits, and the cell's
        learning rate and seed."""
        model, settings = records.model_record(cell.model), self.training_settings(records.run, cell.benchmark)
        if settings["target_modules"] == "all-linear" and "all_linear" in model:
            settings["all_linear"] = model["all_linear"]  # before, experts without adapters: other cells
        settings |= self.mask_settings(records.run, cell.model, settings["dropout"])
        settings |= scale_settings(self.row(records.run, cell.model).dtype)
        return (
            self.scoring_recipe(records, cell, given(cell.prompt))
            | settings
            | {
                "model": model["checkpoints"]["final"]["digest"],
                "train": records.split_digest(cell.benchmark, "train"),
                "validation": records.split_digest(cell.benchmark, "validation"),
                "learning_rate": cell.learning_rate,
                "seed": cell.seed,
            }
        )

    # ---- what it costs ------------------------------------------------------------------------------------------

    def asked_minutes(self, of_size: SizeClass, output_type: str) -> float:
        """Minutes of one fine-tune with its validations, the same for every output type."""
        return of_size.finetune_minutes

    def _epoch_operations(self, work: Work, cell: BenchmarkCell) -> float:
        """Of training: 2P forward and 2P for the activations' gradients; frozen weights have none."""
        parameters, documents = work.parameters(self.row(work.run, cell.model)), work.documents(cell.benchmark, "train")
        return 4 * parameters * documents * work.tokens("trained", cell.benchmark)

    def operations(self, work: Work, cell: BenchmarkCell) -> float:
        """Floating-point operations of training and validation in every epoch; an early stop is not foreseen."""
        validation = work.scoring_operations(self.row(work.run, cell.model), cell.benchmark, "validation")
        return work.run.configuration.finetuning.epochs * (self._epoch_operations(work, cell) + validation)

    def seconds(self, work: Work, cell: BenchmarkCell) -> float:
        """Expected seconds of training and validation in every epoch; an early stop is not foreseen."""
        settings, documents = work.run.configuration.finetuning, work.documents(cell.benchmark, "train")
        row, steps = self.row(work.run, cell.model), -(-documents // settings.effective_batch)
        epoch = work.computing_seconds(row, self._epoch_operations(work, cell), passes=0, steps=steps)
        return settings.epochs * (epoch + work.scoring_seconds(row, cell.benchmark, "validation"))

    def stored_bytes(self, work: Work, cell: BenchmarkCell) -> float:
        """Bytes of the adapter and of the cell's small files."""
        return work.adapter_bytes(self.row(work.run, cell.model)) + RECORD_BYTES

    def counted_tokens(
        self, work: Work, cell: BenchmarkCell, sidecar: Mapping[str, Any]
    ) -> tuple[tuple[str, str], float] | None:
        """Tokens trained, padding left out, per document and epoch. None where the sidecar counts none."""
        tokens = (sidecar.get("counters") or {}).get("training_tokens")
        epochs = sidecar.get("epochs", work.run.configuration.finetuning.epochs)  # fewer where it stopped early
        seen = work.documents(cell.benchmark, "train") * epochs
        return (("trained", cell.benchmark), tokens / seen) if tokens and seen else None


def _by_prompt(plan: Participants, model: str, benchmarks: tuple[str, ...]) -> dict[Prompt, list[str]]:
    """Prompt -> the benchmarks that the model is tried on with it."""
    found: dict[Prompt, list[str]] = {}
    for benchmark in benchmarks:
        for prompt in plan.prompts(model, benchmark):
            found.setdefault(prompt, []).append(benchmark)
    return found


FINETUNE_ADAPTER = FinetuneAdapter()
