"""What the page shows of Kendall's tau: the mean and each benchmark with the others, pairs, categories."""

from itertools import combinations_with_replacement, product

import numpy as np
import pandas as pd

from lm_validity.missing import Missing, as_columns, is_known, known, number
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.intervals import each
from lm_validity.studies.agreement.pooled import Pooled
from lm_validity.studies.agreement.reasons import NO_TAU, no_clusters
from lm_validity.studies.agreement.significance import Significance
from lm_validity.studies.agreement.similar_page import TAU_LABELS, by_protocol, tau_heatmaps
from lm_validity.studies.agreement.tau import (
    NO_PAIR,
    ByProtocolTau,
    Improvement,
    benchmark_order,
    category_grid,
)
from lm_validity.studies.agreement.wording import (
    both_intervals,
    in_words,
    noise_leaves,
    over_both,
    shown_limit,
    value_in_words,
    with_ceiling,
)
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import UNDER, at_extreme, count, decimal, listing

LABELS = figures.PROTOCOL_LABELS
LEAST_TO_ORDER = 3  # benchmarks: two always share their mean tau with the others


# ----------------------------------------------------------------------------------------------------------------------
# The mean, and each benchmark with the others.


def each_benchmark(data: Data, tau: ByProtocolTau, significance: Significance) -> Part:
    """The mean agreement of each protocol, and each benchmark's with the others."""
    rows = []
    for (i, name), p in product(enumerate(data.tasks), PROTOCOLS):
        intervals, corrected = tau[p].by_benchmark_interval, tau[p].corrected
        rows.append(
            {
                "benchmark": name,
                "category": data.categories[i] or "unknown",
                "protocol": LABELS[p],
                "tau": tau[p].by_benchmark[name],
                **as_columns(intervals if isinstance(intervals, Missing) else intervals[name]),
                "ceiling": tau[p].ceiling_by_benchmark[name],
                "corrected": corrected.by_benchmark[name],
                **as_columns(corrected.by_benchmark_interval[name], "corrected_low", "corrected_high"),
                "significance_tau": significance.by_protocol[p].by_benchmark[name],
            }
        )
    frame, order = pd.DataFrame(rows), benchmark_order(tau, data.tasks)
    chart = figures.interval_dots(
        with_ceiling(frame),
        y="benchmark",
        value="tau",
        mark="ceiling",
        title="Mean tau with the other benchmarks",
        y_order=order,
        tooltip=figures.tooltips(
            benchmark="Benchmark", category="Category", protocol="Protocol", tau="tau|.3f", low="from|.3f",
            high="to|.3f", ceiling="noise ceiling|.3f",
        ),
        offset="protocol",
        row_height=22,
    )  # fmt: skip
    caption = "Dot: mean tau with all other benchmarks. Line: 95% interval over models. Tick: noise ceiling."
    section = Section(
        "Agreement of each benchmark with the others",
        hint="with intervals, noise ceilings and without noise",
        finding=_lowest(data),
        figures=[Figure("tau_by_benchmark", "Mean tau by benchmark", chart, caption=caption, wide=True)],
        tables=[
            Table(
                "tau_by_benchmark",
                "Mean tau by benchmark",
                frame,
                formats=dict.fromkeys(frame.columns[3:], ".3f"),
                labels=TAU_LABELS,
                folded=True,
            )
        ],
    )
    return Part({"kendall_tau": tau}, section, [_mean_finding(data, tau)])


def _lowest(data: Data) -> str:
    """Which benchmark stands apart most, before and after."""
    values = {p: each(data.tasks, data.side_by_side[p].by_benchmark, NO_PAIR) for p in PROTOCOLS}
    direct = {name: number(tau) for name, tau in values[DIRECT].items() if is_known(tau)}
    if len(data.tasks) < LEAST_TO_ORDER or not direct:
        return ""
    lowest = at_extreme(direct, min(direct.values()))
    have, value = ("has" if len(lowest) == 1 else "have"), decimal(direct[lowest[0]])
    sentence = f"{listing(lowest, 4)} {have} the lowest mean tau with the others under direct evaluation: {value}"
    if len(lowest) == len(direct) > 1:
        who = "Each benchmark" if len(direct) == len(data.tasks) else f"Each of {listing(lowest, 4)}"
        sentence = f"{who} has the same mean tau with the others under direct evaluation: {value}"
    tau_after = values[TRAINED][lowest[0]]
    if len(lowest) > 1 or not is_known(tau_after):
        return f"{sentence}."
    return f"{sentence}. Under train before test it has {value_in_words(tau_after)}{over_both(partly=not data.whole)}."


