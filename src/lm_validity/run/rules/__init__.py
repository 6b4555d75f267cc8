"""The rules that compute cells, in the order in which they stand on each other."""

from lm_validity.run.cell import Cell, Job
from lm_validity.run.rules.base import Rule
from lm_validity.run.rules.evaluate_adapter import EVALUATE_ADAPTER
from lm_validity.run.rules.evaluate_model import EVALUATE_MODEL
from lm_validity.run.rules.finetune_adapter import FINETUNE_ADAPTER
from lm_validity.run.rules.pretrain_on_test import PRETRAIN_ON_TEST
from lm_validity.run.rules.select_adapter import SELECT_ADAPTER
from lm_validity.run.rules.select_prompt import SELECT_PROMPT

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        EVALUATE_MODEL,
        FINETUNE_ADAPTER,
        SELECT_PROMPT,
        SELECT_ADAPTER,
        EVALUATE_ADAPTER,
        PRETRAIN_ON_TEST,
    )
}


def rule_of(of: Cell | Job) -> Rule:
    """The rule of a cell or job."""
    return RULES[of.rule]


def read_cell(values: dict) -> Cell:
    """The cell of a JSON record."""
    return RULES[values["rule"]].cell_type(**values)
