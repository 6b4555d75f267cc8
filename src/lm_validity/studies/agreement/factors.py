"""The factors report: how many factors does the score matrix have, what is the first, and which model to pick?

Above the folds stand what the first factor explains and what it follows, and three panels; the answer for the first
page of a site is which model is best.
"""

from functools import cached_property, partial
from pathlib import Path

import numpy as np

from lm_validity import words
from lm_validity.config.sections import REPORTS, Reports
from lm_validity.pages import svg
from lm_validity.pages.page import Finding, Lede, Page, Panel
from lm_validity.results.put import Ends, Row, Rows, ends_of
from lm_validity.results.sections import Dots, Points, Says, SectionOf, Series, TableOf, interval_words, write_rows
from lm_validity.statistics import section_generator
from lm_validity.studies.agreement import data as base
from lm_validity.studies.agreement import report, score_matrix
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.score_matrix import MINIMUM_FAMILY, ScoreMatrix, family_members, read_score_matrix
from lm_validity.studies.agreement.statistics import factors as pca
from lm_validity.studies.agreement.statistics.noise import ShareCeiling, share_ceiling, shown_ceiling
from lm_validity.studies.agreement.statistics.ranking import known_in_all, pair_signs, resampled_kendall_tau
from lm_validity.studies.agreement.statistics.resampling import cluster_numbers, multiplicities, percentile_interval
from lm_validity.tables.counted import Sources
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import UNDER, Missing, Reason, ReasonCode, count, decimal, known, no_scores, percent, too_few

SHOWN, COMPARED = 5, 3  # components of a protocol, and of those beside shuffled tables and of common cells
MINIMUM_RESAMPLED_FAMILY = 10  # models of a family: fewer give no usable interval of a share of variance
MAINLY = 0.5  # share of the variance from which on, interval and all, models differ mainly in one way
FOLLOWS = 0.5  # tau with compute from which on, interval and all, the factor follows compute
LEAST_DRAWN = 3  # models whose compute is known, for the picture
FEW_IN_COMMON = (
    f"Two benchmarks have fewer than half of the models in common, or fewer than {base.JACKKNIFED} models have scores "
    "and most have none. Correlations over so few models make the first share too large, and so would a table with "
    "predicted cells."
)
NO_COMPONENTS = too_few("Fewer than two benchmarks can take part, so there are no components.")
NO_SHARE_INTERVAL = Reason(
    "Without one of the models there is no such component, or its share is 1.", ReasonCode.NO_INTERVAL
)
NO_FACTOR = Reason(
    "Parallel analysis finds no factor: tables with shuffled columns have as large a first share.",
    ReasonCode.NO_INTERVAL,
)
simulations, resamples = (partial(section_generator, seed=seed) for seed in (2, 3))
Shares = list[float] | Missing


# ----------------------------------------------------------------------------------------------------------------------
# The numbers.


class FactorData(Data):
    """`common`, `in_both`, `models_in_both` and `whole`: of the benchmarks that take part in the components of both."""

    @cached_property
    def components(self) -> dict[str, pca.Components]:
        """By protocol the principal components of all its scores."""
        return {p: pca.principal_components(self.scores[p]) for p in PROTOCOLS}

    @cached_property
    def common(self) -> dict[str, np.ndarray]:
        """(models, benchmarks) scores of the cells known under both protocols."""
        common = known_in_all(self.scores)
        used_columns = np.all([pca.principal_components(scores).included for scores in common.values()], axis=0)
        return {p: np.where(used_columns, scores, np.nan) for p, scores in common.items()}

    @cached_property
    def whole(self) -> bool:
        """Whether a comparison of the protocols leaves out no cell."""
        return all(np.array_equal(self.common[p], self.scores[p], equal_nan=True) for p in PROTOCOLS)

    @cached_property
    def parallel(self) -> dict[str, pca.ParallelAnalysis | Missing]:
        """By protocol its components beside those of tables with shuffled columns."""
        found: dict[str, pca.ParallelAnalysis | Missing] = {}
        for p, scores in self.scores.items():
            shares = self.shares(p, scores)
            null = pca.parallel_analysis(scores, simulations("parallel analysis"))
            found[p] = shares if isinstance(shares, Missing) else null
        return found

    @cached_property
    def ceilings(self) -> dict[str, ShareCeiling]:
        """By protocol with scores the first share that one order of the models and the noise of the scores leave."""
        rng = simulations("noise ceiling")
        return {
            p: share_ceiling(self.scores[p], score_matrix.measurement_error(self.matrix, p), rng)
            for p in self.matrix.protocols
        }

    def shares(self, protocol: str, scores: np.ndarray) -> Shares:
        """The shares of variance of the components of `scores` (models, benchmarks)."""
        components = pca.principal_components(scores)
        if not len(components.explained_variance):
            return Missing(NO_COMPONENTS if self.matrix.has(protocol) else no_scores(protocol))
        few = _few_in_common(scores[:, components.included])
        return Missing(FEW_IN_COMMON) if few else [*map(float, components.explained_variance)]


