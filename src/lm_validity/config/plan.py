"""What of a study is computed or asked about where that is not all of it: plan sheets of cells of the agreement study
and of subsamples of the bias study, and groups of models.

Rounds are added one after the other, and a later one changes no job of an earlier one. Standard library and pydantic
only: the Snakefile reads this at parse time.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, create_model

from lm_validity.config.rows import Positive, SheetRow, Sheets, bad_value, list_rows
from lm_validity.config.sections import BiasSettings
from lm_validity.errors import InputError, again, did_you_mean
from lm_validity.words import count

BLOCK = 3  # fewest models that are fine-tuned on a benchmark: below, nothing can be said of it
# reasons on which something depends: random cells check predictions; cells chosen by earlier scores are in no agreement
AUDIT, BY_SCORES, JOINS = "audit", "rank uncertainty", "joins"
RULED_OUT = "cannot succeed"  # a person writes it: the cell is not planned, and no command chooses it again


def _check_listed(name: str, info: ValidationInfo) -> str:
    known_names = (info.context or {}).get(f"{info.field_name}s")
    if known_names is not None and name not in known_names:
        listed = f"the plan may name {', '.join(list(known_names)[:8])}{' and others' if len(known_names) > 8 else ''}."
        hint = did_you_mean(name, known_names, listed)
        study = (info.context or {}).get("study", "agreement")
        hint += f" If the {info.field_name} has left the study, take its rows out of the plan."
        raise bad_value(f"no {info.field_name} of the {study} study", hint)
    return name


Listed = Annotated[str, AfterValidator(_check_listed)]


class Planned(SheetRow):
    """A row of a plan, of either study. Each has a column `round`."""


class PlannedCell(Planned):
    """A model that is fine-tuned on a benchmark. Direct scores are never planned: every model has all of them.

    reason: why the cell was chosen. probability: with which it was drawn, before the draw; null where a person chose.
    seed: of the draw.
    """

    identified_by: ClassVar[tuple[str, ...]] = ("model", "benchmark")

    model: Listed
    benchmark: Listed
    round: int = Field(1, ge=1)
    reason: str | None = None
    probability: float | None = Field(None, gt=0, le=1)
    seed: int | None = None

    @property
    def by_scores(self) -> bool:
        """Whether earlier scores decided on it: then it says something of ranks, and agreement would be flattered or
        harmed by it."""
        return self.reason in (BY_SCORES, JOINS)

    @property
    def ruled_out(self) -> bool:
        """Whether the cell is not planned and never to be chosen."""
        return self.reason == RULED_OUT


class PlannedBatch(Planned):
    """A further batch of a task: up to how many subsamples its language models, m and n then have, as far as the
    experiment asks for so many. half_width: of the interval that was too wide, as a fraction of accuracy."""

    identified_by: ClassVar[tuple[str, ...]] = ("experiment", "task", "round")

    experiment: Listed
    task: Listed
    round: int = Field(ge=2)
    subsamples: Positive
    half_width: float | None = Field(None, ge=0)


Plan = Mapping[tuple[str, str], PlannedCell]  # by (model, benchmark)
Row = TypeVar("Row", bound=Planned)


def read_sheet(path: str | Path, kind: type[Row], sheets: Sheets | None = None, **known: object) -> dict[Any, Row]:
    """The rows of a plan by what identifies them, in its order.

    `known`: the names that a column may hold, such as `models`; None takes any. Raises InputError for a row that names
    another one, is there twice, or has a value that cannot be.
    """
    rows = list_rows(path, kind, context={**known, "sheets": sheets})
    return {tuple(getattr(row, name) for name in kind.identified_by): row for row in rows}


def next_round(planned: Iterable[PlannedCell | PlannedBatch], first: int = 1) -> int:
    """The round after the last one; `first` where nothing is planned yet."""
    return 1 + max((row.round for row in planned), default=first - 1)


def read_cells(
    path: str | Path,
    models: Collection[str] | None = None,
    benchmarks: Collection[str] | None = None,
    sheets: Sheets | None = None,
) -> Plan:
    """The cells of a sheet without what is ruled out."""
    rows = read_sheet(path, PlannedCell, sheets, models=models, benchmarks=benchmarks)
    return {pair: cell for pair, cell in rows.items() if not cell.ruled_out}


def read_plan(
    path: str | Path, models: Collection[str], benchmarks: Collection[str], sheets: Sheets | None = None
) -> Plan:
    """`read_cells` of a whole plan. Raises InputError also for a benchmark with fewer than `BLOCK` planned models."""
    sheets = sheets or Sheets()
    if sheets.text(path) is None:
        raise InputError(
            f"{path}: no such plan.",
            f"set `plan` to null, write it with {again(f'plan --output {path}')}, then name it again.",
        )
    plan = read_cells(path, models, benchmarks, sheets)
    block_side = min(BLOCK, len(models))
    for benchmark in benchmarks:
        planned = sum(benchmark == name for _, name in plan)
        if planned < block_side:
            raise InputError(
                f"{path}: benchmark {benchmark!r} is planned for {count(planned, 'model')}, fewer than {block_side}.",
                "add rows of further models, or leave agreement out of the benchmark's column studies.",
            )
    return plan


LEAST = 10  # subsamples of a task before the first look: widths of fewer say little of the width to come


@dataclass(frozen=True)
class BiasPlan:
    """How the bias study's tasks are measured until their intervals are narrow.

    half_width: a task stops where that of its interval is at most this. batch: subsamples that a round adds.
    subsamples: by experiment, all that a task can have. rows: the batches after the first, by (experiment, task,
    round)."""

    half_width: float
    batch: int
    subsamples: Mapping[str, int]
    rows: Mapping[tuple[str, str, int], PlannedBatch]

    @property
    def first(self) -> int:
        """Subsamples of every task in round 1: whole batches of at least `LEAST` together."""
        return -(-LEAST // self.batch) * self.batch

    def totals(self, experiment: str, task: str) -> dict[int, int]:
        """Round -> subsamples of the task so far, at most all of the experiment's."""
        subsamples = self.asked(experiment, task)
        return {number: min(total, self.subsamples[experiment]) for number, total in subsamples.items()}

    def asked(self, experiment: str, task: str) -> dict[int, int]:
        """Round -> subsamples of the task so far as the plan has them: the experiment may have fewer since."""
        later = {
            row.round: row.subsamples for row in self.rows.values() if (row.experiment, row.task) == (experiment, task)
        }
        return dict(sorted(({1: self.first} | later).items()))

    def planned(self, experiment: str, task: str) -> int:
        """Subsamples of the task after its last round."""
        return max(self.totals(experiment, task).values())

    def may_stop(self, experiment: str, task: str, n_stored: int) -> bool:
        """Whether the task, of which so many subsamples are `n_stored`, has not all of the experiment's, planned or
        there: then its interval decides, or decided, on it."""
        return min(self.planned(experiment, task), n_stored) < self.subsamples[experiment]


