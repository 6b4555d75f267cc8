"""The sections on models of like size or compute, on families of models and on perplexity; and heatmaps of taus."""

import numpy as np
import pandas as pd

from lm_validity.missing import Missing, as_columns, is_known
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.studies.agreement.data import JACKKNIFED, Data
from lm_validity.studies.agreement.pooled import HEADLINE_RATIO, Pooled
from lm_validity.studies.agreement.similar import COMPARISONS, ByRatio, Perplexity
from lm_validity.studies.agreement.wording import (
    WHICH_INTERVAL,
    both_intervals,
    noise_leaves,
    over_both,
    shown_mean,
    value_in_words,
    which_interval,
    with_ceiling,
)
from lm_validity.tables.schema import DIRECT, PROTOCOLS
from lm_validity.words import UNDER, count

MOST_CELLS = 3600  # of a heatmap
SIZE_ALONE = "Among models of very different sizes, benchmarks can agree merely because scores rise with size."
TAU_LABELS = {
    "low": "from",
    "high": "to",
    "low_families": "from, families",
    "high_families": "to, families",
    "ceiling": "noise ceiling",
    "corrected": "noise-corrected",
    "corrected_low": "noise-corrected, from",
    "corrected_high": "noise-corrected, to",
    "corrected_low_families": "noise-corrected, from, families",
    "corrected_high_families": "noise-corrected, to, families",
    "significance_tau": "tau, significant differences only",
}
LABELS = figures.PROTOCOL_LABELS


# ----------------------------------------------------------------------------------------------------------------------
# Among models of like size.


def similar_sizes(data: Data, in_each: ByRatio, in_both: ByRatio, pooled: dict[str, Pooled]) -> Part:
    """Agreement by distance in parameters and in compute, with ceilings and corrected.

    The finding is on models that a reader chooses between: those of like size.
    """
    finding = _pooled_finding(data, pooled) if data.lacks_many else _size_finding(data, in_each, in_both)
    rows = []
    for quantity, of_all, of_common in zip(("parameters", "compute"), in_each, in_both, strict=True):
        sources = [("all of the protocol", of_all)]
        if not data.whole and data.improved.compared:
            sources.append(("known under both", of_common))
        rows += [
            {
                "cells": cells,
                "by": quantity,
                "models": f"within {row.at_most:g}×" if row.at_most else f"more than {row.at_least:g}× apart",
                "protocol": LABELS[p],
                "pairs": row.pairs_of_models,
                "tau": row.mean,
                **as_columns(row.interval),
                **as_columns(row.interval_clustered, "low_families", "high_families"),
                "ceiling": row.ceiling,
                "corrected": row.corrected,
                **as_columns(row.corrected_interval, "corrected_low", "corrected_high"),
                **as_columns(row.corrected_interval_clustered, "corrected_low_families", "corrected_high_families"),
            }
            for cells, by_protocol in sources
            for p, of_protocol in by_protocol.items()
            for row in ([] if isinstance(of_protocol, Missing) else of_protocol)
        ]
    if not rows:
        return Part({}, findings=[finding])
    frame = pd.DataFrame(sorted(rows, key=lambda row: row["cells"] == "known under both"))
    drawn = frame[frame["cells"] == frame["cells"].iloc[-1]]  # those known under both protocols where some are not
    charts = [_ratio_figure(with_ceiling(part), str(quantity)) for quantity, part in drawn.groupby("by", sort=False)]
    frame = frame.drop(columns="cells") if data.whole else frame
    numbers = [name for name in frame.columns if name not in ("cells", "by", "models", "protocol", "pairs")]
    section = Section(
        "Models of similar size",
        hint="by distance in parameters and in compute, with noise ceilings",
        explanation="Kendall's tau over only those pairs of models whose numbers of parameters (or pretraining "
        "compute) differ by at most the given ratio. The ceiling is the tau that noise alone would allow on the same "
        "pairs. The noise-corrected tau is an estimate without that noise. Where cells are missing, the figure uses "
        "the cells known under both protocols. Where the families of the models are known, there are two intervals. "
        + WHICH_INTERVAL.removeprefix("There are two intervals. "),
        figures=charts,
        tables=[
            Table(
                "tau_by_size_ratio",
                "Agreement by distance in size",
                frame,
                formats=dict.fromkeys(numbers, ".3f"),
                labels=TAU_LABELS,
            )
        ],
    )
    return Part({}, section, [finding])


