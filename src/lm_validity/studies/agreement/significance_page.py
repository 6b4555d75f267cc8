"""What the page shows of significant differences: agreement on these alone, contradictions, aligned rankings."""

import numpy as np
import pandas as pd

from lm_validity.missing import Missing, is_known
from lm_validity.pages import figures
from lm_validity.pages.figures import bump, bump_width
from lm_validity.pages.page import Figure, Part, Section, Table
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.significance import MOST_MODELS, Alignment, Significance
from lm_validity.studies.agreement.similar_page import by_protocol as grids_by_protocol
from lm_validity.studies.agreement.similar_page import heatmap_notes, tau_heatmaps
from lm_validity.studies.agreement.tau import category_grid
from lm_validity.studies.agreement.wording import over_both, plotted, shown_mean, value_in_words
from lm_validity.tables.schema import DIRECT, PROTOCOLS
from lm_validity.words import UNDER, count, no_scores

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
    grids = {p: tau.tau for p, tau in by_protocol.items()}
    of_pairs = grids_by_protocol("significance_by_pair", grids, "{}, all pairs")
    charts += tau_heatmaps(of_pairs, names, names, without_diagonal=True, row_height=16)
    categories = list(significance.direct.by_category)
    if categories:
        grids = {p: category_grid(tau.by_category) for p, tau in by_protocol.items()}
        of_categories = grids_by_protocol("significance_by_category", grids, "{}, categories")
        charts += tau_heatmaps(of_categories, categories, categories, number_format=".2f", row_height=34)
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
        hint="and pairs of models that two benchmarks contradict each other on",
        finding="When models that do not differ significantly count as tied, the mean tau is "
        f"{' and '.join(parts)}{over_both(partly=means != own_means)}{addition}.",
        explanation="Two models differ significantly if their scores are more than 1.96 standard errors of the "
        "difference apart. If item results are known, McNemar's test decides. Tau is computed over pairs of "
        "models, since a tie of A with B and of B with C does not mean that A ties with C.",
        figures=charts,
        notes=heatmap_notes(names, names),
        tables=[
            Table(
                "contradictions",
                "Contradictions: pairs of models that the two benchmarks order significantly in opposite ways",
                _contradictions(data, significance),
                folded=True,
            )
        ],
    )
    return Part(summary, section)


def _contradictions(data: Data, significance: Significance) -> pd.DataFrame:
    """One row per pair of benchmarks: the model pairs that both order significantly, but oppositely, by protocol."""
    names, (first, second) = np.array(data.tasks, dtype=object), np.triu_indices(len(data.tasks), 1)
    frame = pd.DataFrame({"benchmark": names[first], "with": names[second]})
    for p, opposite in significance.contradictions.items():
        counts = opposite[first, second].astype(int)
        frame[LABELS[p]] = counts if data.matrix.has(p) else [Missing(no_scores(p))] * len(frame)
    return frame


# ----------------------------------------------------------------------------------------------------------------------
# Two rankings side by side, rearranged to agree as far as the significant differences allow.


def aligned_rankings(data: Data, rows: list[Alignment]) -> Part:
    """Bump plots of the pair that is drawn, and the figures of all pairs that were aligned."""
    summary, notes, charts, sentences, names = {"alignment": rows}, _method_notes(data), [], [], ""
    for row in rows:
        if row.places is None:
            continue
        names, label = " and ".join(row.benchmarks), LABELS[row.protocol]
        charts.append(
            Figure(
                f"bump_{row.protocol}",
                label,
                bump(row.places, data.matrix.families),
                caption=f"{row.aligned_crossings} of {row.crossings} crossings remain. Select a family to see its rank "
                "bands.",
                min_width=bump_width(data.matrix.labels),
            )
        )
        sentences.append(
            f"{label}: {count(row.opposite_significant_pairs, 'pair')} of models in significant contradiction, tau "
            f"{value_in_words(row.tau)} as scored and {value_in_words(row.aligned_tau)} aligned."
        )
    if not charts:
        return Part(summary, notes=notes)
    table = pd.DataFrame(
        {"benchmark": row.benchmarks[0], "with": row.benchmarks[1], **vars(row), "protocol": LABELS[row.protocol]}
        for row in rows
    ).drop(columns=["benchmarks", "places"])
    section = Section(
        f"Two benchmarks side by side: {names}",
        hint="rearranged to agree as far as significant differences allow",
        finding=" ".join(sentences),
        explanation="Two models are in significant contradiction if each benchmark orders them significantly, and in "
        "opposite ways. Unless `--align` names two benchmarks, the page shows the two with the most contradictions, "
        "of one category if categories are known. To align them, both rankings are rearranged step by step to agree "
        "while every significant difference keeps its order. The crossings that remain could not be removed "
        "in this way. A rank band holds every rank that a model can have if all significant differences are kept.",
        figures=charts,
        tables=[
            Table(
                "alignment",
                "Aligned pairs of benchmarks",
                table,
                formats={"tau": ".3f", "aligned_tau": ".3f"},
                labels={
                    "crossings": "crossings as scored",
                    "aligned_tau": "tau after alignment",
                    "aligned_crossings": "crossings after alignment",
                    "opposite_significant_pairs": "pairs in significant contradiction",
                    "violations": "significant differences broken (should be 0)",
                },
                folded=True,
            )
        ],
    )
    return Part(summary, section, notes=notes)


def _method_notes(data: Data) -> list[str]:
    """Which rankings are not aligned, which tau is used, and how significance differs from a published one."""
    notes = []
    if len(data.matrix.models) > MOST_MODELS:
        notes.append(f"Rankings of more than {MOST_MODELS} models are not aligned.")
    if data.variant != "b":
        notes.append(
            f"Kendall's tau-{data.variant} instead of tau-b: the mean and its change have no interval, ceiling or "
            "correction. Models of similar size, families, perplexity and parts left out use tau-b, the test "
            f"tau-{data.variant}."
        )
    if any(source.endswith("lm-harmony") for source in data.matrix.sources):
        notes.append(
            "Significance: two models are tied where they differ by at most 1.96 standard errors of their difference, "
            "and tau-b is taken over pairs of models. The paper prints 0.58 and 0.77 for its own, unpublished "
            "definition, which does not follow from its published scores; the figures here are this definition's."
        )
    return notes
