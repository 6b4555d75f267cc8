"""What the agreement rests on: subsets of benchmarks, each family or benchmark alone, sources of variance, scores."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.missing import Missing, Reason, ReasonCode, is_known, known, number
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.repeats import NO_RUNS
from lm_validity.statistics import section_generator
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.intervals import Range, Value, ends
from lm_validity.studies.agreement.reasons import LOST_MODEL
from lm_validity.studies.agreement.statistics.noise import reliability_of, variance_components
from lm_validity.studies.agreement.statistics.resampling import transformed_interval
from lm_validity.studies.agreement.statistics.subsets import leave_one_out, one_with_others, subset_agreement
from lm_validity.studies.agreement.wording import MOST_DRAWN, plotted, value_in_words
from lm_validity.tables.reruns import NOT_MEASURED
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import UNDER, decimal, no_scores, percent

UNCHANGED = 0.0005  # a smaller change is written as 0.000

LABELS = figures.PROTOCOL_LABELS
NEARLY_ALL = 0.9  # tau
SUBSETS = ["random", "greedy", "random, with the others"]
FEW_SUBSET_MODELS = Reason("There are fewer than 8 models, or too few of their scores.", ReasonCode.TOO_FEW)


# ----------------------------------------------------------------------------------------------------------------------
# How many benchmarks are enough.


@dataclass(frozen=True)
class Subsets:
    """How well subsets of `sizes` benchmarks rank the models, as `statistics.subsets.SubsetAgreement` has it, and one
    benchmark with all others together."""

    sizes: list[int]
    random_mean: list[Value]
    random_low: list[Value]
    random_high: list[Value]
    greedy_mean: list[Value]
    greedy_order: list[int]
    others_mean: list[Value]
    one_with_others: Value
    one_with_others_interval: Range


def subset_taus(scores: np.ndarray, rng: np.random.Generator) -> Subsets:
    """How well subsets of benchmarks rank the models, by size of the subset.

    `scores`: (models, benchmarks), more is better, NaN where missing; `rng` draws the random subsets.
    """

    def curve(taus: np.ndarray) -> list[Value]:
        return [known(float(tau), FEW_SUBSET_MODELS) for tau in taus]

    subsets, taus = subset_agreement(scores, rng), one_with_others(scores)
    with_others = known(float(taus[0]), "No benchmark has a tau with the others.")
    return Subsets(
        sizes=subsets.sizes.tolist(),
        random_mean=curve(subsets.random_mean),
        random_low=curve(subsets.random_low),
        random_high=curve(subsets.random_high),
        greedy_mean=curve(subsets.greedy_mean),
        greedy_order=subsets.greedy_order.tolist(),
        others_mean=[*curve(subsets.others_mean[:-1]), Missing("There is no other benchmark left.")],
        one_with_others=with_others,
        one_with_others_interval=ends(with_others, transformed_interval(taus[0], taus[1:], "tau"), LOST_MODEL),
    )


def subsets_of_benchmarks(data: Data) -> Part:
    """How well subsets of the benchmarks rank the models, by size, and one benchmark with all others together."""
    rng, rows, orders = section_generator("subsets", 0), [], []
    by_protocol = {p: subset_taus(data.scores[p], rng) for p in data.matrix.protocols}
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
    sentence, interval = subset_sentence(by_protocol, data.assumed)
    over = " The interval is over models." if interval else ""
    finding = Finding(sentence, f"No benchmark is on both sides.{over}") if sentence else None
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
        finding=sentence,
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


class SubsetSentence(NamedTuple):
    """What subsets of the benchmarks tell, and whether that has an interval."""

    sentence: str
    has_interval: bool


def subset_sentence(subsets: dict[str, Subsets], assumed: str = "") -> SubsetSentence:
    """What one benchmark alone tells and, where any number does, how many tell nearly all; whether it has an interval.

    Towards half of the benchmarks few others are left to hold a subset against, and tau falls for that reason: a number
    of benchmarks is named only where it reaches `NEARLY_ALL`.
    """
    protocol = TRAINED if TRAINED in subsets else DIRECT
    subset = subsets.get(protocol)
    if subset is None or not is_known(subset.random_mean[0]) or not is_known(subset.one_with_others):
        return SubsetSentence("", has_interval=False)
    remaining = [number(tau) for tau in subset.others_mean[: len(subset.sizes) // 2]]
    enough = next((index for index, tau in enumerate(remaining) if index and tau >= NEARLY_ALL), 0)
    remainder_words = (
        f". For {enough + 1} benchmarks and the remaining ones it is {decimal(remaining[enough])}" if enough else ""
    )
    interval = subset.one_with_others_interval
    sentence = (
        "Between the ranking by one benchmark picked at random and the ranking by all others together"
        f"{assumed}, tau is {value_in_words(subset.one_with_others, interval)} {UNDER[protocol]}{remainder_words}."
    )
    return SubsetSentence(sentence, is_known(interval))


# ----------------------------------------------------------------------------------------------------------------------
# Without one family, benchmark or model.


def influence(data: Data) -> Part:
    """How much the mean tau rests on one part: its values without each family, benchmark and model in turn."""
    entry = left_out(data)
    section = influence_section(
        entry, data.mean_tau, measure=lambda part: part.mean_tau, prefix="influence", name="mean tau"
    )
    return Part({"influence": entry}, section)


@dataclass(frozen=True)
class FiguresWithoutPart:
    """The headline figures without one `kind` of part: a family, a benchmark or a model, of this `name`."""

    kind: str
    name: str
    mean_tau: Value
    first_component: Value


def left_out(data: Data) -> dict[str, list[FiguresWithoutPart]]:
    """By protocol the headline figures without each family, benchmark and model."""
    reason = "Without this part, too little of the table would be left."
    return {
        p: [
            FiguresWithoutPart(part.kind, part.name, known(part.mean_tau, reason), known(part.first_component, reason))
            for part in leave_one_out(data.scores[p], list(data.matrix.models), data.tasks, data.matrix.families)
        ]
        for p in data.matrix.protocols
    }


def influence_section(
    influence: dict[str, list[FiguresWithoutPart]],
    total: Callable[[str], Value],
    *,
    measure: Callable[[FiguresWithoutPart], Value],
    prefix: str,
    name: str,
) -> Section | None:
    """`influence` and the figure of the `total` table by protocol; `measure`: the same figure of a part left out.

    `prefix`: of file names; `name`: what the figure is called, e.g. `mean tau`. None where nothing can be shown.
    """
    rows = [
        {
            "left_out": row.name,
            "kind": row.kind,
            "protocol": LABELS[protocol],
            "value": measure(row),
            "change": number(measure(row)) - number(total(protocol)),
        }
        for protocol, rows_of_protocol in influence.items()
        for row in rows_of_protocol
    ]
    frame = pd.DataFrame(rows)
    if frame.empty or not frame["change"].notna().any():
        return None
    largest = frame.loc[frame["change"].abs().idxmax()]
    finding = f"The largest change comes from leaving out the {largest['kind']} {largest['left_out']}: "
    finding += f"{largest['change']:+.3f} ({largest['protocol'].lower()})."
    if abs(largest["change"]) < UNCHANGED:
        finding = f"No family, benchmark or model that is left out changes it by {2 * UNCHANGED:g} or more."
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
        hint="one family, benchmark or model left out",
        finding=finding,
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


# ----------------------------------------------------------------------------------------------------------------------
# Where variance comes from.

COMPONENTS = {
    "model": "is shared by all benchmarks",
    "model_benchmark": "is specific to that benchmark, with any noise that was not measured",
    "item": "is noise of the items",
    "seed": "is noise of the seeds",
    "prompt": "is due to the prompt",
    "training": "is noise of training the models again",
    "sampling": "is noise of sampling the answers",
}


@dataclass(frozen=True)
class DecisionPlan:
    """The reliability of a mean score over so many benchmarks, with so many times the items, seeds and prompts."""

    benchmarks: int
    items: float
    seeds: float
    prompts: float
    reliability: float


@dataclass(frozen=True)
class Variance:
    """Components of the variance of standardised scores over models, of `benchmarks`, with the reliability of their
    mean; `raw_model`, `raw_model_benchmark`: before what is below zero is set to zero."""

    model: Value
    model_benchmark: Value
    item: Value
    seed: Value
    prompt: Value
    training: Value
    sampling: Value
    reliability: Value
    raw_model: Value
    raw_model_benchmark: Value
    benchmarks: int
    decision_study: list[DecisionPlan]

    @property
    def components(self) -> dict[str, Value]:
        """The parts of the variance by name, in the order of `COMPONENTS`."""
        parts = (
            self.model, self.model_benchmark, self.item, self.seed, self.prompt, self.training, self.sampling
        )  # fmt: skip
        return dict(zip(COMPONENTS, parts, strict=True))


def sources_of_variance(data: Data, prompt_error: dict[str, np.ndarray]) -> Part:
    """Components of variance, and what more benchmarks, items or seeds would buy.

    `prompt_error`: by protocol (benchmarks,) how far the prompt moves a score, where it was measured.
    """
    by_protocol = {p: _components(data, p, prompt_error.get(p, np.nan)) for p in PROTOCOLS}
    summary = {"variance_components": by_protocol}
    variances = {p: variance for p, variance in by_protocol.items() if is_known(variance.model)}
    if not variances:
        return Part(summary)
    components = pd.DataFrame(
        {"protocol": LABELS[p], **variance.components, "reliability": variance.reliability}
        for p, variance in variances.items()
    )
    plans = pd.DataFrame(
        {"protocol": LABELS[p], **asdict(plan)} for p, variance in variances.items() for plan in variance.decision_study
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


def _components(data: Data, protocol: str, prompt_error: np.ndarray | float) -> Variance:
    seed_error = data.matrix.seed_error(protocol)[:, ~data.matrix.is_corpus]
    of_sampling = data.matrix.sampling_error.get(protocol)
    sampling_error = np.nan if of_sampling is None else of_sampling[:, ~data.matrix.is_corpus]
    components = variance_components(
        data.scores[protocol],
        data.stderr[protocol],
        seed_error,
        prompt_error,
        data.training_error[protocol],
        sampling_error,
    )
    undefined = np.isnan(components.model)
    too_few = Reason(
        "Fewer than 3 models have every benchmark, or fewer than two benchmarks differ between them.",
        ReasonCode.TOO_FEW,
    )
    reason = too_few if data.matrix.has(protocol) else no_scores(protocol)
    part_of = "is part of model × benchmark."
    no_seed = f"No benchmark was fine-tuned with several seeds. The noise of seeds {part_of}"
    reasons = {
        "item": Reason(f"There are no standard errors. The noise of items {part_of}", ReasonCode.NO_ERRORS),
        "seed": "Nothing is fine-tuned under direct evaluation." if protocol == DIRECT else no_seed,
        "prompt": "The effect of prompts was not measured: no benchmark has 3 models with scores under two prompts or "
        f"wordings. It {part_of}",
        "training": Reason(f"{NOT_MEASURED} It {part_of}", NOT_MEASURED.code),
        "sampling": Reason(f"{NO_RUNS} It is part of the noise of items.", NO_RUNS.code),
    }
    parts = {
        name: known(value, reason if undefined else reasons.get(name, reason))
        for name, value in vars(components).items()
        if name != "benchmarks"
    }
    plans = [] if undefined else [(n, 1.0, 1.0, 1.0) for n in (1, 2, 4, 8, 16, 32, 64)]
    plans += [] if undefined else [(components.benchmarks, factor, 1.0, 1.0) for factor in (0.25, 1.0, 4.0)]
    plans += (
        [(components.benchmarks, 1.0, factor, 1.0) for factor in (2.0, 4.0)] if np.isfinite(components.seed) else []
    )
    plans += [(components.benchmarks, 1.0, 1.0, 2.0)] if np.isfinite(components.prompt) else []
    study = [DecisionPlan(*plan, reliability_of(components, *plan)) for plan in dict.fromkeys(plans)]
    return Variance(**parts, benchmarks=components.benchmarks, decision_study=study)


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
