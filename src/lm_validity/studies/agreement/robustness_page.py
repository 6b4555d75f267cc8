"""What the page shows of what the agreement rests on: subsets of benchmarks, parts left out, variance, the scores."""

from operator import attrgetter
from typing import Literal

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.missing import is_known, number
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.intervals import Value
from lm_validity.studies.agreement.robustness import COMPONENTS, FiguresWithoutPart, Subsets, Variance
from lm_validity.studies.agreement.wording import MOST_DRAWN, plotted, value_in_words
from lm_validity.tables.schema import DIRECT, TRAINED
from lm_validity.words import UNDER, decimal, percent

LABELS = figures.PROTOCOL_LABELS
NEARLY_ALL = 0.9  # tau
UNCHANGED = 0.0005  # a smaller change is written as 0.000
SUBSETS = ["random", "greedy", "random, with the others"]
# what a part is left out of: the name of its files, and what it is called
MEASURES = {
    "mean_tau": ("influence", "mean tau"),
    "first_component": ("share_influence", "share of the first component"),
}


# ----------------------------------------------------------------------------------------------------------------------
# How many benchmarks are enough.


def subsets_of_benchmarks(data: Data, by_protocol: dict[str, Subsets]) -> Part:
    """How well subsets of the benchmarks rank the models, by size, and one benchmark with all others together."""
    rows, orders, finding = [], [], _subset_finding(by_protocol, data.assumed)
    for p, subsets in by_protocol.items():
        for index, size in enumerate(subsets.sizes):
            bands = (
                (subsets.random_mean[index], subsets.random_low[index], subsets.random_high[index]),
                (subsets.greedy_mean[index], np.nan, np.nan),
                (subsets.others_mean[index], np.nan, np.nan),
            )
            rows += [
                {"benchmarks": size, "protocol": LABELS[p], "choice": choice, "tau": tau, "low": start, "high": end}
                for choice, (tau, start, end) in zip(SUBSETS, bands, strict=True)
            ]
        orders += [
            {"place": index, "benchmark": data.tasks[column], "protocol": LABELS[p]}
            for index, column in enumerate(subsets.greedy_order, start=1)
        ]
    frame = pd.DataFrame(rows)
    if frame.empty or not plotted(frame)["tau"].notna().any():
        return Part({"subsets": by_protocol}, findings=[finding])
    chart = figures.lines(
        plotted(frame),
        x="benchmarks",
        y="tau",
        detail="choice",
        dash=alt.StrokeDash(
            "choice:N",
            scale=alt.Scale(domain=SUBSETS, range=[[1, 0], [5, 3], [2, 2]]),
            legend=alt.Legend(orient="bottom", columns=1),  # beside the protocols it would not fit a narrow screen
        ),
        x_title="Benchmarks in the subset",
        y_title="tau with the ranking from all, or from the others",
        tooltip=figures.tooltips(
            benchmarks="Benchmarks", protocol="Protocol", choice="Choice", tau="tau|.3f", low="5th percentile|.3f",
            high="95th percentile|.3f",
        ),
        points=False,
    )  # fmt: skip
    formats = {"tau": ".3f", "low": ".3f", "high": ".3f"}
    labels = {"low": "5% of subsets below", "high": "95% of subsets below"}
    section = Section(
        "How many benchmarks are enough",
        hint="rankings by some of them against the others",
        finding="" if finding is None else finding.sentence,
        explanation="Models are ranked by their mean standardised score over a subset of the benchmarks and over all. "
        "Greedy subsets are chosen on four fifths of the models. All taus are on models that took no part in the "
        "choice. The whole set contains the subset, so the curve with all benchmarks shows how many could have been "
        "left out. The curve with the other benchmarks, which the subset does not contain, shows how a ranking carries "
        "over.",
        figures=[Figure("subsets", "Subsets against the whole set", chart, "Band: 5 to 95% of subsets.", wide=True)],
        tables=[
            Table("subsets", "Agreement by size of the subset", frame, formats=formats, labels=labels, folded=True),
            Table(
                "subset_order", "Greedy order of benchmarks, chosen on all models", pd.DataFrame(orders), folded=True
            ),
        ],
    )
    return Part({"subsets": by_protocol}, section, [finding])


