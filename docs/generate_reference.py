"""Writes the reference pages that are made from the code: configuration keys, table columns, results, commands,
glossary, the cases of tests/contact, and the three tables of the page on cards.

    python docs/generate_reference.py          # rewrite those that are not up to date
    python docs/generate_reference.py --check  # exit 1 where one is not (in the tests)

`make docs` calls it.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import typer
import yaml
from pydantic import BaseModel

from lm_validity.cli import FURTHER, GROUPS, register_commands
from lm_validity.config.load import section_of
from lm_validity.config.sections import Cards, Configuration
from lm_validity.files import Document, write_text
from lm_validity.pages.page import asset
from lm_validity.results.put import UNIQUE, Row
from lm_validity.site.cards.values import CLAUSES, QUANTITIES
from lm_validity.tables.formats.import_files import FORMATS
from lm_validity.tables.metrics import WORDS
from lm_validity.tables.schema import COLUMNS
from lm_validity.words import ReasonCode

FOLDER = Path(__file__).parent / "reference"
CASES = Path(__file__).parent.parent / "tests" / "contact" / "cases"
MADE = "<!-- Made by docs/generate_reference.py: edit what it reads, not this page. -->\n"

# what is in the columns of results.parquet, in their order, and what intervals are over
ROW_COLUMNS = {
    "study": "the report: agreement, factors, readiness, signal, bias, items, models, since, compare or screening",
    "quantity": "what the number is",
    "subject": "what it is of: a benchmark, a model, a family, a category or a task; null: of all together",
    "other": "the other one, where it is of two",
    "protocol": "`direct` or `train_before_test`; null: of neither alone",
    "conditions": "what else it belongs to, as JSON with sorted keys; `{}` where there is nothing else",
    "value": "the number; 1 and 0 for yes and no; null where it is missing, and in the row of a text",
    "low": "lower end of the interval",
    "high": "upper end of the interval",
    "level": "of the interval: 0.95 or 0.89",
    "interval_for": "what the interval is over; null: the number has none",
    "n": "how many things the number rests on, where that is known",
    "unit": "of value, low and high; `yes_or_no`, or `text`",
    "text": "the result, where it is a text",
    "reason": "why the value is missing or, where there is one, its interval: a sentence",
    "reason_code": "the same as a code",
    "basis": "what `n` counts",
}
INTERVALS = {
    "models": "models",
    "families": "families of models, each as a whole",
    "benchmarks": "benchmarks, as a sample of a population of benchmarks",
    "categories": "categories of benchmarks, as a sample of a population of categories",
    "items": "test items, or scores by their standard errors",
    "missing_cells": "the scores that are missing",
    "checkpoints": "checkpoints, or other trainings where there are any",
    "differences": "the differences between models, within their noise",
    "coin_flips": "the order of the models, as though coins decided it",
    "pairs": "benchmarks, each model compared with every other one",
    "tasks": "tasks",
    "subsamples": "subsamples",
    "middle_subsamples": "subsamples: the middle half of them",
    "posterior": "the posterior",
}

# What a script learns from the exit code of any command, and of some. Every other command ends with 0 or 2.
EXIT_CODES = {
    "0": "Done.",
    "1": "Something is not as it should be: see below. Or an error of the program itself, with a traceback.",
    "2": "Bad input, something is missing here, or a process of a report was killed (out of memory): one line with a "
    "hint on standard error. Nothing half-written.",
    "128 + n": "Ended by signal n: 130 by Ctrl-C, 143 by a time limit or `scancel`.",
}
EXIT_CODES_OF = {
    "preflight": {"1": "There are problems."},
    "plan run": {
        "1": "The goal is not reached, and no remaining cell would help.",
        "other": "Snakemake failed: its exit code.",
    },
    "card": {"other": "Snakemake failed: its exit code."},
    "check-cells": {"1": "Cells failed, or are of another recipe."},
}


def key_schema() -> Document:
    """The JSON schema of the keys, as pydantic writes it."""
    schema = Configuration.model_json_schema()
    _drop_constants(schema, Configuration, schema["$defs"])
    schema_text = json.dumps(schema)
    schema["$defs"] = {name: section for name, section in schema["$defs"].items() if f'/{name}"' in schema_text}
    return schema


def _drop_constants(section: Document, kind: type[BaseModel], sections: Document) -> None:
    """Take the fields that are no keys out of the schema of a section and of those inside it."""
    for name, field in kind.model_fields.items():
        inner = section_of(field.annotation)
        if field.description is None:
            section["properties"].pop(name, None)
        elif inner is not None:
            _drop_constants(sections[inner.__name__], inner, sections)


def configuration_page() -> str:
    """Every key, section by section."""
    model = key_schema()
    lines = [
        "# Configuration keys",
        "",
        MADE,
        "A configuration is a YAML file. Keys without a default are marked *required*. `lm-validity config --defaults`",
        "prints all keys as YAML, and `lm-validity config` those of a run.",
        "",
    ]
    for path, section in _sections(model, model, ""):
        title = f"`{path}`" if path else "At the top"
        lines += [f"## {title}", "", _cell(section.get("description", "")), ""]
        lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
        for name, key in section["properties"].items():
            inner = [place for _, place in _references(model, key, _below(path, name))]
            word = f"[`{name}`](#{re.sub(r'[^a-z_]', '', inner[0])})" if inner else f"`{name}`"
            meaning = _cell(key.get("description", ""))
            lines.append(f"| {word} | {_values(model, key)} | {_default(section, name, key)} | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def _sections(model: dict, section: dict, path: str) -> Iterator[tuple[str, dict]]:
    """The paths of a section and of those inside it, with what they hold."""
    yield path, section
    for name, key in section["properties"].items():
        for inner, place in _references(model, key, _below(path, name)):
            yield from _sections(model, inner, place)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _references(model: dict, key: dict, path: str) -> Iterator[tuple[dict, str]]:
    """Sections that a key holds, each with its path: `path` itself, or a place below it where each has a name."""
    for one in key.get("anyOf", [key]):
        inner = one.get("additionalProperties", one)
        if isinstance(inner, dict) and "$ref" in inner:
            yield model["$defs"][inner["$ref"].rpartition("/")[2]], path if inner is one else f"{path}.<name>"


def _values(model: dict, key: dict) -> str:
    """What a key takes, in words."""
    if "anyOf" in key:
        return " or ".join(dict.fromkeys(_values(model, one) for one in key["anyOf"]))
    if "$ref" in key:
        return "section"
    if "enum" in key:
        return ", ".join(f"`{value}`" for value in key["enum"])
    if "const" in key:
        return f"`{key['const']}`"
    if key.get("type") == "array":
        return f"list of {_values(model, key['items'])}" if "items" in key else "list of numbers"
    if key.get("type") == "object":
        return f"by name: {_values(model, key['additionalProperties'])}"
    words = {"string": "text", "boolean": "`true`, `false`", "integer": "whole number", "null": "`null`"}
    bounds = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}
    limits = [text.format(f"{key[name]:g}") for name, text in bounds.items() if name in key]
    return " ".join([words.get(key["type"], key["type"]), " and ".join(limits)]).strip()


def _default(section: dict, name: str, key: dict) -> str:
    if name in section.get("required", ()):
        return "*required*"
    if isinstance(key.get("default"), dict):
        return "as there"
    return f"`{json.dumps(key.get('default'))}`".replace("|", "\\|")


def columns_page() -> str:
    """Every table and its columns."""
    lines = ["# Table columns", "", MADE, "What the tables are for and how they are read: [tables.md](tables.md).", ""]
    for table, columns in COLUMNS.items():
        lines += [f"## `{table}`", "", "| column | type | meaning |", "|---|---|---|"]
        lines += [f"| `{name}` | {_type(kind)} | {_cell(meaning)} |" for name, kind, meaning in columns]
        lines.append("")
    return "\n".join(lines)


def results_page() -> str:
    """The rows of results.parquet: columns, codes, intervals, and the quantities of each report."""
    lines = ["# Results as rows", "", MADE, "Every report writes its numbers as rows: `results.parquet`, and",
             "`results.csv` and `results.json` with the same rows. One row is a number. A number with several",
             "intervals has a row for each, in which the value is repeated. The layout is provisional.", "",
             f"Rows are unique by {', '.join(f'`{name}`' for name in UNIQUE)}.", "",
             "| column | meaning |", "|---|---|"]  # fmt: skip
    lines += [
        f"| `{name}` | {_cell(meaning)} |" for name, meaning in zip(Row._fields, ROW_COLUMNS.values(), strict=True)
    ]
    lines += ["", "## `reason_code`", "", "| code | meaning |", "|---|---|"]
    lines += [f"| `{code}` | {_cell(code.meaning)} |" for code in ReasonCode]
    lines += ["", "## `interval_for`", "", "| interval over | what is drawn, left out or varied |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(meaning)} |" for name, meaning in INTERVALS.items()]
    lines += ["", "## Quantities", ""]
    for record in sorted((FOLDER.parent.parent / "tests" / "golden" / "rows").glob("*.json")):
        names = sorted({name for world in json.loads(record.read_text()).values() for name in world})
        lines += [f"### {record.stem}", "", f"{', '.join(f'`{name}`' for name in names)}.", ""]
    return "\n".join([*lines, ""])


def _type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_type(kind.value_type)}s"
    if pa.types.is_map(kind):
        return f"{_type(kind.item_type)} by text"
    if pa.types.is_boolean(kind):
        return "true or false"
    if pa.types.is_integer(kind):
        return "whole number"
    return "number" if pa.types.is_floating(kind) else "text"


def commands_page() -> str:
    """Every command in a line; --help has arguments and options."""
    root = typer.main.get_command(register_commands())
    groups = {**GROUPS, "Further commands": FURTHER}
    grouped = {name for names in groups.values() for name in names}
    groups["Commands that the workflow runs"] = tuple(sorted(set(root.commands) - grouped))
    lines = ["# Commands", "", MADE, "`lm-validity COMMAND --help` prints arguments and options.", ""]
    for title, names in groups.items():
        lines += [f"## {title}", "", "| command | what it does |", "|---|---|"]
        lines += [line for name in names for line in _command(root.commands[name], f"lm-validity {name}")]
        lines += [""]
    lines += ["## Exit codes", "", "| command | code | meaning |", "|---|---|---|"]
    lines += [f"| every command | {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    lines += [
        f"| `{name}` | {code} | {meaning} |" for name, codes in EXIT_CODES_OF.items() for code, meaning in codes.items()
    ]
    return "\n".join([*lines, ""])


def _command(command, name: str) -> list[str]:
    inner = getattr(command, "commands", {})
    text = " ".join((command.help or "").partition("\f")[0].partition("\n\n")[0].split())
    return [
        f"| `{name}` | {_cell(text)} |",
        *(line for each, one in inner.items() for line in _command(one, f"{name} {each}")),
    ]


def _cell(text: str) -> str:
    """Text that may stand in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def glossary_page() -> str:
    """The words that the pages of the reports explain too."""
    return asset("glossary.md").replace("\n\n", f"\n\n{MADE}\n", 1)