def _mean_finding(data: Data, tau: ByProtocolTau) -> Finding:
    # of a protocol with so few models that there is no interval, the pooled finding says how few
    scored = [p for p in PROTOCOLS if is_known(tau[p].mean) and (p not in data.incomplete or is_known(tau[p].interval))]
    size = f"{count(len(data.matrix.models), 'model')} × {count(len(data.tasks), 'benchmark')}"
    if not scored:
        return Finding("No two benchmarks can be compared.", size)
    parts = [f"{both_intervals(tau[p].mean, tau[p].interval, tau[p].interval_clustered)} {UNDER[p]}" for p in scored]
    cells_words = ", each protocol over all cells it has" if len(scored) > 1 and not data.whole else ""
    if data.incomplete and not data.lacks_many:
        missing = sum(int((~np.isfinite(data.scores[p])).sum()) for p in data.incomplete)
        cells_words += f". {count(missing, 'cell is', 'cells are')} missing, by chance as the intervals assume"
    elif set(scored) & set(data.incomplete):
        cells_words += (
            ". A pair of benchmarks with few models in common counts like any other here. The pooled tau gives it "
            "less weight"
        )
    population = [
        f"{in_words(interval)} {UNDER[p]}"
        for p in scored
        if is_known(interval := tau[p].interval_population_of_categories)
    ]
    uncorrected = [
        f" {UNDER[p].capitalize()}, there is no noise-corrected tau. {corrected.reason}"
        for p in scored
        if is_known(tau[p].ceiling) and isinstance(corrected := tau[p].corrected.mean, Missing)
    ]
    pairs = len(data.tasks) * (len(data.tasks) - 1) // 2
    limits = noise_leaves({p: (tau[p].mean, tau[p].ceiling) for p in scored})
    for p in scored:
        above = tau[p].above_chance
        if isinstance(above, Missing):
            continue
        on = f"{above.above} of {count(above.known, 'benchmark')} with a known chance level"
        limits += f" A model is above chance on {on} {UNDER[p]}"
        if is_known(limit := shown_limit(above.ceiling, above.mean)):
            limits += f"; over these, tau is {value_in_words(above.mean)}, and noise would leave {decimal(limit)}"
        limits += "."
    return Finding(
        f"Two benchmarks' rankings of the models have{data.assumed} a mean Kendall's tau of {' and '.join(parts)}."
        + limits,
        f"{size}, {count(pairs, 'pair')} of benchmarks{cells_words}. Intervals are for other models on these "
        f"benchmarks.{''.join(uncorrected)}{_for_other_benchmarks(data, ' and '.join(population))}",
    )


def _for_other_benchmarks(data: Data, intervals: str) -> str:
    """Which interval a claim on benchmarks in general takes; empty without one."""
    if not intervals:
        return ""
    families = no_clusters(data.matrix.families) is None
    clusters = "families of models and categories of benchmarks" if families else "categories of benchmarks"
    return (
        f" For other models and other benchmarks, with {clusters} as clusters: {intervals}. For a claim about "
        "benchmarks in general, quote this last interval, or one before it that is wider. Those before it are for "
        "these benchmarks only."
    )


def without_noise(data: Data, tau: ByProtocolTau) -> Part:
    """Agreement over all models without measurement error."""
    corrected_taus = {p: tau[p].corrected for p in PROTOCOLS if is_known(tau[p].corrected.mean)}
    if not corrected_taus:
        return Part({})
    parts = [
        f"{both_intervals(corrected.mean, corrected.interval, corrected.interval_clustered)} {UNDER[p]}"
        for p, corrected in corrected_taus.items()
    ]
    ceilings = [f"{value_in_words(tau[p].ceiling)} {UNDER[p]}" for p in corrected_taus]
    finding = Finding(
        f"Over all models, the noise-corrected tau{data.assumed} is {' and '.join(parts)}.",
        "It estimates the tau without the noise that was measured: of items, and of seeds where fine-tuning was "
        "repeated. The observed tau is corrected with a noise ceiling: the tau that would be seen if all benchmarks "
        "ordered the models identically and only this noise set them apart. The "
        f"correction is not a simple division. The ceiling is {' and '.join(ceilings)}.",
    )
    return Part({}, findings=[finding])


# ----------------------------------------------------------------------------------------------------------------------
# The change, over all pairs and by pair.


def change_of_agreement(data: Data, change: Improvement, pooled: dict[str, Pooled]) -> Part:
    """What train before test changes."""
    names, (improved, compared) = data.tasks, data.improved
    summary = {
        "pairs": len(names) * (len(names) - 1) // 2,
        "cells_in_both": int(data.in_both.sum()),
        "models_in_both": len(data.models_in_both),
        "improved_pairs": improved if compared else Missing(data.nothing_compared("tau")),
        "compared_pairs": compared,
        "improvement": change,
    }
    return Part(summary, findings=[_change_finding(data, change, pooled)])


