"""Groups of models whose lead the agreement report asks about: what `--group` and `agreement.groups` may say.

    released>=2023-11      models released in that month or later
    family=Qwen            models of a family
    COLUMN                 models with a 1 in a column of 0 and 1

Only the standard library and pydantic are imported: the Snakefile reads this at parse time.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import BeforeValidator, create_model

from lm_validity.config.rows import SheetRow, bad_value
from lm_validity.errors import InputError, did_you_mean

KNOTS = (1e22, 1e23)  # FLOP at which the line of scores against compute may bend: those of the paper
_FORMS = "one of 'released>=2023-11', 'family=NAME' and the name of a column of 0 and 1, such as 'instruction_tuned'."
_DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?")
_DATE_HINT = "write a month or a day, such as 2023-11 or 2023-11-05."
Row = TypeVar("Row", bound=SheetRow)


def _day(text: str) -> date | None:
    """The day of `2023-11-05`, the first day of `2023-11`; None for any other text, a number of seconds among them."""
    try:
        return date.fromisoformat(f"{text}-01"[:10]) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def _read_date(value: object) -> object:
    if isinstance(value, str) and (value := _day(value)) is None:
        raise bad_value("not a date", _DATE_HINT)
    return value


Released = Annotated[date, BeforeValidator(_read_date)]


class Group(NamedTuple):
    """A group as it was written; `value` is what its column must hold: a day or later, a family, or yes."""

    text: str
    column: str
    value: date | str | Literal[True] = True

    @property
    def words(self) -> str:
        """Its models, in a sentence."""
        if isinstance(self.value, date):
            return f"models released since {self.value:%B %Y}"
        return f"models of the family {self.value}" if isinstance(self.value, str) else f"{self.column} models"

    def has(self, value: object) -> bool | None:
        """Whether a model whose column holds `value` is in it; None where nothing is known of the model."""
        if value is None:
            return None
        if isinstance(self.value, date):
            return isinstance(value, date) and value >= self.value
        return value == self.value


def parse_group(text: str) -> Group:
    """A group from `--group` or the configuration. Raises InputError."""
    column, sign, value = (part.strip() for part in re.fullmatch(r"([^=<>]*)([=<>]*)(.*)", text, re.DOTALL).groups())  # type: ignore[union-attr]
    if column == "released" and sign == ">=":
        day = _day(value)
        if day is None:
            raise InputError(f"group {text!r}: {value!r} is not a date.", _DATE_HINT)
        return Group(text, column, day)
    if column == "family" and sign == "=" and value:
        return Group(text, column, value)
    if sign or column in ("", "released", "family"):
        raise InputError(f"group {text!r}: not a group of models.", _FORMS)
    return Group(text, column)


def with_columns(kind: type[Row], groups: Iterable[Group]) -> type[Row]:
    """The kind of row with a column of 0 and 1 for each group that names one of its own."""
    columns = {group.column: (bool | None, None) for group in groups if group.column not in kind.model_fields}
    return create_model(kind.__name__, __base__=kind, __module__=kind.__module__, **columns) if columns else kind  # type: ignore[call-overload]


def members(
    group: Group, values: Sequence[object], compute_known: Sequence[bool], path: str | Path
) -> list[bool | None]:
    """Which models are in the group, by what its column holds (None: unknown).

    Raises InputError where no compute is known, and where no model of known compute is in the group or all are: a lead
    needs both sides. `path`: the models sheet.
    """
    memberships = [group.has(value) for value in values]
    sides = {side for side, is_known in zip(memberships, compute_known, strict=True) if is_known and side is not None}
    where = f"{path}: group {group.text!r}"
    if not any(compute_known):
        hint = "fill in parameters_b and tokens_b: leads are compared at equal pretraining compute."
        raise InputError(f"{where}: no model's compute is known.", hint)
    if not any(value is not None for value in values):
        raise InputError(f"{where}: no model has a value in the column {group.column!r}.", "fill it in, or add it.")
    if group.value is True and any(value not in (None, True, False) for value in values):
        raise InputError(f"{where}: the column {group.column!r} does not hold 0 and 1.", _FORMS)
    if sides != {True, False}:
        quantifier = "no" if True not in sides else "every"
        raise InputError(
            f"{where}: {quantifier} model whose compute and {group.column!r} are known is in it.", _hint(group, values)
        )
    return memberships


def _hint(group: Group, values: Collection[object]) -> str:
    usual = "a group has some models in it and others outside."
    if isinstance(group.value, str):
        return did_you_mean(group.value, [value for value in values if value is not None], usual)
    return usual
