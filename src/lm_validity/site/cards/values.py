"""What a benchmark card knows: every quantity that it can have (`quantities.tsv`), the rows of one benchmark, and the
verdict on them.

A row is one of a report's, or made of the benchmarks sheet, the scores, or the splits of a run. What is not measured is
a row with the reason, which says what would measure it.

Most rules of the verdict ask for the whole interval on one side of their threshold. A rule says "not known" where the
interval holds the threshold or where there is no interval, and "not measured" where there is no value.
docs/reference/cards.md lists the rules and the clauses; the thresholds are those of `config.sections.Cards`.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from lm_validity.config.sections import Cards
from lm_validity.files import read_json_or, read_page
from lm_validity.results.put import Row, Rows, ends_of
from lm_validity.results.sections import TOKENS
from lm_validity.tables.counted import Counted, Sources, count_scores, last_checkpoints
from lm_validity.tables.items import NO_CHANCE, with_chance
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED, of_study, reruns_of
from lm_validity.tables.settings import UNLIKE_SETTINGS, Difference, difference_notes, differences
from lm_validity.tables.training import in_tokens, progress
from lm_validity.words import Missing, decimal, listing, no_scores, scale_of


class Quantity(NamedTuple):
    """A line of a card. `report`, `of_report`, `conditions`: the rows that it shows, "" for what is of no report."""

    section: str
    name: str
    label: str
    report: str
    of_report: str
    conditions: str
    explanation: str


def read_table(name: str) -> list[list[str]]:
    """The lines of a table beside this module, without its header."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()[1:]
    return [line.split("\t") for line in lines]


QUANTITIES = {line[1]: Quantity(*line) for line in read_table("quantities.tsv")}

# ----------------------------------------------------------------------------------------------------------------------
# Numbers of a card, and how they are written.


def known(rows: Rows, key: str) -> Row | None:
    """The number or text `quantity` or `quantity.protocol`; None where it is not known."""
    name, _, protocol = key.partition(".")
    row = rows.row(name, protocol=protocol or None)
    return None if row is None or (row.value is None and row.text is None) else row


def value_of(rows: Rows, key: str) -> float | None:
    """The number of a key; None where it is not known."""
    row = known(rows, key)
    return None if row is None else row.value


def by_protocol(rows: Rows, quantity: str) -> dict[str, Row]:
    """The numbers of a quantity that are known, by protocol."""
    return {protocol: row for protocol in PROTOCOLS if (row := known(rows, f"{quantity}.{protocol}"))}


_DIGITS = {"tau": 2, "index": 2, "score": 3, "accuracy": 3}  # by unit
_TASKS = {
    "multiple_choice": "choice among answers",
    "generate_until": "written answer",
    "loglikelihood": "likelihood of a given answer",
    "loglikelihood_rolling": "perplexity",
}


def tokens_words(billions: float) -> str:
    """`27 billion tokens`, in millions or thousands where they are few."""
    if not billions:
        return "0 tokens"
    factor, unit = scale_of(billions)
    return f"{billions * factor:.3g} {unit} tokens"


def shown(row: Row) -> str:
    """The number with its interval, in its unit; or the text."""
    if row.text is not None:
        return _TASKS.get(row.text, row.text) if row.quantity == "output_type" else row.text
    if row.value is None:
        return "not measured"
    text = _number(row.value, row.unit)
    ends = ends_of(row)
    return text if ends is None else f"{text} ({' to '.join(_number(end, row.unit) for end in ends)})"


def _number(number: float, unit: str) -> str:
    if unit == TOKENS:
        return tokens_words(number)
    if unit == "yes_or_no":
        return "yes" if number else "no"
    if unit == "share":
        return f"{decimal(100 * number, 1)}%"
    if unit in _DIGITS:
        return decimal(number, _DIGITS[unit])
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:.3g}"


def basis_words(row: Row) -> str:
    """What a number rests on, and of which group of models or experiment it is: `61 models`, `1 pair of models`."""
    words = row.basis.replace("_", " ") if row.basis else ""
    words = re.sub(r"s\b", "", words, count=1) if row.n == 1 else words
    conditions = [f"{name} {row.said[name]}" for name in ("group", "experiment") if name in row.said]
    return ", ".join([*([f"{row.n:,} {words}"] if row.n and words else []), *conditions])


# ----------------------------------------------------------------------------------------------------------------------
# Where the facts lie.

