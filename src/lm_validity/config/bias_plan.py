"""The bias study's plan: how many subsamples each task has, where tasks stop on the width of their interval.

Standard library and pydantic only: the Snakefile reads this at parse time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from lm_validity.config.plan import Listed
from lm_validity.config.rows import Positive, SheetRow, Sheets, list_rows
from lm_validity.config.sections import BiasSettings
from lm_validity.errors import InputError

DESCRIBED_IN = "docs/how_to/bias_study.md"
LEAST = 10  # subsamples before the first look: widths of fewer say little of the width to come


class PlannedBatch(SheetRow):
    """A further batch of a task: up to how many subsamples its language models, m and n then have, as far as the
    experiment asks for so many. half_width: of the interval that was too wide, as a fraction of accuracy."""

    identified_by: ClassVar[tuple[str, ...]] = ("experiment", "task", "round")

    experiment: Listed
    task: Listed
    round: int = Field(ge=2)
    subsamples: Positive
    half_width: float | None = Field(None, ge=0)


COLUMNS = tuple(PlannedBatch.model_fields)
BatchRows = Mapping[tuple[str, str, int], PlannedBatch]


@dataclass(frozen=True)
class BiasPlan:
    """half_width: tasks stop where theirs is at most this. batch: subsamples. most: by experiment, all subsamples.
    rows: the batches after the first, by (experiment, task, round)."""

    half_width: float
    batch: int
    most: Mapping[str, int]
    rows: BatchRows

    @property
    def first(self) -> int:
        """Subsamples of every task in round 1: whole batches of at least `LEAST` together."""
        return -(-LEAST // self.batch) * self.batch

    def totals(self, experiment: str, task: str) -> dict[int, int]:
        """Round -> subsamples of the task so far, at most all of the experiment's."""
        asked = self.asked(experiment, task)
        return {one: min(total, self.most[experiment]) for one, total in asked.items()}

    def asked(self, experiment: str, task: str) -> dict[int, int]:
        """Round -> subsamples of the task so far as the plan has them: the experiment may have fewer since."""
        later = {
            row.round: row.subsamples for row in self.rows.values() if (row.experiment, row.task) == (experiment, task)
        }
        return dict(sorted(({1: self.first} | later).items()))

    def planned(self, experiment: str, task: str) -> int:
        """Subsamples of the task after its last round."""
        return max(self.totals(experiment, task).values())

    def may_stop(self, experiment: str, task: str, there: int) -> bool:
        """Whether the task, of which so many subsamples are `there`, has not all of the experiment's, planned or
        there: then its interval decides, or decided, on it."""
        return min(self.planned(experiment, task), there) < self.most[experiment]


def read_batches(
    path: str | Path, experiments: Iterable[str], tasks: Iterable[str], sheets: Sheets | None = None
) -> BatchRows:
    """The rows of a plan; none where the file is not there, since the first batch needs none. Raises InputError."""
    sheets = sheets or Sheets()
    if sheets.text(path) is None:
        return {}
    known = {"experiments": tuple(experiments), "tasks": tuple(tasks), "study": "bias", "sheets": sheets}
    rows = list_rows(path, PlannedBatch, setting="bias: plan", described_in=DESCRIBED_IN, context=known)
    return {(row.experiment, row.task, row.round): row for row in rows}


def read_bias_plan(settings: BiasSettings, tasks: Iterable[str], sheets: Sheets | None = None) -> BiasPlan | None:
    """The plan that a configuration names, None where tasks have all subsamples.

    Raises InputError for a bad row, for batches that do not end where a cell of the store ends, and for a later round
    with no more subsamples than an earlier one.
    """
    batch, width = settings.subsamples_a_cell, settings.stop_at_half_width
    if settings.plan is None or width is None or batch == "all":
        return None
    most = {
        name: max(one.count_subsamples(m, n) for m in one.m for n in one.n)
        for name, one in settings.experiments.items()
    }
    rows = read_batches(settings.plan, settings.experiments, tasks, sheets)
    plan = BiasPlan(width, batch, most, rows)
    for row in rows.values():
        where = f"{settings.plan}: experiment {row.experiment!r}, task {row.task!r}, round {row.round}"
        if row.subsamples % plan.batch and row.subsamples < most[row.experiment]:
            raise InputError(
                f"{where}: {row.subsamples} subsamples are no multiple of {plan.batch}.",
                "keep bias.subsamples_a_cell as it was when the plan was written; finished cells have that size.",
            )
        asked = plan.asked(row.experiment, row.task)
        if any(total >= row.subsamples for one, total in asked.items() if one < row.round):
            raise InputError(
                f"{where}: {row.subsamples} subsamples are no more than an earlier round's.",
                "give each round more subsamples than the one before.",
            )
    return plan