def _few_in_common(scores: np.ndarray) -> bool:
    """Whether two benchmarks have fewer than half of the models with `scores` (models, benchmarks) in common, or so few
    models have scores that they say nothing about the others."""
    present = np.isfinite(scores).astype(int)
    models = present.any(axis=1).sum()
    return bool((present.T @ present).min() < models / 2 or models < min(base.JACKKNIFED, len(scores) / 2))


def factor_rows(data: FactorData) -> Rows:
    """All numbers of the report."""
    rows, matrix = Rows("factors"), data.matrix
    rows.put("models", len(matrix.models), "models")
    rows.put("benchmarks", len(data.tasks), "benchmarks")
    rows.put("cells_in_both", int(data.in_both.sum()), "cells")
    of_both = {p: scores[data.models_in_both] for p, scores in data.common.items()}
    for p in PROTOCOLS:
        at = rows.of(protocol=p)
        _put_shares(at, data, p, "explained_variance", data.scores[p], data.scores[p], SHOWN)
        common = of_both[p] if not data.whole else data.scores[p]
        _put_shares(at, data, p, "explained_variance_in_both", data.common[p], common, COMPARED)
        at.put("explained_variance_without_size", _without_size(data, p), "share", component=1)
        if p in data.ceilings:
            ceiling = data.ceilings[p]
            why = base.no_ceiling(ceiling.included, data.scores[p], p)
            at.put("first_component_ceiling", known(ceiling.first_component, why), "share")
        _put_parallel(at, data, p)
        _put_scores(at, data, p)
    _put_families(rows, data)
    for model, compute in zip(matrix.models, matrix.sizes().compute, strict=True):
        rows.put("compute", compute, "operations", subject=model, why="The model's size or tokens are not known.")
    return rows


def _put_shares(
    at: Rows, data: FactorData, protocol: str, quantity: str, scores: np.ndarray, of_models: np.ndarray, shown: int
) -> None:
    """The first shares of variance of `scores`, and of the first its intervals over the models of the scores
    `of_models` and over families, where parallel analysis finds a factor."""
    counted = ("models_in_both", len(data.models_in_both)) if shown == COMPARED else ("models", len(data.matrix.models))
    shares, names = data.shares(protocol, scores), data.matrix.families
    if isinstance(shares, Missing):
        at.put(quantity, shares, "share", {"models": shares}, counted=counted, component=1)
        return
    null, over_models, clustered = data.parallel[protocol], Missing(NO_FACTOR), Missing(NO_FACTOR)
    intervals: dict[str, Ends] = {"models": over_models, "families": clustered}
    reason = data.no_intervals or (base.FEW_IN_BOTH if len(of_models) < MINIMUM_FAMILY else None)
    if reason is not None:
        intervals = {"models": Missing(reason)}
    elif isinstance(null, Missing) or null.factors:
        no_families, own = base.no_clusters(names), pca.share_interval(of_models, np.arange(len(of_models)))
        models = own if np.isfinite(own.low) else Missing(NO_SHARE_INTERVAL)
        intervals = {"models": models, "families": Missing(no_families)}
        if not no_families:
            families = base.ends(shares[0], pca.share_interval(scores, cluster_numbers(names)), base.LOST_CLUSTER)
            intervals["families"] = base.over_families(families, models, names)
    # the wider one first: the one that a claim about other models quotes
    width = {over: -np.ptp(pair) if isinstance(pair, tuple) else 0.0 for over, pair in intervals.items()}
    intervals = {over: intervals[over] for over in sorted(intervals, key=lambda over: width[over])}
    for number, share in enumerate(shares[:shown], 1):
        at.put(quantity, share, "share", intervals if number == 1 else None, counted=counted, component=number)


