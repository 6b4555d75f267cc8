"""Kendall's tau between benchmarks: the mean, what train before test changes, each benchmark, pairs, categories,
families of models, and perplexity."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.studies.agreement.data import Data, draws, family_members, large_families, no_ceiling, tuned_members
from lm_validity.studies.agreement.similar import (
    TAU_LABELS,
    Scored,
    by_ratio,
    by_ratio_in_both,
    clustered_change,
    clustered_interval,
    corrected_tau,
    noise_leaves,
    population_change,
    population_interval,
)
from lm_validity.studies.agreement.statistics.noise import shown_ceiling
from lm_validity.studies.agreement.statistics.ranking import (
    Agreement,
    PerplexityAgreement,
    finite_mean,
    kendall_tau_matrix,
    known_in_all,
    mean_over_pairs,
    pair_signs,
    perplexity_agreement,
    resampled_kendall_tau,
)
from lm_validity.studies.agreement.statistics.resampling import (
    Interval,
    PairedTest,
    agreement_contributions,
    mean_over_pairs_by_resample,
    multiplicities,
    percentile_interval,
    sign_flip_test,
    two_way_interval,
)
from lm_validity.studies.agreement.values import (
    FEW_IN_BOTH,
    JACKKNIFED,
    MINIMUM_FAMILY,
    NO_FAMILIES,
    SMALL_FAMILY,
    ByProtocol,
    Entry,
    Range,
    Value,
    both_intervals,
    each,
    ends,
    in_words,
    no_clusters,
    over_both,
    over_families,
    plotted,
    shown_mean,
    value_in_words,
    with_ceiling,
)
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import (
    UNDER,
    Missing,
    Reason,
    ReasonCode,
    as_columns,
    count,
    decimal,
    is_known,
    known,
    no_scores,
    number,
)

LABELS = figures.PROTOCOL_LABELS
NO_TAU = Reason(
    "The two benchmarks have fewer than two models in common, or all of those are tied on one of the two.",
    ReasonCode.TOO_FEW,
)
NO_PAIR = Reason(
    "The benchmark has fewer than two models in common with each other one, or they are tied.", ReasonCode.TOO_FEW
)


# ----------------------------------------------------------------------------------------------------------------------
# The numbers that several sections show: each protocol by itself, and the change.


def kendall_tau(data: Data, by_benchmark: dict[str, dict[str, Any]]) -> Entry:
    """The summary's entries by protocol, over all scores of each. `by_benchmark`: what each benchmark alone tells."""
    return {p: _of_protocol(data, p, by_benchmark[p]) for p in PROTOCOLS}


def _of_protocol(data: Data, protocol: str, figures_of: dict[str, Any]) -> Entry:
    names, scores, agreement, ceiling = (
        data.tasks, data.scores[protocol], data.agreement[protocol], data.ceiling[protocol]
    )  # fmt: skip
    of_pair, of_benchmark = (data.no_tau(protocol, reason) for reason in (NO_TAU, NO_PAIR))
    mean = data.mean_tau(protocol, agreement.mean, f"No pair of benchmarks has a tau. {NO_TAU}")
    by_benchmark = each(names, agreement.by_benchmark, of_benchmark)
    over_models = over_benchmarks = None
    intervals: dict[str, Range] | Missing = Missing(data.no_intervals)
    if not data.no_intervals:
        taus, models = data.resampled_tau[protocol], len(data.matrix.models)
        means = mean_over_pairs_by_resample(taus)
        over_models = percentile_interval(means, models)
        of_these_models = np.broadcast_to(kendall_tau_matrix(pair_signs(scores)), taus.shape)
        over_benchmarks = two_way_interval(
            mean_over_pairs_by_resample(taus, data.benchmark_weights),
            means,
            mean_over_pairs_by_resample(of_these_models, data.benchmark_weights),
            models,
        )
        others = np.where(np.eye(len(names), dtype=bool), np.nan, 1.0)
        bounds = zip(names, *percentile_interval(finite_mean(taus * others, axis=2), models), strict=True)
        intervals = {name: ends(by_benchmark[name], Interval(low, high), "") for name, low, high in bounds}
    interval = ends(mean, over_models, data.no_intervals)
    without_ceiling = no_ceiling(ceiling, scores, protocol)
    return {
        "models": data.models(protocol),
        "mean": mean,
        "interval": interval,
        "interval_population_of_benchmarks": ends(mean, over_benchmarks, data.no_intervals),
        "by_benchmark": by_benchmark,
        "by_benchmark_interval": mean if isinstance(mean, Missing) else intervals,
        "by_pair": by_pair(names, data.tau[protocol], of_pair),
        "by_category": by_category(agreement, data.categories, of_pair),
        "ceiling": known(ceiling.mean_tau, without_ceiling),
        "ceiling_by_benchmark": each(
            names,
            ceiling.by_benchmark,
            without_ceiling
            if np.isnan(ceiling.mean_tau)
            else "The benchmark is not in the noise ceiling: no standard errors, or models do not differ.",
        ),
        "corrected": corrected_tau(data, protocol),
        "interval_clustered": over_families(clustered_interval(data, protocol, mean), interval, data.matrix.families),
        "interval_population_of_categories": population_interval(data, protocol, mean),
        **by_ratio(data, Scored.of(data, protocol)),
        "above_chance": _above_chance(data, protocol, figures_of),
        "pearson": known(mean_over_pairs(_correlations(scores)), of_pair),
    }


