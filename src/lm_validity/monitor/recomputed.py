"""After an update or a change of settings: which finished cells would be computed again, and why."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from lm_validity.config.load import Run
from lm_validity.errors import CellError, InputError
from lm_validity.monitor.status import RunState
from lm_validity.run.cell import Cell
from lm_validity.run.rules import rule_of
from lm_validity.run.workspace import Workspace
from lm_validity.words import count

DIGEST_LENGTH = 40  # a value as long as this says nothing to a person
ABSENT = "absent"
UNKNOWN = "its recipe is not known yet"
DEPENDENT = "depends on cells above; computed again if their results differ"


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


def _why(state: RunState, cell: Cell) -> str:
    before, now = state.latest_recipe(cell), _recipe(state.workspace, cell)
    if before is None or now is None:
        return UNKNOWN
    return ", ".join(changes(before, now))


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