def _change_finding(data: Data, change: Improvement, pooled: dict[str, Pooled]) -> Finding | None:
    improved, compared = data.improved
    if not compared:
        return None
    if data.lacks_many and "all" in pooled:
        return _pooled_change(data, change, pooled["all"])
    interval, clustered, test = change.interval, change.interval_clustered, change.test
    if not is_known(interval) and not is_known(clustered):
        return None
    words_before, words_after = (value_in_words(change.means[p]) for p in PROTOCOLS)
    least = 0.5**test.units
    basis = (
        f"Over the {count(int(data.in_both.sum()), 'cell')} known under both protocols. Sign-flip test over "
        f"{count(test.units, 'benchmark')}, one-sided p = {value_in_words(test.p, digits=4)}. The test holds for "
        "these models only."
    )
    if least > 0.05:
        basis += f" With {count(test.units, 'benchmark')} it cannot fall below {decimal(least, 4)}."
    categories, benchmarks = change.interval_population_of_categories, change.interval_population_of_benchmarks
    if is_known(categories):
        basis += _for_other_benchmarks(data, in_words(categories, signed=True))
    elif is_known(benchmarks):
        basis += f" For other benchmarks too: {in_words(benchmarks, signed=True)}."
    return Finding(
        f"Train before test changes the mean tau from {words_before} to {words_after}, by "
        f"{both_intervals(change.mean, interval, clustered, signed=True)}: "
        f"{improved} of {compared} pairs agree more.",
        basis,
    )


def _pooled_change(data: Data, change: Improvement, pooled: Pooled) -> Finding | None:
    """The change where cells are missing; none where too few models have a cell under both protocols."""
    if not is_known(pooled.change_interval):
        return None
    words_before, words_after = (value_in_words(pooled.mean[p]) for p in PROTOCOLS)
    return Finding(
        f"Train before test changes the pooled tau{data.assumed} from {words_before} to {words_after}, by "
        f"{both_intervals(pooled.change, pooled.change_interval, pooled.change_interval_clustered, signed=True)}.",
        f"Over the {count(int(data.in_both.sum()), 'cell')} of {count(pooled.models, 'model')} known under both "
        f"protocols: {pooled.comparisons:,} comparisons of two models on two benchmarks, each counted once. The "
        "mean over pairs of benchmarks gives a pair with few models in common the weight of any other. It changes by "
        f"{value_in_words(change.mean, signed=True)}, and {data.improved.improved} of "
        f"{data.improved.compared} pairs agree more.",
    )


# ----------------------------------------------------------------------------------------------------------------------
# Categories of benchmarks.


def categories_of_benchmarks(data: Data, tau: ByProtocolTau) -> Part:
    """Agreement within and between categories of benchmarks."""
    names = list(tau[DIRECT].by_category)
    if not names:
        return Part({}, Section("Categories", notes=["The benchmarks sheet names no categories."]))
    rows = []
    for (i, a), (j, b) in combinations_with_replacement(enumerate(names), 2):
        row: dict[str, object] = {"category": a, "with": b}
        for p, label in LABELS.items():
            row[label] = tau[p].by_category[a][b]
            if (bounds := tau[p].category_bounds) is not None:
                row |= {f"{label} low": bounds.low[i, j], f"{label} high": bounds.high[i, j]}
        rows.append(row)
    table = pd.DataFrame(rows)
    means_of = {
        p: [
            known(value, NO_TAU)
            for value in (data.side_by_side[p].within_category, data.side_by_side[p].between_categories)
        ]
        for p in PROTOCOLS
    }
    parts = [
        f"{value_in_words(within_categories)} within and {value_in_words(between)} between categories {UNDER[p]}"
        for p, (within_categories, between) in means_of.items()
        if is_known(within_categories) or is_known(between)
    ]
    partly = len(parts) > 1 and not data.whole
    grids = by_protocol("tau_by_category", {p: category_grid(tau[p].by_category) for p in PROTOCOLS})
    section = Section(
        "Within and between categories",
        hint="kinds of benchmarks",
        finding=f"Mean tau: {', '.join(parts)}{over_both(partly=partly)}." if parts else "",
        explanation="The diagonal shows pairs within a category. A category with one benchmark has no such pair.",
        figures=tau_heatmaps(grids, names, names, number_format=".2f", row_height=34),
        tables=[
            Table(
                "tau_by_category",
                "Categories, with intervals over models",
                table,
                formats={name: ".3f" for name in table.columns[2:]},
                folded=True,
            )
        ],
    )
    return Part({}, section)
