"""What the agreement rests on: one benchmark against all others together."""

from lm_validity.missing import is_known, known
from lm_validity.pages.page import Finding, Part
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.intervals import ends
from lm_validity.studies.agreement.reasons import LOST_MODEL
from lm_validity.studies.agreement.statistics import subsets
from lm_validity.studies.agreement.statistics.resampling import transformed_interval
from lm_validity.studies.agreement.wording import value_in_words
from lm_validity.words import UNDER


def one_with_others(data: Data) -> Part:
    """What one benchmark alone tells of the ranking by all others together, by protocol."""
    by_protocol: dict[str, dict[str, object]] = {}
    finding = None
    for p in data.matrix.protocols:
        taus = subsets.one_with_others(data.scores[p])
        value = known(float(taus[0]), "No benchmark has a tau with the others.")
        interval = ends(value, transformed_interval(taus[0], taus[1:], "tau"), LOST_MODEL)
        by_protocol[p] = {"one_with_others": value, "one_with_others_interval": interval}
        if is_known(value):
            over = " The interval is over models." if is_known(interval) else ""
            finding = Finding(
                "Between the ranking by one benchmark picked at random and the ranking by all others together"
                f"{data.assumed}, tau is {value_in_words(value, interval)} {UNDER[p]}.",
                f"No benchmark is on both sides.{over}",
            )
    return Part({"subsets": by_protocol}, findings=[finding])
