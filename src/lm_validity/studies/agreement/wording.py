"""How the agreement reports word values and intervals, and what their charts draw of a table."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lm_validity.missing import Missing, is_known, known, number
from lm_validity.studies.agreement.intervals import Range, Value
from lm_validity.studies.agreement.statistics.noise import shown_ceiling
from lm_validity.words import UNDER, decimal, with_interval

MOST_DRAWN = 150  # models that a figure with a row for each one shows
WHICH_INTERVAL = (
    "There are two intervals. The first holds for other models of the same families. The second treats families as "
    "clusters and also holds for models of other families. For a claim about language models in general, quote the "
    "second, or the first where it is wider. The second is wide where families are few. In simulations with five "
    "families of unequal size it contained the truth in 94% to 98% of cases."
)


def value_in_words(value: Value, interval: Range | None = None, digits: int = 2, *, signed: bool = False) -> str:
    """`0.52 (95% interval 0.48 to 0.56)`, the number alone without an interval, `unknown` without a number."""
    return with_interval(number(value), interval if is_known(interval) else None, digits, signed=signed)


def in_words(interval: Range, *, signed: bool = False) -> str:
    """`0.48 to 0.56`; `unknown` without an interval."""
    if isinstance(interval, Missing):
        return "unknown"
    return " to ".join(decimal(float(end), signed=signed) for end in interval)


def both_intervals(value: Value, interval: Range, clustered: Range, *, signed: bool = False) -> str:
    """A value with its interval over models and, where there is one, that over families."""
    text = value_in_words(value, interval, signed=signed)
    if isinstance(clustered, Missing):
        return text
    if isinstance(interval, Missing):
        return f"{value_in_words(value, clustered, signed=signed)[:-1]} over families)"
    low, high = (decimal(end, signed=signed) for end in clustered)
    return f"{text[:-1]} over models, {low} to {high} over families)"


def shown_mean(compared: Value, own_mean: Value, interval: Range | None) -> str:
    """A mean of a comparison; with the interval where it is that of the protocol's `own_mean` mean."""
    return value_in_words(compared, interval if compared == own_mean else None)


def which_interval(clustered: Sequence[Range]) -> str:
    """What both intervals are for, or why there is none over families."""
    if any(is_known(interval) for interval in clustered):
        return WHICH_INTERVAL
    reasons = [interval.reason for interval in clustered if isinstance(interval, Missing)]
    return f"There is no interval over families. {reasons[0]}"


def over_both(*, partly: bool) -> str:
    """The end of a sentence that compares the protocols where that leaves cells out."""
    return ", over what is known under both protocols" if partly else ""


def shown_limit(ceiling: Value, tau: Value) -> Value:
    """The noise ceiling of a tau where a picture or a sentence may name it."""
    return known(shown_ceiling(number(ceiling), number(tau)), "It is not shown.")


def noise_leaves(taus: dict[str, tuple[Value, Value]]) -> str:
    """The noise ceilings that are shown, in a sentence to follow that on the taus. `taus`: with their ceilings."""
    limits = {p: shown_limit(ceiling, tau) for p, (tau, ceiling) in taus.items()}
    parts = [f"{value_in_words(limit)} {UNDER[p]}" for p, limit in limits.items() if is_known(limit)]
    return f" Noise would leave benchmarks that order all models alike {' and '.join(parts)}." if parts else ""


def with_ceiling(frame: pd.DataFrame) -> pd.DataFrame:
    """`plotted`, with the `ceiling` of each `tau` where it is shown."""
    drawn = plotted(frame)
    return drawn.assign(ceiling=shown_ceiling(drawn["ceiling"].to_numpy(float), drawn["tau"].to_numpy(float)))


def plotted(frame: pd.DataFrame) -> pd.DataFrame:
    """A table's frame for a chart: missing values are NaN."""
    concerned = [name for name, values in frame.items() if any(isinstance(value, Missing) for value in values)]
    return frame.assign(
        **{name: [np.nan if isinstance(value, Missing) else value for value in frame[name]] for name in concerned}
    )