LEAST_POINTS = 3  # checkpoints of a curve
# what a card reads of each report, beside the quantities
_FURTHER = {
    "agreement": {"selected_on_test_equal"},
    "signal": {"common_points_at_end", "point_tokens"},
    "bias": {"task_effect_trials"},
    "models": {"smallest_detectable", "paired_pairs"},
    "compare": {"smallest_detectable", "test"},
}


@dataclass(frozen=True)
class CardSources:
    """Where the facts lie. reports: folders of reports, each named as its report. models: the models sheet, for their
    sizes. items: the table, where there is one. splits: the folder of a run's splits. source: what the cards say they
    are from. items_command: writes the items report, for cards without it. missing: what an unfinished run lacks.
    """

    scores: Path
    benchmarks: Path
    reports: Sequence[Path]
    models: Path | None = None
    items: Path | None = None
    splits: Path | None = None
    settings: Cards = field(default_factory=Cards)
    source: str = ""
    items_command: str = ""
    missing: Sequence[str] = ()

    @cached_property
    def results(self) -> dict[str, Rows]:
        """The rows of results.parquet by report, of those that are there."""
        read = {name: set(quantities) for name, quantities in _FURTHER.items()}
        for quantity in QUANTITIES.values():
            read.setdefault(quantity.report, set()).add(quantity.of_report)
        files = {folder.name: folder / "results.parquet" for folder in map(Path, self.reports) if folder.name in read}
        return {name: Rows.read(path, read[name]) for name, path in files.items() if path.is_file()}

    @cached_property
    def counted(self) -> Counted:
        """The scores that count, with their models and benchmarks."""
        return count_scores(Sources(self.scores, self.models, self.benchmarks))

    @cached_property
    def sheet(self) -> pd.DataFrame:
        """The benchmarks sheet's rows of benchmarks with scores, indexed by benchmark."""
        return with_chance(self.counted.benchmarks, self.items).set_index("benchmark", drop=False)

    @cached_property
    def last_rows(self) -> pd.DataFrame:
        """The scores at each model's last checkpoint, without missing ones and without other runs of a model."""
        rows = self.counted.rows[~self.counted.rows["model"].isin(reruns_of(self.counted.models))]
        return rows[last_checkpoints(rows).rows & rows["value"].notna()]

    @cached_property
    def differing(self) -> tuple[Difference, ...]:
        """The settings that differ between the models of a benchmark."""
        return differences(self.last_rows)

    @cached_property
    def last_scores(self) -> pd.DataFrame:
        """benchmark, protocol, model, value: of each model as it is finished, mean over seeds; no reruns."""
        return self.last_rows.groupby(["benchmark", "protocol", "model"])["value"].mean().reset_index()

    @cached_property
    def _direct(self) -> pd.DataFrame:
        return self.counted.rows[(self.counted.rows["protocol"] == DIRECT) & self.counted.rows["value"].notna()]

    @cached_property
    def in_tokens(self) -> bool:
        """Whether `curves` run over billions of tokens, not over training steps."""
        return in_tokens(self._direct)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """benchmark, model, at (billions of tokens or, where no curve has these, steps), value: direct scores in
        training of the models with at least three checkpoints, by `at`."""
        rows = self._direct.assign(at=progress(self._direct)).dropna(subset=["at"])
        means = rows.groupby(["benchmark", "model", "at"])["value"].mean().reset_index()
        return means[means.groupby(["benchmark", "model"])["at"].transform("size") >= LEAST_POINTS]

    def scores_of(self, benchmark: str) -> pd.DataFrame:
        """The rows of `last_scores` on a benchmark; of those models that the agreement report compares on it."""
        scores, models = self.last_scores[self.last_scores["benchmark"] == benchmark], self.counted.models
        agreement = self.results.get("agreement")
        if agreement is None or not agreement.all("benchmark_models", subject=benchmark):
            return scores
        return scores[scores["model"].isin(models.loc[of_study(models, "agreement"), "model"])]

    @cached_property
    def sizes(self) -> dict[str, float]:
        """Billions of parameters by model, of those known."""
        sizes = self.counted.models.set_index("model")["parameters_b"].dropna()
        return {str(model): float(size) for model, size in sizes.items()}

    @cached_property
    def _page_notes(self) -> list[str]:
        pages = [read_page(path) for folder in self.reports if (path := Path(folder) / "page.json").is_file()]
        return list(dict.fromkeys(note for page in pages for note in page["notes"]))

    def notes(self, benchmark: str) -> tuple[str, ...]:
        """What an unfinished run lacks, and the reports' notes on the data that name the benchmark."""
        unfinished = "The run is not finished. This card is based on the parts that exist. Missing: "
        name = re.compile(rf"(?<![\w-]){re.escape(benchmark)}(?![\w-])")
        notes = [note for note in self._page_notes if name.search(note) and not note.startswith(UNLIKE_SETTINGS)]
        notes += difference_notes(
            tuple(difference for difference in self.differing if benchmark in difference.benchmarks)
        )
        return (*([f"{unfinished}{listing(self.missing)}."] if self.missing else []), *notes)


