"""Scores of files, read as `lm-validity import` does."""

import dataclasses
import tempfile
from dataclasses import replace

from lm_validity.cli import imports
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.formats.score_files import ImportOptions


def read_files(paths, options, log):
    """The scores that an import of the files writes. `log` says whether it is strict, and gets what the import says."""
    with tempfile.TemporaryDirectory() as folder:
        scores, found = import_files(paths, folder, replace(options, strict=log.strict))
    vars(log).update(vars(found))
    return scores


def options_of(**said) -> ImportOptions:
    """What a reader says, with the rows of a reading that the command's hidden options stand for."""
    fields = {field.name for field in dataclasses.fields(ImportOptions)}
    hidden = {name: value for name, value in said.items() if name not in fields}
    given = {name: value for name, value in said.items() if name in fields}
    return replace(imports._import_options([], **hidden).options, **given)
