"""Two simulations beside the bias report, each a page of its own: principal components, and the priors alone."""

from itertools import product
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Page, Section, Table, write_page
from lm_validity.studies.bias.statistics.effects import simulate_pca
from lm_validity.studies.bias.statistics.latent import FORMULAS, build_design
from lm_validity.studies.bias.statistics.model import equal_tailed, prior_predictive
from lm_validity.studies.bias.trials import read_trials, setting_counts

PCA_RANKS, PCA_SIZES = (5, 10, 15, 20), (25, 50, 100, 200, 500)


def write_pca_simulation(output: str | Path, splits: int) -> None:
    """Write the page of the simulation with principal components: `splits` splits for each rank and n."""
    rows = []
    for rank, n in product(PCA_RANKS, PCA_SIZES):
        base, extra, test = simulate_pca(rank, n, splits).T
        for_effects = [(values.mean(), values.std(ddof=1) / np.sqrt(splits)) for values in (test - extra, extra - base)]
        rows.append((rank, n, *for_effects[0], *for_effects[1]))
    frame = pd.DataFrame(rows, columns=["effective_rank", "n", "bias", "bias_se", "boost", "boost_se"])
    bands = frame.assign(rank=frame["effective_rank"].astype(str), low=frame["bias"] - 1.96 * frame["bias_se"],
                         high=frame["bias"] + 1.96 * frame["bias_se"])  # fmt: skip
    colors = figures.cycled_colors(bands["rank"].drop_duplicates())
    chart = figures.lines(
        bands[["rank", "n", "bias", "low", "high"]],
        x="n",
        y="bias",
        color=figures.listed_color("rank", colors, "Effective rank", columns=2),
        x_title="n",
        y_title="Bias of R²",
        tooltip=figures.tooltips(rank="Rank", n="n", bias="Bias|.3f"),
    )
    worst = frame.loc[frame["bias"].idxmax()]
    finding = (
        f"Principal components that are fitted on the test rows inflate R² by {worst['bias']:.2f} (standard error "
        f"{worst['bias_se']:.2f}) at rank {worst['effective_rank']:.0f} and n = {worst['n']:.0f}, the worst case here."
    )
    section = Section(
        "Where unlabelled test data do inflate a score",
        explanation=(
            "The bias study's three arms on synthetic data. R² is the share of the target's variance that a linear "
            "regression explains on the test rows. base regresses on the features themselves. The other two regress on "
            "principal components: those of other rows (extra), or those of the test rows (test). bias is test less "
            "extra."
        ),
        figures=[Figure("pca_simulation", "Bias of R² by n", chart, f"Mean of {splits} splits with 95% bands.")],
        tables=[
            Table(
                "pca_simulation",
                "Bias and boost of R²",
                frame,
                formats=dict.fromkeys(["bias", "boost"], "+.3f") | dict.fromkeys(["bias_se", "boost_se"], ".3f"),
            )
        ],
    )
    write_page(Page("pca", "A simulation with principal components", [Finding(finding)], [section]), output)


def write_prior_simulation(trials: str | Path, output: str | Path, formula: str, draws: int) -> None:
    """Write the page of what `formula`'s priors say before any data, in the layout of a table of trials."""
    if formula not in FORMULAS:
        raise InputError(f"unknown formula {formula!r}.", f"choose {', '.join(FORMULAS)}.")
    # settings of one study have one layout: the smallest is simulated fastest
    layout = min(setting_counts(read_trials(trials)).values(), key=len)
    accuracies, differences = prior_predictive(build_design(layout, FORMULAS[formula]), draws, np.random.default_rng(0))
    low, high = equal_tailed(differences)
    of_accuracies = _histogram(accuracies[np.isfinite(accuracies)], "Accuracy", 0.0)
    of_differences = _histogram(differences, "Average accuracy difference", -1.0)
    section = Section(
        "What the priors say",
        explanation=(
            "Data sets simulated from the priors alone, in the layout of these trials. Where the priors allow nearly "
            "every accuracy, and differences far larger than the observed ones, a narrow posterior comes from the data."
        ),
        figures=[
            Figure("prior_accuracy", "Accuracy under the prior", of_accuracies),
            Figure("prior_difference", "Average difference under the prior", of_differences),
        ],
    )
    finding = Finding(
        f"Before any data, the model {formula} expects an average difference between {low:+.2f} and {high:+.2f} (89%).",
        f"{draws} simulated data sets.",
    )
    write_page(Page("prior", "What the priors of the bias study say", [finding], [section]), output)


def _histogram(values: np.ndarray, title: str, low: float) -> figures.Layers:
    """Of values from `low` to 1."""
    number, edges = np.histogram(values, bins=40, range=(low, 1.0))
    frame = pd.DataFrame({"start": edges[:-1], "end": edges[1:], "share": number / max(number.sum(), 1)})
    bars = alt.Chart(figures.chart_data(frame)).mark_bar(color=figures.CATEGORY_COLORS[0], opacity=0.8)
    axis = alt.Axis(values=np.linspace(low, 1.0, 6 if low == 0 else 5).tolist(), format=".1f")
    bars = bars.encode(
        x=alt.X("start:Q", title=title, bin="binned", axis=axis),
        x2=alt.X2("end:Q"),
        y=alt.Y("share:Q", title="Share of draws"),
        tooltip=figures.tooltips(start="From|.3f", end="To|.3f", share="Share|.3f"),
    )
    return figures.layered(bars, height=200)
