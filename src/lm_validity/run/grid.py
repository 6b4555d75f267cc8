"""The grid: which cells a run has, and which cells share a job.

A *cell* is one unit of GPU work and of resume; a *job* is one process that Snakemake starts, for one model, with one
or several cells. Jobs are found by (rule, model, batch); `batch` is a readable name, and for a job of one cell it is
the cell's own name. Standard library only: the Snakefile builds this at parse time.
"""

import hashlib
from functools import cached_property
from typing import NamedTuple

from lm_validity.config.load import Run
from lm_validity.config.sections import Batching
from lm_validity.config.sheets import Benchmark, Model
from lm_validity.run.batches import Group, cell_minutes, make_groups
from lm_validity.run.trial_grid import TRIALS_RULE, TrialCell, describe_trials, trial_batches

REPORTS_OF = {"agreement": ("agreement", "factors"), "signal": ("signal",), "bias": ("bias",)}  # study -> its reports


class Cell(NamedTuple):
    """One unit of work. Parts that a rule does not have are None."""

    rule: str
    model: str
    benchmark: str
    checkpoint: str | None = None
    prompt: str | None = None
    learning_rate: str | None = None
    seed: int | None = None
    split: str | None = None

    @property
    def name(self) -> str:
        """The cell within its model, e.g. `arc_easy.plain.lr2e-5.seed0` or `arc_easy.final.plain.test`."""
        rate = f"lr{self.learning_rate}" if self.learning_rate else None
        seed = f"seed{self.seed}" if self.seed is not None else None
        parts = (self.benchmark, self.checkpoint, self.prompt, rate, seed, self.split)
        return ".".join(part for part in parts if part)


class Job(NamedTuple):
    """One process: the cells of one model that it computes, in order."""

    rule: str
    model: str
    batch: str
    cells: tuple[Cell | TrialCell, ...]


def read_cell(values: dict) -> Cell | TrialCell:
    """The cell of a JSON record."""
    return (TrialCell if values["rule"] == TRIALS_RULE else Cell)(**values)


