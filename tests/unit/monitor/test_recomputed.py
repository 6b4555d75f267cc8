"""Which finished cells would be computed again after a change, and why."""

import re
from collections import Counter
from pathlib import Path

import pytest

from lm_validity.config.load import load_run
from lm_validity.files import read_json, write_json
from lm_validity.monitor.check import CHOSE_ANOTHER, changes, recomputed_cells
from lm_validity.run.rules import RULES
from lm_validity.run.workspace import Workspace


def recomputed(run) -> dict[tuple[str, str], int]:
    lines = (re.fullmatch(r"(\w+): (.*) \((\d+) \w+, .*\)", line).groups() for line in recomputed_cells(Workspace(run)))
    return {(rule, why): int(number) for rule, why, number in lines}


def finished(rule: str) -> int:
    return len(list(Path("results/replay/store", rule).glob("*/*/cell.json")))


def edit(text: str, other: str):
    path = Path("replay/replay.yaml")
    path.write_text(path.read_text().replace(text, other) if text else f"{path.read_text()}\n{other}\n")


def test_nothing_of_an_unchanged_run(built):
    assert recomputed(built) == {}


@pytest.mark.parametrize("rule", ["evaluate_model", "finetune_adapter", "evaluate_adapter"])
def test_a_raised_version_is_named_with_its_cells_and_the_choices_among_them(built, rule, monkeypatch):
    before = RULES[rule].recipe_version
    monkeypatch.setattr(RULES[rule], "recipe_version", before + 1)
    found = recomputed(built)
    assert found.pop((rule, f"recipe_version {before} -> {before + 1}")) == finished(rule)
    assert {why for _, why in found} <= {CHOSE_ANOTHER}


def test_documents_that_changed_are_named(built):
    split = next(Path("results/replay/splits").glob("*/test.json"))
    write_json(split, read_json(split) | {"digest": "0" * 64})
    found = Counter({rule: count for (rule, why), count in recomputed(built).items()})
    assert set(found) == {"evaluate_model"}  # on whose test split what is evaluated after training stands


def test_cells_that_were_never_finished_are_not_computed_again(built):
    text = Path("replay/replay.yaml").read_text()
    Path("replay/replay.yaml").write_text(re.sub(r"learning_rates: \[", 'learning_rates: ["7e-4", ', text))
    assert "finetune_adapter" not in {rule for rule, _ in recomputed(load_run("replay/replay.yaml"))}


def test_changes_of_nested_settings_have_their_path():
    before = {"pretraining": {"epochs": 1, "rate": 0.1}, "m": 5, "gone": True}
    now = {"pretraining": {"epochs": 2, "rate": 0.1}, "m": 5, "new": "a"}
    assert changes(before, now) == ["pretraining.epochs 1 -> 2", "gone True -> absent", "new absent -> a"]
