"""Where a plan is written, and how: whole and readable again, or not at all."""

import csv
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from lm_validity.config.load import Run
from lm_validity.config.plan import COLUMNS, RULED_OUT, PlannedCell, read_plan, read_sheet
from lm_validity.config.rows import SheetRow
from lm_validity.errors import InputError
from lm_validity.files import make_writable, replace_file
from lm_validity.monitor.planning.designs import LISTED, next_round
from lm_validity.monitor.planning.savings import Pair
from lm_validity.run.leases import hold_lease


def check_place(run: Run, configfile: Path, output: Path | None, *, adds_a_round: bool) -> Path:
    """The file to write. Raises InputError where that would change a plan instead of adding to it."""
    if "agreement" not in run.configuration.studies:
        raise InputError(f"{configfile}: a plan is for the study agreement.", "add it to studies.")
    if run.plan is not None:
        if not adds_a_round:
            raise InputError(
                f"{configfile}: it has a plan already, {run.configuration.plan}.",
                "add a round with --cells or --audit, or set plan to null first.",
            )
        place = output or run.plan_file
        if not is_plan_of(run, place):
            _check_new(place)
        return place
    place = output or configfile.parent / "plan.tsv"
    _check_new(place)
    return place


def is_plan_of(run: Run, place: Path) -> bool:
    """Whether the configuration names this file as its plan."""
    return run.plan is not None and place.resolve() == run.plan_file.resolve()


def _check_new(place: Path) -> None:
    if place.exists():
        raise InputError(f"{place}: exists already.", "name another file with --output, or remove it.")


def listed_cells(
    listed: Mapping[Pair, PlannedCell], before: Mapping[Pair, PlannedCell], path: Path, ruled_out: Collection[Pair] = ()
) -> list[PlannedCell]:
    """The user's own list as the next round. Raises InputError for a cell that is planned already, or ruled out."""
    later = next_round(before)
    for pair in listed:
        if pair in ruled_out:
            raise InputError(
                f"{path}: model {pair[0]!r}, benchmark {pair[1]!r}: the plan rules it out ({RULED_OUT}).",
                "take its row out of the plan first.",
            )
        if pair in before:
            raise InputError(
                f"{path}: model {pair[0]!r}, benchmark {pair[1]!r}: planned already, in round {before[pair].round}.",
                "list new cells only.",
            )
    return [one.model_copy(update={"round": later, "reason": one.reason or LISTED}) for one in listed.values()]


def write_plan(place: Path, planned: Sequence[PlannedCell], run: Run) -> None:
    """Write the sheet, and what the run's plan rules out. Raises InputError where it cannot be read back as a plan of
    this run, or where it has changed since the run was loaded. Of two commands, one waits and then sees that."""
    before = {**run.plan, **run.ruled_out} if run.plan is not None and is_plan_of(run, place) else None
    rows = (*planned, *run.ruled_out.values())
    write_sheet(
        place,
        COLUMNS,
        rows,
        unchanged=lambda: (read_sheet(place) if place.exists() else None) == before,
        read_back=lambda temporary: read_plan(temporary, *run.agreement_names),
    )


def write_sheet(
    place: Path,
    columns: Sequence[str],
    rows: Iterable[SheetRow],
    *,
    unchanged: Callable[[], bool],
    read_back: Callable[[Path], object],
) -> None:
    """Write rows of a plan of any study. Choosing them takes minutes, in which another command may have added a round
    that this one would remove: raises InputError where the file is no longer `unchanged`, where what was written
    cannot be read back, and where nothing can be written."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(_values(one, columns) for one in rows)
    make_writable(place.parent)
    with hold_lease(place.with_name(f".{place.name}.lease"), finished=lambda: False, say=print):
        if not unchanged():
            raise InputError(f"{place}: it was changed while this command ran.", "run the command again.")
        with replace_file(place) as temporary:
            temporary.write_text(text.getvalue(), encoding="utf-8")
            try:
                read_back(temporary)
            except InputError as error:
                raise InputError(error.problem.replace(str(temporary), str(place)), error.hint) from None


def _values(one: SheetRow, columns: Sequence[str]) -> Iterable[str]:
    for column in columns:
        value = getattr(one, column)
        yield "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
