"""How much of the package's types is open: ceilings that may be lowered, never raised."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import lm_validity

# function words, which say nothing as names of variables and parameters
TEXT = """
place own known each of at said told alone ours others other one same left rest both here there whole within across
among before after given kept wanted asked needed shown most more few what why which every used found
"""
WORDS = set(TEXT.split())
CEILINGS = {"Any": 89, "returns dict[str, Any]": 3, "returns a bare tuple": 46, "function words as names": 522}


def counts(sources: list[str]) -> Counter:
    """How often each of `CEILINGS` occurs. Tuples of any length (`tuple[str, ...]`) are sequences, so not counted."""
    found = Counter()
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.Name):
            found["Any"] += node.id == "Any"
            found["function words as names"] += isinstance(node.ctx, ast.Store) and node.id in WORDS
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            returns = ast.unparse(node.returns) if node.returns else ""
            found["returns dict[str, Any]"] += returns.startswith("dict[str, Any]")
            found["returns a bare tuple"] += returns.startswith("tuple[") and not returns.endswith(", ...]")
            parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            found["function words as names"] += sum(parameter.arg in WORDS for parameter in parameters)
    return found


def test_what_is_counted():
    source = """
def first(place: int, *, name: Any) -> tuple[int, str]:
    said = {}
    return place, said
def second() -> tuple[int, ...]: ...
async def third(own: str) -> dict[str, Any]: ...
"""
    assert counts([source]) == {
        "Any": 2,
        "returns a bare tuple": 1,
        "returns dict[str, Any]": 1,
        "function words as names": 3,
    }


@pytest.fixture(scope="module")
def found() -> Counter:
    folder = Path(lm_validity.__file__).parent
    return counts([path.read_text(encoding="utf-8") for path in folder.rglob("*.py") if "shipped" not in path.parts])


@pytest.mark.parametrize("name", CEILINGS)
def test_no_count_is_above_its_ceiling(found, name):
    assert 0 < found[name] <= CEILINGS[name]
