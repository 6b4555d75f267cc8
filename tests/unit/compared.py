"""Two models of a table of scores, compared as they are at their ends."""

from lm_validity.studies.items.answers import model_scores
from lm_validity.studies.items.compare import compare_counted
from lm_validity.tables.counted import Sources


def compare_models(first, second, scores, items=None, benchmarks=None, *, unlike="refused"):
    """The `Comparison`; the arguments are those of `model_scores` and `compare_counted`."""
    counted = model_scores(Sources(scores, None, benchmarks), [first, second], unlike)
    return compare_counted((first, second), counted, items, unlike)