def by_pair(names: list[str], tau: np.ndarray, reason: str) -> list[tuple[str, str, Value]]:
    """Of each pair of benchmarks, by name."""
    upper = zip(*np.triu_indices(len(names), 1), strict=True)
    return [(names[i], names[j], known(float(tau[i, j]), reason)) for i, j in upper]


def by_category(agreement: Agreement, categories: list[str | None], reason: str) -> dict[str, dict[str, Value]]:
    """Means within and between categories, by name."""
    single = Missing(Reason("A category of one benchmark has no tau within itself.", ReasonCode.TOO_FEW))
    return {
        a: {
            b: single if a == b and categories.count(a) == 1 else known(float(agreement.by_category[i, j]), reason)
            for j, b in enumerate(agreement.categories)
        }
        for i, a in enumerate(agreement.categories)
    }


def _correlations(scores: np.ndarray) -> np.ndarray:
    """(benchmarks, benchmarks) Pearson's."""
    return pd.DataFrame(scores).corr(min_periods=2).to_numpy()


def _above_chance(data: Data, protocol: str, figures_of: dict[str, Any]) -> Entry | Missing:
    """The agreement over the benchmarks on which a model is above chance, of those where that is known; missing where
    there is none without such a model."""
    counts = {
        place: number(alone["models_above_chance"])
        for place, alone in enumerate(figures_of.values())
        if not isinstance(alone, Missing) and is_known(alone["models_above_chance"])
    }
    above = [place for place, models in counts.items() if models]
    if len(above) == len(counts):
        return Missing("No benchmark is known to be one on which no model is above chance.")
    square = np.ix_(above, above)
    few = Reason(
        "Fewer than two benchmarks on which a model is above chance have a tau or a noise ceiling.", ReasonCode.TOO_FEW
    )
    return {
        "above": len(above),
        "known": len(counts),
        "mean": known(mean_over_pairs(data.tau[protocol][square]) if above else float("nan"), few),
        "ceiling": known(mean_over_pairs(data.ceiling[protocol].by_pair[square]) if above else float("nan"), few),
    }


def improvement(data: Data, tau: Entry) -> tuple[Entry, Interval[np.ndarray] | Missing]:
    """What train before test changes, over what is known under both protocols; and (benchmarks, benchmarks) bounds of
    the change by pair. `tau`: the entries of each protocol alone."""
    reason, rows = data.nothing_compared("tau"), data.models_in_both
    means = {p: known(data.common_agreement[p].mean, reason) for p in PROTOCOLS}
    mean = known(data.common_agreement[TRAINED].mean - data.common_agreement[DIRECT].mean, reason)
    no_interval = data.no_intervals or FEW_IN_BOTH
    over_models = over_benchmarks = None
    by_pair_bounds: Interval[np.ndarray] | Missing = Missing(no_interval)
    if not data.no_intervals and len(rows) >= MINIMUM_FAMILY:
        signs = {p: pair_signs(data.common[p][rows]) for p in PROTOCOLS}
        taus = data.resampled_tau
        if not data.whole:  # the models that have a cell known under both protocols, by themselves
            weights = multiplicities(len(rows), data.resamples, draws("changes"))
            taus = {p: resampled_kendall_tau(signs[p], weights) for p in PROTOCOLS}
        taus = known_in_all(taus)
        observed = known_in_all({p: kendall_tau_matrix(signs[p]) for p in PROTOCOLS})
        fixed = {p: np.broadcast_to(observed[p], taus[p].shape) for p in PROTOCOLS}
        of_models, of_both, of_benchmarks = (
            mean_over_pairs_by_resample(resampled[TRAINED], weights)
            - mean_over_pairs_by_resample(resampled[DIRECT], weights)
            for resampled, weights in (
                (taus, None), (taus, data.benchmark_weights), (fixed, data.benchmark_weights)
            )
        )  # fmt: skip
        over_models = percentile_interval(of_models, len(rows))
        over_benchmarks = two_way_interval(of_both, of_models, of_benchmarks, len(rows))
        by_pair_bounds = percentile_interval(taus[TRAINED] - taus[DIRECT], len(rows))
    interval = ends(mean, over_models, no_interval)
    test = _paired_test(data)
    entry = {
        "mean": mean,
        "means": means,
        "interval": interval,
        "interval_clustered": over_families(clustered_change(data, mean), interval, data.matrix.families),
        "interval_population_of_benchmarks": ends(mean, over_benchmarks, no_interval),
        "interval_population_of_categories": population_change(data, mean),
        "test": {"effect": known(test.effect, reason), "p": known(test.p, reason), "units": test.units},
        **by_ratio_in_both(data, tau),
    }
    return entry, by_pair_bounds