def _without_size(data: FactorData, protocol: str) -> float | Missing:
    """The first share of scores less what goes with the logarithm of the number of parameters."""
    size, _ = data.matrix.sizes()
    residuals = pca.without_size(data.scores[protocol], size)
    own = pca.principal_components(residuals).explained_variance
    if np.isfinite(size).sum() < MINIMUM_FAMILY or not len(own):
        lacks = f"Fewer than {MINIMUM_FAMILY} models have a known number of parameters, or {NO_COMPONENTS}"
        return Missing(lacks if data.matrix.has(protocol) else no_scores(protocol))
    few = _few_in_common(data.scores[protocol][:, pca.principal_components(residuals).included])
    return Missing(FEW_IN_COMMON) if few else float(own[0])


def _put_parallel(at: Rows, data: FactorData, protocol: str) -> None:
    """How many factors there are, and what shuffled tables have."""
    null = data.parallel[protocol]
    if isinstance(null, Missing):
        for quantity, unit in (("factors", "factors"), ("first_component_p", "probability")):
            at.put(quantity, null, unit)
        return
    at.put("factors", null.factors, "factors")
    for number, share in enumerate(null.null_95[:COMPARED], 1):
        at.put("explained_variance_shuffled_95", float(share), "share", component=number)
    at.put("first_component_p", null.p_first, "probability")


def _put_families(rows: Rows, data: FactorData) -> None:
    """The shares of the components within each family, and the first one's interval in large families."""
    for family, members in family_members(data.matrix.families).items():
        few = too_few(f"The family has fewer than {MINIMUM_RESAMPLED_FAMILY} models.")
        reason = data.no_intervals or (None if len(members) >= MINIMUM_RESAMPLED_FAMILY else few)
        for p in PROTOCOLS:
            at, scores = rows.of(subject=family, protocol=p), data.scores[p][members]
            shares = _family_shares(data, p, scores)
            if isinstance(shares, Missing):
                at.put("explained_variance_within_family", shares, "share", {"models": shares}, component=1)
                continue
            interval: Ends = Missing(reason or NO_FACTOR)
            if reason is None and pca.parallel_analysis(scores, simulations(f"family {family}"), 200).factors:
                interval = base.ends(shares[0], pca.share_interval(scores, np.arange(len(members))), no_scores(p))
            for number, share in enumerate(shares[:SHOWN], 1):
                over = {"models": interval} if number == 1 else None
                at.put("explained_variance_within_family", share, "share", over, component=number)


def _family_shares(data: FactorData, protocol: str, scores: np.ndarray) -> Shares:
    if not data.matrix.has(protocol):
        return Missing(no_scores(protocol))
    if len(scores) < MINIMUM_FAMILY:
        return Missing(base.SMALL_FAMILY)
    shares = pca.principal_components(scores).explained_variance
    if not len(shares):
        return Missing("Models of the family differ on fewer than two benchmarks.")
    few = _few_in_common(scores[:, np.isfinite(scores).any(axis=0)])
    return Missing(FEW_IN_COMMON) if few else [*map(float, shares)]


def _put_scores(at: Rows, data: FactorData, protocol: str) -> None:
    """The models' scores on the first component, and how these go with pretraining compute."""
    components, compute = data.components[protocol], data.matrix.sizes().compute
    lacks = NO_COMPONENTS if data.matrix.has(protocol) else no_scores(protocol)
    why = "The model has no score on a benchmark of the components." if len(components.explained_variance) else lacks
    for model, score in zip(data.matrix.models, components.scores, strict=True):
        at.put("first_component_score", score, "sd", subject=model, why=why)
    relation = pca.relate_to_compute(components.scores, compute)
    why = "Models are equal in compute or in the first component."
    if relation.models < MINIMUM_FAMILY:
        why = f"{count(relation.models, 'model')} with a first component and known compute: too few for a relation."
    why = why if data.matrix.has(protocol) else no_scores(protocol)
    interval = None
    if data.no_intervals is None and np.isfinite(relation.kendall):
        pairs = np.column_stack([components.scores, compute])
        pairs = pairs[np.isfinite(pairs).all(axis=1)]
        weights = multiplicities(len(pairs), data.resamples, resamples(f"compute {protocol}"))
        interval = percentile_interval(resampled_kendall_tau(pair_signs(pairs), weights)[:, 0, 1], len(pairs))
    for name in ("kendall", "spearman", "pearson"):
        value = known(float(getattr(relation, name)), why)
        over = {"models": base.ends(value, interval, data.no_intervals)} if name == "kendall" else None
        counted = ("models", relation.models)
        at.put("first_component_compute", value, "correlation", over, counted=counted, correlation=name)


