"""What cards are made from: the studies' summaries, the benchmarks sheet, the scores and the splits, read once."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from lm_validity.config.sections import Cards
from lm_validity.config.sheets import metric_key
from lm_validity.files import read_json
from lm_validity.site.cards.card import Value
from lm_validity.site.cards.quantities import QUANTITIES
from lm_validity.summaries import reason_of
from lm_validity.tables.schema import PROTOCOLS, read_scores, trained_here
from lm_validity.tables.sheets import completed, read_benchmarks, report_rows
from lm_validity.words import listing

CONFIGURED = "--configfile CONFIGURATION.yaml"
_OF_A_KEY = re.compile(r"\w+\.[^ ]+(, | and \d+ more|: )")  # a note on a null value, whose own line has the reason
UNSAID = "The report could not compute it; its notes on the data say more."


@dataclass(frozen=True)
class CardSources:
    """Where the facts lie. reports: folders of reports, each named as its report. items: the table, where there is one.
    splits: the folder of a run's splits. source: what the cards say they are from. items_command: writes the items
    report, for cards without it. missing: what an unfinished run lacks.
    """

    scores: Path
    benchmarks: Path
    reports: Sequence[Path]
    items: Path | None = None
    splits: Path | None = None
    settings: Cards = field(default_factory=Cards)
    source: str = ""
    items_command: str = ""
    missing: Sequence[str] = ()

    @cached_property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """summary.json by report, of those that are there."""
        paths = {folder.name: folder / "summary.json" for folder in map(Path, self.reports)}
        return {name: read_json(path) for name, path in paths.items() if path.is_file()}

    @cached_property
    def sheet(self) -> pd.DataFrame:
        """The benchmarks sheet's rows of benchmarks with scores, indexed by benchmark."""
        sheet = read_benchmarks(self.benchmarks)
        return sheet[sheet["benchmark"].isin(self.rows["benchmark"])].set_index("benchmark", drop=False)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The selected test rows of each benchmark's metric."""
        sheet = read_benchmarks(self.benchmarks)
        rows = report_rows(read_scores(self.scores), sheet, [])
        rows = rows[rows["benchmark"].isin(sheet["benchmark"])]
        rows = completed(rows.assign(metric=rows["metric"].map(metric_key, na_action="ignore")), sheet)
        wanted = rows["benchmark"].map(sheet.set_index("benchmark")["metric"])
        return rows[wanted.isna() | (rows["metric"] == wanted)]

    def facts(self, benchmark: str) -> dict[str, Any]:
        """The sheet's row; unknown values are None."""
        row = self.sheet.loc[benchmark].to_dict()
        return {name: None if value is None or pd.isna(value) else value for name, value in row.items()}

    def protocols(self, benchmark: str) -> list[str]:
        """The protocols under which the benchmark has scores."""
        return [protocol for protocol in PROTOCOLS if self.models(benchmark, protocol)]

    def trained_here(self, benchmark: str) -> bool:
        """Whether a run of the workflow made the fine-tunes of the benchmark's train-before-test scores."""
        return trained_here(self.rows[self.rows["benchmark"] == benchmark])

    @cached_property
    def _models(self) -> dict[tuple[str, str], int]:
        known = self.rows[self.rows["value"].notna()]
        return known.groupby(["benchmark", "protocol"])["model"].nunique().to_dict()

    def models(self, benchmark: str, protocol: str) -> int:
        """Models with a score; those of the agreement report where it has the benchmark, which leaves out cells that
        earlier scores chose."""
        found = self.find("agreement", "by_benchmark", protocol, benchmark, "models")
        return int(self._models.get((benchmark, protocol), 0) if found is None else found)

    @cached_property
    def _items(self) -> dict[str, float]:
        return self.rows.dropna(subset=["n_items"]).groupby("benchmark")["n_items"].median().to_dict()

    def item_count(self, benchmark: str) -> int | None:
        """Items of a score: the median over the scores, else the sheet's number."""
        number = self._items.get(benchmark)
        number = self.facts(benchmark)["n_items"] if number is None else number
        return None if number is None else int(number)

    def notes(self, benchmark: str) -> tuple[str, ...]:
        """What an unfinished run lacks, and the reports' notes on the data that name the benchmark."""
        unfinished = "The run is not finished. This card is based on the parts that exist. Missing: "
        name = re.compile(rf"(?<![\w-]){re.escape(benchmark)}(?![\w-])")
        told = [note for summary in self.summaries.values() for note in summary.get("notes", ())]
        own = [note for note in told if name.search(note) and not _OF_A_KEY.match(note)]
        return (*([f"{unfinished}{listing(self.missing)}."] if self.missing else []), *dict.fromkeys(own))

    def find(self, report: str, *keys: str) -> Any:
        """A value of a report's summary, None where any of the keys is not there."""
        value = self.summaries.get(report)
        for key in keys:
            if not isinstance(value, dict) or key not in value:
                return None
            value = value[key]
        return value

    def reason(self, report: str, *keys: str) -> str:
        """Why a value of a report that exists is null."""
        free = [key for key in keys if key in PROTOCOLS or key in self.sheet.index]
        return reason_of(self.summaries[report], keys, free) or UNSAID

    def figure(
        self,
        name: str,
        protocol: str | None,
        place: tuple[str, ...],
        row: Mapping[str, Any],
        key: str,
        *,
        interval: str = "",
        without: str = "",
        **basis: float | str | None,
    ) -> Value:
        """The figure `key` of a row of a summary, with its interval where the row has one.

        `place`: the report and the row's keys, which tell why a null is one; `without`: the reason, where it is known
        otherwise. `interval`: its key, by default that of the figure and `_interval`.
        """
        if row.get(key) is None:
            return absent(name, protocol, without or self.reason(*place, key))
        interval = interval or f"{key}_interval"
        reason = self.reason(*place, interval) if interval in row and row[interval] is None else ""
        return measured(name, protocol, row[key], row.get(interval), reason, **basis)


def measured(
    name: str,
    protocol: str | None,
    estimate: float | int | str,
    interval: Sequence[float] | None = None,
    interval_reason: str = "",
    **basis: float | str | None,
) -> Value:
    """A value that is known; `basis` without the numbers that are not."""
    known = {key: value for key, value in basis.items() if value is not None}
    ends = None if interval is None else (float(interval[0]), float(interval[1]))
    return Value(QUANTITIES[name], protocol, estimate, ends, known, interval_reason=interval_reason)


def absent(name: str, protocol: str | None, reason: str, command: str = "") -> Value:
    """A value that is not measured, why, and the command that would measure it, if one would."""
    return Value(QUANTITIES[name], protocol, None, reason=reason, command=command)
