"""Stands in for the package while a clone in which nothing is installed is linted. Nothing can run with it."""


class Absent:
    """Any attribute, item or result of a call is absent too; it is false and has nothing in it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, key):
        return self

    def __call__(self, *arguments, **named):
        return self

    def __iter__(self):
        return iter(())

    def __bool__(self):
        return False

    def __str__(self):
        return "absent"


InputError = ValueError
load = status = inputs = Grid = RULES = Absent()
reports_of = tables_of = prompt_settings = Sheets = Absent()
SOURCE_COLUMNS = PRETRAINING_VERSION = None