def _notes(data: FactorData, rows: Rows) -> list[str]:
    """What is missing, equal, assumed or left out of which number."""
    matrix, notes = data.matrix, list[str]()
    for p in matrix.protocols:
        under, components = UNDER[p].capitalize(), data.components[p]
        left_out = [name for name, is_used in zip(data.tasks, components.included, strict=True) if not is_used]
        if left_out:
            notes.append(
                f"{under}, these benchmarks are constant, alone or without enough common models, and not in the "
                f"components: {words.listing(left_out)}."
            )
        missing = int((~np.isfinite(data.scores[p][:, components.included])).sum())
        if missing and len(components.explained_variance):
            notes.append(f"{under}, {missing} cells are missing; correlations are over the models known on both.")
    notes += report.comparison_notes(data)
    for p, entry in data.ceilings.items():
        share = rows.value("explained_variance", protocol=p, component=1)
        notes += report.ceiling_notes(data, p, entry.included, "first factor's share", entry.first_component, share)
    has_compute = np.isfinite(matrix.sizes().compute)
    if not has_compute.all():
        notes.append(f"Pretraining compute is known and reliable for {has_compute.sum()} of {len(has_compute)} models.")
    return [*matrix.notes, *report.coverage_notes(data), *report.selection_notes(data), *notes]


# ----------------------------------------------------------------------------------------------------------------------
# What the page shows of the rows.


def report_factors(sources: Sources, output: str | Path, section: Reports = REPORTS) -> None:
    """Write results.parquet, results.csv and the page of the factors report under `output`.

    Without resamples, intervals and ranks are skipped.
    """
    page, rows = factors(read_score_matrix(sources), section.resamples)
    write_rows(page, rows, output)


def factors(matrix: ScoreMatrix, resamples: int = 0) -> tuple[Page, Rows]:
    """The report on the factors of a score matrix: its page and its rows."""
    data = FactorData(matrix, {}, resamples)
    rows = factor_rows(data)
    return _page(data, rows), rows


def _page(data: FactorData, rows: Rows) -> Page:
    shown, compared = data.matrix.labelled(rows), len(_known(rows, "explained_variance_in_both")) == len(PROTOCOLS)
    quantity, picture = "explained_variance_in_both" if compared else "explained_variance", _picture(rows)
    return Page(
        name="factors",
        title="Factors and potential",
        question="How many factors does the score matrix have, what is the first, and which model has most potential? "
        "A factor (here a principal component) is a weighted sum of the benchmarks. The first is the one along which "
        f"models differ most. {words.explain_protocols(data.matrix.protocols, trained_here=data.matrix.trained_here)}",
        lede=_lede(data, rows),
        picture=picture.draw(shown) if picture.fields else None,
        panels=_explained(shown, quantity, same_cells=data.whole or not compared),
        findings=_findings(rows, data, compared=compared),
        sections=[section.drawn(shown) for section in SECTIONS],
        notes=_notes(data, rows),
    )


def _known(rows: Rows, quantity: str) -> dict[str, float]:
    """By protocol the first share, where it is known."""
    return {p: share for p in PROTOCOLS if np.isfinite(share := rows.value(quantity, protocol=p, component=1))}


