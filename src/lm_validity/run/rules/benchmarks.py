"""The rules of models and benchmarks: scores of models as they come, fine-tunes, selections on validation, and the look
at test."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import TYPE_CHECKING

from lm_validity.config.load import Run
from lm_validity.config.sections import SizeClass
from lm_validity.config.sheets import Model
from lm_validity.errors import InputError, again
from lm_validity.run.cell import BenchmarkCell, Choice, Job, Prompt, Recipe, given
from lm_validity.run.rules.base import LEAST_MINUTES, PASSES_A_STEP, Batched, Effort, Participants, Rule, make_groups
from lm_validity.run.scoring import sampling_runs, sampling_settings, scoring_settings

if TYPE_CHECKING:
    from lm_validity.run.workspace import Workload, Workspace

# ----------------------------------------------------------------------------------------------------------------------
# What they share: data files, the settings line, the scoring part of a recipe, costs.

GENERATION = 5  # an answer written token by token takes this many times as long as choices that are only scored
ITEM_BYTES, RECORD_BYTES = 300, 5000  # a document's row of items.parquet; the small files of a cell


class BenchmarkRule(Rule[BenchmarkCell, Model]):
    """A rule whose cells are of one model and one benchmark."""

    cell_type = BenchmarkCell

    def splits(self, cell: BenchmarkCell) -> tuple[str, ...]:
        """The splits whose documents a cell reads."""
        return ()

    def data_files(self, run: Run, job: Job[BenchmarkCell]) -> list[str]:
        """The file of each split whose documents a cell of the job reads, once each."""
        folder = f"{run.results}/splits"
        files = {f"{folder}/{cell.benchmark}/{split}.json": None for cell in job.cells for split in self.splits(cell)}
        return list(files)

    def asked_minutes(self, of_size: SizeClass, output_type: str) -> float:
        """Minutes that a cell of a model of this size asks for."""
        return of_size.evaluate_minutes * (GENERATION if output_type == "generate_until" else 1)

    def minutes(self, run: Run, job: Job[BenchmarkCell], attempt: int = 1) -> int:
        """The sum of `asked_minutes` over its cells, times the attempt; at least LEAST_MINUTES."""
        of_size = self.size_class(run, job.model)
        minutes = sum(self.asked_minutes(of_size, run.benchmarks[cell.benchmark].output_type) for cell in job.cells)
        return max(LEAST_MINUTES, int(minutes * attempt))

    def minutes_of(self, plan: Participants, model: str, benchmarks: Iterable[str]) -> dict[str, float]:
        """Benchmark -> minutes that a cell of the model asks for."""
        of_size, rows = self.size_class(plan.run, model), plan.run.benchmarks
        return {name: self.asked_minutes(of_size, rows[name].output_type) for name in benchmarks}

    # ---- jobs ---------------------------------------------------------------------------------------------------

    def rounds(self, plan: Participants) -> Iterator[tuple[str, str, dict[str, float]]]:
        """(model, end of its batches' names, `minutes_of` the benchmarks that it is fine-tuned on) by round of the
        plan."""
        for model in plan.models("agreement"):
            for end, benchmarks in plan.rounds(model.model):
                yield model.model, end, self.minutes_of(plan, model.model, benchmarks)

    def groups(self, plan: Participants, minutes: dict[str, float]) -> list[Batched]:
        """Benchmarks that share a job by `batching.evaluate_adapter`."""
        size = plan.configuration.batching.evaluate_adapter.benchmarks
        return make_groups(minutes, size, "benchmarks", plan.longest_job)

    def jobs(self, plan: Participants) -> Iterator[Job[BenchmarkCell]]:
        """One for each model, round of the plan, of `groups` and seed, as of what takes place after the fine-tunes;
        with a cell for each benchmark and, of scores on test, for each sampled run."""
        for model, end, minutes in self.rounds(plan):
            for group, seed in product(self.groups(plan, minutes), plan.configuration.finetuning.seeds):
                cells = tuple(
                    BenchmarkCell(self.name, model, name, seed=seed, run=run)
                    for name in group.members
                    for run in (sampling_runs(plan.run, name, "test") if "scores" in self.tables else (None,))
                )
                yield Job(self.name, model, f"{group.name}.seed{seed}{end}", cells)

    # ---- settings -----------------------------------------------------------------------------------------------

    def settings(self, run: Run, job: Job[BenchmarkCell]) -> str:
        """Words `key=value`: which cells they are, then what all benchmarks have in common, then what each has of its
        own as `benchmark.key=value`, or its bare name."""
        # which cells: a list in the configuration may grow while the batch keeps its name
        words = list[str]()
        for name in ("checkpoint", "learning_rate", "seed", "run", "split"):
            values = dict.fromkeys(str(getattr(cell, name)) for cell in job.cells if getattr(cell, name) is not None)
            words += [f"{name}={','.join(values)}"] if values else []
        parts = {cell.benchmark: self.cell_settings(run, cell) for cell in job.cells}
        first = next(iter(parts.values()))
        common = {key: value for key, value in first.items() if all(part.get(key) == value for part in parts.values())}
        words += [f"{key}={value}" for key, value in common.items()]
        for benchmark, part in parts.items():
            settings_of_benchmarks = [f"{benchmark}.{key}={value}" for key, value in part.items() if key not in common]
            words += settings_of_benchmarks or [benchmark]
        return " ".join(words)

    def cell_settings(self, run: Run, cell: BenchmarkCell) -> Recipe:
        """What the configuration says that can change a cell's numbers, but for what the cell itself names."""
        row = run.benchmarks[cell.benchmark]
        settings: Recipe = {"metric": row.metric, "higher_is_better": row.higher_is_better}
        if cell.prompt:
            settings |= scoring_settings(run, cell.model, cell.benchmark, cell.prompt)
        sampling = sampling_settings(run, cell.run)
        sampling.pop("run", None)  # which cells there are is said once
        return settings | sampling

    def scoring_recipe(self, records: "Workspace", cell: BenchmarkCell, prompt: str) -> Recipe:
        """What every cell that scores documents of a benchmark depends on."""
        record = records.task_record(cell.benchmark)
        task: Recipe = {"task": record["digest"]}
        if record.get("fewshot"):
            task["fewshot"] = record["fewshot"]
        settings = scoring_settings(records.run, cell.model, cell.benchmark, prompt)
        return task | settings | sampling_settings(records.run, cell.run)


class ScoringRule(BenchmarkRule):
    """A rule whose cells are scores on the documents of one split."""

    tables = ("scores", "items")

    def splits(self, cell: BenchmarkCell) -> tuple[str, ...]:
        """Only the split that is scored."""
        return (cell.scored_split,)

    def efforts(self, work: "Workload", cell: BenchmarkCell) -> list[Effort]:
        """Scoring the split."""
        return [work.scoring(self.row(work.run, cell.model), cell.benchmark, cell.scored_split)]

    def stored_bytes(self, work: "Workload", cell: BenchmarkCell) -> float:
        """Bytes of an item's row for every document of the split, and of the cell's small files."""
        return ITEM_BYTES * work.documents(cell.benchmark, cell.scored_split) + RECORD_BYTES


# ----------------------------------------------------------------------------------------------------------------------
# Rule `evaluate_model`: zero-shot scores of untouched models, at every checkpoint asked for.


class EvaluateModel(ScoringRule):
    """A cell is (model, checkpoint, benchmark, prompt, split); validation and test have a manifest each."""

    name, words = "evaluate_model", "score models"
    summary = "Score an untouched model on validation and test documents."
    recipe_version = 2
    worker = "lm_validity.cells.workers:Scorer"
    parts = (".validation", ".test")

    def cell(
        self, model: str, benchmark: str, checkpoint: str, prompt: Prompt, split: str, run: int | None = None
    ) -> BenchmarkCell:
        """The cell that scores a model at a checkpoint on a split of a benchmark."""
        return BenchmarkCell(self.name, model, benchmark, checkpoint, prompt, split=split, run=run)

    def jobs(self, plan: Participants) -> Iterator[Job[BenchmarkCell]]:
        """Jobs by model, group of benchmarks, group of checkpoints and prompt."""
        size = plan.configuration.batching.evaluate_model
        for model in plan.run.models.values():
            cells = self._cells(plan, model)
            points = dict.fromkeys(checkpoint for checkpoint, _, _ in cells)
            minutes = self.minutes_of(plan, model.model, plan.run.benchmarks)
            largest = dict[str, int]()  # cells at a checkpoint, by benchmark
            for (_, benchmark, _), scores in cells.items():
                largest[benchmark] = max(largest.get(benchmark, 0), len(scores))
            of_all = {name: minutes[name] * largest[name] for name in plan.run.benchmarks if name in largest}
            for of_benchmarks in make_groups(of_all, size.benchmarks, "benchmarks", plan.longest_job):
                of_one = dict.fromkeys(points, sum(of_all[name] for name in of_benchmarks.members))
                for of_points in make_groups(of_one, size.checkpoints, "checkpoints", plan.longest_job):
                    for prompt in dict.fromkeys(prompt for _, _, prompt in cells):
                        keys = product(of_points.members, of_benchmarks.members, [prompt])
                        of_job = tuple(cell for key in keys for cell in cells.get(key, ()))
                        if of_job:
                            batch = f"{of_benchmarks.name}.{of_points.name}.{prompt}"
                            yield Job(self.name, model.model, batch, of_job)

    def _cells(self, plan: Participants, model: Model) -> dict[tuple[str, str, Prompt], list[BenchmarkCell]]:
        """(checkpoint, benchmark, prompt) -> what of a model is scored. Selection needs validation; curves and other
        wordings need test only."""
        splits: dict[tuple[str, str, Prompt], tuple[str, ...]] = {}
        if plan.takes_part(model, "signal"):
            for point, benchmark in product(model.checkpoints, plan.benchmarks("signal")):
                splits[point.checkpoint, benchmark, "plain"] = ("test",)
        if plan.takes_part(model, "agreement"):
            for benchmark in (*plan.benchmarks("agreement"), *plan.variants):
                for prompt in plan.prompts(model.model, benchmark):
                    of_test = benchmark in plan.variants
                    splits["final", benchmark, prompt] = ("test",) if of_test else ("validation", "test")
        return {
            (checkpoint, benchmark, prompt): [
                self.cell(model.model, benchmark, checkpoint, prompt, split, run)
                for split in names
                for run in sampling_runs(plan.run, benchmark, split)
            ]
            for (checkpoint, benchmark, prompt), names in splits.items()
        }

    def part(self, cell: BenchmarkCell) -> str:
        """`.validation` or `.test`, by the cell's split: what is chosen on validation reads no manifest of test
        scores."""
        return f".{cell.split}"

    def recipe(self, records: "Workspace", cell: BenchmarkCell) -> Recipe:
        """How documents are scored, with the digests of the checkpoint and of the split. Raises InputError where the
        model's prefetch record lacks the checkpoint."""
        checkpoint = records.model_record(cell.model)["checkpoints"].get(given(cell.checkpoint))
        if checkpoint is None:
            raise InputError(
                f"model {cell.model!r} has no checkpoint {cell.checkpoint!r} in its prefetch record.",
                f"run {again(f'prefetch-model --model {cell.model}')}.",
            )
        split = given(cell.split)
        return self.scoring_recipe(records, cell, given(cell.prompt)) | {
            "model": checkpoint["digest"],
            "documents": records.split_record(cell.benchmark, split)["digest"],
        }


EVALUATE_MODEL = EvaluateModel()


# ----------------------------------------------------------------------------------------------------------------------
# Rule `finetune_adapter`: LoRA fine-tunes on a benchmark's training documents, validation after each epoch.

OF_ALL_CELLS = ("learning_rates", "seeds", "rates_side_by_side")  # keys that are no single fine-tune's


class FinetuneAdapter(BenchmarkRule):
    """A cell is (model, benchmark, prompt, learning rate, seed). It never sees the test split."""

    name, words = "finetune_adapter", "fine-tune"
    summary = "Fine-tune a model with LoRA, with validation after each epoch. Never reads test documents."
    recipe_version = 2
    worker = "lm_validity.cells.workers:AdapterTrainer"
    protocol = "train_before_test"

    def jobs(self, plan: Participants) -> Iterator[Job[BenchmarkCell]]:
        """One for each model, round of the plan, group of benchmarks, prompt, group of learning rates and seed."""
        settings, size = plan.configuration.finetuning, plan.configuration.batching.finetune_adapter
        rates = settings.learning_rates
        in_a_job = len(rates) if isinstance(size.learning_rates, str) else min(size.learning_rates, len(rates))
        for model, end, minutes in self.rounds(plan):
            of_all = {name: duration * in_a_job for name, duration in minutes.items()}
            for group in make_groups(of_all, size.benchmarks, "benchmarks", plan.longest_job):
                a_rate = dict.fromkeys(rates, sum(minutes[name] for name in group.members))
                of_rates = make_groups(a_rate, size.learning_rates, "rates", plan.longest_job, "lr")
                prompts = {name: plan.prompts(model, name) for name in group.members}
                of_prompts = dict.fromkeys(prompt for of_one in prompts.values() for prompt in of_one)
                for prompt, together, seed in product(of_prompts, of_rates, settings.seeds):
                    cells = tuple(
                        self.cell(model, benchmark, prompt, rate, seed)
                        for benchmark in group.members
                        for rate in together.members
                        if prompt in prompts[benchmark]
                    )
                    yield Job(self.name, model, f"{group.name}.{prompt}.{together.name}.seed{seed}{end}", cells)

    def cell(self, model: str, benchmark: str, prompt: Prompt, learning_rate: str, seed: int) -> BenchmarkCell:
        """The cell that fine-tunes a model on a benchmark at one learning rate with one seed."""
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

    def cell_settings(self, run: Run, cell: BenchmarkCell) -> Recipe:
        """Those of scoring on validation, and those of training, without its learning rate and seed."""
        return super().cell_settings(run, cell) | run.configuration.finetuning.determining(OF_ALL_CELLS)

    def recipe(self, records: "Workspace", cell: BenchmarkCell) -> Recipe:
        """How validation is scored, how training goes, the digests of the model and of both splits, and the cell's
        learning rate and seed."""
        run, model = records.run, records.model_record(cell.model)["checkpoints"]["final"]["digest"]
        recipe = self.scoring_recipe(records, cell, given(cell.prompt)) | self.cell_settings(run, cell)
        recipe |= self.mask_settings(run, cell.model, run.configuration.finetuning.dropout)
        recipe |= {split: records.split_record(cell.benchmark, split)["digest"] for split in self.splits(cell)}
        return recipe | {"model": model, "learning_rate": cell.learning_rate, "seed": cell.seed}

    # ---- what it costs ------------------------------------------------------------------------------------------

    def asked_minutes(self, of_size: SizeClass, output_type: str) -> float:
        """Minutes of one fine-tune with its validations, the same for every output type."""
        return of_size.finetune_minutes

    def efforts(self, work: "Workload", cell: BenchmarkCell) -> list[Effort]:
        """Training and validation in every epoch. Of training 2P operations a token
        forward and 2P for the activations' gradients; frozen weights have none."""
        settings, row = work.run.configuration.finetuning, self.row(work.run, cell.model)
        documents = work.documents(cell.benchmark, "train")
        operations = 4 * work.parameters(row) * documents * work.tokens(cell.benchmark).trained
        training = Effort(operations, PASSES_A_STEP * -(-documents // settings.effective_batch))
        return settings.epochs * [training, work.scoring(row, cell.benchmark, "validation")]

    def stored_bytes(self, work: "Workload", cell: BenchmarkCell) -> float:
        """Bytes of the adapter and of the cell's small files."""
        return work.adapter_bytes(self.row(work.run, cell.model)) + RECORD_BYTES


FINETUNE_ADAPTER = FinetuneAdapter()


# ----------------------------------------------------------------------------------------------------------------------
# Rule `select_prompt`: the prompt of direct scores, plain or chat, by validation.


class SelectPrompt(BenchmarkRule):
    """A cell is (model, benchmark), where there are several prompts: a base model has nothing to choose, nor has a
    corpus, which has no prompt."""

    name, words = "select_prompt", "choose prompts"
    summary = "Choose the prompt of direct scores on validation."
    worker = "lm_validity.cells.runner:select_prompt"
    reads_records = False
    on_login_node = True

    def choice_for(self, plan: Participants, score: BenchmarkCell) -> BenchmarkCell | None:
        """The cell whose choice says whether a score counts; None where there was nothing to choose. Signal curves have
        one prompt, and an adapter's was chosen with it."""
        direct = score.rule == EVALUATE_MODEL.name and score.checkpoint == "final"
        chosen = direct and len(plan.prompts(score.model, score.benchmark)) > 1
        return BenchmarkCell(self.name, score.model, score.benchmark) if chosen else None

    def jobs(self, plan: Participants) -> Iterator[Job[BenchmarkCell]]:
        """One for each model and group of benchmarks, planned or not, in which there is something to choose."""
        for model in plan.models("agreement"):
            for group in self.groups(plan, self.minutes_of(plan, model.model, plan.benchmarks("agreement"))):
                open_choice = (name for name in group.members if len(plan.prompts(model.model, name)) > 1)
                cells = tuple(BenchmarkCell(self.name, model.model, name) for name in open_choice)
                if cells:
                    yield Job(self.name, model.model, group.name, cells)

    def stands_on(self, plan: Participants, cell: BenchmarkCell) -> list[BenchmarkCell]:
        """The direct scores on validation, with every prompt."""
        prompts = plan.prompts(cell.model, cell.benchmark)
        return [EVALUATE_MODEL.cell(cell.model, cell.benchmark, "final", prompt, "validation") for prompt in prompts]


SELECT_PROMPT = SelectPrompt()


# ----------------------------------------------------------------------------------------------------------------------
# Rule `select_adapter`: the best learning rate, prompt and epoch by validation, or the untouched model.


class SelectAdapter(BenchmarkRule):
    """A cell is (model, benchmark, seed). Its inputs are validation results only."""

    name, words = "select_adapter", "choose adapters"
    summary = "Choose the best learning rate, prompt and epoch on validation."
    worker = "lm_validity.cells.runner:select_adapter"
    reads_records = False
    protocol = "train_before_test"
    tables = ("selections",)
    on_login_node = True

    def cell_settings(self, run: Run, cell: BenchmarkCell) -> Recipe:
        """With the learning rates that it chooses from, so that it chooses again when the list changes."""
        return {"candidates": ",".join(run.configuration.finetuning.learning_rates)} | super().cell_settings(run, cell)

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

    def choice(self, cell: BenchmarkCell, content: Choice) -> BenchmarkCell | None:
        """The chosen fine-tune; None where the untouched model stays."""
        if content["folder"] is None:
            return None
        prompt, rate = content["prompt"], given(content["learning_rate"])
        return FINETUNE_ADAPTER.cell(cell.model, cell.benchmark, prompt, rate, given(cell.seed))


SELECT_ADAPTER = SelectAdapter()


# ----------------------------------------------------------------------------------------------------------------------
# Rule `evaluate_adapter`: the selected adapter's score on the test split, once.


class EvaluateAdapter(ScoringRule):
    """A cell is (model, benchmark, seed). Where no adapter was better on validation, the direct score is the result."""

    name, words = "evaluate_adapter", "score adapters"
    summary = "Score the selected adapters on test documents, once."
    recipe_version = 2
    worker = "lm_validity.cells.workers:Scorer"
    reads_records = False
    protocol = "train_before_test"

    def stands_on(self, plan: Participants, cell: BenchmarkCell) -> list[BenchmarkCell]:
        """The selection, and the direct test scores with every prompt, of which one is the result where no adapter was
        better."""
        prompts = plan.prompts(cell.model, cell.benchmark)
        direct = [
            EVALUATE_MODEL.cell(cell.model, cell.benchmark, "final", prompt, "test", cell.run) for prompt in prompts
        ]
        return [cell._replace(rule=SELECT_ADAPTER.name, run=None), *direct]

    def stand_in(self, records: "Workspace", cell: BenchmarkCell) -> BenchmarkCell | None:
        """The direct score, where the selection kept the untouched model."""
        choice = records.selection(cell)
        if choice["folder"] is not None:
            return None
        return EVALUATE_MODEL.cell(cell.model, cell.benchmark, "final", choice["prompt"], "test", cell.run)

    def recipe(self, records: "Workspace", cell: BenchmarkCell) -> Recipe:
        """What determines an adapter's score. Its selection must be there: the recipe names the adapter and the prompt
        chosen."""
        selection = records.selection(cell)
        trained = records.store.read(given(selection["folder"]))
        return self.scoring_recipe(records, cell, selection["prompt"]) | {
            "model": records.model_record(cell.model)["checkpoints"]["final"]["digest"],
            "adapter": trained["result"]["adapter_sha256"],
            "documents": records.split_record(cell.benchmark, "test")["digest"],
        }


EVALUATE_ADAPTER = EvaluateAdapter()
OF_BENCHMARKS = (EVALUATE_MODEL, FINETUNE_ADAPTER, SELECT_PROMPT, SELECT_ADAPTER, EVALUATE_ADAPTER)