def cards_page() -> str:
    """The page on cards, written by hand, with its three tables as the code has them."""
    text = (FOLDER / "cards.md").read_text(encoding="utf-8")
    keys = [(f"`{name}`", str(key.default), _cell(key.description or "")) for name, key in Cards.model_fields.items()]
    text = _with_table(text, "| key | default | meaning |", keys)
    lines = [
        (f"`{one.name}`", one.label, f"{one.report} `{one.of_report}`" if one.report else "", _cell(one.explanation))
        for one in QUANTITIES.values()
    ]
    clauses = [(f"{words[0].upper()}{words[1:]}".format(share="*N*%"), when) for words, when in CLAUSES.values()]
    text = _with_table(text, "| clause | when |", clauses)
    return _with_table(text, "| quantity | line of the card | row of a report | what it is |", lines)


def _with_table(text: str, header: str, rows: Sequence[tuple[str, ...]]) -> str:
    """The text with these rows in the table that begins with the header."""
    before, found, after = text.partition(f"\n{header}\n")
    if not found:
        raise ValueError(f"no table with the header {header}")
    lines = [f"| {' | '.join(row)} |" for row in rows]
    rest = re.sub(r"\A(\|.*\n?)+", "", after)
    return "\n".join([f"{before}\n{header}", "|---" * len(rows[0]) + "|", *lines, rest])


