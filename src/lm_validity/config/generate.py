"""Writes what is generated from the configuration's models: the comments of config/config.yaml and its JSON schema.

    python -m lm_validity.config.generate          # rewrite both files, keeping the demo's values
    python -m lm_validity.config.generate --check  # exit 1 where a file is not what would be written (in the tests)

The values of config/config.yaml are edited by hand; every key is then written out with its description.
"""

import json
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lm_validity.config.load import validate
from lm_validity.config.sections import Configuration
from lm_validity.files import write_text

DEMO = Path("config/config.yaml")
SCHEMA = Path("config/schema.json")
WIDTH = 110
HEADER = """\
# yaml-language-server: $schema=schema.json
# The demo: a miniature world on this machine, nothing to download. `make demo` runs it.
# Every key is here with its meaning. Copy the file, change what you need, and pass it with --configfile; a key you
# leave out has its default. Comments are generated (python -m lm_validity.config.generate); values are yours.
"""


def render_yaml(configuration: Configuration) -> str:
    """The configuration as YAML, each key under its description."""
    return HEADER + "\n".join(_section_lines(configuration, 0)) + "\n"


def render_schema() -> str:
    """JSON schema of the configuration, for editors."""
    return json.dumps(Configuration.model_json_schema(), indent=1) + "\n"


def _section_lines(section: BaseModel, depth: int) -> list[str]:
    lines = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        indent = "  " * depth
        if depth == 0:
            lines.append("")
        comment = " ".join((field.description or "").split())
        default = _default_comment(field, value)
        lines += [f"{indent}# {line}" for line in textwrap.wrap(comment + default, WIDTH - len(indent) - 2)]
        if isinstance(value, BaseModel):
            lines += [f"{indent}{name}:", *_section_lines(value, depth + 1)]
        elif isinstance(value, dict) and all(isinstance(one, BaseModel) for one in value.values()):
            lines.append(f"{indent}{name}:")
            lines += [f"{indent}  {key}: {_inline(one.model_dump(mode='json'))}" for key, one in value.items()]
        else:
            lines.append(f"{indent}{name}: {_inline(_plain(value))}")
    return lines


def _default_comment(field: FieldInfo, value: object) -> str:
    """What the default is, where the demo differs from it."""
    if field.is_required() or isinstance(value, BaseModel | dict) or field.default == value:
        return ""
    if isinstance(field.default, BaseModel | dict):
        return ""
    return f" (Default: {_inline(_plain(field.default))})"


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


def main() -> int:
    """Renew the demo's configuration and the schema."""
    configuration = validate(yaml.safe_load(DEMO.read_text(encoding="utf-8")), str(DEMO))
    return renew([(DEMO, render_yaml(configuration)), (SCHEMA, render_schema())])


if __name__ == "__main__":
    sys.exit(main())
