"""The house does not grow: code lines, modules, lines of tests and words of documents stay below their ceilings.

The ceilings are in `tests/golden/size.json`. They only fall: `python tests/unit/test_size.py` lowers them to what is
there. Code lines are neither blank, comment nor docstring; doors are lines of imports and of signatures.
"""

import ast
import io
import json
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
CEILINGS = ROOT / "tests" / "golden" / "size.json"
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
DOCUMENTS = "docs/**/*.md"


def code_and_doors(text: str) -> tuple[set[int], set[int]]:
    """The numbers of a module's code lines, and those among them that are imports or signatures."""
    tree, code, doors = ast.parse(text), set[int](), set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                code -= set(range(first.lineno, (first.end_lineno or 0) + 1))
        if isinstance(node, ast.Import | ast.ImportFrom):
            doors.update(range(node.lineno, (node.end_lineno or 0) + 1))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            start = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            doors.update(range(start, max(node.body[0].lineno, node.lineno + 1)))
    return code, doors & code


def sizes() -> dict[str, float]:
    """What is there, by the names of the ceilings."""
    modules = [path for path in (ROOT / "src").rglob("*.py") if path.stat().st_size]
    counted = [code_and_doors(path.read_text(encoding="utf-8")) for path in modules]
    code, doors = (sum(len(each[part]) for each in counted) for part in (0, 1))
    tests = sum(path.read_text(encoding="utf-8").count("\n") for path in (ROOT / "tests").rglob("*.py"))
    words = sum(len(path.read_text(encoding="utf-8").split()) for path in ROOT.glob(DOCUMENTS))
    return {
        "src code lines": code,
        "src modules": len(modules),
        "src door lines": doors,
        "tests lines": tests,
        "documents words": words,
    }


def test_nothing_is_above_its_ceiling():
    ceilings = json.loads(CEILINGS.read_text(encoding="utf-8"))
    found = sizes()
    assert found.keys() == ceilings.keys()
    assert {name: size for name, size in found.items() if size > ceilings[name]} == {}


def test_lines_are_counted_as_they_should():
    text = '"""Doc."""\n\nimport os\n\n\ndef f(a,\n      b):\n    """Doc."""\n    # why\n    return """\n\n"""\n'
    code, doors = code_and_doors(text)
    assert (code, doors) == ({3, 6, 7, 10, 11, 12}, {3, 6, 7})


if __name__ == "__main__":
    lowered = {
        name: min(size, json.loads(CEILINGS.read_text(encoding="utf-8"))[name]) for name, size in sizes().items()
    }
    lines = ",\n".join(f'"{name}": {size}' for name, size in lowered.items())
    CEILINGS.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
