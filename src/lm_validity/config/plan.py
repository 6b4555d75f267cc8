"""The plan sheet: which (model, benchmark) are fine-tuned, where that is not all of them.

Direct scores are never planned: every model has them on every benchmark. Standard library and pydantic only: the
Snakefile reads this at parse time.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, ValidationInfo

from lm_validity.config.rows import SheetRow, Sheets, bad_value, list_rows
from lm_validity.errors import InputError, did_you_mean
from lm_validity.words import count

DESCRIBED_IN = "docs/how_to/sparse.md"
BLOCK = 3  # fewest models that are fine-tuned on a benchmark: below, nothing can be said of it
# reasons on which something depends: random cells check predictions; cells chosen by earlier scores are in no agreement
AUDIT, BY_SCORES, JOINS = "audit", "rank uncertainty", "joins"
RULED_OUT = "cannot succeed"  # a person writes it: the cell is not planned, and no command chooses it again


def _check_listed(name: str, info: ValidationInfo) -> str:
    known = (info.context or {}).get(f"{info.field_name}s")
    if known is not None and name not in known:
        listed = f"the plan may name {', '.join(list(known)[:8])}{' and others' if len(known) > 8 else ''}."
        hint = did_you_mean(name, known, listed)
        study = (info.context or {}).get("study", "agreement")
        hint += f" If the {info.field_name} has left the study, take its rows out of the plan."
        raise bad_value(f"no {info.field_name} of the {study} study", hint)
    return name


Listed = Annotated[str, AfterValidator(_check_listed)]


class PlannedCell(SheetRow):
    """A model that is fine-tuned on a benchmark.

    round: rounds are added one after the other, and a later one changes no job of an earlier one. reason: why the cell
    was chosen. probability: with which it was drawn, before the draw; null where a person chose. seed: of the draw.
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


COLUMNS = tuple(PlannedCell.model_fields)
Plan = Mapping[tuple[str, str], PlannedCell]  # by (model, benchmark)


def read_sheet(
    path: str | Path,
    models: Collection[str] | None = None,
    benchmarks: Collection[str] | None = None,
    sheets: Sheets | None = None,
) -> Plan:
    """The rows of a sheet by (model, benchmark), in its order, those that are ruled out too.

    `models`, `benchmarks`: those of the agreement study; None takes any name. Raises InputError for a row that names
    another one, occurs twice, or has no usable round or probability.
    """
    known = {"models": models, "benchmarks": benchmarks, "sheets": sheets}
    cells = list_rows(path, PlannedCell, described_in=DESCRIBED_IN, context=known)
    return {(cell.model, cell.benchmark): cell for cell in cells}


def read_cells(
    path: str | Path,
    models: Collection[str] | None = None,
    benchmarks: Collection[str] | None = None,
    sheets: Sheets | None = None,
) -> Plan:
    """`read_sheet` without what is ruled out."""
    return {pair: cell for pair, cell in read_sheet(path, models, benchmarks, sheets).items() if not cell.ruled_out}


def read_plan(
    path: str | Path, models: Collection[str], benchmarks: Collection[str], sheets: Sheets | None = None
) -> Plan:
    """`read_cells` of a whole plan. Raises InputError also for a benchmark with fewer than `BLOCK` planned models."""
    sheets = sheets or Sheets()
    if sheets.text(path) is None:
        raise InputError(
            f"{path}: no such plan.", "write it with `lm-validity plan`, then name it under plan in the configuration."
        )
    plan = read_cells(path, models, benchmarks, sheets)
    needed = min(BLOCK, len(models))
    for benchmark in benchmarks:
        planned = sum(benchmark == name for _, name in plan)
        if planned < needed:
            raise InputError(
                f"{path}: benchmark {benchmark!r} is planned for {count(planned, 'model')}, fewer than {needed}.",
                "plan a block, a few models on every benchmark (`lm-validity plan` draws one), or leave agreement out "
                "of the benchmark's column studies.",
            )
    return plan
