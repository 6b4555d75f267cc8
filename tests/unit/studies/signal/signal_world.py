"""Small generated worlds: items tables, scores tables and models sheets with a known structure."""

from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.config.sections import Reports, SignalConventions
from lm_validity.results.put import Rows
from lm_validity.studies.signal.benchmark import SignalData
from lm_validity.studies.signal.numbers import notes_on, signal_rows
from lm_validity.studies.signal.report import analyze_signal, signal_page
from lm_validity.tables.counted import Sources
from lm_validity.tables.schema import ITEMS, SCORES, write_table

MODELS = {  # name: (size, architecture, training data, ability)
    "small-deep": ("500m", "deep", "science", 0.8),
    "small-wide": ("500m", "wide", "science", 0.6),
    "large-deep": ("1b", "deep", "science", 1.6),
    "large-wide": ("1b", "wide", "science", 1.3),
    "large-deep-web": ("1b", "deep", "web", 0.2),
}


class World(NamedTuple):
    """What a generated benchmark is like. `rise`: how far ability moves the gold answer; 0 is pure noise."""

    benchmark: str = "facts"
    models: tuple[str, ...] = tuple(MODELS)
    checkpoints: int = 12
    items: int = 120
    choices: int = 4
    rise: float = 3.0
    noise: float = 1.0
    subjects: int = 3
    seed: int = 0


def item_rows(world: World) -> pd.DataFrame:
    """An items table: log-likelihoods with item difficulty, a gold answer that rises, and checkpoint noise."""
    rng, shape, items = np.random.default_rng(world.seed), (world.items, world.choices), range(world.items)
    characters, difficulty = rng.integers(3, 40, shape), rng.normal(-10.0, 2.0, shape)
    gold = rng.integers(world.choices, size=world.items)
    of_item = {"doc_id": [f"test:{item}" for item in items], "gold": gold, "choice_characters": [*characters],
               "subject": [f"subject {item % world.subjects}" for item in items], "choice_bytes": [*characters],
               "choice_tokens": [*np.maximum(1, characters // 4)]}  # fmt: skip
    tables = []
    for model, step in product(world.models, range(1, world.checkpoints + 1)):
        scores = difficulty + rng.normal(0.0, world.noise, shape)
        scores[items, gold] += world.rise * MODELS[model][3] * np.sqrt(step / world.checkpoints)
        correct = (np.argmax(scores, axis=1) == gold).astype(float)
        place = {"model": model, "checkpoint": f"step-{step}", "iteration": 1000 * step, "tokens_b": 20.0 * step}
        logits = {"choice_loglikelihoods": [*scores], "unconditional_loglikelihoods": [*difficulty]}
        tables.append(pd.DataFrame(of_item | logits | {"correct": correct}).assign(**place))
    rows = pd.concat(tables, ignore_index=True)
    return rows.assign(benchmark=world.benchmark, protocol="direct", prompt="plain", split="test")


def with_fewer_choices(items: pd.DataFrame, few, number: int) -> pd.DataFrame:
    """The items, of which `few` (rows,) have so many choices only."""
    names = items.columns[items.columns.str.contains("^choice_|^unconditional_")]
    pairs = {name: zip(items[name], few, strict=True) for name in names}
    cut = {name: [values[:number] if one else values for values, one in pairs[name]] for name in names}
    return items.assign(**cut, gold=items["gold"].mask(few, 0))


def score_rows(items: pd.DataFrame) -> pd.DataFrame:
    """The scores table that belongs to an items table."""
    keys = ["model", "checkpoint", "iteration", "tokens_b", "benchmark", "protocol", "prompt", "split"]
    scores = items.groupby(keys, sort=False)["correct"].agg(["mean", "size"]).reset_index()
    scores = scores.rename(columns={"mean": "value", "size": "n_items"})
    return scores.assign(metric="acc,none", higher_is_better=True, selected=True, source="test")


def models_sheet() -> pd.DataFrame:
    rows = [(name, *facts[:3]) for name, facts in MODELS.items()]
    return pd.DataFrame(rows, columns=["model", "size", "architecture", "training_data"])


class Files(NamedTuple):
    folder: Path
    scores: Path
    items: Path
    models: Path


def write_world(folder: Path, *worlds: World, items: pd.DataFrame | None = None) -> Files:
    """Write the tables of one or several benchmarks; `items` replaces the generated rows."""
    rows = pd.concat([item_rows(world) for world in worlds]) if items is None else items
    write_table(rows, ITEMS, folder / "items.parquet")
    write_table(score_rows(rows), SCORES, folder / "scores.parquet")
    models_sheet().to_csv(folder / "models.csv", index=False)
    return Files(folder, folder / "scores.parquet", folder / "items.parquet", folder / "models.csv")


class Found(NamedTuple):
    """The rows of a report, and what its page says."""

    rows: Rows
    data: SignalData

    @property
    def notes(self) -> list[str]:
        return notes_on(self.data)

    @property
    def sentences(self) -> list[str]:
        return [finding.sentence for finding in signal_page(self.data, self.rows).findings]

    def value(self, quantity: str, subject: str | None = "facts", **place) -> float:
        return self.rows.value(quantity, **({"subject": subject} if subject else {}), **place)

    def row(self, quantity: str, subject: str | None = "facts", **place):
        return self.rows.row(quantity, **({"subject": subject} if subject else {}), **place)

    def ends(self, quantity: str, subject: str = "facts", **place) -> tuple[float, float]:
        row = self.row(quantity, subject, **place)
        return row.low, row.high

    def reason(self, quantity: str, subject: str = "facts", **place) -> str:
        return self.row(quantity, subject, **place).reason or ""

    def noted(self, *words: str) -> bool:
        return any(all(word in note for word in words) for note in self.notes)

    def models(self) -> set[str]:
        return set(self.rows.labels("model", "signal_quality"))


def found_in(files, benchmarks=None, *, with_items: bool = True, resamples: int = 5, checkpoints="all", **conventions):
    """What the report says of the tables."""
    section = Reports(resamples=resamples, checkpoints=checkpoints, signal=SignalConventions(**conventions))
    items = files.items if with_items and files.items.exists() else None
    data = analyze_signal(Sources(files.scores, files.models, benchmarks, items), section)
    return Found(signal_rows(data), data)


def curve_rows(curves, tokens_b=lambda model, step: 20.0 * step, **columns) -> list[dict]:
    """Rows of scores of curves {benchmark: {model: (n,)}}."""
    return [
        {"model": model, "checkpoint": f"step-{step}", "iteration": 1000 * step, "tokens_b": tokens_b(model, step),
         "benchmark": benchmark, "protocol": "direct", "metric": "acc,none", "value": value, **columns}
        for benchmark, of_models in curves.items() for model, values in of_models.items()
        for step, value in enumerate(values, start=1)
    ]  # fmt: skip


def write_scores(folder: Path, rows: list[dict], sheet: str = "", models: str | None = None) -> Files:
    """Scores alone, `models.csv` and, where there is one, `benchmarks.csv`."""
    write_table(pd.DataFrame(rows), SCORES, folder / "scores.parquet")
    (folder / "models.csv").write_text(models_sheet().to_csv(index=False) if models is None else models)
    (folder / "benchmarks.csv").write_text(sheet or "benchmark\n")
    return Files(folder, folder / "scores.parquet", folder / "items.parquet", folder / "models.csv")
