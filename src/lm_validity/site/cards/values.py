"""What a benchmark card knows: every quantity that it can have (`quantities.tsv`), and the rows of one benchmark.

A row is one of a report's, or made of the benchmarks sheet, the scores, or the splits of a run. What is not measured is
a row with the reason, which says what would measure it.
"""

import re
from collections.abc import Sequence
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
from lm_validity.tables.schema import DIRECT, PREPARED, PROTOCOLS, REPLAY, TRAINED, of_study, reruns_of, trained_here
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
    "ranking": {"smallest_detectable", "paired_pairs"},
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

    @property
    def rows(self) -> pd.DataFrame:
        """The scores that count, at all checkpoints."""
        return self.counted.rows

    @cached_property
    def sheet(self) -> pd.DataFrame:
        """The benchmarks sheet's rows of benchmarks with scores, indexed by benchmark."""
        return with_chance(self.counted.benchmarks, self.items).set_index("benchmark", drop=False)

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
        return self.last_rows.groupby(["benchmark", "protocol", "model"])["value"].mean().reset_index()

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
_ABSENT = {
    "agreement": (
        "There is no agreement report on these data: it needs 3 models and 2 benchmarks.",
        "The benchmark or its models take no part in the agreement study.",
    ),
    "signal": (
        "There is no signal report on these data: it needs scores at 3 points of a model's training. To measure: "
        f"snakemake signal {CONFIGURED}",
        "The benchmark takes no part in the signal study.",
    ),
    "bias": (
        "There is no bias report on these data: it needs models that were pretrained with and without the test texts. "
        f"To measure: snakemake bias {CONFIGURED}",
        "The benchmark is not one of the bias study's tasks.",
    ),
    "items": ("There is no items report.", "The table of items has none behind these scores."),
}


def card_rows(sources: CardSources, benchmark: str) -> Rows:
    """Every number of a benchmark that has scores, by the names of `QUANTITIES`. What a report does not have at all is
    missing without a protocol."""
    rows = Rows("card").of(subject=benchmark)
    facts, scores = sources.sheet.loc[benchmark], sources.rows[sources.rows["benchmark"] == benchmark]
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
    """The smallest difference of a ranking or a comparison where there is no agreement report, if its tests ignore the
    common items too."""
    ranking, comparison = (sources.results.get(name, Rows(name)) for name in ("ranking", "compare"))
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
