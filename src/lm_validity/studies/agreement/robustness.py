"""Sections on what a report rests on: subsets of benchmarks, seeds, the scores, and each family or benchmark alone."""

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Section, Table
from lm_validity.studies.agreement.analysis import DIRECT, TRAINED
from lm_validity.studies.agreement.score_matrix import ScoreMatrix
from lm_validity.studies.agreement.shown import MOST_DRAWN, assumed, plotted, value_in_words
from lm_validity.studies.agreement.statistics.ranking import average_ranks
from lm_validity.studies.agreement.summary import AgreementSummary, InfluenceSummary, Value
from lm_validity.summaries import is_known, number
from lm_validity.words import UNDER, count, decimal

NEARLY_ALL = 0.9  # tau
SUBSETS = ["random", "greedy", "random, with the others"]


def subset_section(summary: AgreementSummary) -> Section | None:
    """How many benchmarks are enough."""
    frame = _subset_frame(summary)
    if frame.empty or not plotted(frame)["tau"].notna().any():
        return None
    orders = pd.DataFrame(
        [
            {"place": i + 1, "benchmark": summary.tasks[j], "protocol": figures.PROTOCOL_LABELS[p]}
            for p, subset in summary.subsets.items()
            for i, j in enumerate(subset.greedy_order)
        ]
    )
    figure = Figure(
        "subsets",
        "Subsets against the whole set",
        _subset_chart(plotted(frame)),
        caption="Band: 5 to 95% of subsets.",
        wide=True,
    )
    formats = {"tau": ".3f", "low": ".3f", "high": ".3f"}
    labels = {"low": "5% of subsets below", "high": "95% of subsets below"}
    return Section(
        "How many benchmarks are enough",
        finding=subset_sentence(summary),
        explanation="Models are ranked by their mean standardised score over a subset of the benchmarks and over all. "
        "Greedy subsets are chosen on four fifths of the models. All taus are on models that took no part in the "
        "choice. The whole set contains the subset, so the curve with all benchmarks shows how many could have been "
        "left out. The curve with the other benchmarks, which the subset does not contain, shows how a ranking carries "
        "over.",
        figures=[figure],
        tables=[
            Table("subsets", "Agreement by size of the subset", frame, formats=formats, labels=labels, folded=True),
            Table("subset_order", "Greedy order of benchmarks, chosen on all models", orders, folded=True),
        ],
    )


def _subset_frame(summary: AgreementSummary) -> pd.DataFrame:
    rows = []
    for protocol, subset in summary.subsets.items():
        for i, size in enumerate(subset.sizes):
            shared = {"benchmarks": int(size), "protocol": figures.PROTOCOL_LABELS[protocol]}
            low, high = subset.random_low[i], subset.random_high[i]
            rows.append(shared | {"choice": "random", "tau": subset.random_mean[i], "low": low, "high": high})
            rows.append(shared | {"choice": "greedy", "tau": subset.greedy_mean[i], "low": np.nan, "high": np.nan})
            others = subset.others_mean[i]
            rows.append(shared | {"choice": "random, with the others", "tau": others, "low": np.nan, "high": np.nan})
    return pd.DataFrame(rows)


