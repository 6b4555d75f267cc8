"""A model's work at full size on a pretended GPU: memory, operations, launches and reads back, from its config alone.

Layers repeat, so a model is built with few of them, at two depths and full width, and everything counted is extended
in a straight line to its own depth.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import transformers

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.models.scorer import Way
from lm_validity.cells.rehearsal import models, steps
from lm_validity.cells.rehearsal.device import KIND, pretended_gpus
from lm_validity.cells.rehearsal.ledger import Ledger
from lm_validity.cells.training.loop import FinetuneSettings
from lm_validity.cells.training.targets import find_targets
from lm_validity.errors import CellError
from lm_validity.run.rehearsals import Question, Rehearsal

SCORED_TOKENS = 1024  # of a question with its longest choice, and of a prompt with its answer
WINDOW_TOKENS = 2048  # of a perplexity corpus; a longer window is rehearsed at this length
Figures = dict[str, float]


def rehearse(name: str, question: Question) -> Rehearsal:
    """Everything that is to be known about a model. Raises InputError where its config.json is not that of a causal
    language model."""
    start = time.process_time()
    config = models.causal_config(name, question.config)
    layers, depths = config.get_text_config().num_hidden_layers, models.rehearsed_depths(config)
    measured: list[Figures] = []
    notes: dict[str, str | None] = {}
    for depth in depths:
        figures, notes = _measure(models.at_depth(config, depth), name, question.settings)
        measured.append(figures)
    figures = _extended(depths, measured, layers)
    details = notes | {
        "config": "config.json" if question.verified else "known shape, not compared with the hub's config.json",
        "layers": layers,
        "rehearsed_layers": list(depths),
        "settings": question.settings,
        "figures": {key: round(value) for key, value in figures.items()},
        "cpu_seconds": round(time.process_time() - start, 2),
    }
    return Rehearsal(
        parameters=round(figures["parameters"]),
        weights=round(figures["weights"]),
        scoring=max(value for key, value in figures.items() if key.startswith(("score", "generate")) and _is_peak(key)),
        one_text=figures["roll.peak"],
        training=_by_rows(figures, "train"),
        checkpointed=_by_rows(figures, "checkpointed"),
        refused=notes["refused"],
        details=details,
    )


def _is_peak(key: str) -> bool:
    return key.endswith(".peak")


def _by_rows(figures: Figures, work: str) -> dict[int, float]:
    """Peak by micro-batch: of a pass, or of the optimizer where that takes more."""
    update = figures.get(f"{work}.update.peak", 0.0)
    rows = [key.split(".")[1] for key in figures if key.startswith(f"{work}.") and _is_peak(key)]
    return {int(one): max(update, figures[f"{work}.{one}.peak"]) for one in rows if one != "update"}


def _extended(depths: tuple[int, ...], measured: list[Figures], layers: int) -> Figures:
    """Figures at the full depth, on the line through the two that were measured."""
    if len(depths) == 1:
        return measured[0]
    (shallow, deep), (few, many) = depths, measured
    return {key: few[key] + (many[key] - few[key]) / (deep - shallow) * (layers - shallow) for key in few}


def _measure(
    config: transformers.PretrainedConfig, name: str, settings: Mapping[str, Any]
) -> tuple[Figures, dict[str, Any]]:
    """(figures, notes) of one depth."""
    with pretended_gpus() as ledger:
        lm = models.pretend_model(
            config,
            name,
            dtype=settings["dtype"],
            device=f"{KIND}:0",
            batch_size=settings["batch_size"],
            max_length=settings["max_length"],
        )
        weights = list(lm.base.parameters())
        figures: Figures = {"parameters": sum(map(lambda one: one.numel(), weights)), "weights": ledger.live_bytes}
        notes = {"architecture": type(lm.base).__name__, "attention": config._attn_implementation, "refused": None}
        _score(lm, ledger, settings, figures)
        if settings["trains"]:
            try:
                targets = find_targets(lm, settings["target_modules"])
                notes |= {"adapters": targets.described, "adapted_share": round(targets.share, 4)}
                _train(lm, ledger, settings, figures)
            except CellError as error:
                notes["refused"] = error.problem
    return figures, notes


def _score(lm: LanguageModel, ledger: Ledger, settings: Mapping[str, Any], figures: Figures) -> None:
    tokens = min(SCORED_TOKENS, lm.max_length)
    ways: tuple[Way, ...] = ("rows", "packed", "cached") if settings["scorer"] == "auto" else (settings["scorer"],)
    for way in ways:
        _book(figures, f"score.{way}", steps.score(lm, ledger, way, settings["batch_size"], tokens))
    lm.scorer = settings["scorer"]
    if settings["writes"]:
        _book(figures, "generate", steps.generate(lm, ledger, settings["batch_size"], tokens))
    _book(figures, "roll", steps.roll(lm, ledger, min(WINDOW_TOKENS, lm.max_length)))


def _train(lm: LanguageModel, ledger: Ledger, settings: Mapping[str, Any], figures: Figures) -> None:
    rows, sizes = min(settings["micro_batch"], settings["effective_batch"]), []
    while rows:
        sizes.append(rows)
        rows //= 2
    own = {key: settings[key] for key in ("effective_batch", "rank", "loss", "target_modules")}
    tokens = min(settings["training_tokens"], lm.max_length)
    for work, checkpointing in (("train", False), ("checkpointed", True)):
        finetune = FinetuneSettings(learning_rate=1e-4, gradient_checkpointing=checkpointing, **own)
        found = steps.train(lm, ledger, finetune, tokens, sizes)
        for size, use in found.passes.items():
            _book(figures, f"{work}.{size}", use)
        _book(figures, f"{work}.update", found.update)


def _book(figures: Figures, work: str, use: steps.Use) -> None:
    values = asdict(use)
    values |= {f"host_reads.{name}": count for name, count in values.pop("host_reads").items()}
    figures.update({f"{work}.{name}": value for name, value in values.items()})
