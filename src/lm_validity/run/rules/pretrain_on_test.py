"""Rule `pretrain_on_test`: trials of the bias study. What one trial does: `run.trial_settings`, `run.trial_plan`."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lm_validity.config.load import Run
from lm_validity.config.sheets import LanguageModel
from lm_validity.run.cell import Job
from lm_validity.run.participants import Participants, end_of_round
from lm_validity.run.records import Records
from lm_validity.run.rules.base import LEAST_MINUTES, Rule, Work
from lm_validity.run.trial_plan import COST_ONLY, TrialCell, plan_values

TRIAL_TOKENS = 128
TEXT_BYTES, RECORD_BYTES = 100, 5000  # a predicted text's rows in the tables; the small files of a cell


class PretrainOnTest(Rule[TrialCell, LanguageModel]):
    """A cell is a batch of subsamples of one (experiment, language model, task, m, n)."""

    name = "pretrain_on_test"
    summary = "Run trials of the bias study: no pretraining, pretraining on other texts, and on the test texts."
    recipe_version = 1
    cell_type = TrialCell
    worker = "lm_validity.cells.trials.worker:TrialWorker"
    sheet = "language_models"
    tables = ("trials", "probabilities")

    # ---- jobs and files -----------------------------------------------------------------------------------------

    def jobs(self, plan: Participants) -> Iterator[Job[TrialCell]]:
        """For each language model and round of the plan, its batches of subsamples, as many per job as
        `batching.pretrain_on_test.cells` says."""
        size = plan.configuration.batching.pretrain_on_test.cells
        for model in plan.run.language_models:
            rounds: dict[int, list[TrialCell]] = {}
            for number, cell in self.cells_by_round(plan.run, model):
                rounds.setdefault(number, []).append(cell)
            for number, cells in sorted(rounds.items()):
                yield from self._jobs_of(model, cells, len(cells) if size == "all" else size, end_of_round(number))

    def _jobs_of(self, model: str, cells: list[TrialCell], step: int, end: str) -> Iterator[Job[TrialCell]]:
        batches = [tuple(cells[start : start + step]) for start in range(0, len(cells), step)]
        for number, batch in enumerate(batches, start=1):
            everything = "all-cells" if len(batches) == 1 else f"group-{number}-of-{len(batches)}-cells"
            # a batch of one cell has the cell's name
            yield Job(self.name, model, batch[0].name if len(batch) == 1 else everything + end, batch)

    def cells_by_round(self, run: Run, model: str) -> Iterator[tuple[int, TrialCell]]:
        """(round of the plan, cell) of a language model."""
        settings = run.bias
        for name, experiment in settings.experiments.items():
            if model not in (experiment.language_models or run.language_models):
                continue
            for task in experiment.tasks or run.tasks:
                for m in experiment.m:
                    for n in experiment.n:
                        count, done = experiment.count_subsamples(m, n), 0
                        step = count if settings.subsamples_a_cell == "all" else settings.subsamples_a_cell
                        totals = run.bias_plan.totals(name, task) if run.bias_plan else {1: count}
                        for number, total in totals.items():
                            upto = min(total, count)
                            for first in range(done + 1, upto + 1, step):
                                last = min(first + step - 1, upto)
                                yield number, TrialCell(self.name, model, name, task, m, n, first, last)
                            done = upto

    def data_files(self, run: Run, job: Job[TrialCell]) -> list[str]:
        """The login node's records of the tasks, and their texts."""
        folder, tasks = f"{run.results}/prefetch/tasks", dict.fromkeys(cell.task for cell in job.cells)
        return [f"{folder}/{task}.{kind}" for task in tasks for kind in ("json", "parquet")]

    # ---- what determines the numbers ----------------------------------------------------------------------------

    def settings(self, run: Run, job: Job[TrialCell]) -> str:
        """`names={values}` for each set of values (JSON) that cells share, with the names of these cells. What the job
        and the names say is left out, and so is what changes memory or time only."""
        names: dict[str, list[str]] = {}
        for cell in job.cells:
            values = plan_values(run, cell)
            for key in ("experiment", "language_model", "m", "n"):
                del values[key]
            for key in COST_ONLY:
                values["pretraining"].pop(key, None)
            names.setdefault(json.dumps(values, sort_keys=True, separators=(",", ":")), []).append(cell.name)
        return " ".join(f"{','.join(of)}={settings}" for settings, of in names.items())

    def recipe(self, records: Records, cell: TrialCell) -> dict[str, Any]:
        """The plan of the cell's trials, its range of subsamples, and how dropout masks are drawn where an adapter is
        trained."""
        from lm_validity.run.trial_plan import make_plan

        settings = {"subsamples": [cell.first, cell.last]}
        plan, run = make_plan(records, cell), records.run
        adapter = plan.pretraining.adapter
        masks = self.mask_settings(run, cell.model, adapter.dropout) if adapter is not None else {}
        return plan.recipe() | settings | masks

    # ---- what it costs ------------------------------------------------------------------------------------------

    def minutes(self, run: Run, job: Job[TrialCell], attempt: int = 1) -> int:
        """Minutes to load the model, and those of the trials."""
        trials = sum(cell.count for cell in job.cells)
        return int((LEAST_MINUTES + trials * self.size_class(run, job.model).trial_minutes) * attempt)

    def seconds(self, work: Work, cell: TrialCell) -> float:
        """Three arms trained on m texts, two of them pretrained on n; n predicted."""
        values, row = plan_values(work.run, cell), self.row(work.run, cell.model)
        of_texts, of_labels = values["pretraining"], values["classification"]
        pretraining: float = 2 * cell.n * of_texts["epochs"]
        training = 0.0
        steps = pretraining / of_texts["batch_size"]
        if of_labels["method"] == "head":
            training = 3 * cell.m * of_labels["epochs"]
            steps += training / of_labels["batch_size"]
        operations = 6 * work.parameters(row) * (training + pretraining + cell.n) * TRIAL_TOKENS
        return cell.count * work.computing_seconds(row, operations, passes=3, steps=steps)

    def stored_bytes(self, work: Work, cell: TrialCell) -> float:
        """Bytes of the rows of n predicted texts in three arms for every subsample, and of the cell's small files."""
        return TEXT_BYTES * cell.n * 3 * cell.count + RECORD_BYTES

    # ---- what jobs share ----------------------------------------------------------------------------------------

    def base_arms(self, work: Path) -> Path:
        """Where jobs share the arms that do not depend on n."""
        return work / self.name / f"base_arms_v{self.recipe_version}"

    def shared_work(self, work: Path) -> Iterable[Path]:
        """The folders of base arms, those of earlier recipe versions among them."""
        return (work / self.name).glob("base_arms_*")


PRETRAIN_ON_TEST = PretrainOnTest()
