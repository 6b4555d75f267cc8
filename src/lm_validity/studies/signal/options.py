"""The signal report's conventions, as the command line and the configuration give them."""

from lm_validity.config.load import validate
from lm_validity.config.sections import SignalConventions
from lm_validity.studies.signal.benchmark import Options
from lm_validity.studies.signal.statistics.quality import Weights
from lm_validity.studies.signal.statistics.ranking import RankingWindows


def make_options(**given: object) -> Options:
    """The configuration's section `reports.signal` with the values that are given, also as words (`100,200`).

    Raises InputError naming the option and its value.
    """
    read = validate(given, "report signal", SignalConventions)
    windows = RankingWindows(read.base_window, read.later_window)
    return Options(read.convention, read.ties, read.normalisation, windows, Weights(*read.weights))
