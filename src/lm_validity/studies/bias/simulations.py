"""Two simulations beside the bias report, each a page of its own: principal components, and the priors alone."""

from itertools import product
from pathlib import Path

import numpy as np

from lm_validity.errors import InputError
from lm_validity.pages.page import Finding, Page
from lm_validity.results.put import Column, Rows
from lm_validity.results.sections import Dots, Lines, Says, SectionOf, Series, TableOf, write_rows
from lm_validity.studies.bias.statistics.effects import simulate_pca
from lm_validity.studies.bias.statistics.latent import FORMULAS, build_design
from lm_validity.studies.bias.statistics.model import equal_tailed, prior_predictive
from lm_validity.studies.bias.trials import read_trials, setting_counts

PCA_RANKS, PCA_SIZES = (5, 10, 15, 20), (25, 50, 100, 200, 500)
OF_PCA = {name: Column("pca_effect", name, "+.3f", where={"effect": name}) for name in ("bias", "boost")}
PCA = SectionOf(
    "Where unlabelled test data do inflate a score",
    Says(
        "pca_effect",
        "Principal components that are fitted on the test rows inflate R² by {value} ({interval}) at {name}, the worst "
        "case here.",
        {"effect": "bias"},
        {"rank": "rank {}", "n": "n = {}"},
    ),
    TableOf("pca_simulation", {"rank": "effective rank", "n": "n"}, OF_PCA, "Bias and boost of R²"),
    [
        Lines(
            [Series("pca_effect", {"n": "{}"}, {"rank": rank, "effect": "bias"}, mark, f"rank {rank}")
             for rank, mark in zip(PCA_RANKS, "dtks", strict=True)],
            "n", "Bias of R² by n, with 95% bands", "n",
        )
    ],
    "The bias study's three arms on synthetic data. R² is the share of the target's variance that a linear regression "
    "explains on the test rows. base regresses on the features themselves. The other two regress on principal "
    "components: those of other rows (extra), or those of the test rows (test). bias is test less extra.",
)  # fmt: skip
PRIOR = SectionOf(
    "What the priors say",
    Says("prior_difference", "Before any data the average difference lies within {interval} points."),
    TableOf(
        "priors",
        {"formula": "formula"},
        {
            f"{of}_{part}": Column(f"prior_{of}", f"{of}, {part}", "+.3f", part)
            for of in ("accuracy", "difference")
            for part in ("low", "value", "high")
        },
        "Simulated data sets",
    ),
    [
        Dots(
            [
                Series("prior_accuracy", {"formula": "accuracy"}, inner="middle"),
                Series("prior_difference", {"formula": "average difference"}, inner="middle"),
            ],
            "Accuracy and average difference in points under the priors alone: the median, the middle half (bar) and "
            "the middle 89%",
        )
    ],
    "Data sets simulated from the priors alone, in the layout of these trials. Where the priors allow nearly every "
    "accuracy, and differences far larger than the observed ones, a narrow posterior comes from the data.",
)


def write_pca_simulation(output: str | Path, splits: int) -> None:
    """Write the page of the simulation with principal components: `splits` splits for each rank and n."""
    rows = Rows("pca")
    for rank, n in product(PCA_RANKS, PCA_SIZES):
        base, extra, test = simulate_pca(rank, n, splits).T
        for effect, values in (("bias", test - extra), ("boost", extra - base)):
            mean, error = float(values.mean()), float(values.std(ddof=1) / np.sqrt(splits))
            ends = {"splits": (mean - 1.96 * error, mean + 1.96 * error)}
            rows.put("pca_effect", mean, "r_squared", ends, counted=("splits", splits), rank=rank, n=n, effect=effect)
    section = PCA.drawn(rows)
    finding = Finding(section.finding)
    write_rows(Page("pca", "A simulation with principal components", [finding], [section]), rows, output)


def write_prior_simulation(trials: str | Path, output: str | Path, formula: str, draws: int) -> None:
    """Write the page of what `formula`'s priors say before any data, in the layout of a table of trials."""
    if formula not in FORMULAS:
        raise InputError(f"unknown formula {formula!r}.", f"choose {', '.join(FORMULAS)}.")
    # settings of one study have one layout: the smallest is simulated fastest
    layout = min(setting_counts(read_trials(trials)).values(), key=len)
    accuracies, differences = prior_predictive(build_design(layout, FORMULAS[formula]), draws, np.random.default_rng(0))
    rows, levels = Rows("prior").of(formula=formula), {"prior": 0.89, "middle": 0.5}
    for name, values in (("accuracy", accuracies[np.isfinite(accuracies)]), ("difference", differences)):
        ends = {over: equal_tailed(values, level) for over, level in levels.items()}
        counted = ("data sets", draws)
        rows.put(f"prior_{name}", float(np.median(values)), "accuracy", ends, level=levels, counted=counted)
    section = PRIOR.drawn(rows)
    finding = Finding(section.finding, f"{draws} simulated data sets.")
    write_rows(Page("prior", "What the priors of the bias study say", [finding], [section]), rows, output)
