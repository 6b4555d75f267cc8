"""Writes what is generated from the configuration's models: its JSON schema, and every key as YAML.

    python -m lm_validity.config.generate          # rewrite config/schema.json
    python -m lm_validity.config.generate --check  # exit 1 where it is not what would be written (in the tests)

A field without a description is no key: it has one value in every run.
"""

import json
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

import yaml
from pydantic import BaseModel

from lm_validity.config.load import section_of
from lm_validity.config.sections import BiasSettings, Configuration, MiniatureSettings
from lm_validity.files import Document, write_text

SCHEMA = Path("config/schema.json")
WIDTH = 110


def render_yaml(configuration: Configuration) -> str:
    """The configuration as YAML, each key under its description."""
    return "\n".join(_section_lines(configuration, 0))[1:] + "\n"


def render_defaults() -> str:
    """Every key with its default as YAML, those too of the sections that not every configuration has."""
    return render_yaml(Configuration.model_construct(name="my-run", bias=BiasSettings(), miniature=MiniatureSettings()))


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


def render_schema() -> str:
    """JSON schema of the configuration, for editors."""
    schema = key_schema()
    for section in (schema, *schema["$defs"].values()):
        for field in section["properties"].values():
            if "$ref" in field:
                field.pop("default", None)  # a section's, whose keys have their own
    return json.dumps(schema, indent=1) + "\n"


def _section_lines(section: BaseModel, depth: int) -> list[str]:
    lines = []
    for name, field in type(section).model_fields.items():
        if field.description is None:
            continue
        value = getattr(section, name)
        indent = "  " * depth
        if depth == 0:
            lines.append("")
        comment, default = " ".join((field.description or "").split()), ""
        sections = any(isinstance(setting, BaseModel | dict) for setting in (value, field.default))
        if not (field.is_required() or sections or field.default == value):
            default = f" (Default: {_inline(_plain(field.default))})"
        lines += [f"{indent}# {line}" for line in textwrap.wrap(comment + default, WIDTH - len(indent) - 2)]
        if isinstance(value, BaseModel):
            lines += [f"{indent}{name}:", *_section_lines(value, depth + 1)]
        elif isinstance(value, dict) and all(isinstance(entry, BaseModel) for entry in value.values()):
            lines.append(f"{indent}{name}:")
            lines += [f"{indent}  {key}: {_inline(entry.model_dump(mode='json'))}" for key, entry in value.items()]
        else:
            lines.append(f"{indent}{name}: {_inline(_plain(value))}")
    return lines


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _inline(value: object) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.strip().removesuffix("...").strip()


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
    sys.exit(renew([(SCHEMA, render_schema())]))
