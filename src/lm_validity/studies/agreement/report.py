"""The agreement report: do benchmarks agree on which model is better, under direct evaluation and train before test?

Also the screening page: which candidate benchmarks stay.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.config.sections import CARDS, REPORTS, Cards, Reports
from lm_validity.pages.page import Finding, Page, Section, Table
from lm_validity.pages.svg import KINDS, NAMES
from lm_validity.results.put import Column, Condition, Part, Rows
from lm_validity.results.sections import Dots, Heat, Says, SectionOf, Series, TableOf, write_rows
from lm_validity.studies.agreement import benchmarks, incomplete, tau
from lm_validity.studies.agreement import data as base
from lm_validity.studies.agreement.data import Data, Estimate, Value
from lm_validity.studies.agreement.front import above_the_folds
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, read_score_matrix, without_shared_items
from lm_validity.studies.agreement.statistics.noise import far_models
from lm_validity.studies.agreement.statistics.ranking import mean_over_pairs
from lm_validity.tables.counted import Sources
from lm_validity.tables.schema import DIRECT, PROTOCOLS, SCORES, SELECTIONS, TRAINED, read_table
from lm_validity.tables.training import NOT_MEASURED
from lm_validity.words import UNDER, count, decimal, explain_protocols, is_known, listing, number, with_names


def report_agreement(
    sources: Sources, output: Path, section: Reports = REPORTS, selections: Path | None = None, cards: Cards = CARDS
) -> None:
    """Write the numbers, tables and the page of the agreement report under `output`.

    Items make significance paired. `selections`: shows which prompts were chosen after fine-tuning. Without resamples,
    intervals are skipped. Cells that are not in the plan are not missing. `cards`: the thresholds of verdicts.
    """
    matrix, items = read_score_matrix(sources), sources.items
    if items is not None:
        matrix = without_shared_items(matrix, items)
    rows = read_table(sources.scores, SCORES)  # those of prompts that are not selected, too
    selected = None if selections is None else read_table(selections, SELECTIONS)
    page, numbers = agreement(Data.of(matrix, section.resamples, items), rows, selected, cards)
    write_rows(page, numbers, output)


# ----------------------------------------------------------------------------------------------------------------------
# The folds, by the question that they are under.

WHICH, WHOM, NOISE, RESTS = (
    "Which benchmarks agree?",
    "For which models does it hold?",
    "How much of it is noise?",
    "What does it rest on?",
)

PARTS: tuple[tuple[Part, str], ...] = (("value", ""), ("low", "from"), ("high", "to"))


def of_both(quantity: str, label: str = "", form: str = ".3f", over: str | None = None) -> dict[str, Column]:
    """A column of a quantity for each protocol, with the ends of its interval where it is `over` something."""
    columns = dict[str, Column]()
    for p, name in NAMES.items():
        where, key = {"protocol": p}, f"{quantity}_{p}"
        columns[key] = Column(quantity, f"{label}{name}", form, where=where)
        for part, word in PARTS[1:] if over else ():
            columns[f"{key}_{part}"] = Column(quantity, word, form, part, where, over)
    return columns


def with_families(quantity: str, label: str) -> dict[str, Column]:
    """Columns of a quantity and of its intervals over models and over families."""
    columns = {quantity: Column(quantity, label, ".3f")}
    for over in ("models", "families"):
        for part, word in PARTS[1:]:
            name = f"{label}, {word}" + (", families" if over == "families" else "")
            columns[f"{quantity}_{part}_{over}"] = Column(quantity, name, ".3f", part, over=over)
    return columns


def protocol_series(quantity: str, label: str = "subject", words: str = "{}", **where: Condition) -> list[Series]:
    """The marks of a quantity under either protocol, for each value of a label."""
    return [Series(quantity, {label: words}, {"protocol": p, **where}, KINDS[p], name) for p, name in NAMES.items()]


def grids(quantity: str, label: str, across: str = "{}") -> list[Heat]:
    """A grid of a quantity by its two subjects for each protocol."""
    names = ({"subject": "{}"}, {"other": across})
    return [Heat(quantity, *names, f"{label}, {name}", {"protocol": p}) for p, name in NAMES.items()]


SUBJECT = {"subject": "benchmark"}
FOLDS: dict[str, tuple[SectionOf, ...]] = {
    WHICH: (
        SectionOf(
            "Every pair of benchmarks",
            Says("tau", "{protocol}, tau is {span} over {count:pair}.", by=base.UNDERS),
            charts=[Heat("tau", {"subject": "{}"}, {"other": "{}"}, "Kendall’s tau; of two protocols the direct one "
                         "above the diagonal", {"protocol": DIRECT}, mirrored={"protocol": TRAINED})],
            hint="the tau of each",
        ),
        SectionOf(
            "Agreement of each benchmark with the others",
            Says("tau_with_others", "{protocol}, {least_name} has the lowest mean tau with the others: {least}.",
                 by=base.UNDERS),
            TableOf(
                "tau_by_benchmark",
                SUBJECT,
                of_both("tau_with_others", "tau, ", over="models")
                | of_both("tau_with_others_ceiling", "noise ceiling, ")
                | of_both("tau_with_others_corrected", "without noise, ", over="models"),
                "Mean tau by benchmark",
                folded=True,
            ),
            [Dots(protocol_series("tau_with_others"), "Mean tau with all other benchmarks", sorted=True)],
            hint="with intervals, noise ceilings and without noise",
        ),
        SectionOf(
            "Within and between categories",
            Says("tau_of_categories", "{protocol}, mean taus are {span}.", by=base.UNDERS),
            charts=grids("tau_of_categories", "Mean tau within (diagonal) and between categories"),
            explanation="The diagonal shows pairs within a category. A category with one benchmark has no such pair.",
            hint="kinds of benchmarks",
        ),
    ),
    WHOM: (
        SectionOf(
            "Models of similar size",
            Says("tau_mean_by_ratio", "{protocol}, among models at most 2× apart in size tau is {value}.",
                 {"distance": "size", "at_least": 1.0, "at_most": 2.0}, by=base.UNDERS),
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
                 "differ significantly count as tied.", by=base.UNDERS),
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
                },
                "Noise between runs of one model",
            ),
            explanation="Answers were sampled several times, and each score is the mean of its runs. Its standard "
            "error is that for other items and other runs.",
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
    data: Data, scores: pd.DataFrame | None = None, selections: pd.DataFrame | None = None, cards: Cards = CARDS
) -> tuple[Page, Rows]:
    """The page of the agreement of benchmarks, and its numbers.

    `scores`: the scores table, for what prompts do; `selections`: which fine-tunes were selected; `cards`: thresholds.
    """
    matrix, rows = data.matrix, Rows("agreement")
    rows.put("models", len(matrix.models), "models")
    rows.put("benchmarks", len(data.tasks), "benchmarks")
    benchmarks.put_benchmarks(rows, data)
    tau.put_agreement(rows, data)
    tau.put_change(rows, data)
    tau.put_by_size(rows, data)
    tau.put_perplexity(rows, data)
    benchmarks.put_seeds(rows, data)
    incomplete.put_pooled(rows, data)
    if (chosen := data.selected_on_test) is not None:
        rows.put("selected_on_test_equal", chosen.equal, "cells", counted=("cells", chosen.cells))
        rows.put("tau_mean_without_selected_on_test", chosen.mean_tau_without, "tau")
    despite = incomplete.despite_missing_cells(rows, data, incomplete.put_incomplete(rows, data))
    sections = {group: [one.drawn(rows) for one in of_group if one.tells(rows)] for group, of_group in FOLDS.items()}
    sections[RESTS] = despite
    if scores is not None:
        benchmarks.put_prompt_ranges(rows, scores, matrix)
        sections[NOISE] += prompts_chosen(benchmarks.prompt_choices(scores, selections, matrix), matrix)
    reversing = [] if scores is None else benchmarks.reversing_metrics(scores, matrix)
    front = above_the_folds(rows, data, cards)
    first, *further = front.answers
    if reversing:
        said = f" The metric decides on {listing(reversing, 2)}: another one reverses the order."
        first = replace(first, basis=first.basis + said)
    page = replace(
        front,
        answers=[first, *further],
        question="Do the benchmarks agree on which model is better? "
        + explain_protocols(matrix.protocols, trained_here=matrix.trained_here),
        findings=[*findings(rows, data)],
        sections=[replace(one, group=group) for group, of_group in sections.items() for one in of_group],
        notes=(
            *notes_on(data),
            *with_names({REVERSING: reversing}),
            *(note for fold in despite for note in fold.notes),
        ),
    )
    return page, rows


# ----------------------------------------------------------------------------------------------------------------------
# Findings: sentences of several numbers.


def findings(rows: Rows, data: Data) -> Iterator[Finding]:
    """What the page says first, each with what it rests on."""
    if (chosen := data.selected_on_test) is not None:
        yield Finding(
            "Caution: the train-before-test scores of this table are the better of both protocols on the test split.",
            f"{chosen.equal} of {chosen.cells} cells equal the direct score and none is below it. Without the equal "
            f"cells the mean tau under train before test is {base.value_in_words(chosen.mean_tau_without, digits=3)}.",
            alarm=True,
        )
    yield _mean_finding(rows, data)
    if (change := _change_finding(rows, data)) is not None:
        yield change
    if (similar_size := _size_finding(rows, data)) is not None:
        yield similar_size
    protocol = TRAINED if data.matrix.has(TRAINED) else DIRECT
    alone = base.estimate(rows, "tau_one_with_others", protocol=protocol)
    if is_known(alone.value):
        yield Finding(
            "Between the ranking by one benchmark picked at random and the ranking by all others together"
            f"{data.assumed}, tau is {base.value_in_words(alone.value, alone.models)} {UNDER[protocol]}.",
            "No benchmark is on both sides. The interval is over models.",
        )
    if (perplexity := _perplexity_finding(rows, data)) is not None:
        yield perplexity
    for p in data.incomplete if data.lacks_many else ():  # headlines are pooled
        if np.isfinite(rows.value("tau_pooled", protocol=p)):
            yield incomplete.pooled_finding(rows, data, p)


def told(number: Estimate, *, signed: bool = False) -> str:
    """A value with its intervals over models and over families, as far as there are any."""
    words = {"models": number.models, "families": number.families}
    parts = [f"{base.in_words(ends, signed=signed)} over {name}" for name, ends in words.items() if is_known(ends)]
    value = decimal(float(number.value), signed=signed) if is_known(number.value) else "unknown"
    return f"{value} (95%: {', '.join(parts)})" if parts else value


def each_protocol(values: dict[str, str]) -> str:
    """`0.52 under direct evaluation and 0.76 under train before test`."""
    return " and ".join(f"{words} {UNDER[p]}" for p, words in values.items())


def limits(values: dict[str, tuple[Value, Value]]) -> str:
    """The noise ceilings that are shown, in a sentence; `values`: taus with their ceilings."""
    shown = {p: base.shown_limit(ceiling, tau) for p, (tau, ceiling) in values.items()}
    known = {p: decimal(limit) for p, limit in shown.items() if is_known(limit)}
    return f" With noise alone, it would be {each_protocol(known)}." if known else ""


def without(values: dict[str, Estimate]) -> str:
    """The taus without noise, in a sentence."""
    known = {p: told(one) for p, one in values.items() if is_known(one.value)}
    return f" Without noise, it is {each_protocol(known)}." if known else ""


def _mean_finding(rows: Rows, data: Data) -> Finding:
    means = {p: base.estimate(rows, "tau_mean", protocol=p) for p in PROTOCOLS}
    # of a protocol with so few models that there is no interval, the pooled finding says how few
    means = {p: one for p, one in means.items() if is_known(one.value) and (p not in data.incomplete or one.quoted)}
    size = f"{count(len(data.matrix.models), 'model')} × {count(len(data.tasks), 'benchmark')}"
    if not means:
        return Finding("No two benchmarks can be compared.", size)
    others = {p: base.in_words(base.for_others(rows, "tau_mean", protocol=p)) for p in means}
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
        + limits({p: (one.value, base.estimate(rows, "tau_ceiling", protocol=p).value) for p, one in means.items()})
        + without({p: base.estimate(rows, "tau_mean_corrected", protocol=p) for p in means})
        + above,
        f"{size}{cells}. For other benchmarks too: {each_protocol(others)}.",
    )


def _change_finding(rows: Rows, data: Data) -> Finding | None:
    pooled = data.lacks_many and rows.row("tau_pooled_change", pairs="all") is not None
    place = {"pairs": "all"} if pooled else {}
    change = base.estimate(rows, "tau_pooled_change" if pooled else "tau_change", **place)
    improved, compared = data.improved
    if change.quoted is None:
        return None
    means = "tau_pooled_in_both" if pooled else "tau_mean_in_both"
    before, after = (base.value_in_words(base.estimate(rows, means, protocol=p, **place).value) for p in PROTOCOLS)
    cells = f"Over the {count(int(data.in_both.sum()), 'cell')} known under both protocols"
    if pooled:
        basis = f"{cells}: {change.n:,} comparisons of two models on two benchmarks, each counted once."
    else:
        basis = f"{cells}. For other benchmarks too: {base.in_words(base.for_others(rows, 'tau_change'), signed=True)}."
    return Finding(
        f"Train before test changes the {'pooled' if pooled else 'mean'} tau of these benchmarks"
        f"{data.assumed} from {before} to {after}, by {told(change, signed=True)}: {improved} of {compared} pairs "
        "agree more.",
        basis,
    )


def _size_finding(rows: Rows, data: Data) -> Finding | None:
    """Among models that a reader chooses between: those of like size."""
    if data.lacks_many:
        found = {
            p: base.estimate(rows, "tau_pooled_in_both", protocol=p, pairs="like_size") for p in data.matrix.protocols
        }
        found = {p: one for p, one in found.items() if one.quoted}
        name, basis = "pooled", "comparisons of two models on two benchmarks, each counted once"
    else:
        both = "" if data.whole or len(data.matrix.protocols) == 1 else "_in_both"
        place: dict[str, Condition] = {"distance": "size", "at_least": 1.0, "at_most": 2.0}
        found = {p: base.estimate(rows, f"tau_mean{both}_by_ratio", protocol=p, **place) for p in data.matrix.protocols}
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
    own = {p: base.estimate(rows, "tau_corpus_benchmark", protocol=p) for p in PROTOCOLS}
    both = {p: base.estimate(rows, "tau_perplexity_in_both", protocol=p, kind="corpus_benchmark") for p in PROTOCOLS}
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
# Notes: what is missing, equal, assumed or left out of which comparison.

FAR = (
    "Far from all other models: {}. A noise ceiling takes the distance to such a model for the scale of all "
    "differences: it is too low (measured: by .04), and the tau without noise too high."
)
OPPOSED = (
    "Nothing says whether higher or lower is better on {}, and the order of the models there is against that of the "
    "other benchmarks. Whether benchmarks agree is not known until the column `higher_is_better` of the benchmarks "
    "sheet says it: 0 if lower is better, else 1."
)


def notes_on(data: Data) -> list[str]:
    """On the data of the agreement report, and on what is left out of which comparison."""
    matrix, resamples = data.matrix, data.resamples
    in_corpora = np.any([np.isfinite(scores).any(axis=1) for scores in data.corpora.values()], axis=0)
    absent = np.array(matrix.labels)[~in_corpora & matrix.is_corpus.any()]
    fewer = f"The table is large: intervals over models are from {resamples} resamples instead of "
    is_far = np.any([far_models(scores) for scores in data.scores.values()], axis=0)
    far = np.array(matrix.labels)[is_far].tolist()
    opposed = list(dict.fromkeys(name for names in data.opposed.values() for name in names))
    return [
        *matrix.notes,
        *([f"{fewer}{data.requested_resamples}."] if resamples < data.requested_resamples else []),
        *coverage_notes(data),
        *data.paired_notes,
        *comparison_notes(data),
        *with_names({"No perplexity of {}: left out of the comparisons with perplexity.": list(absent)}),
        *(
            note
            for p, entry in data.ceiling.items()
            for note in ceiling_notes(data, p, entry.included, "mean tau", entry.mean_tau, mean_over_pairs(data.tau[p]))
        ),
        *selection_notes(data),
        *with_names({FAR: far, OPPOSED: opposed}),
        *([] if any(matrix.training.values()) else [NOT_MEASURED]),
    ]


def coverage_notes(data: Data) -> list[str]:
    """What is missing, constant or without a standard error, in sentences."""
    notes, matrix = list[str](), data.matrix
    for p in matrix.protocols:
        known_cells, under = np.isfinite(data.scores[p]), UNDER[p].capitalize()
        notes += _missing_notes(data, p, known_cells)
        columns = list(zip(data.tasks, data.scores[p].T, data.stderr[p].T, known_cells.T, strict=True))
        constant = [name for name, column, _, ok in columns if ok.sum() > 1 and np.ptp(column[ok]) == 0]
        # models with equal scores on at least two benchmarks, and on all that they have
        twins: dict[bytes, list[str]] = {}
        for name, row in zip(matrix.models, data.scores[p], strict=True):
            if np.isfinite(row).sum() >= 2 and np.ptp(row[np.isfinite(row)]) > 0:
                twins.setdefault(np.nan_to_num(row, nan=np.inf).tobytes(), []).append(name)
        same = [" and ".join(names) for names in twins.values() if len(names) > 1]
        without = [name for name, _, error, ok in columns if ok.any() and not np.isfinite(error[ok]).any()]
        notes += with_names(
            {
                f"{under}, all models have the same score on {{}}, so there is no tau.": constant,
                f"{under}, {{}} have exactly the same scores on all benchmarks. Perhaps it is one model twice.": same,
                f"{under}, there are no standard errors on {{}}. Without them no difference is significant there, and "
                "the benchmark is not in the noise ceiling.": without,
            }
        )
    return notes


def _missing_notes(data: Data, protocol: str, finite: np.ndarray) -> list[str]:
    """Which scores of a protocol are missing, of (models, benchmarks) `finite` ones."""
    if finite.all():
        return []
    matrix, under = data.matrix, UNDER[protocol].capitalize()
    planned = matrix.planned(protocol)[:, ~matrix.is_corpus]
    aside = np.isfinite(matrix.measured(protocol)[:, ~matrix.is_corpus]) & ~finite
    places = zip(*np.nonzero(~finite & planned & ~aside), strict=True)
    cells = [f"{matrix.models[i]} on {data.tasks[j]}" for i, j in places]
    basis_of_tau, notes = "each tau is over the models known on both benchmarks", list[str]()
    if not planned.all():
        left_out = int((~finite & ~planned).sum())
        notes.append(f"{under}, {left_out} of {finite.size} cells are not planned and not missing; {basis_of_tau}.")
    if aside.any():
        notes.append(
            f"{under}, {aside.sum()} of {finite.size} cells were chosen by earlier scores. They are used for the "
            "ranks despite missing cells and for the predictions, but for no agreement."
        )
    if cells:
        notes.append(f"{under}, {len(cells)} of {finite.size} cells are missing ({listing(cells, 6)}); {basis_of_tau}.")
    nowhere = [name for name, row in zip(matrix.models, finite, strict=True) if not row.any()]
    return notes + with_names({f"{under}, there is no score at all for {{}}.": nowhere})


def comparison_notes(data: Data) -> list[str]:
    """Which cells a comparison of the protocols is over if it leaves some out."""
    if data.whole or len(data.matrix.protocols) < len(PROTOCOLS):
        return []
    models, benchmarks = data.in_both.any(axis=1).sum(), data.in_both.any(axis=0).sum()
    return [
        f"{data.in_both.sum()} of {data.in_both.size} cells ({count(models, 'model')}, "
        f"{count(benchmarks, 'benchmark')}) are known under both protocols. Everything that compares the two uses "
        "these cells, and only values that are defined under both. Figures of one protocol use all of its cells."
    ]


def ceiling_notes(data: Data, protocol: str, used: np.ndarray, name: str, limit: float, value: float) -> Iterator[str]:
    """Which benchmarks the noise ceiling leaves out, all but the `used` (mask), where there is one; and why it is not
    shown where it is below the value called `name`. `limit`: the ceiling of that `value`."""
    under = UNDER[protocol].capitalize()
    out = [task for task, is_used in zip(data.tasks, used, strict=True) if not is_used]
    if out and np.isfinite(limit):
        yield f"{under}, the noise ceiling is over the benchmarks other than {listing(out)}."
    if value > limit and not is_known(base.shown_limit(limit, value)):
        yield (
            f"{under}, the {name} ({decimal(value)}) is above its noise ceiling ({decimal(limit)}), which is therefore "
            f"not shown. {base.WHY_ABOVE}"
        )


def selection_notes(data: Data) -> list[str]:
    """What scores chosen on the test split mean."""
    if (chosen := data.selected_on_test) is None:
        return []
    return [
        f"No train-before-test score is below its direct score, and {chosen.equal} of {chosen.cells} are exactly "
        "equal. So the train-before-test scores of this table are the better of both protocols on the test split, "
        "not a choice made on validation. Where fine-tuning does not help, the score is then too high by chance, and "
        "the model keeps its direct score there. Without the equal cells the mean tau under train before test is "
        f"{decimal(number(chosen.mean_tau_without), 4)}."
    ]
