"""What the agreement rests on: one benchmark against all others together, each family or benchmark left out."""

from dataclasses import dataclass

from lm_validity.missing import known
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.intervals import Range, Value, ends
from lm_validity.studies.agreement.reasons import LOST_MODEL
from lm_validity.studies.agreement.statistics import subsets
from lm_validity.studies.agreement.statistics.resampling import transformed_interval


@dataclass(frozen=True)
class OneWithOthers:
    """Mean tau of the ranking by one benchmark with that by all others together, and its interval over models."""

    one_with_others: Value
    one_with_others_interval: Range


def one_with_others(data: Data) -> dict[str, OneWithOthers]:
    """By protocol."""
    by_protocol = {}
    for p in data.matrix.protocols:
        taus = subsets.one_with_others(data.scores[p])
        value = known(float(taus[0]), "No benchmark has a tau with the others.")
        interval = ends(value, transformed_interval(taus[0], taus[1:], "tau"), LOST_MODEL)
        by_protocol[p] = OneWithOthers(value, interval)
    return by_protocol


# ----------------------------------------------------------------------------------------------------------------------
# Without one family, benchmark or model.


@dataclass(frozen=True)
class FiguresWithoutPart:
    """The headline figures without one `kind` of part: a family, a benchmark or a model, of this `name`."""

    kind: str
    name: str
    mean_tau: Value
    first_component: Value


def left_out(data: Data) -> dict[str, list[FiguresWithoutPart]]:
    """By protocol the headline figures without each family, benchmark and model."""
    reason = "Without this part, too little of the table would be left."
    return {
        p: [
            FiguresWithoutPart(part.kind, part.name, known(part.mean_tau, reason), known(part.first_component, reason))
            for part in subsets.leave_one_out(
                data.scores[p], list(data.matrix.models), data.tasks, data.matrix.families
            )
        ]
        for p in data.matrix.protocols
    }
