"""What a benchmark card knows: every quantity that it can have, and the values of one benchmark.

A value comes from a row of a report's results.parquet (`FROM` says which), from the benchmarks sheet, from the
table of scores, or from the splits of a run. What is not measured has a reason, and a command that would measure it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from lm_validity.config.sections import Cards
from lm_validity.files import read_json_or
from lm_validity.outputs import read_page
from lm_validity.results.put import Condition, Rows
from lm_validity.results.rows import Row
from lm_validity.tables.counted import Counted, count_scores, in_tokens, last_checkpoints, progress
from lm_validity.tables.schema import DIRECT, PREPARED, PROTOCOLS, REPLAY, TRAINED, trained_here
from lm_validity.tables.settings import UNLIKE_SETTINGS, Difference, difference_notes, differences
from lm_validity.tables.sheets import of_study, reruns_of
from lm_validity.words import UNDER, decimal, listing, scale_of


@dataclass(frozen=True)
class Quantity:
    """unit: text, items, models, documents, pairs, share, index (from 0 to 1), score (the metric's own), tau,
    billion tokens."""

    name: str
    section: str
    label: str
    unit: str
    explanation: str


# by section of the card: (label, unit, explanation) of each
_ALL: Mapping[str, Mapping[str, tuple[str, str, str]]] = {
    "What it measures": {
        "category": ("Category", "text", "The group of benchmarks that the benchmarks sheet puts it in."),
        "metric": ("Metric", "text", "How an answer is scored, by lm-eval's name."),
        "output_type": ("Kind of task", "text", "Choice among answers, a written answer, or perplexity."),
        "items": ("Items", "items", "Test questions behind a score: the median over models."),
        "models": ("Models", "models", "Models with a score on this benchmark."),
    },
    "Chance and ceiling": {
        "chance": ("Chance", "score", "The score that guessing would give."),
        "lowest": ("Lowest score", "score", "The lowest score of a model."),
        "highest": ("Highest score", "score", "The highest score of a model."),
        "above_chance": ("Models above chance", "models",
            "Models whose score is above chance: one-sided tests at 5% with Holm's adjustment over the models."),
        "at_best": ("Models at the ceiling", "models",
            "Models whose score is not more than 1.96 standard errors below 1, the best score."),
    },
    "Reliability and resolution": {
        "reliability": ("Reliability", "share",
            "Share of the variance between the models' scores that is not due to which items were asked or, where "
            "this was measured, to training the models again. 100% means no such noise."),
        "training_noise": ("Noise of training", "score",
            "Standard deviation of a model's score between trainings of it, on the same items."),
        "sampling_noise": ("Noise of sampling", "score",
            "Standard deviation of a model's score between sampled runs, on the same items."),
        "smallest_difference": ("Smallest detectable difference", "score",
            "Two models this far apart are told apart four times out of five by a test that ignores which items they "
            "share. A test that pairs the answers item by item detects smaller differences."),
        "paired_difference": ("Smallest detectable difference, paired by item", "score",
            "The same for two neighbours in the ranking, compared item by item; the median over neighbours."),
        "items_needed": ("Items needed", "items",
            "How many items like these it would take to detect the typical difference between two models at most 2× "
            "apart in size four times out of five."),
        "separated_within_2": ("Separated within 2×", "share",
            "Share of the pairs of models whose sizes differ by at most 2× that have significantly different scores "
            "(p < .05, each pair by itself)."),
        "separated_all": ("Separated, all pairs", "share",
            "The same among all pairs, where sizes are not known."),
    },
    "Agreement with the other benchmarks": {
        "tau": ("Agreement, all models", "tau",
            "Kendall's tau between its ranking of the models and that of another benchmark, mean over the others. 1 "
            "is the same order, 0 no relation, -1 the opposite order."),
        "tau_ceiling": ("Noise ceiling of the agreement", "tau",
            "The mean tau that would be seen if all benchmarks ordered the models identically and only item noise "
            "differed."),
        "tau_corrected": ("Noise-corrected tau", "tau", "The mean tau, corrected for item noise."),
        "tau_within_2": ("Agreement within 2×", "tau",
            "The mean tau over the pairs of models whose sizes differ by at most 2×. Size alone can make benchmarks "
            "agree. This figure shows what remains among models of similar size."),
        "tau_ceiling_within_2": ("Noise ceiling within 2×", "tau",
            "The noise ceiling of the agreement among sizes at most 2× apart."),
    },
    "Readiness gap": {
        "lead": ("Lead of the group", "score",
            "How far the group of models that was named leads the others at equal pretraining compute. The intervals "
            "are over families of models."),
        "readiness_change": ("Change of the lead", "score",
            "The lead under train before test minus the direct one: below 0, preparation makes the lead smaller."),
    },
    "Signal during training": {
        "signal_at_end": ("Models above chance at the end", "models",
            "Models whose last score is above chance: one-sided tests at 5% with Holm's adjustment over the models."),
        "signal_from": ("Above chance from", "billion tokens",
            "The amount of training after which the models' mean score stays more than 1.96 standard errors above "
            "chance, at the points of training that all models have."),
        "signal_quality": ("Signal quality", "index",
            "How steadily scores improve during training, from 0 to 1: the mean of the curves' monotonicity and "
            "autocorrelation."),
        "steady": ("Steadier than a random walk", "yes or no",
            "Whether scores improve more steadily in training than a random walk would: the mean signal quality over "
            "models, at a false discovery rate of 5% over the benchmarks. No means that it is not shown."),
        "settled_from": ("Order settled from", "billion tokens",
            "The amount of training after which models that can be told apart are nearly in the order of the last "
            "point of training that all of them have."),
    },
    "Bias from test text seen": {
        "bias": ("Effect of test text seen", "score",
            "Accuracy after pretraining on the unlabelled test texts, minus accuracy after pretraining on other text "
            "from the same source."),
        "bias_excluded": ("Excluded effects", "score", "One-sided tests at 5% exclude effects of this size or larger."),
    },
    "Leakage and duplicates": {
        "train_leakage": ("Training rows in later splits", "share",
            "Share of the candidate training rows that have the text or the id of a test or validation row. They "
            "were removed."),
        "validation_leakage": ("Validation rows that are in test", "share",
            "Share of the candidate validation rows that have the text or the id of a test row. They were removed."),
        "test_duplicates": ("Repeated test rows", "share",
            "Share of the test rows whose text, as shown to models, repeats an earlier test row."),
    },
    "Prompts": {
        "prompt_range": ("Range over prompts", "score",
            "A model's best minus its worst score over different prompts, averaged over models. Part of it is "
            "chance."),
    },
    "Suspicious items": {
        "negative_items": ("Items that work against the benchmark", "items",
            "Items on which generally better models do worse (negative discrimination), after correction for the "
            "number of items. Wrong gold answers or ambiguous questions can cause this."),
        "equal_items": ("Items that all models answer alike", "items",
            "Items that all models get right, or all wrong."),
    },
}  # fmt: skip
_SIMILAR, _ALL_PAIRS = {"at_least": 1.0, "at_most": 2.0}, {"at_least": 1.0, "at_most": None}
# quantity of a card -> the report, the quantity of its rows, and their conditions, of those that are rows of a report
FROM: Mapping[str, tuple[str, str, Mapping[str, Condition]]] = {
    **{name: ("agreement", name, {}) for name in (
        "lowest", "highest", "above_chance", "at_best", "reliability", "training_noise", "sampling_noise",
        "smallest_difference", "items_needed", "prompt_range")},
    "separated_within_2": ("agreement", "separated", _SIMILAR),
    "separated_all": ("agreement", "separated", _ALL_PAIRS),
    "tau": ("agreement", "tau_with_others", {}),
    "tau_ceiling": ("agreement", "tau_with_others_ceiling", {}),
    "tau_corrected": ("agreement", "tau_with_others_corrected", {}),
    "tau_within_2": ("agreement", "tau_with_others_by_ratio", _SIMILAR),
    "tau_ceiling_within_2": ("agreement", "tau_with_others_ceiling_by_ratio", _SIMILAR),
    "lead": ("readiness", "lead", {}),  # of the first group that was named
    "readiness_change": ("readiness", "readiness_change", {}),
    **{name: ("items", name, {}) for name in ("paired_difference", "negative_items", "equal_items")},
    "signal_at_end": ("signal", "above_chance", {}),
    "signal_from": ("signal", "above_chance_from_mean", {}),
    "signal_quality": ("signal", "signal_quality_mean", {}),
    "steady": ("signal", "steady", {}),
    "settled_from": ("signal", "settled_from", {}),
    "bias": ("bias", "task_effect", {"effect": "bias"}),  # of the experiment with most trials
    "bias_excluded": ("bias", "task_effect_excluded_beyond", {"effect": "bias"}),
}  # fmt: skip
QUANTITIES = {
    name: Quantity(name, section, *entry) for section, entries in _ALL.items() for name, entry in entries.items()
}


@dataclass(frozen=True)
class Value:
    """One quantity of a benchmark, under one protocol where it has any.

    estimate: None where it is not measured: then `reason` says why, and `command`, if there is one, would measure it.
    interval: 95%, None for counts, texts and where `interval_reason` says why. basis: numbers of models, items, ... by
    name.
    """

    quantity: Quantity
    protocol: str | None
    estimate: float | int | str | None
    interval: tuple[float, float] | None = None
    basis: Mapping[str, int | float | str] = field(default_factory=dict)
    reason: str | None = None
    interval_reason: str | None = None
    command: str | None = None

    @property
    def key(self) -> str:
        """`quantity.protocol`, or the quantity alone where it has no protocol. A card has each key once."""
        return self.quantity.name if self.protocol is None else f"{self.quantity.name}.{self.protocol}"

    @property
    def label(self) -> str:
        """What a person calls the quantity, with the protocol in words where it has one."""
        words = "" if self.protocol is None else f", {UNDER[self.protocol]}"
        return self.quantity.label + words

    @property
    def is_measured(self) -> bool:
        """Whether there is an estimate; where there is none, `reason` says why."""
        return self.estimate is not None

    @property
    def number(self) -> float:
        """The estimate of a quantity that is measured, and is a number."""
        assert self.estimate is not None
        return float(self.estimate)

    def to_json(self) -> dict[str, object]:
        """Its entry in card.json; `missing` is null where it is measured."""
        missing = None if self.is_measured else {"reason": self.reason, "command": self.command}
        return {
            "label": self.label,
            "section": self.quantity.section,
            "explanation": self.quantity.explanation,
            "unit": self.quantity.unit,
            "protocol": self.protocol,
            "estimate": self.estimate,
            "interval": None if self.interval is None else list(self.interval),
            "interval_reason": self.interval_reason,
            "basis": dict(self.basis),
            "missing": missing,
        }


def measured(
    name: str,
    protocol: str | None,
    estimate: float | int | str,
    interval: Sequence[float] | None = None,
    interval_reason: str | None = None,
    **basis: float | str | None,
) -> Value:
    """A value that is known; `basis` without the numbers that are not, whole ones as such."""
    present = {
        key: int(value) if isinstance(value, float) and value.is_integer() else value
        for key, value in basis.items()
        if value is not None
    }
    ends = None if interval is None else (float(interval[0]), float(interval[1]))
    return Value(QUANTITIES[name], protocol, estimate, ends, present, interval_reason=interval_reason)


Values = Mapping[str, Value]  # of a benchmark, by key


def measured_value(values: Values, key: str) -> Value | None:
    """The value of a key, if it is measured."""
    value = values.get(key)
    return value if value is not None and value.is_measured else None


def absent(name: str, protocol: str | None, reason: str, command: str | None = None) -> Value:
    """A value that is not measured, why, and the command that would measure it, if one would."""
    return Value(QUANTITIES[name], protocol, None, reason=reason, command=command)


# ----------------------------------------------------------------------------------------------------------------------
# How a value is written.

_DIGITS = {"tau": 2, "index": 2, "score": 3}  # by unit
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


def shown(value: Value) -> str:
    """The estimate with its interval, in its unit."""
    estimate, unit = value.estimate, value.quantity.unit
    if estimate is None:
        return "not measured"
    if isinstance(estimate, str):
        return _TASKS.get(estimate, estimate) if value.quantity.name == "output_type" else estimate
    text = _number(estimate, unit)
    return text if value.interval is None else f"{text} ({' to '.join(_number(end, unit) for end in value.interval)})"


def _number(number: float, unit: str) -> str:
    if unit == "billion tokens":
        return tokens_words(number)
    if unit == "yes or no":
        return "yes" if number else "no"
    if unit == "share":
        return f"{decimal(100 * number, 1)}%"
    if unit in _DIGITS:
        return decimal(number, _DIGITS[unit])
    return f"{number:,d}" if isinstance(number, int) else f"{number:.3g}"


def basis_words(value: Value) -> str:
    """What a value rests on: `61 models, 24 benchmarks`."""
    parts = []
    for name, number in value.basis.items():
        if name.endswith(("checkpoint", "point")):
            parts.append(f"{name} at {tokens_words(float(number))}")
        elif isinstance(number, str):
            parts.append(f"{name} {number}")
        elif name == BY_CHANCE:
            parts.append(f"{name} {float(number):.3f}")
        elif not float(number).is_integer():
            parts.append(f"{name} {number:.3g}")
        else:
            singular = re.sub(r"s\b", "", name, count=1)  # `pair of models`
            parts.append(f"{number:,} {singular if number == 1 else name}")
    return ", ".join(parts)


# ----------------------------------------------------------------------------------------------------------------------
# Where the facts lie.

CONFIGURED = "--configfile CONFIGURATION.yaml"
LEAST_POINTS = 3  # checkpoints of a curve


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
    items_command: str | None = None
    missing: Sequence[str] = ()

    @cached_property
    def results(self) -> dict[str, Rows]:
        """The rows of results.parquet by report, of those that are there."""
        files = {folder.name: folder / "results.parquet" for folder in map(Path, self.reports) if folder.name in USED}
        return {name: Rows.read(path, USED[name]) for name, path in files.items() if path.is_file()}

    def row(self, report: str, quantity: str, subject: str | None = None, protocol: str | None = None,
            **conditions: Condition) -> Row | None:  # fmt: skip
        """The row of a number; None where the report or the number is not there."""
        rows = self.results.get(report)
        found = rows.all(quantity, subject=subject, protocol=protocol, **conditions) if rows else []
        return next((row for row in found if row.said.keys() == conditions.keys()), None)

    def number(self, report: str, quantity: str, subject: str | None = None, protocol: str | None = None,
               **conditions: Condition) -> float | None:  # fmt: skip
        """The value of a row; None where there is none."""
        row = self.row(report, quantity, subject, protocol, **conditions)
        return None if row is None else row.value

    def count(self, report: str, quantity: str, subject: str | None = None, protocol: str | None = None,
              **conditions: Condition) -> int | None:  # fmt: skip
        """A whole number that a report gives, such as of models or items; None where it gives none."""
        number = self.number(report, quantity, subject, protocol, **conditions)
        return None if number is None else int(number)

    @cached_property
    def counted(self) -> Counted:
        """The scores that count, with their models and benchmarks."""
        return count_scores(self.scores, self.models, self.benchmarks)

    @property
    def rows(self) -> pd.DataFrame:
        """The scores that count, at all checkpoints."""
        return self.counted.rows

    @cached_property
    def sheet(self) -> pd.DataFrame:
        """The benchmarks sheet's rows of benchmarks with scores, indexed by benchmark."""
        return self.counted.benchmarks.set_index("benchmark", drop=False)

    @cached_property
    def last_rows(self) -> pd.DataFrame:
        """The scores at each model's last checkpoint, without missing ones and without other runs of a model."""
        rows = self.rows[~self.rows["model"].isin(reruns_of(self.counted.models))]
        return rows[last_checkpoints(rows).rows & rows["value"].notna()]

    @cached_property
    def differing(self) -> tuple[Difference, ...]:
        """The settings that differ between the models of a benchmark."""
        return differences(self.last_rows)

    @cached_property
    def last_scores(self) -> pd.DataFrame:
        """benchmark, protocol, model, value: of each model as it is finished, mean over seeds; no reruns."""
        rows = self.last_rows
        return rows.groupby(["benchmark", "protocol", "model"])["value"].mean().reset_index()

    @cached_property
    def _direct(self) -> pd.DataFrame:
        return self.rows[(self.rows["protocol"] == DIRECT) & self.rows["value"].notna()]

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
        many = means.groupby(["benchmark", "model"])["at"].transform("size") >= LEAST_POINTS
        return means[many]

    def scores_of(self, benchmark: str) -> pd.DataFrame:
        """The rows of `last_scores` on a benchmark; of those models that the agreement report compares on it."""
        scores, models = self.last_scores[self.last_scores["benchmark"] == benchmark], self.counted.models
        if not any(self.row("agreement", "benchmark_models", benchmark, protocol) for protocol in PROTOCOLS):
            return scores
        return scores[scores["model"].isin(models.loc[of_study(models, "agreement"), "model"])]

    @cached_property
    def sizes(self) -> dict[str, float]:
        """Billions of parameters by model, of those known."""
        parameters_b = self.counted.models.set_index("model")["parameters_b"]
        return {model: float(size) for model, size in parameters_b.items() if pd.notna(size)}

    def facts(self, benchmark: str) -> dict[str, Any]:
        """The benchmark's row of the sheet by column; unknown values are None."""
        row = self.sheet.loc[benchmark].to_dict()
        return {name: None if value is None or pd.isna(value) else value for name, value in row.items()}

    def protocols(self, benchmark: str) -> list[str]:
        """The protocols under which the benchmark has scores."""
        return [protocol for protocol in PROTOCOLS if self.model_count(benchmark, protocol)]

    def trained_here(self, benchmark: str) -> bool:
        """Whether a run of the workflow made the fine-tunes of the benchmark's train-before-test scores."""
        return trained_here(self.rows[self.rows["benchmark"] == benchmark])

    @cached_property
    def preparation_is_assumed(self) -> bool:
        """Whether nobody says what the models of some train-before-test scores were prepared on."""
        trained = self.rows[self.rows["protocol"] == TRAINED]
        is_told = trained["prepared_on"].notna() | trained["benchmark"].map(self.sheet["prepared_on"]).notna()
        is_prepared = trained["source"].isin(PREPARED) | trained["source"].str.startswith(REPLAY)
        return not (is_told | is_prepared).all()

    @cached_property
    def _model_counts(self) -> dict[tuple[str, str], int]:
        rows_with_value = self.rows[self.rows["value"].notna()]
        result: dict[tuple[str, str], int] = (
            rows_with_value.groupby(["benchmark", "protocol"])["model"].nunique().to_dict()
        )
        return result

    def model_count(self, benchmark: str, protocol: str) -> int:
        """Models with a score; those of the agreement report where it has the benchmark, which leaves out cells that
        earlier scores chose."""
        reported = self.count("agreement", "benchmark_models", benchmark, protocol)
        return int(self._model_counts.get((benchmark, protocol), 0)) if reported is None else reported

    @cached_property
    def _items(self) -> dict[str, float]:
        result: dict[str, float] = (
            self.rows.dropna(subset=["n_items"]).groupby("benchmark")["n_items"].median().to_dict()
        )
        return result

    def item_count(self, benchmark: str) -> int | None:
        """Items of a score: the median over the scores, else the sheet's number."""
        number = self._items.get(benchmark)
        number = self.facts(benchmark)["n_items"] if number is None else number
        return None if number is None else int(number)

    @cached_property
    def _told(self) -> list[str]:
        pages = [read_page(path) for folder in self.reports if (path := Path(folder) / "page.json").is_file()]
        return list(dict.fromkeys(note for page in pages for note in page["notes"]))

    def notes(self, benchmark: str) -> tuple[str, ...]:
        """What an unfinished run lacks, and the reports' notes on the data that name the benchmark."""
        unfinished = "The run is not finished. This card is based on the parts that exist. Missing: "
        name = re.compile(rf"(?<![\w-]){re.escape(benchmark)}(?![\w-])")
        notes_on_benchmark = [note for note in self._told if name.search(note) and not note.startswith(UNLIKE_SETTINGS)]
        notes_on_benchmark += difference_notes(
            tuple(difference for difference in self.differing if benchmark in difference.benchmarks)
        )
        return (*([f"{unfinished}{listing(self.missing)}."] if self.missing else []), *notes_on_benchmark)

    def figure(self, name: str, benchmark: str, protocol: str | None = None, **basis: float | str | None) -> Value:
        """The value of a quantity of `FROM`, from the row of a report that has it."""
        report, quantity, conditions = FROM[name]
        return from_row(name, protocol, self.row(report, quantity, benchmark, protocol, **conditions), **basis)


def from_row(name: str, protocol: str | None, row: Row | None, **basis: float | str | None) -> Value:
    """What a row says, with its interval where it has one."""
    if row is None or row.value is None:
        return absent(name, protocol, (row and row.reason) or UNSAID)
    is_whole = QUANTITIES[name].unit in ("items", "models") and row.value.is_integer()
    interval = None if row.low is None or row.high is None else (row.low, row.high)
    return measured(name, protocol, int(row.value) if is_whole else row.value, interval, row.reason, **basis)


# ----------------------------------------------------------------------------------------------------------------------
# The values of one benchmark, in the order of its card; those of a protocol without scores are a line a quantity.

MEASURE = f"snakemake agreement {CONFIGURED}"
WITH_ITEMS = "lm_eval --log_samples --output_path FOLDER ... && lm-validity report FOLDER --output DIR"
UNSAID = "The report could not compute it; its notes on the data say more."
NO_REPORT = "There is no agreement report on these data: it needs 3 models and 2 benchmarks."
CORPUS = "It is a perplexity corpus. The agreement report compares corpora with the benchmarks as a group only."
OTHER_STUDY = "The benchmark or its models take no part in the agreement study."
NO_SIGNAL = "There is no signal report on these data: it needs scores at 3 points of a model's training."
NOT_IN_SIGNAL = "The benchmark takes no part in the signal study."
NO_CHANCE = "The benchmarks sheet names no chance level (column chance)."
NO_BIAS = "There is no bias report on these data: it needs models that were pretrained with and without the test texts."
NOT_A_TASK = "The benchmark is not one of the bias study's tasks."
NO_SPLITS = "The splits of these scores are not known: they were not made by a run of this workflow."
NO_SPLIT = "The benchmark has no {} split."
NOT_SPLIT = "The run did not split the benchmark."

GAP, BY_ERRORS = "smallest_detectable", "standard errors"  # of rankings and comparisons: what a test finds, and which
BY_CHANCE = "at most by chance"  # of a range over prompts
_LAST = {True: "last checkpoint", False: "last common point"}  # by whether it is the end of every training
# what a card reads of each report beside `FROM`
USED = {report: {quantity for study, quantity, _ in FROM.values() if study == report} | extra for report, extra in {
    "agreement": {"benchmarks", "benchmark_models", "prompt_range_by_chance", "prompts", "typical_difference"},
    "signal": {"models", "items", "chance", "common_points", "common_points_at_end", "point_tokens", "separable_pairs"},
    "readiness": set(),
    "items": {"models", "items", "neighbours"},
    "bias": {"task_effect_trials", "task_effect_subsamples"},
    "ranking": {GAP, "paired_pairs"},
    "compare": {GAP, "test"},
}.items()}  # fmt: skip


def card_values(sources: CardSources, benchmark: str) -> Iterator[Value]:
    """Every value of a benchmark that has scores."""
    yield from _described(sources, benchmark)
    for protocol in PROTOCOLS:
        yield from _agreement(sources, benchmark, protocol)
        yield _of_items(sources, benchmark, protocol, "paired_difference", "neighbours", "items")
    yield from _readiness(sources, benchmark)
    yield from _signal(sources, benchmark)
    yield from _bias(sources, benchmark)
    yield from _splits(sources, benchmark)
    yield _prompts(sources, benchmark)
    for name in ("negative_items", "equal_items"):
        for protocol in sources.protocols(benchmark):
            yield _of_items(sources, benchmark, protocol, name, "items", "models")


def _described(sources: CardSources, benchmark: str) -> Iterator[Value]:
    facts, protocols = sources.facts(benchmark), sources.protocols(benchmark)
    for name in ("category", "metric", "output_type"):
        value = facts[name]
        yield measured(name, None, value) if value else absent(name, None, "The benchmarks sheet does not say.")
    items = sources.item_count(benchmark)
    unknown = "Neither the scores nor the benchmarks sheet say how many there are."
    yield absent("items", None, unknown) if items is None else measured("items", None, items)
    for protocol in protocols:
        yield measured("models", protocol, sources.model_count(benchmark, protocol))
    chance = facts["chance"]
    chance = sources.number("signal", "chance", benchmark) if chance is None else float(chance)
    yield absent("chance", None, NO_CHANCE) if chance is None else measured("chance", None, chance)


class _WhyNot(NamedTuple):
    """Why a value is absent, and the command that would measure it, if there is one."""

    reason: str
    command: str | None = None


def _why_not(sources: CardSources, benchmark: str, protocol: str) -> _WhyNot | None:
    """Why the agreement report has nothing on the benchmark under a protocol; None where it has something."""
    if sources.facts(benchmark)["output_type"] == "loglikelihood_rolling":
        return _WhyNot(CORPUS)
    if not sources.model_count(benchmark, protocol):
        return _WhyNot(f"There are no scores {UNDER[protocol]}.", MEASURE)
    if "agreement" not in sources.results:
        return _WhyNot(NO_REPORT)
    if sources.row("agreement", "benchmark_models", benchmark, protocol) is None:
        return _WhyNot(OTHER_STUDY)
    return None


def _agreement(sources: CardSources, benchmark: str, protocol: str) -> Iterator[Value]:
    """The figures of the agreement report, on pairs of models at most 2× apart in size or on all models. The smallest
    difference is where there is no such report that of the ranking or of the two models that are compared, if their
    tests ignore the common items too."""
    of_scores: tuple[str, ...] = ("lowest", "highest", "above_chance", "at_best")
    if protocol not in sources.protocols(benchmark):
        of_scores = ()
    why_not, items = _why_not(sources, benchmark, protocol), sources.item_count(benchmark)
    benchmarks = sources.count("agreement", "benchmarks")

    def basis(quantity: str, **conditions: Condition) -> float | None:
        return sources.number("agreement", quantity, benchmark, protocol, **conditions)

    def counted(quantity: str, **conditions: Condition) -> float | None:
        row = sources.row("agreement", quantity, benchmark, protocol, **conditions)
        return None if row is None else row.n or None

    models = {"models": basis("benchmark_models")}
    others = {"benchmarks": None if benchmarks is None else float(benchmarks - 1)}
    of_items = {"items": None if items is None else float(items)}
    bases: dict[str, dict[str, float | None]] = {
        **dict.fromkeys(of_scores, models),
        "reliability": models | of_items,
        "training_noise": models | {"second trainings": counted("training_noise")},
        "sampling_noise": models | {"models with several runs": counted("sampling_noise")},
        "smallest_difference": models | of_items,
        "items_needed": models | of_items | {"typical difference": basis("typical_difference")},
        "separated_within_2": {"pairs": counted("separated", **_SIMILAR)},
        "separated_all": {"pairs": counted("separated", **_ALL_PAIRS)},
        **dict.fromkeys(("tau", "tau_ceiling", "tau_corrected"), models | others),
        **dict.fromkeys(("tau_within_2", "tau_ceiling_within_2"),
                        {"pairs": counted("tau_with_others_by_ratio", **_SIMILAR)} | others),
    }  # fmt: skip
    known_similar = False
    for name, rests_on in bases.items():
        value = absent(name, protocol, *why_not) if why_not else sources.figure(name, benchmark, protocol, **rests_on)
        if name == "smallest_difference" and "agreement" not in sources.results:
            value = _gap_of_few(sources, benchmark, protocol, items) or value
        known_similar |= name == "separated_within_2" and value.is_measured
        if name != "separated_all" or not known_similar:  # all pairs only where sizes are not known
            yield value


def _gap_of_few(sources: CardSources, benchmark: str, protocol: str, items: int | None) -> Value | None:
    """The smallest difference of a ranking or a comparison, whose tests ignore the common items."""
    gap = sources.row("ranking", GAP, benchmark, protocol)
    if gap is not None and not sources.count("ranking", "paired_pairs", benchmark, protocol):
        return from_row("smallest_difference", protocol, gap, items=items, pairs=gap.n)
    gap, test = (sources.row("compare", name, benchmark, protocol) for name in (GAP, "test"))
    if gap is not None and test is not None and test.text == BY_ERRORS:
        return from_row("smallest_difference", protocol, gap, items=items, pairs=1)
    return None


def _of_items(sources: CardSources, benchmark: str, protocol: str, name: str, *rests_on: str) -> Value:
    """A figure of the items report, or why there is none and what would make it."""
    if sources.row("items", "models", benchmark, protocol) is not None:
        basis = {
            unit.replace("neighbours", "pairs"): sources.count("items", unit, benchmark, protocol) for unit in rests_on
        }
        return sources.figure(name, benchmark, protocol, **basis)
    if not sources.model_count(benchmark, protocol):
        why_not = _why_not(sources, benchmark, protocol) or _WhyNot("There are no scores.", MEASURE)
        return absent(name, protocol, *why_not)
    if sources.items is None:
        return absent(name, protocol, "There is no table of the models' answers item by item.", WITH_ITEMS)
    if "items" in sources.results:
        return absent(name, protocol, "The table of items has none behind these scores.")
    return absent(name, protocol, "There is no items report.", sources.items_command)


def _readiness(sources: CardSources, benchmark: str) -> Iterator[Value]:
    """The leads of the first group that was named; nothing where none was."""
    results = sources.results.get("readiness")
    if results is None:
        return
    for change in results.all("readiness_change", subject=benchmark)[:1]:
        basis = {"group": change.said["group"], "models": change.n}
        for lead in results.all("lead", subject=benchmark, group=change.said["group"]):
            yield from_row("lead", lead.protocol, lead, **basis)
        yield from_row("readiness_change", None, change, **basis)


def _signal(sources: CardSources, benchmark: str) -> Iterator[Value]:
    """From when on scores and their order say something."""
    names = ("signal_at_end", "signal_from", "signal_quality", "steady", "settled_from")
    if sources.row("signal", "models", benchmark) is None:
        has_signal = "signal" in sources.results
        reason, command = (NOT_IN_SIGNAL, None) if has_signal else (NO_SIGNAL, f"snakemake signal {CONFIGURED}")
        yield from (absent(name, None, reason, command) for name in names)
        return
    points = sources.results["signal"].all("point_tokens", subject=benchmark)
    counted = ("models", "items", "common_points")
    basis: dict[str, float | None] = {
        name.replace("_", " "): sources.count("signal", name, benchmark) for name in counted
    }
    if points:
        at_end = bool(sources.number("signal", "common_points_at_end", benchmark))
        basis |= {"first common point": points[0].value, _LAST[at_end]: points[-1].value}
    pairs = {"pairs of models": sources.count("signal", "separable_pairs", benchmark)}
    for name in names:
        yield sources.figure(name, benchmark, None, **basis, **(pairs if name == "settled_from" else {}))


def _bias(sources: CardSources, benchmark: str) -> Iterator[Value]:
    """What pretraining on the test texts adds; of several experiments the one with most trials speaks, since their
    models and settings differ."""
    names, results = ("bias", "bias_excluded"), sources.results.get("bias")
    trials = results.all("task_effect_trials", subject=benchmark, effect="bias") if results else []
    if not trials:
        reason = NOT_A_TASK if results else NO_BIAS
        yield from (absent(name, None, reason, f"snakemake bias {CONFIGURED}") for name in names)
        return
    largest = max(trials, key=lambda row: row.value or 0)
    conditions = largest.said
    basis = {
        "experiment": conditions["experiment"],
        "trials": int(largest.value or 0),
        "subsamples": sources.count("bias", "task_effect_subsamples", benchmark, None, **conditions),
    }
    for name in names:
        yield from_row(name, None, sources.row("bias", FROM[name][1], benchmark, None, **conditions), **basis)


def _splits(sources: CardSources, benchmark: str) -> Iterator[Value]:
    """Rows that left the training splits since the test split has them, and test rows that are there twice."""
    names = {"train": "train_leakage", "validation": "validation_leakage", "test": "test_duplicates"}
    folder = None if sources.splits is None else sources.splits / benchmark
    if folder is None or not (folder / "test.json").is_file():
        reason, command = (NO_SPLITS, f"snakemake scores {CONFIGURED}") if folder is None else (NOT_SPLIT, None)
        yield from (absent(name, None, reason, command) for name in names.values())
        return
    for split, name in names.items():
        path = folder / f"{split}.json"
        record = read_json_or(path, None)
        if not record or not record.get("hashes"):
            yield absent(name, None, NO_SPLIT.format(split))
        elif split == "test":
            hashes = record["hashes"]
            repeated = len(hashes) - len(set(hashes))
            yield measured(name, None, repeated / len(hashes), documents=len(hashes), repeated=repeated)
        else:
            removed, examined = record["removed_by_text"] + record["removed_by_id"], record["examined"]
            yield measured(name, None, removed / examined, documents=examined, removed=removed)


def _prompts(sources: CardSources, benchmark: str) -> Value:
    """How much scores depend on the prompt."""
    row = sources.row("agreement", "prompt_range", benchmark)
    if row is not None and row.n:
        prompts = sources.count("agreement", "prompts", benchmark)
        basis = {BY_CHANCE: sources.number("agreement", "prompt_range_by_chance", benchmark)}
        return sources.figure("prompt_range", benchmark, None, models=row.n, prompts=prompts, **basis)
    reason = "No model has scores under two prompts with everything else equal."
    if "agreement" not in sources.results:
        reason = "There is no agreement report on these data, which compares prompts."
    command = "lm_eval --apply_chat_template --output_path FOLDER ... && lm-validity report FOLDER --output DIR"
    return absent("prompt_range", None, reason, command)