def _paired_test(data: Data) -> PairedTest:
    """The sign-flip test; all its taus of the same variant, or exchanging rankings would not flip signs."""
    if not data.improved[1]:
        return PairedTest(float("nan"), float("nan"), 0)
    trained_direct = kendall_tau_matrix(
        pair_signs(data.common[TRAINED]), variant=data.variant, others=pair_signs(data.common[DIRECT])
    )
    contributions = agreement_contributions(data.common_tau[DIRECT], data.common_tau[TRAINED], trained_direct)
    return sign_flip_test(contributions, draws("paired test"))


# ----------------------------------------------------------------------------------------------------------------------
# The mean, and each benchmark with the others.


def each_benchmark(data: Data, tau: Entry, significance: Entry) -> Part:
    """The mean agreement of each protocol, and each benchmark's with the others."""
    rows = []
    for (i, name), p in product(enumerate(data.tasks), PROTOCOLS):
        intervals, corrected = tau[p]["by_benchmark_interval"], tau[p]["corrected"]
        rows.append(
            {
                "benchmark": name,
                "category": data.categories[i] or "unknown",
                "protocol": LABELS[p],
                "tau": tau[p]["by_benchmark"][name],
                **as_columns(intervals if isinstance(intervals, Missing) else intervals[name]),
                "ceiling": tau[p]["ceiling_by_benchmark"][name],
                "corrected": corrected["by_benchmark"][name],
                **as_columns(corrected["by_benchmark_interval"][name], "corrected_low", "corrected_high"),
                "significance_tau": significance[p]["by_benchmark"][name],
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


def benchmark_order(tau: Entry, tasks: Sequence[str]) -> list[str]:
    """Benchmarks from most to least agreement, directly where that is known."""
    by_protocol = {p: tau[p]["by_benchmark"] for p in PROTOCOLS}
    values = by_protocol[DIRECT if any(map(is_known, by_protocol[DIRECT].values())) else TRAINED]
    return sorted(tasks, key=lambda name: -number(values[name]) if is_known(values[name]) else np.inf)


def _lowest(data: Data) -> str:
    """Which benchmark stands apart most, before and after."""
    values = {p: each(data.tasks, data.side_by_side[p].by_benchmark, NO_PAIR) for p in PROTOCOLS}
    direct = {name: number(tau) for name, tau in values[DIRECT].items() if is_known(tau)}
    if not direct:
        return ""
    lowest = min(direct, key=direct.__getitem__)
    sentence = f"{lowest} has the lowest mean tau with the others under direct evaluation: {decimal(direct[lowest])}"
    after = values[TRAINED][lowest]
    if not is_known(after):
        return f"{sentence}."
    return f"{sentence}. Under train before test it has {value_in_words(after)}{over_both(partly=not data.whole)}."


def _mean_finding(data: Data, tau: Entry) -> Finding:
    # of a protocol with so few models that there is no interval, the pooled finding says how few
    scored = [
        p for p in PROTOCOLS if is_known(tau[p]["mean"]) and (p not in data.incomplete or is_known(tau[p]["interval"]))
    ]
    size = f"{count(len(data.matrix.models), 'model')} × {count(len(data.tasks), 'benchmark')}"
    if not scored:
        return Finding("No two benchmarks can be compared.", size)
    parts = [
        f"{both_intervals(tau[p]['mean'], tau[p]['interval'], tau[p]['interval_clustered'])} {UNDER[p]}" for p in scored
    ]
    own = ", each protocol over all cells it has" if len(scored) > 1 and not data.whole else ""
    if data.incomplete and not data.lacks_many:
        missing = sum(int((~np.isfinite(data.scores[p])).sum()) for p in data.incomplete)
        own += f". {count(missing, 'cell is', 'cells are')} missing, by chance as the intervals assume"
    elif set(scored) & set(data.incomplete):
        own += (
            ". A pair of benchmarks with few models in common counts like any other here. The pooled tau gives it "
            "less weight"
        )
    population = [
        f"{in_words(interval)} {UNDER[p]}"
        for p in scored
        if is_known(interval := tau[p]["interval_population_of_categories"])
    ]
    uncorrected = [
        f" {UNDER[p].capitalize()}, there is no noise-corrected tau. {corrected.reason}"
        for p in scored
        if is_known(tau[p]["ceiling"]) and isinstance(corrected := tau[p]["corrected"]["mean"], Missing)
    ]
    pairs = len(data.tasks) * (len(data.tasks) - 1) // 2
    limits = noise_leaves({p: (tau[p]["mean"], tau[p]["ceiling"]) for p in scored})
    for p in scored:
        above = tau[p]["above_chance"]
        if isinstance(above, Missing):
            continue
        on = f"{above['above']} of {count(above['known'], 'benchmark')} with a known chance level"
        limits += f" A model is above chance on {on} {UNDER[p]}"
        limit = shown_ceiling(number(above["ceiling"]), number(above["mean"]))
        if np.isfinite(limit):
            limits += f"; over these, tau is {value_in_words(above['mean'])}, and noise would leave {decimal(limit)}"
        limits += "."
    return Finding(
        f"Two benchmarks' rankings of the models have{data.assumed} a mean Kendall's tau of {' and '.join(parts)}."
        + limits,
        f"{size}, {count(pairs, 'pair')} of benchmarks{own}. Intervals are for other models on these "
        f"benchmarks.{''.join(uncorrected)}{_for_other_benchmarks(data, ' and '.join(population))}",
    )


def _for_other_benchmarks(data: Data, intervals: str) -> str:
    """Which interval a claim on benchmarks in general takes; empty without one."""
    if not intervals:
        return ""
    families = not no_clusters(data.matrix.families)
    clusters = "families of models and categories of benchmarks" if families else "categories of benchmarks"
    return (
        f" For other models and other benchmarks, with {clusters} as clusters: {intervals}. For a claim about "
        "benchmarks in general, quote this last interval, or one before it that is wider. Those before it are for "
        "these benchmarks only."
    )


# ----------------------------------------------------------------------------------------------------------------------
# The change, over all pairs and by pair.


def pairs_of_benchmarks(
    data: Data, tau: Entry, change: Entry, bounds: Interval[np.ndarray] | Missing, pooled: Entry
) -> Part:
    """What train before test changes, and every pair of benchmarks. `bounds`: of the change by pair."""
    names, (improved, compared) = data.tasks, data.improved
    upper = np.triu_indices(len(names), 1)
    labels = np.array(names, dtype=object)
    table = pd.DataFrame({"benchmark": labels[upper[0]], "with": labels[upper[1]]})
    for p, label in LABELS.items():
        table[label] = [value for *_, value in tau[p]["by_pair"]]
    for p, label in LABELS.items():
        corrected = tau[p]["corrected"]
        table[f"{label}, corrected"] = [value for *_, value in corrected["by_pair"]]
        corrected_ends = [as_columns(interval) for *_, interval in corrected["by_pair_interval"]]
        for end in ("low", "high"):
            table[f"{label}, corrected {end}"] = [pair_ends[end] for pair_ends in corrected_ends]
        table[f"{label}, Pearson"] = _correlations(data.scores[p])[upper]
    common = {p: data.common_tau[p][upper] for p in PROTOCOLS}
    if not data.whole:
        for p, label in LABELS.items():
            table[f"{label}, common cells"] = common[p]
    table["change"] = common[TRAINED] - common[DIRECT]
    sentence = ""
    if not isinstance(bounds, Missing):
        table["change_low"], table["change_high"] = (end[upper] for end in bounds)
        surely, worse = int((table["change_low"] > 0).sum()), int((table["change_high"] < 0).sum())
        sentence = (
            f"The interval of the change lies above zero for {surely} of {compared} pairs and below "
            f"zero for {worse}. Each pair is judged alone: the intervals are not corrected for the number of pairs."
        )
    section = Section(
        "Pairs of benchmarks",
        hint=f"{count(len(table), 'pair')}, with the interval of the change",
        finding=sentence,
        figures=tau_heatmaps(by_protocol("tau_by_pair", data.tau), names, names, without_diagonal=True, row_height=16),
        tables=[
            Table(
                "tau_by_pair",
                "All pairs",
                table,
                formats={name: ".3f" for name in table.columns[2:]}
                | {"change": "+.3f", "change_low": "+.3f", "change_high": "+.3f"},
                folded=True,
            )
        ],
    )
    summary = {
        "pairs": len(table),
        "cells_in_both": int(data.in_both.sum()),
        "models_in_both": len(data.models_in_both),
        "improved_pairs": improved if compared else Missing(data.nothing_compared("tau")),
        "compared_pairs": compared,
        "improvement": change,
    }
    return Part(summary, section, [_change_finding(data, change, pooled)])


def _change_finding(data: Data, change: Entry, pooled: Entry) -> Finding | None:
    improved, compared = data.improved
    if not compared:
        return None
    if data.lacks_many and "all" in pooled:
        return _pooled_change(data, change, pooled["all"])
    interval, clustered, test = change["interval"], change["interval_clustered"], change["test"]
    if not is_known(interval) and not is_known(clustered):
        return None
    before, after = (value_in_words(change["means"][p]) for p in PROTOCOLS)
    least = 0.5 ** test["units"]
    basis = (
        f"Over the {count(int(data.in_both.sum()), 'cell')} known under both protocols. Sign-flip test over "
        f"{count(test['units'], 'benchmark')}, one-sided p = {value_in_words(test['p'], digits=4)}. The test holds for "
        "these models only."
    )
    if least > 0.05:
        basis += f" With {count(test['units'], 'benchmark')} it cannot fall below {decimal(least, 4)}."
    categories, benchmarks = (change[f"interval_population_of_{over}"] for over in ("categories", "benchmarks"))
    if is_known(categories):
        basis += _for_other_benchmarks(data, in_words(categories, signed=True))
    elif is_known(benchmarks):
        basis += f" For other benchmarks too: {in_words(benchmarks, signed=True)}."
    return Finding(
        f"Train before test changes the mean tau from {before} to {after}, by "
        f"{both_intervals(change['mean'], interval, clustered, signed=True)}: "
        f"{improved} of {compared} pairs agree more.",
        basis,
    )


def _pooled_change(data: Data, change: Entry, pooled: Entry) -> Finding | None:
    """The change where cells are missing; none where too few models have a cell under both protocols."""
    if not is_known(pooled["change_interval"]):
        return None
    of_change = (pooled[key] for key in ("change", "change_interval", "change_interval_clustered"))
    before, after = (value_in_words(pooled["mean"][p]) for p in PROTOCOLS)
    return Finding(
        f"Train before test changes the pooled tau{data.assumed} from {before} to {after}, by "
        f"{both_intervals(*of_change, signed=True)}.",
        f"Over the {count(int(data.in_both.sum()), 'cell')} of {count(pooled['models'], 'model')} known under both "
        f"protocols: {pooled['comparisons']:,} comparisons of two models on two benchmarks, each counted once. The "
        "mean over pairs of benchmarks gives a pair with few models in common the weight of any other. It changes by "
        f"{value_in_words(change['mean'], signed=True)}, and {data.improved[0]} of "
        f"{data.improved[1]} pairs agree more.",
    )


def tau_heatmaps(
    values: dict[tuple[str, str], np.ndarray],
    rows: list[str],
    columns: list[str],
    *,
    caption: str = "",
    without_diagonal: bool = False,
    **options: Any,
) -> list[Figure]:
    """Heatmaps of taus on one colour scale, which starts below 0 only where a tau does.

    `values`: (rows, columns) arrays by (file name, title); `options` go to `figures.heatmap`.
    """
    lowest = min((float(np.nanmin(tau)) for tau in values.values() if np.isfinite(tau).any()), default=0.0)
    return [
        Figure(
            name,
            title,
            figures.heatmap(
                figures.matrix_frame(tau, rows, columns, "tau", without_diagonal=without_diagonal),
                x="column",
                y="row",
                value="tau",
                title="Kendall's tau-b",
                x_order=columns,
                y_order=rows,
                tooltip=figures.tooltips(row="", column="with", tau="tau|.3f"),
                domain=(min(0.0, np.floor(10 * lowest) / 10), 1.0),
                **options,
            ),
            caption=caption,
            min_width=460 if len(columns) > 12 else 320,
        )
        for (name, title), tau in values.items()
    ]


def by_protocol(name: str, values: dict[str, np.ndarray], title: str = "{}") -> dict[tuple[str, str], np.ndarray]:
    """The grids of `tau_heatmaps` from values by protocol, under (file name, title)."""
    return {(f"{name}_{p}", title.format(label)): values[p] for p, label in LABELS.items()}


def category_grid(of_categories: dict[str, dict[str, Value]]) -> np.ndarray:
    """(categories, categories) taus, NaN where missing."""
    return np.array([[number(tau) for tau in row.values()] for row in of_categories.values()])


# ----------------------------------------------------------------------------------------------------------------------
# Categories of benchmarks, families of models.


def categories_of_benchmarks(data: Data, tau: Entry) -> Part:
    """Agreement within and between categories of benchmarks."""
    names = list(tau[DIRECT]["by_category"])
    if not names:
        return Part({}, Section("Categories", notes=["The benchmarks sheet names no categories."]))
    bounds: dict[str, Interval[np.ndarray]] = {}
    if not data.no_intervals:
        members = [np.array([category == name for category in data.categories]) for name in names]
        off_diagonal = np.where(np.eye(len(data.tasks), dtype=bool), np.nan, 1.0)
        for p in PROTOCOLS:
            taus = data.resampled_tau[p] * off_diagonal
            blocks = [[taus[:, rows][:, :, columns].reshape(len(taus), -1) for columns in members] for rows in members]
            means = np.array([[finite_mean(block, axis=1) for block in row] for row in blocks])
            bounds[p] = percentile_interval(np.moveaxis(means, -1, 0), len(data.matrix.models))
    rows = []
    for (i, a), (j, b) in product(enumerate(names), repeat=2):
        if i <= j:
            row: dict[str, object] = {"category": a, "with": b}
            for p, label in LABELS.items():
                row[label] = tau[p]["by_category"][a][b]
                if p in bounds:
                    row |= {f"{label} low": bounds[p].low[i, j], f"{label} high": bounds[p].high[i, j]}
            rows.append(row)
    table = pd.DataFrame(rows)
    means_of = {
        p: [known(value, NO_TAU) for value in (data.side_by_side[p].within, data.side_by_side[p].between)]
        for p in PROTOCOLS
    }
    parts = [
        f"{value_in_words(within)} within and {value_in_words(between)} between categories {UNDER[p]}"
        for p, (within, between) in means_of.items()
        if is_known(within) or is_known(between)
    ]
    partly = len(parts) > 1 and not data.whole
    grids = by_protocol("tau_by_category", {p: category_grid(tau[p]["by_category"]) for p in PROTOCOLS})
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


def families_of_models(data: Data) -> Part:
    """Agreement over the models of each family."""
    matrix, large = data.matrix, large_families(data.matrix.families)
    taus: dict[str, ByProtocol] = {}
    in_both: dict[str, ByProtocol] = {}
    for name, members in family_members(matrix.families).items():
        alone = "No two benchmarks have a tau among the models of the family." if name in large else SMALL_FAMILY
        why = {p: alone if matrix.has(p) else no_scores(p) for p in PROTOCOLS}
        of_family = {p: kendall_tau_matrix(pair_signs(data.scores[p][members])) for p in PROTOCOLS}
        means = {p: mean_over_pairs(of_family[p]) if name in large else None for p in PROTOCOLS}
        taus[name] = {p: known(means[p], why[p]) for p in PROTOCOLS}
        if name in large:
            common = known_in_all({p: kendall_tau_matrix(pair_signs(data.common[p][members])) for p in PROTOCOLS})
            in_both[name] = {p: known(mean_over_pairs(common[p]), why[p]) for p in PROTOCOLS}
    rng = draws("families")
    intervals: dict[str, dict[str, Range]] = {
        name: dict.fromkeys(PROTOCOLS, Missing(data.no_intervals)) for name in large
    }
    for name, members in large.items() if not data.no_intervals else ():
        weights = multiplicities(len(members), data.resamples, rng)
        for p in PROTOCOLS:
            resampled = resampled_kendall_tau(pair_signs(data.scores[p][members]), weights)
            interval = percentile_interval(mean_over_pairs_by_resample(resampled), len(members))
            intervals[name][p] = ends(None, interval, "")
    summary = {"families": taus, "families_in_both": in_both, "families_interval": intervals}
    if not any(is_known(tau) for values in taus.values() for tau in values.values()):
        return Part(summary, Section("Within families", notes=[NO_FAMILIES]))
    frame = pd.DataFrame(
        {
            "family": family,
            "models": int((matrix.families == family).sum()),
            "protocol": label,
            "tau": values[p],
            **as_columns(
                intervals[family][p]
                if family in intervals
                else values[p]
                if isinstance(values[p], Missing)
                else Missing(NO_FAMILIES)
            ),
        }
        for family, values in taus.items()
        for p, label in LABELS.items()
    )
    compared = [values for values in in_both.values() if all(map(is_known, values.values()))]
    more = sum(number(values[TRAINED]) > number(values[DIRECT]) for values in compared)
    chart = figures.interval_dots(
        plotted(frame[frame["family"].isin(list(in_both))]),
        y="family",
        value="tau",
        title="Mean tau over pairs of benchmarks, models of the family only",
        y_order=list(in_both),
        tooltip=figures.tooltips(
            family="Family", models="Models", protocol="Protocol", tau="tau|.3f", low="from|.3f", high="to|.3f"
        ),
        offset="protocol",
        row_height=26,
    )
    formats = {"tau": ".3f", "low": ".3f", "high": ".3f"}
    section = Section(
        "Within families",
        hint="models of one family only",
        finding=f"In {more} of {count(len(compared), 'family', 'families')} the benchmarks agree more under train "
        f"before test{over_both(partly=not data.whole)}."
        if compared
        else "",
        explanation="Ranking only the models of one family removes differences between families, such as what they saw "
        "in training.",
        figures=[Figure("tau_by_family", "Mean tau within each family", chart, wide=True)],
        tables=[Table("tau_by_family", "Mean tau within each family", frame, formats=formats, folded=True)],
    )
    return Part(summary, section)


# ----------------------------------------------------------------------------------------------------------------------
# Perplexity.

COMPARISONS = {
    "corpus_benchmark": "corpus with benchmark",
    "corpus_corpus": "corpus with corpus",
    "average_average": "average perplexity with average score",
}
KINDS = {"base": "base models", "instruction_tuned": "instruction-tuned ones"}


def perplexity(data: Data) -> Part:
    """Corpora against benchmarks in both protocols, and direct perplexity against train-before-test scores."""
    matrix, tasks = data.matrix, data.tasks
    if not matrix.is_corpus.any():
        return Part({"perplexity": Missing("There is no perplexity corpus in the tables.")})
    corpora = [name for name, corpus in zip(matrix.benchmarks, matrix.is_corpus, strict=True) if corpus]
    taus = {p: perplexity_agreement(data.corpora[p], data.scores[p]) for p in PROTOCOLS}
    means = _perplexity_means(data, taus)
    common_corpora = known_in_all(data.corpora)
    both = {p: perplexity_agreement(common_corpora[p], data.common[p]) for p in PROTOCOLS}
    across, within = (
        known_in_all({p: getattr(of_protocol, name) for p, of_protocol in both.items()})
        for name in ("corpus_benchmark", "corpus_corpus")
    )
    both = {p: replace(both[p], corpus_benchmark=across[p], corpus_corpus=within[p]) for p in PROTOCOLS}
    tuned = tuned_members(matrix)
    before_after_taus = {
        kind: kendall_tau_matrix(pair_signs(data.corpora[DIRECT][rows]), others=pair_signs(data.scores[TRAINED][rows]))
        for kind, rows in tuned.items()
    }
    before_after = {
        kind: known(finite_mean(tau), _no_before_after(data, kind)) for kind, tau in before_after_taus.items()
    }
    intervals, before_after_intervals = _perplexity_intervals(data, means, before_after)
    twice = (np.column_stack([data.corpora[p][:, place] for p in PROTOCOLS]) for place in range(len(corpora)))
    same_corpus = each(
        corpora,
        (float(kendall_tau_matrix(pair_signs(columns))[0, 1]) for columns in twice),
        Reason("Fewer than two models have its perplexity under both protocols, or they are tied.", ReasonCode.TOO_FEW),
    )
    models = max(of_protocol.models for of_protocol in taus.values())
    in_both = _perplexity_means(data, both, " under both protocols")
    entry = {
        "models": models,
        "corpora": corpora,
        **{key: value for name in COMPARISONS for key, value in (
            (name, means[name]), (f"{name}_interval", intervals[name])
        )},
        "same_corpus": same_corpus,
        "in_both": in_both,
        "before_after": before_after,
        "before_after_interval": before_after_intervals,
    }  # fmt: skip
    together = {
        p: np.hstack([of_protocol.corpus_corpus, of_protocol.corpus_benchmark]) for p, of_protocol in taus.items()
    }
    charts = tau_heatmaps(
        by_protocol("perplexity", together), corpora, [*corpora, *tasks], without_diagonal=True, row_height=26
    )
    apart = {
        (f"perplexity_before_{kind}", "Base models" if kind == "base" else "Instruction-tuned models"): tau
        for kind, tau in before_after_taus.items()
        if is_known(before_after[kind])
    }
    caption = "Perplexity under direct evaluation against scores under train before test."
    charts += tau_heatmaps(apart, corpora, tasks, caption=caption, row_height=26)
    rows = [
        {"comparison": title, "protocol": label, "tau": means[name][p], **as_columns(intervals[name][p])}
        for name, title in COMPARISONS.items()
        for p, label in LABELS.items()
    ]
    formats = {"tau": ".3f", "low": ".3f", "high": ".3f"}
    tables = [Table("perplexity", "Agreement with perplexity", pd.DataFrame(rows), formats=formats, folded=True)]
    if any(map(is_known, same_corpus.values())):
        frame = pd.DataFrame({"corpus": corpora, "tau": list(same_corpus.values())})
        title = "The same corpus: its direct ranking with that under train before test"
        tables.append(Table("perplexity_same_corpus", title, frame, formats={"tau": ".3f"}, folded=True))
    parts = [
        f"{value_in_words(before_after[kind], before_after_intervals[kind])} among {words}"
        for kind, words in KINDS.items()
        if is_known(before_after[kind])
    ]
    sentence = (
        "Between the ranking by perplexity under direct evaluation and the ranking under train before test, tau is "
        f"{' and '.join(parts)}."
    )
    section = Section(
        "Perplexity",
        hint="does it rank models like benchmarks",
        finding=sentence if parts else "",
        figures=charts,
        tables=tables,
    )
    return Part({"perplexity": entry}, section, [_perplexity_finding(data, entry)])


def _perplexity_intervals(
    data: Data, means: dict[str, ByProtocol], before_after: dict[str, Value]
) -> tuple[dict[str, dict[str, Range]], dict[str, Range]]:
    """Of the comparisons by protocol, and of direct perplexity with scores after training by kind of model."""
    bounds: dict[str, dict[str, Interval[float]]] = {name: {} for name in (*COMPARISONS, *KINDS)}
    models, few = (
        len(data.matrix.models),
        Reason(f"There are fewer than {MINIMUM_FAMILY} such models.", ReasonCode.TOO_FEW),
    )
    if not data.no_intervals:
        for p in PROTOCOLS:
            signs = pair_signs(data.corpora[p])
            across = resampled_kendall_tau(signs, data.weights, others=pair_signs(data.scores[p]))
            averages = np.column_stack([data.corpora[p].mean(axis=1), data.scores[p].mean(axis=1)])
            averages[~np.isfinite(averages).all(axis=1)] = np.nan
            for name, resampled in (
                ("corpus_benchmark", finite_mean(across.reshape(len(across), -1), axis=1)),
                ("corpus_corpus", mean_over_pairs_by_resample(resampled_kendall_tau(signs, data.weights))),
                ("average_average", resampled_kendall_tau(pair_signs(averages), data.weights)[:, 0, 1]),
            ):
                bounds[name][p] = percentile_interval(resampled, models)
        rng = draws("perplexity")
        for kind, rows in tuned_members(data.matrix).items():
            if len(rows) >= MINIMUM_FAMILY:
                across = resampled_kendall_tau(
                    pair_signs(data.corpora[DIRECT][rows]),
                    multiplicities(len(rows), data.resamples, rng),
                    others=pair_signs(data.scores[TRAINED][rows]),
                )
                resampled = finite_mean(across.reshape(len(across), -1), axis=1)
                bounds[kind]["direct"] = percentile_interval(resampled, len(rows))
    by_comparison: dict[str, dict[str, Range]] = {
        name: {p: ends(means[name][p], bounds[name].get(p), data.no_intervals) for p in PROTOCOLS}
        for name in COMPARISONS
    }
    by_kind: dict[str, Range] = {
        kind: ends(value, bounds[kind].get(DIRECT), data.no_intervals or few) for kind, value in before_after.items()
    }
    return by_comparison, by_kind


def _perplexity_means(data: Data, taus: dict[str, PerplexityAgreement], where: str = "") -> dict[str, ByProtocol]:
    """The three means by protocol."""
    means: dict[str, ByProtocol] = {name: {} for name in COMPARISONS}
    for p, of_protocol in taus.items():
        corpora = int(np.isfinite(data.corpora[p]).any(axis=0).sum())
        none = "No perplexity is known." if not corpora else ""
        across = no_scores(p) if not data.matrix.has(p) else f"No corpus and benchmark rank two models{where}."
        within = "There is one perplexity corpus." if corpora == 1 else f"No two corpora rank two models{where}."
        equal = "too equal" if of_protocol.complete_models >= 3 else "too few"
        average = f"{count(of_protocol.complete_models, 'model')} with all corpora and benchmarks: {equal} to compare."
        means["corpus_benchmark"][p] = known(finite_mean(of_protocol.corpus_benchmark), none or across)
        means["corpus_corpus"][p] = known(mean_over_pairs(of_protocol.corpus_corpus), none or within)
        means["average_average"][p] = known(of_protocol.average_average, average)
    return means


def _no_before_after(data: Data, kind: str) -> str:
    """Why perplexity of untouched models and train-before-test scores cannot be compared among models of a kind."""
    members, words = tuned_members(data.matrix), kind.replace("_", "-")
    if not any(len(rows) for rows in members.values()):
        return "Which models are instruction-tuned is unknown."
    before, after = (np.isfinite(values).any(axis=1) for values in (data.corpora[DIRECT], data.scores[TRAINED]))
    both = int((before & after)[members[kind]].sum())
    if both < 2:
        return f"Fewer than two {words} models have both a perplexity and a train-before-test score ({both})."
    return f"The {both} {words} models are tied in perplexity or in scores, or share no two."


def _perplexity_finding(data: Data, entry: Entry) -> Finding | None:
    own, both = entry["corpus_benchmark"], entry["in_both"]["corpus_benchmark"]
    if not is_known(own[DIRECT]):
        return None
    compared = all(map(is_known, both.values()))
    if compared and data.incomplete and len(data.models_in_both) < JACKKNIFED:  # a mean of taus of 1 and -1
        own, compared = {p: tau for p, tau in own.items() if p not in data.incomplete}, False
    shown = both if compared and data.lacks_many else own
    parts = [
        f"{shown_mean(shown[p], own[p], entry['corpus_benchmark_interval'][p])} {UNDER[p]}"
        for p in shown
        if is_known(shown[p])
    ]
    return Finding(
        f"Between rankings by perplexity and rankings by benchmark{data.assumed}, the mean tau is "
        f"{' and '.join(parts)}.",
        f"{count(entry['models'], 'model')} with perplexities on "
        f"{count(len(entry['corpora']), 'corpus', 'corpora')}{over_both(partly=shown != own)}.",
    )