# ----------------------------------------------------------------------------------------------------------------------
# The rows of one benchmark.

CONFIGURED = "--configfile CONFIGURATION.yaml"
CORPUS = "It is a perplexity corpus. The agreement report compares corpora with the benchmarks as a group only."
NOT_IN_ITEMS = "There is no table of the models' answers item by item. To measure: lm_eval --log_samples --output_path "
NOT_IN_ITEMS += "FOLDER ... && lm-validity report FOLDER --output DIR"
NO_SPLITS = "The splits of these scores are not known: they were not made by a run of this workflow."
# of each report: why a benchmark has nothing of it where there is none, and where there is one
_ABSENT = {report: reasons for report, *reasons in read_table("absent.tsv")}


def card_rows(sources: CardSources, benchmark: str) -> Rows:
    """Every number of a benchmark that has scores, by the names of `QUANTITIES`. What a report does not have at all is
    missing without a protocol."""
    rows = Rows("card").of(subject=benchmark)
    facts, scores = sources.sheet.loc[benchmark], sources.counted.rows
    scores = scores[scores["benchmark"] == benchmark]
    for name in ("category", "metric", "output_type"):
        unknown = Missing("The benchmarks sheet does not say.")
        rows.put(name, unknown if pd.isna(facts[name]) else str(facts[name]), "text")
    counts = scores["n_items"].dropna()
    items = counts.median() if len(counts) else facts["n_items"]
    unknown = Missing("Neither the scores nor the benchmarks sheet say how many there are.")
    rows.put("items", unknown if pd.isna(items) else int(items), "items")
    rows.put("chance", NO_CHANCE if pd.isna(facts["chance"]) else float(facts["chance"]), "score")
    _points(rows, sources, benchmark)
    for quantity in QUANTITIES.values():
        _copy(rows, sources, quantity, benchmark)
    for protocol in PROTOCOLS:
        models = scores.loc[(scores["protocol"] == protocol) & scores["value"].notna(), "model"].nunique()
        lacking = Missing(f"{no_scores(protocol)} To measure: snakemake agreement {CONFIGURED}")
        if rows.row("models", protocol=protocol) is None:
            rows.put("models", models or lacking, "models", protocol=protocol)
    _splits(rows, None if sources.splits is None else sources.splits / benchmark)
    return rows


def _copy(rows: Rows, sources: CardSources, quantity: Quantity, benchmark: str) -> None:
    """The numbers that a report has of the benchmark, or why there are none. Pairs of all models are there only where
    none of similar size are known; of several experiments the one with most trials speaks, since their models and
    settings differ; of several groups the first that was named."""
    report, conditions = sources.results.get(quantity.report), quantity.conditions or "{}"
    if not quantity.report or (quantity.report == "readiness" and report is None):
        return
    if report is not None and quantity.report in ("bias", "readiness"):
        name, where = ("task_effect_trials", {"effect": "bias"}) if quantity.report == "bias" else ("lead", {})
        choice = report.all(name, subject=benchmark, **where)
        largest = max(choice, key=lambda row: row.value or 0.0) if quantity.report == "bias" and choice else None
        conditions = (largest or choice[0]).conditions if choice else ""
    numbers = [] if report is None else report.all(quantity.of_report, subject=benchmark)
    numbers = [row._replace(study="card", quantity=quantity.name) for row in numbers if row.conditions == conditions]
    if quantity.name == "separated_all":
        numbers = [row for row in numbers if known(rows, f"separated_within_2.{row.protocol}") is None]
    if quantity.name == "smallest_difference" and report is None:
        numbers = [*_gap_of_few(sources, benchmark)]
    rows.extend(numbers)
    if not numbers and quantity.name not in ("separated_all", "models", "prompt_range_by_chance"):
        reason = _ABSENT[quantity.report][report is not None] if quantity.report in _ABSENT else ""
        if quantity.report == "items" and report is None:
            reason = f"{reason} To measure: {sources.items_command}" if sources.items_command else reason
            reason = NOT_IN_ITEMS if sources.items is None else reason
        corpus = quantity.report == "agreement" and value_text(rows, "output_type") == "loglikelihood_rolling"
        if reason:
            rows.put(quantity.name, Missing(CORPUS if corpus else reason), "text")