class Grid:
    """All jobs of a run, and the manifests they write (paths relative to the working directory)."""

    def __init__(self, run: Run):
        self.run = run
        self.configuration = run.configuration
        self.cells_folder = f"results/{run.name}/cells"
        self._settings: dict[tuple, str] = {}

    # ---- who takes part -----------------------------------------------------------------------------------------

    def takes_part(self, row: Model | Benchmark, study: str) -> bool:
        return study in self.configuration.studies and study in row.studies

    @cached_property
    def agreement_models(self) -> list[Model]:
        return [model for model in self.run.models.values() if self.takes_part(model, "agreement")]

    @cached_property
    def signal_models(self) -> list[Model]:
        return [model for model in self.run.models.values() if self.takes_part(model, "signal")]

    def benchmarks(self, study: str) -> tuple[str, ...]:
        rows = self.run.benchmarks.values()
        return tuple(row.benchmark for row in rows if self.takes_part(row, study))

    def is_test_only(self, benchmark: str) -> bool:
        """Whether a benchmark is only scored, never trained on: then it needs no train and validation documents."""
        return not self.takes_part(self.run.benchmarks[benchmark], "agreement")

    @cached_property
    def used_models(self) -> list[str]:
        return [row.model for row in self.run.models.values() if any(self.takes_part(row, s) for s in row.studies)]

    @cached_property
    def used_benchmarks(self) -> list[str]:
        return [
            row.benchmark for row in self.run.benchmarks.values() if any(self.takes_part(row, s) for s in row.studies)
        ]

    def prompts(self, model: str, benchmark: str) -> tuple[str, ...]:
        """Base models and corpora are always plain; else instruction-tuned ones are tried as the configuration says."""
        corpus = self.run.benchmarks[benchmark].output_type == "loglikelihood_rolling"
        if corpus or not self.run.models[model].instruction_tuned:
            return ("plain",)
        return self.configuration.evaluation.instruction_tuned_prompts

    def batching(self, model: Model) -> Batching:
        """How many cells of a model share a process: its size class's own way where it has one, else the run's."""
        own = self.configuration.size_classes[model.size_class].batching
        return self.configuration.batching.model_copy(
            update={key: value for key, value in own or () if value is not None}
        )

    def _groups(
        self, model: Model, members: tuple, size: int | str, *names: str, minutes: dict[str, float]
    ) -> list[Group]:
        """`make_groups` for jobs of a model; `minutes` is what each member adds to a job."""
        return make_groups(members, size, *names, minutes=minutes, longest=60 * self.batching(model).job_hours)

    def _minutes(self, model: Model, rule: str, benchmark: str) -> float:
        of_size = self.configuration.size_classes[model.size_class]
        return cell_minutes(of_size, rule, self.run.benchmarks[benchmark].output_type)

    # ---- jobs by rule -------------------------------------------------------------------------------------------

    @cached_property
    def jobs(self) -> dict[tuple[str, str, str], Job]:
        """Every job by (rule, model, batch)."""
        found = {}
        for job in (*self._evaluations(), *self._finetunes(), *self._selections(), *self._trials()):
            assert job[:3] not in found, f"two jobs of one name: {job[:3]}"
            found[job[:3]] = job
        return found

    def job(self, rule: str, model: str, batch: str) -> Job:
        return self.jobs[rule, model, batch]

    @cached_property
    def batch_of(self) -> dict[Cell, str]:
        """The batch that computes a cell."""
        return {cell: job.batch for job in self.jobs.values() for cell in job.cells}

    def _evaluations(self):
        agreement = {model.model for model in self.agreement_models}
        signal = {model.model for model in self.signal_models}
        for model in self.run.models.values():
            if model.model not in agreement | signal:
                continue
            size = self.batching(model).evaluate_model
            wanted = self._wanted_evaluations(model, model.model in agreement, model.model in signal)
            checkpoints = tuple(dict.fromkeys(checkpoint for checkpoint, _, _ in wanted))
            benchmarks = tuple(name for name in self.run.benchmarks if any(name == b for _, b, _ in wanted))
            minutes = {
                name: self._minutes(model, "evaluate_model", name)
                * max(len(splits) for (_, benchmark, _), splits in wanted.items() if benchmark == name)
                for name in benchmarks
            }
            for of_benchmarks in self._groups(model, benchmarks, size.benchmarks, "benchmarks", minutes=minutes):
                a_checkpoint = sum(minutes[name] for name in of_benchmarks.members)
                for of_checkpoints in self._groups(
                    model,
                    checkpoints,
                    size.checkpoints,
                    "checkpoints",
                    minutes=dict.fromkeys(checkpoints, a_checkpoint),
                ):
                    for prompt in dict.fromkeys(prompt for _, _, prompt in wanted):
                        cells = tuple(
                            Cell("evaluate_model", model.model, benchmark, checkpoint, prompt, split=split)
                            for checkpoint in of_checkpoints.members
                            for benchmark in of_benchmarks.members
                            for split in wanted.get((checkpoint, benchmark, prompt), ())
                        )
                        if cells:
                            batch = f"{of_benchmarks.name}.{of_checkpoints.name}.{prompt}"
                            yield Job("evaluate_model", model.model, batch, cells)

    def _wanted_evaluations(self, model: Model, agreement: bool, signal: bool) -> dict:
        """(checkpoint, benchmark, prompt) -> splits to score. Selection needs validation; curves need test only."""
        wanted = {}
        if signal:
            for point in model.checkpoints:
                for benchmark in self.benchmarks("signal"):
                    wanted[point.checkpoint, benchmark, "plain"] = ("test",)
        if agreement:
            for benchmark in self.benchmarks("agreement"):
                for prompt in self.prompts(model.model, benchmark):
                    wanted["final", benchmark, prompt] = ("validation", "test")
        return wanted

    def _finetunes(self):
        settings, benchmarks = self.configuration.finetuning, self.benchmarks("agreement")
        for model in self.agreement_models if benchmarks else ():
            size, rates = self.batching(model).finetune_adapter, settings.learning_rates
            one = {name: self._minutes(model, "finetune_adapter", name) for name in benchmarks}
            in_a_job = len(rates) if isinstance(size.learning_rates, str) else min(size.learning_rates, len(rates))
            of_all = {name: minutes * in_a_job for name, minutes in one.items()}
            for group in self._groups(model, benchmarks, size.benchmarks, "benchmarks", minutes=of_all):
                a_rate = dict.fromkeys(rates, sum(one[name] for name in group.members))
                of_rates = self._groups(model, rates, size.learning_rates, "rates", "lr", minutes=a_rate)
                of_prompt = self._by_prompt(model.model, group.members)
                for prompt, members in of_prompt.items():
                    for together in of_rates:
                        for seed in settings.seeds:
                            cells = tuple(
                                Cell("finetune_adapter", model.model, benchmark, None, prompt, rate, seed)
                                for benchmark in members
                                for rate in together.members
                            )
                            batch = f"{group.name}.{prompt}.{together.name}.seed{seed}"
                            yield Job("finetune_adapter", model.model, batch, cells)

    def _by_prompt(self, model: str, benchmarks: tuple[str, ...]) -> dict[str, list[str]]:
        """Prompt -> the benchmarks that the model is tried on with it."""
        found: dict[str, list[str]] = {}
        for benchmark in benchmarks:
            for prompt in self.prompts(model, benchmark):
                found.setdefault(prompt, []).append(benchmark)
        return found

    def _selections(self):
        seeds, benchmarks = self.configuration.finetuning.seeds, self.benchmarks("agreement")
        for model in self.agreement_models if benchmarks else ():
            size = self.batching(model).evaluate_adapter
            minutes = {name: self._minutes(model, "evaluate_adapter", name) for name in benchmarks}
            for group in self._groups(model, benchmarks, size.benchmarks, "benchmarks", minutes=minutes):
                # a base model has no choice to make, and a corpus no prompt
                open_choice = [name for name in group.members if len(self.prompts(model.model, name)) > 1]
                if open_choice:
                    cells = tuple(Cell("select_prompt", model.model, benchmark) for benchmark in open_choice)
                    yield Job("select_prompt", model.model, group.name, cells)
                for seed in seeds:
                    for rule in ("select_adapter", "evaluate_adapter"):
                        cells = tuple(Cell(rule, model.model, name, seed=seed) for name in group.members)
                        yield Job(rule, model.model, f"{group.name}.seed{seed}", cells)

    def _trials(self):
        for model, batch, cells in trial_batches(self.run) if self.run.language_models else ():
            yield Job(TRIALS_RULE, model, batch, cells)

    # ---- files --------------------------------------------------------------------------------------------------

    def manifests(self, job: Job) -> list[str]:
        """What a job declares: one manifest, and for evaluations one a split."""
        stem = f"{self.cells_folder}/{job.rule}/{job.model}/{job.batch}"
        if job.rule == "evaluate_model":
            return [f"{stem}.validation.json", f"{stem}.test.json"]
        return [f"{stem}.json"]

    def manifest_of(self, cell: Cell) -> str:
        """The manifest that lists a cell."""
        suffix = f".{cell.split}.json" if cell.rule == "evaluate_model" else ".json"
        return f"{self.cells_folder}/{cell.rule}/{cell.model}/{self.batch_of[cell]}{suffix}"

    def all_manifests(self, *rules: str) -> list[str]:
        """The manifests of every job of the named rules (none named: of all)."""
        return [path for job in self.jobs.values() if not rules or job.rule in rules for path in self.manifests(job)]

    # ---- what a cell stands on ----------------------------------------------------------------------------------

    def direct(self, model: str, benchmark: str, prompt: str, split: str) -> Cell:
        """The untouched model's cell on one split."""
        return Cell("evaluate_model", model, benchmark, "final", prompt, split=split)

    def candidates(self, cell: Cell) -> list[Cell]:
        """The fine-tunes that a selection of (model, benchmark, seed) chooses from: prompts × learning rates."""
        return [
            Cell("finetune_adapter", cell.model, cell.benchmark, None, prompt, rate, cell.seed)
            for prompt in self.prompts(cell.model, cell.benchmark)
            for rate in self.configuration.finetuning.learning_rates
        ]

    def dependencies(self, job: Job) -> list[str]:
        """Manifests a selection or an adapter evaluation reads, without repetition, in a fixed order."""
        found: dict[str, None] = {}
        for cell in job.cells:
            prompts = self.prompts(cell.model, cell.benchmark)
            if job.rule in ("select_prompt", "select_adapter"):
                for prompt in prompts:
                    found[self.manifest_of(self.direct(cell.model, cell.benchmark, prompt, "validation"))] = None
            if job.rule == "select_adapter":
                for candidate in self.candidates(cell):
                    found[self.manifest_of(candidate)] = None
            if job.rule == "evaluate_adapter":
                found[self.manifest_of(cell._replace(rule="select_adapter"))] = None
                for prompt in prompts:
                    found[self.manifest_of(self.direct(cell.model, cell.benchmark, prompt, "test"))] = None
        return list(found)

    def split_files(self, job: Job) -> list[str]:
        """The split files a job reads. A fine-tune's never include test."""
        splits = {"evaluate_adapter": ("test",), "finetune_adapter": ("train", "validation")}.get(job.rule)
        found: dict[str, None] = {}
        for cell in job.cells:
            for split in splits or ((cell.split,) if cell.split else ()):
                found[f"results/{self.run.name}/splits/{cell.benchmark}/{split}.json"] = None
        return list(found)

    def task_records(self, job: Job) -> list[str]:
        """The login node's records of a job's text-classification tasks, and their texts."""
        folder, tasks = f"results/{self.run.name}/prefetch/tasks", dict.fromkeys(cell.task for cell in job.cells)
        return [f"{folder}/{task}.{kind}" for task in tasks for kind in ("json", "parquet")]

    def describe_points(self) -> str:
        """Iterations and tokens of all checkpoints, which tables copy from the sheets: a digest in twelve digits."""
        points = [
            (model.model, model.tokens_b, point.checkpoint, point.iteration, point.tokens_b)
            for model in self.run.models.values()
            for point in model.checkpoints
        ]
        return hashlib.sha256(repr(points).encode()).hexdigest()[:12]

    # ---- settings that enter a recipe ---------------------------------------------------------------------------

    def scoring_settings(self, model: str, benchmark: str, prompt: str) -> dict:
        """What the configuration says that can change a score. Batch sizes and devices are not in it."""
        evaluation = self.configuration.evaluation
        row = self.run.benchmarks[benchmark]
        settings = {
            "metric": row.metric,  # each item's own value is that of this metric
            "prompt": prompt,
            "dtype": self.run.models[model].dtype,
            "evaluation_max_length": evaluation.max_length,
        }
        if evaluation.max_length:
            settings["limited_to"] = "the model's own length"  # before, past it: other cells
        if prompt == "chat":
            settings["system_instruction"] = evaluation.system_instruction
            settings["chat_answer_start"] = evaluation.chat_answer_start
        settings |= self.prompt_settings(benchmark)
        if row.output_type == "generate_until":
            settings["max_generated_tokens"] = evaluation.max_generated_tokens
            settings["answers_end"] = "each by itself"  # before, with the last of their batch: other cells
        if row.output_type == "loglikelihood_rolling":
            settings["document_bos"] = self.document_bos(model)
        return settings

    def writes_with_vllm(self, cell: Cell) -> bool:
        """Whether vLLM writes the cell's answers: on test only, since validation selects among cells of which some are
        still in training, where only transformers can write."""
        generated = self.run.benchmarks[cell.benchmark].output_type == "generate_until"
        on_test = cell.rule == "evaluate_adapter" or cell.split == "test"
        return generated and on_test and self.configuration.evaluation.generation_backend == "vllm"

    def document_bos(self, model: str) -> str:
        """How a model's rolling windows begin: the models sheet's word, else the configuration's."""
        return self.run.models[model].document_bos or self.configuration.evaluation.document_bos

    def prompt_settings(self, benchmark: str) -> dict:
        """What the sheet says about a benchmark's requests, where it is not the default."""
        row = self.run.benchmarks[benchmark]
        settings = {"num_fewshot": row.num_fewshot, "mutual_information": row.mutual_information}
        return {key: value for key, value in settings.items() if value}

    def training_settings(self, benchmark: str) -> dict:
        """What the configuration says that can change a fine-tune, without its learning rate and seed."""
        row = self.run.benchmarks[benchmark]
        settings = self.configuration.finetuning.model_dump(
            exclude={"learning_rates", "seeds", "micro_batch", "gradient_checkpointing", "rates_side_by_side"}
        )
        return {"metric": row.metric, "higher_is_better": row.higher_is_better, **settings}

    def settings(self, job: Job) -> str:
        """A job's recipe settings in one line: Snakemake reruns the job when it changes, and for nothing else."""
        if job.rule == TRIALS_RULE:
            return describe_trials(self.run, job.cells)
        rule, dtype = job.rule, self.run.models[job.model].dtype
        cells = [cell[2:] for cell in job.cells]  # without rule and model: most models share them
        key = (rule, dtype, self.document_bos(job.model), tuple(cells))
        if key not in self._settings:
            self._settings[key] = self._describe_settings(job)
        return self._settings[key]

    def _describe_settings(self, job: Job) -> str:
        # which cells: a list in the configuration may grow while the batch keeps its name
        words = []
        for name in ("checkpoint", "learning_rate", "seed", "split"):
            values = dict.fromkeys(str(getattr(cell, name)) for cell in job.cells if getattr(cell, name) is not None)
            words += [f"{name}={','.join(values)}"] if values else []
        if job.rule == "select_adapter":
            words.append(f"candidates={','.join(self.configuration.finetuning.learning_rates)}")
        parts = {}
        for cell in job.cells:
            row = self.run.benchmarks[cell.benchmark]
            parts[cell.benchmark] = {"metric": row.metric, "higher_is_better": row.higher_is_better}
            if cell.prompt:
                parts[cell.benchmark] |= self.scoring_settings(cell.model, cell.benchmark, cell.prompt)
            if self.writes_with_vllm(cell):
                parts[cell.benchmark]["generation_backend"] = "vllm"
            if cell.rule == "finetune_adapter":
                parts[cell.benchmark] |= self.training_settings(cell.benchmark)
        first = next(iter(parts.values()))
        common = {key: value for key, value in first.items() if all(part.get(key) == value for part in parts.values())}
        words += [f"{key}={value}" for key, value in common.items()]
        for benchmark, part in parts.items():
            own = [f"{benchmark}.{key}={value}" for key, value in part.items() if key not in common]
            words += own or [benchmark]
        return " ".join(words)
