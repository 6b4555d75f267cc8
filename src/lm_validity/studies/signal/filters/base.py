"""What a filter is: it sees items (answers, texts, or both) and says which of them stay.

Filters compose: `keep_items` runs them one after the other, each seeing only what the ones before it kept.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.studies.signal.statistics.items import METRICS, item_scores
from lm_validity.studies.signal.statistics.splits import Rows
from lm_validity.tables.item_arrays import BenchmarkItems, ModelItems


@dataclass(frozen=True)
class Candidates:
    """Items that a filter may keep: their answers, their texts, or both, in the same order.

    `documents` has the columns of `tables.documents` and one row per item. `references` are the last answers
    of models by which a filter chooses (`sci_score`); unlike `answers` they stay whole where a split takes
    some models and checkpoints only.
    """

    doc_ids: np.ndarray
    answers: BenchmarkItems | None = None
    documents: pd.DataFrame | None = None
    references: BenchmarkItems | None = None

    def take(self, kept: np.ndarray) -> "Candidates":
        """Only the kept ones, boolean (items,)."""
        return Candidates(
            doc_ids=self.doc_ids[kept],
            answers=None if self.answers is None else self.answers.take(kept),
            documents=None if self.documents is None else self.documents[kept].reset_index(drop=True),
            references=None if self.references is None else self.references.take(kept),
        )

    def rows(self, rows: Rows) -> "Candidates":
        """The same items with the answers of some models and checkpoints only (see
        `statistics.signal_splits`)."""
        return self if self.answers is None else replace(self, answers=self.answers.rows(rows))

    def need_answers(self, who: str) -> BenchmarkItems:
        """The answers. Raises InputError where there are none, for the filter named `who`."""
        if self.answers is None:
            raise InputError(f"filter {who!r} needs the models' answers.", "give --items items.parquet.")
        return self.answers

    def need_documents(self, who: str) -> pd.DataFrame:
        """The texts. Raises InputError where there are none, for the filter named `who`."""
        if self.documents is None:
            raise InputError(
                f"filter {who!r} needs the documents' texts.",
                "give --documents (see docs/reference/signal.md for its columns).",
            )
        return self.documents


class ItemFilter(Protocol):
    """`name` is its name in configurations; `fitted` says whether its choice depends on the models'
    answers."""

    @property
    def name(self) -> str:
        """What recipes and records call the filter."""

    @property
    def fitted(self) -> bool:
        """Whether the choice depends on the models' answers: then it is judged on answers it did not see."""

    def keep(self, candidates: Candidates) -> np.ndarray:
        """Boolean (items,): True where an item stays. Raises InputError where the candidates lack what it reads."""


@dataclass(frozen=True)
class Step:
    """What one filter did."""

    filter: str
    before: int
    after: int


@dataclass(frozen=True)
class Selection:
    """The items that are left, in the order of the candidates, and how it came to that."""

    kept: np.ndarray  # boolean over the candidates
    doc_ids: tuple[str, ...]
    steps: tuple[Step, ...]


def keep_items(filters: list[ItemFilter], candidates: Candidates) -> Selection:
    """Run `filters` in order, each on what is left."""
    kept = np.ones(len(candidates.doc_ids), dtype=bool)
    steps = []
    for item_filter in filters:
        # Copying all the answers costs more than most filters
        left = item_filter.keep(candidates if kept.all() else candidates.take(kept))
        before = int(kept.sum())
        kept[np.flatnonzero(kept)[~left]] = False
        steps.append(Step(item_filter.name, before, int(kept.sum())))
    return Selection(kept, tuple(str(name) for name in candidates.doc_ids[kept]), tuple(steps))