def value_text(rows: Rows, name: str) -> str | None:
    """The text of a quantity; None where it is not known."""
    row = known(rows, name)
    return None if row is None else row.text


def _gap_of_few(sources: CardSources, benchmark: str) -> list[Row]:
    """The smallest difference of an order of models or a comparison where there is no agreement report, if its tests
    ignore the common items too."""
    ranking, comparison = (sources.results.get(name, Rows(name)) for name in ("models", "compare"))
    numbers = [row for row in ranking.all("smallest_detectable", subject=benchmark)
             if not ranking.value("paired_pairs", subject=benchmark, protocol=row.protocol)]  # fmt: skip
    for row in comparison.all("smallest_detectable", subject=benchmark):
        test = comparison.row("test", subject=benchmark, protocol=row.protocol)
        numbers += [row] if test is not None and test.text == "standard errors" else []
    return [row._replace(study="card", quantity="smallest_difference") for row in numbers]


def _points(rows: Rows, sources: CardSources, benchmark: str) -> None:
    """The first and the last of the points of training that all models have."""
    signal = sources.results.get("signal", Rows("signal"))
    if points := signal.all("point_tokens", subject=benchmark):
        ends = bool(signal.value("common_points_at_end", subject=benchmark))
        not_end = Missing("The models have no score in common at the end of training.")
        rows.put("first_point", points[0].value or 0.0, TOKENS)
        rows.put("last_point", points[-1].value or 0.0 if ends else not_end, TOKENS)


def _splits(rows: Rows, folder: Path | None) -> None:
    """Rows that left the training splits since the test split has them, and test rows that are there twice."""
    for split, name in (("train", "train_leakage"), ("validation", "validation_leakage"), ("test", "test_duplicates")):
        record = None if folder is None else read_json_or(folder / f"{split}.json", None)
        if folder is None:
            rows.put(name, Missing(f"{NO_SPLITS} To measure: snakemake scores {CONFIGURED}"), "share")
        elif not record or not record.get("hashes"):
            rows.put(name, Missing(f"The run made no {split} split of the benchmark."), "share")
        elif split == "test":
            hashes = record["hashes"]
            rows.put(name, 1 - len(set(hashes)) / len(hashes), "share", counted=("documents", len(hashes)))
        else:
            removed, examined = record["removed_by_text"] + record["removed_by_id"], record["examined"]
            rows.put(name, removed / examined, "share", counted=("documents", examined))


# ----------------------------------------------------------------------------------------------------------------------
# The verdict: what the rules say, and the sentence that they make.

YES, NO, PARTLY, NOT_KNOWN, NOT_MEASURED = "yes", "no", "in part", "not known", "not measured"


class Statement(NamedTuple):
    """What one rule says. `values`: keys of the values that it rests on. `word`: what stands beside its mark."""

    rule: str
    outcome: str
    values: tuple[str, ...]
    word: str


# ----------------------------------------------------------------------------------------------------------------------
# The closed list of clauses: a verdict is the first that holds, in this order, and the next that holds with which it
# keeps to 12 words; or that one alone; or a sentence of its own where none holds.

MOST_WORDS = 12

# (question, answer) -> the clause, and when it is said
CLAUSES = {(question, answer): (clause, when) for question, answer, clause, when in read_table("clauses.tsv")}
CORPUS_ALONE = "A text corpus, compared with the benchmarks as a group only."
UNDECIDED = "These data answer none of the questions."


class Verdict(NamedTuple):
    """The rules' statements on one benchmark, and the sentence of at most 12 words that they make. `marks`: the
    statements by rule, and by question of the table of benchmarks."""

    statements: tuple[Statement, ...]
    sentence: str
    marks: Mapping[str, Statement]


