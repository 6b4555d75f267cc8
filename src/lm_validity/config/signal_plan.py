"""The signal study's plan: which checkpoints come first, and which benchmarks get the others.

Standard library and pydantic only: the Snakefile reads this at parse time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from lm_validity.config.plan import Listed
from lm_validity.config.rows import SheetRow, Sheets, read_rows
from lm_validity.config.sheets import Model
from lm_validity.config.signal import SignalStages
from lm_validity.errors import InputError

DESCRIBED_IN = "docs/reference/signal.md"
NUMBER, SHARE = 8, 0.25  # checkpoints of the first stage, and the part of training that they are of
FEWEST = 4  # checkpoints there: of fewer, a rank correlation says nothing, and the model waits for the second stage
NAMED = 6  # models listed whose checkpoints lack tokens
Verdict = Literal["says something", "says nothing", "undecided"]


class DecidedBenchmark(SheetRow):
    """What the first stage says of a benchmark. round: in which the other checkpoints of an undecided one are scored.
    rank_correlation: of score and checkpoint, the mean over so many `models`."""

    benchmark: Listed
    round: int = Field(2, ge=2)
    verdict: Verdict
    rank_correlation: float | None = Field(None, ge=-1, le=1)
    models: int | None = Field(None, ge=0)


COLUMNS = tuple(DecidedBenchmark.model_fields)
Decisions = Mapping[str, DecidedBenchmark]  # by benchmark


@dataclass(frozen=True)
class SignalPlan:
    """settings: the thresholds. first: by model, the checkpoints of the first stage. rows: what is decided so far."""

    settings: SignalStages
    first: Mapping[str, frozenset[str]]
    rows: Decisions

    @property
    def rounds(self) -> dict[int, list[str]]:
        """Round -> the benchmarks whose other checkpoints are scored in it, in the order of the sheet."""
        found: dict[int, list[str]] = {}
        for row in self.rows.values():
            if row.verdict == "undecided":
                found.setdefault(row.round, []).append(row.benchmark)
        return dict(sorted(found.items()))

    def is_planned(self, model: str, benchmark: str, checkpoint: str) -> bool:
        """Whether the signal study scores the checkpoint; a model that is not in the sheet has no plan."""
        row = self.rows.get(benchmark)
        return (row is not None and row.verdict == "undecided") or checkpoint in self.first.get(model, (checkpoint,))

    def verdict(self, rank_correlation: float | None) -> Verdict:
        """By the mean rank correlation of the first stage; None (no model has one) leaves a benchmark undecided."""
        if rank_correlation is None or self.settings.says_nothing <= rank_correlation < self.settings.says_something:
            return "undecided"
        return "says something" if rank_correlation >= self.settings.says_something else "says nothing"


def first_checkpoints(positions: Mapping[str, float], end: float) -> list[str]:
    """The names of the first stage's checkpoints, in order of training; none where there are fewer than 4.

    `positions`: tokens or iterations by name; `end`: those of the whole training. Of the checkpoints in the first
    quarter, those nearest to eighths of it: k/8 of the quarter for k = 1 ... 8, one after the other, none twice. All,
    where there are at most 8.
    """
    early = sorted((at, name) for name, at in positions.items() if at <= SHARE * end)
    if len(early) < FEWEST:
        return []
    chosen: set[tuple[float, str]] = set(early) if len(early) <= NUMBER else set()
    for k in range(1, NUMBER + 1 if not chosen else 1):
        goal = k / NUMBER * SHARE * end
        chosen.add(min((one for one in early if one not in chosen), key=lambda one: abs(one[0] - goal)))
    return [name for _, name in sorted(chosen)]


def _first_of_models(models: Iterable[Model]) -> dict[str, frozenset[str]]:
    """By model, on the axis that the report has (`studies.signal.curves`): tokens where any model has them at two
    checkpoints, else iterations; checkpoints without do not count there. Raises InputError where no model has any."""
    rows = tuple(models)
    tokens = {model.model: _tokens(model) for model in rows}
    in_tokens = any(len(known) > 1 for known in tokens.values())
    steps = {
        row.model: {at.checkpoint: at.iteration for at in row.checkpoints if at.iteration is not None} for row in rows
    }
    positions = tokens if in_tokens else steps
    first = {name: frozenset(first_checkpoints(at, max(at.values(), default=0))) for name, at in positions.items()}
    if not any(first.values()):
        lacking = [row.model for row in rows if len(tokens[row.model]) < len(row.checkpoints)] if in_tokens else []
        raise InputError(
            f"signal: no model has {FEWEST} checkpoints in the first quarter of its training.",
            f"two stages need them: add checkpoints{_without_tokens(lacking)}, or take the section signal out of the "
            "configuration.",
        )
    return first


def _tokens(model: Model) -> dict[str, float]:
    """Of the checkpoints that have them; the final one has the model's, unless it has its own."""
    tokens = {"final": model.tokens_b} | {point.checkpoint: point.tokens_b for point in model.checkpoints}
    if tokens["final"] is None:
        tokens["final"] = model.tokens_b
    return {name: seen for name, seen in tokens.items() if seen is not None}


def _without_tokens(models: list[str]) -> str:
    return f", or tokens_b for those of {', '.join(models[:NAMED])} that have none" if models else ""


def read_decisions(path: str | Path, benchmarks: Iterable[str], sheets: Sheets | None = None) -> Decisions:
    """The rows of a plan; none where the file is not there yet. Raises InputError."""
    sheets = sheets or Sheets()
    if sheets.text(path) is None:
        return {}
    return read_rows(
        path,
        DecidedBenchmark,
        setting="signal: plan",
        described_in=DESCRIBED_IN,
        benchmarks=tuple(benchmarks),
        study="signal",
        sheets=sheets,
    )


def check_selection(selection: str) -> None:
    """Raises InputError for another selection than "all": few of the first stage's checkpoints are in it."""
    if selection != "all":
        raise InputError(
            f"signal: two stages do not go with the checkpoints {selection!r}, which leave out most early ones.",
            "set reports.checkpoints to all, or take the section signal out of the configuration.",
        )


def read_signal_plan(
    settings: SignalStages | None,
    models: Iterable[Model],
    benchmarks: Iterable[str],
    selection: str,
    sheets: Sheets | None = None,
) -> SignalPlan | None:
    """The plan that a configuration names, for the study's models and benchmarks; None where all checkpoints of all
    benchmarks are scored. Raises InputError for a bad row, where no model has a first stage, and where the report takes
    only a `selection` of the checkpoints."""
    if settings is None:
        return None
    check_selection(selection)
    return SignalPlan(settings, _first_of_models(models), read_decisions(settings.plan, benchmarks, sheets))