def _lede(data: FactorData, rows: Rows) -> Lede:
    """Of one protocol, over all its cells, as its noise ceiling, shuffled tables and relation to compute are."""
    shares = _known(rows, "explained_variance")
    if not shares:
        return Lede("In how many ways do these models differ?", "Not known: the components cannot be computed.")
    protocol = TRAINED if TRAINED in shares else DIRECT
    first, quoted = shares[protocol], rows.row("explained_variance", protocol=protocol, component=1)
    when = "After training for the test, " if protocol == TRAINED else "Direct, "
    if rows.value("factors", protocol=protocol) == 0:
        sentence = f"{when}no factor explains more than in tables with shuffled columns"
        return Lede("No ability that the benchmarks share was found", sentence)
    heading, interval = "Not known whether one ability explains most differences", quoted and ends_of(quoted)
    sentence = f"{when}one factor explains {percent(first)} of the differences between models"
    if data.gaps(protocol):
        return Lede(f"{heading}: scores are missing", sentence)
    # noise alone makes the first share small, and few benchmarks or models make it large
    ceiling = rows.value("first_component_ceiling", protocol=protocol)
    shuffled = rows.value("explained_variance_shuffled_95", protocol=protocol, component=1)
    if interval and interval[1] < min(MAINLY, ceiling):
        heading = "More than one ability explains the differences"
    # a share of 1 has no interval, since it is 1 without any of the models too
    least = interval[0] if interval else first if first > 1 - 1e-9 else 0.0
    if least > max(MAINLY, shuffled):
        heading = "One ability explains most differences"
        relation = rows.row("first_component_compute", protocol=protocol, correlation="kendall")
        if relation is not None and (relation.low or 0) > FOLLOWS:
            heading += ", and it follows pretraining compute"
    return Lede(heading, sentence, _interval(quoted) if quoted else "")


def _picture(rows: Rows) -> Points:
    """The first factor of each protocol under which enough models have a score on it and known compute."""
    powers, fields = {row.subject for row in rows.all("compute") if row.value is not None}, dict[str, str]()
    for p in PROTOCOLS:
        scored = [row.subject for row in rows.all("first_component_score", protocol=p) if row.value is not None]
        relation = rows.row("first_component_compute", protocol=p, correlation="kendall")
        if relation is not None and len(powers.intersection(scored)) >= LEAST_DRAWN:
            fields[p] = f"{svg.NAMES[p]}; order as by compute: {_with_interval(relation)}"
    return Points(
        "compute",
        "first_component_score",
        fields,
        "The first factor against pretraining compute in floating-point operations. A factor is a weighted sum of the "
        "benchmarks along which models differ. Each dot is a model. Order as by compute: tau is 1 for the same order "
        "and 0 for unrelated ones.",
    )


def _with_interval(tau: Row) -> str:
    """`0.52 (95%: 0.21 to 0.74)`."""
    interval = _interval(tau)
    return f"{'not known' if tau.value is None else decimal(tau.value)}{interval and f' ({interval})'}"


def _interval(row: Row) -> str:
    """An interval in words, without signs before positive numbers."""
    return interval_words(row).replace("+", "")


def _explained(rows: Rows, quantity: str, *, same_cells: bool) -> list[Panel]:
    """The shares of the first components, beside those of shuffled tables where these are of the `same_cells`."""
    series, name = report.protocol_series(quantity, "component", "factor {}"), {"component": "factor {}"}
    if same_cells:
        series += [
            Series("explained_variance_shuffled_95", name, {"protocol": p}, "s", "shuffled tables") for p in PROTOCOLS
        ]
    says = Says(quantity, "**{span}** of the variance", {"component": 1}, {"protocol": "{}"})(rows)
    picture = Dots(series, "Share of the variance that each factor explains").draw(rows).svg
    return [Panel("How much does it explain?", says, picture)] if says else []