@dataclass(frozen=True)
class AnyOf:
    """Keeps an item that any of several chains of filters keeps, each chain run on all candidates.

    Team Noor's rule is such a union: hard-science subjects as they are, other sciences if the judge accepts
    them.
    """

    chains: tuple[tuple[ItemFilter, ...], ...]
    name: str = field(default="any_of", init=False)

    @property
    def fitted(self) -> bool:
        """Whether any filter of any chain is fitted."""
        return any(item_filter.fitted for chain in self.chains for item_filter in chain)

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True where at least one chain keeps the item. Chains do not see each other's choices."""
        return np.any([keep_items(list(chain), candidates).kept for chain in self.chains], axis=0)


def leaves(filters: Iterable[ItemFilter]) -> list[ItemFilter]:
    """The filters, those within `any_of` among them."""
    found = []
    for item_filter in filters:
        chains = item_filter.chains if isinstance(item_filter, AnyOf) else ()
        found += leaves(part for chain in chains for part in chain) if chains else [item_filter]
    return found


def reference_models(filters: Iterable[ItemFilter]) -> set[str]:
    """Models by whose last answers some of the filters choose: they cannot be scored with what they chose."""
    return {model for item_filter in leaves(filters) for model in getattr(item_filter, "reference_models", ())}


def with_references(candidates: Candidates, filters: Iterable[ItemFilter]) -> Candidates:
    """The same items with the reference models' last answers set aside; without those the filter says what it lacks."""
    wanted = reference_models(filters)
    if candidates.answers is None or not wanted:
        return candidates
    models = candidates.answers.models
    last = [(index, [len(model.checkpoints) - 1]) for index, model in enumerate(models) if model.model in wanted]
    return replace(candidates, references=candidates.answers.rows(last)) if len(last) == len(wanted) else candidates


def model_scores(answers: BenchmarkItems, model: ModelItems, metric: str) -> np.ndarray:
    """Oriented scores (checkpoints, items) of one model: higher is better. `correct` is the benchmark's own
    metric.

    Raises InputError where the table lacks what the metric needs.
    """
    if metric == "correct":
        return model.correct
    if metric in model.scores:
        return model.scores[metric]
    if metric not in METRICS:
        raise InputError(f"{metric!r} is not an item metric.", f"one of correct, {', '.join(METRICS)}.")
    if missing := missing_for(answers, model, metric):
        raise InputError(
            f"benchmark {answers.benchmark!r}, model {model.model!r}: {metric} needs {missing}.",
            "choose another metric, or evaluate with choices' log-likelihoods and lengths kept.",
        )
    described = METRICS[metric]
    lengths = {None: None, "token": model.tokens, "character": answers.characters, "byte": answers.bytes}[described.per]
    assert model.loglikelihoods is not None and answers.gold is not None, "`missing_for` has seen to it"
    scores = item_scores(metric, model.loglikelihoods, answers.gold, lengths, model.unconditional)
    return scores if described.higher_is_better else -scores


def with_scores_only(answers: BenchmarkItems, metrics: tuple[str, ...]) -> BenchmarkItems:
    """The same answers with these metrics computed and the log-likelihoods dropped.

    Judging a filter asks for the same scores of many subsets of models and checkpoints; this keeps the subsets small.
    """
    models = tuple(
        replace(
            model,
            loglikelihoods=None,
            unconditional=None,
            scores={metric: model_scores(answers, model, metric) for metric in metrics},
        )
        for model in answers.models
    )
    return replace(answers, models=models)


def missing_for(answers: BenchmarkItems, model: ModelItems, metric: str) -> str | None:
    """What the items table lacks for a metric, in words; None where nothing is missing."""
    if model.loglikelihoods is None or answers.gold is None:
        return "log-likelihoods of choices and gold answers"
    described = METRICS[metric]
    if described.unconditional and model.unconditional is None:
        return "unconditional log-likelihoods"
    lengths = {"token": model.tokens, "character": answers.characters, "byte": answers.bytes}
    if described.per is not None and lengths[described.per] is None:
        return f"the choices' lengths in {described.per}s"
    return None
