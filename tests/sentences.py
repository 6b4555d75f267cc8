"""Every sentence that a page, a command or an error can print, to be read once as a native speaker would.

    python tests/sentences.py > tests/sentences.txt

They are the texts in the code that are no docstrings, and those of the templates of pages: three words or more, by
module, once each. `{}` stands for what is computed.
"""

import ast
import html
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "lm_validity"
_SENTENCE = re.compile(r"^[“\"'(]?[A-Za-z{][^=<>|;]*\s\S+\s\S+")
_CODE = re.compile(r"px|rgb|--[a-z]+:|^\w+\(|var\(|\bclass=|^SELECT |\\[dws]")


def texts_of_module(path: Path) -> Iterator[str]:
    """The texts of a module without its docstrings; what is computed in them as `{}`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    passed_over = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body
        and isinstance(node.body[0], ast.Expr)
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            passed_over |= {id(part) for part in node.values}
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed_over:
            yield node.value


def texts_of_template(path: Path) -> Iterator[str]:
    """The texts between the tags of a template, and those that are read out."""
    text = re.sub(r"\{[%#].*?[%#]\}", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"\{\{.*?\}\}", "{}", text)
    yield from re.findall(r'(?:aria-label|title|placeholder)="([^"]*)"', text)
    inline = re.sub(r"</?(?:strong|code|span|b|em|a)\b[^>]*>", "", text)
    yield from (html.unescape(part) for part in re.split(r"<[^>]*>", inline))


def sentences() -> Iterator[str]:
    """Lines of the list: a heading for each module, then its sentences."""
    for path in sorted([*SOURCE.rglob("*.py"), *(SOURCE / "pages" / "assets").glob("*.j2")]):
        read = texts_of_module if path.suffix == ".py" else texts_of_template
        found = [" ".join(text.split()) for text in read(path)]
        kept = [text for text in dict.fromkeys(found) if _SENTENCE.match(text) and not _CODE.search(text)]
        if kept:
            yield f"\n# {path.relative_to(SOURCE)}"
            yield from kept


if __name__ == "__main__":
    print("\n".join(sentences()).strip())
