"""What the agreement report says of a protocol with missing cells."""

from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.statistics.resampling import Interval
from lm_validity.summaries import Missing, page_only

Value = float | Missing
Range = Interval[float] | Missing

# what intervals take for granted where cells are missing that no plan left out
BY_CHANCE = " (intervals assume that cells are missing by chance)"
# the share of the models that any two benchmarks have in common, from which on headlines are those of a whole table
NEARLY_WHOLE = 0.95


@dataclass(frozen=True)
class Pooled:
    """Agreement pooled over pairs of models, and the same assisted by predictions; intervals over models.

    `comparisons`: (pair of models, pair of benchmarks) with all four cells known; `differ`: the two are more than two
    standard errors of their difference apart.
    """

    mean: Value
    interval: Range
    comparisons: int
    by_benchmark: dict[str, Value]
    assisted: Value
    assisted_interval: Range
    assisted_by_benchmark: dict[str, Value]
    differ: bool | Missing


@dataclass(frozen=True)
class PooledRow:
    """Pooled taus by protocol, over comparisons whose cells are known under every protocol that has scores.

    `pairs_of_models`, `models`: in such a comparison; `interval_clustered`: with families as clusters; `change`: from
    direct evaluation to train before test.
    """

    pairs_of_models: int
    models: int
    comparisons: int
    mean: dict[str, Value]
    interval: dict[str, Range]
    interval_clustered: dict[str, Range]
    change: Value
    change_interval: Range
    change_interval_clustered: Range


@dataclass(frozen=True)
class Standing:
    """A model's rank by its mean standardised score over all benchmarks, and the 95% interval for its missing cells."""

    rank: Value
    interval: Range


@dataclass(frozen=True)
class Trust:
    """How far predictions can be trusted. `source`: `audit` of random unmeasured cells, or `left out` measured ones.

    `coverage`: share of `cells` inside their 95% interval before it is widened; `widening`: factor of all intervals;
    `hardly_measured`: families with fewer than 3 measured cells per model.
    """

    source: str
    cells: int
    coverage: Value
    widening: Value
    hardly_measured: list[str]


@dataclass(frozen=True)
class Prediction:
    """A cell that was not measured: its score as the others suggest it, in the metric's own units and direction."""

    model: str
    benchmark: str
    planned: bool
    value: float
    interval: Interval[float]


@dataclass(frozen=True)
class Incomplete:
    """A protocol some of whose cells are missing. `unplanned` of the `missing` are so by plan. `by_scores` of the
    `cells` were chosen by earlier scores: they are in ranks and predictions, and in no agreement.

    `measured`: (models, benchmarks) True where there is a score.
    """

    cells: int
    missing: int
    unplanned: int
    by_scores: int
    kendall_tau: Pooled
    ranks: dict[str, Standing] | Missing
    trust: Trust | Missing
    predictions: list[Prediction] = page_only()
    measured: np.ndarray = page_only()