def _subset_chart(frame: pd.DataFrame) -> alt.LayerChart:
    return figures.lines(
        frame,
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


def subset_sentence(summary: AgreementSummary) -> str:
    """What one benchmark alone tells and, where any number does, how many tell nearly all.

    Towards half of the benchmarks few others are left to hold a subset against, and tau falls for that reason: a number
    of benchmarks is named only where it reaches `NEARLY_ALL`.
    """
    protocol = TRAINED if TRAINED in summary.subsets else DIRECT
    subset = summary.subsets.get(protocol)
    if subset is None or not is_known(subset.random_mean[0]) or not is_known(subset.one_with_others):
        return ""
    one = value_in_words(subset.one_with_others, subset.one_with_others_interval)
    others = [number(tau) for tau in subset.others_mean[: len(subset.sizes) // 2]]
    enough = next((place for place, tau in enumerate(others) if place and tau >= NEARLY_ALL), 0)
    more = f". For {enough + 1} benchmarks and the remaining ones it is {decimal(others[enough])}" if enough else ""
    return (
        "Between the ranking by one benchmark picked at random and the ranking by all others together"
        f"{assumed(summary)}, tau is {one} {UNDER[protocol]}{more}."
    )


def reliability_section(summary: AgreementSummary) -> Section | None:
    """Agreement of a benchmark with itself when models are fine-tuned again with another seed."""
    if not summary.reliability:
        return None
    frame = pd.DataFrame({"benchmark": list(summary.reliability), "tau": list(summary.reliability.values())})
    mean = plotted(frame)["tau"].mean()
    return Section(
        "Agreement between seeds",
        finding="Between rankings of one benchmark after fine-tuning with different seeds, tau is "
        f"{decimal(mean)} on average ({count(len(summary.matrix.by_seed), 'seed')}).",
        tables=[Table("reliability", "tau between seeds, by benchmark", frame, formats={"tau": ".3f"})],
    )


def score_section(matrix: ScoreMatrix) -> Section:
    """All scores, with ranks: what every other figure is made of."""
    frame = everything = _score_frame(matrix)
    main = figures.PROTOCOL_LABELS[TRAINED if matrix.has(TRAINED) else DIRECT]
    models = frame[frame["protocol"] == main].groupby("model")["rank"].mean().sort_values().index.tolist()[:MOST_DRAWN]
    shown = f"The {len(models)} models of best mean rank." if len(matrix.models) > len(models) else ""
    frame = frame[frame["model"].isin(models)] if shown else frame
    charts = [
        Figure(
            f"scores_{p}",
            label,
            _score_chart(frame[frame["protocol"] == label], matrix, models),
            caption=shown,
            min_width=480,
        )
        for p, label in figures.PROTOCOL_LABELS.items()
    ]
    labels = list(figures.PROTOCOL_LABELS.values())
    table = everything.pivot(index=["model", "family", "benchmark"], columns="protocol", values="score").reset_index()
    table = table.reindex(columns=["model", "family", "benchmark", *labels])
    return Section(
        "Scores and ranks",
        explanation=f"Models from best to worst mean rank{f' {UNDER[TRAINED]}' if matrix.has(TRAINED) else ''}. "
        f"Grey cells "
        "with × are "
        "missing.",
        figures=charts,
        tables=[Table("scores", "All scores", table, formats={label: ".4f" for label in labels}, folded=True)],
    )


def _score_frame(matrix: ScoreMatrix) -> pd.DataFrame:
    rows = []
    for protocol, label in figures.PROTOCOL_LABELS.items():
        ranks = average_ranks(matrix.oriented(protocol))
        for i, j in np.ndindex(len(matrix.models), len(matrix.benchmarks)):
            rows.append(
                {
                    "model": matrix.labels[i],
                    "family": matrix.families[i] or "unknown",
                    "benchmark": matrix.benchmarks[j],
                    "protocol": label,
                    "score": matrix.value[protocol][i, j],
                    "standard_error": matrix.stderr[protocol][i, j],
                    "rank": ranks[i, j],
                }
            )
    return pd.DataFrame(rows)


def _score_chart(frame: pd.DataFrame, matrix: ScoreMatrix, models: list[str]) -> alt.LayerChart:
    return figures.heatmap(
        frame.drop(columns="protocol"),
        x="benchmark",
        y="model",
        value="rank",
        title="Rank on the benchmark (1 = best)",
        x_order=list(matrix.benchmarks),
        y_order=models,
        tooltip=figures.tooltips(
            model="Model", family="Family", benchmark="Benchmark", score="Score|.4f", standard_error="±|.4f",
            rank="Rank|~g",
        ),
        domain=(1, len(matrix.models)),
        reverse=True,
        row_height=12,
        focus=True,
    )  # fmt: skip


def influence_section(
    influence: dict[str, list[InfluenceSummary]],
    whole: dict[str, Value],
    *,
    measure: str,
    prefix: str,
    name: str,
) -> Section | None:
    """`influence` and the figure of the `whole` table by protocol; `measure`: the figure's name in `InfluenceSummary`.

    `prefix`: of file names; `name`: what the figure is called, e.g. `mean tau`. None where nothing can be shown.
    """
    rows = [
        {
            "left_out": left.name,
            "kind": left.kind,
            "protocol": figures.PROTOCOL_LABELS[protocol],
            "value": getattr(left, measure),
            "change": number(getattr(left, measure)) - number(whole.get(protocol)),
        }
        for protocol, results in influence.items()
        for left in results
    ]
    frame = pd.DataFrame(rows)
    if frame.empty or not frame["change"].notna().any():
        return None
    largest = frame.loc[frame["change"].abs().idxmax()]
    kinds = [kind for kind in ("family", "benchmark") if (frame["kind"] == kind).any()]
    table = Table(
        prefix,
        "One family, benchmark or model left out",
        frame,
        formats={"value": ".3f", "change": "+.3f"},
        labels={"left_out": "left out", "value": name},
        folded=True,
    )
    return Section(
        f"What the {name} rests on",
        finding=f"The largest change comes from leaving out the {largest['kind']} {largest['left_out']}: "
        f"{largest['change']:+.3f} ({largest['protocol'].lower()}).",
        figures=[_influence_chart(plotted(frame[frame["kind"] == kind]), kind, prefix, name) for kind in kinds],
        tables=[table],
    )


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
