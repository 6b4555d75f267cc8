"""After an update or a change of settings: which finished cells would be computed again, and why."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from lm_validity.config.load import Run
from lm_validity.errors import CellError, InputError
from lm_validity.files import read_json_or
from lm_validity.monitor.status import RunState
from lm_validity.run.cell import Cell
from lm_validity.run.rules import rule_of
from lm_validity.run.workspace import Workspace
from lm_validity.words import count

DIGEST_LENGTH = 40  # a value as long as this says nothing to a person
ABSENT = "absent"
UNKNOWN = "its recipe is not known yet"
DEPENDENT = "depends on cells above; computed again if their results differ"
CHOSE_ANOTHER = "it chose a cell of another recipe"


def recomputed_cells(run: Run) -> list[str]:
    """One line per rule and reason, with the number of cells: `evaluate_adapter: recipe_version 2 -> 3 (12 cells)`.

    A finished cell is computed again where its recipe is another one than the store's cell of the same name was
    finished under, and perhaps where it depends on such a cell. Cells that were never finished are not listed.
    """
    state = RunState(run)
    grid, again = state.workspace.grid, set[Cell]()
    reasons: Counter[tuple[str, str]] = Counter()
    for one in state.cells:
        cell, rule = one.cell, rule_of(one.cell)
        if one.state == "stale":
            again.add(cell)
            if rule.in_store:
                reasons[rule.name, _why(state, cell)] += 1
        elif again.intersection(rule.stands_on(grid, cell)):
            again.add(cell)
            if rule.in_store and one.state == "done":
                reasons[rule.name, DEPENDENT] += 1
    return [f"{rule}: {why} ({count(cells, 'cell')})" for (rule, why), cells in reasons.items()]


def outdated_cells(workspace: Workspace) -> dict[Cell, str]:
    """The cells whose manifests have a result of another recipe than the present one, each with what differs. No table
    may be made from them, nor from what stands on them. A manifest that cannot be read, or a recipe that cannot be
    known, is not judged here: who needs it raises."""
    found = {}
    for cell in workspace.grid.cells():
        try:
            if workspace.outdated(cell) == cell:
                found[cell] = _why_outdated(workspace, cell)
        except (InputError, CellError):
            continue
    return found


def _why_outdated(workspace: Workspace, cell: Cell) -> str:
    entry = workspace.manifests.entry(cell)
    if entry is None or entry.folder is None:
        return CHOSE_ANOTHER
    record = read_json_or(workspace.store.path(entry.folder) / "cell.json", {})
    return _differences(record.get("recipe"), _recipe(workspace, cell))


def _why(state: RunState, cell: Cell) -> str:
    return _differences(state.latest_recipe(cell), _recipe(state.workspace, cell))


def _differences(before: dict[str, Any] | None, now: dict[str, Any] | None) -> str:
    return UNKNOWN if before is None or now is None else ", ".join(changes(before, now))


def _recipe(workspace: Workspace, cell: Cell) -> dict[str, Any] | None:
    try:
        return workspace.recipe(rule_of(cell).stand_in(workspace, cell) or cell)
    except (InputError, CellError, OSError, KeyError):
        return None


def changes(before: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> list[str]:
    """What differs between two recipes: `epochs 3 -> 5`; of a digest that it changed."""
    found = []
    for key in {**before, **now}:
        old, new = before.get(key, ABSENT), now.get(key, ABSENT)
        if isinstance(old, dict) and isinstance(new, dict):
            found += changes(old, new, f"{within}{key}.")
        elif old != new:
            long = any(isinstance(value, str) and len(value) >= DIGEST_LENGTH for value in (old, new))
            found.append(f"{within}{key} changed" if long else f"{within}{key} {old} -> {new}")
    return found
