"""Scores of files, read as `lm-validity import` does."""

import json
import tempfile
from dataclasses import replace

from lm_validity.tables.formats.import_files import import_files


def read_files(paths, options, log):
    """The scores that an import of the files writes. `log` says whether it is strict, and gets what the import says."""
    with tempfile.TemporaryDirectory() as folder:
        scores, found = import_files(paths, folder, replace(options, strict=log.strict))
    vars(log).update(vars(found))
    return scores


def put(path, content):
    """Write a text, or a value as JSON; the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path