def _ratio_figure(frame: pd.DataFrame, quantity: str) -> Figure:
    chart = figures.interval_dots(
        frame,
        y="models",
        value="tau",
        mark="ceiling",
        title="Mean tau",
        y_order=frame["models"].unique().tolist(),
        tooltip=figures.tooltips(
            models="Models", protocol="Protocol", pairs="Pairs of models", tau="tau|.3f", low="from|.3f",
            high="to|.3f", ceiling="noise ceiling|.3f", corrected="noise-corrected|.3f",
        ),
        offset="protocol",
        row_height=30,
    )  # fmt: skip
    caption = "Dot: mean tau. Line: 95% interval over models. Tick: noise ceiling."
    return Figure(f"tau_by_{quantity}_ratio", f"By distance in {quantity}", chart, caption=caption)


def _size_finding(data: Data, in_each: ByRatio, in_both: ByRatio) -> Finding | None:
    all_rows, common_rows = (
        {
            p: row
            for p, of_protocol in ratios.by_size.items()
            for row in ([] if isinstance(of_protocol, Missing) else of_protocol)
            if row.at_most == HEADLINE_RATIO and is_known(row.mean)
        }
        for ratios in (in_each, in_both)
    )
    two_protocols = len(common_rows) == len(PROTOCOLS)
    rows = common_rows if two_protocols else all_rows
    if not rows:
        return None
    parts = [f"{both_intervals(row.mean, row.interval, row.interval_clustered)} {UNDER[p]}" for p, row in rows.items()]
    without = [f"{value_in_words(row.corrected)} {UNDER[p]}" for p, row in rows.items() if is_known(row.corrected)]
    noise = noise_leaves({p: (row.mean, row.ceiling) for p, row in rows.items()})
    noise += f" The noise-corrected tau is {' and '.join(without)}." if without else ""
    pairs = " and ".join(dict.fromkeys(count(row.pairs_of_models, "pair") for row in rows.values()))
    cells = ""
    if not data.whole and len(rows) > 1:
        common = f", over the {count(int(data.in_both.sum()), 'cell')} known under both protocols"
        cells = common if two_protocols else ", each protocol over all cells it has"
    return Finding(
        "Among models at most 2× apart in size, two benchmarks' rankings "
        f"have a mean Kendall's tau of {' and '.join(parts)}.{noise}",
        f"{pairs} of models{cells}. {SIZE_ALONE} {which_interval([row.interval_clustered for row in rows.values()])}",
    )


def _pooled_finding(data: Data, pooled: dict[str, Pooled]) -> Finding | None:
    """The same where cells are missing; none where too few models have known cells."""
    row = pooled.get("like_size")
    if row is None or not any(is_known(interval) for interval in row.interval.values()):
        return None
    clustered = row.interval_clustered
    parts = [f"{both_intervals(mean, row.interval[p], clustered[p])} {UNDER[p]}" for p, mean in row.mean.items()]
    known_under = " known under both protocols" if len(parts) > 1 else ""
    return Finding(
        "Among models at most 2× apart in size, two benchmarks' rankings "
        f"have{data.assumed} a pooled Kendall's tau of {' and '.join(parts)}.",
        f"{row.comparisons:,} comparisons of two models on two benchmarks{known_under}, each counted once: "
        f"{count(row.pairs_of_models, 'pair')} of {count(row.models, 'model')}. {SIZE_ALONE}"
        f" {which_interval(list(clustered.values()))}",
    )


# ----------------------------------------------------------------------------------------------------------------------
# Heatmaps of taus, of several sections.


def tau_heatmaps(
    values: dict[tuple[str, str], np.ndarray],
    rows: list[str],
    columns: list[str],
    *,
    caption: str = "",
    without_diagonal: bool = False,
    number_format: str | None = None,
    row_height: int,
) -> list[Figure]:
    """Heatmaps of taus on one colour scale, which starts below 0 only where a tau does.

    `values`: (rows, columns) arrays by (file name, title); `number_format` writes each into its cell. None of more
    cells than can be seen (`heatmap_notes`).
    """
    if heatmap_notes(rows, columns):
        return []
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
                number_format=number_format,
                row_height=row_height,
            ),
            caption=caption,
        )
        for (name, title), tau in values.items()
    ]


def heatmap_notes(rows: list[str], columns: list[str]) -> list[str]:
    """That a heatmap has too many cells to be seen."""
    cells = len(rows) * len(columns)
    return [f"A heatmap of {cells:,} taus could not be read and is left out."] if cells > MOST_CELLS else []


