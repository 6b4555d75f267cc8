"""Values of a summary on their way to a page: into sentences, tables and charts, missing ones included."""

import numpy as np
import pandas as pd

from lm_validity.studies.agreement.incomplete.summary import BY_CHANCE
from lm_validity.studies.agreement.summary import AgreementSummary, Range, Value
from lm_validity.summaries import Missing, is_known, number
from lm_validity.words import decimal, with_interval

MOST_DRAWN = 150  # models that a figure with a row for each one shows


def value_in_words(value: Value, interval: Range | None = None, digits: int = 2, *, signed: bool = False) -> str:
    """`0.52 (95% interval 0.48 to 0.56)`, the number alone without an interval, `unknown` without a number."""
    return with_interval(number(value), interval if is_known(interval) else None, digits, signed=signed)


def in_words(interval: Range, *, signed: bool = False) -> str:
    """`0.48 to 0.56`; `unknown` without an interval."""
    if isinstance(interval, Missing):
        return "unknown"
    return " to ".join(decimal(float(end), signed=signed) for end in interval)


def plotted(frame: pd.DataFrame) -> pd.DataFrame:
    """A table's frame for a chart: missing values are NaN."""
    concerned = [name for name, values in frame.items() if any(isinstance(value, Missing) for value in values)]
    return frame.assign(
        **{name: [np.nan if isinstance(value, Missing) else value for value in frame[name]] for name in concerned}
    )


def over_both(*, partly: bool) -> str:
    """The end of a sentence that compares the protocols where that leaves cells out."""
    return ", over what is known under both protocols" if partly else ""


def shown_mean(compared: Value, own: Value, interval: Range | None) -> str:
    """A mean of a comparison; with the interval where it is that of the protocol's `own` mean."""
    return value_in_words(compared, interval if compared == own else None)


def assumed(summary: AgreementSummary) -> str:
    """What intervals of a table that lacks many cells take for granted, said before them."""
    return BY_CHANCE if summary.lacks_many else ""
