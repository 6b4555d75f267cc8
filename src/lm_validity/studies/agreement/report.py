"""The agreement report: do benchmarks agree on which model is better, under direct evaluation and train before test?

Also the screening page: which candidate benchmarks stay.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.config.sections import REPORTS, Reports, Screening
from lm_validity.errors import InputError
from lm_validity.files import read_json
from lm_validity.pages.page import Finding, Page, Section, Table
from lm_validity.results.put import Column, Condition, Part, Rows
from lm_validity.results.sections import Dots, Heat, Says, SectionOf, Series, TableOf, write_rows
from lm_validity.studies.agreement import benchmarks, incomplete, similar, tau
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.front import above_the_folds
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, read_score_matrix, without_shared_items
from lm_validity.studies.agreement.statistics.ranking import screen_benchmarks
from lm_validity.studies.agreement.values import (
    Estimate,
    SelectedOnTest,
    Value,
    estimate,
    in_words,
    range_of,
    selected_on_test,
    shown_limit,
    value_in_words,
)
from lm_validity.tables.counted import Sources
from lm_validity.tables.schema import DIRECT, PROTOCOLS, SCORES, SELECTIONS, TRAINED, read_table
from lm_validity.words import UNDER, count, decimal, explain_protocols, is_known, listing, with_names


def report_agreement(
    sources: Sources, output: str | Path, section: Reports = REPORTS, selections: str | Path | None = None
) -> None:
    """Write the numbers, tables and the page of the agreement report under `output`.

    Items make significance paired. `selections`: shows which prompts were chosen after fine-tuning. Without resamples,
    intervals are skipped. Cells that are not in the plan are not missing.
    """
    matrix, items = read_score_matrix(sources), sources.items
    if items is not None:
        matrix = without_shared_items(matrix, items)
    rows = read_table(sources.scores, SCORES)  # those of prompts that are not selected, too
    selected = None if selections is None else read_table(selections, SELECTIONS)
    page, numbers = agreement(Data.of(matrix, section.resamples, items), rows, selected)
    write_rows(page, numbers, output)


# ----------------------------------------------------------------------------------------------------------------------
# The folds, by the question that they are under.

WHICH, WHOM, NOISE, RESTS = (
    "Which benchmarks agree?",
    "For which models does it hold?",
    "How much of it is noise?",
    "What does it rest on?",
)

NAMES = {DIRECT: "direct", TRAINED: "train before test"}
MARKS = {DIRECT: "d", TRAINED: "t"}
PARTS: tuple[tuple[Part, str], ...] = (("value", ""), ("low", "from"), ("high", "to"))


def by_protocol(quantity: str, label: str = "", *, ends: bool = False) -> dict[str, Column]:
    """A column of a quantity for each protocol, with its interval over models where `ends` are wanted."""
    columns = {}
    for protocol, name in NAMES.items():
        where, key = {"protocol": protocol}, f"{quantity}_{protocol}"
        columns[key] = Column(quantity, " ".join(filter(None, (label, name))), ".3f", where=where)
        if ends:
            columns[f"{key}_low"] = Column(quantity, "from", ".3f", "low", where)
            columns[f"{key}_high"] = Column(quantity, "to", ".3f", "high", where)
    return columns


def with_families(quantity: str, label: str) -> dict[str, Column]:
    """Columns of a quantity and of its intervals over models and over families."""
    columns = {quantity: Column(quantity, label, ".3f")}
    for over in ("models", "families"):
        for part, word in PARTS[1:]:
            name = f"{label}, {word}" + (", families" if over == "families" else "")
            columns[f"{quantity}_{part}_{over}"] = Column(quantity, name, ".3f", part, over=over)
    return columns


def protocol_series(quantity: str) -> list[Series]:
    """The marks of a quantity of each benchmark under either protocol."""
    return [Series(quantity, {"subject": "{}"}, {"protocol": p}, MARKS[p], name) for p, name in NAMES.items()]


def grids(quantity: str, label: str, across: str = "{}") -> list[Heat]:
    """A grid of a quantity by its two subjects for each protocol."""
    names = ({"subject": "{}"}, {"other": across})
    return [Heat(quantity, *names, f"{label}, {name}", {"protocol": p}) for p, name in NAMES.items()]


SUBJECT = {"subject": "benchmark"}
UNDERS = {"protocol": {p: words.capitalize() for p, words in UNDER.items()}}
FOLDS: dict[str, tuple[SectionOf, ...]] = {
    WHICH: (
        SectionOf(
            "Every pair of benchmarks",
            Says("tau", "{protocol}, tau is {span} over {count:pair}.", by=UNDERS),
            charts=[Heat("tau", {"subject": "{}"}, {"other": "{}"}, "Kendall’s tau; of two protocols the direct one "
                         "above the diagonal", {"protocol": DIRECT}, mirrored={"protocol": TRAINED})],
            hint="the tau of each",
        ),
        SectionOf(
            "Agreement of each benchmark with the others",
            Says("tau_with_others", "{protocol}, {least_name} has the lowest mean tau with the others: {least}.",
                 by=UNDERS),
            TableOf(
                "tau_by_benchmark",
                SUBJECT,
                by_protocol("tau_with_others", "tau,", ends=True)
                | by_protocol("tau_with_others_ceiling", "noise ceiling,")
                | by_protocol("tau_with_others_corrected", "without noise,", ends=True),
                "Mean tau by benchmark",
                folded=True,
            ),
            [Dots(protocol_series("tau_with_others"), "Mean tau with all other benchmarks", sorted=True)],
            hint="with intervals, noise ceilings and without noise",
        ),
        SectionOf(
            "Within and between categories",
            Says("tau_of_categories", "{protocol}, mean taus are {span}.", by=UNDERS),
            charts=grids("tau_of_categories", "Mean tau within (diagonal) and between categories"),
            explanation="The diagonal shows pairs within a category. A category with one benchmark has no such pair.",
            hint="kinds of benchmarks",
        ),
    ),
    WHOM: (
        SectionOf(
            "Models of similar size",
            Says("tau_mean_by_ratio", "{protocol}, among models at most 2× apart in size tau is {value}.",
                 {"distance": "size", "at_least": 1.0, "at_most": 2.0}, by=UNDERS),
            TableOf(
                "tau_by_size_ratio",
                {"distance": "by", "at_least": "at least", "at_most": "at most", "protocol": "protocol"},
                {"pairs": Column("tau_mean_by_ratio", "pairs of models", part="n")}
                | with_families("tau_mean_by_ratio", "tau")
                | {"ceiling": Column("tau_ceiling_by_ratio", "noise ceiling", ".3f")},
                "Agreement by distance in size",
            ),
            explanation="Kendall's tau over only those pairs of models whose numbers of parameters (or pretraining "
            "compute) differ by such a factor. The ceiling is the tau that noise alone would allow on the same pairs.",
            hint="by distance in parameters and in compute, with noise ceilings",
        ),
        SectionOf(
            "Perplexity",
            Says("tau_before_after", "Direct perplexity and the ranking under train before test: {kind} tau {value}, "
                 "{interval}.", by={"kind": {"base": "among base models", "instruction_tuned": "among tuned ones"}}),
            TableOf(
                "perplexity",
                {"protocol": "protocol"},
                {
                    f"{quantity}_{part}": Column(quantity, label if part == "value" else word, ".3f", part)
                    for quantity, label in (
                        ("tau_corpus_benchmark", "corpus with benchmark"),
                        ("tau_corpus_corpus", "corpus with corpus"),
                        ("tau_average_average", "average perplexity with average score"),
                    )
                    for part, word in PARTS
                },
                "Agreement with perplexity",
                folded=True,
            ),
            grids("tau_of_corpus", "Kendall’s tau with perplexity")
            + [
                Heat("tau_of_corpus", {"subject": "{}"}, {"other": "{}"}, f"{words}: direct perplexity against scores "
                     "under train before test", {"kind": kind})
                for kind, words in (("base", "Base models"), ("instruction_tuned", "Instruction-tuned models"))
            ],
            hint="whether it ranks models as benchmarks do",
        ),
        SectionOf(
            "The same corpus, before and after training",
            Says("tau_same_corpus", "Its direct ranking has tau {span} with that under train before test."),
            TableOf("perplexity_same_corpus", {"subject": "corpus"}, {"tau": Column("tau_same_corpus", "tau", ".3f")}),
            hint="perplexity",
        ),
    ),
    NOISE: (
        SectionOf(
            "Counting significant differences only",
            Says("significance_tau_mean", "{protocol}, mean tau is {value} ({interval}) where models that do not "
                 "differ significantly count as tied.", by=UNDERS),
            explanation="Two models differ significantly if their scores are more than 1.96 standard errors of the "
            "difference apart. If item results are known, McNemar's test decides. Tau is computed over pairs of "
            "models, since a tie of A with B and of B with C does not mean that A ties with C.",
            hint="models that do not differ significantly count as tied",
        ),
        SectionOf(
            "What would another run have said?",
            Says("sampling_noise", "Between two runs of one model, its score on {name} moves by {value} (standard "
                 "deviation), the most of {count:benchmark}."),
            TableOf(
                "sampled_runs",
                SUBJECT | {"protocol": "protocol"},
                {
                    "spread": Column("sampling_noise", "standard deviation between runs", ".3f"),
                    "share": Column("sampling_share", "share of sampling in one run's squared error", ".0%"),
                    "luck": Column("sampling_luck", "best run above the mean", ".3f"),
                    "falls": Column("sampling_falls", "pairs of runs that fall by more than a point", ".0%"),
                },
                "Noise between runs of one model",
            ),
            explanation="Answers were sampled several times, and each score is the mean of its runs. Its standard "
            "error is that for other items and other runs. The best run of a model lies above its mean by luck alone.",
            hint="the noise of sampled answers",
        ),
        SectionOf(
            "Agreement between seeds",
            Says("tau_between_seeds", "Between rankings of one benchmark after fine-tuning with different seeds, tau "
                 "is {span}."),
            TableOf("reliability", SUBJECT, {"tau": Column("tau_between_seeds", "tau", ".3f")}),
            hint="the same benchmark, fine-tuned again",
        ),
    ),
}  # fmt: skip


REVERSING = (
    "Two shares of right answers order the models in opposite ways on {}. The first one counts; the sheet's column "
    "`metric` chooses."
)


def agreement(
    data: Data, scores: pd.DataFrame | None = None, selections: pd.DataFrame | None = None
) -> tuple[Page, Rows]:
    """The page of the agreement of benchmarks, and its numbers.

    `scores`: the scores table, for what prompts do; `selections`: which fine-tunes were selected.
    """
    matrix, rows = data.matrix, Rows("agreement")
    rows.put("models", len(matrix.models), "models")
    rows.put("benchmarks", len(data.tasks), "benchmarks")
    benchmarks.put_benchmarks(rows, data)
    tau.put_agreement(rows, data)
    tau.put_change(rows, data)
    similar.put_by_size(rows, data)
    similar.put_perplexity(rows, data)
    benchmarks.put_seeds(rows, data)
    similar.put_pooled(rows, data)
    chosen = selected_on_test(matrix, data.scores)
    if chosen is not None:
        rows.put("selected_on_test_equal", chosen.equal, "cells", counted=("cells", chosen.cells))
        rows.put("tau_mean_without_selected_on_test", chosen.mean_tau_without, "tau")
    despite = incomplete.despite_missing_cells(rows, data, incomplete.put_incomplete(rows, data))
    sections = {group: [one.drawn(rows) for one in of_group if one.tells(rows)] for group, of_group in FOLDS.items()}
    sections[RESTS] = [despite.section] if despite.section is not None else []
    if scores is not None:
        benchmarks.put_prompt_ranges(rows, scores, matrix)
        sections[NOISE] += prompts_chosen(benchmarks.prompt_choices(scores, selections, matrix), matrix)
    reversing = [] if scores is None else benchmarks.reversing_metrics(scores, matrix)
    front = above_the_folds(rows, data)
    if reversing:
        said = f" The metric decides on {listing(reversing, 2)}: another one reverses the order."
        front.answers[0] = replace(front.answers[0], basis=front.answers[0].basis + said)
    page = Page(
        name="agreement",
        title="Ranking agreement",
        question="Do the benchmarks agree on which model is better? "
        + explain_protocols(matrix.protocols, trained_here=matrix.trained_here),
        findings=[*findings(rows, data, chosen), *despite.findings],
        sections=[replace(one, group=group) for group, of_group in sections.items() for one in of_group],
        notes=(*data.notes, *with_names({REVERSING: reversing}), *despite.notes),
        lede=front.lede,
        picture=front.picture,
        panels=front.panels,
        answers=front.answers,
    )
    return page, rows


# ----------------------------------------------------------------------------------------------------------------------
# Findings: sentences of several numbers.


def findings(rows: Rows, data: Data, chosen: SelectedOnTest | None) -> Iterator[Finding]:
    """What the page says first, each with what it rests on."""
    if chosen is not None:
        yield Finding(
            "Caution: the train-before-test scores of this table are the better of both protocols on the test split.",
            f"{chosen.equal} of {chosen.cells} cells equal the direct score and none is below it. Without the equal "
            f"cells the mean tau under train before test is {value_in_words(chosen.mean_tau_without, digits=3)}.",
            alarm=True,
        )
    yield _mean_finding(rows, data)
    if (change := _change_finding(rows, data)) is not None:
        yield change
    if (similar_size := _size_finding(rows, data)) is not None:
        yield similar_size
    protocol = TRAINED if data.matrix.has(TRAINED) else DIRECT
    alone = estimate(rows, "tau_one_with_others", protocol=protocol)
    if is_known(alone.value):
        yield Finding(
            "Between the ranking by one benchmark picked at random and the ranking by all others together"
            f"{data.assumed}, tau is {value_in_words(alone.value, alone.models)} {UNDER[protocol]}.",
            "No benchmark is on both sides. The interval is over models.",
        )
    if (perplexity := _perplexity_finding(rows, data)) is not None:
        yield perplexity


def told(number: Estimate, *, signed: bool = False) -> str:
    """A value with its intervals over models and over families, as far as there are any."""
    words = {"models": number.models, "families": number.families}
    parts = [f"{in_words(ends, signed=signed)} over {name}" for name, ends in words.items() if is_known(ends)]
    value = decimal(float(number.value), signed=signed) if is_known(number.value) else "unknown"
    return f"{value} (95%: {', '.join(parts)})" if parts else value


def each_protocol(values: dict[str, str]) -> str:
    """`0.52 under direct evaluation and 0.76 under train before test`."""
    return " and ".join(f"{words} {UNDER[p]}" for p, words in values.items())


def limits(values: dict[str, tuple[Value, Value]]) -> str:
    """The noise ceilings that are shown, in a sentence; `values`: taus with their ceilings."""
    shown = {p: shown_limit(ceiling, tau) for p, (tau, ceiling) in values.items()}
    known = {p: decimal(limit) for p, limit in shown.items() if is_known(limit)}
    return f" With noise alone, it would be {each_protocol(known)}." if known else ""


def without(values: dict[str, Estimate]) -> str:
    """The taus without noise, in a sentence."""
    known = {p: told(one) for p, one in values.items() if is_known(one.value)}
    return f" Without noise, it is {each_protocol(known)}." if known else ""


def for_others(rows: Rows, quantity: str, *, signed: bool = False, **place: str) -> str:
    """The interval of a number for other benchmarks, too: by categories, else by benchmarks."""
    for over in ("categories", "benchmarks"):
        if is_known(ends := range_of(rows, quantity, over, **place)):
            return in_words(ends, signed=signed)
    return "not known"


def _mean_finding(rows: Rows, data: Data) -> Finding:
    means = {p: estimate(rows, "tau_mean", protocol=p) for p in PROTOCOLS}
    # of a protocol with so few models that there is no interval, the pooled finding says how few
    means = {p: one for p, one in means.items() if is_known(one.value) and (p not in data.incomplete or one.quoted)}
    size = f"{count(len(data.matrix.models), 'model')} × {count(len(data.tasks), 'benchmark')}"
    if not means:
        return Finding("No two benchmarks can be compared.", size)
    others = {p: for_others(rows, "tau_mean", protocol=p) for p in means}
    cells = ", each protocol over all cells it has" if len(means) > 1 and not data.whole else ""
    above = ""
    for p in means:
        row = rows.row("tau_mean_above_chance", protocol=p)
        if row is not None and row.n is not None:
            counted = [one for one in rows.all("above_chance", protocol=p) if one.value is not None]
            above += (
                f" A model is above chance on {row.n} of {count(len(counted), 'benchmark')} with a known chance level"
            )
            above += f" {UNDER[p]}" + ("." if row.value is None else f"; over these, tau is {decimal(row.value)}.")
    return Finding(
        f"The rankings of two of these benchmarks have{data.assumed} a mean Kendall's tau of "
        f"{each_protocol({p: told(one) for p, one in means.items()})}."
        + limits({p: (one.value, estimate(rows, "tau_ceiling", protocol=p).value) for p, one in means.items()})
        + without({p: estimate(rows, "tau_mean_corrected", protocol=p) for p in means})
        + above,
        f"{size}{cells}. For other benchmarks too: {each_protocol(others)}.",
    )


def _change_finding(rows: Rows, data: Data) -> Finding | None:
    pooled = data.lacks_many and rows.row("tau_pooled_change", pairs="all") is not None
    place = {"pairs": "all"} if pooled else {}
    change = estimate(rows, "tau_pooled_change" if pooled else "tau_change", **place)
    improved, compared = data.improved
    if change.quoted is None:
        return None
    means = "tau_pooled_in_both" if pooled else "tau_mean_in_both"
    before, after = (value_in_words(estimate(rows, means, protocol=p, **place).value) for p in PROTOCOLS)
    cells = f"Over the {count(int(data.in_both.sum()), 'cell')} known under both protocols"
    if pooled:
        basis = f"{cells}: {change.n:,} comparisons of two models on two benchmarks, each counted once."
    else:
        basis = f"{cells}. For other benchmarks too: {for_others(rows, 'tau_change', signed=True)}."
    return Finding(
        f"Train before test changes the {'pooled' if pooled else 'mean'} tau of these benchmarks"
        f"{data.assumed} from {before} to {after}, by {told(change, signed=True)}: {improved} of {compared} pairs "
        "agree more.",
        basis,
    )


def _size_finding(rows: Rows, data: Data) -> Finding | None:
    """Among models that a reader chooses between: those of like size."""
    if data.lacks_many:
        found = {p: estimate(rows, "tau_pooled_in_both", protocol=p, pairs="like_size") for p in data.matrix.protocols}
        found = {p: one for p, one in found.items() if one.quoted}
        name, basis = "pooled", "comparisons of two models on two benchmarks, each counted once"
    else:
        both = "" if data.whole or len(data.matrix.protocols) == 1 else "_in_both"
        place: dict[str, Condition] = {"distance": "size", "at_least": 1.0, "at_most": 2.0}
        found = {p: estimate(rows, f"tau_mean{both}_by_ratio", protocol=p, **place) for p in data.matrix.protocols}
        found = {p: one for p, one in found.items() if is_known(one.value)}
        name, basis = "mean", "pairs of models"
    if not found:
        return None
    pairs = " and ".join(dict.fromkeys(f"{one.n:,}" for one in found.values()))
    return Finding(
        f"Among models at most 2× apart in size, two benchmarks' rankings have{data.assumed} a {name} Kendall's tau of "
        f"{each_protocol({p: told(one) for p, one in found.items()})}.",
        f"{pairs} {basis}. Among models of very different sizes, benchmarks can agree merely because scores rise with "
        "size.",
    )


def _perplexity_finding(rows: Rows, data: Data) -> Finding | None:
    """Over what is known under both protocols where that leaves cells out."""
    own = {p: estimate(rows, "tau_corpus_benchmark", protocol=p) for p in PROTOCOLS}
    both = {p: estimate(rows, "tau_perplexity_in_both", protocol=p, kind="corpus_benchmark") for p in PROTOCOLS}
    if not is_known(own[DIRECT].value):
        return None
    compared = data.lacks_many and all(is_known(one.value) for one in both.values())
    found = {p: one for p, one in (both if compared else own).items() if is_known(one.value)}
    return Finding(
        f"Between rankings by perplexity and rankings by benchmark{data.assumed}, the mean tau is "
        f"{each_protocol({p: told(one) for p, one in found.items()})}.",
        f"{count(own[DIRECT].n, 'model')} with perplexities"
        f"{', over what is known under both protocols' if compared else ''}.",
    )


def prompts_chosen(choices: pd.DataFrame, matrix: ScoreMatrix) -> list[Section]:
    """The prompts that were chosen on validation, as a fold; nothing where no model had two prompts."""
    if choices.empty:
        return []
    chat = {p: choices.loc[choices["protocol"] == p, "chosen"] == "chat" for p in PROTOCOLS}
    parts = {p: f"for {chosen.sum()} of {len(chosen)} choices" for p, chosen in chat.items() if len(chosen)}
    labels = dict(zip(matrix.models, matrix.labels, strict=True))
    frame = choices.assign(model=choices["model"].map(labels), protocol=choices["protocol"].map(NAMES))
    if frame["seed"].dropna().nunique() < 2:
        frame = frame.drop(columns="seed")
    formats = {"plain": ".4f", "chat": ".4f", "test": ".4f", "epoch": ".0f"}
    return [
        Section(
            "Plain or chat prompt",
            f"{count(choices['model'].nunique(), 'instruction-tuned model')} had both prompts. The chat prompt was "
            f"better on validation {each_protocol(parts)}.",
            hint="chosen on validation",
            explanation="The columns plain and chat are scores on the validation split: of the untouched model, or of "
            "the best fine-tune under that prompt. The better one was chosen, and plain where both are equal. A "
            "fine-tune counts only if it is strictly better than the untouched model. The test split was scored under "
            "the chosen prompt.",
            tables=[Table("prompts", "Prompts chosen on validation", frame, formats=formats)],
        )
    ]


# ----------------------------------------------------------------------------------------------------------------------
# The screening page: which candidate benchmarks stay, and why each of the others does not.

NO_EXAMPLES = "The number of training examples is unknown. This excludes no benchmark."
NO_OTHER = "No other benchmark that passes both rules has a tau with this one."
SCREENED = TableOf(
    "screening",
    {"subject": "benchmark"},
    {
        "kept": Column("kept", "kept"),
        "reason": Column("dropped_because", "reason"),
        "training_examples": Column("training_examples", "training examples", ".0f"),
        "models": Column("models", "models", ".0f"),
        "not_improved": Column("models_not_improved", "models not improved", ".0f"),
        "others": Column("tau_with_kept", "others", ".0f", "n"),
        "negative_agreement": Column("others_with_negative_tau", "others with negative tau", ".0f"),
        "mean_tau": Column("tau_with_kept", "mean tau, direct", ".3f"),
    },
    "Candidates",
)


def report_screening(
    sources: Sources, output: str | Path, section: Screening, results: str | Path | None = None
) -> None:
    """Write results.parquet, the table and the page of the screening under `output`.

    Training examples are those of the benchmarks sheet's column `training_examples`, else those that a run's records
    under `results` (results/<run>) count. Perplexity corpora are not screened, and cells of the plan that earlier
    scores chose are left out.
    """
    matrix = read_score_matrix(sources)
    for protocol in PROTOCOLS:
        if not matrix.has(protocol):
            raise InputError(f"{sources.scores}: no {protocol} scores.", "screening compares both protocols.")
    tasks = ~matrix.is_corpus
    facts = matrix.benchmark_facts[tasks]
    examples = facts["training_examples"].to_numpy(dtype=float)
    if results:
        recorded = [_recorded(Path(results), benchmark) for benchmark in facts["benchmark"]]
        examples = np.where(np.isnan(examples), recorded, examples)
    direct, trained = (matrix.oriented(protocol)[:, tasks] for protocol in PROTOCOLS)
    screening = screen_benchmarks(direct, trained, examples, section)
    rows = Rows("screening")
    for i, fact in enumerate(facts.itertuples()):
        at, others = rows.of(subject=fact.benchmark), ("others", int(screening.eligible[i]))
        at.put("kept", screening.reasons[i] is None, "yes_or_no")
        at.put("dropped_because", screening.reasons[i] or "", "text")
        at.put("training_examples", examples[i], "texts", why=NO_EXAMPLES)
        at.put("models", screening.models[i], "models")
        improved = ("models", int(screening.models[i]))
        at.put("models_not_improved", screening.unimproved[i], "models", counted=improved)
        at.put("others_with_negative_tau", screening.negative[i], "benchmarks", counted=others)
        at.put("tau_with_kept", screening.mean_tau[i], "tau", counted=others, why=NO_OTHER)
    kept = [bool(row.value) for row in rows.all("kept")]
    reasons = "; ".join(f"{row.subject}: {row.text}" for row in rows.all("dropped_because") if row.text)
    finding = Finding(
        f"{sum(kept)} of {count(len(kept), 'candidate benchmark')} pass.",
        f"Dropped: {reasons}." if reasons else "None is dropped.",
    )
    explanation = (
        "There are three rules. A benchmark is dropped if it has fewer than "
        f"{section.training_examples} training examples. It is dropped if more than "
        f"{section.unimproved_share:.0%} of the models do not score higher under train before test. (A model at "
        "its ceiling before fine-tuning counts too, so look at the scores of benchmarks dropped by this rule.) It is "
        "dropped if its direct ranking has a negative Kendall's tau with more than "
        f"{section.negative_share:.0%} of the benchmarks that pass the first two rules."
    )
    tables = [SCREENED.made(rows)]
    explained = explain_protocols(PROTOCOLS, trained_here=matrix.trained_here)
    page = Page(
        name="screening",
        title="Screening of benchmarks",
        question=f"Which candidate benchmarks are usable in the study? {explained}",
        findings=[finding],
        sections=[Section("Each candidate and the reason", explanation=explanation, tables=tables)],
        notes=matrix.notes,
    )
    write_rows(page, rows, output)


def _recorded(results: Path, benchmark: str) -> float:
    """What lm-eval's task offers for training, by the prefetch record."""
    try:
        return float(read_json(results / "prefetch" / "benchmarks" / f"{benchmark}.json")["documents"]["train"])
    except (OSError, ValueError, KeyError):
        return float("nan")