def make_verdict(rows: Rows, settings: Cards) -> Verdict:
    """The verdict on a benchmark from the rows of its card."""
    statements = tuple(_statements(rows, settings))
    marks = {statement.rule: statement for statement in statements}
    direct, trained, similar = (statement for statement in statements if statement.rule == "agrees")
    ranks = trained if direct.outcome == NOT_MEASURED else direct
    if trained.outcome not in (NOT_MEASURED, ranks.outcome):
        ranks = direct._replace(outcome=PARTLY, word=f"direct: {direct.outcome} · trained: {trained.outcome}")
    marks |= {"ranks": ranks, "ranks similar": similar, "apart": marks["separates"]}
    of_similar = marks["separates"].values[0].startswith("separated_within_2")
    clauses = list(_clauses(rows, marks, of_similar=of_similar))
    nothing = CORPUS_ALONE if value_text(rows, "output_type") == "loglikelihood_rolling" else UNDECIDED
    return Verdict(statements, sentence_of(clauses) if clauses else nothing, marks)


def sentence_of(clauses: Sequence[str]) -> str:
    """The first clause and the next one with which the sentence keeps to 12 words."""
    texts = (f"{clauses[0]}; {second}" for second in clauses[1:])
    text = next((text for text in texts if len(text.split()) <= MOST_WORDS), clauses[0])
    return f"{text[0].upper()}{text[1:]}."


def _clauses(rows: Rows, marks: Mapping[str, Statement], *, of_similar: bool) -> Iterator[str]:
    """The clauses that hold, in the order of `CLAUSES`. `of_similar`: models of similar size are told apart, or not."""
    for (question, answer), (words, _) in CLAUSES.items():
        mark = marks["apart" if question == "apart all" else question]
        if question.startswith("apart") and (question == "apart") != of_similar:
            continue
        if answer != (mark.word if (question, mark.word) in CLAUSES else mark.outcome):
            continue
        if "{share}" not in words:
            yield words
            continue
        row, last = known(rows, "signal_from" if question == "signal" else "settled_from"), value_of(rows, "last_point")
        if row is not None and last is not None:
            yield words.format(share=f"{100 * (row.value or 0.0 if row.high is None else row.high) / last:.0f}%")


# ----------------------------------------------------------------------------------------------------------------------
# The rules.

_TAUS = (f"tau.{DIRECT}", f"tau.{TRAINED}", f"tau_within_2.{DIRECT}")


def side(row: Row | None, threshold: float) -> str:
    """YES where the whole interval is at or above the threshold, NO where it is below, else not known or measured."""
    if row is None or row.low is None or row.high is None:
        return NOT_MEASURED if row is None else NOT_KNOWN
    return YES if row.low >= threshold else NO if row.high < threshold else NOT_KNOWN


def _key(rows: Rows, name: str) -> str:
    """The key of a quantity under direct evaluation, or under train before test where that is all there is."""
    direct, trained = f"{name}.{DIRECT}", f"{name}.{TRAINED}"
    return trained if known(rows, trained) and not known(rows, direct) else direct


def _statements(rows: Rows, settings: Cards) -> Iterator[Statement]:
    """What each rule says, in the order of the card."""
    key = _key(rows, "separated_within_2")
    if known(rows, key) is None:  # nothing is known of models of similar size: over all pairs
        key = _key(rows, "separated_all")
    row = known(rows, key)
    sides = side(row, settings.separated), side(row, settings.not_separated)
    parted = {(YES, YES): YES, (NO, NO): NO, (NO, YES): PARTLY}.get(sides, NOT_KNOWN)
    yield _said("separates", NOT_MEASURED if row is None else parted, (key,))
    key = _key(rows, "reliability")
    yield _said("reliable", side(known(rows, key), settings.reliable), (key,))
    # a size without a threshold: what it does is in reliability, separation and the noise ceiling
    key = _key(rows, "training_noise")
    yield _said("training", YES if known(rows, key) else NOT_MEASURED, (key,))
    for key in _TAUS:
        row, ceiling_key = known(rows, key), key.replace("tau", "tau_ceiling", 1)
        outcome, ceiling = side(row, settings.agrees), value_of(rows, ceiling_key)
        below_zero = row is not None and row.high is not None and row.high < 0
        if outcome == NO and (ceiling is None or ceiling < settings.agrees) and not below_zero:
            outcome = NOT_KNOWN  # noise alone may keep the tau below the threshold, whatever the benchmarks measure
        yield _said("agrees", outcome, (key, ceiling_key))
    yield from _in_training(rows, settings)
    yield _bias(known(rows, "bias"), settings)
    # exact counts: every row of the splits was compared
    keys = ("train_leakage", "validation_leakage", "test_duplicates")
    shares = [value for key in keys if (value := value_of(rows, key)) is not None]
    leaks = NOT_MEASURED if not shares else YES if max(shares) > settings.leakage else NO
    yield _said("leakage", leaks, keys)
    # noise makes a range positive too: yes asks for the threshold beyond all that noise can do, no for it without
    row, by_chance = known(rows, "prompt_range"), value_of(rows, "prompt_range_by_chance")
    outcome = side(row, settings.prompt)
    if outcome == YES and row is not None and row.low is not None:
        outcome = NOT_KNOWN if by_chance is None or row.low - by_chance < settings.prompt else YES
    yield _said("prompts", outcome, ("prompt_range",))
    # too few answers find no items that work against it either
    counts = (
        ("suspicious", "negative_items", settings.suspicious, NOT_KNOWN),
        ("ceiling", "at_best", settings.at_best, NO),
    )
    for rule, name, share, otherwise in counts:
        row = known(rows, key := _key(rows, name))
        beyond = row is not None and (row.value or 0.0) > share * (row.n or 0)
        outcome = NOT_MEASURED if row is None else YES if beyond else otherwise
        yield _said(rule, outcome, (key,), "not shown" if outcome == NOT_KNOWN else "")


