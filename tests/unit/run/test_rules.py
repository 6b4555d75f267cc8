"""The registry of rules: whoever has to know a rule asks its object, and what Snakemake must be told agrees with it."""

import importlib
import re
from pathlib import Path

import pytest

from lm_validity.cli import register_commands
from lm_validity.config.load import load_run
from lm_validity.run.rules import RULES, read_cell, rule_of
from lm_validity.run.rules.base import Rule
from lm_validity.run.workspace import Grid

ROOT = Path(__file__).resolve().parents[3]
CONFIGURATIONS = ("config/config.yaml", "config/test_bias.yaml", "config/paper/train_before_test_replay.yaml")
SMK = {path.name: path.read_text() for path in sorted((ROOT / "workflow" / "rules").glob("*.smk"))}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_has_a_worker_a_command_and_a_snakemake_rule(rule):
    module, name = rule.worker.split(":")
    worker = getattr(importlib.import_module(module), name)
    assert hasattr(worker, "compute") if rule.in_store else callable(worker)
    assert not rule.in_store or type(rule).recipe is not Rule.recipe
    (command,) = [one for one in register_commands().registered_commands if one.callback.__name__ == rule.name]
    assert command.callback.__doc__ == rule.summary
    (text,) = [text for text in SMK.values() if re.search(rf"^rule {rule.name}:", text, re.MULTILINE)]
    own = re.search(rf"^rule {rule.name}:.*?(?=^rule |\Z)", text, re.MULTILINE | re.DOTALL)[0]
    assert f"cells/{rule.name}/{{{{{rule.wildcard}}}}}/{{{{batch}}}}" in own
    assert f"--{rule.wildcard.replace('_', '-')} {{wildcards.{rule.wildcard}:q}}" in own
    # Slurm may divide the GPUs of a job without a number of nodes among nodes
    assert ("\n        nodes=1,\n" in own) == ("\n        gpu=" in own)
    # a rule without a version has no cells in the store, whose version would be another parameter
    assert (f'recipe_version=RULES["{rule.name}"].recipe_version' in own) == rule.in_store


def test_login_node_rules_are_snakemakes_local_rules():
    """Each says so itself: `localrules:` names rules as they are called here, and a module may rename them."""
    text = "".join(SMK.values())
    rules = re.split(r"^rule (\w+):$", text, flags=re.MULTILINE)
    local = {name for name, own in zip(rules[1::2], rules[2::2], strict=True) if "\n    localrule: True\n" in own}
    assert "localrules:" not in text and len(local) == 19
    assert {name for name in RULES if name in local} == {rule.name for rule in RULES.values() if rule.on_login_node}


@pytest.mark.parametrize("path", CONFIGURATIONS)
def test_a_cell_is_read_back_from_its_values(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    grid = Grid(load_run(path))
    for cell in grid.cells():
        values = {key: value for key, value in cell._asdict().items() if value is not None}
        again = read_cell(values)
        assert again == cell and type(again) is type(cell) is rule_of(cell).cell_type


@pytest.mark.parametrize("path", CONFIGURATIONS)
def test_cells_stand_on_cells_of_the_run_and_of_earlier_rules(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    grid, order = Grid(load_run(path)), list(RULES)
    for cell in grid.cells():
        for other in rule_of(cell).stands_on(grid, cell):
            assert other in grid.job_of and order.index(other.rule) < order.index(cell.rule)