def _subset_finding(subsets: dict[str, Subsets], assumed: str) -> Finding | None:
    """What one benchmark alone tells and, where any number does, how many tell nearly all.

    Towards half of the benchmarks few others are left to hold a subset against, and tau falls for that reason: a number
    of benchmarks is named only where it reaches `NEARLY_ALL`.
    """
    protocol = TRAINED if TRAINED in subsets else DIRECT
    subset = subsets.get(protocol)
    if subset is None or not is_known(subset.random_mean[0]) or not is_known(subset.one_with_others):
        return None
    remaining = [number(tau) for tau in subset.others_mean[: len(subset.sizes) // 2]]
    enough = next((index for index, tau in enumerate(remaining) if index and tau >= NEARLY_ALL), 0)
    remainder_words = (
        f". For {enough + 1} benchmarks and the remaining ones it is {decimal(remaining[enough])}" if enough else ""
    )
    interval = subset.one_with_others_interval
    over = " The interval is over models." if is_known(interval) else ""
    return Finding(
        "Between the ranking by one benchmark picked at random and the ranking by all others together"
        f"{assumed}, tau is {value_in_words(subset.one_with_others, interval)} {UNDER[protocol]}{remainder_words}.",
        f"No benchmark is on both sides.{over}",
    )


# ----------------------------------------------------------------------------------------------------------------------
# Without one family, benchmark or model.


def influence(
    parts: dict[str, list[FiguresWithoutPart]],
    totals: dict[str, Value],
    measure: Literal["mean_tau", "first_component"],
) -> Part:
    """How much a figure rests on one part: its values without each family, benchmark and model in turn, and what that
    changes. `totals`: by protocol the figure of the whole table. No section where nothing can be shown."""
    (prefix, name), values = MEASURES[measure], attrgetter(measure)
    rows = [
        {
            "left_out": row.name,
            "kind": row.kind,
            "protocol": LABELS[protocol],
            "value": values(row),
            "change": number(values(row)) - number(totals[protocol]),
        }
        for protocol, rows_of_protocol in parts.items()
        for row in rows_of_protocol
    ]
    frame = pd.DataFrame(rows)
    if frame.empty or not frame["change"].notna().any():
        return Part({"influence": parts})
    largest = frame.loc[frame["change"].abs().idxmax()]
    finding = f"The largest change comes from leaving out the {largest['kind']} {largest['left_out']}: "
    finding += f"{largest['change']:+.3f} ({largest['protocol'].lower()})."
    if abs(largest["change"]) < UNCHANGED:
        known_kinds = list(dict.fromkeys(frame["kind"][frame["change"].notna()]))
        any_of = " or ".join(filter(None, [", ".join(known_kinds[:-1]), known_kinds[-1]]))
        finding = f"No {any_of} that is left out changes it by {2 * UNCHANGED:g} or more."
    kinds = [kind for kind in ("family", "benchmark") if (frame["kind"] == kind).any()]
    table = Table(
        prefix,
        "One family, benchmark or model left out",
        frame,
        formats={"value": ".3f", "change": "+.3f"},
        labels={"left_out": "left out", "value": name},
        folded=True,
    )
    section = Section(
        f"What the {name} rests on",
        hint="one family, benchmark or model left out",
        finding=finding,
        figures=[_influence_chart(plotted(frame[frame["kind"] == kind]), kind, prefix, name) for kind in kinds],
        tables=[table],
    )
    return Part({"influence": parts}, section)


def _influence_chart(frame: pd.DataFrame, kind: str, prefix: str, name: str) -> Figure:
    order = frame.groupby("left_out")["change"].mean().sort_values().index.tolist()
    if len(order) > MOST_DRAWN:
        order = [*order[: MOST_DRAWN // 2], *order[-MOST_DRAWN // 2 :]]
        frame = frame[frame["left_out"].isin(order)]
    chart = figures.interval_dots(
        frame,
        y="left_out",
        value="change",
        title=f"Change of the {name}",
        y_order=order,
        tooltip=figures.tooltips(left_out="Left out", protocol="Protocol", value=f"{name}|.3f", change="change|+.3f"),
        zero=True,
    )
    return Figure(f"{prefix}_{kind}", f"One {kind} left out", chart)


# ----------------------------------------------------------------------------------------------------------------------
# Where variance comes from.


def sources_of_variance(by_protocol: dict[str, Variance]) -> Part:
    """Components of variance, and what more benchmarks, items or seeds would buy."""
    summary = {"variance_components": by_protocol}
    variances = {p: variance for p, variance in by_protocol.items() if is_known(variance.model)}
    if not variances:
        return Part(summary)
    components = pd.DataFrame(
        {"protocol": LABELS[p], **variance.components, "reliability": variance.reliability}
        for p, variance in variances.items()
    )
    plans = pd.DataFrame(
        {"protocol": LABELS[p], **vars(plan)} for p, variance in variances.items() for plan in variance.decision_study
    )
    as_it_is = plans[(plans[["items", "seeds", "prompts"]] == 1).all(axis=1)]
    chart = figures.lines(
        as_it_is.drop_duplicates(["protocol", "benchmarks"]).sort_values(["protocol", "benchmarks"]),
        x="benchmarks",
        y="reliability",
        x_title="Benchmarks in the mean",
        y_title="Reliability of the mean score",
        tooltip=figures.tooltips(protocol="Protocol", benchmarks="Benchmarks", reliability="Reliability|.3f"),
        points=True,
    )
    explanation = (
        "This is a generalisability study. It divides the variance of standardised scores into models, "
        "models × benchmarks, and the noise of items, seeds and prompts where these were measured. "
        "In the table, the parts add up to n / (n - 1) for n models, unless one was set to 0. The reliability of a "
        "mean score is the share of its variance that would remain with other benchmarks, items and seeds of the same "
        "kind. It is computed over all models of the table. Among models of similar size it is lower."
    )
    below = [
        f"{name} {UNDER[p]} ({value_in_words(value)})"
        for p, variance in variances.items()
        for name, value in (("model", variance.raw_model), ("model × benchmark", variance.raw_model_benchmark))
        if is_known(value) and value < 0
    ]
    if below:
        explanation += (
            f" Estimated below zero and set to zero: {', '.join(below)}. Such a component is too small to detect in "
            "this table, or the standard errors are too large."
        )
    unknown = [UNDER[p] for p, variance in variances.items() if not is_known(variance.prompt)]
    if unknown:
        explanation += f" The effect of other prompts was not measured {' or '.join(unknown)}."
    section = Section(
        "Where differences between scores come from",
        hint="models, benchmarks, items, seeds, prompts",
        finding=" ".join(_shares_sentence(p, variance) for p, variance in variances.items()),
        explanation=explanation,
        figures=[Figure("reliability", "What more benchmarks would buy", chart, wide=True)],
        tables=[
            Table(
                "variance_components",
                "Components of variance",
                components,
                formats=dict.fromkeys(components.columns[1:], ".3f"),
                labels={"model_benchmark": "model × benchmark"},
            ),
            Table(
                "decision_study",
                "What more benchmarks, items or seeds would buy",
                plans,
                formats=dict.fromkeys(("items", "seeds", "prompts"), ".2g") | {"reliability": ".4f"},
                labels={name: f"times the {name}" for name in ("items", "seeds", "prompts")},
                folded=True,
            ),
        ],
    )
    return Part(summary, section)


def _shares_sentence(protocol: str, variance: Variance) -> str:
    """The shares of all components that were measured; none where one was estimated below zero: they do not add up."""
    if min(number(variance.raw_model), number(variance.raw_model_benchmark)) < 0:
        return (
            f"{UNDER[protocol].capitalize()}, the parts of a benchmark's variance over these models do not add up: one "
            "is estimated below zero."
        )
    parts = {name: number(value) for name, value in variance.components.items() if is_known(value)}
    shares = [f"{percent(part / sum(parts.values()))} {COMPONENTS[name]}" for name, part in parts.items()]
    return f"Of a benchmark's variance over these models {UNDER[protocol]}, {', '.join(shares[:-1])}, and {shares[-1]}."


# ----------------------------------------------------------------------------------------------------------------------
# The scores.


def all_scores(data: Data) -> Part:
    """All scores: what every other figure is made of."""
    matrix = data.matrix
    models, benchmarks = np.indices((len(matrix.models), len(matrix.benchmarks))).reshape(2, -1)
    names = {
        "model": np.array(matrix.labels, dtype=object)[models],
        "family": np.array([name or "unknown" for name in matrix.families], dtype=object)[models],
        "benchmark": np.array(matrix.benchmarks, dtype=object)[benchmarks],
    }
    values = {label: matrix.value[p].ravel() for p, label in LABELS.items()}
    table = pd.DataFrame(names | values).sort_values(list(names), ignore_index=True)
    section = Section(
        "Scores",
        hint="the data behind the picture",
        tables=[Table("scores", "All scores", table, formats=dict.fromkeys(values, ".4f"), folded=True)],
    )
    return Part({}, section)