def read_bias_plan(settings: BiasSettings, tasks: Iterable[str], sheets: Sheets | None = None) -> BiasPlan | None:
    """The plan that a configuration names, None where tasks have all subsamples. Without a sheet it has no rows: the
    first batch needs none.

    Raises InputError for a bad row, for batches that do not end where a cell of the store ends, and for a later round
    with no more subsamples than an earlier one.
    """
    batch, width = settings.subsamples_a_cell, settings.stop_at_half_width
    if settings.plan is None or width is None or batch == "all":
        return None
    maximum = {
        name: max(experiment.count_subsamples(m, n) for m in experiment.m for n in experiment.n)
        for name, experiment in settings.experiments.items()
    }
    rows, sheets = {}, sheets or Sheets()
    if sheets.text(settings.plan) is not None:
        known_names = {"experiments": tuple(settings.experiments), "tasks": tuple(tasks)}
        rows = read_sheet(settings.plan, PlannedBatch, sheets, study="bias", **known_names)
    plan = BiasPlan(width, batch, maximum, rows)
    for row in rows.values():
        where = f"{settings.plan}: experiment {row.experiment!r}, task {row.task!r}, round {row.round}"
        if row.subsamples % plan.batch and row.subsamples < maximum[row.experiment]:
            raise InputError(
                f"{where}: {row.subsamples} subsamples are no multiple of {plan.batch}.",
                "keep bias.subsamples_a_cell as it was when the plan was written; finished cells have that size.",
            )
        subsamples = plan.asked(row.experiment, row.task)
        if any(total >= row.subsamples for earlier, total in subsamples.items() if earlier < row.round):
            raise InputError(
                f"{where}: {row.subsamples} subsamples are no more than an earlier round's.",
                "give each round more subsamples than the one before.",
            )
    return plan


