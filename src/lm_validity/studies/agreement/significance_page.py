"""What the page shows of significant differences: agreement on these alone, contradictions, aligned rankings."""

import pandas as pd

from lm_validity.missing import is_known
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Part, Section
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.significance import Significance
from lm_validity.studies.agreement.wording import over_both, plotted, shown_mean
from lm_validity.tables.schema import DIRECT, PROTOCOLS
from lm_validity.words import UNDER

LABELS = figures.PROTOCOL_LABELS


def significant_differences(data: Data, significance: Significance) -> Part:
    """Agreement where only significant differences count: bars, grid, heatmaps, contradictions."""
    summary, names, by_protocol = {"significance_tau": significance}, data.tasks, significance.by_protocol
    if not any(is_known(tau.mean) for tau in by_protocol.values()):
        return Part(summary)
    frame = plotted(
        pd.DataFrame(
            {
                "benchmark": name,
                "protocol": label,
                "tau": by_protocol[p].by_benchmark[name],
                "pairs": by_protocol[p].significant_pairs[name],
            }
            for name in names
            for p, label in LABELS.items()
        )
    )
    direct = frame[frame["protocol"] == LABELS[DIRECT]].sort_values("tau", ascending=False)
    chart = figures.grouped_bars(
        frame,
        x="benchmark",
        value="tau",
        title="Mean tau, significant differences only",
        x_order=direct["benchmark"].tolist(),
        tooltip=figures.tooltips(
            benchmark="Benchmark", protocol="Protocol", tau="tau|.3f", pairs="Pairs of models that differ|d"
        ),
    )
    charts = [Figure("significance_by_benchmark", "Mean tau by benchmark", chart, wide=True, min_width=460)]
    means, own_means = significance.compared_means, {p: tau.mean for p, tau in by_protocol.items()}
    parts = [
        f"{shown_mean(means[p], own_means[p], by_protocol[p].interval)} {UNDER[p]}"
        for p in PROTOCOLS
        if is_known(means[p])
    ]
    addition = (
        f". {significance.improved_pairs} of {significance.compared_pairs} pairs agree more under train before test"
        if is_known(significance.improved_pairs)
        else ""
    )
    section = Section(
        "Counting significant differences only",
        hint="models that do not differ significantly count as tied",
        finding="When models that do not differ significantly count as tied, the mean tau is "
        f"{' and '.join(parts)}{over_both(partly=means != own_means)}{addition}.",
        explanation="Two models differ significantly if their scores are more than 1.96 standard errors of the "
        "difference apart. If item results are known, McNemar's test decides. Tau is computed over pairs of "
        "models, since a tie of A with B and of B with C does not mean that A ties with C.",
        figures=charts,
    )
    return Part(summary, section)
