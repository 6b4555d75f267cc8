"""A card's values on training, text seen, splits, prompts and items."""

from collections.abc import Iterator
from pathlib import Path

from lm_validity.files import read_json
from lm_validity.site.cards.card import Value
from lm_validity.site.cards.ranking_values import item_row
from lm_validity.site.cards.sources import CONFIGURED, CardSources, absent, measured

NO_SIGNAL = "There is no signal report on these data: it needs scores at 3 points of a model's training."
NOT_IN_SIGNAL = "The benchmark takes no part in the signal study."
NO_CHANCE = "The benchmarks sheet names no chance level (column chance)."
NO_ERRORS = "It needs standard errors of the scores, or answers item by item."
NO_BIAS = "There is no bias report on these data: it needs models that were pretrained with and without the test texts."
NOT_A_TASK = "The benchmark is not one of the bias study's tasks."
NO_SPLITS = "The splits of these scores are not known: they were not made by a run of this workflow."
NO_SPLIT = "The benchmark has no {} split."
NOT_SPLIT = "The run did not split the benchmark."

_LAST = {True: "last checkpoint", False: "last common point"}  # by whether it is the end of every training


def signal_values(sources: CardSources, benchmark: str) -> Iterator[Value]:
    """From when on scores and their order say something."""
    names = ("signal_at_end", "signal_from", "signal_quality", "settled_from")
    found = sources.find("signal", "benchmarks", benchmark)
    if found is None:
        there = "signal" in sources.summaries
        reason, command = (NOT_IN_SIGNAL, "") if there else (NO_SIGNAL, f"snakemake signal {CONFIGURED}")
        yield from (absent(name, None, reason, command) for name in names)
        return
    ranking = sources.find("signal", "ranking", benchmark) or {}
    points, common = ranking.get("tokens_b") or [], found["common"] or {}
    basis = {"models": found["models"], "items": found["items"], "common points": common.get("points")}
    if points:
        basis |= {"first common point": points[0], _LAST[common["at_end"]]: points[-1]}
    place = ("signal", "benchmarks", benchmark)
    no_errors = NO_ERRORS if found["interval_source"] is None else ""
    without = NO_CHANCE if found["chance"] is None else no_errors
    yield sources.figure("signal_at_end", None, place, found, "models_above_chance", without=without, **basis)
    yield sources.figure("signal_from", None, place, found, "above_chance_from_b", without=without, **basis)
    yield sources.figure("signal_quality", None, place, found, "signal_quality", **basis)
    place, pairs = ("signal", "ranking", benchmark), basis | {"pairs of models": ranking.get("separable_pairs")}
    ends = "settled_from_interval_b"
    yield sources.figure(
        "settled_from", None, place, ranking, "settled_from_b", interval=ends, without=no_errors, **pairs
    )


def bias_values(sources: CardSources, benchmark: str) -> Iterator[Value]:
    """What pretraining on the test texts adds, over all experiments in which the benchmark is a task."""
    rows = [
        row for row in sources.find("bias", "by_task") or [] if row["task"] == benchmark and row["effect"] == "bias"
    ]
    if not rows:
        there = "bias" in sources.summaries
        command = f"snakemake bias {CONFIGURED}"
        yield from (absent(name, None, NOT_A_TASK if there else NO_BIAS, command) for name in ("bias", "bias_excluded"))
        return
    # of several experiments the one with most trials speaks: their models and settings differ
    row = max(rows, key=lambda one: one["trials"])
    basis = {"experiment": row["experiment"], "trials": row["trials"], "subsamples": row["subsamples"]}
    yield sources.figure("bias", None, ("bias", "by_task"), row, "mean", interval="interval", **basis)
    yield sources.figure("bias_excluded", None, ("bias", "by_task"), row, "excluded_beyond", **basis)


def split_values(sources: CardSources, benchmark: str) -> Iterator[Value]:
    """Rows that left the training splits since the test split has them, and test rows that are there twice."""
    names = {"train": "train_leakage", "validation": "validation_leakage", "test": "test_duplicates"}
    folder = None if sources.splits is None else sources.splits / benchmark
    if folder is None or not (folder / "test.json").is_file():
        reason, command = (NO_SPLITS, f"snakemake scores {CONFIGURED}") if folder is None else (NOT_SPLIT, "")
        yield from (absent(name, None, reason, command) for name in names.values())
        return
    for split, name in names.items():
        path = folder / f"{split}.json"
        record = read_json(path) if path.is_file() else None
        if not record or not record.get("hashes"):
            yield absent(name, None, NO_SPLIT.format(split))
        elif split == "test":
            hashes = record["hashes"]
            repeated = len(hashes) - len(set(hashes))
            yield measured(name, None, repeated / len(hashes), None, "", documents=len(hashes), repeated=repeated)
        else:
            removed = record["removed_by_text"] + record["removed_by_id"]
            looked_at = record["examined"]
            yield measured(name, None, removed / looked_at, None, "", documents=looked_at, removed=removed)


def prompt_values(sources: CardSources, benchmark: str) -> Iterator[Value]:
    """How much scores depend on the prompt."""
    name, found = "prompt_range", sources.find("agreement", "prompt_range", benchmark)
    if found is None:
        reason = "No model has scores under two prompts with everything else equal."
        if "agreement" not in sources.summaries:
            reason = "There is no agreement report on these data, which compares prompts."
        command = "lm_eval --apply_chat_template --output_path FOLDER ... && lm-validity report FOLDER --output DIR"
        yield absent(name, None, reason, command)
        return
    place, basis = ("agreement", "prompt_range", benchmark), {key: found[key] for key in ("models", "prompts")}
    yield sources.figure(name, None, place, found, "mean", interval="interval", **basis)


def item_values(sources: CardSources, benchmark: str) -> Iterator[Value]:
    """Items that work against the benchmark, and those that tell nothing."""
    for name, key in (("negative_items", "negative_certain"), ("equal_items", "all_equal")):
        for protocol in sources.protocols(benchmark):
            row, why = item_row(sources, benchmark, protocol)
            if row is None:
                yield absent(name, protocol, *why)
            else:
                basis = {"items": row["items"], "models": row["models"]}
                yield sources.figure(name, protocol, ("items", "benchmarks"), row, key, **basis)


def splits_folder(results: Path) -> Path | None:
    """The folder of a run's splits, where there is one."""
    folder = results / "splits"
    return folder if folder.is_dir() else None