def _said(rule: str, outcome: str, keys: Sequence[str], word: str = "") -> Statement:
    """The statement of a rule, whose word is the outcome where there is none of its own."""
    return Statement(rule, outcome, tuple(keys), word or outcome)


def _in_training(rows: Rows, settings: Cards) -> Iterator[Statement]:
    """When scores rise above chance and their order settles, whether they improve steadily, and whether both are early.

    Settled for sure by the upper end of the interval, where that is before the end of training: where the last common
    point of the models is not the end, their final order is not known. That scores do not improve steadily is never
    said. Early: the interval of when the order settles, from the point on at which the mean is above chance, is on one
    side of a share of training. Where one of both was not measured, the other can say no, but not yes.
    """
    keys = ("settled_from", "signal_from", "signal_at_end")
    settled, starts = known(rows, "settled_from"), value_of(rows, "signal_from")
    first, last = value_of(rows, "first_point"), value_of(rows, "last_point")
    none_above = value_of(rows, "signal_at_end") == 0  # no model by itself; the mean may be
    outcome, word = YES if first is not None and starts is not None and starts <= first else NO, ""
    if starts is None:
        outcome, word = (NOT_KNOWN, "not shown") if none_above else (NOT_MEASURED, "")
    key = "signal_at_end" if none_above else "signal_from"
    yield _said("signal", outcome, (key,), word)
    ends = ends_of(settled) if settled is not None else None
    surely = ends is not None and last is not None and ends[1] < last
    outcome = NOT_MEASURED if settled is None else YES if surely else NOT_KNOWN
    yield _said("settled", outcome, ("settled_from",))
    steady = value_of(rows, "steady")
    outcome, word = (YES, "steady") if steady else (NOT_KNOWN, "not shown")
    outcome, word = (NOT_MEASURED, "") if steady is None else (outcome, word)
    yield _said("steady", outcome, ("steady",), word)
    outcome, word = NOT_KNOWN, ""
    if none_above:
        word = "not shown above chance" if starts is None else ""
    elif settled is None and starts is None:
        outcome = NOT_MEASURED
    elif last is not None:
        # where chance is unknown, or the models' mean never stays above it, no share of training is surely enough
        rises = (0.0, 1.0) if starts is None else (starts / last,) * 2
        low, high = (max(rise, end / last) for rise, end in zip(rises, ends or (0.0, last), strict=True))
        if high <= settings.early and high < 1:
            outcome, word = YES, f"by {100 * high:.0f}%"
        elif low > settings.early:
            outcome, word = NO, f"not before {100 * low:.0f}%"
        elif high < 1:  # as the page of the signal study says, which asks only whether it is before the end
            word = f"by {100 * high:.0f}%"
    yield _said("ready", outcome, keys, word)


def _bias(row: Row | None, settings: Cards) -> Statement:
    outcome, word = (NOT_MEASURED if row is None else NOT_KNOWN), ""
    low, high = (row and ends_of(row)) or (-math.inf, math.inf)
    if low > 0 or high < 0:
        outcome, word = YES, "raises" if low > 0 else "lowers"
    elif max(-low, high) < settings.bias:
        outcome = NO
    return _said("bias", outcome, ("bias",), word)