def contact_page() -> str:
    """How the cases of the contact suite first came out, by kind, and a batch of files of others."""
    kinds: dict[str, Counter[str]] = {}
    for path in sorted(CASES.glob("*/case.yaml")):
        case = yaml.safe_load(path.read_text(encoding="utf-8"))
        kinds.setdefault(case["kind"], Counter())[case["first"]] += 1
    batch = [line.split("\t") for line in (CASES.parent / "batch.tsv").read_text(encoding="utf-8").splitlines()]
    outcomes = Counter(row[-1] for row in batch[1:])
    lines = ["# What the world brings", "", MADE, "Files, models, tasks and situations that nobody here had made up",
             "beforehand, each a test in `tests/contact`, by kind. *First* is what came out at the first try.", "",
             "| kind | first right | first refused | first wrong |", "|---|---|---|---|"]  # fmt: skip
    single = [counts for counts in kinds.values() if counts.total() == 1]
    shown = [(kind, counts) for kind, counts in sorted(kinds.items()) if counts.total() > 1]
    shown += [(f"{len(single)} kinds of one case", sum(single, Counter[str]()))]
    for kind, counts in [*shown, ("all", sum(kinds.values(), Counter[str]()))]:
        lines.append(f"| {kind} | {' | '.join(str(counts[outcome]) for outcome in ('right', 'refused', 'wrong'))} |")
    counted = "; ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common())
    right = sum(number for outcome, number in outcomes.items() if "right" in outcome and "absent" not in outcome)
    lines += ["", "## A batch of public files", "", f"{len(batch) - 1} files of repositories that no test names,",
              "chosen by their paths and tried with `lm-validity import` before code was changed for them. Right, or",
              f"asked with the right command among those printed: {right} of {len(batch) - 1}; none silently wrong.",
              "In three batches before it (33 of 53, 27 of 43, 25 of 37) none was silently wrong either.",
              f"{counted}.", "",
              f"| {' | '.join(batch[0])} |", "|" + "---|" * len(batch[0]),
              *(f"| {' | '.join(map(_cell, row))} |" for row in batch[1:])]  # fmt: skip
    return "\n".join([*lines, ""])