# ----------------------------------------------------------------------------------------------------------------------
# Groups of models whose lead the agreement report asks about: what `--group` and `agreement.groups` may say.
#
#     released>=2023-11      models released in that month or later
#     family=Qwen            models of a family
#     COLUMN                 models with a 1 in a column of 0 and 1

_FORMS = "one of 'released>=2023-11', 'family=NAME' and the name of a column of 0 and 1, such as 'instruction_tuned'."
_DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?")
_DATE_HINT = "write a month or a day, such as 2023-11 or 2023-11-05."
SheetRowT = TypeVar("SheetRowT", bound=SheetRow)


def _day(text: str) -> date | None:
    """The day of `2023-11-05`, the first day of `2023-11`; None for any other text, a number of seconds among them."""
    try:
        return date.fromisoformat(f"{text}-01"[:10]) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def _read_date(value: object) -> object:
    if isinstance(value, str) and (value := _day(value)) is None:
        raise bad_value("not a date", _DATE_HINT)
    return value


Released = Annotated[date, BeforeValidator(_read_date)]


class Group(NamedTuple):
    """A group as it was written; `value` is what its column must hold: a day or later, a family, or yes."""

    text: str
    column: str
    value: date | str | Literal[True] = True

    @property
    def words(self) -> str:
        """Its models, in a sentence."""
        if isinstance(self.value, date):
            return f"models released since {self.value:%B %Y}"
        return f"models of the family {self.value}" if isinstance(self.value, str) else f"{self.column} models"

    def has(self, value: object) -> bool | None:
        """Whether a model whose column holds `value` is in it; None where nothing is known of the model."""
        if value is None:
            return None
        if isinstance(self.value, date):
            return isinstance(value, date) and value >= self.value
        return value == self.value


def parse_group(text: str) -> Group:
    """A group from `--group` or the configuration. Raises InputError."""
    column, sign, value = (part.strip() for part in re.fullmatch(r"([^=<>]*)([=<>]*)(.*)", text, re.DOTALL).groups())  # type: ignore[union-attr]
    if column == "released" and sign == ">=":
        day = _day(value)
        if day is None:
            raise InputError(f"group {text!r}: {value!r} is not a date.", _DATE_HINT)
        return Group(text, column, day)
    if column == "family" and sign == "=" and value:
        return Group(text, column, value)
    if sign or column in ("", "released", "family"):
        raise InputError(f"group {text!r}: not a group of models.", _FORMS)
    return Group(text, column)


def with_columns(kind: type[SheetRowT], groups: Iterable[Group]) -> type[SheetRowT]:
    """The kind of row with a column of 0 and 1 for each group that names one of its own."""
    columns = {group.column: (bool | None, None) for group in groups if group.column not in kind.model_fields}
    return create_model(kind.__name__, __base__=kind, __module__=kind.__module__, **columns) if columns else kind  # type: ignore[call-overload]


def members(
    group: Group, values: Sequence[object], compute_known: Sequence[bool], path: str | Path
) -> list[bool | None]:
    """Which models are in the group, by what its column holds (None: unknown).

    Raises InputError where no compute is known, and where no model of known compute is in the group or all are: a lead
    needs both sides. `path`: the models sheet.
    """
    memberships = [group.has(value) for value in values]
    sides = {side for side, is_known in zip(memberships, compute_known, strict=True) if is_known and side is not None}
    where = f"{path}: group {group.text!r}"
    if not any(compute_known):
        hint = "fill in parameters_b and tokens_b: leads are compared at equal pretraining compute."
        raise InputError(f"{where}: no model's compute is known.", hint)
    if not any(value is not None for value in values):
        raise InputError(f"{where}: no model has a value in the column {group.column!r}.", "fill it in, or add it.")
    if group.value is True and any(value not in (None, True, False) for value in values):
        raise InputError(f"{where}: the column {group.column!r} does not hold 0 and 1.", _FORMS)
    if sides != {True, False}:
        quantifier = "no" if True not in sides else "every"
        raise InputError(
            f"{where}: {quantifier} model whose compute and {group.column!r} are known is in it.", _hint(group, values)
        )
    return memberships


def _hint(group: Group, values: Collection[object]) -> str:
    usual = "a group has some models in it and others outside."
    if isinstance(group.value, str):
        return did_you_mean(group.value, [value for value in values if value is not None], usual)
    return usual
