"""The rules that compute cells, in the order in which they depend on each other."""

from collections.abc import Mapping
from typing import Any

from lm_validity.run.cell import Cell, CellT, Job
from lm_validity.run.rules.base import Rule
from lm_validity.run.rules.benchmarks import OF_BENCHMARKS
from lm_validity.run.rules.pretrain_on_test import PRETRAIN_ON_TEST

# which rule belongs to which kind of cell only the name of a cell's rule says
RULES: dict[str, Rule[Any, Any]] = {rule.name: rule for rule in (*OF_BENCHMARKS, PRETRAIN_ON_TEST)}


def rule_of(owner: CellT | Job[CellT]) -> Rule[CellT, Any]:
    """The rule of a cell or job."""
    return RULES[owner.rule]


def read_cell(values: Mapping[str, object]) -> Cell:
    """The cell of a JSON record."""
    return RULES[str(values["rule"])].cell_type(**values)