def by_protocol(name: str, values: dict[str, np.ndarray], title: str = "{}") -> dict[tuple[str, str], np.ndarray]:
    """The grids of `tau_heatmaps` from values by protocol, under (file name, title)."""
    return {(f"{name}_{p}", title.format(label)): values[p] for p, label in LABELS.items()}


# ----------------------------------------------------------------------------------------------------------------------
# Perplexity.

KINDS = {"base": "base models", "instruction_tuned": "instruction-tuned ones"}


def perplexity(data: Data, entry: Perplexity | Missing) -> Part:
    """Whether perplexity ranks models as benchmarks do: heatmaps, means with intervals, each corpus with itself."""
    tasks = data.tasks
    if isinstance(entry, Missing):
        return Part({"perplexity": entry})
    corpora, before_after, same_corpus = entry.corpora, entry.before_after, entry.same_corpus
    together = {
        p: np.hstack([of_protocol.corpus_corpus, of_protocol.corpus_benchmark]) for p, of_protocol in entry.taus.items()
    }
    charts = tau_heatmaps(
        by_protocol("perplexity", together), corpora, [*corpora, *tasks], without_diagonal=True, row_height=26
    )
    apart = {
        (f"perplexity_before_{kind}", "Base models" if kind == "base" else "Instruction-tuned models"): tau
        for kind, tau in entry.before_after_taus.items()
        if is_known(before_after[kind])
    }
    caption = "Perplexity under direct evaluation against scores under train before test."
    charts += tau_heatmaps(apart, corpora, tasks, caption=caption, row_height=26)
    compared = (
        (entry.corpus_benchmark, entry.corpus_benchmark_interval),
        (entry.corpus_corpus, entry.corpus_corpus_interval),
        (entry.average_average, entry.average_average_interval),
    )
    rows = [
        {"comparison": title, "protocol": label, "tau": means[p], **as_columns(intervals[p])}
        for title, (means, intervals) in zip(COMPARISONS.values(), compared, strict=True)
        for p, label in LABELS.items()
    ]
    formats = {"tau": ".3f", "low": ".3f", "high": ".3f"}
    tables = [Table("perplexity", "Agreement with perplexity", pd.DataFrame(rows), formats=formats, folded=True)]
    if any(map(is_known, same_corpus.values())):
        frame = pd.DataFrame({"corpus": corpora, "tau": list(same_corpus.values())})
        title = "The same corpus: its direct ranking with that under train before test"
        tables.append(Table("perplexity_same_corpus", title, frame, formats={"tau": ".3f"}, folded=True))
    parts = [
        f"{value_in_words(before_after[kind], entry.before_after_interval[kind])} among {words}"
        for kind, words in KINDS.items()
        if is_known(before_after[kind])
    ]
    sentence = (
        "Between the ranking by perplexity under direct evaluation and the ranking under train before test, tau is "
        f"{' and '.join(parts)}."
    )
    section = Section(
        "Perplexity",
        hint="whether it ranks models as benchmarks do",
        finding=sentence if parts else "",
        figures=charts,
        tables=tables,
    )
    return Part({"perplexity": entry}, section, [_perplexity_finding(data, entry)])


def _perplexity_finding(data: Data, entry: Perplexity) -> Finding | None:
    by_protocol, in_both_protocols = entry.corpus_benchmark, entry.in_both["corpus_benchmark"]
    if not is_known(by_protocol[DIRECT]):
        return None
    compared = all(map(is_known, in_both_protocols.values()))
    if compared and data.incomplete and len(data.models_in_both) < JACKKNIFED:  # a mean of taus of 1 and -1
        by_protocol, compared = {p: tau for p, tau in by_protocol.items() if p not in data.incomplete}, False
    entry_shown = in_both_protocols if compared and data.lacks_many else by_protocol
    parts = [
        f"{shown_mean(entry_shown[p], by_protocol[p], entry.corpus_benchmark_interval[p])} {UNDER[p]}"
        for p in entry_shown
        if is_known(entry_shown[p])
    ]
    return Finding(
        f"Between rankings by perplexity and rankings by benchmark{data.assumed}, the mean tau is "
        f"{' and '.join(parts)}.",
        f"{count(entry.models, 'model')} with perplexities on "
        f"{count(len(entry.corpora), 'corpus', 'corpora')}{over_both(partly=entry_shown != by_protocol)}.",
    )