def _findings(rows: Rows, data: FactorData, *, compared: bool) -> list[Finding]:
    """On the first share, the number of factors, and the relation to compute."""
    quantity = "explained_variance_in_both" if compared else "explained_variance"
    shares, found = _known(rows, quantity), {p: rows.value("factors", protocol=p) for p in PROTOCOLS}
    if not shares:
        return [Finding("The components cannot be computed.")]
    everyone, in_both = len(data.matrix.models), len(data.models_in_both)
    some = compared and in_both < everyone
    models = count(in_both if compared else everyone, "model")
    parts = list[str]()
    for p, share in shares.items():
        rows_of = {over: rows.row(quantity, over, protocol=p, component=1) for over in ("models", "families")}
        intervals = "; ".join(f"{_interval(row)} over {over}" for over, row in rows_of.items() if row and row.low)
        if found[p] != 0:
            variance = "" if parts else " of the variance"
            parts.append(f"{percent(share)}{variance} {UNDER[p]}{intervals and f' ({intervals})'}")
    sentence = "The first factor explains no more than in tables with shuffled columns."
    if parts:
        assumed = "no heavy tails" + (" and that cells are missing by chance" if data.lacks_many else "")
        whose = f"Among the {models} known under both protocols, the" if some else "The"
        sentence = f"{whose} first factor (intervals assume {assumed}) explains {' and '.join(parts)}."
    without = [
        f"{percent(rest)} {UNDER[p]}"
        for p in PROTOCOLS
        if np.isfinite(rest := rows.value("explained_variance_without_size", protocol=p, component=1)) and not some
    ]
    if without:
        sentence += f" Of what model size leaves unexplained, its own first factor explains {' and '.join(without)}."
    cells = f", {count(int(data.in_both.sum()), 'cell')} known under both protocols" if compared else ""
    findings = [
        Finding(
            sentence,
            f"Standardised scores of {models} on {count(len(data.tasks), 'benchmark')}{cells}. The intervals are for "
            "other models on these benchmarks. In simulations with 20 and 61 models, some of them far from the rest "
            "(heavy tails), they contained the truth in 78% to 91% of cases, not 95%.",
        )
    ]
    counted = {p: int(number) for p, number in found.items() if np.isfinite(number)}
    if counted:
        numbers = " and ".join(f"{count(number, 'factor')} {UNDER[p]}" for p, number in counted.items())
        chance = " and ".join(f"{rows.value('first_component_p', protocol=p):.3f} {UNDER[p]}" for p in counted)
        basis = (
            "Parallel analysis counts the factors above the 95th percentile of tables with shuffled columns. Such "
            f"tables have so large a first factor with a probability of {chance}."
        )
        first = {p: rows.value("explained_variance", protocol=p, component=1) for p in counted}
        ceilings = {p: shown_ceiling(rows.value("first_component_ceiling", protocol=p), first[p]) for p in counted}
        limits = [f"{percent(float(limit))} {UNDER[p]}" for p, limit in ceilings.items() if np.isfinite(limit)]
        if limits:
            basis += f" With one order on all benchmarks, noise would leave the first factor {' and '.join(limits)}."
        findings.append(Finding(f"Factors beyond what chance would give: {numbers}.", basis))
    taus = [row for row in rows.all("first_component_compute", correlation="kendall") if row.value is not None]
    if taus:
        numbers = " and ".join(f"{_with_interval(row)} {UNDER[row.protocol or '']}" for row in taus)
        models = count(max(row.n or 0 for row in taus), "model")
        basis = f"{models} with known and reliable compute: 6 × parameters × tokens."
        findings.append(Finding(f"Tau between the first factor and pretraining compute is {numbers}.", basis))
    return findings


SECTIONS = (
    SectionOf(
        "Explained variance",
        Says("explained_variance", "The first factor explains {span}.", {"component": 1}, {"protocol": "{}"}),
        TableOf(
            "explained_variance",
            {"component": "component"},
            report.of_both("explained_variance", "", ".4f", "models")
            | report.of_both("explained_variance_shuffled_95", "shuffled, 95th percentile, ", ".4f"),
            "Share of the variance of each component",
            folded=True,
        ),
        [Dots(report.protocol_series("explained_variance", "component", "factor {}"), "Share of the variance")],
    ),
    SectionOf(
        "Within families",
        Says("explained_variance_within_family", "Of the models of a family the first explains {span}.",
             {"component": 1}),
        TableOf(
            "explained_variance_by_family",
            {"subject": "family", "component": "component"},
            report.of_both("explained_variance_within_family", over="models"),
            "Share of each component within each family",
            folded=True,
        ),
        [Dots(report.protocol_series("explained_variance_within_family", component=1),
              "Share of the first component, models of the family only")],
        explanation="With few models the first component explains a large share whatever the scores are. Intervals are "
        f"given for families of at least {MINIMUM_RESAMPLED_FAMILY} models.",
    ),
)  # fmt: skip
