"""What cells that are missing could change: tipping points, and the same cells taken out of the other protocol."""

import numpy as np
import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Section, Table
from lm_validity.studies.agreement.analysis import DIRECT, TRAINED, AgreementAnalysis
from lm_validity.studies.agreement.incomplete.summary import MaskedTau, MissingCells, PooledRow, Shifted, Tipping
from lm_validity.studies.agreement.pooled_comparison import FEW_MODELS
from lm_validity.studies.agreement.shown import assumed, plotted, value_in_words
from lm_validity.studies.agreement.similar_sections import both_intervals
from lm_validity.studies.agreement.statistics.ranking import (
    fewest_in_common,
    kendall_tau_matrix,
    mean_over_pairs,
    pair_signs,
)
from lm_validity.studies.agreement.statistics.subsets import SHIFTS, shifted_means, tipping_points
from lm_validity.studies.agreement.summary import AgreementSummary, TauSummary
from lm_validity.summaries import Missing, is_known, known, number
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import UNDER, count, decimal

NO_TAU = "No two benchmarks have a tau."
NO_TIP = f"No common shift of up to {SHIFTS[-1]:g} standard deviations does."


def missing_cells(
    analysis: AgreementAnalysis, tau: dict[str, TauSummary], pooled: dict[str, PooledRow], seed: int = 5
) -> MissingCells | None:
    """How far off missing scores would have to be; None where no cell is missing."""
    scores = {p: analysis.scores[p] for p in PROTOCOLS if analysis.matrix.has(p)}
    cells = {p: int((~np.isfinite(values)).sum()) for p, values in scores.items()}
    if not any(cells.values()):
        return None
    means = shifted_means(scores, np.random.default_rng(seed))
    both = len(means) == len(PROTOCOLS)
    change = means[TRAINED] - means[DIRECT] if both else np.full(len(SHIFTS), np.nan)
    return MissingCells(
        cells=cells,
        fewest_in_common={p: fewest_in_common(values) for p, values in scores.items()},
        kendall_tau={p: _interval_tip(tau[p], means[p]) for p in means},
        change=_sign_tip(pooled, change),
        masked=_masked(analysis, tau) if both else {},
        curve=[
            Shifted(
                float(shift),
                {p: known(float(values[place]), NO_TAU) for p, values in means.items()},
                known(float(change[place]), NO_TAU if both else "One protocol has scores."),
            )
            for place, shift in enumerate(SHIFTS)
        ],
    )


def _interval_tip(tau: TauSummary, means: np.ndarray) -> Tipping | Missing:
    """Where the mean tau leaves its interval."""
    return tau.interval if isinstance(tau.interval, Missing) else _tip(means, *tau.interval)


def _sign_tip(pooled: dict[str, PooledRow], change: np.ndarray) -> Tipping | Missing:
    """Where the change by train before test has the other sign."""
    row = pooled.get("all")
    if row is None:
        return Missing(FEW_MODELS)
    if isinstance(row.change_interval, Missing):
        return row.change_interval
    if not number(row.change):
        return Missing("The change is 0: it has no sign.")
    return _tip(change, *((0.0, np.inf) if number(row.change) > 0 else (-np.inf, 0.0)))


def _tip(values: np.ndarray, low: float, high: float) -> Tipping:
    found = tipping_points(SHIFTS, values, low, high)
    suggested = known(float(values[SHIFTS == 0][0]), NO_TAU)
    return Tipping(suggested, known(found.below, NO_TIP), known(found.above, NO_TIP))


def _masked(analysis: AgreementAnalysis, tau: dict[str, TauSummary]) -> dict[str, MaskedTau]:
    """Each protocol without the cells that the other one lacks, where it lacks any of those known here."""
    common = analysis.comparison.known
    found = {}
    for p in PROTOCOLS:
        cells = int((np.isfinite(analysis.scores[p]) & ~common).sum())
        if cells:
            mean = mean_over_pairs(kendall_tau_matrix(pair_signs(analysis.comparison.scores[p])))
            found[p] = MaskedTau(cells, tau[p].mean, known(mean, NO_TAU))
    return found