def roles_page() -> str:
    """The words by which a column's role is sure."""
    lines = ["# The roles of columns", "", MADE, "A header that is exactly one of these words says the role of",
             "its column (capitals, blanks and hyphens aside). Words that a header *has* only weigh, or keep a number",
             "from being a score. [How tables are read](../how_to/importing.md) says the rest.", "",
             "| role | header | words |", "|---|---|---|"]  # fmt: skip
    rows = (line.split("\t") for line in WORDS.read_text(encoding="utf-8").splitlines()[1:])
    lines += [f"| {role} | {where} | {words} |" for role, where, words in rows]
    names = ", ".join(each.name for each in FORMATS)
    lines += ["", "## Files of harnesses", "", f"They are told by what is in them, and need no roles: {names}."]
    return "\n".join([*lines, ""])


PAGES = {
    "cards.md": cards_page,
    "contact.md": contact_page,
    "configuration.md": configuration_page,
    "columns.md": columns_page,
    "commands.md": commands_page,
    "glossary.md": glossary_page,
    "results.md": results_page,
    "roles.md": roles_page,
}


def renew(files: Iterable[tuple[Path, str]]) -> int:
    """Write the files whose text is another, or with --check on the command line only name them. The exit code: 1 where
    a check found one."""
    check = "--check" in sys.argv
    stale = [(path, text) for path, text in files if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path, text in stale:
        if not check:
            write_text(path, text)
        print(f"{path}: {'not up to date' if check else 'written'}")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(renew((FOLDER / name, page()) for name, page in PAGES.items()))