def pooled_change_finding(summary: AgreementSummary, pooled: PooledRow) -> Finding | None:
    """The change where cells are missing; none where too few models have a cell under both protocols."""
    if not is_known(pooled.change_interval):
        return None
    change = both_intervals(pooled.change, pooled.change_interval, pooled.change_interval_clustered, signed=True)
    before, after = (value_in_words(pooled.mean[p]) for p in PROTOCOLS)
    return Finding(
        f"Train before test changes the pooled tau{assumed(summary)} from {before} to {after}, by {change}.",
        f"Over the {count(summary.cells_in_both, 'cell')} of {count(pooled.models, 'model')} known under both "
        f"protocols: {pooled.comparisons:,} comparisons of two models on two benchmarks, each counted once. The mean "
        "over pairs of benchmarks gives a pair with few models in common the weight of any other. It changes by "
        f"{value_in_words(summary.improvement.mean, signed=True)}, and {summary.improved_pairs} of "
        f"{summary.compared_pairs} pairs agree more.",
    )


def missing_finding(summary: AgreementSummary) -> Finding | None:
    """How far off the missing scores would have to be to change what the page says."""
    found = summary.missing_cells
    if found is None or not summary.lacks_many:
        return None
    sentences = []
    if isinstance(found.change, Tipping):
        what = "the change of the mean tau from direct evaluation to train before test"
        sentences.append(_in_words(found.change, what, "have the other sign", signed=True))
    for p, tip in found.kendall_tau.items():
        if found.cells[p] and isinstance(tip, Tipping):
            sentences.append(_in_words(tip, f"the mean tau {UNDER[p]}", "leave its interval"))
    if not sentences:
        return None
    first, *others = sentences
    text = " ".join([first, *(f"{sentence[0].upper()}{sentence[1:]}" for sentence in others)])
    return Finding(
        f"Missing scores: {text}",
        "Counts every cell without a score. Standard deviations are those of a benchmark over its models. What the "
        "other scores suggest is predicted from one factor here. Other sections predict missing scores differently.",
    )


def _in_words(tip: Tipping, figure: str, event: str, *, signed: bool = False) -> str:
    """What it takes, in a sentence."""
    suggested = value_in_words(tip.suggested, signed=signed)
    if tip.below == 0:
        return f"with the missing scores at what the other scores suggest, {figure} would {event} ({suggested})."
    ways = [
        f"{decimal(abs(number(shift)), 1)} standard deviations {side}"
        for shift, side in ((tip.below, "below"), (tip.above, "above"))
        if is_known(shift)
    ]
    if not ways:
        return (
            f"no common shift of them by up to {SHIFTS[-1]:g} standard deviations makes {figure} {event} "
            f"({suggested} at what the other scores suggest)."
        )
    return f"{figure} would {event} if all of them were {' or '.join(ways)} what the other scores suggest."


def missing_section(summary: AgreementSummary) -> Section | None:
    """The mean taus along the shift, and what leaving the same cells out of the other protocol does."""
    found = summary.missing_cells
    if found is None or not any(is_known(tau) for row in found.curve for tau in row.kendall_tau.values()):
        return None
    frame = pd.DataFrame(
        [
            {"shift": row.shift, "protocol": figures.PROTOCOL_LABELS[p], "tau": tau}
            for row in found.curve
            for p, tau in row.kendall_tau.items()
        ]
    )
    chart = figures.lines(
        plotted(frame),
        x="shift",
        y="tau",
        x_title="Shift of the missing scores from what the others suggest (standard deviations)",
        y_title="Mean tau",
        tooltip=figures.tooltips(protocol="Protocol", shift="Shift|+.1f", tau="Mean tau|.3f"),
    )
    masked = []
    for p, one in found.masked.items():
        other, mean, without = TRAINED if p == DIRECT else DIRECT, *map(value_in_words, (one.mean, one.mean_without))
        masked.append(
            f"Without the {count(one.cells, 'cell')} that have no score {UNDER[other]}, the mean tau {UNDER[p]} "
            + (f"is {without}, as with them." if without == mean else f"is {without} instead of {mean}.")
        )
    return Section(
        "What the missing cells could change",
        finding=" ".join(masked),
        explanation="Each missing score is drawn around what the other scores suggest, by one factor fitted to all "
        "known scores. Then all of them are shifted by the same number of standard deviations of their benchmarks. A "
        "shift of 0 means that the known scores explain why they are missing. Nobody knows the true shift. The curve "
        "shows what each shift would mean.",
        figures=[Figure("missing_cells", "Mean tau by the shift of the missing scores", chart, wide=True)],
        tables=[
            Table(
                "missing_cells",
                "Mean tau by the shift of the missing scores",
                frame,
                formats={"shift": "+.1f", "tau": ".3f"},
                folded=True,
            )
        ],
    )
